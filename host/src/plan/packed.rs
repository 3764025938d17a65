//! Short rows, packed into tiles: how many rows a warp stages in shared memory at a time, and how
//! its lanes share them.

use super::{Launch, Pass};
use kernels_gpu::abi::{CACHE_LINE, PACKED_BLOCK, TileArgs, VECTOR_BYTES, lane_row_cols};

/// The most bytes of a packed row, by the bytes of an element. Longer rows of 16-bit elements are
/// faster with a block per row: H200, 2026-11-24, forward-backward in bf16, ceiling ÷ ours is 0.73
/// for 2000 columns packed, and 0.88 for 2048 columns with a block per row.
pub(crate) const fn most_row_bytes(element_bytes: usize) -> usize {
    if element_bytes == 2 { 2048 } else { 4096 }
}

/// The bytes of a tile, which a warp loads while it computes the tile before. Larger tiles have
/// more bytes in flight; smaller ones leave shared memory for more warps.
const TILE_BYTES: usize = 8 << 10;

/// The bytes of a tile in passes that compute gradients, which have more arithmetic per byte, for
/// rows of `LONG_ROW_BYTES` and more. H200, 2026-11-25, ceiling ÷ ours of the backward pass, with
/// tiles of 8 KiB and with these: 524288×64 f32 0.81 and 0.91, 65536×511 f32 0.73 and 0.85,
/// 262144×255 bf16 0.66 and 0.78; but 671088×100 bf16 0.77 and 0.75.
const GRADIENT_TILE_BYTES: usize = 5200;

/// See [`GRADIENT_TILE_BYTES`].
const LONG_ROW_BYTES: usize = 256;

/// The bytes of a stage for rows of at most `SMALL_ROW_BYTES`, which have one lane each. With two
/// stages per warp, five blocks fit into the shared memory of an H100's multiprocessor, which is as
/// many as its registers allow. A stage of fewer rows would cost as many instructions.
const SMALL_STAGE_BYTES: usize = 5400;

/// See [`SMALL_STAGE_BYTES`].
const SMALL_ROW_BYTES: usize = 128;

/// The bytes of a stage (rows and classes) for [`Regime::LaneRows`](super::Regime::LaneRows). With
/// two stages per warp, seven blocks fit into the shared memory of an H100's multiprocessor, which
/// is as many as its registers allow. Chosen, not searched for.
const LANES_STAGE_BYTES: usize = 3680;

/// Stages per warp: one tile is computed while the other is loaded.
const STAGES: usize = 2;

const WARPS: usize = PACKED_BLOCK as usize / 32;

/// The most rows of a tile per row that a warp works on at the same time: a lane takes up to so
/// many rows of a tile, one after another.
const MAX_TURNS: usize = 8;

/// The bytes of a vector, as `usize`.
const VECTOR: usize = VECTOR_BYTES as usize;

/// How the rows of a call are laid out in its tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// The largest power of two, up to 128, to which all rows of the tensors that are read are
    /// aligned, in bytes.
    pub(crate) alignment: usize,
    /// The same for the tensors that are written.
    pub(crate) store_alignment: usize,
    /// Whether each row of a gradient is aligned to 16 bytes in the same way (equal address modulo
    /// 16) as the row that it is the gradient of.
    pub(crate) alike: bool,
    /// Bytes from row to row of the logits and of the probabilities; 0 for a missing tensor.
    pub(crate) strides: [usize; 2],
    /// The same for their gradients.
    pub(crate) store_strides: [usize; 2],
    /// Whether there are kernels of [`Regime::LaneRows`](super::Regime::LaneRows).
    pub(crate) has_lane_rows: bool,
    /// Tiles per stage: 1 for logits, 2 for logits and probabilities.
    pub(crate) tiles: usize,
}

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Whether the tensors that are written have no gaps between their rows, so that a tile is
    /// stored as one span.
    fn stores_span(&self) -> bool {
        self.store_strides.iter().all(|&stride| stride == 0 || stride == self.row_bytes())
    }

    /// Whether the rows that are written, `steps` bytes apart in shared memory, have no gaps there.
    /// They may have some though they have none in global memory: where gradients overwrite the
    /// tiles that were read, and then for one of the two tensors alone.
    fn has_steps_without_gaps(&self, steps: [usize; 2]) -> bool {
        let mut rows = self.store_strides.iter().zip(steps);
        rows.all(|(&stride, step)| stride == 0 || step == self.row_bytes())
    }

    /// Whether a tile is loaded as one span, gaps between rows included. Memory is read in sectors
    /// of 32 bytes, so gaps of less than that cost next to nothing.
    fn loads_span(&self) -> bool {
        let row_bytes = self.row_bytes();
        let gap = (row_bytes / 8).max(32);
        let is_span = |stride| (row_bytes..=row_bytes + gap).contains(stride);
        self.strides.iter().all(|stride| *stride == 0 || is_span(stride))
    }
}

/// How rows are packed: what the kernels need to know, and what a block needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packed {
    pub(crate) args: TileArgs,
    /// Rows that a block works on at a time: one tile per warp.
    block_rows: usize,
    shared_bytes: usize,
    /// Whether a kernel of [`Regime::LaneRows`](super::Regime::LaneRows) can take the rows.
    pub(crate) fits_lanes: bool,
}

impl Packed {
    /// The blocks of a launch over `rows` rows. In a pass that only reads, they are persistent: as
    /// many as the device has room for. If gradients are written, there are [`BLOCKS_PER_RESIDENT`]
    /// times as many: blocks that begin in the order of memory keep reads and writes closer
    /// together. H200, 524288×256 f32: 0.92 instead of 0.88 of the memory's limit, and no gain for
    /// the forward pass.
    pub(crate) fn blocks(&self, pass: Pass, rows: usize, device: Device) -> usize {
        let Device { multiprocessors, shared_bytes, registers_for } = device;
        let room = (shared_bytes / (self.shared_bytes + RESERVED)).clamp(1, registers_for);
        let times = if pass == Pass::Forward { 1 } else { BLOCKS_PER_RESIDENT };
        rows.div_ceil(self.block_rows).min(multiprocessors * room * times)
    }

    /// The arguments of the kernels for `rows` rows.
    pub(crate) fn args_of(&self, rows: usize) -> TileArgs {
        let tile_rows = self.args.rows as usize;
        let count = rows.div_ceil(tile_rows);
        let last_rows = rows - count.saturating_sub(1) * tile_rows;
        TileArgs { count: count as u32, last_rows: last_rows as u32, ..self.args }
    }

    /// The launch of `blocks` blocks.
    pub(crate) fn launch(&self, blocks: usize) -> Launch {
        let shared_bytes = self.shared_bytes as u32;
        Launch { blocks: blocks as u32, threads: PACKED_BLOCK, shared_bytes, cooperative: false }
    }
}

/// See [`Packed::blocks`].
const BLOCKS_PER_RESIDENT: usize = 8;

/// Bytes of shared memory that the driver reserves in each block.
pub(crate) const RESERVED: usize = 1 << 10;

/// What a device has room for, for one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory per multiprocessor.
    pub(crate) shared_bytes: usize,
    /// Blocks of the kernel per multiprocessor, as far as registers allow.
    pub(crate) registers_for: usize,
}

/// The most bytes of shared memory per block on devices of compute capability 8.6, which have the
/// least.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Where the rows of two tensors are placed in shared memory.
#[derive(Clone, Copy)]
struct Placed {
    /// Bytes from row to row, as `TileArgs::step`.
    steps: [usize; 2],
    /// The most bytes from the beginning of a cache line to the first row.
    lead: usize,
}

impl Placed {
    /// The placement of rows of `row_bytes` that are aligned to `alignment` and `strides` bytes
    /// apart in global memory. If a tile is copied as one span, rows are as far apart in shared
    /// memory; if not, as close together as possible without sharing a vector.
    fn new(row_bytes: usize, alignment: usize, strides: [usize; 2], is_span: bool) -> Self {
        let line = CACHE_LINE as usize;
        let lead = line - alignment.min(line);
        if is_span {
            return Placed { steps: strides, lead };
        }
        // A row may begin anywhere in its first vector that its alignment allows. The distance from
        // row to row is an odd number of vectors, so that rows begin in different banks.
        let vectors = (VECTOR - alignment.min(VECTOR) + row_bytes).div_ceil(VECTOR);
        let steps = strides.map(|stride| (vectors | 1) * VECTOR + stride % VECTOR);
        Placed { steps, lead }
    }

    fn step(&self) -> usize {
        self.steps[0].max(self.steps[1])
    }

    /// The bytes of a tile of `rows` rows.
    fn bytes(&self, rows: usize) -> usize {
        (self.lead + rows * self.step()).next_multiple_of(CACHE_LINE as usize)
    }
}

/// How rows are packed; `None` if they are too long, or need more shared memory than a block may
/// have.
pub(crate) fn packed(pass: Pass, rows: Rows) -> Option<Packed> {
    let row_bytes = rows.row_bytes();
    if row_bytes > most_row_bytes(rows.element_bytes) {
        return None;
    }
    let power_of_two_in = |bytes: usize| 1 << bytes.trailing_zeros().min(4);
    let access_of = |alignment: usize| alignment.min(power_of_two_in(row_bytes));
    let access = access_of(rows.alignment);
    let (loads_span, stores_span) = (rows.loads_span(), rows.stores_span());
    let read = Placed::new(row_bytes, rows.alignment, rows.strides, loads_span);
    let mut written = Placed::new(row_bytes, rows.store_alignment, rows.store_strides, stores_span);
    if rows.alike {
        written = read;
    }
    let tile_bytes = match pass {
        Pass::ForwardBackward | Pass::Backward if row_bytes >= LONG_ROW_BYTES => {
            GRADIENT_TILE_BYTES
        }
        _ => TILE_BYTES,
    };
    // Tiles per warp: gradients that are aligned differently from what was read need one of their
    // own.
    let tiles = if rows.alike { STAGES } else { STAGES + 1 };
    // The largest distance of rows in any tile; the strides of missing tensors are 0.
    let step = read.step().max(written.step()).max(row_bytes);
    let fit = (tile_bytes * STAGES / tiles / rows.tiles / step).max(1);
    let fits_lanes = rows.has_lane_rows
        && rows.cols <= lane_row_cols(rows.element_bytes as u32) as usize
        && rows.tiles == 1;
    let is_small = row_bytes <= SMALL_ROW_BYTES && rows.tiles == 1;
    let warp_rows = if fits_lanes || is_small || fit >= 32 { 32 } else { 1 << fit.ilog2() };
    let turns = if fits_lanes {
        LANES_STAGE_BYTES * STAGES / tiles / ((step + 8) * warp_rows)
    } else if is_small {
        SMALL_STAGE_BYTES * STAGES / tiles / ((step + 8) * warp_rows)
    } else {
        fit / warp_rows
    };
    let tile_rows = warp_rows * turns.clamp(1, MAX_TURNS);
    let bytes = read.bytes(tile_rows).max(written.bytes(tile_rows));
    // Without probabilities, a stage also has the class of each row, of eight bytes.
    let classes = if rows.tiles == 1 { tile_rows * 8 + VECTOR } else { 0 };
    let stage_bytes = (rows.tiles * bytes + classes).next_multiple_of(CACHE_LINE as usize);
    let gradients = if rows.alike { 0 } else { STAGES * stage_bytes };
    let warp_bytes = STAGES * stage_bytes + if rows.alike { 0 } else { rows.tiles * bytes };
    let shared_bytes = WARPS * warp_bytes;
    if shared_bytes > MAX_SHARED_BYTES {
        return None;
    }
    // A row that is copied by itself is copied by as many lanes as it may have vectors.
    let alignment = rows.alignment.min(rows.store_alignment).min(VECTOR);
    let vectors = (VECTOR - alignment + row_bytes).div_ceil(VECTOR);
    let copy_lanes = vectors.next_power_of_two().min(32);
    let [order_right, order_mask, order_left] = order(access, row_bytes, read.steps[0], warp_rows);
    let numbers = |steps: [usize; 2]| steps.map(|step| step as u32);
    let args = TileArgs {
        rows: tile_rows as u32,
        count: 0,
        last_rows: 0,
        warp_rows_shift: warp_rows.trailing_zeros(),
        access: access as u32,
        store_access: if rows.alike { access } else { access_of(rows.store_alignment) } as u32,
        step: numbers(read.steps),
        store_step: numbers(written.steps),
        load_span: loads_span.into(),
        store_span: (stores_span && rows.has_steps_without_gaps(written.steps)).into(),
        copy_shift: copy_lanes.trailing_zeros(),
        order_right,
        order_mask,
        order_left,
        bytes: bytes as u32,
        stage_bytes: stage_bytes as u32,
        warp_bytes: warp_bytes as u32,
        gradients: gradients as u32,
    };
    Some(Packed { args, block_rows: WARPS * tile_rows, shared_bytes, fits_lanes })
}

/// The order in which lanes read the vectors of their rows, a swizzle against bank conflicts; see
/// [`TileArgs::order_right`].
///
/// Shared memory serves eight lanes at a time, of 16 bytes each. They read from eight rows, or
/// several vectors of each of fewer rows, without a conflict if the numbers of their vectors differ
/// modulo eight. If rows are a multiple of 2ᵃ vectors apart, their first vectors differ only in
/// bits a and higher. So the bits of the row's number that do not show there are XORed into the
/// lower bits of the vector's number.
///
/// The XOR keeps a lane within its row only if the length of a row, and not just the distance of
/// rows, is a multiple of 2ᵃ vectors.
fn order(access: usize, row_bytes: usize, row_step: usize, warp_rows: usize) -> [u32; 3] {
    let a = (row_step / VECTOR).trailing_zeros().min(3);
    if access < VECTOR || !(row_bytes / VECTOR).is_multiple_of(1 << a) {
        return [0; 3];
    }
    let row_bits = warp_rows.trailing_zeros().min(3);
    let left = (row_bits + a).saturating_sub(3);
    [3 - a, (1 << left) - 1, 3 - row_bits]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = Rows> {
        [2, 4, 8].into_iter().flat_map(|element_bytes| {
            (1..=most_row_bytes(element_bytes) / element_bytes).flat_map(move |cols| {
                let row_bytes = cols * element_bytes;
                // No gaps, short gaps, and gaps that are too long to be read.
                let gaps = [0, 16, 1 << 20].into_iter().chain([element_bytes, (1 << 20) + 2]);
                gaps.map(move |gap| row_bytes + gap)
                    .flat_map(|stride| [(stride, true), (stride, false)])
                    .flat_map(|rows| [(rows, 1), (rows, 2)])
                    .map(move |((stride, alike), tiles)| {
                        let alignment = 1 << stride.trailing_zeros().min(4);
                        let strides = [stride, if tiles == 2 { stride } else { 0 }];
                        Rows {
                            cols,
                            element_bytes,
                            alignment,
                            store_alignment: alignment,
                            alike,
                            strides,
                            store_strides: if alike { strides } else { [row_bytes; 2] },
                            has_lane_rows: tiles == 1,
                            tiles,
                        }
                    })
            })
        })
    }

    fn passes() -> impl Iterator<Item = (Pass, Rows)> {
        shapes().flat_map(|rows| [(Pass::Forward, rows), (Pass::ForwardBackward, rows)])
    }

    /// Tiles fit into the shared memory of a block, and rows into tiles. Only the longest rows with
    /// probabilities and with differently aligned gradients are not packed.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for (pass, rows) in passes() {
            let row_bytes = rows.cols * rows.element_bytes;
            let Some(packed) = packed(pass, rows) else {
                assert!(rows.tiles == 2 && !rows.alike && row_bytes > 3 << 10, "{rows:?}");
                continue;
            };
            let TileArgs { rows: tile_rows, bytes, step, .. } = packed.args;
            assert!(packed.shared_bytes <= MAX_SHARED_BYTES, "{rows:?}: {packed:?}");
            assert!(bytes.is_multiple_of(CACHE_LINE));
            // The end of the last row, if the tile begins as far behind a cache line as possible.
            let misaligned = |of: usize| of - rows.alignment.min(of);
            let others = (tile_rows as usize - 1) * step[0] as usize;
            let end = misaligned(CACHE_LINE as usize) + others + row_bytes;
            assert!(end.next_multiple_of(VECTOR) <= bytes as usize, "{rows:?}: {packed:?}");
        }
    }

    /// A warp has two stages, each with the tiles of its tensors, or with one tile and the classes
    /// of its rows. Gradients that do not overwrite those have tiles of their own behind them.
    #[test]
    fn stages_and_tiles_of_a_warp_share_no_byte() {
        for (pass, rows) in passes() {
            let Some(packed) = packed(pass, rows) else { continue };
            let TileArgs { bytes, stage_bytes, warp_bytes, gradients, .. } = packed.args;
            let tiles = rows.tiles as u32 * bytes;
            // Eight bytes each, which begin as far behind a vector as in global memory.
            let classes = if rows.tiles == 1 { packed.args.rows * 8 + VECTOR_BYTES } else { 0 };
            let expected = (tiles + classes).next_multiple_of(CACHE_LINE);
            assert_eq!(stage_bytes, expected, "{rows:?}: {packed:?}");
            let stages = 2 * stage_bytes;
            let expected = if rows.alike { (0, stages) } else { (stages, stages + tiles) };
            assert_eq!((gradients, warp_bytes), expected, "{rows:?}: {packed:?}");
            assert_eq!(packed.shared_bytes, WARPS * warp_bytes as usize);
            let launch = packed.launch(7);
            assert_eq!((launch.blocks, launch.threads), (7, PACKED_BLOCK));
            assert_eq!(launch.shared_bytes as usize, packed.shared_bytes);
        }
    }

    /// A tile of gradients ends with its last row at the earliest, wherever it begins in a line.
    #[test]
    fn tiles_of_gradients_have_all_of_their_rows() {
        for (pass, rows) in passes() {
            let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
            let lead = CACHE_LINE as usize - rows.store_alignment.min(CACHE_LINE as usize);
            let step = args.store_step[0].max(args.store_step[1]) as usize;
            let end = lead + (args.rows as usize - 1) * step + rows.row_bytes();
            assert!(end <= args.bytes as usize, "{rows:?}: {args:?}");
        }
    }

    /// A load or store of a lane is as long as the boundaries that rows begin and end at, up to a
    /// vector.
    #[test]
    fn lanes_access_what_begins_and_ends_with_a_row() {
        for (pass, rows) in passes() {
            let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
            let longest = |alignment: usize| {
                let common = alignment | rows.row_bytes() | VECTOR;
                1_u32 << common.trailing_zeros()
            };
            assert_eq!(args.access, longest(rows.alignment), "{rows:?}");
            assert_eq!(args.store_access, longest(rows.store_alignment), "{rows:?}");
            // The swizzle is of vectors: other accesses have none.
            assert!(args.access == VECTOR_BYTES || args.order_mask == 0, "{rows:?}");
        }
    }

    /// Rows of up to 32 bytes begin and end in any of the two tensors and their gradients with a
    /// gap behind them or none, and gradients may be missing.
    fn tensors_with_gaps() -> impl Iterator<Item = Rows> {
        [16, 32].into_iter().flat_map(|row_bytes| {
            let with = move |gap: usize| [0, row_bytes, row_bytes + gap];
            let pairs = move |gap| with(gap).map(|first| with(gap).map(|second| [first, second]));
            let reads = [16, 1 << 20].into_iter().flat_map(move |gap| pairs(gap).into_iter());
            let reads = reads.flatten().filter(|[logits, _]| *logits != 0);
            let all = reads.flat_map(move |reads| {
                pairs(16).into_iter().flatten().map(move |writes| (reads, writes))
            });
            all.flat_map(|tensors| [(tensors, true), (tensors, false)]).map(
                move |((strides, store_strides), alike)| Rows {
                    cols: row_bytes / 4,
                    element_bytes: 4,
                    alignment: 16,
                    store_alignment: 16,
                    alike,
                    strides,
                    store_strides,
                    has_lane_rows: strides[1] == 0,
                    tiles: if strides[1] == 0 { 1 } else { 2 },
                },
            )
        })
    }

    /// Rows are copied as one span where they are as far apart in shared memory as in global
    /// memory, and stored as one span where there are no gaps in either: in every tensor, since
    /// one argument of the kernels stands for both.
    #[test]
    fn spans_are_the_same_in_shared_and_in_global_memory() {
        let mut spans = [0; 2];
        for rows in tensors_with_gaps() {
            let Some(Packed { args, .. }) = packed(Pass::ForwardBackward, rows) else { continue };
            let row_bytes = rows.row_bytes();
            let is_each = |strides: [usize; 2], is: &dyn Fn(usize, usize) -> bool| {
                (0..2).all(|tensor| strides[tensor] == 0 || is(tensor, strides[tensor]))
            };
            let is_same = |tensor: usize, stride: usize| args.step[tensor] as usize == stride;
            let has_no_gaps = |tensor: usize, stride: usize| {
                args.store_step[tensor] as usize == row_bytes && stride == row_bytes
            };
            let is_short = |_, stride| stride <= row_bytes + 32;
            assert_eq!(args.load_span != 0, is_each(rows.strides, &is_short), "{rows:?}");
            assert!(args.load_span == 0 || is_each(rows.strides, &is_same), "{rows:?}: {args:?}");
            let expected = is_each(rows.store_strides, &has_no_gaps);
            assert_eq!(args.store_span != 0, expected, "{rows:?}: {args:?}");
            spans[0] += args.load_span;
            spans[1] += args.store_span;
        }
        assert!(spans.iter().all(|&count| count > 0));
    }

    /// Gaps of a sector of 32 bytes are read with the rows, or of an eighth of a row, which is as
    /// little beside the row.
    #[test]
    fn short_gaps_are_read() {
        let is_read = |row_bytes: usize, gap| {
            let rows = Rows {
                cols: row_bytes / 4,
                element_bytes: 4,
                alignment: 16,
                store_alignment: 16,
                alike: true,
                strides: [row_bytes + gap, 0],
                store_strides: [0; 2],
                has_lane_rows: false,
                tiles: 1,
            };
            packed(Pass::Forward, rows).expect("a short row").args.load_span != 0
        };
        assert_eq!([0, 16, 32, 48].map(|gap| is_read(128, gap)), [true, true, true, false]);
        assert_eq!([112, 128, 144].map(|gap| is_read(1024, gap)), [true, true, false]);
    }

    /// Rows that are copied one by one are copied by as many lanes as they may have vectors, up to
    /// a power of two.
    #[test]
    fn a_row_is_copied_by_a_lane_for_each_vector() {
        for (pass, rows) in passes() {
            let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
            let alignment = rows.alignment.min(rows.store_alignment);
            let vectors = (0..VECTOR).step_by(alignment.min(VECTOR));
            let vectors = vectors.map(|begin| (begin + rows.row_bytes()).div_ceil(VECTOR)).max();
            let lanes = vectors.map_or(1, |vectors| vectors.next_power_of_two().min(32));
            assert_eq!(1 << args.copy_shift, lanes, "{rows:?}");
        }
    }

    /// The tiles of a call: all as long as the first but for the last, which has a row at least.
    #[test]
    fn tiles_have_all_rows_of_a_call() {
        let layout = |cols| shapes().find(|rows| rows.cols == cols).expect("short enough");
        for cols in [1, 10, 64, 1000] {
            let packed = packed(Pass::Forward, layout(cols)).expect("a short row");
            let most = packed.args.rows as usize;
            for rows in [1, 2, most - 1, most, most + 1, 2 * most, 7 * most + 1, 1 << 30] {
                let args = packed.args_of(rows);
                let TileArgs { count, last_rows, .. } = args;
                let of_others = (count as usize - 1) * most;
                assert_eq!(of_others + last_rows as usize, rows, "{cols} columns");
                assert!((1..=most).contains(&(last_rows as usize)), "{cols} columns, {rows} rows");
                assert_eq!(TileArgs { count: 0, last_rows: 0, ..args }, packed.args);
            }
            assert_eq!(packed.args_of(0), packed.args);
        }
    }

    /// f32 rows or, with `element_bytes`, others, on boundaries of 16 bytes if they can be.
    fn dense(cols: usize, element_bytes: usize) -> Rows {
        let is_dense = |rows: &Rows| rows.strides[0] == rows.row_bytes() && rows.stores_span();
        let of = |rows: &Rows| rows.cols == cols && rows.element_bytes == element_bytes;
        let mut all = shapes().filter(|rows| rows.tiles == 1 && rows.alike);
        all.find(|rows| of(rows) && is_dense(rows)).expect("a short row")
    }

    /// A lane has a row to itself where rows fit into its registers or have at most 128 bytes. As
    /// many blocks as have registers on an H100's multiprocessor then have shared memory too.
    #[test]
    fn lanes_have_short_rows_to_themselves() {
        for (element_bytes, most) in [(2, 16), (4, 16), (8, 8)] {
            for cols in 1..=256 / element_bytes {
                let rows = dense(cols, element_bytes);
                let packed = packed(Pass::Forward, rows).expect("a short row");
                assert_eq!(packed.fits_lanes, cols <= most, "{rows:?}");
                if !packed.fits_lanes && rows.row_bytes() > 128 {
                    continue;
                }
                assert_eq!(packed.args.warp_rows_shift, 5, "{rows:?}");
                assert!(packed.args.rows.is_multiple_of(32), "{rows:?}");
                let blocks = if packed.fits_lanes { 7 } else { 5 };
                let bytes = packed.shared_bytes + (1 << 10);
                assert!(bytes * blocks <= 228 << 10, "{rows:?}: {packed:?}");
                // With 32 rows more in each tile, fewer would have.
                let more = WARPS * STAGES * 32 * (rows.row_bytes() + 8);
                let is_full = packed.args.rows == 32 * MAX_TURNS as u32
                    || (bytes + more) * (blocks + 1) > 228 << 10;
                assert!(is_full, "{rows:?}: {packed:?}");
            }
        }
        // Probabilities take registers of their own.
        let with_probabilities = shapes().find(|rows| rows.tiles == 2).expect("there are some");
        let rows = Rows { has_lane_rows: true, ..with_probabilities };
        assert!(!packed(Pass::Forward, rows).expect("a short row").fits_lanes);
    }

    /// A pass with gradients has shorter tiles of rows of 256 bytes and more.
    #[test]
    fn tiles_are_shorter_with_gradients() {
        let rows = |pass, cols, element_bytes| {
            packed(pass, dense(cols, element_bytes)).expect("a short row").args.rows
        };
        for (cols, element_bytes, forward, gradients) in
            [(64, 4, 32, 16), (511, 4, 4, 2), (255, 2, 16, 8), (63, 4, 32, 32)]
        {
            for (pass, expected) in [
                (Pass::Forward, forward),
                (Pass::Backward, gradients),
                (Pass::ForwardBackward, gradients),
            ] {
                assert_eq!(rows(pass, cols, element_bytes), expected, "{pass:?}, {cols} columns");
            }
        }
    }

    /// Blocks that are resident share the multiprocessor's shared memory, of which the driver takes
    /// a KiB for each.
    #[test]
    fn blocks_have_shared_memory_and_registers() {
        let packed = packed(Pass::Forward, dense(100, 4)).expect("a short row");
        let blocks = |shared_bytes, registers_for| {
            let device = Device { multiprocessors: 3, shared_bytes, registers_for };
            packed.blocks(Pass::Forward, 1 << 20, device)
        };
        let of_block = packed.shared_bytes + 1024;
        assert_eq!((blocks(4 * of_block, 9), blocks(4 * of_block - 1, 9)), (3 * 4, 3 * 3));
        assert_eq!((blocks(4 * of_block, 2), blocks(of_block - 1, 2)), (3 * 2, 3));
        // A tile for each of the four warps of a block, if there are fewer.
        let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
        let tiles = |tiles| tiles * packed.args.rows as usize;
        let blocks = |rows| packed.blocks(Pass::Forward, rows, device);
        assert_eq!((blocks(tiles(4 * 7)), blocks(tiles(4 * 7) + 1)), (7, 8));
    }

    /// Rows that are copied one by one do not share a vector of shared memory.
    #[test]
    fn rows_copied_one_by_one_share_no_vector() {
        for (pass, rows) in passes().filter(|(_, rows)| !rows.loads_span()) {
            let Some(packed) = packed(pass, rows) else { continue };
            let row_bytes = rows.cols * rows.element_bytes;
            let step = packed.args.step[0] as usize;
            assert_eq!(step % VECTOR, rows.strides[0] % VECTOR);
            for begins in (0..VECTOR).step_by(rows.alignment.min(VECTOR)) {
                let end = (begins + row_bytes).next_multiple_of(VECTOR);
                let next = begins + step;
                assert!(end <= next - next % VECTOR, "{rows:?}: {packed:?}");
            }
        }
    }

    /// The swizzle permutes the vectors of a row.
    #[test]
    fn lanes_stay_within_their_row() {
        for (pass, rows) in passes().filter(|(_, rows)| rows.alignment == 16) {
            let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
            if args.access < 16 {
                continue;
            }
            let vectors = (rows.row_bytes() / VECTOR) as u32;
            for row in 0..args.rows {
                let order = (row >> args.order_right & args.order_mask) << args.order_left;
                let mut taken: Vec<_> = (0..vectors).map(|vector| vector ^ order).collect();
                taken.sort_unstable();
                assert!(taken.into_iter().eq(0..vectors), "{rows:?}: {args:?}, row {row}");
            }
        }
    }

    /// Eight lanes that read 16 bytes each at the same time read from different banks.
    #[test]
    fn lanes_have_no_bank_conflicts() {
        let is_whole = |rows: &Rows| {
            rows.alignment == 16 && rows.strides[0] == rows.row_bytes() && rows.stores_span()
        };
        for (pass, rows) in passes().filter(|(_, rows)| is_whole(rows)) {
            let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
            let row_vectors = (rows.cols * rows.element_bytes / VECTOR) as u32;
            let warp_rows = 1 << args.warp_rows_shift;
            // With fewer than eight rows per warp, rows of an odd number of vectors are read in two
            // turns.
            if args.access < 16 || (warp_rows < 8 && !row_vectors.is_multiple_of(8 / warp_rows)) {
                continue;
            }
            let vector = |lane: u32| {
                let (row, part) = (lane % warp_rows, lane / warp_rows);
                let order = (row >> args.order_right & args.order_mask) << args.order_left;
                assert!(part ^ order < row_vectors.max(1), "{rows:?}: within the row");
                (row * row_vectors + (part ^ order)) % 8
            };
            let mut vectors: Vec<_> = (0..8).map(vector).collect();
            vectors.sort_unstable();
            assert_eq!(vectors, [0, 1, 2, 3, 4, 5, 6, 7], "{rows:?}: {args:?}");
        }
    }
}
