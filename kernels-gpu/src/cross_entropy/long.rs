//! The loss and the gradients in one pass, of rows however long they are and however they lie: a block takes a row.
//!
//! Blocks that end with their row and begin in the order of memory are what reads and writes want that take turns:
//! blocks that stay and take row after row are a tenth slower, whatever they do in between.

use super::label::{Label, add_up_totals, totals_ahead};
use super::lanes::{Lanes, lies};
use super::pass::{BlockTerms, Pass, TERMS, Total, scales_of_row};
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{Workspace, bits_of_sum, is_last_block, leave_of_block, sums_over_blocks};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, sync_warp};

cuda_std::shared_array! {
    /// The logit of the row's class, and then its gradient: of the thread that finishes the row.
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
            let team = team.anew();
            // The last warp has no more to do than any other.
            let finishes = team.lane + WARP_SIZE == team.threads;
            let behind = HELD as u32 * team.threads;
            let lanes = Lanes::<E, { lies::AT_LINES }>::new(&pass, row).keeping(args, behind);
            // Before the class is known: it takes as long to arrive. Of a row that does not count, no more is read.
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            let edge = lanes.edge_of_thread(team);
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
            let batches = if label.counts { lanes.keep(behind, team) } else { 0 };
            // Before it is overwritten: a barrier stands before that.
            let logit = if finishes { pass.logit(row, class) } else { E::Real::ZERO };
            Lanes::<E, { lies::AT_LINES }>::keep_edge(edge, team);
            let of_thread = lanes.stats_of_held(&pass, &held, label.counts, team);
            if finishes {
                logit_of_row().set(0, logit.to_bits64());
            }
            let of_warp = lanes.stats_behind(&pass, of_thread, behind, batches, label.counts, team);
            // All of this row has arrived. Of float64, there is no register for it.
            if size_of::<E>() < 8 {
                pass.prefetch(row, team);
            }
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, true>()
            } else {
                of_warp.of_block::<false, true>()
            };
            let of_row = |index| E::Real::from_bits64(scales_of_row().get(index));
            let label = Label { weight: of_row(2), ..label };
            let factors = pass.factors(&label, stats, of_row(0), || of_row(1));
            let to = lanes.to(&pass, row);
            if finishes {
                // While the others write: at the end, all would wait for it.
                let logit = E::Real::from_bits64(logit_of_row().get(0));
                BlockTerms::add(pass.finish_row::<false>(row, &label, stats, logit, workspace));
                let at_class = pass.at_class(&label, &factors, logit);
                logit_of_row().set(0, at_class.to_bits64());
            }
            let (team, held) = (team.anew(), held.anew());
            lanes.gradients_of_tile(&pass, None, &factors, to, &held);
            lanes.gradients_behind(&pass, behind, &label, &factors, to, team);
            // The class's has been written as any other's, by whoever has its logit.
            sync_threads();
            if finishes && label.has_class(args.cols) {
                let at_class = E::Real::from_bits64(logit_of_row().get(0));
                to[0].store(label.class, E::narrow(at_class));
            }
        }
        row += u64::from(Team::blocks_of_grid(args));
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
            let asked = pass.ask_for_totals(ahead, is_last_block());
            sums_over_blocks::<4, 2>(args.adders, workspace, |sums| {
                pass.finish_with_totals(sums, asked, workspace);
            });
        }
    }
}
