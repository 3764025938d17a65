//! Which row group computes which part of which row.

use super::span::WARP_VECTORS;
use crate::abi::StreamArgs;
use cuda_std::warp::{lane_id, warp_id};

/// A part of a row: its tiles `begin..end`. A tile is what the threads of a row group load at once.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) row: u32,
    pub(crate) begin: u32,
    pub(crate) end: u32,
}

/// The segments of a row group, in order.
#[derive(Clone, Copy)]
pub(crate) struct Segments {
    next: Segment,
    last_row: u32,
    row_step: u32,
    /// The end of the segments between the first and the last.
    end: u32,
    /// The end of the last segment.
    last_end: u32,
}

impl Segments {
    /// The segments of row group `group`. With `args.split`, each group has an equal share of all
    /// tiles, which are consecutive; otherwise group g has rows g, g + groups, and so on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_group(args: &StreamArgs, rows: u32, group: u32) -> Self {
        // Neither is ever 0. The compiler cannot know that, and would emit a panic for the
        // division.
        let (tiles, groups) = (args.row_tiles.max(1), args.groups.max(1));
        if args.split == 0 {
            return Segments {
                next: Segment { row: group, begin: 0, end: tiles },
                last_row: rows.wrapping_sub(1),
                row_step: groups,
                end: tiles,
                last_end: tiles,
            };
        }
        let all = u64::from(rows) * u64::from(tiles);
        let share = |group: u32| u64::from(group) * all / u64::from(groups);
        let (first, end) = (share(group), share(group + 1));
        let position =
            |tile: u64| ((tile / u64::from(tiles)) as u32, (tile % u64::from(tiles)) as u32);
        let (row, begin) = position(first);
        let (last_row, last_tile) = position(end.saturating_sub(1));
        let end_of_first = if row == last_row { last_tile + 1 } else { tiles };
        let row = if first == end { u32::MAX } else { row };
        Segments {
            next: Segment { row, begin, end: end_of_first },
            last_row,
            row_step: 1,
            end: tiles,
            last_end: last_tile + 1,
        }
    }

    /// Whether there is another segment.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_next(&self) -> bool {
        self.next.row != u32::MAX && self.next.row <= self.last_row && self.last_row != u32::MAX
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn next(&self) -> Segment {
        self.next
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn advance(&mut self) {
        let row = self.next.row.saturating_add(self.row_step);
        let end = if row == self.last_row { self.last_end } else { self.end };
        self.next = Segment { row, begin: 0, end };
    }
}

/// The threads that share a row: a warp, or a block.
#[derive(Clone, Copy)]
pub(crate) struct RowGroup {
    warps: u32,
    /// This warp's index in the group.
    pub(crate) warp: u32,
}

impl RowGroup {
    /// A warp if `warps` is 1, otherwise the block, which has `warps` warps.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(warps: u32) -> Self {
        RowGroup { warps: warps.max(1), warp: if warps == 1 { 0 } else { warp_id() } }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_warp(self) -> bool {
        self.warps == 1
    }

    /// Whether this is the group's first thread.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn leads(self) -> bool {
        self.warp == 0 && lane_id() == 0
    }

    /// The first vector of this warp's part of tile `tile`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn first_vector(self, tile: u32) -> u32 {
        (tile * self.warps + self.warp) * WARP_VECTORS
    }
}
