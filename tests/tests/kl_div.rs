//! Kullback-Leibler divergence, beyond the cases that golden.rs compares with PyTorch.

use approx::assert_relative_eq;
use fused_loss::{Error, Grads, KlDiv, RowMean, Sum, Tensor, Unreduced};
use half::{bf16, f16};
use tests::number::Number;
use tests::random::uniforms;
use tests::reference::Total;
use tests::{gpu, tensor};

/// The divergence of probabilities.
fn of_probabilities() -> KlDiv<Sum> {
    KlDiv::sum().log_input(false)
}

/// Numbers from 0.01 up to 1.01.
fn probabilities(seed: u64, len: usize) -> Vec<f32> {
    uniforms(seed, len).into_iter().map(|value| (value + 1.0) / 2.0 + 0.01).collect()
}

#[test]
fn of_equal_probabilities_exactly_nothing() {
    let stream = gpu().stream().unwrap();
    let mut same = probabilities(1, 10_000);
    same.extend([1e-45, 1e-38, f32::MIN_POSITIVE, 1.0, 3e38]);
    let t = tensor(&same);
    let none = KlDiv::new().log_input(false).reduction(Unreduced);
    let terms = none.forward(&t, &t, &stream).unwrap().values().to_vec().unwrap();
    assert!(terms.iter().all(|&term| term == 0.0));
}

/// For nearly equal probabilities, the error is relative to the terms that remain, and not to the
/// logarithms that cancel. The gradient −t/p is as accurate as any.
#[test]
fn of_nearly_equal_probabilities_what_is_left() {
    for apart in [1.0, 1e-2, 1e-3, 1e-4, 1e-6] {
        nearly_equal::<f32>(apart);
    }
    for apart in [1.0, 1e-2] {
        nearly_equal::<f16>(apart);
        nearly_equal::<bf16>(apart);
    }
}

/// Checks probabilities p and t = p (1 ± `apart`).
fn nearly_equal<T: Number<Loss = f32>>(apart: f64) {
    let stream = gpu().stream().unwrap();
    let p: Vec<T> = probabilities(2, 10_000).into_iter().map(|p| T::round(p.into())).collect();
    let nearly = |(p, jitter): (&T, f32)| T::round(p.wide() * (1.0 + f64::from(jitter) * apart));
    let t: Vec<T> = p.iter().zip(uniforms(3, p.len())).map(nearly).collect();
    let pairs = || p.iter().zip(&t).map(|(p, t)| (p.wide(), t.wide()));
    let terms: Vec<f64> = pairs().map(|(p, t)| t * ((t - p) / p).ln_1p()).collect();
    let magnitude = terms.iter().map(|term| term.abs()).sum::<Total>().value();
    let expected = terms.into_iter().sum::<Total>().value();
    let (loss, gradient) =
        of_probabilities().forward_backward(&tensor(&p), &tensor(&t), &stream).unwrap();
    let loss = loss.item().unwrap();
    let off = (f64::from(loss) - expected).abs();
    assert!(off <= 1e-6 * magnitude, "expected {expected}, got {loss}, of terms of {magnitude}");
    for ((p, t), got) in pairs().zip(gradient.to_vec().unwrap()) {
        let (expected, largest) = (-t / p, 1.0);
        let off = (got.wide() - expected).abs();
        assert!(off <= T::allowed(expected, largest, 1.0), "expected {expected}, got {got}");
    }
}

/// Where log-probabilities cancel against logarithms that the kernel takes, an error that all
/// elements share would remain in the sum.
#[test]
fn of_nearly_equal_log_probabilities_what_is_left() {
    let stream = gpu().stream().unwrap();
    let log_probabilities = KlDiv::new().reduction(Sum);
    for apart in [1.0, 1e-1, 1e-2, 1e-3] {
        let p = probabilities(7, 100_000);
        let x: Vec<f32> = p.iter().map(|p| p.ln()).collect();
        let t: Vec<f32> = p
            .iter()
            .zip(uniforms(8, p.len()))
            .map(|(p, jitter)| p * (1.0 + jitter * apart))
            .collect();
        let pairs = x.iter().zip(&t).map(|(&x, &t)| (f64::from(x), f64::from(t)));
        let terms: Vec<f64> = pairs.map(|(x, t)| t * (t.ln() - x)).collect();
        let magnitude = terms.iter().map(|term| term.abs()).sum::<Total>().value();
        let expected = terms.into_iter().sum::<Total>().value();
        let loss = log_probabilities.forward(&tensor(&x), &tensor(&t), &stream).unwrap();
        let off = (f64::from(loss.item().unwrap()) - expected).abs();
        assert!(off <= 1e-6 * magnitude, "{apart}: off by {:e} of the terms", off / magnitude);
    }
}

/// Σ p·log(p/t) ÷ D per row with a gradient per row: the input is log t, the target p, and the
/// gradient is that of the target.
#[test]
fn per_sample_with_backward() {
    let stream = gpu().stream().unwrap();
    let (rows, cols) = (9, 1_003);
    let (p, t) = (probabilities(4, rows * cols), probabilities(5, rows * cols));
    let log_t: Vec<f32> = t.iter().map(|t| t.ln()).collect();
    let g: Vec<f32> = uniforms(6, rows);
    let input = Tensor::from_slice(gpu(), [rows, cols], &log_t).unwrap();
    let target = Tensor::from_slice(gpu(), [rows, cols], &p).unwrap();
    let upstream = Tensor::from_slice(gpu(), [rows], &g).unwrap();
    let loss = KlDiv::new().reduction(RowMean);
    let values = loss.forward(&input, &target, &stream).unwrap().values().to_vec().unwrap();
    let mut gradient = Tensor::zeros(gpu(), [rows, cols]).unwrap();
    let grads = Grads::target(&mut gradient);
    loss.backward_into(&input, &target, &upstream, grads, &stream).unwrap();
    let gradient = gradient.to_vec().unwrap();
    for row in 0..rows {
        let range = row * cols..(row + 1) * cols;
        let pair = |index: usize| (f64::from(p[index]), f64::from(log_t[index]));
        let term = |index| {
            let (p, log_t) = pair(index);
            p * (p.ln() - log_t)
        };
        let expected = range.clone().map(term).sum::<Total>().value() / cols as f64;
        assert_relative_eq!(f64::from(values[row]), expected, max_relative = 1e-5);
        for index in range {
            let (p, log_t) = pair(index);
            let expected = f64::from(g[row]) / cols as f64 * (p.ln() - log_t + 1.0);
            assert!((f64::from(gradient[index]) - expected).abs() <= 2e-6 * 6.0 / cols as f64);
        }
    }
}

#[test]
fn the_batch_is_the_first_dimension() {
    let stream = gpu().stream().unwrap();
    let (p, t) = (probabilities(7, 24), probabilities(8, 24));
    let loss = |dims: &[usize]| {
        let p = Tensor::from_slice(gpu(), dims, &p).unwrap();
        let t = Tensor::from_slice(gpu(), dims, &t).unwrap();
        let loss = KlDiv::new().log_input(false);
        loss.forward(&p, &t, &stream).unwrap().item().unwrap()
    };
    assert_relative_eq!(loss(&[2, 3, 4]) * 2.0, loss(&[4, 6]) * 4.0, max_relative = 1e-6);
}

#[test]
fn a_target_of_another_shape_is_refused() -> Result<(), Error> {
    let (p, t) = (Tensor::<f32>::zeros(gpu(), [3, 4])?, Tensor::zeros(gpu(), [4, 3])?);
    let error = KlDiv::default().forward(&p, &t, &gpu().stream()?).unwrap_err();
    assert_eq!(error.to_string(), "target: expected shape [3, 4], got [4, 3]");
    Ok(())
}

/// The fast path does not handle zeros: vectors that contain zeros take another path than their
/// neighbours. The elements fill whole tiles of several blocks.
#[test]
fn zeros_among_many_elements() {
    let (stream, len) = (gpu().stream().unwrap(), 40_000);
    let x: Vec<f32> = uniforms(1, len).into_iter().map(|u| u.abs() + 0.1).collect();
    let mut t: Vec<f32> = uniforms(2, len).into_iter().map(|u| u.abs() + 0.1).collect();
    for index in (0..len).filter(|index| index % 97 < 9) {
        t[index] = 0.0;
    }
    let term = |(x, t): (&f32, &f32)| match f64::from(*t) {
        0.0 => 0.0,
        t => t * (t.ln() - f64::from(*x).ln()),
    };
    let expected: f64 = x.iter().zip(&t).map(term).sum();
    let by_input = x.iter().zip(&t).map(|(x, t)| -t / x);
    let on_x = Tensor::from_slice(gpu(), [len], &x).unwrap();
    let on_t = Tensor::from_slice(gpu(), [len], &t).unwrap();
    let alone = of_probabilities().forward(&on_x, &on_t, &stream).unwrap();
    let (loss, gradient) = of_probabilities().forward_backward(&on_x, &on_t, &stream).unwrap();
    for loss in [alone, loss] {
        assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-5);
    }
    for (got, expected) in gradient.to_vec().unwrap().into_iter().zip(by_input) {
        assert_relative_eq!(got, expected, max_relative = 1e-6);
    }
}
