//! How work is cut into blocks. Pure functions of sizes: no device is asked, so that the same inputs
//! are summed in the same order on every device.

use kernels_gpu::abi::{BLOCK, MAX_PARTIALS, UNROLL};

/// Blocks for one pass over `len` elements of `element_bytes` each: as many as have a whole tile of
/// 16-byte loads, at least one, at most [`MAX_PARTIALS`].
pub(crate) fn elementwise_grid(len: usize, element_bytes: usize) -> u32 {
    let lanes = 16 / element_bytes;
    let tile = BLOCK as usize * UNROLL as usize * lanes;
    len.div_ceil(tile).clamp(1, MAX_PARTIALS as usize) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_a_block_even_for_nothing() {
        assert_eq!(elementwise_grid(0, 4), 1);
        assert_eq!(elementwise_grid(1, 4), 1);
    }

    #[test]
    fn a_block_for_each_tile_up_to_the_partial_sums_there_is_room_for() {
        let tile = (BLOCK * UNROLL * 4) as usize;
        assert_eq!(elementwise_grid(tile, 4), 1);
        assert_eq!(elementwise_grid(tile + 1, 4), 2);
        assert_eq!(elementwise_grid(100 * tile, 4), 100);
        assert_eq!(elementwise_grid(1 << 40, 4), MAX_PARTIALS);
    }

    #[test]
    fn halves_have_twice_the_elements_in_a_tile() {
        assert_eq!(elementwise_grid(1 << 20, 2) * 2, elementwise_grid(1 << 20, 4));
    }
}
