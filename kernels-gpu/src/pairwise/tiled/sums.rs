//! The sums of rows over the threads of a block.

use super::run::Run;
use super::tile::{Items, Tile};
use super::{Block, WARPS};
use crate::abi::TILED_BLOCK;
use crate::element::{Element, Real};
use crate::pairwise::Pairwise;
use crate::reduce::warp_sums;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

/// Items that warps share and that are finished at once.
const GROUP: u32 = 8;
/// The items of two groups.
const BUFFERS: u32 = 2 * GROUP;

cuda_std::shared_array! {
    /// What each warp has summed of the items that warps share: the warps' sums of an item follow
    /// each other. Two buffers, for alternate groups: a warp may write sums of the next group while
    /// another still reads these.
    fn sums_of_shared_items() -> [f64; 128];
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
        while first_of_warp < run.rows() {
            let mut sum = E::Real::ZERO;
            if row < run.rows() {
                // SAFETY: the caller's conditions; the row is within the tile.
                sum = unsafe { self.shared.sum_of_row(args, turn, run.lead, row, (lane, group)) };
            }
            let [sum] = warp_sums([sum.to_f64()], group);
            if lane == 0 && row < run.rows() {
                // SAFETY: the caller's conditions; no other group has this row.
                unsafe { self.pass.finish(run.row() + u64::from(row), sum) };
            }
            first_of_warp += groups;
            row += groups;
        }
    }

    /// Makes the warp's sums of the items that warps share zero: it may have no tile of a short
    /// one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn clear_sums(&self) {
        if lane_id() < BUFFERS {
            // SAFETY: the warp's own element.
            unsafe { sums_of_shared_items().set(lane_id() * WARPS + warp_id(), 0.0) };
        }
        sync_warp();
    }

    /// Sums the lanes' terms of an item that is not packed. Finishes it, if the warp has it alone,
    /// and a whole group of items that warps share, behind the last of them.
    ///
    /// # Safety
    /// As [`compute`](Self::compute); all lanes of the warp call it, once an item, with the last
    /// tile that the warp has of it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn sum_item(&self, tile: Tile, sum: f64) {
        let [sum] = warp_sums([sum], WARP_SIZE);
        let alone = self.items.alone;
        // SAFETY: the caller's conditions; no other warp has this item, or this element.
        unsafe {
            if tile.index < alone {
                if lane_id() == 0 {
                    self.finish_item(tile.item(), sum);
                }
                return;
            }
            let shared = tile.index - alone;
            if lane_id() == 0 {
                sums_of_shared_items().set(shared % BUFFERS * WARPS + warp_id(), sum);
            }
            // There are whole groups only where each warp has tiles of each item.
            if shared % GROUP == GROUP - 1 {
                self.finish_group(shared - (GROUP - 1), GROUP);
            }
        }
    }

    /// Finishes the items that warps share and that are in no whole group. Behind this, all items
    /// of the block are finished.
    ///
    /// # Safety
    /// As [`Pass::tiled`](super::Pass::tiled), after the warps have [summed](Self::sum_item) all
    /// their items, which are not packed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn finish_last_items(&self) {
        let count = self.items.shared() % GROUP;
        // SAFETY: the caller's conditions.
        unsafe { self.finish_group(self.items.shared() - count, count) };
    }

    /// Adds up the warps' sums of each of the `count` items of a group, from `first` on among those
    /// that warps share, and finishes these items.
    ///
    /// # Safety
    /// As [`sum_item`](Self::sum_item); all threads of the block call it, after the warps have
    /// summed these items.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn finish_group(&self, first: u32, count: u32) {
        sync_threads();
        if warp_id() > 0 {
            return;
        }
        // Each lane adds the sums of two warps.
        let lanes = WARPS / 2;
        const { assert!(GROUP * WARPS / 2 == WARP_SIZE) };
        let (item, warp) = (first + lane_id() / lanes, lane_id() % lanes);
        let at = item % BUFFERS * WARPS + warp;
        // SAFETY: the warps wrote them before the barrier, and write to this buffer again behind
        // the next one.
        let sums = unsafe { [at, at + lanes].map(|at| sums_of_shared_items().get(at)) };
        let [sum] = warp_sums([sums[0] + sums[1]], lanes);
        if warp == 0 && item < first + count {
            // SAFETY: the caller's conditions; no other thread has this item.
            unsafe { self.finish_item(Items::number(self.items.alone + item), sum) };
        }
    }

    /// Writes the loss of a row, or publishes the sum of a part of one.
    ///
    /// # Safety
    /// As [`Pass::tiled`](super::Pass::tiled); one thread of the grid calls it for each item.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn finish_item(&self, item: u32, sum: f64) {
        // SAFETY: the caller's conditions.
        unsafe {
            if self.pass.args.splits.get() == 1 {
                self.pass.finish(item.into(), sum);
            } else {
                self.workspace.publish(item, sum);
            }
        }
    }
}
