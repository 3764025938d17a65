//! The gradients, from what a forward pass has saved.

use super::lanes::{Lanes, lies};
use super::pass::{Pass, Saved};
use super::team::Team;
use crate::abi::CrossEntropyArgs;
use crate::element::Element;
use core::num::NonZeroU64;
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
            let factors = pass.factors_of_saved(row, &label, saved);
            lanes.gradients(&pass, tile, split, &label, &factors, lanes.to(&pass, row), team);
        }
    }
}
