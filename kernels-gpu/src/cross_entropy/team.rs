//! Who takes a row.

use crate::abi::CrossEntropyArgs;
use crate::reduce::Place;
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, block_idx_x, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

/// The rows that a block takes of a grid of `abi::blocks_of_pieces`: those next to each other, for
/// blocks that begin in the order of memory are what it wants.
pub(crate) struct Rows {
    /// The first of those that are left.
    pub(crate) next: u64,
    /// Behind the last.
    pub(crate) end: u64,
}

impl Rows {
    /// Those of the block at `place`, if it takes any. Unless it may have `MANY`, they are one a
    /// team, of fewer than 2³².
    #[inline(always)]
    pub(crate) fn of_block<const MANY: bool, const EARLY: u32>(
        args: &CrossEntropyArgs,
        place: Place<EARLY>,
    ) -> Option<Self> {
        let (piece, rows) = (place.piece(), args.rows_of_block.get());
        let (next, end) = if MANY {
            let next = u64::from(piece) * u64::from(rows);
            (next, args.rows.min(next + u64::from(rows)))
        } else {
            let next = piece * rows;
            (next.into(), (args.rows as u32).min(next + rows).into())
        };
        let takes = !place.takes_none() && next < end;
        takes.then_some(Rows { next, end })
    }

    /// Row `index` of them, if there is one.
    #[inline(always)]
    pub(crate) fn row<const EARLY: u32>(
        args: &CrossEntropyArgs,
        place: Place<EARLY>,
        index: u32,
    ) -> Option<u64> {
        let row = u64::from(place.piece()) * u64::from(args.rows_of_block.get()) + u64::from(index);
        let is = !place.takes_none() && index < args.rows_of_block.get() && row < args.rows;
        is.then_some(row)
    }
}

/// This thread's place in a team, which takes a row or a part of one at a time, and the team's in
/// its block. The teams of a block go on together.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    /// Threads of a team.
    pub(crate) threads: u32,
    /// This thread's index in its team.
    pub(crate) lane: u32,
    /// The team's index in its block, ...
    pub(crate) in_block: u32,
    /// ... of so many.
    pub(crate) of_block: u32,
}

impl Team {
    /// Teams of a power of two of threads.
    #[inline(always)]
    pub(crate) fn of_threads(args: &CrossEntropyArgs) -> Self {
        let (threads, shift) = (args.team.get(), args.team_shift);
        let (in_block, of_block) = (thread_idx_x() >> shift, block_dim_x() >> shift);
        Team { threads, lane: thread_idx_x() & (threads - 1), in_block, of_block }
    }

    /// One team of all threads of a block.
    #[inline(always)]
    pub(crate) fn of_block() -> Self {
        Team { threads: block_dim_x(), lane: thread_idx_x(), in_block: 0, of_block: 1 }
    }

    /// The team's index in the grid.
    #[inline(always)]
    pub(crate) fn in_grid(self) -> u64 {
        u64::from(block_idx_x()) * u64::from(self.of_block) + u64::from(self.in_block)
    }

    /// The warps of a team of one or several, ...
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
    /// where it would be kept from one to the next, in registers that are not there.
    #[inline(always)]
    pub(crate) fn anew(self) -> Self {
        Team { lane: opaque(self.lane.into()) as u32, ..self }
    }
}
