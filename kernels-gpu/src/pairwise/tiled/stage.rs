//! The shared memory of a block: two stages, each with a tile of input and target.

use super::WARPS;
use super::run::Run;
use crate::abi::{PairwiseArgs, VECTOR_BYTES};
use crate::element::{Element, unrolled};
use crate::pairwise::Pairwise;
use core::marker::PhantomData;
use cuda_std::SharedArray;
use cuda_std::hint::opaque_vec16;
use cuda_std::memory::Vec16;
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

cuda_std::shared_array! {
    fn shared_stages() -> [Vec16];
}

/// Vectors of each tensor that a thread copies without a loop.
const FLIGHT: usize = 4;

/// The dynamic shared memory of a block.
#[derive(Clone, Copy)]
pub(super) struct Shared<E> {
    start: SharedArray<Vec16>,
    /// Vectors of a warp's part of a tile of one tensor.
    warp_vectors: u32,
    /// Vectors of shared memory after that part.
    padding: u32,
    element: PhantomData<E>,
}

/// A stage, as a warp sees it: its part of a tile of each tensor.
#[derive(Clone, Copy)]
pub(super) struct Stage {
    tensors: [SharedArray<Vec16>; 2],
    warp_vectors: u32,
}

impl<E: Element> Shared<E> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new(args: &PairwiseArgs) -> Self {
        let warp_vectors = args.tiles.vectors / WARPS;
        let start = shared_stages().in_register();
        Shared { start, warp_vectors, padding: args.tiles.padding, element: PhantomData }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn stage(&self, turn: u32) -> Stage {
        let part = self.warp_vectors + self.padding;
        let at = |tensor: u32| {
            let vectors = ((turn * 2 + tensor) * WARPS + warp_id()) * part;
            // SAFETY: the launch has shared memory for two stages.
            unsafe { self.start.from_byte(vectors * VECTOR_BYTES) }
        };
        Stage { tensors: [at(0), at(1)], warp_vectors: self.warp_vectors }
    }
}

impl Stage {
    /// Starts to copy the warp's tile `number` of a run.
    ///
    /// # Safety
    /// 1. [`forward`](crate::pairwise::forward)'s condition 1 holds.
    /// 2. The lanes of the warp have synchronised since they read the stage.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load_async<E: Element, L: Pairwise<E::Real>>(
        &self,
        run: &Run<'_, E, L>,
        number: u32,
    ) {
        let first = number * self.warp_vectors;
        let last = first + self.warp_vectors - 1;
        let starts = run.read().map(|start| start - start % u64::from(VECTOR_BYTES));
        let at = |start: u64, slot: u32| {
            (start + u64::from(first + slot) * u64::from(VECTOR_BYTES)) as *const Vec16
        };
        let mut slot = lane_id();
        let is_inner = run.is_whole(first) && run.is_whole(last);
        if is_inner && self.warp_vectors == FLIGHT as u32 * WARP_SIZE {
            let from = starts.map(|start| at(start, slot));
            // SAFETY: within the warp's part.
            let to = self.tensors.map(|tensor| unsafe { tensor.from(slot) });
            unrolled!(for k in 0..FLIGHT; {
                let behind = k as u32 * WARP_SIZE;
                // SAFETY: the caller's conditions; the vectors are in the run.
                unsafe {
                    to[0].copy(behind, from[0].wrapping_add(behind as usize));
                    to[1].copy(behind, from[1].wrapping_add(behind as usize));
                }
            });
            slot += self.warp_vectors;
        }
        let [begin, end] = run.slots(first, self.warp_vectors);
        // A shifted vector also needs the aligned vector after its first one.
        let shifted = run.read().map(|start| u32::from(!start.is_multiple_of(VECTOR_BYTES.into())));
        let ends = shifted.map(|more| if begin < end { end + more } else { 0 });
        while slot < ends[0].max(ends[1]) {
            unrolled!(for tensor in 0..2; {
                if slot >= begin && slot < ends[tensor] {
                    // SAFETY: the caller's conditions; the vector is in the run.
                    unsafe { self.tensors[tensor].copy(slot, at(starts[tensor], slot)) };
                }
            });
            slot += WARP_SIZE;
        }
    }

    /// The vector of each tensor in a slot.
    ///
    /// # Safety
    /// The copies of the stage are complete, the warp has synchronised since, and the vector is
    /// whole.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn get<E: Element, L: Pairwise<E::Real>>(
        &self,
        run: &Run<'_, E, L>,
        slot: u32,
    ) -> [Vec16; 2] {
        let mut vectors = [Vec16::default(); 2];
        unrolled!(for tensor in 0..2; {
            let shift = run.read()[tensor] as u32 % VECTOR_BYTES;
            let slots = self.tensors[tensor];
            // SAFETY: the caller's conditions.
            vectors[tensor] = unsafe {
                if shift == 0 {
                    slots.get(slot)
                } else {
                    // Opaque: LLVM would join the two vectors in local memory.
                    opaque_vec16(shifted::<E>(slots, slot, shift))
                }
            };
        });
        vectors
    }
}

/// The 16 bytes from byte `shift` on of a slot and the next one. `shift` is a multiple of the
/// element's size below 16.
///
/// # Safety
/// As [`Stage::get`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn shifted<E: Element>(slots: SharedArray<Vec16>, slot: u32, shift: u32) -> Vec16 {
    let mut words = [0; 4];
    // SAFETY: the caller's conditions.
    unsafe {
        let from = slots.words_from_byte::<u32>(slot * VECTOR_BYTES + shift / 4 * 4);
        unrolled!(for word in 0..4; { words[word] = from.get(word as u32); });
        if size_of::<E>() == 2 && !shift.is_multiple_of(4) {
            let behind = [words[1], words[2], words[3], from.get(4)];
            unrolled!(for word in 0..4; { words[word] = words[word] >> 16 | behind[word] << 16; });
        }
    }
    Vec16(words)
}
