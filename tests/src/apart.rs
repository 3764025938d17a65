//! Tests that run again in a new process, so that a test that hangs can be killed, and one that
//! aborts does not end other tests.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// The environment variable with the name of the case that a process should run.
const CASE: &str = "FUSED_LOSS_TEST_APART";

/// The value for all cases: each runs in the process that has started, because a sanitizer watches
/// only that process.
const ALL: &str = "all";

/// Starts a process that runs `test` of the calling binary again, in a shell that first runs the
/// command `first`.
fn begin(test: &str, first: &str) -> Child {
    let this = env::current_exe().unwrap();
    let command = format!("{first} exec '{}' --exact {test} --nocapture", this.display());
    Command::new("sh")
        .args(["-c", &command])
        .env(CASE, test)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the process of `test` and returns its output. Fails if the process does not end in
/// time or ends with an error.
fn end(mut child: Child, test: &str) -> String {
    // On a busy machine this may take minutes instead of seconds.
    let limit = Instant::now() + Duration::from_secs(900);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > limit {
            child.kill().unwrap();
            panic!("{test}: not done in a quarter of an hour");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let (listed, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprint!("{said}");
    assert!(output.status.success(), "{test} ends with {}:\n{said}", output.status);
    assert!(listed.contains("1 passed"), "there is no test {test} to run again:\n{listed}");
    listed.into_owned()
}

/// Whether this process should run the case of `test` itself.
fn is_apart(test: &str) -> bool {
    env::var_os(CASE).is_some_and(|name| name == test || name == ALL)
}

/// Runs `case`, which is the whole of `test`, in a new process and requires it to succeed. The
/// shell of the process first runs the command `first`.
pub fn apart(test: &str, first: &str, case: impl FnOnce()) {
    if is_apart(test) {
        return case();
    }
    end(begin(test, first), test);
}

/// Runs `case`, the beginning of `test`, in several processes at the same time: one per command in
/// `firsts`, which its shell runs first. Returns the line that each prints. In those processes it
/// returns `None`, and the test should end.
pub fn all_apart(
    test: &str,
    firsts: &[&str],
    case: impl FnOnce() -> String,
) -> Option<Vec<String>> {
    const SAID: &str = "the case says: ";
    if is_apart(test) {
        println!("{SAID}{}", case());
        return None;
    }
    let children: Vec<_> = firsts.iter().map(|first| begin(test, first)).collect();
    let said = children.into_iter().map(|child| {
        let listed = end(child, test);
        let (_, said) = listed.split_once(SAID).expect("the case has said nothing");
        said.lines().next().unwrap_or_default().to_owned()
    });
    Some(said.collect())
}
