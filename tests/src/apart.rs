//! Tests that run in a process of their own, the same test again: one that hangs is ended, and one
//! that aborts ends no other.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// What names the case to the process that runs it.
const CASE: &str = "FUSED_LOSS_TEST_APART";

/// Runs `test` of the calling binary again, in a shell that `first` prepares. One that is not done
/// in time has failed.
fn run_again(test: &str, first: &str) -> Output {
    let this = env::current_exe().unwrap();
    let command = format!("{first} exec '{}' --exact {test} --nocapture", this.display());
    let mut child = Command::new("sh")
        .args(["-c", &command])
        .env(CASE, test)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A machine that builds something else meanwhile may take minutes for what takes seconds.
    let limit = Instant::now() + Duration::from_secs(900);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > limit {
            child.kill().unwrap();
            panic!("{test}: not done in a quarter of an hour");
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Runs `case`, which is the whole of `test`, in a process of its own, in a shell that `first`
/// prepares. It has to succeed.
pub fn apart(test: &str, first: &str, case: impl FnOnce()) {
    if env::var_os(CASE).is_some_and(|name| name == test) {
        return case();
    }
    let output = run_again(test, first);
    let (listed, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprint!("{said}");
    assert!(output.status.success(), "{test} ends with {}:\n{said}", output.status);
    assert!(listed.contains("1 passed"), "there is no test {test} to run again:\n{listed}");
}
