//! Mean squared error: (x − t)².

use crate::abi::PairwiseArgs;
use crate::element::Real;
use crate::pairwise::Pairwise;

#[derive(Clone, Copy)]
pub(crate) struct Mse;

impl<R: Real> Pairwise<R> for Mse {
    #[inline(always)]
    fn new(_: &PairwiseArgs) -> Self {
        Mse
    }

    #[inline(always)]
    fn term<const PLAIN: bool>(self, x: R, t: R) -> [R; 2] {
        let d = x - t;
        [d, d]
    }

    /// 2 (x − t), the 2 on the scale's side: the difference may be near the largest number.
    #[inline(always)]
    fn grad_input<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        (x - t) * (scale + scale)
    }

    #[inline(always)]
    fn grad_target<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        (t - x) * (scale + scale)
    }
}
