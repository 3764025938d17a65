//! Fused losses for [candle](https://github.com/huggingface/candle) on NVIDIA GPUs: drop-ins for
//! `candle_nn::loss`, each one kernel forward and one backward, on candle's tape.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//!
//! # fn main() -> candle_core::Result<()> {
//! # if cfg!(not(feature = "emulator")) { return Ok(()) }
//! # let device = Device::Cpu;
//! // let device = Device::new_cuda(0)?;
//! let logits = Var::new(&[[0.5_f32, 1.0, 1.5], [2.0, 2.5, 3.0]], &device)?;
//! let targets = Tensor::new(&[2_u32, 0], &device)?;
//!
//! let loss = fused_loss_candle::cross_entropy(&logits, &targets)?;
//! let gradients = loss.backward()?;
//! println!("{loss} {}", gradients.get(&logits).expect("the logits are a variable"));
//! # Ok(())
//! # }
//! ```
//!
//! - [`cross_entropy`], [`nll`], [`mse`], [`huber`], [`binary_cross_entropy_with_logit`]: with the
//!   signatures of `candle_nn::loss`.
//! - [`CrossEntropy`], [`Mse`], [`Huber`], [`SmoothL1`], [`BceWithLogits`], [`KlDiv`]: with all
//!   options and reductions, as `KlDiv::new().log_target(true).reduction(Sum).loss(&p, &q)`, by
//!   [`TensorLoss`].
//! - [`check()`]: whether all targets were classes.
//! - [`keep_memory`]: stops each step from unmapping memory that the next one maps again.
//!
//! # What is computed, and where
//!
//! The kernels are those of [`fused_loss`], for `f32`, `f64`, `f16` and `bf16`. For `f16` and
//! `bf16` they compute in `f32`, and a scalar loss or a loss per row is `f32`, so there is no need
//! to convert logits first. They run on candle's stream, and results are allocated by candle.
//!
//! - `Device::Cuda` with the feature `cuda`. Devices made by `Device::new_cuda` use one stream per
//!   thread, those made by `new_cuda_with_stream` one stream each; both are supported.
//! - `Device::Cpu` with the feature `emulator`: the same kernels on the CPU, very slow, for tests
//!   on a machine without a GPU. A process uses either the emulator or a GPU, not both.
//! - Metal: an error.
//!
//! Rows of logits may have gaps between them (`narrow` of the last dimension, a padded vocabulary);
//! the kernels read them without a copy. Other tensors that are not contiguous, for example
//! transposed ones, are first copied to contiguous ones, through candle's tape.
//!
//! # What a training step costs
//!
//! Forward reads the logits once, and saves nothing for backward. Backward reads them again and
//! writes their gradient, scaled by the upstream gradient: `(loss * 0.5)?.backward()`, a loss used
//! twice and a second `backward` give the right results. If no variable leads to the logits, only
//! the forward pass runs.
//!
//! candle then adds that gradient to zeros: for the first gradient of a tensor that is not the
//! result of `backward`, it allocates a second tensor of that size, fills it with zeros, and adds.
//! These are four passes over a tensor of the logits' size. They take several times as long as the
//! loss, and an operation defined outside candle cannot avoid them.
//!
//! Unless you call [`keep_memory`], allocating tensors of that size takes longest.
#![deny(missing_docs)]

mod allocator;
mod bce;
mod check;
mod cross_entropy;
mod memory;
mod nll;
mod pairwise;
mod queue;

pub use allocator::keep_memory;
pub use bce::BceWithLogits;
pub use check::check;
pub use cross_entropy::CrossEntropy;
pub use fused_loss::{
    BatchMean, Huber, KlDiv, Mean, Mse, RowMean, RowSum, SmoothL1, Sum, reduction,
};
pub use nll::nll;

use candle_core::{Device, Error, Result, Tensor, bail};

/// A loss of candle tensors.
pub trait TensorLoss {
    /// The loss of an input and a target, which are on one device. It is on candle's tape if one of
    /// them is.
    ///
    /// # Errors
    /// If shapes, types or options do not fit, or if the device has none of these kernels.
    fn loss(&self, input: &Tensor, target: &Tensor) -> Result<Tensor>;
}

/// The cross-entropy of logits, of shape `[N, C]`, and targets, classes of shape `[N]`: the mean of
/// those rows whose target is not −100. A drop-in for `candle_nn::loss::cross_entropy`; see
/// [`CrossEntropy`] for options, and [`check()`] for a target that is not a class.
///
/// # Errors
/// Where shapes, types or devices do not fit.
pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    CrossEntropy::new().loss(inp, target)
}

/// The mean squared error of an input and a target of one shape. A drop-in for
/// `candle_nn::loss::mse`; see [`Mse`] for other reductions.
///
/// # Errors
/// Where shapes, types or devices do not fit.
pub fn mse(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    Mse::new().loss(inp, target)
}

/// Huber's loss of an input and a target of one shape. A drop-in for `candle_nn::loss::huber`; see
/// [`Huber`] for other reductions.
///
/// # Errors
/// Where shapes, types or devices do not fit, or `delta` is not positive.
pub fn huber(inp: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
    Huber::new(delta).loss(inp, target)
}

/// The binary cross-entropy of logits and targets of one shape and type: the elements' mean. A
/// drop-in for `candle_nn::loss::binary_cross_entropy_with_logit`, whose sigmoid in `f32` rounds to
/// 1 from a logit of 17 on, which makes its loss infinite or NaN; this one is right there too. See
/// [`BceWithLogits`] for weights and other reductions.
///
/// # Errors
/// Where shapes, types or devices do not fit.
pub fn binary_cross_entropy_with_logit(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    BceWithLogits::new().loss(inp, target)
}

/// The library's error as a candle error.
fn wrap(error: fused_loss::Error) -> Error {
    Error::wrap(error)
}

/// The tensor, if it is on a device with these kernels and its rows are laid out as the kernels
/// take them, or a contiguous copy of it.
fn for_rows(tensor: &Tensor) -> Result<Tensor> {
    has_kernels(tensor.device())?;
    match memory::row_stride(tensor.layout()) {
        Some(_) => Ok(tensor.clone()),
        None => tensor.contiguous(),
    }
}

/// Refuses a device for whose tensors there are no kernels.
fn has_kernels(device: &Device) -> Result<()> {
    match device {
        Device::Metal(_) => bail!("{}", memory::NO_METAL),
        #[cfg(not(feature = "emulator"))]
        Device::Cpu => bail!("{}", memory::NO_CPU),
        _ => Ok(()),
    }
}

/// A tensor among the options of a loss of `input`, as the kernels take it. It gets no gradient, so
/// it is refused if it is on the tape.
fn constant(argument: &str, tensor: &Tensor, input: &Tensor) -> Result<Tensor> {
    if tensor.track_op() {
        bail!("{argument}: expected a constant, got a tensor on the tape; see Tensor::detach")
    }
    if tensor.device().location() != input.device().location() {
        let (expected, got) = (input.device().location(), tensor.device().location());
        bail!("{argument}: expected a tensor on {expected:?}, got one on {got:?}")
    }
    if tensor.dtype() != input.dtype() {
        let (expected, got) = (input.dtype(), tensor.dtype());
        bail!("{argument}: expected a tensor of {expected:?}, got one of {got:?}")
    }
    tensor.contiguous()
}

/// `$body` with `$T` the number type of that name.
macro_rules! for_float {
    ($dtype:expr, $argument:literal, $T:ident => $body:expr) => {{
        use candle_core::DType;
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::F16 => {
                type $T = half::f16;
                $body
            }
            DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => candle_core::bail!(
                "{}: expected a tensor of F32, F64, F16 or BF16, got {other:?}",
                $argument
            ),
        }
    }};
}
use for_float;

/// The result of a forward pass, as a candle operation on that device returns it.
macro_rules! storage_of {
    ($device:ident, $forward:expr) => {
        match $forward? {
            (candle_core::Storage::$device(storage), shape) => Ok((storage, shape)),
            _ => candle_core::bail!("a loss is on the device of its input"),
        }
    };
}
use storage_of;

#[cfg(test)]
mod tests {
    use super::has_kernels;

    /// A tensor on Metal needs a Mac; without one, candle still has the device's name.
    #[cfg(not(target_os = "macos"))]
    #[test]
    fn metal_is_refused_with_a_way_out() {
        let error = has_kernels(&candle_core::Device::Metal(candle_core::MetalDevice));
        let message = error.unwrap_err().to_string();
        assert!(message.contains("on Metal use candle_nn::loss"), "{message}");
    }
}
