//! Memory on the GPU.

use crate::error::{CudaError, CudaResult, ToResult};
use crate::sys;
use std::fmt;
use std::marker::PhantomData;

/// The address of memory on the GPU, which the CPU cannot read or write.
#[repr(transparent)]
pub struct DevicePointer<T> {
    address: sys::CUdeviceptr,
    element: PhantomData<*mut T>,
}

impl<T> DevicePointer<T> {
    /// The pointer with this address.
    pub fn from_raw(address: sys::CUdeviceptr) -> Self {
        DevicePointer { address, element: PhantomData }
    }

    /// Its address.
    pub fn as_raw(&self) -> sys::CUdeviceptr {
        self.address
    }

    /// Whether it is the address of nothing.
    pub fn is_null(self) -> bool {
        self.address == 0
    }
}

impl<T> Clone for DevicePointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePointer<T> {}

impl<T> fmt::Debug for DevicePointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePointer({:#x})", self.address)
    }
}

/// Memory for `count` elements in the current context, not initialised.
///
/// # Errors
/// [`InvalidMemoryAllocation`](CudaError::InvalidMemoryAllocation) where that is no byte, or more
/// than there are addresses; [`OutOfMemory`](CudaError::OutOfMemory).
///
/// # Safety
/// 1. Whatever reads the memory does so after it was written.
/// 2. [`cuda_free`] frees it, at most once.
pub unsafe fn cuda_malloc<T>(count: usize) -> CudaResult<DevicePointer<T>> {
    let bytes = count.checked_mul(size_of::<T>()).unwrap_or(0);
    if bytes == 0 {
        return Err(CudaError::InvalidMemoryAllocation);
    }
    let mut address = 0;
    // SAFETY: writes the address to the pointer it is given.
    unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }.to_result()?;
    Ok(DevicePointer::from_raw(address))
}

/// Frees memory.
///
/// # Errors
/// [`InvalidMemoryAllocation`](CudaError::InvalidMemoryAllocation) of a null pointer; whatever work
/// of the context has failed with.
///
/// # Safety
/// 1. `pointer` is what [`cuda_malloc`] returned, and not freed yet.
/// 2. No queued work uses the memory, and nothing does after the call.
pub unsafe fn cuda_free<T>(pointer: DevicePointer<T>) -> CudaResult<()> {
    if pointer.is_null() {
        return Err(CudaError::InvalidMemoryAllocation);
    }
    // SAFETY: the caller's conditions.
    unsafe { sys::cuMemFree_v2(pointer.as_raw()) }.to_result()
}

/// Bytes of the current device's memory that are free, and all of them.
///
/// # Errors
/// [`InvalidContext`](CudaError::InvalidContext) where no context is current.
pub fn mem_get_info() -> CudaResult<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: writes two numbers to the pointers it is given.
    unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }.to_result()?;
    Ok((free, total))
}
