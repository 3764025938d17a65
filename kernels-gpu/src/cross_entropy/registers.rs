//! Rows in registers: the loss, or the loss and the gradients in one pass, with one block per row,
//! which has the whole row in registers.
//!
//! No kernel here loops over rows. Values that a loop carries from one row to the next cost
//! registers and instructions; and where reads and writes alternate, memory is fastest with blocks
//! that end with their row and begin in the order of memory.

use super::finish::{finish_grid, has_sums};
use super::label::{Label, normaliser, sum_normaliser};
use super::lanes::{Lanes, OfTile, Peeled, alignment};
use super::pass::{LoadedNormaliser, Pass, Total, scales_of_row, writes};
use super::row_group::RowGroup;
use super::stats::Relative;
use crate::abi::{CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real};
use crate::reduce::{self, Workspace};
use cuda_std::hint::opaque;
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::{sync_warp, warp_id};

cuda_std::shared_array! {
    /// The row, its class, and whether the pass is plain, for the one thread that finishes the
    /// block's row. In registers they would occupy space in every thread.
    fn of_finish() -> [u64; 3];
}

/// The block that sums the grid is the adder of the 4th full adder period from the end: it has
/// fetched its instructions long before the last rows are done.
type BlockRank = reduce::BlockRank<4>;

/// The loss, with one block per row. `FEW` says that the grid has few rows.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The grid is one of `abi::grid_of_workers`.
/// 3. Rows are as `ALIGNMENT` says: [`alignment::BLOCK_ROW`] or, where the target is a class
///    without label smoothing, [`alignment::BLOCK_PEELED`]. They are no longer than `VECTORS`
///    vectors a thread.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_registers<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const FEW: bool,
    const ALIGNMENT: u32,
>(
    args: &CrossEntropyArgs,
) {
    let pass = if FEW { Pass::<E, MODE>::new(args) } else { Pass::finishing_late(args) };
    // SAFETY: the kernels' condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let rank = BlockRank::of_block(0);
    let row = u64::from(rank.worker());
    let takes_row = !rank.is_adder() && row < args.rows;
    let group = RowGroup::of_block();
    // SAFETY: the caller's conditions.
    unsafe { pass.begin(block_idx_x(), row, group) };
    if takes_row {
        let first = thread_idx_x() == 0;
        let has_peeled = Lanes::<E, ALIGNMENT>::HAS_PEELED;
        // The early load is a single load, and not a copy, which only aligned words can have.
        let loads_class_early = FEW || Pass::<E, MODE>::DENSE || has_peeled;
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::<E, ALIGNMENT>::new(&pass, row);
            // Load the row before its class is known, which takes as long to arrive. The load is
            // wasted if the row is ignored.
            let tile = lanes.tile::<VECTORS>(group.lane, group);
            let peeled = if has_peeled { lanes.peeled_of_thread(group) } else { None };
            // Issue every load before the first use: otherwise the compiler waits for the class in
            // between.
            sync_warp();
            let (mut label, mut logit) = (Label::NONE, E::Real::ZERO);
            if loads_class_early {
                let class = pass.class(row);
                label = pass.label(class);
                if warp_id() == 0 {
                    logit = pass.logit(row, class);
                }
            } else if first {
                let class = pass.class(row);
                of_finish().set(0, row);
                of_finish().set(1, class.cast_unsigned());
                of_finish().set(2, pass.is_plain().into());
                if class.cast_unsigned() < u64::from(args.cols) {
                    lanes.stage_class(class as u32);
                }
            }
            let peeled = Peeled::logit_of(peeled);
            let of_warp = lanes.stats_of_tile::<MODE, VECTORS, false>(&pass, &tile, peeled, group);
            let stats = of_warp.stats.block_merge_row::<MODE, false>(pass.scale_of_logits());
            if first {
                let publish = |row: u64, pair, terms: [f64; 2]| {
                    let terms = terms.map(E::Real::from_f64);
                    BlockRank::publish(row as u32, pair, terms, args.rows as u32, workspace);
                };
                let mut row = row;
                if !loads_class_early {
                    row = of_finish().get(0);
                    let class = of_finish().get(1).cast_signed();
                    wait_for_copies::<0>();
                    let staged = || Lanes::<E, ALIGNMENT>::staged_class(class as u32);
                    if of_finish().get(2) != 0 {
                        label = pass.plain_label(class);
                        if label.has_class(args.cols) {
                            logit = staged();
                        }
                        let [loss, weight, ..] = pass.finish_row::<{ writes::NOTHING }>(
                            row, &label, stats, logit, workspace,
                        );
                        publish(row, 0, [loss, weight]);
                        return;
                    }
                    label = pass.label(class);
                    if label.has_class(args.cols) {
                        logit = staged();
                    }
                }
                let [loss, weight, square, count] =
                    pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace);
                if has_sums(args) {
                    publish(row, 0, [loss, weight]);
                    if !pass.has_two_sums() {
                        publish(row, 1, [square, count]);
                    }
                }
            }
        }
    }
    // With few rows, fetching instructions takes longest. `opaque` hides from the compiler that
    // blocks with a row return here: it then places the code for rows first, without a jump.
    let returns = if FEW { opaque(takes_row.into()) != 0 } else { takes_row };
    if returns {
        return;
    }
    // SAFETY: the caller's conditions.
    unsafe { finish_grid::<false, 8, E, MODE, _>(&pass, rank, workspace) };
}

/// The loss and the gradients, with one block per row.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The grid has `normaliser_blocks` blocks that sum the normaliser, followed by those of
///    `abi::grid_of_workers`.
/// 3. Rows are as [`alignment::BLOCK_ROW`] says, and no longer than `VECTORS` vectors a thread.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_backward_registers<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: the caller's conditions.
    unsafe { pass.begin_with_normaliser() };
    // SAFETY: the kernels' condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let normaliser = unsafe { normaliser(args) };
    let rank = BlockRank::of_block(args.normaliser_blocks);
    let row = u64::from(rank.worker());
    let first = thread_idx_x() == 0;
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
        return;
    }
    let publish = |row: u64, [loss, _, square, _]: [f64; 4]| {
        let terms = [loss, square].map(E::Real::from_f64);
        // SAFETY: the kernels' condition 2; a row's block calls it once.
        unsafe { BlockRank::publish(row as u32, 0, terms, args.rows as u32, workspace) };
    };
    if !rank.is_adder() && row < args.rows {
        let group = RowGroup::of_block();
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::<E, { alignment::BLOCK_ROW }>::new(&pass, row);
            // Only one warp loads the normaliser: if all did, each would wait for the others.
            let normaliser =
                if warp_id() == 0 { Some(LoadedNormaliser::new(args, normaliser)) } else { None };
            // Load the row before its class is known, which takes as long to arrive. The load is
            // wasted if the row is ignored.
            let class = pass.class(row);
            let mut tile = lanes.tile::<VECTORS>(group.lane, group);
            if let Some(normaliser) = normaliser {
                let set = |index, total| {
                    let scale = pass.scale(row, normaliser, total).to_bits64();
                    if first {
                        scales_of_row().set(index, scale);
                    }
                };
                set(0, Total::Weights);
                if args.z_loss != 0.0 {
                    set(1, Total::Rows);
                }
                if Pass::<E, MODE>::LOG_PROB {
                    set(1, Total::Rows);
                }
            }
            // Issue every load before the first use: otherwise the compiler waits for the class in
            // between.
            sync_warp();
            pass.prefetch(row, group);
            let label = pass.label(class);
            if !label.counts {
                tile.forget::<E>();
            }
            if first && label.has_class(args.cols) {
                lanes.stage_class(label.class);
            }
            let no_peeled = E::Real::NEG_INFINITY;
            let OfTile { stats: warp_stats, exps, .. } =
                lanes.stats_of_tile::<MODE, VECTORS, true>(&pass, &tile, no_peeled, group);
            if first && args.grad_input.start == args.input.start {
                // The gradients overwrite the row after the barrier: the class's logit must have
                // been copied by then.
                wait_for_copies::<0>();
            }
            let stats = warp_stats.block_merge_row::<MODE, true>(pass.scale_of_logits());
            // Recompute the row and the row group: if they were kept across the barrier, they would
            // occupy registers that the exponentials need.
            let row = u64::from(BlockRank::of_block(args.normaliser_blocks).worker());
            let group = RowGroup::of_block();
            let tile = tile.at(group.lane, group.threads);
            let logit = || {
                wait_for_copies::<0>();
                if label.has_class(args.cols) {
                    Lanes::<E, { alignment::BLOCK_ROW }>::staged_class(label.class)
                } else {
                    E::Real::ZERO
                }
            };
            if first && !Pass::<E, MODE>::NEEDS_LOGITS {
                // Publish before the gradients: the end of the grid waits for this, and would see
                // it late if it were published after them.
                publish(
                    row,
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit(), workspace),
                );
            }
            let scale = |index| E::Real::from_bits64(scales_of_row().get(index));
            let factors = pass.factors(&label, stats, scale(0), || scale(1));
            let to = lanes.to(&pass, row);
            if Pass::<E, MODE>::NEEDS_LOGITS {
                let tile = tile.rematerialize();
                let class = lanes.class_in_tile::<MODE, VECTORS>(&label, &tile);
                let class =
                    class.map(|logit| (label.class, pass.at_class(&label, &factors, logit)));
                lanes.gradients_of_tile::<MODE, VECTORS>(&pass, class, &factors, to, &tile);
            } else {
                // The exponentials are relative to the largest logit of the warp, not of the row.
                let relative = Relative::<_, MODE>::to(warp_stats.center(), pass.scale_of_logits());
                let unit = (warp_stats.max - factors.center).exp_below() * relative.unit();
                let at_class = |exp| {
                    let likeliest = exp == relative.tie() && warp_stats.max == factors.center;
                    pass.at_class_of(&label, &factors, unit * exp * factors.inverse, likeliest)
                };
                let (factor, class) = (unit * factors.factor, (label.class, at_class));
                lanes.gradients_of_exps(&exps, factor, class, to[0], &tile);
            }
            // In these modes the copied logit arrives late, after all the arithmetic: publish only
            // now.
            if first && Pass::<E, MODE>::NEEDS_LOGITS {
                let stats = stats.rematerialize();
                publish(
                    row,
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit(), workspace),
                );
            }
        }
        return;
    }
    // SAFETY: the kernels' conditions 1 and 2.
    unsafe { finish_grid::<true, 8, E, MODE, _>(&pass, rank, workspace) };
}
