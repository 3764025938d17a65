//! Ordering between blocks.

use crate::side;

/// Adds to a counter in global memory and returns its value before, as a release and acquire: what
/// this thread wrote before is seen by a thread that counts later, after its own call.
///
/// LLVM drops the ordering of an atomic read-modify-write for PTX, so fences stand on both sides.
///
/// # Safety
/// `counter` is aligned and points to an initialised `u32` that is only accessed atomically while
/// other threads may count.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn fetch_add_ordered(counter: *mut u32, value: u32) -> u32 {
    // SAFETY: the caller's conditions.
    unsafe { side::fetch_add_ordered(counter, value) }
}

/// Raises a number in global memory to `value` if it is lower. Not ordered with anything else.
///
/// # Safety
/// `at` is aligned and points to an initialised `u64` that is only accessed atomically while other threads may.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn fetch_max(at: *mut u64, value: u64) {
    // SAFETY: the caller's conditions.
    unsafe { side::fetch_max(at, value) }
}
