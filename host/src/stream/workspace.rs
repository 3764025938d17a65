//! The scratch memory of a launch.

use crate::error::Result;
use crate::gpu::Gpu;
use crate::memory::{Buffer, Memory};
use crate::shape::Shape;
use kernels_gpu::abi::WORKSPACE_BYTES;
use std::fmt;

/// Scratch memory for the `_into` methods, of a fixed size, 841 KiB. Two calls that should run at
/// the same time need one each: calls on different streams with the same workspace run one after
/// the other.
///
/// It is `Send` and `Sync`; a call borrows it mutably.
pub struct Workspace {
    pub(super) buffer: Buffer,
}

impl Workspace {
    /// Its size in bytes.
    pub const BYTES: usize = WORKSPACE_BYTES;

    /// A workspace on `gpu`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let mut workspace = Workspace { buffer: Buffer::new(gpu, Self::BYTES, "a workspace")? };
        workspace.clear()?;
        Ok(workspace)
    }

    /// Resets it to the state of a new one after all work that was queued with it, and waits until
    /// that is done. A call that ended in a fault may have left values in it that the next call
    /// would take for its own.
    ///
    /// The internal workspace of a [`Stream`](crate::Stream) cannot be cleared: after a fault, make
    /// a new stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver): on a GPU, every call after a fault until the
    /// process ends.
    pub fn clear(&mut self) -> Result<()> {
        // Code that reads the results of failed work gets the error.
        let _ = self.buffer.synchronize();
        // Zero means that a sum is not published yet. A block sets each word back to zero when it
        // has read the sum.
        self.buffer.clear(0, Self::BYTES)
    }

    /// Waits for all work that was queued with it, and forgets the streams of that work, as
    /// [`Tensor::synchronize`](crate::Tensor::synchronize) does.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if some of that work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.buffer.synchronize()
    }

    pub(crate) fn memory(&self) -> Memory<'_> {
        self.buffer.memory::<[u8; Self::BYTES]>(Shape::SCALAR)
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workspace({} bytes on {:?})", Self::BYTES, self.buffer.gpu())
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::gpu::tests::gpu;
    use crate::{CrossEntropy, Loss, Tensor};
    use kernels_gpu::abi::attempt;
    use kernels_gpu::abi::workspace::{FAULT, PARTIALS, SAVED, UNCOUNTED};

    /// Each call finds the first word, and those of partial sums, as a new workspace has them: also
    /// behind rows that are ignored or have no class, and behind two
    /// launches of which the second began all over.
    #[test]
    fn calls_leave_it_as_it_was() {
        for uncounted in [None, Some(-100), Some(-7)] {
            let words = words_after(&[uncounted]);
            let is_zero = |from: u64, to: u64| {
                words[from as usize / 8..to as usize / 8].iter().all(|&word| word == 0)
            };
            assert!(is_zero(FAULT, UNCOUNTED) && is_zero(PARTIALS, SAVED), "{uncounted:?}");
            assert_ne!(words[UNCOUNTED as usize / 8], attempt::NOTED);
        }
    }

    /// A row that does not count makes the next calls cautious, and each call in which all rows
    /// count reduces the number of cautious calls left.
    #[test]
    fn calls_are_cautious_for_some_time() {
        let caution = |calls: &[Option<i64>]| {
            words_after(calls)[UNCOUNTED as usize / 8].saturating_sub(attempt::NOTED)
        };
        let (all, one) = (None, Some(-100));
        let most = attempt::CAUTIOUS_CALLS;
        assert_eq!([caution(&[]), caution(&[all]), caution(&[all, one])], [0, 0, most]);
        assert_eq!(caution(&[one, all, all]), most - 2);
        assert_eq!(caution(&[one, all, one]), most);
        assert_eq!(caution(&[Some(-7)]), most);
        let mut calls = vec![all; most as usize + 1];
        calls[0] = one;
        assert_eq!([caution(&calls[..most as usize]), caution(&calls)], [1, 0]);
    }

    /// The words of a workspace after calls over many short rows. In each call, all rows have a
    /// class except one, which has this target.
    fn words_after(calls: &[Option<i64>]) -> Vec<u64> {
        // The emulator's device with two multiprocessors.
        let gpu = match gpu() {
            gpu if gpu.is_emulated() => Gpu::emulated(2).unwrap(),
            gpu => gpu,
        };
        let rows = gpu.cache().multiprocessors * 20_000;
        let stream = gpu.stream().unwrap();
        let mut workspace = Workspace::new(&gpu).unwrap();
        let x = Tensor::<f32>::zeros(&gpu, [rows, 2]).unwrap();
        let mut gradient = Tensor::<f32>::zeros(&gpu, [rows, 2]).unwrap();
        let mut loss = Loss::zeros(&gpu, []).unwrap();
        for &uncounted in calls {
            let mut classes = vec![1_i64; rows];
            classes[rows / 2] = uncounted.unwrap_or(0);
            let classes = Tensor::from_slice(&gpu, [rows], &classes).unwrap();
            CrossEntropy::mean()
                .forward_backward_into(
                    &x,
                    &classes,
                    &mut loss,
                    &mut gradient,
                    &mut workspace,
                    &stream,
                )
                .unwrap();
            assert_eq!(loss.item().is_err(), uncounted == Some(-7));
        }
        stream.synchronize().unwrap();
        let mut words = vec![0_u64; SAVED as usize / 8];
        // SAFETY: the calls are done, and any bits are a u64.
        unsafe { workspace.buffer.read_any(0, &mut words) }.unwrap();
        words
    }
}
