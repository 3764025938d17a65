//! Sums over a grid in which every block has values to add.

use super::block::block_sums;
use super::warp::warp_sums;
use super::workspace::{F64Words, Workspace};
use crate::abi::{GROUP, LAG, early_blocks};
use crate::element::unrolled;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

/// Whether this block has the highest index of the grid, and so may wait for all others.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn is_last_block() -> bool {
    block_idx_x() + 1 == grid_dim_x()
}

/// Sums each of `values` over the grid, and calls `finish` with the sums in one thread of the last
/// block.
///
/// # Safety
/// 1. Every thread of the grid calls this, once a launch.
/// 2. No block has called [`group_sums`](super::group_sums) since its last barrier.
/// 3. The grid has at most `abi::max_blocks(N)` blocks, and has published nothing else in the
///    workspace.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn grid_sums<const N: usize>(
    values: [f64; N],
    workspace: Workspace,
    finish: impl FnOnce([f64; N]),
) {
    let of_block = block_sums::<f64, false, N>(values);
    if thread_idx_x() == 0 {
        unrolled!(for sum in 0..N; {
            let at = sum as u32 * grid_dim_x() + block_idx_x();
            // SAFETY: condition 3; each block publishes its own words.
            unsafe { workspace.publish(at, of_block[sum]) };
        });
    }
    // SAFETY: the caller's conditions.
    unsafe { sum_over_blocks(workspace, finish) };
}

/// Sums the N partial sums that each block has published. Blocks form groups of `abi::GROUP`. The
/// last block of a group sums the group `abi::LAG` before its own, except for the groups at the end
/// of the grid; the last block of the grid sums these groups' sums and the blocks of the groups
/// that nobody has summed.
///
/// # Safety
/// As [`grid_sums`]; a thread of each block's first warp has published the block's sums.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn sum_over_blocks<const N: usize>(workspace: Workspace, finish: impl FnOnce([f64; N])) {
    let (block, blocks) = (block_idx_x(), grid_dim_x());
    let (group, lag) = (GROUP, LAG);
    // Groups that are summed before the end of the grid.
    let groups = early_blocks(blocks) / group;
    // The groups' sums are published after the blocks' sums.
    let group_sums_at = N as u32 * blocks;
    let index = (block / group).wrapping_sub(lag);
    let sums_group = (block + 1).is_multiple_of(group) && index < groups;
    let block_sums_at = [0, blocks];
    if sums_group && warp_id() == 0 {
        let (lane, step) = (lane_id(), WARP_SIZE);
        let range = (index * group, (index + 1) * group);
        // SAFETY: the group's blocks publish these words, and have lower indices.
        let shares = unsafe {
            workspace.share::<F64Words, N, 4>([0.0; N], block_sums_at, range, (lane, step))
        };
        let of_group = warp_sums(shares, WARP_SIZE);
        if lane == 0 {
            unrolled!(for sum in 0..N; {
                let at = group_sums_at + sum as u32 * groups + index;
                // SAFETY: the caller's condition 3; each group has its own words.
                unsafe { workspace.publish(at, of_group[sum]) };
            });
        }
    }
    if !is_last_block() {
        return;
    }
    let (thread, step) = (thread_idx_x(), block_dim_x());
    let (group_sums_at, rest) = ([group_sums_at, groups], (groups * group, blocks));
    // SAFETY: every group before the end publishes its sums, and so does every block after these
    // groups.
    let shares = unsafe {
        let shares = [0.0; N];
        let shares =
            workspace.share::<F64Words, N, 4>(shares, group_sums_at, (0, groups), (thread, step));
        workspace.share::<F64Words, N, 4>(shares, block_sums_at, rest, (thread, step))
    };
    // `block_sums` has used its shared memory for this block's own sums.
    sync_threads();
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        finish(of_grid);
    }
}
