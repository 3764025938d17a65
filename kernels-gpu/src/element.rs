//! Element types: how one is loaded 16 bytes at a time, widened for arithmetic, and narrowed.

mod float64;

use crate::abi::Dtype;
use core::ops::{Add, Div, Mul, Neg, Sub};
use cuda_std::math;
use cuda_std::memory::{Vec16, Word};
use cuda_std::warp::WarpShuffleValue;

/// The types that arithmetic is done in.
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
    /// 1.5 times the power of two whose unit in the last place is 1.
    const WHOLE: Self;
    /// ln 2 with enough zeros at its end that products with exponents are exact.
    const LN_2_HIGH: Self;
    /// ln 2 less [`Self::LN_2_HIGH`].
    const LN_2_LOW: Self;
    /// Rounds to this type.
    fn from_f64(value: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
    /// Its bits, in the lower ones.
    fn to_bits64(self) -> u64;
    /// The number of such bits.
    fn from_bits64(bits: u64) -> Self;
    /// Exact, for exponents.
    fn from_i32(value: i32) -> Self;
    /// `self * a + b`, rounded once.
    fn fma(self, a: Self, b: Self) -> Self;
    /// Logarithms may take the short way for plain numbers: those below 4 whose
    /// [`rank`](Self::rank) is below this.
    const PLAIN_RANKS: u32;
    /// How far a number lies above the least that is plain, 4 times the smallest normal one; of
    /// numbers that are not plain at least [`Self::PLAIN_RANKS`]. Ratios of plain numbers are
    /// normal numbers.
    fn rank(self) -> u32;
    /// `self / divisor`, but perhaps for the last bit, for a magnitude not above the divisor, which
    /// is a sum of plain numbers.
    fn over_plain(self, divisor: Self) -> Self;
    /// `self / divisor` to 3 units in the last place in f32, to 1 in f64; for plain numbers and
    /// what is between them.
    fn quickly_over(self, divisor: Self) -> Self;
    /// 2ᵏ so that `self` is between two thirds and one and a half of 2ᵏ `other`; for plain numbers.
    /// As integers, floating-point numbers are nearly their logarithms: the difference, rounded to
    /// exponents, is k.
    fn scale_from(self, other: Self) -> Self;
    /// What [`quick_ln`](Self::quick_ln) counts in.
    const LN_UNIT: Self;
    /// ln 2ᵏ + 2 artanh(d/a) in units of [`Self::LN_UNIT`], for |d/a| up to 0.2, where `scale` is
    /// 2ᵏ. Exactly 0 for k = 0 and d = 0; in f32 to 8e-7 of it, in f64 to 2.2 units in the last
    /// place.
    fn quick_ln(scale: Self, d: Self, a: Self) -> Self;
    /// `self` − ln 2ᵏ − 2 artanh(d/a), likewise; in f32 to 4 units in the last place of the
    /// logarithm.
    fn less_ln(self, scale: Self, d: Self, a: Self) -> Self;
    /// Whether it is not a number.
    fn is_nan(self) -> bool;
    /// The significand of a positive normal number, from 1 up to 2. Of any other, still such a
    /// number.
    fn mantissa(self) -> Self;
    /// The exponent of a positive normal number.
    fn exponent(self) -> i32;
    /// 2ⁿ, for n from the exponent of the smallest normal number to that of the largest.
    fn power_of_two(n: i32) -> Self;
    /// (2 artanh s)/s − 2 as a polynomial in z = s², for |s| up to 0.2: fdlibm's logf in f32, a fit
    /// of its own in f64.
    fn artanh_tail(z: Self) -> Self;
    /// (eʳ − 1 − r)/r², for |r| up to half of ln 2.
    fn exp_tail(r: Self) -> Self;

    /// The larger one; the other where one is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller and the larger one of `self`, a number, and `other`; where that is NaN, NaN and
    /// `self`.
    fn min_max(self, other: Self) -> [Self; 2];
    /// eˣ. In f32 to 2e-7 of it, in f64 to 1 unit in the last place.
    fn exp(self) -> Self;
    /// eˣ for x of at most 0. In f32 to 2 units in the last place of eˣ and of x, and 0 where it
    /// would be subnormal; in f64 to 1 unit in the last place, and 0 from −708 down. Of a NaN,
    /// which is one that an operation made, NaN.
    fn exp_below(self) -> Self;
    /// eˣ for many x, relative to one logit: [`exp_shifted`](Self::exp_shifted) by this times
    /// [`unshift`](Self::unshift) is e^(x − center), and costs a rounding and an instruction less.
    fn shift_from(center: Self) -> Self;
    /// Of numbers of at most the center.
    fn exp_shifted(self, shift: Self) -> Self;
    /// What the shift, rounded, lacks: a factor near 1.
    fn unshift(center: Self, shift: Self) -> Self;
    /// The magnitude of centers for which too much would be lacking.
    const FAR: Self;

    /// The magnitude.
    #[inline(always)]
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

macro_rules! reals {
    ($(
        $name:ident: $bits:ty, $from_i32:path, $fma:path, $divide:path, $quickly_divide:path,
        $min_max:path, $exp_of:path, $exp_below:path,
        shift $shift_from:path, $exp_shifted:path, $unshift:path, $far:expr,
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

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $name
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn to_bits64(self) -> u64 {
                u64::from(self.to_bits())
            }

            #[inline(always)]
            fn from_bits64(bits: u64) -> Self {
                $name::from_bits(bits as $bits)
            }

            #[inline(always)]
            fn from_i32(value: i32) -> Self {
                $from_i32(value)
            }

            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                $fma(self, a, b)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $name::max(self, other)
            }

            #[inline(always)]
            fn min_max(self, other: Self) -> [Self; 2] {
                $min_max(self, other)
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $exp_of(self)
            }

            #[inline(always)]
            fn exp_below(self) -> Self {
                $exp_below(self)
            }

            #[inline(always)]
            fn shift_from(center: Self) -> Self {
                $shift_from(center)
            }

            #[inline(always)]
            fn exp_shifted(self, shift: Self) -> Self {
                $exp_shifted(self, shift)
            }

            #[inline(always)]
            fn unshift(center: Self, shift: Self) -> Self {
                $unshift(center, shift)
            }

            const FAR: Self = $far;

            const PLAIN_RANKS: u32 = upper!($name, 4.0) - upper!($name, 4.0 * $name::MIN_POSITIVE);

            #[inline(always)]
            fn rank(self) -> u32 {
                upper!($name, self).wrapping_sub(upper!($name, 4.0 * $name::MIN_POSITIVE))
            }

            #[inline(always)]
            fn over_plain(self, divisor: Self) -> Self {
                $divide(self, divisor)
            }

            #[inline(always)]
            fn quickly_over(self, divisor: Self) -> Self {
                $quickly_divide(self, divisor)
            }

            #[inline(always)]
            fn scale_from(self, other: Self) -> Self {
                const DIGITS: $bits = (1 << ($name::MANTISSA_DIGITS - 1)) - 1;
                const ROUNDS: $bits = (1.0 as $name).to_bits() + DIGITS / 2 + 1;
                let apart = self.to_bits().wrapping_sub(other.to_bits());
                $name::from_bits(apart.wrapping_add(ROUNDS) & !DIGITS)
            }

            const LN_UNIT: Self = $ln_unit;

            #[inline(always)]
            fn quick_ln(scale: Self, d: Self, a: Self) -> Self {
                $quick_ln(scale, d, a)
            }

            #[inline(always)]
            fn less_ln(self, scale: Self, d: Self, a: Self) -> Self {
                $less_ln(self, scale, d, a)
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                $name::is_nan(self)
            }

            #[inline(always)]
            fn mantissa(self) -> Self {
                const EXPONENT: $bits = $name::INFINITY.to_bits();
                const SIGN: $bits = (-0.0 as $name).to_bits();
                $name::from_bits(self.to_bits() & !(EXPONENT | SIGN) | (1.0 as $name).to_bits())
            }

            #[inline(always)]
            fn exponent(self) -> i32 {
                let exponent = (self.to_bits() >> ($name::MANTISSA_DIGITS - 1)) as i32;
                exponent - ($name::MAX_EXP - 1)
            }

            #[inline(always)]
            fn power_of_two(n: i32) -> Self {
                let exponent = (n + ($name::MAX_EXP - 1)) as $bits;
                $name::from_bits(exponent << ($name::MANTISSA_DIGITS - 1))
            }

            #[inline(always)]
            fn artanh_tail(z: Self) -> Self {
                $artanh(z)
            }

            #[inline(always)]
            fn exp_tail(r: Self) -> Self {
                $exp(r)
            }
        }
    )+};
}

reals! {
    f32: u32, f32_from_i32, math::fma_f32, math::divide_plain_f32, quickly_divide_f32,
        min_max_f32, exp_f32, exp_below_f32,
        shift shift_from_f32, exp_shifted_f32, unshift_f32, 16_777_216.0,
        quick_ln_f32, unit LN_UNIT_F32, less_ln_f32, whole 12_582_912.0, ln_2 0.693_138_12 9.058_000_6e-6,
        tails artanh_tail_f32, exp_tail_f32;
    f64: u64, float64::from_i32, math::fma_f64, float64::quickly_divide, float64::quickly_divide,
        float64::min_max, float64::exp, float64::exp_below,
        shift core::ops::Neg::neg, float64::exp_shifted, float64::unshift, f64::NAN,
        float64::quick_ln, unit 1.0, float64::less_ln, whole 6_755_399_441_055_744.0,
        ln_2 0.693_147_180_369_123_8 1.908_214_929_270_587_7e-10,
        tails float64::artanh_tail, float64::exp_tail;
}

#[inline(always)]
fn f32_from_i32(value: i32) -> f32 {
    value as f32
}

#[inline(always)]
fn min_max_f32(a: f32, b: f32) -> [f32; 2] {
    [math::min_or_nan_f32(a, b), a.max(b)]
}

#[inline(always)]
fn quickly_divide_f32(a: f32, b: f32) -> f32 {
    a * math::reciprocal_approx_f32(b)
}

/// k ln 2 in the units of which ln 2 has `ln_2`, where `scale` is 2ᵏ. Rounded once: `ln_2` has no
/// more than 17 bits, so that its products with exponents and with their bias of 127 are exact.
#[inline(always)]
fn ln_of_scale_f32(scale: f32, ln_2: f32) -> f32 {
    const EXPONENT: f32 = 8_388_608.0;
    (scale.to_bits().cast_signed() as f32).fma(ln_2 / EXPONENT, -127.0 * ln_2)
}

// Two polynomials for 2 artanh s, fitted for the least largest error up to s² = 0.04 and next to
// none at 0. The coefficient of the highest power is the unit, so that each multiplication adds a
// power; ln 2 is a short number of units, to 1e-10.

const LN_UNIT_F32: f32 = 0.416_799_04;

/// In units: s ((s² + α)² + β), to 3.7e-7; as much again are roundings and the reciprocal's error
/// at worst.
#[inline(always)]
fn quick_ln_f32(scale: f32, d: f32, a: f32) -> f32 {
    const ALPHA: f32 = 0.799_482_7;
    const BETA: f32 = 4.159_303;
    let s = quickly_divide_f32(d, a);
    let u = s.fma(s, ALPHA);
    s.fma(u.fma(u, BETA), ln_of_scale_f32(scale, 27_247.0 / 16_384.0))
}

/// In units of its own: s (((s² + α)² + β) (s² + α) + γ), to 3e-9. What is left of a logarithm when
/// x is taken from it shows errors that do not average out.
#[inline(always)]
fn less_ln_f32(x: f32, scale: f32, d: f32, a: f32) -> f32 {
    const UNIT: f32 = 0.303_277_34;
    const ALPHA: f32 = 0.439_199_42;
    const BETA: f32 = 1.619_527_8;
    const GAMMA: f32 = 5.798_608_3;
    let s = quickly_divide_f32(d, a);
    let u = s.fma(s, ALPHA);
    let ln = s.fma(u.fma(u.fma(u, BETA), GAMMA), ln_of_scale_f32(scale, 18_723.0 / 8_192.0));
    ln.fma(-UNIT, x)
}

/// k ln 2 + 2 artanh(d/a) for |d/a| up to 0.2, to a few units in the last place.
#[inline(always)]
pub(crate) fn ln_of_parts<R: Real>(k: R, d: R, a: R) -> R {
    let s = d.over_plain(a);
    let tail = s * R::artanh_tail(s * s);
    k.fma(R::LN_2_HIGH, s.fma(R::ONE + R::ONE, k.fma(R::LN_2_LOW, tail)))
}

#[inline(always)]
fn exp_tail_f32(r: f32) -> f32 {
    horner!(r; 0.5, 0.166_666_67, 0.041_665_795, 0.008_333_452, 0.001_398_199_9, 1.987_569_1e-4)
}

/// That of fdlibm's logf.
#[allow(clippy::excessive_precision)] // as published
#[inline(always)]
fn artanh_tail_f32(z: f32) -> f32 {
    z * horner!(z; 0.666_666_6, 0.400_009_72, 0.284_987_87, 0.242_790_79)
}

/// eˣ: 2ⁿ eʳ with |r| at most half of ln 2.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const OVERFLOWS: f32 = 88.722_84;
    const VANISHES: f32 = -103.972_08;
    // Adding and taking away a number whose unit is 1 rounds to a whole one.
    let n = (x * core::f32::consts::LOG2_E + f32::WHOLE) - f32::WHOLE;
    let r = (-n).fma(f32::LN_2_LOW, (-n).fma(f32::LN_2_HIGH, x));
    let value = 1.0 + (r + r * r * f32::exp_tail(r));
    // In two steps: 2ⁿ alone may be beyond the type. Far beyond, whatever comes of it is not used.
    let n = n as i32;
    let value = value * f32::power_of_two(n / 2) * f32::power_of_two(n - n / 2);
    let value = if x > OVERFLOWS { f32::INFINITY } else { value };
    let value = if x < VANISHES { 0.0 } else { value };
    if x.is_nan() { x } else { value }
}

#[inline(always)]
fn exp_below_f32(x: f32) -> f32 {
    math::exp2_approx_f32(x * core::f32::consts::LOG2_E)
}

/// In powers of two, where the exponential is one multiplication and addition. An infinite one is
/// beyond [`Real::FAR`].
#[inline(always)]
fn shift_from_f32(center: f32) -> f32 {
    -(center * core::f32::consts::LOG2_E)
}

#[inline(always)]
fn exp_shifted_f32(x: f32, shift: f32) -> f32 {
    math::exp2_approx_f32(x.fma(core::f32::consts::LOG2_E, shift))
}

/// The rounding error of the shift is a number of its type.
#[inline(always)]
fn unshift_f32(center: f32, shift: f32) -> f32 {
    math::exp2_approx_f32((-center).fma(core::f32::consts::LOG2_E, -shift))
}

/// What logits are relative to when their exponentials are computed.
#[derive(Clone, Copy)]
pub enum Base<R> {
    /// A logit, for [`Real::exp_below`].
    Center(R),
    /// What [`Real::shift_from`] made of a logit.
    Shift(R),
}

impl<R: Real> Base<R> {
    #[inline(always)]
    pub(crate) fn exp(self, x: R) -> R {
        match self {
            Base::Center(center) => (x - center).exp_below(),
            Base::Shift(shift) => x.exp_shifted(shift),
        }
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
    /// Negative infinity.
    const LOWEST: Self;
    /// Exact.
    fn widen(self) -> Self::Real;
    /// Rounds to nearest even.
    fn narrow(value: Self::Real) -> Self;
    /// Element `lane` of 16 bytes.
    fn extract(from: Vec16, lane: u32) -> Self;
    /// The largest element of N times 16 bytes. NaN is passed over; of nothing but NaN, it may be
    /// −∞.
    #[inline(always)]
    fn greatest<const N: usize>(from: [Vec16; N]) -> Self::Real {
        let mut greatest = Self::extract(from[0], 0).widen();
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..Self::LANES as usize; {
                if k + lane > 0 {
                    greatest = greatest.max(Self::extract(from[k], lane as u32).widen());
                }
            });
        });
        greatest
    }
    /// Calls `with` with the index of each of N vectors and the exponentials of its lanes.
    #[inline(always)]
    fn exps<const N: usize>(
        from: [Vec16; N],
        base: Base<Self::Real>,
        mut with: impl FnMut(usize, [Self::Real; MAX_LANES]),
    ) {
        unrolled!(for k in 0..N; {
            let mut exps = [Self::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..Self::LANES as usize; {
                exps[lane] = base.exp(Self::extract(from[k], lane as u32).widen());
            });
            with(k, exps);
        });
    }
    /// 16 bytes of the first elements.
    fn pack(elements: [Self; MAX_LANES]) -> Vec16;
    /// 16 bytes of the first values, each as [`narrow`](Self::narrow)ed.
    fn narrow_all(values: [Self::Real; MAX_LANES]) -> Vec16;
}

/// The most elements that 16 bytes hold.
pub const MAX_LANES: usize = 8;

/// A loop over 0 to a constant of at most [`MAX_LANES`], written out: LLVM does not unroll every
/// loop over a register array nor inline every closure, and what stays puts the array in memory.
macro_rules! unrolled {
    (for $index:ident in 0..$count:expr; $body:block) => {
        $crate::element::unrolled!(@ $index $count; $body; 0 1 2 3 4 5 6 7)
    };
    (for $index:ident in 1..$count:expr; $body:block) => {
        $crate::element::unrolled!(@ $index $count; $body; 1 2 3 4 5 6 7)
    };
    (@ $index:ident $count:expr; $body:block; $($value:literal)+) => {
        $(if $value < $count {
            let $index: usize = $value;
            $body
        })+
    };
}
pub(crate) use unrolled;

impl Element for f32 {
    type Real = f32;
    const DTYPE: Dtype = Dtype::F32;
    const LOWEST: f32 = f32::NEG_INFINITY;

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
    fn pack(elements: [Self; MAX_LANES]) -> Vec16 {
        let word = |lane: usize| elements[lane].to_bits();
        Vec16([word(0), word(1), word(2), word(3)])
    }

    #[inline(always)]
    fn narrow_all(values: [f32; MAX_LANES]) -> Vec16 {
        Self::pack(values)
    }
}

impl Element for f64 {
    type Real = f64;
    const DTYPE: Dtype = Dtype::F64;
    const LOWEST: f64 = f64::NEG_INFINITY;

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
    fn greatest<const N: usize>(from: [Vec16; N]) -> f64 {
        let mut greatest = f64::NEG_INFINITY;
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..Self::LANES as usize; {
                let x = Self::extract(from[k], lane as u32);
                greatest = float64::larger(x, greatest);
            });
        });
        greatest
    }

    /// Of two vectors at a time: one exponential is a chain of operations that wait for each other,
    /// and more than four need more registers than there are.
    #[inline(always)]
    fn exps<const N: usize>(
        from: [Vec16; N],
        base: Base<f64>,
        mut with: impl FnMut(usize, [f64; MAX_LANES]),
    ) {
        let lane = |k: usize, lane: u32| match base {
            Base::Center(center) => Self::extract(from[k], lane) - center,
            Base::Shift(shift) => Self::extract(from[k], lane) + shift,
        };
        let of_vector = |first, second| {
            let mut exps = [0.0; MAX_LANES];
            [exps[0], exps[1]] = [first, second];
            exps
        };
        unrolled!(for pair in 0..N.div_ceil(2); {
            let k = 2 * pair;
            if k + 1 < N {
                let x = [lane(k, 0), lane(k, 1), lane(k + 1, 0), lane(k + 1, 1)];
                let [a, b, c, d] = float64::exps_below(x);
                with(k, of_vector(a, b));
                with(k + 1, of_vector(c, d));
            } else {
                let [a, b] = float64::exps_below([lane(k, 0), lane(k, 1)]);
                with(k, of_vector(a, b));
            }
        });
    }

    #[inline(always)]
    fn pack(elements: [Self; MAX_LANES]) -> Vec16 {
        let (a, b) = (elements[0].to_bits(), elements[1].to_bits());
        Vec16([a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32])
    }

    #[inline(always)]
    fn narrow_all(values: [f64; MAX_LANES]) -> Vec16 {
        Self::pack(values)
    }
}

/// The types of 16 bits: a name, the conversions from and to f32, and of two, the maximum of pairs.
macro_rules! halves {
    ($(
        $(#[$doc:meta])* $name:ident, $dtype:ident, $lowest:literal, $widen:path, $narrow:path, $narrow_two:path,
        $max:path;
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(transparent)]
        pub struct $name(u16);

        // SAFETY: a u16.
        unsafe impl Word for $name {}

        impl Element for $name {
            type Real = f32;
            const DTYPE: Dtype = Dtype::$dtype;
            const LOWEST: Self = $name($lowest);

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

            /// In pairs: nothing is widened that would then wait in a register for its exponential.
            #[inline(always)]
            fn greatest<const N: usize>(from: [Vec16; N]) -> f32 {
                let mut pair = from[0].0[0];
                unrolled!(for k in 0..N; {
                    let [a, b, c, d] = from[k].0;
                    pair = $max(pair, $max($max(a, b), $max(c, d)));
                });
                let pair = Vec16([pair; 4]);
                Self::extract(pair, 0).widen().max(Self::extract(pair, 1).widen())
            }

            #[inline(always)]
            fn pack(elements: [Self; MAX_LANES]) -> Vec16 {
                let word =
                    |at: usize| u32::from(elements[at].0) | u32::from(elements[at + 1].0) << 16;
                Vec16([word(0), word(2), word(4), word(6)])
            }

            #[inline(always)]
            fn narrow_all(values: [f32; MAX_LANES]) -> Vec16 {
                let word = |at: usize| $narrow_two([values[at], values[at + 1]]);
                Vec16([word(0), word(2), word(4), word(6)])
            }
        }
    )+};
}

halves! {
    /// IEEE 754 binary16.
    F16, F16, 0xfc00, math::f32_from_f16, math::f16_from_f32, math::f16x2_from_f32, math::max_f16_pairs;
    /// bfloat16.
    Bf16, Bf16, 0xff80, math::f32_from_bf16, math::bf16_from_f32, math::bf16x2_from_f32, math::max_bf16_pairs;
}
