use super::*;

/// An H200's room for kernels of two blocks, and of three; and that of smaller devices.
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

/// Two stages, in which each warp has a part of the tiles of two tensors with padding behind it.
#[test]
fn a_block_has_shared_memory_for_two_stages() {
    each_plan(|rows, _, Tiled { rows: RowsLaunch { launch, .. }, args }| {
        let padding = if rows.alike { 0 } else { TiledArgs::PADDING };
        assert_eq!(args.padding, padding, "{rows:?}");
        let stages = 2 * 2 * (args.vectors + TILED_BLOCK / 32 * padding) * VECTOR_BYTES;
        assert_eq!(launch.shared_bytes, stages, "{rows:?}");
    });
}

/// Rows below 1200 bytes are left to other kernels.
#[test]
fn short_rows_are_not_cut() {
    let is_cut = |cols| tiled(&dense(1 << 20, cols, 4), DEVICES[0]).is_some();
    assert_eq!([1, 100, 299, 300, 5_000].map(is_cut), [false, false, false, true, true]);
}

/// Long rows have as large tiles as blocks have shared memory for, up to four vectors a lane. The
/// tiles of all rows are shared out to as many warps as there is room for.
#[test]
fn long_rows_are_cut_into_large_tiles() {
    let plan = |rows, cols, device| {
        let Tiled { rows, args } = tiled(&dense(rows, cols, 4), device).expect("long rows");
        (args.vectors, args.of_row, rows.splits.get(), args.of_item)
    };
    // 262144 columns are 512 tiles of 128 vectors, or 2048 of 32.
    assert_eq!(plan(1, 262_144, DEVICES[0]), (1024, 512, 64, 8));
    assert_eq!(plan(100, 262_144, DEVICES[2]).0, 256);
    // Five parts of 27 tiles for the eight warps of a block, 17 tiles each; of 11 parts of 47
    // tiles, three would be 18.
    assert_eq!(plan(100, 262_144, DEVICES[1]), (1024, 512, 19, 27));
    // Sixteen thirds of rows at most, of 33 tiles each; of whole rows six, of 99.
    assert_eq!(plan(2002, 50_257, DEVICES[1]), (1024, 99, 3, 33));
    // A part more would take a second stage, and save less.
    assert_eq!(plan(20_020, 2_100, DEVICES[1]), (1024, 5, 1, 5));
}

/// Warps compute the items of a block alone, unless these have many tiles.
#[test]
fn warps_share_long_items() {
    each_plan(|rows, _, Tiled { args, .. }| {
        let are_long = args.of_item >= 32;
        assert_eq!(args.warp_items == 1, !are_long, "{rows:?}");
    });
}

/// Nothing is cut into tiles where there is nothing, or where the kernels, which count a row's
/// bytes in 32 bits, could not.
#[test]
fn calls_without_tiles() {
    let is_tiled = |rows, cols| tiled(&dense(rows, cols, 4), DEVICES[0]).is_some();
    assert!(is_tiled(1, 1 << 20) && is_tiled(1, (1 << 28) - 1));
    assert!(!is_tiled(0, 1 << 20) && !is_tiled(1, 0) && !is_tiled(1, 1 << 28));
    let mean = Rows { by_row: false, ..dense(0, 1 << 20, 4) };
    assert_eq!(tiled(&mean, DEVICES[0]), None);
}
