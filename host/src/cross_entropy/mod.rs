//! Cross-entropy, and the parts of its calls that other functions of rows of logits use too.

mod call;
mod kernels;
mod options;
mod queue;
mod saved;
mod targets;

pub use options::CrossEntropy;
pub use saved::Saved;
pub use targets::{Classes, Targets};

pub(crate) use call::Arguments;
pub(crate) use options::check_input;
pub(crate) use queue::launch_rows;
pub(crate) use saved::Origin;

use crate::element::Float;
use crate::error::Result;
use crate::grads::Grads;
use crate::loss_function::LossFunction;
use crate::reduction::SampleReduction;
use crate::shape::Shape;
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{View, ViewMut};
use call::Call;

impl<T: Float, R: SampleReduction> CrossEntropy<'_, T, R> {
    /// The loss of the logits `input` and of `target`.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the
    /// loss is short.
    pub fn forward<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        stream: &Stream,
    ) -> Result<Loss<T::Loss>> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut loss = self.new_loss(input.shape, stream)?;
        let call = Call { loss: Some((&mut loss).into()), ..Call::new(input, target) };
        self.queue(call, stream.workspace(), stream)?;
        Ok(loss)
    }

    /// As [`forward`](Self::forward), written to `loss`, which has the reduction's shape. Allocates
    /// nothing. Only a [`Loss`] records which target is not a class; other memory does not.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        self.queue(Call { loss: Some(loss.into()), ..call }, workspace, stream)
    }

    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the
    /// results is short.
    pub fn forward_saving<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Saved<T::Loss>)> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut loss = self.new_loss(input.shape, stream)?;
        let mut save = Saved::uninitialised(stream.gpu(), input.shape)?;
        let call = Call {
            loss: Some((&mut loss).into()),
            save: Some(&mut save),
            ..Call::new(input, target)
        };
        self.queue(call, stream.workspace(), stream)?;
        Ok((loss, save))
    }

    /// As [`forward_saving`](Self::forward_saving), written to `loss` and `saved`. Allocates
    /// nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_saving_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        saved: &'a mut Saved<T::Loss>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let call = Call { loss: Some(loss.into()), save: Some(saved), ..call };
        self.queue(call, workspace, stream)
    }

    /// The gradient of `input`, in its shape. `upstream` is the gradient of the loss, in the loss's
    /// shape, and `saved` comes from [`forward_saving`](Self::forward_saving) of the same input and
    /// target.
    ///
    /// # Errors
    /// [`Error::Saved`](crate::Error::Saved) if another forward pass, or none, has written `saved`.
    /// See [`CrossEntropy`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the
    /// gradient is short.
    pub fn backward<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        saved: &'a Saved<T::Loss>,
        upstream: impl Into<View<'a, T::Loss>>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut gradient = Tensor::uninitialised(stream.gpu(), input.shape, "gradient")?;
        let upstream = upstream.into();
        let call = Call {
            saved: Some(saved),
            grads: Some(Grads::input(&mut gradient).scaled_by(upstream)),
            ..Call::new(input, target)
        };
        self.queue(call, stream.workspace(), stream)?;
        Ok(gradient)
    }

    /// As [`backward`](Self::backward), with the gradients that `grads` asks for. The target has a
    /// gradient only if it is probabilities. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Saved`](crate::Error::Saved) if another forward pass, or none, has written `saved`.
    /// See [`CrossEntropy`]; [`Error::ClassGradient`](crate::Error::ClassGradient).
    pub fn backward_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        saved: &'a Saved<T::Loss>,
        upstream: impl Into<View<'a, T::Loss>>,
        grads: impl Into<Grads<'a, T, T::Loss>>,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let grads = Some(grads.into().scaled_by(upstream));
        self.queue(Call { saved: Some(saved), grads, ..call }, stream.workspace(), stream)
    }

    /// As [`backward`](Self::backward), written over `input`. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Saved`](crate::Error::Saved) if another forward pass, or none, has written `saved`.
    /// See [`CrossEntropy`].
    pub fn backward_in_place<'a>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        saved: &'a Saved<T::Loss>,
        upstream: impl Into<View<'a, T::Loss>>,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let grads = Some(Grads::none().scaled_by(upstream));
        let call = Call { saved: Some(saved), grads, in_place: true, ..call };
        self.queue(call, stream.workspace(), stream)
    }

    /// The loss, and the gradient of `input` for an upstream gradient of ones, in one pass over the
    /// logits.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the
    /// results is short.
    pub fn forward_backward<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Tensor<T>)> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut loss = self.new_loss(input.shape, stream)?;
        let mut gradient = Tensor::uninitialised(stream.gpu(), input.shape, "gradient")?;
        let call = Call {
            loss: Some((&mut loss).into()),
            grads: Some(Grads::input(&mut gradient)),
            ..Call::new(input, target)
        };
        self.queue(call, stream.workspace(), stream)?;
        Ok((loss, gradient))
    }

    /// The loss and the gradients that `grads` asks for, times its upstream gradient if it has one,
    /// in one pass over the logits. The target has a gradient only if it is probabilities.
    /// Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::ClassGradient`](crate::Error::ClassGradient).
    pub fn forward_backward_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        grads: impl Into<Grads<'a, T, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let call = Call { loss: Some(loss.into()), grads: Some(grads.into()), ..call };
        self.queue(call, workspace, stream)
    }

    /// The loss, and the gradient of `input` for an upstream gradient of ones written over it, in
    /// one pass over the logits. Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_backward_in_place<'a>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let (loss, grads) = (Some(loss.into()), Some(Grads::none()));
        self.queue(Call { loss, grads, in_place: true, ..call }, workspace, stream)
    }

    /// As [`forward_backward_in_place`](Self::forward_backward_in_place), with the gradient times
    /// `upstream`, which has the loss's shape. It can be the loss scale of mixed-precision
    /// training, for example.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_backward_in_place_scaled<'a>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        upstream: impl Into<View<'a, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let (loss, grads) = (Some(loss.into()), Some(Grads::none().scaled_by(upstream)));
        self.queue(Call { loss, grads, in_place: true, ..call }, workspace, stream)
    }

    /// Memory for a loss of `input`.
    fn new_loss(&self, input: Shape, stream: &Stream) -> Result<Loss<T::Loss>> {
        Loss::uninitialised(stream.gpu(), self.reduction.shape_of_samples(input))
    }
}

impl<T: Float, R: SampleReduction> LossFunction<T> for CrossEntropy<'_, T, R> {
    type Target<'a> = Targets<'a, T>;
    type Value = T::Loss;

    fn forward<'i, 't>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Targets<'t, T>>,
        stream: &Stream,
    ) -> Result<Loss<T::Loss>> {
        let (input, target): (View<'_, T>, Targets<'_, T>) = (input.into(), target.into());
        self.forward(input, target, stream)
    }

    fn forward_into<'i, 't, 'o>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Targets<'t, T>>,
        loss: impl Into<ViewMut<'o, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let (input, target): (View<'_, T>, Targets<'_, T>) = (input.into(), target.into());
        let loss: ViewMut<'_, T::Loss> = loss.into();
        self.forward_into(input, target, loss, workspace, stream)
    }

    fn forward_backward<'i, 't>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Targets<'t, T>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Tensor<T>)> {
        let (input, target): (View<'_, T>, Targets<'_, T>) = (input.into(), target.into());
        self.forward_backward(input, target, stream)
    }

    fn forward_backward_into<'i, 't, 'o>(
        &self,
        input: impl Into<View<'i, T>>,
        target: impl Into<Targets<'t, T>>,
        loss: impl Into<ViewMut<'o, T::Loss>>,
        grads: impl Into<Grads<'o, T, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let (input, target): (View<'_, T>, Targets<'_, T>) = (input.into(), target.into());
        let (loss, grads): (ViewMut<'_, T::Loss>, Grads<'_, T, T::Loss>) =
            (loss.into(), grads.into());
        self.forward_backward_into(input, target, loss, grads, workspace, stream)
    }
}
