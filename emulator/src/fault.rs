//! Errors of kernels.

use std::cell::RefCell;

/// A launch's first fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The code that the driver's calls return for it.
    pub(crate) code: u32,
    /// What happened: kernel, block, thread, place.
    pub(crate) report: String,
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
/// `CUDA_ERROR_MISALIGNED_ADDRESS`.
pub(crate) const MISALIGNED_ADDRESS: u32 = 716;
/// `CUDA_ERROR_LAUNCH_FAILED`.
pub(crate) const LAUNCH_FAILED: u32 = 719;

thread_local! {
    static REPORT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The report that belongs to the last failed call of this CPU thread, once.
pub fn take_report() -> Option<String> {
    // While a thread ends, its thread-local values are destroyed one by one. If the destructor of
    // one calls the driver, the place for reports may already be gone.
    REPORT.try_with(RefCell::take).ok().flatten()
}

impl Fault {
    /// Stores the report for [`take_report`], and returns the code.
    pub(crate) fn tell(self) -> u32 {
        let _ = REPORT.try_with(|report| report.replace(Some(self.report)));
        self.code
    }
}
