//! The loss.

use super::label::store_totals;
use super::lanes::{Lanes, lies};
use super::pass::{BlockTerms, Pass, TERMS};
use super::stats::Stats;
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{
    Workspace, bits_of_sum, block_sums, is_last_block, leave_of_block, sums_over_blocks,
};
use core::num::NonZeroU64;
use cuda_std::hint::opaque;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{lane_id, sync_warp, warp_id};

/// The loss, of rows however long: a row a block, and another for as long as there are more rows than blocks.
///
/// Blocks that end with their row make way for the next in the order of memory, and the last of them end together. Where they
/// stay and take row after row, a pass over 32768 rows of 4096 takes three of a hundred longer.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is the block.
#[inline(always)]
pub(crate) unsafe fn forward_long<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::finishing_late(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_block(args);
    let first = thread_idx_x() == 0;
    if first {
        BlockTerms::set([0.0; TERMS]);
    }
    let mut row = if block_idx_x() < team.teams { team.first } else { args.rows };
    while row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let team = team.anew();
            let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row);
            let class = pass.class(row);
            // Before the class is known: it takes as long to arrive. Of a row that does not count, no more is read, unless its
            // log-sum-exp is asked for.
            let tile = lanes.tile_of_warp(0, true, team);
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            let label = pass.label(class);
            let read = label.counts || opaque(args.saved) != 0;
            let mut logit = E::Real::ZERO;
            if warp_id() == 0 {
                logit = pass.logit(row, class);
            }
            let of_warp = lanes.stats_of_warp::<MODE, false>(&pass, tile, 0, read, team);
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, false>()
            } else {
                of_warp.of_block::<false, false>()
            };
            if first {
                BlockTerms::add(pass.finish_row::<true>(row, &label, stats, logit, workspace));
            }
        }
        // Asked for again, where it would take a register through the row.
        row += u64::from(Team::of_block(args).teams);
        if row < args.rows {
            // The first warp has the row, of which the parts are to be replaced.
            sync_threads();
        }
    }
    // SAFETY: the caller's conditions.
    unsafe {
        if !has_sums(args) {
            return;
        }
        if first {
            leave_terms(&pass, BlockTerms::get(), workspace);
        }
        finish_terms(&pass, workspace);
    }
}

/// Leaves what the rows of this block add to the sums, as they are.
///
/// # Safety
/// The kernels' condition 2; one thread of each block's first warp calls this, once a launch, which has left nothing.
#[inline(always)]
pub(crate) unsafe fn leave_terms<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    [loss, weights, squares, count]: [f64; TERMS],
    workspace: Workspace,
) {
    let args = pass.args;
    // SAFETY: the caller's conditions.
    unsafe {
        if pass.has_two_sums() {
            leave_of_block(0, [loss, weights].map(bits_of_sum), args.adders, workspace);
        } else {
            let sums = [loss, weights, squares, count];
            leave_of_block(0, sums.map(bits_of_sum), args.adders, workspace);
        }
    }
}

/// Whether anything comes of the sums over rows. Asked where it stands: moved to the beginning of a kernel, what says so would be
/// waited for before rows are asked for.
#[inline(always)]
pub(crate) fn has_sums(args: &CrossEntropyArgs) -> bool {
    opaque(args.reduction.into()) == reduction::SCALAR.into() || opaque(args.fault) != 0
}

/// Sums over the grid what a thread of each block's first warp has left, and writes the results of all.
///
/// # Safety
/// The kernels' conditions; all threads call it, once a launch.
#[inline(always)]
pub(crate) unsafe fn finish_terms<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    workspace: Workspace,
) {
    let adders = pass.args.adders;
    // SAFETY: the caller's conditions; in the last block's first thread.
    unsafe {
        if pass.has_two_sums() {
            sums_over_blocks::<4, 2>(adders, workspace, |[loss, weights]| {
                pass.finish([loss, weights, 0.0, 0.0], workspace);
            });
        } else {
            sums_over_blocks::<4, TERMS>(adders, workspace, |sums| {
                finish(pass, sums, workspace);
            });
        }
    }
}

/// The loss, of rows that are long and few: several blocks share a row.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is the block.
#[inline(always)]
pub(crate) unsafe fn forward_split<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let splits = NonZeroU64::from(args.splits);
    let team = Team::of_block(args);
    let warps = team.warps();
    let mut piece = team.first;
    while piece < args.rows * splits.get() {
        let (row, split) = (piece / splits, (piece % splits) as u32);
        // SAFETY: the caller's conditions; one warp a part of a piece.
        unsafe {
            let read = pass.label(pass.class(row)).counts || args.saved != 0;
            let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row);
            let tile = lanes.tile_of_warp(split, read, team);
            let stats = lanes.stats_of_warp::<MODE, true>(&pass, tile, split, read, team);
            if lane_id() == 0 {
                stats.leave(workspace, piece as u32 * warps + warp_id());
            }
        }
        piece += u64::from(team.teams);
    }
    if !is_last_block() {
        return;
    }
    sync_threads();
    let mut sums = [0.0; TERMS];
    let mut row = u64::from(warp_id());
    while row < args.rows {
        let parts = args.splits.get() * warps;
        // SAFETY: every warp leaves its own, in order, those of this block have; one warp a row.
        unsafe {
            let stats = Stats::take(workspace, row as u32 * parts, parts).of_row();
            if lane_id() == 0 {
                let class = pass.class(row);
                let (label, logit) = (pass.label(class), pass.logit(row, class));
                let terms = pass.finish_row::<true>(row, &label, stats, logit, workspace);
                unrolled!(for term in 0..TERMS; { sums[term] += terms[term]; });
            }
        }
        row += u64::from(warps);
    }
    let sums = block_sums::<f64, false, TERMS>(sums);
    if thread_idx_x() == 0 {
        // SAFETY: the last block's first thread.
        unsafe { finish(&pass, sums, workspace) };
    }
}

/// [`Pass::finish`] where the totals are among the sums.
///
/// # Safety
/// As `Pass::finish`.
#[inline(always)]
pub(crate) unsafe fn finish<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    sums: [f64; TERMS],
    workspace: Workspace,
) {
    if pass.args.totals != 0 {
        // SAFETY: the caller's conditions.
        unsafe { store_totals(pass.args.totals, [sums[1], sums[3]]) };
    }
    // SAFETY: the caller's conditions.
    unsafe { pass.finish(sums, workspace) };
}
