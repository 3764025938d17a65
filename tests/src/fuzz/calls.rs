//! The methods of the losses, by [`Pass`].

use super::Pass;
use fused_loss::reduction::{DivergenceReduction, ElementwiseReduction, SampleReduction};
use fused_loss::{
    BceWithLogits, CrossEntropy, Error, Float, Grads, Huber, KlDiv, Loss, Mse, Saved, SmoothL1,
    Stream, Targets, Tensor, View, ViewMut, Workspace,
};

/// What a call is given: `G` is its target.
pub(super) struct Given<'a, T, V, G> {
    pub(super) input: View<'a, T>,
    /// The same memory, for the methods that write over it.
    pub(super) over: Option<ViewMut<'a, T>>,
    pub(super) target: G,
    pub(super) upstream: Option<View<'a, V>>,
    pub(super) loss: Option<ViewMut<'a, V>>,
    pub(super) grads: Option<Grads<'a, T, V>>,
    pub(super) workspace: &'a mut Workspace,
    pub(super) stream: &'a Stream,
    pub(super) saving: Saving,
}

/// What a backward pass gets as saved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Saving {
    Right,
    Never,
    WithOtherOptions,
}

/// What a call has returned.
pub(super) struct Made<T, V> {
    pub(super) loss: Option<Loss<V>>,
    pub(super) gradient: Option<Tensor<T>>,
    pub(super) log_sum_exp: Option<Vec<V>>,
}

impl<T, V> Made<T, V> {
    fn nothing() -> Self {
        Made { loss: None, gradient: None, log_sum_exp: None }
    }
}

/// A loss of inputs of `T`, which is of `V`, and takes targets `G`.
pub(super) trait Call<T, V, G> {
    fn call(&self, pass: Pass, given: Given<'_, T, V, G>) -> Result<Made<T, V>, Error>;
}

/// The call of `$pass`; `$saved` stands in the backward passes of cross-entropy.
macro_rules! call {
    ($loss:expr, $pass:expr, $given:expr $(, $saved:expr)?) => {{
        let Given { input, over, target, upstream, loss, grads, workspace, stream, .. } = $given;
        let mut made = Made::nothing();
        match $pass {
            Pass::Forward => made.loss = Some($loss.forward(input, target, stream)?),
            Pass::ForwardInto => {
                $loss.forward_into(input, target, loss.unwrap(), workspace, stream)?;
            }
            Pass::Backward => {
                let upstream = upstream.unwrap();
                let gradient = $loss.backward(input, target, $($saved,)? upstream, stream)?;
                made.gradient = Some(gradient);
            }
            Pass::BackwardInto => {
                let (upstream, grads) = (upstream.unwrap(), grads.unwrap());
                $loss.backward_into(input, target, $($saved,)? upstream, grads, stream)?;
            }
            Pass::BackwardInPlace => {
                let (over, upstream) = (over.unwrap(), upstream.unwrap());
                $loss.backward_in_place(over, target, $($saved,)? upstream, stream)?;
            }
            Pass::Both => {
                let (loss, gradient) = $loss.forward_backward(input, target, stream)?;
                (made.loss, made.gradient) = (Some(loss), Some(gradient));
            }
            Pass::BothInto => {
                let mut grads = grads.unwrap();
                if let Some(upstream) = upstream {
                    grads = grads.scaled_by(upstream);
                }
                let loss = loss.unwrap();
                $loss.forward_backward_into(input, target, loss, grads, workspace, stream)?;
            }
            Pass::BothInPlace => {
                let (over, loss) = (over.unwrap(), loss.unwrap());
                match upstream {
                    Some(upstream) => $loss.forward_backward_in_place_scaled(
                        over, target, loss, upstream, workspace, stream,
                    )?,
                    None => {
                        $loss.forward_backward_in_place(over, target, loss, workspace, stream)?;
                    }
                }
            }
        }
        Ok(made)
    }};
}

macro_rules! pairwise {
    ($($loss:ty: $reduction:ident;)+) => {$(
        impl<'t, T: Float, R: $reduction> Call<T, R::Value<T>, View<'t, T>> for $loss {
            fn call(
                &self,
                pass: Pass,
                given: Given<'_, T, R::Value<T>, View<'t, T>>,
            ) -> Result<Made<T, R::Value<T>>, Error> {
                call!(self, pass, given)
            }
        }
    )+};
}
pairwise! {
    Mse<R>: ElementwiseReduction;
    Huber<R>: ElementwiseReduction;
    SmoothL1<R>: ElementwiseReduction;
    BceWithLogits<'_, T, R>: ElementwiseReduction;
    KlDiv<R>: DivergenceReduction;
}

impl<'t, T: Float, R: SampleReduction> Call<T, T::Loss, Targets<'t, T>> for CrossEntropy<'_, T, R> {
    fn call(
        &self,
        pass: Pass,
        given: Given<'_, T, T::Loss, Targets<'t, T>>,
    ) -> Result<Made<T, T::Loss>, Error> {
        let (mut loss, mut log_sum_exp, mut saved) = (None, None, None);
        if pass.has_upstream_always() {
            let (input, target, stream) = (given.input, given.target, given.stream);
            let of = match given.saving {
                Saving::WithOtherOptions => self.z_loss(self.z_loss + 1.0),
                _ => *self,
            };
            let (of_forward, left) = of.forward_saving(input, target, stream)?;
            log_sum_exp = Some(left.log_sum_exp().to_vec(stream)?);
            loss = Some(of_forward);
            saved = Some(match given.saving {
                Saving::Never => Saved::zeros(stream.gpu(), input.shape())?,
                _ => left,
            });
        }
        // Dropping what was saved waits for the work that reads it.
        let made: Result<_, Error> = call!(self, pass, given, saved.as_ref().unwrap());
        let made = made?;
        Ok(Made { loss: made.loss.or(loss), log_sum_exp, ..made })
    }
}
