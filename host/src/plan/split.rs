//! Rows that a group of blocks shares in the pass that computes loss and gradients: which rows, how
//! many blocks share one, and how many rows are computed at a time.

use super::Launch;
use super::packed::Device;
use super::staged::most_lead;
use kernels_gpu::abi::{STAGED_BATCH_VECTORS, VECTOR_BYTES, max_tickets};
use std::num::NonZeroU32;

/// A launch of `forward_backward_split`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Split {
    pub(crate) launch: Launch,
    /// Blocks that share a row.
    pub(crate) splits: NonZeroU32,
    /// Vectors of a part. A block has one part.
    pub(crate) part_vectors: u32,
    /// Rows that a group of blocks takes at a time.
    pub(crate) rows_of_ticket: NonZeroU32,
}

/// Bytes of a tile: parts consist of whole ones.
const TILE_BYTES: usize = (STAGED_BATCH_VECTORS * VECTOR_BYTES) as usize;

/// The fewest tiles of a part: 8 KiB. Chosen, not searched for.
const MIN_PART_TILES: usize = 4;

/// Whether several blocks share a row in the pass that computes loss and gradients. A single block
/// can take rows of any length, but reads most of a long row twice: its registers and shared memory
/// have room for 260 KB of a row in f32, 290 KB in 16 bits, and too little in f64. With label
/// smoothing its block is half as large. There, in f64 and from probabilities, several blocks share
/// all rows that one block has no room to stage.
///
/// H200, 2026-11-26, ceiling ÷ ours with a block and with several blocks per row:
///
/// - f32: 65536 columns 0.92 and 0.89, 80001 columns 0.82 and 0.86, 128256 columns 0.70 and 0.88
/// - bf16: 151936 columns 0.87 and 0.83, 200000 columns 0.73 and 0.81
/// - f64: 16384 columns 0.59 and 0.73, 131072 columns 0.54 and 0.78
///
/// With label smoothing (2026-11-30):
///
/// - bf16, class weights: 60000 columns 0.50 and 0.66, 62000 columns 0.50 and 0.59
/// - bf16: 62000 columns 0.72 and 0.72
/// - f32, class weights: 30000 columns 0.52 and 0.71
/// - f32: 29000 columns 0.79 and 0.82
///
/// From probabilities (2026-11-28):
///
/// - f32: 20,984 columns 0.61 and 0.80, 131,072 columns 0.56 and 0.83
/// - f64: 8192 columns 0.33 and 0.70
pub(crate) fn is_split(
    row_bytes: usize,
    element_bytes: usize,
    tensors: usize,
    is_smoothed: bool,
) -> bool {
    let most = match element_bytes {
        8 => 0,
        _ if tensors == 2 || is_smoothed => 0,
        4 => 288 << 10,
        _ => 352 << 10,
    };
    row_bytes > most
}

/// The launch over `rows` rows of `cols` elements and of this `alignment`. The rows are of logits,
/// with `tensors` of 2 also of probabilities. A block has at most `threads`
/// threads, and at most `dynamic_bytes` of dynamic shared memory, which it gets if it is alone on
/// its multiprocessor. `None` if there is no row, or one has more bytes than the shared memory of
/// the whole device.
///
/// In f64, a multiprocessor takes one block more if blocks are smaller than its registers allow,
/// provided that shared memory has room for it too. H200, 2026-11-27, ceiling ÷ ours with two and
/// with three blocks:
///
/// - 2749×14300 0.66 and 0.75, 6116×15000 0.70 and 0.80, 4368×18001 0.70 and 0.78
/// - 1966×20000, where three small blocks instead of two share a row: 0.76 and 0.74
pub(crate) fn split(
    rows: usize,
    cols: usize,
    element_bytes: usize,
    tensors: usize,
    alignment: usize,
    (threads, dynamic_bytes): (u32, u32),
    device: Device,
) -> Option<Split> {
    let Device { multiprocessors, shared_bytes, registers_for } = device;
    let lanes = VECTOR_BYTES as usize / element_bytes;
    let vectors = cols / lanes + most_lead(alignment);
    let tiles = vectors.div_ceil(STAGED_BATCH_VECTORS as usize);
    // The part of each block's share of the multiprocessor's shared memory that is not dynamic.
    let others = shared_bytes - dynamic_bytes as usize;
    let tile_bytes = tensors * TILE_BYTES;
    let room_beside = |blocks: usize| (shared_bytes / blocks).saturating_sub(others) / tile_bytes;
    let fewest_of = |room: usize| tiles.div_ceil(room.max(1));
    // Use smaller blocks if a row does not need more of them, and if there are rows for all.
    let small = registers_for + 1;
    let fewest_small = fewest_of(room_beside(small));
    let (resident, threads) = if element_bytes == 8
        && fewest_small == fewest_of(room_beside(registers_for))
        && rows * fewest_small >= multiprocessors * small
    {
        (small, threads * registers_for as u32 / small as u32 / 32 * 32)
    } else {
        (registers_for, threads)
    };
    let (blocks, room) = (multiprocessors * resident, room_beside(resident));
    let fewest = fewest_of(room);
    if rows == 0 || room == 0 || fewest > blocks {
        return None;
    }
    let most = tiles.div_ceil(MIN_PART_TILES).min(blocks);
    let at_once = (blocks / rows).min(most);
    let (groups, parts) = if at_once >= fewest {
        (rows, at_once)
    } else {
        // Share each row among the fewest blocks that have room for it, and compute at the same
        // time all rows for which blocks suffice; then reduce that number as long as it takes no
        // more rounds.
        let rounds = rows.div_ceil(blocks / fewest);
        let groups = rows.div_ceil(rounds);
        (groups, (blocks / groups).min(most))
    };
    let part_tiles = tiles.div_ceil(parts);
    let parts = tiles.div_ceil(part_tiles);
    let blocks = (groups * parts) as u32;
    Some(Split {
        launch: Launch {
            blocks,
            threads,
            shared_bytes: (part_tiles * tile_bytes) as u32,
            cooperative: true,
        },
        splits: NonZeroU32::new(parts as u32)?,
        part_vectors: part_tiles as u32 * STAGED_BATCH_VECTORS,
        rows_of_ticket: NonZeroU32::new(rows.div_ceil(max_tickets(blocks) as usize) as u32)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::{EXCHANGE_ROUNDS, EXCHANGE_WORDS, MAX_PARTIALS};

    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 2 };

    /// The dynamic bytes of a block that has a multiprocessor to itself, besides 2432 bytes of its
    /// arrays and the driver's KiB.
    const DYNAMIC_BYTES: u32 = (227 << 10) - 2432;

    /// Bytes that a block may stage if another block shares its multiprocessor.
    const ROOM: u32 = (228 << 10) / 2 - 2432 - 1024;

    fn plan(rows: usize, cols: usize, element_bytes: usize) -> Option<Split> {
        split(rows, cols, element_bytes, 1, element_bytes, (320, DYNAMIC_BYTES), DEVICE)
    }

    /// Blocks of the grid, and blocks that share a row.
    fn blocks(rows: usize, cols: usize) -> (u32, u32) {
        let Split { launch, splits, .. } = plan(rows, cols, 4).expect("rows that fit");
        (launch.blocks, splits.get())
    }

    #[test]
    fn few_rows_take_all_blocks_at_once() {
        // 264 blocks for four rows of 513 tiles each: parts of 8 tiles.
        assert_eq!(blocks(4, 262_144), (4 * 65, 65));
    }

    #[test]
    fn many_rows_are_shared_by_as_few_blocks_as_have_room() {
        // 251 tiles, and a block has room for 55: five blocks per row, and 52 groups of them.
        assert_eq!(blocks(4096, 128_256), (52 * 5, 5));
    }

    /// The last round is as full as the others: 60 rows take two rounds of 30, not of 52 and 8.
    #[test]
    fn all_rounds_have_as_many_rows() {
        assert_eq!(blocks(60, 128_256), (30 * 8, 8));
    }

    #[test]
    fn rows_that_one_block_has_room_for_are_not_split() {
        assert!(is_split(120_000, 2, 1, true) && is_split(120_000, 4, 1, true));
        let is_split = |cols: usize, bytes| is_split(cols * bytes, bytes, 1, false);
        assert!(!is_split(65_536, 4) && is_split(80_001, 4));
        assert!(!is_split(151_936, 2) && is_split(200_000, 2));
        assert!(is_split(16_384, 8));
        assert!(super::is_split(60_000, 4, 2, false));
    }

    /// 70 tiles: two parts of 35, three of which fit a multiprocessor. 79 tiles would be three
    /// parts.
    #[test]
    fn rows_of_f64_have_three_small_blocks_if_that_takes_no_more_parts() {
        let blocks = |rows, cols, bytes| {
            let Split { launch, splits, .. } = plan(rows, cols, bytes).expect("rows that fit");
            (launch.blocks, launch.threads, splits.get())
        };
        assert_eq!(blocks(19_800, 17_837, 8), (198 * 2, 192, 2));
        assert_eq!(blocks(19_800, 20_000, 8), (132 * 2, 320, 2));
        assert_eq!(blocks(19_800, 2 * 17_837, 4), (132 * 2, 320, 2));
        // With fewer rows than fill three blocks on each multiprocessor, blocks are large.
        assert_eq!((blocks(198, 17_837, 8).1, blocks(197, 17_837, 8).1), (192, 320));
    }

    /// Vectors are numbered from the cache line in which a row begins, so a row may take the seven
    /// vectors before it too.
    #[test]
    fn the_line_before_a_row_is_in_its_first_part() {
        let parts = |vectors: usize| blocks(1, 4 * vectors).1;
        assert_eq!((parts(8 * 128 - 7), parts(8 * 128 - 6)), (2, 3));
    }

    #[test]
    fn no_rows_and_rows_beyond_the_shared_memory_of_a_device_are_not_shared() {
        assert_eq!(plan(0, 262_144, 4), None);
        let most = 264 * (ROOM as usize / TILE_BYTES) * TILE_BYTES - 7 * 16;
        assert!(plan(3, most / 4, 4).is_some() && plan(3, most / 4 + 4, 4).is_none());
    }

    #[test]
    fn every_vector_of_a_row_is_in_a_part_and_the_grid_is_resident() {
        for rows in [1, 2, 33, 44, 60, 131, 132, 133, 1000, 1 << 20] {
            for cols in [1, 100, 50_257, 128_256, 262_144, 3_000_000] {
                for element_bytes in [2, 4, 8] {
                    let what = format!("{rows}x{cols} of {element_bytes} bytes");
                    let Split { launch, splits, part_vectors, rows_of_ticket } =
                        plan(rows, cols, element_bytes).expect(&what);
                    let vectors = cols as u64 * element_bytes as u64 / 16 + 7;
                    let of_parts = u64::from(splits.get()) * u64::from(part_vectors);
                    assert!(of_parts >= vectors, "{what}");
                    assert!(launch.cooperative, "{what}");
                    let resident = if launch.threads == 320 { 2 } else { 3 };
                    assert!(
                        launch.blocks <= 132 * resident && launch.blocks % splits == 0,
                        "{what}"
                    );
                    assert!(launch.blocks / splits <= rows as u32, "{what}");
                    assert_eq!(launch.shared_bytes, 16 * part_vectors, "{what}");
                    assert!(launch.threads * resident <= 2 * 320, "{what}");
                    let block = launch.shared_bytes + 2432 + 1024;
                    assert!(block * resident <= 228 << 10, "{what}");
                    // Two sums per ticket, the words of the exchange, and two counters.
                    let tickets = (rows as u32).div_ceil(rows_of_ticket.get());
                    let exchanged = launch.blocks * EXCHANGE_ROUNDS * EXCHANGE_WORDS;
                    assert!(2 * tickets + exchanged + 2 <= MAX_PARTIALS, "{what}");
                }
            }
        }
    }
}
