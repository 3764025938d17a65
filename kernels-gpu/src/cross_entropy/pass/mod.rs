//! A pass over rows of logits: what all kernels compute from a row once its statistics are known.
//!
//! [`row`] computes a row's loss from its statistics, [`gradient`] the factors of its gradients,
//! [`normaliser`] has what a mean is divided by, [`prefetch`] loads rows ahead of their use, and
//! [`end`] writes the results of the whole call.

use super::label::{Label, class_weight, label, load_class, load_classes};
use super::mode;
use crate::abi::CrossEntropyArgs;
use crate::element::{Element, Real, unrolled};
use crate::reduce::{ClassWeights, Workspace};
use core::marker::PhantomData;
use cuda_std::hint::opaque;
use cuda_std::memory::load;

mod end;
mod gradient;
mod normaliser;
mod prefetch;
mod row;
mod shares;

pub(crate) use gradient::{Factors, Saved};
pub(crate) use normaliser::{LoadedNormaliser, Total};
pub(crate) use row::writes;
pub(in crate::cross_entropy) use shares::{Classes, LateFactors, ShareSums, weights};

/// Terms that a row adds to the sums over the grid: its loss, the weight of its class, its squared
/// log-sum-exp (for the z-loss), and 1 if it is not ignored.
pub(crate) const TERMS: usize = 4;

cuda_std::shared_array! {
    /// [`TERMS`] sums over the rows that a block has finished.
    fn block_terms() -> [f64; 4];
}

/// The summed terms of all rows of a block but its last, in shared memory.
///
/// One thread accesses them at a time, and a barrier is between the accesses of different threads.
pub(crate) struct BlockTerms;

impl BlockTerms {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn set(terms: [f64; TERMS]) {
        unrolled!(for term in 0..TERMS; {
            // SAFETY: one thread accesses the sums at a time.
            unsafe { block_terms().set(term as u32, terms[term]) };
        });
    }

    /// Returns these sums plus `terms`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn and(mut terms: [f64; TERMS]) -> [f64; TERMS] {
        unrolled!(for term in 0..TERMS; {
            // SAFETY: as in `set`.
            terms[term] += unsafe { block_terms().get(term as u32) };
        });
        terms
    }
}

cuda_std::shared_array! {
    /// For the row of a block: the scale of its gradients, the scale of its z-loss gradients, and
    /// the weight of its class. The first thread writes them before the row's barrier.
    pub(crate) fn scales_of_row() -> [u64; 3];
}

/// A pass over the rows.
pub(crate) struct Pass<'a, E: Element, const MODE: u32> {
    pub(crate) args: &'a CrossEntropyArgs,
    /// Whether the arguments of the epilogue are loaded in the epilogue, not at kernel entry.
    finishes_late: bool,
    element: PhantomData<E>,
}

impl<'a, E: Element, const MODE: u32> Pass<'a, E, MODE> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(args: &'a CrossEntropyArgs) -> Self {
        Pass { args, finishes_late: false, element: PhantomData }
    }

    /// A pass that loads the arguments of its epilogue only there: a row then starts with the
    /// loads that it needs first.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn finishing_late(args: &'a CrossEntropyArgs) -> Self {
        Pass { args, finishes_late: true, element: PhantomData }
    }
}

/// Arguments of the call, and constants that follow from them.
impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Whether the target has a share for every class.
    pub(crate) const DENSE: bool = mode::is_dense(MODE);
    /// Whether gradients need the logits themselves, in addition to their exponentials.
    pub(crate) const NEEDS_LOGITS: bool = MODE != mode::CLASS;
    /// See [`mode::has_late_shares`].
    pub(crate) const HAS_LATE_SHARES: bool = mode::has_late_shares(MODE, size_of::<E>());
    /// See [`mode::has_attempts`].
    pub(crate) const HAS_ATTEMPTS: bool = mode::has_attempts(MODE, size_of::<E>());

    /// An argument of the epilogue. Opaque in a pass that finishes late, so that the compiler loads
    /// it where it is used.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn epilogue_arg(&self, value: u64) -> u64 {
        if self.finishes_late { opaque(value) } else { value }
    }

    /// Whether [the call is plain](CrossEntropyArgs::is_plain).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_plain(&self) -> bool {
        self.epilogue_arg(self.args.plain.into()) != 0
    }

    /// Whether λ is not 0. It is compared as an integer without its sign bit, which takes no f64
    /// registers.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_z_loss(&self) -> bool {
        self.epilogue_arg(self.args.z_loss.to_bits()) << 1 != 0
    }

    /// Whether only the losses and the class weights are summed over the rows, not all [`TERMS`]:
    /// in a small call, the sums take most of the time.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_two_sums(&self) -> bool {
        !self.has_z_loss() && self.epilogue_arg(self.args.totals) == 0
    }

    /// λ. Opaque, so that it is loaded where it is used: if it were loaded before the rows, it
    /// would occupy registers throughout.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn z_loss(&self) -> f64 {
        f64::from_bits(opaque(self.args.z_loss.to_bits()))
    }

    /// 2λ.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn twice_z_loss(&self) -> E::Real {
        E::Real::from_f64(self.z_loss() + self.z_loss())
    }

    /// The address of the class weights; null if there are none.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn weights(&self) -> u64 {
        if MODE == mode::SMOOTHED { 0 } else { self.args.weight }
    }

    /// 1 − ε, the share of the target that label smoothing leaves. It is the constant 1 for class
    /// targets without smoothing.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn confidence(&self) -> E::Real {
        if Self::DENSE { E::Real::from_f64(self.args.keep) } else { E::Real::ONE }
    }
}

/// Targets.
impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// A class's share of the target. With smoothing it is the class weight in the
    /// [`unit`](Self::unit) of weights; with probabilities it is q, where `t` is the class's
    /// probability.
    ///
    /// # Safety
    /// The kernels' condition 1; `class` is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn share_of(&self, class: u32, t: E::Real) -> E::Real {
        // SAFETY: the caller's condition.
        let weight = unsafe { self.weight_of(class) };
        self.share_by_weight(weight, t)
    }

    /// The weight of a class.
    ///
    /// # Safety
    /// The kernels' condition 1; `class` is below `cols`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) unsafe fn weight_of(&self, class: u32) -> E::Real {
        // SAFETY: the caller's condition.
        unsafe {
            if MODE == mode::WEIGHTED {
                load((self.args.weight as *const E).wrapping_add(class as usize)).widen()
            } else {
                class_weight::<E>(self.weights(), class)
            }
        }
    }

    /// [`share_of`](Self::share_of) a class with this weight.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn share_by_weight(&self, weight: E::Real, t: E::Real) -> E::Real {
        if MODE != mode::PROBABILITIES {
            return weight * self.unit();
        }
        let share = E::Real::from_f64(self.args.share);
        weight * self.confidence().fma(t, share)
    }

    /// The factor that smoothing multiplies class weights by: the largest power of two below 1/C.
    /// The weighted sum of x − m over all classes is then in the range of x − m, and a
    /// multiplication by a power of two does not round.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn unit(&self) -> E::Real {
        let power = u64::from(u32::BITS - self.args.cols.leading_zeros());
        let bits =
            if size_of::<E::Real>() == 4 { (127 - power) << 23 } else { (1023 - power) << 52 };
        E::Real::from_bits64(bits)
    }

    /// The number by which the [`unit`](Self::unit) is multiplied to give 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn units(&self) -> E::Real {
        let power = u64::from(u32::BITS - self.args.cols.leading_zeros());
        let bits =
            if size_of::<E::Real>() == 4 { (127 + power) << 23 } else { (1023 + power) << 52 };
        E::Real::from_bits64(bits)
    }

    /// The sum of all classes' shares, where each is one [`unit`](Self::unit).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn sum_of_units(&self) -> E::Real {
        E::Real::from_i32(self.args.cols as i32) * self.unit()
    }

    /// The sum of all classes' shares, for labels with smoothing whose shares are
    /// [late](mode::has_late_shares).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(in crate::cross_entropy) fn sum_of_shares(&self, workspace: Workspace) -> E::Real {
        if MODE == mode::SMOOTHED {
            return self.sum_of_units();
        }
        E::Real::from_f64(ClassWeights::new(workspace).wait() * self.unit().to_f64())
    }

    /// ε/C divided by the [`unit`](Self::unit): what turns a sum of shares into its part of the
    /// loss. 1 for probabilities, whose shares already contain ε/C.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn smoothing_per_unit(&self) -> E::Real {
        if MODE == mode::PROBABILITIES {
            return E::Real::ONE;
        }
        E::Real::from_f64(self.args.share) * E::Real::ONE.over_plain(self.unit())
    }

    /// The class of a row; `ignore_index` where targets are probabilities.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn class(&self, row: u64) -> i64 {
        if MODE == mode::PROBABILITIES {
            return self.args.ignore_index;
        }
        // SAFETY: the caller's condition.
        unsafe {
            if self.finishes_late {
                // This loads one row by the bounds-checked load of several: the compiler then keeps
                // fewer values in registers.
                let [class] = load_classes::<1, true>(self.args, row, 0);
                class
            } else {
                load_class(self.args, row)
            }
        }
    }

    /// The label of a row with this class.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn label(&self, class: i64) -> Label<E::Real> {
        // SAFETY: the caller's condition.
        unsafe { self.label_with(self.weights(), class) }
    }

    /// [`label`](Self::label) in a call that [is plain](Self::is_plain), and so has no class
    /// weights.
    ///
    /// # Safety
    /// As [`label`](Self::label).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn plain_label(&self, class: i64) -> Label<E::Real> {
        // SAFETY: the caller's condition.
        unsafe { self.label_with(0, class) }
    }

    /// [`label`](Self::label) with class weights at address `weights`, or without if it is null.
    ///
    /// # Safety
    /// As [`label`](Self::label); `weights` is the address of the class weights, or null.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn label_with(&self, weights: u64, class: i64) -> Label<E::Real> {
        if MODE == mode::PROBABILITIES {
            return Label { weight: E::Real::ONE, counts: true, ..Label::NONE };
        }
        // SAFETY: the caller's conditions.
        unsafe { label::<E>(self.args, weights, class) }
    }
}
