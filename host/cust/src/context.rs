//! The primary context of a device: what a process has there, shared by all libraries in it.

use crate::device::Device;
use crate::error::{CudaResult, ToResult};
use crate::sys;

/// A device's primary context, which exists as long as it is retained.
#[derive(Debug)]
pub struct Context {
    inner: sys::CUcontext,
    device: sys::CUdevice,
}

// SAFETY: any thread may use a context; the driver locks it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of `device`, and makes it current on this thread.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::error::CudaError::OutOfMemory) and whatever else the driver returns.
    pub fn new(device: Device) -> CudaResult<Self> {
        let mut inner = std::ptr::null_mut();
        // SAFETY: writes the context to the pointer it is given.
        unsafe { sys::cuDevicePrimaryCtxRetain(&mut inner, device.as_raw()) }.to_result()?;
        let context = Context { inner, device: device.as_raw() };
        CurrentContext::set_current(&context)?;
        Ok(context)
    }

    /// The driver's handle of it.
    pub fn as_raw(&self) -> sys::CUcontext {
        self.inner
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `new` has kept it, once.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// The context that calls on this thread work in.
#[derive(Debug)]
pub struct CurrentContext;

impl CurrentContext {
    /// Makes `context` current on this thread.
    ///
    /// # Errors
    /// Whatever the driver returns.
    pub fn set_current(context: &Context) -> CudaResult<()> {
        // SAFETY: the context exists as long as `context`. If that is dropped while it is current,
        // later calls return errors.
        unsafe { sys::cuCtxSetCurrent(context.inner) }.to_result()
    }
}
