//! The gradients that a caller asks for.

use crate::element::Float;
use crate::tensor::Tensor;
use crate::view::{View, ViewMut};

/// The gradients that a call writes: of the input, of the target, or of both. A `&mut Tensor` or a
/// [`ViewMut`] converts into the input's alone.
///
/// `V` is the element type of the loss, and so of the upstream gradient.
#[derive(Debug)]
pub struct Grads<'a, T, V> {
    pub(crate) input: Option<ViewMut<'a, T>>,
    pub(crate) target: Option<ViewMut<'a, T>>,
    pub(crate) upstream: Option<View<'a, V>>,
}

impl<'a, T: Float, V: Float> Grads<'a, T, V> {
    /// The gradient of the input, of its shape.
    pub fn input(input: impl Into<ViewMut<'a, T>>) -> Self {
        Grads { input: Some(input.into()), target: None, upstream: None }
    }

    /// The gradient of the target, of its shape.
    pub fn target(target: impl Into<ViewMut<'a, T>>) -> Self {
        Grads { input: None, target: Some(target.into()), upstream: None }
    }

    /// Both gradients, of the input's shape.
    pub fn both(input: impl Into<ViewMut<'a, T>>, target: impl Into<ViewMut<'a, T>>) -> Self {
        Grads { input: Some(input.into()), target: Some(target.into()), upstream: None }
    }

    /// No gradient, apart from one that a call writes over its input.
    pub(crate) fn none() -> Self {
        Grads { input: None, target: None, upstream: None }
    }

    /// The gradients times `upstream`, which has the loss's shape and is on the device. The kernel
    /// multiplies before it rounds the gradients to their type.
    pub fn scaled_by(self, upstream: impl Into<View<'a, V>>) -> Self {
        Grads { upstream: Some(upstream.into()), ..self }
    }
}

impl<'a, T: Float, V: Float> From<ViewMut<'a, T>> for Grads<'a, T, V> {
    fn from(input: ViewMut<'a, T>) -> Self {
        Grads::input(input)
    }
}

impl<'a, T: Float, V: Float> From<&'a mut Tensor<T>> for Grads<'a, T, V> {
    fn from(input: &'a mut Tensor<T>) -> Self {
        Grads::input(input)
    }
}
