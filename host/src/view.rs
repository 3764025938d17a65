//! Shapes and element types, and memory on the GPU that a call borrows.

use crate::error::{Error, Result};
use crate::tensor::{Fault, Usage};
use kernels_gpu::abi::{Dtype, Matrix, TargetFault};
use std::fmt;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// A number type that tensors hold: a [`Float`] or a [`Class`].
///
/// # Safety
/// Sealed: the library implements it for types that are valid for every bit pattern and laid out as
/// on the device.
pub unsafe trait Element:
    Copy + fmt::Debug + fmt::Display + Default + PartialEq + Send + Sync + 'static + sealed::Sealed
{
    /// The type's name.
    const NAME: &'static str;
}

/// A number type that losses are computed of: `f32`, `f64`, `half::f16`, `half::bf16`.
///
/// # Safety
/// Sealed: the library implements it for the types that its kernels are compiled for.
pub unsafe trait Float: Element {
    /// The type by the name that kernels carry.
    const DTYPE: Dtype;
    /// The type of a reduced loss of this type's tensors, and of its upstream gradient.
    type Loss: Float;
}

/// A number type of class indices: `i64`, `i32`, `u32`, `u8`.
///
/// # Safety
/// Sealed: the library implements it for the types that its kernels can load.
pub unsafe trait Class: Element {}

macro_rules! elements {
    ($($name:ty, $dtype:ident, $loss:ty;)+) => {$(
        impl sealed::Sealed for $name {}
        // SAFETY: every bit pattern is a number of the type; host and device are both little-endian
        // IEEE 754.
        unsafe impl Element for $name {
            const NAME: &'static str = Dtype::$dtype.name();
        }
        // SAFETY: `kernels_gpu` compiles every loss for it.
        unsafe impl Float for $name {
            const DTYPE: Dtype = Dtype::$dtype;
            type Loss = $loss;
        }
    )+};
}
elements! {
    f32, F32, f32;
    f64, F64, f64;
    half::f16, F16, f32;
    half::bf16, Bf16, f32;
}

macro_rules! classes {
    ($($name:ident)+) => {$(
        impl sealed::Sealed for $name {}
        // SAFETY: every bit pattern is a number of the type; host and device are both
        // little-endian.
        unsafe impl Element for $name {
            const NAME: &'static str = stringify!($name);
        }
        // SAFETY: the kernels load those of 8, 4 and 1 bytes.
        unsafe impl Class for $name {}
    )+};
}
classes!(i64 i32 u32 u8);

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
    /// [`Error::InvalidShape`] where there are more than [`Shape::MAX_DIMS`], or more elements than
    /// 2⁶⁰.
    pub fn new(dims: impl IntoShape) -> Result<Self> {
        dims.into_shape("dims")
    }

    /// A shape of these dimensions.
    ///
    /// # Errors
    /// [`Error::InvalidShape`] names `argument` where there are more than [`Shape::MAX_DIMS`], or
    /// where the number of elements is more than `isize::MAX` bytes could hold.
    fn checked(argument: &'static str, dims: &[usize]) -> Result<Self> {
        let invalid = |problem| Error::InvalidShape { argument, problem };
        if dims.len() > Self::MAX_DIMS {
            let max = Self::MAX_DIMS;
            return Err(invalid(format!("expected at most {max} dimensions, got {}", dims.len())));
        }
        // Zeros aside, so that strides computed from the dimensions do not overflow either.
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

/// Refuses any shape but `expected`.
pub(crate) fn check_shape(argument: &'static str, expected: Shape, got: Shape) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: expected.to_string(), got: got.to_string() })
}

/// What can be a shape: dimensions, outermost first, as an array, a slice or a vector, or a
/// [`Shape`].
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

impl<const N: usize> IntoShape for &[usize; N] {
    fn into_shape(self, argument: &'static str) -> Result<Shape> {
        Shape::checked(argument, self)
    }
}

/// Memory on a GPU that a call reads: a borrowed [`Tensor`](crate::Tensor), or memory of somebody
/// else's.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    pub(crate) memory: Memory<'a>,
    element: PhantomData<&'a [T]>,
}

/// Memory on a GPU that a call writes.
pub struct ViewMut<'a, T> {
    pub(crate) memory: Memory<'a>,
    /// Of a loss, what is beside its values.
    pub(crate) fault: Option<Fault<'a>>,
    element: PhantomData<&'a mut [T]>,
}

/// A view without its element type.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub(crate) address: u64,
    pub(crate) shape: Shape,
    /// Elements from the start of a row to the start of the next.
    pub(crate) row_stride: usize,
    /// Elements from one of a row to the next: 1, or 0 where one stands for all.
    pub(crate) element_stride: usize,
    /// Bytes from the first element to behind the last.
    pub(crate) bytes: usize,
    pub(crate) device: u32,
    /// Who else uses it, where the library keeps count.
    pub(crate) usage: Option<&'a Usage>,
}

impl<'a> Memory<'a> {
    /// Rows without gaps.
    pub(crate) fn dense<T>(
        address: u64,
        shape: Shape,
        device: u32,
        usage: Option<&'a Usage>,
    ) -> Self {
        let (row_stride, bytes) = (shape.cols(), shape.len() * size_of::<T>());
        Memory { address, shape, row_stride, element_stride: 1, bytes, device, usage }
    }

    /// Rows of somebody else's memory.
    fn strided<T>(address: u64, shape: Shape, row_stride: usize, device: u32) -> Result<Self> {
        let (rows, cols) = (shape.rows(), shape.cols());
        if row_stride < cols {
            let (argument, expected) = ("row_stride", format!("at least {cols}, a row"));
            return Err(Error::Stride { argument, expected, got: row_stride });
        }
        let bytes = (rows.saturating_sub(1))
            .checked_mul(row_stride)
            .and_then(|elements| elements.checked_add(cols))
            .and_then(|elements| elements.checked_mul(size_of::<T>()))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let Some(bytes) = bytes else {
            let (argument, expected) = ("row_stride", "rows that memory could hold".to_owned());
            return Err(Error::Stride { argument, expected, got: row_stride });
        };
        let bytes = if shape.is_empty() { 0 } else { bytes };
        Ok(Memory { address, shape, row_stride, element_stride: 1, bytes, device, usage: None })
    }

    /// Whether the elements lie in order without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        self.element_stride == 1 && (self.row_stride == self.shape.cols() || self.shape.rows() <= 1)
    }

    /// Refuses what no kernel may get.
    pub(crate) fn check<T>(&self, argument: &'static str) -> Result<()> {
        self.check_aligned(argument, size_of::<T>())
    }

    /// [`check`](Self::check) for elements of `bytes` each.
    pub(crate) fn check_aligned(&self, argument: &'static str, bytes: usize) -> Result<()> {
        let len = self.shape.len();
        if self.address == 0 && len > 0 {
            return Err(Error::NullPointer { argument, len });
        }
        if !self.address.is_multiple_of(bytes as u64) {
            return Err(Error::Misaligned { argument, expected: bytes, got: self.address });
        }
        Ok(())
    }

    /// Refuses memory of another device.
    pub(crate) fn check_device(&self, argument: &'static str, expected: u32) -> Result<()> {
        if self.device == expected {
            return Ok(());
        }
        Err(Error::Device { argument, expected, got: self.device })
    }

    /// Refuses one element that stands for many.
    pub(crate) fn check_elements(&self, argument: &'static str) -> Result<()> {
        if self.element_stride == 1 {
            return Ok(());
        }
        let expected = "1, elements beside each other".to_owned();
        Err(Error::Stride { argument, expected, got: self.element_stride })
    }

    /// Refuses gaps between rows, where the kernels have no stride for them.
    pub(crate) fn check_dense(&self, argument: &'static str) -> Result<()> {
        if self.is_dense() {
            return Ok(());
        }
        let expected = format!("{}, rows without gaps", self.shape.cols());
        Err(Error::Stride { argument, expected, got: self.row_stride })
    }

    /// Whether both have a byte in common.
    pub(crate) fn overlaps(&self, other: &Memory<'_>) -> bool {
        let end = |memory: &Memory<'_>| memory.address + memory.bytes as u64;
        self.bytes > 0
            && other.bytes > 0
            && self.address < end(other)
            && other.address < end(self)
            && !self.lies_between_rows_of(other)
    }

    /// Whether rows are as far apart as the other's, and lie in the gaps between those: as columns
    /// of one matrix do that are beside each other.
    fn lies_between_rows_of(&self, other: &Memory<'_>) -> bool {
        if self.element_stride != 1 || other.element_stride != 1 {
            return false;
        }
        // Bytes from row to row, and of a row.
        let of_rows = |memory: &Memory<'_>| {
            let (rows, cols) = (memory.shape.rows(), memory.shape.cols());
            let element = memory.bytes / ((rows - 1) * memory.row_stride + cols);
            // Of one row, nothing else bounds the stride.
            (memory.row_stride.saturating_mul(element) as u64, (cols * element) as u64)
        };
        let ((stride, row), (stride_of_other, row_of_other)) = (of_rows(self), of_rows(other));
        if stride != stride_of_other {
            return false;
        }
        let ahead = (i128::from(other.address) - i128::from(self.address))
            .rem_euclid(i128::from(stride)) as u64;
        ahead >= row && ahead + row_of_other <= stride
    }

    /// Elements of `shape` in the middle, `offset` bytes behind the first.
    pub(crate) fn part<T>(self, offset: u64, shape: Shape) -> Self {
        Self::dense::<T>(self.address + offset, shape, self.device, self.usage)
    }

    pub(crate) fn matrix(&self) -> Matrix {
        Matrix { start: self.address, row_stride: self.row_stride as u64 }
    }
}

macro_rules! raw_views {
    ($($view:ident $(with $fault:ident)?, $second:literal;)+) => {$(
        impl<'a, T: Element> $view<'a, T> {
            /// Memory of somebody else's (PyTorch, cudarc, candle: they use the device's primary
            /// context, as this library does), in row-major order without gaps. Nothing more is
            /// checked until a call gets it.
            ///
            /// # Errors
            /// [`Error::InvalidShape`].
            ///
            /// # Safety
            /// From the call that gets the view until the work it queued is done:
            /// 1. `address` is the address of `shape`'s elements of `T` on device `ordinal`, in
            ///    memory of the device's primary context, or `shape` has no elements.
            #[doc = $second]
            pub unsafe fn from_raw(
                address: u64,
                shape: impl IntoShape,
                ordinal: u32,
            ) -> Result<Self> {
                let shape = shape.into_shape("shape")?;
                Ok(Self::of(Memory::dense::<T>(address, shape, ordinal, None)))
            }

            /// As [`from_raw`](Self::from_raw), with `row_stride` elements from the start of a row
            /// (the last dimension) to the start of the next.
            ///
            /// # Errors
            /// [`Error::InvalidShape`]; [`Error::Stride`] where rows would overlap.
            ///
            /// # Safety
            /// As [`from_raw`](Self::from_raw), for rows that far apart.
            pub unsafe fn from_raw_strided(
                address: u64,
                shape: impl IntoShape,
                row_stride: usize,
                ordinal: u32,
            ) -> Result<Self> {
                let shape = shape.into_shape("shape")?;
                Ok(Self::of(Memory::strided::<T>(address, shape, row_stride, ordinal)?))
            }

            /// The dimensions.
            pub fn shape(&self) -> Shape {
                self.memory.shape
            }
        }

        impl<'a, T> $view<'a, T> {
            pub(crate) fn of(memory: Memory<'a>) -> Self {
                $view { memory, $($fault: None,)? element: PhantomData }
            }
        }
    )+};
}

raw_views! {
    View, "2. Nothing writes them but work that is ordered before on the call's stream.";
    ViewMut with fault,
        "2. Nothing accesses them but work that is ordered before on the call's stream.";
}

macro_rules! shown {
    ($($view:ident)+) => {$(
        impl<T> fmt::Debug for $view<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Memory { shape, device, .. } = self.memory;
                write!(f, "{}{shape:?} on device {device}", stringify!($view))
            }
        }
    )+};
}
shown!(View ViewMut);

impl<T: Element> ViewMut<'_, T> {
    /// The view of a loss with room for a [`TargetFault`] at the address `fault`: a cross-entropy
    /// of classes writes there which target is no class, as it does beside the values of a
    /// [`Loss`](crate::Loss). Other losses set it to zero.
    ///
    /// # Errors
    /// [`Error::NullPointer`], [`Error::Misaligned`] where it is not on a boundary of 8 bytes.
    ///
    /// # Safety
    /// From the call that gets the view until the work it queued is done, `fault` is the address of
    /// a [`TargetFault`]'s bytes on the view's device, in no other memory of the call, and nothing
    /// accesses them but work that is ordered before on the call's stream.
    pub unsafe fn with_target_fault(self, fault: u64) -> Result<Self> {
        let memory = Memory::dense::<TargetFault>(fault, Shape::SCALAR, self.memory.device, None);
        memory.check_aligned("fault", align_of::<TargetFault>())?;
        Ok(ViewMut { fault: Some(Fault::at(fault)), ..self })
    }
}

impl<'a, T: Element> View<'a, T> {
    /// One element that stands for all of `shape`: an upstream gradient that is the same for every
    /// loss.
    ///
    /// # Errors
    /// [`Error::Shape`] where the view has not one element; [`Error::InvalidShape`].
    pub fn expand(self, shape: impl IntoShape) -> Result<Self> {
        let shape = shape.into_shape("shape")?;
        if self.memory.shape.len() != 1 {
            let (argument, expected) = ("self", "of one element".to_owned());
            return Err(Error::Shape { argument, expected, got: self.memory.shape.to_string() });
        }
        Ok(Self::of(Memory { shape, row_stride: 0, element_stride: 0, ..self.memory }))
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
        assert_eq!([0, 5].into_shape("shape").unwrap().len(), 0);
        for same in [Shape::new([2, 3, 4]), Shape::new(vec![2, 3, 4]), Shape::new(shape.dims())] {
            assert_eq!(same.unwrap(), shape);
        }
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
        let error = [1; 7].into_shape("input").unwrap_err();
        assert_eq!(error.to_string(), "input: expected at most 6 dimensions, got 7");
    }

    #[test]
    fn memory_overlaps_where_it_shares_a_byte() {
        let memory = |address, len: usize| {
            Memory::dense::<f32>(address, [len].into_shape("x").unwrap(), 0, None)
        };
        assert!(memory(0x100, 4).overlaps(&memory(0x10c, 1)));
        assert!(!memory(0x100, 4).overlaps(&memory(0x110, 4)));
        assert!(!memory(0x100, 4).overlaps(&memory(0x104, 0)));
    }

    #[test]
    fn columns_of_one_matrix_share_no_byte() {
        let columns = |from: u64, cols: usize, stride: usize| {
            let shape = [4, cols].into_shape("x").unwrap();
            Memory::strided::<f32>(0x100 + 4 * from, shape, stride, 0).unwrap()
        };
        let left = columns(0, 4, 8);
        for (other, overlaps) in [
            (columns(4, 4, 8), false),
            (columns(5, 2, 8), false),
            (columns(12, 4, 8), false),
            (columns(3, 4, 8), true),
            (columns(4, 5, 8), true),
            (columns(4, 4, 9), true),
            (columns(8, 4, 8), true),
            // Of one row, and a stride that no memory has.
            (Memory::strided::<f32>(0x104, Shape::row(4), usize::MAX, 0).unwrap(), true),
        ] {
            assert_eq!(left.overlaps(&other), overlaps, "{:?}", other.address);
            assert_eq!(other.overlaps(&left), overlaps, "{:?}", other.address);
        }
    }
}
