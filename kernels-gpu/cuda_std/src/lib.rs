//! The names a kernel may call, after Rust-CUDA's `cuda_std`: [`thread`], [`warp`], [`memory`],
//! [`atomic`], [`math`], [`shared_array!`] and [`lookup_table!`].
//!
//! Every name has two sides. For `nvptx64` it is a PTX instruction. Anywhere else it is a call to
//! the [`host::Machine`] that runs the current thread, which is how the emulator executes the same
//! kernel source on a CPU and checks what it does.
//!
//! The `cuda_std` of crates.io needs a compiler plug-in for a nightly of 2021, so it cannot be used
//! with a current rustc; the names are its names, so that it can be put back when it can.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics, f16)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

#[cfg(not(target_arch = "nvptx64"))]
pub mod host;
#[cfg(not(target_arch = "nvptx64"))]
use host as side;

#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod nvptx;
#[cfg(target_arch = "nvptx64")]
use nvptx as side;

pub mod atomic;
pub mod hint;
pub mod math;
pub mod memory;
mod shared;
pub use shared::SharedArray;
mod table;
pub mod thread;
pub mod warp;
