//! Bank conflicts of packed rows.

use super::*;
use crate::plan::packed::banks::bank_conflicts;
use kernels_gpu::abi::WordSteps;

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
        let (words, WordSteps { word: step, lane, .. }) = (VECTOR / word, args.words);
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

/// Rows of 16-bit elements that are a multiple of 16 bytes apart are read in two orders in turn, so
/// that a warp's words are in two quarters of the banks instead of one. Others need no such order.
#[test]
fn rows_in_one_quarter_of_the_banks_are_shifted() {
    let shifted = |cols, element_bytes, alignment| {
        let rows = dense(cols, element_bytes);
        let rows = Rows { alignment, store_alignment: alignment, ..rows };
        packed(Pass::Forward, rows).expect("a short row").args.words.shifted
    };
    assert_eq!([504, 1000].map(|cols| shifted(cols, 2, 2)), [1; 2]);
    assert_eq!([501, 997, 1004].map(|cols| shifted(cols, 2, 2)), [0; 3]);
    assert_eq!([100, 504].map(|cols| shifted(cols, 4, 4)), [0; 2]);
}

/// Rows of 16-bit elements that begin within a word and a multiple of 32 bytes apart, a lane each,
/// are read from different vectors on, so that their first words are in four or eight eighths of
/// the banks. Each begins at a vector that it has.
#[test]
fn rows_within_words_are_rotated() {
    for (cols, eighths) in [(32, 4), (48, 8), (64, 4), (96, 8), (112, 8), (128, 8), (160, 8)] {
        let rows = Rows { alignment: 2, store_alignment: 2, ..dense(cols, 2) };
        let Packed { args, regime, .. } = packed(Pass::Forward, rows).expect("a short row");
        assert_eq!(regime, Regime::WideRows);
        let order = |row: u32| (row >> args.order_right & args.order_mask) << args.order_left;
        // Without its first and last element.
        let vectors = (cols as u32 - 2) / 8;
        assert!((0..32).all(|row| order(row) < vectors), "{cols} columns");
        let first = |row: u32| (row * args.step[0] / VECTOR_BYTES + order(row)) % 8;
        let mut lanes = [0; 8];
        (0..32).for_each(|row| lanes[first(row) as usize] += 1);
        assert_eq!(lanes.into_iter().max(), Some(32 / eighths), "{cols} columns: {lanes:?}");
    }
    let args = packed(Pass::Forward, dense(101, 2)).expect("a short row").args;
    assert_eq!(args.order_mask, 0);
}

/// Rows of 16-bit elements that begin or end within a word have one lane each up to 256 bytes
/// without gradients and 200 with both, and up to 320 if they begin in one bank. Rows of f32 that
/// begin in one bank are copied one by one with a stride of an odd number of vectors.
#[test]
fn rows_off_boundaries_do_not_collide() {
    let rows = |cols, element_bytes, alignment| {
        let rows = dense(cols, element_bytes);
        Rows { alignment, store_alignment: alignment, ..rows }
    };
    let packed = |pass, rows| packed(pass, rows).expect("a short row");
    for (pass, most, most_in_one_bank) in
        [(Pass::Forward, 127, 160), (Pass::ForwardBackward, 99, 160), (Pass::Backward, 59, 128)]
    {
        let regime = |cols| packed(pass, rows(cols, 2, 2)).regime;
        assert_eq!([most, most_in_one_bank].map(regime), [Regime::WideRows; 2], "{pass:?}");
        let beyond = [most + 2, most_in_one_bank + 32];
        assert_eq!(beyond.map(regime), [Regime::Packed; 2], "{pass:?}");
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
