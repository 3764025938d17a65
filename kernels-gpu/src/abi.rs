//! What host and kernels must agree on: dtypes, block sizes, and the arguments of each kernel.
//!
//! A kernel takes one argument, a `repr(C)` structure of this module by value, so that both sides
//! are compiled from the same definition. Addresses are plain `u64`: the host has no pointers into
//! device memory.

use core::num::NonZeroU32;

/// An element type of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// The name in the names of entries, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// The comment in PTX that marks where a kernel waits for the launches before it
/// (`cuda_std::thread::wait_for_launches_before`). With programmatic dependent launch, the host
/// replaces it by instructions.
pub const WAITS: &str = "// waits for the launches before";

/// The most threads of a block.
pub const MAX_BLOCK: u32 = 1024;

/// The most threads of a block of the row kernels, which need more registers.
pub const ROWS_BLOCK: u32 = 256;

/// Threads of a block of the packed-row kernels.
pub const PACKED_BLOCK: u32 = 128;

/// The longest row, in columns, that fits in the registers of a lane in the lane-per-row kernels.
/// With 32 columns of 16-bit elements the kernel takes so many registers that four blocks fit on a
/// multiprocessor rather than seven, and was slower even for 10 columns (bf16 forward, H200,
/// 2026-11-25: 178 and 156 µs, with smaller changes between).
pub const fn lane_row_cols(element_bytes: u32) -> u32 {
    if element_bytes == 8 { 8 } else { 16 }
}

/// Threads of a block of the streaming kernels.
pub const STREAM_BLOCK: u32 = 256;

/// Tiles in the ring of each row group of the streaming kernels.
pub const STREAM_DEPTH: u32 = 3;

/// Bytes of a vector: the most that one load or store of a thread moves.
pub const VECTOR_BYTES: u32 = 16;

/// Bytes of each tensor that one warp contributes to a tile of the streaming kernels.
pub const WARP_TILE_BYTES: u32 = 2048;

/// The most row groups of a launch that splits rows. Each needs 17 words of the workspace, which
/// has [`MAX_PARTIALS`].
pub const MAX_SPLIT_GROUPS: u32 = 2048;

/// Bytes of a line of the L2 cache.
pub const CACHE_LINE: u32 = 128;

/// Vectors in a line of the L2 cache.
pub const LINE_VECTORS: u32 = CACHE_LINE / 16;

/// Vectors that a warp moves at once where the blocks of a group share a row.
pub const SPLIT_TILE_VECTORS: u32 = 128;

/// How many of the `per_thread` vectors of a row that each thread has in registers are within the
/// row for certain; the others may be behind its end. The kernels for rows of whole vectors omit
/// the bounds check of the former, and the host launches them for rows of that length only.
pub const fn vectors_within(per_thread: usize) -> usize {
    if per_thread <= 4 { per_thread - 1 } else { per_thread / 2 }
}

/// Partial sums, a word each, that the workspace has room for.
pub const MAX_PARTIALS: u32 = 132 * 800;

/// Words that a warp publishes for its part of a split row: the online softmax of the part.
pub const STATS_PARTS: u32 = 4;

/// Words that each of the blocks that share a row publishes once a row: the [`STATS_PARTS`] of its
/// part, and which row comes next.
pub const EXCHANGE_WORDS: u32 = STATS_PARTS + 1;

/// Rows in a row for which these words are apart.
pub const EXCHANGE_ROUNDS: u32 = 3;

/// The most tickets of a launch of `blocks` blocks that share rows and take them by
/// [`CrossEntropyArgs::rows_of_block`] rows a ticket: the workspace has two sums for each ticket,
/// what blocks exchange, and two counters.
pub const fn max_tickets(blocks: u32) -> u32 {
    (MAX_PARTIALS - blocks * EXCHANGE_ROUNDS * EXCHANGE_WORDS - 2) / 2
}

/// Blocks of a group: one block adds up their partial sums before the end of the grid.
pub const GROUP: u32 = 64;

/// How many groups behind a group the block is that adds up its partial sums. About so many groups
/// run at the same time, so that this block hardly waits for them. The last block of the grid adds
/// up the partial sums of the last two times `LAG` groups and of the blocks behind them: blocks
/// that could add them up before are at the end of the grid themselves, and to wait for their sums
/// would make the end take twice as long.
pub const LAG: u32 = 8;

/// In a grid of workers, which are blocks that take rows, every `ADDER_PERIOD`-th block is an
/// adder: it takes no rows, but adds up what workers publish.
pub const ADDER_PERIOD: u32 = 1024;

/// Blocks of a grid of so many workers, adders included.
pub const fn grid_of_workers(workers: u32) -> u32 {
    // In a grid of at most one period, the adder is the block behind the workers.
    if workers < ADDER_PERIOD { workers + 1 } else { workers + (workers - 1) / (ADDER_PERIOD - 1) }
}

/// Words that a worker publishes for its terms of `sums` sums, of `term_bytes` each. Two terms of
/// 32 bits are packed into one word.
pub const fn words_of_worker(sums: u32, term_bytes: usize) -> u32 {
    if term_bytes == 8 { sums } else { sums / 2 }
}

/// The most workers of a grid, each of which publishes so many words. For each word, an adder
/// publishes at most two sums a period.
pub const fn max_workers(words: u32) -> u32 {
    MAX_PARTIALS / words / (ADDER_PERIOD + 1) * (ADDER_PERIOD - 1)
}

/// How many of the first of `blocks` blocks are in groups that are added up before the end of the
/// grid.
pub const fn early_blocks(blocks: u32) -> u32 {
    (blocks / GROUP).saturating_sub(2 * LAG) * GROUP
}

/// Targets that a thread has in flight when it adds up the normaliser. Few, because all other
/// blocks wait for the normaliser, and a small batch of loads arrives soonest.
pub const NORMALISER_FLIGHT: usize = 2;

/// The most [`CrossEntropyArgs::normaliser_blocks`].
pub const MAX_NORMALISER_BLOCKS: u32 = 512;

/// The most blocks of a grid that sums `sums` values. For each value, every block and every group
/// of blocks publishes a partial sum.
pub const fn max_blocks(sums: u32) -> u32 {
    MAX_PARTIALS / sums / (GROUP + 1) * GROUP
}

/// Offsets in the scratch memory of a launch, in bytes.
pub mod workspace {
    /// The complement of the lowest row whose target is invalid, or 0; zero between launches.
    pub const FAULT: u64 = 0;
    /// The normaliser, which one launch leaves for the next where rows are split: the sum of class
    /// weights and the number of rows.
    pub const TOTALS: u64 = 16;
    /// The partial sums, then the partial sums of the normaliser, then the normaliser; all zero
    /// between launches.
    pub const PARTIALS: u64 = 32;
    /// The per-row results ([`saved`](super::saved)) that the pass over the logits leaves for the
    /// gradient pass, where rows are split.
    pub const SAVED: u64 =
        PARTIALS + (super::MAX_PARTIALS + 2 * super::MAX_NORMALISER_BLOCKS + 2) as u64 * 8;
    /// The most rows of a call that splits rows: room for so many is at [`SAVED`].
    pub const SAVED_ROWS: usize = 256;
}

/// Bytes of the scratch memory that a launch needs.
pub const WORKSPACE_BYTES: usize =
    workspace::SAVED as usize + workspace::SAVED_ROWS * saved::COUNT * 8;

/// How the terms of a loss are reduced.
pub mod reduction {
    /// To one sum.
    pub const SCALAR: u32 = 0;
    /// To one sum a row.
    pub const ROWS: u32 = 1;
    /// Not at all: one term an element.
    pub const ELEMENTS: u32 = 2;
}

/// A tensor in memory, as rows without gaps between their elements.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Matrix {
    /// The first element; null where there is no such tensor.
    pub start: u64,
    /// Elements from the start of a row to the start of the next.
    pub row_stride: u64,
}

/// A factor for each element of rows; along a dimension with stride 0, one factor serves all.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Broadcast {
    /// The first factor; null where there are none.
    pub start: u64,
    /// Elements from the first factor of a row to the first of the next row.
    pub row_stride: u64,
    /// Elements from one factor of a row to the next: 1 or 0.
    pub col_stride: u64,
}

/// Indices in [`PairwiseArgs::weights`].
pub mod weights {
    /// The factor of an element's term.
    pub const WEIGHT: usize = 0;
    /// The factor of the positive target's part of an element's term.
    pub const POS_WEIGHT: usize = 1;
}

/// Arguments of the kernels that compare two tensors element by element. Every tensor has `rows`
/// rows of `cols` elements; a dense tensor may come as one row.
///
/// The threads of the grid form row groups, each of which works on one piece of a row at a time.
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
    /// One of [`reduction`].
    pub reduction: u32,
    /// Threads of a row group: a power of two up to 32, or the whole block.
    pub group_threads: NonZeroU32,
    /// Parts of a row. With [`reduction::ROWS`] and one part a row, a row group finishes its row
    /// alone; otherwise `rows * splits` is at most [`MAX_PARTIALS`].
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient of a row to the next: 1, or 0 where one serves the row.
    pub upstream_col_stride: u32,
    /// How tiles are cut, for the tiled kernels.
    pub tiles: TiledArgs,
    /// The loss, which the forward kernels write: one value, one a row, or one an element.
    pub loss: Matrix,
    /// [`WORKSPACE_BYTES`] of scratch, for the forward kernels.
    pub workspace: u64,
    /// The upstream gradient: one value, one a row, or one an element, as `reduction` says; null
    /// stands for ones.
    pub upstream: Matrix,
    /// Gradient of the input, or null if it is not computed.
    pub grad_input: Matrix,
    /// Gradient of the target, or null if it is not computed.
    pub grad_target: Matrix,
    /// Factors of the element type, indexed by [`weights`], for losses that have them; null stands
    /// for ones. They have no strides where several rows of the tensors are passed as one.
    pub weights: [Broadcast; 2],
}

/// How the tiled kernels cut rows into tiles, and what their blocks have in dynamic shared memory.
///
/// 1. The reduction is [`reduction::ROWS`] or, unless rows are packed, [`reduction::SCALAR`].
/// 2. Rows have at least 1 and fewer than 2³⁰ elements, and elements are adjacent.
/// 3. In each row, the gradients have the same offset from a 16-byte boundary.
/// 4. Weights have no strides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TiledArgs {
    /// Rows of a tile, if rows are packed: then no tensor has gaps between its rows, and a tile has
    /// so many vectors as its rows need wherever they begin in a cache line. 0 if not.
    pub rows: u32,
    /// Tiles of a row, if rows are not packed: so many as a row needs wherever it begins in a cache
    /// line. Otherwise 1.
    pub of_row: u32,
    /// The runs of the call, each of which is packed rows or a row, times `splits`.
    pub items: u32,
    /// Vectors of a tile: a multiple of [`TILED_BLOCK`], and at most four times that.
    pub vectors: u32,
    /// Sums of a vector of packed rows: 1 if every vector is of one row, 2 if it is of two at most,
    /// and otherwise one for each of its elements.
    pub vector_sums: u32,
    /// 2³² ÷ columns, rounded up, for packed rows of more than one column; for others 0. It
    /// divides an element's number in a tile, which is below 2¹⁶, by the columns.
    pub per_col: u32,
    /// Vectors of shared memory behind those of a warp, [`PADDING`](Self::PADDING) or, if all
    /// tensors have the same offset from a 16-byte boundary in each row, none.
    pub padding: u32,
    /// The byte of shared memory from which on there are the sums of packed rows: behind two
    /// stages, each of every warp's vectors and padding for each tensor.
    pub sums: u32,
    /// The byte of shared memory from which on there are the scales of packed rows: behind two
    /// buffers of sums.
    pub scales: u32,
}

impl TiledArgs {
    /// One vector more is needed where vectors are shifted. With as many as a cache line has, the
    /// next warp's begin at a line.
    pub const PADDING: u32 = LINE_VECTORS;
}

/// Threads of a block of the tiled kernels.
pub const TILED_BLOCK: u32 = 256;

/// Arguments of the ceiling kernels, which only read and write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeilingArgs {
    /// The arrays that are read, then those that are written.
    pub arrays: [u64; 4],
    /// Vectors in each array: a multiple of the tile of the launch.
    pub vectors: u64,
    /// Another array that is read. It stands for what a loss reads once a row, such as targets.
    pub of_rows: u64,
    /// Vectors in that array.
    pub of_rows_vectors: u64,
    /// Vectors of that array that are read with each tile, no more than a block has threads.
    pub of_rows_share: u64,
    /// Where a kernel would write a checksum of what it read, in a case that hardly ever occurs:
    /// without it, the compiler would remove the reads.
    pub sink: u64,
    /// How many bytes from the beginning of the first array blocks prefetch before the launches
    /// before this one have ended, in kernels that [do so](Self::asks_early).
    pub early_bytes: u64,
}

impl CeilingArgs {
    /// Whether kernels that read and write so many arrays prefetch before the launches before them
    /// have ended: kernels that read one array and write none, as the losses do.
    pub const fn asks_early(reads: usize, writes: usize) -> bool {
        reads == 1 && writes == 0
    }
}

/// The per-row results that a forward pass can save for the backward pass: four arrays with one
/// value a row, of the arithmetic's type.
pub mod saved {
    /// The row's largest logit, m.
    pub const MAX: u64 = 0;
    /// log Σ exp(x − m).
    pub const LOG_SUM: u64 = 1;
    /// The sum of the target distribution over all classes. With classes as targets this is the sum
    /// of the class weights, times a power of two near 1/C.
    pub const WEIGHT: u64 = 2;
    /// Log-probabilities save Σ p (z − m) instead of the weight, with z = x/T. The entropy is
    /// log Σ exp(z − m) less this. It is saved rather than the entropy because the gradient
    /// needs it, and as a difference of the two it would lose its digits in a row of nearly equal
    /// logits.
    pub const EXPECTED: u64 = WEIGHT;
    /// m + log Σ exp(x − m).
    pub const LOG_SUM_EXP: u64 = 3;
    /// The number of arrays.
    pub const COUNT: usize = 4;
}

/// How a warp stages rows in shared memory, as a tile, and distributes them over its lanes. With `n
/// = 1 << warp_rows_shift`, lane `l` works on row `l % n` of the tile and then on every `n`-th row
/// behind it. Lanes of the same row take its 16-byte vectors in turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TileArgs {
    /// Rows of a tile.
    pub rows: u32,
    /// Tiles of the input, fewer than 2³¹.
    pub count: u32,
    /// Rows of the last tile.
    pub last_rows: u32,
    /// log2 of the rows that a warp works on at the same time.
    pub warp_rows_shift: u32,
    /// Bytes of one load of a lane from shared memory: 16, 8, 4 or the element's. Rows of the input
    /// and the target begin and end at multiples of it.
    pub access: u32,
    /// Bytes of one store of a lane to shared memory, likewise, for rows of gradients.
    pub store_access: u32,
    /// Bytes from row to row in shared memory, for logits and for probabilities; modulo 16 equal to
    /// those in global memory.
    pub step: [u32; 2],
    /// Bytes from row to row, likewise, for their gradients where these are not written in place.
    pub store_step: [u32; 2],
    /// Whether rows are copied as one span, gaps included; 1 or 0. With 1, rows are as far from
    /// each other in shared memory as in global memory.
    pub load_span: u32,
    /// Whether gradients are stored as one span, which has no gaps; 1 or 0.
    pub store_span: u32,
    /// log2 of the lanes that copy or store one row, where rows are not copied as one span.
    pub copy_shift: u32,
    /// Swizzle against bank conflicts: lanes of different rows access the vectors of their rows in
    /// different orders. In row `r`, a lane takes vector `v` in place of
    /// `v ^ ((r >> order_right & order_mask) << order_left)`.
    pub order_right: u32,
    /// See `order_right`.
    pub order_mask: u32,
    /// See `order_right`.
    pub order_left: u32,
    /// Bytes of one tile. Behind the tile of the input is that of the target probabilities, or the
    /// rows' classes.
    pub bytes: u32,
    /// Bytes of a stage, the shared memory for rows that are loaded together, if a warp has two; 0
    /// if it has one.
    pub stage_bytes: u32,
    /// Bytes of shared memory of a warp: its stages, and the tiles of gradients that are not
    /// written in place.
    pub warp_bytes: u32,
    /// Offset of the gradients' tiles in the shared memory of a warp. 0: gradients are written in
    /// place, over the logits and the probabilities.
    pub gradients: u32,
    /// How the lanes of a row share its words, if it is not read by vectors of 16 bytes.
    pub words: WordSteps,
}

/// Which words of a packed row a lane has: the row's lanes have a chunk of 16 bytes each in every
/// turn, and take turns either in the words of all their chunks or in the chunks. Which of the two
/// has fewer bank conflicts depends on the distance of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct WordSteps {
    /// Bytes from word to word of a chunk.
    pub word: u32,
    /// Bytes from lane to lane.
    pub lane: u32,
}

/// How row groups stream rows through rings in shared memory. A row group is a warp or a block; a
/// tile is [`WARP_TILE_BYTES`] of each tensor for each of its warps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct StreamArgs {
    /// Warps of a row group: 1, or all warps of a block.
    pub warps: u32,
    /// Tiles of a row, counted from the beginning of the cache line in which the row begins.
    pub row_tiles: u32,
    /// Row groups of the grid.
    pub groups: u32,
    /// 1: rows are split; each row group takes an equal share of all tiles, and is a block; there
    /// are at most [`MAX_SPLIT_GROUPS`]. 0: row groups take whole rows in turns.
    pub split: u32,
}

/// The first target that is not a class, which the cross-entropy kernels report beside the loss.
/// All zeros if every target is a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TargetFault {
    /// The lowest row whose target is not a class.
    pub row: u64,
    /// The target of that row.
    pub target: i64,
    /// The number of classes; 0 if every target is one of them.
    pub classes: u64,
}

/// What the kernels of log-probabilities have beside the other arguments of the row kernels.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LogProbArgs {
    /// 1/T, the inverse of the temperature, by which logits are multiplied; 0 in a call of
    /// cross-entropy.
    pub scale: f64,
    /// The entropies, one a row. The log-probabilities are stored as the loss.
    pub entropy: u64,
    /// Where a [`TargetFault`] is written a second time, or null.
    pub entropy_fault: u64,
    /// The upstream gradient of the entropies, one value or one a row; null stands for zeros.
    pub upstream_entropy: u64,
    /// Elements from one of these to the next row's: 1, or 0 where one serves all.
    pub upstream_entropy_stride: u32,
}

/// Arguments of the row kernels: of cross-entropy, and of log-probabilities. A row group takes one
/// row at a time.
///
/// Fields are in the order in which kernels need them. The arguments of a launch are loaded in
/// cache lines of 64 bytes, the first of which has the first 48 bytes of them, and the first read
/// of a line waits for it. The first line has what locates a row and its target, the second what
/// the row's loss needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CrossEntropyArgs {
    /// Logits.
    pub input: Matrix,
    /// The first target. Classes have no gaps between them; probabilities are rows, as the input's.
    pub target: u64,
    /// Rows.
    pub rows: u64,
    /// Elements of a row: classes, from 1 to 2³¹ − 1.
    pub cols: u32,
    /// Bytes of a class: 1 (`u8`), 4 (`i32` or `u32`) or 8 (`i64`); 0 for probabilities. A `u32` is
    /// loaded as an `i32`: from 2³¹ on it becomes negative, and is not a class either way.
    pub class_bytes: u32,
    /// How many of the grid's first blocks add up the normaliser for the blocks that compute
    /// gradients. 0 if `divisor` is not 0, or if a launch of its own adds the normaliser up.
    pub normaliser_blocks: u32,
    /// Rows that each worker of a grid of [`grid_of_workers`] takes: one after the other, or as
    /// many at once as it has row groups.
    pub rows_of_block: NonZeroU32,
    /// The class of rows that are ignored, as it is loaded.
    pub ignore_index: i64,
    /// Class weights, of the element type; null stands for ones.
    pub weight: u64,
    /// Per-row results ([`saved`]): written by the forward kernels unless null, read by the
    /// backward kernels.
    pub saved: u64,
    /// The normaliser, two `f64`: the sum of the class weights of the rows that are not ignored,
    /// and their number. Written by the forward kernels unless null, read by the backward kernel if
    /// `divisor` is 0.
    pub totals: u64,
    /// The factor λ of the z-loss; 0 for none.
    pub z_loss: f64,
    /// [`WORKSPACE_BYTES`] of scratch.
    pub workspace: u64,
    /// A [`TargetFault`] to write, or null.
    pub fault: u64,
    /// The loss: one value, or one a row.
    pub loss: u64,
    /// [`reduction::SCALAR`] or [`reduction::ROWS`].
    pub reduction: u32,
    /// Threads of a row group: a power of two up to 32, or the whole block.
    pub group_threads: NonZeroU32,
    /// What a sum is divided by; 0: by the normaliser, which only the device knows.
    pub divisor: f64,
    /// Blocks that share a split row, in the kernels that split rows. In a forward pass
    /// `rows * splits`, times the warps of a block, is at most [`MAX_PARTIALS`] / [`STATS_PARTS`].
    /// In a backward pass each block has its part in registers.
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient to the next row's: 1, or 0 where one serves all.
    pub upstream_stride: u32,
    /// The upstream gradient, one value or one a row; null stands for ones, for log-probabilities
    /// for zeros.
    pub upstream: u64,
    /// Gradient of the input.
    pub grad_input: Matrix,
    /// Gradient of the target probabilities, or null if it is not computed.
    pub grad_target: Matrix,
    /// Elements from the start of a row of probabilities to the start of the next.
    pub target_stride: u64,
    /// 1 − ε, the target class's share with label smoothing ε.
    pub keep: f64,
    /// ε/C, the share of each of the C classes with label smoothing.
    pub share: f64,
    /// Vectors of a row's logits that a block stages in dynamic shared memory between the reduction
    /// pass and the gradient pass, behind the vectors in registers. It reads the rest of the row
    /// twice. The results do not depend on it.
    pub staged_vectors: u32,
    /// Prefetch distance in rows: a block prefetches the row so many behind its own into the L2
    /// cache; 0 for none. The results do not depend on it.
    pub ahead: u32,
    /// Bytes of that row that are prefetched, from its beginning on; no more than a row has.
    pub ahead_bytes: u32,
    /// How many of the first blocks prefetch their rows before the launches before this one have
    /// ended (programmatic dependent launch); 0 for none. The results do not depend on it.
    pub early_blocks: u32,
    /// Bytes of a row that these blocks prefetch, from its beginning on; no more than a row has.
    pub early_bytes: u32,
    /// Whether the call [is plain](Self::is_plain), 1 or 0. The host evaluates it, because a kernel
    /// would wait for each of the fields that it depends on.
    pub plain: u32,
    /// How many of the last rows of `cross_entropy_forward_long` are split, each over `splits`
    /// workers with consecutive indices; 0 for none. Each of their warps publishes
    /// [`STATS_PARTS`] words, from word `tail_at` on, for which there is room.
    pub tail_rows: u32,
    /// See `tail_rows`; a multiple of [`STATS_PARTS`].
    pub tail_at: u32,
    /// log2 of `group_threads`, where a row group is at most a warp.
    pub group_shift: u32,
    /// Layout of tiles, for the packed-row kernels.
    pub tile: TileArgs,
    /// Layout of streams, for the streaming kernels.
    pub stream: StreamArgs,
    /// Whether classes of 4 bytes are `u32`, which decides how [`TargetFault::target`] is reported;
    /// 1 or 0.
    pub unsigned_classes: u32,
    /// Vectors of a part of a row in `cross_entropy_forward_backward_split`, whose rows are shared
    /// by `splits` blocks each; a multiple of [`SPLIT_TILE_VECTORS`]. The parts of all blocks have
    /// room for a row and [`LINE_VECTORS`] − 1 vectors more: vectors are numbered from the cache
    /// line that a row begins in. A group of blocks takes `rows_of_block` rows at a time, and there
    /// are at most [`max_tickets`] times as many.
    pub part_vectors: u32,
    /// What log-probabilities need beside the rest.
    pub log_prob: LogProbArgs,
}

impl CrossEntropyArgs {
    /// Whether the call wants only the sum or the mean of the losses, without class weights:
    /// neither z-loss nor anything saved for a backward pass.
    pub fn is_plain(&self) -> bool {
        let others = self.weight | self.saved | self.totals;
        others == 0 && self.reduction == reduction::SCALAR && self.z_loss == 0.0
    }

    /// The target probabilities; null if targets are classes.
    pub fn probabilities(&self) -> Matrix {
        let start = if self.class_bytes == 0 { self.target } else { 0 };
        Matrix { start, row_stride: self.target_stride }
    }
}
