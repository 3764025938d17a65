//! Helpers that the tests share.
#![allow(dead_code, reason = "each test has a part of it")]

use candle_core::{DType, Device, Result, Tensor, Var};

/// The machine's GPU in a build for CUDA that finds one, otherwise the CPU with the emulator.
pub(crate) fn device() -> Device {
    if cfg!(feature = "cuda")
        && let Ok(device) = Device::new_cuda(0)
    {
        return device;
    }
    if cfg!(not(feature = "emulator")) {
        panic!("the tests need a GPU or the feature `emulator`");
    }
    Device::Cpu
}

/// Irregular numbers from −3 to 3.
pub(crate) fn numbers(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = dims.iter().product();
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64 * 6.0 - 3.0
    };
    let data: Vec<f64> = (0..len).map(|_| next()).collect();
    Tensor::from_vec(data, dims, &Device::Cpu)
        .and_then(|tensor| tensor.to_dtype(dtype)?.to_device(device))
        .unwrap()
}

/// Rows of probabilities.
pub(crate) fn probabilities(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Tensor {
    let logits = numbers(dims, seed, DType::F64, &Device::Cpu);
    candle_nn::ops::softmax(&logits, dims.len() - 1)
        .and_then(|tensor| tensor.to_dtype(dtype)?.to_device(device))
        .unwrap()
}

/// Classes below `classes`, one for each row.
pub(crate) fn classes(rows: usize, classes: usize, device: &Device) -> Tensor {
    let data: Vec<u32> = (0..rows).map(|row| ((row * 7 + 3) % classes) as u32).collect();
    Tensor::from_vec(data, rows, device).unwrap()
}

/// The elements, in row-major order.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    let cpu = tensor.to_device(&Device::Cpu).unwrap();
    cpu.to_dtype(DType::F64).and_then(|cpu| cpu.flatten_all()?.to_vec1()).unwrap()
}

/// The tolerance for sums of this type in another order.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

#[track_caller]
pub(crate) fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(got.dims(), expected.dims(), "{what}: shape");
    let (got, expected) = (values(got), values(expected));
    for (at, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * (1.0 + expected.abs());
        let same = got == expected || (got.is_nan() && expected.is_nan());
        assert!(close || same, "{what}: expected {expected} at {at}, got {got}");
    }
}

pub(crate) type Loss<'a> = &'a dyn Fn(&Tensor, &Tensor) -> Result<Tensor>;

/// The loss, and the gradient of the input.
pub(crate) fn with_gradient(loss: Loss<'_>, input: &Tensor, target: &Tensor) -> [Tensor; 2] {
    let input = Var::from_tensor(input).unwrap();
    let value = loss(&input, target).unwrap();
    let gradient = value.backward().unwrap().remove(&input).expect("the input's gradient");
    [value, gradient]
}

/// The loss, and the gradients of input and target.
pub(crate) fn with_gradients(loss: Loss<'_>, input: &Tensor, target: &Tensor) -> [Tensor; 3] {
    let (input, target) = (Var::from_tensor(input).unwrap(), Var::from_tensor(target).unwrap());
    let value = loss(&input, &target).unwrap();
    let mut gradients = value.backward().unwrap();
    let of_input = gradients.remove(&input).expect("the input's gradient");
    let of_target = gradients.remove(&target).expect("the target's gradient");
    [value, of_input, of_target]
}
