//! The epilogue of a grid: computes the results of the whole input from each block's terms.

use super::label::{normaliser, store_normaliser};
use super::pass::{Pass, TERMS};
use crate::abi::{CrossEntropyArgs, reduction};
use crate::element::{Element, Real};
use crate::reduce::{BlockRank, Workspace};
use cuda_std::hint::opaque;
use cuda_std::thread::thread_idx_x;

/// Whether the sums over rows are used. The arguments are opaque, so that the compiler loads them
/// here: if their loads were hoisted to the beginning of a kernel, it would wait for them before it
/// issues the loads of rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn has_sums(args: &CrossEntropyArgs) -> bool {
    opaque(args.reduction.into()) == reduction::SCALAR.into() || opaque(args.fault) != 0
}

/// Publishes the first `pairs` pairs of this worker's terms of the sums, rounded to the loss's own
/// arithmetic.
///
/// # Safety
/// 1. The kernels' condition 2.
/// 2. One thread of each worker calls this, once a launch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn publish_terms<R: Real, const EARLY: u32>(
    rank: BlockRank<EARLY>,
    terms: [f64; TERMS],
    pairs: u32,
    workspace: Workspace,
) {
    let (worker, workers) = (rank.worker(), rank.workers());
    let [a, b, c, d] = terms.map(R::from_f64);
    // SAFETY: the caller's conditions.
    unsafe {
        BlockRank::<EARLY>::publish(worker, 0, [a, b], workers, workspace);
        if pairs > 1 {
            BlockRank::<EARLY>::publish(worker, 1, [c, d], workers, workspace);
        }
    }
}

/// Sums the workers' terms over the grid and writes the results of the whole input, if the sums are
/// used. With `GRADS` the normaliser is already known, and there is one pair of sums: of the losses
/// and of the squared log-sum-exps. They are then computed even if nobody uses them: once they are
/// complete, no block waits for the normaliser any more, and the last adder can clear the
/// normaliser's words. A thread loads ASKS words at a time.
///
/// # Safety
/// 1. The kernels' conditions.
/// 2. All threads of all adders call this, once a launch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
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
    // SAFETY: the caller's conditions; one thread of the grid runs the epilogue.
    unsafe {
        let finishes = rank.is_last_adder();
        let normaliser_words = pass.load_normaliser(normaliser(pass.args), GRADS && finishes);
        let plain = pass.begin_finish(finishes && thread_idx_x() == 0);
        rank.sums::<E::Real, ASKS>(pairs, workspace, |sums| {
            if GRADS {
                pass.finish_with_normaliser(plain, [sums[0], sums[1]], normaliser_words, workspace);
            } else {
                finish(pass, plain, sums, workspace);
            }
        });
    }
}

/// [`Pass::finish`] where the normaliser is among the sums, at indices 1 and 3.
///
/// # Safety
/// As `Pass::finish`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
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
