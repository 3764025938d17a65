//! How often tests repeat their work: less often where each launch takes long.

use std::{env, panic, thread};

/// Whether tests should repeat their work as few times as makes sense, and launch kernels from one
/// thread at a time. `FUSED_LOSS_TEST_BRIEFLY` in the environment asks for it. Under racecheck a
/// launch takes up to a hundred times as long, and longer if threads launch at the same time; then
/// racecheck may also fail to track a launch.
fn is_brief() -> bool {
    env::var_os("FUSED_LOSS_TEST_BRIEFLY").is_some()
}

/// How many runs, threads, streams or elements a test has: `usual`, or `fewest` if tests should be
/// brief.
pub fn usually(usual: usize, fewest: usize) -> usize {
    assert!(fewest <= usual, "a brief test has no more than a usual one");
    if is_brief() { fewest } else { usual }
}

/// Does `work` in this many threads at the same time and passes each thread its number. If tests
/// should be brief, a thread starts when the previous one has ended.
pub fn in_threads(threads: usize, work: impl Fn(usize) + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for number in 0..threads {
            let thread = scope.spawn(move || work(number));
            if is_brief() {
                thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
            }
        }
    });
}
