//! What a row's class says, and what a mean is divided by.

use crate::abi::{CACHE_LINE, CrossEntropyArgs, NORMALISER_FLIGHT};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{Normaliser, Workspace};
use cuda_std::memory::{load, prefetch, store};
use cuda_std::thread::{block_dim_x, block_idx_x, thread_idx_x};

/// A row's target, but for probabilities.
pub(crate) struct Label<R> {
    /// The class; of rows without one, no index of a row.
    pub(crate) class: u32,
    /// The class's weight: 1 for probabilities, NaN for what is no class.
    pub(crate) weight: R,
    /// Whether the row counts: whether it is not to be ignored.
    pub(crate) counts: bool,
    /// Whether the target is no class.
    pub(crate) fault: bool,
}

impl<R: Real> Label<R> {
    /// Of no row, or one to be ignored.
    pub(crate) const NONE: Self =
        Label { class: u32::MAX, weight: R::ZERO, counts: false, fault: false };

    /// Whether it names a class, of `cols`.
    #[inline(always)]
    pub(crate) fn has_class(&self, cols: u32) -> bool {
        self.class < cols
    }
}

/// What a row's class says, with class weights at `weights` unless it is null. That it is to be
/// ignored comes before any look at what class it is.
///
/// # Safety
/// The kernels' condition 1; `weights` is the weights' address, or null.
#[inline(always)]
pub(crate) unsafe fn label<E: Element>(
    args: &CrossEntropyArgs,
    weights: u64,
    class: i64,
) -> Label<E::Real> {
    if class == args.ignore_index {
        return Label::NONE;
    }
    // A negative one is beyond every row.
    if class.cast_unsigned() >= u64::from(args.cols) {
        return Label { weight: E::Real::NAN, counts: true, fault: true, ..Label::NONE };
    }
    let class = class as u32;
    // SAFETY: the caller's conditions; the class is one.
    let weight = unsafe { class_weight::<E>(weights, class) };
    Label { class, weight, counts: true, fault: false }
}

/// The classes of N rows from `row`, one every `step`; of rows that are none, one to be ignored.
/// All are asked for before the first is waited for, those of 8 bytes by themselves: with them,
/// others would be converted.
///
/// # Safety
/// The kernels' condition 1; the targets are classes.
#[inline(always)]
pub(crate) unsafe fn load_classes<const N: usize>(
    args: &CrossEntropyArgs,
    row: u64,
    step: u64,
) -> [i64; N] {
    let at = |k: usize| args.target + (row + k as u64 * step) * u64::from(args.class_bytes);
    let has = |k: usize| row + k as u64 * step < args.rows;
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
/// The kernels' condition 1; the targets are classes, and `row` is one of `rows`.
#[inline(always)]
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

/// # Safety
/// `weights` is null or the address of weights in global memory, of which `class` is one.
#[inline(always)]
pub(crate) unsafe fn class_weight<E: Element>(weights: u64, class: u32) -> E::Real {
    if weights == 0 {
        return E::Real::ONE;
    }
    // SAFETY: the caller's condition.
    unsafe { load((weights as *const E).wrapping_add(class as usize)).widen() }
}

/// What a mean is divided by, the sum of the class weights of the rows that count, and their
/// number: without weights both are a count.
///
/// # Safety
/// The kernels' condition 2.
#[inline(always)]
pub(crate) unsafe fn normaliser(args: &CrossEntropyArgs) -> Normaliser {
    // SAFETY: the caller's condition.
    let workspace = unsafe { Workspace::new(args.workspace) };
    if args.weight == 0 && args.rows <= u64::from(u32::MAX) {
        Normaliser::counts(workspace, args.rows)
    } else {
        Normaliser::sums(workspace)
    }
}

/// The first target that a block looks at when it adds up totals.
#[inline(always)]
fn first_target(flight: usize) -> u64 {
    u64::from(block_idx_x() * (block_dim_x() * flight as u32))
}

/// Asks for the targets that this block looks at first, if it adds up totals.
///
/// # Safety
/// The kernels' condition 1.
#[inline(always)]
pub(crate) unsafe fn ask_for_targets(args: &CrossEntropyArgs) {
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
        // SAFETY: condition 1; the bytes are the targets'.
        unsafe { prefetch((start + u64::from(at)) as *const u8) };
        at += threads * CACHE_LINE;
    }
}

/// Adds up the totals, of `FLIGHT` targets of each thread at once.
///
/// # Safety
/// The kernels' conditions 1 and 2. All threads of the first `normaliser_blocks` of the grid call this,
/// before anything else that sums.
#[inline(always)]
pub(crate) unsafe fn sum_normaliser<E: Element, const FLIGHT: usize>(args: &CrossEntropyArgs) {
    // SAFETY: condition 2.
    let totals = unsafe { normaliser(args) };
    let (blocks, threads) = (args.normaliser_blocks, u64::from(block_dim_x()));
    let has_weights = args.weight != 0;
    let (mut weights, mut count, mut looked_at) = (0.0, 0, 0);
    let mut row = first_target(FLIGHT) + u64::from(thread_idx_x());
    while row < args.rows {
        // SAFETY: condition 1.
        let classes: [i64; FLIGHT] = unsafe { load_classes(args, row, threads) };
        unrolled!(for k in 0..FLIGHT; {
            let class = classes[k];
            let is_class = class.cast_unsigned() < u64::from(args.cols);
            let counts = is_class && class != args.ignore_index;
            if counts && has_weights {
                // SAFETY: condition 1; the class is one.
                weights += unsafe { class_weight::<E>(args.weight, class as u32) }.to_f64();
            }
            count += u32::from(counts);
            looked_at += u32::from(row + (k as u64 * threads) < args.rows);
        });
        row += u64::from(blocks) * threads * FLIGHT as u64;
    }
    // SAFETY: condition 2; by the launch, the blocks are no more than may be; all rows have been
    // looked at once.
    unsafe {
        if totals.are_counts() {
            totals.add_counts(looked_at, count);
        } else {
            let count = f64::from(count);
            totals.sum_over_blocks([if has_weights { weights } else { count }, count], blocks);
        }
    }
}

/// # Safety
/// `at` is the address of two `f64` in global memory that are this thread's to write.
#[inline(always)]
pub(crate) unsafe fn store_normaliser(at: u64, [weights, count]: [f64; 2]) {
    let at = at as *mut f64;
    // SAFETY: the caller's condition.
    unsafe {
        store(at, weights);
        store(at.wrapping_add(1), count);
    }
}
