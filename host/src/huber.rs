//! Huber's loss.

use crate::error::{Error, Result};
use crate::pairwise::{self, Kernels, Pairwise};
use crate::reduction::{ElementwiseReduction, Mean};

static KERNELS: Kernels = pairwise::kernels!(huber, 512 threads);

/// Huber's loss of the differences d = x − t of an input and a target of one shape: d²/2 where |d|
/// ≤ δ and δ (|d| − δ/2) beyond, reduced. The gradient of x is d, clamped to [−δ, δ], multiplied by
/// the upstream gradient and divided as the loss is; the target's gradient is its negative. Like
/// PyTorch's `torch.nn.HuberLoss`.
///
/// Arithmetic, sums and errors are as for [`Mse`](crate::Mse), and
/// [`InvalidOption`](crate::Error::InvalidOption) if δ is not positive.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct Huber<R = Mean> {
    /// Where the loss turns from squares to magnitudes; positive.
    pub delta: f64,
    /// How the terms are reduced.
    pub reduction: R,
}

impl Huber {
    /// The terms' mean; see [`reduction`](Self::reduction).
    pub const fn new(delta: f64) -> Self {
        Huber { delta, reduction: Mean }
    }
}

impl<R> Huber<R> {
    /// The loss with another δ.
    pub fn delta(self, delta: f64) -> Self {
        Huber { delta, ..self }
    }

    /// The loss with another reduction.
    pub fn reduction<Q: ElementwiseReduction>(self, reduction: Q) -> Huber<Q> {
        Huber { delta: self.delta, reduction }
    }
}

impl Default for Huber {
    fn default() -> Self {
        Huber::new(1.0)
    }
}

impl<R: Copy> Huber<R> {
    fn pairwise(&self) -> Result<Pairwise<'_, R>> {
        let (option, expected, got) = ("delta", "a positive number", self.delta);
        if got.is_nan() || got <= 0.0 {
            return Err(Error::InvalidOption { option, expected, got: got.to_string() });
        }
        Ok(Pairwise { parameter: self.delta, ..Pairwise::new(&KERNELS, self.reduction) })
    }
}

pairwise::methods!(Huber<R>, "Huber loss", ElementwiseReduction);
