//! A row's target class, and the normaliser of a mean over classes.

use crate::abi::{CACHE_LINE, CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{ClassWeights, Normaliser, Workspace};
use cuda_std::hint::opaque;
use cuda_std::memory::{load, prefetch, store};
use cuda_std::thread::{block_dim_x, block_idx_x, thread_idx_x};

/// A row's target class. Where the target is probabilities, a row has a label without a class.
#[derive(Clone, Copy)]
pub(crate) struct Label<R> {
    /// The class; `u32::MAX`, which is no column, for a row without a class.
    pub(crate) class: u32,
    /// The class's weight: 1 for probabilities, NaN for an invalid target.
    pub(crate) weight: R,
    /// Whether the row counts, that is, is not ignored.
    pub(crate) counts: bool,
    /// Whether the target is invalid: neither a class nor `ignore_index`.
    pub(crate) fault: bool,
}

impl<R: Real> Label<R> {
    /// The label of an ignored row, or of no row.
    pub(crate) const NONE: Self =
        Label { class: u32::MAX, weight: R::ZERO, counts: false, fault: false };

    /// Whether the label has a class, of `cols` classes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_class(&self, cols: u32) -> bool {
        self.class < cols
    }
}

/// The label of a row with this class, with class weights at `weights` unless it is null. A row
/// whose class is `ignore_index` is ignored, whether or not that is a valid class.
///
/// # Safety
/// 1. The kernels' condition 1.
/// 2. `weights` is the address of the class weights, or null.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn label<E: Element>(
    args: &CrossEntropyArgs,
    weights: u64,
    class: i64,
) -> Label<E::Real> {
    if class == args.ignore_index {
        return Label::NONE;
    }
    // A negative class becomes a large unsigned number, which is invalid too.
    if class.cast_unsigned() >= u64::from(args.cols) {
        return Label { weight: E::Real::NAN, counts: true, fault: true, ..Label::NONE };
    }
    let class = class as u32;
    // SAFETY: the caller's conditions; the class is valid.
    let weight = unsafe { class_weight::<E>(weights, class) };
    Label { class, weight, counts: true, fault: false }
}

/// The classes of N rows: `row`, and every `step`-th row after it. With `BOUNDED`, some may be
/// beyond the last row, and get `ignore_index`.
///
/// All loads are issued before the first result is used. Classes of 8 bytes have a separate loop:
/// in a common loop, smaller classes would be converted between the loads.
///
/// # Safety
/// The kernels' condition 1; the targets are classes. Unless it is `BOUNDED`, there are all N rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn load_classes<const N: usize, const BOUNDED: bool>(
    args: &CrossEntropyArgs,
    row: u64,
    step: u64,
) -> [i64; N] {
    let bytes = u64::from(args.class_bytes);
    let (first, step_bytes) = (args.target + row * bytes, step * bytes);
    let at = |k: usize| first + k as u64 * step_bytes;
    let has = |k: usize| !BOUNDED || row + (k as u64 * step) < args.rows;
    let mut classes = [args.ignore_index; N];
    if args.class_bytes == 8 {
        unrolled!(for k in 0..N; {
            if has(k) {
                // SAFETY: the caller's condition.
                classes[k] = unsafe { load(at(k) as *const i64) };
            }
        });
    } else {
        unrolled!(for k in 0..N; {
            if has(k) {
                // SAFETY: as above.
                classes[k] = unsafe {
                    if args.class_bytes == 4 {
                        i64::from(load(at(k) as *const i32))
                    } else {
                        i64::from(load(at(k) as *const u8))
                    }
                };
            }
        });
    }
    classes
}

/// The class of a row.
///
/// # Safety
/// The kernels' condition 1; the targets are classes, and `row` is below `rows`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn load_class(args: &CrossEntropyArgs, row: u64) -> i64 {
    // SAFETY: the caller's conditions.
    unsafe {
        match args.class_bytes {
            8 => load((args.target as *const i64).wrapping_add(row as usize)),
            4 => i64::from(load((args.target as *const i32).wrapping_add(row as usize))),
            _ => i64::from(load((args.target as *const u8).wrapping_add(row as usize))),
        }
    }
}

/// The weight of a class: 1 if there are no weights.
///
/// # Safety
/// `weights` is null, or the address of class weights in global memory, and `class` is an index of
/// one of them.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn class_weight<E: Element>(weights: u64, class: u32) -> E::Real {
    if weights == 0 {
        return E::Real::ONE;
    }
    // SAFETY: the caller's condition.
    unsafe { load((weights as *const E).wrapping_add(class as usize)).widen() }
}

/// What a mean is divided by: the sum of the class weights of the rows that count, and the number
/// of these rows. Without weights, both are that number.
///
/// # Safety
/// The kernels' condition 2.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn normaliser(args: &CrossEntropyArgs) -> Normaliser {
    // SAFETY: the caller's condition.
    let workspace = unsafe { Workspace::new(args.workspace) };
    if args.weight == 0 && args.rows <= u64::from(u32::MAX) {
        Normaliser::counts(workspace, args.rows)
    } else {
        Normaliser::sums(workspace)
    }
}

/// The first target that this block reads when it sums the normaliser, with `flight` targets in
/// flight in each thread.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn first_target(flight: usize) -> u64 {
    u64::from(block_idx_x() * (block_dim_x() * flight as u32))
}

/// Prefetches the targets that this block reads first, if it is one of those that sum the
/// normaliser.
///
/// # Safety
/// The kernels' condition 1.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn prefetch_targets(args: &CrossEntropyArgs) {
    if block_idx_x() >= args.normaliser_blocks {
        return;
    }
    let (first, threads) = (first_target(NORMALISER_FLIGHT), block_dim_x());
    let targets =
        args.rows.saturating_sub(first).min(u64::from(threads) * NORMALISER_FLIGHT as u64);
    let bytes = targets as u32 * args.class_bytes;
    let start = args.target + first * u64::from(args.class_bytes);
    let mut at = thread_idx_x() * CACHE_LINE;
    while at < bytes {
        // SAFETY: condition 1; these are bytes of the targets.
        unsafe { prefetch((start + u64::from(at)) as *const u8) };
        at += threads * CACHE_LINE;
    }
}

/// Whether a row of this class is one of those that the mean is taken over.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn counts_in_mean(args: &CrossEntropyArgs, class: i64) -> bool {
    class.cast_unsigned() < u64::from(args.cols) && class != args.ignore_index
}

/// Sums this block's part of the normaliser. Each thread has `FLIGHT` targets in flight.
///
/// # Safety
/// 1. The kernels' conditions 1 and 2.
/// 2. All threads of the first `normaliser_blocks` blocks of the grid call this, once, before they
///    sum anything else over the block.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn sum_normaliser<E: Element, const FLIGHT: usize>(args: &CrossEntropyArgs) {
    // SAFETY: the kernels' condition 2.
    let normaliser = unsafe { normaliser(args) };
    let (blocks, threads) = (args.normaliser_blocks, u64::from(block_dim_x()));
    let has_weights = args.weight != 0;
    let (mut weights, mut count, mut looked_at) = (0.0, 0, 0);
    let mut row = first_target(FLIGHT) + u64::from(thread_idx_x());
    while row < args.rows {
        // SAFETY: the kernels' condition 1.
        let classes: [i64; FLIGHT] = unsafe {
            if row + (FLIGHT as u64 - 1) * threads < args.rows {
                looked_at += FLIGHT as u32;
                load_classes::<FLIGHT, false>(args, row, threads)
            } else {
                looked_at += ((args.rows - row) as u32).div_ceil(block_dim_x());
                load_classes::<FLIGHT, true>(args, row, threads)
            }
        };
        unrolled!(for k in 0..FLIGHT; {
            let class = classes[k];
            let counts = counts_in_mean(args, class);
            if counts && has_weights {
                // SAFETY: the kernels' condition 1; the class is valid.
                weights += unsafe { class_weight::<E>(args.weight, class as u32) }.to_f64();
            }
            count += u32::from(counts);
        });
        // Opaque: LLVM would turn each address into an induction variable.
        row = opaque(row + u64::from(blocks) * threads * FLIGHT as u64);
    }
    // SAFETY: condition 2; `normaliser_blocks` is at most `abi::MAX_NORMALISER_BLOCKS`, and the
    // blocks read the target of each row once.
    unsafe {
        if normaliser.are_counts() {
            normaliser.add_counts(looked_at, count);
        } else {
            let count = f64::from(count);
            normaliser.sum_over_blocks([if has_weights { weights } else { count }, count], blocks);
        }
    }
}

/// Sums this block's part of all class weights.
///
/// # Safety
/// As [`sum_normaliser`]; the call has class weights.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn sum_class_weights<E: Element>(args: &CrossEntropyArgs) {
    const FLIGHT: usize = 4;
    let (blocks, threads) = (args.normaliser_blocks, block_dim_x());
    let mut sum = 0.0;
    let mut class = first_target(FLIGHT) as u32 + thread_idx_x();
    while class < args.cols {
        let mut weights = [E::Real::ZERO; FLIGHT];
        unrolled!(for k in 0..FLIGHT; {
            let ahead = class + k as u32 * threads;
            if ahead < args.cols {
                // SAFETY: the kernels' condition 1; the class is valid.
                weights[k] = unsafe { class_weight::<E>(args.weight, ahead) };
            }
        });
        unrolled!(for k in 0..FLIGHT; { sum += weights[k].to_f64(); });
        class += blocks * threads * FLIGHT as u32;
    }
    // SAFETY: the caller's conditions.
    unsafe { ClassWeights::new(Workspace::new(args.workspace)).sum_over_blocks(sum, blocks) };
}

/// Stores the normaliser: the sum of the class weights, and the number of rows.
///
/// # Safety
/// `at` is the address of two `f64` in global memory, which only this thread writes.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn store_normaliser(at: u64, [weights, count]: [f64; 2]) {
    let at = at as *mut f64;
    // SAFETY: the caller's condition.
    unsafe {
        store(at, weights);
        store(at.wrapping_add(1), count);
    }
}
