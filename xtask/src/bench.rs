//! `cargo xtask bench`: compares each loss with a kernel that only reads and writes the same bytes,
//! and with other libraries. The benchmark reads the options itself and refuses those that exclude
//! each other.

use crate::flags;
use anyhow::ensure;
use std::ffi::OsString;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, flags: &flags::Bench) -> anyhow::Result<()> {
    if let Some(path) = &flags.from {
        // Fails before the benchmark is compiled.
        ensure!(path.is_file(), "--from {}: expected a file", path.display());
    }
    if let Some(path) = &flags.document {
        ensure!(path.is_file(), "--document {}: expected a file", path.display());
    }
    let mut args: Vec<OsString> = flags.names.clone();
    args.extend(flags.no_peers.then(|| "--no-peers".into()));
    for (option, path) in [
        ("--json", &flags.json),
        ("--picture", &flags.picture),
        ("--from", &flags.from),
        ("--document", &flags.document),
    ] {
        if let Some(path) = path {
            // Cargo starts a benchmark in its package's directory.
            args.extend([option.into(), std::path::absolute(path)?.into()]);
        }
    }
    args.extend(flags.first_call.then(|| "--first-call".into()));
    args.extend(flags.landscape.then(|| "--landscape".into()));
    let numbers = [
        ("--seed", flags.seed.map(|seed| seed.to_string())),
        ("--shapes", flags.shapes.map(|shapes| shapes.to_string())),
        ("--only", flags.only.clone()),
        ("--max-mib", flags.max_mib.map(|mib| mib.to_string())),
        ("--peers-shapes", flags.peers_shapes.map(|shapes| shapes.to_string())),
    ];
    let shapes = flags.shape.iter().map(|shape| ("--shape", Some(shape.clone())));
    for (option, value) in numbers.into_iter().chain(shapes) {
        if let Some(value) = value {
            args.extend([option.into(), value.into()]);
        }
    }
    Ok(cmd!(sh, "cargo bench -p fused-loss-tests --features bench --bench losses -- {args...}")
        .run()?)
}
