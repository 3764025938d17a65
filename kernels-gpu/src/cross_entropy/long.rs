//! The loss and the gradients in one pass, of rows however long they are and however they lie: a
//! block takes a row.
//!
//! Blocks that end with their row and begin in the order of memory are what reads and writes want
//! that take turns: blocks that stay and take row after row are a tenth slower, whatever they do in
//! between.

use super::finish::{finish_grid, publish_terms};
use super::label::{Label, normaliser, sum_normaliser};
use super::lanes::{Lanes, alignment};
use super::pass::{BlockTerms, Pass, Total, scales_of_row, writes};
use super::row_group::{RowGroup, Rows};
use crate::abi::{CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real};
use crate::reduce::{self, Workspace};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, sync_warp};

cuda_std::shared_array! {
    /// The logit of the row's class, and then its gradient: of the thread that finishes the row.
    fn logit_of_row() -> [u64; 1];
}

cuda_std::shared_array! {
    /// How many rows the block has done, where no register is left for it. All threads read it
    /// between the barrier in a row's `block_merge_row` and the barrier at the end of the row; the first
    /// thread writes it between that one and the next row's `block_merge_row`.
    fn rows_done() -> [u64; 1];
}

/// How early the block begins that adds up the grid: rows are long, a stretch of them takes longer
/// than to fetch instructions.
type BlockRank = reduce::BlockRank<1>;

/// Of a row, the block holds `VECTORS` vectors of 16 bytes a thread in registers, stages what it can of
/// what is behind them in shared memory, and reads the rest twice.
///
/// # Safety
/// The kernels' conditions ([`super`]). The grid has `abi::grid_of_workers` behind those that add
/// up totals; a row group is the block.
#[inline(always)]
pub(crate) unsafe fn forward_backward_long<E: Element, const MODE: u32, const VECTORS: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let ahead = unsafe { normaliser(args) };
    let group = RowGroup::of_block();
    let first = thread_idx_x() == 0;
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: conditions 1 and 2.
        unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
        return;
    }
    let rank = || BlockRank::of_block(args.normaliser_blocks);
    // Asked for again where it is needed: it would take registers through the row.
    let row_at = |index| Rows::row(args, rank(), index);
    let Some(mut row) = row_at(0) else {
        // SAFETY: conditions 1 and 2.
        unsafe { finish_grid::<true, 3, E, MODE, _>(&pass, rank(), workspace) };
        return;
    };
    // Of float64, there is no register for it.
    let keeps_done = size_of::<E>() == 8;
    if keeps_done && first {
        // SAFETY: all threads pass the barrier in `block_merge_row` before they read it.
        unsafe { rows_done().set(0, 0) };
    }
    let mut index = 0;
    loop {
        // SAFETY: the caller's conditions.
        unsafe {
            let group = group.rematerialize();
            // The last warp has no more to do than any other.
            let finishes = group.lane + WARP_SIZE == group.threads;
            let behind = VECTORS as u32 * group.threads;
            let lanes = Lanes::<E, { alignment::LINE }>::new(&pass, row).staging(args, behind);
            // Before the class is known: it takes as long to arrive. Of a row that does not count,
            // no more is read.
            let mut held = lanes.tile::<VECTORS>(group.lane, true, group);
            let peeled = lanes.peeled_of_thread(group);
            let class = pass.class(row);
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            let label = pass.label(class);
            if first {
                // By one thread: where all wait for the totals, they wait for each other; and what
                // is the same for all takes a register of none.
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
            let batches = if label.counts { lanes.stage(behind, group) } else { 0 };
            // Before it is overwritten: a barrier stands before that.
            let logit = if finishes { pass.logit(row, class) } else { E::Real::ZERO };
            Lanes::<E, { alignment::LINE }>::stage_peeled(peeled, group);
            let of_thread = lanes.stats_of_registers(&pass, &held, label.counts, group);
            if finishes {
                logit_of_row().set(0, logit.to_bits64());
            }
            let of_warp =
                lanes.stats_behind(&pass, of_thread, behind, batches, label.counts, group);
            let mut row = row_at(index).unwrap_or_default();
            // All of this row has arrived. For float64, there is no register for it.
            if !keeps_done {
                pass.prefetch(row, group);
            }
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.block_merge_row::<true, true>()
            } else {
                of_warp.block_merge_row::<false, true>()
            };
            if keeps_done {
                // After the barrier in `block_merge_row`: the first thread may write it until then.
                index = rows_done().get(0) as u32;
                row = row_at(index).unwrap_or_default();
            }
            let of_row = |index| E::Real::from_bits64(scales_of_row().get(index));
            let label = Label { weight: of_row(2), ..label };
            let factors = pass.factors(&label, stats, of_row(0), || of_row(1));
            let to = lanes.to(&pass, row);
            if finishes {
                // While the others write: at the end, all would wait for it.
                let logit = E::Real::from_bits64(logit_of_row().get(0));
                let mut terms =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                if index > 0 {
                    terms = BlockTerms::and(terms);
                }
                if row_at(index + 1).is_some() {
                    BlockTerms::set(terms);
                } else {
                    // The end of the grid waits for it, and behind the gradients it would be seen
                    // late.
                    publish_terms::<E::Real, _>(
                        rank(),
                        [terms[0], terms[2], 0.0, 0.0],
                        1,
                        workspace,
                    );
                }
                let at_class = pass.at_class(&label, &factors, logit);
                logit_of_row().set(0, at_class.to_bits64());
            }
            let (group, held) = (group.rematerialize(), held.rematerialize());
            lanes.gradients_of_tile(&pass, None, &factors, to, &held);
            lanes.gradients_behind(&pass, behind, &label, &factors, to, group);
            // The class's has been written as any other's, by whoever has its logit.
            sync_threads();
            if finishes && label.has_class(args.cols) {
                let at_class = E::Real::from_bits64(logit_of_row().get(0));
                to[0].store(label.class, E::narrow(at_class));
            }
        }
        if keeps_done {
            // SAFETY: written before the barrier in `block_merge_row`, and again only after the next one.
            index = unsafe { rows_done().get(0) as u32 };
        }
        index += 1;
        let Some(next) = row_at(index) else { return };
        row = next;
        // The row is finished, of which what is staged is to be replaced.
        sync_threads();
        if keeps_done && first {
            // SAFETY: all have read it before the barrier above, and read it again after the one in
            // `block_merge_row`.
            unsafe { rows_done().set(0, index.into()) };
        }
    }
}
