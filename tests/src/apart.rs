//! Tests that run in a process of their own, the same test again: one that hangs is ended, and one
//! that aborts ends no other.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// What names the case to the process that runs it.
const CASE: &str = "FUSED_LOSS_TEST_APART";

/// The name of all cases: each runs in the process that it was started in. A sanitizer watches that
/// one alone.
const ALL: &str = "all";

/// Begins the process that runs `test` of the calling binary again, in a shell that `first`
/// prepares.
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

/// What the process of `test` has printed, once it has ended. One that is not done in time has
/// failed, and so has one that ends with an error.
fn end(mut child: Child, test: &str) -> String {
    // A machine that builds something else meanwhile may take minutes for what takes seconds.
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

/// Whether this is the process in which `test` runs apart.
fn is_apart(test: &str) -> bool {
    env::var_os(CASE).is_some_and(|name| name == test || name == ALL)
}

/// Runs `case`, which is the whole of `test`, in a process of its own, in a shell that `first`
/// prepares. It has to succeed.
pub fn apart(test: &str, first: &str, case: impl FnOnce()) {
    if is_apart(test) {
        return case();
    }
    end(begin(test, first), test);
}

/// Runs `case`, which `test` begins with, in as many processes at a time as there are shells that
/// these prepare. What each says, a line; nothing in those processes themselves, in which the test
/// is to end here.
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
