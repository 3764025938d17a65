//! The gradients, from what a forward pass has saved.

use super::label::Label;
use super::lanes::{Lanes, alignment};
use super::mode;
use super::pass::{Factors, Pass, Total};
use super::row_group::RowGroup;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real, unrolled};
use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::warp::sync_warp;

/// The gradients of rows that lanes of a warp hold, a row group one each: there is no loop, so that more
/// blocks have room.
///
/// # Safety
/// The kernels' conditions ([`super`]), without the second. There are as many row groups, a row group is a
/// power of two of 2 to 32 threads, its row has no more than `VECTORS` vectors of 16 bytes a thread,
/// and alignment as `ALIGNMENT` says. `saved` and, where `divisor` is 0, `totals` are from a forward pass
/// with the same input, target and options.
#[inline(always)]
pub(crate) unsafe fn backward_short<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const ALIGNMENT: u32,
>(
    args: &CrossEntropyArgs,
) {
    if args.rows == 0 {
        return;
    }
    let pass = Pass::<E, MODE>::new(args);
    let group = RowGroup::of_threads(args);
    let row = group.in_grid();
    let at = row.min(args.rows - 1);
    // SAFETY: the caller's conditions; in place of a row that is none the last is read, for
    // nothing, and though its gradients may lie there by then.
    unsafe {
        let lanes = Lanes::<E, ALIGNMENT>::new(&pass, at);
        // All at once: each takes as long to arrive as the others. A row that does not count is
        // read for nothing.
        let mut tile = lanes.tile::<VECTORS>(group.lane, true, group);
        let saved = pass.saved_of(at);
        let class = pass.class(at);
        let scale = pass.scale_of_saved(at, Total::Weights);
        pass.prefetch(row, group);
        sync_warp();
        if row < args.rows {
            let label = pass.label(class);
            if !label.counts {
                tile.forget::<E>();
            }
            let factors = pass.factors_of_saved(&label, saved, |which| match which {
                Total::Weights => scale,
                Total::Rows => pass.scale_of_saved(row, which),
            });
            let to = lanes.to(&pass, row);
            let class = lanes.class_in_tile::<MODE, VECTORS>(&label, &tile);
            let class = class.map(|logit| (label.class, pass.at_class(&label, &factors, logit)));
            lanes.gradients_of_tile(&pass, class, &factors, to, &tile);
            let of_class = |logit| pass.store_at_class(&label, &factors, logit, to[0]);
            lanes.gradients_of_peeled(&pass, &label, &factors, to, of_class, group);
        }
    }
}

cuda_std::shared_array! {
    /// What the gradients of a block's row are made of.
    fn made_of() -> [u64; 8];
}

/// What the gradients of a block's row are made of: one thread computes it, while the others wait
/// for their logits anyway.
struct MadeOf<R> {
    factors: Factors<R>,
    counts: bool,
    class: u32,
    at_class: R,
}

impl<R: Real> MadeOf<R> {
    /// # Safety
    /// One thread of the block calls this.
    #[inline(always)]
    unsafe fn stage(self) {
        let Factors { center, factor, by_share, by_target, log_sum, .. } = self.factors;
        let class = u64::from(self.class) << 1 | u64::from(self.counts);
        let numbers = [center, factor, by_share, by_target, log_sum, self.at_class];
        // SAFETY: the caller's condition.
        unsafe {
            made_of().set(0, class);
            unrolled!(for k in 0..6; { made_of().set(k as u32 + 1, numbers[k].to_bits64()); });
        }
    }

    /// # Safety
    /// It was staged before a barrier.
    #[inline(always)]
    unsafe fn get() -> Self {
        // SAFETY: the caller's condition.
        let number = |k| R::from_bits64(unsafe { made_of().get(k) });
        // SAFETY: as above.
        let class = unsafe { made_of().get(0) };
        let counts = class & 1 == 1;
        let factors = Factors {
            counts,
            center: number(1),
            factor: number(2),
            by_share: number(3),
            by_target: number(4),
            log_sum: number(5),
            ..Factors::NONE
        };
        MadeOf { factors, counts, class: (class >> 1) as u32, at_class: number(6) }
    }
}

/// The gradients of rows that a block holds, or of parts of rows: one each.
///
/// # Safety
/// As [`backward_short`], but a row group is the block, and has one of `splits` parts of its row; where
/// rows lie as [`alignment::BLOCK_ROW`] says, of one, otherwise of so many that all vectors of 16 bytes and
/// those missing in the first line have room.
#[inline(always)]
pub(crate) unsafe fn backward_registers<
    E: Element,
    const MODE: u32,
    const VECTORS: usize,
    const ALIGNMENT: u32,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    let (block, splits) = (block_idx_x(), args.splits.get());
    let (row, part) = if ALIGNMENT == alignment::BLOCK_ROW {
        (block, 0)
    } else {
        (block / splits, block % splits)
    };
    let row = u64::from(row);
    if row >= args.rows {
        return;
    }
    let group = RowGroup::of_block();
    // SAFETY: the caller's conditions.
    unsafe {
        let lanes = Lanes::<E, ALIGNMENT>::new(&pass, row);
        // A row that does not count is read for nothing: its class takes as long to arrive.
        let mut tile = lanes.tile_of_part::<VECTORS>(part, group);
        let peeled = if part == 0 { lanes.peeled_of_thread(group) } else { None };
        pass.prefetch_part(row, part, VECTORS, group);
        // All of it asked for first.
        sync_warp();
        if group.lane == 0 {
            let saved = pass.saved_of(row);
            let class = pass.class(row);
            let scale = pass.scale_of_saved(row, Total::Weights);
            // In place, another block may have overwritten it: then it is of that one's part, and
            // nobody looks at this.
            let logit = pass.logit(row, class);
            let label = pass.label(class);
            let factors = pass.factors_of_saved(&label, saved, |which| match which {
                Total::Weights => scale,
                Total::Rows => pass.scale_of_saved(row, which),
            });
            let at_class = pass.at_class(&label, &factors, logit);
            MadeOf { factors, counts: label.counts, class: label.class, at_class }.stage();
        }
        sync_threads();
        let MadeOf { factors, counts, class, at_class } = MadeOf::get();
        if !counts {
            tile.forget::<E>();
        }
        let to = lanes.to(&pass, row);
        let of_class = if MODE == mode::PROBABILITIES { None } else { Some((class, at_class)) };
        lanes.gradients_of_tile(&pass, of_class, &factors, to, &tile);
        if let Some(peeled) = peeled {
            let label = Label { class, counts, ..Label::NONE };
            let of_class = |_| to[0].store(class, E::narrow(at_class));
            Lanes::<E, ALIGNMENT>::gradient_of_peeled(
                &pass, &label, &factors, to, peeled, of_class,
            );
        }
    }
}
