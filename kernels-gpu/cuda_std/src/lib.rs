//! The functions that a kernel may call, named after Rust-CUDA's `cuda_std`: [`thread`], [`warp`],
//! [`memory`], [`atomic`], [`math`], [`shared_array!`] and [`lookup_table!`].
//!
//! Every function has two implementations. For `nvptx64` it is a PTX instruction. For other targets
//! it is a call to the [`host::Machine`] that runs the current thread; so the emulator executes the
//! same kernel source on a CPU and checks what it does.
//!
//! The `cuda_std` of crates.io needs a compiler plug-in for a nightly of 2021, so it cannot be used
//! with a current rustc. This crate has the same names, so that it can be replaced by that one when
//! it can be used.
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
pub mod table;
pub mod thread;
pub mod warp;
