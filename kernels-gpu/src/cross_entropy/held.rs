//! The loss, or the loss and the gradients in one pass, of rows that a block holds in registers: a row a block.
//!
//! Nothing here is in a loop: what a loop over rows would keep from one to the next costs registers and instructions, and
//! blocks that end with their row and begin in the order of memory are what reads and writes want that take turns.

use super::forward::{finish_terms, has_sums, leave_terms};
use super::label::{Label, add_up_totals, totals_ahead};
use super::lanes::{Lanes, lies};
use super::pass::{Asked, Pass, Total, scales_of_row};
use super::stats::{Relative, Stats, not_zero};
use super::team::Team;
use crate::abi::{CrossEntropyArgs, finishes_late, numbers_of_row};
use crate::element::{Element, Real, unrolled};
use crate::reduce::{AsTheyAre, Terms, Workspace, bits_of_sum, leave_of_block, sums_over_blocks};
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::{sync_warp, warp_id};

cuda_std::shared_array! {
    /// The class of a block's row, of which the first thread finishes the loss.
    fn class_of_row() -> [i64; 1];
}

/// The loss. With `FINISHES` a block makes the loss of its row, which is soonest known so; without, whoever adds up does, and
/// blocks make way sooner, but for those of the last rows, for which the end of the grid waits ([`leaves_sums`]). Of targets for
/// every class each block does.
///
/// # Safety
/// The kernels' conditions ([`super`]). A block for each row, one at least, and behind them `adders`; a team is the block, and
/// holds a row as [`lies::HELD`] says, `HELD` groups of 16 bytes a thread.
#[inline(always)]
pub(crate) unsafe fn forward_held<
    E: Element,
    const MODE: u32,
    const HELD: usize,
    const FINISHES: bool,
>(
    args: &CrossEntropyArgs,
) {
    let pass = if FINISHES { Pass::<E, MODE>::new(args) } else { Pass::finishing_late(args) };
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    let team = Team::of_block(args);
    let (row, first) = (team.first, thread_idx_x() == 0);
    let finishes_all = FINISHES || Pass::<E, MODE>::DENSE;
    let finishes_late = finishes_late(size_of::<E>()) && !finishes_all;
    let sums;
    if row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::<E, { lies::HELD }>::new(&pass, row);
            let class_of = || if finishes_all { pass.class(row) } else { args.ignore_index };
            // Of few rows the logits first, whose address is sooner known; of many the class, which is sooner needed.
            let class = (!FINISHES).then(class_of);
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let held = lanes.tile::<HELD>(team.lane, true, team);
            let class = class.unwrap_or_else(class_of);
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            sums = !finishes_all || has_sums(args);
            let (mut label, mut logit) = (Label::NONE, E::Real::ZERO);
            if finishes_all {
                label = pass.label(class);
                if warp_id() == 0 {
                    logit = pass.logit(row, class);
                }
            } else if first && finishes_late && leaves_sums(args) {
                // In no register: they would take those of all rows.
                let class = pass.class(row);
                class_of_row().set(0, class);
                if class.cast_unsigned() < u64::from(args.cols) {
                    lanes.keep_class(class as u32);
                }
            }
            let (of_warp, _) = lanes.stats_of_tile::<MODE, HELD, false>(&pass, &held, true, team);
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, false>()
            } else {
                of_warp.of_block::<false, false>()
            };
            if first && (finishes_all || finishes_late && leaves_sums(args)) {
                if !finishes_all {
                    wait_for_copies::<0>();
                    label = pass.label(class_of_row().get(0));
                    if label.has_class(args.cols) {
                        logit = Lanes::<E, { lies::HELD }>::kept_class(label.class);
                    }
                }
                let terms = pass.finish_row::<true>(row, &label, stats, logit, workspace);
                if sums {
                    leave_terms(&pass, terms, workspace);
                }
            } else if first {
                leave_stats(0, stats, args.adders, workspace);
            }
        }
    } else {
        sums = !finishes_all || has_sums(args);
    }
    if !sums {
        return;
    }
    // SAFETY: the caller's conditions.
    unsafe {
        if finishes_all {
            finish_terms::<E, MODE, 4, 2, 4>(&pass, &AsTheyAre::<4>, workspace);
        } else {
            let terms = TermsOfRows::<E, MODE, true> { pass: &pass, workspace };
            if finishes_late {
                finish_terms::<E, MODE, WORDS, PARTS, PARTS>(&pass, &terms, workspace);
            } else {
                finish_terms::<E, MODE, 4, PARTS, PARTS>(&pass, &terms, workspace);
            }
        }
    }
}

/// Whether this block is none of the [`early_blocks`](crate::abi::early_blocks).
#[inline(always)]
fn leaves_sums(args: &CrossEntropyArgs) -> bool {
    block_idx_x() >= args.early_blocks
}

/// Leaves what a block's row comes to from number `first` on.
///
/// # Safety
/// As [`leave_of_block`].
#[inline(always)]
unsafe fn leave_stats<R: Real>(first: u32, stats: Stats<R>, adders: u32, workspace: Workspace) {
    let [word, second] = stats.to_words();
    // SAFETY: the caller's conditions.
    unsafe {
        leave_of_block(first, [word], adders, workspace);
        if Stats::<R>::WORDS > 1 {
            leave_of_block(first + 1, [second], adders, workspace);
        }
    }
}

/// The loss and the gradients.
///
/// # Safety
/// The kernels' conditions ([`super`]). A block for each row, behind those that add up totals, and behind them
/// `adders`; a team is the block, and holds a row as [`lies::HELD`] says, `HELD` groups of 16 bytes a thread.
#[inline(always)]
pub(crate) unsafe fn forward_backward_held<E: Element, const MODE: u32, const HELD: usize>(
    args: &CrossEntropyArgs,
) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: condition 2.
    let workspace = unsafe { Workspace::new(args.workspace) };
    // SAFETY: as above.
    let ahead = unsafe { totals_ahead(args) };
    let team = Team::of_block(args);
    let adds_up = block_idx_x() < args.totals_blocks;
    let first = thread_idx_x() == 0;
    let finishes = Pass::<E, MODE>::DENSE || leaves_sums(args);
    let row = team.first;
    if adds_up {
        // SAFETY: conditions 1 and 2.
        unsafe { add_up_totals::<E>(args) };
    }
    if !adds_up && row < args.rows {
        // SAFETY: the caller's conditions.
        unsafe {
            let lanes = Lanes::<E, { lies::HELD }>::new(&pass, row);
            // By one warp: where all wait for the totals, they wait for each other.
            let totals = if warp_id() == 0 { Some(Asked::new(args, ahead)) } else { None };
            // Before the class is known: it takes as long to arrive. A row that does not count is read for nothing.
            let class = pass.class(row);
            let mut held = lanes.tile::<HELD>(team.lane, true, team);
            if let Some(totals) = totals {
                let set = |index, total| {
                    let scale = pass.scale(row, totals, total).to_bits64();
                    if first {
                        scales_of_row().set(index, scale);
                    }
                };
                set(0, Total::Weights);
                if args.z_loss != 0.0 {
                    set(1, Total::Rows);
                }
            }
            // All of it asked for first: a wait for the class would be moved to between.
            sync_warp();
            pass.prefetch(row, team);
            let label = pass.label(class);
            if !label.counts {
                held.forget::<E>();
            }
            if first && label.has_class(args.cols) {
                lanes.keep_class(label.class);
            }
            let (of_warp, exps) =
                lanes.stats_of_tile::<MODE, HELD, true>(&pass, &held, label.counts, team);
            if first && args.grad_input.start == args.input.start {
                // Before the barrier, behind which the row is overwritten.
                wait_for_copies::<0>();
            }
            let stats = if Pass::<E, MODE>::DENSE {
                of_warp.of_block::<true, true>()
            } else {
                of_warp.of_block::<false, true>()
            };
            // Asked for again, where it would take registers that the exponentials need.
            let team = Team::of_block(args);
            let held = held.at(team.lane, team.threads);
            let row = team.first;
            let logit = || {
                wait_for_copies::<0>();
                if label.has_class(args.cols) {
                    Lanes::<E, { lies::HELD }>::kept_class(label.class)
                } else {
                    E::Real::ZERO
                }
            };
            if first && finishes && !Pass::<E, MODE>::DENSE {
                // The end of the grid waits for it, and behind the gradients it would be seen late.
                let [term, _, square, _] =
                    pass.finish_row::<false>(row, &label, stats, logit(), workspace);
                leave_of_block(0, [term, square].map(bits_of_sum), args.adders, workspace);
            } else if first && !finishes {
                leave_stats(1, stats, args.adders, workspace);
            }
            let scale = |index| E::Real::from_bits64(scales_of_row().get(index));
            let factors = pass.factors(&label, stats, scale(0), || scale(1));
            let to = lanes.to(&pass, row);
            if Pass::<E, MODE>::DENSE {
                let held = held.anew();
                let class = lanes.class_in_tile::<MODE, HELD>(&label, &held);
                let class =
                    class.map(|logit| (label.class, pass.at_class(&label, &factors, logit)));
                lanes.gradients_of_tile::<MODE, HELD>(&pass, class, &factors, to, &held);
            } else {
                // They are relative to the warp's largest logit.
                let relative = Relative::<_, MODE>::to(of_warp.center());
                let unit = (of_warp.max - factors.center).exp_below() * relative.unit();
                let at_class = |exp| {
                    let likeliest = exp == relative.tie() && of_warp.max == factors.center;
                    pass.at_class_of(&label, &factors, unit * exp * factors.inverse, likeliest)
                };
                let (factor, class) = (unit * factors.factor, (label.class, at_class));
                lanes.gradients_of_exps(&exps, factor, class, to[0], &held);
            }
            // The logit is there only now.
            if first && Pass::<E, MODE>::DENSE {
                let [term, _, square, _] =
                    pass.finish_row::<false>(row, &label, stats.anew(), logit(), workspace);
                leave_of_block(0, [term, square].map(bits_of_sum), args.adders, workspace);
            } else if first && !finishes {
                leave_of_block(0, [not_zero(logit()).to_bits64()], args.adders, workspace);
            }
        }
    } else if first {
        let nothing = bits_of_sum(0.0);
        // SAFETY: condition 2.
        unsafe {
            leave_of_block(0, [nothing; 2], args.adders, workspace);
            if !finishes && Stats::<E::Real>::WORDS > 1 {
                leave_of_block(2, [nothing], args.adders, workspace);
            }
        }
    }
    // SAFETY: conditions 1 and 2; in the last block's first thread.
    unsafe {
        let terms = TermsOfRows::<E, MODE, false> { pass: &pass, workspace };
        let asked = pass.ask_for_totals(ahead);
        let finish = |sums| pass.finish_with_totals(sums, asked, workspace);
        if Pass::<E, MODE>::DENSE {
            sums_over_blocks::<WORDS, 2, 2>(&AsTheyAre::<WORDS>, args.adders, workspace, finish);
        } else {
            sums_over_blocks::<WORDS, PARTS, 2>(&terms, args.adders, workspace, finish);
        }
    }
}

/// What a block leaves of its row, at most: the logit of its class, of a pass that overwrites it, and what the row comes to.
const PARTS: usize = 3;

/// Numbers that the last block asks for at once: of eight for each of its threads, one look is enough at the end of a grid.
const WORDS: usize = 8;

/// The losses of rows, which whoever adds them up makes of what their blocks have left: 32 at once, where a block would
/// keep its room until one of its threads has made one. `FORWARD` says in which pass.
struct TermsOfRows<'a, E: Element, const MODE: u32, const FORWARD: bool> {
    pass: &'a Pass<'a, E, MODE>,
    workspace: Workspace,
}

impl<E: Element, const MODE: u32, const FORWARD: bool, const N: usize> Terms<PARTS, N>
    for TermsOfRows<'_, E, MODE, FORWARD>
{
    const AT_ONCE: usize = 2;
    const USED: usize =
        if FORWARD { Stats::<E::Real>::WORDS } else { numbers_of_row(size_of::<E>()) as usize };
    type Besides = Option<(Label<E::Real>, E::Real)>;

    /// What the class of the row says, of a block that has one, and in a forward pass its logit: no row has to wait for it.
    #[inline(always)]
    fn besides(&self, block: u32) -> Self::Besides {
        let row = u64::from(block.wrapping_sub(self.pass.args.totals_blocks));
        if row >= self.pass.args.rows {
            return None;
        }
        // SAFETY: condition 1; the row is one.
        unsafe {
            let class = self.pass.class(row);
            let logit = if FORWARD { self.pass.logit(row, class) } else { E::Real::ZERO };
            Some((self.pass.label(class), logit))
        }
    }

    #[inline(always)]
    fn of_place(&self, block: u32, besides: Self::Besides, parts: [u64; PARTS]) -> [f64; N] {
        let mut sums = [0.0; N];
        let Some((label, logit)) = besides else {
            unrolled!(for sum in 0..N; {
                sums[sum] = if sum < PARTS { f64::from_bits(parts[sum]) } else { 0.0 };
            });
            return sums;
        };
        let row = u64::from(block - self.pass.args.totals_blocks);
        let (stats, logit) = if FORWARD {
            (Stats::from_words([parts[0], parts[1]]), logit)
        } else {
            (Stats::from_words([parts[1], parts[2]]), E::Real::from_bits64(parts[0]))
        };
        // SAFETY: condition 1; the row is one, and whoever takes its parts is the only one.
        let terms =
            unsafe { self.pass.finish_row::<FORWARD>(row, &label, stats, logit, self.workspace) };
        unrolled!(for sum in 0..N; {
            // Of a pass with gradients, the losses and the squared log-sum-exps.
            sums[sum] = terms[if FORWARD { sum } else { 2 * sum }];
        });
        sums
    }
}
