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

    /// The first group that is one.
    #[inline(always)]
    pub(crate) fn first(self) -> u32 {
        self.first
    }

    /// Whether this group is one.
    #[inline(always)]
    pub(crate) fn has(self, group: u32) -> bool {
        group.wrapping_sub(self.first) < self.groups
    }

    /// Whether they end within `count` groups from `first` on, which is not before them: some of these are, but not all.
    #[inline(always)]
    pub(crate) fn end_within(self, first: u32, count: u32) -> bool {
        self.has(first) && !self.has(first + count - 1)
    }

    /// Copies a group from where it lies. It is there when this thread has waited for its copies.
    ///
    /// # Safety
    /// The launch has the shared memory that its arguments say; the group is one, and no other thread's; it lies in
    /// global memory, on a boundary of 16 bytes.
    #[inline(always)]
    pub(crate) unsafe fn keep(self, group: u32, from: *const Vec16) {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().copy(group - self.first, from) };
    }

    /// The group that is `ahead` groups behind this one: both are.
    ///
    /// # Safety
    /// As [`keep`](Self::keep), which this thread has called for the group of this row, and waited for.
    #[inline(always)]
    pub(crate) unsafe fn get(self, group: u32, ahead: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().get(group - self.first + ahead) }
    }
}
