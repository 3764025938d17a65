//! Short rows, one lane per row. The row is in the lane's registers ([`RegisterRow`]) or, if it has
//! more columns, is read from shared memory for each step ([`WideRow`]).
//!
//! A short row costs more than its elements do. There are therefore separate loops for each number
//! of columns (for each width of an access in wide rows) and for each kind of call. Where the
//! targets are classes and the loss is a scalar, [`Rows::scalar`] is the loop of calls without
//! options, with label smoothing, or with both label smoothing and class weights; a second version
//! of it is for class weights or z-loss alone. [`Rows::any`] is for all other calls, and decides on
//! options row by row. A loop for all numbers of columns would branch on them in each row, before
//! and after its sum: H200, 2026-11-28, 200 MiB with z-loss, loss and gradients, ceiling ÷ ours in
//! one loop and in one for each number: f32, 3 columns 0.53 and 0.71, 8 columns 0.74 and 0.86;
//! bf16, 7 columns 0.51 and 0.66.

use super::lane_row::{Access, LaneRow, SharedRow, with_row};
use super::register_row::{RegisterRow, most_cols, with_columns};
use super::stage::{Common, Compute, Stage, for_each_stage};
use super::wide_row::WideRow;
use super::{Share, computes, has_attempts, row_lanes, stages};
use crate::abi::{TileArgs, attempt};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass, TERMS};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use crate::math::{exp_m1_below, ln_1p};
use crate::reduce::Workspace;
use crate::tile::Tile;
use cuda_std::hint::opaque;
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp};

mod any;

/// An index that means "no row".
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
        let product = E::Real::ZERO;
        let compute = LanePerRow::<'_, E, MODE, COMPUTES, WIDE> { pass, workspace, product };
        for_each_stage::<E, MODE, COMPUTES, _>(pass, share, workspace, compute)
    }
}

struct LanePerRow<'a, E: Element, const MODE: u32, const COMPUTES: u32, const WIDE: bool> {
    pass: &'a Pass<'a, E, MODE>,
    workspace: Workspace,
    /// Π s − 1, over the sums of exponentials s of those of the lane's rows whose log s has not
    /// been added to the loss yet: see [`Rows::scalar`].
    product: E::Real,
}

impl<E: Element, const MODE: u32, const COMPUTES: u32, const WIDE: bool>
    LanePerRow<'_, E, MODE, COMPUTES, WIDE>
{
    const HAS_PRODUCT: bool = Rows::<E, MODE>::has_product::<COMPUTES>(false);

    /// Adds the logarithm of the product to the loss and resets the product, if this is the warp's
    /// last stage or the rows of one more might make the product overflow. A lane has at most eight
    /// rows of a stage, and the sum of a row is at most its number of columns, so that the product
    /// of eight is below 10²⁰.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn add_log_of_product(&mut self, is_last: bool, terms: &mut [f64; TERMS]) {
        let most = if size_of::<E::Real>() == 4 { 1e15 } else { 1e280 };
        if Self::HAS_PRODUCT && (is_last || self.product > E::Real::from_f64(most)) {
            terms[0] += ln_1p(self.product).to_f64();
            self.product = E::Real::ZERO;
        }
    }
}

impl<E: Element, const MODE: u32, const COMPUTES: u32, const WIDE: bool> Compute<E::Real, MODE>
    for LanePerRow<'_, E, MODE, COMPUTES, WIDE>
{
    const STAGES: Option<u32> = stages::<E, COMPUTES>(row_lanes::ONE);
    const HAS_ATTEMPTS: bool = has_attempts::<E, MODE, COMPUTES>(row_lanes::ONE);

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn stage(
        &mut self,
        stage: Stage<'_, MODE>,
        is_last: bool,
        common: Common<E::Real>,
        terms: &mut [f64; TERMS],
    ) {
        let &mut LanePerRow { pass, workspace, .. } = self;
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
            // With class weights, there are no registers for both loops of wide rows.
            let has_scalar =
                matches!(MODE, mode::CLASS | mode::SMOOTHED) || MODE == mode::WEIGHTED && !WIDE;
            let report = |faulty| {
                if faulty != NONE && opaque(args.fault) != 0 {
                    workspace.report_row(stage.first() + u64::from(faulty));
                }
            };
            let has_no_option = has_scalar && rows.have_no_option::<COMPUTES>();
            if !has_no_option && MODE == mode::CLASS && rows.have_one_option::<COMPUTES>() {
                report(with_row!(Row of args.cols, access, E, WIDE, NONE; {
                    rows.scalar::<COMPUTES, true, Row<E>>(terms, &mut self.product)
                }));
            } else if !has_no_option {
                with_row!(Row of args.cols, access, E, WIDE, (); {
                    rows.any::<COMPUTES, Row<E>>(terms);
                });
            } else {
                report(with_row!(Row of args.cols, access, E, WIDE, NONE; {
                    rows.scalar::<COMPUTES, false, Row<E>>(terms, &mut self.product)
                }));
            }
            self.add_log_of_product(is_last, terms);
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
    /// The bytes of the widest access that all rows allow: those read and, with gradients, those
    /// written.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn access<const COMPUTES: u32>(&self) -> u32 {
        let TileArgs { access, store_access, .. } = self.stage.args.tile;
        if COMPUTES == computes::LOSS { access } else { access.min(store_access) }
    }

    /// Whether [`scalar`](Self::scalar) computes these rows without options: there is neither
    /// z-loss nor, unless there is label smoothing too, a class weight.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn have_no_option<const COMPUTES: u32>(&self) -> bool {
        let args = self.stage.args;
        let has_options = if COMPUTES == computes::GRADIENTS {
            let has_weights = MODE != mode::WEIGHTED && self.pass.weights() != 0;
            self.has_z_loss() || has_weights
        } else if MODE == mode::WEIGHTED {
            !args.is_plain_but_for_weights()
        } else {
            !self.pass.is_plain()
        };
        !has_options && self.share_scale::<COMPUTES>()
    }

    /// Whether [`scalar`](Self::scalar) computes these rows with options: there are class weights
    /// or a z-loss, but not both.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn have_one_option<const COMPUTES: u32>(&self) -> bool {
        let args = self.stage.args;
        let has_one = !(self.has_z_loss() && self.pass.weights() != 0);
        let is_scalar = COMPUTES == computes::GRADIENTS || args.is_scalar();
        has_one && is_scalar && self.share_scale::<COMPUTES>()
    }

    /// Whether the gradients of all rows have the same scale, if any are computed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn share_scale<const COMPUTES: u32>(&self) -> bool {
        COMPUTES == computes::LOSS || self.stage.args.upstream_stride == 0
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_z_loss(&self) -> bool {
        self.stage.args.z_loss.to_bits() << 1 != 0
    }

    const fn has_attempts<const COMPUTES: u32>() -> bool {
        has_attempts::<E, MODE, COMPUTES>(row_lanes::ONE)
    }

    /// Whether [`scalar`](Self::scalar) reads the probability of a row's class, times the scale,
    /// from the gradients that it has just stored: in f64, where storing does not round, that is
    /// faster than another exponential.
    const HAS_P_IN_GRADIENTS: bool = size_of::<E>() == 8;

    /// Reports that a row does not count in the mean, if this launch assumes that all rows do.
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
        let has_orders = order_mask != 0;
        SharedRow { shared: self.stage.shared, at: tile.row(index), order, has_orders }
    }

    /// Whether [`scalar`](Self::scalar) multiplies the sums of its rows: without options, the loss
    /// contains the logarithm of their product.
    const fn has_product<const COMPUTES: u32>(option: bool) -> bool {
        MODE == mode::CLASS && COMPUTES != computes::GRADIENTS && !option
    }

    /// Computes the rows of a call with class targets whose loss is a scalar. Returns the first row
    /// of this lane whose target is no class, or [`NONE`]. With `OPTION`, the call may have class
    /// weights or a z-loss, otherwise class weights beside label smoothing.
    ///
    /// Without options, it adds all of a row's loss but log s to `terms`, where s is the sum of the
    /// row's exponentials, and multiplies `product` + 1 by s: one logarithm of a product then
    /// replaces many. The variable is the product less 1, because a sum near 1 has its digits in
    /// the excess.
    ///
    /// # Safety
    /// As [`rows`]; the copies of the stage are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn scalar<const COMPUTES: u32, const OPTION: bool, R: LaneRow<E>>(
        &self,
        terms: &mut [f64; TERMS],
        product: &mut E::Real,
    ) -> u32 {
        let Rows { pass, stage, scale, .. } = *self;
        let has_product = Self::has_product::<COMPUTES>(OPTION);
        let (args, size) = (stage.args, size_of::<E>() as u32);
        let classes = stage.staged_classes();
        let (is_smoothed, has_weights) =
            (mode::is_smoothed(MODE), OPTION || MODE == mode::WEIGHTED);
        let has_z_loss = OPTION && self.has_z_loss();
        let twice_z_loss = if has_z_loss { pass.twice_z_loss() } else { E::Real::ZERO };
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
                let (mut logit, mut weight) = (E::Real::ZERO, E::Real::ONE);
                if is_class {
                    logit = stage.shared.element::<E>(source.at + class as u32 * size).widen();
                    if has_weights {
                        weight = pass.weight_of(class as u32);
                    }
                }
                let mut numbers = R::new(source, args.cols, access);
                let (stats, inverse, others, log_sum_exp);
                if COMPUTES == computes::GRADIENTS {
                    let saved = stage.saved::<E::Real>(index);
                    stats = Stats { max: saved.max, weight: saved.weight, ..Stats::NONE };
                    numbers.make_exps_from(saved.max);
                    log_sum_exp = saved.max + saved.log_sum;
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
                    let log_sum = if has_product { E::Real::ZERO } else { stats.log_sum() };
                    log_sum_exp = stats.max + log_sum;
                    let mut loss = log_sum - (logit - stats.max);
                    if has_weights {
                        loss = weight * loss;
                    }
                    if is_smoothed {
                        loss = pass.smoothed(loss, &stats, log_sum);
                    }
                    if !is_class {
                        loss = E::Real::NAN;
                        if counts && faulty == NONE {
                            faulty = index;
                        }
                    }
                    if counts {
                        terms[0] += loss.to_f64();
                        if has_product {
                            // (p + 1)(s − 1) + p = (p + 1) s − 1.
                            *product = (*product + E::Real::ONE).fma(stats.others(), *product);
                        }
                        count += 1;
                        if has_weights && COMPUTES == computes::LOSS {
                            terms[1] += weight.to_f64();
                        }
                        if has_z_loss {
                            terms[2] += (log_sum_exp * log_sum_exp).to_f64();
                        }
                    }
                }
                if COMPUTES != computes::LOSS {
                    let scale = if is_class { scale } else { E::Real::NAN };
                    let target = self.row_of(self.gradients, index);
                    // The gradient of a row that is ignored is 0, whatever its logits.
                    let mut factors = Factors { factor: scale * inverse, ..Factors::NONE };
                    if is_smoothed {
                        factors = pass.smoothed_factors(&stats, weight, inverse, scale);
                    } else if OPTION {
                        factors = pass.factors_of_option(
                            &stats,
                            (weight, twice_z_loss * log_sum_exp),
                            inverse,
                            scale,
                        );
                    }
                    if counts {
                        numbers.store_gradients(pass, &factors, target, access);
                    } else {
                        numbers.store_zeros(target, access);
                    }
                    all_count = all_count && is_class && counts;
                    if is_class && counts {
                        let at = target.at + class as u32 * size;
                        let apart = logit - stats.max;
                        // p − 1 of the likeliest class: see `Pass::at_class_of`.
                        let is_likeliest = apart == E::Real::ZERO;
                        let gradient = if Self::HAS_P_IN_GRADIENTS && !is_smoothed && !OPTION {
                            let scaled_p = stage.shared.element::<E>(at).widen();
                            if is_likeliest { -scale * others } else { scaled_p - scale }
                        } else {
                            let p = apart.exp_below() * inverse;
                            let less_one = if is_likeliest { -others } else { p - E::Real::ONE };
                            if is_smoothed {
                                let of_class = weight * pass.unit();
                                let share = factors.by_share * (p * factors.weight - of_class);
                                factors.by_class.fma(less_one, share)
                            } else if OPTION {
                                factors.by_class.fma(less_one, factors.by_z * p)
                            } else {
                                scale * less_one
                            }
                        };
                        stage.shared.set_element(at, E::narrow(gradient));
                    }
                }
            }
            index += WARP_SIZE;
        }
        if Self::has_attempts::<COMPUTES>() && any(!all_count) && lane_id() == 0 {
            self.note_uncounted();
        }
        if COMPUTES == computes::LOSS && !has_weights {
            terms[1] += f64::from(count);
        }
        if COMPUTES == computes::LOSS && has_z_loss {
            terms[3] += f64::from(count);
        }
        faulty
    }
}
