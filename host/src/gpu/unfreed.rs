//! Memory that could not be freed when its owner was dropped.

use super::Gpu;
use cust::sys::{self, CUresult};
use std::sync::{Mutex, PoisonError};

/// Addresses of memory that is freed with the device: work that may still use it could not be
/// waited for, or the driver would not free it, as while a graph is captured.
#[derive(Default)]
pub(super) struct Unfreed(Mutex<Vec<u64>>);

impl Unfreed {
    /// Waits for all work on the device, and frees the memory. Where the work cannot be waited for,
    /// the context is lost, and the driver frees the memory with it. The device's context is
    /// current.
    pub(super) fn free(&mut self) {
        let addresses = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it takes no pointers.
        if addresses.is_empty() || unsafe { sys::cuCtxSynchronize() } != CUresult::CUDA_SUCCESS {
            return;
        }
        for address in addresses.drain(..) {
            // SAFETY: a buffer has allocated it and is gone, and all work that used it is done. It
            // was not freed: the context is not lost, so that the driver has refused that for
            // itself, and not told of something that went wrong before.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }
}

impl Gpu {
    /// Has the memory at `address` freed with the device.
    ///
    /// # Safety
    /// It was allocated on this device, and is used by no work but what is queued already.
    pub(crate) unsafe fn free_with_device(&self, address: u64) {
        let mut addresses = self.inner.unfreed.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.push(address);
    }
}
