//! The gradients, from the row statistics and the normaliser that a forward pass has saved.

use super::label::Label;
use super::lanes::{Lanes, alignment};
use super::mode;
use super::pass::{Factors, Pass, Total};
use super::row_group::RowGroup;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real, unrolled};
use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::warp::sync_warp;

/// The gradients of short rows: a warp, or a part of one, has each row in registers. There is no
/// loop over rows, so that more blocks fit on a multiprocessor.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]), without the second.
/// 2. The grid has at least one row group for each row. A row group has a power of two of 2 to 32
///    threads, and a row at most `VECTORS` vectors for each of them.
/// 3. Rows are as [`alignment::WARP_ROW`] says.
/// 4. `saved` and, where `divisor` is 0, `totals` are from a forward pass with the same input,
///    target and options.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn backward_short<E: Element, const MODE: u32, const VECTORS: usize>(
    args: &CrossEntropyArgs,
) {
    if args.rows == 0 {
        return;
    }
    let pass = Pass::<E, MODE>::new(args);
    let group = RowGroup::of_threads(args);
    let row = group.in_grid();
    let at = row.min(args.rows - 1);
    // SAFETY: the caller's conditions. In place of a row beyond the last, the last row is read, and
    // the result is not used; its gradients may be written in place by then.
    unsafe {
        let lanes = Lanes::<E, { alignment::WARP_ROW }>::new(&pass, at);
        // Issue all loads at once: each takes as long to arrive as the others. The load of the row
        // is wasted if the row is ignored.
        let mut tile = lanes.tile::<VECTORS>(group.lane, group);
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
        }
    }
}

cuda_std::shared_array! {
    /// The words of a [`GradientInputs`].
    fn made_of() -> [u64; 8];
}

/// What all threads of a block need to compute the gradients of its row. One thread computes it,
/// while the others wait for their logits anyway.
struct GradientInputs<R> {
    factors: Factors<R>,
    counts: bool,
    class: u32,
    at_class: R,
}

impl<R: Real> GradientInputs<R> {
    /// Stages this in shared memory.
    ///
    /// # Safety
    /// Only one thread of the block calls this.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
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

    /// What one thread has [staged](Self::stage).
    ///
    /// # Safety
    /// A barrier is between the staging and this.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
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
        GradientInputs { factors, counts, class: (class >> 1) as u32, at_class: number(6) }
    }
}

/// The gradients of rows, where a block has a row, or a part of one, in registers.
///
/// # Safety
/// As [`backward_short`], except that a row group is the whole block, that rows are aligned as
/// `ALIGNMENT` says, and that a block has one of `splits` parts of a row:
/// 1. If rows are as [`alignment::BLOCK_ROW`] says, a block has a whole row, and `splits` is not
///    used.
/// 2. Otherwise `splits` parts have room for all vectors of a row, and for as many more as the
///    row's first cache line lacks.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
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
        // Load the row before its class is known, which takes as long to arrive. The load is wasted
        // if the row is ignored.
        let mut tile = lanes.tile_of_part::<VECTORS>(part, group);
        let peeled = if part == 0 { lanes.peeled_of_thread(group) } else { None };
        pass.prefetch_part(row, part, VECTORS, group);
        // Issue every load before the first use.
        sync_warp();
        if group.lane == 0 {
            let saved = pass.saved_of(row);
            let class = pass.class(row);
            let scale = pass.scale_of_saved(row, Total::Weights);
            // If gradients are written in place, another block may have overwritten this logit. The
            // logit is then in that block's part of the row, and this block does not use it.
            let logit = pass.logit(row, class);
            let label = pass.label(class);
            let factors = pass.factors_of_saved(&label, saved, |which| match which {
                Total::Weights => scale,
                Total::Rows => pass.scale_of_saved(row, which),
            });
            let at_class = pass.at_class(&label, &factors, logit);
            GradientInputs { factors, counts: label.counts, class: label.class, at_class }.stage();
        }
        sync_threads();
        let GradientInputs { factors, counts, class, at_class } = GradientInputs::get();
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
