//! How close each loss is to the memory: its time beside the ceiling, the best of several launches of a
//! kernel that only reads and writes the same bytes, in one run. `cargo xtask bench`.
//!
//! Times are medians of samples that alternate between all candidates. A sample is the replay of a graph
//! of several calls between two events, and the next is queued before it is done, so that no figure has
//! the host's launches in it. Every result is checked against float64 before it is timed.

mod ceiling;
mod timing;

use ceiling::Pattern;
use fused_loss::{BatchMean, Gpu, KlDiv, Loss, Mse, Stream, Tensor, Workspace};
use half::bf16;
use serde_json::json;
use std::error::Error;
use tests::filled::{sum_parallel, uniforms_parallel};
use tests::number::Number;
use tests::reference::Total;
use timing::{Graph, interleaved};

/// Calls in a graph.
const CALLS: usize = 5;
/// Samples of each candidate.
const SAMPLES: usize = 21;

/// One line of the table.
struct Row {
    name: String,
    bytes: f64,
    ours_ms: f64,
    ceiling_ms: f64,
    ceiling: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::new(0)?;
    // An argument that is no option (`cargo bench` passes one) is the side of the square.
    let side = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(32768);
    println!("{}, medians of {SAMPLES} samples of {CALLS} calls", gpu.name());
    let mut rows = mse::<f32>(&gpu, side)?;
    rows.extend(mse::<bf16>(&gpu, side)?);
    rows.extend(kl_div::<f32>(&gpu, side / 2)?);
    rows.extend(kl_div::<bf16>(&gpu, side / 2)?);
    print_table(&rows);
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    let json = json!({ "device": gpu.name(), "samples": SAMPLES, "calls": CALLS, "rows": rows });
    if let Some(path) = std::env::var_os("FUSED_LOSS_BENCH_JSON") {
        std::fs::write(path, serde_json::to_string_pretty(&json)?)?;
    }
    Ok(())
}

/// The three passes of a loss that compares element by element: checked against float64, then timed.
macro_rules! elementwise {
    ($loss:expr, $name:expr, $gpu:expr, $side:expr, $x:expr, $t:expr, $expected:expr, $gradient:expr) => {{
        let (loss_of, name, gpu, side, x, t) = ($loss, $name, $gpu, $side, $x, $t);
        let stream = gpu.stream()?;
        let input = Tensor::from_slice(gpu, [side, side], &x)?;
        let target = Tensor::from_slice(gpu, [side, side], &t)?;
        let one = Tensor::from_slice(gpu, [], &[1.0_f32])?;
        let mut gradient = Tensor::<T>::zeros(gpu, [side, side])?;
        let mut loss = Loss::zeros(gpu, [])?;
        let mut workspace = Workspace::new(gpu)?;
        let both = |gradient: &mut Tensor<T>, loss: &mut Loss<f32>, workspace: &mut Workspace| {
            loss_of.forward_backward_into(&input, &target, loss, gradient, workspace, &stream)
        };

        both(&mut gradient, &mut loss, &mut workspace)?;
        let error = f64::from(loss.item()?) / $expected - 1.0;
        println!("{name}: the loss is off by {error:.1e}");
        assert!(error.abs() < T::LOSS, "the loss is off by {error:e}");
        let got = gradient.to_vec()?;
        let expected: Vec<f64> = (0..side * side).step_by(997).map($gradient).collect();
        let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        for (index, &expected) in expected.iter().enumerate() {
            let off = (got[index * 997].wide() - expected).abs();
            let allowed = T::allowed(expected, largest, largest);
            assert!(off <= allowed, "{name}: gradient {index} is off by {off:e}");
        }
        drop((x, t, got));

        let arrays = [input.as_raw(), target.as_raw(), gradient.as_raw()];
        let bytes = side * side * size_of::<T>();
        let reads = Pattern { reads: 2, writes: 0 };
        let writes = Pattern { reads: 2, writes: 1 };
        let mut rows = Vec::new();
        let graph = Graph::capture(&stream, CALLS, |_| {
            loss_of.forward_into(&input, &target, &mut loss, &mut workspace, &stream)
        })?;
        rows.push(row(format!("{name}, forward"), &stream, graph, reads, &arrays, bytes)?);
        let graph =
            Graph::capture(&stream, CALLS, |_| both(&mut gradient, &mut loss, &mut workspace))?;
        rows.push(row(
            format!("{name}, forward+backward"),
            &stream,
            graph,
            writes,
            &arrays,
            bytes,
        )?);
        let graph = Graph::capture(&stream, CALLS, |_| {
            loss_of.backward_into(&input, &target, &one, &mut gradient, &stream)
        })?;
        rows.push(row(format!("{name}, backward"), &stream, graph, writes, &arrays, bytes)?);
        rows
    }};
}

/// Numbers of [-1, 1), or with `positive` of (0, 1).
fn draw<T: Number>(seed: u64, len: usize, positive: bool) -> Vec<T> {
    let number = |x: f32| if positive { f64::from(x) * 0.4995 + 0.5 } else { f64::from(x) };
    uniforms_parallel(seed, len).into_iter().map(|x| T::round(number(x))).collect()
}

/// Mean squared error, mean.
fn mse<T: Number<Loss = f32>>(gpu: &Gpu, side: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    let len = side * side;
    let (x, t) = (draw::<T>(1, len, false), draw::<T>(2, len, false));
    let expected = sum_parallel(&x, &t, |x, t| {
        let terms = x.iter().zip(t).map(|(x, t)| (x.wide() - t.wide()).powi(2));
        terms.sum::<Total>().value()
    }) / len as f64;
    let name = format!("MSE {}", T::DTYPE.name());
    let gradient: Vec<f64> = (0..len)
        .step_by(997)
        .map(|index| 2.0 * (x[index].wide() - t[index].wide()) / len as f64)
        .collect();
    let gradient = |index: usize| gradient[index / 997];
    Ok(elementwise!(Mse::mean(), name, gpu, side, x, t, expected, gradient))
}

/// Kullback-Leibler divergence of probabilities, divided by the first dimension.
fn kl_div<T: Number<Loss = f32>>(gpu: &Gpu, side: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    let len = side * side;
    let (x, t) = (draw::<T>(3, len, true), draw::<T>(4, len, true));
    let expected = sum_parallel(&x, &t, |p, t| {
        let terms = p.iter().zip(t).map(|(p, t)| t.wide() * (t.wide() / p.wide()).ln());
        terms.sum::<Total>().value()
    }) / side as f64;
    let name = format!("KL from probabilities {}", T::DTYPE.name());
    let gradient: Vec<f64> = (0..len)
        .step_by(997)
        .map(|index| -t[index].wide() / x[index].wide() / side as f64)
        .collect();
    let gradient = |index: usize| gradient[index / 997];
    let loss = KlDiv { log_input: false, log_target: false, reduction: BatchMean };
    Ok(elementwise!(loss, name, gpu, side, x, t, expected, gradient))
}

/// Times `ours` beside the ceiling of its pattern.
fn row(
    name: String,
    stream: &Stream,
    ours: Graph,
    pattern: Pattern,
    arrays: &[u64],
    array_bytes: usize,
) -> Result<Row, Box<dyn Error>> {
    let launches = ceiling::best(stream, pattern, arrays, array_bytes, CALLS)?;
    let mut candidates = vec![&ours];
    candidates.extend(launches.iter().map(|(_, graph)| graph));
    let times = interleaved(stream, &candidates, SAMPLES)?;
    let (ceiling, ceiling_ms) = launches
        .iter()
        .zip(&times[1..])
        .map(|((launch, _), &time)| (launch.clone(), time / CALLS as f64))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("there are candidates");
    let bytes = ((pattern.reads + pattern.writes) * array_bytes) as f64;
    Ok(Row { name, bytes, ours_ms: times[0] / CALLS as f64, ceiling_ms, ceiling })
}

impl Row {
    fn json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "bytes": self.bytes,
            "ours_ms": self.ours_ms,
            "ceiling_ms": self.ceiling_ms,
            "ceiling_launch": self.ceiling,
            "ratio": self.ceiling_ms / self.ours_ms,
        })
    }
}

fn print_table(rows: &[Row]) {
    println!("| | ours ms | TB/s | ceiling ms | TB/s | ceiling ÷ ours | ceiling's launch |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let rate = |ms: f64| row.bytes / ms / 1e9;
        println!(
            "| {} | {:.4} | {:.3} | {:.4} | {:.3} | {:.3} | {} |",
            row.name,
            row.ours_ms,
            rate(row.ours_ms),
            row.ceiling_ms,
            rate(row.ceiling_ms),
            row.ceiling_ms / row.ours_ms,
            row.ceiling,
        );
    }
}
