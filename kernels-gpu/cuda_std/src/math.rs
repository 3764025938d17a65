//! Arithmetic that has an instruction of its own.

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
