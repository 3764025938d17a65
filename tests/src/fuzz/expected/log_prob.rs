//! The expected log-probabilities and entropies.
//!
//! Their allowed errors are multiples of the error that `Number::LOSS` and `Number::allowed` allow
//! for a number of magnitude 1: a dozen roundings or more.

use super::{Expected, Is, fault, small};
use crate::fuzz::Case;
use crate::fuzz::values::Tensors;
use crate::reference::log_prob::{self, Row};
use crate::reference::tracked::{Range, Tracked};

/// The expected results of rows of logits, with this temperature and this ignored class.
pub(super) fn of_rows(
    case: &Case,
    tensors: &Tensors<f64>,
    (temperature, ignore_index): (f64, i64),
    range: Range,
) -> Expected {
    let is = |row| Is::of(tensors, row, ignore_index, case.cols);
    let mut expected = Expected {
        results: [Vec::new(), Vec::new()],
        grads: [Vec::new(), Vec::new()],
        log_sum_exp: Vec::new(),
        fault: fault(tensors, case.rows, is),
    };
    for row in 0..case.rows {
        let x = &tensors.input[row * case.cols..(row + 1) * case.cols];
        let upstreams = [0, 1].map(|result| tensors.upstream(result, row));
        let of_row = OfRow::new(x, is(row), temperature, upstreams, range);
        expected.results[0].push(of_row.log_prob);
        expected.results[1].push(of_row.entropy);
        expected.grads[0].extend(of_row.gradient);
        expected.log_sum_exp.push(of_row.log_sum_exp);
    }
    expected
}

struct OfRow {
    log_prob: Tracked,
    entropy: Tracked,
    log_sum_exp: Tracked,
    gradient: Vec<Tracked>,
}

impl OfRow {
    fn new(x: &[f64], is: Is, temperature: f64, upstreams: [f64; 2], range: Range) -> Self {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let has_distribution = max.is_finite() && !x.iter().any(|x| x.is_nan());
        let plain = has_distribution.then(|| Plain::new(x, max, temperature, range));
        let log_sum_exp = plain.as_ref().map_or(Tracked::lost(range), Plain::log_sum_exp);
        let same = |value| {
            let value = Tracked::exact(value, range);
            let gradient = vec![value; x.len()];
            OfRow { log_prob: value, entropy: value, log_sum_exp, gradient }
        };
        match (is, plain) {
            (Is::Ignored, _) => same(0.0),
            (Is::Class(class), Some(plain)) => {
                let row = log_prob::row(x, Some(class), temperature, upstreams);
                OfRow {
                    log_prob: plain.log_prob(class, row.log_prob),
                    entropy: plain.entropy(row.entropy),
                    log_sum_exp,
                    gradient: plain.gradient(class, upstreams, &row),
                }
            }
            _ => same(f64::NAN),
        }
    }
}

/// A row that has a distribution, and the intermediate numbers of its results.
struct Plain<'a> {
    x: &'a [f64],
    max: f64,
    temperature: f64,
    range: Range,
    /// z − m of each logit.
    apart: Vec<f64>,
    p: Vec<f64>,
    /// log Σ exp(z − m).
    log_sum: f64,
    /// |μ| = Σ p |z − m|.
    expected: f64,
    /// The errors of log Σ exp(z − m) and of μ.
    off_log_sum: f64,
    off_expected: f64,
}

/// The relative error of an exponential, which is that of its argument z − m: the product of a
/// difference and 1/T, each of them rounded.
fn of_exp(apart: f64) -> f64 {
    1.0 + apart.abs().min(LARGEST) / 4.0
}

/// Beyond this distance, exp(z − m) is 0 in float64.
const LARGEST: f64 = 1000.0;

impl<'a> Plain<'a> {
    fn new(x: &'a [f64], max: f64, temperature: f64, range: Range) -> Self {
        let apart: Vec<f64> = x.iter().map(|x| (x - max) / temperature).collect();
        let likeliest = x.iter().position(|&x| x == max).unwrap_or(0);
        let exps: Vec<f64> = apart.iter().map(|apart| apart.exp()).collect();
        let others = exps.iter().enumerate().filter(|&(col, _)| col != likeliest);
        let others: f64 = others.map(|(_, exp)| exp).sum();
        let p: Vec<f64> = exps.iter().map(|exp| exp / (1.0 + others)).collect();
        let log_sum = others.ln_1p();
        let mean = |of: fn(f64) -> f64| -> f64 {
            let terms = p.iter().zip(&apart).filter(|(p, _)| **p > 0.0);
            terms.map(|(&p, &apart)| p * of(apart)).sum()
        };
        let expected = mean(f64::abs);
        Plain {
            off_log_sum: log_sum * small(log_sum) + expected / 4.0,
            off_expected: mean(|apart| apart.abs() * of_exp(apart)),
            x,
            max,
            temperature,
            range,
            apart,
            p,
            log_sum,
            expected,
        }
    }

    /// A number with this `error`. If it is computed from exponentials that vanish, it may also be
    /// off by `vanishing` times the smallest nonzero number of the range, which is exp(−708) in
    /// float64.
    fn tracked(&self, value: f64, error: f64, vanishing: f64) -> Tracked {
        if !value.is_finite() {
            return Tracked::exact(value, self.range);
        }
        // `compare` subtracts the last rounding from the size.
        let size = value.abs() + 4.0 * error;
        let off = 1.5 * self.range.least * vanishing;
        Tracked { size, off, ..Tracked::exact(value, self.range) }
    }

    /// A bound for the sum of vanishing exponentials times their logarithms.
    fn vanishing(&self) -> f64 {
        LARGEST * self.x.len() as f64
    }

    fn log_sum_exp(&self) -> Tracked {
        let of_max = self.max / self.temperature;
        let error = of_max.abs() + self.off_log_sum;
        self.tracked(of_max + self.log_sum, error, self.vanishing())
    }

    /// `value`, the log-probability of a class.
    fn log_prob(&self, class: usize, value: f64) -> Tracked {
        // Treated like a logit of −∞ if the distance overflows the kernel's type.
        if self.range.round(self.x[class] - self.max).is_infinite() {
            return Tracked::exact(f64::NEG_INFINITY, self.range);
        }
        let error = self.apart[class].abs() + self.off_log_sum;
        self.tracked(value, error, self.vanishing())
    }

    /// `value`, the entropy.
    fn entropy(&self, value: f64) -> Tracked {
        self.tracked(value, self.off_log_sum + self.off_expected, self.vanishing())
    }

    /// The gradients of `row`, whose class is `class`.
    fn gradient(&self, class: usize, [a, b]: [f64; 2], row: &Row) -> Vec<Tracked> {
        let (a, b) = (a.abs() / self.temperature, b.abs() / self.temperature);
        // Each gradient is an exponential times a sum, and this is the magnitude of the sum's
        // terms.
        let to_mean = |col: usize| self.expected + self.apart[col].abs().min(LARGEST);
        let factor = |col: usize| a + b * to_mean(col);
        let p_off = |col: usize| self.p[col] * (of_exp(self.apart[col]) + self.off_log_sum);
        let others = || (0..self.x.len()).filter(|&col| col != class);
        let off_others: f64 = others().map(p_off).sum();
        let error = |col: usize| {
            let by_log_prob = match col == class {
                // 1 − p, which is the sum of the others if p is the largest.
                true if self.x[col] == self.max => off_others,
                true => 1.0 - self.p[col] + p_off(col),
                false => p_off(col),
            };
            let by_entropy = p_off(col) * to_mean(col) + self.p[col] * self.off_expected;
            a * by_log_prob + b * by_entropy
        };
        let errors: Vec<f64> = (0..self.x.len()).map(error).collect();
        let largest = errors.iter().copied().fold(0.0, f64::max);
        let tracked = |(col, &value): (usize, &f64)| {
            // The upstream gradients are divided by the temperature first, and multiplied by
            // numbers just above 1.
            let is_in_range = 2.0 * (b + factor(col)) <= self.range.max;
            if !is_in_range {
                return Tracked::lost(self.range);
            }
            // Exponentials may vanish, its own and those in μ and in 1 − p, and so may products.
            let of_others = (a + b) * self.p[col] * self.vanishing();
            let vanishing = factor(col) + of_others + 4.0 + self.expected;
            self.tracked(value, largest, vanishing)
        };
        row.gradient.iter().enumerate().map(tracked).collect()
    }
}
