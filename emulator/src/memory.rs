//! Device memory: address space reserved once, backed by pages as they are touched, never reused.
//!
//! An equally large space for marks follows the space for data. It has a byte for each byte of
//! data, which is 1 once that has been written.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

/// Allocations start on this boundary, as the real driver's do.
const ALIGNMENT: usize = 512;
/// Address space of all allocations that a process makes.
const ADDRESS_SPACE: usize = 1 << 45;

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Range {
    pub(crate) fn contains(self, address: usize, bytes: usize) -> bool {
        address >= self.start && bytes <= self.len && address - self.start <= self.len - bytes
    }
}

/// What is at or near an invalid address.
#[derive(Debug)]
pub(crate) enum Nearest {
    /// Memory that was freed.
    Freed(Range),
    /// The nearest allocation below.
    Above(Range),
    /// Nothing.
    Nothing,
}

pub(crate) struct Space {
    base: usize,
    next: usize,
    live: BTreeMap<usize, usize>,
    freed: BTreeMap<usize, usize>,
}

/// Reserves the address space, or says why that failed.
pub(crate) fn reserve() -> Result<&'static Mutex<Space>, String> {
    static SPACE: OnceLock<Result<Mutex<Space>, String>> = OnceLock::new();
    let space = SPACE.get_or_init(|| {
        // SAFETY: a new mapping at an address of the system's choice, without access and without
        // backing, disturbs nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * ADDRESS_SPACE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(format!(
                "the emulator reserves {} TiB of address space, of which only what is allocated \
                 takes memory, but the system refuses it ({error}): see `ulimit -v` and \
                 vm.overcommit_memory",
                (2 * ADDRESS_SPACE) >> 40
            ));
        }
        let (base, next) = (base as usize, base as usize);
        Ok(Mutex::new(Space { base, next, live: BTreeMap::new(), freed: BTreeMap::new() }))
    });
    space.as_ref().map_err(String::clone)
}

/// The address space, which `cuInit` has reserved.
fn space() -> &'static Mutex<Space> {
    reserve().unwrap_or_else(|reason| panic!("{reason}"))
}

fn page() -> usize {
    // SAFETY: asks for a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Memory of `len` bytes, or nothing if the address space is used up. Pages are zero until written,
/// and cost memory only when touched.
pub(crate) fn allocate(len: usize) -> Option<usize> {
    let mut space = space().lock().unwrap();
    let page = page();
    let start = space.next;
    // A page without access follows every allocation.
    let pages = len.checked_next_multiple_of(page)?;
    let next = start.checked_add(pages)?.checked_add(page)?;
    if next > space.base + ADDRESS_SPACE {
        return None;
    }
    debug_assert_eq!(start % ALIGNMENT, 0);
    for pages_at in [start, mark_of(start)] {
        // SAFETY: the pages are in the reserved range, and were never allocated before.
        let failed = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mprotect(pages_at as *mut libc::c_void, pages, access)
        };
        if failed != 0 {
            return None;
        }
    }
    space.next = next;
    space.live.insert(start, len);
    Some(start)
}

/// Frees what [`allocate`] gave; false for any other address.
pub(crate) fn free(start: usize) -> bool {
    let mut space = space().lock().unwrap();
    let Some(len) = space.live.remove(&start) else {
        return false;
    };
    space.freed.insert(start, len);
    for pages_at in [start, mark_of(start)] {
        // SAFETY: only this allocation used the pages; mapping them again frees them and leaves the
        // addresses reserved, without access.
        unsafe {
            libc::mmap(
                pages_at as *mut libc::c_void,
                len.next_multiple_of(page()),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            );
        }
    }
    true
}

/// Where the mark of the byte at `address` is.
fn mark_of(address: usize) -> usize {
    address + ADDRESS_SPACE
}

/// Marks bytes as written.
///
/// # Safety
/// They lie in one allocation.
pub(crate) unsafe fn mark_written(start: usize, bytes: usize) {
    // SAFETY: an allocation's marks are mapped with it. Threads that mark the same bytes write
    // the same.
    unsafe { std::ptr::write_bytes(mark_of(start) as *mut u8, 1, bytes) };
}

/// Copies the marks of bytes to those of others.
///
/// # Safety
/// Both ranges are in allocations.
pub(crate) unsafe fn copy_marks(from: usize, to: usize, bytes: usize) {
    // SAFETY: as above.
    unsafe { std::ptr::copy(mark_of(from) as *const u8, mark_of(to) as *mut u8, bytes) };
}

/// Whether all of these bytes have been written.
///
/// # Safety
/// They lie in one allocation.
pub(crate) unsafe fn is_written(start: usize, bytes: usize) -> bool {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(mark_of(start) as *const u8, bytes) }
        .iter()
        .all(|&mark| mark == 1)
}

/// The allocation that contains all of these bytes.
pub(crate) fn find(address: usize, bytes: usize) -> Option<Range> {
    let space = space().lock().unwrap();
    let (&start, &len) = space.live.range(..=address).next_back()?;
    let range = Range { start, len };
    range.contains(address, bytes).then_some(range)
}

/// What is nearest to an address that [`find`] does not find.
pub(crate) fn nearest(address: usize) -> Nearest {
    let space = space().lock().unwrap();
    let below = |map: &BTreeMap<usize, usize>| {
        map.range(..=address).next_back().map(|(&start, &len)| Range { start, len })
    };
    match (below(&space.freed), below(&space.live)) {
        (Some(freed), _) if freed.contains(address, 1) => Nearest::Freed(freed),
        (_, Some(live)) => Nearest::Above(live),
        _ => Nearest::Nothing,
    }
}

/// How many allocations there are.
pub(crate) fn allocations() -> usize {
    space().lock().unwrap().live.len()
}

/// Bytes in all allocations.
pub(crate) fn in_use() -> usize {
    space().lock().unwrap().live.values().sum()
}
