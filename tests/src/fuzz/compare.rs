//! Holds what has come of a case against what had to.

use super::expected::Expected;
use super::perform::Outcome;
use super::{Case, LossOf};
use crate::number::Number;
use crate::reference::tracked::{Range, Tracked};
use fused_loss::Error;

pub(super) fn compare<T: Number>(
    case: &Case,
    expected: &Expected,
    outcome: &Outcome,
) -> Result<(), String>
where
    T::Loss: Number,
{
    compare_fault(case, expected, outcome)?;
    for (row, (got, exact)) in
        outcome.log_sum_exp.iter().flatten().zip(&expected.log_sum_exp).enumerate()
    {
        let allowed = T::Loss::LOSS * exact.value.abs().max(exact.size / 4.0);
        fits(*got, exact, allowed, T::RANGE, T::Loss::LIMITS)
            .map_err(|why| format!("log Σ exp x of row {row}: {why}"))?;
    }
    if let Some(losses) = &outcome.losses {
        same_length("losses", losses.len(), expected.losses.len())?;
        for (at, (got, exact)) in losses.iter().zip(&expected.losses).enumerate() {
            let largest = exact.value.abs().max(exact.size / 4.0);
            let (allowed, limits) = if case.losses_are_elements() {
                (T::allowed(exact.value, largest, exact.size), T::LIMITS)
            } else {
                (T::Loss::LOSS * largest, T::Loss::LIMITS)
            };
            fits(*got, exact, allowed, T::RANGE, limits)
                .map_err(|why| format!("loss {at}: {why}"))?;
        }
    }
    for ((got, expected), what) in outcome
        .grads
        .iter()
        .zip(&expected.grads)
        .zip(["gradient of the input", "gradient of the target"])
    {
        let Some(got) = got else { continue };
        same_length(what, got.len(), expected.len())?;
        for (at, (got, exact)) in got.iter().zip(expected).enumerate() {
            let largest = exact.value.abs().max(exact.size / 4.0);
            let allowed = T::allowed(exact.value, largest, exact.size);
            fits(*got, exact, allowed, T::RANGE, T::LIMITS)
                .map_err(|why| format!("{what}, element {at}: {why}"))?;
        }
    }
    Ok(())
}

fn same_length(what: &str, got: usize, expected: usize) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected}, got {got}")) }
}

/// Whether a result of a type with these `limits`, computed in `range`, is as near as is `allowed`.
fn fits(
    got: f64,
    exact: &Tracked,
    allowed: f64,
    range: Range,
    limits: Range,
) -> Result<(), String> {
    let value = exact.value;
    let allowed = allowed + exact.off + range.least;
    let fits = if exact.is_lost() {
        true
    } else if value.is_nan() {
        got.is_nan()
    } else if got.is_infinite() {
        // What is beyond the type, or nearly.
        got.signum() == value.signum() && value.abs() + allowed >= limits.max
    } else {
        (got - value).abs() <= allowed
    };
    if fits { Ok(()) } else { Err(format!("expected {value:e} ± {allowed:e}, got {got:e}")) }
}

/// What a loss says of its targets.
fn compare_fault(case: &Case, expected: &Expected, outcome: &Outcome) -> Result<(), String> {
    let Some(said) = &outcome.fault else { return Ok(()) };
    let LossOf::CrossEntropy { .. } = case.loss else {
        return match said {
            None => Ok(()),
            Some(error) => Err(format!("the loss says {error}")),
        };
    };
    match (said, expected.fault) {
        (None, None) => Ok(()),
        (Some(Error::TargetOutOfRange { row, target, classes }), Some(fault))
            if (*row, *target) == fault && *classes == case.cols =>
        {
            Ok(())
        }
        (said, expected) => Err(format!("expected to hear of {expected:?}, heard {said:?}")),
    }
}
