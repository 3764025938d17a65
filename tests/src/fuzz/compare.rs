//! Compares the results of a case with the expected ones.

use super::expected::Expected;
use super::memory::Outcome;
use super::{Arg, Case, Checked};
use crate::number::Number;
use crate::reference::tracked::{Range, Tracked};
use fused_loss::Error;

pub(super) fn compare<T: Number>(
    case: &Case,
    expected: &Expected,
    outcome: &Outcome,
) -> Result<Checked, String>
where
    T::Loss: Number,
{
    let mut checked = Checked { cases: 1, ..Checked::default() };
    let mut count = |exact: &Tracked| {
        checked.results += 1;
        checked.unpromised += u64::from(exact.is_lost());
    };
    compare_fault(case, expected, outcome)?;
    for (row, (got, exact)) in
        outcome.log_sum_exp.iter().flatten().zip(&expected.log_sum_exp).enumerate()
    {
        let allowed = T::Loss::LOSS * exact.value.abs().max(exact.size / 4.0);
        fits(*got, exact, allowed, T::RANGE, T::Loss::LIMITS)
            .map_err(|why| format!("log Σ exp x of row {row}: {why}"))?;
    }
    for ((got, expected), arg) in outcome.results.iter().zip(&expected.results).zip(Arg::RESULTS) {
        let (Some(got), what) = (got, case.name_of(arg)) else { continue };
        same_length(what, got.len(), expected.len())?;
        for (at, (got, exact)) in got.iter().zip(expected).enumerate() {
            count(exact);
            // The last rounding counts once.
            let size = exact.size - exact.value.abs();
            let largest = exact.value.abs().max(size / 4.0);
            let (allowed, limits) = if case.losses_are_elements() {
                (T::allowed(exact.value, largest, exact.size), T::LIMITS)
            } else {
                (T::Loss::LOSS * largest, T::Loss::LIMITS)
            };
            fits(*got, exact, allowed, T::RANGE, limits)
                .map_err(|why| format!("{what} {at}: {why}"))?;
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
            count(exact);
            let largest = exact.value.abs().max(exact.size / 4.0);
            let allowed = T::allowed(exact.value, largest, exact.size);
            fits(*got, exact, allowed, T::RANGE, T::LIMITS)
                .map_err(|why| format!("{what}, element {at}: {why}"))?;
        }
    }
    Ok(checked)
}

fn same_length(what: &str, got: usize, expected: usize) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected}, got {got}")) }
}

/// Whether a result of a type with these `limits`, computed in `range`, is off by no more than
/// `allowed`.
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
    } else if value.is_infinite() {
        got == value
    } else if got.is_infinite() {
        // The expected number is beyond the type, or nearly.
        value * got.signum() + allowed >= limits.max
    } else {
        (got - value).abs() <= allowed
    };
    if fits { Ok(()) } else { Err(format!("expected {value:e} ± {allowed:e}, got {got:e}")) }
}

/// Compares each result's report of a target out of range.
fn compare_fault(case: &Case, expected: &Expected, outcome: &Outcome) -> Result<(), String> {
    for said in &outcome.faults {
        match (said, &expected.fault) {
            (None, None) => {}
            (Some(Error::TargetOutOfRange { row, target, classes }), Some(fault))
                if (*row, *target) == *fault && *classes == case.cols => {}
            (said, expected) => {
                return Err(format!("expected to hear of {expected:?}, heard {said:?}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `got` fits `value` in f32, for a rounded magnitude `size` and an absolute error
    /// `off`.
    fn fits_f32(got: f64, value: f64, off: f64) -> bool {
        let exact = Tracked { off, ..Tracked::exact(value, Range::F32) };
        fits(got, &exact, 1e-6 * value.abs(), Range::F32, Range::F32).is_ok()
    }

    #[test]
    fn a_number_is_near_and_nothing_else() {
        assert!(fits_f32(1.0 + 9e-7, 1.0, 0.0));
        assert!(fits_f32(1.0, 1.0 + 1e-3, 2e-3));
        for got in [1.0 + 2e-6, -1.0, 0.0, f64::NAN, f64::INFINITY] {
            assert!(!fits_f32(got, 1.0, 0.0), "{got}");
        }
        // Below the smallest normal number there are fewer digits.
        assert!(fits_f32(0.0, 1e-38, 0.0));
        assert!(!fits_f32(0.0, 3e-38, 0.0));
    }

    #[test]
    fn infinity_and_nan_are_themselves() {
        assert!(fits_f32(f64::NAN, f64::NAN, 0.0) && !fits_f32(0.0, f64::NAN, 0.0));
        assert!(fits_f32(f64::INFINITY, f64::INFINITY, 0.0));
        for got in [f64::NEG_INFINITY, f64::NAN, 3e38] {
            assert!(!fits_f32(got, f64::INFINITY, 0.0), "{got}");
        }
        // Numbers that overflow f32.
        assert!(fits_f32(f64::INFINITY, 4e38, 0.0) && !fits_f32(f64::NEG_INFINITY, 4e38, 0.0));
        assert!(!fits_f32(f64::INFINITY, 3e38, 0.0));
        assert!(fits_f32(f64::NAN, 1.0, f64::INFINITY));
    }
}
