//! Rows that a block stages in shared memory to compute loss and gradients: which rows, and how
//! many threads share one.

use super::packed::{Device, RESERVED};
use kernels_gpu::abi::{CACHE_LINE, STAGED_BATCH_VECTORS, VECTOR_BYTES};

/// How a row is staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Staged {
    pub(crate) threads: u32,
    pub(crate) shared_bytes: usize,
    /// Vectors of logits, after which another tensor is staged; 0 if there is none.
    pub(crate) staged_vectors: u32,
}

/// The fewest bytes of a row; shorter rows are packed, or in registers. In f64 and from
/// probabilities, this is about where staging becomes faster than packing; in f64, packed rows are
/// exponentiated only once as well. For classes of other types, the number was chosen, not searched
/// for.
///
/// H200, 2026-11-27, forward-backward, f64, ceiling ÷ ours packed and staged:
///
/// - 255 columns 0.67 and 0.46, 408 columns 0.87 and 0.72, 500 columns 0.70 and 0.66, 512 columns
///   0.79 and 0.83
///
/// From probabilities (2026-11-28):
///
/// - f64: 111 columns 0.45 and 0.33, 192 columns 0.51 and 0.60, 218 columns 0.46 and 0.52, 296
///   columns 0.43 and 0.74
/// - f32: 408 columns 0.84 and 0.74, 683 columns 0.70 and 0.86
/// - bf16: 944 columns 0.55 and 0.45, 1064 columns 0.54 and 0.60
const fn min_bytes(element_bytes: usize, tensors: usize) -> usize {
    match (element_bytes, tensors) {
        (8, 1) => 4096,
        (8, _) => 1536,
        _ => 2048,
    }
}

/// Vectors of a row per thread of a block that stages a row in shared memory, where there are rows
/// for all multiprocessors: of logits alone, and of each tensor where there are two. With these
/// numbers, registers and shared memory have room for the same number of blocks. For logits alone
/// the number was chosen, not searched for.
///
/// H200, 2026-11-28, forward-backward from probabilities, ceiling ÷ ours with 8, 12, 14 and 16:
///
/// - f32: 2048 columns 0.97, 0.97, 0.97, 0.95; 4616 columns 0.86, 0.94, 0.94, 0.94
/// - f64: 1423 columns 0.75, 0.85, 0.85, 0.85; 1984 columns 0.92, 0.95, 0.95, 0.94
const VECTORS: [usize; 2] = [16, 14];

/// If there are few rows, more threads share each, until a thread has only this many vectors. H200,
/// 2324×1024 in f64: 0.27 of the ceiling with a warp per row, 0.52 with three.
const FEWEST_VECTORS: usize = 4;

/// The fewest blocks per multiprocessor that stage a row each: while one computes, another loads or
/// stores.
const BLOCKS: usize = 2;

/// Bytes of the kernel's arrays in shared memory, which a block has in addition to the row.
const ARRAYS: usize = 2432;

/// The most vectors of a row's first cache line that are before the row, where rows have this
/// alignment, a power of two of bytes. Vectors are numbered from the line.
pub(super) fn most_lead(alignment: usize) -> usize {
    let (vector, line) = (VECTOR_BYTES as usize, CACHE_LINE as usize);
    (line - alignment.clamp(vector, line)) / vector
}

/// How rows of `vectors` vectors and of this `alignment` are staged, of logits alone or, with
/// `tensors` of 2, also of probabilities, in blocks of at most `most_threads`
/// threads. The room for a row is rounded up to whole batches, of `batch` vectors each. `None` if
/// rows are too short or too long to be staged.
pub(super) fn plan(
    rows: usize,
    vectors: usize,
    element_bytes: usize,
    tensors: usize,
    (alignment, batch): (usize, usize),
    (device, most_threads): (Device, u32),
) -> Option<Staged> {
    let of_row = vectors + most_lead(alignment);
    let of_logits = of_row.next_multiple_of(batch);
    let shared_bytes = tensors * of_logits * VECTOR_BYTES as usize;
    let room = device.shared_bytes / BLOCKS - RESERVED - ARRAYS;
    if vectors * (VECTOR_BYTES as usize) < min_bytes(element_bytes, tensors) || shared_bytes > room
    {
        return None;
    }
    let warps_of_multiprocessor = device.registers_for * most_threads as usize / 32;
    let on_average = vectors + most_lead(alignment) / 2;
    let fewest = fewest_warps(on_average, element_bytes, tensors, batch);
    // If possible, twice the warps that are resident at a time.
    let wanted = (2 * device.multiprocessors * warps_of_multiprocessor).div_ceil(rows.max(1));
    let most = vectors.div_ceil(32 * FEWEST_VECTORS).max(fewest);
    let threads = most_threads.min(wanted.clamp(fewest, most) as u32 * 32);
    let staged_vectors = if tensors == 1 { 0 } else { of_logits as u32 };
    Some(Staged { threads, shared_bytes, staged_vectors })
}

/// The warps of a block, where there are rows for all multiprocessors.
///
/// For 16-bit elements it is a power of two, since four schedulers share the warps of a block; a
/// thread then has up to 1.3 times [`VECTORS`]. H200, 2026-11-27 and 28, forward-backward, ceiling
/// ÷ ours:
///
/// - bf16, 9139 columns: 0.85 with three warps, 0.89 with two
/// - bf16, 13,000 columns: 0.88 with two, 0.94 with four, 0.82 with five
/// - bf16, 18,659 columns: 0.82 with five, 0.89 with four
/// - bf16, 27,184 columns: 0.90 with four, 0.93 with eight
/// - from probabilities, f16, 3608 columns: 0.81 with one, 0.60 with two
/// - from probabilities, bf16, 8192 columns: 0.94 with two, 0.90 with four
/// - from probabilities, bf16, 19,880 columns: 0.66 with four, 0.78 with eight
///
/// For other elements, a warp has three or four batches of the row, whichever leaves fewer warps
/// idle in the last turn. H200, 2026-11-29, ceiling ÷ ours:
///
/// - with four and with three: f32, 1819 columns (four batches) 0.90 and 0.93, 3315 columns (seven)
///   0.94 and 0.90; f64, 1024 columns (four) 0.89 and 0.92
/// - with one warp and with two: f32, 1511 columns (three batches) 0.90 and 0.78
fn fewest_warps(vectors: usize, element_bytes: usize, tensors: usize, batch: usize) -> usize {
    let vectors_of_warp = 32 * VECTORS[tensors - 1];
    if element_bytes == 2 {
        (10 * vectors).div_ceil(13 * vectors_of_warp).next_power_of_two()
    } else if batch == STAGED_BATCH_VECTORS as usize {
        let batches = vectors.div_ceil(batch);
        let warps = batches.div_ceil(4)..=batches.div_ceil(3);
        let in_turns = |warps: &usize| warps * batches.div_ceil(*warps);
        warps.rev().min_by_key(in_turns).expect("a range that is not empty")
    } else {
        vectors.div_ceil(vectors_of_warp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };

    /// The threads of a block for rows of `cols` f64.
    fn threads(rows: usize, cols: usize) -> Option<u32> {
        plan(rows, cols.div_ceil(2), 8, 1, (8, 128), (DEVICE, 256)).map(|staged| staged.threads)
    }

    #[test]
    fn a_thread_has_three_or_four_batches_of_many_rows() {
        // Two, three, and seven batches.
        assert_eq!(
            [512, 754, 1778].map(|cols| threads(1 << 20, cols)),
            [Some(32), Some(32), Some(64)]
        );
        // Four, and 18.
        assert_eq!([1010, 4594].map(|cols| threads(1 << 20, cols)), [Some(64), Some(192)]);
        // No more threads than the kernel's block has.
        assert_eq!(threads(1 << 20, 14_000), Some(256));
    }

    #[test]
    fn rows_of_two_tensors_take_twice_as_much_shared_memory() {
        let staged =
            |cols: usize, alignment| plan(1 << 20, cols / 4, 4, 2, (alignment, 1), (DEVICE, 256));
        let Staged { threads, shared_bytes, staged_vectors } = staged(4096, 4).unwrap();
        assert_eq!((threads, shared_bytes, staged_vectors), (96, 2 * 16 * 1031, 1031));
        let shared_bytes = |cols, alignment| staged(cols, alignment).unwrap().shared_bytes;
        assert_eq!(shared_bytes(4096, 128), 2 * 16 * 1024);
        assert_eq!(shared_bytes(4096, 64), 2 * 16 * 1028);
        assert!(staged(14_132, 4).is_some() && staged(14_136, 4).is_none());
    }

    #[test]
    fn few_rows_have_more_threads_each() {
        assert_eq!(threads(2324, 1024), Some(96));
        assert_eq!(threads(100, 1024), Some(128));
        assert_eq!(threads(1, 600), Some(96));
    }

    #[test]
    fn two_rows_have_room_in_a_multiprocessor() {
        // 55 batches: 7033 vectors, and seven that a cache line may have before them; besides, 2432
        // bytes and a KiB.
        assert_eq!(threads(1000, 14_066), Some(256));
        assert_eq!(threads(1000, 14_068), None);
    }

    #[test]
    fn shorter_rows_are_packed() {
        assert_eq!((threads(1000, 510), threads(1000, 512)), (None, Some(64)));
    }

    /// Each of the four warps of a block has its own scheduler.
    #[test]
    fn rows_of_16_bits_have_a_power_of_two_warps() {
        let warps =
            |bytes| [512, 665, 666, 1331, 1332].map(|vectors| fewest_warps(vectors, bytes, 1, 1));
        assert_eq!(warps(2), [1, 1, 2, 2, 4]);
        assert_eq!(warps(4), [1, 2, 2, 3, 3]);
        let threads = |cols: usize| {
            plan(1 << 20, cols.div_ceil(8), 2, 1, (2, 128), (DEVICE, 256)).unwrap().threads
        };
        assert_eq!([4097, 9139, 18_659, 27_184].map(threads), [32, 64, 128, 256]);
    }
}
