//! `cargo xtask fuzz`: random calls of the losses for some minutes. It runs the test `any_call`,
//! which otherwise takes seconds.

use crate::flags;
use anyhow::ensure;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, flags: &flags::Fuzz) -> anyhow::Result<()> {
    let minutes = flags.minutes.unwrap_or(10.0);
    ensure!(
        minutes.is_finite() && minutes >= 0.0,
        "--minutes: expected a number from 0 up, got {minutes}"
    );
    let fuzz = cmd!(sh, "cargo test --locked -p fused-loss-tests --test fuzz -- any_call");
    let mut fuzz = fuzz.arg("--nocapture").env("FUSED_LOSS_FUZZ_MINUTES", minutes.to_string());
    if let Some(seed) = flags.seed {
        fuzz = fuzz.env("FUSED_LOSS_FUZZ_SEED", seed.to_string());
    }
    Ok(fuzz.run()?)
}
