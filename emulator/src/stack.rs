//! Stacks for GPU threads.

use corosensei::stack::{DefaultStack, Stack, StackPointer};
use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;

/// Enough for a kernel compiled without optimisation, and for the panic hook's backtrace in it.
const STACK_BYTES: usize = 256 * 1024;
/// Below each stack of a [`Region`]: the guard page, of the largest size that pages have.
const GUARD_BYTES: usize = 64 * 1024;

thread_local! {
    /// Unused stacks of this CPU thread.
    static UNUSED: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// The stack of one GPU thread.
pub(crate) enum ThreadStack {
    /// A stack with separate mappings, which the CPU thread caches for the next GPU thread.
    Kept(DefaultStack),
    /// A part of a region.
    Part(Part),
}

impl ThreadStack {
    /// One of the CPU thread's unused stacks, or a new one.
    pub(crate) fn kept() -> Self {
        let unused = UNUSED.with_borrow_mut(Vec::pop);
        Self::Kept(unused.unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("no memory for a GPU thread's stack")
        }))
    }

    /// Caches the stack for another GPU thread, if it is of the kind that can be cached.
    pub(crate) fn put_back(self) {
        if let Self::Kept(stack) = self {
            UNUSED.with_borrow_mut(|unused| unused.push(stack));
        }
    }
}

// SAFETY: both have a guard page; a part has one only on systems that offer guard pages without a
// separate mapping. On other systems, threads of the same kernel also run on a worker's cached
// stacks, which have one.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        match self {
            Self::Kept(stack) => stack.base(),
            Self::Part(part) => StackPointer::new(part.limit + GUARD_BYTES + STACK_BYTES)
                .expect("a mapping does not end at address 0"),
        }
    }

    fn limit(&self) -> StackPointer {
        match self {
            Self::Kept(stack) => stack.limit(),
            Self::Part(part) => {
                StackPointer::new(part.limit).expect("a mapping does not begin at address 0")
            }
        }
    }
}

/// A stack in a region, which lives as long as its last part.
pub(crate) struct Part {
    limit: usize,
    _region: Rc<Region>,
}

/// Stacks in one mapping. The system limits the number of mappings of a process, and separate
/// mappings for all resident threads of a device would exceed it.
struct Region {
    start: usize,
    bytes: usize,
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is the region's, and no part is left.
        unsafe { libc::munmap(self.start as *mut _, self.bytes) };
    }
}

/// This many stacks in one mapping.
pub(crate) fn region(stacks: u32) -> impl Iterator<Item = ThreadStack> {
    /// `MADV_GUARD_INSTALL` of Linux 6.13, which `libc` does not have.
    const GUARD: c_int = 102;
    let each = GUARD_BYTES + STACK_BYTES;
    let bytes = stacks as usize * each;
    // SAFETY: a new mapping at an address of the system's choice disturbs nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED, "no memory for the stacks of a block");
    // SAFETY: the mapping just made. Each stack uses a few KiB, but with huge pages it would take a
    // whole one. If this fails, it only costs memory.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    let region = Rc::new(Region { start: start as usize, bytes });
    (0..stacks as usize).map(move |index| {
        let limit = region.start + index * each;
        // SAFETY: the lowest bytes of the part, which nothing uses. Older systems refuse the call:
        // see `ThreadStack`.
        unsafe { libc::madvise(limit as *mut _, GUARD_BYTES, GUARD) };
        ThreadStack::Part(Part { limit, _region: Rc::clone(&region) })
    })
}
