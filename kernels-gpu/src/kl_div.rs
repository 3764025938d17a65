//! Kullback-Leibler divergence: t (log t − x), where the input is x, or p with x = log p, and the
//! target is t, or its logarithm.

use crate::abi::PairwiseArgs;
use crate::element::Real;
use crate::math::{exp, less_ln_of_plain, ln, ln_ratio, quick_ln_ratio};
use crate::pairwise::Pairwise;

/// The divergence, with kernels of its own for each form of input and target: what the one needs no
/// other pays for.
#[derive(Clone, Copy)]
pub(crate) struct KlDiv<const LOG_INPUT: bool, const LOG_TARGET: bool>;

impl<const LOG_INPUT: bool, const LOG_TARGET: bool> KlDiv<LOG_INPUT, LOG_TARGET> {
    /// log t − x, of plain pairs in [`Pairwise::UNIT`]s. Of two probabilities as one logarithm, so
    /// that what is left where they are nearly equal is not the error of two.
    #[inline(always)]
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

    /// The target's probability.
    #[inline(always)]
    fn t<R: Real>(target: R) -> R {
        if LOG_TARGET { exp(target) } else { target }
    }
}

impl<R: Real, const LOG_INPUT: bool, const LOG_TARGET: bool> Pairwise<R>
    for KlDiv<LOG_INPUT, LOG_TARGET>
{
    #[inline(always)]
    fn new(_: &PairwiseArgs) -> Self {
        KlDiv
    }

    const UNIT: R = if LOG_INPUT || LOG_TARGET { R::ONE } else { R::LN_UNIT };

    /// What is a probability may be an ordinary number: its logarithm is then a short one, and
    /// nothing is special.
    #[inline(always)]
    fn ranks(self, input: R, target: R) -> [u32; 2] {
        let of_input = if LOG_INPUT { 0 } else { input.rank() };
        let of_target = if LOG_TARGET { 0 } else { target.rank() };
        [of_input, of_target]
    }

    /// At t = 0 the term is 0 for finite x, NaN for others, as 0 · x. At t = ∞ it is ∞ − t x, as
    /// PyTorch has it.
    #[inline(always)]
    fn term<const PLAIN: bool>(self, input: R, target: R) -> [R; 2] {
        let difference = Self::difference::<R, PLAIN>(input, target);
        let t = Self::t(target);
        if LOG_TARGET || PLAIN {
            return [t, difference];
        }
        // 0 · x and ∞ · x, where the difference no longer tells x.
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

    /// −t by x, −t/p by p.
    #[inline(always)]
    fn grad_input<const PLAIN: bool>(self, input: R, target: R, scale: R) -> R {
        let t = Self::t(target);
        let weight = match (LOG_INPUT, LOG_TARGET) {
            (true, _) => t,
            // exp(t) may be infinite though p is plain, and a quick division of ∞ is NaN in f64.
            (false, true) if PLAIN => t * R::ONE.quickly_over(input),
            (false, false) if PLAIN => t.quickly_over(input),
            (false, _) => t / input,
        };
        weight * -scale
    }

    /// log t + 1 − x by t, NaN at 0 and ∞; t (log t + 1 − x) by log t.
    #[inline(always)]
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
        let defined = PLAIN || (target > R::ZERO && target < R::INFINITY);
        if defined { slope * scale } else { R::NAN }
    }
}
