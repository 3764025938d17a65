//! The shape of a tensor.

use crate::error::{Error, Result};
use std::fmt;

/// The dimensions of a tensor, outermost first; at most [`Shape::MAX_DIMS`], and none for a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Self::MAX_DIMS],
    rank: usize,
}

impl Shape {
    /// The most dimensions of a shape.
    pub const MAX_DIMS: usize = 6;

    /// No dimensions: one element.
    pub const SCALAR: Self = Shape { dims: [0; Self::MAX_DIMS], rank: 0 };

    /// A shape of these dimensions.
    ///
    /// # Errors
    /// [`Error::InvalidShape`] for more than [`Shape::MAX_DIMS`] dimensions, or if the product of
    /// the non-zero dimensions is 2⁶⁰ or more.
    pub fn new(dims: impl IntoShape) -> Result<Self> {
        dims.into_shape("dims")
    }

    /// A shape of these dimensions.
    ///
    /// # Errors
    /// [`Error::InvalidShape`], which names `argument`, for more than [`Shape::MAX_DIMS`]
    /// dimensions, or if elements of eight bytes would take more than `isize::MAX` bytes.
    fn checked(argument: &'static str, dims: &[usize]) -> Result<Self> {
        let invalid = |problem| Error::InvalidShape { argument, problem };
        if dims.len() > Self::MAX_DIMS {
            let max = Self::MAX_DIMS;
            return Err(invalid(format!("expected at most {max} dimensions, got {}", dims.len())));
        }
        // Zeros are left out, so that strides computed from the dimensions do not overflow either.
        let product = dims
            .iter()
            .filter(|&&dim| dim != 0)
            .try_fold(1_usize, |product, &dim| product.checked_mul(dim));
        if product.is_none_or(|product| product > isize::MAX as usize / 8) {
            return Err(invalid(format!("expected fewer elements than 2^60, got {dims:?}")));
        }
        let mut shape = Shape { dims: [0; Self::MAX_DIMS], rank: dims.len() };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Elements of a row: the last dimension, 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the last, 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.dims().iter().rev().skip(1).product()
    }

    /// One row.
    pub(crate) fn row(cols: usize) -> Self {
        let mut dims = [0; Self::MAX_DIMS];
        dims[0] = cols;
        Shape { dims, rank: 1 }
    }

    /// The first dimension, 1 for a scalar.
    pub(crate) fn batch(&self) -> usize {
        self.dims().first().copied().unwrap_or(1)
    }

    /// The shape of a value for each row.
    pub(crate) fn of_rows(self) -> Self {
        let rank = self.rank.saturating_sub(1);
        let mut shape = Shape { dims: [0; Self::MAX_DIMS], rank };
        shape.dims[..rank].copy_from_slice(&self.dims[..rank]);
        shape
    }

    /// The shape with rows of `cols` elements; a scalar stays one.
    pub(crate) fn with_cols(mut self, cols: usize) -> Self {
        if let Some(last) = self.dims[..self.rank].last_mut() {
            *last = cols;
        }
        self
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dims().fmt(f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Refuses any shape except `expected`.
pub(crate) fn check_shape(argument: &'static str, expected: Shape, got: Shape) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: expected.to_string(), got: got.to_string() })
}

/// Types that convert to a shape: dimensions, outermost first, as an array, a tuple, a slice or a
/// vector; one number, for one dimension; `()`, for a scalar; or a [`Shape`].
pub trait IntoShape {
    /// The shape, or an error that names `argument`.
    #[doc(hidden)]
    fn into_shape(self, argument: &'static str) -> Result<Shape>;
}

impl IntoShape for Shape {
    fn into_shape(self, _: &'static str) -> Result<Shape> {
        Ok(self)
    }
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self, argument: &'static str) -> Result<Shape> {
        Shape::checked(argument, &self)
    }
}

macro_rules! slices {
    ($($dims:ty),+) => {$(
        impl IntoShape for $dims {
            fn into_shape(self, argument: &'static str) -> Result<Shape> {
                Shape::checked(argument, &self)
            }
        }
    )+};
}
slices!(&[usize], Vec<usize>, &Vec<usize>);

macro_rules! tuples {
    ($(($($dim:ident)*))+) => {$(
        impl IntoShape for ($(tuples!(@ $dim),)*) {
            fn into_shape(self, argument: &'static str) -> Result<Shape> {
                let ($($dim,)*) = self;
                Shape::checked(argument, &[$($dim),*])
            }
        }
    )+};
    (@ $dim:ident) => { usize };
}
tuples!(()(a)(a b)(a b c)(a b c d)(a b c d e)(a b c d e f));

impl IntoShape for usize {
    fn into_shape(self, argument: &'static str) -> Result<Shape> {
        Shape::checked(argument, &[self])
    }
}

impl<const N: usize> IntoShape for &[usize; N] {
    fn into_shape(self, argument: &'static str) -> Result<Shape> {
        Shape::checked(argument, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_counts_its_elements() {
        let shape = [2, 3, 4].into_shape("shape").unwrap();
        assert_eq!(shape.len(), 24);
        assert_eq!(shape.dims(), [2, 3, 4]);
        assert_eq!(Shape::SCALAR.len(), 1);
        assert!(!shape.is_empty() && !Shape::SCALAR.is_empty());
        let empty = [0, 5].into_shape("shape").unwrap();
        assert_eq!((empty.len(), empty.is_empty()), (0, true));
        let dims: &[usize; 3] = &[2, 3, 4];
        for same in [
            Shape::new([2, 3, 4]),
            Shape::new(dims),
            Shape::new((2, 3, 4)),
            Shape::new(vec![2, 3, 4]),
            Shape::new(shape.dims()),
        ] {
            assert_eq!(same.unwrap(), shape);
        }
        assert_eq!(Shape::new(5).unwrap(), Shape::new([5]).unwrap());
        assert_eq!(Shape::new((5,)).unwrap(), Shape::new([5]).unwrap());
        assert_eq!(Shape::new(()).unwrap(), Shape::SCALAR);
        assert_eq!(Shape::new((1, 2, 3, 4, 5, 6)).unwrap().dims(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn rows_are_the_last_dimension() {
        let shape = [2, 3, 4].into_shape("shape").unwrap();
        assert_eq!((shape.rows(), shape.cols()), (6, 4));
        assert_eq!(shape.of_rows().dims(), [2, 3]);
        let shape = [5].into_shape("shape").unwrap();
        assert_eq!((shape.rows(), shape.cols(), shape.of_rows()), (1, 5, Shape::SCALAR));
        assert_eq!((Shape::SCALAR.rows(), Shape::SCALAR.cols()), (1, 1));
    }

    #[test]
    fn a_shape_that_no_memory_holds_is_refused() {
        for dims in [[usize::MAX, 2], [1 << 40, 1 << 40], [0, usize::MAX]] {
            let error = dims.into_shape("target").unwrap_err();
            assert!(error.to_string().starts_with("target: expected fewer"), "{error}");
        }
        assert_eq!(Shape::new([(1 << 60) - 1]).unwrap().len(), (1 << 60) - 1);
        assert!(Shape::new([1 << 60]).is_err());
        let error = [1; 7].into_shape("input").unwrap_err();
        assert_eq!(error.to_string(), "input: expected at most 6 dimensions, got 7");
    }
}
