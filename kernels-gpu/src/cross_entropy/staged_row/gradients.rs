//! The gradients of staged rows.

use super::{FLIGHT, StagedRow};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::pass::{Classes, Factors};
use crate::cut::Row;
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use cuda_std::thread::thread_idx_x;

impl<E: Element, const MODE: u32> StagedRow<'_, E, MODE> {
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
            each_batch!(self, index, N; {
                let mut gradients = [E::pack([E::narrow(E::Real::ZERO); MAX_LANES]); N];
                // The gradient of a row that is ignored is 0, whatever its logits.
                if factors.counts {
                    let staged = self.get::<N>(index);
                    let mut all = [[E::Real::ZERO; MAX_LANES]; N];
                    if Self::KEEPS_EXPS {
                        unrolled!(for k in 0..N; {
                            unrolled!(for lane in 0..E::LANES as usize; {
                                all[k][lane] = E::extract(staged[k], lane as u32).widen();
                            });
                        });
                    } else {
                        let base = Base::Center(factors.center, E::Real::ONE);
                        E::masked_exps(staged, base, |k, exps| { all[k] = exps; });
                    }
                    unrolled!(for k in 0..N; {
                        let mut values = [E::Real::ZERO; MAX_LANES];
                        unrolled!(for lane in 0..E::LANES as usize; {
                            values[lane] = all[k][lane] * by_exp;
                            if Self::DENSE && !Self::HAS_SHARE_VECTORS {
                                let vector = self.cut.vector(index + k as u32 * self.step);
                                let class = vector.first + lane as u32;
                                values[lane] = values[lane] - self.share_gradient(factors, class);
                            }
                        });
                        if Self::DENSE && Self::HAS_SHARE_VECTORS {
                            let vector = self.cut.vector(index + k as u32 * self.step);
                            let (classes, t) = (Classes::from(vector.first), |_| E::Real::ZERO);
                            self.pass.subtract_shares::<true>(&mut values, factors, t, classes);
                        }
                        gradients[k] = E::narrow_all(values);
                    });
                }
                let vector = self.cut.vector(index);
                to.store_vectors(vector, gradients, |k| k as u32 * self.step, |_| true);
                if let Some(next) = next {
                    unrolled!(for k in 0..N; { next.copy_one(index + k as u32 * self.step); });
                }
            });
            if let Some(next) = next {
                next.copy_beside(self);
            }
            if let Some((index, x)) = self.peeled() {
                let mut gradient = (x - factors.center).exp_below() * factors.factor;
                if Self::DENSE {
                    gradient = gradient - self.share_gradient(factors, index);
                }
                let gradient = if factors.counts { gradient } else { E::Real::ZERO };
                to.store(index, E::narrow(gradient));
            }
            if label.counts && label.has_class(self.pass.args.cols) && self.has(label.class) {
                to.store(label.class, E::narrow(at_class));
            }
        }
    }

    /// What the share of a class takes from the gradient of its logit.
    ///
    /// # Safety
    /// The kernels' condition 1; `class` is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn share_gradient(&self, factors: &Factors<E::Real>, class: u32) -> E::Real {
        // SAFETY: the caller's conditions.
        unsafe { self.pass.gradient_of_share(factors, class, E::Real::ZERO) }
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
