//! Queues of work, and the scratch memory of a launch.

use crate::driver::check;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::tensor::Buffer;
use crate::view::{Memory, Shape};
use cust::sys;
use kernels_gpu::abi::WORKSPACE_BYTES;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A queue of work on a GPU. Work on one stream runs in the order of the calls; work on different
/// streams may run at the same time.
///
/// A clone is the same stream. `Send` and `Sync`: any thread may queue work on it.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

pub(crate) struct StreamInner {
    queue: Arc<Queue>,
    /// Scratch for the calls that are given none: work on one stream never runs at the same time.
    workspace: Option<Workspace>,
    /// Held while a call queues its launches: what one leaves in the workspace for the next is not
    /// to be another call's.
    calls: Mutex<()>,
}

/// The driver's stream. Memory keeps it as long as work on it may use the memory: without the
/// stream's workspace, which is memory too and would keep what keeps it.
pub(crate) struct Queue {
    gpu: Gpu,
    handle: sys::CUstream,
    owned: bool,
}

// SAFETY: the handle may be used from any thread; the driver locks it.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// Waits for all work queued so far.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _current = self.gpu.bind()?;
        // SAFETY: the handle is valid while `self` is.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle) })
    }

    /// Makes whatever is queued next wait for all work queued on `other` so far.
    pub(crate) fn wait_for(&self, other: &Queue) -> Result<()> {
        let event = Event::record(other)?;
        let _current = self.gpu.bind()?;
        // SAFETY: both handles are valid; an event may be destroyed while it is waited for.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) })
    }

    /// Copies what is at `from` to `data`, behind all work queued so far. Returns when it is done.
    ///
    /// # Safety
    /// 1. `from` is the address of as many elements on the stream's device, and all that they may
    ///    be is a `T`.
    /// 2. Nothing writes them but work that is ordered before on this stream.
    pub(crate) unsafe fn copy_to_host<T>(&self, from: u64, data: &mut [T]) -> Result<()> {
        let _current = self.gpu.bind()?;
        // SAFETY: both sides have these bytes, by the first condition, and the copy is done before
        // this returns.
        check("cuMemcpyDtoHAsync", unsafe {
            let to = data.as_mut_ptr().cast();
            sys::cuMemcpyDtoHAsync_v2(to, from, size_of_val(data), self.handle)
        })?;
        self.synchronize()
    }
}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle && self.gpu.ordinal() == other.gpu.ordinal()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: created by `Stream::create` and not destroyed yet; work that is still queued
            // goes on.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}

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
        Ok(Self::with(Queue { gpu: gpu.clone(), handle, owned: true }, workspace))
    }

    fn with(queue: Queue, workspace: Option<Workspace>) -> Self {
        let queue = Arc::new(queue);
        Self::of(Arc::new(StreamInner { queue, workspace, calls: Mutex::default() }))
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
    /// 1. `handle` is a `CUstream` of `gpu`'s primary context, or null; not `CU_STREAM_PER_THREAD`,
    ///    which is another stream on each thread.
    /// 2. It stays valid until the `Stream`, its clones, and every [`Tensor`](crate::Tensor) and
    ///    [`Workspace`] that was used on it are dropped.
    /// 3. Where it is captured into a graph: the library sees the capture, not the replays. Until
    ///    the last of them is done, nothing that a captured call uses is dropped (the `Stream` and
    ///    its clones too, where it is given no workspace), and nothing else uses it but in the
    ///    order of the stream that the graph is launched on.
    pub unsafe fn from_raw(gpu: &Gpu, handle: *mut std::ffi::c_void) -> Result<Self> {
        let workspace = Some(Workspace::new(gpu)?);
        Ok(Self::with(Queue { gpu: gpu.clone(), handle: handle.cast(), owned: false }, workspace))
    }

    /// Waits for all work queued so far.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) where some of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.queue.synchronize()
    }

    /// Makes whatever is queued next wait for all work queued on `other` so far. The CPU does not
    /// wait.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        self.inner.queue.wait_for(&other.inner.queue)
    }

    /// The device it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.inner.queue.gpu
    }

    /// The stream's `CUstream`, to order other work with the library's. To capture it into a graph,
    /// mind the third condition of [`from_raw`](Self::from_raw).
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        self.handle().cast()
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.inner.queue.handle
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.inner.queue
    }

    /// Keeps calls of other threads from the stream's workspace until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.inner.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        self.inner.workspace.as_ref().expect("only streams for copies have none")
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.inner.queue == other.inner.queue
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} on {:?})", self.handle(), self.gpu())
    }
}

/// A point in a stream's work.
pub(crate) struct Event {
    gpu: Gpu,
    handle: sys::CUevent,
}

impl Event {
    /// The point behind all work queued on `queue` so far.
    pub(crate) fn record(queue: &Queue) -> Result<Self> {
        let gpu = queue.gpu.clone();
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        let no_timing = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes the handle to the pointer it is given.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, no_timing) })?;
        let event = Event { gpu: gpu.clone(), handle };
        // SAFETY: both handles are valid.
        check("cuEventRecord", unsafe { sys::cuEventRecord(handle, queue.handle) })?;
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

/// Scratch memory of the `_into` methods, of a fixed size, 841 KiB. Two calls that may run at the
/// same time need one each; what is queued on different streams through one workspace runs one
/// after the other.
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
        let mut workspace = Workspace { buffer: Buffer::new(gpu, Self::BYTES)? };
        workspace.clear()?;
        Ok(workspace)
    }

    /// Sets it to what a new one is, behind all work that was queued with it, and waits until that
    /// is done. A call that ended in a fault may have left in it what the next would take for its
    /// own.
    ///
    /// The workspace that a [`Stream`] has for itself cannot be cleared: after a fault, make a new
    /// stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver): on a GPU, every call after a fault until the
    /// process ends.
    pub fn clear(&mut self) -> Result<()> {
        // Blocks take zero for a sum that is not there yet, and set each place back to zero when
        // they have taken it.
        self.buffer.clear(0, Self::BYTES)
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

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use crate::gpu::tests::gpu;
    use crate::{CrossEntropy, Error, Loss, Mse, Tensor, View, Workspace};

    /// Its scratch memory too, though what it has worked on is still there.
    #[test]
    fn a_stream_that_is_dropped_is_gone() {
        let gpu = gpu();
        let x = Tensor::<f32>::zeros(&gpu, [40]).unwrap();
        let stream = gpu.stream().unwrap();
        let (_loss, _gradient) = Mse::mean().forward_backward(&x, &x, &stream).unwrap();
        let inner = stream.downgrade();
        drop(stream);
        assert!(inner.upgrade().is_none());
    }

    /// The first block of the call notes that its row's target is no class, the last reads behind
    /// the memory: what was noted is there still when the next call looks for the lowest such row.
    #[test]
    fn a_workspace_that_a_fault_left_dirty_is_cleared() {
        let (gpu, rows, cols) = (gpu(), 64, 1000);
        let x = Tensor::<f32>::zeros(&gpu, [rows, cols]).unwrap();
        let short = Tensor::<f32>::zeros(&gpu, [rows - 1, cols]).unwrap();
        let no_class = |at: usize| {
            let mut classes = vec![0_i64; rows];
            classes[at] = cols as i64;
            Tensor::from_slice(&gpu, [rows], &classes).unwrap()
        };
        let (first, fifth) = (no_class(0), no_class(5));
        let (mut workspace, mean) = (Workspace::new(&gpu).unwrap(), CrossEntropy::mean());
        let mut faulty = Loss::zeros(&gpu, []).unwrap();
        let stream = gpu.stream().unwrap();
        let behind = x.view().shape();
        // SAFETY: the emulator refuses what is behind the tensor.
        let behind = unsafe { View::<f32>::from_raw(short.as_raw(), behind, gpu.ordinal()) };
        let (behind, loss) = (behind.unwrap(), &mut faulty);
        let result = mean.forward_into(behind, &first, loss, &mut workspace, &stream);
        assert!(result.and_then(|()| stream.synchronize()).is_err());

        let stream = gpu.stream().unwrap();
        let row = |workspace: &mut Workspace| {
            let mut loss = Loss::zeros(&gpu, []).unwrap();
            mean.forward_into(&x, &fifth, &mut loss, workspace, &stream).unwrap();
            match loss.item() {
                Err(Error::TargetOutOfRange { row, .. }) => row,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(row(&mut workspace), 0, "the fault has left nothing");
        workspace.clear().unwrap();
        assert_eq!(row(&mut workspace), 5);
    }

    /// Of losses of rows of probabilities nothing is summed: what blocks that share a row leave for
    /// its last one alone is taken all the same. The next launch would take it for its own.
    #[test]
    fn shared_rows_without_a_sum_leave_a_workspace_as_it_was() {
        let gpu = gpu();
        let (stream, mut workspace) = (gpu.stream().unwrap(), Workspace::new(&gpu).unwrap());
        let (rows, cols) = (3, 50_000);
        let x = Tensor::from_slice(&gpu, [rows, cols], &vec![0.5_f32; rows * cols]).unwrap();
        let mut losses = Tensor::<f32>::zeros(&gpu, [rows]).unwrap();
        CrossEntropy::none().forward_into(&x, &x, &mut losses, &mut workspace, &stream).unwrap();
        stream.synchronize().unwrap();
        let mut words = vec![0_i64; Workspace::BYTES / 8];
        workspace.buffer.read(0, &mut words).unwrap();
        let left = words.iter().position(|&word| word != 0);
        assert_eq!(left, None, "the first word that is not 0");
    }
}
