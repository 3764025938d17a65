//! What the kernel has found of a loss's targets. It lies behind the values, in the loss's storage.

use crate::memory::{Memory, Operand};
use candle_core::{CpuStorage, DType, Result, Tensor, bail};
use fused_loss::{Error, TargetFault};

/// Where the [`TargetFault`] is of a loss of so many values: bytes from the start of its storage.
pub(crate) fn fault_offset(values: usize, dtype: DType) -> usize {
    (values * dtype.size_in_bytes()).next_multiple_of(align_of::<TargetFault>())
}

/// Elements of a loss's storage, with the fault.
pub(crate) fn len_with_fault(values: usize, dtype: DType) -> usize {
    (fault_offset(values, dtype) + size_of::<TargetFault>()) / dtype.size_in_bytes()
}

/// Waits for a loss that [`cross_entropy`](crate::cross_entropy()) or
/// [`CrossEntropy`](crate::CrossEntropy) has returned, and says whether all of its targets were
/// classes or ignored.
///
/// The kernel finds a bad target, and the call has returned by then: a loss that it is part of is
/// NaN, and so is the gradient of its row. candle reads tensors itself and knows nothing of it, so
/// ask here: where a loss is NaN, or wherever a training loop reads its loss anyway. This copies
/// the loss from the device, as `to_scalar` does.
///
/// # Errors
/// With [`fused_loss::Error::TargetOutOfRange`]'s text: the lowest such row, its target, and the
/// number of classes. Also for a tensor that is no such loss: what is computed from one, as
/// `(loss * 0.5)?`, does not have what was found of the targets.
pub fn check(loss: &Tensor) -> Result<()> {
    let (storage, layout) = loss.storage_and_layout();
    let operand = Operand::new(&storage, layout)?;
    let copy;
    let data = match operand.memory {
        Memory::Cpu(data) => data,
        Memory::Cuda(data) => {
            use candle_core::backend::BackendStorage;
            copy = data.to_cpu_storage()?;
            &copy
        }
    };
    let bytes: &[u8] = match data {
        CpuStorage::F32(data) => bytemuck::cast_slice(data),
        CpuStorage::F64(data) => bytemuck::cast_slice(data),
        _ => &[],
    };
    let (values, dtype) = (loss.elem_count(), loss.dtype());
    let is_loss = loss.rank() == 0 || layout.is_contiguous();
    let expected = len_with_fault(values, dtype) * dtype.size_in_bytes();
    if !is_loss || layout.start_offset() != 0 || bytes.len() != expected {
        bail!("loss: expected one that cross_entropy has returned, got another tensor")
    }
    let words = &bytes[fault_offset(values, dtype)..];
    let word = |at: usize| bytemuck::pod_read_unaligned::<i64>(&words[8 * at..8 * (at + 1)]);
    let (row, target, classes) = (word(0) as usize, word(1), word(2) as usize);
    if classes == 0 {
        return Ok(());
    }
    Err(candle_core::Error::wrap(Error::TargetOutOfRange { row, target, classes }))
}
