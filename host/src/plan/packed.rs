//! Short rows, packed into tiles: how many rows a warp stages in shared memory at a time, and how
//! its lanes share them.

mod banks;
mod rows;
mod space;
mod waves;

pub(crate) use rows::Rows;

use self::banks::{order, word_steps};
use self::space::{Placed, Space, Tiles};
use super::{Launch, Pass, Regime, reciprocal};
use kernels_gpu::abi::{PACKED_BLOCK, TileArgs, VECTOR_BYTES, saved};

/// The most bytes of a packed row where no constant below applies. Rows of this length still take
/// less time packed than with a block per row; longer ones were not compared.
///
/// H200, 2026-11-26, bf16, ceiling ÷ ours with a block per row and packed:
///
/// - 1032 columns: forward 0.30 and 0.69, forward-backward 0.40 and 0.77
/// - 2048 columns: forward 0.70 and 0.81, forward-backward 0.75 and 0.84
const MOST_ROW_BYTES: usize = 4096;

/// The same for the forward pass: about where a block per row becomes as fast as packing.
///
/// H200, 2026-11-27, ceiling ÷ ours with a block per row of four vectors a thread, and packed
/// (blocks have had more vectors a thread since; those were not compared):
///
/// - f32: 1040 columns 0.59 and 0.87, 1200 columns 0.83 and 0.86
/// - bf16: 2184 columns 0.49 and 0.82, 2448 columns 0.83 and 0.82, 2600 columns 0.87 and 0.80
/// - f32 with smoothing and weights: 1056 columns 0.59 and 0.71
const MOST_ROW_BYTES_FORWARD: usize = 4864;

/// The same for the forward pass over rows of f32 that are not on 16-byte boundaries. Packing was
/// faster for all of these rows but those of one small input.
///
/// H200, 2026-11-27, ceiling ÷ ours with a block per row and packed:
///
/// - four vectors a thread: 1229 columns 0.64 and 0.75, 1282 columns 0.74 and 0.83, 1401 columns
///   0.81 and 0.85, but 64 MiB of 1318 columns 0.66 and 0.60
/// - eight vectors a thread: 1305 columns 0.66 and 0.82, 80 MiB of 1334 columns 0.57 and 0.69
const MOST_ROW_BYTES_OFF_BOUNDARIES: usize = 5632;

/// The same for loss and gradients, by the bytes of an element: about where a block per row becomes
/// faster than packing.
///
/// H200, 2026-11-27, ceiling ÷ ours with a block per row and packed:
///
/// - f32: 1072 columns 0.76 and 0.84, 1248 columns 0.90 and 0.84
/// - bf16: 2109 columns 0.74 and 0.79, 2581 columns 0.76 and 0.80, 2768 columns 0.84 and 0.80
///
/// With the present code for gradients (2026-11-29):
///
/// - bf16: 2769 columns 0.85 and 0.81, 2999 columns 0.88 and 0.66
/// - f32: 1249 columns 0.85 and 0.83, 1499 columns 0.89 and 0.83
const fn most_row_bytes_with_loss(element_bytes: usize) -> usize {
    if element_bytes == 2 { 5200 } else { 4864 }
}

/// The same for loss and gradients where probabilities are the targets: a little above the longest
/// rows that were compared, at which packing is still faster.
///
/// H200, 2026-11-27, f32, ceiling ÷ ours with a block per row and packed:
///
/// - 1185 columns: 0.52 and 0.60
/// - 1322 columns: 0.44 and 0.62
const MOST_ROW_BYTES_OF_TWO: usize = 6000;

/// The same for the forward pass in f64, for classes: of rows on 16-byte boundaries, and of others.
/// A warp that streams a row needs as long for a partial tile at its end as for a whole one of 2
/// KiB, and an unaligned row of 8 KiB has five tiles. So packing pays off for slightly longer rows
/// if they are unaligned.
///
/// H200, 2026-11-27, ceiling ÷ ours streamed and packed:
///
/// - on 16-byte boundaries: 1016 columns 0.79 and 0.74, 1024 columns 0.81 and 0.77
/// - others: 1001 columns 0.71 and 0.74, 1023 columns 0.66 and 0.76, 1025 columns 0.65 and 0.73,
///   1050 columns 0.70 and 0.75
///
/// Measured when the tiles at a row's ends were still streamed vector by vector:
///
/// - 513 columns 0.41 and 0.71, 700 columns 0.53 and 0.73, 1300 columns 0.70 and 0.59
const MOST_ROW_BYTES_F64: [usize; 2] = [8000, 8400];

/// The same for gradients from probabilities in 16 bits, of rows on 16-byte boundaries.
///
/// H200, 2026-11-30, bf16, ceiling ÷ ours packed and with a block per row: 768 columns 0.93 and
/// 0.87, 1024 columns 0.92 and 0.97, 2040 columns 0.91 and 0.95.
const MOST_ROW_BYTES_BACKWARD_OF_TWO: usize = 2040;

/// The same for gradients in f64, of rows on 16-byte boundaries.
///
/// H200, 2026-11-30, ceiling ÷ ours packed and with a block per row: 320 columns 0.86 and 0.67, 384
/// columns 0.82 and 0.81, 448 columns 0.86 and 0.87, 510 columns 0.87 and 0.91.
const MOST_ROW_BYTES_BACKWARD_F64: usize = 3500;

/// The same for elementwise losses. Packing is faster even for the longest rows that were compared,
/// except in one small call.
///
/// H200, 2026-11-29, ceiling ÷ ours cut into tiles and packed:
///
/// - squared error, f32, 1501 columns: forward 0.92 and 0.96, forward-backward 0.90 and 0.95
/// - squared error, f64, forward-backward: 701 columns 0.89 and 0.96
/// - divergence, bf16, forward: 701 columns 0.53 and 0.78, 3001 columns 0.74 and 0.80
///
/// Calls of 30 MB:
///
/// - divergence, bf16, forward: 1501 columns 0.57 and 0.45
/// - squared error, f32, forward: 1300 columns 0.79 and 0.89
const MOST_ROW_BYTES_ELEMENTWISE: usize = 7000;

/// The same for loss and gradients of elementwise losses, for rows of 16-bit elements that have
/// heads or tails: somewhat above the longest of these rows for which packing is faster.
///
/// H200, 2026-11-29, divergence, ceiling ÷ ours cut into tiles and packed:
///
/// - bf16: 701 columns 0.62 and 0.71, 1501 columns 0.73 and 0.76, 3001 columns 0.90 and 0.75
/// - f16: 1999 columns 0.73 and 0.67
const MOST_ROW_BYTES_ELEMENTWISE_HALVES: usize = 3200;

/// The most bytes of a packed row in a pass.
fn most_row_bytes(pass: Pass, rows: Rows) -> usize {
    let (is_single, is_off) = (rows.tiles == 1, rows.access(rows.alignment) < VECTOR);
    match (pass, rows.element_bytes) {
        (Pass::ForwardBackward, 2) if rows.is_elementwise && rows.is_by_element() => {
            MOST_ROW_BYTES_ELEMENTWISE_HALVES
        }
        _ if rows.is_elementwise => MOST_ROW_BYTES_ELEMENTWISE,
        (Pass::Forward, 8) if is_single => MOST_ROW_BYTES_F64[usize::from(is_off)],
        (Pass::Backward, 2) if rows.tiles == 2 && !is_off => MOST_ROW_BYTES_BACKWARD_OF_TWO,
        (Pass::Backward, 8) if !is_off => MOST_ROW_BYTES_BACKWARD_F64,
        (Pass::Backward, _) | (_, 8) => MOST_ROW_BYTES,
        (Pass::Forward, 4) if is_off => MOST_ROW_BYTES_OFF_BOUNDARIES,
        (Pass::Forward, _) => MOST_ROW_BYTES_FORWARD,
        (Pass::ForwardBackward, bytes) if is_single => most_row_bytes_with_loss(bytes),
        (Pass::ForwardBackward, _) => MOST_ROW_BYTES_OF_TWO,
    }
}

/// The blocks of [`Regime::Packed`] that registers allow on a multiprocessor for class targets of
/// 16 and 32 bits, as the kernels' table says. For other rows, [`Space`] says how many blocks'
/// tiles should fit.
const RESIDENT_BLOCKS: usize = 5;

const WARPS: usize = PACKED_BLOCK as usize / 32;

/// The bytes of a vector, as `usize`.
const VECTOR: usize = VECTOR_BYTES as usize;

/// How rows are packed: what the kernels need to know, and what a block needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packed {
    pub(crate) args: TileArgs,
    /// Rows that a block works on at a time: one tile per warp.
    block_rows: usize,
    shared_bytes: usize,
    /// [`Regime::Packed`], or a regime with one lane per row.
    pub(crate) regime: Regime,
    is_elementwise: bool,
    element_bytes: usize,
}

impl Packed {
    /// The arguments of the kernels for `rows` rows.
    pub(crate) fn args_of(&self, rows: usize) -> TileArgs {
        let tile_rows = self.args.rows as usize;
        let count = rows.div_ceil(tile_rows);
        let last_rows = rows - count.saturating_sub(1) * tile_rows;
        TileArgs { count: count as u32, last_rows: last_rows as u32, ..self.args }
    }

    /// The launch of `blocks` blocks.
    pub(crate) fn launch(&self, blocks: usize) -> Launch {
        let shared_bytes = self.shared_bytes as u32;
        Launch { blocks: blocks as u32, threads: PACKED_BLOCK, shared_bytes, cooperative: false }
    }
}

/// Bytes of shared memory that the driver reserves in each block.
pub(crate) const RESERVED: usize = 1 << 10;

/// The most bytes of static shared memory of a kernel of packed rows, padding before the dynamic
/// shared memory included.
pub(crate) const ARRAYS_BYTES: usize = 1152;

/// What a device has room for, for one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory per multiprocessor.
    pub(crate) shared_bytes: usize,
    /// Blocks of the kernel per multiprocessor, as far as registers allow.
    pub(crate) registers_for: usize,
}

impl Device {
    /// How many blocks run at the same time if each has `dynamic_bytes` bytes of dynamic shared
    /// memory.
    pub(crate) fn blocks(&self, dynamic_bytes: usize) -> usize {
        let block_bytes = dynamic_bytes + RESERVED + ARRAYS_BYTES;
        self.multiprocessors * (self.shared_bytes / block_bytes).clamp(1, self.registers_for.max(1))
    }
}

/// The most bytes of shared memory per block on devices of compute capability 8.6, which have the
/// least.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// How many of `rows` rows each warp takes if there are all the warps that `multiprocessors` have
/// room for.
pub(crate) fn rows_of_warp(rows: usize, multiprocessors: usize) -> usize {
    rows / (multiprocessors * RESIDENT_BLOCKS * WARPS)
}

/// How rows are packed if there are `rows_of_warp` for each warp; `None` if they are too long, or
/// need more shared memory than a block may have.
pub(crate) fn packed(pass: Pass, rows: Rows, rows_of_warp: usize) -> Option<Packed> {
    let row_bytes = rows.row_bytes();
    if row_bytes > most_row_bytes(pass, rows) {
        return None;
    }
    let access = rows.access(rows.alignment);
    let (loads_span, stores_span) = (rows.loads_span(pass), rows.stores_span());
    let read = Placed::new(row_bytes, rows.alignment, rows.strides, loads_span);
    let mut written = Placed::new(row_bytes, rows.store_alignment, rows.store_strides, stores_span);
    if rows.alike {
        written = read;
    }
    // The kernels compute in f32 or f64.
    let saved = if pass == Pass::Backward { saved::USED * rows.element_bytes.max(4) } else { 0 };
    let space = Space { rows: &rows, read, written, rows_of_warp, saved };
    let regime = rows.regime(pass);
    let Tiles { rows: tile_rows, warp_rows, stages } = space.tiles(pass, regime);
    let (bytes, stage_bytes) = (space.tile_bytes(tile_rows), space.stage_bytes(tile_rows));
    let gradients = if rows.alike { 0 } else { stages * stage_bytes };
    let warp_bytes = space.warp_bytes(tile_rows, stages);
    let shared_bytes = WARPS * warp_bytes;
    if shared_bytes > MAX_SHARED_BYTES {
        return None;
    }
    // If rows are copied one by one, each is copied by one lane for each vector that it may have.
    let alignment = rows.alignment.min(rows.store_alignment).min(VECTOR);
    let vectors = (VECTOR - alignment + row_bytes).div_ceil(VECTOR);
    let copy_lanes = vectors.next_power_of_two().min(32);
    let stores_span = stores_span && rows.has_steps_without_gaps(written.steps);
    let store_access = if rows.alike { access } else { rows.access(rows.store_alignment) };
    let rotates = regime == Regime::WideRows && rows.is_by_element();
    let [order_right, order_mask, order_left] = order(row_bytes, read.steps[0], warp_rows, rotates);
    let store_units = if stores_span { 0 } else { rows.store_units(store_access) };
    let numbers = |steps: [usize; 2]| steps.map(|step| step as u32);
    let args = TileArgs {
        rows: tile_rows as u32,
        count: 0,
        last_rows: 0,
        warp_rows_shift: warp_rows.trailing_zeros(),
        access: access as u32,
        store_access: store_access as u32,
        step: numbers(read.steps),
        store_step: numbers(written.steps),
        load_span: loads_span.into(),
        store_span: stores_span.into(),
        copy_shift: copy_lanes.trailing_zeros(),
        store_units: store_units as u32,
        per_store_unit: reciprocal(store_units.max(1)),
        order_right,
        order_mask,
        order_left,
        bytes: bytes as u32,
        stage_bytes: if stages == 1 { 0 } else { stage_bytes as u32 },
        saved: if saved == 0 { 0 } else { space.saved_offset(tile_rows) as u32 },
        warp_bytes: warp_bytes as u32,
        gradients: gradients as u32,
        words: word_steps(&rows, read.steps[0], 32 / warp_rows),
    };
    let (block_rows, element_bytes) = (WARPS * tile_rows, rows.element_bytes);
    let is_elementwise = rows.is_elementwise;
    Some(Packed { args, block_rows, shared_bytes, regime, is_elementwise, element_bytes })
}

#[cfg(test)]
mod tests;
