//! The losses that compare element by element, as docs/semantics.md defines them.

use super::tracked::{Range, Tracked};

/// A loss with its options.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pairwise {
    Mse,
    Huber { delta: f64 },
    SmoothL1 { beta: f64 },
    Bce,
    KlDiv { log_input: bool, log_target: bool },
}

/// The results of one element, with an upstream gradient of 1 and no divisor. The caller applies
/// the factor of a gradient, because a kernel may multiply by it first.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    pub term: Tracked,
    pub by_input: [Tracked; 2],
    pub by_target: [Tracked; 2],
}

impl Pairwise {
    /// The term of an input and a target, and its derivatives. `weights` are those of binary
    /// cross-entropy: that of the element and that of positive targets.
    pub fn element(self, input: f64, target: f64, weights: [f64; 2], range: Range) -> Element {
        let exact = |value| Tracked::exact(value, range);
        let (x, t, one) = (exact(input), exact(target), exact(1.0));
        let d = x.minus(t);
        let odd = |term: Tracked, slope: Tracked| Element {
            term,
            by_input: [one, slope],
            by_target: [one, slope.negative()],
        };
        match self {
            Pairwise::Mse => {
                Element { term: d.times(d), by_input: [exact(2.0), d], by_target: [exact(-2.0), d] }
            }
            Pairwise::Huber { delta } => {
                let delta = exact(range.round(delta));
                let half = delta.times(exact(0.5));
                if d.value.abs() > delta.value {
                    let slope = if d.value > 0.0 { delta } else { delta.negative() };
                    odd(delta.times(d.magnitude().minus(half)), slope)
                } else {
                    odd(Tracked::product(&[exact(0.5), d, d]), d)
                }
            }
            Pairwise::SmoothL1 { beta } => {
                let beta = exact(range.round(beta));
                let half = beta.times(exact(0.5));
                if d.value.abs() < beta.value {
                    odd(Tracked::product(&[exact(0.5), d, d]).over(beta), d.over(beta))
                } else {
                    let flat = d.value.is_nan() || d.value == 0.0 || d.is_lost();
                    let slope = if flat { d } else { exact(d.value.signum()) };
                    odd(d.magnitude().minus(half), slope)
                }
            }
            Pairwise::Bce => bce(x, t, weights.map(exact)),
            Pairwise::KlDiv { log_input, log_target } => kl_div(x, t, log_input, log_target, range),
        }
    }
}

/// Binary cross-entropy of a logit x and a target y, with weight w and pos_weight p.
fn bce(x: Tracked, y: Tracked, [w, p]: [Tracked; 2]) -> Element {
    let one = |value| Tracked { value, size: 0.0, off: 0.0, ..x };
    let (none, one) = (one(0.0), one(1.0));
    let more = if p.value == 1.0 { none } else { p.minus(one) };
    let q = if p.value == 1.0 { one } else { one.plus(more.times(y)) };
    let e = x.magnitude().negative().exp();
    let l = e.ln_1p();
    let is_above = x.value > 0.0;
    let term = if is_above {
        one.minus(y).times(x).plus(q.times(l))
    } else if x.value == f64::NEG_INFINITY {
        // PyTorch's formula, although a limit exists.
        one.minus(y).times(x).minus(q.times(x))
    } else {
        q.times(l).minus(Tracked::product(&[p, y, x]))
    };
    // If infinite weights meet infinite logits, nothing is promised.
    let is_odd = x.value.is_infinite() && !p.value.is_finite();
    let term = if is_odd { Tracked::lost(x.range) } else { term };
    let tail = q.times(e).over(one.plus(e));
    let slope = if is_above { one.minus(y).minus(tail) } else { tail.minus(p.times(y)) };
    let of_input = if is_above { x } else { p.times(x) };
    let by_target =
        if p.value == 1.0 { of_input.negative() } else { more.times(l).minus(of_input) };
    Element { term: w.times(term), by_input: [w, slope], by_target: [w, by_target] }
}

/// Kullback-Leibler divergence t (log t − x), from logarithms or probabilities.
fn kl_div(x: Tracked, t: Tracked, log_input: bool, log_target: bool, range: Range) -> Element {
    let one = Tracked::exact(1.0, range);
    let nan = Tracked::exact(f64::NAN, range);
    let log_x = if log_input { x } else { x.ln() };
    let difference = match (log_input, log_target) {
        (_, true) => t.minus(log_x),
        (true, false) => t.ln().minus(x),
        (false, false) => ln_ratio(t, x, range),
    };
    let weight = if log_target { t.exp() } else { t };
    let by_input = if log_input { weight.negative() } else { weight.over(x).negative() };
    if log_target {
        let by_target = [weight, difference.plus(one)];
        return Element { term: weight.times(difference), by_input: [one, by_input], by_target };
    }
    let term = if t.value == 0.0 {
        // 0 · x, which is NaN if x is not finite.
        Tracked::exact(0.0 * log_x.value, range)
    } else if t.value == f64::INFINITY {
        Tracked::exact(t.value - t.value * log_x.value, range)
    } else {
        t.times(difference)
    };
    let is_defined = t.value > 0.0 && t.value < f64::INFINITY;
    let slope = if is_defined { difference.plus(one) } else { nan };
    Element { term, by_input: [one, by_input], by_target: [one, slope] }
}

/// ln(t/p), which keeps its relative accuracy if the two are nearly equal.
fn ln_ratio(t: Tracked, p: Tracked, range: Range) -> Tracked {
    let are_ordinary = t.value > 0.0 && t.value.is_finite() && p.value > 0.0 && p.value.is_finite();
    if !are_ordinary {
        return t.ln().minus(p.ln());
    }
    let (apart, ratio) = ((t.value - p.value) / p.value, t.value / p.value);
    let value = if apart.abs() < 0.5 {
        apart.ln_1p()
    } else if ratio.is_normal() {
        ratio.ln()
    } else {
        t.value.ln() - p.value.ln()
    };
    Tracked { size: value.abs(), ..Tracked::exact(value, range) }
}
