//! How rows are packed: that the data fits the tiles, and the shapes that measurements favoured.

mod banks;
mod tiles;
mod turns;
mod waves;

use super::*;

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

/// Dense rows of elements of `element_bytes` bytes, such as f32, on boundaries of 16 bytes if they
/// can be.
fn dense(cols: usize, element_bytes: usize) -> Rows {
    let is_dense = |rows: &Rows| rows.strides[0] == rows.row_bytes() && rows.stores_span();
    let of = |rows: &Rows| rows.cols == cols && rows.element_bytes == element_bytes;
    let mut all = shapes().filter(|rows| rows.tiles == 1 && rows.alike);
    all.find(|rows| of(rows) && is_dense(rows)).expect("a short row")
}

/// The rows that a warp computes at the same time, and whether it loads others meanwhile.
fn turn(pass: Pass, rows: Rows, rows_of_warp: usize) -> (u32, bool) {
    let rows = Rows { has_lane_rows: false, has_wide_rows: false, ..rows };
    let args = super::packed(pass, rows, rows_of_warp).expect("a short row").args;
    assert_eq!(args.rows, 1 << args.warp_rows_shift, "{rows:?}");
    (args.rows, args.stage_bytes > 0)
}
