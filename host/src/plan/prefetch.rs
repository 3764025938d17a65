//! What kernels of cross-entropy prefetch into the L2 cache. Prefetching does not change the order
//! of any sum.

use super::{Pass, Regime, RowsLaunch, SamplesLaunch};
use kernels_gpu::abi::{CACHE_LINE, STREAM_DEPTH, WARP_TILE_BYTES};

/// The L2 cache of a device, and how many multiprocessors share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub(crate) bytes: usize,
    pub(crate) multiprocessors: usize,
}

/// How many rows ahead of its own a block prefetches a row into the L2 cache, and how many bytes of
/// it; see [`CrossEntropyArgs`](kernels_gpu::abi::CrossEntropyArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ahead {
    pub(crate) rows: u32,
    pub(crate) bytes: u32,
}

/// What the blocks of a pass over rows of `row_bytes` prefetch ahead of their own rows. A pass that
/// only reads prefetches nothing: its loads to registers keep memory busy, and prefetching to the
/// cache made it slower.
pub(crate) fn ahead(
    pass: Pass,
    plan: &SamplesLaunch,
    row_bytes: usize,
    element_bytes: usize,
    cache: Cache,
) -> Ahead {
    let SamplesLaunch { rows: RowsLaunch { launch, .. }, regime, .. } = *plan;
    let none = Ahead { rows: 0, bytes: 0 };
    if row_bytes < CACHE_LINE as usize || pass == Pass::Forward {
        return none;
    }
    // Whole rows, so far ahead that the prefetched rows fill 1/`fraction` of the cache.
    let share = |fraction| Ahead {
        rows: (cache.bytes / fraction / row_bytes) as u32,
        bytes: row_bytes as u32,
    };
    // 5 to 13 MB are equally fast on an H200.
    let whole_rows = share(6);
    match (pass, regime) {
        (Pass::ForwardBackward, Regime::Registers) => whole_rows,
        (_, Regime::Packed | Regime::LaneRows | Regime::WideRows) => none,
        // A block that takes several rows prefetches the same number at once; 4 MB are best on an
        // H200.
        (
            Pass::ForwardBackward,
            Regime::ShortWhole | Regime::WarpWhole | Regime::ShortPeeled | Regime::WarpPeeled,
        ) => share(12),
        // A multiprocessor has one such block, and so one row, at a time. The prefetched row is
        // read when half of the multiprocessors have begun another row. A smaller and a larger
        // distance are slower on an H200; so are whole rows of 16-bit elements.
        (Pass::ForwardBackward, Regime::Long) if launch.threads > 512 => {
            let rows = (cache.multiprocessors / 2).max(1);
            let bytes = if element_bytes == 2 { row_bytes / 2 } else { row_bytes };
            Ahead { rows: rows as u32, bytes: bytes.min(cache.bytes / 4 / rows) as u32 }
        }
        // All that a thread reads is in flight at once, but that is little.
        (Pass::Backward, _) => whole_rows,
        _ => none,
    }
}

/// Whether the forward pass of [`Regime::ShortWhole`] over rows of `row_bytes` should reserve
/// shared memory for one block more per multiprocessor than registers allow, which makes the L1
/// cache smaller by as much. On an H200, f32 rows of 512 bytes and more are 1 to 3 % faster with
/// it, and most shorter ones slower. For 16-bit elements it makes no difference.
pub(crate) fn wants_shared_of_one_more(row_bytes: usize) -> bool {
    row_bytes >= 512
}

/// What the first blocks of a launch over rows of `row_bytes` prefetch into the L2 cache while the
/// launch before it ends (programmatic dependent launch): the beginnings of their rows, or the
/// tiles that their warps stream first. The amount is limited, so that it does not evict what the
/// previous launch has written or still reads.
///
/// H200, 2026-11-28, streamed, ceiling ÷ ours without and with it:
///
/// - f64: 5729×1464 0.62 and 0.63, 64×130448 0.66 and 0.68, 4095×16385 0.87 and 0.87
/// - f32 with smoothing and weights: 32768×2048 0.84 and 0.85
pub(crate) fn early(plan: &SamplesLaunch, row_bytes: usize, cache: Cache) -> Early {
    let RowsLaunch { launch, group_threads, .. } = plan.rows;
    let (groups, bytes) = match plan.regime {
        // Each warp fills its ring.
        Regime::Stream => (launch.threads / 32, (STREAM_DEPTH * WARP_TILE_BYTES) as usize),
        _ => (launch.threads / group_threads, row_bytes.min(EARLY_BYTES)),
    };
    let groups = groups as usize;
    let blocks = early_bytes(cache) / (bytes * groups).max(1);
    Early { blocks: blocks as u32, bytes: bytes as u32 }
}

/// The most bytes that the first blocks of a launch prefetch, all together.
pub(crate) fn early_bytes(cache: Cache) -> usize {
    cache.bytes / 4
}

/// The most bytes of a row that are prefetched early: what a block has in flight at once.
const EARLY_BYTES: usize = 16 << 10;

/// How many blocks prefetch, and how many bytes of each of their rows; see [`early`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Early {
    pub(crate) blocks: u32,
    pub(crate) bytes: u32,
}
