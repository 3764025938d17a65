//! Short rows, of which a warp takes one or several at once and holds them in registers.

use super::finish::{finish_grid, has_sums, publish_terms};
use super::label::{Label, load_class, normaliser, sum_normaliser};
use super::lanes::{Lanes, alignment};
use super::mode;
use super::pass::{Asked, Pass, TERMS, Total, writes};
use super::row_group::{RowGroup, Rows};
use super::stats::{Relative, Stats};
use crate::abi::{CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{self, Workspace, sums_in_lane};
use cuda_std::hint::opaque;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

/// Rows of a block at once, at most: one a row group, of 2 threads or more.
const MOST_ROWS: usize = 128;

cuda_std::shared_array! {
    /// Six numbers for each of [`MOST_ROWS`].
    fn rows_of_block() -> [u64; 768];
}

/// What the first warp of a block finishes the rows of its row groups from: all at once, where each warp
/// would take as long for its few.
struct RowsOfBlock;

impl RowsOfBlock {
    const CLASS: usize = 4;
    const LOGIT: usize = 5;

    #[inline(always)]
    fn at(part: usize, row: u32) -> u32 {
        part as u32 * MOST_ROWS as u32 + row
    }

    /// Keeps what row `row` of the block's comes to; see [`Stats::parts_used`].
    ///
    /// # Safety
    /// One thread stages each row, and a barrier stands before anybody asks for it and between that
    /// and the next.
    #[inline(always)]
    unsafe fn stage<R: Real>(row: u32, stats: Stats<R>, dense: bool) {
        let parts = stats.parts();
        unrolled!(for part in 0..4; {
            if part < Stats::<R>::parts_used(dense) {
                // SAFETY: the caller's conditions.
                unsafe { rows_of_block().set(Self::at(part, row), parts[part].to_bits64()) };
            }
        });
    }

    /// Keeps its class.
    ///
    /// # Safety
    /// As [`stage`](Self::stage).
    #[inline(always)]
    unsafe fn stage_class(row: u32, class: i64) {
        // SAFETY: the caller's conditions.
        unsafe { rows_of_block().set(Self::at(Self::CLASS, row), class.cast_unsigned()) };
    }

    /// Keeps the logit of its class.
    ///
    /// # Safety
    /// As [`stage`](Self::stage).
    #[inline(always)]
    unsafe fn stage_logit<R: Real>(row: u32, logit: R) {
        // SAFETY: the caller's conditions.
        unsafe { rows_of_block().set(Self::at(Self::LOGIT, row), logit.to_bits64()) };
    }

    /// # Safety
    /// They have been staged, and a barrier stands between.
    #[inline(always)]
    unsafe fn staged<R: Real>(row: u32, dense: bool) -> Stats<R> {
        let mut parts = [R::ZERO; 4];
        unrolled!(for part in 0..4; {
            if part < Stats::<R>::parts_used(dense) {
                // SAFETY: the caller's condition.
                parts[part] = R::from_bits64(unsafe { rows_of_block().get(Self::at(part, row)) });
            }
        });
        Stats::of_parts(parts)
    }

    /// # Safety
    /// As [`staged`](Self::staged).
    #[inline(always)]
    unsafe fn staged_class(row: u32) -> i64 {
        // SAFETY: the caller's condition.
        unsafe { rows_of_block().get(Self::at(Self::CLASS, row)) }.cast_signed()
    }

    /// # Safety
    /// As [`staged`](Self::staged).
    #[inline(always)]
    unsafe fn staged_logit<R: Real>(row: u32) -> R {
        // SAFETY: the caller's condition.
        R::from_bits64(unsafe { rows_of_block().get(Self::at(Self::LOGIT, row)) })
    }
}

cuda_std::shared_array! {
    /// [`TERMS`] sums for each lane of a warp.
    fn lane_terms() -> [f64; 128];
}

/// The sums over the rows that each lane of a block's first warp has finished, while the block
/// reads others: in no registers.
struct LaneTerms;

impl LaneTerms {
    #[inline(always)]
    fn at(term: usize) -> u32 {
        term as u32 * WARP_SIZE + lane_id()
    }

    #[inline(always)]
    fn set(terms: [f64; TERMS]) {
        unrolled!(for term in 0..TERMS; {
            // SAFETY: one warp, each lane its own.
            unsafe { lane_terms().set(Self::at(term), terms[term]) };
        });
    }

    #[inline(always)]
    fn get() -> [f64; TERMS] {
        let mut terms = [0.0; TERMS];
        unrolled!(for term in 0..TERMS; {
            // SAFETY: the same lane has set it.
            terms[term] = unsafe { lane_terms().get(Self::at(term)) };
        });
        terms
    }
}

/// How early the block begins that adds up the grid.
type BlockRank = reduce::BlockRank<2>;

/// The loss, and with `GRADS` the gradients, of rows of at most `VECTORS` vectors of 16 bytes a thread
/// of a row group.
///
/// Each row group takes a row, and then the first warp of the block finishes them all.
///
/// # Safety
/// The kernels' conditions ([`super`]). A row group is a power of two of 2 to 32 threads that holds a
/// row, in a block of at most 256; rows lie as `ALIGNMENT` says, [`ALIKE`](super::alignment::SAME) or
/// [`SHORT`](super::alignment::WARP_ROW). The grid has `abi::grid_of_workers`, with gradients behind those
/// that add up totals.
#[inline(always)]
pub(crate) unsafe fn short<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const ALIGNMENT: u32,
    const GRADS: bool,
    const MANY: bool,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let group = RowGroup::of_threads(args);
    let rank = BlockRank::of_block(if GRADS { args.normaliser_blocks } else { 0 });
    if GRADS {
        // SAFETY: the caller's conditions.
        unsafe { pass.begin_with_normaliser() };
        if block_idx_x() < args.normaliser_blocks {
            // SAFETY: conditions 1 and 2.
            unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
            return;
        }
    }
    let rows = Rows::of_block::<MANY, _>(args, rank);
    let mut lanes = None;
    if !GRADS {
        // Where the row is, is not to be computed behind the launches before.
        lanes = rows.as_ref().map(|rows| {
            let row = row_of::<MANY>(rows.next, group.in_block);
            Lanes::<E, ALIGNMENT>::new(&pass, row_to_read::<E, MODE, MANY>(&pass, row, true))
                .rematerialize()
        });
        // SAFETY: the caller's conditions.
        unsafe { pass.begin_at(block_idx_x(), lanes.as_ref().map(Lanes::start), group) };
    }
    let Some(rows) = rows else {
        // SAFETY: conditions 1 and 2.
        unsafe { finish_grid::<GRADS, 4, E, MODE, _>(&pass, rank, workspace) };
        return;
    };
    let mut next = rows.next;
    loop {
        // SAFETY: the caller's conditions.
        unsafe {
            turn::<E, MODE, VECTORS, ALIGNMENT, GRADS, MANY>(
                &pass, next, lanes, &rows, rank, workspace,
            );
        }
        if !MANY {
            return;
        }
        next += u64::from(group.of_block);
        if next >= rows.end {
            return;
        }
        // What is staged of the rows before is to be replaced.
        sync_threads();
        lanes = None;
    }
}

/// Row `index` behind `first`; unless there may be `MANY`, of fewer than 2³².
#[inline(always)]
fn row_of<const MANY: bool>(first: u64, index: u32) -> u64 {
    if MANY { first + u64::from(index) } else { (first as u32 + index).into() }
}

/// The row to read as `row`: the last in place of one that is none, or that is not to be `read`.
#[inline(always)]
fn row_to_read<E: Element, const MODE: u32, const MANY: bool>(
    pass: &Pass<'_, E, MODE>,
    row: u64,
    read: bool,
) -> u64 {
    let last = pass.args.rows.wrapping_sub(1);
    let (row, last) = if MANY { (row, last) } else { ((row as u32).into(), (last as u32).into()) };
    if read { row.min(last) } else { last }
}

/// A row for each row group of the block at `place`: of its `rows` those from `first` on.
///
/// # Safety
/// As [`short`]; a barrier stands between two turns.
#[inline(always)]
unsafe fn turn<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const ALIGNMENT: u32,
    const GRADS: bool,
    const MANY: bool,
>(
    pass: &Pass<'_, E, MODE>,
    first: u64,
    lanes: Option<Lanes<E, ALIGNMENT>>,
    rows: &Rows,
    rank: BlockRank,
    workspace: Workspace,
) {
    let args = pass.args;
    // SAFETY: condition 2.
    let ahead = unsafe { normaliser(args) };
    let group = RowGroup::of_threads(args);
    let row = row_of::<MANY>(first, group.in_block);
    let is_row = |row| if MANY { row < args.rows } else { (row as u32) < args.rows as u32 };
    // The class of which row of the block's this thread asks for and stages: where the row's row group
    // needs it, each of its threads.
    let index = if GRADS { group.in_block } else { thread_idx_x() };
    let has_class = MODE != mode::PROBABILITIES
        && index < group.of_block
        && is_row(row_of::<MANY>(first, index));
    // SAFETY: the caller's conditions; in place of a row that is none, or of a whole one that does
    // not count, the last is read, for nothing, and though its gradients may lie there by then:
    // cheaper than to ask of each vector whether it is to be read.
    unsafe {
        let mut class = 0;
        if GRADS && has_class {
            class = load_class(args, row_of::<MANY>(first, index));
        }
        // Waits for the class: beside what is written, memory is faster with fewer reads under way.
        let read = !GRADS || MODE == mode::PROBABILITIES || class != args.ignore_index;
        let at = row_to_read::<E, MODE, MANY>(pass, row, read || ALIGNMENT != alignment::WARP_ROW);
        let lanes = lanes.unwrap_or_else(|| Lanes::new(pass, at));
        let mut held =
            lanes.tile::<VECTORS>(group.lane, read || ALIGNMENT == alignment::WARP_ROW, group);
        let mut totals = None;
        if GRADS && is_row(row) {
            totals = Some(Asked::new(args, ahead));
        }
        // All of it asked for first: a wait for the class would be moved to between.
        sync_warp();
        if !GRADS {
            if has_class {
                class = load_class(args, row_of::<MANY>(first, index));
            }
            sync_warp();
        }
        let mut logit = None;
        if GRADS {
            pass.prefetch(row, group);
            // Before it is overwritten: the row group meets for its sums before it writes.
            logit = lanes.logit_of_class(pass, class, &held, group);
            if let Some(logit) = logit {
                RowsOfBlock::stage_logit(index, logit);
            }
        } else if MODE != mode::PROBABILITIES {
            held.stage();
        }
        let label = if GRADS { pass.label(class) } else { Label::NONE };
        if GRADS && !label.counts {
            held.forget::<E>();
        }
        let read = !GRADS || label.counts;
        let (stats, exps) = lanes.stats_of_tile::<MODE, VECTORS, GRADS>(pass, &held, read, group);
        let stats = stats.of_row();
        if group.lane == 0 {
            RowsOfBlock::stage(group.in_block, stats, Pass::<E, MODE>::DENSE);
        }
        if let Some(totals) = totals {
            let scale_of = |which| pass.scale(row, totals, which);
            let factors =
                pass.factors(&label, stats, scale_of(Total::Weights), || scale_of(Total::Rows));
            let to = lanes.to(pass, row);
            // Written with its vector: in so short a row, by itself it would be a store more in
            // sixteen, of a part of what memory moves.
            let at_class = logit.map(|logit| pass.at_class(&label, &factors, logit));
            if Pass::<E, MODE>::DENSE {
                let class = at_class.map(|at_class| (label.class, at_class));
                let held = held.rematerialize();
                lanes.gradients_of_tile::<MODE, VECTORS>(pass, class, &factors, to, &held);
            } else {
                let unit = Relative::<_, MODE>::to(factors.center).unit();
                let class = (label.class, |_| at_class.unwrap_or(E::Real::ZERO));
                // Asked rematerialize where the vectors are: from the reads on, that would take registers.
                let held = held.at(group.rematerialize().lane, group.threads);
                lanes.gradients_of_exps(&exps, unit * factors.factor, class, to[0], &held);
            }
            let of_class = |logit| pass.store_at_class(&label, &factors, logit, to[0]);
            lanes.gradients_of_peeled(pass, &label, &factors, to, of_class, group);
        }
        if has_class && (!GRADS || group.lane == 0) {
            RowsOfBlock::stage_class(index, class);
            if !GRADS {
                let lanes = Lanes::<E, ALIGNMENT>::new(pass, first + u64::from(index));
                if let Some(logit) = lanes.logit_of_peeled(class, args.cols) {
                    RowsOfBlock::stage_logit(index, logit);
                }
            }
        }
        sync_threads();
        if warp_id() > 0 {
            return;
        }
        let mut terms = if MANY && first > rows.next { LaneTerms::get() } else { [0.0; TERMS] };
        let count = (rows.end - first).min(group.of_block.into()) as u32;
        terms = if !GRADS && pass.is_plain() {
            finish_rows::<E, MODE, ALIGNMENT, GRADS, true>(
                pass, terms, first, count, group, workspace,
            )
        } else {
            finish_rows::<E, MODE, ALIGNMENT, GRADS, false>(
                pass, terms, first, count, group, workspace,
            )
        };
        if MANY && first + u64::from(group.of_block) < rows.end {
            LaneTerms::set(terms);
        } else if GRADS || has_sums(args) {
            let (terms, pairs) = if GRADS || pass.has_two_sums() {
                let second = if GRADS { terms[2] } else { terms[1] };
                let [loss, second] = sums_in_lane([terms[0], second]);
                ([loss, second, 0.0, 0.0], 1)
            } else {
                (sums_in_lane(terms), 2)
            };
            if lane_id() == 0 {
                publish_terms::<E::Real, _>(rank, terms, pairs, workspace);
            }
        }
    }
}

/// What this lane's rows add to its `terms`, of `rows` rows from `first` that the block's row groups
/// have staged: one of so many as a warp has lanes. `PLAIN` says that the pass [is](Pass::is_plain).
///
/// # Safety
/// The kernels' conditions; the first warp of the block calls this once for each row, and a barrier
/// stands between.
#[inline(always)]
unsafe fn finish_rows<
    E: Element,
    const MODE: u32,
    const ALIGNMENT: u32,
    const GRADS: bool,
    const PLAIN: bool,
>(
    pass: &Pass<'_, E, MODE>,
    mut terms: [f64; TERMS],
    first: u64,
    rows: u32,
    group: RowGroup,
    workspace: Workspace,
) -> [f64; TERMS] {
    let mut index = lane_id();
    while index < rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let stats = RowsOfBlock::staged(index, Pass::<E, MODE>::DENSE);
            let class = if MODE == mode::PROBABILITIES {
                pass.args.ignore_index
            } else {
                RowsOfBlock::staged_class(index)
            };
            let label = if PLAIN { pass.plain_label(class) } else { pass.label(class) };
            // Otherwise where its results go is made before the rows are read, by all warps.
            let row = opaque(first + u64::from(index));
            let mut logit = E::Real::ZERO;
            if label.has_class(pass.args.cols) {
                let mut staged = None;
                if !GRADS {
                    staged = Lanes::<E, ALIGNMENT>::new(pass, row).staged_logit(
                        index,
                        label.class,
                        group,
                    );
                }
                logit = match staged {
                    Some(staged) => staged,
                    None => RowsOfBlock::staged_logit(index),
                };
            }
            let of_row = if PLAIN {
                let [loss, weight, ..] =
                    pass.finish_row::<{ writes::NOTHING }>(row, &label, stats, logit, workspace);
                [loss, weight, 0.0, 0.0]
            } else if GRADS {
                pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace)
            } else {
                pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace)
            };
            unrolled!(for term in 0..TERMS; { terms[term] += of_row[term]; });
        }
        index += WARP_SIZE;
    }
    terms
}
