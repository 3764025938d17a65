//! Arithmetic for which there are special instructions.

use crate::side;

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    side::fma_f32(a, b, c)
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma_f64(a: f64, b: f64, c: f64) -> f64 {
    side::fma_f64(a, b, c)
}

/// IEEE binary16 to f32, exact.
#[inline(always)]
pub fn f32_from_f16(bits: u16) -> f32 {
    side::f32_from_f16(bits)
}

/// f32 to IEEE binary16, to nearest even.
#[inline(always)]
pub fn f16_from_f32(value: f32) -> u16 {
    side::f16_from_f32(value)
}

/// bfloat16 to f32, exact.
#[inline(always)]
pub fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bfloat16, to nearest even.
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> u16 {
    side::bf16_from_f32(value)
}

/// `a / b` for |a| ≤ b and normal b up to 2¹²⁶, except perhaps for the last bit. It omits the
/// special cases of a full division.
#[inline(always)]
pub fn divide_plain_f32(a: f32, b: f32) -> f32 {
    side::divide_plain_f32(a, b)
}

/// `a / b`, except perhaps for the last bits, if 1/b is normal: a third of the instructions of a
/// full division, without a jump.
#[inline(always)]
pub fn divide_plain_f64(a: f64, b: f64) -> f64 {
    side::divide_plain_f64(a, b)
}

/// 1/x to 1 unit in the last place, for normal x up to 2¹²⁶; rounded once on the CPU.
#[inline(always)]
pub fn reciprocal_approx_f32(x: f32) -> f32 {
    side::reciprocal_approx_f32(x)
}

/// 1/x to some 20 bits, for normal x with a normal 1/x. Only the upper half of x is used, and the
/// lower half of the result is 0.
#[inline(always)]
pub fn reciprocal_approx_f64(x: f64) -> f64 {
    side::reciprocal_approx_f64(x)
}

/// All bits set if `value` is below `limit`, and 0 otherwise. It uses the sign of a difference, and
/// so no predicate register. `limit` is 2³¹ or more.
#[inline(always)]
pub fn mask_below(value: u32, limit: u32) -> u32 {
    side::mask_below(value, limit)
}

/// The f64 with these halves, as one move: LLVM would shift and add the halves.
#[inline(always)]
pub fn f64_from_halves(upper: u32, lower: u32) -> f64 {
    side::f64_from_halves(upper, lower)
}

/// Two f32 to IEEE binary16, to nearest even: the first in the lower half.
#[inline(always)]
pub fn f16x2_from_f32(values: [f32; 2]) -> u32 {
    side::f16x2_from_f32(values)
}

/// Two f32 to bfloat16, to nearest even: the first in the lower half.
#[inline(always)]
pub fn bf16x2_from_f32(values: [f32; 2]) -> u32 {
    side::bf16x2_from_f32(values)
}

/// 2ˣ to 2 units in the last place; 0 where it would be subnormal.
#[inline(always)]
pub fn exp2_approx_f32(x: f32) -> f32 {
    side::exp2_approx_f32(x)
}

/// The smaller one; NaN if one is NaN.
#[inline(always)]
pub fn min_or_nan_f32(a: f32, b: f32) -> f32 {
    side::min_or_nan_f32(a, b)
}

/// The larger of two f32, given and returned by their bits; NaN if one is NaN.
#[inline(always)]
pub fn max_or_nan_f32_bits(a: u32, b: u32) -> u32 {
    side::max_or_nan_f32_bits(a, b)
}

/// The larger of each pair of f16s in a word; if one is NaN, the other.
#[inline(always)]
pub fn max_f16_pairs(a: u32, b: u32) -> u32 {
    side::max_f16_pairs(a, b)
}

/// The larger of each pair of bfloat16s in a word; if one is NaN, the other.
#[inline(always)]
pub fn max_bf16_pairs(a: u32, b: u32) -> u32 {
    side::max_bf16_pairs(a, b)
}

/// The smaller of each pair of f16s in a word; NaN if one is NaN.
#[inline(always)]
pub fn min_or_nan_f16_pairs(a: u32, b: u32) -> u32 {
    side::min_or_nan_f16_pairs(a, b)
}

/// The smaller of each pair of bfloat16s in a word; NaN if one is NaN.
#[inline(always)]
pub fn min_or_nan_bf16_pairs(a: u32, b: u32) -> u32 {
    side::min_or_nan_bf16_pairs(a, b)
}

/// The larger of each pair of f16s in a word; NaN if one is NaN.
#[inline(always)]
pub fn max_or_nan_f16_pairs(a: u32, b: u32) -> u32 {
    side::max_or_nan_f16_pairs(a, b)
}

/// The larger of each pair of bfloat16s in a word; NaN if one is NaN.
#[inline(always)]
pub fn max_or_nan_bf16_pairs(a: u32, b: u32) -> u32 {
    side::max_or_nan_bf16_pairs(a, b)
}
