//! The expected results of cross-entropy.

use super::{Expected, Is, fault, small};
use crate::fuzz::values::{Target, Tensors};
use crate::fuzz::{Case, LossOf, Reduce};
use crate::reference::Total;
use crate::reference::cross_entropy::{self, Options, Row};
use crate::reference::tracked::{Range, Tracked};

/// Cross-entropy of a case.
pub(super) struct OfRows<'a> {
    case: &'a Case,
    tensors: &'a Tensors<f64>,
    range: Range,
    weight: Vec<f64>,
    ignore_index: i64,
    label_smoothing: f64,
    z_loss: f64,
}

/// The results of a row before upstream gradients and divisors.
struct OfRow {
    /// The largest factor of the probabilities in the gradients of loss and z.
    most: Tracked,
    z_most: Tracked,
    /// The smallest factor that may be multiplied first.
    least: Tracked,
    loss: Tracked,
    z: Tracked,
    log_sum_exp: Tracked,
    by_input: Vec<Tracked>,
    z_by_input: Vec<Tracked>,
    by_target: Vec<Tracked>,
}

impl<'a> OfRows<'a> {
    pub(super) fn new(case: &'a Case, tensors: &'a Tensors<f64>, range: Range) -> Self {
        let LossOf::CrossEntropy { ignore_index, label_smoothing, z_loss, .. } = case.loss else {
            unreachable!()
        };
        let weight = tensors.weights[0].clone().unwrap_or_else(|| vec![1.0; case.cols]);
        OfRows { case, tensors, range, weight, ignore_index, label_smoothing, z_loss }
    }

    fn is(&self, row: usize) -> Is {
        Is::of(self.tensors, row, self.ignore_index, self.case.cols)
    }

    fn exact(&self, value: f64) -> Tracked {
        Tracked::exact(value, self.range)
    }

    pub(super) fn expected(&self) -> Expected {
        let (rows, cols, range) = (self.case.rows, self.case.cols, self.range);
        let of_rows: Vec<OfRow> = (0..rows).map(|row| self.row(row)).collect();
        let fault = fault(self.tensors, rows, |row| self.is(row));
        let is_mean = self.case.reduce() == Reduce::Mean;
        let counts = (0..rows).filter(|&row| self.is(row) != Is::Ignored).count();
        let (divisor, z_divisor) = if is_mean {
            (self.divisor(), self.exact(counts as f64))
        } else {
            (self.exact(1.0), self.exact(1.0))
        };
        // With smoothing too, where PyTorch returns infinity.
        let has_no_weight = divisor.value == 0.0 && divisor.off == 0.0;
        let is_each = self.case.reduce() == Reduce::Unreduced;
        let losses = if is_each {
            of_rows.iter().map(|row| row.loss.plus(row.z)).collect()
        } else {
            let sum = Tracked::sum(of_rows.iter().map(|row| row.loss), range).over(divisor);
            let z = Tracked::sum(of_rows.iter().map(|row| row.z), range).over(z_divisor);
            vec![if has_no_weight { self.exact(f64::NAN) } else { sum.plus(z) }]
        };
        let mut grads = [Vec::new(), Vec::new()];
        for (row, of_row) in of_rows.iter().enumerate() {
            let upstream = self.tensors.upstream(0, if is_each { row } else { 0 });
            let is = self.is(row);
            let always = match is {
                // If another row's target is no class, the gradients of a mean are unspecified.
                _ if is != Is::NoClass && is_mean && fault.is_some() => Some(Tracked::lost(range)),
                Is::Ignored => Some(self.exact(0.0)),
                Is::NoClass => Some(self.exact(f64::NAN)),
                _ if has_no_weight => Some(self.exact(f64::NAN)),
                _ if !upstream.is_finite() => Some(Tracked::lost(range)),
                _ => None,
            };
            let scale = self.exact(upstream).over(divisor);
            let z_scale = self.exact(upstream).over(z_divisor);
            for col in 0..cols {
                let by_input = always.unwrap_or_else(|| {
                    // Factors may be multiplied in any order: the probability, a common factor of
                    // loss and z, may come last.
                    let most = of_row.most.times(scale.magnitude());
                    if most.plus(of_row.z_most.times(z_scale.magnitude())).is_lost() {
                        return Tracked::lost(range);
                    }
                    let z = of_row.z_by_input[col].times(z_scale);
                    let mut by_input = of_row.by_input[col].times(scale).plus(z);
                    let vanishes = of_row.least.times(scale).value.abs() < range.least;
                    if vanishes && by_input.value.is_finite() {
                        let most = of_row.most.value;
                        by_input.off += by_input.value.abs() + range.least * most;
                    }
                    by_input
                });
                grads[0].push(by_input);
                let by_target = of_row.by_target[col].times(scale);
                let is_nothing = of_row.least.times(scale).value.abs() < range.least;
                let is_lost = is_nothing && by_target.value.is_infinite()
                    || of_row.most.times(scale).is_lost();
                let by_target = if is_lost { Tracked::lost(range) } else { by_target };
                grads[1].push(always.unwrap_or(by_target));
            }
        }
        let log_sum_exp = of_rows.iter().map(|row| row.log_sum_exp).collect();
        Expected { results: [losses, Vec::new()], grads, log_sum_exp, fault }
    }

    /// The divisor of a mean.
    fn divisor(&self) -> Tracked {
        let (mut sum, mut magnitude) = (Total::default(), 0.0);
        for row in 0..self.case.rows {
            let weight = match self.is(row) {
                Is::Ignored | Is::NoClass => continue,
                Is::Class(class) => self.weight[class],
                Is::Probabilities => 1.0,
            };
            sum.add(weight);
            magnitude += weight.abs();
        }
        let value = sum.value();
        if !magnitude.is_finite() || magnitude > self.range.max {
            return Tracked::lost(self.range);
        }
        // A forward pass rounds the sums of blocks, and weights of mixed sign may cancel to that
        // error.
        let is_mixed = magnitude > value.abs();
        let unit = if self.range == Range::F32 { 1.2e-7 } else { 1e-15 };
        let off = if is_mixed { unit * magnitude } else { 0.0 };
        Tracked { size: 4.0 * magnitude, off, ..self.exact(value) }
    }

    fn row(&self, row: usize) -> OfRow {
        let (range, cols) = (self.range, self.case.cols);
        let x = &self.tensors.input[row * cols..(row + 1) * cols];
        let is = self.is(row);
        let t = match &self.tensors.target {
            Target::Numbers(target) => &target[row * cols..(row + 1) * cols],
            Target::Classes(_) => &[],
        };
        let target = match is {
            Is::Ignored | Is::NoClass => cross_entropy::Target::Ignored,
            Is::Class(class) => cross_entropy::Target::Class(class),
            Is::Probabilities => cross_entropy::Target::Probabilities(t),
        };
        let (label_smoothing, z_loss) = (self.label_smoothing, self.z_loss);
        let options = Options { weight: &self.weight, label_smoothing, z_loss };
        let of_row = cross_entropy::row(x, target, options);
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_plain = max.is_finite() && !x.iter().any(|x| x.is_nan());
        let log_sum = of_row.log_sum_exp - max;
        let log_sum_exp = if is_plain {
            let size = 4.0 * (max.abs() + log_sum * small(log_sum));
            Tracked { size, ..self.exact(of_row.log_sum_exp) }
        } else {
            Tracked::lost(range)
        };
        let all = |value| vec![value; cols];
        let same = |loss, z, by_input, z_by_input, by_target| OfRow {
            most: self.exact(1.0),
            z_most: self.exact(1.0),
            least: self.exact(1.0),
            loss,
            z,
            log_sum_exp,
            by_input: all(by_input),
            z_by_input: all(z_by_input),
            by_target: all(by_target),
        };
        let (zero, nan) = (self.exact(0.0), self.exact(f64::NAN));
        match is {
            Is::Ignored => return same(zero, zero, zero, zero, zero),
            Is::NoClass => return same(nan, zero, nan, zero, nan),
            _ if !is_plain => return same(nan, zero, nan, zero, nan),
            _ => {}
        }
        let numbers = || self.weight.iter().chain(t);
        let magnitude: f64 = numbers().map(|value| value.abs()).sum();
        if !magnitude.is_finite() || magnitude > range.max {
            let lost = Tracked::lost(range);
            return same(lost, lost, lost, lost, lost);
        }
        self.plain_row(x, is, t, max, log_sum, log_sum_exp, of_row)
    }

    /// A row whose largest logit, weights and probabilities are finite.
    #[expect(clippy::too_many_arguments, reason = "what `row` has found of the row")]
    fn plain_row(
        &self,
        x: &[f64],
        is: Is,
        t: &[f64],
        max: f64,
        log_sum: f64,
        log_sum_exp: Tracked,
        of_row: Row,
    ) -> OfRow {
        let (range, cols) = (self.range, self.case.cols);
        let (keep, share) = (1.0 - self.label_smoothing, self.label_smoothing / cols as f64);
        let target = |col: usize| match is {
            Is::Class(class) => f64::from(u8::from(class == col)),
            _ => t[col],
        };
        let q = |col: usize| (self.weight[col] * (keep * target(col) + share)).abs();
        let log_p = |col: usize| (max - x[col]) + log_sum;
        // The error of an exponential is that of its argument, and grows with the distance of the
        // logits.
        let apart = |col: usize| 1.0 + (max - x[col]).min(800.0) / 8.0;
        let p = |col: usize| (x[col] - max - log_sum).exp();
        let is_bare = matches!(is, Is::Class(_)) && share == 0.0;
        let counts = |col: usize| q(col) > 0.0 && log_p(col).is_finite();

        let all_q: f64 = (0..cols).map(q).sum();
        let parts = || (0..cols).filter(|&col| counts(col));
        let magnitude: f64 = parts().map(|col| q(col) * log_p(col) * small(log_p(col))).sum();
        // A class of weight 0 counts here: its logit may be too far below for f32, and 0 · ∞ is
        // NaN.
        let reads = |col: &usize| !is_bare || target(*col) > 0.0;
        let finite_log_p = (0..cols).filter(reads).map(log_p).filter(|log_p| log_p.is_finite());
        let span = finite_log_p.fold(1.0, f64::max);
        let most = numbers_above_one(&self.weight, t) * span;
        // In f32, a lane adds up to about 128 terms in sequence, in two sums. It has one sum, if
        // the largest logit is far from 0 or the sum of all terms leaves the range.
        let has_sum = !is_bare && range == Range::F32;
        let is_far = max.abs() >= 16_777_216.0 || 2.0 * span * cols as f64 > range.max;
        let in_sequence = cols.min(128) as f64 / if is_far { 16.0 } else { 32.0 };
        let terms = if has_sum { in_sequence.max(1.0) } else { 1.0 };
        // Bounds products of the arguments in any order. The first subtraction decides which x − m
        // that leave the range are read as −∞.
        let leaves_range = |col: usize| x[col].is_finite() && (max - x[col]).is_infinite();
        let is_lost = magnitude > range.max / 4.0
            || span > range.max
            || (0..cols).filter(reads).any(leaves_range)
            || most > range.max && !is_smoothed(is, share);
        // 0 · ∞, where the kernel's q is 0 although this one is not.
        let is_nothing = |col: usize| q(col) > 0.0 && q(col) < range.least;
        let is_lost = is_lost || (0..cols).any(|col| is_nothing(col) && log_p(col).is_infinite());
        let is_lost = is_lost || (most / cols as f64) * share.max(keep) > range.max;
        let off = range.least * span * (1.0 + all_q) * cols as f64 + f64::EPSILON * all_q;
        let tracked = |value: f64, size: f64, off: f64, is_lost: bool| {
            if is_lost || value.is_finite() && value.abs() > range.max {
                Tracked::lost(range)
            } else if value.is_finite() {
                Tracked { size: 4.0 * size, off, ..self.exact(value) }
            } else {
                self.exact(value)
            }
        };

        let all: f64 = self.weight.iter().map(|weight| weight.abs()).sum();
        let parts = [keep, share].into_iter().chain(self.weight.iter().map(|weight| weight.abs()));
        let least = |least: f64, part: f64| if part > 0.0 { least.min(part) } else { least };
        let least = parts.fold(1.0, least).powi(2);

        let lse_magnitude = max.abs() + log_sum;
        let z_loss = range.round(self.z_loss);
        let z_is_lost = z_loss > 0.0 && lse_magnitude.max(1.0) * lse_magnitude > range.max;
        let z_size = z_loss * lse_magnitude * lse_magnitude;

        let own = |col: usize| {
            if is_bare {
                of_row.by_input[col].abs() * apart(col)
            } else {
                p(col) * apart(col).min(100.0) * all_q + q(col)
            }
        };
        let largest = (0..cols).map(own).fold(0.0, f64::max);
        let z_largest = (0..cols).map(|col| p(col) * apart(col)).fold(0.0, f64::max);
        let z_largest = 2.0 * z_loss * lse_magnitude * z_largest;
        // The softmax is multiplied by the sum of the weighted probabilities.
        let by_is_lost = is == Is::Probabilities && (!all_q.is_finite() || all_q > range.max);
        let by_off = range.least * (1.0 + all_q) + f64::EPSILON * all_q;
        let finite = |value: f64| if value.is_finite() { value.abs() } else { 0.0 };
        let by_target_largest = of_row.by_target.iter().copied().map(finite).fold(0.0, f64::max);
        let by_target = |&value: &f64| {
            let off = range.least * span.max(1.0);
            tracked(value, by_target_largest + f64::EPSILON, off, most > range.max)
        };
        OfRow {
            // At least 2, the largest factor that corrects the rounding of the largest logit times
            // log₂ e.
            most: self.exact(if is_bare { all_q.max(2.0) } else { all_q.max(all).max(2.0) }),
            z_most: self.exact((2.0 * z_loss * lse_magnitude).max(z_loss)),
            least: self.exact(least),
            loss: tracked(of_row.loss, magnitude * terms, off, is_lost),
            z: tracked(of_row.z, z_size, range.least * (1.0 + lse_magnitude), z_is_lost),
            log_sum_exp,
            by_input: of_row
                .by_input
                .iter()
                .map(|&value| tracked(value, largest, by_off, by_is_lost))
                .collect(),
            z_by_input: of_row
                .z_by_input
                .iter()
                .map(|&value| {
                    tracked(value, z_largest, range.least * (1.0 + lse_magnitude), z_is_lost)
                })
                .collect(),
            by_target: of_row.by_target.iter().map(by_target).collect(),
        }
    }
}

fn is_smoothed(is: Is, share: f64) -> bool {
    matches!(is, Is::Class(_)) && share > 0.0
}

/// The product of the largest weight and the largest probability, each at least 1.
fn numbers_above_one(weights: &[f64], probabilities: &[f64]) -> f64 {
    let most = |of: &[f64]| of.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
    most(weights) * most(probabilities)
}
