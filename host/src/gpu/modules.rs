//! The kernels loaded on a device.

use super::Gpu;
use crate::driver::check;
use crate::error::{Error, Result};
use crate::plan::packed::RESERVED;
use crate::ptx::{self, Ptx};
use cust::sys;
use kernels_gpu::Entry;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The kernels loaded on a device. All handles of the device share them until the last is dropped.
///
/// The key of every map is the address of a kernel's line in the table.
#[derive(Default)]
pub(super) struct Loaded {
    /// Modules of one kernel each, each in a slot that is locked while the driver loads it.
    modules: Mutex<HashMap<usize, Arc<Slot>>>,
    /// Loaded kernels, so that a launch does not ask the driver for them.
    functions: RwLock<HashMap<usize, Function>>,
    /// The bytes of dynamic shared memory that were requested for a kernel.
    dynamic_shared: Mutex<HashMap<usize, u32>>,
    /// Whether multiprocessors should reserve shared memory for one block more.
    keep_shared: Mutex<HashMap<usize, bool>>,
}

/// The module of one kernel. It is locked while the driver compiles the kernel, so a thread that
/// needs the same kernel waits, and a thread that needs another does not.
type Slot = Mutex<Option<Module>>;

impl Loaded {
    /// The slot of the kernel's module, empty until it is loaded.
    pub(super) fn slot(&self, entry: &'static Entry) -> Arc<Slot> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(modules.entry(key(entry)).or_default())
    }

    /// The kernel, if it is loaded.
    fn function(&self, entry: &'static Entry) -> Option<Function> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        functions.get(&key(entry)).copied()
    }

    /// Unloads the modules. The device's context is current, and none of their kernels is in use.
    pub(super) fn unload(&mut self) {
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, slot) in modules.drain() {
            let module = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Module(module)) = module {
                // SAFETY: it is loaded, and no code launches its kernel any more.
                let _ = unsafe { sys::cuModuleUnload(module) };
            }
        }
    }
}

/// The key of a kernel in the maps.
fn key(entry: &'static Entry) -> usize {
    std::ptr::from_ref(entry) as usize
}

/// A loaded module, of one kernel.
pub(super) struct Module(sys::CUmodule);

/// A kernel of a loaded module.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub(crate) sys::CUfunction);

impl Function {
    /// The shared memory of its arrays.
    fn shared_bytes(self) -> Result<u32> {
        let (mut bytes, which) =
            (0, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        // SAFETY: the kernel is loaded; the driver writes a number to the pointer it is given.
        check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut bytes, which, self.0) })?;
        Ok(bytes as u32)
    }

    fn set(self, attribute: sys::CUfunction_attribute, value: i32) -> Result<()> {
        // SAFETY: the kernel is loaded; the driver refuses what it cannot do.
        check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.0, attribute, value) })
    }
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Gpu {
    /// The kernel of this line of the table. The driver compiles it at its first use. The device's
    /// context is current.
    pub(crate) fn function(&self, entry: &'static Entry) -> Result<Function> {
        let loaded = &self.inner.loaded;
        if let Some(function) = loaded.function(entry) {
            return Ok(function);
        }
        let slot = loaded.slot(entry);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have loaded it while this one waited.
        if let Some(function) = loaded.function(entry) {
            return Ok(function);
        }
        let module = match &mut *slot {
            // The driver compiled the module earlier, but then failed to find the kernel.
            Some(module) => module,
            empty => empty.insert(self.load(entry.name, self.ptx(entry)?)?),
        };
        let name = CString::new(entry.name).expect("entry names have no zero bytes");
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; the driver writes the kernel to the pointer it is given.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module.0, name.as_ptr()) };
        if result == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(Error::MissingKernel { name: entry.name, module: entry.module });
        }
        check("cuModuleGetFunction", result)?;
        let function = Function(function);
        let mut functions = loaded.functions.write().unwrap_or_else(PoisonError::into_inner);
        functions.insert(key(entry), function);
        Ok(function)
    }

    /// The most bytes of dynamic shared memory that a block of this kernel can have. Launches may
    /// use that much from now on.
    pub(crate) fn dynamic_shared(&self, entry: &'static Entry) -> Result<u32> {
        let known =
            || self.inner.loaded.dynamic_shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&bytes) = known().get(&key(entry)) {
            return Ok(bytes);
        }
        let _current = self.bind()?;
        // Do not hold the lock: the driver may have to compile the kernel, and other threads load
        // others.
        let function = self.function(entry)?;
        let bytes = self.inner.shared_bytes.saturating_sub(function.shared_bytes()?);
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // The value is at most what the device has. Two threads that get here at the same time set
        // the same value.
        function.set(attribute, bytes as i32)?;
        known().insert(key(entry), bytes);
        Ok(bytes)
    }

    /// Makes multiprocessors reserve shared memory for one block of this kernel more than they have
    /// registers for, each with `dynamic` bytes besides its arrays; otherwise the driver decides.
    /// What is not reserved is the L1 cache.
    pub(crate) fn keep_shared(
        &self,
        entry: &'static Entry,
        dynamic: u32,
        one_more: bool,
    ) -> Result<()> {
        /// Lets the driver decide.
        const DEFAULT: i32 = -1;
        let kept = || self.inner.loaded.keep_shared.lock().unwrap_or_else(PoisonError::into_inner);
        if kept().get(&key(entry)).copied().unwrap_or_default() == one_more {
            return Ok(());
        }
        let _current = self.bind()?;
        // Do not hold the lock, as above.
        let function = self.function(entry)?;
        let mut percent = DEFAULT;
        if one_more {
            let of_block = function.shared_bytes()? + dynamic + RESERVED as u32;
            // One block may use all of it, except what the driver reserves.
            let all = self.inner.shared_bytes + RESERVED as u32;
            percent = ((entry.resident + 1) * of_block * 100).div_ceil(all).min(100) as i32;
        }
        let carveout =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // Hold the lock, so that the recorded value is the one that was set last.
        let mut kept = kept();
        function.set(carveout, percent)?;
        kept.insert(key(entry), one_more);
        Ok(())
    }

    /// The PTX of the module of `entry` for this device.
    fn ptx(&self, entry: &'static Entry) -> Result<&'static Ptx> {
        let missing = Error::MissingKernel { name: entry.name, module: entry.module };
        ptx::find(entry.module, self.inner.capability).ok_or(missing)
    }

    /// Lets the driver compile one kernel of a module. cust's own call discards the driver's log
    /// and the error code for PTX that is too new. The device's context is current.
    pub(super) fn load(&self, name: &'static str, ptx: &Ptx) -> Result<Module> {
        let missing = Error::MissingKernel { name, module: ptx.module };
        let text = ptx.text(name, self.inner.overlaps).ok_or(missing)?;
        let mut log = vec![0_u8; 8192];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the text ends in a zero byte; the options are a buffer and its size; the driver
        // writes the module to the pointer it is given.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let advice = match result {
            sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                "install a driver for CUDA 12.0 or later"
            }
            sys::CUresult::CUDA_ERROR_INVALID_PTX | sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                "this is a fault of the library"
            }
            _ => {
                check("cuModuleLoadDataEx", result)?;
                return Ok(Module(module));
            }
        };
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        let version = self.inner.driver_version;
        Err(Error::UnsupportedPtx {
            name,
            driver: format!("{}.{}", version / 1000, version % 1000 / 10),
            ptx: ptx.describe(),
            advice,
            log: String::from_utf8_lossy(&log[..end]).into_owned(),
        })
    }
}
