//! Memory that could not be freed when its owner was dropped.

use super::Gpu;
use cust::sys::{self, CUresult};
use std::sync::{Mutex, PoisonError};

/// Addresses of memory that is freed when the device is dropped, because the library could not wait
/// for work that may still use it, or the driver refused to free it, as it does during a graph
/// capture.
#[derive(Default)]
pub(super) struct Unfreed(Mutex<Vec<u64>>);

impl Unfreed {
    /// Waits for all work on the device, and frees the memory. If waiting fails, the context is
    /// lost, and the driver frees the memory with it. The device's context is current.
    pub(super) fn free(&mut self) {
        let addresses = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it takes no pointers.
        if addresses.is_empty() || unsafe { sys::cuCtxSynchronize() } != CUresult::CUDA_SUCCESS {
            return;
        }
        for address in addresses.drain(..) {
            // SAFETY: a buffer that no longer exists has allocated it, and all work that used it is
            // done. It was not freed: the context is not lost, so an earlier error of `cuMemFree`
            // means that the driver refused that call, not that some earlier work failed.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }
}

impl Gpu {
    /// Frees the memory at `address` when the device is dropped.
    ///
    /// # Safety
    /// It was allocated on this device, and only work that is already queued uses it.
    pub(crate) unsafe fn free_with_device(&self, address: u64) {
        let mut addresses = self.inner.unfreed.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.push(address);
    }
}
