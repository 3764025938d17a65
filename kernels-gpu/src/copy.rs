//! Copies to shared memory of vectors that are not aligned in global memory.

use crate::element::{Element, unrolled};
use cuda_std::SharedArray;
use cuda_std::memory::{Vec16, Word, load};

/// Copies 16 bytes that are not aligned to 16 bytes: asynchronously, by words, if words of 4 or 8
/// bytes are aligned, as they are for elements of that size. Otherwise no asynchronous copy is
/// narrow enough, so the thread copies element by element.
///
/// # Safety
/// 1. The bytes are elements in global memory.
/// 2. No other thread accesses the vector `to`, and this thread waits for its copies before it
///    does.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn copy_unaligned<E: Element>(to: SharedArray<Vec16>, from: u64) {
    // SAFETY: the caller's conditions.
    unsafe {
        if size_of::<E>() == 8 {
            copy_words::<u64, 2>(to, from);
        } else if size_of::<E>() == 4 || from.is_multiple_of(4) {
            copy_words::<u32, 4>(to, from);
        } else {
            unrolled!(for lane in 0..E::LANES as usize; {
                let element = load((from as *const E).wrapping_add(lane));
                to.words::<E>().set(lane as u32, element);
            });
        }
    }
}

/// Starts to copy 16 bytes as N words.
///
/// # Safety
/// As [`copy_unaligned`]; the words are aligned.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn copy_words<W: Word, const N: usize>(to: SharedArray<Vec16>, from: u64) {
    unrolled!(for word in 0..N; {
        // SAFETY: the caller's conditions.
        unsafe { to.words::<W>().copy_word(word as u32, (from as *const W).wrapping_add(word)) };
    });
}
