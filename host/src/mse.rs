//! Mean squared error.

use crate::error::Result;
use crate::pairwise::{self, Kernels, Pairwise};
use crate::reduction::{ElementwiseReduction, Mean, Sum, Unreduced};

static KERNELS: Kernels = pairwise::kernels!(mse, 512 threads);

/// Mean squared error of an input x and a target t of one shape: (x − t)², reduced. The gradient of
/// x is 2 (x − t), multiplied by the upstream gradient and divided as the loss is; the target's
/// gradient is its negative. Like PyTorch's `torch.nn.MSELoss`.
///
/// Differences and squares are computed in f32 for f16, bf16 and f32 tensors and in f64 for f64
/// tensors. A thread's sum has that type, all further sums are f64. The mean of an empty tensor is
/// NaN.
///
/// Errors of every method: [`Shape`](crate::Error::Shape), [`Stride`](crate::Error::Stride),
/// [`NullPointer`](crate::Error::NullPointer), [`Misaligned`](crate::Error::Misaligned),
/// [`Device`](crate::Error::Device), [`Overlap`](crate::Error::Overlap) and
/// [`NoGradient`](crate::Error::NoGradient) name the argument, and nothing has been queued. At the
/// first call on a device that needs a kernel, the driver compiles the kernel, which can fail with
/// [`UnsupportedPtx`](crate::Error::UnsupportedPtx).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct Mse<R = Mean> {
    /// How the squares are reduced.
    pub reduction: R,
}

impl Mse {
    /// The squares' mean; see [`reduction`](Self::reduction).
    pub const fn new() -> Self {
        Mse { reduction: Mean }
    }

    /// The same as [`new`](Self::new).
    pub const fn mean() -> Self {
        Self::new()
    }

    /// The squares' sum.
    pub const fn sum() -> Mse<Sum> {
        Mse { reduction: Sum }
    }

    /// The squares themselves.
    pub const fn none() -> Mse<Unreduced> {
        Mse { reduction: Unreduced }
    }
}

impl<R> Mse<R> {
    /// The loss with another reduction.
    pub fn reduction<Q: ElementwiseReduction>(self, reduction: Q) -> Mse<Q> {
        Mse { reduction }
    }
}

impl<R: Copy> Mse<R> {
    fn pairwise(&self) -> Result<Pairwise<'_, R>> {
        Ok(Pairwise::new(&KERNELS, self.reduction))
    }
}

pairwise::methods!(Mse<R>, "squared error", ElementwiseReduction);
