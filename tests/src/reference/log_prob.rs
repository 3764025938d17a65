//! The log-probability of a class and the entropy, of one row of logits.

use super::Total;

/// The expected results of the row.
#[derive(Clone, Debug)]
pub struct Row {
    pub log_prob: f64,
    pub entropy: f64,
    /// The derivatives by each logit, for the upstream gradients of both results.
    pub gradient: Vec<f64>,
}

/// The results of the row of logits `x`. Without a class, the row is ignored.
pub fn row(x: &[f64], class: Option<usize>, temperature: f64, [a, b]: [f64; 2]) -> Row {
    let Some(class) = class else {
        return Row { log_prob: 0.0, entropy: 0.0, gradient: vec![0.0; x.len()] };
    };
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let apart: Vec<f64> = x.iter().map(|x| (x - max) / temperature).collect();
    // Leaves out one of the largest: beside its 1, the others would lose their digits.
    let likeliest = x.iter().position(|&x| x == max).unwrap_or(0);
    let others = apart.iter().enumerate().filter(|&(index, _)| index != likeliest);
    let others = others.map(|(_, z)| z.exp()).sum::<Total>().value();
    let log_sum = others.ln_1p();
    let p: Vec<f64> = apart.iter().map(|z| z.exp() / (1.0 + others)).collect();
    let product = |(&p, &z): (&f64, &f64)| if p == 0.0 { 0.0 } else { p * z };
    let expected = p.iter().zip(&apart).map(product).sum::<Total>().value();
    let gradient = |index: usize| {
        let less_one = match (index == class, index == likeliest) {
            (true, true) => others / (1.0 + others),
            (true, false) => 1.0 - p[index],
            _ => -p[index],
        };
        let by_entropy = if p[index] == 0.0 { 0.0 } else { p[index] * (apart[index] - expected) };
        // This order does not lose the smallest upstream gradient.
        (a / temperature) * less_one - (b / temperature) * by_entropy
    };
    let gradient = (0..x.len()).map(gradient).collect();
    Row { log_prob: apart[class] - log_sum, entropy: log_sum - expected, gradient }
}
