//! How many lanes share a row, and how many rows a warp works on at a time.

use super::*;
use crate::plan::packed::space::{MAX_TURNS, MOST_STAGES, warp_bytes_of};
use crate::plan::packed::{self, banks::bank_conflicts};

/// Rows that fit a lane's registers or are short have a lane each. Unless these rows are wide,
/// shared memory then allows as many blocks per H100 multiprocessor as registers do, or one less.
#[test]
fn lanes_have_short_rows_to_themselves() {
    for (element_bytes, most) in [(2, 16), (4, 16), (8, 8)] {
        for cols in 1..=256 / element_bytes {
            let rows = dense(cols, element_bytes);
            let packed = packed(Pass::Forward, rows).expect("a short row");
            let expected = match element_bytes {
                _ if cols <= most => Regime::LaneRows,
                8 => Regime::Packed,
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
    // Eight rows of 444 and 700 columns conflict. There is room for 16 of the former, but not of
    // the latter. With 2359 columns, one row has as many conflicts as two, and there is no room for
    // four.
    let cols = [692, 444, 700, 2359];
    assert_eq!(cols.map(|cols| rows(Pass::ForwardBackward, cols)), [8, 16, 4, 2]);
    // Rows of 768 bytes off a boundary all begin in one bank.
    let off = Rows { alignment: 4, store_alignment: 4, ..dense(192, 4) };
    assert_eq!(turn(Pass::Backward, off, usize::MAX).0, 4);
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
        let packed = packed::packed(pass, dense(cols, 8), rows_of_warp).expect("a short row");
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
        let args = packed::packed(Pass::Forward, rows, rows_of_warp).expect("a short row").args;
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
