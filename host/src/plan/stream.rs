//! The forward pass over long rows that are streamed through shared memory.

use super::Launch;
use super::packed::{Device, RESERVED, Rows};
use kernels_gpu::abi::{
    CACHE_LINE, MAX_STREAM_BLOCKS, STREAM_BLOCK, STREAM_DEPTH, StreamArgs, VECTOR_BYTES,
    WARP_TILE_BYTES,
};

/// Warps per block.
const WARPS: usize = STREAM_BLOCK as usize / 32;

/// Vectors that a warp has of a tile.
const WARP_VECTORS: usize = (WARP_TILE_BYTES / VECTOR_BYTES) as usize;

/// Whether `count` rows are so few that a warp for each would be at most half of the resident
/// warps. Several blocks share such rows where gradients are computed.
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

/// If a row has more parts than about this many, blocks first merge the parts of their warps;
/// otherwise its last warp merges all parts alone. Chosen, not searched for.
const MOST_PARTS: usize = 96;

/// The launch over `count` rows: all the warps that are resident at once, each with an equal share
/// of all tiles.
pub(crate) fn layout(count: usize, rows: &Rows, device: Device) -> (Launch, StreamArgs) {
    // The most bytes of a row, counted from the cache line that it begins in.
    let bytes = CACHE_LINE as usize - rows.alignment + rows.cols * rows.element_bytes;
    let vectors = bytes.div_ceil(VECTOR_BYTES as usize);
    let row_tiles = vectors.div_ceil(WARP_VECTORS).max(1);
    let most = room(rows, device).min(MAX_STREAM_BLOCKS as usize);
    let warps = (count * row_tiles).clamp(1, most * WARPS);
    let blocks = warps.div_ceil(WARPS);
    let launch = Launch {
        blocks: blocks as u32,
        threads: STREAM_BLOCK,
        shared_bytes: (WARPS * ring_bytes(rows)) as u32,
        cooperative: false,
    };
    let merges_blocks = warps > MOST_PARTS * count.max(1);
    let stream = StreamArgs {
        row_tiles: row_tiles as u32,
        warps: warps as u32,
        merges_blocks: merges_blocks.into(),
    };
    (launch, stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };

    #[test]
    fn as_many_warps_as_are_resident_share_all_tiles() {
        let blocks = |count, cols| layout(count, &Rows::of_f32(cols), DEVICE).0.blocks;
        assert_eq!((blocks(32768, 4096), blocks(1500, 262_144)), (132 * 3, 132 * 3));
        // Rows of two tiles each, and a warp for each tile.
        let warps = |count| layout(count, &Rows::of_f32(1024), DEVICE).1.warps;
        assert_eq!(
            [4, 5, 0].map(|count| (blocks(count, 1024), warps(count))),
            [(1, 8), (2, 10), (1, 1)]
        );
    }

    /// Each block first merges the parts of its own warps, because otherwise one warp would merge
    /// the parts of all warps of the grid.
    #[test]
    fn blocks_merge_their_parts_of_very_long_rows() {
        let merges = |count| layout(count, &Rows::of_f32(1 << 22), DEVICE).1.merges_blocks;
        assert_eq!((merges(1), merges(32), merges(33), merges(1000)), (1, 1, 0, 0));
    }

    /// Each warp has three tiles of 2 KiB of every tensor in flight. As many blocks are resident as
    /// fit shared memory, of which the driver takes a KiB for each.
    #[test]
    fn rings_of_tiles_fit_into_shared_memory() {
        let ring = 8 * 3 * 2048;
        let plan = |tiles: usize, shared_bytes, registers_for| {
            let device = Device { shared_bytes, registers_for, ..DEVICE };
            layout(4, &Rows { tiles, ..Rows::of_f32(1 << 22) }, device).0
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

    #[test]
    fn few_rows_are_less_than_half_as_many_as_warps() {
        let warps = 132 * 3 * 8;
        assert!(are_few(warps / 2, &Rows::of_f32(1000), DEVICE));
        assert!(!are_few(warps / 2 + 1, &Rows::of_f32(1000), DEVICE));
    }

    #[test]
    fn a_row_off_a_line_may_have_a_tile_more() {
        let tiles = |cols| layout(1 << 20, &Rows::of_f32(cols), DEVICE).1.row_tiles;
        assert_eq!((tiles(4096), tiles(4097), tiles(4095)), (8, 9, 9));
    }

    /// What blocks and warps publish fits the workspace: four sums per block, and a part of four
    /// words per warp. The last block sums all others by itself.
    #[test]
    fn sums_and_parts_have_room_in_the_workspace() {
        use kernels_gpu::abi::{MAX_PARTIALS, early_blocks};
        const { assert!((4 + 4 * WARPS as u32) * MAX_STREAM_BLOCKS < MAX_PARTIALS) };
        assert_eq!(early_blocks(MAX_STREAM_BLOCKS), 0);
        let large = Device { multiprocessors: 1000, ..DEVICE };
        assert_eq!(layout(1 << 20, &Rows::of_f32(4096), large).0.blocks, MAX_STREAM_BLOCKS);
    }
}
