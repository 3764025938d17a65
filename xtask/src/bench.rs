//! `cargo xtask bench`: each loss beside a kernel that only reads and writes the same bytes, and beside other
//! libraries.

use crate::flags;
use anyhow::ensure;
use std::ffi::OsString;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, flags: &flags::Bench) -> anyhow::Result<()> {
    if let Some(path) = &flags.from {
        // Before the benchmark is compiled.
        ensure!(path.is_file(), "--from {}: expected a file", path.display());
    }
    let mut args: Vec<OsString> = flags.names.clone();
    args.extend(flags.no_peers.then(|| "--no-peers".into()));
    for (option, path) in
        [("--json", &flags.json), ("--picture", &flags.picture), ("--from", &flags.from)]
    {
        if let Some(path) = path {
            // Cargo starts a benchmark in its package's directory.
            args.extend([option.into(), std::path::absolute(path)?.into()]);
        }
    }
    Ok(cmd!(sh, "cargo bench -p fused-loss-tests --features bench --bench losses -- {args...}")
        .run()?)
}
