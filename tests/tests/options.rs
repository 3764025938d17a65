//! All losses take a reduction and options in the same way: through methods that return a changed
//! copy, so that a new option breaks no program.

use fused_loss::{
    BatchMean, CrossEntropy, Huber, KlDiv, Mean, Mse, RowMean, RowSum, SmoothL1, Sum, Tensor,
    Unreduced,
};
use tests::{gpu, tensor};

#[test]
fn a_reduction_is_a_method_of_every_loss() {
    assert_eq!(Mse::new(), Mse::mean());
    assert_eq!(Mse::new().reduction(Sum), Mse::sum());
    assert_eq!(Mse::new().reduction(Unreduced), Mse::none());
    assert_eq!(Mse::sum().reduction(Mean), Mse::mean());
    assert_eq!(Mse::new().reduction(RowSum).reduction, RowSum);
    let huber = Huber::new(0.5).reduction(Sum);
    assert_eq!((huber.delta, huber.reduction), (0.5, Sum));
    assert_eq!(Huber::new(0.5).delta(2.0), Huber::new(2.0));
    let smooth = SmoothL1::new(0.5).reduction(Unreduced);
    assert_eq!((smooth.beta, smooth.reduction), (0.5, Unreduced));
    assert_eq!(SmoothL1::new(0.5).beta(2.0), SmoothL1::new(2.0));
    assert_eq!(KlDiv::new(), KlDiv::batch_mean());
    assert_eq!(KlDiv::new().reduction(Mean), KlDiv::mean());
    let rows = KlDiv::new().log_input(false).log_target(true).reduction(RowMean);
    assert_eq!((rows.log_input, rows.log_target, rows.reduction), (false, true, RowMean));
    assert_eq!(KlDiv::sum().log_input(false).reduction(BatchMean).log_input(true), KlDiv::new());
}

#[test]
fn options_of_cross_entropy_are_methods() {
    let weight = tensor::<f32>(&[1.0, 2.0, 3.0]);
    let loss = CrossEntropy::new()
        .weight(&weight)
        .ignore_index(7)
        .label_smoothing(0.1)
        .z_loss(1e-4)
        .reduction(Sum);
    assert_eq!(loss.weight.unwrap().shape().dims(), [3]);
    assert_eq!((loss.ignore_index, loss.label_smoothing, loss.z_loss), (7, 0.1, 1e-4));
    assert_eq!(loss.reduction, Sum);
    let plain = CrossEntropy::<f32>::new();
    assert!(plain.weight.is_none());
    assert_eq!((plain.ignore_index, plain.label_smoothing, plain.z_loss), (-100, 0.0, 0.0));
    assert_eq!(plain.reduction, Mean);
}

/// A program may name the number type of the logits, with any reduction.
#[test]
fn a_loss_of_a_number_type_that_is_named() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::from_slice(gpu(), [2, 2], &[0.0_f32; 4]).unwrap();
    let classes = Tensor::from_slice(gpu(), [2], &[0_i64, 1]).unwrap();
    let sum = CrossEntropy::<f32>::sum().forward(&x, &classes, &stream).unwrap().item().unwrap();
    let mean = CrossEntropy::<f32>::mean().forward(&x, &classes, &stream).unwrap().item().unwrap();
    let none = CrossEntropy::<f32>::none().forward(&x, &classes, &stream).unwrap();
    assert!((sum - 2.0 * 2.0_f32.ln()).abs() < 1e-6 && (mean - 2.0_f32.ln()).abs() < 1e-6);
    assert_eq!(none.shape().dims(), [2]);
}

#[test]
fn reductions_of_one_loss_agree() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::from_slice(gpu(), [2, 3], &[0.5_f32, 1.0, 2.0, -1.0, 0.0, 4.0]).unwrap();
    let t = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    for huber in [Huber::new(1.0), Huber::new(3.0)] {
        let mean = huber.forward(&x, &t, &stream).unwrap().item().unwrap();
        let sum = huber.reduction(Sum).forward(&x, &t, &stream).unwrap().item().unwrap();
        let rows = huber.reduction(RowSum).forward(&x, &t, &stream).unwrap().to_vec().unwrap();
        let each = huber.reduction(Unreduced).forward(&x, &t, &stream).unwrap().to_vec().unwrap();
        assert!((sum - 6.0 * mean).abs() < 1e-5);
        assert!((sum - rows.iter().sum::<f32>()).abs() < 1e-5);
        assert!((sum - each.iter().sum::<f32>()).abs() < 1e-5);
    }
}
