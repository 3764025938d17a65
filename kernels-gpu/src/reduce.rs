//! The reduction that every loss uses: stage one sums a thread's, a warp's and a block's values,
//! stage two sums the blocks' in the last block, which waits for those before it.
//!
//! Threads add up in the loss's own arithmetic; from the warp on everything is float64. The order
//! of the additions depends on the launch shape alone, never on which block is done when: a sum
//! has the same bits on every run.

use crate::abi::{GROUP, MAX_PARTIALS, UNGROUPED, workspace};
use crate::element::{MAX_LANES, Real, unrolled};
use cuda_std::atomic::fetch_max;
use cuda_std::hint::spin;
use cuda_std::memory::{load_shared_by_grid, store, store_shared_by_grid};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, lane_id, sync_warp, warp_id};

/// Values that are summed side by side, at most.
const MAX_SUMS: usize = 4;

cuda_std::shared_array! {
    /// `MAX_SUMS` sums a warp.
    fn sums_of_warps() -> [f64; 128];
}
/// `value` combined over each team of the warp, in every lane. `team` is a power of two up to 32; all lanes of
/// the warp call it. Written out: as a loop, it would be one in the middle of every row.
#[inline(always)]
fn in_warp<T: WarpShuffleValue>(mut value: T, team: u32, combine: impl Fn(T, T) -> T) -> T {
    unrolled!(for level in 0..5; {
        let mask = 16 >> level;
        let other = value.shuffle_xor(mask);
        if mask < team {
            value = combine(value, other);
        }
    });
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
    let warps = block_dim_x() / WARP_SIZE;
    // The lanes that reach the first, which may be few.
    let team = if ALL || warps > 8 { WARP_SIZE } else { 8 };
    unrolled!(for index in 0..N; {
        let mut of_warp = 0.0;
        if lane_id() < warps {
            // SAFETY: warp `lane_id` wrote its element before the barrier.
            of_warp = unsafe { sums_of_warps().get(index as u32 * WARP_SIZE + lane_id()) };
        }
        let [of_block] = warp_sums([of_warp], team);
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

/// Where blocks leave partial sums for a block that adds them up. A place is zero until a sum is left in it, and
/// whoever takes the sum makes it so again: that a sum is there needs no other sign, and no fence.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    start: u64,
}

impl Workspace {
    /// # Safety
    /// 1. `start` is the address of `abi::WORKSPACE_BYTES` of global memory, 16-byte aligned, that no
    ///    other launch uses at the same time.
    /// 2. But for `abi::workspace::TOTALS` and what is behind the partial sums it is zero; it is again when the
    ///    launch is done.
    #[inline(always)]
    pub(crate) unsafe fn new(start: u64) -> Self {
        Workspace { start }
    }

    #[inline(always)]
    fn partial(self, index: u64) -> *mut u64 {
        (self.start + workspace::PARTIALS + index * 8) as *mut u64
    }

    /// Notes a row that is not as it should be. To be found, it is noted before its block leaves a sum.
    #[inline(always)]
    pub(crate) fn report_row(self, row: u64) {
        // SAFETY: within the workspace; only accessed atomically while blocks may note rows.
        unsafe { fetch_max((self.start + workspace::FAULT) as *mut u64, !row) };
    }

    /// The lowest row that was noted, and forgets it.
    ///
    /// # Safety
    /// All blocks have left a sum, which this block has taken; one thread calls this, once.
    #[inline(always)]
    pub(crate) unsafe fn take_reported_row(self) -> Option<u64> {
        let at = (self.start + workspace::FAULT) as *mut u64;
        // SAFETY: within the workspace; nothing else accesses it any more.
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
        // All bits zero stand for no sum; to a sum, the other zero is the same.
        let sum = if sum == 0.0 { -0.0 } else { sum };
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store_shared_by_grid(self.partial(index), sum.to_bits()) };
    }

    /// Takes partial sums `first[0]`, `first[1]`, ..., those that are `wanted`, when they have been left; 0 for others.
    ///
    /// # Safety
    /// One thread takes each. They are left by blocks of a lower index, or were by this one, before a barrier or by the
    /// same warp.
    #[inline(always)]
    pub(crate) unsafe fn take<const N: usize>(self, at: [u64; N], wanted: [bool; N]) -> [f64; N] {
        const { assert!(N <= MAX_LANES) };
        let mut found = [0; N];
        loop {
            let mut missing = false;
            // All are asked for before the first is looked at.
            unrolled!(for index in 0..N; {
                if wanted[index] && found[index] == 0 {
                    // SAFETY: the caller's conditions.
                    found[index] = unsafe { load_shared_by_grid(self.partial(at[index])) };
                }
            });
            unrolled!(for index in 0..N; {
                missing = missing || (wanted[index] && found[index] == 0);
            });
            if !missing {
                break;
            }
            spin();
        }
        let mut sums = [0.0; N];
        unrolled!(for index in 0..N; {
            if wanted[index] {
                // SAFETY: within the workspace; its block has left it, and nothing else accesses it any more.
                unsafe { store(self.partial(at[index]), 0) };
                sums[index] = f64::from_bits(found[index]);
            }
        });
        sums
    }

    /// This thread's share of N sums of `count` parts each, those of one sum from `first`, of the next `stride` behind:
    /// every `step`-th from `offset`, in order.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub(crate) unsafe fn share<const N: usize>(
        self,
        first: u64,
        stride: u64,
        count: u64,
        offset: u64,
        step: u64,
    ) -> [f64; N] {
        const { assert!(N <= MAX_SUMS) };
        // Four at once, however many sums they are of: each takes as long as all.
        let each = MAX_SUMS / N;
        let mut sums = [0.0; N];
        let mut part = offset;
        while part < count {
            let (mut at, mut wanted) = ([0; MAX_SUMS], [false; MAX_SUMS]);
            unrolled!(for index in 0..MAX_SUMS; {
                let (sum, ahead) = (index % N, index / N);
                let part = part + ahead as u64 * step;
                at[index] = first + sum as u64 * stride + part;
                wanted[index] = ahead < each && part < count;
            });
            // SAFETY: the caller's conditions.
            let parts = unsafe { self.take(at, wanted) };
            unrolled!(for index in 0..MAX_SUMS; { sums[index % N] += parts[index]; });
            part += each as u64 * step;
        }
        sums
    }
}

/// Whether this block has the highest index, and so may wait for all others.
#[inline(always)]
pub(crate) fn is_last_block() -> bool {
    block_idx_x() + 1 == grid_dim_x()
}

/// Sums each of `values` over the grid and calls `finish` with the sums, in one thread of the last block. Every
/// thread of the grid must call it, once a launch; no block has called [`team_sums`] since its last barrier.
///
/// # Safety
/// The grid has at most `abi::max_blocks(N)` blocks, and has left nothing else in the workspace.
#[inline(always)]
pub(crate) unsafe fn grid_sums<const N: usize>(
    values: [f64; N],
    workspace: Workspace,
    finish: impl FnOnce([f64; N]),
) {
    let of_block = block_sums::<f64, false, N>(values);
    // SAFETY: the caller's condition.
    unsafe { sums_over_blocks::<N>(of_block, workspace, finish) }
}

/// [`grid_sums`] of values that the first thread of each block has.
///
/// # Safety
/// As [`grid_sums`].
#[inline(always)]
pub(crate) unsafe fn sums_over_blocks<const N: usize>(
    values: [f64; N],
    workspace: Workspace,
    finish: impl FnOnce([f64; N]),
) {
    let (block, blocks) = (u64::from(block_idx_x()), u64::from(grid_dim_x()));
    let (thread, group) = (thread_idx_x(), u64::from(GROUP));
    // A block that adds up very many would take as long as a few rows.
    let grouped = blocks > u64::from(UNGROUPED);
    if thread == 0 {
        unrolled!(for index in 0..N; {
            // SAFETY: the caller's condition; each block leaves its own.
            unsafe { workspace.leave(index as u64 * blocks + block, values[index]) };
        });
    }
    let groups = blocks.div_ceil(group);
    let of_groups = N as u64 * blocks;
    if grouped && warp_id() == 0 && ((block + 1).is_multiple_of(group) || is_last_block()) {
        let first = block / group * group;
        let (count, lane) = (block + 1 - first, u64::from(lane_id()));
        // SAFETY: the blocks of the group leave them; none is of a higher index.
        let shares =
            unsafe { workspace.share::<N>(first, blocks, count, lane, u64::from(WARP_SIZE)) };
        let of_group = warp_sums(shares, WARP_SIZE);
        if lane == 0 {
            unrolled!(for index in 0..N; {
                let partial = of_groups + index as u64 * groups + block / group;
                // SAFETY: the caller's condition; each group has its own.
                unsafe { workspace.leave(partial, of_group[index]) };
            });
        }
    }
    if !is_last_block() {
        return;
    }
    let (first, count) = if grouped { (of_groups, groups) } else { (0, blocks) };
    // SAFETY: every block, or group, leaves its own.
    let shares = unsafe {
        workspace.share::<N>(first, count, count, u64::from(thread), u64::from(block_dim_x()))
    };
    // Between the sums of the block and these.
    sync_threads();
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        finish(of_grid);
    }
}
