//! What the driver's calls return if they fail.

use crate::sys::{self, CUresult};
use std::ffi::{CStr, c_char};
use std::fmt;

/// Why a call failed: a code of the driver. It may be one that has no name here; it then still
/// prints its number and the driver's text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaError(CUresult);

/// The result of most calls.
pub type CudaResult<T> = Result<T, CudaError>;

#[allow(non_upper_case_globals)]
impl CudaError {
    /// A call for no memory, or for more than there are addresses. The code is not the driver's.
    pub const InvalidMemoryAllocation: Self = CudaError(CUresult(100_100));
}

impl CudaError {
    pub(crate) const fn of(code: CUresult) -> Self {
        CudaError(code)
    }

    /// The driver's number.
    pub const fn code(self) -> u32 {
        self.0.0
    }

    /// The driver's name, such as `CUDA_ERROR_INVALID_VALUE`.
    pub fn name(self) -> String {
        let known = || self.0.name().unwrap_or("unknown error").to_owned();
        self.ask(sys::cuGetErrorName).unwrap_or_else(known)
    }

    /// The driver's text, such as `invalid argument`.
    pub fn text(self) -> String {
        let known = || match self {
            CudaError::InvalidMemoryAllocation => "no memory, or too much, was asked for",
            CudaError::NoDevice => "no driver",
            _ => "unknown error",
        };
        self.ask(sys::cuGetErrorString).unwrap_or_else(|| known().to_owned())
    }

    fn ask(self, lookup: unsafe fn(CUresult, *mut *const c_char) -> CUresult) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes the address of a string, or nothing.
        let found = unsafe { lookup(self.0, &mut text) } == CUresult::CUDA_SUCCESS;
        if !found || text.is_null() {
            return None;
        }
        // SAFETY: the driver's strings are constants that end in a zero byte.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl From<CUresult> for CudaError {
    /// The code as an error, whatever it says.
    fn from(code: CUresult) -> Self {
        CudaError(code)
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaError({:?})", self.0)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name(), self.code(), self.text())
    }
}

impl std::error::Error for CudaError {}

pub(crate) trait ToResult {
    fn to_result(self) -> CudaResult<()>;
}

impl ToResult for CUresult {
    fn to_result(self) -> CudaResult<()> {
        if self == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(CudaError(self)) }
    }
}
