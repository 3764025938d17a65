//! The description of a case.

use super::{Pairwise, Values};
pub use fused_loss::Dtype;

/// A call and its arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    pub loss: LossOf,
    pub dtype: Dtype,
    pub reduction: Reduce,
    pub pass: Pass,
    pub rows: usize,
    pub cols: usize,
    /// The number of dimensions, if rows and columns allow it: see [`Case::dims`].
    pub rank: usize,
    pub input: Values,
    pub target: Values,
    pub upstream: Upstream,
    pub wanted: Wanted,
    /// Elements between rows, by [`Arg`].
    pub gaps: [usize; Arg::COUNT],
    /// Elements after a 16-byte boundary at which the argument starts, by [`Arg`].
    pub offsets: [usize; Arg::COUNT],
    /// Whether each of [`Arg::RESULTS`] is written to a `Loss`, or to memory without room for the
    /// record of a target out of range.
    pub to_loss: [bool; 2],
    /// Whether the call is made twice and must give the same bits.
    pub twice: bool,
    pub wrong: Option<Wrong>,
    pub seed: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LossOf {
    Pairs(Pairwise),
    /// Binary cross-entropy with weights, one per element, row or column, or one for all.
    WeightedBce {
        weight: Option<OneFor>,
        pos_weight: Option<OneFor>,
        values: Values,
    },
    CrossEntropy {
        targets: Kind,
        weight: Option<Values>,
        ignore_index: i64,
        label_smoothing: f64,
        z_loss: f64,
        /// Whether some targets are no classes.
        bad: bool,
    },
    /// Log-probabilities of classes, and entropies.
    LogProb {
        /// Never probabilities.
        targets: Kind,
        temperature: f64,
        ignore_index: i64,
        /// Whether some targets are no classes.
        bad: bool,
        arrives: Arrives,
    },
}

/// Which results of `LogProb` get an upstream gradient. That of the log-probabilities is
/// [`Case::upstream`]; that of the entropies is here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrives {
    AtLogProb,
    AtEntropy(Upstream),
    AtBoth(Upstream),
}

/// The shape of a weight: one number for all elements, or one per column, row or element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum OneFor {
    All,
    Column,
    Row,
    Element,
}

/// What the targets of rows of logits are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    I64,
    I32,
    U32,
    U8,
    Probabilities,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduce {
    Mean,
    Sum,
    Unreduced,
    RowSum,
    RowMean,
    /// Only for the divergence; for other losses it means the mean. `LogProb` has no reduction.
    BatchMean,
}

/// The method. Before a backward pass of rows of logits, a forward pass saves what it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    Forward,
    ForwardInto,
    Backward,
    BackwardInto,
    BackwardInPlace,
    Both,
    BothInto,
    BothInPlace,
}

/// The gradient of the loss.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Upstream {
    /// No upstream gradient, or ones if one is required: in a backward pass, and for `LogProb`.
    Ones,
    /// One value for all.
    One(Values),
    Each(Values),
}

/// The requested gradients, if the call lets its caller choose; for classes only the input's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    OfInput,
    OfTarget,
    OfBoth,
}

/// An argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    Input,
    Target,
    Upstream,
    /// For `LogProb`, the log-probabilities.
    Loss,
    ByInput,
    ByTarget,
    UpstreamOfEntropy,
    Entropy,
}

/// A mistake. It is made only if the call has the argument, and if it is invalid there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Another number of columns, or a dimension for a scalar.
    Shape(Arg),
    Null(Arg),
    /// A byte off.
    Misaligned(Arg),
    /// One element repeated for all.
    Expanded(Arg),
    /// Gaps between the rows of an argument that may have none.
    Gaps(Arg),
    /// The memory is another device's.
    Device(Arg),
    /// The argument is in the input's memory. If the argument is the input, and the call overwrites
    /// it, it is in the target's memory.
    Overlap(Arg),
    /// Both results are written to the same memory.
    OneResult,
    /// A gradient of classes.
    ClassGradient,
    /// The backward pass gets saved state that no forward pass has written.
    NeverSaved,
    /// The backward pass gets state that was saved with other options.
    OtherSaved,
}

impl Arg {
    pub const COUNT: usize = Arg::ALL.len();
    pub const ALL: [Arg; 8] = [
        Arg::Input,
        Arg::Target,
        Arg::Upstream,
        Arg::Loss,
        Arg::ByInput,
        Arg::ByTarget,
        Arg::UpstreamOfEntropy,
        Arg::Entropy,
    ];
    /// The results of a forward pass: one, or two for `LogProb`.
    pub const RESULTS: [Arg; 2] = [Arg::Loss, Arg::Entropy];
    /// The gradients of the results.
    pub const UPSTREAMS: [Arg; 2] = [Arg::Upstream, Arg::UpstreamOfEntropy];
}

impl Pass {
    pub fn has_loss(self) -> bool {
        !self.has_upstream_always()
    }

    /// Whether the pass is a backward pass.
    pub fn has_upstream_always(self) -> bool {
        matches!(self, Pass::Backward | Pass::BackwardInto | Pass::BackwardInPlace)
    }

    pub fn has_gradient(self) -> bool {
        !matches!(self, Pass::Forward | Pass::ForwardInto)
    }

    pub fn is_in_place(self) -> bool {
        matches!(self, Pass::BackwardInPlace | Pass::BothInPlace)
    }

    /// Whether the results are in the caller's memory.
    pub fn writes_into(self) -> bool {
        !matches!(self, Pass::Forward | Pass::Backward | Pass::Both)
    }
}

impl Case {
    /// The dimensions of the input.
    pub fn dims(&self) -> Vec<usize> {
        let (rows, cols) = (self.rows, self.cols);
        match self.rank {
            0 if rows == 1 && cols == 1 => vec![],
            1 if rows == 1 => vec![cols],
            3 if rows.is_multiple_of(2) => vec![2, rows / 2, cols],
            3 => vec![rows, 1, cols],
            _ => vec![rows, cols],
        }
    }

    /// The dimensions of one value per row.
    pub fn dims_of_rows(&self) -> Vec<usize> {
        let mut dims = self.dims();
        dims.pop();
        dims
    }

    pub fn is_log_prob(&self) -> bool {
        matches!(self.loss, LossOf::LogProb { .. })
    }

    /// Whether the input is rows of logits, rather than elements to compare one by one.
    pub fn has_logits(&self) -> bool {
        matches!(self.loss, LossOf::CrossEntropy { .. } | LossOf::LogProb { .. })
    }

    /// The type of the targets of rows of logits, if they are classes.
    pub fn classes(&self) -> Option<Kind> {
        match self.loss {
            LossOf::CrossEntropy { targets, .. } | LossOf::LogProb { targets, .. } => {
                (targets != Kind::Probabilities).then_some(targets)
            }
            _ => None,
        }
    }

    /// The reduction that the loss performs.
    pub fn reduce(&self) -> Reduce {
        let is_divergence = matches!(self.loss, LossOf::Pairs(Pairwise::KlDiv { .. }));
        match self.reduction {
            _ if self.is_log_prob() => Reduce::Unreduced,
            Reduce::BatchMean if !is_divergence => Reduce::Mean,
            Reduce::RowSum | Reduce::RowMean if self.has_logits() => Reduce::Unreduced,
            other => other,
        }
    }

    /// The dimensions of a result.
    pub fn dims_of_loss(&self) -> Vec<usize> {
        match self.reduce() {
            Reduce::Unreduced if !self.has_logits() => self.dims(),
            Reduce::Unreduced | Reduce::RowSum | Reduce::RowMean => self.dims_of_rows(),
            _ => vec![],
        }
    }

    /// The number of values of a result.
    pub fn losses(&self) -> usize {
        self.dims_of_loss().iter().product()
    }

    /// The upstream gradients of the results, where the call has them.
    pub fn upstreams(&self) -> [Option<Upstream>; 2] {
        let of_loss = Some(self.upstream);
        match self.loss {
            _ if !self.pass.has_gradient() => [None; 2],
            LossOf::LogProb { arrives, .. } => match arrives {
                Arrives::AtLogProb => [of_loss, None],
                Arrives::AtEntropy(of_entropy) => [None, Some(of_entropy)],
                Arrives::AtBoth(of_entropy) => [of_loss, Some(of_entropy)],
            },
            _ if self.pass.has_upstream_always() => [of_loss, None],
            _ if self.pass == Pass::Both || self.upstream == Upstream::Ones => [None; 2],
            _ => [of_loss, None],
        }
    }

    /// Whether the call asks for a gradient of classes, which `LogProb` has no argument for.
    pub fn asks_for_class_gradient(&self) -> bool {
        let may = matches!(self.pass, Pass::BackwardInto | Pass::BothInto) && !self.is_log_prob();
        may && self.wrong == Some(Wrong::ClassGradient) && self.classes().is_some()
    }

    /// Whether the gradients of input and target are written.
    pub fn grads(&self) -> [bool; 2] {
        if !self.pass.has_gradient() {
            return [false; 2];
        }
        if !matches!(self.pass, Pass::BackwardInto | Pass::BothInto) {
            return [true, false];
        }
        if self.asks_for_class_gradient() {
            return [true, true];
        }
        match self.wanted {
            _ if self.classes().is_some() => [true, false],
            Wanted::OfInput => [true, false],
            Wanted::OfTarget => [false, true],
            Wanted::OfBoth => [true, true],
        }
    }
}
