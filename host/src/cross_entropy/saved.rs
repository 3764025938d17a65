//! What a forward pass saves for the backward pass.

use super::options::CrossEntropy;
use super::targets::Targets;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::shape::{IntoShape, Shape};
use crate::tensor::Tensor;
use crate::view::View;
use kernels_gpu::abi::{TargetFault, saved};
use std::fmt;

/// What a forward pass of [`CrossEntropy`] or [`LogProb`](crate::LogProb) saves for the backward
/// pass: the largest logit m of each row, log Σ exp(x − m), and what a mean is divided by. It takes
/// a few bytes per row.
///
/// It records which forward pass wrote it: the shape and element type of the logits, the kind of
/// targets, the loss, and its options except the reduction, on which nothing here depends. A
/// backward pass with anything else is refused. The caller must pass logits and targets with the
/// same numbers; the library cannot check that, because they may have moved and others may be at
/// their old addresses. A call that is captured into a graph counts from its capture on, whether or
/// not the graph was launched.
pub struct Saved<V> {
    pub(super) rows: Tensor<V>,
    pub(super) totals: Tensor<f64>,
    /// The shape of the logits.
    pub(super) input: Shape,
    /// The forward pass that wrote last; `None` before the first.
    pub(crate) origin: Option<Origin>,
}

/// What decides whether a backward pass may use what a forward pass has saved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Origin {
    loss: &'static str,
    logits: &'static str,
    targets: &'static str,
    has_weight: bool,
    /// `None` for probabilities, because no row of them is ignored.
    ignore_index: Option<i64>,
    label_smoothing: f64,
    z_loss: f64,
    temperature: f64,
}

impl Origin {
    /// A forward pass of `loss`, without the options of cross-entropy.
    pub(crate) fn new<T: Float>(
        loss: &'static str,
        target: &Targets<'_, T>,
        ignore_index: i64,
        temperature: f64,
    ) -> Self {
        Origin {
            loss,
            logits: T::NAME,
            targets: target.name,
            has_weight: false,
            ignore_index: (!target.are_probabilities()).then_some(ignore_index),
            label_smoothing: 0.0,
            z_loss: 0.0,
            temperature,
        }
    }

    pub(super) fn of_cross_entropy<T: Float, R>(
        loss: &CrossEntropy<'_, T, R>,
        target: &Targets<'_, T>,
    ) -> Self {
        Origin {
            has_weight: loss.weight.is_some(),
            label_smoothing: loss.label_smoothing,
            z_loss: loss.z_loss,
            ..Origin::new("cross-entropy", target, loss.ignore_index, 1.0)
        }
    }

    /// Its parts, as errors name them after "a forward pass".
    fn parts(&self) -> [String; 8] {
        let weight = if self.has_weight { "with class weights" } else { "without class weights" };
        [
            format!("of {}", self.loss),
            format!("of {} logits", self.logits),
            format!("of {}", self.targets),
            weight.to_owned(),
            format!("with ignore_index {}", self.ignore_index.unwrap_or_default()),
            format!("with label_smoothing {}", self.label_smoothing),
            format!("with z_loss {}", self.z_loss),
            format!("with temperature {}", self.temperature),
        ]
    }

    /// Refuses `got` if it is `None` or another forward pass.
    pub(crate) fn check(&self, got: Option<&Origin>) -> Result<()> {
        let Some(got) = got else {
            let expected = "what a forward pass has left".to_owned();
            return Err(Error::Saved { expected, got: "memory that none has written".to_owned() });
        };
        if self == got {
            return Ok(());
        }
        let mut parts = self.parts().into_iter().zip(got.parts());
        let (expected, got) = parts.find(|(expected, got)| expected != got).unwrap_or_default();
        let (expected, got) = (format!("a forward pass {expected}"), format!("one {got}"));
        Err(Error::Saved { expected, got })
    }
}

/// The offset from a [`Saved`]'s totals of a [`TargetFault`] that no caller asks for.
pub(super) const FAULT_OF_SAVED: u64 = 2 * size_of::<f64>() as u64;

impl<V: Float> Saved<V> {
    /// Memory for logits of shape `input`, for
    /// [`CrossEntropy::forward_saving_into`](crate::CrossEntropy::forward_saving_into) to write.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros(gpu: &Gpu, input: impl IntoShape) -> Result<Self> {
        let mut saved = Self::uninitialised(gpu, input)?;
        saved.rows.clear()?;
        saved.totals.clear()?;
        Ok(saved)
    }

    /// Uninitialised memory, for a forward pass to write.
    pub(crate) fn uninitialised(gpu: &Gpu, input: impl IntoShape) -> Result<Self> {
        let input = input.into_shape("input")?;
        let of_rows = [saved::COUNT, input.of_rows().len()].into_shape("input")?;
        let rows = Tensor::uninitialised(gpu, of_rows, "saved pass")?;
        let totals = FAULT_OF_SAVED as usize + size_of::<TargetFault>();
        let totals =
            Tensor::uninitialised(gpu, Shape::row(totals / size_of::<f64>()), "saved pass")?;
        Ok(Saved { rows, totals, input, origin: None })
    }

    /// Waits for all work that uses it, and forgets the streams of that work, as
    /// [`Tensor::synchronize`] does.
    ///
    /// # Errors
    /// [`Error::Driver`] if some of that work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.rows.synchronize()?;
        self.totals.synchronize()
    }

    /// log Σ exp x of each row. For log-probabilities, x are the logits divided by the temperature.
    pub fn log_sum_exp(&self) -> View<'_, V> {
        let of_rows = self.input.of_rows();
        let offset = saved::LOG_SUM_EXP * (of_rows.len() * size_of::<V>()) as u64;
        View::of(self.rows.view().memory.part::<V>(offset, of_rows))
    }
}

impl<V: Float> fmt::Debug for Saved<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saved<{}> of logits {}", V::NAME, self.input)
    }
}
