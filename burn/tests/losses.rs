//! Losses and gradients on the backend `NdArray`, compared with burn's own. With the feature
//! `emulator` they are computed by the kernels; without it by burn's losses, which this crate's
//! modules then call.
#![cfg(feature = "ndarray")]

mod common;

use burn::backend::{Autodiff, NdArray};
use burn::tensor::{DType, IntDType};
use common::{binary, class_types, classes, cross_entropies, elementwise, numbers, tensor, values};
use fused_loss_burn::{CrossEntropyLossConfig, FusedLossBackend, MseLoss, Reduction};

type B = Autodiff<NdArray<f32>>;

#[test]
fn the_kernels_are_there_with_the_emulator_alone() {
    const { assert!(B::HAS_KERNELS == cfg!(feature = "emulator")) };
}

/// The types that are compared. burn's own losses mix their type with the default one, here `f64`.
fn dtypes() -> &'static [DType] {
    if B::HAS_KERNELS { &[DType::F32, DType::F64] } else { &[DType::F64] }
}

#[test]
fn cross_entropy_is_burns() {
    dtypes().iter().for_each(|&dtype| cross_entropies::<B>(&Default::default(), dtype));
}

#[test]
fn losses_of_elements_are_burns() {
    dtypes().iter().for_each(|&dtype| elementwise::<B>(&Default::default(), dtype));
}

#[test]
fn binary_cross_entropy_is_burns() {
    dtypes().iter().for_each(|&dtype| binary::<B>(&Default::default(), dtype));
}

#[test]
fn classes_of_any_type() {
    use IntDType::*;
    class_types::<B>(&Default::default(), &[I32, I16, I8, U64, U32, U16, U8]);
}

/// A tensor on the tape gets a gradient, also if it is both input and target. A tensor that is not
/// on the tape gets none.
#[test]
fn what_is_on_the_tape_gets_a_gradient() {
    let device = Default::default();
    let [x, t] = [1, 2].map(|seed| tensor::<B, 2>(&numbers(6, seed), [2, 3], DType::F32, &device));
    let loss = MseLoss::new;
    let x = x.require_grad();
    let gradients = loss().forward(x.clone(), t.clone(), Reduction::Mean).backward();
    assert!(x.grad(&gradients).is_some() && t.grad(&gradients).is_none());
    let gradients = loss().forward(t.clone(), x.clone(), Reduction::Mean).backward();
    assert!(x.grad(&gradients).is_some() && t.grad(&gradients).is_none());
    let gradients = loss().forward(x.clone(), x.clone(), Reduction::Sum).backward();
    assert_eq!(values(x.grad(&gradients).unwrap()), [0.0; 6]);
    let untracked = loss().forward(t.clone(), t, Reduction::Sum);
    assert!(!untracked.is_require_grad());
}

#[test]
#[should_panic(expected = "expected")]
fn targets_that_are_too_few_are_refused() {
    if !B::HAS_KERNELS {
        panic!("expected of burn, in other words");
    }
    let device = Default::default();
    let logits = tensor::<B, 2>(&numbers(6, 1), [2, 3], DType::F32, &device);
    let targets = classes::<B, 1>(&[2], [1], &device);
    let _ = CrossEntropyLossConfig::new().init(&device).forward(logits, targets);
}

/// A target that is no class makes the loss NaN, where burn's own loss would read elsewhere or
/// panic.
#[test]
#[cfg(feature = "emulator")]
fn a_target_that_is_no_class_makes_the_loss_nan() {
    let device = Default::default();
    let logits = tensor::<B, 2>(&numbers(6, 1), [2, 3], DType::F32, &device).require_grad();
    for bad in [3, -1, -100, i64::MAX] {
        let targets = classes::<B, 1>(&[1, bad], [2], &device);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(logits.clone(), targets);
        let gradients = loss.backward();
        assert!(loss.into_scalar().is_nan());
        let gradient = values(logits.grad(&gradients).unwrap());
        assert!(gradient[..3].iter().all(|x| x.is_finite()), "{gradient:?}");
        assert!(gradient[3..].iter().all(|x| x.is_nan()), "{gradient:?}");
    }
}
