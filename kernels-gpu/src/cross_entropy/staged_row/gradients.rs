//! The gradients of staged rows.

use super::{Peeled, StagedRow};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::pass::{Classes, Factors, LateFactors, weights};
use crate::cross_entropy::stats::Relative;
use crate::cut::Row;
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use cuda_std::thread::thread_idx_x;

/// How the exponentials of a row's logits are computed, and the factor that makes them gradients.
#[derive(Clone, Copy)]
struct Exponentials<R> {
    base: Base<R>,
    factor: R,
}

impl<E: Element, const MODE: u32, const FLIGHT: usize> StagedRow<'_, E, MODE, FLIGHT> {
    /// Writes the gradients of the part, `at_class` for the row's class. The gradient of any other
    /// logit is `by_exp` times its exponential, if exponentials are stored in shared memory;
    /// otherwise it is as [`Factors`] says. Starts to copy the same part of the `next` row, batch
    /// by batch, into the shared memory that has just been read. Returns this thread's sum of the
    /// target's shares relative to the largest logit, if shares are late.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3. Unless the row is ignored, its part is
    /// [staged](Self::statistics).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn store_gradients(
        &self,
        row: u64,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        by_exp: E::Real,
        at_class: E::Real,
        next: Option<&Self>,
    ) -> E::Real {
        let mut dot = E::Real::ZERO;
        let to = Row::<E>::new(self.pass.args.grad_input, row, self.row.start());
        // SAFETY: the caller's conditions.
        unsafe {
            // Late shares are differences from the center, as are their exponentials.
            let is_far =
                !Self::HAS_LATE_SHARES && Relative::<_, MODE>::is_far(factors.center, E::Real::ONE);
            if factors.counts && is_far {
                each_batch!(self.subtract(factors.center));
            }
            if Self::HAS_LATE_SHARES {
                self.store_smoothed(to, factors, &mut dot, next);
            } else {
                let exponentials = Self::exponentials(factors.center, by_exp);
                each_batch!(self.store_vectors(to, factors, exponentials, next));
            }
            if let Some(next) = next {
                next.copy_beside(self);
            }
            if let Some(Peeled { index, x, t }) = self.peeled() {
                let mut gradient = (x - factors.center).exp_below() * factors.factor;
                if Self::DENSE {
                    gradient = gradient - self.pass.gradient_of_share(factors, index, t);
                }
                if Self::HAS_LATE_SHARES && factors.counts {
                    let mut shares = [dot, E::Real::ZERO];
                    self.pass.add_share(&mut shares, factors.center, (x, t), index);
                    [dot, _] = shares;
                }
                let gradient = if factors.counts { gradient } else { E::Real::ZERO };
                to.store(index, E::narrow(gradient));
            }
            if label.counts && label.has_class(self.pass.args.cols) && self.has(label.class) {
                to.store(label.class, E::narrow(at_class));
            }
        }
        dot
    }

    /// Writes the gradients of the part's vectors where the target's shares are
    /// [late](crate::cross_entropy::mode::has_late_shares), and adds the sum of these shares,
    /// relative to the largest logit, to `dot`.
    ///
    /// # Safety
    /// As [`store_gradients`](Self::store_gradients).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_smoothed(
        &self,
        to: Row<E>,
        factors: &Factors<E::Real>,
        dot: &mut E::Real,
        next: Option<&Self>,
    ) {
        let smoothed = self.pass.late_factors(factors);
        let mut index = self.first;
        while self.has_batch(index) {
            // SAFETY: the caller's conditions; the vectors are this thread's.
            unsafe {
                if factors.counts && self.has_whole_batch(index) {
                    self.store_smoothed_vectors::<FLIGHT>(to, index, smoothed, dot);
                } else {
                    self.store_edge(to, factors, index, smoothed, dot);
                }
                if let Some(next) = next {
                    next.copy_over::<FLIGHT>(index);
                }
            }
            index += self.step;
        }
    }

    /// [`store_smoothed`](Self::store_smoothed) of the batch from `index` on, of which the part may
    /// have only some vectors, or of a row that is ignored: vector by vector.
    ///
    /// # Safety
    /// As [`store_vectors`](Self::store_vectors).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_edge(
        &self,
        to: Row<E>,
        factors: &Factors<E::Real>,
        index: u32,
        smoothed: LateFactors<E::Real>,
        dot: &mut E::Real,
    ) {
        let mut vector = index;
        while vector < (index + FLIGHT as u32 * Self::stride()).min(self.end) {
            // SAFETY: the caller's conditions.
            unsafe {
                if !factors.counts {
                    let zeros = [E::pack([E::narrow(E::Real::ZERO); MAX_LANES])];
                    to.store_vectors(
                        self.cut.vector(vector),
                        zeros,
                        |_| 0,
                        |_| vector >= self.begin,
                    );
                } else if vector >= self.begin {
                    self.store_smoothed_vectors::<1>(to, vector, smoothed, dot);
                }
            }
            vector += Self::stride();
        }
    }

    /// [`store_smoothed`](Self::store_smoothed) of N vectors from `index` on, all of which the part
    /// has.
    ///
    /// # Safety
    /// As [`store_vectors`](Self::store_vectors).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_smoothed_vectors<const N: usize>(
        &self,
        to: Row<E>,
        index: u32,
        smoothed: LateFactors<E::Real>,
        dot: &mut E::Real,
    ) {
        let behind = |k: usize| k as u32 * Self::stride();
        let mut classes = [Classes::from(0); N];
        unrolled!(for k in 0..N; {
            classes[k] = Classes::from(self.cut.vector(index + behind(k)).first);
        });
        // SAFETY: the caller's conditions; the row has the classes.
        unsafe {
            let x = self.get::<N>(index);
            let gradients =
                self.pass.smoothed_gradients::<N, { weights::LOADED }>(x, smoothed, dot, classes);
            to.store_vectors(self.cut.vector(index), gradients, behind, |_| true);
        }
    }

    /// How the exponentials of logits relative to `center` are computed. A [far](Relative::is_far)
    /// center has already been [subtracted](Self::subtract).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn exponentials(center: E::Real, by_exp: E::Real) -> Exponentials<E::Real> {
        if Self::KEEPS_EXPS {
            return Exponentials { base: Base::Center(center, E::Real::ONE), factor: by_exp };
        }
        let relative = Relative::<_, MODE>::to(center, E::Real::ONE);
        Exponentials { base: relative.base(), factor: by_exp * relative.unit() }
    }

    /// Subtracts a [far](Relative::is_far) center from N vectors of logits from `index` on, in
    /// shared memory. Rounding the difference to the elements' type does not matter: logits that
    /// are so far from 0 are equal, or so far apart that the smaller one's exponential is 0.
    ///
    /// # Safety
    /// As [`store_vectors`](Self::store_vectors).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn subtract<const N: usize>(&self, index: u32, center: E::Real) {
        // SAFETY: the caller's conditions.
        let (x, slots) = unsafe { (self.get::<N>(index), self.vectors.from(index - self.base)) };
        unrolled!(for k in 0..N; {
            let mut values = [E::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; {
                values[lane] = E::extract(x[k], lane as u32).widen() - center;
            });
            // SAFETY: the caller's conditions.
            unsafe { slots.set(k as u32 * Self::stride(), E::narrow_all(values)) };
        });
    }

    /// Writes the gradients of those of N vectors from `index` on that belong to the part, and
    /// starts to copy the same vectors of the `next` row.
    ///
    /// # Safety
    /// As [`store_gradients`](Self::store_gradients), and the vectors are this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_vectors<const N: usize>(
        &self,
        index: u32,
        to: Row<E>,
        factors: &Factors<E::Real>,
        exponentials: Exponentials<E::Real>,
        next: Option<&Self>,
    ) {
        let mut gradients = [E::pack([E::narrow(E::Real::ZERO); MAX_LANES]); N];
        let behind = |k: usize| k as u32 * Self::stride();
        // SAFETY: the caller's conditions.
        unsafe {
            // The gradient of a row that is ignored is 0, whatever its logits.
            if factors.counts {
                let mut values = self.gradients_of_exps::<N>(index, exponentials);
                unrolled!(for k in 0..N; {
                    if Self::DENSE {
                        self.subtract_shares(index + behind(k), &mut values[k], factors);
                    }
                    gradients[k] = E::narrow_all(values[k]);
                });
            }
            let has = |k| self.has_vector(index + behind(k));
            to.store_vectors(self.cut.vector(index), gradients, behind, has);
            if let Some(next) = next {
                next.copy_over::<N>(index);
            }
        }
    }

    /// The gradients of N vectors of logits from `index` on, without the terms of the target's
    /// shares.
    ///
    /// # Safety
    /// As [`store_vectors`](Self::store_vectors).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn gradients_of_exps<const N: usize>(
        &self,
        index: u32,
        Exponentials { base, factor }: Exponentials<E::Real>,
    ) -> [[E::Real; MAX_LANES]; N] {
        let mut values = [[E::Real::ZERO; MAX_LANES]; N];
        // SAFETY: the caller's conditions.
        let staged = unsafe { self.get::<N>(index) };
        if Self::KEEPS_EXPS {
            unrolled!(for k in 0..N; {
                unrolled!(for lane in 0..E::LANES as usize; {
                    values[k][lane] = E::extract(staged[k], lane as u32).widen();
                });
            });
        } else {
            E::masked_exps(staged, base, |k, exps| {
                values[k] = exps;
            });
        }
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..E::LANES as usize; {
                values[k][lane] = values[k][lane] * factor;
            });
        });
        values
    }

    /// Subtracts the terms of the target's shares from the gradients of a vector.
    ///
    /// # Safety
    /// As [`store_vectors`](Self::store_vectors).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn subtract_shares(
        &self,
        index: u32,
        values: &mut [E::Real; MAX_LANES],
        factors: &Factors<E::Real>,
    ) {
        let first = self.cut.vector(index).first;
        // SAFETY: the caller's conditions.
        unsafe {
            let [targets] = self.get_targets::<1>(index);
            let t = |lane: usize| E::extract(targets, lane as u32).widen();
            if Self::HAS_SHARE_VECTORS {
                let (pass, classes) = (self.pass, Classes::from(first));
                pass.subtract_shares::<{ weights::LOADED }>(values, factors, t, classes);
                return;
            }
            unrolled!(for lane in 0..E::LANES as usize; {
                let part = self.pass.gradient_of_share(factors, first + lane as u32, t(lane));
                values[lane] = values[lane] - part;
            });
        }
    }

    /// Whether this thread writes the gradient of an element of the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has(&self, element: u32) -> bool {
        let vector = self.cut.vector_of(element);
        if self.cut.has(vector) {
            return self.is_of_thread(vector);
        }
        let number = thread_idx_x();
        self.base == 0
            && number < self.cut.peeled_count()
            && self.cut.peeled_index(number) == element
    }
}
