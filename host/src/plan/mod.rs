//! How work is cut into blocks. Pure functions of sizes and of what a device has room for: the same
//! inputs are summed in the same order on every device of one model, and where rows are not packed
//! on every device.

pub(crate) mod packed;
mod stream;

use kernels_gpu::abi::{
    ADDER_PERIOD, CACHE_LINE, LINE_VECTORS, MAX_NORMALISER_BLOCKS, MAX_PARTIALS, NORMALISER_FLIGHT,
    ROWS_BLOCK, STATS_PARTS, StreamArgs, TileArgs, chunk_shared_bytes, grid_of_workers, max_blocks,
    max_workers, reduction, vectors_within, words_of_worker,
};
use packed::{Device, Packed};
use std::num::NonZeroU32;

/// The shape of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Launch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Whether blocks wait for each other in both directions, so that all have to be resident at a
    /// time.
    pub(crate) cooperative: bool,
}

/// How the kernels for rows share the work; see [`PairwiseArgs`](kernels_gpu::abi::PairwiseArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowsLaunch {
    pub(crate) launch: Launch,
    pub(crate) group_threads: NonZeroU32,
    pub(crate) splits: NonZeroU32,
}

/// What a kernel does in its one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// Reads, and sums.
    Forward,
    /// Reads and writes.
    Backward,
    /// All of it.
    ForwardBackward,
}

/// Groups of 16 bytes up to which an input is small: a block for each multiprocessor comes before a
/// long one for any.
const SMALL: usize = 256 << 10;

/// The dense kernels of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dense {
    /// Threads of a block where there is much to do.
    pub(crate) threads: u32,
    /// Whether the arithmetic takes about as long as the memory: what a thread begins with shows
    /// then.
    pub(crate) heavy: bool,
}

/// The most threads of all blocks, by pass: where memory takes longest; where arithmetic takes
/// about as long, of elements of 32 bits and more; the same of 16. Measured on an H200 (`cargo
/// xtask bench`), but not for float64.
#[rustfmt::skip]
const MOST: [(Pass, [usize; 3]); 3] = [
    // A sum wants blocks that live long enough to pay for their end, ...
    (Pass::Forward,         [132 * 64 * 512,  132 * 64 * 512, 132 * 64 * 512]),
    // ... writes want blocks that begin in the order of memory, as the hardware starts them. With
    // much arithmetic, f32 is within half a point of the best from 80 to 112; bf16 is the slower
    // the more.
    (Pass::ForwardBackward, [132 * 256 * 512, 132 * 96 * 512, 132 * 64 * 512]),
    (Pass::Backward,        [usize::MAX,      usize::MAX,     usize::MAX]),
];

/// The launch of a dense kernel over `len` elements of `element_bytes` each. At least one block,
/// even for nothing: it writes the loss.
pub(crate) fn elementwise(pass: Pass, len: usize, element_bytes: usize, dense: Dense) -> Launch {
    let Dense { threads, heavy } = dense;
    let vectors = (len / (16 / element_bytes)).max(1);
    if vectors <= SMALL {
        let threads = threads.min(256);
        let blocks = vectors.div_ceil(threads as usize) as u32;
        return Launch { blocks, threads, shared_bytes: 0, cooperative: false };
    }
    // What sums and writes elements of 16 bits needs so many registers that only short blocks
    // overlap.
    let short = pass == Pass::ForwardBackward && element_bytes == 2;
    let threads = if short { threads.min(256) } else { threads };
    // Groups that a thread of the kernels has in flight, at most: more would leave blocks without a
    // tile.
    let flight = if pass == Pass::ForwardBackward { 4 } else { 2 };
    let tiles = vectors.div_ceil(threads as usize * flight);
    let &(_, most) =
        MOST.iter().find(|(of, _)| *of == pass).expect("there is a line for each pass");
    let column = if heavy { 1 + usize::from(element_bytes == 2) } else { 0 };
    let mut most = most[column] / threads as usize;
    if pass != Pass::Backward {
        most = most.min(max_blocks(1) as usize);
    }
    let blocks = tiles.min(most).min(i32::MAX as usize) as u32;
    Launch { blocks, threads, shared_bytes: 0, cooperative: false }
}

/// Blocks that keep every multiprocessor busy: fewer rows than that are split.
const BUSY: usize = 132 * 8;
/// Groups of 16 bytes that a part of a row has at least.
const LEAST_PART: usize = 4 * ROWS_BLOCK as usize;

/// The launch of a kernel for `rows` rows of `cols` elements of `element_bytes` each. Short rows
/// get a few threads each, longer ones a warp, long ones a block, and long ones that are few
/// several blocks.
pub(crate) fn rows(kind: u32, rows: usize, cols: usize, element_bytes: usize) -> RowsLaunch {
    let vectors = cols.div_ceil(16 / element_bytes).max(1);
    let threads = ROWS_BLOCK as usize;
    let group_threads = match vectors {
        0..=32 => vectors.next_power_of_two(),
        33..=256 => 32,
        _ => threads,
    };
    let mut splits = 1;
    if group_threads == threads && rows < BUSY {
        splits = BUSY.div_ceil(rows.max(1)).min(vectors / LEAST_PART).max(1);
        if kind == reduction::ROWS {
            splits = splits.min(MAX_PARTIALS as usize / rows.max(1));
        }
    }
    let blocks = (rows * splits).div_ceil(threads / group_threads).max(1);
    let most = if kind == reduction::SCALAR { 132 * 64 } else { i32::MAX as usize };
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    RowsLaunch {
        launch: Launch {
            blocks: blocks.min(most) as u32,
            threads: ROWS_BLOCK,
            shared_bytes: 0,
            cooperative: false,
        },
        group_threads: number(group_threads),
        splits: number(splits),
    }
}

/// Bytes of the terms of a chunk, at most. What a thread does once a chunk, to find its part and to
/// add up, is as much as it does for several vectors, so a chunk gives it some. No other sizes but
/// 16 and 32 KiB were tried, and those with other changes between them.
const CHUNK_BYTES: usize = 32 << 10;

/// Bytes of shared memory that a block has without being asked for more.
const SHARED_BYTES: usize = 48 << 10;

/// Rows of a chunk, and the launch of a block for each, of `rows` rows of `cols` elements without
/// gaps; none of rows that are longer than a chunk.
pub(crate) fn chunks(rows: usize, cols: usize, element_bytes: usize) -> Option<(u32, RowsLaunch)> {
    let elements = CHUNK_BYTES / if element_bytes == 8 { 8 } else { 4 };
    if rows == 0 || cols == 0 || cols > elements {
        return None;
    }
    // Fewer where rows are so short that their scales take as much, and where a block for each
    // multiprocessor's share is worth more than a long one for any.
    let one_row =
        chunk_shared_bytes(1, cols, element_bytes) - chunk_shared_bytes(0, cols, element_bytes);
    let room = SHARED_BYTES - chunk_shared_bytes(0, cols, element_bytes);
    let chunk_rows = (elements / cols).min(room / one_row).min(rows.div_ceil(BUSY));
    let blocks = i32::try_from(rows.div_ceil(chunk_rows)).ok()? as u32;
    // So many threads of a row group that each sums a few terms; the whole block of what is nearly a
    // chunk.
    let group_threads = match cols {
        0..=1024 => (cols / CHUNK_TERMS).next_power_of_two().min(32) as u32,
        _ => ROWS_BLOCK,
    };
    let shared_bytes = chunk_shared_bytes(chunk_rows, cols, element_bytes) as u32;
    let launch = Launch { blocks, threads: ROWS_BLOCK, shared_bytes, cooperative: false };
    let group_threads = NonZeroU32::new(group_threads).expect("at least one");
    Some((chunk_rows as u32, RowsLaunch { launch, group_threads, splits: NonZeroU32::MIN }))
}

/// Terms of a row that a thread sums, about, where there are threads for it. This, and from how many
/// columns on a block sums a row, was chosen and not measured.
const CHUNK_TERMS: usize = 8;

/// A launch of a kernel of cross-entropy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SamplesLaunch {
    pub(crate) rows: RowsLaunch,
    pub(crate) form: Regime,
    /// Rows that a block of the passes that sum takes, of grids of `abi::grid_of_workers`.
    pub(crate) rows_of_block: NonZeroU32,
    /// Of grids of which a block takes a row, the last of them.
    pub(crate) tail: Tail,
    /// Of packed rows.
    pub(crate) tile: TileArgs,
    /// Of streamed rows.
    pub(crate) stream: StreamArgs,
}

/// The last rows of a pass, which blocks share; see
/// [`CrossEntropyArgs`](kernels_gpu::abi::CrossEntropyArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    pub(crate) rows: u32,
    pub(crate) parts: NonZeroU32,
    /// The first word of the workspace that is theirs.
    pub(crate) at: u32,
}

impl Tail {
    const NONE: Self = Tail { rows: 0, parts: NonZeroU32::MIN, at: 0 };

    /// Of `rows` rows of so many `vectors`, of which each block of `threads` leaves `words` for
    /// `sums` sums.
    fn new(rows: usize, vectors: usize, threads: usize, words: u32, sums: u32) -> Self {
        let parts = (vectors / (FLIGHT * threads)).min(TAIL_PARTS);
        if rows < 2 * TAIL_ROWS || parts < 2 {
            return Tail::NONE;
        }
        let pieces = (rows + TAIL_ROWS * (parts - 1)) as u32;
        // Behind what the pieces leave, and the sums of their stretches.
        let at = words * pieces + sums * pieces.div_ceil(ADDER_PERIOD - 1);
        let at = at.next_multiple_of(STATS_PARTS);
        let of_parts = (TAIL_ROWS * parts) as u32 * STATS_PARTS;
        if at + of_parts > MAX_PARTIALS {
            return Tail::NONE;
        }
        let parts = NonZeroU32::new(parts as u32).expect("two at least");
        Tail { rows: TAIL_ROWS as u32, parts, at }
    }
}

impl Tail {
    /// Of few rows, which are all shared, in parts that a block is worth; or of none, if they are
    /// too short for two.
    fn of_all(rows: usize, vectors: usize, words: u32, sums: u32) -> Self {
        let worth = vectors / PART_GROUPS;
        // For each part what a piece leaves, with the sums of stretches, and what it has of its
        // row.
        let room = MAX_PARTIALS as usize / (words + sums + STATS_PARTS) as usize;
        let parts = worth.min(room / rows.max(1));
        if rows == 0 || parts < 2 {
            return Tail::NONE;
        }
        let pieces = (rows * parts) as u32;
        let at = words * pieces + sums * pieces.div_ceil(ADDER_PERIOD - 1);
        let parts = NonZeroU32::new(parts as u32).expect("two at least");
        Tail { rows: rows as u32, parts, at: at.next_multiple_of(STATS_PARTS) }
    }
}

/// Groups of 16 bytes of a part of a row that is shared by many blocks: 32 KiB, two times what a
/// block has in flight. Chosen, not searched for: with it 523 rows of 128256 f32 are at 0.94 of the
/// ceiling, and 64 of 262144 at 0.79 (H200, 2026-11-24).
const PART_GROUPS: usize = 2048;

/// How many rows are shared at the end of a pass, and by how many blocks at most: where each is a
/// block's, those that end last leave memory with too little to do. On an H200, twice as many rows
/// are no better.
const TAIL_ROWS: usize = 132 * 2;
const TAIL_PARTS: usize = 4;

/// Who takes a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regime {
    /// A lane or several of a warp, which has staged it in shared memory.
    Packed,
    /// The same, but a lane has a row, in registers.
    LaneRows,
    /// A row group of a warp, which holds it in registers: rows that are whole vectors.
    ShortWhole,
    /// A block, which holds it in registers.
    Registers,
    /// The same of few rows, of which the loss alone is wanted: of as many threads as are soonest
    /// done.
    Few,
    /// Warps, a block or several, which do not.
    Long,
    /// A warp, or blocks that have equal shares of all rows, which stream it through shared memory.
    Stream,
}

/// What the kernels of a pass of cross-entropy can do, and may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SamplesKernels {
    /// Groups of 16 bytes of a row that a thread holds.
    pub(crate) per_thread: usize,
    /// The same, of a row of which a block holds the exponentials too.
    pub(crate) vectors_with_gradients: usize,
    /// How rows are packed into tiles, if they are short enough, and for which device.
    pub(crate) packed: Option<(Packed, Device)>,
    /// The same, if a lane has registers for a row.
    pub(crate) lane_rows: Option<(Packed, Device)>,
    /// Long rows, as they lie, and the device, if there is a kernel that streams them.
    pub(crate) stream: Option<(packed::Rows, Device)>,
    /// Whether rows lie from one boundary of 16 bytes to another.
    pub(crate) whole: bool,
    /// The most threads of a block, by form.
    pub(crate) short_block: u32,
    pub(crate) held_block: u32,
    pub(crate) few_block: u32,
    pub(crate) long_block: u32,
    /// Sums of the forward pass.
    pub(crate) sums: u32,
}

/// Threads for which a device has room, of which larger blocks than 256 take no more than half.
const ROOM: usize = 132 * 2048;

/// Groups of 16 bytes that a thread of a kernel that holds no row has in flight.
const FLIGHT: usize = 4;

/// The launch of cross-entropy's `pass` over rows of `cols` logits of `element_bytes` each. Rows
/// that are long are split over blocks where they are few, and in the backward pass, of which
/// blocks hold what they compute; but not in the pass that does all.
pub(crate) fn samples(
    pass: Pass,
    rows: usize,
    cols: usize,
    element_bytes: usize,
    kernels: SamplesKernels,
) -> SamplesLaunch {
    let vectors = cols.div_ceil(16 / element_bytes).max(1);
    let backward = pass == Pass::Backward;
    let of_group = vectors.div_ceil(kernels.per_thread);
    let few = ADDER_PERIOD as usize;
    // Those of which there is room for what blocks leave.
    let (least, sums) = if pass == Pass::Forward { (few + 1, kernels.sums) } else { (0, 2) };
    let most_pieces = max_workers(words_of_worker(sums, element_bytes)) as usize;
    let held_rows = least..=most_pieces;
    let of_both = pass == Pass::ForwardBackward;
    let per_thread = if of_both { kernels.vectors_with_gradients } else { kernels.per_thread };
    let of_block = vectors.div_ceil(per_thread).next_multiple_of(32);
    let of_few = vectors.next_multiple_of(32);
    let room = if of_few <= 256 { ROOM } else { ROOM / 2 };
    // Of a thread's vectors, none but the last may be beyond the row.
    let fills = |per_thread, group_threads| {
        kernels.whole && vectors_within(per_thread) * group_threads <= vectors
    };
    let is_few = pass == Pass::Forward
        && kernels.whole
        && of_few <= kernels.few_block as usize
        && (1..=few.min(room / of_few)).contains(&rows);
    // Two threads at least: one for each end of the row.
    let warp_threads = of_group.next_power_of_two().max(2);
    let groups = kernels.short_block as usize / warp_threads;
    let is_short_whole = of_group <= 32
        && vectors * 16 >= SHORT_WHOLE_BYTES
        && fills(kernels.per_thread, warp_threads)
        && (backward || rows.div_ceil(groups) <= most_pieces);
    let form = if is_short_whole {
        Regime::ShortWhole
    } else if let Some(packed) = kernels.packed
        && (of_group <= 32 || !is_few)
    {
        return match kernels.lane_rows {
            Some(packed) => packed_samples(pass, Regime::LaneRows, rows, packed),
            None => packed_samples(pass, Regime::Packed, rows, packed),
        };
    } else if is_few {
        Regime::Few
    } else if of_block <= kernels.held_block as usize
        && fills(per_thread, of_block)
        && (backward || held_rows.contains(&rows))
    {
        Regime::Registers
    } else {
        Regime::Long
    };
    let is_streamed = match form {
        Regime::Registers => rows >= STREAM_LEAST_ROWS,
        Regime::Long => true,
        _ => false,
    };
    if let Some((lie, device)) = kernels.stream
        && pass == Pass::Forward
        && is_streamed
    {
        let (launch, stream) = stream::layout(rows, &lie, device);
        let one = NonZeroU32::MIN;
        return SamplesLaunch {
            rows: RowsLaunch { launch, group_threads: one, splits: one },
            form: Regime::Stream,
            rows_of_block: one,
            tail: Tail::NONE,
            tile: TileArgs::default(),
            stream,
        };
    }
    let most = match form {
        Regime::Packed | Regime::LaneRows => unreachable!("planned above"),
        Regime::ShortWhole => kernels.short_block,
        Regime::Registers => kernels.held_block,
        Regime::Few => kernels.few_block,
        Regime::Long => kernels.long_block,
        Regime::Stream => unreachable!("planned above"),
    } as usize;
    let mut splits = 1;
    let (threads, group_threads) = match form {
        Regime::Packed | Regime::LaneRows => unreachable!("planned above"),
        Regime::ShortWhole => (most, warp_threads),
        Regime::Few => (of_few, of_few),
        Regime::Long if pass == Pass::Forward => {
            // Warps that have all of a row's vectors in flight at once.
            let warps = vectors.div_ceil(32 * FLIGHT).next_power_of_two().min(most / 32);
            let threads = warps * 32;
            (threads, threads)
        }
        Regime::Long if backward => {
            // Parts that a block holds, as even as warps can; what is missing in the row's first
            // line takes room.
            let vectors = vectors + LINE_VECTORS as usize - 1;
            splits = vectors.div_ceil(kernels.per_thread * most);
            let threads = vectors.div_ceil(splits * kernels.per_thread).next_multiple_of(32);
            (threads, threads)
        }
        Regime::Long => {
            let threads = vectors.div_ceil(KEPT).next_multiple_of(32).min(most);
            (threads, threads)
        }
        Regime::Registers => (of_block, of_block),
        Regime::Stream => unreachable!("planned above"),
    };
    let groups = threads / group_threads;
    let (blocks, rows_of_block) = match form {
        _ if backward || splits > 1 => ((rows * splits).div_ceil(groups).max(1), 1),
        Regime::Registers | Regime::Few => (grid_of_workers(rows as u32) as usize, 1),
        // As many rows as a block has row groups, in the order of memory; more where there are too many
        // blocks.
        Regime::ShortWhole | Regime::Packed | Regime::LaneRows | Regime::Long | Regime::Stream => {
            let rows_of_block = rows.div_ceil(groups).div_ceil(most_pieces).max(1) * groups;
            (grid_of_workers(rows.div_ceil(rows_of_block) as u32) as usize, rows_of_block)
        }
    };
    let (mut tail, mut blocks) = (Tail::NONE, blocks);
    let takes_one = form == Regime::Long && pass == Pass::Forward && rows_of_block == 1;
    if takes_one && group_threads == most {
        let words = words_of_worker(sums, element_bytes);
        tail = if rows < BUSY {
            Tail::of_all(rows, vectors, words, sums)
        } else {
            Tail::new(rows, vectors, threads, words, sums)
        };
        blocks = grid_of_workers(rows as u32 + tail.rows * (tail.parts.get() - 1)) as usize;
    }
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    // A block that holds a row keeps the vector of its class, row groups keep theirs.
    let shared_bytes = match form {
        Regime::Registers => 16,
        Regime::ShortWhole if pass == Pass::Forward => {
            16 * kernels.per_thread * ROWS_BLOCK as usize
        }
        _ => 0,
    } as u32;
    let launch =
        Launch { blocks: blocks as u32, threads: threads as u32, shared_bytes, cooperative: false };
    let rows = RowsLaunch { launch, group_threads: number(group_threads), splits: number(splits) };
    let (tile, stream) = (TileArgs::default(), StreamArgs::default());
    SamplesLaunch { rows, form, rows_of_block: number(rows_of_block), tail, tile, stream }
}

/// Of rows that a block has registers for, how many have to be there to be streamed instead: fewer
/// are too few for a warp each. Chosen by the number of warps on a device, not measured on either
/// side of it.
const STREAM_LEAST_ROWS: usize = 2048;

/// From how many bytes on rows that are whole vectors are in a warp's registers. H200, ceiling ÷
/// ours, registers and packed: 262144×128 f32 forward 0.95 and 0.92, 65536×1000 bf16 forward 0.83
/// and 0.69; 4194304×32 f32 0.75 and 0.90.
const SHORT_WHOLE_BYTES: usize = 512;

/// The launch of a pass over packed rows.
fn packed_samples(
    pass: Pass,
    form: Regime,
    rows: usize,
    (packed, device): (Packed, Device),
) -> SamplesLaunch {
    let pieces = packed.blocks(pass, rows, device);
    let blocks = match pass {
        Pass::Backward => pieces.max(1),
        Pass::Forward | Pass::ForwardBackward => grid_of_workers(pieces as u32) as usize,
    };
    let one = NonZeroU32::MIN;
    SamplesLaunch {
        rows: RowsLaunch { launch: packed.launch(blocks), group_threads: one, splits: one },
        form,
        rows_of_block: one,
        tail: Tail::NONE,
        tile: packed.args_of(rows),
        stream: StreamArgs::default(),
    }
}

/// Groups of 16 bytes of a row for each thread of a block that holds some and keeps the others in
/// shared memory: 1024 threads have room for as many on an H200, and so have two blocks of half as
/// many.
const KEPT: usize = 12;

/// Groups of 16 bytes of a row that a block keeps in `shared_bytes` of dynamic shared memory,
/// behind the first `in registers`. How much a device has does not change in what order a row is summed:
/// whoever keeps a vector reads it at the same turn.
pub(crate) fn staged_vectors(
    cols: usize,
    element_bytes: usize,
    per_thread: u32,
    shared_bytes: u32,
) -> u32 {
    // A row has no more vectors, however it lies; the first may lie in a line that begins before it.
    let vectors = cols / (16 / element_bytes) + LINE_VECTORS as usize - 1;
    let vectors = vectors.saturating_sub(per_thread as usize);
    vectors.min(shared_bytes as usize / 16) as u32
}

/// The second-level cache of a device, and what shares it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub(crate) bytes: usize,
    pub(crate) multiprocessors: usize,
}

/// What a block asks for into the second-level cache; see
/// [`CrossEntropyArgs`](kernels_gpu::abi::CrossEntropyArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ahead {
    pub(crate) rows: u32,
    pub(crate) bytes: u32,
}

/// What the blocks of a pass over rows of `row_bytes` ask for ahead of their rows. It does not
/// change in what order anything is summed. A pass that only reads asks for nothing: what registers
/// ask for is enough, and through the cache it is slower.
pub(crate) fn ahead(
    pass: Pass,
    plan: &SamplesLaunch,
    row_bytes: usize,
    element_bytes: usize,
    cache: Cache,
) -> Ahead {
    let SamplesLaunch { rows: RowsLaunch { launch, .. }, form, .. } = *plan;
    let none = Ahead { rows: 0, bytes: 0 };
    if row_bytes < CACHE_LINE as usize || pass == Pass::Forward {
        return none;
    }
    // Rows that are in the cache before they are read: as many as are a part of it.
    let part = |of| Ahead { rows: (cache.bytes / of / row_bytes) as u32, bytes: row_bytes as u32 };
    // On an H200, 5 to 13 MB do as well.
    let whole_rows = part(6);
    match (pass, form) {
        (Pass::ForwardBackward, Regime::Registers) => whole_rows,
        (_, Regime::Packed | Regime::LaneRows) => none,
        // Of rows of which a block has several it asks for more at once: on an H200, 4 MB do best.
        (Pass::ForwardBackward, Regime::ShortWhole) => part(12),
        // A multiprocessor has one such row at a time, and this one is wanted when half of them
        // have begun another. Nearer and farther is slower on an H200, and of elements of 16 bits
        // whole rows are.
        (Pass::ForwardBackward, Regime::Long) if launch.threads > 512 => {
            let rows = (cache.multiprocessors / 2).max(1);
            let bytes = if element_bytes == 2 { row_bytes / 2 } else { row_bytes };
            Ahead { rows: rows as u32, bytes: bytes.min(cache.bytes / 4 / rows) as u32 }
        }
        // A thread has all that it reads in flight at once, which is little.
        (Pass::Backward, _) => whole_rows,
        _ => none,
    }
}

/// Whether a forward pass over short and whole rows of `row_bytes` wants shared memory for one
/// block more than there are registers for, and a first-level cache that is smaller by as much: on
/// an H200, rows of f32 of 512 bytes and more are faster so, by 1 to 3 parts in a hundred, and most
/// shorter ones slower. Of 16 bits, it is all the same.
pub(crate) fn wants_shared_of_one_more(row_bytes: usize) -> bool {
    row_bytes >= 512
}

/// What the first blocks of a launch over rows of `row_bytes` ask for into the second-level cache
/// while the launch before it ends: the first rows, of which it then has begun. Not so much that
/// what that launch has written, or still reads, has to leave.
pub(crate) fn early(plan: &SamplesLaunch, row_bytes: usize, cache: Cache) -> Early {
    let RowsLaunch { launch, group_threads, .. } = plan.rows;
    let groups = (launch.threads / group_threads) as usize;
    let bytes = row_bytes.min(EARLY_BYTES);
    let blocks = early_bytes(cache) / (bytes * groups).max(1);
    Early { blocks: blocks as u32, bytes: bytes as u32 }
}

/// How much the first blocks of a launch ask for, all together.
pub(crate) fn early_bytes(cache: Cache) -> usize {
    cache.bytes / 4
}

/// Of a row, at most: what a block has in flight at once.
const EARLY_BYTES: usize = 16 << 10;

/// See [`early`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Early {
    pub(crate) blocks: u32,
    pub(crate) bytes: u32,
}

/// How many blocks of `threads` add up the class weights of `rows` targets, for those that compute
/// gradients.
pub(crate) fn normaliser_blocks(rows: usize, threads: u32) -> u32 {
    // Everybody waits for them: a few targets in each thread are fastest.
    rows.div_ceil(threads as usize * NORMALISER_FLIGHT).clamp(1, MAX_NORMALISER_BLOCKS as usize)
        as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks are whole rows, take no more shared memory than a block has, and are enough for all
    /// rows.
    #[test]
    fn chunks_fit_into_shared_memory() {
        let rows = [1, 2, 131, 1_056, 5_000, 1 << 20, usize::MAX >> 16];
        for (rows, element_bytes) in rows.into_iter().flat_map(|rows| [2, 4, 8].map(|b| (rows, b)))
        {
            for cols in (1..300).chain([1_000, 1_024, 1_025, 4_096, 4_097, 8_192]) {
                let Some((of_chunk, plan)) = chunks(rows, cols, element_bytes) else {
                    let elements = CHUNK_BYTES / element_bytes.max(4);
                    assert!(cols > elements || rows > i32::MAX as usize, "{rows}×{cols}");
                    continue;
                };
                let bytes = chunk_shared_bytes(of_chunk as usize, cols, element_bytes);
                assert_eq!(plan.launch.shared_bytes as usize, bytes);
                assert!(of_chunk > 0 && bytes <= SHARED_BYTES, "{rows}×{cols}: {bytes} bytes");
                assert_eq!(plan.launch.blocks as usize, rows.div_ceil(of_chunk as usize));
                let group_threads = plan.group_threads.get();
                assert!(
                    group_threads.is_power_of_two()
                        && (group_threads <= 32 || group_threads == plan.launch.threads)
                );
            }
        }
    }

    const DENSE: Dense = Dense { threads: 512, heavy: false };
    const PASSES: [Pass; 3] = [Pass::Forward, Pass::Backward, Pass::ForwardBackward];

    #[test]
    fn a_launch_has_a_block_even_for_nothing() {
        for pass in PASSES {
            assert_eq!(elementwise(pass, 0, 4, DENSE).blocks, 1);
            assert_eq!(elementwise(pass, 1, 4, DENSE).blocks, 1);
        }
    }

    #[test]
    fn a_launch_that_sums_has_room_for_its_partial_sums() {
        for len in (0..45).map(|power| 1 << power) {
            for element_bytes in [2, 4, 8] {
                assert!(
                    elementwise(Pass::Forward, len, element_bytes, DENSE).blocks <= max_blocks(1)
                );
                assert!(
                    elementwise(Pass::ForwardBackward, len, element_bytes, DENSE).blocks
                        <= max_blocks(1)
                );
            }
        }
    }

    #[test]
    fn few_elements_go_to_many_multiprocessors() {
        let launch = elementwise(Pass::Forward, 128 * 1000, 4, DENSE);
        assert_eq!((launch.blocks, launch.threads), (125, 256));
    }

    #[test]
    fn many_elements_go_to_long_blocks() {
        let launch = elementwise(Pass::Forward, 1 << 30, 4, DENSE);
        assert_eq!((launch.blocks, launch.threads), (8448, 512));
        let launch = elementwise(Pass::ForwardBackward, 1 << 30, 4, DENSE);
        assert_eq!((launch.blocks, launch.threads), (33792, 512));
        let launch = elementwise(Pass::Backward, 1 << 30, 4, DENSE);
        assert_eq!((launch.blocks, launch.threads), (262_144, 512));
    }

    const KERNELS: SamplesKernels = SamplesKernels {
        per_thread: 4,
        vectors_with_gradients: 4,
        packed: None,
        lane_rows: None,
        stream: None,
        whole: true,
        short_block: 256,
        held_block: 512,
        few_block: 512,
        long_block: 256,
        sums: 2,
    };

    fn shape(plan: SamplesLaunch) -> (Regime, u32, u32, u32, u32) {
        let RowsLaunch { launch, group_threads, splits } = plan.rows;
        (plan.form, launch.blocks, launch.threads, group_threads.get(), splits.get())
    }

    #[test]
    fn samples_get_as_many_warps_as_hold_them() {
        let launch = |rows, cols| shape(samples(Pass::Forward, rows, cols, 4, KERNELS));
        assert_eq!(launch(262_144, 128), (Regime::ShortWhole, 8192 + 8, 256, 8, 1));
        assert_eq!(launch(128, 1000), (Regime::Few, 128 + 1, 256, 256, 1));
        assert_eq!(launch(1024, 1000), (Regime::Few, 1024 + 1, 256, 256, 1));
        assert_eq!(launch(256, 2048), (Regime::Few, 256 + 1, 512, 512, 1));
        assert_eq!(launch(512, 2048), (Regime::Long, 512 + 1, 128, 128, 1));
        assert_eq!(launch(1024, 2048), (Regime::Long, 1024 + 1, 128, 128, 1));
        assert_eq!(launch(128, 4096), (Regime::Long, 128 + 1, 256, 256, 1));
        assert_eq!(launch(32768, 1000), (Regime::Registers, 32768 + 32, 64, 64, 1));
        assert_eq!(launch(32768, 2048), (Regime::Registers, 32768 + 32, 128, 128, 1));
        // Of which the last are shared by four blocks each.
        assert_eq!(launch(4096, 50257), (Regime::Long, 4096 + 3 * 264 + 4, 256, 256, 1));
        // Of which all are shared by 32 blocks each.
        assert_eq!(launch(8, 262_144), (Regime::Long, 8 * 32 + 1, 256, 256, 1));
    }

    /// The kernels for contiguous f32 rows of so many columns, on a device of 132 multiprocessors.
    fn kernels(cols: usize) -> SamplesKernels {
        let alignment = 1 << (4 * cols).trailing_zeros().min(7);
        let rows = packed::Rows {
            cols,
            element_bytes: 4,
            alignment,
            store_alignment: alignment,
            alike: true,
            strides: [4 * cols, 0],
            store_strides: [0; 2],
            has_lane_rows: false,
            tiles: 1,
        };
        let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
        let packed = packed::packed(Pass::Forward, rows).map(|packed| (packed, device));
        SamplesKernels { packed, whole: cols.is_multiple_of(4), ..KERNELS }
    }

    #[test]
    fn short_rows_are_packed_unless_registers_hold_them_whole() {
        let form = |rows, cols| samples(Pass::Forward, rows, cols, 4, kernels(cols)).form;
        for cols in [1, 2, 10, 32, 96, 127, 129, 500 + 1, 1000, 1023] {
            assert_eq!(form(262_144, cols), Regime::Packed, "{cols} columns");
        }
        assert_eq!([128, 256, 512].map(|cols| form(65536, cols)), [Regime::ShortWhole; 3]);
        assert_eq!(form(65536, 1025), Regime::Long);
        // So many that blocks have no room for their partial sums.
        let most = 32 * max_workers(1) as usize;
        assert_eq!((form(most, 128), form(most + 1, 128)), (Regime::ShortWhole, Regime::Packed));
        assert_eq!(form(0, 5), Regime::Packed);
    }

    #[test]
    fn blocks_of_packed_rows_fill_a_device() {
        let blocks = |pass, rows| samples(pass, rows, 10, 4, kernels(10)).rows.launch.blocks;
        // A multiprocessor has room for five blocks, by its registers and by its shared memory.
        assert_eq!(blocks(Pass::Forward, 1 << 24), grid_of_workers(132 * 5));
        assert_eq!(blocks(Pass::ForwardBackward, 1 << 24), grid_of_workers(132 * 5 * 8));
        assert_eq!(blocks(Pass::Backward, 1 << 24), 132 * 5 * 8);
        assert_eq!((blocks(Pass::Forward, 1), blocks(Pass::Backward, 0)), (2, 1));
    }

    #[test]
    fn a_block_takes_more_rows_where_there_are_too_many_blocks() {
        let launch = |pass, rows, cols| {
            let plan = samples(pass, rows, cols, 4, KERNELS);
            (plan.rows.launch.blocks, plan.rows_of_block.get())
        };
        let most = max_workers(1) as usize;
        let half = (most as u32 + 1).div_ceil(2);
        assert_eq!(launch(Pass::Forward, most + 1, 50257), (grid_of_workers(half), 2));
        assert_eq!(launch(Pass::ForwardBackward, most + 1, 50257), (grid_of_workers(half), 2));
    }

    #[test]
    fn the_last_long_rows_are_shared_where_there_is_room() {
        let tail = |rows, cols| samples(Pass::Forward, rows, cols, 4, KERNELS).tail;
        let shared = tail(4096, 50257);
        assert_eq!((shared.rows, shared.parts.get()), (264, 4));
        // A part has at least what a block has in flight.
        assert_eq!(tail(4096, 8193).parts.get(), 2);
        assert_eq!(tail(4096, 4100), Tail::NONE);
        for rows in 1..105_000 {
            let Tail { rows: last, parts, at } = tail(rows, 50257);
            let pieces = rows as u32 + last * (parts.get() - 1);
            assert!(
                last == 0 || at >= pieces + 2 * pieces.div_ceil(ADDER_PERIOD - 1),
                "{rows} rows"
            );
            assert!(at + last * parts.get() * STATS_PARTS <= MAX_PARTIALS, "{rows} rows");
        }
    }

    #[test]
    fn few_long_rows_are_all_shared() {
        for (rows, cols) in [(1, 262_144), (100, 50257), (527, 50257), (1055, 128_256)] {
            for sums in [2, 4] {
                let kernels = SamplesKernels { sums, ..KERNELS };
                let plan = samples(Pass::Forward, rows, cols, 4, kernels);
                let Tail { rows: shared, parts, at } = plan.tail;
                let pieces = shared * parts.get();
                assert!(shared as usize == rows && parts.get() > 1, "{rows} rows");
                assert_eq!(plan.rows.launch.blocks, grid_of_workers(pieces));
                let left =
                    words_of_worker(sums, 4) * pieces + sums * pieces.div_ceil(ADDER_PERIOD - 1);
                assert!(at >= left && at + pieces * STATS_PARTS <= MAX_PARTIALS, "{rows} rows");
            }
        }
    }

    #[test]
    fn samples_of_which_gradients_are_written_get_a_block_each() {
        let launch = |rows, cols| shape(samples(Pass::ForwardBackward, rows, cols, 4, KERNELS));
        assert_eq!(launch(32768, 4096), (Regime::Registers, 32768 + 32, 256, 256, 1));
        assert_eq!(launch(8192, 8192), (Regime::Registers, 8192 + 8, 512, 512, 1));
        assert_eq!(launch(8192, 8193), (Regime::Long, 8192 + 8, 192, 192, 1));
        assert_eq!(launch(4096, 50257), (Regime::Long, 4096 + 4, 256, 256, 1));
        // Or a block for as many short ones as it has row groups.
        assert_eq!(launch(262_144, 128), (Regime::ShortWhole, 8192 + 8, 256, 8, 1));
    }

    #[test]
    fn a_block_holds_a_row_of_which_only_its_last_groups_may_be_beyond() {
        let form =
            |rows, vectors| samples(Pass::ForwardBackward, rows, vectors * 4, 4, KERNELS).form;
        // Of 64 threads, 192 vectors are the first three of each.
        assert_eq!((form(100, 191), form(100, 192)), (Regime::Long, Regime::Registers));
        for vectors in 129..2048_usize {
            let threads = vectors.div_ceil(4).next_multiple_of(32);
            let per_thread = form(100, vectors) == Regime::Registers;
            assert_eq!(per_thread, 3 * threads <= vectors, "{vectors} vectors");
        }
        // Of 16 bits, with gradients, only the first half are within the row.
        let kernels = SamplesKernels { vectors_with_gradients: 8, ..KERNELS };
        for vectors in 129..4096 {
            let plan = samples(Pass::ForwardBackward, 100, vectors * 8, 2, kernels);
            let threads = vectors.div_ceil(8).next_multiple_of(32);
            assert_eq!(
                (plan.form, plan.rows.launch.threads as usize),
                (Regime::Registers, threads)
            );
            assert!(4 * threads <= vectors, "{vectors} vectors");
            // A forward pass holds as many as before.
            let forward = samples(Pass::Forward, 2000, vectors * 8, 2, kernels);
            let alone = samples(Pass::Forward, 2000, vectors * 8, 2, KERNELS);
            assert_eq!(forward, alone);
        }
    }

    #[test]
    fn every_piece_has_a_block() {
        for pieces in [0, 1, 1022, 1023, 1024, 1025, 2046, 2047, 10_000] {
            let blocks = grid_of_workers(pieces);
            let taken = (0..blocks).filter(|block| !(block + 1).is_multiple_of(ADDER_PERIOD));
            let taken =
                taken.map(|block| block - block / ADDER_PERIOD).filter(|&piece| piece < pieces);
            assert!(taken.eq(0..pieces), "{pieces} pieces");
            assert!(pieces >= ADDER_PERIOD || blocks == pieces + 1);
            // As the kernels count them.
            assert_eq!(blocks - (blocks / ADDER_PERIOD).max(1), pieces);
        }
    }

    #[test]
    fn what_blocks_that_hold_rows_leave_has_room() {
        for (element_bytes, at_least) in [(2, 100_000), (4, 100_000), (8, 50_000)] {
            let plan =
                |pass, rows| samples(pass, rows, 16384 / element_bytes, element_bytes, KERNELS);
            for pass in [Pass::Forward, Pass::ForwardBackward] {
                let per_thread = |&rows: &usize| plan(pass, rows).form == Regime::Registers;
                let most = (1..1 << 20).rfind(per_thread).expect("there is one");
                assert!(most >= at_least);
                let blocks = plan(pass, most).rows.launch.blocks;
                assert_eq!(blocks, grid_of_workers(most as u32));
                let words = words_of_worker(2, element_bytes) as usize;
                let stretches = most.div_ceil(ADDER_PERIOD as usize - 1);
                assert!(words * most + 2 * stretches <= MAX_PARTIALS as usize);
                assert_eq!(plan(pass, most + 1).form, Regime::Long);
            }
        }
    }

    #[test]
    fn rows_are_asked_for_ahead_where_memory_is_written() {
        let cache = Cache { bytes: 60 << 20, multiprocessors: 132 };
        let ahead = |pass, rows, cols, element_bytes| {
            let kernels = SamplesKernels { long_block: 1024, ..KERNELS };
            let plan = samples(pass, rows, cols, element_bytes, kernels);
            let Ahead { rows, bytes } =
                ahead(pass, &plan, cols * element_bytes, element_bytes, cache);
            (rows, bytes)
        };
        assert_eq!(ahead(Pass::ForwardBackward, 32768, 4096, 4), (640, 16384));
        assert_eq!(ahead(Pass::ForwardBackward, 32768, 4096, 2), (1280, 8192));
        assert_eq!(ahead(Pass::ForwardBackward, 4096, 50257, 4), (66, 201_028));
        assert_eq!(ahead(Pass::ForwardBackward, 8192, 128_256, 2), (66, 128_256));
        assert_eq!(ahead(Pass::ForwardBackward, 8192, 1 << 20, 4), (66, 238_312));
        assert_eq!(ahead(Pass::ForwardBackward, 8192, 16385, 4), (0, 0));
        assert_eq!(ahead(Pass::Backward, 32768, 4096, 2), (1280, 8192));
        assert_eq!(ahead(Pass::Backward, 32768, 4096, 4), (640, 16384));
        assert_eq!(ahead(Pass::Backward, 4096, 50257, 4), (52, 201_028));
        assert_eq!(ahead(Pass::Backward, 262_144, 128, 4), (20480, 512));
        assert_eq!(ahead(Pass::Backward, 262_144, 31, 4), (0, 0));
        assert_eq!(ahead(Pass::Forward, 32768, 4096, 4), (0, 0));
        assert_eq!(ahead(Pass::ForwardBackward, 262_144, 128, 4), (10240, 512));
    }

    #[test]
    fn the_first_rows_are_asked_for_early() {
        let early = |rows, cols| {
            let plan = samples(Pass::Forward, rows, cols, 4, KERNELS);
            let Early { blocks, bytes } =
                early(&plan, cols * 4, Cache { bytes: 60 << 20, multiprocessors: 132 });
            (plan.form, blocks, bytes)
        };
        assert_eq!(early(32768, 4096), (Regime::Registers, 960, 16384));
        assert_eq!(early(262_144, 128), (Regime::ShortWhole, 960, 512));
        assert_eq!(early(128, 1000), (Regime::Few, 3932, 4000));
        assert_eq!(early(4096, 50257), (Regime::Long, 960, 16384));
    }

    #[test]
    fn a_block_keeps_no_more_than_a_row_or_its_shared_memory() {
        assert_eq!(staged_vectors(50_257, 4, 4096, 228_848), 12_564 + 7 - 4096);
        assert_eq!(staged_vectors(128_256, 2, 1024, 228_848), 14_303);
        assert_eq!(staged_vectors(3, 4, 64, 228_848), 0);
        assert_eq!(staged_vectors(128_256, 2, 4096, 15), 0);
    }

    #[test]
    fn blocks_hold_parts_of_long_rows_for_their_gradients() {
        let shape = |rows, cols, bytes| {
            let RowsLaunch { launch, splits, .. } =
                samples(Pass::Backward, rows, cols, bytes, KERNELS).rows;
            (launch.blocks, launch.threads, splits.get())
        };
        assert_eq!(shape(8192, 128_256, 2), (131_072, 256, 16));
        for cols in (0..20).flat_map(|power| [(1 << power) + 1, (3 << power) - 1]) {
            let SamplesLaunch { rows: RowsLaunch { launch, splits, .. }, form, .. } = samples(
                Pass::Backward,
                100,
                cols,
                4,
                SamplesKernels { whole: false, ..kernels(cols) },
            );
            let [vectors, missing] = [cols.div_ceil(4), LINE_VECTORS as usize - 1];
            let of_part = launch.threads as usize * KERNELS.per_thread;
            if form == Regime::Long {
                assert!(splits.get() as usize * of_part >= vectors + missing, "{cols}");
                assert!((splits.get() - 1) as usize * of_part < vectors + missing, "{cols}");
            } else {
                assert_eq!((form, splits.get()), (Regime::Packed, 1), "{cols}");
            }
        }
    }

    #[test]
    fn parts_of_samples_have_room_for_their_results() {
        for count in (0..30).map(|power| (1 << power) + 1) {
            for cols in (0..31).map(|power| 1 << power) {
                for pass in PASSES {
                    let plan = samples(pass, count, cols, 8, KERNELS);
                    let RowsLaunch { launch, group_threads, splits } = plan.rows;
                    let pieces = count * splits.get() as usize;
                    assert!(launch.threads.is_multiple_of(group_threads.get()));
                    match pass {
                        _ if splits.get() == 1 => {
                            let pieces = count.div_ceil(plan.rows_of_block.get() as usize) as u32;
                            let groups = launch.threads / group_threads;
                            let blocks_sum = pass != Pass::Backward;
                            assert!(!blocks_sum || pieces <= max_workers(words_of_worker(2, 8)));
                            assert!(!blocks_sum || plan.rows_of_block.get().is_multiple_of(groups));
                        }
                        Pass::Forward => {
                            assert_eq!(
                                (plan.form, group_threads.get()),
                                (Regime::Long, launch.threads)
                            );
                            let warps = launch.threads as usize / 32;
                            assert!(pieces * warps * STATS_PARTS as usize <= MAX_PARTIALS as usize);
                        }
                        Pass::Backward => assert_eq!(plan.form, Regime::Long),
                        Pass::ForwardBackward => panic!("split"),
                    }
                }
            }
        }
    }

    #[test]
    fn short_rows_share_a_warp() {
        let plan = rows(reduction::ROWS, 1000, 10, 4);
        assert_eq!((plan.group_threads.get(), plan.splits.get()), (4, 1));
        assert_eq!(plan.launch.blocks, 1000_u32.div_ceil(256 / 4));
    }

    #[test]
    fn long_rows_get_a_block_each() {
        let plan = rows(reduction::ROWS, 16384, 16384, 4);
        assert_eq!(
            (plan.group_threads.get(), plan.splits.get(), plan.launch.blocks),
            (256, 1, 16384)
        );
    }

    #[test]
    fn few_long_rows_are_split() {
        let plan = rows(reduction::ROWS, 3, 1 << 24, 2);
        assert_eq!(
            (plan.group_threads.get(), plan.splits.get(), plan.launch.blocks),
            (256, 352, 1056)
        );
    }

    #[test]
    fn parts_of_rows_have_room_for_their_sums() {
        for count in (0..30).map(|power| (1 << power) + 1) {
            for cols in (0..40).map(|power| 1 << power) {
                let plan = rows(reduction::ROWS, count, cols, 8);
                let parts = count * plan.splits.get() as usize;
                assert!(plan.splits.get() == 1 || parts <= MAX_PARTIALS as usize);
                let plan = rows(reduction::SCALAR, count, cols, 8);
                assert!(plan.launch.blocks <= max_blocks(1));
            }
        }
    }
}
