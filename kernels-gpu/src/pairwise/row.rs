//! A row of every tensor, and what is computed from one 16-byte vector or one element of it.

use super::Pairwise;
use super::pass::{SUMS, Sums};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use core::marker::PhantomData;
use cuda_std::hint::{opaque, opaque_vec16};
use cuda_std::memory::{Vec16, load, load_streaming, load_vector, store, store_streaming};
use cuda_std::warp::WARP_SIZE;

/// A row of every tensor. The address of a tensor that is not used is 0.
///
/// The row is cut at the 16-byte boundaries of the tensors that are written, or of the input if
/// none is. The elements between the first and the last boundary are moved as vectors, head and
/// tail element by element. If the written tensors are aligned differently, the whole row is moved
/// element by element.
#[derive(Clone, Copy)]
pub(super) struct Row<E: Element, L, const DENSE: bool> {
    pub(super) loss: L,
    pub(super) input: u64,
    pub(super) target: u64,
    pub(super) grad_input: u64,
    pub(super) grad_target: u64,
    /// Elements before the first vector.
    pub(super) head: u64,
    pub(super) vectors: u64,
    /// Whether vectors of a tensor that is only read may be off their 16-byte boundaries.
    pub(super) is_misaligned: bool,
    pub(super) element: PhantomData<E>,
}

/// The two aligned vectors that contain 16 bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Around {
    pub(super) vectors: [Vec16; 2],
    /// The byte of the first vector at which the 16 bytes begin.
    shift: u32,
}

impl Around {
    /// Loads the two vectors; if the 16 bytes are aligned, the same vector twice.
    ///
    /// # Safety
    /// They are in global memory that may be read.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load(at: *const Vec16) -> Self {
        // SAFETY: the caller's condition.
        let vectors = Self::addresses(at).map(|at| unsafe { load_vector(at) });
        Around { vectors, shift: at as u32 % 16 }
    }

    /// The addresses of the two vectors around `at`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn addresses(at: *const Vec16) -> [*const Vec16; 2] {
        let shift = at as u32 % 16;
        let first = at.wrapping_byte_sub(shift as usize);
        [first, first.wrapping_add(usize::from(shift != 0))]
    }

    /// The 16 bytes, which are aligned for `E`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn shifted<E: Element>(self) -> Vec16 {
        let [Vec16([a, b, c, d]), Vec16([e, f, g, h])] = self.vectors;
        // Selected without branches, so that the loads of several vectors stay together.
        let by_two = self.shift & 8 != 0;
        let [a, b, c, d, e, f] = if by_two { [c, d, e, f, g, h] } else { [a, b, c, d, e, f] };
        let mut words = [a, b, c, d, e];
        if size_of::<E>() < 8 && self.shift & 4 != 0 {
            words = [b, c, d, e, f];
        }
        let mut vector = [words[0], words[1], words[2], words[3]];
        if size_of::<E>() == 2 {
            let bits = self.shift % 4 * 8;
            unrolled!(for word in 0..4; {
                let both = u64::from(words[word + 1]) << 32 | u64::from(words[word]);
                vector[word] = (both >> bits) as u32;
            });
        }
        Vec16(vector)
    }
}

/// Some lanes of a vector: bit k is set for lane k.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Lanes(u32);

impl Lanes {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn all<E: Element>() -> Self {
        Lanes((1 << E::LANES) - 1)
    }

    /// The lanes from `first` up to, but not including, `end`; none if `end` is not above `first`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn between(first: u32, end: u32) -> Self {
        Lanes(((1 << end) - 1) & (u32::MAX << first))
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn are_all<E: Element>(self) -> bool {
        self == Self::all::<E>()
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has(self, lane: usize) -> bool {
        self.0 & (1 << lane) != 0
    }
}

/// Element `lane` of a vector, widened.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn of_lane<E: Element>(vector: Vec16, lane: usize) -> E::Real {
    E::extract(vector, lane as u32).widen()
}

/// Whether all pairs of a vector are plain; see [`Pairwise::ranks`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn are_plain<E: Element, L: Pairwise<E::Real>>(loss: L, x: Vec16, t: Vec16) -> bool {
    let mut ranks = [0; 2];
    unrolled!(for lane in 0..E::LANES as usize; {
        let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
        let [of_x, of_t] = loss.ranks(x, t);
        ranks = [ranks[0].max(of_x), ranks[1].max(of_t)];
    });
    ranks[0].max(ranks[1]) < E::Real::PLAIN_RANKS
}

/// Loads the `lanes` of a vector one by one. The others are 1, which is plain in every loss.
///
/// # Safety
/// The lanes are elements in global memory.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) unsafe fn gather<E: Element>(at: *const Vec16, lanes: Lanes) -> Vec16 {
    let mut elements = [E::narrow(E::Real::ONE); MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        if lanes.has(lane) {
            // SAFETY: the caller's condition.
            elements[lane] = unsafe { load(at.cast::<E>().wrapping_add(lane)) };
        }
    });
    E::pack(elements)
}

/// Stores `lanes` of a vector. Without `ALIGNED`, it need not be on a 16-byte boundary.
///
/// # Safety
/// The lanes are elements in global memory that no other thread reads or writes.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) unsafe fn store_lanes<E: Element, const ALIGNED: bool>(
    at: *mut Vec16,
    values: Vec16,
    lanes: Lanes,
) {
    if lanes.are_all::<E>() && (ALIGNED || (at as u64).is_multiple_of(16)) {
        // SAFETY: the caller's conditions.
        unsafe { store_streaming(at, values) };
        return;
    }
    unrolled!(for lane in 0..E::LANES as usize; {
        if lanes.has(lane) {
            // SAFETY: the caller's conditions.
            unsafe { store(at.cast::<E>().wrapping_add(lane), E::extract(values, lane as u32)) };
        }
    });
}

impl<E: Element, L: Pairwise<E::Real>, const DENSE: bool> Row<E, L, DENSE> {
    /// The loss with the parameters of column `col`; those of dense tensors are the same for all
    /// columns.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. `col` is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn loss_of(&self, col: u64) -> L {
        // SAFETY: the caller's conditions.
        if DENSE { self.loss } else { unsafe { self.loss.of_col(col) } }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn vector_of(&self, tensor: u64, vector: u64) -> *mut Vec16 {
        (tensor + self.head * size_of::<E>() as u64 + vector * 16) as *mut Vec16
    }

    /// Loads a vector of a tensor, whatever the tensor's alignment.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. `vector` is below `vectors`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load(&self, tensor: u64, vector: u64) -> Vec16 {
        // SAFETY: the caller's conditions; the row's first and last vector are not among `vectors`
        // if any may be misaligned, so the aligned vectors around this one are within the row.
        unsafe { Around::load(self.vector_of(tensor, vector)).shifted::<E>() }
    }

    /// Loads vector `first` of input and target, and `UNROLL` - 1 more, a warp's vectors from each
    /// other, before it waits for any.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. The vectors are below `vectors`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load_tile<const UNROLL: usize>(&self, first: u64) -> [[Vec16; 2]; UNROLL] {
        let starts = [self.input, self.target].map(|tensor| self.vector_of(tensor, first));
        let at = |k: usize| starts.map(|start| start.wrapping_add(k * WARP_SIZE as usize));
        let mut pairs = [[Vec16::default(); 2]; UNROLL];
        if !self.is_misaligned {
            unrolled!(for k in 0..UNROLL; {
                // SAFETY: the caller's conditions.
                pairs[k] = at(k).map(|at| unsafe { load_streaming(at) });
            });
            return pairs;
        }
        let mut around = [[Around::default(); 2]; UNROLL];
        unrolled!(for k in 0..UNROLL; {
            // SAFETY: the caller's conditions; the row's first and last vector are not among
            // `vectors` if any may be misaligned, so the aligned vectors around this one are within
            // the row.
            around[k] = at(k).map(|at| unsafe { Around::load(at) });
            pairs[k] = around[k].map(|around| around.vectors[0]);
        });
        // Always true, but ptxas does not know it: it would shift one vector before it loads the
        // next.
        if opaque(1) != 0 {
            pairs = around.map(|pair| pair.map(Around::shifted::<E>));
        }
        pairs
    }

    /// The first element of a vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn element(&self, vector: u64) -> u64 {
        self.head + vector * u64::from(E::LANES)
    }

    /// Computes the pairs of one vector, with a scale of the gradients for each. With `PLAIN`, all
    /// pairs are plain.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions 1 and 3 hold.
    /// 2. `vector` is below `vectors`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn pairs<const TERMS: bool, const GRADS: bool, const PLAIN: bool>(
        &self,
        vector: u64,
        [x, t]: [Vec16; 2],
        scales: [E::Real; MAX_LANES],
        sums: &mut Sums<E::Real>,
    ) {
        let col = self.element(vector);
        if TERMS {
            unrolled!(for lane in 0..E::LANES as usize; {
                // SAFETY: the caller's conditions.
                let loss = unsafe { self.loss_of(col + lane as u64) };
                let [a, b] = loss.term::<PLAIN>(of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                if PLAIN {
                    sums.plain[lane % SUMS] = a.fma(b, sums.plain[lane % SUMS]);
                } else {
                    sums.other = a.fma(b, sums.other);
                }
            });
        }
        if GRADS {
            // SAFETY: the caller's conditions.
            unsafe {
                let lanes = Lanes::all::<E>();
                self.store_grads::<PLAIN, false>(vector, x, t, scales, lanes);
                let is_apart = L::GRADS_APART && !TERMS;
                let [x, t] = if is_apart { [x, t].map(opaque_vec16) } else { [x, t] };
                self.store_grads::<PLAIN, true>(vector, x, t, scales, lanes);
            }
        }
    }

    /// Writes the gradients of a vector's `lanes`, with a scale for each element, unless their
    /// tensor is null: with `BY_TARGET` those of the target, otherwise those of the input.
    ///
    /// # Safety
    /// As [`pairs`](Self::pairs).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn store_grads<const PLAIN: bool, const BY_TARGET: bool>(
        &self,
        vector: u64,
        x: Vec16,
        t: Vec16,
        scales: [E::Real; MAX_LANES],
        lanes: Lanes,
    ) {
        let col = self.element(vector);
        let to = opaque(if BY_TARGET { self.grad_target } else { self.grad_input });
        if to == 0 {
            return;
        }
        let mut grads = [E::Real::ZERO; MAX_LANES];
        unrolled!(for lane in 0..E::LANES as usize; {
            // SAFETY: the caller's conditions.
            let loss = unsafe { self.loss_of(col + lane as u64) };
            let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
            grads[lane] = if BY_TARGET {
                loss.grad_target::<PLAIN>(x, t, scales[lane])
            } else {
                loss.grad_input::<PLAIN>(x, t, scales[lane])
            };
        });
        // SAFETY: the caller's conditions.
        unsafe { store_lanes::<E, true>(self.vector_of(to, vector), E::narrow_all(grads), lanes) };
    }

    /// Writes the gradients of one pair, times `scale`, and returns the two factors of its term.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions 1 and 3 hold.
    /// 2. `index` is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn pair<const GRADS: bool>(
        &self,
        index: u64,
        scale: E::Real,
    ) -> [E::Real; 2] {
        let at = |of: u64| (of + index * size_of::<E>() as u64) as *mut E;
        // SAFETY: the caller's conditions.
        unsafe {
            let loss = self.loss_of(index);
            let (x, t) = (load(at(self.input)).widen(), load(at(self.target)).widen());
            if GRADS && self.grad_input != 0 {
                store(at(self.grad_input), E::narrow(loss.grad_input::<false>(x, t, scale)));
            }
            if GRADS && self.grad_target != 0 {
                store(at(self.grad_target), E::narrow(loss.grad_target::<false>(x, t, scale)));
            }
            loss.term::<false>(x, t)
        }
    }
}
