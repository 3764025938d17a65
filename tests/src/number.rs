//! Element types for the references: rounding from float64, and the allowed errors of results.

use crate::reference::tracked::Range;
use fused_loss::Float;
use half::{bf16, f16};

/// An element type.
pub trait Number: Float {
    /// The allowed error of a loss of tensors of this type, relative to the larger of the loss and
    /// its mean term.
    const LOSS: f64;
    /// The range of the type in which tensors of this type are computed.
    const RANGE: Range;
    /// The largest finite number, and the smallest normal one.
    const LIMITS: Range;
    /// The number with these lowest bits.
    fn from_low_bits(bits: u64) -> Self;
    /// Its bits.
    fn low_bits(self) -> u64;
    /// Rounds to nearest even.
    fn round(value: f64) -> Self;
    /// Converts exactly.
    fn wide(self) -> f64;
    /// The allowed error of an element whose expected value is `expected`, in a row whose largest
    /// is `largest`, for a gradient with the factor `scale`.
    fn allowed(expected: f64, largest: f64, scale: f64) -> f64;
}

impl Number for f32 {
    const LOSS: f64 = 1e-6;
    const RANGE: Range = Range::F32;
    const LIMITS: Range = Range::F32;

    fn from_low_bits(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }

    fn low_bits(self) -> u64 {
        self.to_bits().into()
    }

    fn round(value: f64) -> Self {
        value as f32
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn allowed(_: f64, largest: f64, _: f64) -> f64 {
        2e-6 * largest
    }
}

impl Number for f64 {
    const LOSS: f64 = 1e-13;
    const RANGE: Range = Range::F64;
    const LIMITS: Range = Range::F64;

    fn from_low_bits(bits: u64) -> Self {
        f64::from_bits(bits)
    }

    fn low_bits(self) -> u64 {
        self.to_bits()
    }

    fn round(value: f64) -> Self {
        value
    }

    fn wide(self) -> f64 {
        self
    }

    fn allowed(_: f64, largest: f64, _: f64) -> f64 {
        1e-13 * largest
    }
}

/// One unit in the last place of a number with `digits` fraction bits and exponents from `least`.
fn unit(value: f64, digits: i32, least: i32) -> f64 {
    let exponent = if value == 0.0 { least } else { value.abs().log2().floor() as i32 };
    2.0_f64.powi(exponent.max(least) - digits)
}

macro_rules! halves {
    ($($name:ty, $digits:literal, $least:literal, $limits:expr;)+) => {$(
        impl Number for $name {
            const LOSS: f64 = 1e-6;
            const RANGE: Range = Range::F32;
            const LIMITS: Range = $limits;

            fn from_low_bits(bits: u64) -> Self {
                <$name>::from_bits(bits as u16)
            }

            fn low_bits(self) -> u64 {
                self.to_bits().into()
            }

            fn round(value: f64) -> Self {
                <$name>::from_f64(value)
            }

            fn wide(self) -> f64 {
                self.to_f64()
            }

            fn allowed(expected: f64, _: f64, scale: f64) -> f64 {
                unit(expected, $digits, $least) + 2e-7 * scale.abs()
            }
        }
    )+};
}

halves! {
    f16, 10, -14, Range { max: 65504.0, least: f16::MIN_POSITIVE.to_f64_const() };
    bf16, 7, -126, Range { max: bf16::MAX.to_f64_const(), least: f32::MIN_POSITIVE as f64 };
}
