//! Cases that were once findings: some showed a bug, and most showed that a reference or a limit
//! was wrong.

use super::*;
use tests::fuzz::LossOf;

/// Cross-entropy of classes, without weights and z-loss.
const fn classes(label_smoothing: f64) -> LossOf {
    let (targets, weight, ignore_index) = (I64, None, -100);
    CrossEntropy { targets, weight, ignore_index, label_smoothing, z_loss: 0.0, bad: false }
}

/// With gaps, the stride of rows may be a multiple of a larger power of two vectors than their
/// length. Lanes that read the vectors of a row in a permuted order must not read the gap.
#[test]
fn rows_of_an_odd_number_of_vectors_an_even_number_apart() {
    for (dtype, pass, rows, cols, gap) in
        [(F64, BackwardInto, 5, 82, 10), (F32, Forward, 3, 100, 12), (F32, Forward, 40, 12, 4)]
    {
        check(&Case { loss: classes(0.0), dtype, pass, rows, cols, gaps: [gap; 8], ..PLAIN })
            .unwrap();
    }
}

/// A call that overwrites its input with the gradient and also gets that memory for its loss is
/// refused.
#[test]
fn a_loss_over_the_input() {
    check(&Case {
        loss: Pairs(SmoothL1 { beta: 1.0 }),
        dtype: F32,
        pass: BothInPlace,
        rows: 1,
        cols: 1,
        wrong: Some(Overlap(Loss)),
        ..PLAIN
    })
    .unwrap();
}

/// 2λ · log Σ exp x · upstream overflows f32, but the gradient that is left after it cancels does
/// not.
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
        pass: BackwardInto,
        rows: 1,
        cols: 2,
        upstream: Each(Huge),
        ..PLAIN
    })
    .unwrap();
}

/// The distance of two logits overflows f32, but its share in the loss does not.
#[test]
fn smoothing_of_logits_beyond_the_range() {
    check(&Case {
        loss: classes(0.5),
        dtype: Bf16,
        reduction: Unreduced,
        pass: Forward,
        rows: 32,
        cols: 3,
        input: Huge,
        seed: 5206502880450947083,
        ..PLAIN
    })
    .unwrap();
}

/// Terms of both signs, which overflow f64 before they cancel.
#[test]
fn a_sum_that_cancels_beyond_the_range() {
    check(&Case {
        loss: Pairs(KlDiv { log_input: true, log_target: false }),
        dtype: F64,
        pass: Forward,
        rows: 1,
        cols: 21,
        input: Huge,
        ..PLAIN
    })
    .unwrap();
}

/// The other logits sum to a ten-trillionth of one logit's exponential, which log Σ exp x includes
/// with full accuracy.
#[test]
fn the_logarithm_of_a_row_that_is_nearly_certain() {
    check(&Case {
        loss: classes(0.0),
        dtype: Bf16,
        pass: BackwardInto,
        rows: 63,
        cols: 2,
        input: Bits,
        seed: 5604468264237773505,
        ..PLAIN
    })
    .unwrap();
}

/// −∞ times a difference that is 0 in f32.
#[test]
fn an_infinite_weight_of_nearly_nothing() {
    check(&Case {
        loss: WeightedBce { weight: Some(All), pos_weight: None, values: MinusInfinity },
        dtype: Bf16,
        pass: BothInto,
        rows: 1,
        cols: 4235,
        input: Bits,
        wanted: OfBoth,
        seed: 3526438745624489,
        ..PLAIN
    })
    .unwrap();
}

/// 0 · ∞ in f32, because a weight times a probability underflows.
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
        pass: Forward,
        rows: 1,
        cols: 2,
        input: Special,
        target: Tiny,
        seed: 3477207890281241696,
        ..PLAIN
    })
    .unwrap();
}

/// Twice the upstream gradient overflows f32.
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
        upstream: One(Huge),
        seed: 14070989839132467581,
        ..PLAIN
    })
    .unwrap();
}

/// An exponential of 3e-308 is 0 in the kernels, and the gradient is 1e6 times as large.
#[test]
fn exponentials_that_vanish_at_a_low_temperature() {
    check(&Case {
        loss: LogProb {
            targets: I64,
            temperature: 0.001,
            ignore_index: -100,
            bad: false,
            arrives: AtEntropy(Ones),
        },
        dtype: F64,
        pass: BothInto,
        rows: 1023,
        cols: 16,
        seed: 1984907495343998569,
        ..PLAIN
    })
    .unwrap();
}

/// Probabilities with gaps cannot overlap logits without gaps: their last rows would be outside any
/// memory.
#[test]
fn probabilities_over_logits_that_reach_less_far() {
    check(&Case {
        loss: CrossEntropy {
            targets: Probabilities,
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            bad: false,
        },
        pass: BackwardInPlace,
        rows: 6,
        cols: 1,
        gaps: [0, 4, 0, 0, 0, 0, 0, 0],
        wrong: Some(Overlap(Input)),
        ..PLAIN
    })
    .unwrap();
}

/// One lane adds up the 66 terms of a smoothed row, the largest of which have similar magnitudes.
#[test]
fn smoothing_of_logits_of_any_bits() {
    check(&Case {
        loss: classes(0.1),
        dtype: Bf16,
        reduction: Unreduced,
        rows: 7,
        cols: 66,
        input: Bits,
        seed: 14658475128704497711,
        ..PLAIN
    })
    .unwrap();
}

/// The smallest upstream gradient would be 0 if it were halved before it is divided by the
/// temperature.
#[test]
fn the_least_upstream_gradient_at_a_low_temperature() {
    check(&Case {
        loss: LogProb {
            targets: I64,
            temperature: 1e-30,
            ignore_index: -100,
            bad: false,
            arrives: AtLogProb,
        },
        dtype: F64,
        pass: BothInto,
        rows: 4,
        cols: 2,
        input: Equal,
        upstream: Each(Special),
        seed: 2016341658802023043,
        ..PLAIN
    })
    .unwrap();
}

/// x − m is −∞ in f64, but relative to a center that lags behind m it may be finite, and the loss
/// right.
#[test]
fn smoothing_of_logits_further_apart_than_the_range() {
    check(&Case {
        loss: classes(0.1),
        dtype: F64,
        reduction: Unreduced,
        cols: 512,
        input: Bits,
        offsets: [6, 0, 0, 0, 0, 0, 0, 0],
        seed: 3803656118816110636,
        ..PLAIN
    })
    .unwrap();
}

/// A factor just above 1 makes the largest upstream gradient infinite, and NaN where the
/// probability is 0.
#[test]
fn the_largest_upstream_gradient_of_a_loss() {
    check(&Case {
        loss: classes(0.0),
        dtype: F16,
        reduction: Unreduced,
        pass: BackwardInto,
        rows: 22,
        cols: 175,
        input: Huge,
        upstream: Each(Special),
        seed: 7241953375865931100,
        ..PLAIN
    })
    .unwrap();
}
