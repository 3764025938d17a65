//! Cross-entropy.

use crate::backend::{Call, FusedLossBackend, Loss, Target, To, is_class_of_kernels};
use crate::{apply, has_kernels};
use burn::config::Config;
use burn::module::Module;
use burn::nn::loss;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, IntDType, Tensor};

/// The options of [`CrossEntropyLoss`], which are those of
/// [burn's](burn::nn::loss::CrossEntropyLossConfig).
#[derive(Config, Debug)]
pub struct CrossEntropyLossConfig {
    /// Rows with one of these targets add nothing to the loss. The mean counts them, as burn's
    /// does: it divides by the number of rows, or by the sum of their targets' weights.
    pub pad_tokens: Option<Vec<usize>>,

    /// A weight for each class, all positive.
    pub weights: Option<Vec<f32>>,

    /// The part of every target, from 0 to 1, that is spread evenly over all classes.
    pub smoothing: Option<f32>,

    /// Whether the input is logits, or probabilities. For probabilities burn's own loss is used: it
    /// reads one number per row, so there is nothing to fuse.
    #[config(default = true)]
    pub logits: bool,
}

impl CrossEntropyLossConfig {
    /// The loss with these options.
    ///
    /// # Panics
    /// If the smoothing is not from 0 to 1, or a weight is not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> CrossEntropyLoss<B> {
        let burns = loss::CrossEntropyLossConfig::new()
            .with_pad_tokens(self.pad_tokens.clone())
            .with_weights(self.weights.clone())
            .with_smoothing(self.smoothing)
            .with_logits(self.logits)
            .init(device);
        let loss::CrossEntropyLoss { pad_tokens, weights, smoothing, logits } = burns;
        CrossEntropyLoss { pad_tokens, weights, smoothing, logits }
    }
}

/// Cross-entropy of logits and classes: the rows' mean. A drop-in for
/// [burn's](burn::nn::loss::CrossEntropyLoss), made by [`CrossEntropyLossConfig`].
///
/// ```
/// # #[cfg(feature = "ndarray")] {
/// use burn::backend::{Autodiff, NdArray};
/// use burn::tensor::{Int, Tensor};
/// use fused_loss_burn::CrossEntropyLossConfig;
///
/// // type B = Autodiff<Cuda>;
/// type B = Autodiff<NdArray>;
/// let device = Default::default();
/// let logits = Tensor::<B, 2>::from_data([[0.5, 1.0, 1.5], [2.0, 2.5, 3.0]], &device);
/// let logits = logits.require_grad();
/// let targets = Tensor::<B, 1, Int>::from_data([2, 0], &device);
///
/// let loss = CrossEntropyLossConfig::new()
///     .with_smoothing(Some(0.1))
///     .init(&device)
///     .forward(logits.clone(), targets);
/// let gradients = loss.backward();
/// println!("{loss} {}", logits.grad(&gradients).expect("the logits require it"));
/// # }
/// ```
///
/// A target that is neither a class nor padding makes the loss and the gradient of its row NaN.
#[derive(Module, Debug)]
pub struct CrossEntropyLoss<B: Backend> {
    /// Targets of rows that add nothing.
    pub pad_tokens: Option<Vec<usize>>,
    /// A weight for each class. It gets no gradient.
    pub weights: Option<Tensor<B, 1>>,
    /// The part of every target that is spread evenly over all classes.
    pub smoothing: Option<f32>,
    /// Whether the input is logits, or probabilities.
    pub logits: bool,
}

impl<B: FusedLossBackend> CrossEntropyLoss<B> {
    /// The loss without weights and smoothing, for code that constructs burn's loss this way.
    pub fn new(pad_index: Option<usize>, device: &B::Device) -> Self {
        CrossEntropyLossConfig::new().with_pad_tokens(pad_index.map(|pad| vec![pad])).init(device)
    }

    /// The loss, in the logits' type. It is computed in `f32`, or in `f64` for `f64` logits.
    ///
    /// # Shapes
    ///
    /// - logits: `[batch_size, num_classes]`
    /// - targets: `[batch_size]`
    ///
    /// # Panics
    /// If shapes do not fit, or a kernel cannot be queued.
    pub fn forward(&self, logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Tensor<B, 1> {
        if !self.logits || !has_kernels::<B>(logits.dtype()) {
            return self.burns().forward(logits, targets);
        }
        let ([rows, _], [of_targets]) = (logits.dims(), targets.dims());
        assert!(
            rows == of_targets,
            "targets: expected one for each of {rows} rows, got {of_targets}"
        );
        let dtype = logits.dtype();
        let weight = self.weights.clone().map(|weights| weights.cast(dtype));
        let pad_tokens = self.pad_tokens.as_deref().unwrap_or_default();
        let (classes, ignore_index) = with_one_pad_token(for_kernels(targets.clone()), pad_tokens);

        let loss = Loss::CrossEntropy {
            ignore_index,
            label_smoothing: self.smoothing.map_or(0.0, f64::from),
        };
        let classes = Target::Classes(classes.into_primitive());
        if pad_tokens.is_empty() {
            let call = Call { loss, reduction: To::Mean, rounded: true };
            return apply(call, logits, classes, weight);
        }
        // burn's mean counts padding, the kernels' mean does not, so compute the sum here. It may
        // exceed the range of `dtype`.
        let call = Call { loss, reduction: To::Sum, rounded: false };
        let sum: Tensor<B, 1> = apply(call, logits, classes, weight.clone());
        let mean = match weight {
            None => sum / rows as f64,
            Some(weight) => {
                let of_rows = weight.cast(sum.dtype()).gather(0, targets);
                sum / of_rows.sum()
            }
        };
        mean.cast(dtype)
    }

    /// burn's own loss with these options.
    fn burns(&self) -> loss::CrossEntropyLoss<B> {
        loss::CrossEntropyLoss {
            pad_tokens: self.pad_tokens.clone(),
            weights: self.weights.clone(),
            smoothing: self.smoothing,
            logits: self.logits,
        }
    }
}

/// The classes in a type that the kernels read.
fn for_kernels<B: Backend>(targets: Tensor<B, 1, Int>) -> Tensor<B, 1, Int> {
    if is_class_of_kernels(targets.dtype()) { targets } else { targets.cast(IntDType::I64) }
}

/// The targets with all pad tokens replaced by the first, and that token as the kernels take it.
fn with_one_pad_token<B: Backend>(
    targets: Tensor<B, 1, Int>,
    pad_tokens: &[usize],
) -> (Tensor<B, 1, Int>, i64) {
    // No target has that value.
    let [first, others @ ..] = pad_tokens else { return (targets, i64::MIN) };
    let first = *first as i64;
    let targets = others.iter().fold(targets, |targets, &other| {
        let is_other = targets.clone().equal_elem(other as i64);
        targets.mask_fill(is_other, first)
    });
    (targets, first)
}
