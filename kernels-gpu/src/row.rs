//! Rows in memory, cut into groups of 16 bytes: what lies on 16-byte boundaries moves in one access, the ends of a
//! row, its edges, element by element. Nothing outside the row is touched.

use crate::abi::Matrix;
use crate::element::{Element, MAX_LANES, unrolled};
use core::marker::PhantomData;
use cuda_std::memory::{Vec16, load, load_streaming, store, store_streaming_if};

/// Where a row is cut. Rows have fewer than 2³¹ elements.
#[derive(Clone, Copy)]
pub(crate) struct Cut<E> {
    /// Elements before the first group.
    head: u32,
    /// Elements behind the last group.
    tail: u32,
    /// Groups between.
    pub(crate) groups: u32,
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
        let (groups, tail) = ((cols - head) / E::LANES, (cols - head) % E::LANES);
        Cut { head, tail, groups, element: PhantomData }
    }

    /// A row of `cols` elements that is all groups.
    #[inline(always)]
    pub(crate) fn whole(cols: u32) -> Self {
        Cut { head: 0, tail: 0, groups: cols / E::LANES, element: PhantomData }
    }

    /// Elements of the row that are in no group, fewer than two groups have: its edges.
    #[inline(always)]
    pub(crate) fn edges(self) -> u32 {
        self.head + self.tail
    }

    /// Where in the row one of them is.
    #[inline(always)]
    pub(crate) fn edge(self, index: u32) -> u32 {
        if index < self.head { index } else { index + self.groups * E::LANES }
    }

    /// The group that an element is in; of an edge none of `groups`.
    #[inline(always)]
    pub(crate) fn group_of(self, element: u32) -> u32 {
        element.wrapping_sub(self.head) / E::LANES
    }

    /// The place in its group of an element that is in one.
    #[inline(always)]
    pub(crate) fn place_of(self, element: u32) -> u32 {
        element.wrapping_sub(self.head) % E::LANES
    }

    /// A group of the row, one of `groups`.
    #[inline(always)]
    pub(crate) fn group(self, index: u32) -> Span {
        Span { first: self.head + index * E::LANES, count: E::LANES }
    }
}

/// A row of one tensor.
#[derive(Clone, Copy)]
pub(crate) struct Row<E> {
    start: u64,
    /// Whether the groups of the cut lie on 16-byte boundaries here too.
    alike: bool,
    element: PhantomData<E>,
}

impl<E: Element> Row<E> {
    /// Row `row` of `tensor`, which is cut as the row at `cut_at` is. Of a tensor that is null, nothing may be
    /// asked but whether it is.
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

    /// Row `row` of `tensor`, which lies as the row that is cut does; null, of a tensor that is null.
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
        (self.start + u64::from(index) * size_of::<E>() as u64) as *mut E
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

    /// Where a group lies, of the row that is cut.
    #[inline(always)]
    pub(crate) fn group(self, group: Span) -> *const Vec16 {
        self.at(group.first).cast_const().cast()
    }

    /// Loads the group that is `ahead` groups behind this one.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the group.
    #[inline(always)]
    pub(crate) unsafe fn load_group(self, group: Span, ahead: u32) -> Vec16 {
        // SAFETY: the caller's condition; a group of the cut that lies alike is on its boundary.
        unsafe {
            if self.alike {
                load_streaming(self.group(group).wrapping_add(ahead as usize))
            } else {
                self.load_span(Span { first: group.first + ahead * E::LANES, ..group })
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

    /// Stores groups, each as far `ahead` of the first as is said, of those that this `has`. They are cut alike or not, all of
    /// them: that is asked once.
    ///
    /// # Safety
    /// As [`load`](Self::load), for each element of the groups, and nobody else accesses them.
    #[inline(always)]
    pub(crate) unsafe fn store_groups<const N: usize>(
        self,
        first: Span,
        groups: [Vec16; N],
        ahead: impl Fn(usize) -> u32,
        has: impl Fn(usize) -> bool,
    ) {
        const { assert!(N <= MAX_LANES) };
        if self.alike {
            unrolled!(for k in 0..N; {
                let at = self.group(first).wrapping_add(ahead(k) as usize).cast_mut();
                // SAFETY: the caller's conditions; a group of the cut that lies alike is on its boundary.
                unsafe { store_streaming_if(has(k), at, groups[k]) };
            });
        } else {
            unrolled!(for k in 0..N; {
                if has(k) {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let at = self.at(first.first + ahead(k) * E::LANES + lane as u32);
                        // SAFETY: the caller's conditions.
                        unsafe { store(at, E::extract(groups[k], lane as u32)) };
                    });
                }
            });
        }
    }
}
