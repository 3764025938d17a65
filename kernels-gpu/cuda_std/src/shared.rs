/// Declares an array in the block's shared memory and a function that returns its address:
///
/// ```
/// cuda_std::shared_array! {
///     /// One sum a warp.
///     pub fn warp_sums() -> [f64; 32];
/// }
/// ```
///
/// One declaration is one array, however often the function is called. Access goes through
/// [`SharedArray`], so that the emulator sees it.
#[macro_export]
macro_rules! shared_array {
    ($(#[$meta:meta])* $vis:vis fn $name:ident() -> [$word:ty; $len:literal];) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name() -> $crate::SharedArray<$word> {
            #[cfg(target_arch = "nvptx64")]
            {
                const _: () = assert!(core::mem::size_of::<$word>() == 8, "declared as .b64 below");
                let address: *mut $word;
                // SAFETY: takes the address of the array declared beside this function.
                unsafe {
                    core::arch::asm!(
                        concat!("mov.u64 {0}, ", stringify!($name), ";"),
                        out(reg64) address,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                $crate::SharedArray::new(address)
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
}

use crate::{memory::Word, side};

/// An array in the block's shared memory.
#[derive(Clone, Copy)]
pub struct SharedArray<T> {
    start: *mut T,
}

impl<T: Word> SharedArray<T> {
    #[doc(hidden)]
    #[inline(always)]
    pub fn new(start: *mut T) -> Self {
        Self { start }
    }

    /// The element at `index`.
    ///
    /// # Safety
    /// 1. `index` is within the array.
    /// 2. The element was written, and a barrier stands between that and this.
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
