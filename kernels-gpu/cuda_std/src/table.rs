//! Tables that are known when a kernel is compiled.

/// How a thread computes the address of a word in a table. Which is the fastest depends on the code
/// around it. H200, 2026-11-30, cross-entropy in f64, ceiling ÷ ours with `UNIFORM` and with
/// `THREAD`: forward pass, 256 columns 0.78 and 0.81, 512 columns 0.83 and 0.88; but
/// forward-backward, 128 columns 0.78 and 0.60, where registers are short.
pub mod address {
    /// The table's address is in a uniform register. An addition to it takes two instructions, and
    /// a predicate register for the carry from the lower to the upper half.
    pub const UNIFORM: u32 = 0;
    /// The index is put into bits of the table's address that are 0. This takes one more
    /// instruction, but no predicate.
    pub const BITS: u32 = 1;
    /// The table's address is in two registers of the thread, where the instructions of several
    /// lookups do not wait for each other's predicate. The assembler must not know that all threads
    /// have the same address, or it would move that to a uniform register.
    pub const THREAD: u32 = 2;
}

/// Declares a table in global memory and a function that looks up a word by an index, which may
/// differ from thread to thread. The index wraps around at the end of the table.
///
/// ```
/// use cuda_std::table::address::{THREAD, UNIFORM};
/// cuda_std::lookup_table! {
///     /// The squares.
///     pub fn square() -> [u64; 4] = [0, 1, 4, 9];
/// }
/// assert_eq!((square::<{ UNIFORM }>(3), square::<{ THREAD }>(6)), (9, 4));
/// ```
///
/// The table stays in the first-level cache, so a block need not copy it to shared memory first.
/// The largest table, of 16 words, is one line of the cache, and all threads of a warp read it
/// without a conflict.
///
/// The function's parameter is an [`address`](crate::table::address).
#[macro_export]
macro_rules! lookup_table {
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident() -> [u64; $len:literal]
            = [$first:expr $(, $rest:expr)* $(,)?];
    ) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name<const ADDRESS: u32>(index: u32) -> u64 {
            const { assert!(u32::is_power_of_two($len) && $len <= 16) };
            let index = index % $len;
            #[cfg(target_arch = "nvptx64")]
            {
                let word: u64;
                // SAFETY: all read the table declared beside the function, inside of it. The table
                // is aligned to 128 bytes and is not longer, so the address of a word differs from
                // the table's only in bits that are 0 in the latter. Bit 31 is 0 in each mask of
                // the lanes below.
                unsafe {
                    if ADDRESS == $crate::table::address::THREAD {
                        let table: u64;
                        core::arch::asm!(
                            "{{",
                            ".reg .b32 zero;",
                            concat!("mov.b64 {0}, ", stringify!($name), ";"),
                            "mov.u32 zero, %lanemask_lt;",
                            "shr.u32 zero, zero, 31;",
                            "mad.wide.u32 {0}, zero, 8, {0};",
                            "}}",
                            out(reg64) table,
                            options(pure, nomem, nostack, preserves_flags),
                        );
                        core::arch::asm!(
                            "{{",
                            ".reg .b64 at;",
                            "mad.wide.u32 at, {1}, 8, {2};",
                            "ld.global.nc.b64 {0}, [at];",
                            "}}",
                            out(reg64) word,
                            in(reg32) index,
                            in(reg64) table,
                            options(pure, nomem, nostack, preserves_flags),
                        );
                    } else if ADDRESS == $crate::table::address::UNIFORM {
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

/// Declares numbers in constant memory and a function that reads the number at a constant index.
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
