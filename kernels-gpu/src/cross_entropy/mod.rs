//! Cross-entropy of rows of logits x and a target distribution q: Σ q (m + log Σ exp(x − m) − x), m
//! the largest logit. With a class y as the target, weights w and smoothing ε over C classes, q is
//! (1 − ε) w_y at y plus ε/C w; with probabilities t it is w ((1 − ε) t + ε/C).
//!
//! The kernels' conditions:
//! 1. `args` is as [`CrossEntropyArgs`](crate::abi::CrossEntropyArgs) says: tensors that are not
//!    null have `rows` rows of `cols` elements in global memory, aligned for their type; results
//!    are of `E::Real`. `cols` is not 0.
//! 2. `workspace` satisfies [`Workspace::new`](crate::reduce::Workspace::new)'s conditions. Of a
//!    grid of `abi::grid_of_workers`, the pieces are at most `abi::max_workers` of the words that
//!    each leaves: for 2 sums, but of a forward pass no fewer than it has, 4 with a z-loss or with
//!    `totals`.
//! 3. What is written overlaps nothing else that `args` names, but a gradient may lie exactly over
//!    the tensor that it is the gradient of.
//! 4. A block of `forward_backward_long` has `staged_vectors` times 16 bytes of dynamic shared memory,
//!    one of `forward` and of `forward_backward` 16, one of `forward_short` and its like 16 for
//!    each vector that `ROWS_BLOCK` threads hold.

use crate::element::Element;

mod backward;
mod finish;
mod forward;
mod label;
mod lanes;
mod long;
mod packed;
mod pass;
mod registers;
mod row_group;
mod short;
mod staged;
mod stats;
mod stream;

pub(crate) use backward::{backward_registers, backward_short};
pub(crate) use forward::forward_long;
pub(crate) use lanes::alignment;
pub(crate) use long::forward_backward_long;
pub(crate) use packed::{computes, packed};
pub(crate) use registers::{forward_backward_registers, forward_registers};
pub(crate) use short::short;
pub(crate) use stream::forward_stream;

/// What targets are: a class, a class that label smoothing leaves a part of what it was,
/// probabilities of all classes. Each has kernels of its own: what the one needs costs the others
/// registers.
pub(crate) mod mode {
    pub(crate) const CLASS: u32 = 0;
    pub(crate) const SMOOTHED: u32 = 1;
    pub(crate) const PROBABILITIES: u32 = 2;
}

/// The entries for targets of a [`mode`]. `_short` kernels hold rows in the registers of a warp,
/// `_whole` those that are whole vectors, `_many` so many that a block takes some one after the
/// other: in a loop, what each finishes with is computed by all warps before the first. `forward`
/// and `forward_backward` hold them in a block's, at most `$held` vectors of 16 bytes a thread, or
/// `vectors_with_gradients`. `forward_long` holds a tile of a row at a time; `forward_backward_long`
/// stages what it can of what is behind the first in shared memory; a block of `backward_long` holds
/// a part of a row. `$resident` blocks of a forward or backward kernel have room on a
/// multiprocessor, as many as there are registers for without a stack: one is enough to make short
/// blocks a tenth slower.
macro_rules! kernels {
    ($loss:ident, $mode:ident, $held:literal by $block:literal, $resident:literal resident, streams $streams:tt, lane rows $lanes:tt) => {
        use crate::abi::{CrossEntropyArgs, PACKED_BLOCK, STREAM_BLOCK};
        use crate::cross_entropy::mode::$mode as MODE;
        #[allow(unused_imports)] // not every kind of targets has every kernel
        use crate::cross_entropy::{
            backward_registers, block, block_of_vectors, forward_backward_registers, forward_backward_long, forward_registers, forward_long, forward_stream, stream_blocks, packed, resident_packed, resident_lane_rows, computes, short, backward_short, resident_short, resident_short_exps_whole,
            few_block, alignment, mode, resident, resident_anyhow, resident_long,
        };

        /// Vectors of 16 bytes of a row that a thread holds, at most.
        pub const VECTORS: usize = $held;

        /// The same, of a row of which a block computes gradients, by the bytes of an element. Of
        /// 16 bits twice as many, where there are registers for their exponentials: a row has half
        /// as many warps then, and each does the same once a row.
        pub const fn vectors_with_gradients(element_bytes: usize) -> usize {
            if MODE == mode::CLASS && element_bytes == 2 { 2 * VECTORS } else { VECTORS }
        }

        /// The same, of a row of which a block stages others in shared memory, by the bytes of an
        /// element.
        pub const fn vectors_beside(element_bytes: usize) -> usize {
            if element_bytes == 2 { VECTORS } else { VECTORS.div_ceil(2) }
        }

        crate::table::kernels! {
            $loss, [f32, f64, f16, bf16],
            FORWARD_SHORT_WHOLE = forward_short_whole: short::<E, MODE, $held, { alignment::WARP_ROW }, false, false>, (CrossEntropyArgs), 256 by resident_short::<E>($resident), 3 barriers;
            FORWARD_BACKWARD_SHORT_WHOLE = forward_backward_short_whole: short::<E, MODE, $held, { alignment::WARP_ROW }, true, false>, (CrossEntropyArgs), 256 by resident_short_exps_whole::<E>($resident), 6 barriers;
            BACKWARD_SHORT_WHOLE = backward_short_whole: backward_short::<E, MODE, $held, { alignment::WARP_ROW }>, (CrossEntropyArgs), 256 by resident::<E>($resident), 0 barriers;
            FORWARD_PACKED = forward_packed: packed::<E, MODE, { computes::LOSS }, false>, (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE), 5 barriers;
            FORWARD_BACKWARD_PACKED = forward_backward_packed: packed::<E, MODE, { computes::BOTH }, false>, (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE), 6 barriers;
            BACKWARD_PACKED = backward_packed: packed::<E, MODE, { computes::GRADIENTS }, false>, (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE), 0 barriers;
            FORWARD_LANE_ROWS = forward_lane_rows: packed::<E, MODE, { computes::LOSS }, true>, (CrossEntropyArgs), PACKED_BLOCK by resident_lane_rows::<E>(computes::LOSS), 5 barriers of $lanes;
            FORWARD_BACKWARD_LANE_ROWS = forward_backward_lane_rows: packed::<E, MODE, { computes::BOTH }, true>, (CrossEntropyArgs), PACKED_BLOCK by resident_lane_rows::<E>(computes::BOTH), 6 barriers of $lanes;
            BACKWARD_LANE_ROWS = backward_lane_rows: packed::<E, MODE, { computes::GRADIENTS }, true>, (CrossEntropyArgs), PACKED_BLOCK by resident_lane_rows::<E>(computes::GRADIENTS), 0 barriers of $lanes;
            FORWARD = forward: forward_registers::<E, MODE, $held, false>, (CrossEntropyArgs), 256 by resident::<E>($resident), 3 barriers;
            FORWARD_FEW = forward_few: forward_registers::<E, MODE, 1, true>, (CrossEntropyArgs), (few_block::<E>($block)) by 1, 3 barriers;
            FORWARD_LONG = forward_long: forward_long::<E, MODE>, (CrossEntropyArgs), 256 by resident_long::<E>($resident), 5 barriers;
            FORWARD_STREAM = forward_stream: forward_stream::<E, MODE>, (CrossEntropyArgs), STREAM_BLOCK by stream_blocks::<E>(MODE), 6 barriers of $streams;
            FORWARD_BACKWARD = forward_backward: forward_backward_registers::<E, MODE, { vectors_with_gradients(size_of::<E>()) }>, (CrossEntropyArgs), (block_of_vectors::<E>($block, VECTORS, vectors_with_gradients(size_of::<E>()))) by 1, 6 barriers;
            FORWARD_BACKWARD_LONG = forward_backward_long: forward_backward_long::<E, MODE, { vectors_beside(size_of::<E>()) }>, (CrossEntropyArgs), (block::<E>($block)) by 1, 8 barriers;
            BACKWARD = backward: backward_registers::<E, MODE, $held, { alignment::BLOCK_ROW }>, (CrossEntropyArgs), 256 by resident::<E>($resident), 1 barriers;
            BACKWARD_LONG = backward_long: backward_registers::<E, MODE, $held, { alignment::LINE }>, (CrossEntropyArgs), 256 by resident_anyhow::<E>($resident), 1 barriers;
        }
    };
}
pub(crate) use kernels;

/// Blocks on a multiprocessor: half as many for f64, whose elements take two registers each.
pub(crate) const fn resident<E: Element>(blocks: u32) -> u32 {
    if size_of::<E>() == 8 { blocks.div_ceil(2) } else { blocks }
}

/// Blocks of the kernels of packed rows on a multiprocessor: for as many there are registers
/// without spills.
pub(crate) const fn resident_packed<E: Element>(mode: u32) -> u32 {
    match mode {
        mode::CLASS if size_of::<E>() < 8 => 5,
        mode::PROBABILITIES if size_of::<E>() == 8 => 3,
        _ => 4,
    }
}

/// Blocks of the kernels with a lane per row that a multiprocessor has registers for, without spills
/// (ptxas 13.0, sm_90).
pub(crate) const fn resident_lane_rows<E: Element>(computes: u32) -> u32 {
    match (computes, size_of::<E>()) {
        (computes::BOTH, 8) => 4,
        (computes::BOTH, _) => 5,
        (_, 8) => 6,
        _ => 7,
    }
}

/// Blocks of the streaming kernels that a multiprocessor has registers for, without spills.
pub(crate) const fn stream_blocks<E: Element>(mode: u32) -> u32 {
    match (mode, size_of::<E>()) {
        (mode::SMOOTHED, 8) | (mode::PROBABILITIES, 2 | 8) => 1,
        _ => 2,
    }
}

/// Whether there is room for many, of which each element does not take two registers.
const fn are_many<E: Element>(blocks: u32) -> bool {
    blocks > 4 && size_of::<E>() < 8
}

/// [`resident`] of kernels that hold rows: of elements of 16 bits one less, for a vector has eight.
/// Where there is room for many, one more: short rows are done the sooner, by a tenth.
pub(crate) const fn resident_short<E: Element>(blocks: u32) -> u32 {
    let fewer = if size_of::<E>() == 2 && blocks > 1 { blocks - 1 } else { resident::<E>(blocks) };
    fewer + are_many::<E>(blocks) as u32
}

/// [`resident_short`] of those that hold the exponentials too: one less, and of float64 half as
/// many; where there is room for many, one more.
pub(crate) const fn resident_short_exps_whole<E: Element>(blocks: u32) -> u32 {
    let fewer = if size_of::<E>() == 8 { blocks / 2 } else { 1 };
    let of_exps = if blocks > fewer { resident_short::<E>(blocks - fewer) } else { 1 };
    of_exps + are_many::<E>(blocks) as u32
}

/// [`resident`] of those that hold a tile at a time: of elements of 32 bits, of which a vector has
/// four, one more.
pub(crate) const fn resident_long<E: Element>(blocks: u32) -> u32 {
    if size_of::<E>() == 4 { blocks + 1 } else { resident::<E>(blocks) }
}

/// Blocks of those that make gradients of rows that have peeled elements. In f64 they wait for arithmetic:
/// three blocks rather than two hide a fifth of the time (H200, 2026-11-25, 16339×8191: 749 and
/// 602 µs).
pub(crate) const fn resident_anyhow<E: Element>(blocks: u32) -> u32 {
    match size_of::<E>() {
        8 => 3,
        _ if blocks > 4 => 4,
        _ => blocks,
    }
}

/// The most threads of a block that holds a row: of float64 half as many.
pub(crate) const fn block<E: Element>(threads: u32) -> u32 {
    match size_of::<E>() {
        8 => threads / 2,
        _ => threads,
    }
}

/// The same of one of which each thread holds `held` vectors, not `vectors`: of the same rows.
pub(crate) const fn block_of_vectors<E: Element>(threads: u32, vectors: usize, held: usize) -> u32 {
    block::<E>(threads) * vectors as u32 / held as u32
}

/// The same of a block that takes one of few rows. Beyond, fewer threads are sooner done: with 1024
/// rows of 4096 f32 in half the time.
pub(crate) const fn few_block<E: Element>(threads: u32) -> u32 {
    const MOST: u32 = 512;
    let threads = block::<E>(threads);
    if threads < MOST { threads } else { MOST }
}
