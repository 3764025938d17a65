//! How close each loss is to the memory: its time beside the ceiling, the best of several launches of a
//! kernel that only reads and writes the same bytes, in one run. `cargo xtask bench`.
//!
//! Times are medians of samples that alternate between all candidates. A sample is the replay of a graph
//! of several calls between two events, and the next is queued before it is done, so that no figure has
//! the host's launches in it. Every result is checked against float64 before it is timed.

mod ceiling;
mod timing;

use ceiling::Pattern;
use fused_loss::{Gpu, Loss, Mse, Tensor, Workspace};
use serde_json::json;
use std::error::Error;
use tests::filled::{sum_parallel, uniforms_parallel};
use tests::reference;
use timing::{Graph, interleaved};

/// Calls in a graph.
const CALLS: usize = 5;
/// Samples of each candidate.
const SAMPLES: usize = 21;

/// One line of the table.
struct Row {
    name: &'static str,
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
    let rows = mse(&gpu, side)?;
    print_table(&rows);
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    let json = json!({ "device": gpu.name(), "samples": SAMPLES, "calls": CALLS, "rows": rows });
    if let Some(path) = std::env::var_os("FUSED_LOSS_BENCH_JSON") {
        std::fs::write(path, serde_json::to_string_pretty(&json)?)?;
    }
    Ok(())
}

/// Mean squared error, f32, mean.
fn mse(gpu: &Gpu, side: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    let len = side * side;
    let (x, t) = (uniforms_parallel(1, len), uniforms_parallel(2, len));
    let expected = sum_parallel(&x, &t, reference::mse::sum) / len as f64;
    let stream = gpu.stream()?;
    let input = Tensor::from_slice(gpu, [side, side], &x)?;
    let target = Tensor::from_slice(gpu, [side, side], &t)?;
    let one = Tensor::from_slice(gpu, [], &[1.0_f32])?;
    let mut gradient = Tensor::zeros(gpu, [side, side])?;
    let mut loss = Loss::zeros(gpu, [])?;
    let mut workspace = Workspace::new(gpu)?;

    let mse = Mse::mean();
    mse.forward_backward_into(&input, &target, &mut loss, &mut gradient, &mut workspace, &stream)?;
    let error = f64::from(loss.item()?) / expected - 1.0;
    assert!(error.abs() < 1e-6, "the loss is off by {error:e}");
    let got = gradient.to_vec()?;
    let scale = 2.0 / len as f64;
    let worst = (0..len).step_by(997).map(|index| {
        let expected = (f64::from(x[index]) - f64::from(t[index])) * scale;
        (f64::from(got[index]) - expected).abs()
    });
    let worst = worst.fold(0.0, f64::max);
    assert!(worst < 2e-6 * 2.0 * scale, "the gradient is off by {worst:e}");
    drop((x, t, got));

    let arrays = [input.as_raw(), target.as_raw(), gradient.as_raw()];
    let bytes = (len * 4) as f64;
    let forward = Graph::capture(&stream, CALLS, |_| {
        mse.forward_into(&input, &target, &mut loss, &mut workspace, &stream)
    })?;
    let mut rows = Vec::new();
    let pattern = Pattern { reads: 2, writes: 0 };
    rows.push(row("MSE f32, forward", 2.0 * bytes, &stream, forward, pattern, &arrays, len)?);
    let both = Graph::capture(&stream, CALLS, |_| {
        let (loss, gradient) = (&mut loss, &mut gradient);
        mse.forward_backward_into(&input, &target, loss, gradient, &mut workspace, &stream)
    })?;
    let pattern = Pattern { reads: 2, writes: 1 };
    rows.push(row("MSE f32, forward+backward", 3.0 * bytes, &stream, both, pattern, &arrays, len)?);
    let backward = Graph::capture(&stream, CALLS, |_| {
        mse.backward_into(&input, &target, &one, &mut gradient, &stream)
    })?;
    rows.push(row("MSE f32, backward", 3.0 * bytes, &stream, backward, pattern, &arrays, len)?);
    Ok(rows)
}

/// Times `ours` beside the ceiling of its pattern.
fn row(
    name: &'static str,
    bytes: f64,
    stream: &fused_loss::Stream,
    ours: Graph,
    pattern: Pattern,
    arrays: &[u64],
    len: usize,
) -> Result<Row, Box<dyn Error>> {
    let launches = ceiling::best(stream, pattern, arrays, len * 4, CALLS)?;
    let mut candidates = vec![&ours];
    candidates.extend(launches.iter().map(|(_, graph)| graph));
    let times = interleaved(stream, &candidates, SAMPLES)?;
    let (ceiling, ceiling_ms) = launches
        .iter()
        .zip(&times[1..])
        .map(|((launch, _), &time)| (launch.clone(), time / CALLS as f64))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("there are candidates");
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
