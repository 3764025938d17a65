//! `cargo xtask demo`: the example that trains a classifier.

use crate::flags;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, flags: &flags::Demo) -> anyhow::Result<()> {
    let args = &flags.args;
    cmd!(
        sh,
        "cargo run --release -p fused-loss --features emulator --example 03_softmax_classifier -- {args...}"
    )
    .run()?;
    Ok(())
}
