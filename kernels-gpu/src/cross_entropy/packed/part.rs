//! A lane's part of a row in shared memory: chunks of 16 bytes.
//!
//! Rows that begin and end at multiples of 16 bytes are read a vector at a time. Any other row is
//! cut into words of 4 bytes (8 in f64), and a chunk is as many words as make 16 bytes. The words
//! are dealt to the lanes so that there are the fewest bank conflicts ([`WordSteps`]). The words
//! that fill no turn of whole chunks are dealt out one by one. Rows of 16-bit elements may have a
//! head of one element before the first word, and a tail of one after the last; the last lane reads
//! them beside its share of those words. So no lane accesses bytes of a row that belong to another
//! lane, and only one chunk of a lane checks which of its elements exist.

use super::chunk::{Chunk, Chunks, shift_of};
use crate::abi::{TileArgs, WordSteps};
use crate::element::{Element, MAX_LANES, unrolled};
use crate::row::Split;
use crate::tile::Shared;
use cuda_std::hint::opaque;
use cuda_std::memory::Vec16;

/// A lane's part of a row.
#[derive(Clone, Copy)]
pub(super) struct Part<E> {
    shared: Shared,
    /// The first byte of the row.
    row: u32,
    pub(super) cols: u32,
    split: Split,
    /// Vector `v ^ order` is read in place of vector `v`, so that lanes of different rows read
    /// different banks.
    order: u32,
    /// Whether a chunk is a vector.
    is_aligned: bool,
    steps: WordSteps,
    /// The element that fills a chunk's vector where the row has no element.
    padding: E,
}

/// Whether a lane loads two chunks at once, so that the second arrives while it computes the first.
/// That doubles the code of the loop's body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairs {
    /// If chunks are vectors.
    Vectors,
    /// Always.
    All,
}

impl<E: Element> Part<E> {
    const SIZE: u32 = size_of::<E>() as u32;
    /// Bytes of a word.
    const WORD: u32 = if Self::SIZE == 8 { 8 } else { 4 };
    /// Words of a chunk.
    const WORDS: u32 = 16 / Self::WORD;
    /// Whether a row may have a head and a tail: elements that fill no word.
    const HAS_PEELED: bool = Self::SIZE < Self::WORD;

    /// The lane's part of the row from byte `row` on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new(
        shared: Shared,
        row: u32,
        cols: u32,
        split: Split,
        order: u32,
        tile: &TileArgs,
    ) -> Self {
        // For 16-bit elements, `tile.words` always has these values, and their kernels have no
        // instructions to spare: as constants, they are part of the loads and stores.
        let steps = if Self::HAS_PEELED {
            WordSteps { word: Self::WORD, lane: 16, ..tile.words }
        } else {
            tile.words
        };
        let is_aligned = tile.access == 16;
        Part { shared, row, cols, split, order, is_aligned, steps, padding: E::LOWEST }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn padded_with(self, padding: E) -> Self {
        Part { padding, ..self }
    }

    /// A part without elements.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn without_elements(self) -> Self {
        Part { cols: 0, ..self }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn is_empty(&self) -> bool {
        self.cols == 0
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_head(&self) -> bool {
        Self::HAS_PEELED && !self.row.is_multiple_of(Self::WORD)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn has_tail(&self) -> bool {
        Self::HAS_PEELED && !(self.row + self.cols * Self::SIZE).is_multiple_of(Self::WORD)
    }

    /// Elements of the head, 0 or 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn head(&self) -> u32 {
        u32::from(self.has_head())
    }

    /// Words of the row, without head and tail.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn words(&self) -> u32 {
        (self.cols - self.head()) / (Self::WORD / Self::SIZE)
    }

    /// How the row is cut into chunks.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn chunks(&self) -> Chunks {
        let units = if self.is_aligned { self.cols / E::LANES } else { self.words() };
        let (head, has_tail) = (self.head(), self.has_tail());
        let (word, has_edges) = (Self::WORD, Self::HAS_PEELED);
        let &Part { split, steps, order, .. } = self;
        let shift = Self::HAS_PEELED.then(|| shift_of(split, steps, units));
        Chunks { split, word, steps, has_edges, units, head, has_tail, order, shift }
    }

    /// Calls `body(chunk, vector)` for each chunk of the lane. Where the chunk has no element, the
    /// vector has −∞ or the [padding](Self::padded_with).
    ///
    /// # Safety
    /// 1. The copy of the row to shared memory is complete.
    /// 2. Until the warp synchronises, no other thread writes the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn for_each(&self, pairs: Pairs, mut body: impl FnMut(Chunk, Vec16)) {
        let this = self.again();
        let cut = this.chunks();
        let (mut turn, step) = (0, cut.turn_bytes());
        // SAFETY: the caller's conditions.
        unsafe {
            // Chunks that are vectors have a separate loop: in a common loop, each chunk would cost
            // the instructions of both kinds.
            if self.is_aligned {
                let end = cut.vectors() * step;
                while turn + step < end {
                    let pair = [cut.vector(turn), cut.vector(turn + step)];
                    let vectors = [this.load(pair[0]), this.load(pair[1])];
                    body(pair[0], vectors[0]);
                    body(pair[1], vectors[1]);
                    turn += 2 * step;
                }
                if turn < end {
                    let chunk = cut.vector(turn);
                    body(chunk, this.load(chunk));
                }
                return;
            }
            let whole_end = cut.turns() * step;
            while pairs == Pairs::All && turn + step < whole_end {
                let pair = [cut.words(turn), cut.words(turn + step)];
                let vectors = [this.load(pair[0]), this.load(pair[1])];
                body(pair[0], vectors[0]);
                body(pair[1], vectors[1]);
                turn += 2 * step;
            }
            while turn < whole_end {
                let chunk = cut.words(turn);
                body(chunk, this.load(chunk));
                turn += step;
            }
            let left = cut.left();
            if left.is_any() {
                body(left, this.load(left));
            }
        }
    }

    /// The same part, for a separate loop over it. In 16 bits, the compiler would otherwise compute
    /// how the row is cut once for all loops, and the results would occupy registers from the first
    /// loop to the last.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn again(&self) -> Self {
        let row = if Self::HAS_PEELED { opaque(self.row.into()) as u32 } else { self.row };
        Part { row, ..*self }
    }

    /// As [`for_each`](Self::for_each), but calls `body` in one place: LLVM does not inline a large
    /// closure into two.
    ///
    /// # Safety
    /// As [`for_each`](Self::for_each).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn for_each_singly(&self, mut body: impl FnMut(Chunk, Vec16)) {
        let this = self.again();
        let cut = this.chunks();
        let (mut turn, step) = (0, cut.turn_bytes());
        let end = this.count(&cut) * step;
        while turn < end {
            let chunk = this.chunk(&cut, turn);
            // SAFETY: the caller's conditions.
            body(chunk, unsafe { this.load(chunk) });
            turn += step;
        }
    }

    /// The number of the lane's chunks.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn count(&self, cut: &Chunks) -> u32 {
        if self.is_aligned { cut.vectors() } else { cut.count() }
    }

    /// The lane's chunk in the turn from byte `turn` on, one of its [`count`](Self::count).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn chunk(&self, cut: &Chunks, turn: u32) -> Chunk {
        if self.is_aligned { cut.vector(turn) } else { cut.chunk(turn) }
    }

    /// Calls `body(chunks, vectors)` for two chunks of the lane at a time. If there is no second
    /// chunk, its vector has only the [padding](Self::padded_with).
    ///
    /// # Safety
    /// As [`for_each`](Self::for_each).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn for_each_two(&self, mut body: impl FnMut([Option<Chunk>; 2], [Vec16; 2])) {
        let cut = self.chunks();
        let (mut turn, step) = (0, cut.turn_bytes());
        let end = self.count(&cut) * step;
        while turn < end {
            let second = (turn + step < end).then(|| self.chunk(&cut, turn + step));
            let chunks = [Some(self.chunk(&cut, turn)), second];
            let mut vectors = [E::pack([self.padding; MAX_LANES]); 2];
            unrolled!(for k in 0..2; {
                if let Some(chunk) = chunks[k] {
                    // SAFETY: the caller's conditions.
                    vectors[k] = unsafe { self.load(chunk) };
                }
            });
            body(chunks, vectors);
            turn += 2 * step;
        }
    }

    /// The byte of shared memory at which a chunk begins.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn at(&self, chunk: Chunk) -> u32 {
        self.row + self.head() * Self::SIZE + chunk.at
    }

    /// # Safety
    /// As [`for_each`](Self::for_each).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(&self, chunk: Chunk) -> Vec16 {
        let at = self.at(chunk);
        // SAFETY: the caller's conditions.
        unsafe {
            if chunk.is_aligned {
                return self.shared.load_bytes::<16>(at);
            }
            let mut vector = E::pack([self.padding; MAX_LANES]);
            if !chunk.is_rest {
                self.for_each_word(Self::WORDS, |word| {
                    self.load_word(chunk, word, &mut vector);
                });
            } else {
                self.for_each_word(chunk.words, |word| {
                    self.load_word(chunk, word, &mut vector);
                });
                if Self::HAS_PEELED {
                    let halves = &mut vector.0[3];
                    if chunk.has_head {
                        let head = self.shared.word::<u16>(self.row, 0);
                        *halves = *halves & 0xFFFF_0000 | u32::from(head);
                    }
                    if chunk.has_tail {
                        let end = self.row + (self.cols - 1) * Self::SIZE;
                        let tail = self.shared.word::<u16>(end, 0);
                        *halves = *halves & 0xFFFF | u32::from(tail) << 16;
                    }
                }
            }
            vector
        }
    }

    /// # Safety
    /// As [`for_each`](Self::for_each); the chunk is the lane's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn store(&self, chunk: Chunk, vector: Vec16) {
        let at = self.at(chunk);
        // SAFETY: the caller's conditions.
        unsafe {
            if chunk.is_aligned {
                self.shared.store_bytes::<16>(at, vector);
                return;
            }
            if !chunk.is_rest {
                self.for_each_word(Self::WORDS, |word| self.store_word(chunk, word, vector));
            } else {
                self.for_each_word(chunk.words, |word| self.store_word(chunk, word, vector));
                if Self::HAS_PEELED {
                    let end = self.row + (self.cols - 1) * Self::SIZE;
                    let halves = vector.0[3];
                    if chunk.has_head {
                        self.shared.set_word(self.row, 0, halves as u16);
                    }
                    if chunk.has_tail {
                        self.shared.set_word(end, 0, (halves >> 16) as u16);
                    }
                }
            }
        }
    }

    /// The same part of a row of another tensor, if that row is aligned like this one, so that it
    /// can be accessed chunk by chunk.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn beside(&self, row: u32, chunk: Chunk) -> Option<Self> {
        let access = if chunk.is_aligned { 16 } else { Self::WORD };
        (row ^ self.row).is_multiple_of(access).then_some(Part { row, ..*self })
    }

    /// Loads a chunk's columns from the row that begins at byte `row`.
    ///
    /// # Safety
    /// As [`for_each`](Self::for_each), for that row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load_beside(&self, row: u32, chunk: Chunk) -> Vec16 {
        // SAFETY: the caller's conditions.
        unsafe {
            if let Some(beside) = self.beside(row, chunk) {
                return beside.load(chunk);
            }
            let mut elements = [E::LOWEST; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; {
                if let Some(column) = chunk.column::<E>(lane as u32, self.cols) {
                    elements[lane] = self.shared.element(row + column * Self::SIZE);
                }
            });
            E::pack(elements)
        }
    }

    /// Stores a chunk's columns to the row that begins at byte `row`.
    ///
    /// # Safety
    /// No other thread accesses these elements until the warp synchronises.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn store_beside(&self, row: u32, chunk: Chunk, vector: Vec16) {
        // SAFETY: the caller's condition.
        unsafe {
            if let Some(beside) = self.beside(row, chunk) {
                beside.store(chunk, vector);
                return;
            }
            unrolled!(for lane in 0..E::LANES as usize; {
                if let Some(column) = chunk.column::<E>(lane as u32, self.cols) {
                    let element = E::extract(vector, lane as u32);
                    self.shared.set_element(row + column * Self::SIZE, element);
                }
            });
        }
    }

    /// Calls `body` for the first `count` words of a chunk.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn for_each_word(&self, count: u32, mut body: impl FnMut(usize)) {
        unrolled!(for word in 0..Self::WORDS as usize; {
            if (word as u32) < count {
                body(word);
            }
        });
    }

    /// The address of a word of a chunk: a byte, and the number of words from there on. The words
    /// of 16-bit elements are adjacent, so that the number is a constant, which is part of the
    /// instruction.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn place(&self, chunk: Chunk, word: usize) -> (u32, u32) {
        let (at, word) = (self.at(chunk), word as u32);
        if Self::HAS_PEELED && !chunk.is_rest {
            (at, word)
        } else {
            (at - chunk.at + chunk.word_at(word), 0)
        }
    }

    /// # Safety
    /// As [`for_each`](Self::for_each).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_word(&self, chunk: Chunk, word: usize, vector: &mut Vec16) {
        let (at, number) = self.place(chunk, word);
        // SAFETY: the caller's conditions.
        unsafe {
            if Self::WORD == 8 {
                let bits = self.shared.word::<u64>(at, number);
                vector.0[2 * word] = bits as u32;
                vector.0[2 * word + 1] = (bits >> 32) as u32;
            } else {
                vector.0[word] = self.shared.word::<u32>(at, number);
            }
        }
    }

    /// # Safety
    /// As [`store`](Self::store).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_word(&self, chunk: Chunk, word: usize, vector: Vec16) {
        let (at, number) = self.place(chunk, word);
        // SAFETY: the caller's conditions.
        unsafe {
            if Self::WORD == 8 {
                let [low, high] = [vector.0[2 * word], vector.0[2 * word + 1]];
                self.shared.set_word(at, number, u64::from(high) << 32 | u64::from(low));
            } else {
                self.shared.set_word(at, number, vector.0[word]);
            }
        }
    }
}
