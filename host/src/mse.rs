//! Mean squared error.

use crate::error::Result;
use crate::pairwise::{Kernels, Pairwise};
use crate::reduction::{ElementwiseReduction, Mean, Sum};
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{Element, View, ViewMut};

static KERNELS: Kernels = Kernels {
    forward: &kernels_gpu::MSE_FORWARD,
    backward: &kernels_gpu::MSE_BACKWARD,
    forward_backward: &kernels_gpu::MSE_FORWARD_BACKWARD,
};

/// Mean squared error of an input x and a target t of one shape: Σ (x − t)², summed or divided by the
/// number of elements. The gradient of x is 2 (x − t), times what arrives from upstream, divided
/// likewise. As PyTorch's `torch.nn.MSELoss`.
///
/// Values are differenced and squared in f32 for f32 tensors; a thread's sum is f32, all further sums
/// f64. A mean of nothing is NaN.
///
/// Errors of every method: [`Shape`](crate::Error::Shape), [`NullPointer`](crate::Error::NullPointer),
/// [`Misaligned`](crate::Error::Misaligned), [`Device`](crate::Error::Device) and
/// [`Overlap`](crate::Error::Overlap) name the argument; nothing is queued then. The first use of an
/// element type on a device compiles its kernels, which can fail with
/// [`UnsupportedPtx`](crate::Error::UnsupportedPtx).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mse<R = Mean> {
    /// What becomes of the squares.
    pub reduction: R,
}

impl Mse<Mean> {
    /// The squares' mean.
    pub const fn mean() -> Self {
        Mse { reduction: Mean }
    }
}

impl Mse<Sum> {
    /// The squares' sum.
    pub const fn sum() -> Self {
        Mse { reduction: Sum }
    }
}

impl<R: ElementwiseReduction> Mse<R> {
    fn pairwise(self) -> Pairwise<R> {
        Pairwise { kernels: &KERNELS, reduction: self.reduction }
    }

    /// The loss of `input` and `target`, of one shape.
    ///
    /// # Errors
    /// See [`Mse`]; [`Error::Driver`](crate::Error::Driver) where memory for the loss is short.
    pub fn forward<'a, T: Element>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<View<'a, T>>,
        stream: &Stream,
    ) -> Result<Loss<R::Value<T>>> {
        self.pairwise().forward(input.into(), target.into(), stream)
    }

    /// As [`forward`](Self::forward), written to `loss`, of shape `[]`. Allocates nothing.
    ///
    /// # Errors
    /// See [`Mse`].
    pub fn forward_into<'a, T: Element>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<View<'a, T>>,
        loss: impl Into<ViewMut<'a, R::Value<T>>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        self.pairwise().forward_into(input.into(), target.into(), loss.into(), workspace, stream)
    }

    /// The gradient of `input`, of its shape, from `upstream`, the gradient of the loss, of shape `[]`.
    ///
    /// # Errors
    /// See [`Mse`]; [`Error::Driver`](crate::Error::Driver) where memory for the gradient is short.
    pub fn backward<'a, T: Element>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<View<'a, T>>,
        upstream: impl Into<View<'a, R::Value<T>>>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        self.pairwise().backward(input.into(), target.into(), upstream.into(), stream)
    }

    /// As [`backward`](Self::backward), written to `grad_input`, of the shape of `input`. Allocates
    /// nothing.
    ///
    /// # Errors
    /// See [`Mse`].
    pub fn backward_into<'a, T: Element>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<View<'a, T>>,
        upstream: impl Into<View<'a, R::Value<T>>>,
        grad_input: impl Into<ViewMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, target, upstream) = (input.into(), target.into(), upstream.into());
        self.pairwise().backward_into(input, target, upstream, grad_input.into(), stream)
    }

    /// The loss, and the gradient of `input` for an upstream gradient of 1, in one pass over memory.
    ///
    /// # Errors
    /// See [`Mse`]; [`Error::Driver`](crate::Error::Driver) where memory for the results is short.
    pub fn forward_backward<'a, T: Element>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<View<'a, T>>,
        stream: &Stream,
    ) -> Result<(Loss<R::Value<T>>, Tensor<T>)> {
        self.pairwise().forward_backward(input.into(), target.into(), stream)
    }

    /// As [`forward_backward`](Self::forward_backward), written to `loss`, of shape `[]`, and
    /// `grad_input`, of the shape of `input`. Allocates nothing.
    ///
    /// # Errors
    /// See [`Mse`].
    pub fn forward_backward_into<'a, T: Element>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<View<'a, T>>,
        loss: impl Into<ViewMut<'a, R::Value<T>>>,
        grad_input: impl Into<ViewMut<'a, T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let (input, target, loss) = (input.into(), target.into(), loss.into());
        self.pairwise().forward_backward_into(
            input,
            target,
            loss,
            grad_input.into(),
            workspace,
            stream,
        )
    }
}
