//! The loss and the gradients in one pass: a block takes a row.
//!
//! Blocks that end with their row and begin in the order of memory are what reads and writes want that take turns:
//! blocks that stay and take row after row are a tenth slower, whatever they do in between.

use super::kept::KeptLogits;
use super::lanes::Lanes;
use super::pass::Pass;
use super::team::Team;
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::Element;
use crate::reduce::{Workspace, sums_over_blocks};
use cuda_std::thread::thread_idx_x;

cuda_std::shared_array! {
    /// The losses and the squared log-sum-exps of the rows that the first thread has finished, which alone accesses
    /// their sums: here, not to cost all threads registers.
    fn sums_of_block() -> [f64; 2];
}

#[inline(always)]
fn sums() -> [f64; 2] {
    // SAFETY: by the thread that wrote them.
    unsafe { [sums_of_block().get(0), sums_of_block().get(1)] }
}

#[inline(always)]
fn set_sums(sums: [f64; 2]) {
    // SAFETY: no other thread accesses them.
    unsafe {
        sums_of_block().set(0, sums[0]);
        sums_of_block().set(1, sums[1]);
    }
}

/// Rows that the block holds in registers, at most `HELD` groups of 16 bytes a thread; with none, it keeps what it
/// can in shared memory, and reads the rest of a row twice.
///
/// # Safety
/// The kernels' conditions ([`super`]). A team is the block; with `HELD` it holds a row, and all tensors with rows lie
/// alike to 16 bytes.
#[inline(always)]
pub(crate) unsafe fn forward_backward<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_block();
    let first = thread_idx_x() == 0;
    if first {
        set_sums([0.0; 2]);
    }
    let (mut row, mut buffer) = (team.first, 0);
    while row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::new::<MODE, HELD>(&pass, row).keeping(KeptLogits::new(args));
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            let scales = pass.scales(row);
            let label = pass.label(pass.class(row));
            // Before it is overwritten.
            let logit = pass.logit(row, &label);
            if !label.counts {
                held.forget::<E>();
            }
            let of_warp = if HELD > 0 {
                lanes.stats_of_tile::<MODE, false, HELD>(&pass, &held, label.counts, team)
            } else {
                lanes.stats_of_warp::<MODE, false>(&pass, 0, label.counts, team)
            };
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true>(buffer)
            } else {
                of_warp.of_block::<false>(buffer)
            };
            buffer ^= 1;
            let factors = pass.factors(&label, stats, logit, scales);
            if HELD > 0 {
                let to = lanes.to::<MODE, HELD>(&pass, row);
                lanes.gradients_of_tile::<MODE, false, HELD>(
                    &pass, &label, &factors, to, &held, team,
                );
                lanes.gradients_of_edge::<MODE, false>(&pass, &label, &factors, to, team);
            } else {
                lanes.gradients::<MODE, false>(&pass, row, 0, &label, &factors, team);
            }
            if first {
                let [term, _, square, _] = pass.finish_row(row, &label, stats, logit, workspace);
                let sums = sums();
                set_sums([sums[0] + term, sums[1] + square]);
            }
        }
        row += u64::from(team.teams);
    }
    if args.reduction == reduction::SCALAR || args.fault != 0 {
        let sums = if first { sums() } else { [0.0; 2] };
        // SAFETY: conditions 1 and 2; in the last block's first thread.
        unsafe {
            sums_over_blocks(sums, workspace, |sums| pass.finish_with_totals(sums, workspace));
        }
    }
}
