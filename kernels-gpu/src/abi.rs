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
    /// The name that entries carry, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// The line of PTX where a kernel waits for the launches before it:
/// `cuda_std::thread::wait_for_launches_before`. The host makes it an instruction where launches
/// overlap.
pub const WAITS: &str = "// waits for the launches before";

/// The most threads of a block.
pub const MAX_BLOCK: u32 = 1024;

/// The most threads of a block of the kernels for rows, which need more registers.
pub const ROWS_BLOCK: u32 = 256;

/// Threads of a block of the kernels of packed rows.
pub const PACKED_BLOCK: u32 = 128;

/// Columns of a row that a lane has registers for, in the kernels with a lane per row, by the bytes
/// of an element. 32 columns of 16 bits take so many registers that four blocks fit on a
/// multiprocessor rather than seven, and were slower even for 10 columns (bf16 forward, H200,
/// 2026-11-25: 178 and 156 µs, with smaller changes between).
pub const fn lane_row_cols(element_bytes: u32) -> u32 {
    if element_bytes == 8 { 8 } else { 16 }
}

/// Threads of a block of the streaming kernels.
pub const STREAM_BLOCK: u32 = 256;

/// Tiles of a row group in the ring of the streaming kernels.
pub const STREAM_DEPTH: u32 = 3;

/// Bytes of a vector: what one access moves at most.
pub const VECTOR_BYTES: u32 = 16;

/// Bytes of a warp's part of a tile of the streaming kernels, of each tensor.
pub const WARP_TILE_BYTES: u32 = 2048;

/// The most row groups of a launch that splits rows: 17 words for each are fewer than there are.
pub const MAX_SPLIT_GROUPS: u32 = 2048;

/// Bytes of a line of the second-level cache.
pub const CACHE_LINE: u32 = 128;

/// Vectors of a line.
pub const LINE_VECTORS: u32 = CACHE_LINE / 16;

/// Of the `held` groups that each thread of a row group holds of a row of whole groups, how many are
/// within it; the others may be beyond.
pub const fn vectors_within(held: usize) -> usize {
    if held <= 4 { held - 1 } else { held / 2 }
}

/// Partial sums that there is room for.
pub const MAX_PARTIALS: u32 = 132 * 800;

/// Numbers that a warp leaves of a part of a row of logits.
pub const STATS_PARTS: u32 = 4;

/// Blocks whose sums are added up before those of the grid.
pub const GROUP: u32 = 64;

/// How many groups ahead of the group whose sums it adds up a block is: about as far as blocks run
/// at the same time, so that it hardly waits for them. What the last `2 * LAG` groups leave, and
/// blocks behind them, is added up at the end of the grid: the grid ends with its last rows, and to
/// add up others then would take as long again.
pub const LAG: u32 = 8;

/// Of a grid of blocks that take a piece each, every so manyth takes none, but adds up what others
/// leave.
pub const ADDER_PERIOD: u32 = 1024;

/// The blocks of such a grid.
pub const fn grid_of_workers(pieces: u32) -> u32 {
    // Of less than a stretch, one behind them adds up.
    if pieces < ADDER_PERIOD { pieces + 1 } else { pieces + (pieces - 1) / (ADDER_PERIOD - 1) }
}

/// Words that a block of such a grid leaves for so many sums, of `term_bytes` each: two of 32 bits
/// are one word.
pub const fn words_of_worker(sums: u32, term_bytes: usize) -> u32 {
    if term_bytes == 8 { sums } else { sums / 2 }
}

/// The most pieces of such a grid, for each of which so many words are left, and for each stretch
/// at most two sums for each of them.
pub const fn max_workers(words: u32) -> u32 {
    MAX_PARTIALS / words / (ADDER_PERIOD + 1) * (ADDER_PERIOD - 1)
}

/// Of `blocks` that leave something, those of the groups that are added up on the way: the first.
pub const fn early_blocks(blocks: u32) -> u32 {
    (blocks / GROUP).saturating_sub(2 * LAG) * GROUP
}

/// Targets that a thread has in flight when it adds up totals: everybody waits for them, and few
/// come soonest.
pub const NORMALISER_FLIGHT: usize = 2;

/// The most [`CrossEntropyArgs::normaliser_blocks`].
pub const MAX_NORMALISER_BLOCKS: u32 = 512;

/// The most blocks of a grid that sums `sums` values: for each a partial sum a block, and a group.
pub const fn max_blocks(sums: u32) -> u32 {
    MAX_PARTIALS / sums / (GROUP + 1) * GROUP
}

/// Where things are in the scratch memory of a launch, in bytes.
pub mod workspace {
    /// The complement of the lowest row that is not as it should be, or 0; zero between launches.
    pub const FAULT: u64 = 0;
    /// The sums of class weights and of rows that a launch leaves for the next, where rows are
    /// split.
    pub const TOTALS: u64 = 16;
    /// The partial sums, and behind them those of the totals and the totals; zero between launches.
    pub const PARTIALS: u64 = 32;
    /// What the pass over the logits leaves for the gradients, [`saved`](super::saved), where rows
    /// are split.
    pub const SAVED: u64 =
        PARTIALS + (super::MAX_PARTIALS + 2 * super::MAX_NORMALISER_BLOCKS + 2) as u64 * 8;
    /// The most rows that are.
    pub const SAVED_ROWS: usize = 256;
}

/// Bytes of the scratch memory that a launch needs.
pub const WORKSPACE_BYTES: usize =
    workspace::SAVED as usize + workspace::SAVED_ROWS * saved::COUNT * 8;

/// What becomes of the terms of a loss.
pub mod reduction {
    /// One sum.
    pub const SCALAR: u32 = 0;
    /// A sum a row.
    pub const ROWS: u32 = 1;
    /// The terms as they are.
    pub const ELEMENTS: u32 = 2;
}

/// Rows in memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Matrix {
    /// The first element; null where there is no such tensor.
    pub start: u64,
    /// Elements from the start of a row to the start of the next.
    pub row_stride: u64,
}

/// A number for each element of rows, where a stride of 0 has one serve all.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Broadcast {
    /// The first; null where there is none.
    pub start: u64,
    /// Elements from that of a row's first element to that of the next row's.
    pub row_stride: u64,
    /// Elements from one of a row to the next: 1 or 0.
    pub col_stride: u64,
}

/// Where a loss's weights are in [`PairwiseArgs::weights`].
pub mod weights {
    /// The factor of an element's term.
    pub const WEIGHT: usize = 0;
    /// The factor of the part of the term that a positive target has.
    pub const POS_WEIGHT: usize = 1;
}

/// Arguments of the kernels that compare two tensors element by element. Every tensor has `rows`
/// rows of `cols` elements; a dense tensor may come as one row.
///
/// The threads of the grid work in row groups, each on one piece of a row at a time: piece `p` is part
/// `p % splits` of row `p / splits`, taken as every `splits`-th tile of it.
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
    /// Parts of a row. With one part for each row of [`reduction::ROWS`] a row group ends its row alone;
    /// otherwise `rows * splits` is at most [`MAX_PARTIALS`].
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient of a row to the next: 1, or 0 where one serves all.
    pub upstream_col_stride: u32,
    /// Rows of a chunk, which is a block's, or 0. Otherwise the reduction is [`reduction::ROWS`];
    /// tensors have no gaps between rows, gradients are aligned alike to 16 bytes; weights have no
    /// strides; and a block has dynamic shared memory for [`chunk_shared_bytes`].
    pub chunk_rows: u32,
    /// Where the forward kernels write: one value, one a row, or one an element.
    pub loss: Matrix,
    /// [`WORKSPACE_BYTES`] of scratch, for the forward kernels.
    pub workspace: u64,
    /// The gradient that arrives: one value, one a row, or one an element, as `reduction` says;
    /// null stands for ones.
    pub upstream: Matrix,
    /// Gradient of the input, or null where it is not wanted.
    pub grad_input: Matrix,
    /// Gradient of the target, or null where it is not wanted.
    pub grad_target: Matrix,
    /// Factors of the element type, as [`weights`] has them, of losses that know of them; null for
    /// ones. Without a stride, where the tensors come as one row but were more.
    pub weights: [Broadcast; 2],
}

/// Bytes of shared memory that a chunk of `rows` rows takes, of elements of `element_bytes`: a term
/// for each, from a vector's boundary on, and a scale for each row.
pub const fn chunk_shared_bytes(rows: usize, cols: usize, element_bytes: usize) -> usize {
    let lanes = VECTOR_BYTES as usize / element_bytes;
    let term_bytes = if element_bytes == 8 { 8 } else { 4 };
    (rows * cols + 2 * lanes + rows) * term_bytes
}

/// Arguments of the kernels that only read and write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeilingArgs {
    /// The arrays that are read, then those that are written.
    pub arrays: [u64; 4],
    /// Vectors in each; whole tiles of the launch.
    pub vectors: u64,
    /// Another array that is read, of what a loss reads once a row: ...
    pub of_rows: u64,
    /// ... so many groups, ...
    pub of_rows_vectors: u64,
    /// ... of which so many beside each tile, no more than a block has threads.
    pub of_rows_share: u64,
    /// Where what was read could be written; hardly ever is.
    pub sink: u64,
    /// How many bytes from the beginning of the array blocks ask for before the launches before
    /// this one are done, where any [do](Self::asks_early).
    pub early_bytes: u64,
}

impl CeilingArgs {
    /// Whether kernels that read and write so many arrays ask for their first bytes early: as the
    /// losses do, those of one read.
    pub const fn asks_early(reads: usize, writes: usize) -> bool {
        reads == 1 && writes == 0
    }
}

/// The per-row results that a forward pass can leave for the backward: four arrays of a value a
/// row, of the arithmetic's type.
pub mod saved {
    /// The row's largest logit, m.
    pub const MAX: u64 = 0;
    /// log Σ exp(x − m).
    pub const LOG_SUM: u64 = 1;
    /// What the shares of all classes in the target add up to: the class weights, times a power of
    /// two near 1/C, or, for probabilities, the target.
    pub const WEIGHT: u64 = 2;
    /// m + log Σ exp(x − m).
    pub const LOG_SUM_EXP: u64 = 3;
    /// Arrays.
    pub const COUNT: usize = 4;
}

/// How a warp stages rows in shared memory, as a tile, and shares them among its lanes: lane `l`
/// has row `l` modulo `1 << warp_rows_shift` of the tile, and then every so manyth row; lanes of
/// one row take its 16-byte vectors in turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TileArgs {
    /// Rows of a tile.
    pub rows: u32,
    /// Tiles of all rows, fewer than 2³¹.
    pub count: u32,
    /// Rows of the last tile.
    pub last_rows: u32,
    /// log2 of the rows that a warp works on at the same time.
    pub warp_rows_shift: u32,
    /// Bytes of one access of a lane to shared memory: 16, 8, 4 or the element's. Rows that are read
    /// begin and end at multiples of it.
    pub access: u32,
    /// The same of rows of gradients.
    pub store_access: u32,
    /// Bytes from row to row in shared memory, of logits and of probabilities; as many modulo 16 as
    /// in global memory.
    pub step: [u32; 2],
    /// The same of their gradients, where these are not written in place.
    pub store_step: [u32; 2],
    /// Whether rows are copied as one span, gaps included; 1 or 0. They are as far from each other in
    /// shared memory as in global memory then.
    pub load_span: u32,
    /// Whether gradients are stored as one span, which has no gaps; 1 or 0.
    pub store_span: u32,
    /// log2 of the lanes that copy or store a row, where rows are no span.
    pub copy_shift: u32,
    /// A lane takes the vectors of row `r` in an order of their own, so that lanes of other rows
    /// read other banks: vector `v` in place of `v ^ ((r >> order_right & order_mask) <<
    /// order_left)`.
    pub order_right: u32,
    /// See `order_right`.
    pub order_mask: u32,
    /// See `order_right`.
    pub order_left: u32,
    /// Bytes of one tile. That of the target's probabilities is behind that of the input, or the
    /// rows' classes are.
    pub bytes: u32,
    /// Bytes of a stage: of what is in shared memory of rows that are loaded together.
    pub stage_bytes: u32,
    /// Bytes of a warp: two stages, and the tiles of gradients that are not written in place.
    pub warp_bytes: u32,
    /// Where the tiles of gradients begin in what a warp has; 0: gradients are written over what
    /// they are the gradients of.
    pub gradients: u32,
}

/// How row groups stream rows through rings in shared memory. A row group is a warp or a block; a
/// tile is [`WARP_TILE_BYTES`] of each tensor for each of its warps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct StreamArgs {
    /// Warps of a row group: 1, or those of a block.
    pub warps: u32,
    /// Tiles of a row, counted from the cache line that it begins in.
    pub row_tiles: u32,
    /// Row groups of the grid.
    pub groups: u32,
    /// Whether row groups have equal shares of all tiles, or take rows in turns; 1 or 0. With 1
    /// they are blocks, at most [`MAX_SPLIT_GROUPS`].
    pub split: u32,
}

/// Which target is no class, as the kernels of cross-entropy write it beside a loss. All zeros say
/// that every target is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TargetFault {
    /// The lowest row whose target is no class.
    pub row: u64,
    /// That target.
    pub target: i64,
    /// The classes that there are; 0 where every target is one of them.
    pub classes: u64,
}

/// Arguments of the kernels of cross-entropy. A row group of threads takes a row at a time.
///
/// A launch's arguments arrive in lines of 64 bytes, of which the first has 48 of them, and each is
/// waited for when it is first asked for. What says where a row and its target are is in the first,
/// what its loss needs in the second.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CrossEntropyArgs {
    /// Logits.
    pub input: Matrix,
    /// The first target. Classes have no gaps between them, probabilities are rows as the input's.
    pub target: u64,
    /// Rows.
    pub rows: u64,
    /// Elements of a row: classes, from 1 to 2³¹ − 1.
    pub cols: u32,
    /// Bytes of a class: 1 (`u8`), 4 (`i32` or `u32`) or 8 (`i64`); 0 for probabilities. A `u32` is
    /// loaded as an `i32`: from 2³¹ on it is negative then, and no class either way.
    pub class_bytes: u32,
    /// Blocks, the first of the grid, that add up the totals for those that compute gradients: 0
    /// unless `divisor` is 0, and where a launch of their own has done it.
    pub normaliser_blocks: u32,
    /// Rows that a block of a grid of [`grid_of_workers`] takes, one after the other or as many at
    /// once as it has row groups.
    pub rows_of_block: NonZeroU32,
    /// The class of rows that do not count, as it is loaded.
    pub ignore_index: i64,
    /// Class weights, of the element type; null for ones.
    pub weight: u64,
    /// [`saved`]: written by the forward kernels unless null, read by the backward kernels.
    pub saved: u64,
    /// The sums of class weights and of rows that count, two `f64`: written by the forward kernels
    /// unless null, read by the backward kernel where `divisor` is 0.
    pub totals: u64,
    /// λ; 0 for none.
    pub z_loss: f64,
    /// [`WORKSPACE_BYTES`] of scratch.
    pub workspace: u64,
    /// A [`TargetFault`] to write. Null if nobody asks.
    pub fault: u64,
    /// One value, or one a row.
    pub loss: u64,
    /// [`reduction::SCALAR`] or [`reduction::ROWS`].
    pub reduction: u32,
    /// Threads of a row group: a power of two up to 32, or the whole block.
    pub group_threads: NonZeroU32,
    /// What a sum is divided by; 0 for the totals.
    pub divisor: f64,
    /// Blocks that share a row, for the kernels that allow it: in a forward pass `rows * splits`,
    /// times the warps of a block, is at most [`MAX_PARTIALS`] / [`STATS_PARTS`]; of a backward
    /// pass each holds its part.
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient to the next row's: 1, or 0 where one serves all.
    pub upstream_stride: u32,
    /// The gradient that arrives, one value or one a row; null stands for ones.
    pub upstream: u64,
    /// Gradient of the input.
    pub grad_input: Matrix,
    /// Gradient of the target probabilities, or null where it is not wanted.
    pub grad_target: Matrix,
    /// Elements from the start of a row of probabilities to the start of the next.
    pub target_stride: u64,
    /// 1 − ε and ε/C of label smoothing.
    pub keep: f64,
    /// See `keep`.
    pub share: f64,
    /// Groups of 16 bytes of a row's logits that a block keeps in its dynamic shared memory from
    /// the sums to the gradients, behind those that it holds in registers. The others it reads
    /// twice. The results do not depend on it.
    pub staged_vectors: u32,
    /// How many rows ahead of its own a block asks for a row, for whoever reads it to find it in
    /// the second-level cache; 0 for none. The results do not depend on it.
    pub ahead: u32,
    /// How many bytes from the beginning of that row, no more than it has.
    pub ahead_bytes: u32,
    /// How many of the first blocks ask for their rows before the launches before this one are
    /// done; 0 for none. The results do not depend on it.
    pub early_blocks: u32,
    /// How many bytes from the beginning of a row, no more than it has.
    pub early_bytes: u32,
    /// Whether the call [is plain](Self::is_plain), 1 or 0: who asks for all that says so waits for
    /// each.
    pub plain: u32,
    /// How many of the last rows of `cross_entropy_forward_long` are shared by `splits` blocks, one
    /// after the other, each of which is a piece; 0 for none. There is room for what their warps
    /// leave, [`STATS_PARTS`] words each, from word `tail_at` on, a multiple of as many.
    pub tail_rows: u32,
    /// See `tail_rows`.
    pub tail_at: u32,
    /// The logarithm of `row group` to the base of 2, of a row group of a warp at most.
    pub group_shift: u32,
    /// For the kernels of packed rows.
    pub tile: TileArgs,
    /// For the kernels of streamed rows.
    pub stream: StreamArgs,
    /// Whether classes of 4 bytes are `u32`, for the target of a fault; 1 or 0.
    pub unsigned_classes: u32,
}

impl CrossEntropyArgs {
    /// Whether all classes weigh the same, and nothing is asked for but the sum of the losses or
    /// their mean.
    pub fn is_plain(&self) -> bool {
        let others = self.weight | self.saved | self.totals;
        others == 0 && self.reduction == reduction::SCALAR && self.z_loss == 0.0
    }

    /// The rows of probabilities; null, of classes.
    pub fn probabilities(&self) -> Matrix {
        let start = if self.class_bytes == 0 { self.target } else { 0 };
        Matrix { start, row_stride: self.target_stride }
    }
}
