//! Arithmetic in f64, with few f64 operations: a multiprocessor of an H100 executes 25 of them in
//! the time in which memory delivers an element, and a loss needs two or three besides the
//! exponential.

use super::real::{Real, horner, ln_of_parts, upper};
use super::{Base, Element, MAX_LANES, unrolled};
use core::f64::consts::{LN_2, LOG2_E};
use cuda_std::math;
use cuda_std::memory::Vec16;
use cuda_std::table::address;

/// The sign bit in the upper 32 bits of an f64.
const SIGN: u32 = 1 << 31;

#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn from_halves(upper: u32, lower: u32) -> f64 {
    math::f64_from_halves(upper, lower)
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn from_upper(upper: u32) -> f64 {
    from_halves(upper, 0)
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn lower(x: f64) -> u32 {
    x.to_bits() as u32
}

/// Avoids the conversion instruction, which takes as long as four additions or more: the
/// significand bits of a number from 2⁵² to 2⁵³ are an integer.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn from_i32(value: i32) -> f64 {
    const DIGITS: u64 = 4_503_599_627_370_496.0_f64.to_bits();
    const BIAS: f64 = 4_503_599_627_370_496.0 + 2_147_483_648.0;
    let biased = value.cast_unsigned() ^ SIGN;
    f64::from_bits(DIGITS | u64::from(biased)) - BIAS
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn min_max(a: f64, b: f64) -> [f64; 2] {
    if b > a { [a, b] } else { [b, a] }
}

/// The approximate reciprocal r of b has the relative error e = 1 − br, at most 2⁻¹⁹, so a/b =
/// ar/(1 − e) ≈ ar (1 + e + e²); e³ is negligible. The rounding error of the product ar is part of
/// the correction.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn quickly_divide(a: f64, b: f64) -> f64 {
    let reciprocal = math::reciprocal_approx_f64(b);
    let off = (-b).fma(reciprocal, 1.0);
    let quotient = a * reciprocal;
    let rounded_by = a.fma(reciprocal, -quotient);
    quotient + quotient.fma(off.fma(off, off), rounded_by)
}

/// Coefficients by Remez' exchange in 50 digits, then rounded. They give the logarithm a relative
/// error of 1.5e-17.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn artanh_tail(z: f64) -> f64 {
    z * horner!(z;
        0.666_666_666_666_726_8, 0.399_999_999_961_763_55, 0.285_714_293_929_298_26,
        0.222_221_386_761_166_48, 0.181_863_495_402_880_22, 0.152_503_087_327_220_7,
        0.153_673_261_999_609_12
    )
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn quick_ln(scale: f64, d: f64, a: f64) -> f64 {
    ln_of_parts(f64::from_i32(scale.exponent()), d, a)
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn less_ln(x: f64, scale: f64, d: f64, a: f64) -> f64 {
    x - quick_ln(scale, d, a)
}

/// Coefficients by Remez' exchange in 50 digits, then rounded. They give eʳ − 1 a relative error of
/// 2.3e-17, and eʳ one of 9e-18.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exp_tail(r: f64) -> f64 {
    horner!(r;
        0.500_000_000_000_000_6, 0.166_666_666_666_666_85, 0.041_666_666_666_573_7,
        0.008_333_333_333_314_567, 0.001_388_888_893_235_446_8, 1.984_126_990_305_328_4e-4,
        2.480_150_447_676_909_3e-5, 2.755_722_795_398_833_4e-6, 2.762_631_366_684_111e-7,
        2.511_446_831_191_571_7e-8
    )
}

cuda_std::lookup_table! {
    /// Entry j has the bits of (1 + δ) 2^(j/16), with 2¹⁶ j subtracted from the upper half. Adding
    /// 2¹⁶ n to the upper half, for n = 16 k + j, gives the bits of (1 + δ) 2^(n/16). δ is the
    /// multiple of 2⁻⁵² with the smallest rounding errors: no entry is off by more than 0.18 units
    /// in the last place.
    fn power_of_root() -> [u64; 16] = [
        0x3ff0_0000_00a4_5e3f, 0x3fef_b558_6da5_2e45, 0x3fef_72b8_3d30_9022, 0x3fef_387a_6f30_9073,
        0x3fef_06fe_0af5_2ed5, 0x3fee_dea6_4cde_5355, 0x3fee_bfda_d60b_52e3, 0x3fee_ab07_de26_ecdc,
        0x3fee_a09e_6767_af6d, 0x3fee_a114_74dd_bfc8, 0x3fee_ace5_4328_1e62, 0x3fee_c491_83ac_a72c,
        0x3fee_e89f_9a6f_4292, 0x3fef_199b_dea5_fe9f, 0x3fef_5818_de29_185f, 0x3fef_a4af_a3df_5d62,
    ];
}

cuda_std::constant_numbers! {
    /// What [`exp_parts`] multiplies by: 16 log₂ e, ln 2/16 in two parts, and the coefficients of
    /// the polynomial, highest first.
    fn exp_number() -> [f64; 10] = [
        16.0 * LOG2_E,
        0.043_321_698_773_070_24, 1.192_634_330_794_117_1e-11,
        0.001_388_950_320_205_260_9, 0.008_333_497_147_443_041, 0.041_666_666_542_850_53,
        0.166_666_666_229_369_2, 0.499_999_998_804_066_3, 0.999_999_997_608_131,
        -2.391_871_361_914_141_2e-9,
    ];
}

/// n and eʳ/(1 + δ) − 1 for each x, such that eˣ = 2^(n/16) eʳ with |r| at most ln 2/32, as in
/// "Table-driven implementation of the exponential function in IEEE floating-point arithmetic"
/// (Tang, 1989). The polynomial is a Remez fit with an error of 1.4e-17.
///
/// Each step is done for all x before the next step. The steps of one x depend on each other, so
/// those of the others hide their latency, and all x share the registers of a coefficient.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn exp_parts<const N: usize>(x: [f64; N]) -> ([u32; N], [f64; N]) {
    let (mut n, mut r, mut part) = ([0; N], [0.0; N], [0.0; N]);
    // Adding a number whose unit in the last place is 1 leaves n in the lowest bits, which saves a
    // conversion.
    let (factor, whole) = (exp_number::<0>(), f64::WHOLE);
    unrolled!(for i in 0..N; { r[i] = x[i].fma(factor, whole); });
    unrolled!(for i in 0..N; { n[i] = lower(r[i]); });
    unrolled!(for i in 0..N; { r[i] = whole - r[i]; });
    let minus_n = r;
    unrolled!(for i in 0..N; { r[i] = minus_n[i].fma(exp_number::<1>(), x[i]); });
    unrolled!(for i in 0..N; { r[i] = minus_n[i].fma(exp_number::<2>(), r[i]); });
    unrolled!(for i in 0..N; { part[i] = exp_number::<3>().fma(r[i], exp_number::<4>()); });
    unrolled!(for i in 0..N; { part[i] = part[i].fma(r[i], exp_number::<5>()); });
    unrolled!(for i in 0..N; { part[i] = part[i].fma(r[i], exp_number::<6>()); });
    unrolled!(for i in 0..N; { part[i] = part[i].fma(r[i], exp_number::<7>()); });
    unrolled!(for i in 0..N; { part[i] = part[i].fma(r[i], exp_number::<8>()); });
    unrolled!(for i in 0..N; { part[i] = part[i].fma(r[i], exp_number::<9>()); });
    (n, part)
}

/// (1 + δ) 2^(n/16), if that is a normal number.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn power<const ADDRESS: u32>(n: u32) -> f64 {
    let bits = power_of_root::<ADDRESS>(n);
    from_halves(((bits >> 32) as u32).wrapping_add(n << 16), bits as u32)
}

/// eˣ, without branches: callers use an exponential in more than one place, and LLVM would
/// duplicate the code that follows a branch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exp(x: f64) -> f64 {
    // Beyond 1000 all exponentials are infinite or 0.
    let near = (upper!(f64, x) & !SIGN).min(upper!(f64, 1000.0)) | upper!(f64, x) & SIGN;
    let ([n], [part]) = exp_parts([from_halves(near, lower(x))]);
    let root = power::<{ address::UNIFORM }>(n % 16);
    let value = root.fma(part, root);
    // Scale in two steps, because 2ᵏ alone may overflow. Only the second step rounds, if the result
    // is subnormal.
    let k = n.cast_signed() >> 4;
    let value = value * f64::power_of_two(k >> 1) * f64::power_of_two(k - (k >> 1));
    if x.is_nan() { x } else { value }
}

/// The upper half of −708: from there down, exponentials count as 0.
const VANISHING: u32 = upper!(f64, -708.0);

/// [`Real::exp_below`] of each x.
///
/// An integer comparison finds the x whose exponential is 0, because the f64 units are the
/// bottleneck. It selects the result instead of branching, because rows are padded with −∞. The
/// upper halves of NaNs that operations make are not in the compared range.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exps_below<const N: usize>(x: [f64; N]) -> [f64; N] {
    const LAST: u32 = upper!(f64, f64::NEG_INFINITY);
    let mut exps = exps_of_normal::<N, { address::UNIFORM }>(x);
    unrolled!(for i in 0..N; {
        let vanishes = upper!(f64, x[i]).wrapping_sub(VANISHING) <= LAST - VANISHING;
        let [upper, lower] =
            [upper!(f64, exps[i]), lower(exps[i])].map(|half| if vanishes { 0 } else { half });
        exps[i] = from_halves(upper, lower);
    });
    exps
}

/// [`exps_below`] without predicate registers, with two more instructions for each x.
///
/// The result is masked instead of selected. A select needs a predicate register while the
/// exponential is computed, and a thread has seven: if the code around it takes most of them, the
/// assembler computes the exponentials one after the other instead of in parallel. H200,
/// 2026-11-27, f64, ceiling ÷ ours with selects and with masks: packed rows, backward, 440 columns
/// 0.83 and 0.87, forward-backward, 64 columns 0.83 and 0.85; split rows of 131071 columns 0.61 and
/// 0.66. But rows in registers, backward, 3336 columns 0.83 and 0.82.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn masked_exps_below<const N: usize>(x: [f64; N]) -> [f64; N] {
    // The exponential of x is 0 if the upper half of x is one of the `RANGE` numbers from that of
    // −708 on. After the shift, numbers beyond the range come first, and those in the range are the
    // largest.
    const RANGE: u32 = upper!(f64, f64::NEG_INFINITY) - VANISHING + 1;
    let mut mask = [0; N];
    unrolled!(for i in 0..N; {
        let shifted = upper!(f64, x[i]).wrapping_sub(VANISHING).wrapping_sub(RANGE);
        mask[i] = math::mask_below(shifted, RANGE.wrapping_neg());
    });
    let mut exps = exps_of_normal::<N, { address::BITS }>(x);
    unrolled!(for i in 0..N; {
        exps[i] = from_halves(upper!(f64, exps[i]) & mask[i], lower(exps[i]) & mask[i]);
    });
    exps
}

/// eˣ of each x that is above −708 and whose eˣ does not overflow; for other x, an arbitrary
/// number.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn exps_of_normal<const N: usize, const ADDRESS: u32>(x: [f64; N]) -> [f64; N] {
    let (n, part) = exp_parts(x);
    let mut exps = [0.0; N];
    unrolled!(for i in 0..N; {
        let power = power::<ADDRESS>(n[i]);
        exps[i] = power.fma(part[i], power);
    });
    exps
}

cuda_std::lookup_table! {
    /// [`power_of_root`] with δ = 0: each entry is the nearest number to its power, and entry 0 is
    /// 1, so that 2⁻¹⁰²³, which is not a normal number, comes out as 0.
    fn rounded_power_of_root() -> [u64; 16] = [
        0x3ff0_0000_0000_0000, 0x3fef_b558_6cf9_890f, 0x3fef_72b8_3c7d_517b, 0x3fef_387a_6e75_6238,
        0x3fef_06fe_0a31_b715, 0x3fee_dea6_4c12_3422, 0x3fee_bfda_d536_2a27, 0x3fee_ab07_dd48_5429,
        0x3fee_a09e_667f_3bcd, 0x3fee_a114_73eb_0187, 0x3fee_ace5_422a_a0db, 0x3fee_c491_82a3_f090,
        0x3fee_e89f_995a_d3ad, 0x3fef_199b_dd85_529c, 0x3fef_5818_dcfb_a487, 0x3fef_a4af_a2a4_90da,
    ];
}

cuda_std::constant_numbers! {
    /// 16 log₂ e, and the coefficients of 2^(f/16) − 1 from that of f⁶ to that of f. The polynomial
    /// is a Remez fit for |f| up to 1/2, with an error of 1.4e-17.
    fn near_number() -> [f64; 7] = [
        16.0 * LOG2_E,
        9.181_373_485_033_566e-12, 1.271_615_617_112_314_9e-9, 1.467_610_032_063_389e-7,
        1.355_080_777_527_685_8e-5, 9.383_847_928_089_881e-4, 0.043_321_698_784_996_75,
    ];
}

/// 2ᵏ, a power of two near the exponential of a center. Other exponentials take two operations less
/// relative to it than relative to that of the center itself: the center need not be subtracted,
/// and one product leads from a logit to its distance from the nearest multiple of (ln 2)/16.
/// Relative to another power of two, they have the same digits, so results do not depend on the
/// center.
///
/// That product has the rounding error of 16 log₂ e: exponentials are those of logits that are all
/// multiplied by 1 − 1.4e-17, which is an eighth of a unit in their last place at most.
#[derive(Clone, Copy)]
pub struct Near {
    /// [`Real::WHOLE`] − 16 k.
    shift: f64,
    /// The upper half of (k − 1023) ln 2, whose exponential comes out as 0.
    least: u32,
}

impl Near {
    /// The power nearest to the exponential of `center`, which is below 2¹⁴ in magnitude; for other
    /// centers, an arbitrary power.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn to(center: f64) -> Self {
        // Numbers near this one have a unit in the last place of 16.
        const WHOLE_16: f64 = 16.0 * f64::WHOLE;
        let k_16 = center.fma(near_number::<0>(), WHOLE_16) - WHOLE_16;
        Self::from_exponent(k_16)
    }

    /// The power with an exponent of k, of which 16 times is given.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn from_exponent(k_16: f64) -> Self {
        let least = k_16.fma(LN_2 / 16.0, -1023.0 * LN_2);
        Near { shift: f64::WHOLE - k_16, least: upper!(f64, least) }
    }

    /// k ln 2.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn center(self) -> f64 {
        (f64::WHOLE - self.shift) * (LN_2 / 16.0)
    }

    /// eˣ/2ᵏ of each x, where x is off by up to 1.4e-17 of itself. The error is 1.1 units in the
    /// last place. The result is 0 for an x that is 709.5 or more below the center, and less than
    /// 6e-308 from 708 below on. It is NaN for an x that is not finite, or 2¹⁰¹⁷ or more in
    /// magnitude; for any other x that is 700 or more above the center, it is an arbitrary number.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn exps<const N: usize>(self, mut x: [f64; N]) -> [f64; N] {
        unrolled!(for i in 0..N; {
            // As f32s, the upper halves have the order of the numbers.
            let top = math::max_or_nan_f32_bits(upper!(f64, x[i]), self.least);
            x[i] = from_halves(top, lower(x[i]));
        });
        let (mut n, mut f, mut part) = ([0; N], [0.0; N], [0.0; N]);
        let factor = near_number::<0>();
        unrolled!(for i in 0..N; { f[i] = x[i].fma(factor, self.shift); });
        unrolled!(for i in 0..N; { n[i] = lower(f[i]); });
        unrolled!(for i in 0..N; { f[i] = self.shift - f[i]; });
        unrolled!(for i in 0..N; { f[i] = x[i].fma(factor, f[i]); });
        unrolled!(for i in 0..N; { part[i] = near_number::<1>().fma(f[i], near_number::<2>()); });
        unrolled!(for i in 0..N; { part[i] = part[i].fma(f[i], near_number::<3>()); });
        unrolled!(for i in 0..N; { part[i] = part[i].fma(f[i], near_number::<4>()); });
        unrolled!(for i in 0..N; { part[i] = part[i].fma(f[i], near_number::<5>()); });
        unrolled!(for i in 0..N; { part[i] = part[i].fma(f[i], near_number::<6>()); });
        unrolled!(for i in 0..N; { part[i] *= f[i]; });
        unrolled!(for i in 0..N; {
            let power = rounded_power(n[i]);
            part[i] = power.fma(part[i], power);
        });
        part
    }

    /// 2ᵏ/eˣ, for an x that is less than 700 below the center and not NaN. The result is 0 for an x
    /// that is 709.5 or more above the center.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn over_exp(self, x: f64) -> f64 {
        let [exp] = Self::from_exponent(self.shift - f64::WHOLE).exps([-x]);
        exp
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn exp(self, x: f64) -> f64 {
        let [exp] = self.exps([x]);
        exp
    }

    /// This power divided by another: 0 from 2⁻¹⁰²³ down, and 2¹⁰²³ from there up.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn over(self, other: Self) -> f64 {
        const MOST: f64 = 16.0 * 1023.0;
        let apart_16 = (other.shift - self.shift).clamp(-MOST, MOST);
        from_upper(upper!(f64, 1.0).wrapping_add(lower(f64::WHOLE + apart_16) << 16))
    }
}

/// 2^(n/16), if that is a normal number; 0 for 2⁻¹⁰²³.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn rounded_power(n: u32) -> f64 {
    let bits = rounded_power_of_root::<{ address::THREAD }>(n);
    from_halves(((bits >> 32) as u32).wrapping_add(n << 16), bits as u32)
}

/// Calls `with` for each of N vectors, with its index and what `exps` returns for its elements.
///
/// Four exponentials (two vectors) at a time. A single one is a chain of dependent operations, so
/// several hide each other's latency; more than four need more registers than there are.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn for_pairs<const N: usize>(
    from: [Vec16; N],
    exps: impl Fn([f64; 4]) -> [f64; 4],
    mut with: impl FnMut(usize, [f64; MAX_LANES]),
) {
    let of_vector = |first, second| {
        let mut exps = [0.0; MAX_LANES];
        [exps[0], exps[1]] = [first, second];
        exps
    };
    unrolled!(for pair in 0..N.div_ceil(2); {
        let k = 2 * pair;
        let other = if k + 1 < N { k + 1 } else { k };
        let lane = |k: usize, lane| f64::extract(from[k], lane);
        // If N is odd, the compiler removes the last pair's second vector.
        let [a, b, c, d] = exps([lane(k, 0), lane(k, 1), lane(other, 0), lane(other, 1)]);
        with(k, of_vector(a, b));
        if other > k {
            with(other, of_vector(c, d));
        }
    });
}

/// The arguments of the exponentials of `x` relative to a base.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn from_base<const N: usize>(mut x: [f64; N], base: Base<f64>) -> [f64; N] {
    unrolled!(for i in 0..N; {
        x[i] = match base {
            Base::Center(center, scale) => (x[i] - center) * scale,
            Base::Shift(shift, factor) => (x[i] + shift) * factor,
        };
    });
    x
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exp_below(x: f64) -> f64 {
    let [exp] = exps_below([x]);
    exp
}

/// The scale itself: it multiplies the difference.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn factor_of(scale: f64) -> f64 {
    scale
}

/// In f64 the shift is the center itself, negated and not rounded.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn shift_from(center: f64, _: f64) -> f64 {
    -center
}

#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn exp_shifted(x: f64, factor: f64, shift: f64) -> f64 {
    exp_below((x + shift) * factor)
}

/// 1, because the shift is not rounded.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn unshift(_: f64, _: f64, _: f64) -> f64 {
    1.0
}

/// The larger of the two; `b` if `a` is NaN. `f64::max` would compile to the maximum and four more
/// instructions for NaNs.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
