//! The launch of each regime, for rows that it takes: threads, blocks and shared memory.

use super::shape::Shape;
use super::tail::Tail;
use super::{Regime, SamplesLaunch};
use crate::plan::packed::{Device, Packed, RESERVED, Rows};
use crate::plan::staged::Staged;
use crate::plan::{Launch, Pass, RowsLaunch, stream};
use kernels_gpu::abi::{
    ADDER_SHIFT, LINE_VECTORS, ROWS_BLOCK, VECTOR_BYTES, adder_shift, grid_of_workers,
};
use std::num::NonZeroU32;

/// [`Regime::ShortWhole`].
pub(super) fn short_whole(shape: &Shape) -> SamplesLaunch {
    let threads = shape.kernels.short_block as usize;
    let block = Block { group_threads: shape.row_lanes(), ..Block::of_row(threads) };
    whole(shape, Regime::ShortWhole, shape.kernels.per_thread, block)
}

/// [`Regime::WarpWhole`].
pub(super) fn warp_whole(shape: &Shape) -> SamplesLaunch {
    let threads = shape.kernels.warp_block as usize;
    let block = Block { group_threads: 32, ..Block::of_row(threads) };
    whole(shape, Regime::WarpWhole, shape.warp_per_thread(), block)
}

/// [`Regime::ShortPeeled`].
pub(super) fn short_peeled(shape: &Shape) -> SamplesLaunch {
    let threads = shape.kernels.short_peeled_block as usize;
    let block = Block { group_threads: shape.peeled_row_lanes(), ..Block::of_row(threads) };
    rows_by_group(shape, Regime::ShortPeeled, block)
}

/// [`Regime::WarpPeeled`].
pub(super) fn warp_peeled(shape: &Shape) -> SamplesLaunch {
    let threads = shape.kernels.warp_peeled_block as usize;
    let block = Block { group_threads: 32, ..Block::of_row(threads) };
    rows_by_group(shape, Regime::WarpPeeled, block)
}

/// A row group of at most a warp per row, of `per_thread` vectors a thread.
fn whole(shape: &Shape, regime: Regime, per_thread: usize, block: Block) -> SamplesLaunch {
    // In the forward pass, each thread stages all of its vectors, of which one has the logit of the
    // target's class.
    let shared_bytes = match shape.pass {
        Pass::Forward => 16 * per_thread * ROWS_BLOCK as usize,
        Pass::Backward | Pass::ForwardBackward => 0,
    };
    rows_by_group(shape, regime, Block { shared_bytes, ..block })
}

/// [`Regime::Staged`].
pub(super) fn staged(shape: &Shape, staged: Staged) -> SamplesLaunch {
    let Staged { threads, shared_bytes, staged_vectors } = staged;
    let adder_shift = adder_shift(shape.element_bytes, threads);
    let block = Block { shared_bytes, adder_shift, ..Block::of_row(threads as usize) };
    SamplesLaunch { staged_vectors, ..rows_by_group(shape, Regime::Staged, block) }
}

/// [`Regime::Packed`], [`Regime::LaneRows`] or [`Regime::WideRows`].
pub(super) fn packed(shape: &Shape, packed: Packed, device: Device) -> SamplesLaunch {
    let workers = packed.blocks(shape.pass, shape.rows, device);
    let blocks = match shape.pass {
        Pass::Backward => workers.max(1),
        Pass::Forward | Pass::ForwardBackward => {
            grid_of_workers(workers as u32, ADDER_SHIFT) as usize
        }
    };
    SamplesLaunch {
        tile: packed.args_of(shape.rows),
        ..SamplesLaunch::new(packed.regime, packed.launch(blocks))
    }
}

/// [`Regime::Few`].
pub(super) fn few(shape: &Shape) -> SamplesLaunch {
    rows_by_group(shape, Regime::Few, Block::of_row(shape.few_threads()))
}

/// [`Regime::Stream`].
pub(super) fn stream(shape: &Shape, layout: &Rows, device: Device) -> SamplesLaunch {
    let (launch, stream) = stream::layout(shape.rows, layout, device);
    let has_few_rows = stream::are_few(shape.rows, layout, device);
    SamplesLaunch { stream, has_few_rows, ..SamplesLaunch::new(Regime::Stream, launch) }
}

/// [`Regime::Registers`].
pub(super) fn registers(shape: &Shape) -> SamplesLaunch {
    // A block stages the vector that has the logit of the target's class.
    let block = Block { shared_bytes: 16, ..Block::of_row(shape.registers_threads()) };
    rows_by_group(shape, Regime::Registers, block)
}

/// [`Regime::Peeled`].
pub(super) fn peeled(shape: &Shape) -> SamplesLaunch {
    rows_by_group(shape, Regime::Peeled, Block::of_row(shape.peeled_threads()))
}

/// [`Regime::Long`]. Rows are split over several blocks in the forward pass, if there are few rows
/// or at the end of the pass, and in the backward pass, so that a part fits into the registers of a
/// block. They are not split in the forward-backward pass.
pub(super) fn long(shape: &Shape) -> SamplesLaunch {
    match shape.pass {
        Pass::Forward => long_forward(shape),
        Pass::Backward => long_backward(shape),
        Pass::ForwardBackward => long_forward_backward(shape),
    }
}

/// Half of the warps that an H100 has room for. If there are fewer rows than this, a row gets more
/// warps. Chosen, not searched for.
const RESIDENT_WARPS: usize = MULTIPROCESSORS * 32;

/// Vectors that a thread has in flight in kernels whose rows are not register-resident.
pub(super) const FLIGHT: usize = 4;

/// Vectors of a row for each thread of [`long_forward`], where there are rows for all
/// multiprocessors. Smaller blocks overlap each other's starts and ends.
///
/// H200, 2026-11-27, ceiling ÷ ours with 4, 8, 12 and 16 vectors:
///
/// - f32: 2767 columns 0.82, 0.90, 0.85, 0.85; 4944 columns 0.87, 0.98, 0.97, 0.97; 8193 columns
///   0.94, 0.94, 0.93, 0.89
/// - bf16: 2746 columns 0.71, 0.62, 0.82, 0.82; 8308 columns 0.65, 0.85, 0.92, 0.93; 9288 columns
///   0.63, 0.72, 0.69, 0.69
const fn vectors_of_thread(element_bytes: usize) -> usize {
    if element_bytes == 2 { 12 } else { 8 }
}

/// The most bytes of a row for which all of its vectors are in flight at once if rows take few
/// turns. Longer rows, and rows that take more turns, are faster in smaller blocks.
///
/// H200, 2026-11-28, ceiling ÷ ours with a row's vectors in flight at once and with
/// [`vectors_of_thread`] a thread:
///
/// - bf16: 2771 columns, of 22 MiB 0.56 and 0.31; 2653 columns, of 85 MiB 0.61 and 0.52, of 125 MiB
///   0.63 and 0.59
/// - f16: 4217 columns, of 30 MiB 0.58 and 0.45
/// - f32: 1501 columns, of 102 MiB 0.77 and 0.65; 2373 columns, of 45 MiB 0.78 and 0.64
/// - longer rows, bf16: 5179 columns, of 67 MiB 0.58 and 0.63
/// - more turns, f32: 1627 columns, of 325 MiB 0.73 and 0.81
const MOST_ROW_BYTES_IN_FLIGHT: usize = 10_000;

/// A block per row. If there are few rows, each has enough warps to have all of its vectors in
/// flight at once. If rows are long enough for the largest block, some are split.
fn long_forward(shape: &Shape) -> SamplesLaunch {
    let max_warps = shape.kernels.long_block as usize / 32;
    let warps_for = |vectors: usize| shape.vectors.div_ceil(32 * vectors).min(max_warps);
    let wanted = RESIDENT_WARPS / shape.rows.max(1);
    let has_short_rows = shape.vectors * VECTOR_BYTES as usize <= MOST_ROW_BYTES_IN_FLIGHT;
    let fewest = if has_short_rows && shape.takes_few_turns() {
        FLIGHT
    } else {
        vectors_of_thread(shape.element_bytes)
    };
    let warps = wanted.clamp(warps_for(fewest), warps_for(FLIGHT));
    let threads = 32 * warps;
    let mut plan = rows_by_group(shape, Regime::Long, Block::of_row(threads));
    let is_row_per_block = plan.rows_of_block == NonZeroU32::MIN;
    if is_row_per_block && threads == shape.kernels.long_block as usize {
        plan.tail = Tail::new(shape, threads);
        let workers = shape.rows as u32 + plan.tail.more_blocks();
        plan.rows.launch.blocks = grid_of_workers(workers, ADDER_SHIFT);
    }
    plan
}

/// A block per part of a row. Parts are register-resident, and equal up to the size of a warp's
/// share.
fn long_backward(shape: &Shape) -> SamplesLaunch {
    let (per_thread, max_threads) = (shape.kernels.per_thread, shape.kernels.long_block as usize);
    // Vectors are numbered from the cache line that the row begins in, so those of the line that
    // are before the row count too.
    let vectors = shape.vectors + LINE_VECTORS as usize - 1;
    let splits = vectors.div_ceil(per_thread * max_threads);
    let threads = vectors.div_ceil(splits * per_thread).next_multiple_of(32);
    let launch = Launch {
        blocks: (shape.rows * splits).max(1) as u32,
        threads: threads as u32,
        shared_bytes: 0,
        cooperative: false,
    };
    SamplesLaunch {
        rows: RowsLaunch { launch, group_threads: number(threads), splits: number(splits) },
        ..SamplesLaunch::new(Regime::Long, launch)
    }
}

/// Vectors of a row per thread of a block that is alone on its multiprocessor, has some of the row
/// in registers and stages the others in shared memory. An H200 has room for this many in each of
/// 1024 threads.
const STAGED_PER_THREAD: usize = 12;

/// Bytes of the kernel's arrays in shared memory, in addition to what it stages of a row.
const LONG_ARRAYS: usize = 3072;

/// Multiprocessors of an H100.
const MULTIPROCESSORS: usize = 132;

/// The most blocks of [`Regime::Long`] that share a multiprocessor. Chosen, not searched for.
const MOST_LONG_BLOCKS: usize = 8;

/// The most vectors of a row per thread where blocks share a multiprocessor. H200, 2026-11-27, f32
/// forward-backward from probabilities:
///
/// - 8000×8192: 0.58 with 32 vectors, 0.65 with 16
/// - 4000×27000: 0.57 with one block of 14 vectors a thread, 0.63 with two of 26
const MOST_LONG_VECTORS: usize = 28;

/// A block per row, with the number of threads with which the most blocks fit by registers and
/// shared memory: while one computes, another loads or stores.
///
/// H200, 2026-11-27, ceiling ÷ ours with one block and with two:
///
/// - classes: 2048×67133 bf16 0.78 and 0.91, 4096×32000 f32 0.89 and 0.94
/// - probabilities: 4000×20000 f32 0.54 and 0.63
/// - label smoothing, which therefore has one block: 2000×57500 bf16 0.43 and 0.39
fn long_forward_backward(shape: &Shape) -> SamplesLaunch {
    let kernels = &shape.kernels;
    let max_threads = kernels.long_block as usize;
    let threads_of = |blocks: usize| max_threads / blocks / 32 * 32;
    let fits = |blocks: &usize| {
        let threads = threads_of(*blocks);
        let vectors = shape.vectors + LINE_VECTORS as usize;
        let staged = vectors.saturating_sub(kernels.vectors_beside * threads);
        let bytes = staged * VECTOR_BYTES as usize + LONG_ARRAYS + RESERVED;
        blocks * bytes <= kernels.shared_bytes && shape.vectors <= MOST_LONG_VECTORS * threads
    };
    // Few rows have more threads each.
    let most = if kernels.target.is_smoothed() { 1 } else { MOST_LONG_BLOCKS };
    let most = most.min(shape.rows.div_ceil(MULTIPROCESSORS));
    let threads = match (2..=most).rev().find(fits) {
        Some(blocks) => threads_of(blocks),
        None => shape.vectors.div_ceil(STAGED_PER_THREAD).next_multiple_of(32).min(max_threads),
    };
    rows_by_group(shape, Regime::Long, Block::of_row(threads))
}

/// A block whose threads share rows in groups of one size.
#[derive(Clone, Copy, Debug)]
struct Block {
    threads: usize,
    group_threads: usize,
    shared_bytes: usize,
    /// log2 of the blocks that have an adder; see `abi::grid_of_workers`.
    adder_shift: u32,
}

impl Block {
    /// A block of `threads` threads that share one row.
    fn of_row(threads: usize) -> Self {
        Block { threads, group_threads: threads, shared_bytes: 0, adder_shift: ADDER_SHIFT }
    }
}

/// The launch of `regime` whose row groups take whole rows.
fn rows_by_group(shape: &Shape, regime: Regime, block: Block) -> SamplesLaunch {
    let Block { threads, group_threads, shared_bytes, adder_shift } = block;
    let groups = threads / group_threads;
    let (blocks, rows_of_block) = if shape.pass == Pass::Backward {
        (shape.rows.div_ceil(groups).max(1) as u32, 1)
    } else {
        // A block takes consecutive rows: one per row group, or more if the workspace has no room
        // for the sums of all blocks that this would take.
        let rounds = shape.rows.div_ceil(groups).div_ceil(shape.max_workers(adder_shift)).max(1);
        let rows_of_block = rounds * groups;
        let workers = shape.rows.div_ceil(rows_of_block) as u32;
        (grid_of_workers(workers, adder_shift), rows_of_block)
    };
    let launch = Launch {
        blocks,
        threads: threads as u32,
        shared_bytes: shared_bytes as u32,
        cooperative: false,
    };
    let rows = RowsLaunch { launch, group_threads: number(group_threads), splits: NonZeroU32::MIN };
    SamplesLaunch {
        rows,
        rows_of_block: number(rows_of_block),
        adder_shift,
        ..SamplesLaunch::new(regime, launch)
    }
}

fn number(value: usize) -> NonZeroU32 {
    NonZeroU32::new(value as u32).expect("at least one")
}
