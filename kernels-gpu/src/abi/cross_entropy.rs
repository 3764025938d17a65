//! Arguments and results of the kernels of losses over rows.

use super::{Matrix, reduction};
use core::num::NonZeroU32;

/// The per-row results that a forward pass can save for the backward pass: four arrays with one
/// value per row, of the arithmetic's type.
pub mod saved {
    /// The row's largest logit, m.
    pub const MAX: u64 = 0;
    /// log Σ exp(x − m).
    pub const LOG_SUM: u64 = 1;
    /// The sum of the target distribution over all classes. With classes as targets this is the sum
    /// of the class weights, times a power of two near 1/C.
    pub const WEIGHT: u64 = 2;
    /// Log-probabilities save Σ p (z − m) in place of the weight, with z = x/T. The entropy is
    /// log Σ exp(z − m) less this. This is saved rather than the entropy because the gradient needs
    /// it: computed back from the entropy, it would lose its digits in a row of nearly equal
    /// logits.
    pub const EXPECTED: u64 = WEIGHT;
    /// m + log Σ exp(x − m).
    pub const LOG_SUM_EXP: u64 = 3;
    /// The number of arrays.
    pub const COUNT: usize = 4;
    /// How many of the arrays, from the first on, gradients are computed from.
    pub const USED: usize = 3;
}

/// Launches of the packed-row kernels that compute the mean loss and its gradients. Gradients are
/// divided by the number of rows that count. To know it, a launch has to read all targets before it
/// writes the first gradient, and then a second time for the rows. If rows are short, that is a
/// large part of all bytes. So a first launch assumes that all rows count. If they do not, a second
/// one computes everything again.
///
/// Rows that do not count are likely to occur again in the next calls. These are cautious: their
/// first launch counts the rows.
pub mod attempt {
    /// The only launch. Its first blocks sum the normaliser.
    pub const ONLY: u32 = 0;
    /// The first of two. It stops at a row that does not count, unless the call is cautious.
    pub const OPTIMISTIC: u32 = 1;
    /// The second of two: as [`ONLY`], but it ends at once if the first has not stopped. It mostly
    /// ends at once, so it has few blocks, and each does the work of several blocks of the first
    /// launch. Sums are added in the same order, so that results have the same bits in either
    /// launch.
    pub const RETRY: u32 = 2;

    /// What an optimistic launch leaves in the workspace if it has met a row that does not count.
    pub const NOTED: u64 = 1;

    /// How many calls are cautious after one that has met a row that does not count. The number was
    /// chosen, not searched for: a call that is cautious for nothing takes as long as one launch
    /// does. A call that should have been cautious computes nearly all rows twice at worst, the
    /// second time with fewer blocks; how long that takes was not measured.
    pub const CAUTIOUS_CALLS: u64 = 16;

    /// Larger elements have only one launch: f64 arithmetic takes longer than reading the targets
    /// twice. H200, 2026-11-28, forward-backward, ceiling ÷ ours in one launch and in two: 1.2
    /// million rows of 8 columns 0.71 and 0.58, 9.8 million of 4 columns 0.73 and 0.69.
    pub const MOST_ELEMENT_BYTES: usize = 4;
}

/// How a warp stages rows in shared memory, as a tile, and distributes them over its lanes. With
/// `n = 1 << warp_rows_shift`, lane `l` computes row `l % n` of the tile and then every `n`-th row
/// after it. The 16-byte vectors of a row are dealt to its lanes in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TileArgs {
    /// Rows of a tile.
    pub rows: u32,
    /// Tiles of the input, fewer than 2³¹.
    pub count: u32,
    /// Rows of the last tile.
    pub last_rows: u32,
    /// log2 of the rows that a warp computes at the same time.
    pub warp_rows_shift: u32,
    /// Bytes of one load of a lane from shared memory: 16, 8, 4 or the size of an element. Rows of
    /// the input and the target begin and end at multiples of it.
    pub access: u32,
    /// The same for one store of a lane to shared memory, to rows of gradients.
    pub store_access: u32,
    /// Bytes from row to row in shared memory, for logits and for probabilities; equal modulo 16 to
    /// those in global memory.
    pub step: [u32; 2],
    /// The same for their gradients, if these are not written in place.
    pub store_step: [u32; 2],
    /// Whether rows are copied as one span, gaps included; 1 or 0. With 1, rows are as far from
    /// each other in shared memory as in global memory.
    pub load_span: u32,
    /// Whether gradients are stored as one span, which has no gaps; 1 or 0.
    pub store_span: u32,
    /// log2 of the lanes that copy or store one row, where rows are not copied as one span.
    pub copy_shift: u32,
    /// Units of a row of gradients, if the units of all rows are dealt to the lanes of the warp in
    /// turn to be stored; 0 if they are not. A unit is 4 bytes or, if rows do not begin and end at
    /// multiples of 4, an element; in f64 it is an element.
    pub store_units: u32,
    /// 2³² ÷ `store_units`, rounded up; 0 if `store_units` is 1. It serves to divide numbers up to
    /// 32.
    pub per_store_unit: u32,
    /// Swizzle against bank conflicts: lanes of different rows access the vectors of their rows in
    /// different orders. In row `r`, a lane takes vector `v` in place of
    /// `v ^ ((r >> order_right & order_mask) << order_left)`. Where a lane has a row of 16-bit
    /// elements that begins or ends within a word, and that does not fit its registers, it adds
    /// this number instead of the exclusive or, modulo the whole vectors of the row.
    pub order_right: u32,
    /// See `order_right`.
    pub order_mask: u32,
    /// See `order_right`.
    pub order_left: u32,
    /// Bytes of one tile. The tile of the input is followed by that of the target probabilities, or
    /// by the rows' classes.
    pub bytes: u32,
    /// Bytes of a stage, which is the shared memory for rows that are loaded together, if a warp
    /// has two; 0 if it has one.
    pub stage_bytes: u32,
    /// Bytes of shared memory of a warp: its stages, and the tiles of gradients that are not
    /// written in place.
    pub warp_bytes: u32,
    /// Offset in a stage of what the forward pass has saved of its rows: an array of `rows` values
    /// for each of [`saved`]. 0 unless the kernel computes gradients only.
    pub saved: u32,
    /// Offset of the gradients' tiles in the shared memory of a warp. 0 if gradients are written in
    /// place, over the logits and the probabilities.
    pub gradients: u32,
    /// How the words of a row are dealt to its lanes, if it is not read by vectors of 16 bytes.
    pub words: WordSteps,
}

/// Which words of a packed row a lane has. In every turn each of the row's lanes has a chunk of 16
/// bytes. Either the words of all chunks of a turn are dealt to the lanes in turn, or whole chunks
/// are. Which of the two has fewer bank conflicts depends on the distance of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct WordSteps {
    /// Bytes from one word of a lane's chunk to its next.
    pub word: u32,
    /// Bytes from the chunk of one lane to that of the next lane.
    pub lane: u32,
    /// 1 if every other row is read from its third word on and its first two words last, 0 if none
    /// is. This is for rows of 16-bit elements that are a multiple of 16 bytes apart: without it,
    /// the words that a warp reads at a time are all in the same quarter of the banks.
    pub shifted: u32,
}

/// How warps stream rows through rings in shared memory. Each warp has an equal share of all tiles,
/// which are consecutive; a tile is [`WARP_TILE_BYTES`](super::WARP_TILE_BYTES) of each tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct StreamArgs {
    /// Tiles of a row, counted from the beginning of the cache line in which the row begins.
    pub row_tiles: u32,
    /// How many of the first warps of the grid have tiles: no more than there are tiles.
    pub warps: u32,
    /// Whether the warps of a block merge their parts of a row before the row's last warp merges
    /// the parts of all blocks; 1 or 0. Otherwise the row's last warp merges the parts of all
    /// warps. The results differ in their last bits.
    pub merges_blocks: u32,
}

/// The first target that is not a class. The cross-entropy kernels report it along with the loss.
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

/// The arguments that only the kernels of log-probabilities have.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LogProbArgs {
    /// 1/T, the inverse of the temperature, by which logits are multiplied; 0 in a call of
    /// cross-entropy.
    pub scale: f64,
    /// The entropies, one per row. The log-probabilities are stored as the loss.
    pub entropy: u64,
    /// Where a [`TargetFault`] is written a second time, or null.
    pub entropy_fault: u64,
    /// The upstream gradient of the entropies, one value or one per row; null means zeros.
    pub upstream_entropy: u64,
    /// Elements from one of these to the next row's: 1, or 0 if there is one for all rows.
    pub upstream_entropy_stride: u32,
}

/// Arguments of the row kernels: of cross-entropy, and of log-probabilities. A row group computes
/// one row at a time.
///
/// Fields are in the order in which kernels need them. The arguments of a launch are loaded in
/// cache lines of 64 bytes, the first of which has the first 48 bytes of the arguments, and the
/// first read from a line waits for the whole line. The first line has what locates a row and its
/// target, the second what the row's loss needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CrossEntropyArgs {
    /// Logits.
    pub input: Matrix,
    /// The first target. Classes have no gaps between them; probabilities are rows, like the
    /// input's.
    pub target: u64,
    /// Rows.
    pub rows: u64,
    /// Elements of a row: classes, from 1 to 2³¹ − 1.
    pub cols: u32,
    /// Bytes of a class: 1 (`u8`), 4 (`i32` or `u32`) or 8 (`i64`); 0 for probabilities. A `u32` is
    /// loaded as an `i32`: from 2³¹ on it becomes negative, and is not a class either way.
    pub class_bytes: u32,
    /// How many of the grid's first blocks sum the normaliser for the blocks that compute
    /// gradients; 0 if `divisor` is not 0, or if a separate launch sums the normaliser. In
    /// `_staged` and `_split` kernels with class weights and
    /// [late shares](super::has_late_shares), they sum all class weights too, and are not 0.
    pub normaliser_blocks: u32,
    /// Rows that each worker of a grid of [`grid_of_workers`](super::grid_of_workers) takes: one
    /// after the other, or as many at a time as it has row groups.
    pub rows_of_block: NonZeroU32,
    /// The class of rows that are ignored, as it is loaded.
    pub ignore_index: i64,
    /// Class weights, of the element type; null means ones.
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
    /// [`WORKSPACE_BYTES`](super::WORKSPACE_BYTES) of scratch.
    pub workspace: u64,
    /// A [`TargetFault`] to write, or null.
    pub fault: u64,
    /// The loss: one value, or one per row.
    pub loss: u64,
    /// [`reduction::SCALAR`] or [`reduction::ROWS`].
    pub reduction: u32,
    /// Threads of a row group: a power of two up to 32, or the whole block.
    pub group_threads: NonZeroU32,
    /// What a sum is divided by; 0 if it is the normaliser, which only the device knows.
    pub divisor: f64,
    /// Blocks that share a split row, in the kernels that split rows. In a forward pass `rows *
    /// splits`, times the warps of a block, is at most [`MAX_PARTIALS`](super::MAX_PARTIALS) /
    /// [`STATS_PARTS`](super::STATS_PARTS). In a backward pass each block has its part in
    /// registers.
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient to the next row's: 1, or 0 if there is one for all rows.
    pub upstream_stride: u32,
    /// The upstream gradient, one value or one per row; null means ones or, for log-probabilities,
    /// zeros.
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
    /// In `_long` kernels, the vectors of a row's logits that a block stages in dynamic shared
    /// memory between the reduction pass and the gradient pass, after the vectors in registers. It
    /// reads the rest of the row twice. The results do not depend on it. In `_staged` and `_split`
    /// kernels, the vectors of logits that a block has room for, followed by the target's
    /// probabilities; 0 if it stages only logits.
    pub staged_vectors: u32,
    /// Prefetch distance in rows: a block prefetches the row that many rows after its own into the
    /// L2 cache; 0 for none. The results do not depend on it.
    pub ahead: u32,
    /// Bytes of that row that are prefetched, from its beginning on; no more than a row has.
    pub ahead_bytes: u32,
    /// How many of the first blocks prefetch their rows before the launches before this one have
    /// ended (programmatic dependent launch); 0 for none. The results do not depend on it.
    pub early_blocks: u32,
    /// Bytes that these blocks prefetch, from the beginning of a row on or, if rows are streamed,
    /// of the first tiles of each warp; no more than the row or the tiles have.
    pub early_bytes: u32,
    /// Whether the call [is plain](Self::is_plain), 1 or 0. The host evaluates it, because a kernel
    /// would wait for each of the fields that it depends on.
    pub plain: u32,
    /// How many of the last rows of `cross_entropy_forward_long` are split, each over `splits`
    /// workers with consecutive indices; 0 for none. Each worker publishes
    /// [`STATS_PARTS`](super::STATS_PARTS) words, from word `tail_at` on, for which there is room.
    pub tail_rows: u32,
    /// See `tail_rows`; a multiple of [`STATS_PARTS`](super::STATS_PARTS).
    pub tail_at: u32,
    /// log2 of `group_threads`, where a row group is at most a warp.
    pub group_shift: u32,
    /// [`adder_shift`](super::adder_shift) of the launch, in the kernels that stage rows.
    pub adder_shift: u32,
    /// Layout of tiles, for the packed-row kernels.
    pub tile: TileArgs,
    /// Whether classes of 4 bytes are `u32`, which decides how [`TargetFault::target`] is reported;
    /// 1 or 0.
    pub unsigned_classes: u32,
    /// Layout of streams, for the streaming kernels. It begins at a multiple of eight bytes, so
    /// that LLVM loads its fields in pairs.
    pub stream: StreamArgs,
    /// Vectors of a part of a row in `cross_entropy_forward_backward_split`, whose rows are shared
    /// by `splits` blocks each; a multiple of
    /// [`STAGED_BATCH_VECTORS`](super::STAGED_BATCH_VECTORS). The parts of all blocks have room for
    /// a row and what its first cache line has before it: vectors are numbered from the line. A
    /// group of blocks takes `rows_of_block` rows at a time, and there are at most
    /// [`max_tickets`](super::max_tickets) times as many.
    pub part_vectors: u32,
    /// Which of the two launches that compute loss and gradients of the same rows this is: one of
    /// [`attempt`].
    pub attempt: u32,
    /// In a [retry](attempt::RETRY), the number of blocks of the first launch without
    /// `normaliser_blocks`.
    pub retried_blocks: u32,
    /// The arguments that only log-probabilities have.
    pub log_prob: LogProbArgs,
}

impl CrossEntropyArgs {
    /// Whether the call returns only the sum or the mean of the losses, without class weights and
    /// z-loss, and saves nothing for a backward pass.
    pub fn is_plain(&self) -> bool {
        self.weight == 0 && self.is_plain_but_for_weights()
    }

    /// [`is_plain`](Self::is_plain), with or without class weights.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub fn is_plain_but_for_weights(&self) -> bool {
        self.is_scalar() && self.z_loss == 0.0
    }

    /// Whether the call returns only the sum or the mean of the losses, and saves nothing for a
    /// backward pass.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub fn is_scalar(&self) -> bool {
        self.saved | self.totals == 0 && self.reduction == reduction::SCALAR
    }

    /// The target probabilities; null if targets are classes.
    pub fn probabilities(&self) -> Matrix {
        let start = if self.class_bytes == 0 { self.target } else { 0 };
        Matrix { start, row_stride: self.target_stride }
    }
}
