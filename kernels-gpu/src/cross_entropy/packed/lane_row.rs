//! A row that one lane computes, in its [registers](super::register_row::RegisterRow) or read from
//! shared memory for each step ([`WideRow`](super::wide_row::WideRow)): its address, and how it is
//! accessed.

use crate::abi::VECTOR_BYTES;
use crate::cross_entropy::pass::{Factors, Pass};
use crate::cross_entropy::stats::Stats;
use crate::element::Element;
use crate::tile::Shared;
use cuda_std::hint::opaque;

/// Runs `$body` with the type `$row` of a [`LaneRow`] of `$cols` columns, which allows accesses of
/// `$access` bytes. If `$wide`, the row has more columns than [`most_cols`].
macro_rules! with_row {
    ($row:ident of $cols:expr, $access:expr, $element:ty, $wide:expr, $none:expr; $body:expr) => {{
        if !$wide {
            with_columns!(COLS = $cols, $element, $none; {
                type $row<E> = RegisterRow<E, COLS>;
                $body
            })
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
                4 if size_of::<$element>() <= 4 => {
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

/// A row in shared memory.
#[derive(Clone, Copy)]
pub(super) struct SharedRow {
    pub(super) shared: Shared,
    /// The address of its first byte in shared memory.
    pub(super) at: u32,
    /// The lane accesses vector `v ^ order` in place of `v`, so that lanes of different rows access
    /// different banks; see `TileArgs::order_right`. Wide rows that begin or end within a word are
    /// rotated by it instead.
    pub(super) order: u32,
    /// Whether rows of this launch have different orders.
    pub(super) has_orders: bool,
}

/// Whether rows of `row_bytes` may have an [order](SharedRow::order): rows of several whole
/// vectors.
pub(super) const fn is_ordered(row_bytes: usize) -> bool {
    let vector = VECTOR_BYTES as usize;
    row_bytes > vector && row_bytes.is_multiple_of(vector)
}

/// The bytes of a lane's accesses to its row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The largest power of two, up to a vector's 16 bytes, that divides the bytes of the row.
    Natural,
    /// The size of an element.
    Element,
}

impl Access {
    /// The number of bytes of [`Natural`](Self::Natural).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) const fn natural<E: Element>(cols: usize) -> usize {
        let bytes = cols * size_of::<E>();
        let power = bytes & bytes.wrapping_neg();
        if power < 16 { power } else { 16 }
    }

    /// The widest access to rows of `cols` columns, if they allow accesses of `bytes` bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn of<E: Element>(bytes: u32, cols: u32) -> Self {
        let natural = Self::natural::<E>(cols as usize) as u32;
        if bytes == natural { Access::Natural } else { Access::Element }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) const fn bytes<E: Element>(self, cols: usize) -> usize {
        match self {
            Access::Natural => Self::natural::<E>(cols),
            Access::Element => size_of::<E>(),
        }
    }
}

impl SharedRow {
    /// A copy that the compiler cannot see through, so that it loads the row a second time rather
    /// than keep it in registers.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn rematerialize(self) -> Self {
        SharedRow { at: opaque(self.at.into()) as u32, ..self }
    }

    /// The shared memory from byte `within` of a row of `row_bytes` on. If the row has more than
    /// one vector, an access there must be within one.
    ///
    /// # Safety
    /// The row has the byte.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn shared_at(self, within: usize, row_bytes: usize) -> Shared {
        let SharedRow { shared, at, order, .. } = self;
        let within = within as u32;
        // SAFETY: the caller's condition.
        unsafe {
            // The order is that of whole vectors, whatever the size of an access: logits and
            // gradients may allow different sizes.
            if is_ordered(row_bytes) {
                shared.after(at + (within ^ (order * VECTOR_BYTES)))
            } else {
                shared.after(at).after(within)
            }
        }
    }
}

/// A row that one lane computes. Its methods are inlined on a GPU only: in an unoptimised build for
/// the emulator, one frame would have to hold the variables of all numbers of columns.
pub(super) trait LaneRow<E: Element>: Sized {
    /// The row at `source`, which has `cols` columns and allows the `access`.
    ///
    /// # Safety
    /// The copy of the row to shared memory is complete, and no other thread accesses it until the
    /// warp synchronises.
    unsafe fn new(source: SharedRow, cols: u32, access: Access) -> Self;
    /// The statistics of these logits, which are replaced by their exponentials exp(x − max). Row
    /// `t` has the probabilities, where these are the target.
    ///
    /// # Safety
    /// As [`new`](Self::new), for row `t` too; the kernels' condition 1.
    unsafe fn make_exps<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        t: (SharedRow, Access),
    ) -> Stats<E::Real>;
    /// The statistics of these logits, where no gradients follow that need their exponentials.
    ///
    /// # Safety
    /// As [`make_exps`](Self::make_exps).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn statistics<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        t: (SharedRow, Access),
    ) -> Stats<E::Real> {
        // SAFETY: the caller's conditions.
        unsafe { self.make_exps(pass, t) }
    }
    /// Replaces logits by their exponentials exp(x − `center`).
    ///
    /// # Safety
    /// As [`new`](Self::new).
    unsafe fn make_exps_from(&mut self, center: E::Real);
    /// Writes the gradients to row `to`, which may be the row itself: the exponentials times the
    /// factor of `factors`, less the terms of the target's shares if it has one for every class.
    ///
    /// # Safety
    /// As [`make_exps`](Self::make_exps), for row `to` too.
    unsafe fn store_gradients<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        factors: &Factors<E::Real>,
        to: SharedRow,
        access: Access,
    );
    /// Writes the gradients of these logits and of their probabilities `t` to rows `to`, which may
    /// be these rows themselves. `None` for gradients that are not wanted.
    ///
    /// # Safety
    /// As [`make_exps`](Self::make_exps), for rows `to` too.
    unsafe fn store_gradients_of_both<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        factors: &Factors<E::Real>,
        t: (SharedRow, Access),
        to: [Option<SharedRow>; 2],
        access: Access,
    );
    /// Writes zeros to row `to`.
    ///
    /// # Safety
    /// As [`new`](Self::new), for row `to` too.
    unsafe fn store_zeros(&mut self, to: SharedRow, access: Access);
}
