//! Sums over a grid of workers, which are blocks that take rows, and adders, which are blocks that
//! only sum what workers publish.

use super::block::block_sums;
use super::workspace::{F64Words, Terms, Workspace};
use crate::abi::ADDER_SHIFT;
use crate::element::{MAX_LANES, Real, unrolled};
use core::marker::PhantomData;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};

/// A block's rank in a grid of `abi::grid_of_workers`, which follows the first `offset` blocks of
/// the launch.
///
/// Blocks form periods of `1 << shift`. The last block of each period is an adder, the others are
/// workers. An adder sums what the workers of the period before its own have published: nearly all
/// of them are done by then, so it hardly waits.
///
/// One adder near the end is the last adder: it sums everything that no other adder sums, and
/// finishes the grid. It starts long before the last worker, so that it has already fetched its
/// instructions when the last workers publish, and only waits for their words. `EARLY`, 1 or more,
/// says how many periods before the end it starts: as many as fetching its instructions takes.
#[derive(Clone, Copy)]
pub(crate) struct BlockRank<const EARLY: u32> {
    block: u32,
    offset: u32,
    shift: u32,
}

impl<const EARLY: u32> BlockRank<EARLY> {
    /// The rank in a grid with an adder every `1 << ADDER_SHIFT` blocks.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_block(offset: u32) -> Self {
        Self::with_shift(ADDER_SHIFT, offset)
    }

    /// The rank in a grid with an adder every `1 << shift` blocks.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn with_shift(shift: u32, offset: u32) -> Self {
        BlockRank { block: block_idx_x().wrapping_sub(offset), offset, shift }
    }

    /// The rank of this block in turn number `turn`, when this launch computes a grid of `blocks`
    /// blocks with fewer: each block does the work of several, one after another. The last block
    /// does that of all adders, the others that of workers. Adders wait only for workers, and
    /// workers for nobody. None after the last turn.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_turn(self, turn: u32, blocks: u32) -> Option<Self> {
        let (shift, of_workers) = (self.shift, self.blocks() - 1);
        let grid = BlockRank { offset: grid_dim_x().wrapping_sub(blocks), ..self };
        let block = if self.block == of_workers {
            // In a grid of less than a period, the adder is the last block.
            if blocks >> shift == 0 { blocks - 1 + turn } else { ((turn + 1) << shift) - 1 }
        } else {
            let worker = self.block + turn * of_workers;
            if worker >= grid.workers() {
                return None;
            }
            worker + worker / ((1 << shift) - 1)
        };
        (block < blocks).then_some(BlockRank { block, ..grid })
    }

    /// The block's index among the workers. It has no meaning for an [adder](Self::is_adder), and
    /// may be [`workers`](Self::workers) in a grid of less than a period, whose last block is an
    /// adder, too.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn worker(self) -> u32 {
        self.block - (self.block >> self.shift)
    }

    /// Whether the block is the last of a period.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_adder(self) -> bool {
        (self.block + 1) & ((1 << self.shift) - 1) == 0
    }

    /// Workers and adders of the grid.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn blocks(self) -> u32 {
        grid_dim_x().wrapping_sub(self.offset)
    }

    /// Workers of the grid.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn workers(self) -> u32 {
        self.blocks() - (self.blocks() >> self.shift).max(1)
    }

    /// The last adder: the only block that waits for blocks of a higher index. These make progress
    /// as long as the device has room for two blocks at a time.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn last_adder(self) -> u32 {
        let blocks = self.blocks();
        let shift = self.shift;
        if blocks <= 1 << shift {
            return blocks - 1;
        }
        ((1 + (blocks >> shift).saturating_sub(EARLY)) << shift) - 1
    }

    /// Whether the block is the adder that finishes the grid.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_last_adder(self) -> bool {
        self.block == self.last_adder()
    }

    /// Publishes pair `pair` of a worker's terms.
    ///
    /// # Safety
    /// 1. `worker` is below `workers`, the number of workers of the grid.
    /// 2. The workspace has room for the words of all pairs of all workers.
    /// 3. One thread publishes each pair of each worker, once a launch.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn publish<R: Real>(
        worker: u32,
        pair: u32,
        terms: [R; 2],
        workers: u32,
        workspace: Workspace,
    ) {
        let words = Pairs::to_words(terms);
        unrolled!(for word in 0..2; {
            if word < Pairs::<R>::WORDS {
                let at = (pair * Pairs::<R>::WORDS as u32 + word as u32) * workers + worker;
                // SAFETY: the caller's conditions.
                unsafe { workspace.publish_bits(at, words[word]) };
            }
        });
    }

    /// Sums the terms that all workers have published, one or two `pairs` of them, and calls
    /// `finish` with the sums in one thread of the [last adder](Self::is_last_adder). A thread
    /// loads ASKS words at a time.
    ///
    /// # Safety
    /// 1. All threads of all adders call this.
    /// 2. Every worker [publishes](Self::publish) its pairs.
    /// 3. The workspace has room for the workers' words and for the sums of each period.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn sums<R: Real, const ASKS: usize>(
        self,
        pairs: u32,
        workspace: Workspace,
        finish: impl FnOnce([f64; 4]),
    ) {
        let shift = self.shift;
        let (index, is_last_adder) = (self.block >> shift, self.is_last_adder());
        // The first periods, whose workers are summed by adders other than the last one.
        let periods = (self.last_adder() >> shift).saturating_sub(1);
        let (thread, threads) = (thread_idx_x(), block_dim_x());
        let (words, workers) = (Pairs::<R>::WORDS as u32, self.workers());
        let of_period = (1 << shift) - 1;
        let (from, to) = if is_last_adder {
            (periods * of_period, workers)
        } else if (1..=periods).contains(&index) {
            ((index - 1) * of_period, index * of_period)
        } else {
            return;
        };
        // The words of the last workers are loaded in one batch, because the last adder waits for
        // them.
        let split = to - (to - from).min(ASKS as u32 / words * threads);
        let mut pair = 0;
        loop {
            let mut sums = [0.0; 2];
            // The periods' sums are published after the words of all workers.
            let period_sums_at = words * workers * pairs + 2 * pair * periods;
            // SAFETY: condition 2 for the workers' words; the sums of a period are published by an
            // adder of a lower index.
            unsafe {
                if is_last_adder {
                    let (at, all) = ([period_sums_at, periods], (0, periods));
                    sums = workspace.share::<F64Words, 2, 4>(sums, at, all, (thread, threads));
                }
                let at = [pair * words * workers, workers];
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
            let is_last_pair = pair == pairs;
            if thread == 0 {
                let publish_sum = |sum: usize| {
                    let at = period_sums_at + sum as u32 * periods + index - 1;
                    // SAFETY: condition 3; each adder has its own words.
                    unsafe { workspace.publish(at, sums[sum]) };
                };
                if !is_last_adder {
                    publish_sum(0);
                    publish_sum(1);
                } else if !is_last_pair {
                    // SAFETY: only thread 0 accesses this shared memory.
                    unsafe {
                        sums_of_first_pair().set(0, sums[0]);
                        sums_of_first_pair().set(1, sums[1]);
                    }
                }
            }
            if is_last_pair {
                if is_last_adder && thread == 0 {
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
            // The next pair overwrites the shared memory of `block_sums`.
            sync_threads();
        }
    }
}

cuda_std::shared_array! {
    /// Sums of the first of two pairs of terms, until those of the second are known.
    fn sums_of_first_pair() -> [f64; 2];
}

/// Terms of type R in pairs. Two terms of 32 bits are packed into one word.
struct Pairs<R>(PhantomData<R>);

impl<R: Real> Pairs<R> {
    /// Words of a pair.
    const WORDS: usize = size_of::<R>() / 4;

    /// The words of a pair, none of which is zero: a term of 0 becomes -0.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
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
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn from_words(words: [u64; MAX_LANES]) -> [f64; N] {
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
