//! Which vectors of a staged row are a thread's, and how they are copied and read.
//!
//! A thread computes a batch of vectors at a time, so that they hide each other's latency.
//!
//! If the statistics do not sum the target's shares, a batch is a warp's: `FLIGHT` times 32
//! adjacent vectors, of which a lane has every 32nd, so that one address serves all of the lane's.
//! A batch may reach beyond the row: in shared memory, logits that change no maximum and no sum are
//! there.
//!
//! Targets whose shares the statistics sum are computed with in whole batches, of every
//! `block_dim_x`th vector, and what is left vector by vector: no branches are then between the
//! vectors of a batch, and shared memory has room for more blocks.

use super::StagedRow;
use crate::abi::{STAGED_BATCH_VECTORS, VECTOR_BYTES, stages_misaligned};
use crate::copy::copy_unaligned;
use crate::cross_entropy::lagging::Lagging;
use crate::cut::Cut;
use crate::element::{Element, MAX_LANES, unrolled};
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
use cuda_std::thread::{block_dim_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

impl<E: Element, const MODE: u32, const FLIGHT: usize> StagedRow<'_, E, MODE, FLIGHT> {
    /// Whether batches may reach beyond the row.
    pub(super) const IS_PADDED: bool = !Self::HAS_SHARE_SUMS;

    /// Vectors of a warp's batch.
    const BATCH: u32 = {
        assert!(STAGED_BATCH_VECTORS.is_multiple_of(FLIGHT as u32 * WARP_SIZE));
        FLIGHT as u32 * WARP_SIZE
    };

    /// Vectors from one of a thread's vectors to the next one of its batch.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn stride() -> u32 {
        if Self::IS_PADDED { WARP_SIZE } else { block_dim_x() }
    }

    /// The first vector of this thread, in a part from `base` on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn first_of_thread(base: u32, cut: Cut<E>) -> u32 {
        if Self::IS_PADDED {
            return base + warp_id() * Self::BATCH + lane_id();
        }
        let first = base + thread_idx_x();
        if first < cut.first() { first + block_dim_x() } else { first }
    }

    /// Whether there is a batch from `index`, one of this thread's vectors, on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has_batch(&self, index: u32) -> bool {
        if Self::IS_PADDED {
            // The same for all lanes.
            index < self.end + lane_id()
        } else {
            index + (FLIGHT as u32 - 1) * Self::stride() < self.end
        }
    }

    /// Whether the part has all vectors of a warp's batch.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has_whole_batch(&self, index: u32) -> bool {
        let start = index - lane_id();
        start >= self.begin && start + Self::BATCH <= self.end
    }

    /// Whether the part has a vector of one of this thread's batches.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has_vector(&self, vector: u32) -> bool {
        !Self::IS_PADDED || vector >= self.begin && vector < self.end
    }

    /// This thread's vector behind one of its vectors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn vector_behind(&self, vector: u32) -> u32 {
        let is_last = (vector - self.base) / WARP_SIZE % FLIGHT as u32 == FLIGHT as u32 - 1;
        let to_next_batch = if Self::IS_PADDED && is_last { self.step - Self::BATCH } else { 0 };
        vector + Self::stride() + to_next_batch
    }

    /// Whether a vector of the row is this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn is_of_thread(&self, vector: u32) -> bool {
        if vector < self.base || vector >= self.end {
            return false;
        }
        let within = vector - self.base;
        if Self::IS_PADDED {
            let turn = within % self.step;
            turn / Self::BATCH == warp_id() && turn % WARP_SIZE == lane_id()
        } else {
            within % block_dim_x() == thread_idx_x()
        }
    }

    /// Starts to copy the row to shared memory.
    ///
    /// # Safety
    /// The kernels' condition 1, and [`forward_backward_staged`](super::forward_backward_staged)'s
    /// conditions 3 and 4.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn copy(&self) {
        // SAFETY: the caller's conditions; the vectors are this thread's.
        unsafe { each_batch!(self.copy_vectors()) };
        if !Self::IS_PADDED {
            end_copies();
        }
    }

    /// Starts to copy N vectors from `index` on to shared memory. Fills the places of those that
    /// the part has not.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and the vectors are this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn copy_vectors<const N: usize>(&self, index: u32) {
        let behind = |k: usize| k as u32 * Self::stride();
        // SAFETY: the caller's conditions.
        unsafe {
            if !Self::IS_PADDED || self.has_whole_batch(index) {
                unrolled!(for k in 0..N; { self.copy_vector(index, behind(k)); });
            } else {
                let padding = E::pack([Lagging::padding::<E>(); MAX_LANES]);
                unrolled!(for k in 0..N; {
                    if self.has_vector(index + behind(k)) {
                        self.copy_vector(index, behind(k));
                    } else {
                        self.vectors.from(index - self.base).set(behind(k), padding);
                    }
                });
            }
        }
        if Self::IS_PADDED {
            end_copies();
        }
    }

    /// Starts to copy vector `index + behind` of the logits, and that of the same classes'
    /// probabilities where these are staged.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and the vector is this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn copy_vector(&self, index: u32, behind: u32) {
        let from = |line: u64| {
            let vector = (line + u64::from(index) * u64::from(VECTOR_BYTES)) as *const Vec16;
            vector.wrapping_add(behind as usize)
        };
        // SAFETY: the caller's conditions.
        unsafe {
            let slots = self.vectors.from(index - self.base);
            slots.copy(behind, from(self.line));
            if Self::HAS_PROBABILITIES {
                let (slots, from) = (slots.from(self.targets), from(self.target_line));
                let is_aligned = self.target_line.is_multiple_of(VECTOR_BYTES.into());
                if !stages_misaligned(size_of::<E>()) || is_aligned {
                    slots.copy(behind, from);
                } else {
                    copy_unaligned::<E>(slots.from(behind), from as u64);
                }
            }
        }
    }

    /// Starts to copy those of N vectors from `index` on that this row has, where the row before
    /// has all of them.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and the vectors would be this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn copy_over<const N: usize>(&self, index: u32) {
        // SAFETY: the caller's conditions.
        unsafe {
            if Self::IS_PADDED {
                self.copy_vectors::<N>(index);
                return;
            }
            unrolled!(for k in 0..N; {
                let vector = index + k as u32 * Self::stride();
                if vector >= self.first && vector < self.end {
                    self.copy_vector(vector, 0);
                }
            });
        }
    }

    /// Starts to copy those of this thread's vectors that have no counterpart in the same part of
    /// the row `before`: rows begin anywhere in a cache line.
    ///
    /// # Safety
    /// As [`copy`](Self::copy); all others were copied [over](Self::copy_over) those of that row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn copy_beside(&self, before: &Self) {
        // SAFETY: the caller's conditions.
        unsafe {
            if Self::IS_PADDED {
                let mut index = self.first;
                while before.has_batch(index) {
                    index += self.step;
                }
                while self.has_batch(index) {
                    self.copy_vectors::<FLIGHT>(index);
                    index += self.step;
                }
                return;
            }
            if self.first < before.first {
                self.copy_over::<1>(self.first);
            }
            let step = Self::stride();
            let behind = (before.end.max(before.first) - before.first).div_ceil(step);
            let mut vector = before.first + behind * step;
            while vector < self.end {
                self.copy_over::<1>(vector);
                vector += step;
            }
        }
        end_copies();
    }

    /// Waits for the copies of a batch, while up to three later ones may be under way. Copies that
    /// are not of padded batches are waited for at once.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn wait_for_batch(&self, index: u32) {
        let has_batch = |ahead: u32| Self::IS_PADDED && self.has_batch(index + ahead * self.step);
        if has_batch(3) {
            wait_for_copies::<3>();
        } else if has_batch(2) {
            wait_for_copies::<2>();
        } else if has_batch(1) {
            wait_for_copies::<1>();
        } else {
            wait_for_copies::<0>();
        }
    }

    /// N vectors from `index` on.
    ///
    /// # Safety
    /// They are this thread's, and their copies are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn get<const N: usize>(&self, index: u32) -> [Vec16; N] {
        let mut vectors = [Vec16::default(); N];
        // SAFETY: the caller's conditions.
        let slots = unsafe { self.vectors.from(index - self.base) };
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            vectors[k] = unsafe { slots.get(k as u32 * Self::stride()) };
        });
        vectors
    }

    /// The probabilities of the classes of N vectors from `index` on; where they are not staged,
    /// vectors of zeros, which are not used.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn get_targets<const N: usize>(&self, index: u32) -> [Vec16; N] {
        if Self::HAS_PROBABILITIES {
            // SAFETY: the caller's conditions.
            unsafe { self.get(self.targets + index) }
        } else {
            [Vec16::default(); N]
        }
    }
}
