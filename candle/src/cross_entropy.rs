//! Cross-entropy.

use crate::check;
use crate::memory::{Input, Operand, Output, dtype_of, read_option, view_option};
use crate::pairwise::{gradients, grads, operands, tensors, writes};
use crate::queue::Place;
use crate::{TensorLoss, constant, for_float, for_rows, storage_of};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, DType, Layout, Result, Shape, Storage, Tensor, bail,
};
use fused_loss::reduction::{Mean, SampleReduction};
use fused_loss::{Float, Targets};

/// Cross-entropy of logits, of shape `[.., C]`, and targets, which are classes (`u32`, `i64`, `u8`
/// or `i32`, of the logits' shape without its last dimension) or the probabilities of all classes
/// (of the logits' shape and type).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use fused_loss_candle::{CrossEntropy, TensorLoss};
///
/// # fn main() -> candle_core::Result<()> {
/// # if cfg!(not(feature = "emulator")) { return Ok(()) }
/// let logits = Tensor::new(&[[0.5_f32, 1.0, 1.5], [2.0, 2.5, 3.0]], &Device::Cpu)?;
/// let classes = Tensor::new(&[2_u32, 0], &Device::Cpu)?;
/// // The second row is padding.
/// let loss = CrossEntropy::new().ignore_index(0).loss(&logits, &classes)?;
/// assert!((loss.to_scalar::<f32>()? - 0.68027).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// It computes [`fused_loss::CrossEntropy`]. The logits and probabilities get gradients, `weight`
/// does not. Loss and upstream gradient are `f32`, or `f64` for `f64` logits.
///
/// A target that is neither a class nor `ignore_index` makes the loss NaN, and
/// [`check`](crate::check()) reports it.
#[derive(Clone, Debug)]
pub struct CrossEntropy<R = Mean> {
    weight: Option<Tensor>,
    ignore_index: i64,
    label_smoothing: f64,
    z_loss: f64,
    reduction: R,
}

impl CrossEntropy {
    /// The mean, without weights, smoothing and z-loss; −100 is ignored.
    #[must_use]
    pub const fn new() -> Self {
        CrossEntropy {
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            reduction: Mean,
        }
    }
}

impl Default for CrossEntropy {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies with one option changed.
impl<R> CrossEntropy<R> {
    /// With weights of the classes, of shape `[C]` and the logits' type, which are constants.
    #[must_use]
    pub fn weight(self, weight: &Tensor) -> Self {
        CrossEntropy { weight: Some(weight.clone()), ..self }
    }

    /// Rows with this target do not count, neither in the loss nor in the divisor of a mean. It
    /// need not be a class. With probabilities, of which no row is ignored, it must be negative.
    #[must_use]
    pub fn ignore_index(self, ignore_index: i64) -> Self {
        CrossEntropy { ignore_index, ..self }
    }

    /// ε, from 0 to 1: the part of every target that is spread evenly over all classes.
    #[must_use]
    pub fn label_smoothing(self, label_smoothing: f64) -> Self {
        CrossEntropy { label_smoothing, ..self }
    }

    /// λ: each row that is not ignored adds λ (log Σ exp x)² to its loss. 0 for none.
    #[must_use]
    pub fn z_loss(self, z_loss: f64) -> Self {
        CrossEntropy { z_loss, ..self }
    }

    /// With another reduction: [`Mean`], [`Sum`](crate::Sum), or
    /// [`Unreduced`](fused_loss::reduction::Unreduced) for a loss of each row.
    #[must_use]
    pub fn reduction<Q: SampleReduction>(self, reduction: Q) -> CrossEntropy<Q> {
        let CrossEntropy { weight, ignore_index, label_smoothing, z_loss, .. } = self;
        CrossEntropy { weight, ignore_index, label_smoothing, z_loss, reduction }
    }
}

impl<R: SampleReduction + Send + Sync + 'static> TensorLoss for CrossEntropy<R> {
    fn loss(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let mut this = self.clone();
        if let Some(weight) = &self.weight {
            this.weight = Some(constant("weight", weight, input)?);
        }
        let classes = matches!(target.dtype(), DType::U32 | DType::I64 | DType::U8 | DType::I32);
        // A class has no gradient, so the backward pass need not visit what computed it.
        let target = if classes { target.detach().contiguous()? } else { for_rows(target)? };
        for_rows(input)?.apply_op2(&target, this)
    }
}

impl<R: SampleReduction> CrossEntropy<R> {
    fn forward(&self, input: Operand<'_>, target: Operand<'_>) -> Result<(Storage, Shape)> {
        for_float!(input.dtype(), "input", T => self.forward_of::<T>(input, target))
    }

    fn forward_of<T: Float>(
        &self,
        input: Operand<'_>,
        target: Operand<'_>,
    ) -> Result<(Storage, Shape)> {
        let place = Place::of(input.memory)?;
        let held = self.weight.as_ref().map(Tensor::storage_and_layout);
        let weight = read_option(&held, &place)?;
        let (of_target, input) = (target.dtype(), input.read(&place)?);
        let target = target.read(&place)?;
        let of_loss = self.reduction.shape_of_samples(input.shape());
        let dtype = dtype_of::<T::Loss>();
        let mut loss = Output::new(&place, dtype, check::len_with_fault(of_loss.len(), dtype))?;
        {
            let mut to = loss.write(&place)?;
            let to = to.loss(of_loss, check::fault_offset(of_loss.len(), dtype))?;
            let x = input.view::<T>()?;
            let (t, this) = (targets(&target, of_target)?, self.with(&weight)?);
            place.queue(|stream, workspace| this.forward_into(x, t, to, workspace, stream))?;
        }
        Ok((loss.finish()?, Shape::from(of_loss.dims())))
    }

    /// The requested gradients of logits and probabilities. One pass computes them from the logits,
    /// so the forward pass saves nothing. The pass also computes the loss again, which is dropped.
    fn backward_of<T: Float>(
        &self,
        [input, target, upstream]: [Operand<'_>; 3],
        wanted: [bool; 2],
    ) -> Result<[Option<Tensor>; 2]> {
        let place = Place::of(input.memory)?;
        let held = self.weight.as_ref().map(Tensor::storage_and_layout);
        let weight = read_option(&held, &place)?;
        let (dims, of_target) = (input.dims(), target.dtype());
        let [input, target, upstream] =
            [input.read(&place)?, target.read(&place)?, upstream.read(&place)?];
        let mut gradients = gradients(&place, &input, dtype_of::<T>(), wanted)?;
        let of_loss = self.reduction.shape_of_samples(input.shape());
        let mut loss = Output::new(&place, dtype_of::<T::Loss>(), of_loss.len())?;
        {
            let mut to = loss.write(&place)?;
            let to = to.view(of_loss)?;
            let [mut of_input, mut of_target_grad] = writes(&mut gradients, &place)?;
            let grads = grads(&mut of_input, &mut of_target_grad, input.shape())?;
            let grads = grads.scaled_by(upstream.view::<T::Loss>()?);
            let x = input.view::<T>()?;
            let (t, this) = (targets(&target, of_target)?, self.with(&weight)?);
            place.queue(|stream, workspace| {
                this.forward_backward_into(x, t, to, grads, workspace, stream)
            })?;
        }
        tensors(gradients, dims)
    }

    /// The library's loss.
    fn with<'w, T: Float>(
        &self,
        weight: &'w Option<Input<'_>>,
    ) -> Result<fused_loss::CrossEntropy<'w, T, R>> {
        let loss = fused_loss::CrossEntropy::new()
            .ignore_index(self.ignore_index)
            .label_smoothing(self.label_smoothing)
            .z_loss(self.z_loss)
            .reduction(self.reduction);
        Ok(match view_option(weight)? {
            Some(weight) => loss.weight(weight),
            None => loss,
        })
    }
}

/// Targets as a call takes them, of logits of type `T`.
fn targets<'a, T: Float>(target: &'a Input<'_>, dtype: DType) -> Result<Targets<'a, T>> {
    match dtype {
        DType::U32 => Ok(target.view::<u32>()?.into()),
        DType::I64 => Ok(target.view::<i64>()?.into()),
        DType::U8 => Ok(target.view::<u8>()?.into()),
        DType::I32 => Ok(target.view::<i32>()?.into()),
        dtype if dtype == dtype_of::<T>() => Ok(target.view::<T>()?.into()),
        other => bail!(
            "target: expected classes of type U32, I64, U8 or I32, or probabilities of the \
             logits' type {:?}, got a tensor of {other:?}",
            dtype_of::<T>()
        ),
    }
}

impl<R: SampleReduction + Send + Sync + 'static> CustomOp2 for CrossEntropy<R> {
    fn name(&self) -> &'static str {
        "fused cross_entropy"
    }

    fn cpu_fwd(
        &self,
        input: &CpuStorage,
        input_layout: &Layout,
        target: &CpuStorage,
        target_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (input, target) =
            (Operand::cpu(input, input_layout), Operand::cpu(target, target_layout));
        storage_of!(Cpu, self.forward(input, target))
    }

    fn cuda_fwd(
        &self,
        input: &CudaStorage,
        input_layout: &Layout,
        target: &CudaStorage,
        target_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (input, target) =
            (Operand::cuda(input, input_layout), Operand::cuda(target, target_layout));
        storage_of!(Cuda, self.forward(input, target))
    }

    fn bwd(
        &self,
        input: &Tensor,
        target: &Tensor,
        _loss: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let probabilities = target.dtype() == input.dtype();
        let wanted = [input.track_op(), probabilities && target.track_op()];
        let upstream = upstream.contiguous()?;
        let tensors = [input, target, &upstream].map(|tensor| tensor.storage_and_layout());
        let operands = operands(&tensors)?;
        let [of_input, of_target] = for_float!(
            operands[0].dtype(), "input", T => self.backward_of::<T>(operands, wanted)
        )?;
        Ok((of_input, of_target))
    }
}
