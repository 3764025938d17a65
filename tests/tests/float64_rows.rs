//! Cross-entropy of float64, whose exponentials are relative to a center that lags behind the
//! largest logit: rows in which the center is close enough, too far away, and useless.

use fused_loss::reduction::Unreduced;
use fused_loss::{CrossEntropy, Tensor};
use tests::gpu;
use tests::random::uniform;
use tests::reference::cross_entropy::{Options, Row, Target, row};

/// Columns of rows that are packed, with one lane and with several per row, aligned and not; of
/// rows that a warp or a block stages; and of rows that are streamed.
const COLS: [usize; 11] = [5, 10, 63, 126, 301, 512, 777, 1025, 3000, 9000, 17_000];

/// Rows of uniform logits from −4 to 4, to which `change` is applied.
fn rows(rows: usize, cols: usize, change: impl Fn(usize, &mut [f64])) -> Vec<f64> {
    let mut x: Vec<f64> =
        (0..rows * cols).map(|at| 4.0 * f64::from(uniform(7, at as u64))).collect();
    x.chunks_mut(cols).enumerate().for_each(|(row, x)| change(row, x));
    x
}

/// Whether a number is right: equal, NaN where NaN is expected, or off by no more than `most`.
fn is_near(got: f64, expected: f64, most: f64) -> bool {
    got == expected || got.is_nan() && expected.is_nan() || (got - expected).abs() <= most
}

/// [`check_to`] an error relative to the loss and to the largest logit. A subtraction from the
/// largest logit rounds it by up to 2⁻⁵³ of its magnitude.
#[track_caller]
fn check(x: &[f64], cols: usize) {
    check_to(x, cols, |expected, largest| 1e-14 * expected.abs() + 1e-15 * largest);
}

/// Compares losses and gradients with float64 on the CPU: alone and in one pass, with and without
/// smoothing. `most` returns the largest allowed error from the expected number and the row's
/// largest logit (at least 10).
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
                // The reference subtracts from 1. Where an exponential vanishes, so must ours.
                let vanishes = expected == 0.0 && col != class;
                let most = if vanishes { 0.0 } else { most(expected, 10.0) + 2e-16 };
                for got in [gradients[index * cols + col], backward[index * cols + col]] {
                    assert!(is_near(got, expected, most), "{what}, {col}: {expected}, not {got}");
                }
            }
        }
    }
}

/// The largest logits of consecutive rows are further apart than a lagging center may be.
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

/// The first part of each row is far below the rest, as masked logits are: so far that a sum must
/// not be relative to one of them. In every other row, the rest is far above 0.
#[test]
fn parts_of_rows_far_below() {
    const MASKED: [f64; 6] = [-300.0, -2e4, -1e6, -1e9, -1e300, f64::MIN];
    for cols in COLS {
        let x = rows(2 * MASKED.len(), cols, |row, x| {
            let end = (row % 5 + 1) * cols / 7;
            let above = if row % 2 == 0 { 0.0 } else { 1e6 };
            x.iter_mut().for_each(|x| *x += above);
            x[..end].iter_mut().for_each(|x| *x = MASKED[row / 2]);
        });
        check(&x, cols);
    }
}

/// The largest logit comes late in the row, after several others that were the largest so far.
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

/// One logit is so far above the others that their sum has no digits left beside its exponential.
/// The loss has all its digits, also where all logits are large.
#[test]
fn rows_that_are_nearly_certain() {
    for cols in COLS {
        // Packed rows of a warp's second tile begin with the maxima of its first.
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

/// The gradient of a nearly certain class is the sum of all other probabilities, which loses no
/// digits beside 1.
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
    // Everything that one warp of a block sums is not finite, and what the other warps sum is.
    let of_a_warp = |row: usize, x: &mut [f64]| x[512..768].fill(NUMBERS[row]);
    check(&rows(4, 2048, of_a_warp), 2048);
    for cols in COLS {
        let x = rows(10, cols, |row, x| match row {
            0..4 => x[cols / 2] = NUMBERS[row],
            4 => x.fill(f64::NEG_INFINITY),
            // All logits but that of the class.
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

/// Logits near the ends of the range: some whose upper 32 bits are a NaN of f32, and one whose
/// upper bits are `f32::MIN`, which marks that there is no logit yet.
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
