//! Loss and gradients of rows so long that several blocks share each of them: against float64, over
//! alignments, options, types and rows of every kind.
//!
//! The emulator's device with two multiprocessors runs four blocks at a time. Rows of float64 take
//! two of them each, so two groups of blocks share the rows of a call; rows of other types take all
//! four.

use approx::assert_relative_eq;
use fused_loss::reduction::Unreduced;
use fused_loss::{CrossEntropy, Error, Grads, Loss, Tensor, Workspace};
use half::{bf16, f16};
use tests::number::Number;
use tests::random::uniforms;
use tests::reference::cross_entropy::{Options, Row, Target, row};
use tests::{Placed, gpu as any_gpu, small_gpu as gpu};

/// On a GPU, each group of blocks takes several rows.
fn rows() -> usize {
    if gpu().is_emulated() { 3 } else { 150 }
}

/// Columns of a shared row of float32: more than fit the shared memory of one block, but not more
/// than fit that of the small device's four blocks.
const COLS: usize = (320 << 10) / 4;

/// The same for another element type.
fn cols<T>() -> usize {
    match size_of::<T>() {
        8 => (128 << 10) / 8,
        4 => COLS,
        _ => (384 << 10) / 2,
    }
}

const PLAIN: Options<'_> = Options { weight: &[], label_smoothing: 0.0, z_loss: 0.0 };

/// The rows of a call.
struct Input {
    cols: usize,
    x: Vec<f32>,
    classes: Vec<i64>,
}

impl Input {
    /// Rows of ordinary logits. Every fifth is ignored and contains NaN.
    fn new(cols: usize) -> Self {
        Self::drawn(5, rows(), cols)
    }

    /// The same, with `rows` rows of logits that are drawn from `seed`.
    fn drawn(seed: u64, rows: usize, cols: usize) -> Self {
        let mut x: Vec<f32> = uniforms(seed, rows * cols).iter().map(|x| 8.0 * x).collect();
        // Classes in the head, in the tail, and anywhere.
        let class = |row: usize| match row % 5 {
            0 => 0,
            1 => -100,
            2 => cols as i64 - 1,
            _ => (row * 7919 % cols) as i64,
        };
        let classes: Vec<i64> = (0..rows).map(class).collect();
        for row in (0..rows).filter(|row| row % 5 == 1) {
            x[row * cols + cols / 2] = f32::NAN;
        }
        Input { cols, x, classes }
    }

    fn row(&self, index: usize) -> &[f32] {
        &self.x[index * self.cols..][..self.cols]
    }

    /// The expected results of each row in float64. Without weights, all weights are 1.
    fn expected(&self, options: Options<'_>) -> Vec<Row> {
        let ones = vec![1.0; self.cols];
        let weight = if options.weight.is_empty() { &ones } else { options.weight };
        let options = Options { weight, ..options };
        let of_row = |(index, &class): (usize, &i64)| {
            let x: Vec<f64> = self.row(index).iter().map(|&x| f64::from(x)).collect();
            let target = usize::try_from(class).map_or(Target::Ignored, Target::Class);
            row(&x, target, options)
        };
        self.classes.iter().enumerate().map(of_row).collect()
    }
}

/// Compares gradients with float64. `scale` returns the factor of a row's gradients.
fn check_gradients(got: &[f32], expected: &[Row], scale: impl Fn(usize) -> f64) {
    let cols = got.len() / expected.len();
    for (index, (got, expected)) in got.chunks(cols).zip(expected).enumerate() {
        let largest = expected.by_input.iter().fold(0.0_f64, |most, by| most.max(by.abs()));
        for (col, &got) in got.iter().enumerate() {
            let expected = (expected.by_input[col] + expected.z_by_input[col]) * scale(index);
            let off = (f64::from(got) - expected).abs();
            let allowed = 3e-6 * expected.abs() + 1e-7 * largest * scale(index);
            assert!(off <= allowed, "row {index}, {col}: expected {expected}, got {got}");
        }
    }
}

/// Compares the loss and the gradients of each row with float64, for any type of logits. Without
/// weights, all weights are 1.
fn check<T: Number>(
    x: &[T],
    classes: &[usize],
    weight: Option<&[T]>,
    [label_smoothing, z_loss]: [f64; 2],
) where
    T::Loss: Number,
{
    let (rows, cols, stream) = (classes.len(), x.len() / classes.len(), gpu().stream().unwrap());
    let targets: Vec<i64> = classes.iter().map(|&class| class as i64).collect();
    let input = Tensor::from_slice(gpu(), [rows, cols], x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &targets).unwrap();
    let weights = weight.map(|weight| Tensor::from_slice(gpu(), [cols], weight).unwrap());
    let mut loss_of: CrossEntropy<'_, T, Unreduced> =
        CrossEntropy::none().label_smoothing(label_smoothing).z_loss(z_loss);
    if let Some(weights) = &weights {
        loss_of = loss_of.weight(weights);
    }
    let (losses, gradients) = loss_of.forward_backward(&input, &target, &stream).unwrap();
    let (losses, gradients) = (losses.values().to_vec().unwrap(), gradients.to_vec().unwrap());
    let weight: Vec<f64> =
        weight.map_or(vec![1.0; cols], |weight| weight.iter().map(|w| w.wide()).collect());
    let options = Options { weight: &weight, label_smoothing, z_loss };
    for (index, &class) in classes.iter().enumerate() {
        let of_row = index * cols..(index + 1) * cols;
        let x: Vec<f64> = x[of_row.clone()].iter().map(|x| x.wide()).collect();
        let expected = row(&x, Target::Class(class), options);
        let (got, loss) = (losses[index].wide(), expected.loss + expected.z);
        let off = (got - loss).abs();
        assert!(off <= 3.0 * T::Loss::LOSS * loss.abs(), "row {index}: {loss}, not {got}");
        let largest = expected.by_input.iter().fold(0.0_f64, |most, by| most.max(by.abs()));
        for (col, got) in gradients[of_row].iter().enumerate() {
            let expected = expected.by_input[col] + expected.z_by_input[col];
            let off = (got.wide() - expected).abs();
            let allowed = match size_of::<T>() {
                2 => T::allowed(expected, largest, 1.0),
                _ => T::LOSS * (3.0 * expected.abs() + 0.1 * largest),
            };
            assert!(off <= allowed, "row {index}, {col}: expected {expected}, got {got:?}");
        }
    }
}

/// Logits from −6 to 6.
fn draw<T: Number>(seed: u64, len: usize) -> Vec<T> {
    uniforms(seed, len).iter().map(|x| T::round(6.0 * f64::from(*x))).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_mean_and_its_gradient_at_any_alignment() {
    let stream = gpu().stream().unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    for (cols, offset, gap) in [(COLS, 0, 0), (COLS + 1, 0, 0), (COLS + 30, 3, 5)] {
        let input = Input::new(cols);
        let place = |x: &[f32]| Placed::on(gpu(), x, [rows(), cols], cols + gap, offset, 7.0);
        let mut x = place(&input.x);
        let target = Tensor::from_slice(gpu(), [rows()], &input.classes).unwrap();
        let expected = input.expected(PLAIN);
        let count = input.classes.iter().filter(|&&class| class >= 0).count() as f64;
        let mean = expected.iter().map(|row| row.loss).sum::<f64>() / count;
        let (mut all, mut loss) = (Vec::new(), Loss::zeros(gpu(), []).unwrap());
        // Each launch finds in the workspace what the previous one has left.
        for _ in 0..3 {
            let mut to = place(&vec![f32::NAN; input.x.len()]);
            CrossEntropy::mean()
                .forward_backward_into(
                    x.view(),
                    &target,
                    &mut loss,
                    to.view_mut(),
                    &mut workspace,
                    &stream,
                )
                .unwrap();
            let got = loss.item().unwrap();
            assert_relative_eq!(f64::from(got), mean, max_relative = 1e-6);
            let gradient = to.to_vec();
            check_gradients(&gradient, &expected, |_| 1.0 / count);
            all.push((got.to_bits(), bits(&gradient)));
        }
        assert!(all.iter().all(|one| *one == all[0]), "other bits in another run");
        CrossEntropy::mean()
            .forward_backward_in_place(x.view_mut(), &target, &mut loss, &mut workspace, &stream)
            .unwrap();
        assert_eq!(loss.item().unwrap().to_bits(), all[0].0, "in place");
        assert!(bits(&x.to_vec()) == all[0].1, "in place");
    }
}

/// With enough multiprocessors, all rows are computed at the same time, and a row has more blocks
/// than a warp has lanes.
#[test]
fn rows_that_all_blocks_share_at_a_time() {
    let (cols, stream) = (COLS + 7, any_gpu().stream().unwrap());
    let input = Input::drawn(3, 3, cols);
    let expected = input.expected(PLAIN);
    let x = Tensor::from_slice(any_gpu(), [3, cols], &input.x).unwrap();
    let target = Tensor::from_slice(any_gpu(), [3], &input.classes).unwrap();
    let (loss, gradient) = CrossEntropy::sum().forward_backward(&x, &target, &stream).unwrap();
    let sum = expected.iter().map(|row| row.loss).sum::<f64>();
    assert_relative_eq!(f64::from(loss.item().unwrap()), sum, max_relative = 1e-6);
    check_gradients(&gradient.to_vec().unwrap(), &expected, |_| 1.0);
}

/// A row does not fit the shared memory of all blocks of the small device. One launch computes the
/// loss and another the gradients, which it divides by the total weight from the first.
#[test]
fn rows_that_all_blocks_have_no_room_for() {
    let (cols, stream) = ((490 << 10) / 4, gpu().stream().unwrap());
    let weight: Vec<f32> = uniforms(7, cols).iter().map(|w| w + 1.5).collect();
    let wide: Vec<f64> = weight.iter().map(|&w| f64::from(w)).collect();
    let input = Input::drawn(9, 3, cols);
    let options = Options { weight: &wide, ..PLAIN };
    let expected = input.expected(options);
    let counting = input.classes.iter().filter_map(|&class| usize::try_from(class).ok());
    let weights: f64 = counting.map(|class| wide[class]).sum();
    let mean = expected.iter().map(|row| row.loss).sum::<f64>() / weights;
    let x = Tensor::from_slice(gpu(), [3, cols], &input.x).unwrap();
    let target = Tensor::from_slice(gpu(), [3], &input.classes).unwrap();
    let weight = Tensor::from_slice(gpu(), [cols], &weight).unwrap();
    let loss_of = CrossEntropy::mean().weight(&weight);
    let (loss, gradient) = loss_of.forward_backward(&x, &target, &stream).unwrap();
    assert_relative_eq!(f64::from(loss.item().unwrap()), mean, max_relative = 1e-6);
    check_gradients(&gradient.to_vec().unwrap(), &expected, |_| 1.0 / weights);
}

/// There are more rounds than sets of words in the workspace, and a second launch has other rows:
/// no block uses the statistics of an earlier round or launch for its row. The loss is divided by
/// the weights of the classes, the z-loss by the number of rows.
#[test]
fn rounds_and_launches_take_the_same_words_again() {
    let (rows, cols, stream) = (rows().max(7), COLS + 31, gpu().stream().unwrap());
    let weight: Vec<f32> = uniforms(6, cols).iter().map(|w| w + 1.5).collect();
    let wide: Vec<f64> = weight.iter().map(|&w| f64::from(w)).collect();
    let weights = Tensor::from_slice(gpu(), [cols], &weight).unwrap();
    let mean = CrossEntropy::mean().weight(&weights).z_loss(1e-2);
    let mut workspace = Workspace::new(gpu()).unwrap();
    for seed in [1, 2] {
        let input = Input::drawn(seed, rows, cols);
        let counting = input.classes.iter().filter_map(|&class| usize::try_from(class).ok());
        let count = counting.clone().count() as f64;
        let weights: f64 = counting.map(|class| wide[class]).sum();
        let options = Options { weight: &wide, label_smoothing: 0.0, z_loss: 1e-2 };
        let mut expected = input.expected(options);
        let loss: f64 = expected.iter().map(|row| row.loss / weights + row.z / count).sum();
        for by in expected.iter_mut().flat_map(|row| &mut row.z_by_input) {
            *by *= weights / count;
        }
        let x = Tensor::from_slice(gpu(), [rows, cols], &input.x).unwrap();
        let target = Tensor::from_slice(gpu(), [rows], &input.classes).unwrap();
        let mut got = Loss::zeros(gpu(), []).unwrap();
        let mut to = Tensor::zeros(gpu(), [rows, cols]).unwrap();
        let (to_loss, to_gradient) = (&mut got, &mut to);
        mean.forward_backward_into(&x, &target, to_loss, to_gradient, &mut workspace, &stream)
            .unwrap();
        assert_relative_eq!(f64::from(got.item().unwrap()), loss, max_relative = 1e-6);
        check_gradients(&to.to_vec().unwrap(), &expected, |_| 1.0 / weights);
    }
}

/// Each group has several rows, and chance decides which group takes a row. The sums have the same
/// bits all the same, also in a launch that finds what the previous one has left. Rows begin
/// anywhere in a cache line, and those that begin late in one have one more batch of 128 vectors.
#[test]
fn groups_take_many_rows_in_any_order() {
    let rows = if gpu().is_emulated() { 11 } else { 500 };
    let cols = cols::<f64>().next_multiple_of(256) + 256 - 7;
    let stream = gpu().stream().unwrap();
    let x = draw::<f64>(4, rows * cols);
    let classes: Vec<i64> =
        (0..rows).map(|row| if row % 4 == 2 { -100 } else { (row * 977 % cols) as i64 }).collect();
    let count = classes.iter().filter(|&&class| class >= 0).count() as f64;
    let options = Options { weight: &vec![1.0; cols], label_smoothing: 0.0, z_loss: 1e-2 };
    let expected: Vec<Row> = (x.chunks(cols).zip(&classes))
        .map(|(x, &class)| {
            row(x, usize::try_from(class).map_or(Target::Ignored, Target::Class), options)
        })
        .collect();
    let mean = expected.iter().map(|row| row.loss + row.z).sum::<f64>() / count;
    let input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        let mut loss = Loss::zeros(gpu(), []).unwrap();
        let mut gradient = Tensor::from_slice(gpu(), [rows, cols], &vec![9.0; x.len()]).unwrap();
        CrossEntropy::mean()
            .z_loss(1e-2)
            .forward_backward_into(
                &input,
                &target,
                &mut loss,
                &mut gradient,
                &mut workspace,
                &stream,
            )
            .unwrap();
        let loss = loss.item().unwrap();
        assert_relative_eq!(loss, mean, max_relative = 1e-13);
        for (index, of_row) in gradient.to_vec().unwrap().chunks(cols).enumerate() {
            for (col, got) in of_row.iter().enumerate() {
                let expected =
                    (expected[index].by_input[col] + expected[index].z_by_input[col]) / count;
                let off = (got - expected).abs();
                assert!(off <= 1e-14, "row {index}, {col}: expected {expected}, got {got}");
            }
        }
        all.push(loss.to_bits());
    }
    assert_eq!(all[0], all[1], "other bits in another run");
}

/// Each quarter of a row has its own range of logits, up to 700 above the others: gradients are
/// relative to the largest logit of the row, not to that of a part.
#[test]
fn parts_whose_largest_logits_are_far_apart() {
    fn check_type<T: Number>()
    where
        T::Loss: Number,
    {
        const SHIFTS: [f64; 4] = [0.0, 12.0, 700.0, -30.0];
        let (rows, cols) = (5, cols::<T>() + 9);
        let mut x = draw::<T>(2, rows * cols);
        for (index, x) in x.iter_mut().enumerate() {
            let (row, quarter) = (index / cols, index % cols * 4 / cols);
            // In the last row, all quarters contribute.
            let shift = if row == 4 { 4.0 * quarter as f64 } else { SHIFTS[(row + quarter) % 4] };
            *x = T::round(x.wide() + shift);
        }
        let classes: Vec<usize> = (0..rows).map(|row| row * cols / rows).collect();
        check(&x, &classes, None, [0.0, 0.0]);
    }
    check_type::<f64>();
    check_type::<f32>();
}

/// One half of a row contains nothing but −∞, and so do the parts inside that half.
#[test]
fn parts_of_nothing_but_minus_infinity() {
    fn check_type<T: Number>()
    where
        T::Loss: Number,
    {
        let cols = cols::<T>() + 2;
        let mut x = draw::<T>(3, 3 * cols);
        // The parts do not end exactly in the middle.
        x[cols / 2 - 512..cols].fill(T::round(f64::NEG_INFINITY));
        x[cols..3 * cols / 2 + 512].fill(T::round(f64::NEG_INFINITY));
        check(&x, &[1, cols - 1, 7], None, [0.0, 0.0]);
    }
    check_type::<f64>();
    check_type::<f32>();
    check_type::<bf16>();
}

#[test]
fn rows_of_every_type_with_weights_and_smoothing() {
    fn check_type<T: Number>()
    where
        T::Loss: Number,
    {
        let cols = cols::<T>() + 5;
        let x = draw::<T>(9, 3 * cols);
        let weight: Vec<T> = (0..cols).map(|class| T::round([0.5, 1.0, 2.0][class % 3])).collect();
        for options in [[0.0, 0.0], [0.1, 0.0], [0.2, 1e-2]] {
            check(&x, &[0, cols / 2, cols - 1], Some(&weight), options);
        }
        check(&x, &[0, cols / 2, cols - 1], None, [0.1, 0.0]);
    }
    check_type::<f64>();
    check_type::<f32>();
    check_type::<f16>();
    check_type::<bf16>();
}

#[test]
fn losses_of_each_row_with_weights_smoothing_and_z_loss() {
    let stream = gpu().stream().unwrap();
    let cols = COLS + 2;
    let input = Input::new(cols);
    let x = Tensor::from_slice(gpu(), [rows(), cols], &input.x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows()], &input.classes).unwrap();
    let weight: Vec<f32> = uniforms(6, cols).iter().map(|w| w + 1.5).collect();
    let wide: Vec<f64> = weight.iter().map(|&w| f64::from(w)).collect();
    let weights = Tensor::from_slice(gpu(), [cols], &weight).unwrap();
    let upstream: Vec<f32> = uniforms(8, rows()).iter().map(|u| u + 2.0).collect();
    let upstreams = Tensor::from_slice(gpu(), [rows()], &upstream).unwrap();
    for (label_smoothing, z_loss) in [(0.0, 0.0), (0.0, 1e-2), (0.1, 0.0), (0.2, 1e-2)] {
        let expected = input.expected(Options { weight: &wide, label_smoothing, z_loss });
        let loss =
            CrossEntropy::none().weight(&weights).label_smoothing(label_smoothing).z_loss(z_loss);
        let mut each = Loss::zeros(gpu(), [rows()]).unwrap();
        let mut gradient = Tensor::zeros(gpu(), [rows(), cols]).unwrap();
        let mut workspace = Workspace::new(gpu()).unwrap();
        let grads = Grads::input(&mut gradient).scaled_by(&upstreams);
        loss.forward_backward_into(&x, &target, &mut each, grads, &mut workspace, &stream).unwrap();
        for (row, (got, expected)) in
            each.values().to_vec().unwrap().into_iter().zip(&expected).enumerate()
        {
            let expected = expected.loss + expected.z;
            let off = (f64::from(got) - expected).abs();
            assert!(off <= 2e-6 * expected.abs(), "row {row}: expected {expected}, got {got}");
        }
        let scale = |row: usize| f64::from(upstream[row]);
        check_gradients(&gradient.to_vec().unwrap(), &expected, scale);
    }
}

#[test]
fn rows_of_infinities_and_nan_and_a_target_that_is_no_class() {
    let (stream, cols) = (gpu().stream().unwrap(), COLS + 3);
    let rows = rows().max(5);
    let mut input = Input::drawn(5, rows, cols);
    input.x.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 1.0);
    input.classes = (0..rows).map(|row| (row * 31) as i64).collect();
    // Rows: all logits but one are −∞; one logit is NaN, in the last part; one is +∞; all are −∞.
    input.x[..cols].fill(f32::NEG_INFINITY);
    input.x[0] = 3.0;
    input.x[2 * cols - 1] = f32::NAN;
    input.x[2 * cols + cols / 2] = f32::INFINITY;
    input.x[3 * cols..4 * cols].fill(f32::NEG_INFINITY);
    let x = Tensor::from_slice(gpu(), [rows, cols], &input.x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &input.classes).unwrap();
    let (each, gradient) = CrossEntropy::none().forward_backward(&x, &target, &stream).unwrap();
    let (each, gradient) = (each.values().to_vec().unwrap(), gradient.to_vec().unwrap());
    assert_eq!(each[0].to_bits(), 0, "a row that is certain");
    assert!(gradient[..cols].iter().all(|&by| by == 0.0), "a row that is certain");
    for row in [1, 2, 3] {
        assert!(each[row].is_nan(), "row {row}");
        assert!(gradient[row * cols..][..cols].iter().all(|by| by.is_nan()), "row {row}");
    }
    assert!(each[4..].iter().all(|loss| loss.is_finite()), "a row of ordinary logits");

    input.classes[1] = cols as i64;
    let target = Tensor::from_slice(gpu(), [rows], &input.classes).unwrap();
    let (loss, _) = CrossEntropy::sum().forward_backward(&x, &target, &stream).unwrap();
    match loss.item() {
        Err(Error::TargetOutOfRange { row: 1, target, classes, .. }) => {
            assert_eq!((target, classes), (cols as i64, cols));
        }
        other => panic!("expected the row and its target, got {other:?}"),
    }
}
