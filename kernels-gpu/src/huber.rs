//! Huber loss of d = x − t: d²/2 for |d| ≤ δ, and δ (|d| − δ/2) for |d| > δ.

use crate::abi::PairwiseArgs;
use crate::element::Real;
use crate::pairwise::Pairwise;

#[derive(Clone, Copy)]
pub(crate) struct Huber<R> {
    delta: R,
}

impl<R: Real> Pairwise<R> for Huber<R> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(args: &PairwiseArgs) -> Self {
        Huber { delta: R::from_f64(args.parameter) }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn term<const PLAIN: bool>(self, x: R, t: R) -> [R; 2] {
        let d = (x - t).magnitude();
        // Two separate cases rather than a shared formula: for infinite d and δ, d − δ/2 is NaN.
        if d > self.delta { [self.delta, d - R::HALF * self.delta] } else { [d, R::HALF * d] }
    }

    /// The derivative is d clamped to −δ..=δ; NaN stays NaN.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_input<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        let d = x - t;
        let clamped = if d > self.delta {
            self.delta
        } else if d < -self.delta {
            -self.delta
        } else {
            d
        };
        clamped * scale
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_target<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        <Self as Pairwise<R>>::grad_input::<PLAIN>(self, x, t, -scale)
    }
}
