//! Tables that are known when a kernel is compiled.

/// Declares a table in global memory and a function that looks a word up, by an index that may
/// differ from thread to thread; beyond the table it begins again.
///
/// ```
/// cuda_std::lookup_table! {
///     /// The squares.
///     pub fn square() -> [u64; 4] = [0, 1, 4, 9];
/// }
/// assert_eq!((square(3), square(6)), (9, 4));
/// ```
///
/// The first-level cache keeps it, so a block needs not copy it to shared memory first. A table of
/// 16 words is one line of the cache, and all threads of a warp read it without a conflict.
#[macro_export]
macro_rules! lookup_table {
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident() -> [u64; $len:literal]
            = [$first:expr $(, $rest:expr)* $(,)?];
    ) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name(index: u32) -> u64 {
            const { assert!(u32::is_power_of_two($len)) };
            let index = index % $len;
            #[cfg(target_arch = "nvptx64")]
            {
                let word: u64;
                // SAFETY: reads the table declared beside the function, inside of it.
                unsafe {
                    core::arch::asm!(
                        "{{",
                        ".reg .b64 table;",
                        concat!("mov.b64 table, ", stringify!($name), ";"),
                        "add.s64 table, table, {1};",
                        "ld.global.nc.b64 {0}, [table];",
                        "}}",
                        out(reg64) word,
                        in(reg64) u64::from(index * 8),
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                word
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                const TABLE: [u64; $len] = [$first $(, $rest)*];
                TABLE[index as usize]
            }
        }
        #[cfg(target_arch = "nvptx64")]
        core::arch::global_asm!(
            concat!(
                ".global .align 128 .b64 ", stringify!($name), "[", stringify!($len), "] = {{{}",
                $($crate::lookup_table!(@ ", {}" of $rest),)* "}};"
            ),
            const { let first: u64 = $first; first },
            $(const { let word: u64 = $rest; word },)*
        );
    };
    (@ $text:literal of $value:expr) => { $text };
}
