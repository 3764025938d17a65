//! Short rows, one lane per row: in the lane's registers ([`RegisterRow`]), or read from shared
//! memory for each step where they have more columns ([`WideRow`]).
//!
//! A short row costs more than its elements do. There are therefore two loops for each number of
//! columns, or each width of an access: for calls with class targets and no option
//! ([`Rows::plain`]), and for all others ([`Rows::any`]), which decides on options row by row. A
//! loop for all numbers of columns would branch on them in each row, before and behind its sum:
//! H200, 2026-11-28, 200 MiB with z-loss, loss and gradients, ceiling ÷ ours in one loop and in one
//! for each number: f32, 3 columns 0.53 and 0.71, 8 columns 0.74 and 0.86; bf16, 7 columns 0.51 and
//! 0.66.

use super::lane_row::{Access, LaneRow, SharedRow, with_row};
use super::register_row::{RegisterRow, most_cols, with_columns};
use super::stage::{Common, Compute, Stage, for_each_stage};
use super::wide_row::WideRow;
use super::{Share, computes, factors_of_row, has_attempts, row_lanes};
use crate::abi::{Matrix, TileArgs, attempt};
use crate::cross_entropy::label::counts_in_mean;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass, TERMS, writes};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use crate::math::exp_m1_below;
use crate::reduce::Workspace;
use crate::tile::Tile;
use cuda_std::hint::opaque;
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp};

/// The index of no row.
const NONE: u32 = u32::MAX;

/// Computes a warp's share of the rows.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) unsafe fn rows<E: Element, const MODE: u32, const COMPUTES: u32, const WIDE: bool>(
    pass: &Pass<'_, E, MODE>,
    share: Share,
    workspace: Workspace,
) -> [f64; TERMS] {
    // SAFETY: the caller's conditions.
    unsafe {
        let compute = LanePerRow::<'_, E, MODE, COMPUTES, WIDE> { pass, workspace };
        for_each_stage::<E, MODE, COMPUTES, _>(pass, share, workspace, compute)
    }
}

struct LanePerRow<'a, E: Element, const MODE: u32, const COMPUTES: u32, const WIDE: bool> {
    pass: &'a Pass<'a, E, MODE>,
    workspace: Workspace,
}

impl<E: Element, const MODE: u32, const COMPUTES: u32, const WIDE: bool> Compute<E::Real, MODE>
    for LanePerRow<'_, E, MODE, COMPUTES, WIDE>
{
    const HAS_TWO_STAGES: bool = true;
    const HAS_ATTEMPTS: bool = has_attempts::<E, MODE, COMPUTES>(row_lanes::ONE);

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn stage(
        &mut self,
        stage: Stage<'_, MODE>,
        _is_last: bool,
        common: Common<E::Real>,
        terms: &mut [f64; TERMS],
    ) {
        let &mut LanePerRow { pass, workspace } = self;
        let Common { scale, uncounted } = common;
        let args = stage.args;
        let (logits, probabilities) = (stage.logits::<E>(), stage.probabilities::<E>());
        let gradients = stage.gradients(logits, args.grad_input, 0);
        let of_probabilities = stage.gradients(probabilities, args.grad_target, 1);
        let rows = Rows {
            pass,
            stage,
            logits,
            probabilities,
            gradients,
            of_probabilities,
            scale,
            uncounted,
            workspace,
        };
        // SAFETY: the caller's conditions.
        unsafe {
            let access = rows.access::<COMPUTES>();
            if MODE == mode::CLASS && rows.are_plain::<COMPUTES>() {
                let faulty = with_row!(Row of args.cols, access, E, WIDE, NONE; {
                    rows.plain::<COMPUTES, Row<E>>(terms)
                });
                if faulty != NONE && opaque(args.fault) != 0 {
                    workspace.report_row(stage.first() + u64::from(faulty));
                }
            } else {
                with_row!(Row of args.cols, access, E, WIDE, (); {
                    rows.any::<COMPUTES, Row<E>>(terms);
                });
            }
            if COMPUTES != computes::LOSS {
                sync_warp();
                if MODE != mode::PROBABILITIES || args.grad_input.start != 0 {
                    gradients.store(&args.tile, stage.rows, args.grad_input, stage.first());
                }
                if MODE == mode::PROBABILITIES && args.grad_target.start != 0 {
                    of_probabilities.store(&args.tile, stage.rows, args.grad_target, stage.first());
                }
            }
        }
    }
}

/// The rows of a stage.
#[derive(Clone, Copy)]
struct Rows<'a, E: Element, const MODE: u32> {
    pass: &'a Pass<'a, E, MODE>,
    stage: Stage<'a, MODE>,
    logits: Tile<E>,
    probabilities: Tile<E>,
    /// Gradients of the logits, ...
    gradients: Tile<E>,
    /// ... and of the probabilities.
    of_probabilities: Tile<E>,
    /// The scale of all gradients, if they share one upstream gradient.
    scale: E::Real,
    /// See [`Common`].
    uncounted: u32,
    workspace: Workspace,
}

impl<E: Element, const MODE: u32> Rows<'_, E, MODE> {
    /// The bytes of the widest access that all rows allow which are read or written.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn access<const COMPUTES: u32>(&self) -> u32 {
        let TileArgs { access, store_access, .. } = self.stage.args.tile;
        if COMPUTES == computes::LOSS { access } else { access.min(store_access) }
    }

    /// Whether [`plain`](Self::plain) computes these rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn are_plain<const COMPUTES: u32>(&self) -> bool {
        let args = self.stage.args;
        let has_options = if COMPUTES == computes::GRADIENTS {
            args.z_loss.to_bits() << 1 != 0 || args.weight != 0
        } else {
            !self.pass.is_plain()
        };
        let shares_scale = COMPUTES == computes::LOSS || args.upstream_stride == 0;
        !has_options && shares_scale
    }

    const fn has_attempts<const COMPUTES: u32>() -> bool {
        has_attempts::<E, MODE, COMPUTES>(row_lanes::ONE)
    }

    /// Notes that a row does not count in the mean, if this launch assumes that all do.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn note_uncounted(&self) {
        let is_optimistic = opaque(self.stage.args.attempt.into()) == attempt::OPTIMISTIC.into();
        if is_optimistic && self.uncounted == 0 {
            self.workspace.note_uncounted();
        }
    }

    /// Row `index` of `tile` in shared memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn row_of(&self, tile: Tile<E>, index: u32) -> SharedRow {
        let TileArgs { order_right, order_mask, order_left, .. } = self.stage.args.tile;
        let order = (index >> order_right & order_mask) << order_left;
        SharedRow { shared: self.stage.shared, at: tile.row(index), order }
    }

    /// Computes the rows of a call without options, whose loss is a scalar, and returns the first
    /// of this lane's whose target is no class, or [`NONE`].
    ///
    /// # Safety
    /// As [`rows`]; the copies of the stage are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn plain<const COMPUTES: u32, R: LaneRow<E>>(&self, terms: &mut [f64; TERMS]) -> u32 {
        let Rows { pass, stage, scale, .. } = *self;
        let (args, size) = (stage.args, size_of::<E>() as u32);
        let classes = stage.staged_classes();
        let access = Access::of::<E>(self.access::<COMPUTES>(), args.cols);
        let (mut count, mut faulty, mut all_count) = (0_u32, NONE, true);
        let mut index = lane_id();
        while index < stage.rows {
            let source = self.row_of(self.logits, index);
            // SAFETY: the caller's conditions; no other lane accesses the row.
            unsafe {
                let class = classes.get(index);
                let counts = class != args.ignore_index;
                // A negative class is out of range, too, as an unsigned number.
                let is_class = class.cast_unsigned() < args.cols.into();
                let mut logit = E::Real::ZERO;
                if is_class {
                    logit = stage.shared.element::<E>(source.at + class as u32 * size).widen();
                }
                let mut numbers = R::new(source, args.cols, access);
                let (stats, inverse, others);
                if COMPUTES == computes::GRADIENTS {
                    let saved = stage.saved::<E::Real>(index);
                    stats = Stats { max: saved.max, ..Stats::NONE };
                    numbers.make_exps_from(saved.max);
                    inverse = (-saved.log_sum).exp_below();
                    others = -exp_m1_below(-saved.log_sum);
                } else {
                    let t = (source, access);
                    stats = if COMPUTES == computes::LOSS {
                        numbers.statistics(pass, t)
                    } else {
                        numbers.make_exps(pass, t)
                    };
                    inverse = E::Real::ONE.over_plain(stats.ties + stats.rest);
                    others = stats.others() * inverse;
                    let mut loss = stats.log_sum() - (logit - stats.max);
                    if !is_class {
                        loss = E::Real::NAN;
                        if counts && faulty == NONE {
                            faulty = index;
                        }
                    }
                    if counts {
                        terms[0] += loss.to_f64();
                        count += 1;
                    }
                }
                if COMPUTES != computes::LOSS {
                    let scale = if is_class { scale } else { E::Real::NAN };
                    let target = self.row_of(self.gradients, index);
                    // The gradient of a row that is ignored is 0, whatever its logits.
                    if counts {
                        let factors = Factors { factor: scale * inverse, ..Factors::NONE };
                        numbers.store_gradients(pass, &factors, target, access);
                    } else {
                        numbers.store_zeros(target, access);
                    }
                    all_count = all_count && is_class && counts;
                    if is_class && counts {
                        let apart = logit - stats.max;
                        let p = apart.exp_below() * inverse;
                        // p − 1 of the likeliest class: see `Pass::at_class_of`.
                        let is_likeliest = apart == E::Real::ZERO;
                        let less_one = if is_likeliest { -others } else { p - E::Real::ONE };
                        let at = target.at + class as u32 * size;
                        stage.shared.set_element(at, E::narrow(scale * less_one));
                    }
                }
            }
            index += WARP_SIZE;
        }
        if Self::has_attempts::<COMPUTES>() && any(!all_count) && lane_id() == 0 {
            self.note_uncounted();
        }
        if COMPUTES == computes::LOSS {
            terms[1] += f64::from(count);
        }
        faulty
    }

    /// Computes the rows of any call.
    ///
    /// # Safety
    /// As [`plain`](Self::plain).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn any<const COMPUTES: u32, R: LaneRow<E>>(&self, terms: &mut [f64; TERMS]) {
        let mut index = lane_id();
        while index < self.stage.rows {
            // SAFETY: the caller's conditions; no other lane accesses the row.
            unsafe { self.one::<COMPUTES, R>(index, terms) };
            index += WARP_SIZE;
        }
    }

    /// Computes row `index` of any call, and adds its terms to `terms`.
    ///
    /// # Safety
    /// As [`plain`](Self::plain); no other lane accesses the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn one<const COMPUTES: u32, R: LaneRow<E>>(&self, index: u32, terms: &mut [f64; TERMS]) {
        let Rows { pass, stage, logits, probabilities, gradients, scale, workspace, .. } = *self;
        let args = stage.args;
        let (cols, size) = (args.cols, size_of::<E>() as u32);
        let row = stage.first() + u64::from(index);
        let source = self.row_of(logits, index);
        let access = Access::of::<E>(self.access::<COMPUTES>(), cols);
        // SAFETY: the caller's conditions.
        unsafe {
            let mut class = args.ignore_index;
            if MODE != mode::PROBABILITIES {
                class = stage.class(index);
            }
            let t = (self.row_of(probabilities, index), access);
            let mut logit = E::Real::ZERO;
            if MODE != mode::PROBABILITIES && class.cast_unsigned() < cols.into() {
                logit = stage.shared.element::<E>(source.at + class as u32 * size).widen();
            }
            let mut numbers = R::new(source, cols, access);
            let mut stats = Stats::NONE;
            if COMPUTES != computes::GRADIENTS {
                stats = if COMPUTES == computes::LOSS {
                    numbers.statistics(pass, t)
                } else {
                    numbers.make_exps(pass, t)
                };
                if Self::has_attempts::<COMPUTES>() && !counts_in_mean(args, class) {
                    self.note_uncounted();
                }
            }
            let label = pass.label(class);
            if COMPUTES == computes::BOTH {
                let of_row =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                // The normaliser was summed before, so the weights are not summed again.
                terms[0] += of_row[0];
                if !pass.has_two_sums() {
                    terms[2] += of_row[2];
                }
            } else if COMPUTES == computes::LOSS {
                let of_row =
                    pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace);
                terms[0] += of_row[0];
                terms[1] += of_row[1];
                if !pass.has_two_sums() {
                    terms[2] += of_row[2];
                    terms[3] += of_row[3];
                }
                return;
            }
            let factors = factors_of_row::<E, MODE, COMPUTES, true>(
                pass,
                &label,
                stats,
                (&stage, index),
                scale,
            );
            let target = self.row_of(gradients, index);
            if MODE == mode::PROBABILITIES {
                let to = |of: Matrix, row| (of.start != 0).then_some(row);
                let of_probabilities = self.row_of(self.of_probabilities, index);
                let to = [to(args.grad_input, target), to(args.grad_target, of_probabilities)];
                let mut numbers = R::new(source.rematerialize(), cols, access);
                numbers.store_gradients_of_both(pass, &factors, t, to, access);
                return;
            }
            // The gradient of a row that is ignored is 0, whatever its logits.
            if label.counts {
                if COMPUTES == computes::GRADIENTS || Pass::<E, MODE>::DENSE {
                    // Beside shares of all classes, there are no registers for the exponentials.
                    numbers = R::new(source.rematerialize(), cols, access);
                    numbers.make_exps_from(factors.center);
                }
                numbers.store_gradients(pass, &factors, target, access);
            } else {
                numbers.store_zeros(target, access);
            }
            if label.has_class(cols) {
                let at_class = E::narrow(pass.at_class(&label, &factors, logit));
                stage.shared.set_element(target.at + label.class * size, at_class);
            }
        }
    }
}
