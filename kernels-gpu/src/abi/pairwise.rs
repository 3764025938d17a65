//! Arguments of the kernels of elementwise losses.

use super::{Broadcast, LINE_VECTORS, Matrix, TileArgs};
use core::num::NonZeroU32;

/// Indices in [`PairwiseArgs::weights`].
pub mod weights {
    /// The factor of an element's term.
    pub const WEIGHT: usize = 0;
    /// The factor of the positive target's part of an element's term.
    pub const POS_WEIGHT: usize = 1;
}

/// Arguments of the kernels that compare two tensors element by element. Every tensor has `rows`
/// rows of `cols` elements; a dense tensor may be passed as one row, to blocks whose threads are a
/// power of two.
///
/// The threads of the grid form row groups, each of which computes one piece of a row at a time.
/// Piece `p` is part `p % splits` of row `p / splits`: every `splits`-th tile of the row.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PairwiseArgs {
    /// Input.
    pub input: Matrix,
    /// Target.
    pub target: Matrix,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub cols: u64,
    /// What a sum, or an element's gradient, is divided by: 1 for a sum, the number of terms for a
    /// mean.
    pub divisor: f64,
    /// The loss's own parameter: Huber's δ, smooth L1's β.
    pub parameter: f64,
    /// One of [`reduction`](super::reduction).
    pub reduction: u32,
    /// Threads of a row group: a power of two up to 32, or the whole block.
    pub group_threads: NonZeroU32,
    /// Parts of a row. With [`reduction::ROWS`](super::reduction::ROWS) and one part per row, a row
    /// group finishes its row alone; otherwise `rows * splits` is at most
    /// [`MAX_PARTIALS`](super::MAX_PARTIALS).
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient of a row to the next: 1, or 0 if the row has only one.
    pub upstream_col_stride: u32,
    /// How tiles are cut, for the tiled kernels.
    pub tiles: TiledArgs,
    /// How rows are packed into tiles, for the packed kernels: as for cross-entropy, with the
    /// target in place of the probabilities. The reduction is
    /// [`reduction::ROWS`](super::reduction::ROWS) or, with gradients,
    /// [`reduction::SCALAR`](super::reduction::SCALAR); elements are adjacent, and weights have no
    /// strides. A tile has at most 32 times the rows that a warp computes at the same time.
    pub packed: TileArgs,
    /// How rows are cut into vectors, for the indexed kernels.
    pub indexed: IndexedArgs,
    /// The loss, which the forward kernels write: one value, one per row, or one per element.
    pub loss: Matrix,
    /// [`WORKSPACE_BYTES`](super::WORKSPACE_BYTES) of scratch, for the forward kernels.
    pub workspace: u64,
    /// The upstream gradient: one value, one per row, or one per element, as `reduction` says; null
    /// means ones.
    pub upstream: Matrix,
    /// The rows that have an upstream gradient each, if dense tensors are passed as one row.
    pub upstream_rows: UpstreamRows,
    /// Gradient of the input, or null if it is not computed.
    pub grad_input: Matrix,
    /// Gradient of the target, or null if it is not computed.
    pub grad_target: Matrix,
    /// Factors of the element type, indexed by [`weights`], for losses that have them; null means
    /// ones. They have no strides if several rows of the tensors are passed as one.
    pub weights: [Broadcast; 2],
}

/// Rows of dense tensors that are passed as one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct UpstreamRows {
    /// 2⁶⁴ − 1 divided by `cols`, rounded down; 0 if rows have no upstream gradients of their own.
    pub reciprocal: u64,
    /// Elements of a row: fewer than 2³¹.
    pub cols: u32,
}

/// How the indexed kernels cut rows into vectors, of 16 bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct IndexedArgs {
    /// The tensor whose 16-byte boundaries cut rows: the first that is written or, if none is, the
    /// input.
    pub base: u64,
    /// Bytes from one row to the next.
    pub row_bytes: RowBytes,
    /// Tiles of all rows; 0 if rows have no elements.
    pub tiles: u64,
    /// Parts of a row, each of which is a tile: at least 1.
    pub parts: u64,
    /// 2⁶⁴ − 1 divided by `parts`, rounded down.
    pub per_part: u64,
    /// Vectors of a row: as many as any row needs, wherever it begins. At least 1.
    pub of_row: u64,
    /// Rows of a tile: 1 if rows have several parts, or if rows of any tensor begin 2³² bytes or
    /// more from each other.
    pub rows_of_tile: u32,
    /// Vectors of a tile: those of `rows_of_tile` rows, or of a part of a row, the last of which
    /// has at least one. At most [`INDEXED_FLIGHT`] for each thread of a block if `is_aligned`, and
    /// otherwise one.
    pub tile_vectors: u32,
    /// 2³² − 1 divided by `of_row`, rounded down, if tiles have several rows; otherwise 0.
    pub per_row: u32,
    /// If at least `reach[0]` rows are before a tile's first row, and `reach[1]` from it to the
    /// last, all bytes of the tile, and of the aligned vectors around its vectors, are in the
    /// tensors.
    pub reach: [u32; 2],
    /// The range of vectors that are wholly in the input, in the target, and in the upstream
    /// gradient.
    pub within: [Span; 3],
    /// 1 if in each row, input and target have the same offset from a 16-byte boundary as `base`;
    /// otherwise 0.
    pub is_aligned: u32,
}

/// Bytes from one row of a tensor to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct RowBytes {
    /// Of [`IndexedArgs::base`].
    pub base: u64,
    /// Of the input.
    pub input: u64,
    /// Of the target.
    pub target: u64,
    /// Of the terms, if the loss is not reduced.
    pub loss: u64,
    /// Of the upstream gradients, if elements have them.
    pub upstream: u64,
    /// Of the gradient of the input.
    pub grad_input: u64,
    /// Of the gradient of the target.
    pub grad_target: u64,
}

/// A range of aligned vectors of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Span {
    /// The address of the first.
    pub first: u64,
    /// The address of the last. Below `first` if there is none.
    pub last: u64,
}

/// How the tiled kernels cut rows into tiles, which they stage in shared memory.
///
/// 1. The reduction is [`reduction::ROWS`](super::reduction::ROWS) or, with gradients,
///    [`reduction::SCALAR`](super::reduction::SCALAR).
/// 2. Rows have fewer than 2³⁰ elements, which are adjacent, and at least one vector that is whole
///    in all tensors.
/// 3. In each row, the gradients have the same offset from a 16-byte boundary.
/// 4. Weights have no strides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TiledArgs {
    /// A warp's tiles of a row: as many as a row needs, wherever it begins in a cache line.
    pub of_row: u32,
    /// A warp's tiles of each of the `splits` parts of a row: all parts together have at least
    /// those of the row.
    pub of_item: u32,
    /// The rows of the call, times `splits`. Multiplied by `of_item`, they are fewer than 2³¹.
    pub items: u32,
    /// 1 if warps compute items alone, where a block has at least one for each of its 8 warps; 0 if
    /// the warps of a block share all items. Then `of_item` is at least 8.
    pub warp_items: u32,
    /// Vectors of the tiles of a block's warps: a multiple of [`TILED_BLOCK`].
    pub vectors: u32,
    /// Vectors of shared memory after those of a warp: [`PADDING`](Self::PADDING), or none if all
    /// tensors have the same offset from a 16-byte boundary in each row.
    pub padding: u32,
}

impl TiledArgs {
    /// Shifted vectors need one more vector. The padding has as many as a cache line, so that the
    /// next warp's vectors begin at a line.
    pub const PADDING: u32 = LINE_VECTORS;
}

/// Vectors of each tensor that a thread of the dense kernels has in flight.
pub const DENSE_FLIGHT: usize = 2;

/// Vectors of each tensor that a thread of the indexed kernels has in flight, if they are aligned;
/// if they are not, it has one.
pub const INDEXED_FLIGHT: usize = 2;

/// The most threads of a dense block in f64. Larger blocks would leave a multiprocessor without the
/// registers for a second or a third one.
pub const DENSE_F64_BLOCK: u32 = 256;

/// Threads of a block of the tiled kernels.
pub const TILED_BLOCK: u32 = 256;
