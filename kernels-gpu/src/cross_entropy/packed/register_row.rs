//! A row of at most 16 columns in one lane's registers.
//!
//! Short rows cost more per row than per element, so a loop over shared memory whose trip count is
//! known at launch only would cost more than the arithmetic inside it. The columns are therefore
//! split into chunks of 16, 8, 4, 2 and 1, the binary digits of the row's length. Each chunk is
//! straight-line code behind a branch that the whole warp takes alike, and no lane computes on
//! padding.

use crate::abi::lane_row_cols;
use crate::cross_entropy::pass::Factors;
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::tile::Shared;
use core::mem::MaybeUninit;
use cuda_std::hint::opaque;
use cuda_std::memory::Vec16;

/// The most columns of a row that a lane has registers for.
const fn most_cols<E: Element>() -> usize {
    lane_row_cols(size_of::<E>() as u32) as usize
}

/// Registers of a row: 16 columns at most, and padding that keeps constant indices within bounds in
/// code that is never reached.
const REGISTERS: usize = 16 + MAX_LANES;

/// A column of a row in registers. All fields but `first` are compile-time constants.
#[derive(Clone, Copy)]
struct Column {
    /// The index of its register.
    register: usize,
    /// The first column of its chunk.
    first: u32,
    /// Its position in the chunk.
    within: u32,
    /// Columns of the chunk.
    chunk: usize,
}

/// The first register of a chunk of this many columns. Chunks are in registers from long to short.
/// The longest shares its registers with all others, since a row that has it has no other chunk.
const fn first_register<E: Element>(chunk: usize) -> usize {
    most_cols::<E>().saturating_sub(2 * chunk)
}

/// Runs a block for each of a row's `cols` columns, chunk by chunk, fully unrolled.
///
/// It is a macro, since LLVM does not inline a closure this often, and a call would force the
/// registers into local memory. The longest chunk and all others are in different branches of an
/// `if`: otherwise its registers would stay live for the others.
macro_rules! for_each_column {
    ($column:pat in $cols:expr, $element:ty; $body:block) => {{
        let cols: u32 = $cols;
        let most = most_cols::<$element>();
        if cols == most as u32 {
            if most == 16 {
                for_each_column!(@ $column, cols, $element, $body;
                    16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            } else {
                for_each_column!(@ $column, cols, $element, $body; 8: 0 1 2 3 4 5 6 7);
            }
        } else {
            if most > 8 && cols & 8 != 0 {
                for_each_column!(@ $column, cols, $element, $body; 8: 0 1 2 3 4 5 6 7);
            }
            if cols & 4 != 0 {
                for_each_column!(@ $column, cols, $element, $body; 4: 0 1 2 3);
            }
            if cols & 2 != 0 {
                for_each_column!(@ $column, cols, $element, $body; 2: 0 1);
            }
            if cols & 1 != 0 {
                for_each_column!(@ $column, cols, $element, $body; 1: 0);
            }
        }
    }};
    (@ $column:pat, $cols:ident, $element:ty, $body:block; $chunk:literal: $($k:literal)+) => {
        let first = $cols & !(2 * $chunk - 1);
        $({
            let register = first_register::<$element>($chunk) + $k;
            let $column = Column { register, first, within: $k, chunk: $chunk };
            $body
        })+
    };
}

/// A row in shared memory.
#[derive(Clone, Copy)]
pub(super) struct SharedRow {
    pub(super) shared: Shared,
    /// Its first byte.
    pub(super) at: u32,
    pub(super) cols: u32,
    /// Bytes of one access: 16, 8, 4 or the element's.
    pub(super) access: u32,
    /// The lane reads vector `v ^ order` in place of `v`, so that lanes of different rows read
    /// different banks; see `TileArgs::order_right`.
    pub(super) order: u32,
}

impl SharedRow {
    /// A copy that the compiler cannot see through, so that it loads the row a second time rather
    /// than keep it in registers.
    #[inline(always)]
    pub(super) fn rematerialize(self) -> Self {
        SharedRow { at: opaque(self.at.into()) as u32, ..self }
    }

    /// The shared memory from column `first + within` on. The address of the chunk is computed
    /// once; the position `within` it becomes the constant offset of a load.
    ///
    /// # Safety
    /// The row has the column.
    #[inline(always)]
    unsafe fn shared_at<const ACCESS: usize, E: Element>(self, first: u32, within: u32) -> Shared {
        let SharedRow { shared, at, order, .. } = self;
        let [first, within] = [first, within].map(|column| column * size_of::<E>() as u32);
        // SAFETY: the caller's condition.
        unsafe {
            if ACCESS == size_of::<Vec16>() {
                shared.after(at + ((first + within) ^ (order * ACCESS as u32)))
            } else {
                shared.after(at + first).after(within)
            }
        }
    }
}

/// A row in registers. The registers of its columns are initialised, and no others.
pub(super) struct RegisterRow<E: Element> {
    source: SharedRow,
    registers: [MaybeUninit<E::Real>; REGISTERS],
}

impl<E: Element> RegisterRow<E> {
    /// A row whose registers are not initialised.
    #[inline(always)]
    pub(super) fn unread(source: SharedRow) -> Self {
        RegisterRow { source, registers: [MaybeUninit::uninit(); REGISTERS] }
    }

    /// Reads the row.
    ///
    /// # Safety
    /// 1. The copy of the row to shared memory is complete.
    /// 2. It has at most [`most_cols`] columns.
    /// 3. `access` divides the byte that it begins at, and its bytes.
    #[inline(always)]
    pub(super) unsafe fn load(source: SharedRow) -> Self {
        let mut row = Self::unread(source);
        // SAFETY: the caller's conditions.
        unsafe {
            match source.access {
                16 => row.load_by::<16>(),
                8 => row.load_by::<8>(),
                4 if size_of::<E>() <= 4 => row.load_by::<4>(),
                _ if size_of::<E>() == 2 => row.load_by::<2>(),
                _ => {}
            }
        }
        row
    }

    /// # Safety
    /// As [`load`](Self::load), with this access.
    #[inline(always)]
    unsafe fn load_by<const ACCESS: usize>(&mut self) {
        let cols = self.source.cols;
        let columns = ACCESS / size_of::<E>();
        for_each_column!(Column { register, first, within, chunk } in cols, E; {
            if chunk >= columns && (within as usize).is_multiple_of(columns) {
                // SAFETY: the caller's conditions.
                let vector = unsafe {
                    self.source.shared_at::<ACCESS, E>(first, within).load_bytes::<ACCESS>(0)
                };
                unrolled!(for k in 0..MAX_LANES; {
                    if k < columns {
                        self.registers[register + k].write(E::extract(vector, k as u32).widen());
                    }
                });
            }
        });
    }

    /// Writes the registers to a row in shared memory.
    ///
    /// # Safety
    /// As [`load`](Self::load), for row `to`; no other thread accesses it until the warp
    /// synchronises.
    #[inline(always)]
    pub(super) unsafe fn store(&self, to: SharedRow) {
        // SAFETY: the caller's conditions.
        unsafe {
            match to.access {
                16 => self.store_by::<16>(to),
                8 => self.store_by::<8>(to),
                4 if size_of::<E>() <= 4 => self.store_by::<4>(to),
                _ if size_of::<E>() == 2 => self.store_by::<2>(to),
                _ => {}
            }
        }
    }

    /// # Safety
    /// As [`store`](Self::store), with this access.
    #[inline(always)]
    unsafe fn store_by<const ACCESS: usize>(&self, to: SharedRow) {
        let cols = to.cols;
        let columns = ACCESS / size_of::<E>();
        for_each_column!(Column { register, first, within, chunk } in cols, E; {
            if chunk >= columns && (within as usize).is_multiple_of(columns) {
                let mut values = [E::Real::ZERO; MAX_LANES];
                // SAFETY: a column's register is initialised; the caller's conditions.
                unsafe {
                    unrolled!(for k in 0..MAX_LANES; {
                        if k < columns {
                            values[k] = self.registers[register + k].assume_init();
                        }
                    });
                    let at = to.shared_at::<ACCESS, E>(first, within);
                    at.store_bytes::<ACCESS>(0, E::narrow_all(values));
                }
            }
        });
    }

    /// The statistics of the row's exponentials. Their sum leaves out the largest logit, which
    /// would add 1: beside it, the others would lose their digits.
    ///
    /// With `OVERWRITTEN` the logits are overwritten, which saves registers. Without, chunks that
    /// the row does not have cost no register copies.
    #[inline(always)]
    pub(super) fn statistics<const OVERWRITTEN: bool>(&mut self) -> Stats<E::Real> {
        let cols = self.source.cols;
        let mut max = E::Real::NEG_INFINITY;
        // Each step keeps the larger of two logits and writes the smaller, so the largest is left
        // out in the end. The first step writes −∞, whose exponential is 0.
        let mut others = [MaybeUninit::<E::Real>::uninit(); REGISTERS];
        for_each_column!(Column { register, .. } in cols, E; {
            // SAFETY: a column's register is initialised.
            let logit = unsafe { self.registers[register].assume_init() };
            let [smaller, larger] = max.min_max(logit);
            if OVERWRITTEN {
                self.registers[register].write(smaller);
            } else {
                others[register].write(smaller);
            }
            max = larger;
        });
        let mut rests = [E::Real::ZERO; 2];
        for_each_column!(Column { register, .. } in cols, E; {
            let other = if OVERWRITTEN { self.registers[register] } else { others[register] };
            // SAFETY: written above.
            let other = unsafe { other.assume_init() };
            rests[register % 2] = rests[register % 2] + (other - max).exp_below();
        });
        // ∞ − ∞ is NaN: a row whose largest logit is infinite has no distribution.
        let rest = rests[0] + rests[1] + (max + -max);
        Stats { max, ties: E::Real::ONE, rest, ..Stats::NONE }
    }

    /// Replaces the logits by their gradients. The class's own is computed like any other; the
    /// caller overwrites it.
    #[inline(always)]
    pub(super) fn make_gradients(&mut self, factors: &Factors<E::Real>) {
        for_each_column!(Column { register, .. } in self.source.cols, E; {
            // SAFETY: a column's register is initialised.
            let logit = unsafe { self.registers[register].assume_init() };
            let gradient = (logit - factors.center).exp_below() * factors.factor;
            self.registers[register].write(gradient);
        });
    }

    /// Sets all gradients to 0.
    #[inline(always)]
    pub(super) fn make_zeros(&mut self) {
        for_each_column!(Column { register, .. } in self.source.cols, E; {
            self.registers[register].write(E::Real::ZERO);
        });
    }
}
