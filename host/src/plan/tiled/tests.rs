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
        step: Some(cols),
        alignment: 1 << bits.trailing_zeros(),
        alike: true,
        writes: true,
        has_plain_pairs: false,
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
        let resident = match launch.blocks {
            blocks if blocks as usize > 2 * device.multiprocessors => device.registers_for,
            _ => device.registers_for.min(2),
        };
        assert!(bytes * resident <= device.shared_bytes, "{rows:?}: {bytes}");
        let blocks = device.multiprocessors * device.registers_for;
        assert!(launch.blocks as usize <= blocks && launch.blocks > 0, "{rows:?}");
    });
}

#[test]
fn tiles_have_all_vectors_of_all_rows() {
    each_plan(|rows, _, Tiled { rows: RowsLaunch { splits, .. }, args }| {
        assert!(args.vectors.is_multiple_of(TILED_BLOCK) && args.vectors <= 5 * TILED_BLOCK);
        let bytes = args.vectors as usize * VECTOR;
        // From a cache line to the row that begins in it.
        let most = 128 - rows.alignment;
        let row_bytes = rows.cols * rows.element_bytes;
        let splits = splits.get();
        if args.rows == 0 {
            let of_warps = args.of_row as usize * bytes / WARPS;
            assert!(most + row_bytes <= of_warps, "{rows:?}");
            assert!(of_warps - bytes / WARPS < most + row_bytes, "{rows:?}");
            let of_other_parts = (splits - 1) * args.of_item;
            assert!(of_other_parts < args.of_row, "{rows:?}");
            assert!(of_other_parts + args.of_item >= args.of_row, "{rows:?}");
            assert_eq!(args.items as usize, rows.rows * splits as usize, "{rows:?}");
            assert!(args.items.checked_mul(args.of_item).is_some_and(|tiles| tiles < 1 << 31));
            assert!(splits == 1 || args.items <= MAX_PARTIALS, "{rows:?}");
        } else {
            assert!(most + args.rows as usize * row_bytes <= bytes, "{rows:?}");
            assert_eq!(args.items as usize, rows.rows.div_ceil(args.rows as usize));
            assert_eq!(splits, 1);
        }
    });
}

/// Two stages, in which each warp has a part of the tiles of two tensors with padding behind
/// it; of packed rows, behind those, two buffers of sums and two of scales.
#[test]
fn stages_sums_and_scales_share_no_byte() {
    each_plan(|rows, _, Tiled { rows: RowsLaunch { launch, .. }, args }| {
        let padding = if rows.alike { 0 } else { TiledArgs::PADDING };
        assert_eq!(args.padding, padding, "{rows:?}");
        let stages = 2 * 2 * (args.vectors + TILED_BLOCK / 32 * padding) * VECTOR_BYTES;
        if args.rows == 0 {
            assert_eq!(launch.shared_bytes, stages, "{rows:?}");
            return;
        }
        let real_bytes = if rows.element_bytes == 8 { 8 } else { 4 };
        let sums = 2 * args.vectors * args.vector_sums * real_bytes;
        assert_eq!((args.sums, args.scales), (stages, stages + sums), "{rows:?}");
        let scales = 2 * TILED_BLOCK / 32 * args.warp_rows * real_bytes;
        assert_eq!(launch.shared_bytes, stages + sums + scales, "{rows:?}");
    });
}

/// A vector of packed rows has a sum for each row that it may have elements of.
#[test]
fn a_vector_has_a_sum_for_each_of_its_rows() {
    each_plan(|rows, _, Tiled { args, .. }| {
        if args.rows == 0 {
            return;
        }
        let lanes = 16 / rows.element_bytes;
        // Wherever its first element is in the first row.
        let ends = (0..rows.cols.min(64)).map(|first| (first + lanes - 1) / rows.cols);
        let most = ends.max().map_or(1, |row| row + 1);
        let whole = rows.alignment >= 16 && (rows.cols * rows.element_bytes) % 16 == 0;
        let expected = match most {
            _ if whole => 1,
            _ if rows.cols >= lanes => 2,
            _ => lanes,
        };
        assert_eq!(args.vector_sums as usize, expected, "{rows:?}");
        assert!(whole || expected >= most, "{rows:?}");
    });
}

/// Rows that are not equally far apart in all tensors are cut, and so are those with large gaps,
/// and all but short ones with any. Short ones that are not packed are left to the kernels that
/// have no tiles.
#[test]
fn rows_with_gaps_are_packed_or_cut() {
    let tile_rows = |cols, step| {
        let rows = Rows { step, ..dense(1 << 20, cols, 4) };
        tiled(&rows, DEVICES[0]).map(|plan| plan.args.rows > 1)
    };
    for cols in [100, 299, 300, 5_000] {
        assert_eq!(tile_rows(cols, None), (cols >= 300).then_some(false), "{cols}");
    }
    for (cols, gap, is_packed) in [
        (1, 8, Some(true)),
        (1, 9, None),
        (16, 8, Some(true)),
        (16, 9, None),
        (100, 50, Some(true)),
        (100, 51, None),
        (299, 1, Some(true)),
        (300, 1, Some(true)),
        (300, 151, Some(false)),
        (500, 1, Some(false)),
    ] {
        assert_eq!(tile_rows(cols, Some(cols + gap)), is_packed, "{cols}, {gap}");
    }
}

/// Logarithms of 16-bit elements are not computed of packed rows with gaps.
#[test]
fn gaps_between_pairs_of_which_some_are_plain() {
    let is_packed = |gap: usize, element_bytes, has_plain_pairs| {
        let step = Some(100 + gap);
        let rows = Rows { step, has_plain_pairs, ..dense(1 << 20, 100, element_bytes) };
        tiled(&rows, DEVICES[0]).is_some()
    };
    assert!(is_packed(0, 2, true) && is_packed(8, 2, false) && is_packed(8, 4, true));
    assert!(!is_packed(8, 2, true));
}

/// Sums of packed rows are of a row only where the loss is.
#[test]
fn a_scalar_has_no_sums_of_vectors() {
    let sums = |by_row| {
        let rows = Rows { by_row, step: Some(101), ..dense(1 << 20, 100, 4) };
        tiled(&rows, DEVICES[0]).map(|plan| plan.args.vector_sums)
    };
    assert_eq!((sums(true), sums(false)), (Some(1), Some(0)));
}

/// Where the loss is a scalar, tiles are for gradients, and not for the shortest rows.
#[test]
fn gradients_with_a_scalar_are_tiled() {
    let is_tiled =
        |cols, writes| Rows { by_row: false, writes, ..dense(1 << 20, cols, 4) }.tiles_gradients();
    assert_eq!([15, 16, 4_096].map(|cols| is_tiled(cols, true)), [false, true, true]);
    assert!(!is_tiled(4_096, false));
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

/// Rows are cut rather than packed where packed ones would leave many threads without a vector, or
/// begin within vectors: the longer they are, the sooner.
#[test]
fn rows_that_pack_badly_are_cut() {
    let is_cut = |cols, element_bytes| {
        let plan = tiled(&dense(1 << 20, cols, element_bytes), DEVICES[0]);
        plan.expect("rows are tiled").args.rows == 0
    };
    // Tiles of four rows of 4092 bytes begin at vectors, and fill four fifths.
    assert!(is_cut(1_023, 4) && !is_cut(1_024, 4));
    // Rows of an odd number of 2-byte elements begin anywhere, but for every eighth.
    assert!(is_cut(1_713, 2) && !is_cut(777, 2));
    // Rows below 1200 bytes are not cut.
    assert!(!is_cut(299, 4) && !is_cut(599, 2));
}

/// Warps compute the items of a block alone, unless these have many tiles.
#[test]
fn warps_share_long_items() {
    each_plan(|rows, _, Tiled { args, .. }| {
        let are_long = args.of_item >= 32;
        assert_eq!(args.warp_items == 1, args.rows == 0 && !are_long, "{rows:?}");
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

/// All blocks that have room take as many rows as each other.
#[test]
fn tiles_are_equal_shares_of_all_blocks() {
    let plan = |rows, element_bytes| {
        let plan = tiled(&dense(rows, 1_024, element_bytes), DEVICES[1]);
        let plan = plan.expect("rows are packed");
        (plan.rows.launch.blocks, plan.args.rows)
    };
    // Four rows would fit. A tile each, and two.
    assert_eq!((plan(396, 4), plan(1_188, 4)), ((396, 1), (396, 3)));
    assert_eq!((plan(1 << 20, 4), plan(2_376, 4)), ((396, 4), (396, 3)));
    // Sums in f64 leave room for two blocks of a multiprocessor, not three.
    assert_eq!(plan(1 << 20, 8).0, 264);
    // Five rows are packed, longer ones are cut.
    let tile_rows = |cols| tiled(&dense(1 << 20, cols, 4), DEVICES[0]).map(|it| it.args.rows);
    assert_eq!((tile_rows(1_024), tile_rows(1_920)), (Some(5), Some(0)));
}

/// Tiles that begin at cache lines or at vectors, with fewer blocks if need be, unless that leaves
/// many threads without a vector.
#[test]
fn tiles_begin_at_lines_or_at_vectors() {
    let plan = |cols, element_bytes, writes, device| {
        let rows = Rows { writes, ..dense(1 << 20, cols, element_bytes) };
        let Tiled { rows, args } = tiled(&rows, device).expect("rows are packed");
        (args.rows, args.vectors / TILED_BLOCK, rows.launch.blocks / 132)
    };
    let [two, three, ..] = DEVICES;
    // 64 rows of 254 bytes end at a line; three blocks have no room for so many.
    assert_eq!(plan(127, 2, true, three), (64, 4, 2));
    // Eight rows of 2046 bytes end at a vector.
    assert_eq!(plan(1_023, 2, true, three), (8, 5, 2));
    assert_eq!(plan(1_023, 2, false, three), (8, 5, 2));
    // Four rows of 4004 bytes end at a vector, 32 at a line.
    assert_eq!(plan(1_001, 4, true, two), (4, 4, 2));
    // Each row of 1024 bytes ends at a line.
    assert_eq!(plan(512, 2, true, three), (16, 4, 3));
    // 48 rows of 264 bytes end at a line; 60, at a vector, fill the tile better.
    assert_eq!(plan(33, 8, true, three), (60, 4, 2));
    // Eight rows of 1554 bytes end at a vector; 13 fill the tile.
    assert_eq!(plan(777, 2, true, three), (13, 5, 2));
    // Rows of 64 bytes have as many blocks as registers allow.
    assert_eq!(plan(32, 2, true, three).2, 3);
    for cols in [7, 100, 128, 250] {
        let bytes = plan(cols, 4, true, two).0 as usize * cols * 4;
        assert!(bytes.is_multiple_of(128), "{cols} columns");
    }
}

/// The kernels divide an element's number in a tile by a multiplication.
#[test]
fn elements_of_tiles_are_divided_by_columns() {
    each_plan(|rows, _, Tiled { args, .. }| {
        for element in (0..args.rows * rows.cols as u32).step_by(7) {
            let row = match args.per_step {
                0 => element,
                per_step => ((u64::from(element) * u64::from(per_step)) >> 32) as u32,
            };
            assert_eq!(row as usize, element as usize / rows.cols, "{rows:?}");
        }
    });
}
