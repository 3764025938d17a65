//! Makes the call of a case on memory of its own.

use super::calls::{Call, Given, Made};
use super::memory::{Memory, Outcome, Slot, UNWRITTEN};
use super::refusal::name;
use super::values::{Target, Tensors};
use super::{Arg, Case, Kind, LossOf, Pairwise, Reduce};
use crate::number::Number;
use crate::{Placed, gpu};
use fused_loss::{
    BatchMean, BceWithLogits, Classes, CrossEntropy, Error, Huber, KlDiv, LogProb, Mean, Mse,
    RowMean, RowSum, SmoothL1, Stream, Sum, Targets, Unreduced, View, Workspace,
};
use std::cell::RefCell;

/// Makes the call of a case. Returns nothing if the call is refused as it must be.
///
/// # Errors
/// A finding that needs no reference: a call that is accepted although it should be refused, work
/// that fails, memory that is written although it should not be, or a second call with other
/// results.
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
        // SAFETY: `weights` outlives the work, and nothing writes it.
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
        LossOf::LogProb { temperature, ignore_index, .. } => {
            let loss = LogProb::new().temperature(temperature).ignore_index(ignore_index);
            of_classes::<T, Classes<'static>, _>(case, tensors, loss)
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

/// A loss that compares element by element and is not reduced.
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
    let slot = Slot::new(case, Arg::Target, target, T::round(UNWRITTEN));
    let of_target = |input| slot.view(case.how(Arg::Target), input);
    attempts(case, tensors, &of_target, &|given| loss.call(case.pass, given))
}

/// Cross-entropy.
fn of_rows<T: Number, L>(
    case: &Case,
    tensors: &Tensors<T>,
    loss: L,
) -> Result<Option<Outcome>, String>
where
    T::Loss: Number,
    L: Call<T, T::Loss, Targets<'static, T>>,
{
    let Target::Numbers(target) = &tensors.target else {
        return of_classes(case, tensors, loss);
    };
    let slot = Slot::new(case, Arg::Target, target, T::round(UNWRITTEN));
    let of_target = |input| slot.view(case.how(Arg::Target), input).map(Targets::from);
    attempts(case, tensors, &of_target, &|given| loss.call(case.pass, given))
}

/// A loss of rows of logits whose targets are classes.
fn of_classes<T: Number, G, L>(
    case: &Case,
    tensors: &Tensors<T>,
    loss: L,
) -> Result<Option<Outcome>, String>
where
    T::Loss: Number,
    G: From<View<'static, i64>>
        + From<View<'static, i32>>
        + From<View<'static, u32>>
        + From<View<'static, u8>>,
    L: Call<T, T::Loss, G>,
{
    let Target::Classes(classes) = &tensors.target else { unreachable!() };
    macro_rules! classes {
        ($class:ty) => {{
            let classes: Vec<$class> = classes.iter().map(|&class| class as $class).collect();
            let slot = Slot::new(case, Arg::Target, &classes, 77);
            let of_target = |input| slot.view(case.how(Arg::Target), input).map(G::from);
            attempts(case, tensors, &of_target, &|given| loss.call(case.pass, given))
        }};
    }
    match case.classes() {
        Some(Kind::I32) => classes!(i32),
        Some(Kind::U32) => classes!(u32),
        Some(Kind::U8) => classes!(u8),
        _ => classes!(i64),
    }
}

/// Makes the views of a target from the address of the input.
type OfTarget<'f, G> = &'f dyn Fn(u64) -> Result<G, Error>;
type Calls<'f, T, V, G> = &'f dyn Fn(Given<'_, T, V, G>) -> Result<Made<T, V>, Error>;

/// One call, or two that must give the same results.
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
    /// A stream and a workspace for all cases of a thread: a call must leave them usable.
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
    let mut memory = Memory::new(case, tensors);
    let queued = of_target(memory.input())
        .and_then(|target| memory.given(case, target, workspace, stream))
        .and_then(call);
    stream.synchronize().map_err(|error| format!("the work fails: {error}"))?;
    let expected = case.refusals();
    match queued {
        Ok(_) if !expected.is_empty() => Err(format!("accepted, expected one of {expected:?}")),
        Ok(made) => Ok(Some(memory.outcome(case, made))),
        Err(error) => {
            let is_written = |what| format!("a refused call has written {what}: {error}");
            memory.check_unwritten(tensors).map_err(is_written)?;
            refused(&expected, &error).map(|()| None)
        }
    }
}

/// Compares the error of a call with the errors that are allowed.
fn refused(expected: &[String], error: &Error) -> Result<(), String> {
    let got = name(error);
    if expected.contains(&got) {
        return Ok(());
    }
    Err(format!("expected one of the errors {expected:?}, got {got}: {error}"))
}
