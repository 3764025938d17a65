//! The sums of rows over the threads of a block.

use super::tile::{Items, Tile};
use super::{Block, WARPS};
use crate::element::Element;
use crate::pairwise::Pairwise;
use crate::reduce::warp_sums;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

/// Items that warps share and that are finished together.
const GROUP: u32 = 8;
/// The items of two groups.
const BUFFERS: u32 = 2 * GROUP;

cuda_std::shared_array! {
    /// What each warp has summed of the items that warps share: the warps' sums of an item are
    /// adjacent. There are two buffers, for alternate groups, because a warp may write sums of the
    /// next group while another still reads those of this group.
    fn sums_of_shared_items() -> [f64; 128];
}

impl<E: Element, L: Pairwise<E::Real>> Block<'_, E, L> {
    /// Makes the warp's sums of the items that warps share zero: of a short item, the warp may have
    /// no tile and so write no sum.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn clear_sums(&self) {
        if lane_id() < BUFFERS {
            // SAFETY: the warp's own element.
            unsafe { sums_of_shared_items().set(lane_id() * WARPS + warp_id(), 0.0) };
        }
        sync_warp();
    }

    /// Sums the lanes' terms of an item. If the warp computes the item alone, finishes it; after
    /// the last item of a group that warps share, finishes the group.
    ///
    /// # Safety
    /// As [`Pass::tiled`](super::Pass::tiled); all lanes of the warp call it, once an item, with
    /// the last tile that the warp has of it.
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
            // There are whole groups only if each warp has tiles of each item.
            if shared % GROUP == GROUP - 1 {
                self.finish_group(shared - (GROUP - 1), GROUP);
            }
        }
    }

    /// Finishes the items that warps share and that are in no whole group. After this, all items of
    /// the block are finished.
    ///
    /// # Safety
    /// As [`Pass::tiled`](super::Pass::tiled), after the warps have [summed](Self::sum_item) all
    /// their items.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn finish_last_items(&self) {
        let count = self.items.shared() % GROUP;
        // SAFETY: the caller's conditions.
        unsafe { self.finish_group(self.items.shared() - count, count) };
    }

    /// Sums the warps' sums of each of the `count` items of a group, from `first` on among those
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
        // SAFETY: the warps wrote them before the barrier, and write to this buffer again only
        // after the next one.
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
