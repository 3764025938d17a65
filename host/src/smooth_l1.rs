//! Smooth L1.

use crate::error::{Error, Result};
use crate::pairwise::{self, Kernels, Pairwise};
use crate::reduction::{ElementwiseReduction, Mean};

static KERNELS: Kernels = pairwise::kernels!(smooth_l1, 512 threads);

/// Smooth L1 of the differences d = x − t of an input and a target of one shape: d²/(2β) where
/// |d| < β and |d| − β/2 beyond, reduced; |d| for β = 0. The gradient of x is d/β, clamped to
/// [−1, 1] (for β = 0 the sign of d, 0 at 0), multiplied by the upstream gradient and divided as
/// the loss is; the target's gradient is its negative. Like PyTorch's `torch.nn.SmoothL1Loss`,
/// except that a NaN also has a gradient of NaN for β = 0.
///
/// Arithmetic, sums and errors are as for [`Mse`](crate::Mse), and
/// [`InvalidOption`](crate::Error::InvalidOption) if β is negative or NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct SmoothL1<R = Mean> {
    /// Where the loss turns from squares to magnitudes; not negative.
    pub beta: f64,
    /// How the terms are reduced.
    pub reduction: R,
}

impl SmoothL1 {
    /// The terms' mean; see [`reduction`](Self::reduction).
    pub const fn new(beta: f64) -> Self {
        SmoothL1 { beta, reduction: Mean }
    }
}

impl<R> SmoothL1<R> {
    /// The loss with another β.
    pub fn beta(self, beta: f64) -> Self {
        SmoothL1 { beta, ..self }
    }

    /// The loss with another reduction.
    pub fn reduction<Q: ElementwiseReduction>(self, reduction: Q) -> SmoothL1<Q> {
        SmoothL1 { beta: self.beta, reduction }
    }
}

impl Default for SmoothL1 {
    fn default() -> Self {
        SmoothL1::new(1.0)
    }
}

impl<R: Copy> SmoothL1<R> {
    fn pairwise(&self) -> Result<Pairwise<'_, R>> {
        let (option, expected, got) = ("beta", "a number that is not negative", self.beta);
        if got.is_nan() || got < 0.0 {
            return Err(Error::InvalidOption { option, expected, got: got.to_string() });
        }
        Ok(Pairwise { parameter: self.beta, ..Pairwise::new(&KERNELS, self.reduction) })
    }
}

pairwise::methods!(SmoothL1<R>, "smooth L1 loss", ElementwiseReduction);
