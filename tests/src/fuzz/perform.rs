//! Puts the tensors of a case on the device, makes its call, and reads what comes of it.

use super::calls::{Call, Given, Made, Saving};
use super::refusal::{How, name, other_gpu};
use super::values::{Target, Tensors};
use super::{Arg, Case, Kind, LossOf, Pairwise, Reduce, Upstream, Wrong};
use crate::number::Number;
use crate::{Placed, gpu};
use fused_loss::{
    BatchMean, BceWithLogits, CrossEntropy, Element, Error, Gpu, Grads, Huber, KlDiv, Loss, Mean,
    Mse, RowMean, RowSum, SmoothL1, Stream, Sum, Targets, Unreduced, View, ViewMut, Workspace,
};
use std::cell::RefCell;

/// What has come of a call; `None` for what it does not compute.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) losses: Option<Vec<f64>>,
    pub(super) grads: [Option<Vec<f64>>; 2],
    pub(super) log_sum_exp: Option<Vec<f64>>,
    /// What a `Loss` says of its targets.
    pub(super) fault: Option<Option<Error>>,
}

impl Outcome {
    /// All results, bit by bit.
    fn bits(&self) -> Vec<u64> {
        let [by_input, by_target] = &self.grads;
        let all = [&self.losses, by_input, by_target, &self.log_sum_exp];
        all.into_iter().flatten().flatten().map(|value| value.to_bits()).collect()
    }
}

/// What results and the memory around them hold before a call.
const UNWRITTEN: f64 = 768.0;

/// Memory for an argument.
struct Slot<T> {
    placed: Placed<T>,
    dims: Vec<usize>,
    stride: usize,
}

impl<T: Element> Slot<T> {
    /// With the gaps and the place that the case has for the argument, as far as it may have them.
    fn new(case: &Case, arg: Arg, dims: Vec<usize>, data: &[T], guard: T) -> Self {
        let (cols, rows) = match dims.split_last() {
            Some((cols, rows)) => (*cols, rows.iter().product()),
            None => (1, 1),
        };
        let has_gaps = match arg {
            Arg::Loss => case.losses_are_elements(),
            Arg::Upstream => case.losses_are_elements() && data.len() == rows * cols,
            Arg::Target => case.classes().is_none(),
            Arg::Input | Arg::ByInput | Arg::ByTarget => true,
        };
        let gap = if has_gaps { case.gaps[arg as usize] } else { 0 };
        let offset = case.offsets[arg as usize];
        let placed = if data.len() == rows * cols {
            Placed::rows(data, [rows, cols], cols + gap, offset, guard)
        } else {
            Placed::new(data, offset, guard)
        };
        Slot { placed, dims, stride: cols + gap }
    }

    /// Device, address, dimensions and stride, with a mistake.
    fn place(&self, how: Option<How>, input: u64) -> (&'static Gpu, u64, Vec<usize>, usize) {
        let (address, mut dims, mut stride) =
            (self.placed.address(), self.dims.clone(), self.stride);
        let address = match how {
            Some(How::Null) => 0,
            Some(How::Misaligned) => address + 1,
            Some(How::Overlap) => input,
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

    fn view<'a>(&self, how: Option<How>, input: u64) -> Result<View<'a, T>, Error> {
        let (gpu, address, dims, stride) = self.place(how, input);
        if how == Some(How::Expanded) {
            return self.one_for_all();
        }
        // SAFETY: memory of `self`, which is there until the work is done, or a call is refused.
        unsafe { View::from_raw_strided(gpu, address, dims, stride) }
    }

    fn view_mut<'a>(&self, how: Option<How>, input: u64) -> Result<ViewMut<'a, T>, Error> {
        let (gpu, address, dims, stride) = self.place(how, input);
        // SAFETY: as above, and nothing else uses it meanwhile.
        unsafe { ViewMut::from_raw_strided(gpu, address, dims, stride) }
    }

    /// The first element, which stands for all.
    fn one_for_all<'a>(&self) -> Result<View<'a, T>, Error> {
        // SAFETY: as above.
        let one = unsafe { View::from_raw(gpu(), self.placed.address(), ()) }?;
        one.expand(&self.dims)
    }
}

/// Makes the call of a case. Nothing comes of one that is refused, as it has to be.
///
/// # Errors
/// A finding that no reference is needed for: a call that is accepted and should not be, work that
/// fails, memory that is written and should not be, another result of the same call.
pub(super) fn perform<T: Number>(
    case: &Case,
    tensors: &Tensors<T>,
) -> Result<Option<Outcome>, String>
where
    T::Loss: Number,
{
    macro_rules! by_reduction {
        ($loss:expr $(, $own:ident)?) => {
            match case.reduce() {
                Reduce::Mean => of_pairs(case, tensors, $loss.reduction(Mean)),
                Reduce::Sum => of_pairs(case, tensors, $loss.reduction(Sum)),
                Reduce::Unreduced => of_elements(case, tensors, $loss.reduction(Unreduced)),
                Reduce::RowSum => of_pairs(case, tensors, $loss.reduction(RowSum)),
                Reduce::RowMean => of_pairs(case, tensors, $loss.reduction(RowMean)),
                $(Reduce::BatchMean => of_pairs(case, tensors, $loss.reduction($own)),)?
                #[allow(unreachable_patterns, reason = "the divergence has all of them")]
                Reduce::BatchMean => unreachable!(),
            }
        };
    }
    let weights = [0, 1].map(|which| {
        let values = tensors.weights[which].as_ref()?;
        Some(Placed::new(values, case.offsets[which], T::round(UNWRITTEN)))
    });
    let weight = |which: usize, dims: Vec<usize>| {
        let placed = weights[which].as_ref()?;
        // SAFETY: `weights` is there until the work is done, and nothing writes it.
        Some(unsafe { View::from_raw(gpu(), placed.address(), dims) }.unwrap())
    };
    match case.loss {
        LossOf::Pairs(Pairwise::Mse) => by_reduction!(Mse::new()),
        LossOf::Pairs(Pairwise::Huber { delta }) => by_reduction!(Huber::new(delta)),
        LossOf::Pairs(Pairwise::SmoothL1 { beta }) => by_reduction!(SmoothL1::new(beta)),
        LossOf::Pairs(Pairwise::Bce) => by_reduction!(BceWithLogits::new()),
        LossOf::Pairs(Pairwise::KlDiv { log_input, log_target }) => {
            by_reduction!(KlDiv::new().log_input(log_input).log_target(log_target), BatchMean)
        }
        LossOf::WeightedBce { weight: of, pos_weight, .. } => {
            let mut loss = BceWithLogits::new();
            loss.weight = of.and_then(|one| weight(0, one.dims(case)));
            loss.pos_weight = pos_weight.and_then(|one| weight(1, one.dims(case)));
            by_reduction!(loss)
        }
        LossOf::CrossEntropy { ignore_index, label_smoothing, z_loss, .. } => {
            let mut loss = CrossEntropy::new()
                .ignore_index(ignore_index)
                .label_smoothing(label_smoothing)
                .z_loss(z_loss);
            loss.weight = weight(0, vec![case.cols]);
            match case.reduce() {
                Reduce::Mean => of_rows(case, tensors, loss.reduction(Mean)),
                Reduce::Sum => of_rows(case, tensors, loss.reduction(Sum)),
                _ => of_rows(case, tensors, loss.reduction(Unreduced)),
            }
        }
    }
}

/// A loss that compares element by element and is reduced.
fn of_pairs<T: Number, L>(
    case: &Case,
    tensors: &Tensors<T>,
    loss: L,
) -> Result<Option<Outcome>, String>
where
    T::Loss: Number,
    L: for<'t> Call<T, T::Loss, View<'t, T>>,
{
    of_numbers::<T, T::Loss, L>(case, tensors, loss)
}

/// One that is not reduced.
fn of_elements<T: Number, L>(
    case: &Case,
    tensors: &Tensors<T>,
    loss: L,
) -> Result<Option<Outcome>, String>
where
    L: for<'t> Call<T, T, View<'t, T>>,
{
    of_numbers::<T, T, L>(case, tensors, loss)
}

fn of_numbers<T: Number, V: Number, L>(
    case: &Case,
    tensors: &Tensors<T>,
    loss: L,
) -> Result<Option<Outcome>, String>
where
    L: for<'t> Call<T, V, View<'t, T>>,
{
    let Target::Numbers(target) = &tensors.target else { unreachable!() };
    let slot = Slot::new(case, Arg::Target, case.dims(), target, T::round(UNWRITTEN));
    let of_target = |input| slot.view(case.how(Arg::Target), input);
    attempts(case, tensors, &of_target, &|given| loss.call(case.pass, given))
}

fn of_rows<T: Number, L>(
    case: &Case,
    tensors: &Tensors<T>,
    loss: L,
) -> Result<Option<Outcome>, String>
where
    T::Loss: Number,
    L: for<'t> Call<T, T::Loss, Targets<'t, T>>,
{
    let how = case.how(Arg::Target);
    macro_rules! classes {
        ($class:ty, $classes:expr) => {{
            let classes: Vec<$class> = $classes.iter().map(|&class| class as $class).collect();
            let slot = Slot::new(case, Arg::Target, case.dims_of_rows(), &classes, 77);
            let of_target = |input| slot.view(how, input).map(Targets::from);
            attempts(case, tensors, &of_target, &|given| loss.call(case.pass, given))
        }};
    }
    match (&tensors.target, case.classes()) {
        (Target::Numbers(target), _) => {
            let slot = Slot::new(case, Arg::Target, case.dims(), target, T::round(UNWRITTEN));
            let of_target = |input| slot.view(how, input).map(Targets::from);
            attempts(case, tensors, &of_target, &|given| loss.call(case.pass, given))
        }
        (Target::Classes(classes), Some(Kind::I32)) => classes!(i32, classes),
        (Target::Classes(classes), Some(Kind::U32)) => classes!(u32, classes),
        (Target::Classes(classes), Some(Kind::U8)) => classes!(u8, classes),
        (Target::Classes(classes), _) => classes!(i64, classes),
    }
}

/// Where the views of a target come from, by the address of the input.
type OfTarget<'f, G> = &'f dyn Fn(u64) -> Result<G, Error>;
type Calls<'f, T, V, G> = &'f dyn Fn(Given<'_, T, V, G>) -> Result<Made<T, V>, Error>;

/// One call, or two that have to give the same.
fn attempts<T: Number, V: Number, G>(
    case: &Case,
    tensors: &Tensors<T>,
    of_target: OfTarget<'_, G>,
    call: Calls<'_, T, V, G>,
) -> Result<Option<Outcome>, String> {
    let outcome = attempt(case, tensors, of_target, call)?;
    let bits = |outcome: &Option<Outcome>| outcome.as_ref().map(Outcome::bits);
    if case.twice && bits(&attempt(case, tensors, of_target, call)?) != bits(&outcome) {
        return Err("the same call has given other bits".to_owned());
    }
    Ok(outcome)
}

thread_local! {
    /// A stream and a workspace for all cases of a thread: a call has to leave them as they were.
    static QUEUE: RefCell<Option<(Stream, Workspace)>> = const { RefCell::new(None) };
}

fn attempt<T: Number, V: Number, G>(
    case: &Case,
    tensors: &Tensors<T>,
    of_target: OfTarget<'_, G>,
    call: Calls<'_, T, V, G>,
) -> Result<Option<Outcome>, String> {
    let kept = QUEUE.take();
    let new = || (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
    let (stream, mut workspace) = kept.unwrap_or_else(new);
    let outcome = attempt_on(case, tensors, of_target, call, &stream, &mut workspace)?;
    QUEUE.set(Some((stream, workspace)));
    Ok(outcome)
}

fn attempt_on<T: Number, V: Number, G>(
    case: &Case,
    tensors: &Tensors<T>,
    of_target: OfTarget<'_, G>,
    call: Calls<'_, T, V, G>,
    stream: &Stream,
    workspace: &mut Workspace,
) -> Result<Option<Outcome>, String> {
    let (dims, of_loss) = (case.dims(), case.dims_of_loss());
    let unwritten = vec![T::round(UNWRITTEN); case.rows * case.cols];
    let guard = T::round(UNWRITTEN);
    let input = Slot::new(case, Arg::Input, dims.clone(), &tensors.input, guard);
    let [by_input, by_target] = [Arg::ByInput, Arg::ByTarget]
        .map(|arg| Slot::new(case, arg, dims.clone(), &unwritten, guard));
    let upstream: Vec<V> = tensors.upstream.iter().map(|&value| V::round(value)).collect();
    let of_value = V::round(UNWRITTEN);
    let upstream = Slot::new(case, Arg::Upstream, of_loss.clone(), &upstream, of_value);
    let loss =
        Slot::new(case, Arg::Loss, of_loss.clone(), &vec![of_value; case.losses()], of_value);
    let mut to_loss = None;
    if case.is_to_loss() && case.pass.writes_into() {
        let mut loss = Loss::zeros(gpu(), of_loss).unwrap();
        loss.copy_from_slice(&vec![of_value; case.losses()]).unwrap();
        to_loss = Some(loss);
    }

    let queued = (|| {
        let at = input.placed.address();
        let how = |arg| case.how(arg);
        let [wants_input, wants_target] = case.grads();
        let is_in_place = case.pass.is_in_place();
        let by_input = by_input.view_mut(how(Arg::ByInput), at)?;
        let by_target = by_target.view_mut(how(Arg::ByTarget), at)?;
        let grads = match (wants_input && !is_in_place, wants_target) {
            (true, true) => Some(Grads::both(by_input, by_target)),
            (true, false) => Some(Grads::input(by_input)),
            (false, true) => Some(Grads::target(by_target)),
            (false, false) => None,
        };
        let upstream = match (case.has_upstream(), case.upstream, how(Arg::Upstream)) {
            (false, ..) => None,
            (true, Upstream::One(_), None) => Some(upstream.one_for_all()?),
            (true, _, how) => Some(upstream.view(how, at)?),
        };
        let how_input = how(Arg::Input);
        call(Given {
            input: input.view(how_input, at)?,
            over: if is_in_place { Some(input.view_mut(how_input, at)?) } else { None },
            target: of_target(at)?,
            upstream,
            loss: Some(match &mut to_loss {
                Some(to_loss) => to_loss.values_mut(),
                None => loss.view_mut(how(Arg::Loss), at)?,
            }),
            grads,
            workspace,
            stream,
            saving: match case.wrong {
                Some(Wrong::NeverSaved) => Saving::Never,
                Some(Wrong::OtherSaved) => Saving::WithOtherOptions,
                _ => Saving::Right,
            },
        })
    })();
    stream.synchronize().map_err(|error| format!("the work fails: {error}"))?;

    let wide = |values: Vec<T>| values.into_iter().map(|value| value.wide()).collect::<Vec<_>>();
    let wide_values =
        |values: Vec<V>| values.into_iter().map(|value| value.wide()).collect::<Vec<_>>();
    let [by_input, by_target] = [by_input, by_target].map(|slot| wide(slot.placed.to_vec()));
    let over = wide(input.placed.to_vec());
    let in_memory = match &to_loss {
        Some(loss) => wide_values(loss.values().to_vec().unwrap()),
        None => wide_values(loss.placed.to_vec()),
    };
    let made = match queued {
        Ok(made) => made,
        Err(error) => {
            let mut results = by_input.iter().chain(&by_target).chain(&in_memory);
            if results.any(|&value| value != UNWRITTEN) {
                return Err(format!("a refused call has written results: {error}"));
            }
            let before = tensors.input.iter().map(|value| value.wide().to_bits());
            if !over.iter().map(|value| value.to_bits()).eq(before) {
                return Err(format!("a refused call has written its input: {error}"));
            }
            return refused(case, &error).map(|()| None);
        }
    };
    let expected = case.refusals();
    if !expected.is_empty() {
        return Err(format!("accepted, expected one of {expected:?}"));
    }
    let [has_input, has_target] = case.grads();
    let gradient = made.gradient.map(|gradient| wide(gradient.to_vec().unwrap()));
    let by_input = gradient.unwrap_or(if case.pass.is_in_place() { over } else { by_input });
    let has_loss = case.pass.has_loss();
    let fault = made.loss.as_ref().or(to_loss.as_ref()).map(|loss| loss.check().err());
    let losses = match made.loss {
        Some(loss) => Some(wide_values(loss.values().to_vec().unwrap())),
        None => has_loss.then_some(in_memory),
    };
    Ok(Some(Outcome {
        losses,
        grads: [has_input.then_some(by_input), has_target.then_some(by_target)],
        log_sum_exp: made.log_sum_exp.map(wide_values),
        fault,
    }))
}

/// Holds the error of a call against those that it may have.
fn refused(case: &Case, error: &Error) -> Result<(), String> {
    let expected = case.refusals();
    if expected.contains(&name(error)) {
        return Ok(());
    }
    Err(format!("expected one of the errors {expected:?}, got {}: {error}", name(error)))
}
