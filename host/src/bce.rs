//! Binary cross-entropy of logits.

use crate::element::Float;
use crate::error::Result;
use crate::pairwise::{self, Kernels, Pairwise};
use crate::reduction::{ElementwiseReduction, Mean, Sum, Unreduced};
use crate::view::View;

static KERNELS: Kernels = pairwise::kernels!(bce, 256 threads, heavy: true);

/// Binary cross-entropy of logits x and targets y of one shape, with the sigmoid σ in the same
/// pass: w (−p y log σ(x) − (1 − y) log(1 − σ(x))), reduced. As PyTorch's
/// `torch.nn.BCEWithLogitsLoss`.
///
/// A logit beyond the range of e^x costs no accuracy. If y is 0 or 1, small losses and gradients
/// are as accurate as large ones. At x = ∞ and x = −∞ the loss is the value of PyTorch's formula,
/// (1 − y) x − (1 + (p − 1) y) log σ(x): ∞, or NaN for 0 · ∞ or ∞ − ∞.
///
/// The gradients, each multiplied by the upstream gradient and divided as the loss is:
///
/// | of | |
/// |---|---|
/// | x | w ((1 + (p − 1) y) σ(x) − p y) |
/// | y | w (log(1 − σ(x)) − p log σ(x)), which is −w x for p = 1 |
///
/// A `weight` w and a `pos_weight` p are on the device and have the input's element type. Their
/// shape is `[]` (one for all elements), `[C]` (one per column, C being the input's last
/// dimension), the input's with a last dimension of 1 (one per row), or the input's (one per
/// element). They have no gradients. A mean divides by the number of elements, whatever the
/// weights.
///
/// Arithmetic, sums and errors are as for [`Mse`](crate::Mse).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct BceWithLogits<'w, T, R = Mean> {
    /// w; `None`: 1.
    pub weight: Option<View<'w, T>>,
    /// p, the weight of positive targets; `None`: 1.
    pub pos_weight: Option<View<'w, T>>,
    /// How the terms are reduced.
    pub reduction: R,
}

impl<'w, T> BceWithLogits<'w, T> {
    /// The terms' mean, without weights.
    pub const fn new() -> Self {
        Self::with(Mean)
    }

    /// The same as [`new`](Self::new).
    pub const fn mean() -> Self {
        Self::new()
    }

    /// The terms' sum, without weights.
    pub const fn sum() -> BceWithLogits<'w, T, Sum> {
        BceWithLogits::with(Sum)
    }

    /// The terms themselves, without weights.
    pub const fn none() -> BceWithLogits<'w, T, Unreduced> {
        BceWithLogits::with(Unreduced)
    }
}

impl<T> Default for BceWithLogits<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'w, T, R> BceWithLogits<'w, T, R> {
    const fn with(reduction: R) -> Self {
        BceWithLogits { weight: None, pos_weight: None, reduction }
    }

    /// The loss with this weight.
    pub fn weight(self, weight: impl Into<View<'w, T>>) -> Self {
        BceWithLogits { weight: Some(weight.into()), ..self }
    }

    /// The loss with this weight of positive targets.
    pub fn pos_weight(self, pos_weight: impl Into<View<'w, T>>) -> Self {
        BceWithLogits { pos_weight: Some(pos_weight.into()), ..self }
    }

    /// The loss with another reduction.
    pub fn reduction<Q: ElementwiseReduction>(self, reduction: Q) -> BceWithLogits<'w, T, Q> {
        BceWithLogits { weight: self.weight, pos_weight: self.pos_weight, reduction }
    }
}

impl<T: Float, R: Copy> BceWithLogits<'_, T, R> {
    fn pairwise(&self) -> Result<Pairwise<'_, R>> {
        let weight = self.weight.map(|weight| ("weight", weight.memory));
        let pos_weight = self.pos_weight.map(|pos_weight| ("pos_weight", pos_weight.memory));
        Ok(Pairwise { weights: [weight, pos_weight], ..Pairwise::new(&KERNELS, self.reduction) })
    }
}

pairwise::methods!(BceWithLogits<'w, T, R>, "binary cross-entropy", ElementwiseReduction);
