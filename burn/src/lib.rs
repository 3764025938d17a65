//! Fused losses for [burn](https://burn.dev) on NVIDIA GPUs: drop-ins for `burn::nn::loss`, each
//! one kernel forward and one backward, as an extension of burn's backends.
//!
//! ```
//! # #[cfg(feature = "ndarray")] {
//! use burn::tensor::{Int, Tensor};
//! // Where burn::nn::loss was.
//! use fused_loss_burn::{CrossEntropyLossConfig, FusedLossBackend};
//!
//! // Where B was a Backend.
//! fn loss<B: FusedLossBackend>(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Tensor<B, 1> {
//!     CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
//! }
//! # type B = burn::backend::NdArray;
//! # let (logits, targets) = (Tensor::<B, 2>::zeros([2, 3], &Default::default()), [0, 2]);
//! # let loss = loss(logits, Tensor::from_data(targets, &Default::default()));
//! # assert!((loss.into_scalar() - 3_f32.ln()).abs() < 1e-6);
//! # }
//! ```
//!
//! - [`CrossEntropyLoss`], [`BinaryCrossEntropyLoss`], [`MseLoss`], [`HuberLoss`],
//!   [`SmoothL1Loss`], [`KLDivLoss`], and their configurations, with the names, fields and methods
//!   that `burn::nn::loss` has, and its [`Reduction`].
//! - [`FusedLossBackend`]: the backends that have them.
//!
//! # What is computed, and where
//!
//! Results equal burn's up to rounding. The kernels of [`fused_loss`] compute them for `f32`,
//! `f64`, `f16` and `bf16`. For `f16` and `bf16` they compute in `f32`, and only the loss is
//! rounded to the logits' type, because burn's losses have that type. Options without a kernel,
//! such as `logits: false`, and backends without kernels use burn's own loss.
//!
//! On `Cuda` the kernels use burn's tensors without a copy. Rows may have gaps between them, as
//! when burn pads an allocation. Other tensors that are not contiguous, for example transposed
//! ones, are first copied to contiguous ones. Results come from burn's allocator.
//!
//! The kernels run on a separate stream, because cubecl does not expose its streams. They run after
//! all work that the process has queued on the device, and before all that it queues later. From
//! CUDA 12.5 on, no thread waits for the GPU for this; with an older driver each call does.
//!
//! # What a training step costs
//!
//! Forward reads the logits once, and saves only them for backward. Backward reads them again and
//! writes their gradient, scaled by the upstream gradient: over the logits if nothing else uses
//! them any more, and otherwise to new memory.
//!
//! # Which burn
//!
//! This crate uses burn 0.21 with cubecl 0.10, the newest that builds without downloading a
//! compiler. burn 0.22 needs cubecl 0.11, which for CUDA needs cubecl-llvm, whose build script
//! fetches LLVM.
#![deny(missing_docs)]

mod autodiff;
mod backend;
mod binary_cross_entropy;
mod cross_entropy;
#[cfg(feature = "cuda")]
mod cuda;
mod elementwise;
#[cfg(feature = "cuda")]
mod fence;
#[cfg(feature = "fusion")]
mod fusion;
#[cfg(any(feature = "cuda", feature = "emulator"))]
mod kernels;
#[cfg(any(feature = "cuda", feature = "emulator"))]
mod memory;
#[cfg(feature = "ndarray")]
mod ndarray;

pub use backend::FusedLossBackend;
pub use binary_cross_entropy::{BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig};
pub use burn::nn::loss::Reduction;
pub use cross_entropy::{CrossEntropyLoss, CrossEntropyLossConfig};
pub use elementwise::{
    HuberLoss, HuberLossConfig, KLDivLoss, KLDivLossConfig, MseLoss, SmoothL1Loss,
    SmoothL1LossConfig,
};

use backend::{Call, Operands, Target};
use burn::tensor::{DType, Tensor, TensorPrimitive};

/// Whether the kernels, not burn's own losses, compute tensors of this type.
fn has_kernels<B: FusedLossBackend>(dtype: DType) -> bool {
    B::HAS_KERNELS && backend::is_float_of_kernels(dtype)
}

/// Computes a loss with the kernels.
fn apply<B: FusedLossBackend, const D: usize, const E: usize>(
    call: Call,
    input: Tensor<B, D>,
    target: Target<B>,
    weight: Option<Tensor<B, 1>>,
) -> Tensor<B, E> {
    let operands = Operands {
        input: input.into_primitive().tensor(),
        target,
        weight: weight.map(|weight| weight.into_primitive().tensor()),
    };
    let loss = B::fused_loss(call, operands);
    Tensor::from_primitive(TensorPrimitive::Float(loss))
}
