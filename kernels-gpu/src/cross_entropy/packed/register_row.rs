//! A row of at most 16 columns in one lane's registers.
//!
//! The number of columns is a compile-time constant. Short rows cost more per row than per element,
//! so that a loop whose trip count is only known at launch, or a branch for each digit of the
//! count, would cost more than the arithmetic inside it.

use super::lane_row::{Access, LaneRow, SharedRow, is_ordered};
use crate::abi::{VECTOR_BYTES, lane_row_cols};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, MAX_LANES, Real, unrolled};
use cuda_std::hint::opaque;
use cuda_std::memory::{Vec16, load};

/// The most columns of a row that a lane has registers for.
pub(super) const fn most_cols<E: Element>() -> usize {
    lane_row_cols(size_of::<E>() as u32) as usize
}

/// Runs `$body` with the constant `$name`, which is `$cols`: from 1 to [`most_cols`] of `$element`.
/// For any other number the value is `$none`.
macro_rules! with_columns {
    ($name:ident = $cols:expr, $element:ty, $none:expr; $body:expr) => {
        with_columns!(@ $name, $cols, $element, $none, $body;
            1 2 3 4 5 6 7 8; 9 10 11 12 13 14 15 16)
    };
    (@ $name:ident, $cols:expr, $element:ty, $none:expr, $body:expr;
        $($few:literal)+; $($many:literal)+) => {
        match $cols {
            $($few => {
                const $name: usize = $few;
                $body
            })+
            $($many if most_cols::<$element>() > 8 => {
                const $name: usize = $many;
                $body
            })+
            _ => $none,
        }
    };
}
pub(super) use with_columns;

/// Runs `$body` for each of `$cols` columns, unrolled; see [`unrolled`].
macro_rules! for_each_column {
    ($column:ident in $cols:expr; $body:block) => {
        for_each_column!(@ $column $cols; $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $column:ident $cols:expr; $body:block; $($value:literal)+) => {
        $(if $value < $cols {
            let $column: usize = $value;
            $body
        })+
    };
}

/// Registers of a row: the most columns of any row, and padding that keeps constant indices within
/// bounds in code that is never reached.
const REGISTERS: usize = 16 + MAX_LANES;

/// Pairs of 16-bit elements of a row, with the same padding.
const MOST_PAIRS: usize = REGISTERS / 2;

/// A row's values in registers, one for each of its `COLS` columns: its logits, their exponentials,
/// or its gradients. Its vectors may be permuted (see [`SharedRow::order`]).
pub(super) struct RegisterRow<E: Element, const COLS: usize> {
    numbers: [E::Real; REGISTERS],
    /// The logits in pairs, if elements have 16 bits.
    pairs: [u32; MOST_PAIRS],
    /// See [`SharedRow`].
    order: u32,
}

impl<E: Element, const COLS: usize> RegisterRow<E, COLS> {
    /// Whether the vectors of a row may be permuted.
    const IS_ORDERED: bool = is_ordered(COLS * size_of::<E>());

    /// Reads the row.
    ///
    /// # Safety
    /// 1. The copy of the row to shared memory is complete.
    /// 2. It has `COLS` columns, and allows the `access`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(&mut self, source: SharedRow, access: Access) {
        // SAFETY: the caller's conditions.
        unsafe {
            match access.bytes::<E>(COLS) {
                16 => self.load_by::<16>(source),
                8 => self.load_by::<8>(source),
                4 => self.load_by::<4>(source),
                _ => self.load_by::<2>(source),
            }
        }
    }

    /// # Safety
    /// As [`load`](Self::load), with accesses of `BYTES` bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_by<const BYTES: usize>(&mut self, source: SharedRow) {
        let columns = BYTES / size_of::<E>();
        for_each_column!(column in COLS; {
            if columns > 0 && column.is_multiple_of(columns) {
                let within = column * size_of::<E>();
                // SAFETY: the caller's conditions.
                let vector = unsafe {
                    source.shared_at(within, COLS * size_of::<E>()).load_bytes::<BYTES>(0)
                };
                unrolled!(for k in 0..MAX_LANES; {
                    if k < columns {
                        self.numbers[column + k] = E::extract(vector, k as u32).widen();
                    }
                });
                if BYTES >= 4 {
                    unrolled!(for k in 0..4; {
                        if k < BYTES / 4 {
                            self.pairs[column / 2 + k] = vector.0[k];
                        }
                    });
                } else if column.is_multiple_of(2) {
                    self.pairs[column / 2] = vector.0[0];
                } else {
                    self.pairs[column / 2] |= vector.0[0] << 16;
                }
            }
        });
    }

    /// The class whose value register `column` has.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn class_of(&self, column: usize) -> u32 {
        if Self::IS_ORDERED { column as u32 ^ (self.order * E::LANES) } else { column as u32 }
    }

    /// The weight of the class whose value register `column` has; the class weights are at
    /// `weights`. Only the address of the first class of each vector has to be computed.
    ///
    /// # Safety
    /// `weights` is the address of the class weights, or null.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn weight_of<const MODE: u32>(&self, weights: u64, column: usize) -> E::Real {
        if MODE != mode::WEIGHTED && weights == 0 {
            return E::Real::ONE;
        }
        let lanes = E::LANES as usize;
        let (vector, within) = (column / lanes, column % lanes);
        let vector = if Self::IS_ORDERED { vector as u32 ^ self.order } else { vector as u32 };
        let at = (weights + u64::from(vector * VECTOR_BYTES)) as *const E;
        // SAFETY: the caller's condition.
        unsafe { load(at.wrapping_add(within)) }.widen()
    }

    /// 0, the first class. If each class has a share of the target, it is opaque: otherwise LLVM
    /// would keep the shares in registers from the statistics to the gradients, for which there are
    /// too few.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn first_class<const MODE: u32>() -> u32 {
        if Pass::<E, MODE>::DENSE { opaque(0) as u32 } else { 0 }
    }

    /// [`store`](Self::store) where the `access` is not a constant.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_by_access(&self, to: SharedRow, access: Access) {
        // SAFETY: the caller's conditions.
        unsafe {
            if access == Access::Natural {
                self.store(to, Access::Natural);
            } else {
                self.store(to, Access::Element);
            }
        }
    }

    /// Writes the row to shared memory.
    ///
    /// # Safety
    /// As [`load`](Self::load), for row `to`; no other thread accesses it until the warp
    /// synchronises.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store(&self, to: SharedRow, access: Access) {
        // SAFETY: the caller's conditions.
        unsafe {
            match access.bytes::<E>(COLS) {
                16 => self.store_by::<16>(to),
                8 => self.store_by::<8>(to),
                4 => self.store_by::<4>(to),
                _ => self.store_by::<2>(to),
            }
        }
    }

    /// # Safety
    /// As [`store`](Self::store), with accesses of `BYTES` bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_by<const BYTES: usize>(&self, to: SharedRow) {
        let columns = BYTES / size_of::<E>();
        for_each_column!(column in COLS; {
            if columns > 0 && column.is_multiple_of(columns) {
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for k in 0..MAX_LANES; {
                    if k < columns {
                        values[k] = self.numbers[column + k];
                    }
                });
                let within = column * size_of::<E>();
                // SAFETY: the caller's conditions.
                unsafe {
                    let at = to.shared_at(within, COLS * size_of::<E>());
                    at.store_bytes::<BYTES>(0, E::narrow_all(values));
                }
            }
        });
    }
}

impl<E: Element, const COLS: usize> RegisterRow<E, COLS> {
    /// Whether the row is read in pairs of elements of 16 bits.
    const HAS_PAIRS: bool = size_of::<E>() == 2 && COLS.is_multiple_of(2);

    /// The largest logit, and all others, in positions 1 and up.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn split(&self) -> (E::Real, [E::Real; REGISTERS]) {
        let mut max = self.numbers[0];
        let mut others = [E::Real::ZERO; REGISTERS];
        for_each_column!(column in COLS; {
            if column > 0 {
                [others[column], max] = max.min_max(self.numbers[column]);
            }
        });
        (max, others)
    }

    /// [`split`](Self::split) that compares pairs of 16-bit logits.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn split_pairs(&self) -> (E::Real, [E::Real; REGISTERS]) {
        let two = |pair| [0, 1].map(|lane| E::extract(Vec16([pair; 4]), lane).widen());
        let mut largest = self.pairs[0];
        let mut others = [E::Real::ZERO; REGISTERS];
        for_each_column!(column in COLS; {
            if column > 0 && column.is_multiple_of(2) {
                let [smaller, larger] = E::min_max_pairs(largest, self.pairs[column / 2]);
                largest = larger;
                [others[column], others[column + 1]] = two(smaller);
            }
        });
        let [a, b] = two(largest);
        let [smaller, max] = a.min_max(b);
        others[1] = smaller;
        (max, others)
    }
}

impl<E: Element, const COLS: usize> LaneRow<E> for RegisterRow<E, COLS> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn new(source: SharedRow, _cols: u32, access: Access) -> Self {
        let mut row = RegisterRow {
            numbers: [E::Real::ZERO; REGISTERS],
            pairs: [0; MOST_PAIRS],
            order: source.order,
        };
        // SAFETY: the caller's conditions.
        unsafe {
            if access == Access::Natural {
                row.load(source, Access::Natural);
            } else {
                row.load(source, Access::Element);
            }
        }
        row
    }

    // The sum of the exponentials leaves out the 1 of a largest logit: added to it, the others
    // would lose their digits. If the largest logit is infinite, its difference from itself is NaN,
    // and so is the sum: the row has no distribution.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[allow(unused_assignments)] // of `largest`, in the last column
    unsafe fn make_exps<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        (t, access): (SharedRow, Access),
    ) -> Stats<E::Real> {
        let mut probabilities = [E::Real::ZERO; REGISTERS];
        if MODE == mode::PROBABILITIES {
            // SAFETY: the caller's conditions.
            probabilities = unsafe { Self::new(t, COLS as u32, access) }.numbers;
        }
        let mut max = self.numbers[0];
        for_each_column!(column in COLS; {
            if column > 0 {
                max = max.max(self.numbers[column]);
            }
        });
        // Each step keeps the larger of two exponentials and adds the smaller one to the sum, so
        // that the first exponential that is 1 is left out.
        let mut largest = E::Real::ZERO;
        let mut rests = [E::Real::ZERO; 2];
        // The first exponential is the largest so far. In f64, a NaN there would be lost.
        let first = if size_of::<E::Real>() == 4 && COLS > 1 { 1 } else { 0 };
        let mut shares = [E::Real::ZERO; 2];
        for_each_column!(column in COLS; {
            let x = self.numbers[column];
            if MODE == mode::SMOOTHED {
                shares[0] = pass.unit().fma(x - max, shares[0]);
            } else if Pass::<E, MODE>::DENSE {
                // SAFETY: the caller's conditions.
                let weight = unsafe { self.weight_of::<MODE>(pass.weights(), column) };
                let share = pass.share_by_weight(weight, probabilities[column]);
                shares = [share.fma(x - max, shares[0]), shares[1] + share];
            }
            let exp = (x - max).exp_below();
            self.numbers[column] = exp;
            if column < first {
                largest = exp;
            } else {
                let [smaller, larger] = largest.min_max(exp);
                largest = larger;
                // The first term is assigned, not added to 0, which would take an instruction.
                let sum = (column - first) % 2;
                rests[sum] = if column < first + 2 { smaller } else { rests[sum] + smaller };
            }
        });
        let rest = rests[0] + rests[1];
        let [dot, mut weight] = shares;
        if MODE == mode::SMOOTHED {
            weight = pass.sum_of_units();
        }
        Stats { max, ties: E::Real::ONE, rest, dot, weight }
    }

    // Here the maximum is separated from all other logits, so that its exponential, which is 1, is
    // neither computed nor compared. The shares of a dense target belong to columns, so they need
    // all logits in place, and there are no registers for both.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn statistics<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        t: (SharedRow, Access),
    ) -> Stats<E::Real> {
        if Pass::<E, MODE>::DENSE {
            // SAFETY: the caller's conditions.
            return unsafe { self.make_exps(pass, t) };
        }
        let (max, others) = if Self::HAS_PAIRS { self.split_pairs() } else { self.split() };
        // NaN if the maximum is infinite or NaN: the row has no distribution.
        #[allow(clippy::eq_op)] // of infinities
        let mut rests = [max - max, E::Real::ZERO];
        for_each_column!(column in COLS; {
            if column > 0 {
                let exp = (others[column] - max).exp_below();
                rests[column % 2] = rests[column % 2] + exp;
            }
        });
        Stats { max, ties: E::Real::ONE, rest: rests[0] + rests[1], ..Stats::NONE }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn make_exps_from(&mut self, center: E::Real) {
        for_each_column!(column in COLS; {
            self.numbers[column] = (self.numbers[column] - center).exp_below();
        });
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_gradients<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        factors: &Factors<E::Real>,
        to: SharedRow,
        access: Access,
    ) {
        let weights = opaque(pass.weights());
        for_each_column!(column in COLS; {
            let mut gradient = self.numbers[column] * factors.factor;
            if MODE == mode::SMOOTHED {
                let share = -(factors.by_share * pass.unit());
                gradient = self.numbers[column].fma(factors.factor, share);
            } else if Pass::<E, MODE>::DENSE {
                // SAFETY: the caller's conditions.
                let weight = unsafe { self.weight_of::<MODE>(weights, column) };
                let by_weight = -(factors.by_share * pass.unit());
                gradient = by_weight.fma(weight, gradient);
            }
            self.numbers[column] = gradient;
        });
        // SAFETY: the caller's conditions.
        unsafe { self.store_by_access(to, access) };
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_gradients_of_both<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        factors: &Factors<E::Real>,
        (t, access): (SharedRow, Access),
        [to_logits, to_probabilities]: [Option<SharedRow>; 2],
        store_access: Access,
    ) {
        // SAFETY: the caller's conditions.
        unsafe {
            let mut row = Self::new(t, COLS as u32, access);
            let first = Self::first_class::<MODE>();
            for_each_column!(column in COLS; {
                let (x, t) = (self.numbers[column], row.numbers[column]);
                let class = first + self.class_of(column);
                let exp = (x - factors.center).exp_below();
                let share = pass.gradient_of_share(factors, class, t);
                self.numbers[column] = exp * factors.factor - share;
                row.numbers[column] = pass.gradient_of_target(factors, class, x);
            });
            if let Some(to) = to_logits {
                self.store_by_access(to, store_access);
            }
            if let Some(to) = to_probabilities {
                row.store_by_access(to, store_access);
            }
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_zeros(&mut self, to: SharedRow, access: Access) {
        for_each_column!(column in COLS; {
            self.numbers[column] = E::Real::ZERO;
        });
        // SAFETY: the caller's conditions.
        unsafe { self.store_by_access(to, access) };
    }
}
