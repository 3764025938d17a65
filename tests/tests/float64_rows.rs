//! Cross-entropy of float64, whose exponentials are relative to a maximum that lags behind the
//! largest logit: rows for which it is near, too far, and of no use.

use fused_loss::reduction::Unreduced;
use fused_loss::{CrossEntropy, Tensor};
use tests::gpu;
use tests::random::uniform;
use tests::reference::cross_entropy::{Options, Row, Target, row};

/// Columns of rows that are packed, one a lane and several, aligned and not; staged by a warp and
/// by a block; and streamed alone.
const COLS: [usize; 11] = [5, 10, 63, 126, 301, 512, 777, 1025, 3000, 9000, 17_000];

/// Rows of uniform logits from −4 to 4, which `change` changes.
fn rows(rows: usize, cols: usize, change: impl Fn(usize, &mut [f64])) -> Vec<f64> {
    let mut x: Vec<f64> =
        (0..rows * cols).map(|at| 4.0 * f64::from(uniform(7, at as u64))).collect();
    x.chunks_mut(cols).enumerate().for_each(|(row, x)| change(row, x));
    x
}

/// A number that is as it should be: equal, or NaN as well, or no further away than `most`.
fn is_near(got: f64, expected: f64, most: f64) -> bool {
    got == expected || got.is_nan() && expected.is_nan() || (got - expected).abs() <= most
}

/// [`check_to`] an error that is relative to the loss, and to the largest logit: it is rounded by
/// 2⁻⁵³ of itself where another is subtracted from it.
#[track_caller]
fn check(x: &[f64], cols: usize) {
    check_to(x, cols, |expected, largest| 1e-14 * expected.abs() + 1e-15 * largest);
}

/// Checks losses and gradients against float64 on the CPU, each alone and both in one pass, with
/// and without smoothing. `most` is how far a number may be off, from that number and the
/// row's largest logit, 10 at least.
#[track_caller]
fn check_to(x: &[f64], cols: usize, most: impl Fn(f64, f64) -> f64) {
    let stream = gpu().stream().unwrap();
    let classes: Vec<i64> = (0..x.len() / cols).map(|row| (row * 7 % cols) as i64).collect();
    let input = Tensor::from_slice(gpu(), [classes.len(), cols], x).unwrap();
    let target = Tensor::from_slice(gpu(), [classes.len()], &classes).unwrap();
    let ones = Tensor::from_slice(gpu(), [classes.len()], &vec![1.0; classes.len()]).unwrap();
    for label_smoothing in [0.0, 0.1] {
        let loss_of: CrossEntropy<'_, f64, Unreduced> =
            CrossEntropy::none().label_smoothing(label_smoothing);
        let (alone, saved) = loss_of.forward_saving(&input, &target, &stream).unwrap();
        let backward = loss_of.backward(&input, &target, &saved, &ones, &stream).unwrap();
        let (alone, backward) = (alone.to_vec().unwrap(), backward.to_vec().unwrap());
        let (losses, gradients) = loss_of.forward_backward(&input, &target, &stream).unwrap();
        let (losses, gradients) = (losses.to_vec().unwrap(), gradients.to_vec().unwrap());
        let weight = vec![1.0; cols];
        let options = Options { weight: &weight, label_smoothing, z_loss: 0.0 };
        for (index, x) in x.chunks(cols).enumerate() {
            let class = classes[index] as usize;
            let Row { loss, by_input, .. } = row(x, Target::Class(class), options);
            let what = format!("row {index} of {cols} columns, smoothing {label_smoothing}");
            let largest =
                x.iter().filter(|x| x.is_finite()).fold(10.0, |most, x| x.abs().max(most));
            for got in [alone[index], losses[index]] {
                assert!(
                    is_near(got, loss, most(loss, largest)),
                    "{what}: expected {loss}, got {got}"
                );
            }
            for (col, expected) in by_input.into_iter().enumerate() {
                // The reference subtracts from 1.
                let most = most(expected, 10.0) + 2e-16;
                for got in [gradients[index * cols + col], backward[index * cols + col]] {
                    assert!(is_near(got, expected, most), "{what}, {col}: {expected}, not {got}");
                }
            }
        }
    }
}

/// Each row's largest logit is further from the last row's than exponentials may be off.
#[test]
fn rows_far_apart() {
    const SHIFTS: [f64; 8] = [0.0, 15.0, -30.0, 700.0, -800.0, 9e4, -1e6, 3.0];
    for cols in COLS {
        let x = rows(9, cols, |row, x| {
            x.iter_mut().for_each(|x| *x += SHIFTS[row % SHIFTS.len()]);
        });
        check(&x, cols);
    }
}

/// The largest logit comes late in the row, and again a larger one.
#[test]
fn logits_that_grow() {
    for cols in COLS {
        let x = rows(4, cols, |row, x| {
            let step = [0.01, 0.3, 20.0, -20.0][row];
            x.iter_mut().enumerate().for_each(|(col, x)| *x += step * (col / 4) as f64);
        });
        check(&x, cols);
    }
}

/// One logit is so far above all others that their sum is lost beside its exponential: the loss
/// has its digits all the same. So it has where all logits are large.
#[test]
fn rows_that_are_nearly_certain() {
    for cols in COLS {
        // Of packed rows, those of a second turn have the maxima of the first to begin with.
        let count = if cols > 512 { 2 } else { 70 };
        for (above, all) in [(9.0, 0.0), (30.0, 1_000_003.0), (30.0, -20.0), (600.0, 0.0)] {
            let x = rows(count, cols, |row, x| {
                x[row * 7 % cols] += above;
                x.iter_mut().for_each(|x| *x += all);
            });
            check_to(&x, cols, |expected, _| 1e-12 * expected.abs());
        }
    }
}

/// The gradient of a class that is nearly certain is the sum of all other probabilities, which are
/// lost beside 1.
#[test]
fn gradients_of_a_nearly_certain_class() {
    let (rows, apart) = (70, 50.0_f64);
    let stream = gpu().stream().unwrap();
    for cols in [3, 12, 40, 41, 700] {
        let class = |row: usize| row % cols;
        let logit = |at| if at % cols == class(at / cols) { apart - 1.0 } else { -1.0 };
        let x = (0..rows * cols).map(logit);
        let x = Tensor::from_slice(gpu(), [rows, cols], &x.collect::<Vec<_>>()).unwrap();
        let classes: Vec<_> = (0..rows as i64).map(|row| row % cols as i64).collect();
        let classes = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        let others = (cols - 1) as f64 * (-apart).exp();
        let (loss, gradient) =
            CrossEntropy::mean().forward_backward(&x, &classes, &stream).unwrap();
        let (loss, gradient) = (loss.item().unwrap(), gradient.to_vec().unwrap());
        assert!(is_near(loss, others, 1e-13 * others), "{cols} columns: {others:e}, not {loss:e}");
        let expected = -others / rows as f64;
        for (row, gradient) in gradient.chunks(cols).enumerate() {
            let got = gradient[class(row)];
            assert!(
                is_near(got, expected, -1e-13 * expected),
                "row {row} of {cols} columns: expected {expected:e}, got {got:e}"
            );
        }
    }
}

#[test]
fn logits_that_are_not_finite() {
    const NUMBERS: [f64; 4] = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN, -f64::NAN];
    // All that one warp of a block adds up is not finite, and what the others do is.
    let of_a_warp = |row: usize, x: &mut [f64]| x[512..768].fill(NUMBERS[row]);
    check(&rows(4, 2048, of_a_warp), 2048);
    for cols in COLS {
        let x = rows(10, cols, |row, x| match row {
            0..4 => x[cols / 2] = NUMBERS[row],
            4 => x.fill(f64::NEG_INFINITY),
            // All but the class's.
            5 => x.iter_mut().enumerate().for_each(|(col, x)| {
                *x = if col == 35 % cols { 1.0 } else { f64::NEG_INFINITY };
            }),
            6 => x[1..].fill(f64::NEG_INFINITY),
            7 => x[..cols - 1].fill(f64::NEG_INFINITY),
            _ => {}
        });
        check(&x, cols);
    }
}

/// Numbers near the ends of the type, those whose upper bits are a NaN of f32 and that stands for
/// no logit among them.
#[test]
fn logits_of_any_magnitude() {
    let no_top = f64::from_bits(u64::from(f32::MIN.to_bits()) << 32);
    let numbers = [1e306, -1e306, 1.5e308, -1.5e308, no_top, 5e-324, -1e-300, 2_f64.powi(1017)];
    for cols in COLS {
        let x = rows(2 * numbers.len(), cols, |row, x| {
            let number = numbers[row / 2];
            if row % 2 == 0 { x.fill(number) } else { x[cols / 3] = number }
        });
        check(&x, cols);
    }
}
