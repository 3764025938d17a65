//! The loss and the gradients in one pass, of rows that a block holds in registers: a row a block.
//!
//! Nothing here is in a loop: what a loop over rows would keep from one to the next costs registers and instructions, and
//! blocks that end with their row and begin in the order of memory are what reads and writes want that take turns.

use super::label::{Label, add_up_totals, totals_ahead};
use super::lanes::{Lanes, lies};
use super::pass::{Asked, Pass, Total, scales_of_row};
use super::stats::{Stats, not_zero};
use super::team::Team;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real};
use crate::reduce::{Terms, Workspace, bits_of_sum, leave_of_block, sums_over_blocks};
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::warp_id;

/// # Safety
/// The kernels' conditions ([`super`]). A block for each row, behind those that add up totals, and behind them
/// `abi::ADDERS` that add up while others still have rows; a team is the block, and holds a row as [`lies::HELD`] says,
/// `HELD` groups of 16 bytes a thread.
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
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            let class = pass.class(row);
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
            let label = pass.label(class);
            if !label.counts {
                held.forget::<E>();
            }
            if first && label.has_class(args.cols) {
                lanes.keep_class(label.class);
            }
            let (of_warp, exps) =
                lanes.stats_of_tile::<MODE, HELD>(&pass, &held, label.counts, team);
            if first && args.grad_input.start == args.input.start {
                // Before the barrier, behind which the row is overwritten.
                wait_for_copies::<0>();
            }
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true>()
            } else {
                of_warp.of_block::<false>()
            };
            // Asked for again, where it would take registers that the exponentials need.
            let (team, held) = (Team::of_block(args), held.at(thread_idx_x()));
            let row = team.first;
            if first && !Pass::<E, MODE>::DENSE {
                leave_of_block::<2, true>(0, stats.to_words(), workspace);
            }
            let scale = |index| E::Real::from_bits64(scales_of_row().get(index));
            let factors = pass.factors(&label, stats, scale(0), || scale(1));
            let to = lanes.to(&pass, row);
            if Pass::<E, MODE>::DENSE {
                let held = held.anew();
                let class = lanes.class_in_tile(&pass, &label, &held, team);
                let class =
                    class.map(|logit| (label.class, pass.at_class(&label, &factors, logit)));
                lanes.gradients_of_tile::<MODE, false, HELD>(
                    &pass, class, &factors, to, &held, team,
                );
            } else {
                // The exponentials are relative to the warp's largest logit.
                let relative = (of_warp.max - factors.center).exp_below();
                lanes.gradients_of_exps(
                    &pass, &label, &factors, relative, to[0], &held, &exps, team,
                );
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
                    leave_of_block::<PARTS, true>(0, parts, workspace);
                } else {
                    leave_of_block::<1, true>(2, [not_zero(logit).to_bits64()], workspace);
                }
            }
        }
    } else if first {
        // SAFETY: condition 2.
        unsafe { leave_of_block::<PARTS, true>(0, [bits_of_sum(0.0); PARTS], workspace) };
    }
    // SAFETY: conditions 1 and 2; in the last block's first thread.
    unsafe {
        let (terms, asked) = (TermsOfRows { pass: &pass, workspace }, pass.ask_for_totals(ahead));
        sums_over_blocks::<true, true, PARTS, 2>(&terms, workspace, |sums| {
            pass.finish_with_totals(sums, asked, workspace);
        });
    }
}

/// What a block leaves of its row.
const PARTS: usize = 3;

/// The losses of rows, which whoever adds them up makes of what their blocks have left: 32 at once, where a block would
/// keep its room until one of its threads has made one.
struct TermsOfRows<'a, E: Element, const MODE: u32> {
    pass: &'a Pass<'a, E, MODE>,
    workspace: Workspace,
}

impl<E: Element, const MODE: u32> Terms<PARTS, 2> for TermsOfRows<'_, E, MODE> {
    const AT_ONCE: usize = 2;
    type Besides = Option<Label<E::Real>>;

    /// The label of the row, of a block that has one.
    #[inline(always)]
    fn besides(&self, block: u64) -> Self::Besides {
        let row = block.wrapping_sub(self.pass.args.totals_blocks.into());
        if Pass::<E, MODE>::DENSE || row >= self.pass.args.rows {
            return None;
        }
        // SAFETY: condition 1; the row is one.
        unsafe { Some(self.pass.label(self.pass.class(row))) }
    }

    #[inline(always)]
    fn of_place(&self, block: u64, label: Self::Besides, parts: [u64; PARTS]) -> [f64; 2] {
        let Some(label) = label else { return [parts[0], parts[1]].map(f64::from_bits) };
        let row = block - u64::from(self.pass.args.totals_blocks);
        let (stats, logit) =
            (Stats::from_words([parts[0], parts[1]]), E::Real::from_bits64(parts[2]));
        // SAFETY: condition 1; the row is one, and whoever takes its parts is the only one.
        let [term, _, square, _] =
            unsafe { self.pass.finish_row::<false>(row, &label, stats, logit, self.workspace) };
        [term, square]
    }
}
