//! Rows of any length that fits a tile, with one lane or several per row.
//!
//! The lanes of a row read their parts of it from shared memory. A warp computes 32 rows as a
//! batch:
//!
//! 1. In each turn it computes the statistics of as many rows as it has lanes for, until it has
//!    those of 32 rows.
//! 2. Each lane then finishes one row, so that the work per row is done for 32 rows at a time.
//! 3. In as many turns as before, the lanes of each row compute its gradients.
//!
//! For the loss alone, a batch may have rows of several tiles ([`losses`]). Gradients are computed
//! from the tile, so that with gradients a batch has rows of one tile only.

mod gradients;
mod losses;
mod statistics;

use self::losses::Batch;
use super::chunk::Chunk;
use super::part::{Pairs, Part};
use super::stage::{Common, Compute, Stage, for_each_stage};
use super::{Share, add_loss, computes, factors_of_row, row_lanes, stages};
use crate::cross_entropy::lagging::lags;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Classes, Factors, Pass, TERMS};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use crate::reduce::{Workspace, warp_sums};
use crate::row::Split;
use crate::tile::Tile;
use cuda_std::memory::Vec16;
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, lane_id, sync_warp};

/// Computes a warp's share of the rows.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) unsafe fn rows<E: Element, const MODE: u32, const COMPUTES: u32>(
    pass: &Pass<'_, E, MODE>,
    share: Share,
    workspace: Workspace,
) -> [f64; TERMS] {
    // SAFETY: the caller's conditions.
    unsafe {
        let batch = Batch::NONE;
        let sum_of_weights = E::Real::ZERO;
        let compute = LanesPerRow::<'_, E, MODE, COMPUTES> {
            pass,
            near: 0,
            sum_of_weights,
            batch,
            workspace,
        };
        for_each_stage::<E, MODE, COMPUTES, _>(pass, share, workspace, compute)
    }
}

struct LanesPerRow<'a, E: Element, const MODE: u32, const COMPUTES: u32> {
    pass: &'a Pass<'a, E, MODE>,
    /// The top of the largest logit of the last row that this lane computed a part of.
    near: u32,
    /// The sum of all class weights, where [needed](Tiles::HAS_SUM_OF_WEIGHTS).
    sum_of_weights: E::Real,
    /// The rows whose losses are still to be computed, if the kernel computes losses only.
    batch: Batch<E::Real>,
    workspace: Workspace,
}

impl<E: Element, const MODE: u32, const COMPUTES: u32> Compute<E::Real, MODE>
    for LanesPerRow<'_, E, MODE, COMPUTES>
{
    const STAGES: Option<u32> = stages::<E, COMPUTES>(row_lanes::SEVERAL);
    const HAS_ATTEMPTS: bool = false;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn begin(&mut self) {
        if COMPUTES != computes::GRADIENTS && Tiles::<E, MODE>::HAS_SUM_OF_WEIGHTS {
            // SAFETY: the caller's conditions.
            self.sum_of_weights = unsafe { sum_of_weights(self.pass) };
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn stage(
        &mut self,
        stage: Stage<'_, MODE>,
        is_last: bool,
        Common { scale, .. }: Common<E::Real>,
        terms: &mut [f64; TERMS],
    ) {
        let tiles = Tiles::<E, MODE>::new(stage, self.sum_of_weights);
        // SAFETY: the caller's conditions.
        unsafe {
            if COMPUTES == computes::LOSS {
                self.losses(&tiles, is_last, terms);
                return;
            }
            let LanesPerRow { pass, near, workspace, .. } = self;
            let mut first = 0;
            while first < stage.rows {
                tiles.batch::<COMPUTES>(pass, first, scale, near, *workspace, terms);
                first += WARP_SIZE;
            }
            sync_warp();
            tiles.store();
        }
    }
}

/// The tiles of a stage.
#[derive(Clone, Copy)]
struct Tiles<'a, E: Element, const MODE: u32> {
    stage: Stage<'a, MODE>,
    logits: Tile<E>,
    probabilities: Tile<E>,
    grad_logits: Tile<E>,
    grad_probabilities: Tile<E>,
    /// See [`LanesPerRow::sum_of_weights`].
    sum_of_weights: E::Real,
}

/// The sum of all class weights, in all lanes of the warp.
///
/// # Safety
/// The kernels' condition 1; all lanes of the warp call it.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn sum_of_weights<E: Element, const MODE: u32>(pass: &Pass<'_, E, MODE>) -> E::Real {
    let (mut sum, mut class) = (E::Real::ZERO, lane_id());
    while class < pass.args.cols {
        // SAFETY: the caller's condition.
        sum = sum + unsafe { pass.weight_of(class) };
        class += WARP_SIZE;
    }
    warp_sums([sum], WARP_SIZE)[0]
}

impl<'a, E: Element, const MODE: u32> Tiles<'a, E, MODE> {
    const DENSE: bool = Pass::<E, MODE>::DENSE;
    /// Whether a warp sums all class weights once. All rows have the same sum.
    const HAS_SUM_OF_WEIGHTS: bool = MODE == mode::WEIGHTED && Pass::<E, MODE>::HAS_SHIFTED_SHARES;
    /// Whether exponentials replace their logits until the gradients are computed, if losses are
    /// computed too. Not for probabilities, whose gradients need the logits.
    const KEEPS_EXPS: bool = lags::<E::Real>(MODE) && MODE != mode::PROBABILITIES;
    const PAIRS: Pairs = if Self::DENSE { Pairs::Vectors } else { Pairs::All };

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(stage: Stage<'a, MODE>, sum_of_weights: E::Real) -> Self {
        let args = stage.args;
        let (logits, probabilities) = (stage.logits(), stage.probabilities());
        Tiles {
            stage,
            logits,
            probabilities,
            grad_logits: stage.gradients(logits, args.grad_input, 0),
            grad_probabilities: stage.gradients(probabilities, args.grad_target, 1),
            sum_of_weights,
        }
    }

    /// The lane's part of the logits of a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn logits_of(&self, row: u32, split: Split) -> Part<E> {
        let args = self.stage.args;
        let tile = &args.tile;
        let order = (row >> tile.order_right & tile.order_mask) << tile.order_left;
        let at = self.logits.row(row);
        Part::new(self.stage.shared, at, args.cols, split, order, tile)
    }

    /// Whether the weights of a chunk's classes are loaded as a vector. Not for probabilities: LLVM
    /// would not inline the code, once for whole chunks and once for others, because it would be
    /// too large.
    const WEIGHTED_VECTORS: bool = MODE == mode::WEIGHTED;

    /// The classes of a chunk, if it is whole, so that their shares can be computed as those of a
    /// vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn classes_of_vector(pass: &Pass<'_, E, MODE>, chunk: Chunk) -> Option<Classes> {
        let is_vector = !chunk.is_rest && (Self::WEIGHTED_VECTORS || pass.weights() == 0);
        is_vector.then(|| chunk.columns::<E>())
    }

    /// The probabilities of the same columns as a chunk of logits.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); `x` is the lane's part of row `row`, and has the chunk.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn targets_of(&self, x: &Part<E>, row: u32, chunk: Chunk) -> Vec16 {
        if MODE != mode::PROBABILITIES {
            return Vec16::default();
        }
        // SAFETY: the caller's conditions.
        unsafe { x.load_beside(self.probabilities.row(row), chunk) }
    }

    /// The class of row `row` and its logit: 0 if the class is out of range. If there is no such
    /// row, or targets are probabilities, the class is `ignore_index`.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn class_and_logit(&self, row: u32) -> (i64, E::Real) {
        let Stage { args, shared, rows, .. } = self.stage;
        if MODE == mode::PROBABILITIES || row >= rows {
            return (args.ignore_index, E::Real::ZERO);
        }
        // SAFETY: the caller's conditions.
        unsafe {
            let class = self.stage.class(row);
            // A negative class is out of range, too, as an unsigned number.
            if class.cast_unsigned() >= u64::from(args.cols) {
                return (class, E::Real::ZERO);
            }
            let at = self.logits.row(row) + class as u32 * size_of::<E>() as u32;
            (class, shared.element::<E>(at).widen())
        }
    }

    /// Computes 32 rows from `first` on, or those that remain in the stage: their gradients and, as
    /// `COMPUTES` says, their losses, which it adds to `terms`. `near` is the top of the largest
    /// logit of the row before them, and afterwards of the last of them.
    ///
    /// # Safety
    /// As [`rows`]; all lanes of the warp call it, and the copies of the stage are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn batch<const COMPUTES: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        first: u32,
        scale: E::Real,
        near: &mut u32,
        workspace: Workspace,
        terms: &mut [f64; TERMS],
    ) {
        let Stage { args, shared, rows, .. } = self.stage;
        let split = Split::new(args.tile.warp_rows_shift, lane_id());
        // The row that this lane finishes.
        let own = first + lane_id();
        let has_own = own < rows;
        let of_exps = Self::KEEPS_EXPS && COMPUTES == computes::BOTH;
        let row = self.stage.first() + u64::from(own);
        // SAFETY: the caller's conditions; condition 1 of the kernels covers all reads of global
        // memory. A lane writes only its own part of a row, and the warp synchronises before
        // another lane accesses it.
        unsafe {
            let (class, logit) = self.class_and_logit(own);
            let (mut stats, mut unit) = (Stats::NONE, E::Real::ONE);
            if COMPUTES != computes::GRADIENTS {
                if of_exps {
                    // Exponentials overwrite the logits of classes, which all lanes have read.
                    sync_warp();
                    (stats, unit) = self.statistics::<true>(pass, first, near, split);
                } else {
                    (stats, _) = self.statistics::<false>(pass, first, near, split);
                }
                if has_own {
                    add_loss::<E, MODE, COMPUTES>(pass, row, class, stats, logit, workspace, terms);
                }
            }
            let label = pass.label(class);
            let mut factors = Factors::NONE;
            if has_own {
                let row = (&self.stage, own);
                factors =
                    factors_of_row::<E, MODE, COMPUTES, false>(pass, &label, stats, row, scale);
                factors.factor = factors.factor * unit;
            }
            // All lanes have read the logit of their row's class.
            sync_warp();
            let mut turn = 0;
            while turn < WARP_SIZE && first + turn < rows {
                let lane = turn + split.slot;
                let factors = factors_from_lane::<E::Real, MODE>(&factors, lane);
                if first + lane >= rows {
                } else if of_exps {
                    self.gradients::<COMPUTES, true>(pass, first + lane, split, &factors);
                } else if lags::<E::Real>(MODE) && MODE == mode::CLASS {
                    self.gradients_by_two(first + lane, split, &factors);
                } else {
                    self.gradients::<COMPUTES, false>(pass, first + lane, split, &factors);
                }
                turn += 1 << split.rows_shift;
            }
            if MODE != mode::PROBABILITIES {
                sync_warp();
                if has_own && label.has_class(args.cols) {
                    let at = self.grad_logits.row(own) + label.class * size_of::<E>() as u32;
                    let at_class = if of_exps && MODE == mode::CLASS {
                        // The stored gradient lacks only the class's own term. In f64 storing has
                        // not rounded it, and this is faster than another exponential.
                        let other = shared.element::<E>(at).widen();
                        pass.at_class_from(other, &factors, logit)
                    } else {
                        pass.at_class(&label, &factors, logit)
                    };
                    shared.set_element(at, E::narrow(at_class));
                }
            }
        }
    }

    /// Stores the gradients of all rows of the stage.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); the warp has synchronised since they were written.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store(&self) {
        let Stage { args, rows, .. } = self.stage;
        let first = self.stage.first();
        // SAFETY: the caller's conditions.
        unsafe {
            if MODE != mode::PROBABILITIES || args.grad_input.start != 0 {
                self.grad_logits.store(&args.tile, rows, args.grad_input, first);
            }
            if MODE == mode::PROBABILITIES && args.grad_target.start != 0 {
                self.grad_probabilities.store(&args.tile, rows, args.grad_target, first);
            }
        }
    }
}

/// Shuffles the factors from `lane` to this lane: those that the gradients of all classes but the
/// row's own need.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn factors_from_lane<R: Real, const MODE: u32>(factors: &Factors<R>, lane: u32) -> Factors<R> {
    let mut shuffled = Factors {
        counts: u32::from(factors.counts).shuffle(lane) != 0,
        center: factors.center.shuffle(lane),
        factor: factors.factor.shuffle(lane),
        ..Factors::NONE
    };
    if MODE != mode::CLASS {
        shuffled.by_share = factors.by_share.shuffle(lane);
    }
    if MODE == mode::PROBABILITIES {
        shuffled.by_target = factors.by_target.shuffle(lane);
        shuffled.log_sum = factors.log_sum.shuffle(lane);
    }
    shuffled
}
