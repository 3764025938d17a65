//! Short rows, packed into tiles: how many rows a warp stages in shared memory, and how its lanes
//! share them.

use super::{Launch, Pass};
use kernels_gpu::abi::{CACHE_LINE, PACKED_BLOCK, TileArgs, VECTOR_BYTES, lane_row_cols};

/// Rows of up to so many bytes are packed, by the bytes of an element. Longer ones of 16 bits are
/// faster by a block each: H200, 2026-11-24, forward and backward in bf16, ceiling ÷ ours of 2000
/// columns packed is 0.73, of 2048 by blocks 0.88.
pub(crate) const fn most_row_bytes(element_bytes: usize) -> usize {
    if element_bytes == 2 { 2048 } else { 4096 }
}

/// Bytes of a tile: what a warp loads together, while it computes what it has. More bytes are more
/// under way, fewer leave room for more warps.
const TILE_BYTES: usize = 8 << 10;

/// The same in a pass that computes gradients, which has more to do for each byte, of rows from
/// `LONG_ROW_BYTES` on. H200, 2026-11-25, ceiling ÷ ours of gradients alone, with tiles of 8 KiB and
/// with these: 524288×64 f32 0.81 and 0.91, 65536×511 f32 0.73 and 0.85, 262144×255 bf16 0.66 and
/// 0.78; but 671088×100 bf16 0.77 and 0.75.
const GRADIENT_TILE_BYTES: usize = 5200;

/// See [`GRADIENT_TILE_BYTES`].
const LONG_ROW_BYTES: usize = 256;

/// Bytes of a stage of rows of at most `SMALL_ROW_BYTES`, which have one lane each: with two stages a
/// warp, five blocks fit into the shared memory of an H100's multiprocessor, as many as its
/// registers allow. A stage of fewer rows costs as many instructions.
const SMALL_STAGE_BYTES: usize = 5400;

/// See [`SMALL_STAGE_BYTES`].
const SMALL_ROW_BYTES: usize = 128;

/// Bytes of a tile's rows and classes, where a lane has a row: with two stages a warp, seven blocks
/// fit into the shared memory of an H100's multiprocessor, as many as its registers allow. Chosen,
/// not searched for.
const LANES_STAGE_BYTES: usize = 3680;

/// Tiles of a warp: one that it works on, and one under way.
const STAGES: usize = 2;

const WARPS: usize = PACKED_BLOCK as usize / 32;

/// Rows of a tile at most: each lane has so many, one after the other.
const TURNS: usize = 8;

/// Bytes of a vector.
const VECTOR: usize = VECTOR_BYTES as usize;

/// How the rows of a call are laid out in its tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// The largest power of two up to 128 that all rows of the tensors that are read begin at
    /// multiples of.
    pub(crate) alignment: usize,
    /// The same of those that are written.
    pub(crate) store_alignment: usize,
    /// Whether rows of what is written begin as far from a vector's boundary as those of what it is
    /// the gradient of.
    pub(crate) alike: bool,
    /// Bytes from row to row of the logits and of the probabilities; 0 where there are none.
    pub(crate) strides: [usize; 2],
    /// The same of their gradients.
    pub(crate) store_strides: [usize; 2],
    /// Whether there are kernels that give a lane a row.
    pub(crate) has_lane_rows: bool,
    /// Tiles of a block: one of logits, and one of probabilities.
    pub(crate) tiles: usize,
}

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Whether no tensor that is written has gaps between its rows.
    fn stores_span(&self) -> bool {
        self.store_strides.iter().all(|&stride| stride == 0 || stride == self.row_bytes())
    }

    /// Whether the rows of the tensors that are read are read with what is between them. A sector
    /// of memory has 32 bytes, so what is less costs next to nothing.
    fn loads_span(&self) -> bool {
        let row_bytes = self.row_bytes();
        let gap = (row_bytes / 8).max(32);
        let is_span = |stride| (row_bytes..=row_bytes + gap).contains(stride);
        self.strides.iter().all(|stride| *stride == 0 || is_span(stride))
    }
}

/// What the kernels need to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packed {
    pub(crate) args: TileArgs,
    /// Rows of the tiles that a block's warps work on at the same time.
    block_rows: usize,
    shared_bytes: usize,
    /// Whether a kernel with a lane per row takes them.
    pub(crate) fits_lanes: bool,
}

impl Packed {
    /// Blocks of a launch over `rows`: in a pass that only reads, as many as a device has room for,
    /// which stay until all rows are done. Where gradients are written, some times as many: blocks
    /// that begin in the order of memory keep reads and writes closer together. H200, 524288×256
    /// f32: 0.92 in place of 0.88 of the memory's limit, and forward no more.
    pub(crate) fn blocks(&self, pass: Pass, rows: usize, device: Device) -> usize {
        let Device { multiprocessors, shared_bytes, registers_for } = device;
        let room = (shared_bytes / (self.shared_bytes + RESERVED)).clamp(1, registers_for);
        let times = if pass == Pass::Forward { 1 } else { TIMES };
        rows.div_ceil(self.block_rows).min(multiprocessors * room * times)
    }

    /// What the kernels need to know of `rows` rows.
    pub(crate) fn args_of(&self, rows: usize) -> TileArgs {
        let of_tile = self.args.rows as usize;
        let count = rows.div_ceil(of_tile);
        let last_rows = rows - count.saturating_sub(1) * of_tile;
        TileArgs { count: count as u32, last_rows: last_rows as u32, ..self.args }
    }

    /// The launch of so many blocks.
    pub(crate) fn launch(&self, blocks: usize) -> Launch {
        let shared_bytes = self.shared_bytes as u32;
        Launch { blocks: blocks as u32, threads: PACKED_BLOCK, shared_bytes, cooperative: false }
    }
}

/// See [`Packed::blocks`].
const TIMES: usize = 8;

/// Bytes of shared memory of each block that are the driver's.
pub(crate) const RESERVED: usize = 1 << 10;

/// What a device has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub(crate) shared_bytes: usize,
    /// Blocks of the kernel that a multiprocessor has registers for.
    pub(crate) registers_for: usize,
}

/// The shared memory that a block may have on the smallest device, of compute capability 8.6.
const MOST_SHARED_BYTES: usize = 99 << 10;

/// Where rows of two tensors are in shared memory.
#[derive(Clone, Copy)]
struct Placed {
    /// Bytes from row to row, as `TileArgs::step`.
    steps: [usize; 2],
    /// Bytes that the first row may be behind a cache line's beginning.
    lead: usize,
}

impl Placed {
    /// Of rows of `row_bytes` that are aligned to `alignment` and `strides` bytes apart in global
    /// memory; in shared memory too, if they are one span, or else as close as they can be where
    /// each has vectors of its own.
    fn new(row_bytes: usize, alignment: usize, strides: [usize; 2], is_span: bool) -> Self {
        let line = CACHE_LINE as usize;
        let lead = line - alignment.min(line);
        if is_span {
            return Placed { steps: strides, lead };
        }
        // A row may begin anywhere in its first vector that its alignment allows. An odd number of
        // vectors from row to row, so that rows begin in other banks.
        let vectors = (VECTOR - alignment.min(VECTOR) + row_bytes).div_ceil(VECTOR);
        let steps = strides.map(|stride| (vectors | 1) * VECTOR + stride % VECTOR);
        Placed { steps, lead }
    }

    fn step(&self) -> usize {
        self.steps[0].max(self.steps[1])
    }

    /// Bytes of a tile of so many rows.
    fn bytes(&self, rows: usize) -> usize {
        (self.lead + rows * self.step()).next_multiple_of(CACHE_LINE as usize)
    }
}

/// How rows are packed, if they are short enough.
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
    // Tiles that a warp has, and the bytes of a row in the one that has the most.
    let tiles = if rows.alike { STAGES } else { STAGES + 1 };
    // Tensors without rows have no strides.
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
    let tile_rows = warp_rows * turns.clamp(1, TURNS);
    let bytes = read.bytes(tile_rows).max(written.bytes(tile_rows));
    // With a class of eight bytes a row, where there are no probabilities.
    let classes = if rows.tiles == 1 { tile_rows * 8 + VECTOR } else { 0 };
    let stage_bytes = (rows.tiles * bytes + classes).next_multiple_of(CACHE_LINE as usize);
    let gradients = if rows.alike { 0 } else { STAGES * stage_bytes };
    let warp_bytes = STAGES * stage_bytes + if rows.alike { 0 } else { rows.tiles * bytes };
    let shared_bytes = WARPS * warp_bytes;
    if shared_bytes > MOST_SHARED_BYTES {
        return None;
    }
    // As many lanes copy a row as it has vectors.
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
        // In place, there may be gaps between rows in shared memory where there are none in global
        // memory.
        store_span: (stores_span && written.steps[0] == row_bytes).into(),
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

/// In which order lanes take the vectors of their rows; see [`TileArgs::order_right`].
///
/// Eight lanes at once read 16 bytes each, of eight rows or of fewer with some vectors each, and
/// all banks serve them together where their vectors' numbers differ modulo eight. Rows that are 2ᵃ
/// vectors long, or a multiple, differ in the bits from a on; what is left of a row's number is
/// exchanged for bits below.
///
/// Exchanging these bits keeps a lane within its row only if rows are a multiple of 2ᵃ vectors long
/// too, and not just apart.
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
                // Without gaps, with short ones, and with gaps that nobody would read.
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

    /// Tiles fit into the shared memory that a block may have, and rows into tiles: all rows but
    /// the longest with probabilities and gradients that are aligned differently.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for (pass, rows) in passes() {
            let row_bytes = rows.cols * rows.element_bytes;
            let Some(packed) = packed(pass, rows) else {
                assert!(rows.tiles == 2 && !rows.alike && row_bytes > 3 << 10, "{rows:?}");
                continue;
            };
            let TileArgs { rows: of_tile, bytes, step, .. } = packed.args;
            assert!(packed.shared_bytes <= MOST_SHARED_BYTES, "{rows:?}: {packed:?}");
            assert!(bytes.is_multiple_of(CACHE_LINE));
            // The last row of a tile that begins as far behind a cache line as it may.
            let misaligned = |of: usize| of - rows.alignment.min(of);
            let others = (of_tile as usize - 1) * step[0] as usize;
            let end = misaligned(CACHE_LINE as usize) + others + row_bytes;
            assert!(end.next_multiple_of(VECTOR) <= bytes as usize, "{rows:?}: {packed:?}");
        }
    }

    /// Rows that are copied one by one do not share a vector of shared memory.
    #[test]
    fn rows_of_their_own_share_no_vector() {
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

    /// In whatever order, the vectors of a row are its own.
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

    /// Eight lanes that read 16 bytes each at the same time do so from all banks.
    #[test]
    fn lanes_do_not_meet_in_a_bank() {
        let is_whole = |rows: &Rows| {
            rows.alignment == 16 && rows.strides[0] == rows.row_bytes() && rows.stores_span()
        };
        for (pass, rows) in passes().filter(|(_, rows)| is_whole(rows)) {
            let Some(Packed { args, .. }) = packed(pass, rows) else { continue };
            let row_vectors = (rows.cols * rows.element_bytes / VECTOR) as u32;
            let warp_rows = 1 << args.warp_rows_shift;
            // Rows of fewer than eight that are an odd number of vectors long are read in two
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
