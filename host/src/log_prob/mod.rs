//! Log-probabilities of classes, and entropies.

mod call;
mod options;
mod upstreams;

pub use options::LogProb;
pub use upstreams::Upstreams;

use crate::cross_entropy::{Classes, Saved};
use crate::element::Float;
use crate::error::Result;
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{View, ViewMut};
use call::Call;

/// All methods take the logits as `input`, whose rows may have gaps between them, and the class of
/// each row as `target`.
impl LogProb {
    /// The log-probability of each row's class, and the entropy of each row.
    ///
    /// # Errors
    /// See [`LogProb`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the results
    /// is short.
    pub fn forward<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Loss<T::Loss>)> {
        let call = Call::<T>::new(input.into().memory, target.into());
        self.check(&call, stream)?;
        let (mut log_prob, mut entropy) = call.new_results(stream)?;
        let results = Some([(&mut log_prob).into(), (&mut entropy).into()]);
        self.queue(Call { results, ..call }, stream.workspace(), stream)?;
        Ok((log_prob, entropy))
    }

    /// As [`forward`](Self::forward), written to the two `results`: the log-probabilities and the
    /// entropies. Allocates nothing. A class out of range is reported only by a [`Loss`]; other
    /// memory has NaN for its row.
    ///
    /// # Errors
    /// See [`LogProb`].
    pub fn forward_into<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        results: (impl Into<ViewMut<'a, T::Loss>>, impl Into<ViewMut<'a, T::Loss>>),
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::<T>::new(input.into().memory, target.into());
        let results = Some([results.0.into(), results.1.into()]);
        self.queue(Call { results, ..call }, workspace, stream)
    }

    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs.
    ///
    /// # Errors
    /// See [`LogProb`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the results
    /// is short.
    // A caller takes the tuple apart, so a name for it would only be one more thing to look up.
    #[allow(clippy::type_complexity)]
    pub fn forward_saving<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Loss<T::Loss>, Saved<T::Loss>)> {
        let call = Call::<T>::new(input.into().memory, target.into());
        self.check(&call, stream)?;
        let (mut log_prob, mut entropy) = call.new_results(stream)?;
        let mut save = Saved::uninitialised(stream.gpu(), call.input.shape)?;
        let results = Some([(&mut log_prob).into(), (&mut entropy).into()]);
        let call = Call { results, save: Some(&mut save), ..call };
        self.queue(call, stream.workspace(), stream)?;
        Ok((log_prob, entropy, save))
    }

    /// As [`forward_saving`](Self::forward_saving), written to the two `results` and `saved`.
    /// Allocates nothing.
    ///
    /// # Errors
    /// See [`LogProb`].
    pub fn forward_saving_into<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        results: (impl Into<ViewMut<'a, T::Loss>>, impl Into<ViewMut<'a, T::Loss>>),
        saved: &'a mut Saved<T::Loss>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::<T>::new(input.into().memory, target.into());
        let results = Some([results.0.into(), results.1.into()]);
        self.queue(Call { results, save: Some(saved), ..call }, workspace, stream)
    }

    /// The gradient of `input`, in its shape, from the upstream gradients of the results. `saved`
    /// comes from [`forward_saving`](Self::forward_saving) of the same input and classes.
    ///
    /// # Errors
    /// [`Error::Saved`](crate::Error::Saved) if another forward pass, or none, has written `saved`.
    /// See [`LogProb`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the
    /// gradient is short.
    pub fn backward<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        saved: &'a Saved<T::Loss>,
        upstreams: Upstreams<'a, T::Loss>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let call = Call::<T>::new(input.into().memory, target.into());
        self.check(&call, stream)?;
        let mut gradient = Tensor::uninitialised(stream.gpu(), call.input.shape, "gradient")?;
        let grads = Some((upstreams, Some((&mut gradient).into())));
        let call = Call { saved: Some(saved), grads, ..call };
        self.queue(call, stream.workspace(), stream)?;
        Ok(gradient)
    }

    /// As [`backward`](Self::backward), written to `gradient`. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Saved`](crate::Error::Saved) if another forward pass, or none, has written `saved`.
    /// See [`LogProb`].
    pub fn backward_into<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        saved: &'a Saved<T::Loss>,
        upstreams: Upstreams<'a, T::Loss>,
        gradient: impl Into<ViewMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::<T>::new(input.into().memory, target.into());
        let grads = Some((upstreams, Some(gradient.into())));
        self.queue(Call { saved: Some(saved), grads, ..call }, stream.workspace(), stream)
    }

    /// As [`backward`](Self::backward), written over `input`. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Saved`](crate::Error::Saved) if another forward pass, or none, has written `saved`.
    /// See [`LogProb`].
    pub fn backward_in_place<'a, T: Float>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Classes<'a>>,
        saved: &'a Saved<T::Loss>,
        upstreams: Upstreams<'a, T::Loss>,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::<T>::new(input.into().memory, target.into());
        let call = Call { saved: Some(saved), grads: Some((upstreams, None)), ..call };
        self.queue(call, stream.workspace(), stream)
    }

    /// The log-probability of each row's class, the entropy of each row, and the gradient of
    /// `input` from the gradients of the two, in one pass over the logits.
    ///
    /// # Errors
    /// See [`LogProb`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the results
    /// is short.
    // A caller takes the tuple apart, so a name for it would only be one more thing to look up.
    #[allow(clippy::type_complexity)]
    pub fn forward_backward<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        upstreams: Upstreams<'a, T::Loss>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Loss<T::Loss>, Tensor<T>)> {
        let call = Call::<T>::new(input.into().memory, target.into());
        self.check(&call, stream)?;
        let (mut log_prob, mut entropy) = call.new_results(stream)?;
        let mut gradient = Tensor::uninitialised(stream.gpu(), call.input.shape, "gradient")?;
        let results = Some([(&mut log_prob).into(), (&mut entropy).into()]);
        let grads = Some((upstreams, Some((&mut gradient).into())));
        self.queue(Call { results, grads, ..call }, stream.workspace(), stream)?;
        Ok((log_prob, entropy, gradient))
    }

    /// As [`forward_backward`](Self::forward_backward), written to the two `results` and
    /// `gradient`. Allocates nothing.
    ///
    /// # Errors
    /// See [`LogProb`].
    // Each argument is a separate tensor of the caller.
    #[allow(clippy::too_many_arguments)]
    pub fn forward_backward_into<'a, T: Float>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Classes<'a>>,
        results: (impl Into<ViewMut<'a, T::Loss>>, impl Into<ViewMut<'a, T::Loss>>),
        upstreams: Upstreams<'a, T::Loss>,
        gradient: impl Into<ViewMut<'a, T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::<T>::new(input.into().memory, target.into());
        let results = Some([results.0.into(), results.1.into()]);
        let grads = Some((upstreams, Some(gradient.into())));
        self.queue(Call { results, grads, ..call }, workspace, stream)
    }

    /// As [`forward_backward`](Self::forward_backward), the results written to `results` and the
    /// gradient over `input`. Allocates nothing.
    ///
    /// # Errors
    /// See [`LogProb`].
    pub fn forward_backward_in_place<'a, T: Float>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Classes<'a>>,
        results: (impl Into<ViewMut<'a, T::Loss>>, impl Into<ViewMut<'a, T::Loss>>),
        upstreams: Upstreams<'a, T::Loss>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::<T>::new(input.into().memory, target.into());
        let results = Some([results.0.into(), results.1.into()]);
        self.queue(Call { results, grads: Some((upstreams, None)), ..call }, workspace, stream)
    }
}
