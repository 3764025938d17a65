//! What a block keeps of its rows' logits in shared memory: from the sums to the gradients, or
//! until rows are finished.

use crate::abi::{CrossEntropyArgs, ROWS_BLOCK};
use crate::element::unrolled;
use cuda_std::memory::{Vec16, Word};
use cuda_std::thread::thread_idx_x;

cuda_std::shared_array! {
    /// `CrossEntropyArgs::kept_groups` groups, in the row's order: no two lanes of a warp meet in a
    /// bank, and lines of the cache are lines here: of one that is copied to parts of two, the
    /// second-level cache is asked twice. Of a row that is held in registers, that of the class.
    fn kept_logits() -> [Vec16];
}

cuda_std::shared_array! {
    /// Two numbers for each of a row's edges, which are fewer than two groups have elements.
    fn kept_edges() -> [u64; 32];
}

/// The tiles of a block's teams: of each of its threads as many groups as it holds.
pub(crate) struct KeptTiles;

impl KeptTiles {
    /// Where group `k` of a thread's is kept.
    #[inline(always)]
    fn at(thread: u32, k: u32) -> u32 {
        // The distance is that of the largest block: the compiler knows it.
        k * ROWS_BLOCK + thread
    }

    /// Keeps this thread's.
    ///
    /// # Safety
    /// The block has no more threads than `ROWS_BLOCK`, and for each of as many dynamic shared
    /// memory for N groups; nobody accesses these before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn keep<const N: usize>(x: [Vec16; N]) {
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            unsafe { kept_logits().from(thread_idx_x()).set(Self::at(0, k as u32), x[k]) };
        });
    }

    /// Element `index` of group `k` of `thread`'s.
    ///
    /// # Safety
    /// It has been kept, and a barrier stands between.
    #[inline(always)]
    pub(crate) unsafe fn element<E: Word>(thread: u32, k: u32, index: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().from(Self::at(thread, k)).words::<E>().get(index) }
    }
}

/// The edges of a row that are kept: each is a thread's own.
pub(crate) struct KeptEdges;

impl KeptEdges {
    /// Keeps an edge's logit and what the target says of it.
    ///
    /// # Safety
    /// `index` is below 16, and this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn keep(index: u32, [x, t]: [u64; 2]) {
        // SAFETY: the caller's condition.
        unsafe {
            kept_edges().set(2 * index, x);
            kept_edges().set(2 * index + 1, t);
        }
    }

    /// What is kept.
    ///
    /// # Safety
    /// This thread has kept it.
    #[inline(always)]
    pub(crate) unsafe fn get(index: u32) -> [u64; 2] {
        // SAFETY: the caller's condition.
        unsafe { [kept_edges().get(2 * index), kept_edges().get(2 * index + 1)] }
    }
}

/// The groups of a row that are kept: a number of them, behind those that are held in registers.
/// Each is a thread's own, so that no barrier stands between the two passes.
#[derive(Clone, Copy)]
pub(crate) struct KeptLogits {
    first: u32,
    groups: u32,
}

impl KeptLogits {
    /// None of them.
    pub(crate) const NONE: Self = KeptLogits { first: 0, groups: 0 };

    /// Those from group `first` on: a multiple of the groups of a line, so that lines are kept in
    /// lines of a row that is cut at them.
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

    /// Copies the group that is `ahead` groups behind this one from where it lies, as far behind
    /// `from`. It is there when this thread has waited for its copies.
    ///
    /// # Safety
    /// The launch has the shared memory that its arguments say; both groups are kept, and no other
    /// thread's; it lies in global memory, on a boundary of 16 bytes.
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
    /// As [`keep`](Self::keep), which this thread has called for the group of this row, and waited
    /// for.
    #[inline(always)]
    pub(crate) unsafe fn get(self, group: u32, ahead: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().from(group - self.first).get(ahead) }
    }

    /// Element `index` of group `group`.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    #[inline(always)]
    pub(crate) unsafe fn element<E: Word>(self, group: u32, index: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { kept_logits().from(group - self.first).words::<E>().get(index) }
    }
}
