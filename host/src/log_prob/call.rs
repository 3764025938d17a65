//! A call: its tensors, their checks, and the arguments of the kernels.

use super::options::LogProb;
use super::upstreams::Upstreams;
use crate::cross_entropy::{Arguments, Classes, Origin, Saved, check_input, launch_rows};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::grads::Grads;
use crate::launch::check_memory;
use crate::memory::Memory;
use crate::plan::Pass;
use crate::stream::{Stream, Workspace};
use crate::tensor::Loss;
use crate::view::ViewMut;

/// The tensors of a call.
pub(super) struct Call<'a, T: Float> {
    pub(super) input: Memory<'a>,
    pub(super) target: Classes<'a>,
    /// The log-probabilities and the entropies.
    pub(super) results: Option<[ViewMut<'a, T::Loss>; 2]>,
    pub(super) save: Option<&'a mut Saved<T::Loss>>,
    pub(super) saved: Option<&'a Saved<T::Loss>>,
    /// The upstream gradients, and where the gradient of the input is written; `None`: over the
    /// input.
    pub(super) grads: Option<(Upstreams<'a, T::Loss>, Option<ViewMut<'a, T>>)>,
}

impl<'a, T: Float> Call<'a, T> {
    pub(super) fn new(input: Memory<'a>, target: Classes<'a>) -> Self {
        Call { input, target, results: None, save: None, saved: None, grads: None }
    }

    /// What the call computes.
    fn pass(&self) -> Pass {
        match (&self.results, &self.grads) {
            (Some(_), Some(_)) => Pass::ForwardBackward,
            (Some(_), None) => Pass::Forward,
            (None, _) => Pass::Backward,
        }
    }

    /// Memory for the results.
    pub(super) fn new_results(&self, stream: &Stream) -> Result<(Loss<T::Loss>, Loss<T::Loss>)> {
        let of_rows = self.input.shape.of_rows();
        let new = || Loss::uninitialised(stream.gpu(), of_rows);
        Ok((new()?, new()?))
    }
}

impl LogProb {
    /// Refuses meaningless options and inputs that do not fit, before memory for results is
    /// allocated.
    pub(super) fn check<T: Float>(&self, call: &Call<'_, T>, stream: &Stream) -> Result<()> {
        // Beyond these limits, 1/T or its product with a logit may leave the range of f32.
        if !(1e-30..=1e30).contains(&self.temperature) {
            let (option, expected) = ("temperature", "a number from 1e-30 to 1e30");
            let got = self.temperature.to_string();
            return Err(Error::InvalidOption { option, expected, got });
        }
        check_input::<T>(call.input)?;
        let target = call.target.targets::<T>();
        target.check(call.input.shape)?;
        check_memory(stream, &[("input", call.input), ("target", target.memory)], &[])
    }

    /// Checks all of a call and queues it.
    pub(super) fn queue<T: Float>(
        &self,
        call: Call<'_, T>,
        workspace: &Workspace,
        stream: &Stream,
    ) -> Result<()> {
        self.check(&call, stream)?;
        let (pass, scratch) = (call.pass(), workspace.memory());
        let Call { input, target, results, mut save, saved, grads } = call;
        let target = target.targets::<T>();
        let origin = Origin::new("log-probabilities", &target, self.ignore_index, self.temperature);
        let in_place = matches!(grads, Some((_, None)));
        let of_rows = input.shape.of_rows();
        let mut arguments =
            Arguments::new(input, &target, self.ignore_index, in_place, of_rows, scratch.address);
        arguments.args.log_prob.scale = 1.0 / self.temperature;
        if let Some([log_prob, entropy]) = results {
            arguments.args.loss = arguments.result("log_prob", log_prob)?;
            arguments.args.log_prob.entropy = arguments.result("entropy", entropy)?;
            arguments.writes.push(("workspace", scratch));
        }
        if let Some(save) = save.as_deref() {
            arguments.set_save(save)?;
            // No result is divided by a sum over rows, so the kernels add nothing up.
            (arguments.args.totals, arguments.args.fault) = (0, 0);
        }
        if let Some(saved) = saved {
            arguments.set_saved(saved)?;
            origin.check(saved.origin.as_ref())?;
        }
        if let Some((Upstreams { log_prob, entropy }, gradient)) = grads {
            if let Some(upstream) = log_prob {
                let (address, stride) = arguments.upstream("upstream_log_prob", upstream)?;
                (arguments.args.upstream, arguments.args.upstream_stride) = (address, stride);
            }
            if let Some(upstream) = entropy {
                let (address, stride) = arguments.upstream("upstream_entropy", upstream)?;
                let args = &mut arguments.args.log_prob;
                (args.upstream_entropy, args.upstream_entropy_stride) = (address, stride);
            }
            let grads = gradient.map_or_else(Grads::none, Grads::input);
            arguments.set_grads::<T>(grads, in_place.then_some(input))?;
        }
        launch_rows::<T>(pass, arguments, stream)?;
        if let Some(save) = &mut save {
            save.origin = Some(origin);
        }
        Ok(())
    }
}
