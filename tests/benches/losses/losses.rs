//! The losses at well-known sizes.

use crate::timing::{Graph, interleaved};
use crate::{Bench, Case, Pattern, Result, Row, SAMPLES};
use fused_loss::{BceWithLogits, CrossEntropy, Gpu, KlDiv, Loss, Mse, Tensor, Workspace};
use std::time::Instant;
use tests::filled::{filled, total};
use tests::number::Number;
use tests::random::uniform;

pub(crate) const READ: Pattern = Pattern { reads: 1, writes: 0, of_rows: (0, 0), of_rows_apart: 0 };
pub(crate) const READ_WRITE: Pattern =
    Pattern { reads: 1, writes: 1, of_rows: (0, 0), of_rows_apart: 0 };
const READ_TWO: Pattern = Pattern { reads: 2, writes: 0, of_rows: (0, 0), of_rows_apart: 0 };
const READ_TWO_WRITE: Pattern = Pattern { reads: 2, writes: 1, of_rows: (0, 0), of_rows_apart: 0 };

/// Bytes that consecutive calls read and write before they touch the same ones again: many times
/// the cache.
const ROTATION: usize = 512 << 20;

/// Bytes of input that the calls of one sample read, unless they are [few](FEWEST) or [many](MOST).
/// While a graph begins and ends, memory is idle for a microsecond or two, which would be 2 % of a
/// few short calls.
const QUEUE: usize = 4 << 30;
const FEWEST: usize = 5;
const MOST: usize = 40;

/// The number of calls in a sample, each of which reads `bytes` of input, on this many copies.
pub(crate) fn calls(bytes: usize, copies: usize) -> usize {
    QUEUE.div_ceil(bytes).clamp(FEWEST, MOST).max(copies)
}

/// The number of copies of `bytes` that take turns.
pub(crate) fn copies(bytes: usize) -> usize {
    ROTATION.div_ceil(bytes).clamp(1, 8)
}

/// Compares every 997th element of a gradient with float64.
pub(crate) fn check_gradient<T: Number>(
    name: &str,
    got: &Tensor<T>,
    expected: impl Fn(usize) -> f64,
) -> Result<()> {
    let got = got.to_vec()?;
    let expected: Vec<f64> = (0..got.len()).step_by(997).map(expected).collect();
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    for (index, &expected) in expected.iter().enumerate() {
        let off = (got[index * 997].wide() - expected).abs();
        let allowed = T::allowed(expected, largest, largest);
        assert!(off <= allowed, "{name}: gradient {} is off by {off:e}", index * 997);
    }
    Ok(())
}

/// Compares a loss with float64.
fn check_loss<T: Number<Loss = f32>>(name: &str, got: &Loss<f32>, expected: f64) -> Result<()> {
    let error = f64::from(got.item()?) / expected - 1.0;
    println!("{name}: the loss is off by {error:.1e}");
    assert!(error.abs() < T::LOSS, "{name}: the loss is off by {error:e}");
    Ok(())
}

/// The three passes of a loss that compares element by element: compared with float64, then timed.
macro_rules! elementwise {
    ($bench:ident, $loss:expr, $name:expr, $side:expr, $x:expr, $t:expr, $term:expr, $divisor:expr, $gradient:expr, $backward:expr) => {{
        let (loss_of, name, side, x, t): (_, String, usize, Vec<T>, Vec<T>) =
            ($loss, $name, $side, $x, $t);
        let (gpu, stream) = ($bench.gpu.clone(), $bench.stream.clone());
        let (term, gradient_of): (fn(f64, f64) -> f64, fn(f64, f64) -> f64) = ($term, $gradient);
        let divisor = $divisor as f64;
        let input = Tensor::from_slice(&gpu, [side, side], &x)?;
        let target = Tensor::from_slice(&gpu, [side, side], &t)?;
        let one = Tensor::from_slice(&gpu, [], &[1.0_f32])?;
        let mut gradient = Tensor::<T>::zeros(&gpu, [side, side])?;
        let mut loss = Loss::zeros(&gpu, [])?;
        let mut workspace = Workspace::new(&gpu)?;

        loss_of.forward_backward_into(
            &input,
            &target,
            &mut loss,
            &mut gradient,
            &mut workspace,
            &stream,
        )?;
        let sum = total(side * side, |index| term(x[index].wide(), t[index].wide()));
        check_loss::<T>(&name, &loss, sum / divisor)?;
        check_gradient(&name, &gradient, |index| {
            gradient_of(x[index].wide(), t[index].wide()) / divisor
        })?;
        drop((x, t));

        let arrays = [vec![input.as_raw(), target.as_raw(), gradient.as_raw()]];
        let bytes = side * side * size_of::<T>();
        $bench.row(format!("{name}, forward"), READ_TWO, &arrays, bytes, |_| {
            loss_of.forward_into(&input, &target, &mut loss, &mut workspace, &stream)
        })?;
        $bench.row(format!("{name}, forward+backward"), READ_TWO_WRITE, &arrays, bytes, |_| {
            loss_of.forward_backward_into(
                &input,
                &target,
                &mut loss,
                &mut gradient,
                &mut workspace,
                &stream,
            )
        })?;
        // A pattern with one read drops the first of the two arrays that are read.
        let arrays = arrays.map(|all| all[2 - $backward.reads..].to_vec());
        $bench.row(format!("{name}, backward"), $backward, &arrays, bytes, |_| {
            loss_of.backward_into(&input, &target, &one, &mut gradient, &stream)
        })?;
    }};
}

/// Numbers in [-1, 1).
fn draw<T: Number>(seed: u64, len: usize) -> Vec<T> {
    filled(len, |index| T::round(f64::from(uniform(seed, index as u64))))
}

/// Numbers in (0, 1).
fn probabilities<T: Number>(seed: u64, len: usize) -> Vec<T> {
    filled(len, |index| T::round(f64::from(uniform(seed, index as u64)) * 0.4995 + 0.5))
}

impl Bench {
    /// Mean squared error, mean.
    pub(crate) fn mse<T: Number<Loss = f32>>(&mut self, side: usize) -> Result<()> {
        let name = format!("MSE {side}×{side} {}", T::NAME);
        if !self.wants(Case::large::<T>(&name, "mse", [side, side])) {
            return Ok(());
        }
        let (x, t) = (draw::<T>(1, side * side), draw::<T>(2, side * side));
        elementwise!(
            self,
            Mse::mean(),
            name,
            side,
            x,
            t,
            |x, t| (x - t).powi(2),
            side * side,
            |x, t| 2.0 * (x - t),
            READ_TWO_WRITE
        );
        Ok(())
    }

    /// Kullback-Leibler divergence from probabilities or their logarithms, divided by the first
    /// dimension.
    pub(crate) fn kl_div<T: Number<Loss = f32>>(
        &mut self,
        log_input: bool,
        side: usize,
    ) -> Result<()> {
        let form = if log_input { "log-probabilities" } else { "probabilities" };
        let name = format!("KL from {form} {side}×{side} {}", T::NAME);
        let case = Case::large::<T>(&name, "kl_div", [side, side]);
        if !self.wants(Case { log_input, ..case }) {
            return Ok(());
        }
        let loss = KlDiv::new().log_input(log_input);
        let t = probabilities::<T>(4, side * side);
        if log_input {
            let x = filled(side * side, |index| {
                T::round((f64::from(uniform(3, index as u64)) * 0.4995 + 0.5).ln())
            });
            elementwise!(
                self,
                loss,
                name,
                side,
                x,
                t,
                |x, t| t * (t.ln() - x),
                side,
                |_, t| -t,
                READ_WRITE
            );
        } else {
            let p = probabilities::<T>(3, side * side);
            elementwise!(
                self,
                loss,
                name,
                side,
                p,
                t,
                |p, t| t * (t / p).ln(),
                side,
                |p, t| -t / p,
                READ_TWO_WRITE
            );
        }
        Ok(())
    }

    /// Binary cross-entropy of logits, mean.
    pub(crate) fn bce<T: Number<Loss = f32>>(&mut self, side: usize) -> Result<()> {
        let name = format!("BCE with logits {side}×{side} {}", T::NAME);
        if !self.wants(Case::large::<T>(&name, "bce", [side, side])) {
            return Ok(());
        }
        let (x, t) = (draw::<T>(1, side * side), probabilities::<T>(2, side * side));
        elementwise!(
            self,
            BceWithLogits::<T>::mean(),
            name,
            side,
            x,
            t,
            |x, t| (-x).exp().ln_1p() + (1.0 - t) * x,
            side * side,
            |x, t| 1.0 / (1.0 + (-x).exp()) - t,
            READ_TWO_WRITE
        );
        Ok(())
    }

    /// Cross-entropy of classes, mean.
    pub(crate) fn cross_entropy<T: Number<Loss = f32>>(
        &mut self,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        let name = format!("CE {rows}×{cols} {}", T::NAME);
        if !self.wants(Case::large::<T>(&name, "cross_entropy", [rows, cols])) {
            return Ok(());
        }
        let (gpu, stream) = (self.gpu.clone(), self.stream.clone());
        let logit = |index: usize| T::round(4.0 * f64::from(uniform(5, index as u64)));
        let class =
            |row: usize| ((f64::from(uniform(6, row as u64)) + 1.0) / 2.0 * cols as f64) as usize;
        let x = filled(rows * cols, logit);
        let y: Vec<i64> = (0..rows).map(|row| class(row) as i64).collect();
        let log_sums = filled(rows, |row| {
            let row = &x[row * cols..(row + 1) * cols];
            row.iter().map(|x| x.wide().exp()).sum::<f64>().ln()
        });
        let expected =
            total(rows, |row| log_sums[row] - x[row * cols + class(row)].wide()) / rows as f64;

        let bytes = rows * cols * size_of::<T>();
        let copies = copies(bytes);
        let inputs: Vec<_> = (0..copies)
            .map(|_| Tensor::from_slice(&gpu, [rows, cols], &x))
            .collect::<std::result::Result<_, _>>()?;
        let mut gradients: Vec<_> = (0..copies)
            .map(|_| Tensor::<T>::zeros(&gpu, [rows, cols]))
            .collect::<std::result::Result<_, _>>()?;
        let target = Tensor::from_slice(&gpu, [rows], &y)?;
        let one = Tensor::from_slice(&gpu, [], &[1.0_f32])?;
        let loss_of = CrossEntropy::mean();
        let mut loss = Loss::zeros(&gpu, [])?;
        let mut workspace = Workspace::new(&gpu)?;

        loss_of.forward_backward_into(
            &inputs[0],
            &target,
            &mut loss,
            &mut gradients[0],
            &mut workspace,
            &stream,
        )?;
        check_loss::<T>(&name, &loss, expected)?;
        let gradient = |index: usize| {
            let (row, col) = (index / cols, index % cols);
            let p = (x[index].wide() - log_sums[row]).exp();
            (p - if col == class(row) { 1.0 } else { 0.0 }) / rows as f64
        };
        check_gradient(&name, &gradients[0], gradient)?;
        let (_, saved) = loss_of.forward_saving(&inputs[0], &target, &stream)?;
        loss_of.backward_into(&inputs[0], &target, &saved, &one, &mut gradients[0], &stream)?;
        check_gradient(&name, &gradients[0], gradient)?;

        let arrays: Vec<_> =
            inputs.iter().zip(&gradients).map(|(x, g)| vec![x.as_raw(), g.as_raw()]).collect();
        drop(x);
        let of_rows = (target.as_raw(), rows * size_of::<i64>());
        let (read, read_write) = (Pattern { of_rows, ..READ }, Pattern { of_rows, ..READ_WRITE });
        self.row(format!("{name}, forward"), read, &arrays, bytes, |call| {
            loss_of.forward_into(
                &inputs[call % copies],
                &target,
                &mut loss,
                &mut workspace,
                &stream,
            )
        })?;
        self.row(format!("{name}, forward+backward"), read_write, &arrays, bytes, |call| {
            let at = call % copies;
            loss_of.forward_backward_into(
                &inputs[at],
                &target,
                &mut loss,
                &mut gradients[at],
                &mut workspace,
                &stream,
            )
        })?;
        self.row(format!("{name}, backward"), read_write, &arrays, bytes, |call| {
            let at = call % copies;
            loss_of.backward_into(&inputs[at], &target, &saved, &one, &mut gradients[at], &stream)
        })
    }

    /// The cost of a call with little to compute: 128 × 1000 f32, in a graph and queued one by one.
    pub(crate) fn small(&mut self) -> Result<()> {
        let (rows, cols) = (128, 1000);
        let (gpu, stream): (Gpu, _) = (self.gpu.clone(), self.stream.clone());
        let x = Tensor::from_slice(&gpu, [rows, cols], &probabilities::<f32>(7, rows * cols))?;
        let t = Tensor::from_slice(&gpu, [rows, cols], &probabilities::<f32>(8, rows * cols))?;
        let y: Vec<i64> = (0..rows as i64).map(|row| row * 7).collect();
        let y = Tensor::from_slice(&gpu, [rows], &y)?;
        let mut workspace = Workspace::new(&gpu)?;
        macro_rules! small {
            ($name:literal, $kind:literal, $loss:expr, $target:expr) => {
                let name = format!("{} {rows}×{cols} f32", $name);
                let case = Case::large::<f32>(&name, $kind, [rows, cols]);
                if self.wants(Case { small: true, ..case }) {
                    let name = format!("{name}, forward");
                    let loss_of = $loss;
                    // A loss of its own for each: after cross-entropy, another loss would have to
                    // clear its record of a target out of range.
                    let mut loss = Loss::zeros(&gpu, [])?;
                    let mut call = |_: usize| {
                        loss_of.forward_into(&x, $target, &mut loss, &mut workspace, &stream)
                    };
                    let calls = 200;
                    let graph = Graph::capture(&stream, calls, &mut call)?;
                    let in_graph = interleaved(&stream, &[&graph], SAMPLES)?[0] / calls as f64;
                    let mut samples = Vec::new();
                    for _ in 0..SAMPLES {
                        stream.synchronize()?;
                        let start = Instant::now();
                        for index in 0..1000 {
                            call(index)?;
                        }
                        stream.synchronize()?;
                        samples.push(start.elapsed().as_secs_f64());
                    }
                    samples.sort_by(f64::total_cmp);
                    let queued = samples[SAMPLES / 2];
                    println!(
                        "{name}: {:.2} µs in a graph, {queued:.2} µs queued one by one",
                        in_graph * 1e3,
                        queued = queued * 1e3
                    );
                    for (how, ms) in [("in a graph", in_graph), ("queued one by one", queued)] {
                        self.rows.push(Row {
                            name: format!("{name}, {how}"),
                            bytes: 0.0,
                            ours_ms: ms,
                            ceiling_ms: f64::NAN,
                            ceiling: String::new(),
                        });
                    }
                }
            };
        }
        small!("CE", "cross_entropy", CrossEntropy::mean(), &y);
        small!("MSE", "mse", Mse::mean(), &t);
        small!("KL from probabilities", "kl_div", KlDiv::new().log_input(false), &t);
        Ok(())
    }
}
