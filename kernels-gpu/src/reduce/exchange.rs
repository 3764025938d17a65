//! How blocks that share a row exchange the statistics of their parts.

use super::Workspace;
use crate::abi::{EXCHANGE_ROUNDS, EXCHANGE_WORDS, STATS_PARTS};
use crate::element::unrolled;
use cuda_std::atomic::fence;
use cuda_std::thread::{block_dim_x, thread_idx_x};
use cuda_std::warp::lane_id;

/// The numbers that each block of a group of blocks sends to the others once per round, through the
/// workspace. All blocks of the grid are resident at the same time (a cooperative launch), so that
/// each may wait for any other.
///
/// A word is its own flag: zero until its number is published. Since all blocks of the group read
/// it, none of them may make it zero again just because it has read it itself. So three rounds have
/// separate words, and a block clears its own words of a round once it has seen what all others
/// have published in the next round: they had read the whole round before they published.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    workspace: Workspace,
    /// The first word of the group of blocks.
    first: u32,
    /// Blocks of the group.
    blocks: u32,
}

impl Exchange {
    /// How many consecutive rounds have separate words.
    const ROUNDS: u32 = EXCHANGE_ROUNDS;
    /// Words of a block in a round: the statistics of its part, and which rows the group takes
    /// next.
    const WORDS: u32 = EXCHANGE_WORDS;

    /// The words of group number `group` of groups of `blocks` blocks, which follow the first
    /// `behind` words of the workspace.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(workspace: Workspace, behind: u32, group: u32, blocks: u32) -> Self {
        let first = behind + group * Self::words(blocks);
        Exchange { workspace, first, blocks }
    }

    /// Blocks of the group.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn blocks(self) -> u32 {
        self.blocks
    }

    /// The number of words of `blocks` blocks.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    const fn words(blocks: u32) -> u32 {
        Self::ROUNDS * Self::WORDS * blocks
    }

    /// The first word of a block in a round.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn word(self, round: u32, block: u32) -> u32 {
        self.first + (round % Self::ROUNDS * self.blocks + block) * Self::WORDS
    }

    /// Publishes the numbers of block `block` of the group in a round.
    ///
    /// # Safety
    /// 1. The workspace has room for the words of all groups.
    /// 2. One thread publishes for each block, once a round. If the round is not one of the first
    ///    three, the block has [cleared](Self::clear) the words of the third round before it,
    ///    ordered before this by a barrier.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn publish(self, round: u32, block: u32, numbers: [f64; 4]) {
        let first = self.word(round, block);
        unrolled!(for word in 0..4; {
            // SAFETY: the caller's conditions.
            unsafe { self.workspace.publish(first + word as u32, numbers[word]) };
        });
    }

    /// Waits for the numbers that a block of the group publishes in a round. A lane with `none`
    /// gets zeros.
    ///
    /// # Safety
    /// 1. As [`publish`](Self::publish)'s first condition.
    /// 2. All lanes of a warp call this, and all blocks of the grid are resident.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn wait(self, round: u32, block: u32, none: bool) -> [u64; 4] {
        // SAFETY: the caller's conditions.
        unsafe {
            let first = self.word(round, block);
            self.workspace.wait::<4, false>(none, first, |word| word as u32 * 8)
        }
    }

    /// Publishes the number that the first block of the group sends to the others in a round.
    ///
    /// # Safety
    /// As [`publish`](Self::publish).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn publish_next(self, round: u32, next: u32) {
        // SAFETY: the caller's conditions; not all bits are zero.
        unsafe {
            self.workspace.publish_bits(self.word(round, 0) + STATS_PARTS, u64::from(next) + 1);
        }
    }

    /// Waits for the number that the first block [publishes](Self::publish_next) in a round, in
    /// the warp's first lane; other lanes get an arbitrary number.
    ///
    /// # Safety
    /// As [`wait`](Self::wait).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn wait_next(self, round: u32) -> u32 {
        // SAFETY: the caller's conditions.
        unsafe {
            let word = self.word(round, 0) + STATS_PARTS;
            let [next] = self.workspace.wait::<1, false>(lane_id() > 0, word, |_| 0);
            (next as u32).wrapping_sub(1)
        }
    }

    /// Clears what block `block` has published in the round before `round`.
    ///
    /// # Safety
    /// 1. As [`publish`](Self::publish)'s first condition.
    /// 2. One thread of the block calls this, when another of its threads has
    ///    [waited](Self::wait) for all blocks in `round`, and a barrier has passed since.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn clear_before(self, round: u32, block: u32) {
        let first = self.word(round + (Self::ROUNDS - 1), block);
        unrolled!(for word in 0..Self::WORDS as usize; {
            // SAFETY: the caller's conditions: all blocks have read the words.
            unsafe { self.workspace.set_word(first + word as u32, 0) };
        });
        // Orders these zeros before what this block publishes after the next barrier.
        fence();
    }

    /// Clears the words of all `groups` groups, whose first is this one, at the end of the grid.
    ///
    /// # Safety
    /// 1. As [`publish`](Self::publish)'s first condition.
    /// 2. All threads of one block call this, when no other block accesses the words any more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn clear_all(self, groups: u32) {
        let mut word = thread_idx_x();
        while word < groups * Self::words(self.blocks) {
            // SAFETY: the caller's conditions.
            unsafe { self.workspace.set_word(self.first + word, 0) };
            word += block_dim_x();
        }
    }
}
