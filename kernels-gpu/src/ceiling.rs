//! The memory-bandwidth ceiling that losses are compared with: kernels that read and write the same
//! bytes as a loss, 16 bytes at a time, and compute next to nothing.

use crate::abi::{CeilingArgs, LINE_VECTORS};
use cuda_std::memory::{Vec16, load_streaming, prefetch, store, store_streaming};
use cuda_std::thread::{
    block_dim_x, block_idx_x, grid_dim_x, thread_idx_x, wait_for_launches_before,
};

/// The entries, named by the arrays that are read, the arrays that are written, and the vectors of
/// each that a thread has in flight.
macro_rules! kernels {
    ($loss:ident,) => {
        use crate::abi::{CeilingArgs, MAX_BLOCK};
        use crate::ceiling::pass;

        crate::table::kernels! {
            $loss, [f32],
            READ1_BY1 = read1_by1: pass::<1, 0, 1>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ1_BY4 = read1_by4: pass::<1, 0, 4>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ1_BY8 = read1_by8: pass::<1, 0, 8>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ2_BY1 = read2_by1: pass::<2, 0, 1>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ2_BY2 = read2_by2: pass::<2, 0, 2>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ2_BY4 = read2_by4: pass::<2, 0, 4>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ1_WRITE1_BY1 = read1_write1_by1: pass::<1, 1, 1>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ1_WRITE1_BY4 = read1_write1_by4: pass::<1, 1, 4>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ2_WRITE1_BY1 = read2_write1_by1: pass::<2, 1, 1>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
            READ2_WRITE1_BY4 = read2_write1_by4: pass::<2, 1, 4>, (CeilingArgs), MAX_BLOCK by 1, 0 barriers;
        }
    };
}
pub(crate) use kernels;

/// Reads `READS` arrays and the array of per-row values (`of_rows`), and writes `WRITES` arrays. A
/// thread has `UNROLL` vectors of each array in flight.
///
/// 1. The first `READS + WRITES` entries of `args.arrays`, those to read first, point to `vectors`
///    16-byte aligned vectors in global memory each, and `of_rows` points to `of_rows_vectors` such
///    vectors.
///    vectors.
/// 2. `sink` points to 4 aligned bytes of global memory that may be overwritten.
/// 3. What is written overlaps nothing else that `args` names.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn pass<const READS: usize, const WRITES: usize, const UNROLL: usize>(
    args: &CeilingArgs,
) {
    let threads = u64::from(block_dim_x());
    let tile = threads * UNROLL as u64;
    let mut seen = 0;
    let mut start = u64::from(block_idx_x()) * tile;
    if CeilingArgs::asks_early(READS, WRITES) {
        // The first blocks prefetch their tile into the L2 cache before the launches before this
        // one are done (programmatic dependent launch), as the losses with this access pattern do.
        let is_early = (start + tile) * 16 <= args.early_bytes && start + tile <= args.vectors;
        if is_early && thread_idx_x().is_multiple_of(LINE_VECTORS) {
            for k in 0..UNROLL as u64 {
                let vector = start + u64::from(thread_idx_x()) + k * threads;
                // SAFETY: condition 1.
                unsafe { prefetch((args.arrays[0] + vector * 16) as *const u8) };
            }
        }
        wait_for_launches_before();
    }
    while start + tile <= args.vectors {
        let first = start + u64::from(thread_idx_x());
        let at = |array: usize, k: usize| {
            (args.arrays[array] + (first + k as u64 * threads) * 16) as *mut Vec16
        };
        let mut of_rows = Vec16::default();
        let thread = u64::from(thread_idx_x());
        let vector = start / tile * args.of_rows_share + thread;
        if thread < args.of_rows_share && vector < args.of_rows_vectors {
            // SAFETY: condition 1.
            of_rows = unsafe { load_streaming((args.of_rows + vector * 16) as *const Vec16) };
        }
        let mut values = [[Vec16::default(); UNROLL]; READS];
        for k in 0..UNROLL {
            for (read, values) in values.iter_mut().enumerate() {
                // SAFETY: condition 1.
                values[k] = unsafe { load_streaming(at(read, k)) };
            }
        }
        for k in 0..UNROLL {
            let mut mixed = [0; 4];
            for values in &values {
                for (word, mixed) in mixed.iter_mut().enumerate() {
                    *mixed ^= values[k].0[word];
                }
            }
            if WRITES == 0 {
                seen ^= mixed[0] ^ mixed[1] ^ mixed[2] ^ mixed[3];
            }
            for write in 0..WRITES {
                // SAFETY: conditions 1 and 3.
                unsafe { store_streaming(at(READS + write, k), Vec16(mixed)) };
            }
        }
        seen ^= of_rows.0[0];
        start += tile * u64::from(grid_dim_x());
    }
    // Almost never true, but the compiler cannot know that, so it has to keep the reads.
    if seen == 0x9E37_79B9 {
        // SAFETY: condition 2.
        unsafe { store(args.sink as *mut u32, seen) };
    }
}
