//! The loss and the gradients in one pass, of rows however long they are and however they lie: a block takes a row.
//!
//! Blocks that end with their row and begin in the order of memory are what reads and writes want that take turns:
//! blocks that stay and take row after row are a tenth slower, whatever they do in between.

use super::kept::KeptLogits;
use super::label::{Label, add_up_totals, totals_ahead};
use super::lanes::{FLIGHT_BESIDE, Lanes, lies};
use super::pass::{BlockTerms, Pass, TERMS, Total, scales_of_row};
use super::stats::Stats;
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{AsTheyAre, Workspace, bits_of_sum, leave_of_block, sums_over_blocks};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::sync_warp;

cuda_std::shared_array! {
    /// The logit of the row's class: whoever comes upon it keeps it for who finishes the row.
    fn logit_of_row() -> [u64; 1];
}

/// Of a row, the block holds `HELD` groups of 16 bytes a thread in registers, keeps what it can of what is behind them in
/// shared memory, and reads the rest twice.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is the block.
#[inline(always)]
pub(crate) unsafe fn forward_backward_long<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let ahead = unsafe { totals_ahead(args) };
    let team = Team::of_block(args);
    let first = thread_idx_x() == 0;
    if first {
        BlockTerms::set([0.0; TERMS]);
    }
    let adds_up = block_idx_x() < args.totals_blocks;
    let takes_rows = !adds_up && team.first < u64::from(team.teams);
    let mut row = if takes_rows { team.first } else { args.rows };
    while row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let behind = HELD as u32 * team.threads;
            let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row)
                .keeping(KeptLogits::new(args, behind));
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            let class = pass.class(row);
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            let label = pass.label(class);
            if first {
                // By one thread: where all wait for the totals, they wait for each other; and what is the same for all takes a
                // register of none.
                let set = |index, value: E::Real| scales_of_row().set(index, value.to_bits64());
                set(0, pass.scale(row, ahead, Total::Weights));
                if args.z_loss != 0.0 {
                    set(1, pass.scale(row, ahead, Total::Rows));
                }
                set(2, label.weight);
            }
            if !label.counts {
                held.forget::<E>();
            }
            let of_warp = lanes.stats_beside(&pass, &held, label.counts, team);
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, true>()
            } else {
                of_warp.of_block::<false, true>()
            };
            if first {
                stats.keep();
            }
            let of_row = |index| E::Real::from_bits64(scales_of_row().get(index));
            let label = Label { weight: of_row(2), ..label };
            let factors = pass.factors(&label, stats, of_row(0), || of_row(1));
            let (to, held) = (lanes.to(&pass, row), held.anew());
            let keep = |logit: E::Real| logit_of_row().set(0, logit.to_bits64());
            lanes.gradients_with_class(&pass, &label, &factors, to, &held, keep);
            lanes.gradients::<MODE, FLIGHT_BESIDE>(
                &pass, behind, 0, &label, &factors, to, keep, team,
            );
            // Whoever has come upon the class's logit has kept it.
            sync_threads();
            if first {
                let label = pass.label(pass.class(row));
                let has_class = label.has_class(args.cols);
                let logit = if has_class {
                    E::Real::from_bits64(logit_of_row().get(0))
                } else {
                    E::Real::ZERO
                };
                BlockTerms::add(pass.finish_row::<false>(
                    row,
                    &label,
                    Stats::kept(),
                    logit,
                    workspace,
                ));
            }
        }
        row += u64::from(Team::of_block(args).teams);
        if row < args.rows {
            // The row is finished, of which what is kept is to be replaced.
            sync_threads();
        }
    }
    if adds_up {
        // SAFETY: conditions 1 and 2.
        unsafe { add_up_totals::<E>(args) };
    }
    if args.reduction == reduction::SCALAR || args.fault != 0 {
        // SAFETY: conditions 1 and 2; in the last block's first thread.
        unsafe {
            if first {
                let [terms, _, squares, _] = BlockTerms::get();
                let sums = [terms, squares].map(bits_of_sum);
                leave_of_block(0, sums, args.adders, workspace);
            }
            let asked = pass.ask_for_totals(ahead);
            sums_over_blocks::<2, 2>(&AsTheyAre, args.adders, workspace, |sums| {
                pass.finish_with_totals(sums, asked, workspace);
            });
        }
    }
}
