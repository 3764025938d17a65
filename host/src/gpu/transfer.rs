//! Copies between the host and a device, and memory set to zero: what waits until it is done.

use super::Gpu;
use crate::driver::check;
use crate::error::Result;
use cust::sys;
use std::sync::{Mutex, PoisonError};

/// The stream of a device's copies, created by the first one.
#[derive(Default)]
pub(super) struct Transfers(Mutex<Option<Handle>>);

#[derive(Clone, Copy)]
struct Handle(sys::CUstream);

// SAFETY: the handle may be used from any thread; the driver locks it.
unsafe impl Send for Handle {}

impl Transfers {
    /// The stream. The device's context is current.
    fn stream(&self) -> Result<sys::CUstream> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Handle(handle)) = *stream {
            return Ok(handle);
        }
        let mut handle = std::ptr::null_mut();
        let non_blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes the handle to the pointer it is given.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, non_blocking) })?;
        *stream = Some(Handle(handle));
        Ok(handle)
    }

    /// Destroys the stream. The device's context is current, and no copy is under way.
    pub(super) fn end(&mut self) {
        let stream = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Handle(handle)) = stream.take() {
            // SAFETY: created by `stream`, and not destroyed yet.
            let _ = unsafe { sys::cuStreamDestroy_v2(handle) };
        }
    }
}

impl Gpu {
    /// Copies from the device address `from` to `data`.
    ///
    /// # Safety
    /// 1. `from` is the address of that many elements, and every value of their bytes is a valid
    ///    `T`.
    /// 2. Nothing writes them any more.
    pub(crate) unsafe fn copy_to_host<T>(&self, from: u64, data: &mut [T]) -> Result<()> {
        self.transfer("cuMemcpyDtoHAsync", |stream| {
            let to = data.as_mut_ptr().cast();
            // SAFETY: the caller's conditions, and the copy is done before this returns.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, size_of_val(data), stream) }
        })
    }

    /// Copies `data` to the device address `to`.
    ///
    /// # Safety
    /// 1. `to` is the address of that many elements.
    /// 2. Nothing uses them any more.
    pub(crate) unsafe fn copy_to_device<T>(&self, to: u64, data: &[T]) -> Result<()> {
        self.transfer("cuMemcpyHtoDAsync", |stream| {
            let from = data.as_ptr().cast();
            // SAFETY: the caller's conditions, and the copy is done before this returns.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, size_of_val(data), stream) }
        })
    }

    /// Sets `bytes` bytes at `start` on the device to zero.
    ///
    /// # Safety
    /// 1. They are there.
    /// 2. Nothing uses them any more.
    pub(crate) unsafe fn set_to_zero(&self, start: u64, bytes: usize) -> Result<()> {
        self.transfer("cuMemsetD8Async", |stream| {
            // SAFETY: the caller's conditions.
            unsafe { sys::cuMemsetD8Async(start, 0, bytes, stream) }
        })
    }

    /// Queues a transfer by the driver's function `call`, and waits until it is done.
    fn transfer(
        &self,
        call: &'static str,
        queue: impl FnOnce(sys::CUstream) -> sys::CUresult,
    ) -> Result<()> {
        let _current = self.bind()?;
        let stream = self.inner.transfers.stream()?;
        check(call, queue(stream))?;
        // SAFETY: the stream exists as long as the device is in use.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })
    }
}
