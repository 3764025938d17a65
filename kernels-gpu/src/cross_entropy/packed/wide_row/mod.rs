//! A row of more columns than a lane has registers for, which the lane reads from shared memory
//! again for each step.

mod vectors;

use self::vectors::{MOST_FLIGHT, Vectors};
use super::LIKELY;
use super::lane_row::{Access, LaneRow, SharedRow};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Classes, Factors, Pass, weights};
use crate::cross_entropy::stats::{Relative, Stats};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use cuda_std::hint::opaque;
use cuda_std::memory::Vec16;

/// The row, as a lane computes it.
#[derive(Clone, Copy)]
pub(super) struct WideRow<E: Element, const ACCESS: usize> {
    vectors: Vectors<E, ACCESS>,
    /// The logit that is subtracted from all others before their exponentials are taken.
    center: E::Real,
    /// Whether exponentials have replaced the logits in shared memory.
    has_exps: bool,
}

/// Runs `$body` for each vector of a row. `$vector` is its 16 bytes, `$number` its number, or
/// `None` for the [rest](Vectors::rest) of the row. This is a macro, because LLVM does not inline a
/// closure that is called three times.
macro_rules! for_each_vector {
    (($number:ident, $vector:ident) in $row:expr; $body:block) => {{
        let vectors: &Vectors<E, ACCESS> = &$row.vectors;
        let flight = Vectors::<E, ACCESS>::FLIGHT;
        let mut at = 0;
        // Opaque, so that the compiler does not unroll these loops.
        while vectors.has_steps() && at + flight <= vectors.whole {
            let step = vectors.vectors(at);
            unrolled!(for k in 0..MOST_FLIGHT; {
                if (k as u32) < flight {
                    let number = vectors.ordered_in_step(at + k as u32);
                    let ($number, $vector) = (Some(number), step[k]);
                    $body
                }
            });
            at = opaque(u64::from(at + flight)) as u32;
        }
        while at < vectors.whole {
            let number = vectors.ordered(at);
            let ($number, $vector) = (Some(number), vectors.vector(number));
            $body
            at = opaque(u64::from(at + 1)) as u32;
        }
        if vectors.has_rest() {
            let ($number, $vector) = (None::<u32>, vectors.rest());
            $body
        }
    }};
}

impl<E: Element, const ACCESS: usize> WideRow<E, ACCESS> {
    /// Whether exponentials replace the logits until the gradients are computed: in f64 it would
    /// take longer to compute them twice.
    const KEEPS_EXPS: bool = size_of::<E>() == 8;

    /// Writes a vector, or the rest of the row for `None`, to row `to`.
    ///
    /// # Safety
    /// As [`Vectors::store`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store(&self, to: SharedRow, number: Option<u32>, vector: Vec16) {
        // SAFETY: the caller's conditions.
        unsafe {
            match number {
                Some(number) => self.vectors.store(to, number, vector),
                None => self.vectors.store_rest(to, vector),
            }
        }
    }

    /// The bytes of an access, and the class of its first element.
    ///
    /// # Safety
    /// As [`Vectors::vector`]'s condition 1, and as [`Vectors::access`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(&self, access: u32) -> (Vec16, u32) {
        // SAFETY: the caller's conditions.
        unsafe {
            let (place, first) = Vectors::<E, ACCESS>::access(self.vectors.source, access);
            (place.load_bytes::<ACCESS>(0), first)
        }
    }

    /// The statistics of the row, with the exponential of a largest logit kept out of the sum of
    /// all others. Few rows need this, so the code is short rather than fast.
    ///
    /// # Safety
    /// As [`Vectors::vector`]'s condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn sum_apart(&self, max: E::Real) -> Stats<E::Real> {
        // Each step keeps the larger of two exponentials and adds the smaller one to the sum, so
        // that the first exponential that is 1 is left out.
        let (mut largest, mut rest) = (E::Real::ZERO, E::Real::ZERO);
        let mut access = 0;
        while access < self.vectors.accesses() {
            // SAFETY: the caller's condition.
            let bytes = unsafe { self.load(access).0 };
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
    /// Σ q (x − max) and Σ q, as differences from the maximum. Few rows need this, so the code is
    /// short rather than fast.
    ///
    /// # Safety
    /// As [`Vectors::vector`]'s condition 1, and the kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn exact_shares<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        max: E::Real,
    ) -> [E::Real; 2] {
        let mut sums = [E::Real::ZERO; 2];
        let mut access = 0;
        while access < self.vectors.accesses() {
            let has = |lane: usize| lane < ACCESS / size_of::<E>();
            // SAFETY: the caller's conditions.
            unsafe {
                let (bytes, first) = self.load(access);
                let class = |lane| has(lane).then(|| first + lane as u32);
                pass.add_exact_shares(&mut sums, max, (bytes, bytes), class);
            }
            access = opaque(u64::from(access + 1)) as u32;
        }
        sums
    }

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
        while access < self.vectors.accesses() {
            // SAFETY: the caller's conditions.
            unsafe {
                let (place, _) = Vectors::<E, ACCESS>::access(self.vectors.source, access);
                let bytes = place.load_bytes::<ACCESS>(0);
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..MAX_LANES; {
                    if lane < ACCESS / size_of::<E>() {
                        values[lane] = E::extract(bytes, lane as u32).widen() - center;
                    }
                });
                place.store_bytes::<ACCESS>(0, E::narrow_all(values));
            }
            access = opaque(u64::from(access + 1)) as u32;
        }
    }
}

impl<E: Element, const ACCESS: usize> LaneRow<E> for WideRow<E, ACCESS> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn new(source: SharedRow, cols: u32, _access: Access) -> Self {
        let vectors = Vectors::new(source, cols);
        WideRow { vectors, center: E::Real::ZERO, has_exps: false }
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
            for_each_vector!((_number, vector) in self; {
                maxima = E::raise(maxima, [vector]);
            });
            let max = E::greatest_of(maxima);
            self.center = max;
            let is_far = Relative::<_, { mode::CLASS }>::is_far(max, E::Real::ONE);
            let relative = Relative::<_, { mode::CLASS }>::to(max, E::Real::ONE);
            let of_shares = Relative::<_, MODE>::to(max, E::Real::ONE);
            for_each_vector!((number, vector) in self; {
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
                    self.store(self.vectors.source, number, E::narrow_all(exps));
                }
                if Pass::<E, MODE>::DENSE {
                    if let Some(number) = number {
                        let classes = [Classes::from(self.vectors.class_of(number))];
                        let tensors = ([vector], [vector]);
                        pass.add_shares::<1, { weights::LOADED }>(
                            &mut shares,
                            of_shares,
                            tensors,
                            classes,
                        );
                    } else {
                        let class = |lane| self.vectors.class_in_rest(lane);
                        pass.add_shares_by_class(&mut shares, of_shares, (vector, vector), class);
                    }
                }
            });
            self.has_exps = Self::KEEPS_EXPS;
            let [dot, weight] = pass.shares_of_sums(shares, of_shares);
            let needs_exact = Pass::<E, MODE>::HAS_SHIFTED_SHARES && is_far;
            let [dot, weight] = if needs_exact || !Pass::<E, MODE>::has_sums_of_shares(dot) {
                self.exact_shares(pass, max)
            } else {
                [dot, weight]
            };
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
            for_each_vector!((number, vector) in self; {
                let mut values = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let number = E::extract(vector, lane as u32).widen();
                    let exp = if has_exps { number } else { relative.exp(number) };
                    values[lane] = exp * factor;
                });
                if Pass::<E, MODE>::DENSE {
                    let t = |_| E::Real::ZERO;
                    if let Some(number) = number {
                        let classes = Classes::from(self.vectors.class_of(number));
                        pass.subtract_shares::<{ weights::LOADED }>(
                            &mut values,
                            factors,
                            t,
                            classes,
                        );
                    } else {
                        let class = |lane| self.vectors.class_in_rest(lane);
                        pass.subtract_shares_by_class(&mut values, factors, t, class);
                    }
                }
                self.store(to, number, E::narrow_all(values));
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
        while access < self.vectors.accesses() {
            // SAFETY: the caller's conditions.
            unsafe {
                let (place, _) = Vectors::<E, ACCESS>::access(to, access);
                place.store_bytes::<ACCESS>(0, Vec16::default());
            }
            access = opaque(u64::from(access + 1)) as u32;
        }
    }
}
