//! What the tests share: each loss and option, compared with burn's own for the same numbers in
//! `f64` on the CPU.
#![allow(dead_code, reason = "each test has a part of it")]

use burn::backend::{Autodiff, NdArray};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Int, IntDType, Tensor, TensorData, set_default_dtypes};
use fused_loss_burn::{CrossEntropyLossConfig, FusedLossBackend};
use std::sync::Once;

/// The backend of the expected results.
pub(crate) type Exact = Autodiff<NdArray<f64>>;

/// Makes burn's own losses on the CPU create their weights and smoothed targets in `f64`. burn
/// requires this call before the first tensor.
fn exact_by_default() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let device = Default::default();
        set_default_dtypes::<Exact>(&device, FloatDType::F64, IntDType::I64).unwrap();
    });
}

/// Irregular numbers from −3 to 3.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64 * 6.0 - 3.0
    };
    (0..len).map(|_| next()).collect()
}

/// Rows of probabilities.
pub(crate) fn probabilities([rows, cols]: [usize; 2], seed: u64) -> Vec<f64> {
    let mut data: Vec<f64> = numbers(rows * cols, seed).into_iter().map(f64::exp).collect();
    for row in data.chunks_mut(cols) {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= sum);
    }
    data
}

pub(crate) fn tensor<B: Backend, const D: usize>(
    data: &[f64],
    dims: [usize; D],
    dtype: DType,
    device: &B::Device,
) -> Tensor<B, D> {
    exact_by_default();
    Tensor::<B, D>::from_data(TensorData::new(data.to_vec(), dims), device).cast(dtype)
}

pub(crate) fn classes<B: Backend, const D: usize>(
    data: &[i64],
    dims: [usize; D],
    device: &B::Device,
) -> Tensor<B, D, Int> {
    exact_by_default();
    Tensor::from_data(TensorData::new(data.to_vec(), dims), device)
}

/// The elements, in row-major order.
pub(crate) fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().to_vec().expect("the type is f64")
}

/// The tolerance for numbers that were rounded to this type.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        // burn stores options, and the divisor of a backward pass, as `f32`.
        DType::F64 => 1e-7,
        DType::F32 => 4e-6,
        DType::F16 => 4e-3,
        _ => 3e-2,
    }
}

#[track_caller]
pub(crate) fn assert_close(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * (1.0 + expected.abs());
        let same = got == expected || (got.is_nan() && expected.is_nan());
        assert!(close || same, "{what}: expected {expected} at {at}, got {got}");
    }
}

/// The loss, and the gradients of input and target of a sum in which it occurs twice.
fn step<B: AutodiffBackend, const D: usize>(
    input: Tensor<B, D>,
    target: Tensor<B, D>,
    loss: impl FnOnce(Tensor<B, D>, Tensor<B, D>) -> Tensor<B, 1>,
) -> (Vec<f64>, Vec<f64>, Option<Vec<f64>>) {
    let (input, target) = (input.require_grad(), target.require_grad());
    let before = values(input.clone().inner());
    let loss = loss(input.clone(), target.clone());
    assert_eq!(loss.dtype(), input.dtype(), "the loss is of the input's type");
    let gradients = (loss.clone() * 0.7 + loss.clone() * loss.clone() * 0.2).backward();
    let of_input = input.grad(&gradients).expect("the input requires a gradient");
    let of_target = target.grad(&gradients);
    let after = values(input.inner());
    assert_close(&after, &before, 0.0, "the input is what it was");
    (values(loss.inner()), values(of_input), of_target.map(values))
}

/// The numbers of a case.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: DType,
    pub(crate) input: &'a [f64],
    pub(crate) target: &'a [f64],
}

/// Compares a loss and its gradients. A loss that ignores its target has no gradient of it.
#[track_caller]
pub(crate) fn compare<B: AutodiffBackend, const D: usize>(
    case: Case<'_>,
    dims: [usize; D],
    device: &B::Device,
    ours: impl FnOnce(Tensor<B, D>, Tensor<B, D>) -> Tensor<B, 1>,
    theirs: impl FnOnce(Tensor<Exact, D>, Tensor<Exact, D>) -> Tensor<Exact, 1>,
) {
    let Case { name, dtype, input, target } = case;
    let tolerance = tolerance(dtype);
    let (x, t) = (tensor(input, dims, dtype, device), tensor(target, dims, dtype, device));
    // The numbers as they were rounded.
    let exact = |x: &Tensor<B, D>| {
        tensor(&values(x.clone().inner()), dims, DType::F64, &Default::default())
    };
    let (exact_x, exact_t) = (exact(&x), exact(&t));
    let got = step(x, t, ours);
    let expected = step(exact_x, exact_t, theirs);
    let what = |of: &str| format!("{name} of {dtype:?} {dims:?}: {of}");
    assert_close(&got.0, &expected.0, tolerance, &what("loss"));
    assert_close(&got.1, &expected.1, tolerance, &what("gradient"));
    match (got.2, expected.2) {
        (Some(got), Some(expected)) => {
            assert_close(&got, &expected, tolerance, &what("gradient of the target"));
        }
        (got, expected) => assert_eq!(got.is_some(), expected.is_some(), "{}", what("target")),
    }
}

/// The same expression with this package's losses and with burn's: `$of` is their module.
macro_rules! beside_burns {
    (
        $backend:ty, $case:expr, $dims:expr, $device:expr,
        $of:ident, |$x:ident, $t:ident| $loss:expr
    ) => {
        $crate::common::compare::<$backend, _>(
            $case,
            $dims,
            $device,
            {
                use fused_loss_burn as $of;
                |$x, $t| $loss
            },
            {
                use burn::nn::loss as $of;
                |$x, $t| $loss
            },
        )
    };
}

/// Whether burn creates tensors of this type by default. Not all options of its losses take others.
fn is_default<B: Backend>(device: &B::Device, dtype: DType) -> bool {
    exact_by_default();
    Tensor::<B, 1>::zeros([1], device).dtype() == dtype
}

/// Compares cross-entropy with all its options.
pub(crate) fn cross_entropies<B: AutodiffBackend + FusedLossBackend>(
    device: &B::Device,
    dtype: DType,
) {
    for dims @ [rows, cols] in [[1, 2], [5, 3], [33, 40], [3, 1025]] {
        let targets: Vec<i64> = (0..rows).map(|row| ((row * 7 + 3) % cols) as i64).collect();
        let (input, target) = (numbers(rows * cols, 1), vec![0.0; rows * cols]);
        let weights: Vec<f32> =
            numbers(cols, 2).iter().map(|&weight| 0.2 + weight.abs() as f32).collect();
        for smoothing in [None, Some(0.2)] {
            for weights in [None, Some(weights.clone())] {
                for pads in [None, Some(vec![1]), Some(vec![0, targets[0] as usize, 2])] {
                    let name = format!(
                        "cross-entropy, smoothing {smoothing:?}, weights {}, padding {pads:?}",
                        weights.is_some()
                    );
                    let case = Case { name: &name, dtype, input: &input, target: &target };
                    beside_burns!(B, case, dims, device, of, |x, _t| {
                        of::CrossEntropyLossConfig::new()
                            .with_smoothing(smoothing)
                            .with_weights(weights.clone())
                            .with_pad_tokens(pads.clone())
                            .init(&x.device())
                            .forward(x.clone(), classes(&targets, [rows], &x.device()))
                    });
                }
            }
        }
        if !is_default::<B>(device, dtype) {
            continue;
        }
        let input = probabilities(dims, 3);
        let case = Case { name: "of probabilities", dtype, input: &input, target: &target };
        beside_burns!(B, case, dims, device, of, |x, _t| {
            of::CrossEntropyLossConfig::new()
                .with_logits(false)
                .init(&x.device())
                .forward(x.clone(), classes(&targets, [rows], &x.device()))
        });
    }
}

/// Compares the losses of two tensors of one shape with all their options.
pub(crate) fn elementwise<B: AutodiffBackend + FusedLossBackend>(device: &B::Device, dtype: DType) {
    for dims in [[1, 1, 7], [5, 1, 33], [2, 3, 4]] {
        let len = dims.iter().product();
        let (input, target) = (numbers(len, 4), numbers(len, 5));
        let case = |name| Case { name, dtype, input: &input, target: &target };
        beside_burns!(B, case("mse"), dims, device, of, |x, t| {
            of::MseLoss::new().forward(x, t, of::Reduction::Auto)
        });
        beside_burns!(B, case("mse, sum"), dims, device, of, |x, t| {
            of::MseLoss::new().forward(x, t, of::Reduction::Sum) / 10
        });
        beside_burns!(B, case("mse, unreduced"), dims, device, of, |x, t| {
            let terms = of::MseLoss::new().forward_no_reduction(x, t);
            (terms.clone() * terms).mean()
        });
        beside_burns!(B, case("huber"), dims, device, of, |x, t| {
            of::HuberLossConfig::new(0.75).init().forward(x, t, of::Reduction::Mean)
        });
        beside_burns!(B, case("huber of 0"), dims, device, of, |x, t| {
            of::HuberLossConfig::new(0.0).init().forward(x, t, of::Reduction::Mean)
        });
        beside_burns!(B, case("huber, unreduced"), dims, device, of, |x, t| {
            let terms = of::HuberLossConfig::new(0.75).init().forward_no_reduction(x, t);
            (terms.clone() * terms).mean()
        });
        beside_burns!(B, case("smooth l1"), dims, device, of, |x, t| {
            let loss = of::SmoothL1LossConfig::new().with_beta(0.5).init();
            loss.forward_with_reduction(x, t, of::Reduction::Mean)
        });
        beside_burns!(B, case("smooth l1, some dimensions"), dims, device, of, |x, t| {
            let loss = of::SmoothL1LossConfig::new().init();
            let terms = loss.forward_reduce_dims(x, t, &[2, 0]);
            (terms.clone() * terms).mean()
        });

        let [batches, rows, cols] = dims;
        let input: Vec<f64> =
            probabilities([batches * rows, cols], 6).into_iter().map(f64::ln).collect();
        let target = probabilities([batches * rows, cols], 7);
        let case = |name| Case { name, dtype, input: &input, target: &target };
        beside_burns!(B, case("kl"), dims, device, of, |x, t| {
            of::KLDivLossConfig::new().init().forward(x, t, of::Reduction::Auto)
        });
        beside_burns!(B, case("kl, mean"), dims, device, of, |x, t| {
            of::KLDivLossConfig::new().init().forward(x, t, of::Reduction::Mean)
        });
        beside_burns!(B, case("kl, unreduced"), dims, device, of, |x, t| {
            let terms = of::KLDivLossConfig::new().init().forward_no_reduction(x, t);
            (terms.clone() * terms).mean()
        });
        let target: Vec<f64> = target.iter().map(|t| t.ln()).collect();
        let case = Case { name: "kl, log target", dtype, input: &input, target: &target };
        beside_burns!(B, case, dims, device, of, |x, t| {
            of::KLDivLossConfig::new().with_log_target(true).init().forward(
                x,
                t,
                of::Reduction::Sum,
            )
        });
    }
}

/// Compares binary cross-entropy with all its options.
pub(crate) fn binary<B: AutodiffBackend + FusedLossBackend>(device: &B::Device, dtype: DType) {
    let dims @ [rows, cols] = [6, 11];
    let (input, unused) = (numbers(66, 8), vec![0.0; 66]);
    let targets: Vec<i64> = (0..66).map(|at| i64::from(at * at % 7 < 3)).collect();
    let weights: Vec<f32> = (1..=cols).map(|weight| weight as f32 / 8.0).collect();
    for smoothing in [None, Some(0.2)] {
        for weights in [None, Some(weights.clone())] {
            let name = format!("bce, smoothing {smoothing:?}, weights {}", weights.is_some());
            let case = Case { name: &name, dtype, input: &input, target: &unused };
            beside_burns!(B, case, dims, device, of, |x, _t| {
                of::BinaryCrossEntropyLossConfig::new()
                    .with_logits(true)
                    .with_smoothing(smoothing)
                    .with_weights(weights.clone())
                    .init(&x.device())
                    .forward(x.clone(), classes(&targets, [rows, cols], &x.device()))
            });
            let weights = weights.map(|_| vec![0.5, 2.0]);
            beside_burns!(B, case, [66], device, of, |x, _t| {
                of::BinaryCrossEntropyLossConfig::new()
                    .with_logits(true)
                    .with_smoothing(smoothing)
                    .with_weights(weights.clone())
                    .init(&x.device())
                    .forward(x.clone(), classes(&targets, [66], &x.device()))
            });
        }
    }
    if !is_default::<B>(device, dtype) {
        return;
    }
    let input = probabilities(dims, 9);
    let case = Case { name: "of probabilities", dtype, input: &input, target: &unused };
    beside_burns!(B, case, dims, device, of, |x, _t| {
        of::BinaryCrossEntropyLossConfig::new()
            .init(&x.device())
            .forward(x.clone(), classes(&targets, [rows, cols], &x.device()))
    });
}

/// Classes of each of burn's integer types give the same loss.
pub(crate) fn class_types<B: AutodiffBackend + FusedLossBackend>(
    device: &B::Device,
    types: &[IntDType],
) {
    let logits = tensor::<B, 2>(&numbers(35, 10), [5, 7], DType::F32, device);
    let targets = classes::<B, 1>(&[6, 0, 3, 3, 1], [5], device);
    let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![3])).init(device);
    let of = |dtype| values(loss.forward(logits.clone(), targets.clone().cast(dtype)).inner());
    for &dtype in types {
        assert_close(&of(dtype), &of(IntDType::I64), 0.0, &format!("classes of {dtype:?}"));
    }
}
