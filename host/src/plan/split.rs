//! Rows that a group of blocks shares in the pass that computes loss and gradients: how many blocks
//! share a row, and how many rows are computed at a time.

use super::Launch;
use super::packed::Device;
use kernels_gpu::abi::{LINE_VECTORS, SPLIT_TILE_VECTORS, VECTOR_BYTES};
use std::num::NonZeroU32;

/// A launch of `forward_backward_split`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Split {
    pub(crate) launch: Launch,
    /// Blocks that share a row.
    pub(crate) splits: NonZeroU32,
    /// Vectors of a part, of which a block has one.
    pub(crate) part_vectors: u32,
    /// How many of these a block stages: all, unless a row is longer than the shared memory of the
    /// whole device.
    pub(crate) staged_vectors: u32,
}

/// Bytes of a tile: what a warp moves at once.
const TILE_BYTES: usize = (SPLIT_TILE_VECTORS * VECTOR_BYTES) as usize;

/// The fewest tiles of a part: 8 KiB. Chosen, not searched for.
const MIN_PART_TILES: usize = 4;

/// Whether rows are shared by several blocks in the pass that computes loss and gradients, where
/// there is a kernel for it.
pub(crate) fn is_split(rows: usize, row_bytes: usize) -> bool {
    rows > 0 && row_bytes >= MIN_ROW_BYTES
}

/// The fewest bytes of a row that is shared. A block alone holds shorter ones in registers and
/// shared memory, or nearly so. H200, 2026-11-26, forward-backward in f32, ceiling ÷ ours with a
/// block and with several blocks per row: 4096×65536 0.95 and 0.81, 2317×87104 0.82 and 0.79,
/// 3000×115000 0.72 and 0.75, 4096×128256 0.71 and 0.80, 256×262144 0.64 and 0.74.
const MIN_ROW_BYTES: usize = 448 << 10;

/// The launch over `rows` rows of `cols` elements, in blocks of `threads` threads, each of which
/// may have `dynamic_bytes` of dynamic shared memory if it is alone on its multiprocessor.
pub(crate) fn split(
    rows: usize,
    cols: usize,
    element_bytes: usize,
    (threads, dynamic_bytes): (u32, u32),
    device: Device,
) -> Split {
    let Device { multiprocessors, shared_bytes, registers_for } = device;
    let lanes = VECTOR_BYTES as usize / element_bytes;
    // Vectors are numbered from the cache line that a row begins in.
    let vectors = cols / lanes + LINE_VECTORS as usize - 1;
    let tiles = vectors.div_ceil(SPLIT_TILE_VECTORS as usize);
    let blocks = multiprocessors * registers_for;
    // What is not dynamic, of each block's share of the multiprocessor's shared memory.
    let others = shared_bytes - dynamic_bytes as usize;
    let room = (shared_bytes / registers_for).saturating_sub(others);
    let most_parts = tiles.div_ceil(MIN_PART_TILES).min(blocks);
    // All rows at a time, if a block has room for its part of one.
    let at_once = (blocks / rows.max(1)).min(most_parts);
    let (groups, parts, stages) = if at_once > 0 && tiles.div_ceil(at_once) * TILE_BYTES <= room {
        (rows.max(1), at_once, 1)
    } else {
        // As few blocks as have room for a row, and as many rows at a time as that leaves blocks
        // for; then as few as take no more rounds.
        let parts = tiles.div_ceil((room / 2 / TILE_BYTES).max(1)).min(blocks);
        let rounds = rows.div_ceil(blocks / parts);
        let groups = rows.div_ceil(rounds);
        (groups, (blocks / groups).min(most_parts), 2)
    };
    let part_tiles = tiles.div_ceil(parts);
    let parts = tiles.div_ceil(part_tiles);
    let staged_tiles = part_tiles.min(room / stages / TILE_BYTES);
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    Split {
        launch: Launch {
            blocks: (groups * parts) as u32,
            threads,
            shared_bytes: (stages * staged_tiles * TILE_BYTES) as u32,
            cooperative: true,
        },
        splits: number(parts),
        part_vectors: part_tiles as u32 * SPLIT_TILE_VECTORS,
        staged_vectors: staged_tiles as u32 * SPLIT_TILE_VECTORS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::MAX_PARTIALS;

    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 2 };

    /// Of a block that is alone, besides 2432 bytes of its arrays and the driver's KiB.
    const DYNAMIC_BYTES: u32 = (227 << 10) - 2432;

    fn plan(rows: usize, cols: usize, element_bytes: usize) -> Split {
        split(rows, cols, element_bytes, (256, DYNAMIC_BYTES), DEVICE)
    }

    #[test]
    fn few_rows_take_all_blocks_at_once() {
        let Split { launch, splits, part_vectors, staged_vectors } = plan(4, 262_144, 4);
        // 264 blocks for four rows of 513 tiles each: parts of 8 tiles.
        assert_eq!((launch.blocks, splits.get()), (4 * 65, 65));
        assert_eq!((part_vectors, staged_vectors), (8 * 128, 8 * 128));
        assert_eq!(launch.shared_bytes, 8 * 2048);
    }

    #[test]
    fn many_rows_are_shared_by_as_few_blocks_as_have_room() {
        let Split { launch, splits, staged_vectors, .. } = plan(4096, 128_256, 4);
        // 251 tiles, in stages of at most 27: ten blocks, and 26 groups of them.
        assert_eq!((launch.blocks, splits.get()), (26 * 10, 10));
        assert_eq!(launch.shared_bytes, 2 * staged_vectors * 16);
        assert!(launch.shared_bytes + 2432 + 1024 <= (228 << 10) / 2);
    }

    /// A block alone is as fast for the shorter of these rows, which were measured, and several
    /// are faster for the longer.
    #[test]
    fn rows_too_long_for_a_block_are_shared() {
        let is_split = |rows, cols: usize| is_split(rows, 4 * cols);
        assert!(!is_split(4096, 65_536) && !is_split(2317, 87_104));
        assert!(is_split(3000, 115_000) && is_split(4096, 128_256) && is_split(256, 262_144));
        assert!(!is_split(4096, 50_257) && !is_split(0, 262_144));
    }

    /// Vectors are numbered from the cache line that a row begins in, so that a row may take the
    /// seven more that the line has before it.
    #[test]
    fn the_line_before_a_row_is_in_its_first_part() {
        let parts = |vectors: usize| plan(1, 4 * vectors, 4).splits.get();
        assert_eq!((parts(8 * 128 - 7), parts(8 * 128 - 6)), (2, 3));
    }

    #[test]
    fn every_vector_of_a_row_is_in_a_part_and_the_grid_is_resident() {
        for rows in [1, 2, 33, 44, 60, 131, 132, 133, 1000, 1 << 20] {
            for cols in [1, 100, 50_257, 128_256, 262_144, 10_000_000, (1 << 31) - 1] {
                for element_bytes in [2, 4, 8] {
                    let Split { launch, splits, part_vectors, staged_vectors } =
                        plan(rows, cols, element_bytes);
                    let vectors = cols as u64 * element_bytes as u64 / 16 + 7;
                    let of_parts = u64::from(splits.get()) * u64::from(part_vectors);
                    let what = format!("{rows}x{cols} of {element_bytes} bytes");
                    assert!(of_parts >= vectors, "{what}");
                    assert!(launch.cooperative, "{what}");
                    assert!(launch.blocks <= 264 && launch.blocks % splits == 0, "{what}");
                    assert!(launch.blocks / splits <= rows as u32, "{what}");
                    assert!(staged_vectors <= part_vectors && staged_vectors > 0, "{what}");
                    // A block has what it stages once, or twice where it has a part of one row
                    // after the other: all of a part, if there is room.
                    let room = (228 << 10) / 2 - 2432 - 1024;
                    let stages = launch.shared_bytes / (16 * staged_vectors);
                    assert!(stages == 1 || stages == 2, "{what}");
                    assert_eq!(launch.shared_bytes, 16 * stages * staged_vectors, "{what}");
                    assert!(launch.shared_bytes <= room, "{what}");
                    let more = launch.shared_bytes + stages * TILE_BYTES as u32;
                    assert!(staged_vectors == part_vectors || more > room, "{what}");
                    assert!(stages == 2 || staged_vectors == part_vectors, "{what}");
                    assert!(16 * launch.blocks <= MAX_PARTIALS, "{what}");
                }
            }
        }
    }
}
