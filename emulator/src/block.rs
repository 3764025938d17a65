//! A block: its threads are coroutines, its shared memory is on the heap, and its barrier is the
//! point where all threads have yielded.

use crate::fault::{Fault, ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS};
use crate::kernel::Launch;
use crate::memory::{self, Nearest, Range};
use crate::order::Order;
use crate::race::{Clock, Conflict, CopiedFrom, History, Touch};
use crate::stack::ThreadStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use cuda_std::host::{self, Access, Copied, Machine, Place};
use cuda_std::warp::WARP_SIZE;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a thread does not run.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// It has not started, or may continue.
    No,
    /// For the block.
    Barrier(Place),
    /// For its warp.
    Shuffle { value: u32, by: Shuffle, place: Place },
    /// For another block, in a launch whose blocks take turns. It may continue after the other
    /// block's turn.
    Spin(Place),
    /// It has returned.
    Done,
}

/// From which lane a shuffle receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shuffle {
    /// From the lane whose index differs by this mask, the same for all lanes of the warp.
    Xor(u32),
    /// From this lane.
    Lane(u32),
}

impl Shuffle {
    /// Whether this lane and another one can take part in one shuffle.
    fn goes_with(self, other: Self) -> bool {
        match (self, other) {
            (Shuffle::Xor(mask), Shuffle::Xor(other)) => mask == other,
            (Shuffle::Lane(_), Shuffle::Lane(_)) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shuffle::Xor(mask) => write!(f, "by {mask}"),
            Shuffle::Lane(lane) => write!(f, "from lane {lane}"),
        }
    }
}

impl Waiting {
    /// Whether the thread can be resumed.
    fn is_runnable(self) -> bool {
        matches!(self, Waiting::No | Waiting::Spin(_))
    }

    /// Where in the source it waits.
    fn place(self) -> Option<Place> {
        match self {
            Waiting::Barrier(place) | Waiting::Shuffle { place, .. } | Waiting::Spin(place) => {
                Some(place)
            }
            Waiting::No | Waiting::Done => None,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::No => f.write_str("runs"),
            Waiting::Barrier(at) => {
                write!(f, "waits at the barrier at {}:{}", at.file(), at.line())
            }
            Waiting::Shuffle { by, place: at, .. } => {
                write!(f, "waits at the shuffle {by} at {}:{}", at.file(), at.line())
            }
            Waiting::Spin(at) => {
                write!(f, "waits for another block at {}:{}", at.file(), at.line())
            }
            Waiting::Done => f.write_str("has returned"),
        }
    }
}

/// What the threads of a block share.
struct Block<'a> {
    launch: &'a Launch,
    index: u32,
    /// Whether the blocks of the launch take turns: a thread that waits for another block lets
    /// others go on.
    takes_turns: bool,
    /// Whether a block of the launch has ended in a fault.
    failed: &'a AtomicBool,
    shared: RefCell<Vec<Shared>>,
    clock: Clock,
    /// What the block's threads copy from global memory.
    copied: RefCell<CopiedFrom>,
    /// Whether a thread has stored to memory since this was last reset.
    has_stored: Cell<bool>,
}

/// A shared array: its key, which is the address of the array in the source; its memory, which is
/// 16-byte aligned and does not move when another array is added; which bytes were written; and who
/// accessed it.
struct Shared {
    key: usize,
    memory: Box<[u128]>,
    written: Vec<bool>,
    history: History,
}

/// The key of the dynamic shared memory. It is not the address of any array in the source.
const DYNAMIC: usize = 0;

impl Shared {
    fn range(&self) -> Range {
        Range { start: self.memory.as_ptr() as usize, len: self.written.len() }
    }
}

/// One GPU thread, as the kernel's functions see it.
struct Thread<'a> {
    block: Rc<Block<'a>>,
    index: u32,
    yielder: Cell<*const Yielder<(), ()>>,
    waiting: Cell<Waiting>,
    /// The value that the last shuffle returned.
    received: Cell<u32>,
    /// Copies to shared memory that were not waited for yet, in batches; the last batch is not
    /// ended.
    copies: RefCell<Vec<Vec<Copied>>>,
    /// The allocations of the last accesses. They are searched first, because a kernel's accesses
    /// alternate between few allocations.
    recent: [Cell<Range>; 4],
    oldest: Cell<usize>,
}

/// The coroutines of the threads of one block, which borrow nothing that outlives the block.
type Runner = Coroutine<(), (), (), ThreadStack>;

impl<'a> Thread<'a> {
    fn new(block: &Rc<Block<'a>>, index: u32) -> Self {
        Thread {
            block: Rc::clone(block),
            index,
            yielder: Cell::new(std::ptr::null()),
            waiting: Cell::new(Waiting::No),
            received: Cell::new(0),
            copies: RefCell::new(vec![Vec::new()]),
            recent: std::array::from_fn(|_| Cell::new(Range { start: 0, len: 0 })),
            oldest: Cell::new(0),
        }
    }

    fn wait(&self, waiting: Waiting) {
        self.waiting.set(waiting);
        // SAFETY: set when the coroutine started; a machine is called only on its own coroutine.
        unsafe { &*self.yielder.get() }.suspend(());
    }

    fn fault(&self, code: u32, what: String, place: Place) -> ! {
        let report = format!(
            "kernel {}, block {}, thread {}: {what} (at {}:{})",
            self.block.launch.entry.name,
            self.block.index,
            self.index,
            place.file(),
            place.line()
        );
        // This is not a panic of the program, so the hook must print nothing.
        panic::resume_unwind(Box::new(Fault { code, report }))
    }

    /// Ends the launch if an asynchronous copy may still read what this thread is about to write.
    fn check_not_copied(&self, address: usize, bytes: usize, place: Place) {
        let copied = self.block.copied.borrow();
        let result = copied.write((address, bytes), self.index, &self.block.clock);
        if let Err(Conflict { verb, thread, place: other }) = result {
            let what = format!(
                "writes {bytes} bytes of global memory at {address:#x} that thread {thread} {verb} \
                 at {}:{}, with no barrier between the two",
                other.file(),
                other.line()
            );
            self.fault(LAUNCH_FAILED, what, place);
        }
    }

    fn find(&self, address: usize, bytes: usize) -> bool {
        if self.recent.iter().any(|range| range.get().contains(address, bytes)) {
            return true;
        }
        let Some(range) = memory::find(address, bytes) else {
            return false;
        };
        self.recent[self.oldest.get()].set(range);
        self.oldest.set((self.oldest.get() + 1) % self.recent.len());
        true
    }
}

impl Machine for Thread<'_> {
    fn thread_idx(&self) -> u32 {
        self.index
    }

    fn block_idx(&self) -> u32 {
        self.block.index
    }

    fn block_dim(&self) -> u32 {
        self.block.launch.block
    }

    fn grid_dim(&self) -> u32 {
        self.block.launch.grid
    }

    fn sync_threads(&self, place: Place) {
        self.wait(Waiting::Barrier(place));
    }

    fn spin(&self, place: Place) {
        if self.block.failed.load(Ordering::Relaxed) {
            let what = "waits for a block that has ended in a fault".to_owned();
            self.fault(LAUNCH_FAILED, what, place);
        }
        if self.block.takes_turns {
            self.wait(Waiting::Spin(place));
        } else {
            std::thread::yield_now();
        }
    }

    fn shuffle_xor(&self, value: u32, lane_mask: u32, place: Place) -> u32 {
        self.wait(Waiting::Shuffle { value, by: Shuffle::Xor(lane_mask), place });
        self.received.get()
    }

    fn shuffle(&self, value: u32, lane: u32, place: Place) -> u32 {
        // The hardware uses the lower bits too.
        self.wait(Waiting::Shuffle { value, by: Shuffle::Lane(lane % WARP_SIZE), place });
        self.received.get()
    }

    fn shared_array(&self, key: usize, bytes: usize) -> usize {
        let mut shared = self.block.shared.borrow_mut();
        let at = shared.iter().position(|array| array.key == key).unwrap_or_else(|| {
            let memory = vec![0; bytes.div_ceil(16)].into_boxed_slice();
            shared.push(Shared {
                key,
                memory,
                written: vec![false; bytes],
                history: History::new(),
            });
            shared.len() - 1
        });
        shared[at].memory.as_mut_ptr() as usize
    }

    fn copy_to_shared(&self, copy: Copied) {
        self.touch_shared(copy.to, copy.bytes, Touch::StartCopy, copy.place);
        self.block.copied.borrow_mut().start(source(&copy), (self.index, copy.place));
        let mut batches = self.copies.borrow_mut();
        batches.last_mut().expect("one is not ended").push(copy);
    }

    fn end_copies(&self) {
        self.copies.borrow_mut().push(Vec::new());
    }

    fn take_copies(&self, but: usize) -> Vec<Copied> {
        let mut batches = self.copies.borrow_mut();
        let ended = batches.len() - 1;
        let copies: Vec<_> = batches.drain(..ended.saturating_sub(but)).flatten().collect();
        let mut copied = self.block.copied.borrow_mut();
        for copy in &copies {
            copied.end(source(copy), (self.index, copy.place), &self.block.clock);
        }
        copies
    }

    fn dynamic_shared_memory(&self) -> usize {
        self.shared_array(DYNAMIC, self.block.launch.shared_bytes as usize)
    }

    fn global_access(&self, address: usize, bytes: usize, access: Access, place: Place) {
        let verb = verb(access);
        if !self.find(address, bytes) {
            let near = match memory::nearest(address) {
                Nearest::Freed(range) => {
                    format!("byte {} of {} freed bytes", address - range.start, range.len)
                }
                Nearest::Above(range) => format!(
                    "outside any allocation; {} bytes from the start of one of {} bytes",
                    address - range.start,
                    range.len
                ),
                Nearest::Nothing => "outside any allocation".to_owned(),
            };
            let what = format!("{verb} {bytes} bytes of global memory at {address:#x}, {near}");
            self.fault(ILLEGAL_ADDRESS, what, place);
        }
        if !address.is_multiple_of(bytes) {
            let what =
                format!("{verb} {bytes} bytes of global memory at {address:#x}, not aligned");
            self.fault(MISALIGNED_ADDRESS, what, place);
        }
        match access {
            Access::Store => {
                self.block.has_stored.set(true);
                self.check_not_copied(address, bytes, place);
                // SAFETY: found in one allocation.
                unsafe { memory::mark_written(address, bytes) };
            }
            Access::Load => {
                // SAFETY: found in one allocation.
                if !unsafe { memory::is_written(address, bytes) } {
                    let what = format!(
                        "reads {bytes} bytes of global memory at {address:#x} that nothing has \
                         written"
                    );
                    self.fault(LAUNCH_FAILED, what, place);
                }
            }
        }
    }

    fn shared_access(&self, address: usize, bytes: usize, access: Access, place: Place) {
        self.touch_shared(address, bytes, access.into(), place);
    }
}

impl Thread<'_> {
    fn touch_shared(&self, address: usize, bytes: usize, touch: Touch, place: Place) {
        let verb = match touch {
            Touch::Read => "reads",
            Touch::Write => "writes",
            Touch::StartCopy => "starts to copy",
        };
        let mut arrays = self.block.shared.borrow_mut();
        let Some(array) = arrays.iter_mut().find(|array| array.range().contains(address, bytes))
        else {
            drop(arrays);
            let what = format!("{verb} {bytes} bytes outside the block's shared arrays");
            self.fault(ILLEGAL_ADDRESS, what, place);
        };
        let offset = address - array.range().start;
        let found =
            format_args!("{verb} {bytes} bytes of shared memory, from byte {offset} of an array");
        if !address.is_multiple_of(bytes) {
            let what = format!("{found}, not aligned");
            drop(arrays);
            self.fault(MISALIGNED_ADDRESS, what, place);
        }
        let written = &mut array.written[offset..offset + bytes];
        match touch {
            // The copy itself is made when its thread waits for it.
            Touch::StartCopy => {}
            Touch::Write => {
                self.block.has_stored.set(true);
                written.fill(true);
            }
            Touch::Read => {
                if !written.iter().all(|&written| written) {
                    let what = format!("{found}, that nothing has written");
                    drop(arrays);
                    self.fault(LAUNCH_FAILED, what, place);
                }
            }
        }
        let by = (self.index, place);
        let result = array.history.touch((offset, bytes), touch, by, &self.block.clock);
        if let Err(Conflict { verb, thread, place: other }) = result {
            let what = format!(
                "{found}, that thread {thread} {verb} at {}:{}, with no barrier between the two",
                other.file(),
                other.line()
            );
            drop(arrays);
            self.fault(LAUNCH_FAILED, what, place);
        }
    }
}

/// The address and number of the bytes that a copy reads.
fn source(copy: &Copied) -> (usize, usize) {
    (copy.from + copy.first, copy.bytes - copy.first)
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::Load => "reads",
        Access::Store => "writes",
    }
}

/// Runs block `index` to its end, or to its first fault. While its threads wait for other blocks,
/// they occupy the CPU thread.
pub(crate) fn run(launch: &Launch, index: u32, failed: &AtomicBool) -> Result<(), Fault> {
    let stacks = std::iter::repeat_with(ThreadStack::kept);
    match Running::new(launch, index, failed, false, stacks, Order::by_index()).step()? {
        Step::Done => Ok(()),
        Step::Spins | Step::Pauses => unreachable!("a block that takes no turns runs to its end"),
    }
}

/// The state of a block after a step.
pub(crate) enum Step {
    /// All threads have returned.
    Done,
    /// At least one thread waits for another block, and only such threads can continue.
    Spins,
    /// It could continue, but lets other blocks run first.
    Pauses,
}

/// A block whose order is drawn pauses in one of this many turns of warps, and at one of this many
/// barriers.
const TURNS_TO_PAUSE: u64 = 16;
const BARRIERS_TO_PAUSE: u64 = 4;

/// A block that has begun.
pub(crate) struct Running<'a> {
    /// Coroutines, which refer to the threads, and unwind when they are dropped: before the threads
    /// are, as fields are dropped in this order.
    runners: Vec<Option<Runner>>,
    /// Nothing is added later, so the threads do not move.
    threads: Vec<Thread<'a>>,
    /// Where each thread waited after the last step that [`has_gone_on`](Self::has_gone_on) saw.
    places: Vec<Option<Place>>,
    /// The order in which its warps and their lanes run.
    order: Order,
}

impl<'a> Running<'a> {
    /// Begins block `index`. `stacks` has one for each thread.
    pub(crate) fn new(
        launch: &'a Launch,
        index: u32,
        failed: &'a AtomicBool,
        takes_turns: bool,
        stacks: impl Iterator<Item = ThreadStack>,
        order: Order,
    ) -> Self {
        let block = Rc::new(Block {
            launch,
            index,
            takes_turns,
            failed,
            shared: RefCell::default(),
            clock: Clock::new(launch.block),
            copied: RefCell::default(),
            has_stored: Cell::new(false),
        });
        let threads: Vec<_> = (0..launch.block).map(|index| Thread::new(&block, index)).collect();
        let runners: Vec<_> =
            threads.iter().zip(stacks).map(|(thread, stack)| Some(runner(thread, stack))).collect();
        assert_eq!(runners.len(), threads.len(), "a stack for each thread");
        Running { runners, threads, places: Vec::new(), order }
    }

    /// Runs the block until all threads have returned, or until only spinning threads can continue
    /// and each has checked once. If its order is drawn, it may pause earlier.
    pub(crate) fn step(&mut self) -> Result<Step, Fault> {
        loop {
            if self.run_warps()? {
                return Ok(Step::Pauses);
            }
            let mut done = true;
            for thread in &self.threads {
                match thread.waiting.get() {
                    // It may still reach the barrier at which others wait.
                    Waiting::Spin(_) => return Ok(Step::Spins),
                    Waiting::Done => {}
                    _ => done = false,
                }
            }
            if done {
                return Ok(Step::Done);
            }
            release_barrier(&self.threads)?;
            if self.order.happens(BARRIERS_TO_PAUSE) {
                return Ok(Step::Pauses);
            }
        }
    }

    /// Runs each warp until only its spinning threads can continue: one warp after the other or, if
    /// the order is drawn, a random one from one shuffle to the next. Returns whether the block
    /// pauses before that.
    fn run_warps(&mut self) -> Result<bool, Fault> {
        let count = self.threads.len();
        let mut left: Vec<_> = (0..count).step_by(WARP_SIZE as usize).collect();
        while !left.is_empty() {
            let next = self.order.below(left.len());
            let warp = left[next]..count.min(left[next] + WARP_SIZE as usize);
            let (threads, runners) = (&self.threads[warp.clone()], &mut self.runners[warp]);
            if !run_warp(threads, runners, &self.order)? {
                left.remove(next);
            }
            if self.order.happens(TURNS_TO_PAUSE) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the steps since the last call have stored anything, or moved a thread to another
    /// place.
    pub(crate) fn has_gone_on(&mut self) -> bool {
        let mut has_gone_on = false;
        self.places.resize(self.threads.len(), None);
        for (thread, before) in self.threads.iter().zip(&mut self.places) {
            let now = thread.waiting.get().place();
            let same = match (now, *before) {
                (Some(now), Some(before)) => std::ptr::eq(now, before),
                (None, None) => true,
                _ => false,
            };
            has_gone_on |= !same;
            *before = now;
        }
        self.threads.first().is_some_and(|thread| thread.block.has_stored.take()) || has_gone_on
    }

    /// The first thread at each place where threads wait.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        let mut waits: Vec<Wait> = Vec::new();
        for thread in &self.threads {
            let waiting = thread.waiting.get();
            let Some(place) = waiting.place() else { continue };
            if waits.iter().all(|wait| wait.place != place) {
                let (block, what) = (thread.block.index, waiting.to_string());
                waits.push(Wait { block, thread: thread.index, place, what });
            }
        }
        waits
    }
}

/// Where a thread waits, for a report.
pub(crate) struct Wait {
    pub(crate) block: u32,
    pub(crate) thread: u32,
    pub(crate) place: Place,
    /// E.g. "waits at the barrier at" a place.
    pub(crate) what: String,
}

/// A coroutine that runs the kernel as `thread`.
fn runner(thread: &Thread<'_>, stack: ThreadStack) -> Runner {
    let thread = std::ptr::from_ref(thread).cast::<Thread<'static>>();
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        // SAFETY: `Running` has the coroutine, and drops it before the threads, which do not move.
        let thread = unsafe { &*thread };
        thread.yielder.set(yielder);
        let launch = thread.block.launch;
        // SAFETY: `launch.args` are the entry's `args_size` bytes; the machine was set before the
        // coroutine was resumed.
        unsafe { (launch.entry.run)(launch.args.as_ptr()) };
    })
}

/// Runs each thread of a warp that can continue until it waits or returns. Returns whether they
/// have met at a shuffle and can continue. Spinning threads may still reach the shuffle at which
/// others of the warp wait.
fn run_warp(
    threads: &[Thread<'_>],
    runners: &mut [Option<Runner>],
    order: &Order,
) -> Result<bool, Fault> {
    let mut lanes: [usize; WARP_SIZE as usize] = std::array::from_fn(|lane| lane);
    let lanes = &mut lanes[..threads.len()];
    order.shuffle(lanes);
    for &lane in &*lanes {
        if threads[lane].waiting.get().is_runnable() {
            resume(&threads[lane], &mut runners[lane])?;
        }
    }
    let any = |of: fn(Waiting) -> bool| threads.iter().any(|thread| of(thread.waiting.get()));
    if !any(|waiting| matches!(waiting, Waiting::Shuffle { .. }))
        || any(|waiting| matches!(waiting, Waiting::Spin(_)))
    {
        return Ok(false);
    }
    shuffle(threads)?;
    Ok(true)
}

/// Runs one thread until it waits or returns.
fn resume(thread: &Thread<'_>, slot: &mut Option<Runner>) -> Result<(), Fault> {
    let machine: *const dyn Machine = std::ptr::from_ref::<dyn Machine + '_>(thread);
    // SAFETY: only the lifetime changes; the machine is taken back below, before `thread` ends.
    let machine: *const (dyn Machine + 'static) = unsafe { std::mem::transmute(machine) };
    // SAFETY: as above.
    unsafe { host::set_machine(Some(machine)) };
    let runner = slot.as_mut().expect("a thread that has returned does not run");
    let result = panic::catch_unwind(AssertUnwindSafe(|| runner.resume(())));
    // SAFETY: no machine.
    unsafe { host::set_machine(None) };
    match result {
        Ok(CoroutineResult::Yield(())) => Ok(()),
        Ok(CoroutineResult::Return(())) => {
            thread.waiting.set(Waiting::Done);
            slot.take().expect("just resumed").into_stack().put_back();
            Ok(())
        }
        Err(payload) => Err(as_fault(thread, payload)),
    }
}

/// The fault in a panic's payload, or the panic of a kernel's own assertion as a fault.
fn as_fault(thread: &Thread<'_>, payload: Box<dyn Any + Send>) -> Fault {
    match payload.downcast::<Fault>() {
        Ok(fault) => *fault,
        Err(payload) => {
            let message = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("panicked");
            let report = format!(
                "kernel {}, block {}, thread {}: {message}",
                thread.block.launch.entry.name, thread.block.index, thread.index
            );
            Fault { code: LAUNCH_FAILED, report }
        }
    }
}

/// Exchanges the values of a warp whose threads all wait at the same shuffle.
fn shuffle(threads: &[Thread<'_>]) -> Result<(), Fault> {
    let (Waiting::Shuffle { by, place, .. }, leader) = threads
        .iter()
        .map(|thread| (thread.waiting.get(), thread))
        .find(|(waiting, _)| matches!(waiting, Waiting::Shuffle { .. }))
        .expect("called where a thread waits at a shuffle")
    else {
        unreachable!("found by its variant");
    };
    let mut values = [0; WARP_SIZE as usize];
    for (lane, value) in values.iter_mut().enumerate() {
        match threads.get(lane).map(|thread| thread.waiting.get()) {
            Some(Waiting::Shuffle { value: sent, by: other_by, place: other })
                if other_by.goes_with(by) && other == place =>
            {
                *value = sent;
            }
            other => return Err(divergence("shuffle", leader, place, lane, threads, other)),
        }
    }
    for (lane, thread) in threads.iter().enumerate() {
        let from = match thread.waiting.get() {
            Waiting::Shuffle { by: Shuffle::Xor(mask), .. } => lane ^ mask as usize,
            Waiting::Shuffle { by: Shuffle::Lane(from), .. } => from as usize,
            _ => unreachable!("every lane waits at the shuffle"),
        };
        thread.received.set(values[from]);
        thread.waiting.set(Waiting::No);
    }
    // `sync_warp` is written this way; each lane gets its own value.
    if by == Shuffle::Xor(0) {
        leader.block.clock.pass_warp(leader.index);
    }
    Ok(())
}

/// Lets the threads of a block go on that all wait at the same barrier.
fn release_barrier(threads: &[Thread<'_>]) -> Result<(), Fault> {
    let (leader, place) = threads
        .iter()
        .find_map(|thread| match thread.waiting.get() {
            Waiting::Barrier(place) => Some((thread, place)),
            _ => None,
        })
        .expect("a block with threads that have not returned waits at a barrier");
    for (index, thread) in threads.iter().enumerate() {
        let waiting = thread.waiting.get();
        if !matches!(waiting, Waiting::Barrier(other) if other == place) {
            return Err(divergence("barrier", leader, place, index, threads, Some(waiting)));
        }
    }
    for thread in threads {
        thread.waiting.set(Waiting::No);
    }
    leader.block.clock.pass_barrier();
    Ok(())
}

/// The fault of a barrier or shuffle that `leader` waits at and thread `index` of `threads` does
/// not.
fn divergence(
    what: &str,
    leader: &Thread<'_>,
    place: Place,
    index: usize,
    threads: &[Thread<'_>],
    other: Option<Waiting>,
) -> Fault {
    let other = other.map_or("does not exist".to_owned(), |other| other.to_string());
    let index = threads.first().map_or(0, |first| first.index) + index as u32;
    let report = format!(
        "kernel {}, block {}, thread {}: waits at the {what} at {}:{} that not all \
         threads reach: thread {index} {other}",
        leader.block.launch.entry.name,
        leader.block.index,
        leader.index,
        place.file(),
        place.line(),
    );
    Fault { code: LAUNCH_FAILED, report }
}
