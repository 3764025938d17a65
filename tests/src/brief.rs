//! How often tests repeat their work, for those that run where each launch takes long.

use std::{env, panic, thread};

/// Whether tests are to repeat their work as few times as make sense, and to launch kernels from
/// one thread at a time: with `FUSED_LOSS_TEST_BRIEFLY` in the environment, as racecheck needs it.
/// It takes up to a hundred times as long for a launch, longer where threads launch at the same
/// time, and may fail to track a launch then.
fn is_brief() -> bool {
    env::var_os("FUSED_LOSS_TEST_BRIEFLY").is_some()
}

/// How many runs, threads, streams or elements a test has: `usual`, or `fewest` where tests are to
/// be brief.
pub fn usually(usual: usize, fewest: usize) -> usize {
    assert!(fewest <= usual, "a brief test has no more than a usual one");
    if is_brief() { fewest } else { usual }
}

/// Does `work` in this many threads at the same time, in each with the thread's number. Where tests
/// are to be brief, a thread begins when the one before has ended.
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
