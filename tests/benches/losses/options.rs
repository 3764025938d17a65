//! What the command line asks for.

use crate::Result;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};

/// The command line of the benchmark, in the words of `cargo xtask bench --help`.
#[derive(Default)]
pub(crate) struct Options {
    /// What a name must contain to be run; any of them.
    pub(crate) wanted: Vec<String>,
    pub(crate) no_peers: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) picture: Option<PathBuf>,
    pub(crate) from: Option<PathBuf>,
}

impl Options {
    pub(crate) fn from_args(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Options::default();
        while let Some(arg) = args.next() {
            let file = match arg.as_str() {
                "--json" => &mut options.json,
                "--picture" => &mut options.picture,
                "--from" => &mut options.from,
                "--no-peers" => {
                    options.no_peers = true;
                    continue;
                }
                // `cargo bench` adds it.
                "--bench" => continue,
                option if option.starts_with('-') => {
                    return Err(format!(
                        "expected --no-peers, --json FILE, --picture FILE, --from FILE or a part of a name, got {option}"
                    )
                    .into());
                }
                _ => {
                    options.wanted.push(arg);
                    continue;
                }
            };
            let path = args.next().ok_or_else(|| format!("{arg}: expected a file"))?;
            *file = Some(path.into());
        }
        let of_a_run = [
            ("a name", !options.wanted.is_empty()),
            ("--json", options.json.is_some()),
            ("--no-peers", options.no_peers),
        ];
        if options.from.is_some()
            && let Some((got, _)) = of_a_run.iter().find(|(_, given)| *given)
        {
            return Err(format!(
                "--from measures nothing: expected --picture beside it, got {got}"
            )
            .into());
        }
        Ok(options)
    }
}

/// Writes a file; an error names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    Ok(std::fs::write(path, text).map_err(|why| format!("{}: {why}", path.display()))?)
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
