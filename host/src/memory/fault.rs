//! What the device has found of a loss's targets, as a call is given it.

use super::Usage;
use crate::error::Result;
use crate::queue::Queue;
use kernels_gpu::abi::TargetFault;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the host knows of the launches that write a loss.
pub(crate) struct Writes {
    /// Whether a call has ever been given the fault to write: before, nothing may have written it.
    is_asked_for: AtomicBool,
    /// Whether the end of the next launch is to be noted: of the first of a loss that a call
    /// returns.
    notes_end: AtomicBool,
}

/// What is beside the values of a loss: on the device, which target is no class.
#[derive(Clone, Copy)]
pub(crate) struct Fault<'a> {
    /// A [`TargetFault`].
    pub(crate) address: u64,
    /// Of a loss of the library's; `None` where the memory is somebody else's.
    noted: Option<(&'a Writes, &'a Usage)>,
}

impl Writes {
    /// Of a loss that nothing has written, of whose first launch the end is to be noted if it
    /// `notes_end`.
    pub(crate) fn new(notes_end: bool) -> Self {
        Writes { is_asked_for: AtomicBool::new(false), notes_end: AtomicBool::new(notes_end) }
    }

    /// Whether the fault may have been written.
    pub(crate) fn may_report(&self) -> bool {
        self.is_asked_for.load(Ordering::Relaxed)
    }
}

impl<'a> Fault<'a> {
    /// The [`TargetFault`] at `address`, beside values that `usage` is of.
    pub(crate) fn new(address: u64, writes: &'a Writes, usage: &'a Usage) -> Self {
        Fault { address, noted: Some((writes, usage)) }
    }

    /// The [`TargetFault`] at `address` in somebody else's memory.
    pub(crate) fn at(address: u64) -> Self {
        Fault { address, noted: None }
    }
}

impl Fault<'_> {
    /// Notes that a launch was queued on `queue` that writes the values, and the fault too if it
    /// `reports`; if it does not, has the fault say that every target is a class.
    pub(crate) fn note_write(&self, queue: &Queue, reports: bool) -> Result<()> {
        // What was written to somebody else's memory is not known.
        let may_be_old =
            self.noted.is_none_or(|(writes, _)| writes.is_asked_for.load(Ordering::Relaxed));
        if let (true, Some((writes, _))) = (reports, self.noted) {
            writes.is_asked_for.store(true, Ordering::Relaxed);
        } else if !reports && may_be_old {
            // SAFETY: the loss has these bytes, or the memory by the condition of
            // `with_target_fault`; the launch has ordered the stream behind whatever else uses
            // them.
            unsafe { queue.set_to_zero(self.address, size_of::<TargetFault>())? };
        }
        if let Some((writes, usage)) = self.noted
            && writes.notes_end.swap(false, Ordering::Relaxed)
        {
            usage.note_end_of_write()?;
        }
        Ok(())
    }
}
