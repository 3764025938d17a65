//! Who takes a row.

use crate::abi::CrossEntropyArgs;
use crate::reduce::BlockRank;
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, block_idx_x, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

/// The rows that a block takes of a grid of `abi::grid_of_workers`: those next to each other, for
/// blocks that begin in the order of memory are what it wants.
pub(crate) struct Rows {
    /// The first of those that are left.
    pub(crate) next: u64,
    /// Behind the last.
    pub(crate) end: u64,
}

impl Rows {
    /// Those of the block at `place`, if it takes any. Unless it may have `MANY`, they are one a
    /// row group, of fewer than 2³².
    #[inline(always)]
    pub(crate) fn of_block<const MANY: bool, const EARLY: u32>(
        args: &CrossEntropyArgs,
        rank: BlockRank<EARLY>,
    ) -> Option<Self> {
        let (piece, rows) = (rank.worker(), args.rows_of_block.get());
        let (next, end) = if MANY {
            let next = u64::from(piece) * u64::from(rows);
            (next, args.rows.min(next + u64::from(rows)))
        } else {
            let next = piece * rows;
            (next.into(), (args.rows as u32).min(next + rows).into())
        };
        let takes = !rank.is_adder() && next < end;
        takes.then_some(Rows { next, end })
    }

    /// Row `index` of them, if there is one.
    #[inline(always)]
    pub(crate) fn row<const EARLY: u32>(
        args: &CrossEntropyArgs,
        rank: BlockRank<EARLY>,
        index: u32,
    ) -> Option<u64> {
        let row = u64::from(rank.worker()) * u64::from(args.rows_of_block.get()) + u64::from(index);
        let is = !rank.is_adder() && index < args.rows_of_block.get() && row < args.rows;
        is.then_some(row)
    }
}

/// This thread's place in a row group, which takes a row or a part of one at a time, and the row group's in
/// its block. The row groups of a block go on together.
#[derive(Clone, Copy)]
pub(crate) struct RowGroup {
    /// Threads of a row group.
    pub(crate) threads: u32,
    /// This thread's index in its row group.
    pub(crate) lane: u32,
    /// The row group's index in its block, ...
    pub(crate) in_block: u32,
    /// ... of so many.
    pub(crate) of_block: u32,
}

impl RowGroup {
    /// Row groups of a power of two of threads.
    #[inline(always)]
    pub(crate) fn of_threads(args: &CrossEntropyArgs) -> Self {
        let (threads, shift) = (args.group_threads.get(), args.group_shift);
        let (in_block, of_block) = (thread_idx_x() >> shift, block_dim_x() >> shift);
        RowGroup { threads, lane: thread_idx_x() & (threads - 1), in_block, of_block }
    }

    /// One row group of all threads of a block.
    #[inline(always)]
    pub(crate) fn of_block() -> Self {
        RowGroup { threads: block_dim_x(), lane: thread_idx_x(), in_block: 0, of_block: 1 }
    }

    /// The row group's index in the grid.
    #[inline(always)]
    pub(crate) fn in_grid(self) -> u64 {
        u64::from(block_idx_x()) * u64::from(self.of_block) + u64::from(self.in_block)
    }

    /// The warps of a row group of one or several, ...
    #[inline(always)]
    pub(crate) fn warps(self) -> u32 {
        self.threads / WARP_SIZE
    }

    /// ... and which of them this is.
    #[inline(always)]
    pub(crate) fn warp(self) -> u32 {
        self.lane / WARP_SIZE
    }

    /// The same, of which the compiler does not know it: what comes of it is computed for each row,
    /// where it would be staged from one to the next, in registers that are not there.
    #[inline(always)]
    pub(crate) fn rematerialize(self) -> Self {
        RowGroup { lane: opaque(self.lane.into()) as u32, ..self }
    }
}
