//! The reduction of a row to its statistics: the maximum and the sum of exponentials of an online
//! softmax and, where the target has a share for every class, the dot product with the target.
//!
//! Exponentials that are 1, the ties for the maximum, are counted separately from the sum of the
//! rest only where it matters: where the sum is so close to 1 that the rest would be lost to
//! rounding.

use super::Lanes;
use super::tile::{FLIGHT, Tile, WARP_FLIGHT};
use super::vector::{sum, widen};
use crate::cross_entropy::log_prob::{exps_and_dot, scaled};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Classes, Pass, ShareSums, weights};
use crate::cross_entropy::row_group::RowGroup;
use crate::cross_entropy::stats::{Relative, Stats};
use crate::cut::Span;
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::{group_max, warp_max, warp_sums};
use cuda_std::hint::{opaque, opaque_vec16};
use cuda_std::warp::{WARP_SIZE, any};

/// The exponentials of the logits of a tile.
pub(crate) type Exps<R, const N: usize> = [[R; MAX_LANES]; N];

/// The statistics of a row that is one tile, or of a warp's part of it.
pub(crate) struct OfTile<R, const N: usize> {
    pub(crate) stats: Stats<R>,
    /// The exponentials, [relative](Relative) to the statistics' maximum, ...
    pub(crate) exps: Exps<R, N>,
    /// ... and the exponential of the thread's peeled element.
    pub(crate) exp_of_peeled: R,
}

/// The number of a tile's exponentials relative to `center` that are 1, and the sum of the others.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn ties_and_rest<E: Element, const MODE: u32, const N: usize>(
    tile: &Tile<N>,
    center: E::Real,
    scale: E::Real,
) -> [E::Real; 2] {
    let (mut ties, mut rest) = (E::Real::ZERO, E::Real::ZERO);
    unrolled!(for k in 0..N; {
        let x = widen::<E>(tile.x[k]);
        unrolled!(for lane in 0..E::LANES as usize; {
            let exp = scaled::<_, MODE>(x[lane] - center, scale).exp_below();
            let tie = exp == E::Real::ONE;
            ties = ties + if tie { E::Real::ONE } else { E::Real::ZERO };
            rest = rest + if tie { E::Real::ZERO } else { exp };
        });
    });
    [ties, rest]
}

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// The statistics of a row that is one tile, and the exponentials of the tile. They are reduced
    /// over the row group if that is a warp or a part of one, otherwise over the warp, which has a
    /// part of the row. `peeled` is the logit of the thread's peeled element, or −∞, where rows
    /// [have](Self::HAS_PEELED) peeled elements; otherwise it is not used.
    ///
    /// With `KEEPS_EXPS` the caller uses the exponentials in registers afterwards; otherwise it
    /// uses the tile, and exponentials that are needed twice are computed twice.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stats_of_tile<const MODE: u32, const N: usize, const KEEPS_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        tile: &Tile<N>,
        peeled: E::Real,
        group: RowGroup,
    ) -> OfTile<E::Real, N> {
        const { assert!(Self::ONE_TILE) };
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        let scale = pass.scale_of_logits();
        let mut stats = Stats::<E::Real>::NONE;
        let mut exps = [[zero; MAX_LANES]; N];
        stats.max = stats.max.max(E::greatest(tile.x));
        if Self::HAS_PEELED {
            stats.max = stats.max.max(peeled);
        }
        let lanes = if Self::ROW_IN_WARP { group.threads } else { WARP_SIZE };
        stats.max =
            if Self::ROW_IN_WARP { group_max(stats.max, lanes) } else { warp_max(stats.max) };
        // A row with shifted shares that is far from 0 is computed again.
        let is_shifted = Pass::<E, MODE>::HAS_SHIFTED_SHARES;
        let is_far = is_shifted && Relative::<_, MODE>::is_far(stats.center(), scale);
        let mut relative_tile = *tile;
        let relative = if is_shifted {
            Relative::to(stats.center(), scale)
        } else {
            relative_tile.relative_to::<E, MODE>(stats.center(), scale)
        };
        let mut total = zero;
        let mut shares = [zero; 2];
        let mut add = |k: usize, of_vector| {
            exps[k] = of_vector;
            total = total + sum::<E>(of_vector);
        };
        if MODE == mode::LOG_PROB {
            let (x, base, center) = (relative_tile.x, relative.base(), relative.center());
            stats.dot = exps_and_dot::<E, N>(x, base, [center, scale], add) * relative.unit();
        } else {
            E::exps(relative_tile.x, relative.base(), |k, of_vector| {
                add(k, of_vector);
                // Add the shares of a vector beside its exponentials: in a separate loop before,
                // differences from the center would stay in registers until the exponentials need
                // them.
                // SAFETY: the caller's conditions.
                unsafe { self.add_shares(pass, &mut shares, relative, tile, k) };
            });
        }
        if Pass::<E, MODE>::DENSE {
            [stats.dot, stats.weight] = pass.shares_of_sums(shares, relative);
            if is_shifted && any(is_far || !Pass::<E, MODE>::has_sums_of_shares(stats.dot)) {
                // SAFETY: the caller's conditions.
                let exact = unsafe { self.exact_shares(pass, stats.center(), tile) };
                [stats.dot, stats.weight] = exact;
            }
        }
        let mut exp_of_peeled = zero;
        if Self::HAS_PEELED {
            // The same that `relative_to` does to the tile.
            let is_far = Relative::<_, MODE>::is_far(stats.center(), scale);
            let x = if is_far { peeled - stats.center() } else { peeled };
            exp_of_peeled = relative.exp(x);
            total = total + exp_of_peeled;
        }
        stats.rest = total * relative.unit();
        // `ties` is 0 so far: the ties are in `rest`.
        let [rest] = warp_sums([stats.rest + stats.ties], lanes);
        stats = stats.dot_of_group::<MODE>(lanes);
        if any(rest < one + one || is_far) {
            // One logit may exceed all others by so much that their exponentials would be lost in a
            // sum with its 1: add them up separately.
            let tie = relative.tie();
            if KEEPS_EXPS && !Pass::<E, MODE>::DENSE {
                (stats.ties, total) = (zero, zero);
                unrolled!(for k in 0..N; {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let ties = exps[k][lane] == tie;
                        stats.ties = stats.ties + if ties { one } else { zero };
                        total = total + if ties { zero } else { exps[k][lane] };
                    });
                });
                stats.rest = total * relative.unit();
            } else {
                let tile = relative_tile.rematerialize();
                let center = if is_shifted { stats.center() } else { relative.center() };
                [stats.ties, stats.rest] = ties_and_rest::<E, MODE, N>(&tile, center, scale);
            }
            if Self::HAS_PEELED {
                if exp_of_peeled == tie {
                    stats.ties = stats.ties + one;
                } else {
                    stats.rest = exp_of_peeled.fma(relative.unit(), stats.rest);
                }
            }
            OfTile { stats: stats.exps_of_group(lanes), exps, exp_of_peeled }
        } else {
            OfTile { stats: Stats { ties: one, rest: rest - one, ..stats }, exps, exp_of_peeled }
        }
    }

    /// The warp's statistics of the row, or of part `split` of a split row, streamed through
    /// registers. `tile` is the warp's [first](Self::tile_of_warp). The row group reduces all tiles
    /// of the row or, if `SPLIT`, tiles `split`, `split + splits`, … of it. Peeled elements belong
    /// to the first part. Unless `read`, nothing more is loaded.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stats_of_warp<const MODE: u32, const SPLIT: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        mut tile: Tile<FLIGHT>,
        split: u32,
        read: bool,
        group: RowGroup,
    ) -> Stats<E::Real> {
        let step = group.warps() * WARP_FLIGHT * if SPLIT { pass.args.splits.get() } else { 1 };
        let peeled = if read && split == 0 {
            // SAFETY: the caller's conditions.
            unsafe { self.peeled_of_thread(group) }
        } else {
            None
        };
        // SAFETY: as above.
        let mut stats = unsafe { Self::stats_of_peeled(pass, peeled) };
        let mut first = (split * group.warps() + group.warp()) * WARP_FLIGHT;
        loop {
            // SAFETY: the caller's conditions.
            unsafe { self.absorb_tile(pass, &mut stats, &tile) };
            first += step;
            if !read || first >= self.cut.end {
                break;
            }
            // SAFETY: as above.
            tile = unsafe { self.tile_of_lanes(first, WARP_SIZE, true, group) };
        }
        stats.of_group::<MODE>(WARP_SIZE)
    }

    /// The thread's statistics of its register-resident `tile` of a longer row and, if the row
    /// `counts`, of its peeled element.
    ///
    /// # Safety
    /// 1. The kernels' condition 1.
    /// 2. This thread has [staged](Self::stage_peeled) its peeled element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stats_of_registers<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        tile: &Tile<N>,
        counts: bool,
        group: RowGroup,
    ) -> Stats<E::Real> {
        // SAFETY: the caller's condition.
        unsafe {
            let peeled = (counts && self.has_peeled(group)).then(|| self.staged_peeled(group));
            let mut stats = Self::stats_of_peeled(pass, peeled);
            self.absorb_tile(pass, &mut stats, tile);
            stats
        }
    }

    /// The warp's statistics of the row: the thread's `stats`, which cover everything before vector
    /// `from`, merged with those of the tiles from there on. Staged vectors of these tiles are read
    /// from shared memory; `batches` is the number of batches of copies that [`stage`](Self::stage)
    /// has issued.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stats_behind<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        mut stats: Stats<E::Real>,
        from: u32,
        mut batches: u32,
        read: bool,
        group: RowGroup,
    ) -> Stats<E::Real> {
        let mut first = from + group.warp() * WARP_FLIGHT;
        while read && first < self.cut.end {
            batches = batches.saturating_sub(1);
            Self::wait_for_all_but(batches);
            // SAFETY: the caller's conditions; the copies of this tile have been waited for.
            unsafe {
                let tile = self.tile_of_lanes::<FLIGHT>(first, WARP_SIZE, true, group);
                self.absorb_tile(pass, &mut stats, &tile);
            }
            first += group.warps() * WARP_FLIGHT;
        }
        stats.of_group::<MODE>(WARP_SIZE)
    }

    /// Adds a tile to the thread's statistics: one step of the online softmax. All lanes of a warp
    /// have the same maximum. The warp votes whether any lane has a larger logit, and rescales
    /// only then: after the first tiles of a row, few have one.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn absorb_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        stats: &mut Stats<E::Real>,
        tile: &Tile<N>,
    ) {
        let scale = pass.scale_of_logits();
        let greatest = E::greatest(tile.x);
        let has_max = any(greatest >= stats.max);
        if has_max {
            *stats = stats.relative_to::<MODE>(warp_max(stats.max.max(greatest)), scale);
        }
        let center = stats.center();
        let mut shares = [E::Real::ZERO; 2];
        let mut dot = E::Real::ZERO;
        let (mut total, mut exact) = (E::Real::ZERO, Relative::<_, MODE>::is_far(center, scale));
        if !exact {
            let relative = Relative::<_, MODE>::to(center, scale);
            let base = relative.base();
            if MODE == mode::LOG_PROB {
                let add = |_, exps| total = total + sum::<E>(exps);
                dot = exps_and_dot::<E, N>(tile.x, base, [center, scale], add) * relative.unit();
            } else {
                E::exps(tile.x, base, |k, exps| {
                    total = total + sum::<E>(exps);
                    // SAFETY: the caller's condition.
                    unsafe { self.add_shares(pass, &mut shares, relative, tile, k) };
                });
            }
            total = total * relative.unit();
            shares = pass.shares_of_sums(shares, relative);
            // If every lane has at least 2/32, the warp's sum is at least 2, and the largest
            // exponential, 1, is at most half of that.
            exact = has_max && any(total < E::Real::from_f64(2.0 / WARP_SIZE as f64));
        }
        if Pass::<E, MODE>::DENSE {
            let is_far = Relative::<_, MODE>::is_far(center, scale);
            if Pass::<E, MODE>::HAS_SHIFTED_SHARES
                && any(is_far || !Pass::<E, MODE>::has_sums_of_shares(shares[0]))
            {
                // SAFETY: the caller's condition.
                shares = unsafe { self.exact_shares(pass, center, tile) };
            }
            [stats.dot, stats.weight] = [stats.dot + shares[0], stats.weight + shares[1]];
        }
        if exact {
            // One logit may exceed all others by so much that their exponentials would be lost in a
            // sum with its 1: add them up separately.
            let [ties, rest] = ties_and_rest::<E, MODE, N>(&tile.rematerialize(), center, scale);
            (stats.ties, total) = (stats.ties + ties, rest);
            if MODE == mode::LOG_PROB {
                let (x, base) = (tile.rematerialize().x, Base::Center(center, scale));
                dot = exps_and_dot::<E, N>(x, base, [center, scale], |_, _| ());
            }
        }
        stats.rest = stats.rest + total;
        if MODE == mode::LOG_PROB {
            stats.dot = stats.dot + dot;
        }
    }

    /// Adds the target's shares of the classes of vector `k` of a tile to `sums`, where the target
    /// has a share for every class.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_shares<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        sums: &mut ShareSums<E::Real>,
        relative: Relative<E::Real, MODE>,
        tile: &Tile<N>,
        k: usize,
    ) {
        let span = self.span(tile, k);
        if Pass::<E, MODE>::DENSE && span.count > 0 {
            let mut x = tile.x[k];
            if MODE == mode::PROBABILITIES && size_of::<E>() == 2 {
                // Widen the logits a second time: if the widened ones were kept since their
                // exponentials, they would occupy registers that another block needs.
                x = opaque_vec16(x);
            }
            let (tensors, classes) = (([x], [tile.t[k]]), [Classes::from(span.first)]);
            // SAFETY: the caller's condition.
            unsafe { pass.add_shares::<1, { weights::LOADED }>(sums, relative, tensors, classes) };
        }
    }

    /// Σ q (x − center) and Σ q over a tile, as differences from the center.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exact_shares<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        center: E::Real,
        tile: &Tile<N>,
    ) -> [E::Real; 2] {
        let mut shares = [E::Real::ZERO; 2];
        let mut vector = tile.first;
        while vector < self.cut.end && vector < tile.first + N as u32 * tile.stride {
            let Span { first, count } = self.cut.vector(vector);
            let mut column = first;
            while self.cut.has(vector) && column < first + count {
                // SAFETY: the caller's condition.
                unsafe {
                    let x = self.input.load(column).widen();
                    pass.add_share(&mut shares, center, (x, x), column);
                }
                column = opaque(u64::from(column + 1)) as u32;
            }
            vector = opaque(u64::from(vector + tile.stride)) as u32;
        }
        shares
    }
}
