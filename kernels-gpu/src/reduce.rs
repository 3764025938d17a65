//! The reduction that every loss uses: stage one sums a thread's, a warp's and a block's values,
//! stage two sums the blocks' in the block that finishes last.
//!
//! Threads add up in the loss's own arithmetic; from the warp on everything is float64. The order
//! of the additions depends on the launch shape alone, never on which block finishes last: a sum
//! has the same bits on every run.

use crate::abi::MAX_PARTIALS;
use cuda_std::atomic::fetch_add_ordered;
use cuda_std::memory::{load_shared_by_grid, store};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, lane_id, warp_id};

cuda_std::shared_array! {
    /// One sum a warp.
    fn warp_sums() -> [f64; 32];
}
cuda_std::shared_array! {
    /// Whether all other blocks had finished when this one had.
    fn is_last() -> [u64; 1];
}

/// The sum of `value` over each team of the warp, in every lane. `team` is a power of two up to 32; all
/// lanes of the warp call it.
#[inline(always)]
fn team_sum_in_warp(mut value: f64, team: u32) -> f64 {
    let mut mask = team / 2;
    while mask > 0 {
        value += value.shuffle_xor(mask);
        mask /= 2;
    }
    value
}

/// The sum of `value` over the warp, in every lane.
#[inline(always)]
fn warp_sum(value: f64) -> f64 {
    team_sum_in_warp(value, WARP_SIZE)
}

/// The sum of `value` over the block, in every lane of its first warp. Two barriers: it may be called
/// again at once.
#[inline(always)]
fn block_sum(value: f64) -> f64 {
    let of_warp = warp_sum(value);
    if lane_id() == 0 {
        // SAFETY: a block has at most 32 warps; each writes its own element.
        unsafe { warp_sums().set(warp_id(), of_warp) };
    }
    sync_threads();
    let mut of_block = 0.0;
    if warp_id() == 0 {
        let warps = block_dim_x() / WARP_SIZE;
        if lane_id() < warps {
            // SAFETY: warp `lane_id` wrote its element before the barrier.
            of_block = unsafe { warp_sums().get(lane_id()) };
        }
        of_block = warp_sum(of_block);
    }
    sync_threads();
    of_block
}

/// The sum of `value` over a team: a power of two of threads up to 32, or the block. In every lane of a
/// team within a warp, or of the block's first warp. Two barriers, for a block.
#[inline(always)]
pub(crate) fn team_sum(value: f64, team: u32) -> f64 {
    if team > WARP_SIZE { block_sum(value) } else { team_sum_in_warp(value, team) }
}

/// Where blocks leave partial sums for the block that finishes last.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    start: u64,
}

impl Workspace {
    /// # Safety
    /// 1. `start` is the address of `abi::WORKSPACE_BYTES` of global memory, 16-byte aligned, that no
    ///    other launch uses at the same time.
    /// 2. Its first 4 bytes are zero; they are zero again when the launch is done.
    #[inline(always)]
    pub(crate) unsafe fn new(start: u64) -> Self {
        Workspace { start }
    }

    #[inline(always)]
    fn partial(self, index: u64) -> *mut f64 {
        (self.start + 16 + index * 8) as *mut f64
    }

    /// Leaves a partial sum.
    ///
    /// # Safety
    /// `index` is below `abi::MAX_PARTIALS` and this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn leave(self, index: u64, sum: f64) {
        debug_assert!(index < u64::from(MAX_PARTIALS));
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store(self.partial(index), sum) };
    }

    /// Whether this is the last block of the grid to call it, once a launch: then every partial sum left
    /// before is there to be read. One barrier before what is left counts, one after.
    #[inline(always)]
    pub(crate) fn is_last_block(self) -> bool {
        sync_threads();
        if thread_idx_x() == 0 {
            let counter = self.start as *mut u32;
            // SAFETY: the counter is only counted on, until the last block has counted.
            let before = unsafe { fetch_add_ordered(counter, 1) };
            let last = before + 1 == grid_dim_x();
            if last {
                // SAFETY: all blocks have counted; nothing else accesses it before the next launch.
                unsafe { store(counter, 0) };
            }
            // SAFETY: one element, one thread.
            unsafe { is_last().set(0, u64::from(last)) };
        }
        sync_threads();
        // SAFETY: thread 0 wrote it before the barrier.
        unsafe { is_last().get(0) != 0 }
    }

    /// This thread's share of the sum of `count` partial sums from `first`: every `step`-th from
    /// `offset`, in order.
    ///
    /// # Safety
    /// They were left, and [`is_last_block`](Self::is_last_block) has said so.
    #[inline(always)]
    pub(crate) unsafe fn share(self, first: u64, count: u64, offset: u64, step: u64) -> f64 {
        let mut sum = 0.0;
        let mut index = offset;
        while index < count {
            // SAFETY: the caller's condition; left by other blocks, and ordered before.
            sum += unsafe { load_shared_by_grid(self.partial(first + index)) };
            index += step;
        }
        sum
    }
}

/// Sums `value` over the grid and calls `finish` with the sum, in one thread of the grid. Every
/// thread of the grid must call it, once a launch.
///
/// # Safety
/// The grid has at most `abi::MAX_PARTIALS` blocks.
#[inline(always)]
pub(crate) unsafe fn grid_sum(value: f64, workspace: Workspace, finish: impl FnOnce(f64)) {
    let of_block = block_sum(value);
    if thread_idx_x() == 0 {
        // SAFETY: the caller's condition; each block leaves its own.
        unsafe { workspace.leave(u64::from(block_idx_x()), of_block) };
    }
    if !workspace.is_last_block() {
        return;
    }
    let (blocks, thread) = (u64::from(grid_dim_x()), u64::from(thread_idx_x()));
    // SAFETY: every block has left its own.
    let share = unsafe { workspace.share(0, blocks, thread, u64::from(block_dim_x())) };
    let of_grid = block_sum(share);
    if thread_idx_x() == 0 {
        finish(of_grid);
    }
}
