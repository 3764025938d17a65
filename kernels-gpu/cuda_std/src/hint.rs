//! Functions that hide something from the compiler.

use crate::memory::Vec16;
use crate::side;

/// `value`, hidden from the compiler, which cannot know anything about it. A branch on it inside a
/// loop stays one branch. Otherwise the compiler may generate a copy of the loop for each outcome:
/// sixteen copies for four such branches.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    side::opaque(value)
}

/// [`opaque`] for a vector: what was computed from the value before is computed from it again.
#[inline(always)]
pub fn opaque_vec16(value: Vec16) -> Vec16 {
    side::opaque_vec16(value)
}

/// Tells the emulator that this thread waits for what another block writes. A block may wait for
/// blocks of a lower index, which run already or are done. One block of a grid may also wait for
/// blocks after it: they run while it waits, if the device has room for two blocks.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn spin() {
    side::spin();
}
