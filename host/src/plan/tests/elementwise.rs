//! Launches of elementwise losses.

use super::*;
use kernels_gpu::abi::{INDEXED_FLIGHT, IndexedArgs, MAX_PARTIALS, ROWS_BLOCK, max_blocks};

const DENSE: Dense = Dense { threads: 512, heavy: false };

#[test]
fn a_launch_has_a_block_even_for_nothing() {
    for pass in PASSES {
        assert_eq!(elementwise(pass, 0, 4, DENSE).blocks, 1);
        assert_eq!(elementwise(pass, 1, 4, DENSE).blocks, 1);
    }
}

#[test]
fn a_launch_that_sums_has_room_for_its_partial_sums() {
    for len in (0..45).map(|power| 1 << power) {
        for element_bytes in [2, 4, 8] {
            assert!(elementwise(Pass::Forward, len, element_bytes, DENSE).blocks <= max_blocks(1));
            assert!(
                elementwise(Pass::ForwardBackward, len, element_bytes, DENSE).blocks
                    <= max_blocks(1)
            );
        }
    }
}

#[test]
fn small_inputs_get_many_blocks() {
    let launch = elementwise(Pass::Forward, 128 * 1000, 4, DENSE);
    assert_eq!((launch.blocks, launch.threads), (125, 128));
}

#[test]
fn large_inputs_get_large_blocks() {
    let launch = elementwise(Pass::Forward, 1 << 30, 4, DENSE);
    assert_eq!((launch.blocks, launch.threads), (8448, 512));
    let launch = elementwise(Pass::ForwardBackward, 1 << 30, 4, DENSE);
    assert_eq!((launch.blocks, launch.threads), (33792, 512));
    let launch = elementwise(Pass::Backward, 1 << 30, 4, DENSE);
    assert_eq!((launch.blocks, launch.threads), (262_144, 512));
}

/// The dense kernels find their full tiles with a mask, so their blocks have a power of two of
/// threads.
#[test]
fn dense_blocks_have_a_power_of_two_of_threads() {
    for pass in [Pass::Forward, Pass::ForwardBackward, Pass::Backward] {
        for (len, element_bytes) in
            (0..40).flat_map(|shift| [2, 4, 8].map(|bytes| (3_usize << shift, bytes)))
        {
            let launch = elementwise(pass, len, element_bytes, DENSE);
            assert!(launch.threads.is_power_of_two(), "{pass:?}, {len}: {}", launch.threads);
            assert!(backward_by_row(len, element_bytes).threads.is_power_of_two());
        }
    }
}

/// A pass that writes is faster with many short-lived blocks. A loss with more arithmetic per byte
/// is slower with so many, most of all for 16-bit elements, where the pass with gradients also has
/// small blocks.
#[test]
fn losses_of_more_arithmetic_get_fewer_blocks() {
    let heavy = Dense { heavy: true, ..DENSE };
    let shape = |pass, element_bytes, dense| {
        let launch = elementwise(pass, 1 << 30, element_bytes, dense);
        (launch.blocks, launch.threads)
    };
    for (pass, element_bytes, light, with_arithmetic) in [
        (Pass::Forward, 4, (132 * 64, 512), (132 * 64, 512)),
        (Pass::Forward, 2, (132 * 64, 512), (132 * 64, 512)),
        (Pass::ForwardBackward, 4, (132 * 256, 512), (132 * 96, 512)),
        (Pass::ForwardBackward, 2, (1 << 16, 256), (132 * 128, 256)),
        (Pass::Backward, 2, (1 << 17, 512), (1 << 17, 512)),
    ] {
        let what = format!("{pass:?}, {element_bytes} bytes");
        assert_eq!(shape(pass, element_bytes, DENSE), light, "{what}");
        assert_eq!(shape(pass, element_bytes, heavy), with_arithmetic, "{what}");
    }
}

#[test]
fn a_wave_of_blocks_sums_inputs_that_are_neither_small_nor_large() {
    let blocks = |vectors: usize, dense| elementwise(Pass::Forward, 4 * vectors, 4, dense).blocks;
    assert_eq!([1 << 20, 32 << 20].map(|vectors| blocks(vectors, DENSE)), [132 * 2; 2]);
    assert_eq!(blocks((32 << 20) + 1, DENSE), 132 * 64);
    let heavy = Dense { heavy: true, ..DENSE };
    assert_eq!(elementwise(Pass::Forward, 2 << 20, 8, heavy).blocks, 132 * 6);
    // With more vectors, each tile has a block.
    let of_f64 = |vectors: usize| elementwise(Pass::Forward, 2 * vectors, 8, DENSE).blocks;
    assert_eq!([8 << 20, (8 << 20) + 1].map(of_f64), [132 * 4, 16_385]);
    // The pass that computes loss and gradients has at least eight vectors per thread.
    let both = |bytes, vectors| {
        let launch = elementwise(Pass::ForwardBackward, vectors * (16 / bytes), bytes, DENSE);
        launch.blocks * launch.threads
    };
    assert_eq!(both(2, 8 << 20), 1 << 20);
    assert_eq!((both(2, 1 << 20), both(4, 1 << 20)), (1 << 19, 1 << 19));
}

#[test]
fn short_rows_share_a_warp() {
    let plan = rows(1000, 10, 4, true);
    assert_eq!((plan.group_threads.get(), plan.splits.get()), (4, 1));
    assert_eq!(plan.launch.blocks, 1000_u32.div_ceil(256 / 4));
}

/// A warp takes rows of up to eight vectors per lane. A part of a split row has at least four
/// vectors for each thread of its block.
#[test]
fn rows_by_their_vectors() {
    let plan = |count, vectors: usize| {
        let plan = rows(count, 4 * vectors, 4, true);
        (plan.group_threads.get(), plan.splits.get())
    };
    assert_eq!([32, 33, 256, 257].map(|vectors| plan(9, vectors).0), [32, 32, 32, 256]);
    assert_eq!([2047, 2048, 4096].map(|vectors| plan(9, vectors).1), [1, 2, 4]);
    assert_eq!([1055, 1056, 9999].map(|count| plan(count, 1 << 20).1), [2, 1, 1]);
}

#[test]
fn long_rows_get_a_block_each() {
    let plan = rows(16384, 16384, 4, true);
    assert_eq!((plan.group_threads.get(), plan.splits.get(), plan.launch.blocks), (256, 1, 16384));
}

#[test]
fn few_long_rows_are_split() {
    let plan = rows(3, 1 << 24, 2, true);
    assert_eq!((plan.group_threads.get(), plan.splits.get(), plan.launch.blocks), (256, 352, 1056));
    // Kernels without parts have a block for each row.
    let plan = rows(3, 1 << 24, 2, false);
    assert_eq!((plan.group_threads.get(), plan.splits.get(), plan.launch.blocks), (256, 1, 3));
}

#[test]
fn partial_sums_of_split_rows_have_room() {
    for count in (0..30).map(|power| (1 << power) + 1) {
        for cols in (0..40).map(|power| 1 << power) {
            let plan = rows(count, cols, 8, true);
            let parts = count * plan.splits.get() as usize;
            assert!(plan.splits.get() == 1 || parts <= MAX_PARTIALS as usize);
        }
    }
}

/// Every vector of a row is in one of its tiles, and every tile has at least one vector.
#[test]
fn tiles_of_indexed_kernels_cover_rows() {
    let lengths = (1..2_000).chain([1 << 20, (1 << 32) + 1]);
    for of_row in lengths {
        for (is_aligned, can_join) in [(true, true), (false, true), (true, false)] {
            let tiles = IndexedTiles::new(of_row, is_aligned, can_join);
            let IndexedTiles { rows, parts, vectors } = tiles;
            let what = format!("{of_row}, {is_aligned}, {can_join}: {tiles:?}");
            let all = parts * u64::from(vectors);
            assert!(all >= u64::from(rows) * of_row, "{what}");
            assert!(all - u64::from(vectors) < u64::from(rows) * of_row, "{what}");
            assert!(rows == 1 || parts == 1 && can_join, "{what}");
            let flight = if is_aligned { INDEXED_FLIGHT as u32 } else { 1 };
            assert!(vectors <= ROWS_BLOCK * flight, "{what}");
        }
    }
    // 36 rows of 7 vectors would leave 4 of 256 lanes idle; 32 rows leave none.
    let of_tile = |of_row| IndexedTiles::new(of_row, false, true).rows;
    assert_eq!([1, 7, 33, 200].map(of_tile), [256, 32, 7, 1]);
}

/// A launch has a block per tile, or a small multiple of the blocks that are resident: four of 256
/// threads per multiprocessor.
#[test]
fn indexed_launches() {
    const DEVICE: Device =
        Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 4 };
    let launch = |pass, tiles, tile_vectors, is_aligned| {
        let args = IndexedArgs { tiles, tile_vectors, is_aligned, ..Default::default() };
        let Launch { blocks, threads, .. } = indexed(pass, &args, DEVICE);
        (blocks, threads)
    };
    assert_eq!(launch(Pass::Backward, 1 << 20, 512, 1), (1 << 20, 256));
    assert_eq!(launch(Pass::Backward, 1 << 20, 250, 0), (1 << 20, 256));
    assert_eq!(launch(Pass::Forward, 5_000, 430, 1), (132 * 4, 224));
    assert_eq!(launch(Pass::Forward, 1 << 15, 512, 1), (132 * 4 * 4, 256));
    assert_eq!(launch(Pass::Forward, 1 << 25, 512, 1), (132 * 4 * 16, 256));
    assert_eq!(launch(Pass::Forward, 0, 1, 1), (1, 32));
    assert!(launch(Pass::Forward, u64::MAX >> 9, 32, 0).0 <= max_blocks(1));
}
