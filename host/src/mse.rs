//! Mean squared error.

use crate::error::Result;
use crate::pairwise::{self, Kernels, Pairwise};
use crate::reduction::{ElementwiseReduction, Mean, Sum, Unreduced};

static KERNELS: Kernels = pairwise::kernels!(mse, 512 threads);

/// Mean squared error of an input x and a target t of one shape: (x − t)², reduced. The gradient of
/// x is 2 (x − t), times what arrives from upstream, divided as the loss is; the target's is its
/// negative. As PyTorch's `torch.nn.MSELoss`.
///
/// f16, bf16 and f32 tensors are differenced and squared in f32, f64 tensors in f64; a thread's sum
/// is of that type, all further sums f64. A mean of nothing is NaN.
///
/// Errors of every method: [`Shape`](crate::Error::Shape), [`Stride`](crate::Error::Stride),
/// [`NullPointer`](crate::Error::NullPointer), [`Misaligned`](crate::Error::Misaligned),
/// [`Device`](crate::Error::Device), [`Overlap`](crate::Error::Overlap) and
/// [`NoGradient`](crate::Error::NoGradient) name the argument; nothing is queued then. The first
/// call on a device that needs a kernel has the driver compile it, which can fail with
/// [`UnsupportedPtx`](crate::Error::UnsupportedPtx).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct Mse<R = Mean> {
    /// What becomes of the squares.
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
