//! What a block keeps of a row's logits from the sums to the gradients, in shared memory.

use crate::abi::CrossEntropyArgs;
use cuda_std::memory::Vec16;

cuda_std::shared_array! {
    /// `CrossEntropyArgs::kept_groups` groups, each where it is in the row: no two lanes of a warp meet in a bank.
    fn kept_logits() -> [Vec16];
}

/// The groups of a row that are kept: a number of its first. Each is a thread's own, so that no barrier stands between
/// the two passes.
#[derive(Clone, Copy)]
pub(crate) struct KeptLogits {
    groups: u32,
}

impl KeptLogits {
    /// None of them.
    pub(crate) const NONE: Self = KeptLogits { groups: 0 };

    #[inline(always)]
    pub(crate) fn new(args: &CrossEntropyArgs) -> Self {
        KeptLogits { groups: args.kept_groups }
    }

    /// Whether this group is one.
    #[inline(always)]
    pub(crate) fn has(self, group: u32) -> bool {
        group < self.groups
    }

    /// Keeps a group, if it is one.
    ///
    /// # Safety
    /// The launch has the shared memory that its arguments say; no other thread has this group.
    #[inline(always)]
    pub(crate) unsafe fn keep(self, group: u32, x: Vec16) {
        if self.has(group) {
            // SAFETY: the caller's conditions.
            unsafe { kept_logits().set(group, x) };
        }
    }

    /// A group that is one.
    ///
    /// # Safety
    /// As [`keep`](Self::keep), which this thread has called for the group of this row.
    #[inline(always)]
    pub(crate) unsafe fn get(self, group: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().get(group) }
    }
}
