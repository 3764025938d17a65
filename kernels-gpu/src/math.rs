//! Logarithms and exponentials. The functions of libm would need a stack, and the hardware's
//! approximate logarithm is not accurate near 1.
//!
//! All operations are correctly rounded by IEEE 754, except divisions in f32, whose last bits may
//! differ between devices and the CPU.

use crate::element::{Real, ln_of_parts};
use core::f64::consts::{LN_2, LOG2_E};
use cuda_std::math::divide_plain_f64;

/// ln(t / p) / [`Real::LN_UNIT`] for plain numbers ([`Real::PLAIN_RANKS`]). The relative error is
/// 8e-7 in f32; in f64 the error is 2.2 units in the last place. That holds near t = p too, where
/// the result is exactly 0.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn quick_ln_ratio<R: Real>(t: R, p: R) -> R {
    let (scale, d, a) = parts(t, p);
    R::quick_ln(scale, d, a)
}

/// x − ln t for plain t.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn less_ln_of_plain<R: Real>(x: R, t: R) -> R {
    let (scale, d, a) = parts(t, R::ONE);
    x.less_ln(scale, d, a)
}

/// 2ᵏ, t − q and t + q, where q = 2ᵏ p is between 2t/3 and 3t/2. Then
/// ln(t/p) = k ln 2 + 2 artanh((t − q)/(t + q)), and t − q is exact.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn parts<R: Real>(t: R, p: R) -> (R, R, R) {
    let scale = t.scale_from(p);
    (scale, (-p).fma(scale, t), p.fma(scale, t))
}

/// ln(t / p) for any numbers, to a few units in the last place, near t = p too. If t or p is 0,
/// infinite, negative or NaN, the result is that of ln t − ln p.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn ln_ratio<R: Real>(t: R, p: R) -> R {
    let ((t_part, t_exponent), (p_part, p_exponent)) = (split(t), split(p));
    let (scale, d, a) = parts(t_part, p_part);
    let k = scale.exponent() + t_exponent - p_exponent;
    ln_of_parts(R::from_i32(k), d, a) + (ln_of_special(t) - ln_of_special(p))
}

/// The significand, from 1 up to 2, and the exponent of a positive finite number, subnormal ones
/// included. For any other number, some significand in that range and some exponent.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn split<R: Real>(x: R) -> (R, i32) {
    let subnormal = x < R::MIN_NORMAL;
    let scaled = if subnormal { x * R::power_of_two(R::DIGITS) } else { x };
    (scaled.mantissa(), scaled.exponent() - if subnormal { R::DIGITS } else { 0 })
}

/// 0 for positive finite x, and ln x for every other x: infinite or NaN.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn ln_of_special<R: Real>(x: R) -> R {
    let special = if x == R::ZERO { -R::INFINITY } else { R::NAN };
    let special = if x > R::ZERO { R::ZERO } else { special };
    if x == R::INFINITY { R::INFINITY } else { special }
}

/// ln x; NaN for x < 0, and −∞ for x = 0.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn ln<R: Real>(x: R) -> R {
    ln_ratio(x, R::ONE)
}

/// ln(1 + x) for x ≥ 0, to a few units in the last place, for small x too.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn ln_1p<R: Real>(x: R) -> R {
    // Below 1/2, ln(1 + x) = 2 artanh(x/(2 + x)) avoids the rounding of 1 + x. Above, x/(2 + x) is
    // too large for the polynomial, and 1 + x is reduced by a power of two.
    let (scale, d, a) = parts(R::ONE + x, R::ONE);
    let is_near = x < R::HALF;
    let k = if is_near { R::ZERO } else { R::from_i32(scale.exponent()) };
    let d = if is_near { x } else { d };
    let a = if is_near { R::ONE + R::ONE + x } else { a };
    let value = ln_of_parts(k, d, a);
    if x.is_nan() { x } else { value }
}

/// eˣ for x from −80 to 0. In f32 it takes fewer instructions than [`exp`] and is accurate to 4e-7:
/// the product with log₂ e is rounded, and the result is corrected for that.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn quick_exp_below<R: Real>(x: R) -> R {
    let exp = x.exp_below();
    if size_of::<R>() > 4 {
        return exp;
    }
    let (high, low) = (R::from_f64(LOG2_E_HIGH), R::from_f64(LOG2_E - LOG2_E_HIGH));
    let off = x.fma(low, x.fma(high, -(x * high)));
    exp.fma(off * R::from_f64(LN_2), exp)
}

/// log₂ e as an f32.
const LOG2_E_HIGH: f64 = core::f32::consts::LOG2_E as f64;

/// ln(1 + x) for x from 0 to 1. In f32 it takes fewer instructions than [`ln_1p`] and is accurate
/// to 4e-7. It is 2 artanh(s) with s = x/(2 + x), by a minimax fit to 5e-9 for s up to 1/3.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn quick_ln_1p<R: Real>(x: R) -> R {
    if size_of::<R>() > 4 {
        return ln_1p(x);
    }
    let two = R::ONE + R::ONE;
    let s = x.quickly_over(two + x);
    let z = s * s;
    let tail = z.fma(R::from_f64(0.280_119_866), R::from_f64(0.280_018_061));
    let tail = z.fma(z.fma(tail, R::from_f64(0.400_215_268)), R::from_f64(0.666_664_184));
    s.fma(two, s * z * tail)
}

/// eˣ − 1 for x ≤ 0, to a few units in the last place, for small |x| too.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exp_m1_below<R: Real>(x: R) -> R {
    let near = x + x * x * R::exp_tail(x);
    if x > R::from_f64(-0.34) { near } else { exp(x) - R::ONE }
}

/// eˣ.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exp<R: Real>(x: R) -> R {
    x.exp()
}

/// `a / b`, precise enough to be rounded to R. b and 1/b are normal numbers.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn quotient<R: Real>(a: f64, b: f64) -> f64 {
    if size_of::<R>() < 8 { divide_plain_f64(a, b) } else { a / b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Base, Element, MAX_LANES};

    /// Numbers between 2⁻ˢᵖᵃⁿ and 2ˢᵖᵃⁿ, with random exponents and significands.
    fn numbers(seed: u64, span: f64) -> impl Iterator<Item = f64> {
        (0..100_000_u64).map(move |index| {
            let mut bits = (seed + index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (((bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) * span).exp2()
        })
    }

    #[track_caller]
    fn assert_near(got: f64, expected: f64, relative: f64, what: &str) {
        assert!(
            (got - expected).abs() <= relative * expected.abs(),
            "{what}: {got}, not {expected}"
        );
    }

    #[test]
    fn logarithms_of_ratios_in_f32() {
        for (t, p) in numbers(1, 20.0).zip(numbers(2, 20.0)) {
            let (t, p) = (t as f32, p as f32);
            let expected = (f64::from(t) / f64::from(p)).ln();
            let quick = |t: f32, p: f32| f64::from(quick_ln_ratio(t, p)) * f64::from(f32::LN_UNIT);
            assert_near(quick(t, p), expected, 8e-7, &format!("ln({t}/{p})"));
            assert_near(ln_ratio(t, p).into(), expected, 3e-7, &format!("ln({t}/{p})"));
            let expected = f64::from(t).ln();
            assert_near((-less_ln_of_plain(0.0, t)).into(), expected, 4e-7, &format!("ln {t}"));
            // Nearly equal numbers: the error is relative to their small logarithm, not to those of
            // t and p.
            let near = f32::from_bits(p.to_bits() + (t.to_bits() & 0xff));
            let (apart, p) = (f64::from(near) - f64::from(p), f64::from(p));
            let expected = (apart / p).ln_1p();
            assert_near(
                ln_ratio(near, p as f32).into(),
                expected,
                3e-7,
                &format!("ln({near}/{p})"),
            );
            assert_near(quick(near, p as f32), expected, 4e-7, &format!("ln({near}/{p})"));
        }
    }

    #[test]
    fn logarithms_of_ratios_in_f64() {
        for (t, p) in numbers(3, 200.0).zip(numbers(4, 200.0)) {
            let near = f64::from_bits(p.to_bits() + (t.to_bits() & 0xfffff));
            assert_near(quick_ln_ratio(near, p), ((near - p) / p).ln_1p(), 1e-15, "near");
            // The expected value is a difference of two logarithms, so its own error is relative to
            // these.
            let (got, expected) = (quick_ln_ratio(t, p), t.ln() - p.ln());
            assert!((got - expected).abs() <= 1e-15 * (t.ln().abs() + p.ln().abs()), "ln({t}/{p})");
            assert_near(ln(t), t.ln(), 1e-15, &format!("ln({t})"));
            assert_near(-less_ln_of_plain(0.0, t), t.ln(), 1e-15, &format!("ln {t}"));
        }
    }

    /// A number of some 100 bits, as the sum of two f64.
    #[derive(Clone, Copy)]
    struct DoubleDouble {
        high: f64,
        low: f64,
    }

    impl DoubleDouble {
        fn sum(a: f64, b: f64) -> Self {
            let high = a + b;
            let of_b = high - a;
            DoubleDouble { high, low: (a - (high - of_b)) + (b - of_b) }
        }

        fn plus(self, other: Self) -> Self {
            let sum = Self::sum(self.high, other.high);
            Self::sum(sum.high, sum.low + (self.low + other.low))
        }

        fn times(self, other: Self) -> Self {
            let high = self.high * other.high;
            let low = self.high.mul_add(other.high, -high);
            Self::sum(high, low + (self.high * other.low + self.low * other.high))
        }

        fn over(self, divisor: f64) -> Self {
            let high = self.high / divisor;
            Self::sum(high, ((-high).mul_add(divisor, self.high) + self.low) / divisor)
        }
    }

    /// eˣ − 1 for x from 0 to 709: the series at x/1024, doubled ten times.
    fn long_exp_m1(x: f64) -> DoubleDouble {
        let [one, x] = [1.0, x / 1024.0].map(|high| DoubleDouble { high, low: 0.0 });
        let series = |sum: DoubleDouble, k: u32| one.plus(x.times(sum).over(k.into()));
        let small = x.times((2..=26).rev().fold(one, series));
        (0..10).fold(small, |m, _| m.plus(m).plus(m.times(m)))
    }

    /// The unit in the last place of x.
    fn unit(x: f64) -> f64 {
        x.abs().next_up() - x.abs()
    }

    /// The error of `got` as eˣ, in units in its last place.
    fn units_off_exp(got: f64, x: f64) -> f64 {
        let [one, got_alone] = [1.0, got].map(|high| DoubleDouble { high, low: 0.0 });
        let exp = one.plus(long_exp_m1(x.abs()));
        let relative = if x < 0.0 {
            got_alone.times(exp).plus(DoubleDouble { high: -1.0, low: 0.0 }).high
        } else {
            (DoubleDouble { high: -got, low: 0.0 }).plus(exp).high / exp.high
        };
        (relative * (got / unit(got))).abs()
    }

    /// The error of `got` as ln(t/p), in units in its last place. For small errors,
    /// ln(t/p) − y = (t − p eʸ)/(p eʸ).
    fn units_off_ln(got: f64, t: f64, p: f64) -> f64 {
        let [one, t, p] = [1.0, t, p].map(|high| DoubleDouble { high, low: 0.0 });
        let negative = |x: DoubleDouble| DoubleDouble { high: -x.high, low: -x.low };
        let more = long_exp_m1(got.abs());
        let apart = t.plus(negative(p));
        let off = if got < 0.0 {
            apart.plus(t.times(more)).high / p.high
        } else {
            apart.plus(negative(p.times(more))).high / p.times(one.plus(more)).high
        };
        (off / unit(got)).abs()
    }

    /// No exponential is off by more than 1 unit in the last place.
    #[test]
    fn exponentials_in_f64_to_the_last_digit() {
        let even = (0..100_000).map(|index| f64::from(index) * 0.007_079);
        for x in numbers(9, 9.4).chain(even) {
            for (got, x) in [(exp(x), x), (exp(-x), -x), ((-x).exp_below(), -x)] {
                assert!(units_off_exp(got, x) <= 1.0, "exp({x}): {got}");
            }
        }
        let last = (-708.0_f64).next_up();
        assert!(units_off_exp(last.exp_below(), last) <= 1.0);
        for x in [0.0_f64, -0.0, -1e-320, -1e-17] {
            assert_eq!(x.exp_below(), 1.0);
        }
        for x in [-708.0, -745.0, -1e4, -1e18, -1e300, f64::MIN, f64::NEG_INFINITY] {
            assert_eq!(x.exp_below(), 0.0);
        }
        for bits in [f64::NAN.to_bits(), u64::MAX, u64::MAX >> 1, f64::NAN.to_bits() | 1] {
            assert!(f64::from_bits(bits).exp_below().is_nan());
            assert!((-f64::from_bits(bits)).exp_below().is_nan());
        }
        for x in [709.78_f64, -708.39, -708.4, -720.5, -745.13] {
            assert!((exp(x) - x.exp()).abs() <= unit(x.exp()), "exp({x})");
        }
        for x in [709.79, 1000.0, 1e10, 1e300, f64::MAX] {
            assert_eq!(exp(x), f64::INFINITY);
            assert_eq!(exp(-x - 40.0), 0.0);
        }
    }

    /// The expected value is eˣ divided by a power of two, which is exact.
    #[test]
    fn exponentials_near_a_center_in_f64_to_the_last_digit() {
        for octaves in [0, 1, -3, 100, -1000] {
            let center = f64::from(octaves) * core::f64::consts::LN_2;
            let near = f64::near(center);
            for apart in numbers(14, 9.3).take(20_000).flat_map(|apart| [-apart, apart]) {
                let x = center + apart;
                if !(-707.0..=699.0).contains(&apart) || x.abs() > 700.0 {
                    continue;
                }
                // Both factors are normal numbers, so scaling is exact.
                let half = f64::power_of_two(octaves / 2);
                let got = x.exp_near(near) * half * f64::power_of_two(octaves - octaves / 2);
                if !got.is_normal() {
                    continue;
                }
                let most = 1.1 + x.abs() / 7.8;
                assert!(units_off_exp(got, x) <= most, "exp({x}) near {center}: {got}");
            }
        }
    }

    #[test]
    fn exponentials_near_a_center_vanish() {
        for center in [0.0, 1.0, -300.5, 709.0, 709.2, 16_383.9, -16_383.9, 12_345.678] {
            let near = f64::near(center);
            let below = numbers(17, 12.0).take(1000).map(|apart| center - 709.5 - apart);
            for x in below.chain([center - 709.5, -1e5, -1e300]) {
                assert_eq!(x.exp_near(near), 0.0, "exp({x}) near {center}");
            }
            for apart in [-708.5, -708.0] {
                let exp = (center + apart).exp_near(near);
                assert!((0.0..6e-308).contains(&exp), "exp({apart}) near {center}: {exp}");
            }
        }
    }

    /// From one center to another, not a digit changes.
    #[test]
    fn factors_between_centers_in_f64() {
        let of = |center: f64, other: f64| f64::near_over(f64::near(center), f64::near(other));
        assert_eq!((of(-2000.0, 0.0), of(2000.0, 0.0)), (0.0, 1023.0_f64.exp2()));
        for (center, x) in numbers(15, 13.9).zip(numbers(16, 9.0)).take(20_000) {
            let near = f64::near(center);
            for x in [center - x, center + x] {
                // Exponentials relative to the center and then to x are those relative to x.
                let of_x = x.exp_near(near) * f64::near_over_exp(near, x);
                assert_near(of_x, 1.0, 4e-16, &format!("{x} near {center}"));
                let other = f64::near(x);
                let of_other = x.exp_near(near) * f64::near_over(near, other);
                assert_eq!(of_other, x.exp_near(other), "{x} near {center} and near itself");
            }
        }
    }

    /// Bit for bit, also where exponentials vanish and for NaNs.
    #[test]
    fn masked_exponentials_are_those_that_are_selected() {
        let special =
            [f64::NEG_INFINITY, f64::MIN, -708.1, -708.0, -707.9, -0.0, 5.0, f64::INFINITY];
        let nans = [f64::NAN.to_bits(), u64::MAX, u64::MAX >> 1].map(f64::from_bits);
        let all = special.into_iter().chain(nans).chain(nans.map(|nan| -nan));
        for x in all.chain(numbers(12, 12.0).take(1000).flat_map(|x| [x, -x])) {
            let vectors = [[x, -1.0], [-2.0, x]]
                .map(|[a, b]| f64::pack([a, b, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
            let base = Base::Center(0.0, 1.0);
            let [mut selected, mut masked] = [[[0.0; MAX_LANES]; 2]; 2];
            f64::exps(vectors, base, |k, exps| selected[k] = exps);
            f64::masked_exps(vectors, base, |k, exps| masked[k] = exps);
            let bits = |exps: [[f64; MAX_LANES]; 2]| exps.map(|exps| exps.map(f64::to_bits));
            assert_eq!(bits(masked), bits(selected), "exp({x})");
        }
    }

    /// The worst of 2 million was off by 2.05 units.
    #[test]
    fn logarithms_in_f64_to_the_last_digits() {
        for (t, p) in numbers(10, 200.0).zip(numbers(11, 200.0)) {
            let t = t.min(3.9);
            let p = p.min(3.9);
            let near = f64::from_bits(p.to_bits() + (t.to_bits() >> (t.to_bits() % 40 + 12)));
            for (t, p) in [(t, p), (near.min(3.95), p), (t, 1.0), (t.mantissa(), p.mantissa())] {
                if t == p {
                    assert_eq!(quick_ln_ratio(t, p), 0.0);
                    continue;
                }
                for got in [quick_ln_ratio(t, p), ln_ratio(t, p)] {
                    assert!(units_off_ln(got, t, p) <= 2.2, "ln({t}/{p}): {got}");
                }
                let got = -less_ln_of_plain(0.0, t);
                assert!(units_off_ln(got, t, 1.0) <= 2.2, "ln({t}): {got}");
            }
        }
    }

    #[test]
    fn quotients_and_integers_in_f64() {
        for (t, p) in numbers(12, 500.0).zip(numbers(13, 500.0)) {
            let (t, p) = (t.min(3.9), p.min(3.9));
            let off = (t.quickly_over(p) - t / p).abs();
            assert!(off <= unit(t / p), "{t}/{p}");
        }
        for integer in [0, 1, -1, 1023, -1074, i32::MAX, i32::MIN] {
            assert_eq!(f64::from_i32(integer), f64::from(integer));
        }
    }

    /// The functions for plain numbers are accurate for all pairs of plain numbers, and no special
    /// number is plain.
    #[test]
    fn limits_of_plain_numbers() {
        macro_rules! limits {
            ($($real:ident: $error:literal;)+) => {$(
                let plain = |x: $real| x.rank() < $real::PLAIN_RANKS;
                let least = 4.0 * $real::MIN_POSITIVE;
                let most = (4.0 as $real).next_down();
                let ends = [least, least.next_up(), 1.5 * least, 1.0, 2.0, most.next_down(), most];
                for (t, p) in ends.iter().flat_map(|&t| ends.map(|p| (t, p))) {
                    assert!(plain(t) && plain(p));
                    let got = f64::from(quick_ln_ratio(t, p)) * f64::from($real::LN_UNIT);
                    let expected = if t == p { 0.0 } else { f64::from(ln_ratio(t, p)) };
                    assert_near(got, expected, $error, &format!("ln({t}/{p})"));
                    assert!(t.quickly_over(p) >= $real::MIN_POSITIVE);
                    assert!((t.quickly_over(p) / (t / p) - 1.0).abs() < $error);
                }
                let special = [0.0, -0.0, $real::MIN_POSITIVE, -1.0, $real::INFINITY, $real::NAN, -$real::NAN];
                assert!(!special.iter().any(|&x| plain(x)) && !plain(least.next_down()) && !plain(4.0));
            )+};
        }
        limits! {
            f32: 8e-7;
            f64: 1e-15;
        }
    }

    #[test]
    fn exponentials() {
        for x in numbers(5, 6.0).chain(numbers(6, 6.0).map(|x| -x)) {
            let single = x as f32;
            let expected = f64::from(single).exp();
            if expected > f64::from(f32::MIN_POSITIVE) && expected < f64::from(f32::MAX) {
                assert_near(exp(single).into(), expected, 2e-7, &format!("exp({single})"));
            }
            assert_near(exp(x), x.exp(), 5e-16, &format!("exp({x})"));
        }
    }

    /// The largest and the smallest exponentials in f32, up to the first that are ∞ and 0. The
    /// smallest are subnormal, and are rounded to a multiple of 2⁻¹⁴⁹.
    #[test]
    fn exponentials_in_f32_near_the_limits() {
        let last = 88.722_83_f32;
        for step in 0..1000 {
            let x = last - step as f32 * 1e-5;
            assert_near(exp(x).into(), f64::from(x).exp(), 2e-7, &format!("exp({x})"));
            let x = -87.0 - step as f32 * 0.0175;
            let unit = f64::from(f32::from_bits(1));
            let off = (f64::from(exp(x)) - f64::from(x).exp()).abs();
            assert!(off <= 0.51 * unit + 2e-7 * f64::from(x).exp(), "exp({x}): {off} off");
        }
        assert!(exp(last) < f32::INFINITY && exp(88.722_85_f32) == f32::INFINITY);
        assert!(exp(-103.97_f32) > 0.0 && exp(-103.98_f32) == 0.0);
        assert_eq!((exp(f32::MAX), exp(f32::MIN)), (f32::INFINITY, 0.0));
    }

    #[test]
    fn logarithms_and_exponentials_near_one() {
        for x in numbers(7, 20.0).chain(numbers(8, 100.0).filter(|&x| x < 1.0)) {
            let single = x as f32;
            let expected = f64::from(single).ln_1p();
            assert_near(ln_1p(single).into(), expected, 3e-7, &format!("ln(1 + {single})"));
            assert_near(ln_1p(x), x.ln_1p(), 1e-15, &format!("ln(1 + {x})"));
            if x < 80.0 && single > f32::MIN_POSITIVE {
                let expected = f64::from(-single).exp_m1();
                assert_near(exp_m1_below(-single).into(), expected, 3e-7, &format!("-{single}"));
                assert_near(exp_m1_below(-x), (-x).exp_m1(), 1e-15, &format!("-{x}"));
            }
        }
    }

    #[test]
    fn quick_exponentials_and_logarithms_of_what_they_are_for() {
        for x in numbers(12, 20.0).chain((0..=80_000).map(|index| f64::from(index) / 1000.0)) {
            let single = (x as f32).min(80.0);
            let exp = f64::from(-single).exp();
            assert_near(quick_exp_below(-single).into(), exp, 4e-7, &format!("exp(-{single})"));
            let e = (x as f32).min(1.0);
            let ln = f64::from(e).ln_1p();
            assert_near(quick_ln_1p(e).into(), ln, 4e-7, &format!("ln(1 + {e})"));
            let x = x.min(80.0);
            assert_near(quick_exp_below(-x), (-x).exp(), 5e-16, &format!("exp(-{x})"));
        }
        assert_eq!((quick_exp_below(-0.0_f32), quick_ln_1p(0.0_f32)), (1.0, 0.0));
    }

    #[test]
    fn special_numbers() {
        macro_rules! special {
            ($($real:ident)+) => {$(
                let (infinity, nan) = ($real::INFINITY, $real::NAN);
                assert_eq!(ln::<$real>(0.0), -infinity);
                assert_eq!(ln::<$real>(-0.0), -infinity);
                assert_eq!(ln(infinity), infinity);
                assert!(ln::<$real>(-1.0).is_nan() && ln(nan).is_nan() && ln(-infinity).is_nan());
                assert_eq!(ln::<$real>(1.0), 0.0);
                let tiny = $real::MIN_POSITIVE / 8.0;
                assert!((ln(tiny) / tiny.ln() - 1.0).abs() < 1e-6);
                assert_eq!(ln_ratio(tiny, tiny), 0.0);
                assert_eq!(ln_ratio::<$real>(3.0, 3.0), 0.0);
                assert_eq!(ln_ratio(infinity, 1.0), infinity);
                assert!(ln_ratio(infinity, infinity).is_nan());
                assert!(ln_1p(nan).is_nan());
                assert_eq!(ln_1p::<$real>(0.0), 0.0);
                assert!(exp_m1_below(nan).is_nan());
                assert_eq!(exp_m1_below(-infinity), -1.0);
                assert_eq!(exp(infinity), infinity);
                assert_eq!(exp(-infinity), 0.0);
                assert_eq!(exp::<$real>(0.0), 1.0);
                assert!(exp(nan).is_nan());
                assert_eq!(exp::<$real>(1000.0), infinity);
                assert_eq!(exp::<$real>(-1000.0), 0.0);
                let below = $real::MIN_POSITIVE.ln() - 3.0;
                assert!((exp(below) / below.exp() - 1.0).abs() < 1e-5, "subnormal");
            )+};
        }
        special!(f32 f64);
    }
}
