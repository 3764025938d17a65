//! Queues of work.

use crate::error::{CudaResult, ToResult};
use crate::event::Event;
use crate::flags::flags;
use crate::function::{BlockSize, Function, GridSize};
use crate::sys;
use std::ffi::c_void;

flags! {
    /// How a stream is to work.
    StreamFlags {
        /// It waits for the default stream, and the default stream for it.
        DEFAULT = 0;
        /// It does not wait for the default stream. (`cust` 0.3.2 has the flag and ignores it.)
        NON_BLOCKING = 1;
    }
}

flags! {
    /// How to wait for an event: there is one way.
    StreamWaitEventFlags {
        /// The one way.
        DEFAULT = 0;
    }
}

/// A queue of work of the current context; destroyed when it is dropped, while its work goes on.
#[derive(Debug)]
pub struct Stream {
    inner: sys::CUstream,
}

// SAFETY: any thread may use a stream; the driver locks it.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream. The lower the number of its priority, the earlier its work is begun.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::error::CudaError::OutOfMemory),
    /// [`InvalidContext`](crate::error::CudaError::InvalidContext) where no context is current.
    pub fn new(flags: StreamFlags, priority: Option<i32>) -> CudaResult<Self> {
        let mut inner = std::ptr::null_mut();
        let priority = priority.unwrap_or(0);
        // SAFETY: writes the stream to the pointer it is given.
        unsafe { sys::cuStreamCreateWithPriority(&mut inner, flags.bits(), priority) }
            .to_result()?;
        Ok(Stream { inner })
    }

    /// Waits for all work queued so far.
    ///
    /// # Errors
    /// Whatever that work has failed with.
    pub fn synchronize(&self) -> CudaResult<()> {
        // SAFETY: the stream is valid while `self` is.
        unsafe { sys::cuStreamSynchronize(self.inner) }.to_result()
    }

    /// Makes work that is queued from now on wait for the event. The CPU does not wait.
    ///
    /// # Errors
    /// Whatever the driver returns.
    pub fn wait_event(&self, event: Event, flags: StreamWaitEventFlags) -> CudaResult<()> {
        // SAFETY: both are valid; an event may be destroyed while it is waited for.
        unsafe { sys::cuStreamWaitEvent(self.inner, event.as_inner(), flags.bits()) }.to_result()
    }

    /// Queues a kernel. `args` has the addresses of its arguments.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::error::CudaError::InvalidValue) where the shape does not fit the
    /// kernel; [`NotSupported`](crate::error::CudaError::NotSupported) where the driver is older
    /// than CUDA 11.8.
    ///
    /// # Safety
    /// 1. `args` has as many addresses as the kernel has parameters, each valid for a read of the
    ///    parameter's type.
    /// 2. The arguments meet the conditions of the kernel for a launch of this shape, and nothing
    ///    else uses the memory that they name until the work is done.
    pub unsafe fn launch<G: Into<GridSize>, B: Into<BlockSize>>(
        &self,
        function: &Function<'_>,
        grid_size: G,
        block_size: B,
        shared_mem_bytes: u32,
        args: &[*mut c_void],
    ) -> CudaResult<()> {
        let (grid, block) = (grid_size.into(), block_size.into());
        let config = sys::CUlaunchConfig {
            gridDimX: grid.x,
            gridDimY: grid.y,
            gridDimZ: grid.z,
            blockDimX: block.x,
            blockDimY: block.y,
            blockDimZ: block.z,
            sharedMemBytes: shared_mem_bytes,
            hStream: self.inner,
            attrs: std::ptr::null(),
            numAttrs: 0,
        };
        let (params, none) = (args.as_ptr().cast_mut(), std::ptr::null_mut());
        // SAFETY: the stream and the kernel are valid; the driver reads the arguments before it
        // returns and writes nothing to `args`; the rest is the caller's condition.
        unsafe { sys::cuLaunchKernelEx(&config, function.to_raw(), params, none) }.to_result()
    }

    /// The driver's handle of it.
    pub fn as_inner(&self) -> sys::CUstream {
        self.inner
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and not destroyed yet.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.inner) };
    }
}
