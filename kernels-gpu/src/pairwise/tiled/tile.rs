//! The tiles of a block, in order.

use crate::abi::PairwiseArgs;
use cuda_std::thread::grid_dim_x;

/// A part of a run. A block computes items, one after another: runs, or parts of long rows that
/// several blocks share.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The number of the item.
    pub(super) item: u32,
    /// The tile's number in the row.
    pub(super) number: u32,
    /// The end of the item's tiles.
    pub(super) end: u32,
}

impl Tile {
    /// The first tile of an item.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn first(args: &PairwiseArgs, item: u32) -> Self {
        let (splits, tiles) = (args.splits, args.tiles.of_row);
        if splits.get() == 1 {
            return Tile { item, number: 0, end: tiles };
        }
        let split = item % splits;
        let share = |split: u32| split * tiles / splits;
        Tile { item, number: share(split), end: share(split + 1) }
    }

    /// The block's next tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn next(self, args: &PairwiseArgs) -> Self {
        if self.number + 1 < self.end {
            Tile { number: self.number + 1, ..self }
        } else {
            Self::first(args, self.item + grid_dim_x())
        }
    }

    /// The number of the run.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn run(self, args: &PairwiseArgs) -> u32 {
        if args.splits.get() == 1 { self.item } else { self.item / args.splits }
    }
}
