//! The sums of rows over the threads of a block.

use super::run::Run;
use super::tile::Tile;
use super::{Block, WARPS};
use crate::abi::TILED_BLOCK;
use crate::element::{Element, Real};
use crate::pairwise::Pairwise;
use crate::reduce::warp_sums;
use cuda_std::thread::{grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

cuda_std::shared_array! {
    /// The sums of the warps of a block over their parts of a row. Two buffers, for alternate rows:
    /// a warp may write the sum of the next row while another still reads these.
    fn warp_sums_of_row() -> [f64; 64];
}

impl<E: Element, L: Pairwise<E::Real>> Block<'_, E, L> {
    /// Adds up what the threads have summed of each row, and writes the losses.
    ///
    /// # Safety
    /// As [`compute`](Self::compute), for packed rows; a barrier has passed since the threads have
    /// written their sums.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn sum_rows(&self, run: &Run<'_, E, L>, turn: u32) {
        let args = self.pass.args;
        let group = args.group_threads.get();
        let lane = thread_idx_x() & (group - 1);
        let group_of = |thread: u32| thread >> group.trailing_zeros();
        let groups = group_of(TILED_BLOCK);
        // The shuffles need every lane of the warp, so a warp loops until the first of its groups
        // has no row left.
        let mut first_of_warp = group_of(thread_idx_x() - lane_id());
        let mut row = group_of(thread_idx_x());
        while first_of_warp < run.rows {
            let mut sum = E::Real::ZERO;
            if row < run.rows {
                // SAFETY: the caller's conditions; the row is within the tile.
                sum = unsafe { self.shared.sum_of_row(args, turn, run.lead, row, (lane, group)) };
            }
            let [sum] = warp_sums([sum.to_f64()], group);
            if lane == 0 && row < run.rows {
                // SAFETY: the caller's conditions; no other group has this row.
                unsafe { self.pass.finish(run.row() + u64::from(row), sum) };
            }
            first_of_warp += groups;
            row += groups;
        }
    }

    /// Sums the threads' terms of a long row, or of a part of it, over the block. Writes the loss
    /// of the row, or publishes the sum of the part.
    ///
    /// # Safety
    /// As [`compute`](Self::compute), for rows that are not packed; all threads of the block call
    /// it, once an item.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn finish_item(&self, tile: Tile, sum: f64) {
        let args = self.pass.args;
        // Items alternate between two buffers. Their numbers are `grid_dim_x` apart.
        let buffer = tile.item / grid_dim_x().max(1) % 2 * WARP_SIZE;
        let [sum] = warp_sums([sum], WARP_SIZE);
        if lane_id() == 0 {
            // SAFETY: the warp's own element; a barrier has passed since it was read last.
            unsafe { warp_sums_of_row().set(buffer + warp_id(), sum) };
        }
        sync_threads();
        if warp_id() > 0 {
            return;
        }
        let mut sum = 0.0;
        if lane_id() < WARPS {
            // SAFETY: its warp wrote it before the barrier.
            sum = unsafe { warp_sums_of_row().get(buffer + lane_id()) };
        }
        let [sum] = warp_sums([sum], WARPS);
        if lane_id() == 0 {
            // SAFETY: the caller's conditions; no other block has this item.
            unsafe {
                if args.splits.get() == 1 {
                    self.pass.finish(tile.item.into(), sum);
                } else {
                    self.workspace.publish(tile.item, sum);
                }
            }
        }
    }
}
