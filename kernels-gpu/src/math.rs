//! Logarithms and exponentials, without tables: those of libm need a stack, and the hardware's are not
//! accurate near 1.
//!
//! But for one division, whose last bit may differ, only operations that IEEE 754 rounds correctly.

use crate::element::Real;

/// ln(t / p) of plain numbers ([`Real::is_plain`]), to about two units in the last place also where it is small:
/// exactly 0 for t = p.
///
/// With m = t/2ᵏ between 2p/3 and 3p/2: k ln 2 + 2 artanh(s), s = (m − p) / (m + p). The numerator is exact.
#[inline(always)]
pub(crate) fn ln_ratio_of_plain<R: Real>(t: R, p: R) -> R {
    let (m, k) = t.near(p);
    ln_of_parts(m, p, k)
}

/// ln x of a plain number.
#[inline(always)]
pub(crate) fn ln_of_plain<R: Real>(x: R) -> R {
    ln_ratio_of_plain(x, R::ONE)
}

/// k ln 2 + ln(m / p), for m between 2p/3 and 3p/2.
#[inline(always)]
fn ln_of_parts<R: Real>(m: R, p: R, k: i32) -> R {
    let s = (m - p).over_plain(m + p);
    let tail = s * R::artanh_tail(s * s);
    let k = R::from_i32(k);
    k.fma(R::LN_2_HIGH, (s + s) + k.fma(R::LN_2_LOW, tail))
}

/// ln(t / p) = ln t − ln p, as [`ln_ratio_of_plain`], of any numbers: what the logarithms of 0, of infinity and
/// below 0 make of it.
#[inline(always)]
pub(crate) fn ln_ratio<R: Real>(t: R, p: R) -> R {
    let ((t_part, t_exponent), (p_part, p_exponent)) = (split(t), split(p));
    let (m, k) = t_part.near(p_part);
    ln_of_parts(m, p_part, k + t_exponent - p_exponent) + (beyond(t) - beyond(p))
}

/// Significand from 1 up to 2, and exponent; of any number, and right for positive finite ones.
#[inline(always)]
fn split<R: Real>(x: R) -> (R, i32) {
    let subnormal = x < R::MIN_NORMAL;
    let scaled = if subnormal { x * R::power_of_two(R::DIGITS) } else { x };
    (scaled.mantissa(), scaled.exponent() - if subnormal { R::DIGITS } else { 0 })
}

/// 0 for positive finite numbers, and ln x for all others.
#[inline(always)]
fn beyond<R: Real>(x: R) -> R {
    let beyond = if x == R::ZERO { -R::INFINITY } else { R::NAN };
    let beyond = if x > R::ZERO { R::ZERO } else { beyond };
    if x == R::INFINITY { R::INFINITY } else { beyond }
}

/// ln x: NaN below 0, −∞ at 0.
#[inline(always)]
pub(crate) fn ln<R: Real>(x: R) -> R {
    ln_ratio(x, R::ONE)
}

/// eˣ: 2ⁿ eʳ with |r| at most half of ln 2.
#[inline(always)]
pub(crate) fn exp<R: Real>(x: R) -> R {
    // Adding and taking away a number whose unit is 1 rounds to a whole one.
    let n = (x * R::from_f64(core::f64::consts::LOG2_E) + R::WHOLE) - R::WHOLE;
    let r = (-n).fma(R::LN_2_LOW, (-n).fma(R::LN_2_HIGH, x));
    let value = R::ONE + (r + r * r * R::exp_tail(r));
    // In two steps: 2ⁿ alone may be beyond the type. Far beyond, whatever comes of it is not used.
    let n = n.to_i32();
    let value = value * R::power_of_two(n / 2) * R::power_of_two(n - n / 2);
    let value = if x > R::EXP_OVERFLOWS { R::INFINITY } else { value };
    let value = if x < R::EXP_VANISHES { R::ZERO } else { value };
    if x.is_nan() { x } else { value }
}

/// The polynomial with these coefficients, lowest first.
macro_rules! horner {
    ($x:ident; ($last:literal)) => { $last };
    ($x:ident; ($first:literal $($rest:literal)+)) => {
        Self::fma($crate::math::horner!($x; ($($rest)+)), $x, $first)
    };
}
pub(crate) use horner;
