//! How candle's allocator treats free memory.

use candle_core::{Device, Result};

/// Lets candle's allocator retain up to `most_bytes` of a CUDA device's unused memory for later
/// tensors; `u64::MAX` retains all of it. On other devices this does nothing.
///
/// candle allocates from a CUDA memory pool. By default, the pool returns all free memory to the
/// system whenever the CPU waits for the GPU, for example to read a loss, and maps memory again for
/// the next step. If each step waits, this takes most of the time of cross-entropy over 32,000
/// classes, candle's own additions included.
///
/// One call at the start of a program is enough. Other processes and other pools cannot allocate
/// the retained memory.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// let device = candle_core::Device::cuda_if_available(0)?;
/// fused_loss_candle::keep_memory(&device, u64::MAX)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the driver has no such pool for a CUDA device.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only CUDA has a pool"))]
pub fn keep_memory(device: &Device, most_bytes: u64) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::keep_memory(device, most_bytes),
        _ => Ok(()),
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use candle_core::cuda_backend::cudarc::driver::sys;
    use candle_core::{CudaDevice, Result, bail};

    pub(super) fn keep_memory(device: &CudaDevice, most_bytes: u64) -> Result<()> {
        let ordinal = device.cuda_stream().context().cu_device();
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut pool = std::ptr::null_mut();
        let mut bytes = most_bytes;
        // SAFETY: the device exists; this writes its pool to the pointer.
        let mut code = unsafe { sys::cuDeviceGetMemPool(&mut pool, ordinal) };
        if code == sys::CUresult::CUDA_SUCCESS {
            // SAFETY: the pool exists as long as its device, and the attribute is a `cuuint64_t`.
            code = unsafe { sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut bytes).cast()) };
        }
        match code {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            code => {
                bail!("device: expected one with a pool of memory, got {code:?} from its driver")
            }
        }
    }
}
