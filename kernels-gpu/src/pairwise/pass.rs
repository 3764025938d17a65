//! One pass over the pairs: which elements a thread reads, and where sums and gradients go.

use super::Pairwise;
use super::row::{Row, are_plain};
use super::row_scales::{RowScales, VectorScales};
use crate::abi::{Matrix, PairwiseArgs, reduction};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::math::quotient;
use core::marker::PhantomData;
use cuda_std::hint::opaque;
use cuda_std::memory::{load, store};
use cuda_std::thread::{block_dim_x, grid_dim_x};
use cuda_std::warp::WARP_SIZE;

/// A kernel's arguments and its loss.
pub(super) struct Pass<'a, E, L, const DENSE: bool> {
    pub(super) args: &'a PairwiseArgs,
    pub(super) loss: L,
    pub(super) element: PhantomData<E>,
}

impl<E: Element, L: Pairwise<E::Real>, const DENSE: bool> Pass<'_, E, L, DENSE> {
    /// Divides a sum and writes it as the loss at `index`.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds, and the loss is reduced.
    /// 2. `index` is below `rows` if the loss is reduced by row, and 0 if it is a scalar.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn finish(&self, index: u64, sum: f64) {
        let at = (self.args.loss.start as *mut E::Real).wrapping_add(index as usize);
        // SAFETY: the caller's condition.
        unsafe { store(at, E::Real::from_f64(quotient::<E::Real>(sum, self.args.divisor))) };
    }

    /// The factor of all gradients of a row: its upstream gradient ÷ divisor. Not for rows in which
    /// each element has an upstream gradient.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn scale(&self, row: u64) -> E::Real {
        let Matrix { start, row_stride } = self.args.upstream;
        if start == 0 {
            return E::Real::from_f64(1.0 / self.args.divisor);
        }
        // The upstream gradient of a scalar loss is one value, with a row stride of 0.
        let index = (row * row_stride) as usize;
        // SAFETY: the caller's condition.
        let upstream = unsafe {
            if !DENSE && self.args.reduction == reduction::ELEMENTS {
                load((start as *const E).wrapping_add(index)).widen().to_f64()
            } else {
                load((start as *const E::Real).wrapping_add(index)).to_f64()
            }
        };
        E::Real::from_f64(quotient::<E::Real>(upstream, self.args.divisor))
    }

    /// The row's addresses, and where it is cut into vectors.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn row<const GRADS: bool>(&self, row: u64) -> Row<E, L, DENSE> {
        let args = self.args;
        let size = size_of::<E>() as u64;
        let start = |used: bool, of: Matrix| {
            if !used || of.start == 0 {
                0
            } else if DENSE {
                of.start
            } else {
                of.start + row * of.row_stride * size
            }
        };
        let input = start(true, args.input);
        let mut this = Row {
            // SAFETY: condition 1.
            loss: unsafe { self.loss.of_row(row) },
            input,
            target: start(true, args.target),
            grad_input: start(GRADS, args.grad_input),
            grad_target: start(GRADS, args.grad_target),
            head: args.cols,
            vectors: 0,
            is_misaligned: false,
            element: PhantomData,
        };
        // A vector can be stored only on a 16-byte boundary, so the boundaries of the first tensor
        // that is written cut the row into vectors. Tensors that are only read may be misaligned.
        let written = [this.grad_input, this.grad_target];
        let base = written.into_iter().find(|&start| start != 0).unwrap_or(input);
        let is_unaligned = |start: u64| start != 0 && !(start ^ base).is_multiple_of(16);
        let to_boundary = base.wrapping_neg() % 16 / size;
        if !written.into_iter().any(is_unaligned) && to_boundary < args.cols {
            this.head = to_boundary;
            this.vectors = (args.cols - to_boundary) / u64::from(E::LANES);
            this.is_misaligned = [input, this.target].into_iter().any(is_unaligned);
            if this.is_misaligned {
                // A misaligned vector is read as the two aligned vectors that contain it. For the
                // first and the last vector these could reach beyond the row, so the elements of
                // both are treated as head and tail.
                let inner = this.vectors.saturating_sub(2);
                this.head = if inner == 0 { args.cols } else { this.head + u64::from(E::LANES) };
                this.vectors = inner;
            }
        }
        this
    }

    /// Thread `lane` of a row group computes its share of part `split` of a row. With `TERMS`,
    /// returns the sum of the thread's terms. With `GRADS`, writes the gradients; with `BY_ROW`,
    /// several rows are treated as one, and each has its own scale.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions 1 and 3 hold.
    /// 2. `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn part<
        const TERMS: bool,
        const GRADS: bool,
        const BY_ROW: bool,
        const UNROLL: usize,
    >(
        &self,
        row: u64,
        split: u64,
        lane: u32,
    ) -> E::Real {
        let args = self.args;
        let mut sums = Sums::NONE;
        // SAFETY: the caller's conditions.
        let scale = if GRADS && !BY_ROW { unsafe { self.scale(row) } } else { E::Real::ZERO };
        let row_scales = RowScales::new(args);
        // SAFETY: the caller's condition.
        let row = unsafe { self.row::<GRADS>(row) };

        // A tile has UNROLL vectors for each thread. Within a tile, the vectors of a warp are
        // contiguous, so that those of a thread are a constant distance from each other, which load
        // instructions encode as an immediate offset.
        let (group, splits) = if DENSE {
            (u64::from(block_dim_x()), u64::from(grid_dim_x()))
        } else {
            (u64::from(args.group_threads.get()), u64::from(args.splits.get()))
        };
        let width = group * UNROLL as u64;
        // The elements after the last full tile are treated as head and tail, which the whole grid
        // shares: fewer elements than its threads, or a few for each. Without `DENSE`, each thread
        // has one vector of a tile, which need not be full.
        let vectors = if DENSE { row.vectors & !(width - 1) } else { row.vectors };
        let mut first = split * width + u64::from(in_tile::<UNROLL>(lane));
        while first < vectors {
            let vector = |k: u32| first + u64::from(k * WARP_SIZE);
            // SAFETY: condition 1; the vectors are below `vectors`.
            let loaded = unsafe { row.load_tile::<UNROLL>(first) };
            let mut of_rows = [VectorScales::NONE; UNROLL];
            if BY_ROW && L::EARLY_SCALES {
                unrolled!(for k in 0..UNROLL; {
                    // SAFETY: condition 1; the vectors are below `vectors`.
                    of_rows[k] = unsafe { row_scales.load::<E>(row.element(vector(k as u32))) };
                });
            }
            // Nearly all vectors are plain. The code for others exists once, in a loop, and loads
            // them again, so that it takes no registers: bit k is set if vector k is left to it.
            let mut waiting = 0_u32;
            unrolled!(for k in 0..UNROLL; {
                let [x, t] = loaded[k];
                if are_plain::<E, L>(row.loss, x, t) {
                    // SAFETY: conditions 1 and 3; the vector is below `vectors`.
                    unsafe {
                        let vector = vector(k as u32);
                        let mut scales = [scale; MAX_LANES];
                        if BY_ROW {
                            let first = row.element(vector);
                            let of_rows = match L::EARLY_SCALES {
                                true => of_rows[k],
                                false => row_scales.load::<E>(first),
                            };
                            scales = row_scales.of_lanes::<E>(first, of_rows);
                        }
                        row.pairs::<TERMS, GRADS, true>(vector, [x, t], scales, &mut sums);
                    }
                } else {
                    waiting |= 1 << k;
                }
            });
            while waiting != 0 {
                let vector = vector(waiting.trailing_zeros());
                waiting &= waiting - 1;
                // SAFETY: as above. Gradients may be written over input or target, but not yet
                // those of this vector.
                unsafe {
                    let pair = [row.load(row.input, vector), row.load(row.target, vector)];
                    let mut scales = [scale; MAX_LANES];
                    if BY_ROW {
                        let first = row.element(vector);
                        scales = row_scales.of_lanes::<E>(first, row_scales.load::<E>(first));
                    }
                    row.pairs::<TERMS, GRADS, false>(vector, pair, scales, &mut sums);
                }
            }
            first += splits * width;
        }

        // Head and tail, element by element.
        let in_vectors = vectors * u64::from(E::LANES);
        let mut single = split * group + u64::from(lane);
        while single < args.cols - in_vectors {
            let index = if single < row.head { single } else { single + in_vectors };
            // SAFETY: conditions 1 and 3; `index` is below `cols`.
            let [a, b] = unsafe {
                let scale = if BY_ROW { row_scales.of_element(index) } else { scale };
                row.pair::<GRADS>(index, scale)
            };
            if TERMS {
                sums.other = a.fma(b, sums.other);
            }
            single += splits * group;
        }
        sums.total(L::UNIT)
    }
}

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// The sum of the terms of a thread's share of part `split` of a row, element by element.
    ///
    /// # Safety
    /// As [`part`](Self::part).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn elements(&self, row: u64, split: u64, lane: u32) -> E::Real {
        let args = self.args;
        let group = u64::from(args.group_threads.get());
        // SAFETY: the caller's conditions.
        let row = unsafe { self.row::<false>(row) };
        let mut index = split * group + u64::from(lane);
        let mut sum = E::Real::ZERO;
        while index < args.cols {
            // SAFETY: the caller's conditions; `index` is below `cols`.
            let [a, b] = unsafe { row.pair::<false>(index, E::Real::ZERO) };
            sum = a.fma(b, sum);
            // Opaque, so that the compiler does not unroll this loop.
            index = opaque(index + u64::from(args.splits.get()) * group);
        }
        sum
    }
}

/// The first vector of a thread in a tile. Each thread has `UNROLL` vectors, a warp's vectors from
/// each other.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn in_tile<const UNROLL: usize>(thread: u32) -> u32 {
    thread / WARP_SIZE * WARP_SIZE * UNROLL as u32 + thread % WARP_SIZE
}

/// How many sums of plain pairs a thread accumulates independently, so that additions do not wait
/// for each other.
pub(super) const SUMS: usize = 4;

/// A thread's sums of terms.
pub(super) struct Sums<R> {
    /// Sums over plain pairs, in [`Pairwise::UNIT`]s. Lane i of a vector goes to sum i mod `SUMS`.
    pub(super) plain: [R; SUMS],
    /// The sum over all other pairs.
    pub(super) other: R,
}

impl<R: Real> Sums<R> {
    pub(super) const NONE: Self = Sums { plain: [R::ZERO; SUMS], other: R::ZERO };

    /// The sum of all, where `unit` is [`Pairwise::UNIT`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn total(self, unit: R) -> R {
        let mut sum = self.plain[0];
        unrolled!(for index in 1..SUMS; {
            sum = sum + self.plain[index];
        });
        sum.fma(unit, self.other)
    }
}
