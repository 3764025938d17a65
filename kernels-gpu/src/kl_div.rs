//! Kullback-Leibler divergence: t (log t − x), with x the log-probability of the input and t the
//! probability of the target. The input is x, or the probability p = eˣ; the target is t, or log t.

use crate::abi::PairwiseArgs;
use crate::element::Real;
use crate::math::{exp, less_ln_of_plain, ln, ln_ratio, quick_ln_ratio};
use crate::pairwise::Pairwise;

/// The divergence. Each combination of `LOG_INPUT` and `LOG_TARGET` has separate kernels, so that
/// none spends registers or instructions on another's logarithms.
#[derive(Clone, Copy)]
pub(crate) struct KlDiv<const LOG_INPUT: bool, const LOG_TARGET: bool>;

impl<const LOG_INPUT: bool, const LOG_TARGET: bool> KlDiv<LOG_INPUT, LOG_TARGET> {
    /// log t − x; with `PLAIN`, in [`Pairwise::UNIT`]s. For two probabilities it is one logarithm,
    /// of their ratio: where they are nearly equal, a difference of two logarithms would be mostly
    /// rounding error.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn difference<R: Real, const PLAIN: bool>(input: R, target: R) -> R {
        match (LOG_INPUT, LOG_TARGET) {
            (true, true) => target - input,
            (true, false) if PLAIN => -less_ln_of_plain(input, target),
            (true, false) => ln(target) - input,
            (false, true) if PLAIN => less_ln_of_plain(target, input),
            (false, true) => target - ln(input),
            (false, false) if PLAIN => quick_ln_ratio(target, input),
            (false, false) => ln_ratio(target, input),
        }
    }

    /// The probability t of the target.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn t<R: Real>(target: R) -> R {
        if LOG_TARGET { exp(target) } else { target }
    }
}

impl<R: Real, const LOG_INPUT: bool, const LOG_TARGET: bool> Pairwise<R>
    for KlDiv<LOG_INPUT, LOG_TARGET>
{
    const EARLY_SCALES: bool = LOG_INPUT && size_of::<R>() < 8;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(_: &PairwiseArgs) -> Self {
        KlDiv
    }

    const HAS_RANKS: bool = !(LOG_INPUT && LOG_TARGET);
    const UNIT: R = if LOG_INPUT || LOG_TARGET { R::ONE } else { R::LN_UNIT };

    /// Only a probability has a rank that matters, because its logarithm is taken. For plain
    /// probabilities the logarithm takes fewer instructions, and 0 and ∞ need not be considered.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn ranks(self, input: R, target: R) -> [u32; 2] {
        let input_rank = if LOG_INPUT { 0 } else { input.rank() };
        let target_rank = if LOG_TARGET { 0 } else { target.rank() };
        [input_rank, target_rank]
    }

    /// For t = 0 the term is 0 if x is finite and NaN otherwise, like 0 · x. For t = ∞ it is
    /// ∞ − t x, as in PyTorch.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn term<const PLAIN: bool>(self, input: R, target: R) -> [R; 2] {
        let difference = Self::difference::<R, PLAIN>(input, target);
        let t = Self::t(target);
        if LOG_TARGET || PLAIN {
            return [t, difference];
        }
        // The values of 0 · x and ∞ · x. For t = 0 and t = ∞ the difference is infinite or NaN
        // whatever x is, so it does not tell them apart.
        let finite = if LOG_INPUT {
            input.magnitude() < R::INFINITY
        } else {
            input > R::ZERO && input < R::INFINITY
        };
        let below = if LOG_INPUT { input < R::ZERO } else { input < R::ONE && input >= R::ZERO };
        let at_zero = if finite { R::ZERO } else { R::NAN };
        let at_infinity = if below { R::INFINITY } else { R::NAN };
        let term = if target == R::ZERO { at_zero } else { t * difference };
        [if target == R::INFINITY { at_infinity } else { term }, R::ONE]
    }

    /// The derivative is −t by x, and −t/p by p.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_input<const PLAIN: bool>(self, input: R, target: R, scale: R) -> R {
        let t = Self::t(target);
        let weight = match (LOG_INPUT, LOG_TARGET) {
            (true, _) => t,
            // The target is a logarithm, and its exponential may be infinite though p is plain;
            // `quickly_over` would return NaN for ∞ in f64. So take the reciprocal of p, and
            // multiply.
            (false, true) if PLAIN => t * R::ONE.quickly_over(input),
            (false, false) if PLAIN => t.quickly_over(input),
            (false, _) => t / input,
        };
        weight * -scale
    }

    /// The derivative is log t + 1 − x by t, NaN for t = 0 and t = ∞; it is t (log t + 1 − x) by
    /// log t.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_target<const PLAIN: bool>(self, input: R, target: R, scale: R) -> R {
        let difference = Self::difference::<R, PLAIN>(input, target);
        let slope = if PLAIN {
            difference.fma(<Self as Pairwise<R>>::UNIT, R::ONE)
        } else {
            difference + R::ONE
        };
        if LOG_TARGET {
            return Self::t(target) * slope * scale;
        }
        let is_defined = PLAIN || (target > R::ZERO && target < R::INFINITY);
        if is_defined { slope * scale } else { R::NAN }
    }
}
