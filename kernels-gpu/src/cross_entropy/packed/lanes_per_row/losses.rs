//! The losses of packed rows, where no gradients are computed.
//!
//! A tile of long rows has few of them, and to finish a row takes as many instructions as several
//! of its vectors. So a lane stores what it needs to finish a row until every lane has one.

use super::{LanesPerRow, Tiles};
use crate::cross_entropy::packed::{add_loss, computes};
use crate::cross_entropy::pass::TERMS;
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use crate::row::Split;
use cuda_std::warp::{WARP_SIZE, lane_id};

/// Up to 32 rows of a warp's tiles, one for each lane.
pub(super) struct Batch<R> {
    /// The number of lanes that have a row, or would have one that is beyond the last row.
    lanes: u32,
    /// This lane's row.
    own: Own<R>,
}

/// What is needed to finish a row.
struct Own<R> {
    exists: bool,
    row: u64,
    class: i64,
    logit: R,
    stats: Stats<R>,
}

impl<R: Real> Batch<R> {
    pub(super) const NONE: Self = Batch {
        lanes: 0,
        own: Own { exists: false, row: 0, class: 0, logit: R::ZERO, stats: Stats::NONE },
    };
}

impl<E: Element, const MODE: u32, const COMPUTES: u32> LanesPerRow<'_, E, MODE, COMPUTES> {
    /// Computes the statistics of a stage's rows. Adds the losses of each complete batch to `terms`
    /// and, after the warp's last stage, those of the rows that remain.
    ///
    /// # Safety
    /// As [`Tiles::batch`]; all lanes of the warp call it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn losses(
        &mut self,
        tiles: &Tiles<'_, E, MODE>,
        is_last: bool,
        terms: &mut [f64; TERMS],
    ) {
        let stage = tiles.stage;
        let split = Split::new(stage.args.tile.warp_rows_shift, lane_id());
        let mut first = 0;
        while first < stage.rows {
            let row = first + split.slot;
            // SAFETY: the caller's conditions.
            let (stats, _) =
                unsafe { tiles.statistics_of_turn::<false>(self.pass, row, &mut self.near, split) };
            if split.part << split.rows_shift == self.batch.lanes {
                // SAFETY: the caller's conditions.
                let (class, logit) = unsafe { tiles.class_and_logit(row) };
                let exists = row < stage.rows;
                let row = stage.first() + u64::from(row);
                self.batch.own = Own { exists, row, class, logit, stats };
            }
            first += 1 << split.rows_shift;
            self.batch.lanes += 1 << split.rows_shift;
            if self.batch.lanes == WARP_SIZE || (is_last && first >= stage.rows) {
                // SAFETY: the caller's conditions.
                unsafe { self.finish(terms) };
            }
        }
    }

    /// Adds the losses of the batch, and begins another one.
    ///
    /// # Safety
    /// As [`losses`](Self::losses).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn finish(&mut self, terms: &mut [f64; TERMS]) {
        let Own { exists, row, class, logit, stats } = self.batch.own;
        if exists {
            // SAFETY: the caller's conditions; the row exists.
            unsafe {
                add_loss::<E, MODE, { computes::LOSS }>(
                    self.pass,
                    row,
                    class,
                    stats,
                    logit,
                    self.workspace,
                    terms,
                );
            }
        }
        self.batch.lanes = 0;
        self.batch.own.exists = false;
    }
}
