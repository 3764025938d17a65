//! The loop of one lane per row for all calls without a faster loop: it decides on options row by
//! row.

use super::{Access, LaneRow, Rows};
use crate::abi::Matrix;
use crate::cross_entropy::label::counts_in_mean;
use crate::cross_entropy::mode;
use crate::cross_entropy::packed::{computes, factors_of_row};
use crate::cross_entropy::pass::{TERMS, writes};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use cuda_std::warp::{WARP_SIZE, lane_id};

impl<E: Element, const MODE: u32> Rows<'_, E, MODE> {
    /// Computes the rows of any call.
    ///
    /// # Safety
    /// As [`scalar`](Self::scalar).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn any<const COMPUTES: u32, R: LaneRow<E>>(&self, terms: &mut [f64; TERMS]) {
        let mut index = lane_id();
        while index < self.stage.rows {
            // SAFETY: the caller's conditions; no other lane accesses the row.
            unsafe { self.one::<COMPUTES, R>(index, terms) };
            index += WARP_SIZE;
        }
    }

    /// Computes row `index` of any call, and adds its terms to `terms`.
    ///
    /// # Safety
    /// As [`scalar`](Self::scalar); no other lane accesses the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn one<const COMPUTES: u32, R: LaneRow<E>>(&self, index: u32, terms: &mut [f64; TERMS]) {
        let Rows { pass, stage, logits, probabilities, gradients, scale, workspace, .. } = *self;
        let args = stage.args;
        let (cols, size) = (args.cols, size_of::<E>() as u32);
        let row = stage.first() + u64::from(index);
        let source = self.row_of(logits, index);
        let access = Access::of::<E>(self.access::<COMPUTES>(), cols);
        // SAFETY: the caller's conditions.
        unsafe {
            let mut class = args.ignore_index;
            if MODE != mode::PROBABILITIES {
                class = stage.class(index);
            }
            let t = (self.row_of(probabilities, index), access);
            let mut logit = E::Real::ZERO;
            if MODE != mode::PROBABILITIES && class.cast_unsigned() < cols.into() {
                logit = stage.shared.element::<E>(source.at + class as u32 * size).widen();
            }
            let mut numbers = R::new(source, cols, access);
            let mut stats = Stats::NONE;
            if COMPUTES != computes::GRADIENTS {
                stats = if COMPUTES == computes::LOSS {
                    numbers.statistics(pass, t)
                } else {
                    numbers.make_exps(pass, t)
                };
                if Self::has_attempts::<COMPUTES>() && !counts_in_mean(args, class) {
                    self.note_uncounted();
                }
            }
            let label = pass.label(class);
            if COMPUTES == computes::BOTH {
                let of_row =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                // The normaliser was summed before, so the weights are not summed again.
                terms[0] += of_row[0];
                if !pass.has_two_sums() {
                    terms[2] += of_row[2];
                }
            } else if COMPUTES == computes::LOSS {
                let of_row =
                    pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace);
                terms[0] += of_row[0];
                terms[1] += of_row[1];
                if !pass.has_two_sums() {
                    terms[2] += of_row[2];
                    terms[3] += of_row[3];
                }
                return;
            }
            let factors = factors_of_row::<E, MODE, COMPUTES, true>(
                pass,
                &label,
                stats,
                (&stage, index),
                scale,
            );
            let target = self.row_of(gradients, index);
            if MODE == mode::PROBABILITIES {
                let to = |of: Matrix, row| (of.start != 0).then_some(row);
                let of_probabilities = self.row_of(self.of_probabilities, index);
                let to = [to(args.grad_input, target), to(args.grad_target, of_probabilities)];
                let mut numbers = R::new(source.rematerialize(), cols, access);
                numbers.store_gradients_of_both(pass, &factors, t, to, access);
                return;
            }
            // The gradient of a row that is ignored is 0, whatever its logits.
            if label.counts {
                if COMPUTES == computes::GRADIENTS {
                    numbers = R::new(source.rematerialize(), cols, access);
                    numbers.make_exps_from(factors.center);
                }
                numbers.store_gradients(pass, &factors, target, access);
            } else {
                numbers.store_zeros(target, access);
            }
            if label.has_class(cols) {
                let at_class = E::narrow(pass.at_class(&label, &factors, logit));
                stage.shared.set_element(target.at + label.class * size, at_class);
            }
        }
    }
}
