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
    /// How many blocks had finished when this one had.
    fn finished_before() -> [u64; 1];
}

/// The sum of `value` over the warp, in every lane.
#[inline(always)]
fn warp_sum(mut value: f64) -> f64 {
    let mut mask = WARP_SIZE / 2;
    while mask > 0 {
        value += value.shuffle_xor(mask);
        mask /= 2;
    }
    value
}

/// The sum of `value` over the block, in every lane of its first warp. One barrier. A second call
/// needs a barrier between the two.
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
    of_block
}

/// Sums `value` over the grid and calls `finish` with the sum, in one thread of the grid. Every
/// thread of the grid must call it, once a launch. Three barriers.
///
/// # Safety
/// 1. `workspace` points to `abi::WORKSPACE_BYTES` of global memory, 16-byte aligned, that no other
///    launch uses at the same time.
/// 2. Its first 4 bytes are zero; they are zero again when the launch is done.
/// 3. The grid has at most `abi::MAX_PARTIALS` blocks.
#[inline(always)]
pub(crate) unsafe fn grid_sum(value: f64, workspace: u64, finish: impl FnOnce(f64)) {
    let counter = workspace as *mut u32;
    let partials = (workspace + 16) as *mut f64;
    let blocks = grid_dim_x();
    debug_assert!(blocks <= MAX_PARTIALS);

    let of_block = block_sum(value);
    if thread_idx_x() == 0 {
        // SAFETY: conditions 1 to 3; each block writes its own partial sum and then counts itself.
        unsafe {
            store(partials.add(block_idx_x() as usize), of_block);
            let before = fetch_add_ordered(counter, 1);
            finished_before().set(0, u64::from(before));
        }
    }
    sync_threads();
    // SAFETY: thread 0 wrote it before the barrier.
    if unsafe { finished_before().get(0) } + 1 != u64::from(blocks) {
        return;
    }

    let mut of_thread = 0.0;
    let mut block = thread_idx_x();
    while block < blocks {
        // SAFETY: every block has counted itself, so every partial sum is written and ordered before.
        of_thread += unsafe { load_shared_by_grid(partials.add(block as usize)) };
        block += block_dim_x();
    }
    let of_grid = block_sum(of_thread);
    if thread_idx_x() == 0 {
        // SAFETY: all blocks have counted; nothing else accesses it before the next launch.
        unsafe { store(counter, 0) };
        finish(of_grid);
    }
}
