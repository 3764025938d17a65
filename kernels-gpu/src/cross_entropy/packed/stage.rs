//! What a warp has in shared memory: two stages, each with the tiles and the classes of some rows.

use crate::abi::{CrossEntropyArgs, Matrix};
use crate::cross_entropy::label::totals_ahead;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Pass, Total, Totals};
use crate::element::Element;
use crate::tile::{Shared, Tile};
use cuda_std::memory::{end_copies, load};
use cuda_std::warp::{WARP_SIZE, lane_id};

/// Tiles that a warp has in shared memory: one that it works on, and one under way. The loops over
/// tiles alternate between the two.
pub(super) const STAGES: u32 = 2;

/// Tiles of a stage: of the logits, and of the target's probabilities.
const fn tiles_of_stage<const MODE: u32>() -> u32 {
    if MODE == mode::PROBABILITIES { 2 } else { 1 }
}

/// What a mean is divided by, for the gradients and for those of the z-loss.
#[derive(Clone, Copy)]
pub(super) struct Known(pub(super) [f64; 2]);

impl Known {
    /// Waits for the blocks that add up the totals, if any do.
    ///
    /// # Safety
    /// The kernels' condition 2.
    #[inline(always)]
    pub(super) unsafe fn wait(args: &CrossEntropyArgs) -> Self {
        // SAFETY: the caller's condition.
        let ahead = unsafe { totals_ahead(args) };
        if args.divisor != 0.0 {
            return Known([0.0; 2]);
        }
        let rows = if args.z_loss == 0.0 { 0.0 } else { ahead.wait(Total::Rows as u32) };
        Known([ahead.wait(Total::Weights as u32), rows])
    }
}

impl Totals for Known {
    #[inline(always)]
    fn total(self, which: Total) -> f64 {
        match which {
            Total::Weights => self.0[0],
            Total::Rows => self.0[1],
        }
    }
}

/// Class `index` of those from byte `classes` of shared memory on.
///
/// # Safety
/// The classes have arrived, and `index` is one of them.
#[inline(always)]
pub(super) unsafe fn class_at(
    args: &CrossEntropyArgs,
    shared: Shared,
    classes: u32,
    index: u32,
) -> i64 {
    // SAFETY: the caller's conditions.
    unsafe {
        match args.class_bytes {
            8 => shared.word::<i64>(classes, index),
            4 => i64::from(shared.word::<i32>(classes, index)),
            _ => i64::from(shared.word::<u8>(classes, index)),
        }
    }
}

/// A warp's tiles.
pub(super) struct Tiles<'a, E: Element, const MODE: u32> {
    pub(super) pass: &'a Pass<'a, E, MODE>,
    pub(super) shared: Shared,
    /// Where the warp's stages begin in shared memory.
    pub(super) base: u32,
    pub(super) stage: u32,
}

impl<E: Element, const MODE: u32> Tiles<'_, E, MODE> {
    #[inline(always)]
    pub(super) fn rows(&self, first: u64) -> u32 {
        let rows = self.pass.args.rows.saturating_sub(first);
        rows.min(u64::from(self.pass.args.tile.rows)) as u32
    }

    /// The stage's tile of rows of a tensor from `first` on: number 0 or 1 of those of the stage.
    #[inline(always)]
    pub(super) fn tile(&self, tensor: Matrix, first: u64, number: u32) -> Tile<E> {
        let args = self.pass.args;
        let base = self.base + self.stage * args.tile.stage_bytes + number * args.tile.bytes;
        Tile::new(self.shared, &args.tile, tensor, first, args.cols, base)
    }

    /// Where the stage's classes are in shared memory: behind its tiles.
    #[inline(always)]
    fn classes(&self) -> u32 {
        let tile = &self.pass.args.tile;
        self.base + self.stage * tile.stage_bytes + tiles_of_stage::<MODE>() * tile.bytes
    }

    /// The class of row `index` of the stage's tile; one to be ignored where there is no such row.
    ///
    /// # Safety
    /// The tile has arrived; it has so many `rows`.
    #[inline(always)]
    pub(super) unsafe fn class_of(&self, index: u32, rows: u32) -> i64 {
        let (args, at) = (self.pass.args, self.classes());
        if MODE == mode::PROBABILITIES || index >= rows {
            return args.ignore_index;
        }
        // SAFETY: the caller's condition.
        unsafe { class_at(args, self.shared, at, index) }
    }

    /// Begins to copy a tile and its classes, in a batch of its own.
    ///
    /// # Safety
    /// The kernels' condition 1; the lanes of the warp have met since they read the stage.
    #[inline(always)]
    pub(super) unsafe fn load_async(&self, first: u64) {
        let (args, rows) = (self.pass.args, self.rows(first));
        // SAFETY: the caller's conditions.
        unsafe {
            if rows > 0 {
                self.tile(args.input, first, 0).load_async(rows);
                if MODE == mode::PROBABILITIES {
                    self.tile(args.probabilities(), first, 1).load_async(rows);
                } else {
                    let at = self.classes();
                    let from = args.target + first * u64::from(args.class_bytes);
                    match args.class_bytes {
                        8 => self.shared.load_words_async::<i64>(at, from, rows),
                        4 => self.shared.load_words_async::<i32>(at, from, rows),
                        _ => {
                            let mut index = lane_id();
                            while index < rows {
                                let class = load((from + u64::from(index)) as *const u8);
                                self.shared.set_word(at, index, class);
                                index += WARP_SIZE;
                            }
                        }
                    }
                }
            }
            end_copies();
        }
    }
}
