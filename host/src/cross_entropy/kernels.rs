//! The kernels of cross-entropy, by what targets are.

use kernels_gpu::Family;
use kernels_gpu::abi::CrossEntropyArgs;

/// The kernels for one kind of targets.
pub(super) struct Kernels {
    /// Groups of 16 bytes of a row that a thread holds.
    pub(super) held: usize,
    /// The same, of a row of which a block keeps others in shared memory, by the bytes of an
    /// element.
    pub(super) held_beside: fn(usize) -> usize,
    /// The same, of a row of which a block computes gradients.
    pub(super) held_with_gradients: fn(usize) -> usize,
    /// By [`Form`](crate::plan::Form).
    pub(super) forward: [&'static Family<CrossEntropyArgs>; 5],
    /// Likewise, but few rows as any.
    pub(super) forward_backward: [&'static Family<CrossEntropyArgs>; 5],
    /// Likewise.
    pub(super) backward: [&'static Family<CrossEntropyArgs>; 5],
    /// For long rows of which the arithmetic takes about as long as the memory: it hides best
    /// behind copies that need no registers.
    pub(super) forward_stream: &'static Family<CrossEntropyArgs>,
}

macro_rules! kernels {
    ($loss:ident) => {
        Kernels {
            held: kernels_gpu::kernels::$loss::HELD,
            held_beside: kernels_gpu::kernels::$loss::held_beside,
            held_with_gradients: kernels_gpu::kernels::$loss::held_with_gradients,
            forward: [
                &kernels_gpu::kernels::$loss::FORWARD_PACKED,
                &kernels_gpu::kernels::$loss::FORWARD_SHORT_WHOLE,
                &kernels_gpu::kernels::$loss::FORWARD,
                &kernels_gpu::kernels::$loss::FORWARD_FEW,
                &kernels_gpu::kernels::$loss::FORWARD_LONG,
            ],
            forward_stream: &kernels_gpu::kernels::$loss::FORWARD_STREAM,
            forward_backward: [
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_PACKED,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_SHORT_WHOLE,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_LONG,
            ],
            backward: [
                &kernels_gpu::kernels::$loss::BACKWARD_PACKED,
                &kernels_gpu::kernels::$loss::BACKWARD_SHORT_WHOLE,
                &kernels_gpu::kernels::$loss::BACKWARD,
                &kernels_gpu::kernels::$loss::BACKWARD,
                &kernels_gpu::kernels::$loss::BACKWARD_LONG,
            ],
        }
    };
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
