//! Smooth L1 loss of d = x − t: d²/(2β) for |d| < β, and |d| − β/2 otherwise, which is |d| for β =
//! 0.

use crate::abi::PairwiseArgs;
use crate::element::Real;
use crate::pairwise::Pairwise;

#[derive(Clone, Copy)]
pub(crate) struct SmoothL1<R> {
    beta: R,
}

impl<R: Real> Pairwise<R> for SmoothL1<R> {
    const EARLY_SCALES: bool = false;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(args: &PairwiseArgs) -> Self {
        SmoothL1 { beta: R::from_f64(args.parameter) }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn term<const PLAIN: bool>(self, x: R, t: R) -> [R; 2] {
        let d = (x - t).magnitude();
        let term =
            if d < self.beta { R::HALF * d * d / self.beta } else { d - R::HALF * self.beta };
        [term, R::ONE]
    }

    /// The derivative is d/β clamped to −1..=1. For β = 0 it is the sign of d, and 0 for d = 0. NaN
    /// stays NaN.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_input<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        let d = x - t;
        let slope = if d.magnitude() < self.beta {
            d / self.beta
        } else if d > R::ZERO {
            R::ONE
        } else if d < R::ZERO {
            -R::ONE
        } else {
            d
        };
        slope * scale
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_target<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        <Self as Pairwise<R>>::grad_input::<PLAIN>(self, x, t, -scale)
    }
}
