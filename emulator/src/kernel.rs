//! A launch.

use kernels_gpu::Entry;

/// A kernel with its shape and arguments.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) entry: &'static Entry,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Whether all blocks are resident at the same time, so that each may wait for any other.
    pub(crate) cooperative: bool,
    pub(crate) args: Vec<u8>,
}
