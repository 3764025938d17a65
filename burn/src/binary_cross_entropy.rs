//! Binary cross-entropy.

use crate::backend::{Call, FusedLossBackend, Loss, Target, To};
use crate::{apply, has_kernels};
use burn::config::Config;
use burn::module::Module;
use burn::nn::loss;
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};

/// The options of [`BinaryCrossEntropyLoss`], which are those of
/// [burn's](burn::nn::loss::BinaryCrossEntropyLossConfig).
#[derive(Config, Debug)]
pub struct BinaryCrossEntropyLossConfig {
    /// A weight for each class, all positive. The classes are the last dimension; if there is only
    /// one dimension, they are the targets 0 and 1.
    pub weights: Option<Vec<f32>>,

    /// The part of every target, from 0 to 1, that is spread evenly over all classes.
    pub smoothing: Option<f32>,

    /// Whether the input is logits, or probabilities. For probabilities burn's own loss is used.
    #[config(default = false)]
    pub logits: bool,
}

impl BinaryCrossEntropyLossConfig {
    /// The loss with these options.
    ///
    /// # Panics
    /// If the smoothing is not from 0 to 1, or a weight is not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> BinaryCrossEntropyLoss<B> {
        let burns = loss::BinaryCrossEntropyLossConfig::new()
            .with_weights(self.weights.clone())
            .with_smoothing(self.smoothing)
            .with_logits(self.logits)
            .init(device);
        let loss::BinaryCrossEntropyLoss { weights, smoothing, logits } = burns;
        BinaryCrossEntropyLoss { weights, smoothing, logits }
    }
}

/// Binary cross-entropy: the elements' mean. A drop-in for
/// [burn's](burn::nn::loss::BinaryCrossEntropyLoss), made by [`BinaryCrossEntropyLossConfig`].
/// Large logits do not overflow.
#[derive(Module, Debug)]
pub struct BinaryCrossEntropyLoss<B: Backend> {
    /// A weight for each class. It gets no gradient.
    pub weights: Option<Tensor<B, 1>>,
    /// The part of every target that is spread evenly over all classes.
    pub smoothing: Option<f32>,
    /// Whether the input is logits, or probabilities.
    pub logits: bool,
}

impl<B: FusedLossBackend> BinaryCrossEntropyLoss<B> {
    /// The loss, in the logits' type. It is computed in `f32`, or in `f64` for `f64` logits.
    ///
    /// # Shapes
    ///
    /// Binary:
    /// - logits: `[batch_size]`
    /// - targets: `[batch_size]`
    ///
    /// Multi-label:
    /// - logits: `[batch_size, num_classes]`
    /// - targets: `[batch_size, num_classes]`
    ///
    /// # Panics
    /// If shapes do not fit, or a kernel cannot be queued.
    pub fn forward<const D: usize>(
        &self,
        logits: Tensor<B, D>,
        targets: Tensor<B, D, Int>,
    ) -> Tensor<B, 1> {
        if !self.logits || !has_kernels::<B>(logits.dtype()) {
            return self.burns().forward(logits, targets);
        }
        let (dims, got) = (logits.dims(), targets.dims());
        assert!(dims == got, "targets: expected a tensor of shape {dims:?}, got {got:?}");
        let dtype = logits.dtype();
        let mut values = targets.clone().cast(FloatDType::from(dtype));
        if let Some(alpha) = self.smoothing.map(f64::from) {
            let classes = if D > 1 { dims[D - 1] } else { 2 };
            values = values * (1.0 - alpha) + alpha / classes as f64;
        }
        let weight = self.weights.clone().map(|weights| {
            let weights = weights.cast(dtype);
            if D > 1 {
                let (classes, got) = (dims[D - 1], weights.dims()[0]);
                assert!(
                    classes == got,
                    "weights: expected one for each of {classes} classes, got {got}"
                );
                weights
            } else {
                weights.gather(0, targets.flatten(0, 0))
            }
        });
        let target = Target::Values(values.into_primitive().tensor());
        let call = Call { loss: Loss::BceWithLogits, reduction: To::Mean, rounded: true };
        apply(call, logits, target, weight)
    }

    /// burn's own loss with these options.
    fn burns(&self) -> loss::BinaryCrossEntropyLoss<B> {
        loss::BinaryCrossEntropyLoss {
            weights: self.weights.clone(),
            smoothing: self.smoothing,
            logits: self.logits,
        }
    }
}
