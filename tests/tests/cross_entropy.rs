//! Cross-entropy, beyond the cases that golden.rs compares with PyTorch: every kind of kernel over
//! dtypes, options, strides and alignments, against float64, and features that PyTorch does not
//! have.

use approx::assert_relative_eq;
use fused_loss::reduction::{SampleReduction, Unreduced};
use fused_loss::{
    CrossEntropy, Error, Gpu, Grads, Loss, Mean, Mse, RowSum, Saved, Sum, Targets, Tensor,
    Workspace,
};
use half::{bf16, f16};
use proptest::prelude::*;
use tests::number::Number;
use tests::random::{uniform, uniforms};
use tests::reference::Total;
use tests::reference::cross_entropy::{Options, Row, Target, row};
use tests::{Placed, gpu, small_gpu, tensor};

/// One random case.
#[derive(Clone, Debug)]
struct Case {
    shape: [usize; 2],
    /// Elements between the rows of input, probabilities and gradients.
    gaps: [usize; 3],
    /// Elements between a 16-byte boundary and the first element.
    offsets: [usize; 3],
    seed: u64,
    targets: Kind,
    weighted: bool,
    label_smoothing: f64,
    z_loss: f64,
    /// Whether upstream gradients arrive.
    with_upstream: bool,
    /// One row in this many is ignored.
    ignored: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    I64,
    I32,
    U32,
    U8,
    Probabilities,
}

fn case() -> impl Strategy<Value = Case> {
    // Rows of a part of a warp, of a block, of several tiles of a block, and of several blocks.
    let shape = prop_oneof![
        (0_usize..6, 1_usize..9).prop_map(|(rows, cols)| [rows, cols]),
        (1_usize..60, 1_usize..300).prop_map(|(rows, cols)| [rows, cols]),
        (1_usize..6, 300_usize..6_000).prop_map(|(rows, cols)| [rows, cols]),
        (1_usize..3, 16_000_usize..50_000).prop_map(|(rows, cols)| [rows, cols]),
    ];
    let gaps = prop_oneof![
        Just([0; 3]),
        (0_usize..20).prop_map(|gap| [gap; 3]),
        prop::array::uniform3(0_usize..20)
    ];
    let offsets = prop_oneof![
        Just([0; 3]),
        (0_usize..8).prop_map(|offset| [offset; 3]),
        prop::array::uniform3(0_usize..8)
    ];
    let targets = prop_oneof![
        Just(Kind::I64),
        Just(Kind::I32),
        Just(Kind::U32),
        Just(Kind::U8),
        Just(Kind::Probabilities)
    ];
    let options = (
        any::<bool>(),
        prop_oneof![Just(0.0), Just(0.1), Just(1.0)],
        prop_oneof![Just(0.0), Just(1e-3)],
        any::<bool>(),
        prop_oneof![Just(1_000_000), Just(3_usize)],
    );
    (shape, gaps, offsets, any::<u64>(), targets, options).prop_map(
        |(shape, gaps, offsets, seed, targets, options)| {
            let (weighted, label_smoothing, z_loss, with_upstream, ignored) = options;
            Case {
                shape,
                gaps,
                offsets,
                seed,
                targets,
                weighted,
                label_smoothing,
                z_loss,
                with_upstream,
                ignored,
            }
        },
    )
}

/// Numbers in [-`scale`, `scale`).
fn draw<T: Number>(seed: u64, len: usize, scale: f64) -> Vec<T> {
    uniforms(seed, len).into_iter().map(|value| T::round(f64::from(value) * scale)).collect()
}

fn wide<T: Number>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.wide()).collect()
}

/// The class of ignored rows. No other row of these cases has it.
fn ignore_index(case: &Case) -> i64 {
    match case.targets {
        Kind::U8 => 255,
        Kind::U32 => 4_000_000_000,
        _ => -7,
    }
}

/// The class of a row, or `None` if the row is ignored.
fn class(case: &Case, row: usize) -> Option<usize> {
    let classes = case.shape[1].min(if case.targets == Kind::U8 { 255 } else { usize::MAX });
    let place = (f64::from(uniform(case.seed ^ 5, row as u64)) + 1.0) / 2.0;
    if row % case.ignored == 1 { None } else { Some((place * classes as f64) as usize) }
}

/// Targets on the device, with the type and the layout of the case.
enum OnDevice<T> {
    I64(Tensor<i64>),
    I32(Tensor<i32>),
    U32(Tensor<u32>),
    U8(Tensor<u8>),
    Probabilities(Placed<T>),
}

impl<T: Number> OnDevice<T> {
    fn new(case: &Case, probabilities: &[T]) -> Self {
        let [rows, cols] = case.shape;
        let classes: Vec<i64> = (0..rows)
            .map(|row| class(case, row).map_or(ignore_index(case), |class| class as i64))
            .collect();
        macro_rules! classes {
            ($class:ty) => {{
                let classes: Vec<$class> = classes.iter().map(|&class| class as $class).collect();
                Tensor::from_slice(gpu(), [rows], &classes).unwrap()
            }};
        }
        match case.targets {
            Kind::I64 => OnDevice::I64(classes!(i64)),
            Kind::I32 => OnDevice::I32(classes!(i32)),
            Kind::U32 => OnDevice::U32(classes!(u32)),
            Kind::U8 => OnDevice::U8(classes!(u8)),
            Kind::Probabilities => {
                let stride = cols + case.gaps[1];
                let nan = T::round(f64::NAN);
                let at = case.offsets[1];
                OnDevice::Probabilities(Placed::rows(probabilities, case.shape, stride, at, nan))
            }
        }
    }

    fn targets(&self) -> Targets<'_, T> {
        match self {
            OnDevice::I64(classes) => classes.into(),
            OnDevice::I32(classes) => classes.into(),
            OnDevice::U32(classes) => classes.into(),
            OnDevice::U8(classes) => classes.into(),
            OnDevice::Probabilities(placed) => placed.view().into(),
        }
    }
}

/// Compares every method with float64.
fn check<T: Number, R: SampleReduction>(case: &Case, reduction: R)
where
    T::Loss: Number,
{
    let &Case { shape, gaps, offsets, seed, .. } = case;
    let [rows, cols] = shape;
    let len = rows * cols;
    let nan = T::round(f64::NAN);
    let x = draw::<T>(seed, len, 6.0);
    let t: Vec<T> = draw::<T>(seed ^ 1, len, 1.0)
        .into_iter()
        .map(|t| T::round(t.wide().abs() * 2.0 / cols as f64))
        .collect();
    let weight: Vec<T> = draw::<T>(seed ^ 2, cols, 0.5)
        .into_iter()
        .map(|w| if case.weighted { T::round(w.wide() + 1.0) } else { T::round(1.0) })
        .collect();
    let probabilities = case.targets == Kind::Probabilities;
    let each = R::KIND == kernels_gpu::abi::reduction::ELEMENTS;
    let of_loss: &[usize] = if each { &[rows] } else { &[] };
    let values = if each { rows } else { 1 };
    let mut upstream: Vec<T::Loss> = draw(seed ^ 3, values, 2.0);
    if !case.with_upstream {
        upstream.fill(T::Loss::round(1.0));
    }

    // The inputs of both, and the reference.
    let (on_weight, on_targets) = (tensor(&weight), OnDevice::new(case, &t));
    let (wide_x, wide_t, wide_weight) = (wide(&x), wide(&t), wide(&weight));
    let (label_smoothing, z_loss) = (case.label_smoothing, case.z_loss);
    let options = Options { weight: &wide_weight, label_smoothing, z_loss };
    let expected: Vec<Row> = (0..rows)
        .map(|index| {
            let range = index * cols..(index + 1) * cols;
            let target = match class(case, index) {
                _ if probabilities => Target::Probabilities(&wide_t[range.clone()]),
                None => Target::Ignored,
                Some(class) => Target::Class(class),
            };
            row(&wide_x[range], target, options)
        })
        .collect();
    let counts = expected.iter().filter(|row| row.weight > 0.0).count() as f64;
    let sum = |of: fn(&Row) -> f64| expected.iter().map(of).sum::<Total>().value();
    let (divisor, z_divisor) = if R::MEAN { (sum(|row| row.weight), counts) } else { (1.0, 1.0) };
    let losses: Vec<f64> = if each {
        expected.iter().map(|row| row.loss + row.z).collect()
    } else {
        vec![sum(|row| row.loss) / divisor + sum(|row| row.z) / z_divisor]
    };

    let mut loss_of = CrossEntropy::new()
        .ignore_index(if probabilities { -100 } else { ignore_index(case) })
        .label_smoothing(label_smoothing)
        .z_loss(z_loss)
        .reduction(reduction);
    loss_of.weight = case.weighted.then(|| on_weight.view());
    let assert_loss = |got: &Loss<T::Loss>, what: &str| {
        got.check().unwrap();
        let got = got.values().to_vec().unwrap();
        assert_eq!(got.len(), losses.len(), "{what}");
        for (index, (&got, &expected)) in got.iter().zip(&losses).enumerate() {
            let off = (got.wide() - expected).abs();
            // A small loss is an exponential: its relative error grows with its argument, that is,
            // as the loss gets smaller. In float64 itself, probabilities near 1 have an error of
            // their last digit.
            let argument = (-expected.abs().max(f64::MIN_POSITIVE).ln()).max(0.0);
            let allowed = T::Loss::LOSS * expected.abs() * (1.0 + argument / 8.0) + f64::EPSILON;
            let fits = off <= allowed || got.wide().is_nan() && expected.is_nan();
            assert!(fits, "{what}, loss {index}: expected {expected}, got {got}");
        }
    };
    let assert_gradient = |got: &[T], target: bool, what: &str| {
        for (index, expected) in expected.iter().enumerate() {
            let up = upstream[if each { index } else { 0 }].wide();
            let (scale, z_scale) = (up / divisor, up / z_divisor);
            let terms = expected.terms;
            let expected: Vec<f64> = if target {
                expected.by_target.iter().map(|by| by * scale).collect()
            } else {
                let both = expected.by_input.iter().zip(&expected.z_by_input);
                both.map(|(by, z)| by * scale + z * z_scale).collect()
            };
            let mut largest = expected.iter().fold(0.0_f64, |largest, by| largest.max(by.abs()));
            if !target && (probabilities || label_smoothing > 0.0) {
                // Where a distribution nearly equals its target, the gradient is the small
                // difference of two terms, and the error is relative to these.
                largest = largest.max(terms * scale.abs());
            }
            for (col, &expected) in expected.iter().enumerate() {
                let got = got[index * cols + col];
                let factor = scale.abs() + z_scale.abs() * z_loss;
                let allowed = T::allowed(expected, largest, factor) + f64::EPSILON * factor;
                let off = (got.wide() - expected).abs();
                assert!(
                    off <= allowed,
                    "{what}, row {index}, {col}: expected {expected}, got {got}"
                );
            }
        }
    };

    let place = |data: &[T], which: usize, guard| {
        Placed::rows(data, shape, cols + gaps[which], offsets[which], guard)
    };
    let on_x = place(&x, 0, nan);
    let on_upstream = Tensor::from_slice(gpu(), of_loss, &upstream).unwrap();
    let (stream, mut workspace) = (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
    let unwritten = vec![nan; len];
    let new_gradient = || place(&unwritten, 2, T::round(7.0));
    let new_loss = || Loss::<T::Loss>::zeros(gpu(), of_loss).unwrap();

    let mut loss = new_loss();
    loss_of
        .forward_into(on_x.view(), on_targets.targets(), &mut loss, &mut workspace, &stream)
        .unwrap();
    assert_loss(&loss, "forward");

    let (mut loss, mut saved) = (new_loss(), Saved::zeros(gpu(), shape).unwrap());
    loss_of
        .forward_saving_into(
            on_x.view(),
            on_targets.targets(),
            &mut loss,
            &mut saved,
            &mut workspace,
            &stream,
        )
        .unwrap();
    assert_loss(&loss, "forward, saving");
    let (mut by_x, mut by_t) = (new_gradient(), new_gradient());
    let grads = if probabilities {
        Grads::both(by_x.view_mut(), by_t.view_mut())
    } else {
        Grads::input(by_x.view_mut())
    };
    let (input, targets) = (on_x.view(), on_targets.targets());
    loss_of.backward_into(input, targets, &saved, &on_upstream, grads, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_gradient(&by_x.to_vec(), false, "backward");
    if probabilities {
        assert_gradient(&by_t.to_vec(), true, "backward, target");
    }

    let (mut loss, mut by_x, mut by_t) = (new_loss(), new_gradient(), new_gradient());
    let mut grads = if probabilities {
        Grads::both(by_x.view_mut(), by_t.view_mut())
    } else {
        Grads::input(by_x.view_mut())
    };
    if case.with_upstream {
        grads = grads.scaled_by(&on_upstream);
    }
    let (input, targets) = (on_x.view(), on_targets.targets());
    loss_of
        .forward_backward_into(input, targets, &mut loss, grads, &mut workspace, &stream)
        .unwrap();
    stream.synchronize().unwrap();
    assert_loss(&loss, "both");
    assert_gradient(&by_x.to_vec(), false, "both");
    if probabilities {
        assert_gradient(&by_t.to_vec(), true, "both, target");
    }

    let mut over = place(&x, 0, nan);
    let (input, targets) = (over.view_mut(), on_targets.targets());
    loss_of.backward_in_place(input, targets, &saved, &on_upstream, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_gradient(&over.to_vec(), false, "backward in place");
    if !case.with_upstream {
        let (mut over, mut loss) = (place(&x, 0, nan), new_loss());
        let (input, targets) = (over.view_mut(), on_targets.targets());
        loss_of
            .forward_backward_in_place(input, targets, &mut loss, &mut workspace, &stream)
            .unwrap();
        stream.synchronize().unwrap();
        assert_loss(&loss, "both in place");
        assert_gradient(&over.to_vec(), false, "both in place");
    }
}

fn check_reductions<T: Number>(case: &Case)
where
    T::Loss: Number,
{
    check::<T, _>(case, Mean);
    check::<T, _>(case, Sum);
    check::<T, _>(case, Unreduced);
}

/// The configuration of a run of `cases` cases.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn f32_logits(case in case()) {
        check_reductions::<f32>(&case);
    }

    #[test]
    fn f64_logits(case in case()) {
        check_reductions::<f64>(&case);
    }

    #[test]
    fn f16_logits(case in case()) {
        check_reductions::<f16>(&case);
    }

    #[test]
    fn bf16_logits(case in case()) {
        check_reductions::<bf16>(&case);
    }
}

proptest! {
    #![proptest_config(cases(500))]

    /// The whole matrix: every option with every dtype, reduction and kind of kernel, in many
    /// cases.
    #[test]
    #[ignore = "takes minutes on the emulator"]
    fn all_dtypes(case in case()) {
        check_reductions::<f32>(&case);
        check_reductions::<f64>(&case);
        check_reductions::<f16>(&case);
        check_reductions::<bf16>(&case);
    }
}

/// Rows too long for a block's registers, and so many that each row has its own block. The block
/// keeps all of a row of the first length in shared memory, and a part of a row of the second
/// length; on the emulator's other device, a part of both. Only three rows count.
#[test]
fn rows_that_a_block_keeps_in_shared_memory() {
    fn check<T: Number>(cols: usize)
    where
        T::Loss: Number,
    {
        let (rows, counting) = (257, [0, 7, 256]);
        let mut x = vec![T::round(f64::NAN); rows * cols];
        for row in counting {
            x[row * cols..][..cols].copy_from_slice(&draw::<T>(row as u64, cols, 6.0));
        }
        let mut classes = vec![-100_i64; rows];
        // Classes in the head or the first vectors, in the middle of a row, and in its tail.
        (classes[0], classes[7], classes[256]) = (1, cols as i64 / 2, cols as i64 - 1);
        let ones = vec![1.0; cols];
        let options = Options { weight: &ones, label_smoothing: 0.0, z_loss: 0.0 };
        let expected = counting.map(|index| {
            let x = wide(&x[index * cols..][..cols]);
            row(&x, Target::Class(classes[index] as usize), options)
        });
        let loss: f64 = expected.iter().map(|row| row.loss).sum::<f64>() / 3.0;
        let mut bits = Vec::new();
        let other = if gpu().is_emulated() { Some(Gpu::emulated(1).unwrap()) } else { None };
        for gpu in [Some(gpu().clone()), other].into_iter().flatten() {
            let (stream, mut workspace) = (gpu.stream().unwrap(), Workspace::new(&gpu).unwrap());
            let mut input = Tensor::from_slice(&gpu, [rows, cols], &x).unwrap();
            let target = Tensor::from_slice(&gpu, [rows], &classes).unwrap();
            let mean = CrossEntropy::mean();
            let (got, gradient) = mean.forward_backward(&input, &target, &stream).unwrap();
            let got = got.item().unwrap();
            assert_relative_eq!(got.wide(), loss, max_relative = T::Loss::LOSS);
            let gradient = gradient.to_vec().unwrap();
            for (index, of_row) in gradient.chunks(cols).enumerate() {
                let Some(at) = counting.iter().position(|&counts| counts == index) else {
                    assert!(of_row.iter().all(|by| by.wide() == 0.0), "row {index}");
                    continue;
                };
                let expected = expected[at].by_input.iter().map(|by| by / 3.0);
                let largest = expected.clone().fold(0.0_f64, |largest, by| largest.max(by.abs()));
                for (col, (got, expected)) in of_row.iter().zip(expected).enumerate() {
                    let off = (got.wide() - expected).abs();
                    let allowed = T::allowed(expected, largest, 1.0 / 3.0);
                    assert!(off <= allowed, "row {index}, {col}: expected {expected}, got {got:?}");
                }
            }
            let mut loss = Loss::zeros(&gpu, []).unwrap();
            mean.forward_backward_in_place(&mut input, &target, &mut loss, &mut workspace, &stream)
                .unwrap();
            assert_eq!(loss.item().unwrap().wide().to_bits(), got.wide().to_bits(), "in place");
            let to_bits = |by: &[T]| by.iter().map(|by| by.wide().to_bits()).collect::<Vec<_>>();
            let gradient = to_bits(&gradient);
            assert!(to_bits(&input.to_vec().unwrap()) == gradient, "in place");
            bits.push((got.wide().to_bits(), gradient));
        }
        assert!(bits.iter().all(|bits_of| *bits_of == bits[0]), "another device, other bits");
    }
    check::<f32>(57_213);
    check::<bf16>(128_255);
}

/// Rows of 16 bits whose logits a block holds in registers until it has computed the gradients:
/// eight vectors of 16 bytes per thread, of which at most the last four may be beyond the row. The
/// rows end with the first, a middle or the last vector of a thread, in one warp and in many.
#[test]
fn rows_of_16_bits_that_a_block_holds() {
    fn check<T: Number<Loss = f32>>(cols: usize) {
        let stream = gpu().stream().unwrap();
        let classes = [0, cols / 2, cols - 1];
        let x = draw::<T>(cols as u64, 3 * cols, 6.0);
        let input = Tensor::from_slice(gpu(), [3, cols], &x).unwrap();
        let target = Tensor::from_slice(gpu(), [3], &classes.map(|class| class as i64)).unwrap();
        let (loss, gradient) =
            CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
        let ones = vec![1.0; cols];
        let options = Options { weight: &ones, label_smoothing: 0.0, z_loss: 0.0 };
        let rows = || x.chunks(cols).zip(classes);
        let expected: Vec<_> =
            rows().map(|(x, class)| row(&wide(x), Target::Class(class), options)).collect();
        let mean: f64 = expected.iter().map(|row| row.loss).sum::<f64>() / 3.0;
        assert_relative_eq!(loss.item().unwrap().wide(), mean, max_relative = f32::LOSS);
        let gradient = gradient.to_vec().unwrap();
        for (index, (of_row, expected)) in gradient.chunks(cols).zip(expected).enumerate() {
            for (col, (got, expected)) in of_row.iter().zip(expected.by_input).enumerate() {
                let (off, expected) = ((got.wide() - expected / 3.0).abs(), expected / 3.0);
                let allowed = T::allowed(expected, 1.0 / 3.0, 1.0 / 3.0);
                assert!(off <= allowed, "{cols}, row {index}, {col}: {expected}, got {got:?}");
            }
        }
    }
    for groups in [129, 160, 256, 257, 384, 511, 513, 2_048, 4_095] {
        check::<bf16>(8 * groups);
        check::<f16>(8 * groups);
    }
}

/// Rows that are read by cache lines begin at every offset within a line, with every number of
/// elements before the first vector of 16 bytes and after the last. Losses and gradients are right
/// for each kind of targets. Classes are the first, the last, and others.
#[test]
fn rows_that_begin_everywhere_in_a_line() {
    fn check<T: Number>(rows: usize, cols: usize)
    where
        T::Loss: Number,
    {
        let stream = gpu().stream().unwrap();
        let x = draw::<T>(1, rows * cols, 6.0);
        let t: Vec<T> = draw::<T>(2, rows * cols, 1.0)
            .iter()
            .map(|t| T::round(t.wide().abs() / cols as f64))
            .collect();
        let class_of = |row: usize| [0, cols - 1, row * 97 % cols][row % 3];
        let classes: Vec<i64> = (0..rows).map(|row| class_of(row) as i64).collect();
        let input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
        let classes = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        let probabilities = Tensor::from_slice(gpu(), [rows, cols], &t).unwrap();
        let ones = vec![1.0; cols];
        for (label_smoothing, dense) in [(0.0, false), (0.1, false), (0.0, true)] {
            let loss_of = CrossEntropy::sum().label_smoothing(label_smoothing);
            let mut loss = Loss::zeros(gpu(), []).unwrap();
            let mut by_input = Tensor::<T>::zeros(gpu(), [rows, cols]).unwrap();
            let mut by_target = Tensor::<T>::zeros(gpu(), [rows, cols]).unwrap();
            let targets: Targets<'_, T> =
                if dense { (&probabilities).into() } else { (&classes).into() };
            let grads = if dense {
                Grads::both(&mut by_input, &mut by_target)
            } else {
                Grads::input(&mut by_input)
            };
            let mut workspace = Workspace::new(gpu()).unwrap();
            loss_of
                .forward_backward_into(&input, targets, &mut loss, grads, &mut workspace, &stream)
                .unwrap();
            let (by_input, by_target) = (by_input.to_vec().unwrap(), by_target.to_vec().unwrap());
            let mut expected_loss = Total::default();
            for index in 0..rows {
                let of_row = index * cols..(index + 1) * cols;
                let t = wide(&t[of_row.clone()]);
                let target =
                    if dense { Target::Probabilities(&t) } else { Target::Class(class_of(index)) };
                let options = Options { weight: &ones, label_smoothing, z_loss: 0.0 };
                let expected = row(&wide(&x[of_row.clone()]), target, options);
                expected_loss.add(expected.loss);
                let largest = |of: &[f64]| of.iter().fold(expected.terms, |a, b| a.max(b.abs()));
                let mut pairs = vec![(&by_input, &expected.by_input)];
                if dense {
                    pairs.push((&by_target, &expected.by_target));
                }
                for (got, expected) in pairs {
                    let largest = largest(expected);
                    for (col, (got, &expected)) in
                        got[of_row.clone()].iter().zip(expected).enumerate()
                    {
                        let off = (got.wide() - expected).abs();
                        let what = format!("smoothing {label_smoothing}, row {index}, {col}");
                        let allowed = T::allowed(expected, largest, largest);
                        assert!(off <= allowed, "{what}: expected {expected}, got {got:?}");
                    }
                }
            }
            let (got, expected) = (loss.item().unwrap().wide(), expected_loss.value());
            assert_relative_eq!(got, expected, max_relative = T::Loss::LOSS);
        }
    }
    check::<f32>(33, 4_099);
    check::<f64>(17, 2_051);
    check::<bf16>(65, 8_195);
}

/// A loss of one in a million is as accurate as one of ten, and so is the gradient: the sum of the
/// other probabilities does not lose digits beside 1.
#[test]
fn a_row_that_is_nearly_certain() {
    let stream = gpu().stream().unwrap();
    for cols in [5, 301, 700, 40_000] {
        for lead in [12.0_f32, 20.0, 30.0] {
            let mut x = uniforms(1, cols);
            x[cols / 2] = lead;
            let input = Tensor::from_slice(gpu(), [1, cols], &x).unwrap();
            let target = Tensor::from_slice(gpu(), [1], &[cols as i64 / 2]).unwrap();
            let (loss, gradient) =
                CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
            let others = x.iter().enumerate().filter(|(index, _)| *index != cols / 2);
            let others: f64 = others.map(|(_, x)| f64::from(x - lead).exp()).sum();
            let expected = others.ln_1p();
            // The differences of the logits are rounded to f32, which changes their exponentials by
            // 2e-6.
            assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 3e-6);
            let by_class = f64::from(gradient.to_vec().unwrap()[cols / 2]);
            assert_relative_eq!(by_class, -others / (1.0 + others), max_relative = 3e-6);
        }
    }
}

/// The blocks of many rows form groups, and the sums of the groups and of the remaining blocks add
/// up to the loss. Every row counts exactly once, unless it is ignored.
#[test]
fn many_rows_in_a_block_each() {
    for (rows, cols) in [(1500, 600), (1025, 768), (7170, 768), (1100, 3600)] {
        check_rows(rows, cols);
    }
}

/// Many short rows, each in a few lanes of a warp: rows of whole vectors that fill the lanes or
/// nearly do, in hundreds of blocks and in more than form one group, and rows that are not whole
/// vectors.
#[test]
fn many_short_rows() {
    for (rows, cols) in [(22_000, 128), (9000, 260), (1001, 100), (999, 24), (1001, 92), (1001, 45)]
    {
        check_rows(rows, cols);
    }
}

/// Few and long rows, which blocks share. A block publishes two sums if only the loss is asked for,
/// and four if gradients need them.
#[test]
fn few_long_rows_that_all_blocks_share() {
    for (rows, cols) in [(1, 70_001), (3, 50_000), (9, 66_000)] {
        check_rows(rows, cols);
    }
}

/// Many long rows, the last of which are shared by blocks. Every third row is ignored, and some
/// rows are −∞ except for one logit. The losses, the saved log-sum-exp and the report of a target
/// out of range are right.
#[test]
fn the_last_of_many_long_rows() {
    let (rows, cols, stream) = (530, 16_421, gpu().stream().unwrap());
    let mut x = uniforms(3, rows * cols);
    for row in [100, 300, 529] {
        x[row * cols..][..cols].fill(f32::NEG_INFINITY);
        x[row * cols + 15_000] = 2.0;
    }
    let class = |row: usize| if row % 3 == 2 { -100 } else { (row * 31 % cols) as i64 };
    let mut classes: Vec<i64> = (0..rows).map(class).collect();
    (classes[100], classes[300], classes[529]) = (15_000, 15_000, 15_000);
    let input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let expected: Vec<f64> = x
        .chunks(cols)
        .zip(&classes)
        .map(|(row, &class)| match usize::try_from(class) {
            Ok(class) => {
                let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                sum.ln() - f64::from(row[class])
            }
            Err(_) => 0.0,
        })
        .collect();
    let count = classes.iter().filter(|&&class| class >= 0).count() as f64;
    let mean = expected.iter().sum::<f64>() / count;
    for _ in 0..2 {
        let loss = CrossEntropy::mean().forward(&input, &target, &stream).unwrap();
        assert_relative_eq!(f64::from(loss.item().unwrap()), mean, max_relative = 1e-6);
    }
    let losses = CrossEntropy::none().forward(&input, &target, &stream).unwrap();
    for (row, (loss, &expected)) in
        losses.values().to_vec().unwrap().into_iter().zip(&expected).enumerate()
    {
        let off = (f64::from(loss) - expected).abs();
        assert!(off <= 1e-5 * expected, "row {row}: expected {expected}, got {loss}");
    }
    let (loss, saved) = CrossEntropy::mean().forward_saving(&input, &target, &stream).unwrap();
    assert_relative_eq!(f64::from(loss.item().unwrap()), mean, max_relative = 1e-6);
    // Another loss reads the saved log-sum-exp: the mean of their squares.
    let zero = Tensor::zeros(gpu(), [rows]).unwrap();
    let square = Mse::mean().forward(saved.log_sum_exp(), &zero, &stream).unwrap().item().unwrap();
    let expected: f64 = x
        .chunks(cols)
        .map(|row| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln().powi(2))
        .sum();
    assert_relative_eq!(f64::from(square), expected / rows as f64, max_relative = 1e-6);
    // A row whose target is no class makes the mean an error, but not that of the next call.
    classes[500] = cols as i64;
    let faulty = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let loss = CrossEntropy::mean().forward(&input, &faulty, &stream).unwrap();
    let error = loss.item().unwrap_err().to_string();
    assert!(error.contains("500") && error.contains("16421"), "{error}");
    let loss = CrossEntropy::mean().forward(&input, &target, &stream).unwrap();
    assert_relative_eq!(f64::from(loss.item().unwrap()), mean, max_relative = 1e-6);
}

/// The workspace has room for the partial sums of a limited number of blocks. With more rows,
/// blocks take several in turn. The shapes are just below and above the limit, with one and with
/// several rows per block.
#[test]
#[ignore = "takes minutes on the emulator"]
fn rows_for_more_blocks_than_may_leave_something() {
    for (rows, cols) in [(105_000, 768), (106_000, 768), (420_000, 260), (13_500_000, 2)] {
        check_rows(rows, cols);
    }
}

/// There are more rows of float64 than a launch has blocks, so a block takes several in turn. Each
/// row has its own upstream gradient.
#[test]
fn long_rows_of_f64_that_share_a_block() {
    let (rows, cols, stream) = (53_000, 513, gpu().stream().unwrap());
    let input = Tensor::<f64>::zeros(gpu(), [rows, cols]).unwrap();
    let mut gradients = Tensor::<f64>::zeros(gpu(), [rows, cols]).unwrap();
    let class = |row: usize| if row < 5 || row + 5 > rows { (row % cols) as i64 } else { -100 };
    let classes: Vec<i64> = (0..rows).map(class).collect();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let upstream: Vec<f64> = (0..rows).map(|row| (row % 3) as f64 + 1.0).collect();
    let upstreams = Tensor::from_slice(gpu(), [rows], &upstream).unwrap();
    let mut losses = Loss::zeros(gpu(), [rows]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let grads = Grads::input(&mut gradients).scaled_by(&upstreams);
    CrossEntropy::none()
        .forward_backward_into(&input, &target, &mut losses, grads, &mut workspace, &stream)
        .unwrap();
    for (row, &loss) in losses.to_vec().unwrap().iter().enumerate() {
        let expected = if classes[row] < 0 { 0.0 } else { (cols as f64).ln() };
        assert!((loss - expected).abs() <= 1e-14, "row {row}: expected {expected}, got {loss}");
    }
    for (row, by) in gradients.to_vec().unwrap().chunks(cols).enumerate() {
        for (col, &by) in by.iter().enumerate() {
            let of_class = if classes[row] == col as i64 { 1.0 } else { 0.0 };
            let of_row = if classes[row] < 0 { 0.0 } else { 1.0 / cols as f64 - of_class };
            let expected = upstream[row] * of_row;
            assert!(
                (by - expected).abs() <= 1e-14,
                "row {row}, {col}: expected {expected}, got {by}"
            );
        }
    }
}

/// The same with gradients of probabilities. No block stages these rows whole, and its row counter
/// is in shared memory.
#[test]
fn long_rows_of_f64_with_probabilities_that_share_a_block() {
    let (rows, cols, stream) = (53_000, 513, gpu().stream().unwrap());
    let input = Tensor::<f64>::zeros(gpu(), [rows, cols]).unwrap();
    let [mut by_input, mut by_target] =
        [(); 2].map(|()| Tensor::<f64>::zeros(gpu(), [rows, cols]).unwrap());
    let class = |row: usize| row % cols;
    let mut probabilities = vec![0.0; rows * cols];
    probabilities.chunks_mut(cols).enumerate().for_each(|(row, t)| t[class(row)] = 1.0);
    let target = Placed::rows(&probabilities, [rows, cols], cols, 1, f64::NAN);
    let target = Targets::from(target.view());
    let mut loss = Loss::zeros(gpu(), []).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let grads = Grads::both(&mut by_input, &mut by_target);
    CrossEntropy::sum()
        .forward_backward_into(&input, target, &mut loss, grads, &mut workspace, &stream)
        .unwrap();
    let of_row = (cols as f64).ln();
    assert_relative_eq!(loss.item().unwrap(), rows as f64 * of_row, max_relative = 1e-12);
    for (row, by) in by_input.to_vec().unwrap().chunks(cols).enumerate() {
        for (col, &by) in by.iter().enumerate() {
            let of_class = if class(row) == col { 1.0 } else { 0.0 };
            let expected = 1.0 / cols as f64 - of_class;
            assert!(
                (by - expected).abs() <= 1e-14,
                "row {row}, {col}: expected {expected}, got {by}"
            );
        }
    }
    let by_target = by_target.to_vec().unwrap();
    assert!(by_target.iter().all(|by| (by - of_row).abs() <= 1e-14));
}

/// Checks the loss, with label smoothing, of rows whose first logit is far from all others, which
/// are 0.
fn check_logits_far_apart<T: Number>([rows, cols]: [usize; 2], first: f64, has_weights: bool)
where
    T::Loss: Number,
{
    let stream = gpu().stream().unwrap();
    let mut x = vec![T::round(0.0); rows * cols];
    x.chunks_mut(cols).for_each(|row| row[0] = T::round(first));
    let first = x[0].wide();
    let input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &vec![0_i64; rows]).unwrap();
    let weights = Tensor::from_slice(gpu(), [cols], &vec![T::round(1.0); cols]).unwrap();
    let rows_alone = CrossEntropy::none().label_smoothing(0.1);
    let rows_alone = if has_weights { rows_alone.weight(weights.view()) } else { rows_alone };
    let share = 0.1 / cols as f64;
    // The largest logit alone contributes, or all logits but the first.
    let expected = if first > 0.0 {
        first * share * (cols - 1) as f64
    } else {
        (cols as f64 - 1.0).ln() - first * (0.9 + share)
    };
    let check = |got: f64| {
        assert!(
            (got - expected).abs() <= 1e-5 * expected,
            "{} {rows}×{cols}, the first logit {first}, class weights {has_weights}: expected \
             {expected}, got {got}",
            T::NAME
        );
    };
    let (both, gradient) = rows_alone.forward_backward(&input, &target, &stream).unwrap();
    // The probability of the first class is 1, or that of all others is the same.
    let of_others = if first > 0.0 { -share } else { 1.0 / (cols - 1) as f64 - share };
    for (at, got) in gradient.to_vec().unwrap().into_iter().map(T::wide).enumerate() {
        let of_first = if first > 0.0 { 0.1 - share } else { -0.9 - share };
        let expected = if at % cols == 0 { of_first } else { of_others };
        let is_near = (got - expected).abs() <= 0.01 * expected.abs() + 1e-8;
        assert!(is_near, "{} {rows}×{cols}, {first}: expected {expected}, got {got}", T::NAME);
    }
    let forward = rows_alone.forward(&input, &target, &stream).unwrap();
    for losses in [both, forward] {
        losses.to_vec().unwrap().into_iter().for_each(|loss| check(loss.wide()));
    }
    // The sum of several such losses overflows f32.
    if expected.abs() * rows as f64 >= f64::from(f32::MAX) {
        return;
    }
    let mean = rows_alone.reduction(Mean);
    let (both, _) = mean.forward_backward(&input, &target, &stream).unwrap();
    let forward = mean.forward(&input, &target, &stream).unwrap();
    [both, forward].into_iter().for_each(|loss| check(loss.item().unwrap().wide()));
}

/// The loss is right where Σ (x − m) over the classes overflows f32, where one logit is far below
/// all others, and where a logit times log₂ e overflows.
#[test]
fn smoothing_of_logits_far_apart() {
    for (cols, rows) in [(100_001, 2), (4_100, 3), (1_500, 1), (1_500, 1_200), (100, 1), (100, 40)]
    {
        for has_weights in [false, true] {
            for first in [1e34, -1e34, -3e38] {
                check_logits_far_apart::<f32>([rows, cols], first, has_weights);
                check_logits_far_apart::<bf16>([rows, cols], first, has_weights);
            }
        }
    }
    // One lane per row, by accesses of each width.
    for (cols, first) in [20, 30, 33, 40].into_iter().flat_map(|cols| [(cols, 1e34), (cols, -3e38)])
    {
        check_logits_far_apart::<f32>([40, cols], first, true);
        check_logits_far_apart::<bf16>([40, cols], first, true);
        check_logits_far_apart::<bf16>([40, cols], first, false);
    }
}

/// A logit of −∞ makes the loss infinite if every class has a share of the target.
#[test]
fn smoothing_of_logits_that_are_infinite() {
    for cols in [20, 33, 100, 1_500, 4_100, 40_000] {
        let stream = gpu().stream().unwrap();
        let mut x = vec![bf16::ZERO; 2 * cols];
        x[cols - 1] = bf16::NEG_INFINITY;
        let input = Tensor::from_slice(gpu(), [2, cols], &x).unwrap();
        let target = Tensor::from_slice(gpu(), [2], &[0_i64; 2]).unwrap();
        let weights = Tensor::from_slice(gpu(), [cols], &vec![bf16::ONE; cols]).unwrap();
        let smoothed = CrossEntropy::none().label_smoothing(0.1);
        for losses in [
            smoothed.forward(&input, &target, &stream),
            smoothed.weight(weights.view()).forward(&input, &target, &stream),
        ] {
            let losses = losses.unwrap().to_vec().unwrap();
            assert_eq!(losses[0], f32::INFINITY, "{cols} classes");
            assert_relative_eq!(losses[1], (cols as f32).ln(), max_relative = 1e-6);
        }
    }
}

/// Label smoothing takes a share of every class weight, which may be infinite or NaN, but none for
/// an ignored row.
#[test]
fn an_ignored_row_with_smoothing_and_weights_that_are_no_numbers() {
    let stream = gpu().stream().unwrap();
    for cols in [5, 700, 40_000] {
        let x = uniforms(5, 2 * cols);
        let input = Tensor::from_slice(gpu(), [2, cols], &x).unwrap();
        let target = Tensor::from_slice(gpu(), [2], &[-100_i64, 1]).unwrap();
        let mut weights = vec![1.0_f32; cols];
        (weights[0], weights[cols - 1]) = (f32::INFINITY, f32::NAN);
        let weights = Tensor::from_slice(gpu(), [cols], &weights).unwrap();
        let sum = CrossEntropy::sum().label_smoothing(0.1).weight(&weights);
        let (_, both) = sum.forward_backward(&input, &target, &stream).unwrap();
        let (loss, saved) = sum.forward_saving(&input, &target, &stream).unwrap();
        let one = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
        let after = sum.backward(&input, &target, &saved, &one, &stream).unwrap();
        drop(loss);
        for gradient in [both, after] {
            let gradient = gradient.to_vec().unwrap();
            assert!(gradient[..cols].iter().all(|&by| by == 0.0), "{cols} classes");
            assert!(gradient[cols..].iter().any(|by| by.is_nan()), "{cols} classes");
        }
    }
}

/// See 'Limits of f32' in docs/semantics.md.
#[test]
fn class_weights_at_the_end_of_f32() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::<f32>::zeros(gpu(), [2, 4]).unwrap();
    let target = Tensor::from_slice(gpu(), [2], &[0_i64, 1]).unwrap();
    let losses = |weight: f32| {
        let weights = Tensor::from_slice(gpu(), [4], &[weight; 4]).unwrap();
        let mean = CrossEntropy::mean().weight(weights.view());
        let forward = mean.forward(&input, &target, &stream).unwrap().item().unwrap();
        let (both, gradient) = mean.forward_backward(&input, &target, &stream).unwrap();
        (forward, both.item().unwrap(), gradient.to_vec().unwrap())
    };
    let gradient = [-0.375, 0.125, 0.125, 0.125, 0.125, -0.375, 0.125, 0.125];
    let (forward, both, got) = losses(1e37);
    assert_relative_eq!(forward, 4.0_f32.ln(), max_relative = 1e-6);
    assert_relative_eq!(both, 4.0_f32.ln(), max_relative = 1e-6);
    for (got, expected) in got.into_iter().zip(gradient) {
        assert_relative_eq!(got, expected, max_relative = 1e-6);
    }
    // The sum of two weights overflows f32, ...
    let (forward, both, got) = losses(2e38);
    assert!(forward.is_nan() && both == f32::INFINITY, "{forward}, {both}");
    assert_eq!(got, [0.0; 8]);
    // ... or the product of one weight and its loss does.
    assert!(losses(3e38).0.is_nan());
}

/// Checks the losses of rows, every fifth of which is ignored, and the gradients. The losses come
/// from passes with gradients, without gradients, and that save for a backward pass; per row and
/// summed.
fn check_rows(rows: usize, cols: usize) {
    let stream = gpu().stream().unwrap();
    let x = uniforms(7, rows * cols);
    let class = |row: usize| if row % 5 == 4 { -100 } else { (row * 31 % cols) as i64 };
    let classes: Vec<i64> = (0..rows).map(class).collect();
    let input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let of_row = |row: &[f32]| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>();
    let sums: Vec<f64> = x.chunks(cols).map(of_row).collect();
    let loss = |row: usize| match usize::try_from(classes[row]) {
        Ok(class) => sums[row].ln() - f64::from(x[row * cols + class]),
        Err(_) => 0.0,
    };
    let each: Vec<f64> = (0..rows).map(loss).collect();
    let expected: f64 = each.iter().sum();
    let count = classes.iter().filter(|&&class| class >= 0).count() as f64;
    for _ in 0..2 {
        let (loss, gradient) =
            CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
        let mean = f64::from(loss.item().unwrap());
        assert_relative_eq!(mean, expected / count, max_relative = 1e-6);
        for (index, by) in gradient.to_vec().unwrap().into_iter().enumerate() {
            let (row, col) = (index / cols, index % cols);
            let expected = match classes[row] {
                -100 => 0.0,
                class => {
                    let p = f64::from(x[index]).exp() / sums[row];
                    (p - if class == col as i64 { 1.0 } else { 0.0 }) / count
                }
            };
            let off = (f64::from(by) - expected).abs();
            assert!(
                off <= 3e-6 * expected.abs(),
                "row {row}, {col}: expected {expected}, got {by}"
            );
        }
        let sum = CrossEntropy::sum().forward(&input, &target, &stream).unwrap();
        assert_relative_eq!(f64::from(sum.item().unwrap()), expected, max_relative = 1e-6);
    }
    // This pass sums four numbers per block, the others two.
    let (saving, _) = CrossEntropy::mean().forward_saving(&input, &target, &stream).unwrap();
    let mean = f64::from(saving.item().unwrap());
    assert_relative_eq!(mean, expected / count, max_relative = 1e-6);
    let losses = CrossEntropy::none().forward(&input, &target, &stream).unwrap();
    for (loss, &expected) in losses.values().to_vec().unwrap().into_iter().zip(&each) {
        assert_relative_eq!(f64::from(loss), expected, max_relative = 1e-5);
    }
    let halves: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
    let input = Tensor::from_slice(gpu(), [rows, cols], &halves).unwrap();
    let mean = CrossEntropy::mean().forward(&input, &target, &stream).unwrap();
    assert_relative_eq!(f64::from(mean.item().unwrap()), expected / count, max_relative = 1e-3);
}

/// Logits of 1e30 hide a difference in log Σ exp x: the loss is right because the largest logit is
/// subtracted first.
#[test]
fn rows_far_from_zero() {
    let stream = gpu().stream().unwrap();
    let input =
        Tensor::from_slice(gpu(), [2, 3], &[1e30_f32, 1e30, 1e30, -1e30, -1e30, 0.0]).unwrap();
    let target = Tensor::from_slice(gpu(), [2], &[1_i32, 2]).unwrap();
    let loss = CrossEntropy::none().forward(&input, &target, &stream).unwrap();
    let losses = loss.values().to_vec().unwrap();
    assert_relative_eq!(losses[0], 3.0_f32.ln(), max_relative = 1e-6);
    assert_eq!(losses[1], 0.0);
}

/// Only differences between logits matter, however large the logits are. This holds for rows in the
/// registers of a warp or a block, and for packed, staged and long rows, with and without edges.
#[test]
fn rows_around_any_number() {
    let stream = gpu().stream().unwrap();
    for (rows, cols) in [(1, 64), (600, 19), (1, 1_024), (1, 4_099), (5, 5_000), (1, 60_001)] {
        for center in [0.0_f32, -1e3, 1e6, 16_777_215.0, 16_777_216.0, -5e7, 1e30] {
            let step = (center.abs() * f32::EPSILON).max(0.125);
            let x: Vec<f32> =
                (0..cols).map(|index| center + step * (index * 7 % 37) as f32).collect();
            let class = cols / 3;
            let most = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let exps: Vec<f64> = x.iter().map(|&x| (f64::from(x) - most).exp()).collect();
            let sum: f64 = exps.iter().sum();
            let expected = sum.ln() - (f64::from(x[class]) - most);

            let input = Tensor::from_slice(gpu(), [rows, cols], &x.repeat(rows)).unwrap();
            let target = Tensor::from_slice(gpu(), [rows], &vec![class as i64; rows]).unwrap();
            let loss = CrossEntropy::mean().forward(&input, &target, &stream).unwrap();
            let (both, gradient) =
                CrossEntropy::sum().forward_backward(&input, &target, &stream).unwrap();
            assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-6);
            let of_rows = f64::from(both.item().unwrap()) / rows as f64;
            assert_relative_eq!(of_rows, expected, max_relative = 1e-6);
            for (at, by) in gradient.to_vec().unwrap().into_iter().enumerate() {
                let index = at % cols;
                let by_class = if index == class { 1.0 } else { 0.0 };
                let what = format!("{cols} logits around {center}, gradient {index}");
                let apart = (f64::from(by) - (exps[index] / sum - by_class)).abs();
                // The exponents are rounded too.
                let error = 1e-6 + 1.2e-7 * (most - f64::from(x[index]));
                let most_apart = error * (exps[index] / sum + by_class);
                assert!(apart <= most_apart + f64::from(f32::MIN_POSITIVE), "{what}: {by}");
            }
        }
    }
}

/// Without rows, the sum is 0 and the mean is NaN, and the next call in the same workspace is
/// right.
#[test]
fn no_rows() {
    for cols in [64, 1_024, 4_099] {
        for label_smoothing in [0.0, 0.1] {
            let stream = gpu().stream().unwrap();
            let smooth = |rows: usize| {
                let input = Tensor::from_slice(gpu(), [rows, cols], &vec![0.5_f32; rows * cols]);
                let target = Tensor::from_slice(gpu(), [rows], &vec![1_i64; rows]);
                let (input, target) = (input.unwrap(), target.unwrap());
                let sum = CrossEntropy::sum().label_smoothing(label_smoothing);
                let mean = CrossEntropy::mean().label_smoothing(label_smoothing);
                let each = CrossEntropy::none().label_smoothing(label_smoothing);
                assert_eq!(
                    each.forward(&input, &target, &stream).unwrap().values().shape().dims(),
                    [rows]
                );
                let (both, _) = sum.forward_backward(&input, &target, &stream).unwrap();
                [
                    sum.forward(&input, &target, &stream).unwrap().item().unwrap(),
                    both.item().unwrap(),
                    mean.forward(&input, &target, &stream).unwrap().item().unwrap(),
                ]
            };
            let [sum, both, mean] = smooth(0);
            assert!(
                (sum, both) == (0.0, 0.0) && mean.is_nan(),
                "{cols} classes: {sum} {both} {mean}"
            );
            let [sum, both, mean] = smooth(3);
            let expected = (cols as f32).ln();
            assert_relative_eq!(sum, 3.0 * expected, max_relative = 1e-6);
            assert_relative_eq!(both, 3.0 * expected, max_relative = 1e-6);
            assert_relative_eq!(mean, expected, max_relative = 1e-6);
        }
    }
}

/// A row that begins with whole tiles of −∞ does not become NaN.
#[test]
fn a_row_that_begins_with_minus_infinity() {
    let stream = gpu().stream().unwrap();
    for cols in [64, 3_000, 60_001] {
        let mut x = vec![f32::NEG_INFINITY; cols];
        (x[cols - 2], x[cols - 1]) = (1.0, 1.0);
        let input = Tensor::from_slice(gpu(), [1, cols], &x).unwrap();
        let target = Tensor::from_slice(gpu(), [1], &[cols as i64 - 1]).unwrap();
        let (loss, gradient) =
            CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
        assert_relative_eq!(loss.item().unwrap(), 2.0_f32.ln(), max_relative = 1e-6);
        let gradient = gradient.to_vec().unwrap();
        assert_eq!(&gradient[cols - 2..], [0.5, -0.5]);
        assert!(gradient[..cols - 2].iter().all(|&by| by == 0.0));
        // With label smoothing the loss is infinite, but the gradient is not.
        let smooth = CrossEntropy::mean().label_smoothing(0.1);
        let (loss, gradient) = smooth.forward_backward(&input, &target, &stream).unwrap();
        assert_eq!(loss.item().unwrap(), f32::INFINITY);
        assert!(gradient.to_vec().unwrap().iter().all(|by| by.is_finite()));
    }
}

/// A row of nothing but −∞ has no distribution, so its loss is NaN, although a target of
/// probabilities would make it +∞.
#[test]
fn a_row_of_nothing_but_minus_infinity_with_probabilities() {
    let stream = gpu().stream().unwrap();
    for cols in [6, 300, 2_000, 40_000] {
        let input = Tensor::from_slice(gpu(), [1, cols], &vec![f32::NEG_INFINITY; cols]).unwrap();
        let target = Tensor::from_slice(gpu(), [1, cols], &vec![1.0 / cols as f32; cols]).unwrap();
        let sum = CrossEntropy::sum();
        let (both, gradient) = sum.forward_backward(&input, &target, &stream).unwrap();
        for loss in [sum.forward(&input, &target, &stream).unwrap(), both] {
            assert!(loss.item().unwrap().is_nan(), "{cols} columns");
        }
        assert!(gradient.to_vec().unwrap().iter().all(|by| by.is_nan()), "{cols} columns");
    }
}

#[test]
fn rows_of_infinity_nan_or_nothing_but_minus_infinity_are_nan() {
    let stream = gpu().stream().unwrap();
    for cols in [6, 2_000, 40_000] {
        let plain = uniforms(3, cols);
        let mut rows = [plain.clone(), plain.clone(), plain.clone(), vec![f32::NEG_INFINITY; cols]];
        rows[1][cols - 1] = f32::INFINITY;
        rows[2][cols / 2] = f32::NAN;
        let input = Tensor::from_slice(gpu(), [4, cols], &rows.concat()).unwrap();
        let target = Tensor::from_slice(gpu(), [4], &[0_i64; 4]).unwrap();
        let mut loss = Loss::zeros(gpu(), [4]).unwrap();
        let mut gradient = Tensor::zeros(gpu(), [4, cols]).unwrap();
        let mut workspace = Workspace::new(gpu()).unwrap();
        CrossEntropy::none()
            .forward_backward_into(
                &input,
                &target,
                &mut loss,
                &mut gradient,
                &mut workspace,
                &stream,
            )
            .unwrap();
        let losses = loss.values().to_vec().unwrap();
        assert!(
            losses[0].is_finite() && losses[1..].iter().all(|loss| loss.is_nan()),
            "{losses:?}"
        );
        let gradient = gradient.to_vec().unwrap();
        assert!(gradient[..cols].iter().all(|by| by.is_finite()));
        assert!(gradient[cols..].iter().all(|by| by.is_nan()));
    }
}

#[test]
fn an_ignored_row_may_hold_anything() {
    let stream = small_gpu().stream().unwrap();
    for (rows, cols) in [(2, 7), (2, 1_500), (2, 40_000), (2_000, 131)] {
        let mut x = uniforms(4, rows * cols);
        x[..cols].fill(f32::NAN);
        let mut classes = vec![3_i64; rows];
        classes[0] = -100;
        let input = Tensor::from_slice(small_gpu(), [rows, cols], &x).unwrap();
        let target = Tensor::from_slice(small_gpu(), [rows], &classes).unwrap();
        let (loss, gradient) =
            CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
        let gradient = gradient.to_vec().unwrap();
        assert!(loss.item().unwrap().is_finite());
        assert!(gradient[..cols].iter().all(|&by| by == 0.0));
        assert!(gradient[cols..].iter().all(|&by| by != 0.0));
    }
    // All rows are ignored: the mean is NaN, and there is no gradient.
    let input = Tensor::from_slice(small_gpu(), [2, 3], &[1.0_f32; 6]).unwrap();
    let target = Tensor::from_slice(small_gpu(), [2], &[-100_i64, -100]).unwrap();
    let (loss, gradient) = CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
    assert!(loss.item().unwrap().is_nan());
    assert_eq!(gradient.to_vec().unwrap(), [0.0; 6]);
}

/// A target that is no class makes the loss and the row's gradient NaN, the error names the lowest
/// such row, and the stream stays usable.
#[test]
fn a_target_that_is_no_class() {
    let stream = gpu().stream().unwrap();
    for cols in [10, 2_000, 40_000] {
        let rows = 300;
        let rows = if cols > 100 { 5 } else { rows };
        let input = Tensor::from_slice(gpu(), [rows, cols], &uniforms(5, rows * cols)).unwrap();
        let mut classes = vec![1_i32; rows];
        (classes[2], classes[rows - 1]) = (-1, i32::MAX);
        let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        let (loss, gradient) =
            CrossEntropy::sum().forward_backward(&input, &target, &stream).unwrap();
        let error = loss.item().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("target: expected a class from 0 to {}, got -1 in row 2", cols - 1)
        );
        assert!(matches!(error, Error::TargetOutOfRange { row: 2, target: -1, .. }));
        assert!(loss.values().to_vec().unwrap()[0].is_nan());
        let gradient = gradient.to_vec().unwrap();
        let nan = |row: usize| gradient[row * cols..(row + 1) * cols].iter().all(|by| by.is_nan());
        assert!(!nan(0) && !nan(1) && nan(2) && !nan(3) && nan(rows - 1));

        // The losses of the rows, and what the pass saves.
        let (loss, saved) = CrossEntropy::none().forward_saving(&input, &target, &stream).unwrap();
        loss.check().unwrap_err();
        assert_eq!(loss.values().to_vec().unwrap().iter().filter(|loss| loss.is_nan()).count(), 2);
        let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
        let upstream = upstream.view().expand([rows]).unwrap();
        let gradient =
            CrossEntropy::none().backward(&input, &target, &saved, upstream, &stream).unwrap();
        let gradient = gradient.to_vec().unwrap();
        assert!(gradient[2 * cols..3 * cols].iter().all(|by| by.is_nan()));
        assert!(gradient[..2 * cols].iter().all(|by| by.is_finite()));

        // With good targets the same memory has good results again.
        let good = Tensor::from_slice(gpu(), [rows], &vec![1_i32; rows]).unwrap();
        let (mut loss, mut workspace) = (loss, Workspace::new(gpu()).unwrap());
        CrossEntropy::none()
            .forward_into(&input, &good, &mut loss, &mut workspace, &stream)
            .unwrap();
        loss.check().unwrap();
    }
}

/// A `u32` beyond the classes is out of range, and never negative, whatever type a kernel loads it
/// as.
#[test]
fn a_class_of_u32_is_never_negative() {
    let stream = gpu().stream().unwrap();
    for cols in [10, 2_000, 40_000] {
        let input = Tensor::from_slice(gpu(), [4, cols], &uniforms(33, 4 * cols)).unwrap();
        let sum = |classes: [u32; 4], ignore_index| {
            let target = Tensor::from_slice(gpu(), [4], &classes).unwrap();
            let loss = CrossEntropy::sum().ignore_index(ignore_index);
            let (loss, _) = loss.forward_backward(&input, &target, &stream).unwrap();
            loss.item()
        };
        for bad in [cols as u32, 1 << 31, u32::MAX, -100_i32 as u32] {
            let expected = format!("expected a class from 0 to {}, got {bad} in row 1", cols - 1);
            for ignore_index in [-100, i64::from(bad) - (1 << 32), i64::from(bad) + (1 << 32)] {
                let error = sum([0, bad, 1, bad], ignore_index).unwrap_err().to_string();
                assert!(error.ends_with(&expected), "{error}");
            }
        }
        let classes = |bad| Tensor::from_slice(gpu(), [4], &[0_i64, bad, 1, bad]).unwrap();
        let of_i64 = CrossEntropy::sum().forward(&input, &classes(-100), &stream).unwrap();
        let expected = of_i64.item().unwrap();
        for ignored in [cols as u32, 1 << 31, u32::MAX] {
            let got = sum([0, ignored, 1, ignored], ignored.into()).unwrap();
            assert_relative_eq!(got, expected, max_relative = 1e-6);
        }
    }
}

/// Where blocks add up the sums of other blocks, they also pass on that a target is out of range:
/// for short rows, for rows that a block holds, and for longer ones.
#[test]
fn a_target_that_is_no_class_among_many_rows() {
    let stream = gpu().stream().unwrap();
    let rows = 3_000;
    for cols in [64, 800, 601] {
        let input = Tensor::from_slice(gpu(), [rows, cols], &uniforms(6, rows * cols)).unwrap();
        let mut classes = vec![1_i64; rows];
        (classes[1_234], classes[2_990]) = (cols as i64, -7);
        let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        let forward = CrossEntropy::mean().forward(&input, &target, &stream).unwrap();
        let (both, _) = CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
        for loss in [forward, both] {
            let error = loss.item().unwrap_err();
            assert!(
                matches!(error, Error::TargetOutOfRange { row: 1_234, .. }),
                "{cols} columns: {error}"
            );
            assert!(loss.values().to_vec().unwrap()[0].is_nan());
        }
        // A loss that is NaN for another reason is no error.
        let mut logits: Vec<f32> = uniforms(7, rows * cols);
        logits[2_000 * cols] = f32::NAN;
        let input = Tensor::from_slice(gpu(), [rows, cols], &logits).unwrap();
        let good = Tensor::from_slice(gpu(), [rows], &vec![1_i64; rows]).unwrap();
        let loss = CrossEntropy::mean().forward(&input, &good, &stream).unwrap();
        assert!(loss.item().unwrap().is_nan());
    }
}

/// An error that one loss has left in memory is not reported for the next loss there.
#[test]
fn another_loss_in_the_same_memory() {
    let stream = gpu().stream().unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let input = Tensor::from_slice(gpu(), [1, 2], &[1.0_f32, 2.0]).unwrap();
    let target = Tensor::from_slice(gpu(), [1], &[2_u8]).unwrap();
    let mut loss = Loss::zeros(gpu(), []).unwrap();
    CrossEntropy::mean().forward_into(&input, &target, &mut loss, &mut workspace, &stream).unwrap();
    loss.item().unwrap_err();
    Mse::mean().forward_into(&input, &input, &mut loss, &mut workspace, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
}

/// The saved log-sum-exp is public, since samplers and custom z-losses need it. Ignored rows have
/// one too.
#[test]
fn log_sum_exp_on_request() {
    let stream = gpu().stream().unwrap();
    let (rows, cols) = (4, 300);
    let x = uniforms(6, rows * cols);
    let input = Tensor::from_slice(gpu(), [2, 2, cols], &x).unwrap();
    let target = Tensor::from_slice(gpu(), [2, 2], &[1_i64, -100, 2, 3]).unwrap();
    let (_, saved) = CrossEntropy::mean().forward_saving(&input, &target, &stream).unwrap();
    let got = saved.log_sum_exp().to_vec(&stream).unwrap();
    assert_eq!(got.len(), rows);
    for (&got, row) in got.iter().zip(x.chunks(cols)) {
        let expected = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        assert_relative_eq!(f64::from(got), expected, max_relative = 1e-6);
    }
    // Another loss reads it in place: Σ (lse − 0)² ÷ 4 is the mean square.
    let zero = Tensor::zeros(gpu(), [2, 2]).unwrap();
    let square = Mse::mean().forward(saved.log_sum_exp(), &zero, &stream).unwrap().item().unwrap();
    let expected: f64 = x
        .chunks(cols)
        .map(|row| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln().powi(2) / 4.0)
        .sum();
    assert_relative_eq!(f64::from(square), expected, max_relative = 1e-6);
}

/// A forward pass saves the divisor of a mean whatever its own reduction, and even if nothing
/// records which target was out of range.
#[test]
fn a_mean_from_what_losses_of_rows_have_saved() {
    let stream = gpu().stream().unwrap();
    let (rows, cols) = (3, 40);
    let input = Tensor::from_slice(gpu(), [rows, cols], &uniforms(19, rows * cols)).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &[1_i64, -100, 2]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let (_, expected) = CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
    let mut saved = Saved::zeros(gpu(), [rows, cols]).unwrap();
    let mut losses = Tensor::<f32>::zeros(gpu(), [rows]).unwrap();
    CrossEntropy::none()
        .forward_saving_into(&input, &target, &mut losses, &mut saved, &mut workspace, &stream)
        .unwrap();
    let got = CrossEntropy::mean().backward(&input, &target, &saved, &upstream, &stream).unwrap();
    for (got, expected) in got.to_vec().unwrap().into_iter().zip(expected.to_vec().unwrap()) {
        assert_relative_eq!(got, expected, max_relative = 1e-6, epsilon = 1e-8);
    }
}

/// Losses in a plain tensor have no record of which target was no class; the saved data has one.
/// The row's loss and gradient are NaN all the same.
#[test]
fn a_target_that_is_no_class_where_nobody_asks() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [3, 4], &uniforms(21, 12)).unwrap();
    let target = Tensor::from_slice(gpu(), [3], &[1_i64, 9, 2]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mut saved = Saved::zeros(gpu(), [3, 4]).unwrap();
    let mut losses = Tensor::<f32>::zeros(gpu(), [3]).unwrap();
    let none = CrossEntropy::none();
    none.forward_saving_into(&input, &target, &mut losses, &mut saved, &mut workspace, &stream)
        .unwrap();
    let is_nan: Vec<_> = losses.to_vec().unwrap().into_iter().map(f32::is_nan).collect();
    assert_eq!(is_nan, [false, true, false]);
    let ones = tensor(&[1.0_f32; 3]);
    let gradient = none.backward(&input, &target, &saved, &ones, &stream).unwrap();
    let gradient = gradient.to_vec().unwrap();
    for (row, of_row) in gradient.chunks(4).enumerate() {
        assert!(of_row.iter().all(|by| by.is_nan() == (row == 1)), "row {row}: {of_row:?}");
    }
}

/// The error is reported whichever way the values of a loss are read.
#[test]
fn a_target_that_is_no_class_is_told_of_wherever_the_loss_is_read() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [2, 3], &uniforms(20, 6)).unwrap();
    let target = Tensor::from_slice(gpu(), [2], &[1_i64, 7]).unwrap();
    let mut loss = CrossEntropy::none().forward(&input, &target, &stream).unwrap();
    let told = |error: Error| matches!(error, Error::TargetOutOfRange { row: 1, target: 7, .. });
    assert!(told(loss.check().unwrap_err()));
    assert!(told(loss.to_vec().unwrap_err()));
    assert!(told(loss.copy_to_slice(&mut [0.0; 2]).unwrap_err()));
    assert_eq!(loss.shape().dims(), [2]);
    let values = loss.values().to_vec().unwrap();
    assert!(values[0] > 0.0 && values[1].is_nan());
    // New values have nothing to do with the target.
    loss.copy_from_slice(&[1.0, f32::NAN]).unwrap();
    assert!(loss.to_vec().unwrap()[1].is_nan());
}

/// A loss of probabilities has no classes: if it is NaN, an earlier target out of range in the same
/// memory is not reported.
#[test]
fn a_loss_without_classes_forgets_a_target_that_was_none() {
    let stream = gpu().stream().unwrap();
    let nan = Tensor::from_slice(gpu(), [2, 3], &[f32::NAN; 6]).unwrap();
    let target = Tensor::from_slice(gpu(), [2], &[1_i64, 7]).unwrap();
    let (none, mut workspace) = (CrossEntropy::none(), Workspace::new(gpu()).unwrap());
    let mut loss = Loss::<f32>::zeros(gpu(), [2]).unwrap();
    for by_values in [false, true] {
        none.forward_into(&nan, &target, &mut loss, &mut workspace, &stream).unwrap();
        loss.check().unwrap_err();
        let to = if by_values { loss.values_mut() } else { (&mut loss).into() };
        let mut scratch = Workspace::new(gpu()).unwrap();
        none.forward_into(&nan, &nan, to, &mut scratch, &stream).unwrap();
        assert!(loss.to_vec().unwrap().iter().all(|loss| loss.is_nan()));
        none.forward_into(&nan, &target, &mut loss, &mut workspace, &stream).unwrap();
        loss.check().unwrap_err();
        let to = if by_values { loss.values_mut() } else { (&mut loss).into() };
        let rows = Mse::new().reduction(RowSum);
        rows.forward_into(&nan, &nan, to, &mut workspace, &stream).unwrap();
        assert!(loss.to_vec().unwrap().iter().all(|loss| loss.is_nan()));
    }
}

/// An upstream gradient scales gradients before they are rounded, in place as well as out of place,
/// so both give the same bits.
#[test]
fn an_upstream_in_place_is_the_one_beside() {
    let stream = gpu().stream().unwrap();
    let (rows, cols) = (20, 64);
    let x: Vec<_> = uniforms(21, rows * cols).into_iter().map(half::f16::from_f32).collect();
    let mut input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let classes: Vec<_> = (0..rows as i64).collect();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let scale = Tensor::from_slice(gpu(), [], &[4096.0_f32]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let (mut loss, mut gradient) =
        (Loss::zeros(gpu(), []).unwrap(), Tensor::zeros(gpu(), [rows, cols]).unwrap());
    let grads = Grads::input(&mut gradient).scaled_by(&scale);
    CrossEntropy::mean()
        .forward_backward_into(&input, &target, &mut loss, grads, &mut workspace, &stream)
        .unwrap();
    let expected = (loss.item().unwrap(), gradient.to_vec().unwrap());
    CrossEntropy::mean()
        .forward_backward_in_place_scaled(
            &mut input,
            &target,
            &mut loss,
            &scale,
            &mut workspace,
            &stream,
        )
        .unwrap();
    assert_eq!((loss.item().unwrap(), input.to_vec().unwrap()), expected);
}

/// Rows are the last dimension of the logits, and targets have all the other dimensions.
#[test]
fn logits_of_three_dimensions() {
    let stream = gpu().stream().unwrap();
    let x = uniforms(7, 24);
    let classes = [0_i64, 1, 2, 3, 0, 1];
    let flat = Tensor::from_slice(gpu(), [6, 4], &x).unwrap();
    let deep = Tensor::from_slice(gpu(), [2, 3, 4], &x).unwrap();
    let of_flat = Tensor::from_slice(gpu(), [6], &classes).unwrap();
    let of_deep = Tensor::from_slice(gpu(), [2, 3], &classes).unwrap();
    let loss = CrossEntropy::none();
    let flat = loss.forward(&flat, &of_flat, &stream).unwrap();
    let deep = loss.forward(&deep, &of_deep, &stream).unwrap();
    assert_eq!(deep.values().shape().dims(), [2, 3]);
    assert_eq!(flat.values().to_vec().unwrap(), deep.values().to_vec().unwrap());
}

#[test]
fn what_is_refused() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    let target = Tensor::<i64>::zeros(gpu(), [4]).unwrap();
    let refused = |loss: CrossEntropy<'_, f32>, target: Targets<'_, f32>, expected: &str| {
        let error = loss.forward(&input, target, &stream).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let mean = CrossEntropy::mean();
    let (longer, weight) = (Tensor::<i64>::zeros(gpu(), [5]).unwrap(), tensor(&[1.0_f32; 4]));
    refused(mean, (&longer).into(), "target: expected shape [4], got [5]");
    refused(
        mean,
        (&Tensor::<f32>::zeros(gpu(), [3, 4]).unwrap()).into(),
        "target: expected shape [4, 3], got [3, 4]",
    );
    refused(mean.weight(weight.view()), (&target).into(), "weight: expected shape [3], got [4]");
    for label_smoothing in [-0.1, 1.5, f64::NAN] {
        refused(
            mean.label_smoothing(label_smoothing),
            (&target).into(),
            &format!("label_smoothing: expected a number from 0 to 1, got {label_smoothing}"),
        );
    }
    refused(
        mean.z_loss(-1.0),
        (&target).into(),
        "z_loss: expected a finite number that is not negative, got -1",
    );
    refused(
        mean.ignore_index(1),
        (&input).into(),
        "ignore_index: expected a negative number where targets are probabilities, got 1",
    );

    let none = Tensor::<f32>::zeros(gpu(), [0, 0]).unwrap();
    let error =
        mean.forward(&none, &Tensor::<i64>::zeros(gpu(), [0]).unwrap(), &stream).unwrap_err();
    assert_eq!(error.to_string(), "input: expected one class at least, got shape [0, 0]");

    let (_, saved) = mean.forward_saving(&input, &target, &stream).unwrap();
    let one = tensor(&[1.0_f32]);
    let (mut by_x, mut by_t) =
        (Tensor::zeros(gpu(), [4, 3]).unwrap(), Tensor::zeros(gpu(), [4, 3]).unwrap());
    let grads = Grads::both(&mut by_x, &mut by_t);
    let upstream = one.view().expand([]).unwrap();
    let error = mean.backward_into(&input, &target, &saved, upstream, grads, &stream).unwrap_err();
    assert_eq!(error.to_string(), "grad_target: expected no gradient of classes to write, got one");
    let other = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let two = Tensor::<i64>::zeros(gpu(), [2]).unwrap();
    let error = mean.backward(&other, &two, &saved, upstream, &stream).unwrap_err();
    assert_eq!(error.to_string(), "saved: expected shape [2, 3], got [4, 3]");
}
