//! The factors of a row's gradients, and the gradient of the class's logit.
//!
//! With p the softmax probability, the gradient of logit j is a multiple of p_j less a multiple of
//! the class's share of the target. [`Factors`] has these multiples.

use super::Pass;
use super::normaliser::Total;
use crate::abi::saved;
use crate::cross_entropy::label::Label;
use crate::cross_entropy::mode;
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use crate::math::exp_m1_below;
use cuda_std::memory::load;

/// The factors of a row's gradients.
pub(crate) struct Factors<R> {
    /// Whether the row counts, that is, is not ignored. If it does not, all its gradients are 0,
    /// whatever the class weights are.
    pub(crate) counts: bool,
    /// The probability of logit x is exp(x − `center`) · `inverse`.
    pub(crate) center: R,
    pub(crate) inverse: R,
    /// The gradient of logit x is exp(x − `center`) · `factor`, ...
    pub(crate) factor: R,
    /// ... less `by_share` times the class's share of the target, [`Pass::share_of`]; where
    /// entropies are computed, times exp(x − `center`) (z − m).
    pub(crate) by_share: R,
    /// The sum of all shares.
    pub(crate) weight: R,
    /// The factor of (probability − 1) in the gradient of the row's class.
    pub(crate) by_class: R,
    /// The factor of the probability in the gradient of the z-loss.
    pub(crate) by_z: R,
    /// The summed probabilities of all classes but the likeliest. If the row's class is the
    /// likeliest, its gradient is computed from this, because 1 − p would lose digits.
    pub(crate) others: R,
    /// log Σ exp(x − m), for the gradients of probabilities and the z-loss.
    pub(crate) log_sum: R,
    /// The factor of the gradients of the target's probabilities.
    pub(crate) by_target: R,
}

impl<R: Real> Factors<R> {
    /// The factors of an ignored row.
    pub(crate) const NONE: Self = Factors {
        counts: false,
        center: R::ZERO,
        inverse: R::ZERO,
        factor: R::ZERO,
        by_share: R::ZERO,
        weight: R::ZERO,
        by_class: R::ZERO,
        by_z: R::ZERO,
        others: R::ZERO,
        log_sum: R::ZERO,
        by_target: R::ZERO,
    };
}

/// What the forward pass saves of a row for the backward pass.
#[derive(Clone, Copy)]
pub(crate) struct Saved<R> {
    pub(crate) max: R,
    pub(crate) log_sum: R,
    pub(crate) weight: R,
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// The factors of a row, from its statistics, its [`scale`](Self::scale), and the scale of its
    /// z-loss, which is computed only if there is a z-loss.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn factors(
        &self,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        scale: E::Real,
        z_scale: impl FnOnce() -> E::Real,
    ) -> Factors<E::Real> {
        if !label.counts {
            return Factors::NONE;
        }
        let inverse = E::Real::ONE.over_plain(stats.ties + stats.rest);
        let weight = stats.weight;
        let mut factors =
            Factors { counts: true, center: stats.max, inverse, weight, ..Factors::NONE };
        factors.others = stats.others() * inverse;
        if MODE == mode::LOG_PROB {
            let expected = stats.dot * inverse;
            self.upstream_factors(label, expected, [scale, z_scale()], &mut factors);
        } else {
            if MODE == mode::PROBABILITIES || self.args.z_loss != 0.0 {
                factors.log_sum = stats.log_sum();
            }
            self.scale_factors(label, scale, z_scale, &mut factors);
        }
        factors
    }

    /// Loads what the forward pass has saved of a row.
    ///
    /// # Safety
    /// 1. As [`scale`](Self::scale).
    /// 2. The saved values are of the same rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn saved_of(&self, row: u64) -> Saved<E::Real> {
        // SAFETY: the caller's condition.
        let load_saved = |which| unsafe { load(self.saved(row, which)) };
        Saved {
            max: load_saved(saved::MAX),
            log_sum: load_saved(saved::LOG_SUM),
            weight: load_saved(saved::WEIGHT),
        }
    }

    /// The factors of a row, from what the forward pass has saved of it. `scale` computes the scale
    /// of the row by either normaliser.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn factors_of_saved(
        &self,
        label: &Label<E::Real>,
        Saved { max, log_sum, weight }: Saved<E::Real>,
        scale: impl Fn(Total) -> E::Real,
    ) -> Factors<E::Real> {
        if !label.counts {
            return Factors::NONE;
        }
        let mut factors = Factors {
            counts: true,
            center: max,
            inverse: (-log_sum).exp_below(),
            others: -exp_m1_below(-log_sum),
            log_sum,
            weight,
            ..Factors::NONE
        };
        if MODE == mode::LOG_PROB {
            // `saved::EXPECTED` is where other modes save the weight.
            let upstreams = [scale(Total::Weights), scale(Total::Rows)];
            self.upstream_factors(label, weight, upstreams, &mut factors);
        } else {
            self.scale_factors(label, scale(Total::Weights), || scale(Total::Rows), &mut factors);
        }
        factors
    }

    /// Computes those factors that depend on the scales.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn scale_factors(
        &self,
        label: &Label<E::Real>,
        scale: E::Real,
        z_scale: impl FnOnce() -> E::Real,
        factors: &mut Factors<E::Real>,
    ) {
        let args = self.args;
        let confidence = self.confidence();
        if args.z_loss != 0.0 {
            let log_sum_exp = factors.center + factors.log_sum;
            factors.by_z = self.twice_z_loss() * log_sum_exp * z_scale();
        }
        if MODE != mode::PROBABILITIES {
            factors.by_class = confidence * label.weight * scale;
            if Self::DENSE {
                factors.by_share = self.smoothing_per_unit() * scale;
            }
        } else {
            factors.by_share = scale;
            factors.by_target = confidence * scale;
        }
        let all = factors.by_class + factors.by_share * factors.weight + factors.by_z;
        factors.factor = all * factors.inverse;
    }

    /// The factors of a row of a call with label smoothing and without z-loss, whose class has
    /// this weight.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn smoothed_factors(
        &self,
        stats: &Stats<E::Real>,
        weight_of_class: E::Real,
        inverse: E::Real,
        scale: E::Real,
    ) -> Factors<E::Real> {
        let weight = if MODE == mode::SMOOTHED { self.sum_of_units() } else { stats.weight };
        let by_class = self.confidence() * weight_of_class * scale;
        let by_share = self.smoothing_per_unit() * scale;
        let factor = by_share.fma(weight, by_class) * inverse;
        let (counts, center) = (true, stats.max);
        Factors { counts, center, factor, by_share, weight, by_class, ..Factors::NONE }
    }

    /// The factors of a row of a call with class weights or z-loss, whose class has this weight,
    /// and whose z-loss has this derivative by the log-sum-exp.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn factors_of_option(
        &self,
        stats: &Stats<E::Real>,
        (weight_of_class, of_z_loss): (E::Real, E::Real),
        inverse: E::Real,
        scale: E::Real,
    ) -> Factors<E::Real> {
        let (by_class, by_z) = (weight_of_class * scale, of_z_loss * scale);
        let factor = (by_class + by_z) * inverse;
        Factors { counts: true, center: stats.max, factor, by_class, by_z, ..Factors::NONE }
    }

    /// The gradient of the class's logit.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn at_class(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        logit: E::Real,
    ) -> E::Real {
        if MODE == mode::LOG_PROB {
            self.log_prob_at_class(factors, logit)
        } else {
            let apart = logit - factors.center;
            let p = apart.exp_below() * factors.inverse;
            self.at_class_of(label, factors, p, apart == E::Real::ZERO)
        }
    }

    /// The gradient of the class's logit, from the gradient that any `other` class would have
    /// there.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn at_class_from(
        &self,
        other: E::Real,
        factors: &Factors<E::Real>,
        logit: E::Real,
    ) -> E::Real {
        if logit == factors.center {
            // See `at_class_of`. The exponential of the likeliest class is 1.
            (-factors.by_class).fma(factors.others, factors.by_z * factors.inverse)
        } else {
            other - factors.by_class
        }
    }

    /// The gradient of the class's logit, from its probability `p` and whether it is the
    /// `likeliest` class.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn at_class_of(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        p: E::Real,
        likeliest: bool,
    ) -> E::Real {
        // p − 1 of the likeliest class is minus the sum of the other probabilities, which keeps
        // the digits that the subtraction would lose.
        let less_one = if likeliest { -factors.others } else { p - E::Real::ONE };
        let share_term = factors.by_share * (p * factors.weight - label.weight * self.unit());
        factors.by_class.fma(less_one, factors.by_z.fma(p, share_term))
    }
}
