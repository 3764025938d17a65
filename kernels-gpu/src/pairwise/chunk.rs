//! A loss per row, for tensors without gaps between rows. Each block takes a chunk: consecutive
//! whole rows, which it reads as one span of vectors, wherever rows begin in them. It stages the
//! terms in shared memory and then sums them by row. So loads and stores do not depend on how long
//! rows are, and short or misaligned rows have no head and tail of their own.

use super::Pairwise;
use super::pass::Pass;
use super::row::{Row, of_lane};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::group_sums;
use core::num::NonZeroU32;
use cuda_std::SharedArray;
use cuda_std::memory::Vec16;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id};

cuda_std::shared_array! {
    /// The terms of a chunk, numbered from the vector boundary at or before its first element, and
    /// behind them the scale of each row.
    fn shared_terms() -> [Vec16];
}

/// The rows of a block.
struct Chunk<'a, E: Element, L> {
    pass: &'a Pass<'a, E, L, false>,
    /// The tensors as one row that begins at the vector boundary at or before the chunk.
    tensors: Row<E, L, true>,
    first_row: u64,
    rows: u32,
    cols: NonZeroU32,
    /// Elements from that boundary to the chunk's beginning.
    lead: u32,
    /// Elements from that boundary to the chunk's end.
    end: u32,
    /// See [`shared_terms`].
    terms: SharedArray<Vec16>,
    /// Whether gradients are computed and each row has an upstream gradient of its own.
    has_scales: bool,
}

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// Computes the chunk of this block.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions 1 and 3 hold.
    /// 2. `chunk_rows` is not 0, and `args` and the launch satisfy what `PairwiseArgs::chunk_rows`
    ///    requires.
    /// 3. All threads of the block call it.
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
        // A vector can be stored only on a 16-byte boundary, so the boundaries of the gradients cut
        // the chunk into vectors. Tensors that are only read may be misaligned.
        let written = [args.grad_input.start, args.grad_target.start];
        let written = written.into_iter().find(|&start| GRADS && start != 0);
        let base = written.unwrap_or(args.input.start);
        let lead_bytes = (base + start) % size_of::<Vec16>() as u64;
        let is_unaligned = |start: u64| !(start ^ base).is_multiple_of(16);
        let from = |start_of: u64, is_used: bool| {
            if is_used && start_of != 0 { start_of + start - lead_bytes } else { 0 }
        };
        let lead = (lead_bytes / size) as u32;
        let has_scales = GRADS && args.upstream.start != 0 && args.upstream.row_stride != 0;
        let chunk = Chunk {
            pass: self,
            tensors: Row {
                // SAFETY: the caller's conditions; weights have no strides, so those of the first
                // row serve all.
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
                is_misaligned: is_unaligned(args.input.start) || is_unaligned(args.target.start),
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
    /// Computes the scale of each row and stages it in shared memory.
    ///
    /// # Safety
    /// As [`Pass::chunk`], with `has_scales`.
    #[inline(always)]
    unsafe fn load_scales(&self) {
        let mut row = thread_idx_x();
        while row < self.rows {
            // SAFETY: the caller's conditions; no other thread has this row.
            unsafe {
                let scale = self.pass.scale(self.first_row + u64::from(row));
                self.scales().set(row, scale);
            }
            row += block_dim_x();
        }
        sync_threads();
    }

    /// The scales of the chunk's rows, in shared memory behind the terms.
    ///
    /// # Safety
    /// As [`Pass::chunk`], with `has_scales`.
    #[inline(always)]
    unsafe fn scales(&self) -> SharedArray<E::Real> {
        let vectors = self.end.div_ceil(E::LANES);
        let at = vectors * E::LANES * size_of::<E::Real>() as u32;
        // SAFETY: the caller's condition 2: `chunk_shared_bytes` includes them.
        unsafe { self.terms.words_from_byte(at) }
    }

    /// The scales of the elements of the vector whose first element is `first`, counted from the
    /// vector boundary.
    ///
    /// # Safety
    /// As [`Pass::chunk`]; the vector is within the chunk, and [`load_scales`](Self::load_scales)
    /// is done if `has_scales`.
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
                // SAFETY: the caller's conditions; the row is within the chunk.
                scales[lane] = unsafe { self.scales().get(next_row()) };
            });
        }
        scales
    }

    /// Computes all pairs of the chunk: vectors, then head and tail element by element.
    ///
    /// # Safety
    /// As [`Pass::chunk`]; [`load_scales`](Self::load_scales) is done if `has_scales`.
    #[inline(always)]
    unsafe fn pairs<const TERMS: bool, const GRADS: bool>(&self) {
        let (mut from, mut to) = (self.lead.div_ceil(E::LANES), self.end / E::LANES);
        if self.tensors.is_misaligned {
            // A misaligned vector is read as the two aligned vectors that contain it. For the first
            // and the last vector these could reach beyond the chunk, so they join head and tail.
            (from, to) = (from + 1, to.saturating_sub(1));
        }
        let threads = block_dim_x();
        let mut vector = from + thread_idx_x();
        let mut next = (Vec16::default(), Vec16::default());
        // SAFETY: the caller's conditions; vectors below `to` are within the chunk.
        unsafe {
            if vector < to {
                next = self.load(vector);
            }
            while vector < to {
                let (x, t) = next;
                // Prefetch the next vector before this one is computed.
                if vector + threads < to {
                    next = self.load(vector + threads);
                }
                self.vector::<TERMS, GRADS>(vector, x, t);
                vector += threads;
            }
        }
        // Head and tail.
        let head_end = (from * E::LANES).min(self.end);
        let tail = (to * E::LANES).max(head_end);
        let head = head_end - self.lead;
        let mut peeled = thread_idx_x();
        while peeled < head + (self.end - tail) {
            let index = if peeled < head { self.lead + peeled } else { tail + (peeled - head) };
            // SAFETY: the caller's conditions; the element is within the chunk, and no other thread
            // has it.
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

    /// Loads a vector of input and target.
    ///
    /// # Safety
    /// As [`Pass::chunk`]; the vector is within the chunk, and neither its first nor its last one
    /// if a tensor is misaligned.
    #[inline(always)]
    unsafe fn load(&self, vector: u32) -> (Vec16, Vec16) {
        let tensors = &self.tensors;
        // SAFETY: the caller's conditions.
        unsafe {
            (
                tensors.load(tensors.input, vector.into()),
                tensors.load(tensors.target, vector.into()),
            )
        }
    }

    /// Computes the pairs of one vector, in the shorter way if all of them are plain.
    ///
    /// # Safety
    /// As [`load`](Self::load); [`load_scales`](Self::load_scales) is done if `has_scales`.
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

    /// Computes the pairs of one vector: stages its terms, and writes its gradients.
    ///
    /// # Safety
    /// As [`vector`](Self::vector); with `PLAIN`, all pairs are plain.
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
                    // SAFETY: the caller's conditions; no other thread has this vector.
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

    /// Sums the staged terms by row, and writes the loss of each row.
    ///
    /// # Safety
    /// As [`Pass::chunk`]; all terms are staged, and a barrier has followed the last of them.
    #[inline(always)]
    unsafe fn sum_rows(&self) {
        let (cols, group) = (self.cols.get(), self.pass.args.group_threads.get());
        let lane = thread_idx_x() & (group - 1);
        let group_of = |thread: u32| thread >> group.trailing_zeros();
        let groups = group_of(block_dim_x());
        // The shuffles of `group_sums` need every lane of the warp, so a warp loops until the first
        // of its row groups has no row left.
        let mut first_of_warp =
            if group > WARP_SIZE { 0 } else { group_of(thread_idx_x() - lane_id()) };
        let mut row = group_of(thread_idx_x());
        while first_of_warp < self.rows {
            let mut sum = E::Real::ZERO;
            if row < self.rows {
                let from = self.lead + row * cols;
                // SAFETY: the caller's conditions; the row is within the chunk.
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
                // SAFETY: the caller's conditions; no other row group has this row.
                unsafe { self.pass.finish(self.first_row + u64::from(row), sum) };
            }
            if group > WARP_SIZE {
                sync_threads();
            }
            first_of_warp += groups;
            row += groups;
        }
    }

    /// Sums the terms of a row that belong to one lane of a row group (of a warp or less), one term
    /// at a time.
    ///
    /// # Safety
    /// As [`sum_rows`](Self::sum_rows); the row is within the chunk.
    #[inline(always)]
    unsafe fn sum_of_row(&self, row: u32, lane: u32, group: u32) -> E::Real {
        let cols = self.cols.get();
        // If the row length is a multiple of `2 * group`, the rows of a warp begin in the same few
        // banks, and reads conflict. So each row starts `group` terms further on than the row
        // before it, and ends with the terms that it skipped.
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

    /// Sums the terms `from..to` that belong to one lane of a row group: by vectors, then head and
    /// tail term by term.
    ///
    /// # Safety
    /// As [`sum_rows`](Self::sum_rows); the terms are within the chunk.
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

/// The fewest columns with which a row is summed by vectors. Vectors save instructions per term,
/// but head and tail cost a few more per row.
const VECTOR_COLS: u32 = 64;

/// The values in a vector: four of 4 bytes, or two of 8 bytes and two zeros.
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

/// Vector `part` of the vectors that `values`, of 4 or 8 bytes each, fill.
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
