//! The row kernels, by the kind of targets and by what they compute.

use crate::plan::{Regime, Target};
use kernels_gpu::Family;
use kernels_gpu::abi::CrossEntropyArgs;

/// The kernels for one kind of targets, or for log-probabilities.
pub(super) struct Kernels {
    pub(super) target: Target,
    /// Vectors (16 bytes) of a row that a thread has in registers.
    pub(super) per_thread: usize,
    /// The same, for rows of which a block has the other vectors in shared memory, by the bytes of
    /// an element.
    pub(super) vectors_beside: fn(usize) -> usize,
    /// The same, for a block that computes gradients.
    pub(super) vectors_with_gradients: fn(usize) -> usize,
    pub(super) forward: PassKernels,
    pub(super) forward_backward: PassKernels,
    pub(super) backward: PassKernels,
    /// The kernel for loss and gradients of rows that several blocks share.
    pub(super) split: Option<CrossEntropyFamily>,
}

type CrossEntropyFamily = &'static Family<CrossEntropyArgs>;

/// The kernels of one pass, by [`Regime`]. The plan chooses no regime whose kernel is `None`.
pub(super) struct PassKernels {
    packed: Option<CrossEntropyFamily>,
    lane_rows: Option<CrossEntropyFamily>,
    wide_rows: Option<CrossEntropyFamily>,
    short_whole: Option<CrossEntropyFamily>,
    warp_whole: Option<CrossEntropyFamily>,
    short_peeled: Option<CrossEntropyFamily>,
    warp_peeled: Option<CrossEntropyFamily>,
    registers: Option<CrossEntropyFamily>,
    peeled: Option<CrossEntropyFamily>,
    few: Option<CrossEntropyFamily>,
    staged: Option<CrossEntropyFamily>,
    long: Option<CrossEntropyFamily>,
    stream: Option<CrossEntropyFamily>,
}

impl PassKernels {
    const NONE: Self = PassKernels {
        packed: None,
        lane_rows: None,
        wide_rows: None,
        short_whole: None,
        warp_whole: None,
        short_peeled: None,
        warp_peeled: None,
        registers: None,
        peeled: None,
        few: None,
        staged: None,
        long: None,
        stream: None,
    };

    pub(super) fn of(&self, regime: Regime) -> Option<CrossEntropyFamily> {
        match regime {
            Regime::Packed => self.packed,
            Regime::LaneRows => self.lane_rows,
            Regime::WideRows => self.wide_rows,
            Regime::ShortWhole => self.short_whole,
            Regime::WarpWhole => self.warp_whole,
            Regime::ShortPeeled => self.short_peeled,
            Regime::WarpPeeled => self.warp_peeled,
            Regime::Registers => self.registers,
            Regime::Peeled => self.peeled,
            Regime::Few => self.few,
            Regime::Staged => self.staged,
            Regime::Long => self.long,
            Regime::Stream => self.stream,
        }
    }
}

macro_rules! kernels {
    ($loss:ident, $target:ident) => {{
        use kernels_gpu::kernels::$loss::*;
        Kernels {
            target: Target::$target,
            per_thread: VECTORS,
            vectors_beside,
            vectors_with_gradients,
            forward: PassKernels {
                packed: Some(&FORWARD_PACKED),
                lane_rows: Some(&FORWARD_LANE_ROWS),
                wide_rows: Some(&FORWARD_WIDE_ROWS),
                short_whole: Some(&FORWARD_SHORT_WHOLE),
                warp_whole: Some(&FORWARD_WARP_WHOLE),
                short_peeled: Some(&FORWARD_SHORT_PEELED),
                warp_peeled: Some(&FORWARD_WARP_PEELED),
                registers: Some(&FORWARD),
                peeled: Some(&FORWARD_PEELED),
                few: Some(&FORWARD_FEW),
                staged: None,
                long: Some(&FORWARD_LONG),
                stream: Some(&FORWARD_STREAM),
            },
            // With gradients, the plan neither streams rows nor uses the kernel for few rows.
            forward_backward: PassKernels {
                packed: Some(&FORWARD_BACKWARD_PACKED),
                lane_rows: Some(&FORWARD_BACKWARD_LANE_ROWS),
                wide_rows: Some(&FORWARD_BACKWARD_WIDE_ROWS),
                short_whole: Some(&FORWARD_BACKWARD_SHORT_WHOLE),
                warp_whole: Some(&FORWARD_BACKWARD_WARP_WHOLE),
                short_peeled: Some(&FORWARD_BACKWARD_SHORT_PEELED),
                warp_peeled: Some(&FORWARD_BACKWARD_WARP_PEELED),
                registers: Some(&FORWARD_BACKWARD),
                peeled: None,
                few: Some(&FORWARD_BACKWARD),
                staged: Some(&FORWARD_BACKWARD_STAGED),
                long: Some(&FORWARD_BACKWARD_LONG),
                stream: Some(&FORWARD_BACKWARD_LONG),
            },
            backward: PassKernels {
                packed: Some(&BACKWARD_PACKED),
                lane_rows: Some(&BACKWARD_LANE_ROWS),
                wide_rows: Some(&BACKWARD_WIDE_ROWS),
                short_whole: Some(&BACKWARD_SHORT_WHOLE),
                warp_whole: None,
                short_peeled: None,
                warp_peeled: None,
                registers: Some(&BACKWARD),
                peeled: None,
                few: Some(&BACKWARD),
                staged: None,
                long: Some(&BACKWARD_LONG),
                stream: Some(&BACKWARD_LONG),
            },
            split: Some(&FORWARD_BACKWARD_SPLIT),
        }
    }};
}

static CLASSES: Kernels = kernels!(cross_entropy, Class);
static SMOOTHED: Kernels = kernels!(cross_entropy_smoothed, Smoothed);
static WEIGHTED: Kernels = kernels!(cross_entropy_weighted, Weighted);
static PROBABILITIES: Kernels = kernels!(cross_entropy_prob, Probabilities);
static LOG_PROB: Kernels = {
    use kernels_gpu::kernels::log_prob::*;
    Kernels {
        target: Target::Class,
        per_thread: VECTORS,
        vectors_beside,
        vectors_with_gradients,
        forward: PassKernels {
            packed: Some(&FORWARD_PACKED),
            stream: Some(&FORWARD_STREAM),
            ..PassKernels::NONE
        },
        forward_backward: PassKernels {
            packed: Some(&FORWARD_BACKWARD_PACKED),
            registers: Some(&FORWARD_BACKWARD),
            long: Some(&FORWARD_BACKWARD_LONG),
            ..PassKernels::NONE
        },
        backward: PassKernels {
            packed: Some(&BACKWARD_PACKED),
            long: Some(&BACKWARD_LONG),
            ..PassKernels::NONE
        },
        split: None,
    }
};

impl Kernels {
    /// The kernels that compute what `args` asks for.
    pub(super) fn of(args: &CrossEntropyArgs) -> &'static Kernels {
        if args.log_prob.scale != 0.0 {
            &LOG_PROB
        } else if args.class_bytes == 0 {
            &PROBABILITIES
        } else if args.share == 0.0 {
            &CLASSES
        } else if args.weight == 0 {
            &SMOOTHED
        } else {
            &WEIGHTED
        }
    }
}
