//! The scratch memory through which blocks pass each other partial sums.

use super::warp::MAX_SUMS;
use crate::abi::{MAX_PARTIALS, NORMALISER_WORDS, attempt, workspace};
use crate::element::{MAX_LANES, unrolled};
use cuda_std::atomic::{fence, fetch_add, fetch_max};
use cuda_std::hint::{opaque, spin};
use cuda_std::memory::{load_shared_by_grid, store, store_shared_by_grid};
use cuda_std::warp::any;

/// Words from `abi::workspace::PARTIALS` on: partial sums, followed by those of the normaliser.
const WORDS: u32 = MAX_PARTIALS + NORMALISER_WORDS;

/// The scratch memory where blocks publish partial sums for the block that adds them up.
///
/// A word is zero until a sum is published in it, and the thread that takes the sum makes it zero
/// again. A word that is not zero is its own ready flag, so no other flag and no fence are needed.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    start: u64,
}

impl Workspace {
    /// # Safety
    /// 1. `start` is the address of `abi::WORKSPACE_BYTES` of global memory, 16-byte aligned, that
    ///    no other launch uses at the same time.
    /// 2. The memory is zero, except for `abi::workspace::UNCOUNTED`, `abi::workspace::TOTALS` and
    ///    what follows the partial sums. The launch leaves it so.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn new(start: u64) -> Self {
        Workspace { start }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn partial(self, index: u32) -> *mut u64 {
        (self.start + workspace::PARTIALS + u64::from(index) * 8) as *mut u64
    }

    /// Reports a row with an invalid target. The row makes its block's sum NaN, and the report is
    /// made before the block publishes that sum, so that whoever sees the NaN finds the report.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn report_row(self, row: u64) {
        // SAFETY: within the workspace; only accessed atomically while blocks may report rows.
        unsafe { fetch_max((self.start + workspace::FAULT) as *mut u64, !row) };
    }

    /// What is known of rows that do not count, as the word at
    /// [`UNCOUNTED`](crate::abi::workspace::UNCOUNTED) says. The value may be out of date.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn uncounted(self) -> u32 {
        // SAFETY: within the workspace; others store it in the way that this load is made for.
        unsafe { load_shared_by_grid((self.start + workspace::UNCOUNTED) as *mut u64) as u32 }
    }

    /// Notes for the launch after this one that a row does not count, unless that is noted already
    /// or the call is cautious. Stores to the same address are serialized: with one for each lane
    /// and tile, a launch took several times as long as one that computes all rows (H200, every
    /// third of 5.9 million rows of 4 columns, f32).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn note_uncounted(self) {
        if self.uncounted() == 0 {
            // SAFETY: within the workspace; others store the same.
            unsafe { self.store_uncounted(attempt::NOTED) };
        }
    }

    /// Whether the optimistic launch has left all rows to the launch after it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_retried(self) -> bool {
        u64::from(self.uncounted()) == attempt::NOTED
    }

    /// Whether this call is cautious. A note that is made meanwhile does not change the answer.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_cautious(self) -> bool {
        u64::from(self.uncounted()) > attempt::NOTED
    }

    /// Decides how cautious the next calls are. `all_count` says whether all rows of this call
    /// count, or are assumed to.
    ///
    /// # Safety
    /// One thread calls this, when no other thread reads the decision any more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn end_attempt(self, all_count: bool) {
        let known = u64::from(self.uncounted());
        let cautious = known.saturating_sub(attempt::NOTED);
        let next = match cautious {
            _ if !all_count => attempt::NOTED + attempt::CAUTIOUS_CALLS,
            // A note is for the launch after this one.
            0 => return,
            1 => 0,
            _ => known - 1,
        };
        // SAFETY: the caller's condition.
        unsafe { self.store_uncounted(next) };
    }

    /// # Safety
    /// No other thread stores something else at the same time.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_uncounted(self, what: u64) {
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store_shared_by_grid((self.start + workspace::UNCOUNTED) as *mut u64, what) };
    }

    /// The lowest row that was reported, if any; the report is cleared.
    ///
    /// # Safety
    /// 1. All blocks have published their sums, and the sum that this block has taken is NaN.
    /// 2. One thread calls this, once.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn take_reported_row(self) -> Option<u64> {
        let at = (self.start + workspace::FAULT) as *mut u64;
        // SAFETY: within the workspace; nothing else accesses it any more.
        unsafe {
            let found = load_shared_by_grid(at);
            store(at, 0);
            if found == 0 { None } else { Some(!found) }
        }
    }

    /// Publishes a partial sum as word `index`.
    ///
    /// # Safety
    /// 1. `index` is below `abi::MAX_PARTIALS`, or one of the words of
    ///    [`Normaliser`](super::Normaliser).
    /// 2. No other thread publishes this word.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn publish(self, index: u32, sum: f64) {
        // SAFETY: the caller's conditions.
        unsafe { self.publish_bits(index, nonzero_bits(sum)) };
    }

    /// Publishes bits that are not all zero.
    ///
    /// # Safety
    /// As [`publish`](Self::publish).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn publish_bits(self, index: u32, bits: u64) {
        debug_assert!(index < WORDS && bits != 0);
        // SAFETY: within the workspace; the caller's conditions.
        unsafe { store_shared_by_grid(self.partial(index), bits) };
    }

    /// Waits until N words have been published, takes them, and makes them zero again. The words
    /// are as [`wait`](Self::wait) says.
    ///
    /// # Safety
    /// 1. As [`wait`](Self::wait).
    /// 2. One thread takes each word.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn take<const N: usize>(
        self,
        none: bool,
        first: u32,
        behind: impl Fn(usize) -> u32,
    ) -> [u64; N] {
        // SAFETY: the caller's conditions.
        unsafe { self.wait::<N, true>(none, first, behind) }
    }

    /// Waits until N words have been published, and returns them. With `CLEARS`, makes them zero
    /// again. Word `k` is `behind(k)` bytes after word number `first`; two of the N may be the same
    /// word. A thread with `none` gets zeros.
    ///
    /// All lanes of a warp wait until each has its words. If a lane went on as soon as it has its
    /// own, the lanes would stay diverged, and a sum over them would take seven times as long.
    ///
    /// # Safety
    /// 1. All lanes of a warp call this.
    /// 2. The words are published by blocks of a lower index, or by this block: before a barrier,
    ///    or by a warp of a lower number, which waits for none of a higher number before. One block
    ///    of a grid may wait for blocks of a higher index ([`BlockRank`](super::BlockRank)), and
    ///    any block if all are resident at the same time.
    /// 3. With `CLEARS`, one thread calls this for each word.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn wait<const N: usize, const CLEARS: bool>(
        self,
        none: bool,
        first: u32,
        behind: impl Fn(usize) -> u32,
    ) -> [u64; N] {
        let mut found = [0; N];
        // Rematerialize the addresses for each use: N of them would need more registers than there
        // are.
        let at = |first: u64, word: usize| (opaque(first) + u64::from(behind(word))) as *mut u64;
        let first = self.partial(first) as u64;
        loop {
            let mut missing = false;
            if !none {
                // Issue all loads before the first use.
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
        if CLEARS && !none {
            unrolled!(for word in 0..N; {
                // SAFETY: within the workspace; the word has been published, and nothing else
                // accesses it any more.
                unsafe { store(at(first, word), 0) };
            });
        }
        found
    }

    /// Adds this thread's share of the entries `from..to` to its `sums`, in order: entry number
    /// `from + thread`, and every `threads`-th after it. An entry is what one block has published:
    /// `T::WORDS` words, from which `T` decodes one term for each of the N sums. Word `k` of entry
    /// `i` has number `start + k * width + i`.
    ///
    /// ASKS words are loaded at a time: together they take as long as one.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
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
                // Where there is no entry any more, or the remaining loads are too few for an
                // entry, load the first entry again.
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
            // Recompute `has` below: its results would occupy registers during the wait.
            from = opaque(from.into()) as u32;
            unrolled!(for ahead in 0..ASKS; {
                if ahead < ASKS / T::WORDS && has(from, ahead) {
                    let mut words = [0; MAX_LANES];
                    unrolled!(for word in 0..MAX_LANES; {
                        if word < T::WORDS {
                            words[word] = found[(ahead * T::WORDS + word) % ASKS];
                        }
                    });
                    let terms = T::from_words(words);
                    unrolled!(for sum in 0..N; { sums[sum] += terms[sum]; });
                }
            });
            from += (ASKS / T::WORDS) as u32 * threads;
        }
        let mut nan = false;
        unrolled!(for sum in 0..N; { nan = nan || sums[sum].is_nan(); });
        if nan {
            // A NaN may come from a row that was reported: after the fence, a thread that has seen
            // the NaN also sees the report.
            fence();
        }
        sums
    }
}

/// Words that blocks set for the block that is the last to arrive.
impl Workspace {
    /// The word that counts the blocks of a grid that have arrived: the last of the words of
    /// partial sums.
    pub(crate) const ARRIVED: u32 = MAX_PARTIALS - 1;
    /// The word that counts the tickets that groups of blocks have taken.
    const TICKETS: u32 = Self::ARRIVED - 1;

    /// Takes a ticket, numbered from 0 in a launch.
    ///
    /// # Safety
    /// Only this function and [`clear_tickets`](Self::clear_tickets) access the word.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn take_ticket(self) -> u32 {
        // SAFETY: within the workspace; the caller's condition.
        unsafe { fetch_add(self.partial(Self::TICKETS), 1) as u32 }
    }

    /// Clears the number of tickets, at the end of the grid.
    ///
    /// # Safety
    /// One thread calls this, when no block takes a ticket any more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn clear_tickets(self) {
        // SAFETY: within the workspace; the caller's condition.
        unsafe { store(self.partial(Self::TICKETS), 0) };
    }

    /// Sets a word for another block, which may read it once this block has arrived.
    ///
    /// # Safety
    /// 1. `index` is below `abi::MAX_PARTIALS`.
    /// 2. No other thread accesses the word before this block has arrived.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn set_word(self, index: u32, bits: u64) {
        debug_assert!(index < MAX_PARTIALS);
        // SAFETY: within the workspace; the caller's conditions.
        unsafe { store_shared_by_grid(self.partial(index), bits) };
    }

    /// [`set_word`](Self::set_word) for a sum.
    ///
    /// # Safety
    /// As `set_word`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn set_sum(self, index: u32, sum: f64) {
        // SAFETY: the caller's conditions.
        unsafe { self.set_word(index, sum.to_bits()) };
    }

    /// Takes a word that another block has set, and makes it zero again.
    ///
    /// # Safety
    /// 1. `index` is below `abi::MAX_PARTIALS`.
    /// 2. The block that set the word has arrived, and no other thread accesses the word any more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn take_word(self, index: u32) -> u64 {
        debug_assert!(index < MAX_PARTIALS);
        // SAFETY: within the workspace; the caller's conditions.
        unsafe {
            let bits = load_shared_by_grid(self.partial(index));
            store_shared_by_grid(self.partial(index), 0);
            bits
        }
    }

    /// Counts an arrival in a word, and returns whether it is the last of `expected`; the last one
    /// makes the word zero again. The caller issues the fences around this.
    ///
    /// # Safety
    /// 1. `index` is below `abi::MAX_PARTIALS`.
    /// 2. Until the last arrival only this function accesses the word.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn arrive(self, index: u32, expected: u32) -> bool {
        debug_assert!(index < MAX_PARTIALS);
        // SAFETY: within the workspace; the caller's conditions.
        unsafe {
            let is_last = fetch_add(self.partial(index), 1) + 1 == u64::from(expected);
            if is_last {
                store(self.partial(index), 0);
            }
            is_last
        }
    }
}

/// The bits of a sum. Zero bits mean that nothing is published, so a sum of 0 is published as -0.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn nonzero_bits(sum: f64) -> u64 {
    if sum == 0.0 { (-0.0_f64).to_bits() } else { sum.to_bits() }
}

/// How the words that a block has published encode its terms of N sums.
pub(crate) trait Terms<const N: usize> {
    /// Words of one block.
    const WORDS: usize;
    fn from_words(words: [u64; MAX_LANES]) -> [f64; N];
}

/// One word for each term: the bits of a float64.
pub(crate) struct F64Words;

impl<const N: usize> Terms<N> for F64Words {
    const WORDS: usize = N;
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn from_words(words: [u64; MAX_LANES]) -> [f64; N] {
        let mut terms = [0.0; N];
        unrolled!(for term in 0..N; { terms[term] = f64::from_bits(words[term]); });
        terms
    }
}
