//! The mean loss, with gradients, of so many short rows that the first launch assumes that all of
//! them count. If a row is ignored or its target is no class, a second launch starts over. The
//! tests compare with float64, for kernels with one lane per row and with several.

use emulator::Faults;
use fused_loss::{CrossEntropy, Error, Loss, Tensor, Workspace};
use half::bf16;
use rayon::prelude::*;
use tests::brief::usually;
use tests::graph::Capture;
use tests::number::Number;
use tests::random::uniforms;
use tests::small_gpu;

/// The ignored target, unless a call says otherwise.
const IGNORED: i64 = -100;
const SMOOTHING: f64 = 0.25;
const Z_LOSS: f64 = 0.01;

/// The target of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Class,
    Ignored,
    NoClass,
}

/// Enough rows for two launches on the device of the test.
fn many_rows() -> usize {
    if small_gpu().is_emulated() { 17_003 } else { 1_250_003 }
}

/// Logits of many rows, and the loss and gradient of each row unless it is ignored.
struct Rows<T> {
    rows: usize,
    cols: usize,
    smoothing: f64,
    z_loss: f64,
    /// The target of ignored rows. No other row has it, though it may be a class.
    ignored: i64,
    x: Vec<T>,
    losses: Vec<f64>,
    gradients: Vec<f64>,
}

impl<T: Number> Rows<T>
where
    T::Loss: Number,
{
    fn new(cols: usize, smoothing: f64) -> Self {
        Self::ignoring(cols, [smoothing, 0.0], IGNORED)
    }

    fn ignoring(cols: usize, [smoothing, z_loss]: [f64; 2], ignored: i64) -> Self {
        let rows = many_rows();
        let logit = |x: &f32| T::round(4.0 * f64::from(*x));
        let x: Vec<T> = uniforms(31 + cols as u64, rows * cols).iter().map(logit).collect();
        let (mut losses, mut gradients) = (vec![0.0; rows], vec![0.0; rows * cols]);
        let results = losses.par_iter_mut().zip(gradients.par_chunks_mut(cols));
        x.par_chunks(cols).zip(results).enumerate().for_each(|(row, (x, (loss, gradient)))| {
            let exps: Vec<f64> = x.iter().map(|x| x.wide().exp()).collect();
            let sum: f64 = exps.iter().sum();
            let minus_log_p = |column: usize| sum.ln() - x[column].wide();
            let share = smoothing / cols as f64;
            let class = class_of(row, cols, ignored);
            let all: f64 = if share > 0.0 { (0..cols).map(minus_log_p).sum() } else { 0.0 };
            let log_sum_exp = sum.ln();
            let of_z_loss = z_loss * log_sum_exp * log_sum_exp;
            *loss = (1.0 - smoothing) * minus_log_p(class) + share * all + of_z_loss;
            for (column, (exp, gradient)) in exps.iter().zip(gradient).enumerate() {
                let of_class = if column == class { 1.0 - smoothing } else { 0.0 };
                *gradient = (1.0 + 2.0 * z_loss * log_sum_exp) * exp / sum - of_class - share;
            }
        });
        Rows { rows, cols, smoothing, z_loss, ignored, x, losses, gradients }
    }

    fn classes(&self, target: impl Fn(usize) -> Target) -> Vec<i64> {
        let of_row = |row| match target(row) {
            Target::Class => class_of(row, self.cols, self.ignored) as i64,
            Target::Ignored => self.ignored,
            Target::NoClass => self.cols as i64 + row as i64,
        };
        (0..self.rows).map(of_row).collect()
    }

    /// Compares a loss and its gradients with float64. Rows with a class count.
    fn check(
        &self,
        target: impl Fn(usize) -> Target + Sync,
        loss: &Loss<T::Loss>,
        gradient: &Tensor<T>,
    ) {
        let of = |which: Target| (0..self.rows).filter(|&row| target(row) == which).count();
        let (count, all) = (of(Target::Class) as f64, of(Target::NoClass) == 0);
        match loss.item() {
            Ok(got) if all && count == 0.0 => assert!(got.wide().is_nan()),
            Ok(got) if all => {
                let counted = (0..self.rows).filter(|&row| target(row) == Target::Class);
                let expected = counted.map(|row| self.losses[row]).sum::<f64>() / count;
                let off = (got.wide() - expected).abs();
                assert!(off <= 1e-6 * expected, "expected {expected}, got {got:?}");
            }
            Err(Error::TargetOutOfRange { row, target: class, .. }) => {
                assert_eq!(Some(row), (0..self.rows).find(|&row| target(row) == Target::NoClass));
                assert_eq!(class, (self.cols + row) as i64);
            }
            other => panic!("{other:?}"),
        }
        let gradient = gradient.to_vec().unwrap();
        gradient.par_chunks(self.cols).enumerate().for_each(|(row, got)| {
            let expected = &self.gradients[row * self.cols..][..self.cols];
            let is_near = |(got, expected): (&T, &f64)| match target(row) {
                Target::Ignored => got.wide() == 0.0,
                Target::NoClass => got.wide().is_nan(),
                Target::Class => {
                    let expected = expected / count;
                    let allowed = T::allowed(expected, 1.0 / count, 1.0) + 2e-6 / count;
                    (got.wide() - expected).abs() <= allowed
                }
            };
            let all_near = got.iter().zip(expected).all(is_near);
            assert!(all_near, "row {row}, {:?}: {got:?}, {expected:?} ÷ {count}", target(row));
        });
    }

    /// Makes two calls on the same rows and workspace for each kind of targets. With a new
    /// workspace, the first call assumes that all rows count. If that was wrong, the second call is
    /// cautious.
    fn check_calls(&self) {
        let last = self.rows - 1;
        let targets: [fn(usize, usize) -> Target; 7] = [
            |row, _| if row == 0 { Target::Ignored } else { Target::Class },
            |_, _| Target::Class,
            |row, last| if row == last { Target::Ignored } else { Target::Class },
            |row, _| if row % 3 == 1 { Target::Ignored } else { Target::Class },
            |row, last| if row == last / 2 { Target::NoClass } else { Target::Class },
            |row, _| match row % 5000 {
                77 => Target::NoClass,
                4000.. => Target::Ignored,
                _ => Target::Class,
            },
            |_, _| Target::Ignored,
        ];
        let stream = small_gpu().stream().unwrap();
        let shape = [self.rows, self.cols];
        let x = Tensor::from_slice(small_gpu(), shape, &self.x).unwrap();
        let mut gradient = Tensor::zeros(small_gpu(), shape).unwrap();
        let mut loss = Loss::zeros(small_gpu(), []).unwrap();
        let mean = CrossEntropy::mean()
            .label_smoothing(self.smoothing)
            .z_loss(self.z_loss)
            .ignore_index(self.ignored);
        // All kinds, or the first two, with one ignored row and with none: the others take too long
        // under a sanitizer.
        for target in &targets[..usually(targets.len(), 2)] {
            let target = |row| target(row, last);
            let classes =
                Tensor::from_slice(small_gpu(), [self.rows], &self.classes(target)).unwrap();
            let mut workspace = Workspace::new(small_gpu()).unwrap();
            for _ in 0..2 {
                mean.forward_backward_into(
                    &x,
                    &classes,
                    &mut loss,
                    &mut gradient,
                    &mut workspace,
                    &stream,
                )
                .unwrap();
                self.check(target, &loss, &gradient);
            }
        }
    }
}

fn class_of(row: usize, cols: usize, ignored: i64) -> usize {
    let class = row * 5 % cols;
    if class as i64 == ignored { (class + 1) % cols } else { class }
}

#[test]
fn rows_in_the_registers_of_a_lane() {
    Rows::<f32>::new(3, 0.0).check_calls();
    Rows::<bf16>::new(2, SMOOTHING).check_calls();
    Rows::<f64>::new(4, 0.0).check_calls();
}

#[test]
fn rows_wider_than_those() {
    Rows::<f32>::new(19, 0.0).check_calls();
    Rows::<bf16>::new(18, SMOOTHING).check_calls();
}

#[test]
fn rows_of_several_lanes() {
    Rows::<f32>::new(81, 0.0).check_calls();
    Rows::<bf16>::new(89, 0.0).check_calls();
}

/// A class that is ignored is in range, but its rows do not count.
#[test]
fn rows_of_a_class_that_is_ignored() {
    Rows::<f32>::ignoring(3, [0.0; 2], 1).check_calls();
    Rows::<bf16>::ignoring(18, [0.0; 2], 17).check_calls();
    Rows::<f32>::ignoring(5, [SMOOTHING, 0.0], 0).check_calls();
    Rows::<f32>::ignoring(5, [SMOOTHING, Z_LOSS], 0).check_calls();
}

/// A lane uses different loops for rows without options, with one option, and with others.
#[test]
fn rows_with_options() {
    Rows::<f32>::ignoring(3, [0.0, Z_LOSS], IGNORED).check_calls();
    Rows::<bf16>::ignoring(18, [0.0, Z_LOSS], IGNORED).check_calls();
    Rows::<bf16>::ignoring(4, [SMOOTHING, Z_LOSS], IGNORED).check_calls();
}

/// Gradients that overwrite the logits are right although they could not be computed twice.
#[test]
fn gradients_in_place_of_the_logits() {
    let rows = Rows::<f32>::new(5, 0.0);
    let stream = small_gpu().stream().unwrap();
    let (shape, mut workspace) = ([rows.rows, rows.cols], Workspace::new(small_gpu()).unwrap());
    for ignored in [1, rows.rows / 4] {
        let target = |row| if row < ignored { Target::Ignored } else { Target::Class };
        let mut x = Tensor::from_slice(small_gpu(), shape, &rows.x).unwrap();
        let classes = Tensor::from_slice(small_gpu(), [rows.rows], &rows.classes(target)).unwrap();
        let mut loss = Loss::zeros(small_gpu(), []).unwrap();
        CrossEntropy::mean()
            .forward_backward_in_place(&mut x, &classes, &mut loss, &mut workspace, &stream)
            .unwrap();
        rows.check(target, &loss, &x);
    }
}

/// A call returns the same bits whether or not earlier calls made it cautious: for targets that all
/// count, and for the targets that made it cautious.
#[test]
fn bits_of_cautious_calls() {
    let rows = Rows::<f32>::new(7, 0.0);
    let (gpu, shape) = (small_gpu(), [rows.rows, rows.cols]);
    let stream = gpu.stream().unwrap();
    // One loss is so large that others lose digits beside it, so the bits depend on which rows
    // share its block.
    let mut x = rows.x.clone();
    x[7 * 100 + class_of(100, 7, IGNORED)] = -3e5;
    let x = Tensor::from_slice(gpu, shape, &x).unwrap();
    let classes_of = |target: &dyn Fn(usize) -> Target| {
        Tensor::from_slice(gpu, [rows.rows], &rows.classes(target)).unwrap()
    };
    let bits = |classes: &Tensor<i64>, workspace: &mut Workspace| {
        let mut gradient = Tensor::<f32>::zeros(gpu, shape).unwrap();
        let mut loss = Loss::zeros(gpu, []).unwrap();
        CrossEntropy::mean()
            .forward_backward_into(&x, classes, &mut loss, &mut gradient, workspace, &stream)
            .unwrap();
        let gradient = gradient.to_vec().unwrap();
        let gradient: Vec<_> = gradient.iter().map(|value| value.to_bits()).collect();
        (loss.item().unwrap().to_bits(), gradient)
    };
    let all = classes_of(&|_| Target::Class);
    let of_all = bits(&all, &mut Workspace::new(gpu).unwrap());
    // The sum may be the same in another order of its terms, but hardly for all of these targets.
    for ignored in 0..usually(8, 1) {
        let is_ignored = |row| row != 100 && row % 9 == ignored;
        let some = classes_of(&|row| if is_ignored(row) { Target::Ignored } else { Target::Class });
        let mut workspace = Workspace::new(gpu).unwrap();
        let of_some = bits(&some, &mut workspace);
        assert!(of_some.0 != of_all.0);
        // This call is cautious.
        assert!(bits(&some, &mut workspace) == of_some);
        assert!(bits(&all, &mut workspace) == of_all);
    }
}

/// The second launch of a replay acts on what the first launch of the same replay has met.
#[test]
fn replays_with_other_targets() {
    let rows = Rows::<f32>::new(4, 0.0);
    let (gpu, shape) = (small_gpu(), [rows.rows, rows.cols]);
    let stream = gpu.stream().unwrap();
    let x = Tensor::from_slice(gpu, shape, &rows.x).unwrap();
    let mut classes = Tensor::<i64>::zeros(gpu, [rows.rows]).unwrap();
    let mut gradient = Tensor::zeros(gpu, shape).unwrap();
    let mut loss = Loss::zeros(gpu, []).unwrap();
    let mut workspace = Workspace::new(gpu).unwrap();
    let mut call = || {
        CrossEntropy::mean()
            .forward_backward_into(&x, &classes, &mut loss, &mut gradient, &mut workspace, &stream)
            .unwrap();
    };
    // The first use of a kernel compiles it, which a capture does not allow.
    call();
    stream.synchronize().unwrap();
    let capture = Capture::begin(&stream).unwrap();
    call();
    let graph = capture.end().unwrap();
    for ignored in [None, Some(7), None, Some(rows.rows - 1)] {
        let target = |row| if Some(row) == ignored { Target::Ignored } else { Target::Class };
        classes.copy_from_slice(&rows.classes(target)).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        rows.check(target, &loss, &gradient);
    }
}

/// A call has two launches only where they are worth their time: where a single one would read many
/// targets twice, and where gradients are divided by a number of rows.
#[test]
fn calls_of_two_launches() {
    if !small_gpu().is_emulated() {
        return;
    }
    let stream = small_gpu().stream().unwrap();
    let launches = |rows: usize, loss: CrossEntropy<'_, f32>| {
        let x = Tensor::<f32>::zeros(small_gpu(), [rows, 2]).unwrap();
        let classes = Tensor::<i64>::zeros(small_gpu(), [rows]).unwrap();
        let record = Faults::record();
        drop(loss.forward_backward(&x, &classes, &stream).unwrap());
        record.calls().iter().filter(|&&call| call == "cuLaunchKernelEx").count()
    };
    let weights = Tensor::from_slice(small_gpu(), [2], &[1.0_f32, 2.0]).unwrap();
    let mean = CrossEntropy::mean;
    // 64 KiB of targets for each of the two multiprocessors.
    assert_eq!([16_383, 16_384].map(|rows| launches(rows, mean())), [1, 2]);
    assert_eq!(launches(20_000, mean().weight(&weights)), 1);
}
