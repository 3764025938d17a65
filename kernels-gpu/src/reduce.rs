//! The reduction that every loss uses: stage one sums a thread's, a warp's and a block's values,
//! stage two sums the blocks' in the last block, which waits for those before it.
//!
//! Threads add up in the loss's own arithmetic; from the warp on everything is float64. The order
//! of the additions depends on the launch shape alone, never on which block is done when: a sum
//! has the same bits on every run.

use crate::abi::{GROUP, LAG, MAX_PARTIALS, MAX_TOTALS_BLOCKS, workspace};
use crate::element::{MAX_LANES, Real, unrolled};
use cuda_std::atomic::fetch_max;
use cuda_std::hint::spin;
use cuda_std::memory::{load_shared_by_grid, peek_shared_by_grid, store, store_shared_by_grid};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, lane_id, max_of_warp, sync_warp, warp_id};

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
    let with = |value: T, mask: u32| {
        let other = value.shuffle_xor(mask);
        if mask < team { combine(value, other) } else { value }
    };
    if team > 8 {
        value = with(with(value, 16), 8);
    }
    with(with(with(value, 4), 2), 1)
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

/// The largest `value` of the warp, in every thread of it. Of numbers, not NaN.
#[inline(always)]
pub(crate) fn warp_max<R: Real>(value: R) -> R {
    sync_warp();
    if size_of::<R>() > 4 {
        return in_warp(value, WARP_SIZE, R::max);
    }
    // As integers, numbers are ordered but for the negative ones, which are turned around.
    let turn = |bits: i32| bits ^ (bits >> 31 & i32::MAX);
    let max = turn(max_of_warp(turn(value.to_bits64() as i32)));
    R::from_bits64(u64::from(max.cast_unsigned()))
}

/// [`warp_max`] of a team of a warp.
#[inline(always)]
pub(crate) fn team_max<R: Real>(value: R, team: u32) -> R {
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
    /// `index` is below `abi::MAX_PARTIALS` or in [`TotalsAhead`], and this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn leave(self, index: u64, sum: f64) {
        debug_assert!(index < TotalsAhead::TOTALS + 2);
        // All bits zero stand for no sum; to a sum, the other zero is the same.
        let sum = if sum == 0.0 { -0.0 } else { sum };
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store_shared_by_grid(self.partial(index), sum.to_bits()) };
    }

    /// Takes partial sums `at[0]`, `at[1]`, ..., those that are `wanted`, when they have been left; 0 for others.
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

/// Two totals that the first blocks of a grid add up for those behind them: their places in the workspace.
///
/// Blocks begin in the order of their indices. Whoever waits for the totals waits for blocks that have begun.
#[derive(Clone, Copy)]
pub(crate) struct TotalsAhead {
    workspace: Workspace,
}

impl TotalsAhead {
    /// The sums of the blocks that add up, and where they come together.
    const PARTS: u64 = MAX_PARTIALS as u64;
    const TOTALS: u64 = Self::PARTS + 2 * MAX_TOTALS_BLOCKS as u64;

    #[inline(always)]
    pub(crate) fn new(workspace: Workspace) -> Self {
        TotalsAhead { workspace }
    }

    /// Sums over the first `blocks` blocks, of which this is one, what its threads have.
    ///
    /// # Safety
    /// `blocks` is at most `abi::MAX_TOTALS_BLOCKS`. Every thread of those blocks calls this, once a launch; the block has
    /// not called [`team_sums`] since its last barrier.
    #[inline(always)]
    pub(crate) unsafe fn add_up(self, values: [f64; 2], blocks: u32) {
        let of_block = block_sums::<f64, false, 2>(values);
        let (block, blocks) = (u64::from(block_idx_x()), u64::from(blocks));
        if thread_idx_x() == 0 {
            unrolled!(for index in 0..2; {
                let part = Self::PARTS + index as u64 * blocks + block;
                // SAFETY: each block has its own.
                unsafe { self.workspace.leave(part, of_block[index]) };
            });
        }
        if block + 1 < blocks {
            return;
        }
        // Between the sums of the block and these; and this block's are left.
        sync_threads();
        let (thread, step) = (u64::from(thread_idx_x()), u64::from(block_dim_x()));
        // SAFETY: the blocks before this have left them or will, this one has.
        let shares =
            unsafe { self.workspace.share::<2>(Self::PARTS, blocks, blocks, thread, step) };
        let totals = block_sums::<f64, false, 2>(shares);
        if thread == 0 {
            unrolled!(for index in 0..2; {
                // SAFETY: the last of the blocks alone leaves them.
                unsafe { self.workspace.leave(Self::TOTALS + index as u64, totals[index]) };
            });
        }
    }

    /// Total `index`, 0 or 1, when it is there.
    #[inline(always)]
    pub(crate) fn wait(self, index: u64) -> f64 {
        loop {
            // SAFETY: within the workspace; written by one block, as is to be while others read.
            let bits = unsafe { peek_shared_by_grid(self.workspace.partial(Self::TOTALS + index)) };
            if bits != 0 {
                return f64::from_bits(bits);
            }
            spin();
        }
    }

    /// Both, which are gone then.
    ///
    /// # Safety
    /// The blocks that add up are of a lower index; nobody waits for the totals any more, and one thread takes them.
    #[inline(always)]
    pub(crate) unsafe fn take(self) -> [f64; 2] {
        // SAFETY: the caller's conditions.
        unsafe { self.workspace.take([Self::TOTALS, Self::TOTALS + 1], [true; 2]) }
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
    unsafe { sums_over_blocks::<true, N>(of_block, thread_idx_x() == 0, workspace, finish) }
}

/// [`grid_sums`] of values that one thread of each block has, the one that `leaves` them: with `FIRST` it is of the first
/// warp.
///
/// # Safety
/// As [`grid_sums`].
#[inline(always)]
pub(crate) unsafe fn sums_over_blocks<const FIRST: bool, const N: usize>(
    values: [f64; N],
    leaves: bool,
    workspace: Workspace,
    finish: impl FnOnce([f64; N]),
) {
    let (block, blocks) = (u64::from(block_idx_x()), u64::from(grid_dim_x()));
    let (group, lag) = (u64::from(GROUP), u64::from(LAG));
    if leaves {
        unrolled!(for index in 0..N; {
            // SAFETY: the caller's condition; each block leaves its own.
            unsafe { workspace.leave(index as u64 * blocks + block, values[index]) };
        });
    }
    let groups = blocks / group;
    let of_groups = N as u64 * blocks;
    let ends_group = (block + 1).is_multiple_of(group);
    if ends_group && block / group >= lag && warp_id() == 0 {
        let (behind, lane) = (block / group - lag, u64::from(lane_id()));
        // SAFETY: the blocks of the group leave them; they are of a lower index.
        let shares = unsafe {
            workspace.share::<N>(behind * group, blocks, group, lane, u64::from(WARP_SIZE))
        };
        let of_group = warp_sums(shares, WARP_SIZE);
        if lane == 0 {
            unrolled!(for index in 0..N; {
                let partial = of_groups + index as u64 * groups + behind;
                // SAFETY: the caller's condition; each group has its own.
                unsafe { workspace.leave(partial, of_group[index]) };
            });
        }
    }
    if !is_last_block() {
        return;
    }
    if !FIRST {
        // Until whoever leaves this block's has.
        sync_threads();
    }
    let summed = groups.saturating_sub(lag);
    let (first, thread) = (summed * group, u64::from(thread_idx_x()));
    let step = u64::from(block_dim_x());
    // SAFETY: every block, or group, leaves its own.
    let (mut shares, of_blocks) = unsafe {
        (
            workspace.share::<N>(of_groups, groups, summed, thread, step),
            workspace.share::<N>(first, blocks, blocks - first, thread, step),
        )
    };
    unrolled!(for index in 0..N; { shares[index] += of_blocks[index]; });
    if FIRST {
        // Between the sums of the block and these.
        sync_threads();
    }
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        finish(of_grid);
    }
}
