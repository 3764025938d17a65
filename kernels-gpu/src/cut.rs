//! Rows in memory, cut into vectors of 16 bytes. Each aligned vector is one access; the head and
//! the tail of a row, its peeled elements, are accessed element by element. No access is outside
//! the row.

use crate::abi::{LINE_VECTORS, Matrix};
use crate::element::{Element, MAX_LANES, unrolled};
use core::marker::PhantomData;
use cuda_std::memory::{Vec16, load, load_streaming, store, store_streaming_if};

/// Where a row is cut: a head, aligned vectors, a tail. Rows have fewer than 2³¹ elements.
#[derive(Clone, Copy)]
pub(crate) struct Cut<E> {
    /// Elements before the first vector.
    head: u32,
    /// Elements after the last vector.
    tail: u32,
    /// The index of the first vector: 0 or, in a row that is cut at cache lines, the vector's
    /// index within its line.
    first: u32,
    /// One past the index of the last vector.
    pub(crate) end: u32,
    element: PhantomData<E>,
}

/// The elements of a row that a vector has: `count` of them from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Span {
    /// Whether the vector has an element at position `lane`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has(self, lane: usize) -> bool {
        (lane as u32) < self.count
    }

    /// The position in the vector of the row's element `index`, if the vector has it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn lane_of(self, index: u32) -> Option<u32> {
        let lane = index.wrapping_sub(self.first);
        if lane < self.count { Some(lane) } else { None }
    }
}

impl<E: Element> Cut<E> {
    /// Cuts the row of `cols` elements at address `start` at 16-byte boundaries.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(start: u64, cols: u32) -> Self {
        let to_boundary = start.wrapping_neg() as u32 % 16 / size_of::<E>() as u32;
        let head = to_boundary.min(cols);
        let (end, tail) = ((cols - head) / E::LANES, (cols - head) % E::LANES);
        Cut { head, tail, first: 0, end, element: PhantomData }
    }

    /// As [`new`](Self::new), but with vectors numbered from the start of a cache line. Tiles of
    /// warps then begin at cache lines: a line that two warps share costs one more cache access.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn at_lines(start: u64, cols: u32) -> Self {
        let (cut, first) = (Self::new(start, cols), start.div_ceil(16) as u32 % LINE_VECTORS);
        Cut { first, end: first + cut.end, ..cut }
    }

    /// A row of `cols` elements that begins and ends at 16-byte boundaries.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn all_vectors(cols: u32) -> Self {
        Cut { head: 0, tail: 0, first: 0, end: cols / E::LANES, element: PhantomData }
    }

    /// The index of the first vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn first(self) -> u32 {
        self.first
    }

    /// The number of the row's peeled elements, which are its head and its tail: fewer than two
    /// vectors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn peeled_count(self) -> u32 {
        self.head + self.tail
    }

    /// The index in the row of peeled element number `number`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn peeled_index(self, number: u32) -> u32 {
        if number < self.head { number } else { number + (self.end - self.first) * E::LANES }
    }

    /// The index of the vector that has this element; for a peeled element, an index that the row
    /// does not [have](Self::has).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn vector_of(self, element: u32) -> u32 {
        element.wrapping_sub(self.origin()) / E::LANES
    }

    /// The position within its vector of an element that is not peeled.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn index_in_vector(self, element: u32) -> u32 {
        element.wrapping_sub(self.head) % E::LANES
    }

    /// Whether the row has a vector with this index.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has(self, index: u32) -> bool {
        index.wrapping_sub(self.first) < self.end - self.first
    }

    /// Whether the row has all vectors from `from` to before `to`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_all(self, from: u32, to: u32) -> bool {
        from >= self.first && to <= self.end
    }

    /// The element at which vector 0 begins. A row that is cut at cache lines may begin after
    /// vector 0, which then begins at a wrapped negative index.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn origin(self) -> u32 {
        self.head.wrapping_sub(self.first * E::LANES)
    }

    /// The elements of the vector with this index, as if the row continued on both sides.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn vector(self, index: u32) -> Span {
        Span { first: self.origin().wrapping_add(index * E::LANES), count: E::LANES }
    }
}

/// A row of one tensor.
#[derive(Clone, Copy)]
pub(crate) struct Row<E> {
    start: u64,
    /// Whether the vectors of the cut are on 16-byte boundaries in this tensor too.
    is_aligned: bool,
    element: PhantomData<E>,
}

impl<E: Element> Row<E> {
    /// Row `row` of `tensor`, with the cut of the row at address `cut_at`, which may be aligned
    /// differently. If the tensor is null, so is the row, and only `is_null` may be called.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(tensor: Matrix, row: u64, cut_at: u64) -> Self {
        let start = if tensor.start == 0 { 0 } else { Self::address(tensor, row) };
        Row { start, is_aligned: (start ^ cut_at).is_multiple_of(16), element: PhantomData }
    }

    /// The row at address `start`, which is the one that the cut was made for.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn at_cut(start: u64) -> Self {
        Row { start, is_aligned: true, element: PhantomData }
    }

    /// Row `row` of `tensor`, known to have the same alignment as the row that the cut was made
    /// for. If the tensor is null, so is the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn same_alignment(tensor: Matrix, row: u64) -> Self {
        let start = if tensor.start == 0 { 0 } else { Self::address(tensor, row) };
        Row { start, is_aligned: true, element: PhantomData }
    }

    /// The address of a row of a tensor.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn address(tensor: Matrix, row: u64) -> u64 {
        tensor.start + row * tensor.row_stride * size_of::<E>() as u64
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn is_null(self) -> bool {
        self.start == 0
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn start(self) -> u64 {
        self.start
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn at(self, index: u32) -> *mut E {
        // The index is signed, which rows of fewer than 2³¹ elements allow: a vector that begins
        // before the row has a negative one.
        let bytes = i64::from(index.cast_signed()) * size_of::<E>() as i64;
        self.start.wrapping_add_signed(bytes) as *mut E
    }

    /// Loads an element.
    ///
    /// # Safety
    /// The element is one of the row's, in global memory, and aligned for its type.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn load(self, index: u32) -> E {
        // SAFETY: the caller's condition.
        unsafe { load(self.at(index)) }
    }

    /// Stores an element.
    ///
    /// # Safety
    /// As [`load`](Self::load), and nobody else accesses it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn store(self, index: u32, value: E) {
        // SAFETY: the caller's conditions.
        unsafe { store(self.at(index), value) };
    }

    /// The address of a vector. It is a 16-byte boundary if the row is aligned as its cut is.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn vector(self, vector: Span) -> *const Vec16 {
        self.at(vector.first).cast_const().cast()
    }

    /// Loads the vector that is `offset` vectors after `vector`.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the loaded vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn load_vector(self, vector: Span, offset: u32) -> Vec16 {
        // SAFETY: the caller's condition; in an aligned row, a vector of the cut is on a 16-byte
        // boundary.
        unsafe {
            if self.is_aligned {
                load_streaming(self.vector(vector).wrapping_add(offset as usize))
            } else {
                let first = vector.first.wrapping_add(offset * E::LANES);
                self.load_span(Span { first, ..vector })
            }
        }
    }

    /// Loads the elements of the span one by one, and fills the vector up with −∞.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the span.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_span(self, span: Span) -> Vec16 {
        let mut values = [E::LOWEST; MAX_LANES];
        unrolled!(for lane in 0..E::LANES as usize; {
            if span.has(lane) {
                // SAFETY: the caller's condition.
                values[lane] = unsafe { load(self.at(span.first + lane as u32)) };
            }
        });
        E::pack(values)
    }

    /// Stores those of the vectors for whose index `has` is true: vector `k` goes `offset(k)`
    /// vectors after `first`. Whether the row is aligned is tested once for all of them.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the stored vectors, and nobody else accesses
    /// them.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn store_vectors<const N: usize>(
        self,
        first: Span,
        vectors: [Vec16; N],
        offset: impl Fn(usize) -> u32,
        has: impl Fn(usize) -> bool,
    ) {
        const { assert!(N <= MAX_LANES) };
        if self.is_aligned {
            unrolled!(for k in 0..N; {
                let at = self.vector(first).wrapping_add(offset(k) as usize).cast_mut();
                // SAFETY: the caller's conditions; in an aligned row, a vector of the cut is on a
                // 16-byte boundary.
                unsafe { store_streaming_if(has(k), at, vectors[k]) };
            });
        } else {
            unrolled!(for k in 0..N; {
                if has(k) {
                    // Wrapping: vector `first` may begin before the row (and is then not stored).
                    let start = first.first.wrapping_add(offset(k) * E::LANES);
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let index = start + lane as u32;
                        // SAFETY: the caller's conditions.
                        unsafe { store(self.at(index), E::extract(vectors[k], lane as u32)) };
                    });
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::CACHE_LINE;
    use crate::element::Bf16;

    /// Calls `check` with rows that begin at every element of a cache line, and have every length
    /// from 0 to two cache lines.
    fn each_row<E: Element>(mut check: impl FnMut(u64, u32)) {
        let bytes = size_of::<E>() as u64;
        for start in (0..u64::from(CACHE_LINE)).step_by(bytes as usize) {
            for cols in 0..=2 * CACHE_LINE / bytes as u32 {
                check((1 << 40) + start, cols);
            }
        }
    }

    /// Checks that every element is in exactly one vector or is peeled, and that vectors are on
    /// 16-byte boundaries.
    fn check_elements<E: Element>(cut: Cut<E>, start: u64, cols: u32) {
        let mut times = vec![0; cols as usize];
        for vector in cut.first..cut.end {
            let Span { first, count } = cut.vector(vector);
            assert!((start + u64::from(first) * size_of::<E>() as u64).is_multiple_of(16));
            for (lane, element) in (first..first + count).enumerate() {
                times[element as usize] += 1;
                let found = (cut.vector_of(element), cut.index_in_vector(element));
                assert_eq!(found, (vector, lane as u32));
            }
        }
        assert!(cut.peeled_count() < 2 * E::LANES);
        for number in 0..cut.peeled_count() {
            let element = cut.peeled_index(number);
            times[element as usize] += 1;
            assert!(!cut.has(cut.vector_of(element)), "{element} of {cols} from {start}");
        }
        assert!(times.iter().all(|&times| times == 1), "{cols} elements from {start}: {times:?}");
        assert!((cut.first..cut.end).all(|vector| cut.has(vector)));
        assert!(!cut.has(cut.first.wrapping_sub(1)) && !cut.has(cut.end));
    }

    #[test]
    fn every_element_is_in_one_vector_or_peeled() {
        fn check<E: Element>() {
            each_row::<E>(|start, cols| {
                check_elements::<E>(Cut::new(start, cols), start, cols);
                check_elements::<E>(Cut::at_lines(start, cols), start, cols);
            });
        }
        check::<f32>();
        check::<f64>();
        check::<Bf16>();
    }

    #[test]
    fn vectors_are_numbered_within_their_line() {
        each_row::<f32>(|start, cols| {
            let cut = Cut::<f32>::at_lines(start, cols);
            for vector in cut.first..cut.end {
                let at = start + u64::from(cut.vector(vector).first) * 4;
                assert_eq!(at / 16 % u64::from(LINE_VECTORS), u64::from(vector % LINE_VECTORS));
            }
        });
    }
}
