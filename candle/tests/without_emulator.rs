//! The error of a build without the emulator for tensors for which it has no kernels.
#![cfg(not(feature = "emulator"))]

use candle_core::{Device, Tensor};
use fused_loss_candle::{cross_entropy, mse, nll};

#[test]
fn the_cpu_without_the_emulator_is_refused() {
    let x = Tensor::new(&[[1.0_f32, 2.0], [3.0, 5.0]], &Device::Cpu).unwrap();
    let t = Tensor::new(&[0_u32, 1], &Device::Cpu).unwrap();
    for refused in [cross_entropy(&x, &t), mse(&x, &x)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("its feature `emulator`"), "{error}");
    }
    // Computed with candle's own operations.
    assert_eq!(nll(&x, &t).unwrap().to_scalar::<f32>().unwrap(), -3.0);
}
