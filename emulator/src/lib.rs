//! The CUDA driver on the CPU: the same driver calls, and launches run the same kernel source.
//!
//! [`symbol`] is to this driver what `dlsym` is to `libcuda.so.1`. Modules are the same PTX texts.
//! A module has the entries that its text names, and a launch runs the function of
//! [`kernels_gpu::all()`] with that name, one coroutine per GPU thread, blocks in parallel.
//!
//! A launch is checked while it runs. It ends with a fault at a barrier or shuffle that not all
//! threads reach; at an access to global memory that is outside every allocation, freed or
//! misaligned; at an access outside the block's shared arrays; and at a read of global or shared
//! memory that nothing has written. Its stream is then in error, and so is a stream that waits for
//! it: each synchronisation fails, and [`take_report`] names kernel, block, thread and place. Other
//! streams go on, so that tests can run in parallel; a GPU would lose the whole context.
//!
//! The blocks of a cooperative launch can wait for each other in both directions, as on a device
//! where all of them are resident. Such a launch also ends with a fault if every block waits for
//! another.
//!
//! By default, blocks, warps and lanes run in the order of their indices. With a number in
//! `FUSED_LOSS_EMULATOR_SEED`, each launch draws their order from that seed. The same launches on a
//! thread draw the same orders in every process; a report names the seed.
//!
//! [`Faults`] makes a driver call, or work on a stream, fail although nothing is wrong with it.
//! [`live`] counts objects that callers have created and not destroyed. With both, a test sees
//! whether a caller survives each failure and leaks nothing.
//!
//! The emulator does not show what depends on the PTX or on real concurrency: wrong code
//! generation, races from memory ordering, speed.

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
