//! Elementwise losses that are reduced by row, and long rows with gaps: how rows are cut into the
//! tiles of persistent blocks.

use super::packed::{Device, RESERVED};
use super::{Launch, RowsLaunch};
use kernels_gpu::abi::{CACHE_LINE, MAX_PARTIALS, TILED_BLOCK, TilesArgs, VECTOR_BYTES, reduction};
use std::num::NonZeroU32;

/// The rows of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// One of [`reduction`].
    pub(crate) reduction: u32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// Whether no tensor has gaps between its rows.
    pub(crate) contiguous: bool,
    /// The largest power of two up to 128 to which all rows are aligned, in bytes, in every tensor.
    pub(crate) alignment: usize,
    /// Whether each row has the same offset from a 16-byte boundary in all tensors.
    pub(crate) alike: bool,
}

/// The launch of a tiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tiled {
    pub(crate) rows: RowsLaunch,
    pub(crate) args: TilesArgs,
}

const VECTOR: usize = VECTOR_BYTES as usize;
const BLOCK: usize = TILED_BLOCK as usize;
const WARPS: usize = BLOCK / 32;

/// The most vectors of a tile.
const MOST_VECTORS: usize = 4 * BLOCK;

/// The fewest bytes of a row that is not packed. A block computes one such row at a time.
const LEAST_ROW_BYTES: usize = 4 << 10;

/// Parts of split rows for each block that is resident.
const PARTS_PER_BLOCK: usize = 4;

/// About how many sums of a row a lane adds up, if there are enough lanes.
const SUMS_PER_LANE: usize = 8;

/// Bytes of the shared arrays of the kernels, as their PTX declares them.
pub(crate) const ARRAYS_BYTES: usize = 1536;

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Vectors of shared memory behind those of a warp.
    fn padding(&self) -> usize {
        if self.alike { 0 } else { TilesArgs::PADDING as usize }
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

    /// The sums of a vector of packed rows.
    fn vector_sums(&self) -> usize {
        if self.alignment.is_multiple_of(VECTOR) && self.row_bytes().is_multiple_of(VECTOR) {
            1
        } else if self.cols < self.lanes() {
            self.lanes()
        } else {
            2
        }
    }

    /// Vectors of a tile of packed rows: a multiple of the block's threads.
    fn vectors_of(&self, tile_rows: usize) -> usize {
        let bytes = self.most_lead() + tile_rows * self.row_bytes();
        bytes.div_ceil(VECTOR).next_multiple_of(BLOCK)
    }

    /// Bytes of shared memory of a block for tiles of packed rows.
    fn packed_bytes(&self, tile_rows: usize) -> usize {
        let vectors = self.vectors_of(tile_rows);
        let reals = vectors * self.vector_sums() + tile_rows;
        self.stage_bytes(vectors) + 2 * reals * self.real_bytes()
    }

    /// Rows after which a tile begins at a multiple of `bytes` again, if the first one does.
    fn period(&self, bytes: usize) -> usize {
        let common = self.row_bytes() | bytes;
        bytes >> common.trailing_zeros().min(bytes.trailing_zeros())
    }

    /// The rows of a tile of at most `most` rows, such that tiles begin at cache lines, or else at
    /// vectors, if that does not make them much smaller.
    fn aligned(&self, most: usize) -> usize {
        [CACHE_LINE as usize, VECTOR]
            .map(|bytes| most / self.period(bytes) * self.period(bytes))
            .into_iter()
            .find(|&rows| rows > 0 && 8 * rows >= 7 * most)
            .unwrap_or(most)
    }

    /// The rows of a tile, if at least two rows fit into the shared memory that a block has.
    fn rows_of_tile(&self, block_bytes: usize, blocks: usize) -> Option<usize> {
        let room = (MOST_VECTORS * VECTOR - self.most_lead()) / self.row_bytes();
        let mut most = self.aligned(room.min(self.rows));
        while most > 1 && self.packed_bytes(most) > block_bytes {
            most = self.aligned(most - most.div_ceil(8));
        }
        if most < 2 {
            return None;
        }
        // Equal shares for all blocks.
        let turns = self.rows.div_ceil(most).div_ceil(blocks);
        let share = self.rows.div_ceil(turns * blocks);
        let period = self.period(CACHE_LINE as usize);
        Some(share.next_multiple_of(period).min(most))
    }
}

/// The launch over `rows`; `None` if other kernels have to compute them, or compute them faster.
pub(crate) fn tiled(rows: &Rows, device: Device) -> Option<Tiled> {
    if rows.rows == 0 || rows.cols == 0 || rows.row_bytes() >= 1 << 30 {
        return None;
    }
    let Device { multiprocessors, shared_bytes, registers_for } = device;
    let blocks = multiprocessors * registers_for;
    let block_bytes = (shared_bytes / registers_for).saturating_sub(RESERVED + ARRAYS_BYTES);
    let packed = (rows.contiguous && rows.reduction == reduction::ROWS)
        .then(|| rows.rows_of_tile(block_bytes, blocks))
        .flatten();
    match packed {
        Some(tile_rows) => pack(rows, tile_rows, blocks),
        None if rows.row_bytes() >= LEAST_ROW_BYTES => cut(rows, block_bytes, blocks),
        None => None,
    }
}

/// Tiles of `tile_rows` packed rows.
fn pack(rows: &Rows, tile_rows: usize, blocks: usize) -> Option<Tiled> {
    let vectors = rows.vectors_of(tile_rows);
    let sums = rows.stage_bytes(vectors);
    let scales = sums + 2 * vectors * rows.vector_sums() * rows.real_bytes();
    let items = i32::try_from(rows.rows.div_ceil(tile_rows)).ok()? as usize;
    let args = TilesArgs {
        rows: tile_rows as u32,
        of_row: 1,
        items: items as u32,
        vectors: vectors as u32,
        vector_sums: rows.vector_sums() as u32,
        // 2³² for one column, which is 0 here.
        per_col: (1_u64 << 32).div_ceil(rows.cols as u64) as u32,
        padding: rows.padding() as u32,
        sums: sums as u32,
        scales: scales as u32,
    };
    let row_sums = rows.cols.div_ceil(rows.lanes()) * rows.vector_sums();
    let group_threads = (row_sums / SUMS_PER_LANE).next_power_of_two().min(32);
    Some(launch(rows.packed_bytes(tile_rows), items.min(blocks), group_threads, 1, args))
}

/// Tiles of long rows.
fn cut(rows: &Rows, block_bytes: usize, blocks: usize) -> Option<Tiled> {
    let row_vectors = (rows.most_lead() + rows.row_bytes()).div_ceil(VECTOR);
    let mut vectors = MOST_VECTORS.min(row_vectors.next_multiple_of(BLOCK));
    while vectors > BLOCK && rows.stage_bytes(vectors) > block_bytes {
        vectors -= BLOCK;
    }
    let of_row = row_vectors.div_ceil(vectors);
    let mut splits = (PARTS_PER_BLOCK * blocks / rows.rows).clamp(1, of_row);
    if rows.reduction == reduction::ROWS {
        splits = splits.min(MAX_PARTIALS as usize / rows.rows).max(1);
    }
    let items = i32::try_from(rows.rows.checked_mul(splits)?).ok()? as usize;
    let args = TilesArgs {
        of_row: of_row as u32,
        items: items as u32,
        vectors: vectors as u32,
        padding: rows.padding() as u32,
        ..TilesArgs::default()
    };
    Some(launch(rows.stage_bytes(vectors), items.min(blocks), 32, splits, args))
}

fn launch(
    shared_bytes: usize,
    blocks: usize,
    group_threads: usize,
    splits: usize,
    args: TilesArgs,
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
