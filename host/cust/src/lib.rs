//! The CUDA driver, with safe functions where possible, under the names of Rust-CUDA's `cust`.
//!
//! The published `cust` 0.3.2 links to `libcuda.so.1` by name: it builds only with a CUDA toolkit,
//! and programs that use it start only with a driver. This crate has the parts that fused-loss
//! needs, with the same names and signatures, over a table of functions that is filled at run time.
//! It has no build script, links to no CUDA library and exports no C function.
//!
//! | module | what it is for |
//! |---|---|
//! | [`device`], [`context`] | a GPU, and its primary context |
//! | [`module`], [`function`] | compiled kernels |
//! | [`stream`], [`event`] | a queue of work, and a point in it |
//! | [`memory`] | memory on the GPU |
//! | [`error`] | what the driver returns |
//! | [`sys`] | the driver's C functions and types, by the names of `cuda.h` |
//! | [`driver`] | where the functions come from: what the published `cust` has not |
//!
//! ```
//! use cust::context::Context;
//! use cust::device::Device;
//!
//! # fn main() -> Result<(), cust::error::CudaError> {
//! if let Err(error) = cust::init(cust::CudaFlags::empty()) {
//!     println!("no GPU: {error}");
//!     return Ok(());
//! }
//! let device = Device::get_device(0)?;
//! let _context = Context::new(device)?;
//! println!("{}", device.name()?);
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]

pub mod context;
pub mod device;
pub mod driver;
pub mod error;
pub mod event;
mod flags;
pub mod function;
pub mod memory;
pub mod module;
pub mod stream;
pub mod sys;
#[cfg(all(test, feature = "emulator"))]
mod tests;

use error::{CudaError, CudaResult, ToResult};

flags::flags! {
    /// Flags for initialising the driver; there are none yet.
    CudaFlags {}
}

/// Loads the machine's driver and initialises it. For the reason of a failure in words, call
/// [`driver::load`].
///
/// # Errors
/// [`CudaError::NoDevice`] where there is no driver or no GPU; [`CudaError::NotSupported`] where
/// the driver is too old; [`CudaError::NotPermitted`] where the process runs on the emulator;
/// whatever else the driver's `cuInit` returns.
pub fn init(flags: CudaFlags) -> CudaResult<()> {
    match driver::load(driver::Source::Library) {
        // SAFETY: takes no pointers; to initialise the driver again changes nothing.
        Ok(()) => unsafe { sys::cuInit(flags.bits()) }.to_result(),
        Err(driver::LoadError::NoDriver { code, .. }) => Err(code),
        Err(driver::LoadError::OtherDriver { .. }) => Err(CudaError::NotPermitted),
        // The machine's driver was asked for.
        Err(driver::LoadError::NoEmulator { .. }) => Err(CudaError::NotSupported),
    }
}

/// A version of CUDA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CudaApiVersion {
    version: i32,
}

impl CudaApiVersion {
    /// The newest version that the driver supports.
    ///
    /// # Errors
    /// [`CudaError::NoDevice`] where there is no driver.
    pub fn get() -> CudaResult<Self> {
        let mut version = 0;
        // SAFETY: writes the version to the pointer it is given.
        unsafe { sys::cuDriverGetVersion(&mut version) }.to_result()?;
        Ok(CudaApiVersion { version })
    }

    /// 12 of CUDA 12.4.
    pub fn major(self) -> i32 {
        self.version / 1000
    }

    /// 4 of CUDA 12.4.
    pub fn minor(self) -> i32 {
        self.version % 1000 / 10
    }
}
