//! Warps of 32 threads. All 32 must take part in every call here.

use crate::side;

/// Threads in a warp.
pub const WARP_SIZE: u32 = 32;

/// This thread's index in its warp.
#[inline(always)]
pub fn lane_id() -> u32 {
    crate::thread::thread_idx_x() % WARP_SIZE
}

/// This warp's index in its block.
#[inline(always)]
pub fn warp_id() -> u32 {
    crate::thread::thread_idx_x() / WARP_SIZE
}

/// A value that can travel between the lanes of a warp.
pub trait WarpShuffleValue: Copy {
    /// The value of `self` in the lane whose index differs by `lane_mask` (exclusive or).
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn shuffle_xor(self, lane_mask: u32) -> Self;
    /// The value of `self` in lane `lane`, which may differ from lane to lane.
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn shuffle(self, lane: u32) -> Self;
}

impl WarpShuffleValue for u32 {
    #[inline(always)]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        side::shuffle_xor(self, lane_mask)
    }

    #[inline(always)]
    fn shuffle(self, lane: u32) -> Self {
        side::shuffle(self, lane)
    }
}

impl WarpShuffleValue for f32 {
    #[inline(always)]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        f32::from_bits(self.to_bits().shuffle_xor(lane_mask))
    }

    #[inline(always)]
    fn shuffle(self, lane: u32) -> Self {
        f32::from_bits(self.to_bits().shuffle(lane))
    }
}

impl WarpShuffleValue for f64 {
    #[inline(always)]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        let bits = self.to_bits();
        let low = (bits as u32).shuffle_xor(lane_mask);
        let high = ((bits >> 32) as u32).shuffle_xor(lane_mask);
        f64::from_bits(u64::from(high) << 32 | u64::from(low))
    }

    #[inline(always)]
    fn shuffle(self, lane: u32) -> Self {
        let bits = self.to_bits();
        let low = (bits as u32).shuffle(lane);
        let high = ((bits >> 32) as u32).shuffle(lane);
        f64::from_bits(u64::from(high) << 32 | u64::from(low))
    }
}

/// Waits for every lane of the warp. All that a lane read or wrote before this is ordered before
/// what any lane does after it.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_warp() {
    side::sync_warp();
}

/// The largest of the values of the warp's lanes, in one instruction.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn max_of_warp(value: i32) -> i32 {
    side::max_of_warp(value)
}

/// The sum of the values of the warp's lanes, in one instruction.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sum_of_warp(value: u32) -> u32 {
    side::sum_of_warp(value)
}

/// Whether `of` is true in any lane of the warp.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn any(of: bool) -> bool {
    side::any(of)
}

/// The lanes of the warp in which `of` is true, as one bit each.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn ballot(of: bool) -> u32 {
    side::ballot(of)
}
