//! Bytes on a GPU that the library owns.

use super::usage::Usage;
use crate::driver::{check, check_cust};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::stream::Queue;
use crate::view::{Element, Memory, Shape};
use cust::memory::{DevicePointer, cuda_free, cuda_malloc};
use cust::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes on a GPU, and who uses them.
pub(crate) struct Buffer {
    gpu: Gpu,
    address: u64,
    usage: Usage,
}

impl Buffer {
    pub(crate) fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            let _current = gpu.bind()?;
            // SAFETY: whoever makes a buffer of it writes it before it is read; `drop` frees it.
            let memory = check_cust("cuMemAlloc", unsafe { cuda_malloc::<u8>(bytes) })?;
            address = memory.as_raw();
        }
        Ok(Buffer { gpu: gpu.clone(), address, usage: Usage::default() })
    }

    /// The buffer as an argument of a call: elements of `T`.
    pub(crate) fn memory<T>(&self, shape: Shape) -> Memory<'_> {
        Memory::dense::<T>(self.address, shape, self.gpu.ordinal(), Some(&self.usage))
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream that wrote last, whose work is done: a fault of it is reported here.
    pub(crate) fn written(&self) -> Result<Option<Arc<Queue>>> {
        let writer = self.usage.writer();
        if let Some(queue) = &writer {
            queue.synchronize()?;
        }
        Ok(writer)
    }

    /// Copies what is `offset` bytes behind the start to `data`. Waits for the work that writes it.
    pub(crate) fn read<T: Element>(&self, offset: usize, data: &mut [T]) -> Result<()> {
        let writer = self.written()?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: all bit patterns are numbers, and what writes them is done.
        unsafe { self.copy_to_host(offset, data, writer) }
    }

    /// As [`read`](Self::read), of one value of another type.
    ///
    /// # Safety
    /// The buffer has so many bytes, and all that they may be is a `T`.
    pub(crate) unsafe fn read_to<T>(&self, offset: usize, value: &mut T) -> Result<()> {
        let writer = self.written()?;
        // SAFETY: the caller's condition, and what writes it is done.
        unsafe { self.copy_to_host(offset, std::slice::from_mut(value), writer) }
    }

    /// # Safety
    /// The buffer has so many bytes, all that they may be are `T`s, and what writes them is done;
    /// the last of it was on `writer`.
    unsafe fn copy_to_host<T>(
        &self,
        offset: usize,
        data: &mut [T],
        writer: Option<Arc<Queue>>,
    ) -> Result<()> {
        let queue = match writer {
            Some(queue) => queue,
            None => self.gpu.transfers()?.queue().clone(),
        };
        // SAFETY: the caller's conditions.
        unsafe { queue.copy_to_host(self.address + offset as u64, data) }
    }

    /// Overwrites the first elements with those of `data`, of which it has as many, behind all work
    /// that uses it. Returns when they are copied.
    pub(crate) fn write<T: Element>(&mut self, data: &[T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.usage.wait()?;
        let stream = self.gpu.transfers()?;
        let _current = self.gpu.bind()?;
        // SAFETY: both sides have these bytes, and the copy is done before this returns.
        check("cuMemcpyHtoDAsync", unsafe {
            let from = data.as_ptr().cast::<c_void>();
            sys::cuMemcpyHtoDAsync_v2(self.address, from, size_of_val(data), stream.handle())
        })?;
        stream.synchronize()
    }

    /// Sets bytes to zero, from `offset` behind the start on, behind all work that uses them, and
    /// waits until it is done.
    pub(crate) fn clear(&mut self, offset: usize, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.usage.wait()?;
        let stream = self.gpu.transfers()?;
        let _current = self.gpu.bind()?;
        // SAFETY: the buffer has these bytes.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(self.address + offset as u64, 0, bytes, stream.handle())
        })?;
        stream.synchronize()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // A fault of the work it waits for belongs to whoever waits for the work itself. Memory
        // that may still be in use is not given to others: where a fault has broken the context,
        // nothing is.
        if self.usage.wait().is_err() {
            return;
        }
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: allocated by `new`, and no queued work uses it any more.
            let _ = unsafe { cuda_free(DevicePointer::<u8>::from_raw(self.address)) };
        }
    }
}
