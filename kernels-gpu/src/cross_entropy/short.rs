//! Short rows, of which a warp takes one or several at once and holds them in registers.

use super::forward::finish_terms;
use super::lanes::Lanes;
use super::pass::{Pass, Terms};
use super::stats::Stats;
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{Workspace, grid_sums};

/// The row that a thread of a team will finish: a team reads as many rows as it has threads, and finishes all at once.
struct Kept<R> {
    stats: Stats<R>,
    /// The logit of the row's class.
    logit: R,
    /// Rows that threads of the team keep so far, each one: those of the last rounds.
    rows: u32,
}

/// The loss and, with `GRADS`, the gradients, of rows of at most `HELD` groups of 16 bytes a thread of a team.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is a power of two of 2 to 32 threads that holds a row, in a block of at
/// most 256; all tensors with rows lie alike to 16 bytes.
#[inline(always)]
pub(crate) unsafe fn short<E: Element, const MODE: u32, const GRADS: bool, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_threads(args);
    let mut kept = Kept { stats: Stats::NONE, logit: E::Real::ZERO, rows: 0 };
    Terms::clear();
    let mut scales = (E::Real::ZERO, E::Real::ZERO);
    if GRADS && args.upstream_stride == 0 {
        // SAFETY: condition 1; all rows have one upstream gradient.
        scales = unsafe { pass.scales(0) };
    }
    let mut first = team.first;
    // SAFETY: condition 1.
    let mut next = unsafe { pass.class(team.piece(first)) };
    while first < args.rows {
        let row = team.piece(first);
        let active = row < args.rows;
        // The next row's class is on its way while this row is read.
        let class = next;
        // SAFETY: the caller's conditions; a row that is not active is not touched.
        unsafe {
            next = pass.class(row + u64::from(team.teams));
            let label = pass.label(class);
            // A row that does not count is not read, unless its log-sum-exp is asked for.
            let read = active && (label.counts || (!GRADS && args.saved != 0));
            let mut logit = E::Real::ZERO;
            if read && (GRADS || team.lane == kept.rows) {
                // Before any is overwritten: the team meets for its sums before it writes.
                logit = pass.logit(row, &label);
            }
            let lanes = Lanes::new::<MODE, HELD>(&pass, row);
            let held = lanes.tile::<HELD>(team.lane, read, team);
            let stats = lanes.stats_of_tile::<MODE, true, HELD>(&pass, &held, read, team).of_row();
            if GRADS && active {
                if args.upstream_stride != 0 {
                    scales = pass.scales(row);
                }
                let factors = pass.factors(&label, stats, logit, scales);
                let to = lanes.to::<MODE, HELD>(&pass, row);
                lanes.gradients_of_tile::<MODE, false, HELD>(
                    &pass, &label, &factors, to, &held, team,
                );
                lanes.gradients_of_edge::<MODE, false>(&pass, &label, &factors, to, team);
            }
            if team.lane == kept.rows {
                (kept.stats, kept.logit) = (stats, logit);
            }
        }
        kept.rows += 1;
        first += u64::from(team.teams);
        if kept.rows == team.threads || first >= args.rows {
            if team.lane < kept.rows {
                let row =
                    team.piece(first) - u64::from(kept.rows - team.lane) * u64::from(team.teams);
                if row < args.rows {
                    // SAFETY: the caller's conditions; each row is finished once.
                    unsafe {
                        let label = pass.label(pass.class(row));
                        Terms::add(pass.finish_row(row, &label, kept.stats, kept.logit, workspace));
                    }
                }
            }
            kept.rows = 0;
        }
    }
    // SAFETY: conditions 1 and 2.
    unsafe {
        if !GRADS {
            finish_terms(&pass, workspace);
        } else if args.reduction == reduction::SCALAR || args.fault != 0 {
            let terms = Terms::of_thread();
            grid_sums([terms[0], terms[2]], workspace, |sums| {
                pass.finish_with_totals(sums, workspace);
            });
        }
    }
}
