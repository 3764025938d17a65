//! The methods of the losses, by [`Pass`].

use super::Pass;
use fused_loss::reduction::{DivergenceReduction, ElementwiseReduction, SampleReduction};
use fused_loss::{
    BceWithLogits, Classes, CrossEntropy, Error, Float, Grads, Huber, KlDiv, LogProb, Loss, Mse,
    Saved, SmoothL1, Stream, Targets, Tensor, Upstreams, View, ViewMut, Workspace,
};

/// The arguments of a call. `G` is the type of its target.
pub(super) struct Given<'a, T, V, G> {
    pub(super) input: View<'a, T>,
    /// The same memory, for the methods that overwrite it.
    pub(super) over: Option<ViewMut<'a, T>>,
    pub(super) target: G,
    /// The upstream gradients of the results, where the call has them.
    pub(super) upstreams: [Option<View<'a, V>>; 2],
    /// Memory for the loss, or for log-probabilities and entropies.
    pub(super) results: [Option<ViewMut<'a, V>>; 2],
    /// Memory for the requested gradients of input and target.
    pub(super) grads: [Option<ViewMut<'a, T>>; 2],
    pub(super) workspace: &'a mut Workspace,
    pub(super) stream: &'a Stream,
    pub(super) saving: Saving,
}

/// The saved state that a backward pass gets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Saving {
    Right,
    Never,
    WithOtherOptions,
}

/// The return values of a call.
pub(super) struct Made<T, V> {
    /// The loss, or log-probabilities and entropies.
    pub(super) results: [Option<Loss<V>>; 2],
    pub(super) gradient: Option<Tensor<T>>,
    pub(super) log_sum_exp: Option<Vec<V>>,
}

impl<T, V> Made<T, V> {
    fn nothing() -> Self {
        Made { results: [None, None], gradient: None, log_sum_exp: None }
    }
}

/// A loss with inputs of type `T`, losses of type `V` and targets `G`.
pub(super) trait Call<T, V, G> {
    fn call(&self, pass: Pass, given: Given<'_, T, V, G>) -> Result<Made<T, V>, Error>;
}

/// The call of `$pass`. The backward passes of cross-entropy take `$saved`.
macro_rules! call {
    ($loss:expr, $pass:expr, $given:expr $(, $saved:expr)?) => {{
        let Given { input, over, target, upstreams, results, grads, workspace, stream, .. } =
            $given;
        let ([upstream, _], [loss, _]) = (upstreams, results);
        let mut made = Made::nothing();
        match $pass {
            Pass::Forward => made.results[0] = Some($loss.forward(input, target, stream)?),
            Pass::ForwardInto => {
                $loss.forward_into(input, target, loss.unwrap(), workspace, stream)?;
            }
            Pass::Backward => {
                let upstream = upstream.unwrap();
                let gradient = $loss.backward(input, target, $($saved,)? upstream, stream)?;
                made.gradient = Some(gradient);
            }
            Pass::BackwardInto => {
                let (upstream, grads) = (upstream.unwrap(), into_grads(grads));
                $loss.backward_into(input, target, $($saved,)? upstream, grads, stream)?;
            }
            Pass::BackwardInPlace => {
                let (over, upstream) = (over.unwrap(), upstream.unwrap());
                $loss.backward_in_place(over, target, $($saved,)? upstream, stream)?;
            }
            Pass::Both => {
                let (loss, gradient) = $loss.forward_backward(input, target, stream)?;
                (made.results[0], made.gradient) = (Some(loss), Some(gradient));
            }
            Pass::BothInto => {
                let mut grads = into_grads(grads);
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

/// The gradients of input and target, at least one of which is requested.
fn into_grads<'a, T: Float, V: Float>(grads: [Option<ViewMut<'a, T>>; 2]) -> Grads<'a, T, V> {
    match grads {
        [Some(of_input), Some(of_target)] => Grads::both(of_input, of_target),
        [Some(of_input), None] => Grads::input(of_input),
        [None, Some(of_target)] => Grads::target(of_target),
        [None, None] => unreachable!(),
    }
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
            saved = Some(given.saving.of(left, input, stream)?);
        }
        // Dropping the saved state waits for the work that reads it.
        let made: Result<_, Error> = call!(self, pass, given, saved.as_ref().unwrap());
        let made = made?;
        let [of_call, _] = made.results;
        Ok(Made { results: [of_call.or(loss), None], log_sum_exp, ..made })
    }
}

impl Saving {
    /// The saved state for the backward pass, if a forward pass has saved `left`.
    fn of<T: Float, V: Float>(
        self,
        left: Saved<V>,
        input: View<'_, T>,
        stream: &Stream,
    ) -> Result<Saved<V>, Error> {
        match self {
            Saving::Never => Saved::zeros(stream.gpu(), input.shape()),
            Saving::Right | Saving::WithOtherOptions => Ok(left),
        }
    }
}

impl<'t, T: Float> Call<T, T::Loss, Classes<'t>> for LogProb {
    fn call(
        &self,
        pass: Pass,
        given: Given<'_, T, T::Loss, Classes<'t>>,
    ) -> Result<Made<T, T::Loss>, Error> {
        let Given { input, over, target, upstreams, results, grads, workspace, stream, saving } =
            given;
        let upstreams = || match upstreams {
            [Some(of_log_prob), Some(of_entropy)] => Upstreams::both(of_log_prob, of_entropy),
            [Some(of_log_prob), None] => Upstreams::log_prob(of_log_prob),
            [None, Some(of_entropy)] => Upstreams::entropy(of_entropy),
            [None, None] => unreachable!(),
        };
        let results = results.map(Option::unwrap).into();
        let [gradient, _] = grads;
        let mut made = Made::nothing();
        let mut saved = None;
        if pass.has_upstream_always() {
            let temperature = if self.temperature == 1.0 { 2.0 } else { 1.0 };
            let of = match saving {
                Saving::WithOtherOptions => self.temperature(temperature),
                _ => *self,
            };
            let ((log_prob, entropy), left) = if pass.writes_into() {
                saving_into(of, input, target, workspace, stream)?
            } else {
                let (log_prob, entropy, left) = of.forward_saving(input, target, stream)?;
                ((log_prob, entropy), left)
            };
            made.results = [Some(log_prob), Some(entropy)];
            made.log_sum_exp = Some(left.log_sum_exp().to_vec(stream)?);
            saved = Some(saving.of(left, input, stream)?);
        }
        let saved = || saved.as_ref().unwrap();
        match pass {
            Pass::Forward => {
                let (log_prob, entropy) = self.forward(input, target, stream)?;
                made.results = [Some(log_prob), Some(entropy)];
            }
            Pass::ForwardInto => self.forward_into(input, target, results, workspace, stream)?,
            Pass::Backward => {
                made.gradient = Some(self.backward(input, target, saved(), upstreams(), stream)?);
            }
            Pass::BackwardInto => {
                let to = gradient.unwrap();
                self.backward_into(input, target, saved(), upstreams(), to, stream)?;
            }
            Pass::BackwardInPlace => {
                self.backward_in_place(over.unwrap(), target, saved(), upstreams(), stream)?;
            }
            Pass::Both => {
                let (log_prob, entropy, gradient) =
                    self.forward_backward(input, target, upstreams(), stream)?;
                made.results = [Some(log_prob), Some(entropy)];
                made.gradient = Some(gradient);
            }
            Pass::BothInto => {
                let (upstreams, to) = (upstreams(), gradient.unwrap());
                self.forward_backward_into(
                    input, target, results, upstreams, to, workspace, stream,
                )?;
            }
            Pass::BothInPlace => {
                let (over, upstreams) = (over.unwrap(), upstreams());
                self.forward_backward_in_place(
                    over, target, results, upstreams, workspace, stream,
                )?;
            }
        }
        Ok(made)
    }
}

/// The results of [`LogProb::forward_saving_into`]: log-probabilities, entropies, and saved state.
#[expect(clippy::type_complexity, reason = "as `forward_saving` returns it")]
fn saving_into<T: Float>(
    loss: LogProb,
    input: View<'_, T>,
    target: Classes<'_>,
    workspace: &mut Workspace,
    stream: &Stream,
) -> Result<((Loss<T::Loss>, Loss<T::Loss>), Saved<T::Loss>), Error> {
    let shape = input.shape();
    let of_rows = shape.dims().split_last().map_or(&[][..], |(_, of_rows)| of_rows);
    let new = || Loss::zeros(stream.gpu(), of_rows);
    let (mut results, mut saved) = ((new()?, new()?), Saved::zeros(stream.gpu(), shape)?);
    let to = (&mut results.0, &mut results.1);
    loss.forward_saving_into(input, target, to, &mut saved, workspace, stream)?;
    Ok((results, saved))
}
