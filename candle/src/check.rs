//! The kernel's report on a loss's targets. It is stored after the values, in the loss's storage.

use crate::memory::{Memory, Operand};
use candle_core::{CpuStorage, DType, Result, Tensor, bail};
use fused_loss::{Error, TargetFault};

/// The offset of the [`TargetFault`] in the storage of a loss with this many values, in bytes.
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
/// The kernel finds a bad target after the call has returned. A loss over it is NaN, and so is the
/// gradient of its row. candle reads tensors itself and does not see the report, so call this if a
/// loss is NaN, or wherever a training loop reads its loss anyway. This copies the loss from the
/// device, as `to_scalar` does.
///
/// # Errors
/// With [`fused_loss::Error::TargetOutOfRange`]'s text: the lowest such row, its target, and the
/// number of classes. Also for a tensor that is not such a loss: a tensor computed from one, such
/// as `(loss * 0.5)?`, does not carry the report on the targets.
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
