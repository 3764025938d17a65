//! The losses that compare element by element, over dtypes, reductions, strides and alignments.
//! Mean squared error represents all of them, since they differ in the term alone.

use fused_loss::Unreduced;
use fused_loss::reduction::ElementwiseReduction;
use fused_loss::{
    BatchMean, BceWithLogits, Grads, Huber, KlDiv, Loss, Mean, Mse, RowMean, RowSum, SmoothL1, Sum,
    Tensor, Workspace,
};
use half::{bf16, f16};
use proptest::prelude::*;
use tests::number::Number;
use tests::random::uniforms;
use tests::reference::Total;
use tests::{Placed, gpu};

/// One random case.
#[derive(Clone, Debug)]
struct Case {
    shape: [usize; 2],
    /// Elements between the rows of input, target and gradients.
    gaps: [usize; 3],
    /// Elements between a 16-byte boundary and the first element.
    offsets: [usize; 3],
    seed: u64,
    with_upstream: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let shape = prop_oneof![
        (0_usize..6, 0_usize..5).prop_map(|(rows, cols)| [rows, cols]),
        (1_usize..40, 1_usize..200).prop_map(|(rows, cols)| [rows, cols]),
        (1_usize..6, 200_usize..6_000).prop_map(|(rows, cols)| [rows, cols]),
        (1_usize..3, 20_000_usize..50_000).prop_map(|(rows, cols)| [rows, cols]),
    ];
    let gaps = prop_oneof![
        Just([0; 3]),
        (0_usize..20).prop_map(|gap| [gap; 3]),
        prop::array::uniform3(0_usize..20)
    ];
    let offsets = prop_oneof![
        Just([0; 3]),
        (0_usize..8).prop_map(|offset| [offset; 3]),
        prop::array::uniform3(0_usize..8)
    ];
    (shape, gaps, offsets, any::<u64>(), any::<bool>()).prop_map(
        |(shape, gaps, offsets, seed, with_upstream)| Case {
            shape,
            gaps,
            offsets,
            seed,
            with_upstream,
        },
    )
}

/// How a reduction assigns elements to values of the loss, and what it divides each value by.
struct Reduced {
    values: usize,
    of: fn(usize, usize) -> usize,
    divisor: f64,
}

fn draw<T: Number>(seed: u64, len: usize) -> Vec<T> {
    uniforms(seed, len).into_iter().map(|value| T::round(f64::from(value))).collect()
}

/// Compares every method with float64.
fn check<T: Number, R: ElementwiseReduction>(case: &Case, reduction: R, reduced: &Reduced)
where
    R::Value<T>: Number,
{
    let &Case { shape, gaps, offsets, seed, with_upstream } = case;
    let [rows, cols] = shape;
    let len = rows * cols;
    let (x, t) = (draw::<T>(seed, len), draw::<T>(!seed, len));
    let nan = T::round(f64::NAN);
    let place = |data: &[T], which: usize, guard| {
        Placed::rows(data, shape, cols + gaps[which], offsets[which], guard)
    };
    let (on_x, on_t) = (place(&x, 0, nan), place(&t, 1, nan));
    let unwritten = vec![nan; len];
    let mut by_x = place(&unwritten, 2, T::round(7.0));
    let mut by_t = place(&unwritten, 2, T::round(7.0));
    let mut upstream: Vec<R::Value<T>> = draw(seed ^ 1, reduced.values);
    if !with_upstream {
        upstream.fill(R::Value::<T>::round(1.0));
    }
    let mse = Mse::new().reduction(reduction);
    let (stream, mut workspace) = (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
    let of_loss = reduction.shape(on_x.view().shape());
    let on_upstream = Tensor::from_slice(gpu(), of_loss, &upstream).unwrap();

    // The reference.
    let difference = |index: usize| x[index].wide() - t[index].wide();
    let mut totals = vec![Total::default(); reduced.values];
    let mut terms = vec![0.0; reduced.values];
    for index in 0..len {
        let value = (reduced.of)(index, cols);
        totals[value].add(difference(index).powi(2));
        terms[value] += 1.0;
    }
    // A mean of nothing is 0 ÷ 0, which is NaN here too.
    let losses: Vec<f64> = totals.iter().map(|total| total.value() / reduced.divisor).collect();
    let assert_loss = |got: &[R::Value<T>], what: &str| {
        assert_eq!(got.len(), losses.len(), "{what}");
        for (index, (&got, &expected)) in got.iter().zip(&losses).enumerate() {
            let rounded = R::Value::<T>::round(expected);
            let mean_term = if terms[index] > 0.0 { expected.abs() / terms[index] } else { 0.0 };
            let mut allowed = R::Value::<T>::LOSS * expected.abs().max(mean_term);
            if R::KIND == kernels_gpu::abi::reduction::ELEMENTS {
                allowed = R::Value::<T>::allowed(expected, expected, 1.0);
            }
            let fits = (got.wide() - expected).abs() <= allowed
                || format!("{got:?}") == format!("{rounded:?}");
            assert!(fits, "{what}, loss {index}: expected {expected}, got {got}");
        }
    };
    let assert_gradient = |got: &[T], sign: f64, what: &str| {
        let scale = |index| sign * upstream[(reduced.of)(index, cols)].wide() / reduced.divisor;
        let expected: Vec<f64> =
            (0..len).map(|index| 2.0 * difference(index) * scale(index)).collect();
        let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        for (index, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let allowed = T::allowed(expected, largest, scale(index));
            let off = (got.wide() - expected).abs();
            assert!(off <= allowed, "{what}, element {index}: expected {expected}, got {got}");
        }
    };

    let mut loss = Loss::zeros(gpu(), of_loss).unwrap();
    mse.forward_into(on_x.view(), on_t.view(), &mut loss, &mut workspace, &stream).unwrap();
    stream.synchronize().unwrap();
    let alone = loss.values().to_vec().unwrap();
    assert_loss(&alone, "forward");

    let grads = Grads::both(by_x.view_mut(), by_t.view_mut());
    mse.backward_into(on_x.view(), on_t.view(), &on_upstream, grads, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_gradient(&by_x.to_vec(), 1.0, "backward");
    assert_gradient(&by_t.to_vec(), -1.0, "backward, target");

    let mut loss = Loss::zeros(gpu(), of_loss).unwrap();
    let mut by_t = place(&unwritten, 2, T::round(7.0));
    let mut grads = Grads::target(by_t.view_mut());
    if with_upstream {
        grads = grads.scaled_by(&on_upstream);
    }
    let (input, target) = (on_x.view(), on_t.view());
    mse.forward_backward_into(input, target, &mut loss, grads, &mut workspace, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_loss(&loss.values().to_vec().unwrap(), "both");
    assert_gradient(&by_t.to_vec(), -1.0, "both, target");

    // The gradient overwrites its input.
    let mut over = place(&x, 0, nan);
    mse.backward_in_place(over.view_mut(), on_t.view(), &on_upstream, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_gradient(&over.to_vec(), 1.0, "in place");
    let (mut over, mut loss) = (place(&x, 0, nan), Loss::zeros(gpu(), of_loss).unwrap());
    let (input, workspace) = (over.view_mut(), &mut workspace);
    if with_upstream {
        mse.forward_backward_in_place_scaled(
            input,
            target,
            &mut loss,
            &on_upstream,
            workspace,
            &stream,
        )
        .unwrap();
    } else {
        mse.forward_backward_in_place(input, target, &mut loss, workspace, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_loss(&loss.values().to_vec().unwrap(), "both in place");
    assert_gradient(&over.to_vec(), 1.0, "both in place");
}

#[test]
fn a_short_name_is_the_loss_in_full() {
    assert_eq!(Mse::none().reduction, Unreduced);
    let huber = Huber::new(0.5);
    assert_eq!((huber.delta, huber.reduction), (0.5, Mean));
    let smooth = SmoothL1::new(0.5);
    assert_eq!((smooth.beta, smooth.reduction), (0.5, Mean));
    assert_eq!((Huber::new(1.0), SmoothL1::new(1.0)), Default::default());
    let KlDiv { log_input, log_target, reduction, .. } = KlDiv::batch_mean();
    assert_eq!((log_input, log_target, reduction), (true, false, BatchMean));
    assert_eq!(KlDiv::mean(), KlDiv::new().reduction(Mean));
    assert_eq!(KlDiv::sum(), KlDiv::new().reduction(Sum));
    assert_eq!(KlDiv::none(), KlDiv::new().reduction(Unreduced));
    let bce = BceWithLogits::<f32>::sum();
    assert_eq!(bce.reduction, Sum);
    assert!(bce.weight.is_none() && bce.pos_weight.is_none());
}

/// Checks every reduction of one dtype.
fn check_reductions<T: Number>(case: &Case)
where
    T::Loss: Number,
{
    let [rows, cols] = case.shape;
    let len = rows * cols;
    let scalar = |divisor| Reduced { values: 1, of: |_, _| 0, divisor };
    let of_row = |divisor| Reduced { values: rows, of: |index, cols| index / cols, divisor };
    let none = Reduced { values: len, of: |index, _| index, divisor: 1.0 };
    check::<T, _>(case, Mean, &scalar(len as f64));
    check::<T, _>(case, Sum, &scalar(1.0));
    check::<T, _>(case, RowSum, &of_row(1.0));
    check::<T, _>(case, RowMean, &of_row(cols as f64));
    check::<T, _>(case, Unreduced, &none);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f32_tensors(case in case()) {
        check_reductions::<f32>(&case);
    }

    #[test]
    fn f64_tensors(case in case()) {
        check_reductions::<f64>(&case);
    }

    #[test]
    fn f16_tensors(case in case()) {
        check_reductions::<f16>(&case);
    }

    #[test]
    fn bf16_tensors(case in case()) {
        check_reductions::<bf16>(&case);
    }
}

/// One upstream gradient may serve all losses, with a stride of 0.
#[test]
fn an_upstream_that_stands_for_all() {
    let (stream, shape) = (gpu().stream().unwrap(), [5, 70]);
    let (x, t) = (draw::<f32>(1, 350), draw::<f32>(2, 350));
    let (x, t) = (
        Tensor::from_slice(gpu(), shape, &x).unwrap(),
        Tensor::from_slice(gpu(), shape, &t).unwrap(),
    );
    let one = Tensor::from_slice(gpu(), [], &[0.5_f32]).unwrap();
    let whole = Mse::sum().backward(&x, &t, &one, &stream).unwrap().to_vec().unwrap();
    let expanded = one.view().expand(shape).unwrap();
    let each = Mse::new().reduction(Unreduced).backward(&x, &t, expanded, &stream).unwrap();
    assert_eq!(each.to_vec().unwrap(), whole);
    let expanded = one.view().expand([5]).unwrap();
    let rows = Mse::new().reduction(RowSum).backward(&x, &t, expanded, &stream).unwrap();
    assert_eq!(rows.to_vec().unwrap(), whole);
}

/// An upstream gradient scales f16 gradients before they are rounded, which would lose them.
#[test]
fn an_upstream_scales_before_gradients_are_rounded() {
    let stream = gpu().stream().unwrap();
    let len = 4096;
    let tiny = vec![f16::from_f32(0.01); len];
    let (x, t) =
        (Tensor::from_slice(gpu(), [len], &tiny).unwrap(), Tensor::zeros(gpu(), [len]).unwrap());
    let scale = Tensor::from_slice(gpu(), [], &[65536.0_f32]).unwrap();
    let (mut loss, mut gradient) =
        (Loss::zeros(gpu(), []).unwrap(), Tensor::<f16>::zeros(gpu(), [len]).unwrap());
    let grads = Grads::input(&mut gradient).scaled_by(&scale);
    let mut workspace = Workspace::new(gpu()).unwrap();
    Mse::mean().forward_backward_into(&x, &t, &mut loss, grads, &mut workspace, &stream).unwrap();
    let expected = 2.0 * f16::from_f32(0.01).to_f64() / len as f64 * 65536.0;
    assert_eq!(gradient.to_vec().unwrap()[17], f16::from_f64(expected));
}

/// 300² overflows f16: the reduced loss is right because it is f32, while the unreduced one is f16.
#[test]
fn halves_reduce_to_f32() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::from_slice(gpu(), [1], &[f16::from_f32(300.0)]).unwrap();
    let t = Tensor::zeros(gpu(), [1]).unwrap();
    assert_eq!(Mse::sum().forward(&x, &t, &stream).unwrap().item().unwrap(), 90000.0_f32);
    let none = Mse::new().reduction(Unreduced).forward(&x, &t, &stream).unwrap();
    assert_eq!(none.values().to_vec().unwrap(), [f16::INFINITY]);
}

/// With an infinite delta, Huber's loss is d²/2 for any difference.
#[test]
fn huber_of_infinite_delta() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::from_slice(gpu(), [4], &[f32::INFINITY, f32::NEG_INFINITY, 3.0, f32::NAN]);
    let (x, t) = (x.unwrap(), Tensor::<f32>::zeros(gpu(), [4]).unwrap());
    let huber = Huber::new(f64::INFINITY).reduction(Unreduced);
    let losses = huber.forward(&x, &t, &stream).unwrap().values().to_vec().unwrap();
    assert_eq!(losses[..3], [f32::INFINITY, f32::INFINITY, 4.5]);
    assert!(losses[3].is_nan());
    let sum = Huber::new(f64::INFINITY).reduction(Sum);
    let (_, gradient) = sum.forward_backward(&x, &t, &stream).unwrap();
    let gradient = gradient.to_vec().unwrap();
    assert_eq!(gradient[..3], [f32::INFINITY, f32::NEG_INFINITY, 3.0]);
    assert!(gradient[3].is_nan());
}
