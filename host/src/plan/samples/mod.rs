//! Launches of the kernels of cross-entropy: which regime takes rows of a shape, and with how many
//! threads and blocks.

mod launch;
mod shape;
mod tail;
mod warp_rows;

pub(crate) use tail::Tail;

use super::packed::{self, Device, Packed};
use super::{Launch, Pass, RowsLaunch};
use kernels_gpu::abi::{
    ADDER_SHIFT, LINE_VECTORS, MAX_NORMALISER_BLOCKS, NORMALISER_FLIGHT, StreamArgs, TileArgs,
    attempt,
};
use shape::Shape;
use std::num::NonZeroU32;

/// A launch of a kernel of cross-entropy, with the arguments that say how rows are shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SamplesLaunch {
    pub(crate) rows: RowsLaunch,
    pub(crate) regime: Regime,
    /// Rows per worker block, in passes that sum (whose grids are `abi::grid_of_workers`).
    pub(crate) rows_of_block: NonZeroU32,
    /// The last rows, which several blocks share, where the other rows have a block each.
    pub(crate) tail: Tail,
    /// log2 of the blocks that have an adder; see `abi::grid_of_workers`.
    pub(crate) adder_shift: u32,
    /// Vectors of logits that a block of [`Regime::Staged`] has room for, if it stages another
    /// tensor after them; otherwise 0.
    pub(crate) staged_vectors: u32,
    /// The tiles of packed rows; see [`packed`].
    pub(crate) tile: TileArgs,
    /// How streamed rows are shared; see [`stream`](super::stream).
    pub(crate) stream: StreamArgs,
    /// Whether streamed rows are so few that several blocks share each where gradients are
    /// computed; see [`are_few`](super::stream::are_few).
    pub(crate) has_few_rows: bool,
}

impl SamplesLaunch {
    /// A launch of `regime` whose rows are neither split nor shared by row groups of one size.
    fn new(regime: Regime, launch: Launch) -> Self {
        let one = NonZeroU32::MIN;
        SamplesLaunch {
            rows: RowsLaunch { launch, group_threads: one, splits: one },
            regime,
            rows_of_block: one,
            tail: Tail::NONE,
            adder_shift: ADDER_SHIFT,
            staged_vectors: 0,
            tile: TileArgs::default(),
            stream: StreamArgs::default(),
            has_few_rows: false,
        }
    }
}

/// Which threads share a row, and where its logits are between reading and use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regime {
    /// One or more lanes per row; a warp stages a tile of rows in shared memory.
    Packed,
    /// One lane per row; a warp stages a tile in shared memory, and a lane reads its row into
    /// registers.
    LaneRows,
    /// The same for rows of more columns, which a lane reads again for each step.
    WideRows,
    /// A warp or a part of one per row, register-resident. Rows begin and end on 16-byte
    /// boundaries.
    ShortWhole,
    /// A warp per row, register-resident, with twice the vectors a thread. Rows begin and end on
    /// 16-byte boundaries.
    WarpWhole,
    /// As [`ShortWhole`](Self::ShortWhole) and [`WarpWhole`](Self::WarpWhole), of rows that begin
    /// and end anywhere.
    ShortPeeled,
    WarpPeeled,
    /// A block per row, register-resident.
    Registers,
    /// The same for rows that begin and end anywhere.
    Peeled,
    /// A block per row, register-resident, for the forward pass over few rows: a thread per vector,
    /// which has the lowest latency.
    Few,
    /// A block per row, which it stages in shared memory, for loss and gradients. In f64, the row's
    /// exponentials replace it there.
    Staged,
    /// A block or several per row, too long for registers alone.
    Long,
    /// A warp per row, or equal shares of all rows for all blocks, streamed through rings of tiles
    /// in shared memory.
    Stream,
}

/// What the target of a row is, as far as it decides which kernels are fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A class.
    Class,
    /// A class with label smoothing.
    Smoothed,
    /// A class with label smoothing and class weights: each class has a share of its own.
    Weighted,
    Probabilities,
}

impl Target {
    pub(crate) fn is_smoothed(self) -> bool {
        matches!(self, Target::Smoothed | Target::Weighted)
    }
}

/// Which regimes the kernels of a pass can use for the rows of a call, and the limits of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SamplesKernels {
    /// Vectors of a row that a thread has in registers.
    pub(crate) per_thread: usize,
    /// As `per_thread`, in the forward-backward pass of [`Regime::Registers`], which has the
    /// exponentials in registers too.
    pub(crate) vectors_with_gradients: usize,
    /// How rows are packed into tiles, and the limits of the device, if rows are short enough.
    pub(crate) packed: Option<(Packed, Device)>,
    /// The layout of the rows, and the limits of the device, if there is a kernel that streams
    /// them.
    pub(crate) stream: Option<(packed::Rows, Device)>,
    /// The limits of the device, and the most threads of a block, if there is a kernel of
    /// [`Regime::Staged`].
    pub(crate) staged: Option<(Device, u32)>,
    /// The largest power of two, up to 128, to which all rows that are read are aligned, in bytes.
    pub(crate) alignment: usize,
    /// Tensors of which a row is staged: the logits and, where they are the target, probabilities.
    pub(crate) tensors: usize,
    /// Vectors of a row that a thread has in registers in [`Regime::Long`] in the forward-backward
    /// pass, in addition to those that its block stages.
    pub(crate) vectors_beside: usize,
    /// Multiprocessors, and bytes of shared memory of each.
    pub(crate) multiprocessors: usize,
    pub(crate) shared_bytes: usize,
    pub(crate) target: Target,
    /// Whether all rows begin and end on 16-byte boundaries.
    pub(crate) whole: bool,
    /// Whether each row of a gradient is aligned to 16 bytes in the same way as the row that it is
    /// the gradient of.
    pub(crate) alike: bool,
    /// Whether packed rows [collide](packed::Rows::would_collide) in shared memory.
    pub(crate) collide: bool,
    /// The most threads of a block of [`Regime::ShortPeeled`] and of [`Regime::WarpPeeled`].
    pub(crate) short_peeled_block: u32,
    pub(crate) warp_peeled_block: u32,
    /// The most threads of a block of [`Regime::ShortWhole`]; 0, here and below, if there is no
    /// such kernel.
    pub(crate) short_block: u32,
    /// The most threads of a block of [`Regime::WarpWhole`].
    pub(crate) warp_block: u32,
    /// The most threads of a block of [`Regime::Registers`].
    pub(crate) max_registers_block: u32,
    /// The most threads of a block of [`Regime::Peeled`].
    pub(crate) peeled_block: u32,
    /// The most threads of a block of [`Regime::Few`].
    pub(crate) few_block: u32,
    /// The most threads of a block of [`Regime::Long`].
    pub(crate) long_block: u32,
    /// How many sums the forward pass reduces over the grid.
    pub(crate) sums: u32,
}

/// The launch of `pass` over `rows` rows of `cols` logits of `element_bytes` each: of the first
/// regime below that takes them. [`Shape`] says which rows a regime takes, and why; [`launch`], how
/// many threads and blocks it has for them.
pub(crate) fn samples(
    pass: Pass,
    rows: usize,
    cols: usize,
    element_bytes: usize,
    kernels: SamplesKernels,
) -> SamplesLaunch {
    let vectors = cols.div_ceil(16 / element_bytes).max(1);
    let shape = Shape { pass, rows, vectors, element_bytes, kernels };
    if shape.is_short_whole() {
        launch::short_whole(&shape)
    } else if shape.is_warp_whole() {
        launch::warp_whole(&shape)
    } else if shape.is_short_peeled() {
        launch::short_peeled(&shape)
    } else if shape.is_warp_peeled() {
        launch::warp_peeled(&shape)
    } else if let Some(staged) = shape.staged() {
        launch::staged(&shape, staged)
    } else if let Some((packed, device)) = shape.packed() {
        launch::packed(&shape, packed, device)
    } else if shape.is_peeled() {
        launch::peeled(&shape)
    } else if shape.is_few() {
        launch::few(&shape)
    } else if let Some((layout, device)) = shape.streamed() {
        launch::stream(&shape, &layout, device)
    } else if shape.fits_registers() {
        launch::registers(&shape)
    } else {
        launch::long(&shape)
    }
}

/// How many vectors of a row a block stages in `shared_bytes` of dynamic shared memory, after the
/// first `in_registers`, which its threads have in registers. The amount of shared memory does not
/// change the order of the sum, because a vector is read in the same turn whether it is staged or
/// not.
pub(crate) fn staged_vectors(
    cols: usize,
    element_bytes: usize,
    in_registers: u32,
    shared_bytes: u32,
) -> u32 {
    // The most vectors that a row can have, for any alignment. They are numbered from the cache
    // line that the row begins in.
    let vectors = cols / (16 / element_bytes) + LINE_VECTORS as usize - 1;
    let vectors = vectors.saturating_sub(in_registers as usize);
    vectors.min(shared_bytes as usize / 16) as u32
}

/// Whether reading the targets of `rows` rows, of `class_bytes` each, a second time takes longer
/// than launching a kernel that has nothing to do. Rows are counted in 32 bits.
pub(crate) fn is_optimistic(
    rows: usize,
    [element_bytes, class_bytes]: [usize; 2],
    multiprocessors: usize,
) -> bool {
    let least_bytes = multiprocessors * LEAST_TARGETS_OF_MULTIPROCESSOR;
    element_bytes <= attempt::MOST_ELEMENT_BYTES
        && u32::try_from(rows).is_ok()
        && rows * class_bytes >= least_bytes
}

/// The least bytes of targets per multiprocessor for [`is_optimistic`]: the least for which two
/// launches were never slower than one.
///
/// H200, 2026-11-28, forward-backward, i64 classes, ceiling ÷ ours in one launch and in two, by the
/// bytes of targets per multiprocessor:
///
/// - 32 KiB: bf16, 16 columns 0.57 and 0.58, 40 columns 0.68 and 0.68; f32, 33 columns 0.82 and
///   0.78
/// - 64 KiB: bf16, 16 columns 0.63 and 0.67, 87 columns 0.70 and 0.70; f32, 33 columns 0.87 and
///   0.87
/// - 128 KiB: bf16, 16 columns 0.67 and 0.75, 87 columns 0.71 and 0.73; f32, 33 columns 0.91 and
///   0.93
const LEAST_TARGETS_OF_MULTIPROCESSOR: usize = 64 << 10;

/// How many blocks of `threads` threads sum the class weights of `rows` targets to the normaliser,
/// by which the blocks that compute gradients divide. All other blocks wait for these, so there are
/// no more than the device has `room` for: none waits for another to end.
pub(crate) fn normaliser_blocks(rows: usize, threads: u32, room: usize) -> u32 {
    let of_threads = |targets: usize| rows.div_ceil(threads as usize * targets);
    let most = of_threads(MANY_TARGETS).clamp(NORMALISER_BLOCKS, MAX_NORMALISER_BLOCKS as usize);
    // A few targets per thread are fastest, as long as there are blocks for them.
    of_threads(NORMALISER_FLIGHT).clamp(1, most.min(room).max(1)) as u32
}

/// The blocks that sum the normaliser, and all other blocks, of the retry after an optimistic
/// launch with the given numbers of blocks, on a device that has room for `room` blocks at once. A
/// retry mostly ends at once, and then each block costs 2.5 ns (H200, 2026-11-28), so it has few
/// blocks.
pub(crate) fn retry_blocks([of_normaliser, of_rows]: [u32; 2], room: usize) -> [u32; 2] {
    // One of them adds up what the others publish.
    let most = room as u32 / 2 + 1;
    [of_normaliser.min(RETRY_NORMALISER_BLOCKS), of_rows.min(most.max(2))]
}

/// Chosen, not searched for.
const RETRY_NORMALISER_BLOCKS: u32 = 64;

/// Blocks that sum the normaliser unless there are many targets: the others can load their first
/// rows meanwhile. Chosen, not searched for.
const NORMALISER_BLOCKS: usize = 512;

/// If threads would have more targets than this, more blocks sum the normaliser. Chosen, not
/// searched for.
const MANY_TARGETS: usize = 32;
