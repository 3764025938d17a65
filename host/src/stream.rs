//! Queues of work, and the scratch memory of a launch.

use crate::driver::check;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::tensor::Buffer;
use crate::view::{Memory, Shape};
use cust::sys;
use kernels_gpu::abi::WORKSPACE_BYTES;
use std::fmt;
use std::sync::{Arc, Weak};

/// A queue of work on a GPU. Work on one stream runs in the order of the calls; work on different
/// streams may run at the same time.
///
/// A clone is the same stream. `Send` and `Sync`: any thread may queue work on it.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

pub(crate) struct StreamInner {
    gpu: Gpu,
    handle: sys::CUstream,
    owned: bool,
    /// Scratch for the calls that are given none: work on one stream never runs at the same time.
    workspace: Option<Workspace>,
}

// SAFETY: the handle may be used from any thread; the driver locks it.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

impl Stream {
    /// A new stream, which does not wait for the device's default stream.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Self::create(gpu, Some(Workspace::new(gpu)?))
    }

    /// A stream for copies alone.
    pub(crate) fn for_transfers(gpu: &Gpu) -> Result<Self> {
        Self::create(gpu, None)
    }

    fn create(gpu: &Gpu, workspace: Option<Workspace>) -> Result<Self> {
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        let non_blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes the handle to the pointer it is given.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, non_blocking) })?;
        Ok(Self::of(Arc::new(StreamInner { gpu: gpu.clone(), handle, owned: true, workspace })))
    }

    pub(crate) fn of(inner: Arc<StreamInner>) -> Self {
        Stream { inner }
    }

    pub(crate) fn downgrade(&self) -> Weak<StreamInner> {
        Arc::downgrade(&self.inner)
    }

    /// Somebody else's stream; null is the device's default stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) where memory is short.
    ///
    /// # Safety
    /// 1. `handle` is a `CUstream` of `gpu`'s primary context, or null.
    /// 2. It stays valid until the `Stream`, its clones, and every [`Tensor`](crate::Tensor) and
    ///    [`Workspace`] that was used on it are dropped.
    pub unsafe fn from_raw(gpu: &Gpu, handle: *mut std::ffi::c_void) -> Result<Self> {
        let workspace = Some(Workspace::new(gpu)?);
        let inner =
            StreamInner { gpu: gpu.clone(), handle: handle.cast(), owned: false, workspace };
        Ok(Self::of(Arc::new(inner)))
    }

    /// Waits for all work queued so far.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) where some of it failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.gpu().bind()?;
        // SAFETY: the handle is valid while `self` is.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle()) })
    }

    /// Makes whatever is queued next wait for all work queued on `other` so far. The CPU does not wait.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        let event = Event::record(other)?;
        let _current = self.gpu().bind()?;
        // SAFETY: both handles are valid; an event may be destroyed while it is waited for.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.handle(), event.handle, 0)
        })
    }

    /// The device it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// The stream's `CUstream`.
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        self.inner.handle.cast()
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.inner.handle
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        self.inner.workspace.as_ref().expect("only streams for copies have none")
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.inner.handle == other.inner.handle
            && self.inner.gpu.ordinal() == other.inner.gpu.ordinal()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} on {:?})", self.inner.handle, self.inner.gpu)
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: created by `new` and not destroyed yet; work that is still queued goes on.
            unsafe {
                // The workspace is freed after this.
                let _ = sys::cuStreamSynchronize(self.handle);
                let _ = sys::cuStreamDestroy_v2(self.handle);
            }
        }
    }
}

/// A point in a stream's work.
pub(crate) struct Event {
    gpu: Gpu,
    handle: sys::CUevent,
}

impl Event {
    /// The point behind all work queued on `stream` so far.
    pub(crate) fn record(stream: &Stream) -> Result<Self> {
        let gpu = stream.gpu().clone();
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        let no_timing = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes the handle to the pointer it is given.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, no_timing) })?;
        let event = Event { gpu: gpu.clone(), handle };
        // SAFETY: both handles are valid.
        check("cuEventRecord", unsafe { sys::cuEventRecord(handle, stream.handle()) })?;
        Ok(event)
    }

    /// Waits for it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _current = self.gpu.bind()?;
        // SAFETY: the handle is valid while `self` is.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: created by `record`; the driver keeps what still waits for it.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}

/// Scratch memory of the `_into` methods, of a fixed size, 841 KiB. Two calls that may run at the same time
/// need one each; what is queued on different streams through one workspace runs one after the other.
///
/// `Send` and `Sync`, though a call borrows it mutably.
pub struct Workspace {
    buffer: Buffer,
}

impl Workspace {
    /// Its size in bytes.
    pub const BYTES: usize = WORKSPACE_BYTES;

    /// A workspace on `gpu`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) where memory is short.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let mut buffer = Buffer::new(gpu, Self::BYTES)?;
        // The count of finished blocks begins at zero, and each launch leaves it so.
        buffer.clear(Self::BYTES)?;
        Ok(Workspace { buffer })
    }

    pub(crate) fn memory(&self) -> Memory<'_> {
        self.buffer.memory::<[u8; Self::BYTES]>(Shape::SCALAR)
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workspace({} bytes on {:?})", Self::BYTES, self.buffer.gpu())
    }
}
