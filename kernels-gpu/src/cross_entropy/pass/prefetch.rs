//! Prefetches of rows into the second-level cache, and the start of a kernel by programmatic
//! dependent launch.

use super::Pass;
use crate::abi::CACHE_LINE;
use crate::cross_entropy::label::prefetch_targets;
use crate::cross_entropy::row_group::RowGroup;
use crate::cut::Row;
use crate::element::Element;
use cuda_std::memory::prefetch;
use cuda_std::thread::wait_for_launches_before;

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Prefetches the row `args.ahead` rows after this one. Where blocks compute and write, the
    /// loads that fit into their registers alone do not keep the memory busy.
    ///
    /// # Safety
    /// The kernels' condition 1; all threads of the row group call it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn prefetch(&self, row: u64, group: RowGroup) {
        // SAFETY: the caller's conditions.
        unsafe { self.prefetch_ahead(row, group, |bytes| (0, bytes)) };
    }

    /// Prefetches part `part` of the row that [`prefetch`](Self::prefetch) would prefetch whole. A
    /// part is `vectors` vectors of 16 bytes for each thread of the group.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn prefetch_part(
        &self,
        row: u64,
        part: u32,
        vectors: usize,
        group: RowGroup,
    ) {
        let part_bytes = group.threads * vectors as u32 * 16;
        let part = |bytes: u32| (part * part_bytes, bytes.min((part + 1) * part_bytes));
        // SAFETY: the caller's conditions.
        unsafe { self.prefetch_ahead(row, group, part) };
    }

    /// Prefetches the byte range that `range` selects from the first `args.ahead_bytes` bytes of
    /// the row `args.ahead` rows after this one.
    ///
    /// # Safety
    /// 1. As [`prefetch`](Self::prefetch).
    /// 2. The range ends at `args.ahead_bytes` at most.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn prefetch_ahead(&self, row: u64, group: RowGroup, range: impl Fn(u32) -> (u32, u32)) {
        let (args, row) = (self.args, row + u64::from(self.args.ahead));
        if args.ahead != 0 && row < args.rows {
            let (from, to) = range(args.ahead_bytes);
            // SAFETY: the caller's conditions.
            unsafe { self.prefetch_bytes(Row::<E>::address(args.input, row), from, to, group) };
        }
    }

    /// Prefetches bytes `from..to` of the row that begins at `start`.
    ///
    /// # Safety
    /// 1. As [`prefetch`](Self::prefetch).
    /// 2. The row has at least `to` bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn prefetch_bytes(&self, start: u64, from: u32, to: u32, group: RowGroup) {
        let mut at = from + group.lane * CACHE_LINE;
        while at < to {
            // SAFETY: the caller's condition; the bytes are the row's.
            unsafe { prefetch((start + u64::from(at)) as *const u8) };
            at += group.threads * CACHE_LINE;
        }
    }

    /// Waits for the preceding launches (programmatic dependent launch). The first `early_blocks`
    /// blocks prefetch their rows before they wait, because memory has little to do while a launch
    /// ends. (A kernel that writes gradients keeps memory busy until its end.) That is safe
    /// although the preceding launch may still write the rows, because the second-level cache sees
    /// its writes.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch) for `row`, if it is below `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn begin(&self, block: u32, row: u64, group: RowGroup) {
        let bytes = if row < self.args.rows { u32::MAX } else { 0 };
        let start = Row::<E>::address(self.args.input, row);
        // SAFETY: the caller's conditions; `early_bytes` is no more than a row has.
        unsafe { self.begin_at(block, (start, bytes), group) };
    }

    /// [`begin`](Self::begin) for a group whose first loads are `bytes` bytes from address `start`
    /// on.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch), for as many of these bytes as `early_bytes` says.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn begin_at(&self, block: u32, (start, bytes): (u64, u32), group: RowGroup) {
        if block < self.args.early_blocks {
            let bytes = bytes.min(self.args.early_bytes);
            // SAFETY: the caller's conditions.
            unsafe { self.prefetch_bytes(start, 0, bytes, group) };
        }
        wait_for_launches_before();
    }

    /// Waits for the preceding launches, in a grid whose first blocks sum the normaliser: these
    /// blocks prefetch their targets before they wait.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn begin_with_normaliser(&self) {
        // SAFETY: the caller's conditions.
        unsafe { prefetch_targets(self.args) };
        wait_for_launches_before();
    }
}
