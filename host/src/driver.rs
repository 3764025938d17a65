//! The driver, found at run time.
//!
//! `cust` links to the driver's functions by name. This module defines them, so that no program
//! needs `libcuda` to link or to start: each forwards through one table, filled once, from the
//! machine's `libcuda.so.1` or from the emulator where that was asked for. The library's own calls
//! go through `cust::sys`, and so through the same table.

use crate::error::{DriverError, Error, Result};
use cust::sys::*;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::sync::{Mutex, OnceLock};

/// Where the driver's functions come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The machine's driver.
    Library,
    /// The emulator.
    #[cfg_attr(not(feature = "emulator"), allow(dead_code))]
    Emulator,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::Library => "NVIDIA driver",
            Source::Emulator => "emulator",
        }
    }
}

/// What a call returns where there is no driver.
const NO_DRIVER: u32 = CUDA_ERROR_NO_DEVICE;
/// What a call returns that the driver does not have.
const NOT_SUPPORTED: u32 = 801;
const CUDA_ERROR_NO_DEVICE: u32 = 100;

/// A launch with attributes, `CUlaunchConfig` of `cuda.h`, which `cust::sys` does not declare.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: CUstream,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) count: c_uint,
}

/// `CUlaunchAttribute`: which, and 64 bytes of value.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    which: c_uint,
    value: [u64; 8],
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may begin while the one before it in the stream ends.
    /// It has to wait for that one itself, before it touches memory.
    pub(crate) const OVERLAPS: Self = LaunchAttribute { which: 6, value: [1, 0, 0, 0, 0, 0, 0, 0] };
    /// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`: all blocks are resident at a time, so that each may wait
    /// for any other. The driver refuses more blocks than the device holds.
    pub(crate) const COOPERATIVE: Self =
        LaunchAttribute { which: 2, value: [1, 0, 0, 0, 0, 0, 0, 0] };
}

thread_local! {
    /// The last code on this thread that `cust::sys` has no name for.
    static UNNAMED_CODE: Cell<u32> = const { Cell::new(0) };
}

/// Defines the table, and a C function for each of its lines.
macro_rules! driver_functions {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)+) => {
        #[allow(non_snake_case)]
        struct Table {
            source: Source,
            $($name: Option<unsafe extern "C" fn($($type),*) -> u32>,)+
        }

        impl Table {
            /// # Safety
            /// `find` returns null or the driver's function of the name it is given.
            unsafe fn new(source: Source, find: impl Fn(&str) -> *const c_void) -> Self {
                Table {
                    source,
                    // SAFETY: the caller's condition; the signatures are those of `cuda.h`, and a
                    // null pointer is `None`.
                    $($name: unsafe {
                        std::mem::transmute::<
                            *const c_void,
                            Option<unsafe extern "C" fn($($type),*) -> u32>,
                        >(find(stringify!($name)))
                    },)+
                }
            }
        }

        pub(crate) mod functions {
            use super::*;
            $(
                /// Forwards to the driver's function of this name.
                ///
                /// # Safety
                /// As the driver's.
                #[unsafe(no_mangle)]
                pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
                    let code = match table() {
                        None => NO_DRIVER,
                        Some(table) => match table.$name {
                            None => NOT_SUPPORTED,
                            // SAFETY: the caller's conditions are the driver's.
                            Some(function) => unsafe { function($($arg),*) },
                        },
                    };
                    result(code)
                }
            )+
        }
    };
}

// What cust's devices, contexts, modules, streams, events and memory call, and what this library
// does besides.
driver_functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(code: c_uint, text: *mut *const c_char);
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetFlags(flags: *mut c_uint);
    fn cuCtxSynchronize();
    fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
    fn cuCtxGetCacheConfig(config: *mut CUfunc_cache);
    fn cuCtxSetCacheConfig(config: CUfunc_cache);
    fn cuCtxGetSharedMemConfig(config: *mut CUsharedconfig);
    fn cuCtxSetSharedMemConfig(config: CUsharedconfig);
    fn cuCtxGetLimit(value: *mut usize, limit: CUlimit);
    fn cuCtxSetLimit(limit: CUlimit, value: usize);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuModuleLoad(module: *mut CUmodule, path: *const c_char);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleGetGlobal_v2(
        address: *mut CUdeviceptr,
        bytes: *mut usize,
        module: CUmodule,
        name: *const c_char,
    );
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    fn cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache);
    fn cuFuncSetSharedMemConfig(function: CUfunction, config: CUsharedconfig);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        block: c_int,
        shared_bytes: usize,
    );
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: *mut usize,
        function: CUfunction,
        blocks: c_int,
        block: c_int,
    );
    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        block: *mut c_int,
        function: CUfunction,
        shared_bytes_of: CUoccupancyB2DSize,
        shared_bytes: usize,
        limit: c_int,
    );
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(executable: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize);
    fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: CUmem_advise, device: CUdevice);
    fn cuMemPrefetchAsync(address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8_v2(start: CUdeviceptr, value: c_uchar, count: usize);
    fn cuMemsetD8Async(start: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
    fn cuMemsetD16_v2(start: CUdeviceptr, value: u16, count: usize);
    fn cuMemsetD16Async(start: CUdeviceptr, value: u16, count: usize, stream: CUstream);
    fn cuMemsetD32_v2(start: CUdeviceptr, value: c_uint, count: usize);
    fn cuMemsetD32Async(start: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// The table, filled from the machine's driver if nothing has filled it yet.
fn table() -> Option<&'static Table> {
    TABLE.get().or_else(|| {
        choose(Source::Library).ok()?;
        TABLE.get()
    })
}

/// Fills the table from `source`, unless it is already, and initialises the driver.
pub(crate) fn choose(source: Source) -> Result<()> {
    static CHOOSING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = CHOOSING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let chosen = match TABLE.get() {
        Some(table) => table,
        None => {
            let table = open(source)?;
            TABLE.get_or_init(|| table)
        }
    };
    if chosen.source != source {
        return Err(Error::OtherDriver { chosen: chosen.source.name(), asked: source.name() });
    }
    Ok(())
}

/// The functions of an initialised driver.
fn open(source: Source) -> Result<Table> {
    let table = match source {
        Source::Library => {
            let no_driver = |reason: String| Error::NoDriver { reason };
            // SAFETY: loading the driver runs its initialisers, which is what a program that links
            // to it does.
            let library = unsafe { libloading::Library::new("libcuda.so.1") }
                .map_err(|error| no_driver(error.to_string()))?;
            // The driver stays loaded: its functions are used to the end of the process.
            let library = Box::leak(Box::new(library));
            // SAFETY: the library's function of this name, or null.
            unsafe {
                Table::new(source, |name| {
                    library
                        .get::<*const c_void>(name.as_bytes())
                        .map_or(std::ptr::null(), |symbol| *symbol)
                })
            }
        }
        Source::Emulator => {
            #[cfg(not(feature = "emulator"))]
            unreachable!("asked for by a function of that feature alone");
            #[cfg(feature = "emulator")]
            // SAFETY: the emulator's function of this name, or null.
            unsafe {
                Table::new(source, |name| emulator::symbol(name).unwrap_or(std::ptr::null()))
            }
        }
    };
    // SAFETY: takes no pointers.
    let code = table.cuInit.map_or(NOT_SUPPORTED, |init| unsafe { init(0) });
    if code != 0 {
        return Err(Error::NoDriver {
            reason: format!("libcuda.so.1 is there, but cuInit returns {code}{}", meaning(code)),
        });
    }
    Ok(table)
}

/// What the codes of `cuInit` mean that come of a machine on which there is nothing to be had.
fn meaning(code: u32) -> &'static str {
    match code {
        100 => ", CUDA_ERROR_NO_DEVICE: no GPU, or CUDA_VISIBLE_DEVICES hides it",
        802 => ", CUDA_ERROR_SYSTEM_NOT_READY",
        803 => ", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        804 => ", CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        999 => ", CUDA_ERROR_UNKNOWN",
        _ => "",
    }
}

/// A driver's code as the type that `cust::sys` declares. A code that the type does not have would
/// be undefined behaviour: it becomes "unknown", and [`check`] reports the code itself.
fn result(code: u32) -> CUresult {
    let named = matches!(code,
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400 | 401 | 500 | 600
        | 700..=702 | 704 | 705 | 708..=720 | 800..=809 | 900..=911 | 999);
    let code = if named {
        code
    } else {
        UNNAMED_CODE.set(code);
        999
    };
    // SAFETY: the type has every code that is `named`, and 999.
    unsafe { std::mem::transmute::<u32, CUresult>(code) }
}

/// Turns the result of the driver's function `call` into an error.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(error(call, result as u32).into()) }
}

/// Turns the result of `cust`'s function that wraps `call` into an error.
pub(crate) fn check_cust<T>(call: &'static str, result: cust::error::CudaResult<T>) -> Result<T> {
    result.map_err(|code| error(call, code as u32).into())
}

fn error(call: &'static str, code: u32) -> DriverError {
    let code = if code == 999 && UNNAMED_CODE.get() != 0 { UNNAMED_CODE.take() } else { code };
    let text = |lookup: Option<unsafe extern "C" fn(c_uint, *mut *const c_char) -> u32>| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant string, or nothing.
        if lookup.is_some_and(|lookup| unsafe { lookup(code, &mut text) } == 0) && !text.is_null() {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        }
    };
    let (name, text) = TABLE.get().map_or_else(
        || ("CUDA_ERROR_NO_DEVICE".to_owned(), "no driver".to_owned()),
        |table| (text(table.cuGetErrorName), text(table.cuGetErrorString)),
    );
    #[cfg(feature = "emulator")]
    let report = emulator::take_report();
    #[cfg(not(feature = "emulator"))]
    let report = None;
    DriverError { call, code, name, text, report }
}
