//! A loss for each row, of tensors without gaps: a block takes a chunk of whole rows as the vectors
//! that lie in memory, wherever rows begin in them, and leaves the terms in shared memory, where
//! they are summed by row. So a row's length costs nothing but its sum.

use super::{Pairwise, Pass, Row, of_lane};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::group_sums;
use core::num::NonZeroU32;
use cuda_std::SharedArray;
use cuda_std::memory::Vec16;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id};

cuda_std::shared_array! {
    /// The terms of a chunk, from the vector's boundary before it on, and behind them the scale of
    /// each row.
    fn shared_terms() -> [Vec16];
}

/// A chunk: rows that a block takes.
struct Chunk<'a, E: Element, L> {
    pass: &'a Pass<'a, E, L, false>,
    /// The tensors from the vector's boundary before the chunk on.
    tensors: Row<E, L, true>,
    first_row: u64,
    rows: u32,
    cols: NonZeroU32,
    /// Elements before the chunk in its first vector.
    lead: u32,
    /// Elements to the chunk's end, counted from the boundary as well.
    end: u32,
    terms: SharedArray<Vec16>,
    /// Whether each row has an upstream gradient of its own.
    has_scales: bool,
}

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// The chunk of this block.
    ///
    /// # Safety
    /// [`forward`](super::forward)'s conditions 1 and 3; `chunk_rows` is as `PairwiseArgs` says,
    /// and all threads of the block call it.
    #[inline(always)]
    pub(super) unsafe fn chunk<const TERMS: bool, const GRADS: bool>(&self) {
        let args = self.args;
        let first_row = u64::from(block_idx_x()) * u64::from(args.chunk_rows);
        if first_row >= args.rows {
            return;
        }
        let rows = (args.rows - first_row).min(args.chunk_rows.into()) as u32;
        let cols = NonZeroU32::new(args.cols as u32).unwrap_or(NonZeroU32::MIN);
        let size = size_of::<E>() as u64;
        let start = first_row * args.cols * size;
        // Vectors lie where those of what is written do; what is only read may lie otherwise.
        let written = [args.grad_input.start, args.grad_target.start];
        let written = written.into_iter().find(|&start| GRADS && start != 0);
        let base = written.unwrap_or(args.input.start);
        let before = (base + start) % size_of::<Vec16>() as u64;
        let is_off = |start: u64| !(start ^ base).is_multiple_of(16);
        let from = |start_of: u64, is_used: bool| {
            if is_used && start_of != 0 { start_of + start - before } else { 0 }
        };
        let lead = (before / size) as u32;
        let has_scales = GRADS && args.upstream.start != 0 && args.upstream.row_stride != 0;
        let chunk = Chunk {
            pass: self,
            tensors: Row {
                // SAFETY: the caller's conditions; weights have no strides.
                loss: unsafe { self.loss.of_row(first_row) },
                input: from(args.input.start, true),
                target: from(args.target.start, true),
                terms: 0,
                upstream: 0,
                grad_input: from(args.grad_input.start, GRADS),
                grad_target: from(args.grad_target.start, GRADS),
                // SAFETY: the caller's conditions.
                scale: if GRADS && !has_scales { unsafe { self.scale(0) } } else { E::Real::ZERO },
                head: 0,
                vectors: 0,
                is_shifted: is_off(args.input.start) || is_off(args.target.start),
            },
            first_row,
            rows,
            cols,
            lead,
            end: lead + rows * cols.get(),
            terms: shared_terms().in_register(),
            has_scales,
        };
        // SAFETY: the caller's conditions.
        unsafe {
            if has_scales {
                chunk.load_scales();
            }
            chunk.pairs::<TERMS, GRADS>();
            if TERMS {
                sync_threads();
                chunk.sum_rows();
            }
        }
    }
}

impl<E: Element, L: Pairwise<E::Real>> Chunk<'_, E, L> {
    /// # Safety
    /// As [`Pass::chunk`].
    #[inline(always)]
    unsafe fn load_scales(&self) {
        let mut row = thread_idx_x();
        while row < self.rows {
            // SAFETY: the caller's conditions; one thread a row.
            unsafe {
                let scale = self.pass.scale(self.first_row + u64::from(row));
                self.scales().set(row, scale);
            }
            row += block_dim_x();
        }
        sync_threads();
    }

    /// # Safety
    /// As [`Pass::chunk`], with gradients and an upstream gradient for each row.
    #[inline(always)]
    unsafe fn scales(&self) -> SharedArray<E::Real> {
        let vectors = self.end.div_ceil(E::LANES);
        let at = vectors * E::LANES * size_of::<E::Real>() as u32;
        // SAFETY: the caller's conditions: the launch has room for them there.
        unsafe { self.terms.words_from_byte(at) }
    }

    /// The scales of the elements of a vector, which begins with number `first`.
    ///
    /// # Safety
    /// As [`Pass::chunk`]; the vector is within the chunk.
    #[inline(always)]
    unsafe fn scales_of(&self, first: u32) -> [E::Real; MAX_LANES] {
        let mut scales = [self.tensors.scale; MAX_LANES];
        if self.has_scales {
            let index = first - self.lead;
            let (mut row, mut left) = (index / self.cols, self.cols.get() - index % self.cols);
            let mut next_row = || {
                if left == 0 {
                    (row, left) = (row + 1, self.cols.get());
                }
                left -= 1;
                row
            };
            unrolled!(for lane in 0..E::LANES as usize; {
                // SAFETY: the caller's conditions; the row is one of the chunk's.
                scales[lane] = unsafe { self.scales().get(next_row()) };
            });
        }
        scales
    }

    /// All pairs of the chunk: whole vectors, and the ends element by element.
    ///
    /// # Safety
    /// As [`Pass::chunk`].
    #[inline(always)]
    unsafe fn pairs<const TERMS: bool, const GRADS: bool>(&self) {
        let (mut from, mut to) = (self.lead.div_ceil(E::LANES), self.end / E::LANES);
        if self.tensors.is_shifted {
            // A vector that is read as two reaches beyond its ends: the chunk's first and last are
            // left out.
            (from, to) = (from + 1, to.saturating_sub(1));
        }
        let threads = block_dim_x();
        let mut vector = from + thread_idx_x();
        let mut next = (Vec16::default(), Vec16::default());
        // SAFETY: the caller's conditions, of vectors that are within the chunk.
        unsafe {
            if vector < to {
                next = self.load(vector);
            }
            while vector < to {
                let (x, t) = next;
                // The next vector travels while this one is computed.
                if vector + threads < to {
                    next = self.load(vector + threads);
                }
                self.vector::<TERMS, GRADS>(vector, x, t);
                vector += threads;
            }
        }
        // Elements before the first whole vector, and behind the last.
        let head_end = (from * E::LANES).min(self.end);
        let tail = (to * E::LANES).max(head_end);
        let head = head_end - self.lead;
        let mut peeled = thread_idx_x();
        while peeled < head + (self.end - tail) {
            let index = if peeled < head { self.lead + peeled } else { tail + (peeled - head) };
            // SAFETY: the caller's conditions; the element is one of the chunk's.
            unsafe {
                let scale = if self.has_scales {
                    self.scales().get((index - self.lead) / self.cols)
                } else {
                    self.tensors.scale
                };
                let [a, b] = self.tensors.pair::<GRADS>(index.into(), scale);
                if TERMS {
                    self.terms.words::<E::Real>().set(index, a * b);
                }
            }
            peeled += threads;
        }
    }

    /// # Safety
    /// As [`Pass::chunk`]; the vector is within the chunk.
    #[inline(always)]
    unsafe fn load(&self, vector: u32) -> (Vec16, Vec16) {
        let tensors = &self.tensors;
        // SAFETY: the caller's conditions; shifted vectors are not the chunk's first or last.
        unsafe {
            (
                tensors.load(tensors.input, vector.into()),
                tensors.load(tensors.target, vector.into()),
            )
        }
    }

    /// The pairs of one vector: the short way where all of them are plain.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn vector<const TERMS: bool, const GRADS: bool>(&self, vector: u32, x: Vec16, t: Vec16) {
        // SAFETY: the caller's conditions.
        unsafe {
            if self.tensors.are_plain(x, t) {
                self.vector_as::<TERMS, GRADS, true>(vector, x, t);
            } else {
                self.vector_as::<TERMS, GRADS, false>(vector, x, t);
            }
        }
    }

    /// # Safety
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn vector_as<const TERMS: bool, const GRADS: bool, const PLAIN: bool>(
        &self,
        vector: u32,
        x: Vec16,
        t: Vec16,
    ) {
        if TERMS {
            let mut terms = [E::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; {
                let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                let [a, b] = self.tensors.loss.term::<PLAIN>(x, t);
                terms[lane] = if PLAIN { a * b * L::UNIT } else { a * b };
            });
            let vectors = size_of::<E::Real>() / size_of::<E>();
            unrolled!(for part in 0..2; {
                if part < vectors {
                    let at = vector * vectors as u32 + part as u32;
                    // SAFETY: the caller's conditions; one thread a vector.
                    unsafe { self.terms.set(at, vector_of(&terms, part)) };
                }
            });
        }
        if GRADS {
            // SAFETY: the caller's conditions.
            unsafe {
                let scales = self.scales_of(vector * E::LANES);
                self.tensors.store_grads::<PLAIN>(vector.into(), x, t, scales);
            }
        }
    }

    /// Sums the terms by row, and finishes the rows.
    ///
    /// # Safety
    /// As [`Pass::chunk`]; all terms are there, and a barrier stands between that and this.
    #[inline(always)]
    unsafe fn sum_rows(&self) {
        let (cols, group) = (self.cols.get(), self.pass.args.group_threads.get());
        let lane = thread_idx_x() & (group - 1);
        let group_of = |thread: u32| thread >> group.trailing_zeros();
        let groups = group_of(block_dim_x());
        // Row groups of one warp stay together, for the shuffles.
        let mut of_warp = if group > WARP_SIZE { 0 } else { group_of(thread_idx_x() - lane_id()) };
        let mut row = group_of(thread_idx_x());
        while of_warp < self.rows {
            let mut sum = E::Real::ZERO;
            if row < self.rows {
                let from = self.lead + row * cols;
                // SAFETY: the caller's conditions; the row is one of the chunk's.
                sum = unsafe {
                    if cols >= VECTOR_COLS {
                        self.sum_of_vectors(from, from + cols, lane, group)
                    } else {
                        self.sum_of_row(row, lane, group)
                    }
                };
            }
            let [sum] = group_sums([sum.to_f64()], group);
            if lane == 0 && row < self.rows {
                // SAFETY: the caller's conditions; one row group a row.
                unsafe { self.pass.finish(self.first_row + u64::from(row), sum) };
            }
            if group > WARP_SIZE {
                sync_threads();
            }
            of_warp += groups;
            row += groups;
        }
    }

    /// What a lane of a row group of a warp has of a row, term by term.
    ///
    /// # Safety
    /// As [`sum_rows`](Self::sum_rows); the row is one of the chunk's.
    #[inline(always)]
    unsafe fn sum_of_row(&self, row: u32, lane: u32, group: u32) -> E::Real {
        let cols = self.cols.get();
        // Rows that are an even number of row groups long would all begin in a few banks, and wait for
        // each other: each begins a row group behind the last one's beginning, and ends with what it
        // left out.
        let start = if cols & (2 * group - 1) == 0 { row * group % self.cols } else { 0 };
        let from = self.lead + row * cols;
        let mut sums = [E::Real::ZERO; 2];
        let mut add = |from: u32, to: u32| {
            let mut at = from + lane;
            // SAFETY: the caller's conditions.
            let term = |at: u32| unsafe { self.terms.words::<E::Real>().get(at) };
            while at + group < to {
                sums[0] = sums[0] + term(at);
                sums[1] = sums[1] + term(at + group);
                at += 2 * group;
            }
            if at < to {
                sums[0] = sums[0] + term(at);
            }
        };
        add(from + start, from + cols);
        if start > 0 {
            add(from, from + start);
        }
        sums[0] + sums[1]
    }

    /// What a thread of a row group has of the terms from number `from` up to `to`: by vectors, and the
    /// ends term by term.
    ///
    /// # Safety
    /// As [`sum_rows`](Self::sum_rows), of these terms.
    #[inline(always)]
    unsafe fn sum_of_vectors(&self, from: u32, to: u32, lane: u32, group: u32) -> E::Real {
        let terms = size_of::<Vec16>() as u32 / size_of::<E::Real>() as u32;
        let (first, last) = (from.div_ceil(terms), to / terms);
        let mut sums = [E::Real::ZERO; 4];
        let mut vector = first + lane;
        while vector < last {
            // SAFETY: the caller's condition.
            let values = values_of::<E::Real>(unsafe { self.terms.get(vector) });
            unrolled!(for index in 0..4; { sums[index] = sums[index] + values[index]; });
            vector += group;
        }
        let head = first * terms - from;
        let mut peeled = lane;
        while peeled < head + (to - last * terms) {
            let at = if peeled < head { from + peeled } else { last * terms + (peeled - head) };
            // SAFETY: the caller's condition.
            sums[0] = sums[0] + unsafe { self.terms.words::<E::Real>().get(at) };
            peeled += group;
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }
}

/// Rows of at least so many columns are summed by vectors: they are in a few more instructions what
/// others are in one a term.
const VECTOR_COLS: u32 = 64;

/// The values of 4 or 8 bytes in a vector, and zeros where there are two.
#[inline(always)]
fn values_of<R: Real>(Vec16(words): Vec16) -> [R; 4] {
    let mut values = [R::ZERO; 4];
    unrolled!(for index in 0..4; {
        if size_of::<R>() == 4 {
            values[index] = R::from_bits64(words[index].into());
        } else if index < 2 {
            let [low, high] = [words[2 * index], words[2 * index + 1]];
            values[index] = R::from_bits64(u64::from(high) << 32 | u64::from(low));
        }
    });
    values
}

/// Vector `part` of values of 4 or 8 bytes.
#[inline(always)]
fn vector_of<R: Real>(values: &[R; MAX_LANES], part: usize) -> Vec16 {
    let mut words = [0; 4];
    unrolled!(for word in 0..4; {
        words[word] = if size_of::<R>() == 4 {
            values[4 * part + word].to_bits64() as u32
        } else {
            (values[2 * part + word / 2].to_bits64() >> (word % 2 * 32)) as u32
        };
    });
    Vec16(words)
}
