//! The codes that the driver's functions return.

use crate::error::CudaError;
use std::ffi::c_uint;
use std::fmt;

/// What a function of the driver returns: a number, of which the common ones have names here. A
/// driver may return others.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "the call may have failed"]
pub struct CUresult(pub c_uint);

/// Names the codes, for [`CUresult`] and for [`CudaError`].
macro_rules! codes {
    ($($number:literal $name:ident $short:ident;)+) => {
        impl CUresult {
            /// The call has done, or queued, what it was asked for.
            pub const CUDA_SUCCESS: Self = CUresult(0);
            $(
                #[doc = concat!("Code ", stringify!($number), ".")]
                pub const $name: Self = CUresult($number);
            )+

            /// The code's name, if it has one here.
            pub(crate) fn name(self) -> Option<&'static str> {
                match self.0 {
                    0 => Some("CUDA_SUCCESS"),
                    $($number => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }

        #[allow(non_upper_case_globals)]
        impl CudaError {
            $(
                #[doc = concat!("Code ", stringify!($number), ", `", stringify!($name), "`.")]
                pub const $short: Self = CudaError::of(CUresult::$name);
            )+
        }

        /// Every name with its number.
        #[cfg(test)]
        pub(super) const CODES: &[(&str, u32)] = &[$((stringify!($name), $number),)+];
    };
}

codes! {
    1 CUDA_ERROR_INVALID_VALUE InvalidValue;
    2 CUDA_ERROR_OUT_OF_MEMORY OutOfMemory;
    3 CUDA_ERROR_NOT_INITIALIZED NotInitialized;
    4 CUDA_ERROR_DEINITIALIZED Deinitialized;
    34 CUDA_ERROR_STUB_LIBRARY StubLibrary;
    100 CUDA_ERROR_NO_DEVICE NoDevice;
    101 CUDA_ERROR_INVALID_DEVICE InvalidDevice;
    200 CUDA_ERROR_INVALID_IMAGE InvalidImage;
    201 CUDA_ERROR_INVALID_CONTEXT InvalidContext;
    209 CUDA_ERROR_NO_BINARY_FOR_GPU NoBinaryForGpu;
    214 CUDA_ERROR_ECC_UNCORRECTABLE EccUncorrectable;
    218 CUDA_ERROR_INVALID_PTX InvalidPtx;
    221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND JitCompilerNotFound;
    222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION UnsupportedPtxVersion;
    302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND SharedObjectSymbolNotFound;
    303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED SharedObjectInitFailed;
    304 CUDA_ERROR_OPERATING_SYSTEM OperatingSystemError;
    400 CUDA_ERROR_INVALID_HANDLE InvalidHandle;
    500 CUDA_ERROR_NOT_FOUND NotFound;
    600 CUDA_ERROR_NOT_READY NotReady;
    700 CUDA_ERROR_ILLEGAL_ADDRESS IllegalAddress;
    701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES LaunchOutOfResources;
    702 CUDA_ERROR_LAUNCH_TIMEOUT LaunchTimeout;
    708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE PrimaryContextActive;
    709 CUDA_ERROR_CONTEXT_IS_DESTROYED ContextIsDestroyed;
    710 CUDA_ERROR_ASSERT AssertError;
    714 CUDA_ERROR_HARDWARE_STACK_ERROR HardwareStackError;
    715 CUDA_ERROR_ILLEGAL_INSTRUCTION IllegalInstruction;
    716 CUDA_ERROR_MISALIGNED_ADDRESS MisalignedAddress;
    717 CUDA_ERROR_INVALID_ADDRESS_SPACE InvalidAddressSpace;
    718 CUDA_ERROR_INVALID_PC InvalidProgramCounter;
    719 CUDA_ERROR_LAUNCH_FAILED LaunchFailed;
    720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE CooperativeLaunchTooLarge;
    800 CUDA_ERROR_NOT_PERMITTED NotPermitted;
    801 CUDA_ERROR_NOT_SUPPORTED NotSupported;
    802 CUDA_ERROR_SYSTEM_NOT_READY SystemNotReady;
    803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH SystemDriverMismatch;
    804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE CompatNotSupportedOnDevice;
    900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED StreamCaptureUnsupported;
    901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED StreamCaptureInvalidated;
    905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION StreamCaptureIsolation;
    906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT StreamCaptureImplicit;
    907 CUDA_ERROR_CAPTURED_EVENT CapturedEvent;
    999 CUDA_ERROR_UNKNOWN UnknownError;
}

impl fmt::Debug for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "CUresult({})", self.0),
        }
    }
}
