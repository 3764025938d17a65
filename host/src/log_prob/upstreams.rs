//! The upstream gradients of log-probabilities and entropies.

use crate::element::Float;
use crate::view::View;

/// The upstream gradients of the results of [`LogProb`](crate::LogProb): those of the
/// log-probabilities, of the entropies, or of both. Each has the shape of the results, one number a
/// row, and is on the device. A result without one has the gradient 0, and no memory is read for
/// it. [`View::expand`] makes one number stand for all rows.
///
/// `V` is the element type of the results.
#[derive(Clone, Copy, Debug)]
pub struct Upstreams<'a, V> {
    pub(super) log_prob: Option<View<'a, V>>,
    pub(super) entropy: Option<View<'a, V>>,
}

impl<'a, V: Float> Upstreams<'a, V> {
    /// Upstream gradients of the log-probabilities alone.
    pub fn log_prob(log_prob: impl Into<View<'a, V>>) -> Self {
        Upstreams { log_prob: Some(log_prob.into()), entropy: None }
    }

    /// Upstream gradients of the entropies alone.
    pub fn entropy(entropy: impl Into<View<'a, V>>) -> Self {
        Upstreams { log_prob: None, entropy: Some(entropy.into()) }
    }

    /// Upstream gradients of the log-probabilities and of the entropies.
    pub fn both(log_prob: impl Into<View<'a, V>>, entropy: impl Into<View<'a, V>>) -> Self {
        Upstreams { log_prob: Some(log_prob.into()), entropy: Some(entropy.into()) }
    }
}
