//! How close each loss is to the memory: its time beside the ceiling, the best of several launches of a
//! kernel that only reads and writes the same bytes, in one run. `cargo xtask bench`.
//!
//! Times are medians of samples that alternate between all candidates. A sample is the replay of a graph
//! of several calls between two events, and the next is queued before it is done, so that no figure has
//! the host's launches in it. Every result is checked against float64 before it is timed.

mod ceiling;
mod timing;

use ceiling::Pattern;
use fused_loss::{Gpu, Loss, Mse, Stream, Tensor, Workspace};
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
    print_table(&rows);
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    let json = json!({ "device": gpu.name(), "samples": SAMPLES, "calls": CALLS, "rows": rows });
    if let Some(path) = std::env::var_os("FUSED_LOSS_BENCH_JSON") {
        std::fs::write(path, serde_json::to_string_pretty(&json)?)?;
    }
    Ok(())
}

/// Mean squared error, mean.
fn mse<T: Number<Loss = f32>>(gpu: &Gpu, side: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    let (len, name) = (side * side, T::DTYPE.name());
    let draw = |seed| -> Vec<T> {
        uniforms_parallel(seed, len).into_iter().map(|x| T::round(f64::from(x))).collect()
    };
    let (x, t) = (draw(1), draw(2));
    let expected = sum_parallel(&x, &t, |x, t| {
        let terms = x.iter().zip(t).map(|(x, t)| (x.wide() - t.wide()).powi(2));
        terms.sum::<Total>().value()
    }) / len as f64;
    let stream = gpu.stream()?;
    let input = Tensor::from_slice(gpu, [side, side], &x)?;
    let target = Tensor::from_slice(gpu, [side, side], &t)?;
    let one = Tensor::from_slice(gpu, [], &[1.0_f32])?;
    let mut gradient = Tensor::<T>::zeros(gpu, [side, side])?;
    let mut loss = Loss::zeros(gpu, [])?;
    let mut workspace = Workspace::new(gpu)?;

    let mse = Mse::mean();
    mse.forward_backward_into(&input, &target, &mut loss, &mut gradient, &mut workspace, &stream)?;
    let error = f64::from(loss.item()?) / expected - 1.0;
    assert!(error.abs() < T::LOSS, "the loss is off by {error:e}");
    let got = gradient.to_vec()?;
    let scale = 2.0 / len as f64;
    for index in (0..len).step_by(997) {
        let expected = (x[index].wide() - t[index].wide()) * scale;
        let off = (got[index].wide() - expected).abs();
        assert!(
            off <= T::allowed(expected, 2.0 * scale, scale),
            "element {index} is off by {off:e}"
        );
    }
    drop((x, t, got));

    let arrays = [input.as_raw(), target.as_raw(), gradient.as_raw()];
    let bytes = len * size_of::<T>();
    let forward = Graph::capture(&stream, CALLS, |_| {
        mse.forward_into(&input, &target, &mut loss, &mut workspace, &stream)
    })?;
    let mut rows = Vec::new();
    let pattern = Pattern { reads: 2, writes: 0 };
    rows.push(row(format!("MSE {name}, forward"), &stream, forward, pattern, &arrays, bytes)?);
    let both = Graph::capture(&stream, CALLS, |_| {
        let (loss, gradient) = (&mut loss, &mut gradient);
        mse.forward_backward_into(&input, &target, loss, gradient, &mut workspace, &stream)
    })?;
    let pattern = Pattern { reads: 2, writes: 1 };
    rows.push(row(
        format!("MSE {name}, forward+backward"),
        &stream,
        both,
        pattern,
        &arrays,
        bytes,
    )?);
    let backward = Graph::capture(&stream, CALLS, |_| {
        mse.backward_into(&input, &target, &one, &mut gradient, &stream)
    })?;
    rows.push(row(format!("MSE {name}, backward"), &stream, backward, pattern, &arrays, bytes)?);
    Ok(rows)
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
