//! Log-probabilities and entropies of exceptional rows, their gradients by finite differences, and
//! refused calls.

use fused_loss::{
    CrossEntropy, Error, LogProb, Loss, Saved, Tensor, Upstreams, ViewMut, Workspace,
};
use tests::random::uniforms;
use tests::{gpu, tensor};

/// Rows that are packed; in registers, or streamed; and shared by blocks, or streamed.
const COLS: [usize; 4] = [5, 333, 4096, 9001];

/// Log-probabilities, entropies and gradients computed in both ways: in one pass, and by a backward
/// pass.
fn both_ways(loss: LogProb, input: &Tensor<f32>, classes: &Tensor<i64>) -> [[Vec<f32>; 3]; 2] {
    let stream = gpu().stream().unwrap();
    let of_rows = vec![1.0_f32; classes.shape().len()];
    let (a, b) = (tensor(&of_rows), tensor(&of_rows));
    let upstreams = Upstreams::both(&a, &b);
    let values = |of: &Loss<f32>| of.values().to_vec().unwrap();
    let (log_prob, entropy, by_input) =
        loss.forward_backward(input, classes, upstreams, &stream).unwrap();
    let at_once = [values(&log_prob), values(&entropy), by_input.to_vec().unwrap()];
    let (log_prob, entropy, saved) = loss.forward_saving(input, classes, &stream).unwrap();
    let by_input = loss.backward(input, classes, &saved, upstreams, &stream).unwrap();
    [at_once, [values(&log_prob), values(&entropy), by_input.to_vec().unwrap()]]
}

/// Three rows of `cols` columns; `change` changes the middle one.
fn rows_with(cols: usize, change: impl FnOnce(&mut [f32])) -> Tensor<f32> {
    let mut x = uniforms(31, 3 * cols);
    change(&mut x[cols..2 * cols]);
    Tensor::from_slice(gpu(), [3, cols], &x).unwrap()
}

#[test]
fn rows_of_infinity_nan_or_nothing_but_minus_infinity_are_nan() {
    let changes: [fn(&mut [f32]); 4] = [
        |row| row[row.len() / 2] = f32::NAN,
        |row| row[row.len() - 1] = f32::INFINITY,
        |row| row.fill(f32::NEG_INFINITY),
        |row| row.fill(f32::NAN),
    ];
    for cols in COLS {
        for (number, change) in changes.into_iter().enumerate() {
            let input = rows_with(cols, change);
            let loss = LogProb::new().temperature(0.5);
            for [log_prob, entropy, gradient] in both_ways(loss, &input, &tensor(&[1_i64, 1, 1])) {
                let what = format!("{cols} columns, change {number}");
                assert!(log_prob[1].is_nan() && entropy[1].is_nan(), "{what}");
                let row = |row: usize| &gradient[row * cols..(row + 1) * cols];
                assert!(row(1).iter().all(|by| by.is_nan()), "{what}");
                for other in [0, 2] {
                    assert!(log_prob[other] < 0.0 && entropy[other] > 0.0, "{what}");
                    assert!(row(other).iter().all(|by| by.is_finite()), "{what}");
                }
            }
        }
    }
}

#[test]
fn an_ignored_row_may_hold_anything() {
    for cols in COLS {
        let input = rows_with(cols, |row| row.fill(f32::NAN));
        let loss = LogProb::new().ignore_index(1);
        for [log_prob, entropy, gradient] in both_ways(loss, &input, &tensor(&[0_i64, 1, 2])) {
            assert_eq!((log_prob[1], entropy[1]), (0.0, 0.0));
            assert!(gradient[cols..2 * cols].iter().all(|by| by.to_bits() << 1 == 0));
            assert!(log_prob[0] < 0.0 && log_prob[2] < 0.0);
        }
    }
}

/// A class whose logit is −∞ has the log-probability −∞. It contributes nothing to the entropy, and
/// all gradients are finite.
#[test]
fn a_class_of_no_probability() {
    for cols in COLS {
        let input = rows_with(cols, |row| row[3] = f32::NEG_INFINITY);
        for [log_prob, entropy, gradient] in
            both_ways(LogProb::new(), &input, &tensor(&[0_i64, 3, 2]))
        {
            assert_eq!(log_prob[1], f32::NEG_INFINITY);
            assert!(entropy[1] > 0.0 && entropy[1] < (cols as f32).ln());
            assert_eq!(gradient[cols + 3], 1.0, "{cols} columns");
            assert!(gradient.iter().all(|by| by.is_finite()));
        }
    }
}

/// The logits are logarithms times the temperature 2, so their probabilities are eighths.
#[test]
fn probabilities_of_one_two_and_five_eighths() {
    let stream = gpu().stream().unwrap();
    let p: [f64; 3] = [0.125, 0.25, 0.625];
    let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
    for temperature in [1.0, 2.0] {
        let x = p.map(|p| temperature * (8.0 * p).ln());
        let input = Tensor::from_slice(gpu(), [3, 3], &[x; 3].concat()).unwrap();
        let (classes, a, b) = (tensor(&[0_i64, 1, 2]), tensor(&[1.0_f64; 3]), tensor(&[0.5; 3]));
        let (log_probs, entropies, gradient) = LogProb::new()
            .temperature(temperature)
            .forward_backward(&input, &classes, Upstreams::both(&a, &b), &stream)
            .unwrap();
        let (log_probs, entropies) = (log_probs.to_vec().unwrap(), entropies.to_vec().unwrap());
        let gradient = gradient.to_vec().unwrap();
        for row in 0..3 {
            assert!((log_probs[row] - p[row].ln()).abs() < 1e-14, "{log_probs:?}");
            assert!((entropies[row] - entropy).abs() < 1e-14, "{entropies:?}");
            for (col, p) in p.into_iter().enumerate() {
                let of_log_prob = f64::from(u8::from(row == col)) - p;
                let expected = (of_log_prob - 0.5 * p * (p.ln() + entropy)) / temperature;
                assert!((gradient[3 * row + col] - expected).abs() < 1e-14, "{gradient:?}");
            }
        }
    }
}

#[test]
fn one_class_is_certain() {
    let input = Tensor::from_slice(gpu(), [3, 1], &[2.5_f32, -1e30, 0.0]).unwrap();
    for [log_prob, entropy, gradient] in both_ways(LogProb::new(), &input, &tensor(&[0_i64; 3])) {
        assert_eq!((log_prob, entropy, gradient), (vec![0.0; 3], vec![0.0; 3], vec![0.0; 3]));
    }
}

#[test]
fn equal_logits_have_the_most_entropy() {
    for cols in COLS {
        let input = Tensor::from_slice(gpu(), [2, cols], &vec![7.0_f32; 2 * cols]).unwrap();
        let loss = LogProb::new().temperature(0.3);
        for [log_prob, entropy, _] in both_ways(loss, &input, &tensor(&[1_i64, 2])) {
            let most = (cols as f32).ln();
            for row in 0..2 {
                assert!((entropy[row] - most).abs() <= 1e-6 * most, "{cols} columns: {entropy:?}");
                assert!(
                    (log_prob[row] + most).abs() <= 1e-6 * most,
                    "{cols} columns: {log_prob:?}"
                );
            }
        }
    }
}

/// With logits and temperatures at the ends of f32's range, no intermediate product overflows.
#[test]
fn nothing_overflows_on_the_way() {
    for (temperature, x) in [
        (1.0, [f32::MAX, -f32::MAX, 0.0]),
        (1e-30, [1e4, -1e4, 9999.0]),
        (1e-30, [1e30, -1e30, 0.0]),
        (0.1, [-f32::MAX, f32::MAX, f32::MAX / 2.0]),
    ] {
        for cols in COLS {
            let row: Vec<f32> =
                (0..cols).map(|at| if at < 3 { x[at] } else { x[1].min(x[0]) }).collect();
            let likeliest = if x[0] > x[1] { 0 } else { 1 };
            let input = Tensor::from_slice(gpu(), [1, cols], &row).unwrap();
            let loss = LogProb::new().temperature(temperature);
            for [log_prob, entropy, gradient] in both_ways(loss, &input, &tensor(&[likeliest])) {
                let what = format!("T {temperature}, {x:?}, {cols} columns");
                assert_eq!((log_prob[0], entropy[0]), (0.0, 0.0), "{what}");
                assert!(gradient.iter().all(|&by| by == 0.0), "{what}: {:?}", &gradient[..3]);
            }
        }
    }
}

#[test]
fn a_class_that_is_none() {
    let stream = gpu().stream().unwrap();
    for cols in COLS {
        let rows = 5;
        let input = Tensor::from_slice(gpu(), [rows, cols], &uniforms(5, rows * cols)).unwrap();
        let classes = tensor(&[1_i64, 1, -1, 1, i64::MAX]);
        let ones = tensor(&[1.0_f32; 5]);
        let loss = LogProb::new();
        let expected = format!("target: expected a class from 0 to {}, got -1 in row 2", cols - 1);
        let check = |log_prob: &Loss<f32>, entropy: &Loss<f32>| {
            for result in [log_prob, entropy] {
                assert_eq!(result.to_vec().unwrap_err().to_string(), expected);
                assert_eq!(result.check().unwrap_err().to_string(), expected);
                let values = result.values().to_vec().unwrap();
                let are_nan = values.iter().map(|value| value.is_nan());
                assert!(are_nan.eq([false, false, true, false, true]), "{values:?}");
            }
        };
        let (log_prob, entropy) = loss.forward(&input, &classes, &stream).unwrap();
        check(&log_prob, &entropy);
        // An upstream gradient of the entropy alone, whose gradient does not depend on the class.
        let upstreams = Upstreams::entropy(&ones);
        let (log_prob, entropy, by_input) =
            loss.forward_backward(&input, &classes, upstreams, &stream).unwrap();
        check(&log_prob, &entropy);
        let (log_prob, entropy, saved) = loss.forward_saving(&input, &classes, &stream).unwrap();
        check(&log_prob, &entropy);
        let backward = loss.backward(&input, &classes, &saved, upstreams, &stream).unwrap();
        for gradient in [by_input, backward] {
            let gradient = gradient.to_vec().unwrap();
            for (row, of_row) in gradient.chunks(cols).enumerate() {
                let is_bad = row == 2 || row == 4;
                assert!(of_row.iter().all(|by| by.is_nan() == is_bad), "row {row}, {cols} columns");
            }
        }
        // If the log-probabilities go to raw memory, the entropies report the target.
        let (memory, mut entropy) = (tensor(&[0.0_f32; 5]), Loss::zeros(gpu(), [5]).unwrap());
        // SAFETY: `memory` outlives the call's work, which the next line waits for.
        let raw = unsafe { ViewMut::<f32>::from_raw(gpu(), memory.as_raw(), [5]) }.unwrap();
        let mut workspace = Workspace::new(gpu()).unwrap();
        loss.forward_into(&input, &classes, (raw, &mut entropy), &mut workspace, &stream).unwrap();
        assert_eq!(entropy.to_vec().unwrap_err().to_string(), expected);
        // With good classes the same memory has good results again.
        let good = tensor(&[1_i64; 5]);
        let (mut log_prob, mut entropy) = (log_prob, entropy);
        let results = (&mut log_prob, &mut entropy);
        loss.forward_into(&input, &good, results, &mut workspace, &stream).unwrap();
        assert!(log_prob.to_vec().is_ok() && entropy.to_vec().is_ok());
    }
}

/// Gradients agree with the central differences of the results in f64.
#[test]
fn gradients_by_finite_differences() {
    let stream = gpu().stream().unwrap();
    for cols in [7, 40] {
        let x: Vec<f64> = uniforms(41, 2 * cols).iter().map(|&x| f64::from(x) * 3.0).collect();
        let (classes, loss) = (tensor(&[3_i64, 0]), LogProb::new().temperature(0.6));
        let weights = [[0.7, -1.3], [2.0, 0.4]];
        let value = |x: &[f64]| -> f64 {
            let input = Tensor::from_slice(gpu(), [2, cols], x).unwrap();
            let (log_prob, entropy) = loss.forward(&input, &classes, &stream).unwrap();
            let (log_prob, entropy) = (log_prob.to_vec().unwrap(), entropy.to_vec().unwrap());
            (0..2).map(|row| weights[0][row] * log_prob[row] + weights[1][row] * entropy[row]).sum()
        };
        let input = Tensor::from_slice(gpu(), [2, cols], &x).unwrap();
        let (a, b) = (tensor(&weights[0]), tensor(&weights[1]));
        let upstreams = Upstreams::both(&a, &b);
        let (_, _, gradient) = loss.forward_backward(&input, &classes, upstreams, &stream).unwrap();
        for (index, of) in gradient.to_vec().unwrap().into_iter().enumerate() {
            let moved = |by: f64| {
                let mut x = x.clone();
                x[index] += by;
                value(&x)
            };
            let step = 1e-5;
            let slope = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((slope - of).abs() < 1e-8, "logit {index} of {cols}: {of}, not {slope}");
        }
    }
}

#[test]
fn no_rows_and_three_dimensions() {
    let stream = gpu().stream().unwrap();
    let (none, classes) = (Tensor::<f32>::zeros(gpu(), [0, 5]).unwrap(), tensor::<i64>(&[]));
    let ones = tensor::<f32>(&[]);
    let (log_prob, entropy, gradient) = LogProb::new()
        .forward_backward(&none, &classes, Upstreams::both(&ones, &ones), &stream)
        .unwrap();
    assert!(log_prob.to_vec().unwrap().is_empty() && entropy.to_vec().unwrap().is_empty());
    assert!(gradient.to_vec().unwrap().is_empty());
    let input = Tensor::from_slice(gpu(), [2, 3, 4], &uniforms(1, 24)).unwrap();
    let classes = Tensor::<i32>::zeros(gpu(), [2, 3]).unwrap();
    let (log_prob, entropy) = LogProb::new().forward(&input, &classes, &stream).unwrap();
    assert_eq!((log_prob.shape().dims(), entropy.shape().dims()), (&[2, 3][..], &[2, 3][..]));
    assert!(entropy.to_vec().unwrap().iter().all(|&of| of > 0.0));
}

#[test]
fn what_is_refused() {
    #[track_caller]
    fn refused<T>(result: Result<T, Error>, expected: &str) {
        assert_eq!(result.err().map(|error| error.to_string()).as_deref(), Some(expected));
    }
    let stream = gpu().stream().unwrap();
    let input = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    let (classes, ones) = (Tensor::<i64>::zeros(gpu(), [4]).unwrap(), tensor(&[1.0_f32; 4]));
    let loss = LogProb::new();
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-31] {
        let expected =
            format!("temperature: expected a number from 1e-30 to 1e30, got {temperature}");
        refused(loss.temperature(temperature).forward(&input, &classes, &stream), &expected);
    }
    let longer = Tensor::<i64>::zeros(gpu(), [5]).unwrap();
    refused(loss.forward(&input, &longer, &stream), "target: expected shape [4], got [5]");
    let none = Tensor::<f32>::zeros(gpu(), [0, 0]).unwrap();
    refused(
        loss.forward(&none, &tensor::<i64>(&[]), &stream),
        "input: expected one class at least, got shape [0, 0]",
    );

    let mut workspace = Workspace::new(gpu()).unwrap();
    let (mut log_prob, mut entropy) =
        (Loss::<f32>::zeros(gpu(), [4]).unwrap(), Loss::<f32>::zeros(gpu(), [3]).unwrap());
    refused(
        loss.forward_into(&input, &classes, (&mut log_prob, &mut entropy), &mut workspace, &stream),
        "entropy: expected shape [4], got [3]",
    );
    refused(
        loss.forward_into(&input, &classes, (&mut entropy, &mut log_prob), &mut workspace, &stream),
        "log_prob: expected shape [4], got [3]",
    );
    let memory = tensor(&[0.0_f32; 4]);
    // SAFETY: refused before anything writes it.
    let twice = || unsafe { ViewMut::<f32>::from_raw(gpu(), memory.as_raw(), [4]) }.unwrap();
    refused(
        loss.forward_into(&input, &classes, (twice(), twice()), &mut workspace, &stream),
        "entropy: expected memory of its own, got memory that overlaps log_prob",
    );
    let short = tensor(&[1.0_f32; 2]);
    for (upstreams, name) in [
        (Upstreams::both(&short, &ones), "upstream_log_prob"),
        (Upstreams::both(&ones, &short), "upstream_entropy"),
    ] {
        refused(
            loss.forward_backward(&input, &classes, upstreams, &stream),
            &format!("{name}: expected shape [4], got [2]"),
        );
    }
    let mut small = Tensor::<f32>::zeros(gpu(), [3, 3]).unwrap();
    let (_, _, saved) = loss.forward_saving(&input, &classes, &stream).unwrap();
    let upstreams = Upstreams::log_prob(&ones);
    refused(
        loss.backward_into(&input, &classes, &saved, upstreams, &mut small, &stream),
        "grad_input: expected shape [4, 3], got [3, 3]",
    );
}

/// A backward pass refuses what a forward pass of another temperature, loss or shape has saved.
#[test]
fn what_another_forward_pass_has_saved() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    let (classes, ones) = (Tensor::<i64>::zeros(gpu(), [4]).unwrap(), tensor(&[1.0_f32; 4]));
    let of = |loss: LogProb, saved: &Saved<f32>, input: &Tensor<f32>, classes: &Tensor<i64>| {
        let upstreams = Upstreams::log_prob(&ones);
        let gradient = loss.backward(input, classes, saved, upstreams, &stream);
        gradient.err().map(|error| error.to_string())
    };
    let loss = LogProb::new().temperature(0.5);
    let (_, _, saved) = loss.forward_saving(&input, &classes, &stream).unwrap();
    assert_eq!(of(loss, &saved, &input, &classes), None);
    assert_eq!(
        of(LogProb::new(), &saved, &input, &classes).as_deref(),
        Some("saved: expected a forward pass with temperature 1, got one with temperature 0.5")
    );
    let (_, of_loss) = CrossEntropy::none().forward_saving(&input, &classes, &stream).unwrap();
    assert_eq!(
        of(loss, &of_loss, &input, &classes).as_deref(),
        Some("saved: expected a forward pass of log-probabilities, got one of cross-entropy")
    );
    let one = tensor(&[1.0_f32]);
    let upstream = one.view().expand([4]).unwrap();
    assert_eq!(
        CrossEntropy::none()
            .backward(&input, &classes, &saved, upstream, &stream)
            .unwrap_err()
            .to_string(),
        "saved: expected a forward pass of cross-entropy, got one of log-probabilities"
    );
    let (other, two) =
        (Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap(), Tensor::<i64>::zeros(gpu(), [2]).unwrap());
    let error = of(loss, &saved, &other, &two);
    assert_eq!(error.as_deref(), Some("saved: expected shape [2, 3], got [4, 3]"));
}
