//! Rows of a forward pass that are split over several blocks, one part per block.

use super::launch::FLIGHT;
use super::shape::Shape;
use crate::plan::MANY_BLOCKS;
use kernels_gpu::abi::{ADDER_SHIFT, MAX_PARTIALS, STATS_PARTS};
use std::num::NonZeroU32;

/// The last rows of a pass, which are split into parts with a block each; see
/// [`CrossEntropyArgs`](kernels_gpu::abi::CrossEntropyArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    /// How many rows are split.
    pub(crate) rows: u32,
    /// Parts per split row.
    pub(crate) parts: NonZeroU32,
    /// The first word of the workspace for what the parts publish.
    pub(crate) at: u32,
}

/// How many rows at the end of a pass are split. If each of these had one block, the last blocks to
/// finish would leave most of the memory bandwidth unused. Twice this number is no better on an
/// H200.
const LAST_ROWS: usize = 132 * 2;

/// The most parts of such a row.
const LAST_ROW_PARTS: usize = 4;

/// The fewest vectors of a part if all rows are split: 32 KiB, twice what a block has in flight.
/// Chosen, not searched for. With it, 523 rows of 128256 f32 reach 0.94 of the ceiling, and 64 rows
/// of 262144 reach 0.79 (H200, 2026-11-24).
const PART_VECTORS: usize = 2048;

impl Tail {
    pub(crate) const NONE: Self = Tail { rows: 0, parts: NonZeroU32::MIN, at: 0 };

    /// The rows that are split, if every other row has a block of `threads` threads: all rows if
    /// there are too few for all multiprocessors, otherwise the last ones.
    pub(super) fn new(shape: &Shape, threads: usize) -> Self {
        let tail = if shape.rows < MANY_BLOCKS {
            Tail::of_all(shape)
        } else {
            Tail::of_last(shape, threads)
        };
        tail.unwrap_or(Tail::NONE)
    }

    /// Blocks of the pass in addition to one per row.
    pub(super) fn more_blocks(self) -> u32 {
        self.rows * (self.parts.get() - 1)
    }

    /// All of a few rows, in parts that are long enough for a block; `None` if the rows are too
    /// short for two parts.
    fn of_all(shape: &Shape) -> Option<Self> {
        // A part takes the words that its worker publishes, at most one word per sum for its adder
        // block, and the words for the statistics of its part of the row.
        let part_words = shape.words_of_worker() + shape.sums() + STATS_PARTS;
        let room = MAX_PARTIALS as usize / part_words as usize;
        let parts = (shape.vectors / PART_VECTORS).min(room / shape.rows.max(1));
        if shape.rows == 0 || parts < 2 {
            return None;
        }
        let at = words_before(shape, shape.rows * parts);
        Some(Tail { rows: shape.rows as u32, parts: NonZeroU32::new(parts as u32)?, at })
    }

    /// The last of many rows. `None` if they are too short for two parts, each as long as what a
    /// row's block has in flight, or if the workspace has no room for what the parts publish.
    fn of_last(shape: &Shape, threads: usize) -> Option<Self> {
        let parts = (shape.vectors / (FLIGHT * threads)).min(LAST_ROW_PARTS);
        if shape.rows < 2 * LAST_ROWS || parts < 2 {
            return None;
        }
        let at = words_before(shape, shape.rows + LAST_ROWS * (parts - 1));
        let words = (LAST_ROWS * parts) as u32 * STATS_PARTS;
        if at + words > MAX_PARTIALS {
            return None;
        }
        Some(Tail { rows: LAST_ROWS as u32, parts: NonZeroU32::new(parts as u32)?, at })
    }
}

/// The words of the workspace for what `workers` workers publish and for the sums of the adder
/// blocks. The words for the parts of split rows come after these.
fn words_before(shape: &Shape, workers: usize) -> u32 {
    let workers = workers as u32;
    let sums = shape.sums() * workers.div_ceil((1 << ADDER_SHIFT) - 1);
    (shape.words_of_worker() * workers + sums).next_multiple_of(STATS_PARTS)
}
