//! How rows that are too long to be packed are cut into tiles for persistent blocks. This is for
//! elementwise losses that are reduced by row, and for other losses with gradients of rows with
//! gaps.

use super::packed::{Device, RESERVED};
use super::{Launch, RowsLaunch};
use kernels_gpu::abi::{CACHE_LINE, MAX_PARTIALS, TILED_BLOCK, TiledArgs, VECTOR_BYTES};
use std::num::NonZeroU32;

/// The rows of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Whether each row has a loss.
    pub(crate) by_row: bool,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// The largest power of two up to 128 to which all rows are aligned, in bytes, in every tensor.
    pub(crate) alignment: usize,
    /// Whether each row has the same offset from a 16-byte boundary in all tensors.
    pub(crate) alike: bool,
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

/// The vectors of the tiles of all warps of a block, of long rows: four for each thread. A
/// multiprocessor's shared memory then has room for the stages of three blocks.
const MOST_VECTORS: usize = 4 * BLOCK;

/// The fewest tiles of a row, or of a part of one, for which all warps of a block share it. Below
/// that, each warp computes one alone. Rows of 8 tiles would gain the same if memory limits their
/// loss, but if arithmetic does, the sum and the edges of a row take the time of eight warps.
///
/// H200, 2026-11-29, forward, ceiling ÷ ours alone and shared:
///
/// - squared error, f64: 131072 columns 0.91 and 0.95
/// - divergence, f32: 131072 columns 0.86 and 0.91
/// - divergence, bf16: 8241 columns, of 8 tiles, 0.66 and 0.62
const LEAST_SHARED: usize = 32;

/// The fewest bytes of a row that is cut. Shorter rows that are not packed get a row group each;
/// from about this length on, cutting is mostly faster.
///
/// H200, 2026-11-29, ceiling ÷ ours with a row group and cut:
///
/// - divergence by row, with gaps, f64 forward: 152 columns 0.32 and 0.52
/// - tensors that are aligned differently: f16 backward, 759 columns 0.57 and 0.65; f64
///   forward-backward, 153 columns 0.57 and 0.53
const LEAST_ROW_BYTES: usize = 1200;

/// The most parts of a row that several blocks share.
const MOST_SPLITS: usize = 64;

/// Bytes of the shared arrays of the kernels, as their PTX declares them.
pub(crate) const ARRAYS_BYTES: usize = 2048;

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Vectors of padding in shared memory after those of a warp.
    fn padding(&self) -> usize {
        if self.alike { 0 } else { TiledArgs::PADDING as usize }
    }

    /// Bytes of two stages, each with a tile of two tensors.
    fn stage_bytes(&self, vectors: usize) -> usize {
        2 * 2 * (vectors + WARPS * self.padding()) * VECTOR
    }

    /// The most bytes between a cache line and a row that begins in it.
    fn most_lead(&self) -> usize {
        CACHE_LINE as usize - self.alignment
    }
}

/// The launch over `rows`; `None` if other kernels have to compute them, or compute them faster.
pub(crate) fn tiled(rows: &Rows, device: Device) -> Option<Tiled> {
    if rows.rows == 0 || rows.cols == 0 || rows.row_bytes() >= 1 << 30 {
        return None;
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
        of_row: of_row as u32,
        of_item: of_item as u32,
        items: items as u32,
        warp_items: u32::from(of_item < LEAST_SHARED),
        vectors: vectors as u32,
        padding: rows.padding() as u32,
    };
    Some(launch(rows.stage_bytes(vectors), items.min(blocks), splits, args))
}

/// How many parts a row of `tiles` tiles has, and how many tiles a part has, such that the busiest
/// warp finishes earliest. The costs are in thousandths of a tile's, estimated for an H200.
fn splits(rows: &Rows, tiles: usize, blocks: usize) -> (usize, usize) {
    /// What the edges of a part and its sum cost.
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

fn launch(shared_bytes: usize, blocks: usize, splits: usize, args: TiledArgs) -> Tiled {
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    let launch = Launch {
        blocks: blocks as u32,
        threads: TILED_BLOCK,
        shared_bytes: shared_bytes as u32,
        cooperative: false,
    };
    let rows = RowsLaunch { launch, group_threads: number(32), splits: number(splits) };
    Tiled { rows, args }
}

#[cfg(test)]
mod tests;
