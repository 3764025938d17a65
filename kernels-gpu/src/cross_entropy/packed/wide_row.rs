//! A row of more columns than a lane has registers for, which the lane reads from shared memory
//! again for each step.

use super::LIKELY;
use super::lane_row::{Access, LaneRow, SharedRow};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Classes, Factors, Pass, weights};
use crate::cross_entropy::stats::{Relative, Stats};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::tile::Shared;
use core::marker::PhantomData;
use cuda_std::hint::opaque;
use cuda_std::memory::Vec16;

/// The most vectors that a step reads before it computes.
const MOST_FLIGHT: usize = 4;

/// A row in shared memory, cut into vectors. `ACCESS` is the bytes of an access; it divides the
/// row's bytes.
#[derive(Clone, Copy)]
pub(super) struct WideRow<E: Element, const ACCESS: usize> {
    source: SharedRow,
    /// Vectors that are whole.
    whole: u32,
    /// Accesses to the rest of the row after them; fewer than a vector has.
    rest: u32,
    /// The logit that is subtracted from all others before their exponentials are taken.
    center: E::Real,
    /// Whether exponentials have replaced the logits in shared memory.
    has_exps: bool,
    element: PhantomData<E>,
}

/// Runs `$body` for each vector of a row. `$vector` is its 16 bytes; the last vector may have fewer
/// elements, followed by −∞. `$index` is its number, `$accesses` the number of its accesses. This
/// is a macro, because LLVM does not inline a closure that is called three times.
macro_rules! for_each_vector {
    (($index:ident, $accesses:ident, $vector:ident) in $row:expr; $body:block) => {{
        let row: &WideRow<E, ACCESS> = $row;
        let mut at = 0;
        // Opaque, so that the compiler does not unroll these loops.
        while at + Self::FLIGHT <= row.whole {
            let vectors = row.vectors(at);
            unrolled!(for k in 0..MOST_FLIGHT; {
                if (k as u32) < Self::FLIGHT {
                    let ($index, $accesses, $vector) = (at + k as u32, Self::ACCESSES, vectors[k]);
                    $body
                }
            });
            at = opaque(u64::from(at + Self::FLIGHT)) as u32;
        }
        while at < row.whole {
            let ($index, $accesses, $vector) = (at, Self::ACCESSES, row.vector(at));
            $body
            at = opaque(u64::from(at + 1)) as u32;
        }
        if row.rest > 0 {
            let ($index, $accesses, $vector) = (row.whole, row.rest, row.part(row.rest));
            $body
        }
    }};
}

impl<E: Element, const ACCESS: usize> WideRow<E, ACCESS> {
    /// Vectors that a step loads before it computes, so that their latencies overlap.
    const FLIGHT: u32 = if size_of::<E>() == 4 { MOST_FLIGHT as u32 } else { 2 };
    /// Whether exponentials replace the logits until the gradients are computed: in f64 it would
    /// take longer to compute them twice.
    const KEEPS_EXPS: bool = size_of::<E>() == 8;
    /// Accesses to a vector.
    const ACCESSES: u32 = (size_of::<Vec16>() / ACCESS) as u32;

    /// The class of the first element of vector `index`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn class_of(&self, index: u32) -> u32 {
        (index ^ self.source.order) * E::LANES
    }

    /// Whether a vector of `accesses` accesses has an element at position `lane`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has(lane: usize, accesses: u32) -> bool {
        ((lane * size_of::<E>() / ACCESS) as u32) < accesses
    }

    /// Where vector `index` of `row` begins.
    ///
    /// # Safety
    /// The row has the vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn place(row: SharedRow, index: u32) -> Shared {
        let SharedRow { shared, at, order } = row;
        // SAFETY: the caller's condition.
        unsafe { shared.after(at + (index ^ order) * size_of::<Vec16>() as u32) }
    }

    /// A whole vector.
    ///
    /// # Safety
    /// 1. The copy of the row to shared memory is complete.
    /// 2. `index` is below `whole`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn vector(&self, index: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe {
            let place = Self::place(self.source, index);
            if Self::ACCESSES == 1 {
                return place.load_bytes::<16>(0);
            }
            Self::joined(|access| Self::load(place, access))
        }
    }

    /// The vectors of a step, from `index` on.
    ///
    /// # Safety
    /// As [`vector`](Self::vector), for all of them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn vectors(&self, index: u32) -> [Vec16; MOST_FLIGHT] {
        let mut vectors = [Vec16::default(); MOST_FLIGHT];
        unrolled!(for k in 0..MOST_FLIGHT; {
            if (k as u32) < Self::FLIGHT {
                // SAFETY: the caller's conditions.
                vectors[k] = unsafe { self.vector(index + k as u32) };
            }
        });
        vectors
    }

    /// The rest of the row, which has `accesses` accesses, followed by −∞.
    ///
    /// # Safety
    /// As [`vector`](Self::vector)'s condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn part(&self, accesses: u32) -> Vec16 {
        let Vec16([low, high, ..]) = E::pack([E::LOWEST; MAX_LANES]);
        // SAFETY: the caller's condition.
        unsafe {
            let place = Self::place(self.source, self.whole);
            Self::joined(|access| {
                if access < accesses {
                    Self::load(place, access)
                } else {
                    u64::from(high) << 32 | u64::from(low)
                }
            })
        }
    }

    /// Access number `access` from `place` on, of at most 8 bytes.
    ///
    /// # Safety
    /// As [`vector`](Self::vector)'s condition 1, for these bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(place: Shared, access: u32) -> u64 {
        // SAFETY: the caller's condition.
        let Vec16([low, high, ..]) = unsafe { place.load_bytes::<ACCESS>(access * ACCESS as u32) };
        u64::from(high) << 32 | u64::from(low)
    }

    /// Joins accesses of at most 8 bytes to a vector. They are joined as integers, because LLVM
    /// keeps an array that is written in branches in local memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn joined(access: impl Fn(u32) -> u64) -> Vec16 {
        match ACCESS {
            8 => {
                let [first, second] = [access(0), access(1)];
                Vec16([first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32])
            }
            4 => Vec16([0, 1, 2, 3].map(|word| access(word) as u32)),
            _ => {
                let half = |at| access(at) as u32 & 0xffff;
                Vec16([0, 2, 4, 6].map(|at| half(at) | half(at + 1) << 16))
            }
        }
    }

    /// Stores the first `accesses` accesses of a vector to `place` and beyond.
    ///
    /// # Safety
    /// As [`new`](LaneRow::new), for these bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store(place: Shared, vector: Vec16, accesses: u32) {
        unrolled!(for access in 0..8; {
            if access < Self::ACCESSES as usize && (access as u32) < accesses {
                let bytes = Self::taken(vector, access);
                // SAFETY: the caller's conditions.
                unsafe { place.store_bytes::<ACCESS>((access * ACCESS) as u32, bytes) };
            }
        });
    }

    /// The bytes of one access to a vector, moved to the beginning of a vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn taken(Vec16(words): Vec16, access: usize) -> Vec16 {
        match ACCESS {
            16 => Vec16(words),
            8 => Vec16([words[access * 2 % 4], words[(access * 2 + 1) % 4], 0, 0]),
            4 => Vec16([words[access % 4], 0, 0, 0]),
            _ => Vec16([words[access / 2 % 4] >> (access as u32 % 2 * 16), 0, 0, 0]),
        }
    }

    /// The number of accesses to the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn accesses(&self) -> u32 {
        self.whole * Self::ACCESSES + self.rest
    }

    /// The statistics of the row, with the exponential of a largest logit kept out of the sum of
    /// all others. Few rows need this, so the code is short rather than fast.
    ///
    /// # Safety
    /// As [`vector`](Self::vector)'s condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn sum_apart(&self, max: E::Real) -> Stats<E::Real> {
        // Each step keeps the larger of two exponentials and adds the smaller one to the sum, so
        // that the first exponential that is 1 is left out.
        let (mut largest, mut rest) = (E::Real::ZERO, E::Real::ZERO);
        let mut access = 0;
        while access < self.accesses() {
            let (vector, within) = (access / Self::ACCESSES, access % Self::ACCESSES);
            // SAFETY: the caller's condition.
            let bytes = unsafe {
                Self::place(self.source, vector).load_bytes::<ACCESS>(within * ACCESS as u32)
            };
            unrolled!(for lane in 0..MAX_LANES; {
                if lane < ACCESS / size_of::<E>() {
                    let number = E::extract(bytes, lane as u32).widen();
                    let exp = if self.has_exps { number } else { (number - max).exp_below() };
                    let [smaller, larger] = largest.min_max(exp);
                    largest = larger;
                    rest = rest + smaller;
                }
            });
            access = opaque(u64::from(access + 1)) as u32;
        }
        Stats { max, ties: E::Real::ONE, rest, ..Stats::NONE }
    }
}

impl<E: Element, const ACCESS: usize> WideRow<E, ACCESS> {
    /// Subtracts a [far](Relative::is_far) center from the logits, in shared memory. Rounding the
    /// difference to the elements' type does not matter: logits that are so far from 0 are equal,
    /// or differ by so much that the smaller one's exponential is 0. Few rows need this, so the
    /// code is short rather than fast.
    ///
    /// # Safety
    /// As [`new`](LaneRow::new).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn subtract(&self, center: E::Real) {
        let mut access = 0;
        while access < self.accesses() {
            let (vector, within) = (access / Self::ACCESSES, access % Self::ACCESSES);
            let at = within * ACCESS as u32;
            // SAFETY: the caller's conditions.
            unsafe {
                let place = Self::place(self.source, vector);
                let bytes = place.load_bytes::<ACCESS>(at);
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..MAX_LANES; {
                    if lane < ACCESS / size_of::<E>() {
                        values[lane] = E::extract(bytes, lane as u32).widen() - center;
                    }
                });
                place.store_bytes::<ACCESS>(at, E::narrow_all(values));
            }
            access = opaque(u64::from(access + 1)) as u32;
        }
    }
}

impl<E: Element, const ACCESS: usize> LaneRow<E> for WideRow<E, ACCESS> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn new(source: SharedRow, cols: u32, _access: Access) -> Self {
        let bytes = cols * size_of::<E>() as u32;
        let (whole, rest) = (bytes / size_of::<Vec16>() as u32, bytes % size_of::<Vec16>() as u32);
        let rest = rest / ACCESS as u32;
        let center = E::Real::ZERO;
        WideRow { source, whole, rest, center, has_exps: false, element: PhantomData }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn make_exps<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        _probabilities: (SharedRow, Access),
    ) -> Stats<E::Real> {
        let mut maxima = E::NO_MAXIMA;
        let mut sums = [E::Real::ZERO; 2];
        let mut shares = [E::Real::ZERO; 2];
        // SAFETY: the caller's conditions.
        unsafe {
            for_each_vector!((_index, _accesses, vector) in self; {
                maxima = E::raise(maxima, [vector]);
            });
            let max = E::greatest_of(maxima);
            self.center = max;
            let is_far = Relative::<_, { mode::CLASS }>::is_far(max, E::Real::ONE);
            let relative = Relative::<_, { mode::CLASS }>::to(max, E::Real::ONE);
            for_each_vector!((index, accesses, vector) in self; {
                let mut exps = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let logit = E::extract(vector, lane as u32).widen();
                    exps[lane] = if Self::KEEPS_EXPS {
                        (logit - max).exp_below()
                    } else {
                        relative.exp(logit)
                    };
                    sums[lane % 2] = sums[lane % 2] + exps[lane];
                });
                if Self::KEEPS_EXPS {
                    Self::store(Self::place(self.source, index), E::narrow_all(exps), accesses);
                }
                if Pass::<E, MODE>::DENSE {
                    let class = self.class_of(index);
                    if accesses == Self::ACCESSES {
                        let tensors = ([vector], [vector]);
                        let classes = [Classes::from(class)];
                        pass.add_shares::<1, { weights::LOADED }>(
                            &mut shares,
                            max,
                            tensors,
                            classes,
                        );
                    } else {
                        let has = |lane: usize| Self::has(lane, accesses);
                        let class = |lane| has(lane).then(|| class + lane as u32);
                        pass.add_shares_by_class(&mut shares, max, (vector, vector), class);
                    }
                }
            });
            self.has_exps = Self::KEEPS_EXPS;
            let [dot, weight] = shares;
            let mut sum = sums[0] + sums[1];
            if !Self::KEEPS_EXPS {
                sum = sum * relative.unit();
            }
            if sum < E::Real::from_f64(LIKELY) || is_far && !Self::KEEPS_EXPS {
                return Stats { dot, weight, ..self.sum_apart(max) };
            }
            let (ties, rest) = (E::Real::ONE, sum - E::Real::ONE);
            Stats { max, ties, rest, dot, weight }
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn make_exps_from(&mut self, center: E::Real) {
        self.center = center;
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_gradients<const MODE: u32>(
        &mut self,
        pass: &Pass<'_, E, MODE>,
        factors: &Factors<E::Real>,
        to: SharedRow,
        _access: Access,
    ) {
        let relative = Relative::<_, { mode::CLASS }>::to(self.center, E::Real::ONE);
        let has_exps = self.has_exps;
        let factor = if has_exps { factors.factor } else { factors.factor * relative.unit() };
        // SAFETY: the caller's conditions.
        unsafe {
            if !has_exps && Relative::<_, { mode::CLASS }>::is_far(self.center, E::Real::ONE) {
                self.subtract(self.center);
            }
            for_each_vector!((index, accesses, vector) in self; {
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let number = E::extract(vector, lane as u32).widen();
                    let exp = if has_exps { number } else { relative.exp(number) };
                    values[lane] = exp * factor;
                });
                if Pass::<E, MODE>::DENSE {
                    let (class, t) = (self.class_of(index), |_| E::Real::ZERO);
                    if accesses == Self::ACCESSES {
                        let classes = Classes::from(class);
                        pass.subtract_shares::<{ weights::LOADED }>(
                            &mut values,
                            factors,
                            t,
                            classes,
                        );
                    } else {
                        let has = |lane: usize| Self::has(lane, accesses);
                        let class = |lane| has(lane).then(|| class + lane as u32);
                        pass.subtract_shares_by_class(&mut values, factors, t, class);
                    }
                }
                let (gradients, place) = (E::narrow_all(values), Self::place(to, index));
                Self::store(place, gradients, accesses);
            });
        }
    }

    /// Never called: no kernel has wide rows of probabilities (condition 4 of
    /// [`packed`](super::packed)).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_gradients_of_both<const MODE: u32>(
        &mut self,
        _pass: &Pass<'_, E, MODE>,
        _factors: &Factors<E::Real>,
        _probabilities: (SharedRow, Access),
        _to: [Option<SharedRow>; 2],
        _access: Access,
    ) {
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_zeros(&mut self, to: SharedRow, _access: Access) {
        let mut access = 0;
        while access < self.accesses() {
            let (vector, within) = (access / Self::ACCESSES, access % Self::ACCESSES);
            // SAFETY: the caller's conditions.
            unsafe {
                let place = Self::place(to, vector);
                place.store_bytes::<ACCESS>(within * ACCESS as u32, Vec16::default());
            }
            access = opaque(u64::from(access + 1)) as u32;
        }
    }
}
