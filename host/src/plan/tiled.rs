//! Elementwise losses that are reduced by row, and gradients of rows with gaps with a loss that is
//! not: how rows are cut into the tiles of persistent blocks.

use super::packed::{Device, RESERVED};
use super::{Launch, RowsLaunch, most_gap_bytes, reciprocal};
use kernels_gpu::abi::{CACHE_LINE, MAX_PARTIALS, TILED_BLOCK, TiledArgs, VECTOR_BYTES};
use std::cmp::Reverse;
use std::num::NonZeroU32;

/// The rows of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Whether each row has a loss.
    pub(crate) by_row: bool,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// Elements from one row to the next, where that is the same in every tensor and what is in
    /// between may be read.
    pub(crate) step: Option<usize>,
    /// The largest power of two up to 128 to which all rows are aligned, in bytes, in every tensor.
    pub(crate) alignment: usize,
    /// Whether each row has the same offset from a 16-byte boundary in all tensors.
    pub(crate) alike: bool,
    /// Whether gradients are written.
    pub(crate) writes: bool,
    /// Whether terms are computed of which [plain pairs](Self::can_pack) take fewer instructions.
    pub(crate) has_plain_pairs: bool,
}

/// The launch of a tiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tiled {
    pub(crate) rows: RowsLaunch,
    pub(crate) args: TiledArgs,
}

const VECTOR: usize = VECTOR_BYTES as usize;
const BLOCK: usize = TILED_BLOCK as usize;
const WARPS: usize = BLOCK / 32;

/// The vectors of the tiles of a block's warps, of long rows: four for each thread. Three blocks of
/// a multiprocessor then have shared memory for their stages.
const MOST_VECTORS: usize = 4 * BLOCK;

/// The most vectors that a thread has of a tile of packed rows.
const MOST_TURNS: usize = 5;

/// The fewest blocks of packed rows that share a multiprocessor, if registers allow as many.
const LEAST_RESIDENT: usize = 2;

/// The fewest tiles of a row, or of a part of one, that all warps of a block share rather than that
/// each computes one. H200, 2026-11-29, ceiling ÷ ours alone and shared: squared error, f64,
/// forward, 131072 columns 0.91 and 0.95; divergence, f32, forward, 131072 columns 0.86 and 0.91.
/// With 8 tiles, memory is as much faster, but where arithmetic limits, the sum and the edges of a
/// row take eight warps' time: divergence, bf16, forward, 8241 columns 0.66 and 0.62.
const LEAST_SHARED: usize = 32;

/// The fewest bytes of rows for which there may be fewer blocks than registers allow. Shorter ones
/// have more to compute, which more warps hide: H200, 2026-11-27, backward, ceiling ÷ ours with
/// three blocks and with two, f32, 16 columns 0.91 and 0.81, f16, 33 columns 0.87 and 0.77. Rows of
/// 68 to 252 bytes were not compared; of 254 bytes, two blocks are better ([`Rows::rating`]).
const LEAST_ROW_BYTES_OF_FEW: usize = 128;

/// The fewest bytes of a row that is cut. Shorter ones that are not packed have a row group each.
/// H200, 2026-11-29, ceiling ÷ ours with a row group and cut: divergence by row, f64, forward, 152
/// columns with gaps 0.32 and 0.52; tensors that are aligned differently, f16, backward, 759
/// columns 0.57 and 0.65, f64, forward-backward, 153 columns 0.57 and 0.53.
const LEAST_ROW_BYTES: usize = 1200;

/// The fewest bytes of a row for which [tiles](Rows::tiles_gradients) are faster.
const LEAST_TILED_BYTES: usize = 64;

/// The part, in percent, of the [rating](Rows::rating) of packed rows that those with gaps have.
/// H200, 2026-11-29, squared error, ceiling ÷ ours, packed and cut: bf16, backward, 733 columns
/// 0.56 and 0.78; f16, forward, 750 columns 0.63 and 0.71. Shorter rows were not compared.
const GAP_RATING: usize = 60;

/// The most parts of a row that several blocks share.
const MOST_SPLITS: usize = 64;

/// About how many sums of a row a lane adds up, if there are enough lanes. Chosen, not searched
/// for.
const SUMS_PER_LANE: usize = 8;

/// Bytes of the shared arrays of the kernels, as their PTX declares them.
pub(crate) const ARRAYS_BYTES: usize = 2048;

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Whether rows may be packed. The packed kernels compute pairs of rows with gaps as if none
    /// were plain, which for logarithms of 16-bit elements takes longer than a row group for each
    /// row. H200, 2026-11-28, gaps of a quarter of a row, ceiling ÷ ours with a row group for each
    /// and packed: mean squared error, bf16, 3 columns 0.32 and 0.59, f16, 257 columns 0.49 and
    /// 0.60; divergence, forward by row, 60 columns, f16 0.27 and 0.20, f32 0.29 and 0.28, f64 0.25
    /// and 0.29, forward-backward, 100 columns, f32 0.31 and 0.48.
    fn can_pack(&self) -> bool {
        let row_bytes = self.row_bytes();
        let takes_gaps = !self.has_plain_pairs || self.element_bytes > 2;
        self.step.is_some_and(|step| {
            let gap = (step - self.cols).saturating_mul(self.element_bytes);
            gap == 0 || takes_gaps && gap <= most_gap_bytes(row_bytes)
        })
    }

    /// Whether gradients, with a loss that is not one for each row, are computed in tiles rather
    /// than by the indexed kernels. H200, 2026-11-29, forward-backward, gaps of a quarter of a row,
    /// ceiling ÷ ours of the indexed kernels and in tiles: squared error, f32, 5 columns 0.65 and
    /// 0.50, 72 columns 0.54 and 0.63, 1195 columns 0.79 and 0.88; bf16, 24 columns 0.48 and 0.41,
    /// 296 columns 0.62 and 0.69; f64, 8 columns 0.50 and 0.62, 117 columns 0.64 and 0.80. The
    /// indexed kernels had three blocks a multiprocessor; with two, 0.61 and 0.46 of the first of
    /// f32 and of bf16.
    pub(crate) fn tiles_gradients(&self) -> bool {
        self.writes && self.row_bytes() >= LEAST_TILED_BYTES
    }

    /// Elements from one packed row to the next.
    fn packed_step(&self) -> usize {
        self.step.unwrap_or(self.cols)
    }

    /// Bytes from one packed row to the next.
    fn step_bytes(&self) -> usize {
        self.packed_step() * self.element_bytes
    }

    /// Vectors of shared memory behind those of a warp.
    fn padding(&self) -> usize {
        if self.alike { 0 } else { TiledArgs::PADDING as usize }
    }

    /// Bytes of two stages, each with a tile of two tensors.
    fn stage_bytes(&self, vectors: usize) -> usize {
        2 * 2 * (vectors + WARPS * self.padding()) * VECTOR
    }

    /// Elements of a vector.
    fn lanes(&self) -> usize {
        VECTOR / self.element_bytes
    }

    /// Bytes of a sum.
    fn real_bytes(&self) -> usize {
        self.element_bytes.max(4)
    }

    /// The most bytes between a cache line and a row that begins in it.
    fn most_lead(&self) -> usize {
        CACHE_LINE as usize - self.alignment
    }

    /// The most blocks of packed rows that share a multiprocessor: two in f64, whose sums are so
    /// large that tiles of three would be too small. H200, 2026-11-26, MSE of 50331×1000, forward:
    /// 0.94 of the ceiling with two, 0.81 with three.
    fn most_resident(&self) -> usize {
        if self.element_bytes == 8 { 2 } else { usize::MAX }
    }

    /// The sums of a vector of packed rows.
    fn vector_sums(&self) -> usize {
        if !self.by_row {
            0
        } else if self.alignment.is_multiple_of(VECTOR) {
            1
        } else if self.packed_step() < self.lanes() {
            self.lanes()
        } else {
            2
        }
    }

    /// Vectors of a tile of packed rows: a multiple of the block's threads.
    fn vectors_of(&self, tile_rows: usize) -> usize {
        let bytes = self.most_lead() + tile_rows * self.step_bytes();
        bytes.div_ceil(VECTOR).next_multiple_of(BLOCK)
    }

    /// The most packed rows that a warp's part of a tile of `vectors` vectors has elements of.
    fn warp_rows(&self, vectors: usize) -> usize {
        (vectors / WARPS * self.lanes()).div_ceil(self.packed_step()) + 1
    }

    /// Bytes of shared memory of a block for tiles of packed rows.
    fn packed_bytes(&self, tile_rows: usize) -> usize {
        let vectors = self.vectors_of(tile_rows);
        let reals = vectors * self.vector_sums() + WARPS * self.warp_rows(vectors);
        self.stage_bytes(vectors) + 2 * reals * self.real_bytes()
    }

    /// Rows after which a tile begins at a multiple of `bytes` again, if the first one does.
    fn period(&self, bytes: usize) -> usize {
        let common = self.step_bytes() | bytes;
        bytes >> common.trailing_zeros().min(bytes.trailing_zeros())
    }

    /// The most rows of a tile of `vectors` vectors for which a block has `block_bytes` of shared
    /// memory.
    fn most_rows(&self, vectors: usize, block_bytes: usize) -> usize {
        let fits =
            |rows| self.vectors_of(rows) <= vectors && self.packed_bytes(rows) <= block_bytes;
        // `low` rows fit, and `high` do not.
        let (mut low, mut high) = (0, vectors * VECTOR / self.step_bytes() + 1);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low.min(self.rows)
    }

    /// The rows of a tile and the blocks that share a multiprocessor, of those that `device` has
    /// registers for: those that are [rated](Self::rating) best. `None` if no tile has two rows,
    /// two of them are as long as a tile of a longer row, or cut rows are rated better.
    fn tile(&self, device: Device) -> Option<(usize, usize)> {
        if self.vectors_of(2) > MOST_VECTORS {
            return None;
        }
        let most = device.registers_for.min(self.most_resident());
        let is_short = self.row_bytes() < LEAST_ROW_BYTES_OF_FEW;
        let least = if is_short { most } else { LEAST_RESIDENT.min(most) };
        let sizes = (least..=most).rev().flat_map(|resident| {
            (1..=MOST_TURNS).rev().map(move |turns| (resident, turns * BLOCK))
        });
        let tiles = sizes.flat_map(|(resident, vectors)| {
            let (block_bytes, blocks) = share(device, resident);
            let most_rows = self.most_rows(vectors, block_bytes);
            [CACHE_LINE as usize, VECTOR, self.element_bytes].map(|begins_at| {
                let period = self.period(begins_at);
                (most_rows / period * period, begins_at, resident, blocks)
            })
        });
        let best = tiles.filter(|&(rows, ..)| rows >= 2).min_by_key(
            |&(rows, begins_at, resident, _)| Reverse(self.rating(rows, begins_at, resident)),
        )?;
        let (rows, begins_at, resident, blocks) = best;
        let part = if self.packed_step() > self.cols { GAP_RATING } else { 100 };
        if self.rating(rows, begins_at, resident) * part / 100 < self.cut_rating() {
            return None;
        }
        Some((self.shared_out(rows, self.period(begins_at), blocks), resident))
    }

    /// How good tiles of `rows` rows are that begin at multiples of `begins_at` bytes, where
    /// `resident` blocks share a multiprocessor: about proportional to the part of the ceiling.
    ///
    /// Threads without a vector in a tile's last turn wait for the others. Where a tile begins or
    /// ends within a vector, its elements are read one by one, and the block waits for that; lines
    /// that two tiles write cost a little. And enough vectors have to be on their way. The factors
    /// are of an H200, 2026-11-27, ceiling ÷ ours, MSE by row: bf16, 1023 columns, backward, tiles
    /// of 5 rows that begin anywhere 0.67, of 8 rows that begin at vectors 0.77, and the same in
    /// f32, forward-backward, 0.68 and 0.92; 511 columns, 11 rows that begin anywhere 0.73, of 8
    /// rows at vectors, which leave a third of the last turns empty, 0.70; f64, 33 columns,
    /// backward, 60 rows at vectors 0.92, 48 rows at lines 0.85; bf16, 128 columns, forward, 64
    /// rows at lines, three blocks 0.91, two 0.84, and two of 80 rows 0.91.
    fn rating(&self, rows: usize, begins_at: usize, resident: usize) -> usize {
        let vectors = self.vectors_of(rows);
        let by_begin = match begins_at {
            bytes if bytes < VECTOR => 78,
            bytes if bytes > VECTOR && self.writes => 108,
            _ => 100,
        };
        let by_flight = match resident * vectors / BLOCK {
            // Guessed, so that tiles are not smaller than they have to be.
            0..=7 => 85,
            8 => 93,
            9 => 96,
            10..=11 => 99,
            _ => 100,
        };
        rows * self.row_bytes() * by_begin * by_flight / vectors
    }

    /// How good it is to cut rows, in the measure of [`rating`](Self::rating): a warp has a row's
    /// edges, its sum and what it does between two rows besides the row's vectors. Fitted to
    /// 115 shapes of rows of 1 to 8 KB, H200, 2026-11-29; ceiling ÷ ours, packed and cut: squared
    /// error, f32, forward, 256 columns 0.92 and 0.74, 694 columns 0.77 and 0.86, 1694 columns 0.65
    /// and 0.89; divergence, f16, backward, 1071 columns 0.63 and 0.63, 3586 columns 0.52 and 0.86.
    fn cut_rating(&self) -> usize {
        let (most, of_row) = (172_800, 112_000_000);
        match self.row_bytes() {
            bytes if bytes < LEAST_ROW_BYTES => 0,
            bytes => most - of_row / bytes,
        }
    }

    /// At most `most` rows, such that all blocks have as many: whole periods.
    fn shared_out(&self, most: usize, period: usize, blocks: usize) -> usize {
        let turns = self.rows.div_ceil(most).div_ceil(blocks);
        let share = self.rows.div_ceil(turns * blocks);
        share.next_multiple_of(period).min(most)
    }
}

/// The launch over `rows`; `None` if other kernels have to compute them, or compute them faster.
pub(crate) fn tiled(rows: &Rows, device: Device) -> Option<Tiled> {
    if rows.rows == 0 || rows.cols == 0 || rows.row_bytes() >= 1 << 30 {
        return None;
    }
    if rows.can_pack()
        && let Some((tile_rows, resident)) = rows.tile(device)
    {
        return pack(rows, tile_rows, device.multiprocessors * resident);
    }
    let (block_bytes, blocks) = share(device, device.registers_for);
    (rows.row_bytes() >= LEAST_ROW_BYTES).then(|| cut(rows, block_bytes, blocks)).flatten()
}

/// The bytes of shared memory for tiles of a block, and the blocks of a device, where `resident`
/// blocks share a multiprocessor.
fn share(device: Device, resident: usize) -> (usize, usize) {
    let bytes = (device.shared_bytes / resident).saturating_sub(RESERVED + ARRAYS_BYTES);
    (bytes, device.multiprocessors * resident)
}

/// Tiles of `tile_rows` packed rows.
fn pack(rows: &Rows, tile_rows: usize, blocks: usize) -> Option<Tiled> {
    let vectors = rows.vectors_of(tile_rows);
    let sums = rows.stage_bytes(vectors);
    let scales = sums + 2 * vectors * rows.vector_sums() * rows.real_bytes();
    let items = i32::try_from(rows.rows.div_ceil(tile_rows)).ok()? as usize;
    let args = TiledArgs {
        rows: tile_rows as u32,
        step: rows.packed_step() as u32,
        of_row: 0,
        of_item: 0,
        items: items as u32,
        warp_items: 0,
        vectors: vectors as u32,
        vector_sums: rows.vector_sums() as u32,
        per_step: reciprocal(rows.packed_step()),
        padding: rows.padding() as u32,
        sums: sums as u32,
        scales: scales as u32,
        warp_rows: rows.warp_rows(vectors) as u32,
    };
    let row_sums = rows.cols.div_ceil(rows.lanes()) * rows.vector_sums();
    let group_threads = (row_sums / SUMS_PER_LANE).next_power_of_two().min(32);
    Some(launch(rows.packed_bytes(tile_rows), items.min(blocks), group_threads, 1, args))
}

/// Tiles of long rows: of each warp, four vectors a lane.
fn cut(rows: &Rows, block_bytes: usize, blocks: usize) -> Option<Tiled> {
    let mut vectors = MOST_VECTORS;
    while vectors > BLOCK && rows.stage_bytes(vectors) > block_bytes {
        vectors -= BLOCK;
    }
    let of_row = (rows.most_lead() + rows.row_bytes()).div_ceil(vectors / WARPS * VECTOR);
    let (splits, of_item) = splits(rows, of_row, blocks);
    let items = rows.rows.checked_mul(splits)?;
    i32::try_from(items.checked_mul(of_item)?).ok()?;
    let args = TiledArgs {
        step: rows.cols as u32,
        of_row: of_row as u32,
        of_item: of_item as u32,
        items: items as u32,
        warp_items: u32::from(of_item < LEAST_SHARED),
        vectors: vectors as u32,
        padding: rows.padding() as u32,
        ..TiledArgs::default()
    };
    Some(launch(rows.stage_bytes(vectors), items.min(blocks), 32, splits, args))
}

/// The parts of a row of `tiles` tiles, and the tiles of a part, with which the warp that has most
/// to do is done first. The costs are in thousandths of a tile's, estimated for an H200.
fn splits(rows: &Rows, tiles: usize, blocks: usize) -> (usize, usize) {
    /// Besides its tiles, a part has edges, and a sum.
    const PART: usize = 250;
    /// The last block waits for the others' sums.
    const SECOND_STAGE: usize = 1_000;
    /// Sums that the last block adds up in the time of a thousandth of a tile.
    const SUMS: usize = 3;
    let parts = |splits: usize| {
        let of_part = tiles.div_ceil(splits);
        (tiles.div_ceil(of_part), of_part)
    };
    let cost = |&(splits, of_part): &(usize, usize)| {
        let items = rows.rows * splits;
        let of_block = items.div_ceil(blocks);
        let of_warp = (of_block * of_part).div_ceil(WARPS) * 1_000;
        let second_stage = if rows.by_row && splits > 1 { SECOND_STAGE + items / SUMS } else { 0 };
        of_warp + of_block.div_ceil(WARPS) * PART + second_stage
    };
    let is_allowed = |&(splits, _): &(usize, usize)| {
        splits == 1 || !rows.by_row || rows.rows * splits <= MAX_PARTIALS as usize
    };
    let all = (1..=tiles.min(MOST_SPLITS)).map(parts).filter(is_allowed);
    all.min_by_key(cost).unwrap_or((1, tiles))
}

fn launch(
    shared_bytes: usize,
    blocks: usize,
    group_threads: usize,
    splits: usize,
    args: TiledArgs,
) -> Tiled {
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    let launch = Launch {
        blocks: blocks as u32,
        threads: TILED_BLOCK,
        shared_bytes: shared_bytes as u32,
        cooperative: false,
    };
    let rows = RowsLaunch { launch, group_threads: number(group_threads), splits: number(splits) };
    Tiled { rows, args }
}

#[cfg(test)]
mod tests;
