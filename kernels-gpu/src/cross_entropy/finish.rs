//! From what each block has of its rows to the results of all.

use super::label::{normaliser, store_normaliser};
use super::pass::{Pass, TERMS};
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{BlockRank, Workspace};
use cuda_std::hint::opaque;
use cuda_std::thread::thread_idx_x;

/// Whether anything comes of the sums over rows. Asked where it stands: moved to the beginning of a
/// kernel, what says so would be waited for before rows are asked for.
#[inline(always)]
pub(crate) fn has_sums(args: &CrossEntropyArgs) -> bool {
    opaque(args.reduction.into()) == reduction::SCALAR.into() || opaque(args.fault) != 0
}

/// Leaves the first `pairs` of what the rows of this block add to the sums, each in the loss's own
/// arithmetic.
///
/// # Safety
/// The kernels' condition 2; one thread of each block that takes rows calls this, once a launch.
#[inline(always)]
pub(crate) unsafe fn publish_terms<R: Real, const EARLY: u32>(
    rank: BlockRank<EARLY>,
    terms: [f64; TERMS],
    pairs: u32,
    workspace: Workspace,
) {
    let (piece, pieces) = (rank.worker(), rank.workers());
    let [a, b, c, d] = terms.map(R::from_f64);
    // SAFETY: the caller's conditions.
    unsafe {
        BlockRank::<EARLY>::publish(piece, 0, [a, b], pieces, workspace);
        if pairs > 1 {
            BlockRank::<EARLY>::publish(piece, 1, [c, d], pieces, workspace);
        }
    }
}

/// Sums over the grid what blocks have left of their pieces, and writes the results of all, where
/// anything comes of the sums. With `GRADS`, where the totals were known before, they are the sums
/// of losses and of squared log-sum-exps; gradients wait for the end in any case. A thread asks for
/// ASKS words at once.
///
/// # Safety
/// The kernels' conditions; all threads of the blocks that take no rows call it, once a launch.
#[inline(always)]
pub(crate) unsafe fn finish_grid<
    const GRADS: bool,
    const ASKS: usize,
    E: Element,
    const MODE: u32,
    const EARLY: u32,
>(
    pass: &Pass<'_, E, MODE>,
    rank: BlockRank<EARLY>,
    workspace: Workspace,
) {
    if !GRADS && !has_sums(pass.args) {
        return;
    }
    let pairs = if GRADS || pass.has_two_sums() { 1 } else { 2 };
    // SAFETY: the caller's conditions; one thread of the grid finishes.
    unsafe {
        let finishes = rank.is_last_adder();
        let asked = pass.load_normaliser(normaliser(pass.args), GRADS && finishes);
        let plain = pass.begin_finish(finishes && thread_idx_x() == 0);
        rank.sums::<E::Real, ASKS>(pairs, workspace, |sums| {
            if GRADS {
                pass.finish_with_normaliser(plain, [sums[0], sums[1]], asked, workspace);
            } else {
                finish(pass, plain, sums, workspace);
            }
        });
    }
}

/// [`Pass::finish`] where the totals are among the sums.
///
/// # Safety
/// As `Pass::finish`.
#[inline(always)]
pub(crate) unsafe fn finish<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    plain: bool,
    sums: [f64; TERMS],
    workspace: Workspace,
) {
    if !plain && pass.args.totals != 0 {
        // SAFETY: the caller's conditions.
        unsafe { store_normaliser(pass.args.totals, [sums[1], sums[3]]) };
    }
    // SAFETY: the caller's conditions.
    unsafe { pass.finish(plain, sums, workspace) };
}
