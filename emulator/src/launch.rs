//! A launch: every block of a grid, in parallel.

use crate::block;
use crate::fault::Fault;
use kernels_gpu::Entry;
use rayon::prelude::*;
use std::sync::OnceLock;

/// CPU threads that run blocks, at most: each keeps a stack for every GPU thread of a block, and a
/// system has only so many mappings for one process.
const MAX_WORKERS: usize = 16;

/// A kernel with its shape and arguments.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) entry: &'static Entry,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    pub(crate) args: Vec<u8>,
}

impl Launch {
    /// Runs to the end, or to the first fault.
    pub(crate) fn run(&self) -> Result<(), Fault> {
        static WORKERS: OnceLock<rayon::ThreadPool> = OnceLock::new();
        let workers = WORKERS.get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            rayon::ThreadPoolBuilder::new()
                .num_threads(cores.min(MAX_WORKERS))
                .thread_name(|index| format!("emulator {index}"))
                .build()
                .expect("no threads for the emulator")
        });
        workers.install(|| {
            (0..self.grid).into_par_iter().try_for_each(|index| block::run(self, index))
        })
    }
}
