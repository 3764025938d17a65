//! What a case is.

use super::{Pairwise, Values};
pub use fused_loss::Dtype;

/// A call, with all that it is given.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    pub loss: LossOf,
    pub dtype: Dtype,
    pub reduction: Reduce,
    pub pass: Pass,
    pub rows: usize,
    pub cols: usize,
    /// Dimensions, where rows and columns allow for them: see [`Case::dims`].
    pub rank: usize,
    pub input: Values,
    pub target: Values,
    pub upstream: Upstream,
    pub wanted: Wanted,
    /// Elements between rows, by [`Arg`].
    pub gaps: [usize; 6],
    /// Elements behind a 16-byte boundary, by [`Arg`].
    pub offsets: [usize; 6],
    /// Whether the loss is written to a `Loss`, or to memory without room for a fault.
    pub to_loss: bool,
    /// Whether the call is made twice, and has to give the same bits.
    pub twice: bool,
    pub wrong: Option<Wrong>,
    pub seed: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LossOf {
    Pairs(Pairwise),
    /// Binary cross-entropy with weights, of which there is one for what is named.
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
}

/// What there is one weight for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum OneFor {
    All,
    Column,
    Row,
    Element,
}

/// What targets of cross-entropy are.
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
    /// Of the divergence alone; of others the mean.
    BatchMean,
}

/// The method. Before a backward pass of cross-entropy, a forward pass saves what it needs.
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
    /// None is given, or ones where one has to be.
    Ones,
    /// One that stands for all.
    One(Values),
    Each(Values),
}

/// The gradients that are asked for where a call lets its caller choose; of classes the input's.
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
    Loss,
    ByInput,
    ByTarget,
}

/// A mistake. It is made where the call has the argument, and the mistake is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Another number of columns, or a dimension where there is none.
    Shape(Arg),
    Null(Arg),
    /// A byte off.
    Misaligned(Arg),
    /// One element that stands for all.
    Expanded(Arg),
    /// Gaps between the rows of what may have none.
    Gaps(Arg),
    /// The memory is another device's.
    Device(Arg),
    /// The memory is the input's too; of the input that is to be overwritten, the target's.
    Overlap(Arg),
    /// A gradient of classes.
    ClassGradient,
    /// The backward pass gets what no forward pass has left.
    NeverSaved,
    /// The backward pass gets what was saved with other options.
    OtherSaved,
}

impl Pass {
    pub fn has_loss(self) -> bool {
        !self.has_upstream_always()
    }

    /// Whether the pass is backward alone.
    pub fn has_upstream_always(self) -> bool {
        matches!(self, Pass::Backward | Pass::BackwardInto | Pass::BackwardInPlace)
    }

    pub fn has_gradient(self) -> bool {
        !matches!(self, Pass::Forward | Pass::ForwardInto)
    }

    pub fn is_in_place(self) -> bool {
        matches!(self, Pass::BackwardInPlace | Pass::BothInPlace)
    }

    /// Whether the results are memory of the caller's.
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

    /// The dimensions of a value for each row.
    pub fn dims_of_rows(&self) -> Vec<usize> {
        let mut dims = self.dims();
        dims.pop();
        dims
    }

    pub fn is_cross_entropy(&self) -> bool {
        matches!(self.loss, LossOf::CrossEntropy { .. })
    }

    /// What the targets of cross-entropy are, if they are classes.
    pub fn classes(&self) -> Option<Kind> {
        match self.loss {
            LossOf::CrossEntropy { targets, .. } if targets != Kind::Probabilities => Some(targets),
            _ => None,
        }
    }

    /// The reduction, as far as the loss has it.
    pub fn reduce(&self) -> Reduce {
        let is_divergence = matches!(self.loss, LossOf::Pairs(Pairwise::KlDiv { .. }));
        match self.reduction {
            Reduce::BatchMean if !is_divergence => Reduce::Mean,
            Reduce::RowSum | Reduce::RowMean if self.is_cross_entropy() => Reduce::Unreduced,
            other => other,
        }
    }

    /// The dimensions of the loss.
    pub fn dims_of_loss(&self) -> Vec<usize> {
        match self.reduce() {
            Reduce::Unreduced if !self.is_cross_entropy() => self.dims(),
            Reduce::Unreduced | Reduce::RowSum | Reduce::RowMean => self.dims_of_rows(),
            _ => vec![],
        }
    }

    /// Whether a gradient is one for each element of the loss, and not one for all.
    pub fn losses(&self) -> usize {
        self.dims_of_loss().iter().product()
    }

    /// Whether an upstream gradient is given.
    pub fn has_upstream(&self) -> bool {
        let may = self.pass.has_gradient() && self.pass != Pass::Both;
        may && (self.pass.has_upstream_always() || self.upstream != Upstream::Ones)
    }

    /// Whether the gradients of input and target are to be written.
    pub fn grads(&self) -> [bool; 2] {
        if !self.pass.has_gradient() {
            return [false; 2];
        }
        if !matches!(self.pass, Pass::BackwardInto | Pass::BothInto) {
            return [true, false];
        }
        if self.wrong == Some(Wrong::ClassGradient) && self.classes().is_some() {
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
