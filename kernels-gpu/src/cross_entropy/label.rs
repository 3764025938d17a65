//! What a row's class says, and what a mean is divided by.

use crate::abi::{Target, TotalsArgs};
use crate::element::{Element, Real};
use crate::reduce::{Workspace, grid_sums};
use cuda_std::memory::{load, store};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};

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
}

/// What a row's class says. That it is to be ignored comes before any look at what class it is.
///
/// # Safety
/// `weight` is null or the address of weights of the classes, `cols` of them, in global memory.
#[inline(always)]
pub(crate) unsafe fn label<E: Element>(
    target: &Target,
    cols: u32,
    weight: u64,
    class: i64,
) -> Label<E::Real> {
    if class == target.ignore_index {
        return Label::NONE;
    }
    // A negative one is beyond every row.
    if class.cast_unsigned() >= u64::from(cols) {
        return Label { weight: E::Real::NAN, counts: true, fault: true, ..Label::NONE };
    }
    let class = class as u32;
    // SAFETY: the caller's condition; the class is one.
    let weight = unsafe { class_weight::<E>(weight, class) };
    Label { class, weight, counts: true, fault: false }
}

/// The class of a row.
///
/// # Safety
/// The targets are classes, in global memory; `row` is one of theirs.
#[inline(always)]
pub(crate) unsafe fn load_class(target: &Target, row: u64) -> i64 {
    let at = target.start + row * u64::from(target.class_bytes);
    // SAFETY: the caller's condition.
    unsafe {
        match target.class_bytes {
            1 => i64::from(load(at as *const u8)),
            4 => i64::from(load(at as *const i32)),
            _ => load(at as *const i64),
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

/// What a mean is divided by: the sum of the class weights of the rows that count, and their number.
///
/// # Safety
/// 1. `args` is as [`TotalsArgs`] says, in global memory.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions; the grid has at most `abi::max_blocks(2)` blocks.
#[inline(always)]
pub(crate) unsafe fn totals<E: Element>(args: &TotalsArgs) {
    let (mut weights, mut count) = (0.0, 0.0);
    let mut row = u64::from(block_idx_x()) * u64::from(block_dim_x()) + u64::from(thread_idx_x());
    while row < args.rows {
        // SAFETY: condition 1.
        let label = unsafe {
            label::<E>(&args.target, args.cols, args.weight, load_class(&args.target, row))
        };
        if label.counts && !label.fault {
            weights += label.weight.to_f64();
            count += 1.0;
        }
        row += u64::from(block_dim_x()) * u64::from(grid_dim_x());
    }
    // SAFETY: conditions 1 and 2.
    unsafe {
        grid_sums([weights, count], Workspace::new(args.workspace), |sums| {
            store_totals(args.totals, sums);
        });
    }
}

/// # Safety
/// `at` is the address of two `f64` in global memory that are this thread's to write.
#[inline(always)]
pub(crate) unsafe fn store_totals(at: u64, [weights, count]: [f64; 2]) {
    let at = at as *mut f64;
    // SAFETY: the caller's condition.
    unsafe {
        store(at, weights);
        store(at.wrapping_add(1), count);
    }
}
