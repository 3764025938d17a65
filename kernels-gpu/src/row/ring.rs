//! A ring of tiles in shared memory, which each thread fills for itself.
//!
//! A thread reads only the vectors that it copied, so it waits for its own copies only: there is no
//! barrier, and warps may run ahead of each other.
//!
//! Tiles begin at multiples of 128 bytes in global and in shared memory. A cache line that is
//! copied to parts of two lines is requested twice, which cost a tenth of the bandwidth (H200,
//! 2026-11-24: 0.80 and 0.90 of the ceiling).

use super::segment::Segments;
use super::span::{BATCH, RowSpan, WARP_VECTORS};
use super::{RowLoss, row_address};
use crate::abi::VECTOR_BYTES;
use crate::copy::copy_unaligned;
use crate::element::unrolled;
use core::marker::PhantomData;
use cuda_std::SharedArray;
use cuda_std::memory::{Vec16, end_copies};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

cuda_std::shared_array! {
    /// The rings of a block's warps.
    fn shared_rings() -> [Vec16];
}

/// A thread's slots of the ring. A slot has the thread's vectors of one tile of each tensor, and is
/// named by its byte offset.
#[derive(Clone, Copy)]
pub(crate) struct Ring<L> {
    shared: SharedArray<Vec16>,
    /// Where this thread's vectors of the first slot begin.
    base: u32,
    /// Bytes of a warp's ring.
    bytes: u32,
    loss: PhantomData<L>,
}

impl<L: RowLoss> Ring<L> {
    const TENSOR_BYTES: u32 = WARP_VECTORS * VECTOR_BYTES;
    const SLOT: u32 = L::TENSORS * Self::TENSOR_BYTES;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(depth: u32) -> Self {
        let bytes = depth * Self::SLOT;
        let base = warp_id() * bytes + lane_id() * VECTOR_BYTES;
        Ring { shared: shared_rings().in_register(), base, bytes, loss: PhantomData }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn next(&self, slot: u32) -> u32 {
        let next = slot + Self::SLOT;
        if next == self.bytes { 0 } else { next }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn at(&self, slot: u32, tensor: u32) -> SharedArray<Vec16> {
        let at = self.base + slot + tensor * Self::TENSOR_BYTES;
        // SAFETY: the launch has shared memory for all rings.
        unsafe { self.shared.from_byte(at) }
    }

    /// The thread's vectors of a tile that is whole in the row.
    ///
    /// # Safety
    /// The copies to the slot are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn get(&self, slot: u32, tensor: u32) -> [Vec16; BATCH] {
        let at = self.at(slot, tensor);
        let mut vectors = [Vec16::default(); BATCH];
        unrolled!(for k in 0..BATCH; {
            // SAFETY: the caller's condition.
            vectors[k] = unsafe { at.get(k as u32 * WARP_SIZE) };
        });
        vectors
    }

    /// The thread's vectors of the first tensor's tile. Those that the row does not have, as `has`
    /// says of each, are `padding`.
    ///
    /// # Safety
    /// The copies to the slot are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn get_padded(
        &self,
        slot: u32,
        padding: Vec16,
        has: impl Fn(usize) -> bool,
    ) -> [Vec16; BATCH] {
        let at = self.at(slot, 0);
        let mut vectors = [padding; BATCH];
        unrolled!(for k in 0..BATCH; {
            if has(k) {
                // SAFETY: the caller's condition.
                vectors[k] = unsafe { at.get(k as u32 * WARP_SIZE) };
            }
        });
        vectors
    }

    /// The thread's vector `k` of a tile, which the row has.
    ///
    /// # Safety
    /// The copy of the vector is complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn get_one(&self, slot: u32, tensor: u32, k: u32) -> Vec16 {
        // SAFETY: the caller's condition.
        unsafe { self.at(slot, tensor).get(k * WARP_SIZE) }
    }
}

/// Copies the tiles of a warp's segments to a ring, in order.
pub(crate) struct Loader<L: RowLoss> {
    segments: Segments,
    tile: u32,
    /// The vectors of the row in the first tensor.
    span: RowSpan<L::Element>,
    /// Bytes from an element of the first tensor to the same element of the second.
    apart: u64,
}

impl<L: RowLoss> Loader<L> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(loss: &L, segments: Segments) -> Self {
        let span = RowSpan::new(loss.tensors()[0], 0, loss.shape().1);
        let mut loader = Loader { segments, tile: segments.next().begin, span, apart: 0 };
        loader.begin_row(loss);
        loader
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn begin_row(&mut self, loss: &L) {
        if self.segments.has_next() {
            let row = self.segments.next().row;
            let [first, second] = loss.tensors();
            self.span = RowSpan::new(first, row, loss.shape().1);
            if L::TENSORS > 1 {
                let address = |tensor| row_address::<L::Element>(tensor, row.into());
                self.apart = address(second).wrapping_sub(address(first));
            }
        }
    }

    /// Starts to copy the next tile to a slot, as one batch of copies. If there is no next tile,
    /// the batch is empty.
    ///
    /// # Safety
    /// 1. The rows of the loss's tensors are in global memory.
    /// 2. This thread does not read the slot's tile any more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn load(&mut self, loss: &L, ring: &Ring<L>, slot: u32) {
        if self.segments.has_next() {
            // SAFETY: the caller's conditions.
            unsafe { self.copy(ring, slot) };
            self.tile += 1;
            if self.tile == self.segments.next().end {
                self.segments.advance(loss.layout());
                self.tile = self.segments.next().begin;
                self.begin_row(loss);
            }
        }
        end_copies();
    }

    /// # Safety
    /// As [`load`](Self::load), and there is a next tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn copy(&self, ring: &Ring<L>, slot: u32) {
        let first = self.tile * WARP_VECTORS;
        let vector = first + lane_id();
        let whole = self.span.has_tile(first);
        let (from, to) = (self.span.address(vector), ring.at(slot, 0));
        // SAFETY: only vectors that the row has are copied; condition 2.
        let copy = |index: u32| unsafe {
            to.copy(index, (from as *const Vec16).wrapping_add(index as usize))
        };
        if whole {
            unrolled!(for k in 0..BATCH; { copy(k as u32 * WARP_SIZE); });
        } else {
            unrolled!(for k in 0..BATCH; {
                let index = k as u32 * WARP_SIZE;
                if self.span.has(vector + index) {
                    copy(index);
                }
            });
        }
        if L::TENSORS < 2 {
            return;
        }
        let (from, to) = (from.wrapping_add(self.apart), ring.at(slot, 1));
        let aligned = self.apart.is_multiple_of(VECTOR_BYTES.into());
        unrolled!(for k in 0..BATCH; {
            let index = k as u32 * WARP_SIZE;
            if whole || self.span.has(vector + index) {
                let from = from + u64::from(index * VECTOR_BYTES);
                // SAFETY: these columns are in the second tensor's row, too; condition 2.
                unsafe {
                    if aligned {
                        to.copy(index, from as *const Vec16);
                    } else {
                        copy_unaligned::<L::Element>(to.from(index), from);
                    }
                }
            }
        });
    }
}
