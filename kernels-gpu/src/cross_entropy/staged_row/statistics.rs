//! The statistics of staged rows.

use super::{Peeled, StagedRow};
use crate::cross_entropy::lagging::{CERTAIN, is_near_top};
use crate::cross_entropy::pass::{Classes, weights};
use crate::cross_entropy::stats::Stats;
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::{block_sums, warp_max};
use cuda_std::memory::wait_for_copies;
use cuda_std::thread::{block_dim_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

cuda_std::shared_array! {
    /// The largest [top](Real::to_top) of each warp's logits.
    fn tops_of_warps() -> [u64; 32];
}

impl<E: Element, const MODE: u32, const FLIGHT: usize> StagedRow<'_, E, MODE, FLIGHT> {
    /// The statistics of the part, in all threads. With [`KEEPS_EXPS`](Self::KEEPS_EXPS), leaves
    /// exponentials relative to `max` in place of the logits. Has a barrier behind the caller's
    /// writes to shared memory.
    ///
    /// # Safety
    /// [`copy`](Self::copy)'s conditions, and it was called.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn statistics(&self) -> Stats<E::Real> {
        // SAFETY: the caller's conditions.
        unsafe {
            let peeled = self.peeled();
            wait_for_copies::<0>();
            let mut top = peeled.map_or(E::Real::NO_TOP, |Peeled { x, .. }| x.to_top());
            each_batch!(self.raise_top(&mut top));
            let max = E::Real::from_top(block_top(top));
            if is_near_top(max) {
                let mut stats = Stats { max, ..Stats::NONE };
                if let Some(Peeled { index, x, t }) = peeled {
                    stats.rest = (x - max).exp_below();
                    if Self::DENSE {
                        self.pass.absorb_share(&mut stats, index, x, t);
                    }
                }
                each_batch!(self.exponentiate(&mut stats));
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
    unsafe fn exact_statistics(&self, peeled: Option<Peeled<E::Real>>) -> Stats<E::Real> {
        let one = E::Real::ONE;
        let mut stats = Stats::<E::Real>::NONE;
        // SAFETY: the caller's conditions.
        unsafe {
            let mut add = |Peeled { index, x, t }: Peeled<E::Real>| {
                stats = stats.relative_to::<MODE>(x, one);
                stats.absorb::<MODE>(x, one);
                if Self::DENSE {
                    self.pass.absorb_share(&mut stats, index, x, t);
                }
            };
            if let Some(peeled) = peeled {
                add(peeled);
            }
            let mut index = self.first;
            while index < self.end {
                let ([x], [t]) = (self.get::<1>(index), self.get_targets::<1>(index));
                let column = self.cut.vector(index).first;
                unrolled!(for lane in 0..E::LANES as usize; {
                    let of = |vector| E::extract(vector, lane as u32).widen();
                    add(Peeled { index: column + lane as u32, x: of(x), t: of(t) });
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

    /// Raises `top` to the largest top of N vectors from `index` on.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn raise_top<const N: usize>(&self, index: u32, top: &mut u32) {
        // SAFETY: the caller's conditions.
        *top = E::raise_top(*top, unsafe { self.get::<N>(index) });
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
                let t = self.get_targets::<N>(index);
                let (pass, tensors) = (self.pass, (x, t));
                if Self::STAGES_WEIGHTS {
                    pass.add_shares::<N, { weights::STAGED }>(
                        &mut shares,
                        center,
                        tensors,
                        classes,
                    );
                } else {
                    pass.add_shares::<N, { weights::LOADED }>(
                        &mut shares,
                        center,
                        tensors,
                        classes,
                    );
                }
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
