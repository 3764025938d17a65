//! Rows in the registers of a warp.

use super::*;
use kernels_gpu::abi::{peeled_group_threads, peeled_vectors_within};

#[test]
fn short_rows_are_packed_or_register_resident() {
    let regime = |rows, cols| samples(Pass::Forward, rows, cols, 4, kernels(cols)).regime;
    for cols in [1, 2, 10, 32, 60, 127, 129, 500 + 1, 1000, 1023] {
        assert_eq!(regime(262_144, cols), Regime::Packed, "{cols} columns");
    }
    assert_eq!([64, 96, 256, 512].map(|cols| regime(65536, cols)), [Regime::ShortWhole; 4]);
    assert_eq!([1025, 1216, 1407].map(|cols| regime(65536, cols)), [Regime::Packed; 3]);
    assert_eq!(regime(65536, 1409), Regime::Peeled);
    assert_ne!(regime(65536, 1220), Regime::Packed);
    // With one row more, the workspace does not have room for the partial sums of the blocks.
    let most = 32 * max_workers(1, ADDER_SHIFT) as usize;
    assert_eq!((regime(most, 128), regime(most + 1, 128)), (Regime::ShortWhole, Regime::Packed));
    assert_eq!(regime(0, 5), Regime::Packed);
}

/// A backward pass packs rows of less than 512 bytes if they would fill the shared memory of the
/// device six times or more.
#[test]
fn few_bytes_of_short_rows_are_register_resident() {
    let many = 6 * 132 * (228 << 10) / (64 * 4);
    let regime = |rows, cols| samples(Pass::Backward, rows, cols, 4, kernels(cols)).regime;
    assert_eq!((regime(many - 1, 64), regime(many, 64)), (Regime::ShortWhole, Regime::Packed));
    assert_eq!((regime(1000, 60), regime(1 << 20, 128)), (Regime::Packed, Regime::ShortWhole));
}

/// Rows are packed if they would leave an eighth of the registers empty. This holds for 16-bit rows
/// whose exponentials are computed, unless they take few turns, and for loss and gradients of f64.
#[test]
fn registers_that_are_not_full_are_packed_instead() {
    let regime = |pass, turns, cols: usize, bytes| {
        let rows = rows_of_turns(turns, cols * bytes) - 1;
        samples(pass, rows, cols, bytes, kernels(cols * bytes / 4)).regime
    };
    use Pass::{Backward, Forward, ForwardBackward};
    for (pass, turns, bytes, cols, expected) in [
        (Forward, 7, 2, [448, 456], [false, true]),
        (ForwardBackward, 7, 2, [448, 456], [false, true]),
        (ForwardBackward, 6, 2, [384, 448], [true, true]),
        (Backward, 7, 2, [384, 448], [true, true]),
        (ForwardBackward, 1, 8, [112, 114], [false, true]),
        (Backward, 7, 8, [96, 112], [true, true]),
        // Sums relative to a lagging center take fewer instructions.
        (Forward, 1, 8, [112, 128], [false, false]),
        (Forward, 7, 4, [96, 200], [true, true]),
        // The fewest bytes of a row.
        (Backward, 1, 8, [62, 64], [false, true]),
        (ForwardBackward, 7, 4, [60, 64], [false, true]),
    ] {
        let is_short = cols.map(|cols| regime(pass, turns, cols, bytes) == Regime::ShortWhole);
        assert_eq!(is_short, expected, "{pass:?}, {turns} turns, {cols:?} of {bytes} bytes");
    }
}

/// With label smoothing and from probabilities, fewer rows are faster in registers than with
/// classes alone.
#[test]
fn targets_with_a_share_for_every_class_are_packed_sooner() {
    use Pass::{Forward, ForwardBackward};
    use Target::{Class, Probabilities, Smoothed, Weighted};
    let is_short = |target, pass, turns, cols: usize, bytes| {
        let rows = rows_of_turns(turns, cols * bytes) - 1;
        let kernels = SamplesKernels { target, ..kernels(cols * bytes / 4) };
        samples(pass, rows, cols, bytes, kernels).regime == Regime::ShortWhole
    };
    // For each kind of target: of one turn, few, and many.
    for (pass, cols, bytes, of_classes, of_smoothed, of_probabilities) in [
        (Forward, 256, 4, [true, true, true], [true, true, false], [true, false, false]),
        (Forward, 64, 4, [true, true, true], [true, false, false], [true, false, false]),
        (Forward, 512, 2, [true, true, true], [true, true, false], [true, false, false]),
        (Forward, 192, 2, [true, true, false], [true, false, false], [true, false, false]),
        (ForwardBackward, 256, 4, [true; 3], [true; 3], [true; 3]),
        (ForwardBackward, 64, 4, [true; 3], [true, true, false], [true; 3]),
        (ForwardBackward, 96, 4, [true; 3], [true, true, false], [true, false, false]),
        (ForwardBackward, 512, 2, [true; 3], [true, true, false], [true; 3]),
        (ForwardBackward, 1024, 2, [true; 3], [true; 3], [true; 3]),
        (ForwardBackward, 128, 8, [true, false, false], [true, false, false], [true, true, false]),
    ] {
        for (target, expected) in [
            (Class, of_classes),
            (Smoothed, of_smoothed),
            (Weighted, of_smoothed),
            (Probabilities, of_probabilities),
        ] {
            let short = [1, 6, 7].map(|turns| is_short(target, pass, turns, cols, bytes));
            assert_eq!(short, expected, "{target:?}, {pass:?}, {cols} columns of {bytes} bytes");
        }
    }
}

/// Rows of f32 with smoothing and class weights that are too long to be packed are in registers
/// rather than staged.
#[test]
fn weighted_rows_of_f32_are_register_resident() {
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };
    let regime = |target, cols| {
        let kernels = SamplesKernels { target, staged: Some((device, 256)), ..kernels(cols) };
        samples(Pass::ForwardBackward, 1 << 15, cols, 4, kernels).regime
    };
    assert_eq!([2048, 4096].map(|cols| regime(Target::Weighted, cols)), [Regime::Registers; 2]);
    assert_eq!([1024, 4100].map(|cols| regime(Target::Weighted, cols)), [Regime::Staged; 2]);
    assert_eq!([2048, 4096].map(|cols| regime(Target::Smoothed, cols)), [Regime::Staged; 2]);
}

/// Loss and gradients of f64, of smoothed classes and of probabilities are staged, although the
/// rows are short enough to be packed.
#[test]
fn rows_that_are_staged_though_they_are_short_enough_to_be_packed() {
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };
    let of_classes =
        |cols| SamplesKernels { whole: false, staged: Some((device, 256)), ..kernels(cols) };
    let regime = |bytes, kernels| {
        samples(Pass::ForwardBackward, 1 << 18, 2400 / bytes, bytes, kernels).regime
    };
    let of_f32 = of_classes(600);
    assert_eq!(regime(4, of_f32), Regime::Packed);
    assert_eq!(regime(4, SamplesKernels { target: Target::Smoothed, ..of_f32 }), Regime::Staged);
    assert_eq!(regime(4, SamplesKernels { tensors: 2, ..of_f32 }), Regime::Staged);
    let of_f64 = samples(Pass::ForwardBackward, 1 << 18, 600, 8, of_classes(1200)).regime;
    assert_eq!(of_f64, Regime::Staged);
}

/// If there are kernels with a warp per row and eight vectors per lane, loss and gradients of f32
/// use them for rows of more than four vectors per lane. Other calls use them if rows fill the
/// registers or are few.
#[test]
fn rows_of_a_warp_are_register_resident_or_packed() {
    let few = 6 * 132 * (228 << 10) / 4096;
    let regime = |pass, rows, cols, bytes| {
        let kernels = SamplesKernels { warp_block: 256, ..kernels(cols * bytes / 4) };
        samples(pass, rows, cols, bytes, kernels).regime
    };
    for rows in [100, 1 << 19] {
        let of_f32 = |cols| regime(Pass::ForwardBackward, rows, cols, 4);
        assert_eq!([516, 1000, 1024].map(of_f32), [Regime::WarpWhole; 3]);
        assert_ne!(of_f32(1028), Regime::WarpWhole);
    }
    let forward = |rows, cols| regime(Pass::Forward, rows, cols, 4);
    assert_eq!(
        [few - 1, 2 * few].map(|rows| forward(rows, 1000)),
        [Regime::WarpWhole, Regime::Packed]
    );
    assert_eq!([few, 2 * few].map(|rows| forward(rows, 1024)), [Regime::WarpWhole; 2]);
    assert_eq!(forward(few, 544), Regime::WarpWhole);
    // With one row more, the workspace does not have room for the partial sums of the blocks.
    let most = 8 * max_workers(words_of_worker(2, 4), ADDER_SHIFT) as usize;
    assert_eq!(
        [most, most + 1].map(|rows| forward(rows, 1024)),
        [Regime::WarpWhole, Regime::Packed]
    );
    for pass in [Pass::Forward, Pass::ForwardBackward] {
        let of_16_bits = |rows, cols| regime(pass, rows, cols, 2);
        let many = if pass == Pass::Forward { 2 * few } else { 8 * few / 6 };
        assert_eq!([few, many].map(|rows| of_16_bits(rows, 1800)), [Regime::WarpWhole; 2]);
        assert_eq!(
            [(few, 1792), (2 * few, 1792)].map(|(rows, cols)| of_16_bits(rows, cols)),
            [Regime::WarpWhole, Regime::Packed]
        );
        assert_eq!(
            [1408, 1400].map(|cols| of_16_bits(few, cols)),
            [Regime::WarpWhole, Regime::Packed]
        );
        // Full registers, but many turns.
        let expected = if pass == Pass::Forward { Regime::WarpWhole } else { Regime::Packed };
        assert_eq!(of_16_bits(2 * few, 2048), expected);
        // All rows are resident at once.
        assert_eq!(of_16_bits(1100, 1400), Regime::WarpWhole);
    }
}

/// Kernels for rows that begin and end anywhere.
fn peeled_kernels(cols: usize) -> SamplesKernels {
    let kernels = kernels(cols);
    SamplesKernels { whole: false, short_peeled_block: 256, warp_peeled_block: 256, ..kernels }
}

/// The number of rows of `row_bytes` bytes that fill the device's shared memory `turns` times.
fn rows_of_turns(turns: usize, row_bytes: usize) -> usize {
    turns * 132 * (228 << 10) / row_bytes.next_multiple_of(16)
}

/// Rows of f32 or 16 bits that begin anywhere are in the registers of a warp or packed, depending
/// on how many registers they fill and how many turns they take.
#[test]
fn rows_that_begin_anywhere_are_register_resident_or_packed() {
    let regime = |pass, turns, cols: usize, bytes| {
        let kernels = peeled_kernels(cols * bytes / 4);
        // One row less than fills the device this many times.
        let rows = rows_of_turns(turns, cols * bytes) - 1;
        samples(pass, rows, cols, bytes, kernels).regime
    };
    for (pass, turns, bytes, cols, expected) in [
        (Pass::Forward, 1, 4, [283, 291], [false, true]),
        (Pass::ForwardBackward, 1, 4, [251, 257], [true, true]),
        (Pass::Forward, 4, 4, [379, 383], [false, true]),
        (Pass::ForwardBackward, 4, 2, [759, 767], [false, true]),
        (Pass::ForwardBackward, 5, 2, [767, 895], [false, false]),
        (Pass::Forward, 7, 4, [439, 447], [false, true]),
        (Pass::ForwardBackward, 7, 4, [447, 511], [false, false]),
        (Pass::Forward, 7, 2, [895, 1023], [false, false]),
    ] {
        let is_peeled = cols.map(|cols| regime(pass, turns, cols, bytes) == Regime::ShortPeeled);
        assert_eq!(is_peeled, expected, "{pass:?}, {turns} turns, {cols:?} of {bytes} bytes");
    }
    for (pass, turns, bytes, cols, expected) in [
        (Pass::Forward, 1, 4, [571, 577], [false, true]),
        (Pass::ForwardBackward, 1, 2, [1025, 1027], [true, true]),
        (Pass::ForwardBackward, 4, 4, [699, 703], [false, true]),
        (Pass::Forward, 4, 2, [1535, 1527], [true, false]),
        (Pass::Forward, 7, 4, [635, 639], [false, true]),
        (Pass::Forward, 7, 2, [1655, 1657], [false, true]),
        (Pass::ForwardBackward, 7, 2, [1783, 1785], [false, true]),
        (Pass::Forward, 7, 2, [2047, 2049], [true, false]),
    ] {
        let is_peeled = cols.map(|cols| regime(pass, turns, cols, bytes) == Regime::WarpPeeled);
        assert_eq!(is_peeled, expected, "{pass:?}, {turns} turns, {cols:?} of {bytes} bytes");
    }
}

/// Few rows stay in registers, however many of these are empty, because tiles of rows take longer
/// to begin and to end.
#[test]
fn few_rows_that_begin_anywhere_are_register_resident() {
    let regime = |pass, rows, cols: usize, bytes| {
        samples(pass, rows, cols, bytes, peeled_kernels(cols * bytes / 4)).regime
    };
    let many = 8 * 132 + 1;
    assert_eq!(
        [many - 1, many].map(|rows| regime(Pass::Forward, rows, 131, 4)),
        [Regime::ShortPeeled, Regime::Packed]
    );
    // Each of the threads of a row, 8 for f32 and 16 for 16 bits, must have a whole vector.
    assert_eq!(
        [33, 37].map(|cols| regime(Pass::ForwardBackward, 100, cols, 4)),
        [Regime::Packed, Regime::ShortPeeled]
    );
    assert_eq!(
        [135, 137].map(|cols| regime(Pass::Forward, 100, cols, 2)),
        [Regime::Packed, Regime::ShortPeeled]
    );
}

/// Up to two rows per multiprocessor take less time with a block each.
#[test]
fn few_longer_rows_with_gradients_have_a_block_each() {
    let regime = |pass, rows| samples(pass, rows, 1001, 4, peeled_kernels(1001)).regime;
    assert_eq!(
        [264, 265].map(|rows| regime(Pass::ForwardBackward, rows) == Regime::WarpPeeled),
        [false, true]
    );
    assert_eq!(regime(Pass::Forward, 10), Regime::WarpPeeled);
}

/// Rows one element off a boundary that begin in the same banks of shared memory.
#[test]
fn rows_that_collide_are_register_resident() {
    let regime = |cols: usize, bytes| {
        let kernels = SamplesKernels { collide: true, ..peeled_kernels(cols * bytes / 4) };
        samples(Pass::ForwardBackward, 1 << 18, cols, bytes, kernels).regime
    };
    assert_eq!([128, 256, 512].map(|cols| regime(cols, 4)), [Regime::ShortPeeled; 3]);
    assert_eq!([256, 1024].map(|cols| regime(cols, 2)), [Regime::ShortPeeled; 2]);
    assert_eq!([regime(1024, 4), regime(2048, 2)], [Regime::WarpPeeled; 2]);
    // These rows have a lane each.
    assert_eq!([64, 80].map(|cols| regime(cols, 4)), [Regime::Packed; 2]);
    assert_eq!(regime(84, 4), Regime::ShortPeeled);
}

/// With one row more, the workspace does not have room for the partial sums of the blocks.
#[test]
fn rows_of_more_blocks_than_have_room_are_packed() {
    let regime = |rows, cols| samples(Pass::Forward, rows, cols, 4, peeled_kernels(cols)).regime;
    let blocks = max_workers(words_of_worker(2, 4), ADDER_SHIFT) as usize;
    for (cols, block_rows, expected) in
        [(255, 16, Regime::ShortPeeled), (1001, 8, Regime::WarpPeeled)]
    {
        let most = block_rows * blocks;
        assert_eq!([regime(most, cols), regime(most + 1, cols)], [expected, Regime::Packed]);
    }
}

#[test]
fn gradients_that_begin_elsewhere_are_packed() {
    let kernels = SamplesKernels { alike: false, ..peeled_kernels(1001) };
    assert_eq!(samples(Pass::ForwardBackward, 1000, 1001, 4, kernels).regime, Regime::Packed);
}

/// Whatever the alignment of a row, a thread may load the vectors that it does not check, every
/// vector has a thread, and every element outside the vectors has a thread of its own.
#[test]
fn a_thread_has_its_vectors_and_one_element_beside() {
    for bytes in [2, 4] {
        let lanes = 16 / bytes;
        for cols in 1..=4096 / bytes {
            let plan = samples(Pass::ForwardBackward, 100, cols, bytes, {
                SamplesKernels { packed: None, ..peeled_kernels(cols) }
            });
            let per_thread = match plan.regime {
                Regime::ShortPeeled => 4,
                Regime::WarpPeeled => 8,
                _ => continue,
            };
            let threads = plan.rows.group_threads.get() as usize;
            assert!(threads >= peeled_group_threads(bytes) && 32 % threads == 0);
            assert!((1 << 8) >= plan.rows.launch.threads && plan.rows.launch.shared_bytes == 0);
            for head in 0..lanes {
                let (vectors, tail) = ((cols - head) / lanes, (cols - head) % lanes);
                assert!(head + tail <= threads, "{cols} columns, {head} before the first vector");
                assert!(vectors <= per_thread * threads);
                assert!(vectors >= peeled_vectors_within(per_thread) * threads);
            }
        }
    }
}
