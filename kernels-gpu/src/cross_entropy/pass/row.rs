//! The results of one row.

use super::{Pass, TERMS};
use crate::abi::{reduction, saved};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::mode;
use crate::cross_entropy::stats::Stats;
use crate::cut::Row;
use crate::element::{Element, Real};
use crate::reduce::Workspace;
use cuda_std::memory::store;

/// Which of each row's results a pass writes.
pub(crate) mod writes {
    /// None; for a call that [is plain](super::Pass::is_plain).
    pub(crate) const NOTHING: u32 = 0;
    /// The row's loss, if the call returns one loss per row.
    pub(crate) const LOSS: u32 = 1;
    /// The row's loss, as with [`LOSS`], and what the call saves for a backward pass.
    pub(crate) const ALL: u32 = 2;
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// The part of a row's loss that comes from the shares of all classes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn loss_of_shares(&self, stats: &Stats<E::Real>, log_sum: E::Real) -> E::Real {
        self.smoothing_per_unit() * (stats.weight * log_sum - stats.dot)
    }

    /// The loss with label smoothing of a row whose loss without smoothing is `loss`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn smoothed(
        &self,
        loss: E::Real,
        stats: &Stats<E::Real>,
        log_sum: E::Real,
    ) -> E::Real {
        self.confidence().fma(loss, self.loss_of_shares(stats, log_sum))
    }

    /// The logit of the row's class; 0 if the class is out of range or targets are probabilities.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn logit(&self, row: u64, class: i64) -> E::Real {
        // A negative class is out of range, too, as an unsigned number.
        if MODE == mode::PROBABILITIES || class.cast_unsigned() >= u64::from(self.args.cols) {
            return E::Real::ZERO;
        }
        let input = Row::<E>::at_cut(Row::<E>::address(self.args.input, row));
        // SAFETY: the caller's condition.
        unsafe { input.load(class as u32).widen() }
    }

    /// The address of saved value `which` (one of [`saved`]) of a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn saved(&self, row: u64, which: u64) -> *mut E::Real {
        let start = self.epilogue_arg(self.args.saved) as *mut E::Real;
        start.wrapping_add((which * self.args.rows + row) as usize)
    }

    /// Writes those of a row's results that [`WRITES`](writes) selects, and returns its terms of
    /// the sums over the grid.
    ///
    /// # Safety
    /// 1. The kernels' condition 1; `row` is below `rows`.
    /// 2. The first thread of the row's group calls this.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn finish_row<const WRITES: u32>(
        &self,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        logit: E::Real,
        workspace: Workspace,
    ) -> [f64; TERMS] {
        if MODE == mode::LOG_PROB {
            // SAFETY: the caller's conditions.
            unsafe { self.finish_log_prob::<WRITES>(row, label, stats, logit, workspace) }
        } else {
            // SAFETY: the caller's conditions.
            unsafe { self.finish_loss::<WRITES>(row, label, stats, logit, workspace) }
        }
    }

    /// [`finish_row`](Self::finish_row) of a loss.
    ///
    /// # Safety
    /// As [`finish_row`](Self::finish_row).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn finish_loss<const WRITES: u32>(
        &self,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        logit: E::Real,
        workspace: Workspace,
    ) -> [f64; TERMS] {
        let args = self.args;
        if label.fault && self.epilogue_arg(args.fault) != 0 {
            workspace.report_row(row);
        }
        let log_sum = stats.log_sum();
        let log_sum_exp = stats.max + log_sum;
        if WRITES == writes::ALL && self.epilogue_arg(args.saved) != 0 {
            // SAFETY: the caller's conditions.
            unsafe {
                store(self.saved(row, saved::MAX), stats.max);
                store(self.saved(row, saved::LOG_SUM), log_sum);
                store(self.saved(row, saved::WEIGHT), stats.weight);
                store(self.saved(row, saved::LOG_SUM_EXP), log_sum_exp);
            }
        }
        let mut term = E::Real::ZERO;
        if label.counts {
            if MODE != mode::PROBABILITIES {
                term = self.confidence() * label.weight * (log_sum - (logit - stats.max));
            }
            if Self::DENSE {
                term = term + self.loss_of_shares(&stats, log_sum);
            }
            if label.fault {
                term = E::Real::NAN;
            }
        }
        let square = if label.counts { log_sum_exp * log_sum_exp } else { E::Real::ZERO };
        if WRITES != writes::NOTHING
            && self.epilogue_arg(args.reduction.into()) == reduction::ROWS.into()
        {
            let mut loss = term;
            if self.has_z_loss() {
                loss = E::Real::from_f64(self.z_loss()).fma(square, loss);
            }
            // SAFETY: the caller's conditions.
            unsafe { store((args.loss as *mut E::Real).wrapping_add(row as usize), loss) };
        }
        let count = if label.counts { 1.0 } else { 0.0 };
        [term.to_f64(), label.weight.to_f64(), square.to_f64(), count]
    }
}
