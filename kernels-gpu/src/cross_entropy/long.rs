//! The loss and the gradients in one pass, with one block per row, for rows of any length and
//! alignment.
//!
//! Where reads and writes alternate, memory is fastest with blocks that end with their row and
//! begin in the order of memory: persistent blocks, which take row after row, are a tenth slower,
//! whatever they do in between.

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
    /// The logit of the row's class, and later the gradient of that logit, for the thread that
    /// finishes the row.
    fn logit_of_row() -> [u64; 1];
}

cuda_std::shared_array! {
    /// The number of rows that the block has finished, for f64 kernels, which have no register left
    /// for it. All threads read it between the barrier in `block_merge_row` and the barrier at the
    /// end of the row; the first thread writes it between the latter and the next row's
    /// `block_merge_row`.
    fn rows_done() -> [u64; 1];
}

/// The block that sums the grid is the adder of the last full adder period. That is early enough:
/// rows are long, so that an adder period of them takes longer than fetching instructions.
type BlockRank = reduce::BlockRank<1>;

/// The loss and the gradients. The block has the first `VECTORS` vectors per thread of each row in
/// registers, stages as many of the next vectors as fit in shared memory, and reads the rest twice.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The grid has `normaliser_blocks` blocks that sum the normaliser, followed by those of
///    `abi::grid_of_workers`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_backward_long<E: Element, const MODE: u32, const VECTORS: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: the kernels' condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let normaliser = unsafe { normaliser(args) };
    let group = RowGroup::of_block();
    let first = thread_idx_x() == 0;
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
        return;
    }
    let rank = || BlockRank::of_block(args.normaliser_blocks);
    // Recompute the row wherever it is needed: if it were kept in registers, they would be occupied
    // throughout the row.
    let row_at = |index| Rows::row(args, rank(), index);
    let Some(mut row) = row_at(0) else {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { finish_grid::<true, 8, E, MODE, _>(&pass, rank(), workspace) };
        return;
    };
    // f64 kernels have no register left, so the row counter is in shared memory.
    let counts_in_shared = size_of::<E>() == 8;
    if counts_in_shared && first {
        // SAFETY: all threads pass the barrier in `block_merge_row` before they read the counter.
        unsafe { rows_done().set(0, 0) };
    }
    let mut index = 0;
    loop {
        // SAFETY: the caller's conditions.
        unsafe {
            let group = group.rematerialize();
            // The first thread of the last warp finishes the row: that warp loads no peeled
            // element, so it is free before the first one.
            let finishes = group.lane + WARP_SIZE == group.threads;
            let tile_end = VECTORS as u32 * group.threads;
            let lanes = Lanes::<E, { alignment::LINE }>::new(&pass, row).staging(args, tile_end);
            // Load the first tile before the row's class is known, which takes as long to arrive.
            // If the row is ignored, nothing more of it is read.
            let mut tile = lanes.tile::<VECTORS>(group.lane, group);
            let peeled = lanes.peeled_of_thread(group);
            let class = pass.class(row);
            // Issue every load before the first use: otherwise the compiler waits for the class in
            // between.
            sync_warp();
            let label = pass.label(class);
            if first {
                // Only one thread loads the normaliser: if all did, each would wait for the others.
                // It stores the scales in shared memory, where values that all threads share take
                // no registers.
                let set = |index, value: E::Real| scales_of_row().set(index, value.to_bits64());
                set(0, pass.scale(row, normaliser, Total::Weights));
                if args.z_loss != 0.0 {
                    set(1, pass.scale(row, normaliser, Total::Rows));
                }
                if Pass::<E, MODE>::LOG_PROB {
                    set(1, pass.scale(row, normaliser, Total::Rows));
                }
                set(2, label.weight);
            }
            if !label.counts {
                tile.forget::<E>();
            }
            let batches = if label.counts { lanes.stage(tile_end, group) } else { 0 };
            // Read the class's logit before gradients overwrite it: a barrier is between the two.
            let logit = if finishes { pass.logit(row, class) } else { E::Real::ZERO };
            Lanes::<E, { alignment::LINE }>::stage_peeled(peeled, group);
            let thread_stats = lanes.stats_of_registers(&pass, &tile, label.counts, group);
            if finishes {
                logit_of_row().set(0, logit.to_bits64());
            }
            let warp_stats =
                lanes.stats_behind(&pass, thread_stats, tile_end, batches, label.counts, group);
            let mut row = row_at(index).unwrap_or_default();
            // Prefetch now that all of this row has arrived. f64 kernels have no register left for
            // the prefetch.
            if !counts_in_shared {
                pass.prefetch(row, group);
            }
            let stats = warp_stats.block_merge_row::<MODE, true>(pass.scale_of_logits());
            if counts_in_shared {
                // Read the counter after the barrier in `block_merge_row`: the first thread may
                // write it until then.
                index = rows_done().get(0) as u32;
                row = row_at(index).unwrap_or_default();
            }
            let row_value = |index| E::Real::from_bits64(scales_of_row().get(index));
            let label = Label { weight: row_value(2), ..label };
            let factors = pass.factors(&label, stats, row_value(0), || row_value(1));
            let to = lanes.to(&pass, row);
            if finishes {
                // Finish the row while other warps write gradients: at the end, all would wait for
                // it.
                let logit = E::Real::from_bits64(logit_of_row().get(0));
                let mut terms =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                if index > 0 {
                    terms = BlockTerms::and(terms);
                }
                if row_at(index + 1).is_some() {
                    BlockTerms::set(terms);
                } else {
                    // Publish before the gradients: the end of the grid waits for this, and would
                    // see it late if it were published after them.
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
            let (group, tile) = (group.rematerialize(), tile.rematerialize());
            lanes.gradients_of_tile(&pass, None, &factors, to, &tile);
            lanes.gradients_behind(&pass, tile_end, &label, &factors, to, group);
            // The gradient of the class's logit has been written as if it were any other logit's,
            // by the thread that has it: overwrite it after a barrier.
            sync_threads();
            if finishes && label.has_class(args.cols) {
                let at_class = E::Real::from_bits64(logit_of_row().get(0));
                to[0].store(label.class, E::narrow(at_class));
            }
        }
        if counts_in_shared {
            // SAFETY: the counter was written before the barrier in `block_merge_row`, and is
            // written again only after the next barrier.
            index = unsafe { rows_done().get(0) as u32 };
        }
        index += 1;
        let Some(next) = row_at(index) else { return };
        row = next;
        // The next row overwrites what is staged of this one.
        sync_threads();
        if counts_in_shared && first {
            // SAFETY: all threads have read the counter before the barrier above, and read it again
            // after the barrier in `block_merge_row`.
            unsafe { rows_done().set(0, index.into()) };
        }
    }
}
