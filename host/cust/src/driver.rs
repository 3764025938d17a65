//! Where the driver's functions come from: the machine's `libcuda.so.1`, loaded at run time, or the
//! emulator if a program asks for it.
//!
//! The published `cust` does not have this module.

use crate::error::CudaError;
use crate::sys::{CUresult, Table, Wanted};
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::sync::{Mutex, OnceLock};

/// Where the driver's functions come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The machine's driver, `libcuda.so.1`.
    Library,
    /// The emulator, which runs kernels on the CPU.
    #[cfg(feature = "emulator")]
    Emulator,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Source {
    /// Its name in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Library => "NVIDIA driver",
            #[cfg(feature = "emulator")]
            Source::Emulator => "emulator",
        }
    }
}

/// Why there is no driver to call.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The machine has no usable driver.
    NoDriver {
        /// What the library tried, and how it failed.
        reason: String,
        /// The closest driver code.
        code: CudaError,
    },
    /// The emulator cannot run here.
    NoEmulator {
        /// What the emulator lacks.
        reason: String,
    },
    /// The process already runs on another driver.
    OtherDriver {
        /// The driver that it runs on.
        chosen: Source,
        /// The driver that was asked for.
        asked: Source,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NoDriver { reason, .. } => write!(f, "no NVIDIA driver: {reason}"),
            LoadError::NoEmulator { reason } => write!(f, "no emulator: {reason}"),
            LoadError::OtherDriver { chosen, asked } => write!(
                f,
                "this process already runs on the {chosen}; the {asked} cannot be had beside it"
            ),
        }
    }
}

impl std::error::Error for LoadError {}

/// The driver of this process.
struct Driver {
    source: Source,
    table: Table,
    version: c_int,
}

/// Set once, by the first [`load`] that succeeds.
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Loads the driver from `source` and initialises it, unless it is already loaded. A process has
/// one driver until it ends.
///
/// # Errors
/// [`LoadError::NoDriver`] where the machine has none, or one that is too old, or no GPU, and
/// [`LoadError::NoEmulator`]: another source can still be loaded then. [`LoadError::OtherDriver`]
/// where another source is loaded.
pub fn load(source: Source) -> Result<(), LoadError> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let chosen = match DRIVER.get() {
        Some(driver) => driver.source,
        None => {
            let driver = open(source)?;
            DRIVER.get_or_init(|| driver).source
        }
    };
    if chosen == source { Ok(()) } else { Err(LoadError::OtherDriver { chosen, asked: source }) }
}

/// Why a call of the function `name` returned `CUDA_ERROR_NOT_SUPPORTED`, if that is because the
/// driver is too old to have it.
pub fn missing(name: &str) -> Option<String> {
    let driver = DRIVER.get()?;
    let wanted = driver.table.missing.iter().find(|wanted| wanted.name == name)?;
    Some(too_old(driver.version, wanted))
}

/// The emulator's report on the last fault, once. The machine's driver has no such report.
pub fn take_report() -> Option<String> {
    #[cfg(feature = "emulator")]
    return emulator::take_report();
    #[cfg(not(feature = "emulator"))]
    None
}

/// The functions of the loaded driver; the machine's, if none is loaded yet.
pub(crate) fn table() -> Option<&'static Table> {
    let driver = DRIVER.get().or_else(|| {
        load(Source::Library).ok()?;
        DRIVER.get()
    });
    driver.map(|driver| &driver.table)
}

fn open(source: Source) -> Result<Driver, LoadError> {
    match source {
        // SAFETY: `find` keeps the promise of `initialised`.
        Source::Library => unsafe { initialised(source, &library()?) },
        #[cfg(feature = "emulator")]
        // SAFETY: the emulator's functions have the parameters of `cuda.h`, with numbers for
        // pointers here and there, which are passed alike.
        Source::Emulator => unsafe {
            initialised(source, &|wanted| emulator::symbol(wanted.name).unwrap_or(std::ptr::null()))
        },
    }
}

/// The functions that `find` finds, initialised.
///
/// # Safety
/// `find` returns null or the address of the driver's function of that name, which has the
/// parameters that `cuda.h` declares.
unsafe fn initialised(
    source: Source,
    find: &dyn Fn(Wanted) -> *const c_void,
) -> Result<Driver, LoadError> {
    // SAFETY: the caller's condition.
    let table = unsafe { Table::new(find) };
    let mut version = 0;
    // SAFETY: writes the version to the pointer it is given; it needs no initialised driver.
    let _ = unsafe { (table.cuDriverGetVersion)(&mut version) };
    if let Some(wanted) = table.missing.iter().find(|wanted| wanted.since.is_none()) {
        let reason = too_old(version, wanted);
        return Err(LoadError::NoDriver { reason, code: CudaError::NotSupported });
    }
    // SAFETY: takes no pointers.
    let code = unsafe { (table.cuInit)(0) };
    if code != CUresult::CUDA_SUCCESS {
        if source != Source::Library {
            let unknown = || format!("cuInit returns {}", code.0);
            return Err(LoadError::NoEmulator { reason: take_report().unwrap_or_else(unknown) });
        }
        let what = match code {
            CUresult::CUDA_ERROR_NO_DEVICE => {
                ", CUDA_ERROR_NO_DEVICE: no GPU, or CUDA_VISIBLE_DEVICES hides it".to_owned()
            }
            code => code.name().map_or(String::new(), |name| format!(", {name}")),
        };
        let reason = format!("libcuda.so.1 is there, but cuInit returns {}{what}", code.0);
        return Err(LoadError::NoDriver { reason, code: CudaError::of(code) });
    }
    Ok(Driver { source, table, version })
}

fn too_old(version: c_int, wanted: &Wanted) -> String {
    let text = |version: c_int| format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
    let (name, came) = (wanted.name, wanted.since.map(text));
    let came = came.map_or(String::new(), |since| format!(", which came with {since}"));
    let version = if version == 0 { "of an unknown version".to_owned() } else { text(version) };
    format!("the driver ({version}) is too old: it has no {name}{came}")
}

/// Finds functions in `libcuda.so.1`.
fn library() -> Result<impl Fn(Wanted) -> *const c_void, LoadError> {
    // SAFETY: loading the driver runs its initialisers, which is what a program that links to it
    // does.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|error| {
        LoadError::NoDriver { reason: error.to_string(), code: CudaError::NoDevice }
    })?;
    // The driver stays loaded: its functions are called to the end of the process.
    let library: &libloading::Library = Box::leak(Box::new(library));
    let exported = |name: &str| {
        // SAFETY: only the address is taken, as an untyped pointer.
        unsafe { library.get::<*const c_void>(name.as_bytes()) }
            .map_or(std::ptr::null(), |symbol| *symbol)
    };
    let newer =
        ByVersion { first: exported("cuGetProcAddress"), second: exported("cuGetProcAddress_v2") };
    Ok(move |wanted: Wanted| {
        // SAFETY: the addresses are those of the functions of these names.
        let found = wanted.since.map(|since| unsafe { newer.find(wanted.name, since) });
        found.filter(|address| !address.is_null()).unwrap_or_else(|| exported(wanted.name))
    })
}

/// Finds a function as a version of CUDA declares it: in a newer driver a name may mean a function
/// with other parameters.
struct ByVersion {
    /// `cuGetProcAddress` of CUDA 11.3, or null.
    first: *const c_void,
    /// `cuGetProcAddress_v2` of CUDA 12.0, or null.
    second: *const c_void,
}

impl ByVersion {
    /// The address of the function `name`, or null.
    ///
    /// # Safety
    /// The addresses are what their comments say.
    unsafe fn find(&self, name: &str, since: c_int) -> *const c_void {
        /// Versions of functions for which all threads share one default stream.
        const LEGACY_STREAM: u64 = 1;
        type First =
            unsafe extern "C" fn(*const c_char, *mut *const c_void, c_int, u64) -> CUresult;
        type Second = unsafe extern "C" fn(
            *const c_char,
            *mut *const c_void,
            c_int,
            u64,
            *mut c_int,
        ) -> CUresult;
        let name = CString::new(name).expect("names have no zero bytes");
        let (name, mut address, mut status) = (name.as_ptr(), std::ptr::null(), 0);
        // SAFETY: null is `None`, and the types are those of `cuda.h`; the name ends in a zero
        // byte, and the driver writes to the pointers it is given.
        let code = unsafe {
            let first = std::mem::transmute::<*const c_void, Option<First>>(self.first);
            let second = std::mem::transmute::<*const c_void, Option<Second>>(self.second);
            match (second, first) {
                (Some(find), _) => find(name, &mut address, since, LEGACY_STREAM, &mut status),
                (None, Some(find)) => find(name, &mut address, since, LEGACY_STREAM),
                (None, None) => CUresult::CUDA_ERROR_NOT_FOUND,
            }
        };
        if code == CUresult::CUDA_SUCCESS { address } else { std::ptr::null() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{CUdevice, Table};
    use std::ffi::CStr;

    unsafe extern "C" fn version(version: *mut c_int) -> CUresult {
        // SAFETY: the caller gives a pointer to write to.
        unsafe { version.write(11_070) };
        CUresult::CUDA_SUCCESS
    }

    unsafe extern "C" fn init(_flags: u32) -> CUresult {
        CUresult(12_345)
    }

    /// A function that no test calls, for those that a table has to have.
    unsafe extern "C" fn other(_device: CUdevice) -> CUresult {
        CUresult::CUDA_ERROR_UNKNOWN
    }

    /// A driver of CUDA 11.7 without the functions that `lacks` names.
    fn old(lacks: impl Fn(&str) -> bool) -> impl Fn(Wanted) -> *const c_void {
        move |wanted| match wanted.name {
            name if lacks(name) => std::ptr::null(),
            "cuDriverGetVersion" => version as *const c_void,
            "cuInit" => init as *const c_void,
            _ => other as *const c_void,
        }
    }

    fn reason(find: &dyn Fn(Wanted) -> *const c_void) -> String {
        // SAFETY: of these functions, the two that are called have the parameters of `cuda.h`.
        match unsafe { initialised(Source::Library, find) }.err() {
            Some(LoadError::NoDriver { reason, .. }) => reason,
            other => panic!("expected NoDriver, got {other:?}"),
        }
    }

    /// The function that [`by_version`] knows, as of CUDA 12.0.
    const NAME: &CStr = c"cuLaunchKernelEx";

    unsafe extern "C" fn by_version(
        name: *const c_char,
        address: *mut *const c_void,
        version: c_int,
        flags: u64,
        _status: *mut c_int,
    ) -> CUresult {
        // SAFETY: the caller gives a string that ends in a zero byte, and a pointer to write to.
        unsafe {
            if CStr::from_ptr(name) != NAME || version < 12_000 || flags != 1 {
                return CUresult::CUDA_ERROR_NOT_FOUND;
            }
            address.write(init as *const c_void);
        }
        CUresult::CUDA_SUCCESS
    }

    #[test]
    fn a_function_is_found_by_its_version() {
        let none = std::ptr::null();
        let (old, new) = (
            ByVersion { first: none, second: none },
            ByVersion { first: none, second: by_version as *const c_void },
        );
        let name = NAME.to_str().unwrap();
        // SAFETY: the one address is that of a function with these parameters.
        unsafe {
            assert_eq!(new.find(name, 12_000), init as *const c_void);
            assert_eq!(new.find(name, 11_080), none);
            assert_eq!(old.find(name, 12_000), none);
        }
    }

    #[test]
    fn a_driver_that_is_too_old_is_refused_with_its_version() {
        assert_eq!(
            reason(&old(|name| name == "cuStreamBeginCapture_v2")),
            "the driver (CUDA 11.7) is too old: it has no cuStreamBeginCapture_v2"
        );
    }

    #[test]
    fn what_only_newer_drivers_have_is_no_reason_to_refuse_one() {
        let find = old(|name| name == "cuLaunchKernelEx");
        assert_eq!(reason(&find), "libcuda.so.1 is there, but cuInit returns 12345");
        // SAFETY: no function of it is called but the one that it does not have.
        let table = unsafe { Table::new(&find) };
        let (config, none) = (std::ptr::null(), std::ptr::null_mut::<*mut c_void>());
        // SAFETY: the stand-in for what is missing reads nothing.
        let code = unsafe { (table.cuLaunchKernelEx)(config, none.cast(), none, none) };
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(
            too_old(11_070, &table.missing[0]),
            "the driver (CUDA 11.7) is too old: it has no cuLaunchKernelEx, \
             which came with CUDA 11.8"
        );
    }
}
