//! The position of this thread in its grid, and the block's barrier. Grids and blocks are
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

/// Waits for every thread of the block. The block's threads see after it what any of them wrote to
/// shared or global memory before it. Every thread of the block must reach the same call.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_threads() {
    side::sync_threads();
}

/// Waits for the launches before this one, if launches overlap. Before it, a kernel must not read
/// what these launches write, nor write what they read or write. A kernel that does not call this
/// waits at its beginning.
#[inline(always)]
pub fn wait_for_launches_before() {
    side::wait_for_launches_before();
}
