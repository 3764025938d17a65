//! Faults on request: a driver call, or work on a stream, fails although nothing is wrong with it,
//! so that tests see how the caller handles the failure.

use crate::fault::Fault;
use std::cell::RefCell;
use std::marker::PhantomData;

/// Makes calls of this CPU thread fail until it is dropped. Calls of other threads are neither
/// counted nor failed, so that tests that run in parallel do not see each other's faults.
///
/// ```
/// const CUDA_ERROR_OUT_OF_MEMORY: u32 = 2;
///
/// let faults = emulator::Faults::at_call_of("cuMemAlloc_v2", 0, CUDA_ERROR_OUT_OF_MEMORY);
/// // A caller of `cuMemAlloc_v2` on this thread gets the code, and no memory.
/// assert_eq!(faults.hit(), None, "nothing has called it yet");
/// ```
#[must_use = "the faults end when it is dropped"]
#[derive(Debug)]
pub struct Faults {
    /// The plan belongs to this CPU thread.
    not_send: PhantomData<*const ()>,
}

/// Which call or work fails, counted from 0, and with which code.
#[derive(Clone, Copy)]
enum Plan {
    /// None fails; calls are recorded.
    Record,
    /// One call fails and does nothing. It is counted among all calls, or among those of one
    /// function.
    Call { function: Option<&'static str>, nth: usize, code: u32 },
    /// Every call that needs the context fails, from a given call on.
    LostContext { from: usize, code: u32 },
    /// One piece of work on a stream fails. It is not done, and leaves the stream in error.
    Work { nth: usize, code: u32 },
}

struct State {
    plan: Plan,
    calls: Vec<&'static str>,
    work: usize,
    hit: Option<(usize, &'static str)>,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Functions that work even if the context is lost, because they do not need it.
const WITHOUT_CONTEXT: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuThreadExchangeStreamCaptureMode",
];

impl Faults {
    /// Fails nothing, and records the calls that could fail.
    pub fn record() -> Self {
        Self::start(Plan::Record)
    }

    /// The call with this number, counted from 0, returns `code` and does nothing else.
    pub fn at_call(nth: usize, code: u32) -> Self {
        Self::start(Plan::Call { function: None, nth, code })
    }

    /// As [`at_call`](Self::at_call), counting calls of one driver function, such as
    /// `cuMemAlloc_v2`.
    pub fn at_call_of(function: &'static str, nth: usize, code: u32) -> Self {
        Self::start(Plan::Call { function: Some(function), nth, code })
    }

    /// The context is lost at the call with this number, as after a kernel's illegal access on a
    /// GPU. From that call on, every call that needs the context returns `code` and does nothing
    /// else.
    pub fn lost_context(from: usize, code: u32) -> Self {
        Self::start(Plan::LostContext { from, code })
    }

    /// The work with this number, counted from 0, fails: a kernel, a copy on the device or a
    /// memset, queued by a call or by a graph. The call that queues it succeeds. The stream is then
    /// in error, which waiting for it reports.
    pub fn at_work(nth: usize, code: u32) -> Self {
        Self::start(Plan::Work { nth, code })
    }

    fn start(plan: Plan) -> Self {
        let state = State { plan, calls: Vec::new(), work: 0, hit: None };
        let before = STATE.replace(Some(state));
        assert!(before.is_none(), "this thread has other faults planned, which are still kept");
        Faults { not_send: PhantomData }
    }

    /// The driver functions that this thread has called since this was created, in order.
    pub fn calls(&self) -> Vec<&'static str> {
        self.read(|state| state.calls.clone())
    }

    /// How many pieces of work this thread has queued since this was created.
    pub fn work(&self) -> usize {
        self.read(|state| state.work)
    }

    /// The first failure: the number of the call and its function, or the number of the work and
    /// `work`.
    pub fn hit(&self) -> Option<(usize, &'static str)> {
        self.read(|state| state.hit)
    }

    fn read<T>(&self, of: impl FnOnce(&State) -> T) -> T {
        STATE.with_borrow(|state| of(state.as_ref().expect("the plan stays while `self` does")))
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let _ = STATE.try_with(RefCell::take);
    }
}

/// Counts a call of `function`, and fails it if that is planned.
pub(crate) fn before_call(function: &'static str) -> Result<(), Fault> {
    with_state(|state| {
        let index = state.calls.len();
        state.calls.push(function);
        let failure = match state.plan {
            Plan::Call { function: None, nth, code } => (index == nth).then_some(code),
            Plan::Call { function: Some(of), nth, code } => {
                let calls = state.calls.iter().filter(|&&call| call == of).count();
                (function == of && calls == nth + 1).then_some(code)
            }
            Plan::LostContext { from, code } => {
                (index >= from && !WITHOUT_CONTEXT.contains(&function)).then_some(code)
            }
            Plan::Record | Plan::Work { .. } => None,
        };
        fail(state, failure, function, index)
    })
}

/// Counts a piece of work on a stream, and fails it if that is planned.
pub(crate) fn before_work() -> Result<(), Fault> {
    with_state(|state| {
        let index = state.work;
        state.work += 1;
        let failure = match state.plan {
            Plan::Work { nth, code } => (index == nth).then_some(code),
            _ => None,
        };
        fail(state, failure, "work", index)
    })
}

fn fail(
    state: &mut State,
    code: Option<u32>,
    what: &'static str,
    index: usize,
) -> Result<(), Fault> {
    let Some(code) = code else { return Ok(()) };
    state.hit.get_or_insert((index, what));
    Err(Fault { code, report: format!("{what}, number {index}, fails as the test has planned") })
}

/// Calls `of` with the plan of this CPU thread, if it has one. While a thread ends, it has none any
/// more.
fn with_state(of: impl FnOnce(&mut State) -> Result<(), Fault>) -> Result<(), Fault> {
    let result = STATE.try_with(|state| state.borrow_mut().as_mut().map(of));
    result.ok().flatten().unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_int;

    const CODE: u32 = 999;

    fn count_devices() -> u32 {
        let symbol = crate::symbol("cuDeviceGetCount").unwrap();
        // SAFETY: the function has these parameters, and writes to the pointer it is given.
        unsafe {
            let function: unsafe extern "C" fn(*mut c_int) -> u32 = std::mem::transmute(symbol);
            function(&mut 0)
        }
    }

    fn synchronize_default_stream() -> u32 {
        let symbol = crate::symbol("cuStreamSynchronize").unwrap();
        // SAFETY: the function has these parameters.
        unsafe {
            let function: unsafe extern "C" fn(usize) -> u32 = std::mem::transmute(symbol);
            function(0)
        }
    }

    /// The code that the driver returns if no context is current.
    const INVALID_CONTEXT: u32 = 201;

    #[test]
    fn one_call_fails() {
        let faults = Faults::at_call(1, CODE);
        assert_eq!([(); 3].map(|()| count_devices()), [0, CODE, 0]);
        assert_eq!(faults.hit(), Some((1, "cuDeviceGetCount")));
        let report = crate::take_report().unwrap();
        assert!(report.starts_with("cuDeviceGetCount, number 1"), "{report}");
    }

    #[test]
    fn one_call_of_a_function_fails() {
        let faults = Faults::at_call_of("cuDeviceGetCount", 1, CODE);
        let codes = [count_devices(), synchronize_default_stream(), count_devices()];
        assert_eq!(codes, [0, INVALID_CONTEXT, CODE]);
        assert_eq!(faults.hit(), Some((2, "cuDeviceGetCount")));
    }

    #[test]
    fn a_lost_context_fails_every_call_that_needs_one() {
        let faults = Faults::lost_context(1, CODE);
        assert_eq!(synchronize_default_stream(), INVALID_CONTEXT);
        assert_eq!(count_devices(), 0, "it needs no context");
        assert_eq!([(); 2].map(|()| synchronize_default_stream()), [CODE; 2]);
        assert_eq!(faults.hit(), Some((2, "cuStreamSynchronize")));
    }

    #[test]
    fn nothing_fails_but_what_is_recorded() {
        let faults = Faults::record();
        assert_eq!(count_devices(), 0);
        assert_eq!((faults.calls(), faults.hit()), (vec!["cuDeviceGetCount"], None));
        drop(faults);
        let _next = Faults::at_call(0, CODE);
        assert_eq!(count_devices(), CODE);
    }

    #[test]
    fn other_threads_are_left_alone() {
        let _faults = Faults::at_call(0, CODE);
        assert_eq!(std::thread::spawn(count_devices).join().unwrap(), 0);
        assert_eq!(count_devices(), CODE);
    }

    #[test]
    fn one_piece_of_work_fails() {
        let faults = Faults::at_work(1, CODE);
        let codes = [(); 3].map(|()| before_work().map_err(|fault| fault.code));
        assert_eq!(codes, [Ok(()), Err(CODE), Ok(())]);
        assert_eq!((faults.work(), faults.hit()), (3, Some((1, "work"))));
    }
}
