//! The loss and the gradients in one pass, with one block per row, which is staged in shared
//! memory. Where a row has no room there, a group of blocks stages a part of it each
//! ([`split`](super::split)).
//!
//! In f64 the exponentials take longer than the memory, so each is computed once, and replaces its
//! logit in shared memory until the row's sum is known. In f32 and the 16-bit types they are
//! computed again: 16 bits would round them, and of f32 the memory takes longer.
//!
//! Each thread copies, reads and overwrites vectors of its own, so only sums wait for other
//! threads. Which ones, [`batches`] says.

use super::finish::{finish_grid, publish_terms};
use super::label::{normaliser, sum_class_weights, sum_normaliser};
use super::mode;
use super::pass::{Pass, Total, scales_of_row, writes};
use super::row_group::Rows;
use super::stats::Stats;
use crate::abi::{CACHE_LINE, CrossEntropyArgs, Matrix, NORMALISER_FLIGHT};
use crate::cut::{Cut, Row};
use crate::element::{Element, Real};
use crate::reduce::{self, Workspace, block_sums};
use cuda_std::SharedArray;
use cuda_std::memory::{Vec16, wait_for_copies};
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};

cuda_std::shared_array! {
    /// The row's vectors, numbered as in its [`Cut`], and later the exponentials of its logits.
    fn row_vectors() -> [Vec16];
}

/// Calls a method for each of this thread's batches: for `FLIGHT` vectors at a time, from an index
/// on. Then for each vector that is left, unless the last batch is
/// [padded](StagedRow::IS_PADDED).
macro_rules! each_batch {
    ($row:ident.$method:ident($($argument:expr),*)) => {{
        let mut index = $row.first;
        while $row.has_batch(index) {
            $row.$method::<FLIGHT>(index $(, $argument)*);
            index += $row.step;
        }
        while !Self::IS_PADDED && index < $row.end {
            $row.$method::<1>(index $(, $argument)*);
            index += Self::stride();
        }
    }};
}

mod batches;
mod gradients;
mod statistics;

type BlockRank = reduce::BlockRank<1>;

/// The loss and the gradients of rows that fit in a block's shared memory.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The grid has `normaliser_blocks` blocks that sum the normaliser, and behind them one of
///    `abi::grid_of_workers`.
/// 3. A block has dynamic shared memory for as many vectors as a row may have, with those of its
///    first cache line that are before the row; unless the statistics sum the target's shares, for
///    a multiple of [`STAGED_BATCH_VECTORS`](crate::abi::STAGED_BATCH_VECTORS).
/// 4. `staged_vectors` is 0, or the number of vectors of condition 3, and shared memory has room
///    for twice as many. It is not 0 if probabilities are the target, of which no gradients are
///    computed. Unless [`stages_misaligned`](crate::abi::stages_misaligned) says otherwise, the
///    probabilities are aligned like the logits of each row.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_backward_staged<E: Element, const MODE: u32, const FLIGHT: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: the kernels' conditions.
    let workspace = unsafe {
        pass.begin_with_normaliser();
        Workspace::new(args.workspace)
    };
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { StagedRow::<E, MODE, FLIGHT>::sum_ahead(args) };
        return;
    }
    let rank = || BlockRank::with_shift(args.adder_shift, args.normaliser_blocks);
    let row_at = |index| Rows::row(args, rank(), index);
    let Some(mut row) = row_at(0) else {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { finish_grid::<true, 8, E, MODE, _>(&pass, rank(), workspace) };
        return;
    };
    let first = thread_idx_x() == 0;
    let (mut index, mut terms) = (0, [0.0; 2]);
    loop {
        // SAFETY: the caller's conditions; a barrier separates the scales of one row from those of
        // the next.
        unsafe {
            let staged = StagedRow::<E, MODE, FLIGHT>::new(&pass, row);
            staged.copy();
            let class = pass.class(row);
            let label = pass.label(class);
            // Read before gradients overwrite it: barriers stand in between.
            let logit = pass.logit(row, class);
            // A scale that is the same for all rows is computed for the first one.
            if first && (index == 0 || args.upstream_stride != 0) {
                // Only one thread loads the normaliser: if all did, each would wait for the others.
                let normaliser = normaliser(args);
                let set = |index, value: E::Real| scales_of_row().set(index, value.to_bits64());
                set(0, pass.scale(row, normaliser, Total::Weights));
                if args.z_loss != 0.0 {
                    set(1, pass.scale(row, normaliser, Total::Rows));
                }
                if StagedRow::<E, MODE, FLIGHT>::HAS_LATE_SHARES {
                    set(2, pass.sum_of_shares(workspace));
                }
            }
            let mut stats = if label.counts {
                staged.statistics().of_row()
            } else {
                wait_for_copies::<0>();
                sync_threads();
                Stats::NONE
            };
            let scale = |index| E::Real::from_bits64(scales_of_row().get(index));
            if StagedRow::<E, MODE, FLIGHT>::HAS_LATE_SHARES {
                stats.weight = scale(2);
            }
            let factors = pass.factors(&label, stats, scale(0), || scale(1));
            let next = row_at(index + 1);
            let mut finish = |stats| {
                let of_row =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                terms = [terms[0] + of_row[0], terms[1] + of_row[2]];
                if next.is_none() {
                    let terms = [terms[0], terms[1], 0.0, 0.0];
                    publish_terms::<E::Real, _>(rank(), terms, 1, workspace);
                }
            };
            // Before the gradients, if possible: the end of the grid waits for it.
            if first && !StagedRow::<E, MODE, FLIGHT>::HAS_LATE_SHARES {
                finish(stats);
            }
            let at_class = pass.at_class(&label, &factors, logit);
            let dot = staged.store_gradients(row, &label, &factors, factors.factor, at_class, None);
            if StagedRow::<E, MODE, FLIGHT>::HAS_LATE_SHARES {
                [stats.dot] = block_sums::<E::Real, false, 1>([dot]);
                if first {
                    finish(stats);
                }
            }
            let Some(next) = next else { return };
            row = next;
        }
        index += 1;
        // The next row's scales replace these.
        sync_threads();
    }
}

/// A row or a block's part of one, and which of its vectors are this thread's ([`batches`]). A
/// thread has at most one peeled element.
pub(super) struct StagedRow<'a, E: Element, const MODE: u32, const FLIGHT: usize> {
    pass: &'a Pass<'a, E, MODE>,
    row: Row<E>,
    cut: Cut<E>,
    vectors: SharedArray<Vec16>,
    /// The address of the cache line that the row begins in, where vectors are numbered from.
    line: u64,
    /// The address that corresponds to `line` in the target's probabilities, if these are staged
    /// beside the logits, and the index of their first vector in shared memory.
    target_line: u64,
    targets: u32,
    /// The vector that the part, and shared memory, begins with.
    base: u32,
    /// The row's vectors in the part, from and to.
    begin: u32,
    end: u32,
    /// This thread's first vector.
    first: u32,
    /// Vectors from one of its batches to the next.
    step: u32,
}

/// An element by itself: its index in the row, its logit, and its probability in the target, which
/// is 0 where probabilities are not the target.
#[derive(Clone, Copy)]
struct Peeled<R> {
    index: u32,
    x: R,
    t: R,
}

impl<'a, E: Element, const MODE: u32, const FLIGHT: usize> StagedRow<'a, E, MODE, FLIGHT> {
    const DENSE: bool = Pass::<E, MODE>::DENSE;
    const HAS_LATE_SHARES: bool = Pass::<E, MODE>::HAS_LATE_SHARES;
    /// Whether the statistics include sums of the target's shares.
    const HAS_SHARE_SUMS: bool = Self::DENSE && !Self::HAS_LATE_SHARES;
    /// Whether the target's probabilities are staged beside the logits.
    const HAS_PROBABILITIES: bool = MODE == mode::PROBABILITIES;
    /// Whether gradients subtract the shares of a vector at a time. In f64 that spills.
    const HAS_SHARE_VECTORS: bool = size_of::<E>() < 8;
    /// Whether exponentials replace their logits until the gradients are computed.
    pub(super) const KEEPS_EXPS: bool = size_of::<E>() > 4;

    /// Sums this block's part of what blocks of rows wait for: the normaliser, and all class
    /// weights where shares are late.
    ///
    /// # Safety
    /// As [`sum_normaliser`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn sum_ahead(args: &CrossEntropyArgs) {
        // SAFETY: the caller's conditions.
        unsafe {
            if !(Self::HAS_LATE_SHARES && MODE == mode::WEIGHTED) {
                sum_normaliser::<E, NORMALISER_FLIGHT>(args);
                return;
            }
            sum_class_weights::<E>(args);
            if args.divisor == 0.0 {
                sync_threads();
                sum_normaliser::<E, NORMALISER_FLIGHT>(args);
            }
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(pass: &'a Pass<'a, E, MODE>, row: u64) -> Self {
        Self::part(pass, row, 0, u32::MAX)
    }

    /// The vectors `base..end` of a row, with the row's peeled elements if it begins with them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn part(pass: &'a Pass<'a, E, MODE>, row_index: u64, base: u32, end: u32) -> Self {
        let start = Row::<E>::address(pass.args.input, row_index);
        let cut = Cut::at_lines(start, pass.args.cols);
        let (begin, end) = (cut.first().max(base), cut.end.min(end));
        let (first, step) = (Self::first_of_thread(base, cut), block_dim_x() * FLIGHT as u32);
        let (row, vectors) = (Row::at_cut(start), row_vectors().in_register());
        let line = start.next_multiple_of(16) & !u64::from(CACHE_LINE - 1);
        let before = line.wrapping_sub(start);
        let args = pass.args;
        let target_line = if Self::HAS_PROBABILITIES {
            let CrossEntropyArgs { target: start, target_stride: row_stride, .. } = *args;
            Row::<E>::address(Matrix { start, row_stride }, row_index).wrapping_add(before)
        } else {
            0
        };
        let targets = args.staged_vectors;
        StagedRow {
            pass,
            row,
            cut,
            vectors,
            line,
            target_line,
            targets,
            base,
            begin,
            end,
            first,
            step,
        }
    }

    /// The row's peeled element that is this thread's.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn peeled(&self) -> Option<Peeled<E::Real>> {
        let number = thread_idx_x();
        (self.base == 0 && number < self.cut.peeled_count()).then(|| {
            let index = self.cut.peeled_index(number);
            let target = self.target_line.wrapping_add(self.row.start()).wrapping_sub(self.line);
            // SAFETY: the caller's condition.
            let load = |row: Row<E>| unsafe { row.load(index) }.widen();
            let t = if Self::HAS_PROBABILITIES { load(Row::at_cut(target)) } else { E::Real::ZERO };
            Peeled { index, x: load(self.row), t }
        })
    }
}
