//! Packed rows with pairs that are not plain, such as probabilities of 0, computed element by
//! element. Few rows have such pairs, so the code is short rather than fast.

use super::part::{Part, Rows};
use crate::abi::Matrix;
use crate::element::{Element, Real};
use crate::pairwise::Pairwise;
use crate::pairwise::pass::Pass;
use crate::row::Split;
use cuda_std::hint::opaque;
use cuda_std::warp::lane_id;

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// Computes the rows of the turns that are `waiting`, of any pairs.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn turns_of_any<const GRADS: bool>(
        &self,
        rows: &Rows<E>,
        bytes: u32,
        mut waiting: u32,
        scale: E::Real,
        sum: &mut f64,
    ) {
        let args = self.args;
        let split = Split::new(args.packed.warp_rows_shift, lane_id());
        while waiting != 0 {
            let index = (waiting.trailing_zeros() << split.rows_shift) + split.slot;
            waiting &= waiting - 1;
            let mut of_row = E::Real::ZERO;
            if index < rows.count {
                // SAFETY: the caller's conditions; the part is the lane's.
                unsafe {
                    let scale = self.scale_of_row(rows, index, scale);
                    let part = rows.part_of(index, split, bytes, &args.packed);
                    of_row = self.compute_any::<GRADS>(part, scale);
                }
            }
            // SAFETY: the caller's conditions.
            unsafe { self.add_row::<GRADS>(rows, split, index, of_row, sum) };
        }
    }

    /// Computes a lane's part of a row of any pairs, and returns the sum of its terms.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn compute_any<const GRADS: bool>(&self, mut part: Part, scale: E::Real) -> E::Real {
        let shared = part.shared;
        let is_written = |of: Matrix| GRADS && of.start != 0;
        let by_input = is_written(self.args.grad_input);
        let by_target = is_written(self.args.grad_target);
        let mut sum = E::Real::ZERO;
        let (mut access, mut within) = (part.first, 0);
        loop {
            if access >= part.end {
                let Some(edges) = part.edges_of::<E>() else { return sum };
                (part, access) = (edges, edges.first);
                continue;
            }
            let offset = part.offset(access) + within;
            // SAFETY: the caller's conditions; the access is the lane's.
            unsafe {
                let x = shared.element::<E>(part.at[0] + offset).widen();
                let t = shared.element::<E>(part.at[1] + offset).widen();
                let [a, b] = self.loss.term::<false>(x, t);
                sum = a.fma(b, sum);
                if by_input {
                    let gradient = E::narrow(self.loss.grad_input::<false>(x, t, scale));
                    shared.set_element(part.to[0] + offset, gradient);
                }
                if by_target {
                    let gradient = E::narrow(self.loss.grad_target::<false>(x, t, scale));
                    shared.set_element(part.to[1] + offset, gradient);
                }
            }
            within = opaque(u64::from(within + size_of::<E>() as u32)) as u32;
            if within == part.bytes {
                (access, within) = (access + part.step, 0);
            }
        }
    }
}
