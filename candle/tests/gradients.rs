//! Losses and gradients, compared with those of candle and with the formulas in candle's
//! operations.

#![cfg(any(feature = "cuda", feature = "emulator"))]

mod common;

use candle_core::{D, DType, Result, Tensor};
use candle_nn::loss as theirs;
use candle_nn::ops::{log_softmax, softmax};
use common::{
    assert_close, classes, device, numbers, probabilities, tolerance, with_gradient, with_gradients,
};
use fused_loss_candle as ours;
use fused_loss_candle::{
    BatchMean, BceWithLogits, CrossEntropy, Huber, KlDiv, Mean, Mse, RowMean, RowSum, SmoothL1,
    Sum, TensorLoss, reduction,
};

#[test]
fn losses_of_classes_are_candles() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        for (rows, cols) in [(1, 1), (5, 3), (33, 40), (3, 1025)] {
            let logits = numbers(&[rows, cols], 1, dtype, &device);
            let targets = classes(rows, cols, &device);
            let what = format!("{rows}x{cols} {dtype:?}");
            let [loss, gradient] = with_gradient(&ours::cross_entropy, &logits, &targets);
            let expected = with_gradient(&theirs::cross_entropy, &logits, &targets);
            assert_eq!(loss.dtype(), expected[0].dtype());
            assert_close(&loss, &expected[0], tolerance(dtype), &what);
            assert_close(&gradient, &expected[1], tolerance(dtype), &what);

            let log_probabilities = log_softmax(&logits, 1).unwrap();
            let [loss, gradient] = with_gradient(&ours::nll, &log_probabilities, &targets);
            let expected = with_gradient(&theirs::nll, &log_probabilities, &targets);
            assert_close(&loss, &expected[0], tolerance(dtype), &what);
            assert_close(&gradient, &expected[1], tolerance(dtype), &what);
        }
    }
}

#[test]
fn losses_of_elements_are_candles() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        for dims in [&[7][..], &[5, 33], &[2, 3, 4]] {
            let (x, t) = (numbers(dims, 2, dtype, &device), numbers(dims, 3, dtype, &device));
            // Both formulas of binary cross-entropy hold for any target, also outside 0 to 1.
            let bce = ours::binary_cross_entropy_with_logit;
            let their_bce = theirs::binary_cross_entropy_with_logit;
            let huber = |x: &Tensor, t: &Tensor| ours::huber(x, t, 0.7);
            let their_huber = |x: &Tensor, t: &Tensor| theirs::huber(x, t, 0.7);
            let pairs: [(&str, common::Loss<'_>, common::Loss<'_>); 3] = [
                ("mse", &ours::mse, &theirs::mse),
                ("huber", &huber, &their_huber),
                ("bce", &bce, &their_bce),
            ];
            for (name, our, their) in pairs {
                let what = format!("{name} {dims:?} {dtype:?}");
                let got = with_gradients(our, &x, &t);
                let expected = with_gradients(their, &x, &t);
                for (got, expected) in got.iter().zip(&expected) {
                    assert_close(got, expected, tolerance(dtype), &what);
                }
            }
        }
    }
}

/// Losses in half precision are computed in single precision: they are near those of the rounded
/// numbers in f64.
#[test]
fn half_precision_is_computed_in_single() {
    let device = device();
    for dtype in [DType::F16, DType::BF16] {
        let logits = numbers(&[17, 65], 4, dtype, &device);
        let targets = classes(17, 65, &device);
        let [loss, gradient] = with_gradient(&ours::cross_entropy, &logits, &targets);
        assert_eq!((loss.dtype(), gradient.dtype()), (DType::F32, dtype));
        let exact = logits.to_dtype(DType::F64).unwrap();
        let expected = with_gradient(&theirs::cross_entropy, &exact, &targets);
        assert_close(&loss, &expected[0], 1e-6, "the loss is not rounded to half precision");
        assert_close(&gradient, &expected[1], tolerance(dtype) / 10.0, "gradient");

        let target = numbers(&[17, 65], 5, dtype, &device);
        let got = with_gradients(&ours::mse, &logits, &target);
        let (x, t) = (exact, target.to_dtype(DType::F64).unwrap());
        let expected = with_gradients(&theirs::mse, &x, &t);
        assert_close(&got[0], &expected[0], 1e-6, "mse");
        assert_close(&got[1], &expected[1], tolerance(dtype) / 10.0, "gradient of mse");
    }
}

/// Cross-entropy in candle's operations: the loss of each row, and the divisor of a mean.
fn by_hand(
    logits: &Tensor,
    targets: &[i64],
    weight: &Tensor,
    [smoothing, z_loss]: [f64; 2],
    ignored: i64,
) -> Result<(Tensor, Tensor)> {
    let (classes, device) = (logits.dim(1)?, logits.device());
    let counts: Vec<f64> = targets.iter().map(|&target| f64::from(target != ignored)).collect();
    let safe: Vec<i64> = targets.iter().map(|&target| target.rem_euclid(classes as i64)).collect();
    let counts = Tensor::new(counts, device)?.to_dtype(logits.dtype())?;
    let safe = Tensor::new(safe, device)?;
    let log_p = log_softmax(logits, 1)?;
    let of_class = weight.index_select(&safe, 0)?;
    let nll = log_p.gather(&safe.unsqueeze(1)?, 1)?.squeeze(1)?.neg()?.mul(&of_class)?;
    let smooth = log_p.broadcast_mul(weight)?.sum(1)?.neg()?;
    let lse = logits.exp()?.sum(1)?.log()?;
    let entropy = ((nll * (1.0 - smoothing))? + (smooth * (smoothing / classes as f64))?)?;
    let weights = of_class.mul(&counts)?;
    let z = (lse.sqr()? * z_loss)?.mul(&counts)?;
    // In a mean, each part has its own divisor.
    let per_row = (entropy.mul(&counts)? + &z)?;
    let mean = (entropy.mul(&counts)?.sum_all()?.div(&weights.sum_all()?)?
        + z.sum_all()?.div(&counts.sum_all()?)?)?;
    Ok((per_row, mean))
}

#[test]
fn options_of_cross_entropy() {
    let device = device();
    let targets = [3_i64, 0, 2, -100, 7, 5, 2];
    let classes = Tensor::new(&targets, &device).unwrap();
    for dtype in [DType::F32, DType::F64] {
        let logits = numbers(&[7, 8], 6, dtype, &device);
        let ones = Tensor::ones(8, dtype, &device).unwrap();
        let weight = probabilities(&[8], 7, dtype, &device);
        for (weight, smoothing, z_loss, ignored) in [
            (&ones, 0.0, 0.0, -100),
            (&weight, 0.0, 0.0, -100),
            (&ones, 0.2, 0.0, -100),
            (&ones, 0.0, 0.01, -100),
            (&weight, 0.3, 0.02, -100),
        ] {
            let options = [smoothing, z_loss];
            let loss = CrossEntropy::new()
                .weight(weight)
                .label_smoothing(smoothing)
                .z_loss(z_loss)
                .ignore_index(ignored);
            let what = format!("{dtype:?} {options:?}");
            let both = |x: &Tensor| by_hand(x, &targets, weight, options, ignored);
            let mean = |x: &Tensor, _: &Tensor| both(x).map(|(_, mean)| mean);
            let rows = |x: &Tensor, _: &Tensor| both(x).map(|(rows, _)| rows);
            let sum = |x: &Tensor, t: &Tensor| rows(x, t)?.sum_all();
            let got = with_gradient(&|x, t| loss.loss(x, t), &logits, &classes);
            let expected = with_gradient(&mean, &logits, &classes);
            assert_close(&got[0], &expected[0], tolerance(dtype), &what);
            assert_close(&got[1], &expected[1], tolerance(dtype), &what);

            let summed = loss.clone().reduction(Sum);
            let got = with_gradient(&|x, t| summed.loss(x, t), &logits, &classes);
            let expected = with_gradient(&sum, &logits, &classes);
            assert_close(&got[0], &expected[0], tolerance(dtype), &what);
            assert_close(&got[1], &expected[1], tolerance(dtype), &what);

            // A separate upstream gradient for each row.
            let scale = numbers(&[7], 8, dtype, &device);
            let of_rows = loss.clone().reduction(reduction::Unreduced);
            assert_eq!(of_rows.loss(&logits, &classes).unwrap().dims(), [7]);
            let scaled = |x: &Tensor, t: &Tensor| of_rows.loss(x, t)?.mul(&scale)?.sum_all();
            let expected = |x: &Tensor, t: &Tensor| rows(x, t)?.mul(&scale)?.sum_all();
            let (got, expected) = (
                with_gradient(&scaled, &logits, &classes),
                with_gradient(&expected, &logits, &classes),
            );
            assert_close(&got[0], &expected[0], tolerance(dtype), &what);
            assert_close(&got[1], &expected[1], tolerance(dtype), &what);
        }
    }
}

#[test]
fn probabilities_as_targets_have_a_gradient_too() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let logits = numbers(&[5, 9], 9, dtype, &device);
        let targets = probabilities(&[5, 9], 10, dtype, &device);
        let expected = |x: &Tensor, t: &Tensor| {
            let smoothed = ((t * 0.9)? + 0.1 / 9.0)?;
            (log_softmax(x, 1)?.mul(&smoothed)?.sum_all()?.neg()? / 5.0)?.contiguous()
        };
        let loss = CrossEntropy::new().label_smoothing(0.1);
        let got = with_gradients(&|x, t| loss.loss(x, t), &logits, &targets);
        let expected = with_gradients(&expected, &logits, &targets);
        for (got, expected) in got.iter().zip(&expected) {
            assert_close(got, expected, tolerance(dtype), &format!("{dtype:?}"));
        }
        // With one gradient alone.
        let alone = with_gradient(&|t, x| loss.loss(x, t), &targets, &logits);
        assert_close(&alone[1], &expected[2], tolerance(dtype), "the target alone");
    }
}

/// Logits may have any number of dimensions, and targets have all but the last.
#[test]
fn batches_of_sequences() {
    let device = device();
    let logits = numbers(&[3, 4, 10], 11, DType::F32, &device);
    let targets = classes(12, 10, &device);
    let of_sequences = targets.reshape((3, 4)).unwrap();
    let got = with_gradient(&ours::cross_entropy, &logits, &of_sequences);
    let flat = logits.reshape((12, 10)).unwrap();
    let expected = with_gradient(&theirs::cross_entropy, &flat, &targets);
    assert_close(&got[0], &expected[0], 2e-6, "loss");
    assert_close(&got[1].reshape((12, 10)).unwrap(), &expected[1], 2e-6, "gradient");
    let rows = CrossEntropy::new().reduction(reduction::Unreduced).loss(&logits, &of_sequences);
    assert_eq!(rows.unwrap().dims(), [3, 4]);
}

/// Checks the reductions of a term.
fn assert_reductions(
    name: &str,
    losses: [&dyn TensorLoss; 5],
    term: common::Loss<'_>,
    x: &Tensor,
    t: &Tensor,
) {
    let rows = x.dim(0).unwrap();
    let (cols, dtype) = (x.elem_count() / rows, x.dtype());
    let scale = numbers(&[rows, cols], 12, dtype, x.device());
    let of_rows = scale.narrow(1, 0, 1).unwrap().squeeze(1).unwrap().contiguous().unwrap();
    let [none, sum, mean, row_sum, row_mean] = losses;
    let pairs: [(&str, common::Loss<'_>, common::Loss<'_>); 5] = [
        ("none", &|x, t| none.loss(x, t)?.mul(&scale)?.sum_all(), &|x, t| {
            term(x, t)?.mul(&scale)?.sum_all()
        }),
        ("sum", &|x, t| sum.loss(x, t), &|x, t| term(x, t)?.sum_all()),
        ("mean", &|x, t| mean.loss(x, t), &|x, t| term(x, t)?.mean_all()),
        ("row_sum", &|x, t| row_sum.loss(x, t)?.mul(&of_rows)?.sum_all(), &|x, t| {
            term(x, t)?.sum(D::Minus1)?.mul(&of_rows)?.sum_all()
        }),
        ("row_mean", &|x, t| row_mean.loss(x, t)?.mul(&of_rows)?.sum_all(), &|x, t| {
            term(x, t)?.mean(D::Minus1)?.mul(&of_rows)?.sum_all()
        }),
    ];
    for (reduction, our, their) in pairs {
        let what = format!("{name} {reduction} {dtype:?}");
        let (got, expected) = (with_gradients(our, x, t), with_gradients(their, x, t));
        for (got, expected) in got.iter().zip(&expected) {
            assert_close(got, expected, 4.0 * tolerance(dtype), &what);
        }
    }
}

macro_rules! reductions {
    ($loss:expr) => {
        [
            &$loss.reduction(reduction::Unreduced) as &dyn TensorLoss,
            &$loss.reduction(Sum),
            &$loss.reduction(Mean),
            &$loss.reduction(RowSum),
            &$loss.reduction(RowMean),
        ]
    };
}

#[test]
fn reductions_of_elements() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let x = numbers(&[4, 11], 13, dtype, &device);
        let t = numbers(&[4, 11], 14, dtype, &device);
        let squared = |x: &Tensor, t: &Tensor| (x - t)?.sqr();
        assert_reductions("mse", reductions!(Mse::new()), &squared, &x, &t);
        let huber = |beta: f64, scale: f64| {
            move |x: &Tensor, t: &Tensor| {
                let d = (x - t)?;
                let inside = d.abs()?.le(beta)?;
                let outside = ((d.abs()? - 0.5 * beta)? * (beta * scale))?;
                inside.where_cond(&(d.sqr()? * (0.5 * scale))?, &outside)
            }
        };
        let (loss, term) = (Huber::new(0.6), huber(0.6, 1.0));
        assert_reductions("huber", reductions!(loss), &term, &x, &t);
        let (loss, term) = (SmoothL1::new(0.6), huber(0.6, 1.0 / 0.6));
        assert_reductions("smooth_l1", reductions!(loss), &term, &x, &t);
    }
}

#[test]
fn weights_of_binary_cross_entropy() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let x = numbers(&[4, 11], 19, dtype, &device);
        let t = probabilities(&[4, 11], 20, dtype, &device);
        let weight = |dims: &[usize], seed| numbers(dims, seed, dtype, &device).abs().unwrap();
        let one = Tensor::ones((), dtype, &device).unwrap();
        let (column, row) = (weight(&[11], 21), weight(&[4, 1], 22));
        // Transposed, and from the middle of a larger tensor.
        let element = weight(&[11, 8], 23).t().unwrap().narrow(0, 2, 4).unwrap();
        let (two, plain) = ((&one * 2.0).unwrap(), BceWithLogits::new());
        let cases = [
            ("no weights", plain.clone(), &one, &one),
            ("weights of columns", plain.clone().weight(&column), &column, &one),
            ("a weight of positive targets", plain.clone().pos_weight(&two), &one, &two),
            ("both", plain.clone().weight(&row).pos_weight(&column), &row, &column),
            ("of elements", plain.weight(&element).pos_weight(&element), &element, &element),
        ];
        for (name, loss, weight, pos_weight) in cases {
            let term = |x: &Tensor, t: &Tensor| {
                let log_sigmoid = |x: &Tensor| (x.neg()?.exp()? + 1.0)?.log()?.neg();
                let positive = t.broadcast_mul(pos_weight)?.mul(&log_sigmoid(x)?)?;
                let negative = t.affine(-1.0, 1.0)?.mul(&log_sigmoid(&x.neg()?)?)?;
                (positive + negative)?.neg()?.broadcast_mul(weight)
            };
            assert_reductions(name, reductions!(loss.clone()), &term, &x, &t);
        }
    }
}

#[test]
fn divergence_in_its_four_forms() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let p = probabilities(&[4, 11], 15, dtype, &device);
        let t = probabilities(&[4, 11], 16, dtype, &device);
        for (log_input, log_target) in [(true, false), (false, false), (true, true), (false, true)]
        {
            let term = move |x: &Tensor, t: &Tensor| {
                let x = if log_input { x.clone() } else { x.log()? };
                let (p, log) =
                    if log_target { (t.exp()?, t.clone()) } else { (t.clone(), t.log()?) };
                p.mul(&(log - x)?)
            };
            let x = if log_input { p.log().unwrap() } else { p.clone() };
            let t = if log_target { t.log().unwrap() } else { t.clone() };
            let loss = KlDiv::new().log_input(log_input).log_target(log_target);
            let name = format!("kl_div {log_input} {log_target}");
            assert_reductions(&name, reductions!(loss), &term, &x, &t);
            let batch = loss.reduction(BatchMean);
            let got = with_gradients(&|x, t| batch.loss(x, t), &x, &t);
            let by_hand = |x: &Tensor, t: &Tensor| term(x, t)?.sum_all()? / 4.0;
            let expected = with_gradients(&by_hand, &x, &t);
            for (got, expected) in got.iter().zip(&expected) {
                assert_close(got, expected, 4.0 * tolerance(dtype), &name);
            }
        }
    }
}

/// Gradients pass on to earlier operations: a softmax's own backward pass takes the gradient of the
/// loss.
#[test]
fn gradients_go_on_through_what_is_behind_the_input() {
    let device = device();
    let x = numbers(&[6, 5], 17, DType::F64, &device);
    let t = probabilities(&[6, 5], 18, DType::F64, &device);
    let got = with_gradient(&|x, t| ours::mse(&softmax(x, 1)?, t), &x, &t);
    let expected = with_gradient(&|x, t| theirs::mse(&softmax(x, 1)?, t), &x, &t);
    assert_close(&got[0], &expected[0], 1e-12, "loss");
    assert_close(&got[1], &expected[1], 1e-12, "gradient");
}
