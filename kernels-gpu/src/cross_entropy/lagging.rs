//! Sums of exponentials relative to a center that lags behind the largest logit.
//!
//! Any logit near the largest can be subtracted, as long as the sum is rescaled to the largest at
//! the end. So exponentials need not wait for the maximum, and rows whose parts have similar maxima
//! need no pass for it. In f64 that gains more than it costs: a maximum takes three instructions
//! per element, one of which runs on the f64 units.

use super::mode;
use crate::element::{Element, Real};
use cuda_std::math::max_or_nan_f32_bits;
use cuda_std::memory::Vec16;

/// Whether sums are relative to a lagging center, where the arithmetic is in `R`.
pub(crate) const fn lags<R>(mode: u32) -> bool {
    size_of::<R>() == 8 && mode != mode::LOG_PROB
}

/// How far the center may be from the largest logit. The difference of a logit from the center is
/// rounded by up to 2⁻⁵³ of this, while the difference from the largest logit may be exact. The
/// value was chosen for accuracy, not for speed.
const LAG: f64 = 16.0;

/// If the largest logit is below this, its [top](Element::raise_top) differs from it by less than
/// 1/16, and a sum relative to the top is as good as one relative to the logit.
const FAR: f64 = 65_536.0;

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
pub(crate) struct Lagging<R> {
    center: R,
    top: u32,
}

impl<R: Real> Lagging<R> {
    /// No logit yet. The center is the number with this [top](Real::to_top); 0 if it is none.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(near: u32) -> Self {
        const SIGN: u32 = 1 << 31;
        let is_number = near & !SIGN < f32::INFINITY.to_bits();
        Lagging { center: R::from_top(if is_number { near } else { 0 }), top: R::NO_TOP }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn center(&self) -> R {
        self.center
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
        let (apart, lag) = (self.max() - self.center, R::from_f64(LAG));
        apart <= lag && apart >= -lag
    }

    /// Whether a sum relative to the center can be rescaled to [`max`](Self::max).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_valid(&self) -> bool {
        self.is_near() && is_near_top(self.max())
    }

    /// Makes the largest logit the center. Returns the old center minus the new one: sums are
    /// rescaled by the exponential of this difference.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn recenter(&mut self) -> R {
        let apart = self.center - self.max();
        self.center = self.max();
        apart
    }
}
