//! The public API: what a program that uses the library writes, and the errors that it gets.

use cust::error::CudaError;
// The library's exports hide nothing of the prelude.
use fused_loss::reduction::*;
use fused_loss::*;
use std::collections::HashSet;
use std::error::Error as _;
use std::hash::Hash;
use tests::{gpu, tensor};

#[test]
fn a_glob_import_hides_nothing_of_the_prelude() {
    let none: Option<u8> = None;
    let ok: std::result::Result<u8, u8> = Ok(1);
    assert_eq!((none, ok), (Option::None, Ok(1)));
}

#[test]
fn gpus_are_counted() {
    // Makes the process load its driver.
    let is_emulated = gpu().is_emulated();
    match Gpu::count() {
        Ok(count) => {
            assert!(count > 0 && !is_emulated);
            let beyond = Gpu::new(count).unwrap_err();
            assert_eq!(beyond, Error::NoDevice { ordinal: count, count });
        }
        Err(error) => {
            let no_driver = matches!(error, Error::NoDriver { .. } | Error::OtherDriver { .. });
            assert!(no_driver && is_emulated, "{error}");
        }
    }
}

#[test]
fn a_gpu_or_else_the_emulator() {
    let chosen = gpu();
    let device = Gpu::new_or_emulated(0).unwrap();
    assert_eq!(&device, chosen);
    assert_eq!(device.name(), gpu().name());
    let error = Gpu::new_or_emulated(1000).unwrap_err();
    assert!(matches!(error, Error::NoDevice { ordinal: 1000, .. }), "{error}");
}

#[test]
fn shapes_of_all_kinds() {
    let of = |tensor: Result<Tensor<f32>>| tensor.unwrap().shape().dims().to_vec();
    assert_eq!(of(Tensor::zeros(gpu(), 3)), [3]);
    assert_eq!(of(Tensor::zeros(gpu(), (2, 3))), [2, 3]);
    assert_eq!(of(Tensor::zeros(gpu(), [2, 3, 4])), [2, 3, 4]);
    assert_eq!(of(Tensor::zeros(gpu(), &[2, 3][..])), [2, 3]);
    assert_eq!(of(Tensor::zeros(gpu(), vec![2, 3])), [2, 3]);
    assert_eq!(of(Tensor::zeros(gpu(), ())), [0_usize; 0]);
    assert_eq!(Loss::<f32>::zeros(gpu(), ()).unwrap().item().unwrap(), 0.0);
}

/// Any loss of f32: its value or values, and the gradient.
fn of<'a, F: LossFunction<f32>>(
    function: &F,
    input: &'a Tensor<f32>,
    target: impl Into<F::Target<'a>>,
    stream: &Stream,
) -> (Vec<F::Value>, Vec<f32>) {
    let target = target.into();
    let (loss, gradient) = function.forward_backward(input, target, stream).unwrap();
    let (loss, gradient) = (loss.to_vec().unwrap(), gradient.to_vec().unwrap());
    assert_eq!(function.forward(input, target, stream).unwrap().to_vec().unwrap(), loss);

    let of_loss = if loss.len() == 1 { vec![] } else { vec![loss.len()] };
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mut into = Loss::zeros(gpu(), &of_loss).unwrap();
    function.forward_into(input, target, &mut into, &mut workspace, stream).unwrap();
    assert_eq!(into.to_vec().unwrap(), loss);

    let (mut both, mut by_input) =
        (Loss::zeros(gpu(), of_loss).unwrap(), Tensor::zeros(gpu(), input.shape()).unwrap());
    function
        .forward_backward_into(input, target, &mut both, &mut by_input, &mut workspace, stream)
        .unwrap();
    assert_eq!(
        (both.to_vec().unwrap(), by_input.to_vec().unwrap()),
        (loss.clone(), gradient.clone())
    );
    (loss, gradient)
}

#[test]
fn generic_code_takes_any_loss() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::from_slice(gpu(), (2, 2), &[0.5_f32, 0.5, 0.25, 0.75]).unwrap();
    let t = Tensor::from_slice(gpu(), (2, 2), &[0.5_f32, 0.5, 0.5, 0.5]).unwrap();
    let classes = Tensor::from_slice(gpu(), 2, &[0_i64, 1]).unwrap();
    assert_eq!(of(&Mse::mean(), &x, &t, &stream), (vec![0.03125], vec![0.0, 0.0, -0.125, 0.125]));
    assert_eq!(of(&Mse::new().reduction(RowSum), &x, &t, &stream).0, [0.0, 0.125]);
    assert_eq!(of(&Huber::new(1.0), &x, &t, &stream).0, [0.015625]);
    assert_eq!(of(&SmoothL1::new(1.0), &x, &t, &stream).0, [0.015625]);
    assert_eq!(of(&KlDiv::new().log_input(false), &t, &t, &stream).0, [0.0]);
    let half = tensor(&[0.5_f32]);
    let bce = BceWithLogits::sum().weight(&half);
    let expected: f64 =
        [0.5_f64, 0.5, 0.25, 0.75].iter().map(|x| 0.5 * (x.exp().ln_1p() - 0.5 * x)).sum();
    assert!((f64::from(of(&bce, &x, &t, &stream).0[0]) - expected).abs() < 1e-6);
    let (of_classes, gradient) = of(&CrossEntropy::mean(), &x, &classes, &stream);
    assert!(of_classes[0] > 0.0 && gradient[0] < 0.0);
    let (of_probabilities, _) = of(&CrossEntropy::none(), &x, &t, &stream);
    assert_eq!(of_probabilities.len(), 2);
}

#[test]
#[expect(clippy::mutable_key_type, reason = "what is hashed does not change")]
fn devices_streams_and_losses_are_compared_and_hashed() {
    fn is_value<T: Clone + std::fmt::Debug + Eq + Hash + Send + Sync>() {}
    is_value::<Gpu>();
    is_value::<Stream>();
    is_value::<Shape>();
    is_value::<Dtype>();
    is_value::<Unreduced>();
    is_value::<Mse<RowSum>>();
    is_value::<KlDiv>();
    fn is_clone<T: Clone + std::fmt::Debug + PartialEq>() {}
    is_clone::<Error>();
    is_clone::<DriverError>();
    is_clone::<Huber>();
    fn is_shown<T: std::fmt::Debug>() {}
    is_shown::<Grads<'_, f32, f32>>();
    is_shown::<Saved<f32>>();
    is_shown::<Targets<'_, f32>>();
    is_shown::<CrossEntropy<'_, f32>>();

    let (one, other) = (gpu().stream().unwrap(), gpu().stream().unwrap());
    assert!(one == one.clone() && one != other);
    let streams: HashSet<Stream> = [one.clone(), other, one].into_iter().collect();
    assert_eq!(streams.len(), 2);
    let devices: HashSet<Gpu> = [gpu().clone(), Gpu::new_or_emulated(0).unwrap()].into();
    assert_eq!(devices.len(), 1);
}

/// Memory prints its shape and its device, but no numbers, because they are on the device.
#[test]
fn memory_is_shown_by_its_shape() {
    let shown = |what: &dyn std::fmt::Debug| format!("{what:?}");
    let mut x = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let classes = Tensor::<i64>::zeros(gpu(), [2]).unwrap();
    assert_eq!(shown(&x.shape()), "[2, 3]");
    assert_eq!(x.shape().to_string(), "[2, 3]");
    assert!(shown(&x).starts_with("Tensor<f32>[2, 3] on "), "{x:?}");
    assert_eq!(shown(&x.view()), "View[2, 3] on device 0");
    assert_eq!(shown(&x.view_mut()), "ViewMut[2, 3] on device 0");
    let loss = Loss::<f32>::zeros(gpu(), [2]).unwrap();
    assert!(shown(&loss).starts_with("Loss(Tensor<f32>[2] on "), "{loss:?}");
    let of_classes = "Targets(i64 classes)[2] on device 0";
    assert_eq!(shown(&Targets::<f32>::from(&classes)), of_classes);
    assert_eq!(shown(&Classes::from(&classes)), of_classes);
    assert_eq!(shown(&Targets::from(&x)), "Targets(probabilities)[2, 3] on device 0");
    let saved = Saved::<f32>::zeros(gpu(), [2, 3]).unwrap();
    assert_eq!(shown(&saved), "Saved<f32> of logits [2, 3]");
}

/// The error of an allocation that is larger than any memory says how much was asked for, and for
/// what.
#[test]
fn short_memory_says_how_much_for_what() {
    let len = 1 << 38;
    let error = Tensor::<f64>::zeros(gpu(), (2, len / 2)).unwrap_err();
    let Error::OutOfMemory { what, bytes, device, source } = &error else { panic!("{error}") };
    assert_eq!(**what, format!("a tensor of f64 [2, {}]", len / 2));
    assert_eq!((*bytes, *device), (8 * len, 0));
    assert_eq!(source.name, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(
        error.to_string(),
        format!("no memory on device 0 for a tensor of f64 [2, {}]: {} bytes", len / 2, 8 * len)
    );
    let of_driver = error.source().and_then(|source| source.downcast_ref::<DriverError>());
    assert_eq!(of_driver, Some(source));
    // By itself, the same error is the driver's: its text names the call, and its source is the
    // code.
    let by_itself = Error::from(source.clone());
    assert_eq!(by_itself.to_string(), source.to_string());
    for error in [&by_itself as &dyn std::error::Error, source] {
        let code = error.source().and_then(|source| source.downcast_ref::<CudaError>());
        assert_eq!(code, Some(&CudaError::OutOfMemory));
    }
    let error = Loss::<f32>::zeros(gpu(), len * 4).unwrap_err();
    assert!(error.to_string().contains(&format!("for a loss of f32 [{}]: ", len * 4)), "{error}");
}
