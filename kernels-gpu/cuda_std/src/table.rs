//! Tables that are known when a kernel is compiled.

/// Declares a table in global memory and a function that looks a word up, by an index that may
/// differ from thread to thread; beyond the table it begins again.
///
/// ```
/// cuda_std::lookup_table! {
///     /// The squares.
///     pub fn square() -> [u64; 4] = [0, 1, 4, 9];
/// }
/// assert_eq!((square::<false>(3), square::<true>(6)), (9, 4));
/// ```
///
/// The first-level cache keeps it, so a block needs not copy it to shared memory first. A table of
/// 16 words, the most, is one line of the cache, and all threads of a warp read it without a
/// conflict.
///
/// The function's parameter says whether there is a predicate register for the address of the word:
/// without, it takes one instruction more.
#[macro_export]
macro_rules! lookup_table {
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident() -> [u64; $len:literal]
            = [$first:expr $(, $rest:expr)* $(,)?];
    ) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name<const PREDICATE: bool>(index: u32) -> u64 {
            const { assert!(u32::is_power_of_two($len) && $len <= 16) };
            let index = index % $len;
            #[cfg(target_arch = "nvptx64")]
            {
                let word: u64;
                // SAFETY: both read the table declared beside the function, inside of it. It is
                // aligned to 128 bytes, and has no more, so that the addresses of its words differ
                // in bits that are 0 in its own: these are set, where an addition would carry from
                // the lower to the upper half, by a predicate.
                unsafe {
                    if PREDICATE {
                        core::arch::asm!(
                            "{{",
                            ".reg .b64 table;",
                            concat!("mov.b64 table, ", stringify!($name), ";"),
                            "mad.wide.u32 table, {1}, 8, table;",
                            "ld.global.nc.b64 {0}, [table];",
                            "}}",
                            out(reg64) word,
                            in(reg32) index,
                            options(pure, nomem, nostack, preserves_flags),
                        );
                    } else {
                        core::arch::asm!(
                            "{{",
                            ".reg .b64 table;",
                            ".reg .b32 lower, upper, within;",
                            concat!("mov.b64 table, ", stringify!($name), ";"),
                            "mov.b64 {{lower, upper}}, table;",
                            "shl.b32 within, {1}, 3;",
                            "or.b32 lower, lower, within;",
                            "mov.b64 table, {{lower, upper}};",
                            "ld.global.nc.b64 {0}, [table];",
                            "}}",
                            out(reg64) word,
                            in(reg32) index,
                            options(pure, nomem, nostack, preserves_flags),
                        );
                    }
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

/// Declares numbers in constant memory and a function that reads the one with a constant index.
///
/// An instruction takes an operand from constant memory at no cost, while an f64 literal takes two
/// instructions and two registers.
///
/// ```
/// cuda_std::constant_numbers! {
///     /// Coefficients.
///     pub fn coefficient() -> [f64; 2] = [0.5, 0.25];
/// }
/// assert_eq!(coefficient::<1>(), 0.25);
/// ```
#[macro_export]
macro_rules! constant_numbers {
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident() -> [f64; $len:literal]
            = [$first:expr $(, $rest:expr)* $(,)?];
    ) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name<const INDEX: usize>() -> f64 {
            const { assert!(INDEX < $len) };
            #[cfg(target_arch = "nvptx64")]
            {
                let number: f64;
                // SAFETY: reads a number declared beside the function, inside of the array.
                unsafe {
                    core::arch::asm!(
                        concat!("ld.const.f64 {0}, [", stringify!($name), "+{1}];"),
                        out(reg64) number,
                        const INDEX * 8,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                number
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                const NUMBERS: [f64; $len] = [$first $(, $rest)*];
                NUMBERS[INDEX]
            }
        }
        #[cfg(target_arch = "nvptx64")]
        core::arch::global_asm!(
            concat!(
                ".const .align 8 .b64 ", stringify!($name), "[", stringify!($len), "] = {{{}",
                $($crate::lookup_table!(@ ", {}" of $rest),)* "}};"
            ),
            const { let first: f64 = $first; first.to_bits() },
            $(const { let number: f64 = $rest; number.to_bits() },)*
        );
    };
}
