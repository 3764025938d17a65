//! What a block stages of its rows in shared memory: logits and peeled elements between the
//! reduction and the gradients, or the class's logit until the row is finished.

use crate::abi::{CrossEntropyArgs, ROWS_BLOCK};
use crate::element::unrolled;
use cuda_std::memory::{Vec16, Word};
use cuda_std::thread::thread_idx_x;

cuda_std::shared_array! {
    /// In the kernel for long rows, `CrossEntropyArgs::staged_vectors` vectors in the order of the
    /// row. Lanes of a warp then access different banks, and a cache line of global memory is
    /// copied to one line here: a line that is copied to parts of two lines would cost two accesses
    /// of the second-level cache. For rows in a block's registers, the vector with the class's
    /// logit. For rows in a warp's registers, the [`StagedTiles`].
    fn staged_logits() -> [Vec16];
}

cuda_std::shared_array! {
    /// The logit and the target's probability of each peeled element of the block's row: at most 16
    /// elements, because the peeled elements are fewer than two vectors.
    fn staged_peeled() -> [u64; 32];
}

/// The register tiles of all threads of a block, staged so that another thread can read a logit.
pub(crate) struct StagedTiles;

impl StagedTiles {
    /// The index at which vector `k` of `thread` is staged.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn index(thread: u32, k: u32) -> u32 {
        // The stride is that of the largest block, so that it is a constant.
        k * ROWS_BLOCK + thread
    }

    /// Stages this thread's vectors.
    ///
    /// # Safety
    /// 1. The block has at most `ROWS_BLOCK` threads.
    /// 2. Its dynamic shared memory has room for N vectors for each of `ROWS_BLOCK` threads.
    /// 3. No other thread accesses this thread's vectors before the next barrier.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stage<const N: usize>(x: [Vec16; N]) {
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            unsafe { staged_logits().from(thread_idx_x()).set(Self::index(0, k as u32), x[k]) };
        });
    }

    /// Element `index` of vector `k` of `thread`.
    ///
    /// # Safety
    /// That thread has staged its vectors, and a barrier separates that from this call.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn element<E: Word>(thread: u32, k: u32, index: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { staged_logits().from(Self::index(thread, k)).words::<E>().get(index) }
    }
}

/// The staged peeled elements of a row. Each is written and read by one thread, without a barrier.
pub(crate) struct StagedPeeled;

impl StagedPeeled {
    /// Stages a peeled element: its logit, and its probability in the target.
    ///
    /// # Safety
    /// `index` is less than 16, and no other thread uses it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stage(index: u32, [x, t]: [u64; 2]) {
        // SAFETY: the caller's condition.
        unsafe {
            staged_peeled().set(2 * index, x);
            staged_peeled().set(2 * index + 1, t);
        }
    }

    /// The logit and the probability that were given to [`stage`](Self::stage).
    ///
    /// # Safety
    /// This thread has staged them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn get(index: u32) -> [u64; 2] {
        // SAFETY: the caller's condition.
        unsafe { [staged_peeled().get(2 * index), staged_peeled().get(2 * index + 1)] }
    }
}

/// Which vectors of a row are staged: `vectors` vectors from `first` on, which follow those in
/// registers. Each is copied and read by one thread, so that no barrier is needed in between.
#[derive(Clone, Copy)]
pub(crate) struct StagedLogits {
    first: u32,
    vectors: u32,
}

impl StagedLogits {
    /// No vectors.
    pub(crate) const NONE: Self = StagedLogits { first: 0, vectors: 0 };

    /// The vectors from `first` on, as many as shared memory has room for. `first` is a multiple
    /// of the vectors of a cache line, so that in a row that is cut at cache lines, each line is
    /// copied to one line of shared memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(args: &CrossEntropyArgs, first: u32) -> Self {
        StagedLogits { first, vectors: args.staged_vectors }
    }

    /// Only this vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn single(vector: u32) -> Self {
        StagedLogits { first: vector, vectors: 1 }
    }

    /// Whether any vector is staged.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_any(self) -> bool {
        self.vectors != 0
    }

    /// Whether this vector is staged.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has(self, vector: u32) -> bool {
        vector.wrapping_sub(self.first) < self.vectors
    }

    /// One past the last staged vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn end(self) -> u32 {
        self.first + self.vectors
    }

    /// The index in shared memory of a staged vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn index(self, vector: u32) -> u32 {
        vector - self.first
    }

    /// Issues the asynchronous copy of vector `vector + offset`; `from` is the address of vector
    /// `vector` in global memory.
    ///
    /// # Safety
    /// 1. The launch has the dynamic shared memory that its arguments say.
    /// 2. Vectors `vector` and `vector + offset` are staged ones.
    /// 3. No other thread copies or reads vector `vector + offset`.
    /// 4. That vector is in global memory, on a 16-byte boundary.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stage(self, vector: u32, from: *const Vec16, offset: u32) {
        // SAFETY: the caller's conditions.
        unsafe {
            let staged = staged_logits().from(self.index(vector));
            staged.copy(offset, from.wrapping_add(offset as usize));
        }
    }

    /// Vector `vector + offset`.
    ///
    /// # Safety
    /// 1. As [`stage`](Self::stage).
    /// 2. This thread has called that for this vector of this row, and has waited for the copy.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn get(self, vector: u32, offset: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe { staged_logits().from(self.index(vector)).get(offset) }
    }

    /// Element `index` of vector `vector`.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn element<E: Word>(self, vector: u32, index: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { staged_logits().from(self.index(vector)).words::<E>().get(index) }
    }
}
