//! The normaliser, which a mean is divided by, and the scale of gradients, which contains it.

use super::Pass;
use crate::abi::CrossEntropyArgs;
use crate::cross_entropy::mode;
use crate::element::{Element, Real};
use crate::reduce::Normaliser;
use cuda_std::memory::load;

/// Which normaliser: the mean loss is divided by the summed class weights of the rows that are not
/// ignored, the mean z-loss by their number.
#[derive(Clone, Copy)]
pub(crate) enum Total {
    Weights,
    Rows,
}

/// A source of both normalisers.
pub(crate) trait Totals: Copy {
    fn total(self, which: Total) -> f64;
}

impl Totals for Normaliser {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn total(self, which: Total) -> f64 {
        self.wait(which as u32)
    }
}

/// The normaliser that the first blocks of the grid sum, with a load of the weights' sum already
/// issued.
#[derive(Clone, Copy)]
pub(crate) struct LoadedNormaliser {
    pub(crate) ahead: Normaliser,
    /// What the load returned: the sum, if it was complete by then.
    pub(crate) got: u64,
}

impl LoadedNormaliser {
    /// Issues the load, if the call has no fixed divisor.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(args: &CrossEntropyArgs, ahead: Normaliser) -> Self {
        let got = if args.divisor == 0.0 { ahead.load(Total::Weights as u32) } else { 0 };
        LoadedNormaliser { ahead, got }
    }
}

impl Totals for LoadedNormaliser {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn total(self, which: Total) -> f64 {
        match which {
            Total::Weights => self.ahead.wait_with(which as u32, self.got),
            Total::Rows => self.ahead.total(which),
        }
    }
}

/// The normalisers that a forward pass has saved, two `f64` at address `start`.
#[derive(Clone, Copy)]
struct SavedNormaliser {
    start: u64,
}

impl Totals for SavedNormaliser {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn total(self, which: Total) -> f64 {
        // SAFETY: by the kernels' condition 1, a call that reads them has both of them there.
        unsafe { load((self.start as *const f64).wrapping_add(which as usize)) }
    }
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// The upstream gradient of a row divided by the divisor of the mean. `which` selects the
    /// normaliser of the loss or of the z-loss, in a call without a fixed divisor.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn scale(&self, row: u64, totals: impl Totals, which: Total) -> E::Real {
        if MODE == mode::LOG_PROB {
            // SAFETY: the caller's condition.
            return unsafe { self.upstream(row, which) };
        }
        let args = self.args;
        let mut upstream = E::Real::ONE;
        if args.upstream != 0 {
            let index = row * u64::from(args.upstream_stride);
            // SAFETY: the caller's condition.
            upstream =
                unsafe { load((args.upstream as *const E::Real).wrapping_add(index as usize)) };
        }
        if args.divisor != 0.0 {
            return upstream / E::Real::from_f64(args.divisor);
        }
        let total = totals.total(which);
        if total == 0.0 { E::Real::NAN } else { upstream / E::Real::from_f64(total) }
    }

    /// The [`scale`](Self::scale) of a row's gradients by the normalisers that the forward pass has
    /// saved.
    ///
    /// # Safety
    /// As [`scale`](Self::scale).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn scale_of_saved(&self, row: u64, which: Total) -> E::Real {
        let totals = SavedNormaliser { start: self.args.totals };
        // SAFETY: the caller's condition.
        unsafe { self.scale(row, totals, which) }
    }
}
