//! What the losses are, in float64 and no faster than they can be read.

/// Mean squared error.
pub mod mse {
    /// Σ (x − t)².
    pub fn sum(x: &[f32], t: &[f32]) -> f64 {
        x.iter().zip(t).map(|(&x, &t)| (f64::from(x) - f64::from(t)).powi(2)).sum()
    }

    /// 2 (x − t) · upstream.
    pub fn gradient(x: &[f32], t: &[f32], upstream: f64) -> Vec<f64> {
        x.iter().zip(t).map(|(&x, &t)| 2.0 * (f64::from(x) - f64::from(t)) * upstream).collect()
    }
}
