//! Points in a stream's work.

use crate::error::{CudaError, CudaResult, ToResult};
use crate::flags::flags;
use crate::stream::Stream;
use crate::sys;

flags! {
    /// How an event is to work.
    EventFlags {
        /// It records the time, and whoever waits for it does not sleep.
        DEFAULT = 0;
        /// Whoever waits for it sleeps.
        BLOCKING_SYNC = 1;
        /// It records no time.
        DISABLE_TIMING = 2;
    }
}

/// Whether the work before an event is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventStatus {
    /// It is.
    Ready,
    /// It is not.
    NotReady,
}

/// A point in a stream's work; destroyed when it is dropped.
#[derive(Debug)]
pub struct Event(sys::CUevent);

// SAFETY: any thread may use an event; the driver locks it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that is not recorded yet.
    ///
    /// # Errors
    /// [`OutOfMemory`](CudaError::OutOfMemory), [`InvalidContext`](CudaError::InvalidContext) where
    /// no context is current.
    pub fn new(flags: EventFlags) -> CudaResult<Self> {
        let mut event = std::ptr::null_mut();
        // SAFETY: writes the event to the pointer it is given.
        unsafe { sys::cuEventCreate(&mut event, flags.bits()) }.to_result()?;
        Ok(Event(event))
    }

    /// Records it after all work queued on `stream` so far.
    ///
    /// # Errors
    /// Whatever the driver returns.
    pub fn record(&self, stream: &Stream) -> CudaResult<()> {
        // SAFETY: both are valid.
        unsafe { sys::cuEventRecord(self.0, stream.as_inner()) }.to_result()
    }

    /// Whether the work before it is done. An event that is not recorded is ready.
    ///
    /// # Errors
    /// Whatever that work has failed with.
    pub fn query(&self) -> CudaResult<EventStatus> {
        // SAFETY: the event is valid while `self` is.
        match unsafe { sys::cuEventQuery(self.0) }.to_result() {
            Ok(()) => Ok(EventStatus::Ready),
            Err(CudaError::NotReady) => Ok(EventStatus::NotReady),
            Err(error) => Err(error),
        }
    }

    /// Waits for the work before it.
    ///
    /// # Errors
    /// Whatever that work has failed with.
    pub fn synchronize(&self) -> CudaResult<()> {
        // SAFETY: the event is valid while `self` is.
        unsafe { sys::cuEventSynchronize(self.0) }.to_result()
    }

    /// The milliseconds from `start` to it.
    ///
    /// # Errors
    /// [`NotReady`](CudaError::NotReady) where the work before one of them is not done;
    /// [`InvalidHandle`](CudaError::InvalidHandle) where one of them is not recorded.
    pub fn elapsed_time_f32(&self, start: &Self) -> CudaResult<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: both are valid; the driver writes a number to the pointer it is given.
        unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.0, self.0) }.to_result()?;
        Ok(milliseconds)
    }

    pub(crate) fn as_inner(&self) -> sys::CUevent {
        self.0
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`; the driver keeps what still waits for it.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
