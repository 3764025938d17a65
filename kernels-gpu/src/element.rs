//! Element types: how one is loaded 16 bytes at a time, widened for arithmetic, and narrowed.

use crate::abi::Dtype;
use core::ops::{Add, Mul, Neg, Sub};
use cuda_std::memory::{Vec16, Word};

/// The types that arithmetic is done in.
pub trait Real:
    Word + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Zero.
    const ZERO: Self;
    /// Rounds to this type.
    fn from_f64(value: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

/// The types that tensors hold.
pub trait Element: Word {
    /// What arithmetic on this type is done in, and the type of a reduced loss.
    type Real: Real;
    /// Its name in the table of kernels.
    const DTYPE: Dtype;
    /// Elements in 16 bytes, at most [`MAX_LANES`].
    const LANES: u32;
    /// Exact.
    fn widen(self) -> Self::Real;
    /// Rounds to nearest even.
    fn narrow(value: Self::Real) -> Self;
    /// Element `lane` of 16 bytes.
    fn extract(from: Vec16, lane: u32) -> Self;
    /// 16 bytes of elements.
    fn pack(element: impl FnMut(u32) -> Self) -> Vec16;
}

/// The most elements that 16 bytes hold.
pub const MAX_LANES: usize = 8;

impl Element for f32 {
    type Real = f32;
    const DTYPE: Dtype = Dtype::F32;
    const LANES: u32 = 4;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn extract(from: Vec16, lane: u32) -> Self {
        f32::from_bits(from.0[lane as usize])
    }

    #[inline(always)]
    fn pack(mut element: impl FnMut(u32) -> Self) -> Vec16 {
        Vec16([
            element(0).to_bits(),
            element(1).to_bits(),
            element(2).to_bits(),
            element(3).to_bits(),
        ])
    }
}
