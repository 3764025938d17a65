//! Streams, devices and other users of a GPU, in a build for CUDA. Without a GPU, these tests test
//! nothing.
#![cfg(feature = "cuda")]

mod common;

use candle_core::{DType, Device, Result, Var};
use common::{assert_close, classes, numbers, values, with_gradient};
use fused_loss_candle as ours;

/// candle's default device, if there is a GPU.
fn gpu() -> Option<Device> {
    let device = Device::new_cuda(0).ok();
    if device.is_none() {
        eprintln!("no GPU: nothing is tested");
    }
    device
}

/// A loss of what candle has queued but not finished, whose gradient candle uses at once. Makes
/// twenty steps of gradient descent, to be compared with those of candle's own loss.
fn descent(device: &Device, loss: common::Loss<'_>) -> Result<Vec<f64>> {
    let x = numbers(&[512, 256], 1, DType::F32, device);
    let weight = Var::from_tensor(&(numbers(&[256, 512], 2, DType::F32, device) * 0.02)?)?;
    let targets = classes(512, 512, device);
    for _ in 0..20 {
        // So much work before the loss that a loss that does not wait would be wrong.
        let logits = (0..10).try_fold(x.matmul(&weight)?, |logits, _| logits.affine(1.0, 0.0))?;
        let gradients = loss(&logits, &targets)?.backward()?;
        let gradient = gradients.get(&weight).expect("the weight's gradient");
        weight.set(&(weight.as_tensor() - (gradient * 0.5)?)?)?;
    }
    let loss = loss(&x.matmul(&weight)?, &targets)?;
    Ok([values(&loss), values(&weight)].concat())
}

fn assert_descents_agree(device: &Device) {
    let ours = descent(device, &ours::cross_entropy).unwrap();
    let theirs = descent(device, &candle_nn::loss::cross_entropy).unwrap();
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!((ours - theirs).abs() < 1e-4, "expected {theirs}, got {ours}");
    }
}

#[test]
fn in_order_with_candles_work_on_its_streams() {
    let Some(device) = gpu() else { return };
    assert_descents_agree(&device);
    assert_descents_agree(&Device::new_cuda_with_stream(0).unwrap());
}

#[test]
fn in_order_on_many_threads() {
    let Some(device) = gpu() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let own = Device::new_cuda_with_stream(0).unwrap();
            let device = if thread % 2 == 0 { device.clone() } else { own };
            scope.spawn(move || assert_descents_agree(&device));
        }
    });
}

/// Devices come and go with their streams, and the driver reuses the handles of these streams.
#[test]
fn devices_that_are_gone() {
    if gpu().is_none() {
        return;
    }
    for round in 0..40 {
        let device = Device::new_cuda_with_stream(0).unwrap();
        let x = numbers(&[64, 100], round, DType::F32, &device);
        let t = classes(64, 100, &device);
        let got = with_gradient(&ours::cross_entropy, &x, &t);
        let expected = with_gradient(&candle_nn::loss::cross_entropy, &x, &t);
        assert_close(&got[0], &expected[0], 1e-5, "loss");
        assert_close(&got[1], &expected[1], 1e-5, "gradient");
    }
}

#[test]
fn every_gpu_of_the_machine() {
    for ordinal in 0.. {
        let Ok(device) = Device::new_cuda(ordinal) else { break };
        assert_descents_agree(&device);
    }
}

#[test]
fn tensors_of_two_devices_are_refused() {
    let (Some(one), Ok(other)) = (gpu(), Device::new_cuda(1)) else { return };
    let x = numbers(&[4, 5], 1, DType::F32, &one);
    ours::cross_entropy(&x, &classes(4, 5, &other)).unwrap_err();
    ours::cross_entropy(&x, &classes(4, 5, &Device::Cpu)).unwrap_err();
}
