//! The shared memory of a block: two stages, each with a tile of input and target; and for packed
//! rows, twice, what threads have summed of each vector, and the scales of each warp's rows.

use super::run::Run;
use super::{WARPS, sum_of};
use crate::abi::{PairwiseArgs, VECTOR_BYTES};
use crate::element::{Element, MAX_LANES, Real, unrolled};
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
    /// Vectors behind that part.
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

    /// The sums of the vectors of a tile.
    ///
    /// # Safety
    /// Rows are packed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn sums(&self, args: &PairwiseArgs, turn: u32) -> SharedArray<E::Real> {
        let tiles = &args.tiles;
        let at = tiles.sums + turn * tiles.vectors * tiles.vector_sums * Self::REAL;
        // SAFETY: the launch has shared memory for them.
        unsafe { self.start.words_from_byte(at) }
    }

    const REAL: u32 = size_of::<E::Real>() as u32;

    /// The scales of the rows that the warp's part of a tile has elements of.
    ///
    /// # Safety
    /// Rows are packed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn scales(&self, args: &PairwiseArgs, turn: u32) -> SharedArray<E::Real> {
        let before = (turn * WARPS + warp_id()) * args.tiles.warp_rows;
        // SAFETY: the launch has shared memory for them.
        unsafe { self.start.words_from_byte(args.tiles.scales + before * Self::REAL) }
    }

    /// Writes what a thread has summed of a vector. A row begins in its lane `boundary`: writes the
    /// sum of the terms before that lane, and of those from it on. Where every vector is of one
    /// row, writes one sum; where rows are shorter than a vector, each term.
    ///
    /// # Safety
    /// Rows are packed, and no other thread accesses the sums of this vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn set_sums(
        &self,
        args: &PairwiseArgs,
        turn: u32,
        vector: u32,
        boundary: impl Fn() -> u32,
        terms: [E::Real; MAX_LANES],
        unit: E::Real,
    ) {
        // SAFETY: the caller's conditions.
        unsafe {
            let sums = self.sums(args, turn);
            match args.tiles.vector_sums {
                1 => sums.set(vector, sum_of::<E>(terms) * unit),
                2 => {
                    let boundary = boundary();
                    let (mut before, mut behind) = (terms, [E::Real::ZERO; MAX_LANES]);
                    if boundary < E::LANES {
                        unrolled!(for lane in 0..E::LANES as usize; {
                            let is_before = (lane as u32) < boundary;
                            before[lane] = if is_before { terms[lane] } else { E::Real::ZERO };
                            behind[lane] = if is_before { E::Real::ZERO } else { terms[lane] };
                        });
                    }
                    sums.set(vector * 2, sum_of::<E>(before) * unit);
                    sums.set(vector * 2 + 1, sum_of::<E>(behind) * unit);
                }
                _ => {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        sums.set(vector * E::LANES + lane as u32, terms[lane] * unit);
                    });
                }
            }
        }
    }

    /// Adds up the sums of a row, those that belong to one lane of a group. `lead` is the first
    /// element of the tile's first row.
    ///
    /// # Safety
    /// Rows are packed, and `row` is one of the tile's; the sums were [set](Self::set_sums), and a
    /// barrier has passed since.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn sum_of_row(
        &self,
        args: &PairwiseArgs,
        turn: u32,
        lead: u32,
        row: u32,
        (lane, group): (u32, u32),
    ) -> E::Real {
        let cols = args.cols as u32;
        let begin = lead + row * args.tiles.step;
        let (mut first, mut end) = (begin, begin + cols);
        match args.tiles.vector_sums {
            1 => (first, end) = (begin / E::LANES, end.div_ceil(E::LANES)),
            2 => {
                // The first row has no other before it.
                let is_inside = row > 0 && !begin.is_multiple_of(E::LANES);
                first = begin / E::LANES * 2 + u32::from(is_inside);
                end = ((end - 1) / E::LANES * 2 + 1).max(first + 1);
            }
            _ => {}
        }
        // SAFETY: the caller's conditions.
        let sums = unsafe { self.sums(args, turn) };
        let mut total = [E::Real::ZERO; 2];
        let mut at = first + lane;
        while at + group < end {
            // SAFETY: the caller's conditions.
            unsafe {
                total[0] = total[0] + sums.get(at);
                total[1] = total[1] + sums.get(at + group);
            }
            at += 2 * group;
        }
        if at < end {
            // SAFETY: the caller's conditions.
            total[0] = total[0] + unsafe { sums.get(at) };
        }
        total[0] + total[1]
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
        let [begin, end] = run.slots(run.whole(), first, self.warp_vectors);
        // A shifted vector reaches into the next aligned one.
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
                    // Opaque: LLVM would join the two in local memory.
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
