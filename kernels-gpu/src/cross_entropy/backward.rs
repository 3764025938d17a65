//! The gradients, from what a forward pass has saved.

use super::lanes::{FLIGHT, Lanes, lies};
use super::pass::Pass;
use super::team::Team;
use crate::abi::CrossEntropyArgs;
use crate::element::Element;
use core::num::NonZeroU64;
use cuda_std::warp::WARP_SIZE;

/// The gradients, of rows or parts of them.
///
/// # Safety
/// The kernels' conditions ([`super`]), without the second; a team is a power of two of 2 to 32 threads, or the block.
/// `saved` and, where `divisor` is 0, `totals` are from a forward pass with the same input, target and options.
#[inline(always)]
pub(crate) unsafe fn backward<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::new(args);
    let splits = NonZeroU64::from(args.splits);
    let team =
        if args.team.get() > WARP_SIZE { Team::of_block(args) } else { Team::of_threads(args) };
    let pieces = args.rows * splits.get();
    let mut piece = team.piece(team.first);
    while piece < pieces {
        let (row, split) =
            if splits.get() == 1 { (piece, 0) } else { (piece / splits, (piece % splits) as u32) };
        // SAFETY: the caller's conditions; the row is one of `rows`.
        unsafe {
            let label = pass.label(pass.class(row));
            let factors = pass.factors_of_saved(row, &label);
            let lanes = Lanes::<E, { lies::ANYHOW }>::new(&pass, row);
            lanes.gradients::<MODE, FLIGHT>(
                &pass,
                0,
                split,
                &label,
                &factors,
                lanes.to(&pass, row),
                |_| (),
                team,
            );
        }
        piece += u64::from(team.teams);
    }
}
