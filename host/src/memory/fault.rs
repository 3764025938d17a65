//! The device's report on a loss's targets, as an argument of a call.

use super::Usage;
use crate::error::Result;
use crate::queue::Queue;
use kernels_gpu::abi::TargetFault;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the host knows of the launches that write a loss.
pub(crate) struct Writes {
    /// Whether any call was given the fault to write. Before that, it may be uninitialised.
    is_asked_for: AtomicBool,
    /// Whether to record the end of the next launch, which is so for the first launch of a loss
    /// that a call returns.
    notes_end: AtomicBool,
}

/// What is stored after the values of a loss: on the device, which target is not a class.
#[derive(Clone, Copy)]
pub(crate) struct Fault<'a> {
    /// A [`TargetFault`].
    pub(crate) address: u64,
    /// For a loss of the library; `None` for memory that the library does not own.
    noted: Option<(&'a Writes, &'a Usage)>,
}

impl Writes {
    /// For a loss that nothing has written. If it `notes_end`, the end of its first launch is
    /// recorded.
    pub(crate) fn new(notes_end: bool) -> Self {
        Writes { is_asked_for: AtomicBool::new(false), notes_end: AtomicBool::new(notes_end) }
    }

    /// Whether the fault may have been written.
    pub(crate) fn may_report(&self) -> bool {
        self.is_asked_for.load(Ordering::Relaxed)
    }
}

impl<'a> Fault<'a> {
    /// The [`TargetFault`] at `address`, stored with values that have this `usage`.
    pub(crate) fn new(address: u64, writes: &'a Writes, usage: &'a Usage) -> Self {
        Fault { address, noted: Some((writes, usage)) }
    }

    /// The [`TargetFault`] at `address` in memory that the library does not own.
    pub(crate) fn at(address: u64) -> Self {
        Fault { address, noted: None }
    }
}

impl Fault<'_> {
    /// Records that a launch on `queue` writes the values, and also the fault if it `reports`. If
    /// it does not, sets the fault to say that every target is a class.
    pub(crate) fn note_write(&self, queue: &Queue, reports: bool) -> Result<()> {
        // The library does not know what was written to memory that it does not own.
        let may_be_old =
            self.noted.is_none_or(|(writes, _)| writes.is_asked_for.load(Ordering::Relaxed));
        if let (true, Some((writes, _))) = (reports, self.noted) {
            writes.is_asked_for.store(true, Ordering::Relaxed);
        } else if !reports && may_be_old {
            // SAFETY: the loss has these bytes, or the memory has by the condition of
            // `with_target_fault`; the launch has ordered the stream after all other work that uses
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
