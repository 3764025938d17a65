//! Short rows, one lane per row: in the lane's registers ([`RegisterRow`]), or read from shared
//! memory for each step where they have more columns ([`WideRow`]).
//!
//! A short row costs more than its elements do. Calls with class targets and no other option
//! therefore have loops of their own, for each number of columns or each width of an access, with
//! class weights and without ([`Rows::plain`]). All other calls, those with label smoothing or
//! probabilities included, share a loop that decides on options and on the kind of row row by row
//! ([`Rows::any`]).

use super::lane_row::{Access, LaneRow, SharedRow, with_row};
use super::register_row::{RegisterRow, most_cols, with_columns};
use super::stage::{Common, Compute, Stage, for_each_stage};
use super::wide_row::WideRow;
use super::{Share, add_loss, computes, factors_of_row, has_attempts, row_lanes};
use crate::abi::{Matrix, TileArgs, attempt};
use crate::cross_entropy::label::{class_weight, counts_in_mean};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass, TERMS};
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
            if MODE == mode::CLASS && rows.are_plain::<COMPUTES, WIDE>() {
                let access = rows.access::<COMPUTES>();
                let faulty = if !WIDE && args.weight != 0 {
                    with_row!(Row of args.cols, access, E, WIDE, NONE; {
                        rows.plain::<COMPUTES, true, Row<E>>(terms)
                    })
                } else {
                    with_row!(Row of args.cols, access, E, WIDE, NONE; {
                        rows.plain::<COMPUTES, false, Row<E>>(terms)
                    })
                };
                if faulty != NONE && opaque(args.fault) != 0 {
                    workspace.report_row(stage.first() + u64::from(faulty));
                }
            } else {
                rows.any::<COMPUTES, WIDE>(terms);
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
    fn are_plain<const COMPUTES: u32, const WIDE: bool>(&self) -> bool {
        let args = self.stage.args;
        let access = Access::of::<E>(self.access::<COMPUTES>(), args.cols);
        let has_options = if COMPUTES == computes::GRADIENTS {
            args.z_loss.to_bits() << 1 != 0 || (WIDE && args.weight != 0)
        } else {
            !self.pass.is_plain() && (WIDE || !args.is_plain_but_for_weights())
        };
        let shares_scale = COMPUTES == computes::LOSS || args.upstream_stride == 0;
        (WIDE || access == Access::Natural) && !has_options && shares_scale
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
    /// of this lane's whose target is no class, or [`NONE`]. `WEIGHTED`: with class weights.
    ///
    /// # Safety
    /// As [`rows`]; the copies of the stage are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn plain<const COMPUTES: u32, const WEIGHTED: bool, R: LaneRow<E>>(
        &self,
        terms: &mut [f64; TERMS],
    ) -> u32 {
        let Rows { pass, stage, scale, .. } = *self;
        let (args, size) = (stage.args, size_of::<E>() as u32);
        let classes = stage.staged_classes();
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
                let mut weight = E::Real::ONE;
                if WEIGHTED && is_class && counts {
                    weight = class_weight::<E>(args.weight, class as u32);
                }
                let mut logit = E::Real::ZERO;
                if is_class {
                    logit = stage.shared.element::<E>(source.at + class as u32 * size).widen();
                }
                let mut numbers = R::new(source, args.cols, Access::Natural);
                let (stats, inverse, others);
                if COMPUTES == computes::GRADIENTS {
                    let saved = stage.saved::<E::Real>(index);
                    stats = Stats { max: saved.max, ..Stats::NONE };
                    numbers.make_exps_from(saved.max);
                    inverse = (-saved.log_sum).exp_below();
                    others = -exp_m1_below(-saved.log_sum);
                } else {
                    let t = (source, Access::Natural);
                    stats = if COMPUTES == computes::LOSS {
                        numbers.statistics::<MODE, true>(pass, t)
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
                    if WEIGHTED {
                        loss = weight * loss;
                    }
                    if counts {
                        terms[0] += loss.to_f64();
                        if COMPUTES == computes::LOSS && WEIGHTED {
                            terms[1] += weight.to_f64();
                        } else {
                            count += 1;
                        }
                    }
                }
                if COMPUTES != computes::LOSS {
                    let mut scale = if is_class { scale } else { E::Real::NAN };
                    if WEIGHTED {
                        scale = weight * scale;
                    }
                    let target = self.row_of(self.gradients, index);
                    // The gradient of a row that is ignored is 0, whatever its logits.
                    if counts {
                        let factors = Factors { factor: scale * inverse, ..Factors::NONE };
                        numbers.store_gradients(pass, &factors, target, Access::Natural);
                    } else {
                        numbers.store_zeros(target, Access::Natural);
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
    unsafe fn any<const COMPUTES: u32, const WIDE: bool>(&self, terms: &mut [f64; TERMS]) {
        let mut index = lane_id();
        while index < self.stage.rows {
            // SAFETY: the caller's conditions; no other lane accesses the row.
            unsafe { self.one::<COMPUTES, WIDE>(index, terms) };
            index += WARP_SIZE;
        }
    }

    /// Computes row `index` of any call, and adds its terms to `terms`.
    ///
    /// # Safety
    /// As [`plain`](Self::plain); no other lane accesses the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn one<const COMPUTES: u32, const WIDE: bool>(
        &self,
        index: u32,
        terms: &mut [f64; TERMS],
    ) {
        let Rows { pass, stage, logits, probabilities, gradients, scale, workspace, .. } = *self;
        let args = stage.args;
        let (cols, size) = (args.cols, size_of::<E>() as u32);
        let row = stage.first() + u64::from(index);
        let source = self.row_of(logits, index);
        let access = Access::of::<E>(args.tile.access, cols);
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
            let mut stats = Stats::NONE;
            if COMPUTES != computes::GRADIENTS {
                stats = with_row!(Row of cols, self.access::<COMPUTES>(), E, WIDE, Stats::NONE; {
                    Row::<E>::new(source, cols, access).statistics::<MODE, false>(pass, t)
                });
                if Self::has_attempts::<COMPUTES>() && !counts_in_mean(args, class) {
                    self.note_uncounted();
                }
                add_loss::<E, MODE, COMPUTES>(pass, row, class, stats, logit, workspace, terms);
            }
            if COMPUTES == computes::LOSS {
                return;
            }
            let label = pass.label(class);
            let factors = factors_of_row::<E, MODE, COMPUTES, true>(
                pass,
                &label,
                stats,
                (&stage, index),
                scale,
            );
            let (source, target) = (source.rematerialize(), self.row_of(gradients, index));
            let store_access = Access::of::<E>(args.tile.store_access, cols);
            if MODE == mode::PROBABILITIES {
                let to = |of: Matrix, row| (of.start != 0).then_some(row);
                let of_probabilities = self.row_of(self.of_probabilities, index);
                let to = [to(args.grad_input, target), to(args.grad_target, of_probabilities)];
                with_row!(Row of cols, self.access::<COMPUTES>(), E, WIDE, (); {
                    let mut numbers = Row::<E>::new(source, cols, access);
                    numbers.store_gradients_of_both(pass, &factors, t, to, store_access);
                });
                return;
            }
            with_row!(Row of cols, self.access::<COMPUTES>(), E, WIDE, (); {
                // The gradient of a row that is ignored is 0, whatever its logits.
                let mut numbers = Row::<E>::new(source, cols, access);
                if label.counts {
                    numbers.make_exps_from(factors.center);
                    numbers.store_gradients(pass, &factors, target, store_access);
                } else {
                    numbers.store_zeros(target, store_access);
                }
            });
            if label.has_class(cols) {
                let at_class = E::narrow(pass.at_class(&label, &factors, logit));
                stage.shared.set_element(target.at + label.class * size, at_class);
            }
        }
    }
}
