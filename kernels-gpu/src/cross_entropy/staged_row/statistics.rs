//! The statistics of staged rows.

use super::{Peeled, StagedRow};
use crate::cross_entropy::lagging::{CERTAIN, is_near_top};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Classes, Pass, weights};
use crate::cross_entropy::stats::{Relative, Stats};
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::{block_sums, warp_max, warp_sums};
use cuda_std::math::max_or_nan_f32_bits;
use cuda_std::memory::{Vec16, wait_for_copies};
use cuda_std::thread::{block_dim_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp, warp_id};

cuda_std::shared_array! {
    /// The largest [top](Real::to_top) of each warp's logits.
    fn tops_of_warps() -> [u64; 32];
}

impl<E: Element, const MODE: u32, const FLIGHT: usize> StagedRow<'_, E, MODE, FLIGHT> {
    /// Whether one pass over the logits computes their statistics. One pass is not enough where
    /// exponentials are stored, because all are relative to one center, nor where shares are summed
    /// too.
    const IS_ONLINE: bool = !Self::KEEPS_EXPS && !Self::HAS_SHARE_SUMS;

    /// The statistics of the part, in all threads. With [`KEEPS_EXPS`](Self::KEEPS_EXPS), replaces
    /// the logits in shared memory by their exponentials relative to `max`. The threads synchronise
    /// after the caller's writes to shared memory.
    ///
    /// # Safety
    /// [`copy`](Self::copy)'s conditions, and it was called.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn statistics(&self) -> Stats<E::Real> {
        // SAFETY: the caller's conditions.
        unsafe {
            let peeled = self.peeled();
            let stats = if Self::IS_ONLINE {
                self.online_statistics(peeled)
            } else {
                self.statistics_by_maximum(peeled)
            };
            let has_shares =
                !Self::HAS_SHARE_SUMS || Pass::<E, MODE>::has_sums_of_shares(stats.dot);
            if is_near_top(stats.max) && stats.others() >= E::Real::from_f64(CERTAIN) && has_shares
            {
                return stats;
            }
            if Self::KEEPS_EXPS {
                self.copy();
                wait_for_copies::<0>();
            }
            // The statistics of the warps are merged again.
            sync_threads();
            self.exact_statistics(peeled)
        }
    }

    /// The statistics in one pass over the logits, batch by batch as their copies arrive. All lanes
    /// of a warp have the same maximum, the largest logit so far. The statistics are right if the
    /// largest logit of all is [near](is_near_top).
    ///
    /// # Safety
    /// As [`statistics`](Self::statistics).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn online_statistics(&self, peeled: Option<Peeled<E::Real>>) -> Stats<E::Real> {
        let one = E::Real::ONE;
        let mut online = Online::<E::Real>::new();
        // SAFETY: the caller's conditions.
        unsafe {
            each_batch!(self.add_vectors(&mut online));
            if any(peeled.is_some()) {
                online.raise(peeled.map_or(E::Real::NEG_INFINITY, |Peeled { x, .. }| x));
                if let Some(Peeled { x, .. }) = peeled {
                    online.add(online.relative.exp(x));
                }
            }
            let [sum] = warp_sums([online.rest], WARP_SIZE);
            let stats = Stats { max: online.max, ties: one, rest: sum - one, ..Stats::NONE };
            if block_dim_x() == WARP_SIZE {
                sync_warp();
                return stats;
            }
            stats.block_merge::<{ mode::CLASS }, true>(one)
        }
    }

    /// Adds N vectors from `index` on to the statistics.
    ///
    /// # Safety
    /// As [`statistics`](Self::statistics); all lanes of the warp call it for one of its batches.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_vectors<const N: usize>(&self, index: u32, online: &mut Online<E::Real>) {
        self.wait_for_batch(index);
        // SAFETY: the caller's conditions.
        let x = unsafe { self.get::<N>(index) };
        online.raise(E::greatest(x));
        let mut sums = [E::Real::ZERO; 2];
        E::exps(x, online.relative.base(), |_, exps: [E::Real; MAX_LANES]| {
            unrolled!(for lane in 0..E::LANES as usize; {
                sums[lane % 2] = sums[lane % 2] + exps[lane];
            });
        });
        online.add(sums[0] + sums[1]);
    }

    /// The statistics in two passes over the logits: one for the maximum, as the copies arrive, and
    /// one for the exponentials, which replace the logits with [`KEEPS_EXPS`](Self::KEEPS_EXPS). If
    /// the largest logit is not [near](is_near_top), the second pass is left out, and only the
    /// maximum is right.
    ///
    /// # Safety
    /// As [`statistics`](Self::statistics).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn statistics_by_maximum(&self, peeled: Option<Peeled<E::Real>>) -> Stats<E::Real> {
        // SAFETY: the caller's conditions.
        unsafe {
            let mut top = E::Real::NO_TOP;
            each_batch!(self.raise_top(&mut top));
            if let Some(Peeled { x, .. }) = peeled {
                top = max_or_nan_f32_bits(top, x.to_top());
            }
            let max = E::Real::from_top(block_top(top));
            let mut stats = Stats { max, ..Stats::NONE };
            if !is_near_top(max) {
                return stats;
            }
            each_batch!(self.exponentiate(&mut stats));
            if Self::HAS_SHARE_SUMS {
                let relative = Relative::to(max, E::Real::ONE);
                let sums = [stats.dot, stats.weight];
                [stats.dot, stats.weight] = self.pass.shares_of_sums(sums, relative);
                if Pass::<E, MODE>::HAS_SHIFTED_SHARES {
                    stats.rest = stats.rest * relative.unit();
                }
            }
            if let Some(Peeled { index, x, t }) = peeled {
                stats.rest = stats.rest + (x - max).exp_below();
                if Self::HAS_SHARE_SUMS {
                    self.pass.absorb_share(&mut stats, index, x, t);
                }
            }
            if Self::HAS_SHARE_SUMS {
                let of_warp = stats.of_group::<MODE>(WARP_SIZE);
                return of_warp.block_merge::<MODE, true>(E::Real::ONE);
            }
            let [sum] = block_sums::<E::Real, true, 1>([stats.rest]);
            Stats { ties: E::Real::ONE, rest: sum - E::Real::ONE, ..stats }
        }
    }

    /// [`statistics`](Self::statistics) relative to the exact maximum, with exponentials that are 1
    /// counted separately: for rows whose largest logit is nearly certain, and for rows with logits
    /// that are not finite or far from 0.
    ///
    /// # Safety
    /// As [`statistics`](Self::statistics); the logits are staged.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exact_statistics(&self, peeled: Option<Peeled<E::Real>>) -> Stats<E::Real> {
        let one = E::Real::ONE;
        let mut stats = Stats::<E::Real>::NONE;
        // SAFETY: the caller's conditions.
        unsafe {
            let mut add = |Peeled { index, x, t }: Peeled<E::Real>| {
                stats = stats.relative_to::<MODE>(x, one);
                stats.absorb::<MODE>(x, one);
                if Self::HAS_SHARE_SUMS {
                    self.pass.absorb_share(&mut stats, index, x, t);
                }
            };
            if let Some(peeled) = peeled {
                add(peeled);
            }
            // Few rows come here, so this is short rather than fast.
            let mut vector = self.first;
            while vector < self.end {
                if self.has_vector(vector) {
                    let ([x], [t]) = (self.get::<1>(vector), self.get_targets::<1>(vector));
                    let column = self.cut.vector(vector).first;
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let of = |vector| E::extract(vector, lane as u32).widen();
                        add(Peeled { index: column + lane as u32, x: of(x), t: of(t) });
                    });
                }
                vector = self.vector_behind(vector);
            }
            let max = warp_max(stats.max);
            let warp_stats = stats.relative_to::<MODE>(max, one).of_group::<MODE>(WARP_SIZE);
            let stats = warp_stats.block_merge::<MODE, true>(one);
            let mut vector = self.first;
            while Self::KEEPS_EXPS && vector < self.end {
                self.exponentiate::<1>(vector, &mut Stats { max: stats.max, ..Stats::NONE });
                vector = self.vector_behind(vector);
            }
            stats
        }
    }

    /// Raises `top` to the largest top of N vectors from `index` on, once they have arrived.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and the vectors are this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn raise_top<const N: usize>(&self, index: u32, top: &mut u32) {
        self.wait_for_batch(index);
        // SAFETY: the caller's conditions.
        *top = E::raise_top(*top, unsafe { self.get::<N>(index) });
    }

    /// Adds the exponentials of N vectors from `index` on, relative to the maximum of `stats`, and
    /// the shares of the target to the statistics. With [`KEEPS_EXPS`](Self::KEEPS_EXPS), the
    /// exponentials replace the vectors in shared memory.
    ///
    /// # Safety
    /// As [`get`](Self::get), and the kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exponentiate<const N: usize>(&self, index: u32, stats: &mut Stats<E::Real>) {
        let mut sums = [E::Real::ZERO; 2];
        let relative = Relative::<_, MODE>::to(stats.center(), E::Real::ONE);
        let is_shifted = Pass::<E, MODE>::HAS_SHIFTED_SHARES;
        // SAFETY: the caller's conditions.
        unsafe {
            let x = self.get::<N>(index);
            if Self::HAS_SHARE_SUMS {
                self.add_shares(index, x, relative, stats);
            }
            let slots = self.vectors.from(index - self.base);
            let add = |k: usize, exps: [E::Real; MAX_LANES]| {
                unrolled!(for lane in 0..E::LANES as usize; {
                    sums[lane % 2] = sums[lane % 2] + exps[lane];
                });
                if Self::KEEPS_EXPS {
                    slots.set(k as u32 * Self::stride(), E::narrow_all(exps));
                }
            };
            let base = if is_shifted {
                relative.base()
            } else {
                Base::Center(stats.center(), E::Real::ONE)
            };
            // Masks would spill if all classes have shares.
            if Self::HAS_SHARE_SUMS { E::exps(x, base, add) } else { E::masked_exps(x, base, add) }
        }
        stats.rest = stats.rest + (sums[0] + sums[1]);
    }

    /// Adds the target's shares of the classes of N vectors from `index` on to the statistics.
    ///
    /// # Safety
    /// As [`exponentiate`](Self::exponentiate).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_shares<const N: usize>(
        &self,
        index: u32,
        x: [Vec16; N],
        relative: Relative<E::Real, MODE>,
        stats: &mut Stats<E::Real>,
    ) {
        let pass = self.pass;
        let mut shares = [stats.dot, stats.weight];
        let mut classes = [Classes::from(0); N];
        unrolled!(for k in 0..N; {
            classes[k] = Classes::from(self.cut.vector(index + k as u32 * Self::stride()).first);
        });
        // SAFETY: the caller's conditions; the row has the classes.
        unsafe {
            let tensors = (x, self.get_targets::<N>(index));
            pass.add_shares::<N, { weights::LOADED }>(&mut shares, relative, tensors, classes);
        }
        [stats.dot, stats.weight] = shares;
    }
}

/// The online softmax of a warp.
struct Online<R> {
    /// The largest logit of the warp.
    max: R,
    /// The sum of this lane's exponentials relative to it.
    rest: R,
    /// How exponentials are computed, and their unit.
    relative: Relative<R, { mode::CLASS }>,
    unit: R,
}

impl<R: Real> Online<R> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new() -> Self {
        let relative = Relative::to(R::ZERO, R::ONE);
        Online { max: R::NEG_INFINITY, rest: R::ZERO, relative, unit: relative.unit() }
    }

    /// Makes the largest of the lanes' logits the maximum, if it is larger. Few batches have one,
    /// so the warp votes first.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn raise(&mut self, logit: R) {
        if any(logit > self.max) {
            let max = warp_max(self.max.max(logit));
            self.rest = self.rest * (self.max - max).exp_below();
            self.max = max;
            self.relative = Relative::to(max, R::ONE);
            self.unit = self.relative.unit();
        }
    }

    /// Adds exponentials.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn add(&mut self, exps: R) {
        self.rest = exps.fma(self.unit, self.rest);
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
    let warps = block_dim_x() / WARP_SIZE;
    if warps == 1 {
        return top;
    }
    let has = lane_id() < warps;
    // SAFETY: the warp wrote it before the barrier.
    of_warp(if has { unsafe { tops_of_warps().get(lane_id()) as u32 } } else { f64::NO_TOP })
}
