//! How many blocks a launch has.

use super::*;

/// In several waves, a warp has at least two tiles and loads one while it computes the other,
/// unless that would leave multiprocessors without a block.
#[test]
fn warps_with_two_stages_have_two_tiles() {
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
    let two = packed(Pass::Backward, dense(10, 4)).expect("a short row");
    let one = packed(Pass::Backward, dense(1000, 4)).expect("a short row");
    assert!(two.args.stage_bytes > 0 && one.args.stage_bytes == 0);
    let blocks = |packed: Packed, tiles: usize| {
        packed.blocks(Pass::Backward, tiles * packed.block_rows, device)
    };
    let resident = 132 * 5;
    assert_eq!([resident, resident + 1, 4 * resident].map(|n| blocks(two, n)), [660, 331, 1320]);
    assert_eq!([resident, resident + 1, 4 * resident].map(|n| blocks(one, n)), [660, 661, 2640]);
}

/// The blocks of a launch of `tiles` tiles for each warp that the device has room for.
fn blocks_of_tiles(pass: Pass, rows: Rows, registers_for: usize, tiles: usize) -> [usize; 2] {
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for };
    let packed = packed(pass, rows).expect("a short row");
    let room = device.blocks(packed.shared_bytes);
    [packed.blocks(pass, tiles * room * packed.block_rows, device), room]
}

/// Forward passes with one lane per row and few blocks per multiprocessor have persistent blocks,
/// until warps have many tiles. With more blocks, there are several waves of these.
#[test]
fn few_blocks_are_persistent() {
    let waves = |rows, tiles| {
        let [blocks, room] = blocks_of_tiles(Pass::Forward, rows, 7, tiles);
        (room / 132, blocks as f64 / room as f64)
    };
    assert_eq!(
        [2, 31, 32].map(|tiles| waves(dense(60, 4), tiles)),
        [(3, 1.0), (3, 1.0), (3, 16.0)]
    );
    assert_eq!([2, 31, 32].map(|tiles| waves(dense(4, 8), tiles)), [(5, 1.0), (5, 1.0), (5, 8.0)]);
    assert_eq!([2, 4, 32].map(|tiles| waves(dense(24, 4), tiles)), [(7, 1.0), (7, 2.0), (7, 16.0)]);
    assert_eq!(waves(dense(48, 2), 32), (7, 8.0));
}

/// With loss and gradients, blocks with one lane per row are persistent if warps have few tiles.
/// Otherwise they have three tiles each, or two if a tile takes one turn.
#[test]
fn few_tiles_with_gradients_have_persistent_blocks() {
    let waves = |rows, tiles| {
        let [blocks, room] = blocks_of_tiles(Pass::ForwardBackward, rows, 7, tiles);
        blocks as f64 / room as f64
    };
    assert_eq!([7, 9, 48, 96].map(|tiles| waves(dense(4, 4), tiles)), [1.0, 3.0, 16.0, 32.0]);
    assert_eq!([7, 8, 48].map(|tiles| waves(dense(32, 4), tiles)), [1.0, 4.0, 24.0]);
    assert_eq!(waves(dense(9, 2), 96), 16.0);
    // Several lanes per row have more waves, elementwise losses fewer.
    assert_eq!(waves(dense(300, 2), 96), 32.0);
    assert_eq!(waves(Rows { is_elementwise: true, ..dense(300, 4) }, 96), 16.0);
    // A warp with one stage has one tile.
    assert_eq!([2, 7].map(|tiles| waves(dense(4, 8), tiles)), [2.0, 7.0]);
}

/// Resident blocks share the multiprocessor's shared memory. The driver takes a KiB of it for each
/// block, and the kernel takes some for its arrays.
#[test]
fn blocks_have_shared_memory_and_registers() {
    let packed = packed(Pass::Forward, dense(100, 4)).expect("a short row");
    let blocks = |shared_bytes, registers_for| {
        let device = Device { multiprocessors: 3, shared_bytes, registers_for };
        packed.blocks(Pass::Forward, 1 << 20, device)
    };
    let of_block = packed.shared_bytes + RESERVED + ARRAYS_BYTES;
    assert_eq!((blocks(4 * of_block, 9), blocks(4 * of_block - 1, 9)), (3 * 4, 3 * 3));
    assert_eq!((blocks(4 * of_block, 2), blocks(of_block - 1, 2)), (3 * 2, 3));
    // With few tiles, each of the four warps of a block has one.
    let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 5 };
    let tiles = |tiles| tiles * packed.args.rows as usize;
    let blocks = |rows| packed.blocks(Pass::Forward, rows, device);
    assert_eq!((blocks(tiles(4 * 7)), blocks(tiles(4 * 7) + 1)), (7, 8));
}
