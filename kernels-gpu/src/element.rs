//! Element types: how one is loaded 16 bytes at a time, widened for arithmetic, and narrowed.

use crate::abi::Dtype;
use core::ops::{Add, Div, Mul, Neg, Sub};
use cuda_std::math;
use cuda_std::memory::{Vec16, Word};

/// The types that arithmetic is done in.
pub trait Real:
    Word
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// One half.
    const HALF: Self;
    /// Rounds to this type.
    fn from_f64(value: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;

    /// The magnitude.
    #[inline(always)]
    fn magnitude(self) -> Self {
        if self < Self::ZERO { -self } else { self }
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HALF: Self = 0.5;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HALF: Self = 0.5;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// The types that tensors hold.
pub trait Element: Word {
    /// What arithmetic on this type is done in, and the type of a reduced loss.
    type Real: Real;
    /// Its name in the table of kernels.
    const DTYPE: Dtype;
    /// Elements in 16 bytes, at most [`MAX_LANES`].
    const LANES: u32 = 16 / size_of::<Self>() as u32;
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

/// Calls `body` with 0 to `count` - 1, a constant of at most [`MAX_LANES`], without a loop: LLVM does not
/// unroll every loop over a register array, and one that stays puts the array in memory.
#[inline(always)]
pub(crate) fn unrolled(count: usize, mut body: impl FnMut(usize)) {
    macro_rules! calls {
        ($($index:literal)*) => {
            $(if $index < count { body($index) })*
        };
    }
    calls!(0 1 2 3 4 5 6 7);
}

impl Element for f32 {
    type Real = f32;
    const DTYPE: Dtype = Dtype::F32;

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
        let mut word = |lane| element(lane).to_bits();
        Vec16([word(0), word(1), word(2), word(3)])
    }
}

impl Element for f64 {
    type Real = f64;
    const DTYPE: Dtype = Dtype::F64;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn extract(from: Vec16, lane: u32) -> Self {
        let word = |half: u32| u64::from(from.0[(2 * lane + half) as usize]);
        f64::from_bits(word(1) << 32 | word(0))
    }

    #[inline(always)]
    fn pack(mut element: impl FnMut(u32) -> Self) -> Vec16 {
        let (a, b) = (element(0).to_bits(), element(1).to_bits());
        Vec16([a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32])
    }
}

/// The types of 16 bits: a name, and the conversions from and to f32.
macro_rules! halves {
    ($($(#[$doc:meta])* $name:ident, $dtype:ident, $widen:path, $narrow:path;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(transparent)]
        pub struct $name(u16);

        // SAFETY: a u16.
        unsafe impl Word for $name {}

        impl Element for $name {
            type Real = f32;
            const DTYPE: Dtype = Dtype::$dtype;

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.0)
            }

            #[inline(always)]
            fn narrow(value: f32) -> Self {
                $name($narrow(value))
            }

            #[inline(always)]
            fn extract(from: Vec16, lane: u32) -> Self {
                $name((from.0[(lane / 2) as usize] >> (lane % 2 * 16)) as u16)
            }

            #[inline(always)]
            fn pack(mut element: impl FnMut(u32) -> Self) -> Vec16 {
                let mut word = |at| u32::from(element(at).0) | u32::from(element(at + 1).0) << 16;
                Vec16([word(0), word(2), word(4), word(6)])
            }
        }
    )+};
}

halves! {
    /// IEEE 754 binary16.
    F16, F16, math::f32_from_f16, math::f16_from_f32;
    /// bfloat16.
    Bf16, Bf16, math::f32_from_bf16, math::bf16_from_f32;
}
