//! Loss and gradients of rows whose target has a share for every class. A block stages the logits
//! of a row in shared memory and, where they are the target, the probabilities beside them; or
//! several blocks stage a part of both. The tests compare with float64, over alignments, options,
//! types and rows of every kind.
//!
//! The emulator's device with two multiprocessors has so few blocks that each takes several rows.

use fused_loss::reduction::Unreduced;
use fused_loss::{CrossEntropy, Grads, Loss, Targets, Tensor, View, Workspace};
use half::{bf16, f16};
use tests::number::Number;
use tests::random::uniforms;
use tests::reference::cross_entropy::{Options, Row, Target, row};
use tests::{Placed, small_gpu as gpu};

/// Columns of rows that one block stages, and of rows that do not fit one block.
fn lengths<T>() -> [usize; 2] {
    [(20 << 10) / size_of::<T>(), (80 << 10) / size_of::<T>()]
}

/// A call with `rows` rows of `cols` elements each.
struct Case<T> {
    rows: usize,
    cols: usize,
    x: Vec<T>,
    t: Vec<T>,
    /// Elements between rows.
    gap: usize,
    /// Elements from a boundary of 16 bytes to the first logit and to the first probability.
    offsets: [usize; 2],
    label_smoothing: f64,
    z_loss: f64,
    has_weight: bool,
}

impl<T: Number> Case<T>
where
    T::Loss: Number,
{
    /// Rows of ordinary logits from −6 to 6, and probabilities that sum to about one.
    fn new(rows: usize, cols: usize) -> Self {
        let len = rows * cols;
        let numbers = |seed, of: fn(f64, f64) -> f64| {
            let values = uniforms(seed, len).into_iter();
            values.map(|value| T::round(of(value.into(), cols as f64))).collect()
        };
        let x = numbers(3, |x, _| 6.0 * x);
        let t = numbers(4, |t, cols| (t + 1.0) / cols);
        let offsets = [0; 2];
        let (label_smoothing, z_loss, has_weight) = (0.0, 0.0, false);
        Case { rows, cols, x, t, gap: 0, offsets, label_smoothing, z_loss, has_weight }
    }

    /// The weights of the classes: ones if the call has none.
    fn weight(&self) -> Vec<T> {
        let weight = |class: usize| if self.has_weight { [0.5, 1.0, 2.0][class % 3] } else { 1.0 };
        (0..self.cols).map(weight).map(T::round).collect()
    }

    /// The expected results of each row in float64.
    fn expected(&self) -> Vec<Row> {
        let wide = |values: &[T]| -> Vec<f64> { values.iter().map(|value| value.wide()).collect() };
        let (weight, label_smoothing, z_loss) =
            (&wide(&self.weight()), self.label_smoothing, self.z_loss);
        let options = Options { weight, label_smoothing, z_loss };
        let of_row = |(x, t)| row(&wide(x), Target::Probabilities(&wide(t)), options);
        self.x.chunks(self.cols).zip(self.t.chunks(self.cols)).map(of_row).collect()
    }

    fn place(&self, data: &[T], offset: usize) -> Placed<T> {
        let guard = T::round(f64::NAN);
        Placed::on(gpu(), data, [self.rows, self.cols], self.cols + self.gap, offset, guard)
    }

    /// The losses of the rows, the gradients of the logits, and those of the probabilities if they
    /// are asked for.
    fn compute(&self, asks_for_target: bool) -> (Vec<T::Loss>, Vec<T>, Option<Vec<T>>) {
        let (rows, cols, stream) = (self.rows, self.cols, gpu().stream().unwrap());
        let weight = Tensor::from_slice(gpu(), [cols], &self.weight()).unwrap();
        let mut loss: CrossEntropy<'_, T, Unreduced> =
            CrossEntropy::none().label_smoothing(self.label_smoothing).z_loss(self.z_loss);
        if self.has_weight {
            loss = loss.weight(&weight);
        }
        let [x, t] = [(&self.x, self.offsets[0]), (&self.t, self.offsets[1])]
            .map(|(data, offset)| self.place(data, offset));
        let mut losses = Loss::zeros(gpu(), [rows]).unwrap();
        let nothing = vec![T::round(0.0); rows * cols];
        let [mut by_x, mut by_t] = self.offsets.map(|offset| self.place(&nothing, offset));
        let grads = if asks_for_target {
            Grads::both(by_x.view_mut(), by_t.view_mut())
        } else {
            Grads::input(by_x.view_mut())
        };
        let mut workspace = Workspace::new(gpu()).unwrap();
        let target: Targets<'_, T> = t.view().into();
        loss.forward_backward_into(x.view(), target, &mut losses, grads, &mut workspace, &stream)
            .unwrap();
        let losses = losses.values().to_vec().unwrap();
        (losses, by_x.to_vec(), asks_for_target.then(|| by_t.to_vec()))
    }

    /// Compares loss and gradients with float64.
    fn check(&self) {
        self.check_with(false);
    }

    fn check_with(&self, asks_for_target: bool) {
        let expected = self.expected();
        let (losses, by_x, by_t) = self.compute(asks_for_target);
        self.check_losses(&losses, &expected);
        let of_input = |row: &Row, col: usize| row.by_input[col] + row.z_by_input[col];
        self.check_gradients(&by_x, &expected, of_input);
        if let Some(by_t) = by_t {
            self.check_gradients(&by_t, &expected, |row, col| row.by_target[col]);
        }
    }

    fn check_losses(&self, got: &[T::Loss], expected: &[Row]) {
        for (index, (got, row)) in got.iter().zip(expected).enumerate() {
            let (got, loss) = (got.wide(), row.loss + row.z);
            let off = (got - loss).abs();
            assert!(off <= 3.0 * T::Loss::LOSS * loss.abs(), "row {index}: {loss}, not {got}");
        }
    }

    fn check_gradients(&self, got: &[T], expected: &[Row], of: impl Fn(&Row, usize) -> f64) {
        for (index, (got, row)) in got.chunks(self.cols).zip(expected).enumerate() {
            for (col, got) in got.iter().enumerate() {
                let expected = of(row, col);
                let off = (got.wide() - expected).abs();
                let allowed = match size_of::<T>() {
                    2 => T::allowed(expected, row.terms, 1.0),
                    _ => T::LOSS * (3.0 * expected.abs() + row.terms),
                };
                assert!(off <= allowed, "row {index}, {col}: expected {expected}, got {got:?}");
            }
        }
    }
}

/// Runs a check for every element type.
macro_rules! each_type {
    ($check:ident) => {
        $check::<f32>();
        $check::<f64>();
        $check::<f16>();
        $check::<bf16>();
    };
}

/// Logits and probabilities begin at the same offset from a boundary of 16 bytes. Rows end
/// anywhere, and there are rows with and without gaps.
#[test]
fn rows_at_any_alignment() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        for cols in lengths::<T>() {
            for (offset, gap, more) in [(0, 0, 0), (1, 0, 3), (0, 2, 1), (1, 3, 2)] {
                let case = Case::<T>::new(3, cols + more);
                Case { gap, offsets: [offset; 2], ..case }.check();
            }
        }
    }
    each_type!(check);
}

#[test]
fn rows_with_weights_smoothing_and_z_loss() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        for cols in lengths::<T>() {
            for (has_weight, label_smoothing, z_loss) in
                [(true, 0.0, 0.0), (false, 0.1, 0.0), (true, 0.2, 1e-2)]
            {
                let case = Case::<T>::new(3, cols + 5);
                Case { has_weight, label_smoothing, z_loss, ..case }.check();
            }
        }
    }
    each_type!(check);
}

/// Class weights with label smoothing, in rows with the alignment of the weights and in rows that
/// do not have it, or not all. A separate backward pass takes the sum of the weights from the
/// forward pass.
#[test]
fn weights_of_rows_at_any_alignment() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        let (rows, stream) = (3, gpu().stream().unwrap());
        let label_smoothing = 0.1;
        let lane = 16 / size_of::<T>();
        for cols in lengths::<T>() {
            for (cols, gap, offsets) in [
                (cols, 0, [0, 0]),
                (cols + 5, lane - 5 % lane, [1, 1]),
                (cols, lane, [lane + 1, 1]),
                (cols, 0, [0, 1]),
                (cols + 1, 0, [0, 0]),
            ] {
                let case = Case { gap, has_weight: true, ..Case::<T>::new(rows, cols) };
                let placed =
                    Placed::on(gpu(), &case.weight(), [1, cols], cols, offsets[1], T::round(0.0));
                let x = case.place(&case.x, offsets[0]);
                let classes: Vec<i64> = (0..rows).map(|row| (row * cols / rows) as i64).collect();
                let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
                // SAFETY: `placed` has these elements, and outlives the call.
                let weights = unsafe { View::from_raw(gpu(), placed.address(), [cols]) }.unwrap();
                let loss: CrossEntropy<'_, T, Unreduced> = CrossEntropy::none();
                let loss = loss.label_smoothing(label_smoothing).weight(weights);
                let (losses, gradients) =
                    loss.forward_backward(x.view(), &target, &stream).unwrap();
                let wide = |values: &[T]| values.iter().map(|value| value.wide()).collect();
                let weight: Vec<f64> = wide(&case.weight());
                let options = Options { weight: &weight, label_smoothing, z_loss: 0.0 };
                let of_row = |(x, &class): (&[T], &i64)| -> Row {
                    let x: Vec<f64> = wide(x);
                    row(&x, Target::Class(class as usize), options)
                };
                let expected: Vec<_> = case.x.chunks(cols).zip(&classes).map(of_row).collect();
                case.check_losses(&losses.values().to_vec().unwrap(), &expected);
                let by_input = |row: &Row, col: usize| row.by_input[col];
                case.check_gradients(&gradients.to_vec().unwrap(), &expected, by_input);
                let (_, saved) = loss.forward_saving(x.view(), &target, &stream).unwrap();
                let ones = Tensor::from_slice(gpu(), [rows], &vec![T::Loss::round(1.0); rows]);
                let alone =
                    loss.backward(x.view(), &target, &saved, &ones.unwrap(), &stream).unwrap();
                case.check_gradients(&alone.to_vec().unwrap(), &expected, by_input);
            }
        }
    }
    each_type!(check);
}

/// An infinite logit makes the loss of its own row NaN, and of no other: blocks that share rows
/// exchange the sum over one row together with the maximum of the next.
#[test]
fn smoothed_rows_before_and_after_one_of_infinity() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        let (rows, stream) = (7, gpu().stream().unwrap());
        for cols in lengths::<T>() {
            let mut case = Case { has_weight: true, ..Case::<T>::new(rows, cols) };
            let infinite = 3;
            case.x[infinite * cols + cols / 2] = T::round(f64::INFINITY);
            let x = case.place(&case.x, 0);
            let target = Tensor::from_slice(gpu(), [rows], &vec![1_i64; rows]).unwrap();
            let weight = Tensor::from_slice(gpu(), [cols], &case.weight()).unwrap();
            let loss: CrossEntropy<'_, T, Unreduced> = CrossEntropy::none();
            let loss = loss.label_smoothing(0.1).weight(&weight);
            let (losses, _) = loss.forward_backward(x.view(), &target, &stream).unwrap();
            let losses = losses.values().to_vec().unwrap();
            assert!(losses[infinite].wide().is_nan(), "{:?}", losses[infinite]);
            let wide = |values: &[T]| -> Vec<f64> { values.iter().map(|v| v.wide()).collect() };
            let weight = &wide(&case.weight());
            for index in (0..rows).filter(|&index| index != infinite) {
                let options = Options { weight, label_smoothing: 0.1, z_loss: 0.0 };
                let of_row = &case.x[index * cols..(index + 1) * cols];
                let expected = row(&wide(of_row), Target::Class(1), options);
                case.check_losses(&losses[index..=index], &[expected]);
            }
        }
    }
    each_type!(check);
}

/// Blocks, and groups of blocks, take row after row in the same shared memory.
#[test]
fn rows_that_a_block_takes_one_after_the_other() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        let [staged, split] = lengths::<T>();
        let rows = if size_of::<T>() == 2 { 9 } else { 7 };
        // Each row begins earlier in a cache line than the one before.
        Case::<T>::new(rows, split - 3).check();
        // And later.
        let mut case = Case::<T>::new(rows, split + 1);
        let cols = case.cols;
        for (at, x) in case.x.iter_mut().enumerate() {
            *x = T::round(x.wide() + (at / cols % 3) as f64);
        }
        case.check();
        Case::<T>::new(40, staged + 1).check();
    }
    each_type!(check);
}

/// Probabilities begin elsewhere in a vector than the logits, by an offset that is the same for all
/// rows or not. Probabilities of 32 and 64 bits are staged by words; those of 16 bits are read from
/// global memory. Each block or group of blocks takes several rows.
#[test]
fn probabilities_at_any_alignment() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        for cols in lengths::<T>() {
            for (gap, offsets) in [(0, [0, 1]), (1, [3, 0]), (0, [1, 2])] {
                Case { gap, offsets, has_weight: true, ..Case::<T>::new(5, cols + 1) }.check();
            }
        }
    }
    each_type!(check);
}

/// A block that stages probabilities has no room to compute their gradients, so other kernels take
/// these calls.
#[test]
fn gradients_of_probabilities() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        for cols in lengths::<T>() {
            Case { offsets: [0, 1], ..Case::<T>::new(2, cols) }.check_with(true);
            Case::<T>::new(2, cols).check_with(true);
        }
    }
    each_type!(check);
}

/// The largest logit of a row has all but a millionth of the probability, so the sum of the other
/// exponentials must not lose digits beside its own.
#[test]
fn rows_that_are_nearly_certain() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        for cols in lengths::<T>() {
            let mut case = Case::<T>::new(3, cols + 3);
            for (index, at) in [0, case.cols / 2, case.cols - 1].into_iter().enumerate() {
                case.x[index * case.cols + at] = T::round(32.0);
            }
            case.check();
        }
    }
    each_type!(check);
}

#[test]
fn rows_of_infinities_and_nan() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        for cols in lengths::<T>() {
            let mut case = Case::<T>::new(5, cols);
            case.x[..cols].fill(T::round(f64::NEG_INFINITY));
            case.x[cols + 7] = T::round(f64::NAN);
            case.x[3 * cols - 1] = T::round(f64::INFINITY);
            // A class of probability 0 that is not the target adds nothing to the gradient, but its
            // 0 · ∞ makes the loss NaN.
            case.x[3 * cols] = T::round(f64::NEG_INFINITY);
            case.t[3 * cols] = T::round(0.0);
            let (losses, by_x, _) = case.compute(false);
            for index in [0, 1, 2] {
                assert!(losses[index].wide().is_nan(), "row {index} of {cols} columns");
                let is_nan = |by: &T| by.wide().is_nan();
                let of_row = &by_x[index * cols..][..cols];
                assert!(of_row.iter().all(is_nan), "row {index} of {cols} columns");
            }
            assert!(losses[3].wide().is_nan());
            let of_row = &by_x[3 * cols..][..cols];
            assert!(of_row.iter().all(|by| by.wide().is_finite()) && of_row[0].wide() == 0.0);
            assert!(losses[4].wide().is_finite(), "a row of ordinary logits");
        }
    }
    each_type!(check);
}

/// Gradients that overwrite the logits have the same bits as gradients in memory of their own.
#[test]
fn gradients_in_place_are_the_same() {
    fn check<T: Number>()
    where
        T::Loss: Number,
    {
        let stream = gpu().stream().unwrap();
        for cols in lengths::<T>() {
            let case = Case::<T>::new(5, cols + 1);
            let shape = [case.rows, case.cols];
            let mut x = Tensor::from_slice(gpu(), shape, &case.x).unwrap();
            let t = Tensor::from_slice(gpu(), shape, &case.t).unwrap();
            let mean: CrossEntropy<'_, T> = CrossEntropy::mean();
            let (loss, beside) = mean.forward_backward(&x, &t, &stream).unwrap();
            let (mut in_place, mut workspace) =
                (Loss::zeros(gpu(), []).unwrap(), Workspace::new(gpu()).unwrap());
            mean.forward_backward_in_place(&mut x, &t, &mut in_place, &mut workspace, &stream)
                .unwrap();
            let bits = |values: Vec<T>| -> Vec<u64> {
                values.into_iter().map(|value| value.low_bits()).collect()
            };
            assert_eq!(in_place.item().unwrap().wide(), loss.item().unwrap().wide());
            assert!(bits(x.to_vec().unwrap()) == bits(beside.to_vec().unwrap()));
        }
    }
    each_type!(check);
}
