//! Element types: how elements are taken from a 16-byte vector, widened for arithmetic, and
//! narrowed again.

mod float32;
mod float64;
mod real;

pub use real::Real;
pub(crate) use real::ln_of_parts;

use crate::abi::Dtype;
use cuda_std::math;
use cuda_std::memory::{Vec16, Word};

/// What is subtracted from logits before their exponentials are taken: a logit at or near the row's
/// maximum, so that nothing overflows. The difference is multiplied by a scale, which is the
/// constant 1 for most losses.
#[derive(Clone, Copy)]
pub enum Base<R> {
    /// The logit itself and the scale, for [`Real::exp_below`]. No other logit is above it.
    Center(R, R),
    /// The logit and the scale as [`Real::shift_from`] and [`Real::factor_of`] convert them, for
    /// [`Real::exp_shifted`].
    Shift(R, R),
}

impl<R: Real> Base<R> {
    /// e^((x − base) · scale); with a shift, times a factor that [`Real::unshift`] corrects.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn exp(self, x: R) -> R {
        match self {
            Base::Center(center, scale) => ((x - center) * scale).exp_below(),
            Base::Shift(shift, factor) => x.exp_shifted(factor, shift),
        }
    }
}

/// The types of tensor elements.
pub trait Element: Word {
    /// The type of arithmetic on this type, and of a reduced loss.
    type Real: Real;
    /// The type's name in the table of kernels.
    const DTYPE: Dtype;
    /// Elements of a vector (16 bytes); at most [`MAX_LANES`].
    const LANES: u32 = 16 / size_of::<Self>() as u32;
    /// Negative infinity.
    const LOWEST: Self;
    /// Converts without rounding.
    fn widen(self) -> Self::Real;
    /// Rounds to nearest, ties to even.
    fn narrow(value: Self::Real) -> Self;
    /// Element `lane` of a vector.
    fn extract(from: Vec16, lane: u32) -> Self;
    /// A running maximum of vectors: as many numbers as one instruction compares, two for 16-bit
    /// elements. These are compared with each other once, in [`greatest_of`](Self::greatest_of).
    type Maxima: Copy;
    /// The maxima of no vector.
    const NO_MAXIMA: Self::Maxima;
    /// The maxima after the elements of N more vectors; NaNs are ignored.
    fn raise<const N: usize>(maxima: Self::Maxima, from: [Vec16; N]) -> Self::Maxima;
    /// The first numbers of a vector as maxima, which saves a comparison with
    /// [`NO_MAXIMA`](Self::NO_MAXIMA).
    fn first_maxima(from: Vec16) -> Self::Maxima;
    /// The largest of the maxima. If all elements were NaN, the result is NaN or −∞.
    fn greatest_of(maxima: Self::Maxima) -> Self::Real;
    /// [`Real::min_max`] of the two elements in each of two words, position by position. Never
    /// called for elements of more than 16 bits, because a word has no pair of them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn min_max_pairs(a: u32, b: u32) -> [u32; 2] {
        [a, b]
    }
    /// The largest element of N vectors, NaNs ignored. If all elements are NaN, the result is NaN
    /// or −∞.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn greatest<const N: usize>(from: [Vec16; N]) -> Self::Real {
        Self::greatest_of(Self::raise(Self::first_maxima(from[0]), from))
    }
    /// The larger of `top` and the tops of N vectors' elements. A top is the upper 32 bits of a
    /// number: read as f32s, tops are in the order of the numbers. The result is a NaN if any
    /// element is and, in f64, if any is infinite or beyond ±2¹⁰¹⁷.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn raise_top<const N: usize>(mut top: u32, from: [Vec16; N]) -> u32 {
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..Self::LANES as usize; {
                let bits = Self::extract(from[k], lane as u32).widen().to_top();
                top = math::max_or_nan_f32_bits(top, bits);
            });
        });
        top
    }
    /// Calls `with` for each of N vectors, with its index and the exponentials of its elements
    /// relative to `near`, as [`Real::exp_near`] computes them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn exps_near<const N: usize>(
        from: [Vec16; N],
        near: <Self::Real as Real>::Near,
        mut with: impl FnMut(usize, [Self::Real; MAX_LANES]),
    ) {
        unrolled!(for k in 0..N; {
            let mut exps = [Self::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..Self::LANES as usize; {
                exps[lane] = Self::extract(from[k], lane as u32).widen().exp_near(near);
            });
            with(k, exps);
        });
    }
    /// Calls `with` for each of N vectors, with its index and the exponentials of its elements.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
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
    /// [`exps`](Self::exps) for code that has no predicate registers left.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn masked_exps<const N: usize>(
        from: [Vec16; N],
        base: Base<Self::Real>,
        with: impl FnMut(usize, [Self::Real; MAX_LANES]),
    ) {
        Self::exps(from, base, with);
    }
    /// A vector of the first [`LANES`](Self::LANES) elements.
    fn pack(elements: [Self; MAX_LANES]) -> Vec16;
    /// A vector of the first [`LANES`](Self::LANES) values, each [narrowed](Self::narrow).
    fn narrow_all(values: [Self::Real; MAX_LANES]) -> Vec16;
}

/// The most elements of a vector, whatever their type.
pub const MAX_LANES: usize = 8;

/// A loop over a constant range within `0..MAX_LANES`, unrolled by the macro. LLVM neither unrolls
/// every loop over an array nor inlines every closure, and puts an array that is indexed by a
/// variable in local memory instead of registers.
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
    type Maxima = f32;
    const NO_MAXIMA: f32 = f32::NEG_INFINITY;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn widen(self) -> f32 {
        self
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn narrow(value: f32) -> Self {
        value
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn extract(from: Vec16, lane: u32) -> Self {
        f32::from_bits(from.0[lane as usize])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn raise<const N: usize>(mut maximum: f32, from: [Vec16; N]) -> f32 {
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..Self::LANES as usize; {
                maximum = maximum.max(Self::extract(from[k], lane as u32));
            });
        });
        maximum
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn first_maxima(from: Vec16) -> f32 {
        Self::extract(from, 0)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn greatest_of(maximum: f32) -> f32 {
        maximum
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn pack(elements: [Self; MAX_LANES]) -> Vec16 {
        let word = |lane: usize| elements[lane].to_bits();
        Vec16([word(0), word(1), word(2), word(3)])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn narrow_all(values: [f32; MAX_LANES]) -> Vec16 {
        Self::pack(values)
    }
}

impl Element for f64 {
    type Real = f64;
    const DTYPE: Dtype = Dtype::F64;
    const LOWEST: f64 = f64::NEG_INFINITY;
    type Maxima = f64;
    const NO_MAXIMA: f64 = f64::NEG_INFINITY;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn widen(self) -> f64 {
        self
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn narrow(value: f64) -> Self {
        value
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn extract(from: Vec16, lane: u32) -> Self {
        let word = |half: u32| u64::from(from.0[(2 * lane + half) as usize]);
        f64::from_bits(word(1) << 32 | word(0))
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn raise<const N: usize>(mut maximum: f64, from: [Vec16; N]) -> f64 {
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..Self::LANES as usize; {
                maximum = float64::larger(Self::extract(from[k], lane as u32), maximum);
            });
        });
        maximum
    }

    /// None: `larger` would keep a NaN that is the first number.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn first_maxima(_: Vec16) -> f64 {
        Self::NO_MAXIMA
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn greatest_of(maximum: f64) -> f64 {
        maximum
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn exps<const N: usize>(
        from: [Vec16; N],
        base: Base<f64>,
        with: impl FnMut(usize, [f64; MAX_LANES]),
    ) {
        float64::for_pairs(from, |x| float64::exps_below(float64::from_base(x, base)), with);
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn exps_near<const N: usize>(
        from: [Vec16; N],
        near: float64::Near,
        with: impl FnMut(usize, [f64; MAX_LANES]),
    ) {
        float64::for_pairs(from, |x| near.exps(x), with);
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn masked_exps<const N: usize>(
        from: [Vec16; N],
        base: Base<f64>,
        with: impl FnMut(usize, [f64; MAX_LANES]),
    ) {
        let exps = |x| float64::masked_exps_below(float64::from_base(x, base));
        float64::for_pairs(from, exps, with);
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn pack(elements: [Self; MAX_LANES]) -> Vec16 {
        let (a, b) = (elements[0].to_bits(), elements[1].to_bits());
        Vec16([a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn narrow_all(values: [f64; MAX_LANES]) -> Vec16 {
        Self::pack(values)
    }
}

/// Implements the 16-bit types. For each: its name, its dtype, the bits of −∞, and the conversions
/// to f32, from f32, and from two f32 to a packed pair; then three operations on packed pairs: the
/// maximum of each position, the maximum that is NaN where one is, and the minimum that is NaN
/// where one is.
macro_rules! halves {
    ($(
        $(#[$doc:meta])* $name:ident, $dtype:ident, $lowest:literal, $widen:path, $narrow:path,
        $narrow_two:path,
        $max:path, $max_or_nan:path, $min:path;
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
            type Maxima = u32;
            const NO_MAXIMA: u32 = $lowest << 16 | $lowest;

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn widen(self) -> f32 {
                $widen(self.0)
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn narrow(value: f32) -> Self {
                $name($narrow(value))
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn extract(from: Vec16, lane: u32) -> Self {
                $name((from.0[(lane / 2) as usize] >> (lane % 2 * 16)) as u16)
            }

            /// Compares packed pairs. Widened elements would occupy two registers instead of one
            /// until their exponentials are computed.
            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn raise<const N: usize>(mut pair: u32, from: [Vec16; N]) -> u32 {
                unrolled!(for k in 0..N; {
                    let [a, b, c, d] = from[k].0;
                    pair = $max(pair, $max($max(a, b), $max(c, d)));
                });
                pair
            }

            /// Compares packed pairs, as [`raise`](Element::raise) does.
            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn raise_top<const N: usize>(top: u32, from: [Vec16; N]) -> u32 {
                let mut pair = from[0].0[0];
                unrolled!(for k in 0..N; {
                    let [a, b, c, d] = from[k].0;
                    pair = $max_or_nan(pair, $max_or_nan($max_or_nan(a, b), $max_or_nan(c, d)));
                });
                let pair = Vec16([pair; 4]);
                let top_of = |lane| Self::extract(pair, lane).widen().to_top();
                let top = math::max_or_nan_f32_bits(top, top_of(0));
                math::max_or_nan_f32_bits(top, top_of(1))
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn min_max_pairs(a: u32, b: u32) -> [u32; 2] {
                [$min(a, b), $max(a, b)]
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn first_maxima(from: Vec16) -> u32 {
                from.0[0]
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn greatest_of(pair: u32) -> f32 {
                let pair = Vec16([pair; 4]);
                Self::extract(pair, 0).widen().max(Self::extract(pair, 1).widen())
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn pack(elements: [Self; MAX_LANES]) -> Vec16 {
                let word =
                    |at: usize| u32::from(elements[at].0) | u32::from(elements[at + 1].0) << 16;
                Vec16([word(0), word(2), word(4), word(6)])
            }

            #[cfg_attr(target_arch = "nvptx64", inline(always))]
            fn narrow_all(values: [f32; MAX_LANES]) -> Vec16 {
                let word = |at: usize| $narrow_two([values[at], values[at + 1]]);
                Vec16([word(0), word(2), word(4), word(6)])
            }
        }
    )+};
}

halves! {
    /// IEEE 754 binary16.
    F16, F16, 0xfc00, math::f32_from_f16, math::f16_from_f32, math::f16x2_from_f32,
        math::max_f16_pairs, math::max_or_nan_f16_pairs, math::min_or_nan_f16_pairs;
    /// bfloat16.
    Bf16, Bf16, 0xff80, math::f32_from_bf16, math::bf16_from_f32, math::bf16x2_from_f32,
        math::max_bf16_pairs, math::max_or_nan_bf16_pairs, math::min_or_nan_bf16_pairs;
}
