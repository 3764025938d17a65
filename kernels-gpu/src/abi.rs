//! What host and kernels must agree on: dtypes, block sizes, and the arguments of each kernel.
//!
//! A kernel takes one argument, a `repr(C)` structure of this module by value, so that both sides
//! are compiled from the same definition. Addresses are plain `u64`: the host has no pointers into
//! device memory.

mod cross_entropy;
mod pairwise;

pub use cross_entropy::*;
pub use pairwise::*;

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
/// (`cuda_std::thread::wait_for_launches_before`). For programmatic dependent launch, the host
/// replaces it with instructions.
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

/// Whether a block that stages rows can also stage probabilities or class weights that are aligned
/// differently from the logits: an asynchronous copy has at least 4 bytes, so 16-bit elements at an
/// odd offset would be copied one by one.
pub const fn stages_misaligned(element_bytes: usize) -> bool {
    element_bytes >= 4
}

/// The stages of a warp in a packed-row kernel of cross-entropy that computes the loss, gradients
/// or both, with one lane per row or several. `None` if each launch chooses, by
/// `TileArgs::stage_bytes`.
///
/// In f64, a loss with its gradients takes so long to compute that other warps hide the latency of
/// a tile's loads, and the work per tile counts for more: there is one stage, which is twice as
/// large. Gradients of f64 leave no registers for a choice.
pub const fn packed_stages(
    element_bytes: u32,
    one_lane: bool,
    loss: bool,
    gradients: bool,
) -> Option<u32> {
    let is_f64 = element_bytes == 8;
    if is_f64 && loss && gradients {
        Some(1)
    } else if one_lane || is_f64 && gradients {
        Some(2)
    } else {
        None
    }
}

/// Threads of a block of the streaming kernels.
pub const STREAM_BLOCK: u32 = 256;

/// Tiles in the ring of each warp of the streaming kernels.
pub const STREAM_DEPTH: u32 = 3;

/// Bytes of a vector: the most that one load or store of a thread moves.
pub const VECTOR_BYTES: u32 = 16;

/// Bytes of each tensor in a tile of the streaming kernels.
pub const WARP_TILE_BYTES: u32 = 2048;

/// The most blocks of the streaming kernels. Each needs four words of the workspace for its sums,
/// and four for each of its warps. With fewer than 17 [groups](GROUP) of blocks, the last block
/// sums all of them.
pub const MAX_STREAM_BLOCKS: u32 = 16 * GROUP;

/// Bytes of a line of the L2 cache.
pub const CACHE_LINE: u32 = 128;

/// Vectors in a line of the L2 cache.
pub const LINE_VECTORS: u32 = CACHE_LINE / 16;

/// Vectors of a batch of a staged row, which a warp computes at a time if targets are classes:
/// shared memory then has room for whole batches.
pub const STAGED_BATCH_VECTORS: u32 = 128;

/// How many of the `per_thread` vectors of a row that each thread has in registers are certain to
/// be within the row; the others may be beyond its end. The kernels for rows of whole vectors omit
/// the bounds check of the former, and the host launches them only for rows that are long enough.
pub const fn vectors_within(per_thread: usize) -> usize {
    if per_thread <= 4 { per_thread - 1 } else { per_thread / 2 }
}

/// The same for the kernels of rows that begin and end at any element, not counting the vectors at
/// either end that the row has only a part of. The number is smaller, so that less than half of a
/// thread's vectors may be used: no other kernel has such rows in registers.
pub const fn peeled_vectors_within(per_thread: usize) -> usize {
    per_thread / 2 - 1
}

/// The fewest threads of a row group in these kernels. The elements outside of a row's vectors are
/// fewer than those of two vectors, and each needs a thread.
pub const fn peeled_group_threads(element_bytes: usize) -> usize {
    2 * 16 / element_bytes
}

/// How many partial sums, of one word each, the workspace has room for.
pub const MAX_PARTIALS: u32 = 132 * 800;

/// Words that a warp, or a block, publishes for its part of a split row: the part's online softmax.
pub const STATS_PARTS: u32 = 4;

/// Words that each of the blocks that share a row publishes once per row: the [`STATS_PARTS`] of
/// its part, and which row comes next.
pub const EXCHANGE_WORDS: u32 = STATS_PARTS + 1;

/// How many consecutive rows have separate words for these.
pub const EXCHANGE_ROUNDS: u32 = 3;

/// The most tickets of a launch of `blocks` blocks that share rows, each ticket for
/// [`CrossEntropyArgs::rows_of_block`] rows: the workspace has two sums for each ticket, the words
/// that blocks exchange, and two counters.
pub const fn max_tickets(blocks: u32) -> u32 {
    (MAX_PARTIALS - blocks * EXCHANGE_ROUNDS * EXCHANGE_WORDS - 2) / 2
}

/// Blocks of a group: one block sums their partial sums before the end of the grid.
pub const GROUP: u32 = 64;

/// How many groups after a group the block is that sums its partial sums. About so many groups run
/// at the same time, so that this block hardly waits for them. The last block of the grid sums the
/// partial sums of the last two times `LAG` groups and of the blocks after them: blocks that could
/// sum them earlier are at the end of the grid themselves, and waiting for their sums would make
/// the end take twice as long.
pub const LAG: u32 = 8;

/// In a grid of workers, which are blocks that take rows, every `1 << shift`-th block is an adder:
/// it takes no rows, but sums what workers publish. This is the `shift` of all grids except those
/// whose arguments have [another](CrossEntropyArgs::adder_shift).
pub const ADDER_SHIFT: u32 = 10;

/// The [shift](ADDER_SHIFT) of a grid of blocks of `threads` threads that stage rows. After all
/// rows are done, the last adder may still have to sum two periods. In f64 a worker publishes two
/// words: for 2046 workers, 32 threads took 24 of 56 µs (8208×511, forward-backward, H200,
/// 2026-11-28).
pub const fn adder_shift(element_bytes: usize, threads: u32) -> u32 {
    match (element_bytes, threads) {
        (8, ..=32) => ADDER_SHIFT - 2,
        (8, ..=64) => ADDER_SHIFT - 1,
        _ => ADDER_SHIFT,
    }
}

/// Blocks of a grid of `workers` workers, adders included.
pub const fn grid_of_workers(workers: u32, shift: u32) -> u32 {
    let period = 1 << shift;
    // In a grid of at most one period, the adder is the block after the workers.
    if workers < period { workers + 1 } else { workers + (workers - 1) / (period - 1) }
}

/// Words that a worker publishes for its terms of `sums` sums, of `term_bytes` each. Two terms of
/// 32 bits are packed into one word.
pub const fn words_of_worker(sums: u32, term_bytes: usize) -> u32 {
    if term_bytes == 8 { sums } else { sums / 2 }
}

/// The most workers of a grid, if each publishes `words` words. For each word, an adder publishes
/// at most two sums per period.
pub const fn max_workers(words: u32, shift: u32) -> u32 {
    let period = 1 << shift;
    MAX_PARTIALS / words / (period + 1) * (period - 1)
}

/// How many of the first of `blocks` blocks are in groups that are summed before the end of the
/// grid.
pub const fn early_blocks(blocks: u32) -> u32 {
    (blocks / GROUP).saturating_sub(2 * LAG) * GROUP
}

/// Targets that a thread has in flight when it sums the normaliser. They are few, because all other
/// blocks wait for the normaliser, and a small batch of loads arrives soonest.
pub const NORMALISER_FLIGHT: usize = 2;

/// Whether the kernels of staged rows sum the target's shares in the pass that writes the
/// gradients, if there is label smoothing: each row then loads a class weight once, and the
/// statistics take one pass over the logits. Not so in f64, whose logits have been replaced by
/// their exponentials by then.
///
/// H200, 2026-11-30, loss and gradients, ceiling ÷ ours with the shares summed before the gradients
/// and with them:
///
/// - class weights: f32, 1000 columns 0.51 and 0.76, 8192 columns 0.71 and 0.81, 131,072 columns
///   0.64 and 0.71; bf16, 2048 columns 0.60 and 0.68, 8192 columns 0.59 and 0.72, 70,001 columns
///   0.42 and 0.54
/// - no class weights: bf16, 2048 columns 0.73 and 0.80, 32,768 columns 0.83 and 0.91; but f32,
///   2048 columns 0.92 and 0.85, 13,001 columns 0.93 and 0.89
pub const fn has_late_shares(element_bytes: usize, has_weights: bool) -> bool {
    element_bytes == 2 || has_weights && element_bytes < 8
}

/// The most [`CrossEntropyArgs::normaliser_blocks`].
pub const MAX_NORMALISER_BLOCKS: u32 = 1024;

/// Words of the workspace for what the first blocks of a grid sum: partial sums and totals of the
/// normaliser, two of each, and of the class weights.
pub const NORMALISER_WORDS: u32 = 3 * MAX_NORMALISER_BLOCKS + 4;

/// The most blocks of a grid that sums `sums` values. For each value, every block and every group
/// of blocks publishes a partial sum.
pub const fn max_blocks(sums: u32) -> u32 {
    MAX_PARTIALS / sums / (GROUP + 1) * GROUP
}

/// Offsets in the scratch memory of a launch, in bytes.
pub mod workspace {
    /// The complement of the lowest row whose target is invalid, or 0; zero between launches.
    pub const FAULT: u64 = 0;
    /// What is known of rows that do not count: 0 if nothing is; [`NOTED`](super::attempt::NOTED)
    /// if the optimistic launch of this call has met such a row; above that, one more than the
    /// number of next calls that are cautious. A call leaves the word for the next.
    pub const UNCOUNTED: u64 = 8;
    /// The normaliser, which one launch leaves for the next where rows are split: the sum of class
    /// weights and the number of rows.
    pub const TOTALS: u64 = 16;
    /// The partial sums, then the partial sums of the normaliser, then the normaliser; all zero
    /// between launches.
    pub const PARTIALS: u64 = 32;
    /// The per-row results ([`saved`](super::saved)) that the pass over the logits leaves for the
    /// gradient pass, where rows are split.
    pub const SAVED: u64 = PARTIALS + (super::MAX_PARTIALS + super::NORMALISER_WORDS) as u64 * 8;
    /// The most rows of a call that splits rows: there is room for so many at [`SAVED`].
    pub const SAVED_ROWS: usize = 256;
}

/// Bytes of the scratch memory that a launch needs.
pub const WORKSPACE_BYTES: usize =
    workspace::SAVED as usize + workspace::SAVED_ROWS * saved::COUNT * 8;

/// How the terms of a loss are reduced.
pub mod reduction {
    /// To one sum.
    pub const SCALAR: u32 = 0;
    /// To one sum per row.
    pub const ROWS: u32 = 1;
    /// Not at all: one term per element.
    pub const ELEMENTS: u32 = 2;
}

/// A tensor in memory, as rows without gaps between their elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Matrix {
    /// The first element; null where there is no such tensor.
    pub start: u64,
    /// Elements from the start of a row to the start of the next.
    pub row_stride: u64,
}

/// A factor for each element of rows; if a dimension has stride 0, it has one factor for all.
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

/// Arguments of the ceiling kernels, which only read and write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeilingArgs {
    /// The arrays that are read, then those that are written.
    pub arrays: [u64; 4],
    /// Vectors in each array: a multiple of the tile of the launch.
    pub vectors: u64,
    /// Another array that is read, in place of what a loss reads once per row, such as targets.
    pub of_rows: u64,
    /// Vectors in that array.
    pub of_rows_vectors: u64,
    /// Vectors of that array that are read with each tile, no more than a block has threads.
    pub of_rows_share: u64,
    /// The address to which a kernel would write a checksum of what it read, in a case that hardly
    /// ever occurs: without it, the compiler would remove the reads.
    pub sink: u64,
    /// How many bytes from the beginning of the first array blocks prefetch before the launches
    /// before this one have ended, in kernels that [do so](Self::asks_early).
    pub early_bytes: u64,
}

impl CeilingArgs {
    /// Whether kernels that read `reads` arrays and write `writes` prefetch before the launches
    /// before them have ended: like the losses, those do that read one array and write none.
    pub const fn asks_early(reads: usize, writes: usize) -> bool {
        reads == 1 && writes == 0
    }
}
