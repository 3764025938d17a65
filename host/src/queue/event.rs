//! Points in the work of streams.

use crate::driver::check;
use crate::error::Result;
use crate::gpu::Gpu;
use cust::sys::{self, CUresult, CUstreamCaptureMode};

/// The driver's code for a failed kernel. On a GPU the context is lost; on the emulator, other
/// streams go on.
const FAULTS_OF_WORK: [CUresult; 3] = [
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
];

/// A point in a stream's work.
pub(crate) struct Event {
    gpu: Gpu,
    handle: sys::CUevent,
}

// SAFETY: the handle may be used from any thread; the driver locks it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// The point behind all work queued on a stream so far.
    ///
    /// # Safety
    /// `stream` is a stream of `gpu`, and there still.
    pub(super) unsafe fn record(gpu: &Gpu, stream: sys::CUstream) -> Result<Self> {
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        let no_timing = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes the handle to the pointer it is given.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, no_timing) })?;
        let event = Event { gpu: gpu.clone(), handle };
        // SAFETY: both handles are valid.
        check("cuEventRecord", unsafe { sys::cuEventRecord(handle, stream) })?;
        Ok(event)
    }

    /// Waits for it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.outcome()?
    }

    /// Waits for it, and returns whether the work before it has succeeded. The work has ended
    /// either way. Fails if it cannot wait.
    pub(crate) fn outcome(&self) -> Result<Result<()>> {
        let _current = self.gpu.bind()?;
        // SAFETY: the handle is valid while `self` is.
        let result = unsafe { sys::cuEventSynchronize(self.handle) };
        let outcome = check("cuEventSynchronize", result);
        if FAULTS_OF_WORK.contains(&result) { Ok(outcome) } else { outcome.map(Ok) }
    }

    /// Whether all work before it is done, without a fault.
    pub(crate) fn is_done(&self) -> bool {
        let Ok(_current) = self.gpu.bind() else { return false };
        // CUDA does not let a capturing thread query an event, because it might wait for its own
        // graph. The work before this event was not captured, so the query is safe.
        let _asks = CaptureMode::exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        // SAFETY: the handle is valid while `self` is.
        unsafe { sys::cuEventQuery(self.handle) == CUresult::CUDA_SUCCESS }
    }

    /// Makes work that is queued on a stream from now on wait for it.
    ///
    /// # Safety
    /// `stream` is a stream of `gpu`, and there still.
    pub(super) unsafe fn hold_back(&self, gpu: &Gpu, stream: sys::CUstream) -> Result<()> {
        let _current = gpu.bind()?;
        // SAFETY: both handles are valid; an event may be destroyed while it is waited for.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream, self.handle, 0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // Try it even if the context cannot be made current: the driver may still destroy the
        // event.
        let _current = self.gpu.bind();
        // SAFETY: created by `record`; work that still waits for it does so after this.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// The calls that this thread may make while streams are captured. Dropping it restores the earlier
/// mode, if the driver changed it.
struct CaptureMode(Option<CUstreamCaptureMode>);

impl CaptureMode {
    fn exchange(mut mode: CUstreamCaptureMode) -> Self {
        // SAFETY: reads and writes the mode through the pointer it is given.
        let result = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        CaptureMode((result == CUresult::CUDA_SUCCESS).then_some(mode))
    }
}

impl Drop for CaptureMode {
    fn drop(&mut self) {
        if let Some(mode) = &mut self.0 {
            // SAFETY: as above.
            let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
        }
    }
}
