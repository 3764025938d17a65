//! Which tiles a warp computes, in order.

use super::WARPS;
use crate::abi::PairwiseArgs;
use cuda_std::thread::{block_idx_x, grid_dim_x};
use cuda_std::warp::warp_id;

/// The items of a block: rows or, if several blocks share rows, parts of them. The items of all
/// blocks alternate, so that blocks are never far from each other in memory.
///
/// Each warp computes every eighth item alone, so that warps need not wait for each other after
/// each row. The warps share the items that remain, fewer than the warps: of all their tiles, each
/// warp computes every eighth. If items are so long that this is faster, warps share all items: a
/// block then reads at one place in memory, not at eight.
#[derive(Clone, Copy)]
pub(super) struct Items {
    count: u32,
    /// Tiles of an item.
    tiles: u32,
    /// How many items warps compute alone. They come before the items that warps share.
    pub(super) alone: u32,
}

impl Items {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn of_block(args: &PairwiseArgs) -> Self {
        let count = (args.tiles.items - block_idx_x()).div_ceil(grid_dim_x().max(1));
        let alone = if args.tiles.warp_items == 0 { 0 } else { count / WARPS * WARPS };
        Items { count, tiles: args.tiles.of_item, alone }
    }

    /// The number in the grid of the block's item `index`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn number(index: u32) -> u32 {
        block_idx_x() + index * grid_dim_x()
    }

    /// How many items warps share.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn shared(&self) -> u32 {
        self.count - self.alone
    }
}

/// A warp's tile, which is part of a row.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The index of the item among the block's.
    pub(super) index: u32,
    /// The tile's number in the row.
    pub(super) number: u32,
    /// One past the number of the item's last tile.
    end: u32,
    /// How many tiles the warp has left, including this one.
    pub(super) left: u32,
    /// Whether the warp has no tile of the item before this one.
    pub(super) is_first: bool,
}

impl Tile {
    /// The warp's first tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn first(args: &PairwiseArgs, items: &Items) -> Self {
        let Items { tiles, alone, .. } = *items;
        let shared = (items.shared() * tiles).saturating_sub(warp_id()).div_ceil(WARPS);
        let left = alone / WARPS * tiles + shared;
        let (index, within) = if alone > 0 { (warp_id(), 0) } else { (0, warp_id()) };
        let first = Tile { index, number: within, end: 0, left, is_first: true };
        first.of_item(args, items, index, within)
    }

    /// Tile `within` of the block's item `index` or, if the item has fewer tiles, of a later item.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn of_item(self, args: &PairwiseArgs, items: &Items, mut index: u32, mut within: u32) -> Self {
        while within >= items.tiles {
            within -= items.tiles;
            index += 1;
        }
        let splits = args.splits;
        let split = if splits.get() == 1 { 0 } else { Items::number(index) % splits };
        let begin = split * args.tiles.of_item;
        let end = begin + args.tiles.of_item;
        Tile { index, number: begin + within, end, is_first: true, ..self }
    }

    /// The warp's next tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn next(self, args: &PairwiseArgs, items: &Items) -> Self {
        let next = Tile { left: self.left.saturating_sub(1), ..self };
        let is_shared = self.index >= items.alone;
        let number = self.number + if is_shared { WARPS } else { 1 };
        if number < self.end {
            return Tile { number, is_first: false, ..next };
        }
        let (index, within) = if is_shared {
            (self.index + 1, number - self.end)
        } else if self.index + WARPS < items.alone {
            (self.index + WARPS, 0)
        } else {
            (items.alone, warp_id())
        };
        next.of_item(args, items, index, within)
    }

    /// The number of the item in the grid.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn item(self) -> u32 {
        Items::number(self.index)
    }

    /// The number of the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn run(self, args: &PairwiseArgs) -> u32 {
        if args.splits.get() == 1 { self.item() } else { self.item() / args.splits }
    }
}
