//! The forward pass over long rows that are streamed through shared memory: how warps or blocks
//! share the rows.

use super::Launch;
use super::packed::{Device, RESERVED, Rows};
use kernels_gpu::abi::{
    CACHE_LINE, MAX_SPLIT_GROUPS, STREAM_BLOCK, STREAM_DEPTH, StreamArgs, VECTOR_BYTES,
    WARP_TILE_BYTES,
};

/// Warps per block.
const WARPS: usize = STREAM_BLOCK as usize / 32;

/// Vectors that a warp has of a tile.
const WARP_VECTORS: usize = (WARP_TILE_BYTES / VECTOR_BYTES) as usize;

/// Whether `count` rows are so few that a warp for each would be at most half of the resident
/// warps. Several blocks share such rows where gradients are computed. The forward pass decides by
/// the time that it takes ([`layout`]).
pub(crate) fn are_few(count: usize, rows: &Rows, device: Device) -> bool {
    count <= room(rows, device) * WARPS / 2
}

/// The blocks that are resident on a device.
fn room(rows: &Rows, device: Device) -> usize {
    let Device { multiprocessors, shared_bytes, registers_for } = device;
    let resident = (shared_bytes / (WARPS * ring_bytes(rows) + RESERVED)).clamp(1, registers_for);
    multiprocessors * resident
}

/// The bytes of a warp's ring.
fn ring_bytes(rows: &Rows) -> usize {
    STREAM_DEPTH as usize * rows.tiles * WARP_TILE_BYTES as usize
}

/// What the end of a row takes a block that shares rows, in hundredths of the time of a tile, of
/// which each resident warp reads one. In f64 the statistics of threads and warps take longer to
/// merge: H200, 2026-11-27, 1300×45056, whose blocks end six rows each, took 19 µs more than the
/// ceiling's 102, and a tile takes 0.9 µs. The number for other types was chosen by which of the
/// shapes below should be split.
fn row_end(element_bytes: usize) -> usize {
    if element_bytes == 8 { 300 } else { 150 }
}

/// The least time that a warp takes for a tile, in the same unit: with fewer warps than are
/// resident, memory is idle while they compute. Tiles of two tensors hide that better. H200,
/// 2026-11-27, ceiling ÷ ours where warps have whole rows and where blocks share them: f64,
/// 1511×23752 0.77 and 0.70, 2124×45056 0.62 and 0.87; f32 with smoothing, 2200×16384 0.48 and
/// 0.66; f32 from probabilities, 1000×32000 0.87 and 0.82.
fn least_tile_time(tiles: usize) -> usize {
    if tiles > 1 { 50 } else { 90 }
}

/// The launch over `count` rows, and how they are shared: either each warp takes whole rows, about
/// as many as any other, or rows are cut into equal shares, one per block. Whole rows take as long
/// as the warp that has most of them; shares are equal, but all warps of a block wait for each
/// other at the end of a row.
pub(crate) fn layout(count: usize, rows: &Rows, device: Device) -> (Launch, StreamArgs) {
    let room = room(rows, device);
    // The most bytes of a row, counted from the cache line that it begins in.
    let bytes = CACHE_LINE as usize - rows.alignment + rows.cols * rows.element_bytes;
    let vectors = bytes.div_ceil(VECTOR_BYTES as usize);
    let row_tiles = |warps: usize| vectors.div_ceil(warps * WARP_VECTORS).max(1);
    let (count, most_warps) = (count.max(1), room * WARPS);
    let turns = count.div_ceil(most_warps);
    let row_warps = count.div_ceil(turns);
    let tile_time = (100 * row_warps / most_warps).max(least_tile_time(rows.tiles));
    let whole_time = turns * row_tiles(1) * tile_time;
    let shared_time = 100 * (count * row_tiles(WARPS)).div_ceil(room)
        + row_end(rows.element_bytes) * (count / room + 1);
    let (blocks, warps, split) = if whole_time < shared_time {
        (row_warps.div_ceil(WARPS), 1, 0)
    } else {
        let max_blocks = room.min(MAX_SPLIT_GROUPS as usize);
        ((count * row_tiles(WARPS)).clamp(1, max_blocks), WARPS, 1)
    };
    let launch = Launch {
        blocks: blocks as u32,
        threads: STREAM_BLOCK,
        shared_bytes: (WARPS * ring_bytes(rows)) as u32,
        cooperative: false,
    };
    let stream = StreamArgs {
        warps: warps as u32,
        row_tiles: row_tiles(warps) as u32,
        groups: (blocks * WARPS / warps) as u32,
        split,
    };
    (launch, stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };

    fn f32_rows(cols: usize) -> Rows {
        Rows {
            cols,
            element_bytes: 4,
            alignment: 1 << (4 * cols).trailing_zeros().min(7),
            store_alignment: 16,
            alike: true,
            strides: [4 * cols, 0],
            store_strides: [0; 2],
            has_lane_rows: false,
            has_wide_rows: false,
            tiles: 1,
        }
    }

    #[test]
    fn warps_take_as_many_rows_each() {
        let (launch, stream) = layout(32768, &f32_rows(4096), DEVICE);
        // 3168 warps would take ten or eleven rows: fewer take eleven.
        assert_eq!((launch.blocks, stream.warps, stream.split), (373, 1, 0));
        assert_eq!((stream.row_tiles, stream.groups), (8, 373 * 8));
    }

    #[test]
    fn few_rows_are_shared_by_all_blocks() {
        for count in [1, 3, 64, 1500] {
            let (launch, stream) = layout(count, &f32_rows(262_144), DEVICE);
            assert_eq!((stream.warps, stream.split), (8, 1), "{count} rows");
            let tiles = count * stream.row_tiles as usize;
            assert_eq!(launch.blocks as usize, tiles.min(132 * 3));
            assert_eq!(launch.blocks, stream.groups);
        }
    }

    /// Each warp has three tiles of 2 KiB in flight, of every tensor that is read, and as many
    /// blocks are resident as shared memory has room for, of which the driver takes a KiB each.
    #[test]
    fn rings_of_tiles_fit_into_shared_memory() {
        let ring = 8 * 3 * 2048;
        let plan = |tiles: usize, shared_bytes, registers_for| {
            let device = Device { shared_bytes, registers_for, ..DEVICE };
            layout(4, &Rows { tiles, ..f32_rows(1 << 22) }, device).0
        };
        for tiles in [1, 2] {
            let block = tiles * ring + 1024;
            for (shared_bytes, registers_for, resident) in
                [(4 * block, 9, 4), (4 * block - 1, 9, 3), (4 * block, 2, 2), (block - 1, 2, 1)]
            {
                let launch = plan(tiles, shared_bytes, registers_for);
                assert_eq!(launch.shared_bytes as usize, tiles * ring);
                assert_eq!(launch.blocks, 132 * resident, "{tiles} tiles, {shared_bytes} bytes");
            }
        }
    }

    /// Rows are whole where each of the resident warps has about as many, and where shares of
    /// blocks would end more rows than they have tiles.
    #[test]
    fn rows_are_split_where_whole_ones_would_leave_warps_waiting() {
        let is_split = |count, cols| layout(count, &f32_rows(cols), DEVICE).1.split;
        let warps = 132 * 3 * 8;
        assert!(are_few(warps / 2, &f32_rows(1000), DEVICE));
        assert!(!are_few(warps / 2 + 1, &f32_rows(1000), DEVICE));
        assert_eq!((is_split(warps, 50_000), is_split(warps + 1, 50_000)), (0, 1));
        assert_eq!((is_split(warps / 2, 50_000), is_split(warps / 2, 1000)), (1, 0));
        assert_eq!((is_split(100, 10_000), is_split(1 << 20, 50_000)), (1, 0));
    }

    #[test]
    fn a_row_off_a_line_may_have_a_tile_more() {
        let tiles = |cols| layout(1 << 20, &f32_rows(cols), DEVICE).1.row_tiles;
        assert_eq!((tiles(4096), tiles(4097), tiles(4095)), (8, 9, 9));
    }

    /// What row groups publish fits into the workspace: terms twice, parts twice, a counter.
    #[test]
    fn split_groups_have_room_in_the_workspace() {
        use kernels_gpu::abi::MAX_PARTIALS;
        const { assert!(17 * MAX_SPLIT_GROUPS < MAX_PARTIALS) };
    }
}
