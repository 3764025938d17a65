//! Bytes on a GPU that the library owns.

use super::usage::Usage;
use crate::driver::check_cust;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::Memory;
use crate::shape::Shape;
use cust::error::CudaError;
use cust::memory::{DevicePointer, cuda_free, cuda_malloc};
use std::fmt::Display;

/// Bytes on a GPU, and who uses them.
pub(crate) struct Buffer {
    gpu: Gpu,
    address: u64,
    usage: Usage,
}

impl Buffer {
    /// Memory for `what`, as an error calls it.
    pub(crate) fn new(gpu: &Gpu, bytes: usize, what: impl Display) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            let _current = gpu.bind()?;
            // SAFETY: the user of the buffer writes it before reading it; `drop` frees it.
            let memory = check_cust("cuMemAlloc", unsafe { cuda_malloc::<u8>(bytes) });
            address = memory.map_err(|error| out_of_memory(error, gpu, bytes, what))?.as_raw();
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

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Waits for the work that writes it, and reports a fault of that work.
    pub(crate) fn wait_for_write(&self) -> Result<()> {
        self.usage.wait_for_write()
    }

    /// Waits for all work that uses it, and forgets the streams of that work.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.usage.wait()
    }

    /// Copies to `data` from `offset` bytes after the start. Waits for the work that writes it.
    pub(crate) fn read<T: Element>(&self, offset: usize, data: &mut [T]) -> Result<()> {
        // SAFETY: all bit patterns are numbers.
        unsafe { self.read_any(offset, data) }
    }

    /// As [`read`](Self::read), for types other than numbers.
    ///
    /// # Safety
    /// The buffer has that many bytes, and every value of them is a valid `T`.
    pub(crate) unsafe fn read_any<T>(&self, offset: usize, data: &mut [T]) -> Result<()> {
        self.wait_for_write()?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's condition, and what writes them is done.
        unsafe { self.gpu.copy_to_host(self.address + offset as u64, data) }
    }

    /// Overwrites the first elements with those of `data`, after all work that uses the buffer. The
    /// buffer has at least as many elements. Returns when they are copied.
    pub(crate) fn write<T: Element>(&mut self, data: &[T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.synchronize()?;
        // SAFETY: the buffer has these bytes, and nothing uses them any more.
        unsafe { self.gpu.copy_to_device(self.address, data) }
    }

    /// Sets bytes to zero, from `offset` bytes after the start, after all work that uses them, and
    /// waits until that is done.
    pub(crate) fn clear(&mut self, offset: usize, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.synchronize()?;
        // SAFETY: the buffer has these bytes, and nothing uses them any more.
        unsafe { self.gpu.set_to_zero(self.address + offset as u64, bytes) }
    }

    /// Waits for all work that uses the memory, and frees it.
    fn free(&self) -> Result<()> {
        self.synchronize()?;
        let _current = self.gpu.bind()?;
        let memory = DevicePointer::<u8>::from_raw(self.address);
        // SAFETY: allocated by `new`, and no queued work uses it any more; `drop` calls this once.
        check_cust("cuMemFree", unsafe { cuda_free(memory) })
    }
}

/// If the error is that memory is short, says what the memory was for.
fn out_of_memory(error: Error, gpu: &Gpu, bytes: usize, what: impl Display) -> Error {
    match error {
        Error::Driver(source) if source.code == CudaError::OutOfMemory.code() => {
            Error::OutOfMemory {
                what: what.to_string().into(),
                bytes,
                device: gpu.ordinal(),
                source,
            }
        }
        other => other,
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // Whoever reads the results of failed work gets its error, so it is ignored here. Memory
        // that may still be in use is freed only when all work on the device is done.
        if self.free().is_err() {
            // SAFETY: allocated by `new` on this device, and no new work can use it any more.
            unsafe { self.gpu.free_with_device(self.address) };
        }
    }
}
