//! Finds races in shared memory, by recording the last accesses and whether a synchronisation
//! orders them before the next access. Also finds races in global memory with asynchronous copies,
//! which may read it until their thread has waited for them.
//!
//! A block's barrier orders all accesses before it ahead of all accesses after it. `sync_warp` does
//! so for the accesses of one warp. Shuffles and votes do not: CUDA gives them no memory ordering.

use cuda_std::host::{Access, Place};
use cuda_std::warp::WARP_SIZE;
use std::cell::Cell;
use std::collections::HashMap;

/// The time in a block. Each warp has its own; a barrier sets all of them to one later time.
pub(crate) struct Clock {
    /// When the block last passed a barrier.
    barrier: Cell<u32>,
    /// When each warp last synchronised.
    warps: Box<[Cell<u32>]>,
}

impl Clock {
    pub(crate) fn new(threads: u32) -> Self {
        let warps = threads.div_ceil(WARP_SIZE);
        Clock { barrier: Cell::new(1), warps: (0..warps).map(|_| Cell::new(1)).collect() }
    }

    /// Records that the warp of `thread` has synchronised.
    pub(crate) fn pass_warp(&self, thread: u32) {
        let warp = &self.warps[(thread / WARP_SIZE) as usize];
        warp.set(warp.get() + 1);
    }

    /// Records that the block has passed a barrier.
    pub(crate) fn pass_barrier(&self) {
        let next = 1 + self.warps.iter().map(Cell::get).max().unwrap_or(0);
        self.barrier.set(next);
        self.warps.iter().for_each(|warp| warp.set(next));
    }

    fn of_thread(&self, thread: u32) -> u32 {
        self.warps[(thread / WARP_SIZE) as usize].get()
    }

    /// Whether a synchronisation comes between `earlier` and an access that `thread` makes now.
    fn is_between(&self, earlier: Stamp, thread: u32) -> bool {
        let same_warp = earlier.thread / WARP_SIZE == thread / WARP_SIZE;
        earlier.time < if same_warp { self.of_thread(thread) } else { self.barrier.get() }
    }
}

/// An access.
#[derive(Clone, Copy)]
struct Stamp {
    /// 0 if there was no access.
    time: u32,
    thread: u32,
    place: Option<Place>,
}

impl Stamp {
    const NONE: Self = Stamp { time: 0, thread: 0, place: None };
    /// The time of an asynchronous copy that its thread has not waited for: later than any other.
    const PENDING: u32 = u32::MAX;
}

/// The last accesses of one unit of memory.
#[derive(Clone, Copy)]
struct Unit {
    write: Stamp,
    /// The last read since then, and the last by another thread. If threads of two warps have read
    /// since a barrier, the two reads are of different warps, so any later write conflicts with one
    /// of them.
    reads: [Stamp; 2],
}

impl Unit {
    const NEW: Self = Unit { write: Stamp::NONE, reads: [Stamp::NONE; 2] };

    fn note_read(&mut self, read: Stamp, clock: &Clock) {
        let [last, other] = &mut self.reads;
        if last.thread != read.thread {
            let warp = |stamp: &Stamp| stamp.thread / WARP_SIZE;
            let of_two_warps = warp(other) != warp(&read) && other.time >= clock.barrier.get();
            if warp(last) != warp(&read) || !of_two_warps {
                *other = *last;
            }
        }
        *last = read;
    }
}

/// What a thread does to shared memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    /// Starts an asynchronous copy, which may write from now on until its thread has waited for it.
    StartCopy,
}

impl From<Access> for Touch {
    fn from(access: Access) -> Self {
        match access {
            Access::Load => Touch::Read,
            Access::Store => Touch::Write,
        }
    }
}

/// An earlier access that nothing orders before the present one.
pub(crate) struct Conflict {
    pub(crate) verb: &'static str,
    pub(crate) thread: u32,
    pub(crate) place: Place,
}

/// The last accesses of a shared array.
pub(crate) struct History {
    /// The size of a unit: the smallest access so far. Most arrays are accessed in one size.
    bytes: usize,
    /// All units up to the last one accessed.
    units: Vec<Unit>,
}

impl History {
    pub(crate) fn new() -> Self {
        History { bytes: 16, units: Vec::new() }
    }

    /// Notes an access of `bytes` bytes from `offset` on, a multiple of it, unless it conflicts
    /// with an earlier one.
    pub(crate) fn touch(
        &mut self,
        (offset, bytes): (usize, usize),
        touch: Touch,
        (thread, place): (u32, Place),
        clock: &Clock,
    ) -> Result<(), Conflict> {
        while bytes < self.bytes {
            self.bytes /= 2;
            self.units = self.units.iter().flat_map(|&unit| [unit; 2]).collect();
        }
        let (first, end) = (offset / self.bytes, (offset + bytes) / self.bytes);
        if self.units.len() < end {
            self.units.resize(end, Unit::NEW);
        }
        let stamp = Stamp { time: clock.of_thread(thread), thread, place: Some(place) };
        for unit in &mut self.units[first..end] {
            let Unit { write, reads } = *unit;
            let is_pending = write.time == Stamp::PENDING && touch != Touch::Write;
            if is_pending || write.thread != thread && !clock.is_between(write, thread) {
                return Err(conflict("writes", write));
            }
            if touch == Touch::Read {
                unit.note_read(stamp, clock);
                continue;
            }
            for read in reads {
                if read.thread != thread && !clock.is_between(read, thread) {
                    return Err(conflict("reads", read));
                }
            }
            let time = if touch == Touch::StartCopy { Stamp::PENDING } else { stamp.time };
            *unit = Unit { write: Stamp { time, ..stamp }, ..Unit::NEW };
        }
        Ok(())
    }
}

/// The global memory that a block's asynchronous copies read. A copy may read it until its thread
/// has waited for the copy, so another thread may write it only after that wait and a barrier.
#[derive(Default)]
pub(crate) struct CopiedFrom {
    /// The last copies from each 16 bytes of global memory, by the index of the 16 bytes, with the
    /// bytes that each has read. There are two: a row may end and the next may begin within them.
    vectors: HashMap<usize, [(u16, Stamp); 2]>,
}

impl CopiedFrom {
    /// The bytes of one vector among `bytes` bytes from `address` on, as bits.
    fn bits((address, bytes): (usize, usize), vector: usize) -> u16 {
        let begin = address.max(16 * vector) - 16 * vector;
        let end = (address + bytes).min(16 * vector + 16) - 16 * vector;
        ((1_u32 << end) - (1_u32 << begin)) as u16
    }

    /// Notes a copy that `thread` starts.
    pub(crate) fn start(&mut self, from: (usize, usize), (thread, place): (u32, Place)) {
        self.note(from, Stamp { time: Stamp::PENDING, thread, place: Some(place) });
    }

    /// Notes that `thread` has waited for a copy.
    pub(crate) fn end(
        &mut self,
        from: (usize, usize),
        (thread, place): (u32, Place),
        clock: &Clock,
    ) {
        let time = clock.of_thread(thread);
        self.note(from, Stamp { time, thread, place: Some(place) });
    }

    fn note(&mut self, from: (usize, usize), stamp: Stamp) {
        let (address, bytes) = from;
        for vector in address / 16..(address + bytes).div_ceil(16) {
            let [last, other] = self.vectors.entry(vector).or_insert([(0, Stamp::NONE); 2]);
            let bits = Self::bits(from, vector);
            if last.0 & bits == 0 {
                *other = *last;
            }
            *last = (bits, stamp);
        }
    }

    /// Whether `thread` may write `bytes` bytes from `address` on now.
    pub(crate) fn write(
        &self,
        to: (usize, usize),
        thread: u32,
        clock: &Clock,
    ) -> Result<(), Conflict> {
        if self.vectors.is_empty() {
            return Ok(());
        }
        let (address, bytes) = to;
        for vector in address / 16..(address + bytes).div_ceil(16) {
            for &(bits, copy) in self.vectors.get(&vector).into_iter().flatten() {
                let is_pending = copy.time == Stamp::PENDING;
                let is_ordered = copy.thread == thread || clock.is_between(copy, thread);
                if bits & Self::bits(to, vector) != 0 && (is_pending || !is_ordered) {
                    return Err(conflict("copies", copy));
                }
            }
        }
        Ok(())
    }
}

fn conflict(verb: &'static str, Stamp { thread, place, .. }: Stamp) -> Conflict {
    Conflict { verb, thread, place: place.expect("an access that was noted has a place") }
}
