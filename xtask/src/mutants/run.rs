//! Runs one test, with or without a mutant, and reports the outcome.

use super::plant::CHOSEN;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The outcome of a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Passed,
    Failed(How),
}

/// How a test failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// The emulator has reported this.
    Reported(&'static str),
    /// A kernel has panicked: an index, an assertion or an overflow.
    Panicked,
    /// The test has found a wrong result.
    WrongResult,
    /// It did not end.
    Hung,
    /// A signal has ended its process.
    Crashed,
}

/// Words of the emulator's reports, and what each report is called here.
const REPORTS: [(&str, &str); 6] = [
    ("with no barrier between the two", "race"),
    ("that nothing has written", "unwritten memory"),
    ("outside any allocation", "outside memory"),
    ("outside the block's shared arrays", "outside memory"),
    ("not aligned", "misaligned"),
    ("not all threads reach", "divergence"),
];

impl How {
    /// From what a failed test has printed.
    fn of(output: &str) -> Self {
        let report = REPORTS.iter().find(|(words, _)| output.contains(words));
        match report {
            Some((_, what)) => How::Reported(what),
            None if output.contains("no block goes on") => How::Hung,
            None if output.contains("kernels-gpu/") && output.contains("panicked at") => {
                How::Panicked
            }
            None => How::WrongResult,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            How::Reported(what) => what,
            How::Panicked => "panic",
            How::WrongResult => "result",
            How::Hung => "hang",
            How::Crashed => "crash",
        })
    }
}

/// The environment of a test.
#[derive(Clone, Copy, Default)]
pub(super) struct Conditions {
    /// The number of the mutant, if there is one.
    pub(super) mutant: Option<usize>,
    /// The seed of the order of threads, warps and blocks; `None` for the order of their indices.
    pub(super) seed: Option<u64>,
}

/// Runs the test of this name in a binary for no longer than `limit`. What it prints goes to the
/// file `log`.
pub(super) fn test(
    binary: &Path,
    name: &str,
    conditions: Conditions,
    limit: Duration,
    log: &Path,
) -> Result<(Outcome, Duration)> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(binary);
    command.args(["--exact", name, "--nocapture"]).stdin(Stdio::null());
    command.stdout(file.try_clone()?).stderr(file);
    // A test that draws its cases draws the same with and without a mutant.
    command.env("PROPTEST_RNG_SEED", "1");
    let numbers = [
        (CHOSEN, conditions.mutant.map(|number| number.to_string())),
        ("FUSED_LOSS_EMULATOR_SEED", conditions.seed.map(|seed| seed.to_string())),
    ];
    for (variable, number) in numbers {
        match number {
            Some(number) => command.env(variable, number),
            None => command.env_remove(variable),
        };
    }
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot run {}", binary.display()))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let outcome = match status {
        None => Outcome::Failed(How::Hung),
        Some(status) => {
            let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
            if status.success() {
                ensure!(output.contains("1 passed"), "{}: no test {name}", binary.display());
                Outcome::Passed
            } else if status.code().is_none() {
                Outcome::Failed(How::Crashed)
            } else {
                Outcome::Failed(How::of(&output))
            }
        }
    };
    Ok((outcome, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_test_failed_is_read_from_what_it_printed() {
        let race = "kernel mse_forward_f32, block 0, thread 32: reads 8 bytes of shared memory, \
                    from byte 0 of an array, that thread 0 writes at a.rs:1, with no barrier \
                    between the two (at a.rs:2)";
        assert_eq!(How::of(race), How::Reported("race"));
        let stuck = "kernel mse_forward_f32: no block goes on, as each that has not ended waits";
        assert_eq!(How::of(stuck), How::Hung);
        let overflow = "thread 'emulator 0' panicked at kernels-gpu/src/cut.rs:3:4:\nattempt to";
        assert_eq!(How::of(overflow), How::Panicked);
        let result = "thread 'mse' panicked at tests/tests/golden.rs:73:5:\n1 results differ";
        assert_eq!(How::of(result), How::WrongResult);
    }

    /// The shell replaces a test binary; a script passes its `-c`.
    #[test]
    fn a_test_that_does_not_end_has_failed() {
        let folder = std::env::temp_dir();
        let of_process = |name: &str| folder.join(format!("{name}-{}", std::process::id()));
        let (script, log) = (of_process("fused-loss-mutant"), of_process("fused-loss-mutant-log"));
        let run = |body: &str, limit| {
            fs::write(&script, format!("#!/bin/sh\n{body}\n")).unwrap();
            let mut permissions = fs::metadata(&script).unwrap().permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
            fs::set_permissions(&script, permissions).unwrap();
            let conditions = Conditions { mutant: Some(3), seed: Some(7) };
            let limit = Duration::from_millis(limit);
            test(&script, "any", conditions, limit, &log).map(|(outcome, _)| outcome)
        };
        let passes = format!(
            "test \"${CHOSEN} $FUSED_LOSS_EMULATOR_SEED\" = '3 7' && \
             echo 'test result: ok. 1 passed; 0 failed'"
        );
        assert_eq!(run(&passes, 60_000).unwrap(), Outcome::Passed);
        assert_eq!(run("exec sleep 60", 50).unwrap(), Outcome::Failed(How::Hung));
        assert_eq!(run("exit 1", 60_000).unwrap(), Outcome::Failed(How::WrongResult));
        assert_eq!(run("kill -SEGV $$", 60_000).unwrap(), Outcome::Failed(How::Crashed));
        let error = run("echo 'test result: ok. 0 passed; 0 failed'", 60_000).unwrap_err();
        assert!(error.to_string().ends_with("no test any"), "{error}");
        fs::remove_file(script).unwrap();
        fs::remove_file(log).unwrap();
    }
}
