//! Who takes a row.

use crate::abi::CrossEntropyArgs;
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

/// This block's index among those that take rows, which are not the first.
#[inline(always)]
fn block(args: &CrossEntropyArgs) -> u32 {
    block_idx_x().wrapping_sub(args.totals_blocks)
}

/// The blocks that take rows.
#[inline(always)]
fn blocks(args: &CrossEntropyArgs) -> u32 {
    grid_dim_x() - args.totals_blocks - args.adders
}

/// This thread's place in the teams of the grid. Team t takes pieces of rows t, t + `teams`, ...; the teams of a block
/// go on together, while the first has work.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    /// Threads of a team.
    pub(crate) threads: u32,
    /// This thread's index in its team.
    pub(crate) lane: u32,
    /// The team's index in its block.
    pub(crate) in_block: u32,
    /// The first piece of the first team of the block.
    pub(crate) first: u64,
    /// The teams of the grid: fewer than 2³² by the limits of launches.
    pub(crate) teams: u32,
}

impl Team {
    /// Teams of a power of two of threads.
    #[inline(always)]
    pub(crate) fn of_threads(args: &CrossEntropyArgs) -> Self {
        let (threads, shift) = (args.team.get(), args.team.trailing_zeros());
        let teams_of_block = block_dim_x() >> shift;
        Team {
            threads,
            lane: thread_idx_x() & (threads - 1),
            in_block: thread_idx_x() >> shift,
            first: u64::from(block(args)) * u64::from(teams_of_block),
            teams: blocks(args) * teams_of_block,
        }
    }

    /// One team of all threads of a block.
    #[inline(always)]
    pub(crate) fn of_block(args: &CrossEntropyArgs) -> Self {
        Team {
            threads: block_dim_x(),
            lane: thread_idx_x(),
            in_block: 0,
            first: u64::from(block(args)),
            teams: blocks(args),
        }
    }

    /// One team of all threads of a block, for one row.
    #[inline(always)]
    pub(crate) fn of_row(row: u64) -> Self {
        Team { threads: block_dim_x(), lane: thread_idx_x(), in_block: 0, first: row, teams: 1 }
    }

    /// The teams of the grid, one of all threads of a block each. Asked for where they are needed: kept, they would take a register
    /// through a row.
    #[inline(always)]
    pub(crate) fn blocks_of_grid(args: &CrossEntropyArgs) -> u32 {
        grid_dim_x() - opaque(args.totals_blocks.into()) as u32 - args.adders
    }

    /// The teams of this block, of a power of two of threads.
    #[inline(always)]
    pub(crate) fn teams_of_block(self) -> u32 {
        block_dim_x() >> self.threads.trailing_zeros()
    }

    /// The team's piece of those that the block's teams take from `first` on.
    #[inline(always)]
    pub(crate) fn piece(self, first: u64) -> u64 {
        first + u64::from(self.in_block)
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

    /// The warps of which it is made, or the lanes of one, of which such part this is, and how many there are.
    #[inline(always)]
    pub(crate) fn parts(self) -> (u32, u32, u32) {
        if self.threads <= WARP_SIZE {
            (self.threads, 0, 1)
        } else {
            (WARP_SIZE, self.warp(), self.warps())
        }
    }

    /// The same, of which the compiler does not know it: what comes of it is computed for each row, where it would be kept from one
    /// to the next, in registers that are not there.
    #[inline(always)]
    pub(crate) fn anew(self) -> Self {
        Team { lane: opaque(self.lane.into()) as u32, ..self }
    }
}
