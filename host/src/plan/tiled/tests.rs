use super::*;

/// An H200 with kernels of which two or three blocks are resident, and smaller devices.
const DEVICES: [Device; 4] = [
    Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 2 },
    Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 },
    Device { multiprocessors: 84, shared_bytes: 100 << 10, registers_for: 3 },
    Device { multiprocessors: 2, shared_bytes: 64 << 10, registers_for: 1 },
];

fn dense(rows: usize, cols: usize, element_bytes: usize) -> Rows {
    let bits = 128 | (cols * element_bytes);
    Rows {
        by_row: true,
        rows,
        cols,
        element_bytes,
        alignment: 1 << bits.trailing_zeros(),
        alike: true,
    }
}

fn each_plan(mut check: impl FnMut(&Rows, Device, Tiled)) {
    let lengths = (1..300).chain([1_000, 1_023, 2_048, 2_050, 4_095, 8_192, 20_003, 262_144]);
    for (cols, device) in lengths.flat_map(|cols| DEVICES.map(|device| (cols, device))) {
        for (rows, element_bytes) in
            [1, 7, 396, 1_000, 1 << 20].into_iter().flat_map(|rows| [2, 4, 8].map(|b| (rows, b)))
        {
            let dense = dense(rows, cols, element_bytes);
            for rows in [dense, Rows { alignment: element_bytes, alike: false, ..dense }] {
                if let Some(plan) = tiled(&rows, device) {
                    check(&rows, device, plan);
                }
            }
        }
    }
}

#[test]
fn the_blocks_of_a_launch_are_resident() {
    each_plan(|rows, device, Tiled { rows: RowsLaunch { launch, .. }, .. }| {
        let bytes = launch.shared_bytes as usize + RESERVED + ARRAYS_BYTES;
        assert!(bytes * device.registers_for <= device.shared_bytes, "{rows:?}: {bytes}");
        let blocks = device.multiprocessors * device.registers_for;
        assert!(launch.blocks as usize <= blocks && launch.blocks > 0, "{rows:?}");
    });
}

#[test]
fn tiles_have_all_vectors_of_all_rows() {
    each_plan(|rows, _, Tiled { rows: RowsLaunch { splits, .. }, args }| {
        assert!(args.vectors.is_multiple_of(TILED_BLOCK) && args.vectors <= 4 * TILED_BLOCK);
        let bytes = args.vectors as usize * VECTOR;
        // From a cache line to the row that begins in it.
        let most = 128 - rows.alignment;
        let row_bytes = rows.cols * rows.element_bytes;
        let splits = splits.get();
        let of_warps = args.of_row as usize * bytes / WARPS;
        assert!(most + row_bytes <= of_warps, "{rows:?}");
        assert!(of_warps - bytes / WARPS < most + row_bytes, "{rows:?}");
        let of_other_parts = (splits - 1) * args.of_item;
        assert!(of_other_parts < args.of_row, "{rows:?}");
        assert!(of_other_parts + args.of_item >= args.of_row, "{rows:?}");
        assert_eq!(args.items as usize, rows.rows * splits as usize, "{rows:?}");
        assert!(args.items.checked_mul(args.of_item).is_some_and(|tiles| tiles < 1 << 31));
        assert!(splits == 1 || args.items <= MAX_PARTIALS, "{rows:?}");
    });
}

/// Two stages, each with the tiles of two tensors. Each warp has a part of these with padding after
/// it.
#[test]
fn a_block_has_shared_memory_for_two_stages() {
    each_plan(|rows, _, Tiled { rows: RowsLaunch { launch, .. }, args }| {
        let padding = if rows.alike { 0 } else { TiledArgs::PADDING };
        assert_eq!(args.padding, padding, "{rows:?}");
        let stages = 2 * 2 * (args.vectors + TILED_BLOCK / 32 * padding) * VECTOR_BYTES;
        assert_eq!(launch.shared_bytes, stages, "{rows:?}");
    });
}

/// Rows of less than 1200 bytes are left to other kernels.
#[test]
fn short_rows_are_not_cut() {
    let is_cut = |cols| tiled(&dense(1 << 20, cols, 4), DEVICES[0]).is_some();
    assert_eq!([1, 100, 299, 300, 5_000].map(is_cut), [false, false, false, true, true]);
}

/// The tiles of long rows are as large as blocks have shared memory for, up to four vectors per
/// lane. The tiles of all rows are distributed over as many warps as are resident.
#[test]
fn long_rows_are_cut_into_large_tiles() {
    let plan = |rows, cols, device| {
        let Tiled { rows, args } = tiled(&dense(rows, cols, 4), device).expect("long rows");
        (args.vectors, args.of_row, rows.splits.get(), args.of_item)
    };
    // 262144 columns are 512 tiles of 128 vectors, or 2048 of 32.
    assert_eq!(plan(1, 262_144, DEVICES[0]), (1024, 512, 64, 8));
    assert_eq!(plan(100, 262_144, DEVICES[2]).0, 256);
    // Five parts of 27 tiles for the eight warps of a block are 17 tiles each. With 11 parts per
    // row, of 47 tiles, three per block would be 18.
    assert_eq!(plan(100, 262_144, DEVICES[1]), (1024, 512, 19, 27));
    // At most sixteen thirds of rows, of 33 tiles each; with whole rows it would be six, of 99.
    assert_eq!(plan(2002, 50_257, DEVICES[1]), (1024, 99, 3, 33));
    // One more part would take a second stage, which costs more than it saves.
    assert_eq!(plan(20_020, 2_100, DEVICES[1]), (1024, 5, 1, 5));
}

/// Each warp computes items of its own, unless these have many tiles.
#[test]
fn warps_share_long_items() {
    each_plan(|rows, _, Tiled { args, .. }| {
        let are_long = args.of_item >= 32;
        assert_eq!(args.warp_items == 1, !are_long, "{rows:?}");
    });
}

/// There are no tiles if there are no elements, or if a row has more bytes than the kernels can
/// count in 32 bits.
#[test]
fn calls_without_tiles() {
    let is_tiled = |rows, cols| tiled(&dense(rows, cols, 4), DEVICES[0]).is_some();
    assert!(is_tiled(1, 1 << 20) && is_tiled(1, (1 << 28) - 1));
    assert!(!is_tiled(0, 1 << 20) && !is_tiled(1, 0) && !is_tiled(1, 1 << 28));
    let mean = Rows { by_row: false, ..dense(0, 1 << 20, 4) };
    assert_eq!(tiled(&mean, DEVICES[0]), None);
}
