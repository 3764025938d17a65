//! Binary cross-entropy of a logit x and a target y, with pos_weight p and weight w:
//! w (−p y log σ(x) − (1 − y) log(1 − σ(x))).
//!
//! With l = log(1 + e^−|x|) and q = 1 + (p − 1) y the term is w ((1 − y) x + q l) for x above 0 and
//! w (−p y x + q l) below: neither overflows, and where y is 0 or 1 nothing cancels.

use crate::abi::{Broadcast, PairwiseArgs, weights};
use crate::element::{Element, Real};
use crate::math::{exp, ln_1p};
use crate::pairwise::Pairwise;
use cuda_std::memory::load;

#[derive(Clone, Copy)]
pub(crate) struct Bce<E: Element> {
    weight: Weight<E>,
    pos_weight: Weight<E>,
}

impl<E: Element> Bce<E> {
    /// 1 + (p − 1) y: the factor of −log σ(x) that a logit above 0 leaves. Exactly 1 without
    /// pos_weight.
    #[inline(always)]
    fn log_weight(self, y: E::Real) -> E::Real {
        let p = self.pos_weight.value;
        if p == E::Real::ONE { p } else { (p - E::Real::ONE).fma(y, E::Real::ONE) }
    }

    /// e^−|x|.
    #[inline(always)]
    fn exp_of_magnitude(x: E::Real) -> E::Real {
        exp(-x.magnitude())
    }
}

impl<E: Element> Pairwise<E::Real> for Bce<E> {
    #[inline(always)]
    fn new(args: &PairwiseArgs) -> Self {
        let of = |which: usize| Weight { at: args.weights[which], value: E::Real::ONE };
        Bce { weight: of(weights::WEIGHT), pos_weight: of(weights::POS_WEIGHT) }
    }

    #[inline(always)]
    unsafe fn of_row(self, row: u64) -> Self {
        // SAFETY: the caller's condition.
        unsafe { Bce { weight: self.weight.of_row(row), pos_weight: self.pos_weight.of_row(row) } }
    }

    #[inline(always)]
    unsafe fn of_col(self, col: u64) -> Self {
        // SAFETY: the caller's condition.
        unsafe { Bce { weight: self.weight.of_col(col), pos_weight: self.pos_weight.of_col(col) } }
    }

    #[inline(always)]
    fn term<const PLAIN: bool>(self, x: E::Real, y: E::Real) -> [E::Real; 2] {
        let (p, log_weight) = (self.pos_weight.value, self.log_weight(y));
        let of_target = if x > E::Real::ZERO { E::Real::ONE - y } else { -(p * y) } * x;
        let term = log_weight.fma(ln_1p(Self::exp_of_magnitude(x)), of_target);
        // PyTorch's formula at −∞, where that above is 0 · ∞.
        let at_infinity = (E::Real::ONE - y) * x - log_weight * x;
        let term = if x == E::Real::NEG_INFINITY { at_infinity } else { term };
        [self.weight.value, term]
    }

    /// q σ(x) − p y, as (1 − y) − q σ(−x) for x above 0.
    #[inline(always)]
    fn grad_input<const PLAIN: bool>(self, x: E::Real, y: E::Real, scale: E::Real) -> E::Real {
        let (p, e) = (self.pos_weight.value, Self::exp_of_magnitude(x));
        let tail = self.log_weight(y) * e.over_plain(E::Real::ONE + e);
        let slope = if x > E::Real::ZERO { (E::Real::ONE - y) - tail } else { tail - p * y };
        slope * (self.weight.value * scale)
    }

    /// log(1 − σ(x)) − p log σ(x): −x without pos_weight.
    #[inline(always)]
    fn grad_target<const PLAIN: bool>(self, x: E::Real, _: E::Real, scale: E::Real) -> E::Real {
        let p = self.pos_weight.value;
        let of_input = if x > E::Real::ZERO { -x } else { -(p * x) };
        let tail = (p - E::Real::ONE) * ln_1p(Self::exp_of_magnitude(x));
        (of_input + tail) * (self.weight.value * scale)
    }
}

/// A factor that is the same for all elements, or one of each row, column or element.
#[derive(Clone, Copy)]
struct Weight<E: Element> {
    at: Broadcast,
    value: E::Real,
}

impl<E: Element> Weight<E> {
    /// That of a row's first element; if no stride says otherwise, of all.
    ///
    /// # Safety
    /// `at` is null, or the address of an `E` for each row that nothing writes.
    #[inline(always)]
    unsafe fn of_row(mut self, row: u64) -> Self {
        if self.at.start != 0 {
            self.at.start += row * self.at.row_stride * size_of::<E>() as u64;
            // SAFETY: the caller's condition.
            self.value = unsafe { load(self.at.start as *const E) }.widen();
        }
        self
    }

    /// That of an element of the row.
    ///
    /// # Safety
    /// As [`of_row`](Self::of_row), with an `E` for each column where the stride of columns is not
    /// 0.
    #[inline(always)]
    unsafe fn of_col(mut self, col: u64) -> Self {
        if self.at.col_stride != 0 {
            let at = (self.at.start as *const E).wrapping_add(col as usize);
            // SAFETY: the caller's condition.
            self.value = unsafe { load(at) }.widen();
        }
        self
    }
}
