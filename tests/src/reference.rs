//! The losses in float64, written for readers and not for speed.

pub mod log_prob;
pub mod pairwise;
pub mod tracked;

/// A sum that does not lose small terms (Neumaier). After 10⁵ terms, the error of a plain float64
/// sum is larger than that allowed for the kernels.
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

/// Cross-entropy of one row.
pub mod cross_entropy {
    use super::Total;

    /// The target of the row.
    #[derive(Clone, Copy, Debug)]
    pub enum Target<'a> {
        Class(usize),
        Ignored,
        Probabilities(&'a [f64]),
    }

    /// The options of the loss, with a weight for every class.
    #[derive(Clone, Copy, Debug)]
    pub struct Options<'a> {
        pub weight: &'a [f64],
        pub label_smoothing: f64,
        pub z_loss: f64,
    }

    /// The results for a row, with an upstream gradient of 1 and without a divisor.
    #[derive(Clone, Debug)]
    pub struct Row {
        pub loss: f64,
        /// λ (log Σ exp x)².
        pub z: f64,
        pub log_sum_exp: f64,
        /// The gradients of the loss and of z by the logits, and of the loss by the probabilities.
        pub by_input: Vec<f64>,
        pub z_by_input: Vec<f64>,
        pub by_target: Vec<f64>,
        /// The largest magnitude of the terms whose difference is a gradient of the input.
        pub terms: f64,
        /// What the row adds to the divisor of a mean: the weight of its class, or 1 for
        /// probabilities.
        pub weight: f64,
    }

    /// Σ q (log Σ exp x − x), with q the smoothed and weighted target.
    pub fn row(x: &[f64], target: Target<'_>, options: Options<'_>) -> Row {
        let Options { weight, label_smoothing, z_loss } = options;
        let classes = x.len();
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = x.iter().map(|x| (x - max).exp()).sum::<Total>().value();
        // Leaves out the e⁰ of one largest logit, so that the others do not lose digits beside it.
        let first = x.iter().position(|&x| x == max).unwrap_or(0);
        let others = x.iter().enumerate().filter(|(class, _)| *class != first);
        let others = others.map(|(_, x)| (x - max).exp()).sum::<Total>().value();
        let log_sum = if sum.is_nan() { sum } else { others.ln_1p() };
        let log_sum_exp = max + log_sum;
        let log_p = |class: usize| x[class] - max - log_sum;
        let p = |class: usize| (x[class] - max).exp() / sum;
        if let Target::Ignored = target {
            let none = vec![0.0; classes];
            let (by_input, z_by_input, by_target) = (none.clone(), none.clone(), none);
            let (loss, z, terms, weight) = (0.0, 0.0, 0.0, 0.0);
            return Row { loss, z, log_sum_exp, by_input, z_by_input, by_target, terms, weight };
        }
        let t = |class: usize| match target {
            Target::Class(of) => f64::from(u8::from(class == of)),
            Target::Probabilities(t) => t[class],
            Target::Ignored => unreachable!(),
        };
        let smoothed =
            |class: usize| (1.0 - label_smoothing) * t(class) + label_smoothing / classes as f64;
        let q = |class: usize| weight[class] * smoothed(class);
        let all_q = (0..classes).map(q).sum::<Total>().value();
        let loss = match target {
            // Without smoothing no other logit counts, whatever its value. With smoothing, the
            // class counts by itself and together with all others.
            Target::Class(class) => {
                let of_class = -(1.0 - label_smoothing) * weight[class] * log_p(class);
                let share = label_smoothing / classes as f64;
                let of_one = |class: usize| -share * weight[class] * log_p(class);
                let of_all = || (0..classes).map(of_one).sum::<Total>().value();
                of_class + if label_smoothing > 0.0 { of_all() } else { 0.0 }
            }
            _ => (0..classes).map(|class| -q(class) * log_p(class)).sum::<Total>().value(),
        };
        Row {
            loss,
            z: z_loss * log_sum_exp * log_sum_exp,
            log_sum_exp,
            by_input: (0..classes).map(|class| p(class) * all_q - q(class)).collect(),
            z_by_input: (0..classes).map(|class| 2.0 * z_loss * log_sum_exp * p(class)).collect(),
            by_target: (0..classes)
                .map(|class| -(1.0 - label_smoothing) * weight[class] * log_p(class))
                .collect(),
            terms: (0..classes).map(|class| (p(class) * all_q).max(q(class))).fold(0.0, f64::max),
            weight: match target {
                Target::Class(class) => weight[class],
                _ => 1.0,
            },
        }
    }
}
