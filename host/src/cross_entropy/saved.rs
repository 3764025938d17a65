//! What a forward pass leaves for the backward.

use crate::error::Result;
use crate::gpu::Gpu;
use crate::tensor::Tensor;
use crate::view::{Float, IntoShape, Shape, View};
use kernels_gpu::abi::saved;
use std::fmt;

/// What a forward pass leaves for the backward: the largest logit m of each row, log Σ exp(x − m),
/// and what a mean is divided by. A few bytes a row.
pub struct Saved<V> {
    pub(super) rows: Tensor<V>,
    pub(super) totals: Tensor<f64>,
    pub(super) shape: Shape,
}

/// Where, behind the start of a [`Saved`]'s totals, there is room for a fault.
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

    /// Memory that the forward pass that gets it writes.
    pub(super) fn uninitialised(gpu: &Gpu, input: impl IntoShape) -> Result<Self> {
        let shape = input.into_shape("input")?.of_rows();
        let rows = Tensor::uninitialised(gpu, [saved::COUNT, shape.len()].into_shape("input")?)?;
        // Behind the totals, room for a fault that nobody asks for.
        Ok(Saved { rows, totals: Tensor::uninitialised(gpu, Shape::row(4))?, shape })
    }

    /// log Σ exp x of each row.
    pub fn log_sum_exp(&self) -> View<'_, V> {
        let offset = saved::LOG_SUM_EXP * (self.shape.len() * size_of::<V>()) as u64;
        let rows = self.rows.view().memory;
        View::of(rows.part::<V>(offset, self.shape))
    }
}

impl<V: Float> fmt::Debug for Saved<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saved<{}> of rows {}", V::NAME, self.shape)
    }
}
