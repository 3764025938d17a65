//! Launches of the kernels of cross-entropy: which regime takes rows of a shape, and with how many
//! threads and blocks.

use super::packed::{self, Device, Packed};
use super::{Launch, MANY_BLOCKS, Pass, RowsLaunch, staged, stream};
use kernels_gpu::abi::{
    ADDER_PERIOD, LINE_VECTORS, MAX_NORMALISER_BLOCKS, MAX_PARTIALS, NORMALISER_FLIGHT, ROWS_BLOCK,
    STATS_PARTS, StreamArgs, TileArgs, grid_of_workers, max_workers, vectors_within,
    words_of_worker,
};
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
    /// The tiles of packed rows; see [`packed`].
    pub(crate) tile: TileArgs,
    /// How streamed rows are shared; see [`stream`].
    pub(crate) stream: StreamArgs,
}

/// The last rows of a pass, which are split into parts with a block each; see
/// [`CrossEntropyArgs`](kernels_gpu::abi::CrossEntropyArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    /// How many rows are split.
    pub(crate) rows: u32,
    /// Parts per split row.
    pub(crate) parts: NonZeroU32,
    /// The first word of the workspace for what the parts publish.
    pub(crate) at: u32,
}

impl Tail {
    pub(super) const NONE: Self = Tail { rows: 0, parts: NonZeroU32::MIN, at: 0 };

    /// The tail of `rows` rows of `vectors` vectors each. A worker has `threads` threads and
    /// publishes `words` words for `sums` sums.
    fn new(rows: usize, vectors: usize, threads: usize, words: u32, sums: u32) -> Self {
        let parts = (vectors / (FLIGHT * threads)).min(TAIL_PARTS);
        if rows < 2 * TAIL_ROWS || parts < 2 {
            return Tail::NONE;
        }
        let workers = (rows + TAIL_ROWS * (parts - 1)) as u32;
        // Behind what the workers publish, and what the adder blocks sum of it.
        let at = words * workers + sums * workers.div_ceil(ADDER_PERIOD - 1);
        let at = at.next_multiple_of(STATS_PARTS);
        let part_words = (TAIL_ROWS * parts) as u32 * STATS_PARTS;
        if at + part_words > MAX_PARTIALS {
            return Tail::NONE;
        }
        let parts = NonZeroU32::new(parts as u32).expect("two at least");
        Tail { rows: TAIL_ROWS as u32, parts, at }
    }

    /// Splits all of a few rows into parts that are long enough for a block, or none if the rows
    /// are too short for two parts.
    fn of_all(rows: usize, vectors: usize, words: u32, sums: u32) -> Self {
        // A part takes the words that its worker publishes, no more than as many sums by an adder
        // block, and the statistics of its part of the row.
        let room = MAX_PARTIALS as usize / (words + sums + STATS_PARTS) as usize;
        let parts = (vectors / PART_VECTORS).min(room / rows.max(1));
        if rows == 0 || parts < 2 {
            return Tail::NONE;
        }
        let workers = (rows * parts) as u32;
        let at = words * workers + sums * workers.div_ceil(ADDER_PERIOD - 1);
        let parts = NonZeroU32::new(parts as u32).expect("two at least");
        Tail { rows: rows as u32, parts, at: at.next_multiple_of(STATS_PARTS) }
    }
}

/// The fewest vectors of a part if all rows are split: 32 KiB, twice what a block has in flight.
/// Chosen, not searched for: with it, 523 rows of 128256 f32 reach 0.94 of the ceiling, and 64 rows
/// of 262144 reach 0.79 (H200, 2026-11-24).
const PART_VECTORS: usize = 2048;

/// How many rows at the end of a pass are split. If each had one block, the blocks that finish last
/// would leave most of the memory bandwidth unused. On an H200, twice as many rows are no better.
const TAIL_ROWS: usize = 132 * 2;
/// The most parts of such a row.
const TAIL_PARTS: usize = 4;

/// Which threads share a row, and where its logits are kept between reading and use.
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
    /// A block per row, register-resident.
    Registers,
    /// A block per row, register-resident, for the forward pass over few rows: a thread per vector,
    /// which has the lowest latency.
    Few,
    /// A block per row, which it stages in shared memory, and later its exponentials: loss and
    /// gradients in f64.
    Staged,
    /// A block or several per row, too long for registers alone.
    Long,
    /// A warp per row, or equal shares of all rows for all blocks, streamed through rings of tiles
    /// in shared memory.
    Stream,
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
    /// Whether rows are staged that could be packed or held in registers: in f64, whose
    /// exponentials take so long that they should be computed once, and with smoothing, whose
    /// packed rows look up each class weight by itself. H200, 2026-11-26, forward-backward with
    /// smoothing and weights, ceiling ÷ ours packed or with a block per row, and staged: f32, 1000
    /// columns 0.50 and 0.54; bf16, 1500 columns 0.24 and 0.38.
    pub(crate) prefers_staged: bool,
    /// Whether all rows begin and end on 16-byte boundaries.
    pub(crate) whole: bool,
    /// The most threads of a block of [`Regime::ShortWhole`]; 0, here and below, if there is no
    /// such kernel.
    pub(crate) short_block: u32,
    /// The most threads of a block of [`Regime::Registers`].
    pub(crate) max_registers_block: u32,
    /// The most threads of a block of [`Regime::Few`].
    pub(crate) few_block: u32,
    /// The most threads of a block of [`Regime::Long`].
    pub(crate) long_block: u32,
    /// How many sums the forward pass reduces over the grid.
    pub(crate) sums: u32,
}

/// How many threads are resident on an H100 at a time. If blocks have more than 256 threads, the
/// plan counts on half as many.
const RESIDENT_THREADS: usize = 132 * 2048;

/// Vectors that a thread has in flight in kernels whose rows are not register-resident.
const FLIGHT: usize = 4;

/// The launch of `pass` over `rows` rows of `cols` logits of `element_bytes` each.
///
/// Long rows are split over several blocks in the forward pass, if there are few rows or at the end
/// of the pass, and in the backward pass, so that a part fits into the registers of a block. They
/// are not split in the forward-backward pass.
pub(crate) fn samples(
    pass: Pass,
    rows: usize,
    cols: usize,
    element_bytes: usize,
    kernels: SamplesKernels,
) -> SamplesLaunch {
    let vectors = cols.div_ceil(16 / element_bytes).max(1);
    let backward = pass == Pass::Backward;
    let threads_for_row = vectors.div_ceil(kernels.per_thread);
    let few_rows = ADDER_PERIOD as usize;
    // The workspace limits how many workers can publish their sums, so how many rows can have a
    // block each.
    let (min_rows, sums) =
        if pass == Pass::Forward { (few_rows + 1, kernels.sums) } else { (0, 2) };
    let max_blocks = max_workers(words_of_worker(sums, element_bytes)) as usize;
    let block_per_row = min_rows..=max_blocks;
    let per_thread = if pass == Pass::ForwardBackward {
        kernels.vectors_with_gradients
    } else {
        kernels.per_thread
    };
    let registers_block = vectors.div_ceil(per_thread).next_multiple_of(32);
    let one_vector_block = vectors.next_multiple_of(32);
    let resident_threads =
        if one_vector_block <= 256 { RESIDENT_THREADS } else { RESIDENT_THREADS / 2 };
    // The kernels check only the last ones of a thread's vectors for being beyond the row: the
    // first `vectors_within(per_thread)` of every thread have to be within it.
    let fills = |per_thread, group_threads| {
        kernels.whole && vectors_within(per_thread) * group_threads <= vectors
    };
    let takes_few = pass == Pass::Forward
        && kernels.whole
        && one_vector_block <= kernels.few_block as usize
        && (1..=few_rows.min(resident_threads / one_vector_block)).contains(&rows);
    // At least two threads: the kernels have shared memory for the rows of 128 row groups a block.
    let warp_threads = threads_for_row.next_power_of_two().max(2);
    let groups = kernels.short_block as usize / warp_threads;
    let is_short_whole = groups > 0
        // Sums of f64 that lag take fewer instructions than a row in registers does.
        && !(element_bytes == 8 && pass == Pass::Forward)
        && threads_for_row <= 32
        && vectors * 16 >= SHORT_WHOLE_MIN_BYTES
        && fills(kernels.per_thread, warp_threads)
        && (backward || rows.div_ceil(groups) <= max_blocks);
    let staged = kernels
        .staged
        .and_then(|(device, most_threads)| staged::plan(rows, vectors, device, most_threads));
    let fits_registers = registers_block <= kernels.max_registers_block as usize
        && fills(per_thread, registers_block)
        && (backward || block_per_row.contains(&rows));
    let prefers_registers = fits_registers && vectors <= MOST_REGISTER_VECTORS;
    let regime = if is_short_whole {
        Regime::ShortWhole
    } else if staged.is_some()
        && (kernels.prefers_staged || !prefers_registers && kernels.packed.is_none())
    {
        Regime::Staged
    } else if let Some(packed) = kernels.packed
        && (threads_for_row <= 32 || !takes_few)
    {
        return packed_samples(pass, rows, packed);
    } else if takes_few {
        Regime::Few
    } else if fits_registers {
        Regime::Registers
    } else {
        Regime::Long
    };
    let is_streamed = match regime {
        Regime::Registers => rows >= STREAM_MIN_ROWS,
        Regime::Long => true,
        _ => false,
    };
    if let Some((layout, device)) = kernels.stream
        && pass == Pass::Forward
        && is_streamed
    {
        let (launch, stream) = stream::layout(rows, &layout, device);
        let one = NonZeroU32::MIN;
        return SamplesLaunch {
            rows: RowsLaunch { launch, group_threads: one, splits: one },
            regime: Regime::Stream,
            rows_of_block: one,
            tail: Tail::NONE,
            tile: TileArgs::default(),
            stream,
        };
    }
    let max_threads = match regime {
        Regime::Packed | Regime::LaneRows | Regime::WideRows => unreachable!("planned above"),
        Regime::ShortWhole => kernels.short_block,
        Regime::Registers => kernels.max_registers_block,
        Regime::Few => kernels.few_block,
        Regime::Long => kernels.long_block,
        Regime::Staged => staged.map_or(0, |staged| staged.threads),
        Regime::Stream => unreachable!("planned above"),
    } as usize;
    let mut splits = 1;
    let (threads, group_threads) = match regime {
        Regime::Packed | Regime::LaneRows | Regime::WideRows => unreachable!("planned above"),
        Regime::ShortWhole => (max_threads, warp_threads),
        Regime::Few => (one_vector_block, one_vector_block),
        Regime::Long if pass == Pass::Forward => {
            // As many warps as have all of a row's vectors in flight at once.
            let warps = vectors.div_ceil(32 * FLIGHT).min(max_threads / 32);
            let threads = warps * 32;
            (threads, threads)
        }
        Regime::Long if backward => {
            // Parts that are register-resident in a block, and equal up to the size of a warp's
            // share. Vectors are numbered from the cache line that the row begins in, so those of
            // the line that are before the row count too.
            let vectors = vectors + LINE_VECTORS as usize - 1;
            splits = vectors.div_ceil(kernels.per_thread * max_threads);
            let threads = vectors.div_ceil(splits * kernels.per_thread).next_multiple_of(32);
            (threads, threads)
        }
        Regime::Long => {
            let threads = vectors.div_ceil(STAGED_PER_THREAD).next_multiple_of(32).min(max_threads);
            (threads, threads)
        }
        Regime::Registers => (registers_block, registers_block),
        Regime::Staged => (max_threads, max_threads),
        Regime::Stream => unreachable!("planned above"),
    };
    let groups = threads / group_threads;
    let (blocks, rows_of_block) = match regime {
        _ if backward || splits > 1 => ((rows * splits).div_ceil(groups).max(1), 1),
        Regime::Registers | Regime::Few => (grid_of_workers(rows as u32) as usize, 1),
        // A block takes consecutive rows: one per row group, or more if there would be too many
        // blocks.
        _ => {
            let rows_of_block = rows.div_ceil(groups).div_ceil(max_blocks).max(1) * groups;
            (grid_of_workers(rows.div_ceil(rows_of_block) as u32) as usize, rows_of_block)
        }
    };
    let (mut tail, mut blocks) = (Tail::NONE, blocks);
    let is_row_per_block = regime == Regime::Long && pass == Pass::Forward && rows_of_block == 1;
    if is_row_per_block && group_threads == max_threads {
        let words = words_of_worker(sums, element_bytes);
        tail = if rows < MANY_BLOCKS {
            Tail::of_all(rows, vectors, words, sums)
        } else {
            Tail::new(rows, vectors, threads, words, sums)
        };
        blocks = grid_of_workers(rows as u32 + tail.rows * (tail.parts.get() - 1)) as usize;
    }
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    // For the logit of the target's class: a block stages the vector that contains it. In the
    // forward pass of `ShortWhole`, each thread stages all of its vectors.
    let shared_bytes = match regime {
        Regime::Registers => 16,
        Regime::ShortWhole if pass == Pass::Forward => {
            16 * kernels.per_thread * ROWS_BLOCK as usize
        }
        Regime::Staged => staged.map_or(0, |staged| staged.shared_bytes),
        _ => 0,
    } as u32;
    let launch =
        Launch { blocks: blocks as u32, threads: threads as u32, shared_bytes, cooperative: false };
    let rows = RowsLaunch { launch, group_threads: number(group_threads), splits: number(splits) };
    let (tile, stream) = (TileArgs::default(), StreamArgs::default());
    SamplesLaunch { rows, regime, rows_of_block: number(rows_of_block), tail, tile, stream }
}

/// The most vectors of a row that loss and gradients have in registers where it could be staged in
/// shared memory, in f32 and 16 bits. H200, 2026-11-26, forward-backward, ceiling ÷ ours in
/// registers and staged: bf16, 8192 columns 0.97 and 0.95, 12128 columns 0.90 and 0.95; f32, 7001
/// columns 0.95 and 0.94, 12000 columns 0.86 and 0.95.
const MOST_REGISTER_VECTORS: usize = 1024;

/// The fewest rows that are streamed although they would fit into a block's registers. Fewer rows
/// are too few for a warp per row. Chosen by the number of warps on a device, not measured on
/// either side of it.
const STREAM_MIN_ROWS: usize = 2048;

/// The fewest bytes of a row for [`Regime::ShortWhole`]; shorter rows are packed. H200, ceiling ÷
/// ours, in registers and packed: 262144×128 f32 forward 0.95 and 0.92, 65536×1000 bf16 forward
/// 0.83 and 0.69; 4194304×32 f32 0.75 and 0.90.
const SHORT_WHOLE_MIN_BYTES: usize = 512;

/// The launch of a pass over packed rows.
fn packed_samples(pass: Pass, rows: usize, (packed, device): (Packed, Device)) -> SamplesLaunch {
    let workers = packed.blocks(pass, rows, device);
    let blocks = match pass {
        Pass::Backward => workers.max(1),
        Pass::Forward | Pass::ForwardBackward => grid_of_workers(workers as u32) as usize,
    };
    let one = NonZeroU32::MIN;
    SamplesLaunch {
        rows: RowsLaunch { launch: packed.launch(blocks), group_threads: one, splits: one },
        regime: packed.regime,
        rows_of_block: one,
        tail: Tail::NONE,
        tile: packed.args_of(rows),
        stream: StreamArgs::default(),
    }
}

/// Vectors of a row per thread of a block that has some in registers and stages the others in
/// shared memory. On an H200, 1024 threads have room for that many, as one block or as two blocks
/// of 512.
const STAGED_PER_THREAD: usize = 12;

/// How many vectors of a row a block stages in `shared_bytes` of dynamic shared memory, behind the
/// first `in_registers`, which its threads have in registers. How much shared memory a device has
/// does not change the order of the sum: a vector is read in the same turn whether it is staged or
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

/// How many blocks of `threads` threads sum the class weights of `rows` targets to the normaliser,
/// which the blocks that compute gradients divide by.
pub(crate) fn normaliser_blocks(rows: usize, threads: u32) -> u32 {
    // All other blocks wait for them, so a few targets per thread are fastest.
    rows.div_ceil(threads as usize * NORMALISER_FLIGHT).clamp(1, MAX_NORMALISER_BLOCKS as usize)
        as u32
}
