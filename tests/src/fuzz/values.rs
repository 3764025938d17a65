//! The tensors of a case, from its seed.

use super::{Case, Kind, LossOf, OneFor, Pairwise, Upstream};
use crate::number::Number;
use crate::random::{bits, uniform};

/// The kind of numbers in a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// The numbers that the loss is meant for.
    Ordinary,
    /// All equal.
    Equal,
    /// 40 times the ordinary numbers.
    Wide,
    /// Ordinary numbers and some zeros.
    Zeros,
    /// Near the largest number of the type.
    Huge,
    /// Near the smallest normal number of the type.
    Tiny,
    /// Ordinary numbers, and some zeros, infinities, NaN and numbers at the ends of the type.
    Special,
    /// −∞ except for a few, and whole rows of −∞.
    MinusInfinity,
    /// Any bits.
    Bits,
}

/// The range of ordinary values.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Domain {
    /// On both sides of 0, up to this magnitude.
    Around(f64),
    /// From 0 up to this number.
    Above(f64),
    /// Below 0, down to minus this number.
    Below(f64),
}

/// Element `index` of the sequence `seed`.
fn value<T: Number>(values: Values, domain: Domain, seed: u64, index: u64, cols: usize) -> T {
    let ordinary = |index: u64| {
        let value = f64::from(uniform(seed, index));
        match domain {
            Domain::Around(most) => value * most,
            Domain::Above(most) => (value + 1.0) / 2.0 * most,
            Domain::Below(most) => (value - 1.0) / 2.0 * most,
        }
    };
    let chance = bits(!seed, index);
    let [max, least] = [T::LIMITS.max, T::LIMITS.least];
    match values {
        Values::Ordinary => T::round(ordinary(index)),
        Values::Equal => T::round(ordinary(0)),
        Values::Wide => T::round(40.0 * ordinary(index)),
        Values::Zeros if chance.is_multiple_of(3) => T::round(0.0),
        Values::Huge => T::round(f64::from(uniform(seed, index)) * max),
        Values::Tiny => T::round(ordinary(index) * least),
        Values::Special if chance.is_multiple_of(5) => match chance / 5 % 10 {
            0 => T::round(f64::INFINITY),
            1 => T::round(f64::NEG_INFINITY),
            2 => T::round(f64::NAN),
            // A NaN with random low bits and a negative sign.
            3 => T::from_low_bits(T::round(-f64::NAN).low_bits() | (chance % 16)),
            4 => T::round(max),
            5 => T::round(-max),
            6 => T::from_low_bits(1),
            7 => T::round(-0.0),
            8 => T::round(1.0),
            _ => T::round(0.0),
        },
        Values::MinusInfinity => {
            let row = bits(seed ^ 7, index / cols.max(1) as u64);
            let is_whole = row.is_multiple_of(4);
            if is_whole || !chance.is_multiple_of(8) {
                T::round(f64::NEG_INFINITY)
            } else {
                T::round(ordinary(index))
            }
        }
        Values::Bits => T::from_low_bits(chance),
        Values::Zeros | Values::Special => T::round(ordinary(index)),
    }
}

/// The targets of a case.
#[derive(Clone, Debug)]
pub(super) enum Target<T> {
    Numbers(Vec<T>),
    /// The values that the host reads from memory of their type.
    Classes(Vec<i64>),
}

/// The tensors that a case reads.
#[derive(Clone, Debug)]
pub(super) struct Tensors<T> {
    pub(super) input: Vec<T>,
    pub(super) target: Target<T>,
    /// The weights of the loss's elements or classes. The second one is the `pos_weight` of binary
    /// cross-entropy.
    pub(super) weights: [Option<Vec<T>>; 2],
    /// For each result, one upstream gradient per value, or one for all. They are exact in the
    /// result's type.
    pub(super) upstreams: [Vec<f64>; 2],
}

impl<T: Number> Tensors<T> {
    pub(super) fn draw(case: &Case) -> Self
    where
        T::Loss: Number,
    {
        let &Case { rows, cols, seed, .. } = case;
        let (of_input, of_target) = domains(case);
        let fill = |values, domain, seed, len: usize| -> Vec<T> {
            (0..len as u64).map(|index| value(values, domain, seed, index, cols)).collect()
        };
        let target = match case.classes() {
            Some(kind) => Target::Classes(classes(case, kind)),
            None => Target::Numbers(fill(case.target, of_target, seed ^ 1, rows * cols)),
        };
        let weights = match case.loss {
            LossOf::CrossEntropy { weight, .. } => {
                let of = |values| fill(values, of_weights(values), seed ^ 2, cols);
                [weight.map(of), None]
            }
            LossOf::WeightedBce { weight, pos_weight, values } => {
                let of = |one: OneFor, seed| {
                    let len = one.dims(case).iter().product();
                    fill(values, of_weights(values), seed, len)
                };
                [weight.map(|one| of(one, seed ^ 2)), pos_weight.map(|one| of(one, seed ^ 3))]
            }
            LossOf::Pairs(_) | LossOf::LogProb { .. } => [None, None],
        };
        let numbers = |values, seed, len: usize| -> Vec<f64> {
            let domain = Domain::Around(2.0);
            let is_half = case.losses_are_elements();
            let at = |index| {
                if is_half {
                    value::<T>(values, domain, seed, index, 1).wide()
                } else {
                    value::<T::Loss>(values, domain, seed, index, 1).wide()
                }
            };
            (0..len as u64).map(at).collect()
        };
        let upstream = |upstream, seed| match upstream {
            // A result of `LogProb` without an upstream gradient contributes none; another loss
            // gets ones.
            None if case.is_log_prob() => vec![0.0; case.losses()],
            None | Some(Upstream::Ones) => vec![1.0; case.losses()],
            Some(Upstream::One(values)) => numbers(values, seed, 1),
            Some(Upstream::Each(values)) => numbers(values, seed, case.losses()),
        };
        let [of_loss, of_entropy] = case.upstreams();
        let upstreams = [upstream(of_loss, seed ^ 4), upstream(of_entropy, seed ^ 6)];
        Tensors { input: fill(case.input, of_input, seed, rows * cols), target, weights, upstreams }
    }

    /// The same in float64.
    pub(super) fn wide(&self) -> Tensors<f64> {
        let wide = |of: &Vec<T>| of.iter().map(|value| value.wide()).collect::<Vec<_>>();
        Tensors {
            input: wide(&self.input),
            target: match &self.target {
                Target::Numbers(numbers) => Target::Numbers(wide(numbers)),
                Target::Classes(classes) => Target::Classes(classes.clone()),
            },
            weights: self.weights.each_ref().map(|of| of.as_ref().map(wide)),
            upstreams: self.upstreams.clone(),
        }
    }
}

impl OneFor {
    /// The shape of a weight.
    pub fn dims(self, case: &Case) -> Vec<usize> {
        match self {
            OneFor::All => vec![],
            OneFor::Column => vec![case.cols],
            OneFor::Row => {
                let mut dims = case.dims();
                dims.iter_mut().rev().take(1).for_each(|last| *last = 1);
                dims
            }
            OneFor::Element => case.dims(),
        }
    }

    /// The index of the element's weight.
    pub fn of(self, element: usize, cols: usize) -> usize {
        match self {
            OneFor::All => 0,
            OneFor::Column => element % cols,
            OneFor::Row => element / cols,
            OneFor::Element => element,
        }
    }
}

impl Case {
    /// Whether the loss has one value per element, of the input's type.
    pub(super) fn losses_are_elements(&self) -> bool {
        self.reduce() == super::Reduce::Unreduced && !self.has_logits()
    }
}

/// The ranges of ordinary inputs and targets.
fn domains(case: &Case) -> (Domain, Domain) {
    match case.loss {
        LossOf::Pairs(Pairwise::KlDiv { log_input, log_target }) => {
            let domain = |log| if log { Domain::Below(6.0) } else { Domain::Above(1.0) };
            (domain(log_input), domain(log_target))
        }
        LossOf::Pairs(Pairwise::Bce) | LossOf::WeightedBce { .. } => {
            (Domain::Around(6.0), Domain::Above(1.0))
        }
        LossOf::Pairs(_) => (Domain::Around(1.0), Domain::Around(1.0)),
        LossOf::CrossEntropy { .. } | LossOf::LogProb { .. } => {
            (Domain::Around(6.0), Domain::Above(2.0 / case.cols.max(1) as f64))
        }
    }
}

/// Weights are positive, unless the case allows any number.
fn of_weights(values: Values) -> Domain {
    if values == Values::Wide { Domain::Around(2.0) } else { Domain::Above(2.0) }
}

/// For each row a class, the ignored class, or a number that is no class.
fn classes(case: &Case, kind: Kind) -> Vec<i64> {
    let (LossOf::CrossEntropy { ignore_index, bad, .. }
    | LossOf::LogProb { ignore_index, bad, .. }) = case.loss
    else {
        unreachable!()
    };
    let cols = case.cols as i64;
    let as_stored = |class: i64| match kind {
        Kind::I64 | Kind::Probabilities => class,
        Kind::I32 => i64::from(class as i32),
        Kind::U32 => i64::from(class as u32),
        Kind::U8 => i64::from(class as u8),
    };
    let of_row = |row: usize| {
        let chance = bits(case.seed ^ 5, row as u64);
        let class = (chance / 64) as i64 & i64::MAX;
        let class = match chance % 16 {
            0 | 1 => ignore_index,
            2 if bad => [cols, -1, i64::MIN, i64::MAX, i64::from(i32::MIN), 1 << 31]
                [chance as usize / 16 % 6],
            3 => 0,
            4 => cols - 1,
            _ => class % cols.max(1),
        };
        let stored = as_stored(class);
        // A number that does not fit the type may turn into one that is no class.
        let fits = bad || stored == ignore_index || (0..cols).contains(&stored);
        if fits { stored } else { as_stored(class % cols.max(1)) % cols.clamp(1, 256) }
    };
    (0..case.rows).map(of_row).collect()
}
