//! The ceiling: the fastest of several launches of kernels that only read and write.

use crate::timing::{Graph, interleaved};
use crate::{Pattern, Result};
use fused_loss::{Stream, ceiling};
use kernels_gpu::abi::CeilingArgs;

/// The kernels of a pattern, with the number of 16-byte vectors of each array that a thread has in
/// flight.
fn kernels(pattern: Pattern) -> &'static [(&'static str, usize)] {
    match (pattern.reads, pattern.writes) {
        (1, 0) => &[
            ("ceiling_read1_by1_f32", 1),
            ("ceiling_read1_by4_f32", 4),
            ("ceiling_read1_by8_f32", 8),
        ],
        (2, 0) => &[
            ("ceiling_read2_by1_f32", 1),
            ("ceiling_read2_by2_f32", 2),
            ("ceiling_read2_by4_f32", 4),
        ],
        (1, 1) => &[("ceiling_read1_write1_by1_f32", 1), ("ceiling_read1_write1_by4_f32", 4)],
        (2, 1) => &[("ceiling_read2_write1_by1_f32", 1), ("ceiling_read2_write1_by4_f32", 4)],
        other => panic!("no ceiling for {other:?}"),
    }
}

/// Which launches are tried.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    blocks: &'static [usize],
    /// Blocks of the grid, as multiples of what the device runs at once. A grid with a block per
    /// tile is tried too.
    grids: &'static [usize],
    /// Whether launches that prefetch nothing before the previous one has ended are tried too.
    late: bool,
    samples: usize,
    /// How many of the fastest are returned.
    kept: usize,
}

/// For a few rows that have much time.
pub(crate) const THOROUGH: Search =
    Search { blocks: &[256, 512, 1024], grids: &[1, 2, 4, 8], late: true, samples: 5, kept: 5 };

/// For many shapes, with a second for each.
pub(crate) const QUICK: Search =
    Search { blocks: &[256, 512, 1024], grids: &[1, 4], late: false, samples: 3, kept: 3 };

/// One launch, for the emulator.
pub(crate) const ONE: Search =
    Search { blocks: &[256], grids: &[], late: false, samples: 1, kept: 1 };

/// The fastest launches that move `bytes` of each array and the data of rows, with names, as graphs
/// of `calls` calls that take turns on the copies.
pub(crate) fn best(
    stream: &Stream,
    search: Search,
    pattern: Pattern,
    copies: &[Vec<u64>],
    bytes: usize,
    calls: usize,
) -> Result<Vec<(String, Graph)>> {
    let mut candidates = Vec::new();
    for &(kernel, flight) in kernels(pattern) {
        for &block in search.blocks {
            let tiles = bytes / 16 / (block * flight);
            let (of_rows, of_rows_bytes) = pattern.of_rows;
            let of_rows_vectors = of_rows_bytes / 16;
            if tiles == 0 || of_rows_vectors.div_ceil(tiles) > block {
                // A block could not read its share of the data of rows.
                continue;
            }
            let of_rows_share = of_rows_vectors.div_ceil(tiles);
            let most = 132 * 2048 / block;
            let mut early = Vec::new();
            if CeilingArgs::asks_early(pattern.reads, pattern.writes) {
                early.push(ceiling::early_bytes(stream.gpu()));
            }
            if search.late || early.is_empty() {
                early.push(0);
            }
            let grids = search.grids.iter().map(|times| times * most).chain([tiles]);
            for (grid, early_bytes) in
                grids.flat_map(|grid| early.iter().map(move |&early| (grid, early)))
            {
                let grid = grid.min(tiles) as u32;
                let graph = Graph::capture(stream, calls, |call| {
                    let arrays = &copies[call % copies.len()];
                    let mut args = CeilingArgs {
                        arrays: [0; 4],
                        vectors: (tiles * block * flight) as u64,
                        of_rows: of_rows + (call % copies.len()) as u64 * pattern.of_rows_apart,
                        of_rows_vectors: of_rows_vectors as u64,
                        of_rows_share: of_rows_share as u64,
                        early_bytes,
                        sink: arrays[arrays.len() - 1],
                    };
                    args.arrays[..arrays.len()].copy_from_slice(arrays);
                    // SAFETY: the arrays have `bytes` bytes each, and the data of rows has its own
                    // size. All belong to the caller during the run, and the sink may be
                    // overwritten by 4 bytes.
                    unsafe { ceiling::launch(stream, kernel, grid, block as u32, &args) }
                })?;
                let early = if early_bytes > 0 { ", early" } else { "" };
                candidates.push((format!("{kernel} {grid} × {block}{early}"), graph));
            }
        }
    }
    if candidates.is_empty() {
        return Err("no launch of the ceiling reads as much of rows as this".into());
    }
    let graphs: Vec<_> = candidates.iter().map(|(_, graph)| graph).collect();
    let times = interleaved(stream, &graphs, search.samples)?;
    let mut ranked: Vec<_> = times.into_iter().zip(candidates).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(ranked.into_iter().take(search.kept).map(|(_, candidate)| candidate).collect())
}
