//! Sums of exponentials relative to a center that lags behind the largest logit.
//!
//! Exponentials can be relative to any number near that of the largest logit, as long as the sum is
//! rescaled at the end. So they need not wait for the maximum, and rows whose parts have similar
//! maxima need no pass for it. In f64 that gains more than it costs: a maximum takes three
//! instructions per element, one of which runs on the f64 units.
//!
//! The number is a power of two ([`Real::near`]), so the digits of a sum do not depend on it.

use super::mode;
use crate::element::{Element, Real};
use cuda_std::math::max_or_nan_f32_bits;
use cuda_std::memory::Vec16;

/// Whether sums are relative to a lagging center, where the arithmetic is in `R`.
pub(crate) const fn lags<R>(mode: u32) -> bool {
    size_of::<R>() == 8 && mode != mode::LOG_PROB
}

/// How far the center may be from the largest logit; chosen, not searched for. From about 680 on,
/// sums would overflow. The exponential of a logit may count as 0 if the logit is 709 below the
/// center, which is 645 below the largest logit at worst.
const LAG: f64 = 64.0;

/// If the largest logit is below this, its [top](Element::raise_top) differs from it by less than
/// 1/64, and a sum relative to the top is as good as one relative to the logit. It is also the
/// limit of [`Real::near`].
const FAR: f64 = 16_384.0;

/// A sum Σ exp(x − m) − 1 below this has lost digits that the loss needs: it was computed as the
/// difference of a sum near 1 and 1.
pub(crate) const CERTAIN: f64 = 0.125;

/// Whether sums may be relative to `max`, a number with the [top](Real::to_top) of a row's largest
/// logit: whether it is near enough to that logit. False if a logit is not finite.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn is_near_top<R: Real>(max: R) -> bool {
    max.magnitude() < R::from_f64(FAR)
}

/// A center, and the largest logit so far.
#[derive(Clone, Copy)]
pub(crate) struct Lagging<R: Real> {
    /// The number near the exponential of the center that sums are relative to.
    near: R::Near,
    top: u32,
}

impl<R: Real> Lagging<R> {
    /// No logit yet. The center is near the number with this [top](Real::to_top), but 0 if that is
    /// not [near enough](is_near_top) to a logit.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(near: u32) -> Self {
        let center = R::from_top(near);
        let center = if is_near_top(center) { center } else { R::ZERO };
        Lagging { near: R::near(center), top: R::NO_TOP }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn center(&self) -> R {
        R::center_of(self.near)
    }

    /// What the exponentials of logits are relative to.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn near(&self) -> R::Near {
        self.near
    }

    /// A number less than 1/16 from the largest logit, if the sum is [valid](Self::is_valid).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn max(&self) -> R {
        R::from_top(self.top)
    }

    /// Whether there is no logit yet, or only logits whose top is the one that means "none".
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_empty(&self) -> bool {
        self.top == R::NO_TOP
    }

    /// A logit that raises no maximum, and whose exponential is negligible beside that of any other
    /// logit.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn padding<E: Element<Real = R>>() -> E {
        E::narrow(R::from_top(R::NO_TOP))
    }

    /// Adds logits.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn add<E: Element<Real = R>, const N: usize>(&mut self, x: [Vec16; N]) {
        self.top = E::raise_top(self.top, x);
    }

    /// Adds a logit.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn add_one(&mut self, x: R) {
        self.top = max_or_nan_f32_bits(self.top, x.to_top());
    }

    /// The same with the largest logit of several parts, which have the same center. `over` finds
    /// the largest of their tops.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn over(self, over: impl FnOnce(u32) -> u32) -> Self {
        Lagging { top: over(self.top), ..self }
    }

    /// Whether the largest logit is near the center. If not, or if a logit was not finite, a sum
    /// relative to the center is wrong.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_near(&self) -> bool {
        let (apart, lag) = (self.max() - self.center(), R::from_f64(LAG));
        apart <= lag && apart >= -lag
    }

    /// Whether a sum relative to the center can be rescaled to [`max`](Self::max).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_valid(&self) -> bool {
        self.is_near() && is_near_top(self.max())
    }

    /// What a sum is multiplied by to be relative to [`max`](Self::max).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn unit(&self) -> R {
        R::near_over_exp(self.near, self.max())
    }

    /// Moves the center to the largest logit so far, unless a sum relative to that would not be
    /// valid. Returns what sums are multiplied by for that, and the old center minus the new one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn recenter(&mut self) -> (R, R) {
        let old = *self;
        if is_near_top(self.max()) {
            self.near = R::near(self.max());
        }
        (R::near_over(old.near, self.near), old.center() - self.center())
    }
}
