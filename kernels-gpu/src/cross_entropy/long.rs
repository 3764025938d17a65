//! The loss and the gradients in one pass, of rows however long they are and however they lie: a block takes a row.
//!
//! Blocks that end with their row and begin in the order of memory are what reads and writes want that take turns:
//! blocks that stay and take row after row are a tenth slower, whatever they do in between.

use super::kept::KeptLogits;
use super::label::{add_up_totals, totals_ahead};
use super::lanes::{FLIGHT_BESIDE, Lanes, lies};
use super::pass::{Pass, Total, scales_of_row};
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{AsTheyAre, Workspace, bits_of_sum, leave_of_block, sums_over_blocks};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

cuda_std::shared_array! {
    /// The losses and the squared log-sum-exps of the rows that are finished, by a thread each, of which a barrier stands
    /// between any two.
    fn sums_of_block() -> [f64; 2];
}

#[inline(always)]
fn sums() -> [f64; 2] {
    // SAFETY: the first thread wrote them, or who finished the row before; a row has a barrier before it is finished.
    unsafe { [sums_of_block().get(0), sums_of_block().get(1)] }
}

#[inline(always)]
fn set_sums(sums: [f64; 2]) {
    // SAFETY: as in `sums`.
    unsafe {
        sums_of_block().set(0, sums[0]);
        sums_of_block().set(1, sums[1]);
    }
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
        set_sums([0.0; 2]);
    }
    // Whoever has finished the block's last row has its sums.
    let mut finishes = first;
    let adds_up = block_idx_x() < args.totals_blocks;
    let mut row = if adds_up { args.rows } else { team.first };
    while row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let behind = HELD as u32 * team.threads;
            let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row)
                .keeping(KeptLogits::new(args, behind));
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            let class = pass.class(row);
            if first {
                // By one thread: where all wait for the totals, they wait for each other.
                scales_of_row().set(0, pass.scale(row, ahead, Total::Weights).to_bits64());
            }
            let label = pass.label(class);
            if !label.counts {
                held.forget::<E>();
            }
            let of_warp = lanes.stats_beside(&pass, &held, label.counts, team);
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true>()
            } else {
                of_warp.of_block::<false>()
            };
            let scale = E::Real::from_bits64(scales_of_row().get(0));
            let factors =
                pass.factors(&label, stats, scale, || pass.scale(row, ahead, Total::Rows));
            let held = held.anew();
            let to = lanes.to(&pass, row);
            lanes.gradients_of_tile::<MODE, false, HELD>(&pass, None, &factors, to, &held, team);
            let mut owned = lanes.class_in_tile(&pass, &label, &held, team);
            lanes.gradients::<MODE, false, FLIGHT_BESIDE>(
                &pass, behind, 0, &label, &factors, to, &mut owned, team,
            );
            finishes = if label.has_class(args.cols) { owned.is_some() } else { first };
            if finishes {
                let [term, _, square, _] =
                    lanes.finish(&pass, row, &label, stats, scale, ahead, to, owned, workspace);
                let sums = sums();
                set_sums([sums[0] + term, sums[1] + square]);
            }
        }
        row += u64::from(Team::of_block(args).teams);
        if row < args.rows {
            // All have the sums of the row, which those of the next are to replace.
            sync_threads();
        }
    }
    if adds_up {
        // SAFETY: conditions 1 and 2.
        unsafe { add_up_totals::<E>(args) };
    }
    if args.reduction == reduction::SCALAR || args.fault != 0 {
        if args.z_loss != 0.0 {
            // Before the sums are left, all have seen the totals, which go when all sums are there: the weights before
            // the row's sums, but those of the z-loss behind them.
            sync_threads();
        }
        // SAFETY: conditions 1 and 2; in the last block's first thread.
        unsafe {
            if finishes {
                leave_of_block::<2, false>(0, sums().map(bits_of_sum), workspace);
            }
            let asked = pass.ask_for_totals(ahead);
            sums_over_blocks::<false, false, 2, 2>(&AsTheyAre, workspace, |sums| {
                pass.finish_with_totals(sums, asked, workspace);
            });
        }
    }
}
