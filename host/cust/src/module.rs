//! Compiled kernels, loaded into the current context.

use crate::error::{CudaResult, ToResult};
use crate::function::Function;
use crate::sys;
use std::ffi::{CStr, CString};

/// A loaded module of kernels; unloaded when it is dropped.
#[derive(Debug)]
pub struct Module {
    inner: sys::CUmodule,
}

// SAFETY: any thread may use a module; the driver locks it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// An option of the driver's compiler. None is needed yet: [`sys::cuModuleLoadDataEx`] takes all.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum ModuleJitOption {}

impl Module {
    /// Has the driver compile the PTX in `ptx`, for the device of the current context.
    ///
    /// # Errors
    /// [`InvalidPtx`](crate::error::CudaError::InvalidPtx),
    /// [`UnsupportedPtxVersion`](crate::error::CudaError::UnsupportedPtxVersion).
    pub fn from_ptx_cstr(ptx: &CStr, _options: &[ModuleJitOption]) -> CudaResult<Module> {
        let (mut inner, none) = (std::ptr::null_mut(), std::ptr::null_mut::<()>());
        // SAFETY: the text ends in a zero byte; there are no options; the driver writes the module
        // to the pointer it is given.
        unsafe {
            sys::cuModuleLoadDataEx(&mut inner, ptx.as_ptr().cast(), 0, none.cast(), none.cast())
        }
        .to_result()?;
        Ok(Module { inner })
    }

    /// As [`from_ptx_cstr`](Self::from_ptx_cstr), from a string without a zero byte.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Where there is a zero byte in it.
    pub fn from_ptx<T: AsRef<str>>(ptx: T, options: &[ModuleJitOption]) -> CudaResult<Module> {
        let ptx = CString::new(ptx.as_ref()).expect("ptx: expected no zero byte, got one");
        Self::from_ptx_cstr(&ptx, options)
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// [`NotFound`](crate::error::CudaError::NotFound) where it has none.
    ///
    /// # Panics
    /// Where there is a zero byte in the name.
    pub fn get_function<T: AsRef<str>>(&self, name: T) -> CudaResult<Function<'_>> {
        let name = CString::new(name.as_ref()).expect("name: expected no zero byte, got one");
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends in a zero byte; the driver writes the kernel
        // to the pointer it is given.
        unsafe { sys::cuModuleGetFunction(&mut function, self.inner, name.as_ptr()) }
            .to_result()?;
        Ok(Function::new(function, self))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `from_ptx_cstr`, and no `Function` of it is left.
        let _ = unsafe { sys::cuModuleUnload(self.inner) };
    }
}
