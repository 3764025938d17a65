//! The divisor of a mean, where only the device knows it.

use super::block::{block_sums, sums_of_warps};
use super::workspace::{F64Words, Workspace};
use crate::abi::{MAX_NORMALISER_BLOCKS, MAX_PARTIALS};
use crate::element::unrolled;
use cuda_std::atomic::fetch_add;
use cuda_std::hint::spin;
use cuda_std::memory::{load_shared_by_grid, store, store_shared_by_grid};
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, sum_of_warp, sync_warp, warp_id};

/// Two totals, the sum of class weights and the number of rows, which the first blocks of a grid
/// add up in the workspace for the blocks after them.
///
/// Blocks start in the order of their indices, so a block that waits for the totals waits for
/// blocks that have started.
#[derive(Clone, Copy)]
pub(crate) struct Normaliser {
    workspace: Workspace,
    /// How many rows must have been read for the count to be complete; 0 where the totals are sums.
    expected: u64,
}

impl Normaliser {
    /// The first word of the blocks' partial sums.
    const BLOCK_SUMS: u32 = MAX_PARTIALS;
    /// The words of the two totals.
    const TOTALS: u32 = Self::BLOCK_SUMS + 2 * MAX_NORMALISER_BLOCKS;

    /// Totals that are sums, one word each.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn sums(workspace: Workspace) -> Self {
        Normaliser { workspace, expected: 0 }
    }

    /// Two equal totals: the number of rows that count, out of `rows`, which is 1 or more and below
    /// 2³². They share one word: its upper half is the number of rows whose targets have been read,
    /// its lower half how many of these count. Blocks add to it atomically, because integers have
    /// the same sum in any order.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn counts(workspace: Workspace, rows: u64) -> Self {
        Normaliser { workspace, expected: rows }
    }

    /// Whether the totals are [`counts`](Self::counts).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn are_counts(self) -> bool {
        self.expected != 0
    }

    /// Adds to the counts how many targets this thread has read, and how many of these rows count.
    /// There is one atomic addition per block, because additions to the same address are
    /// serialized.
    ///
    /// # Safety
    /// 1. The totals are counts. Over the grid the target of each row is read once.
    /// 2. Every thread of the block calls this.
    /// 3. The block has not called [`group_sums`](super::group_sums) since its last barrier.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn add_counts(self, looked_at: u32, count: u32) {
        sync_warp();
        let of_warp = [looked_at, count].map(sum_of_warp);
        if lane_id() == 0 {
            let both = u64::from(of_warp[0]) << 32 | u64::from(of_warp[1]);
            // SAFETY: a block has at most 32 warps, and each writes its own element.
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
            // SAFETY: within the workspace; only accessed atomically until all rows are counted.
            let _ = unsafe { fetch_add(self.workspace.partial(Self::TOTALS), both) };
        }
    }

    /// Counts all rows as rows that count, without reading a target.
    ///
    /// # Safety
    /// The totals are counts. One thread of the grid calls this, and none adds to the counts.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn count_all(self) {
        let both = self.expected << 32 | self.expected;
        // SAFETY: within the workspace; others load it in the way that this store is made for.
        unsafe { store_shared_by_grid(self.workspace.partial(Self::TOTALS), both) };
    }

    /// Loads the word of total `index`, 0 or 1, which may not be complete yet. A caller issues this
    /// load early, and passes the word to [`wait_with`](Self::wait_with) after other work.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn load(self, index: u32) -> u64 {
        let at = if self.are_counts() { Self::TOTALS } else { Self::TOTALS + index };
        // SAFETY: within the workspace; others write it by a store or an atomic addition for which
        // this load is made.
        unsafe { load_shared_by_grid(self.workspace.partial(at)) }
    }

    /// The total from its word, if it is complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn decode(self, word: u64) -> Option<f64> {
        if self.are_counts() {
            return (word >> 32 == self.expected).then_some(f64::from(word as u32));
        }
        (word != 0).then_some(f64::from_bits(word))
    }

    /// Sums each of `values` over the first `blocks` blocks, and publishes the totals. This block
    /// is one of them.
    ///
    /// # Safety
    /// 1. The totals are sums. `blocks` is at most `abi::MAX_NORMALISER_BLOCKS`.
    /// 2. Every thread of these blocks calls this, once a launch.
    /// 3. The block has not called [`group_sums`](super::group_sums) since its last barrier.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn sum_over_blocks(self, values: [f64; 2], blocks: u32) {
        // SAFETY: the caller's conditions; the words are the normaliser's.
        unsafe {
            sum_over_first_blocks(self.workspace, values, blocks, [Self::BLOCK_SUMS, Self::TOTALS]);
        }
    }

    /// Waits for total `index`, 0 or 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn wait(self, index: u32) -> f64 {
        self.wait_with(index, self.load(index))
    }

    /// Waits for total `index`, whose word was loaded before with [`load`](Self::load).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn wait_with(self, index: u32, mut word: u64) -> f64 {
        loop {
            if let Some(total) = self.decode(word) {
                return total;
            }
            spin();
            word = self.load(index);
        }
    }

    /// Loads the words of both totals, as [`load`](Self::load) does.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn load_both(self) -> [u64; 2] {
        [self.load(0), self.load(1)]
    }

    /// Waits for both totals, whose words were loaded before with
    /// [`load_both`](Self::load_both), and makes the words zero again.
    ///
    /// # Safety
    /// 1. The blocks that add up the totals have lower indices.
    /// 2. No thread waits for the totals any more, and one thread takes them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn take(self, words: [u64; 2]) -> [f64; 2] {
        let totals = [self.wait_with(0, words[0]), self.wait_with(1, words[1])];
        // SAFETY: within the workspace; nothing else accesses them any more.
        unsafe {
            store(self.workspace.partial(Self::TOTALS), 0);
            store(self.workspace.partial(Self::TOTALS + 1), 0);
        }
        totals
    }
}

/// The sum of all class weights, which the first blocks of a grid add up like the
/// [`Normaliser`].
#[derive(Clone, Copy)]
pub(crate) struct ClassWeights {
    workspace: Workspace,
}

impl ClassWeights {
    /// The first word of the blocks' partial sums.
    const BLOCK_SUMS: u32 = Normaliser::TOTALS + 2;
    /// The word of the total.
    const TOTAL: u32 = Self::BLOCK_SUMS + MAX_NORMALISER_BLOCKS;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(workspace: Workspace) -> Self {
        ClassWeights { workspace }
    }

    /// Sums `value` over the first `blocks` blocks, and publishes the total. This block is one of
    /// them.
    ///
    /// # Safety
    /// 1. `blocks` is at most `abi::MAX_NORMALISER_BLOCKS`.
    /// 2. Every thread of these blocks calls this, once a launch.
    /// 3. The block has not called [`group_sums`](super::group_sums) since its last barrier.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn sum_over_blocks(self, value: f64, blocks: u32) {
        // SAFETY: the caller's conditions; the words are those of this sum.
        unsafe {
            sum_over_first_blocks(self.workspace, [value], blocks, [Self::BLOCK_SUMS, Self::TOTAL]);
        }
    }

    /// Waits for the total.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn wait(self) -> f64 {
        loop {
            // SAFETY: within the workspace; another block writes it by a store for which this load
            // is made.
            let word = unsafe { load_shared_by_grid(self.workspace.partial(Self::TOTAL)) };
            if word != 0 {
                return f64::from_bits(word);
            }
            spin();
        }
    }

    /// Makes the word of the total zero again.
    ///
    /// # Safety
    /// No thread waits for the total any more, and one thread clears it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn clear(self) {
        // SAFETY: within the workspace; nothing else accesses it any more.
        unsafe { store(self.workspace.partial(Self::TOTAL), 0) };
    }
}

/// Sums each of `values` over the first `blocks` blocks, one of which is this block, and publishes
/// the sums in the words from `totals` on. The blocks' own sums are in the words from `block_sums`
/// on.
///
/// # Safety
/// 1. `blocks` is at most `abi::MAX_NORMALISER_BLOCKS`; the words are used for nothing else.
/// 2. Every thread of these blocks calls this, once a launch for these words.
/// 3. The block has not called [`group_sums`](super::group_sums) since its last barrier.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn sum_over_first_blocks<const N: usize>(
    workspace: Workspace,
    values: [f64; N],
    blocks: u32,
    [words_of_blocks, totals]: [u32; 2],
) {
    let of_block = block_sums::<f64, false, N>(values);
    let block = block_idx_x();
    if thread_idx_x() == 0 {
        unrolled!(for index in 0..N; {
            let at = words_of_blocks + index as u32 * blocks + block;
            // SAFETY: each block has its own words.
            unsafe { workspace.publish(at, of_block[index]) };
        });
    }
    if block + 1 < blocks {
        return;
    }
    // This block's own sums are published, and the shared memory of `block_sums` is free again.
    sync_threads();
    let (thread, step) = (thread_idx_x(), block_dim_x());
    // SAFETY: the blocks before this one publish these words, and this one has.
    let shares = unsafe {
        workspace.share::<F64Words, N, 4>(
            [0.0; N],
            [words_of_blocks, blocks],
            (0, blocks),
            (thread, step),
        )
    };
    let of_grid = block_sums::<f64, false, N>(shares);
    if thread == 0 {
        unrolled!(for index in 0..N; {
            // SAFETY: only the last of the blocks publishes the totals.
            unsafe { workspace.publish(totals + index as u32, of_grid[index]) };
        });
    }
}
