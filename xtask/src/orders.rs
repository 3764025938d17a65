//! `cargo xtask orders`: tests on the emulator with the threads, warps and blocks of each launch in
//! a random order, on a device with many multiprocessors and on one with few.

use crate::{flags, new_seed};
use anyhow::{Context, Result};
use xshell::{Shell, cmd};

/// Suites that take seconds. Together they run all losses.
const QUICK: [&str; 15] = [
    "bce",
    "float64_rows",
    "golden",
    "graphs",
    "indexed_rows",
    "kl_div",
    "log_prob_edges",
    "mse",
    "options",
    "split_rows",
    "staged_targets",
    "stress",
    "tiled_rows",
    "uncounted_rows",
    "warp_rows",
];
/// Suites that take minutes.
const SLOW: [&str; 6] =
    ["concurrency", "cross_entropy", "elementwise", "grids", "lane_rows", "log_prob"];

/// The emulator's devices with many multiprocessors and with few, by number.
const DEVICES: [&str; 2] = ["0", "2"];

pub(crate) fn run(sh: &Shell, flags: &flags::Orders) -> Result<()> {
    let suites: Vec<_> = QUICK.iter().chain(&SLOW).copied().collect();
    for _ in 0..flags.times.unwrap_or(1) {
        draw(sh, &suites, &DEVICES, flags.seed.unwrap_or_else(new_seed))?;
    }
    Ok(())
}

/// Runs the quick suites once, with a new seed, on each device.
pub(crate) fn run_all(sh: &Shell) -> Result<()> {
    draw(sh, &QUICK, &DEVICES, new_seed())
}

/// Runs the quick suites once, with a new seed, which also selects the device.
pub(crate) fn run_quick(sh: &Shell) -> Result<()> {
    let seed = new_seed();
    let device = DEVICES[seed as usize % DEVICES.len()];
    draw(sh, &QUICK, &[device], seed)
}

/// Runs suites on these devices, with orders drawn from a seed.
fn draw(sh: &Shell, suites: &[&str], devices: &[&str], seed: u64) -> Result<()> {
    let seed = seed.to_string();
    println!("orders are drawn from the seed {seed}");
    let suites = suites.iter().map(|suite| format!("--test={suite}"));
    // Use what `cargo xtask test` has compiled.
    let test = ["test", "--quiet", "--locked", "--workspace", "--all-features"];
    let args: Vec<_> = test.map(str::to_owned).into_iter().chain(suites).collect();
    for device in devices {
        cmd!(sh, "cargo")
            .args(&args)
            .env("FUSED_LOSS_EMULATOR_SEED", &seed)
            .env("FUSED_LOSS_EMULATOR_DEVICE", device)
            .env_remove("FUSED_LOSS_REQUIRE_GPU")
            .run()
            .with_context(|| {
                format!("on the emulator's device {device}: `cargo xtask orders --seed {seed}`")
            })?;
    }
    Ok(())
}
