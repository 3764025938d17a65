//! A device's primary context, and the context that is current on a thread.

use crate::driver::check;
use crate::error::Result;
use cust::device::Device;
use cust::sys;

/// A device's primary context, which the driver does not destroy while this exists. `cust` has such
/// a type too, but its errors do not say which call has failed.
pub(super) struct Context {
    handle: sys::CUcontext,
    device: sys::CUdevice,
}

// SAFETY: any thread may use a context; the driver locks it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn retain(device: Device) -> Result<Self> {
        let (mut handle, device) = (std::ptr::null_mut(), device.as_raw());
        // SAFETY: writes the context to the pointer it is given.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) };
        check("cuDevicePrimaryCtxRetain", result)?;
        Ok(Context { handle, device })
    }

    /// The driver's handle.
    #[cfg(feature = "cudarc")]
    pub(super) fn as_raw(&self) -> sys::CUcontext {
        self.handle
    }

    /// Makes it current on this thread, until what this returns is dropped.
    pub(super) fn bind(&self) -> Result<Restore> {
        let mut restore = Restore::current()?;
        if restore.context == self.handle {
            restore.context = std::ptr::null_mut();
        } else {
            // SAFETY: the context is there as long as `self`.
            check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.handle) })?;
        }
        Ok(restore)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `retain` has kept it, once.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Restores a thread's own context when it is dropped. If the thread had none, the library's
/// context stays current.
pub(crate) struct Restore {
    pub(super) context: sys::CUcontext,
}

impl Restore {
    pub(super) fn current() -> Result<Self> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes the context to the pointer it is given.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        Ok(Restore { context })
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: it was current on this thread.
            let _ = unsafe { sys::cuCtxSetCurrent(self.context) };
        }
    }
}
