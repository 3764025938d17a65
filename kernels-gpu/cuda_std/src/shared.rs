/// Declares an array in the block's shared memory and a function that returns its address:
///
/// ```
/// cuda_std::shared_array! {
///     /// One sum a warp.
///     pub fn warp_sums() -> [f64; 32];
/// }
/// ```
///
/// One declaration is one array, however often the function is called. Accesses go through
/// [`SharedArray`], so that the emulator sees them.
///
/// An array of [`Vec16`] without a length is the launch's dynamic shared memory, and begins at a
/// multiple of 128 bytes. A kernel has at most one such array.
#[macro_export]
macro_rules! shared_array {
    ($(#[$meta:meta])* $vis:vis fn $name:ident() -> [Vec16];) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name() -> $crate::SharedArray<$crate::memory::Vec16> {
            #[cfg(target_arch = "nvptx64")]
            {
                $crate::shared_array!(@ address of $name)
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                $crate::host::dynamic_shared_array()
            }
        }
        #[cfg(target_arch = "nvptx64")]
        core::arch::global_asm!(concat!(".extern .shared .align 128 .b8 ", stringify!($name), "[];"));
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident() -> [$word:ty; $len:literal];) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name() -> $crate::SharedArray<$word> {
            #[cfg(target_arch = "nvptx64")]
            {
                const _: () = assert!(core::mem::size_of::<$word>() == 8, "declared as .b64 below");
                $crate::shared_array!(@ address of $name)
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                static KEY: u8 = 0;
                $crate::host::shared_array::<$word>(&raw const KEY as usize, $len)
            }
        }
        #[cfg(target_arch = "nvptx64")]
        core::arch::global_asm!(concat!(
            ".shared .align 16 .b64 ", stringify!($name), "[", stringify!($len), "];"
        ));
    };
    (@ address of $name:ident) => {{
        let address;
        // SAFETY: takes the address of the array declared beside the function.
        unsafe {
            core::arch::asm!(
                concat!("mov.u64 {0}, ", stringify!($name), ";"),
                out(reg64) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        $crate::SharedArray::new(address)
    }};
}

use crate::memory::{Vec16, Word};
use crate::side;

/// An array in the block's shared memory.
#[derive(Clone, Copy)]
pub struct SharedArray<T> {
    start: *mut T,
}

impl<T> SharedArray<T> {
    #[doc(hidden)]
    #[inline(always)]
    pub fn new(start: *mut T) -> Self {
        Self { start }
    }
}

impl<T: Word> SharedArray<T> {
    /// The element at `index`.
    ///
    /// # Safety
    /// 1. `index` is within the array.
    /// 2. The element was written, and a barrier is between that and this.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn get(self, index: u32) -> T {
        // SAFETY: the caller's conditions.
        unsafe { side::load_shared(self.start.add(index as usize)) }
    }

    /// Writes the element at `index`.
    ///
    /// # Safety
    /// 1. `index` is within the array.
    /// 2. No other thread of the block accesses it before the next barrier.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn set(self, index: u32, value: T) {
        // SAFETY: the caller's conditions.
        unsafe { side::store_shared(self.start.add(index as usize), value) }
    }
}

impl<T: Word> SharedArray<T> {
    /// Copies a word of 4 or 8 bytes of global memory to `index`, asynchronously, as
    /// [`copy`](SharedArray::<Vec16>::copy) copies vectors.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn copy_word(self, index: u32, from: *const T) {
        const { assert!(size_of::<T>() == 4 || size_of::<T>() == 8) };
        // SAFETY: the caller's conditions.
        unsafe { side::copy_to_shared(self.start.add(index as usize), from) }
    }
}

impl SharedArray<Vec16> {
    /// The array from `index` on. Constant indices into it are then part of the instructions.
    ///
    /// # Safety
    /// `index` is within the array.
    #[inline(always)]
    pub unsafe fn from(self, index: u32) -> Self {
        // SAFETY: the caller's condition.
        Self { start: unsafe { self.start.add(index as usize) } }
    }

    /// The 16 bytes at `index`.
    ///
    /// # Safety
    /// 1. `index` is within the array.
    /// 2. They were written, by this thread or with a barrier between that and this.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn get(self, index: u32) -> Vec16 {
        // SAFETY: the caller's conditions; the array is on a 16-byte boundary.
        unsafe { side::load_shared_vec16(self.start.add(index as usize)) }
    }

    /// The same array, with its address in a register. Otherwise ptxas computes the address of a
    /// shared array again for each access, by an instruction that takes some twenty cycles.
    #[inline(always)]
    pub fn in_register(self) -> Self {
        Self { start: side::in_register(self.start as u64) as *mut Vec16 }
    }

    /// The bytes from number `at` on as an array of vectors. ptxas then sees no multiplication that
    /// it would have to undo for an instruction's address.
    ///
    /// # Safety
    /// `at` is within the array, and a multiple of 16.
    #[inline(always)]
    pub unsafe fn from_byte(self, at: u32) -> Self {
        // SAFETY: the caller's condition.
        Self { start: unsafe { self.start.byte_add(at as usize) } }
    }

    /// The bytes from number `at` on as an array of words.
    ///
    /// # Safety
    /// `at` is within the array, and a multiple of the word's size.
    #[inline(always)]
    pub unsafe fn words_from_byte<T: Word>(self, at: u32) -> SharedArray<T> {
        // SAFETY: the caller's condition.
        SharedArray { start: unsafe { self.start.cast::<T>().byte_add(at as usize) } }
    }

    /// The same bytes as an array of words.
    #[inline(always)]
    pub fn words<T: Word>(self) -> SharedArray<T> {
        SharedArray { start: self.start.cast() }
    }

    /// Writes the 16 bytes at `index`.
    ///
    /// # Safety
    /// 1. `index` is within the array.
    /// 2. No other thread of the block accesses them before the next barrier.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn set(self, index: u32, value: Vec16) {
        // SAFETY: the caller's conditions; the array is on a 16-byte boundary.
        unsafe { side::store_shared_vec16(self.start.add(index as usize), value) }
    }

    /// Copies 16 bytes of global memory to `index` asynchronously, without a register. This thread
    /// may read them once it has ended the batch ([`end_copies`](crate::memory::end_copies)) and
    /// waited for it ([`wait_for_copies`](crate::memory::wait_for_copies)).
    ///
    /// # Safety
    /// 1. As [`set`](Self::set); until then, this thread does not access them either.
    /// 2. As [`load_streaming`](crate::memory::load_streaming), until then.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn copy(self, index: u32, from: *const Vec16) {
        // SAFETY: the caller's conditions; the array is on a 16-byte boundary.
        unsafe { side::copy_to_shared(self.start.add(index as usize), from) }
    }

    /// Copies the bytes from number `first` on of the 16 bytes at `from` to the same bytes of the
    /// 16 at `index`, like [`copy`](Self::copy). The bytes before them at `index` become arbitrary:
    /// a device copies what is before them in global memory.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), but only the bytes from `first` on, below 16, have to be in global
    /// memory. A device's allocations begin at multiples of 16 bytes, so what is before them is in
    /// the same allocation.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn copy_end(self, index: u32, from: *const Vec16, first: u32) {
        // SAFETY: the caller's conditions; the array is on a 16-byte boundary.
        unsafe { side::copy_end_to_shared(self.start.add(index as usize), from, first) }
    }

    /// As [`copy_end`](Self::copy_end), but copies only the bytes before number `end`, at least 1
    /// and at most 16. Those from there on at `index` become arbitrary, too.
    ///
    /// # Safety
    /// As [`copy_end`](Self::copy_end), for the bytes that are copied. Those after them, up to the
    /// 16th, are in the same allocation.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn copy_part(self, index: u32, from: *const Vec16, first: u32, end: u32) {
        // SAFETY: the caller's conditions; the array is on a 16-byte boundary.
        unsafe { side::copy_part_to_shared(self.start.add(index as usize), from, first, end) }
    }
}
