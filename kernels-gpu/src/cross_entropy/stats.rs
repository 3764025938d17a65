//! What the exponentials of a row's logits, or of a part of them, come to.
//!
//! Their sum is kept in two parts: how many are 1, those of the largest logits, and the sum of all others. Of a row
//! that is nearly certain the sum is 1 and a little, and the loss and the gradient are that little.

use crate::abi::STATS_PARTS;
use crate::element::{Real, unrolled};
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

    /// This and `other` together.
    #[inline(always)]
    fn with(self, other: Self) -> Self {
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

    /// The sum over a team of a warp, in each of its lanes, of which each has a part relative to the same logit, the
    /// team's largest. Not `DENSE`, there is no target for every class.
    #[inline(always)]
    pub(crate) fn of_team<const DENSE: bool>(mut self, team: u32) -> Self {
        if DENSE {
            [self.dot, self.weight] = warp_sums([self.dot, self.weight], team);
        }
        self.exps_of_team(team)
    }

    /// [`of_team`](Self::of_team) of what exponentials come to alone.
    #[inline(always)]
    pub(crate) fn exps_of_team(mut self, team: u32) -> Self {
        [self.ties, self.rest] = warp_sums([self.ties, self.rest], team);
        self
    }

    /// The same, of which the compiler does not know it: what is computed from it is computed anew, where it would
    /// otherwise be kept, in more registers than there are.
    #[inline(always)]
    pub(crate) fn anew(self) -> Self {
        let anew = |value: R| R::from_bits64(opaque(value.to_bits64()));
        Stats { max: anew(self.max), rest: anew(self.rest), ..self }
    }

    /// Of a whole row: of −∞ alone no distribution comes.
    #[inline(always)]
    pub(crate) fn of_row(self) -> Self {
        if self.max == R::NEG_INFINITY { Stats { rest: R::NAN, ..self } } else { self }
    }

    #[inline(always)]
    fn parts(self) -> [R; PARTS] {
        [self.max, self.others(), self.dot, self.weight]
    }

    /// What has these [`parts`](Self::parts): one is 1 and, where there is none, the others are −1.
    #[inline(always)]
    fn of_parts([max, others, dot, weight]: [R; PARTS]) -> Self {
        Stats { max, ties: R::ONE, rest: others, dot, weight }
    }

    /// What is left of a row without a target for every class, no word of it zero: the largest logit, and what the others
    /// come to, which is not negative, as if it were.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 2] {
        [not_zero(self.max), -self.others()].map(R::to_bits64)
    }

    #[inline(always)]
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let [max, others] = words.map(R::from_bits64);
        Self::of_parts([max, -others, R::ZERO, R::ZERO])
    }

    /// A row's, of which each warp of the block has a part, in each thread: one barrier, and before the next call
    /// another.
    #[inline(always)]
    pub(crate) fn of_block<const DENSE: bool>(self) -> Self {
        let used = if DENSE { PARTS } else { SPARSE_PARTS };
        let at = |part: usize, warp: u32| part as u32 * WARP_SIZE + warp;
        if lane_id() == 0 {
            let parts = self.parts();
            unrolled!(for part in 0..PARTS; {
                if part < used {
                    // SAFETY: at most 32 warps, each its own; who read what was there has met the others since.
                    unsafe { stats_of_warps().set(at(part, warp_id()), parts[part].to_bits64()) };
                }
            });
        }
        sync_threads();
        let warps = block_dim_x() / WARP_SIZE;
        let mut parts = Self::NONE.parts();
        if lane_id() < warps {
            unrolled!(for part in 0..PARTS; {
                if part < used {
                    // SAFETY: warp `lane_id` wrote it before the barrier.
                    let bits = unsafe { stats_of_warps().get(at(part, lane_id())) };
                    parts[part] = R::from_bits64(bits);
                }
            });
        }
        Self::of_parts(parts).of_warps::<DENSE>().of_row()
    }

    /// The sum over the lanes of the warp, of which each has what a warp has of a row.
    #[inline(always)]
    fn of_warps<const DENSE: bool>(self) -> Self {
        let max = warp_max(self.max);
        // Of one that has the largest logit, the others beside it; of all others all.
        let has = self.max == max;
        let apart = self.relative_to(max);
        let others = if has { self.rest } else { apart.rest };
        let [others] = warp_sums([others], WARP_SIZE);
        let ties = R::from_i32(ballot(has).count_ones().cast_signed());
        let mut sum = Stats { max, ties, rest: others, dot: apart.dot, weight: apart.weight };
        if DENSE {
            [sum.dot, sum.weight] = warp_sums([sum.dot, sum.weight], WARP_SIZE);
        }
        sum
    }

    /// Leaves it for the last block.
    ///
    /// # Safety
    /// `piece` is this thread's alone, and below `abi::MAX_PARTIALS` by `abi::STATS_PARTS`.
    #[inline(always)]
    pub(crate) unsafe fn leave(self, workspace: Workspace, piece: u64) {
        let parts = self.parts();
        unrolled!(for part in 0..PARTS; {
            // SAFETY: the caller's condition.
            unsafe { workspace.leave(piece * PARTS as u64 + part as u64, parts[part].to_f64()) };
        });
    }

    /// The sum of `count` pieces of a row from `first`, by a warp, in all its lanes.
    ///
    /// # Safety
    /// As [`Workspace::take`]; one warp takes them.
    #[inline(always)]
    pub(crate) unsafe fn take(workspace: Workspace, first: u64, count: u64) -> Self {
        let mut sum = Self::NONE;
        let mut piece = u64::from(lane_id());
        while piece < count {
            let mut at = [0; PARTS];
            unrolled!(for part in 0..PARTS; { at[part] = (first + piece) * PARTS as u64 + part as u64; });
            // SAFETY: the caller's condition.
            let parts = unsafe { workspace.take(at, [true; PARTS]) };
            let mut of_piece = [R::ZERO; PARTS];
            unrolled!(for part in 0..PARTS; { of_piece[part] = R::from_f64(parts[part]); });
            sum = sum.with(Self::of_parts(of_piece));
            piece += u64::from(WARP_SIZE);
        }
        let max = warp_max(sum.max);
        sum.relative_to(max).of_team::<true>(WARP_SIZE)
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

/// The same number, of which not all bits are zero.
#[inline(always)]
pub(crate) fn not_zero<R: Real>(x: R) -> R {
    if x == R::ZERO { -R::ZERO } else { x }
}

/// Numbers that a [`Stats`] is kept as, and those that a target without a share for every class needs.
const PARTS: usize = STATS_PARTS as usize;
const SPARSE_PARTS: usize = 2;

cuda_std::shared_array! {
    /// `PARTS` numbers a warp.
    fn stats_of_warps() -> [u64; 128];
}

/// Rows of which a warp keeps what it has of them, to finish them at once: one for each lane.
pub(crate) const KEPT: u32 = WARP_SIZE;

cuda_std::shared_array! {
    /// `PARTS` numbers of `KEPT` rows of each of 8 warps.
    fn stats_of_rows() -> [u64; 1024];
}

/// What the warps of a block have of the last rows: in shared memory, not to cost registers while rows are read.
pub(crate) struct KeptStats;

impl KeptStats {
    #[inline(always)]
    fn at(part: usize, warp: u32, row: u32) -> u32 {
        (part as u32 * 8 + warp) * KEPT + row
    }

    /// Keeps what this warp has of its row number `row`, the same in every lane.
    #[inline(always)]
    pub(crate) fn keep<R: Real, const DENSE: bool>(row: u32, stats: Stats<R>) {
        if lane_id() == 0 {
            let parts = stats.parts();
            unrolled!(for part in 0..PARTS; {
                if DENSE || part < SPARSE_PARTS {
                    // SAFETY: at most 8 warps and `KEPT` rows; each warp its own.
                    unsafe {
                        stats_of_rows().set(Self::at(part, warp_id(), row), parts[part].to_bits64());
                    }
                }
            });
        }
    }

    /// What `warps` warps from this one on have kept of row number `row`, together.
    ///
    /// # Safety
    /// They have kept it, and met this one since.
    #[inline(always)]
    pub(crate) unsafe fn of_row<R: Real, const DENSE: bool>(row: u32, warps: u32) -> Stats<R> {
        let mut sum = Stats::NONE;
        let mut warp = warp_id();
        while warp < warp_id() + warps {
            let mut parts = [R::ZERO; PARTS];
            unrolled!(for part in 0..PARTS; {
                if DENSE || part < SPARSE_PARTS {
                    // SAFETY: the caller's condition.
                    let bits = unsafe { stats_of_rows().get(Self::at(part, warp, row)) };
                    parts[part] = R::from_bits64(bits);
                }
            });
            sum = sum.with(Stats::of_parts(parts));
            warp += 1;
        }
        sum.of_row()
    }
}
