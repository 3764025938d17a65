//! What the losses are, in float64 and no faster than they can be read.

/// A sum that does not lose what is small beside it (Neumaier): plain float64 is off by more than the
/// kernels may be, after 10⁵ terms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    sum: f64,
    lost: f64,
}

impl Total {
    /// Adds a term.
    pub fn add(&mut self, term: f64) {
        let sum = self.sum + term;
        let (large, small) =
            if self.sum.abs() >= term.abs() { (self.sum, term) } else { (term, self.sum) };
        self.lost += (large - sum) + small;
        self.sum = sum;
    }

    /// The sum.
    pub fn value(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.lost } else { self.sum }
    }
}

impl std::iter::Sum<f64> for Total {
    fn sum<I: Iterator<Item = f64>>(terms: I) -> Self {
        terms.fold(Total::default(), |mut total, term| {
            total.add(term);
            total
        })
    }
}

/// Mean squared error.
pub mod mse {
    /// Σ (x − t)².
    pub fn sum(x: &[f32], t: &[f32]) -> f64 {
        let terms = x.iter().zip(t).map(|(&x, &t)| (f64::from(x) - f64::from(t)).powi(2));
        terms.sum::<super::Total>().value()
    }

    /// 2 (x − t) · upstream.
    pub fn gradient(x: &[f32], t: &[f32], upstream: f64) -> Vec<f64> {
        x.iter().zip(t).map(|(&x, &t)| 2.0 * (f64::from(x) - f64::from(t)) * upstream).collect()
    }
}
