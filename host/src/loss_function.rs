//! What all losses have in common.

use crate::element::Float;
use crate::error::Result;
use crate::grads::Grads;
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{View, ViewMut};

/// A loss of inputs of `T`, for code that is generic over losses. Each method does what the loss's
/// own method of that name does, with the same errors.
///
/// ```no_run
/// use fused_loss::{Error, Float, LossFunction, Stream, Tensor};
///
/// fn loss_and_gradient<T: Float, F: LossFunction<T>>(
///     function: &F,
///     input: &Tensor<T>,
///     target: &Tensor<T>,
///     stream: &Stream,
/// ) -> Result<(Vec<F::Value>, Vec<T>), Error> {
///     let (loss, gradient) = function.forward_backward(input, target, stream)?;
///     Ok((loss.to_vec()?, gradient.to_vec()?))
/// }
/// ```
pub trait LossFunction<T: Float> {
    /// What the input is compared with. Every loss accepts a tensor like the input.
    type Target<'a>: Copy + From<View<'a, T>> + From<&'a Tensor<T>>;

    /// The element type of the loss.
    type Value: Float;

    /// The loss of `input` and `target`.
    ///
    /// # Errors
    /// Those of the loss.
    fn forward<'i, 't>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Self::Target<'t>>,
        stream: &Stream,
    ) -> Result<Loss<Self::Value>>;

    /// As [`forward`](Self::forward), written to `loss`. Allocates nothing.
    ///
    /// # Errors
    /// Those of the loss.
    fn forward_into<'i, 't, 'o>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Self::Target<'t>>,
        loss: impl Into<ViewMut<'o, Self::Value>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()>;

    /// The loss, and the gradient of `input` for an upstream gradient of ones.
    ///
    /// # Errors
    /// Those of the loss.
    fn forward_backward<'i, 't>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Self::Target<'t>>,
        stream: &Stream,
    ) -> Result<(Loss<Self::Value>, Tensor<T>)>;

    /// The loss and the gradients that `grads` asks for, times its upstream gradient if it has one.
    /// Allocates nothing.
    ///
    /// # Errors
    /// Those of the loss.
    fn forward_backward_into<'i, 't, 'o>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Self::Target<'t>>,
        loss: impl Into<ViewMut<'o, Self::Value>>,
        grads: impl Into<Grads<'o, T, Self::Value>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()>;
}
