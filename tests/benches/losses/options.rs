//! What the command line asks for.

use crate::Result;
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
        Ok(options)
    }
}

/// Writes a file; an error names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    Ok(std::fs::write(path, text).map_err(|why| format!("{}: {why}", path.display()))?)
}

/// Reads a file; an error names it.
pub(crate) fn read(path: &Path) -> Result<String> {
    Ok(std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?)
}
