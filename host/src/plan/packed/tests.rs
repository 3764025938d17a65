//! How rows are packed: that the data fits the tiles, and the shapes that measurements favoured.

use super::banks::bank_conflicts;
use super::space::{MAX_TURNS, MOST_STAGES, warp_bytes_of};
use super::*;
use kernels_gpu::abi::CACHE_LINE;
use kernels_gpu::abi::WordSteps;

fn shapes() -> impl Iterator<Item = Rows> {
    [2, 4, 8].into_iter().flat_map(|element_bytes| {
        let most = if element_bytes == 8 { MOST_ROW_BYTES_F64[1] } else { MOST_ROW_BYTES_OF_TWO };
        // All short rows, and some of the long ones.
        let is_drawn =
            move |cols: &usize| cols * element_bytes <= MOST_ROW_BYTES || cols.is_multiple_of(7);
        (1..=most / element_bytes).filter(is_drawn).flat_map(move |cols| {
            let row_bytes = cols * element_bytes;
            // No gaps, short gaps, and gaps that are too long to be read.
            let gaps = [0, 16, 1 << 20].into_iter().chain([element_bytes, (1 << 20) + 2]);
            gaps.map(move |gap| row_bytes + gap)
                .flat_map(|stride| [(stride, true), (stride, false)])
                .flat_map(|rows| [(rows, 1, false), (rows, 2, false), (rows, 2, true)])
                .map(move |((stride, alike), tiles, is_elementwise)| {
                    let alignment = 1 << stride.trailing_zeros().min(4);
                    let strides = [stride, if tiles == 2 { stride } else { 0 }];
                    Rows {
                        cols,
                        element_bytes,
                        alignment,
                        store_alignment: alignment,
                        alike,
                        strides,
                        store_strides: if alike { strides } else { [row_bytes; 2] },
                        reads_gaps: true,
                        is_elementwise,
                        has_lane_rows: tiles == 1,
                        has_wide_rows: tiles == 1,
                        tiles,
                    }
                })
        })
    })
}

/// How rows are packed if there are many of them.
fn packed(pass: Pass, rows: Rows) -> Option<Packed> {
    super::packed(pass, rows, usize::MAX)
}

fn passes() -> impl Iterator<Item = (Pass, Rows)> {
    shapes()
        .flat_map(|rows| [(Pass::Forward, rows), (Pass::ForwardBackward, rows)])
        .filter(|&(pass, rows)| rows.cols * rows.element_bytes <= most_row_bytes(pass, rows))
}

/// Tiles fit the shared memory of a block, and rows fit tiles. Only the longest rows of f64 whose
/// gradients have a different alignment are not packed.
#[test]
fn tiles_fit_into_shared_memory() {
    for (pass, rows) in passes() {
        let row_bytes = rows.cols * rows.element_bytes;
        let Some(packed) = packed(pass, rows) else {
            let has_most_tiles = rows.element_bytes == 8 && rows.tiles == 2 && !rows.alike;
            let is_longest = has_most_tiles && row_bytes > 3 << 10 || row_bytes > 8000;
            assert!(is_longest, "{rows:?}");
            continue;
        };
        let TileArgs { rows: tile_rows, bytes, step, .. } = packed.args;
        assert!(packed.shared_bytes <= MAX_SHARED_BYTES, "{rows:?}: {packed:?}");
        assert!(bytes.is_multiple_of(CACHE_LINE));
        // The end of the last row, if the tile begins as far as possible after a cache line's
        // start.
        let misaligned = |of: usize| of - rows.alignment.min(of);
        let others = (tile_rows as usize - 1) * step[0] as usize;
        let end = misaligned(CACHE_LINE as usize) + others + row_bytes;
        assert!(end.next_multiple_of(VECTOR) <= bytes as usize, "{rows:?}: {packed:?}");
    }
}

/// A warp has one or two stages. Each has the tiles of its tensors, or one tile and the classes of
/// its rows, and in the backward pass what was saved of the rows. Gradients that do not overwrite
/// these tiles have their own after the stages.
#[test]
fn stages_and_tiles_of_a_warp_share_no_byte() {
    for (pass, rows) in passes() {
        let Some(packed) = packed(pass, rows) else { continue };
        let TileArgs { bytes, stage_bytes, saved, warp_bytes, gradients, .. } = packed.args;
        let tiles = rows.tiles as u32 * bytes;
        // Eight bytes each, which begin as far after a vector's start as in global memory.
        let classes = if rows.tiles == 1 { packed.args.rows * 8 + VECTOR_BYTES } else { 0 };
        let is_backward = pass == Pass::Backward;
        assert_eq!(saved, if is_backward { tiles + classes } else { 0 }, "{rows:?}: {packed:?}");
        // Three values of the type that the kernels compute in, aligned to their own size.
        let value = rows.element_bytes.max(4) as u32;
        assert!(saved.is_multiple_of(value), "{rows:?}: {packed:?}");
        let saved = if is_backward { 3 * value * packed.args.rows } else { 0 };
        let expected = (tiles + classes + saved).next_multiple_of(CACHE_LINE);
        let stages = match stage_bytes {
            0 => expected,
            _ => 2 * expected,
        };
        assert!(stage_bytes == 0 || stage_bytes == expected, "{rows:?}: {packed:?}");
        let expected = if rows.alike { (0, stages) } else { (stages, stages + tiles) };
        assert_eq!((gradients, warp_bytes), expected, "{rows:?}: {packed:?}");
        assert_eq!(packed.shared_bytes, WARPS * warp_bytes as usize);
        let launch = packed.launch(7);
        assert_eq!((launch.blocks, launch.threads), (7, PACKED_BLOCK));
        assert_eq!(launch.shared_bytes as usize, packed.shared_bytes);
    }
}

/// A tile of gradients has room for its last row, wherever it begins in a cache line.
#[test]
fn tiles_of_gradients_have_all_of_their_rows() {
    for (pass, rows) in passes() {
        let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
        let lead = CACHE_LINE as usize - rows.store_alignment.min(CACHE_LINE as usize);
        let step = args.store_step[0].max(args.store_step[1]) as usize;
        let end = lead + (args.rows as usize - 1) * step + rows.row_bytes();
        assert!(end <= args.bytes as usize, "{rows:?}: {args:?}");
    }
}

/// A lane's access is as wide as the boundaries on which rows begin and end allow, up to a vector.
#[test]
fn lanes_access_what_begins_and_ends_with_a_row() {
    for (pass, rows) in passes() {
        let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
        let longest = |alignment: usize| {
            let common = alignment | rows.row_bytes() | VECTOR;
            1_u32 << common.trailing_zeros()
        };
        assert_eq!(args.access, longest(rows.alignment), "{rows:?}");
        assert_eq!(args.store_access, longest(rows.store_alignment), "{rows:?}");
        // The swizzle permutes vectors, so narrower accesses have none.
        assert!(args.access == VECTOR_BYTES || args.order_mask == 0, "{rows:?}");
    }
}

/// Rows of up to 32 bytes that begin and end anywhere, in two tensors and their gradients, with or
/// without gaps. Gradients may be missing.
fn tensors_with_gaps() -> impl Iterator<Item = Rows> {
    [16, 32].into_iter().flat_map(|row_bytes| {
        let with = move |gap: usize| [0, row_bytes, row_bytes + gap];
        let pairs = move |gap| with(gap).map(|first| with(gap).map(|second| [first, second]));
        let reads = [16, 1 << 20].into_iter().flat_map(move |gap| pairs(gap).into_iter());
        let reads = reads.flatten().filter(|[logits, _]| *logits != 0);
        let all = reads.flat_map(move |reads| {
            pairs(16).into_iter().flatten().map(move |writes| (reads, writes))
        });
        all.flat_map(|tensors| [(tensors, true), (tensors, false)]).map(
            move |((strides, store_strides), alike)| Rows {
                cols: row_bytes / 4,
                element_bytes: 4,
                alignment: 16,
                store_alignment: 16,
                alike,
                strides,
                store_strides,
                reads_gaps: true,
                is_elementwise: false,
                has_lane_rows: strides[1] == 0,
                has_wide_rows: strides[1] == 0,
                tiles: if strides[1] == 0 { 1 } else { 2 },
            },
        )
    })
}

/// Rows are copied as one span if they have the same stride in shared memory as in global memory.
/// They are stored as one span if neither has gaps. Both must hold for every tensor, since the
/// kernels have one argument for all.
#[test]
fn spans_are_the_same_in_shared_and_in_global_memory() {
    let mut spans = [0; 2];
    for rows in tensors_with_gaps() {
        let Some(Packed { args, .. }) = packed(Pass::ForwardBackward, rows) else { continue };
        let row_bytes = rows.row_bytes();
        let is_each = |strides: [usize; 2], is: &dyn Fn(usize, usize) -> bool| {
            (0..2).all(|tensor| strides[tensor] == 0 || is(tensor, strides[tensor]))
        };
        let is_same = |tensor: usize, stride: usize| args.step[tensor] as usize == stride;
        let has_no_gaps = |tensor: usize, stride: usize| {
            args.store_step[tensor] as usize == row_bytes && stride == row_bytes
        };
        let is_short = |_, stride| stride <= row_bytes + 32;
        assert_eq!(args.load_span != 0, is_each(rows.strides, &is_short), "{rows:?}");
        assert!(args.load_span == 0 || is_each(rows.strides, &is_same), "{rows:?}: {args:?}");
        let expected = is_each(rows.store_strides, &has_no_gaps);
        assert_eq!(args.store_span != 0, expected, "{rows:?}: {args:?}");
        spans[0] += args.load_span;
        spans[1] += args.store_span;
    }
    assert!(spans.iter().all(|&count| count > 0));
}

/// Gaps are read with the rows if they have at most a sector of 32 bytes or an eighth of a row,
/// since reading these costs little.
#[test]
fn short_gaps_are_read() {
    let is_read = |row_bytes: usize, gap| {
        let rows = Rows {
            cols: row_bytes / 4,
            element_bytes: 4,
            alignment: 16,
            store_alignment: 16,
            alike: true,
            strides: [row_bytes + gap, 0],
            store_strides: [0; 2],
            reads_gaps: true,
            is_elementwise: false,
            has_lane_rows: false,
            has_wide_rows: false,
            tiles: 1,
        };
        packed(Pass::Forward, rows).expect("a short row").args.load_span != 0
    };
    assert_eq!([0, 16, 32, 48].map(|gap| is_read(48, gap)), [true, true, true, false]);
    assert_eq!([0, 16, 512, 528].map(|gap| is_read(1024, gap)), [true, true, true, false]);
}

/// Rows that are copied one by one are copied by as many lanes as they may have vectors, rounded up
/// to a power of two.
#[test]
fn a_row_is_copied_by_a_lane_for_each_vector() {
    for (pass, rows) in passes() {
        let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
        let alignment = rows.alignment.min(rows.store_alignment);
        let vectors = (0..VECTOR).step_by(alignment.min(VECTOR));
        let vectors = vectors.map(|begin| (begin + rows.row_bytes()).div_ceil(VECTOR)).max();
        let lanes = vectors.map_or(1, |vectors| vectors.next_power_of_two().min(32));
        assert_eq!(1 << args.copy_shift, lanes, "{rows:?}");
    }
}

/// The tiles of a call: all as long as the first, except the last, which has at least one row.
#[test]
fn tiles_have_all_rows_of_a_call() {
    let layout = |cols| shapes().find(|rows| rows.cols == cols).expect("short enough");
    for cols in [1, 10, 64, 1000] {
        let packed = packed(Pass::Forward, layout(cols)).expect("a short row");
        let most = packed.args.rows as usize;
        for rows in [1, 2, most - 1, most, most + 1, 2 * most, 7 * most + 1, 1 << 30] {
            let args = packed.args_of(rows);
            let TileArgs { count, last_rows, .. } = args;
            let of_others = (count as usize - 1) * most;
            assert_eq!(of_others + last_rows as usize, rows, "{cols} columns");
            assert!((1..=most).contains(&(last_rows as usize)), "{cols} columns, {rows} rows");
            assert_eq!(TileArgs { count: 0, last_rows: 0, ..args }, packed.args);
        }
        assert_eq!(packed.args_of(0), packed.args);
    }
}

/// Dense rows of elements of `element_bytes` bytes, such as f32, on boundaries of 16 bytes if they
/// can be.
fn dense(cols: usize, element_bytes: usize) -> Rows {
    let is_dense = |rows: &Rows| rows.strides[0] == rows.row_bytes() && rows.stores_span();
    let of = |rows: &Rows| rows.cols == cols && rows.element_bytes == element_bytes;
    let mut all = shapes().filter(|rows| rows.tiles == 1 && rows.alike);
    all.find(|rows| of(rows) && is_dense(rows)).expect("a short row")
}

/// Rows that fit a lane's registers or are short have a lane each. Unless these rows are wide,
/// shared memory then allows as many blocks per H100 multiprocessor as registers do, or one less.
#[test]
fn lanes_have_short_rows_to_themselves() {
    for (element_bytes, most) in [(2, 16), (4, 16), (8, 8)] {
        for cols in 1..=256 / element_bytes {
            let rows = dense(cols, element_bytes);
            let packed = packed(Pass::Forward, rows).expect("a short row");
            let is_by_element = element_bytes == 2 && cols % 2 == 1;
            let expected = match element_bytes {
                _ if cols <= most => Regime::LaneRows,
                8 => Regime::Packed,
                2 if is_by_element && cols > 48 => Regime::Packed,
                _ => Regime::WideRows,
            };
            assert_eq!(packed.regime, expected, "{rows:?}");
            if packed.regime == Regime::Packed && rows.row_bytes() > 128 {
                continue;
            }
            assert_eq!(packed.args.warp_rows_shift, 5, "{rows:?}");
            assert!(packed.args.rows.is_multiple_of(32), "{rows:?}");
            let blocks = match packed.regime {
                Regime::LaneRows if element_bytes == 8 => 4,
                Regime::LaneRows => 6,
                Regime::WideRows => continue,
                _ => 5,
            };
            let bytes = packed.shared_bytes + RESERVED + ARRAYS_BYTES;
            assert!(bytes * blocks <= 228 << 10, "{rows:?}: {packed:?}");
            // With 32 more rows in each tile, fewer blocks would fit.
            let more = WARPS * MOST_STAGES * 32 * (rows.row_bytes() + 8);
            let is_full = packed.args.rows == 32 * MAX_TURNS as u32
                || (bytes + more) * (blocks + 1) > 228 << 10;
            assert!(is_full, "{rows:?}: {packed:?}");
        }
    }
    // There are kernels with registers for probabilities, but none for wide rows of them.
    let with_probabilities = shapes().find(|rows| rows.tiles == 2).expect("there are some");
    for (cols, expected) in [(16, Regime::LaneRows), (17, Regime::Packed)] {
        let strides = [4 * cols; 2];
        let rows = Rows {
            cols,
            element_bytes: 4,
            strides,
            store_strides: strides,
            has_lane_rows: true,
            has_wide_rows: true,
            ..with_probabilities
        };
        assert_eq!(packed(Pass::Forward, rows).expect("a short row").regime, expected);
    }
}

/// The rows that a warp computes at the same time, and whether it loads others meanwhile.
fn turn(pass: Pass, rows: Rows, rows_of_warp: usize) -> (u32, bool) {
    let rows = Rows { has_lane_rows: false, has_wide_rows: false, ..rows };
    let args = super::packed(pass, rows, rows_of_warp).expect("a short row").args;
    assert_eq!(args.rows, 1 << args.warp_rows_shift, "{rows:?}");
    (args.rows, args.stage_bytes > 0)
}

/// A warp computes as many rows at the same time as shared memory allows with five blocks, and
/// loads others meanwhile if memory is left.
#[test]
fn a_turn_has_as_many_rows_as_five_blocks_have_memory_for() {
    let forward = |cols, element_bytes| turn(Pass::Forward, dense(cols, element_bytes), usize::MAX);
    assert_eq!([66, 129, 200].map(|cols| forward(cols, 2)), [(32, true), (32, false), (16, false)]);
    assert_eq!([513, 987, 2048].map(|cols| forward(cols, 2)), [(8, false), (4, false), (2, false)]);
    assert_eq!(
        [100, 700, 1024].map(|cols| forward(cols, 4)),
        [(16, false), (2, false), (2, false)]
    );
    for (pass, rows) in passes() {
        let Some(packed) = packed(pass, rows) else { continue };
        let warp_rows = 1 << packed.args.warp_rows_shift;
        let is_doubled = packed.shared_bytes > WARPS * warp_bytes_of(RESIDENT_BLOCKS);
        if packed.regime == Regime::Packed && warp_rows > 1 && !is_doubled {
            let bytes = packed.shared_bytes + RESERVED + ARRAYS_BYTES;
            assert!(5 * bytes <= 228 << 10, "{rows:?}: {packed:?}");
        }
    }
}

/// The kernels' table allows as many blocks as this module assumes for shared memory.
#[test]
fn registers_allow_the_blocks_that_share_memory() {
    use kernels_gpu::kernels::cross_entropy::{BACKWARD_PACKED, FORWARD_PACKED};
    let of_16_and_32_bits = |entry: &&kernels_gpu::Entry| !entry.name.ends_with("_f64");
    for family in [&FORWARD_PACKED, &BACKWARD_PACKED] {
        for entry in family.entries.iter().filter(of_16_and_32_bits) {
            assert_eq!(entry.resident as usize, RESIDENT_BLOCKS, "{}", entry.name);
        }
    }
}

/// Each warp has at least two tiles, or one if it takes longer to compute, as long as there is a
/// row for each.
#[test]
fn few_rows_are_shared_out() {
    let rows = |rows_of_warp| turn(Pass::Backward, dense(129, 2), rows_of_warp).0;
    assert_eq!([0, 1, 2, 3, 4, 31, 63, 64, 65].map(rows), [32, 1, 1, 1, 2, 8, 16, 32, 32]);
    let rows = |rows_of_warp| turn(Pass::ForwardBackward, dense(129, 2), rows_of_warp).0;
    assert_eq!([0, 1, 2, 3, 31, 32].map(rows), [32, 1, 2, 2, 16, 32]);
    // 2640 warps are resident on 132 multiprocessors.
    assert_eq!([2639, 2640, 70_280].map(|rows| rows_of_warp(rows, 132)), [0, 1, 26]);
}

/// A turn has more or fewer rows if their length is near a power of two and this avoids bank
/// conflicts.
#[test]
fn a_turn_has_rows_without_many_conflicts() {
    let rows = |pass, cols| turn(pass, dense(cols, 2), usize::MAX).0;
    for (cols, forward, backward) in [(255, 32, 16), (2047, 4, 2), (1023, 4, 4), (401, 8, 8)] {
        assert_eq!((rows(Pass::Forward, cols), rows(Pass::Backward, cols)), (forward, backward));
        // With 401 columns, four blocks per multiprocessor have room for twice as many rows as
        // five.
        let both = if cols == 401 { 16 } else { forward };
        assert_eq!(rows(Pass::ForwardBackward, cols), both, "{cols} columns");
    }
    // With 700 columns there is room for eight rows, which conflict, but not for 16.
    assert_eq!([692, 700].map(|cols| rows(Pass::ForwardBackward, cols)), [8, 4]);
    // Rows of 768 bytes off a boundary all begin in one bank.
    let off = Rows { alignment: 4, store_alignment: 4, ..dense(192, 4) };
    assert_eq!(turn(Pass::Backward, off, usize::MAX).0, 4);
}

/// In several waves, a warp has at least two tiles and loads one while it computes the other,
/// unless that would leave multiprocessors without a block.
#[test]
fn warps_with_two_stages_have_two_tiles() {
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
    let two = packed(Pass::Backward, dense(10, 4)).expect("a short row");
    let one = packed(Pass::Backward, dense(1000, 4)).expect("a short row");
    assert!(two.args.stage_bytes > 0 && one.args.stage_bytes == 0);
    let blocks = |packed: Packed, tiles: usize| {
        packed.blocks(Pass::Backward, tiles * packed.block_rows, device)
    };
    let resident = 132 * 5;
    assert_eq!([resident, resident + 1, 4 * resident].map(|n| blocks(two, n)), [660, 331, 1320]);
    assert_eq!([resident, resident + 1, 4 * resident].map(|n| blocks(one, n)), [660, 661, 2640]);
}

/// The blocks of a launch of `tiles` tiles for each warp that the device has room for.
fn blocks_of_tiles(pass: Pass, rows: Rows, registers_for: usize, tiles: usize) -> [usize; 2] {
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for };
    let packed = packed(pass, rows).expect("a short row");
    let room = device.blocks(packed.shared_bytes);
    [packed.blocks(pass, tiles * room * packed.block_rows, device), room]
}

/// Forward passes with one lane per row and few blocks per multiprocessor have persistent blocks,
/// until warps have many tiles. With more blocks, there are several waves of these.
#[test]
fn few_blocks_are_persistent() {
    let waves = |rows, tiles| {
        let [blocks, room] = blocks_of_tiles(Pass::Forward, rows, 7, tiles);
        (room / 132, blocks as f64 / room as f64)
    };
    assert_eq!(
        [2, 31, 32].map(|tiles| waves(dense(60, 4), tiles)),
        [(3, 1.0), (3, 1.0), (3, 16.0)]
    );
    assert_eq!([2, 31, 32].map(|tiles| waves(dense(4, 8), tiles)), [(5, 1.0), (5, 1.0), (5, 8.0)]);
    assert_eq!([2, 4, 32].map(|tiles| waves(dense(24, 4), tiles)), [(7, 1.0), (7, 2.0), (7, 16.0)]);
    assert_eq!(waves(dense(48, 2), 32), (7, 8.0));
}

/// With loss and gradients, blocks with one lane per row are persistent if warps have few tiles.
/// Otherwise they have three tiles each, or two if a tile takes one turn.
#[test]
fn few_tiles_with_gradients_have_persistent_blocks() {
    let waves = |rows, tiles| {
        let [blocks, room] = blocks_of_tiles(Pass::ForwardBackward, rows, 7, tiles);
        blocks as f64 / room as f64
    };
    assert_eq!([7, 9, 48, 96].map(|tiles| waves(dense(4, 4), tiles)), [1.0, 3.0, 16.0, 32.0]);
    assert_eq!([7, 8, 48].map(|tiles| waves(dense(32, 4), tiles)), [1.0, 4.0, 24.0]);
    assert_eq!(waves(dense(9, 2), 96), 16.0);
    // A warp with one stage has one tile.
    assert_eq!([2, 7].map(|tiles| waves(dense(4, 8), tiles)), [2.0, 7.0]);
}

/// Gradients take less time with several lanes for rows of more than 144 bytes, or, if the loss is
/// computed too, of more than 208 bytes in 16 bits and 240 in f32.
#[test]
fn wide_rows_with_gradients_are_shorter_than_without() {
    let is_wide = |pass, [cols, element_bytes]: [usize; 2]| {
        let packed = packed(pass, dense(cols, element_bytes)).expect("a short row");
        packed.regime == Regime::WideRows
    };
    use Pass::{Backward, Forward, ForwardBackward};
    for (pass, within, beyond) in [
        (Forward, [[128, 2], [80, 4]], [[130, 2], [81, 4]]),
        (ForwardBackward, [[104, 2], [60, 4]], [[106, 2], [61, 4]]),
        (Backward, [[72, 2], [36, 4]], [[74, 2], [37, 4]]),
    ] {
        assert_eq!(within.map(|rows| is_wide(pass, rows)), [true; 2], "{pass:?}");
        assert_eq!(beyond.map(|rows| is_wide(pass, rows)), [false; 2], "{pass:?}");
    }
}

/// In backward passes, a block per row is faster for the longest rows on 16-byte boundaries.
#[test]
fn long_rows_of_backward_passes_are_not_packed() {
    let is_packed = |rows| packed(Pass::Backward, rows).is_some();
    assert_eq!([437, 439, 440].map(|cols| is_packed(dense(cols, 8))), [true, true, false]);
    let of_two = |cols| {
        let mut all = shapes().filter(|rows| rows.tiles == 2 && rows.element_bytes == 2);
        let is_dense = |rows: &Rows| rows.strides[0] == rows.row_bytes() && rows.alike;
        all.find(|rows| rows.cols == cols && is_dense(rows)).expect("a short row")
    };
    assert_eq!([1016, 1023, 1024].map(|cols| is_packed(of_two(cols))), [true, true, false]);
}

/// Resident blocks share the multiprocessor's shared memory. The driver takes a KiB of it for each
/// block, and the kernel takes some for its arrays.
#[test]
fn blocks_have_shared_memory_and_registers() {
    let packed = packed(Pass::Forward, dense(100, 4)).expect("a short row");
    let blocks = |shared_bytes, registers_for| {
        let device = Device { multiprocessors: 3, shared_bytes, registers_for };
        packed.blocks(Pass::Forward, 1 << 20, device)
    };
    let of_block = packed.shared_bytes + RESERVED + ARRAYS_BYTES;
    assert_eq!((blocks(4 * of_block, 9), blocks(4 * of_block - 1, 9)), (3 * 4, 3 * 3));
    assert_eq!((blocks(4 * of_block, 2), blocks(of_block - 1, 2)), (3 * 2, 3));
    // With few tiles, each of the four warps of a block has one.
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
    let tiles = |tiles| tiles * packed.args.rows as usize;
    let blocks = |rows| packed.blocks(Pass::Forward, rows, device);
    assert_eq!((blocks(tiles(4 * 7)), blocks(tiles(4 * 7) + 1)), (7, 8));
}

/// Rows that are copied one by one do not share a vector of shared memory.
#[test]
fn rows_copied_one_by_one_share_no_vector() {
    for (pass, rows) in passes().filter(|(pass, rows)| !rows.loads_span(*pass)) {
        let Some(packed) = packed(pass, rows) else { continue };
        let row_bytes = rows.cols * rows.element_bytes;
        let step = packed.args.step[0] as usize;
        assert_eq!(step % VECTOR, rows.strides[0] % VECTOR);
        for begins in (0..VECTOR).step_by(rows.alignment.min(VECTOR)) {
            let end = (begins + row_bytes).next_multiple_of(VECTOR);
            let next = begins + step;
            assert!(end <= next - next % VECTOR, "{rows:?}: {packed:?}");
        }
    }
}

/// The swizzle permutes the vectors within a row.
#[test]
fn lanes_stay_within_their_row() {
    for (pass, rows) in passes().filter(|(_, rows)| rows.alignment == 16) {
        let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
        if args.access < 16 {
            continue;
        }
        let vectors = (rows.row_bytes() / VECTOR) as u32;
        for row in 0..args.rows {
            let order = (row >> args.order_right & args.order_mask) << args.order_left;
            let mut taken: Vec<_> = (0..vectors).map(|vector| vector ^ order).collect();
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..vectors), "{rows:?}: {args:?}, row {row}");
        }
    }
}

/// Eight lanes that read 16 bytes each at the same time use different banks.
#[test]
fn lanes_have_no_bank_conflicts() {
    let is_whole = |rows: &Rows| {
        rows.alignment == 16 && rows.strides[0] == rows.row_bytes() && rows.stores_span()
    };
    for (pass, rows) in passes().filter(|(_, rows)| is_whole(rows)) {
        let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
        let row_vectors = (rows.cols * rows.element_bytes / VECTOR) as u32;
        let warp_rows = 1 << args.warp_rows_shift;
        // With fewer than eight rows per warp, rows of an odd number of vectors are read in two
        // turns.
        if args.access < 16 || (warp_rows < 8 && !row_vectors.is_multiple_of(8 / warp_rows)) {
            continue;
        }
        let vector = |lane: u32| {
            let (row, part) = (lane % warp_rows, lane / warp_rows);
            let order = (row >> args.order_right & args.order_mask) << args.order_left;
            assert!(part ^ order < row_vectors.max(1), "{rows:?}: within the row");
            (row * row_vectors + (part ^ order)) % 8
        };
        let mut vectors: Vec<_> = (0..8).map(vector).collect();
        vectors.sort_unstable();
        assert_eq!(vectors, [0, 1, 2, 3, 4, 5, 6, 7], "{rows:?}: {args:?}");
    }
}

/// If rows are read word by word, each word is read by one lane, and at most a few words of one
/// bank are read at a time.
#[test]
fn lanes_have_each_word_once_and_few_bank_conflicts() {
    for (pass, rows) in passes() {
        let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
        let (word, lanes) = (rows.element_bytes.max(4), 32 >> args.warp_rows_shift);
        let (words, WordSteps { word: step, lane }) = (VECTOR / word, args.words);
        let whole = rows.row_bytes() / (VECTOR * lanes);
        let chunk = (VECTOR * lanes) as u32;
        let mut times = vec![0; whole * words * lanes];
        for (of_lane, turn) in (0..lanes).flat_map(|of_lane| (0..whole).map(move |t| (of_lane, t)))
        {
            for index in 0..words {
                let [turn, index] = [turn, index].map(|number| number as u32);
                let byte = turn * chunk + index * step + of_lane as u32 * lane;
                times[byte as usize / word] += 1;
            }
        }
        assert!(times.iter().all(|&times| times == 1), "{rows:?}: {:?}", args.words);
    }
    // Whole warps that take turns have no conflict, while adjacent chunks would have four.
    assert_eq!(bank_conflicts(4004, 32, 4, 4), 1);
    assert_eq!(bank_conflicts(4004, 32, 16, 4), 4);
    // Rows of an odd number of words, with a lane each.
    assert_eq!(bank_conflicts(132, 1, 0, 4), 1);
    assert_eq!(bank_conflicts(128, 1, 0, 4), 32);
    assert_eq!(bank_conflicts(136, 1, 0, 8), 1);
}

/// Rows of f64 with gradients have a lane each up to a small number of bytes.
#[test]
fn rows_of_f64_that_a_lane_computes() {
    let regime = |pass, cols| packed(pass, dense(cols, 8)).expect("a short row").regime;
    assert_eq!([8, 9].map(|cols| regime(Pass::Forward, cols)), [Regime::LaneRows, Regime::Packed]);
    for (pass, most) in [(Pass::ForwardBackward, 22), (Pass::Backward, 32)] {
        assert_eq!(
            [8, 9, most, most + 1].map(|cols| regime(pass, cols)),
            [Regime::LaneRows, Regime::WideRows, Regime::WideRows, Regime::Packed,]
        );
    }
}

/// A warp has one stage if it computes f64 with gradients. In forward passes of f64 it has one if
/// it has many tiles and two stages would halve the rows of each.
#[test]
fn stages_of_f64() {
    let stages = |pass, cols, rows_of_warp| {
        let packed = super::packed(pass, dense(cols, 8), rows_of_warp).expect("a short row");
        let TileArgs { rows, stage_bytes, .. } = packed.args;
        (rows, if stage_bytes == 0 { 1 } else { 2 })
    };
    for cols in [3, 16, 33, 200] {
        assert_eq!(stages(Pass::ForwardBackward, cols, usize::MAX).1, 1, "{cols} columns");
        assert_eq!(stages(Pass::Backward, cols, usize::MAX).1, 2, "{cols} columns");
    }
    assert_eq!([511, 512].map(|rows| stages(Pass::Forward, 53, rows)), [(16, 2), (32, 1)]);
    // 32 rows fit each of two stages.
    assert_eq!(stages(Pass::Forward, 17, usize::MAX), (32, 2));
}

/// Rows that begin in one bank are read with one lane per row up to 320 bytes, or are copied one by
/// one with a stride of an odd number of vectors.
#[test]
fn rows_off_boundaries_do_not_collide() {
    let rows = |cols, element_bytes, alignment| {
        let rows = dense(cols, element_bytes);
        Rows { alignment, store_alignment: alignment, ..rows }
    };
    let packed = |pass, rows| packed(pass, rows).expect("a short row");
    for (cols, alignment, regime) in [
        (64, 2, Regime::WideRows),
        (128, 2, Regime::WideRows),
        (127, 2, Regime::Packed),
        (256, 2, Regime::Packed),
    ] {
        assert_eq!(packed(Pass::Forward, rows(cols, 2, alignment)).regime, regime, "{cols}");
    }
    for (cols, pass, is_span) in [
        (128, Pass::Forward, false),
        (512, Pass::Forward, false),
        (1024, Pass::Forward, true),
        (128, Pass::ForwardBackward, false),
        (512, Pass::ForwardBackward, true),
        (128, Pass::Backward, true),
        (100, Pass::Forward, true),
    ] {
        let args = packed(pass, rows(cols, 4, 4)).args;
        assert_eq!(args.load_span != 0, is_span, "{cols} columns, {pass:?}");
        if !is_span {
            assert_eq!(args.step[0] as usize / VECTOR % 2, 1);
        }
        assert_ne!(packed(pass, rows(cols, 4, 16)).args.load_span, 0);
    }
}

/// The same in f64, where it is worth copying rows one by one for fewer rows.
#[test]
fn rows_of_f64_off_boundaries() {
    let (classes, probabilities) = (1, 2);
    for (pass, tiles, cols, is_span) in [
        (Pass::ForwardBackward, classes, 24, false),
        (Pass::ForwardBackward, classes, 128, false),
        (Pass::ForwardBackward, classes, 136, true),
        (Pass::ForwardBackward, probabilities, 16, false),
        (Pass::ForwardBackward, probabilities, 64, false),
        (Pass::ForwardBackward, probabilities, 72, true),
        (Pass::Forward, classes, 24, true),
        (Pass::Forward, probabilities, 16, false),
        (Pass::Forward, probabilities, 24, true),
        (Pass::Backward, classes, 48, true),
        (Pass::Backward, probabilities, 16, false),
        (Pass::Backward, probabilities, 24, true),
    ] {
        let strides = if tiles == classes { [8 * cols, 0] } else { [8 * cols; 2] };
        let rows = Rows { alignment: 8, tiles, strides, ..dense(cols, 8) };
        let has_lanes = tiles == classes;
        let rows = Rows { has_lane_rows: has_lanes, has_wide_rows: has_lanes, ..rows };
        let args = packed(pass, rows).expect("a short row").args;
        assert_eq!(args.load_span != 0, is_span, "{cols} columns, {tiles} tensors, {pass:?}");
    }
}

/// Rows that begin in one bank because of the gaps between them are copied one by one. Above 128
/// bytes, several lanes share each row.
#[test]
fn gaps_between_rows_that_collide() {
    let rows = |cols, element_bytes, gap| {
        let rows = dense(cols, element_bytes);
        let strides = [(cols + gap) * element_bytes, 0];
        Rows { alignment: element_bytes, store_alignment: element_bytes, strides, ..rows }
    };
    let passes = [Pass::Forward, Pass::ForwardBackward, Pass::Backward];
    for (cols, element_bytes, gap, regime) in [
        (13, 4, 3, Regime::LaneRows),
        (26, 4, 6, Regime::WideRows),
        (39, 4, 9, Regime::Packed),
        (51, 2, 13, Regime::WideRows),
    ] {
        for pass in passes {
            let collide = packed(pass, rows(cols, element_bytes, gap)).expect("a short row");
            let beside = packed(pass, rows(cols, element_bytes, gap + 1)).expect("a short row");
            assert_eq!(collide.regime, regime, "{cols} columns, {pass:?}");
            let spans = [collide, beside].map(|packed| packed.args.load_span != 0);
            assert_eq!(spans, [false, true], "{cols} columns, {pass:?}");
        }
    }
}

/// Input and target of an elementwise loss, without gaps.
fn pairs(cols: usize, element_bytes: usize) -> Rows {
    let strides = [cols * element_bytes; 2];
    let is_elementwise = true;
    Rows { is_elementwise, strides, store_strides: strides, tiles: 2, ..dense(cols, element_bytes) }
}

/// A warp computes as many rows of an elementwise loss at the same time as one of its stages has
/// room for. In a short call these are few enough for two tiles per warp. Short rows have more
/// turns.
#[test]
fn turns_of_elementwise_losses() {
    let turns = |rows, rows_of_warp| {
        let args = super::packed(Pass::Forward, rows, rows_of_warp).expect("a short row").args;
        (1 << args.warp_rows_shift, args.rows >> args.warp_rows_shift, args.stage_bytes > 0)
    };
    let many = |cols, element_bytes| turns(pairs(cols, element_bytes), usize::MAX);
    assert_eq!(
        (many(8, 4), many(16, 4), many(32, 4)),
        ((32, 2, true), (32, 1, true), (32, 1, false))
    );
    assert_eq!(
        (many(257, 4), many(129, 2), many(1_000, 4)),
        ((4, 1, false), (16, 1, false), (1, 1, false))
    );
    let few = |rows_of_warp| turns(pairs(8, 4), rows_of_warp).0;
    assert_eq!([64, 63, 8, 1].map(few), [32, 16, 4, 1]);
}

/// Lanes share rows if they would otherwise read words from one bank.
#[test]
fn rows_of_elementwise_losses_that_collide() {
    let rows = Rows { alignment: 4, store_alignment: 4, ..pairs(256, 4) };
    let args = packed(Pass::ForwardBackward, rows).expect("a short row").args;
    let (lanes, step) = (32 >> args.warp_rows_shift, args.step[0] as usize);
    assert!(bank_conflicts(step, lanes, 4, 4) <= 4, "{args:?}");
    assert!(bank_conflicts(step, lanes / 2, 4, 4) > 4, "{args:?}");
}
