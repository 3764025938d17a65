//! The random shapes that `--landscape` measures: kernels must not be measured on the shapes for
//! which they are tuned. A shape is a pure function of a seed and an index, and its name can be
//! parsed back into the shape.

use std::fmt;
use std::str::FromStr;

/// The smallest and the largest number of bytes of logits.
pub(crate) const LEAST_BYTES: usize = 16 << 20;
pub(crate) const MOST_BYTES: usize = 2 << 30;

/// The smallest and the largest number of columns.
pub(crate) const LEAST_COLS: usize = 2;
pub(crate) const MOST_COLS: usize = 300_000;

/// Elements of the largest shape that a name may ask for, since its buffers must fit a device.
const MOST_ELEMENTS: usize = 1 << 32;

/// Declares an enumeration whose variants have names on the command line.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum $name { $($(#[$of])* $variant,)+ }

        impl $name {
            /// All variants in order.
            pub(crate) const ALL: &[Self] = &[$($name::$variant),+];

            /// Its name on the command line.
            pub(crate) const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|each| each.name() == text).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|each| each.name()).collect();
                    format!("expected one of {}, got '{text}'", names.join(", "))
                })
            }
        }
    };
}

named! {
    /// A loss.
    Loss { Ce = "ce", Kl = "kl", Mse = "mse", }
}
named! {
    /// An element type.
    Dtype { F32 = "f32", Bf16 = "bf16", F16 = "f16", F64 = "f64", }
}
named! {
    /// What a call computes. Backward of cross-entropy starts from what `forward_saving` saved.
    Pass { Forward = "forward", Both = "forward+backward", Backward = "backward", }
}
named! {
    /// An unusual property of a call.
    Extra {
        /// Class weights.
        Weights = "weights",
        /// Label smoothing of 0.1.
        Smoothing = "smoothing",
        /// z-loss with λ = 10⁻⁴.
        ZLoss = "z-loss",
        /// Every third row has the ignored class. Its logits count among the bytes. This extra is
        /// never drawn, so that a seed still draws the same shapes as before the extra existed.
        Ignored = "ignored",
        /// Probabilities of all classes as targets.
        Probabilities = "probabilities",
        /// The input of a divergence is log-probabilities.
        Log = "log",
        /// A loss for each row: sums of a divergence, means of squared errors.
        Rows = "rows",
        /// A divergence divided by the elements, not by the rows.
        Mean = "mean",
        /// A stride larger than the number of columns.
        Gaps = "gaps",
        /// A tensor that begins one element after a 16-byte boundary. For cross-entropy this is the
        /// logits and their gradient; for the others it is the target alone, so that input and
        /// target have different alignments.
        Offset = "offset",
    }
}

impl Dtype {
    /// Bytes of an element.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
        }
    }

    /// Bytes of the type of the arithmetic, which is the type of per-row results.
    pub(crate) const fn result_bytes(self) -> usize {
        if self.bytes() == 8 { 8 } else { 4 }
    }
}

/// A shape to measure. As text: `ce f32 forward 65536x1000 weights,smoothing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) loss: Loss,
    pub(crate) dtype: Dtype,
    pub(crate) pass: Pass,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// In order, without duplicates.
    pub(crate) extras: Vec<Extra>,
}

/// The range from which shapes are drawn, in addition to the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// The only loss, if there is one.
    pub(crate) only: Option<Loss>,
    /// The most bytes of logits.
    pub(crate) most_bytes: usize,
}

impl Shape {
    /// The shape with this index of the sequence `seed`.
    pub(crate) fn draw(seed: u64, index: u64, range: Range) -> Self {
        let mut random = Random::new(seed, index);
        let drawn = match random.below(20) {
            0..14 => Loss::Ce,
            14..17 => Loss::Kl,
            _ => Loss::Mse,
        };
        let loss = range.only.unwrap_or(drawn);
        let dtype = random.one_of(Dtype::ALL);
        let pass = random.one_of(Pass::ALL);
        let cols = random.cols();
        let most = range.most_bytes.max(LEAST_BYTES);
        let bytes = random.log_uniform(LEAST_BYTES as f64, most as f64);
        let row = cols * dtype.bytes();
        // At least the least bytes and at most the most bytes, to within a row.
        let rows = (bytes / row as f64).ceil().min((most / row) as f64) as usize;
        let extras = random.extras(loss);
        Shape { loss, dtype, pass, rows: rows.max(1), cols, extras }
    }

    /// Whether the shape has this extra.
    pub(crate) fn has(&self, extra: Extra) -> bool {
        self.extras.contains(&extra)
    }

    /// Bytes of the input's elements.
    pub(crate) fn bytes(&self) -> usize {
        self.rows * self.cols * self.dtype.bytes()
    }

    /// Elements from the start of a row to the start of the next. A gap is a quarter of a row, up
    /// to 64 elements. In short rows it shares memory sectors with elements that are read, in long
    /// ones it does not.
    pub(crate) fn stride(&self) -> usize {
        let gap = if self.has(Extra::Gaps) { (self.cols / 4).clamp(1, 64) } else { 0 };
        self.cols + gap
    }

    /// Whether targets are a tensor of the input's shape rather than classes.
    pub(crate) fn target_is_a_matrix(&self) -> bool {
        self.loss != Loss::Ce || self.has(Extra::Probabilities)
    }

    /// Whether the call needs the target but not the input: the derivative of the divergence by a
    /// log-probability is minus the probability of the target.
    pub(crate) fn reads_the_target_alone(&self) -> bool {
        self.loss == Loss::Kl && self.pass == Pass::Backward && self.has(Extra::Log)
    }

    /// Refuses extras that have no meaning for the loss, or that exclude each other.
    fn check(&self) -> Result<(), String> {
        let of_loss = |extra| match extra {
            Extra::Gaps | Extra::Offset => true,
            Extra::Weights | Extra::Smoothing | Extra::ZLoss => self.loss == Loss::Ce,
            Extra::Ignored | Extra::Probabilities => self.loss == Loss::Ce,
            Extra::Rows => self.loss != Loss::Ce,
            Extra::Log | Extra::Mean => self.loss == Loss::Kl,
        };
        if let Some(extra) = self.extras.iter().copied().find(|&extra| !of_loss(extra)) {
            return Err(format!("{} has no '{}'", self.loss.name(), extra.name()));
        }
        if self.has(Extra::Rows) && self.has(Extra::Mean) {
            return Err("'rows' and 'mean' exclude each other".to_owned());
        }
        if self.has(Extra::Ignored) && (self.has(Extra::Probabilities) || self.has(Extra::ZLoss)) {
            return Err("'ignored' goes with neither 'probabilities' nor 'z-loss'".to_owned());
        }
        let elements = self.rows.checked_mul(self.stride());
        if self.rows == 0 || self.cols == 0 || elements.is_none_or(|all| all > MOST_ELEMENTS) {
            return Err(format!("expected 1 to {MOST_ELEMENTS} elements"));
        }
        // The host has memory for eight rows of each tensor, or for more if they are shorter.
        if self.cols > 4 * MOST_COLS {
            return Err(format!("expected at most {} columns", 4 * MOST_COLS));
        }
        Ok(())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (loss, dtype, pass) = (self.loss.name(), self.dtype.name(), self.pass.name());
        write!(f, "{loss} {dtype} {pass} {}x{}", self.rows, self.cols)?;
        for (index, extra) in self.extras.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { " " } else { "," }, extra.name())?;
        }
        Ok(())
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |why: String| format!("--shape '{text}': {why}");
        let words: Vec<_> = text.split_whitespace().collect();
        let (&[loss, dtype, pass, size] | &[loss, dtype, pass, size, _]) = words.as_slice() else {
            let expected = "LOSS DTYPE PASS ROWSxCOLS [EXTRA,...]";
            return Err(named(format!("expected {expected}")));
        };
        let (rows, cols) = size
            .split_once('x')
            .and_then(|(rows, cols)| Some((rows.parse().ok()?, cols.parse().ok()?)))
            .ok_or_else(|| named(format!("expected ROWSxCOLS, got '{size}'")))?;
        let list = words.get(4).copied().unwrap_or_default().split(',');
        let mut extras = list
            .filter(|extra| !extra.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<Extra>, _>>()
            .map_err(named)?;
        extras.sort();
        extras.dedup();
        let shape = Shape {
            loss: loss.parse().map_err(named)?,
            dtype: dtype.parse().map_err(named)?,
            pass: pass.parse().map_err(named)?,
            rows,
            cols,
            extras,
        };
        shape.check().map_err(named)?;
        Ok(shape)
    }
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// The generator of one index of a sequence; neighbouring generators are independent.
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        let mut of_seed = Random(seed);
        let seed = of_seed.bits();
        Random(seed ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A random number below `limit`, which is small.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A random number whose logarithm is uniform.
    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        let part = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        (low.ln() + part * (high / low).ln()).exp()
    }

    /// A third are powers of two, a third are multiples of 8, and a third are odd, half of these
    /// next to a power of two.
    fn cols(&mut self) -> usize {
        let any = self.log_uniform(LEAST_COLS as f64, MOST_COLS as f64) as usize;
        let power = 1 << (1 + self.below(MOST_COLS.ilog2() as usize));
        match self.below(6) {
            0 | 1 => power,
            2 | 3 => (self.log_uniform(8.0, MOST_COLS as f64) as usize / 8 * 8).max(8),
            4 => (any | 1).clamp(LEAST_COLS + 1, MOST_COLS - 1),
            _ => (power + 1 - 2 * self.below(2)).max(3),
        }
    }

    /// A fifth of the cross-entropies have options, and a tenth of all shapes have gaps or an
    /// offset.
    fn extras(&mut self, loss: Loss) -> Vec<Extra> {
        let mut extras = Vec::new();
        match (loss, self.below(60)) {
            (Loss::Ce, 0..4) => extras.extend([Extra::Weights, Extra::Smoothing]),
            (Loss::Ce, 4..8) => extras.push(Extra::ZLoss),
            (Loss::Ce, 8..12) => extras.push(Extra::Probabilities),
            (Loss::Ce, _) => {}
            (Loss::Kl, of) => {
                extras.extend((of % 3 == 0).then_some(Extra::Log));
                match of / 15 {
                    0 => extras.push(Extra::Rows),
                    1 => extras.push(Extra::Mean),
                    _ => {}
                }
            }
            (Loss::Mse, of) => extras.extend((of < 15).then_some(Extra::Rows)),
        }
        match self.below(20) {
            0 => extras.push(Extra::Gaps),
            1 => extras.push(Extra::Offset),
            _ => {}
        }
        extras
    }
}
