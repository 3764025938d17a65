//! Cross-entropy of rows of logits x and a target distribution q: Σ q (m + log Σ exp(x − m) −
//! x), where m is the largest logit of the row.
//!
//! If the target is a class y, with class weights w and label smoothing ε over C classes, q is
//! (1 − ε) w_y at y, plus ε/C w at every class. If the target is probabilities t, q is
//! w ((1 − ε) t + ε/C). A *vector* is 16 bytes of a row: what one load instruction reads.
//!
//! The kernels' conditions:
//! 1. `args` is as [`CrossEntropyArgs`](crate::abi::CrossEntropyArgs) says: every tensor that is
//!    not null has `rows` rows of `cols` elements in global memory, aligned for its type; results
//!    have type `E::Real`. `cols` is not 0.
//! 2. `workspace` satisfies [`Workspace::new`](crate::reduce::Workspace::new)'s conditions. A grid
//!    of `abi::grid_of_workers` has at most `abi::max_workers(words)` workers, where `words` is
//!    `abi::words_of_worker` of the sums that each worker publishes: 2, or 4 in a forward pass with
//!    a z-loss or with `totals`.
//! 3. No output overlaps another tensor that `args` names, with one exception: a gradient may be
//!    written in place, exactly over the tensor whose gradient it is.
//! 4. A block has this much dynamic shared memory: 16 bytes for each of `staged_vectors` in
//!    `forward_backward_long`; 16 bytes in `forward` and `forward_backward`; 16 bytes for each
//!    vector that `ROWS_BLOCK` threads have in registers in `forward_short_whole` and
//!    `forward_warp_whole`; a whole row in `forward_backward_staged`, and `part_vectors` vectors of
//!    one in `forward_backward_split`, both twice unless `staged_vectors` is 0.

use crate::element::Element;

mod backward;
mod finish;
mod forward;
mod label;
mod lagging;
mod lanes;
pub(crate) mod log_prob;
mod long;
mod online_softmax;
mod packed;
mod pass;
mod registers;
mod row_group;
mod short;
mod split;
mod staged;
mod staged_row;
mod stats;
mod stream;

pub(crate) use backward::{backward_registers, backward_short};
pub(crate) use forward::forward_long;
pub(crate) use lanes::alignment;
pub(crate) use long::forward_backward_long;
pub(crate) use packed::{computes, packed, row_lanes};
pub(crate) use registers::{forward_backward_registers, forward_registers};
pub(crate) use short::short;
pub(crate) use split::forward_backward_split;
pub(crate) use staged_row::forward_backward_staged;
pub(crate) use stream::forward_stream;

/// Kinds of targets: one class per row, one class per row with label smoothing, without class
/// weights or with, or probabilities of all classes. [`LOG_PROB`](mode::LOG_PROB) has one class per
/// row, and computes its log-probability and the row's entropy instead of a loss ([`log_prob`]).
/// Each kind has its own kernels, because what one kind computes would cost the others registers
/// and instructions.
pub(crate) mod mode {
    pub(crate) const CLASS: u32 = 0;
    pub(crate) const SMOOTHED: u32 = 1;
    pub(crate) const PROBABILITIES: u32 = 2;
    pub(crate) const LOG_PROB: u32 = 3;
    pub(crate) const WEIGHTED: u32 = 4;

    /// Whether there is label smoothing.
    pub(crate) const fn is_smoothed(mode: u32) -> bool {
        mode == SMOOTHED || mode == WEIGHTED
    }

    /// Whether the target has a share for every class.
    pub(crate) const fn is_dense(mode: u32) -> bool {
        is_smoothed(mode) || mode == PROBABILITIES
    }

    /// Whether the sum of the shares is computed from the arguments of `ex2` instead of the
    /// differences of logits from the center, which saves an instruction per element.
    pub(crate) const fn has_shifted_shares<R>(mode: u32) -> bool {
        is_smoothed(mode) && size_of::<R>() == 4
    }
    /// See [`abi::has_late_shares`](crate::abi::has_late_shares).
    pub(crate) const fn has_late_shares(mode: u32, element_bytes: usize) -> bool {
        is_smoothed(mode) && crate::abi::has_late_shares(element_bytes, mode == WEIGHTED)
    }

    /// Whether kernels that compute loss and gradients have code for an
    /// [optimistic](crate::abi::attempt::OPTIMISTIC) launch and a
    /// [retry](crate::abi::attempt::RETRY).
    pub(crate) const fn has_attempts(mode: u32, element_bytes: usize) -> bool {
        (mode == CLASS || mode == SMOOTHED)
            && element_bytes <= crate::abi::attempt::MOST_ELEMENT_BYTES
    }
}

/// The kernel entries for one kind of target (a [`mode`]). Names say how a row is computed:
///
/// * `_short_whole`: a warp, or a part of one, computes each row; the row is in registers, and its
///   length is a multiple of 16 bytes. `_warp_whole`: the same for longer rows, with a whole warp
///   per row and twice as many vectors per thread. `_short_peeled` and `_warp_peeled`: the same for
///   rows that begin and end at any element, if the gradients of a row are as far from a 16-byte
///   boundary as its logits are.
/// * `_packed`, `_lane_rows` and `_wide_rows`: a warp stages tiles of whole rows in shared memory;
///   several lanes compute each row, or (`_lane_rows`, `_wide_rows`) one. In `_lane_rows` the lane
///   has its row in registers.
/// * `forward` and `forward_backward`: one block per row; the row is in registers, at most
///   `$vectors` (with gradients `vectors_with_gradients`) vectors a thread. `forward_peeled` is for
///   rows that begin and end at any element, `forward_few` for grids of few rows: one vector a
///   thread.
/// * `forward_long`: one block per row, with one tile of the row at a time.
/// * `forward_backward_long`: the same, but the block has the first tile in registers, and stages
///   as much of the rest as fits in shared memory.
/// * `forward_backward_staged`: one block per row, which it stages in shared memory.
/// * `forward_backward_split`: a group of blocks per row, each of which stages a part of the row in
///   shared memory.
/// * `forward_stream`: rows are streamed through rings in shared memory.
/// * `backward`: one block per row. `backward_long`: several blocks per row, each with a part of it
///   in registers.
///
/// `$block` is the most threads of a block, for those kernels with one block per row whose blocks
/// may have other than 256 threads.
///
/// `$resident` blocks of a forward or backward kernel fit on a multiprocessor: as many as registers
/// allow without spills, because a stack alone makes short blocks a tenth slower.
macro_rules! kernels {
    (
        $loss:ident, $mode:ident, $vectors:literal by $block:literal, $resident:literal resident,
        streams $streams:tt, longs $longs:tt, lane rows $lanes:tt,
        wide rows $wides:tt and $wide_gradients:tt with gradients,
        staged $staged:tt, split $split:tt, in warps $warps:tt
    ) => {
        use crate::abi::{CrossEntropyArgs, PACKED_BLOCK, STREAM_BLOCK};
        use crate::cross_entropy::mode::$mode as MODE;
        #[allow(unused_imports)] // not every kind of target has every kernel
        use crate::cross_entropy::{
            alignment, backward_registers, backward_short, barriers_of_attempts, block,
            block_of_vectors, computes, few_block, forward_backward_long,
            forward_backward_registers, forward_backward_split, forward_backward_staged,
            forward_long, forward_registers, forward_stream, mode, packed, resident,
            resident_any_alignment, resident_lane_rows, resident_long, resident_packed,
            resident_short, resident_short_with_gradients, resident_warp_whole, resident_wide_rows,
            row_lanes, short, split_block, staged_barriers, staged_blocks, staged_flight,
            stream_blocks,
        };

        /// The most vectors of a row that a thread has in registers.
        pub const VECTORS: usize = $vectors;

        /// The most vectors of a row that a thread of `forward_backward` has in registers, by
        /// the bytes of an element. For 16-bit elements and class targets, registers suffice for
        /// the exponentials of twice as many vectors; a row then takes half as many warps, and
        /// so half the work that every warp repeats once a row.
        pub const fn vectors_with_gradients(element_bytes: usize) -> usize {
            if MODE == mode::CLASS && element_bytes == 2 { 2 * VECTORS } else { VECTORS }
        }

        /// The vectors that a thread of `forward_backward_long` has in registers, beside those
        /// that its block stages in shared memory, by the bytes of an element.
        pub const fn vectors_beside(element_bytes: usize) -> usize {
            if element_bytes == 2 { VECTORS } else { VECTORS.div_ceil(2) }
        }

        crate::table::kernels! {
            $loss, [f32, f64, f16, bf16],
            FORWARD_SHORT_WHOLE = forward_short_whole:
                short::<E, MODE, $vectors, false, { alignment::WARP_ROW }>,
                (CrossEntropyArgs), 256 by resident_short::<E>(MODE, $resident),
                3 barriers of [f32, f16, bf16];
            FORWARD_BACKWARD_SHORT_WHOLE = forward_backward_short_whole:
                short::<E, MODE, $vectors, true, { alignment::WARP_ROW }>,
                (CrossEntropyArgs), 256 by resident_short_with_gradients::<E>(MODE, $resident),
                6 barriers;
            BACKWARD_SHORT_WHOLE = backward_short_whole:
                backward_short::<E, MODE, $vectors>,
                (CrossEntropyArgs), 256 by resident::<E>($resident), 0 barriers;
            FORWARD_WARP_WHOLE = forward_warp_whole:
                short::<E, MODE, { 2 * $vectors }, false, { alignment::WARP_ROW }>,
                (CrossEntropyArgs), 256 by resident_warp_whole::<E>(false), 3 barriers of $warps;
            FORWARD_BACKWARD_WARP_WHOLE = forward_backward_warp_whole:
                short::<E, MODE, { 2 * $vectors }, true, { alignment::WARP_ROW }>,
                (CrossEntropyArgs), 256 by resident_warp_whole::<E>(true), 6 barriers of $warps;
            FORWARD_SHORT_PEELED = forward_short_peeled:
                short::<E, MODE, $vectors, false, { alignment::WARP_PEELED }>,
                (CrossEntropyArgs), 256 by resident_short::<E>(MODE, $resident),
                3 barriers of $warps;
            FORWARD_BACKWARD_SHORT_PEELED = forward_backward_short_peeled:
                short::<E, MODE, $vectors, true, { alignment::WARP_PEELED }>,
                (CrossEntropyArgs), 256 by resident_short_with_gradients::<E>(MODE, $resident),
                6 barriers of $warps;
            FORWARD_WARP_PEELED = forward_warp_peeled:
                short::<E, MODE, { 2 * $vectors }, false, { alignment::WARP_PEELED }>,
                (CrossEntropyArgs), 256 by resident_warp_whole::<E>(false), 3 barriers of $warps;
            FORWARD_BACKWARD_WARP_PEELED = forward_backward_warp_peeled:
                short::<E, MODE, { 2 * $vectors }, true, { alignment::WARP_PEELED }>,
                (CrossEntropyArgs), 256 by resident_warp_whole::<E>(true), 6 barriers of $warps;
            FORWARD_PACKED = forward_packed:
                packed::<E, MODE, { computes::LOSS }, { row_lanes::SEVERAL }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE, computes::LOSS),
                5 barriers;
            FORWARD_BACKWARD_PACKED = forward_backward_packed:
                packed::<E, MODE, { computes::BOTH }, { row_lanes::SEVERAL }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE, computes::BOTH),
                6 barriers;
            BACKWARD_PACKED = backward_packed:
                packed::<E, MODE, { computes::GRADIENTS }, { row_lanes::SEVERAL }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_packed::<E>(MODE, computes::GRADIENTS),
                0 barriers;
            FORWARD_LANE_ROWS = forward_lane_rows:
                packed::<E, MODE, { computes::LOSS }, { row_lanes::ONE }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_lane_rows::<E>(MODE, computes::LOSS),
                5 barriers of $lanes;
            FORWARD_BACKWARD_LANE_ROWS = forward_backward_lane_rows:
                packed::<E, MODE, { computes::BOTH }, { row_lanes::ONE }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_lane_rows::<E>(MODE, computes::BOTH),
                (barriers_of_attempts::<E>(MODE)) barriers of $lanes;
            BACKWARD_LANE_ROWS = backward_lane_rows:
                packed::<E, MODE, { computes::GRADIENTS }, { row_lanes::ONE }>,
                (CrossEntropyArgs),
                PACKED_BLOCK by resident_lane_rows::<E>(MODE, computes::GRADIENTS),
                0 barriers of $lanes;
            FORWARD_WIDE_ROWS = forward_wide_rows:
                packed::<E, MODE, { computes::LOSS }, { row_lanes::ONE_WIDE }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_wide_rows::<E>(computes::LOSS),
                5 barriers of $wides;
            FORWARD_BACKWARD_WIDE_ROWS = forward_backward_wide_rows:
                packed::<E, MODE, { computes::BOTH }, { row_lanes::ONE_WIDE }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_wide_rows::<E>(computes::BOTH),
                (barriers_of_attempts::<E>(MODE)) barriers of $wide_gradients;
            BACKWARD_WIDE_ROWS = backward_wide_rows:
                packed::<E, MODE, { computes::GRADIENTS }, { row_lanes::ONE_WIDE }>,
                (CrossEntropyArgs), PACKED_BLOCK by resident_wide_rows::<E>(computes::GRADIENTS),
                0 barriers of $wide_gradients;
            FORWARD = forward:
                forward_registers::<E, MODE, $vectors, false, { alignment::BLOCK_ROW }>,
                (CrossEntropyArgs), 256 by resident::<E>($resident), 3 barriers;
            FORWARD_PEELED = forward_peeled:
                forward_registers::<E, MODE, $vectors, false, { alignment::BLOCK_PEELED }>,
                (CrossEntropyArgs), 256 by resident::<E>($resident), 3 barriers of $warps;
            FORWARD_FEW = forward_few:
                forward_registers::<E, MODE, 1, true, { alignment::BLOCK_ROW }>,
                (CrossEntropyArgs), (few_block::<E>($block)) by 1, 3 barriers;
            FORWARD_LONG = forward_long:
                forward_long::<E, MODE>,
                (CrossEntropyArgs), 256 by resident_long::<E>($resident), 5 barriers of $longs;
            FORWARD_STREAM = forward_stream:
                forward_stream::<E, MODE>,
                (CrossEntropyArgs), STREAM_BLOCK by stream_blocks::<E>(MODE),
                3 barriers of $streams;
            FORWARD_BACKWARD = forward_backward:
                forward_backward_registers::<E, MODE, { vectors_with_gradients(size_of::<E>()) }>,
                (CrossEntropyArgs),
                (block_of_vectors::<E>($block, VECTORS, vectors_with_gradients(size_of::<E>())))
                by (if mode::is_dense(MODE) && size_of::<E>() == 4 { 2 } else { 1 }), 6 barriers;
            FORWARD_BACKWARD_LONG = forward_backward_long:
                forward_backward_long::<E, MODE, { vectors_beside(size_of::<E>()) }>,
                (CrossEntropyArgs), (block::<E>($block)) by 1, 8 barriers;
            FORWARD_BACKWARD_SPLIT = forward_backward_split:
                forward_backward_split::<E, MODE, { staged_flight::<E>(MODE, true) }>,
                (CrossEntropyArgs), (split_block::<E>(MODE)) by 2,
                (staged_barriers::<E>(MODE, 13)) barriers of $split;
            FORWARD_BACKWARD_STAGED = forward_backward_staged:
                forward_backward_staged::<E, MODE, { staged_flight::<E>(MODE, false) }>,
                (CrossEntropyArgs), 256 by staged_blocks::<E>(MODE),
                (staged_barriers::<E>(MODE, 10)) barriers of $staged;
            BACKWARD = backward:
                backward_registers::<E, MODE, $vectors, { alignment::BLOCK_ROW }>,
                (CrossEntropyArgs), 256 by resident::<E>($resident), 1 barriers;
            BACKWARD_LONG = backward_long:
                backward_registers::<E, MODE, $vectors, { alignment::LINE }>,
                (CrossEntropyArgs), 256 by resident_any_alignment::<E>($resident), 1 barriers;
        }
    };
}
pub(crate) use kernels;

/// Resident blocks on a multiprocessor: half as many for f64, whose elements take two registers
/// each.
pub(crate) const fn resident<E: Element>(blocks: u32) -> u32 {
    if size_of::<E>() == 8 { blocks.div_ceil(2) } else { blocks }
}

/// Barriers of kernels with one lane per row that compute loss and gradients. Kernels that can be
/// launched as a retry have three more, around the turns of the retry.
pub(crate) const fn barriers_of_attempts<E: Element>(mode: u32) -> u32 {
    if mode::has_attempts(mode, size_of::<E>()) { 9 } else { 6 }
}

/// Resident blocks of the `_packed` kernels: as many as registers allow. Some kernels spill a few
/// bytes, because they were slower with one block fewer.
pub(crate) const fn resident_packed<E: Element>(mode: u32, computes: u32) -> u32 {
    match mode {
        mode::PROBABILITIES if size_of::<E>() == 2 => 4,
        mode::PROBABILITIES if size_of::<E>() == 4 && computes == computes::BOTH => 4,
        _ if size_of::<E>() < 8 => 5,
        mode::PROBABILITIES if size_of::<E>() == 8 => 3,
        _ if computes == computes::GRADIENTS => 6,
        _ => 4,
    }
}

/// Resident blocks of the `_lane_rows` kernels: as many as registers allow (ptxas 13.0, sm_90).
/// Some kernels spill a few bytes, because they were slower with one block fewer.
pub(crate) const fn resident_lane_rows<E: Element>(mode: u32, computes: u32) -> u32 {
    if mode == mode::PROBABILITIES && computes != computes::LOSS {
        // A lane has two rows, of logits and of probabilities.
        return match (computes, size_of::<E>()) {
            (computes::GRADIENTS, 2 | 4) | (_, 2) => 4,
            _ => 3,
        };
    }
    if mode::is_smoothed(mode) && computes != computes::GRADIENTS {
        // Beside its other values, a lane has the share of each class: with class weights and
        // gradients, six blocks spill up to 544 bytes. Five spill less, but are slower: H200,
        // 2026-11-29, f16, ceiling ÷ ours with six and with five, 8 columns 0.51 and 0.49, 16
        // columns 0.68 and 0.65.
        return match (computes, size_of::<E>()) {
            (computes::LOSS, 8) => 5,
            (_, 8) => 4,
            _ => 6,
        };
    }
    match (computes, size_of::<E>()) {
        (computes::BOTH | computes::GRADIENTS, 8) => 4,
        (_, 8) => 6,
        _ => 7,
    }
}

/// Resident blocks of the `_wide_rows` kernels: as many as registers allow without spills.
pub(crate) const fn resident_wide_rows<E: Element>(computes: u32) -> u32 {
    match (computes, size_of::<E>()) {
        (computes::GRADIENTS, 8) => 5,
        (computes::BOTH, _) => 6,
        _ => 7,
    }
}

/// Resident blocks of the `_stream` kernels: as many as registers allow without spills.
pub(crate) const fn stream_blocks<E: Element>(mode: u32) -> u32 {
    match (mode, size_of::<E>()) {
        (mode::LOG_PROB, 8) | (mode::PROBABILITIES, 2 | 8) => 1,
        _ => 2,
    }
}

/// Resident blocks of the `_staged` kernels: as many as registers allow without spills, but in f32
/// the kernel for smoothing with class weights spills to a stack of 16 bytes (ptxas 13.5, sm_90).
pub(crate) const fn staged_blocks<E: Element>(mode: u32) -> u32 {
    if mode::is_dense(mode) && !mode::has_late_shares(mode, size_of::<E>()) { 2 } else { 3 }
}

/// The barriers of a kernel of staged rows. `of_classes` is their number for class targets, whose
/// logits need one pass. With probabilities there is one barrier less: no row is ignored, so the
/// branch for ignored rows is left out, which has one. f64 and targets whose shares the statistics
/// sum need two passes over the logits, with one more barrier between them. Late shares have a
/// barrier to sum them over the block, and four more to sum the class weights over the grid.
pub(crate) const fn staged_barriers<E: Element>(mode: u32, of_classes: u32) -> u32 {
    let has_late_shares = mode::has_late_shares(mode, size_of::<E>());
    let has_two_passes = size_of::<E>() == 8 || mode::is_dense(mode) && !has_late_shares;
    let of_two_passes = if has_two_passes { 1 } else { 0 };
    let of_ignored = if mode == mode::PROBABILITIES { 1 } else { 0 };
    let of_late_shares = match mode {
        _ if !has_late_shares => 0,
        mode::WEIGHTED => 5,
        _ => 1,
    };
    of_classes + of_two_passes + of_late_shares - of_ignored
}

/// Vectors that a thread of the `_staged` and, with `is_split`, the `_split` kernels computes at a
/// time. If the target has a share for every class that the statistics sum, they are fewer: fewer
/// vectors then remain at the end of a row, where they are computed one by one. H200, 2026-11-28,
/// ceiling ÷ ours with four and with two: f16 from probabilities, 3608 columns 0.82 and 0.86,
/// 23,888 columns 0.85 and 0.91. But f64 with smoothing, 3143 columns 0.63 and 0.62.
///
/// In 16 bits with class weights, the staged kernel would spill with four. H200, 2026-11-30: bf16,
/// 1423 columns 0.46 and 0.50, 2048 columns 0.68 and 0.70, 32,768 columns 0.58 and 0.74, but 8192
/// columns 0.72 and 0.71; split rows of 131,072 columns 0.67 and 0.61; f32, 2048 columns 0.82 and
/// 0.75.
pub(crate) const fn staged_flight<E: Element>(mode: u32, is_split: bool) -> usize {
    let has_late_shares = mode::has_late_shares(mode, size_of::<E>());
    let has_share_sums = mode::is_dense(mode) && !has_late_shares;
    let few_are_faster = has_share_sums && (mode == mode::PROBABILITIES || size_of::<E>() < 8);
    let would_spill = mode == mode::WEIGHTED && size_of::<E>() == 2 && !is_split;
    if few_are_faster || would_spill { 2 } else { 4 }
}

/// The most threads of a `_split` block: as many as registers allow without spills, with two blocks
/// on a multiprocessor.
pub(crate) const fn split_block<E: Element>(mode: u32) -> u32 {
    match mode {
        mode::PROBABILITIES => 256,
        mode::SMOOTHED | mode::WEIGHTED if size_of::<E>() == 8 => 256,
        _ => 320,
    }
}

/// Whether registers allow one block more than [`resident`] of a kernel with one row group per row:
/// the kernel is small, and its elements do not take two registers each.
const fn has_spare_registers<E: Element>(blocks: u32) -> bool {
    blocks > 4 && size_of::<E>() < 8
}

/// Resident blocks of `forward_short_whole`. For class targets, 16-bit elements allow one block
/// less, because a vector is widened to eight registers; kernels whose target has a share for every
/// class widen one vector at a time. Where registers are left over, one more block makes short rows
/// a tenth faster.
pub(crate) const fn resident_short<E: Element>(mode: u32, blocks: u32) -> u32 {
    let widens = size_of::<E>() == 2 && blocks > 1 && !mode::is_dense(mode);
    let fewer = if widens { blocks - 1 } else { resident::<E>(blocks) };
    fewer + has_spare_registers::<E>(blocks) as u32
}

/// Resident blocks of `forward_backward_short_whole` and `_short_peeled`. For class targets a row's
/// exponentials are in registers too, so that there are as many blocks as [`resident_short`]
/// returns for one block less (f64: for half as many); where registers are left over, one more.
/// With that one, `_short_peeled` spills up to 40 bytes on sm_90 (ptxas 13.0); with one block less
/// it was not measured.
pub(crate) const fn resident_short_with_gradients<E: Element>(mode: u32, blocks: u32) -> u32 {
    if mode::is_dense(mode) {
        return resident::<E>(blocks) - (size_of::<E>() == 2) as u32;
    }
    let fewer = if size_of::<E>() == 8 { blocks / 2 } else { 1 };
    let with_exps = if blocks > fewer { resident_short::<E>(mode, blocks - fewer) } else { 1 };
    with_exps + has_spare_registers::<E>(blocks) as u32
}

/// Resident blocks of the `_warp_whole` kernels: as many as registers allow without spills. In f32,
/// one block more, which spills on other devices, was not faster: H200, 2026-11-28, 65536×1000
/// forward-backward 0.94 of the ceiling, instead of 0.96.
pub(crate) const fn resident_warp_whole<E: Element>(with_gradients: bool) -> u32 {
    let for_losses = if size_of::<E>() == 2 { 3 } else { 4 };
    for_losses - with_gradients as u32
}

/// Resident blocks of `forward_long`, which has one tile of a row in registers: one more for 32-bit
/// elements, because a vector has only four of them.
pub(crate) const fn resident_long<E: Element>(blocks: u32) -> u32 {
    if size_of::<E>() == 4 { blocks + 1 } else { resident::<E>(blocks) }
}

/// Resident blocks of `backward_long`, whose rows may have peeled elements. In f64 it is limited by
/// arithmetic, and three blocks rather than two hide a fifth of its time (H200, 2026-11-25,
/// 16339×8191: 749 µs with two, 602 µs with three).
pub(crate) const fn resident_any_alignment<E: Element>(blocks: u32) -> u32 {
    match size_of::<E>() {
        8 => 3,
        _ if blocks > 4 => 4,
        _ => blocks,
    }
}

/// The most threads of a block that has a row in registers: half as many for f64, whose elements
/// take two registers each.
pub(crate) const fn block<E: Element>(threads: u32) -> u32 {
    match size_of::<E>() {
        8 => threads / 2,
        _ => threads,
    }
}

/// The most threads of a block whose threads have `per_thread` vectors each instead of `vectors`,
/// so that the longest row stays the same.
pub(crate) const fn block_of_vectors<E: Element>(
    threads: u32,
    vectors: usize,
    per_thread: usize,
) -> u32 {
    block::<E>(threads) * vectors as u32 / per_thread as u32
}

/// The most threads of a block of `forward_few`. Rows that would need more threads are faster with
/// fewer threads that have more vectors each: 1024 rows of 4096 f32 take half the time.
pub(crate) const fn few_block<E: Element>(threads: u32) -> u32 {
    const MOST: u32 = 512;
    let threads = block::<E>(threads);
    if threads < MOST { threads } else { MOST }
}
