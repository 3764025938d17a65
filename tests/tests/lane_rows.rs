//! Short rows, one per lane: in registers up to 16 columns, in shared memory beyond. The tests
//! compare every number of columns in registers, every access width, gaps, offsets, and calls with
//! and without options with float64.

use fused_loss::{CrossEntropy, Error, Grads, Loss, Tensor, Workspace};
use half::{bf16, f16};
use tests::brief::usually;
use tests::class_rows::{Case, DENSE, Options, Place};
use tests::number::Number;
use tests::random::uniforms;
use tests::{Placed, gpu, small_gpu};

const ROWS: usize = 71;

/// There is separate code for each number of columns that fits a lane's registers.
#[test]
fn rows_of_each_number_of_columns_in_registers() {
    for cols in 1..=16 {
        for options in [Options::None, Options::Weights, Options::ZLoss] {
            Case::<f32>::new([ROWS, cols], DENSE, options).check();
            Case::<bf16>::new([ROWS, cols], DENSE, options).check();
            Case::<f64>::new([ROWS, cols], DENSE, options).check();
        }
        for options in [Options::Smoothing, Options::SmoothedWeights(1)] {
            Case::<f32>::new([ROWS, cols], DENSE, options).check();
            Case::<bf16>::new([ROWS, cols], DENSE, options).check();
            Case::<f64>::new([ROWS, cols], DENSE, options).check();
        }
        for options in [Options::None, Options::Weights, Options::SmoothedWeights(3)] {
            Case::<f16>::new([ROWS, cols], DENSE, options).check();
        }
    }
}

/// A mean is the sum divided by the total weight of the classes of the rows that count. With
/// z-loss, and without weights, the divisor is the number of these rows.
fn check_mean<T: Number>(cols: usize, options: Options)
where
    T::Loss: Number,
{
    let case = Case::<T>::new([ROWS, cols], DENSE, options);
    let stream = gpu().stream().unwrap();
    let x: Vec<T> = case.x.clone();
    let x = Tensor::from_slice(gpu(), [ROWS, cols], &x).unwrap();
    let classes = Tensor::from_slice(gpu(), [ROWS], &case.classes).unwrap();
    let weights = Tensor::from_slice(gpu(), [cols], &case.weights).unwrap();
    let sum = options.on(CrossEntropy::sum(), &weights);
    let mean = options.on(CrossEntropy::mean(), &weights);
    let of_sum = sum.forward(&x, &classes, &stream).unwrap();
    let counted = case.classes.iter().filter(|&&class| class >= 0);
    let weight_of = |&class: &i64| {
        if options.has_weights() { case.weights[class as usize].wide() } else { 1.0 }
    };
    let weight: f64 = counted.map(weight_of).sum();
    let expected = of_sum.item().unwrap().wide() / weight;
    let forward = mean.forward(&x, &classes, &stream).unwrap();
    let (both, gradient) = mean.forward_backward(&x, &classes, &stream).unwrap();
    for loss in [forward, both] {
        let off = (loss.item().unwrap().wide() - expected).abs();
        assert!(off <= 1e-6 * expected, "{} {cols} columns, {options:?}: {off} off", T::NAME);
    }
    let (_, of_sum) = sum.forward_backward(&x, &classes, &stream).unwrap();
    for (got, of_sum) in gradient.to_vec().unwrap().iter().zip(of_sum.to_vec().unwrap()) {
        let expected = of_sum.wide() / weight;
        let allowed = 2.0 * T::allowed(expected, 1.0 / weight, 1.0);
        let off = (got.wide() - expected).abs();
        assert!(off <= allowed, "{} {cols} columns, {options:?}", T::NAME);
    }
}

#[test]
fn means_of_rows_with_options() {
    for options in [Options::Weights, Options::ZLoss, Options::SmoothedWeights(0)] {
        for cols in [1, 2, 3, 8, 16, 20, 33] {
            check_mean::<f32>(cols, options);
            check_mean::<bf16>(cols, options);
        }
        check_mean::<f64>(5, options);
    }
}

/// A row is cut into vectors of 16 bytes and a rest, with accesses of 16, 8, 4 or 2 bytes. The
/// shapes have whole vectors that are read one by one and in steps of several, and rests of each
/// length.
#[test]
fn rows_wider_than_the_registers_of_a_lane() {
    for cols in [17, 18, 19, 20, 21, 22, 23, 24, 28, 31, 33, 34, 36, 40, 47, 56, 62, 64, 80] {
        let smoothed = [Options::Smoothing, Options::SmoothedWeights(0)];
        for options in [Options::None, Options::Weights].into_iter().chain(smoothed) {
            Case::<f32>::new([ROWS, cols], DENSE, options).check();
            Case::<f16>::new([ROWS, cols], DENSE, options).check();
        }
        Case::<bf16>::new([ROWS, cols], DENSE, Options::ZLoss).check();
    }
    for cols in [98, 127, 128, 160] {
        Case::<bf16>::new([ROWS, cols], DENSE, Options::None).check();
    }
    for cols in [9, 10, 15, 16, 17, 23, 24, 31, 32, 33] {
        for options in [Options::None, Options::Weights, Options::ZLoss] {
            Case::<f64>::new([ROWS, cols], DENSE, options).check();
        }
    }
}

/// Rows that begin off a boundary, or have gaps, use narrower accesses than their length would
/// allow. Gradients whose alignment differs from that of the logits have tiles of their own.
#[test]
fn rows_with_gaps_and_off_boundaries() {
    let places = [
        Place { gaps: [0; 2], offsets: [1; 2] },
        Place { gaps: [0; 2], offsets: [0, 1] },
        Place { gaps: [1; 2], offsets: [0; 2] },
        Place { gaps: [0, 3], offsets: [2, 0] },
        Place { gaps: [70, 0], offsets: [0; 2] },
    ];
    for cols in [1, 2, 3, 4, 6, 8, 12, 16, 17, 20, 24, 30, 32, 64] {
        for place in places {
            Case::<f32>::new([ROWS, cols], place, Options::None).check();
            Case::<bf16>::new([ROWS, cols], place, Options::None).check();
            Case::<f64>::new([ROWS, cols], place, Options::None).check();
            Case::<f32>::new([ROWS, cols], place, Options::Weights).check();
            Case::<f32>::new([ROWS, cols], place, Options::SmoothedWeights(0)).check();
        }
    }
}

/// Rows of 16-bit elements that begin or end within a word are read by words and an element at an
/// end. The words of gradients that begin elsewhere within a word are other elements.
#[test]
fn rows_that_begin_or_end_within_words() {
    let places = [[0, 0], [1, 1], [0, 1], [1, 0]].map(|offsets| Place { gaps: [0; 2], offsets });
    for cols in [17, 18, 19, 21, 23, 25, 30, 45, 63, 65, 66, 97, 127] {
        for place in places {
            for options in [Options::None, Options::Smoothing, Options::SmoothedWeights(1)] {
                Case::<bf16>::new([ROWS, cols], place, options).check();
            }
            Case::<f16>::new([ROWS, cols], place, Options::ZLoss).check();
        }
    }
    // Rows that a multiple of 32 bytes lies between, whose vectors are rotated.
    for (cols, gap) in [(32, 0), (48, 0), (64, 0), (80, 0), (96, 0), (112, 0), (160, 0), (47, 1)] {
        let place = Place { gaps: [gap; 2], offsets: [1; 2] };
        for options in [Options::None, Options::Weights, Options::SmoothedWeights(0)] {
            Case::<bf16>::new([ROWS, cols], place, options).check();
        }
        Case::<f16>::new([ROWS, cols], place, Options::Smoothing).check();
    }
}

/// Targets that are probabilities, in registers up to 16 columns: checks the loss and both
/// gradients.
fn check_probabilities<T: Number>(cols: usize, Place { gaps, offsets }: Place)
where
    T::Loss: Number,
{
    const SMOOTHING: f64 = 0.25;
    let case = Case::<T>::new([ROWS, cols], DENSE, Options::SmoothedWeights(0));
    let t: Vec<T> =
        uniforms(cols as u64, ROWS * cols).iter().map(|t| T::round(f64::from(t.abs()))).collect();
    let (shape, stream) = ([ROWS, cols], gpu().stream().unwrap());
    let place = |data: &[T], which: usize| {
        Placed::rows(data, shape, cols + gaps[which], offsets[which], T::round(f64::NAN))
    };
    let (on_x, on_t) = (place(&case.x, 0), place(&t, 0));
    let weights = Tensor::from_slice(gpu(), [cols], &case.weights).unwrap();
    let of_call = CrossEntropy::sum().label_smoothing(SMOOTHING).weight(&weights);
    let nothing = vec![T::round(0.0); ROWS * cols];
    let (mut by_x, mut by_t) = (place(&nothing, 1), place(&nothing, 1));
    let (mut loss, mut workspace) =
        (Loss::zeros(gpu(), []).unwrap(), Workspace::new(gpu()).unwrap());
    let grads = Grads::both(by_x.view_mut(), by_t.view_mut());
    of_call
        .forward_backward_into(on_x.view(), on_t.view(), &mut loss, grads, &mut workspace, &stream)
        .unwrap();
    let loss = loss.item().unwrap().wide();

    let (forward, saved) = of_call.forward_saving(on_x.view(), on_t.view(), &stream).unwrap();
    let one = Tensor::from_slice(gpu(), [], &[T::Loss::round(1.0)]).unwrap();
    let (mut later_x, mut later_t) = (place(&nothing, 1), place(&nothing, 1));
    let grads = Grads::both(later_x.view_mut(), later_t.view_mut());
    of_call.backward_into(on_x.view(), on_t.view(), &saved, &one, grads, &stream).unwrap();
    stream.synchronize().unwrap();

    let mut sum = 0.0;
    let gradients = [[by_x.to_vec(), by_t.to_vec()], [later_x.to_vec(), later_t.to_vec()]];
    for row in 0..ROWS {
        let range = row * cols..(row + 1) * cols;
        let x: Vec<f64> = case.x[range.clone()].iter().map(|x| x.wide()).collect();
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exps: f64 = x.iter().map(|x| (x - max).exp()).sum();
        let minus_log_p = |column: usize| exps.ln() - (x[column] - max);
        let share = |column: usize| {
            let t = t[row * cols + column].wide();
            case.weights[column].wide() * ((1.0 - SMOOTHING) * t + SMOOTHING / cols as f64)
        };
        let shares: f64 = (0..cols).map(share).sum();
        sum += (0..cols).map(|column| share(column) * minus_log_p(column)).sum::<f64>();
        let by_x: Vec<f64> =
            (0..cols).map(|column| shares * (-minus_log_p(column)).exp() - share(column)).collect();
        let by_t: Vec<f64> = (0..cols)
            .map(|column| (1.0 - SMOOTHING) * case.weights[column].wide() * minus_log_p(column))
            .collect();
        for [x, t] in &gradients {
            case.is_near(row, &x[range.clone()], &by_x);
            case.is_near(row, &t[range.clone()], &by_t);
        }
    }
    for loss in [loss, forward.item().unwrap().wide()] {
        assert!((loss - sum).abs() <= 2e-6 * sum, "{case:?}: expected {sum}, got {loss}");
    }
}

#[test]
fn probabilities_of_each_number_of_columns() {
    let places =
        [DENSE, Place { gaps: [0; 2], offsets: [1; 2] }, Place { gaps: [0, 3], offsets: [2, 0] }];
    for cols in (1..=17).chain([24, 64]) {
        for place in places {
            check_probabilities::<f32>(cols, place);
            check_probabilities::<bf16>(cols, place);
            check_probabilities::<f64>(cols, place);
        }
    }
}

/// Rows of a power of two, off a boundary, would all begin in the same bank of shared memory
/// without padding.
#[test]
fn rows_of_whole_lines_off_boundaries() {
    let place = Place { gaps: [0; 2], offsets: [1; 2] };
    for cols in [32, 64, 96, 128, 256, 512, 1024] {
        Case::<f32>::new([ROWS, cols], place, Options::None).check();
        Case::<bf16>::new([ROWS, cols], place, Options::None).check();
        Case::<f64>::new([ROWS, cols], place, Options::None).check();
        Case::<bf16>::new([ROWS, cols], place, Options::Smoothing).check();
    }
}

/// So would rows whose length and gap together are a multiple of 64 bytes.
#[test]
fn rows_with_gaps_up_to_whole_lines() {
    let place = |gap| Place { gaps: [gap; 2], offsets: [0, 1] };
    for (cols, gap) in [(13, 3), (26, 6), (39, 9), (51, 13), (77, 19)] {
        Case::<f32>::new([ROWS, cols], place(gap), Options::None).check();
        Case::<bf16>::new([ROWS, cols], place(gap), Options::None).check();
        Case::<f64>::new([ROWS, cols], place(gap), Options::None).check();
        Case::<f32>::new([ROWS, cols], place(gap), Options::SmoothedWeights(0)).check();
        check_probabilities::<f64>(cols, place(gap));
    }
}

/// The class weights of a vector are loaded as a vector if both have the same alignment. Otherwise
/// they are loaded as aligned words, unless these words would be beyond the weights.
#[test]
fn weights_of_all_classes_of_longer_rows() {
    for cols in [88, 129, 255, 256, 501, 512, 1001, 1023, 2048, 2500, 4099, 8192] {
        for off in 0..4 {
            Case::<f32>::new([ROWS, cols], DENSE, Options::SmoothedWeights(off)).check();
            Case::<bf16>::new([ROWS, cols], DENSE, Options::SmoothedWeights(off)).check();
        }
        Case::<f16>::new([ROWS, cols], DENSE, Options::SmoothedWeights(7)).check();
        Case::<f32>::new([ROWS, cols], DENSE, Options::Smoothing).check();
        Case::<f64>::new([ROWS, cols], DENSE, Options::SmoothedWeights(1)).check();
    }
}

/// A lane takes the logarithm of the product of its rows' sums once for several rows. The product
/// of all of them would overflow f32. With 16-bit elements, a lane has twice the rows that it has
/// with f32.
#[test]
fn a_mean_of_many_rows_of_one_lane() {
    // A sanitizer or checker would take minutes for so many.
    let many = usually(40_000_000, 1_000_000);
    let (rows, cols) = (if small_gpu().is_emulated() { 600_000 } else { many }, 16);
    let stream = small_gpu().stream().unwrap();
    let x = Tensor::<bf16>::zeros(small_gpu(), [rows, cols]).unwrap();
    let classes = Tensor::<u8>::zeros(small_gpu(), [rows]).unwrap();
    let loss = CrossEntropy::mean().forward(&x, &classes, &stream).unwrap().item().unwrap();
    let expected = (cols as f32).ln();
    assert!((loss - expected).abs() <= 1e-6, "expected {expected}, got {loss}");
}

/// The sum of a nearly certain row is near 1. The digits of its logarithm do not fit beside that 1.
#[test]
fn a_mean_of_certain_rows() {
    let (rows, cols, apart) = (ROWS, 3, 30.0_f64);
    let stream = small_gpu().stream().unwrap();
    let x: Vec<f64> = (0..rows * cols).map(|at| if at % cols == 1 { apart } else { 0.0 }).collect();
    let x = Tensor::from_slice(small_gpu(), [rows, cols], &x).unwrap();
    let classes = Tensor::from_slice(small_gpu(), [rows], &vec![1_i64; rows]).unwrap();
    let loss = CrossEntropy::mean().forward(&x, &classes, &stream).unwrap().item().unwrap();
    let expected = (2.0 * (-apart).exp()).ln_1p();
    assert!((loss - expected).abs() <= 1e-14 * expected, "expected {expected:e}, got {loss:e}");
}

/// If several targets in a lane's rows are no class, the first is reported.
#[test]
fn the_first_of_several_targets_that_are_no_class() {
    let all = [
        Options::None,
        Options::Weights,
        Options::ZLoss,
        Options::Smoothing,
        Options::SmoothedWeights(0),
    ];
    for (cols, options) in [3, 16, 24].into_iter().flat_map(|cols| all.map(|of| (cols, of))) {
        let case = Case::<f32>::new([ROWS, cols], DENSE, options);
        let stream = gpu().stream().unwrap();
        let x = Tensor::from_slice(gpu(), [ROWS, cols], &case.x).unwrap();
        let mut classes = case.classes.clone();
        for row in [6, 38, 70] {
            classes[row] = -1;
        }
        let classes = Tensor::from_slice(gpu(), [ROWS], &classes).unwrap();
        let weights = Tensor::from_slice(gpu(), [cols], &case.weights).unwrap();
        let mean = options.on(CrossEntropy::mean(), &weights);
        let (loss, gradient) = mean.forward_backward(&x, &classes, &stream).unwrap();
        let forward = mean.forward(&x, &classes, &stream).unwrap();
        for loss in [loss, forward] {
            match loss.item() {
                Err(Error::TargetOutOfRange { row, target, classes }) => {
                    assert_eq!((row, target, classes), (6, -1, cols));
                }
                other => panic!("{other:?}"),
            }
        }
        let gradient = gradient.to_vec().unwrap();
        for row in 0..ROWS {
            let is_faulty = [6, 38, 70].contains(&row);
            let row = &gradient[row * cols..(row + 1) * cols];
            assert!(row.iter().all(|of| of.is_nan() == is_faulty), "{options:?}: {row:?}");
        }
    }
}

/// Rows with NaN or infinities have neither a loss nor a gradient: both are NaN.
#[test]
fn rows_that_have_no_distribution() {
    for cols in [2, 5, 16, 20, 33] {
        let stream = gpu().stream().unwrap();
        let mut x = Case::<f32>::new([ROWS, cols], DENSE, Options::None).x;
        x[..cols].fill(f32::NEG_INFINITY);
        x[2 * cols - 1] = f32::INFINITY;
        x[2 * cols] = f32::NAN;
        let x = Tensor::from_slice(gpu(), [ROWS, cols], &x).unwrap();
        let classes = Tensor::from_slice(gpu(), [ROWS], &[0_i64; ROWS]).unwrap();
        let (losses, _) = CrossEntropy::none().forward_backward(&x, &classes, &stream).unwrap();
        let losses = losses.to_vec().unwrap();
        assert!(losses.iter().enumerate().all(|(row, of)| of.is_nan() == (row < 3)), "{losses:?}");
        let (loss, gradient) = CrossEntropy::sum().forward_backward(&x, &classes, &stream).unwrap();
        assert!(loss.item().unwrap().is_nan());
        let gradient = gradient.to_vec().unwrap();
        // A pass without gradients sums in another way.
        let losses = CrossEntropy::none().forward(&x, &classes, &stream).unwrap();
        let losses = losses.to_vec().unwrap();
        assert!(losses.iter().enumerate().all(|(row, of)| of.is_nan() == (row < 3)), "{losses:?}");
        assert!(
            CrossEntropy::sum().forward(&x, &classes, &stream).unwrap().item().unwrap().is_nan()
        );
        let is_nan =
            |row: usize| gradient[row * cols..(row + 1) * cols].iter().all(|of| of.is_nan());
        assert!((0..3).all(is_nan), "{cols} columns: {:?}", &gradient[..3 * cols]);
        assert!(gradient[3 * cols..].iter().all(|of| of.is_finite()));
    }
}
