//! The losses that compare an input and a target of one shape element by element.

use crate::backend::{Call, FusedLossBackend, Loss, Target, To};
use crate::{Reduction, apply, has_kernels};
use burn::config::Config;
use burn::module::Module;
use burn::nn::loss;
use burn::tensor::Tensor;

/// The mean squared error. A drop-in for [burn's](burn::nn::loss::MseLoss).
#[derive(Module, Clone, Debug, Default)]
pub struct MseLoss;

impl MseLoss {
    /// The loss.
    pub fn new() -> Self {
        MseLoss
    }

    /// The mean of the squares, or with `Reduction::Sum` their sum.
    ///
    /// # Panics
    /// Where shapes do not fit, or for another reduction.
    pub fn forward<const D: usize, B: FusedLossBackend>(
        &self,
        logits: Tensor<B, D>,
        targets: Tensor<B, D>,
        reduction: Reduction,
    ) -> Tensor<B, 1> {
        if !has_kernels::<B>(logits.dtype()) {
            return loss::MseLoss::new().forward(logits, targets, reduction);
        }
        pairwise(Loss::Mse, sum_or_mean(&reduction), logits, targets)
    }

    /// The square of each difference.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn forward_no_reduction<const D: usize, B: FusedLossBackend>(
        &self,
        logits: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Tensor<B, D> {
        if !has_kernels::<B>(logits.dtype()) {
            return loss::MseLoss::new().forward_no_reduction(logits, targets);
        }
        pairwise(Loss::Mse, To::Unreduced, logits, targets)
    }
}

/// The option of [`HuberLoss`], which is that of [burn's](burn::nn::loss::HuberLossConfig).
#[derive(Config, Debug)]
pub struct HuberLossConfig {
    /// Where the loss turns from quadratic to linear.
    pub delta: f32,
}

impl HuberLossConfig {
    /// The loss.
    ///
    /// # Panics
    /// Where `delta` is negative or NaN.
    pub fn init(&self) -> HuberLoss {
        let delta = loss::HuberLossConfig::new(self.delta).init().delta;
        HuberLoss { delta }
    }
}

/// Huber's loss. A drop-in for [burn's](burn::nn::loss::HuberLoss), made by [`HuberLossConfig`].
#[derive(Module, Clone, Debug)]
pub struct HuberLoss {
    /// Where the loss turns from quadratic to linear.
    pub delta: f32,
}

impl HuberLoss {
    /// The mean of the terms, or with `Reduction::Sum` their sum.
    ///
    /// # Panics
    /// Where shapes do not fit, or for another reduction.
    pub fn forward<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
        reduction: Reduction,
    ) -> Tensor<B, 1> {
        if !self.has_kernels::<B, D>(&predictions) {
            return self.burns().forward(predictions, targets, reduction);
        }
        pairwise(self.loss(), sum_or_mean(&reduction), predictions, targets)
    }

    /// The terms.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn forward_no_reduction<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Tensor<B, D> {
        if !self.has_kernels::<B, D>(&predictions) {
            return self.burns().forward_no_reduction(predictions, targets);
        }
        pairwise(self.loss(), To::Unreduced, predictions, targets)
    }

    /// For a delta of 0 the loss is 0 everywhere, and the kernels refuse it.
    fn has_kernels<B: FusedLossBackend, const D: usize>(&self, input: &Tensor<B, D>) -> bool {
        self.delta > 0.0 && has_kernels::<B>(input.dtype())
    }

    fn loss(&self) -> Loss {
        Loss::Huber { delta: self.delta.into() }
    }

    /// burn's own.
    fn burns(&self) -> loss::HuberLoss {
        loss::HuberLossConfig::new(self.delta).init()
    }
}

/// The option of [`SmoothL1Loss`], which is that of [burn's](burn::nn::loss::SmoothL1LossConfig).
#[derive(Config, Debug)]
pub struct SmoothL1LossConfig {
    /// Where the loss turns from quadratic to linear.
    #[config(default = 1.0)]
    pub beta: f32,
}

impl SmoothL1LossConfig {
    /// The loss.
    ///
    /// # Panics
    /// Where `beta` is not positive.
    pub fn init(&self) -> SmoothL1Loss {
        let beta = loss::SmoothL1LossConfig::new().with_beta(self.beta).init().beta;
        SmoothL1Loss { beta }
    }
}

/// The smooth L1 loss. A drop-in for [burn's](burn::nn::loss::SmoothL1Loss), made by
/// [`SmoothL1LossConfig`].
#[derive(Module, Clone, Debug)]
pub struct SmoothL1Loss {
    /// Where the loss turns from quadratic to linear.
    pub beta: f32,
}

impl SmoothL1Loss {
    /// The terms.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn forward<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Tensor<B, D> {
        if !has_kernels::<B>(predictions.dtype()) {
            return self.burns().forward(predictions, targets);
        }
        pairwise(self.loss(), To::Unreduced, predictions, targets)
    }

    /// The mean of the terms, or with `Reduction::Sum` their sum.
    ///
    /// # Panics
    /// Where shapes do not fit, or for another reduction.
    pub fn forward_with_reduction<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
        reduction: Reduction,
    ) -> Tensor<B, 1> {
        if !has_kernels::<B>(predictions.dtype()) {
            return self.burns().forward_with_reduction(predictions, targets, reduction);
        }
        pairwise(self.loss(), sum_or_mean(&reduction), predictions, targets)
    }

    /// The terms' mean over these dimensions.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn forward_reduce_dims<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
        dims: &[usize],
    ) -> Tensor<B, D> {
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        self.forward(predictions, targets).mean_dims(&dims)
    }

    fn loss(&self) -> Loss {
        Loss::SmoothL1 { beta: self.beta.into() }
    }

    /// burn's own.
    fn burns(&self) -> loss::SmoothL1Loss {
        loss::SmoothL1Loss { beta: self.beta }
    }
}

/// The option of [`KLDivLoss`], which is that of [burn's](burn::nn::loss::KLDivLossConfig).
#[derive(Config, Debug)]
pub struct KLDivLossConfig {
    /// Whether the targets are log-probabilities, or probabilities.
    #[config(default = false)]
    pub log_target: bool,
}

impl KLDivLossConfig {
    /// The loss.
    pub fn init(&self) -> KLDivLoss {
        KLDivLoss { log_target: self.log_target }
    }
}

/// Kullback-Leibler divergence of predictions, which are log-probabilities, from targets. A drop-in
/// for [burn's](burn::nn::loss::KLDivLoss), made by [`KLDivLossConfig`].
#[derive(Module, Clone, Debug)]
pub struct KLDivLoss {
    /// Whether the targets are log-probabilities, or probabilities.
    pub log_target: bool,
}

impl KLDivLoss {
    /// The sum of the terms divided by the first dimension, or with `Reduction::Mean` and
    /// `Reduction::Sum` their mean and sum.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn forward<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
        reduction: Reduction,
    ) -> Tensor<B, 1> {
        if !has_kernels::<B>(predictions.dtype()) {
            return self.burns().forward(predictions, targets, reduction);
        }
        let to = match reduction {
            Reduction::BatchMean | Reduction::Auto => To::BatchMean,
            Reduction::Mean => To::Mean,
            Reduction::Sum => To::Sum,
        };
        pairwise(self.loss(), to, predictions, targets)
    }

    /// The terms.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn forward_no_reduction<const D: usize, B: FusedLossBackend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Tensor<B, D> {
        if !has_kernels::<B>(predictions.dtype()) {
            return self.burns().forward_no_reduction(predictions, targets);
        }
        pairwise(self.loss(), To::Unreduced, predictions, targets)
    }

    fn loss(&self) -> Loss {
        Loss::KlDiv { log_target: self.log_target }
    }

    /// burn's own.
    fn burns(&self) -> loss::KLDivLoss {
        loss::KLDivLoss { log_target: self.log_target }
    }
}

/// The reduction, for losses for which burn allows only sum and mean.
fn sum_or_mean(reduction: &Reduction) -> To {
    match reduction {
        Reduction::Mean | Reduction::Auto => To::Mean,
        Reduction::Sum => To::Sum,
        other => panic!("{other:?} reduction is not supported"),
    }
}

/// A loss of two tensors of one shape, of the first one's type.
fn pairwise<B: FusedLossBackend, const D: usize, const E: usize>(
    loss: Loss,
    to: To,
    input: Tensor<B, D>,
    target: Tensor<B, D>,
) -> Tensor<B, E> {
    let (expected, got) = (input.dims(), target.dims());
    assert!(expected == got, "targets: expected a tensor of shape {expected:?}, got {got:?}");
    let target = Target::Values(target.cast(input.dtype()).into_primitive().tensor());
    apply(Call { loss, reduction: to, rounded: true }, input, target, None)
}
