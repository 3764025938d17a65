//! Loss and gradients of rows so long that several blocks share each: against float64, over
//! alignments, options and rows of every kind.
//!
//! The emulator's device with two multiprocessors has shared memory for a part of such a row only:
//! the rest is read twice.

use approx::assert_relative_eq;
use fused_loss::{CrossEntropy, Error, Gpu, Grads, Loss, Tensor, View, ViewMut, Workspace};
use std::sync::OnceLock;
use tests::gpu as any_gpu;
use tests::random::uniforms;
use tests::reference::cross_entropy::{Options, Row, Target, row};

/// The GPU, or the emulator's device with two multiprocessors.
fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| match any_gpu() {
        gpu if gpu.is_emulated() => Gpu::emulated(2).unwrap(),
        gpu => gpu.clone(),
    })
}

/// On a GPU, several for each group of blocks.
fn rows() -> usize {
    if gpu().is_emulated() { 3 } else { 150 }
}

/// The fewest columns of a shared row.
const COLS: usize = (448 << 10) / 4;

const PLAIN: Options<'_> = Options { weight: &[], label_smoothing: 0.0, z_loss: 0.0 };

/// The rows of a call.
struct Input {
    cols: usize,
    x: Vec<f32>,
    classes: Vec<i64>,
}

impl Input {
    /// Rows of ordinary logits, of which every fifth is ignored, and holds NaN.
    fn new(cols: usize) -> Self {
        let rows = rows();
        let mut x: Vec<f32> = uniforms(5, rows * cols).iter().map(|x| 8.0 * x).collect();
        // In the head, in the tail, and anywhere.
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

    /// What each row has in float64. Without weights, all are 1.
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

/// Holds gradients against float64. `scale` is that of each row's.
fn check_gradients(got: &[f32], expected: &[Row], scale: impl Fn(usize) -> f64, z_scale: f64) {
    let cols = got.len() / expected.len();
    for (index, (got, expected)) in got.chunks(cols).zip(expected).enumerate() {
        let largest = expected.by_input.iter().fold(0.0_f64, |most, by| most.max(by.abs()));
        for (col, &got) in got.iter().enumerate() {
            let z = expected.z_by_input[col] * z_scale;
            let expected = expected.by_input[col] * scale(index) + z;
            let off = (f64::from(got) - expected).abs();
            let allowed = 3e-6 * expected.abs() + 1e-7 * largest * scale(index);
            assert!(off <= allowed, "row {index}, {col}: expected {expected}, got {got}");
        }
    }
}

/// Rows `gap` elements apart, the first of which begins `offset` elements behind a boundary.
struct Strided {
    memory: Tensor<f32>,
    cols: usize,
    gap: usize,
    offset: usize,
}

impl Strided {
    fn new(x: &[f32], [cols, gap, offset]: [usize; 3]) -> Self {
        let mut padded = vec![7.0; offset];
        for row in x.chunks(cols) {
            padded.extend_from_slice(row);
            padded.resize(padded.len() + gap, 7.0);
        }
        let memory = Tensor::from_slice(gpu(), [padded.len()], &padded).unwrap();
        Strided { memory, cols, gap, offset }
    }

    fn address(&self) -> u64 {
        self.memory.as_raw() + 4 * self.offset as u64
    }

    fn view(&self) -> View<'_, f32> {
        let (shape, stride) = ([rows(), self.cols], self.cols + self.gap);
        // SAFETY: within `memory`, which `self` keeps, and whose work the tests wait for.
        unsafe { View::from_raw_strided(gpu(), self.address(), shape, stride) }.unwrap()
    }

    fn view_mut(&mut self) -> ViewMut<'_, f32> {
        let (shape, stride) = ([rows(), self.cols], self.cols + self.gap);
        // SAFETY: as above.
        unsafe { ViewMut::from_raw_strided(gpu(), self.address(), shape, stride) }.unwrap()
    }

    /// The rows' bits, once what is between them is found as it was.
    fn bits(&self) -> Vec<u32> {
        let padded = self.memory.to_vec().unwrap();
        let mut bits = Vec::new();
        for row in padded[self.offset..].chunks(self.cols + self.gap) {
            bits.extend(row[..self.cols].iter().map(|x| x.to_bits()));
            assert!(row[self.cols..].iter().all(|&x| x == 7.0), "written between rows");
        }
        bits
    }
}

fn numbers(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&bits| f32::from_bits(bits)).collect()
}

#[test]
fn the_mean_and_its_gradient_at_any_alignment() {
    let stream = gpu().stream().unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    for (cols, offset, gap) in [(COLS, 0, 0), (COLS + 1, 0, 0), (COLS + 30, 3, 5)] {
        let input = Input::new(cols);
        let mut x = Strided::new(&input.x, [cols, gap, offset]);
        let target = Tensor::from_slice(gpu(), [rows()], &input.classes).unwrap();
        let expected = input.expected(PLAIN);
        let count = input.classes.iter().filter(|&&class| class >= 0).count() as f64;
        let mean = expected.iter().map(|row| row.loss).sum::<f64>() / count;
        let (mut all, mut loss) = (Vec::new(), Loss::zeros(gpu(), []).unwrap());
        // Each launch finds in the workspace what the one before has left.
        for _ in 0..3 {
            let mut to = Strided::new(&vec![f32::NAN; input.x.len()], [cols, gap, offset]);
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
            all.push((got.to_bits(), to.bits()));
        }
        check_gradients(&numbers(&all[0].1), &expected, |_| 1.0 / count, 0.0);
        assert!(all.iter().all(|one| *one == all[0]), "other bits in another run");
        CrossEntropy::mean()
            .forward_backward_in_place(x.view_mut(), &target, &mut loss, &mut workspace, &stream)
            .unwrap();
        assert_eq!(loss.item().unwrap().to_bits(), all[0].0, "in place");
        assert!(x.bits() == all[0].1, "in place");
    }
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
        let by: Vec<Row> = expected
            .into_iter()
            .enumerate()
            .map(|(index, mut row)| {
                let z = row.z_by_input.iter().map(|by| by * scale(index));
                row.z_by_input = z.collect();
                row
            })
            .collect();
        check_gradients(&gradient.to_vec().unwrap(), &by, scale, 1.0);
    }
}

#[test]
fn rows_of_infinities_and_nan_and_a_target_that_is_no_class() {
    let (stream, cols) = (gpu().stream().unwrap(), COLS + 3);
    let mut input = Input::new(cols);
    input.x.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 1.0);
    input.classes = (0..rows()).map(|row| (row * 31) as i64).collect();
    // All logits but one are −∞; one is NaN, in the last part; one is +∞.
    input.x[..cols].fill(f32::NEG_INFINITY);
    input.x[0] = 3.0;
    input.x[2 * cols - 1] = f32::NAN;
    input.x[2 * cols + cols / 2] = f32::INFINITY;
    let x = Tensor::from_slice(gpu(), [rows(), cols], &input.x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows()], &input.classes).unwrap();
    let (each, gradient) = CrossEntropy::none().forward_backward(&x, &target, &stream).unwrap();
    let (each, gradient) = (each.values().to_vec().unwrap(), gradient.to_vec().unwrap());
    assert_eq!(each[0].to_bits(), 0, "a row that is certain");
    assert!(gradient[..cols].iter().all(|&by| by == 0.0), "a row that is certain");
    for row in [1, 2] {
        assert!(each[row].is_nan(), "row {row}");
        assert!(gradient[row * cols..][..cols].iter().all(|by| by.is_nan()), "row {row}");
    }
    assert!(each[3..].iter().all(|loss| loss.is_finite()), "a row of ordinary logits");

    input.classes[1] = cols as i64;
    let target = Tensor::from_slice(gpu(), [rows()], &input.classes).unwrap();
    let (loss, _) = CrossEntropy::sum().forward_backward(&x, &target, &stream).unwrap();
    match loss.item() {
        Err(Error::TargetOutOfRange { row: 1, target, classes, .. }) => {
            assert_eq!((target, classes), (cols as i64, cols));
        }
        other => panic!("expected the row and its target, got {other:?}"),
    }
}
