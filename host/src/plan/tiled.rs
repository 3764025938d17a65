//! Elementwise losses that are reduced by row, and long rows with gaps: how rows are cut into the
//! tiles of persistent blocks.

use super::packed::{Device, RESERVED};
use super::{Launch, RowsLaunch};
use kernels_gpu::abi::{CACHE_LINE, MAX_PARTIALS, TILED_BLOCK, TiledArgs, VECTOR_BYTES, reduction};
use std::num::NonZeroU32;

/// The rows of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// One of [`reduction`].
    pub(crate) reduction: u32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) element_bytes: usize,
    /// Whether no tensor has gaps between its rows.
    pub(crate) contiguous: bool,
    /// The largest power of two up to 128 to which all rows are aligned, in bytes, in every tensor.
    pub(crate) alignment: usize,
    /// Whether each row has the same offset from a 16-byte boundary in all tensors.
    pub(crate) alike: bool,
}

/// The launch of a tiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tiled {
    pub(crate) rows: RowsLaunch,
    pub(crate) args: TiledArgs,
}

const VECTOR: usize = VECTOR_BYTES as usize;
const BLOCK: usize = TILED_BLOCK as usize;
const WARPS: usize = BLOCK / 32;

/// The most vectors of a tile: four for each thread. Three blocks of a multiprocessor then have
/// shared memory for their stages.
const MOST_VECTORS: usize = 4 * BLOCK;

/// The fewest bytes of a row that is not packed. A block computes one such row at a time. Chosen,
/// not searched for.
const LEAST_ROW_BYTES: usize = 4 << 10;

/// The most parts of a row that several blocks share.
const MOST_SPLITS: usize = 64;

/// About how many sums of a row a lane adds up, if there are enough lanes. Chosen, not searched
/// for.
const SUMS_PER_LANE: usize = 8;

/// Bytes of the shared arrays of the kernels, as their PTX declares them.
pub(crate) const ARRAYS_BYTES: usize = 1536;

impl Rows {
    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Vectors of shared memory behind those of a warp.
    fn padding(&self) -> usize {
        if self.alike { 0 } else { TiledArgs::PADDING as usize }
    }

    /// Bytes of two stages, each with a tile of two tensors.
    fn stage_bytes(&self, vectors: usize) -> usize {
        2 * 2 * (vectors + WARPS * self.padding()) * VECTOR
    }

    /// Elements of a vector.
    fn lanes(&self) -> usize {
        VECTOR / self.element_bytes
    }

    /// Bytes of a sum.
    fn real_bytes(&self) -> usize {
        self.element_bytes.max(4)
    }

    /// The most bytes between a cache line and a row that begins in it.
    fn most_lead(&self) -> usize {
        CACHE_LINE as usize - self.alignment
    }

    /// The most blocks of packed rows that share a multiprocessor: two in f64, whose sums are so
    /// large that tiles of three would be too small. H200, 2026-11-26, MSE of 50331×1000, forward:
    /// 0.94 of the ceiling with two, 0.81 with three.
    fn most_resident(&self) -> usize {
        if self.element_bytes == 8 { 2 } else { usize::MAX }
    }

    /// The sums of a vector of packed rows.
    fn vector_sums(&self) -> usize {
        if self.alignment.is_multiple_of(VECTOR) && self.row_bytes().is_multiple_of(VECTOR) {
            1
        } else if self.cols < self.lanes() {
            self.lanes()
        } else {
            2
        }
    }

    /// Vectors of a tile of packed rows: a multiple of the block's threads.
    fn vectors_of(&self, tile_rows: usize) -> usize {
        let bytes = self.most_lead() + tile_rows * self.row_bytes();
        bytes.div_ceil(VECTOR).next_multiple_of(BLOCK)
    }

    /// Bytes of shared memory of a block for tiles of packed rows.
    fn packed_bytes(&self, tile_rows: usize) -> usize {
        let vectors = self.vectors_of(tile_rows);
        let reals = vectors * self.vector_sums() + tile_rows;
        self.stage_bytes(vectors) + 2 * reals * self.real_bytes()
    }

    /// Rows after which a tile begins at a multiple of `bytes` again, if the first one does.
    fn period(&self, bytes: usize) -> usize {
        let common = self.row_bytes() | bytes;
        bytes >> common.trailing_zeros().min(bytes.trailing_zeros())
    }

    /// The rows of a tile of at most `most` rows, such that tiles begin at cache lines, or else at
    /// vectors, if that costs an eighth of the rows or less. Chosen, not searched for.
    fn aligned(&self, most: usize) -> usize {
        [CACHE_LINE as usize, VECTOR]
            .map(|bytes| most / self.period(bytes) * self.period(bytes))
            .into_iter()
            .find(|&rows| rows > 0 && 8 * rows >= 7 * most)
            .unwrap_or(most)
    }

    /// The rows of a tile, if at least two rows fit into the shared memory that a block has.
    fn rows_of_tile(&self, block_bytes: usize, blocks: usize) -> Option<usize> {
        let room = (MOST_VECTORS * VECTOR - self.most_lead()) / self.row_bytes();
        let mut most = self.aligned(room.min(self.rows));
        while most > 1 && self.packed_bytes(most) > block_bytes {
            most = self.aligned(most - most.div_ceil(8));
        }
        if most < 2 {
            return None;
        }
        // Equal shares for all blocks.
        let turns = self.rows.div_ceil(most).div_ceil(blocks);
        let share = self.rows.div_ceil(turns * blocks);
        let period = self.period(CACHE_LINE as usize);
        Some(share.next_multiple_of(period).min(most))
    }
}

/// The launch over `rows`; `None` if other kernels have to compute them, or compute them faster.
pub(crate) fn tiled(rows: &Rows, device: Device) -> Option<Tiled> {
    if rows.rows == 0 || rows.cols == 0 || rows.row_bytes() >= 1 << 30 {
        return None;
    }
    if rows.contiguous && rows.reduction == reduction::ROWS {
        let resident = device.registers_for.min(rows.most_resident());
        let (block_bytes, blocks) = share(device, resident);
        if let Some(tile_rows) = rows.rows_of_tile(block_bytes, blocks) {
            return pack(rows, tile_rows, blocks);
        }
    }
    let (block_bytes, blocks) = share(device, device.registers_for);
    (rows.row_bytes() >= LEAST_ROW_BYTES).then(|| cut(rows, block_bytes, blocks)).flatten()
}

/// The bytes of shared memory for tiles of a block, and the blocks of a device, where `resident`
/// blocks share a multiprocessor.
fn share(device: Device, resident: usize) -> (usize, usize) {
    let bytes = (device.shared_bytes / resident).saturating_sub(RESERVED + ARRAYS_BYTES);
    (bytes, device.multiprocessors * resident)
}

/// Tiles of `tile_rows` packed rows.
fn pack(rows: &Rows, tile_rows: usize, blocks: usize) -> Option<Tiled> {
    let vectors = rows.vectors_of(tile_rows);
    let sums = rows.stage_bytes(vectors);
    let scales = sums + 2 * vectors * rows.vector_sums() * rows.real_bytes();
    let items = i32::try_from(rows.rows.div_ceil(tile_rows)).ok()? as usize;
    let args = TiledArgs {
        rows: tile_rows as u32,
        of_row: 1,
        items: items as u32,
        vectors: vectors as u32,
        vector_sums: rows.vector_sums() as u32,
        // 2³² for one column, which is 0 here.
        per_col: (1_u64 << 32).div_ceil(rows.cols as u64) as u32,
        padding: rows.padding() as u32,
        sums: sums as u32,
        scales: scales as u32,
    };
    let row_sums = rows.cols.div_ceil(rows.lanes()) * rows.vector_sums();
    let group_threads = (row_sums / SUMS_PER_LANE).next_power_of_two().min(32);
    Some(launch(rows.packed_bytes(tile_rows), items.min(blocks), group_threads, 1, args))
}

/// Tiles of long rows.
fn cut(rows: &Rows, block_bytes: usize, blocks: usize) -> Option<Tiled> {
    let row_vectors = (rows.most_lead() + rows.row_bytes()).div_ceil(VECTOR);
    let mut vectors = MOST_VECTORS.min(row_vectors.next_multiple_of(BLOCK));
    while vectors > BLOCK && rows.stage_bytes(vectors) > block_bytes {
        vectors -= BLOCK;
    }
    let of_row = row_vectors.div_ceil(vectors);
    // Tiles of the same size, as far as a tile has as many vectors for each thread.
    let vectors = row_vectors.div_ceil(of_row).next_multiple_of(BLOCK);
    let splits = splits(rows, of_row, blocks);
    let items = i32::try_from(rows.rows.checked_mul(splits)?).ok()? as usize;
    let args = TiledArgs {
        of_row: of_row as u32,
        items: items as u32,
        vectors: vectors as u32,
        padding: rows.padding() as u32,
        ..TiledArgs::default()
    };
    Some(launch(rows.stage_bytes(vectors), items.min(blocks), 32, splits, args))
}

/// The parts of a row of `tiles` tiles with which the block that has most to do is done first. What
/// a part costs besides its tiles counts as half of one.
fn splits(rows: &Rows, tiles: usize, blocks: usize) -> usize {
    let mut most = tiles.min(MOST_SPLITS);
    if rows.reduction == reduction::ROWS {
        most = most.min(MAX_PARTIALS as usize / rows.rows);
    }
    let time =
        |splits: &usize| (rows.rows * splits).div_ceil(blocks) * (2 * tiles.div_ceil(*splits) + 1);
    (1..=most).min_by_key(time).unwrap_or(1)
}

fn launch(
    shared_bytes: usize,
    blocks: usize,
    group_threads: usize,
    splits: usize,
    args: TiledArgs,
) -> Tiled {
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    let launch = Launch {
        blocks: blocks as u32,
        threads: TILED_BLOCK,
        shared_bytes: shared_bytes as u32,
        cooperative: false,
    };
    let rows = RowsLaunch { launch, group_threads: number(group_threads), splits: number(splits) };
    Tiled { rows, args }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200's room for kernels of two blocks, and of three; and that of smaller devices.
    const DEVICES: [Device; 4] = [
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 2 },
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 },
        Device { multiprocessors: 84, shared_bytes: 100 << 10, registers_for: 3 },
        Device { multiprocessors: 2, shared_bytes: 64 << 10, registers_for: 1 },
    ];

    fn dense(rows: usize, cols: usize, element_bytes: usize) -> Rows {
        let bits = 128 | (cols * element_bytes);
        Rows {
            reduction: reduction::ROWS,
            rows,
            cols,
            element_bytes,
            contiguous: true,
            alignment: 1 << bits.trailing_zeros(),
            alike: true,
        }
    }

    fn each_plan(mut check: impl FnMut(&Rows, Device, Tiled)) {
        let lengths = (1..300).chain([1_000, 1_023, 2_048, 2_050, 4_095, 8_192, 20_003, 262_144]);
        for (cols, device) in lengths.flat_map(|cols| DEVICES.map(|device| (cols, device))) {
            for (rows, element_bytes) in [1, 7, 396, 1_000, 1 << 20]
                .into_iter()
                .flat_map(|rows| [2, 4, 8].map(|b| (rows, b)))
            {
                let dense = dense(rows, cols, element_bytes);
                for rows in [dense, Rows { alignment: element_bytes, alike: false, ..dense }] {
                    if let Some(plan) = tiled(&rows, device) {
                        check(&rows, device, plan);
                    }
                }
            }
        }
    }

    #[test]
    fn the_blocks_of_a_launch_are_resident() {
        each_plan(|rows, device, Tiled { rows: RowsLaunch { launch, .. }, .. }| {
            let bytes = launch.shared_bytes as usize + RESERVED + ARRAYS_BYTES;
            let resident = match launch.blocks {
                blocks if blocks as usize > 2 * device.multiprocessors => device.registers_for,
                _ => device.registers_for.min(2),
            };
            assert!(bytes * resident <= device.shared_bytes, "{rows:?}: {bytes}");
            let blocks = device.multiprocessors * device.registers_for;
            assert!(launch.blocks as usize <= blocks && launch.blocks > 0, "{rows:?}");
        });
    }

    #[test]
    fn tiles_have_all_vectors_of_all_rows() {
        each_plan(|rows, _, Tiled { rows: RowsLaunch { splits, .. }, args }| {
            assert!(args.vectors.is_multiple_of(TILED_BLOCK) && args.vectors <= 4 * TILED_BLOCK);
            let bytes = args.vectors as usize * VECTOR;
            // From a cache line to the row that begins in it.
            let most = 128 - rows.alignment;
            let row_bytes = rows.cols * rows.element_bytes;
            if args.rows == 0 {
                assert!(most + row_bytes <= args.of_row as usize * bytes, "{rows:?}");
                assert!(splits.get() <= args.of_row, "{rows:?}");
                assert_eq!(args.items as usize, rows.rows * splits.get() as usize, "{rows:?}");
                assert!(splits.get() == 1 || args.items <= MAX_PARTIALS, "{rows:?}");
            } else {
                assert!(most + args.rows as usize * row_bytes <= bytes, "{rows:?}");
                assert_eq!(args.items as usize, rows.rows.div_ceil(args.rows as usize));
                assert_eq!(splits.get(), 1);
            }
        });
    }

    /// Two stages, in which each warp has a part of the tiles of two tensors with padding behind
    /// it; of packed rows, behind those, two buffers of sums and two of scales.
    #[test]
    fn stages_sums_and_scales_share_no_byte() {
        each_plan(|rows, _, Tiled { rows: RowsLaunch { launch, .. }, args }| {
            let padding = if rows.alike { 0 } else { TiledArgs::PADDING };
            assert_eq!(args.padding, padding, "{rows:?}");
            let stages = 2 * 2 * (args.vectors + TILED_BLOCK / 32 * padding) * VECTOR_BYTES;
            if args.rows == 0 {
                assert_eq!(launch.shared_bytes, stages, "{rows:?}");
                return;
            }
            let real_bytes = if rows.element_bytes == 8 { 8 } else { 4 };
            let sums = 2 * args.vectors * args.vector_sums * real_bytes;
            assert_eq!((args.sums, args.scales), (stages, stages + sums), "{rows:?}");
            let scales = 2 * args.rows * real_bytes;
            assert_eq!(launch.shared_bytes, stages + sums + scales, "{rows:?}");
        });
    }

    /// A vector of packed rows has a sum for each row that it may have elements of.
    #[test]
    fn a_vector_has_a_sum_for_each_of_its_rows() {
        each_plan(|rows, _, Tiled { args, .. }| {
            if args.rows == 0 {
                return;
            }
            let lanes = 16 / rows.element_bytes;
            // Wherever its first element is in the first row.
            let ends = (0..rows.cols.min(64)).map(|first| (first + lanes - 1) / rows.cols);
            let most = ends.max().map_or(1, |row| row + 1);
            let whole = rows.alignment >= 16 && (rows.cols * rows.element_bytes) % 16 == 0;
            let expected = match most {
                _ if whole => 1,
                _ if rows.cols >= lanes => 2,
                _ => lanes,
            };
            assert_eq!(args.vector_sums as usize, expected, "{rows:?}");
            assert!(whole || expected >= most, "{rows:?}");
        });
    }

    /// Rows with gaps are not packed, since a tile of packed rows is copied as one.
    #[test]
    fn rows_with_gaps_are_cut() {
        for cols in [1_000, 1_023, 1_024, 5_000] {
            let rows = Rows { contiguous: false, ..dense(1 << 20, cols, 4) };
            let plan = tiled(&rows, DEVICES[0]);
            // Shorter ones are left to the kernels that have no tiles.
            assert_eq!(plan.map(|plan| plan.args.rows), (cols >= 1_024).then_some(0), "{cols}");
        }
        let rows = Rows { reduction: reduction::SCALAR, ..dense(1 << 20, 1_024, 4) };
        assert_eq!(tiled(&rows, DEVICES[0]).map(|plan| plan.args.rows), Some(0));
    }

    /// Long rows have as large tiles as blocks have shared memory for, up to four vectors a thread,
    /// and no more of them than they need.
    #[test]
    fn long_rows_are_cut_into_large_tiles() {
        let plan = |rows, cols, device| {
            let Tiled { rows, args } = tiled(&dense(rows, cols, 4), device).expect("long rows");
            (args.vectors, args.of_row, rows.splits.get())
        };
        // 262144 columns are 64 tiles of 1024 vectors, or 256 of 256.
        assert_eq!(plan(1, 262_144, DEVICES[0]), (1024, 64, 64));
        assert_eq!(plan(100, 262_144, DEVICES[2]).0, 256);
        // 396 blocks: with 11 parts, three parts of six tiles at most; with four, two of sixteen.
        assert_eq!(plan(100, 262_144, DEVICES[1]), (1024, 64, 11));
        // Six rows at most, of 13 tiles each.
        assert_eq!(plan(2002, 50_257, DEVICES[1]), (1024, 13, 1));
        each_plan(|rows, _, Tiled { args, .. }| {
            let bytes = args.vectors as usize * VECTOR;
            let longest = 128 - rows.alignment + rows.cols * rows.element_bytes;
            let is_needed = (args.of_row as usize - 1) * bytes < longest;
            assert!(args.rows != 0 || is_needed, "{rows:?}: {args:?}");
        });
    }

    /// Nothing is cut into tiles where there is nothing, or where the kernels, which count a row's
    /// bytes in 32 bits, could not.
    #[test]
    fn calls_without_tiles() {
        let is_tiled = |rows, cols| tiled(&dense(rows, cols, 4), DEVICES[0]).is_some();
        assert!(is_tiled(1, 1 << 20) && is_tiled(1, (1 << 28) - 1));
        assert!(!is_tiled(0, 1 << 20) && !is_tiled(1, 0) && !is_tiled(1, 1 << 28));
        let mean = Rows { reduction: reduction::SCALAR, ..dense(0, 1 << 20, 4) };
        assert_eq!(tiled(&mean, DEVICES[0]), None);
    }

    /// All blocks that have room take as many rows as each other.
    #[test]
    fn tiles_are_equal_shares_of_all_blocks() {
        let plan = |rows, element_bytes| {
            let plan = tiled(&dense(rows, 1_024, element_bytes), DEVICES[1]);
            let plan = plan.expect("rows are packed");
            (plan.rows.launch.blocks, plan.args.rows)
        };
        // Four rows would fit. A tile each, and two.
        assert_eq!((plan(396, 4), plan(1_188, 4)), ((396, 1), (396, 3)));
        assert_eq!((plan(1 << 20, 4), plan(2_376, 4)), ((396, 4), (396, 3)));
        // Sums in f64 leave room for two blocks of a multiprocessor, not three.
        assert_eq!(plan(1 << 20, 8).0, 264);
        // Two rows are packed, one is not.
        let tile_rows = |cols| tiled(&dense(1 << 20, cols, 4), DEVICES[0]).map(|it| it.args.rows);
        assert_eq!((tile_rows(2_000), tile_rows(2_100)), (Some(2), Some(0)));
    }

    /// The most rows that end at a cache line, if they are seven eighths at least of those that
    /// fit; or else the most that end at a vector.
    #[test]
    fn rows_of_tiles_that_begin_at_lines() {
        for cols in (1..200).chain([256, 1_000, 1_024]) {
            for most in (1..100).chain([512, 1_000]) {
                let rows = dense(1 << 20, cols, 4);
                let ending_at = |bytes: usize| {
                    let is_enough = |count: &usize| 8 * count >= 7 * most;
                    let mut counts = (1..=most).rev().take_while(is_enough);
                    counts.find(|count| (count * cols * 4).is_multiple_of(bytes))
                };
                let expected = ending_at(128).or_else(|| ending_at(16)).unwrap_or(most);
                assert_eq!(rows.aligned(most), expected, "{most} rows of {cols} columns");
            }
        }
    }

    /// The kernels divide an element's number in a tile by a multiplication.
    #[test]
    fn elements_of_tiles_are_divided_by_columns() {
        each_plan(|rows, _, Tiled { args, .. }| {
            for element in (0..args.rows * rows.cols as u32).step_by(7) {
                let row = match args.per_col {
                    0 => element,
                    per_col => ((u64::from(element) * u64::from(per_col)) >> 32) as u32,
                };
                assert_eq!(row as usize, element as usize / rows.cols, "{rows:?}");
            }
        });
    }

    /// Tiles of packed rows begin at cache lines where that costs few rows.
    #[test]
    fn tiles_begin_at_cache_lines() {
        let rows_of_tile = |cols| {
            let plan = tiled(&dense(1 << 20, cols, 4), DEVICES[0]).expect("rows are packed");
            plan.args.rows as usize
        };
        for cols in [7, 100, 128, 250] {
            assert!((rows_of_tile(cols) * cols * 4).is_multiple_of(128), "{cols} columns");
        }
    }
}
