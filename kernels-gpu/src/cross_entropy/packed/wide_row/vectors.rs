//! A wide row in shared memory, cut into vectors: how its lane reads and writes it.
//!
//! Rows of 16-bit elements that begin or end within a word of four bytes are read by words all the
//! same. The elements that are no whole word, at most one at each end of the row, are the *edges*
//! of the row. They take the place of the last word of the vector with the words that are left.

use crate::cross_entropy::packed::lane_row::SharedRow;
use crate::element::{Element, MAX_LANES, unrolled};
use crate::tile::Shared;
use core::marker::PhantomData;
use cuda_std::memory::Vec16;

/// The most vectors that a step reads before it computes.
pub(super) const MOST_FLIGHT: usize = 4;

/// A row in shared memory, cut into vectors. Rows allow accesses of `ACCESS` bytes: the number
/// divides the address and the bytes of each. Rows with edges allow accesses of two bytes.
#[derive(Clone, Copy)]
pub(super) struct Vectors<E: Element, const ACCESS: usize> {
    pub(super) source: SharedRow,
    cols: u32,
    /// Vectors that are whole.
    pub(super) whole: u32,
    /// Words after them; fewer than a vector has.
    rest: u32,
    element: PhantomData<E>,
}

impl<E: Element, const ACCESS: usize> Vectors<E, ACCESS> {
    /// Vectors that a step loads before it computes, so that their latencies overlap.
    pub(super) const FLIGHT: u32 = if size_of::<E>() == 4 { MOST_FLIGHT as u32 } else { 2 };
    /// Whether rows have edges.
    const HAS_EDGES: bool = ACCESS < 4;
    /// Bytes of a word.
    const WORD: usize = if Self::HAS_EDGES { 4 } else { ACCESS };
    /// Words of a vector.
    const WORDS: u32 = (size_of::<Vec16>() / Self::WORD) as u32;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new(source: SharedRow, cols: u32) -> Self {
        let words = (cols - Self::head(source)) * size_of::<E>() as u32 / Self::WORD as u32;
        let (whole, rest) = (words / Self::WORDS, words % Self::WORDS);
        Vectors { source, cols, whole, rest, element: PhantomData }
    }

    /// Elements before the first word of a row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn head(row: SharedRow) -> u32 {
        if Self::HAS_EDGES { row.at >> 1 & 1 } else { 0 }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_tail(&self) -> bool {
        Self::HAS_EDGES && ((self.source.at >> 1) + self.cols) & 1 == 1
    }

    /// Whether the row has elements after its whole vectors. Rows with edges nearly always do.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has_rest(&self) -> bool {
        Self::HAS_EDGES || self.rest > 0
    }

    /// The number of the vector that the lane accesses in place of vector `index`, so that lanes of
    /// different rows access different banks. The vectors of rows with edges are rotated: their
    /// number is rarely one that an exclusive or permutes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn ordered(&self, index: u32) -> u32 {
        if !Self::HAS_EDGES {
            return self.ordered_in_step(index);
        }
        let rotated = index + self.source.order;
        if rotated < self.whole { rotated } else { rotated - self.whole }
    }

    /// [`ordered`](Self::ordered) where rows [have steps](Self::has_steps).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn ordered_in_step(&self, index: u32) -> u32 {
        if Self::HAS_EDGES { index } else { index ^ self.source.order }
    }

    /// Whether several vectors at a time are read, in a step. Rows that are rotated are read vector
    /// by vector: most rows with edges are not, and rotating would cost them instructions.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has_steps(&self) -> bool {
        !(Self::HAS_EDGES && self.source.has_orders)
    }

    /// The class of the first element of vector `number`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn class_of(&self, number: u32) -> u32 {
        number * E::LANES + Self::head(self.source)
    }

    /// The class of element `lane` of the [rest](Self::rest), if it has that element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn class_in_rest(&self, lane: usize) -> Option<u32> {
        let edges = E::LANES as usize - 2;
        if Self::HAS_EDGES && lane >= edges {
            let (has, class) = if lane == edges {
                (Self::head(self.source) > 0, 0)
            } else {
                (self.has_tail(), self.cols - 1)
            };
            return has.then_some(class);
        }
        let word = (lane * size_of::<E>() / Self::WORD) as u32;
        (word < self.rest).then(|| self.class_of(self.whole) + lane as u32)
    }

    /// Where vector number `number` of `row` begins.
    ///
    /// # Safety
    /// The row has the vector, or words in its place.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn place(row: SharedRow, number: u32) -> Shared {
        let first = if Self::HAS_EDGES { (row.at + 2) & !3 } else { row.at };
        // SAFETY: the caller's condition.
        unsafe { row.shared.after(first + number * size_of::<Vec16>() as u32) }
    }

    /// A whole vector.
    ///
    /// # Safety
    /// 1. The copy of the row to shared memory is complete.
    /// 2. `number` is below `whole`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn vector(&self, number: u32) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe {
            let place = Self::place(self.source, number);
            if Self::WORDS == 1 {
                return place.load_bytes::<16>(0);
            }
            Self::joined(|word| Self::load(place, word))
        }
    }

    /// The vectors of a step, from `index` on.
    ///
    /// # Safety
    /// As [`vector`](Self::vector), for all of them; the row [has steps](Self::has_steps).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn vectors(&self, index: u32) -> [Vec16; MOST_FLIGHT] {
        let mut vectors = [Vec16::default(); MOST_FLIGHT];
        unrolled!(for k in 0..MOST_FLIGHT; {
            if (k as u32) < Self::FLIGHT {
                // SAFETY: the caller's conditions.
                vectors[k] = unsafe { self.vector(self.ordered_in_step(index + k as u32)) };
            }
        });
        vectors
    }

    /// The words after the whole vectors, and the edges. There is −∞ where the row has no element.
    ///
    /// # Safety
    /// As [`vector`](Self::vector)'s condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn rest(&self) -> Vec16 {
        let Vec16([low, high, ..]) = E::pack([E::LOWEST; MAX_LANES]);
        // SAFETY: the caller's condition.
        unsafe {
            let place = Self::place(self.source, self.whole);
            let words = Self::joined(|word| {
                if word < self.rest {
                    Self::load(place, word)
                } else {
                    u64::from(high) << 32 | u64::from(low)
                }
            });
            if !Self::HAS_EDGES {
                return words;
            }
            let Vec16([a, b, c, mut edges]) = words;
            let SharedRow { shared, at, .. } = self.source;
            if Self::head(self.source) > 0 {
                edges = edges & 0xffff_0000 | u32::from(shared.word::<u16>(at, 0));
            }
            if self.has_tail() {
                edges = edges & 0xffff | u32::from(shared.word::<u16>(at, self.cols - 1)) << 16;
            }
            Vec16([a, b, c, edges])
        }
    }

    /// Word number `word`, of at most 8 bytes, from `place` on.
    ///
    /// # Safety
    /// As [`vector`](Self::vector)'s condition 1, for these bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(place: Shared, word: u32) -> u64 {
        let at = word * Self::WORD as u32;
        // SAFETY: the caller's condition.
        let Vec16([low, high, ..]) = unsafe {
            if Self::HAS_EDGES { place.load_bytes::<4>(at) } else { place.load_bytes::<ACCESS>(at) }
        };
        u64::from(high) << 32 | u64::from(low)
    }

    /// Joins words of at most 8 bytes to a vector. They are joined as integers, because LLVM keeps
    /// an array that is written in branches in local memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn joined(word: impl Fn(u32) -> u64) -> Vec16 {
        if ACCESS == 8 {
            let [first, second] = [word(0), word(1)];
            Vec16([first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32])
        } else {
            Vec16([0, 1, 2, 3].map(|index| word(index) as u32))
        }
    }

    /// Whether the words of row `to` are the same elements as those of this row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_words_alike(&self, to: SharedRow) -> bool {
        Self::head(to) == Self::head(self.source)
    }

    /// Stores vector `number` to row `to`.
    ///
    /// # Safety
    /// `to` is a row as long as this one, and no other thread accesses it until the warp
    /// synchronises; this row has the vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn store(&self, to: SharedRow, number: u32, vector: Vec16) {
        // SAFETY: the caller's conditions.
        unsafe {
            if self.has_words_alike(to) {
                Self::store_words(Self::place(to, number), vector, Self::WORDS);
            } else {
                let first = self.class_of(number);
                Self::store_elements(to, vector, |lane| Some(first + lane as u32));
            }
        }
    }

    /// Stores the [rest](Self::rest) to row `to`.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn store_rest(&self, to: SharedRow, vector: Vec16) {
        // SAFETY: the caller's conditions.
        unsafe {
            if !self.has_words_alike(to) {
                Self::store_elements(to, vector, |lane| self.class_in_rest(lane));
                return;
            }
            Self::store_words(Self::place(to, self.whole), vector, self.rest);
            if Self::HAS_EDGES {
                let (SharedRow { shared, at, .. }, edges) = (to, vector.0[3]);
                if Self::head(to) > 0 {
                    shared.set_word(at, 0, edges as u16);
                }
                if self.has_tail() {
                    shared.set_word(at, self.cols - 1, (edges >> 16) as u16);
                }
            }
        }
    }

    /// Stores the first `count` words of a vector to `place` and beyond.
    ///
    /// # Safety
    /// As [`store`](Self::store), for these bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_words(place: Shared, vector: Vec16, count: u32) {
        unrolled!(for word in 0..4; {
            if word < Self::WORDS as usize && (word as u32) < count {
                let (bytes, at) = (Self::taken(vector, word), (word * Self::WORD) as u32);
                // SAFETY: the caller's conditions.
                unsafe {
                    if Self::HAS_EDGES {
                        place.store_bytes::<4>(at, bytes);
                    } else {
                        place.store_bytes::<ACCESS>(at, bytes);
                    }
                }
            }
        });
    }

    /// Stores the elements of a vector that have a `class` to row `to`, one by one.
    ///
    /// # Safety
    /// As [`store`](Self::store), for these elements.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_elements(to: SharedRow, vector: Vec16, class: impl Fn(usize) -> Option<u32>) {
        unrolled!(for lane in 0..E::LANES as usize; {
            if let Some(class) = class(lane) {
                let at = to.at + class * size_of::<E>() as u32;
                // SAFETY: the caller's conditions.
                unsafe { to.shared.set_element(at, E::extract(vector, lane as u32)) };
            }
        });
    }

    /// A word of a vector, moved to the beginning of a vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn taken(Vec16(words): Vec16, word: usize) -> Vec16 {
        match Self::WORD {
            16 => Vec16(words),
            8 => Vec16([words[word * 2 % 4], words[(word * 2 + 1) % 4], 0, 0]),
            _ => Vec16([words[word % 4], 0, 0, 0]),
        }
    }

    /// The number of accesses of `ACCESS` bytes to the row, for code that is short rather than
    /// fast.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn accesses(&self) -> u32 {
        self.cols * size_of::<E>() as u32 / ACCESS as u32
    }

    /// Where access number `access` to `row` begins, and the class of its first element.
    ///
    /// # Safety
    /// The number is below [`accesses`](Self::accesses).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn access(row: SharedRow, access: u32) -> (Shared, u32) {
        let order = if Self::HAS_EDGES { 0 } else { row.order };
        let within = (access * ACCESS as u32) ^ (order * size_of::<Vec16>() as u32);
        // SAFETY: the caller's condition.
        (unsafe { row.shared.after(row.at + within) }, within / size_of::<E>() as u32)
    }
}
