//! Binary cross-entropy of a logit x and a target y, with weight w and pos_weight p:
//! w (−p y log σ(x) − (1 − y) log(1 − σ(x))).
//!
//! With l = log(1 + e^−|x|) and q = 1 + (p − 1) y, the term is w ((1 − y) x + q l) for x > 0, and
//! w (−p y x + q l) for x ≤ 0. Neither overflows, and for y = 0 and y = 1 nothing cancels.

use crate::abi::{Broadcast, PairwiseArgs, weights};
use crate::element::{Element, Real};
use crate::math::{exp, ln_1p, quick_exp_below, quick_ln_1p};
use crate::pairwise::Pairwise;
use cuda_std::memory::load;

#[derive(Clone, Copy)]
pub(crate) struct Bce<E: Element> {
    weight: Weight<E>,
    pos_weight: Weight<E>,
}

impl<E: Element> Bce<E> {
    /// q = 1 + (p − 1) y; exactly 1 without pos_weight, whatever y is.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn log_weight(self, y: E::Real) -> E::Real {
        let p = self.pos_weight.value;
        if p == E::Real::ONE { p } else { (p - E::Real::ONE).fma(y, E::Real::ONE) }
    }

    /// Whether plain logits take fewer instructions. In f64 they do not.
    const HAS_PLAIN: bool = size_of::<E::Real>() == 4;

    /// e^−|x|.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn exp_of_magnitude<const PLAIN: bool>(x: E::Real) -> E::Real {
        let x = -x.magnitude();
        if PLAIN && Self::HAS_PLAIN { quick_exp_below(x) } else { exp(x) }
    }

    /// log(1 + e^−|x|).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn ln_1p_exp<const PLAIN: bool>(x: E::Real) -> E::Real {
        let e = Self::exp_of_magnitude::<PLAIN>(x);
        if PLAIN && Self::HAS_PLAIN { quick_ln_1p(e) } else { ln_1p(e) }
    }
}

impl<E: Element> Pairwise<E::Real> for Bce<E> {
    const GRADS_APART: bool = true;
    const HAS_WEIGHTS: bool = true;
    const HAS_RANKS: bool = true;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(args: &PairwiseArgs) -> Self {
        let weight = |which: usize| Weight { at: args.weights[which], value: E::Real::ONE };
        Bce { weight: weight(weights::WEIGHT), pos_weight: weight(weights::POS_WEIGHT) }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn of_row(self, row: u64) -> Self {
        // SAFETY: the caller's condition.
        unsafe { Bce { weight: self.weight.of_row(row), pos_weight: self.pos_weight.of_row(row) } }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn of_col(self, col: u64) -> Self {
        // SAFETY: the caller's condition.
        unsafe { Bce { weight: self.weight.of_col(col), pos_weight: self.pos_weight.of_col(col) } }
    }

    /// Logits below 80 in magnitude, whose exponentials are normal numbers, are plain.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn ranks(self, x: E::Real, _: E::Real) -> [u32; 2] {
        const SIGN: u32 = 1 << 31;
        // Magnitudes are in the order of their bits; shift the ranks so that 80 has the rank that
        // is the limit.
        let behind = 80.0_f32.to_bits() - E::Real::PLAIN_RANKS;
        [if Self::HAS_PLAIN { (x.to_top() & !SIGN).saturating_sub(behind) } else { 0 }, 0]
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn term<const PLAIN: bool>(self, x: E::Real, y: E::Real) -> [E::Real; 2] {
        let (p, log_weight) = (self.pos_weight.value, self.log_weight(y));
        let linear = if x > E::Real::ZERO { E::Real::ONE - y } else { -(p * y) } * x;
        let term = log_weight.fma(Self::ln_1p_exp::<PLAIN>(x), linear);
        if PLAIN && Self::HAS_PLAIN {
            return [self.weight.value, term];
        }
        // PyTorch's formula at −∞, where the formula above multiplies 0 by ∞.
        let at_infinity = (E::Real::ONE - y) * x - log_weight * x;
        let term = if x == E::Real::NEG_INFINITY { at_infinity } else { term };
        [self.weight.value, term]
    }

    /// The derivative by x is w (q σ(x) − p y). For x > 0 it is computed as w ((1 − y) − q σ(−x)),
    /// so that only e^−|x| is needed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_input<const PLAIN: bool>(self, x: E::Real, y: E::Real, scale: E::Real) -> E::Real {
        let (p, e) = (self.pos_weight.value, Self::exp_of_magnitude::<PLAIN>(x));
        let sum = E::Real::ONE + e;
        let is_quick = PLAIN && Self::HAS_PLAIN;
        let tail =
            self.log_weight(y) * if is_quick { e.quickly_over(sum) } else { e.over_plain(sum) };
        let slope = if x > E::Real::ZERO { (E::Real::ONE - y) - tail } else { tail - p * y };
        slope * (self.weight.value * scale)
    }

    /// The derivative by y is w (log(1 − σ(x)) − p log σ(x)), which is −w x without pos_weight.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_target<const PLAIN: bool>(self, x: E::Real, _: E::Real, scale: E::Real) -> E::Real {
        let p = self.pos_weight.value;
        let linear = if x > E::Real::ZERO { -x } else { -(p * x) };
        let tail = (p - E::Real::ONE) * Self::ln_1p_exp::<PLAIN>(x);
        (linear + tail) * (self.weight.value * scale)
    }
}

/// A factor that is broadcast over elements: one for all, or one per row, column or element.
#[derive(Clone, Copy)]
struct Weight<E: Element> {
    /// The current row's factors in memory.
    at: Broadcast,
    /// The factor of the current row or element; 1 if there are no factors in memory.
    value: E::Real,
}

impl<E: Element> Weight<E> {
    /// Moves to a row, and loads the factor of its first element, which serves the whole row if
    /// columns have no stride.
    ///
    /// # Safety
    /// `at` is null, or points to a factor of type `E` for each row, which nothing writes
    /// meanwhile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn of_row(mut self, row: u64) -> Self {
        if self.at.start != 0 {
            self.at.start += row * self.at.row_stride * size_of::<E>() as u64;
            // SAFETY: the caller's condition.
            self.value = unsafe { load(self.at.start as *const E) }.widen();
        }
        self
    }

    /// Loads the factor of column `col` of the row, if columns have a stride.
    ///
    /// # Safety
    /// As [`of_row`](Self::of_row); if columns have a stride, there is a factor for each column.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn of_col(mut self, col: u64) -> Self {
        if self.at.col_stride != 0 {
            let at = (self.at.start as *const E).wrapping_add(col as usize);
            // SAFETY: the caller's condition.
            self.value = unsafe { load(at) }.widen();
        }
        self
    }
}
