//! Where this thread stands in its grid, and the block's barrier. Grids and blocks are
//! one-dimensional.

use crate::side;

/// This thread's index in its block.
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    side::thread_idx()
}

/// This block's index in the grid.
#[inline(always)]
pub fn block_idx_x() -> u32 {
    side::block_idx()
}

/// Threads in a block.
#[inline(always)]
pub fn block_dim_x() -> u32 {
    side::block_dim()
}

/// Blocks in the grid.
#[inline(always)]
pub fn grid_dim_x() -> u32 {
    side::grid_dim()
}

/// Waits for every thread of the block. What a thread wrote to shared or global memory before it
/// is seen by the block's threads after it. Every thread of the block must reach the same call.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_threads() {
    side::sync_threads();
}

/// Waits for the launches before this one, where launches overlap: nothing that they write may be
/// read before, and nothing that they read or write written. A kernel that does not call it waits
/// before all else.
#[inline(always)]
pub fn wait_for_launches_before() {
    side::wait_for_launches_before();
}
