//! The device memory that all shapes share, and its contents.

use crate::Result;
use cust::sys::{self, CUresult};
use fused_loss::{Element, Gpu, Stream, Tensor, View};
use std::error::Error;

/// One allocation, handed out as addresses. Its users wait for the stream before the addresses are
/// handed out again.
pub(crate) struct Arena {
    memory: Tensor<u8>,
    pub(crate) gpu: Gpu,
    pub(crate) stream: Stream,
}

fn check(what: &str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(format!("{what}: {result:?}").into())
    }
}

impl Arena {
    pub(crate) fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let memory = Tensor::zeros(gpu, [bytes])?;
        Ok(Arena { memory, gpu: gpu.clone(), stream: gpu.stream()? })
    }

    /// The address of byte `offset`, after a check that `bytes` bytes follow it.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> u64 {
        let all = self.memory.shape().len();
        assert!(offset + bytes <= all, "{bytes} bytes behind {offset} are not within {all}");
        self.memory.as_raw() + offset as u64
    }

    /// Fills the `bytes` bytes at `offset` with copies of `period`, and waits.
    pub(crate) fn tile<T: Element>(
        &self,
        offset: usize,
        bytes: usize,
        period: &Tensor<T>,
    ) -> Result<()> {
        let handle: sys::CUstream = self.stream.as_raw().cast();
        let to = self.at(offset, bytes);
        let step = period.shape().len() * size_of::<T>();
        for start in (0..bytes).step_by(step) {
            let len = step.min(bytes - start);
            // SAFETY: `at` has checked the range. The period, which is not part of the arena, has
            // `step` bytes and outlives the work.
            check("cuMemcpyDtoDAsync", unsafe {
                sys::cuMemcpyDtoDAsync_v2(to + start as u64, period.as_raw(), len, handle)
            })?;
        }
        Ok(self.stream.synchronize()?)
    }

    /// Sets all bits of `bytes` bytes at `offset`, which makes every float there NaN.
    pub(crate) fn spoil(&self, offset: usize, bytes: usize) -> Result<()> {
        let handle: sys::CUstream = self.stream.as_raw().cast();
        let to = self.at(offset, bytes);
        // SAFETY: `at` has checked the range.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to, 0xff, bytes, handle) })
    }

    /// Reads the `len` elements at `offset`, after everything that is queued on the stream.
    pub(crate) fn read<T: Element>(&self, offset: usize, len: usize) -> Result<Vec<T>> {
        let from = self.at(offset, len * size_of::<T>());
        // SAFETY: `at` has checked the range; elements are numbers, for which all bits are valid.
        let view = unsafe { View::<T>::from_raw(&self.gpu, from, [len])? };
        view.to_vec(&self.stream).map_err(<Box<dyn Error>>::from)
    }
}
