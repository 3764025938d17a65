//! A row of at most 16 columns in one lane's registers.
//!
//! The number of columns is a compile-time constant. Short rows cost more per row than per element,
//! so a loop over columns whose trip count is known at launch only, or a branch for each digit of
//! the count, would cost more than the arithmetic inside it.

use crate::abi::{VECTOR_BYTES, lane_row_cols};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::tile::Shared;
use cuda_std::hint::opaque;

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

/// Runs `$body` with the type `$row` of a [`LaneRow`] of `$cols` columns, of which accesses of
/// `$access` bytes are allowed: if it is `$wide`, one with more columns than [`most_cols`].
macro_rules! with_row {
    ($row:ident of $cols:expr, $access:expr, $element:ty, $wide:expr, $none:expr; $body:expr) => {{
        if !$wide {
            with_columns!(COLS = $cols, $element, $none; {
                type $row<E> = RegisterRow<E, COLS>;
                $body
            })
        } else if size_of::<$element>() > 4 {
            $none
        } else {
            match $access {
                16 => {
                    type $row<E> = WideRow<E, 16>;
                    $body
                }
                8 => {
                    type $row<E> = WideRow<E, 8>;
                    $body
                }
                4 => {
                    type $row<E> = WideRow<E, 4>;
                    $body
                }
                2 if size_of::<$element>() == 2 => {
                    type $row<E> = WideRow<E, 2>;
                    $body
                }
                _ => $none,
            }
        }
    }};
}
pub(super) use with_row;

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

/// A row in shared memory.
#[derive(Clone, Copy)]
pub(super) struct SharedRow {
    pub(super) shared: Shared,
    /// Its first byte.
    pub(super) at: u32,
    /// The lane accesses vector `v ^ order` in place of `v`, so that lanes of different rows access
    /// different banks; see `TileArgs::order_right`.
    pub(super) order: u32,
}

/// The bytes of a lane's accesses to its row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The largest power of two, up to a vector's 16 bytes, of which the row is a multiple.
    Natural,
    /// An element's.
    Element,
}

impl Access {
    /// The bytes that [`Natural`](Self::Natural) stands for.
    #[inline(always)]
    pub(super) const fn natural<E: Element>(cols: usize) -> usize {
        let bytes = cols * size_of::<E>();
        let power = bytes & bytes.wrapping_neg();
        if power < 16 { power } else { 16 }
    }

    /// The widest access that rows which allow accesses of `bytes` allow.
    #[inline(always)]
    pub(super) fn of<E: Element>(bytes: u32, cols: u32) -> Self {
        let natural = Self::natural::<E>(cols as usize) as u32;
        if bytes == natural { Access::Natural } else { Access::Element }
    }

    #[inline(always)]
    const fn bytes<E: Element>(self, cols: usize) -> usize {
        match self {
            Access::Natural => Self::natural::<E>(cols),
            Access::Element => size_of::<E>(),
        }
    }
}

impl SharedRow {
    /// A copy that the compiler cannot see through, so that it loads the row a second time rather
    /// than keep it in registers.
    #[inline(always)]
    pub(super) fn rematerialize(self) -> Self {
        SharedRow { at: opaque(self.at.into()) as u32, ..self }
    }

    /// The shared memory from byte `within` a row of `row_bytes` on. An access there is within one
    /// vector, if the row has more than one.
    ///
    /// # Safety
    /// The row has the byte.
    #[inline(always)]
    unsafe fn shared_at(self, within: usize, row_bytes: usize) -> Shared {
        let SharedRow { shared, at, order } = self;
        let (within, vector) = (within as u32, VECTOR_BYTES as usize);
        // SAFETY: the caller's condition.
        unsafe {
            // The order is that of whole vectors, whatever the bytes of an access: logits and
            // gradients may allow different ones.
            if row_bytes > vector && row_bytes.is_multiple_of(vector) {
                shared.after(at + (within ^ (order * VECTOR_BYTES)))
            } else {
                shared.after(at).after(within)
            }
        }
    }
}

/// A row that one lane computes. Its methods are inlined on a GPU alone: an unoptimised build for
/// the emulator would add up the stacks of all numbers of columns in one frame.
pub(super) trait LaneRow<E: Element>: Sized {
    /// The row at `source`, which has `cols` columns and allows the `access`.
    ///
    /// # Safety
    /// The copy of the row to shared memory is complete, and no other thread accesses it until the
    /// warp synchronises.
    unsafe fn new(source: SharedRow, cols: u32, access: Access) -> Self;
    /// The statistics of these logits, which their exponentials exp(x − max) replace.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    unsafe fn make_exps(&mut self) -> Stats<E::Real>;
    /// Replaces logits by their exponentials exp(x − `center`).
    ///
    /// # Safety
    /// As [`new`](Self::new).
    unsafe fn make_exps_from(&mut self, center: E::Real);
    /// Writes the exponentials times `factor` to row `to`, which may be the row itself.
    ///
    /// # Safety
    /// As [`new`](Self::new), for row `to` too.
    unsafe fn store_times(&mut self, factor: E::Real, to: SharedRow, access: Access);
    /// Writes zeros to row `to`.
    ///
    /// # Safety
    /// As [`store_times`](Self::store_times).
    unsafe fn store_zeros(&mut self, to: SharedRow, access: Access);
}

/// A row's numbers in registers, one for each of its `COLS` columns: its logits, their
/// exponentials, or its gradients. Vectors may be in another [`order`](SharedRow::order).
pub(super) struct RegisterRow<E: Element, const COLS: usize>([E::Real; REGISTERS]);

impl<E: Element, const COLS: usize> RegisterRow<E, COLS> {
    /// Reads the row.
    ///
    /// # Safety
    /// 1. The copy of the row to shared memory is complete.
    /// 2. It has `COLS` columns, and allows the `access`.
    #[inline(always)]
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
    /// As [`load`](Self::load), with accesses of so many `BYTES`.
    #[inline(always)]
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
                        self.0[column + k] = E::extract(vector, k as u32).widen();
                    }
                });
            }
        });
    }

    /// Writes the row to shared memory.
    ///
    /// # Safety
    /// As [`load`](Self::load), for row `to`; no other thread accesses it until the warp
    /// synchronises.
    #[inline(always)]
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
    /// As [`store`](Self::store), with accesses of so many `BYTES`.
    #[inline(always)]
    unsafe fn store_by<const BYTES: usize>(&self, to: SharedRow) {
        let columns = BYTES / size_of::<E>();
        for_each_column!(column in COLS; {
            if columns > 0 && column.is_multiple_of(columns) {
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for k in 0..MAX_LANES; {
                    if k < columns {
                        values[k] = self.0[column + k];
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

impl<E: Element, const COLS: usize> LaneRow<E> for RegisterRow<E, COLS> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn new(source: SharedRow, _cols: u32, access: Access) -> Self {
        let mut row = RegisterRow([E::Real::ZERO; REGISTERS]);
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

    // The sum of the exponentials leaves out that of a largest logit, which would add 1: beside it,
    // the others would lose their digits. If the largest is infinite, its difference from itself is
    // NaN, and so is the sum: the row has no distribution.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[allow(unused_assignments)] // of `largest`, in the last column
    unsafe fn make_exps(&mut self) -> Stats<E::Real> {
        let mut max = self.0[0];
        for_each_column!(column in COLS; {
            if column > 0 {
                max = max.max(self.0[column]);
            }
        });
        // Each step keeps the larger of two exponentials and adds the smaller, so the first that is 1
        // is left out.
        let mut largest = E::Real::ZERO;
        let mut rests = [E::Real::ZERO; 2];
        for_each_column!(column in COLS; {
            let exp = (self.0[column] - max).exp_below();
            self.0[column] = exp;
            let [smaller, larger] = largest.min_max(exp);
            largest = larger;
            rests[column % 2] = rests[column % 2] + smaller;
        });
        let rest = rests[0] + rests[1];
        Stats { max, ties: E::Real::ONE, rest, ..Stats::NONE }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn make_exps_from(&mut self, center: E::Real) {
        for_each_column!(column in COLS; {
            self.0[column] = (self.0[column] - center).exp_below();
        });
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_times(&mut self, factor: E::Real, to: SharedRow, access: Access) {
        for_each_column!(column in COLS; {
            self.0[column] = self.0[column] * factor;
        });
        // SAFETY: the caller's conditions.
        unsafe {
            if access == Access::Natural {
                self.store(to, Access::Natural);
            } else {
                self.store(to, Access::Element);
            }
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_zeros(&mut self, to: SharedRow, access: Access) {
        for_each_column!(column in COLS; {
            self.0[column] = E::Real::ZERO;
        });
        // SAFETY: the caller's conditions.
        unsafe { self.store_times(E::Real::ONE, to, access) };
    }
}
