//! The loss.

use super::label::store_totals;
use super::lanes::{Lanes, lies};
use super::pass::{Pass, TERMS, Terms};
use super::stats::{KEPT, KeptStats, Stats};
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{Workspace, block_sums, grid_sums, is_last_block};
use core::num::NonZeroU64;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, ballot, lane_id, sync_warp, warp_id};

/// The loss, of rows however long: a team is one warp or several, of which each goes its own way until the block has
/// [`KEPT`] rows to finish.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is a power of two of warps, in a block of at most 256 threads; `splits` is
/// 1.
#[inline(always)]
pub(crate) unsafe fn forward<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_threads(args);
    Terms::clear();
    let mut first = team.first;
    while first < args.rows {
        // Lane l finishes row l of the next: whether it counts, and the logit of its class, are on their way while rows
        // are read. A row that does not count is not read, unless its log-sum-exp is asked for.
        let mine = team.piece(first) + u64::from(lane_id()) * u64::from(team.teams);
        let (mut counts, mut logit) = (false, E::Real::ZERO);
        if mine < args.rows {
            // SAFETY: condition 1.
            unsafe {
                let class = pass.class(mine);
                counts = pass.label(class).counts || args.saved != 0;
                if team.lane < WARP_SIZE {
                    logit = pass.logit(mine, class);
                }
            }
        }
        let to_be_read = ballot(counts);
        let mut kept = 0;
        while kept < KEPT && first < args.rows {
            let read = to_be_read >> kept & 1 != 0;
            // SAFETY: the caller's conditions; a row that is not one of `rows` is not to be read.
            unsafe {
                let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, team.piece(first));
                let stats = lanes.stats_of_warp::<MODE, false>(&pass, 0, read, team);
                if Pass::<E, MODE>::DENSE {
                    KeptStats::keep::<_, true>(kept, stats);
                } else {
                    KeptStats::keep::<_, false>(kept, stats);
                }
            }
            kept += 1;
            first += u64::from(team.teams);
        }
        // SAFETY: the caller's conditions; each row is finished once.
        unsafe { finish_kept(&pass, kept, logit, first, workspace, team) };
    }
    // SAFETY: the caller's conditions.
    unsafe { finish_terms(&pass, workspace) };
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
    let warps = u64::from(team.threads / WARP_SIZE);
    let mut piece = team.first;
    while piece < args.rows * splits.get() {
        let (row, split) = (piece / splits, (piece % splits) as u32);
        // SAFETY: the caller's conditions; one warp a part of a piece.
        unsafe {
            let read = pass.label(pass.class(row)).counts || args.saved != 0;
            let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row);
            let stats = lanes.stats_of_warp::<MODE, true>(&pass, split, read, team);
            if lane_id() == 0 {
                stats.leave(workspace, piece * warps + u64::from(warp_id()));
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
        let parts = splits.get() * warps;
        // SAFETY: every warp leaves its own, in order, those of this block have; one warp a row.
        unsafe {
            let stats = Stats::take(workspace, row * parts, parts).of_row();
            if lane_id() == 0 {
                let class = pass.class(row);
                let (label, logit) = (pass.label(class), pass.logit(row, class));
                let terms = pass.finish_row::<true>(row, &label, stats, logit, workspace);
                unrolled!(for term in 0..TERMS; { sums[term] += terms[term]; });
            }
        }
        row += warps;
    }
    let sums = block_sums::<f64, false, TERMS>(sums);
    if thread_idx_x() == 0 {
        // SAFETY: the last block's first thread.
        unsafe { finish(&pass, sums, workspace) };
    }
}

/// Finishes the rows that the teams of the block have kept, before those from `first` on: each by a thread of the team's
/// first warp, which has the `logit` of its class.
///
/// # Safety
/// The kernels' conditions; a kept row is finished once.
#[inline(always)]
unsafe fn finish_kept<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    kept: u32,
    logit: E::Real,
    first: u64,
    workspace: Workspace,
    team: Team,
) {
    let alone = team.threads == WARP_SIZE;
    if alone {
        sync_warp();
    } else {
        sync_threads();
    }
    let row = team.piece(first) - u64::from(kept - team.lane.min(kept)) * u64::from(team.teams);
    if team.lane < kept && row < pass.args.rows {
        let warps = team.threads / WARP_SIZE;
        // SAFETY: the team's warps have kept it, and met.
        unsafe {
            let stats = if Pass::<E, MODE>::DENSE {
                KeptStats::of_row::<_, true>(team.lane, warps)
            } else {
                KeptStats::of_row::<_, false>(team.lane, warps)
            };
            let label = pass.label(pass.class(row));
            Terms::add(pass.finish_row::<true>(row, &label, stats, logit, workspace));
        }
    }
    if alone {
        sync_warp();
    } else {
        sync_threads();
    }
}

/// Sums over the grid what rows add, and writes the results of all.
///
/// # Safety
/// The kernels' conditions; all threads call it, once a launch.
#[inline(always)]
pub(crate) unsafe fn finish_terms<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    workspace: Workspace,
) {
    let args = pass.args;
    if args.reduction != reduction::SCALAR && args.fault == 0 {
        return;
    }
    let terms = Terms::of_thread();
    // SAFETY: the caller's conditions; in the last block's first thread.
    unsafe {
        if args.z_loss == 0.0 && args.totals == 0 {
            // Of a small call, the sums are the most.
            grid_sums([terms[0], terms[1]], workspace, |[loss, weights]| {
                pass.finish([loss, weights, 0.0, 0.0], workspace);
            });
        } else {
            grid_sums(terms, workspace, |sums| finish(pass, sums, workspace));
        }
    }
}

/// [`Pass::finish`] where the totals are among the sums.
///
/// # Safety
/// As `Pass::finish`.
#[inline(always)]
unsafe fn finish<E: Element, const MODE: u32>(
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
