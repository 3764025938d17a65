//! What the exponentials of a row's logits, or of a part of them, come to.
//!
//! Their sum is staged in two parts: how many are 1, those of the largest logits, and the sum of all
//! others. Of a row that is nearly certain the sum is 1 and a little, and the loss and the gradient
//! are that little.

use super::mode;
use crate::abi::STATS_PARTS;
use crate::element::{Base, Real, unrolled};
use crate::math::ln_1p;
use crate::reduce::{Workspace, warp_max, warp_sums};
use cuda_std::hint::opaque;
use cuda_std::thread::{block_dim_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, ballot, lane_id, warp_id};

/// What a row's exponentials, or some of them, come to.
#[derive(Clone, Copy)]
pub(crate) struct Stats<R> {
    /// The largest logit, m.
    pub(crate) max: R,
    /// How many exp(x − m) are 1, ...
    pub(crate) ties: R,
    /// ... and the sum of the others.
    pub(crate) rest: R,
    /// Σ q (x − m) over a target for every class, and Σ q, with q of `Pass::share_of`.
    pub(crate) dot: R,
    pub(crate) weight: R,
}

impl<R: Real> Stats<R> {
    pub(crate) const NONE: Self =
        Stats { max: R::NEG_INFINITY, ties: R::ZERO, rest: R::ZERO, dot: R::ZERO, weight: R::ZERO };

    /// What logits are taken relative to: the largest, but 0 while that is −∞.
    #[inline(always)]
    pub(crate) fn center(&self) -> R {
        if self.max == R::NEG_INFINITY { R::ZERO } else { self.max }
    }

    /// The same relative to `max`, which is no less than what it was.
    #[inline(always)]
    pub(crate) fn relative_to(mut self, max: R) -> Self {
        if max > self.max {
            // Of nothing but −∞, all is 0 so far.
            let factor = (self.max - max).exp_below();
            self.rest = (self.ties + self.rest) * factor;
            self.ties = R::ZERO;
            self.dot = self.dot + self.weight * (self.center() - max);
            self.max = max;
        }
        self
    }

    /// Adds the exponential of a logit that is no larger than the largest.
    #[inline(always)]
    pub(crate) fn absorb(&mut self, x: R) {
        let exp = (x - self.center()).exp_below();
        if exp == R::ONE {
            self.ties = self.ties + exp;
        } else {
            self.rest = self.rest + exp;
        }
    }

    /// This and `other` together.
    #[inline(always)]
    pub(crate) fn with(self, other: Self) -> Self {
        let sum = self.relative_to(other.max);
        let other = other.relative_to(sum.max);
        Stats {
            max: sum.max,
            ties: sum.ties + other.ties,
            rest: sum.rest + other.rest,
            dot: sum.dot + other.dot,
            weight: sum.weight + other.weight,
        }
    }

    /// The sum over a row group of a warp, in each of its lanes, of which each has a part relative to
    /// the same logit, the row group's largest. Not `DENSE`, there is no target for every class.
    #[inline(always)]
    pub(crate) fn of_group<const DENSE: bool>(mut self, group: u32) -> Self {
        if DENSE {
            [self.dot, self.weight] = warp_sums([self.dot, self.weight], group);
        }
        self.exps_of_group(group)
    }

    /// [`of_group`](Self::of_group) of what exponentials come to alone.
    #[inline(always)]
    pub(crate) fn exps_of_group(mut self, group: u32) -> Self {
        [self.ties, self.rest] = warp_sums([self.ties, self.rest], group);
        self
    }

    /// The same, of which the compiler does not know it: what is computed from it is computed rematerialize,
    /// where it would otherwise be staged, in more registers than there are.
    #[inline(always)]
    pub(crate) fn rematerialize(self) -> Self {
        let rematerialize = |value: R| R::from_bits64(opaque(value.to_bits64()));
        Stats { max: rematerialize(self.max), rest: rematerialize(self.rest), ..self }
    }

    /// Of a whole row: of −∞ alone no distribution comes.
    #[inline(always)]
    pub(crate) fn of_row(self) -> Self {
        if self.max == R::NEG_INFINITY { Stats { rest: R::NAN, ..self } } else { self }
    }

    /// How many of the [`parts`](Self::parts) there are to a target: with a share for every class
    /// all.
    pub(crate) const fn used(dense: bool) -> usize {
        if dense { PARTS } else { SPARSE_PARTS }
    }

    #[inline(always)]
    pub(crate) fn parts(self) -> [R; PARTS] {
        [self.max, self.others(), self.dot, self.weight]
    }

    /// What has these [`parts`](Self::parts): one is 1 and, where there is none, the others are −1.
    #[inline(always)]
    pub(crate) fn of_parts([max, others, dot, weight]: [R; PARTS]) -> Self {
        Stats { max, ties: R::ONE, rest: others, dot, weight }
    }

    /// A row's, of which each warp of the block has a part: as [`over_block`](Self::over_block).
    #[inline(always)]
    pub(crate) fn of_block<const DENSE: bool, const ALL: bool>(self) -> Self {
        self.over_block::<DENSE, ALL>().of_row()
    }

    /// What the block has of a row, of which each warp has a part: one barrier, and before the next
    /// call another. Unless it is for `ALL`, in the first warp only.
    #[inline(always)]
    pub(crate) fn over_block<const DENSE: bool, const ALL: bool>(self) -> Self {
        let used = Self::used(DENSE);
        let at = |part: usize, warp: u32| part as u32 * WARP_SIZE + warp;
        if lane_id() == 0 {
            let parts = self.parts();
            unrolled!(for part in 0..PARTS; {
                if part < used {
                    // SAFETY: at most 32 warps, each its own; who read what was there has met the
                    // others since.
                    unsafe { stats_of_warps().set(at(part, warp_id()), parts[part].to_bits64()) };
                }
            });
        }
        sync_threads();
        if !ALL && warp_id() > 0 {
            return self;
        }
        // Here, not before a loop over rows, through which it would take registers.
        let warps = opaque((block_dim_x() / WARP_SIZE).into()) as u32;
        // Of few warps, row groups of lanes all have what each of them has of the row: there are fewer
        // to add up.
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
        Self::of_parts(parts).of_warps::<DENSE>(group)
    }

    /// The sum over a row group of lanes of the warp, of which each has what a warp has of a row, and
    /// all row groups the same.
    #[inline(always)]
    fn of_warps<const DENSE: bool>(self, group: u32) -> Self {
        let max = warp_max(self.max);
        // Of one that has the largest logit, the others beside it; of all others all.
        let has = self.max == max;
        let apart = self.relative_to(max);
        let others = if has { self.rest } else { apart.rest };
        let [others] = warp_sums([others], group);
        let of_group = ballot(has) & (u32::MAX >> (WARP_SIZE - group));
        let ties = R::from_i32(of_group.count_ones().cast_signed());
        let mut sum = Stats { max, ties, rest: others, dot: apart.dot, weight: apart.weight };
        if DENSE {
            [sum.dot, sum.weight] = warp_sums([sum.dot, sum.weight], group);
        }
        sum
    }

    /// Leaves it for the last block.
    ///
    /// # Safety
    /// `piece` is this thread's alone, and below `abi::MAX_PARTIALS` by `abi::STATS_PARTS`.
    #[inline(always)]
    pub(crate) unsafe fn publish(self, workspace: Workspace, piece: u32) {
        let parts = self.parts();
        unrolled!(for part in 0..PARTS; {
            // SAFETY: the caller's condition.
            unsafe { workspace.publish(piece * PARTS as u32 + part as u32, parts[part].to_f64()) };
        });
    }

    /// The sum of `count` pieces of a row from `first`, by a warp, in all its lanes.
    ///
    /// # Safety
    /// As [`Workspace::take`]; one warp takes them.
    #[inline(always)]
    pub(crate) unsafe fn take(workspace: Workspace, first: u32, count: u32) -> Self {
        let mut sum = Self::NONE;
        let mut begin = 0;
        while begin < count {
            let piece = begin + lane_id();
            let of_piece = (first + piece) * PARTS as u32;
            // SAFETY: the caller's condition.
            let parts: [u64; PARTS] =
                unsafe { workspace.take(piece >= count, of_piece, |part| part as u32 * 8) };
            let mut of_piece = [R::ZERO; PARTS];
            unrolled!(for part in 0..PARTS; {
                of_piece[part] = R::from_f64(f64::from_bits(parts[part]));
            });
            if piece < count {
                sum = sum.with(Self::of_parts(of_piece));
            }
            begin += WARP_SIZE;
        }
        let max = warp_max(sum.max);
        sum.relative_to(max).of_group::<true>(WARP_SIZE)
    }

    /// Σ exp(x − m) − 1.
    #[inline(always)]
    pub(crate) fn others(self) -> R {
        (self.ties - R::ONE) + self.rest
    }

    /// log Σ exp(x − m).
    #[inline(always)]
    pub(crate) fn log_sum(self) -> R {
        ln_1p(self.others())
    }
}

/// What exponentials relative to a logit are made with, the center: [`exp`](Self::exp) by
/// [`unit`](Self::unit) is e^(x − center). With a target for every class, which needs x − center
/// itself, the unit is 1.
#[derive(Clone, Copy)]
pub(crate) struct Relative<R, const MODE: u32> {
    center: R,
    shift: R,
}

impl<R: Real, const MODE: u32> Relative<R, MODE> {
    const SHIFTS: bool = MODE == mode::CLASS;

    /// Whether logits are to be made relative to such a center before.
    #[inline(always)]
    pub(crate) fn is_far(center: R) -> bool {
        Self::SHIFTS && center.magnitude() >= R::FAR
    }

    #[inline(always)]
    pub(crate) fn to(center: R) -> Self {
        let center = if Self::is_far(center) { R::ZERO } else { center };
        Relative { center, shift: R::shift_from(center) }
    }

    /// What the logits are relative to; 0, if they have been made so before.
    #[inline(always)]
    pub(crate) fn center(self) -> R {
        self.center
    }

    #[inline(always)]
    pub(crate) fn exp(self, x: R) -> R {
        self.base().exp(x)
    }

    /// The same, for the exponentials of vectors.
    #[inline(always)]
    pub(crate) fn base(self) -> Base<R> {
        if Self::SHIFTS { Base::Shift(self.shift) } else { Base::Center(self.center) }
    }

    /// What comes of the center.
    #[inline(always)]
    pub(crate) fn tie(self) -> R {
        self.exp(self.center)
    }

    #[inline(always)]
    pub(crate) fn unit(self) -> R {
        if Self::SHIFTS { R::unshift(self.center, self.shift) } else { R::ONE }
    }
}

/// Numbers that a [`Stats`] is staged as, and those that a target without a share for every class
/// needs.
const PARTS: usize = STATS_PARTS as usize;
const SPARSE_PARTS: usize = 2;

cuda_std::shared_array! {
    /// `PARTS` numbers a warp.
    fn stats_of_warps() -> [u64; 128];
}
