//! Rows that are split among warps: each warp publishes the statistics of its part in the
//! workspace, and the warp that has the row's end merges them.

use super::segment::{BLOCK_WARPS, first_warp, warp_of_grid};
use super::{Real, RowLoss, RowStats, TERMS};
use crate::element::{Real as _, unrolled};
use crate::reduce::Workspace;
use cuda_std::thread::grid_dim_x;
use cuda_std::warp::{WARP_SIZE, lane_id};

/// A row of which this warp has a part, but not the beginning.
#[derive(Clone, Copy)]
pub(super) struct SplitRow {
    /// The first warp that has a part.
    first: u32,
    /// This warp.
    warp: u32,
    workspace: Workspace,
}

/// Words of the statistics of a part.
const PART_WORDS: u32 = 4;

/// The first word of the part that warp number `warp` publishes, after the sums of all blocks. A
/// warp publishes at most one part: that of the one row which a later warp ends.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn word_of(warp: u32) -> u32 {
    TERMS as u32 * grid_dim_x() + warp * PART_WORDS
}

/// Publishes the statistics of a warp's part of a row that a later warp ends.
///
/// # Safety
/// [`stream`](super::stream::stream)'s conditions; all lanes of the warp call it, once at most.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) unsafe fn publish<S: RowStats>(workspace: Workspace, stats: S) {
    if lane_id() == 0 {
        let warp = warp_of_grid();
        let parts = stats.parts();
        unrolled!(for part in 0..4; {
            // SAFETY: the caller's conditions; the warp's own words.
            unsafe { workspace.publish(word_of(warp) + part as u32, parts[part].to_f64()) };
        });
    }
}

impl SplitRow {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new<L: RowLoss>(loss: &L, row: u32, workspace: Workspace) -> Self {
        let first = first_warp(loss.layout(), loss.shape().0, row);
        SplitRow { first, warp: warp_of_grid(), workspace }
    }

    /// The first warp of the block that has a part.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn first_of_block(&self) -> u32 {
        self.first.max(self.warp - self.warp % BLOCK_WARPS)
    }

    /// Merges `stats`, those of this warp's part, with those of all warps before it that have a
    /// part of the row.
    /// # Safety
    /// As [`publish`]; all these warps publish their parts and, with `merges_blocks`, the last
    /// warp of each block before this one [those of its block](Self::merge_block).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn merge<L: RowLoss>(&self, loss: &L, stats: L::Stats) -> L::Stats {
        let Self { first, warp, .. } = *self;
        // SAFETY: the caller's conditions.
        unsafe {
            if loss.layout().merges_blocks == 0 {
                return self.merge_parts(loss, stats, warp - first, |index| first + index);
            }
            let of_block = self.first_of_block();
            let first_block = first / BLOCK_WARPS;
            let blocks = warp / BLOCK_WARPS - first_block;
            self.merge_parts(loss, stats, blocks + warp - of_block, |index| {
                let last_of_block = (first_block + index + 1) * BLOCK_WARPS - 1;
                if index < blocks { last_of_block } else { of_block + index - blocks }
            })
        }
    }

    /// Merges `stats`, those of the part of a block's last warp, with those of the block's other
    /// warps, if blocks are merged before rows are.
    ///
    /// # Safety
    /// As [`publish`]; these warps publish their parts.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn merge_block<L: RowLoss>(&self, loss: &L, stats: L::Stats) -> L::Stats {
        let is_last = (self.warp + 1).is_multiple_of(BLOCK_WARPS);
        if loss.layout().merges_blocks == 0 || !is_last {
            return stats;
        }
        let first = self.first_of_block();
        // SAFETY: the caller's conditions.
        unsafe { self.merge_parts(loss, stats, self.warp - first, |index| first + index) }
    }

    /// Merges `stats` with `count` published parts. Part number `index` is that of warp
    /// `warp(index)`.
    ///
    /// # Safety
    /// As [`publish`]; these warps have lower numbers and publish their parts, and no other warp
    /// takes them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn merge_parts<L: RowLoss>(
        &self,
        loss: &L,
        stats: L::Stats,
        count: u32,
        warp: impl Fn(u32) -> u32,
    ) -> L::Stats {
        let mut sum = L::Stats::none();
        let mut from = 0;
        while from < count {
            let index = from + lane_id();
            // SAFETY: the caller's conditions.
            let words: [u64; 4] = unsafe {
                self.workspace.take(index >= count, word_of(warp(index)), |part| part as u32 * 8)
            };
            if index < count {
                let parts = words.map(|bits| Real::<L>::from_f64(f64::from_bits(bits)));
                sum = sum.with(L::Stats::from_parts(parts), loss.scale());
            }
            from += WARP_SIZE;
        }
        sum.over_lanes(WARP_SIZE, loss.scale()).with(stats, loss.scale())
    }
}
