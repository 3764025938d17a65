//! Short rows, packed into tiles: a warp stages whole rows in shared memory by asynchronous copies,
//! and one lane or several compute each row. Gradients are written over the tile (or, if they are
//! aligned differently in global memory, to a tile of their own) and stored from there.
//!
//! A warp has two stages: it computes one tile while the next is copied. Warps do not wait for each
//! other until the end, where the block sums the terms of its rows.

mod chunk;
mod lane_per_row;
mod lane_row;
mod lanes_per_row;
mod part;
mod register_row;
mod stage;
mod wide_row;

use self::stage::Stage;
use super::finish::{finish_grid, has_sums, publish_terms};
use super::label::{Label, normaliser, sum_normaliser};
use super::mode;
use super::pass::{Factors, Pass, TERMS, Total, writes};
use super::stats::Stats;
use crate::abi::{CrossEntropyArgs, attempt, packed_stages};
use crate::element::{Element, unrolled};
use crate::reduce::{self, Workspace, block_sums};
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, warp_id};

/// What a kernel computes.
pub(crate) mod computes {
    pub(crate) const LOSS: u32 = 0;
    /// Gradients, from the maximum and log-sum that a forward pass has saved.
    pub(crate) const GRADIENTS: u32 = 1;
    pub(crate) const BOTH: u32 = 2;
}

/// The stages of a warp of these kernels, as [`packed_stages`].
const fn stages<E: Element, const COMPUTES: u32>(lanes: u32) -> Option<u32> {
    let (loss, gradients) = (COMPUTES != computes::GRADIENTS, COMPUTES != computes::LOSS);
    packed_stages(size_of::<E>() as u32, lanes != row_lanes::SEVERAL, loss, gradients)
}

/// How many lanes compute a row.
pub(crate) mod row_lanes {
    /// One or several, for rows of any length that fits a tile.
    pub(crate) const SEVERAL: u32 = 0;
    /// One, for rows of at most [`lane_row_cols`](crate::abi::lane_row_cols) columns.
    pub(crate) const ONE: u32 = 1;
    /// One, for rows of more columns.
    pub(crate) const ONE_WIDE: u32 = 2;
}

type BlockRank = reduce::BlockRank<2>;

/// Targets that a thread loads at once while the normaliser of a mean is summed. Targets of short
/// rows are a large part of all bytes, so that it takes this many to hide the latency of memory.
const TARGETS: usize = 8;

/// [`TARGETS`] of the kernels with one lane per row, and of f64. More would need more registers
/// than the rows do, and so raise the number for the whole kernel.
const FEW_TARGETS: usize = 4;

/// If the sum of a row's exponentials is below this, it is computed again without that of the
/// largest logit. In f32 the sum of a packed row is off by 1.5e-7, and the loss therefore by at
/// most 6e-7 of itself.
const LIKELY: f64 = 1.25;

/// The tiles of a warp: number `first`, and every `step`th after it.
#[derive(Clone, Copy)]
struct Share {
    first: u32,
    step: u32,
}

/// Computes rows of a length that fits a tile, with as many [lanes](row_lanes) per row as `LANES`
/// says.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. With a loss, the grid is the `normaliser_blocks` that sum the normaliser, if gradients are
///    computed too, followed by `abi::grid_of_workers`. Without a loss, it is any number of blocks.
///    In a retry it is the `normaliser_blocks`, followed by two blocks or more, which take turns as
///    the `args.retried_blocks` blocks of such a grid.
/// 3. `args.tile` fits the rows, and a block has dynamic shared memory for the tiles of its warps.
/// 4. With [`row_lanes::ONE_WIDE`], targets are not probabilities.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn packed<E: Element, const MODE: u32, const COMPUTES: u32, const LANES: u32>(
    args: &CrossEntropyArgs,
) {
    let pass: Pass<'_, E, MODE> =
        if LANES != row_lanes::SEVERAL { Pass::finishing_late(args) } else { Pass::new(args) };
    let both = COMPUTES == computes::BOTH;
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let is_retry = || {
        has_attempts::<E, MODE, COMPUTES>(LANES)
            && opaque(args.attempt.into()) == attempt::RETRY.into()
    };
    if is_retry() && !workspace.is_retried() {
        return;
    }
    let normaliser_blocks = if both { args.normaliser_blocks } else { 0 };
    if both && block_idx_x() < normaliser_blocks {
        // SAFETY: conditions 1 and 2.
        unsafe { count_rows::<E, MODE, COMPUTES, LANES>(args, workspace) };
        return;
    }
    if is_retry() {
        if thread_idx_x() == 0 {
            // SAFETY: no other thread accesses it before the barrier.
            unsafe { turn().set(0, 0) };
        }
        sync_threads();
    }
    loop {
        let mut rank = BlockRank::of_block(normaliser_blocks);
        if is_retry() {
            // SAFETY: all threads have passed a barrier since it was written, and pass another one
            // before it is written again.
            let turn = unsafe { turn().get(0) } as u32;
            let Some(of_turn) = rank.of_turn(turn, args.retried_blocks) else { return };
            rank = of_turn;
        }
        // SAFETY: the caller's conditions.
        unsafe { block::<E, MODE, COMPUTES, LANES>(&pass, rank, workspace) };
        if !is_retry() {
            return;
        }
        // All threads have finished with the block's shared memory.
        sync_threads();
        if thread_idx_x() == 0 {
            // SAFETY: as above.
            unsafe { turn().set(0, turn().get(0) + 1) };
        }
        sync_threads();
    }
}

cuda_std::shared_array! {
    /// How many turns the block has had in a retry. It is in shared memory, because kernels of wide
    /// rows have no register left for it.
    fn turn() -> [u64; 1];
}

/// Sums the normaliser, if the launch does not assume that all rows count.
///
/// # Safety
/// As [`packed`]; all threads of the first `normaliser_blocks` blocks call this, once a launch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn count_rows<E: Element, const MODE: u32, const COMPUTES: u32, const LANES: u32>(
    args: &CrossEntropyArgs,
    workspace: Workspace,
) {
    // SAFETY: the caller's conditions; the totals of an optimistic launch are counts.
    unsafe {
        if has_attempts::<E, MODE, COMPUTES>(LANES)
            && args.attempt == attempt::OPTIMISTIC
            && !workspace.is_cautious()
        {
            if block_idx_x() == 0 && thread_idx_x() == 0 {
                normaliser(args).count_all();
            }
        } else if LANES != row_lanes::SEVERAL || size_of::<E>() == 8 {
            sum_normaliser::<E, FEW_TARGETS>(args);
        } else {
            sum_normaliser::<E, TARGETS>(args);
        }
    }
}

/// What a block of this rank does: a worker computes its share of the rows and publishes its terms,
/// an adder sums what workers have published.
///
/// # Safety
/// As [`packed`]; all threads of the block call this.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn block<E: Element, const MODE: u32, const COMPUTES: u32, const LANES: u32>(
    pass: &Pass<'_, E, MODE>,
    rank: BlockRank,
    workspace: Workspace,
) {
    let args = pass.args;
    let has_loss = COMPUTES != computes::GRADIENTS;
    let both = COMPUTES == computes::BOTH;
    let (worker, workers) =
        if has_loss { (rank.worker(), rank.workers()) } else { (block_idx_x(), grid_dim_x()) };
    if has_loss && (rank.is_adder() || worker >= workers) {
        // SAFETY: conditions 1 and 2.
        unsafe {
            if both {
                finish_grid::<true, 4, E, MODE, _>(pass, rank, workspace);
            } else {
                finish_grid::<false, 4, E, MODE, _>(pass, rank, workspace);
            }
        }
        return;
    }
    let warps = block_dim_x() / WARP_SIZE;
    let share = Share { first: worker * warps + warp_id(), step: workers * warps };
    // SAFETY: the caller's conditions.
    let terms = unsafe {
        match LANES {
            row_lanes::SEVERAL => lanes_per_row::rows::<E, MODE, COMPUTES>(pass, share, workspace),
            row_lanes::ONE => {
                lane_per_row::rows::<E, MODE, COMPUTES, false>(pass, share, workspace)
            }
            _ => lane_per_row::rows::<E, MODE, COMPUTES, true>(pass, share, workspace),
        }
    };
    // Publish no terms that nobody sums: the next launch would take them for its own.
    if !has_loss || (!both && !has_sums(args)) {
        return;
    }
    let second = if both { terms[2] } else { terms[1] };
    let [loss, second] = block_sums::<f64, false, 2>([terms[0], second]);
    // SAFETY: condition 2; the first thread of each block publishes its terms once.
    unsafe {
        if both || pass.has_two_sums() {
            if thread_idx_x() == 0 {
                publish_terms::<E::Real, _>(rank, [loss, second, 0.0, 0.0], 1, workspace);
            }
        } else {
            // `block_sums` needs a barrier between two calls.
            sync_threads();
            let [square, count] = block_sums::<f64, false, 2>([terms[2], terms[3]]);
            if thread_idx_x() == 0 {
                publish_terms::<E::Real, _>(rank, [loss, second, square, count], 2, workspace);
            }
        }
    }
}

/// Whether a launch of a kernel with these `lanes` per row can be an
/// [optimistic](attempt::OPTIMISTIC) one. Rows that several lanes share are too long to gain from
/// it.
const fn has_attempts<E: Element, const MODE: u32, const COMPUTES: u32>(lanes: u32) -> bool {
    COMPUTES == computes::BOTH && lanes != row_lanes::SEVERAL && Pass::<E, MODE>::HAS_ATTEMPTS
}

/// Adds a row's terms to `terms`, and writes its loss and saved values where the call returns them.
///
/// # Safety
/// As [`Pass::finish_row`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn add_loss<E: Element, const MODE: u32, const COMPUTES: u32>(
    pass: &Pass<'_, E, MODE>,
    row: u64,
    class: i64,
    stats: Stats<E::Real>,
    logit: E::Real,
    workspace: Workspace,
    terms: &mut [f64; TERMS],
) {
    // SAFETY: the caller's conditions.
    unsafe {
        if pass.is_plain() {
            let label = pass.plain_label(class);
            let row_terms =
                pass.finish_row::<{ writes::NOTHING }>(row, &label, stats, logit, workspace);
            terms[0] += row_terms[0];
            if COMPUTES == computes::LOSS {
                terms[1] += if label.counts { 1.0 } else { 0.0 };
            }
            return;
        }
        let label = pass.label(class);
        if COMPUTES == computes::BOTH {
            let row_terms =
                pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
            // The normaliser was summed beforehand, so the weights are not summed again.
            terms[0] += row_terms[0];
            terms[2] += row_terms[2];
        } else {
            let row_terms =
                pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace);
            unrolled!(for term in 0..TERMS; { terms[term] += row_terms[term]; });
        }
    }
}

/// The factors of the gradients of row `index` of a stage: from its statistics or, in a kernel that
/// computes gradients only, from the values that the forward pass has saved. `scale` is the scale
/// of all rows, where they share one upstream gradient; otherwise it is not used.
///
/// # Safety
/// The kernels' conditions 1 and 2; the copies of the stage are complete, and it has the row.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn factors_of_row<E: Element, const MODE: u32, const COMPUTES: u32, const ONE_LANE: bool>(
    pass: &Pass<'_, E, MODE>,
    label: &Label<E::Real>,
    stats: Stats<E::Real>,
    (stage, index): (&Stage<'_, MODE>, u32),
    scale: E::Real,
) -> Factors<E::Real> {
    let row = stage.first() + u64::from(index);
    let is_shared = |which| match which {
        _ if pass.args.upstream_stride != 0 => false,
        Total::Weights => true,
        // Without class weights, both normalisers are the number of rows that count. Kernels with
        // several lanes per row have no register left for the choice. For log-probabilities the two
        // select different upstream gradients.
        Total::Rows => ONE_LANE && MODE != mode::LOG_PROB && pass.args.weight == 0,
    };
    // SAFETY: the caller's conditions.
    unsafe {
        if COMPUTES == computes::GRADIENTS {
            return pass.factors_of_saved(label, stage.saved(index), |which| {
                if is_shared(which) { scale } else { pass.scale_of_saved(row, which) }
            });
        }
        let scale_of = |which| pass.scale(row, normaliser(pass.args), which);
        let scale = if is_shared(Total::Weights) { scale } else { scale_of(Total::Weights) };
        pass.factors(label, stats, scale, || {
            if is_shared(Total::Rows) { scale } else { scale_of(Total::Rows) }
        })
    }
}
