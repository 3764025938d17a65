//! The shapes of launches, and that their data fits the memory that they use.

mod elementwise;
mod prefetch;
mod samples;
mod warp_rows;

use super::packed::Device;
use super::*;
use kernels_gpu::abi::{ADDER_SHIFT, max_workers, words_of_worker};

const PASSES: [Pass; 3] = [Pass::Forward, Pass::Backward, Pass::ForwardBackward];

const KERNELS: SamplesKernels = SamplesKernels {
    alignment: 2,
    tensors: 1,
    per_thread: 4,
    vectors_with_gradients: 4,
    packed: None,
    stream: None,
    vectors_beside: 2,
    multiprocessors: 132,
    shared_bytes: 228 << 10,
    target: Target::Class,
    whole: true,
    alike: true,
    collide: false,
    short_block: 256,
    warp_block: 0,
    short_peeled_block: 0,
    warp_peeled_block: 0,
    max_registers_block: 512,
    staged: None,
    peeled_block: 256,
    few_block: 512,
    long_block: 256,
    sums: 2,
};

fn shape(plan: SamplesLaunch) -> (Regime, u32, u32, u32, u32) {
    let RowsLaunch { launch, group_threads, splits } = plan.rows;
    (plan.regime, launch.blocks, launch.threads, group_threads.get(), splits.get())
}

/// The kernels for contiguous f32 rows of `cols` columns, on a device of 132 multiprocessors.
fn kernels(cols: usize) -> SamplesKernels {
    let rows = packed::Rows::of_f32(cols);
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
    let packed = packed::packed(Pass::Forward, rows, usize::MAX).map(|packed| (packed, device));
    SamplesKernels { packed, whole: cols.is_multiple_of(4), ..KERNELS }
}
