//! Any call of any loss: what tests/src/fuzz draws, against float64 and against the documented
//! errors. `cargo xtask fuzz` goes on for longer.

use std::time::Duration;
use std::{env, time};
use tests::fuzz::{Budget, campaign};

/// The number that a variable of the environment has.
fn number(name: &str) -> Option<f64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}: expected a number, got {value}")))
}

/// A seed that differs from run to run, small enough to be typed.
fn new_seed() -> u64 {
    time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 % 1_000_000_000
}

/// For ten seconds, or as many minutes as `FUSED_LOSS_FUZZ_MINUTES` says, from the seed that
/// `FUSED_LOSS_FUZZ_SEED` says or from a new one.
#[test]
fn any_call() {
    let minutes = number("FUSED_LOSS_FUZZ_MINUTES").unwrap_or(1.0 / 6.0);
    let seed = number("FUSED_LOSS_FUZZ_SEED").map_or_else(new_seed, |seed| seed as u64);
    campaign(Budget { time: Duration::from_secs_f64(60.0 * minutes), seed });
}
