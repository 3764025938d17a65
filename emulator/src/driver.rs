//! The driver's calls, with the names and signatures of `cuda.h`.
//!
//! Calls that nothing has needed yet are missing: [`symbol`] does not find them, as `dlsym` would
//! not.

use crate::fault::Fault;
use crate::injection;
use crate::kernel::Launch;
use crate::memory;
use crate::objects::{
    DEVICES, EVENTS, FUNCTIONS, Function, GRAPHS, MODULES, Module, Operation, RETAINED, Recorded,
    STREAMS, Stream,
};
use crate::order;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Compute capability 9.0, so that PTX for every supported architecture runs here.
const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);
/// The third device has as few multiprocessors as the library accepts, so kernels are launched in
/// other grids there.
const MULTIPROCESSORS: [i32; DEVICES as usize] = [132, 132, 2];
const MEMORY: usize = 1 << 40;
/// Shared memory of a block, by default and on request. The second device has less, so that tests
/// can compare results.
const SHARED: u32 = 48 << 10;
const SHARED_OPTIN: [u32; DEVICES as usize] = [227 << 10, 99 << 10, 227 << 10];
/// The bytes of each block's shared memory that the driver reserves.
const RESERVED_SHARED: u32 = 1 << 10;
/// How many threads are resident on a multiprocessor.
const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
/// CUDA 13.0, and its version of PTX.
const VERSION: c_int = 13000;
const NEWEST_PTX: f64 = 9.0;
/// Handles of the primary contexts are this plus the device.
const CONTEXTS: usize = 0x100;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const INVALID_PTX: u32 = 218;
const UNSUPPORTED_PTX_VERSION: u32 = 222;
const INVALID_HANDLE: u32 = 400;
const NOT_FOUND: u32 = 500;
const COOPERATIVE_LAUNCH_TOO_LARGE: u32 = 720;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURE_INVALIDATED: u32 = 901;
const CAPTURE_ISOLATION: u32 = 905;
const CAPTURED_EVENT: u32 = 907;

/// Numbers of `CUfunction_attribute`.
const SHARED_SIZE_BYTES: c_int = 1;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
const PREFERRED_SHARED_MEMORY_CARVEOUT: c_int = 9;

type Result = std::result::Result<(), u32>;

/// Codes that calls return here, with the driver's names and texts.
const ERRORS: &[(u32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (INVALID_PTX, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (
        UNSUPPORTED_PTX_VERSION,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the provided PTX was compiled with an unsupported toolchain.",
    ),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (
        crate::fault::ILLEGAL_ADDRESS,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (crate::fault::MISALIGNED_ADDRESS, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (crate::fault::LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (
        COOPERATIVE_LAUNCH_TOO_LARGE,
        c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"too many blocks in cooperative launch",
    ),
    (
        CAPTURE_UNSUPPORTED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (
        CAPTURE_INVALIDATED,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        CAPTURE_ISOLATION,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        CAPTURED_EVENT,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
];

thread_local! {
    /// The current context of this CPU thread; 0 is none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// Captures that this CPU thread has begun and not ended. It may not allocate or wait until it
    /// ends them.
    static CAPTURES: Cell<u32> = const { Cell::new(0) };
    /// The thread's capture mode, which may allow that anyway.
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: c_int = 2;

/// Runs a call of `function` unless a test makes it fail. A panic does not cross into the caller.
fn call(function: &'static str, body: impl FnOnce() -> Result) -> u32 {
    if let Err(fault) = injection::before_call(function) {
        return fault.tell();
    }
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => crate::fault::LAUNCH_FAILED,
    }
}

/// Writes a result through a caller's pointer.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's condition.
    unsafe { to.write(value) };
    Ok(())
}

/// The device of the current context.
fn current_device() -> std::result::Result<i32, u32> {
    match CURRENT.get() {
        0 => Err(INVALID_CONTEXT),
        context => Ok((context - CONTEXTS) as i32),
    }
}

/// The stream of a handle; the small handles are the default stream of the current context.
fn stream(handle: usize) -> std::result::Result<Arc<Stream>, u32> {
    static DEFAULT: Mutex<Vec<(i32, Arc<Stream>)>> = Mutex::new(Vec::new());
    if handle > 2 {
        return STREAMS.get(handle).ok_or(INVALID_HANDLE);
    }
    let device = current_device()?;
    let mut streams = DEFAULT.lock().unwrap();
    if let Some((_, stream)) = streams.iter().find(|(of, _)| *of == device) {
        return Ok(Arc::clone(stream));
    }
    let stream = Arc::new(Stream::default());
    streams.push((device, Arc::clone(&stream)));
    Ok(stream)
}

/// Refuses calls that might wait while this CPU thread captures.
fn not_capturing() -> Result {
    let allowed = CAPTURES.get() == 0 || CAPTURE_MODE.get() == CAPTURE_MODE_RELAXED;
    if allowed { Ok(()) } else { Err(CAPTURE_UNSUPPORTED) }
}

/// Refuses bytes that are not in one allocation.
fn allocated(start: u64, bytes: usize) -> Result {
    if bytes == 0 || memory::find(start as usize, bytes).is_some() {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// A copy between the host and the device, which waits for the stream's turn.
///
/// # Safety
/// `from` and `to` are valid for `bytes`.
unsafe fn copy_now(stream: &Stream, from: usize, to: usize, bytes: usize) -> Result {
    if stream.is_capturing() {
        stream.invalidate_capture();
        return Err(CAPTURE_UNSUPPORTED);
    }
    // SAFETY: the caller's condition.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    Ok(())
}

/// Writes to the caller's buffer for errors, if it gave one.
///
/// # Safety
/// `names` and `values` are `cuModuleLoadDataEx`'s, of `count` options.
unsafe fn log(count: c_uint, names: *mut c_uint, values: *mut *mut c_void, text: &str) {
    const ERROR_LOG_BUFFER: c_uint = 5;
    const ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
    let value = |wanted| {
        // SAFETY: the caller's condition.
        (0..count as usize)
            .find_map(|index| unsafe { (*names.add(index) == wanted).then(|| *values.add(index)) })
    };
    if let (Some(buffer), Some(size)) =
        (value(ERROR_LOG_BUFFER), value(ERROR_LOG_BUFFER_SIZE_BYTES))
    {
        let len = text.len().min((size as usize).saturating_sub(1));
        // SAFETY: the buffer has `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), len);
            buffer.cast::<u8>().add(len).write(0);
        }
    }
}

/// The shared arrays that a module's text declares, without those of dynamic size, and their bytes.
fn shared_arrays(text: &str) -> Vec<(&str, u32)> {
    let declarations = text.lines().filter_map(|line| line.strip_prefix(".shared .align 16 .b64 "));
    declarations
        .filter_map(|declaration| {
            let (name, len) = declaration.split_once('[')?;
            Some((name, 8 * len.strip_suffix("];")?.parse::<u32>().ok()?))
        })
        .collect()
}

/// `CUlaunchConfig` of `cuda.h`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
struct LaunchAttribute {
    which: c_uint,
    value: [u64; 8],
}

/// The attributes that are known.
const COOPERATIVE: c_uint = 2;
const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

impl LaunchAttribute {
    /// Its value, where that is a C `int`: of the bytes, the first four.
    fn int(&self) -> c_int {
        self.value[0] as c_int
    }
}

/// How many blocks with this many threads and bytes of shared memory are resident on a device at
/// the same time.
///
/// Registers do not count, because the emulator does not know how many the compiler gives to a
/// kernel.
pub(crate) fn resident_blocks(device: i32, threads: u32, shared_bytes: u32) -> u32 {
    // One block may use all of it, except what the driver reserves.
    let shared = SHARED_OPTIN[device as usize] + RESERVED_SHARED;
    let of_multiprocessor = BLOCKS_PER_MULTIPROCESSOR
        .min(THREADS_PER_MULTIPROCESSOR / threads)
        .min(shared / (shared_bytes + RESERVED_SHARED));
    MULTIPROCESSORS[device as usize] as u32 * of_multiprocessor
}

macro_rules! driver {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)+) => {
        $(
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
                call(stringify!($name), || $body)
            }
        )+

        /// The address of a driver function, by its exported name.
        pub fn symbol(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => {
                    let function: unsafe extern "C" fn($($type),*) -> u32 = $name;
                    Some(function as *const c_void)
                })+
                _ => None,
            }
        }
    };
}

// The caller is responsible for every pointer that it passes, as with the real driver.
#[allow(clippy::undocumented_unsafe_blocks)]
mod calls {
    use super::*;

    driver! {
        fn cuInit(flags: c_uint) {
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            let refused = |code| move |report| Fault { code, report }.tell();
            order::seed().map_err(refused(INVALID_VALUE))?;
            memory::reserve().map(drop).map_err(refused(OUT_OF_MEMORY))
        }

        fn cuDriverGetVersion(version: *mut c_int) {
            unsafe { put(version, VERSION) }
        }

        fn cuGetErrorString(code: u32, text: *mut *const c_char) {
            let known = ERRORS.iter().find(|(known, ..)| *known == code).ok_or(INVALID_VALUE)?;
            unsafe { put(text, known.2.as_ptr()) }
        }

        fn cuGetErrorName(code: u32, text: *mut *const c_char) {
            let known = ERRORS.iter().find(|(known, ..)| *known == code).ok_or(INVALID_VALUE)?;
            unsafe { put(text, known.1.as_ptr()) }
        }

        fn cuDeviceGetCount(count: *mut c_int) {
            unsafe { put(count, DEVICES) }
        }

        fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
            if !(0..DEVICES).contains(&ordinal) {
                return Err(INVALID_DEVICE);
            }
            unsafe { put(device, ordinal) }
        }

        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
            if !(0..DEVICES).contains(&device) {
                return Err(INVALID_DEVICE);
            }
            let text = crate::DEVICE_NAME.as_bytes();
            if name.is_null() || (len as usize) <= text.len() {
                return Err(INVALID_VALUE);
            }
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast::<u8>(), text.len());
                name.add(text.len()).write(0);
            }
            Ok(())
        }

        fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
            unsafe { put(bytes, MEMORY) }
        }

        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
            if !(0..DEVICES).contains(&device) {
                return Err(INVALID_DEVICE);
            }
            // The numbers of CUdevice_attribute.
            let number = match attribute {
                1 => 1024,                  // MAX_THREADS_PER_BLOCK
                5 => i32::MAX,              // MAX_GRID_DIM_X
                10 => 32,                   // WARP_SIZE
                16 => MULTIPROCESSORS[device as usize],
                38 => 1 << 16,              // L2_CACHE_SIZE: rows of tests are more than it holds
                39 => THREADS_PER_MULTIPROCESSOR as i32,
                75 => COMPUTE_CAPABILITY.0,
                76 => COMPUTE_CAPABILITY.1,
                // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
                81 => (SHARED_OPTIN[device as usize] + RESERVED_SHARED) as i32,
                95 => 1,                    // COOPERATIVE_LAUNCH
                97 => SHARED_OPTIN[device as usize] as i32, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
                106 => BLOCKS_PER_MULTIPROCESSOR as i32,
                111 => RESERVED_SHARED as i32,
                115 => 0,                   // MEMORY_POOLS_SUPPORTED
                _ => return Err(INVALID_VALUE),
            };
            unsafe { put(value, number) }
        }

        fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
            if !(0..DEVICES).contains(&device) {
                return Err(INVALID_DEVICE);
            }
            unsafe { put(context, CONTEXTS + device as usize)? };
            RETAINED[device as usize].fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
            let retained = RETAINED.get(device as usize).ok_or(INVALID_DEVICE)?;
            let one_less = |count: usize| count.checked_sub(1);
            let released = retained.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
            released.map(drop).map_err(|_| INVALID_CONTEXT)
        }

        fn cuCtxSetCurrent(context: usize) {
            if context != 0 && !(CONTEXTS..CONTEXTS + DEVICES as usize).contains(&context) {
                return Err(INVALID_CONTEXT);
            }
            CURRENT.set(context);
            Ok(())
        }

        fn cuCtxGetCurrent(context: *mut usize) {
            unsafe { put(context, CURRENT.get()) }
        }

        fn cuCtxGetDevice(device: *mut c_int) {
            unsafe { put(device, current_device()?) }
        }

        // Work is done when it is queued, and each stream reports its own faults.
        fn cuCtxSynchronize() {
            current_device()?;
            not_capturing()
        }

        // Nothing to wait for here either.
        fn cuCtxRecordEvent(context: usize, event: usize) {
            if !(CONTEXTS..CONTEXTS + DEVICES as usize).contains(&context) {
                return Err(INVALID_CONTEXT);
            }
            not_capturing()?;
            let recorded = Recorded { at: Instant::now(), captured: false, fault: None };
            *EVENTS.get(event).ok_or(INVALID_HANDLE)?.lock().unwrap() = Some(recorded);
            Ok(())
        }

        fn cuCtxWaitEvent(context: usize, event: usize) {
            if !(CONTEXTS..CONTEXTS + DEVICES as usize).contains(&context) {
                return Err(INVALID_CONTEXT);
            }
            not_capturing()?;
            EVENTS.get(event).map(drop).ok_or(INVALID_HANDLE)
        }

        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
            unsafe {
                put(free, MEMORY.saturating_sub(memory::in_use()))?;
                put(total, MEMORY)
            }
        }

        fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
            current_device()?;
            if bytes == 0 {
                return Err(INVALID_VALUE);
            }
            not_capturing()?;
            // There are addresses for more, but not enough memory.
            if bytes > MEMORY.saturating_sub(memory::in_use()) {
                return Err(OUT_OF_MEMORY);
            }
            let start = memory::allocate(bytes).ok_or(OUT_OF_MEMORY)?;
            unsafe { put(address, start as u64) }
        }

        fn cuMemFree_v2(address: u64) {
            current_device()?;
            not_capturing()?;
            if address == 0 || memory::free(address as usize) { Ok(()) } else { Err(INVALID_VALUE) }
        }

        fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, handle: usize) {
            current_device()?;
            allocated(to, bytes)?;
            unsafe {
                copy_now(&*stream(handle)?, from, to as usize, bytes)?;
                memory::mark_written(to as usize, bytes);
            }
            Ok(())
        }

        fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, handle: usize) {
            current_device()?;
            allocated(from, bytes)?;
            unsafe { copy_now(&*stream(handle)?, from as usize, to, bytes) }
        }

        fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, handle: usize) {
            allocated(to, bytes)?;
            allocated(from, bytes)?;
            stream(handle)?.queue(Operation::Copy { from: from as usize, to: to as usize, bytes });
            Ok(())
        }

        fn cuMemsetD8Async(start: u64, value: u8, bytes: usize, handle: usize) {
            current_device()?;
            allocated(start, bytes)?;
            stream(handle)?.queue(Operation::Fill { start: start as usize, value, bytes });
            Ok(())
        }

        fn cuStreamCreate(handle: *mut usize, _flags: c_uint) {
            current_device()?;
            unsafe { put(handle, STREAMS.add(Stream::default())) }
        }

        fn cuStreamCreateWithPriority(handle: *mut usize, _flags: c_uint, _priority: c_int) {
            current_device()?;
            unsafe { put(handle, STREAMS.add(Stream::default())) }
        }

        fn cuStreamDestroy_v2(handle: usize) {
            STREAMS.remove(handle).map(drop).ok_or(INVALID_HANDLE)
        }

        fn cuStreamSynchronize(handle: usize) {
            current_device()?;
            let stream = stream(handle)?;
            if stream.is_capturing() {
                stream.invalidate_capture();
                return Err(CAPTURE_UNSUPPORTED);
            }
            not_capturing()?;
            stream.synchronize()
        }

        // When an event is recorded, its stream has done all earlier work, so there is nothing to
        // wait for. A fault before the event also puts the waiting stream in error; on a GPU it
        // would affect every stream. Otherwise work could read what a failed kernel has not
        // written, without an error.
        fn cuStreamWaitEvent(handle: usize, event: usize, _flags: c_uint) {
            current_device()?;
            let (stream, event) = (stream(handle)?, EVENTS.get(event).ok_or(INVALID_HANDLE)?);
            let event = event.lock().unwrap();
            let captured = event.as_ref().is_some_and(|event| event.captured);
            match (stream.is_capturing(), captured) {
                (false, false) => {
                    if let Some(fault) = event.as_ref().and_then(|event| event.fault.clone()) {
                        stream.note_fault(fault);
                    }
                    Ok(())
                }
                (true, true) => Ok(()),
                (true, false) => {
                    stream.invalidate_capture();
                    Err(CAPTURE_ISOLATION)
                }
                // The driver would let the stream join the capture, which no test has needed.
                (false, true) => Err(CAPTURE_UNSUPPORTED),
            }
        }

        fn cuStreamIsCapturing(handle: usize, status: *mut c_int) {
            unsafe { put(status, c_int::from(stream(handle)?.is_capturing())) }
        }

        fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
            if mode.is_null() {
                return Err(INVALID_VALUE);
            }
            unsafe { mode.write(CAPTURE_MODE.replace(mode.read())) };
            Ok(())
        }

        fn cuStreamBeginCapture_v2(handle: usize, _mode: c_int) {
            // The default stream waits for others, so it cannot be captured.
            if handle < 2 || !stream(handle)?.begin_capture() {
                return Err(CAPTURE_UNSUPPORTED);
            }
            CAPTURES.set(CAPTURES.get() + 1);
            Ok(())
        }

        fn cuStreamEndCapture(handle: usize, graph: *mut usize) {
            let (recorded, valid) = stream(handle)?.end_capture().ok_or(INVALID_VALUE)?;
            CAPTURES.set(CAPTURES.get().saturating_sub(1));
            if !valid {
                return Err(CAPTURE_INVALIDATED);
            }
            unsafe { put(graph, GRAPHS.add(recorded)) }
        }

        fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) {
            let graph = GRAPHS.get(graph).ok_or(INVALID_HANDLE)?;
            unsafe { put(executable, GRAPHS.add(graph.as_ref().clone())) }
        }

        fn cuGraphLaunch(executable: usize, handle: usize) {
            let (graph, stream) = (GRAPHS.get(executable).ok_or(INVALID_HANDLE)?, stream(handle)?);
            for operation in graph.iter() {
                stream.queue(operation.clone());
            }
            Ok(())
        }

        fn cuGraphExecDestroy(executable: usize) {
            GRAPHS.remove(executable).map(drop).ok_or(INVALID_HANDLE)
        }

        fn cuGraphDestroy(graph: usize) {
            GRAPHS.remove(graph).map(drop).ok_or(INVALID_HANDLE)
        }

        fn cuEventCreate(event: *mut usize, _flags: c_uint) {
            current_device()?;
            unsafe { put(event, EVENTS.add(Mutex::new(None))) }
        }

        fn cuEventRecord(event: usize, handle: usize) {
            let stream = stream(handle)?;
            let (captured, fault) = (stream.is_capturing(), stream.fault());
            let recorded = Recorded { at: Instant::now(), captured, fault };
            *EVENTS.get(event).ok_or(INVALID_HANDLE)?.lock().unwrap() = Some(recorded);
            Ok(())
        }

        fn cuEventSynchronize(event: usize) {
            let event = EVENTS.get(event).ok_or(INVALID_HANDLE)?;
            let event = event.lock().unwrap();
            let Some(recorded) = event.as_ref() else { return Ok(()) };
            if recorded.captured {
                return Err(CAPTURED_EVENT);
            }
            not_capturing()?;
            recorded.fault.clone().map_or(Ok(()), |fault| Err(fault.tell()))
        }

        fn cuEventQuery(event: usize) {
            let event = EVENTS.get(event).ok_or(INVALID_HANDLE)?;
            let event = event.lock().unwrap();
            let Some(recorded) = event.as_ref() else { return Ok(()) };
            if recorded.captured {
                return Err(CAPTURED_EVENT);
            }
            not_capturing()?;
            recorded.fault.as_ref().map_or(Ok(()), |fault| Err(fault.code))
        }

        fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
            let time = |event| {
                let at = |event: Arc<Mutex<Option<Recorded>>>| {
                    event.lock().unwrap().as_ref().map(|recorded| recorded.at)
                };
                EVENTS.get(event).and_then(at).ok_or(INVALID_HANDLE)
            };
            let elapsed = time(end)?.saturating_duration_since(time(start)?);
            unsafe { put(milliseconds, elapsed.as_secs_f32() * 1e3) }
        }

        fn cuEventDestroy_v2(event: usize) {
            EVENTS.remove(event).map(drop).ok_or(INVALID_HANDLE)
        }

        fn cuModuleLoadDataEx(
            module: *mut usize,
            image: *const c_char,
            options: c_uint,
            names: *mut c_uint,
            values: *mut *mut c_void,
        ) {
            current_device()?;
            not_capturing()?;
            if image.is_null() {
                return Err(INVALID_VALUE);
            }
            let text = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| INVALID_PTX)?;
            let version = text.lines().find_map(|line| line.strip_prefix(".version "));
            if version.and_then(|version| version.trim().parse().ok()) > Some(NEWEST_PTX) {
                let version = version.unwrap_or_default();
                let report = format!(
                    "Unsupported .version {version}; current version is '{NEWEST_PTX:.1}'"
                );
                unsafe { log(options, names, values, &report) };
                return Err(UNSUPPORTED_PTX_VERSION);
            }
            let arrays = shared_arrays(text);
            let entries = text
                .split(".visible .entry ")
                .skip(1)
                .map(|entry| {
                    let name = entry.split('(').next().unwrap_or_default();
                    let bytes = |&(array, bytes)| if entry.contains(array) { bytes } else { 0 };
                    let static_shared = arrays.iter().map(bytes).sum();
                    let waits = entry.contains("griddepcontrol.wait;");
                    Ok((kernels_gpu::find(name).ok_or(INVALID_PTX)?, static_shared, waits))
                })
                .collect::<std::result::Result<Vec<_>, u32>>()?;
            if entries.is_empty() {
                return Err(INVALID_PTX);
            }
            unsafe { put(module, MODULES.add(Module { entries })) }
        }

        fn cuModuleUnload(module: usize) {
            MODULES.remove(module).ok_or(INVALID_HANDLE)?;
            FUNCTIONS.remove_where(|function| function.module == module);
            Ok(())
        }

        fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
            let handle = module;
            let module = MODULES.get(module).ok_or(INVALID_HANDLE)?;
            let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
            let found = module.entries.iter().find(|(entry, ..)| entry.name == name);
            let &(entry, static_shared, waits) = found.ok_or(NOT_FOUND)?;
            let max_dynamic_shared = AtomicU32::new(SHARED - static_shared);
            let carveout = AtomicI32::new(-1);
            let found = Function {
                entry,
                module: handle,
                static_shared,
                waits,
                max_dynamic_shared,
                carveout,
            };
            unsafe { put(function, FUNCTIONS.add(found)) }
        }

        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) {
            let function = FUNCTIONS.get(function).ok_or(INVALID_HANDLE)?;
            let number = match attribute {
                SHARED_SIZE_BYTES => function.static_shared as c_int,
                MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                    function.max_dynamic_shared.load(Ordering::Relaxed) as c_int
                }
                PREFERRED_SHARED_MEMORY_CARVEOUT => function.carveout.load(Ordering::Relaxed),
                _ => return Err(INVALID_VALUE),
            };
            unsafe { put(value, number) }
        }

        fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
            let function = FUNCTIONS.get(function).ok_or(INVALID_HANDLE)?;
            let most = SHARED_OPTIN[current_device()? as usize] - function.static_shared;
            match (attribute, u32::try_from(value)) {
                (MAX_DYNAMIC_SHARED_SIZE_BYTES, Ok(bytes)) if bytes <= most => {
                    function.max_dynamic_shared.store(bytes, Ordering::Relaxed);
                    Ok(())
                }
                // This percentage is only a hint, and the emulator has no cache.
                (PREFERRED_SHARED_MEMORY_CARVEOUT, _) if (-1..=100).contains(&value) => {
                    function.carveout.store(value, Ordering::Relaxed);
                    Ok(())
                }
                _ => Err(INVALID_VALUE),
            }
        }

        fn cuLaunchKernelEx(
            config: *const LaunchConfig,
            function: usize,
            params: *mut *mut c_void,
            _extra: *mut *mut c_void,
        ) {
            let device = current_device()?;
            let function = FUNCTIONS.get(function).ok_or(INVALID_HANDLE)?;
            if config.is_null() || params.is_null() {
                return Err(INVALID_VALUE);
            }
            let config = unsafe { &*config };
            let (mut cooperative, mut overlaps) = (false, false);
            for index in 0..config.count as usize {
                let attribute = unsafe { &*config.attributes.add(index) };
                match attribute.which {
                    COOPERATIVE => cooperative = attribute.int() != 0,
                    PROGRAMMATIC_STREAM_SERIALIZATION => overlaps = attribute.int() != 0,
                    _ => return Err(INVALID_VALUE),
                }
            }
            // A kernel that does not wait for earlier work would run at the same time as that. A
            // cooperative grid does not begin while another grid occupies a part of the device.
            if overlaps && (!function.waits || cooperative) {
                return Err(INVALID_VALUE);
            }
            let entry = function.entry;
            let ([grid, grid_y, grid_z], [block, block_y, block_z]) = (config.grid, config.block);
            let one_dimensional = (grid_y, grid_z, block_y, block_z) == (1, 1, 1, 1);
            let fits = block <= entry.block && block.is_multiple_of(32);
            let shared_bytes = config.shared_bytes;
            let has_room = shared_bytes <= function.max_dynamic_shared.load(Ordering::Relaxed);
            if grid == 0 || block == 0 || !fits || !one_dimensional || !has_room {
                return Err(INVALID_VALUE);
            }
            let shared_of_block = function.static_shared + shared_bytes;
            if cooperative && grid > resident_blocks(device, block, shared_of_block) {
                return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
            }
            let args = unsafe {
                std::slice::from_raw_parts((*params).cast::<u8>(), entry.args_size).to_vec()
            };
            let launch = Launch { entry, grid, block, shared_bytes, cooperative, args };
            stream(config.stream)?.queue(Operation::Launch(launch));
            Ok(())
        }
    }
}

pub use calls::symbol;
