//! Which calls are to be refused, and by which error.

use super::{Arg, Case, Kind, LossOf, Pairwise, Pass, Reduce, Upstream, Wrong};
use crate::gpu;
use fused_loss::{Error, Gpu};
use std::sync::OnceLock;

/// How an argument comes that is not as it should be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum How {
    Shape,
    Null,
    Misaligned,
    Expanded,
    Gaps,
    Device,
    Overlap,
}

/// A device that the calls are not made on, if there is one.
pub(super) fn other_gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = if gpu().is_emulated() { Gpu::emulated } else { Gpu::new };
    GPU.get_or_init(|| open(1).ok()).as_ref()
}

impl Case {
    /// Whether the call is given memory for the argument.
    fn has(&self, arg: Arg) -> bool {
        let [by_input, by_target] = self.grads();
        let chooses = matches!(self.pass, Pass::BackwardInto | Pass::BothInto);
        match arg {
            Arg::Input | Arg::Target => true,
            Arg::Upstream => self.has_upstream(),
            Arg::Loss => self.pass.has_loss() && self.pass.writes_into(),
            Arg::ByInput => chooses && by_input,
            Arg::ByTarget => chooses && by_target,
        }
    }

    fn dims_of(&self, arg: Arg) -> Vec<usize> {
        match arg {
            Arg::Upstream | Arg::Loss => self.dims_of_loss(),
            Arg::Target if self.classes().is_some() => self.dims_of_rows(),
            _ => self.dims(),
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
            (Arg::Loss | Arg::Upstream, _) if !self.losses_are_elements() => of_input.max(4),
            _ => of_input,
        }
    }

    /// What is wrong with the argument.
    pub(super) fn how(&self, arg: Arg) -> Option<How> {
        if !self.has(arg) {
            return None;
        }
        let dims = self.dims_of(arg);
        let len: usize = dims.iter().product();
        let is_one_for_all = arg == Arg::Upstream && matches!(self.upstream, Upstream::One(_));
        match self.wrong? {
            Wrong::Shape(of) if of == arg && arg != Arg::Input => Some(How::Shape),
            Wrong::Null(of) if of == arg && len > 0 => Some(How::Null),
            Wrong::Misaligned(of) if of == arg && self.bytes_of(arg) > 1 => Some(How::Misaligned),
            Wrong::Expanded(Arg::Input) if arg == Arg::Input && !self.pass.is_in_place() => {
                Some(How::Expanded)
            }
            Wrong::Expanded(Arg::Target) if arg == Arg::Target => Some(How::Expanded),
            Wrong::Gaps(of) if of == arg && !is_one_for_all => {
                let may_not = match arg {
                    Arg::Loss | Arg::Upstream => !self.losses_are_elements(),
                    Arg::Target => self.classes().is_some(),
                    _ => false,
                };
                (may_not && dims.len() == 2 && dims[0] > 1).then_some(How::Gaps)
            }
            Wrong::Device(of) if of == arg && other_gpu().is_some() => Some(How::Device),
            Wrong::Overlap(of) => {
                // The target takes the place of an input that is to be overwritten.
                let of = if of == Arg::Input { Arg::Target } else { of };
                let is_written = match of {
                    Arg::Target => self.pass.is_in_place(),
                    Arg::Upstream => false,
                    _ => true,
                };
                // Anything else would be misaligned.
                let bytes = self.offsets[Arg::Input as usize] * self.bytes_of(Arg::Input);
                let fits = bytes.is_multiple_of(self.bytes_of(arg));
                let overlaps = of == arg && is_written && fits && len > 0;
                (overlaps && self.rows * self.cols > 0).then_some(How::Overlap)
            }
            _ => None,
        }
    }

    /// The errors of which one has to come, as [`name`] has them; none where the call is accepted.
    pub(super) fn refusals(&self) -> Vec<String> {
        let mut refusals = Vec::new();
        for (arg, name) in [
            (Arg::Input, "input"),
            (Arg::Target, "target"),
            (Arg::Upstream, "upstream"),
            (Arg::Loss, "loss"),
            (Arg::ByInput, "grad_input"),
            (Arg::ByTarget, "grad_target"),
        ] {
            let Some(how) = self.how(arg) else { continue };
            refusals.push(match how {
                How::Shape => format!("Shape of {name}"),
                How::Null => format!("NullPointer of {name}"),
                How::Misaligned => format!("Misaligned of {name}"),
                How::Expanded | How::Gaps => format!("Stride of {name}"),
                How::Device => format!("Device of {name}"),
                How::Overlap if self.pass.is_in_place() => format!("Overlap of input with {name}"),
                How::Overlap => format!("Overlap of {name} with input"),
            });
        }
        let is_backward = self.pass.has_upstream_always();
        match self.wrong {
            Some(Wrong::ClassGradient) if self.grads() == [true; 2] && self.classes().is_some() => {
                refusals.push("ClassGradient of grad_target".to_owned());
            }
            Some(Wrong::NeverSaved | Wrong::OtherSaved)
                if is_backward && self.is_cross_entropy() =>
            {
                refusals.push("Saved".to_owned());
            }
            _ => {}
        }
        refusals.extend(self.invalid_options().map(|option| format!("InvalidOption of {option}")));
        if self.is_cross_entropy() && (self.cols == 0 || self.dims().is_empty()) {
            refusals.push("InvalidShape of input".to_owned());
        }
        refusals
    }

    /// Options without meaning.
    fn invalid_options(&self) -> impl Iterator<Item = &'static str> {
        let options = match self.loss {
            LossOf::Pairs(Pairwise::Huber { delta }) => vec![(delta > 0.0, "delta")],
            LossOf::Pairs(Pairwise::SmoothL1 { beta }) => vec![(beta >= 0.0, "beta")],
            LossOf::CrossEntropy { targets, ignore_index, label_smoothing, z_loss, .. } => vec![
                ((0.0..=1.0).contains(&label_smoothing), "label_smoothing"),
                (z_loss >= 0.0 && z_loss.is_finite(), "z_loss"),
                (targets != Kind::Probabilities || ignore_index < 0, "ignore_index"),
            ],
            _ => vec![],
        };
        options.into_iter().filter(|(is_valid, _)| !is_valid).map(|(_, option)| option)
    }

    /// Whether the loss is written to a `Loss`, which is as it should be.
    pub(super) fn is_to_loss(&self) -> bool {
        self.to_loss && self.how(Arg::Loss).is_none() && self.reduce() != Reduce::Unreduced
            || self.to_loss && self.how(Arg::Loss).is_none() && self.is_cross_entropy()
    }
}

/// An error's kind, and what it names.
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
