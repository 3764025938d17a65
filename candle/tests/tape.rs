//! What candle's tape expects of an operation, and what users of candle expect of a loss.

#![cfg(any(feature = "cuda", feature = "emulator"))]

mod common;

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::loss as theirs;
use common::{assert_close, classes, device, numbers, values, with_gradient, with_gradients};
use fused_loss_candle as ours;
use fused_loss_candle::{
    BceWithLogits, CrossEntropy, KlDiv, Mse, Sum, TensorLoss, check, reduction,
};

fn logits() -> (Tensor, Tensor) {
    let device = device();
    (numbers(&[6, 10], 1, DType::F32, &device), classes(6, 10, &device))
}

#[test]
fn upstream_gradients_that_are_not_one() {
    let (x, t) = logits();
    let one = &with_gradient(&ours::cross_entropy, &x, &t)[1];
    let half = with_gradient(&|x, t| ours::cross_entropy(x, t)? * 0.5, &x, &t);
    assert_close(&half[1], &(one * 0.5).unwrap(), 1e-7, "half a loss");
    let squared = with_gradient(&|x, t| ours::cross_entropy(x, t)?.sqr(), &x, &t);
    let loss = f64::from(ours::cross_entropy(&x, &t).unwrap().to_scalar::<f32>().unwrap());
    assert_close(&squared[1], &(one * (2.0 * loss)).unwrap(), 1e-6, "a loss squared");
}

#[test]
fn sums_of_losses_and_a_loss_used_twice() {
    let (x, t) = logits();
    let zeros = x.zeros_like().unwrap();
    let two = |x: &Tensor, t: &Tensor| ours::cross_entropy(x, t)? + ours::mse(x, &zeros)?;
    let their_two = |x: &Tensor, t: &Tensor| theirs::cross_entropy(x, t)? + theirs::mse(x, &zeros)?;
    let (got, expected) = (with_gradient(&two, &x, &t), with_gradient(&their_two, &x, &t));
    assert_close(&got[1], &expected[1], 1e-6, "a sum of two");
    let twice = |x: &Tensor, t: &Tensor| {
        let loss = ours::cross_entropy(x, t)?;
        &loss + (&loss * 3.0)?
    };
    let (got, one) = (with_gradient(&twice, &x, &t), with_gradient(&ours::cross_entropy, &x, &t));
    assert_close(&got[1], &(&one[1] * 4.0).unwrap(), 1e-6, "a loss used twice");
}

#[test]
fn a_second_backward_has_the_same_gradients() {
    let (x, t) = logits();
    let x = Var::from_tensor(&x).unwrap();
    let loss = ours::cross_entropy(&x, &t).unwrap();
    let first = loss.backward().unwrap().remove(&x).unwrap();
    let second = loss.backward().unwrap().remove(&x).unwrap();
    assert_eq!(values(&first), values(&second));
    assert!(values(&first).iter().any(|&gradient| gradient != 0.0));
}

#[test]
fn nothing_is_on_the_tape_without_a_variable() {
    let (x, t) = logits();
    assert!(!ours::cross_entropy(&x, &t).unwrap().track_op());
    let x = Var::from_tensor(&x).unwrap();
    assert!(ours::cross_entropy(&x, &t).unwrap().track_op());
    assert!(!ours::cross_entropy(&x.detach(), &t).unwrap().track_op());
}

/// Every loss with a gradient is on candle's tape. Operations without a backward pass would end the
/// tape without an error.
#[test]
fn no_gradient_is_dropped() {
    let device = device();
    let (x, t) = (numbers(&[4, 3], 2, DType::F32, &device), classes(4, 3, &device));
    let like = numbers(&[4, 3], 3, DType::F32, &device);
    let weight = Var::from_tensor(&numbers(&[3, 3], 4, DType::F32, &device)).unwrap();
    let layer = candle_nn::Linear::new(weight.as_tensor().clone(), None);
    let losses: [(&str, common::Loss<'_>, &Tensor); 6] = [
        ("cross_entropy", &ours::cross_entropy, &t),
        ("nll", &ours::nll, &t),
        ("mse", &ours::mse, &like),
        ("huber", &|x, t| ours::huber(x, t, 1.0), &like),
        ("bce", &ours::binary_cross_entropy_with_logit, &like),
        ("kl_div", &|x, t| KlDiv::new().loss(x, &t.sqr()?), &like),
    ];
    for (name, loss, target) in losses {
        let value = loss(&layer.forward(&x).unwrap(), target).unwrap();
        let gradients = value.backward().unwrap();
        let gradient = gradients.get(&weight).unwrap_or_else(|| panic!("{name}: no gradient"));
        assert!(values(gradient).iter().any(|&gradient| gradient != 0.0), "{name}");
    }
    let [_, of_input, of_target] = with_gradients(&ours::mse, &x, &like);
    assert_close(&of_target, &of_input.neg().unwrap(), 0.0, "the target's gradient");
    // A gradient that does not exist is refused, not left out.
    let refused = CrossEntropy::new().weight(&weight.get(0).unwrap()).loss(&x, &t).unwrap_err();
    assert!(refused.to_string().contains("weight: expected a constant"), "{refused}");
    let refused = BceWithLogits::new().pos_weight(&weight.get(0).unwrap()).loss(&like, &like);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("pos_weight: expected a constant"), "{refused}");
}

/// Binary cross-entropy of large logits is finite, although their sigmoid rounds to 0 or 1, which
/// would make a logarithm infinite.
#[test]
fn large_logits_of_binary_cross_entropy_are_no_nan() {
    let device = device();
    let logits = [20.0, 1000.0, -1000.0, 1000.0, -1000.0, 0.0];
    let targets = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = Tensor::new(&logits, &device).unwrap().to_dtype(dtype).unwrap();
        let t = Tensor::new(&targets, &device).unwrap().to_dtype(dtype).unwrap();
        let got = with_gradients(&ours::binary_cross_entropy_with_logit, &x, &t);
        let expected = (2000.0 + 2_f64.ln() + (-20_f64).exp().ln_1p()) / 6.0;
        assert!((values(&got[0])[0] - expected).abs() < 1e-6 * expected, "{dtype:?}: {}", got[0]);
        // (σ(x) − y) / 6 and −x / 6.
        let of_20 = -1.0 / (1.0 + 20_f64.exp());
        let of_input = Tensor::new(&[of_20, 0.0, 0.0, 1.0, -1.0, -0.5], &device).unwrap();
        let of_input = (of_input / 6.0).unwrap();
        assert_close(&got[1], &of_input, common::tolerance(dtype), &format!("{dtype:?}"));
        let of_target = (x.neg().unwrap() / 6.0).unwrap();
        assert_close(&got[2], &of_target, common::tolerance(dtype), &format!("{dtype:?}"));
    }
}

/// Classes may have any integer type: those of candle's users are u32, and data sets have others.
#[test]
fn classes_of_any_integer_type() {
    let (x, t) = logits();
    let expected = with_gradient(&theirs::cross_entropy, &x, &t);
    for dtype in [DType::U32, DType::I64, DType::U8, DType::I32] {
        // On the CPU, because candle has no kernel for every conversion between integers.
        let converted = t.to_device(&Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let t = converted.to_device(x.device()).unwrap();
        let got = with_gradient(&ours::cross_entropy, &x, &t);
        assert_close(&got[0], &expected[0], 1e-6, &format!("{dtype:?}"));
        assert_close(&got[1], &expected[1], 1e-6, &format!("{dtype:?}"));
        let summed = CrossEntropy::new().reduction(Sum).loss(&x, &t).unwrap();
        assert_close(&(summed / 6.0).unwrap(), &expected[0], 1e-6, &format!("{dtype:?}"));
    }
}

/// Classes have no gradient, and the tape continues past them.
#[test]
fn classes_that_were_computed_from_a_variable() {
    let (x, t) = logits();
    let x = Var::from_tensor(&x).unwrap();
    let t = Var::from_tensor(&t.to_dtype(DType::F32).unwrap()).unwrap();
    let loss = ours::cross_entropy(&x, &t.to_dtype(DType::U32).unwrap()).unwrap();
    let gradients = loss.backward().unwrap();
    assert!(gradients.get(&x).is_some() && gradients.get(&t).is_none());
}

/// Padding counts neither in the sum nor in the divisor.
#[test]
fn padding_does_not_count() {
    let (x, t) = logits();
    let device = x.device();
    for (padding, dtype) in [(0_i64, DType::U32), (255, DType::U8), (-100, DType::I64)] {
        let mut padded: Vec<i64> = values(&t).iter().map(|&class| class as i64).collect();
        (padded[1], padded[4]) = (padding, padding);
        let rows: Vec<u32> = (0..6).filter(|&row| padded[row as usize] != padding).collect();
        let padded = Tensor::new(padded, device).unwrap().to_dtype(dtype).unwrap();
        let loss = CrossEntropy::new().ignore_index(padding);
        let [value, gradient] = with_gradient(&|x, t| loss.loss(x, t), &x, &padded);
        let rows = Tensor::new(rows, device).unwrap();
        let counted = |x: &Tensor, t: &Tensor| {
            theirs::cross_entropy(&x.index_select(&rows, 0)?, &t.index_select(&rows, 0)?)
        };
        let expected = with_gradient(&counted, &x, &t);
        assert_close(&value, &expected[0], 1e-6, "loss");
        assert_close(&gradient, &expected[1], 1e-6, "gradient");
        check(&value).unwrap();
    }
    let all = Tensor::new(&[-100_i64; 6], device).unwrap();
    let [value, gradient] = with_gradient(&ours::cross_entropy, &x, &all);
    assert!(values(&value)[0].is_nan(), "a mean of nothing");
    assert!(values(&gradient).iter().all(|&gradient| gradient == 0.0));
}

#[test]
fn a_target_that_is_no_class_is_told_of() {
    let (x, _) = logits();
    let device = x.device();
    for dtype in [DType::F32, DType::F64] {
        let x = x.to_dtype(dtype).unwrap();
        let t = Tensor::new(&[1_i64, 2, 10, 3, -1, 0], device).unwrap();
        let [loss, gradient] = with_gradient(&ours::cross_entropy, &x, &t);
        assert!(values(&loss)[0].is_nan());
        assert!(values(&gradient)[20..30].iter().all(|gradient| gradient.is_nan()));
        let told = check(&loss).unwrap_err().to_string();
        assert!(told.contains("expected a class from 0 to 9, got 10 in row 2"), "{told}");
        check(&loss.detach()).unwrap_err();
        let rows = CrossEntropy::new().reduction(reduction::Unreduced).loss(&x, &t).unwrap();
        let bad: Vec<bool> = values(&rows).iter().map(|row| row.is_nan()).collect();
        assert_eq!(bad, [false, false, true, false, true, false]);
        assert!(check(&rows).unwrap_err().to_string().contains("row 2"));
        let good = Tensor::new(&[1_i64, 2, 9, 3, -100, 0], device).unwrap();
        check(&ours::cross_entropy(&x, &good).unwrap()).unwrap();
        check(&CrossEntropy::new().reduction(reduction::Unreduced).loss(&x, &good).unwrap())
            .unwrap();
    }
    let t = Tensor::new(&[1_u32, 2, u32::MAX, 3, 4, 0], device).unwrap();
    let told = check(&ours::cross_entropy(&x, &t).unwrap()).unwrap_err().to_string();
    assert!(told.contains("got 4294967295 in row 2"), "{told}");
    assert!(values(&ours::nll(&x, &t).unwrap())[0].is_nan());
}

/// A tensor that is computed from a loss does not carry the loss's report on its targets.
#[test]
fn only_a_loss_can_be_checked() {
    let (x, t) = logits();
    let loss = ours::cross_entropy(&x, &t).unwrap();
    for other in [(&loss * 0.5).unwrap(), x.clone(), ours::mse(&x, &x).unwrap(), t] {
        let told = check(&other).unwrap_err().to_string();
        assert!(told.contains("got another tensor"), "{told}");
    }
}

/// The memory of a loss contains more than its value, which no operation of candle may notice.
#[test]
fn a_loss_is_a_tensor_like_others() -> Result<()> {
    let (x, t) = logits();
    let loss = ours::cross_entropy(&x, &t)?;
    let value = loss.to_scalar::<f32>()?;
    let plain = Tensor::new(value, x.device())?;
    assert_eq!(values(&loss.reshape(1)?.broadcast_as((2, 3))?), vec![f64::from(value); 6]);
    assert_eq!(values(&Tensor::stack(&[&loss, &plain], 0)?), vec![f64::from(value); 2]);
    assert_eq!(values(&loss.copy()?), values(&plain));
    assert_eq!(
        values(&loss.to_dtype(DType::F64)?.exp()?),
        values(&plain.to_dtype(DType::F64)?.exp()?)
    );
    let rows = CrossEntropy::new().reduction(reduction::Unreduced).loss(&x, &t)?;
    let mean = values(&rows).iter().sum::<f64>() / 6.0;
    assert!((values(&rows.mean_all()?)[0] - mean).abs() < 1e-6);
    assert_eq!(rows.to_vec1::<f32>()?.len(), 6);
    assert_eq!(values(&rows.narrow(0, 4, 2)?), values(&rows)[4..]);
    assert_eq!(values(&Tensor::cat(&[&rows, &rows], 0)?)[6..], values(&rows));
    Ok(())
}

#[test]
fn tensors_that_are_not_contiguous() {
    let (_, t) = logits();
    let device = t.device().clone();
    let wide = numbers(&[6, 16], 5, DType::F32, &device);
    let tall = numbers(&[10, 6], 6, DType::F32, &device);
    let one = numbers(&[1, 10], 7, DType::F32, &device);
    let every_other = numbers(&[6, 20], 8, DType::F32, &device).reshape((6, 10, 2)).unwrap();
    for (name, x) in [
        ("columns of a wider matrix", wide.narrow(1, 3, 10).unwrap()),
        ("transposed", tall.t().unwrap()),
        ("one row for all", one.broadcast_as((6, 10)).unwrap()),
        ("every other element", every_other.narrow(2, 1, 1).unwrap().squeeze(2).unwrap()),
    ] {
        let dense = x.contiguous().unwrap();
        let view = |x: &Tensor| -> Result<Tensor> {
            // The variable is dense, but the loss gets a tensor with the layout of `x`.
            Ok(match name {
                "transposed" => x.t()?.contiguous()?.t()?,
                "columns of a wider matrix" => Tensor::cat(&[x, x], 1)?.narrow(1, 0, 10)?,
                _ => x.clone(),
            })
        };
        let expected = with_gradient(&theirs::cross_entropy, &dense, &t);
        let got = with_gradient(&|x, t| ours::cross_entropy(&view(x)?, t), &dense, &t);
        assert_close(&got[0], &expected[0], 1e-6, name);
        assert_close(&got[1], &expected[1], 1e-6, name);
        assert_close(&ours::cross_entropy(&x, &t).unwrap(), &expected[0], 1e-6, name);
        let (squares, zeros) = (Mse::new().reduction(Sum), dense.zeros_like().unwrap());
        let expected = dense.sqr().unwrap().sum_all().unwrap();
        assert_close(&squares.loss(&x, &zeros).unwrap(), &expected, 1e-6, name);
        assert_close(&squares.loss(&zeros, &x).unwrap(), &expected, 1e-6, name);
    }
    // Targets that are a column.
    let pairs = Tensor::stack(&[&t, &t.zeros_like().unwrap()], 1).unwrap();
    let column = pairs.narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    let x = wide.narrow(1, 0, 10).unwrap();
    let expected = ours::cross_entropy(&x, &t).unwrap();
    assert_close(&ours::cross_entropy(&x, &column).unwrap(), &expected, 0.0, "a column of targets");
}

#[test]
fn no_rows() {
    let device = device();
    let x = Tensor::zeros((0, 5), DType::F32, &device).unwrap();
    let t = Tensor::zeros(0, DType::U32, &device).unwrap();
    assert!(values(&ours::cross_entropy(&x, &t).unwrap())[0].is_nan());
    assert_eq!(values(&CrossEntropy::new().reduction(Sum).loss(&x, &t).unwrap()), [0.0]);
    assert!(values(&ours::mse(&x, &x).unwrap())[0].is_nan());
}

#[test]
fn errors_name_what_does_not_fit() {
    let (x, t) = logits();
    let device = x.device();
    let short = t.narrow(0, 0, 5).unwrap();
    let halves = x.to_dtype(DType::F16).unwrap();
    let weight = Tensor::ones(9, DType::F32, device).unwrap();
    for (result, expected) in [
        (ours::cross_entropy(&x, &short), "target: expected shape [6], got [5]"),
        (ours::cross_entropy(&t, &t), "input: expected a tensor of F32, F64, F16 or BF16, got U32"),
        (
            ours::cross_entropy(&x, &halves),
            "probabilities of the logits' type F32, got a tensor of F16",
        ),
        (ours::mse(&x, &halves), "target: expected a tensor of the input's type F32, got F16"),
        (ours::mse(&x, &x.t().unwrap()), "target: expected shape [6, 10], got [10, 6]"),
        (ours::huber(&x, &x, 0.0), "delta: expected a positive number, got 0"),
        (
            BceWithLogits::new().weight(&weight).loss(&x, &x),
            "weight: expected shape [], [10], [6, 1] or [6, 10]: one for all, or one for each",
        ),
        (
            BceWithLogits::new().pos_weight(&halves).loss(&x, &x),
            "pos_weight: expected a tensor of F32, got one of F16",
        ),
        (ours::nll(&x, &short), "target: expected shape [6], got [5]"),
        (CrossEntropy::new().label_smoothing(2.0).loss(&x, &t), "label_smoothing: expected"),
        (CrossEntropy::new().weight(&weight).loss(&x, &t), "weight: expected shape [10], got [9]"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "expected {expected}, got {error}");
    }
}

/// Each thread has its own stream and scratch memory.
#[test]
fn threads() {
    let (x, t) = logits();
    let expected = with_gradient(&ours::cross_entropy, &x, &t);
    if let Device::Cuda(_) = x.device() {
        x.device().synchronize().unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let got = with_gradient(&ours::cross_entropy, &x, &t);
                    assert_eq!(values(&got[0]), values(&expected[0]));
                    assert_eq!(values(&got[1]), values(&expected[1]));
                }
            });
        }
    });
}

/// One thread computes a loss, and another runs its backward pass.
#[test]
fn backward_on_another_thread() {
    let (x, t) = logits();
    let x = Var::from_tensor(&x).unwrap();
    let loss = ours::cross_entropy(&x, &t).unwrap();
    let here = loss.backward().unwrap().remove(&x).unwrap();
    x.device().synchronize().unwrap();
    let there = std::thread::scope(|scope| {
        scope.spawn(|| values(&loss.backward().unwrap().remove(&x).unwrap())).join().unwrap()
    });
    assert_eq!(there, values(&here));
}
