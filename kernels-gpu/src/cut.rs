//! Rows in memory, cut into vectors of 16 bytes: what lies on 16-byte boundaries moves in one
//! access, the ends of a row, its peeled elements, element by element. Nothing outside the row is touched.

use crate::abi::{LINE_VECTORS, Matrix};
use crate::element::{Element, MAX_LANES, unrolled};
use core::marker::PhantomData;
use cuda_std::memory::{Vec16, load, load_streaming, store, store_streaming_if};

/// Where a row is cut. Rows have fewer than 2³¹ elements.
#[derive(Clone, Copy)]
pub(crate) struct Cut<E> {
    /// Elements before the first vector.
    head: u32,
    /// Elements behind the last vector.
    tail: u32,
    /// The index of the first vector: 0 or, of a row that is cut at lines of the cache, the vector's
    /// place in its line.
    first: u32,
    /// The index behind the last vector's.
    pub(crate) end: u32,
    element: PhantomData<E>,
}

/// A part of a row that one thread holds in 16 bytes: elements from `first`, `count` of them.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Span {
    /// Whether element `lane` is one of it.
    #[inline(always)]
    pub(crate) fn has(self, lane: usize) -> bool {
        (lane as u32) < self.count
    }

    /// The place of element `index`, if it is one of it.
    #[inline(always)]
    pub(crate) fn lane_of(self, index: u32) -> Option<u32> {
        let lane = index.wrapping_sub(self.first);
        if lane < self.count { Some(lane) } else { None }
    }
}

impl<E: Element> Cut<E> {
    /// The row of `cols` elements at address `start`.
    #[inline(always)]
    pub(crate) fn new(start: u64, cols: u32) -> Self {
        let to_boundary = start.wrapping_neg() as u32 % 16 / size_of::<E>() as u32;
        let head = to_boundary.min(cols);
        let (end, tail) = ((cols - head) / E::LANES, (cols - head) % E::LANES);
        Cut { head, tail, first: 0, end, element: PhantomData }
    }

    /// The same, cut at lines of the cache: one of which two warps read or write a part costs the
    /// cache an access more.
    #[inline(always)]
    pub(crate) fn at_lines(start: u64, cols: u32) -> Self {
        let (cut, first) = (Self::new(start, cols), start.div_ceil(16) as u32 % LINE_VECTORS);
        Cut { first, end: first + cut.end, ..cut }
    }

    /// A row of `cols` elements that is all vectors.
    #[inline(always)]
    pub(crate) fn whole(cols: u32) -> Self {
        Cut { head: 0, tail: 0, first: 0, end: cols / E::LANES, element: PhantomData }
    }

    /// Elements of the row that are in no vector, fewer than two vectors have: its peeled elements.
    #[inline(always)]
    pub(crate) fn peeled_count(self) -> u32 {
        self.head + self.tail
    }

    /// Where in the row one of them is.
    #[inline(always)]
    pub(crate) fn peeled(self, index: u32) -> u32 {
        if index < self.head { index } else { index + (self.end - self.first) * E::LANES }
    }

    /// The vector that an element is in; of an peeled element none that it [has](Self::has).
    #[inline(always)]
    pub(crate) fn vector_of(self, element: u32) -> u32 {
        element.wrapping_sub(self.origin()) / E::LANES
    }

    /// The place in its vector of an element that is in one.
    #[inline(always)]
    pub(crate) fn place_of(self, element: u32) -> u32 {
        element.wrapping_sub(self.head) % E::LANES
    }

    /// Whether there is a vector with this index.
    #[inline(always)]
    pub(crate) fn has(self, index: u32) -> bool {
        index.wrapping_sub(self.first) < self.end - self.first
    }

    /// Whether there are vectors with all indices of these, of a line at least.
    #[inline(always)]
    pub(crate) fn has_all(self, from: u32, to: u32) -> bool {
        from >= self.first && to <= self.end
    }

    /// Where vector 0 begins, or would, as far before the row as vectors are missing.
    #[inline(always)]
    fn origin(self) -> u32 {
        self.head.wrapping_sub(self.first * E::LANES)
    }

    /// Where a vector of the row begins, or would.
    #[inline(always)]
    pub(crate) fn vector(self, index: u32) -> Span {
        Span { first: self.origin().wrapping_add(index * E::LANES), count: E::LANES }
    }
}

/// A row of one tensor.
#[derive(Clone, Copy)]
pub(crate) struct Row<E> {
    start: u64,
    /// Whether the vectors of the cut lie on 16-byte boundaries here too.
    alike: bool,
    element: PhantomData<E>,
}

impl<E: Element> Row<E> {
    /// Row `row` of `tensor`, which is cut as the row at `cut_at` is. Of a tensor that is null,
    /// nothing may be asked but whether it is.
    #[inline(always)]
    pub(crate) fn new(tensor: Matrix, row: u64, cut_at: u64) -> Self {
        let start = if tensor.start == 0 { 0 } else { Self::address(tensor, row) };
        Row { start, alike: (start ^ cut_at).is_multiple_of(16), element: PhantomData }
    }

    /// The row at `start`, where it is cut.
    #[inline(always)]
    pub(crate) fn at_cut(start: u64) -> Self {
        Row { start, alike: true, element: PhantomData }
    }

    /// Row `row` of `tensor`, which lies as the row that is cut does; null, of a tensor that is
    /// null.
    #[inline(always)]
    pub(crate) fn alike(tensor: Matrix, row: u64) -> Self {
        let start = if tensor.start == 0 { 0 } else { Self::address(tensor, row) };
        Row { start, alike: true, element: PhantomData }
    }

    /// The address of a row of a tensor.
    #[inline(always)]
    pub(crate) fn address(tensor: Matrix, row: u64) -> u64 {
        tensor.start + row * tensor.row_stride * size_of::<E>() as u64
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.start == 0
    }

    #[inline(always)]
    pub(crate) fn start(self) -> u64 {
        self.start
    }

    #[inline(always)]
    fn at(self, index: u32) -> *mut E {
        // Rows have fewer than 2³¹ elements; what begins before one is where a vector would.
        let bytes = i64::from(index.cast_signed()) * size_of::<E>() as i64;
        self.start.wrapping_add_signed(bytes) as *mut E
    }

    /// Loads an element.
    ///
    /// # Safety
    /// The element is one of the row's, in global memory, and aligned for its type.
    #[inline(always)]
    pub(crate) unsafe fn load(self, index: u32) -> E {
        // SAFETY: the caller's condition.
        unsafe { load(self.at(index)) }
    }

    /// Stores an element.
    ///
    /// # Safety
    /// As [`load`](Self::load), and nobody else accesses it.
    #[inline(always)]
    pub(crate) unsafe fn store(self, index: u32, value: E) {
        // SAFETY: the caller's conditions.
        unsafe { store(self.at(index), value) };
    }

    /// Where a vector lies, of the row that is cut.
    #[inline(always)]
    pub(crate) fn vector(self, vector: Span) -> *const Vec16 {
        self.at(vector.first).cast_const().cast()
    }

    /// Loads the vector that is `ahead` vectors behind this one.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the vector.
    #[inline(always)]
    pub(crate) unsafe fn load_vector_of(self, vector: Span, ahead: u32) -> Vec16 {
        // SAFETY: the caller's condition; a vector of the cut that lies alike is on its boundary.
        unsafe {
            if self.alike {
                load_streaming(self.vector(vector).wrapping_add(ahead as usize))
            } else {
                let first = vector.first.wrapping_add(ahead * E::LANES);
                self.load_span(Span { first, ..vector })
            }
        }
    }

    /// Loads what the span has, and fills up.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the span.
    #[inline(always)]
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

    /// Stores vectors, each as far `ahead` of the first as is said, of those that this `has`. They
    /// are cut alike or not, all of them: that is asked once.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the vectors, and nobody else accesses them.
    #[inline(always)]
    pub(crate) unsafe fn store_vectors<const N: usize>(
        self,
        first: Span,
        vectors: [Vec16; N],
        ahead: impl Fn(usize) -> u32,
        has: impl Fn(usize) -> bool,
    ) {
        const { assert!(N <= MAX_LANES) };
        if self.alike {
            unrolled!(for k in 0..N; {
                let at = self.vector(first).wrapping_add(ahead(k) as usize).cast_mut();
                // SAFETY: the caller's conditions; a vector of the cut that lies alike is on its
                // boundary.
                unsafe { store_streaming_if(has(k), at, vectors[k]) };
            });
        } else {
            unrolled!(for k in 0..N; {
                if has(k) {
                    // The first may be one that begins before the row, and is not stored.
                    let of_group = first.first.wrapping_add(ahead(k) * E::LANES);
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let index = of_group + lane as u32;
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

    /// Rows that begin everywhere in a line, of as many elements as two lines have and less.
    fn each_row<E: Element>(mut check: impl FnMut(u64, u32)) {
        let bytes = size_of::<E>() as u64;
        for start in (0..u64::from(CACHE_LINE)).step_by(bytes as usize) {
            for cols in 0..=2 * CACHE_LINE / bytes as u32 {
                check((1 << 40) + start, cols);
            }
        }
    }

    /// Every element is in one vector or an peeled element, and what lies on 16 bytes is in vectors.
    fn check_elements<E: Element>(cut: Cut<E>, start: u64, cols: u32) {
        let mut times = vec![0; cols as usize];
        for vector in cut.first..cut.end {
            let Span { first, count } = cut.vector(vector);
            assert!((start + u64::from(first) * size_of::<E>() as u64).is_multiple_of(16));
            for (place, element) in (first..first + count).enumerate() {
                times[element as usize] += 1;
                assert_eq!((cut.vector_of(element), cut.place_of(element)), (vector, place as u32));
            }
        }
        assert!(cut.peeled_count() < 2 * E::LANES);
        for index in 0..cut.peeled_count() {
            let element = cut.peeled(index);
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
