//! A launch: every block of a grid, in parallel, begun in the order of their indices.

use crate::block;
use crate::fault::Fault;
use kernels_gpu::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// CPU threads that run blocks, at most: each keeps a stack for every GPU thread of a block, and a
/// system has only so many mappings for one process.
const MAX_WORKERS: usize = 16;

/// A kernel with its shape and arguments.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) entry: &'static Entry,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    pub(crate) args: Vec<u8>,
}

impl Launch {
    /// Runs to the end, or to the first fault.
    pub(crate) fn run(&self) -> Result<(), Fault> {
        static WORKERS: OnceLock<rayon::ThreadPool> = OnceLock::new();
        // One at a time: of two, each could have the workers that blocks of the other wait for.
        static RUNS: Mutex<()> = Mutex::new(());
        let _one = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = WORKERS.get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            rayon::ThreadPoolBuilder::new()
                // Two at least: one may be kept by a block that waits for those behind it.
                .num_threads(cores.clamp(2, MAX_WORKERS))
                .thread_name(|index| format!("emulator {index}"))
                .build()
                .expect("no threads for the emulator")
        });
        let (next, failed, first) = (AtomicU32::new(0), AtomicBool::new(false), Mutex::new(None));
        // A block may wait for blocks before it: they were taken before, and run. One may for those behind it: another worker has
        // them run.
        workers.broadcast(|_| {
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.grid {
                    break;
                }
                if let Err(fault) = block::run(self, index, &failed) {
                    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                    // Those that waited for the block with the fault fail after it.
                    if !failed.swap(true, Ordering::Relaxed) {
                        *first = Some(fault);
                    }
                }
            }
        });
        first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
