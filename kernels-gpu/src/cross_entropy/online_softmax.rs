//! The online softmax of the forward pass over long rows.

use super::lagging::{Lagging, lags};
use super::log_prob;
use super::mode;
use super::stats::Stats;
use crate::element::Real;
use crate::reduce::{group_max, warp_max, warp_sums};
use crate::row::RowStats;
use cuda_std::warp::{WARP_SIZE, any, ballot, max_of_warp};

/// The online softmax of a part of a row: the running maximum and the running sums.
///
/// The sum of the exponentials leaves out the 1 of the largest logit. Where a class is nearly
/// certain, the loss is the sum of the other exponentials, which would lose its digits if it were
/// added to 1.
///
/// In f64 ([`LAGS`](RowStats::LAGS)) the logit that is subtracted, the center, may lag behind the
/// largest logit until the statistics are [settled](RowStats::settled). A lagging center rarely
/// changes: exponentials need not wait for the maximum of their tile, and are seldom rescaled.
#[derive(Clone, Copy)]
pub(crate) struct OnlineSoftmax<R: Real, const MODE: u32> {
    /// The largest logit, m; −∞ if there is none yet.
    pub(super) max: R,
    /// Σ exp(x − m) − 1; −1 if there is no logit yet. Until lagging statistics are settled,
    /// Σ exp(x − center).
    pub(super) others: R,
    /// Σ q (x − m), for a target with a share q for every class (`DENSE`). Until lagging statistics
    /// are settled, Σ q (x − center).
    pub(super) dot: R,
    /// Σ q, for a `DENSE` target.
    pub(super) weight: R,
    /// The logit that is subtracted instead of m, until lagging statistics are settled.
    pub(super) lagging: Lagging<R>,
}

impl<R: Real, const MODE: u32> OnlineSoftmax<R, MODE> {
    pub(super) const DENSE: bool = Stats::<R>::parts_used(MODE) == 4;
    pub(super) const LOG_PROB: bool = MODE == mode::LOG_PROB;

    /// The logit that is subtracted from all others: the largest, or 0 while that is −∞, since
    /// −∞ − −∞ is NaN.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn center(max: R) -> R {
        if max == R::NEG_INFINITY { R::ZERO } else { max }
    }

    /// Converts to the statistics that the other kernels use.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn stats(self) -> Stats<R> {
        Stats::of_parts(self.parts()).of_row()
    }

    /// Σ exp(x − `center`), for a center that is no less than the largest logit, and the factor by
    /// which the exponentials are multiplied for that.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn rescaled_sum(self, center: R, scale: R) -> (R, R) {
        let sum = R::ONE + self.others;
        let factor = log_prob::scaled::<R, MODE>(self.max - center, scale).exp_below();
        (sum * factor, factor)
    }

    /// Σ exp(x − `max`) and Σ q (x − `max`), for a `max` that is no less than the largest logit.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn relative_to(self, max: R, scale: R) -> (R, R) {
        let center = Self::center(max);
        let (sum, factor) = self.rescaled_sum(center, scale);
        let dot = if Self::LOG_PROB {
            log_prob::rescaled_dot(self.dot, [factor, sum], self.max, center, scale)
        } else {
            self.dot + self.weight * (Self::center(self.max) - center)
        };
        (sum, if MODE == mode::CLASS { R::ZERO } else { dot })
    }

    /// Whether sums over N vectors of logits, which `lagging` already includes, may be added. For
    /// several vectors, the largest logit has to be near the center, or all logits have to be
    /// [padding](Lagging::padding); for a single one, the center has been moved if it can be.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn takes<const N: usize>(lagging: Lagging<R>) -> bool {
        N == 1 || lagging.is_near() || !Self::DENSE && lagging.is_empty()
    }

    /// Moves the center to the largest logit ([`Lagging::recenter`]). `lagging` already includes
    /// the next logits.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn recenter(&mut self, mut lagging: Lagging<R>) {
        let (factor, apart) = lagging.recenter();
        // While there is no logit, the sums are 0, and the center may be any number.
        if self.others > R::ZERO || Self::DENSE && self.weight != R::ZERO {
            self.others = self.others * factor;
            self.dot = self.weight.fma(apart, self.dot);
        }
        self.lagging = lagging;
    }
}

impl<R: Real, const MODE: u32> RowStats for OnlineSoftmax<R, MODE> {
    type Real = R;
    const LAGS: bool = lags::<R>(MODE);

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn none() -> Self {
        Self::from_parts([R::NEG_INFINITY, -R::ONE, R::ZERO, R::ZERO])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn begin(near: u32) -> Self {
        if !Self::LAGS {
            return Self::none();
        }
        Self { others: R::ZERO, lagging: Lagging::new(near), ..Self::none() }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn top(self) -> u32 {
        self.max.to_top()
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn settled(self) -> Self {
        if !Self::LAGS {
            return self;
        }
        let lagging = self.lagging;
        if lagging.is_empty() && self.others == R::ZERO {
            return Self::none();
        }
        let is_valid = lagging.is_valid();
        let others = self.others.fma(lagging.unit(), -R::ONE);
        let others = if is_valid { others } else { R::NAN };
        let dot = self.weight.fma(lagging.center() - lagging.max(), self.dot);
        Self::from_parts([lagging.max(), others, dot, self.weight])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn with(self, other: Self, scale: R) -> Self {
        let (high, low) = if other.max > self.max { (other, self) } else { (self, other) };
        let ties = low.max == high.max;
        let (sum, dot) = low.relative_to(high.max, scale);
        let others = high.others + if ties { R::ONE + low.others } else { sum };
        let dot = high.dot + if ties { low.dot } else { dot };
        Self::from_parts([high.max, others, dot, high.weight + low.weight])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn over_lanes(self, lanes: u32, scale: R) -> Self {
        // Every `lanes` lanes have the same numbers. In f32, one instruction finds the maximum of
        // the whole warp; in f64, which needs shuffles, fewer lanes take fewer steps.
        let max = if Self::LAGS { group_max(self.max, lanes) } else { warp_max(self.max) };
        let has = self.max == max;
        let (sum, dot) = self.relative_to(max, scale);
        let (others, dot) = if has { (self.others, self.dot) } else { (sum, dot) };
        let of_lanes = u32::MAX >> (WARP_SIZE - lanes);
        let ties = R::from_i32((ballot(has) & of_lanes).count_ones().cast_signed() - 1);
        if Self::DENSE {
            let values = warp_sums([others, dot, self.weight], lanes);
            return Self::from_parts([max, ties + values[0], values[1], values[2]]);
        }
        if Self::LOG_PROB {
            let [others, dot] = warp_sums([others, dot], lanes);
            return Self::from_parts([max, ties + others, dot, R::ZERO]);
        }
        let [others] = warp_sums([others], lanes);
        Self::from_parts([max, ties + others, R::ZERO, R::ZERO])
    }

    /// Merges the lanes first and settles the result: that takes one exponential instead of two,
    /// unless their centers differ, and no maximum in f64.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn settled_over_warp(mut self, scale: R) -> Self {
        if !Self::LAGS {
            return self.over_lanes(WARP_SIZE, scale);
        }
        let lagging = self.lagging.over(|top| warp_max(f32::from_bits(top)).to_bits());
        let center = lagging.center().to_top().cast_signed();
        if any(center != max_of_warp(center)) {
            self.recenter(lagging);
        } else {
            self.lagging = lagging;
        }
        if Self::DENSE {
            let sums = warp_sums([self.others, self.dot, self.weight], WARP_SIZE);
            [self.others, self.dot, self.weight] = sums;
        } else {
            [self.others] = warp_sums([self.others], WARP_SIZE);
        }
        self.settled()
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn parts(self) -> [R; 4] {
        [self.max, self.others, self.dot, self.weight]
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn from_parts([max, others, dot, weight]: [R; 4]) -> Self {
        Self { max, others, dot, weight, lagging: Lagging::new(0) }
    }
}
