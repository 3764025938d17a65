//! Peeled elements: the head and the tail of a row, which no aligned vector covers.

use super::Lanes;
use crate::cross_entropy::label::Label;
use crate::cross_entropy::log_prob::scaled;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass};
use crate::cross_entropy::row_group::RowGroup;
use crate::cross_entropy::staged::StagedPeeled;
use crate::cross_entropy::stats::Stats;
use crate::cut::Row;
use crate::element::{Element, Real};
use crate::reduce::warp_max;
use cuda_std::warp::any;

/// A peeled element: its index in the row, its logit, and its probability in the target (which has
/// no meaning where the target is a class).
#[derive(Clone, Copy)]
pub(crate) struct Peeled<E> {
    index: u32,
    x: E,
    t: E,
}

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// Loads the row's peeled element number `number`, if there is one.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn peeled(&self, number: u32) -> Option<Peeled<E>> {
        if number >= self.cut.peeled_count() {
            return None;
        }
        let index = self.cut.peeled_index(number);
        // SAFETY: the caller's condition.
        unsafe {
            let x = self.input.load(index);
            let t = if self.target.is_null() { x } else { self.target.load(index) };
            Some(Peeled { index, x, t })
        }
    }

    /// Loads the thread's peeled element, if it has one. In a row group of
    /// [`peeled_group_threads`](crate::abi::peeled_group_threads) or more, a thread has one at
    /// most.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn peeled_of_thread(&self, group: RowGroup) -> Option<Peeled<E>> {
        // SAFETY: the caller's condition.
        unsafe { self.peeled(group.lane) }
    }

    /// Stages the thread's peeled element in shared memory, where it remains until the gradients.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn stage_peeled(peeled: Option<Peeled<E>>, group: RowGroup) {
        if let Some(Peeled { x, t, .. }) = peeled {
            // SAFETY: a row has fewer than 16 peeled elements.
            unsafe { StagedPeeled::stage(group.lane, [x, t].map(|x| x.widen().to_bits64())) };
        }
    }

    /// Whether the thread has a peeled element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_peeled(&self, group: RowGroup) -> bool {
        group.lane < self.cut.peeled_count()
    }

    /// The thread's peeled element, from the [stage](Self::stage_peeled).
    ///
    /// # Safety
    /// This thread has a peeled element, and has staged the one of this row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn staged_peeled(&self, group: RowGroup) -> Peeled<E> {
        // SAFETY: the caller's condition.
        let [x, t] = unsafe { StagedPeeled::get(group.lane) };
        let narrow = |bits| E::narrow(E::Real::from_bits64(bits));
        Peeled { index: self.cut.peeled_index(group.lane), x: narrow(x), t: narrow(t) }
    }

    /// The thread's statistics of its `peeled` element alone, if it has one, relative to the
    /// largest peeled logit of the warp.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn stats_of_peeled<const MODE: u32>(
        pass: &Pass<'_, E, MODE>,
        peeled: Option<Peeled<E>>,
    ) -> Stats<E::Real> {
        let mut stats = Stats::<E::Real>::NONE;
        if any(peeled.is_some()) {
            let x = Peeled::logit_of(peeled);
            stats = stats.relative_to::<MODE>(warp_max(stats.max.max(x)), pass.scale_of_logits());
            if let Some(peeled) = peeled {
                // SAFETY: the caller's condition.
                unsafe { pass.absorb_peeled(&mut stats, peeled) };
            }
        }
        stats
    }

    /// Writes the gradients of a peeled element as if it were not the class's logit. If it is, then
    /// calls `on_class` with it.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn gradient_of_peeled<const MODE: u32>(
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        [to_input, to_target]: [Row<E>; 2],
        Peeled { index, x, t }: Peeled<E>,
        mut on_class: impl FnMut(E::Real),
    ) {
        let (x, t) = (x.widen(), t.widen());
        let mut by_input = E::Real::ZERO;
        // The gradients of an ignored row are 0, whatever its logits are.
        if label.counts {
            let exp = scaled::<_, MODE>(x - factors.center, pass.scale_of_logits()).exp_below();
            let per_exp = [factors.factor, factors.by_share];
            by_input = exp * pass.per_exp(x, factors.center, per_exp);
        }
        // SAFETY: the caller's conditions.
        unsafe {
            if Pass::<E, MODE>::DENSE {
                by_input = by_input - pass.gradient_of_share(factors, index, t);
            }
            if MODE != mode::PROBABILITIES || !to_input.is_null() {
                to_input.store(index, E::narrow(by_input));
            }
            if MODE != mode::PROBABILITIES && index == label.class {
                on_class(x);
            }
            if MODE == mode::PROBABILITIES && !to_target.is_null() {
                to_target.store(index, E::narrow(pass.gradient_of_target(factors, index, x)));
            }
        }
    }
}

impl<E: Element> Peeled<E> {
    /// The logit of `peeled`, or −∞, whose exponential is 0.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn logit_of(peeled: Option<Self>) -> E::Real {
        peeled.map_or(E::Real::NEG_INFINITY, |peeled| peeled.x.widen())
    }

    /// The logit, if it is that of `class`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn logit_of_class(self, class: i64) -> Option<E::Real> {
        (i64::from(self.index) == class).then(|| self.x.widen())
    }

    /// Stores the gradient of the element's logit: that in `class` if the element is the row's
    /// class, otherwise `gradient`.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3; the element is the row's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn store_gradient(
        self,
        to: Row<E>,
        gradient: E::Real,
        class: Option<(u32, E::Real)>,
    ) {
        let value = match class {
            Some((class, at_class)) if class == self.index => at_class,
            _ => gradient,
        };
        // SAFETY: the caller's conditions.
        unsafe { to.store(self.index, E::narrow(value)) };
    }
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Adds a peeled element to `stats`, whose maximum is at least its logit.
    ///
    /// # Safety
    /// The kernels' condition 1; the peeled element is the row's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn absorb_peeled(&self, stats: &mut Stats<E::Real>, Peeled { index, x, t }: Peeled<E>) {
        let x = x.widen();
        stats.absorb::<MODE>(x, self.scale_of_logits());
        if Self::DENSE {
            // SAFETY: the caller's conditions.
            unsafe { self.absorb_share(stats, index, x, t.widen()) };
        }
    }
}
