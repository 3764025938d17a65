//! The other libraries: peers.py, run by the `python3` of `PATH`, measures the same rows with them.

use crate::{Result, SAMPLES, losses};
use fused_loss::Float;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The largest ratio of two times that count as equal: medians of one run differ by this much.
const SAME: f64 = 1.005;

/// Part of the binary, which may run where the sources do not exist.
const SCRIPT: &str = concat!(include_str!("peers.py"), "\n\n", include_str!("landscape.py"));

/// Seconds that the other libraries should take together. After a row's share of them, slow
/// candidates for a better time are not tried.
const SECONDS: usize = 170;

/// The same for the shapes of `--landscape`: torch.compile takes some seconds for each.
const SECONDS_OF_LANDSCAPE: usize = 420;

/// A benchmark in the form that the other libraries take.
pub(crate) struct Case {
    /// The beginning of the names of its rows.
    pub(crate) name: String,
    pub(crate) loss: &'static str,
    /// For a divergence: whether the input is log-probabilities.
    pub(crate) log_input: bool,
    pub(crate) shape: [usize; 2],
    pub(crate) dtype: &'static str,
    /// Bytes of the input.
    pub(crate) bytes: usize,
    /// Whether the benchmark measures the overhead of a call.
    pub(crate) small: bool,
}

impl Case {
    /// A benchmark of large tensors.
    pub(crate) fn large<T: Float>(name: &str, loss: &'static str, shape: [usize; 2]) -> Self {
        let (name, dtype) = (name.to_owned(), T::NAME);
        let bytes = shape[0] * shape[1] * size_of::<T>();
        Case { name, loss, log_input: false, shape, dtype, bytes, small: false }
    }

    fn json(&self) -> Value {
        let copies = losses::copies(self.bytes);
        json!({
            "name": self.name,
            "loss": self.loss,
            "log_input": self.log_input,
            "rows": self.shape[0],
            "cols": self.shape[1],
            "dtype": self.dtype,
            "small": self.small,
            "copies": copies,
            "calls": losses::calls(self.bytes, copies),
        })
    }
}

/// Measures the cases with the other libraries and adds their times to the results. A failure
/// becomes a note, because the results are good without them.
pub(crate) fn add(results: &mut Value, cases: &[Case]) {
    let cases: Vec<_> = cases.iter().map(Case::json).collect();
    let plan = json!({
        "samples": SAMPLES,
        "seconds": SECONDS,
        "cases": cases,
    });
    add_plan(results, &plan);
}

/// Like [`add`], for random shapes. A case describes its shape completely: `name`, `loss`, `dtype`,
/// `pass`, `rows`, `cols`, `stride`, `extras`, `copies` and `calls`, in the words of the command
/// line.
pub(crate) fn add_landscape(results: &mut Value, cases: &[Value]) {
    let (samples, seconds) = (SAMPLES, SECONDS_OF_LANDSCAPE);
    add_plan(results, &json!({ "samples": samples, "seconds": seconds, "landscape": cases }));
}

fn add_plan(results: &mut Value, plan: &Value) {
    results["libraries"] = json!([]);
    if let Err(why) = run(plan, |said| merge(results, said)) {
        note(results, format!("the other libraries: {why}"));
    }
}

/// Runs the script and passes on each line as soon as it arrives.
fn run(plan: &Value, mut hear: impl FnMut(Value)) -> Result<()> {
    let mut python = Command::new("python3")
        .args(["-", &plan.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("python3: {why}"))?;
    let mut stdin = python.stdin.take().expect("it is piped");
    stdin.write_all(SCRIPT.as_bytes())?;
    // Python starts when its input ends.
    drop(stdin);
    for line in BufReader::new(python.stdout.take().expect("it is piped")).lines() {
        hear(serde_json::from_str(&line?)?);
    }
    let status = python.wait()?;
    if status.success() { Ok(()) } else { Err(format!("python3: {status}").into()) }
}

/// Adds a line of the script to the results: a library, a row, or a case that failed.
fn merge(results: &mut Value, mut said: Value) {
    if said.get("library").is_some() {
        results["libraries"].as_array_mut().expect("made by `add`").push(said);
    } else if let Some(name) = said["row"].as_str().map(str::to_owned) {
        let rows = results["rows"].as_array_mut().expect("rows are a list");
        let Some(row) = rows.iter_mut().find(|row| row["name"] == *name) else {
            return note(
                results,
                format!("the other libraries measured '{name}', which is no row"),
            );
        };
        let ours = row["ours_ms"].as_f64().unwrap_or(f64::NAN);
        let peers = said["results"].take();
        let faster = peers.as_object().into_iter().flatten().filter(|(_, result)| {
            let theirs = result["ms"].as_f64();
            theirs.is_some_and(|theirs| theirs * SAME < ours)
        });
        row["slower_than"] = faster.map(|(library, _)| library.as_str()).collect();
        row["peers"] = peers;
    } else {
        note(results, format!("the other libraries failed: {said}"));
    }
}

fn note(results: &mut Value, text: String) {
    match results["notes"].as_array_mut() {
        Some(notes) => notes.push(text.into()),
        None => results["notes"] = json!([text]),
    }
}
