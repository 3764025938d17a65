//! Draws cases until the time is over, and reduces the findings.

use super::{Case, Checked, case, check};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long to draw cases, and the first seed. Case `n` has the seed `seed + n`.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub time: Duration,
    pub seed: u64,
}

/// The number of findings that ends a campaign, since one bug fails many cases.
const MOST_FINDINGS: usize = 8;

/// Draws and checks cases. Prints their number, and each finding as soon as it is known.
///
/// # Panics
/// If there is a finding.
pub fn campaign(budget: Budget) {
    let start = Instant::now();
    println!(
        "fuzz: from seed {} for {} s on {}",
        budget.seed,
        budget.time.as_secs(),
        crate::gpu().name()
    );
    let (mut cases, mut findings, mut said) = (0_u64, 0, Instant::now());
    let mut checked = Checked::default();
    while start.elapsed() < budget.time && findings < MOST_FINDINGS {
        let seed = budget.seed.wrapping_add(cases);
        match draw(seed) {
            Ok(of_case) => checked.add(of_case),
            Err(finding) => {
                println!("{finding}");
                findings += 1;
            }
        }
        cases += 1;
        if said.elapsed() > Duration::from_secs(60) {
            println!("fuzz: {cases} cases in {} s", start.elapsed().as_secs());
            said = Instant::now();
        }
    }
    println!(
        "fuzz: {cases} cases in {} s, {findings} findings; {} calls refused, {} results, of which \
         {} may be anything",
        start.elapsed().as_secs(),
        checked.refused,
        checked.results,
        checked.unpromised,
    );
    assert!(findings == 0, "{findings} findings");
}

/// Checks the case of a seed, and reduces it if it fails.
fn draw(seed: u64) -> Result<Checked, String> {
    let config = Config {
        cases: 1,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 2_000,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let checked = Cell::new(Checked::default());
    let result = TestRunner::new(config).run(&case(), |case| {
        match check(&case) {
            Ok(of_case) => checked.set(of_case),
            Err(why) => return Err(TestCaseError::fail(why)),
        }
        Ok(())
    });
    let Err(error) = result else { return Ok(checked.get()) };
    let TestError::Fail(why, case) = error else { return Err(format!("seed {seed}: {error}")) };
    Err(format!("finding of seed {seed}: {why}\n{}", test_of(seed, &case)))
}

/// A regression test of a case.
fn test_of(seed: u64, case: &Case) -> String {
    format!("#[test]\nfn of_seed_{seed}() {{\n    check(&{case:?}).unwrap();\n}}")
}
