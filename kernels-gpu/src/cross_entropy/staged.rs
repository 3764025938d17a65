//! What a block stages of its rows' logits in shared memory: from the sums to the gradients, or
//! until rows are finished.

use crate::abi::{CrossEntropyArgs, ROWS_BLOCK};
use crate::element::unrolled;
use cuda_std::memory::{Vec16, Word};
use cuda_std::thread::thread_idx_x;

cuda_std::shared_array! {
    /// `CrossEntropyArgs::staged_vectors` vectors, in the row's order: no two lanes of a warp meet in a
    /// bank, and lines of the cache are lines here: of one that is copied to parts of two, the
    /// second-level cache is asked twice. Of a row that is held in registers, that of the class.
    fn staged_logits() -> [Vec16];
}

cuda_std::shared_array! {
    /// Two numbers for each of a row's peeled elements, which are fewer than two vectors have elements.
    fn staged_peeled() -> [u64; 32];
}

/// The tiles of a block's row groups: of each of its threads as many vectors as it holds.
pub(crate) struct StagedTiles;

impl StagedTiles {
    /// Where vector `k` of a thread's is staged.
    #[inline(always)]
    fn at(thread: u32, k: u32) -> u32 {
        // The distance is that of the largest block: the compiler knows it.
        k * ROWS_BLOCK + thread
    }

    /// Keeps this thread's.
    ///
    /// # Safety
    /// The block has no more threads than `ROWS_BLOCK`, and for each of as many dynamic shared
    /// memory for N vectors; nobody accesses these before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn stage<const N: usize>(x: [Vec16; N]) {
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            unsafe { staged_logits().from(thread_idx_x()).set(Self::at(0, k as u32), x[k]) };
        });
    }

    /// Element `index` of vector `k` of `thread`'s.
    ///
    /// # Safety
    /// It has been staged, and a barrier stands between.
    #[inline(always)]
    pub(crate) unsafe fn element<E: Word>(thread: u32, k: u32, index: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { staged_logits().from(Self::at(thread, k)).words::<E>().get(index) }
    }
}

/// The peeled elements of a row that are staged: each is a thread's own.
pub(crate) struct StagedPeeled;

impl StagedPeeled {
    /// Keeps an peeled element's logit and what the target says of it.
    ///
    /// # Safety
    /// `index` is below 16, and this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn stage(index: u32, [x, t]: [u64; 2]) {
        // SAFETY: the caller's condition.
        unsafe {
            staged_peeled().set(2 * index, x);
            staged_peeled().set(2 * index + 1, t);
        }
    }

    /// What is staged.
    ///
    /// # Safety
    /// This thread has staged it.
    #[inline(always)]
    pub(crate) unsafe fn get(index: u32) -> [u64; 2] {
        // SAFETY: the caller's condition.
        unsafe { [staged_peeled().get(2 * index), staged_peeled().get(2 * index + 1)] }
    }
}

/// The vectors of a row that are staged: a number of them, behind those that are held in registers.
/// Each is a thread's own, so that no barrier stands between the two passes.
#[derive(Clone, Copy)]
pub(crate) struct StagedLogits {
    first: u32,
    vectors: u32,
}

impl StagedLogits {
    /// None of them.
    pub(crate) const NONE: Self = StagedLogits { first: 0, vectors: 0 };

    /// Those from vector `first` on: a multiple of the vectors of a line, so that lines are staged in
    /// lines of a row that is cut at them.
    #[inline(always)]
    pub(crate) fn new(args: &CrossEntropyArgs, first: u32) -> Self {
        StagedLogits { first, vectors: args.staged_vectors }
    }

    /// This vector alone.
    #[inline(always)]
    pub(crate) fn only(vector: u32) -> Self {
        StagedLogits { first: vector, vectors: 1 }
    }

    /// Whether there are any.
    #[inline(always)]
    pub(crate) fn are_some(self) -> bool {
        self.vectors != 0
    }

    /// Whether this vector is one.
    #[inline(always)]
    pub(crate) fn has(self, vector: u32) -> bool {
        vector.wrapping_sub(self.first) < self.vectors
    }

    /// The first vector behind them.
    #[inline(always)]
    pub(crate) fn end(self) -> u32 {
        self.first + self.vectors
    }

    /// Copies the vector that is `ahead` vectors behind this one from where it alignment, as far behind
    /// `from`. It is there when this thread has waited for its copies.
    ///
    /// # Safety
    /// The launch has the shared memory that its arguments say; both vectors are staged, and no other
    /// thread's; it alignment in global memory, on a boundary of 16 bytes.
    #[inline(always)]
    pub(crate) unsafe fn stage(self, vector: u32, from: *const Vec16, ahead: u32) {
        // SAFETY: the caller's conditions.
        unsafe {
            let staged = staged_logits().from(vector - self.first);
            staged.copy(ahead, from.wrapping_add(ahead as usize));
        }
    }

    /// The vector that is `ahead` vectors behind this one: both are.
    ///
    /// # Safety
    /// As [`stage`](Self::stage), which this thread has called for the vector of this row, and waited
    /// for.
    #[inline(always)]
    pub(crate) unsafe fn get(self, vector: u32, ahead: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe { staged_logits().from(vector - self.first).get(ahead) }
    }

    /// Element `index` of vector `vector`.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    #[inline(always)]
    pub(crate) unsafe fn element<E: Word>(self, vector: u32, index: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { staged_logits().from(vector - self.first).words::<E>().get(index) }
    }
}
