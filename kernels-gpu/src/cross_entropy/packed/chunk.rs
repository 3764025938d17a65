//! Chunks of a row: the parts that a lane reads one at a time, each as one vector.

use crate::abi::WordSteps;
use crate::cross_entropy::pass::Classes;
use crate::element::Element;
use crate::row::Split;
use cuda_std::warp::WARP_SIZE;

/// Which elements of a row are in a chunk.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// The byte at which it begins, counted from the first word of the row (or vector, if it is
    /// one).
    pub(super) at: u32,
    /// Bytes between the beginnings of its words.
    pub(super) step: u32,
    /// The number of its words.
    pub(super) words: u32,
    /// The bytes of all words of the row, if it may be shifted: a word that would begin after them
    /// is one of the first two words of the row.
    end: u32,
    /// Elements of the row before its first word.
    head: u32,
    /// Whether it is a vector.
    pub(super) is_aligned: bool,
    /// Whether it is a part of the rest of the row. With 16-bit elements, the last two elements of
    /// its vector are the head and the tail of the row, if the chunk has them.
    pub(super) is_rest: bool,
    pub(super) has_head: bool,
    pub(super) has_tail: bool,
}

/// How a row is cut into chunks.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    pub(super) split: Split,
    /// Bytes of a word.
    pub(super) word: u32,
    /// Which words a lane has, as long as every lane has a whole chunk.
    pub(super) steps: WordSteps,
    /// Whether elements have 16 bits, so that a row may have a head and a tail.
    pub(super) has_edges: bool,
    /// The number of words of the row or, if chunks are vectors, of vectors.
    pub(super) units: u32,
    /// Elements of the row before its first word.
    pub(super) head: u32,
    /// Whether the row has an element after its last word.
    pub(super) has_tail: bool,
    /// As in [`Part`](super::part::Part).
    pub(super) order: u32,
    /// The byte of the first chunk of words, if the row may be [shifted](WordSteps::shifted): 8 if
    /// it is, so that its first two words are read last, otherwise 0.
    pub(super) shift: Option<u32>,
}

/// The [shift](Chunks::shift) of a row of `words` words. It is 0 if fewer than two words are left
/// after the whole turns, because a whole chunk would then have words from both ends of the row.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn shift_of(split: Split, steps: WordSteps, words: u32) -> u32 {
    let words_of_turn = (4 * WARP_SIZE) >> split.rows_shift;
    if words & (words_of_turn - 1) >= 2 { (split.slot & steps.shifted) * 8 } else { 0 }
}

impl Chunks {
    /// log₂ of the lanes that share the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn lanes_shift(&self) -> u32 {
        WARP_SIZE.trailing_zeros() - self.split.rows_shift
    }

    /// How many of `count` items this lane has, if they are dealt to the lanes in turn.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn share_of(&self, count: u32) -> u32 {
        let last_part = (1 << self.lanes_shift()) - 1;
        (count + last_part - self.split.part) >> self.lanes_shift()
    }

    /// Bytes of the chunks that the lanes of a row have in one turn. Turns are counted in bytes, so
    /// that the loops over turns need no shift.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn turn_bytes(&self) -> u32 {
        16 << self.lanes_shift()
    }

    /// Vectors of this lane, if chunks are vectors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn vectors(&self) -> u32 {
        self.share_of(self.units)
    }

    /// This lane's vector in the turn from byte `turn` on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn vector(&self, turn: u32) -> Chunk {
        // The number of the vector is (turn ÷ 16 + part) ^ order. A turn is a multiple of the
        // number of parts, so the sum is an XOR, too.
        let at = turn ^ ((self.split.part ^ self.order) * 16);
        Chunk { at, head: 0, is_aligned: true, ..self.whole() }
    }

    /// Words of a chunk.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn chunk_words(&self) -> u32 {
        16 / self.word
    }

    /// A whole chunk of adjacent words.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn whole(&self) -> Chunk {
        Chunk {
            at: 0,
            step: self.word,
            words: self.chunk_words(),
            end: self.shift.map_or(u32::MAX, |_| self.units * self.word),
            head: self.head,
            is_aligned: false,
            is_rest: false,
            has_head: false,
            has_tail: false,
        }
    }

    /// The byte of the first chunk of words.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn first(&self) -> u32 {
        self.shift.unwrap_or(0)
    }

    /// Turns in which every lane has a whole chunk of words.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn turns(&self) -> u32 {
        self.units >> (self.lanes_shift() + self.chunk_words().trailing_zeros())
    }

    /// This lane's chunk of words in one of the [`turns`](Self::turns), which begins at byte
    /// `turn`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn words(&self, turn: u32) -> Chunk {
        let WordSteps { word, lane, .. } = self.steps;
        Chunk { at: turn + self.split.part * lane + self.first(), step: word, ..self.whole() }
    }

    /// How many chunks of words this lane has, including the rest of the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn count(&self) -> u32 {
        self.turns() + u32::from(self.left().is_any())
    }

    /// This lane's chunk of words in the turn from byte `turn` on, one of its
    /// [`count`](Self::count): a whole one, or its part of the rest of the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn chunk(&self, turn: u32) -> Chunk {
        if turn < self.turns() * self.turn_bytes() { self.words(turn) } else { self.left() }
    }

    /// This lane's share of the rest of the row: of the words after those of
    /// [`turns`](Self::turns), of the head and of the tail. The last lane has head and tail,
    /// because it has fewer than four of the words.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn left(&self) -> Chunk {
        let shift = self.lanes_shift();
        let done = (self.turns() * self.chunk_words()) << shift;
        let at = (done + self.split.part) * self.word + self.first();
        let step = self.word << shift;
        let words = self.share_of(self.units - done);
        let is_last = self.split.part == (1 << shift) - 1;
        let [has_head, has_tail] =
            [self.head > 0, self.has_tail].map(|has| self.has_edges && is_last && has);
        Chunk { at, step, words, is_rest: true, has_head, has_tail, ..self.whole() }
    }
}

impl Chunk {
    /// Whether the chunk has any element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn is_any(&self) -> bool {
        self.words > 0 || self.has_head || self.has_tail
    }

    /// The columns of a whole chunk.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn columns<E: Element>(&self) -> Classes {
        let size = size_of::<E>() as u32;
        let step = if self.is_aligned || size == 2 { 1 } else { self.step / size };
        Classes { first: self.first_column::<E>(), step }
    }

    /// The column of the first element of the first word.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn first_column<E: Element>(&self) -> u32 {
        self.head + self.at / size_of::<E>() as u32
    }

    /// The byte of word `word`, counted from the first word of the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn word_at(&self, word: u32) -> u32 {
        let at = self.at + word * self.step;
        if self.is_rest && at >= self.end { at - self.end } else { at }
    }

    /// The column of element `lane` of the chunk's vector, if it has one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn column<E: Element>(&self, lane: u32, cols: u32) -> Option<u32> {
        let size = size_of::<E>() as u32;
        if size == 2 && (self.has_head || self.has_tail) && lane >= E::LANES - 2 {
            let is_head = lane == E::LANES - 2;
            let has = if is_head { self.has_head } else { self.has_tail };
            return has.then_some(if is_head { 0 } else { cols - 1 });
        }
        let elements = if size == 2 { 2 } else { 1 };
        let (word, within) = (lane / elements, lane % elements);
        let word_column = self.head + self.word_at(word) / size;
        (word < self.words).then_some(word_column + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Bf16, MAX_LANES};

    /// Checks that the lanes of a row together have each of its columns once. `head` is the number
    /// of elements before its first word.
    fn check<E: Element>(cols: u32, head: u32, [rows_shift, slot]: [u32; 2], steps: WordSteps) {
        let has_edges = size_of::<E>() == 2;
        let word = if size_of::<E>() == 8 { 8 } else { 4 };
        let of_word = word / size_of::<E>() as u32;
        let units = (cols - head) / of_word;
        let has_tail = head + units * of_word < cols;
        let mut times = vec![0; cols as usize];
        for lane in 0..WARP_SIZE >> rows_shift {
            let split = Split::new(rows_shift, lane << rows_shift | slot);
            let shift = has_edges.then(|| shift_of(split, steps, units));
            let chunks =
                Chunks { split, word, steps, has_edges, units, head, has_tail, order: 0, shift };
            for turn in 0..chunks.count() {
                let chunk = chunks.chunk(turn * chunks.turn_bytes());
                for lane in 0..(E::LANES as usize).min(MAX_LANES) {
                    if let Some(column) = chunk.column::<E>(lane as u32, cols) {
                        times[column as usize] += 1;
                    }
                }
            }
        }
        let what = format!("{cols} columns from {head}, {rows_shift}, {slot}, {steps:?}");
        assert!(times.iter().all(|&times| times == 1), "{what}: {times:?}");
    }

    #[test]
    fn lanes_have_each_column_once() {
        for rows_shift in 0..=5 {
            for cols in (1..80).chain([127, 255, 256, 257, 511, 700, 1001, 1023]) {
                let by_chunks = |word| WordSteps { word, lane: 16, shifted: 0 };
                let lanes = WARP_SIZE >> rows_shift;
                let by_words = |word| WordSteps { word: word * lanes, lane: word, shifted: 0 };
                for [of_f32, of_f64] in [[4, 8].map(by_chunks), [4, 8].map(by_words)] {
                    check::<f32>(cols, 0, [rows_shift, 0], of_f32);
                    check::<f64>(cols, 0, [rows_shift, 0], of_f64);
                }
                let shifted = WordSteps { shifted: 1, ..by_chunks(4) };
                for slot in 0..=rows_shift.min(1) {
                    check::<Bf16>(cols, 0, [rows_shift, slot], shifted);
                    check::<Bf16>(cols, 1, [rows_shift, slot], shifted);
                }
            }
        }
    }
}
