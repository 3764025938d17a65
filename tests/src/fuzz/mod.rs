//! A fuzzer of the losses: cases drawn from all that a call may be given, each held against
//! float64 where docs/semantics.md says what comes of it, and against the documented error where
//! the call is to be refused.
//!
//! A case is a few numbers: its tensors come from its seed. What `{:?}` prints of it is Rust, to be
//! pasted into a test that calls [`check`].

mod calls;
mod campaign;
mod case;
mod compare;
mod expected;
mod memory;
mod perform;
mod refusal;
mod strategy;
mod values;

pub use crate::reference::pairwise::Pairwise;
pub use campaign::{Budget, campaign};
pub use case::*;
pub use strategy::case;
pub use values::Values;

use compare::compare;
use expected::Expected;
use perform::perform;

/// As `{:?}` prints what options may be.
#[allow(non_upper_case_globals, reason = "the names that `{:?}` prints")]
mod printed {
    pub const NaN: f64 = f64::NAN;
    pub const inf: f64 = f64::INFINITY;
}
pub use printed::*;

/// What has been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    pub cases: u64,
    /// Calls that were refused, as they had to be.
    pub refused: u64,
    /// Losses and elements of gradients.
    pub results: u64,
    /// Those of which nothing is promised: numbers on the way are beyond the range.
    pub unpromised: u64,
}

impl Checked {
    fn add(&mut self, other: Checked) {
        self.cases += other.cases;
        self.refused += other.refused;
        self.results += other.results;
        self.unpromised += other.unpromised;
    }
}

/// Makes the call of a case, and says what is wrong with what comes of it.
///
/// # Errors
/// A finding.
pub fn check(case: &Case) -> Result<Checked, String> {
    macro_rules! check_as {
        ($type:ty) => {{
            let tensors = values::Tensors::<$type>::draw(case);
            match perform(case, &tensors)? {
                Some(outcome) => {
                    let expected = Expected::of(case, &tensors.wide());
                    compare::<$type>(case, &expected, &outcome)
                }
                None => Ok(Checked { cases: 1, refused: 1, ..Checked::default() }),
            }
        }};
    }
    match case.dtype {
        Dtype::F32 => check_as!(f32),
        Dtype::F64 => check_as!(f64),
        Dtype::F16 => check_as!(half::f16),
        Dtype::Bf16 => check_as!(half::bf16),
    }
}
