//! The target's shares of the classes of a vector, where the target has a share for every class:
//! their sums in the statistics of a row, and their terms in its gradients.

use super::{Factors, Pass};
use crate::cross_entropy::mode;
use crate::cross_entropy::stats::{Relative, Stats};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use cuda_std::memory::{Vec16, load, load_vector};

/// The sums of shares: Σ q (x − center) and Σ q.
pub(in crate::cross_entropy) type ShareSums<R> = [R; 2];

/// What [`Pass::smoothed_gradients`] needs to know of a row. Products with the unit, a power of
/// two, are exact unless they are subnormal.
#[derive(Clone, Copy)]
pub(in crate::cross_entropy) struct LateFactors<R> {
    /// The [unit](Pass::unit) of class weights, and minus the largest logit in this unit.
    unit: R,
    center: R,
    /// What a difference of logits in the unit is multiplied by for the argument of `ex2`.
    exponent: R,
    /// The factors of the exponential and of the class's weight in a gradient.
    by_exp: R,
    by_weight: R,
}

/// The classes of a whole vector: `first`, and every `step`th after it.
#[derive(Clone, Copy)]
pub(in crate::cross_entropy) struct Classes {
    pub(in crate::cross_entropy) first: u32,
    pub(in crate::cross_entropy) step: u32,
}

impl Classes {
    /// Adjacent classes from `first` on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn from(first: u32) -> Self {
        Classes { first, step: 1 }
    }
}

/// Where a kernel finds the class weights of whole vectors, if the call has class weights.
pub(in crate::cross_entropy) mod weights {
    /// The call has none.
    pub(in crate::cross_entropy) const NONE: u32 = 0;
    /// In global memory.
    pub(in crate::cross_entropy) const LOADED: u32 = 1;
}

/// Runs `$body`, where `$weight_of(k, lane)` is the weight of element `lane` of vector k of
/// `$count` whole vectors of `$classes`. The branches are around the whole body: a branch between
/// vectors would delay the loads of one until the arithmetic of the one before, and LLVM keeps a
/// vector that is written in branches in local memory.
macro_rules! with_weights {
    ($pass:expr, $classes:expr, $count:expr, $weight_of:ident; $body:block) => {
        if WEIGHTS == weights::NONE || MODE != mode::WEIGHTED && $pass.weights() == 0 {
            let $weight_of = |_, _| E::Real::ONE;
            $body
        } else if WEIGHTS == weights::LOADED && $pass.has_vectors_of_weights($classes[0]) {
            let mut weights = [Vec16::default(); $count];
            unrolled!(for k in 0..$count; {
                // SAFETY: the caller's conditions; the weights are vectors.
                weights[k] = unsafe { load_vector($pass.weight_at($classes[k]) as *const Vec16) };
            });
            let $weight_of =
                |k: usize, lane: usize| E::extract(weights[k], lane as u32).widen();
            $body
        } else {
            // A 16-bit element that is loaded alone is widened in fewer instructions than an
            // element of a vector, which has to be shifted first.
            let $weight_of = |k: usize, lane: usize| {
                let first = $pass.weight_at($classes[k]) as *const E;
                // SAFETY: as above.
                unsafe { load(first.wrapping_add(lane * $classes[k].step as usize)) }.widen()
            };
            $body
        }
    };
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Whether all classes have the same share: label smoothing without class weights.
    const HAS_EQUAL_SHARES: bool = MODE == mode::SMOOTHED;

    /// The address of the weight of the first of these classes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn weight_at(&self, classes: Classes) -> u64 {
        self.args.weight + u64::from(classes.first) * size_of::<E>() as u64
    }

    /// Whether the weights of these classes are a vector on a 16-byte boundary. In f64, whose
    /// vectors have two elements, they are loaded one by one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_vectors_of_weights(&self, classes: Classes) -> bool {
        let is_on_boundary = self.weight_at(classes).is_multiple_of(16);
        size_of::<E>() < 8 && classes.step == 1 && is_on_boundary
    }

    /// Adds the shares of N whole vectors of logits `x`, of these `classes`, to `sums`. `t` has the
    /// probabilities, where these are the target.
    ///
    /// # Safety
    /// The kernels' condition 1; the row has these classes. The first classes of the vectors differ
    /// by whole vectors, so that the weights of all are on 16-byte boundaries if those of one are.
    /// If there are no class weights, `classes` is not used.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn add_shares<const N: usize, const WEIGHTS: u32>(
        &self,
        sums: &mut ShareSums<E::Real>,
        relative: Relative<E::Real, MODE>,
        (x, t): ([Vec16; N], [Vec16; N]),
        classes: [Classes; N],
    ) {
        let of = |vector, lane: usize| E::extract(vector, lane as u32).widen();
        // Two accumulators for each sum halve the chains of dependent additions. A vector of f64
        // has two elements, so there is nothing to halve.
        let accumulators = if size_of::<E::Real>() == 8 { 1 } else { 2 };
        let (mut dots, mut sum) = ([sums[0], E::Real::ZERO], [sums[1], E::Real::ZERO]);
        if Self::HAS_EQUAL_SHARES {
            unrolled!(for k in 0..N; {
                unrolled!(for lane in 0..E::LANES as usize; {
                    let (at, apart) = (lane % accumulators, relative.apart(of(x[k], lane)));
                    dots[at] = if Self::HAS_SHIFTED_SHARES {
                        dots[at] + apart
                    } else {
                        // Multiply each difference by the share, and not their sum, which may
                        // overflow.
                        self.unit().fma(apart, dots[at])
                    };
                });
            });
            let elements = N as i32 * E::LANES as i32;
            sum[0] = self.share_in_sums().fma(E::Real::from_i32(elements), sum[0]);
        } else {
            with_weights!(self, classes, N, weight_of; {
                unrolled!(for k in 0..N; {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let weight = weight_of(k, lane);
                        let share = if Self::HAS_SHIFTED_SHARES {
                            weight
                        } else {
                            self.share_by_weight(weight, of(t[k], lane))
                        };
                        let at = lane % accumulators;
                        dots[at] = share.fma(relative.apart(of(x[k], lane)), dots[at]);
                        sum[at] = sum[at] + share;
                    });
                });
            });
        }
        *sums = [dots[0], sum[0]];
        if accumulators == 2 {
            *sums = [dots[0] + dots[1], sum[0] + sum[1]];
        }
    }

    /// [`add_shares`](Self::add_shares) of the vector's elements that have a `class`.
    ///
    /// # Safety
    /// The kernels' condition 1; the row has these classes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn add_shares_by_class(
        &self,
        [dot, weight]: &mut ShareSums<E::Real>,
        relative: Relative<E::Real, MODE>,
        (x, t): (Vec16, Vec16),
        class: impl Fn(usize) -> Option<u32>,
    ) {
        unrolled!(for lane in 0..E::LANES as usize; {
            if let Some(class) = class(lane) {
                let of = |vector| E::extract(vector, lane as u32).widen();
                // SAFETY: the caller's conditions.
                let share = unsafe {
                    if Self::HAS_SHIFTED_SHARES {
                        self.weight_of(class)
                    } else {
                        self.share_of(class, of(t))
                    }
                };
                *dot = share.fma(relative.apart(of(x)), *dot);
                *weight = *weight + share;
            }
        });
    }

    /// Whether the [sums](ShareSums) are in other units than shares and logits: of class weights,
    /// or of one share each, and of the arguments of `ex2`.
    pub(in crate::cross_entropy) const HAS_SHIFTED_SHARES: bool =
        mode::has_shifted_shares::<E::Real>(MODE);

    /// Whether the sums of shares are right, given Σ q (x − center). Sums of shifted shares
    /// overflow where the differences times the shares would not, and are not finite if a logit is
    /// not.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn has_sums_of_shares(dot: E::Real) -> bool {
        !Self::HAS_SHIFTED_SHARES || dot.magnitude() < E::Real::INFINITY
    }

    /// One share of a call without class weights, in the unit of the sums.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn share_in_sums(&self) -> E::Real {
        if Self::HAS_SHIFTED_SHARES { E::Real::ONE } else { self.unit() }
    }

    /// Σ q (x − center) and Σ q, from the sums that [`add_shares`](Self::add_shares) has added up
    /// from zeros.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn shares_of_sums(
        &self,
        [dot, weight]: ShareSums<E::Real>,
        relative: Relative<E::Real, MODE>,
    ) -> [E::Real; 2] {
        if Self::HAS_SHIFTED_SHARES {
            let unit = self.unit();
            [relative.dot(dot, weight) * unit, weight * unit]
        } else {
            [dot, weight]
        }
    }

    /// Adds the shares of the vector's elements that have a `class`, as differences from `center`,
    /// to Σ q (x − center) and Σ q.
    ///
    /// # Safety
    /// As [`add_shares_by_class`](Self::add_shares_by_class).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn add_exact_shares(
        &self,
        sums: &mut [E::Real; 2],
        center: E::Real,
        (x, t): (Vec16, Vec16),
        class: impl Fn(usize) -> Option<u32>,
    ) {
        unrolled!(for lane in 0..E::LANES as usize; {
            if let Some(class) = class(lane) {
                let of = |vector| E::extract(vector, lane as u32).widen();
                // SAFETY: the caller's conditions.
                unsafe { self.add_share(sums, center, (of(x), of(t)), class) };
            }
        });
    }

    /// Adds the share of one class, whose logit is `x`, to `sums`.
    ///
    /// # Safety
    /// The kernels' condition 1; `class` is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn add_share(
        &self,
        [dot, weight]: &mut ShareSums<E::Real>,
        center: E::Real,
        (x, t): (E::Real, E::Real),
        class: u32,
    ) {
        // SAFETY: the caller's conditions.
        let share = unsafe { self.share_of(class, t) };
        *dot = share.fma(x - center, *dot);
        *weight = *weight + share;
    }

    /// [`add_share`](Self::add_share) to statistics.
    ///
    /// # Safety
    /// As [`add_share`](Self::add_share).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn absorb_share(
        &self,
        stats: &mut Stats<E::Real>,
        class: u32,
        x: E::Real,
        t: E::Real,
    ) {
        let mut sums = [stats.dot, stats.weight];
        // SAFETY: the caller's conditions.
        unsafe { self.add_share(&mut sums, stats.center(), (x, t), class) };
        [stats.dot, stats.weight] = sums;
    }

    /// Subtracts the terms of the target's shares from the gradients of a whole vector of logits.
    /// `t` returns an element of the `t` of [`add_shares`](Self::add_shares). It is a function,
    /// because LLVM keeps a vector that is passed on here in local memory.
    ///
    /// # Safety
    /// As [`add_shares`](Self::add_shares).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn subtract_shares<const WEIGHTS: u32>(
        &self,
        gradients: &mut [E::Real; MAX_LANES],
        factors: &Factors<E::Real>,
        t: impl Fn(usize) -> E::Real,
        classes: Classes,
    ) {
        if !factors.counts {
            return;
        }
        if MODE == mode::PROBABILITIES {
            with_weights!(self, [classes], 1, weight_of; {
                unrolled!(for lane in 0..E::LANES as usize; {
                    let share = self.share_by_weight(weight_of(0, lane), t(lane));
                    gradients[lane] = (-factors.by_share).fma(share, gradients[lane]);
                });
            });
            return;
        }
        // The unit is a power of two, so this product is exact unless it is subnormal.
        let by_weight = -(factors.by_share * self.unit());
        with_weights!(self, [classes], 1, weight_of; {
            unrolled!(for lane in 0..E::LANES as usize; {
                gradients[lane] = by_weight.fma(weight_of(0, lane), gradients[lane]);
            });
        });
    }

    /// [`subtract_shares`](Self::subtract_shares) of the vector's elements that have a `class`.
    ///
    /// # Safety
    /// The kernels' condition 1; the row has these classes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn subtract_shares_by_class(
        &self,
        gradients: &mut [E::Real; MAX_LANES],
        factors: &Factors<E::Real>,
        t: impl Fn(usize) -> E::Real,
        class: impl Fn(usize) -> Option<u32>,
    ) {
        unrolled!(for lane in 0..E::LANES as usize; {
            if let Some(class) = class(lane) {
                // SAFETY: the caller's conditions.
                let part = unsafe { self.gradient_of_share(factors, class, t(lane)) };
                gradients[lane] = gradients[lane] - part;
            }
        });
    }

    /// What a class's share of the target subtracts from the gradient of its logit.
    ///
    /// # Safety
    /// The kernels' condition 1; `class` is less than `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn gradient_of_share(
        &self,
        factors: &Factors<E::Real>,
        class: u32,
        t: E::Real,
    ) -> E::Real {
        // SAFETY: the caller's conditions.
        let share = unsafe { self.share_of(class, t) };
        // The gradients of an ignored row are 0. Its `by_share` is 0 too, but that times an
        // infinite or NaN class weight would be NaN.
        if factors.counts { factors.by_share * share } else { E::Real::ZERO }
    }

    /// Computes the gradients of N whole vectors of logits `x` with label smoothing, of these
    /// `classes`, and adds the sum of their shares relative to the center, Σ q (x − center), to
    /// `dot`.
    ///
    /// # Safety
    /// As [`add_shares`](Self::add_shares).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn smoothed_gradients<
        const N: usize,
        const WEIGHTS: u32,
    >(
        &self,
        x: [Vec16; N],
        smoothed: LateFactors<E::Real>,
        dot: &mut E::Real,
        classes: [Classes; N],
    ) -> [Vec16; N] {
        let LateFactors { unit, center, exponent, by_exp, by_weight } = smoothed;
        let mut gradients = [Vec16::default(); N];
        let mut dots = [*dot, E::Real::ZERO];
        with_weights!(self, classes, N, weight_of; {
            unrolled!(for k in 0..N; {
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let apart = E::extract(x[k], lane as u32).widen().fma(unit, center);
                    let weight = weight_of(k, lane);
                    dots[lane % 2] = weight.fma(apart, dots[lane % 2]);
                    let exp = apart.exp_shifted(exponent, E::Real::ZERO);
                    values[lane] = by_weight.fma(weight, exp * by_exp);
                });
                gradients[k] = E::narrow_all(values);
            });
        });
        *dot = dots[0] + dots[1];
        gradients
    }

    /// The factors of [`smoothed_gradients`](Self::smoothed_gradients).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn late_factors(
        &self,
        factors: &Factors<E::Real>,
    ) -> LateFactors<E::Real> {
        let unit = self.unit();
        LateFactors {
            unit,
            center: -(factors.center * unit),
            exponent: E::Real::factor_of(self.units()),
            by_exp: factors.factor,
            by_weight: -(factors.by_share * unit),
        }
    }

    /// Computes the gradients of the probabilities of a whole vector. `x` returns its logits.
    ///
    /// # Safety
    /// As [`add_shares`](Self::add_shares).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn set_gradients_of_targets<const WEIGHTS: u32>(
        &self,
        gradients: &mut [E::Real; MAX_LANES],
        factors: &Factors<E::Real>,
        x: impl Fn(usize) -> E::Real,
        classes: Classes,
    ) {
        with_weights!(self, [classes], 1, weight_of; {
            unrolled!(for lane in 0..E::LANES as usize; {
                gradients[lane] = by_target(factors, weight_of(0, lane), x(lane));
            });
        });
    }

    /// The gradient of the target's probability of a class, whose logit is `x`.
    ///
    /// # Safety
    /// As [`gradient_of_share`](Self::gradient_of_share).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn gradient_of_target(
        &self,
        factors: &Factors<E::Real>,
        class: u32,
        x: E::Real,
    ) -> E::Real {
        // SAFETY: the caller's conditions.
        let weight = unsafe { self.weight_of(class) };
        by_target(factors, weight, x)
    }
}

/// The gradient of the probability of a class with this `weight`, whose logit is `x`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn by_target<R: Real>(factors: &Factors<R>, weight: R, x: R) -> R {
    weight * factors.by_target * (factors.log_sum - (x - factors.center))
}
