//! Mean squared error: the results for every length, alignment and value.

use approx::assert_relative_eq;
use fused_loss::{Grads, Loss, Mse, Tensor, Workspace};
use proptest::prelude::*;
use tests::random::uniforms;
use tests::reference::mse;
use tests::{Placed, gpu, tensor};

/// Allowed relative error of a loss in f32.
const LOSS: f64 = 1e-6;
/// Allowed error of a gradient in f32, relative to its largest element.
const GRADIENT: f64 = 2e-6;

#[track_caller]
fn assert_gradient(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= GRADIENT * largest, "element {index}: expected {expected}, got {got}");
    }
}

#[test]
fn mean_is_the_sum_over_the_number_of_elements() {
    let stream = gpu().stream().unwrap();
    let (x, t) = (tensor::<f32>(&[1.0, 2.0, 3.0]), tensor::<f32>(&[0.0, 4.0, 3.0]));
    assert_eq!(Mse::sum().forward(&x, &t, &stream).unwrap().item().unwrap(), 5.0);
    assert_eq!(Mse::mean().forward(&x, &t, &stream).unwrap().item().unwrap(), 5.0 / 3.0);
}

#[test]
fn the_gradient_is_twice_the_difference_times_the_upstream_over_the_divisor() {
    let stream = gpu().stream().unwrap();
    let (x, t) = (tensor::<f32>(&[1.0, 2.0]), tensor::<f32>(&[0.0, 4.0]));
    let upstream = Tensor::from_slice(gpu(), [], &[8.0_f32]).unwrap();
    let gradient = Mse::mean().backward(&x, &t, &upstream, &stream).unwrap();
    assert_eq!(gradient.to_vec().unwrap(), [8.0, -16.0]);
    let gradient = Mse::sum().backward(&x, &t, &upstream, &stream).unwrap();
    assert_eq!(gradient.to_vec().unwrap(), [16.0, -32.0]);
}

#[test]
fn both_in_one_pass_are_the_two_for_an_upstream_of_one() {
    let stream = gpu().stream().unwrap();
    let (x, t) = (tensor::<f32>(&uniforms(1, 100_003)), tensor::<f32>(&uniforms(2, 100_003)));
    let one = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let (loss, gradient) = Mse::mean().forward_backward(&x, &t, &stream).unwrap();
    let alone = Mse::mean().forward(&x, &t, &stream).unwrap();
    assert_eq!(loss.item().unwrap().to_bits(), alone.item().unwrap().to_bits());
    let alone = Mse::mean().backward(&x, &t, &one, &stream).unwrap();
    assert_eq!(gradient.to_vec().unwrap(), alone.to_vec().unwrap());
}

#[test]
fn a_tensor_of_any_rank_is_its_elements() {
    let stream = gpu().stream().unwrap();
    let (x, t) = (uniforms(3, 24), uniforms(4, 24));
    let loss_of = |dims: &[usize]| {
        let x = Tensor::from_slice(gpu(), dims, &x).unwrap();
        let t = Tensor::from_slice(gpu(), dims, &t).unwrap();
        Mse::mean().forward(&x, &t, &stream).unwrap().item().unwrap()
    };
    assert_eq!(loss_of(&[2, 3, 4]), loss_of(&[24]));
    assert_eq!(loss_of(&[1, 24, 1, 1]), loss_of(&[24]));
}

#[test]
fn nothing_has_no_mean_and_a_sum_of_zero() {
    let stream = gpu().stream().unwrap();
    let nothing = Tensor::<f32>::zeros(gpu(), [0, 7]).unwrap();
    let (loss, gradient) = Mse::mean().forward_backward(&nothing, &nothing, &stream).unwrap();
    assert!(loss.item().unwrap().is_nan());
    assert_eq!(gradient.to_vec().unwrap(), []);
    assert_eq!(Mse::sum().forward(&nothing, &nothing, &stream).unwrap().item().unwrap(), 0.0);
}

#[test]
fn what_is_not_finite_stays_so() {
    let stream = gpu().stream().unwrap();
    let loss = |x: f32, t: f32| {
        let (x, t) = (tensor::<f32>(&[0.0, x, 1.0]), tensor::<f32>(&[0.5, t, 1.0]));
        let (loss, gradient) = Mse::sum().forward_backward(&x, &t, &stream).unwrap();
        (loss.item().unwrap(), gradient.to_vec().unwrap()[1])
    };
    let (value, gradient) = loss(f32::NAN, 0.0);
    assert!(value.is_nan() && gradient.is_nan());
    let (value, gradient) = loss(f32::INFINITY, f32::INFINITY);
    assert!(value.is_nan() && gradient.is_nan(), "inf - inf is NaN");
    assert_eq!(loss(f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::NEG_INFINITY));
    assert_eq!(loss(1e30, 0.0), (f32::INFINITY, 2e30), "overflows, with a finite gradient");
}

#[test]
fn a_mean_of_squares_beyond_the_largest_sum_is_finite() {
    let stream = gpu().stream().unwrap();
    let (x, t) = (tensor::<f32>(&[1e18; 4096]), tensor::<f32>(&[0.0; 4096]));
    let loss = Mse::mean().forward(&x, &t, &stream).unwrap().item().unwrap();
    assert_relative_eq!(f64::from(loss), f64::from(1e18_f32).powi(2), max_relative = LOSS);
}

#[test]
fn a_long_sum_of_small_squares_does_not_stall() {
    let stream = gpu().stream().unwrap();
    let len = 1_000_000;
    let (x, t) = (tensor::<f32>(&vec![1e-3; len]), tensor::<f32>(&vec![0.0; len]));
    let loss = Mse::sum().forward(&x, &t, &stream).unwrap().item().unwrap();
    assert_relative_eq!(
        f64::from(loss),
        f64::from(1e-3_f32).powi(2) * len as f64,
        max_relative = LOSS
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_length_alignment_and_scale(
        len in prop_oneof![0_usize..70, 2_000_usize..20_000, 60_000_usize..140_000],
        offsets in prop::array::uniform3(0_usize..4),
        alike in any::<bool>(),
        exponent in -12_i32..12,
        mean in any::<bool>(),
        seed in any::<u64>(),
        upstream in -4.0_f32..4.0,
    ) {
        let offsets = if alike { [offsets[0]; 3] } else { offsets };
        let scale = 10_f32.powi(exponent);
        let x: Vec<f32> = uniforms(seed, len).iter().map(|x| x * scale).collect();
        let t: Vec<f32> = uniforms(!seed, len).iter().map(|t| t * scale).collect();
        let (on_x, on_t) = (Placed::new(&x, offsets[0], f32::NAN), Placed::new(&t, offsets[1], f32::NAN));
        let guard = 7.0;
        let mut on_grad = Placed::new(&vec![f32::NAN; len], offsets[2], guard);
        let mut on_loss = Loss::<f32>::zeros(gpu(), []).unwrap();
        let on_upstream = Tensor::from_slice(gpu(), [], &[upstream]).unwrap();
        let (stream, mut workspace) = (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
        let divisor = if mean { len as f64 } else { 1.0 };

        let (input, target, workspace) = (on_x.view(), on_t.view(), &mut workspace);
        if mean {
            Mse::mean().forward_backward_into(input, target, &mut on_loss, on_grad.view_mut(), workspace, &stream).unwrap();
        } else {
            Mse::sum().forward_backward_into(input, target, &mut on_loss, on_grad.view_mut(), workspace, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        let loss = f64::from(on_loss.item().unwrap());
        if len > 0 {
            assert_relative_eq!(loss, mse::sum(&x, &t) / divisor, max_relative = LOSS);
        }
        assert_gradient(&on_grad.to_vec(), &mse::gradient(&x, &t, 1.0 / divisor));

        if mean {
            Mse::mean().backward_into(input, target, &on_upstream, on_grad.view_mut(), &stream).unwrap();
        } else {
            Mse::sum().backward_into(input, target, &on_upstream, on_grad.view_mut(), &stream).unwrap();
        }
        stream.synchronize().unwrap();
        assert_gradient(&on_grad.to_vec(), &mse::gradient(&x, &t, f64::from(upstream) / divisor));
    }
}

/// The gradient may overwrite the input, with or without an upstream gradient.
#[test]
fn a_gradient_in_place() {
    let (stream, mut workspace) = (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
    let t = tensor::<f32>(&[0.0, 4.0, 3.0]);
    let upstream = Tensor::from_slice(gpu(), [], &[8.0_f32]).unwrap();
    for scale in [1.0, 8.0] {
        let mut x = tensor::<f32>(&[1.0, 2.0, 3.0]);
        let mut loss = Loss::zeros(gpu(), []).unwrap();
        if scale == 1.0 {
            Mse::sum().forward_backward_in_place(&mut x, &t, &mut loss, &mut workspace, &stream)
        } else {
            Mse::sum().forward_backward_in_place_scaled(
                &mut x,
                &t,
                &mut loss,
                &upstream,
                &mut workspace,
                &stream,
            )
        }
        .unwrap();
        assert_eq!(loss.item().unwrap(), 5.0);
        assert_eq!(x.to_vec().unwrap(), [2.0, -4.0, 0.0].map(|by| by * scale));
    }
}

/// Any tensor of a call may have gaps between its rows while the others have none, also if rows are
/// so long that losses by row are computed in tiles.
#[test]
fn each_tensor_has_gaps_of_its_own() {
    let stream = gpu().stream().unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    for (shape, which) in
        [[5, 6], [3, 1_030]].into_iter().flat_map(|shape| (0..64).map(move |which| (shape, which)))
    {
        let len = shape[0] * shape[1];
        let draw =
            |by: usize| -> Vec<f32> { (0..len).map(|index| (index * by % 7) as f32).collect() };
        let (x, t, upstream) = (draw(3), draw(5), draw(2));
        let place = |tensor: usize, data: &[f32]| {
            Placed::rows(data, shape, shape[1] + 2 * (which >> tensor & 1), 0, -1.0)
        };
        let (on_x, on_t, on_upstream) = (place(0, &x), place(1, &t), place(2, &upstream));
        let zeros = vec![0.0; len];
        let (mut loss, mut by_x, mut by_t) = (place(3, &zeros), place(4, &zeros), place(5, &zeros));
        let grads = Grads::both(by_x.view_mut(), by_t.view_mut()).scaled_by(on_upstream.view());
        Mse::none()
            .forward_backward_into(
                on_x.view(),
                on_t.view(),
                loss.view_mut(),
                grads,
                &mut workspace,
                &stream,
            )
            .unwrap();
        stream.synchronize().unwrap();
        let (loss, by_x, by_t) = (loss.to_vec(), by_x.to_vec(), by_t.to_vec());
        for at in 0..len {
            let (off, times) = (x[at] - t[at], upstream[at]);
            let expected = (off * off, 2.0 * off * times, -2.0 * off * times);
            assert_eq!((loss[at], by_x[at], by_t[at]), expected, "{shape:?}, {which:06b}, {at}");
        }
    }
}
