//! Sums over the grid, in the block that is the last to arrive. No block waits for another.

use super::{Workspace, block_sums};
use crate::element::unrolled;
use cuda_std::atomic::fence;
use cuda_std::thread::{block_dim_x, grid_dim_x, sync_threads, thread_idx_x};

cuda_std::shared_array! {
    /// Whether this block was the last to arrive.
    fn arrived_last() -> [u64; 1];
}

/// Sums N values over words that blocks have set: `entries` words of the first value, then those of
/// the next. Calls `finish` with the sums in one thread of the last block to arrive, and returns
/// whether this block is that one.
///
/// # Safety
/// 1. All threads of the grid call this, once a launch.
/// 2. Each word was set by one block before it calls this, or is zero. N times `entries` is less
///    than `Workspace::ARRIVED`.
/// 3. The block has not called [`block_sums`] since its last barrier, except for what thread 0
///    does.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn sum_words_in_last_block<const N: usize>(
    workspace: Workspace,
    entries: u32,
    finish: impl FnOnce([f64; N]),
) -> bool {
    // All warps of the block have set their words, before thread 0 says that the block has arrived.
    sync_threads();
    if thread_idx_x() == 0 {
        // Release the block's words. The fence below acquires those of the other blocks.
        fence();
        // SAFETY: the workspace's counter; one thread of the block.
        unsafe {
            let is_last = workspace.arrive(Workspace::ARRIVED, grid_dim_x());
            fence();
            arrived_last().set(0, is_last.into());
        }
    }
    sync_threads();
    // SAFETY: written before the barrier.
    if unsafe { arrived_last().get(0) } == 0 {
        return false;
    }
    let mut sums = [0.0; N];
    let mut entry = thread_idx_x();
    while entry < entries {
        unrolled!(for sum in 0..N; {
            // SAFETY: condition 3; all blocks have arrived, so all words are set.
            let bits = unsafe { workspace.take_word(sum as u32 * entries + entry) };
            sums[sum] += f64::from_bits(bits);
        });
        entry += block_dim_x();
    }
    let of_grid = block_sums::<f64, false, N>(sums);
    if thread_idx_x() == 0 {
        finish(of_grid);
    }
    true
}
