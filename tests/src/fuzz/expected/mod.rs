//! The expected results of a case, from the references.

mod cross_entropy;
mod log_prob;
mod pairs;

use super::values::{Target, Tensors};
use super::{Case, LossOf, Pairwise};
use crate::number::Number;
use crate::reference::tracked::Tracked;
use fused_loss::Dtype;

/// The results of all passes.
pub(super) struct Expected {
    /// The loss, or log-probabilities and entropies.
    pub(super) results: [Vec<Tracked>; 2],
    /// The gradients of input and target.
    pub(super) grads: [Vec<Tracked>; 2],
    /// log Σ exp of each row of logits.
    pub(super) log_sum_exp: Vec<Tracked>,
    /// The first row whose target is no class, and that target.
    pub(super) fault: Option<(usize, i64)>,
}

impl Expected {
    pub(super) fn of(case: &Case, tensors: &Tensors<f64>) -> Self {
        let range = if case.dtype == Dtype::F64 { f64::RANGE } else { f32::RANGE };
        match case.loss {
            LossOf::Pairs(pairwise) => pairs::of_pairs(case, pairwise, tensors, range),
            LossOf::WeightedBce { .. } => pairs::of_pairs(case, Pairwise::Bce, tensors, range),
            LossOf::CrossEntropy { .. } => {
                cross_entropy::OfRows::new(case, tensors, range).expected()
            }
            LossOf::LogProb { temperature, ignore_index, .. } => {
                log_prob::of_rows(case, tensors, (temperature, ignore_index), range)
            }
        }
    }
}

impl Tensors<f64> {
    /// The upstream gradient of a value of a result.
    fn upstream(&self, result: usize, value: usize) -> f64 {
        let upstream = &self.upstreams[result];
        upstream[if upstream.len() == 1 { 0 } else { value }]
    }
}

/// The target of a row of logits.
#[derive(Clone, Copy, PartialEq)]
enum Is {
    Ignored,
    NoClass,
    Class(usize),
    Probabilities,
}

impl Is {
    fn of(tensors: &Tensors<f64>, row: usize, ignore_index: i64, cols: usize) -> Self {
        match &tensors.target {
            Target::Numbers(_) => Is::Probabilities,
            Target::Classes(classes) if classes[row] == ignore_index => Is::Ignored,
            Target::Classes(classes) => match usize::try_from(classes[row]) {
                Ok(class) if class < cols => Is::Class(class),
                _ => Is::NoClass,
            },
        }
    }
}

/// The first row whose target is no class, and that target.
fn fault(tensors: &Tensors<f64>, rows: usize, is: impl Fn(usize) -> Is) -> Option<(usize, i64)> {
    let Target::Classes(classes) = &tensors.target else { return None };
    (0..rows).find(|&row| is(row) == Is::NoClass).map(|row| (row, classes[row]))
}

/// The error of a small logarithm. It is log(1 + r), so its error is that of the exponential r,
/// which grows with the argument of that exponential.
fn small(log: f64) -> f64 {
    1.0 + (-log.max(f64::MIN_POSITIVE).ln()).max(0.0) / 6.4
}
