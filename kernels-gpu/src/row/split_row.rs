//! Rows that are split among row groups: each group publishes the statistics of its part in the
//! workspace, and the last group of the row to arrive merges them and finishes the row.

use super::segment::Segment;
use super::{Real, RowLoss, RowStats, TERMS};
use crate::element::{Real as _, unrolled};
use crate::reduce::Workspace;
use cuda_std::atomic::fence;
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp};

/// A row that is split among `count` row groups from group `first` on.
#[derive(Clone, Copy)]
pub(super) struct SplitRow {
    row: u32,
    first: u32,
    count: u32,
    /// Row groups of the grid.
    groups: u32,
}

/// Words of the statistics of a row group's part of a row.
const PART_WORDS: u32 = 4;

impl SplitRow {
    /// Computes which groups have parts of `row`: the inverse of the shares in
    /// [`Segments::of_group`](super::segment::Segments::of_group).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new<L: RowLoss>(loss: &L, row: u32) -> Self {
        let (tiles, groups) = (u64::from(loss.layout().row_tiles), loss.layout().groups);
        let all = (loss.shape().0 * tiles).max(1);
        let group = |tile: u64| (((tile + 1) * u64::from(groups) - 1) / all) as u32;
        let first = group(u64::from(row) * tiles);
        let last = group((u64::from(row) + 1) * tiles - 1);
        SplitRow { row, first, count: last - first + 1, groups }
    }

    /// The first word behind the terms of the grid. Each group has two entries of terms: one for
    /// the rows that it has whole, and one for the split row that begins in it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn base(&self) -> u32 {
        TERMS as u32 * 2 * self.groups
    }

    /// The first word of a group's part. A group has words for two parts: it may have the end of
    /// one row and the beginning of another.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn part_word(&self, group: u32, is_beginning: bool) -> u32 {
        self.base() + (2 * group + u32::from(is_beginning)) * PART_WORDS
    }

    /// Publishes this group's part. Returns the statistics of the row in the last of its groups to
    /// arrive, and `None` in the others. Parts are merged in an order that does not depend on which
    /// group is last.
    ///
    /// # Safety
    /// [`stream`](super::stream::stream)'s conditions; one warp of each of the row's groups calls
    /// it, once.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn merge<L: RowLoss>(
        &self,
        loss: &L,
        workspace: Workspace,
        group: u32,
        segment: Segment,
        stats: L::Stats,
    ) -> Option<L::Stats> {
        let counter = self.base() + 2 * self.groups * PART_WORDS + self.first;
        // SAFETY: each group writes the words of its own part; the counter is this row's.
        unsafe {
            let mut is_last = false;
            if lane_id() == 0 {
                let parts = stats.parts();
                let word = self.part_word(group, segment.begin == 0);
                unrolled!(for part in 0..4; {
                    workspace.set_word(word + part as u32, parts[part].to_bits64());
                });
                // The first fence releases this part; the second acquires the others' parts.
                fence();
                is_last = workspace.arrive(counter, self.count);
                fence();
            }
            if !any(is_last) {
                return None;
            }
            sync_warp();
            let mut sum = L::Stats::none();
            let mut from = 0;
            while from < self.count {
                let part = from + lane_id();
                if part < self.count {
                    let word = self.part_word(self.first + part, part == 0);
                    let mut parts = [Real::<L>::ZERO; 4];
                    unrolled!(for index in 0..4; {
                        let bits = workspace.take_word(word + index as u32);
                        parts[index] = Real::<L>::from_bits64(bits);
                    });
                    sum = sum.with(L::Stats::from_parts(parts), loss.scale());
                }
                from += WARP_SIZE;
            }
            Some(sum.over_lanes(WARP_SIZE, loss.scale()))
        }
    }

    /// Finishes the row, and writes its terms to the entry of the group in which it begins.
    ///
    /// # Safety
    /// [`stream`](super::stream::stream)'s conditions; all lanes of a warp call it, once a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn finish<L: RowLoss>(
        &self,
        loss: &L,
        workspace: Workspace,
        target: &L::Target,
        picked: Real<L>,
        stats: L::Stats,
    ) {
        if lane_id() > 0 {
            return;
        }
        // SAFETY: the caller's conditions; the entry is this row's.
        unsafe {
            let row_terms = loss.finish_row(self.row.into(), target, picked, stats, workspace);
            if !loss.needs_sums() {
                // No block reads the terms then, and the next launch expects zeros.
                return;
            }
            unrolled!(for term in 0..TERMS; {
                let entry = term as u32 * 2 * self.groups + self.groups + self.first;
                workspace.set_sum(entry, row_terms[term]);
            });
        }
    }
}
