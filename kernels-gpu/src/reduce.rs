//! The reduction that every loss uses: stage one sums a thread's, a warp's and a block's values,
//! stage two sums the blocks' in the last block, which waits for those before it.
//!
//! Threads add up in the loss's own arithmetic; from the warp on everything is float64. The order
//! of the additions depends on the launch shape alone, never on which block is done when: a sum
//! has the same bits on every run.

use crate::abi::{GROUP, LAG, MAX_PARTIALS, MAX_TOTALS_BLOCKS, early_blocks, workspace};
use crate::element::{MAX_LANES, Real, unrolled};
use cuda_std::atomic::{fence, fetch_add, fetch_max};
use cuda_std::hint::{opaque, spin};
use cuda_std::memory::{load_shared_by_grid, store, store_shared_by_grid};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{
    WARP_SIZE, WarpShuffleValue, lane_id, max_of_warp, sum_of_warp, sync_warp, warp_id,
};

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
    fn partial(self, index: u32) -> *mut u64 {
        (self.start + workspace::PARTIALS + u64::from(index) * 8) as *mut u64
    }

    /// Notes a row that is not as it should be. To be found, it is noted before its block leaves a sum, which is NaN.
    #[inline(always)]
    pub(crate) fn report_row(self, row: u64) {
        // SAFETY: within the workspace; only accessed atomically while blocks may note rows.
        unsafe { fetch_max((self.start + workspace::FAULT) as *mut u64, !row) };
    }

    /// The lowest row that was noted, and forgets it.
    ///
    /// # Safety
    /// All blocks have left a sum, and what this block has taken of them comes to NaN; one thread calls this, once.
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
    pub(crate) unsafe fn leave(self, index: u32, sum: f64) {
        // SAFETY: the caller's condition.
        unsafe { self.leave_bits(index, bits_of_sum(sum)) };
    }

    /// Leaves other bits, not all zero.
    ///
    /// # Safety
    /// As [`leave`](Self::leave).
    #[inline(always)]
    unsafe fn leave_bits(self, index: u32, bits: u64) {
        debug_assert!(index < TotalsAhead::TOTALS + 2 && bits != 0);
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store_shared_by_grid(self.partial(index), bits) };
    }

    /// Takes N numbers of `place`, those that are somewhere, when they have been left; 0 for others.
    ///
    /// # Safety
    /// One thread takes each. They are left by blocks of a lower index, or by this one: before a barrier, or by its first
    /// warp.
    #[inline(always)]
    pub(crate) unsafe fn take<const N: usize>(
        self,
        place: u32,
        at: impl Fn(u32, usize) -> Option<u32>,
    ) -> [u64; N] {
        const { assert!(N <= MAX_LANES) };
        let mut found = [0; N];
        loop {
            // Where they are is made anew each time: as many addresses as numbers are registers that are not there.
            let place = opaque(place.into()) as u32;
            // All are asked for before the first is looked at.
            unrolled!(for index in 0..N; {
                if found[index] == 0 && let Some(at) = at(place, index) {
                    // SAFETY: the caller's conditions.
                    found[index] = unsafe { load_shared_by_grid(self.partial(at)) };
                }
            });
            let mut missing = false;
            unrolled!(for index in 0..N; {
                missing = missing || (found[index] == 0 && at(place, index).is_some());
            });
            if !missing {
                break;
            }
            spin();
        }
        let place = opaque(place.into()) as u32;
        unrolled!(for index in 0..N; {
            if let Some(at) = at(place, index) {
                // SAFETY: within the workspace; its block has left it, and nothing else accesses it any more.
                unsafe { store(self.partial(at), 0) };
            }
        });
        found
    }

    /// N sums over places `from`, `from + step`, ... up to `to`, in order: of P numbers each, which are where `at` says.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub(crate) unsafe fn share<T: Terms<P, N>, const P: usize, const N: usize>(
        self,
        terms: &T,
        at: impl Fn(u32, u32) -> u32,
        (from, to, step): (u32, u32, u32),
    ) -> [f64; N] {
        const { assert!(T::AT_ONCE * P <= MAX_LANES) };
        let mut sums = [0.0; N];
        let mut place = from;
        while place < to {
            let mut besides = [const { None }; MAX_LANES];
            unrolled!(for ahead in 0..MAX_LANES; {
                let place = place + ahead as u32 * step;
                if ahead < T::AT_ONCE && place < to {
                    besides[ahead] = Some(terms.besides(place));
                }
            });
            let wanted = |place: u32, index: usize| {
                let (part, ahead) = (index % P, index / P);
                let place = place + ahead as u32 * step;
                (ahead < T::AT_ONCE && part < T::USED && place < to).then(|| at(place, part as u32))
            };
            // SAFETY: the caller's conditions.
            let parts: [u64; MAX_LANES] = unsafe { self.take(place, wanted) };
            unrolled!(for ahead in 0..MAX_LANES; {
                if ahead < T::AT_ONCE && let Some(besides) = besides[ahead].take() {
                    let mut of_place = [0; P];
                    unrolled!(for part in 0..P; { of_place[part] = parts[ahead * P + part]; });
                    let place = place + ahead as u32 * step;
                    let terms = terms.of_place(place, besides, of_place);
                    unrolled!(for sum in 0..N; { sums[sum] += terms[sum]; });
                }
            });
            place += T::AT_ONCE as u32 * step;
        }
        let mut nan = false;
        unrolled!(for sum in 0..N; { nan = nan || sums[sum].is_nan(); });
        if nan {
            // What was noted of a row is seen before its sum is.
            fence();
        }
        sums
    }
}

/// What P numbers of a place add to N sums.
pub(crate) trait Terms<const P: usize, const N: usize> {
    /// How many places are asked for at once: each takes as long as all.
    const AT_ONCE: usize;
    /// How many of the numbers there are.
    const USED: usize = P;
    /// What else is needed.
    type Besides;
    /// Asks for it, before the numbers are waited for.
    fn besides(&self, place: u32) -> Self::Besides;
    /// From the bits of the numbers.
    fn of_place(&self, place: u32, besides: Self::Besides, parts: [u64; P]) -> [f64; N];
}

/// [`Terms::USED`].
#[inline(always)]
fn numbers_of<T: Terms<P, N>, const P: usize, const N: usize>(_: &T) -> usize {
    T::USED
}

/// The numbers themselves, of which WORDS are asked for at once.
pub(crate) struct AsTheyAre<const WORDS: usize>;

impl<const WORDS: usize, const N: usize> Terms<N, N> for AsTheyAre<WORDS> {
    const AT_ONCE: usize = WORDS / N;
    type Besides = ();
    #[inline(always)]
    fn besides(&self, _: u32) {}
    #[inline(always)]
    fn of_place(&self, _: u32, (): (), parts: [u64; N]) -> [f64; N] {
        let mut sums = [0.0; N];
        unrolled!(for sum in 0..N; { sums[sum] = f64::from_bits(parts[sum]); });
        sums
    }
}

/// Two totals that the first blocks of a grid add up for those behind them: their places in the workspace.
///
/// Blocks begin in the order of their indices. Whoever waits for the totals waits for blocks that have begun.
#[derive(Clone, Copy)]
pub(crate) struct TotalsAhead {
    workspace: Workspace,
    /// How many things are counted; 0 where the totals are sums.
    counted: u64,
}

impl TotalsAhead {
    /// The sums of the blocks that add up, and where they come together.
    const PARTS: u32 = MAX_PARTIALS;
    const TOTALS: u32 = Self::PARTS + 2 * MAX_TOTALS_BLOCKS;

    /// Totals that are sums.
    #[inline(always)]
    pub(crate) fn sums(workspace: Workspace) -> Self {
        TotalsAhead { workspace, counted: 0 }
    }

    /// Totals that both are how many of `things` are to be counted, fewer than 2³²: a place has how many were looked at,
    /// and how many of them count. Whole numbers have the same sum in any order.
    #[inline(always)]
    pub(crate) fn counts(workspace: Workspace, things: u64) -> Self {
        TotalsAhead { workspace, counted: things }
    }

    /// Whether they are [`counts`](Self::counts).
    #[inline(always)]
    pub(crate) fn are_counts(self) -> bool {
        self.counted != 0
    }

    /// Adds to the counts how many things this thread has looked at, and how many of them count. One addition a block:
    /// those to one place are made one after the other.
    ///
    /// # Safety
    /// The totals are counts; over the grid, all things are looked at once. Every thread of the block calls this, which
    /// has not called [`team_sums`] since its last barrier.
    #[inline(always)]
    pub(crate) unsafe fn count(self, looked_at: u32, count: u32) {
        sync_warp();
        let of_warp = [looked_at, count].map(sum_of_warp);
        if lane_id() == 0 {
            let both = u64::from(of_warp[0]) << 32 | u64::from(of_warp[1]);
            // SAFETY: a block has at most 32 warps; each writes its own element.
            unsafe { sums_of_warps().set(warp_id(), f64::from_bits(both)) };
        }
        sync_threads();
        if thread_idx_x() == 0 {
            let (mut both, mut warp) = (0, 0);
            while warp < block_dim_x() / WARP_SIZE {
                // SAFETY: the warp wrote it before the barrier.
                both += unsafe { sums_of_warps().get(warp) }.to_bits();
                warp += 1;
            }
            // SAFETY: within the workspace; until all things are counted accessed atomically alone.
            unsafe { fetch_add(self.workspace.partial(Self::TOTALS), both) };
        }
    }

    /// Asks for total `index`, which may not be there yet.
    #[inline(always)]
    pub(crate) fn ask(self, index: u32) -> u64 {
        let at = if self.are_counts() { Self::TOTALS } else { Self::TOTALS + index };
        // SAFETY: within the workspace; written by one block or added to, as is to be while others read.
        unsafe { load_shared_by_grid(self.workspace.partial(at)) }
    }

    /// The total, of what [`ask`](Self::ask) has got, if it is there.
    #[inline(always)]
    fn answer(self, got: u64) -> Option<f64> {
        if self.are_counts() {
            return (got >> 32 == self.counted).then_some(f64::from(got as u32));
        }
        (got != 0).then_some(f64::from_bits(got))
    }

    /// Sums over the first `blocks` blocks, of which this is one, what its threads have.
    ///
    /// # Safety
    /// `blocks` is at most `abi::MAX_TOTALS_BLOCKS`. Every thread of those blocks calls this, once a launch; the block has
    /// not called [`team_sums`] since its last barrier.
    #[inline(always)]
    pub(crate) unsafe fn add_up(self, values: [f64; 2], blocks: u32) {
        let of_block = block_sums::<f64, false, 2>(values);
        let block = block_idx_x();
        if thread_idx_x() == 0 {
            unrolled!(for index in 0..2; {
                let part = Self::PARTS + index as u32 * blocks + block;
                // SAFETY: each block has its own.
                unsafe { self.workspace.leave(part, of_block[index]) };
            });
        }
        if block + 1 < blocks {
            return;
        }
        // Between the sums of the block and these; and this block's are left.
        sync_threads();
        let (thread, step) = (thread_idx_x(), block_dim_x());
        let at = |block: u32, part: u32| Self::PARTS + part * blocks + block;
        // SAFETY: the blocks before this have left them or will, this one has.
        let shares = unsafe { self.workspace.share(&AsTheyAre::<4>, at, (thread, blocks, step)) };
        let totals = block_sums::<f64, false, 2>(shares);
        if thread == 0 {
            unrolled!(for index in 0..2; {
                // SAFETY: the last of the blocks alone leaves them.
                unsafe { self.workspace.leave(Self::TOTALS + index as u32, totals[index]) };
            });
        }
    }

    /// Total `index`, 0 or 1, when it is there.
    #[inline(always)]
    pub(crate) fn wait(self, index: u32) -> f64 {
        self.wait_with(index, self.ask(index))
    }

    /// The same, of which has been [`ask`](Self::ask)ed.
    #[inline(always)]
    pub(crate) fn wait_with(self, index: u32, mut got: u64) -> f64 {
        loop {
            if let Some(total) = self.answer(got) {
                return total;
            }
            spin();
            got = self.ask(index);
        }
    }

    /// Total `index`, which a launch before this has added up.
    #[inline(always)]
    pub(crate) fn known(self, index: u32) -> f64 {
        let got = self.ask(index);
        if self.are_counts() { f64::from(got as u32) } else { f64::from_bits(got) }
    }

    /// Asks for both.
    #[inline(always)]
    pub(crate) fn ask_for_both(self) -> [u64; 2] {
        [self.ask(0), self.ask(1)]
    }

    /// Both, which have been [asked](Self::ask_for_both) for, and are gone then.
    ///
    /// # Safety
    /// The blocks that add up are of a lower index; nobody waits for the totals any more, and one thread takes them.
    #[inline(always)]
    pub(crate) unsafe fn take(self, got: [u64; 2]) -> [f64; 2] {
        let totals = [self.wait_with(0, got[0]), self.wait_with(1, got[1])];
        // SAFETY: within the workspace; nothing else accesses them any more.
        unsafe {
            store(self.workspace.partial(Self::TOTALS), 0);
            store(self.workspace.partial(Self::TOTALS + 1), 0);
        }
        totals
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
    if thread_idx_x() == 0 {
        // SAFETY: the caller's conditions.
        unsafe { leave_of_block::<N>(0, of_block.map(bits_of_sum), 0, workspace) };
    }
    // SAFETY: the caller's conditions.
    unsafe { sums_over_blocks::<4, N, N>(&AsTheyAre::<4>, 0, workspace, finish) };
}

/// The blocks of the grid that leave something: all but the last `adders`.
#[inline(always)]
fn leaving_blocks(adders: u32) -> u32 {
    grid_dim_x() - adders
}

/// The bits of a sum, of which all zero stand for none; to a sum, the other zero is the same.
#[inline(always)]
pub(crate) fn bits_of_sum(sum: f64) -> u64 {
    if sum == 0.0 { (-0.0_f64).to_bits() } else { sum.to_bits() }
}

/// Leaves the bits of numbers of this block from number `first` on, of none all zero; nothing, of a block that adds up.
///
/// # Safety
/// One thread leaves each number, once a launch; the grid has at most `abi::max_blocks` of them all blocks.
#[inline(always)]
pub(crate) unsafe fn leave_of_block<const N: usize>(
    first: u32,
    values: [u64; N],
    adders: u32,
    workspace: Workspace,
) {
    let (block, blocks) = (block_idx_x(), leaving_blocks(adders));
    if block < blocks {
        unrolled!(for index in 0..N; {
            let at = (first + index as u32) * blocks + block;
            // SAFETY: the caller's condition; each block leaves its own.
            unsafe { workspace.leave_bits(at, values[index]) };
        });
    }
}

/// Sums over the grid the `terms` of what each block leaves, as [`grid_sums`] does: P numbers, or N sums of one that is at the end
/// of the grid, behind the [`early_blocks`]. The last `adders` blocks leave nothing: where there is none or one, the last of all
/// adds up what is left at the end, and where there are `abi::ADDERS` they share it, and every block leaves P numbers. The last
/// asks for WORDS at once.
///
/// # Safety
/// The grid has at most `abi::max_blocks` of the larger of [`Terms::USED`] and N blocks, and a thread of the first warp of each calls
/// [`leave_of_block`] first; nothing else is left in the workspace.
#[inline(always)]
pub(crate) unsafe fn sums_over_blocks<const WORDS: usize, const P: usize, const N: usize>(
    terms: &impl Terms<P, N>,
    adders: u32,
    workspace: Workspace,
    finish: impl FnOnce([f64; N]),
) {
    let (block, blocks) = (block_idx_x(), leaving_blocks(adders));
    let (group, lag, shared) = (GROUP, LAG, adders > 1);
    // Groups that blocks behind them add up, and all that some block adds up.
    let ahead = early_blocks(blocks) / group;
    let groups = if shared { blocks.div_ceil(group) } else { ahead };
    let of_groups = numbers_of::<_, P, N>(terms).max(N) as u32 * blocks;
    let (has_group, index) = if block >= blocks {
        let index = ahead + (block - blocks);
        (index < groups, index)
    } else {
        let index = (block / group).wrapping_sub(lag);
        ((block + 1).is_multiple_of(group) && index < ahead, index)
    };
    if has_group && warp_id() == 0 {
        let (lane, step) = (lane_id(), WARP_SIZE);
        let at = |block: u32, part: u32| part * blocks + block;
        let (from, to) = (index * group + lane, blocks.min((index + 1) * group));
        // SAFETY: the blocks of the group leave them; they are of a lower index.
        let shares = unsafe { workspace.share(terms, at, (from, to, step)) };
        let of_group = warp_sums(shares, WARP_SIZE);
        if lane == 0 {
            unrolled!(for sum in 0..N; {
                let partial = of_groups + sum as u32 * groups + index;
                // SAFETY: the caller's condition; each group has its own.
                unsafe { workspace.leave(partial, of_group[sum]) };
            });
        }
    }
    if !is_last_block() {
        return;
    }
    let (thread, step) = (thread_idx_x(), block_dim_x());
    let at = |group: u32, sum: u32| of_groups + sum * groups + group;
    // SAFETY: every group leaves its own.
    let mut shares: [f64; N] =
        unsafe { workspace.share(&AsTheyAre::<WORDS>, at, (thread, groups, step)) };
    if !shared {
        let at = |block: u32, sum: u32| sum * blocks + block;
        // SAFETY: every block leaves its own.
        let of_blocks: [f64; N] = unsafe {
            workspace.share(&AsTheyAre::<WORDS>, at, (groups * group + thread, blocks, step))
        };
        unrolled!(for sum in 0..N; { shares[sum] += of_blocks[sum]; });
    }
    // Between the sums of the block and these.
    sync_threads();
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        finish(of_grid);
    }
}
