//! Kullback-Leibler divergence.

use crate::error::Result;
use crate::pairwise::{self, Kernels, Pairwise};
use crate::reduction::{BatchMean, DivergenceReduction, Mean, Sum, Unreduced};

/// Kernels by form: `[log_input][log_target]`.
static KERNELS: [[Kernels; 2]; 2] = [
    [
        pairwise::kernels!(kl_div_prob, 256 threads, heavy: true),
        pairwise::kernels!(kl_div_prob_log_target, 256 threads, heavy: true),
    ],
    [
        Kernels { input_in_its_gradient: false, ..pairwise::kernels!(kl_div, 256 threads) },
        Kernels {
            input_in_its_gradient: false,
            ..pairwise::kernels!(kl_div_log_target, 256 threads)
        },
    ],
];

/// Kullback-Leibler divergence of an input from a target of one shape: t (log t − x), reduced,
/// where x is the logarithm of the input's probability and t the target's probability. Like
/// PyTorch's `torch.nn.KLDivLoss`, whose input is x. Here the input may also be the probability;
/// the same pass then computes its logarithm.
///
/// At t = 0 the term is 0 for finite x and NaN otherwise. It is NaN for t below 0, and +∞ for t
/// above 0 at an input probability of 0. For two equal probabilities it is exactly 0; for two
/// nearly equal ones it is as accurate as for others.
///
/// The gradients, each multiplied by the upstream gradient and divided as the loss is:
///
/// | of | |
/// |---|---|
/// | x | −t |
/// | the input's probability p | −t/p |
/// | t | log t + 1 − x, NaN at t = 0 and t = ∞ |
/// | log t | t (log t + 1 − x) |
///
/// Arithmetic, sums and errors are as for [`Mse`](crate::Mse).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "a loss computes nothing until one of its methods is called"]
pub struct KlDiv<R = BatchMean> {
    /// Whether the input is log-probabilities, as in PyTorch, or probabilities.
    pub log_input: bool,
    /// Whether the target is log-probabilities, or probabilities.
    pub log_target: bool,
    /// How the terms are reduced.
    pub reduction: R,
}

impl KlDiv {
    /// The terms' sum divided by the batch, as the divergence is defined. The input is
    /// log-probabilities and the target probabilities; for others, and another reduction, see
    /// [`log_input`](Self::log_input), [`log_target`](Self::log_target) and
    /// [`reduction`](Self::reduction).
    pub const fn new() -> Self {
        KlDiv { log_input: true, log_target: false, reduction: BatchMean }
    }

    /// The same as [`new`](Self::new).
    pub const fn batch_mean() -> Self {
        Self::new()
    }

    /// The terms' mean, otherwise as [`new`](Self::new).
    pub const fn mean() -> KlDiv<Mean> {
        KlDiv { log_input: true, log_target: false, reduction: Mean }
    }

    /// The terms' sum, otherwise as [`new`](Self::new).
    pub const fn sum() -> KlDiv<Sum> {
        KlDiv { log_input: true, log_target: false, reduction: Sum }
    }

    /// The terms themselves, otherwise as [`new`](Self::new).
    pub const fn none() -> KlDiv<Unreduced> {
        KlDiv { log_input: true, log_target: false, reduction: Unreduced }
    }
}

impl Default for KlDiv {
    fn default() -> Self {
        KlDiv::new()
    }
}

impl<R> KlDiv<R> {
    /// The loss with an input of log-probabilities, or of probabilities.
    pub fn log_input(self, log_input: bool) -> Self {
        KlDiv { log_input, ..self }
    }

    /// The loss with a target of log-probabilities, or of probabilities.
    pub fn log_target(self, log_target: bool) -> Self {
        KlDiv { log_target, ..self }
    }

    /// The loss with another reduction.
    pub fn reduction<Q: DivergenceReduction>(self, reduction: Q) -> KlDiv<Q> {
        KlDiv { log_input: self.log_input, log_target: self.log_target, reduction }
    }
}

impl<R: Copy> KlDiv<R> {
    fn pairwise(&self) -> Result<Pairwise<'_, R>> {
        let kernels = &KERNELS[usize::from(self.log_input)][usize::from(self.log_target)];
        Ok(Pairwise::new(kernels, self.reduction))
    }
}

pairwise::methods!(KlDiv<R>, "divergence", DivergenceReduction);
