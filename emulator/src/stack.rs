//! Stacks for GPU threads.

use corosensei::stack::{DefaultStack, Stack, StackPointer};
use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;

/// Enough for a kernel that is compiled without optimization, and for the panic hook's backtrace in
/// one.
const STACK_BYTES: usize = 256 * 1024;
/// Below each stack of a [`Region`]: the guard page, of the largest size that pages have.
const GUARD_BYTES: usize = 64 * 1024;

thread_local! {
    /// Stacks that are not in use, of this CPU thread.
    static UNUSED: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// The stack of one GPU thread.
pub(crate) enum ThreadStack {
    /// With mappings of its own, which the CPU thread keeps for the next GPU thread.
    Kept(DefaultStack),
    /// A part of a region.
    Part(Part),
}

impl ThreadStack {
    /// One of the CPU thread's stacks that are not in use, or a new one.
    pub(crate) fn kept() -> Self {
        let unused = UNUSED.with_borrow_mut(Vec::pop);
        Self::Kept(unused.unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("no memory for a GPU thread's stack")
        }))
    }

    /// Keeps the stack for another GPU thread, where it can be kept.
    pub(crate) fn put_back(self) {
        if let Self::Kept(stack) = self {
            UNUSED.with_borrow_mut(|unused| unused.push(stack));
        }
    }
}

// SAFETY: both have a guard page, a part on systems that offer it without a mapping of its own. On
// others, threads of the same kernel run on the stacks that a worker keeps, which have one.
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

/// Stacks in one mapping. A system has only so many mappings for one process, too few for a stack
/// with mappings of its own for each thread that a device holds at a time.
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

/// So many stacks in one mapping.
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
    // SAFETY: the mapping just made. Each stack uses a few KiB, and with huge pages would
    // take a whole one; a failure costs memory alone.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    let region = Rc::new(Region { start: start as usize, bytes });
    (0..stacks as usize).map(move |index| {
        let limit = region.start + index * each;
        // SAFETY: the lowest bytes of the part, which nothing uses. Older systems refuse: see
        // `ThreadStack`.
        unsafe { libc::madvise(limit as *mut _, GUARD_BYTES, GUARD) };
        ThreadStack::Part(Part { limit, _region: Rc::clone(&region) })
    })
}
