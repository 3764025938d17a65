//! The driver's types. Handles are opaque pointers. The driver's enumerations are numbers with
//! named constants here, because a driver may know more values.

use std::ffi::{c_int, c_uint, c_ulonglong};

/// A device's number.
pub type CUdevice = c_int;
/// An address on a device.
pub type CUdeviceptr = c_ulonglong;

/// Defines handles.
macro_rules! handles {
    ($($(#[$doc:meta])* $handle:ident, $object:ident;)+) => {
        $(
            #[doc = concat!("What a [`", stringify!($handle), "`] is the address of.")]
            #[repr(C)]
            #[derive(Debug)]
            pub struct $object {
                private: [u8; 0],
            }

            $(#[$doc])*
            pub type $handle = *mut $object;
        )+
    };
}

handles! {
    /// A context: what a process has on a device.
    CUcontext, CUctx_st;
    /// A loaded module of kernels.
    CUmodule, CUmod_st;
    /// A kernel of a loaded module.
    CUfunction, CUfunc_st;
    /// A queue of work; null is the default stream of the current context.
    CUstream, CUstream_st;
    /// A point in a queue's work.
    CUevent, CUevent_st;
    /// A graph of work.
    CUgraph, CUgraph_st;
    /// A graph of work that can be launched.
    CUgraphExec, CUgraphExec_st;
}

/// Defines enumerations of the driver.
macro_rules! numbers {
    ($($(#[$doc:meta])* $type:ident { $($name:ident = $number:literal;)+ })+) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
            pub struct $type(pub c_uint);

            impl $type {
                $(
                    #[doc = concat!("Number ", stringify!($number), ".")]
                    pub const $name: Self = $type($number);
                )+
            }
        )+

        /// Every name with its number.
        #[cfg(test)]
        pub(super) const NUMBERS: &[(&str, u32)] = &[$($((stringify!($name), $number),)+)+];
    };
}

numbers! {
    /// A property of a device.
    CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38;
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97;
    }
    /// A property of a kernel.
    CUfunction_attribute {
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9;
    }
    /// An option of the driver's compiler.
    CUjit_option {
        CU_JIT_ERROR_LOG_BUFFER = 5;
        CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6;
    }
    /// What a capture refuses of the calls that might wait.
    CUstreamCaptureMode_enum {
        CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
        CU_STREAM_CAPTURE_MODE_RELAXED = 2;
    }
    /// Whether a stream is captured.
    CUstreamCaptureStatus_enum {
        CU_STREAM_CAPTURE_STATUS_NONE = 0;
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
        CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
    }
    /// Which attribute of a launch.
    CUlaunchAttributeID {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2;
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6;
    }
}

/// What a capture refuses of the calls that might wait.
pub type CUstreamCaptureMode = CUstreamCaptureMode_enum;

/// Whether a stream is captured.
pub type CUstreamCaptureStatus = CUstreamCaptureStatus_enum;

/// Flags of a stream.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CUstream_flags_enum {
    /// It waits for the default stream, and the default stream for it.
    CU_STREAM_DEFAULT = 0,
    /// It does not wait for the default stream.
    CU_STREAM_NON_BLOCKING = 1,
}

/// Flags of an event.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CUevent_flags_enum {
    /// It records the time.
    CU_EVENT_DEFAULT = 0,
    /// Whoever waits for it sleeps.
    CU_EVENT_BLOCKING_SYNC = 1,
    /// It records no time.
    CU_EVENT_DISABLE_TIMING = 2,
}

/// The shape of a launch, its stream and its attributes.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // The names say it.
pub struct CUlaunchConfig {
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub hStream: CUstream,
    pub attrs: *const CUlaunchAttribute,
    pub numAttrs: c_uint,
}

/// An attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttribute {
    /// Which attribute.
    pub id: CUlaunchAttributeID,
    /// Its value.
    pub value: CUlaunchAttributeValue,
}

/// The value of an attribute: 64 bytes, of which each attribute reads the first few.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttributeValue {
    /// The bytes, as they lie in memory.
    pub pad: [u8; 64],
}

impl CUlaunchAttributeValue {
    /// The value of an attribute that is a C `int`: `programmaticStreamSerializationAllowed`,
    /// `cooperative`.
    pub const fn of_int(value: c_int) -> Self {
        let (mut pad, bytes) = ([0; 64], value.to_ne_bytes());
        let mut index = 0;
        while index < bytes.len() {
            pad[index] = bytes[index];
            index += 1;
        }
        CUlaunchAttributeValue { pad }
    }
}
