//! Kernels of loaded modules, and the shapes of their launches.

use crate::error::{CudaResult, ToResult};
use crate::module::Module;
use crate::sys;
use std::marker::PhantomData;

/// The blocks of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it.
pub struct GridSize {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

/// The threads of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it.
pub struct BlockSize {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl From<u32> for GridSize {
    fn from(x: u32) -> Self {
        GridSize { x, y: 1, z: 1 }
    }
}

impl From<u32> for BlockSize {
    fn from(x: u32) -> Self {
        BlockSize { x, y: 1, z: 1 }
    }
}

/// A property of a kernel. The driver has more of them: [`sys::cuFuncGetAttribute`].
#[repr(u32)]
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionAttribute {
    /// Bytes of the shared memory that it declares.
    SharedMemorySizeBytes = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.0,
}

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    inner: sys::CUfunction,
    module: PhantomData<&'a Module>,
}

// SAFETY: any thread may use a kernel; the driver locks it.
unsafe impl Send for Function<'_> {}
// SAFETY: as above.
unsafe impl Sync for Function<'_> {}

impl<'a> Function<'a> {
    pub(crate) fn new(inner: sys::CUfunction, _module: &'a Module) -> Self {
        Function { inner, module: PhantomData }
    }

    /// A property of it.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::error::CudaError::InvalidValue) where the driver does not know the
    /// property.
    pub fn get_attribute(&self, attribute: FunctionAttribute) -> CudaResult<i32> {
        let (mut value, which) = (0, sys::CUfunction_attribute(attribute as u32));
        // SAFETY: the module is loaded; the driver writes a number to the pointer it is given.
        unsafe { sys::cuFuncGetAttribute(&mut value, which, self.inner) }.to_result()?;
        Ok(value)
    }

    /// The driver's handle of it.
    pub fn to_raw(&self) -> sys::CUfunction {
        self.inner
    }
}
