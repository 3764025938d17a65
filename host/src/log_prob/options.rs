//! The options of log-probabilities.

/// The log-probability of a class and the entropy, of each row of logits x (the last dimension: C
/// classes) divided by a temperature T. Fine-tuning of language models by reinforcement learning
/// computes both for each token at every step. One pass over the logits computes both, and one pass
/// their gradients. Apart from the gradient, nothing of the logits' size is allocated.
///
/// With z = x/T, m = max z, L = log Σ exp(z − m) and p = exp(z − m − L), of the softmax as
/// PyTorch's `log_softmax` defines it and Shannon's entropy in nats:
///
/// | | of a row with class y |
/// |---|---|
/// | log-probability | log p_y = (z_y − m) − L |
/// | entropy | H = −Σ p log p = L − Σ p (z − m), where p log p is 0 at a logit of −∞ |
/// | gradient of logit c | a ([c = y] − p_c)/T − b p_c (log p_c + H)/T, where 0 (log 0 + H) is 0 |
///
/// The upstream gradients are a, of log p_y, and b, of H.
///
/// Neither cancels for large logits, and both are accurate however nearly certain a row is. With a
/// temperature of 1, the log-probability is the negative of an unreduced
/// [`CrossEntropy`](crate::CrossEntropy).
///
/// Results have the input's shape without its last dimension. They are f32, or f64 for f64 logits.
/// A row whose class is [`ignore_index`](Self#structfield.ignore_index) has results and a gradient
/// of 0. A class out of range makes both results and the gradient of its row NaN, and is an error
/// of [`Loss::to_vec`](crate::Loss::to_vec) and [`Loss::check`](crate::Loss::check) of either
/// result. A row that contains NaN or +∞, or only −∞, also makes them NaN, without an error.
///
/// ```no_run
/// use fused_loss::{Error, LogProb, Stream, Tensor, Upstreams};
///
/// fn step(logits: &Tensor<f32>, tokens: &Tensor<i64>, stream: &Stream) -> Result<(), Error> {
///     let log_prob = LogProb::new().temperature(0.7);
///     let (log_probs, entropies, saved) = log_prob.forward_saving(logits, tokens, stream)?;
///     // The gradients of a policy's loss by the two, here of the loss that is their sum.
///     let ones = Tensor::from_slice(stream.gpu(), (), &[1.0_f32])?;
///     let ones = ones.view().expand(log_probs.shape())?;
///     let upstreams = Upstreams::both(ones, ones);
///     let gradient = log_prob.backward(logits, tokens, &saved, upstreams, stream)?;
///     println!("{:?} {:?} {:?}", log_probs.to_vec()?, entropies.to_vec()?, gradient.shape());
///     Ok(())
/// }
/// ```
///
/// Errors of every method, besides those of [`Mse`](crate::Mse):
/// [`InvalidShape`](crate::Error::InvalidShape) for no classes or more than 2³¹ − 1;
/// [`InvalidOption`](crate::Error::InvalidOption) for a temperature that is not from 1e-30 to 1e30.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "this computes nothing until one of its methods is called"]
pub struct LogProb {
    /// T, from 1e-30 to 1e30: logits are divided by it.
    pub temperature: f64,
    /// Rows with this class do not count: their results and their gradient are 0. It need not be a
    /// class.
    pub ignore_index: i64,
}

impl LogProb {
    /// With a temperature of 1; −100 is ignored.
    pub const fn new() -> Self {
        LogProb { temperature: 1.0, ignore_index: -100 }
    }

    /// With another [`temperature`](Self#structfield.temperature), from 1e-30 to 1e30.
    pub const fn temperature(self, temperature: f64) -> Self {
        LogProb { temperature, ..self }
    }

    /// With another [`ignore_index`](Self#structfield.ignore_index).
    pub const fn ignore_index(self, ignore_index: i64) -> Self {
        LogProb { ignore_index, ..self }
    }
}

impl Default for LogProb {
    fn default() -> Self {
        Self::new()
    }
}
