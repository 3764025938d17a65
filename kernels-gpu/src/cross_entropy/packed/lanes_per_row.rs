//! Rows of any length that fits a tile, with one lane or several per row.
//!
//! The lanes of a row read their parts of it from shared memory. A warp computes 32 rows as a
//! batch:
//!
//! 1. In each turn it computes the statistics of as many rows as it has lanes for, until it has
//!    those of 32 rows.
//! 2. Each lane then finishes one row. What is done once a row is so done for 32 rows at a time.
//! 3. In as many turns again, the lanes of each row compute its gradients.

use super::part::{Chunk, Pairs, Part, Split};
use super::stage::{Stage, for_each_stage};
use super::{Share, add_loss, computes, factors_of_row};
use crate::cross_entropy::pass::{Factors, Pass, TERMS};
use crate::cross_entropy::stats::{Relative, Stats};
use crate::cross_entropy::{log_prob, mode};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::Workspace;
use crate::tile::Tile;
use cuda_std::memory::Vec16;
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, any, lane_id, sync_warp};

/// Computes a warp's share of the rows.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[inline(always)]
pub(super) unsafe fn rows<E: Element, const MODE: u32, const COMPUTES: u32>(
    pass: &Pass<'_, E, MODE>,
    share: Share,
    workspace: Workspace,
) -> [f64; TERMS] {
    // SAFETY: the caller's conditions; the copies of a stage are complete when it is computed.
    unsafe {
        for_each_stage::<E, MODE, COMPUTES>(pass, share, |stage, scale, terms| {
            let tiles = Tiles::<E, MODE>::new(stage);
            let mut first = 0;
            while first < stage.rows {
                tiles.batch::<COMPUTES>(pass, first, scale, workspace, terms);
                first += WARP_SIZE;
            }
            if COMPUTES != computes::LOSS {
                sync_warp();
                tiles.store();
            }
        })
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
}

impl<'a, E: Element, const MODE: u32> Tiles<'a, E, MODE> {
    const DENSE: bool = Pass::<E, MODE>::DENSE;
    const PAIRS: Pairs = if Self::DENSE { Pairs::Vectors } else { Pairs::All };

    #[inline(always)]
    fn new(stage: Stage<'a, MODE>) -> Self {
        let args = stage.args;
        let (logits, probabilities) = (stage.logits(), stage.probabilities());
        Tiles {
            stage,
            logits,
            probabilities,
            grad_logits: stage.gradients(logits, args.grad_input, 0),
            grad_probabilities: stage.gradients(probabilities, args.grad_target, 1),
        }
    }

    /// The lane's part of the logits of a row.
    #[inline(always)]
    fn logits_of(&self, row: u32, split: Split) -> Part<E> {
        let args = self.stage.args;
        let tile = &args.tile;
        let order = (row >> tile.order_right & tile.order_mask) << tile.order_left;
        let at = self.logits.row(row);
        Part::new(self.stage.shared, at, args.cols, split, order, tile.access)
    }

    /// Computes 32 rows from `first` on, or those that the stage has left, and adds their terms to
    /// `terms`.
    ///
    /// # Safety
    /// As [`rows`]; all lanes of the warp call it, and the copies of the stage are complete.
    #[inline(always)]
    unsafe fn batch<const COMPUTES: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        first: u32,
        scale: E::Real,
        workspace: Workspace,
        terms: &mut [f64; TERMS],
    ) {
        let Stage { args, shared, rows, .. } = self.stage;
        let split = Split::new(args.tile.warp_rows_shift, lane_id());
        // The row that this lane finishes.
        let own = first + lane_id();
        let has_own = own < rows;
        let row = self.stage.first() + u64::from(own);
        let size = size_of::<E>() as u32;
        // SAFETY: the caller's conditions; condition 1 of the kernels covers all reads of global
        // memory. A lane writes its own part of a row only, and the warp synchronises before
        // another lane accesses it.
        unsafe {
            let mut class = args.ignore_index;
            let mut logit = E::Real::ZERO;
            if MODE != mode::PROBABILITIES && has_own {
                class = self.stage.class(own);
                // A negative class is out of range, too, as an unsigned number.
                if class.cast_unsigned() < u64::from(args.cols) {
                    let at = self.logits.row(own) + class as u32 * size;
                    logit = shared.element::<E>(at).widen();
                }
            }
            let mut stats = Stats::NONE;
            if COMPUTES != computes::GRADIENTS {
                stats = self.statistics(pass, first, split);
                if has_own {
                    add_loss::<E, MODE, COMPUTES>(pass, row, class, stats, logit, workspace, terms);
                }
            }
            if COMPUTES == computes::LOSS {
                return;
            }
            let label = pass.label(class);
            let mut factors = Factors::NONE;
            if has_own {
                factors = factors_of_row::<E, MODE, COMPUTES>(pass, &label, stats, row, scale);
            }
            // All lanes have read the logit of their row's class.
            sync_warp();
            let mut turn = 0;
            while turn < WARP_SIZE && first + turn < rows {
                let lane = turn + split.slot;
                let factors = factors_from_lane::<E::Real, MODE>(&factors, lane);
                let is_any_far =
                    any(Relative::<_, MODE>::is_far(factors.center, pass.scale_of_logits()));
                if first + lane < rows {
                    self.gradients(pass, first + lane, split, &factors, is_any_far);
                }
                turn += 1 << split.rows_shift;
            }
            if MODE != mode::PROBABILITIES {
                sync_warp();
                if has_own && label.has_class(args.cols) {
                    let at_class = E::narrow(pass.at_class(&label, &factors, logit));
                    let at = self.grad_logits.row(own) + label.class * size;
                    shared.set_element(at, at_class);
                }
            }
        }
    }

    /// Computes the statistics of 32 rows from `first` on, and returns those of the row that this
    /// lane finishes.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[inline(always)]
    unsafe fn statistics(
        &self,
        pass: &Pass<'_, E, MODE>,
        first: u32,
        split: Split,
    ) -> Stats<E::Real> {
        let rows = self.stage.rows;
        let mut stats = Stats::NONE;
        let mut turn = 0;
        while turn < WARP_SIZE && first + turn < rows {
            // Lanes beyond the last row compute that one again: all lanes take part in shuffles.
            let row = (first + turn + split.slot).min(rows - 1);
            // SAFETY: the caller's conditions.
            let row_stats = unsafe { self.statistics_of(pass, row, split) };
            if split.part << split.rows_shift == turn {
                stats = row_stats;
            }
            turn += 1 << split.rows_shift;
        }
        stats
    }

    /// The statistics of a row, in each lane that shares it.
    ///
    /// If the sum of all exponentials is below 2, the largest logit's, which is 1, exceeds the sum
    /// of the others. They are then computed again and summed without it: added to 1, they would
    /// lose digits that the loss needs.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[inline(always)]
    unsafe fn statistics_of(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u32,
        split: Split,
    ) -> Stats<E::Real> {
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        let add = |a: E::Real, b: E::Real| a + b;
        let x = self.logits_of(row, split);
        let mut stats = Stats::<E::Real>::NONE;
        // SAFETY: the caller's conditions.
        unsafe {
            x.for_each(Self::PAIRS, |_, vector| stats.max = stats.max.max(E::greatest([vector])))
        };
        stats.max = split.over_row(stats.max, E::Real::max);
        let center = stats.center();
        let scale = pass.scale_of_logits();
        let is_far = Relative::<_, MODE>::is_far(center, scale);
        let relative = Relative::<_, MODE>::to(center, scale);
        let (mut sum, mut dot) = (zero, zero);
        // SAFETY: as above.
        unsafe {
            x.for_each(Self::PAIRS, |chunk, vector| {
                let add = |_, exps| sum = sum + sum_of::<E>(exps);
                let base = relative.base();
                if MODE == mode::LOG_PROB {
                    dot =
                        dot + log_prob::exps_and_dot::<E, 1>([vector], base, [center, scale], add);
                } else {
                    E::exps([vector], base, add);
                }
                if Self::DENSE {
                    let t = self.targets_of(&x, row, chunk);
                    unrolled!(for lane in 0..E::LANES as usize; {
                        if let Some(class) = chunk.column::<E>(lane as u32, x.cols) {
                            let share = pass.share_of(class, E::extract(t, lane as u32).widen());
                            let apart = E::extract(vector, lane as u32).widen() - center;
                            stats.dot = share.fma(apart, stats.dot);
                            stats.weight = stats.weight + share;
                        }
                    });
                }
            });
        }
        sum = split.over_row(sum, add) * relative.unit();
        (stats.ties, stats.rest) = (one, sum - one);
        if any(sum < E::Real::from_f64(2.0) || is_far) {
            let (mut ties, mut rest) = (zero, zero);
            if MODE == mode::LOG_PROB {
                dot = zero;
            }
            // A shift of so large a logit would lose its digits: these rows subtract it first.
            let far_center = if is_far { center } else { zero };
            // SAFETY: as above.
            unsafe {
                x.for_each(Self::PAIRS, |_, vector| {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let logit = E::extract(vector, lane as u32).widen();
                        let is_largest = logit == center;
                        let exp = relative.exp(logit - far_center);
                        ties = ties + if is_largest { one } else { zero };
                        rest = rest + if is_largest { zero } else { exp };
                        if MODE == mode::LOG_PROB {
                            dot = exp.fma(log_prob::apart(logit, center, scale), dot);
                        }
                    });
                });
            }
            stats.ties = split.over_row(ties, add);
            stats.rest = split.over_row(rest, add) * relative.unit();
            if center == E::Real::INFINITY {
                // The loop counted +inf as a largest logit; its difference from the largest is NaN.
                stats.rest = E::Real::NAN;
            }
        }
        if Self::DENSE {
            stats.dot = split.over_row(stats.dot, add);
            stats.weight = split.over_row(stats.weight, add);
        }
        if MODE == mode::LOG_PROB {
            stats.dot = split.over_row(dot, add) * relative.unit();
        }
        stats.of_row()
    }

    /// The probabilities of the same columns as a chunk of logits.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); `x` is the lane's part of row `row`, and has the chunk.
    #[inline(always)]
    unsafe fn targets_of(&self, x: &Part<E>, row: u32, chunk: Chunk) -> Vec16 {
        if MODE != mode::PROBABILITIES {
            return Vec16::default();
        }
        // SAFETY: the caller's conditions.
        unsafe { x.load_beside(self.probabilities.row(row), chunk) }
    }

    /// Writes the gradients of the logits and of the probabilities in the lane's part of a row.
    /// `is_any_far` is whether any row of the warp's turn is [far](Relative::is_far) from 0.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); the warp has synchronised since the row was read.
    #[inline(always)]
    unsafe fn gradients(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u32,
        split: Split,
        factors: &Factors<E::Real>,
        is_any_far: bool,
    ) {
        let args = self.stage.args;
        let x = self.logits_of(row, split);
        let of_target = MODE == mode::PROBABILITIES && args.grad_target.start != 0;
        let scale = pass.scale_of_logits();
        let is_far = Relative::<_, MODE>::is_far(factors.center, scale);
        let relative = Relative::<_, MODE>::to(factors.center, scale);
        let per_exp = pass.factors_of_exp(factors, relative.unit());
        // A shift of so large a logit would lose its digits: these rows subtract it first.
        let far_center = if is_far { factors.center } else { E::Real::ZERO };
        // SAFETY: the caller's conditions.
        unsafe {
            x.for_each(if Self::DENSE { Pairs::None } else { Pairs::Vectors }, |chunk, vector| {
                let t = self.targets_of(&x, row, chunk);
                let mut by_input = [E::Real::ZERO; MAX_LANES];
                let mut by_target = [E::Real::ZERO; MAX_LANES];
                // The gradient of a row that is ignored is 0, whatever its logits.
                if factors.counts {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        by_input[lane] = E::extract(vector, lane as u32).widen();
                    });
                    if is_any_far {
                        unrolled!(for lane in 0..E::LANES as usize; {
                            by_input[lane] = by_input[lane] - far_center;
                        });
                    }
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let logit = E::extract(vector, lane as u32).widen();
                        let apart = by_input[lane];
                        by_input[lane] =
                            relative.exp(apart) * pass.per_exp(apart, relative.center(), per_exp);
                        if Self::DENSE
                            && let Some(class) = chunk.column::<E>(lane as u32, x.cols)
                        {
                            let t = E::extract(t, lane as u32).widen();
                            by_input[lane] =
                                by_input[lane] - pass.gradient_of_share(factors, class, t);
                            if of_target {
                                by_target[lane] = pass.gradient_of_target(factors, class, logit);
                            }
                        }
                    });
                }
                if of_target {
                    let to = self.grad_probabilities.row(row);
                    x.store_beside(to, chunk, E::narrow_all(by_target));
                }
                if MODE != mode::PROBABILITIES || args.grad_input.start != 0 {
                    x.store_beside(self.grad_logits.row(row), chunk, E::narrow_all(by_input));
                }
            });
        }
    }

    /// Stores the gradients of all rows of the stage.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); the warp has synchronised since they were written.
    #[inline(always)]
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
#[inline(always)]
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

/// The sum of a vector's values, added in pairs: a shorter chain of dependent additions.
#[inline(always)]
fn sum_of<E: Element>(values: [E::Real; MAX_LANES]) -> E::Real {
    let mut sum = values[0] + values[1];
    unrolled!(for pair in 1..MAX_LANES / 2; {
        if (pair as u32) < E::LANES / 2 {
            sum = sum + (values[2 * pair] + values[2 * pair + 1]);
        }
    });
    sum
}
