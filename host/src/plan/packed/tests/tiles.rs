//! Tiles have room for their rows, and rows are where the kernels look for them.

use super::*;
use kernels_gpu::abi::CACHE_LINE;

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
        let Some(Packed { args, regime, .. }) = packed(pass, rows) else { continue };
        let longest = |alignment: usize| {
            let common = alignment | rows.row_bytes() | VECTOR;
            1_u32 << common.trailing_zeros()
        };
        assert_eq!(args.access, longest(rows.alignment), "{rows:?}");
        assert_eq!(args.store_access, longest(rows.store_alignment), "{rows:?}");
        // The swizzle permutes vectors, so narrower accesses have none, unless it rotates them.
        let rotates = regime == Regime::WideRows && rows.is_by_element();
        assert!(args.access == VECTOR_BYTES || rotates || args.order_mask == 0, "{rows:?}");
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
            alignment: 16,
            store_alignment: 16,
            strides: [row_bytes + gap, 0],
            ..Rows::of_f32(row_bytes / 4)
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
