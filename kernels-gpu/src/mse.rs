//! Squared error: (x − t)².

use crate::abi::PairwiseArgs;
use crate::element::Real;
use crate::pairwise::Pairwise;

#[derive(Clone, Copy)]
pub(crate) struct Mse;

impl<R: Real> Pairwise<R> for Mse {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(_: &PairwiseArgs) -> Self {
        Mse
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn term<const PLAIN: bool>(self, x: R, t: R) -> [R; 2] {
        let d = x - t;
        [d, d]
    }

    /// The derivative is 2 (x − t). The scale is doubled, not the difference, which may be so large
    /// that it would overflow.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_input<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        (x - t) * (scale + scale)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn grad_target<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R {
        (t - x) * (scale + scale)
    }
}
