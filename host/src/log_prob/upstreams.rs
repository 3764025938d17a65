//! The upstream gradients of log-probabilities and entropies.

use crate::element::Float;
use crate::view::View;

/// The upstream gradients of the results of [`LogProb`](crate::LogProb): those of the
/// log-probabilities, of the entropies, or of both. Each is on the device and has the shape of the
/// results, one number per row. A result without an upstream gradient adds nothing to the gradient,
/// and no memory is read for it. [`View::expand`] repeats one number for all rows.
///
/// `V` is the element type of the results.
#[derive(Clone, Copy, Debug)]
pub struct Upstreams<'a, V> {
    pub(super) log_prob: Option<View<'a, V>>,
    pub(super) entropy: Option<View<'a, V>>,
}

impl<'a, V: Float> Upstreams<'a, V> {
    /// Upstream gradients only of the log-probabilities.
    pub fn log_prob(log_prob: impl Into<View<'a, V>>) -> Self {
        Upstreams { log_prob: Some(log_prob.into()), entropy: None }
    }

    /// Upstream gradients only of the entropies.
    pub fn entropy(entropy: impl Into<View<'a, V>>) -> Self {
        Upstreams { log_prob: None, entropy: Some(entropy.into()) }
    }

    /// Upstream gradients of the log-probabilities and of the entropies.
    pub fn both(log_prob: impl Into<View<'a, V>>, entropy: impl Into<View<'a, V>>) -> Self {
        Upstreams { log_prob: Some(log_prob.into()), entropy: Some(entropy.into()) }
    }
}
