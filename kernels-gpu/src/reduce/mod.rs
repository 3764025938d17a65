//! The sums that every loss needs. Stage one sums the values of a thread, a warp and a block; stage
//! two sums the blocks' partial sums, in one block that waits for the others.
//!
//! Threads accumulate in the loss's own arithmetic. From the warp on, all sums are float64, except
//! that what a worker block publishes ([`BlockRank`]) is rounded to the loss's arithmetic. The
//! order of the additions depends only on the launch shape, never on which block finishes when: a
//! sum has the same bits on every run.

mod block;
mod block_rank;
mod exchange;
mod grid_sums;
mod last_block;
mod normaliser;
mod warp;
mod workspace;

pub(crate) use block::{block_sums, group_sums};
pub(crate) use block_rank::BlockRank;
pub(crate) use exchange::Exchange;
pub(crate) use grid_sums::{grid_sums, is_last_block};
pub(crate) use last_block::sum_words_in_last_block;
pub(crate) use normaliser::{ClassWeights, Normaliser};
pub(crate) use warp::{group_max, sums_in_lane, warp_max, warp_sums};
pub(crate) use workspace::{F64Words, Workspace};
