//! What becomes of a loss's terms. A reduction is a type, so that a loss accepts its own alone and
//! the type of the result follows from it.

use crate::view::{Element, Shape};
use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
}

/// A reduction of a loss's terms.
pub trait Reduction: Copy + Debug + sealed::Sealed {
    /// The element type of the loss, for inputs of `T`.
    type Value<T: Element>: Element;

    /// The shape of the loss, for inputs of `input`.
    fn shape(self, input: Shape) -> Shape;

    /// What the sum of the terms is divided by.
    #[doc(hidden)]
    fn divisor(self, input: Shape) -> f64;
}

/// The reductions of losses that compare input and target element by element ([`Mse`](crate::Mse)).
pub trait ElementwiseReduction: Reduction {}

/// The sum of all terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum;

/// The sum of all terms divided by their number; NaN where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mean;

impl sealed::Sealed for Sum {}
impl sealed::Sealed for Mean {}
impl ElementwiseReduction for Sum {}
impl ElementwiseReduction for Mean {}

impl Reduction for Sum {
    type Value<T: Element> = T::Loss;

    fn shape(self, _: Shape) -> Shape {
        Shape::SCALAR
    }

    fn divisor(self, _: Shape) -> f64 {
        1.0
    }
}

impl Reduction for Mean {
    type Value<T: Element> = T::Loss;

    fn shape(self, _: Shape) -> Shape {
        Shape::SCALAR
    }

    fn divisor(self, input: Shape) -> f64 {
        input.len() as f64
    }
}
