//! Sums over a block, through shared memory.

use super::warp::{MAX_SUMS, gather_sums, in_warp, scatter_sums, warp_sums};
use crate::element::{Real, unrolled};
use cuda_std::thread::{block_dim_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

cuda_std::shared_array! {
    /// Each warp's partial sums: up to `MAX_SUMS` (4) for each of up to 32 warps.
    pub(super) fn sums_of_warps() -> [f64; 128];
}

/// The sum of each of `values` over a row group, in every thread of the group. `threads`, the size
/// of the group, is a power of two up to 32 or the size of the block.
///
/// For a block this passes one barrier. The caller puts another barrier before the next call, which
/// overwrites the same shared memory.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn group_sums<R: Real, const N: usize>(values: [R; N], threads: u32) -> [R; N] {
    if threads > WARP_SIZE { block_sums::<R, true, N>(values) } else { warp_sums(values, threads) }
}

/// The sum of each of `values` over the block; the warps' sums are added up in float64. With `ALL`,
/// which allows only one value, every thread gets the sum; otherwise only thread 0 does. Barriers
/// are as for [`group_sums`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn block_sums<R: Real, const ALL: bool, const N: usize>(values: [R; N]) -> [R; N] {
    const { assert!(!ALL || N == 1) };
    // The lanes form N parts, each of which sums one value.
    let lanes = WARP_SIZE / N as u32;
    let (part, lane) = (lane_id() / lanes, lane_id() % lanes);
    let of_warp = scatter_sums(values);
    if lane == 0 {
        // SAFETY: a block has at most 32 warps, and each writes its own elements.
        unsafe { sums_of_warps().set(part * WARP_SIZE + warp_id(), of_warp.to_f64()) };
    }
    sync_threads();
    if !ALL && warp_id() > 0 {
        return values;
    }
    let warps = block_dim_x() / WARP_SIZE;
    let mut of_lane = 0.0;
    unrolled!(for ahead in 0..MAX_SUMS; {
        let warp = lane + ahead as u32 * lanes;
        if ahead < N && warp < warps {
            // SAFETY: the warp wrote its element before the barrier.
            of_lane += unsafe { sums_of_warps().get(part * WARP_SIZE + warp) };
        }
    });
    sync_warp();
    gather_sums::<f64, N>(in_warp(of_lane, lanes, |a, b| a + b)).map(R::from_f64)
}
