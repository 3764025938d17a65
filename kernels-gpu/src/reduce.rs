//! The reduction that every loss uses: stage one sums a thread's, a warp's and a block's values,
//! stage two sums the blocks' in one block, which waits for all others.
//!
//! Threads add up in the loss's own arithmetic; from the warp on everything is float64, but for
//! what blocks leave of a [`BlockRank`], which is rounded to the loss's own. The order of the additions
//! depends on the launch shape alone, never on which block is done when: a sum has the same bits on
//! every run.

use crate::abi::{
    ADDER_PERIOD, GROUP, LAG, MAX_NORMALISER_BLOCKS, MAX_PARTIALS, early_blocks, workspace,
};
use crate::element::{MAX_LANES, Real, unrolled};
use core::marker::PhantomData;
use cuda_std::atomic::{fence, fetch_add, fetch_max};
use cuda_std::hint::{opaque, spin};
use cuda_std::memory::{load_shared_by_grid, store, store_shared_by_grid};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{
    WARP_SIZE, WarpShuffleValue, any, lane_id, max_of_warp, sum_of_warp, sync_warp, warp_id,
};

/// Values that are summed side by side, at most.
const MAX_SUMS: usize = 4;

cuda_std::shared_array! {
    /// `MAX_SUMS` sums a warp.
    fn sums_of_warps() -> [f64; 128];
}

/// `value` combined over each row group of the warp, in every lane. `row group` is a power of two up to 32;
/// all lanes of the warp call it. Written out: as a loop, it would be one in the middle of every
/// row.
#[inline(always)]
fn in_warp<T: WarpShuffleValue>(mut value: T, group: u32, combine: impl Fn(T, T) -> T) -> T {
    let with = |value: T, mask: u32| {
        let other = value.shuffle_xor(mask);
        if mask < group { combine(value, other) } else { value }
    };
    if group > 8 {
        if group > 16 {
            value = with(value, 16);
        }
        value = with(value, 8);
    }
    with(with(with(value, 4), 2), 1)
}

/// Each of `values` summed over a row group, in every thread of it: a power of two of threads up to 32,
/// or the block. One barrier, for a block; before the next call stands another, of the caller's.
#[inline(always)]
pub(crate) fn group_sums<R: Real, const N: usize>(values: [R; N], group: u32) -> [R; N] {
    if group > WARP_SIZE { block_sums::<R, true, N>(values) } else { warp_sums(values, group) }
}

/// [`group_sums`] of a row group of a warp. The warp meets first, whatever ways its lanes came: shuffles
/// of lanes that have not met are slow.
#[inline(always)]
pub(crate) fn warp_sums<R: Real, const N: usize>(mut values: [R; N], group: u32) -> [R; N] {
    sync_warp();
    unrolled!(for index in 0..N; {
        values[index] = in_warp(values[index], group, |a, b| a + b);
    });
    values
}

/// The sums over the warp of `values`, each in a part of the lanes: one of N parts, in order. Half
/// of what a lane has it gives away at once, for a half of what another has: fewer shuffles than of
/// each sum in all lanes.
#[inline(always)]
fn sum_of_part<R: Real, const N: usize>(mut values: [R; N]) -> R {
    const { assert!(N.is_power_of_two() && N <= MAX_SUMS) };
    sync_warp();
    let (mut kept, mut mask) = (N, WARP_SIZE);
    unrolled!(for _step in 0..2; {
        if kept > 1 {
            (kept, mask) = (kept / 2, mask / 2);
            let upper = lane_id() & mask != 0;
            unrolled!(for index in 0..2; {
                if index < kept {
                    let (low, high) = (values[index], values[(kept + index) % N]);
                    let (keeps, gives) = if upper { (high, low) } else { (low, high) };
                    values[index] = keeps + gives.shuffle_xor(mask);
                }
            });
        }
    });
    in_warp(values[0], mask, |a, b| a + b)
}

/// The sums over the warp of `values`, in its first lane.
#[inline(always)]
pub(crate) fn sums_in_lane<R: Real, const N: usize>(values: [R; N]) -> [R; N] {
    of_parts(sum_of_part(values))
}

/// The sums of which each part of the lanes of a warp has one, in its first lane.
#[inline(always)]
fn of_parts<R: Real, const N: usize>(of_part: R) -> [R; N] {
    let mut sums = [of_part; N];
    unrolled!(for index in 1..MAX_SUMS; {
        if index < N {
            sums[index] = of_part.shuffle_xor(index as u32 * (WARP_SIZE / N as u32));
        }
    });
    sums
}

/// [`group_sums`] of the block: of its warps in float64. Unless it is one, for `ALL`, in the first
/// thread only.
#[inline(always)]
pub(crate) fn block_sums<R: Real, const ALL: bool, const N: usize>(values: [R; N]) -> [R; N] {
    const { assert!(!ALL || N == 1) };
    let lanes = WARP_SIZE / N as u32;
    let (part, lane) = (lane_id() / lanes, lane_id() % lanes);
    let of_warp = sum_of_part(values);
    if lane == 0 {
        // SAFETY: a block has at most 32 warps; each writes its own elements.
        unsafe { sums_of_warps().set(part * WARP_SIZE + warp_id(), of_warp.to_f64()) };
    }
    sync_threads();
    if !ALL && warp_id() > 0 {
        return values;
    }
    let warps = block_dim_x() / WARP_SIZE;
    let mut of_part = 0.0;
    unrolled!(for ahead in 0..MAX_SUMS; {
        let warp = lane + ahead as u32 * lanes;
        if ahead < N && warp < warps {
            // SAFETY: the warp wrote its element before the barrier.
            of_part += unsafe { sums_of_warps().get(part * WARP_SIZE + warp) };
        }
    });
    sync_warp();
    of_parts::<f64, N>(in_warp(of_part, lanes, |a, b| a + b)).map(R::from_f64)
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

/// [`warp_max`] of a row group of a warp.
#[inline(always)]
pub(crate) fn group_max<R: Real>(value: R, group: u32) -> R {
    sync_warp();
    in_warp(value, group, R::max)
}

/// Where blocks leave partial sums for a block that adds them up. A place is zero until a sum is
/// left in it, and whoever takes the sum makes it so again: that a sum is there needs no other
/// sign, and no fence.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    start: u64,
}

impl Workspace {
    /// # Safety
    /// 1. `start` is the address of `abi::WORKSPACE_BYTES` of global memory, 16-byte aligned, that
    ///    no other launch uses at the same time.
    /// 2. But for `abi::workspace::TOTALS` and what is behind the partial sums it is zero; it is
    ///    again when the launch is done.
    #[inline(always)]
    pub(crate) unsafe fn new(start: u64) -> Self {
        Workspace { start }
    }

    #[inline(always)]
    fn partial(self, index: u32) -> *mut u64 {
        (self.start + workspace::PARTIALS + u64::from(index) * 8) as *mut u64
    }

    /// Notes a row that is not as it should be. To be found, it is noted before its block leaves a
    /// sum, which is NaN.
    #[inline(always)]
    pub(crate) fn report_row(self, row: u64) {
        // SAFETY: within the workspace; only accessed atomically while blocks may note rows.
        unsafe { fetch_max((self.start + workspace::FAULT) as *mut u64, !row) };
    }

    /// The lowest row that was noted, and forgets it.
    ///
    /// # Safety
    /// All blocks have left a sum, and what this block has taken of them comes to NaN; one thread
    /// calls this, once.
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
    /// `index` is below `abi::MAX_PARTIALS` or in [`Normaliser`], and this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn publish(self, index: u32, sum: f64) {
        // SAFETY: the caller's condition.
        unsafe { self.publish_bits(index, bits_of_sum(sum)) };
    }

    /// Leaves other bits, not all zero.
    ///
    /// # Safety
    /// As [`leave`](Self::leave).
    #[inline(always)]
    unsafe fn publish_bits(self, index: u32, bits: u64) {
        debug_assert!(index < Normaliser::TOTALS + 2 && bits != 0);
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store_shared_by_grid(self.partial(index), bits) };
    }

    /// Takes N words when they have been left, of which the first is at number `first` and word `k`
    /// so many bytes behind it; two may be the same. A thread that has `none` gets zeros.
    ///
    /// The lanes of a warp wait for each other's: where each goes on as soon as it has its own,
    /// they do not meet again, and a sum over them takes seven times as long.
    ///
    /// # Safety
    /// One thread takes each; all lanes of a warp call this. They are left by blocks of a lower
    /// index, or by this one: before a barrier, or by its first warp. Of one block of a grid,
    /// others may be behind it ([`BlockRank`]).
    #[inline(always)]
    pub(crate) unsafe fn take<const N: usize>(
        self,
        none: bool,
        first: u32,
        behind: impl Fn(usize) -> u32,
    ) -> [u64; N] {
        let mut found = [0; N];
        // Where they are is made rematerialize each time: as many addresses as words are registers that are
        // not there.
        let at = |first: u64, word: usize| (opaque(first) + u64::from(behind(word))) as *mut u64;
        let first = self.partial(first) as u64;
        loop {
            let mut missing = false;
            if !none {
                // All are asked for before the first is looked at.
                unrolled!(for word in 0..N; {
                    // SAFETY: the caller's conditions.
                    found[word] = unsafe { load_shared_by_grid(at(first, word)) };
                });
                unrolled!(for word in 0..N; { missing = missing || found[word] == 0; });
            }
            if !any(missing) {
                break;
            }
            spin();
        }
        if !none {
            unrolled!(for word in 0..N; {
                // SAFETY: within the workspace; its block has left it, and nothing else accesses it
                // any more.
                unsafe { store(at(first, word), 0) };
            });
        }
        found
    }

    /// To N `sums` of each thread adds what T makes of the words of places `from` and its index in
    /// `threads`, and `threads` farther each, up to `to`, in order: of each, the first is at
    /// `start` and as many behind it as the place is, and each other `width` behind the one before.
    /// ASKS words are asked for at once: each takes as long as all.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub(crate) unsafe fn share<T: Terms<N>, const N: usize, const ASKS: usize>(
        self,
        mut sums: [f64; N],
        [start, width]: [u32; 2],
        (mut from, to): (u32, u32),
        (thread, threads): (u32, u32),
    ) -> [f64; N] {
        const { assert!(ASKS <= MAX_LANES && T::WORDS <= MAX_SUMS && ASKS >= T::WORDS) };
        while from < to {
            let has = |from: u32, ahead: usize| from + thread + ahead as u32 * threads < to;
            let behind = |index: usize| {
                let (ahead, word) = (index / T::WORDS, (index % T::WORDS) as u32);
                // Beyond the last place, and for a word too few for another, the first once more.
                let ahead = if ahead < ASKS / T::WORDS && has(from, ahead) {
                    ahead as u32 * threads
                } else {
                    0
                };
                (ahead + word * width) * 8
            };
            // SAFETY: the caller's conditions.
            let found: [u64; ASKS] =
                unsafe { self.take(!has(from, 0), start + from + thread, behind) };
            // Asked rematerialize, in no registers while words are waited for.
            from = opaque(from.into()) as u32;
            unrolled!(for ahead in 0..ASKS; {
                if ahead < ASKS / T::WORDS && has(from, ahead) {
                    let mut words = [0; MAX_LANES];
                    unrolled!(for word in 0..MAX_LANES; {
                        if word < T::WORDS {
                            words[word] = found[(ahead * T::WORDS + word) % ASKS];
                        }
                    });
                    let terms = T::of_words(words);
                    unrolled!(for sum in 0..N; { sums[sum] += terms[sum]; });
                }
            });
            from += (ASKS / T::WORDS) as u32 * threads;
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

/// Words that blocks set for the one that is the last to arrive.
impl Workspace {
    /// The word that counts a grid's blocks as they arrive: behind all for partial sums.
    pub(crate) const ARRIVED: u32 = MAX_PARTIALS - 1;

    /// Sets a word for another block, which the other sees when this one has arrived.
    ///
    /// # Safety
    /// `index` is below `abi::MAX_PARTIALS`, and no other thread accesses the word before that.
    #[inline(always)]
    pub(crate) unsafe fn set_word(self, index: u32, bits: u64) {
        debug_assert!(index < MAX_PARTIALS);
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store_shared_by_grid(self.partial(index), bits) };
    }

    /// [`set_word`](Self::set_word) of a sum.
    ///
    /// # Safety
    /// As `set_word`.
    #[inline(always)]
    pub(crate) unsafe fn set_sum(self, index: u32, sum: f64) {
        // SAFETY: the caller's condition.
        unsafe { self.set_word(index, sum.to_bits()) };
    }

    /// A word that was set, which is 0 again then.
    ///
    /// # Safety
    /// As [`set_word`](Self::set_word); who set it has arrived.
    #[inline(always)]
    pub(crate) unsafe fn take_word(self, index: u32) -> u64 {
        debug_assert!(index < MAX_PARTIALS);
        // SAFETY: within the workspace; the caller's condition.
        unsafe {
            let bits = load_shared_by_grid(self.partial(index));
            store_shared_by_grid(self.partial(index), 0);
            bits
        }
    }

    /// Counts an arrival in a word, and says whether it is the last of `expected`; the word is 0
    /// again then. Fences are the caller's.
    ///
    /// # Safety
    /// `index` is below `abi::MAX_PARTIALS`, and the word is accessed by this function alone until
    /// the last arrival.
    #[inline(always)]
    pub(crate) unsafe fn arrive(self, index: u32, expected: u32) -> bool {
        debug_assert!(index < MAX_PARTIALS);
        // SAFETY: within the workspace; the caller's condition.
        unsafe {
            let is_last = fetch_add(self.partial(index), 1) + 1 == u64::from(expected);
            if is_last {
                store(self.partial(index), 0);
            }
            is_last
        }
    }
}

/// What the words of a place add to N sums.
pub(crate) trait Terms<const N: usize> {
    /// How many words there are.
    const WORDS: usize;
    fn of_words(words: [u64; MAX_LANES]) -> [f64; N];
}

/// The terms themselves.
pub(crate) struct AsTheyAre;

impl<const N: usize> Terms<N> for AsTheyAre {
    const WORDS: usize = N;
    #[inline(always)]
    fn of_words(words: [u64; MAX_LANES]) -> [f64; N] {
        let mut terms = [0.0; N];
        unrolled!(for term in 0..N; { terms[term] = f64::from_bits(words[term]); });
        terms
    }
}

/// Two totals that the first blocks of a grid add up for those behind them: their places in the
/// workspace.
///
/// Blocks begin in the order of their indices. Whoever waits for the totals waits for blocks that
/// have begun.
#[derive(Clone, Copy)]
pub(crate) struct Normaliser {
    workspace: Workspace,
    /// How many things are counted; 0 where the totals are sums.
    counted: u64,
}

impl Normaliser {
    /// The sums of the blocks that add up, and where they come together.
    const PARTS: u32 = MAX_PARTIALS;
    const TOTALS: u32 = Self::PARTS + 2 * MAX_NORMALISER_BLOCKS;

    /// Totals that are sums.
    #[inline(always)]
    pub(crate) fn sums(workspace: Workspace) -> Self {
        Normaliser { workspace, counted: 0 }
    }

    /// Totals that both are how many of `things` are to be counted, fewer than 2³²: a place has how
    /// many were looked at, and how many of them count. Whole numbers have the same sum in any
    /// order.
    #[inline(always)]
    pub(crate) fn counts(workspace: Workspace, things: u64) -> Self {
        Normaliser { workspace, counted: things }
    }

    /// Whether they are [`counts`](Self::counts).
    #[inline(always)]
    pub(crate) fn are_counts(self) -> bool {
        self.counted != 0
    }

    /// Adds to the counts how many things this thread has looked at, and how many of them count.
    /// One addition a block: those to one place are made one after the other.
    ///
    /// # Safety
    /// The totals are counts; over the grid, all things are looked at once. Every thread of the
    /// block calls this, which has not called [`group_sums`] since its last barrier.
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
            let _ = unsafe { fetch_add(self.workspace.partial(Self::TOTALS), both) };
        }
    }

    /// Asks for total `index`, which may not be there yet.
    #[inline(always)]
    pub(crate) fn ask(self, index: u32) -> u64 {
        let at = if self.are_counts() { Self::TOTALS } else { Self::TOTALS + index };
        // SAFETY: within the workspace; written by one block or added to, as is to be while others
        // read.
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
    /// `blocks` is at most `abi::MAX_NORMALISER_BLOCKS`. Every thread of those blocks calls this, once
    /// a launch; the block has not called [`group_sums`] since its last barrier.
    #[inline(always)]
    pub(crate) unsafe fn add_up(self, values: [f64; 2], blocks: u32) {
        let of_block = block_sums::<f64, false, 2>(values);
        let block = block_idx_x();
        if thread_idx_x() == 0 {
            unrolled!(for index in 0..2; {
                let part = Self::PARTS + index as u32 * blocks + block;
                // SAFETY: each block has its own.
                unsafe { self.workspace.publish(part, of_block[index]) };
            });
        }
        if block + 1 < blocks {
            return;
        }
        // Between the sums of the block and these; and this block's are left.
        sync_threads();
        let (thread, step) = (thread_idx_x(), block_dim_x());
        // SAFETY: the blocks before this have left them or will, this one has.
        let shares = unsafe {
            self.workspace.share::<AsTheyAre, 2, 4>(
                [0.0; 2],
                [Self::PARTS, blocks],
                (0, blocks),
                (thread, step),
            )
        };
        let totals = block_sums::<f64, false, 2>(shares);
        if thread == 0 {
            unrolled!(for index in 0..2; {
                // SAFETY: the last of the blocks alone leaves them.
                unsafe { self.workspace.publish(Self::TOTALS + index as u32, totals[index]) };
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

    /// Asks for both.
    #[inline(always)]
    pub(crate) fn ask_for_both(self) -> [u64; 2] {
        [self.ask(0), self.ask(1)]
    }

    /// Both, which have been [asked](Self::ask_for_both) for, and are gone then.
    ///
    /// # Safety
    /// The blocks that add up are of a lower index; nobody waits for the totals any more, and one
    /// thread takes them.
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

/// Sums each of `values` over the grid and calls `finish` with the sums, in one thread of the last
/// block. Every thread of the grid must call it, once a launch; no block has called [`group_sums`]
/// since its last barrier.
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
        unrolled!(for sum in 0..N; {
            let at = sum as u32 * grid_dim_x() + block_idx_x();
            // SAFETY: the caller's condition; each block leaves its own.
            unsafe { workspace.publish(at, of_block[sum]) };
        });
    }
    // SAFETY: the caller's conditions.
    unsafe { sums_over_blocks(workspace, finish) };
}

/// The bits of a sum, of which all zero stand for none; to a sum, the other zero is the same.
#[inline(always)]
fn bits_of_sum(sum: f64) -> u64 {
    if sum == 0.0 { (-0.0_f64).to_bits() } else { sum.to_bits() }
}

/// Adds up what each block has left for N sums: the first that are no group's yet in the groups'
/// last blocks, and all that is left at the end in the last of all.
///
/// # Safety
/// As [`grid_sums`]; a thread of each block's first warp has left the block's sums.
#[inline(always)]
unsafe fn sums_over_blocks<const N: usize>(workspace: Workspace, finish: impl FnOnce([f64; N])) {
    let (block, blocks) = (block_idx_x(), grid_dim_x());
    let (group, lag) = (GROUP, LAG);
    // Groups that blocks behind them add up.
    let groups = early_blocks(blocks) / group;
    let of_groups = N as u32 * blocks;
    let index = (block / group).wrapping_sub(lag);
    let has_group = (block + 1).is_multiple_of(group) && index < groups;
    let of_block = [0, blocks];
    if has_group && warp_id() == 0 {
        let (lane, step) = (lane_id(), WARP_SIZE);
        let of_index = (index * group, (index + 1) * group);
        // SAFETY: the blocks of the group leave them; they are of a lower index.
        let shares = unsafe {
            workspace.share::<AsTheyAre, N, 4>([0.0; N], of_block, of_index, (lane, step))
        };
        let of_group = warp_sums(shares, WARP_SIZE);
        if lane == 0 {
            unrolled!(for sum in 0..N; {
                let partial = of_groups + sum as u32 * groups + index;
                // SAFETY: the caller's condition; each group has its own.
                unsafe { workspace.publish(partial, of_group[sum]) };
            });
        }
    }
    if !is_last_block() {
        return;
    }
    let (thread, step) = (thread_idx_x(), block_dim_x());
    let (at, rest) = ([of_groups, groups], (groups * group, blocks));
    // SAFETY: every group leaves its own, and every block behind them.
    let shares = unsafe {
        let shares = [0.0; N];
        let shares = workspace.share::<AsTheyAre, N, 4>(shares, at, (0, groups), (thread, step));
        workspace.share::<AsTheyAre, N, 4>(shares, of_block, rest, (thread, step))
    };
    // Between the sums of the block and these.
    sync_threads();
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        finish(of_grid);
    }
}

/// A block's place in a grid of `abi::grid_of_workers`, behind others in `front` of it.
///
/// The last block of every stretch takes no piece. It adds up what the pieces of the stretch before
/// its own have left, of which there is hardly one that it has to wait for. One of the last,
/// however, adds up all that is left, and so the grid: it has begun, and fetched its instructions,
/// long before the last piece, and all that it waits for then is what the last pieces leave. It
/// begins `EARLY` stretches before the end, as long as it takes to fetch them; 1 or more.
#[derive(Clone, Copy)]
pub(crate) struct BlockRank<const EARLY: u32> {
    block: u32,
    front: u32,
}

impl<const EARLY: u32> BlockRank<EARLY> {
    /// Pieces of a stretch.
    const PIECES: u32 = ADDER_PERIOD - 1;

    #[inline(always)]
    pub(crate) fn of_block(front: u32) -> Self {
        BlockRank { block: block_idx_x().wrapping_sub(front), front }
    }

    /// The piece that the block takes, if there is such a piece, and the block does not [take
    /// none](Self::is_adder).
    #[inline(always)]
    pub(crate) fn worker(self) -> u32 {
        self.block - self.block / ADDER_PERIOD
    }

    /// Whether the block is the last of a stretch.
    #[inline(always)]
    pub(crate) fn is_adder(self) -> bool {
        (self.block + 1).is_multiple_of(ADDER_PERIOD)
    }

    /// The blocks of the grid behind those in front.
    #[inline(always)]
    fn blocks(self) -> u32 {
        grid_dim_x() - self.front
    }

    /// The pieces of the grid.
    #[inline(always)]
    pub(crate) fn workers(self) -> u32 {
        self.blocks() - (self.blocks() / ADDER_PERIOD).max(1)
    }

    /// The block that adds up the grid. It alone waits for blocks behind it, of which there is one
    /// on its way as long as a device has room for two.
    #[inline(always)]
    fn last_adder(self) -> u32 {
        let blocks = self.blocks();
        if blocks <= ADDER_PERIOD {
            return blocks - 1;
        }
        (1 + (blocks / ADDER_PERIOD).saturating_sub(EARLY)) * ADDER_PERIOD - 1
    }

    /// Whether the block adds up the grid.
    #[inline(always)]
    pub(crate) fn is_last_adder(self) -> bool {
        self.block == self.last_adder()
    }

    /// Leaves pair `pair` of the terms of a piece.
    ///
    /// # Safety
    /// The piece is one of `pieces`, those of the grid, of whose pairs all words have room; one
    /// thread leaves each, once a launch.
    #[inline(always)]
    pub(crate) unsafe fn publish<R: Real>(
        piece: u32,
        pair: u32,
        terms: [R; 2],
        pieces: u32,
        workspace: Workspace,
    ) {
        let words = Pairs::to_words(terms);
        unrolled!(for word in 0..2; {
            if word < Pairs::<R>::WORDS {
                let at = (pair * Pairs::<R>::WORDS as u32 + word as u32) * pieces + piece;
                // SAFETY: the caller's conditions.
                unsafe { workspace.publish_bits(at, words[word]) };
            }
        });
    }

    /// The sums over all pieces of `pairs` of terms that they have left, one or two, for `finish`,
    /// in one thread of the block that [adds up the grid](Self::is_last_adder). A thread asks for
    /// ASKS words at once.
    ///
    /// # Safety
    /// All threads of the blocks that take no piece call this. Every piece's block
    /// [leaves](Self::leave) its words; for them and the sums of each stretch there is room.
    #[inline(always)]
    pub(crate) unsafe fn sums<R: Real, const ASKS: usize>(
        self,
        pairs: u32,
        workspace: Workspace,
        finish: impl FnOnce([f64; 4]),
    ) {
        let (index, of_grid) = (self.block / ADDER_PERIOD, self.is_last_adder());
        // Stretches that other blocks add up.
        let stretches = (self.last_adder() / ADDER_PERIOD).saturating_sub(1);
        let (thread, threads) = (thread_idx_x(), block_dim_x());
        let (words, pieces) = (Pairs::<R>::WORDS as u32, self.workers());
        let (from, to) = if of_grid {
            (stretches * Self::PIECES, pieces)
        } else if (1..=stretches).contains(&index) {
            ((index - 1) * Self::PIECES, index * Self::PIECES)
        } else {
            return;
        };
        // What is missing at last is asked for at once.
        let split = to - (to - from).min(ASKS as u32 / words * threads);
        let mut pair = 0;
        loop {
            let mut sums = [0.0; 2];
            // Behind the words of all pieces.
            let of_stretches = words * pieces * pairs + 2 * pair * stretches;
            // SAFETY: every stretch's sums are left, by a block of a lower index, and the words of
            // every piece.
            unsafe {
                if of_grid {
                    let (at, all) = ([of_stretches, stretches], (0, stretches));
                    sums = workspace.share::<AsTheyAre, 2, 4>(sums, at, all, (thread, threads));
                }
                let at = [pair * words * pieces, pieces];
                let mut range = (from, split);
                loop {
                    sums = workspace.share::<Pairs<R>, 2, ASKS>(sums, at, range, (thread, threads));
                    if range.1 == to {
                        break;
                    }
                    range = (split, to);
                }
            }
            let sums = block_sums::<f64, false, 2>(sums);
            pair += 1;
            let is_last = pair == pairs;
            if thread == 0 {
                let set = |sum: usize| {
                    let at = of_stretches + sum as u32 * stretches + index - 1;
                    // SAFETY: the caller's conditions.
                    unsafe { workspace.publish(at, sums[sum]) };
                };
                if !of_grid {
                    set(0);
                    set(1);
                } else if !is_last {
                    // SAFETY: one thread's.
                    unsafe {
                        sums_of_first_pair().set(0, sums[0]);
                        sums_of_first_pair().set(1, sums[1]);
                    }
                }
            }
            if is_last {
                if of_grid && thread == 0 {
                    let [a, b] = sums;
                    finish(if pairs == 1 {
                        [a, b, 0.0, 0.0]
                    } else {
                        // SAFETY: as above.
                        unsafe { [sums_of_first_pair().get(0), sums_of_first_pair().get(1), a, b] }
                    });
                }
                return;
            }
            // The sums of the warps are to be replaced.
            sync_threads();
        }
    }
}

cuda_std::shared_array! {
    /// The sums of the first pair of two.
    fn sums_of_first_pair() -> [f64; 2];
}

/// Terms of type R, by pairs: two of 32 bits are one word.
struct Pairs<R>(PhantomData<R>);

impl<R: Real> Pairs<R> {
    /// Words of a pair.
    const WORDS: usize = size_of::<R>() / 4;

    /// Its words, no word zero.
    #[inline(always)]
    fn to_words([a, b]: [R; 2]) -> [u64; 2] {
        let not_zero = |x: R| if x == R::ZERO { -R::ZERO } else { x };
        if Self::WORDS == 1 {
            [not_zero(a).to_bits64() << 32 | b.to_bits64(), 0]
        } else {
            [a, b].map(|x| not_zero(x).to_bits64())
        }
    }
}

impl<R: Real, const N: usize> Terms<N> for Pairs<R> {
    const WORDS: usize = N / 2 * Self::WORDS;
    #[inline(always)]
    fn of_words(words: [u64; MAX_LANES]) -> [f64; N] {
        let mut terms = [0.0; N];
        unrolled!(for term in 0..N; {
            let bits = if Self::WORDS == 1 {
                let pair = words[term / 2];
                if term.is_multiple_of(2) { pair >> 32 } else { pair & u64::from(u32::MAX) }
            } else {
                words[term]
            };
            terms[term] = R::from_bits64(bits).to_f64();
        });
        terms
    }
}
