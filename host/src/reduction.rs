//! How a loss reduces its terms. Each reduction is a type, so that a loss accepts only reductions
//! that it has, and the reduction determines the type and shape of the result.
//!
//! Rows are the last dimension: a tensor of shape `[2, 3, 8]` has six rows of eight elements.

use crate::element::Float;
use crate::shape::Shape;
use kernels_gpu::abi::reduction;
use std::fmt::Debug;
use std::hash::Hash;

mod sealed {
    pub trait Sealed {}
}

/// A reduction of a loss's terms.
pub trait Reduction:
    Copy + Debug + Default + Eq + Hash + Send + Sync + 'static + sealed::Sealed
{
    /// The element type of the loss, for inputs of `T`.
    type Value<T: Float>: Float;

    /// The number by which kernels know it.
    #[doc(hidden)]
    const KIND: u32;

    /// The shape of the loss, for inputs of `input`.
    fn shape(self, input: Shape) -> Shape;

    /// What the sum of the terms is divided by.
    #[doc(hidden)]
    fn divisor(self, input: Shape) -> f64;
}

/// The reductions of losses that compare input and target element by element: [`Mse`](crate::Mse),
/// [`Huber`](crate::Huber), [`SmoothL1`](crate::SmoothL1),
/// [`BceWithLogits`](crate::BceWithLogits).
pub trait ElementwiseReduction: Reduction {}

/// The reductions of [`KlDiv`](crate::KlDiv).
pub trait DivergenceReduction: Reduction {}

/// The reductions of [`CrossEntropy`](crate::CrossEntropy), whose terms are rows: with
/// [`Unreduced`] it has one loss per row.
pub trait SampleReduction: Reduction {
    /// The shape of the loss, for inputs of `input`.
    fn shape_of_samples(self, input: Shape) -> Shape {
        if Self::KIND == reduction::ELEMENTS { input.of_rows() } else { Shape::SCALAR }
    }

    /// Whether the sum is divided by the sum of the rows' class weights.
    #[doc(hidden)]
    const MEAN: bool;
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident: $value:ty, $kind:ident, $shape:expr, $divisor:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name;

        impl sealed::Sealed for $name {}

        impl Reduction for $name {
            type Value<T: Float> = $value;
            const KIND: u32 = reduction::$kind;

            fn shape(self, input: Shape) -> Shape {
                let of: fn(Shape) -> Shape = $shape;
                of(input)
            }

            fn divisor(self, input: Shape) -> f64 {
                let of: fn(Shape) -> f64 = $divisor;
                of(input)
            }
        }
    )+};
}

reductions! {
    /// The terms as they are: a loss of the input's shape and element type.
    Unreduced: T, ELEMENTS, |input| input, |_| 1.0;
    /// The sum of all terms.
    Sum: T::Loss, SCALAR, |_| Shape::SCALAR, |_| 1.0;
    /// The sum of all terms divided by their number; NaN where there are none.
    Mean: T::Loss, SCALAR, |_| Shape::SCALAR, |input| input.len() as f64;
    /// The sum of all terms divided by the first dimension, the batch; NaN where that is 0.
    BatchMean: T::Loss, SCALAR, |_| Shape::SCALAR, |input| input.batch() as f64;
    /// The sum of each row: a loss for each, of the input's shape without its last dimension.
    RowSum: T::Loss, ROWS, Shape::of_rows, |_| 1.0;
    /// The mean of each row; NaN where rows have no elements.
    RowMean: T::Loss, ROWS, Shape::of_rows, |input| input.cols() as f64;
}

impl ElementwiseReduction for Unreduced {}
impl ElementwiseReduction for Sum {}
impl ElementwiseReduction for Mean {}
impl ElementwiseReduction for RowSum {}
impl ElementwiseReduction for RowMean {}
impl DivergenceReduction for Unreduced {}
impl DivergenceReduction for Sum {}
impl DivergenceReduction for Mean {}
impl DivergenceReduction for BatchMean {}
impl DivergenceReduction for RowSum {}
impl DivergenceReduction for RowMean {}

impl SampleReduction for Unreduced {
    const MEAN: bool = false;
}
impl SampleReduction for Sum {
    const MEAN: bool = false;
}
impl SampleReduction for Mean {
    const MEAN: bool = true;
}
