//! Short rows, of which a warp takes one or several at once and holds them in registers.

use super::forward::finish_threads;
use super::label::totals_ahead;
use super::lanes::{Lanes, lies};
use super::mode;
use super::pass::{Pass, ThreadTerms, Total};
use super::stats::{Relative, Stats};
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{Workspace, grid_sums};
use cuda_std::thread::thread_idx_x;

cuda_std::shared_array! {
    /// Five numbers for each thread of a block of at most 256.
    fn rows_of_threads() -> [u64; 1280];
}

/// What each thread has of the row that it will finish: in shared memory, not to cost registers while others are read.
struct RowOfThread;

impl RowOfThread {
    #[inline(always)]
    fn at(part: usize) -> u32 {
        part as u32 * 256 + thread_idx_x()
    }

    #[inline(always)]
    fn keep<R: Real>(stats: Stats<R>, logit: R) {
        let [max, others, dot, weight] = stats.parts();
        let parts = [max, others, dot, weight, logit];
        unrolled!(for part in 0..5; {
            // SAFETY: at most 256 threads, each its own.
            unsafe { rows_of_threads().set(Self::at(part), parts[part].to_bits64()) };
        });
    }

    /// # Safety
    /// This thread has kept one.
    #[inline(always)]
    unsafe fn kept<R: Real>() -> (Stats<R>, R) {
        let mut parts = [R::ZERO; 5];
        unrolled!(for part in 0..5; {
            // SAFETY: the caller's condition.
            parts[part] = R::from_bits64(unsafe { rows_of_threads().get(Self::at(part)) });
        });
        let [max, others, dot, weight, logit] = parts;
        (Stats::of_parts([max, others, dot, weight]), logit)
    }
}

/// The loss, of rows of at most `HELD` groups of 16 bytes a thread of a team.
///
/// A team reads as many rows as it has threads, and then each thread finishes one.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is a power of two of 2 to 32 threads that holds a row, in a block of at
/// most 256; rows lie as `LIES` says, [`lies::ALIKE`] or [`lies::SHORT`].
#[inline(always)]
pub(crate) unsafe fn forward_short<
    E: Element,
    const MODE: u32,
    const HELD: usize,
    const LIES: u32,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_threads(args);
    let teams = u64::from(team.teams);
    ThreadTerms::clear();
    let mut first = team.first;
    // Of a row that is none the last once more, for nothing: cheaper than to ask of each group whether it is to be read.
    // SAFETY: the caller's conditions.
    let read = |row: u64| unsafe {
        let lanes = Lanes::<E, LIES>::new(&pass, row.min(args.rows - 1));
        (lanes.tile::<HELD>(team.lane, true, team), lanes)
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
                unsafe { lanes.stats_of_tile::<MODE, HELD, false>(&pass, &tile, true, team) };
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
                ThreadTerms::add(pass.finish_row::<true>(
                    mine,
                    &label,
                    stats.of_row(),
                    logit,
                    workspace,
                ));
            }
        }
    }
    // SAFETY: conditions 1 and 2.
    unsafe { finish_threads(&pass, workspace) };
}

/// The loss and the gradients, of such rows.
///
/// # Safety
/// As [`forward_short`], of rows that lie [`lies::ALIKE`]; a launch before this has added up the totals, if `divisor` is 0.
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
    ThreadTerms::clear();
    let mut first = team.first;
    // What this thread will finish: a team takes as many rows as it has threads, and then each finishes one.
    let mut kept = 0;
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
            let (stats, exps) = lanes.stats_of_tile::<MODE, HELD, true>(&pass, &held, read, team);
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
                let to = lanes.to(&pass, row);
                if Pass::<E, MODE>::DENSE {
                    let held = held.anew();
                    lanes.gradients_of_tile::<MODE, HELD>(&pass, class, &factors, to, &held);
                } else {
                    let unit = Relative::<_, MODE>::to(factors.center).unit();
                    let class = class.unwrap_or((u32::MAX, E::Real::ZERO));
                    let class = (class.0, |_| class.1);
                    lanes.gradients_of_exps(&exps, unit * factors.factor, class, to[0], &held);
                }
                let of_class = |logit| pass.store_at_class(&label, &factors, logit, to[0]);
                lanes.gradients_of_edges(&pass, &label, &factors, to, of_class, team);
            }
            if team.lane == kept {
                RowOfThread::keep(stats, logit);
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
                    let (stats, logit) = RowOfThread::kept();
                    ThreadTerms::add(
                        pass.finish_row::<false>(row, &label, stats, logit, workspace),
                    );
                }
            }
            kept = 0;
        }
    }
    if args.reduction == reduction::SCALAR || args.fault != 0 {
        let terms = ThreadTerms::of_thread();
        // SAFETY: conditions 1 and 2.
        unsafe {
            grid_sums([terms[0], terms[2]], workspace, |sums| {
                pass.finish_with_totals(sums, pass.ask_for_totals(ahead), workspace);
            });
        }
    }
}
