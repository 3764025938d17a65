//! Rows that a block stages in shared memory, with loss and gradients: which rows, and how many
//! threads share one.

use super::packed::{Device, RESERVED};
use kernels_gpu::abi::{LINE_VECTORS, VECTOR_BYTES};

/// How a row is staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Staged {
    pub(crate) threads: u32,
    pub(crate) shared_bytes: usize,
}

/// The fewest bytes of a row; shorter rows are packed, or in registers. In f64, where packed rows
/// are exponentiated once as well: H200, 2026-11-27, forward-backward, ceiling ÷ ours packed and
/// staged, 255 columns 0.67 and 0.46, 408 columns 0.87 and 0.72, 500 columns 0.70 and 0.66, 512
/// columns 0.79 and 0.83. The number for other types was chosen, not searched for.
const fn min_bytes(element_bytes: usize) -> usize {
    if element_bytes == 8 { 4096 } else { 2048 }
}

/// Vectors of a row per thread of a block that stages a row in shared memory, where there are rows
/// for all multiprocessors: four times as many as a thread of the other kernels has, so that what
/// every thread does once a row is a smaller part. Chosen, not searched for.
const VECTORS: usize = 16;

/// Where there are few rows, more threads share each, until a thread has so many vectors. H200,
/// 2324×1024 in f64: 0.27 of the ceiling with a warp per row, 0.52 with three.
const FEWEST_VECTORS: usize = 4;

/// The fewest blocks of a multiprocessor, of those that stage a row each: while one computes,
/// another loads or stores.
const BLOCKS: usize = 2;

/// Bytes of the kernel's arrays in shared memory, beside the row.
const ARRAYS: usize = 2432;

/// How rows of `vectors` vectors are staged, in blocks of at most `most_threads` threads; `None` if
/// they are too short or too long for that.
pub(super) fn plan(
    rows: usize,
    vectors: usize,
    element_bytes: usize,
    device: Device,
    most_threads: u32,
) -> Option<Staged> {
    // Vectors are numbered from the cache line that the row begins in.
    let shared_bytes = (vectors + LINE_VECTORS as usize) * VECTOR_BYTES as usize;
    let room = device.shared_bytes / BLOCKS - RESERVED - ARRAYS;
    if vectors * (VECTOR_BYTES as usize) < min_bytes(element_bytes) || shared_bytes > room {
        return None;
    }
    let warps_for = |vectors_of_thread| vectors.div_ceil(32 * vectors_of_thread);
    let resident = device.multiprocessors * device.registers_for * most_threads as usize / 32;
    // Twice as many warps as are resident at a time, if possible.
    let wanted = (2 * resident).div_ceil(rows.max(1));
    let warps =
        wanted.clamp(fewest_warps(warps_for(VECTORS), element_bytes), warps_for(FEWEST_VECTORS));
    Some(Staged { threads: most_threads.min(warps as u32 * 32), shared_bytes })
}

/// `warps` or, for 16-bit elements, the nearest power of two: four schedulers share the warps of a
/// block. H200, 2026-11-27, bf16 forward-backward, ceiling ÷ ours: 9139 columns 0.85 with three
/// warps and 0.89 with two, 18,659 columns 0.82 with five and 0.89 with four, 27,184 columns 0.71
/// with seven and 0.78 with eight. In f32, 8312 columns 0.87 with three, 0.88 with five and with
/// six, 0.86 with eight.
fn fewest_warps(warps: usize, element_bytes: usize) -> usize {
    let above = warps.next_power_of_two();
    match element_bytes {
        2 if 4 * warps <= 3 * above => above / 2,
        2 => above,
        _ => warps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };

    /// The threads of a block for rows of `cols` f64.
    fn threads(rows: usize, cols: usize) -> Option<u32> {
        plan(rows, cols.div_ceil(2), 8, DEVICE, 256).map(|staged| staged.threads)
    }

    #[test]
    fn a_thread_has_sixteen_vectors_of_many_rows() {
        assert_eq!(threads(1 << 20, 1024), Some(32));
        assert_eq!(threads(1 << 20, 1026), Some(64));
        assert_eq!(threads(1 << 20, 8192), Some(256));
        // No more threads than the kernel's block has.
        assert_eq!(threads(1 << 20, 14_000), Some(256));
    }

    #[test]
    fn few_rows_have_more_threads_each() {
        assert_eq!(threads(2324, 1024), Some(96));
        assert_eq!(threads(100, 1024), Some(128));
        assert_eq!(threads(1, 600), Some(96));
    }

    #[test]
    fn two_rows_have_room_in_a_multiprocessor() {
        // 7072 vectors, eight that a cache line may have before them, 2432 bytes and a KiB.
        assert_eq!(threads(1000, 14_144), Some(256));
        assert_eq!(threads(1000, 14_146), None);
    }

    #[test]
    fn shorter_rows_are_packed() {
        assert_eq!((threads(1000, 510), threads(1000, 512)), (None, Some(64)));
    }

    /// Four warps of a block have a scheduler each.
    #[test]
    fn rows_of_16_bits_have_a_power_of_two_warps() {
        let warps = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|warps| fewest_warps(warps, 2));
        assert_eq!(warps, [1, 2, 2, 4, 4, 4, 8, 8, 8]);
        assert_eq!([3, 5, 7].map(|warps| fewest_warps(warps, 4)), [3, 5, 7]);
        let threads =
            |cols: usize| plan(1 << 20, cols.div_ceil(8), 2, DEVICE, 256).unwrap().threads;
        assert_eq!([4097, 9139, 18_659, 27_184].map(threads), [64, 64, 128, 256]);
    }
}
