//! The loss and the gradients in one pass, with one block per row, which is staged in shared
//! memory. Where a row has no room there, a group of blocks stages a part of it each
//! ([`split`](super::split)).
//!
//! In f64 the exponentials take longer than the memory, so each is computed once, and replaces its
//! logit in shared memory until the row's sum is known. In f32 and the 16-bit types they are
//! computed again: 16 bits would round them, and of f32 the memory takes longer.
//!
//! Each thread copies, reads and overwrites vectors of its own, so only sums wait for other
//! threads.

use super::finish::{finish_grid, publish_terms};
use super::label::{normaliser, sum_normaliser};
use super::lagging::{CERTAIN, is_near_top};
use super::pass::{Classes, Pass, Total, scales_of_row, writes};
use super::row_group::Rows;
use super::stats::Stats;
use crate::abi::{CACHE_LINE, CrossEntropyArgs, NORMALISER_FLIGHT, VECTOR_BYTES};
use crate::cut::{Cut, Row};
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::{self, Workspace, block_sums, warp_max};
use cuda_std::SharedArray;
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

cuda_std::shared_array! {
    /// The row's vectors, numbered as in its [`Cut`], and later the exponentials of its logits.
    fn row_vectors() -> [Vec16];
}

cuda_std::shared_array! {
    /// The largest [top](Real::to_top) of each warp's logits.
    fn tops_of_warps() -> [u64; 32];
}

/// Vectors that a thread copies and computes at a time.
const FLIGHT: usize = 4;

/// Runs a block for each of this thread's vectors: for N = [`FLIGHT`] at a time from `index` on,
/// and in the end for one.
macro_rules! each_batch {
    ($row:expr, $index:ident, $N:ident; $body:block) => {{
        let mut $index = $row.first;
        {
            const $N: usize = FLIGHT;
            while $index + ($N as u32 - 1) * $row.step < $row.end {
                $body
                $index += $N as u32 * $row.step;
            }
        }
        const $N: usize = 1;
        while $index < $row.end {
            $body
            $index += $row.step;
        }
    }};
}

mod gradients;

type BlockRank = reduce::BlockRank<1>;

/// The loss and the gradients of rows that fit in a block's shared memory. Targets are classes,
/// with or without smoothing.
///
/// # Safety
/// 1. The kernels' conditions ([`super`]).
/// 2. The grid has `normaliser_blocks` blocks that sum the normaliser, and behind them one of
///    `abi::grid_of_workers`.
/// 3. A block has dynamic shared memory for as many vectors as a row may have, and for those of
///    its first cache line that are before the row.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn forward_backward_staged<E: Element, const MODE: u32>(args: &CrossEntropyArgs) {
    let pass = Pass::<E, MODE>::new(args);
    // SAFETY: the kernels' conditions.
    let workspace = unsafe {
        pass.begin_with_normaliser();
        Workspace::new(args.workspace)
    };
    if block_idx_x() < args.normaliser_blocks {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { sum_normaliser::<E, NORMALISER_FLIGHT>(args) };
        return;
    }
    let rank = || BlockRank::with_shift(args.adder_shift, args.normaliser_blocks);
    let row_at = |index| Rows::row(args, rank(), index);
    let Some(mut row) = row_at(0) else {
        // SAFETY: the kernels' conditions 1 and 2.
        unsafe { finish_grid::<true, 8, E, MODE, _>(&pass, rank(), workspace) };
        return;
    };
    let first = thread_idx_x() == 0;
    let (mut index, mut terms) = (0, [0.0; 2]);
    loop {
        // SAFETY: the caller's conditions; a barrier separates the scales of one row from those of
        // the next.
        unsafe {
            let staged = StagedRow::<E, MODE>::new(&pass, row);
            staged.copy();
            let class = pass.class(row);
            let label = pass.label(class);
            // Read before gradients overwrite it: barriers stand in between.
            let logit = pass.logit(row, class);
            if first {
                // Only one thread loads the normaliser: if all did, each would wait for the others.
                let normaliser = normaliser(args);
                let set = |index, value: E::Real| scales_of_row().set(index, value.to_bits64());
                set(0, pass.scale(row, normaliser, Total::Weights));
                if args.z_loss != 0.0 {
                    set(1, pass.scale(row, normaliser, Total::Rows));
                }
            }
            let stats = if label.counts {
                staged.statistics().of_row()
            } else {
                wait_for_copies::<0>();
                sync_threads();
                Stats::NONE
            };
            let scale = |index| E::Real::from_bits64(scales_of_row().get(index));
            let factors = pass.factors(&label, stats, scale(0), || scale(1));
            let next = row_at(index + 1);
            if first {
                let of_row =
                    pass.finish_row::<{ writes::LOSS }>(row, &label, stats, logit, workspace);
                terms = [terms[0] + of_row[0], terms[1] + of_row[2]];
                if next.is_none() {
                    // Before the gradients: the end of the grid waits for it.
                    let terms = [terms[0], terms[1], 0.0, 0.0];
                    publish_terms::<E::Real, _>(rank(), terms, 1, workspace);
                }
            }
            let at_class = pass.at_class(&label, &factors, logit);
            staged.store_gradients(row, &label, &factors, factors.factor, at_class, None);
            let Some(next) = next else { return };
            row = next;
        }
        index += 1;
        // The next row's scales replace these.
        sync_threads();
    }
}

/// A row or a block's part of one, and where this thread's share of it is staged: every
/// `block_dim_x`th vector, and a peeled element.
pub(super) struct StagedRow<'a, E: Element, const MODE: u32> {
    pass: &'a Pass<'a, E, MODE>,
    row: Row<E>,
    cut: Cut<E>,
    vectors: SharedArray<Vec16>,
    /// The address of the cache line that the row begins in.
    line: u64,
    /// The first vector of the part, which shared memory begins with.
    base: u32,
    /// This thread's first vector.
    first: u32,
    /// The index behind the last vector of the part.
    end: u32,
    step: u32,
}

impl<'a, E: Element, const MODE: u32> StagedRow<'a, E, MODE> {
    const DENSE: bool = Pass::<E, MODE>::DENSE;
    /// Whether gradients subtract the shares of a vector at a time. In f64 that spills.
    const HAS_SHARE_VECTORS: bool = size_of::<E>() < 8;
    /// Whether exponentials replace their logits until the gradients are computed.
    pub(super) const KEEPS_EXPS: bool = size_of::<E>() > 4;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(pass: &'a Pass<'a, E, MODE>, row: u64) -> Self {
        Self::part(pass, row, 0, u32::MAX)
    }

    /// The vectors `base..end` of a row, with the row's peeled elements if it begins with them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn part(pass: &'a Pass<'a, E, MODE>, row: u64, base: u32, end: u32) -> Self {
        let start = Row::<E>::address(pass.args.input, row);
        let cut = Cut::at_lines(start, pass.args.cols);
        let (thread, step) = (base + thread_idx_x(), block_dim_x());
        let first = if thread < cut.first() { thread + step } else { thread };
        let vectors = row_vectors().in_register();
        let (row, end) = (Row::at_cut(start), cut.end.min(end));
        let line = start.next_multiple_of(16) & !u64::from(CACHE_LINE - 1);
        StagedRow { pass, row, cut, vectors, line, base, first, end, step }
    }

    /// Starts to copy the row to shared memory.
    ///
    /// # Safety
    /// The kernels' condition 1, and [`forward_backward_staged`]'s condition 3.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn copy(&self) {
        each_batch!(self, index, N; {
            unrolled!(for k in 0..N; {
                let vector = index + k as u32 * self.step;
                // SAFETY: the caller's conditions; the vector is this thread's.
                unsafe {
                    let from = self.line + u64::from(vector) * u64::from(VECTOR_BYTES);
                    self.vectors.copy(vector - self.base, from as *const Vec16);
                }
            });
        });
        end_copies();
    }

    /// Starts to copy a vector to shared memory, if this part has it.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and the vector would be this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn copy_one(&self, vector: u32) {
        if vector >= self.first && vector < self.end {
            // SAFETY: the caller's conditions.
            unsafe {
                let from = self.line + u64::from(vector) * u64::from(VECTOR_BYTES);
                self.vectors.copy(vector - self.base, from as *const Vec16);
            }
        }
    }

    /// Starts to copy those of this thread's vectors that have no counterpart in the same part of
    /// the row `before`: rows begin anywhere in a cache line.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn copy_beside(&self, before: &Self) {
        // SAFETY: the caller's conditions.
        unsafe {
            if self.first < before.first {
                self.copy_one(self.first);
            }
            let behind = (before.end.max(before.first) - before.first).div_ceil(self.step);
            let mut vector = before.first + behind * self.step;
            while vector < self.end {
                self.copy_one(vector);
                vector += self.step;
            }
        }
        end_copies();
    }

    /// N vectors from `index` on.
    ///
    /// # Safety
    /// They are this thread's, and their copies are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn get<const N: usize>(&self, index: u32) -> [Vec16; N] {
        let mut vectors = [Vec16::default(); N];
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            vectors[k] = unsafe { self.vectors.get(index - self.base + k as u32 * self.step) };
        });
        vectors
    }

    /// Adds the exponentials of N vectors from `index` on, relative to the maximum of `stats`, and
    /// the shares of the target to the statistics. With [`KEEPS_EXPS`](Self::KEEPS_EXPS), the
    /// exponentials replace the vectors.
    ///
    /// # Safety
    /// As [`get`](Self::get), and the kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exponentiate<const N: usize>(&self, index: u32, stats: &mut Stats<E::Real>) {
        let mut sums = [E::Real::ZERO; 2];
        let center = stats.center();
        // SAFETY: the caller's conditions.
        unsafe {
            let x = self.get::<N>(index);
            if Self::DENSE {
                let mut shares = [stats.dot, stats.weight];
                let mut classes = [Classes::from(0); N];
                unrolled!(for k in 0..N; {
                    let vector = self.cut.vector(index + k as u32 * self.step);
                    classes[k] = Classes::from(vector.first);
                });
                self.pass.add_shares::<N, true>(&mut shares, center, (x, x), classes);
                [stats.dot, stats.weight] = shares;
            }
            let add = |k: usize, exps: [E::Real; MAX_LANES]| {
                unrolled!(for lane in 0..E::LANES as usize; {
                    sums[lane % 2] = sums[lane % 2] + exps[lane];
                });
                if Self::KEEPS_EXPS {
                    self.vectors.set(index - self.base + k as u32 * self.step, E::narrow_all(exps));
                }
            };
            let base = Base::Center(center, E::Real::ONE);
            // With shares of all classes, masks would spill.
            if Self::DENSE { E::exps(x, base, add) } else { E::masked_exps(x, base, add) }
        }
        stats.rest = stats.rest + (sums[0] + sums[1]);
    }

    /// The row's peeled element that is this thread's, and its index.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn peeled(&self) -> Option<(u32, E::Real)> {
        let number = thread_idx_x();
        (self.base == 0 && number < self.cut.peeled_count()).then(|| {
            let index = self.cut.peeled_index(number);
            // SAFETY: the caller's condition.
            (index, unsafe { self.row.load(index) }.widen())
        })
    }

    /// The statistics of the part, in all threads. With [`KEEPS_EXPS`](Self::KEEPS_EXPS), leaves
    /// exponentials relative to `max` in place of the logits. Has a barrier behind the caller's
    /// writes to shared memory.
    ///
    /// # Safety
    /// [`copy`](Self::copy)'s conditions, and it was called.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn statistics(&self) -> Stats<E::Real> {
        // SAFETY: the caller's conditions.
        unsafe {
            let peeled = self.peeled();
            wait_for_copies::<0>();
            let mut top = peeled.map_or(E::Real::NO_TOP, |(_, x)| x.to_top());
            each_batch!(self, index, N; { top = E::raise_top(top, self.get::<N>(index)); });
            let max = E::Real::from_top(block_top(top));
            if is_near_top(max) {
                let mut stats = Stats { max, ..Stats::NONE };
                if let Some((index, x)) = peeled {
                    stats.rest = (x - max).exp_below();
                    if Self::DENSE {
                        self.pass.absorb_share(&mut stats, index, x, E::Real::ZERO);
                    }
                }
                each_batch!(self, index, N; { self.exponentiate::<N>(index, &mut stats); });
                if Self::DENSE {
                    let of_warp = stats.of_group::<MODE>(WARP_SIZE);
                    stats = of_warp.block_merge::<MODE, true>(E::Real::ONE);
                } else {
                    let [sum] = block_sums::<E::Real, true, 1>([stats.rest]);
                    stats = Stats { ties: E::Real::ONE, rest: sum - E::Real::ONE, ..stats };
                }
                if stats.others() >= E::Real::from_f64(CERTAIN) {
                    return stats;
                }
                self.copy();
                wait_for_copies::<0>();
                // The statistics of the warps are merged again.
                sync_threads();
            }
            self.exact_statistics(peeled)
        }
    }

    /// [`statistics`](Self::statistics) by the exact maximum, and with the exponentials that are 1
    /// apart: for rows whose largest logit is nearly certain, and those with logits that are not
    /// finite.
    ///
    /// # Safety
    /// As [`statistics`](Self::statistics); the logits are staged.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exact_statistics(&self, peeled: Option<(u32, E::Real)>) -> Stats<E::Real> {
        let one = E::Real::ONE;
        let mut stats = Stats::<E::Real>::NONE;
        // SAFETY: the caller's conditions.
        unsafe {
            let mut add = |column: u32, x: E::Real| {
                stats = stats.relative_to::<MODE>(x, one);
                stats.absorb::<MODE>(x, one);
                if Self::DENSE {
                    self.pass.absorb_share(&mut stats, column, x, E::Real::ZERO);
                }
            };
            if let Some((index, x)) = peeled {
                add(index, x);
            }
            let mut index = self.first;
            while index < self.end {
                let ([x], column) = (self.get::<1>(index), self.cut.vector(index).first);
                unrolled!(for lane in 0..E::LANES as usize; {
                    add(column + lane as u32, E::extract(x, lane as u32).widen());
                });
                index += self.step;
            }
            let max = warp_max(stats.max);
            let warp_stats = stats.relative_to::<MODE>(max, one).of_group::<MODE>(WARP_SIZE);
            let stats = warp_stats.block_merge::<MODE, true>(one);
            let mut index = self.first;
            while index < self.end {
                self.exponentiate::<1>(index, &mut Stats { max: stats.max, ..Stats::NONE });
                index += self.step;
            }
            stats
        }
    }
}

/// The largest top of the block's threads, in all of them. Has one barrier; the caller has another
/// before the next call.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn block_top(top: u32) -> u32 {
    let of_warp = |top: u32| warp_max(f32::from_bits(top)).to_bits();
    let top = of_warp(top);
    if lane_id() == 0 {
        // SAFETY: the warp's own word, read last before the caller's barrier.
        unsafe { tops_of_warps().set(warp_id(), top.into()) };
    }
    sync_threads();
    let has = lane_id() < block_dim_x() / WARP_SIZE;
    // SAFETY: the warp wrote it before the barrier.
    of_warp(if has { unsafe { tops_of_warps().get(lane_id()) as u32 } } else { f64::NO_TOP })
}
