//! Losses and gradients on the backend `Cuda`, with and without fusion, compared with burn's own on
//! the CPU. Without a GPU, or without the headers of the CUDA toolkit, which burn's own kernels
//! include, these tests test nothing, and `FUSED_LOSS_REQUIRE_GPU=1` makes that an error.
#![cfg(all(feature = "cuda", feature = "ndarray"))]

mod common;

use burn::backend::Autodiff;
use burn::backend::cuda::CudaDevice;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, IntDType, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::cuda::install::cuda_path;
use common::{
    Exact, assert_close, binary, class_types, classes, cross_entropies, elementwise, numbers,
    tensor, values,
};
use fused_loss_burn::{CrossEntropyLossConfig, FusedLossBackend, MseLoss, Reduction};

/// Operations that run one by one.
type Plain = CubeBackend<CudaRuntime, f32, i32, u8>;
/// The backend that programs name: with the feature `fusion`, burn fuses its operations.
#[cfg(feature = "fusion")]
type Cuda = burn::backend::Cuda<f32, i32>;

fn gpu() -> Option<CudaDevice> {
    let lacks = match fused_loss::Gpu::new(0) {
        Err(error) => error.to_string(),
        Ok(_) if cuda_path().is_none() => "no CUDA toolkit; see CUDA_PATH".to_owned(),
        Ok(_) => return Some(CudaDevice::default()),
    };
    let required = std::env::var_os("FUSED_LOSS_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(!required, "FUSED_LOSS_REQUIRE_GPU=1: {lacks}");
    eprintln!("nothing is tested: {lacks}");
    None
}

macro_rules! on_both {
    ($(fn $name:ident<$backend:ident>($device:ident) $body:block)+) => {
        mod plain {
            use super::*;
            $(#[test] fn $name() { super::$name::<Autodiff<Plain>>() })+
        }

        #[cfg(feature = "fusion")]
        mod fused {
            use super::*;
            $(#[test] fn $name() { super::$name::<Autodiff<Cuda>>() })+
        }

        $(fn $name<$backend>()
        where
            $backend: AutodiffBackend<Device = CudaDevice> + FusedLossBackend,
        {
            if let Some(device) = gpu() {
                let $device = &device;
                $body
            }
        })+
    };
}

on_both! {
    fn cross_entropy_is_burns<B>(device) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            cross_entropies::<B>(device, dtype);
        }
    }

    fn losses_of_elements_are_burns<B>(device) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            elementwise::<B>(device, dtype);
        }
    }

    fn binary_cross_entropy_is_burns<B>(device) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            binary::<B>(device, dtype);
        }
    }

    fn classes_of_any_type<B>(device) {
        use IntDType::*;
        class_types::<B>(device, &[I32, I16, I8, U64, U32, U16, U8]);
    }

    fn tensors_that_are_not_contiguous<B>(device) {
        let (wide, targets) = (numbers(7 * 101, 1), [3_i64, 0, 2, 90, 7, 5, 2]);
        let expected = views::<Exact>(&wide, &targets, &Default::default());
        let got = views::<B>(&wide, &targets, device);
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_close(got, expected, 4e-6, &format!("view {at}"));
        }
    }

    fn in_order_with_burns_work<B>(device) {
        assert_descents_agree::<B>(device);
    }

    fn in_order_on_many_threads<B>(device) {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_descents_agree::<B>(device));
            }
        });
    }

    fn tensors_of_other_threads<B>(device) {
        let logits = tensor::<B, 2>(&numbers(512 * 300, 1), [512, 300], DType::F32, device);
        let make = move || (0..20).fold(logits, |logits, _| logits * 1.01);
        let logits = std::thread::spawn(make).join().unwrap();
        let targets: Vec<i64> = (0..512).map(|row| row * 7 % 300).collect();
        let expected = {
            let x = tensor::<Exact, 2>(
                &values(logits.clone().inner()), [512, 300], DType::F64, &Default::default(),
            );
            let t = classes(&targets, [512], &Default::default());
            values(burn::nn::loss::CrossEntropyLossConfig::new().init(&x.device()).forward(x, t))
        };
        let loss = CrossEntropyLossConfig::new().init(device);
        let got = values(loss.forward(logits, classes(&targets, [512], device)).inner());
        assert_close(&got, &expected, 4e-6, "loss");
    }

    fn a_target_that_is_no_class_makes_the_loss_nan<B>(device) {
        let logits = tensor::<B, 2>(&numbers(6, 1), [2, 3], DType::F32, device).require_grad();
        let targets = classes(&[1, 3], [2], device);
        let loss = CrossEntropyLossConfig::new().init(device).forward(logits.clone(), targets);
        let gradients = loss.backward();
        assert!(values(loss.inner())[0].is_nan());
        let gradient = values(logits.grad(&gradients).unwrap());
        assert!(gradient[..3].iter().all(|x| x.is_finite()), "{gradient:?}");
        assert!(gradient[3..].iter().all(|x| x.is_nan()), "{gradient:?}");
    }
}

/// Losses and gradients of a part of each row, of a transposed tensor, and of one row that is
/// repeated for all.
fn views<B: AutodiffBackend + FusedLossBackend>(
    wide: &[f64],
    targets: &[i64],
    device: &B::Device,
) -> Vec<Vec<f64>> {
    let dtype = if device_is_exact::<B>() { DType::F64 } else { DType::F32 };
    let targets = classes(targets, [7], device);
    let loss = CrossEntropyLossConfig::new().init(device);
    let of_part = |x: Tensor<B, 2>| loss.forward(x.narrow(1, 3, 95), targets.clone());
    let of_transposed = |x: Tensor<B, 2>| {
        let transposed = x.narrow(1, 0, 95).transpose().reshape([95, 7]);
        loss.forward(transposed.transpose(), targets.clone())
    };
    let one = |x: Tensor<B, 2>| x.narrow(0, 0, 1).expand([7, 101]);
    let of_one = |x: Tensor<B, 2>| loss.forward(one(x), targets.clone());
    let squares = |x: Tensor<B, 2>| {
        MseLoss::new().forward(x.clone().transpose(), one(x).transpose(), Reduction::Sum) / 100
    };
    let losses: [&dyn Fn(Tensor<B, 2>) -> Tensor<B, 1>; 4] =
        [&of_part, &of_transposed, &of_one, &squares];
    losses
        .into_iter()
        .flat_map(|loss| {
            // A separate leaf, because `backward` removes the nodes that it visits from the tape.
            let x = tensor::<B, 2>(wide, [7, 101], dtype, device).require_grad();
            let loss = loss(x.clone());
            let gradients = (loss.clone() * 0.3).backward();
            [values(loss.inner()), values(x.grad(&gradients).unwrap())]
        })
        .collect()
}

fn device_is_exact<B: AutodiffBackend>() -> bool {
    std::any::TypeId::of::<B>() == std::any::TypeId::of::<Exact>()
}

/// A loss of what burn has queued but not finished, whose gradient burn uses at once, in twenty
/// steps of gradient descent. Only the loss uses the logits, so it overwrites them with their
/// gradient.
fn descent<B: AutodiffBackend>(
    device: &B::Device,
    loss: impl Fn(Tensor<B, 2>, Tensor<B, 1, burn::tensor::Int>) -> Tensor<B, 1>,
) -> Vec<f64> {
    let x = tensor::<B, 2>(&numbers(512 * 256, 1), [512, 256], DType::F32, device);
    let weight = tensor::<B, 2>(&numbers(256 * 512, 2), [256, 512], DType::F32, device);
    let mut weight = (weight * 0.02).detach();
    let targets: Vec<i64> = (0..512).map(|row| (row * 7 + 3) % 512).collect();
    let targets = classes::<B, 1>(&targets, [512], device);
    let mut losses = Vec::new();
    for _ in 0..20 {
        weight = weight.require_grad();
        // So much work before the loss that a loss that does not wait would be wrong.
        let logits = (0..10).fold(x.clone().matmul(weight.clone()), |logits, _| logits * 1.0);
        let loss = loss(logits, targets.clone());
        let gradients = loss.backward();
        let gradient = weight.grad(&gradients).expect("the weight's gradient");
        losses.push(loss.inner());
        weight = Tensor::from_inner(weight.inner() - gradient * 0.5);
    }
    let mut all = values(weight.inner());
    losses.into_iter().for_each(|loss| all.extend(values(loss)));
    all
}

fn assert_descents_agree<B>(device: &B::Device)
where
    B: AutodiffBackend + FusedLossBackend,
{
    let loss = CrossEntropyLossConfig::new().init(device);
    let ours = descent::<B>(device, |x, t| loss.forward(x, t));
    let loss = burn::nn::loss::CrossEntropyLossConfig::new().init(device);
    let theirs = descent::<B>(device, |x, t| loss.forward(x, t));
    // burn's matrix products may round to fewer bits, depending on its tuning.
    assert_close(&ours, &theirs, 2e-3, "descent");
}
