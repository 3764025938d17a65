//! Which bytes of packed rows the lanes of a warp read at a time, so that they are in different
//! banks of shared memory.

use super::{Rows, VECTOR};
use kernels_gpu::abi::WordSteps;

/// Which words of a row each of its `lanes` reads, if rows are `row_step` bytes apart in shared
/// memory. The lanes take turns either in words or in chunks, whichever has fewer bank conflicts.
///
/// H200, 2026-11-27, f32, ceiling ÷ ours with turns in chunks and with this rule:
///
/// - forward-backward: 901 columns 0.60 and 0.74, 1001 columns 0.62 and 0.81, 513 columns 0.82 and
///   0.79
/// - backward: 1001 columns 0.87 and 0.90
///
/// With turns in words, 511 columns forward are at 0.65 instead of 0.86.
///
/// Rows of 16-bit elements whose words would all begin in the same quarter of the banks are
/// [shifted](WordSteps::shifted). H200, 2026-11-30, bf16, one element off, ceiling ÷ ours without
/// and with this:
///
/// - forward: 216 columns 0.67 and 0.78, 504 columns 0.66 and 0.81, 1000 columns 0.63 and 0.80
/// - forward-backward: 216 columns 0.66 and 0.83, 504 columns 0.68 and 0.88, 1000 columns 0.65 and
///   0.86
/// - backward: 216 columns 0.93 and 0.95
pub(super) fn word_steps(rows: &Rows, row_step: usize, lanes: usize) -> WordSteps {
    let [by_words, by_chunks] = conflicts_of_words(rows, row_step, lanes);
    let word = word_of(rows);
    let takes_words = !has_edges(rows) && by_words <= by_chunks;
    let [word, lane] = if takes_words { [lanes * word, word] } else { [word, VECTOR] };
    let shifted = has_edges(rows) && row_step.is_multiple_of(VECTOR);
    WordSteps { word: word as u32, lane: lane as u32, shifted: shifted.into() }
}

/// The bytes of a word: four, or an element of f64.
fn word_of(rows: &Rows) -> usize {
    rows.element_bytes.max(4)
}

/// Whether rows may have a head and a tail, elements that fill no word; this is so for 16-bit
/// elements. Turns in words would cost these more instructions than there is time for: H200,
/// 2026-11-27, bf16 forward-backward, 257 columns, 0.68 of the ceiling without them and 0.63 with
/// them.
fn has_edges(rows: &Rows) -> bool {
    rows.element_bytes == 2
}

/// The [bank conflicts](bank_conflicts) of turns in words and of turns in chunks.
fn conflicts_of_words(rows: &Rows, row_step: usize, lanes: usize) -> [usize; 2] {
    let word = word_of(rows);
    [word, VECTOR].map(|lane_step| bank_conflicts(row_step, lanes, lane_step, word))
}

/// The bank conflicts of the words that [`word_steps`] chooses; 1 for rows that are read by
/// vectors, in an [order] without conflicts.
pub(super) fn fewest_conflicts(rows: &Rows, row_step: usize, lanes: usize) -> usize {
    if rows.access(rows.alignment) == VECTOR {
        return 1;
    }
    let [by_words, by_chunks] = conflicts_of_words(rows, row_step, lanes);
    if has_edges(rows) { by_chunks } else { by_words.min(by_chunks) }
}

/// The bank conflicts of words that `lanes` lanes of a row take in turns, one each; 1 for rows that
/// are read by vectors, in an [order] without conflicts.
pub(super) fn conflicts_by_words(rows: &Rows, row_step: usize, lanes: usize) -> usize {
    if rows.access(rows.alignment) == VECTOR {
        return 1;
    }
    bank_conflicts(row_step, lanes, word_of(rows), word_of(rows))
}

/// How many words of one bank of shared memory a warp reads at a time, at most, if `lanes` lanes
/// share a row, `lane_step` bytes apart, and rows are `row_step` bytes apart.
pub(super) fn bank_conflicts(
    row_step: usize,
    lanes: usize,
    lane_step: usize,
    word: usize,
) -> usize {
    let (rows, at_once) = (32 / lanes, 128 / word);
    let words_of_banks = |first_lane: usize| {
        let mut words = vec![0; at_once];
        for lane in first_lane..first_lane + at_once {
            let row = (lane % rows * row_step).next_multiple_of(word);
            words[(row + lane / rows * lane_step) / word % at_once] += 1;
        }
        words.into_iter().max()
    };
    (0..32).step_by(at_once).filter_map(words_of_banks).max().unwrap_or(1)
}

/// The order in which lanes read the vectors of their rows, a swizzle against bank conflicts; see
/// [`TileArgs::order_right`].
///
/// Shared memory serves eight lanes at a time, of 16 bytes each. They read from eight rows, or
/// several vectors of each of fewer rows, without a conflict if the numbers of their vectors differ
/// modulo eight. If rows are a multiple of 2ᵃ vectors apart, their first vectors differ only in
/// bits a and higher. So the bits of the row's number that do not show there are XORed into the
/// lower bits of the vector's number. Rows off a 16-byte boundary are read by 32 lanes at a time,
/// in narrower accesses: a bank then serves at most one of these for each word of a vector.
///
/// The XOR keeps a lane within its row only if the length of a row, and not just the distance of
/// rows, is a multiple of 2ᵃ vectors. If the order `rotates`, the bits are added to the vector's
/// number instead, modulo the whole vectors of the row.
pub(super) fn order(
    row_bytes: usize,
    row_step: usize,
    warp_rows: usize,
    rotates: bool,
) -> [u32; 3] {
    let a = (row_step / VECTOR).trailing_zeros().min(3);
    let stays_in_row = rotates || row_bytes.is_multiple_of(VECTOR << a);
    if !row_step.is_multiple_of(VECTOR) || !stays_in_row {
        return [0; 3];
    }
    let row_bits = warp_rows.trailing_zeros().min(3);
    let mut bits = (row_bits + a).saturating_sub(3);
    if rotates {
        // The vectors between the elements at the ends, which a row has at least.
        let vectors = (row_bytes - 2) / VECTOR;
        bits = bits.min(vectors.max(1).ilog2());
    }
    [3 - a, (1 << bits) - 1, 3 - row_bits]
}
