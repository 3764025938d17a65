//! `--first-call`: how long a program waits for its first result if the driver has compiled nothing
//! before, as on a machine that runs it for the first time.
//!
//! A process compiles a kernel only once, so each measurement runs this program again in a new
//! process. With `CUDA_CACHE_DISABLE=1` in its environment, the driver neither reads nor writes its
//! cache on disk.

use crate::Result;
use crate::options::FirstCall;
use fused_loss::{CrossEntropy, Gpu, KlDiv, Mse, Stream, Tensor};
use half::bf16;
use serde_json::{Value, json};
use std::env;
use std::process::Command;
use std::time::Instant;
use tests::number::Number;

/// The number of processes per call. The table shows the medians of their times.
const PROCESSES: usize = 5;

/// Measures one call in this process, starting at the given moment.
type Measure = fn(&Gpu, Instant) -> Result<Value>;

/// The calls, by name. All compute loss and gradient, whose kernels are the largest.
const CALLS: &[(&str, Measure)] = &[
    ("MSE 128×1000 f32", |gpu, start| {
        elements::<f32, _>(gpu, start, |x, t, stream| Mse::mean().forward_backward(x, t, stream))
    }),
    ("KL from log-probabilities 128×1000 f32", |gpu, start| {
        elements::<f32, _>(gpu, start, |x, t, stream| KlDiv::new().forward_backward(x, t, stream))
    }),
    ("CE 128×1000 f32", |gpu, start| cross_entropy::<f32>(gpu, start, 128, 1000)),
    ("CE 128×1000 bf16", |gpu, start| cross_entropy::<bf16>(gpu, start, 128, 1000)),
    // More rows than a GPU has multiprocessors, with the length of a vocabulary.
    ("CE 512×128256 bf16", |gpu, start| cross_entropy::<bf16>(gpu, start, 512, 128_256)),
];

/// Prints the table, or with `--first-call-of` the times of this process for that table.
pub(crate) fn run(options: &FirstCall, wanted: &[String]) -> Result<()> {
    match &options.of {
        Some(name) => println!("{}", measure_here(options, name)?),
        None => table(options, wanted)?,
    }
    Ok(())
}

/// What a measuring process does.
fn measure_here(options: &FirstCall, name: &str) -> Result<Value> {
    let start = Instant::now();
    let gpu = if options.emulated { Gpu::emulated(0)? } else { Gpu::new(0)? };
    let (_, measure) = CALLS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| format!("--first-call-of {name}: expected one of\n  {}", names()))?;
    let mut times = measure(&gpu, start)?;
    times["device"] = gpu.name().into();
    Ok(times)
}

fn names() -> String {
    CALLS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("\n  ")
}

fn table(options: &FirstCall, wanted: &[String]) -> Result<()> {
    let is_in_none = |part: &&String| !CALLS.iter().any(|(name, _)| name.contains(*part));
    if let Some(part) = wanted.iter().find(is_in_none) {
        let names = names();
        return Err(format!("expected a part of one of these names, got {part}:\n  {names}").into());
    }
    let mut has_head = false;
    for (name, _) in CALLS {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part)) {
            continue;
        }
        let processes = (0..PROCESSES).map(|_| measure_apart(options, name));
        let processes = processes.collect::<Result<Vec<_>>>()?;
        if !has_head {
            has_head = true;
            let device = processes[0]["device"].as_str().unwrap_or_default();
            println!("{device}, medians of {PROCESSES} processes");
            println!("| forward+backward | Gpu::new to result, s | first call, s | second, s |");
            println!("|---|---|---|---|");
        }
        let [whole, first, second] = ["whole", "first", "second"].map(|of| median(&processes, of));
        println!("| {name} | {whole:.3} | {first:.3} | {second:.6} |");
    }
    Ok(())
}

/// The output of a process that measures this call and nothing else.
fn measure_apart(options: &FirstCall, name: &str) -> Result<Value> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--first-call-of", name]).env("CUDA_CACHE_DISABLE", "1");
    command.args(options.emulated.then_some("--emulated"));
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let (status, said) = (output.status, said.trim_end());
        return Err(format!("{name}: its process ends with {status}:\n{said}").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn median(processes: &[Value], of: &str) -> f64 {
    let mut times: Vec<_> =
        processes.iter().map(|times| times[of].as_f64().unwrap_or(f64::NAN)).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds from `start` to the call's result, of the call alone, and of the same call again.
/// Results are freed at the end, so no time includes that.
fn times<R>(
    start: Instant,
    stream: &Stream,
    call: impl Fn() -> fused_loss::Result<R>,
) -> Result<Value> {
    let begin = Instant::now();
    let first = call()?;
    stream.synchronize()?;
    let (whole, first_call) = (start.elapsed(), begin.elapsed());
    let begin = Instant::now();
    let second = call()?;
    stream.synchronize()?;
    let second_call = begin.elapsed();
    drop((first, second));
    Ok(json!({
        "whole": whole.as_secs_f64(),
        "first": first_call.as_secs_f64(),
        "second": second_call.as_secs_f64(),
    }))
}

fn elements<T: Number, R>(
    gpu: &Gpu,
    start: Instant,
    call: impl Fn(&Tensor<T>, &Tensor<T>, &Stream) -> fused_loss::Result<R>,
) -> Result<Value> {
    let stream = gpu.stream()?;
    let [x, t] = [Tensor::zeros(gpu, [128, 1000])?, Tensor::zeros(gpu, [128, 1000])?];
    times(start, &stream, || call(&x, &t, &stream))
}

fn cross_entropy<T: Number>(gpu: &Gpu, start: Instant, rows: usize, cols: usize) -> Result<Value> {
    let stream = gpu.stream()?;
    let logits = Tensor::<T>::zeros(gpu, [rows, cols])?;
    let classes = Tensor::<i64>::zeros(gpu, [rows])?;
    times(start, &stream, || CrossEntropy::mean().forward_backward(&logits, &classes, &stream))
}
