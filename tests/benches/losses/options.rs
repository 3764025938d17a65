//! The options of the command line.

use crate::Result;
use crate::document::Document;
use crate::shapes::{LEAST_BYTES, Loss, MOST_BYTES, Range, Shape};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The command line of the benchmark, as in `cargo xtask bench --help`.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Parts of names: a benchmark runs if its name contains any of them.
    pub(crate) wanted: Vec<String>,
    pub(crate) no_peers: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) picture: Option<PathBuf>,
    pub(crate) from: Option<PathBuf>,
    pub(crate) document: Option<PathBuf>,
    pub(crate) landscape: Option<Landscape>,
    pub(crate) first_call: Option<FirstCall>,
}

/// The options of `--first-call`.
#[derive(Debug)]
pub(crate) struct FirstCall {
    /// The only call that this process measures, for another process. Not in the help.
    pub(crate) of: Option<String>,
    /// Runs on the emulator, as in [`Landscape`].
    pub(crate) emulated: bool,
}

/// Which shapes `--landscape` measures.
#[derive(Debug)]
pub(crate) struct Landscape {
    /// A new one by default.
    pub(crate) seed: Option<u64>,
    pub(crate) shapes: usize,
    pub(crate) range: Range,
    /// Shapes to measure in place of random ones.
    pub(crate) named: Vec<Shape>,
    /// The number of shapes that the other libraries measure.
    pub(crate) peers_shapes: usize,
    /// Runs on the emulator, where times mean nothing, to try the benchmark itself. Not in the
    /// help.
    pub(crate) emulated: bool,
}

/// The options that belong to `--landscape` and `--first-call`.
#[derive(Default)]
struct Given {
    landscape: bool,
    first_call: bool,
    first_call_of: Option<String>,
    seed: Option<u64>,
    shapes: Option<usize>,
    only: Option<Loss>,
    named: Vec<Shape>,
    most_mib: Option<usize>,
    peers_shapes: Option<usize>,
    emulated: bool,
}

const EXPECTED: &str = "expected --no-peers, --json FILE, --picture FILE, --from FILE or a part \
    of a name, or --landscape with --seed N, --shapes N, --only LOSS, --max-mib N, --shape TEXT, \
    --peers-shapes N, or --document FILE beside --landscape or --from, or --first-call";

/// The value of an option, which must be there and have its type.
fn value<T: FromStr<Err: fmt::Display>>(
    option: &str,
    args: &mut impl Iterator<Item = String>,
) -> Result<T> {
    let text = args.next().ok_or_else(|| format!("{option}: expected a value"))?;
    text.parse().map_err(|why| format!("{option} {text}: {why}").into())
}

/// The first option that is given.
fn first(all: &[(&'static str, bool)]) -> Option<&'static str> {
    all.iter().find(|(_, given)| *given).map(|(option, _)| *option)
}

impl Options {
    pub(crate) fn from_args(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let (mut options, mut given) = (Options::default(), Given::default());
        while let Some(arg) = args.next() {
            let args = &mut args;
            let file = match arg.as_str() {
                "--json" => &mut options.json,
                "--picture" => &mut options.picture,
                "--from" => &mut options.from,
                "--document" => &mut options.document,
                option => {
                    match option {
                        "--no-peers" => options.no_peers = true,
                        // `cargo bench` adds it.
                        "--bench" => {}
                        "--landscape" => given.landscape = true,
                        "--first-call" => given.first_call = true,
                        "--first-call-of" => given.first_call_of = Some(value(option, args)?),
                        "--emulated" => given.emulated = true,
                        "--seed" => given.seed = Some(value(option, args)?),
                        "--shapes" => given.shapes = Some(value(option, args)?),
                        "--only" => given.only = Some(value(option, args)?),
                        "--max-mib" => given.most_mib = Some(value(option, args)?),
                        "--peers-shapes" => given.peers_shapes = Some(value(option, args)?),
                        "--shape" => {
                            let text = args.next().ok_or("--shape: expected a shape")?;
                            given.named.push(text.parse()?);
                        }
                        option if option.starts_with('-') => {
                            return Err(format!("{EXPECTED}; got {option}").into());
                        }
                        _ => options.wanted.push(arg),
                    }
                    continue;
                }
            };
            let path = args.next().ok_or_else(|| format!("{arg}: expected a file"))?;
            *file = Some(path.into());
        }
        options.first_call = given.first_call(&options)?;
        if options.first_call.is_none() {
            options.landscape = given.landscape(&options)?;
        }
        Ok(options)
    }
}

impl Given {
    /// The options that determine which shapes are drawn.
    fn of_draws(&self) -> [(&'static str, bool); 4] {
        [
            ("--seed", self.seed.is_some()),
            ("--shapes", self.shapes.is_some()),
            ("--only", self.only.is_some()),
            ("--max-mib", self.most_mib.is_some()),
        ]
    }

    /// The options of `--first-call`, if it is given; an error names an option that excludes it.
    fn first_call(&self, options: &Options) -> Result<Option<FirstCall>> {
        if !self.first_call && self.first_call_of.is_none() {
            return Ok(None);
        }
        let others = [
            ("--json", options.json.is_some()),
            ("--picture", options.picture.is_some()),
            ("--from", options.from.is_some()),
            ("--document", options.document.is_some()),
            ("--no-peers", options.no_peers),
            ("--landscape", self.landscape),
            ("--shape", !self.named.is_empty()),
            ("--peers-shapes", self.peers_shapes.is_some()),
        ];
        match first(&others).or_else(|| first(&self.of_draws())) {
            Some(got) => Err(format!(
                "--first-call prints its own table: expected names alone beside it, got {got}"
            )
            .into()),
            None => Ok(Some(FirstCall { of: self.first_call_of.clone(), emulated: self.emulated })),
        }
    }

    /// The options of `--landscape`, if it is given; an error names two options that exclude each
    /// other.
    fn landscape(self, options: &Options) -> Result<Option<Landscape>> {
        let of_draws = self.of_draws();
        let of_landscape = [
            ("--shape", !self.named.is_empty()),
            ("--peers-shapes", self.peers_shapes.is_some()),
            ("--emulated", self.emulated),
            ("--document", options.document.is_some() && options.from.is_none()),
        ];
        let of_a_run = [
            ("a name", !options.wanted.is_empty()),
            ("--json", options.json.is_some()),
            ("--no-peers", options.no_peers),
            ("--landscape", self.landscape),
        ];
        if options.from.is_some()
            && let Some(got) =
                first(&of_a_run).or_else(|| first(&of_draws)).or_else(|| first(&of_landscape))
        {
            return Err(format!(
                "--from measures nothing: expected --picture or --document beside it, \
                 got {got}"
            )
            .into());
        }
        if !self.landscape {
            return match first(&of_draws).or_else(|| first(&of_landscape)) {
                Some(got) => Err(format!("expected --landscape beside {got}").into()),
                None => Ok(None),
            };
        }
        if let Some(name) = options.wanted.first() {
            return Err(format!(
                "--landscape draws shapes that have no fixed names: expected --shape or --only, \
                 got {name}"
            )
            .into());
        }
        if options.document.is_some()
            && let Some(got) = first(&of_draws).or_else(|| first(&of_landscape[..2]))
        {
            return Err(format!("--document names the shapes: expected no {got} beside it").into());
        }
        if !self.named.is_empty()
            && let Some(got) = first(&of_draws)
        {
            return Err(format!("--shape draws nothing: expected no {got} beside it").into());
        }
        if options.no_peers && self.peers_shapes.is_some() {
            return Err("--no-peers leaves out what --peers-shapes limits: expected one".into());
        }
        let shapes = self.shapes.unwrap_or(150);
        if shapes == 0 {
            return Err("--shapes 0: expected one at least".into());
        }
        let (least, most) = (LEAST_BYTES >> 20, MOST_BYTES >> 20);
        let most_mib = self.most_mib.unwrap_or(most);
        if !(least..=most).contains(&most_mib) {
            return Err(format!("--max-mib {most_mib}: expected {least} to {most}").into());
        }
        Ok(Some(Landscape {
            seed: self.seed,
            shapes,
            range: Range { only: self.only, most_bytes: most_mib << 20 },
            named: self.named,
            peers_shapes: self.peers_shapes.unwrap_or(60),
            emulated: self.emulated,
        }))
    }
}

/// Writes a file; an error names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    Ok(std::fs::write(path, text).map_err(|why| format!("{}: {why}", path.display()))?)
}

/// Reads a document with tables of shapes; an error names the file.
pub(crate) fn document(path: &Path) -> Result<Document> {
    let named = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|why| named(&why))?;
    Ok(Document::new(&text).map_err(|why| named(&why))?)
}

/// Reads the results of an earlier run; an error names the file.
pub(crate) fn results(path: &Path) -> Result<Value> {
    let named = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|why| named(&why))?;
    let results: Value = serde_json::from_str(&text).map_err(|why| named(&why))?;
    if !results["rows"].is_array() {
        return Err(named(&"expected the results of a run, with their rows").into());
    }
    Ok(results)
}
