//! GPUs, and what they are.

use crate::error::{CudaResult, ToResult};
use crate::sys;
use std::ffi::CStr;

/// A property of a device. The driver has more of them: [`sys::cuDeviceGetAttribute`].
#[repr(u32)]
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceAttribute {
    /// Multiprocessors.
    MultiprocessorCount = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.0,
    /// Bytes of the second-level cache.
    L2CacheSize = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE.0,
    /// The 9 of compute capability 9.0.
    ComputeCapabilityMajor =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.0,
    /// The 0 of compute capability 9.0.
    ComputeCapabilityMinor =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR.0,
}

/// A GPU of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Device {
    device: sys::CUdevice,
}

impl Device {
    /// How many there are.
    ///
    /// # Errors
    /// [`NoDevice`](crate::error::CudaError::NoDevice) where there is no driver.
    pub fn num_devices() -> CudaResult<u32> {
        let mut count = 0;
        // SAFETY: writes a number to the pointer it is given.
        unsafe { sys::cuDeviceGetCount(&mut count) }.to_result()?;
        Ok(count as u32)
    }

    /// The device with this number.
    ///
    /// # Errors
    /// [`InvalidDevice`](crate::error::CudaError::InvalidDevice) where there is none.
    pub fn get_device(ordinal: u32) -> CudaResult<Device> {
        let mut device = 0;
        // SAFETY: writes the device to the pointer it is given.
        unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) }.to_result()?;
        Ok(Device { device })
    }

    /// Its name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// Whatever the driver returns.
    pub fn name(self) -> CudaResult<String> {
        let mut name = [0_u8; 128];
        // SAFETY: the driver writes at most so many bytes, of which the last is zero.
        unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, self.device) }
            .to_result()?;
        let name = CStr::from_bytes_until_nul(&name).expect("the driver ends names in a zero byte");
        Ok(name.to_string_lossy().into_owned())
    }

    /// A property of it.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::error::CudaError::InvalidValue) where the driver does not know the
    /// property.
    pub fn get_attribute(self, attribute: DeviceAttribute) -> CudaResult<i32> {
        let (mut value, which) = (0, sys::CUdevice_attribute(attribute as u32));
        // SAFETY: writes a number to the pointer it is given.
        unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.device) }.to_result()?;
        Ok(value)
    }

    /// The driver's number of it.
    pub fn as_raw(&self) -> sys::CUdevice {
        self.device
    }
}
