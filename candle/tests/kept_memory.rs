//! The memory that candle's allocator does not return, in a build for CUDA. A process has one
//! memory pool per device, so this test has a process of its own. Without a GPU it tests nothing.
#![cfg(feature = "cuda")]

use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::{DType, Device, Tensor};
use fused_loss_candle::keep_memory;

const BYTES: usize = 256 << 20;

/// Bytes that the pool still has from the system after a large tensor is dropped and the GPU is
/// done.
fn kept(device: &Device) -> u64 {
    drop(Tensor::zeros(BYTES / 4, DType::F32, device).unwrap());
    device.synchronize().unwrap();
    let ordinal = device.as_cuda_device().unwrap().cuda_stream().context().cu_device();
    let reserved = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    let (mut pool, mut bytes) = (std::ptr::null_mut(), 0_u64);
    // SAFETY: the device exists, and so does its pool, whose attribute is a `cuuint64_t`.
    let codes = unsafe {
        let found = sys::cuDeviceGetMemPool(&mut pool, ordinal);
        [found, sys::cuMemPoolGetAttribute(pool, reserved, (&raw mut bytes).cast())]
    };
    assert_eq!(codes, [sys::CUresult::CUDA_SUCCESS; 2]);
    bytes
}

#[test]
fn what_a_tensor_leaves_is_kept_or_handed_back() {
    let Ok(device) = Device::new_cuda(0) else {
        eprintln!("no GPU: nothing is tested");
        return;
    };
    assert!(kept(&device) < BYTES as u64, "candle keeps memory by itself");
    keep_memory(&device, u64::MAX).unwrap();
    assert!(kept(&device) >= BYTES as u64);
    keep_memory(&device, 0).unwrap();
    assert!(kept(&device) < BYTES as u64);
}
