//! The driver's stream of a [`Stream`](crate::Stream), which memory refers to, and events in its
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

/// The driver's stream. Memory refers to it as long as work on it may use the memory. It does not
/// own the [`Stream`](crate::Stream)'s workspace, which is memory too and would make a reference
/// cycle. After the last `Stream` is dropped, all that remains is the event at the end of its work.
pub(crate) struct Queue {
    gpu: Gpu,
    owner: Owner,
    /// The only thread on which the handle means this stream, because `CU_STREAM_PER_THREAD` is
    /// another stream on each thread.
    thread: Option<ThreadId>,
    state: RwLock<State>,
}

/// Who destroys the driver's stream.
pub(crate) enum Owner {
    /// The library, after the last `Stream` is dropped.
    Library,
    /// The code that made it, which must not destroy it too early.
    Caller,
    /// cudarc, which does not destroy it before this is dropped.
    #[cfg(feature = "cudarc")]
    Cudarc(Arc<CudaStream>),
}

enum State {
    /// Work can be queued.
    Open(sys::CUstream),
    /// The last of its work was queued; the library does not touch the driver's stream any more.
    Ended(Arc<Event>),
}

// SAFETY: the handle may be used from any thread; the driver locks it. The owner and the event are
// `Send` and `Sync` themselves.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A stream of `gpu`. If the library owns it, it is destroyed when it ends.
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
    /// call on cudarc's stream into a graph, because cudarc launches graphs in safe code, where
    /// nothing prevents freeing the memory that a replay uses.
    pub(crate) fn check_call(&self) -> Result<()> {
        self.check_thread()?;
        #[cfg(feature = "cudarc")]
        if matches!(self.owner, Owner::Cudarc(_)) && self.captures()? {
            return Err(Error::Capture);
        }
        Ok(())
    }

    /// cudarc's stream, if this is one.
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

    /// While the guard lives, the driver's stream is not destroyed.
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

    /// The event at the end of all work queued so far.
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

    /// Makes work that is queued from now on wait for `event`. The CPU does not wait.
    pub(crate) fn wait_for_event(&self, event: &Event) -> Result<()> {
        self.check_thread()?;
        match &*self.state() {
            // SAFETY: the stream is there.
            State::Open(handle) => unsafe { event.hold_back(&self.gpu, *handle) },
            State::Ended(_) => Ok(()),
        }
    }

    /// Sets `bytes` bytes at `start` to zero after all work queued so far.
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

    /// Whether it has ended and all of its work is done.
    pub(crate) fn is_finished(&self) -> bool {
        match &*self.state() {
            State::Open(_) => false,
            State::Ended(event) => event.is_done(),
        }
    }

    /// Whether a graph captures the calls that are queued. Also true if the driver does not say.
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

    /// Ends the stream after its last `Stream` is dropped. Captured calls have no end to wait for;
    /// in that case the driver's stream is not destroyed.
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

    /// Whether both are the same driver stream.
    pub(crate) fn is(&self, other: &Queue) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        // The handle of an ended stream may now belong to another stream.
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
        // Try it even if the context cannot be made current: the driver may still destroy the
        // stream.
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
