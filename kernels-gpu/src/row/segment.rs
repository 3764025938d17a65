//! Which warp computes which part of which row.

use crate::abi::{STREAM_BLOCK, StreamArgs};
use cuda_std::thread::block_idx_x;
use cuda_std::warp::{WARP_SIZE, warp_id};

/// A part of a row: its tiles `begin..end`. A tile is what a warp loads at a time.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) row: u32,
    pub(crate) begin: u32,
    pub(crate) end: u32,
}

/// The segments of a warp, beginning with that of the last row. If the warp has the beginning of a
/// row that later warps end, it therefore publishes its part long before they need it.
#[derive(Clone, Copy)]
pub(crate) struct Segments {
    next: Segment,
    /// The row of the last segment that the warp takes.
    first_row: u32,
    /// The first tile of that segment.
    first_tile: u32,
}

/// The number of no row.
const NONE: u32 = u32::MAX;

impl Segments {
    /// The segments of this warp. Each warp has an equal share of all tiles, which are consecutive.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_warp(args: &StreamArgs, rows: u32) -> Self {
        let warp = warp_of_grid();
        // Neither is ever 0. The compiler cannot know that, and would emit a panic for the
        // division.
        let (tiles, warps) = (args.row_tiles.max(1), args.warps.max(1));
        let all = u64::from(rows) * u64::from(tiles);
        let share = |warp: u32| u64::from(warp) * all / u64::from(warps);
        let (first, end) = (share(warp), share(warp + 1));
        let position =
            |tile: u64| ((tile / u64::from(tiles)) as u32, (tile % u64::from(tiles)) as u32);
        let (first_row, first_tile) = position(first);
        let (last_row, last_tile) = position(end.saturating_sub(1));
        let begin = if last_row == first_row { first_tile } else { 0 };
        let row = if warp < args.warps && all > 0 { last_row } else { NONE };
        let next = Segment { row, begin, end: last_tile + 1 };
        Segments { next, first_row, first_tile }
    }

    /// Whether there is another segment.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_next(&self) -> bool {
        self.next.row != NONE
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn next(&self) -> Segment {
        self.next
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn advance(&mut self, args: &StreamArgs) {
        if self.next.row == self.first_row {
            self.next.row = NONE;
            return;
        }
        let row = self.next.row - 1;
        let begin = if row == self.first_row { self.first_tile } else { 0 };
        self.next = Segment { row, begin, end: args.row_tiles };
    }
}

/// The first warp of the grid that has a segment of `row`: the inverse of the shares in
/// [`Segments::of_warp`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn first_warp(args: &StreamArgs, rows: u64, row: u32) -> u32 {
    let tiles = u64::from(args.row_tiles);
    let all = (rows * tiles).max(1);
    (((u64::from(row) * tiles + 1) * u64::from(args.warps) - 1) / all) as u32
}

/// Warps of a block.
pub(crate) const BLOCK_WARPS: u32 = STREAM_BLOCK / WARP_SIZE;

/// This warp's number in the grid.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn warp_of_grid() -> u32 {
    block_idx_x() * BLOCK_WARPS + warp_id()
}
