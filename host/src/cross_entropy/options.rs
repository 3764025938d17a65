//! The options of cross-entropy, and which values are refused.

use super::targets::Targets;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::launch::check_memory;
use crate::memory::Memory;
use crate::reduction::{Mean, SampleReduction, Sum, Unreduced};
use crate::shape::{Shape, check_shape};
use crate::stream::Stream;
use crate::view::View;
use std::fmt;

/// Cross-entropy of rows of logits x (the last dimension: C classes) and targets, which are classes
/// or the probabilities of all classes. Like PyTorch's `torch.nn.CrossEntropyLoss`, with two
/// differences: the gradient of an ignored row is 0 even if the row contains NaN, and a target that
/// is not a class is an error of [`Loss::item`](crate::Loss::item) and
/// [`Loss::check`](crate::Loss::check).
///
/// With log p = x − log Σ exp x, class weights w, and label smoothing ε:
///
/// | targets | loss of a row | divided by, for the mean |
/// |---|---|---|
/// | a class y | −(1 − ε) w_y log p_y − ε/C Σ w log p | Σ w_y of the rows that are not ignored |
/// | probabilities t | −Σ w ((1 − ε) t + ε/C) log p | the rows |
///
/// The z-loss adds λ (log Σ exp x)² for each row that is not ignored, for the mean divided by the
/// number of such rows. If Σ exp(x − m) is close to 1, its logarithm is computed from the excess
/// over 1, so a loss is accurate however small.
///
/// If all rows are ignored, or the weights add up to 0, a mean is NaN. Its gradient is 0 in the
/// first case and NaN in the second.
///
/// [`forward_backward`](Self::forward_backward) does both in one pass over the logits. If other
/// work comes between the passes, [`forward_saving`](Self::forward_saving) saves a few numbers per
/// row, from which [`backward`](Self::backward) computes the gradients.
///
/// Options are set one by one: `CrossEntropy::new().label_smoothing(0.1).reduction(Sum)`.
///
/// f16, bf16 and f32 logits are computed in f32, f64 logits in f64; sums over threads are f64.
///
/// Errors of every method, besides those of [`Mse`](crate::Mse):
/// [`InvalidShape`](Error::InvalidShape) for no classes or more than 2³¹ − 1;
/// [`InvalidOption`](Error::InvalidOption) for a `label_smoothing` that is not from 0 to 1, a
/// `z_loss` that is negative or not finite, or an `ignore_index` of 0 or more with probabilities.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct CrossEntropy<'w, T, R = Mean> {
    /// Weights of the classes, of shape `[C]`, as `Some(weight.view())`; `None`: every class has
    /// weight 1. A loss only borrows them, so making a loss for each call costs nothing.
    pub weight: Option<View<'w, T>>,
    /// Rows with this target do not count: their loss and their gradient are 0. It need not be a
    /// class.
    pub ignore_index: i64,
    /// ε, from 0 to 1: the part of every target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// λ; 0 for none.
    pub z_loss: f64,
    /// How the losses of the rows are reduced.
    pub reduction: R,
}

impl<T> CrossEntropy<'_, T> {
    /// The mean, without weights, smoothing and z-loss; −100 is ignored.
    pub const fn new() -> Self {
        CrossEntropy {
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            reduction: Mean,
        }
    }

    /// The same as [`new`](Self::new).
    pub const fn mean() -> Self {
        Self::new()
    }
}

impl<'w, T> CrossEntropy<'w, T> {
    /// The sum, otherwise as [`new`](Self::new).
    pub const fn sum() -> CrossEntropy<'w, T, Sum> {
        Self::new().with(Sum)
    }

    /// A loss for each row, otherwise as [`new`](Self::new).
    pub const fn none() -> CrossEntropy<'w, T, Unreduced> {
        Self::new().with(Unreduced)
    }

    const fn with<Q>(self, reduction: Q) -> CrossEntropy<'w, T, Q> {
        let CrossEntropy { weight, ignore_index, label_smoothing, z_loss, reduction: Mean } = self;
        CrossEntropy { weight, ignore_index, label_smoothing, z_loss, reduction }
    }
}

impl<T> Default for CrossEntropy<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies with one option changed.
impl<'w, T, R> CrossEntropy<'w, T, R> {
    /// With these [`weight`](Self#structfield.weight)s of the classes, of shape `[C]`.
    pub fn weight<'v>(self, weight: impl Into<View<'v, T>>) -> CrossEntropy<'v, T, R> {
        let CrossEntropy { ignore_index, label_smoothing, z_loss, reduction, .. } = self;
        let weight = Some(weight.into());
        CrossEntropy { weight, ignore_index, label_smoothing, z_loss, reduction }
    }

    /// With another [`ignore_index`](Self#structfield.ignore_index).
    pub fn ignore_index(self, ignore_index: i64) -> Self {
        CrossEntropy { ignore_index, ..self }
    }

    /// With another [`label_smoothing`](Self#structfield.label_smoothing), from 0 to 1.
    pub fn label_smoothing(self, label_smoothing: f64) -> Self {
        CrossEntropy { label_smoothing, ..self }
    }

    /// With another [`z_loss`](Self#structfield.z_loss); 0 for none.
    pub fn z_loss(self, z_loss: f64) -> Self {
        CrossEntropy { z_loss, ..self }
    }

    /// With another [`reduction`](Self#structfield.reduction).
    pub fn reduction<Q: SampleReduction>(self, reduction: Q) -> CrossEntropy<'w, T, Q> {
        let CrossEntropy { weight, ignore_index, label_smoothing, z_loss, .. } = self;
        CrossEntropy { weight, ignore_index, label_smoothing, z_loss, reduction }
    }
}

impl<T: Float, R> CrossEntropy<'_, T, R> {
    /// Refuses meaningless options and inputs that do not fit, before memory for results is
    /// allocated.
    pub(super) fn check(
        &self,
        input: Memory<'_>,
        target: &Targets<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_options(target)?;
        check_input::<T>(input)?;
        target.check(input.shape)?;
        let mut reads = vec![("input", input), ("target", target.memory)];
        if let Some(View { memory, .. }) = self.weight {
            check_shape("weight", Shape::row(input.shape.cols()), memory.shape)?;
            memory.check::<T>("weight")?;
            memory.check_elements("weight")?;
            reads.push(("weight", memory));
        }
        check_memory(stream, &reads, &[])
    }

    fn check_options(&self, target: &Targets<'_, T>) -> Result<()> {
        let invalid = |option, expected, got: &dyn fmt::Display| {
            Err(Error::InvalidOption { option, expected, got: got.to_string() })
        };
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return invalid("label_smoothing", "a number from 0 to 1", &self.label_smoothing);
        }
        if !self.z_loss.is_finite() || self.z_loss < 0.0 {
            return invalid("z_loss", "a finite number that is not negative", &self.z_loss);
        }
        if target.are_probabilities() && self.ignore_index >= 0 {
            let expected = "a negative number where targets are probabilities";
            return invalid("ignore_index", expected, &self.ignore_index);
        }
        Ok(())
    }
}

/// Refuses logits without classes, or with more classes than the kernels can count.
pub(crate) fn check_input<T>(input: Memory<'_>) -> Result<()> {
    let shape = input.shape;
    let problem = match shape.cols() {
        _ if shape.dims().is_empty() => "expected a dimension for the classes",
        0 => "expected one class at least",
        cols if i32::try_from(cols).is_err() => "expected fewer than 2^31 classes",
        _ => "",
    };
    if !problem.is_empty() {
        let problem = format!("{problem}, got shape {shape}");
        return Err(Error::InvalidShape { argument: "input", problem });
    }
    input.check::<T>("input")?;
    input.check_elements("input")
}
