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

/// Bytes that a warp loads together, if its rows are short enough: they travel while others are
/// computed.
const TILE_BYTES: usize = 8 << 10;

/// The same of rows of at most `SMALL_ROW_BYTES`: most of their work is done once a row, and more
/// warps on a multiprocessor hide its latency better than more bytes under way. H200, 2026-11-25,
/// ceiling ÷ ours with tiles of 8 and of 4 KiB: 6710886×10 f32 forward 0.48 and 0.58, with
/// gradients 0.46 and 0.59; 13421772×10 bf16 0.28 and 0.35, 0.24 and 0.32; 4194304×32 bf16 forward
/// 0.64 and 0.70. The tile was not all that changed between the two, and the threshold was not
/// searched for.
const SMALL_TILE_BYTES: usize = 4 << 10;

/// See [`SMALL_TILE_BYTES`].
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

/// Rows, as they lie in all tensors of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// The largest power of two up to 128 that all rows of the tensors that are read begin at
    /// multiples of.
    pub(crate) alignment: usize,
    /// The same of those that are written.
    pub(crate) store_alignment: usize,
    /// Whether rows of what is written begin as far from a vector's boundary as those of the input.
    pub(crate) alike: bool,
    /// Whether no tensor has gaps between its rows.
    pub(crate) contiguous: bool,
    /// Whether there are kernels that give a lane a row.
    pub(crate) has_lane_rows: bool,
    /// Tiles of a block: one of logits, and one of probabilities.
    pub(crate) tiles: usize,
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

/// How rows are packed, if they are short enough.
pub(crate) fn packed(rows: Rows) -> Option<Packed> {
    let row_bytes = rows.cols * rows.element_bytes;
    if row_bytes > most_row_bytes(rows.element_bytes) {
        return None;
    }
    let power_of_two_in = |bytes: usize| 1 << bytes.trailing_zeros().min(4);
    let access = rows.alignment.min(power_of_two_in(row_bytes));
    let alignment = rows.alignment.min(rows.store_alignment);
    // A row may begin anywhere in its first vector that its alignment allows.
    let vectors = (VECTOR - alignment.min(VECTOR) + row_bytes).div_ceil(VECTOR);
    let pitch = if rows.contiguous { 0 } else { (vectors | 1) * VECTOR };
    let tile_bytes = if row_bytes <= SMALL_ROW_BYTES { SMALL_TILE_BYTES } else { TILE_BYTES };
    let fit = (tile_bytes / rows.tiles / row_bytes.max(pitch)).max(1);
    let warp_rows = if fit >= 32 { 32 } else { 1 << fit.ilog2() };
    let fits_lanes = rows.has_lane_rows
        && rows.cols <= lane_row_cols(rows.element_bytes as u32) as usize
        && warp_rows == 32
        && rows.tiles == 1
        && rows.contiguous
        && rows.alike;
    let turns = if fits_lanes {
        LANES_STAGE_BYTES / ((row_bytes + 8) * warp_rows)
    } else {
        fit / warp_rows
    };
    let tile_rows = warp_rows * turns.clamp(1, TURNS);
    let bytes = if rows.contiguous {
        // Rows begin as far from a cache line in shared memory as they do in global memory.
        let line = CACHE_LINE as usize;
        (line - rows.alignment.min(line) + tile_rows * row_bytes).next_multiple_of(line)
    } else {
        tile_rows * pitch
    };
    // With a class of eight bytes a row, where there are no probabilities.
    let classes = if rows.tiles == 1 { tile_rows * 8 + VECTOR } else { 0 };
    let stage_bytes = (rows.tiles * bytes + classes).next_multiple_of(CACHE_LINE as usize);
    let [order_right, order_mask, order_left] = order(access, row_bytes, pitch, warp_rows);
    let args = TileArgs {
        rows: tile_rows as u32,
        warp_rows_shift: warp_rows.trailing_zeros(),
        access: access as u32,
        pitch: pitch as u32,
        alike: rows.alike.into(),
        order_right,
        order_mask,
        order_left,
        bytes: bytes as u32,
        stage_bytes: stage_bytes as u32,
    };
    let shared_bytes = WARPS * STAGES * stage_bytes;
    Some(Packed { args, block_rows: WARPS * tile_rows, shared_bytes, fits_lanes })
}

/// In which order lanes take the vectors of their rows; see [`TileArgs::order_right`].
///
/// Eight lanes at once read 16 bytes each, of eight rows or of fewer with some vectors each, and
/// all banks serve them together where their vectors' numbers differ modulo eight. Rows that are 2ᵃ
/// vectors long, or a multiple, differ in the bits from a on; what is left of a row's number is
/// exchanged for bits below.
fn order(access: usize, row_bytes: usize, pitch: usize, warp_rows: usize) -> [u32; 3] {
    let row = if pitch == 0 { row_bytes } else { pitch };
    if access < VECTOR {
        return [0; 3];
    }
    let a = (row / VECTOR).trailing_zeros().min(3);
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
                let natural = 1 << (cols * element_bytes).trailing_zeros().min(4);
                [(natural, true), (16, false), (element_bytes, true), (element_bytes, false)]
                    .into_iter()
                    .flat_map(move |lie| [(lie, 1), (lie, 2)])
                    .map(move |((alignment, contiguous), tiles)| Rows {
                        cols,
                        element_bytes,
                        alignment,
                        store_alignment: alignment,
                        alike: true,
                        contiguous,
                        has_lane_rows: tiles == 1,
                        tiles,
                    })
            })
        })
    }

    /// Tiles fit into the shared memory that a block may have on the smallest device, of compute
    /// capability 8.6.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for rows in shapes() {
            let packed = packed(rows).expect("short enough");
            let TileArgs { rows: of_tile, bytes, .. } = packed.args;
            let row_bytes = rows.cols * rows.element_bytes;
            assert!(packed.shared_bytes <= 99 << 10, "{rows:?}: {packed:?}");
            assert!(of_tile as usize * row_bytes <= bytes as usize);
            assert!(bytes.is_multiple_of(16));
        }
    }

    /// Eight lanes that read 16 bytes each at the same time do so from all banks.
    #[test]
    fn lanes_do_not_meet_in_a_bank() {
        for rows in shapes().filter(|rows| rows.alignment == 16 && rows.contiguous) {
            let args = packed(rows).expect("short enough").args;
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
