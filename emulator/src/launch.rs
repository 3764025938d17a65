//! Runs a launch: every block of a grid, in parallel. The blocks of a cooperative launch take
//! turns, so that each can wait for any other. The blocks of other launches start in the order of
//! their indices. In a drawn order, the blocks of any launch take turns, on one CPU thread.

mod drawn;

use crate::block::{self, Running, Step, Wait};
use crate::fault::{Fault, LAUNCH_FAILED};
use crate::kernel::Launch;
use crate::order::{self, Order};
use crate::stack::{self, ThreadStack};
use rayon::ThreadPool;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most CPU threads that run blocks. Each caches a stack for every GPU thread of a block, and
/// the system limits the number of mappings of a process.
const MAX_WORKERS: usize = 16;
/// How many GPU threads of a cooperative launch run on stacks that their worker caches.
const KEPT_STACKS: u32 = 1024;
/// A cooperative launch ends with a fault after this many rounds in which every block only waits
/// for another. Two would be enough (one may have been under way when the last block stored
/// something), were it not for threads that wait for several values at one place.
const QUIET_ROUNDS: u32 = 1000;

/// What the workers of a launch share.
#[derive(Default)]
struct Failure {
    /// Whether a block has ended in a fault.
    failed: AtomicBool,
    /// The first fault.
    first: Mutex<Option<Fault>>,
}

impl Failure {
    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn note(&self, fault: Fault) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        // Blocks that waited for the block with the fault fail after it, so only the first fault
        // counts.
        if !self.failed.swap(true, Ordering::Relaxed) {
            *first = Some(fault);
        }
    }

    fn into_result(self) -> Result<(), Fault> {
        self.first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Launch {
    /// Runs to the end, or to the first fault.
    pub(crate) fn run(&self) -> Result<(), Fault> {
        let seed = order::seed().unwrap_or_else(|reason| panic!("{reason}"));
        let Some(seed) = seed else { return self.run_on(MAX_WORKERS) };
        self.run_drawn(order::of_next_launch(seed)).map_err(|Fault { code, report }| Fault {
            code,
            report: format!("{report} ({})", order::named(seed)),
        })
    }

    /// [`run`](Self::run) in a drawn order. It needs no workers, so it does not wait for those of
    /// another launch.
    pub(crate) fn run_drawn(&self, order: Order) -> Result<(), Fault> {
        apart(move || workers().install(move || drawn::run(self, &order)))
    }

    /// [`run`](Self::run) in the order of indices, a cooperative launch on so many workers at most.
    pub(crate) fn run_on(&self, most: usize) -> Result<(), Fault> {
        // One launch at a time: otherwise each of two launches could use workers that blocks of the
        // other wait for.
        static RUNS: Mutex<()> = Mutex::new(());
        let _one = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        apart(|| match self.cooperative {
            true => self.run_in_turns(workers(), most),
            false => self.run_in_order(workers()),
        })
    }

    /// Runs each block to its end before the worker takes the next.
    fn run_in_order(&self, workers: &ThreadPool) -> Result<(), Fault> {
        let (next, failure) = (AtomicU32::new(0), Failure::default());
        // A block may wait for blocks before it, because those were taken earlier and run. One
        // block may also wait for later blocks, because another worker runs them.
        workers.broadcast(|_| {
            while !failure.has_failed() {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.grid {
                    break;
                }
                if let Err(fault) = block::run(self, index, &failure.failed) {
                    failure.note(fault);
                }
            }
        });
        failure.into_result()
    }

    /// Runs all blocks at a time: each worker has its share of them take turns.
    fn run_in_turns(&self, workers: &ThreadPool, most: usize) -> Result<(), Fault> {
        let count = workers.current_num_threads().min(most).min(self.grid as usize);
        let (rounds, failure) = (Rounds::new(count), Failure::default());
        workers.broadcast(|context| {
            let worker = context.index();
            if worker >= count {
                return;
            }
            let share = (worker as u32..self.grid).step_by(count);
            let run = || self.take_turns(share, worker, &rounds, &failure);
            match panic::catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => {}
                Ok(Err(fault)) => failure.note(fault),
                Err(payload) => {
                    // Otherwise the others would wait for the blocks of this worker.
                    failure.failed.store(true, Ordering::Relaxed);
                    panic::resume_unwind(payload);
                }
            }
        });
        failure.into_result()?;
        rounds.into_result(self)
    }

    /// Runs the blocks of one worker in rounds, in each of which every block has a turn.
    fn take_turns(
        &self,
        share: impl Iterator<Item = u32>,
        worker: usize,
        rounds: &Rounds,
        failure: &Failure,
    ) -> Result<(), Fault> {
        let begin = |(at, index)| self.begin(index, at, &failure.failed, Order::by_index());
        let mut running: Vec<_> = share.enumerate().map(begin).collect();
        while !failure.has_failed() {
            let (mut at, mut is_quiet) = (0, true);
            while at < running.len() {
                match running[at].step()? {
                    Step::Done => {
                        running.remove(at);
                        is_quiet = false;
                    }
                    Step::Spins => {
                        is_quiet &= !running[at].has_gone_on();
                        at += 1;
                    }
                    Step::Pauses => unreachable!("in the order of indices"),
                }
            }
            match rounds.end(worker, is_quiet, running.is_empty()) {
                Round::Next if running.is_empty() => break,
                // If there are fewer cores than workers, let another worker use this core.
                Round::Next if is_quiet => std::thread::yield_now(),
                Round::Next => {}
                Round::Stuck => {
                    rounds.report(running.iter().flat_map(Running::waits));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Starts block `index` of a launch whose blocks take turns. `before` blocks already run on the
    /// same worker.
    fn begin<'a>(
        &'a self,
        index: u32,
        before: usize,
        failed: &'a AtomicBool,
        order: Order,
    ) -> Running<'a> {
        if before < (KEPT_STACKS / self.block) as usize {
            let stacks = std::iter::repeat_with(ThreadStack::kept);
            Running::new(self, index, failed, true, stacks, order)
        } else {
            Running::new(self, index, failed, true, stack::region(self.block), order)
        }
    }
}

/// The CPU threads that run blocks.
fn workers() -> &'static ThreadPool {
    static WORKERS: OnceLock<ThreadPool> = OnceLock::new();
    WORKERS.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        rayon::ThreadPoolBuilder::new()
            // At least two, because a block that waits for later blocks may occupy one.
            .num_threads(cores.clamp(2, MAX_WORKERS))
            .thread_name(|index| format!("emulator {index}"))
            .build()
            .expect("no threads for the emulator")
    })
}

/// Runs `body` on a new thread if this one is a worker of another thread pool. Such a worker would
/// run other tasks of its pool while it waits for the emulator's, and a task that launches too
/// would wait for this launch.
fn apart<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    if rayon::current_thread_index().is_none() {
        return body();
    }
    let result = std::thread::scope(|scope| scope.spawn(body).join());
    result.unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// The rounds of a cooperative launch, which detect that no block will make progress.
struct Rounds {
    state: Mutex<RoundsState>,
}

struct RoundsState {
    /// For each worker, its rounds without progress since a block of any worker made progress; none
    /// for a worker whose blocks have ended.
    quiet: Vec<Option<u32>>,
    /// Whether all workers have had too many such rounds.
    is_stuck: bool,
    /// Where the stuck threads wait.
    waits: Vec<Wait>,
}

/// What a worker does after a round.
enum Round {
    /// Another round, because a block is left.
    Next,
    /// No more rounds: no block will make progress.
    Stuck,
}

impl Rounds {
    fn new(workers: usize) -> Self {
        let quiet = vec![Some(0); workers];
        Rounds { state: Mutex::new(RoundsState { quiet, is_stuck: false, waits: Vec::new() }) }
    }

    /// Ends a round of a worker. The arguments say whether none of its blocks made progress, and
    /// whether none is left.
    ///
    /// Other workers see what a block has stored in a round from the first round that they begin
    /// after its end, because the lock orders the two.
    fn end(&self, worker: usize, is_quiet: bool, is_last: bool) -> Round {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_last {
            state.quiet[worker] = None;
        }
        if !is_quiet {
            state.quiet.iter_mut().flatten().for_each(|rounds| *rounds = 0);
        } else if let Some(rounds) = &mut state.quiet[worker] {
            *rounds = rounds.saturating_add(1);
        }
        let mut left = state.quiet.iter().flatten().peekable();
        let is_stuck = left.peek().is_some() && left.all(|&rounds| rounds >= QUIET_ROUNDS);
        state.is_stuck |= is_stuck;
        if state.is_stuck && !is_last { Round::Stuck } else { Round::Next }
    }

    /// Notes where the threads of a worker wait.
    fn report(&self, waits: impl Iterator<Item = Wait>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waits.extend(waits);
    }

    /// A fault if no block makes progress.
    fn into_result(self, launch: &Launch) -> Result<(), Fault> {
        let RoundsState { is_stuck, waits, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if is_stuck { Err(stuck(launch, waits)) } else { Ok(()) }
    }
}

/// The fault of a launch in which no block makes progress, with the first thread that waits at each
/// place.
fn stuck(launch: &Launch, mut waits: Vec<Wait>) -> Fault {
    waits.sort_by_key(|wait| (wait.block, wait.thread));
    let mut seen = Vec::new();
    waits.retain(|wait| {
        let is_new = !seen.contains(&wait.place);
        if is_new {
            seen.push(wait.place);
        }
        is_new
    });
    let waits: Vec<_> = waits
        .iter()
        .map(|Wait { block, thread, what, .. }| format!("block {block}, thread {thread}: {what}"))
        .collect();
    let report = format!(
        "kernel {}: no block goes on, as each that has not ended waits for another ({})",
        launch.entry.name,
        waits.join("; ")
    );
    Fault { code: LAUNCH_FAILED, report }
}
