//! How rows are laid out in memory, and what follows from that for packing them.

use super::VECTOR;
use crate::plan::{Pass, Regime, most_gap_bytes};
use kernels_gpu::abi::{CACHE_LINE, lane_row_cols};

/// The bytes of half of the banks of shared memory.
const HALF_LINE: usize = CACHE_LINE as usize / 2;

/// The most bytes of a row that is stored in units. Chosen, not searched for.
const MOST_BYTES_IN_UNITS: usize = 512;

/// The most bytes of a row of [`Regime::WideRows`] where rows are copied one by one because they
/// [collide by their gaps](Rows::collides_by_gaps). They then begin an odd number of vectors apart,
/// so that words of 4 bytes, one a lane, are in eight banks only. Longer rows take less time with
/// several lanes each.
///
/// H200, 2026-11-30, ceiling ÷ ours with one lane and with several:
///
/// - bf16 forward: 26 columns 0.48 and 0.41, 77 columns 0.19 and 0.27
/// - f16 forward-backward: 154 columns 0.33 and 0.51
/// - f32 forward: 39 columns 0.39 and 0.43, 77 columns 0.22 and 0.45
/// - f64 forward-backward: 13 columns 0.57 and 0.51
const MOST_WIDE_BYTES_APART: usize = 128;

/// How the rows of a call are laid out in its tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// The largest power of two, up to 128, to which all rows of the tensors that are read are
    /// aligned, in bytes.
    pub(crate) alignment: usize,
    /// The same for the tensors that are written.
    pub(crate) store_alignment: usize,
    /// Whether each row of a gradient is aligned to 16 bytes in the same way (equal address modulo
    /// 16) as the row that it is the gradient of.
    pub(crate) alike: bool,
    /// Bytes from row to row of the logits and of the probabilities; 0 for a missing tensor.
    pub(crate) strides: [usize; 2],
    /// The same for their gradients.
    pub(crate) store_strides: [usize; 2],
    /// Whether gaps between rows may be read.
    pub(crate) reads_gaps: bool,
    /// Whether the rows are of an elementwise loss.
    pub(crate) is_elementwise: bool,
    /// Whether there are kernels of [`Regime::LaneRows`].
    pub(crate) has_lane_rows: bool,
    /// Whether there are kernels of [`Regime::WideRows`].
    pub(crate) has_wide_rows: bool,
    /// Tiles per stage: 1 for logits, 2 for logits and probabilities.
    pub(crate) tiles: usize,
}

impl Rows {
    pub(super) fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// The largest power of two, up to a vector's bytes, that divides the first byte and the bytes
    /// of all rows with this alignment.
    pub(super) fn access(&self, alignment: usize) -> usize {
        alignment.min(1 << self.row_bytes().trailing_zeros().min(4))
    }

    /// Whether rows of 16-bit elements begin or end within words.
    pub(super) fn is_by_element(&self) -> bool {
        self.access(self.alignment.min(self.store_alignment)) == 2
    }

    /// The regime for rows that are short enough for a tile.
    pub(super) fn regime(&self, pass: Pass) -> Regime {
        let is_narrow = self.cols <= lane_row_cols(self.element_bytes as u32) as usize;
        if self.has_lane_rows && is_narrow {
            Regime::LaneRows
        } else if self.tiles == 1
            && self.has_wide_rows
            && self.row_bytes() <= self.most_wide_bytes(pass)
        {
            Regime::WideRows
        } else {
            Regime::Packed
        }
    }

    /// The most bytes of a row of [`Regime::WideRows`]. A warp has two tiles of 32 such rows, and
    /// longer rows leave shared memory for too few warps. Two limits are how much a block may have
    /// ([`MAX_SHARED_BYTES`]), for rows with gaps: 320 bytes, and 176 with a third tile. Rows that
    /// [collide](Self::would_collide) gain most. In f64, whose exponentials take longest, several
    /// lanes have more of them under way. Gradients of rows that begin or end
    /// [within words](Self::is_by_element) are stored element by element where they begin elsewhere
    /// within a word than their logits; the limits for gradients aligned differently were chosen for
    /// kernels that read such rows element by element too.
    ///
    /// H200, 2026-11-26, ceiling ÷ ours with several lanes and with one:
    ///
    /// - bf16 forward: 100 columns 0.81 and 0.85, 127 columns 0.79 and 0.69, 140 columns 0.75 and
    ///   0.63
    /// - f32 forward: 90 columns 0.86 and 0.88
    ///
    /// With gradients, 2026-11-29:
    ///
    /// - bf16 forward-backward: 31 columns 0.60 and 0.72, 35 columns 0.63 and 0.60, 63 columns 0.83
    ///   and 0.74
    /// - bf16 backward: 33 columns 0.90 and 0.92, 51 columns 0.95 and 0.94
    /// - f32 forward-backward: 49 columns 0.86 and 0.92, 63 columns 0.87 and 0.85, 77 columns 0.86
    ///   and 0.82
    ///
    /// With gradients, 2026-11-30, 72 MiB and 256 MiB:
    ///
    /// - bf16 forward-backward: 100 columns 0.73 and 0.77, 0.84 and 0.89; 112 columns 0.81 and
    ///   0.79, 0.91 and 0.82; 144 columns 0.80 and 0.72, 0.92 and 0.71
    /// - bf16 backward: 68 columns 0.90 and 0.90, 0.96 and 0.96; 80 columns 0.92 and 0.90, 0.96 and
    ///   0.96; 144 columns 0.91 and 0.84, 0.97 and 0.95
    /// - f32 backward: 34 columns 0.90 and 0.91, 0.96 and 0.96; 40 columns 0.93 and 0.91, 0.97 and
    ///   0.97
    ///
    /// Rows that begin or end within a word, and whose gradients are aligned as their logits are,
    /// 2026-11-30, 200 MiB:
    ///
    /// - bf16 forward: 89 columns 0.74 and 0.84, 127 columns 0.80 and 0.84
    /// - bf16 forward-backward: 44 columns 0.60 and 0.77, 97 columns 0.78 and 0.83, 103 columns
    ///   0.83 and 0.76
    /// - bf16 backward: 40 columns 0.92 and 0.95, 72 columns 0.90 and 0.90
    ///
    /// Those that collide:
    ///
    /// - bf16 forward: 96 columns 0.29 and 0.50, 128 columns 0.22 and 0.39, 160 columns 0.25 and
    ///   0.48
    /// - bf16 forward-backward: 96 columns 0.34 and 0.47, 128 columns 0.30 and 0.37
    /// - bf16 backward: 128 columns 0.53 and 0.65, 160 columns 0.89 and 0.77
    ///
    /// In f64 (2026-11-28, forward-backward 2026-11-29):
    ///
    /// - forward: 13 columns 0.57 and 0.51, 24 columns 0.82 and 0.66
    /// - backward: 9 columns 0.70 and 0.92, 24 columns 0.78 and 0.89, 32 columns 0.89 and 0.91, 37
    ///   columns 0.87 and 0.81
    /// - forward-backward: 20 columns 0.77 and 0.81, 24 columns 0.86 and 0.85, 32 columns 0.89 and
    ///   0.85
    fn most_wide_bytes(&self, pass: Pass) -> usize {
        let is_by_element = self.is_by_element();
        let most = match (pass, self.element_bytes) {
            (Pass::ForwardBackward, 2) if is_by_element && !self.alike => 64,
            (_, 2) if is_by_element && !self.alike => 96,
            (Pass::Backward, 2) if is_by_element && self.would_collide() => 256,
            (_, 2) if is_by_element && self.would_collide() => 320,
            (Pass::ForwardBackward, 2) if is_by_element => 200,
            (Pass::Backward, 2) if is_by_element => 120,
            (Pass::Forward, 8) => 0,
            (Pass::ForwardBackward, 8) => 176,
            // A warp has a third tile, of gradients that are not written in place.
            _ if !self.alike => 176,
            (Pass::Forward, 2) | (Pass::Backward, 8) => 256,
            (Pass::Forward, _) => 320,
            (Pass::ForwardBackward, 2) => 208,
            (Pass::ForwardBackward, _) => 240,
            (Pass::Backward, _) => 144,
        };
        if self.collides_by_gaps() { most.min(MOST_WIDE_BYTES_APART) } else { most }
    }

    /// Whether the tensors that are written have no gaps between their rows, so that a tile is
    /// stored as one span.
    pub(super) fn stores_span(&self) -> bool {
        self.store_strides.iter().all(|&stride| stride == 0 || stride == self.row_bytes())
    }

    /// Whether the rows that are written, `steps` bytes apart in shared memory, have no gaps there.
    /// They may have gaps there even if there are none in global memory: gradients that overwrite
    /// the tiles that were read take over those tiles' gaps, possibly for only one of the two
    /// tensors.
    pub(super) fn has_steps_without_gaps(&self, steps: [usize; 2]) -> bool {
        let mut rows = self.store_strides.iter().zip(steps);
        rows.all(|(&stride, step)| stride == 0 || step == self.row_bytes())
    }

    /// The units in which rows are stored if a tile is not one span, as in
    /// [`TileArgs::store_units`]; 0 if rows are stored one by one, by vectors. Units are for short
    /// unaligned rows, which consist mostly of head and tail.
    pub(super) fn store_units(&self, store_access: usize) -> usize {
        if self.row_bytes() > MOST_BYTES_IN_UNITS || store_access == VECTOR {
            return 0;
        }
        self.row_bytes() / self.element_bytes.max(store_access.min(4))
    }

    /// Whether a tile is loaded as one span, gaps between rows included. Memory is read in sectors
    /// of 32 bytes, so gaps of less than that cost next to nothing.
    ///
    /// H200, 2026-11-28, gaps of a quarter of a row, ceiling ÷ ours copied row by row and as one
    /// span:
    ///
    /// - f32, 60 columns: forward 0.38 and 0.77, forward-backward 0.45 and 0.58
    /// - f16, 257 columns: forward 0.34 and 0.67, forward-backward 0.36 and 0.59
    /// - f64, 100 columns: forward 0.60 and 0.66, forward-backward 0.61 and 0.53
    pub(super) fn loads_span(&self, pass: Pass) -> bool {
        let row_bytes = self.row_bytes();
        let most_gap = if self.reads_gaps { most_gap_bytes(row_bytes) } else { 0 };
        let most = row_bytes + most_gap;
        let is_span = |stride| (row_bytes..=most).contains(stride);
        let are_spans = self.strides.iter().all(|stride| *stride == 0 || is_span(stride));
        let is_apart = self.would_collide()
            && match self.regime(pass) {
                Regime::Packed => row_bytes <= self.most_bytes_apart(pass),
                // Without gaps, lanes read vectors of different banks first ([`banks::order`]);
                // with gaps, rows are copied one by one.
                //
                // H200, 2026-11-30, ceiling ÷ ours with one span and without:
                //
                // - f32, 26 columns: forward 0.26 and 0.66, forward-backward 0.26 and 0.63,
                //   backward 0.47 and 0.59
                // - bf16 forward: 26 columns 0.27 and 0.48
                // - f64 forward-backward: 13 columns 0.21 and 0.57
                _ => self.collides_by_gaps(),
            };
        are_spans && !is_apart
    }

    /// Whether rows begin in only one or two banks if they have the same distance in shared memory
    /// as in global memory. Several lanes per row cannot avoid that they collide there, unless rows
    /// are on 16-byte boundaries and read in another order ([`banks::order`]).
    pub(crate) fn would_collide(&self) -> bool {
        let is_far_apart = |stride: &usize| *stride > 0 && stride.is_multiple_of(HALF_LINE);
        self.access(self.alignment) < VECTOR && self.strides.iter().any(is_far_apart)
    }

    /// Whether rows [collide](Self::would_collide) and have gaps between them.
    fn collides_by_gaps(&self) -> bool {
        let has_gap = |&stride: &usize| stride != 0 && stride != self.row_bytes();
        self.would_collide() && self.strides.iter().any(has_gap)
    }

    /// The most bytes of a row for which it takes less time to copy each row separately than to
    /// read rows that [collide](Self::would_collide). The longer rows are, the less conflicts cost
    /// compared with these copies.
    ///
    /// H200, 2026-11-27, f32, one element off, ceiling ÷ ours with one span and without:
    ///
    /// - forward: 128 columns 0.21 and 0.56, 512 columns 0.65 and 0.74
    /// - forward-backward: 128 columns 0.41 and 0.58, 512 columns 0.83 and 0.75
    /// - backward: 128 columns 0.69 and 0.70
    ///
    /// The same in f64 (2026-11-30):
    ///
    /// - forward: 24 columns 0.40 and 0.36, 128 columns 0.64 and 0.55
    /// - forward-backward: 32 columns 0.29 and 0.51, 128 columns 0.54 and 0.67
    ///
    /// From probabilities, f64:
    ///
    /// - forward: 16 columns 0.23 and 0.35, 24 columns 0.54 and 0.44
    /// - forward-backward: 16 columns 0.17 and 0.35, 64 columns 0.39 and 0.45, 128 columns 0.51 and
    ///   0.48
    /// - backward: 16 columns 0.41 and 0.53, 24 columns 0.77 and 0.55
    ///
    /// With gaps, backward:
    ///
    /// - f64: 39 columns 0.47 and 0.56, 77 columns 0.65 and 0.63
    /// - f32: 205 columns 0.77 and 0.82
    /// - bf16: 77 columns 0.44 and 0.36
    ///
    /// Longer rows of f64 with gradients, and of f32 with gaps, were not measured.
    fn most_bytes_apart(&self, pass: Pass) -> usize {
        match (pass, self.element_bytes) {
            // Not measured.
            (_, 8) if self.is_elementwise => 0,
            (Pass::ForwardBackward, 8) if self.tiles == 1 => 1024,
            (Pass::ForwardBackward, _) => 512,
            (_, 8) if self.tiles == 2 => 128,
            (_, 8) if self.collides_by_gaps() => 512,
            (Pass::Forward, 2 | 4) => 2048,
            (Pass::Backward, 4) if self.tiles == 1 && self.collides_by_gaps() => 1024,
            _ => 0,
        }
    }
}

#[cfg(test)]
impl Rows {
    /// Rows of f32 of one tensor, without gaps or gradients, on boundaries of up to 128 bytes.
    pub(crate) fn of_f32(cols: usize) -> Self {
        let alignment = 1 << (4 * cols).trailing_zeros().min(7);
        Rows {
            cols,
            element_bytes: 4,
            alignment,
            store_alignment: alignment,
            alike: true,
            strides: [4 * cols, 0],
            store_strides: [0; 2],
            reads_gaps: true,
            is_elementwise: false,
            has_lane_rows: false,
            has_wide_rows: false,
            tiles: 1,
        }
    }
}
