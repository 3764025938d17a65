//! What the compiler is not to know.

use crate::memory::Vec16;
use crate::side;

/// `value`, of which the compiler knows nothing. A branch on it inside a loop stays one branch,
/// where the compiler would otherwise write the loop out for each outcome: with four such branches,
/// sixteen times.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    side::opaque(value)
}

/// [`opaque`]: what was computed from the value before is computed from it again.
#[inline(always)]
pub fn opaque_vec16(value: Vec16) -> Vec16 {
    side::opaque_vec16(value)
}

/// Says that this thread waits for what another block writes. Whoever does may wait for a block of
/// a lower index, which runs already, or is done; one block of a grid may for those behind it, too,
/// which run while it waits, where a device has room for two.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn spin() {
    side::spin();
}
