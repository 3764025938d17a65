//! The kernels of fused-loss, one loss a file, and the table of what a compiled module holds.
//!
//! The crate is compiled twice. For `nvptx64` each line of the table becomes one `ptx-kernel` entry
//! per dtype; elsewhere it becomes the data that the host, the emulator and the PTX checks read:
//! the entry's name, its block size, its barriers and the function itself.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod abi;
mod ceiling;
pub mod element;
mod mse;
mod pairwise;
mod reduce;
mod table;

pub use table::{Entry, Family, find};

use abi::{BLOCK, CeilingArgs, PairwiseArgs};
use mse::Mse;

table::kernels! {
    // One line an entry: its constant, its loss and pass, its body, its arguments, the threads of its block,
    // the barriers in its code, its dtypes.
    MSE_FORWARD = mse forward: pairwise::forward::<E, Mse>, (PairwiseArgs), BLOCK, 3 barriers, [f32 f32];
    MSE_BACKWARD = mse backward: pairwise::backward::<E, Mse>, (PairwiseArgs), BLOCK, 0 barriers, [f32 f32];
    MSE_FORWARD_BACKWARD = mse forward_backward: pairwise::forward_backward::<E, Mse>, (PairwiseArgs), BLOCK, 3 barriers, [f32 f32];
    CEILING_READ1_BY1 = ceiling read1_by1: ceiling::pass::<1, 0, 1>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ1_BY4 = ceiling read1_by4: ceiling::pass::<1, 0, 4>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ1_BY8 = ceiling read1_by8: ceiling::pass::<1, 0, 8>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ2_BY1 = ceiling read2_by1: ceiling::pass::<2, 0, 1>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ2_BY2 = ceiling read2_by2: ceiling::pass::<2, 0, 2>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ2_BY4 = ceiling read2_by4: ceiling::pass::<2, 0, 4>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ1_WRITE1_BY1 = ceiling read1_write1_by1: ceiling::pass::<1, 1, 1>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ1_WRITE1_BY4 = ceiling read1_write1_by4: ceiling::pass::<1, 1, 4>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ2_WRITE1_BY1 = ceiling read2_write1_by1: ceiling::pass::<2, 1, 1>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
    CEILING_READ2_WRITE1_BY4 = ceiling read2_write1_by4: ceiling::pass::<2, 1, 4>, (CeilingArgs), 1024, 0 barriers, [f32 f32];
}

/// For `nvptx64`, where nothing may unwind.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
