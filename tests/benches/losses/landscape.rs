//! `--landscape`: random shapes, each compared with the ceiling of the bytes that it moves.
//!
//! The tensors of a shape are in one allocation that all shapes share. They contain random numbers,
//! and their copies together are larger than the second-level cache. The results of a shape are
//! compared with float64. Then the call and the launches of the ceiling are timed in one loop, by
//! the method of the other benchmarks. A shape that fails or is wrong is an error of the run, which
//! continues with the others.

use crate::arena::Arena;
use crate::data::Data;
use crate::document::{self, Document};
use crate::layout::Layout;
use crate::options::{Landscape, Options};
use crate::shapes::{Dtype, Random, Shape};
use crate::subject::{SCALARS, Subject};
use crate::table::list;
use crate::timing::{Graph, interleaved};
use crate::{Pattern, Result, ceiling, options, peers};
use fused_loss::{Gpu, Workspace};
use half::{bf16, f16};
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tests::number::Number;

/// Samples of each candidate.
const SAMPLES: usize = 11;

/// Measures the shapes, which are those of a document if there is one, and lets the other libraries
/// measure some of them.
pub(crate) fn measure(
    options: &Options,
    landscape: &Landscape,
    document: Option<&Document>,
) -> Result<Value> {
    let (seed, shapes) = choose(landscape, document);
    let gpu = if landscape.emulated { Gpu::emulated(0)? } else { Gpu::new(0)? };
    println!("{}, {} shapes, medians of {SAMPLES} samples", gpu.name(), shapes.len());
    let mut results = json!({
        "device": gpu.name(),
        "date": document::date(since_1970()),
        "samples": SAMPLES,
        "landscape": { "seed": seed.to_string(), "shapes": shapes.len() },
        "rows": [],
        "failed": [],
    });
    let layouts: Vec<_> = shapes.iter().map(|shape| layout(shape, landscape)).collect();
    let most = layouts.iter().map(Layout::bytes).max().unwrap_or(0) + SCALARS;
    let arena = Arena::new(&gpu, most).map_err(|why| format!("{most} bytes of memory: {why}"))?;
    let start = Instant::now();
    for (index, (shape, &layout)) in shapes.iter().zip(&layouts).enumerate() {
        let seed = seed.wrapping_add(index as u64) << 8;
        let measured = match shape.dtype {
            Dtype::F32 => shape_of::<f32>(&arena, shape, layout, seed, landscape),
            Dtype::Bf16 => shape_of::<bf16>(&arena, shape, layout, seed, landscape),
            Dtype::F16 => shape_of::<f16>(&arena, shape, layout, seed, landscape),
            Dtype::F64 => shape_of::<f64>(&arena, shape, layout, seed, landscape),
        };
        let (list, line) = match measured {
            Ok(row) => ("rows", row),
            Err(why) => {
                eprintln!("error: {shape}: {why}");
                ("failed", json!({ "name": shape.to_string(), "why": why.to_string() }))
            }
        };
        results[list].as_array_mut().expect("made above").push(line);
    }
    println!("{} shapes in {:.0} s", shapes.len(), start.elapsed().as_secs_f64());
    let save = |results: &Value| match &options.json {
        Some(path) => options::write(path, &format!("{results:#}\n")),
        None => Ok(()),
    };
    // Saves before the other libraries run, which may take long or fail.
    save(&results)?;
    // Frees the device for them.
    drop((arena, gpu));
    if !options.no_peers {
        let rows = list(&results["rows"]).collect();
        let rows = match document {
            Some(document) => compared(rows, &shapes, document),
            None => sample(rows, seed, landscape.peers_shapes),
        };
        let cases = cases(rows, &shapes, &layouts);
        peers::add_landscape(&mut results, &cases);
        save(&results)?;
    }
    Ok(results)
}

/// The shapes, and the seed, which is a new one by default. Prints how to measure them again.
fn choose(landscape: &Landscape, document: Option<&Document>) -> (u64, Vec<Shape>) {
    // Few enough digits to read out.
    let now = || since_1970().as_nanos() as u64 % 1_000_000_000;
    let seed = landscape.seed.unwrap_or_else(now);
    println!("seed {seed}");
    if let Some(document) = document {
        return (seed, document.shapes());
    }
    if !landscape.named.is_empty() {
        return (seed, landscape.named.clone());
    }
    let draw = |index| Shape::draw(seed, index, landscape.range);
    (seed, (0..landscape.shapes as u64).map(draw).collect())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn layout(shape: &Shape, landscape: &Landscape) -> Layout {
    let layout = Layout::new(shape);
    if landscape.emulated {
        return Layout { copies: layout.copies.min(2), calls: 2, ..layout };
    }
    layout
}

/// Checks a shape and times it.
fn shape_of<T: Number<Loss: Number>>(
    arena: &Arena,
    shape: &Shape,
    layout: Layout,
    seed: u64,
    landscape: &Landscape,
) -> Result<Value> {
    let data = Data::<T>::new(shape, seed);
    let subject = Subject::new(arena, shape, layout, &data)?;
    let mut workspace = Workspace::new(&arena.gpu)?;
    subject.check(&data, &mut workspace)?;
    drop(data);

    let stream = &arena.stream;
    let ours = Graph::capture(stream, layout.calls, |call| {
        subject.call(call % layout.copies, &mut workspace)
    })?;
    let search = if landscape.emulated { ceiling::ONE } else { ceiling::QUICK };
    let (pattern, arrays, bytes) = traffic(arena, &layout);
    let launches = ceiling::best(stream, search, pattern, &arrays, bytes, layout.calls)?;
    let mut candidates = vec![&ours];
    candidates.extend(launches.iter().map(|(_, graph)| graph));
    let times = interleaved(stream, &candidates, SAMPLES)?;
    let per_call = |ms: f64| ms / layout.calls as f64;
    let (launch, ceiling_ms) = launches
        .iter()
        .zip(&times[1..])
        .map(|((launch, _), &ms)| (launch, per_call(ms)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("there are candidates");
    let ours_ms = per_call(times[0]);
    let ratio = ceiling_ms / ours_ms;
    println!("{ratio:.3}  {:>9.1} µs  {shape}", ours_ms * 1e3);
    Ok(json!({
        "name": shape.to_string(),
        "loss": shape.loss.name(),
        "dtype": shape.dtype.name(),
        "pass": shape.pass.name(),
        "rows": shape.rows,
        "cols": shape.cols,
        "size": shape.bytes(),
        "bytes": layout.moved(),
        "ours_ms": ours_ms,
        "ceiling_ms": ceiling_ms,
        "ceiling_launch": launch,
        "ratio": ratio,
    }))
}

/// What the ceiling reads and writes in place of a call: arrays of equal length for each copy, and
/// the length.
///
/// The kernels have no room for data of rows that is large in comparison with the rows. All reads
/// are then one array; if something is written too, there are two arrays of reads and one of
/// writes, each with a third of all bytes.
fn traffic(arena: &Arena, layout: &Layout) -> (Pattern, Vec<Vec<u64>>, usize) {
    let Layout { reads, writes, touched, of_rows_bytes, slot, .. } = *layout;
    let copies = |arrays: &[usize]| -> Vec<Vec<u64>> {
        let of = |copy: usize| arrays.iter().map(|at| arena.at(copy * slot + at, 1)).collect();
        (0..layout.copies).map(of).collect()
    };
    let none = Pattern { reads, writes, of_rows: (0, 0), of_rows_apart: 0 };
    if of_rows_bytes <= touched - touched / 32 {
        let mut arrays = vec![0];
        arrays.extend((reads == 2).then_some(layout.target));
        arrays.extend((writes == 1).then_some(layout.gradient));
        let of_rows = (arena.at(layout.of_rows, of_rows_bytes), of_rows_bytes);
        let pattern = Pattern { of_rows, of_rows_apart: slot as u64, ..none };
        return (pattern, copies(&arrays), touched);
    }
    let all = layout.moved();
    if writes == 0 {
        return (Pattern { reads: 1, ..none }, copies(&[0]), all);
    }
    // The reads end where the gradient begins.
    let third = (all / 3).min(layout.gradient / 2) / 16 * 16;
    (Pattern { reads: 2, writes: 1, ..none }, copies(&[0, third, layout.gradient]), third)
}

/// The fraction of the ceiling that a row reaches.
fn ratio(row: &Value) -> f64 {
    row["ratio"].as_f64().unwrap_or(f64::NAN)
}

/// The index of the shape of a row.
fn shape_at(row: &Value, shapes: &[Shape]) -> Option<usize> {
    let name = row["name"].as_str()?;
    shapes.iter().position(|shape| shape.to_string() == name)
}

/// The rows for the other libraries: those for which a document has a column.
fn compared<'a>(mut rows: Vec<&'a Value>, shapes: &[Shape], document: &Document) -> Vec<&'a Value> {
    rows.retain(|row| shape_at(row, shapes).is_some_and(|at| document.compares(&shapes[at])));
    rows
}

/// The rows for the other libraries: half of them are those where we are furthest from the ceiling,
/// and the rest are random.
fn sample(mut ranked: Vec<&Value>, seed: u64, most: usize) -> Vec<&Value> {
    ranked.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let mut random = Random::new(seed, u64::MAX);
    let slowest = most.div_ceil(2).min(ranked.len());
    let mut rest = ranked.split_off(slowest);
    while ranked.len() < most && !rest.is_empty() {
        ranked.push(rest.remove(random.below(rest.len())));
    }
    ranked
}

/// The shapes of these rows in the form that the other libraries take; the slowest first, in case
/// time runs out.
fn cases(mut rows: Vec<&Value>, shapes: &[Shape], layouts: &[Layout]) -> Vec<Value> {
    rows.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let case = |row: &Value| {
        let at = shape_at(row, shapes)?;
        let (shape, layout) = (&shapes[at], &layouts[at]);
        let extras: Vec<_> = shape.extras.iter().map(|extra| extra.name()).collect();
        Some(json!({
            "name": shape.to_string(),
            "loss": shape.loss.name(),
            "dtype": shape.dtype.name(),
            "pass": shape.pass.name(),
            "rows": shape.rows,
            "cols": shape.cols,
            "stride": shape.stride(),
            "extras": extras,
            "copies": layout.copies,
            "calls": layout.calls,
        }))
    };
    rows.into_iter().filter_map(case).collect()
}
