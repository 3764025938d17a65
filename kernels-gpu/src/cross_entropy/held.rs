//! The loss, or the loss and the gradients in one pass, of rows that a block holds in registers: a row a block.
//!
//! Nothing here is in a loop: what a loop over rows would keep from one to the next costs registers and instructions, and
//! blocks that end with their row and begin in the order of memory are what reads and writes want that take turns.

use super::forward::{finish_terms, has_sums, leave_terms};
use super::label::{Label, add_up_totals, totals_ahead};
use super::lanes::{Lanes, lies};
use super::pass::{Asked, Pass, Total, scales_of_row};
use super::stats::{Relative, Stats, not_zero};
use super::team::Team;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real, unrolled};
use crate::reduce::{AsTheyAre, Terms, Workspace, bits_of_sum, leave_of_block, sums_over_blocks};
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::{sync_warp, warp_id};

/// The loss. With `FINISHES` a block makes the loss of its row, which is soonest known so; without, whoever adds up does, and
/// blocks make way sooner. Of targets for every class each block does.
///
/// # Safety
/// The kernels' conditions ([`super`]). A block for each row, one at least, and behind them `adders`; a team is the block, and
/// holds a row as [`lies::HELD`] says, `HELD` groups of 16 bytes a thread.
#[inline(always)]
pub(crate) unsafe fn forward_held<
    E: Element,
    const MODE: u32,
    const HELD: usize,
    const FINISHES: bool,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_block(args);
    let (row, first) = (team.first, thread_idx_x() == 0);
    let finishes = FINISHES || Pass::<E, MODE>::DENSE;
    let sums;
    if row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::<E, { lies::HELD }>::new(&pass, row);
            // Of few rows the logits first, whose address is sooner known; of many the class, which is sooner needed.
            let class = (!FINISHES).then(|| pass.class(row));
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let held = lanes.tile::<HELD>(team.lane, true, team);
            let class = class.unwrap_or_else(|| pass.class(row));
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            sums = !finishes || has_sums(args);
            let label = pass.label(class);
            let mut logit = E::Real::ZERO;
            if warp_id() == 0 {
                logit = pass.logit(row, class);
            }
            let (of_warp, _) = lanes.stats_of_tile::<MODE, HELD, false>(&pass, &held, true, team);
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, false>()
            } else {
                of_warp.of_block::<false, false>()
            };
            if first && finishes {
                let terms = pass.finish_row::<true>(row, &label, stats, logit, workspace);
                if sums {
                    leave_terms(&pass, terms, workspace);
                }
            } else if first {
                leave_of_block(0, stats.to_words(), args.adders, workspace);
                leave_of_block(2, [not_zero(logit).to_bits64()], args.adders, workspace);
            }
        }
    } else {
        sums = !finishes || has_sums(args);
    }
    if !sums {
        return;
    }
    // SAFETY: the caller's conditions.
    unsafe {
        if finishes {
            finish_terms::<E, MODE, 2, 4>(&pass, &AsTheyAre, workspace);
        } else {
            let terms = TermsOfRows::<E, MODE, true> { pass: &pass, workspace };
            finish_terms(&pass, &terms, workspace);
        }
    }
}

/// The loss and the gradients.
///
/// # Safety
/// The kernels' conditions ([`super`]). A block for each row, behind those that add up totals, and behind them
/// `adders`; a team is the block, and holds a row as [`lies::HELD`] says, `HELD` groups of 16 bytes a thread.
#[inline(always)]
pub(crate) unsafe fn forward_backward_held<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let ahead = unsafe { totals_ahead(args) };
    let team = Team::of_block(args);
    let adds_up = block_idx_x() < args.totals_blocks;
    let first = thread_idx_x() == 0;
    let row = team.first;
    if adds_up {
        // SAFETY: conditions 1 and 2.
        unsafe { add_up_totals::<E>(args) };
    }
    if !adds_up && row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::<E, { lies::HELD }>::new(&pass, row);
            // By one warp: where all wait for the totals, they wait for each other.
            let totals = if warp_id() == 0 { Some(Asked::new(args, ahead)) } else { None };
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let class = pass.class(row);
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            if let Some(totals) = totals {
                let set = |index, total| {
                    let scale = pass.scale(row, totals, total).to_bits64();
                    if first {
                        scales_of_row().set(index, scale);
                    }
                };
                set(0, Total::Weights);
                if args.z_loss != 0.0 {
                    set(1, Total::Rows);
                }
            }
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            pass.prefetch(row, team);
            let label = pass.label(class);
            if !label.counts {
                held.forget::<E>();
            }
            if first && label.has_class(args.cols) {
                lanes.keep_class(label.class);
            }
            let (of_warp, exps) =
                lanes.stats_of_tile::<MODE, HELD, true>(&pass, &held, label.counts, team);
            if first && args.grad_input.start == args.input.start {
                // Before the barrier, behind which the row is overwritten.
                wait_for_copies::<0>();
            }
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, true>()
            } else {
                of_warp.of_block::<false, true>()
            };
            // Asked for again, where it would take registers that the exponentials need.
            let team = Team::of_block(args);
            let held = held.at(team.lane, team.threads);
            let row = team.first;
            if first && !Pass::<E, MODE>::DENSE {
                leave_of_block::<2>(0, stats.to_words(), args.adders, workspace);
            }
            let scale = |index| E::Real::from_bits64(scales_of_row().get(index));
            let factors = pass.factors(&label, stats, scale(0), || scale(1));
            let to = lanes.to(&pass, row);
            if Pass::<E, MODE>::DENSE {
                let held = held.anew();
                let class = lanes.class_in_tile::<MODE, HELD>(&label, &held);
                let class =
                    class.map(|logit| (label.class, pass.at_class(&label, &factors, logit)));
                lanes.gradients_of_tile::<MODE, HELD>(&pass, class, &factors, to, &held);
            } else {
                // They are relative to the warp's largest logit.
                let relative = Relative::<_, MODE>::to(of_warp.center());
                let unit = (of_warp.max - factors.center).exp_below() * relative.unit();
                let at_class = |exp| {
                    let likeliest = exp == relative.tie() && of_warp.max == factors.center;
                    pass.at_class_of(&label, &factors, unit * exp * factors.inverse, likeliest)
                };
                let (factor, class) = (unit * factors.factor, (label.class, at_class));
                lanes.gradients_of_exps(&exps, factor, class, to[0], &held);
            }
            if first {
                // The logit is there only now.
                wait_for_copies::<0>();
                let logit = if label.has_class(args.cols) {
                    Lanes::<E, { lies::HELD }>::kept_class(label.class)
                } else {
                    E::Real::ZERO
                };
                if Pass::<E, MODE>::DENSE {
                    let [term, _, square, _] =
                        pass.finish_row::<false>(row, &label, stats.anew(), logit, workspace);
                    let parts = [term, square, 0.0].map(bits_of_sum);
                    leave_of_block::<PARTS>(0, parts, args.adders, workspace);
                } else {
                    leave_of_block::<1>(2, [not_zero(logit).to_bits64()], args.adders, workspace);
                }
            }
        }
    } else if first {
        // SAFETY: condition 2.
        unsafe { leave_of_block::<PARTS>(0, [bits_of_sum(0.0); PARTS], args.adders, workspace) };
    }
    // SAFETY: conditions 1 and 2; in the last block's first thread.
    unsafe {
        let terms = TermsOfRows::<E, MODE, false> { pass: &pass, workspace };
        let asked = pass.ask_for_totals(ahead);
        sums_over_blocks::<PARTS, 2>(&terms, args.adders, workspace, |sums| {
            pass.finish_with_totals(sums, asked, workspace);
        });
    }
}

/// What a block leaves of its row.
const PARTS: usize = 3;

/// The losses of rows, which whoever adds them up makes of what their blocks have left: 32 at once, where a block would
/// keep its room until one of its threads has made one. `FORWARD` says in which pass.
struct TermsOfRows<'a, E: Element, const MODE: u32, const FORWARD: bool> {
    pass: &'a Pass<'a, E, MODE>,
    workspace: Workspace,
}

impl<E: Element, const MODE: u32, const FORWARD: bool, const N: usize> Terms<PARTS, N>
    for TermsOfRows<'_, E, MODE, FORWARD>
{
    const AT_ONCE: usize = if FORWARD { 1 } else { 2 };
    type Besides = Option<Label<E::Real>>;

    /// The label of the row, of a block that has one.
    #[inline(always)]
    fn besides(&self, block: u32) -> Self::Besides {
        let row = u64::from(block.wrapping_sub(self.pass.args.totals_blocks));
        if Pass::<E, MODE>::DENSE || row >= self.pass.args.rows {
            return None;
        }
        // SAFETY: condition 1; the row is one.
        unsafe { Some(self.pass.label(self.pass.class(row))) }
    }

    #[inline(always)]
    fn of_place(&self, block: u32, label: Self::Besides, parts: [u64; PARTS]) -> [f64; N] {
        let mut sums = [0.0; N];
        let Some(label) = label else {
            unrolled!(for sum in 0..N; {
                sums[sum] = if sum < PARTS { f64::from_bits(parts[sum]) } else { 0.0 };
            });
            return sums;
        };
        let row = u64::from(block - self.pass.args.totals_blocks);
        let (stats, logit) =
            (Stats::from_words([parts[0], parts[1]]), E::Real::from_bits64(parts[2]));
        // SAFETY: condition 1; the row is one, and whoever takes its parts is the only one.
        let terms =
            unsafe { self.pass.finish_row::<FORWARD>(row, &label, stats, logit, self.workspace) };
        unrolled!(for sum in 0..N; {
            // Of a pass with gradients, the losses and the squared log-sum-exps.
            sums[sum] = terms[if FORWARD { sum } else { 2 * sum }];
        });
        sums
    }
}
