//! A fuzzer of the losses. It draws cases from all possible arguments of a call. A valid call is
//! compared with float64 wherever docs/semantics.md specifies the result, and an invalid call must
//! return the documented error.
//!
//! A case is a few numbers; its tensors come from its seed. `{:?}` prints it as Rust code to paste
//! into a test that calls [`check`].

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

/// The names that `{:?}` prints for special numbers.
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
    /// Calls that were refused as they must be.
    pub refused: u64,
    /// Losses and elements of gradients.
    pub results: u64,
    /// Results about which nothing is promised, because an intermediate number is beyond the range.
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

/// Makes the call of a case and checks its results.
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
