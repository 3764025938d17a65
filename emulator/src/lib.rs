//! The CUDA driver on the CPU: the same driver calls, and behind a launch the same kernel source.
//!
//! [`symbol`] is to this driver what `dlsym` is to `libcuda.so.1`. Modules are the same PTX texts:
//! a module holds the entries its text names, and a launch runs the function of
//! [`kernels_gpu::all()`] with that name, one coroutine a GPU thread, blocks in parallel.
//!
//! A launch is checked while it runs. A barrier or shuffle that not all threads reach, an access to
//! global memory outside every allocation, to freed memory or off its alignment, an access outside
//! the block's shared arrays, and a read of global or shared memory that nothing has written end
//! the launch; its stream is in error from then on, and so is a stream that waits for it: each
//! synchronisation fails, and [`take_report`] names kernel, block, thread and place. Other streams
//! go on, where a GPU would lose the whole context: tests run side by side.
//!
//! The blocks of a cooperative launch wait for each other in both directions, as those of a device
//! that holds all of them at a time. Such a launch also ends where every block waits for another.
//!
//! With a number in `FUSED_LOSS_EMULATOR_SEED`, each launch draws from it in which order blocks,
//! warps and lanes run, where otherwise they do by their indices. A process that makes the same
//! launches on a thread draws the same orders on it; a report names the seed.
//!
//! [`Faults`] has a call of the driver fail, or work on a stream, although nothing is wrong with
//! it. [`live`] counts what callers have created and not destroyed. With both a test sees whether a
//! caller survives each failure, and leaks nothing.
//!
//! It does not show what depends on the PTX or on real concurrency: wrong code generation, races
//! in the order of memory, speed.

mod block;
mod driver;
mod fault;
mod injection;
mod kernel;
mod launch;
mod memory;
mod objects;
mod order;
mod race;
mod stack;
#[cfg(test)]
mod tests;

pub use driver::symbol;
pub use fault::take_report;
pub use injection::Faults;
pub use objects::{Live, live};

/// The name of the emulated device.
pub const DEVICE_NAME: &str = "fused-loss emulator (CPU)";
