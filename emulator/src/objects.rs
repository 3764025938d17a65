//! The objects that the driver's handles refer to.

use crate::fault::Fault;
use crate::injection;
use crate::kernel::Launch;
use crate::memory;
use kernels_gpu::Entry;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Objects by handle. A handle is a number that is never reused, so that a stale one is detected.
pub(crate) struct Registry<T> {
    objects: Mutex<Option<HashMap<usize, Arc<T>>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { objects: Mutex::new(None) }
    }

    pub(crate) fn add(&self, object: T) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        let mut objects = self.objects.lock().unwrap();
        objects.get_or_insert_default().insert(handle, Arc::new(object));
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.objects.lock().unwrap().as_ref()?.get(&handle).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.lock().unwrap().as_ref().map_or(0, HashMap::len)
    }

    pub(crate) fn remove_where(&self, is_gone: impl Fn(&T) -> bool) {
        if let Some(objects) = self.objects.lock().unwrap().as_mut() {
            objects.retain(|_, object| !is_gone(object));
        }
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.objects.lock().unwrap().as_mut()?.remove(&handle)
    }
}

pub(crate) static STREAMS: Registry<Stream> = Registry::new();
pub(crate) static EVENTS: Registry<Mutex<Option<Recorded>>> = Registry::new();
pub(crate) static MODULES: Registry<Module> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();
pub(crate) static GRAPHS: Registry<Vec<Operation>> = Registry::new();

/// Several devices, so that mixing them can be tested.
pub(crate) const DEVICES: i32 = 3;
/// How often the primary context of each device is retained.
pub(crate) static RETAINED: [AtomicUsize; DEVICES as usize] =
    [const { AtomicUsize::new(0) }; DEVICES as usize];

/// How many driver objects the process has created and not destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// Allocations of device memory.
    pub allocations: usize,
    /// Streams, without the default streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Loaded modules.
    pub modules: usize,
    /// Graphs, executable or not.
    pub graphs: usize,
    /// Retained primary contexts; each counts as often as it is retained.
    pub contexts: usize,
}

/// The objects that callers have created and not destroyed.
pub fn live() -> Live {
    Live {
        allocations: memory::allocations(),
        streams: STREAMS.len(),
        events: EVENTS.len(),
        modules: MODULES.len(),
        graphs: GRAPHS.len(),
        contexts: RETAINED.iter().map(|count| count.load(Ordering::Relaxed)).sum(),
    }
}

/// When an event was recorded, and whether into a graph.
pub(crate) struct Recorded {
    pub(crate) at: Instant,
    pub(crate) captured: bool,
    /// An earlier fault on its stream, which waiting for it reports.
    pub(crate) fault: Option<Fault>,
}

/// A loaded PTX text.
pub(crate) struct Module {
    /// The entries, each with the bytes of its shared arrays and whether it waits for earlier work
    /// in its stream.
    pub(crate) entries: Vec<(&'static Entry, u32, bool)>,
}

/// An entry of a loaded module.
pub(crate) struct Function {
    pub(crate) entry: &'static Entry,
    /// The handle of its module.
    pub(crate) module: usize,
    /// Bytes of the shared arrays that it names.
    pub(crate) static_shared: u32,
    /// Whether it waits for earlier work in its stream.
    pub(crate) waits: bool,
    /// The most bytes of dynamic shared memory that a launch may ask for.
    pub(crate) max_dynamic_shared: AtomicU32,
    /// How much of a multiprocessor's memory is to be shared memory, in percent, or −1.
    pub(crate) carveout: AtomicI32,
}

/// What can be queued on a stream, or recorded into a graph.
#[derive(Clone)]
pub(crate) enum Operation {
    /// A kernel.
    Launch(Launch),
    /// Bytes to one value.
    Fill { start: usize, value: u8, bytes: usize },
    /// Bytes to other bytes, within device memory.
    Copy { from: usize, to: usize, bytes: usize },
}

impl Operation {
    fn run(&self) -> Result<(), Fault> {
        match self {
            Operation::Launch(launch) => launch.run(),
            Operation::Fill { start, value, bytes } => {
                // SAFETY: the range was checked when the operation was made.
                unsafe {
                    std::ptr::write_bytes(*start as *mut u8, *value, *bytes);
                    memory::mark_written(*start, *bytes);
                }
                Ok(())
            }
            Operation::Copy { from, to, bytes } => {
                // SAFETY: both ranges were checked when the operation was made.
                unsafe {
                    std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes);
                    memory::copy_marks(*from, *to, *bytes);
                }
                Ok(())
            }
        }
    }
}

/// A stream. Operations run at once, so that order between streams is the order of the calls.
#[derive(Default)]
pub(crate) struct Stream {
    /// The first fault. It stays, as on a GPU, because later results were not computed either.
    fault: Mutex<Option<Fault>>,
    /// The operations recorded while a graph is captured, and whether all of them could be
    /// recorded.
    recorded: Mutex<Option<(Vec<Operation>, bool)>>,
    /// One operation at a time.
    queue: Mutex<()>,
}

impl Stream {
    /// Runs the operation, or records it.
    pub(crate) fn queue(&self, operation: Operation) {
        if let Some((recorded, _)) = self.recorded.lock().unwrap().as_mut() {
            recorded.push(operation);
            return;
        }
        let _turn = self.queue.lock().unwrap();
        if let Err(fault) = injection::before_work().and_then(|()| operation.run()) {
            self.note_fault(fault);
        }
    }

    /// The code of the first fault; its report is stored for this CPU thread.
    pub(crate) fn synchronize(&self) -> Result<(), u32> {
        self.fault().map_or(Ok(()), |fault| Err(fault.tell()))
    }

    /// Records that earlier work has ended in `fault`.
    pub(crate) fn note_fault(&self, fault: Fault) {
        self.fault.lock().unwrap().get_or_insert(fault);
    }

    /// The first fault.
    pub(crate) fn fault(&self) -> Option<Fault> {
        let _turn = self.queue.lock().unwrap();
        self.fault.lock().unwrap().clone()
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.recorded.lock().unwrap().is_some()
    }

    pub(crate) fn begin_capture(&self) -> bool {
        let mut recorded = self.recorded.lock().unwrap();
        let begins = recorded.is_none();
        recorded.get_or_insert_with(|| (Vec::new(), true));
        begins
    }

    /// Records that a call cannot be captured, so that the capture fails.
    pub(crate) fn invalidate_capture(&self) {
        if let Some((_, valid)) = self.recorded.lock().unwrap().as_mut() {
            *valid = false;
        }
    }

    pub(crate) fn end_capture(&self) -> Option<(Vec<Operation>, bool)> {
        self.recorded.lock().unwrap().take()
    }
}
