//! How work is cut into blocks, as pure functions of sizes and of what a device has room for. So
//! two devices with the same number of multiprocessors and the same shared memory sum an input in
//! the same order. All devices sum dense tensors of elementwise losses in the same order.

mod elementwise;
pub(crate) mod packed;
mod prefetch;
mod samples;
mod split;
mod staged;
mod stream;
pub(crate) mod tiled;

pub(crate) use elementwise::{Dense, IndexedTiles, backward_by_row, elementwise, indexed, rows};
#[cfg(feature = "bench")]
pub(crate) use prefetch::early_bytes;
pub(crate) use prefetch::{Ahead, Cache, ahead, early, wants_shared_of_one_more};
pub(crate) use samples::{
    Regime, SamplesKernels, SamplesLaunch, Target, is_optimistic, normaliser_blocks, retry_blocks,
    samples, staged_vectors,
};

pub(crate) use split::{Split, is_split, split};

use std::num::NonZeroU32;

/// The shape of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Launch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Dynamic shared memory per block, in bytes.
    pub(crate) shared_bytes: u32,
    /// Whether blocks wait for each other in both directions, so that all have to be resident at
    /// the same time (a cooperative launch).
    pub(crate) cooperative: bool,
}

/// A launch over rows, with the threads per row group and the parts per row; see
/// [`PairwiseArgs`](kernels_gpu::abi::PairwiseArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowsLaunch {
    pub(crate) launch: Launch,
    pub(crate) group_threads: NonZeroU32,
    pub(crate) splits: NonZeroU32,
}

/// What a kernel computes in one pass over its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// The loss: reads and sums.
    Forward,
    /// The gradients: reads and writes.
    Backward,
    /// Loss and gradients.
    ForwardBackward,
}

/// Enough blocks to occupy every multiprocessor: 8 for each of an H100's. If there are fewer long
/// rows than that, rows are split.
const MANY_BLOCKS: usize = 132 * 8;

/// 2³² ÷ `divisor`, rounded up, which kernels use to divide numbers below 2¹⁶. It is 0 for a
/// divisor of 1, as the kernels expect.
fn reciprocal(divisor: usize) -> u32 {
    (1_u64 << 32).div_ceil(divisor as u64) as u32
}

/// The most bytes of a gap between rows that is read together with them: a sector of memory or, for
/// longer rows, half of a row. Chosen, not searched for; gaps of a quarter of a row were measured.
fn most_gap_bytes(row_bytes: usize) -> usize {
    (row_bytes / 2).max(32)
}

#[cfg(test)]
mod tests;
