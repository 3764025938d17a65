//! What a block keeps of a row's logits from the sums to the gradients, in shared memory.

use crate::abi::CrossEntropyArgs;
use cuda_std::memory::Vec16;

cuda_std::shared_array! {
    /// `CrossEntropyArgs::kept_groups` groups, in the row's order: no two lanes of a warp meet in a bank. Of a row that is held
    /// in registers, that of the class.
    fn kept_logits() -> [Vec16];
}

/// The groups of a row that are kept: a number of them, behind those that are held in registers. Each is a thread's own,
/// so that no barrier stands between the two passes.
#[derive(Clone, Copy)]
pub(crate) struct KeptLogits {
    first: u32,
    groups: u32,
}

impl KeptLogits {
    /// None of them.
    pub(crate) const NONE: Self = KeptLogits { first: 0, groups: 0 };

    /// Those from group `first` on.
    #[inline(always)]
    pub(crate) fn new(args: &CrossEntropyArgs, first: u32) -> Self {
        KeptLogits { first, groups: args.kept_groups }
    }

    /// This group alone.
    #[inline(always)]
    pub(crate) fn only(group: u32) -> Self {
        KeptLogits { first: group, groups: 1 }
    }

    /// Whether there are any.
    #[inline(always)]
    pub(crate) fn are_some(self) -> bool {
        self.groups != 0
    }

    /// Whether this group is one.
    #[inline(always)]
    pub(crate) fn has(self, group: u32) -> bool {
        group.wrapping_sub(self.first) < self.groups
    }

    /// The first group behind them.
    #[inline(always)]
    pub(crate) fn end(self) -> u32 {
        self.first + self.groups
    }

    /// Copies the group that is `ahead` groups behind this one from where it lies, as far behind `from`. It is there when this
    /// thread has waited for its copies.
    ///
    /// # Safety
    /// The launch has the shared memory that its arguments say; both groups are kept, and no other thread's; it lies in
    /// global memory, on a boundary of 16 bytes.
    #[inline(always)]
    pub(crate) unsafe fn keep(self, group: u32, from: *const Vec16, ahead: u32) {
        // SAFETY: the caller's conditions.
        unsafe {
            let kept = kept_logits().from(group - self.first);
            kept.copy(ahead, from.wrapping_add(ahead as usize));
        }
    }

    /// The group that is `ahead` groups behind this one: both are.
    ///
    /// # Safety
    /// As [`keep`](Self::keep), which this thread has called for the group of this row, and waited for.
    #[inline(always)]
    pub(crate) unsafe fn get(self, group: u32, ahead: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().from(group - self.first).get(ahead) }
    }
}
