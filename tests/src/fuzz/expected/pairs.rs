//! The expected results of losses that compare element by element.

use super::Expected;
use crate::fuzz::values::{Target, Tensors};
use crate::fuzz::{Case, LossOf, OneFor, Pairwise, Reduce};
use crate::reference::tracked::{Range, Tracked};

/// The expected results of such a loss.
pub(super) fn of_pairs(
    case: &Case,
    pairwise: Pairwise,
    tensors: &Tensors<f64>,
    range: Range,
) -> Expected {
    let Target::Numbers(target) = &tensors.target else { unreachable!() };
    let (rows, cols) = (case.rows, case.cols);
    let len = rows * cols;
    let weights_of = |element| match case.loss {
        LossOf::WeightedBce { weight, pos_weight, .. } => {
            let of = |which: usize, one: Option<OneFor>| {
                let values = tensors.weights[which].as_ref();
                one.zip(values).map_or(1.0, |(one, values)| values[one.of(element, cols)])
            };
            [of(0, weight), of(1, pos_weight)]
        }
        _ => [1.0; 2],
    };
    let elements: Vec<_> = (0..len)
        .map(|at| pairwise.element(tensors.input[at], target[at], weights_of(at), range))
        .collect();
    let (values, divisor) = match case.reduce() {
        Reduce::Unreduced => (len, 1),
        Reduce::Sum => (1, 1),
        Reduce::Mean => (1, len),
        Reduce::BatchMean => (1, case.dims().first().copied().unwrap_or(1)),
        Reduce::RowSum => (rows, 1),
        Reduce::RowMean => (rows, cols),
    };
    let divisor = Tracked::exact(divisor as f64, range);
    let value_of = |element: usize| match case.reduce() {
        Reduce::Unreduced => element,
        Reduce::RowSum | Reduce::RowMean => element / cols,
        _ => 0,
    };
    let per = len.checked_div(values).unwrap_or(0);
    let losses = (0..values).map(|value| {
        if case.reduce() == Reduce::Unreduced {
            return elements[value].term;
        }
        let terms = elements[value * per..(value + 1) * per].iter().map(|element| element.term);
        Tracked::sum(terms, range).over(divisor)
    });
    let gradient = |at: usize, [factor, slope]: [Tracked; 2]| {
        let scale = Tracked::exact(tensors.upstream(0, value_of(at)), range).over(divisor);
        Tracked::product(&[scale, factor, slope])
    };
    Expected {
        results: [losses.collect(), Vec::new()],
        grads: [
            elements.iter().enumerate().map(|(at, of)| gradient(at, of.by_input)).collect(),
            elements.iter().enumerate().map(|(at, of)| gradient(at, of.by_target)).collect(),
        ],
        log_sum_exp: Vec::new(),
        fault: None,
    }
}
