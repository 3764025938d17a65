//! Loss functions of a training step on NVIDIA GPUs, forward and backward in one pass over memory.
//!
//! ```no_run
//! use fused_loss::{CrossEntropy, Gpu, Tensor};
//!
//! # fn main() -> Result<(), fused_loss::Error> {
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.stream()?;
//! let logits = Tensor::from_slice(&gpu, [2, 3], &[0.5_f32, 1.0, 1.5, 2.0, 2.5, 3.0])?;
//! let classes = Tensor::from_slice(&gpu, [2], &[2_i64, 0])?;
//!
//! let (loss, gradient) = CrossEntropy::mean().forward_backward(&logits, &classes, &stream)?;
//! println!("{} on {}", loss.item()?, gpu.name());
//! println!("{:?}", gradient.to_vec()?);
//! # Ok(())
//! # }
//! ```
//!
//! - [`CrossEntropy`], [`BceWithLogits`], [`KlDiv`], [`Mse`], [`Huber`], [`SmoothL1`]: a loss.
//!   `forward`, `backward`, `forward_backward`, each with an `_into` twin that allocates nothing.
//!   [`LossFunction`]: any of them.
//! - [`LogProb`]: the log-probability of a class and the entropy, of each row of logits.
//! - [`Tensor`], [`View`], [`ViewMut`]: memory on the GPU, owned, or borrowed from whoever owns it.
//! - [`Gpu`], [`Stream`], [`Workspace`]: a device, a queue of work on it, scratch memory.
//!
//! A call of a loss checks its arguments, queues a kernel on the stream (cross-entropy's
//! `forward_backward` two, for some shapes) and returns. These wait for the GPU: making a tensor, a
//! loss or a workspace; copies from and to the host ([`Loss::item`], [`Tensor::to_vec`]);
//! [`Stream::synchronize`]; and dropping memory that queued work uses. A refused call has queued
//! nothing.
//!
//! The library contains the kernels as compressed PTX. The driver compiles a kernel at the first
//! call that needs it. The library finds the driver at run time, so a program that uses this crate
//! builds and starts without CUDA; [`Gpu::new`] then returns [`Error::NoDriver`]. With the feature
//! `emulator`, `Gpu::emulated` runs the same kernels on the CPU.
//!
//! With the feature `cudarc`, `Stream::from_cudarc`, `View::from_cudarc` and `ViewMut::from_cudarc`
//! take cudarc's streams and memory without `unsafe`: a call reads and writes a `CudaSlice` without
//! a copy, and cudarc's events order it with cudarc's other work.
#![deny(missing_docs)]

mod bce;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod ceiling;
mod cross_entropy;
mod driver;
mod element;
mod error;
#[cfg(feature = "cudarc")]
mod from_cudarc;
mod gpu;
mod grads;
mod huber;
mod kl_div;
mod launch;
mod log_prob;
mod loss_function;
mod memory;
mod mse;
mod pairwise;
mod plan;
mod ptx;
mod queue;
pub mod reduction;
mod shape;
mod smooth_l1;
mod stream;
mod tensor;
mod view;

pub use bce::BceWithLogits;
pub use cross_entropy::{Classes, CrossEntropy, Saved, Targets};
pub use element::{Class, Element, Float};
pub use error::{DriverError, Error, Result};
#[cfg(feature = "cudarc")]
pub use from_cudarc::{CudarcMemory, CudarcMemoryMut};
pub use gpu::Gpu;
pub use grads::Grads;
pub use huber::Huber;
pub use kl_div::KlDiv;
pub use log_prob::{LogProb, Upstreams};
pub use loss_function::LossFunction;
pub use mse::Mse;
pub use reduction::{BatchMean, Mean, RowMean, RowSum, Sum, Unreduced};
pub use shape::{IntoShape, Shape};
pub use smooth_l1::SmoothL1;
pub use stream::{Stream, Workspace};
pub use tensor::{Loss, Tensor};
pub use view::{View, ViewMut};

/// Code that must not compile, beside code that must.
///
/// A loss may get another option, so no program can list all of them.
///
/// ```compile_fail,E0639
/// let _ = fused_loss::Mse { reduction: fused_loss::Sum };
/// ```
///
/// ```
/// let _ = fused_loss::Mse::new().reduction(fused_loss::Sum);
/// ```
///
/// Not using a changed loss, or dropping a result at once, is a mistake.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// fused_loss::Mse::new().reduction(fused_loss::Sum);
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// fn queue(gpu: &fused_loss::Gpu) -> fused_loss::Result<()> {
///     fused_loss::Tensor::<f32>::zeros(gpu, 3)?;
///     Ok(())
/// }
/// ```
///
/// ```
/// #![deny(unused_must_use)]
/// fn queue(gpu: &fused_loss::Gpu) -> fused_loss::Result<()> {
///     let _tensor = fused_loss::Tensor::<f32>::zeros(gpu, 3)?;
///     Ok(())
/// }
/// ```
#[cfg(doctest)]
mod refused {}

/// The crate that defines the element types `half::f16` and `half::bf16`.
pub use half;

/// The number type of a tensor ([`Float::DTYPE`]), and what a kernel reports about a loss's
/// targets.
pub use kernels_gpu::abi::{Dtype, TargetFault};
