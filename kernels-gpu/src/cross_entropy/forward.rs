//! The loss of rows of any length, with one block per row, or several per row for the last rows.

use super::finish::{finish_grid, has_sums, publish_terms};
use super::lanes::{Lanes, alignment};
use super::pass::{BlockTerms, Pass, TERMS, writes};
use super::row_group::{RowGroup, Rows};
use super::stats::Stats;
use crate::abi::{CrossEntropyArgs, STATS_PARTS};
use crate::element::{Element, Real};
use crate::reduce::{self, Workspace};
use cuda_std::hint::opaque;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{lane_id, sync_warp, warp_id};

/// The block that sums the grid is the adder of the last full adder period. That is early enough:
/// rows are long, so that an adder period of them takes longer than fetching instructions.
type BlockRank = reduce::BlockRank<1>;

/// The loss. A block computes one row at a time; the last `tail_rows` rows are
/// [split](split_row) among several blocks each.
///
/// Blocks that end with their rows are replaced by the next in the order of memory, and the last
/// blocks end at the same time. With persistent blocks, which take row after row, a pass over 32768
/// rows of 4096 takes 3 % longer.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The grid is one of `abi::grid_of_workers`; each part of a split row is a worker of its own.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_long<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::finishing_late(args);
    // SAFETY: the kernels' condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let group = RowGroup::of_block();
    let first = thread_idx_x() == 0;
    // Recompute the row wherever it is needed: if it were kept in registers, they would be occupied
    // throughout the row.
    let row_at = |index| Rows::row(args, BlockRank::of_block(0), index);
    let row = row_at(0);
    // SAFETY: the caller's conditions.
    unsafe { pass.begin(block_idx_x(), row.unwrap_or(args.rows), group) };
    // Keep this order of statements: with it, registers suffice for what follows.
    let whole_rows = args.rows as u32 - args.tail_rows;
    let rank = BlockRank::of_block(0);
    if (whole_rows..rank.workers()).contains(&rank.worker()) && !rank.is_adder() {
        // SAFETY: the caller's conditions.
        unsafe { split_row::<E, MODE>(args, rank.worker() - whole_rows, workspace) };
        return;
    }
    let Some(mut row) = row else {
        // SAFETY: the caller's conditions.
        unsafe { finish_grid::<false, 3, E, MODE, _>(&pass, BlockRank::of_block(0), workspace) };
        return;
    };
    let mut index = 0;
    loop {
        // SAFETY: the caller's conditions.
        unsafe {
            let group = group.rematerialize();
            let lanes = Lanes::<E, { alignment::ELEMENT }>::new(&pass, row);
            let class = pass.class(row);
            // Load the first tile before the row's class is known, which takes as long to arrive.
            // If the row is ignored, nothing more of it is read, unless its log-sum-exp is to be
            // saved.
            let tile = lanes.tile_of_warp(0, group);
            // Issue every load before the first use: otherwise the compiler waits for the class in
            // between.
            sync_warp();
            let label = pass.label(class);
            let read = label.counts || opaque(args.saved) != 0;
            let mut logit = E::Real::ZERO;
            if warp_id() == 0 {
                logit = pass.logit(row, class);
            }
            let warp_stats = lanes.stats_of_warp::<MODE, false>(&pass, tile, 0, read, group);
            let stats = warp_stats.block_merge_row::<MODE, false>(pass.scale_of_logits());
            if first {
                let row = row_at(index).unwrap_or_default();
                let mut terms = if pass.is_plain() {
                    pass.finish_row::<{ writes::NOTHING }>(row, &label, stats, logit, workspace)
                } else {
                    pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace)
                };
                if index > 0 {
                    terms = BlockTerms::and(terms);
                }
                if row_at(index + 1).is_some() {
                    BlockTerms::set(terms);
                } else if has_sums(args) {
                    let pairs = if pass.has_two_sums() { 1 } else { 2 };
                    publish_terms::<E::Real, _>(BlockRank::of_block(0), terms, pairs, workspace);
                }
            }
        }
        index += 1;
        let Some(next) = row_at(index) else { return };
        row = next;
        // The first warp has merged this row's partials, which the next row overwrites.
        sync_threads();
    }
}

/// Computes part `part` of the split rows, counted over all of them. Each of the last rows is split
/// among `splits` blocks; the last of these merges what the others have published, and finishes the
/// row.
///
/// With one block per row until the end of the grid, memory would have little to do while the last
/// rows are computed. In a grid of few rows, all rows are split.
///
/// # Safety
/// As [`forward_long`]; one block computes each part.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn split_row<E: Element, const MODE: u32>(
    args: &CrossEntropyArgs,
    part: u32,
    workspace: Workspace,
) {
    let pass = Pass::<E, MODE>::finishing_late(args);
    let (group, splits) = (RowGroup::of_block(), args.splits);
    let (index, split) = (part / splits, part % splits);
    let row = args.rows - u64::from(args.tail_rows) + u64::from(index);
    // The first slot of the workspace for parts of split rows, in units of one part's words.
    let first = args.tail_at / STATS_PARTS;
    // SAFETY: the caller's conditions; only the block's first warp publishes and takes parts.
    unsafe {
        let lanes = Lanes::<E, { alignment::ELEMENT }>::new(&pass, row);
        let tile = lanes.tile_of_warp(split, group);
        // Issue every load before the first use.
        sync_warp();
        let read = pass.label(pass.class(row)).counts || args.saved != 0;
        let warp_stats = lanes.stats_of_warp::<MODE, true>(&pass, tile, split, read, group);
        let scale = pass.scale_of_logits();
        let stats = warp_stats.block_merge::<MODE, false>(scale);
        if warp_id() > 0 {
            return;
        }
        if lane_id() == 0 {
            stats.publish(workspace, first + part);
        }
        let mut terms = [0.0; TERMS];
        if split + 1 == splits.get() {
            let (first, count) = (first + index * splits.get(), splits.get());
            let stats = Stats::take_merged::<MODE>(workspace, first, count, scale).of_row();
            if lane_id() == 0 {
                let class = pass.class(row);
                let (label, logit) = (pass.label(class), pass.logit(row, class));
                terms = pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace);
            }
        }
        if lane_id() == 0 && has_sums(args) {
            let pairs = if pass.has_two_sums() { 1 } else { 2 };
            publish_terms::<E::Real, _>(BlockRank::of_block(0), terms, pairs, workspace);
        }
    }
}
