//! The loss and the gradients in one pass over rows that several blocks share, because a row has
//! more bytes than one block can stage, or because there are fewer rows than multiprocessors.
//!
//! A group of `splits` blocks takes row after row. Each block [stages](StagedRow) its part of a row
//! in shared memory, so that global memory is read once, and reduces it; the blocks exchange the
//! statistics of their parts, and each writes the gradients of its part. While a block waits for
//! the others of its group, other blocks of its multiprocessor load, compute or store.
//!
//! Where the target's shares are [late](mode::has_late_shares), their sum over a row's part is
//! known only when its gradients are written. The blocks exchange it with the statistics of the
//! group's next row, so a row is finished one round later.
//!
//! All blocks are resident at the same time (a cooperative launch), since each waits for all others
//! of its group.

use super::label::{Label, normaliser};
use super::mode;
use super::pass::{Pass, Total, writes};
use super::staged_row::StagedRow;
use super::stats::Stats;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real, unrolled};
use crate::reduce::{Exchange, Workspace, sum_words_in_last_block, warp_sums};
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
        unsafe { StagedRow::<E, MODE, FLIGHT>::sum_ahead(args) };
        sync_threads();
    }
    let has_late_shares = Pass::<E, MODE>::HAS_LATE_SHARES;
    let mut terms = [0.0; 2];
    // Adds the terms of a row, in the first thread of the group.
    let mut finish = |Finished { row, label, stats, logit }: Finished<_>, ends: bool| {
        // SAFETY: the caller's conditions.
        let of_row = unsafe {
            pass.finish_row::<{ writes::LOSS }>(row.into(), &label, stats, logit, workspace)
        };
        terms = [terms[0] + of_row[0], terms[1] + of_row[2]];
        if ends || (row + 1).is_multiple_of(rows_of_ticket.get()) {
            // Groups take tickets in no fixed order. Each ticket has words of its own, so that the
            // sums have a fixed order.
            let ticket = row / rows_of_ticket;
            // SAFETY: condition 4.
            unsafe {
                workspace.set_sum(ticket, terms[0]);
                workspace.set_sum(tickets + ticket, terms[1]);
            }
            terms = [0.0; 2];
        }
    };
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
                let [mut scale, mut z_scale, mut sum_of_shares] = [E::Real::ZERO; 3];
                let of_part = if has_late_shares {
                    let dot = if round == 0 { E::Real::ZERO } else { dot_of_block() };
                    Stats { dot, ..of_part }
                } else {
                    of_part
                };
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
                    if has_late_shares {
                        sum_of_shares = pass.sum_of_shares(workspace);
                    }
                }
                sync_warp();
                let mut of_row = if has_late_shares {
                    Stats::<E::Real>::wait_merged::<{ mode::CLASS }>(exchange, round)
                } else {
                    Stats::<E::Real>::wait_merged::<{ mode::PROBABILITIES }>(exchange, round)
                };
                if has_late_shares {
                    if leads && round > 0 {
                        finish(Finished::load(of_row.dot), false);
                    }
                    of_row.weight = sum_of_shares;
                }
                let parts = of_row.parts();
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
                let finished = Finished { row, label, stats, logit };
                if has_late_shares {
                    finished.store();
                } else {
                    finish(finished, u64::from(next) >= args.rows);
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
            let dot = staged.store_gradients(
                row.into(),
                &label,
                &factors,
                by_exp,
                at_class,
                next_part.as_ref(),
            );
            if has_late_shares {
                let [of_warp] = warp_sums([dot], WARP_SIZE);
                if lane_id() == 0 {
                    dots_of_warps().set(warp_id(), of_warp.to_bits64());
                }
            }
            row = next;
        }
        round += 1;
    }
    if has_late_shares && round > 0 {
        sync_threads();
        if warp_id() == 0 {
            // SAFETY: the caller's conditions.
            unsafe {
                let of_part = Stats { dot: dot_of_block(), ..Stats::<E::Real>::NONE };
                if lane_id() == 0 {
                    exchange.publish(round, part, of_part.parts().map(E::Real::to_f64));
                }
                if part == 0 {
                    sync_warp();
                    let merged = Stats::<E::Real>::wait_merged::<{ mode::CLASS }>(exchange, round);
                    if leads {
                        finish(Finished::load(merged.dot), true);
                    }
                }
            }
        }
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

cuda_std::shared_array! {
    /// A row whose shares are late, as [`Finished::store`] stores it.
    fn unfinished_row() -> [u64; 8];
}

cuda_std::shared_array! {
    /// The sum of the late shares of each warp's vectors.
    fn dots_of_warps() -> [u64; 32];
}

/// The sum of the late shares of the block's part, in all lanes of the first warp.
///
/// # Safety
/// The warps have written theirs, and a barrier has passed since.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn dot_of_block<R: Real>() -> R {
    let has = lane_id() < block_dim_x() / WARP_SIZE;
    let mut of_lane = R::ZERO;
    if has {
        // SAFETY: the caller's condition.
        of_lane = R::from_bits64(unsafe { dots_of_warps().get(lane_id()) });
    }
    let [dot] = warp_sums([of_lane], WARP_SIZE);
    dot
}

/// A row whose statistics are complete.
struct Finished<R> {
    row: u32,
    label: Label<R>,
    stats: Stats<R>,
    logit: R,
}

impl<R: Real> Finished<R> {
    /// Stores the row in shared memory, until the sum of its shares is known.
    ///
    /// # Safety
    /// One thread of the block calls this, and [`load`](Self::load).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store(&self) {
        let Finished { row, label, stats, logit } = self;
        let flags = u64::from(label.counts) << 32 | u64::from(label.fault) << 33;
        let numbers = [label.weight, stats.max, stats.rest, stats.weight, *logit];
        // SAFETY: the caller's condition.
        unsafe {
            unfinished_row().set(5, u64::from(*row) | flags);
            unrolled!(for k in 0..5; { unfinished_row().set(k as u32, numbers[k].to_bits64()); });
        }
    }

    /// The stored row, with this sum of shares.
    ///
    /// # Safety
    /// The thread has [stored](Self::store) it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(dot: R) -> Self {
        // SAFETY: the caller's condition.
        let word = |k| unsafe { unfinished_row().get(k) };
        let number = |k| R::from_bits64(word(k));
        let flags = word(5) >> 32;
        let (counts, fault) = (flags & 1 != 0, flags & 2 != 0);
        let label = Label { weight: number(0), counts, fault, ..Label::NONE };
        let stats = Stats { max: number(1), ties: R::ONE, rest: number(2), dot, weight: number(3) };
        Finished { row: word(5) as u32, label, stats, logit: number(4) }
    }
}
