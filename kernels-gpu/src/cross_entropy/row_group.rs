//! Which rows a block takes, and which threads share a row.

use crate::abi::CrossEntropyArgs;
use crate::reduce::BlockRank;
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, block_idx_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

/// The rows that a worker of a grid of `abi::grid_of_workers` takes. They are adjacent, so that
/// blocks, which start in order, access memory in order.
pub(crate) struct Rows {
    /// The first row.
    pub(crate) first: u64,
    /// One past the last row.
    pub(crate) end: u64,
}

impl Rows {
    /// The rows of the block with this rank, or none if it is an adder. The input has fewer than
    /// 2³² rows, so that 32-bit arithmetic suffices.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_block<const EARLY: u32>(
        args: &CrossEntropyArgs,
        rank: BlockRank<EARLY>,
    ) -> Option<Self> {
        let (worker, rows) = (rank.worker(), args.rows_of_block.get());
        let first = worker * rows;
        let (first, end) = (first.into(), (args.rows as u32).min(first + rows).into());
        let has_rows = !rank.is_adder() && first < end;
        has_rows.then_some(Rows { first, end })
    }

    /// Row number `index` of the rows of the block with this rank, if there is one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn row<const EARLY: u32>(
        args: &CrossEntropyArgs,
        rank: BlockRank<EARLY>,
        index: u32,
    ) -> Option<u64> {
        let row = u64::from(rank.worker()) * u64::from(args.rows_of_block.get()) + u64::from(index);
        let has_row = !rank.is_adder() && index < args.rows_of_block.get() && row < args.rows;
        has_row.then_some(row)
    }
}

/// The threads that share a row, or a part of a row, and this thread's index among them.
#[derive(Clone, Copy)]
pub(crate) struct RowGroup {
    /// Threads of a row group.
    pub(crate) threads: u32,
    /// This thread's index in its row group.
    pub(crate) lane: u32,
    /// The row group's index in its block.
    pub(crate) in_block: u32,
    /// Row groups of a block.
    pub(crate) of_block: u32,
}

impl RowGroup {
    /// This thread's row group, of `group_threads` threads: a power of two up to a warp.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_threads(args: &CrossEntropyArgs) -> Self {
        let (threads, shift) = (args.group_threads.get(), args.group_shift);
        let (in_block, of_block) = (thread_idx_x() >> shift, block_dim_x() >> shift);
        RowGroup { threads, lane: thread_idx_x() & (threads - 1), in_block, of_block }
    }

    /// A warp.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_warp() -> Self {
        let (in_block, of_block) = (warp_id(), block_dim_x() / WARP_SIZE);
        RowGroup { threads: WARP_SIZE, lane: lane_id(), in_block, of_block }
    }

    /// One row group of all threads of the block.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_block() -> Self {
        RowGroup { threads: block_dim_x(), lane: thread_idx_x(), in_block: 0, of_block: 1 }
    }

    /// The row group's index in the grid.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn in_grid(self) -> u64 {
        u64::from(block_idx_x()) * u64::from(self.of_block) + u64::from(self.in_block)
    }

    /// Warps of the row group, if it has one warp or more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn warps(self) -> u32 {
        self.threads / WARP_SIZE
    }

    /// This warp's index in the row group, if that has one warp or more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn warp(self) -> u32 {
        self.lane / WARP_SIZE
    }

    /// A copy that the compiler cannot see through. What is computed from it is computed again for
    /// each row; otherwise the compiler would hoist it out of the loop over rows, where it would
    /// occupy registers that a kernel does not have.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn rematerialize(self) -> Self {
        RowGroup { lane: opaque(self.lane.into()) as u32, ..self }
    }
}
