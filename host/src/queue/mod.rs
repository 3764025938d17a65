//! The driver's stream behind a [`Stream`](crate::Stream), as memory keeps it, and points in its
//! work.

mod event;

pub(crate) use event::Event;

use crate::driver::check;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
#[cfg(feature = "cudarc")]
use cudarc::driver::CudaStream;
use cust::sys::{self, CUstreamCaptureStatus};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::thread::{self, ThreadId};

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, handles that no stream is created with.
pub(crate) const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;

/// The driver's stream. Memory keeps it as long as work on it may use the memory: without the
/// [`Stream`](crate::Stream)'s workspace, which is memory too and would keep what keeps it. Once
/// nobody queues on it any more, it is but the point behind all its work.
pub(crate) struct Queue {
    gpu: Gpu,
    owner: Owner,
    /// The only thread for which the handle is this stream: that of `CU_STREAM_PER_THREAD` is
    /// another stream on each thread.
    thread: Option<ThreadId>,
    state: RwLock<State>,
}

/// Who destroys the driver's stream.
pub(crate) enum Owner {
    /// The library, once nobody queues on it any more.
    Library,
    /// Whoever made it, who answers for its being there.
    Caller,
    /// cudarc, which keeps it as long as this is there.
    #[cfg(feature = "cudarc")]
    Cudarc(Arc<CudaStream>),
}

enum State {
    /// Work is queued.
    Open(sys::CUstream),
    /// The last of its work was queued, and the driver's stream is not touched any more.
    Ended(Arc<Event>),
}

// SAFETY: the handle may be used from any thread; the driver locks it. The owner and the event are
// `Send` and `Sync` themselves.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A stream of `gpu`, which is destroyed when it ends if it is the library's.
    pub(crate) fn new(gpu: &Gpu, handle: sys::CUstream, owner: Owner) -> Self {
        let thread = (handle as usize == PER_THREAD).then(|| thread::current().id());
        Queue { gpu: gpu.clone(), owner, thread, state: RwLock::new(State::Open(handle)) }
    }

    /// Refuses a thread on which the handle is another stream.
    pub(crate) fn check_thread(&self) -> Result<()> {
        match self.thread {
            Some(thread) if thread != thread::current().id() => Err(Error::OtherThread),
            _ => Ok(()),
        }
    }

    /// Refuses a call on a thread on which the handle is another stream. Also refuses to capture a
    /// call on a stream of cudarc's into a graph: cudarc launches graphs in safe code, and nothing
    /// there keeps the memory that a replay uses.
    pub(crate) fn check_call(&self) -> Result<()> {
        self.check_thread()?;
        #[cfg(feature = "cudarc")]
        if matches!(self.owner, Owner::Cudarc(_)) && self.captures()? {
            return Err(Error::Capture);
        }
        Ok(())
    }

    /// The stream as cudarc has it, of a stream of cudarc's.
    #[cfg(feature = "cudarc")]
    pub(crate) fn cudarc(&self) -> Option<&CudaStream> {
        match &self.owner {
            Owner::Cudarc(stream) => Some(stream),
            Owner::Library | Owner::Caller => None,
        }
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// While it is held, the driver's stream stays.
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all work queued so far.
    pub(crate) fn synchronize(&self) -> Result<()> {
        match &*self.state() {
            State::Open(handle) => {
                self.check_thread()?;
                let _current = self.gpu.bind()?;
                // SAFETY: the stream is there.
                check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(*handle) })
            }
            State::Ended(event) => event.synchronize(),
        }
    }

    /// The point behind all work queued so far.
    pub(crate) fn end_of_work(&self) -> Result<Arc<Event>> {
        match &*self.state() {
            State::Open(handle) => {
                self.check_thread()?;
                // SAFETY: the stream is there.
                Ok(Arc::new(unsafe { Event::record(&self.gpu, *handle)? }))
            }
            State::Ended(event) => Ok(event.clone()),
        }
    }

    /// Makes whatever is queued next wait for `event`. The CPU does not wait.
    pub(crate) fn wait_for_event(&self, event: &Event) -> Result<()> {
        self.check_thread()?;
        match &*self.state() {
            // SAFETY: the stream is there.
            State::Open(handle) => unsafe { event.hold_back(&self.gpu, *handle) },
            State::Ended(_) => Ok(()),
        }
    }

    /// Sets `bytes` bytes at `start` to zero, behind all work queued so far.
    ///
    /// # Safety
    /// 1. They are there, on the stream's device, until that is done.
    /// 2. Nothing uses them but work that is ordered before or behind on this stream.
    pub(crate) unsafe fn set_to_zero(&self, start: u64, bytes: usize) -> Result<()> {
        let State::Open(handle) = &*self.state() else { return Ok(()) };
        let _current = self.gpu.bind()?;
        // SAFETY: the stream is there; the rest is the caller's condition.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(start, 0, bytes, *handle) })
    }

    /// Whether all of its work is done, and there will be no more.
    pub(crate) fn is_finished(&self) -> bool {
        match &*self.state() {
            State::Open(_) => false,
            State::Ended(event) => event.is_done(),
        }
    }

    /// Whether a graph is being made of what is queued, not work. Also where the driver will not
    /// say.
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures().unwrap_or(true)
    }

    /// Whether a graph is being made of what is queued, not work.
    fn captures(&self) -> Result<bool> {
        let State::Open(handle) = &*self.state() else { return Ok(false) };
        self.check_thread()?;
        let _current = self.gpu.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is there; the driver writes to the pointer it is given.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(*handle, &mut status) })?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Nobody queues on it any more. What is captured has no end that can be waited for: then the
    /// driver's stream is kept.
    pub(crate) fn end(&self) {
        if self.is_capturing() {
            return;
        }
        let Ok(event) = self.end_of_work() else { return };
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let State::Open(handle) = std::mem::replace(&mut *state, State::Ended(event)) {
            self.destroy(handle);
        }
    }

    /// Whether both are the same stream of the driver's.
    pub(crate) fn is(&self, other: &Queue) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        // That of a stream which has ended may be another stream's by now.
        match (&*self.state(), &*other.state()) {
            (State::Open(one), State::Open(other_one)) => {
                one == other_one
                    && self.thread == other.thread
                    && self.gpu.ordinal() == other.gpu.ordinal()
            }
            _ => false,
        }
    }

    fn destroy(&self, handle: sys::CUstream) {
        let Owner::Library = self.owner else { return };
        // Where the context cannot be made current, the driver may destroy the stream all the same.
        let _current = self.gpu.bind();
        // SAFETY: created by `Stream::create` and not destroyed yet; work that is still queued goes
        // on.
        let _ = unsafe { sys::cuStreamDestroy_v2(handle) };
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Open(handle) = *state {
            self.destroy(handle);
        }
        #[cfg(feature = "cudarc")]
        {
            // cudarc makes its context current to destroy a stream, and leaves it current.
            let _current = self.gpu.bind();
            self.owner = Owner::Caller;
        }
    }
}
