//! The memory of a call on the device.

use super::calls::{Given, Made, Saving};
use super::refusal::{How, other_gpu};
use super::values::Tensors;
use super::{Arg, Case, Upstream, Wrong};
use crate::number::Number;
use crate::{Placed, gpu};
use fused_loss::{Element, Error, Gpu, Loss, Stream, View, ViewMut, Workspace};

/// The contents of results and the memory around them before a call.
pub(super) const UNWRITTEN: f64 = 768.0;

/// Memory for an argument.
pub(super) struct Slot<T> {
    placed: Placed<T>,
    dims: Vec<usize>,
    stride: usize,
}

impl<T: Element> Slot<T> {
    /// Memory with the gaps and the offset of the case, if the argument may have them.
    pub(super) fn new(case: &Case, arg: Arg, data: &[T], guard: T) -> Self {
        let dims = case.dims_of(arg);
        let (cols, rows) = match dims.split_last() {
            Some((cols, rows)) => (*cols, rows.iter().product()),
            None => (1, 1),
        };
        let is_whole = data.len() == rows * cols;
        let gap = if case.may_have_gaps(arg) && is_whole { case.gaps[arg as usize] } else { 0 };
        let offset = case.offsets[arg as usize];
        let placed = if is_whole {
            Placed::rows(data, [rows, cols], cols + gap, offset, guard)
        } else {
            Placed::new(data, offset, guard)
        };
        Slot { placed, dims, stride: cols + gap }
    }

    /// Device, address, dimensions and stride, after a mistake. `other` is the memory that the
    /// argument may overlap.
    fn place(&self, how: Option<How>, other: u64) -> (&'static Gpu, u64, Vec<usize>, usize) {
        let (address, mut dims, mut stride) =
            (self.placed.address(), self.dims.clone(), self.stride);
        let address = match how {
            Some(How::Null) => 0,
            Some(How::Misaligned) => address + 1,
            Some(How::Overlap | How::OverLogProb) => other,
            _ => address,
        };
        match (how, dims.last_mut()) {
            (Some(How::Shape), Some(last)) => (*last, stride) = (*last + 1, stride + 1),
            (Some(How::Shape), None) => (dims, stride) = (vec![1], 1),
            (Some(How::Gaps), _) => stride += 1,
            _ => {}
        }
        let device = if how == Some(How::Device) { other_gpu().unwrap() } else { gpu() };
        (device, address, dims, stride)
    }

    pub(super) fn view<'a>(&self, how: Option<How>, other: u64) -> Result<View<'a, T>, Error> {
        let (gpu, address, dims, stride) = self.place(how, other);
        if how == Some(How::Expanded) {
            return self.one_for_all();
        }
        // SAFETY: memory of `self`, which outlives the work, or the call is refused.
        unsafe { View::from_raw_strided(gpu, address, dims, stride) }
    }

    fn view_mut<'a>(&self, how: Option<How>, other: u64) -> Result<ViewMut<'a, T>, Error> {
        let (gpu, address, dims, stride) = self.place(how, other);
        // SAFETY: as above, and nothing else uses the memory meanwhile.
        unsafe { ViewMut::from_raw_strided(gpu, address, dims, stride) }
    }

    /// The first element, repeated for all.
    fn one_for_all<'a>(&self) -> Result<View<'a, T>, Error> {
        // SAFETY: as above.
        let one = unsafe { View::from_raw(gpu(), self.placed.address(), ()) }?;
        one.expand(&self.dims)
    }
}

impl<T: Number> Slot<T> {
    /// The numbers, after a check that the guards around them are unchanged.
    fn wide(&self) -> Vec<f64> {
        wide(self.placed.to_vec())
    }
}

fn wide<T: Number>(values: Vec<T>) -> Vec<f64> {
    values.into_iter().map(Number::wide).collect()
}

/// The results of a call; `None` for what it does not compute.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The loss, or log-probabilities and entropies.
    pub(super) results: [Option<Vec<f64>>; 2],
    pub(super) grads: [Option<Vec<f64>>; 2],
    pub(super) log_sum_exp: Option<Vec<f64>>,
    /// The report of each result that is a `Loss` on a target out of range.
    pub(super) faults: Vec<Option<Error>>,
}

impl Outcome {
    /// The bits of all numbers.
    pub(super) fn bits(&self) -> Vec<u64> {
        let all = self.results.iter().chain(&self.grads).chain([&self.log_sum_exp]);
        all.flatten().flatten().map(|value| value.to_bits()).collect()
    }
}

/// All that a call reads and writes, except its target and its weights.
pub(super) struct Memory<T, V> {
    input: Slot<T>,
    upstreams: [Slot<V>; 2],
    results: [Slot<V>; 2],
    /// Where a loss is given, it is written instead of the slot with the same index in `results`.
    losses: [Option<Loss<V>>; 2],
    grads: [Slot<T>; 2],
}

impl<T: Number, V: Number> Memory<T, V> {
    pub(super) fn new(case: &Case, tensors: &Tensors<T>) -> Self {
        let (guard, guard_of_value) = (T::round(UNWRITTEN), V::round(UNWRITTEN));
        let elements = vec![guard; case.rows * case.cols];
        let values = vec![guard_of_value; case.losses()];
        let upstream = |which: usize| {
            let upstream: Vec<V> =
                tensors.upstreams[which].iter().map(|&value| V::round(value)).collect();
            Slot::new(case, Arg::UPSTREAMS[which], &upstream, guard_of_value)
        };
        let to_loss = |is_to_loss: bool| {
            is_to_loss.then(|| {
                let mut loss = Loss::zeros(gpu(), case.dims_of_loss()).unwrap();
                loss.copy_from_slice(&values).unwrap();
                loss
            })
        };
        Memory {
            input: Slot::new(case, Arg::Input, &tensors.input, guard),
            upstreams: [upstream(0), upstream(1)],
            results: Arg::RESULTS.map(|arg| Slot::new(case, arg, &values, guard_of_value)),
            losses: case.are_to_loss().map(to_loss),
            grads: [Arg::ByInput, Arg::ByTarget].map(|arg| Slot::new(case, arg, &elements, guard)),
        }
    }

    /// The address that a target may overlap.
    pub(super) fn input(&self) -> u64 {
        self.input.placed.address()
    }

    /// The arguments of the call, with the mistake of the case.
    pub(super) fn given<'a, G>(
        &'a mut self,
        case: &Case,
        target: G,
        workspace: &'a mut Workspace,
        stream: &'a Stream,
    ) -> Result<Given<'a, T, V, G>, Error> {
        let (at, of_log_prob) = (self.input(), self.results[0].placed.address());
        let is_in_place = case.pass.is_in_place();
        let how = |arg| case.how(arg);
        let mut upstreams = [None; 2];
        for (which, upstream) in case.upstreams().into_iter().enumerate() {
            let slot = &self.upstreams[which];
            upstreams[which] = match (upstream, how(Arg::UPSTREAMS[which])) {
                (None, _) => None,
                (Some(Upstream::One(_)), None) => Some(slot.one_for_all()?),
                (Some(_), how) => Some(slot.view(how, at)?),
            };
        }
        let mut results = [None, None];
        for (which, to_loss) in self.losses.iter_mut().enumerate() {
            let how = how(Arg::RESULTS[which]);
            let other = if how == Some(How::OverLogProb) { of_log_prob } else { at };
            results[which] = Some(match to_loss {
                Some(to_loss) => to_loss.values_mut(),
                None => self.results[which].view_mut(how, other)?,
            });
        }
        let [by_input, by_target] = &self.grads;
        let by_input = by_input.view_mut(how(Arg::ByInput), at)?;
        let by_target = by_target.view_mut(how(Arg::ByTarget), at)?;
        let [wants_input, wants_target] = case.grads();
        let input = how(Arg::Input);
        let over = if is_in_place { Some(self.input.view_mut(input, at)?) } else { None };
        Ok(Given {
            input: self.input.view(input, at)?,
            over,
            target,
            upstreams,
            results,
            grads: [
                (wants_input && !is_in_place).then_some(by_input),
                wants_target.then_some(by_target),
            ],
            workspace,
            stream,
            saving: match case.wrong {
                Some(Wrong::NeverSaved) => Saving::Never,
                Some(Wrong::OtherSaved) => Saving::WithOtherOptions,
                _ => Saving::Right,
            },
        })
    }

    /// The contents of the results.
    fn results(&self) -> [Vec<f64>; 2] {
        [0, 1].map(|which: usize| match &self.losses[which] {
            Some(loss) => wide(loss.values().to_vec().unwrap()),
            None => self.results[which].wide(),
        })
    }

    /// Checks that nothing has changed since before the call.
    ///
    /// # Errors
    /// The name of what was written.
    pub(super) fn check_unwritten(&self, tensors: &Tensors<T>) -> Result<(), String> {
        let grads = self.grads.each_ref().map(Slot::wide);
        if grads.iter().chain(&self.results()).flatten().any(|&value| value != UNWRITTEN) {
            return Err("results".to_owned());
        }
        let before = tensors.input.iter().map(|value| value.wide().to_bits());
        let is_unwritten = self.input.wide().into_iter().map(f64::to_bits).eq(before);
        if is_unwritten { Ok(()) } else { Err("its input".to_owned()) }
    }

    /// The results of a call that has returned `made`.
    pub(super) fn outcome(self, case: &Case, made: Made<T, V>) -> Outcome {
        let results = self.results();
        let [by_input, by_target] = self.grads.each_ref().map(Slot::wide);
        let over = self.input.wide();
        let by_input = match made.gradient {
            Some(gradient) => wide(gradient.to_vec().unwrap()),
            None if case.pass.is_in_place() => over,
            None => by_input,
        };
        let [has_input, has_target] = case.grads();
        let computes = [case.pass.has_loss(), case.pass.has_loss() && case.is_log_prob()];
        let mut outcome = Outcome {
            results: [None, None],
            grads: [has_input.then_some(by_input), has_target.then_some(by_target)],
            log_sum_exp: made.log_sum_exp.map(wide),
            faults: Vec::new(),
        };
        let all = made.results.into_iter().zip(self.losses).zip(results).enumerate();
        for (which, ((returned, to_loss), in_memory)) in all {
            outcome.results[which] = match &returned {
                Some(loss) => Some(wide(loss.values().to_vec().unwrap())),
                None => computes[which].then_some(in_memory),
            };
            outcome.faults.extend(returned.or(to_loss).map(|loss| loss.check().err()));
        }
        outcome
    }
}
