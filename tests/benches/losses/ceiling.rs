//! The ceiling: the best of several launches of kernels that only read and write.

use crate::timing::{Graph, interleaved};
use crate::{Pattern, Result};
use fused_loss::{Stream, ceiling};
use kernels_gpu::abi::CeilingArgs;

/// Kernels of a pattern, with the groups of 16 bytes that a thread has in flight of each array.
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

/// The five fastest launches over `bytes` of each array and what there is of rows, with names, as graphs of `calls` calls that
/// take turns on the copies.
pub(crate) fn best(
    stream: &Stream,
    pattern: Pattern,
    copies: &[Vec<u64>],
    bytes: usize,
    calls: usize,
) -> Result<Vec<(String, Graph)>> {
    let mut candidates = Vec::new();
    for &(kernel, flight) in kernels(pattern) {
        for block in [256, 512, 1024] {
            let tiles = bytes / 16 / (block * flight);
            let most = 132 * 2048 / block;
            let grids = [most, 2 * most, 4 * most, 8 * most, tiles];
            let mut early = vec![0];
            if CeilingArgs::asks_early(pattern.reads, pattern.writes) {
                early.push(ceiling::early_bytes(stream.gpu()));
            }
            for (grid, early_bytes) in
                grids.into_iter().flat_map(|grid| early.iter().map(move |&early| (grid, early)))
            {
                let grid = grid.min(tiles) as u32;
                let graph = Graph::capture(stream, calls, |call| {
                    let arrays = &copies[call % copies.len()];
                    let (of_rows, of_rows_bytes) = pattern.of_rows;
                    let of_rows_groups = of_rows_bytes / 16;
                    let of_rows_share = of_rows_groups.div_ceil(tiles);
                    assert!(
                        of_rows_share <= block,
                        "what is read of rows is too much for the tiles"
                    );
                    let mut args = CeilingArgs {
                        arrays: [0; 4],
                        groups: (tiles * block * flight) as u64,
                        of_rows,
                        of_rows_groups: of_rows_groups as u64,
                        of_rows_share: of_rows_share as u64,
                        early_bytes,
                        sink: arrays[arrays.len() - 1],
                    };
                    args.arrays[..arrays.len()].copy_from_slice(arrays);
                    // SAFETY: the arrays have `bytes` bytes each, that of rows its own, and are the caller's for the run;
                    // the sink may be overwritten by 4 bytes.
                    unsafe { ceiling::launch(stream, kernel, grid, block as u32, &args) }
                })?;
                let early = if early_bytes > 0 { ", early" } else { "" };
                candidates.push((format!("{kernel} {grid} × {block}{early}"), graph));
            }
        }
    }
    let graphs: Vec<_> = candidates.iter().map(|(_, graph)| graph).collect();
    let times = interleaved(stream, &graphs, 5)?;
    let mut ranked: Vec<_> = times.into_iter().zip(candidates).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(ranked.into_iter().take(5).map(|(_, candidate)| candidate).collect())
}
