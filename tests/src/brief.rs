//! How often tests repeat their work; fewer times where each launch takes long.

use std::{env, panic, thread};

/// Whether tests should repeat their work as few times as makes sense, and launch kernels from one
/// thread at a time. This is so with `FUSED_LOSS_TEST_BRIEFLY` in the environment, which racecheck
/// needs: under it a launch takes up to a hundred times as long, and longer if threads launch at
/// the same time, when it may also fail to track a launch.
fn is_brief() -> bool {
    env::var_os("FUSED_LOSS_TEST_BRIEFLY").is_some()
}

/// How many runs, threads, streams or elements a test has: `usual`, or `fewest` if tests should be
/// brief.
pub fn usually(usual: usize, fewest: usize) -> usize {
    assert!(fewest <= usual, "a brief test has no more than a usual one");
    if is_brief() { fewest } else { usual }
}

/// Does `work` in this many threads at the same time, in each with the thread's number. If tests
/// should be brief, a thread begins when the previous one has ended.
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
