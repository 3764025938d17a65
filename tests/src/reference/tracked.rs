//! A float64 number with a bound for how far a kernel's result may be from it, if the kernel
//! computes the same in a type with fewer digits and a smaller range.

/// The finite numbers of the type that a kernel computes in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    /// The largest.
    pub max: f64,
    /// The smallest that is normal.
    pub least: f64,
}

impl Range {
    pub const F32: Range = Range { max: f32::MAX as f64, least: f32::MIN_POSITIVE as f64 };
    pub const F64: Range = Range { max: f64::MAX, least: f64::MIN_POSITIVE };

    /// A bound for the relative error of several steps.
    fn rounding(self) -> f64 {
        if self == Range::F32 { 1e-6 } else { 1e-14 }
    }

    /// A float64 number as the kernel has it, rounded to its type.
    pub fn round(self, value: f64) -> f64 {
        if self == Range::F32 { f64::from(value as f32) } else { value }
    }
}

/// A result and the error that its computation may have.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    pub value: f64,
    /// The sum of what each rounding on the way adds to the error, in units of the kernel's
    /// relative error. For a sum it includes the magnitudes of terms that cancel. It is 0 for a
    /// given number.
    pub size: f64,
    /// What numbers below the smallest normal one add to the error. Infinite if an intermediate
    /// number was beyond the range; docs/semantics.md then promises nothing about the result.
    pub off: f64,
    pub range: Range,
}

impl Tracked {
    /// A number that is given.
    pub fn exact(value: f64, range: Range) -> Self {
        Tracked { value, size: 0.0, off: 0.0, range }
    }

    /// A result about which nothing is promised.
    pub fn lost(range: Range) -> Self {
        Tracked { value: f64::NAN, size: 0.0, off: f64::INFINITY, range }
    }

    pub fn is_lost(self) -> bool {
        self.off == f64::INFINITY
    }

    /// The result of a step that takes `from`.
    fn step(self, from: &[Tracked], value: f64, size: f64, off: f64) -> Self {
        let finite = from.iter().all(|of| of.value.is_finite());
        let lost = from.iter().any(|of| of.is_lost());
        if lost || finite && (!value.is_finite() || value.abs() > self.range.max) {
            return Self::lost(self.range);
        }
        if value.is_finite() {
            Tracked { value, size: size + value.abs(), off, range: self.range }
        } else {
            // Infinity and NaN have no error.
            Tracked { value, size: 0.0, off: 0.0, range: self.range }
        }
    }

    pub fn plus(self, other: Self) -> Self {
        let (size, off) = (self.size + other.size, self.off + other.off);
        self.step(&[self, other], self.value + other.value, size, off)
    }

    pub fn minus(self, other: Self) -> Self {
        self.plus(other.negative())
    }

    pub fn negative(self) -> Self {
        Tracked { value: -self.value, ..self }
    }

    pub fn magnitude(self) -> Self {
        Tracked { value: self.value.abs(), ..self }
    }

    pub fn times(self, other: Self) -> Self {
        Self::product(&[self, other])
    }

    /// The product, for any order in which a kernel may multiply.
    pub fn product(factors: &[Tracked]) -> Self {
        let range = factors[0].range;
        let (mut value, mut large, mut small) = (1.0, 1.0_f64, 1.0_f64);
        for factor in factors {
            let magnitude = factor.value.abs();
            value *= factor.value;
            if magnitude.is_finite() {
                large *= magnitude.max(1.0);
                small *= if magnitude > 0.0 { magnitude.min(1.0) } else { 1.0 };
            }
        }
        // In some order of multiplication, an intermediate product may be infinite or 0.
        let vanishes = small < range.least;
        // Infinity times a number that may be 0 is infinite or NaN, so the result is unknown.
        let unsure = |factor: &Tracked| {
            let error = factor.off + range.rounding() * factor.size;
            error > 0.0 && error >= factor.value.abs()
        };
        if large > range.max || !value.is_finite() && (vanishes || factors.iter().any(unsure)) {
            return Self::lost(range);
        }
        let (mut size, mut off) = (0.0, if vanishes { value.abs() } else { 0.0 });
        for (at, factor) in factors.iter().enumerate() {
            let others = factors.iter().enumerate().filter(|(other, _)| *other != at);
            let others: f64 = others.map(|(_, other)| other.value.abs() + other.off).product();
            size += if factor.size > 0.0 { factor.size * others } else { 0.0 };
            off += if factor.off > 0.0 { factor.off * others } else { 0.0 };
        }
        size += value.abs() * (factors.len() - 1) as f64;
        factors[0].step(factors, value, size, off)
    }

    pub fn over(self, divisor: Self) -> Self {
        let (value, by) = (self.value / divisor.value, divisor.value.abs());
        if divisor.off > 0.0 && divisor.off >= by {
            return Self::lost(self.range);
        }
        if by == 0.0 && !self.is_lost() {
            let unsure = self.off >= self.value.abs() && self.off > 0.0;
            return if unsure { Self::lost(self.range) } else { Self::exact(value, self.range) };
        }
        let size = (self.size + value.abs() * divisor.size) / by;
        let off = (self.off + value.abs() * divisor.off) / (by - divisor.off);
        self.step(&[self, divisor], value, size, off)
    }

    pub fn exp(self) -> Self {
        let value = self.value.exp();
        let vanishes = if value < self.range.least { self.range.least } else { 0.0 };
        let off = value * self.off.exp_m1() + vanishes;
        self.step(&[self], value, value * self.size, off)
    }

    pub fn ln(self) -> Self {
        if self.value == 0.0 && self.off == 0.0 {
            return Self::exact(f64::NEG_INFINITY, self.range);
        }
        if self.value < 0.0 || self.value.is_nan() {
            return Self::exact(f64::NAN, self.range);
        }
        let (size, off) = (self.size / self.value, self.off / self.value);
        self.step(&[self], self.value.ln(), size, off)
    }

    /// ln(1 + x), for x from 0 up.
    pub fn ln_1p(self) -> Self {
        self.step(&[self], self.value.ln_1p(), self.size, self.off)
    }

    /// The sum of terms, for any order in which a kernel may add.
    pub fn sum(terms: impl Iterator<Item = Tracked>, range: Range) -> Self {
        let (mut total, mut magnitude) = (super::Total::default(), 0.0);
        let mut sum = Self::exact(0.0, range);
        for term in terms {
            total.add(term.value);
            sum.size += term.size;
            sum.off += term.off;
            magnitude += if term.value.is_finite() { term.value.abs() } else { 0.0 };
        }
        sum.value = total.value();
        // At least four roundings of each term: a thread adds up many in the kernel's own type.
        sum.size = sum.size.max(4.0 * magnitude);
        if sum.is_lost() || magnitude > range.max {
            return Self::lost(range);
        }
        if sum.value.is_finite() { sum } else { Self::exact(sum.value, range) }
    }
}
