//! Global memory, by explicit instructions: the source shows the width and the caching of each
//! access, and the emulator sees every access.

use crate::side;

/// 16 bytes of memory: the widest access a thread makes in one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(16))]
pub struct Vec16(pub [u32; 4]);

/// A type that one instruction loads or stores.
///
/// # Safety
/// The type has 1, 2, 4 or 8 bytes, no padding, and is valid for every bit pattern.
pub unsafe trait Word: Copy + 'static {}

macro_rules! words {
    ($($word:ty)*) => {
        // SAFETY: primitive numbers of at most 8 bytes.
        $(unsafe impl Word for $word {})*
    };
}
words!(u8 u16 u32 u64 i32 i64 f32 f64);

/// Loads a word.
///
/// # Safety
/// 1. `at` is aligned for `T` and points to an initialised `T` in global memory.
/// 2. No thread of the grid writes it, except before a barrier or fence that orders the two.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn load<T: Word>(at: *const T) -> T {
    // SAFETY: the caller's conditions.
    unsafe { side::load(at) }
}

/// Loads a word that another block of the launch may write at the same time: returns its value from
/// before or after that. Only a [`fence`](crate::atomic::fence) orders it with other accesses: if
/// each load were ordered, loads would wait for each other.
///
/// # Safety
/// 1. `at` is aligned and points to an initialised `u64` in global memory.
/// 2. Other threads write it only by [`store_shared_by_grid`] or atomically.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn load_shared_by_grid(at: *const u64) -> u64 {
    // SAFETY: the caller's conditions.
    unsafe { side::load_relaxed(at) }
}

/// Stores a word that other blocks of the launch may read at the same time. It is not ordered with
/// other accesses.
///
/// # Safety
/// As [`store`], except that blocks may read it by [`load_shared_by_grid`] at any time.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn store_shared_by_grid(at: *mut u64, value: u64) {
    // SAFETY: the caller's conditions.
    unsafe { side::store_relaxed(at, value) }
}

/// Loads 16 bytes that are read once, without allocating a line in L1.
///
/// # Safety
/// As [`load`], and `at` is 16-byte aligned.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn load_streaming(at: *const Vec16) -> Vec16 {
    // SAFETY: the caller's conditions.
    unsafe { side::load_streaming(at) }
}

/// Loads 16 bytes that other threads of the block read too, through L1.
///
/// # Safety
/// As [`load_streaming`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn load_vector(at: *const Vec16) -> Vec16 {
    // SAFETY: the caller's conditions.
    unsafe { side::load_vec16(at) }
}

/// Prefetches the line of the second-level cache that an address is in, without waiting for it.
///
/// # Safety
/// As [`load`], of a byte.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn prefetch(at: *const u8) {
    // SAFETY: the caller's condition.
    unsafe { side::prefetch(at) }
}

/// Stores a word.
///
/// # Safety
/// 1. `at` is aligned for `T` and points to global memory of at least its size.
/// 2. No other thread accesses it, except on the other side of a barrier or fence that orders the
///    two.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn store<T: Word>(at: *mut T, value: T) {
    // SAFETY: the caller's conditions.
    unsafe { side::store(at, value) }
}

/// Stores 16 bytes that the kernel does not read again: L2 evicts them first.
///
/// # Safety
/// As [`store`], and `at` is 16-byte aligned.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn store_streaming(at: *mut Vec16, value: Vec16) {
    // SAFETY: the caller's conditions.
    unsafe { side::store_streaming(at, value) }
}

/// [`store_streaming`] if `is` is true, without a branch.
///
/// # Safety
/// As [`store_streaming`], if `is` is true.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn store_streaming_if(is: bool, at: *mut Vec16, value: Vec16) {
    // SAFETY: the caller's conditions.
    unsafe { side::store_streaming_if(is, at, value) }
}

/// Ends a batch of this thread's asynchronous copies
/// ([`SharedArray::copy`](crate::SharedArray::copy)).
#[inline(always)]
pub fn end_copies() {
    side::end_copies();
}

/// Waits for all batches of this thread's asynchronous copies, except the last `BUT`.
#[inline(always)]
pub fn wait_for_copies<const BUT: u32>() {
    side::wait_for_copies::<BUT>();
}
