//! Staging logits in shared memory by asynchronous copies (`cp.async`): from the reduction to the
//! gradients, or only the class's logit until the row is finished.

use super::Lanes;
use super::tile::{FLIGHT, WARP_FLIGHT};
use crate::abi::CrossEntropyArgs;
use crate::cross_entropy::row_group::RowGroup;
use crate::cross_entropy::staged::StagedLogits;
use crate::element::{Element, unrolled};
use cuda_std::memory::{end_copies, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, lane_id};

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// The row with a stage in shared memory for the vectors from `first` on, as many as fit:
    /// [`stage`](Self::stage) fills it, [`gradients_behind`](Self::gradients_behind) is its last
    /// reader.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn staging(self, args: &CrossEntropyArgs, first: u32) -> Self {
        Lanes { staged: StagedLogits::new(args, first), ..self }
    }

    /// One past the row's last staged vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn staged_end(&self) -> u32 {
        self.staged.end().min(self.cut.end)
    }

    /// Issues the copies of this thread's logits to the stage, and returns the number of batches
    /// (`cp.async` groups): one for each tile from vector `from` on.
    ///
    /// # Safety
    /// 1. The kernels' conditions.
    /// 2. The block no longer reads what was staged before.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stage(&self, from: u32, group: RowGroup) -> u32 {
        let end = self.staged_end();
        let mut batches = 0;
        let mut first = from + group.warp() * WARP_FLIGHT;
        while first < end {
            let vector = first + lane_id();
            let at = self.input.vector(self.cut.vector(vector));
            let whole = first + WARP_FLIGHT <= end;
            unrolled!(for k in 0..FLIGHT; {
                let offset = k as u32 * WARP_SIZE;
                if whole || vector + offset < end {
                    // SAFETY: the caller's conditions; each vector is copied by one thread.
                    unsafe { self.staged.stage(vector, at, offset) };
                }
            });
            end_copies();
            batches += 1;
            first += group.warps() * WARP_FLIGHT;
        }
        batches
    }

    /// Issues the copy of the vector with the logit of `class`. In shared memory the logit takes no
    /// register, and is not overwritten when gradients overwrite the row.
    ///
    /// # Safety
    /// 1. The kernels' conditions.
    /// 2. `class` is one of the row's, and the row begins with a vector.
    /// 3. One thread of the block calls this.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stage_class(&self, class: u32) {
        let vector = class / E::LANES;
        // SAFETY: the caller's conditions.
        unsafe {
            StagedLogits::single(vector).stage(
                vector,
                self.input.vector(self.cut.vector(vector)),
                0,
            )
        };
        end_copies();
    }

    /// The logit of the class that was given to [`stage_class`](Self::stage_class).
    ///
    /// # Safety
    /// This thread has staged it, and has waited for the copy.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn staged_class(class: u32) -> E::Real {
        let vector = class / E::LANES;
        // SAFETY: the caller's conditions.
        let x: E = unsafe { StagedLogits::single(vector).element(vector, class % E::LANES) };
        x.widen()
    }

    /// Waits for this thread's copies, except for the latest `batches` batches, or 7 if that is
    /// less: the count is an immediate operand of the instruction.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn wait_for_all_but(batches: u32) {
        match batches {
            0 => wait_for_copies::<0>(),
            1 => wait_for_copies::<1>(),
            2 => wait_for_copies::<2>(),
            3 => wait_for_copies::<3>(),
            4 => wait_for_copies::<4>(),
            5 => wait_for_copies::<5>(),
            6 => wait_for_copies::<6>(),
            _ => wait_for_copies::<7>(),
        }
    }
}
