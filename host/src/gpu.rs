//! A device: its primary context, its name, and the kernels loaded on it.

use crate::driver::{self, Source, check, check_cust};
use crate::error::{Error, Result};
use crate::plan::{Cache, packed};
use crate::ptx::{self, Ptx};
use crate::stream::{Stream, StreamInner};
use cust::context::{Context, CurrentContext};
use cust::device::{Device, DeviceAttribute};
use cust::sys;
use kernels_gpu::Entry;
use kernels_gpu::overlap::OVERLAPS_FROM;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// A GPU. The library works in the device's primary context, the one that PyTorch, cudarc and
/// candle use too.
///
/// A clone is the same GPU. `Send` and `Sync`: any thread may use it, whatever context is current
/// there; the thread's own is put back after each call.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    ordinal: u32,
    name: String,
    capability: u32,
    driver_version: i32,
    emulated: bool,
    overlaps: bool,
    /// Bytes of shared memory that a block can have.
    shared_bytes: u32,
    cache: Cache,
    /// Loaded modules, for the time they are loaded in.
    modules: Mutex<HashMap<&'static str, Module>>,
    /// Kernels by the address of their line in the table.
    functions: RwLock<HashMap<usize, Function>>,
    /// The bytes of dynamic shared memory of those that were asked for them, by the same key.
    dynamic_shared: Mutex<HashMap<usize, u32>>,
    /// Whether multiprocessors are to have shared memory for one block more, by the same key.
    keep_shared: Mutex<HashMap<usize, bool>>,
    /// The stream of synchronous copies, while anything is using it.
    transfers: Mutex<Weak<StreamInner>>,
}

/// The oldest driver that records launches into graphs of which one begins while the one before it ends.
const OVERLAPS_DRIVER: i32 = 12_030;

/// A loaded module; never unloaded while its device is in use.
struct Module(sys::CUmodule);

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
    /// The GPU with this number, by the machine's NVIDIA driver.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::UnsupportedDevice`], [`Error::SmallDevice`],
    /// [`Error::OtherLayouts`]; [`Error::OtherDriver`] after `Gpu::emulated`.
    pub fn new(ordinal: u32) -> Result<Self> {
        driver::choose(Source::Library)?;
        Self::open(ordinal, false)
    }

    /// The emulated GPU with this number, 0 or 1: the same kernels on the CPU, each access to memory
    /// and each barrier checked, very much slower. Its name says what it is.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::OtherDriver`] after [`Gpu::new`] found a driver.
    #[cfg(feature = "emulator")]
    pub fn emulated(ordinal: u32) -> Result<Self> {
        driver::choose(Source::Emulator)?;
        Self::open(ordinal, true)
    }

    fn open(ordinal: u32, emulated: bool) -> Result<Self> {
        // The emulator runs no PTX, but the kernels that this build has.
        if !emulated {
            ptx::check_layouts()?;
        }
        let count = check_cust("cuDeviceGetCount", Device::num_devices())?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let device = check_cust("cuDeviceGet", Device::get_device(ordinal))?;
        let name = check_cust("cuDeviceGetName", device.name())?;
        let attribute =
            |attribute| check_cust("cuDeviceGetAttribute", device.get_attribute(attribute));
        let capability = 10 * attribute(DeviceAttribute::ComputeCapabilityMajor)?
            + attribute(DeviceAttribute::ComputeCapabilityMinor)?;
        let capability = capability as u32;
        let multiprocessors = attribute(DeviceAttribute::MultiprocessorCount)? as usize;
        check_device(&name, capability, multiprocessors)?;
        let mut shared_bytes = 0;
        // One that cust does not name.
        let most = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: writes a number to the pointer it is given.
        check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut shared_bytes, most, device.as_raw())
        })?;
        let cache =
            Cache { bytes: attribute(DeviceAttribute::L2CacheSize)? as usize, multiprocessors };
        let mut driver_version = 0;
        // SAFETY: writes the version to the pointer it is given.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut driver_version) })?;
        let _restored = Restore::current()?;
        let context = check_cust("cuDevicePrimaryCtxRetain", Context::new(device))?;
        Ok(Gpu {
            inner: Arc::new(Inner {
                context,
                ordinal,
                name,
                capability,
                driver_version,
                emulated,
                overlaps: capability >= OVERLAPS_FROM && driver_version >= OVERLAPS_DRIVER,
                shared_bytes: shared_bytes as u32,
                cache,
                dynamic_shared: Mutex::default(),
                keep_shared: Mutex::default(),
                modules: Mutex::default(),
                functions: RwLock::default(),
                transfers: Mutex::default(),
            }),
        })
    }

    /// The device's number.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// The device's name; the emulator's says that it is one.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether kernels are launched while what is before them in their stream ends, and wait for it themselves.
    pub(crate) fn overlaps(&self) -> bool {
        self.inner.overlaps
    }

    /// The second-level cache.
    pub(crate) fn cache(&self) -> Cache {
        self.inner.cache
    }

    /// Whether this is `Gpu::emulated`.
    pub fn is_emulated(&self) -> bool {
        self.inner.emulated
    }

    /// Major and minor compute capability, e.g. (9, 0).
    pub fn compute_capability(&self) -> (u32, u32) {
        (self.inner.capability / 10, self.inner.capability % 10)
    }

    /// A new stream on this device.
    ///
    /// # Errors
    /// [`Error::Driver`] where memory is short.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// The stream of synchronous copies.
    pub(crate) fn transfers(&self) -> Result<Stream> {
        let mut transfers = self.inner.transfers.lock().unwrap_or_else(PoisonError::into_inner);
        match transfers.upgrade() {
            Some(stream) => Ok(Stream::of(stream)),
            None => {
                let stream = Stream::for_transfers(self)?;
                *transfers = stream.downgrade();
                Ok(stream)
            }
        }
    }

    /// Makes the device's context current on this thread, until what it returns is dropped.
    pub(crate) fn bind(&self) -> Result<Restore> {
        let mut restore = Restore::current()?;
        let own = self.inner.context.as_raw();
        if restore.context == own {
            restore.context = std::ptr::null_mut();
        } else {
            check_cust("cuCtxSetCurrent", CurrentContext::set_current(&self.inner.context))?;
        }
        Ok(restore)
    }

    /// The kernel of this line of the table, loading its module if this is its first use. The
    /// device's context is current.
    pub(crate) fn function(&self, entry: &'static Entry) -> Result<Function> {
        let key = std::ptr::from_ref(entry) as usize;
        let known = self.inner.functions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = known.get(&key) {
            return Ok(function);
        }
        drop(known);
        let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match modules.get(entry.module) {
            Some(module) => module,
            None => {
                let ptx = self.ptx(entry)?;
                modules.entry(entry.module).or_insert(self.load(ptx)?)
            }
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
        self.inner.functions.write().unwrap_or_else(PoisonError::into_inner).insert(key, function);
        Ok(function)
    }

    /// The most bytes of dynamic shared memory that a block of this kernel can have, which its launches may ask for
    /// from now on.
    pub(crate) fn dynamic_shared(&self, entry: &'static Entry) -> Result<u32> {
        let key = std::ptr::from_ref(entry) as usize;
        let mut known = self.inner.dynamic_shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&bytes) = known.get(&key) {
            return Ok(bytes);
        }
        let _current = self.bind()?;
        let function = self.function(entry)?;
        let bytes = self.inner.shared_bytes.saturating_sub(function.shared_bytes()?);
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // No more than the device has.
        function.set(attribute, bytes as i32)?;
        known.insert(key, bytes);
        Ok(bytes)
    }

    /// Has multiprocessors keep shared memory for one block of this kernel more than they have registers for, each of `dynamic`
    /// bytes besides its arrays, or as much as the driver finds right: what is left of it is the first-level cache.
    pub(crate) fn keep_shared(
        &self,
        entry: &'static Entry,
        dynamic: u32,
        one_more: bool,
    ) -> Result<()> {
        /// Of each block's shared memory, the driver's.
        const RESERVED: u32 = 1 << 10;
        /// As much as the driver finds right.
        const DEFAULT: i32 = -1;
        let key = std::ptr::from_ref(entry) as usize;
        let mut kept = self.inner.keep_shared.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.get(&key).copied().unwrap_or_default() == one_more {
            return Ok(());
        }
        let _current = self.bind()?;
        let function = self.function(entry)?;
        let mut percent = DEFAULT;
        if one_more {
            let of_block = function.shared_bytes()? + dynamic + RESERVED;
            // One block may have all, but for what the driver has of it.
            let all = self.inner.shared_bytes + RESERVED;
            percent = ((entry.resident + 1) * of_block * 100).div_ceil(all).min(100) as i32;
        }
        let carveout =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        function.set(carveout, percent)?;
        kept.insert(key, one_more);
        Ok(())
    }

    /// What the device has room for, of a kernel that it has registers for so many blocks of on a multiprocessor.
    pub(crate) fn room_for(&self, blocks: u32) -> packed::Device {
        packed::Device {
            multiprocessors: self.inner.cache.multiprocessors,
            shared_bytes: self.inner.shared_bytes as usize + (1 << 10),
            registers_for: blocks as usize,
        }
    }

    /// The PTX of the module of `entry` for this device.
    fn ptx(&self, entry: &'static Entry) -> Result<&'static Ptx> {
        let missing = Error::MissingKernel { name: entry.name, module: entry.module };
        ptx::find(entry.module, self.inner.capability).ok_or(missing)
    }

    /// Has the driver compile a module. cust's own call keeps neither the driver's log nor the code of PTX
    /// that is too new for it. The device's context is current.
    fn load(&self, ptx: &Ptx) -> Result<Module> {
        let text = ptx.text(self.inner.overlaps);
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
            module: ptx.module,
            driver: format!("{}.{}", version / 1000, version % 1000 / 10),
            ptx: ptx.describe(),
            advice,
            log: String::from_utf8_lossy(&log[..end]).into_owned(),
        })
    }
}

/// Refuses a device that the kernels are not compiled for, or that may have room for one block only: one waits for others.
fn check_device(name: &str, capability: u32, multiprocessors: usize) -> Result<()> {
    let (oldest, device) = (ptx::oldest(), name.to_owned());
    if capability < oldest {
        let version = |capability| format!("{}.{}", capability / 10, capability % 10);
        let (expected, got) = (version(oldest), version(capability));
        return Err(Error::UnsupportedDevice { device, expected, got });
    }
    if multiprocessors < 2 {
        return Err(Error::SmallDevice { device, got: multiprocessors });
    }
    Ok(())
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inner.name, self.inner.ordinal)
    }
}

/// Puts a thread's own context back when it is dropped. A thread that had none keeps the library's.
pub(crate) struct Restore {
    context: sys::CUcontext,
}

impl Restore {
    fn current() -> Result<Self> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes the context to the pointer it is given.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        Ok(Restore { context })
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: it was current on this thread.
            let _ = unsafe { sys::cuCtxSetCurrent(self.context) };
        }
    }
}

#[cfg(all(test, feature = "emulator"))]
pub(crate) mod tests {
    use super::*;

    /// The machine's, or the emulator's.
    pub(crate) fn gpu() -> Gpu {
        match Gpu::new(0) {
            Err(Error::NoDriver { .. } | Error::OtherDriver { .. }) => Gpu::emulated(0).unwrap(),
            other => other.unwrap(),
        }
    }

    #[test]
    fn ptx_that_is_too_new_for_the_driver_says_so() {
        let gpu = gpu();
        let text =
            ".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{\nret;\n}\n\0";
        let _current = gpu.bind().unwrap();
        let error = gpu.load(&Ptx::new("mse_f32", 80, text)).err().unwrap();
        let Error::UnsupportedPtx { module, driver, ptx, advice, log } = &error else {
            panic!("expected UnsupportedPtx, got {error}");
        };
        assert_eq!((*module, ptx.as_str()), ("mse_f32", ".version 99.0, .target sm_80"));
        assert!(driver.split('.').all(|number| number.parse::<u32>().is_ok()), "{driver}");
        assert!(advice.contains("driver"), "{advice}");
        assert!(log.contains("99.0"), "the driver's own words are missing: {log}");
    }

    #[test]
    fn a_module_without_the_kernel_says_so() {
        let gpu = gpu();
        let entry = Box::leak(Box::new(Entry {
            name: "mse_sideways_f32",
            module: "mse_f32",
            dtype: kernels_gpu::abi::Dtype::F32,
            block: 32,
            resident: 1,
            barriers: 0,
            args_size: 0,
            run: |_| (),
        }));
        let _current = gpu.bind().unwrap();
        let error = gpu.function(entry).err().unwrap();
        assert_eq!(
            error.to_string(),
            "no kernel mse_sideways_f32; the library holds mse_f32 without it"
        );
    }

    #[test]
    fn a_launch_with_more_shared_memory_than_a_block_can_have_is_refused() {
        use kernels_gpu::abi::{CrossEntropyArgs, Dtype};
        let gpu = gpu();
        let stream = gpu.stream().unwrap();
        let family = &kernels_gpu::kernels::cross_entropy::FORWARD_BACKWARD_LONG;
        let entry = family.entry(Dtype::F32).unwrap();
        let args = std::mem::MaybeUninit::<CrossEntropyArgs>::zeroed();
        let room = gpu.dynamic_shared(entry).unwrap();
        assert!(room >= 48 << 10 && gpu.dynamic_shared(entry).unwrap() == room);
        let shape = crate::plan::Launch {
            blocks: 1,
            threads: 32,
            shared_bytes: room + 16,
            cooperative: false,
        };
        // SAFETY: the launch is refused: the kernel does not run.
        let result = unsafe { crate::launch::launch_entry(&stream, entry, shape, &args) };
        let error = result.err().unwrap().to_string();
        assert!(error.contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
    }

    #[test]
    fn a_cooperative_launch_runs_where_the_device_holds_all_of_its_blocks() {
        use crate::plan::Launch;
        use crate::tensor::Tensor;
        use kernels_gpu::abi::{Dtype, Matrix, PairwiseArgs, reduction};
        use std::num::NonZeroU32;
        let gpu = gpu();
        let stream = gpu.stream().unwrap();
        let len = 8 * 256;
        let input: Vec<f32> = (0..len).map(|index| index as f32).collect();
        let input = Tensor::from_slice(&gpu, [len], &input).unwrap();
        let [target, mut grad] = [(); 2].map(|()| Tensor::<f32>::zeros(&gpu, [len]).unwrap());
        let args = PairwiseArgs {
            input: input.view().memory.matrix(),
            target: target.view().memory.matrix(),
            rows: 1,
            cols: len as u64,
            divisor: 1.0,
            parameter: 0.0,
            reduction: reduction::SCALAR,
            team: NonZeroU32::MIN,
            splits: NonZeroU32::MIN,
            upstream_col_stride: 0,
            loss: Matrix::default(),
            workspace: 0,
            upstream: Matrix::default(),
            grad_input: grad.view_mut().memory.matrix(),
            grad_target: Matrix::default(),
        };
        let entry = kernels_gpu::kernels::mse::BACKWARD.entry(Dtype::F32).unwrap();
        let shape = Launch { blocks: 8, threads: 256, shared_bytes: 0, cooperative: true };
        // SAFETY: the arguments are those of a dense backward pass over the three tensors, which
        // live until the stream is synchronised.
        unsafe { crate::launch::launch_entry(&stream, entry, shape, &args) }.unwrap();
        stream.synchronize().unwrap();
        let expected: Vec<f32> = (0..len).map(|index| 2.0 * index as f32).collect();
        assert_eq!(grad.to_vec().unwrap(), expected);

        let many = Launch { blocks: 1 << 20, ..shape };
        // SAFETY: the launch is refused: the kernel does not run.
        let result = unsafe { crate::launch::launch_entry(&stream, entry, many, &args) };
        let error = result.err().unwrap().to_string();
        assert!(error.contains("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"), "{error}");
    }

    #[test]
    fn shared_memory_for_one_block_more_is_kept_as_long_as_it_is_wanted() {
        use kernels_gpu::abi::Dtype;
        let gpu = gpu();
        let _current = gpu.bind().unwrap();
        let family = &kernels_gpu::kernels::cross_entropy::FORWARD_SHORT_WHOLE;
        let entry = family.entry(Dtype::F32).unwrap();
        let kept = || {
            let mut percent = 0;
            let which =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: the kernel is loaded; the driver writes a number to the pointer it is given.
            let result = unsafe {
                sys::cuFuncGetAttribute(&mut percent, which, gpu.function(entry).unwrap().0)
            };
            check("cuFuncGetAttribute", result).unwrap();
            percent
        };
        let found_right = kept();
        for (dynamic, percent) in [(4 << 10, 1..=99), (1 << 20, 100..=100)] {
            gpu.keep_shared(entry, dynamic, true).unwrap();
            assert!(percent.contains(&kept()), "{} of {percent:?}", kept());
            gpu.keep_shared(entry, dynamic, false).unwrap();
            assert_eq!(kept(), found_right);
        }
    }

    #[test]
    fn a_device_is_refused_by_what_it_lacks() {
        let (old, small) = (check_device("A", 75, 72), check_device("B", 80, 1));
        assert_eq!(
            old.unwrap_err().to_string(),
            "A: expected compute capability 8.0 or later, got 7.5"
        );
        let expected = "B: expected 2 multiprocessors at least, got 1";
        assert_eq!(small.unwrap_err().to_string(), expected);
        assert!(check_device("C", 80, 2).is_ok());
    }

    /// The emulator runs one kernel behind another whatever is asked of it, so that it has to notice.
    #[test]
    fn a_kernel_that_would_not_wait_for_the_one_before_is_refused() {
        use crate::driver::{LaunchAttribute, LaunchConfig};
        let gpu = gpu();
        if !gpu.is_emulated() {
            return;
        }
        assert!(gpu.overlaps());
        let stream = gpu.stream().unwrap();
        let _current = gpu.bind().unwrap();
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let text = ptx::find("mse_f32", 80).unwrap().text(false);
        let none = std::ptr::null_mut::<c_void>();
        let mut args = std::mem::MaybeUninit::<kernels_gpu::abi::PairwiseArgs>::zeroed();
        let mut params = [args.as_mut_ptr().cast::<c_void>()];
        let attribute = LaunchAttribute::OVERLAPS;
        let config = LaunchConfig {
            grid: [1; 3],
            block: [32, 1, 1],
            shared_bytes: 0,
            stream: stream.handle(),
            attributes: &attribute,
            count: 1,
        };
        // SAFETY: the text ends in a zero byte, and the pointers are to what is written; the launch is refused, the kernel does
        // not run.
        let result = unsafe {
            let image = text.as_ptr().cast();
            let load = sys::cuModuleLoadDataEx(&mut module, image, 0, none.cast(), none.cast());
            check("cuModuleLoadDataEx", load).unwrap();
            let get = sys::cuModuleGetFunction(&mut function, module, c"mse_forward_f32".as_ptr());
            check("cuModuleGetFunction", get).unwrap();
            sys::cuLaunchKernelEx(&config.raw(), function, params.as_mut_ptr(), none.cast())
        };
        assert_eq!(result, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    }

    #[test]
    fn the_context_of_the_thread_is_put_back() {
        // The primary context of the emulator's second device.
        let (gpu, other) = (gpu(), std::ptr::without_provenance_mut(0x101));
        if !gpu.is_emulated() {
            return;
        }
        // SAFETY: the emulator knows it, and refuses others.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(other) }).unwrap();
        drop(gpu.bind().unwrap());
        assert_eq!(Restore::current().unwrap().context, other);
    }
}
