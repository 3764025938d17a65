//! Short rows, in registers: a warp, or a part of one, computes each row, and the first warp of the
//! block then finishes the rows of all row groups. Where rows begin and end at any element, a lane
//! may have one peeled element, which is in no vector, beside its vectors.

mod staging;

use self::staging::RowsOfBlock;
use super::finish::{finish_grid, has_sums, publish_terms};
use super::label::{Label, load_class, normaliser, sum_normaliser};
use super::lanes::{Lanes, OfTile, Peeled, Tile};
use super::mode;
use super::pass::{LoadedNormaliser, Pass, TERMS, Total, writes};
use super::row_group::{RowGroup, Rows};
use super::stats::Relative;
use crate::abi::{CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{self, Workspace, sums_in_lane};
use cuda_std::hint::opaque;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

/// The block that sums the grid is the adder of the 2nd full adder period from the end: it has
/// fetched its instructions long before the last rows are done.
type BlockRank = reduce::BlockRank<2>;

/// The loss, and with `GRADS` the gradients, of short rows. Each row group computes one row; then
/// the first warp of the block finishes the rows of all row groups.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. A block has at most 256 threads. The threads of a row group are a power of two up to 32, and
///    at least 2, or as many as `ALIGNMENT` requires. A row has at most `VECTORS` vectors for each
///    of them.
/// 3. Rows are as `ALIGNMENT` says, [`alignment::WARP_ROW`] or, where the target is a class without
///    label smoothing, [`alignment::WARP_PEELED`]. There are fewer than 2³² rows.
/// 4. The grid is one of `abi::grid_of_workers`; with `GRADS`, it follows `normaliser_blocks`
///    blocks that sum the normaliser. `rows_of_block` is at most the number of a block's row
///    groups.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn short<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const GRADS: bool,
    const ALIGNMENT: u32,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: the kernels' condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let group = RowGroup::of_threads(args);
    let rank = BlockRank::of_block(if GRADS { args.normaliser_blocks } else { 0 });
    if GRADS {
        // SAFETY: the caller's conditions.
        unsafe { pass.begin_with_normaliser() };
        if block_idx_x() < args.normaliser_blocks {
            // SAFETY: the kernels' conditions 1 and 2.
            unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
            return;
        }
    }
    let rows = Rows::of_block(args, rank);
    let mut lanes = None;
    if !GRADS {
        // Compute the row's address before the wait for previous kernels (programmatic dependent
        // launch), not after it.
        lanes = rows.as_ref().map(|rows| {
            let row = row_of(rows.first, group.in_block);
            Lanes::<E, ALIGNMENT>::new(&pass, row_to_read(args, row, true)).rematerialize()
        });
        // SAFETY: the caller's conditions.
        unsafe {
            let bytes = lanes.as_ref().map_or((0, 0), |lanes| (lanes.start(), u32::MAX));
            pass.begin_at(block_idx_x(), bytes, group);
        }
    }
    let Some(rows) = rows else {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { finish_grid::<GRADS, 4, E, MODE, _>(&pass, rank, workspace) };
        return;
    };
    // SAFETY: the caller's conditions.
    unsafe {
        compute_rows::<E, MODE, VECTORS, GRADS, ALIGNMENT>(&pass, lanes, &rows, rank, workspace)
    };
}

/// Whether each row group stages the logit of its class itself. Otherwise the threads of the block
/// stage their tiles, and the first warp reads the logits there: that takes fewer instructions than
/// to select a logit among registers, if it is not needed for gradients.
const fn stages_logits<E: Element, const ALIGNMENT: u32>(with_gradients: bool) -> bool {
    with_gradients || Lanes::<E, ALIGNMENT>::HAS_PEELED
}

/// Row `first + index`, in 32-bit arithmetic: there are fewer than 2³² rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn row_of(first: u64, index: u32) -> u64 {
    (first as u32 + index).into()
}

/// The row to load in place of `row`: the last row, if `row` is beyond it or is not to be `read`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn row_to_read(args: &CrossEntropyArgs, row: u64, read: bool) -> u64 {
    let last = args.rows.wrapping_sub(1);
    let (row, last): (u64, u64) = ((row as u32).into(), (last as u32).into());
    if read { row.min(last) } else { last }
}

/// Computes and finishes the block's `rows`, one for each row group. `lanes` is this row group's
/// row, or none if its address is still to be computed.
///
/// # Safety
/// As [`short`]; a block calls this once.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn compute_rows<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const GRADS: bool,
    const ALIGNMENT: u32,
>(
    pass: &Pass<'_, E, MODE>,
    lanes: Option<Lanes<E, ALIGNMENT>>,
    rows: &Rows,
    rank: BlockRank,
    workspace: Workspace,
) {
    const {
        assert!(Lanes::<E, ALIGNMENT>::ROW_IN_WARP);
        assert!(MODE == mode::CLASS || !Lanes::<E, ALIGNMENT>::HAS_PEELED);
    }
    let (args, stages_logits) = (pass.args, stages_logits::<E, ALIGNMENT>(GRADS));
    // SAFETY: the kernels' condition 2.
    let normaliser = unsafe { normaliser(args) };
    let group = RowGroup::of_threads(args);
    let first = rows.first;
    let row = row_of(first, group.in_block);
    let is_row = |row: u64| (row as u32) < args.rows as u32;
    // The row, counted within the block, whose class this thread loads and stages. If all threads
    // of a row group need the class of their row, all of them load it.
    let index = if stages_logits { group.in_block } else { thread_idx_x() };
    let has_class =
        MODE != mode::PROBABILITIES && index < group.of_block && is_row(row_of(first, index));
    // SAFETY: the caller's conditions. In place of a row beyond the last, or of an ignored one, the
    // last row is read, and the result is not used; its gradients may be written in place by then.
    // That is cheaper than a check for each vector. With peeled elements, only these are read of an
    // ignored row.
    unsafe {
        let mut class = 0;
        if GRADS && has_class {
            class = load_class(args, row_of(first, index));
        }
        // With gradients, wait for the class and skip ignored rows: beside writes, memory is faster
        // with fewer reads in flight.
        let read = !GRADS || MODE == mode::PROBABILITIES || class != args.ignore_index;
        let has_peeled = Lanes::<E, ALIGNMENT>::HAS_PEELED;
        // Rows with peeled elements are cut at different columns, and the gradients of an ignored
        // row are stored where that row is cut.
        let at = row_to_read(args, row, read || has_peeled);
        let lanes = lanes.unwrap_or_else(|| Lanes::new(pass, at));
        let (mut tile, mut peeled) = (Tile::unread(group.lane, group.threads), None);
        if read || !has_peeled {
            tile = lanes.tile::<VECTORS>(group.lane, group);
        }
        if has_peeled {
            peeled = lanes.peeled_of_thread(group);
        }
        let mut loaded_normaliser = None;
        if GRADS && is_row(row) {
            loaded_normaliser = Some(LoadedNormaliser::new(args, normaliser));
        }
        // Issue every load before the first use: otherwise the compiler waits for the class in
        // between.
        sync_warp();
        if !GRADS {
            if has_class {
                class = load_class(args, row_of(first, index));
            }
            sync_warp();
        }
        let mut logit = None;
        if GRADS {
            pass.prefetch(row, group);
        }
        if stages_logits {
            // Read the class's logit before gradients overwrite it: the row group's reduction is
            // between this and its stores.
            logit = lanes.logit_of_class::<MODE, VECTORS>(class, &tile, group);
            let at_peeled = peeled.and_then(|peeled| peeled.logit_of_class(class));
            logit = logit.or(at_peeled);
            if let Some(logit) = logit {
                RowsOfBlock::stage_logit(index, logit);
            }
        } else if MODE != mode::PROBABILITIES {
            tile.stage();
        }
        let label = if GRADS { pass.label(class) } else { Label::NONE };
        let mut x_of_peeled = Peeled::logit_of(peeled);
        if GRADS && !label.counts {
            tile.forget::<E>();
            x_of_peeled = E::Real::NEG_INFINITY;
        }
        let OfTile { stats, exps, exp_of_peeled } =
            lanes.stats_of_tile::<MODE, VECTORS, GRADS>(pass, &tile, x_of_peeled, group);
        let stats = stats.of_row();
        if group.lane == 0 {
            RowsOfBlock::stage(group.in_block, stats, MODE);
        }
        if let Some(loaded_normaliser) = loaded_normaliser {
            let scale_of = |which| pass.scale(row, loaded_normaliser, which);
            let factors =
                pass.factors(&label, stats, scale_of(Total::Weights), || scale_of(Total::Rows));
            let to = lanes.to(pass, row);
            // The gradient of the class's logit is stored with its vector. In such a short row, a
            // separate store would be one more in sixteen, of fewer bytes than memory moves at a
            // time.
            let at_class = logit.map(|logit| pass.at_class(&label, &factors, logit));
            if Pass::<E, MODE>::DENSE {
                let class = at_class.map(|at_class| (label.class, at_class));
                let tile = tile.rematerialize();
                lanes.gradients_of_tile::<MODE, VECTORS>(pass, class, &factors, to, &tile);
            } else {
                let scale = pass.scale_of_logits();
                let unit = Relative::<_, MODE>::to(factors.center, scale).unit();
                let factor = unit * factors.factor;
                if let Some(peeled) = peeled {
                    let class = at_class.map(|at_class| (label.class, at_class));
                    peeled.store_gradient(to[0], exp_of_peeled * factor, class);
                }
                let class = (label.class, |_| at_class.unwrap_or(E::Real::ZERO));
                // Recompute the indices of the vectors: if they were kept since the loads, they
                // would occupy registers.
                let tile = tile.at(group.rematerialize().lane, group.threads);
                lanes.gradients_of_exps(&exps, factor, class, to[0], &tile);
            }
        }
        if has_class && (!stages_logits || group.lane == 0) {
            RowsOfBlock::stage_class(index, class);
        }
        sync_threads();
        if warp_id() > 0 {
            return;
        }
        let count = (rows.end - first).min(group.of_block.into()) as u32;
        let terms = if !GRADS && pass.is_plain() {
            finish_rows::<E, MODE, GRADS, true, ALIGNMENT>(pass, first, count, group, workspace)
        } else {
            finish_rows::<E, MODE, GRADS, false, ALIGNMENT>(pass, first, count, group, workspace)
        };
        if GRADS || has_sums(args) {
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

/// Finishes `rows` rows from `first` on, which the block's row groups have staged: each lane of the
/// warp takes one row at a time. Returns what the rows of this lane add to the sums. `PLAIN` says
/// that the pass [is plain](Pass::is_plain).
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The first warp of the block calls this, once for each row.
/// 3. A barrier is between the staging and this.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn finish_rows<
    E: Element,
    const MODE: u32,
    const GRADS: bool,
    const PLAIN: bool,
    const ALIGNMENT: u32,
>(
    pass: &Pass<'_, E, MODE>,
    first: u64,
    rows: u32,
    group: RowGroup,
    workspace: Workspace,
) -> [f64; TERMS] {
    let mut terms = [0.0; TERMS];
    let mut index = lane_id();
    while index < rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let stats = RowsOfBlock::staged(index, MODE);
            let class = if MODE == mode::PROBABILITIES {
                pass.args.ignore_index
            } else {
                RowsOfBlock::staged_class(index)
            };
            let label = if PLAIN { pass.plain_label(class) } else { pass.label(class) };
            // Without `opaque`, all warps would compute where results go, before the rows are read.
            let row = opaque(first + u64::from(index));
            let mut logit = E::Real::ZERO;
            if label.has_class(pass.args.cols) {
                logit = if stages_logits::<E, ALIGNMENT>(GRADS) {
                    RowsOfBlock::staged_logit(index)
                } else {
                    let lanes = Lanes::<E, ALIGNMENT>::new(pass, row);
                    lanes.staged_logit(index, label.class, group)
                };
            }
            let row_terms = if PLAIN {
                let [loss, weight, ..] =
                    pass.finish_row::<{ writes::NOTHING }>(row, &label, stats, logit, workspace);
                [loss, weight, 0.0, 0.0]
            } else if GRADS {
                pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace)
            } else {
                pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace)
            };
            unrolled!(for term in 0..TERMS; { terms[term] += row_terms[term]; });
        }
        index += WARP_SIZE;
    }
    terms
}
