//! The shared memory of packed rows: where rows are placed in a tile, and how many rows and tiles a
//! warp has room for.

use super::{ARRAYS_BYTES, RESERVED, RESIDENT_BLOCKS, Rows, VECTOR, WARPS, banks};
use crate::plan::{Pass, Regime};
use kernels_gpu::abi::{CACHE_LINE, packed_stages};

/// The bytes of shared memory that a warp can have if `blocks` blocks are to fit into an H100's
/// multiprocessor.
pub(super) const fn warp_bytes_of(blocks: usize) -> usize {
    let bytes = (228 << 10) / blocks - RESERVED - ARRAYS_BYTES;
    bytes / WARPS / CACHE_LINE as usize * CACHE_LINE as usize
}

/// The bytes of shared memory that a warp can have if three blocks are to fit, which are enough for
/// any rows.
const MOST_WARP_BYTES: usize = warp_bytes_of(3);

/// The bytes of a stage for rows of at most `SMALL_ROW_BYTES`, which have one lane each. With two
/// stages per warp, five blocks fit into the shared memory of an H100's multiprocessor, and its
/// registers have room for no more. A stage of fewer rows would cost the same number of
/// instructions.
const SMALL_STAGE_BYTES: usize = 5400;

/// See [`SMALL_STAGE_BYTES`].
const SMALL_ROW_BYTES: usize = 128;

/// The bytes of a stage (rows and classes) for [`Regime::LaneRows`]. With two stages per warp, six
/// or seven blocks fit into the shared memory of an H100's multiprocessor, whose registers allow
/// seven. Larger stages gain almost nothing.
///
/// H200, 2026-11-26, f32 forward, 10 columns, ceiling ÷ ours:
///
/// - with 2400, 3680 and 5000 bytes: 0.81, 0.88, 0.89
/// - with eight waves instead of one, 3680 and 5000 bytes: 0.92, 0.91
const LANES_STAGE_BYTES: usize = 3680;

/// The same in f64, whose registers allow fewer blocks, so that each can have larger stages.
///
/// H200, 2026-11-27, ceiling ÷ ours with 3680, 5400 and 7000 bytes:
///
/// - forward: 4 columns 0.62, 0.66, 0.64; 8 columns 0.65, 0.73, 0.66
/// - forward-backward: 3 columns 0.56, 0.59, 0.58; 8 columns 0.76, 0.81, 0.74
const LANES_STAGE_BYTES_F64: usize = 5400;

/// The bytes of a stage for [`Regime::WideRows`]: with more, shared memory has room for fewer
/// blocks, and with fewer, rows of 20 to 60 bytes have too few turns.
///
/// H200, 2026-11-26, bf16 forward, ceiling ÷ ours with 3600, 5400 and 8000 bytes:
///
/// - 24 columns: 0.77, 0.70, 0.64
/// - 32 columns: 0.69, 0.79, 0.67
const WIDE_STAGE_BYTES: usize = 4800;

/// The same for the backward pass, which has less to compute: bf16, 32 columns 0.96, 0.91, 0.86.
const WIDE_BACKWARD_STAGE_BYTES: usize = 3600;

/// The most bank conflicts of an elementwise loss, if more lanes per row have fewer.
const MOST_CONFLICTS: usize = 4;

/// From this many tiles per warp on, the load of the first tile, which no computation hides, is a
/// small part of the whole, and one stage is enough. Among the shapes at
/// [`Space::tiles_of_one_turn`], those of 2 and 3 tiles were slower with one stage than with two,
/// and those of 20 and more were faster. A shape of 4 tiles, 24361×757, reached 0.65 with two
/// stages and 0.67 with one. Between 4 and 20 tiles, nothing was measured.
const MANY_TILES: usize = 16;

/// The most stages of a warp: one tile is computed while the other is loaded.
pub(super) const MOST_STAGES: usize = 2;

/// The most turns that a warp takes over a tile: in each, it works on several rows at the same
/// time, so this is the most rows of a tile that one lane takes, one after another.
pub(super) const MAX_TURNS: usize = 8;

/// Where the rows of two tensors are placed in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    /// Bytes from row to row, as `TileArgs::step`.
    pub(super) steps: [usize; 2],
    /// The most bytes from the beginning of a cache line to the first row.
    lead: usize,
}

impl Placed {
    /// The placement of rows of `row_bytes` that are aligned to `alignment` and `strides` bytes
    /// apart in global memory. If a tile is copied as one span, rows have the same distance in
    /// shared memory; if not, they are as close together as they can be without sharing a vector.
    pub(super) fn new(
        row_bytes: usize,
        alignment: usize,
        strides: [usize; 2],
        is_span: bool,
    ) -> Self {
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
pub(super) struct Space<'a> {
    pub(super) rows: &'a Rows,
    pub(super) read: Placed,
    pub(super) written: Placed,
    /// See [`rows_of_warp`](super::rows_of_warp).
    pub(super) rows_of_warp: usize,
    /// Bytes of the saved values that a stage has of each row.
    pub(super) saved: usize,
}

/// How many rows a warp works on.
pub(super) struct Tiles {
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Rows that a warp works on at the same time.
    pub(super) warp_rows: usize,
    /// Tiles that a warp has room for: the one that it computes, and one that it loads meanwhile.
    pub(super) stages: usize,
}

impl Space<'_> {
    /// The bytes of a tile of `tile_rows` rows of one tensor.
    pub(super) fn tile_bytes(&self, tile_rows: usize) -> usize {
        self.read.bytes(tile_rows).max(self.written.bytes(tile_rows))
    }

    /// Where the saved values begin in a stage: after the tiles and, without probabilities, after
    /// the class of each row, which takes eight bytes.
    pub(super) fn saved_offset(&self, tile_rows: usize) -> usize {
        let classes = if self.rows.tiles == 1 { tile_rows * 8 + VECTOR } else { 0 };
        self.rows.tiles * self.tile_bytes(tile_rows) + classes
    }

    /// The bytes of a stage.
    pub(super) fn stage_bytes(&self, tile_rows: usize) -> usize {
        let bytes = self.saved_offset(tile_rows) + tile_rows * self.saved;
        bytes.next_multiple_of(CACHE_LINE as usize)
    }

    /// The bytes of a warp. Gradients that are aligned differently from what was read need tiles of
    /// their own.
    pub(super) fn warp_bytes(&self, tile_rows: usize, stages: usize) -> usize {
        let gradients =
            if self.rows.alike { 0 } else { self.rows.tiles * self.tile_bytes(tile_rows) };
        stages * self.stage_bytes(tile_rows) + gradients
    }

    /// The tiles of a pass.
    pub(super) fn tiles(&self, pass: Pass, regime: Regime) -> Tiles {
        if self.rows.is_elementwise {
            return self.elementwise_tiles();
        }
        let is_small = self.rows.row_bytes() <= SMALL_ROW_BYTES && self.rows.tiles == 1;
        let stage_bytes = match regime {
            Regime::LaneRows if self.rows.element_bytes == 8 => LANES_STAGE_BYTES_F64,
            Regime::LaneRows => LANES_STAGE_BYTES,
            Regime::WideRows if pass == Pass::Backward => WIDE_BACKWARD_STAGE_BYTES,
            Regime::WideRows => WIDE_STAGE_BYTES,
            _ if is_small => SMALL_STAGE_BYTES,
            _ => return self.tiles_of_one_turn(pass),
        };
        // The largest distance of rows in any tile; the strides of missing tensors are 0.
        let step = self.read.step().max(self.written.step()).max(self.rows.row_bytes());
        let stages = self.stages(pass, regime).unwrap_or(MOST_STAGES);
        let tiles = if self.rows.alike { stages } else { stages + 1 };
        let bytes_of_turn = (step * self.rows.tiles + 8 + self.saved) * 32;
        let turns = (stage_bytes * MOST_STAGES / tiles / bytes_of_turn).clamp(1, MAX_TURNS);
        Tiles { rows: 32 * turns, warp_rows: 32, stages }
    }

    /// As [`packed_stages`], which the kernels ask as well.
    fn stages(&self, pass: Pass, regime: Regime) -> Option<usize> {
        let (loss, gradients) = (pass != Pass::Backward, pass != Pass::Forward);
        let (element_bytes, one_lane) = (self.rows.element_bytes as u32, regime != Regime::Packed);
        packed_stages(element_bytes, one_lane, loss, gradients).map(|stages| stages as usize)
    }

    /// The tiles of an elementwise loss. A warp works at the same time on all the rows that one
    /// stage has room for; if there is more room, it has a second stage and several such turns per
    /// stage. The work done once per turn costs more than bank conflicts. The number of blocks to
    /// leave room for was chosen, not searched for.
    ///
    /// H200, 2026-11-29, squared error, forward, ceiling ÷ ours with at most 128 bytes a lane and
    /// two conflicts, and with this rule:
    ///
    /// - bf16, 129 columns: 0.55 and 0.90
    /// - f32, 257 columns: 0.83 and 0.94
    fn elementwise_tiles(&self) -> Tiles {
        let conflicts = |rows| banks::conflicts_by_words(self.rows, self.read.steps[0], 32 / rows);
        let fits = |rows: usize, stages: usize, blocks: usize| {
            self.warp_bytes(rows, stages) <= warp_bytes_of(blocks)
        };
        let sizes = [32, 16, 8, 4, 2];
        let mut warp_rows = sizes.into_iter().find(|&rows| fits(rows, 1, 4)).unwrap_or(1);
        // Every warp is to have two tiles.
        let are_few = |rows| self.rows_of_warp > 0 && 2 * rows > self.rows_of_warp;
        while warp_rows > 1 && (conflicts(warp_rows) > MOST_CONFLICTS || are_few(warp_rows)) {
            warp_rows /= 2;
        }
        for (blocks, stages) in [(5, 2), (4, 2), (4, 1), (3, 1)] {
            let mut turns = (1..=MAX_TURNS).rev();
            let is_right = |turns: &usize| {
                let rows = turns * warp_rows;
                fits(rows, stages, blocks) && (*turns == 1 || !are_few(rows))
            };
            if let Some(turns) = turns.find(is_right) {
                return Tiles { rows: turns * warp_rows, warp_rows, stages };
            }
        }
        Tiles { rows: warp_rows, warp_rows, stages: 1 }
    }

    /// Tiles of all the rows that there is room for, in one turn: a warp works on all of them at
    /// the same time, because the work done once per turn takes the same number of instructions for
    /// few rows and for many. That matters more than loading a tile while another is computed,
    /// because other warps overlap loads too.
    ///
    /// H200, 2026-11-27, bf16, ceiling ÷ ours with half the rows in two stages, and with this rule:
    ///
    /// - forward: 513 columns 0.71 and 0.82, 1040 columns 0.75 and 0.84
    /// - forward-backward: 129 columns 0.61 and 0.82, 1064 columns 0.75 and 0.84
    ///
    /// Forward passes of many tiles in f64 use one stage if two would halve the number of rows.
    /// H200, 2026-11-29, ceiling ÷ ours with two stages and with one:
    ///
    /// - many tiles: 4919898×53 0.76 and 0.86, 221579×513 0.76 and 0.83
    /// - few tiles: 200000×65 0.64 and 0.60, 34495×520 0.69 and 0.61
    fn tiles_of_one_turn(&self, pass: Pass) -> Tiles {
        let most_bytes = warp_bytes_of(self.blocks(pass));
        let fits = |rows, stages| self.warp_bytes(rows, stages) <= most_bytes;
        let sizes = [32, 16, 8, 4, 2];
        let most = |stages| sizes.into_iter().find(|&rows| fits(rows, stages)).unwrap_or(1);
        let has_many = |rows| self.rows_of_warp >= MANY_TILES * rows;
        let (least, most_stages) = match self.stages(pass, Regime::Packed) {
            Some(stages) => (stages, stages),
            None if self.rows.element_bytes == 8 && !has_many(most(1)) => {
                (MOST_STAGES, MOST_STAGES)
            }
            None => (1, MOST_STAGES),
        };
        let warp_rows = self.shared_out(pass, self.with_few_conflicts(pass, most(least)));
        let stages = if fits(warp_rows, most_stages) { most_stages } else { least };
        Tiles { rows: warp_rows, warp_rows, stages }
    }

    /// The number of blocks whose tiles should fit into a multiprocessor's shared memory, for rows
    /// that several lanes share: at most the number for which there are registers. With fewer
    /// blocks, tiles have more rows; with more, there are more warps to hide latencies.
    ///
    /// H200, 2026-11-27, ceiling ÷ ours with three, four and five blocks:
    ///
    /// - forward-backward, bf16: 200 columns 0.88, 0.88, 0.85; 229 columns 0.74, 0.80, 0.81; 689
    ///   columns 0.82, 0.82, 0.79
    /// - forward-backward, f64: 24 columns 0.87, 0.86, 0.72; 200 columns 0.88, 0.88, 0.68
    /// - backward, f64: 255 columns 0.75, 0.79, 0.79; 408 columns 0.85, 0.85, 0.70
    /// - backward, f32: 90 columns 0.80, 0.80, 0.88
    /// - forward, f64, with three and four only: 128 columns 0.82, 0.72; 512 columns 0.76, 0.67;
    ///   1.6 million rows of 24 columns 0.79, 0.80
    ///
    /// From probabilities:
    ///
    /// - backward, bf16: 719 columns 0.92, 0.92, 0.74; 257 columns 0.74, 0.78, 0.78
    /// - forward, bf16: 1536 columns 0.93, 0.93, 0.78
    /// - forward, f32: 719 columns 0.86, 0.86, 0.66
    /// - forward-backward, f64, with three and four only: 127 columns 0.57, 0.44
    fn blocks(&self, pass: Pass) -> usize {
        let has_two_tiles = self.rows.tiles == 2;
        match (self.rows.element_bytes, pass) {
            (8, Pass::Forward) => 3,
            (8, Pass::ForwardBackward) if has_two_tiles => 3,
            (8, _) | (_, Pass::ForwardBackward) => 4,
            _ if has_two_tiles => 4,
            _ => RESIDENT_BLOCKS,
        }
    }

    /// At most `most` rows, and few enough that every warp has two tiles, or one tile if most of
    /// its work is per tile. With fewer tiles, some warps would have twice the work of others.
    ///
    /// H200, 2026-11-27, ceiling ÷ ours with all the rows that there is room for, and with this
    /// rule:
    ///
    /// - f32 backward: 4505×1024 0.62 and 0.73
    /// - bf16 forward: 70280×255 0.46 and 0.55
    ///
    /// A second tile for each warp slows loss and gradients down: bf16 forward-backward, 8190×1280,
    /// is at 0.43 instead of 0.49. Calls with fewer rows than warps use all the room that there is;
    /// they were not measured.
    fn shared_out(&self, pass: Pass, most: usize) -> usize {
        let tiles = if pass == Pass::ForwardBackward { 1 } else { 2 };
        let mut rows = most;
        while rows > 1 && self.rows_of_warp > 0 && tiles * rows > self.rows_of_warp {
            rows /= 2;
        }
        rows
    }

    /// `rows`, or half or twice that number if it has fewer bank conflicts. Rows whose length is
    /// near a power of two conflict if a warp works on few of them. Twice the rows take more shared
    /// memory than the limit; that is worth it in f32 and 16 bits, except in the backward pass,
    /// which has less arithmetic. Half the rows are faster if eight rows begin in one bank, or if
    /// there is no shared memory for twice the rows.
    ///
    /// H200, 2026-11-27, bf16, ceiling ÷ ours with `rows` and with twice that number:
    ///
    /// - forward: 2047 columns 0.63 with two rows and 0.75 with four, 255 columns 0.67 with 16 rows
    ///   and 0.78 with 32
    /// - backward: 255 columns 0.87 and 0.81
    ///
    /// With half the rows:
    ///
    /// - f32 backward, 192 columns, one element off: 0.68 and 0.86
    /// - where twice the rows take too much memory (2026-11-30), bf16 forward-backward: 700 columns
    ///   0.66 and 0.80, 828 columns 0.67 and 0.83
    fn with_few_conflicts(&self, pass: Pass, mut rows: usize) -> usize {
        let step = self.read.steps[0];
        let conflicts = |rows| banks::fewest_conflicts(self.rows, step, 32 / rows);
        while rows > 1 && conflicts(rows) >= 8 {
            rows /= 2;
        }
        let has_conflicts = pass != Pass::Backward
            && self.rows.element_bytes < 8
            && rows < 32
            && conflicts(rows) >= 4;
        // Whether there are half the conflicts with `other` rows instead.
        let is_better = |other: usize| 2 * conflicts(other) <= conflicts(rows);
        if !has_conflicts {
            rows
        } else if is_better(2 * rows) && self.warp_bytes(2 * rows, 1) <= MOST_WARP_BYTES {
            2 * rows
        } else if rows > 1 && is_better(rows / 2) {
            rows / 2
        } else {
            rows
        }
    }
}
