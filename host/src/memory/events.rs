//! The events by which cudarc orders streams that use the same memory.

use crate::driver::check_cudarc;
use crate::error::{Error, Result};
use crate::queue::Queue;
use cudarc::driver::{CudaEvent, CudaStream, SyncOnDrop};

/// The event of cudarc's slice, which calls on one stream record.
#[derive(Clone, Copy)]
pub(crate) struct Events<'a> {
    /// The stream that the calls are queued on.
    queue: &'a Queue,
    /// cudarc's object for the same stream.
    stream: &'a CudaStream,
    /// The slice's read event if calls read it, its write event if they write it. cudarc makes
    /// other streams wait for these before they use the slice, and before it frees the slice. A
    /// slice has no events if the program orders its streams itself
    /// (`CudaContext::disable_event_tracking`).
    event: Option<&'a CudaEvent>,
}

impl<'a> Events<'a> {
    /// Takes the event out of `guard`, which cudarc returned when it made `stream` wait for the
    /// work that uses the slice already. `queue` is the same stream.
    ///
    /// A guard records its event when it is dropped. A view cannot rely on that: safe code may
    /// leak a view, and the view may be used for several calls. So each launch records the event.
    pub(crate) fn new(
        queue: &'a Queue,
        stream: &'a CudaStream,
        mut guard: SyncOnDrop<'a>,
    ) -> Result<Self> {
        let event = match &mut guard {
            SyncOnDrop::Record(target) => target.take().map(|(event, _)| event),
            // cudarc returns such a guard only for host memory.
            SyncOnDrop::Sync(_) => None,
        };
        // cudarc's function returns no error of its waits: it keeps the error in the context.
        check_cudarc("cuStreamWaitEvent", stream.context().check_err())?;
        Ok(Events { queue, stream, event })
    }

    /// Refuses any stream except the one that cudarc has made wait.
    pub(super) fn check_stream(&self, argument: &'static str, queue: &Queue) -> Result<()> {
        if self.queue.is(queue) {
            return Ok(());
        }
        Err(Error::OtherStream { argument, expected: "the stream that the view was made for" })
    }

    /// Records the event after all work queued so far.
    pub(super) fn record(&self) -> Result<()> {
        let Some(event) = self.event else { return Ok(()) };
        // cudarc neither records events nor waits for them while all of its work is on the default
        // stream.
        if !self.stream.context().is_managing_stream_synchronization() {
            return Ok(());
        }
        // cudarc leaves its context current.
        let _current = self.queue.gpu().bind()?;
        // An event marks one point. If another stream has read the slice meanwhile, the event marks
        // that read: this stream waits for it first, so that the new point comes after both.
        let recorded = self.stream.wait(event).and_then(|()| event.record(self.stream));
        if recorded.is_err() {
            // Without the event, cudarc may free the slice while the work still uses it.
            self.queue.synchronize()?;
        }
        check_cudarc("cuEventRecord", recorded)
    }
}
