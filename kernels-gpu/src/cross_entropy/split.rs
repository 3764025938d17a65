//! The loss and the gradients in one pass over rows that several blocks share, because a row has
//! more bytes than one block can stage, or because there are fewer rows than multiprocessors.
//!
//! A group of `splits` blocks takes row after row. Each block [stages](StagedRow) its part of a row
//! in shared memory, so that global memory is read once, and reduces it; the blocks exchange the
//! statistics of their parts, and each writes the gradients of its part. While a block waits for
//! the others of its group, other blocks of its multiprocessor load, compute or store.
//!
//! All blocks are resident at the same time (a cooperative launch), since each waits for all others
//! of its group.

use super::label::{normaliser, sum_normaliser};
use super::pass::{Pass, Total, writes};
use super::staged_row::StagedRow;
use super::stats::Stats;
use crate::abi::{CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{Exchange, Workspace, sum_words_in_last_block};
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

cuda_std::shared_array! {
    /// What all threads of a block need to know of a row: four numbers of its statistics, the scale
    /// of its gradients, the scale of its z-loss gradients, and the next row. The first warp writes
    /// them between the barriers of the row's statistics and the row's last barrier; the others
    /// read them after the latter.
    fn shared_row() -> [u64; 7];
}

/// The loss and the gradients.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]), and
///    [`forward_backward_staged`](super::forward_backward_staged)'s condition 4 of `part_vectors`
///    vectors.
/// 2. The launch is cooperative, and the grid consists of whole groups of `splits` blocks. Its
///    first `normaliser_blocks` blocks sum the normaliser. A block has two warps or more.
/// 3. `part_vectors` is as [`CrossEntropyArgs`] says. A block has dynamic shared memory for as many
///    vectors.
/// 4. The workspace has room for two sums of each ticket, followed by room for what the blocks
///    exchange: at most `abi::max_tickets` groups of `rows_of_block` rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_backward_split<E: Element, const MODE: u32, const FLIGHT: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: the kernels' conditions.
    let (workspace, normaliser) = unsafe {
        pass.begin_with_normaliser();
        (Workspace::new(args.workspace), normaliser(args))
    };
    let (index, part) = (block_idx_x() / args.splits, block_idx_x() % args.splits);
    let groups = grid_dim_x() / args.splits;
    let rows_of_ticket = args.rows_of_block;
    let tickets = (args.rows as u32).div_ceil(rows_of_ticket.get());
    // The exchanged words follow the two sums of each ticket.
    let exchange_of = |group| Exchange::new(workspace, 2 * tickets, group, args.splits.get());
    let exchange = exchange_of(index);
    let leads = part == 0 && thread_idx_x() == 0;
    let part_of = |row: u32| {
        let base = part * args.part_vectors;
        StagedRow::<E, MODE, FLIGHT>::part(&pass, row.into(), base, base + args.part_vectors)
    };
    let mut row = index * rows_of_ticket.get();
    if u64::from(row) < args.rows {
        // SAFETY: the caller's conditions; nothing is staged yet.
        unsafe { part_of(row).copy() };
    }
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
        sync_threads();
    }
    let mut terms = [0.0; 2];
    let mut round = 0;
    while u64::from(row) < args.rows {
        let staged = part_of(row);
        // SAFETY: the caller's conditions.
        unsafe {
            let is_last_of_ticket = (row + 1).is_multiple_of(rows_of_ticket.get());
            let mut next = row + 1;
            if leads && is_last_of_ticket {
                next = (groups + workspace.take_ticket()) * rows_of_ticket.get();
            }
            let class = pass.class(row.into());
            let label = pass.label(class);
            // Read the logit before gradients overwrite it: when a block publishes, it has read the
            // logit, and no block writes gradients before all have published.
            let logit = pass.logit(row.into(), class);
            let of_part = if label.counts {
                staged.statistics()
            } else {
                wait_for_copies::<0>();
                // Behind this barrier, all have read what the row before has shared.
                sync_threads();
                Stats::NONE
            };
            if warp_id() == 0 {
                let (mut scale, mut z_scale) = (E::Real::ZERO, E::Real::ZERO);
                if lane_id() == 0 {
                    exchange.publish(round, part, of_part.parts().map(E::Real::to_f64));
                    if leads {
                        exchange.publish_next(round, next);
                    }
                    // Load the scales while the other blocks' statistics are on their way.
                    scale = pass.scale(row.into(), normaliser, Total::Weights);
                    if args.z_loss != 0.0 {
                        z_scale = pass.scale(row.into(), normaliser, Total::Rows);
                    }
                }
                sync_warp();
                let parts = Stats::<E::Real>::wait_merged(exchange, round).parts();
                let next = exchange.wait_next(round);
                if lane_id() == 0 {
                    unrolled!(for k in 0..4; { shared_row().set(k as u32, parts[k].to_bits64()); });
                    shared_row().set(4, scale.to_bits64());
                    shared_row().set(5, z_scale.to_bits64());
                    shared_row().set(6, next.into());
                }
            }
            sync_threads();
            let shared = |k| E::Real::from_bits64(shared_row().get(k));
            let stats = Stats::of_parts([shared(0), shared(1), shared(2), shared(3)]).of_row();
            let factors = pass.factors(&label, stats, shared(4), || shared(5));
            let next = shared_row().get(6) as u32;
            if leads {
                let of_row = pass.finish_row::<{ writes::LOSS }>(
                    row.into(),
                    &label,
                    stats,
                    logit,
                    workspace,
                );
                terms = [terms[0] + of_row[0], terms[1] + of_row[2]];
                if is_last_of_ticket || u64::from(next) >= args.rows {
                    // Groups take tickets in no fixed order. Each ticket has words of its own, so
                    // that the sums have a fixed order.
                    let ticket = row / rows_of_ticket;
                    workspace.set_sum(ticket, terms[0]);
                    workspace.set_sum(tickets + ticket, terms[1]);
                    terms = [0.0; 2];
                }
            }
            if thread_idx_x() + WARP_SIZE == block_dim_x() {
                // The last warp clears the words: the first warp may still finish the row.
                exchange.clear_before(round, part);
            }
            // Exponentials in shared memory are relative to the largest logit of the part, not of
            // the row.
            let by_exp =
                if StagedRow::<E, MODE, FLIGHT>::KEEPS_EXPS && of_part.max != factors.center {
                    (of_part.max - factors.center).exp_below() * factors.factor
                } else {
                    factors.factor
                };
            let at_class = pass.at_class(&label, &factors, logit);
            let next_part = (u64::from(next) < args.rows).then(|| part_of(next));
            staged.store_gradients(
                row.into(),
                &label,
                &factors,
                by_exp,
                at_class,
                next_part.as_ref(),
            );
            row = next;
        }
        round += 1;
    }
    // SAFETY: conditions 2 and 4; only the last block to arrive accesses the exchanged words and
    // the counter of tickets.
    unsafe {
        let is_last = sum_words_in_last_block(workspace, tickets, |sums: [f64; 2]| {
            let normaliser_words = pass.load_normaliser(normaliser, true);
            let plain = pass.begin_finish(true);
            pass.finish_with_normaliser(plain, sums, normaliser_words, workspace);
            workspace.clear_tickets();
        });
        if is_last {
            exchange_of(0).clear_all(groups);
        }
    }
}
