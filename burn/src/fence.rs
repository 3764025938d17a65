//! A stream for the library next to cubecl's streams, and how work on both stays in order.
//!
//! cubecl does not expose its streams, but the driver knows them. An event can be recorded after
//! all work of a context, whatever stream it is on, and all later work of a context can be made to
//! wait for an event. The CPU waits for neither.

use crate::memory::Queue;
use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::error::CudaError;
use cust::sys::{self, CUresult};
use fused_loss::{Gpu, Stream, Workspace};
use std::sync::{Mutex, PoisonError};

/// Lets `call` queue work on the library's stream of the device with this number, after all work
/// that the process has queued in the device's primary context, and before all later work.
///
/// # Safety
/// 1. All work that the call's depends on has been queued.
/// 2. Memory that the call uses lives until this has returned. After that, driver calls may free it
///    or reuse it.
pub(crate) unsafe fn queue(
    ordinal: u32,
    call: impl FnOnce(&mut Queue<'_>) -> fused_loss::Result<()>,
) -> Result<(), String> {
    static FENCED: Mutex<Vec<Fenced>> = Mutex::new(Vec::new());
    let mut all = FENCED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = all.iter().position(|fenced| fenced.gpu.ordinal() == ordinal);
    let at = match known {
        Some(at) => at,
        None => {
            all.push(Fenced::new(ordinal)?);
            all.len() - 1
        }
    };
    let Fenced { context, gpu, stream, workspace, raw } = &mut all[at];
    CurrentContext::set_current(context).map_err(|error| refused("cuCtxSetCurrent", error))?;
    raw.wait_for_context(context)?;
    let result = call(&mut Queue { gpu, stream, workspace });
    // Do this even if the call has failed, because it may have queued a part of its work.
    raw.have_context_wait(context)?;
    result.map_err(|error| error.to_string())
}

/// The library's objects for a device, which live until the process ends.
struct Fenced {
    context: Context,
    gpu: Gpu,
    stream: Stream,
    workspace: Workspace,
    raw: Raw,
}

/// The handles of [`Fenced`].
struct Raw {
    stream: sys::CUstream,
    event: sys::CUevent,
}

// SAFETY: any thread may use a stream and an event; the driver locks them.
unsafe impl Send for Raw {}

impl Fenced {
    fn new(ordinal: u32) -> Result<Self, String> {
        let of_library = |error: fused_loss::Error| error.to_string();
        // Loads the driver, which the calls below need.
        let gpu = Gpu::new(ordinal).map_err(of_library)?;
        let device = Device::get_device(ordinal).map_err(|error| refused("cuDeviceGet", error))?;
        let context =
            Context::new(device).map_err(|error| refused("cuDevicePrimaryCtxRetain", error))?;
        let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
        let non_blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let no_timing = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: both write a handle to the pointer they are given.
        unsafe {
            check("cuStreamCreate", sys::cuStreamCreate(&mut stream, non_blocking))?;
            check("cuEventCreate", sys::cuEventCreate(&mut event, no_timing))?;
        }
        // SAFETY: a stream of the device's primary context, which is never destroyed nor captured.
        let of_raw = unsafe { Stream::from_raw(&gpu, stream.cast()) }.map_err(of_library)?;
        let workspace = Workspace::new(&gpu).map_err(of_library)?;
        Ok(Fenced { context, gpu, stream: of_raw, workspace, raw: Raw { stream, event } })
    }
}

impl Raw {
    /// Makes later work on the stream wait for all work in the context.
    fn wait_for_context(&self, context: &Context) -> Result<(), String> {
        // SAFETY: the handles are valid. A wait refers to what the event has recorded by now, even
        // if it records something else later.
        unsafe {
            match sys::cuCtxRecordEvent(context.as_raw(), self.event) {
                // Drivers before CUDA 12.5: the context is current.
                CUresult::CUDA_ERROR_NOT_SUPPORTED => {
                    check("cuCtxSynchronize", sys::cuCtxSynchronize())
                }
                code => {
                    check("cuCtxRecordEvent", code)?;
                    let waits = sys::cuStreamWaitEvent(self.stream, self.event, 0);
                    check("cuStreamWaitEvent", waits)
                }
            }
        }
    }

    /// Makes later work in the context wait for all work on the stream.
    fn have_context_wait(&self, context: &Context) -> Result<(), String> {
        // SAFETY: as above.
        unsafe {
            check("cuEventRecord", sys::cuEventRecord(self.event, self.stream))?;
            match sys::cuCtxWaitEvent(context.as_raw(), self.event) {
                CUresult::CUDA_ERROR_NOT_SUPPORTED => {
                    check("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream))
                }
                code => check("cuCtxWaitEvent", code),
            }
        }
    }
}

fn check(name: &str, code: CUresult) -> Result<(), String> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(refused(name, CudaError::from(code))) }
}

fn refused(name: &str, error: CudaError) -> String {
    format!("{name} failed: {error}")
}
