//! The mutants.

mod cross_entropy;
mod float64;
mod packed;
mod pairwise;
mod shares;
mod split;
mod sums;
mod sync;
mod uncounted_rows;
mod warp_rows;

use super::plant::Mutant;

/// All mutants, those of synchronisation first.
pub(super) fn all() -> Vec<&'static Mutant> {
    let tables = [
        sync::MUTANTS,
        split::MUTANTS,
        sums::MUTANTS,
        pairwise::MUTANTS,
        cross_entropy::MUTANTS,
        float64::MUTANTS,
        packed::MUTANTS,
        shares::MUTANTS,
        uncounted_rows::MUTANTS,
        warp_rows::MUTANTS,
    ];
    tables.into_iter().flatten().collect()
}
