//! The loss and the gradients in one pass over rows that several blocks share, because a row has
//! more bytes than one block can hold, or because there are fewer rows than multiprocessors.
//!
//! A group of `splits` blocks takes row after row. Each block stages its part of a row in shared
//! memory, so that global memory is read once, and reduces it; the blocks exchange the statistics
//! of their parts, and each writes the gradients of its part. While a part is computed, the same
//! block's part of the next row is copied to a second stage.
//!
//! All blocks are resident at the same time (a cooperative launch), since each waits for all others
//! of its group.

use super::label::{normaliser, sum_normaliser};
use super::lanes::{Lanes, alignment};
use super::mode;
use super::pass::{BlockTerms, Pass, TERMS, Total, writes};
use super::row_group::RowGroup;
use super::stats::Stats;
use crate::abi::{CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real, unrolled};
use crate::grid::sum_in_last_block;
use crate::reduce::{Exchange, Workspace};
use cuda_std::hint::opaque;
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

cuda_std::shared_array! {
    /// What all threads of a block need to know of a row: its statistics, four numbers, the scale
    /// of its gradients, and that of its z-loss gradients. The first warp writes them between the
    /// row's two barriers; the others read them behind the second.
    fn shared_row() -> [u64; 6];
}

/// The loss and the gradients, for targets that are classes.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]); targets are classes.
/// 2. The launch is cooperative, and the grid is a number of groups of `splits` blocks, the first
///    `normaliser_blocks` of which sum the normaliser. A block has a power of two of warps, two or
///    more.
/// 3. `part_vectors` is as [`CrossEntropyArgs`] says. A block has dynamic shared memory for
///    `staged_vectors` vectors and, if a group takes more than one row, for twice as many.
/// 4. `16 * grid` is at most `abi::MAX_PARTIALS`.
#[inline(always)]
pub(crate) unsafe fn forward_backward_split<E: Element>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, { mode::CLASS }>::new(args);
    // SAFETY: the kernels' conditions.
    let (workspace, normaliser) = unsafe {
        pass.begin_with_normaliser();
        (Workspace::new(args.workspace), normaliser(args))
    };
    let group = RowGroup::of_block();
    let (index, part) = (block_idx_x() / args.splits, block_idx_x() % args.splits);
    let groups = grid_dim_x() / args.splits;
    // Behind the words of `sum_in_last_block`.
    let exchange_of =
        |group| Exchange::new(workspace, TERMS as u32 * grid_dim_x(), group, args.splits.get());
    let exchange = exchange_of(index);
    let leads = part == 0 && thread_idx_x() == 0;
    let lanes_of = |row| Lanes::<E, { alignment::LINE }>::new(&pass, row);
    // The row is computed again wherever it is needed: kept, it would take registers.
    let row_of = |round: u32| u64::from(index + round * groups);
    if row_of(0) < args.rows {
        // SAFETY: the caller's conditions; nothing is staged yet.
        unsafe { lanes_of(row_of(0)).part(args, part, 0).stage_part(group) };
    }
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
        sync_threads();
    }
    if leads {
        BlockTerms::set([0.0; TERMS]);
    }
    let mut round = 0;
    while row_of(round) < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let group = group.rematerialize();
            let (row, next) = (row_of(round), row_of(round + 1));
            let (stage, has_next) = (round & 1, next < args.rows);
            if has_next {
                // The stage is free: this thread alone has read it, for the row before.
                lanes_of(next).part(args, part, stage ^ 1).stage_part(group);
            }
            let lanes = lanes_of(row);
            let peeled = if part == 0 { lanes.peeled_of_thread(group) } else { None };
            let class = pass.class(row);
            // Issue every load before the first use.
            sync_warp();
            let label = pass.label(class);
            // Read the class's logit before gradients overwrite it.
            let logit = if leads { pass.logit(row, class) } else { E::Real::ZERO };
            Lanes::<E, { alignment::LINE }>::stage_peeled(peeled, group);
            if has_next {
                wait_for_copies::<1>();
            } else {
                wait_for_copies::<0>();
            }
            let lanes_of_part = lanes.part(args, part, stage);
            let warp_stats = lanes_of_part.stats_of_part(&pass, peeled, group);
            let stats = warp_stats.block_merge::<{ mode::CLASS }, false>(E::Real::ONE);
            if warp_id() == 0 {
                let (mut scale, mut z_scale) = (E::Real::ZERO, E::Real::ZERO);
                if lane_id() == 0 {
                    exchange.publish(round, part, stats.parts().map(E::Real::to_f64));
                    // Loaded while the other blocks' statistics are on their way.
                    scale = pass.scale(row, normaliser, Total::Weights);
                    if args.z_loss != 0.0 {
                        z_scale = pass.scale(row, normaliser, Total::Rows);
                    }
                }
                sync_warp();
                let parts = Stats::<E::Real>::wait_merged(exchange, round).parts();
                if lane_id() == 0 {
                    unrolled!(for k in 0..4; { shared_row().set(k as u32, parts[k].to_bits64()); });
                    shared_row().set(4, scale.to_bits64());
                    shared_row().set(5, z_scale.to_bits64());
                }
            }
            sync_threads();
            let shared = |k| E::Real::from_bits64(shared_row().get(k));
            let stats = Stats::of_parts([shared(0), shared(1), shared(2), shared(3)]).of_row();
            // Computed again: kept over the barriers, they would take registers.
            let (round_again, group) = (opaque(round.into()) as u32, group.rematerialize());
            let row = row_of(round_again);
            let lanes = lanes_of(row);
            let lanes_of_part = lanes.part(args, part, round_again & 1);
            if leads {
                let terms =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                BlockTerms::set(BlockTerms::and(terms));
            }
            if group.lane + WARP_SIZE == group.threads {
                // The last warp clears the words: the first warp may still finish the row.
                exchange.clear_before(round, part);
            }
            let factors = pass.factors(&label, stats, shared(4), || shared(5));
            let to = lanes.to(&pass, row);
            let at_class = |logit| E::narrow(pass.at_class(&label, &factors, logit));
            let own_logit = if label.has_class(args.cols) {
                lanes_of_part.class_in_part(label.class, group)
            } else {
                None
            };
            lanes_of_part.gradients_of_part(&pass, &label, &factors, to, group);
            // The thread that has written the gradient of the class's logit as of any other's
            // writes it again.
            if let Some(logit) = own_logit {
                to[0].store(label.class, at_class(logit));
            }
            if part == 0 && lanes.has_peeled(group) {
                let peeled = lanes.staged_peeled(group);
                let on_class = |logit| to[0].store(label.class, at_class(logit));
                Lanes::<E, { alignment::LINE }>::gradient_of_peeled(
                    &pass, &label, &factors, to, peeled, on_class,
                );
            }
            round += 1;
        }
    }
    // SAFETY: conditions 2 and 4; the last block to arrive is the only one that accesses the words
    // that were exchanged.
    unsafe {
        let terms = if leads { BlockTerms::and([0.0; TERMS]) } else { [0.0; TERMS] };
        let [loss, _, square, _] = terms;
        let is_last =
            sum_in_last_block(workspace, [loss, square, 0.0, 0.0], grid_dim_x(), |sums| {
                let normaliser_words = pass.load_normaliser(normaliser, true);
                let plain = pass.begin_finish(true);
                pass.finish_with_normaliser(plain, [sums[0], sums[1]], normaliser_words, workspace);
            });
        if is_last {
            exchange_of(0).clear_all(groups);
        }
    }
}
