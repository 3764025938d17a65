//! A tile: whole rows of a tensor, staged in shared memory by one warp.
//!
//! A tile keeps the alignment of its rows modulo 16 bytes: a 16-byte vector in global memory is one
//! vector in shared memory, too, and is moved by one instruction whatever the tensor's alignment.
//!
//! Rows that are copied as one span keep their alignment modulo 128 bytes, too, so that a cache
//! line fills one line of shared memory. A cache line that is copied to parts of two lines is
//! requested twice, which costs a tenth of the bandwidth (8 KiB tiles 16 bytes off, H200,
//! 2026-11-24: 0.80 and 0.90 of the limit).

use crate::abi::{CACHE_LINE, Matrix, TileArgs, VECTOR_BYTES};
use crate::element::{Element, unrolled};
use core::marker::PhantomData;
use cuda_std::SharedArray;
use cuda_std::hint::opaque;
use cuda_std::memory::{Vec16, Word, load, store, store_streaming};
use cuda_std::warp::{WARP_SIZE, lane_id};

cuda_std::shared_array! {
    /// The tiles of a block's warps.
    fn shared_tiles() -> [Vec16];
}

/// Bytes of a vector.
const VECTOR: u32 = VECTOR_BYTES;

/// Vectors of a span that a lane copies in one iteration of the loop over the span.
const FLIGHT: usize = 4;

/// The block's dynamic shared memory, addressed in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Shared(SharedArray<Vec16>);

impl Shared {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new() -> Self {
        Shared(shared_tiles().in_register())
    }

    /// The shared memory from byte `at` on.
    ///
    /// # Safety
    /// `at` is within the block's dynamic shared memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn after(self, at: u32) -> Self {
        // SAFETY: the caller's condition; the array of vectors has all bytes of the dynamic shared
        // memory.
        Shared(unsafe { self.0.from_byte(at) })
    }

    /// The element at byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::get`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn element<E: Element>(self, at: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<E>(at).get(0) }
    }

    /// Sets the element at byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::set`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn set_element<E: Element>(self, at: u32, value: E) {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<E>(at).set(0, value) };
    }
}

impl Shared {
    /// Loads `BYTES` bytes from byte `at` on, as the first bytes of a vector whose others are 0.
    ///
    /// # Safety
    /// 1. The bytes are written: their copy is complete.
    /// 2. `BYTES` is 16, 8, 4 or 2, and divides `at`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn load_bytes<const BYTES: usize>(self, at: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe {
            match BYTES {
                16 => self.0.from_byte(at).get(0),
                8 => {
                    let word = self.word::<u64>(at, 0);
                    Vec16([word as u32, (word >> 32) as u32, 0, 0])
                }
                4 => Vec16([self.word::<u32>(at, 0), 0, 0, 0]),
                _ => Vec16([self.word::<u16>(at, 0).into(), 0, 0, 0]),
            }
        }
    }

    /// Stores the first `BYTES` bytes of a vector, in the layout of
    /// [`load_bytes`](Self::load_bytes).
    ///
    /// # Safety
    /// As [`load_bytes`](Self::load_bytes)'s condition 2, and no other thread accesses the bytes
    /// before the warp synchronises.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn store_bytes<const BYTES: usize>(self, at: u32, vector: Vec16) {
        let Vec16([first, second, ..]) = vector;
        // SAFETY: the caller's conditions.
        unsafe {
            match BYTES {
                16 => self.0.from_byte(at).set(0, vector),
                8 => self.set_word(at, 0, u64::from(second) << 32 | u64::from(first)),
                4 => self.set_word(at, 0, first),
                _ => self.set_word(at, 0, first as u16),
            }
        }
    }

    /// Starts to copy `bytes` contiguous bytes from address `start` to byte `at`. The lanes of
    /// `sharing` share the copy, each `FLIGHT` vectors at a time.
    ///
    /// # Safety
    /// 1. The bytes are in global memory.
    /// 2. `at` and `start` are equal modulo 16. The copy may overwrite the other bytes of the
    ///    vectors in which the copied bytes begin and end. With `has_more`, there are 16 bytes
    ///    after them in global memory, too. They may be written meanwhile.
    /// 3. As [`Tile::load_async`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn copy_async<const FLIGHT: usize>(
        self,
        at: u32,
        start: u64,
        bytes: u32,
        has_more: bool,
        sharing: Lanes,
    ) {
        // All offsets count from the 16-byte boundary before the first byte.
        let (global, shared) = (start & !u64::from(VECTOR - 1), at & !(VECTOR - 1));
        let (from, to) = (start as u32 % VECTOR, start as u32 % VECTOR + bytes);
        let step = sharing.count * VECTOR;
        let last = to & !(VECTOR - 1);
        let mut at = sharing.lane * VECTOR;
        while at < last {
            let (global, shared, left) = (global + u64::from(at), shared + at, last - at);
            unrolled!(for k in 0..FLIGHT; {
                let behind = k as u32 * step;
                if behind < left {
                    let source = (global + u64::from(behind)) as *const Vec16;
                    let first = from.saturating_sub(at + behind);
                    // SAFETY: the caller's conditions.
                    unsafe { self.0.from_byte(shared + behind).copy_end(0, source, first) };
                }
            });
            // Opaque, so that the compiler does not unroll this loop.
            at = opaque(u64::from(at + FLIGHT as u32 * step)) as u32;
        }
        if to == last {
            return;
        }
        if has_more {
            if sharing.lane == 0 {
                let source = (global + u64::from(last)) as *const Vec16;
                let first = from.saturating_sub(last);
                // SAFETY: the caller's conditions.
                unsafe { self.0.from_byte(shared + last).copy_part(0, source, first, to - last) };
            }
            return;
        }
        // The tail after the last whole vector: by words, and by bytes where it has no whole word.
        let begin = from.max(last);
        let (first, last) = (begin.next_multiple_of(4), to & !3);
        let mut at = first + sharing.lane * 4;
        while at < last {
            let source = (global + u64::from(at)) as *const u32;
            // SAFETY: the caller's conditions.
            unsafe { self.0.words_from_byte::<u32>(shared + at).copy_word(0, source) };
            at = opaque(u64::from(at + sharing.count * 4)) as u32;
        }
        let mut at = begin + sharing.lane;
        while at < to {
            if at < first || at >= last {
                // SAFETY: as above.
                unsafe {
                    self.set_word(shared + at, 0, load((global + u64::from(at)) as *const u8));
                }
            }
            at = opaque(u64::from(at + sharing.count)) as u32;
        }
    }

    /// [`copy_async`](Self::copy_async) by all lanes of the warp.
    ///
    /// # Safety
    /// As [`copy_async`](Self::copy_async).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn copy_span_async(self, at: u32, start: u64, bytes: u32, has_more: bool) {
        // SAFETY: the caller's conditions.
        unsafe { self.copy_async::<FLIGHT>(at, start, bytes, has_more, Lanes::all()) };
    }

    /// Stores `bytes` contiguous bytes from byte `at` on to address `start`, by streaming stores.
    /// The lanes of `sharing` share the work, each `FLIGHT` vectors at a time.
    ///
    /// # Safety
    /// 1. The bytes at `start` are elements that may be written, and no other thread accesses them.
    /// 2. `at` and `start` are equal modulo 16.
    /// 3. The bytes at `at` were written, and the warp has synchronised since.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_run<E: Element, const FLIGHT: usize>(
        self,
        at: u32,
        start: u64,
        bytes: u32,
        sharing: Lanes,
    ) {
        let (global, shared) = (start & !u64::from(VECTOR - 1), at & !(VECTOR - 1));
        let (from, to) = (start as u32 % VECTOR, start as u32 % VECTOR + bytes);
        let first = from.next_multiple_of(VECTOR);
        let last = (to & !(VECTOR - 1)).max(first);
        let step = sharing.count * VECTOR;
        let mut at = first + sharing.lane * VECTOR;
        while at < last {
            let (global, shared, left) = (global + u64::from(at), shared + at, last - at);
            unrolled!(for k in 0..FLIGHT; {
                let behind = k as u32 * step;
                if behind < left {
                    let target = (global + u64::from(behind)) as *mut Vec16;
                    // SAFETY: the caller's conditions, of a vector within the bytes.
                    unsafe { store_streaming(target, self.0.from_byte(shared + behind).get(0)) };
                }
            });
            at = opaque(u64::from(at + FLIGHT as u32 * step)) as u32;
        }
        // Head and tail, which fill no whole vector, are stored element by element.
        let size = size_of::<E>() as u32;
        let mut at = from + sharing.lane * size;
        while at < to {
            if at >= first && at < last {
                at += last - first;
                continue;
            }
            // SAFETY: the caller's conditions, of an element.
            unsafe {
                store((global + u64::from(at)) as *mut E, self.element::<E>(shared + at));
            }
            at = opaque(u64::from(at + sharing.count * size)) as u32;
        }
    }

    /// Starts to copy a word of 4 or 8 bytes to number `index` of the array of words that begins at
    /// byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::copy_word`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn copy_word_async<T: Word>(self, at: u32, index: u32, from: *const T) {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<T>(at).copy_word(index, from) };
    }

    /// Word `index` of the array of words that begins at byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::get`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn word<T: Word>(self, at: u32, index: u32) -> T {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<T>(at).get(index) }
    }

    /// Sets word `index` of the array of words that begins at byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::set`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn set_word<T: Word>(self, at: u32, index: u32, value: T) {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<T>(at).set(index, value) };
    }
}

/// Lanes of a warp that share a copy.
#[derive(Clone, Copy)]
struct Lanes {
    count: u32,
    /// This lane's index among them.
    lane: u32,
}

impl Lanes {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn all() -> Self {
        Lanes { count: WARP_SIZE, lane: lane_id() }
    }
}

/// Adjacent rows of a tensor, and where they are in shared memory. Each row has the same alignment
/// modulo 16 bytes in both memories.
#[derive(Clone, Copy)]
pub(crate) struct Tile<E> {
    shared: Shared,
    /// The byte at which the first row begins in shared memory.
    at: u32,
    /// Bytes from the beginning of a row to that of the next in shared memory.
    step: u32,
    /// The address of the first row.
    start: u64,
    /// Bytes from the beginning of a row to that of the next in global memory.
    stride: u64,
    /// Bytes of a row.
    row_bytes: u32,
    element: PhantomData<E>,
}

impl<E: Element> Tile<E> {
    const SIZE: u32 = size_of::<E>() as u32;

    /// The rows of `tensor` from `first` on, `cols` elements each. In shared memory they are `step`
    /// bytes apart, and begin at byte `base`, a multiple of 128, plus the first row's offset in its
    /// cache line.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(
        shared: Shared,
        tensor: Matrix,
        first: u64,
        cols: u32,
        base: u32,
        step: u32,
    ) -> Self {
        // Opaque: LLVM would compute all that depends on them before the loop over tiles, keep it
        // in registers, and turn addresses into induction variables.
        let stride = opaque(tensor.row_stride) * u64::from(Self::SIZE);
        let start = opaque(tensor.start + first * stride);
        let at = base + start as u32 % CACHE_LINE;
        Tile { shared, at, step, start, stride, row_bytes: cols * Self::SIZE, element: PhantomData }
    }

    /// Bytes of a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn row_bytes(&self) -> u32 {
        self.row_bytes
    }

    /// The byte at which row `row` of the tile begins in shared memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn row(&self, row: u32) -> u32 {
        self.at + row * self.step
    }

    /// The address of row `row` of the tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn address(&self, row: u32) -> u64 {
        self.start + u64::from(row) * self.stride
    }

    /// Starts to copy the first `rows` rows, at least one. They are complete when each lane has
    /// ended the batch of copies ([`end_copies`](cuda_std::memory::end_copies)) and waited for it,
    /// and the warp has synchronised.
    ///
    /// # Safety
    /// 1. The rows are in global memory, aligned for their type; with `load_span`, so are the gaps
    ///    between them.
    /// 2. The block has shared memory for the tile, which no other warp accesses.
    /// 3. All lanes of the warp call it.
    /// 4. Unless `is_last`, the tensor has at least `last_rows` more rows after these.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn load_async(&self, args: &TileArgs, rows: u32, is_last: bool) {
        // SAFETY: the caller's conditions.
        unsafe {
            if args.load_span != 0 {
                // The next tile may be the last one, which may have few rows. Without this, the
                // bytes of a tail that is no whole word would be loaded one by one, and the warp
                // would wait for them. H200, 2026-11-30, bf16, one element off, ceiling ÷ ours
                // before and with this: 504 columns forward 0.55 and 0.66, 216 columns backward
                // 0.87 and 0.93.
                let has_more = !is_last && args.last_rows.min(16) * self.row_bytes >= VECTOR;
                let bytes = self.span_bytes(rows);
                self.shared.copy_span_async(self.at, self.start, bytes, has_more);
                return;
            }
            for_each_row(args, rows, |row, sharing| {
                let start = self.start + u64::from(row) * self.stride;
                self.shared.copy_async::<1>(self.row(row), start, self.row_bytes, false, sharing);
            });
        }
    }

    /// Stores the first `rows` rows of the tile, at least one, to the rows of `to` from `first` on.
    ///
    /// # Safety
    /// 1. The rows of `to` may be written, and no other thread accesses them.
    /// 2. They have the same alignment modulo 16 bytes as those of the tile.
    /// 3. The tile was written, and the warp has synchronised since.
    /// 4. All lanes of the warp call it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn store(&self, args: &TileArgs, rows: u32, to: Matrix, first: u64) {
        let stride = opaque(to.row_stride) * u64::from(Self::SIZE);
        let start = opaque(to.start + first * stride);
        let (shared, row_bytes) = (self.shared, self.row_bytes);
        // SAFETY: the caller's conditions.
        unsafe {
            if args.store_span != 0 {
                let bytes = self.span_bytes(rows);
                shared.store_run::<E, FLIGHT>(self.at, start, bytes, Lanes::all());
                return;
            }
            if args.store_units != 0 {
                if Self::SIZE == 2 && args.store_access > 2 {
                    self.store_units::<u32>(args, rows, start, stride);
                } else {
                    self.store_units::<E>(args, rows, start, stride);
                }
                return;
            }
            for_each_row(args, rows, |row, sharing| {
                let start = start + u64::from(row) * stride;
                shared.store_run::<E, 1>(self.row(row), start, row_bytes, sharing);
            });
        }
    }

    /// Stores the first `rows` rows of the tile to address `start`, `stride` bytes apart, unit by
    /// unit: neighbouring lanes then store neighbouring units, even across rows that have fewer
    /// units than the warp has lanes. Memory takes a sector that is stored at once faster than one
    /// that is stored in parts.
    ///
    /// # Safety
    /// As [`store`](Self::store); rows begin and end at multiples of a unit's bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_units<T: Word>(&self, args: &TileArgs, rows: u32, start: u64, stride: u64) {
        let (units, size) = (args.store_units, size_of::<T>() as u32);
        // Opaque: LLVM would compute all that depends on them before the loop over tiles, and keep
        // it in registers.
        let per = opaque(args.per_store_unit.into());
        let lane = opaque(lane_id().into()) as u32;
        let rows_of = |units: u32| match per {
            0 => units,
            per => ((u64::from(units) * per) >> 32) as u32,
        };
        // The bytes between the end of a row and the beginning of the next, in shared memory and in
        // global memory.
        let gaps = (self.step - self.row_bytes, stride - u64::from(self.row_bytes));
        let place = |unit: u32, row: u32| {
            let bytes = unit * size;
            (bytes + row * gaps.0, u64::from(bytes) + u64::from(row) * gaps.1)
        };
        // From one unit of a lane to its next, 32 units later: whole rows, and the units beyond
        // them.
        let turn_rows = rows_of(WARP_SIZE);
        let turn_units = WARP_SIZE - turn_rows * units;
        let turn = place(WARP_SIZE, turn_rows);
        let place_of_lane = place(lane, rows_of(lane));
        let (mut from, mut to) = (self.at + place_of_lane.0, start + place_of_lane.1);
        let mut within = lane - rows_of(lane) * units;
        let (mut unit, count) = (lane, rows * units);
        while unit < count {
            unrolled!(for k in 0..FLIGHT; {
                if unit + (k as u32 * WARP_SIZE) < count {
                    // SAFETY: the caller's conditions.
                    unsafe { store(to as *mut T, self.shared.word::<T>(from, 0)) };
                }
                (from, to, within) = (from + turn.0, to + turn.1, within + turn_units);
                if within >= units {
                    (from, to, within) = (from + gaps.0, to + gaps.1, within - units);
                }
            });
            // Opaque, so that the compiler does not unroll this loop.
            unit = opaque(u64::from(unit + FLIGHT as u32 * WARP_SIZE)) as u32;
        }
    }

    /// Bytes from the beginning of the first row to the end of the last of `rows` rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn span_bytes(&self, rows: u32) -> u32 {
        (rows - 1) * self.step + self.row_bytes
    }
}

/// Calls `each(row, lanes)` for each of `rows` rows. `1 << args.copy_shift` lanes share a row.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn for_each_row(args: &TileArgs, rows: u32, mut each: impl FnMut(u32, Lanes)) {
    // Opaque: LLVM would compute all that depends on it before the loop over tiles, and keep it in
    // registers.
    let shift = opaque(args.copy_shift.into()) as u32;
    let sharing = Lanes { count: 1 << shift, lane: lane_id() & ((1 << shift) - 1) };
    let mut row = lane_id() >> shift;
    while row < rows {
        each(row, sharing);
        row += WARP_SIZE >> shift;
    }
}
