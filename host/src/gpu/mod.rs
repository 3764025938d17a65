//! A device: its primary context, its name, and the kernels loaded on it.

mod context;
mod modules;
mod transfer;
mod unfreed;

pub(crate) use context::Restore;

use crate::driver::{self, Source, check, check_cust};
use crate::error::{Error, Result};
use crate::plan::{Cache, packed};
use crate::ptx;
use context::Context;
use cust::device::{Device, DeviceAttribute};
use cust::sys;
use kernels_gpu::overlap::OVERLAPS_FROM;
use modules::Loaded;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use transfer::Transfers;
use unfreed::Unfreed;

/// A GPU. The library uses the device's primary context, as PyTorch, cudarc and candle do.
///
/// A clone is the same GPU. So is a `Gpu` that is opened while another with the same number, or
/// anything made with it, exists: all share the loaded kernels, and dropping the last unloads them.
/// It is `Send` and `Sync`: any thread may use it, whatever context is current there, and each call
/// restores the thread's own context.
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
    loaded: Loaded,
    transfers: Transfers,
    unfreed: Unfreed,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let current = self.context.bind();
        if current.is_ok() {
            self.unfreed.free();
        }
        // Try it even if the context cannot be made current: the driver may still do it.
        self.transfers.end();
        self.loaded.unload();
    }
}

/// The oldest driver that can capture overlapping launches (programmatic dependent launch) into
/// graphs.
const OVERLAPS_DRIVER: i32 = 12_030;

impl Gpu {
    /// The GPU with this number, through the machine's NVIDIA driver.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::UnsupportedDevice`],
    /// [`Error::SmallDevice`], [`Error::OtherLayouts`]; [`Error::OtherDriver`] after
    /// `Gpu::emulated`.
    pub fn new(ordinal: u32) -> Result<Self> {
        driver::choose(Source::Library)?;
        Self::open(ordinal, false)
    }

    /// How many GPUs the machine's NVIDIA driver has. [`new`](Self::new) takes numbers below that.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; [`Error::OtherDriver`] after `Gpu::emulated`.
    pub fn count() -> Result<u32> {
        driver::choose(Source::Library)?;
        Self::devices()
    }

    /// The devices of the driver that is loaded.
    fn devices() -> Result<u32> {
        check_cust("cuDeviceGetCount", Device::num_devices())
    }

    /// The GPU with this number; the emulated one if there is no driver, or if the process already
    /// uses the emulator.
    ///
    /// # Errors
    /// Those of [`new`](Self::new) and [`emulated`](Self::emulated), except the two that this
    /// avoids.
    #[cfg(feature = "emulator")]
    pub fn new_or_emulated(ordinal: u32) -> Result<Self> {
        match Self::new(ordinal) {
            Err(Error::NoDriver { .. } | Error::OtherDriver { .. }) => Self::emulated(ordinal),
            other => other,
        }
    }

    /// The emulated GPU with this number, 0 to 2: it runs the same kernels on the CPU, very slowly,
    /// and checks each memory access and each barrier. Its name says that it is emulated.
    ///
    /// The second has less shared memory, the third few multiprocessors. These sum some results in
    /// another order, so last bits may differ from the first's.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::OtherDriver`] after [`Gpu::new`] found a driver;
    /// [`Error::NoEmulator`] if the process cannot reserve the address space.
    #[cfg(feature = "emulator")]
    pub fn emulated(ordinal: u32) -> Result<Self> {
        driver::choose(Source::Emulator)?;
        Self::open(ordinal, true)
    }

    /// The device that is already open, if there is one; otherwise opens it.
    fn open(ordinal: u32, emulated: bool) -> Result<Self> {
        // The emulator does not run the PTX; it runs the kernels compiled into this build.
        if !emulated {
            ptx::check_layouts()?;
        }
        // Keyed by number, because a process has one driver, which has one primary context per
        // device.
        static OPEN: Mutex<Option<HashMap<u32, Weak<Inner>>>> = Mutex::new(None);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        if let Some(inner) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Gpu { inner });
        }
        let gpu = Self::open_anew(ordinal, emulated)?;
        open.insert(ordinal, Arc::downgrade(&gpu.inner));
        Ok(gpu)
    }

    fn open_anew(ordinal: u32, emulated: bool) -> Result<Self> {
        let count = Self::devices()?;
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
        // cust has no name for this attribute.
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
        let context = Context::retain(device)?;
        drop(context.bind()?);
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
                loaded: Loaded::default(),
                transfers: Transfers::default(),
                unfreed: Unfreed::default(),
            }),
        })
    }

    /// The device's primary context.
    #[cfg(feature = "cudarc")]
    pub(crate) fn context(&self) -> sys::CUcontext {
        self.inner.context.as_raw()
    }

    /// The device's number.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// The device's name; the emulator's says that it is one.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether kernels are launched before earlier work in their stream ends, and wait for it
    /// themselves.
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

    /// Makes the device's context current on this thread, until what it returns is dropped.
    pub(crate) fn bind(&self) -> Result<Restore> {
        self.inner.context.bind()
    }

    /// What the device has room for, for a kernel of which `registers_for` blocks fit into a
    /// multiprocessor's registers.
    pub(crate) fn room_for(&self, blocks: u32) -> packed::Device {
        packed::Device {
            multiprocessors: self.inner.cache.multiprocessors,
            shared_bytes: self.inner.shared_bytes as usize + (1 << 10),
            registers_for: blocks as usize,
        }
    }
}

/// Refuses a device that the kernels are not compiled for, or that may have room for only one block
/// at a time, because some blocks wait for others.
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

/// Whether both are the same device.
impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        // A process has one driver.
        self.inner.ordinal == other.inner.ordinal
    }
}

impl Eq for Gpu {}

impl Hash for Gpu {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.ordinal.hash(state);
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inner.name, self.inner.ordinal)
    }
}

#[cfg(all(test, feature = "emulator"))]
pub(crate) mod tests;
