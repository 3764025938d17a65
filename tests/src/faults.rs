//! Runs a step of a program repeatedly, and makes another call of the emulated driver fail each
//! time.

use crate::graph::Refused;
use emulator::{Faults, Live, live};
use fused_loss::{Error, Gpu};
use std::collections::BTreeMap;

/// Why a step could not be queued, or its results could not be read.
#[derive(Debug)]
pub enum Failure {
    /// An error from the library.
    Library(Error),
    /// A failed driver call that the step itself makes.
    Driver(Refused),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Failure::Driver(refused)
    }
}

/// The results that a step reads back. One may be there although another failed.
pub type Results = Vec<Result<Vec<f32>, Error>>;

/// The results of a step, and everything that it has created, to be dropped after they are read.
pub type Step<K> = Result<(Results, K), Failure>;

/// Codes of the driver.
pub mod code {
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const INVALID_PTX: u32 = 218;
    pub const UNSUPPORTED_PTX_VERSION: u32 = 222;
    pub const NOT_FOUND: u32 = 500;
    pub const ILLEGAL_ADDRESS: u32 = 700;
    pub const LAUNCH_OUT_OF_RESOURCES: u32 = 701;
    pub const LAUNCH_FAILED: u32 = 719;
    pub const UNKNOWN: u32 = 999;
}

/// The codes with which a call of `function` may fail: those that suit it best, or a general one.
fn codes(function: &str) -> &'static [u32] {
    match function {
        "cuMemAlloc_v2" | "cuStreamCreate" | "cuEventCreate" | "cuDevicePrimaryCtxRetain" => {
            &[code::OUT_OF_MEMORY, code::UNKNOWN]
        }
        "cuModuleLoadDataEx" => {
            &[code::INVALID_PTX, code::UNSUPPORTED_PTX_VERSION, code::OUT_OF_MEMORY]
        }
        "cuModuleGetFunction" => &[code::NOT_FOUND, code::UNKNOWN],
        "cuLaunchKernelEx" | "cuGraphLaunch" => &[code::LAUNCH_OUT_OF_RESOURCES],
        "cuStreamSynchronize" | "cuEventSynchronize" => &[code::LAUNCH_FAILED],
        _ => &[code::UNKNOWN],
    }
}

/// Functions whose failure may go unreported, because it changes nothing but the time of a step or
/// there is nobody to report it to: a question that has a safe answer, a destructor, or the
/// restoration of the thread's own context.
const MAY_BE_SILENT: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
];

/// Whether a failure is of the documented kind for `function` and `code`, and names the function.
fn is_named(failure: &Failure, function: &str, code: u32) -> bool {
    let name = function.trim_end_matches("_v2");
    let error = match failure {
        Failure::Driver(refused) => {
            return (refused.call, refused.code) == (function, code);
        }
        Failure::Library(error) => error,
    };
    match (name, code) {
        ("cuMemAlloc", code::OUT_OF_MEMORY) => {
            matches!(error, Error::OutOfMemory { bytes: 1.., source, .. } if source.call == name)
        }
        ("cuModuleLoadDataEx", code::INVALID_PTX | code::UNSUPPORTED_PTX_VERSION) => {
            matches!(error, Error::UnsupportedPtx { .. })
        }
        ("cuModuleGetFunction", code::NOT_FOUND) => matches!(error, Error::MissingKernel { .. }),
        _ => matches!(error, Error::Driver(error) if error.call == name && error.code == code),
    }
}

/// A run of a step.
struct Run {
    results: Result<Results, Failure>,
    /// The driver's functions, in the order of the calls.
    calls: Vec<&'static str>,
    /// How many calls had been made when the results were read.
    calls_for_results: usize,
    work: usize,
    hit: Option<(usize, &'static str)>,
}

impl Run {
    fn new<K>(faults: &Faults, step: &mut impl FnMut() -> Step<K>) -> Self {
        let done = step();
        let calls_for_results = faults.calls().len();
        let results = done.map(|(results, made)| {
            drop(made);
            results
        });
        let (calls, work, hit) = (faults.calls(), faults.work(), faults.hit());
        Run { results, calls, calls_for_results, work, hit }
    }

    /// An undisturbed run of a step, and its results.
    fn undisturbed<K>(step: &mut impl FnMut() -> Step<K>) -> (Self, Vec<Vec<f32>>) {
        let run = Run::new(&Faults::record(), step);
        let results = run.results.as_ref().expect("nothing fails");
        let values = results.iter().map(|result| result.clone().expect("nothing fails")).collect();
        (run, values)
    }

    /// The failures that the run reports, and whether everything else that it has read equals the
    /// results of an undisturbed run.
    fn failures(self, expected: &[Vec<f32>]) -> (Vec<Failure>, bool) {
        let results = match self.results {
            Err(failure) => return (vec![failure], true),
            Ok(results) => results,
        };
        let (mut failures, mut is_right) = (Vec::new(), results.len() == expected.len());
        for (result, expected) in results.into_iter().zip(expected) {
            match result {
                Ok(values) => is_right &= values == *expected,
                Err(error) => failures.push(error.into()),
            }
        }
        (failures, is_right)
    }
}

/// The calls that were made to fail, and the problems that were found.
#[must_use = "it says what is wrong"]
#[derive(Default)]
pub struct Attack {
    /// How many calls of each function have failed; each call fails in a run of its own.
    calls: BTreeMap<&'static str, usize>,
    /// Runs in which something has failed.
    runs: usize,
    problems: Vec<String>,
}

impl Attack {
    fn expect(&mut self, is_good: bool, place: &str, problem: impl FnOnce() -> String) {
        if !is_good {
            self.problems.push(format!("{place}: {}", problem()));
        }
    }

    /// Records that a call of `function` has failed in `runs` runs.
    fn note(&mut self, function: &'static str, runs: usize) {
        self.runs += runs;
        *self.calls.entry(function).or_default() += 1;
    }

    /// Fails if there is a problem, or if one of `functions` was not called. Prints a line about
    /// what was attacked.
    ///
    /// # Panics
    /// In these cases.
    pub fn finish(self, what: &str, functions: &[&str]) {
        let Attack { calls, runs, problems } = self;
        let missing: Vec<_> = functions.iter().filter(|name| !calls.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{what}: no call of {missing:?} has failed");
        let (count, first) = (problems.len(), &problems[..problems.len().min(20)]);
        assert!(problems.is_empty(), "{what}: {count} problems, such as\n{}", first.join("\n"));
        let failed: usize = calls.values().sum();
        eprintln!("{what}: {failed} calls of {} functions, {runs} runs", calls.len());
    }
}

/// Makes each call of `step` fail once with each of the codes that suit it. `step` creates all that
/// it uses, so it must leave nothing, and the next run is like the first.
pub fn fail_each_call<K>(mut step: impl FnMut() -> Step<K>) -> Attack {
    let (undisturbed, expected) = Run::undisturbed(&mut step);
    let mut attack = Attack::default();
    for (nth, function) in undisturbed.calls.iter().copied().enumerate() {
        let may_be_silent =
            nth >= undisturbed.calls_for_results || MAY_BE_SILENT.contains(&function);
        for &code in codes(function) {
            let place = format!("call {nth}, {function}, fails with {code}");
            let before = live();
            let run = Run::new(&Faults::at_call(nth, code), &mut step);
            attack
                .expect(run.hit == Some((nth, function)), &place, || format!("{:?} has", run.hit));
            let (failures, is_right) = run.failures(&expected);
            attack.expect(is_right, &place, || "a result is wrong".to_owned());
            let is_told = !failures.is_empty() || may_be_silent;
            attack.expect(is_told, &place, || "nobody is told".to_owned());
            for failure in failures {
                let is_named = is_named(&failure, function, code);
                attack.expect(is_named, &place, || format!("{failure:?}"));
            }
            attack.expect_no_leak(before, function, &place);
        }
        attack.note(function, codes(function).len());
    }
    let (_, again) = Run::undisturbed(&mut step);
    attack.expect(again == expected, "the next step", || "its results are wrong".to_owned());
    attack
}

impl Attack {
    /// A failed call leaks nothing, except the one object that the driver itself did not destroy.
    fn expect_no_leak(&mut self, before: Live, function: &str, place: &str) {
        let after = live();
        let mut allowed = before;
        match function {
            "cuEventDestroy_v2" => allowed.events += 1,
            "cuStreamDestroy_v2" => allowed.streams += 1,
            "cuModuleUnload" => allowed.modules += 1,
            "cuGraphDestroy" | "cuGraphExecDestroy" => allowed.graphs += 1,
            "cuDevicePrimaryCtxRelease_v2" => allowed.contexts += 1,
            _ => {}
        }
        let is_good = after == before || after == allowed;
        self.expect(is_good, place, || format!("of {before:?} there is now {after:?}"));
    }
}

/// Makes each call of a step fail once, where `make` creates what the step uses once and for all
/// runs. After each failure, an undisturbed step must compute the same and leak nothing. Memory
/// that could not be freed stays until the device is closed.
pub fn go_on_after_each_call<K, S: FnMut() -> Step<K>>(make: impl FnOnce() -> S) -> Attack {
    let allocations = live().allocations;
    let mut step = make();
    let (_, expected) = Run::undisturbed(&mut step);
    let (undisturbed, _) = Run::undisturbed(&mut step);
    let mut attack = Attack::default();
    for (nth, function) in undisturbed.calls.iter().copied().enumerate() {
        let mut before = live();
        let code = codes(function)[0];
        let place = format!("call {nth}, {function}, has failed with {code}");
        let run = Run::new(&Faults::at_call(nth, code), &mut step);
        attack.expect(run.hit == Some((nth, function)), &place, || format!("{:?} has", run.hit));
        let (_, is_right) = run.failures(&expected);
        attack.expect(is_right, &place, || "a result is wrong".to_owned());
        let (_, again) = Run::undisturbed(&mut step);
        attack.expect(again == expected, &place, || "the next step is wrong".to_owned());
        before.allocations += usize::from(live().allocations == before.allocations + 1);
        attack.expect_no_leak(before, function, &place);
        attack.note(function, 1);
    }
    drop(step);
    let is_freed = live().allocations == allocations;
    attack.expect(is_freed, "all steps", || "memory is not freed with the device".to_owned());
    attack
}

/// Loses the context at each call of `step`; from then on, every call must report it. A capture
/// that the lost context has cut off stays with its CPU thread, so each run has a thread of its
/// own.
pub fn lose_context_at_each_call<K>(mut step: impl FnMut() -> Step<K> + Send) -> Attack {
    let (undisturbed, expected) = Run::undisturbed(&mut step);
    let (mut attack, lost) = (Attack::default(), code::ILLEGAL_ADDRESS);
    let says_so = |failure: &Failure| match failure {
        Failure::Library(Error::Driver(error)) => error.code == lost,
        Failure::Library(_) => false,
        Failure::Driver(refused) => refused.code == lost,
    };
    for nth in 0..undisturbed.calls.len() {
        let place = format!("the context is lost at call {nth}, {}", undisturbed.calls[nth]);
        let contexts = live().contexts;
        let lose_context = || {
            let run = Run::new(&Faults::lost_context(nth, lost), &mut step);
            let _faults = Faults::lost_context(0, lost);
            (run, Gpu::emulated(0).and_then(|gpu| gpu.stream()))
        };
        let (run, next) = std::thread::scope(|scope| {
            scope.spawn(lose_context).join().expect("it does not panic")
        });
        let next_says_so = next.is_err_and(|error| says_so(&error.into()));
        attack.expect(next_says_so, &place, || "the next call does not say so".to_owned());
        if let Some((_, function)) = run.hit {
            attack.note(function, 1);
        }
        let is_needed = run.hit.is_some_and(|(call, _)| call < undisturbed.calls_for_results);
        let (failures, is_right) = run.failures(&expected);
        attack.expect(is_right, &place, || "a result is wrong".to_owned());
        let is_told = !failures.is_empty() || !is_needed;
        attack.expect(is_told, &place, || "nobody is told".to_owned());
        for failure in failures {
            attack.expect(says_so(&failure), &place, || format!("{failure:?}"));
        }
        // The driver frees everything else with the context.
        let is_released = live().contexts == contexts;
        attack.expect(is_released, &place, || "the context is kept".to_owned());
    }
    attack
}

/// Makes each piece of work that `step` queues fail: the calls succeed, but the stream has an
/// error.
pub fn fail_each_work<K>(mut step: impl FnMut() -> Step<K>) -> Attack {
    let (undisturbed, expected) = Run::undisturbed(&mut step);
    let mut attack = Attack::default();
    for nth in 0..undisturbed.work {
        let place = format!("work {nth} fails");
        let before = live();
        let run = Run::new(&Faults::at_work(nth, code::LAUNCH_FAILED), &mut step);
        attack.expect(run.hit == Some((nth, "work")), &place, || "nothing has".to_owned());
        attack.note("work", 1);
        let (failures, is_right) = run.failures(&expected);
        attack.expect(is_right, &place, || "a result is wrong".to_owned());
        attack.expect(!failures.is_empty(), &place, || "nobody is told".to_owned());
        for failure in failures {
            let is_named = ["cuStreamSynchronize", "cuEventSynchronize"]
                .iter()
                .any(|wait| is_named(&failure, wait, code::LAUNCH_FAILED));
            attack.expect(is_named, &place, || format!("{failure:?}"));
        }
        attack.expect_no_leak(before, "work", &place);
    }
    attack
}
