//! Losses that compare an input and a target element by element, x and t: forward, backward, both.
//! What the loss is comes from [`Pairwise`].
//!
//! Each kernel has two forms. With `DENSE` the tensors have no gaps between rows and the reduction
//! is to a scalar, so that all of it is one row, which the whole grid shares; without, it does the
//! rest: rows with strides, a loss for each row or element, an upstream gradient for each.

mod chunk;

use crate::abi::{Matrix, PairwiseArgs, reduction};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::math::quotient;
use crate::reduce::{AsTheyAre, Workspace, grid_sums, group_sums, is_last_block};
use core::marker::PhantomData;
use core::num::NonZeroU64;
use cuda_std::hint::opaque;
use cuda_std::memory::{Vec16, load, load_streaming, load_vector, store, store_streaming};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

/// The entries of a loss of this kind, whose type is `$type`. Each has its form for dense tensors
/// and, with `_rows`, the other. `$block` is the most threads of a dense block, `$both` of the pass
/// that does all, in which `$flight` vectors of each tensor are in flight in a thread. For so many
/// blocks of the kernels for rows, by pass, a multiprocessor has registers without spills.
macro_rules! kernels {
    (
        $loss:ident, $type:ty, $block:literal, $both:literal threads by $flight:literal,
        rows by $rows:literal $rows_backward:literal $rows_both:literal
    ) => {
        use crate::abi::{PairwiseArgs, ROWS_BLOCK};
        use crate::pairwise::{backward, dense_block, forward, forward_backward};

        crate::table::kernels! {
            $loss, [f32, f64, f16, bf16],
            FORWARD = forward: forward::<E, $type, true, 2>, (PairwiseArgs), (dense_block::<E>($block)) by 1, 3 barriers;
            FORWARD_ROWS = forward_rows: forward::<E, $type, false, 1>, (PairwiseArgs), ROWS_BLOCK by $rows, 8 barriers;
            BACKWARD = backward: backward::<E, $type, true, 2>, (PairwiseArgs), (dense_block::<E>($block)) by 1, 0 barriers;
            BACKWARD_ROWS = backward_rows: backward::<E, $type, false, 1>, (PairwiseArgs), ROWS_BLOCK by $rows_backward, 1 barriers;
            FORWARD_BACKWARD = forward_backward: forward_backward::<E, $type, true, $flight>, (PairwiseArgs), (dense_block::<E>($both)) by 1, 3 barriers;
            FORWARD_BACKWARD_ROWS = forward_backward_rows: forward_backward::<E, $type, false, 1>, (PairwiseArgs), ROWS_BLOCK by $rows_both, 9 barriers;
        }
    };
}
pub(crate) use kernels;

/// The most threads of a dense block: a block's threads share 65536 registers, and float64 takes
/// two for one.
pub(crate) const fn dense_block<E: Element>(threads: u32) -> u32 {
    if size_of::<E>() == 8 && threads > 512 { 512 } else { threads }
}

/// A loss of pairs (x, t).
pub(crate) trait Pairwise<R: Real>: Copy {
    /// The loss with its parameter and options.
    fn new(args: &PairwiseArgs) -> Self;
    /// The loss with the parameters that are in memory: those of this row.
    ///
    /// # Safety
    /// [`forward`]'s condition 1; the row is one of `rows`.
    #[inline(always)]
    unsafe fn of_row(self, _: u64) -> Self {
        self
    }
    /// The loss [of a row](Self::of_row) with the parameters of this column.
    ///
    /// # Safety
    /// [`forward`]'s condition 1; the column is one of `cols`.
    #[inline(always)]
    unsafe fn of_col(self, _: u64) -> Self {
        self
    }
    /// What the terms of plain pairs are counted in: a factor that is left for the end.
    const UNIT: R = R::ONE;
    /// A pair whose ranks are below [`Real::PLAIN_RANKS`] is plain: the methods below have a
    /// shorter way for it, `PLAIN`.
    #[inline(always)]
    fn ranks(self, _: R, _: R) -> [u32; 2] {
        [0; 2]
    }
    /// Two numbers whose product one pair adds to the sum; if it is plain, in
    /// [`UNIT`](Self::UNIT)s.
    fn term<const PLAIN: bool>(self, x: R, t: R) -> [R; 2];
    /// The gradient of the term by x, times `scale`.
    fn grad_input<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R;
    /// The gradient of the term by t, times `scale`.
    fn grad_target<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R;
}

/// The loss: Σ term ÷ divisor, over all or over each row, or the terms themselves.
///
/// # Safety
/// 1. `args` is as [`PairwiseArgs`] says: tensors that are not null have `rows` rows of `cols`
///    elements in global memory, aligned for their type; `loss` and `upstream` are of `E::Real`
///    where they are reduced, of `E` where they are not.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions, and there are no more partial sums
///    than it has room for.
/// 3. What is written overlaps nothing else that `args` names, but a gradient may lie exactly over
///    the tensor that it is the gradient of.
#[inline(always)]
pub(crate) unsafe fn forward<
    E: Element,
    L: Pairwise<E::Real>,
    const DENSE: bool,
    const UNROLL: usize,
>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { run::<E, L, true, false, DENSE, UNROLL>(args) }
}

/// The gradients that are wanted: upstream ÷ divisor × gradient of the term.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
pub(crate) unsafe fn backward<
    E: Element,
    L: Pairwise<E::Real>,
    const DENSE: bool,
    const UNROLL: usize,
>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { run::<E, L, false, true, DENSE, UNROLL>(args) }
}

/// [`forward`] and [`backward`] in one pass over input and target.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
pub(crate) unsafe fn forward_backward<
    E: Element,
    L: Pairwise<E::Real>,
    const DENSE: bool,
    const UNROLL: usize,
>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { run::<E, L, true, true, DENSE, UNROLL>(args) }
}

/// The pieces of all rows, each by one row group; then what is left of the sums. With `DENSE` there is
/// one row, and block b takes part b of it: `rows`, `row group`, `splits` and the strides are not looked
/// at.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn run<
    E: Element,
    L: Pairwise<E::Real>,
    const TERMS: bool,
    const GRADS: bool,
    const DENSE: bool,
    const UNROLL: usize,
>(
    args: &PairwiseArgs,
) {
    let pass = Pass::<E, L, DENSE> { args, loss: L::new(args), element: PhantomData };
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    if DENSE {
        let (split, lane) = (u64::from(block_idx_x()), thread_idx_x());
        // SAFETY: conditions 1 and 3.
        let sum = unsafe { pass.piece::<TERMS, GRADS, UNROLL>(0, split, lane) };
        if TERMS {
            // SAFETY: conditions 1 and 2.
            unsafe { grid_sums([sum.to_f64()], workspace, |[sum]| pass.finish(0, sum)) };
        }
        return;
    }

    if args.chunk_rows != 0 {
        let pass = Pass::<E, L, false> { args, loss: pass.loss, element: PhantomData };
        // SAFETY: conditions 1 and 3.
        unsafe { pass.chunk::<TERMS, GRADS>() };
        return;
    }
    let by_row = TERMS && args.reduction == reduction::ROWS;
    let group = args.group_threads.get();
    let lane = if group > WARP_SIZE { thread_idx_x() } else { thread_idx_x() & (group - 1) };
    let groups_of_block = block_dim_x() / args.group_threads;
    let groups = u64::from(grid_dim_x()) * u64::from(groups_of_block);
    let first = u64::from(block_idx_x()) * u64::from(groups_of_block);
    let splits = NonZeroU64::from(args.splits);
    let pieces = args.rows * splits.get();

    // Row groups of one warp stay together, for the shuffles: the warp goes on while its first row group has
    // work.
    let mut of_warp = first + u64::from((thread_idx_x() - lane_id()) / args.group_threads);
    let mut piece = first + u64::from(thread_idx_x() / args.group_threads);
    let mut total = E::Real::ZERO;
    while of_warp < pieces {
        let (row, split) =
            if splits.get() == 1 { (piece, 0) } else { (piece / splits, piece % splits) };
        let mut sum = E::Real::ZERO;
        if piece < pieces {
            // SAFETY: conditions 1 and 3; the row is one of `rows`.
            sum = unsafe { pass.piece::<TERMS, GRADS, UNROLL>(row, split, lane) };
        }
        if by_row {
            let [sum] = group_sums([sum.to_f64()], group);
            if lane == 0 && piece < pieces {
                // SAFETY: conditions 1 and 2; one row group a piece.
                unsafe {
                    if splits.get() == 1 {
                        pass.finish(row, sum);
                    } else {
                        workspace.publish(piece as u32, sum);
                    }
                }
            }
            if group > WARP_SIZE {
                sync_threads();
            }
        } else {
            total = total + sum;
        }
        of_warp += groups;
        piece += groups;
    }

    if TERMS && args.reduction == reduction::SCALAR {
        // SAFETY: conditions 1 and 2.
        unsafe { grid_sums([total.to_f64()], workspace, |[sum]| pass.finish(0, sum)) };
    }
    if by_row && splits.get() > 1 && is_last_block() {
        let mut row = u64::from(warp_id());
        while row < args.rows {
            // SAFETY: every piece has left its own, in order.
            let share = unsafe {
                // Few: there is room for what they leave.
                let (count, first) = (args.splits.get(), row as u32 * args.splits.get());
                workspace.share::<AsTheyAre, 1, 4>(
                    [0.0],
                    [first, 0],
                    (0, count),
                    (lane_id(), WARP_SIZE),
                )
            };
            let [sum] = group_sums(share, WARP_SIZE);
            if lane_id() == 0 {
                // SAFETY: condition 1.
                unsafe { pass.finish(row, sum) };
            }
            row += u64::from(block_dim_x() / WARP_SIZE);
        }
    }
}

/// A pass over the pairs with one loss.
struct Pass<'a, E, L, const DENSE: bool> {
    args: &'a PairwiseArgs,
    loss: L,
    element: PhantomData<E>,
}

impl<E: Element, L: Pairwise<E::Real>, const DENSE: bool> Pass<'_, E, L, DENSE> {
    /// Writes a reduced loss, the one at `index`.
    ///
    /// # Safety
    /// [`forward`]'s condition 1; the index is a row's, or 0 of a scalar.
    #[inline(always)]
    unsafe fn finish(&self, index: u64, sum: f64) {
        let at = (self.args.loss.start as *mut E::Real).wrapping_add(index as usize);
        // SAFETY: the caller's condition.
        unsafe { store(at, E::Real::from_f64(quotient::<E::Real>(sum, self.args.divisor))) };
    }

    /// The factor of the gradients of a row, but for an upstream of its own for each element.
    ///
    /// # Safety
    /// [`forward`]'s condition 1.
    #[inline(always)]
    unsafe fn scale(&self, row: u64) -> E::Real {
        let Matrix { start, row_stride } = self.args.upstream;
        if start == 0 {
            return E::Real::from_f64(1.0 / self.args.divisor);
        }
        // The one value of a scalar has a row stride of 0.
        let index = (row * row_stride) as usize;
        // SAFETY: the caller's condition.
        let upstream = unsafe {
            if !DENSE && self.args.reduction == reduction::ELEMENTS {
                load((start as *const E).wrapping_add(index)).widen().to_f64()
            } else {
                load((start as *const E::Real).wrapping_add(index)).to_f64()
            }
        };
        E::Real::from_f64(upstream / self.args.divisor)
    }

    /// The addresses and factors of a row.
    ///
    /// # Safety
    /// [`forward`]'s condition 1; `row` is one of `rows`.
    #[inline(always)]
    unsafe fn row<const TERMS: bool, const GRADS: bool>(&self, row: u64) -> Row<E, L, DENSE> {
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
        let by_element = !DENSE && GRADS && args.upstream_col_stride != 0;
        let by_term = !DENSE && TERMS && args.reduction == reduction::ELEMENTS;
        let input = start(true, args.input);
        let mut this = Row {
            // SAFETY: condition 1.
            loss: unsafe { self.loss.of_row(row) },
            input,
            target: start(true, args.target),
            terms: start(by_term, args.loss),
            upstream: start(by_element, args.upstream),
            grad_input: start(GRADS, args.grad_input),
            grad_target: start(GRADS, args.grad_target),
            // SAFETY: condition 1.
            scale: if GRADS && !by_element { unsafe { self.scale(row) } } else { E::Real::ZERO },
            head: args.cols,
            vectors: 0,
            is_shifted: false,
        };
        // Vectors lie where those of what is written do; what is only read may lie otherwise.
        let written = [this.terms, this.grad_input, this.grad_target];
        let base = written.into_iter().find(|&start| start != 0).unwrap_or(input);
        let is_off = |start: u64| start != 0 && !(start ^ base).is_multiple_of(16);
        let to_boundary = base.wrapping_neg() % 16 / size;
        if !written.into_iter().any(is_off) && to_boundary < args.cols {
            this.head = to_boundary;
            this.vectors = (args.cols - to_boundary) / u64::from(E::LANES);
            this.is_shifted = [input, this.target, this.upstream].into_iter().any(is_off);
            if this.is_shifted {
                // A vector that is read as two reaches beyond its ends: the row's first and last are
                // left out.
                let inner = this.vectors.saturating_sub(2);
                this.head = if inner == 0 { args.cols } else { this.head + u64::from(E::LANES) };
                this.vectors = inner;
            }
        }
        this
    }

    /// One piece of a row by one row group, of which this thread is `lane`. Returns the sum of this
    /// thread's terms (with `TERMS`, unless they are written as they are) and writes the gradients
    /// (with `GRADS`).
    ///
    /// # Safety
    /// [`forward`]'s conditions 1 and 3; `row` is one of `rows`.
    #[inline(always)]
    unsafe fn piece<const TERMS: bool, const GRADS: bool, const UNROLL: usize>(
        &self,
        row: u64,
        split: u64,
        lane: u32,
    ) -> E::Real {
        let args = self.args;
        // SAFETY: the caller's condition.
        let row = unsafe { self.row::<TERMS, GRADS>(row) };
        let mut sums = Sums { plain: [E::Real::ZERO; SUMS], other: E::Real::ZERO };

        // Whole tiles, UNROLL vectors a thread; none where one vector a thread is all there is. In a
        // tile a warp's vectors lie together, so that a thread's are a constant apart.
        let (group, splits) = if DENSE {
            (u64::from(block_dim_x()), u64::from(grid_dim_x()))
        } else {
            (u64::from(args.group_threads.get()), u64::from(args.splits.get()))
        };
        let mine = split * group + u64::from(lane);
        let (mut vector, mut step) = (mine, splits * group);
        if UNROLL > 1 && !row.is_shifted && row.vectors > group * splits {
            let width = group * UNROLL as u64;
            let in_tile = lane / WARP_SIZE * WARP_SIZE * UNROLL as u32 + lane % WARP_SIZE;
            let mut tile = split * width;
            while tile + width <= row.vectors {
                let first = tile + u64::from(in_tile);
                let mut x = [Vec16::default(); UNROLL];
                let mut t = [Vec16::default(); UNROLL];
                unrolled!(for k in 0..UNROLL; {
                    let vector = first + k as u64 * u64::from(WARP_SIZE);
                    // SAFETY: condition 1; the vector is one of `vectors`.
                    unsafe {
                        x[k] = load_streaming(row.vector_of(row.input, vector));
                        t[k] = load_streaming(row.vector_of(row.target, vector));
                    }
                });
                unrolled!(for k in 0..UNROLL; {
                    let vector = first + k as u64 * u64::from(WARP_SIZE);
                    // SAFETY: conditions 1 and 3; the vector is one of `vectors`.
                    unsafe { row.pairs::<TERMS, GRADS>(vector, x[k], t[k], &mut sums) };
                });
                tile += splits * width;
            }
            // One row group's next tile is the one that is not whole.
            (vector, step) = (tile + u64::from(lane), group);
        }

        // What the tiles leave over.
        while vector < row.vectors {
            // SAFETY: as above.
            unsafe {
                let x = row.load(row.input, vector);
                let t = row.load(row.target, vector);
                row.pairs::<TERMS, GRADS>(vector, x, t, &mut sums);
            }
            vector += step;
        }

        // What the vectors leave over, at both ends.
        let grouped = row.vectors * u64::from(E::LANES);
        let mut single = mine;
        while single < args.cols - grouped {
            let index = if single < row.head { single } else { single + grouped };
            // SAFETY: conditions 1 and 3; `index` is below `cols`.
            unsafe { row.single::<TERMS, GRADS>(index, &mut sums) };
            single += splits * group;
        }

        let mut sum = sums.plain[0];
        unrolled!(for index in 1..SUMS; {
            sum = sum + sums.plain[index];
        });
        sum.fma(L::UNIT, sums.other)
    }
}

/// Sums of a thread, side by side.
const SUMS: usize = 4;

/// The terms of a thread, summed.
struct Sums<R> {
    /// Of plain pairs, by lane, in [`Pairwise::UNIT`]s.
    plain: [R; SUMS],
    /// Of all others.
    other: R,
}

/// A row of every tensor: addresses, 0 for a tensor that is not used.
///
/// Everything but the ends of the row moves in vectors of 16 bytes, which lie on 16-byte boundaries
/// of what is written, or of the input where nothing is; the ends move element by element, and all
/// of a row that is to be written to tensors that lie unlike.
struct Row<E: Element, L, const DENSE: bool> {
    loss: L,
    input: u64,
    target: u64,
    terms: u64,
    upstream: u64,
    grad_input: u64,
    grad_target: u64,
    /// The factor of the gradients, where there is no upstream for each element.
    scale: E::Real,
    /// Elements before the first vector.
    head: u64,
    vectors: u64,
    /// Whether vectors of a tensor that is only read lie across 16-byte boundaries.
    is_shifted: bool,
}

/// Loads 16 bytes; across a boundary, if they may be `shifted`, from the two vectors that they lie
/// in.
///
/// # Safety
/// [`forward`]'s condition 1, of all elements of these vectors.
#[inline(always)]
unsafe fn load_vector_of<E: Element>(at: *const Vec16, shifted: bool) -> Vec16 {
    let shift = at as u32 % 16;
    if !shifted || shift == 0 {
        // SAFETY: the caller's condition.
        return unsafe { load_streaming(at) };
    }
    let first = at.wrapping_byte_sub(shift as usize);
    // SAFETY: the caller's condition.
    let (Vec16([a, b, c, d]), Vec16([e, f, g, h])) =
        unsafe { (load_vector(first), load_vector(first.wrapping_add(1))) };
    let words = match shift / 4 {
        0 => [a, b, c, d, e],
        1 => [b, c, d, e, f],
        2 => [c, d, e, f, g],
        _ => [d, e, f, g, h],
    };
    let mut vector = [words[0], words[1], words[2], words[3]];
    if size_of::<E>() == 2 && !shift.is_multiple_of(4) {
        unrolled!(for word in 0..4; { vector[word] = words[word] >> 16 | words[word + 1] << 16; });
    }
    Vec16(vector)
}

/// An element of a vector, widened.
#[inline(always)]
fn of_lane<E: Element>(vector: Vec16, lane: usize) -> E::Real {
    E::extract(vector, lane as u32).widen()
}

impl<E: Element, L: Pairwise<E::Real>, const DENSE: bool> Row<E, L, DENSE> {
    /// The loss of the element at `col`. Parameters of dense tensors are the same for all columns.
    ///
    /// # Safety
    /// [`forward`]'s condition 1; the column is one of `cols`.
    #[inline(always)]
    unsafe fn loss_of(&self, col: u64) -> L {
        // SAFETY: the caller's conditions.
        if DENSE { self.loss } else { unsafe { self.loss.of_col(col) } }
    }

    #[inline(always)]
    fn vector_of(&self, tensor: u64, vector: u64) -> *mut Vec16 {
        (tensor + self.head * size_of::<E>() as u64 + vector * 16) as *mut Vec16
    }

    /// Loads a vector of a tensor, wherever it lies.
    ///
    /// # Safety
    /// [`forward`]'s condition 1; the vector is one of `vectors`.
    #[inline(always)]
    unsafe fn load(&self, tensor: u64, vector: u64) -> Vec16 {
        // SAFETY: the caller's conditions; shifted vectors are not the row's first or last.
        unsafe { load_vector_of::<E>(self.vector_of(tensor, vector), self.is_shifted) }
    }

    /// Whether all pairs of a vector are plain.
    #[inline(always)]
    fn are_plain(&self, x: Vec16, t: Vec16) -> bool {
        let mut ranks = [0; 2];
        unrolled!(for lane in 0..E::LANES as usize; {
            let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
            let [of_x, of_t] = self.loss.ranks(x, t);
            ranks = [ranks[0].max(of_x), ranks[1].max(of_t)];
        });
        ranks[0].max(ranks[1]) < E::Real::PLAIN_RANKS
    }

    /// The pairs of one vector: the short way where all of them are plain.
    ///
    /// # Safety
    /// [`forward`]'s conditions 1 and 3; the vector is one of `vectors`.
    #[inline(always)]
    unsafe fn pairs<const TERMS: bool, const GRADS: bool>(
        &self,
        vector: u64,
        x: Vec16,
        t: Vec16,
        sums: &mut Sums<E::Real>,
    ) {
        // SAFETY: the caller's conditions.
        unsafe {
            if self.are_plain(x, t) {
                self.pairs_as::<TERMS, GRADS, true>(vector, x, t, sums);
            } else {
                self.pairs_as::<TERMS, GRADS, false>(vector, x, t, sums);
            }
        }
    }

    /// [`pairs`](Self::pairs), the one way or the other.
    ///
    /// # Safety
    /// As it.
    #[inline(always)]
    unsafe fn pairs_as<const TERMS: bool, const GRADS: bool, const PLAIN: bool>(
        &self,
        vector: u64,
        x: Vec16,
        t: Vec16,
        sums: &mut Sums<E::Real>,
    ) {
        let col = self.head + vector * u64::from(E::LANES);
        // Of dense tensors they are 0, as the compiler sees.
        let (to_terms, from_upstream) = match DENSE {
            true => (self.terms, self.upstream),
            false => (opaque(self.terms), opaque(self.upstream)),
        };
        if TERMS {
            let mut terms = [E::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; {
                // SAFETY: the caller's conditions.
                let loss = unsafe { self.loss_of(col + lane as u64) };
                let [a, b] = loss.term::<PLAIN>(of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                if to_terms != 0 {
                    terms[lane] = if PLAIN { a * b * L::UNIT } else { a * b };
                } else if PLAIN {
                    sums.plain[lane % SUMS] = a.fma(b, sums.plain[lane % SUMS]);
                } else {
                    sums.other = a.fma(b, sums.other);
                }
            });
            if to_terms != 0 {
                // SAFETY: the caller's conditions.
                unsafe { store_streaming(self.vector_of(to_terms, vector), E::narrow_all(terms)) };
            }
        }
        if !GRADS {
            return;
        }
        let mut scales = [self.scale; MAX_LANES];
        if from_upstream != 0 {
            // SAFETY: the caller's conditions.
            let upstream = unsafe { self.load(from_upstream, vector) };
            unrolled!(for lane in 0..E::LANES as usize; {
                scales[lane] = of_lane::<E>(upstream, lane);
            });
        }
        // SAFETY: the caller's conditions.
        unsafe { self.store_grads::<PLAIN>(vector, x, t, scales) };
    }

    /// Writes the gradients of a vector that are wanted, by the scale of each element.
    ///
    /// # Safety
    /// As [`pairs`](Self::pairs).
    #[inline(always)]
    unsafe fn store_grads<const PLAIN: bool>(
        &self,
        vector: u64,
        x: Vec16,
        t: Vec16,
        scales: [E::Real; MAX_LANES],
    ) {
        let col = self.head + vector * u64::from(E::LANES);
        let (to_input, to_target) = (opaque(self.grad_input), opaque(self.grad_target));
        let mut grads = [E::Real::ZERO; MAX_LANES];
        if to_input != 0 {
            unrolled!(for lane in 0..E::LANES as usize; {
                // SAFETY: the caller's conditions.
                let loss = unsafe { self.loss_of(col + lane as u64) };
                let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                grads[lane] = loss.grad_input::<PLAIN>(x, t, scales[lane]);
            });
            // SAFETY: the caller's conditions.
            unsafe { store_streaming(self.vector_of(to_input, vector), E::narrow_all(grads)) };
        }
        if to_target != 0 {
            unrolled!(for lane in 0..E::LANES as usize; {
                // SAFETY: the caller's conditions.
                let loss = unsafe { self.loss_of(col + lane as u64) };
                let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                grads[lane] = loss.grad_target::<PLAIN>(x, t, scales[lane]);
            });
            // SAFETY: the caller's conditions.
            unsafe { store_streaming(self.vector_of(to_target, vector), E::narrow_all(grads)) };
        }
    }

    /// One pair: writes its gradients, by `scale`, and returns the two numbers whose product is its
    /// term.
    ///
    /// # Safety
    /// [`forward`]'s conditions 1 and 3; the index is below `cols`.
    #[inline(always)]
    unsafe fn pair<const GRADS: bool>(&self, index: u64, scale: E::Real) -> [E::Real; 2] {
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

    /// One pair, of a row whose terms are summed or written.
    ///
    /// # Safety
    /// As [`pair`](Self::pair).
    #[inline(always)]
    unsafe fn single<const TERMS: bool, const GRADS: bool>(
        &self,
        index: u64,
        sums: &mut Sums<E::Real>,
    ) {
        let at = |of: u64| (of + index * size_of::<E>() as u64) as *mut E;
        // SAFETY: the caller's conditions.
        unsafe {
            let mut scale = self.scale;
            if GRADS && self.upstream != 0 {
                scale = load(at(self.upstream)).widen();
            }
            let [a, b] = self.pair::<GRADS>(index, scale);
            if TERMS && self.terms != 0 {
                store(at(self.terms), E::narrow(a * b));
            } else if TERMS {
                sums.other = a.fma(b, sums.other);
            }
        }
    }
}
