//! Binary cross-entropy of logits, beyond the cases that golden.rs compares with PyTorch.

use fused_loss::reduction::ElementwiseReduction;
use fused_loss::{
    BceWithLogits, Error, Grads, Mean, RowMean, RowSum, Sum, Tensor, Unreduced, View,
};
use half::{bf16, f16};
use tests::number::Number;
use tests::random::uniforms;
use tests::reference::Total;
use tests::{Placed, gpu, tensor};

fn draw<T: Number>(seed: u64, len: usize, by: f64, plus: f64) -> Vec<T> {
    uniforms(seed, len).into_iter().map(|value| T::round(f64::from(value) * by + plus)).collect()
}

/// The shape of a weight: one number for all elements, or one per column, row or element.
#[derive(Clone, Copy, Debug)]
enum OneFor {
    All,
    Column,
    Row,
    Element,
}

impl OneFor {
    fn shape(self, [rows, cols]: [usize; 2]) -> Vec<usize> {
        match self {
            OneFor::All => vec![],
            OneFor::Column => vec![cols],
            OneFor::Row => vec![rows, 1],
            OneFor::Element => vec![rows, cols],
        }
    }

    fn of(self, element: usize, cols: usize) -> usize {
        match self {
            OneFor::All => 0,
            OneFor::Column => element % cols,
            OneFor::Row => element / cols,
            OneFor::Element => element,
        }
    }
}

/// The term of one element and its two derivatives, in float64.
fn term([x, y, w, p]: [f64; 4]) -> [f64; 3] {
    let (log_sigmoid, log_other) = (-(-x).exp().ln_1p(), -x.exp().ln_1p());
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    let value = -w * (p * y * log_sigmoid + (1.0 - y) * log_other);
    [value, w * ((1.0 + (p - 1.0) * y) * sigmoid - p * y), w * (log_other - p * log_sigmoid)]
}

/// Checks forward and backward of one reduction, with weights of one shape, in rows with or without
/// gaps.
fn check<T: Number, R: ElementwiseReduction>(
    shape: [usize; 2],
    gap: usize,
    shared: [OneFor; 2],
    reduction: R,
    divisor: f64,
) where
    R::Value<T>: Number,
{
    let [rows, cols] = shape;
    let len = rows * cols;
    let (x, y) = (draw::<T>(1, len, 6.0, 0.0), draw::<T>(2, len, 0.5, 0.5));
    let nan = T::round(f64::NAN);
    let place = |data: &[T]| Placed::rows(data, shape, cols + gap, 1, nan);
    let (on_x, on_y) = (place(&x), place(&y));
    let weights = shared.map(|shared| {
        let of_weight = shared.shape(shape);
        let values = draw::<T>(of_weight.len() as u64, of_weight.iter().product(), 0.75, 1.0);
        let on_gpu = Tensor::from_slice(gpu(), &of_weight, &values).unwrap();
        (values, on_gpu)
    });
    let [(w, on_w), (p, on_p)] = &weights;
    let loss = BceWithLogits::new().weight(on_w).pos_weight(on_p).reduction(reduction);
    let expected: Vec<[f64; 3]> = (0..len)
        .map(|at| {
            let [w_at, p_at] = shared.map(|shared| shared.of(at, cols));
            term([x[at].wide(), y[at].wide(), w[w_at].wide(), p[p_at].wide()])
        })
        .collect();

    let stream = gpu().stream().unwrap();
    let got = loss.forward(on_x.view(), on_y.view(), &stream).unwrap();
    let got = got.values().to_vec().unwrap();
    let per = len / got.len();
    for (at, &got) in got.iter().enumerate() {
        let terms = expected[at * per..(at + 1) * per].iter().map(|[term, ..]| *term);
        let expected = terms.sum::<Total>().value() / divisor;
        let allowed = match size_of::<R::Value<T>>() {
            2 => R::Value::<T>::allowed(expected, expected, 1.0),
            _ => R::Value::<T>::LOSS * expected.abs(),
        };
        assert!((got.wide() - expected).abs() <= allowed, "{shared:?}: {expected}, got {got}");
    }

    let upstream = draw::<R::Value<T>>(5, got.len(), 1.0, 0.0);
    let on_upstream = Tensor::from_slice(gpu(), reduction.shape(on_x.view().shape()), &upstream);
    let on_upstream = on_upstream.unwrap();
    let (mut by_x, mut by_y) = (place(&vec![nan; len]), place(&vec![nan; len]));
    let grads = Grads::both(by_x.view_mut(), by_y.view_mut());
    loss.backward_into(on_x.view(), on_y.view(), &on_upstream, grads, &stream).unwrap();
    stream.synchronize().unwrap();
    for (which, got) in [by_x.to_vec(), by_y.to_vec()].into_iter().enumerate() {
        let scale = |at: usize| upstream[at / per].wide() / divisor;
        let of = |at: usize| expected[at][1 + which] * scale(at);
        let largest = (0..len).map(|at| of(at).abs()).fold(0.0, f64::max);
        for (at, got) in got.iter().enumerate() {
            // 16-bit types allow for an error of the scale. Weights and logits reach 10 times the
            // scale.
            let off = (got.wide() - of(at)).abs();
            let allowed = T::allowed(of(at), largest, 10.0 * scale(at));
            assert!(off <= allowed, "{shared:?}, {which}, {at}: {}, got {got}", of(at));
        }
    }
}

fn check_all<T: Number>()
where
    T::Loss: Number,
{
    use OneFor::{All, Column, Element, Row};
    let others = [[All, Column], [Column, Row], [Row, Element], [Element, All]];
    let alike = [All, Column, Row, Element].map(|both| [both; 2]);
    for shape in [[1, 1], [3, 5], [40, 33], [2, 3000]] {
        let [rows, cols] = shape;
        let with_gaps = others.map(|shared| (3, shared));
        for (gap, shared) in with_gaps.into_iter().chain(alike.map(|shared| (0, shared))) {
            check::<T, _>(shape, gap, shared, Unreduced, 1.0);
            check::<T, _>(shape, gap, shared, Sum, 1.0);
            check::<T, _>(shape, gap, shared, Mean, (rows * cols) as f64);
            check::<T, _>(shape, gap, shared, RowSum, 1.0);
            check::<T, _>(shape, gap, shared, RowMean, cols as f64);
        }
    }
}

#[test]
fn weights_of_every_shape_in_f32() {
    check_all::<f32>();
}

#[test]
fn weights_of_every_shape_in_f64() {
    check_all::<f64>();
}

#[test]
fn weights_of_every_shape_in_f16() {
    check_all::<f16>();
}

#[test]
fn weights_of_every_shape_in_bf16() {
    check_all::<bf16>();
}

/// A weight that is the same for all elements gives the same result as its written-out tensor, so
/// the kernels for rows and for dense tensors agree.
#[test]
fn a_weight_that_is_written_out_changes_nothing() {
    let (stream, shape) = (gpu().stream().unwrap(), [7, 300]);
    let x = Tensor::from_slice(gpu(), shape, &draw::<f32>(1, 2100, 8.0, 0.0)).unwrap();
    let y = Tensor::from_slice(gpu(), shape, &draw::<f32>(2, 2100, 0.5, 0.5)).unwrap();
    let one = tensor(&[1.5_f32]);
    let each = Tensor::from_slice(gpu(), shape, &[1.5; 2100]).unwrap();
    let expanded = one.view().expand(shape).unwrap();
    let of = |weight: View<'_, f32>| {
        let loss = BceWithLogits::none().pos_weight(weight);
        let (loss, gradient) = loss.forward_backward(&x, &y, &stream).unwrap();
        (loss.to_vec().unwrap(), gradient.to_vec().unwrap())
    };
    let expected = of(one.view());
    assert_eq!(of(each.view()), expected);
    assert_eq!(of(expanded), expected);
}

/// A confident and correct prediction has a nonzero loss in f32 too: e⁻²⁰, and not −20 + 20 = 0.
#[test]
fn a_small_loss_is_not_lost() {
    let stream = gpu().stream().unwrap();
    let (x, y) = (tensor(&[-20.0_f32, 20.0]), tensor(&[0.0_f32, 1.0]));
    let losses = BceWithLogits::none().forward(&x, &y, &stream).unwrap().to_vec().unwrap();
    let expected = (-20.0_f64).exp().ln_1p();
    for loss in losses {
        assert!((f64::from(loss) / expected - 1.0).abs() < 1e-6, "{loss}");
    }
}

/// Losses and gradients have full relative accuracy for all logits down to where e^−|x| is no
/// longer a normal number.
#[test]
fn small_losses_and_gradients_are_as_accurate_as_others() {
    let stream = gpu().stream().unwrap();
    let len = 87 * 64;
    let x: Vec<f32> =
        (0..len).map(|at| at as f32 / 64.0 * if at / 8 % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let y: Vec<f32> = x.iter().map(|&x| f32::from(u8::from(x >= 0.0))).collect();
    let (on_x, on_y) = (tensor(&x), tensor(&y));
    let (losses, gradients) =
        BceWithLogits::none().forward_backward(&on_x, &on_y, &stream).unwrap();
    let (losses, gradients) = (losses.to_vec().unwrap(), gradients.to_vec().unwrap());
    let alone = BceWithLogits::none().forward(&on_x, &on_y, &stream).unwrap().to_vec().unwrap();
    assert_eq!(alone, losses);
    for at in 0..len {
        let (x, e) = (f64::from(x[at]), f64::from(-x[at].abs()).exp());
        let (loss, slope) = (e.ln_1p(), e / (1.0 + e) * if x >= 0.0 { -1.0 } else { 1.0 });
        assert!(
            (f64::from(losses[at]) / loss - 1.0).abs() < 1e-6,
            "the loss of {x}: {}",
            losses[at]
        );
        let gradient = gradients[at];
        assert!(
            (f64::from(gradient) / slope - 1.0).abs() < 1e-6,
            "the gradient of {x}: {gradient}"
        );
    }
}

/// A weight of the wrong shape is refused by every call, before memory for a result is allocated.
#[test]
fn weights_that_do_not_fit_are_refused() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [2, 3, 4]).unwrap();
    let wrong = |shape: &[usize]| Tensor::<f32>::zeros(gpu(), shape).unwrap();
    for shape in [&[3][..], &[3, 4], &[2, 3], &[2, 3, 4, 1], &[2, 1, 4]] {
        let error = BceWithLogits::mean().weight(&wrong(shape)).forward(&x, &x, &stream);
        assert_eq!(
            error.unwrap_err().to_string(),
            format!(
                "weight: expected shape [], [4], [2, 3, 1] or [2, 3, 4]: one for all, or one for \
                 each column, row or element, got {shape:?}"
            )
        );
        let wrong = wrong(shape);
        let loss = BceWithLogits::mean().pos_weight(&wrong);
        let Err(Error::Shape { argument, .. }) = loss.forward_backward(&x, &x, &stream) else {
            panic!("a pos_weight of {shape:?} is accepted");
        };
        assert_eq!(argument, "pos_weight");
    }
}

#[test]
fn a_gradient_over_a_weight_is_refused() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let mut gradient = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    // SAFETY: the memory outlives the view; the call that would write it is refused.
    let weight = unsafe { View::<f32>::from_raw(gpu(), gradient.as_raw(), [2, 3]) }.unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let error = BceWithLogits::mean().weight(weight).backward_into(
        &x,
        &x,
        &upstream,
        &mut gradient,
        &stream,
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "grad_input: expected memory of its own, got memory that overlaps weight"
    );
}
