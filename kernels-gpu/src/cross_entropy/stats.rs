//! Online softmax statistics of a row's logits, or of a part of a row.
//!
//! The sum of exponentials has two parts: the number of exponentials that are 1, those of the
//! largest logits, and the sum of all others. If a row's distribution is nearly certain, the sum is
//! just above 1, and the loss and the gradient depend on the excess, which would lose its digits if
//! it were added to 1.

use super::{log_prob, mode};
use crate::abi::STATS_PARTS;
use crate::element::{Base, Real, unrolled};
use crate::math::ln_1p;
use crate::reduce::{Exchange, Workspace, warp_max, warp_sums};
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, ballot, lane_id, warp_id};

/// The online softmax of a row, or of a part of one: the largest logit, the sum of exponentials
/// and, if the target has a share for every class, two sums over the target.
#[derive(Clone, Copy)]
pub(crate) struct Stats<R> {
    /// The largest logit, m.
    pub(crate) max: R,
    /// The number of logits whose exp(x − m) is 1.
    pub(crate) ties: R,
    /// The sum of exp(x − m) over the other logits.
    pub(crate) rest: R,
    /// Σ q (x − m), where q is a class's share of the target, `Pass::share_of`. Where entropies are
    /// computed, the dot of [`log_prob`].
    pub(crate) dot: R,
    /// Σ q.
    pub(crate) weight: R,
}

impl<R: Real> Stats<R> {
    pub(crate) const NONE: Self =
        Stats { max: R::NEG_INFINITY, ties: R::ZERO, rest: R::ZERO, dot: R::ZERO, weight: R::ZERO };

    /// What is subtracted from logits before `exp`: the largest logit, but 0 while that is −∞.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn center(&self) -> R {
        if self.max == R::NEG_INFINITY { R::ZERO } else { self.max }
    }

    /// The same statistics rescaled to `max`, if that is larger than the largest logit so far.
    /// `scale` is `Pass::scale_of_logits`, here and below.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn relative_to<const MODE: u32>(mut self, max: R, scale: R) -> Self {
        if max > self.max {
            // If all logits so far are −∞, all sums are 0, and so is the factor.
            let factor = log_prob::scaled::<R, MODE>(self.max - max, scale).exp_below();
            self.rest = (self.ties + self.rest) * factor;
            self.ties = R::ZERO;
            self.dot = if MODE == mode::LOG_PROB {
                log_prob::rescaled_dot(self.dot, [factor, self.rest], self.max, max, scale)
            } else if MODE == mode::CLASS {
                self.dot
            } else {
                self.dot + self.weight * (self.center() - max)
            };
            self.max = max;
        }
        self
    }

    /// Adds the exponential of a logit that is no larger than `max`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn absorb<const MODE: u32>(&mut self, x: R, scale: R) {
        let exp = log_prob::scaled::<R, MODE>(x - self.center(), scale).exp_below();
        if MODE == mode::LOG_PROB {
            self.dot = exp.fma(log_prob::apart(x, self.center(), scale), self.dot);
        }
        if exp == R::ONE {
            self.ties = self.ties + exp;
        } else {
            self.rest = self.rest + exp;
        }
    }

    /// Merges the statistics of two parts of a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn with<const MODE: u32>(self, other: Self, scale: R) -> Self {
        let sum = self.relative_to::<MODE>(other.max, scale);
        let other = other.relative_to::<MODE>(sum.max, scale);
        Stats {
            max: sum.max,
            ties: sum.ties + other.ties,
            rest: sum.rest + other.rest,
            dot: sum.dot + other.dot,
            weight: sum.weight + other.weight,
        }
    }

    /// Sums the statistics over a row group of `group` lanes of a warp, in each of its lanes. All
    /// lanes have the same `max`, the largest of the row group.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_group<const MODE: u32>(self, group: u32) -> Self {
        self.dot_of_group::<MODE>(group).exps_of_group(group)
    }

    /// [`of_group`](Self::of_group) without the sums of the exponentials.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn dot_of_group<const MODE: u32>(mut self, group: u32) -> Self {
        if const { mode::is_dense(MODE) } {
            [self.dot, self.weight] = warp_sums([self.dot, self.weight], group);
        }
        if MODE == mode::LOG_PROB {
            [self.dot] = warp_sums([self.dot], group);
        }
        self
    }

    /// [`of_group`](Self::of_group) for the exponentials alone, without the target's sums.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn exps_of_group(mut self, group: u32) -> Self {
        [self.ties, self.rest] = warp_sums([self.ties, self.rest], group);
        self
    }

    /// A copy that the compiler cannot see through. It recomputes from the copy what it would
    /// otherwise keep from an earlier use, for which there are too few registers.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn rematerialize(self) -> Self {
        let rematerialize = |value: R| R::from_bits64(opaque(value.to_bits64()));
        Stats { max: rematerialize(self.max), rest: rematerialize(self.rest), ..self }
    }

    /// The statistics of a complete row. If all its logits are −∞, it has no distribution, and the
    /// sum of exponentials is NaN.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_row(self) -> Self {
        if self.max == R::NEG_INFINITY { Stats { rest: R::NAN, ..self } } else { self }
    }

    /// How many of the [`parts`](Self::parts) a [`mode`] uses: all, if the target has a share for
    /// every class; otherwise those of the exponentials and, for entropies, the dot.
    pub(crate) const fn parts_used(mode: u32) -> usize {
        if mode::is_dense(mode) {
            PARTS
        } else if mode == mode::LOG_PROB {
            SPARSE_PARTS + 1
        } else {
            SPARSE_PARTS
        }
    }

    /// The numbers as which statistics are stored in shared memory and in the workspace.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn parts(self) -> [R; PARTS] {
        [self.max, self.others(), self.dot, self.weight]
    }

    /// The statistics that have these [`parts`](Self::parts). They always have one tie, whose 1 is
    /// not part of `others`; in statistics of no logit `others` is −1, so that the sum is 0.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn of_parts([max, others, dot, weight]: [R; PARTS]) -> Self {
        Stats { max, ties: R::ONE, rest: others, dot, weight }
    }

    /// [`block_merge`](Self::block_merge) of a complete row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn block_merge_row<const MODE: u32, const ALL: bool>(self, scale: R) -> Self {
        self.block_merge::<MODE, ALL>(scale).of_row()
    }

    /// Merges the parts of a row that the warps of the block have. The result is valid in all warps
    /// with `ALL`, otherwise in the first only.
    ///
    /// Has one barrier; the caller has another before the next call.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn block_merge<const MODE: u32, const ALL: bool>(self, scale: R) -> Self {
        let used = Self::parts_used(MODE);
        let at = |part: usize, warp: u32| part as u32 * WARP_SIZE + warp;
        if lane_id() == 0 {
            let parts = self.parts();
            unrolled!(for part in 0..PARTS; {
                if part < used {
                    // SAFETY: there are at most 32 warps, and each writes its own words; the caller
                    // has a barrier after the reads of the previous call.
                    unsafe { stats_of_warps().set(at(part, warp_id()), parts[part].to_bits64()) };
                }
            });
        }
        sync_threads();
        if !ALL && warp_id() > 0 {
            return self;
        }
        // `opaque` keeps the compiler from computing this before a loop over rows, where it would
        // occupy a register throughout.
        let warps = opaque((block_dim_x() / WARP_SIZE).into()) as u32;
        // Up to 8 warps, 8 lanes suffice to merge their parts, with fewer shuffles than 32 lanes
        // need; every 8 lanes of the warp merge the same parts.
        let group = if warps > 8 { WARP_SIZE } else { 8 };
        let warp = lane_id() & (group - 1);
        let mut parts = Self::NONE.parts();
        if warp < warps {
            unrolled!(for part in 0..PARTS; {
                if part < used {
                    // SAFETY: the warp wrote it before the barrier.
                    let bits = unsafe { stats_of_warps().get(at(part, warp)) };
                    parts[part] = R::from_bits64(bits);
                }
            });
        }
        Self::of_parts(parts).merge_lanes::<MODE>(group, scale)
    }

    /// Merges the parts of a row that `group` lanes have, each lane the part of one warp. All
    /// groups of `group` lanes have the same parts.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn merge_lanes<const MODE: u32>(self, group: u32, scale: R) -> Self {
        let max = warp_max(self.max);
        // A part whose largest logit is the row's counts as one tie, and its other exponentials go
        // into the sum; all exponentials of any other part go into the sum.
        let has_max = self.max == max;
        let rescaled = self.relative_to::<MODE>(max, scale);
        let others = if has_max { self.rest } else { rescaled.rest };
        let [others] = warp_sums([others], group);
        let lanes_with_max = ballot(has_max) & (u32::MAX >> (WARP_SIZE - group));
        let ties = R::from_i32(lanes_with_max.count_ones().cast_signed());
        let sum = Stats { max, ties, rest: others, dot: rescaled.dot, weight: rescaled.weight };
        sum.dot_of_group::<MODE>(group)
    }

    /// Publishes the statistics in slot `index` of the workspace, for the block that merges a split
    /// row.
    ///
    /// # Safety
    /// 1. `index` is below `abi::MAX_PARTIALS / abi::STATS_PARTS`.
    /// 2. No other thread publishes slot `index`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn publish(self, workspace: Workspace, index: u32) {
        let parts = self.parts();
        unrolled!(for part in 0..PARTS; {
            // SAFETY: the caller's condition.
            unsafe { workspace.publish(index * PARTS as u32 + part as u32, parts[part].to_f64()) };
        });
    }

    /// Merges `count` parts of a split row, [published](Self::publish) in the slots from `first`
    /// on. All lanes of the warp have the result.
    ///
    /// # Safety
    /// As [`Workspace::take`]; a single warp takes them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn take_merged<const MODE: u32>(
        workspace: Workspace,
        first: u32,
        count: u32,
        scale: R,
    ) -> Self {
        Self::merge_published::<MODE>(count, scale, |index| {
            let word = (first + index) * PARTS as u32;
            // SAFETY: the caller's condition.
            unsafe { workspace.take(index >= count, word, |part| part as u32 * 8) }
        })
    }

    /// Merges the parts of a row that blocks exchange in a round. All lanes of the warp have the
    /// result. In a `MODE` without shares, the dots are added as they are.
    ///
    /// # Safety
    /// As [`Exchange::wait`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn wait_merged<const MODE: u32>(exchange: Exchange, round: u32) -> Self {
        let count = exchange.blocks();
        // SAFETY: the caller's condition.
        let wait = |index| unsafe { exchange.wait(round, index, index >= count) };
        Self::merge_published::<MODE>(count, R::ONE, wait)
    }

    /// Merges `count` parts, which `load` reads as they were published, one per lane. All lanes of
    /// the warp have the result.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn merge_published<const MODE: u32>(
        count: u32,
        scale: R,
        mut load: impl FnMut(u32) -> [u64; PARTS],
    ) -> Self {
        let mut sum = Self::NONE;
        let mut begin = 0;
        while begin < count {
            let index = begin + lane_id();
            let parts = load(index);
            let mut published = [R::ZERO; PARTS];
            unrolled!(for part in 0..PARTS; {
                published[part] = R::from_f64(f64::from_bits(parts[part]));
            });
            if index < count {
                sum = sum.with::<MODE>(Self::of_parts(published), scale);
            }
            begin += WARP_SIZE;
        }
        let max = warp_max(sum.max);
        // Every mode publishes all parts, so they merge as in a mode that uses all.
        sum.relative_to::<MODE>(max, scale).of_group::<{ mode::PROBABILITIES }>(WARP_SIZE)
    }

    /// Σ exp(x − m) − 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn others(self) -> R {
        (self.ties - R::ONE) + self.rest
    }

    /// log Σ exp(x − m).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn log_sum(self) -> R {
        ln_1p(self.others())
    }
}

/// Computes exponentials relative to a logit, the center: [`exp`](Self::exp) times
/// [`unit`](Self::unit) is e^((x − center) · scale). If the target has a share for every class,
/// x − center itself is needed too, and the unit is 1.
#[derive(Clone, Copy)]
pub(crate) struct Relative<R, const MODE: u32> {
    center: R,
    scale: R,
    shift: R,
}

impl<R: Real, const MODE: u32> Relative<R, MODE> {
    /// Whether the center is a shift of the argument of `ex2`, which saves an instruction. With a
    /// share for every class, that is so where [`apart`](Self::apart) is relative to the shift too.
    const SHIFTS: bool = !mode::is_dense(MODE) || mode::has_shifted_shares::<R>(MODE);

    /// Whether `center` is so far from 0 that it has to be subtracted from the logits beforehand.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_far(center: R, scale: R) -> bool {
        if MODE == mode::LOG_PROB {
            (center * scale).magnitude() >= R::FAR
        } else {
            Self::SHIFTS && center.magnitude() >= R::FAR
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn to(center: R, scale: R) -> Self {
        let center = if Self::is_far(center, scale) { R::ZERO } else { center };
        Relative { center, scale, shift: R::shift_from(center, R::factor_of(scale)) }
    }

    /// The center that `exp` still has to subtract: 0, if it was [far](Self::is_far) and has been
    /// subtracted beforehand.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn center(self) -> R {
        self.center
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn exp(self, x: R) -> R {
        self.base().exp(x)
    }

    /// The same base for exponentials of whole vectors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn base(self) -> Base<R> {
        if Self::SHIFTS {
            Base::Shift(self.shift, R::factor_of(self.scale))
        } else {
            Base::Center(self.center, self.scale)
        }
    }

    /// The distance of a logit from the center or, with [shifted shares](mode::has_shifted_shares),
    /// from the shift, and in its units: the argument of `ex2`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn apart(self, x: R) -> R {
        if mode::has_shifted_shares::<R>(MODE) {
            x.fma(R::factor_of(self.scale), self.shift)
        } else {
            x - self.center
        }
    }

    /// Σ q (x − center) from Σ q · [`apart`](Self::apart)(x) and the `weight` Σ q.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn dot(self, sum: R, weight: R) -> R {
        if mode::has_shifted_shares::<R>(MODE) {
            let factor = R::factor_of(self.scale);
            // What the shift was rounded by.
            let rounded = self.center.fma(factor, self.shift);
            weight.fma(-rounded, sum) * (R::ONE / factor)
        } else {
            sum
        }
    }

    /// [`exp`](Self::exp) of the center: the value that the exponentials of the largest logits
    /// have.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn tie(self) -> R {
        self.exp(self.center)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn unit(self) -> R {
        if Self::SHIFTS {
            R::unshift(self.center, R::factor_of(self.scale), self.shift)
        } else {
            R::ONE
        }
    }
}

/// How many numbers a [`Stats`] is stored as.
const PARTS: usize = STATS_PARTS as usize;
/// How many of these are needed unless the target has a share for every class.
const SPARSE_PARTS: usize = 2;

cuda_std::shared_array! {
    /// `PARTS` numbers for each warp of the block.
    fn stats_of_warps() -> [u64; 128];
}
