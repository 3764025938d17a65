//! The gradients, from what a forward pass has saved.

use super::lanes::{Lanes, lies};
use super::mode;
use super::pass::{Factors, Pass, Saved, Total};
use super::team::Team;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real, unrolled};
use core::num::NonZeroU64;
use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, sync_warp};

/// The gradients, of rows or parts of them: one a team.
///
/// # Safety
/// The kernels' conditions ([`super`]), without the second; there are as many teams, and a team is a power of two of 2 to
/// 32 threads, or the block. `saved` and, where `divisor` is 0, `totals` are from a forward pass with the same input, target
/// and options.
#[inline(always)]
pub(crate) unsafe fn backward<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::new(args);
    let splits = NonZeroU64::from(args.splits);
    let team = if args.team.get() > WARP_SIZE { Team::of_block() } else { Team::of_threads(args) };
    let piece = team.in_grid();
    let active = piece < args.rows * splits.get();
    let (row, split) =
        if splits.get() == 1 { (piece, 0) } else { (piece / splits, (piece % splits) as u32) };
    // SAFETY: the caller's conditions; a row that is none is not touched.
    unsafe {
        let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row);
        // All at once: each takes as long to arrive as the others. A row that does not count is read for nothing.
        let class = if active { pass.class(row) } else { args.ignore_index };
        let saved = if active { pass.saved_of(row) } else { Saved::NONE };
        let mut tile = lanes.tile_of_part(split, active, team);
        pass.prefetch(row, team);
        sync_warp();
        if active {
            let label = pass.label(class);
            if !label.counts {
                tile.forget::<E>();
            }
            let factors =
                pass.factors_of_saved(&label, saved, |which| pass.scale_of_saved(row, which));
            lanes.gradients(&pass, tile, split, &label, &factors, lanes.to(&pass, row), team);
        }
    }
}

/// The gradients of rows that lanes of a warp hold, a team one each: there is no loop and no edge, so that more blocks have room.
///
/// # Safety
/// As [`backward`]; a team is a power of two of 2 to 32 threads, and its row lies as [`lies::SHORT`] says, `HELD` groups of 16 bytes
/// a thread.
#[inline(always)]
pub(crate) unsafe fn backward_short<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    if args.rows == 0 {
        return;
    }
    let pass = Pass::<E, MODE>::new(args);
    let team = Team::of_threads(args);
    let row = team.in_grid();
    let at = row.min(args.rows - 1);
    // SAFETY: the caller's conditions; in place of a row that is none the last is read, for nothing, and though its gradients may
    // lie there by then.
    unsafe {
        let lanes = Lanes::<E, { lies::SHORT }>::new(&pass, at);
        // All at once: each takes as long to arrive as the others. A row that does not count is read for nothing.
        let mut tile = lanes.tile::<HELD>(team.lane, true, team);
        let saved = pass.saved_of(at);
        let class = pass.class(at);
        let scale = pass.scale_of_saved(at, Total::Weights);
        pass.prefetch(row, team);
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
            let class = lanes.class_in_tile::<MODE, HELD>(&label, &tile);
            let class = class.map(|logit| (label.class, pass.at_class(&label, &factors, logit)));
            lanes.gradients_of_tile(&pass, class, &factors, lanes.to(&pass, row), &tile);
        }
    }
}

cuda_std::shared_array! {
    /// What the gradients of a block's row are made of.
    fn made_of() -> [u64; 8];
}

/// What the gradients of a block's row are made of: one thread computes it, while the others wait for their logits anyway.
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
    unsafe fn keep(self) {
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
    /// It was kept before a barrier.
    #[inline(always)]
    unsafe fn get() -> Self {
        // SAFETY: the caller's condition.
        let number = |k| R::from_bits64(unsafe { made_of().get(k) });
        // SAFETY: as above.
        let class = unsafe { made_of().get(0) };
        let factors = Factors {
            center: number(1),
            factor: number(2),
            by_share: number(3),
            by_target: number(4),
            log_sum: number(5),
            ..Factors::NONE
        };
        MadeOf { factors, counts: class & 1 == 1, class: (class >> 1) as u32, at_class: number(6) }
    }
}

/// The gradients of rows that a block holds, one each.
///
/// # Safety
/// As [`backward`]; a team is the block, and its row lies as [`lies::HELD`] says, `HELD` groups of 16 bytes a thread.
#[inline(always)]
pub(crate) unsafe fn backward_held<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    let row = u64::from(block_idx_x());
    if row >= args.rows {
        return;
    }
    let team = Team::of_block();
    // SAFETY: the caller's conditions.
    unsafe {
        let lanes = Lanes::<E, { lies::HELD }>::new(&pass, row);
        // A row that does not count is read for nothing: its class takes as long to arrive.
        let mut tile = lanes.tile::<HELD>(team.lane, true, team);
        pass.prefetch(row, team);
        // All of it asked for first.
        sync_warp();
        if team.lane == 0 {
            let saved = pass.saved_of(row);
            let class = pass.class(row);
            let scale = pass.scale_of_saved(row, Total::Weights);
            let logit = pass.logit(row, class);
            let label = pass.label(class);
            let factors = pass.factors_of_saved(&label, saved, |which| match which {
                Total::Weights => scale,
                Total::Rows => pass.scale_of_saved(row, which),
            });
            let at_class = pass.at_class(&label, &factors, logit);
            MadeOf { factors, counts: label.counts, class: label.class, at_class }.keep();
        }
        sync_threads();
        let MadeOf { factors, counts, class, at_class } = MadeOf::get();
        if !counts {
            tile.forget::<E>();
        }
        let class = if MODE == mode::PROBABILITIES { None } else { Some((class, at_class)) };
        lanes.gradients_of_tile(&pass, class, &factors, lanes.to(&pass, row), &tile);
    }
}
