//! Short rows, one lane per row: logits and classes of a tile arrive in shared memory, each lane
//! computes a row in registers, and gradients leave from where the logits were.

use super::register_row::{RegisterRow, SharedRow};
use super::stage::{STAGES, class_at};
use super::{Share, computes};
use crate::abi::{CACHE_LINE, CrossEntropyArgs, TileArgs, VECTOR_BYTES};
use crate::cross_entropy::label::totals_ahead;
use crate::cross_entropy::pass::{Pass, TERMS, Total, writes};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real, unrolled};
use crate::reduce::Workspace;
use crate::tile::Shared;
use core::marker::PhantomData;
use cuda_std::hint::opaque;
use cuda_std::memory::{end_copies, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp, warp_id};

/// A tile of a warp: adjacent rows of logits, and their classes behind them.
#[derive(Clone, Copy)]
struct Tile<E> {
    /// Its first row.
    first: u64,
    /// Rows of the tile; 0 beyond the last row of the tensor.
    rows: u32,
    /// The first byte of its stage in shared memory.
    stage: u32,
    element: PhantomData<E>,
}

impl<E: Element> Tile<E> {
    /// The tile of the rows from `first` on, in the stage at byte `stage`.
    #[inline(always)]
    fn new(args: &CrossEntropyArgs, stage: u32, first: u64) -> Self {
        let rows = args.rows.saturating_sub(first).min(args.tile.rows.into());
        // Opaque, or LLVM keeps the upper half in a register too.
        Tile { first, rows: opaque(rows) as u32, stage, element: PhantomData }
    }

    /// The address of row `first` of a tensor without gaps between rows. Opaque, or LLVM makes an
    /// induction variable of everything that is computed from it.
    #[inline(always)]
    fn address(&self, start: u64, row_bytes: u32) -> u64 {
        opaque(start + self.first * u64::from(row_bytes))
    }

    #[inline(always)]
    fn row_bytes(args: &CrossEntropyArgs) -> u32 {
        args.cols * size_of::<E>() as u32
    }

    /// Where logits from this address go in shared memory: at the same offset from a cache line.
    #[inline(always)]
    fn logits(&self, from: u64) -> u32 {
        self.stage + from as u32 % CACHE_LINE
    }

    /// Where classes from this address go in shared memory: at the same offset from a 16-byte
    /// boundary.
    #[inline(always)]
    fn classes(&self, args: &CrossEntropyArgs, from: u64) -> u32 {
        self.stage + args.tile.bytes + from as u32 % VECTOR_BYTES
    }

    /// Starts the copies of the tile, as one group.
    ///
    /// # Safety
    /// As [`rows`]; the lanes of the warp have met since they read the stage.
    #[inline(always)]
    unsafe fn load_async(&self, args: &CrossEntropyArgs, shared: Shared) {
        // SAFETY: the caller's conditions.
        unsafe {
            if self.rows > 0 {
                let row_bytes = Self::row_bytes(args);
                let from = self.address(args.input.start, row_bytes);
                shared.copy_span_async(self.logits(from), from, self.rows * row_bytes);
                let from = self.address(args.target, args.class_bytes);
                shared.copy_span_async(
                    self.classes(args, from),
                    from,
                    self.rows * args.class_bytes,
                );
            }
            end_copies();
        }
    }

    /// Computes the tile, which has arrived, one row per lane at a time. Adds the rows' terms to
    /// `terms`.
    ///
    /// # Safety
    /// As [`rows`]; all lanes of the warp call it, and meet between two calls.
    #[inline(always)]
    unsafe fn compute<const MODE: u32, const COMPUTES: u32>(
        self,
        pass: &Pass<'_, E, MODE>,
        shared: Shared,
        scale: E::Real,
        workspace: Workspace,
        terms: &mut [f64; TERMS],
    ) {
        let args = pass.args;
        let row_bytes = Self::row_bytes(args);
        let logits = self.logits(self.address(args.input.start, row_bytes));
        let classes = self.classes(args, self.address(args.target, args.class_bytes));
        let mut index = lane_id();
        while index < self.rows {
            let row = self.first + u64::from(index);
            let TileArgs { order_right, order_mask, order_left, access, .. } = args.tile;
            let logits_of_row = SharedRow {
                shared,
                at: logits + index * row_bytes,
                // Opaque, or the addresses of all chunks are computed before the loop and kept.
                cols: opaque(args.cols.into()) as u32,
                access,
                order: (index >> order_right & order_mask) << order_left,
            };
            // SAFETY: the caller's conditions; each lane writes over its own rows.
            unsafe {
                let class = class_at(args, shared, classes, index);
                let mut logit = E::Real::ZERO;
                // A negative class is beyond every row.
                if class.cast_unsigned() < args.cols.into() {
                    let at = logits_of_row.at + class as u32 * size_of::<E>() as u32;
                    logit = shared.element::<E>(at).widen();
                }
                let mut stats = Stats::NONE;
                if COMPUTES != computes::GRADIENTS {
                    let mut logits = RegisterRow::<E>::load(logits_of_row);
                    stats = if COMPUTES == computes::BOTH {
                        logits.statistics::<true>()
                    } else {
                        logits.statistics::<false>()
                    };
                    add_loss::<E, MODE, COMPUTES>(pass, row, class, stats, logit, workspace, terms);
                }
                if COMPUTES == computes::LOSS {
                    index += WARP_SIZE;
                    continue;
                }
                let label = pass.label(class);
                if label.counts {
                    let factors = if COMPUTES == computes::BOTH {
                        let scale_of = |which| pass.scale(row, totals_ahead(args), which);
                        let has_own = args.upstream_stride != 0;
                        let scale = if has_own { scale_of(Total::Weights) } else { scale };
                        pass.factors(&label, stats, scale, || scale_of(Total::Rows))
                    } else {
                        pass.factors_of_saved(&label, pass.saved_of(row), |which| {
                            pass.scale_of_saved(row, which)
                        })
                    };
                    // The second read costs less than the registers to keep the row.
                    let mut row = RegisterRow::<E>::load(logits_of_row.rematerialize());
                    row.make_gradients(&factors);
                    row.store();
                    if label.has_class(args.cols) {
                        let at_class = E::narrow(pass.at_class(&label, &factors, logit));
                        let at = logits_of_row.at + label.class * size_of::<E>() as u32;
                        shared.set_element(at, at_class);
                    }
                } else {
                    // The gradient of a row that is ignored is 0, whatever its logits.
                    let mut row = RegisterRow::<E>::unread(logits_of_row);
                    row.make_zeros();
                    row.store();
                }
            }
            index += WARP_SIZE;
        }
        if COMPUTES != computes::LOSS {
            sync_warp();
            let to = self.address(args.grad_input.start, row_bytes);
            // SAFETY: the caller's conditions.
            unsafe { shared.store_span(logits, to, self.rows * row_bytes) };
        }
    }
}

/// Adds a row's terms to `terms`, and writes the results that the call asks for per row.
///
/// # Safety
/// As [`Pass::finish_row`].
#[inline(always)]
unsafe fn add_loss<E: Element, const MODE: u32, const COMPUTES: u32>(
    pass: &Pass<'_, E, MODE>,
    row: u64,
    class: i64,
    stats: Stats<E::Real>,
    logit: E::Real,
    workspace: Workspace,
    terms: &mut [f64; TERMS],
) {
    // SAFETY: the caller's conditions.
    unsafe {
        if pass.is_plain() {
            let label = pass.plain_label(class);
            let of_row =
                pass.finish_row::<{ writes::NOTHING }>(row, &label, stats, logit, workspace);
            terms[0] += of_row[0];
            if COMPUTES == computes::LOSS {
                terms[1] += if label.counts { 1.0 } else { 0.0 };
            }
            return;
        }
        let label = pass.label(class);
        if COMPUTES == computes::BOTH {
            let of_row = pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
            // The normaliser was summed before, so the weights are not summed again.
            terms[0] += of_row[0];
            terms[2] += of_row[2];
        } else {
            let of_row = pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace);
            unrolled!(for term in 0..TERMS; { terms[term] += of_row[term]; });
        }
    }
}

/// Computes the tiles of a warp. The next tile is copied while one is computed.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[inline(always)]
pub(super) unsafe fn rows<E: Element, const MODE: u32, const COMPUTES: u32>(
    pass: &Pass<'_, E, MODE>,
    share: Share,
    workspace: Workspace,
) -> [f64; TERMS] {
    let args = pass.args;
    let shared = Shared::new();
    let mut terms = [0.0; TERMS];
    // The scale of all rows, where they share one upstream gradient.
    let mut scale = E::Real::ZERO;
    let first_stage = warp_id() * STAGES * args.tile.stage_bytes;
    // `stages - stage` is the other of the two stages.
    let stages = first_stage + (first_stage + args.tile.stage_bytes);
    let (mut stage, mut next, mut has_tile) = (first_stage, share.first, false);
    // SAFETY: the caller's conditions.
    unsafe {
        // The first iteration only loads, so the code of a load exists once.
        while next < args.rows || has_tile {
            Tile::<E>::new(args, stage, next).load_async(args, shared);
            stage = stages - stage;
            if has_tile {
                wait_for_copies::<1>();
                sync_warp();
                let tile = Tile::<E>::new(args, stage, next - share.step);
                tile.compute::<MODE, COMPUTES>(pass, shared, scale, workspace, &mut terms);
                // The stage is free for the tile after the next.
                sync_warp();
            } else if COMPUTES == computes::BOTH {
                scale = pass.scale(0, totals_ahead(args), Total::Weights);
            }
            has_tile = next < args.rows;
            next += share.step;
        }
    }
    terms
}
