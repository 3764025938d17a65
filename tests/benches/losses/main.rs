//! How close each loss is to the memory bandwidth: its time beside the ceiling, the fastest of
//! several launches of a kernel that only reads and writes the same bytes, in one run. `cargo xtask
//! bench`.
//!
//! Times are medians of samples that alternate between all candidates. A sample is the replay of a
//! graph between two events. The graph has at least five calls, and so many that its beginning and
//! end hardly matter. The next sample is queued before the previous one is done, so no time
//! includes the host's launches. Calls take turns on copies of the tensors that together are larger
//! than the cache. Every result is compared with float64 before it is timed.
//!
//! Then other libraries compute the same rows, if the machine's `python3` has PyTorch.
//!
//! `--landscape` measures random shapes in place of the fixed rows, and `--first-call` how long a
//! program waits for its first result. `--document` measures the shapes that a document names, and
//! writes the figures into it.

mod arena;
mod ceiling;
mod data;
mod document;
mod first_call;
mod heat;
mod landscape;
mod layout;
mod log_prob;
mod losses;
mod options;
mod peers;
mod picture;
mod shapes;
mod subject;
mod summary;
mod table;
mod timing;

use fused_loss::{Gpu, Stream};
use half::bf16;
use options::Options;
use peers::Case;
use serde_json::{Value, json};
use std::error::Error;
use std::process::ExitCode;
use timing::{Graph, interleaved};

/// Samples of each candidate.
const SAMPLES: usize = 21;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The memory traffic of a call: reads and writes of arrays of one length.
#[derive(Clone, Copy)]
struct Pattern {
    reads: usize,
    writes: usize,
    /// Per-row data that is also read: an address and the number of bytes.
    of_rows: (u64, usize),
    /// Bytes from this data to that of the next copy; 0 if the copies share it.
    of_rows_apart: u64,
}

/// One line of the table.
struct Row {
    name: String,
    bytes: f64,
    ours_ms: f64,
    ceiling_ms: f64,
    ceiling: String,
}

/// The benchmarks of a run.
struct Bench {
    gpu: Gpu,
    stream: Stream,
    /// Parts of names: a benchmark runs if its name contains any of them.
    wanted: Vec<String>,
    /// The names of all benchmarks.
    names: Vec<String>,
    rows: Vec<Row>,
    /// The benchmarks that ran, for the other libraries to repeat.
    cases: Vec<Case>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let options = Options::from_args(std::env::args().skip(1))?;
    if let Some(first_call) = &options.first_call {
        return first_call::run(first_call, &options.wanted);
    }
    let document = match &options.document {
        Some(path) => Some((path, options::document(path)?)),
        None => None,
    };
    let results = match (&options.from, &options.landscape) {
        (Some(path), _) => options::results(path)?,
        (None, Some(landscape)) => {
            let document = document.as_ref().map(|(_, document)| document);
            landscape::measure(&options, landscape, document)?
        }
        (None, None) => measure(&options)?,
    };
    let of_landscape = results["landscape"].is_object();
    println!(
        "\n{}",
        if of_landscape { summary::text(&results) } else { table::markdown(&results) }
    );
    if let Some(path) = &options.picture {
        let svg = if of_landscape { heat::svg(&results)? } else { picture::svg(&results)? };
        options::write(path, &svg)?;
    }
    if let Some((path, document)) = &document {
        options::write(path, &document.filled(&results)?)?;
    }
    match table::list(&results["failed"]).count() {
        _ if options.from.is_some() => Ok(()),
        0 => Ok(()),
        failed => Err(format!("{failed} shapes failed, which are named above").into()),
    }
}

/// Measures the selected benchmarks with this library and with the others.
fn measure(options: &Options) -> Result<Value> {
    let gpu = Gpu::new(0)?;
    println!("{}, medians of {SAMPLES} samples", gpu.name());
    let wanted = options.wanted.clone();
    let (rows, cases, names) = (Vec::new(), Vec::new(), Vec::new());
    let mut bench = Bench { stream: gpu.stream()?, gpu, wanted, names, rows, cases };

    bench.mse::<f32>(32768)?;
    bench.mse::<bf16>(32768)?;
    bench.kl_div::<f32>(false, 16384)?;
    bench.kl_div::<bf16>(false, 16384)?;
    bench.kl_div::<f32>(true, 16384)?;
    bench.bce::<f32>(16384)?;
    bench.bce::<bf16>(16384)?;
    bench.cross_entropy::<f32>(32768, 4096)?;
    bench.cross_entropy::<bf16>(32768, 4096)?;
    bench.cross_entropy::<bf16>(8192, 128_256)?;
    bench.cross_entropy::<f32>(4096, 50257)?;
    bench.cross_entropy::<bf16>(65536, 1000)?;
    bench.cross_entropy::<f32>(262_144, 128)?;
    bench.log_prob::<bf16>(8192, 151_936)?;
    bench.log_prob::<f32>(65536, 1000)?;
    bench.small()?;
    bench.check_wanted()?;

    let rows: Vec<_> = bench.rows.iter().map(Row::json).collect();
    let mut results = json!({ "device": bench.gpu.name(), "samples": SAMPLES, "rows": rows });
    let save = |results: &Value| match &options.json {
        Some(path) => options::write(path, &format!("{results:#}\n")),
        None => Ok(()),
    };
    // Saves before the other libraries run, which may take long or fail.
    save(&results)?;
    let cases = std::mem::take(&mut bench.cases);
    // Frees the device for them.
    drop(bench);
    if !options.no_peers {
        peers::add(&mut results, &cases);
        save(&results)?;
    }
    Ok(results)
}

impl Bench {
    /// Whether a benchmark is part of the run; if so, adds it to the cases.
    fn wants(&mut self, case: Case) -> bool {
        let name = &case.name;
        let wants = self.wanted.is_empty() || self.wanted.iter().any(|part| name.contains(part));
        self.names.push(name.clone());
        if wants {
            self.cases.push(case);
        }
        wants
    }

    /// Refuses a part of a name that no name contains.
    fn check_wanted(&self) -> Result<()> {
        let is_in_none = |part: &&String| !self.names.iter().any(|name| name.contains(*part));
        match self.wanted.iter().find(is_in_none) {
            Some(part) => {
                let names = self.names.join("\n  ");
                Err(format!("expected a part of one of these names, got {part}:\n  {names}").into())
            }
            None => Ok(()),
        }
    }

    /// Times `call` beside the ceiling of its pattern. The call gets the number of a copy and uses
    /// the arrays of that copy, `bytes` bytes each.
    fn row<E: Error + 'static>(
        &mut self,
        name: String,
        pattern: Pattern,
        copies: &[Vec<u64>],
        bytes: usize,
        call: impl FnMut(usize) -> std::result::Result<(), E>,
    ) -> Result<()> {
        let calls = losses::calls(bytes, copies.len());
        let ours = Graph::capture(&self.stream, calls, call)?;
        let launches =
            ceiling::best(&self.stream, ceiling::THOROUGH, pattern, copies, bytes, calls)?;
        let mut candidates = vec![&ours];
        candidates.extend(launches.iter().map(|(_, graph)| graph));
        let times = interleaved(&self.stream, &candidates, SAMPLES)?;
        let (ceiling, ceiling_ms) = launches
            .iter()
            .zip(&times[1..])
            .map(|((launch, _), &time)| (launch.clone(), time / calls as f64))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .expect("there are candidates");
        let bytes = ((pattern.reads + pattern.writes) * bytes + pattern.of_rows.1) as f64;
        let row = Row { name, bytes, ours_ms: times[0] / calls as f64, ceiling_ms, ceiling };
        if self.rows.is_empty() {
            println!(
                "| | ours ms | TB/s | ceiling ms | TB/s | ceiling ÷ ours | ceiling's launch |"
            );
            println!("|---|---|---|---|---|---|---|");
        }
        println!("{}", row.line());
        self.rows.push(row);
        Ok(())
    }
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

    fn line(&self) -> String {
        let rate = |ms: f64| self.bytes / ms / 1e9;
        format!(
            "| {} | {:.4} | {:.3} | {:.4} | {:.3} | {:.3} | {} |",
            self.name,
            self.ours_ms,
            rate(self.ours_ms),
            self.ceiling_ms,
            rate(self.ceiling_ms),
            self.ceiling_ms / self.ours_ms,
            self.ceiling,
        )
    }
}
