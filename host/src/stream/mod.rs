//! Queues of work, and the scratch memory of a launch.

mod workspace;

pub use workspace::Workspace;

use crate::driver::check;
use crate::element::Element;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::queue::{LEGACY, Owner, Queue};
use cust::sys;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue of work on a GPU. Work on one stream runs in the order of the calls; work on different
/// streams may run at the same time.
///
/// A clone is the same stream. It is `Send` and `Sync`: any thread may queue work on it.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

struct StreamInner {
    queue: Arc<Queue>,
    /// The queue's handle; the queue is open as long as this exists.
    handle: sys::CUstream,
    /// Scratch memory for calls that get none. They can share it because work on one stream never
    /// runs at the same time.
    workspace: Workspace,
    /// Locked while a call queues its launches, because one launch may leave results in the
    /// workspace for the next one of the same call.
    calls: Mutex<()>,
}

// SAFETY: the handle may be used from any thread; the driver locks it.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

impl Drop for StreamInner {
    fn drop(&mut self) {
        self.queue.end();
    }
}

impl Gpu {
    /// A new stream on this device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Error::Driver`](crate::Error::Driver).
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }
}

impl Stream {
    /// A new stream, which does not wait for the device's default stream.
    fn new(gpu: &Gpu) -> Result<Self> {
        let workspace = Workspace::new(gpu)?;
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        let non_blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes the handle to the pointer it is given.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, non_blocking) })?;
        Ok(Self::with(gpu, handle, Owner::Library, workspace))
    }

    /// The driver's stream `handle`, which is one of `gpu`.
    pub(crate) fn with(
        gpu: &Gpu,
        handle: sys::CUstream,
        owner: Owner,
        workspace: Workspace,
    ) -> Self {
        // Null and `LEGACY` name the same stream, so the library must know that work on them is in
        // order.
        let is_legacy = handle as usize == LEGACY;
        let handle = if is_legacy { std::ptr::null_mut() } else { handle };
        let queue = Arc::new(Queue::new(gpu, handle, owner));
        Stream {
            inner: Arc::new(StreamInner { queue, handle, workspace, calls: Mutex::default() }),
        }
    }

    /// A stream that the library does not own; null and `CU_STREAM_LEGACY` (1) are the device's
    /// default stream.
    ///
    /// `CU_STREAM_PER_THREAD` (2) is the calling thread's default stream. On other threads that
    /// handle is another stream, so queueing work on this one there, or waiting for it, returns
    /// [`Error::OtherThread`](crate::Error::OtherThread). A loss that a call has returned can be
    /// read on any thread. Drop the library's other memory that was used on the stream on its
    /// thread. Another thread cannot wait for the work that uses it, so there it is not freed until
    /// the last [`Gpu`] of the device is dropped.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    ///
    /// # Safety
    /// 1. `handle` is a `CUstream` of `gpu`'s primary context, null, `CU_STREAM_LEGACY` or
    ///    `CU_STREAM_PER_THREAD`.
    /// 2. It stays valid until the `Stream` and its clones are dropped. If a graph captures it when
    ///    the last of them is dropped, it stays valid until the memory that was used on it is
    ///    dropped or has forgotten it: see [`Tensor::synchronize`](crate::Tensor::synchronize).
    /// 3. If it is captured into a graph: the library sees the capture, but not the replays. Until
    ///    the last replay is done, nothing that a captured call uses is dropped. That includes the
    ///    `Stream` and its clones if the call was given no workspace, and the last [`Gpu`] of the
    ///    device, because dropping it unloads the kernels. Other work uses the same memory only in
    ///    the order of the stream that the graph is launched on.
    pub unsafe fn from_raw(gpu: &Gpu, handle: *mut std::ffi::c_void) -> Result<Self> {
        Ok(Self::with(gpu, handle.cast(), Owner::Caller, Workspace::new(gpu)?))
    }

    /// Waits for all work queued so far.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if some of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.queue.synchronize()
    }

    /// Makes work that is queued from now on wait for all work queued on `other` so far. The CPU
    /// does not wait.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        self.queue().wait_for_event(&*other.queue().end_of_work()?)
    }

    /// Copies from the address `from` to `data` after all work queued so far. Returns when the copy
    /// is done.
    ///
    /// # Safety
    /// 1. `from` is the address of as many elements on the stream's device.
    /// 2. Nothing writes them but work that is ordered before on this stream.
    pub(crate) unsafe fn copy_to_host<T: Element>(&self, from: u64, data: &mut [T]) -> Result<()> {
        self.queue().check_thread()?;
        let _current = self.gpu().bind()?;
        // SAFETY: both sides have these bytes, by the first condition, and the copy is done before
        // this returns.
        check("cuMemcpyDtoHAsync", unsafe {
            let to = data.as_mut_ptr().cast();
            sys::cuMemcpyDtoHAsync_v2(to, from, size_of_val(data), self.handle())
        })?;
        self.synchronize()
    }

    /// The device it is on.
    pub fn gpu(&self) -> &Gpu {
        self.inner.queue.gpu()
    }

    /// The stream's `CUstream`, to order other work with the library's. To capture it into a graph,
    /// the third condition of [`from_raw`](Self::from_raw) must hold.
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        self.handle().cast()
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.inner.handle
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.inner.queue
    }

    /// Stops calls of other threads from using the stream's workspace until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.inner.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        &self.inner.workspace
    }
}

/// Whether both are the same driver stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.inner.queue.is(&other.inner.queue)
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.gpu(), self.as_raw()).hash(state);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} on {:?})", self.handle(), self.gpu())
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use crate::gpu::tests::gpu;
    use crate::queue::{LEGACY, PER_THREAD};
    use crate::{
        CrossEntropy, Error, Gpu, Loss, Mse, Stream, TargetFault, Tensor, View, ViewMut, Workspace,
    };
    use std::sync::Arc;

    /// A stream with one of the driver's special handles.
    fn numbered(gpu: &Gpu, handle: usize) -> Stream {
        // SAFETY: the default stream, or the thread's.
        unsafe { Stream::from_raw(gpu, handle as *mut std::ffi::c_void) }.unwrap()
    }

    #[test]
    fn the_default_stream_has_two_names() {
        let gpu = gpu();
        let (null, legacy, per_thread) =
            (numbered(&gpu, 0), numbered(&gpu, LEGACY), numbered(&gpu, PER_THREAD));
        assert_eq!(null, legacy);
        assert_ne!(null, per_thread);
        assert_eq!(per_thread, numbered(&gpu, PER_THREAD));
    }

    #[test]
    fn losses_on_streams_by_number() {
        let gpu = gpu();
        let x = Tensor::from_slice(&gpu, [2, 3], &[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let zeros = Tensor::<f32>::zeros(&gpu, [2, 3]).unwrap();
        for handle in [0, LEGACY, PER_THREAD] {
            let stream = numbered(&gpu, handle);
            let (loss, gradient) = Mse::sum().forward_backward(&x, &zeros, &stream).unwrap();
            assert_eq!(loss.item().unwrap(), 55.0, "stream {handle}");
            assert_eq!(gradient.to_vec().unwrap(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        }
    }

    /// On another thread, the handle is another stream.
    #[test]
    fn the_threads_stream_is_refused_on_other_threads() {
        let gpu = gpu();
        let x = Tensor::<f32>::zeros(&gpu, [40]).unwrap();
        let own = numbered(&gpu, PER_THREAD);
        let loss = Mse::sum().forward(&x, &x, &own).unwrap();
        let on_another_thread = || {
            let theirs = numbered(&gpu, PER_THREAD);
            assert_ne!(theirs, own);
            Mse::sum().forward(&x, &x, &theirs).unwrap().item().unwrap();
            assert_eq!(loss.item().unwrap(), 0.0, "the end of its work was noted");
            for refused in [
                Mse::sum().forward(&x, &x, &own).map(drop),
                own.synchronize(),
                own.wait_for(&theirs),
                theirs.wait_for(&own),
                x.view().to_vec(&own).map(drop),
            ] {
                assert!(matches!(refused, Err(Error::OtherThread)), "{refused:?}");
            }
            // The reads of `x` must end while this thread can still wait for its stream.
            theirs.synchronize().unwrap();
        };
        std::thread::scope(|scope| scope.spawn(on_another_thread).join().unwrap());
        own.synchronize().unwrap();
    }

    /// Values, followed by the kernel's report on the targets, in the caller's memory.
    #[test]
    fn a_target_that_is_no_class_is_told_of_in_memory_of_the_callers() {
        let (gpu, words) = (gpu(), size_of::<TargetFault>() / 8);
        let stream = gpu.stream().unwrap();
        let x = Tensor::<f32>::zeros(&gpu, [3, 2]).unwrap();
        let fault_of = |classes: [i64; 3]| {
            let classes = Tensor::from_slice(&gpu, [3], &classes).unwrap();
            let old = vec![7_i64; 1 + words];
            let memory = Tensor::from_slice(&gpu, [1 + words], &old).unwrap();
            let mut workspace = Workspace::new(&gpu).unwrap();
            // SAFETY: the first word is for the loss, the following words are for the fault.
            let loss = unsafe {
                ViewMut::<f32>::from_raw(&gpu, memory.as_raw(), [])
                    .and_then(|loss| loss.with_target_fault(memory.as_raw() + 8))
            };
            let (loss, mean) = (loss.unwrap(), CrossEntropy::mean());
            mean.forward_into(&x, &classes, loss, &mut workspace, &stream).unwrap();
            stream.synchronize().unwrap();
            memory.to_vec().unwrap().split_off(1)
        };
        assert_eq!(fault_of([0, 5, -3]), [1, 5, 2]);
        assert_eq!(fault_of([0, 1, -100])[2], 0, "all are classes, or ignored");
        // SAFETY: no call gets the view.
        let refused = unsafe {
            ViewMut::<f32>::from_raw(&gpu, x.as_raw(), [])
                .and_then(|loss| loss.with_target_fault(x.as_raw() + 4))
        };
        assert!(matches!(refused, Err(Error::Misaligned { argument: "fault", .. })));
    }

    /// The scratch memory goes too, though the tensors that it worked on still exist.
    #[test]
    fn a_stream_that_is_dropped_is_gone() {
        let gpu = gpu();
        let x = Tensor::<f32>::zeros(&gpu, [40]).unwrap();
        let stream = gpu.stream().unwrap();
        let (_loss, _gradient) = Mse::mean().forward_backward(&x, &x, &stream).unwrap();
        let inner = Arc::downgrade(&stream.inner);
        drop(stream);
        assert!(inner.upgrade().is_none());
    }

    /// A loss can be read if work that was queued after it has failed, but not if its own work has.
    #[test]
    fn a_loss_waits_for_its_own_work_alone() {
        let gpu = gpu();
        if !gpu.is_emulated() {
            // A fault would end all work on the device.
            return;
        }
        let (rows, cols) = (64, 1000);
        let x = Tensor::<f32>::zeros(&gpu, [rows, cols]).unwrap();
        let short = Tensor::<f32>::zeros(&gpu, [rows - 1, cols]).unwrap();
        let classes = Tensor::<i64>::zeros(&gpu, [rows]).unwrap();
        // SAFETY: the emulator refuses what is behind the tensor.
        let behind = unsafe { View::<f32>::from_raw(&gpu, short.as_raw(), x.shape()) }.unwrap();
        let expected = (cols as f32).ln();
        let stream = gpu.stream().unwrap();
        let mean = CrossEntropy::mean();
        let returned = mean.forward(&x, &classes, &stream).unwrap();
        let (both, _gradient) = mean.forward_backward(&x, &classes, &stream).unwrap();
        let elements = Mse::sum().forward(&x, &x, &stream).unwrap();
        let mut recorded = Loss::<f32>::zeros(&gpu, []).unwrap();
        let mut workspace = Workspace::new(&gpu).unwrap();
        mean.forward_into(&x, &classes, &mut recorded, &mut workspace, &stream).unwrap();
        recorded.record().unwrap();
        let failed = mean.forward(behind, &classes, &stream).unwrap();
        for loss in [returned, both, recorded] {
            assert!((loss.item().unwrap() - expected).abs() < 1e-5);
        }
        assert_eq!(elements.item().unwrap(), 0.0);
        failed.item().unwrap_err();
    }

    /// What was recorded for a loss does not apply to what is written next.
    #[test]
    fn a_loss_that_is_written_again_is_waited_for_again() {
        let gpu = gpu();
        if !gpu.is_emulated() {
            return;
        }
        let x = Tensor::<f32>::zeros(&gpu, [64, 1000]).unwrap();
        let short = Tensor::<f32>::zeros(&gpu, [63, 1000]).unwrap();
        // SAFETY: the emulator refuses what is behind the tensor.
        let behind = unsafe { View::<f32>::from_raw(&gpu, short.as_raw(), x.shape()) }.unwrap();
        let (stream, mut workspace) = (gpu.stream().unwrap(), Workspace::new(&gpu).unwrap());
        let mut loss = Mse::sum().forward(&x, &x, &stream).unwrap();
        Mse::sum().forward_into(behind, &x, &mut loss, &mut workspace, &stream).unwrap();
        loss.item().unwrap_err();
    }

    /// The first block of the call notes that its row's target is not a class, and the last block
    /// reads past the memory. The note is still there when the next call looks for the lowest such
    /// row.
    #[test]
    fn a_workspace_that_a_fault_left_dirty_is_cleared() {
        let (gpu, rows, cols) = (gpu(), 64, 1000);
        if !gpu.is_emulated() {
            // A fault would end all work on the device.
            return;
        }
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
        let behind = x.view().shape();
        // SAFETY: the emulator refuses what is behind the tensor.
        let behind = unsafe { View::<f32>::from_raw(&gpu, short.as_raw(), behind) }.unwrap();
        let mut fault = |workspace: &mut Workspace| {
            let stream = gpu.stream().unwrap();
            mean.forward_into(behind, &first, &mut faulty, workspace, &stream).unwrap();
            // A thread that waits for the fault gets the error. It need not wait for the stream
            // again, which stays in error.
            workspace.synchronize().unwrap_err();
            workspace.synchronize().unwrap();
            stream.synchronize().unwrap_err();
        };

        let stream = gpu.stream().unwrap();
        let row = |workspace: &mut Workspace| {
            let mut loss = Loss::zeros(&gpu, []).unwrap();
            mean.forward_into(&x, &fifth, &mut loss, workspace, &stream).unwrap();
            match loss.item() {
                Err(Error::TargetOutOfRange { row, .. }) => row,
                other => panic!("{other:?}"),
            }
        };
        // If the emulator draws the order of blocks, the last block may run first and end the
        // launch.
        let is_dirty = (0..100).any(|_| {
            fault(&mut workspace);
            row(&mut workspace) == 0
        });
        assert!(is_dirty, "no fault has left anything");
        workspace.clear().unwrap();
        assert_eq!(row(&mut workspace), 5);
        // Clearing works even if the fault was not reported yet.
        let failed = gpu.stream().unwrap();
        mean.forward_into(behind, &first, &mut faulty, &mut workspace, &failed).unwrap();
        workspace.clear().unwrap();
        assert_eq!(row(&mut workspace), 5);
    }

    /// Losses of rows of probabilities are not summed over the grid. If a block left a sum in the
    /// workspace anyway, the next launch would use it as its own.
    #[test]
    fn losses_that_nobody_sums_leave_the_workspace_as_it_was() {
        let gpu = gpu();
        let (stream, mut workspace) = (gpu.stream().unwrap(), Workspace::new(&gpu).unwrap());
        for (rows, cols) in [(3, 50_000), (2, 3), (300, 40)] {
            let x = Tensor::from_slice(&gpu, [rows, cols], &vec![0.5_f32; rows * cols]).unwrap();
            let mut losses = Tensor::<f32>::zeros(&gpu, [rows]).unwrap();
            let loss = CrossEntropy::none();
            loss.forward_into(&x, &x, &mut losses, &mut workspace, &stream).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(first_word_left(&workspace), None, "{rows}x{cols}");
        }
    }

    /// The thread that takes a sum from the workspace clears its word, so that the next launch
    /// finds nothing published. This also holds for the words of the normaliser.
    #[test]
    fn losses_that_are_summed_leave_the_workspace_as_it_was() {
        let gpu = gpu();
        let (stream, mut workspace) = (gpu.stream().unwrap(), Workspace::new(&gpu).unwrap());
        for (rows, cols) in [(3, 50_000), (2, 3), (300, 40), (100, 700)] {
            let x = Tensor::from_slice(&gpu, [rows, cols], &vec![0.5_f32; rows * cols]).unwrap();
            let target = Tensor::from_slice(&gpu, [rows], &vec![1_i64; rows]).unwrap();
            let mut loss = Loss::zeros(&gpu, []).unwrap();
            let mut gradient = Tensor::<f32>::zeros(&gpu, [rows, cols]).unwrap();
            for smoothing in [0.0, 0.1] {
                let mean = CrossEntropy::mean().label_smoothing(smoothing);
                mean.forward_into(&x, &target, &mut loss, &mut workspace, &stream).unwrap();
                loss.item().unwrap();
                assert_eq!(first_word_left(&workspace), None, "{rows}x{cols}, forward");
                let (loss, grads, workspace) = (&mut loss, &mut gradient, &mut workspace);
                mean.forward_backward_into(&x, &target, &mut *loss, grads, workspace, &stream)
                    .unwrap();
                loss.item().unwrap();
                assert_eq!(first_word_left(workspace), None, "{rows}x{cols}, both");
            }
            Mse::sum().forward_into(&x, &gradient, &mut loss, &mut workspace, &stream).unwrap();
            loss.item().unwrap();
            assert_eq!(first_word_left(&workspace), None, "{rows}x{cols}, squares");
        }
    }

    /// The index of the first word that a launch should have cleared. The totals that one launch
    /// leaves for the next are not among them, nor are the saved values of rows.
    fn first_word_left(workspace: &Workspace) -> Option<usize> {
        use kernels_gpu::abi::workspace::{PARTIALS, SAVED, TOTALS};
        let mut words = vec![0_i64; Workspace::BYTES / 8];
        workspace.buffer.read(0, &mut words).unwrap();
        words[(TOTALS / 8) as usize..(PARTIALS / 8) as usize].fill(0);
        words[..(SAVED / 8) as usize].iter().position(|&word| word != 0)
    }
}
