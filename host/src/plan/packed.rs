//! Short rows, packed into tiles: how many rows a warp stages in shared memory at a time, and how
//! its lanes share them.

mod banks;

use self::banks::{order, word_steps};
use super::{Launch, Pass, Regime};
use kernels_gpu::abi::{CACHE_LINE, PACKED_BLOCK, TileArgs, VECTOR_BYTES, lane_row_cols};

/// The most bytes of a packed row, except in the forward pass in f64. H200, 2026-11-26, bf16, ceiling ÷ ours with a block per row and
/// packed: 1032 columns forward 0.30 and 0.69, forward-backward 0.40 and 0.77; 2048 columns 0.70
/// and 0.81, 0.75 and 0.84.
const MOST_ROW_BYTES: usize = 4096;

/// The same for the forward pass in f64: a warp that streams a longer row spends as long on the
/// tile at its end as on a whole one. H200, 2026-11-27, ceiling ÷ ours streamed and packed: 513
/// columns 0.41 and 0.71, 700 columns 0.53 and 0.73, 1000 columns 0.64 and 0.69, 1024 columns 0.74
/// and 0.72.
const MOST_ROW_BYTES_F64: usize = 8000;

/// The blocks of [`Regime::Packed`] that registers allow on a multiprocessor for class targets of
/// 16 and 32 bits, as the kernels' table says. Other targets and f64 have fewer, of no more memory.
const RESIDENT_BLOCKS: usize = 5;

/// The bytes of shared memory that a warp can have if `blocks` blocks are to fit into an H100's
/// multiprocessor.
const fn warp_bytes_of(blocks: usize) -> usize {
    let bytes = (228 << 10) / blocks - RESERVED - ARRAYS_BYTES;
    bytes / WARPS / CACHE_LINE as usize * CACHE_LINE as usize
}

/// The bytes of shared memory of a warp whose lanes share rows of more than `SMALL_ROW_BYTES`.
const WARP_BYTES: usize = warp_bytes_of(RESIDENT_BLOCKS);

/// The same where three blocks are enough: rows that would have bank conflicts with less memory,
/// and two tiles of f64 in the forward pass.
const MOST_WARP_BYTES: usize = warp_bytes_of(3);

/// The bytes of a stage for rows of at most `SMALL_ROW_BYTES`, which have one lane each. With two
/// stages per warp, five blocks fit into the shared memory of an H100's multiprocessor, which is as
/// many as its registers allow. A stage of fewer rows would cost as many instructions.
const SMALL_STAGE_BYTES: usize = 5400;

/// See [`SMALL_STAGE_BYTES`].
const SMALL_ROW_BYTES: usize = 128;

/// The bytes of a stage (rows and classes) for [`Regime::LaneRows`]. With two stages per warp, six
/// or seven blocks fit into the shared memory of an H100's multiprocessor, whose registers allow
/// seven. H200, 2026-11-26, f32 forward, 10 columns, ceiling ÷ ours with 2400, 3680 and
/// 5000 bytes: 0.81, 0.88, 0.89; with as many waves as there are now, 0.92 and 0.91 with 3680 and
/// 5000.
const LANES_STAGE_BYTES: usize = 3680;

/// The bytes of a stage for [`Regime::WideRows`]: with more, fewer blocks have shared memory, and
/// with fewer, rows of 20 to 60 bytes have too few turns. H200, 2026-11-26, bf16 forward, ceiling
/// ÷ ours with 3600, 5400 and 8000 bytes: 24 columns 0.77, 0.70, 0.64; 32 columns 0.69, 0.79,
/// 0.67.
const WIDE_STAGE_BYTES: usize = 4800;

/// The same for the backward pass, which has less to compute: bf16, 32 columns 0.96, 0.91, 0.86.
const WIDE_BACKWARD_STAGE_BYTES: usize = 3600;

/// The most stages of a warp: one tile is computed while the other is loaded.
const MOST_STAGES: usize = 2;

const WARPS: usize = PACKED_BLOCK as usize / 32;

/// The most rows of a tile per row that a warp works on at the same time: a lane takes up to so
/// many rows of a tile, one after another.
const MAX_TURNS: usize = 8;

/// The bytes of half of the banks of shared memory.
const HALF_LINE: usize = CACHE_LINE as usize / 2;

/// The bytes of a vector, as `usize`.
const VECTOR: usize = VECTOR_BYTES as usize;

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
    /// Whether there are kernels of [`Regime::LaneRows`].
    pub(crate) has_lane_rows: bool,
    /// Whether there are kernels of [`Regime::WideRows`].
    pub(crate) has_wide_rows: bool,
    /// Tiles per stage: 1 for logits, 2 for logits and probabilities.
    pub(crate) tiles: usize,
}

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// The largest power of two, up to a vector's bytes, that divides the first byte and the bytes
    /// of all rows with this alignment.
    fn access(&self, alignment: usize) -> usize {
        alignment.min(1 << self.row_bytes().trailing_zeros().min(4))
    }

    /// The regime that takes rows which are short enough for a tile.
    fn regime(&self, pass: Pass) -> Regime {
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
    /// ([`MAX_SHARED_BYTES`]), for rows with gaps: 320 bytes, and 176 with a third tile. Rows of
    /// 16-bit elements that are read one by one take more instructions, and the forward pass, which
    /// has fewer bytes to hide them behind, gains less. H200, 2026-11-26, ceiling ÷ ours with
    /// several lanes and with one: bf16 forward, 100 columns 0.81 and 0.85, 127 columns 0.79 and
    /// 0.69, 140 columns 0.75 and 0.63; with gradients, 100 columns 0.77 and 0.90, 127 columns 0.70
    /// and 0.68, 180 columns 0.58 and 0.75; f32 forward, 90 columns 0.86 and 0.88, with gradients
    /// 0.69 and 0.89. Rows that [collide](Self::would_collide) gain most (H200, 2026-11-27: bf16,
    /// 128 columns, one element off, forward 0.11 and 0.38, forward-backward 0.19 and 0.41,
    /// backward 0.38 and 0.58).
    fn most_wide_bytes(&self, pass: Pass) -> usize {
        let is_by_element = self.access(self.alignment.min(self.store_alignment)) == 2;
        match (pass, self.element_bytes) {
            (_, 2) if is_by_element && self.alike && self.would_collide() => 320,
            (Pass::Forward, 2) if is_by_element => 96,
            (_, 2) if is_by_element => 176,
            // A warp has a third tile, of gradients that are not written in place.
            _ if !self.alike => 176,
            (Pass::Forward, 2) => 256,
            _ => 320,
        }
    }

    /// Whether the tensors that are written have no gaps between their rows, so that a tile is
    /// stored as one span.
    fn stores_span(&self) -> bool {
        self.store_strides.iter().all(|&stride| stride == 0 || stride == self.row_bytes())
    }

    /// Whether the rows that are written, `steps` bytes apart in shared memory, have no gaps there.
    /// They may have some though they have none in global memory: where gradients overwrite the
    /// tiles that were read, and then for one of the two tensors alone.
    fn has_steps_without_gaps(&self, steps: [usize; 2]) -> bool {
        let mut rows = self.store_strides.iter().zip(steps);
        rows.all(|(&stride, step)| stride == 0 || step == self.row_bytes())
    }

    /// Whether a tile is loaded as one span, gaps between rows included. Memory is read in sectors
    /// of 32 bytes, so gaps of less than that cost next to nothing.
    fn loads_span(&self, pass: Pass) -> bool {
        let row_bytes = self.row_bytes();
        let gap = (row_bytes / 8).max(32);
        let is_span = |stride| (row_bytes..=row_bytes + gap).contains(stride);
        let are_spans = self.strides.iter().all(|stride| *stride == 0 || is_span(stride));
        let is_apart = self.regime(pass) == Regime::Packed
            && self.element_bytes < 8
            && self.would_collide()
            && row_bytes <= self.most_bytes_apart(pass);
        are_spans && !is_apart
    }

    /// Whether rows that are as far apart in shared memory as in global memory begin in one bank or
    /// in two. Several lanes per row cannot avoid that they collide there, unless rows are on
    /// 16-byte boundaries and read in another order ([`banks::order`]).
    fn would_collide(&self) -> bool {
        let is_far_apart = |stride: &usize| *stride > 0 && stride.is_multiple_of(HALF_LINE);
        self.access(self.alignment) < VECTOR && self.strides.iter().any(is_far_apart)
    }

    /// The most bytes of rows for which it takes less time to copy each by itself than to read rows
    /// that [collide](Self::would_collide). H200, 2026-11-27, f32, one element off, ceiling ÷ ours
    /// with one span and without: forward, 128 columns 0.21 and 0.56, 512 columns 0.65 and 0.74;
    /// forward-backward, 128 columns 0.41 and 0.58, 512 columns 0.83 and 0.75; backward, 128
    /// columns 0.69 and 0.70; but f64 forward, 256 columns 0.69 and 0.55.
    fn most_bytes_apart(&self, pass: Pass) -> usize {
        match pass {
            Pass::Forward => 2048,
            Pass::ForwardBackward => 512,
            Pass::Backward => 0,
        }
    }
}

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

/// Where the rows of two tensors are placed in shared memory.
#[derive(Clone, Copy)]
struct Placed {
    /// Bytes from row to row, as `TileArgs::step`.
    steps: [usize; 2],
    /// The most bytes from the beginning of a cache line to the first row.
    lead: usize,
}

impl Placed {
    /// The placement of rows of `row_bytes` that are aligned to `alignment` and `strides` bytes
    /// apart in global memory. If a tile is copied as one span, rows are as far apart in shared
    /// memory; if not, as close together as possible without sharing a vector.
    fn new(row_bytes: usize, alignment: usize, strides: [usize; 2], is_span: bool) -> Self {
        let line = CACHE_LINE as usize;
        let lead = line - alignment.min(line);
        if is_span {
            return Placed { steps: strides, lead };
        }
        // A row may begin anywhere in its first vector that its alignment allows. The distance from
        // row to row is an odd number of vectors, so that rows begin in different banks.
        let vectors = (VECTOR - alignment.min(VECTOR) + row_bytes).div_ceil(VECTOR);
        let steps = strides.map(|stride| (vectors | 1) * VECTOR + stride % VECTOR);
        Placed { steps, lead }
    }

    fn step(&self) -> usize {
        self.steps[0].max(self.steps[1])
    }

    /// The bytes of a tile of `rows` rows.
    fn bytes(&self, rows: usize) -> usize {
        (self.lead + rows * self.step()).next_multiple_of(CACHE_LINE as usize)
    }
}

/// The shared memory that tiles of a call take.
struct Space<'a> {
    rows: &'a Rows,
    read: Placed,
    written: Placed,
    /// See [`rows_of_warp`].
    rows_of_warp: usize,
}

/// How many rows a warp works on.
struct Tiles {
    /// Rows of a tile.
    rows: usize,
    /// Rows that a warp works on at the same time.
    warp_rows: usize,
    /// Tiles that a warp has room for: the one that it computes, and one that it loads meanwhile.
    stages: usize,
}

impl Space<'_> {
    /// The bytes of a tile of `tile_rows` rows of one tensor.
    fn tile_bytes(&self, tile_rows: usize) -> usize {
        self.read.bytes(tile_rows).max(self.written.bytes(tile_rows))
    }

    /// The bytes of a stage: without probabilities, it also has the class of each row, of eight
    /// bytes.
    fn stage_bytes(&self, tile_rows: usize) -> usize {
        let classes = if self.rows.tiles == 1 { tile_rows * 8 + VECTOR } else { 0 };
        let bytes = self.rows.tiles * self.tile_bytes(tile_rows) + classes;
        bytes.next_multiple_of(CACHE_LINE as usize)
    }

    /// The bytes of a warp. Gradients that are aligned differently from what was read need tiles of
    /// their own.
    fn warp_bytes(&self, tile_rows: usize, stages: usize) -> usize {
        let gradients =
            if self.rows.alike { 0 } else { self.rows.tiles * self.tile_bytes(tile_rows) };
        stages * self.stage_bytes(tile_rows) + gradients
    }

    /// The tiles of a pass.
    fn tiles(&self, pass: Pass, regime: Regime) -> Tiles {
        let is_small = self.rows.row_bytes() <= SMALL_ROW_BYTES && self.rows.tiles == 1;
        let stage_bytes = match regime {
            Regime::LaneRows => LANES_STAGE_BYTES,
            Regime::WideRows if pass == Pass::Backward => WIDE_BACKWARD_STAGE_BYTES,
            Regime::WideRows => WIDE_STAGE_BYTES,
            _ if is_small => SMALL_STAGE_BYTES,
            _ => return self.tiles_of_one_turn(pass),
        };
        // The largest distance of rows in any tile; the strides of missing tensors are 0.
        let step = self.read.step().max(self.written.step()).max(self.rows.row_bytes());
        let tiles = if self.rows.alike { MOST_STAGES } else { MOST_STAGES + 1 };
        let bytes_of_turn = (step * self.rows.tiles + 8) * 32;
        let turns = (stage_bytes * MOST_STAGES / tiles / bytes_of_turn).clamp(1, MAX_TURNS);
        Tiles { rows: 32 * turns, warp_rows: 32, stages: MOST_STAGES }
    }

    /// As many rows as [`WARP_BYTES`] have room for, all of which a warp works on at the same time:
    /// what is done once in a turn takes as many instructions for few rows as for many. That counts
    /// for more than to load a tile while another is computed, which other warps do as well. H200,
    /// 2026-11-27, bf16, ceiling ÷ ours with half as many rows in two stages, and so: forward, 513
    /// columns 0.71 and 0.82, 1040 columns 0.75 and 0.84; forward-backward, 129 columns 0.61 and
    /// 0.82, 1064 columns 0.75 and 0.84.
    ///
    /// f64 has two stages always, since its kernels have no registers for the choice. In the
    /// forward pass its tiles have about 8 KiB, and about 5 KiB otherwise: chosen, not searched
    /// for.
    fn tiles_of_one_turn(&self, pass: Pass) -> Tiles {
        let (least_stages, most_bytes) = match (self.rows.element_bytes, pass) {
            (8, Pass::Forward) => (MOST_STAGES, MOST_WARP_BYTES),
            (8, _) => (MOST_STAGES, WARP_BYTES),
            _ => (1, WARP_BYTES),
        };
        let fits = |rows, stages| self.warp_bytes(rows, stages) <= most_bytes;
        let sizes = [32, 16, 8, 4, 2];
        let most = sizes.into_iter().find(|&rows| fits(rows, least_stages)).unwrap_or(1);
        let warp_rows = self.shared_out(pass, self.with_few_conflicts(pass, most));
        let stages = if fits(warp_rows, MOST_STAGES) { MOST_STAGES } else { least_stages };
        Tiles { rows: warp_rows, warp_rows, stages }
    }

    /// At most `most` rows, and so few that every warp has two tiles, or one if it has most to do
    /// once a tile: with fewer tiles, some warps would have twice as many as others. H200,
    /// 2026-11-27, ceiling ÷ ours with as many rows as there is room for, and so: f32 backward,
    /// 4505×1024, 0.62 and 0.73; bf16 forward, 70280×255, 0.46 and 0.55. With two tiles for each
    /// warp, bf16 forward-backward, 8190×1280 is at 0.43 instead of 0.49. Calls with fewer rows
    /// than warps have as many as there is room for; they were not measured.
    fn shared_out(&self, pass: Pass, most: usize) -> usize {
        let tiles = if pass == Pass::ForwardBackward { 1 } else { 2 };
        let mut rows = most;
        while rows > 1 && self.rows_of_warp > 0 && tiles * rows > self.rows_of_warp {
            rows /= 2;
        }
        rows
    }

    /// `rows`, or half or twice as many, which have fewer bank conflicts. Rows whose length is near
    /// a power of two have some if a warp works on few of them. Twice as many take more shared
    /// memory than there should be: H200, 2026-11-27, bf16, forward, 2047 columns 0.63 of the
    /// ceiling with two rows and 0.75 with four, 255 columns 0.67 with 16 rows and 0.78 with 32.
    /// But backward, which has less arithmetic, 255 columns 0.87 and 0.81. Where eight rows begin
    /// in one bank, half as many are faster: f32 backward, 192 columns, one element off, 0.68 and
    /// 0.86.
    fn with_few_conflicts(&self, pass: Pass, mut rows: usize) -> usize {
        let step = self.read.steps[0];
        let conflicts = |rows| banks::fewest_conflicts(self.rows, step, 32 / rows);
        while rows > 1 && conflicts(rows) >= 8 {
            rows /= 2;
        }
        let is_doubled = pass != Pass::Backward
            && rows < 32
            && conflicts(rows) >= 4
            && 2 * conflicts(2 * rows) <= conflicts(rows)
            && self.rows.element_bytes < 8
            && self.warp_bytes(2 * rows, 1) <= MOST_WARP_BYTES;
        if is_doubled { 2 * rows } else { rows }
    }
}

/// How many of `rows` rows there are for each warp that `multiprocessors` have room for.
pub(crate) fn rows_of_warp(rows: usize, multiprocessors: usize) -> usize {
    rows / (multiprocessors * RESIDENT_BLOCKS * WARPS)
}

/// How rows are packed, of which there are `rows_of_warp` for each warp; `None` if they are too
/// long, or need more shared memory than a block may have.
pub(crate) fn packed(pass: Pass, rows: Rows, rows_of_warp: usize) -> Option<Packed> {
    let row_bytes = rows.row_bytes();
    let is_long = pass == Pass::Forward && rows.element_bytes == 8;
    if row_bytes > if is_long { MOST_ROW_BYTES_F64 } else { MOST_ROW_BYTES } {
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
