//! The other libraries: peers.py, run by the `python3` of `PATH`, measures the same rows with them.

use crate::{Result, SAMPLES, losses};
use fused_loss::Float;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// By what factor two times may differ that count as the same: medians of one run differ by as
/// much.
const SAME: f64 = 1.005;

/// In the binary, which may run where the sources are not.
const SCRIPT: &str = concat!(include_str!("peers.py"), "\n\n", include_str!("landscape.py"));

/// Seconds that the peers should take together: past a row's share of them, slow ways to a better
/// time are not tried.
const SECONDS: usize = 170;

/// The same for the shapes of `--landscape`, each of which takes torch.compile some seconds.
const SECONDS_OF_LANDSCAPE: usize = 420;

/// A benchmark, as the others are to repeat it.
pub(crate) struct Case {
    /// What the names of its rows begin with.
    pub(crate) name: String,
    pub(crate) loss: &'static str,
    /// Of a divergence: whether the input is the logarithms.
    pub(crate) log_input: bool,
    pub(crate) shape: [usize; 2],
    pub(crate) dtype: &'static str,
    /// Bytes of the input.
    pub(crate) bytes: usize,
    /// Whether it is what a call costs that counts.
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

/// Measures the cases with the other libraries and adds what they say to the results. What goes
/// wrong becomes a note: the results are good without them.
pub(crate) fn add(results: &mut Value, cases: &[Case]) {
    let cases: Vec<_> = cases.iter().map(Case::json).collect();
    let plan = json!({
        "samples": SAMPLES,
        "seconds": SECONDS,
        "cases": cases,
    });
    add_plan(results, &plan);
}

/// As [`add`], for shapes that were drawn. A case says all there is to a shape: `name`, `loss`,
/// `dtype`, `pass`, `rows`, `cols`, `stride`, `extras`, `copies` and `calls`, as the command line
/// calls them.
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

/// Runs the script, and hands on every line as it comes.
fn run(plan: &Value, mut hear: impl FnMut(Value)) -> Result<()> {
    let mut python = Command::new("python3")
        .args(["-", &plan.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("python3: {why}"))?;
    let mut stdin = python.stdin.take().expect("it is piped");
    stdin.write_all(SCRIPT.as_bytes())?;
    // Python begins when it has read all of it.
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
