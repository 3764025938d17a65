//! Who takes a row.

use crate::abi::CrossEntropyArgs;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::lane_id;

/// This thread's place in the teams of the grid. A team takes pieces of rows `first`, `first + teams`, ...
#[derive(Clone, Copy)]
pub(crate) struct Team {
    /// Threads of a team.
    pub(crate) threads: u32,
    /// This thread's index in its team.
    pub(crate) lane: u32,
    /// How far the team is behind the first of those that go on together.
    pub(crate) behind: u32,
    /// The first piece of the team, and from each to the next: fewer than 2³¹ blocks of at most 128 teams are launched
    /// where a block takes more than one, of `abi::MAX_PARTIALS` at most.
    pub(crate) first: u64,
    pub(crate) teams: u32,
}

impl Team {
    /// Teams of the threads of a warp, a power of two; the teams of a warp go on together.
    #[inline(always)]
    pub(crate) fn of_warp(args: &CrossEntropyArgs) -> Self {
        let threads = args.team.get();
        let first_of_warp = (thread_idx_x() - lane_id()) / args.team;
        Self::new(args, thread_idx_x() & (threads - 1), first_of_warp)
    }

    /// Teams of warps of the block; the teams of a block go on together.
    #[inline(always)]
    pub(crate) fn of_warps(args: &CrossEntropyArgs) -> Self {
        Self::new(args, thread_idx_x() % args.team, 0)
    }

    #[inline(always)]
    fn new(args: &CrossEntropyArgs, lane: u32, leader: u32) -> Self {
        let teams_of_block = block_dim_x() / args.team;
        let in_block = thread_idx_x() / args.team;
        Team {
            threads: args.team.get(),
            lane,
            behind: in_block - leader,
            first: u64::from(block_idx_x()) * u64::from(teams_of_block) + u64::from(in_block),
            teams: grid_dim_x() * teams_of_block,
        }
    }

    /// One team of all threads of a block.
    #[inline(always)]
    pub(crate) fn of_block() -> Self {
        Team {
            threads: block_dim_x(),
            lane: thread_idx_x(),
            behind: 0,
            first: u64::from(block_idx_x()),
            teams: grid_dim_x(),
        }
    }
}
