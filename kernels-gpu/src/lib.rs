//! The kernels of fused-loss, and the table of their entries.
//!
//! The crate is compiled twice. For `nvptx64` each line of the table becomes one `ptx-kernel` entry
//! per dtype. For other targets it becomes the data that the host, the emulator and the PTX checks
//! read: the entry's name, its block size, its barriers and, with the feature `emulator`, the
//! function itself.
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
mod copy;
mod cross_entropy;
mod cut;
pub mod element;
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

use cross_entropy::log_prob;
#[cfg(not(target_arch = "nvptx64"))]
pub use layout::LAYOUTS;
pub use table::{Entry, Family, all, find};

// The table. Each line is one loss: the kind of its kernels (`pairwise`, `cross_entropy`) and their
// parameters. The parameters of `pairwise` are: the loss's type; for how many threads a
// multiprocessor has registers (more threads have fewer registers each), in the pass that computes
// the loss and in the pass that computes loss and gradients; and how many blocks a multiprocessor
// has at a time: `rows by`, of the row and the tiled kernels, forward and with gradients; `packed
// by`, of the packed kernels, forward and with gradients; `indexed by`, of the indexed kernels,
// forward, backward and both.
table::losses! {
    mse: pairwise(crate::mse::Mse, 1024 and 1024 threads, rows by 3 2, packed by 6 5,
        indexed by 4 4 2);
    huber: pairwise(crate::huber::Huber<R>, 1024 and 768 threads, rows by 3 2,
        packed by 6 5, indexed by 4 4 2);
    // With three blocks, ptxas spills registers of these tiled kernels.
    smooth_l1: pairwise(crate::smooth_l1::SmoothL1<R>, 1024 and 768 threads, rows by 2 2,
        packed by 6 5, indexed by 4 3 2);
    bce: pairwise(crate::bce::Bce<E>, 768 and 640 threads, rows by 2 1, packed by 5 4,
        indexed by 2 2 1);
    // Inputs are log-probabilities or, with `_prob`, probabilities; targets are probabilities or,
    // with `_log_target`, log-probabilities.
    kl_div: pairwise(crate::kl_div::KlDiv<true, false>, 1024 and 1024 threads, rows by 3 2,
        packed by 6 5, indexed by 4 3 2);
    kl_div_log_target: pairwise(crate::kl_div::KlDiv<true, true>, 512 and 768 threads,
        rows by 3 2, packed by 6 5, indexed by 4 3 2);
    kl_div_prob: pairwise(crate::kl_div::KlDiv<false, false>, 1024 and 768 threads,
        rows by 3 2, packed by 6 5, indexed by 4 3 2);
    kl_div_prob_log_target: pairwise(crate::kl_div::KlDiv<false, true>, 512 and 512 threads,
        rows by 2 2, packed by 5 4, indexed by 3 3 2);
    // One line for each kind of target. `4 by 1024`: a thread has at most four 16-byte vectors of a
    // row in registers, in blocks of at most 1024 threads. `5 resident`: a multiprocessor has
    // registers for five blocks of 256 threads of the forward pass. The rest says for which dtypes
    // there are kernels: `streams`, whose forward pass streams long rows; `longs`, whose forward
    // pass reads long rows tile by tile; `lane rows` and `wide rows`, with a lane per row, which is
    // in registers or too wide for them (for the loss alone, and with gradients); `staged`, with
    // one block per row, which it stages; `split`, with several blocks per row; `in warps`, with a
    // warp per row that fills its registers.
    cross_entropy: cross_entropy(CLASS, 4 by 1024, 5 resident,
        streams [f64], longs [f32, f16, bf16],
        lane rows [f32, f64, f16, bf16],
        wide rows [f32, f16, bf16] and [f32, f64, f16, bf16] with gradients,
        staged [f32, f64, f16, bf16], split [f32, f64, f16, bf16],
        in warps [f32, f16, bf16]);
    // With label smoothing.
    cross_entropy_smoothed: cross_entropy(SMOOTHED, 4 by 512, 4 resident,
        streams [f32, f64, f16, bf16], longs [],
        lane rows [f32, f64, f16, bf16],
        wide rows [f32, f16, bf16] and [f32, f16, bf16] with gradients,
        staged [f32, f64, f16, bf16], split [f32, f64, f16, bf16],
        in warps []);
    // With label smoothing and class weights.
    cross_entropy_weighted: cross_entropy(WEIGHTED, 4 by 512, 4 resident,
        streams [f32, f64, f16, bf16], longs [],
        lane rows [f32, f64, f16, bf16],
        wide rows [f32, f16, bf16] and [f32, f16, bf16] with gradients,
        staged [f32, f64, f16, bf16], split [f32, f64, f16, bf16],
        in warps []);
    cross_entropy_prob: cross_entropy(PROBABILITIES, 2 by 512, 4 resident,
        streams [f32, f64, f16, bf16], longs [],
        lane rows [f32, f64, f16, bf16], wide rows [] and [] with gradients,
        staged [f32, f64, f16, bf16], split [f32, f64, f16, bf16],
        in warps []);
    // The log-probability of a class and the entropy of its row. They are computed by the row
    // kernels of cross-entropy, with those of its parameters that these kernels need.
    log_prob: log_prob(4 by 1024, 5 resident);
    // Kernels that only read and write, against which benchmarks measure.
    ceiling: ceiling();
}

/// Required for `nvptx64`, which has no standard library. Kernels do not panic: the PTX checks
/// refuse a call of it.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
