//! The gradients of packed rows.

use super::Tiles;
use crate::cross_entropy::mode;
use crate::cross_entropy::packed::part::Pairs;
use crate::cross_entropy::pass::{Factors, Pass, weights};
use crate::cross_entropy::stats::Relative;
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::row::Split;

impl<E: Element, const MODE: u32> Tiles<'_, E, MODE> {
    /// Writes the gradients of the logits and of the probabilities in the lane's part of a row.
    /// With `OF_EXPS`, the exponentials of the logits have replaced them. Each kernel has an
    /// instance of its own, by `COMPUTES`: LLVM inlines a large closure only if one place calls it.
    ///
    /// # Safety
    /// As [`batch`](Self::batch); the warp has synchronised since the row was read.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn gradients<const COMPUTES: u32, const OF_EXPS: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u32,
        split: Split,
        factors: &Factors<E::Real>,
    ) {
        let args = self.stage.args;
        let x = self.logits_of(row, split);
        let of_target = MODE == mode::PROBABILITIES && args.grad_target.start != 0;
        let scale = pass.scale_of_logits();
        // Of the lane's own row, and not a vote of the warp: ptxas 13.0 repeated a vote in the loop
        // that used its result, where lanes without a row did not take part, so the warp hung.
        let is_far = !OF_EXPS && Relative::<_, MODE>::is_far(factors.center, scale);
        let relative = Relative::<_, MODE>::to(factors.center, scale);
        let per_exp = pass.factors_of_exp(factors, relative.unit());
        // Most rows have separate loops: in the loop below, each chunk would cost its branches. f64
        // kernels have registers for the separate loops only if they compute no exponentials.
        let has_plain_loops =
            (!Self::DENSE || MODE == mode::SMOOTHED) && (OF_EXPS || size_of::<E>() < 8);
        // Kernels of f32 and of smoothed classes have no registers for pairs of words, and f64
        // kernels gain nothing from them.
        let pairs = if size_of::<E>() == 2 && !Self::DENSE { Pairs::All } else { Pairs::Vectors };
        if has_plain_loops && factors.counts && self.stage.in_place() && !is_far {
            // SAFETY: the caller's conditions.
            unsafe {
                x.for_each(pairs, |chunk, vector| {
                    let mut gradients = [E::Real::ZERO; MAX_LANES];
                    if OF_EXPS {
                        unrolled!(for lane in 0..E::LANES as usize; {
                            let exp = E::extract(vector, lane as u32).widen();
                            gradients[lane] = exp * factors.factor;
                        });
                    } else {
                        gradients = pass.gradients_of_vector(vector, relative, factors);
                    }
                    if MODE == mode::SMOOTHED {
                        let share = factors.by_share * pass.unit();
                        unrolled!(for lane in 0..E::LANES as usize; {
                            gradients[lane] = gradients[lane] - share;
                        });
                    }
                    x.store(chunk, E::narrow_all(gradients));
                });
            }
            return;
        }
        // Adding the shift of such a large logit would lose its digits: these rows subtract the
        // logit first.
        let far_center = if is_far { factors.center } else { E::Real::ZERO };
        // SAFETY: the caller's conditions.
        unsafe {
            x.for_each_singly(|chunk, vector| {
                let t = self.targets_of(&x, row, chunk);
                let mut by_input = [E::Real::ZERO; MAX_LANES];
                let mut by_target = [E::Real::ZERO; MAX_LANES];
                // The gradient of a row that is ignored is 0, whatever its logits.
                if factors.counts {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        by_input[lane] = E::extract(vector, lane as u32).widen();
                    });
                    if is_far {
                        unrolled!(for lane in 0..E::LANES as usize; {
                            by_input[lane] = by_input[lane] - far_center;
                        });
                    }
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let apart = by_input[lane];
                        by_input[lane] = if OF_EXPS {
                            apart * factors.factor
                        } else {
                            relative.exp(apart) * pass.per_exp(apart, relative.center(), per_exp)
                        };
                    });
                    let class = |lane| chunk.column::<E>(lane as u32, x.cols);
                    let classes = Self::classes_of_vector(pass, chunk);
                    if Self::DENSE {
                        let t = |lane: usize| E::extract(t, lane as u32).widen();
                        if let Some(classes) = classes {
                            let by_input = &mut by_input;
                            if Self::WEIGHTED_VECTORS {
                                pass.subtract_shares::<{ weights::LOADED }>(
                                    by_input, factors, t, classes,
                                );
                            } else {
                                pass.subtract_shares::<{ weights::NONE }>(
                                    by_input, factors, t, classes,
                                );
                            }
                        } else {
                            pass.subtract_shares_by_class(&mut by_input, factors, t, class);
                        }
                    }
                    if of_target {
                        let x = |lane: usize| E::extract(vector, lane as u32).widen();
                        if let Some(classes) = classes {
                            pass.set_gradients_of_targets::<{ weights::NONE }>(
                                &mut by_target,
                                factors,
                                x,
                                classes,
                            );
                        } else {
                            unrolled!(for lane in 0..E::LANES as usize; {
                                if let Some(class) = class(lane) {
                                    let gradient = pass.gradient_of_target(factors, class, x(lane));
                                    by_target[lane] = gradient;
                                }
                            });
                        }
                    }
                }
                if of_target {
                    let to = self.grad_probabilities.row(row);
                    x.store_beside(to, chunk, E::narrow_all(by_target));
                }
                if MODE != mode::PROBABILITIES || args.grad_input.start != 0 {
                    x.store_beside(self.grad_logits.row(row), chunk, E::narrow_all(by_input));
                }
            });
        }
    }

    /// [`gradients`](Self::gradients) where targets are classes, for two vectors at a time: more
    /// exponentials hide each other's latency.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn gradients_by_two(
        &self,
        row: u32,
        split: Split,
        factors: &Factors<E::Real>,
    ) {
        let x = self.logits_of(row, split);
        let to = self.grad_logits.row(row);
        let base = Base::Center(factors.center, E::Real::ONE);
        // SAFETY: the caller's conditions.
        unsafe {
            x.for_each_two(|chunks, vectors| {
                let mut gradients = [E::pack([E::narrow(E::Real::ZERO); MAX_LANES]); 2];
                // The gradient of a row that is ignored is 0, whatever its logits.
                if factors.counts {
                    E::masked_exps(vectors, base, |k, mut values| {
                        unrolled!(for lane in 0..E::LANES as usize; {
                            values[lane] = values[lane] * factors.factor;
                        });
                        gradients[k] = E::narrow_all(values);
                    });
                }
                unrolled!(for k in 0..2; {
                    if let Some(chunk) = chunks[k] {
                        x.store_beside(to, chunk, gradients[k]);
                    }
                });
            });
        }
    }
}
