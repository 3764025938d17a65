//! The library starts before candle in the same process, and is used again after it. In the other
//! tests candle starts first.

#![cfg(any(feature = "cuda", feature = "emulator"))]

mod common;

use candle_core::{DType, Tensor};
use fused_loss::{Gpu, Loss};

/// The mean of the squares of 1, 2 and 3, computed by the library alone.
fn by_the_library(gpu: &Gpu) -> f32 {
    let stream = gpu.stream().unwrap();
    let x = fused_loss::Tensor::from_slice(gpu, [3], &[1.0_f32, 2.0, 3.0]).unwrap();
    let zeros = fused_loss::Tensor::<f32>::zeros(gpu, [3]).unwrap();
    let loss: Loss<f32> = fused_loss::Mse::mean().forward(&x, &zeros, &stream).unwrap();
    loss.item().unwrap()
}

fn gpu() -> Gpu {
    match Gpu::new(0) {
        #[cfg(feature = "emulator")]
        Err(fused_loss::Error::NoDriver { .. }) => Gpu::emulated(0).unwrap(),
        other => other.unwrap(),
    }
}

#[test]
fn the_library_before_candle_and_after() {
    let gpu = gpu();
    let expected = by_the_library(&gpu);
    assert!((expected - 14.0 / 3.0).abs() < 1e-6);
    {
        let device = common::device();
        let x = Tensor::new(&[1.0_f32, 2.0, 3.0], &device).unwrap();
        let zeros = x.zeros_like().unwrap();
        let loss = fused_loss_candle::mse(&x, &zeros).unwrap();
        assert_eq!(loss.dtype(), DType::F32);
        assert_eq!(loss.to_scalar::<f32>().unwrap(), expected);
        let theirs = candle_nn::loss::mse(&x, &zeros).unwrap();
        assert!((theirs.to_scalar::<f32>().unwrap() - expected).abs() < 1e-6);
    }
    assert_eq!(by_the_library(&gpu), expected);
}
