//! The reduction that every loss uses: stage one sums a thread's, a warp's and a block's values,
//! stage two sums the blocks' in the block that finishes last.
//!
//! Threads add up in the loss's own arithmetic; from the warp on everything is float64. The order
//! of the additions depends on the launch shape alone, never on which block finishes last: a sum
//! has the same bits on every run.

use crate::abi::{MAX_PARTIALS, workspace};
use crate::element::{Real, unrolled};
use cuda_std::atomic::{fetch_add_ordered, fetch_max};
use cuda_std::memory::{load_shared_by_grid, store};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, lane_id, sync_warp, warp_id};

/// Values that are summed side by side, at most.
const MAX_SUMS: usize = 4;

cuda_std::shared_array! {
    /// `MAX_SUMS` sums a warp.
    fn sums_of_warps() -> [f64; 128];
}
cuda_std::shared_array! {
    /// One maximum a warp.
    fn maxima_of_warps() -> [f64; 32];
}
cuda_std::shared_array! {
    /// Whether all other blocks had finished when this one had.
    fn is_last() -> [u64; 1];
}

/// `value` combined over each team of the warp, in every lane. `team` is a power of two up to 32; all lanes of
/// the warp call it.
#[inline(always)]
fn in_warp<T: WarpShuffleValue>(mut value: T, team: u32, combine: impl Fn(T, T) -> T) -> T {
    let mut mask = team / 2;
    while mask > 0 {
        value = combine(value, value.shuffle_xor(mask));
        mask /= 2;
    }
    value
}

/// Each of `values` summed over a team, in every thread of it: a power of two of threads up to 32, or the block.
/// One barrier, for a block; before the next call stands another, of the caller's.
#[inline(always)]
pub(crate) fn team_sums<R: Real, const N: usize>(values: [R; N], team: u32) -> [R; N] {
    if team > WARP_SIZE { block_sums::<R, true, N>(values) } else { warp_sums(values, team) }
}

/// [`team_sums`] of a team of a warp. The warp meets first, whatever ways its lanes came: shuffles of lanes that
/// have not met are slow.
#[inline(always)]
pub(crate) fn warp_sums<R: Real, const N: usize>(mut values: [R; N], team: u32) -> [R; N] {
    sync_warp();
    unrolled!(for index in 0..N; {
        values[index] = in_warp(values[index], team, |a, b| a + b);
    });
    values
}

/// [`team_sums`] of the block: of its warps in float64. Unless they are for `ALL`, in the first warp only.
#[inline(always)]
pub(crate) fn block_sums<R: Real, const ALL: bool, const N: usize>(values: [R; N]) -> [R; N] {
    const { assert!(N <= MAX_SUMS) };
    let mut sums = warp_sums(values, WARP_SIZE);
    unrolled!(for index in 0..N; {
        if lane_id() == 0 {
            // SAFETY: a block has at most 32 warps; each writes its own elements.
            unsafe { sums_of_warps().set(index as u32 * WARP_SIZE + warp_id(), sums[index].to_f64()) };
        }
    });
    sync_threads();
    if !ALL && warp_id() > 0 {
        return sums;
    }
    unrolled!(for index in 0..N; {
        let mut of_warp = 0.0;
        if lane_id() < block_dim_x() / WARP_SIZE {
            // SAFETY: warp `lane_id` wrote its element before the barrier.
            of_warp = unsafe { sums_of_warps().get(index as u32 * WARP_SIZE + lane_id()) };
        }
        let [of_block] = warp_sums([of_warp], WARP_SIZE);
        sums[index] = R::from_f64(of_block);
    });
    sums
}

/// The largest `value` of a team of a warp, in every thread of it. Of numbers: NaN is passed over.
#[inline(always)]
pub(crate) fn warp_max<R: Real>(value: R, team: u32) -> R {
    sync_warp();
    in_warp(value, team, R::max)
}

/// The largest `value` of the block, in every thread of it; barriers as of [`block_sums`].
#[inline(always)]
pub(crate) fn block_max<R: Real>(value: R) -> R {
    let of_warp = warp_max(value, WARP_SIZE);
    if lane_id() == 0 {
        // SAFETY: a block has at most 32 warps; each writes its own element.
        unsafe { maxima_of_warps().set(warp_id(), of_warp.to_f64()) };
    }
    sync_threads();
    let mut of_block = R::NEG_INFINITY;
    if lane_id() < block_dim_x() / WARP_SIZE {
        // SAFETY: warp `lane_id` wrote its element before the barrier.
        of_block = R::from_f64(unsafe { maxima_of_warps().get(lane_id()) });
    }
    warp_max(of_block, WARP_SIZE)
}

/// Where blocks leave partial sums for the block that finishes last.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    start: u64,
}

impl Workspace {
    /// # Safety
    /// 1. `start` is the address of `abi::WORKSPACE_BYTES` of global memory, 16-byte aligned, that no
    ///    other launch uses at the same time.
    /// 2. Its first `abi::workspace::TOTALS` bytes are zero; they are zero again when the launch is done.
    #[inline(always)]
    pub(crate) unsafe fn new(start: u64) -> Self {
        Workspace { start }
    }

    #[inline(always)]
    fn partial(self, index: u64) -> *mut f64 {
        (self.start + workspace::PARTIALS + index * 8) as *mut f64
    }

    /// Notes a row that is not as it should be.
    #[inline(always)]
    pub(crate) fn report_row(self, row: u64) {
        // SAFETY: within the workspace; only accessed atomically until the last block has counted.
        unsafe { fetch_max((self.start + workspace::FAULT) as *mut u64, !row) };
    }

    /// The lowest row that was noted, and forgets it.
    ///
    /// # Safety
    /// [`is_last_block`](Self::is_last_block) has said so, and one thread calls this, once.
    #[inline(always)]
    pub(crate) unsafe fn take_reported_row(self) -> Option<u64> {
        let at = (self.start + workspace::FAULT) as *mut u64;
        // SAFETY: within the workspace; all blocks have counted, nothing else accesses it.
        unsafe {
            let found = load_shared_by_grid(at);
            store(at, 0);
            if found == 0 { None } else { Some(!found) }
        }
    }

    /// Leaves a partial sum.
    ///
    /// # Safety
    /// `index` is below `abi::MAX_PARTIALS` and this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn leave(self, index: u64, sum: f64) {
        debug_assert!(index < u64::from(MAX_PARTIALS));
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store(self.partial(index), sum) };
    }

    /// A partial sum that was left.
    ///
    /// # Safety
    /// As [`share`](Self::share).
    #[inline(always)]
    pub(crate) unsafe fn left(self, index: u64) -> f64 {
        // SAFETY: the caller's condition; left by other blocks, and ordered before.
        unsafe { load_shared_by_grid(self.partial(index)) }
    }

    /// Whether this is the last block of the grid to call it, once a launch: then every partial sum left
    /// before is there to be read. One barrier before what is left counts, one after.
    #[inline(always)]
    pub(crate) fn is_last_block(self) -> bool {
        sync_threads();
        if thread_idx_x() == 0 {
            let counter = (self.start + workspace::COUNT) as *mut u32;
            // SAFETY: the counter is only counted on, until the last block has counted.
            let before = unsafe { fetch_add_ordered(counter, 1) };
            let last = before + 1 == grid_dim_x();
            if last {
                // SAFETY: all blocks have counted; nothing else accesses it before the next launch.
                unsafe { store(counter, 0) };
            }
            // SAFETY: one element, one thread.
            unsafe { is_last().set(0, u64::from(last)) };
        }
        sync_threads();
        // SAFETY: thread 0 wrote it before the barrier.
        unsafe { is_last().get(0) != 0 }
    }

    /// This thread's share of the sum of `count` partial sums from `first`: every `step`-th from
    /// `offset`, in order.
    ///
    /// # Safety
    /// They were left, and [`is_last_block`](Self::is_last_block) has said so.
    #[inline(always)]
    pub(crate) unsafe fn share(self, first: u64, count: u64, offset: u64, step: u64) -> f64 {
        let mut sum = 0.0;
        let mut index = offset;
        while index < count {
            // SAFETY: the caller's condition.
            sum += unsafe { self.left(first + index) };
            index += step;
        }
        sum
    }
}

/// Sums each of `values` over the grid and calls `finish` with the sums, in one thread of the grid. Every
/// thread of the grid must call it, once a launch; no block has called [`team_sums`] since its last barrier.
///
/// # Safety
/// N times the blocks of the grid are at most `abi::MAX_PARTIALS`.
#[inline(always)]
pub(crate) unsafe fn grid_sums<const N: usize>(
    values: [f64; N],
    workspace: Workspace,
    finish: impl FnOnce([f64; N]),
) {
    let (blocks, thread) = (u64::from(grid_dim_x()), thread_idx_x());
    let of_block = block_sums::<f64, false, N>(values);
    if thread == 0 {
        unrolled!(for index in 0..N; {
            let partial = index as u64 * blocks + u64::from(block_idx_x());
            // SAFETY: the caller's condition; each block leaves its own.
            unsafe { workspace.leave(partial, of_block[index]) };
        });
    }
    if !workspace.is_last_block() {
        return;
    }
    let mut shares = [0.0; N];
    unrolled!(for index in 0..N; {
        let first = index as u64 * blocks;
        // SAFETY: every block has left its own.
        shares[index] =
            unsafe { workspace.share(first, blocks, u64::from(thread), u64::from(block_dim_x())) };
    });
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        finish(of_grid);
    }
}
