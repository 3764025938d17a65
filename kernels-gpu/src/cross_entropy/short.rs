//! Short rows, of which a warp takes one or several at once and holds them in registers.

use super::forward::finish_terms;
use super::label::totals_ahead;
use super::lanes::{Lanes, lies};
use super::mode;
use super::pass::{Pass, Terms, Total};
use super::stats::Stats;
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{Workspace, grid_sums};

/// The loss, of rows of at most `HELD` groups of 16 bytes a thread of a team.
///
/// A team reads as many rows as it has threads, and then each thread finishes one.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is a power of two of 2 to 32 threads that holds a row, in a block of at
/// most 256; all tensors with rows lie alike to 16 bytes.
#[inline(always)]
pub(crate) unsafe fn forward_short<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_threads(args);
    let teams = u64::from(team.teams);
    Terms::clear();
    let mut first = team.first;
    // SAFETY: the caller's conditions; a row that is none is not read.
    let read = |row: u64| unsafe {
        let lanes = Lanes::<E, { lies::ALIKE }>::new(&pass, row);
        (lanes.tile::<HELD>(team.lane, row < args.rows, team), lanes)
    };
    while first < args.rows {
        // What the row says that this thread will finish is on its way while rows are read: its class during the first,
        // the class's logit during the others.
        let mine = team.piece(first) + u64::from(team.lane) * teams;
        // SAFETY: condition 1.
        let class = unsafe { pass.class(mine) };
        let mut logit = E::Real::ZERO;
        let mut stats = Stats::NONE;
        let mut kept = 0;
        while kept < team.threads && first < args.rows {
            let row = team.piece(first);
            let (tile, lanes) = read(row);
            // SAFETY: the caller's conditions.
            let (of_row, _) =
                unsafe { lanes.stats_of_tile::<MODE, HELD>(&pass, &tile, row < args.rows, team) };
            if team.lane == kept {
                stats = of_row;
            }
            if kept == 0 && mine < args.rows {
                // SAFETY: condition 1.
                logit = unsafe { pass.logit(mine, class) };
            }
            kept += 1;
            first += teams;
        }
        if team.lane < kept && mine < args.rows {
            // SAFETY: the caller's conditions; each row is finished once.
            unsafe {
                let label = pass.label(class);
                Terms::add(pass.finish_row::<true>(mine, &label, stats.of_row(), logit, workspace));
            }
        }
    }
    // SAFETY: conditions 1 and 2.
    unsafe { finish_terms(&pass, workspace) };
}

/// The loss and the gradients, of such rows.
///
/// # Safety
/// As [`forward_short`]; a launch before this has added up the totals, if `divisor` is 0.
#[inline(always)]
pub(crate) unsafe fn forward_backward_short<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let ahead = unsafe { totals_ahead(args) };
    let team = Team::of_threads(args);
    Terms::clear();
    let mut first = team.first;
    // What this thread will finish: a team takes as many rows as it has threads, and then each finishes one.
    let (mut kept, mut stats_kept, mut logit_kept) = (0, Stats::NONE, E::Real::ZERO);
    // SAFETY: condition 1.
    let mut next = unsafe { pass.class(team.piece(first)) };
    let mut scale = E::Real::ZERO;
    if args.upstream_stride == 0 {
        // SAFETY: condition 1; all rows have one upstream gradient.
        scale = unsafe { pass.scale(0, ahead, Total::Weights) };
    }
    while first < args.rows {
        let row = team.piece(first);
        let active = row < args.rows;
        let class = next;
        // SAFETY: the caller's conditions; a row that is not active is not touched.
        unsafe {
            let lanes = Lanes::<E, { lies::ALIKE }>::new(&pass, row);
            // The next row's class is on its way while this row is read.
            next = pass.class(row + u64::from(team.teams));
            let label = pass.label(class);
            let read = active && label.counts;
            let held = lanes.tile::<HELD>(team.lane, read, team);
            // Before it is overwritten: the team meets for its sums before it writes.
            let logit = if read { pass.logit(row, class) } else { E::Real::ZERO };
            let (stats, _) = lanes.stats_of_tile::<MODE, HELD>(&pass, &held, read, team);
            let stats = stats.of_row();
            if active {
                if args.upstream_stride != 0 {
                    scale = pass.scale(row, ahead, Total::Weights);
                }
                let factors =
                    pass.factors(&label, stats, scale, || pass.scale(row, ahead, Total::Rows));
                // Written with its group: in so short a row, by itself it would be a store more in sixteen, of a part of
                // what memory moves.
                let class = (MODE != mode::PROBABILITIES)
                    .then(|| (label.class, pass.at_class(&label, &factors, logit)));
                let (to, held) = (lanes.to(&pass, row), held.anew());
                lanes.gradients_of_tile::<MODE, false, HELD>(
                    &pass, class, &factors, to, &held, team,
                );
                lanes.gradients_of_edge::<MODE, false>(
                    &pass, &label, class, &factors, to, &mut None, team,
                );
            }
            if team.lane == kept {
                (stats_kept, logit_kept) = (stats, logit);
            }
        }
        kept += 1;
        first += u64::from(team.teams);
        if kept == team.threads || first >= args.rows {
            let row =
                team.piece(first) - u64::from(kept - team.lane.min(kept)) * u64::from(team.teams);
            if team.lane < kept && row < args.rows {
                // SAFETY: the caller's conditions; each row is finished once.
                unsafe {
                    let label = pass.label(pass.class(row));
                    Terms::add(
                        pass.finish_row::<false>(row, &label, stats_kept, logit_kept, workspace),
                    );
                }
            }
            kept = 0;
        }
    }
    if args.reduction == reduction::SCALAR || args.fault != 0 {
        let terms = Terms::of_thread();
        // SAFETY: conditions 1 and 2.
        unsafe {
            grid_sums([terms[0], terms[2]], workspace, |sums| {
                pass.finish_with_totals(sums, pass.ask_for_totals(ahead), workspace);
            });
        }
    }
}
