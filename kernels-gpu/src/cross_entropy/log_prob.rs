//! The log-probability of a row's class and the entropy of its distribution: the mode
//! [`LOG_PROB`](super::mode::LOG_PROB) of the row kernels.
//!
//! With z = x/T, T the temperature, m the largest z of the row, S = Σ exp(z − m) and
//! p = exp(z − m)/S, the results of a row are log p_y = (z_y − m) − log S and
//! H = −Σ p log p = log S − μ, where μ = Σ p (z − m). Both are computed from differences z − m, so
//! that neither cancels for large logits. The online softmax therefore has a third sum, the *dot*
//! Σ exp(z − m) (z − m). The kernels reduce the largest x, not the largest z: z − m is computed as
//! (x − max) / T.
//!
//! With upstream gradients a of log p_y and b of H, the gradient of logit c is a ([c = y] − p_c)/T
//! − b p_c (log p_c + H)/T, and log p_c + H = (z_c − m) − μ: every exponential is multiplied by a
//! factor that is linear in z − m.
//!
//! This file has all that the mode adds to the row kernels. They call it in branches on constants,
//! so that the code of the other modes does not change.

use super::label::Label;
use super::mode;
use super::pass::{Factors, Pass, TERMS, Total, writes};
use super::stats::{Relative, Stats};
use crate::abi::{TargetFault, saved};
use crate::element::{Base, Element, MAX_LANES, Real, unrolled};
use crate::reduce::Workspace;
use cuda_std::memory::{Vec16, load, store};

/// A lower bound for z − m. The exponential is 0 from there on, and its product with −∞, the
/// difference of a logit of −∞, would be NaN. A difference of NaN is replaced by this too, in a row
/// whose sum of exponentials is NaN anyway.
const LOWEST: f64 = -1000.0;

/// A difference of logits times 1/T in [`LOG_PROB`](mode::LOG_PROB); in all other modes the
/// difference itself, because a product with 1 would change the code that LLVM generates around it.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn scaled<R: Real, const MODE: u32>(difference: R, scale: R) -> R {
    if MODE == mode::LOG_PROB { difference * scale } else { difference }
}

/// z − m of logit `x`, where `center` is the largest logit of a row or of a part of it.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn apart<R: Real>(x: R, center: R, scale: R) -> R {
    let [_, larger] = R::from_f64(LOWEST).min_max((x - center) * scale);
    larger
}

/// [`Element::exps`] of N vectors, and their dot: Σ exp(z − m) (z − m), in the unit of the
/// exponentials.
///
/// Each vector has a separate call: a closure that is called for all of them would be too large for
/// LLVM to inline.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn exps_and_dot<E: Element, const N: usize>(
    x: [Vec16; N],
    base: Base<E::Real>,
    [center, scale]: [E::Real; 2],
    mut with: impl FnMut(usize, [E::Real; MAX_LANES]),
) -> E::Real {
    let mut dot = E::Real::ZERO;
    unrolled!(for k in 0..N; {
        E::exps([x[k]], base, |_, exps| {
            with(k, exps);
            dot = dot + dot_of_vector::<E>(exps, x[k], center, scale);
        });
    });
    dot
}

/// Σ exp(z − m) (z − m) over the elements of a vector, with the exponentials `exps`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn dot_of_vector<E: Element>(
    exps: [E::Real; MAX_LANES],
    x: Vec16,
    center: E::Real,
    scale: E::Real,
) -> E::Real {
    // Two accumulators, which halve the chain of dependent multiply-adds.
    let mut dots = [E::Real::ZERO; 2];
    unrolled!(for lane in 0..E::LANES as usize; {
        let apart = apart(E::extract(x, lane as u32).widen(), center, scale);
        dots[lane % 2] = exps[lane].fma(apart, dots[lane % 2]);
    });
    dots[0] + dots[1]
}

/// The dot relative to `center`, of a part of a row whose largest logit is `max`: −∞ if the part
/// has no logit. `factor` is what its exponentials are multiplied by for that, and `sum` their sum
/// after it.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn rescaled_dot<R: Real>(
    dot: R,
    [factor, sum]: [R; 2],
    max: R,
    center: R,
    scale: R,
) -> R {
    sum.fma(apart(max, center, scale), dot * factor)
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Whether the pass computes log-probabilities and entropies instead of a loss.
    pub(in crate::cross_entropy) const LOG_PROB: bool = MODE == mode::LOG_PROB;

    /// 1/T; the constant 1 in all other modes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn scale_of_logits(&self) -> E::Real {
        if Self::LOG_PROB { E::Real::from_f64(self.args.log_prob.scale) } else { E::Real::ONE }
    }

    /// μ = Σ p (z − m), from the statistics of a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn expected(stats: &Stats<E::Real>) -> E::Real {
        stats.dot * E::Real::ONE.over_plain(stats.ties + stats.rest)
    }

    /// [`Pass::finish_row`]: writes the results of a row and, with [`writes::ALL`], what is saved
    /// of it. The first of its terms is NaN if the row's class is out of range: the sum over the
    /// grid then shows that there is such a row.
    ///
    /// # Safety
    /// As [`Pass::finish_row`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn finish_log_prob<const WRITES: u32>(
        &self,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        logit: E::Real,
        workspace: Workspace,
    ) -> [f64; TERMS] {
        let args = self.args;
        if label.fault && args.fault != 0 {
            workspace.report_row(row);
        }
        let (log_sum, expected) = (stats.log_sum(), Self::expected(&stats));
        let scale = self.scale_of_logits();
        let [mut log_prob, mut entropy] =
            [(logit - stats.max) * scale - log_sum, log_sum - expected];
        if !label.counts {
            [log_prob, entropy] = [E::Real::ZERO; 2];
        }
        if label.fault {
            [log_prob, entropy] = [E::Real::NAN; 2];
        }
        // SAFETY: the caller's conditions.
        unsafe {
            if WRITES == writes::ALL && args.saved != 0 {
                store(self.saved(row, saved::MAX), stats.max);
                store(self.saved(row, saved::LOG_SUM), log_sum);
                store(self.saved(row, saved::EXPECTED), expected);
                store(self.saved(row, saved::LOG_SUM_EXP), stats.max.fma(scale, log_sum));
            }
            store((args.loss as *mut E::Real).wrapping_add(row as usize), log_prob);
            store((args.log_prob.entropy as *mut E::Real).wrapping_add(row as usize), entropy);
        }
        [log_prob.to_f64(), 0.0, 0.0, 0.0]
    }

    /// Where a target that is no class is reported to the caller of the entropies.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn entropy_fault(&self) -> Option<*mut TargetFault> {
        let fault = if Self::LOG_PROB { self.args.log_prob.entropy_fault } else { 0 };
        (fault != 0).then_some(fault as *mut TargetFault)
    }

    /// The upstream gradient of a row's log-probability (if `which` is [`Total::Weights`]) or of
    /// its entropy; 0 if the call has none.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn upstream(&self, row: u64, which: Total) -> E::Real {
        let args = self.args;
        let (start, stride) = match which {
            Total::Weights => (args.upstream, args.upstream_stride),
            Total::Rows => (args.log_prob.upstream_entropy, args.log_prob.upstream_entropy_stride),
        };
        if start == 0 {
            return E::Real::ZERO;
        }
        let index = row * u64::from(stride);
        // SAFETY: the caller's condition.
        unsafe { load((start as *const E::Real).wrapping_add(index as usize)) }
    }

    /// Computes the factors that depend on the upstream gradients a and b, where `expected` is μ.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn upstream_factors(
        &self,
        label: &Label<E::Real>,
        expected: E::Real,
        [a, b]: [E::Real; 2],
        factors: &mut Factors<E::Real>,
    ) {
        let scale = self.scale_of_logits();
        // The weight is 1, or NaN for an invalid class: all gradients of the row are then NaN.
        let (a, b) = (label.weight * a * scale, label.weight * b * scale);
        factors.by_class = -a;
        factors.by_z = b * expected;
        factors.factor = (factors.by_class + factors.by_z) * factors.inverse;
        factors.by_share = b * factors.inverse;
    }

    /// The row's `factor` and `by_share` of [`Factors`], for exponentials in this `unit`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn factors_of_exp(&self, factors: &Factors<E::Real>, unit: E::Real) -> [E::Real; 2] {
        let factor = factors.factor * unit;
        [factor, if Self::LOG_PROB { factors.by_share * unit } else { E::Real::ZERO }]
    }

    /// The gradient of a logit as a multiple of its exponential, from
    /// [`factors_of_exp`](Self::factors_of_exp).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn per_exp(
        &self,
        x: E::Real,
        center: E::Real,
        [factor, by_share]: [E::Real; 2],
    ) -> E::Real {
        if !Self::LOG_PROB {
            return factor;
        }
        (-by_share).fma(apart(x, center, self.scale_of_logits()), factor)
    }

    /// The gradients of a vector of logits, as if none were the logit of the row's class.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn gradients_of_vector(
        &self,
        x: Vec16,
        relative: Relative<E::Real, MODE>,
        factors: &Factors<E::Real>,
    ) -> [E::Real; MAX_LANES] {
        let per_exp = self.factors_of_exp(factors, relative.unit());
        let mut gradients = [E::Real::ZERO; MAX_LANES];
        E::exps([x], relative.base(), |_, exps| {
            unrolled!(for lane in 0..E::LANES as usize; {
                let x = E::extract(x, lane as u32).widen();
                gradients[lane] = exps[lane] * self.per_exp(x, relative.center(), per_exp);
            });
        });
        gradients
    }

    /// The gradient of the class's logit.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn log_prob_at_class(&self, factors: &Factors<E::Real>, logit: E::Real) -> E::Real {
        let apart = apart(logit, factors.center, self.scale_of_logits());
        let exp = apart.exp_below();
        // p − 1 of the likeliest class is minus the sum of the other probabilities, which keeps the
        // digits that the subtraction would lose.
        let less_one = if apart == E::Real::ZERO {
            -factors.others
        } else {
            exp * factors.inverse - E::Real::ONE
        };
        let of_entropy = (-factors.by_share).fma(apart, factors.by_z * factors.inverse);
        factors.by_class.fma(less_one, exp * of_entropy)
    }
}

/// The most threads of a block of `forward_backward_long`: half as many for f64, and for 16-bit
/// elements, since a vector of them is widened to eight registers twice, for the exponentials and
/// for z − m. With 640 threads 16-bit kernels spill 40 bytes (ptxas 13.0, sm_90).
pub(crate) const fn long_block<E: Element>(threads: u32) -> u32 {
    if size_of::<E>() == 4 { threads } else { threads / 2 }
}

/// The kernel entries, named as in [`cross_entropy`](super::kernels). To keep the compiled kernels
/// small, there are only these: short rows are packed; longer rows are streamed in the forward
/// pass, and have one block or several per row in passes with gradients.
macro_rules! kernels {
    ($loss:ident, $vectors:literal by $block:literal, $resident:literal resident) => {
        use crate::abi::{CrossEntropyArgs, PACKED_BLOCK, STREAM_BLOCK};
        use crate::cross_entropy::mode::LOG_PROB as MODE;
        use crate::cross_entropy::{
            alignment, backward_registers, block_of_vectors, computes, forward_backward_long,
            forward_backward_registers, forward_stream, log_prob::long_block, packed,
            resident_any_alignment, resident_packed, row_lanes, stream_blocks,
        };

        /// The most vectors of a row that a thread has in registers.
        pub const VECTORS: usize = $vectors;

        /// The most vectors of a row that a thread of `forward_backward` has in registers, by the
        /// bytes of an element: as many as with cross-entropy, so that sums have the same order.
        pub const fn vectors_with_gradients(element_bytes: usize) -> usize {
            if element_bytes == 2 { 2 * VECTORS } else { VECTORS }
        }

        /// The vectors that a thread of `forward_backward_long` has in registers, beside those
        /// that its block stages in shared memory, by the bytes of an element.
        pub const fn vectors_beside(element_bytes: usize) -> usize {
            if element_bytes == 2 { VECTORS } else { VECTORS.div_ceil(2) }
        }

        crate::table::kernels! {
            $loss, [f32, f64, f16, bf16],
            FORWARD_PACKED = forward_packed:
                packed::<E, MODE, { computes::LOSS }, { row_lanes::SEVERAL }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE, computes::LOSS),
                5 barriers;
            FORWARD_BACKWARD_PACKED = forward_backward_packed:
                packed::<E, MODE, { computes::BOTH }, { row_lanes::SEVERAL }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE, computes::BOTH),
                6 barriers;
            BACKWARD_PACKED = backward_packed:
                packed::<E, MODE, { computes::GRADIENTS }, { row_lanes::SEVERAL }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE, computes::GRADIENTS),
                0 barriers;
            FORWARD_STREAM = forward_stream: forward_stream::<E, MODE>,
                (CrossEntropyArgs), STREAM_BLOCK by stream_blocks::<E>(MODE), 3 barriers;
            FORWARD_BACKWARD = forward_backward:
                forward_backward_registers::<E, MODE, { vectors_with_gradients(size_of::<E>()) }>,
                (CrossEntropyArgs),
                (block_of_vectors::<E>($block, VECTORS, vectors_with_gradients(size_of::<E>())))
                    by 1, 6 barriers;
            FORWARD_BACKWARD_LONG = forward_backward_long:
                forward_backward_long::<E, MODE, { vectors_beside(size_of::<E>()) }>,
                (CrossEntropyArgs), (long_block::<E>($block)) by 1, 8 barriers;
            BACKWARD_LONG = backward_long:
                backward_registers::<E, MODE, $vectors, { alignment::LINE }>,
                (CrossEntropyArgs), 256 by resident_any_alignment::<E>($resident), 1 barriers;
        }
    };
}
pub(crate) use kernels;
