//! Ordering between blocks.

use crate::side;

/// Raises a number in global memory to `value` if it is lower. A thread that sees what this thread
/// writes afterwards also sees this.
///
/// # Safety
/// `at` is aligned and points to an initialised `u64` that is only accessed atomically while other
/// threads may.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn fetch_max(at: *mut u64, value: u64) {
    // SAFETY: the caller's conditions.
    unsafe { side::fetch_max(at, value) }
}

/// Adds `value` to a number in global memory, and returns what it was.
///
/// # Safety
/// As [`fetch_max`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn fetch_add(at: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's conditions.
    unsafe { side::fetch_add(at, value) }
}

/// If this thread has read what another thread wrote, it sees after this all that the other thread
/// had made visible to the device before it wrote that.
#[inline(always)]
pub fn fence() {
    side::fence();
}
