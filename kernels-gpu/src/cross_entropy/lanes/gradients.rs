//! The gradients of a row, from its logits or from their exponentials.

use super::statistics::Exps;
use super::tile::{FLIGHT, Tile, WARP_FLIGHT};
use super::vector::{get, set};
use super::{Lanes, alignment};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Classes, Factors, Pass, weights};
use crate::cross_entropy::row_group::RowGroup;
use crate::cut::Row;
use crate::element::{Element, MAX_LANES, Real, unrolled};
use cuda_std::hint::opaque_vec16;
use cuda_std::memory::Vec16;
use cuda_std::warp::{WARP_SIZE, sync_warp};

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// Writes the gradients of the vectors from `from` on, and of the thread's peeled element, to
    /// the rows `to`, as if none were the class's logit. The caller writes the gradient of that
    /// over this one.
    ///
    /// # Safety
    /// 1. The kernels' conditions 1 and 3.
    /// 2. This thread has staged its peeled element.
    /// 3. If the row counts, this thread has waited for its copies to the stage.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn gradients_behind<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        from: u32,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        group: RowGroup,
    ) {
        let mut first = from + group.warp() * WARP_FLIGHT;
        // SAFETY: the caller's conditions. A row that does not count is not read.
        unsafe {
            while first < self.cut.end {
                let tile = self.tile_of_lanes::<FLIGHT>(first, WARP_SIZE, label.counts, group);
                self.gradients_of_tile(pass, None, factors, to, &tile);
                first += group.warps() * WARP_FLIGHT;
            }
            // Recompute which peeled element is the thread's: if its index were kept since the
            // reduction, it would occupy a register.
            let group = group.rematerialize();
            if self.has_peeled(group) {
                let peeled = self.staged_peeled(group);
                Self::gradient_of_peeled(pass, label, factors, to, peeled, |_| ());
            }
        }
    }

    /// Writes the gradients of a tile to the rows `to`. `class` is the index of the row's class and
    /// the gradient of its logit; without it, all gradients are written as if none were of the
    /// class's logit.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn gradients_of_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        class: Option<(u32, E::Real)>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        tile: &Tile<N>,
    ) {
        if MODE == mode::LOG_PROB {
            // SAFETY: the caller's conditions.
            return unsafe { self.log_prob_gradients_of_tile(pass, class, factors, to[0], tile) };
        }
        let mut relative_tile = *tile;
        let relative = relative_tile.relative_to::<E, MODE>(factors.center, pass.scale_of_logits());
        let factor = factors.factor * relative.unit();
        let first = self.cut.vector(tile.first);
        let mut gradients = [Vec16::default(); N];
        E::exps(relative_tile.x, relative.base(), |k, mut values| {
            let span = self.span(tile, k);
            unrolled!(for lane in 0..E::LANES as usize; { values[lane] = values[lane] * factor; });
            if Pass::<E, MODE>::DENSE && span.count > 0 {
                // SAFETY: the caller's conditions.
                unsafe {
                    let of = |vector, lane: usize| E::extract(vector, lane as u32).widen();
                    let t = |lane| of(tile.t[k], lane);
                    pass.subtract_shares::<{ weights::LOADED }>(
                        &mut values,
                        factors,
                        t,
                        Classes::from(span.first),
                    );
                    if MODE == mode::PROBABILITIES && !to[1].is_null() {
                        // Widen a second time: see `add_shares`.
                        let x = opaque_vec16(tile.x[k]);
                        let x = |lane| of(x, lane);
                        let mut by_target = [E::Real::ZERO; MAX_LANES];
                        let classes = Classes::from(span.first);
                        pass.set_gradients_of_targets::<{ weights::LOADED }>(
                            &mut by_target,
                            factors,
                            x,
                            classes,
                        );
                        to[1].store_vectors(span, [E::narrow_all(by_target)], |_| 0, |_| true);
                    }
                }
            }
            if let Some((class, value)) = class {
                set::<E>(&mut values, span.lane_of(class), value);
            }
            gradients[k] = E::narrow_all(values);
        });
        if MODE != mode::PROBABILITIES || !to[0].is_null() {
            let offset = |k| k as u32 * tile.stride;
            let has = |k| self.span(tile, k).count > 0;
            // SAFETY: the caller's conditions.
            unsafe { to[0].store_vectors(first, gradients, offset, has) };
        }
    }

    /// [`gradients_of_tile`](Self::gradients_of_tile) of log-probabilities and entropies. It is a
    /// separate function, because LLVM would generate different code for losses if this were a part
    /// of that one.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn log_prob_gradients_of_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        class: Option<(u32, E::Real)>,
        factors: &Factors<E::Real>,
        to: Row<E>,
        tile: &Tile<N>,
    ) {
        let mut relative_tile = *tile;
        let relative = relative_tile.relative_to::<E, MODE>(factors.center, pass.scale_of_logits());
        let first = self.cut.vector(tile.first);
        let mut gradients = [Vec16::default(); N];
        unrolled!(for k in 0..N; {
            let mut values = pass.gradients_of_vector(relative_tile.x[k], relative, factors);
            if let Some((class, value)) = class {
                set::<E>(&mut values, self.span(tile, k).lane_of(class), value);
            }
            gradients[k] = E::narrow_all(values);
        });
        let offset = |k| k as u32 * tile.stride;
        let has = |k| self.span(tile, k).count > 0;
        // SAFETY: the caller's conditions.
        unsafe { to.store_vectors(first, gradients, offset, has) };
    }

    /// Writes the gradients of a tile from its exponentials, which are in registers: each
    /// exponential times `factor`, except at the row's `class`, where it is what `at_class` returns
    /// for the exponential.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn gradients_of_exps<const N: usize>(
        &self,
        exps: &Exps<E::Real, N>,
        factor: E::Real,
        (class, at_class): (u32, impl Fn(E::Real) -> E::Real),
        to: Row<E>,
        tile: &Tile<N>,
    ) {
        let first = self.cut.vector(tile.first);
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k);
            let mut values = [E::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; { values[lane] = exps[k][lane] * factor; });
            if let Some(at) = span.lane_of(class) {
                let value = at_class(get::<E>(&exps[k], at));
                set::<E>(&mut values, Some(at), value);
            }
            let (vector, has) = ([E::narrow_all(values)], span.count > 0);
            // SAFETY: the caller's conditions.
            unsafe { to.store_vectors(first, vector, |_| k as u32 * tile.stride, |_| has) };
            if ALIGNMENT == alignment::BLOCK_ROW {
                // Without this, the compiler moves all stores to the end, and their values occupy
                // registers until then.
                sync_warp();
            }
        });
    }
}
