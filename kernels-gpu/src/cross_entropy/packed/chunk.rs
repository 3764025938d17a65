//! Chunks of a row: what of it one access of a lane has.

use crate::element::Element;

/// Which elements of a row are in a chunk.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) number: u32,
    /// Its first column, head and tail left aside.
    pub(super) first: u32,
    /// Its elements from `first` on.
    pub(super) count: u32,
    /// Whether it is a vector.
    pub(super) is_aligned: bool,
    /// Whether it is the rest of the row. The last two elements of its vector are the head and the
    /// tail.
    pub(super) is_rest: bool,
    /// Whether the row has a head and a tail.
    pub(super) has_head: bool,
    pub(super) has_tail: bool,
}

/// The chunks of a row.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    /// Those that are whole.
    pub(super) whole: u32,
    /// All of them.
    pub(super) count: u32,
    /// Elements of the rest of the row, head and tail left aside.
    pub(super) rest: u32,
    /// Elements of the head.
    pub(super) head: u32,
    pub(super) has_head: bool,
    pub(super) has_tail: bool,
    /// As in [`Part`].
    pub(super) order: u32,
}

impl Chunks {
    /// The chunk in position `index`, which is the rest of the row or not.
    #[inline(always)]
    pub(super) fn chunk<E: Element>(&self, index: u32, is_aligned: bool, is_rest: bool) -> Chunk {
        let number = if is_aligned { index ^ self.order } else { index };
        let first = self.head + number * E::LANES;
        let count = if is_rest { self.rest } else { E::LANES };
        let &Chunks { has_head, has_tail, .. } = self;
        Chunk { number, first, count, is_aligned, is_rest, has_head, has_tail }
    }
}

impl Chunk {
    /// The column of element `lane` of the chunk's vector, if it has one.
    #[inline(always)]
    pub(super) fn column<E: Element>(&self, lane: u32, cols: u32) -> Option<u32> {
        if size_of::<E>() == 2 && self.is_rest && lane >= E::LANES - 2 {
            let is_head = lane == E::LANES - 2;
            let has = if is_head { self.has_head } else { self.has_tail };
            return has.then_some(if is_head { 0 } else { cols - 1 });
        }
        (lane < self.count).then_some(self.first + lane)
    }
}
