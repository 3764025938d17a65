//! The kernels of cross-entropy, by what targets are.

use crate::plan::Regime;
use kernels_gpu::Family;
use kernels_gpu::abi::CrossEntropyArgs;

/// The kernels for one kind of targets.
pub(super) struct Kernels {
    /// Groups of 16 bytes of a row that a thread holds.
    pub(super) per_thread: usize,
    /// The same, of a row of which a block keeps others in shared memory, by the bytes of an
    /// element.
    pub(super) vectors_beside: fn(usize) -> usize,
    /// The same, of a row of which a block computes gradients.
    pub(super) vectors_with_gradients: fn(usize) -> usize,
    pub(super) forward: PassKernels,
    pub(super) forward_backward: PassKernels,
    pub(super) backward: PassKernels,
    /// Loss and gradients of rows that several blocks share.
    pub(super) split: CrossEntropyFamily,
}

type CrossEntropyFamily = &'static Family<CrossEntropyArgs>;

/// The kernels of one pass, by [`Regime`].
pub(super) struct PassKernels {
    packed: CrossEntropyFamily,
    lane_rows: CrossEntropyFamily,
    short_whole: CrossEntropyFamily,
    registers: CrossEntropyFamily,
    few: CrossEntropyFamily,
    long: CrossEntropyFamily,
    stream: CrossEntropyFamily,
}

impl PassKernels {
    pub(super) fn of(&self, regime: Regime) -> CrossEntropyFamily {
        match regime {
            Regime::Packed => self.packed,
            Regime::LaneRows => self.lane_rows,
            Regime::ShortWhole => self.short_whole,
            Regime::Registers => self.registers,
            Regime::Few => self.few,
            Regime::Long => self.long,
            Regime::Stream => self.stream,
        }
    }
}

macro_rules! kernels {
    ($loss:ident) => {{
        use kernels_gpu::kernels::$loss::*;
        Kernels {
            per_thread: VECTORS,
            vectors_beside,
            vectors_with_gradients,
            forward: PassKernels {
                packed: &FORWARD_PACKED,
                lane_rows: &FORWARD_LANE_ROWS,
                short_whole: &FORWARD_SHORT_WHOLE,
                registers: &FORWARD,
                few: &FORWARD_FEW,
                long: &FORWARD_LONG,
                stream: &FORWARD_STREAM,
            },
            // The plan neither streams rows with gradients, nor treats few of them as few.
            forward_backward: PassKernels {
                packed: &FORWARD_BACKWARD_PACKED,
                lane_rows: &FORWARD_BACKWARD_LANE_ROWS,
                short_whole: &FORWARD_BACKWARD_SHORT_WHOLE,
                registers: &FORWARD_BACKWARD,
                few: &FORWARD_BACKWARD,
                long: &FORWARD_BACKWARD_LONG,
                stream: &FORWARD_BACKWARD_LONG,
            },
            backward: PassKernels {
                packed: &BACKWARD_PACKED,
                lane_rows: &BACKWARD_LANE_ROWS,
                short_whole: &BACKWARD_SHORT_WHOLE,
                registers: &BACKWARD,
                few: &BACKWARD,
                long: &BACKWARD_LONG,
                stream: &BACKWARD_LONG,
            },
            split: &FORWARD_BACKWARD_SPLIT,
        }
    }};
}

static CLASSES: Kernels = kernels!(cross_entropy);
static SMOOTHED: Kernels = kernels!(cross_entropy_smoothed);
static PROBABILITIES: Kernels = kernels!(cross_entropy_prob);

impl Kernels {
    /// The kernels that compute what `args` asks for.
    pub(super) fn of(args: &CrossEntropyArgs) -> &'static Kernels {
        if args.class_bytes == 0 {
            &PROBABILITIES
        } else if args.share != 0.0 {
            &SMOOTHED
        } else {
            &CLASSES
        }
    }
}
