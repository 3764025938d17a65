//! The kernels of fused-loss, one loss a file, and the table of what a compiled module holds.
//!
//! The crate is compiled twice. For `nvptx64` each line of the table becomes one `ptx-kernel` entry
//! per dtype; elsewhere it becomes the data that the host, the emulator and the PTX checks read:
//! the entry's name, its block size, its barriers and, with the feature `emulator`, the function
//! itself.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
// Without the feature `emulator`, and in this crate's own tests, nothing calls the kernels.
#![cfg_attr(
    not(any(target_arch = "nvptx64", all(feature = "emulator", not(test)))),
    allow(dead_code, unused_imports, unused_macros)
)]

pub mod abi;
mod bce;
mod ceiling;
mod cross_entropy;
mod cut;
pub mod element;
mod grid;
mod huber;
mod kl_div;
#[cfg(not(target_arch = "nvptx64"))]
mod layout;
mod math;
mod mse;
#[cfg(not(target_arch = "nvptx64"))]
pub mod overlap;
mod pairwise;
mod reduce;
mod row;
mod smooth_l1;
mod table;
mod tile;

#[cfg(not(target_arch = "nvptx64"))]
pub use layout::LAYOUTS;
pub use table::{Entry, Family, all, find};

// The table: a loss a line, with the kind of kernels it has, its type in them, the most threads of
// their blocks (more threads have fewer registers), and how many groups of 16 bytes a thread has in
// flight in the pass that does all.
table::losses! {
    mse: pairwise(crate::mse::Mse, 1024, 768 threads by 4, rows by 3 3 2);
    huber: pairwise(crate::huber::Huber<R>, 1024, 512 threads by 4, rows by 3 3 2);
    smooth_l1: pairwise(crate::smooth_l1::SmoothL1<R>, 1024, 512 threads by 4, rows by 3 3 2);
    bce: pairwise(crate::bce::Bce<E>, 768, 640 threads by 2, rows by 2 2 1);
    // From log-probabilities and from probabilities, to probabilities and to their logarithms.
    kl_div: pairwise(crate::kl_div::KlDiv<true, false>, 1024, 1024 threads by 2, rows by 3 3 2);
    kl_div_log_target: pairwise(crate::kl_div::KlDiv<true, true>, 512, 768 threads by 2, rows by 3 2 2);
    kl_div_prob: pairwise(crate::kl_div::KlDiv<false, false>, 1024, 768 threads by 2, rows by 3 2 2);
    kl_div_prob_log_target: pairwise(crate::kl_div::KlDiv<false, true>, 512, 512 threads by 2, rows by 2 2 2);
    // By what targets are; with the groups of a row that a thread holds, the most threads of such a
    // block, and blocks of 256 threads of the forward pass for which a multiprocessor has
    // registers.
    cross_entropy: cross_entropy(CLASS, 4 by 1024, 5 resident, streams [f64], lane rows [f32, f64, f16, bf16]);
    cross_entropy_smoothed: cross_entropy(SMOOTHED, 4 by 512, 3 resident, streams [f32, f64, f16, bf16], lane rows []);
    cross_entropy_prob: cross_entropy(PROBABILITIES, 2 by 512, 2 resident, streams [f32, f64, f16, bf16], lane rows []);
    // What the benchmarks measure against.
    ceiling: ceiling();
}

/// For `nvptx64`, where nothing may unwind.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
