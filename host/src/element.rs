//! Element types of tensors.

use kernels_gpu::abi::Dtype;
use std::fmt;

mod sealed {
    pub trait Sealed {}
}

/// The element type of a tensor: a [`Float`] or a [`Class`].
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

/// An element type that losses have kernels for: `f32`, `f64`, `half::f16`, `half::bf16`.
///
/// # Safety
/// Sealed: the library implements it for the types that its kernels are compiled for.
pub unsafe trait Float: Element {
    /// The type, as the names of kernels encode it.
    const DTYPE: Dtype;
    /// The type of a reduced loss of tensors of this type, and of its upstream gradient.
    type Loss: Float;
}

/// The type of class indices: `i64`, `i32`, `u32`, `u8`.
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
