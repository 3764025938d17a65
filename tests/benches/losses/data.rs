//! The contents of a shape's tensors on the device and on the host, and its losses in float64.
//!
//! Rows are random and repeat after some megabytes. So the device can tile what the host draws, and
//! a reference over a few million elements is one over all rows.

use crate::shapes::{Extra, Loss, Shape};
use tests::filled::filled;
use tests::number::Number;
use tests::random::uniform;
use tests::reference::Total;

pub(crate) const SMOOTHING: f64 = 0.1;
pub(crate) const Z_LOSS: f64 = 1e-4;

/// The class that calls ignore.
const IGNORED: i64 = -100;

/// Elements that are drawn of a tensor, or eight rows if these are more.
const DRAWN: usize = 4_000_000;

/// The rows of a tensor, the first `rows` of which are drawn.
pub(crate) struct Rows<T> {
    pub(crate) elements: Vec<T>,
    stride: usize,
    /// Elements before the first row.
    offset: usize,
}

impl<T: Number> Rows<T> {
    /// An element of any row.
    pub(crate) fn at(&self, row: usize, col: usize) -> f64 {
        self.elements[(self.offset + row * self.stride + col) % self.elements.len()].wide()
    }
}

/// The tensors of a shape on the host.
pub(crate) struct Data<T: Number> {
    shape: Shape,
    /// The number of rows after which everything repeats.
    pub(crate) rows: usize,
    pub(crate) input: Rows<T>,
    /// If the target is a matrix.
    pub(crate) target: Rows<T>,
    /// If it is not.
    pub(crate) classes: Vec<i64>,
    pub(crate) weights: Vec<T>,
    /// The upstream gradient of each row's loss; the first is that of a single loss.
    pub(crate) upstream: Vec<T::Loss>,
}

/// The results of a row, or of all rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// Without the z-loss, ...
    pub(crate) loss: f64,
    /// ... which is this.
    pub(crate) z: f64,
    /// The sum of the magnitudes of the loss's terms. Errors are relative to it.
    pub(crate) size: f64,
    /// What the row adds to the divisor of a mean.
    pub(crate) weight: f64,
    /// log Σ exp x.
    log_sum: f64,
    /// The sum of the shares of all classes in the target.
    shares: f64,
}

/// The gradient of an element of the input, neither divided nor scaled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gradient {
    pub(crate) of_loss: f64,
    pub(crate) of_z: f64,
    /// The larger of the two terms whose difference is the gradient of the loss.
    pub(crate) terms: f64,
}

impl<T: Number<Loss: Number>> Data<T> {
    pub(crate) fn new(shape: &Shape, seed: u64) -> Self {
        let stride = shape.stride();
        // With a multiple of eight rows of any length, every copy of the period begins at the same
        // offset from a boundary as the first.
        let rows = (DRAWN / stride / 8 * 8).max(8).min(shape.rows);
        let offset = usize::from(shape.has(Extra::Offset));
        let own = |misaligned: bool| if misaligned { offset } else { 0 };
        let of_ce = shape.loss == Loss::Ce;
        let len = rows * stride;
        let draw = |which: u64, value: &(dyn Fn(f64) -> f64 + Sync)| {
            filled(len, |index| T::round(value(f64::from(uniform(seed ^ which, index as u64)))))
        };
        let probability = |u: f64| 0.4995 * u + 0.5;
        let cols = shape.cols as f64;
        let input: &(dyn Fn(f64) -> f64 + Sync) = match shape.loss {
            Loss::Ce => &|u| 4.0 * u,
            Loss::Kl if shape.has(Extra::Log) => &|u| probability(u).ln(),
            Loss::Kl => &probability,
            Loss::Mse => &|u| u,
        };
        let target: &(dyn Fn(f64) -> f64 + Sync) = match shape.loss {
            Loss::Ce => &|u| 2.0 * probability(u) / cols,
            Loss::Kl => &probability,
            Loss::Mse => &|u| u,
        };
        let small = |which: u64, index: usize| f64::from(uniform(seed ^ which, index as u64));
        let class = |row| match shape.has(Extra::Ignored) && row % 3 == 2 {
            true => IGNORED,
            false => ((small(3, row) + 1.0) / 2.0 * cols) as i64,
        };
        let matrix = shape.target_is_a_matrix();
        let weighted = if shape.has(Extra::Weights) { shape.cols } else { 0 };
        Data {
            shape: shape.clone(),
            rows,
            input: Rows { elements: draw(1, input), stride, offset: own(of_ce) },
            target: Rows {
                elements: if matrix { draw(2, target) } else { Vec::new() },
                stride,
                offset: own(!of_ce),
            },
            classes: if matrix { Vec::new() } else { (0..rows).map(class).collect() },
            weights: (0..weighted).map(|col| T::round(1.0 + small(4, col) / 2.0)).collect(),
            upstream: (0..rows).map(|row| T::Loss::round(1.0 + small(5, row) / 2.0)).collect(),
        }
    }

    fn weight(&self, col: usize) -> f64 {
        self.weights.get(col).map_or(1.0, |weight| weight.wide())
    }

    fn smoothing(&self) -> f64 {
        if self.shape.has(Extra::Smoothing) { SMOOTHING } else { 0.0 }
    }

    fn z_loss(&self) -> f64 {
        if self.shape.has(Extra::ZLoss) { Z_LOSS } else { 0.0 }
    }

    /// The results of each drawn row.
    pub(crate) fn parts(&self) -> Vec<Part> {
        filled(self.rows, |row| match self.shape.loss {
            Loss::Ce => self.cross_entropy(row),
            _ => self.compared(row),
        })
    }

    fn compared(&self, row: usize) -> Part {
        let (mut loss, mut size) = (Total::default(), 0.0);
        for col in 0..self.shape.cols {
            let (x, t) = (self.input.at(row, col), self.target.at(row, col));
            let (term, magnitude) = match self.shape.loss {
                // The logarithm of the target is rounded before it is compared.
                Loss::Kl if self.shape.has(Extra::Log) => {
                    (t * (t.ln() - x), t * (t.ln().abs() + x.abs()))
                }
                Loss::Kl => (t * (t / x).ln(), t * (t / x).ln().abs()),
                _ => ((x - t).powi(2), (x - t).powi(2)),
            };
            loss.add(term);
            size += magnitude;
        }
        Part { loss: loss.value(), size, ..Part::default() }
    }

    /// Whether a row has the ignored class.
    fn is_ignored(&self, row: usize) -> bool {
        self.classes.get(row % self.rows) == Some(&IGNORED)
    }

    /// The share of a class in the target of a row.
    fn share(&self, row: usize, col: usize) -> f64 {
        if self.is_ignored(row) {
            return 0.0;
        }
        let own = if self.shape.target_is_a_matrix() {
            self.target.at(row, col)
        } else {
            f64::from(u8::from(self.classes[row % self.rows] as usize == col))
        };
        let even = self.smoothing() / self.shape.cols as f64;
        self.weight(col) * ((1.0 - self.smoothing()) * own + even)
    }

    fn cross_entropy(&self, row: usize) -> Part {
        if self.is_ignored(row) {
            return Part::default();
        }
        let cols = 0..self.shape.cols;
        // Logits are at most 4, so no exponential overflows.
        let sum: Total = cols.clone().map(|col| self.input.at(row, col).exp()).sum();
        let log_sum = sum.value().ln();
        let z = self.z_loss() * log_sum * log_sum;
        let part = Part { z, weight: 1.0, log_sum, ..Part::default() };
        if !self.shape.target_is_a_matrix() && self.smoothing() == 0.0 {
            let class = self.classes[row] as usize;
            let weight = self.weight(class);
            let loss = weight * (log_sum - self.input.at(row, class));
            return Part { loss, size: loss.abs(), weight, shares: weight, ..part };
        }
        let (mut loss, mut shares) = (Total::default(), Total::default());
        for col in cols {
            let share = self.share(row, col);
            loss.add(share * (log_sum - self.input.at(row, col)));
            shares.add(share);
        }
        let (loss, shares) = (loss.value(), shares.value());
        let class = self.classes.get(row).map(|&class| class as usize);
        let weight = class.map_or(1.0, |class| self.weight(class));
        Part { loss, size: loss.abs(), weight, shares, ..part }
    }

    /// The sums over all rows, which repeat the drawn ones.
    pub(crate) fn all(&self, parts: &[Part]) -> Part {
        let (whole, rest) = (self.shape.rows / self.rows, self.shape.rows % self.rows);
        let sum = |of: fn(&Part) -> f64| {
            let times = |row: usize| (whole + usize::from(row < rest)) as f64;
            let terms = parts.iter().enumerate().map(|(row, part)| times(row) * of(part));
            terms.sum::<Total>().value()
        };
        Part {
            loss: sum(|part| part.loss),
            z: sum(|part| part.z),
            size: sum(|part| part.size),
            weight: sum(|part| part.weight),
            ..Part::default()
        }
    }

    pub(crate) fn gradient(&self, parts: &[Part], row: usize, col: usize) -> Gradient {
        let x = self.input.at(row, col);
        if self.shape.loss != Loss::Ce {
            let t = self.target.at(row, col);
            let of_loss = match self.shape.loss {
                Loss::Kl if self.shape.has(Extra::Log) => -t,
                Loss::Kl => -t / x,
                _ => 2.0 * (x - t),
            };
            return Gradient { of_loss, of_z: 0.0, terms: of_loss.abs() };
        }
        let row = row % self.rows;
        let Part { log_sum, shares, .. } = parts[row];
        let p = (x - log_sum).exp();
        let own = self.share(row, col);
        Gradient {
            of_loss: p * shares - own,
            of_z: 2.0 * self.z_loss() * log_sum * p,
            terms: (p * shares).max(own),
        }
    }
}
