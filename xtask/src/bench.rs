//! `cargo xtask bench`: each loss beside a kernel that only reads and writes the same bytes.

use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    Ok(cmd!(sh, "cargo bench -p fused-loss-tests --features bench --bench losses").run()?)
}
