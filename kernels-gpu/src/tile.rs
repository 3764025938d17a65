//! A tile: whole rows of a tensor, staged in shared memory by one warp.
//!
//! A tile of contiguous rows keeps their alignment modulo 128 bytes, others modulo 16: a 16-byte
//! vector in global memory is one in shared memory, and moves in one instruction whatever the
//! tensor's alignment. A cache line is then a line in shared memory too; one that is copied to
//! parts of two lines is requested twice, which cost a tenth of the bandwidth (8 KiB tiles 16 bytes
//! off, H200, 2026-11-24: 0.80 and 0.90 of the limit). Vectors that reach beyond the rows move
//! element by element, so nothing outside is touched.

use crate::abi::{CACHE_LINE, Matrix, TileArgs, VECTOR_BYTES};
use crate::element::{Element, MAX_LANES, unrolled};
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

/// The block's dynamic shared memory, addressed in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Shared(SharedArray<Vec16>);

impl Shared {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Shared(shared_tiles().in_register())
    }

    /// The memory from byte `at` on.
    ///
    /// # Safety
    /// `at` is within it.
    #[inline(always)]
    pub(crate) unsafe fn after(self, at: u32) -> Self {
        // SAFETY: the caller's condition; the array of vectors stands for its bytes.
        Shared(unsafe { self.0.from_byte(at) })
    }

    /// The element at byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::get`].
    #[inline(always)]
    pub(crate) unsafe fn element<E: Element>(self, at: u32) -> E {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<E>(at).get(0) }
    }

    /// Sets the element at byte `at`.
    ///
    /// # Safety
    /// As [`SharedArray::set`].
    #[inline(always)]
    pub(crate) unsafe fn set_element<E: Element>(self, at: u32, value: E) {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<E>(at).set(0, value) };
    }

    /// `count` elements from byte `at` as a vector, filled up with −∞. `access` is one access's
    /// size.
    ///
    /// # Safety
    /// 1. The elements have arrived.
    /// 2. `access` is 16, 8, 4 or the element's size, and divides `at` and the bytes of `count`
    ///    elements.
    #[inline(always)]
    pub(crate) unsafe fn load<E: Element>(self, at: u32, count: u32, access: u32) -> Vec16 {
        let mut vector = lowest::<E>();
        // Known to the compiler, which leaves out accesses that are smaller than an element.
        let size = size_of::<E>() as u32;
        let bytes = count * size;
        // SAFETY: the caller's conditions, of each access that is within the elements.
        unsafe {
            if access == VECTOR {
                vector = self.0.from_byte(at).get(0);
            } else if size == 8 || access == 8 {
                unrolled!(for half in 0..2; {
                    if half as u32 * 8 < bytes {
                        let word = self.0.words_from_byte::<u64>(at).get(half as u32);
                        vector.0[2 * half] = word as u32;
                        vector.0[2 * half + 1] = (word >> 32) as u32;
                    }
                });
            } else if size == 4 || access == 4 {
                unrolled!(for word in 0..4; {
                    if word as u32 * 4 < bytes {
                        vector.0[word] = self.0.words_from_byte::<u32>(at).get(word as u32);
                    }
                });
            } else {
                unrolled!(for half in 0..MAX_LANES; {
                    if half as u32 * 2 < bytes {
                        let bits = self.0.words_from_byte::<u16>(at).get(half as u32);
                        let word = vector.0[half / 2];
                        vector.0[half / 2] = if half.is_multiple_of(2) {
                            word & 0xffff_0000 | u32::from(bits)
                        } else {
                            word & 0xffff | u32::from(bits) << 16
                        };
                    }
                });
            }
        }
        vector
    }

    /// Stores the first `count` elements of a vector as [`load`](Self::load) loads them.
    ///
    /// # Safety
    /// As [`load`](Self::load), and no other thread accesses them before the warp meets.
    #[inline(always)]
    pub(crate) unsafe fn store<E: Element>(self, at: u32, count: u32, access: u32, vector: Vec16) {
        let size = size_of::<E>() as u32;
        let bytes = count * size;
        // SAFETY: the caller's conditions, of each access that is within the elements.
        unsafe {
            if access == VECTOR {
                self.0.from_byte(at).set(0, vector);
            } else if size == 8 || access == 8 {
                unrolled!(for half in 0..2; {
                    if half as u32 * 8 < bytes {
                        let [low, high] = [vector.0[2 * half], vector.0[2 * half + 1]];
                        let word = u64::from(high) << 32 | u64::from(low);
                        self.0.words_from_byte::<u64>(at).set(half as u32, word);
                    }
                });
            } else if size == 4 || access == 4 {
                unrolled!(for word in 0..4; {
                    if word as u32 * 4 < bytes {
                        self.0.words_from_byte::<u32>(at).set(word as u32, vector.0[word]);
                    }
                });
            } else {
                unrolled!(for half in 0..MAX_LANES; {
                    if half as u32 * 2 < bytes {
                        let bits = (vector.0[half / 2] >> (half % 2 * 16)) as u16;
                        self.0.words_from_byte::<u16>(at).set(half as u32, bits);
                    }
                });
            }
        }
    }
}

impl Shared {
    /// `BYTES` bytes from byte `at` on, at the beginning of a vector.
    ///
    /// # Safety
    /// 1. They have arrived.
    /// 2. `BYTES` is 16, 8, 4 or 2, and divides `at`.
    #[inline(always)]
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

    /// Stores the first `BYTES` bytes of a vector as [`load_bytes`](Self::load_bytes) loads them.
    ///
    /// # Safety
    /// As there, and no other thread accesses them before the warp meets.
    #[inline(always)]
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

    /// Begins to copy `count` words of 4 or 8 bytes from address `from` to byte `at`, by all lanes
    /// of the warp.
    ///
    /// # Safety
    /// 1. They are in global memory, aligned for their type.
    /// 2. As [`Tile::load_async`].
    #[inline(always)]
    pub(crate) unsafe fn load_words_async<T: Word>(self, at: u32, from: u64, count: u32) {
        let mut index = lane_id();
        while index < count {
            unrolled!(for k in 0..4; {
                let index = index + k as u32 * WARP_SIZE;
                if index < count {
                    let from = (from as *const T).wrapping_add(index as usize);
                    // SAFETY: the caller's conditions.
                    unsafe { self.0.words_from_byte::<T>(at).copy_word(index, from) };
                }
            });
            index += 4 * WARP_SIZE;
        }
    }

    /// Begins to copy `bytes` contiguous bytes from address `start` to byte `at`, by all lanes of
    /// the warp.
    ///
    /// # Safety
    /// 1. They are in global memory; `at` and `start` are as far from a boundary of 16 bytes.
    /// 2. As [`Tile::load_async`].
    #[inline(always)]
    pub(crate) unsafe fn copy_span_async(self, at: u32, start: u64, bytes: u32) {
        span(
            at & !(VECTOR - 1),
            start,
            bytes,
            1,
            // SAFETY: the caller's conditions.
            |at, global| unsafe { self.0.from_byte(at).copy(0, global as *const Vec16) },
            // SAFETY: as above.
            |at, global| unsafe { self.set_word(at, 0, load(global as *const u8)) },
        );
    }

    /// Stores `bytes` bytes from byte `at` on to address `to`, past the caches, by all lanes of the
    /// warp.
    ///
    /// # Safety
    /// 1. They may be written, and nobody else accesses them; `at` and `to` are as far from a
    ///    boundary of 16 bytes.
    /// 2. The bytes were written, and the warp has met since.
    #[inline(always)]
    pub(crate) unsafe fn store_span(self, at: u32, to: u64, bytes: u32) {
        span(
            at & !(VECTOR - 1),
            to,
            bytes,
            1,
            // SAFETY: the caller's conditions.
            |at, global| unsafe {
                store_streaming(global as *mut Vec16, self.0.from_byte(at).get(0));
            },
            // SAFETY: as above.
            |at, global| unsafe { store(global as *mut u8, self.word(at, 0)) },
        );
    }

    /// Word `index` of those from byte `at` on.
    ///
    /// # Safety
    /// As [`SharedArray::get`].
    #[inline(always)]
    pub(crate) unsafe fn word<T: Word>(self, at: u32, index: u32) -> T {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<T>(at).get(index) }
    }

    /// Sets word `index` of those from byte `at` on.
    ///
    /// # Safety
    /// As [`SharedArray::set`].
    #[inline(always)]
    pub(crate) unsafe fn set_word<T: Word>(self, at: u32, index: u32, value: T) {
        // SAFETY: the caller's conditions.
        unsafe { self.0.words_from_byte::<T>(at).set(index, value) };
    }
}

/// 16 bytes of −∞.
#[inline(always)]
fn lowest<E: Element>() -> Vec16 {
    E::pack([E::LOWEST; MAX_LANES])
}

/// Rows of one tensor in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Tile<E> {
    shared: Shared,
    /// Where the tile begins in shared memory: a multiple of 128 where it is one span, otherwise of
    /// 16.
    base: u32,
    /// The address of its first row.
    start: u64,
    /// Bytes from row to row in global memory, ...
    stride: u64,
    /// ... and in shared memory; 0: the tile is one contiguous span, as in global memory.
    pitch: u32,
    /// Bytes of a row.
    row_bytes: u32,
    element: PhantomData<E>,
}

impl<E: Element> Tile<E> {
    const SIZE: u32 = size_of::<E>() as u32;

    /// The tile at `base` of the rows of `tensor` from `first` on, `cols` elements each.
    #[inline(always)]
    pub(crate) fn new(
        shared: Shared,
        args: &TileArgs,
        tensor: Matrix,
        first: u64,
        cols: u32,
        base: u32,
    ) -> Self {
        let stride = tensor.row_stride * u64::from(Self::SIZE);
        Tile {
            shared,
            base,
            start: tensor.start + first * stride,
            stride,
            pitch: args.pitch,
            row_bytes: cols * Self::SIZE,
            element: PhantomData,
        }
    }

    /// Where row `row` of the tile begins in shared memory.
    #[inline(always)]
    pub(crate) fn row(&self, row: u32) -> u32 {
        if self.pitch == 0 {
            self.base + (self.start as u32 % CACHE_LINE) + row * self.row_bytes
        } else {
            let address = (self.start as u32).wrapping_add(row.wrapping_mul(self.stride as u32));
            self.base + row * self.pitch + address % VECTOR
        }
    }

    /// Begins to copy the first `rows` rows; they are there when this thread has ended the batch
    /// ([`end_copies`](cuda_std::memory::end_copies)), waited for it, and met its warp.
    ///
    /// # Safety
    /// 1. The rows are in global memory, aligned for their type.
    /// 2. The block has shared memory for the tile, which no other warp accesses.
    /// 3. All lanes of the warp call it.
    #[inline(always)]
    pub(crate) unsafe fn load_async(&self, rows: u32) {
        let shared = self.shared;
        self.for_each(
            (self.start, self.stride),
            rows,
            // SAFETY: condition 1, of a vector within the rows; condition 2.
            |at, global| unsafe { shared.0.from_byte(at).copy(0, global as *const Vec16) },
            // SAFETY: as above, of an element.
            |at, global| unsafe { shared.set_element::<E>(at, load(global as *const E)) },
        );
    }

    /// Stores the first `rows` rows to `to`, past the caches.
    ///
    /// # Safety
    /// 1. The rows of `to` may be written, and nobody else accesses them.
    /// 2. The tile was written, and the warp has met since.
    /// 3. All lanes of the warp call it.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, args: &TileArgs, rows: u32, to: Matrix, first: u64) {
        let shared = self.shared;
        let stride = to.row_stride * u64::from(Self::SIZE);
        let start = to.start + first * stride;
        // SAFETY: condition 1, of an element; condition 2.
        let store_element = |at, global: u64| unsafe {
            store(global as *mut E, shared.element::<E>(at));
        };
        if args.alike != 0 {
            self.for_each(
                (start, stride),
                rows,
                // SAFETY: as above, of a vector within the rows.
                |at, global| unsafe {
                    store_streaming(global as *mut Vec16, shared.0.from_byte(at).get(0));
                },
                store_element,
            );
            return;
        }
        let mut row = 0;
        while row < rows {
            let (at, global) = (self.row(row), start + u64::from(row) * stride);
            let mut byte = lane_id() * Self::SIZE;
            while byte < self.row_bytes {
                store_element(at + byte, global + u64::from(byte));
                byte += WARP_SIZE * Self::SIZE;
            }
            row += 1;
        }
    }

    /// Calls `vector(shared, global)` for each whole vector of the first `rows` rows, and
    /// `element(shared, global)` for each element at a row's end that is in none; byte offsets and
    /// addresses, of a tensor whose first row is at `start`, the others `stride` bytes apart. The
    /// lanes of the warp share them.
    #[inline(always)]
    fn for_each(
        &self,
        (start, stride): (u64, u64),
        rows: u32,
        mut vector: impl FnMut(u32, u64),
        mut element: impl FnMut(u32, u64),
    ) {
        let vector_of = |at: u32| at & !(VECTOR - 1);
        if self.pitch == 0 {
            let shared = vector_of(self.row(0));
            let bytes = rows * self.row_bytes;
            span(shared, start, bytes, Self::SIZE, vector, element);
        } else {
            let mut row = 0;
            while row < rows {
                let start = start + u64::from(row) * stride;
                let shared = vector_of(self.row(row));
                span(shared, start, self.row_bytes, Self::SIZE, &mut vector, &mut element);
                row += 1;
            }
        }
    }
}

/// Calls `vector(shared, global)` for each whole vector of `bytes` contiguous bytes from address
/// `start`, and `element(shared, global)` for each `size` bytes at either end that are in none;
/// the first vector is at byte `shared` of shared memory. The lanes of the warp share them.
#[inline(always)]
fn span(
    shared: u32,
    start: u64,
    bytes: u32,
    size: u32,
    mut vector: impl FnMut(u32, u64),
    mut element: impl FnMut(u32, u64),
) {
    // Counted from the vector that the span begins in.
    let global = start & !u64::from(VECTOR - 1);
    let (from, to) = (start as u32 % VECTOR, start as u32 % VECTOR + bytes);
    let first = from.next_multiple_of(VECTOR);
    let last = (to & !(VECTOR - 1)).max(first);
    let mut at = first + lane_id() * VECTOR;
    const STEP: u32 = WARP_SIZE * VECTOR;
    while at < last {
        let (shared, global) = (shared + at, global + u64::from(at));
        let left = last - at;
        unrolled!(for k in 0..4; {
            let step = k as u32 * STEP;
            if step < left {
                vector(shared + step, global + u64::from(step));
            }
        });
        // Opaque, so that the compiler does not write out this loop too.
        at = opaque(u64::from(at + 4 * STEP)) as u32;
    }
    // Fewer elements than a warp has lanes, at either end.
    let head = from + lane_id() * size;
    if head < first.min(to) {
        element(shared + head, global + u64::from(head));
    }
    let tail = last + lane_id() * size;
    if tail < to {
        element(shared + tail, global + u64::from(tail));
    }
}
