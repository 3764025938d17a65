//! What the library adds to `cust`: its errors, and launches with attributes.
//!
//! Only this module calls `cust::driver`, which the published `cust` does not have.

use crate::error::{DriverError, Error, Result};
use cust::driver::{self, LoadError};
use cust::error::{CudaError, CudaResult};
use cust::sys::{self, CUlaunchAttributeID, CUlaunchAttributeValue, CUresult};
use std::ffi::c_uint;

pub(crate) use cust::driver::Source;

/// A launch with attributes.
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: sys::CUstream,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) count: c_uint,
}

impl LaunchConfig {
    /// The launch as the driver takes it.
    pub(crate) fn raw(&self) -> sys::CUlaunchConfig {
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (self.grid, self.block);
        sys::CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: self.shared_bytes,
            hStream: self.stream,
            attrs: self.attributes.cast(),
            numAttrs: self.count,
        }
    }
}

/// An attribute of a launch.
#[repr(transparent)]
pub(crate) struct LaunchAttribute(sys::CUlaunchAttribute);

impl LaunchAttribute {
    /// The kernel may begin while the previous one in the stream ends. The kernel itself must wait
    /// for that one before it touches memory.
    pub(crate) const OVERLAPS: Self =
        Self::on(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    /// All blocks are resident at the same time, so that each may wait for any other. The driver
    /// refuses a launch of more blocks than the device has room for.
    pub(crate) const COOPERATIVE: Self =
        Self::on(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);

    /// Turns a boolean attribute on.
    const fn on(id: CUlaunchAttributeID) -> Self {
        LaunchAttribute(sys::CUlaunchAttribute { id, value: CUlaunchAttributeValue::of_int(1) })
    }
}

/// Loads the driver from `source` and initialises it, unless it is already loaded.
pub(crate) fn choose(source: Source) -> Result<()> {
    driver::load(source).map_err(|error| match error {
        LoadError::OtherDriver { chosen, asked } => {
            Error::OtherDriver { chosen: chosen.name(), asked: asked.name() }
        }
        LoadError::NoDriver { reason, .. } => Error::NoDriver { reason },
        LoadError::NoEmulator { reason } => Error::NoEmulator { reason },
        other => Error::NoDriver { reason: other.to_string() },
    })
}

/// Turns the result of the driver's function `call` into an error.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(error(call, code.into()).into()),
    }
}

/// Turns the result of `cust`'s function that wraps `call` into an error.
pub(crate) fn check_cust<T>(call: &'static str, result: CudaResult<T>) -> Result<T> {
    result.map_err(|code| error(call, code).into())
}

/// Turns the result of `cudarc`'s function that wraps `call` into an error.
#[cfg(feature = "cudarc")]
pub(crate) fn check_cudarc<T>(
    call: &'static str,
    result: std::result::Result<T, cudarc::driver::DriverError>,
) -> Result<T> {
    result.map_err(|cudarc::driver::DriverError(code)| {
        error(call, CUresult(code as u32).into()).into()
    })
}

fn error(call: &'static str, source: CudaError) -> DriverError {
    // A driver that lacks the function cannot describe that error.
    let missing = (source == CudaError::NotSupported).then(|| driver::missing(call)).flatten();
    let (code, name) = (source.code(), source.name());
    let text = missing.unwrap_or_else(|| source.text());
    DriverError { call, code, name, text, report: driver::take_report().map(Into::into), source }
}
