//! The forward pass over long rows: cross-entropy as a [`RowLoss`] of the row engine
//! ([`crate::row`]), by the online softmax.

use super::finish::{finish, has_sums};
use super::label::Label;
use super::lagging::{CERTAIN, Lagging};
use super::log_prob::{self, exps_and_dot};
use super::mode;
use super::online_softmax::OnlineSoftmax;
use super::pass::{Classes, Pass, ShareSums, weights, writes};
use super::row_group::RowGroup;
use super::stats::Relative;
use crate::abi::{CrossEntropyArgs, Matrix, StreamArgs};
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::Workspace;
use crate::row::{NO_COLUMN, RowLoss, RowStats, TERMS, stream};
use cuda_std::memory::Vec16;
use cuda_std::thread::block_idx_x;

/// Streams rows through shared memory, and writes the loss of each and that of the call.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. `args.stream` is as [`StreamArgs`] says.
/// 3. A block has dynamic shared memory for the rings of its warps.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_stream<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    // SAFETY: the caller's conditions.
    unsafe {
        let workspace = Workspace::new(args.workspace);
        stream::stream(&Pass::<E, MODE>::new(args), workspace);
    }
}

/// Adds the exponentials of vector `k` to `sums`; two accumulators halve the chain of dependent
/// additions.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn add_exps<E: Element>(sums: &mut [E::Real; 2], k: usize, exps: [E::Real; MAX_LANES]) {
    unrolled!(for lane in 0..E::LANES as usize; {
        let is_first = k == 0 && lane < 2;
        sums[lane % 2] = if is_first { exps[lane] } else { sums[lane % 2] + exps[lane] };
    });
}

/// Σ exp((x − center) · scale) over N vectors and, with `EXACT`, the sum of those exponentials that
/// are not 1. Writes the vectors' dot (see [`log_prob`]) to `dot`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn sum_of_exps<E: Element, const MODE: u32, const N: usize, const EXACT: bool>(
    x: [Vec16; N],
    [center, scale]: [E::Real; 2],
    dot: &mut E::Real,
) -> (E::Real, E::Real) {
    let (zero, one) = (E::Real::ZERO, E::Real::ONE);
    let (mut sums, mut rests) = ([zero; 2], [zero; 2]);
    let relative = Relative::<_, MODE>::to(center, scale);
    let is_shifted = mode::has_shifted_shares::<E::Real>(MODE) && !EXACT;
    let base = if is_shifted { relative.base() } else { Base::Center(center, scale) };
    let add = |k, exps: [E::Real; MAX_LANES]| {
        add_exps::<E>(&mut sums, k, exps);
        if EXACT {
            add_exps::<E>(&mut rests, k, exps.map(|exp| if exp == one { zero } else { exp }));
        }
    };
    if MODE == mode::LOG_PROB {
        *dot = exps_and_dot::<E, N>(x, base, [center, scale], add);
    } else {
        E::exps(x, base, add);
    }
    let sum = sums[0] + sums[1];
    (if is_shifted { sum * relative.unit() } else { sum }, rests[0] + rests[1])
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Adds the shares of N vectors of logits `x` to `sums`. `t` has their probabilities, where
    /// these are the target.
    ///
    /// # Safety
    /// As [`RowLoss::accumulate`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_shares_of<const N: usize, const WHOLE: bool>(
        &self,
        sums: &mut ShareSums<E::Real>,
        relative: Relative<E::Real, MODE>,
        (x, t): ([Vec16; N], [Vec16; N]),
        columns: [u32; N],
        counts: [u32; N],
    ) {
        if WHOLE {
            // SAFETY: the caller's conditions.
            return unsafe {
                self.add_shares::<N, { weights::LOADED }>(
                    sums,
                    relative,
                    (x, t),
                    columns.map(Classes::from),
                )
            };
        }
        unrolled!(for k in 0..N; {
            let has = |lane: usize| (lane as u32) < counts[k];
            let class = |lane| has(lane).then(|| columns[k] + lane as u32);
            // SAFETY: the caller's conditions.
            unsafe { self.add_shares_by_class(sums, relative, (x[k], t[k]), class) };
        });
    }

    /// [`add_shares_of`](Self::add_shares_of) to statistics.
    ///
    /// # Safety
    /// As [`RowLoss::accumulate`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_shares_to<const N: usize, const WHOLE: bool>(
        &self,
        stats: &mut OnlineSoftmax<E::Real, MODE>,
        center: E::Real,
        tensors: ([Vec16; N], [Vec16; N]),
        columns: [u32; N],
        counts: [u32; N],
    ) {
        let relative = Relative::to(center, E::Real::ONE);
        let mut sums = [E::Real::ZERO; 2];
        // SAFETY: the caller's conditions.
        unsafe { self.add_shares_of::<N, WHOLE>(&mut sums, relative, tensors, columns, counts) };
        let [dot, weight] = self.shares_of_sums(sums, relative);
        [stats.dot, stats.weight] = [stats.dot + dot, stats.weight + weight];
    }

    /// [`RowLoss::accumulate`] without `EXACT`, for statistics that lag. The exponentials do not
    /// wait for the maximum, which only decides afterwards whether they are used.
    ///
    /// # Safety
    /// As [`RowLoss::accumulate`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn accumulate_lagging<const N: usize, const WHOLE: bool>(
        &self,
        stats: &mut OnlineSoftmax<E::Real, MODE>,
        (x, t): ([Vec16; N], [Vec16; N]),
        columns: [u32; N],
        counts: [u32; N],
    ) -> bool {
        const { assert!(WHOLE || N == 1) };
        let mut lagging = stats.lagging;
        // A vector is padded with −∞, which would make the top a NaN, so elements are added one by
        // one.
        let element = |lane: usize| E::extract(x[0], lane as u32).widen();
        if WHOLE {
            lagging.add::<E, N>(x);
        } else {
            unrolled!(for lane in 0..E::LANES as usize; {
                if (lane as u32) < counts[0] {
                    lagging.add_one(element(lane));
                }
            });
        }
        if N == 1 && !lagging.is_near() {
            stats.recenter(lagging);
            lagging = stats.lagging;
        }
        let center = lagging.center();
        let mut sum = E::Real::ZERO;
        if WHOLE {
            let mut sums = [E::Real::ZERO; 2];
            E::exps_near(x, lagging.near(), |k, exps| add_exps::<E>(&mut sums, k, exps));
            sum = sums[0] + sums[1];
        } else {
            unrolled!(for lane in 0..E::LANES as usize; {
                if (lane as u32) < counts[0] {
                    sum = sum + element(lane).exp_near(lagging.near());
                }
            });
        }
        if !OnlineSoftmax::<_, MODE>::takes::<N>(lagging) {
            return false;
        }
        stats.others = stats.others + sum;
        stats.lagging = lagging;
        if Self::DENSE {
            // SAFETY: the caller's conditions.
            unsafe { self.add_shares_to::<N, WHOLE>(stats, center, (x, t), columns, counts) };
        }
        true
    }
}

impl<E: Element, const MODE: u32> RowLoss for Pass<'_, E, MODE> {
    type Element = E;
    type Target = Label<E::Real>;
    type Stats = OnlineSoftmax<E::Real, MODE>;
    const TENSORS: u32 = if MODE == mode::PROBABILITIES { 2 } else { 1 };
    /// Padding is not used where every class has a share of the target: it would add shares of
    /// classes that the row does not have.
    const PADS: bool = Self::Stats::LAGS && !Self::DENSE;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn padding() -> Vec16 {
        E::pack([Lagging::padding(); MAX_LANES])
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn tensors(&self) -> [Matrix; 2] {
        [self.args.input, self.args.probabilities()]
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn shape(&self) -> (u64, u32) {
        (self.args.rows, self.args.cols)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn layout(&self) -> &StreamArgs {
        &self.args.stream
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn begin(&self, first: (u64, u32)) {
        // SAFETY: the caller's conditions.
        unsafe { self.begin_at(block_idx_x(), first, RowGroup::of_warp()) };
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn target(&self, row: u64) -> Self::Target {
        // SAFETY: the caller's conditions.
        unsafe { self.label(self.class(row)) }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn picked(&self, target: &Self::Target) -> u32 {
        if target.has_class(self.args.cols) { target.class } else { NO_COLUMN }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn accumulate<const N: usize, const WHOLE: bool, const EXACT: bool>(
        &self,
        stats: &mut Self::Stats,
        x: [Vec16; N],
        t: [Vec16; N],
        columns: [u32; N],
        counts: [u32; N],
    ) -> bool {
        if Self::Stats::LAGS && !EXACT {
            // SAFETY: the caller's conditions.
            return unsafe { self.accumulate_lagging::<N, WHOLE>(stats, (x, t), columns, counts) };
        }
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
            unsafe {
                if EXACT && Self::HAS_SHIFTED_SHARES {
                    let mut sums = [stats.dot, stats.weight];
                    unrolled!(for k in 0..N; {
                        let has = |lane: usize| (lane as u32) < counts[k];
                        let class = |lane| has(lane).then(|| columns[k] + lane as u32);
                        self.add_exact_shares(&mut sums, center, (x[k], t[k]), class);
                    });
                    [stats.dot, stats.weight] = sums;
                } else {
                    self.add_shares_to::<N, WHOLE>(stats, center, (x, t), columns, counts);
                }
            }
        }
        let mut dot = E::Real::ZERO;
        let (sum, rest) = sum_of_exps::<E, MODE, N, EXACT>(x, [center, scale], &mut dot);
        if is_new {
            let (rescaled, factor) = stats.rescaled_sum(center, scale);
            if Self::LOG_PROB {
                let factors = [factor, rescaled];
                stats.dot = log_prob::rescaled_dot(stats.dot, factors, stats.max, center, scale);
            }
            // If the others sum to less than 1/2, only one logit is the largest, and the others are
            // exactly the exponentials that are not 1.
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
        true
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn is_exact(stats: &Self::Stats) -> bool {
        // NaN is not exact: elements may have caused it that need the exact computation.
        let is_certain = stats.others >= E::Real::from_f64(CERTAIN);
        let is_far = Relative::<_, MODE>::is_far(stats.max, E::Real::ONE);
        let has_shares = !is_far && Self::has_sums_of_shares(stats.dot);
        is_certain && (has_shares || !Self::HAS_SHIFTED_SHARES)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
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

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn scale(&self) -> E::Real {
        self.scale_of_logits()
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn needs_sums(&self) -> bool {
        has_sums(self.args)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn finish(&self, sums: [f64; TERMS], workspace: Workspace) {
        // SAFETY: the caller's conditions.
        unsafe {
            let plain = self.begin_finish(true);
            finish(self, plain, sums, workspace);
        }
    }
}
