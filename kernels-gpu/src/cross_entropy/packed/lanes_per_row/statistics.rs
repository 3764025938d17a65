//! The statistics of packed rows.

use super::Tiles;
use crate::cross_entropy::lagging::{CERTAIN, Lagging, lags};
use crate::cross_entropy::packed::LIKELY;
use crate::cross_entropy::packed::chunk::Chunk;
use crate::cross_entropy::packed::part::Part;
use crate::cross_entropy::pass::{Pass, ShareSums, weights};
use crate::cross_entropy::stats::{Relative, Stats};
use crate::cross_entropy::{log_prob, mode};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::row::Split;
use cuda_std::math::max_or_nan_f32_bits;
use cuda_std::memory::{Vec16, load};
use cuda_std::warp::{WARP_SIZE, any};

impl<E: Element, const MODE: u32> Tiles<'_, E, MODE> {
    /// Computes the statistics of 32 rows from `first` on, and returns those of the row that this
    /// lane finishes. With `KEEPS_EXPS`, exponentials replace the logits; also returns the factor
    /// that makes them relative to the row's maximum.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn statistics<const KEEPS_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        first: u32,
        near: &mut u32,
        split: Split,
    ) -> (Stats<E::Real>, E::Real) {
        let mut of_own = (Stats::NONE, E::Real::ONE);
        let mut turn = 0;
        while turn < WARP_SIZE && first + turn < self.stage.rows {
            let row = first + turn + split.slot;
            // SAFETY: the caller's conditions.
            let of_row = unsafe { self.statistics_of_turn::<KEEPS_EXPS>(pass, row, near, split) };
            if split.part << split.rows_shift == turn {
                of_own = of_row;
            }
            turn += 1 << split.rows_shift;
        }
        of_own
    }

    /// Computes the statistics of row `row`, in each lane that shares it; returns what
    /// [`statistics`](Self::statistics) returns. `near` is the top of the largest logit of the row
    /// before, and afterwards of this one.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn statistics_of_turn<const KEEPS_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u32,
        near: &mut u32,
        split: Split,
    ) -> (Stats<E::Real>, E::Real) {
        let has_row = row < self.stage.rows;
        // All lanes take part in shuffles. Lanes without a row compute the last row again or, if
        // other lanes overwrite that row, none of its elements.
        let row = row.min(self.stage.rows - 1);
        let x = self.logits_of(row, split);
        let x = if KEEPS_EXPS && !has_row { x.without_elements() } else { x };
        // SAFETY: the caller's conditions.
        let of_row = unsafe {
            if lags::<E::Real>(MODE) {
                self.lagging_statistics_of::<KEEPS_EXPS>(pass, &x, row, *near, split)
            } else {
                (self.statistics_of(pass, &x, row, split), E::Real::ONE)
            }
        };
        if !KEEPS_EXPS || has_row {
            *near = of_row.0.max.to_top();
        }
        of_row
    }

    /// The statistics of a row, in each lane that shares it.
    ///
    /// If the others' exponentials are small beside that of the largest logit, which is 1
    /// ([`LIKELY`]), they are computed again and summed without it: added to 1, they would lose
    /// digits that the loss needs.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn statistics_of(
        &self,
        pass: &Pass<'_, E, MODE>,
        x: &Part<E>,
        row: u32,
        split: Split,
    ) -> Stats<E::Real> {
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        let add = |a: E::Real, b: E::Real| a + b;
        // SAFETY: the caller's conditions.
        let mut stats = unsafe { Self::max_of(x, split) };
        let center = stats.center();
        let scale = pass.scale_of_logits();
        let is_far = Relative::<_, MODE>::is_far(center, scale);
        let relative = Relative::<_, MODE>::to(center, scale);
        let (mut sum, mut dot, mut shares) = (zero, zero, [zero; 2]);
        // SAFETY: as above.
        unsafe {
            x.for_each(Self::PAIRS, |chunk, vector| {
                let add = |_, exps| sum = sum + sum_of::<E>(exps);
                let base = relative.base();
                if MODE == mode::LOG_PROB {
                    dot =
                        dot + log_prob::exps_and_dot::<E, 1>([vector], base, [center, scale], add);
                } else {
                    E::exps([vector], base, add);
                }
                if Self::DENSE {
                    self.add_shares(pass, x, row, (chunk, vector), relative, &mut shares);
                }
            });
        }
        sum = split.over_row(sum, add) * relative.unit();
        (stats.ties, stats.rest) = (one, sum - one);
        if Self::DENSE {
            let weight = if Self::HAS_SUM_OF_WEIGHTS {
                self.sum_of_weights
            } else {
                split.over_row(shares[1], add)
            };
            shares = [split.over_row(shares[0], add), weight];
            [stats.dot, stats.weight] = pass.shares_of_sums(shares, relative);
        }
        let has_shares = Pass::<E, MODE>::has_sums_of_shares(stats.dot);
        if any(sum < E::Real::from_f64(LIKELY) || is_far || !has_shares) {
            // SAFETY: as above.
            unsafe { self.sum_apart::<false>(pass, x, split, &mut stats, &mut dot) };
        }
        if MODE == mode::LOG_PROB {
            stats.dot = split.over_row(dot, add) * relative.unit();
        }
        stats.of_row()
    }

    /// The largest logit of a row.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn max_of(x: &Part<E>, split: Split) -> Stats<E::Real> {
        let mut maxima = E::NO_MAXIMA;
        // SAFETY: the caller's conditions.
        unsafe { x.for_each(Self::PAIRS, |_, vector| maxima = E::raise(maxima, [vector])) };
        Stats { max: split.over_row(E::greatest_of(maxima), E::Real::max), ..Stats::NONE }
    }

    /// Sums the exponentials of the largest logits, which are 1, separately from all others. Writes
    /// the dot of [`log_prob`] to `dot` and, with `KEEPS_EXPS`, the exponentials over the logits.
    ///
    /// # Safety
    /// As [`batch`](Self::batch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn sum_apart<const KEEPS_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        x: &Part<E>,
        split: Split,
        stats: &mut Stats<E::Real>,
        dot: &mut E::Real,
    ) {
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        let add = |a: E::Real, b: E::Real| a + b;
        let (center, scale) = (stats.center(), pass.scale_of_logits());
        let relative = Relative::<_, MODE>::to(center, scale);
        // Adding the shift of such a large logit would lose its digits: these rows subtract the
        // logit first.
        let is_far = Relative::<_, MODE>::is_far(center, scale);
        let far_center = if is_far { center } else { zero };
        let (mut ties, mut rest) = (zero, zero);
        let mut shares = [zero; 2];
        *dot = zero;
        // SAFETY: the caller's conditions.
        unsafe {
            x.for_each(Self::PAIRS, |chunk, vector| {
                let mut exps = [zero; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let logit = E::extract(vector, lane as u32).widen();
                    let is_largest = logit == center;
                    let exp = relative.exp(logit - far_center);
                    exps[lane] = exp;
                    ties = ties + if is_largest { one } else { zero };
                    rest = rest + if is_largest { zero } else { exp };
                    if MODE == mode::LOG_PROB {
                        *dot = exp.fma(log_prob::apart(logit, center, scale), *dot);
                    }
                });
                if KEEPS_EXPS {
                    x.store(chunk, E::narrow_all(exps));
                }
                if Pass::<E, MODE>::HAS_SHIFTED_SHARES {
                    let class = |lane| chunk.column::<E>(lane as u32, x.cols);
                    pass.add_exact_shares(&mut shares, center, (vector, vector), class);
                }
            });
        }
        if Pass::<E, MODE>::HAS_SHIFTED_SHARES {
            stats.dot = split.over_row(shares[0], add);
            stats.weight = split.over_row(shares[1], add);
        }
        stats.ties = split.over_row(ties, add);
        stats.rest = split.over_row(rest, add) * relative.unit();
        if center == E::Real::INFINITY {
            // The loop counted +inf as a largest logit; its difference from the largest is NaN.
            stats.rest = E::Real::NAN;
        }
    }

    /// [`statistics_of`](Self::statistics_of) where the center [lags](lags), in one pass over the
    /// row. The center is the number with the top `near`. A row whose largest logit is too far from
    /// it, or nearly certain, takes two more passes. Also returns the factor that
    /// [`statistics`](Self::statistics) returns with `KEEPS_EXPS`.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); with `KEEPS_EXPS`, no other lane has a part of what `x` has.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn lagging_statistics_of<const KEEPS_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        x: &Part<E>,
        row: u32,
        near: u32,
        split: Split,
    ) -> (Stats<E::Real>, E::Real) {
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        let add = |a: E::Real, b: E::Real| a + b;
        let padded = x.padded_with(Lagging::padding());
        let mut lagging = Lagging::new(near);
        let (mut sums, mut stats) = ([zero; 2], Stats::<E::Real>::NONE);
        let center = lagging.center();
        let relative = Relative::to(center, one);
        // SAFETY: the caller's conditions.
        unsafe {
            padded.for_each(Self::PAIRS, |chunk, vector| {
                let add = |_, exps: [E::Real; MAX_LANES]| {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        sums[lane % 2] = sums[lane % 2] + exps[lane];
                    });
                    if KEEPS_EXPS {
                        x.store(chunk, E::narrow_all(exps));
                    }
                };
                lagging.add::<E, 1>([vector]);
                E::exps_near([vector], lagging.near(), add);
                if Self::DENSE {
                    let mut shares = [stats.dot, stats.weight];
                    self.add_shares(pass, x, row, (chunk, vector), relative, &mut shares);
                    [stats.dot, stats.weight] = shares;
                }
            });
        }
        let lagging = lagging.over(|top| split.over_row(top, max_or_nan_f32_bits));
        let is_valid = lagging.is_valid();
        let mut unit = lagging.unit();
        let others = split.over_row(sums[0] + sums[1], add).fma(unit, -one);
        if Self::DENSE {
            stats.dot = split.over_row(stats.dot, add);
            stats.weight = split.over_row(stats.weight, add);
            stats.dot = stats.weight.fma(center - lagging.max(), stats.dot);
        }
        stats = Stats { max: lagging.max(), ties: one, rest: others, ..stats };
        // The comparison is also false if the sum is NaN.
        let is_exact = is_valid && others >= E::Real::from_f64(CERTAIN);
        if any(!is_exact && !x.is_empty()) {
            // SAFETY: as above.
            unsafe {
                if KEEPS_EXPS {
                    self.restore(x, row);
                }
                stats = self.exact_statistics_of::<KEEPS_EXPS>(pass, x, row, split);
            }
            unit = one;
        }
        (stats, unit)
    }

    /// Writes the logits of row `row` over the exponentials in the lane's part `x`.
    ///
    /// # Safety
    /// As [`lagging_statistics_of`](Self::lagging_statistics_of), and as condition 1 of the
    /// kernels.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn restore(&self, x: &Part<E>, row: u32) {
        let from = self.logits.address(row) as *const E;
        // SAFETY: the caller's conditions.
        unsafe {
            x.for_each_singly(|chunk, _| {
                let mut logits = [E::LOWEST; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    if let Some(column) = chunk.column::<E>(lane as u32, x.cols) {
                        logits[lane] = load(from.wrapping_add(column as usize));
                    }
                });
                x.store(chunk, E::pack(logits));
            });
        }
    }

    /// [`statistics_of`](Self::statistics_of) with the exponentials of the largest logits summed
    /// separately. With `KEEPS_EXPS`, exponentials replace the logits.
    ///
    /// # Safety
    /// As [`lagging_statistics_of`](Self::lagging_statistics_of).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exact_statistics_of<const KEEPS_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        x: &Part<E>,
        row: u32,
        split: Split,
    ) -> Stats<E::Real> {
        let add = |a: E::Real, b: E::Real| a + b;
        // SAFETY: the caller's conditions.
        unsafe {
            let mut stats = Self::max_of(x, split);
            if Self::DENSE {
                let relative = Relative::to(stats.center(), E::Real::ONE);
                let mut shares = [E::Real::ZERO; 2];
                x.for_each(Self::PAIRS, |chunk, vector| {
                    self.add_shares(pass, x, row, (chunk, vector), relative, &mut shares);
                });
                stats.dot = split.over_row(shares[0], add);
                stats.weight = split.over_row(shares[1], add);
            }
            let mut dot = E::Real::ZERO;
            self.sum_apart::<KEEPS_EXPS>(pass, x, split, &mut stats, &mut dot);
            stats.of_row()
        }
    }

    /// Adds the shares of a chunk of a row to `sums`.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); `x` is the lane's part of row `row`, and has the chunk.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_shares(
        &self,
        pass: &Pass<'_, E, MODE>,
        x: &Part<E>,
        row: u32,
        (chunk, vector): (Chunk, Vec16),
        relative: Relative<E::Real, MODE>,
        sums: &mut ShareSums<E::Real>,
    ) {
        // SAFETY: the caller's conditions.
        unsafe {
            let t = self.targets_of(x, row, chunk);
            if let Some(classes) = Self::classes_of_vector(pass, chunk) {
                let tensors = ([vector], [t]);
                if Self::WEIGHTED_VECTORS {
                    pass.add_shares::<1, { weights::LOADED }>(sums, relative, tensors, [classes]);
                } else {
                    pass.add_shares::<1, { weights::NONE }>(sums, relative, tensors, [classes]);
                }
            } else {
                let class = |lane| chunk.column::<E>(lane as u32, x.cols);
                pass.add_shares_by_class(sums, relative, (vector, t), class);
            }
        }
    }
}

/// The sum of a vector's values, added in pairs to shorten the chain of dependent additions.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn sum_of<E: Element>(values: [E::Real; MAX_LANES]) -> E::Real {
    let mut sum = values[0] + values[1];
    unrolled!(for pair in 1..MAX_LANES / 2; {
        if (pair as u32) < E::LANES / 2 {
            sum = sum + (values[2 * pair] + values[2 * pair + 1]);
        }
    });
    sum
}
