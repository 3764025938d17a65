//! Binary cross-entropy.

use crate::pairwise::{self, Pairwise, Weights};
use crate::{TensorLoss, constant};
use candle_core::{Result, Tensor};
use fused_loss::reduction::{ElementwiseReduction, Mean};
use fused_loss::{Float, Grads, Stream, View, ViewMut, Workspace};

/// Binary cross-entropy of logits and targets of one shape and type, with the sigmoid in the same
/// pass, so that large logits do not overflow.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use fused_loss_candle::{BceWithLogits, TensorLoss};
///
/// # fn main() -> candle_core::Result<()> {
/// # if cfg!(not(feature = "emulator")) { return Ok(()) }
/// let logits = Tensor::new(&[[0.5_f32, -200.0], [200.0, 0.0]], &Device::Cpu)?;
/// let targets = Tensor::new(&[[1_f32, 0.0], [1.0, 1.0]], &Device::Cpu)?;
/// // Positive targets of the second column are rare.
/// let pos_weight = Tensor::new(&[1_f32, 3.0], &Device::Cpu)?;
/// let loss = BceWithLogits::new().pos_weight(&pos_weight).loss(&logits, &targets)?;
/// assert!((loss.to_scalar::<f32>()? - 0.63838).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// It computes [`fused_loss::BceWithLogits`]. Logits and targets get gradients, weights do not.
/// Each weight has the input's type. Its shape is `[]` (one for all elements), `[C]` (one per
/// column, C being the input's last dimension), the input's with a last dimension of 1 (one per
/// row), or the input's (one per element).
#[derive(Clone, Debug)]
pub struct BceWithLogits<R = Mean> {
    weight: Option<Tensor>,
    pos_weight: Option<Tensor>,
    reduction: R,
}

impl BceWithLogits {
    /// The mean, without weights.
    #[must_use]
    pub const fn new() -> Self {
        BceWithLogits { weight: None, pos_weight: None, reduction: Mean }
    }
}

impl Default for BceWithLogits {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies with one option changed.
impl<R> BceWithLogits<R> {
    /// With weights of the terms, which are constants. A mean divides by the number of elements,
    /// whatever the weights.
    #[must_use]
    pub fn weight(self, weight: &Tensor) -> Self {
        BceWithLogits { weight: Some(weight.clone()), ..self }
    }

    /// With weights of positive targets, which are constants.
    #[must_use]
    pub fn pos_weight(self, pos_weight: &Tensor) -> Self {
        BceWithLogits { pos_weight: Some(pos_weight.clone()), ..self }
    }

    /// With another reduction; the choices are those of [`Mse`](crate::Mse).
    #[must_use]
    pub fn reduction<Q: ElementwiseReduction>(self, reduction: Q) -> BceWithLogits<Q> {
        let BceWithLogits { weight, pos_weight, .. } = self;
        BceWithLogits { weight, pos_weight, reduction }
    }
}

impl<R: ElementwiseReduction + Send + Sync + 'static> TensorLoss for BceWithLogits<R> {
    fn loss(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let constant = |argument, weight: &Option<Tensor>| {
            weight.as_ref().map(|weight| constant(argument, weight, input)).transpose()
        };
        let this = BceWithLogits {
            weight: constant("weight", &self.weight)?,
            pos_weight: constant("pos_weight", &self.pos_weight)?,
            reduction: self.reduction,
        };
        pairwise::on_tape(this, input, target)
    }
}

impl<R: ElementwiseReduction> BceWithLogits<R> {
    /// The library's loss.
    fn with<'w, T: Float>(
        &self,
        [weight, pos_weight]: Weights<'w, T>,
    ) -> fused_loss::BceWithLogits<'w, T, R> {
        let mut loss = fused_loss::BceWithLogits::new().reduction(self.reduction);
        if let Some(weight) = weight {
            loss = loss.weight(weight);
        }
        match pos_weight {
            Some(pos_weight) => loss.pos_weight(pos_weight),
            None => loss,
        }
    }
}

impl<R: ElementwiseReduction + Send + Sync + 'static> Pairwise for BceWithLogits<R> {
    const NAME: &'static str = "fused bce_with_logits";
    type Reduction = R;

    fn reduction(&self) -> R {
        self.reduction
    }

    fn weights(&self) -> [Option<&Tensor>; 2] {
        [self.weight.as_ref(), self.pos_weight.as_ref()]
    }

    fn forward<T: Float>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        weights: Weights<'_, T>,
        loss: ViewMut<'_, R::Value<T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> fused_loss::Result<()> {
        self.with(weights).forward_into(input, target, loss, workspace, stream)
    }

    fn backward<'a, T: Float>(
        &self,
        input: View<'a, T>,
        target: View<'a, T>,
        weights: Weights<'a, T>,
        upstream: View<'a, R::Value<T>>,
        grads: Grads<'a, T, R::Value<T>>,
        stream: &Stream,
    ) -> fused_loss::Result<()> {
        self.with(weights).backward_into(input, target, upstream, grads, stream)
    }
}
