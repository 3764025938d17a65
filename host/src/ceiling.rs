//! Launches the kernels that do nothing but read and write, for the benchmarks.

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::launch::launch_entry;
use crate::plan::{self, Launch};
use crate::stream::Stream;
use kernels_gpu::abi::CeilingArgs;

/// [`CeilingArgs::early_bytes`] as the losses ask for them: 0 where launches do not overlap.
pub fn early_bytes(gpu: &Gpu) -> u64 {
    if gpu.overlaps() { plan::early_bytes(gpu.cache()) as u64 } else { 0 }
}

/// Queues the kernel called `name`, e.g. `ceiling_read2_by4_f32`.
///
/// # Errors
/// [`Error::MissingKernel`]; [`Error::Driver`].
///
/// # Safety
/// 1. The arrays that the kernel reads and writes are each `args.groups` times 16 bytes of the
///    stream's device, on a 16-byte boundary, until the work is done; those it writes overlap
///    nothing.
/// 2. `args.sink` is 4 bytes there.
/// 3. `block` is at most 1024.
pub unsafe fn launch(
    stream: &Stream,
    name: &'static str,
    grid: u32,
    block: u32,
    args: &CeilingArgs,
) -> Result<()> {
    let entry =
        kernels_gpu::find(name).ok_or(Error::MissingKernel { name, module: "ceiling_f32" })?;
    // SAFETY: the caller's conditions; no kernel of the family needs more than a block of 1024.
    unsafe {
        launch_entry(
            stream,
            entry,
            Launch { blocks: grid, threads: block, shared_bytes: 0, cooperative: false },
            args,
        )
    }
}
