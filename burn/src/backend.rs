//! The trait of the backends that have the losses, and the arguments of its calls.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};

/// A backend that has the losses. Code that is generic over backends needs `B: FusedLossBackend`
/// instead of `B: Backend`.
///
/// | backend | with the feature | computes by |
/// |---|---|---|
/// | `Cuda`, and `CubeBackend<CudaRuntime, ..>` behind it | `cuda` | the kernels |
/// | `Fusion<B>` | `fusion` | what `B` does |
/// | `NdArray` | `ndarray` | burn's own losses |
/// | `NdArray` | `emulator` | the kernels, on the CPU: very slow, for tests |
/// | `Autodiff<B>` | | what `B` does, with gradients |
///
/// Other types do not implement the trait, so it is known at compile time which kernels run.
pub trait FusedLossBackend: Backend {
    /// Whether the backend computes with the kernels. If not, burn's own losses are used, and the
    /// functions below are not called.
    const HAS_KERNELS: bool = false;

    /// The loss that `call` describes.
    #[doc(hidden)]
    fn fused_loss(call: Call, operands: Operands<Self>) -> FloatTensor<Self> {
        let _ = operands;
        unreachable!("{NO_KERNELS}: {call:?}")
    }

    /// The requested gradients of the input and of the target, from the gradient of the loss. The
    /// loss itself is passed if it is a scalar.
    #[doc(hidden)]
    fn fused_loss_backward(
        call: Call,
        operands: Operands<Self>,
        loss: Option<FloatTensor<Self>>,
        upstream: FloatTensor<Self>,
        wanted: [bool; 2],
    ) -> [Option<FloatTensor<Self>>; 2] {
        let _ = (operands, loss, upstream, wanted);
        unreachable!("{NO_KERNELS}: {call:?}")
    }
}

const NO_KERNELS: &str = "a backend without kernels was asked for one";

/// The tensors of a call.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Operands<B: Backend> {
    pub input: FloatTensor<B>,
    pub target: Target<B>,
    /// A weight per class or per element, depending on the loss. It gets no gradient.
    pub weight: Option<FloatTensor<B>>,
}

/// What the input is compared with.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Target<B: Backend> {
    /// A class for each row. It has no gradient.
    Classes(IntTensor<B>),
    /// A number for each element of the input.
    Values(FloatTensor<B>),
}

/// A loss with its options.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    pub loss: Loss,
    pub reduction: To,
    /// Whether the loss is rounded to the input's type, or stays in the one it is computed in.
    pub rounded: bool,
}

#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    CrossEntropy { ignore_index: i64, label_smoothing: f64 },
    Mse,
    Huber { delta: f64 },
    SmoothL1 { beta: f64 },
    BceWithLogits,
    KlDiv { log_target: bool },
}

/// How the terms are reduced: one of the library's reductions.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Unreduced,
    Sum,
    Mean,
    BatchMean,
}

#[cfg(any(feature = "cuda", feature = "emulator", feature = "fusion"))]
impl Call {
    /// The type of the loss.
    pub(crate) fn loss_dtype(&self, input: DType) -> DType {
        if self.rounded { input } else { self.computed_dtype(input) }
    }

    /// The type that the kernels write the loss in, and read its gradient in. Sums of 16-bit
    /// numbers are in `f32`.
    pub(crate) fn computed_dtype(&self, input: DType) -> DType {
        match (self.reduction, input) {
            (To::Unreduced, _) | (_, DType::F64) => input,
            _ => DType::F32,
        }
    }

    /// The shape of the loss: burn's scalars have one dimension.
    pub(crate) fn loss_shape(&self, input: &burn::tensor::Shape) -> burn::tensor::Shape {
        match self.reduction {
            To::Unreduced => input.clone(),
            To::Sum | To::Mean | To::BatchMean => [1].into(),
        }
    }
}

/// Whether there are kernels for tensors of this type.
pub(crate) fn is_float_of_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// Whether the kernels read classes of this type.
pub(crate) fn is_class_of_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::I32 | DType::U32 | DType::U8)
}
