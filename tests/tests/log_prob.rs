//! Log-probabilities of classes and entropies of rows: every kind of kernel over dtypes, class
//! types, strides and temperatures, against float64; rows of every kind; and refused calls.

use fused_loss::{Classes, CrossEntropy, LogProb, Loss, Tensor, Upstreams, Workspace};
use half::{bf16, f16};
use tests::number::Number;
use tests::random::{uniform, uniforms};
use tests::reference::log_prob::{Row, row};
use tests::{Placed, gpu, tensor};

fn draw<T: Number>(seed: u64, len: usize, scale: f64) -> Vec<T> {
    uniforms(seed, len).into_iter().map(|value| T::round(f64::from(value) * scale)).collect()
}

/// The classes of rows, one in four of which is ignored.
fn classes(seed: u64, rows: usize, cols: usize, ignored: i64) -> Vec<i64> {
    let place = |row: usize| (f64::from(uniform(seed, row as u64)) + 1.0) / 2.0;
    let class = |row| (place(row) * cols.min(255) as f64) as i64;
    (0..rows).map(|row| if row % 4 == 2 { ignored } else { class(row) }).collect()
}

/// Which of the two results has an upstream gradient.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Arrives {
    LogProb,
    Entropy,
    Both,
}

/// Logits, classes and upstream gradients.
struct Case<T: Number> {
    shape: [usize; 2],
    x: Vec<T>,
    classes: Vec<i64>,
    loss: LogProb,
    upstreams: [Vec<T::Loss>; 2],
    arrives: Arrives,
}

impl<T: Number> Case<T>
where
    T::Loss: Number,
{
    fn new(seed: u64, shape: [usize; 2], scale: f64, loss: LogProb) -> Self {
        let [rows, cols] = shape;
        Case {
            shape,
            x: draw(seed, rows * cols, scale),
            classes: classes(seed ^ 1, rows, cols, loss.ignore_index),
            loss,
            upstreams: [draw(seed ^ 2, rows, 2.0), draw(seed ^ 3, rows, 2.0)],
            arrives: Arrives::Both,
        }
    }

    fn upstream(&self, row: usize) -> [f64; 2] {
        let [a, b] = [0, 1].map(|which: usize| self.upstreams[which][row].wide());
        match self.arrives {
            Arrives::LogProb => [a, 0.0],
            Arrives::Entropy => [0.0, b],
            Arrives::Both => [a, b],
        }
    }

    /// The expected results of row `index`.
    fn expected(&self, index: usize) -> Row {
        let cols = self.shape[1];
        let x: Vec<f64> =
            self.x[index * cols..(index + 1) * cols].iter().map(|x| x.wide()).collect();
        let class = self.classes[index];
        let class = (class != self.loss.ignore_index).then_some(class as usize);
        row(&x, class, self.loss.temperature, self.upstream(index))
    }

    #[track_caller]
    fn check(&self, what: &str, results: [&Loss<T::Loss>; 2], gradient: Option<&[T]>) {
        let [log_probs, entropies] = results.map(|of| of.to_vec().unwrap());
        let ([rows, cols], temperature) = (self.shape, self.loss.temperature);
        for index in 0..rows {
            let expected = self.expected(index);
            let near = |got: T::Loss, of: f64| {
                let error = (got.wide() - of).abs();
                assert!(
                    error <= T::LOSS * (1.0 + of.abs()),
                    "{what}, {} {:?}, T {temperature}, row {index}: {got:?}, not {of}",
                    T::NAME,
                    self.shape
                );
            };
            near(log_probs[index], expected.log_prob);
            near(entropies[index], expected.entropy);
            let Some(gradient) = gradient else { continue };
            let largest = expected.gradient.iter().fold(0.0, |most: f64, by| most.max(by.abs()));
            let [a, b] = self.upstream(index);
            let scale = (a.abs() + b.abs() * (1.0 + expected.entropy)) / temperature;
            for (column, &of) in expected.gradient.iter().enumerate() {
                let got = gradient[index * cols + column].wide();
                assert!(
                    (got - of).abs() <= 2.0 * T::allowed(of, largest, scale),
                    "{what}, {} {:?}, T {temperature}, {:?}, row {index}, column {column}: {got}, \
                     not {of}",
                    T::NAME,
                    self.shape,
                    self.arrives
                );
            }
        }
    }

    /// Compares every method with float64, for these classes. The rows of logits and of the
    /// gradient have gaps of `gap` elements and begin `offset` elements after a boundary.
    fn check_all(&self, gap: usize, offset: usize, classes: Classes<'_>) {
        let ([rows, cols], loss) = (self.shape, self.loss);
        let stream = gpu().stream().unwrap();
        let nan = T::round(f64::NAN);
        let place = |data: &[T], at| Placed::rows(data, self.shape, cols + gap, at, nan);
        let input = place(&self.x, offset);
        let (a, b) = (tensor(&self.upstreams[0]), tensor(&self.upstreams[1]));
        let upstreams = match self.arrives {
            Arrives::LogProb => Upstreams::log_prob(&a),
            Arrives::Entropy => Upstreams::entropy(&b),
            Arrives::Both => Upstreams::both(&a, &b),
        };
        let mut workspace = Workspace::new(gpu()).unwrap();
        let zeros = || Loss::<T::Loss>::zeros(gpu(), [rows]).unwrap();

        let (log_prob, entropy) = loss.forward(input.view(), classes, &stream).unwrap();
        self.check("forward", [&log_prob, &entropy], None);
        let (log_prob, entropy, saved) =
            loss.forward_saving(input.view(), classes, &stream).unwrap();
        let gradient = loss.backward(input.view(), classes, &saved, upstreams, &stream).unwrap();
        self.check("backward", [&log_prob, &entropy], Some(&gradient.to_vec().unwrap()));
        let mut apart = place(&vec![T::default(); rows * cols], offset + 1);
        loss.backward_into(input.view(), classes, &saved, upstreams, apart.view_mut(), &stream)
            .unwrap();
        // Work on raw memory is known to the stream alone.
        stream.synchronize().unwrap();
        self.check("backward_into", [&log_prob, &entropy], Some(&apart.to_vec()));
        let mut over = place(&self.x, offset);
        loss.backward_in_place(over.view_mut(), classes, &saved, upstreams, &stream).unwrap();
        // Work on raw memory is known to the stream alone.
        stream.synchronize().unwrap();
        self.check("backward_in_place", [&log_prob, &entropy], Some(&over.to_vec()));

        let (log_prob, entropy, gradient) =
            loss.forward_backward(input.view(), classes, upstreams, &stream).unwrap();
        self.check("forward_backward", [&log_prob, &entropy], Some(&gradient.to_vec().unwrap()));
        let (mut log_prob, mut entropy) = (zeros(), zeros());
        let results = (&mut log_prob, &mut entropy);
        let mut apart = place(&vec![T::default(); rows * cols], offset + 1);
        let to = apart.view_mut();
        loss.forward_backward_into(
            input.view(),
            classes,
            results,
            upstreams,
            to,
            &mut workspace,
            &stream,
        )
        .unwrap();
        // Work on raw memory is known to the stream alone.
        stream.synchronize().unwrap();
        self.check("forward_backward_into", [&log_prob, &entropy], Some(&apart.to_vec()));
        let (mut log_prob, mut entropy) = (zeros(), zeros());
        let results = (&mut log_prob, &mut entropy);
        let mut over = place(&self.x, offset);
        let to = over.view_mut();
        loss.forward_backward_in_place(to, classes, results, upstreams, &mut workspace, &stream)
            .unwrap();
        // Work on raw memory is known to the stream alone.
        stream.synchronize().unwrap();
        self.check("forward_backward_in_place", [&log_prob, &entropy], Some(&over.to_vec()));
        let (mut log_prob, mut entropy) = (zeros(), zeros());
        loss.forward_into(
            input.view(),
            classes,
            (&mut log_prob, &mut entropy),
            &mut workspace,
            &stream,
        )
        .unwrap();
        self.check("forward_into", [&log_prob, &entropy], None);
    }
}

/// Rows that are packed, with any alignment; in the registers of a block; shared by blocks; and
/// many rows with a block each.
const SHAPES: [[usize; 2]; 10] = [
    [5, 1],
    [7, 3],
    [70, 33],
    [6, 128],
    [5, 1000],
    [3, 4096],
    [4, 2051],
    [2, 20_011],
    [300, 1301],
    [5, 2607],
];

/// Checks every method with each kind of kernel, at one of these temperatures.
fn check_shapes<T: Number>()
where
    T::Loss: Number,
{
    let temperatures = [1.0, 0.1, 0.7, 10.0];
    let arrives = [Arrives::Both, Arrives::LogProb, Arrives::Entropy];
    for (index, shape) in SHAPES.into_iter().enumerate() {
        // Aligned rows without gaps, and rows that begin anywhere.
        for (gap, offset) in [(0, 0), (3, 1)] {
            let loss = LogProb::new().temperature(temperatures[(index + offset) % 4]);
            let mut case = Case::<T>::new(7 + index as u64, shape, 6.0, loss);
            case.arrives = arrives[(index + offset) % 3];
            case.check_all(gap, offset, (&tensor(&case.classes)).into());
        }
    }
}

#[test]
fn every_regime_in_f32() {
    check_shapes::<f32>();
}

#[test]
fn every_regime_in_f64() {
    check_shapes::<f64>();
}

#[test]
fn every_regime_in_f16() {
    check_shapes::<f16>();
}

#[test]
fn every_regime_in_bf16() {
    check_shapes::<bf16>();
}

#[test]
fn classes_of_every_type() {
    let loss = LogProb::new().ignore_index(255).temperature(0.7);
    for shape in [[9, 40], [3, 3000]] {
        let case = Case::<f32>::new(3, shape, 4.0, loss);
        macro_rules! check {
            ($($class:ty)+) => {$({
                let classes: Vec<$class> =
                    case.classes.iter().map(|&class| class as $class).collect();
                case.check_all(0, 0, (&tensor(&classes)).into());
            })+};
        }
        check!(u8 i32 u32 i64);
    }
}

/// One row of a language model's vocabulary, and one that is longer than any.
#[test]
fn rows_of_a_vocabulary() {
    for cols in [50_257, 130_000] {
        let case = Case::<bf16>::new(11, [2, cols], 8.0, LogProb::new().temperature(0.8));
        case.check_all(0, 0, (&tensor(&case.classes)).into());
    }
}

/// With a temperature of 1, log-probabilities are bit for bit what cross-entropy computes where the
/// same kind of kernel takes the rows.
#[test]
fn a_temperature_of_one_is_cross_entropy() {
    fn check<T: Number>(shape: [usize; 2], both: bool)
    where
        T::Loss: Number,
    {
        let stream = gpu().stream().unwrap();
        let case = Case::<T>::new(17, shape, 9.0, LogProb::new());
        let input = Tensor::from_slice(gpu(), shape, &case.x).unwrap();
        let classes = tensor(&case.classes);
        let loss = CrossEntropy::none();
        let (log_prob, loss) = if both {
            let one = tensor(&[T::Loss::round(1.0)]);
            let one = Upstreams::log_prob(one.view().expand([shape[0]]).unwrap());
            (
                LogProb::new().forward_backward(&input, &classes, one, &stream).unwrap().0,
                loss.forward_backward(&input, &classes, &stream).unwrap().0,
            )
        } else {
            (
                LogProb::new().forward(&input, &classes, &stream).unwrap().0,
                loss.forward(&input, &classes, &stream).unwrap(),
            )
        };
        let negative: Vec<f64> = loss.to_vec().unwrap().iter().map(|of| 0.0 - of.wide()).collect();
        let log_prob: Vec<f64> = log_prob.to_vec().unwrap().iter().map(|of| of.wide()).collect();
        // In float64, cross-entropy sums in another order.
        let most = if size_of::<T>() == 8 { 1e-14 } else { 0.0 };
        for (got, expected) in log_prob.iter().zip(&negative) {
            let is_near = (got - expected).abs() <= most * expected.abs();
            assert!(is_near, "{} {shape:?}: expected {expected}, got {got}", T::NAME);
        }
    }
    for both in [false, true] {
        check::<f16>([9, 131], both);
        check::<bf16>([9, 131], both);
        check::<f64>([9, 333], both);
    }
    check::<f32>([1100, 129], false);
    check::<f64>([2, 20_011], false);
    check::<f32>([3, 4096], true);
    check::<f16>([3, 8192], true);
    check::<bf16>([3, 8192], true);
    check::<f64>([3, 1000], true);
    check::<f64>([300, 1031], true);
}

/// Kernels compute z − m for any z, so rows far from 0 are as accurate as rows around 0.
#[test]
fn logits_far_from_zero() {
    for center in [1e4, -1e4, 3e7, -1e30] {
        for cols in [37, 1000, 4096, 5001] {
            for temperature in [0.1, 1.0, 10.0] {
                let loss = LogProb::new().temperature(temperature);
                let mut case = Case::<f32>::new(5, [3, cols], 4.0, loss);
                for x in &mut case.x {
                    *x += center as f32;
                }
                case.check_all(0, 0, (&tensor(&case.classes)).into());
            }
        }
    }
}

/// If a class is nearly certain, both results and the gradient are small and have all their digits.
#[test]
fn a_row_that_is_nearly_certain() {
    let stream = gpu().stream().unwrap();
    for cols in [5, 33, 1000, 4096, 9001] {
        let mut x = vec![-18.0_f32; cols];
        x[1] = 0.0;
        let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let expected = row(&wide, Some(1), 1.0, [1.0, 0.5]);
        let input = Tensor::from_slice(gpu(), [1, cols], &x).unwrap();
        let (classes, a, b) = (tensor(&[1_i64]), tensor(&[1.0_f32]), tensor(&[0.5_f32]));
        let (loss, upstreams) = (LogProb::new(), Upstreams::both(&a, &b));
        let (log_prob, entropy, saved) = loss.forward_saving(&input, &classes, &stream).unwrap();
        let backward = loss.backward(&input, &classes, &saved, upstreams, &stream).unwrap();
        let both = loss.forward_backward(&input, &classes, upstreams, &stream).unwrap();
        for (log_prob, entropy, gradient) in [(log_prob, entropy, backward), both] {
            let gradient = gradient.to_vec().unwrap();
            for (got, of) in [
                (log_prob.to_vec().unwrap()[0], expected.log_prob),
                (entropy.to_vec().unwrap()[0], expected.entropy),
                (gradient[1], expected.gradient[1]),
                (gradient[0], expected.gradient[0]),
            ] {
                let error = (f64::from(got) - of).abs();
                assert!(error <= 1e-5 * of.abs(), "{cols} columns: {got}, not {of}");
            }
        }
    }
}

/// For nearly equal logits, the gradient of the entropy comes from the small difference of each
/// logit from their mean, and is accurate all the same.
#[test]
fn a_row_of_nearly_equal_logits() {
    for cols in [40, 1000, 4096, 9001] {
        let mut case = Case::<f32>::new(23, [3, cols], 1e-3, LogProb::new());
        case.arrives = Arrives::Entropy;
        case.check_all(0, 0, (&tensor(&case.classes)).into());
    }
}

/// A logit of −∞ contributes nothing to the entropy and has a gradient of 0.
#[test]
fn logits_of_minus_infinity() {
    for cols in [6, 100, 1001, 4096, 7000] {
        let mut case = Case::<f32>::new(29, [5, cols], 3.0, LogProb::new().temperature(2.0));
        for (index, x) in case.x.iter_mut().enumerate() {
            if index % 3 == 1 || index % cols < cols / 3 {
                *x = f32::NEG_INFINITY;
            }
        }
        for (row, class) in case.classes.iter_mut().enumerate() {
            let likeliest = (cols / 3..cols).find(|at| case.x[row * cols + at].is_finite());
            *class = if row == 2 { -100 } else { likeliest.unwrap() as i64 };
        }
        case.check_all(0, 0, (&tensor(&case.classes)).into());
    }
}
