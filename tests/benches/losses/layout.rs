//! The addresses of a shape's arrays in the allocation that all shapes share, and the bytes that a
//! call has to move.

use crate::shapes::{Extra, Loss, Pass, Shape};

/// Bytes that consecutive calls touch before they touch the same ones again: several times the
/// second-level cache.
const ROTATION: usize = 256 << 20;
const MOST_COPIES: usize = 16;

/// Bytes that the calls of a sample move, unless they are [few](FEWEST_CALLS) or
/// [many](MOST_CALLS). The microsecond or two in which a graph begins and ends is negligible beside
/// them.
const TRAFFIC: usize = 2 << 30;
const FEWEST_CALLS: usize = 3;
const MOST_CALLS: usize = 100;

/// Every array begins on a boundary of this many bytes.
const ALIGNED: usize = 256;

/// The unit of bytes that memory transfers.
const SECTOR: usize = 32;

/// The arrays of a copy, as byte offsets from its start. Reads come first and writes last, so that
/// the ceiling can take all reads as one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Classes, or the per-row data of a reduction to rows: losses in a pass that computes them,
    /// upstream gradients in the backward pass. The array has room for all per-row data that is
    /// read.
    pub(crate) of_rows: usize,
    /// Bytes of per-row data that a call moves: classes, losses and gradients of rows, and what the
    /// forward pass saved.
    pub(crate) of_rows_bytes: usize,
    /// The target, if it is a matrix.
    pub(crate) target: usize,
    pub(crate) gradient: usize,
    /// Bytes of a whole copy; the input is at its start.
    pub(crate) slot: usize,
    pub(crate) copies: usize,
    pub(crate) calls: usize,
    /// Bytes of a matrix with its gaps or without.
    pub(crate) matrix: usize,
    /// Bytes of a matrix that a call moves: whole sectors that contain elements.
    pub(crate) touched: usize,
    /// The numbers of matrices that are read and written.
    pub(crate) reads: usize,
    pub(crate) writes: usize,
}

impl Layout {
    pub(crate) fn new(shape: &Shape) -> Self {
        let up = |bytes: usize| bytes.next_multiple_of(ALIGNED);
        let elements = shape.rows * shape.stride() + usize::from(shape.has(Extra::Offset));
        let matrix = up(elements * shape.dtype.bytes());
        let touched = touched(shape);
        let matrices = if shape.target_is_a_matrix() { 2 } else { 1 };
        let reads = if shape.reads_the_target_alone() { 1 } else { matrices };
        let writes = if shape.pass == Pass::Forward { 0 } else { 1 };
        let of_rows_bytes = of_rows_bytes(shape);

        let of_rows = matrix;
        let target = of_rows + up(of_rows_bytes);
        let gradient = target + (matrices - 1) * matrix;
        let moved = (reads + writes) * touched + of_rows_bytes;
        // Has room for a third of all moved bytes, in case the ceiling writes that many.
        let slot = gradient + if writes == 0 { 0 } else { up(matrix.max(moved / 3)) };
        let copies = ROTATION.div_ceil(moved).clamp(1, MOST_COPIES);
        let calls = TRAFFIC.div_ceil(moved).clamp(FEWEST_CALLS, MOST_CALLS).max(copies);
        Layout {
            of_rows,
            of_rows_bytes,
            target,
            gradient,
            slot,
            copies,
            calls,
            matrix,
            touched,
            reads,
            writes,
        }
    }

    /// Bytes that a call moves.
    pub(crate) fn moved(&self) -> usize {
        (self.reads + self.writes) * self.touched + self.of_rows_bytes
    }

    /// Bytes of all copies.
    pub(crate) fn bytes(&self) -> usize {
        self.slot * self.copies
    }
}

/// Per-row bytes that are moved. Writes count as reads, since they are few.
fn of_rows_bytes(shape: &Shape) -> usize {
    let result = shape.dtype.result_bytes();
    let classes = if shape.target_is_a_matrix() { 0 } else { size_of::<i64>() };
    let saved = match (shape.loss, shape.pass) {
        // The largest logit and the logarithm of the sum, and the target's total unless it is 1.
        (Loss::Ce, Pass::Backward) => {
            let weighted = shape.has(Extra::Weights) || shape.has(Extra::Probabilities);
            result * if weighted { 3 } else { 2 }
        }
        _ => 0,
    };
    let results = if shape.has(Extra::Rows) { result } else { 0 };
    shape.rows * (classes + saved + results)
}

/// Bytes of the sectors in which a matrix has elements, each counted once.
fn touched(shape: &Shape) -> usize {
    let size = shape.dtype.bytes();
    let (row, stride) = (shape.cols * size, shape.stride() * size);
    if stride == row {
        return shape.rows * row;
    }
    // The offsets of rows in a sector repeat after this many rows.
    let period = SECTOR.min(shape.rows);
    let (mut sectors, mut end) = (0, 0);
    for index in 0..period {
        let first = (index * stride / SECTOR).max(end);
        end = (index * stride + row).div_ceil(SECTOR);
        sectors += end.saturating_sub(first);
    }
    sectors * SECTOR * shape.rows / period
}
