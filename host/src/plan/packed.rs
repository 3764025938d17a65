//! Short rows, packed into tiles: how many rows a warp stages in shared memory at a time, and how
//! its lanes share them.

mod banks;
mod rows;
mod space;

pub(crate) use rows::Rows;

use self::banks::{order, word_steps};
use self::space::{Placed, Space, Tiles};
use super::{Launch, Pass, Regime};
use kernels_gpu::abi::{PACKED_BLOCK, TileArgs, VECTOR_BYTES};

/// The most bytes of a packed row, except in the forward pass in f64. H200, 2026-11-26, bf16,
/// ceiling ÷ ours with a block per row and packed: 1032 columns forward 0.30 and 0.69,
/// forward-backward 0.40 and 0.77; 2048 columns 0.70 and 0.81, 0.75 and 0.84.
const MOST_ROW_BYTES: usize = 4096;

/// The same for the forward pass in f64, for classes: a warp that streams a longer row spends as
/// long on the tile at its end as on a whole one. H200, 2026-11-27, ceiling ÷ ours streamed and
/// packed: 513 columns 0.41 and 0.71, 700 columns 0.53 and 0.73, 1000 columns 0.64 and 0.69, 1024
/// columns 0.74 and 0.72.
const MOST_ROW_BYTES_F64: usize = 8000;

/// The most bytes of a packed row in a pass.
fn most_row_bytes(pass: Pass, rows: Rows) -> usize {
    let is_forward_of_f64 = pass == Pass::Forward && rows.element_bytes == 8;
    if is_forward_of_f64 && rows.tiles == 1 { MOST_ROW_BYTES_F64 } else { MOST_ROW_BYTES }
}

/// The blocks of [`Regime::Packed`] that registers allow on a multiprocessor for class targets of
/// 16 and 32 bits, as the kernels' table says. Other targets and f64 have fewer, of no more memory.
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
}

impl Packed {
    /// The blocks of a launch over `rows` rows: at most [`waves`](Self::waves) times as many as the
    /// device has room for. In several waves each takes as many tiles as any other: blocks of three
    /// tiles beside some of two would leave the last wave waiting.
    pub(crate) fn blocks(&self, pass: Pass, rows: usize, device: Device) -> usize {
        let Device { multiprocessors, shared_bytes, registers_for } = device;
        let block_bytes = self.shared_bytes + RESERVED + ARRAYS_BYTES;
        let room = (shared_bytes / block_bytes).clamp(1, registers_for);
        let most = multiprocessors * room * self.waves(pass);
        let blocks = rows.div_ceil(self.block_rows);
        if self.waves(pass) == 1 {
            blocks.min(most)
        } else {
            blocks.div_ceil(blocks.div_ceil(most).max(1))
        }
    }

    /// How many times as many blocks a launch has as the device has room for. Blocks that begin in
    /// the order of memory keep reads, and reads and writes, closer together than persistent ones,
    /// but each has to begin and to end: H200, forward-backward, 524288×256 f32, 0.92 instead of
    /// 0.88 of the memory's limit; forward with several lanes per row, no gain; with one, of 3
    /// columns in f32 0.92 instead of 0.87.
    fn waves(&self, pass: Pass) -> usize {
        if pass == Pass::Forward && self.regime == Regime::Packed { 1 } else { WAVES }
    }

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

/// See [`Packed::waves`].
const WAVES: usize = 8;

/// Bytes of shared memory that the driver reserves in each block.
pub(crate) const RESERVED: usize = 1 << 10;

/// Bytes of the shared arrays of a kernel of packed rows, at most, up to where the dynamic shared
/// memory of a block begins.
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

/// The most bytes of shared memory per block on devices of compute capability 8.6, which have the
/// least.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// How many of `rows` rows there are for each warp that `multiprocessors` have room for.
pub(crate) fn rows_of_warp(rows: usize, multiprocessors: usize) -> usize {
    rows / (multiprocessors * RESIDENT_BLOCKS * WARPS)
}

/// How rows are packed, of which there are `rows_of_warp` for each warp; `None` if they are too
/// long, or need more shared memory than a block may have.
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
    let space = Space { rows: &rows, read, written, rows_of_warp };
    let regime = rows.regime(pass);
    let Tiles { rows: tile_rows, warp_rows, stages } = space.tiles(pass, regime);
    let (bytes, stage_bytes) = (space.tile_bytes(tile_rows), space.stage_bytes(tile_rows));
    let gradients = if rows.alike { 0 } else { stages * stage_bytes };
    let warp_bytes = space.warp_bytes(tile_rows, stages);
    let shared_bytes = WARPS * warp_bytes;
    if shared_bytes > MAX_SHARED_BYTES {
        return None;
    }
    // A row that is copied by itself is copied by as many lanes as it may have vectors.
    let alignment = rows.alignment.min(rows.store_alignment).min(VECTOR);
    let vectors = (VECTOR - alignment + row_bytes).div_ceil(VECTOR);
    let copy_lanes = vectors.next_power_of_two().min(32);
    let [order_right, order_mask, order_left] = order(row_bytes, read.steps[0], warp_rows);
    let numbers = |steps: [usize; 2]| steps.map(|step| step as u32);
    let args = TileArgs {
        rows: tile_rows as u32,
        count: 0,
        last_rows: 0,
        warp_rows_shift: warp_rows.trailing_zeros(),
        access: access as u32,
        store_access: if rows.alike { access } else { rows.access(rows.store_alignment) } as u32,
        step: numbers(read.steps),
        store_step: numbers(written.steps),
        load_span: loads_span.into(),
        store_span: (stores_span && rows.has_steps_without_gaps(written.steps)).into(),
        copy_shift: copy_lanes.trailing_zeros(),
        order_right,
        order_mask,
        order_left,
        bytes: bytes as u32,
        stage_bytes: if stages == 1 { 0 } else { stage_bytes as u32 },
        warp_bytes: warp_bytes as u32,
        gradients: gradients as u32,
        words: word_steps(&rows, read.steps[0], 32 / warp_rows),
    };
    Some(Packed { args, block_rows: WARPS * tile_rows, shared_bytes, regime })
}

#[cfg(test)]
mod tests;
