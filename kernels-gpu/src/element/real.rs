//! [`Real`], the types of arithmetic.

use super::{float32, float64};
use core::ops::{Add, Div, Mul, Neg, Sub};
use cuda_std::math;
use cuda_std::memory::Word;
use cuda_std::warp::WarpShuffleValue;

/// The types that arithmetic is done in: f32 and f64.
pub trait Real:
    Word
    + WarpShuffleValue
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
    /// Positive infinity.
    const INFINITY: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;
    /// Not a number.
    const NAN: Self;
    /// The smallest normal number.
    const MIN_NORMAL: Self;
    /// Binary digits of the significand, the hidden one included.
    const DIGITS: i32;
    /// 1.5 · 2ᵈ⁻¹, with d = [`DIGITS`](Self::DIGITS): numbers near it have a unit in the last place
    /// of 1, so adding it rounds to an integer.
    const WHOLE: Self;
    /// The leading bits of ln 2, few enough that products with exponents are exact.
    const LN_2_HIGH: Self;
    /// ln 2 − [`LN_2_HIGH`](Self::LN_2_HIGH).
    const LN_2_LOW: Self;
    /// Rounds `value` to this type.
    fn from_f64(value: f64) -> Self;
    /// Converts without rounding.
    fn to_f64(self) -> f64;
    /// The number's bits, zero-extended.
    fn to_bits64(self) -> u64;
    /// The inverse of [`to_bits64`](Self::to_bits64).
    fn from_bits64(bits: u64) -> Self;
    /// Converts an exponent, which is small enough not to be rounded.
    fn from_i32(value: i32) -> Self;
    /// `self * a + b`, rounded once.
    fn fma(self, a: Self, b: Self) -> Self;
    /// A number is plain if its [`rank`](Self::rank) is below this: from 4 times the smallest
    /// normal number up to, but not including, 4. Ratios of plain numbers are normal numbers, so
    /// logarithms and divisions of plain numbers skip the special cases.
    const PLAIN_RANKS: u32;
    /// The upper 32 bits of the number, minus those of the smallest plain number, as an unsigned
    /// integer. Numbers that are not plain wrap around to [`PLAIN_RANKS`](Self::PLAIN_RANKS) or
    /// more.
    fn rank(self) -> u32;
    /// `self / divisor`, except perhaps for the last bit. The divisor is a sum of plain numbers,
    /// and the magnitude of `self` is at most the divisor.
    fn over_plain(self, divisor: Self) -> Self;
    /// `self / divisor`, to 3 units in the last place in f32 and to 1 in f64, for plain numbers.
    fn quickly_over(self, divisor: Self) -> Self;
    /// 2ᵏ such that `self` is between 2/3 and 3/2 of 2ᵏ `other`, for plain numbers. The bits of a
    /// floating-point number, read as an integer, approximate its logarithm, so the difference of
    /// the bits, rounded to a multiple of the exponent's lowest bit, is k.
    fn scale_from(self, other: Self) -> Self;
    /// The unit of what [`quick_ln`](Self::quick_ln) returns.
    const LN_UNIT: Self;
    /// (k ln 2 + 2 artanh(d/a)) / [`LN_UNIT`](Self::LN_UNIT), for |d/a| up to 0.2, where `scale` is
    /// 2ᵏ. Exactly 0 for k = 0 and d = 0. The relative error is 8e-7 in f32; in f64 the error is
    /// 2.2 units in the last place.
    fn quick_ln(scale: Self, d: Self, a: Self) -> Self;
    /// `self` − k ln 2 − 2 artanh(d/a), for |d/a| up to 0.2, where `scale` is 2ᵏ. In f32 the error
    /// is 4 units in the last place of the logarithm.
    fn less_ln(self, scale: Self, d: Self, a: Self) -> Self;
    /// Whether this is a NaN.
    fn is_nan(self) -> bool;
    /// The significand of a positive normal number, from 1 up to 2. For any other number, an
    /// arbitrary number in that range.
    fn mantissa(self) -> Self;
    /// The exponent of a positive normal number.
    fn exponent(self) -> i32;
    /// 2ⁿ, for n from the exponent of the smallest normal number to that of the largest.
    fn power_of_two(n: i32) -> Self;
    /// (2 artanh s)/s − 2 as a polynomial in z = s², for |s| up to 0.2. In f32 it is the polynomial
    /// of fdlibm's logf; in f64 it was fitted for this range.
    fn artanh_tail(z: Self) -> Self;
    /// (eʳ − 1 − r)/r², for |r| up to half of ln 2.
    fn exp_tail(r: Self) -> Self;

    /// The upper 32 bits: in f32, all bits. Read as f32s, they are in the order of the numbers;
    /// those of NaNs, of f64 infinities and of f64s beyond ±2¹⁰¹⁷ are NaNs.
    fn to_top(self) -> u32;
    /// The number with these upper bits, whose other bits are 0. NaN stays NaN.
    fn from_top(top: u32) -> Self;
    /// A [top](Self::to_top) that is below those of all other numbers.
    const NO_TOP: u32 = f32::MIN.to_bits();

    /// The larger of the two; if one is NaN, the other.
    fn max(self, other: Self) -> Self;
    /// The smaller and the larger of `self`, which is not NaN, and `other`. If `other` is NaN, the
    /// result is NaN and `self`.
    fn min_max(self, other: Self) -> [Self; 2];
    /// eˣ. The relative error is 2e-7 in f32; in f64 the error is 1 unit in the last place.
    fn exp(self) -> Self;
    /// eˣ for x ≤ 0. In f32 the error is 2 units in the last place of eˣ and of x, and results that
    /// would be subnormal are 0; in f64 the error is 1 unit in the last place, and the result is 0
    /// from −708 down. A NaN that an arithmetic operation returned gives NaN.
    fn exp_below(self) -> Self;
    /// Prepares e^((x − center) · scale) for many x and one center and scale: with `factor`, it is
    /// [`exp_shifted`](Self::exp_shifted)(x, factor, shift) · [`unshift`](Self::unshift)(center,
    /// factor, shift), which takes one rounding and one instruction per x less than
    /// [`exp_below`](Self::exp_below).
    fn factor_of(scale: Self) -> Self;
    /// The shift of a center, already multiplied by the factor where that saves an instruction.
    fn shift_from(center: Self, factor: Self) -> Self;
    /// e^((x − center) · scale), up to the factor [`unshift`](Self::unshift), for x at most the
    /// center.
    fn exp_shifted(self, factor: Self, shift: Self) -> Self;
    /// A factor near 1 that corrects for the rounding of the shift.
    fn unshift(center: Self, factor: Self, shift: Self) -> Self;
    /// What [`exp_near`](Self::exp_near) is relative to: a number near the exponential of a center.
    type Near: Copy;
    /// The number for a center whose magnitude is below 2¹⁴. Any other center has an arbitrary one.
    fn near(center: Self) -> Self::Near;
    /// A number whose exponential is within 2⁻⁴⁰ of `near`.
    fn center_of(near: Self::Near) -> Self;
    /// eˣ divided by `near`, for a finite x that is less than 700 above the center and, in f64,
    /// less than 2¹⁰¹⁷ in magnitude. For any other x, an arbitrary number. In f64 the result is 0
    /// from 709.5 below the center on.
    fn exp_near(self, near: Self::Near) -> Self;
    /// What exponentials relative to `near` are multiplied by to be relative to that of x, which is
    /// less than 700 from the center.
    fn near_over_exp(near: Self::Near, x: Self) -> Self;
    /// What exponentials relative to `near` are multiplied by to be relative to `other`.
    fn near_over(near: Self::Near, other: Self::Near) -> Self;
    /// If a scaled center has this magnitude or more, its shift is rounded too coarsely to be
    /// corrected.
    const FAR: Self;

    /// The magnitude.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn magnitude(self) -> Self {
        if self < Self::ZERO { -self } else { self }
    }
}

/// The upper 32 bits of a number.
macro_rules! upper {
    ($name:ident, $value:expr) => {
        ($name::to_bits($value) >> (8 * size_of::<$name>() - 32)) as u32
    };
}
pub(crate) use upper;

/// The polynomial in `$x` with these coefficients, lowest first.
macro_rules! horner {
    ($x:ident; $last:expr) => { $last };
    ($x:ident; $first:expr, $($rest:expr),+) => { $x.fma(horner!($x; $($rest),+), $first) };
}
pub(crate) use horner;

/// Implements [`Real`]: constants and bit operations here, arithmetic by the functions named.
macro_rules! reals {
    ($(
        $name:ident: $bits:ty, $from_i32:path, $fma:path, $divide:path, $quickly_divide:path,
        $from_upper:path, $min_max:path, $exp_of:path, $exp_below:path,
        shift $factor_of:path, $shift_from:path, $exp_shifted:path, $unshift:path, $far:expr,
        near $near:ty, $near_to:path, $center_of:path,
        $exp_near:path, $near_over_exp:path, $near_over:path,
        $quick_ln:path, unit $ln_unit:expr, $less_ln:path, whole $whole:literal, ln_2 $high:literal $low:literal,
        tails $artanh:path, $exp:path;
    )+) => {$(
        #[allow(clippy::excessive_precision)] // as published
        impl Real for $name {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HALF: Self = 0.5;
            const INFINITY: Self = $name::INFINITY;
            const NEG_INFINITY: Self = $name::NEG_INFINITY;
            const NAN: Self = $name::NAN;
            const MIN_NORMAL: Self = $name::MIN_POSITIVE;
            const DIGITS: i32 = $name::MANTISSA_DIGITS as i32;
            const WHOLE: Self = $whole;
            const LN_2_HIGH: Self = $high;
            const LN_2_LOW: Self = $low;

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn from_f64(value: f64) -> Self {
                value as $name
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn to_bits64(self) -> u64 {
                u64::from(self.to_bits())
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn from_bits64(bits: u64) -> Self {
                $name::from_bits(bits as $bits)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn from_i32(value: i32) -> Self {
                $from_i32(value)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn fma(self, a: Self, b: Self) -> Self {
                $fma(self, a, b)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn to_top(self) -> u32 {
                upper!($name, self)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn from_top(top: u32) -> Self {
                $from_upper(top)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn max(self, other: Self) -> Self {
                $name::max(self, other)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn min_max(self, other: Self) -> [Self; 2] {
                $min_max(self, other)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn exp(self) -> Self {
                $exp_of(self)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn exp_below(self) -> Self {
                $exp_below(self)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn factor_of(scale: Self) -> Self {
                $factor_of(scale)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn shift_from(center: Self, factor: Self) -> Self {
                $shift_from(center, factor)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn exp_shifted(self, factor: Self, shift: Self) -> Self {
                $exp_shifted(self, factor, shift)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn unshift(center: Self, factor: Self, shift: Self) -> Self {
                $unshift(center, factor, shift)
            }

            type Near = $near;

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn near(center: Self) -> Self::Near {
                $near_to(center)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn center_of(near: Self::Near) -> Self {
                $center_of(near)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn exp_near(self, near: Self::Near) -> Self {
                $exp_near(near, self)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn near_over_exp(near: Self::Near, x: Self) -> Self {
                $near_over_exp(near, x)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn near_over(near: Self::Near, other: Self::Near) -> Self {
                $near_over(near, other)
            }

            const FAR: Self = $far;

            const PLAIN_RANKS: u32 = upper!($name, 4.0) - upper!($name, 4.0 * $name::MIN_POSITIVE);

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn rank(self) -> u32 {
                upper!($name, self).wrapping_sub(upper!($name, 4.0 * $name::MIN_POSITIVE))
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn over_plain(self, divisor: Self) -> Self {
                $divide(self, divisor)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn quickly_over(self, divisor: Self) -> Self {
                $quickly_divide(self, divisor)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn scale_from(self, other: Self) -> Self {
                const DIGITS: $bits = (1 << ($name::MANTISSA_DIGITS - 1)) - 1;
                const ROUNDS: $bits = (1.0 as $name).to_bits() + DIGITS / 2 + 1;
                let apart = self.to_bits().wrapping_sub(other.to_bits());
                $name::from_bits(apart.wrapping_add(ROUNDS) & !DIGITS)
            }

            const LN_UNIT: Self = $ln_unit;

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn quick_ln(scale: Self, d: Self, a: Self) -> Self {
                $quick_ln(scale, d, a)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn less_ln(self, scale: Self, d: Self, a: Self) -> Self {
                $less_ln(self, scale, d, a)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn is_nan(self) -> bool {
                $name::is_nan(self)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn mantissa(self) -> Self {
                const EXPONENT: $bits = $name::INFINITY.to_bits();
                const SIGN: $bits = (-0.0 as $name).to_bits();
                $name::from_bits(self.to_bits() & !(EXPONENT | SIGN) | (1.0 as $name).to_bits())
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn exponent(self) -> i32 {
                let exponent = (self.to_bits() >> ($name::MANTISSA_DIGITS - 1)) as i32;
                exponent - ($name::MAX_EXP - 1)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn power_of_two(n: i32) -> Self {
                let exponent = (n + ($name::MAX_EXP - 1)) as $bits;
                $name::from_bits(exponent << ($name::MANTISSA_DIGITS - 1))
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn artanh_tail(z: Self) -> Self {
                $artanh(z)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn exp_tail(r: Self) -> Self {
                $exp(r)
            }
        }
    )+};
}

reals! {
    f32: u32, float32::from_i32, math::fma_f32, math::divide_plain_f32, float32::quickly_divide,
        f32::from_bits, float32::min_max, float32::exp, float32::exp_below,
        shift float32::factor_of, float32::shift_from, float32::exp_shifted, float32::unshift,
        16_777_216.0,
        near float32::Near, float32::Near::to, float32::Near::center,
            float32::Near::exp, float32::Near::over_exp, float32::Near::over,
        float32::quick_ln, unit float32::LN_UNIT, float32::less_ln, whole 12_582_912.0, ln_2 0.693_138_12 9.058_000_6e-6,
        tails float32::artanh_tail, float32::exp_tail;
    f64: u64, float64::from_i32, math::fma_f64, float64::quickly_divide, float64::quickly_divide,
        float64::from_upper, float64::min_max, float64::exp, float64::exp_below,
        shift float64::factor_of, float64::shift_from, float64::exp_shifted, float64::unshift,
        f64::NAN,
        near float64::Near, float64::Near::to, float64::Near::center,
            float64::Near::exp, float64::Near::over_exp, float64::Near::over,
        float64::quick_ln, unit 1.0, float64::less_ln, whole 6_755_399_441_055_744.0,
        ln_2 0.693_147_180_369_123_8 1.908_214_929_270_587_7e-10,
        tails float64::artanh_tail, float64::exp_tail;
}

/// k ln 2 + 2 artanh(d/a), for |d/a| up to 0.2. The error is a few units in the last place.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn ln_of_parts<R: Real>(k: R, d: R, a: R) -> R {
    let s = d.over_plain(a);
    let tail = s * R::artanh_tail(s * s);
    k.fma(R::LN_2_HIGH, s.fma(R::ONE + R::ONE, k.fma(R::LN_2_LOW, tail)))
}
