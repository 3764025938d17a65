//! The scales of the gradients where each row has an upstream gradient and all rows are treated as
//! one.

use crate::abi::{Matrix, PairwiseArgs, UpstreamRows};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::math::quotient;
use core::marker::PhantomData;
use cuda_std::memory::load;

/// Finds the row of an element of dense tensors, and that row's scale.
#[derive(Clone, Copy)]
pub(super) struct RowScales<R> {
    upstream: Matrix,
    rows: UpstreamRows,
    divisor: f64,
    /// 1 ÷ `divisor`, by which [`quotient`] multiplies too.
    inverse: f64,
    real: PhantomData<R>,
}

impl<R: Real> RowScales<R> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new(args: &PairwiseArgs) -> Self {
        let &PairwiseArgs { upstream, upstream_rows: rows, divisor, .. } = args;
        RowScales {
            upstream,
            rows,
            divisor,
            inverse: quotient::<R>(1.0, divisor),
            real: PhantomData,
        }
    }

    /// The row and the column of an element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn place(&self, element: u64) -> (u64, u32) {
        let UpstreamRows { reciprocal, cols } = self.rows;
        // The product is less than 1 below the quotient, so its integer part may be one too small;
        // the remainder is then below twice the columns, which fits into 32 bits.
        let row = ((u128::from(element) * u128::from(reciprocal)) >> 64) as u64;
        let col = (element as u32).wrapping_sub((row as u32).wrapping_mul(cols));
        if col >= cols { (row + 1, col - cols) } else { (row, col) }
    }

    /// The scale of a row.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. Rows have upstream gradients, and there is this row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn of_row(&self, row: u64) -> R {
        let from = self.upstream.start as *const R;
        // SAFETY: the caller's conditions.
        let upstream =
            unsafe { load(from.wrapping_add((row * self.upstream.row_stride) as usize)) };
        let upstream = upstream.to_f64();
        let is_f64 = size_of::<R>() == 8;
        R::from_f64(if is_f64 { upstream / self.divisor } else { upstream * self.inverse })
    }

    /// The scale of an element.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s condition 1 holds.
    /// 2. Rows have scales, and one has this element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn of_element(&self, element: u64) -> R {
        // SAFETY: the caller's conditions.
        unsafe { self.of_row(self.place(element).0) }
    }

    /// Loads the scales of the first two rows that a vector has elements of; it may have elements
    /// of more.
    ///
    /// # Safety
    /// As [`of_element`](Self::of_element), for each of the vector's elements.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load<E: Element<Real = R>>(&self, first: u64) -> VectorScales<R> {
        let (row, col) = self.place(first);
        let next_row = self.rows.cols - col;
        let next = if next_row < E::LANES { row + 1 } else { row };
        // SAFETY: the caller's conditions: each row has one of the elements.
        unsafe { VectorScales { next_row, scales: [self.of_row(row), self.of_row(next)] } }
    }

    /// The scale of each element of the vector that begins with element `first`.
    ///
    /// # Safety
    /// As [`load`](Self::load), which returned `of` for this vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn of_lanes<E: Element<Real = R>>(
        &self,
        first: u64,
        of: VectorScales<R>,
    ) -> [R; MAX_LANES] {
        let VectorScales { mut next_row, scales: [of_first, mut next] } = of;
        let mut scales = [of_first; MAX_LANES];
        while next_row < E::LANES {
            unrolled!(for lane in 1..E::LANES as usize; {
                scales[lane] = if lane as u32 >= next_row { next } else { scales[lane] };
            });
            next_row += self.rows.cols;
            // A vector of two elements has no element of a third row.
            if E::LANES > 2 && next_row < E::LANES {
                // SAFETY: the caller's conditions: the lane is one of the elements.
                next = unsafe { self.of_element(first + u64::from(next_row)) };
            }
        }
        scales
    }
}

/// The scales of the first two rows of a vector.
#[derive(Clone, Copy)]
pub(super) struct VectorScales<R> {
    /// The lane with which the next row begins; beyond the vector if that has elements of one row
    /// only.
    next_row: u32,
    scales: [R; 2],
}

impl<R: Real> VectorScales<R> {
    pub(super) const NONE: Self = VectorScales { next_row: 0, scales: [R::ZERO; 2] };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quotient and the remainder, of elements beyond 32 bits and up to the last of 64, too.
    #[test]
    fn the_row_and_the_column_of_an_element() {
        for cols in [1, 2, 3, 7, 1_000, 65_537, (1 << 31) - 1] {
            let rows = UpstreamRows { reciprocal: u64::MAX / u64::from(cols), cols };
            let upstream = Matrix::default();
            let scales =
                RowScales { upstream, rows, divisor: 1.0, inverse: 1.0, real: PhantomData::<f32> };
            let wide = u64::from(cols);
            let last = u64::MAX / wide - 1;
            for near in [0, 1, 2, u64::from(u32::MAX), 1 << 40, last].map(|near| near.min(last)) {
                for element in [near * wide, near * wide + wide / 2, near * wide + (wide - 1)] {
                    let expected = (element / wide, (element % wide) as u32);
                    assert_eq!(scales.place(element), expected, "{element}, {cols} columns");
                }
            }
        }
    }
}
