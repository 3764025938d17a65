//! Arithmetic in f32: exponentials and logarithms from the hardware's approximate instructions,
//! where they are accurate enough, and from polynomials elsewhere.

use super::real::{Real, horner};
use cuda_std::math;

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn from_i32(value: i32) -> f32 {
    value as f32
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn min_max(a: f32, b: f32) -> [f32; 2] {
    [math::min_or_nan_f32(a, b), a.max(b)]
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn quickly_divide(a: f32, b: f32) -> f32 {
    a * math::reciprocal_approx_f32(b)
}

/// k · `ln_2`, where `scale` is 2ᵏ and `ln_2` is ln 2 in the caller's unit. The product is rounded
/// once: `ln_2` has at most 17 bits, so its products with exponents and with the bias of 127 are
/// exact.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn ln_of_scale(scale: f32, ln_2: f32) -> f32 {
    const EXPONENT: f32 = 8_388_608.0;
    (scale.to_bits().cast_signed() as f32).fma(ln_2 / EXPONENT, -127.0 * ln_2)
}

// Two polynomials for 2 artanh s, minimax fits up to s² = 0.04 with next to no error at 0. Each is
// divided by the coefficient of its highest power, which becomes the unit of the result, so that
// every multiply-add raises the power by one. ln 2 in that unit is a number of few bits, to 1e-10.

/// The unit of [`quick_ln`].
pub(super) const LN_UNIT: f32 = 0.416_799_04;

/// 2 artanh s as s ((s² + α)² + β) units, to 3.7e-7. Rounding and the error of the reciprocal add
/// at most as much again.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn quick_ln(scale: f32, d: f32, a: f32) -> f32 {
    const ALPHA: f32 = 0.799_482_7;
    const BETA: f32 = 4.159_303;
    let s = quickly_divide(d, a);
    let u = s.fma(s, ALPHA);
    s.fma(u.fma(u, BETA), ln_of_scale(scale, 27_247.0 / 16_384.0))
}

/// 2 artanh s as s (((s² + α)² + β) (s² + α) + γ) of its own `UNIT`s, to 3e-9. The degree is higher
/// than in [`quick_ln`] because the difference of x and a logarithm exposes systematic errors,
/// which do not average out over many elements.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn less_ln(x: f32, scale: f32, d: f32, a: f32) -> f32 {
    const UNIT: f32 = 0.303_277_34;
    const ALPHA: f32 = 0.439_199_42;
    const BETA: f32 = 1.619_527_8;
    const GAMMA: f32 = 5.798_608_3;
    let s = quickly_divide(d, a);
    let u = s.fma(s, ALPHA);
    let ln = s.fma(u.fma(u.fma(u, BETA), GAMMA), ln_of_scale(scale, 18_723.0 / 8_192.0));
    ln.fma(-UNIT, x)
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn exp_tail(r: f32) -> f32 {
    horner!(r; 0.5, 0.166_666_67, 0.041_665_795, 0.008_333_452, 0.001_398_199_9, 1.987_569_1e-4)
}

/// The polynomial of fdlibm's logf.
#[allow(clippy::excessive_precision)] // as published
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn artanh_tail(z: f32) -> f32 {
    z * horner!(z; 0.666_666_6, 0.400_009_72, 0.284_987_87, 0.242_790_79)
}

/// eˣ = 2ⁿ 2ᶠ, with f from −1/2 to 1/2, computed as precisely as two multiply-adds allow.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn exp(x: f32) -> f32 {
    // At these limits the result is already ∞ or 0, and between them 2ⁿ is a product of two powers
    // of two.
    const MOST: f32 = 89.0;
    const LEAST: f32 = -104.5;
    let x = f32::from_bits(math::max_or_nan_f32_bits(x.to_bits(), LEAST.to_bits()));
    let x = math::min_or_nan_f32(x, MOST);
    // The sum rounds to an integer: its unit in the last place is 1, so its lowest bits are n.
    let sum = x.fma(core::f32::consts::LOG2_E, f32::WHOLE);
    let n = sum - f32::WHOLE;
    let f = x.fma(LOG2_E_LOW, x.fma(core::f32::consts::LOG2_E, -n));
    // In two steps, because 2ⁿ alone may overflow, or be subnormal. The bits of `sum` above those
    // of n are shifted out of the word in both halves.
    let (all, half) = (sum.to_bits(), sum.to_bits() >> 1);
    math::exp2_approx_f32(f) * power_of_bits(half) * power_of_bits(all - half)
}

/// log₂ e less its value as an f32.
const LOG2_E_LOW: f32 = 1.925_963e-8;

/// 2ⁿ, where the lowest bits are those of n.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn power_of_bits(bits: u32) -> f32 {
    f32::from_bits((bits << (f32::MANTISSA_DIGITS - 1)).wrapping_add(1.0_f32.to_bits()))
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn exp_below(x: f32) -> f32 {
    math::exp2_approx_f32(x * core::f32::consts::LOG2_E)
}

/// The factor of `ex2`'s argument, which includes the scale.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn factor_of(scale: f32) -> f32 {
    core::f32::consts::LOG2_E * scale
}

/// −center · log₂ e, so that an exponential is one multiply-add and one `ex2`. A center whose shift
/// is infinite is beyond [`Real::FAR`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn shift_from(center: f32, factor: f32) -> f32 {
    -(center * factor)
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn exp_shifted(x: f32, factor: f32, shift: f32) -> f32 {
    math::exp2_approx_f32(x.fma(factor, shift))
}

/// The rounding error of the shift is itself an f32, so the multiply-add computes it exactly.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn unshift(center: f32, factor: f32, shift: f32) -> f32 {
    math::exp2_approx_f32((-center).fma(factor, -shift))
}

/// The exponential of a center. In f32 no kernel computes exponentials relative to a number near
/// the exponential of a center, since subtracting a center takes no operation of its own.
#[derive(Clone, Copy)]
pub struct Near(f32);

impl Near {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn to(center: f32) -> Self {
        Near(center)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn center(self) -> f32 {
        self.0
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn exp(self, x: f32) -> f32 {
        exp(x - self.0)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn over_exp(self, x: f32) -> f32 {
        exp(self.0 - x)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn over(self, other: Self) -> f32 {
        exp(self.0 - other.0)
    }
}
