//! The gradients of staged rows.

use super::{Peeled, StagedRow};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::pass::{Classes, Factors, weights};
use crate::cut::Row;
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use cuda_std::thread::thread_idx_x;

impl<E: Element, const MODE: u32, const FLIGHT: usize> StagedRow<'_, E, MODE, FLIGHT> {
    /// Writes the gradients of the part, `at_class` for the row's class. The gradient of any other
    /// logit is `by_exp` times the exponential that is kept of it; where none are kept, it is as
    /// [`Factors`] says. Starts to copy the same part of the `next` row, vector by vector, to where
    /// this one's is read.
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
    ) {
        let to = Row::<E>::new(self.pass.args.grad_input, row, self.row.start());
        // SAFETY: the caller's conditions.
        unsafe {
            each_batch!(self.store_vectors(to, factors, by_exp, next));
            if let Some(next) = next {
                next.copy_beside(self);
            }
            if let Some(Peeled { index, x, t }) = self.peeled() {
                let mut gradient = (x - factors.center).exp_below() * factors.factor;
                if Self::DENSE {
                    gradient = gradient - self.pass.gradient_of_share(factors, index, t);
                }
                let gradient = if factors.counts { gradient } else { E::Real::ZERO };
                to.store(index, E::narrow(gradient));
            }
            if label.counts && label.has_class(self.pass.args.cols) && self.has(label.class) {
                to.store(label.class, E::narrow(at_class));
            }
        }
    }

    /// Writes the gradients of N vectors from `index` on, and starts to copy those of the `next`
    /// row.
    ///
    /// # Safety
    /// As [`store_gradients`](Self::store_gradients), and the vectors are this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_vectors<const N: usize>(
        &self,
        index: u32,
        to: Row<E>,
        factors: &Factors<E::Real>,
        by_exp: E::Real,
        next: Option<&Self>,
    ) {
        let mut gradients = [E::pack([E::narrow(E::Real::ZERO); MAX_LANES]); N];
        // SAFETY: the caller's conditions.
        unsafe {
            // The gradient of a row that is ignored is 0, whatever its logits.
            if factors.counts {
                let mut values = self.gradients_of_exps::<N>(index, factors, by_exp);
                unrolled!(for k in 0..N; {
                    if Self::DENSE {
                        let vector = index + k as u32 * self.step;
                        self.subtract_shares(vector, &mut values[k], factors);
                    }
                    gradients[k] = E::narrow_all(values[k]);
                });
            }
            let vector = self.cut.vector(index);
            to.store_vectors(vector, gradients, |k| k as u32 * self.step, |_| true);
            if let Some(next) = next {
                unrolled!(for k in 0..N; { next.copy_one(index + k as u32 * self.step); });
            }
        }
    }

    /// The exponentials of N vectors from `index` on, times `by_exp`.
    ///
    /// # Safety
    /// As [`store_vectors`](Self::store_vectors).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn gradients_of_exps<const N: usize>(
        &self,
        index: u32,
        factors: &Factors<E::Real>,
        by_exp: E::Real,
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
            let base = Base::Center(factors.center, E::Real::ONE);
            E::masked_exps(staged, base, |k, exps| {
                values[k] = exps;
            });
        }
        unrolled!(for k in 0..N; {
            unrolled!(for lane in 0..E::LANES as usize; {
                values[k][lane] = values[k][lane] * by_exp;
            });
        });
        values
    }

    /// Subtracts from the gradients of a vector what its classes' shares of the target take.
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
                if Self::STAGES_WEIGHTS {
                    pass.subtract_shares::<{ weights::STAGED }>(values, factors, t, classes);
                } else {
                    pass.subtract_shares::<{ weights::LOADED }>(values, factors, t, classes);
                }
                return;
            }
            unrolled!(for lane in 0..E::LANES as usize; {
                let part = self.pass.gradient_of_share(factors, first + lane as u32, t(lane));
                values[lane] = values[lane] - part;
            });
        }
    }

    /// Whether an element of the row is this thread's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has(&self, element: u32) -> bool {
        let vector = self.cut.vector_of(element);
        if self.cut.has(vector) {
            let is_in_part = vector >= self.base && vector < self.end;
            return is_in_part && (vector - self.base) % self.step == thread_idx_x();
        }
        let number = thread_idx_x();
        self.base == 0
            && number < self.cut.peeled_count()
            && self.cut.peeled_index(number) == element
    }
}
