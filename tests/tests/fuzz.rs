//! Any call of any loss: what tests/src/fuzz draws, against float64 and against the documented
//! errors. `cargo xtask fuzz` goes on for longer.

use std::str::FromStr;
use std::time::Duration;
use std::{env, time};
use tests::fuzz::{Budget, campaign, check};
use tests::number::Number;
use tests::random::uniforms;
use tests::{gpu, tensor};
// What a case that is pasted here may name.
#[allow(unused_imports)]
use tests::fuzz::{
    Arg::*, Case, Dtype::*, Kind::*, LossOf::*, NaN, OneFor::*, Pairwise::*, Pass::*, Reduce::*,
    Upstream::*, Values::*, Wanted::*, Wrong::*, inf,
};

/// The number that a variable of the environment has.
fn number<N: FromStr>(name: &str) -> Option<N> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}: expected a number, got {value}")))
}

/// A seed that differs from run to run, small enough to be typed.
fn new_seed() -> u64 {
    time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 % 1_000_000_000
}

/// For as many minutes as `FUSED_LOSS_FUZZ_MINUTES` says, from the seed that `FUSED_LOSS_FUZZ_SEED`
/// says or from a new one; without either, for ten seconds from the same seed each time, so that a
/// change is not refused for what it has not changed.
#[test]
fn any_call() {
    const SEED: u64 = 1;
    let minutes = number("FUSED_LOSS_FUZZ_MINUTES");
    let drawn = if minutes.is_some() { new_seed() } else { SEED };
    let seed = number("FUSED_LOSS_FUZZ_SEED").unwrap_or(drawn);
    let minutes = minutes.unwrap_or(1.0 / 6.0);
    campaign(Budget { time: Duration::from_secs_f64(60.0 * minutes), seed });
}

/// Rows with gaps, of which the distance is a multiple of more vectors than the length: lanes that
/// took the vectors of a row in an order of their own took some of the gap.
#[test]
fn rows_of_an_odd_number_of_vectors_an_even_number_apart() {
    for (dtype, pass, rows, cols, gap) in
        [(F64, BackwardInto, 5, 82, 10), (F32, Forward, 3, 100, 12), (F32, Forward, 40, 12, 4)]
    {
        check(&Case {
            loss: CrossEntropy {
                targets: I64,
                weight: None,
                ignore_index: -100,
                label_smoothing: 0.0,
                z_loss: 0.0,
                bad: false,
            },
            dtype,
            reduction: Sum,
            pass,
            rows,
            cols,
            rank: 2,
            input: Ordinary,
            target: Ordinary,
            upstream: Ones,
            wanted: OfInput,
            gaps: [gap; 6],
            offsets: [0; 6],
            to_loss: false,
            twice: false,
            wrong: None,
            seed: 0,
        })
        .unwrap();
    }
}

/// Losses by element with gaps between their rows, where no other tensor has any: a mistake there,
/// made on purpose, escaped thousands of drawn cases.
#[test]
fn gaps_of_the_loss_alone() {
    check(&Case {
        loss: Pairs(Mse),
        dtype: F32,
        reduction: Unreduced,
        pass: ForwardInto,
        rows: 3,
        cols: 2,
        rank: 2,
        input: Ordinary,
        target: Ordinary,
        upstream: Ones,
        wanted: OfInput,
        gaps: [0, 0, 0, 3, 0, 0],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 0,
    })
    .unwrap();
}

/// A call that writes the gradient over its input, and is given that memory for its loss too.
#[test]
fn a_loss_over_the_input() {
    check(&Case {
        loss: Pairs(SmoothL1 { beta: 1.0 }),
        dtype: F32,
        reduction: Sum,
        pass: BothInPlace,
        rows: 1,
        cols: 1,
        rank: 2,
        input: Ordinary,
        target: Ordinary,
        upstream: Ones,
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: Some(Overlap(Loss)),
        seed: 0,
    })
    .unwrap();
}

/// The weighted probabilities of a row come to more than f64 can hold, so their sum times the
/// softmax is infinite, and so is what it is less.
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
        rank: 2,
        input: Ordinary,
        target: Bits,
        upstream: Each(Ordinary),
        wanted: OfBoth,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 4_372_043_763_223_550_027,
    })
    .unwrap();
}

/// 2λ · log Σ exp x · upstream is beyond f32, and what is left of the gradient is not.
#[test]
fn a_gradient_that_cancels_beyond_the_range() {
    check(&Case {
        loss: CrossEntropy {
            targets: I64,
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 1.0,
            bad: false,
        },
        dtype: F32,
        reduction: Sum,
        pass: BackwardInto,
        rows: 1,
        cols: 2,
        rank: 2,
        input: Ordinary,
        target: Ordinary,
        upstream: Each(Huge),
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 0,
    })
    .unwrap();
}

/// Two logits are further apart than f32 reaches, and their share of the loss is not.
#[test]
fn smoothing_of_logits_beyond_the_range() {
    check(&Case {
        loss: CrossEntropy {
            targets: I64,
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.5,
            z_loss: 0.0,
            bad: false,
        },
        dtype: Bf16,
        reduction: Unreduced,
        pass: Forward,
        rows: 32,
        cols: 3,
        rank: 2,
        input: Huge,
        target: Ordinary,
        upstream: Ones,
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 5206502880450947083,
    })
    .unwrap();
}

/// Terms of both signs, which are beyond f64 before they cancel.
#[test]
fn a_sum_that_cancels_beyond_the_range() {
    check(&Case {
        loss: Pairs(KlDiv { log_input: true, log_target: false }),
        dtype: F64,
        reduction: Sum,
        pass: Forward,
        rows: 1,
        cols: 21,
        rank: 2,
        input: Huge,
        target: Ordinary,
        upstream: Ones,
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 0,
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

/// Beside one logit the others come to a ten-trillionth, which log Σ exp x has, in full accuracy.
#[test]
fn the_logarithm_of_a_row_that_is_nearly_certain() {
    check(&Case {
        loss: CrossEntropy {
            targets: I64,
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            bad: false,
        },
        dtype: Bf16,
        reduction: Sum,
        pass: BackwardInto,
        rows: 63,
        cols: 2,
        rank: 2,
        input: Bits,
        target: Ordinary,
        upstream: Ones,
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 5604468264237773505,
    })
    .unwrap();
}

/// −∞ times a difference that f32 has as 0.
#[test]
fn an_infinite_weight_of_nearly_nothing() {
    check(&Case {
        loss: WeightedBce { weight: Some(All), pos_weight: None, values: MinusInfinity },
        dtype: Bf16,
        reduction: Sum,
        pass: BothInto,
        rows: 1,
        cols: 4235,
        rank: 2,
        input: Bits,
        target: Ordinary,
        upstream: Ones,
        wanted: OfBoth,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 3526438745624489,
    })
    .unwrap();
}

/// 0 · ∞ in f32, where a weight times a probability is below its range.
#[test]
fn a_share_below_the_range_of_an_impossible_class() {
    check(&Case {
        loss: CrossEntropy {
            targets: Probabilities,
            weight: Some(Tiny),
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            bad: false,
        },
        dtype: Bf16,
        reduction: Sum,
        pass: Forward,
        rows: 1,
        cols: 2,
        rank: 2,
        input: Special,
        target: Tiny,
        upstream: Ones,
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 3477207890281241696,
    })
    .unwrap();
}

/// Twice the upstream gradient is beyond f32.
#[test]
fn smoothing_with_an_upstream_near_the_end_of_the_range() {
    check(&Case {
        loss: CrossEntropy {
            targets: I64,
            weight: Some(Tiny),
            ignore_index: -100,
            label_smoothing: 1.0,
            z_loss: 0.0,
            bad: false,
        },
        dtype: F32,
        reduction: Unreduced,
        pass: BothInto,
        rows: 1,
        cols: 8,
        rank: 2,
        input: Ordinary,
        target: Ordinary,
        upstream: One(Huge),
        wanted: OfInput,
        gaps: [0; 6],
        offsets: [0; 6],
        to_loss: false,
        twice: false,
        wrong: None,
        seed: 14070989839132467581,
    })
    .unwrap();
}

/// The loss of the likeliest class, log(1 + r), is as good as `Number::LOSS` and r's exponentials
/// are.
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
