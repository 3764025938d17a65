//! Losses that compare an input x and a target t element by element. The three kernels (forward,
//! backward, and both in one pass) are the same for every such loss; [`Pairwise`] is its formula.
//!
//! Each kernel is compiled several times. With `DENSE`, the tensors have no gaps between rows and
//! the loss is reduced to a scalar, so that each tensor is treated as one row, which the whole grid
//! shares. [`backward_by_row`] does the same, and finds the row of each element. The [`packed`]
//! kernels reduce short rows by row, the [`tiled`] kernels long ones; both also compute rows with
//! gaps in one pass with their gradients. Rows that neither takes are reduced by [`forward_rows`],
//! and get their gradients from an [`indexed`] kernel. The [`indexed`] kernels compute everything
//! else that is not reduced by row: rows with gaps, a loss or an upstream gradient per element, and
//! weights that are not the same for all elements.
//!
//! A vector is 16 bytes, what one load instruction reads. A row group is the threads that share a
//! row: a power of two up to a warp, or the block.

mod indexed;
mod packed;
mod pass;
mod row;
mod row_scales;
mod tiled;

use crate::abi::{DENSE_F64_BLOCK, PairwiseArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{F64Words, Workspace, grid_sums, group_sums, is_last_block};
use core::marker::PhantomData;
use core::num::NonZeroU64;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id};
use pass::Pass;

/// The kernel entries of the pairwise loss `$type`. Entries with `_rows` are compiled without
/// `DENSE`, those with `_packed`, `_tiled` and `_indexed` from the kernels of these names, the
/// others with `DENSE`.
///
/// - `$threads` and `$both`: how many threads of a dense block, and of one of the forward-backward
///   pass, a multiprocessor has registers for.
/// - `$rows`, `$rows_both`: how many blocks of the forward pass by rows, and of the `_tiled`
///   kernels, a multiprocessor has registers for without spills; `$packed`, `$packed_both`: the
///   same of the `_packed` kernels; `$indexed` and the others: of the `_indexed` kernels.
macro_rules! kernels {
    (
        $loss:ident, $type:ty, $threads:literal and $both:literal threads,
        rows by $rows:literal $rows_both:literal,
        packed by $packed:literal $packed_both:literal,
        indexed by $indexed:literal $indexed_backward:literal $indexed_both:literal
    ) => {
        use crate::abi::{DENSE_FLIGHT, PACKED_BLOCK, PairwiseArgs, ROWS_BLOCK, TILED_BLOCK};
        use crate::pairwise::{
            backward, backward_by_row, dense_block, dense_blocks, forward, forward_backward,
            forward_rows, indexed, packed, tiled,
        };

        crate::table::kernels! {
            $loss, [f32, f64, f16, bf16],
            FORWARD = forward: forward::<E, $type, DENSE_FLIGHT>,
                (PairwiseArgs), (dense_block::<E>($threads)) by dense_blocks::<E>($threads, true),
                3 barriers;
            FORWARD_INDEXED = forward_indexed: indexed::<E, $type, true, false>,
                (PairwiseArgs), ROWS_BLOCK by $indexed, 3 barriers;
            FORWARD_ROWS = forward_rows: forward_rows::<E, $type>,
                (PairwiseArgs), ROWS_BLOCK by $rows, 2 barriers;
            BACKWARD = backward: backward::<E, $type, DENSE_FLIGHT>,
                (PairwiseArgs), (dense_block::<E>($threads)) by dense_blocks::<E>($threads, false),
                0 barriers;
            BACKWARD_BY_ROW = backward_by_row: backward_by_row::<E, $type, DENSE_FLIGHT>,
                (PairwiseArgs), ROWS_BLOCK by 3, 0 barriers;
            BACKWARD_INDEXED = backward_indexed: indexed::<E, $type, false, true>,
                (PairwiseArgs), ROWS_BLOCK by $indexed_backward, 0 barriers;
            FORWARD_BACKWARD = forward_backward: forward_backward::<E, $type, DENSE_FLIGHT>,
                (PairwiseArgs), (dense_block::<E>($both)) by dense_blocks::<E>($both, true),
                3 barriers;
            FORWARD_BACKWARD_INDEXED = forward_backward_indexed:
                indexed::<E, $type, true, true>,
                (PairwiseArgs), ROWS_BLOCK by $indexed_both, 3 barriers;
            FORWARD_PACKED = forward_packed: packed::<E, $type, false>,
                (PairwiseArgs), PACKED_BLOCK by $packed, 0 barriers;
            FORWARD_BACKWARD_PACKED = forward_backward_packed: packed::<E, $type, true>,
                (PairwiseArgs), PACKED_BLOCK by $packed_both, 3 barriers;
            FORWARD_TILED = forward_tiled: tiled::<E, $type, false>,
                (PairwiseArgs), TILED_BLOCK by $rows, 2 barriers;
            FORWARD_BACKWARD_TILED = forward_backward_tiled: tiled::<E, $type, true>,
                (PairwiseArgs), TILED_BLOCK by $rows_both, 5 barriers;
        }
    };
}
pub(crate) use kernels;

/// The most threads of a dense block, where a multiprocessor has registers for `threads`.
pub(crate) const fn dense_block<E: Element>(threads: u32) -> u32 {
    if size_of::<E>() == 8 { DENSE_F64_BLOCK } else { threads }
}

/// The dense blocks that a multiprocessor has registers for at a time. An f64 value takes two
/// registers, so a pass that has a sum runs three quarters of the threads: with more, the
/// divergence of probabilities spills.
pub(crate) const fn dense_blocks<E: Element>(threads: u32, has_sum: bool) -> u32 {
    let part = if has_sum { 3 } else { 4 };
    if size_of::<E>() == 8 { threads * part / 4 / DENSE_F64_BLOCK } else { 1 }
}

/// The formula of a loss over pairs (x, t).
pub(crate) trait Pairwise<R: Real>: Copy {
    /// The loss with the parameter that `args` carries by value.
    fn new(args: &PairwiseArgs) -> Self;
    /// The loss with the parameters of a row, which are loaded from memory.
    ///
    /// # Safety
    /// 1. [`forward`]'s condition 1 holds.
    /// 2. The row is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn of_row(self, _: u64) -> Self {
        self
    }
    /// The loss [of a row](Self::of_row), with the parameters of a column.
    ///
    /// # Safety
    /// 1. [`forward`]'s condition 1 holds.
    /// 2. The column is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn of_col(self, _: u64) -> Self {
        self
    }
    /// The unit of the terms of plain pairs: sums are multiplied by it once, at the end, instead of
    /// each term.
    const UNIT: R = R::ONE;
    /// Whether, in a backward pass, each of the two gradients computes by itself what both need: to
    /// share it would need more registers than there are.
    const GRADS_APART: bool = false;
    /// Whether elements may have weights of their own.
    const HAS_WEIGHTS: bool = false;
    /// Whether a backward pass has registers left for the upstream gradients of rows while it waits
    /// for the pairs to arrive.
    const EARLY_SCALES: bool = size_of::<R>() < 8;
    /// Whether there are pairs that are not plain: whether [`ranks`](Self::ranks) is not 0.
    const HAS_RANKS: bool = false;
    /// The [`Real::rank`] of x and of t, or 0 for one whose value does not matter. A pair is plain
    /// if both ranks are below [`Real::PLAIN_RANKS`]; with `PLAIN`, the methods below compute plain
    /// pairs in fewer instructions.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn ranks(self, _: R, _: R) -> [u32; 2] {
        [0; 2]
    }
    /// The pair's term, as two factors, so that the caller adds their product to a sum with one
    /// fused multiply-add. With `PLAIN`, the product is in [`UNIT`](Self::UNIT)s.
    fn term<const PLAIN: bool>(self, x: R, t: R) -> [R; 2];
    /// The derivative of the term by x, times `scale`.
    fn grad_input<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R;
    /// The derivative of the term by t, times `scale`.
    fn grad_target<const PLAIN: bool>(self, x: R, t: R, scale: R) -> R;
}

/// Writes the loss: Σ term ÷ divisor over all pairs or over each row, or the terms themselves.
///
/// # Safety
/// 1. `args` is as [`PairwiseArgs`] says. Tensors that are not null have `rows` rows of `cols`
///    elements in global memory, aligned for their type. `loss` and `upstream` have elements of
///    type `E::Real` if the loss is reduced, and of type `E` if it is not.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions, and has room for the partial sums of
///    the launch.
/// 3. A tensor that is written overlaps no other tensor of `args`, except that a gradient may have
///    the same address and strides as the tensor that it is the gradient of.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward<E: Element, L: Pairwise<E::Real>, const UNROLL: usize>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { dense::<E, L, true, false, false, UNROLL>(args) }
}

/// Writes each gradient whose address is not null: upstream ÷ divisor × derivative of the term.
///
/// # Safety
/// As [`forward`], for dense tensors.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn backward<E: Element, L: Pairwise<E::Real>, const UNROLL: usize>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { dense::<E, L, false, true, false, UNROLL>(args) }
}

/// [`backward`] for dense tensors that are treated as one row, where each row has an upstream
/// gradient.
///
/// # Safety
/// As [`forward`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn backward_by_row<E: Element, L: Pairwise<E::Real>, const UNROLL: usize>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { dense::<E, L, false, true, true, UNROLL>(args) }
}

/// [`forward`] and [`backward`] in one pass, which reads input and target once.
///
/// # Safety
/// As [`forward`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_backward<E: Element, L: Pairwise<E::Real>, const UNROLL: usize>(
    args: &PairwiseArgs,
) {
    // SAFETY: the caller's conditions.
    unsafe { dense::<E, L, true, true, false, UNROLL>(args) }
}

/// Computes dense tensors, which are treated as one row: each block takes a part of it. `rows`,
/// `group_threads`, `splits` and the strides of `args` are ignored.
///
/// # Safety
/// As [`forward`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn dense<
    E: Element,
    L: Pairwise<E::Real>,
    const TERMS: bool,
    const GRADS: bool,
    const BY_ROW: bool,
    const UNROLL: usize,
>(
    args: &PairwiseArgs,
) {
    let pass = Pass::<E, L, true> { args, loss: L::new(args), element: PhantomData };
    let (split, lane) = (u64::from(block_idx_x()), thread_idx_x());
    // SAFETY: conditions 1 and 3.
    let sum = unsafe { pass.part::<TERMS, GRADS, BY_ROW, UNROLL>(0, split, lane) };
    if TERMS {
        // SAFETY: conditions 1 and 2.
        unsafe {
            let workspace = Workspace::new(args.workspace);
            grid_sums([sum.to_f64()], workspace, |[sum]| pass.finish(0, sum));
        }
    }
}

/// [`forward`] with a loss for each row, of any tensors: those that the [`packed`] and the
/// [`tiled`] kernels do not take. Gives each part of a row to one row group, then reduces the sums
/// of the parts. Losses without weights seldom have such rows, so theirs are read element by
/// element, in little code.
///
/// # Safety
/// As [`forward`]. For losses without weights, rows have one part.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_rows<E: Element, L: Pairwise<E::Real>>(args: &PairwiseArgs) {
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let pass = Pass::<E, L, false> { args, loss: L::new(args), element: PhantomData };
    let group = args.group_threads.get();
    let lane = if group > WARP_SIZE { thread_idx_x() } else { thread_idx_x() & (group - 1) };
    let groups_of_block = block_dim_x() / args.group_threads;
    let groups = u64::from(grid_dim_x()) * u64::from(groups_of_block);
    let first = u64::from(block_idx_x()) * u64::from(groups_of_block);
    let splits = if L::HAS_WEIGHTS { NonZeroU64::from(args.splits) } else { NonZeroU64::MIN };
    let parts = args.rows * splits.get();

    // The shuffles of `group_sums` need every lane of the warp, so a warp loops until the first of
    // its row groups, whose index is the lowest, has no part left.
    let mut first_of_warp = first + u64::from((thread_idx_x() - lane_id()) / args.group_threads);
    let mut part = first + u64::from(thread_idx_x() / args.group_threads);
    while first_of_warp < parts {
        let (row, split) =
            if splits.get() == 1 { (part, 0) } else { (part / splits, part % splits) };
        let mut sum = E::Real::ZERO;
        if part < parts {
            // SAFETY: conditions 1 and 3; the row is one of `rows`.
            sum = unsafe {
                if L::HAS_WEIGHTS {
                    pass.part::<true, false, false, 1>(row, split, lane)
                } else {
                    pass.elements(row, split, lane)
                }
            };
        }
        let [sum] = group_sums([sum.to_f64()], group);
        if lane == 0 && part < parts {
            // SAFETY: conditions 1 and 2; no other row group has this part.
            unsafe {
                if splits.get() == 1 {
                    pass.finish(row, sum);
                } else {
                    workspace.publish(part as u32, sum);
                }
            }
        }
        if group > WARP_SIZE {
            sync_threads();
        }
        first_of_warp += groups;
        part += groups;
    }
    if L::HAS_WEIGHTS {
        // SAFETY: the caller's conditions; the parts' sums are published.
        unsafe { finish_split_rows(&pass, workspace) };
    }
}

/// [`forward`], [`backward`] or both, as `TERMS` and `GRADS` say, for losses that are not reduced
/// by row, of any tensors.
///
/// # Safety
/// 1. As [`forward`].
/// 2. `args.indexed` is as [`IndexedArgs`](crate::abi::IndexedArgs) says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn indexed<
    E: Element,
    L: Pairwise<E::Real>,
    const TERMS: bool,
    const GRADS: bool,
>(
    args: &PairwiseArgs,
) {
    let pass = Pass::<E, L, false> { args, loss: L::new(args), element: PhantomData };
    // SAFETY: the caller's conditions.
    unsafe {
        let sum = pass.indexed::<TERMS, GRADS>();
        if TERMS && args.reduction == reduction::SCALAR {
            let workspace = Workspace::new(args.workspace);
            grid_sums([sum.to_f64()], workspace, |[sum]| pass.finish(0, sum));
        }
    }
}

/// [`forward`] with a loss for each row, and [`backward`] with `GRADS`, for rows that are packed
/// into tiles.
///
/// # Safety
/// 1. As [`forward`].
/// 2. `args.packed` and the launch are as [`PairwiseArgs`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn packed<E: Element, L: Pairwise<E::Real>, const GRADS: bool>(
    args: &PairwiseArgs,
) {
    let pass = Pass::<E, L, false> { args, loss: L::new(args), element: PhantomData };
    // SAFETY: the caller's conditions.
    unsafe {
        // The weights have no strides, so those of the first row apply to all.
        let pass = Pass { loss: pass.loss.of_row(0), ..pass };
        pass.packed::<GRADS>();
    }
}

/// [`forward`], and [`backward`] with `GRADS`, for losses by row, whose rows are cut into tiles.
///
/// # Safety
/// 1. As [`forward`].
/// 2. `args.tiles` and the launch are as [`TiledArgs`](crate::abi::TiledArgs) says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn tiled<E: Element, L: Pairwise<E::Real>, const GRADS: bool>(
    args: &PairwiseArgs,
) {
    let pass = Pass::<E, L, false> { args, loss: L::new(args), element: PhantomData };
    // SAFETY: the caller's conditions.
    unsafe {
        // The weights have no strides, so those of the first row apply to all.
        let pass = Pass { loss: pass.loss.of_row(0), ..pass };
        let workspace = Workspace::new(args.workspace);
        pass.tiled::<GRADS>(workspace);
        if args.reduction == reduction::ROWS {
            finish_split_rows(&pass, workspace);
        }
    }
}

/// Parts of a row that a lane loads at once.
const PARTS_AT_ONCE: usize = 4;

/// Sums the parts of each row, if rows have several parts, and writes the losses.
///
/// # Safety
/// As [`forward`], with a loss by row; all threads of the grid call it, and each block has
/// published the sums of its parts, as the word of the part's index.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn finish_split_rows<E: Element, L: Pairwise<E::Real>>(
    pass: &Pass<'_, E, L, false>,
    workspace: Workspace,
) {
    let args = pass.args;
    if args.splits.get() == 1 || !is_last_block() {
        return;
    }
    // As many lanes per row as load all its parts at once: with fewer, rows would be loaded one
    // after another, and each would take as long as a load.
    let parts = args.splits.get();
    let group = parts.div_ceil(PARTS_AT_ONCE as u32).next_power_of_two().min(WARP_SIZE);
    let groups = block_dim_x() / group;
    let lane = lane_id() % group;
    // All lanes of a warp load and sum together, so a warp goes on until its first group has no row
    // left.
    let mut first_of_warp = (thread_idx_x() - lane_id()) / group;
    let mut row = thread_idx_x() / group;
    while u64::from(first_of_warp) < args.rows {
        let has_row = u64::from(row) < args.rows;
        // SAFETY: every part's sum is published at the part's index, by a block whose index is not
        // above this one's.
        let share = unsafe {
            // A part's index fits into 32 bits, because `rows * splits` is at most `MAX_PARTIALS`.
            let first = row * parts;
            let thread = if has_row { lane } else { parts };
            workspace.share::<F64Words, 1, PARTS_AT_ONCE>(
                [0.0],
                [first, 0],
                (0, parts),
                (thread, group),
            )
        };
        let [sum] = group_sums(share, group);
        if lane == 0 && has_row {
            // SAFETY: condition 1.
            unsafe { pass.finish(row.into(), sum) };
        }
        (first_of_warp, row) = (first_of_warp + groups, row + groups);
    }
}
