//! Cross-entropy of rows of logits x and a target distribution q: Σ q (m + log Σ exp(x − m) − x), m the largest
//! logit. With a class y as the target, weights w and smoothing ε over C classes, q is (1 − ε) w_y at y plus ε/C w;
//! with probabilities t it is w ((1 − ε) t + ε/C).
//!
//! What the exponentials add up to is kept in two parts: how many are 1, those of the largest logits, and the sum of
//! all others. Of a row that is nearly certain the sum is 1 and a little, and the loss and the gradient are that
//! little.

use crate::abi::{CrossEntropyArgs, Matrix, Target, TotalsArgs, reduction, saved};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::math::{exp_m1_below, ln_1p};
use crate::reduce::{Workspace, block_max, block_sums, grid_sums, warp_max, warp_sums};
use crate::row::{Cut, Row, Span};
use core::marker::PhantomData;
use core::num::NonZeroU64;
use cuda_std::memory::{Vec16, load, store};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

/// What targets are: a class, a class that label smoothing leaves a part of what it was, probabilities of all
/// classes. Each has kernels of its own: what the one needs costs the others registers.
pub(crate) mod mode {
    pub(crate) const CLASS: u32 = 0;
    pub(crate) const SMOOTHED: u32 = 1;
    pub(crate) const PROBABILITIES: u32 = 2;
}

/// The entries for targets of a [`mode`]. Each pass over rows comes in three forms, by who takes a row: `_short`, a
/// team of a warp that holds it in registers, `$held` groups of 16 bytes a thread; a block that does so; and `_long`, a
/// block that does not hold it. The last has blocks of at most `$long` threads, the others of `$block`, or
/// where that leaves too few registers, of 512.
macro_rules! kernels {
    ($loss:ident, $mode:ident, $held:literal by $block:literal, $long:literal) => {
        use crate::abi::{CrossEntropyArgs, TotalsArgs};
        use crate::cross_entropy::mode::$mode as MODE;
        use crate::cross_entropy::{backward, block, rows, totals};

        /// Groups of 16 bytes that a thread holds.
        pub const HELD: u32 = $held;

        crate::table::kernels! {
            $loss, [f32, f64, f16, bf16],
            FORWARD_SHORT = forward_short: rows::<E, MODE, false, true, $held>, (CrossEntropyArgs), block::<E>($block), 7 barriers;
            FORWARD = forward: rows::<E, MODE, false, false, $held>, (CrossEntropyArgs), block::<E>($block), 9 barriers;
            FORWARD_LONG = forward_long: rows::<E, MODE, false, false, 0>, (CrossEntropyArgs), block::<E>($long), 12 barriers;
            FORWARD_BACKWARD_SHORT = forward_backward_short: rows::<E, MODE, true, true, $held>, (CrossEntropyArgs), block::<E>(512), 7 barriers;
            FORWARD_BACKWARD = forward_backward: rows::<E, MODE, true, false, $held>, (CrossEntropyArgs), block::<E>($block), 9 barriers;
            FORWARD_BACKWARD_LONG = forward_backward_long: rows::<E, MODE, true, false, 0>, (CrossEntropyArgs), block::<E>($long), 12 barriers;
            BACKWARD = backward: backward::<E, MODE>, (CrossEntropyArgs), block::<E>($long), 0 barriers;
            TOTALS = totals: totals::<E>, (TotalsArgs), block::<E>(512), 4 barriers;
        }
    };
}
pub(crate) use kernels;

/// The most threads of a block, and so the fewest blocks' worth of registers that the compiler has to leave: float64
/// takes two for one, and eight elements of 16 bits in a group take more than four of 32.
pub(crate) const fn block<E: Element>(threads: u32) -> u32 {
    match size_of::<E>() {
        8 => 256,
        2 if threads > 640 => 640,
        _ => threads,
    }
}

/// Groups of 16 bytes in flight in a thread of a kernel that holds no row.
const FLIGHT: usize = 4;

/// The loss and, with `GRADS`, the gradients, row by row.
///
/// # Safety
/// 1. `args` is as [`CrossEntropyArgs`] says: tensors that are not null have `rows` rows of `cols` elements in
///    global memory, aligned for their type; results are of `E::Real`. `cols` is not 0.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions; four times the blocks of the grid are at most
///    `abi::MAX_PARTIALS`. A team has two threads or more.
/// 3. What is written overlaps nothing else that `args` names, but a gradient may lie exactly over the tensor that
///    it is the gradient of.
/// 4. With `SHORT` a team is of a warp, in a block of at most 256 threads; otherwise it is the block. With `HELD`
///    groups a thread, a team holds a row, all tensors with rows lie alike to 16 bytes, and `splits` is 1; with `GRADS`
///    it is 1 too.
#[inline(always)]
pub(crate) unsafe fn rows<
    E: Element,
    const MODE: u32,
    const GRADS: bool,
    const SHORT: bool,
    const HELD: usize,
>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE> { args, element: PhantomData };
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let splits = NonZeroU64::from(args.splits);
    let team = Team::new::<SHORT>(args);
    // One thread of a team finishes one row: as many rows are kept as there are threads to finish them at once.
    let most = if SHORT { team.threads } else { WARP_SIZE };
    let mut kept = Kept { stats: Stats::NONE, logit: E::Real::ZERO, rows: 0 };
    Terms::clear::<SHORT>();
    let pieces = args.rows * splits.get();
    let mut piece = team.first;
    // SAFETY: condition 1.
    let mut next = unsafe { pass.class(piece, splits) };
    // Teams of one warp stay together, for the shuffles: the warp goes on while its first team has work.
    while piece - team.behind < pieces {
        let active = piece < pieces;
        let (row, split) = if HELD > 0 || splits.get() == 1 {
            (piece, 0)
        } else {
            (piece / splits, (piece % splits) as u32)
        };
        // The next row's class is on its way while this row is read.
        let class = next;
        // SAFETY: condition 1.
        next = unsafe { pass.class(piece + team.teams, splits) };
        // SAFETY: condition 1; the class is the row's.
        let label = unsafe { pass.label(class) };
        // SAFETY: the caller's conditions; a row that is not active is not touched.
        let (stats, logit) =
            unsafe { pass.row::<GRADS, SHORT, HELD>(row, split, &label, active, kept.rows, team) };
        if HELD == 0 && splits.get() > 1 {
            if team.lane == 0 {
                // SAFETY: condition 2; one team a piece.
                unsafe { stats.leave(workspace, piece) };
            }
        } else {
            if team.lane == kept.rows {
                (kept.stats, kept.logit) = (stats, logit);
            }
            kept.rows += 1;
            if kept.rows == most {
                // SAFETY: the caller's conditions.
                unsafe { pass.finish_kept(&kept, piece, workspace, team) };
                kept.rows = 0;
            }
        }
        piece += team.teams;
    }
    if kept.rows > 0 {
        // SAFETY: the caller's conditions.
        unsafe { pass.finish_kept(&kept, piece - team.teams, workspace, team) };
    }

    sync_threads();
    if HELD == 0 && splits.get() > 1 {
        if !workspace.is_last_block() {
            return;
        }
        let mut sums = [0.0; TERMS];
        let mut row = u64::from(warp_id());
        while row < args.rows {
            // SAFETY: every piece has left its own, in order.
            let stats = unsafe { Stats::gather(workspace, row * splits.get(), splits.get()) };
            if lane_id() == 0 {
                // SAFETY: condition 1; one warp a row.
                unsafe {
                    let label = pass.label(pass.class(row, NonZeroU64::MIN));
                    if label.fault {
                        workspace.report_row(row);
                    }
                    let logit = pass.logit(row, &label);
                    let terms = pass.finish_row(row, &label, stats, logit);
                    unrolled!(for term in 0..TERMS; { sums[term] += terms[term]; });
                }
            }
            row += u64::from(block_dim_x() / WARP_SIZE);
        }
        let sums = block_sums::<f64, false, TERMS>(sums);
        if thread_idx_x() == 0 {
            // SAFETY: the last block's first thread.
            unsafe { pass.finish(sums, workspace) };
        }
    } else if args.reduction == reduction::SCALAR {
        // SAFETY: conditions 1 and 2; in the last block's first thread.
        unsafe {
            grid_sums(Terms::of_thread::<SHORT>(), workspace, |sums| pass.finish(sums, workspace));
        }
    } else if args.fault != 0 && workspace.is_last_block() && thread_idx_x() == 0 {
        // SAFETY: the last block's first thread.
        unsafe { pass.finish_fault(workspace) };
    }
}

/// The gradients, from what a forward pass has saved.
///
/// # Safety
/// As [`rows`], without its second condition; `saved` and, where `divisor` is 0, `totals` are from a forward pass
/// with the same input, target and options.
#[inline(always)]
pub(crate) unsafe fn backward<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE> { args, element: PhantomData };
    let splits = NonZeroU64::from(args.splits);
    let team = if args.team.get() > WARP_SIZE {
        Team::new::<false>(args)
    } else {
        Team::new::<true>(args)
    };
    let pieces = args.rows * splits.get();
    let mut piece = team.first;
    while piece < pieces {
        let (row, split) =
            if splits.get() == 1 { (piece, 0) } else { (piece / splits, (piece % splits) as u32) };
        // SAFETY: the caller's conditions; the row is one of `rows`.
        unsafe {
            let label = pass.label(pass.class(row, NonZeroU64::MIN));
            let factors = pass.factors_of_saved(row, &label);
            Lanes::new::<MODE, 0>(&pass, row)
                .gradients::<MODE, true>(&pass, row, split, &label, &factors, team);
        }
        piece += team.teams;
    }
}

/// What a mean is divided by: the sum of the class weights of the rows that count, and their number.
///
/// # Safety
/// 1. `args` is as [`TotalsArgs`] says, in global memory.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions; twice the blocks of the grid are at most
///    `abi::MAX_PARTIALS`.
#[inline(always)]
pub(crate) unsafe fn totals<E: Element>(args: &TotalsArgs) {
    let (mut weights, mut count) = (0.0, 0.0);
    let mut row = u64::from(block_idx_x()) * u64::from(block_dim_x()) + u64::from(thread_idx_x());
    while row < args.rows {
        // SAFETY: condition 1.
        let label = unsafe {
            label::<E>(&args.target, args.cols, args.weight, load_class(&args.target, row))
        };
        if label.counts && !label.fault {
            weights += label.weight.to_f64();
            count += 1.0;
        }
        row += u64::from(block_dim_x()) * u64::from(grid_dim_x());
    }
    // SAFETY: conditions 1 and 2.
    unsafe {
        grid_sums([weights, count], Workspace::new(args.workspace), |sums| {
            store_totals(args.totals, sums);
        });
    }
}

/// # Safety
/// `at` is the address of two `f64` in global memory that are this thread's to write.
#[inline(always)]
unsafe fn store_totals(at: u64, [weights, count]: [f64; 2]) {
    let at = at as *mut f64;
    // SAFETY: the caller's condition.
    unsafe {
        store(at, weights);
        store(at.wrapping_add(1), count);
    }
}

/// A row's target, but for probabilities.
struct Label<R> {
    /// The class; of rows without one, no index of a row.
    class: u32,
    /// The class's weight: 1 for probabilities, NaN for what is no class.
    weight: R,
    /// Whether the row counts: whether it is not to be ignored.
    counts: bool,
    /// Whether the target is no class.
    fault: bool,
}

impl<R: Real> Label<R> {
    /// Of no row, or one to be ignored.
    const NONE: Self = Label { class: u32::MAX, weight: R::ZERO, counts: false, fault: false };
}

/// What a row's class says. That it is to be ignored comes before any look at what class it is.
///
/// # Safety
/// [`rows`]'s condition 1, of `weight`.
#[inline(always)]
unsafe fn label<E: Element>(target: &Target, cols: u32, weight: u64, class: i64) -> Label<E::Real> {
    if class == target.ignore_index {
        return Label::NONE;
    }
    // A negative one is beyond every row.
    if class.cast_unsigned() >= u64::from(cols) {
        return Label { weight: E::Real::NAN, counts: true, fault: true, ..Label::NONE };
    }
    let class = class as u32;
    // SAFETY: the caller's condition; the class is one.
    let weight = unsafe { class_weight::<E>(weight, class) };
    Label { class, weight, counts: true, fault: false }
}

/// The class of a row.
///
/// # Safety
/// [`rows`]'s condition 1; `row` is one of `rows`.
#[inline(always)]
unsafe fn load_class(target: &Target, row: u64) -> i64 {
    let at = target.start + row * u64::from(target.class_bytes);
    // SAFETY: the caller's condition.
    unsafe {
        match target.class_bytes {
            1 => i64::from(load(at as *const u8)),
            4 => i64::from(load(at as *const i32)),
            _ => load(at as *const i64),
        }
    }
}

/// # Safety
/// `weights` is null or the address of weights in global memory, of which `class` is one.
#[inline(always)]
unsafe fn class_weight<E: Element>(weights: u64, class: u32) -> E::Real {
    if weights == 0 {
        return E::Real::ONE;
    }
    // SAFETY: the caller's condition.
    unsafe { load((weights as *const E).wrapping_add(class as usize)).widen() }
}

/// This thread's place in the teams of the grid.
#[derive(Clone, Copy)]
struct Team {
    /// Threads of a team.
    threads: u32,
    /// This thread's index in its team.
    lane: u32,
    /// How far the team is behind the first of its warp.
    behind: u64,
    /// The first piece of the team, and from each to the next.
    first: u64,
    teams: u64,
}

impl Team {
    /// `SHORT` says that teams are of a warp; otherwise they are blocks.
    #[inline(always)]
    fn new<const SHORT: bool>(args: &CrossEntropyArgs) -> Self {
        let (block, blocks) = (u64::from(block_idx_x()), u64::from(grid_dim_x()));
        if !SHORT {
            return Team {
                threads: block_dim_x(),
                lane: thread_idx_x(),
                behind: 0,
                first: block,
                teams: blocks,
            };
        }
        let threads = args.team.get();
        let teams_of_block = block_dim_x() / args.team;
        let in_block = thread_idx_x() / args.team;
        let first_of_warp = (thread_idx_x() - lane_id()) / args.team;
        Team {
            threads,
            lane: thread_idx_x() & (threads - 1),
            behind: u64::from(in_block - first_of_warp),
            first: block * u64::from(teams_of_block) + u64::from(in_block),
            teams: blocks * u64::from(teams_of_block),
        }
    }

    /// The largest value of the team, in each of its threads.
    #[inline(always)]
    fn max<R: Real, const SHORT: bool>(self, value: R) -> R {
        if SHORT { warp_max(value, self.threads) } else { block_max(value) }
    }

    /// The sums of the team's values, in each of its threads; of a block, unless they are for `ALL`, in its first
    /// warp.
    #[inline(always)]
    fn sums<R: Real, const ALL: bool, const SHORT: bool, const N: usize>(
        self,
        values: [R; N],
    ) -> [R; N] {
        if SHORT { warp_sums(values, self.threads) } else { block_sums::<R, ALL, N>(values) }
    }
}

/// What a row adds to the sums: its loss, its class's weight, its squared log-sum-exp, one.
const TERMS: usize = 4;

cuda_std::shared_array! {
    /// [`TERMS`] sums for each thread that finishes rows.
    fn thread_terms() -> [f64; 1024];
}

/// The sums over the rows that each thread has finished: in shared memory, not to cost registers while rows are
/// read. With `SHORT` all threads finish rows, otherwise those of the first warp.
struct Terms;

impl Terms {
    /// Whether this thread finishes rows.
    #[inline(always)]
    fn here<const SHORT: bool>() -> bool {
        SHORT || thread_idx_x() < WARP_SIZE
    }

    #[inline(always)]
    fn clear<const SHORT: bool>() {
        if Self::here::<SHORT>() {
            unrolled!(for term in 0..TERMS; {
                // SAFETY: at most 256 threads, each its own.
                unsafe { thread_terms().set(thread_idx_x() * TERMS as u32 + term as u32, 0.0) };
            });
        }
    }

    /// Adds what a row adds. Only threads that finish rows call it.
    #[inline(always)]
    fn add(terms: [f64; TERMS]) {
        unrolled!(for term in 0..TERMS; {
            let at = thread_idx_x() * TERMS as u32 + term as u32;
            // SAFETY: as in `clear`, by the same thread.
            unsafe { thread_terms().set(at, thread_terms().get(at) + terms[term]) };
        });
    }

    /// This thread's part of the sums of the block.
    #[inline(always)]
    fn of_thread<const SHORT: bool>() -> [f64; TERMS] {
        let mut terms = [0.0; TERMS];
        if Self::here::<SHORT>() {
            unrolled!(for term in 0..TERMS; {
                // SAFETY: as in `add`.
                terms[term] =
                    unsafe { thread_terms().get(thread_idx_x() * TERMS as u32 + term as u32) };
            });
        }
        terms
    }
}

/// What a thread keeps of the row that it will finish.
struct Kept<R> {
    stats: Stats<R>,
    /// The logit of the row's class.
    logit: R,
    /// Rows that threads of the team keep so far, each one: those of the last rounds.
    rows: u32,
}

/// What a row's exponentials, or some of them, come to.
#[derive(Clone, Copy)]
struct Stats<R> {
    /// The largest logit, m.
    max: R,
    /// How many exp(x − m) are 1, ...
    ties: R,
    /// ... and the sum of the others.
    rest: R,
    /// Σ q (x − m) over a target for every class, and Σ q, with q of [`Pass::share_of`].
    dot: R,
    weight: R,
}

impl<R: Real> Stats<R> {
    const NONE: Self =
        Stats { max: R::NEG_INFINITY, ties: R::ZERO, rest: R::ZERO, dot: R::ZERO, weight: R::ZERO };

    /// What logits are taken relative to: the largest, but 0 while that is −∞.
    #[inline(always)]
    fn center(&self) -> R {
        if self.max == R::NEG_INFINITY { R::ZERO } else { self.max }
    }

    /// The same relative to `max`, which is no less than what it was.
    #[inline(always)]
    fn relative_to(mut self, max: R) -> Self {
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

    /// The team's, in each of its threads, of which each has a part relative to the team's largest logit. `sums` sums
    /// over the team.
    #[inline(always)]
    fn of_team<const DENSE: bool>(
        mut self,
        two: impl FnOnce([R; 2]) -> [R; 2],
        four: impl FnOnce([R; 4]) -> [R; 4],
    ) -> Self {
        if DENSE {
            [self.ties, self.rest, self.dot, self.weight] =
                four([self.ties, self.rest, self.dot, self.weight]);
        } else {
            [self.ties, self.rest] = two([self.ties, self.rest]);
        }
        if self.max == R::NEG_INFINITY {
            // Of −∞ alone no distribution comes.
            self.rest = R::NAN;
        }
        self
    }

    /// Leaves it for the last block.
    ///
    /// # Safety
    /// `piece` is this thread's alone, and below a fifth of `abi::MAX_PARTIALS`.
    #[inline(always)]
    unsafe fn leave(self, workspace: Workspace, piece: u64) {
        // SAFETY: the caller's condition.
        unsafe {
            workspace.leave(piece * 5, self.max.to_f64());
            workspace.leave(piece * 5 + 1, self.ties.to_f64());
            workspace.leave(piece * 5 + 2, self.rest.to_f64());
            workspace.leave(piece * 5 + 3, self.dot.to_f64());
            workspace.leave(piece * 5 + 4, self.weight.to_f64());
        }
    }

    /// The sum of `count` pieces of a row from `first`, by a warp, in all its lanes.
    ///
    /// # Safety
    /// They were left, and [`Workspace::is_last_block`] has said so.
    #[inline(always)]
    unsafe fn gather(workspace: Workspace, first: u64, count: u64) -> Self {
        let mut sum = Self::NONE;
        let mut piece = u64::from(lane_id());
        while piece < count {
            // SAFETY: the caller's condition.
            let part =
                |index: u64| unsafe { R::from_f64(workspace.left((first + piece) * 5 + index)) };
            let part =
                Stats { max: part(0), ties: part(1), rest: part(2), dot: part(3), weight: part(4) };
            // A part of −∞ alone has NaN for its rest, which the row need not have.
            let part =
                if part.max == R::NEG_INFINITY { Stats { rest: R::ZERO, ..part } } else { part };
            sum = sum.relative_to(part.max);
            let part = part.relative_to(sum.max);
            sum.ties = sum.ties + part.ties;
            sum.rest = sum.rest + part.rest;
            sum.dot = sum.dot + part.dot;
            sum.weight = sum.weight + part.weight;
            piece += u64::from(WARP_SIZE);
        }
        let max = warp_max(sum.max, WARP_SIZE);
        let sums = |values| warp_sums(values, WARP_SIZE);
        sum.relative_to(max).of_team::<true>(|_| [R::ZERO; 2], sums)
    }

    /// Σ exp(x − m) − 1, log Σ exp(x − m).
    #[inline(always)]
    fn others(self) -> R {
        (self.ties - R::ONE) + self.rest
    }

    #[inline(always)]
    fn log_sum(self) -> R {
        ln_1p(self.others())
    }
}

/// What the gradients of a row are made of.
struct Factors<R> {
    /// An element's probability is exp(x − center − offset) · inverse.
    center: R,
    offset: R,
    inverse: R,
    /// The probability times this is the gradient, ...
    factor: R,
    /// ... less this times the class's share of the target, [`Pass::share_of`]; the shares' sum.
    by_share: R,
    weight: R,
    /// What the row's class adds, times its probability less 1, and what z-loss does, times the probability.
    by_class: R,
    by_z: R,
    /// All other probabilities, where the row's class is the likeliest.
    others: R,
    /// log Σ exp(x − m); for probabilities.
    log_sum: R,
    /// The factor of the gradient of a target's probability.
    by_target: R,
}

impl<R: Real> Factors<R> {
    /// Of a row that does not count.
    const NONE: Self = Factors {
        center: R::ZERO,
        offset: R::ZERO,
        inverse: R::ZERO,
        factor: R::ZERO,
        by_share: R::ZERO,
        weight: R::ZERO,
        by_class: R::ZERO,
        by_z: R::ZERO,
        others: R::ZERO,
        log_sum: R::ZERO,
        by_target: R::ZERO,
    };
}

/// A pass over the rows.
struct Pass<'a, E: Element, const MODE: u32> {
    args: &'a CrossEntropyArgs,
    element: PhantomData<E>,
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Whether the target has a share for every class.
    const DENSE: bool = MODE != mode::CLASS;

    #[inline(always)]
    fn of_team<const GRADS: bool, const SHORT: bool>(
        stats: Stats<E::Real>,
        team: Team,
    ) -> Stats<E::Real> {
        let (two, four) = (
            |values| team.sums::<E::Real, GRADS, SHORT, 2>(values),
            |values| team.sums::<E::Real, GRADS, SHORT, 4>(values),
        );
        if Self::DENSE {
            stats.of_team::<true>(two, four)
        } else {
            stats.of_team::<false>(two, four)
        }
    }

    /// A class's share of the target: its weight, or q, of which `t` is the probability.
    ///
    /// # Safety
    /// [`rows`]'s condition 1; `class` is one.
    #[inline(always)]
    unsafe fn share_of(&self, class: u32, t: E::Real) -> E::Real {
        // SAFETY: the caller's condition.
        let weight = unsafe { class_weight::<E>(self.args.weight, class) };
        if MODE != mode::PROBABILITIES {
            return weight;
        }
        let (keep, share) = (E::Real::from_f64(self.args.keep), E::Real::from_f64(self.args.share));
        weight * keep.fma(t, share)
    }

    /// The class of the row of a piece, if there is one.
    ///
    /// # Safety
    /// [`rows`]'s condition 1.
    #[inline(always)]
    unsafe fn class(&self, piece: u64, splits: NonZeroU64) -> i64 {
        let row = if splits.get() == 1 { piece } else { piece / splits };
        if MODE == mode::PROBABILITIES || row >= self.args.rows {
            return self.args.target.ignore_index;
        }
        // SAFETY: the caller's condition.
        unsafe { load_class(&self.args.target, row) }
    }

    /// What the class says.
    ///
    /// # Safety
    /// [`rows`]'s condition 1.
    #[inline(always)]
    unsafe fn label(&self, class: i64) -> Label<E::Real> {
        if MODE == mode::PROBABILITIES {
            return Label { weight: E::Real::ONE, counts: true, ..Label::NONE };
        }
        // SAFETY: the caller's condition.
        unsafe { label::<E>(&self.args.target, self.args.cols, self.args.weight, class) }
    }

    /// Finishes the rows that the threads of the team keep, of which the last was `last`.
    ///
    /// # Safety
    /// [`rows`]'s conditions; a kept row is finished once.
    #[inline(always)]
    unsafe fn finish_kept(
        &self,
        kept: &Kept<E::Real>,
        last: u64,
        workspace: Workspace,
        team: Team,
    ) {
        if team.lane >= kept.rows {
            return;
        }
        let row = last - u64::from(kept.rows - 1 - team.lane) * team.teams;
        if row >= self.args.rows {
            return;
        }
        // SAFETY: the caller's conditions.
        unsafe {
            let label = self.label(self.class(row, NonZeroU64::MIN));
            if label.fault {
                workspace.report_row(row);
            }
            Terms::add(self.finish_row(row, &label, kept.stats, kept.logit));
        }
    }

    /// The logit of the row's class; 0 for rows without one.
    ///
    /// # Safety
    /// [`rows`]'s condition 1; `row` is one of `rows`, of which this is the label.
    #[inline(always)]
    unsafe fn logit(&self, row: u64, label: &Label<E::Real>) -> E::Real {
        if MODE == mode::PROBABILITIES || label.class >= self.args.cols {
            return E::Real::ZERO;
        }
        let input = Row::<E>::at_cut(Row::<E>::address(self.args.input, row));
        // SAFETY: the caller's condition.
        unsafe { input.load(label.class).widen() }
    }

    /// The stats of a row, or of a part of it, in each thread of its team (without `GRADS` and `SHORT`, in its first
    /// warp), and in thread `keeper` the logit of its class; with `GRADS` its gradients are written.
    ///
    /// # Safety
    /// [`rows`]'s conditions; the row is one of `rows`, or not active.
    #[inline(always)]
    unsafe fn row<const GRADS: bool, const SHORT: bool, const HELD: usize>(
        &self,
        row: u64,
        split: u32,
        label: &Label<E::Real>,
        active: bool,
        keeper: u32,
        team: Team,
    ) -> (Stats<E::Real>, E::Real) {
        // A row that does not count is not read, unless its log-sum-exp is asked for.
        let read = active && (label.counts || (!GRADS && self.args.saved != 0));
        let mut logit = E::Real::ZERO;
        if read && team.lane == keeper {
            // Before any is overwritten: the team meets for its sums before it writes.
            // SAFETY: the caller's conditions.
            logit = unsafe { self.logit(row, label) };
        }
        let lanes = Lanes::new::<MODE, HELD>(self, row);
        // SAFETY: the caller's conditions, for all.
        unsafe {
            let held = lanes.tile::<HELD>(team.lane, read, team);
            let stats = if HELD > 0 {
                lanes.stats_of_tile::<MODE, GRADS, SHORT, HELD>(self, &held, read, team)
            } else {
                lanes.stats::<MODE, GRADS>(self, split, read, team)
            };
            if GRADS && active {
                let factors = self.factors(row, label, stats);
                if HELD > 0 {
                    let to = lanes.to::<MODE, HELD>(self, row);
                    lanes.gradients_of_tile::<MODE, false, HELD>(
                        self, label, &factors, to, &held, team,
                    );
                    lanes.gradients_of_edge::<MODE, false>(self, label, &factors, to, team);
                } else {
                    lanes.gradients::<MODE, false>(self, row, split, label, &factors, team);
                }
            }
            (stats, logit)
        }
    }

    /// The largest of 16 bytes.
    #[inline(always)]
    fn greatest(x: Vec16) -> E::Real {
        let mut greatest = E::extract(x, 0).widen();
        unrolled!(for lane in 1..E::LANES as usize; {
            greatest = greatest.max(E::extract(x, lane as u32).widen());
        });
        greatest
    }

    /// Adds a span's logits, of which `greatest` is the largest, to `stats`, whose largest is no less.
    ///
    /// # Safety
    /// [`rows`]'s condition 1; the span is one of the row's.
    #[inline(always)]
    unsafe fn absorb(
        &self,
        stats: &mut Stats<E::Real>,
        span: Span,
        x: Vec16,
        t: Vec16,
        greatest: E::Real,
    ) {
        let center = stats.center();
        let mut exps = [E::Real::ZERO; MAX_LANES];
        unrolled!(for lane in 0..E::LANES as usize; {
            exps[lane] = (E::extract(x, lane as u32).widen() - center).exp_below();
        });
        if greatest == stats.max {
            // Seldom: here are some of the row's largest, or the largest so far.
            unrolled!(for lane in 0..E::LANES as usize; {
                let tie = exps[lane] == E::Real::ONE;
                stats.ties = stats.ties + if tie { E::Real::ONE } else { E::Real::ZERO };
                exps[lane] = if tie { E::Real::ZERO } else { exps[lane] };
            });
        }
        unrolled!(for lane in 0..E::LANES as usize; {
            stats.rest = stats.rest + exps[lane];
        });
        if Self::DENSE {
            unrolled!(for lane in 0..E::LANES as usize; {
                if span.has(lane) {
                    let t = E::extract(t, lane as u32).widen();
                    // SAFETY: the caller's conditions.
                    let share = unsafe { self.share_of(span.first + lane as u32, t) };
                    let apart = E::extract(x, lane as u32).widen() - center;
                    stats.dot = share.fma(apart, stats.dot);
                    stats.weight = stats.weight + share;
                }
            });
        }
    }

    /// What the gradients of a row are divided by, from its upstream gradient: of its loss, and of its z-loss.
    ///
    /// # Safety
    /// [`rows`]'s condition 1; `row` is one of `rows`.
    #[inline(always)]
    unsafe fn scales(&self, row: u64) -> (E::Real, E::Real) {
        let args = self.args;
        let mut upstream = E::Real::ONE;
        if args.upstream != 0 {
            let index = row * u64::from(args.upstream_stride);
            // SAFETY: the caller's condition.
            upstream =
                unsafe { load((args.upstream as *const E::Real).wrapping_add(index as usize)) };
        }
        if args.divisor != 0.0 {
            let scale = upstream / E::Real::from_f64(args.divisor);
            return (scale, scale);
        }
        let totals = args.totals as *const f64;
        // SAFETY: the caller's condition.
        let (weights, count) = unsafe { (load(totals), load(totals.wrapping_add(1))) };
        let scale = upstream / E::Real::from_f64(weights);
        let scale = if weights == 0.0 { E::Real::NAN } else { scale };
        let of_z = if args.z_loss == 0.0 { scale } else { upstream / E::Real::from_f64(count) };
        (scale, of_z)
    }

    /// The factors of a row from its stats.
    ///
    /// # Safety
    /// As [`scales`](Self::scales).
    #[inline(always)]
    unsafe fn factors(
        &self,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
    ) -> Factors<E::Real> {
        if !label.counts {
            return Factors::NONE;
        }
        let inverse = E::Real::ONE / (stats.ties + stats.rest);
        let weight = stats.weight;
        let mut factors = Factors { center: stats.max, inverse, weight, ..Factors::NONE };
        factors.others = stats.others() * inverse;
        if MODE == mode::PROBABILITIES || self.args.z_loss != 0.0 {
            factors.log_sum = stats.log_sum();
        }
        // SAFETY: the caller's condition.
        unsafe { self.scale(row, label, &mut factors) };
        factors
    }

    /// The factors of a row from what the forward pass has saved.
    ///
    /// # Safety
    /// As [`scales`](Self::scales), and [`backward`]'s condition.
    #[inline(always)]
    unsafe fn factors_of_saved(&self, row: u64, label: &Label<E::Real>) -> Factors<E::Real> {
        if !label.counts {
            return Factors::NONE;
        }
        // SAFETY: the caller's condition.
        let of = |which| unsafe { load(self.saved(row, which)) };
        let log_sum: E::Real = of(saved::LOG_SUM);
        let mut factors = Factors {
            center: of(saved::MAX),
            offset: log_sum,
            inverse: E::Real::ONE,
            others: -exp_m1_below(-log_sum),
            log_sum,
            weight: of(saved::WEIGHT),
            ..Factors::NONE
        };
        // SAFETY: the caller's condition.
        unsafe { self.scale(row, label, &mut factors) };
        factors
    }

    #[inline(always)]
    fn saved(&self, row: u64, which: u64) -> *mut E::Real {
        (self.args.saved as *mut E::Real).wrapping_add((which * self.args.rows + row) as usize)
    }

    /// The factors with their scales.
    ///
    /// # Safety
    /// As [`scales`](Self::scales).
    #[inline(always)]
    unsafe fn scale(&self, row: u64, label: &Label<E::Real>, factors: &mut Factors<E::Real>) {
        let args = self.args;
        // SAFETY: the caller's condition.
        let (scale, of_z) = unsafe { self.scales(row) };
        let (keep, share) = (E::Real::from_f64(args.keep), E::Real::from_f64(args.share));
        if args.z_loss != 0.0 {
            let twice = E::Real::from_f64(args.z_loss + args.z_loss);
            let log_sum_exp = factors.center + factors.log_sum;
            factors.by_z = twice * log_sum_exp * of_z;
        }
        if MODE != mode::PROBABILITIES {
            factors.by_class = keep * label.weight * scale;
            factors.by_share = share * scale;
        } else {
            factors.by_share = scale;
            factors.by_target = keep * scale;
        }
        let all = factors.by_class + factors.by_share * factors.weight + factors.by_z;
        factors.factor = all * factors.inverse;
    }

    /// The gradients of a span. `SAVED` says that the factors have an offset.
    ///
    /// # Safety
    /// [`rows`]'s conditions 1 and 3; the span is one of the row's.
    #[inline(always)]
    unsafe fn gradient<const SAVED: bool>(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        [to_input, to_target]: [Row<E>; 2],
        span: Span,
        x: Vec16,
        t: Vec16,
    ) {
        let one = E::Real::ONE;
        let mut by_input = [E::Real::ZERO; MAX_LANES];
        unrolled!(for lane in 0..E::LANES as usize; {
            let apart = E::extract(x, lane as u32).widen() - factors.center;
            let exp = if SAVED { (apart - factors.offset).exp_below() } else { apart.exp_below() };
            by_input[lane] = exp * factors.factor;
        });
        if Self::DENSE {
            unrolled!(for lane in 0..E::LANES as usize; {
                let mut share = E::Real::ZERO;
                if span.has(lane) {
                    let t = E::extract(t, lane as u32).widen();
                    // SAFETY: the caller's conditions.
                    share = unsafe { self.share_of(span.first + lane as u32, t) };
                }
                by_input[lane] = by_input[lane] - factors.by_share * share;
            });
        }
        if MODE != mode::PROBABILITIES
            && let Some(at) = span.lane_of(label.class)
        {
            unrolled!(for lane in 0..E::LANES as usize; {
                if lane as u32 == at {
                    let apart = E::extract(x, lane as u32).widen() - factors.center;
                    let exp = (apart - factors.offset).exp_below();
                    let p = exp * factors.inverse;
                    let less_one = if apart == E::Real::ZERO { -factors.others } else { p - one };
                    let of_shares = factors.by_share * (p * factors.weight - label.weight);
                    by_input[lane] = factors.by_class.fma(less_one, factors.by_z.fma(p, of_shares));
                }
            });
        }
        // SAFETY: the caller's conditions.
        unsafe {
            if MODE != mode::PROBABILITIES || !to_input.is_null() {
                to_input.store(span, by_input);
            }
            if MODE == mode::PROBABILITIES && !to_target.is_null() {
                let mut by_target = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    if span.has(lane) {
                        let apart = E::extract(x, lane as u32).widen() - factors.center;
                        let class = span.first + lane as u32;
                        let weight = class_weight::<E>(self.args.weight, class);
                        by_target[lane] = weight * factors.by_target * (factors.log_sum - apart);
                    }
                });
                to_target.store(span, by_target);
            }
        }
    }

    /// Writes the results of a row, and returns what it adds to the sums.
    ///
    /// # Safety
    /// [`rows`]'s condition 1; `row` is one of `rows`, and this is its team's first thread.
    #[inline(always)]
    unsafe fn finish_row(
        &self,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        logit: E::Real,
    ) -> [f64; TERMS] {
        let args = self.args;
        let log_sum = stats.log_sum();
        let log_sum_exp = stats.max + log_sum;
        if args.saved != 0 {
            // SAFETY: the caller's conditions.
            unsafe {
                store(self.saved(row, saved::MAX), stats.max);
                store(self.saved(row, saved::LOG_SUM), log_sum);
                store(self.saved(row, saved::WEIGHT), stats.weight);
                store(self.saved(row, saved::LOG_SUM_EXP), log_sum_exp);
            }
        }
        let mut term = E::Real::ZERO;
        if label.counts {
            if MODE != mode::PROBABILITIES {
                let keep = E::Real::from_f64(args.keep);
                term = keep * label.weight * (log_sum - (logit - stats.max));
            }
            if Self::DENSE {
                let share = if MODE != mode::PROBABILITIES {
                    E::Real::from_f64(args.share)
                } else {
                    E::Real::ONE
                };
                term = term + share * (stats.weight * log_sum - stats.dot);
            }
            if label.fault {
                term = E::Real::NAN;
            }
        }
        let square = if label.counts { log_sum_exp * log_sum_exp } else { E::Real::ZERO };
        if args.reduction == reduction::ROWS {
            let mut loss = term;
            if args.z_loss != 0.0 {
                loss = E::Real::from_f64(args.z_loss).fma(square, loss);
            }
            // SAFETY: the caller's conditions.
            unsafe { store((args.loss as *mut E::Real).wrapping_add(row as usize), loss) };
        }
        let count = if label.counts { 1.0 } else { 0.0 };
        [term.to_f64(), label.weight.to_f64(), square.to_f64(), count]
    }

    /// Writes the results of all rows from their sums.
    ///
    /// # Safety
    /// [`rows`]'s conditions; this is one thread of the last block.
    #[inline(always)]
    unsafe fn finish(&self, [terms, weights, squares, count]: [f64; TERMS], workspace: Workspace) {
        let args = self.args;
        if args.totals != 0 {
            // SAFETY: the caller's conditions.
            unsafe { store_totals(args.totals, [weights, count]) };
        }
        if args.reduction == reduction::SCALAR {
            let by_totals = args.divisor == 0.0;
            let divisor = if by_totals { weights } else { args.divisor };
            let mut loss = if divisor == 0.0 { f64::NAN } else { terms / divisor };
            if args.z_loss != 0.0 {
                loss += args.z_loss * squares / if by_totals { count } else { args.divisor };
            }
            // SAFETY: the caller's conditions.
            unsafe { store(args.loss as *mut E::Real, E::Real::from_f64(loss)) };
        }
        // SAFETY: the caller's conditions.
        unsafe { self.finish_fault(workspace) };
    }

    /// Writes which target is no class.
    ///
    /// # Safety
    /// As [`finish`](Self::finish).
    #[inline(always)]
    unsafe fn finish_fault(&self, workspace: Workspace) {
        if MODE == mode::PROBABILITIES {
            return;
        }
        // SAFETY: the caller's conditions; a row that was reported is one of `rows`.
        unsafe {
            let row = workspace.take_reported_row();
            if self.args.fault != 0 {
                let fault = self.args.fault as *mut i64;
                let target = row.map_or(0, |row| load_class(&self.args.target, row));
                store(fault, row.map_or(-1, u64::cast_signed));
                store(fault.wrapping_add(1), target);
            }
        }
    }
}

/// A row, to be read by the lanes of a team: where it is and how it is cut.
struct Lanes<E> {
    cut: Cut<E>,
    input: Row<E>,
    target: Row<E>,
}

/// Groups of a row that a thread has in registers: group `first` and, from one to the next, a team's threads
/// farther. Beyond the row they are full of −∞.
struct Tile<const N: usize> {
    first: u32,
    x: [Vec16; N],
    t: [Vec16; N],
}

impl<const N: usize> Tile<N> {
    /// The span of group `k`, empty beyond the row.
    #[inline(always)]
    fn span<E: Element>(&self, cut: Cut<E>, k: usize, team: Team) -> Span {
        let group = self.first + k as u32 * team.threads;
        let Span { first, count } = cut.group(group);
        Span { first, count: if group < cut.groups { count } else { 0 } }
    }
}

impl<E: Element> Lanes<E> {
    /// With `HELD` all tensors lie alike.
    #[inline(always)]
    fn new<const MODE: u32, const HELD: usize>(pass: &Pass<'_, E, MODE>, row: u64) -> Self {
        let args = pass.args;
        let start = Row::<E>::address(args.input, row);
        let Target { start: probabilities, row_stride, .. } = args.target;
        let probabilities = if MODE == mode::PROBABILITIES { probabilities } else { 0 };
        Lanes {
            cut: Cut::new(start, args.cols),
            input: Row::at_cut(start),
            target: Self::other::<HELD>(Matrix { start: probabilities, row_stride }, row, start),
        }
    }

    /// The row of another tensor.
    #[inline(always)]
    fn other<const HELD: usize>(tensor: Matrix, row: u64, start: u64) -> Row<E> {
        if HELD > 0 { Row::alike(tensor, row) } else { Row::new(tensor, row, start) }
    }

    /// Where the gradients of a row go: the input's, the target's.
    #[inline(always)]
    fn to<const MODE: u32, const HELD: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u64,
    ) -> [Row<E>; 2] {
        let to = |tensor| Self::other::<HELD>(tensor, row, self.input.start());
        [to(pass.args.grad_input), to(pass.args.grad_target)]
    }

    /// The tile from group `first`; unless it is to be `read`, of −∞ alone.
    ///
    /// # Safety
    /// [`rows`]'s condition 1, if it is read.
    #[inline(always)]
    unsafe fn tile<const N: usize>(&self, first: u32, read: bool, team: Team) -> Tile<N> {
        let mut tile = Tile { first, x: [Vec16::default(); N], t: [Vec16::default(); N] };
        unrolled!(for k in 0..N; {
            let span = tile.span(self.cut, k, team);
            // SAFETY: the caller's condition.
            unsafe {
                tile.x[k] = Self::load(self.input, span, read && span.count > 0);
                if !self.target.is_null() {
                    tile.t[k] = Self::load(self.target, span, read && span.count > 0);
                }
            }
        });
        tile
    }

    /// The span, a group, if it is to be `read`.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn load(row: Row<E>, span: Span, read: bool) -> Vec16 {
        if !read {
            return Self::nothing();
        }
        // SAFETY: the caller's condition.
        unsafe { row.load_group(span) }
    }

    /// The thread's edge, if it is to be `read`. It is loaded whenever it is needed: most threads, and most rows,
    /// have none.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn edge(&self, read: bool, team: Team) -> (Span, Vec16, Vec16) {
        let edge = self.cut.edge(team.lane);
        let fill = E::LOWEST;
        if !read {
            return (edge, Self::nothing(), Self::nothing());
        }
        // SAFETY: the caller's condition.
        unsafe {
            let x = self.input.load_span(edge, fill);
            (edge, x, if self.target.is_null() { x } else { self.target.load_span(edge, fill) })
        }
    }

    #[inline(always)]
    fn nothing() -> Vec16 {
        E::pack([E::LOWEST; MAX_LANES])
    }

    /// The stats of a row that is a tile and an edge.
    ///
    /// # Safety
    /// [`rows`]'s conditions.
    #[inline(always)]
    unsafe fn stats_of_tile<
        const MODE: u32,
        const GRADS: bool,
        const SHORT: bool,
        const N: usize,
    >(
        &self,
        pass: &Pass<'_, E, MODE>,
        tile: &Tile<N>,
        read: bool,
        team: Team,
    ) -> Stats<E::Real> {
        let mut stats = Stats::<E::Real>::NONE;
        let mut greatest = [E::Real::ZERO; N];
        unrolled!(for k in 0..N; {
            greatest[k] = Pass::<E, MODE>::greatest(tile.x[k]);
            stats.max = stats.max.max(greatest[k]);
        });
        if self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            let (_, x, _) = unsafe { self.edge(read, team) };
            stats.max = stats.max.max(Pass::<E, MODE>::greatest(x));
        }
        stats.max = team.max::<E::Real, SHORT>(stats.max);
        unrolled!(for k in 0..N; {
            let span = tile.span(self.cut, k, team);
            // SAFETY: the caller's conditions.
            unsafe { pass.absorb(&mut stats, span, tile.x[k], tile.t[k], greatest[k]) };
        });
        // SAFETY: the caller's conditions.
        unsafe { self.absorb_edge(pass, &mut stats, read, team) };
        Pass::<E, MODE>::of_team::<GRADS, SHORT>(stats, team)
    }

    /// The stats of the row's tiles `split`, `split + splits`, ..., and with the first of its edges.
    ///
    /// # Safety
    /// [`rows`]'s conditions.
    #[inline(always)]
    unsafe fn stats<const MODE: u32, const GRADS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        split: u32,
        read: bool,
        team: Team,
    ) -> Stats<E::Real> {
        let mut stats = Stats::<E::Real>::NONE;
        let width = team.threads * FLIGHT as u32;
        let mut first = split * width + team.lane;
        while read && first < self.cut.groups {
            // SAFETY: the caller's conditions.
            let tile = unsafe { self.tile::<FLIGHT>(first, true, team) };
            let mut greatest = [E::Real::ZERO; FLIGHT];
            let mut of_all = stats.max;
            unrolled!(for k in 0..FLIGHT; {
                greatest[k] = Pass::<E, MODE>::greatest(tile.x[k]);
                of_all = of_all.max(greatest[k]);
            });
            stats = stats.relative_to(of_all);
            unrolled!(for k in 0..FLIGHT; {
                let span = tile.span(self.cut, k, team);
                // SAFETY: as above.
                unsafe { pass.absorb(&mut stats, span, tile.x[k], tile.t[k], greatest[k]) };
            });
            first += width * pass.args.splits.get();
        }
        if split == 0 {
            // SAFETY: as above.
            unsafe { self.absorb_edge(pass, &mut stats, read, team) };
        }
        let max = team.max::<E::Real, false>(stats.max);
        Pass::<E, MODE>::of_team::<GRADS, false>(stats.relative_to(max), team)
    }

    /// Adds the thread's edge to `stats`.
    ///
    /// # Safety
    /// [`rows`]'s conditions.
    #[inline(always)]
    unsafe fn absorb_edge<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        stats: &mut Stats<E::Real>,
        read: bool,
        team: Team,
    ) {
        if !read || !self.cut.has_edges() {
            return;
        }
        // SAFETY: the caller's conditions.
        unsafe {
            let (edge, x, t) = self.edge(true, team);
            let greatest = Pass::<E, MODE>::greatest(x);
            *stats = stats.relative_to(stats.max.max(greatest));
            pass.absorb(stats, edge, x, t, greatest);
        }
    }

    /// Writes the gradients of the row's tiles `split`, `split + splits`, ..., and with the first of its edges.
    /// `SAVED` says that the factors have an offset.
    ///
    /// # Safety
    /// [`rows`]'s conditions 1 and 3; `row` is one of `rows`.
    #[inline(always)]
    unsafe fn gradients<const MODE: u32, const SAVED: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u64,
        split: u32,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        team: Team,
    ) {
        let to = self.to::<MODE, 0>(pass, row);
        let width = team.threads * FLIGHT as u32;
        let mut first = split * width + team.lane;
        while first < self.cut.groups {
            // SAFETY: the caller's conditions. A row that does not count is not read.
            unsafe {
                let tile = self.tile::<FLIGHT>(first, label.counts, team);
                self.gradients_of_tile::<MODE, SAVED, FLIGHT>(
                    pass, label, factors, to, &tile, team,
                );
            }
            first += width * pass.args.splits.get();
        }
        if split == 0 {
            // SAFETY: as above.
            unsafe { self.gradients_of_edge::<MODE, SAVED>(pass, label, factors, to, team) };
        }
    }

    /// Writes the gradients of a tile.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[inline(always)]
    unsafe fn gradients_of_tile<const MODE: u32, const SAVED: bool, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        tile: &Tile<N>,
        team: Team,
    ) {
        unrolled!(for k in 0..N; {
            let span = tile.span(self.cut, k, team);
            if span.count > 0 {
                // SAFETY: the caller's conditions.
                unsafe {
                    pass.gradient::<SAVED>(label, factors, to, span, tile.x[k], tile.t[k]);
                }
            }
        });
    }

    /// Writes the gradients of the thread's edge.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[inline(always)]
    unsafe fn gradients_of_edge<const MODE: u32, const SAVED: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        team: Team,
    ) {
        if self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            unsafe {
                let (edge, x, t) = self.edge(label.counts, team);
                pass.gradient::<SAVED>(label, factors, to, edge, x, t);
            }
        }
    }
}
