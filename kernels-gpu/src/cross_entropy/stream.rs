//! The forward pass over long rows: cross-entropy as a [`RowLoss`] of the row engine
//! ([`crate::row`]), by the online softmax.

use super::finish::{finish, has_sums};
use super::label::Label;
use super::log_prob::{self, exps_and_dot};
use super::mode;
use super::pass::{Pass, writes};
use super::stats::Stats;
use crate::abi::{CrossEntropyArgs, Matrix, StreamArgs, VECTOR_BYTES};
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::{Workspace, warp_max, warp_sums};
use crate::row::{NO_COLUMN, RowLoss, RowStats, TERMS, stream};
use cuda_std::memory::{Vec16, load};
use cuda_std::warp::{WARP_SIZE, ballot};

/// Streams rows through shared memory, and writes their losses and the call's.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. `args.stream` is as [`StreamArgs`] says.
/// 3. A block has dynamic shared memory for the rings of its warps.
#[inline(always)]
pub(crate) unsafe fn forward_stream<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    // SAFETY: the caller's conditions.
    unsafe {
        let workspace = Workspace::new(args.workspace);
        stream::stream(&Pass::<E, MODE>::new(args), workspace);
    }
}

/// The online softmax of a part of a row: the running maximum and the running sums.
///
/// The sum of the exponentials leaves out the 1 of the largest logit. Where a class is nearly
/// certain, the loss is the sum of the other exponentials, and added to 1 that would lose its
/// digits.
#[derive(Clone, Copy)]
pub(crate) struct OnlineSoftmax<R, const MODE: u32> {
    /// The largest logit, m.
    max: R,
    /// Σ exp(x − m) − 1; −1 if there is no logit yet.
    others: R,
    /// Σ q (x − m), for a target with a share q for every class (`DENSE`).
    dot: R,
    /// Σ q, for a `DENSE` target.
    weight: R,
}

impl<R: Real, const MODE: u32> OnlineSoftmax<R, MODE> {
    const DENSE: bool = Stats::<R>::parts_used(MODE) == 4;
    const LOG_PROB: bool = MODE == mode::LOG_PROB;

    /// The logit that is subtracted from all others: the largest, or 0 while that is −∞, since
    /// −∞ − −∞ is NaN.
    #[inline(always)]
    fn center(max: R) -> R {
        if max == R::NEG_INFINITY { R::ZERO } else { max }
    }

    /// Converts to the statistics that the other kernels use.
    #[inline(always)]
    fn stats(self) -> Stats<R> {
        Stats::of_parts(self.parts()).of_row()
    }

    /// Σ exp(x − `center`), for a center that is larger than the largest logit, and the factor by
    /// which that rescales the exponentials.
    #[inline(always)]
    fn rescaled_sum(self, center: R, scale: R) -> (R, R) {
        let sum = R::ONE + self.others;
        let factor = log_prob::scaled::<R, MODE>(self.max - center, scale).exp_below();
        (sum * factor, factor)
    }

    /// Σ exp(x − `max`) and Σ q (x − `max`), for a `max` that is larger than the largest logit.
    #[inline(always)]
    fn relative_to(self, max: R, scale: R) -> (R, R) {
        let center = Self::center(max);
        let (sum, factor) = self.rescaled_sum(center, scale);
        let dot = if Self::LOG_PROB {
            log_prob::rescaled_dot(self.dot, [factor, sum], self.max, center, scale)
        } else {
            self.dot + self.weight * (Self::center(self.max) - center)
        };
        (sum, if MODE == mode::CLASS { R::ZERO } else { dot })
    }
}

impl<R: Real, const MODE: u32> RowStats for OnlineSoftmax<R, MODE> {
    type Real = R;
    const PARTS: usize = Stats::<R>::parts_used(MODE);

    #[inline(always)]
    fn none() -> Self {
        Self { max: R::NEG_INFINITY, others: -R::ONE, dot: R::ZERO, weight: R::ZERO }
    }

    #[inline(always)]
    fn with(self, other: Self, scale: R) -> Self {
        let (high, low) = if other.max > self.max { (other, self) } else { (self, other) };
        let ties = low.max == high.max;
        let (sum, dot) = low.relative_to(high.max, scale);
        Self {
            max: high.max,
            others: high.others + if ties { R::ONE + low.others } else { sum },
            dot: high.dot + if ties { low.dot } else { dot },
            weight: high.weight + low.weight,
        }
    }

    #[inline(always)]
    fn over_warp(self, scale: R) -> Self {
        let max = warp_max(self.max);
        let has = self.max == max;
        let (sum, dot) = self.relative_to(max, scale);
        let (others, dot) = if has { (self.others, self.dot) } else { (sum, dot) };
        let ties = R::from_i32(ballot(has).count_ones().cast_signed() - 1);
        if Self::DENSE {
            let values = warp_sums([others, dot, self.weight], WARP_SIZE);
            return Self { max, others: ties + values[0], dot: values[1], weight: values[2] };
        }
        if Self::LOG_PROB {
            let [others, dot] = warp_sums([others, dot], WARP_SIZE);
            return Self { max, others: ties + others, dot, weight: R::ZERO };
        }
        let [others] = warp_sums([others], WARP_SIZE);
        Self { max, others: ties + others, dot: R::ZERO, weight: R::ZERO }
    }

    #[inline(always)]
    fn parts(self) -> [R; 4] {
        [self.max, self.others, self.dot, self.weight]
    }

    #[inline(always)]
    fn from_parts([max, others, dot, weight]: [R; 4]) -> Self {
        Self { max, others, dot, weight }
    }
}

/// Σ exp((x − center) · scale) over N vectors and, with `EXACT`, the sum over those exponentials
/// that are not 1. Writes the vectors' dot of [`log_prob`] to `dot`.
#[inline(always)]
fn sum_of_exps<E: Element, const MODE: u32, const N: usize, const EXACT: bool>(
    x: [Vec16; N],
    [center, scale]: [E::Real; 2],
    dot: &mut E::Real,
) -> (E::Real, E::Real) {
    let (zero, one) = (E::Real::ZERO, E::Real::ONE);
    // Two accumulators each, which halve the chain of dependent additions.
    let (mut sums, mut rests) = ([zero; 2], [zero; 2]);
    let base = Base::Center(center, scale);
    let add = |_, exps: [E::Real; MAX_LANES]| {
        unrolled!(for lane in 0..E::LANES as usize; {
            let exp = exps[lane];
            sums[lane % 2] = sums[lane % 2] + exp;
            if EXACT {
                let rest = if exp == one { zero } else { exp };
                rests[lane % 2] = rests[lane % 2] + rest;
            }
        });
    };
    if MODE == mode::LOG_PROB {
        *dot = exps_and_dot::<E, N>(x, base, [center, scale], add);
    } else {
        E::exps(x, base, add);
    }
    (sums[0] + sums[1], rests[0] + rests[1])
}

/// A sum Σ exp(x − m) − 1 below this has lost digits that the loss needs: it was computed as the
/// difference of a sum near 1 and 1.
const CERTAIN: f64 = 0.125;

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// A vector of the weights of `count` classes from `column` on. Its other lanes are 1, and all
    /// are in a call without class weights.
    ///
    /// # Safety
    /// As [`RowLoss::accumulate`].
    #[inline(always)]
    unsafe fn weights_from(&self, column: u32, count: u32) -> Vec16 {
        let mut weights = [E::narrow(E::Real::ONE); MAX_LANES];
        if self.args.weight == 0 {
            return E::pack(weights);
        }
        let at = self.args.weight + u64::from(column) * size_of::<E>() as u64;
        // SAFETY: the caller's conditions: the classes are the row's.
        unsafe {
            if count == E::LANES && at.is_multiple_of(VECTOR_BYTES.into()) {
                // Loaded as two halves, which stay in the first-level cache for the next row. Loads
                // past that cache, as those of rows, take f32 half as long again (H200, 32768×4096
                // with weights and smoothing: 141 and 216 µs).
                let halves = [0, 1].map(|half| load((at as *const u64).wrapping_add(half)));
                return Vec16([
                    halves[0] as u32,
                    (halves[0] >> 32) as u32,
                    halves[1] as u32,
                    (halves[1] >> 32) as u32,
                ]);
            }
            unrolled!(for lane in 0..E::LANES as usize; {
                if (lane as u32) < count {
                    weights[lane] = load((at as *const E).wrapping_add(lane));
                }
            });
        }
        E::pack(weights)
    }

    /// Adds Σ q (x − center) and Σ q over N vectors of logits `x` to the statistics. `t` has their
    /// probabilities, where these are the target.
    ///
    /// # Safety
    /// As [`RowLoss::accumulate`].
    #[inline(always)]
    unsafe fn add_shares<const N: usize, const WHOLE: bool>(
        &self,
        stats: &mut OnlineSoftmax<E::Real, MODE>,
        center: E::Real,
        (x, t): ([Vec16; N], [Vec16; N]),
        columns: [u32; N],
        counts: [u32; N],
    ) {
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        // Without class weights, smoothing gives all classes the same share: multiply once.
        let uniform = MODE == mode::SMOOTHED && self.args.weight == 0;
        let (mut apart_sum, mut elements) = (zero, zero);
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            let weights = unsafe { self.weights_from(columns[k], counts[k]) };
            unrolled!(for lane in 0..E::LANES as usize; {
                if WHOLE || (lane as u32) < counts[k] {
                    let apart = E::extract(x[k], lane as u32).widen() - center;
                    if uniform {
                        apart_sum = apart_sum + apart;
                        elements = elements + one;
                    } else {
                        let t = E::extract(t[k], lane as u32).widen();
                        let weight = E::extract(weights, lane as u32).widen();
                        let share = self.share_by_weight(weight, t);
                        stats.dot = share.fma(apart, stats.dot);
                        stats.weight = stats.weight + share;
                    }
                }
            });
        });
        if uniform {
            stats.dot = self.unit().fma(apart_sum, stats.dot);
            stats.weight = self.unit().fma(elements, stats.weight);
        }
    }
}

impl<E: Element, const MODE: u32> RowLoss for Pass<'_, E, MODE> {
    type Element = E;
    type Target = Label<E::Real>;
    type Stats = OnlineSoftmax<E::Real, MODE>;
    const TENSORS: u32 = if MODE == mode::PROBABILITIES { 2 } else { 1 };

    #[inline(always)]
    fn tensors(&self) -> [Matrix; 2] {
        [self.args.input, self.args.probabilities()]
    }

    #[inline(always)]
    fn shape(&self) -> (u64, u32) {
        (self.args.rows, self.args.cols)
    }

    #[inline(always)]
    fn layout(&self) -> &StreamArgs {
        &self.args.stream
    }

    #[inline(always)]
    unsafe fn target(&self, row: u64) -> Self::Target {
        // SAFETY: the caller's conditions.
        unsafe { self.label(self.class(row)) }
    }

    #[inline(always)]
    fn picked(&self, target: &Self::Target) -> u32 {
        if target.has_class(self.args.cols) { target.class } else { NO_COLUMN }
    }

    #[inline(always)]
    unsafe fn accumulate<const N: usize, const WHOLE: bool, const EXACT: bool>(
        &self,
        stats: &mut Self::Stats,
        x: [Vec16; N],
        t: [Vec16; N],
        columns: [u32; N],
        counts: [u32; N],
    ) {
        let greatest = E::greatest(x);
        let is_new = greatest > stats.max;
        let max = if is_new { greatest } else { stats.max };
        let (before, center) = (Self::Stats::center(stats.max), Self::Stats::center(max));
        let scale = self.scale_of_logits();
        if Self::DENSE {
            if is_new {
                stats.dot = stats.dot + stats.weight * (before - center);
            }
            // SAFETY: the caller's conditions.
            unsafe { self.add_shares::<N, WHOLE>(stats, center, (x, t), columns, counts) };
        }
        let mut dot = E::Real::ZERO;
        let (sum, rest) = sum_of_exps::<E, MODE, N, EXACT>(x, [center, scale], &mut dot);
        if is_new {
            let (rescaled, factor) = stats.rescaled_sum(center, scale);
            if Self::LOG_PROB {
                let factors = [factor, rescaled];
                stats.dot = log_prob::rescaled_dot(stats.dot, factors, stats.max, center, scale);
            }
            // If the others sum to less than 1/2, only one logit is the largest, and they are
            // the exponentials that are not 1.
            let others = sum - E::Real::ONE;
            let others = if EXACT && others < E::Real::HALF { rest } else { others };
            stats.others = rescaled + others;
        } else {
            stats.others = stats.others + sum;
        }
        if Self::LOG_PROB {
            stats.dot = stats.dot + dot;
        }
        stats.max = max;
    }

    #[inline(always)]
    fn is_exact(stats: &Self::Stats) -> bool {
        // NaN compares as not certain, so it counts as exact: a second pass would not improve it.
        let is_certain = stats.others < E::Real::from_f64(CERTAIN);
        !is_certain
    }

    #[inline(always)]
    unsafe fn finish_row(
        &self,
        row: u64,
        target: &Self::Target,
        picked: E::Real,
        stats: Self::Stats,
        workspace: Workspace,
    ) -> [f64; TERMS] {
        let stats = stats.stats();
        // SAFETY: the caller's conditions.
        unsafe { Pass::finish_row::<{ writes::ALL }>(self, row, target, stats, picked, workspace) }
    }

    #[inline(always)]
    fn scale(&self) -> E::Real {
        self.scale_of_logits()
    }

    #[inline(always)]
    fn needs_sums(&self) -> bool {
        has_sums(self.args)
    }

    #[inline(always)]
    unsafe fn finish(&self, sums: [f64; TERMS], workspace: Workspace) {
        // SAFETY: the caller's conditions.
        unsafe {
            let plain = self.begin_finish(true);
            finish(self, plain, sums, workspace);
        }
    }
}
