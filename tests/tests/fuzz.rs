//! Any call of any loss, drawn by tests/src/fuzz and compared with float64 and with the documented
//! errors. `cargo xtask fuzz` runs for longer.

use std::str::FromStr;
use std::time::Duration;
use std::{env, time};
use tests::fuzz::{Budget, campaign, check};
use tests::number::Number;
use tests::random::uniforms;
use tests::{gpu, tensor};
// The names that a case pasted into this file needs.
#[allow(unused_imports)]
use tests::fuzz::{
    Arg::*, Arrives::*, Case, Dtype::*, Kind::*, LossOf::*, NaN, OneFor::*, Pairwise::*, Pass::*,
    Reduce::*, Upstream::*, Values::*, Wanted::*, Wrong::*, inf,
};

/// The fields that most cases below share.
const PLAIN: Case = Case {
    loss: Pairs(Mse),
    dtype: F32,
    reduction: Sum,
    pass: Forward,
    rows: 1,
    cols: 1,
    rank: 2,
    input: Ordinary,
    target: Ordinary,
    upstream: Ones,
    wanted: OfInput,
    gaps: [0; 8],
    offsets: [0; 8],
    to_loss: [false; 2],
    twice: false,
    wrong: None,
    seed: 0,
};

#[path = "fuzz/found.rs"]
mod found;

/// The number in an environment variable, if it is set.
fn number<N: FromStr>(name: &str) -> Option<N> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}: expected a number, got {value}")))
}

/// A seed that differs from run to run and is short enough to type.
fn new_seed() -> u64 {
    time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 % 1_000_000_000
}

/// Runs for `FUSED_LOSS_FUZZ_MINUTES` minutes, from the seed `FUSED_LOSS_FUZZ_SEED` or from a new
/// one. Without either it runs for ten seconds from a fixed seed, so that a change never fails for
/// a reason that it has not caused.
#[test]
fn any_call() {
    const SEED: u64 = 1;
    let minutes = number("FUSED_LOSS_FUZZ_MINUTES");
    let drawn = if minutes.is_some() { new_seed() } else { SEED };
    let seed = number("FUSED_LOSS_FUZZ_SEED").unwrap_or(drawn);
    let minutes = minutes.unwrap_or(1.0 / 6.0);
    campaign(Budget { time: Duration::from_secs_f64(60.0 * minutes), seed });
}

/// Only the losses by element have gaps between their rows. Thousands of drawn cases missed a bug
/// that was planted there.
#[test]
fn gaps_of_the_loss_alone() {
    check(&Case {
        loss: Pairs(Mse),
        dtype: F32,
        reduction: Unreduced,
        pass: ForwardInto,
        rows: 3,
        cols: 2,
        gaps: [0, 0, 0, 3, 0, 0, 0, 0],
        ..PLAIN
    })
    .unwrap();
}

/// The weighted probabilities of a row sum to more than f64 can represent. So their sum times the
/// softmax is infinite, and so is the gradient.
#[test]
fn weighted_probabilities_beyond_the_range() {
    check(&Case {
        loss: CrossEntropy {
            targets: Probabilities,
            weight: Some(Ordinary),
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            bad: false,
        },
        dtype: F64,
        reduction: Unreduced,
        pass: BackwardInto,
        rows: 17,
        cols: 229,
        target: Bits,
        upstream: Each(Ordinary),
        wanted: OfBoth,
        seed: 4_372_043_763_223_550_027,
        ..PLAIN
    })
    .unwrap();
}

/// −exp(t)/p at t = ∞ is −∞: docs/semantics.md, KL divergence.
#[test]
fn the_gradient_of_a_probability_whose_target_is_infinite() {
    let stream = gpu().stream().unwrap();
    let (p, t) = (tensor(&[0.5_f64; 64]), tensor(&[f64::INFINITY; 64]));
    let divergence = fused_loss::KlDiv::sum().log_input(false).log_target(true);
    let (_, gradient) = divergence.forward_backward(&p, &t, &stream).unwrap();
    assert_eq!(gradient.to_vec().unwrap(), [f64::NEG_INFINITY; 64]);
}

/// (1 − y)·(−∞) + q·∞ at y = ∞ is ∞: docs/semantics.md, binary cross-entropy.
#[test]
fn the_loss_of_an_infinite_target_at_minus_infinity() {
    let stream = gpu().stream().unwrap();
    let (x, y, p) = (tensor(&[f32::NEG_INFINITY]), tensor(&[f32::INFINITY]), tensor(&[2.0_f32]));
    let loss = fused_loss::BceWithLogits::sum().pos_weight(&p).forward(&x, &y, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), f32::INFINITY);
}

/// The loss of the likeliest class is log(1 + r). Its error is at most that of `Number::LOSS` and
/// of the exponentials in r.
#[test]
fn losses_of_rows_that_are_likely() {
    let (rows, cols) = (20_000, 17);
    let x: Vec<f32> = uniforms(5, rows * cols).iter().map(|x| 6.0 * x).collect();
    let most = |row: &[f32]| (0..cols).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let classes: Vec<i64> = x.chunks(cols).map(|row| most(row) as i64).collect();
    let input = fused_loss::Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let stream = gpu().stream().unwrap();
    let loss = fused_loss::CrossEntropy::none().forward(&input, &tensor(&classes), &stream);
    for (row, got) in x.chunks(cols).zip(loss.unwrap().to_vec().unwrap()) {
        let class = most(row);
        let others = (0..cols).filter(|&col| col != class);
        let others: f64 = others.map(|col| f64::from(row[col] - row[class]).exp()).sum();
        let (expected, got) = (others.ln_1p(), f64::from(got));
        let allowed = f32::LOSS * expected * (1.0 + (-expected.ln()).max(0.0) / 8.0);
        assert!((got - expected).abs() <= allowed, "expected {expected}, got {got}");
    }
}

/// A class whose logit is further below the largest than f32 can represent is treated like one of
/// −∞: docs/semantics.md, log-probability.
#[test]
fn log_probabilities_of_logits_beyond_the_range() {
    check(&Case {
        loss: LogProb {
            targets: I64,
            temperature: 2.0,
            ignore_index: -100,
            bad: false,
            arrives: AtLogProb,
        },
        dtype: F32,
        pass: Forward,
        rows: 2,
        cols: 76,
        input: Huge,
        seed: 3581571284768762081,
        ..PLAIN
    })
    .unwrap();
}

/// An upstream gradient that fits f32, but overflows when it is divided by the temperature.
#[test]
fn upstream_gradients_that_a_temperature_takes_beyond_the_range() {
    check(&Case {
        loss: LogProb {
            targets: I64,
            temperature: 0.7,
            ignore_index: -100,
            bad: false,
            arrives: AtEntropy(Each(Huge)),
        },
        dtype: F16,
        pass: BothInto,
        rows: 10,
        cols: 1,
        seed: 8018813445086692,
        ..PLAIN
    })
    .unwrap();
}

/// The largest f32 becomes infinite when it is multiplied by a number just above 1.
#[test]
fn the_largest_upstream_gradient_of_an_entropy() {
    check(&Case {
        loss: LogProb {
            targets: I64,
            temperature: 1.0,
            ignore_index: -100,
            bad: false,
            arrives: AtEntropy(One(Special)),
        },
        dtype: F16,
        pass: BothInto,
        rows: 1,
        cols: 4,
        input: MinusInfinity,
        seed: 23569526956879075,
        ..PLAIN
    })
    .unwrap();
}

/// The gradient of the likeliest class comes from the other probabilities, which are below the
/// range of f32 until a large upstream gradient multiplies them.
#[test]
fn entropies_of_probabilities_below_the_range() {
    check(&Case {
        loss: LogProb {
            targets: I64,
            temperature: 0.1,
            ignore_index: -100,
            bad: false,
            arrives: AtEntropy(Each(Bits)),
        },
        dtype: F32,
        pass: BothInto,
        rows: 15,
        cols: 2,
        ..PLAIN
    })
    .unwrap();
}
