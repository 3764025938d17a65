//! Which calls must be refused, and with which errors.

use super::{Arg, Case, Kind, LossOf, Pairwise, Pass, Upstream, Wrong};
use crate::gpu;
use fused_loss::{Error, Gpu};
use std::sync::OnceLock;

/// How an argument is wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum How {
    Shape,
    Null,
    Misaligned,
    Expanded,
    Gaps,
    Device,
    Overlap,
    OverLogProb,
}

/// A device other than that of the calls, if there is one.
pub(super) fn other_gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = if gpu().is_emulated() { Gpu::emulated } else { Gpu::new };
    GPU.get_or_init(|| open(1).ok()).as_ref()
}

impl Case {
    /// Whether the call gets memory for the argument.
    fn has(&self, arg: Arg) -> bool {
        let [by_input, by_target] = self.grads();
        let chooses = matches!(self.pass, Pass::BackwardInto | Pass::BothInto);
        match arg {
            Arg::Input | Arg::Target => true,
            Arg::Upstream => self.upstreams()[0].is_some(),
            Arg::UpstreamOfEntropy => self.upstreams()[1].is_some(),
            Arg::Loss => self.pass.has_loss() && self.pass.writes_into(),
            Arg::Entropy => self.is_log_prob() && self.has(Arg::Loss),
            Arg::ByInput => chooses && by_input,
            Arg::ByTarget => chooses && by_target,
        }
    }

    pub(super) fn dims_of(&self, arg: Arg) -> Vec<usize> {
        match arg {
            _ if is_of_result(arg) => self.dims_of_loss(),
            Arg::Target if self.classes().is_some() => self.dims_of_rows(),
            _ => self.dims(),
        }
    }

    /// Whether the argument may have gaps between its rows.
    pub(super) fn may_have_gaps(&self, arg: Arg) -> bool {
        match arg {
            Arg::Target => self.classes().is_none(),
            _ => !is_of_result(arg) || self.losses_are_elements(),
        }
    }

    /// Bytes of an element of the argument.
    fn bytes_of(&self, arg: Arg) -> usize {
        let of_input = match self.dtype {
            super::Dtype::F64 => 8,
            super::Dtype::F32 => 4,
            _ => 2,
        };
        match (arg, self.classes()) {
            (Arg::Target, Some(kind)) => match kind {
                Kind::U8 => 1,
                Kind::I64 => 8,
                _ => 4,
            },
            _ if is_of_result(arg) && !self.losses_are_elements() => of_input.max(4),
            _ => of_input,
        }
    }

    /// Bytes from the first row of the argument to the end of its last.
    fn extent(&self, arg: Arg) -> usize {
        let dims = self.dims_of(arg);
        let (&cols, rows) = dims.split_last().unwrap_or((&1, &[]));
        let gap = if self.may_have_gaps(arg) { self.gaps[arg as usize] } else { 0 };
        let rows: usize = rows.iter().product();
        (rows.saturating_sub(1) * (cols + gap) + cols) * self.bytes_of(arg)
    }

    /// What is wrong with the argument.
    pub(super) fn how(&self, arg: Arg) -> Option<How> {
        if !self.has(arg) {
            return None;
        }
        let dims = self.dims_of(arg);
        let len: usize = dims.iter().product();
        let is_one_for_all = Arg::UPSTREAMS
            .iter()
            .zip(self.upstreams())
            .any(|(of, upstream)| *of == arg && matches!(upstream, Some(Upstream::One(_))));
        match self.wrong? {
            Wrong::Shape(of) if of == arg && arg != Arg::Input => Some(How::Shape),
            Wrong::Null(of) if of == arg && len > 0 => Some(How::Null),
            Wrong::Misaligned(of) if of == arg && self.bytes_of(arg) > 1 => Some(How::Misaligned),
            Wrong::Expanded(Arg::Input) if arg == Arg::Input && !self.pass.is_in_place() => {
                Some(How::Expanded)
            }
            Wrong::Expanded(Arg::Target) if arg == Arg::Target => Some(How::Expanded),
            Wrong::Gaps(of) if of == arg && !is_one_for_all => {
                (!self.may_have_gaps(arg) && dims.len() == 2 && dims[0] > 1).then_some(How::Gaps)
            }
            Wrong::Device(of) if of == arg && other_gpu().is_some() => Some(How::Device),
            Wrong::Overlap(of) => {
                // If the input is overwritten, the target takes its memory.
                let of = if of == Arg::Input { Arg::Target } else { of };
                let is_written = match of {
                    Arg::Target => self.pass.is_in_place(),
                    Arg::Upstream | Arg::UpstreamOfEntropy => false,
                    _ => true,
                };
                // Other addresses would be misaligned, or the argument would end beyond the memory.
                let bytes = self.offsets[Arg::Input as usize] * self.bytes_of(Arg::Input);
                let fits = bytes.is_multiple_of(self.bytes_of(arg))
                    && self.extent(arg) <= self.extent(Arg::Input);
                let overlaps = of == arg && is_written && fits && len > 0;
                (overlaps && self.rows * self.cols > 0).then_some(How::Overlap)
            }
            Wrong::OneResult if arg == Arg::Entropy && len > 0 => Some(How::OverLogProb),
            _ => None,
        }
    }

    /// The allowed errors, in the words of [`name`]; none if the call must be accepted.
    pub(super) fn refusals(&self) -> Vec<String> {
        let mut refusals = Vec::new();
        for arg in Arg::ALL {
            let Some(how) = self.how(arg) else { continue };
            let name = self.name_of(arg);
            refusals.push(match how {
                How::Shape => format!("Shape of {name}"),
                How::Null => format!("NullPointer of {name}"),
                How::Misaligned => format!("Misaligned of {name}"),
                How::Expanded | How::Gaps => format!("Stride of {name}"),
                How::Device => format!("Device of {name}"),
                How::Overlap if self.pass.is_in_place() => format!("Overlap of input with {name}"),
                How::Overlap => format!("Overlap of {name} with input"),
                How::OverLogProb => format!("Overlap of {name} with {}", self.name_of(Arg::Loss)),
            });
        }
        if self.asks_for_class_gradient() {
            refusals.push(format!("ClassGradient of {}", self.name_of(Arg::ByTarget)));
        }
        let reads_saved = self.pass.has_upstream_always() && self.has_logits();
        if reads_saved && matches!(self.wrong, Some(Wrong::NeverSaved | Wrong::OtherSaved)) {
            refusals.push("Saved".to_owned());
        }
        refusals.extend(self.invalid_options().map(|option| format!("InvalidOption of {option}")));
        if self.has_logits() && (self.cols == 0 || self.dims().is_empty()) {
            refusals.push("InvalidShape of input".to_owned());
        }
        refusals
    }

    /// The options whose values are invalid.
    fn invalid_options(&self) -> impl Iterator<Item = &'static str> {
        let options = match self.loss {
            LossOf::Pairs(Pairwise::Huber { delta }) => vec![(delta > 0.0, "delta")],
            LossOf::Pairs(Pairwise::SmoothL1 { beta }) => vec![(beta >= 0.0, "beta")],
            LossOf::CrossEntropy { targets, ignore_index, label_smoothing, z_loss, .. } => vec![
                ((0.0..=1.0).contains(&label_smoothing), "label_smoothing"),
                (z_loss >= 0.0 && z_loss.is_finite(), "z_loss"),
                (targets != Kind::Probabilities || ignore_index < 0, "ignore_index"),
            ],
            LossOf::LogProb { temperature, .. } => {
                vec![((1e-30..=1e30).contains(&temperature), "temperature")]
            }
            _ => vec![],
        };
        options.into_iter().filter(|(is_valid, _)| !is_valid).map(|(_, option)| option)
    }

    /// Whether each result is written to a `Loss` that is right.
    pub(super) fn are_to_loss(&self) -> [bool; 2] {
        // Mistakes are made with raw memory, and losses by element are not in a `Loss`.
        let is_one = self.how(Arg::Entropy) == Some(How::OverLogProb);
        let may = !self.losses_are_elements() && !is_one;
        let is_right = Arg::RESULTS.map(|arg| self.has(arg) && self.how(arg).is_none());
        [0, 1].map(|which: usize| self.to_loss[which] && may && is_right[which])
    }

    /// The name of the argument in errors.
    pub(super) fn name_of(&self, arg: Arg) -> &'static str {
        match arg {
            Arg::Input => "input",
            Arg::Target => "target",
            Arg::Upstream if self.is_log_prob() => "upstream_log_prob",
            Arg::Upstream => "upstream",
            Arg::Loss if self.is_log_prob() => "log_prob",
            Arg::Loss => "loss",
            Arg::ByInput => "grad_input",
            Arg::ByTarget => "grad_target",
            Arg::UpstreamOfEntropy => "upstream_entropy",
            Arg::Entropy => "entropy",
        }
    }
}

/// Whether the argument is a result, or the upstream gradient of one.
fn is_of_result(arg: Arg) -> bool {
    Arg::RESULTS.contains(&arg) || Arg::UPSTREAMS.contains(&arg)
}

/// The kind of an error and the argument or option that it names.
pub(super) fn name(error: &Error) -> String {
    match error {
        Error::Shape { argument, .. } => format!("Shape of {argument}"),
        Error::Stride { argument, .. } => format!("Stride of {argument}"),
        Error::InvalidOption { option, .. } => format!("InvalidOption of {option}"),
        Error::InvalidShape { argument, .. } => format!("InvalidShape of {argument}"),
        Error::Saved { .. } => "Saved".to_owned(),
        Error::ClassGradient { argument } => format!("ClassGradient of {argument}"),
        Error::NullPointer { argument, .. } => format!("NullPointer of {argument}"),
        Error::Misaligned { argument, .. } => format!("Misaligned of {argument}"),
        Error::Device { argument, .. } => format!("Device of {argument}"),
        Error::Overlap { argument, other } => format!("Overlap of {argument} with {other}"),
        other => other.to_string(),
    }
}
