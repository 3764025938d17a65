//! Launches of the kernels that compare two tensors element by element.

use super::packed::Device;
use super::{Launch, MANY_BLOCKS, Pass, RowsLaunch};
use kernels_gpu::abi::{
    DENSE_F64_BLOCK, DENSE_FLIGHT, INDEXED_FLIGHT, IndexedArgs, MAX_PARTIALS, ROWS_BLOCK,
    max_blocks,
};
use std::num::NonZeroU32;

/// The most vectors (of 16 bytes) of a small input. For small inputs, a block on every
/// multiprocessor matters more than blocks that live long.
const SMALL_VECTORS: usize = 256 << 10;

/// The vectors of a block of a small input: one tile, so that every block has a tile. Chosen, not
/// searched for.
const SMALL_TILE: usize = 256;

/// The dense kernels of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dense {
    /// Threads per block for inputs that are not small.
    pub(crate) threads: u32,
    /// Whether arithmetic takes about as long as memory, so that the start-up cost of a block is
    /// not hidden.
    pub(crate) heavy: bool,
}

/// The most threads of a grid, by pass, in three columns: if memory is the bottleneck; if the loss
/// is [heavy](Dense::heavy), for elements of 32 bits and more; and if it is heavy, for elements of
/// 16 bits. Measured on an H200 (`cargo xtask bench`), but not for f64.
#[rustfmt::skip]
const MAX_THREADS: [(Pass, [usize; 3]); 3] = [
    // A pass that only sums needs blocks that live long enough to amortise their final reduction.
    (Pass::Forward,         [132 * 64 * 512,  132 * 64 * 512, 132 * 64 * 512]),
    // A pass that writes is faster with many short blocks, which the hardware starts in the order
    // of memory. For heavy losses, f32 is within half a point of the best from 80 to 112, and bf16
    // gets slower with more.
    (Pass::ForwardBackward, [132 * 256 * 512, 132 * 96 * 512, 132 * 64 * 512]),
    (Pass::Backward,        [usize::MAX,      usize::MAX,     usize::MAX]),
];

/// The most vectors for which a forward pass has a single wave of blocks. With one tile a block,
/// the start of a block and its sum would take as long as the tile; with more vectors, blocks that
/// begin in the order of memory are faster.
///
/// H200, 2026-11-27, ceiling ÷ ours in blocks of at most two vectors a thread and in one wave:
///
/// - KL divergence, bf16: 11459×3360 0.67 and 0.90, 184308×248 0.68 and 0.91, 1044694×511 (67
///   million vectors) 0.98 and 0.97
/// - mean squared error, bf16: 11459×3360 0.87 and 0.94
/// - mean squared error, f32: 1369×113352 (39 million vectors) 0.982 and 0.976
///
/// In f64, losses that are not heavy have fewer vectors in one wave:
///
/// - mean squared error: 14691×513 (4 million vectors) 0.88 and 0.93
/// - KL divergence of log-probabilities: 2382008×16 (19 million vectors) 0.89 and 0.82
fn most_wave_vectors(element_bytes: usize, heavy: bool) -> usize {
    if element_bytes == 8 && !heavy { 8 << 20 } else { 32 << 20 }
}

/// The threads of a forward pass over at most [`most_wave_vectors`]: an H100 has room for this many
/// if each has 64 registers. Heavy losses in f64 have more registers, so they get two waves of 768
/// threads a multiprocessor: KL divergence, 1000×40000, 0.95, but 0.80 with 1024 threads, and 0.89
/// before.
fn wave_threads(element_bytes: usize, heavy: bool) -> usize {
    132 * if heavy && element_bytes == 8 { 1536 } else { 1024 }
}

/// The fewest vectors of a thread of a forward-backward pass, except in f32, whose passes gain
/// nothing by it, and except for small inputs, which have [`FEWEST_THREADS`].
///
/// H200, 2026-11-27, ceiling ÷ ours without this limit and with it:
///
/// - bf16, 11459×3360: KL divergence 0.83 and 0.88, mean squared error 0.94 and 0.95
/// - f64, 1000×40000: KL divergence 0.92 and 0.95
const THREAD_VECTORS: usize = 8;

/// See [`THREAD_VECTORS`].
const FEWEST_THREADS: usize = 132 * 8 * 512;

/// The most threads of a grid over `vectors` vectors; see [`MAX_THREADS`].
fn most_threads(pass: Pass, vectors: usize, element_bytes: usize, heavy: bool) -> usize {
    let &(_, most) =
        MAX_THREADS.iter().find(|(of, _)| *of == pass).expect("there is a line for each pass");
    let column = if heavy { 1 + usize::from(element_bytes == 2) } else { 0 };
    match pass {
        Pass::Forward if vectors <= most_wave_vectors(element_bytes, heavy) => {
            wave_threads(element_bytes, heavy)
        }
        Pass::ForwardBackward if element_bytes != 4 => {
            most[column].min((vectors / THREAD_VECTORS).max(FEWEST_THREADS))
        }
        _ => most[column],
    }
}

/// The launch of a dense kernel over `len` elements of `element_bytes` each. It has at least one
/// block, which writes the loss even if there are no elements.
pub(crate) fn elementwise(pass: Pass, len: usize, element_bytes: usize, dense: Dense) -> Launch {
    let Dense { threads, heavy } = dense;
    let vectors = (len / (16 / element_bytes)).max(1);
    if vectors <= SMALL_VECTORS {
        let blocks = vectors.div_ceil(SMALL_TILE) as u32;
        let threads = (SMALL_TILE / DENSE_FLIGHT) as u32;
        return Launch { blocks, threads, shared_bytes: 0, cooperative: false };
    }
    let threads = if element_bytes == 8 { threads.min(DENSE_F64_BLOCK) } else { threads };
    // The forward-backward pass over 16-bit elements needs so many registers that a multiprocessor
    // has room for several blocks only if they are small.
    let small_blocks = pass == Pass::ForwardBackward && element_bytes == 2;
    let threads = if small_blocks { threads.min(256) } else { threads };
    let tiles = vectors.div_ceil(threads as usize * DENSE_FLIGHT);
    let mut most = most_threads(pass, vectors, element_bytes, heavy) / threads as usize;
    if pass != Pass::Backward {
        most = most.min(max_blocks(1) as usize);
    }
    let blocks = tiles.min(most).min(i32::MAX as usize) as u32;
    Launch { blocks, threads, shared_bytes: 0, cooperative: false }
}

/// The tiles of an indexed kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexedTiles {
    /// Rows of a tile: 1 if rows have several parts.
    pub(crate) rows: u32,
    /// Tiles of a row.
    pub(crate) parts: u64,
    /// Vectors of a tile.
    pub(crate) vectors: u32,
}

impl IndexedTiles {
    /// The tiles of rows of `of_row` vectors each. A tile has one row unless rows can be joined.
    pub(crate) fn new(of_row: u64, is_aligned: bool, can_join: bool) -> Self {
        let of_warp = 32 * if is_aligned { INDEXED_FLIGHT as u64 } else { 1 };
        let most = u64::from(ROWS_BLOCK) / 32 * of_warp;
        if of_row > most {
            // Parts of the same size, as far as warps have all of their vectors.
            let vectors = of_row.div_ceil(of_row.div_ceil(most)).next_multiple_of(of_warp);
            let parts = of_row.div_ceil(vectors);
            return IndexedTiles { rows: 1, parts, vectors: vectors as u32 };
        }
        let most_rows = if can_join { most / of_row } else { 1 };
        let idle = |rows: u64| (rows * of_row).next_multiple_of(of_warp) - rows * of_row;
        let idle_per_row = |rows: &u64| idle(*rows) * most / rows;
        // If several leave equally few lanes idle, take the one with the most rows.
        let sizes = (most_rows.div_ceil(2)..=most_rows).rev();
        let rows = sizes.min_by_key(idle_per_row).unwrap_or(1);
        IndexedTiles { rows: rows as u32, parts: 1, vectors: (rows * of_row) as u32 }
    }
}

/// For each multiple of this many vectors, a pass that sums has one wave of blocks more. If a block
/// has few vectors, its sum costs too much; if there are many vectors, blocks that begin in the
/// order of memory read it faster. More waves than 16 were not tried.
///
/// H200, 2026-11-29, squared error, forward, ceiling ÷ ours with 1, 4 and 16 waves:
///
/// - bf16, 5 million vectors: 0.82, 0.82, 0.72
/// - f32, 18 million: 0.95, 0.96, 0.97
/// - f16, 100 million: 0.92, 0.94, 0.96
const WAVE_VECTORS: usize = 4 << 20;

/// The launch of an indexed kernel over tiles. It has at least one block, which writes the loss
/// even if there are no elements.
pub(crate) fn indexed(pass: Pass, args: &IndexedArgs, device: Device) -> Launch {
    let flight = if args.is_aligned != 0 { INDEXED_FLIGHT as u32 } else { 1 };
    let threads = args.tile_vectors.div_ceil(32 * flight) * 32;
    let tiles = args.tiles.max(1) as usize;
    let resident = device.registers_for * ROWS_BLOCK as usize / threads as usize;
    let wave = device.multiprocessors * resident.max(1);
    let waves = (tiles * args.tile_vectors as usize / WAVE_VECTORS).clamp(1, 16);
    let most = match pass {
        Pass::Backward => i32::MAX as usize,
        _ => (wave * waves).min(max_blocks(1) as usize),
    };
    Launch { blocks: tiles.min(most) as u32, threads, shared_bytes: 0, cooperative: false }
}

/// The launch of a dense backward pass over `len` elements of `element_bytes` each, over rows with
/// one upstream gradient each: each block has a tile, as in other backward passes. Grids of fewer
/// blocks were not compared.
pub(crate) fn backward_by_row(len: usize, element_bytes: usize) -> Launch {
    let vectors = (len / (16 / element_bytes)).max(1);
    let blocks = vectors.div_ceil(DENSE_FLIGHT * ROWS_BLOCK as usize).min(i32::MAX as usize) as u32;
    Launch { blocks, threads: ROWS_BLOCK, shared_bytes: 0, cooperative: false }
}

/// The fewest vectors of a part of a split row.
const MIN_PART_VECTORS: usize = 4 * ROWS_BLOCK as usize;

/// The launch of a kernel that sums each of `rows` rows of `cols` elements of `element_bytes` each.
/// A short row gets a few threads, a longer one a warp, and a long one a block, or several blocks
/// if there are few long rows and the kernel `has_parts` of rows.
pub(crate) fn rows(rows: usize, cols: usize, element_bytes: usize, has_parts: bool) -> RowsLaunch {
    let vectors = cols.div_ceil(16 / element_bytes).max(1);
    let threads = ROWS_BLOCK as usize;
    let group_threads = match vectors {
        0..=32 => vectors.next_power_of_two(),
        33..=256 => 32,
        _ => threads,
    };
    let mut splits = 1;
    if has_parts && group_threads == threads && rows < MANY_BLOCKS {
        splits = MANY_BLOCKS.div_ceil(rows.max(1)).min(vectors / MIN_PART_VECTORS).max(1);
        splits = splits.min(MAX_PARTIALS as usize / rows.max(1));
    }
    let blocks = (rows * splits).div_ceil(threads / group_threads).max(1);
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    RowsLaunch {
        launch: Launch {
            blocks: blocks.min(i32::MAX as usize) as u32,
            threads: ROWS_BLOCK,
            shared_bytes: 0,
            cooperative: false,
        },
        group_threads: number(group_threads),
        splits: number(splits),
    }
}
