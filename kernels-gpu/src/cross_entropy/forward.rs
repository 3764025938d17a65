//! The loss.

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

/// How early the block begins that adds up the grid: rows are long, a stretch of them takes longer
/// than to fetch instructions.
type BlockRank = reduce::BlockRank<1>;

/// The loss, of rows however long: a row a block at a time.
///
/// Blocks that end with their rows make way for the next in the order of memory, and the last of
/// them end together. Where they stay and take row after row, a pass over 32768 rows of 4096 takes
/// three of a hundred longer. The last `tail_rows` are [shared](part_of_row).
///
/// # Safety
/// The kernels' conditions ([`super`]). The grid has `abi::grid_of_workers`, of which each part of
/// a row that is shared is one; a row group is the block.
#[inline(always)]
pub(crate) unsafe fn forward_long<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::finishing_late(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let group = RowGroup::of_block();
    let first = thread_idx_x() == 0;
    // Asked for again where it is needed: it would take registers through the row.
    let row_at = |index| Rows::row(args, BlockRank::of_block(0), index);
    let row = row_at(0);
    // SAFETY: the caller's conditions.
    unsafe { pass.begin(block_idx_x(), row.unwrap_or(args.rows), group) };
    // In this order, what follows has registers.
    let whole = args.rows as u32 - args.tail_rows;
    let rank = BlockRank::of_block(0);
    if (whole..rank.workers()).contains(&rank.worker()) && !rank.is_adder() {
        // SAFETY: the caller's conditions.
        unsafe { part_of_row::<E, MODE>(args, rank.worker() - whole, workspace) };
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
            // Before the class is known: it takes as long to arrive. Of a row that does not count,
            // no more is read, unless its log-sum-exp is asked for.
            let tile = lanes.tile_of_warp(0, true, group);
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            let label = pass.label(class);
            let read = label.counts || opaque(args.saved) != 0;
            let mut logit = E::Real::ZERO;
            if warp_id() == 0 {
                logit = pass.logit(row, class);
            }
            let of_warp = lanes.stats_of_warp::<MODE, false>(&pass, tile, 0, read, group);
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.block_merge_row::<true, false>()
            } else {
                of_warp.block_merge_row::<false, false>()
            };
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
        // The first warp has the row, of which the parts are to be replaced.
        sync_threads();
    }
}

/// Part `part` of those of the last rows, which blocks share: the last of a row's takes what the
/// others have left, and finishes it. At the end of a grid, rows that are a block's each leave
/// memory little to do for as long as one takes. Few rows are all shared.
///
/// # Safety
/// As [`forward_long`]; it is the block's.
#[inline(always)]
unsafe fn part_of_row<E: Element, const MODE: u32>(
    args: &CrossEntropyArgs,
    part: u32,
    workspace: Workspace,
) {
    let pass = Pass::<E, MODE>::finishing_late(args);
    let (group, splits) = (RowGroup::of_block(), args.splits);
    let (index, split) = (part / splits, part % splits);
    let row = args.rows - u64::from(args.tail_rows) + u64::from(index);
    // Where they leave what they have, in so many words as one does.
    let first = args.tail_at / STATS_PARTS;
    // SAFETY: the caller's conditions; one warp a part of a part.
    unsafe {
        let lanes = Lanes::<E, { alignment::ELEMENT }>::new(&pass, row);
        let tile = lanes.tile_of_warp(split, true, group);
        // All of it asked for first.
        sync_warp();
        let read = pass.label(pass.class(row)).counts || args.saved != 0;
        let of_warp = lanes.stats_of_warp::<MODE, true>(&pass, tile, split, read, group);
        let stats = if Pass::<E, MODE>::DENSE {
            of_warp.block_merge::<true, false>()
        } else {
            of_warp.block_merge::<false, false>()
        };
        if warp_id() > 0 {
            return;
        }
        if lane_id() == 0 {
            stats.publish(workspace, first + part);
        }
        let mut terms = [0.0; TERMS];
        if split + 1 == splits.get() {
            let stats =
                Stats::take_merged(workspace, first + index * splits.get(), splits.get()).of_row();
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
