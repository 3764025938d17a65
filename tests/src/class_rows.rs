//! Calls of cross-entropy over rows of classes, in every pass, compared with float64.

use crate::number::Number;
use crate::random::uniforms;
use crate::{Placed, gpu};
use fused_loss::{CrossEntropy, Loss, Tensor, View, Workspace};

const IGNORED: i64 = -100;

/// Where the rows of logits and of gradients begin, and the gaps between them.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub gaps: [usize; 2],
    pub offsets: [usize; 2],
}

/// No gaps, and rows that begin on a boundary.
pub const DENSE: Place = Place { gaps: [0; 2], offsets: [0; 2] };

/// The options of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Options {
    None,
    Weights,
    ZLoss,
    Smoothing,
    /// Smoothing, with class weights that begin this many elements off a boundary.
    SmoothedWeights(usize),
}

impl Options {
    /// Whether the call has class weights.
    pub fn has_weights(self) -> bool {
        matches!(self, Options::Weights | Options::SmoothedWeights(_))
    }

    fn smoothing(self) -> f64 {
        if matches!(self, Options::Smoothing | Options::SmoothedWeights(_)) { 0.25 } else { 0.0 }
    }

    fn z_loss(self) -> f64 {
        if self == Options::ZLoss { Z_LOSS } else { 0.0 }
    }

    /// The call with these options; `weights` are used if it has class weights.
    pub fn on<'v, T, R>(
        self,
        call: CrossEntropy<'v, T, R>,
        weights: impl Into<View<'v, T>>,
    ) -> CrossEntropy<'v, T, R> {
        let call = call.label_smoothing(self.smoothing()).z_loss(self.z_loss());
        if self.has_weights() { call.weight(weights) } else { call }
    }
}

const Z_LOSS: f64 = 0.01;

/// A call over rows of classes. Of every nine rows, one is ignored and two have a class near an end
/// of the row. One row is nearly certain, one has large logits, and one has equal logits.
pub struct Case<T> {
    rows: usize,
    cols: usize,
    place: Place,
    options: Options,
    pub x: Vec<T>,
    pub weights: Vec<T>,
    pub classes: Vec<i64>,
}

impl<T: Number> Case<T>
where
    T::Loss: Number,
{
    /// At least six rows of `cols` logits each.
    pub fn new([rows, cols]: [usize; 2], place: Place, options: Options) -> Self {
        let mut x: Vec<T> = uniforms(7 + cols as u64, rows * cols)
            .iter()
            .map(|x| T::round(6.0 * f64::from(*x)))
            .collect();
        // A nearly certain row, logits far from 0, and a row of equal logits.
        x[3 * cols] = T::round(40.0);
        for column in 0..cols {
            x[4 * cols + column] = T::round(if column == 0 { 60_000.0 } else { 59_000.0 });
            x[5 * cols + column] = T::round(2.0);
        }
        // Classes at the ends of a row, which are not read in vectors, occur too.
        let class_of = |row: usize| match row % 9 {
            8 => IGNORED,
            1 => (row / 9 % cols.min(8)) as i64,
            2 => (cols - 1 - row / 9 % cols.min(8)) as i64,
            _ => (row * 5 % cols) as i64,
        };
        let weights = (0..cols).map(|class| T::round(0.5 + 0.25 * (class % 3) as f64)).collect();
        let classes = (0..rows).map(class_of).collect();
        Case { rows, cols, place, options, x, weights, classes }
    }

    /// The loss of a row, and its gradient, in float64.
    fn expected(&self, row: usize) -> (f64, Vec<f64>) {
        let Case { cols, classes, options, .. } = self;
        if classes[row] == IGNORED {
            return (0.0, vec![0.0; *cols]);
        }
        let class = classes[row] as usize;
        let x: Vec<f64> = self.x[row * cols..(row + 1) * cols].iter().map(|x| x.wide()).collect();
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exps: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let log_sum_exp = sum.ln() + max;
        let weight_of =
            |class: usize| if options.has_weights() { self.weights[class].wide() } else { 1.0 };
        let (weight, share) =
            ((1.0 - options.smoothing()) * weight_of(class), options.smoothing() / *cols as f64);
        let z_loss = options.z_loss();
        let minus_log_p = |class: usize| sum.ln() - (x[class] - max);
        let smoothed: f64 = (0..*cols).map(|class| weight_of(class) * minus_log_p(class)).sum();
        let all_weights: f64 = (0..*cols).map(weight_of).sum();
        let loss =
            weight * minus_log_p(class) + share * smoothed + z_loss * log_sum_exp * log_sum_exp;
        let gradient = (0..*cols).map(|column| {
            let p = exps[column] / sum;
            // p − 1 of the class, without cancellation.
            let others = || exps.iter().enumerate().filter(|(other, _)| *other != class);
            let by_loss =
                if column == class { -others().map(|(_, exp)| exp / sum).sum::<f64>() } else { p };
            let by_share = share * (all_weights * p - weight_of(column));
            weight * by_loss + by_share + 2.0 * z_loss * log_sum_exp * p
        });
        (loss, gradient.collect())
    }

    /// Fails unless the gradients of a row are as accurate as documented.
    pub fn is_near(&self, row: usize, got: &[T], expected: &[f64]) {
        let largest = expected.iter().fold(0.0_f64, |largest, of| largest.max(of.abs()));
        for (column, (got, &expected)) in got.iter().zip(expected).enumerate() {
            let Case { cols, place, options, .. } = self;
            // Smoothing may cancel nearly all of the gradient of the class.
            let cancelled = if options.smoothing() > 0.0 { 1e-7 } else { 0.0 };
            let allowed = T::allowed(expected, largest, 1.0) + 1e-6 * largest + cancelled;
            assert!(
                (got.wide() - expected).abs() <= allowed,
                "{} {cols} columns, {place:?}, {options:?}, row {row}, column {column}: expected \
                 {expected}, got {}",
                T::NAME,
                got.wide()
            );
        }
    }

    /// Compares the loss of each pass, and the gradients, with float64.
    pub fn check(&self) {
        let Case { rows, cols, place: Place { gaps, offsets }, options, .. } = self;
        let (shape, stream) = ([*rows, *cols], gpu().stream().unwrap());
        let place = |data: &[T], which: usize| {
            let stride = cols + gaps[which];
            Placed::rows(data, shape, stride, offsets[which], T::round(f64::NAN))
        };
        let mut x = self.x.clone();
        // The logits of an ignored row must not matter.
        for row in (0..*rows).filter(|&row| self.classes[row] == IGNORED) {
            x[row * cols] = T::round(f64::NAN);
            x[row * cols + cols - 1] = T::round(f64::INFINITY);
        }
        let x = place(&x, 0);
        let classes = Tensor::from_slice(gpu(), [*rows], &self.classes).unwrap();
        let off = if let Options::SmoothedWeights(off) = options { *off } else { 0 };
        // No guards after the weights, so that the emulator reports a load beyond them.
        let weights = Tensor::from_slice(gpu(), [off + cols], &{
            let mut weights = vec![T::round(f64::NAN); off];
            weights.extend_from_slice(&self.weights);
            weights
        })
        .unwrap();
        let begin = weights.as_raw() + (off * size_of::<T>()) as u64;
        // SAFETY: within `weights`, which lives until the test has waited for all work.
        let weights_of_classes = unsafe { View::from_raw(gpu(), begin, [*cols]) }.unwrap();
        let of_call = options.on(CrossEntropy::sum(), weights_of_classes);
        let expected: Vec<_> = (0..*rows).map(|row| self.expected(row)).collect();
        let sum: f64 = expected.iter().map(|(loss, _)| loss).sum();
        let check_loss = |loss: Loss<T::Loss>| {
            let got = loss.item().unwrap().wide();
            assert!((got - sum).abs() <= 2e-6 * sum, "{self:?}: expected {sum}, got {got}");
        };
        let check_gradients = |gradients: &Placed<T>| {
            let got = gradients.to_vec();
            for (row, (_, expected)) in expected.iter().enumerate() {
                self.is_near(row, &got[row * cols..(row + 1) * cols], expected);
            }
        };

        check_loss(of_call.forward(x.view(), &classes, &stream).unwrap());
        let (loss, saved) = of_call.forward_saving(x.view(), &classes, &stream).unwrap();
        check_loss(loss);
        let one = Tensor::from_slice(gpu(), [], &[T::Loss::round(1.0)]).unwrap();
        let nothing = vec![T::round(0.0); rows * cols];
        let mut gradients = place(&nothing, 1);
        of_call
            .backward_into(x.view(), &classes, &saved, &one, gradients.view_mut(), &stream)
            .unwrap();
        stream.synchronize().unwrap();
        check_gradients(&gradients);

        let mut gradients = place(&nothing, 1);
        let mut loss = Loss::zeros(gpu(), []).unwrap();
        let mut workspace = Workspace::new(gpu()).unwrap();
        let to = gradients.view_mut();
        of_call
            .forward_backward_into(x.view(), &classes, &mut loss, to, &mut workspace, &stream)
            .unwrap();
        check_loss(loss);
        check_gradients(&gradients);
    }
}

impl<T> std::fmt::Debug for Case<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} columns, {:?}, {:?}", self.cols, self.place, self.options)
    }
}
