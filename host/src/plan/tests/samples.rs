//! Launches of cross-entropy: which regime takes rows of a shape, and its threads and blocks.

use super::*;
use crate::plan::samples::Tail;
use kernels_gpu::abi::{LINE_VECTORS, MAX_PARTIALS, STATS_PARTS, adder_shift, grid_of_workers};

#[test]
fn forward_regimes_by_shape() {
    let launch = |rows, cols| shape(samples(Pass::Forward, rows, cols, 4, KERNELS));
    assert_eq!(launch(262_144, 128), (Regime::ShortWhole, 8192 + 8, 256, 8, 1));
    assert_eq!(launch(128, 1000), (Regime::Few, 128 + 1, 256, 256, 1));
    assert_eq!(launch(1024, 1000), (Regime::Few, 1024 + 1, 256, 256, 1));
    assert_eq!(launch(256, 2048), (Regime::Few, 256 + 1, 512, 512, 1));
    assert_eq!(launch(512, 2048), (Regime::Long, 512 + 1, 128, 128, 1));
    assert_eq!(launch(1024, 2048), (Regime::Long, 1024 + 1, 128, 128, 1));
    assert_eq!(launch(128, 4096), (Regime::Long, 128 + 1, 256, 256, 1));
    assert_eq!(launch(32768, 1000), (Regime::Registers, 32768 + 32, 64, 64, 1));
    assert_eq!(launch(32768, 2048), (Regime::Registers, 32768 + 32, 128, 128, 1));
    // The last 264 rows are split into four parts each.
    assert_eq!(launch(4096, 50257), (Regime::Long, 4096 + 3 * 264 + 4, 256, 256, 1));
    // All rows are split into 32 parts each.
    assert_eq!(launch(8, 262_144), (Regime::Long, 8 * 32 + 1, 256, 256, 1));
}

/// Loss and gradients of class targets alone, for rows that do not fit a warp.
#[test]
fn few_long_rows_have_a_block_each() {
    let regime = |rows, cols: usize| {
        let limits =
            (Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 }, 256);
        let kernels = SamplesKernels { staged: Some(limits), ..kernels(cols) };
        samples(Pass::ForwardBackward, rows, cols, 4, kernels).regime
    };
    let few = 6 * 132 * (228 << 10) / (1152 * 4);
    assert_eq!([few - 1, few].map(|rows| regime(rows, 1152)), [Regime::Registers, Regime::Packed]);
    assert_eq!([1029, 1023].map(|cols| regime(8000, cols)), [Regime::Staged, Regime::Packed]);
    // All rows are resident at once.
    assert_eq!([1029, 1023, 515].map(|cols| regime(1000, cols)), [Regime::Staged; 3]);
    assert_eq!(regime(1000, 511), Regime::Packed);
}

/// A thread has eight vectors of a long row in f32 and twelve in 16 bits. If there are fewer rows
/// than half of the warps that are resident on the device, each row gets more warps.
#[test]
fn many_long_rows_have_few_threads_each() {
    let threads = |rows, cols, bytes| {
        let kernels = SamplesKernels { whole: false, peeled_block: 0, ..KERNELS };
        let plan = samples(Pass::Forward, rows, cols, bytes, kernels);
        assert_eq!(plan.regime, Regime::Long, "{rows}x{cols}");
        plan.rows.launch.threads
    };
    assert_eq!([4097, 8193, 60_000].map(|cols| threads(1 << 16, cols, 4)), [160, 256, 256]);
    // Rows that take few turns have all of their vectors in flight at once, if they are short.
    assert_eq!([10_000, 100_000].map(|rows| threads(rows, 1501, 4)), [96, 64]);
    assert_eq!([10_000, 100_000].map(|rows| threads(rows, 2653, 2)), [96, 32]);
    assert_eq!(threads(5000, 5179, 2), threads(100_000, 5179, 2));
    assert_eq!([8193, 16_385].map(|cols| threads(1 << 16, cols, 2)), [96, 192]);
    // 132 × 32 = 4224 warps are distributed: with 704 rows, each could have six. With 500 rows,
    // each could have eight, which is enough to have all of its vectors in flight.
    assert_eq!([4224, 2112, 704, 500].map(|rows| threads(rows, 4000, 4)), [128, 128, 192, 256]);
}

/// In forward passes over many rows that begin anywhere, each row has the threads of a block that
/// its vectors need. Two vectors may be peeled, and one of the four of each thread is not checked.
#[test]
fn rows_that_begin_anywhere_have_a_block_each() {
    let plan = |pass, rows, cols: usize| {
        let kernels = SamplesKernels { whole: false, ..KERNELS };
        let plan = samples(pass, rows, cols, 4, kernels);
        (plan.regime, plan.rows.launch.threads)
    };
    let of = |cols| plan(Pass::Forward, 10_000, cols);
    assert_eq!([1501, 2501, 4096].map(of), [96, 160, 256].map(|n| (Regime::Peeled, n)));
    // 4100 columns are 1025 vectors, which is one more than there is room for.
    assert_eq!(of(4100).0, Regime::Long);
    let shortest = (1..4096).find(|&cols| of(cols).0 == Regime::Peeled);
    assert_eq!(shortest, Some(4 * 33 + 1), "32 unchecked vectors and two that may be peeled");
    assert_eq!(plan(Pass::Forward, 1024, 1501).0, Regime::Long, "few rows");
    for pass in [Pass::ForwardBackward, Pass::Backward] {
        assert_eq!(plan(pass, 10_000, 1501).0, Regime::Long, "{pass:?}");
    }
}

/// Few rows have a thread for each vector, unless they are short enough for a warp to stage them.
#[test]
fn few_rows_are_packed_if_a_warp_has_them() {
    let regime = |cols| samples(Pass::Forward, 100, cols, 4, kernels(cols)).regime;
    assert_eq!([60, 508, 516, 1000].map(regime)[..2], [Regime::Packed, Regime::ShortWhole]);
    assert_eq!([516, 1000].map(regime), [Regime::Few; 2]);
}

/// A kernel that a loss does not have is not planned, in any pass.
#[test]
fn kernels_that_are_not_there_are_not_planned() {
    let none = |cols| SamplesKernels {
        short_block: 0,
        max_registers_block: 0,
        few_block: 0,
        ..kernels(cols)
    };
    for pass in PASSES {
        for rows in [1, 100, 262_144] {
            let regime = |cols| samples(pass, rows, cols, 4, none(cols)).regime;
            assert_eq!([128, 512].map(regime), [Regime::Packed; 2], "{pass:?}");
            assert_eq!([2048, 8192].map(regime), [Regime::Long; 2], "{pass:?}");
        }
    }
}

/// Rows that blocks would share in parts are streamed in the forward pass alone. Rows that would be
/// in a block's registers are streamed if there are many.
#[test]
fn long_rows_are_streamed() {
    let plan = |pass, rows, cols| {
        let layout =
            packed::Rows { alignment: 128, store_alignment: 128, ..packed::Rows::of_f32(cols) };
        let device = Device { multiprocessors: 132, shared_bytes: 228 << 10, registers_for: 3 };
        samples(pass, rows, cols, 4, SamplesKernels { stream: Some((layout, device)), ..KERNELS })
    };
    let regime = |pass, rows, cols| plan(pass, rows, cols).regime;
    assert_eq!(regime(Pass::Forward, 4096, 50257), Regime::Stream);
    assert_eq!(regime(Pass::Forward, 8, 262_144), Regime::Stream);
    assert_eq!(regime(Pass::Forward, 2048, 2048), Regime::Stream);
    assert_eq!(regime(Pass::Forward, 2047, 2048), Regime::Registers);
    assert_eq!(regime(Pass::Forward, 128, 1000), Regime::Few);
    assert_eq!(regime(Pass::Forward, 262_144, 128), Regime::ShortWhole);
    for pass in [Pass::Backward, Pass::ForwardBackward] {
        assert_eq!(regime(pass, 4096, 50257), Regime::Long);
        assert_eq!(regime(pass, 4096, 2048), Regime::Registers);
    }
    let streamed = plan(Pass::Forward, 8, 262_144);
    assert_eq!(streamed.rows.launch.blocks, 132 * 3);
}

/// A block stages the vector that contains the logit of the target's class. In the forward pass
/// over rows that share a warp, each thread stages all of its vectors.
#[test]
fn logits_of_classes_are_staged() {
    let plan = |pass, rows, cols| {
        let plan = samples(pass, rows, cols, 4, KERNELS);
        (plan.regime, plan.rows.launch.shared_bytes)
    };
    let of_all_threads = 256 * KERNELS.per_thread as u32 * 16;
    assert_eq!(plan(Pass::Forward, 262_144, 128), (Regime::ShortWhole, of_all_threads));
    assert_eq!(plan(Pass::ForwardBackward, 262_144, 128), (Regime::ShortWhole, 0));
    assert_eq!(plan(Pass::Backward, 262_144, 128), (Regime::ShortWhole, 0));
    for pass in PASSES {
        assert_eq!(plan(pass, 32768, 2048), (Regime::Registers, 16), "{pass:?}");
    }
    assert_eq!(plan(Pass::Forward, 128, 1000), (Regime::Few, 0));
    assert_eq!(plan(Pass::Forward, 4096, 50257), (Regime::Long, 0));
}

/// A backward pass sums nothing, so its grid has a block for each row and no adder.
#[test]
fn backward_passes_have_no_adders() {
    let blocks = |rows, cols| samples(Pass::Backward, rows, cols, 4, KERNELS).rows.launch.blocks;
    assert_eq!((blocks(32768, 2048), blocks(262_144, 128)), (32768, 8192));
    assert_eq!((blocks(5000, 8193), blocks(0, 2048)), (5000 * 3, 1));
}

#[test]
fn blocks_of_packed_rows_fill_a_device() {
    let blocks = |pass, rows| samples(pass, rows, 10, 4, kernels(10)).rows.launch.blocks;
    // Registers and shared memory of a multiprocessor allow five blocks each.
    assert_eq!(blocks(Pass::Forward, 1 << 24), grid_of_workers(132 * 5, ADDER_SHIFT));
    // With 32 times as many blocks, each takes an equal number of tiles, and no tile is left
    // for one more block.
    let rows_of_tiles = 4 * samples(Pass::Backward, 1 << 24, 10, 4, kernels(10)).tile.rows;
    let tiles = (1_u32 << 24).div_ceil(rows_of_tiles);
    let each = tiles.div_ceil(132 * 5 * 32);
    assert!(each > 1);
    assert_eq!(blocks(Pass::Backward, 1 << 24), tiles.div_ceil(each));
    assert_eq!(
        blocks(Pass::ForwardBackward, 1 << 24),
        grid_of_workers(tiles.div_ceil(each), ADDER_SHIFT)
    );
    assert_eq!((blocks(Pass::Forward, 1), blocks(Pass::Backward, 0)), (2, 1));
}

#[test]
fn blocks_take_several_rows_if_there_are_too_many() {
    let launch = |pass, rows, cols| {
        let plan = samples(pass, rows, cols, 4, KERNELS);
        (plan.rows.launch.blocks, plan.rows_of_block.get())
    };
    let most = max_workers(1, ADDER_SHIFT) as usize;
    let half = (most as u32 + 1).div_ceil(2);
    assert_eq!(launch(Pass::Forward, most + 1, 50257), (grid_of_workers(half, ADDER_SHIFT), 2));
    assert_eq!(
        launch(Pass::ForwardBackward, most + 1, 50257),
        (grid_of_workers(half, ADDER_SHIFT), 2)
    );
}

#[test]
fn the_last_long_rows_are_split() {
    let tail = |rows, cols| samples(Pass::Forward, rows, cols, 4, KERNELS).tail;
    let shared = tail(4096, 50257);
    assert_eq!((shared.rows, shared.parts.get()), (264, 4));
    // A part is at least as long as what a block has in flight.
    assert_eq!(tail(4096, 8193).parts.get(), 2);
    assert_eq!(tail(4096, 4100), Tail::NONE);
    for rows in 1..105_000 {
        let Tail { rows: last, parts, at } = tail(rows, 50257);
        let workers = rows as u32 + last * (parts.get() - 1);
        assert!(
            last == 0 || at >= workers + 2 * workers.div_ceil((1 << ADDER_SHIFT) - 1),
            "{rows} rows"
        );
        assert!(at + last * parts.get() * STATS_PARTS <= MAX_PARTIALS, "{rows} rows");
    }
}

#[test]
fn few_long_rows_are_all_split() {
    // For the last two, the workspace does not have room for all parts that would be long enough.
    for (rows, cols) in
        [(1, 262_144), (100, 50257), (527, 50257), (1055, 128_256), (1055, 1 << 20), (9, 1 << 26)]
    {
        for sums in [2, 4] {
            let kernels = SamplesKernels { sums, ..KERNELS };
            let plan = samples(Pass::Forward, rows, cols, 4, kernels);
            let Tail { rows: shared, parts, at } = plan.tail;
            let workers = shared * parts.get();
            assert!(shared as usize == rows && parts.get() > 1, "{rows} rows");
            assert_eq!(plan.rows.launch.blocks, grid_of_workers(workers, ADDER_SHIFT));
            let left = words_of_worker(sums, 4) * workers
                + sums * workers.div_ceil((1 << ADDER_SHIFT) - 1);
            assert!(at >= left && at + workers * STATS_PARTS <= MAX_PARTIALS, "{rows} rows");
        }
    }
}

/// A part has at least 32 KiB, so a row that has two such parts is split.
#[test]
fn rows_of_two_parts_are_split() {
    let tail = |vectors: usize| samples(Pass::Forward, 8, 4 * vectors, 4, KERNELS).tail;
    assert_eq!(tail(2 * 2048 - 1), Tail::NONE);
    assert_eq!((tail(2 * 2048).rows, tail(2 * 2048).parts.get()), (8, 2));
}

/// A multiprocessor runs two blocks if the shared memory that one needs for its row leaves room for
/// another.
#[test]
fn a_block_per_long_row_leaves_room_for_another() {
    let threads = |cols, target| {
        let kernels = SamplesKernels { long_block: 1024, target, ..KERNELS };
        samples(Pass::ForwardBackward, 4096, cols, 4, kernels).rows.launch.threads
    };
    // 2 vectors per thread in registers, and 7040 that a block may stage: 113 KiB.
    let of_class = |cols| threads(cols, Target::Class);
    assert_eq!((of_class(4 * 8056), of_class(4 * 8057)), (512, 672));
    assert_eq!(threads(4 * 8056, Target::Smoothed), 672);
    // Three blocks fit if rows are shorter. With eight, a thread would have too many vectors.
    assert_eq!((of_class(4 * 4096), of_class(4 * 2049)), (320, 128));
    // With one row per multiprocessor, a block has it to itself.
    let few = SamplesKernels { long_block: 1024, ..KERNELS };
    let plan = samples(Pass::ForwardBackward, 132, 4 * 4096, 4, few);
    assert_eq!(plan.rows.launch.threads, 352);
}

#[test]
fn forward_backward_regimes_by_shape() {
    let launch = |rows, cols| shape(samples(Pass::ForwardBackward, rows, cols, 4, KERNELS));
    assert_eq!(launch(32768, 4096), (Regime::Registers, 32768 + 32, 256, 256, 1));
    assert_eq!(launch(8192, 8192), (Regime::Registers, 8192 + 8, 512, 512, 1));
    assert_eq!(launch(8192, 8193), (Regime::Long, 8192 + 8, 128, 128, 1));
    assert_eq!(launch(4096, 50257), (Regime::Long, 4096 + 4, 256, 256, 1));
    // Short rows: a row group of a block has one row.
    assert_eq!(launch(262_144, 128), (Regime::ShortWhole, 8192 + 8, 256, 8, 1));
}

#[test]
fn rows_fill_the_registers_of_their_block() {
    let regime =
        |rows, vectors| samples(Pass::ForwardBackward, rows, vectors * 4, 4, KERNELS).regime;
    // With 64 threads, 192 vectors are the first three of each thread; the fourth may be beyond the
    // row.
    assert_eq!((regime(100, 191), regime(100, 192)), (Regime::Long, Regime::Registers));
    for vectors in 129..2048_usize {
        let threads = vectors.div_ceil(4).next_multiple_of(32);
        let in_registers = regime(100, vectors) == Regime::Registers;
        assert_eq!(in_registers, 3 * threads <= vectors, "{vectors} vectors");
    }
    // In the forward-backward pass over 16-bit elements, a thread has eight vectors, and the first
    // four must be inside the row.
    let kernels = SamplesKernels { vectors_with_gradients: 8, ..KERNELS };
    for vectors in 129..4096 {
        let plan = samples(Pass::ForwardBackward, 100, vectors * 8, 2, kernels);
        let threads = vectors.div_ceil(8).next_multiple_of(32);
        assert_eq!((plan.regime, plan.rows.launch.threads as usize), (Regime::Registers, threads));
        assert!(4 * threads <= vectors, "{vectors} vectors");
        // The forward pass does not depend on `vectors_with_gradients`.
        let forward = samples(Pass::Forward, 2000, vectors * 8, 2, kernels);
        let alone = samples(Pass::Forward, 2000, vectors * 8, 2, KERNELS);
        assert_eq!(forward, alone);
    }
}

#[test]
fn every_worker_has_a_block() {
    for (bytes, threads, period) in [(8, 32, 256), (8, 64, 512), (8, 96, 1024), (4, 32, 1024)] {
        let shift = adder_shift(bytes, threads);
        for workers in [0, 1, period - 2, period - 1, period, period + 1, 2 * period - 2, 10_000] {
            let blocks = grid_of_workers(workers, shift);
            let taken = (0..blocks).filter(|block| !(block + 1).is_multiple_of(period));
            let taken =
                taken.map(|block| block - block / period).filter(|&worker| worker < workers);
            assert!(taken.eq(0..workers), "{workers} workers of {threads} threads, {bytes} bytes");
            assert!(workers >= period || blocks == workers + 1);
            // The kernels count workers in this way.
            assert_eq!(blocks - (blocks / period).max(1), workers);
        }
    }
}

#[test]
fn partial_sums_of_workers_have_room() {
    for (element_bytes, at_least) in [(2, 100_000), (4, 100_000), (8, 50_000)] {
        let plan = |pass, rows| samples(pass, rows, 16384 / element_bytes, element_bytes, KERNELS);
        for pass in [Pass::Forward, Pass::ForwardBackward] {
            let in_registers = |&rows: &usize| plan(pass, rows).regime == Regime::Registers;
            let most = (1..1 << 20).rfind(in_registers).expect("there is one");
            assert!(most >= at_least);
            let blocks = plan(pass, most).rows.launch.blocks;
            assert_eq!(blocks, grid_of_workers(most as u32, ADDER_SHIFT));
            let words = words_of_worker(2, element_bytes) as usize;
            let adders = most.div_ceil((1 << ADDER_SHIFT) - 1);
            assert!(words * most + 2 * adders <= MAX_PARTIALS as usize);
            assert_eq!(plan(pass, most + 1).regime, Regime::Long);
        }
    }
}

#[test]
fn staged_vectors_fit_into_a_row_and_shared_memory() {
    assert_eq!(staged_vectors(50_257, 4, 4096, 228_848), 12_564 + 7 - 4096);
    assert_eq!(staged_vectors(128_256, 2, 1024, 228_848), 14_303);
    assert_eq!(staged_vectors(3, 4, 64, 228_848), 0);
    assert_eq!(staged_vectors(128_256, 2, 4096, 15), 0);
}

/// The blocks that sum the normaliser have two targets per thread and run at the same time, because
/// all other blocks wait for them.
#[test]
fn blocks_of_the_normaliser() {
    let blocks = |rows| normaliser_blocks(rows, 256, 400);
    assert_eq!([0, 1, 512, 513, 1 << 30].map(blocks), [1, 1, 1, 2, 400]);
    let blocks = |room| normaliser_blocks(1 << 30, 128, room);
    assert_eq!([1, 924, 2000].map(blocks), [1, 924, 1024]);
    // If there are more than 512, they have 32 targets per thread.
    let blocks = |rows| normaliser_blocks(rows, 128, 924);
    assert_eq!([1 << 20, 512 * 4096, 600 * 4096].map(blocks), [512, 512, 600]);
}

/// A launch that usually ends at once has few blocks, but at least one for rows and one adder.
#[test]
fn blocks_of_a_retry() {
    assert_eq!(retry_blocks([512, 10_000], 924), [64, 463]);
    assert_eq!(retry_blocks([7, 100], 924), [7, 100]);
    assert_eq!(retry_blocks([1, 2], 1), [1, 2]);
}

/// A call is optimistic from 64 KiB of targets per multiprocessor.
#[test]
fn targets_that_are_not_read_twice() {
    assert!(!is_optimistic(16_383, [4, 8], 2) && is_optimistic(16_384, [4, 8], 2));
    assert!(!is_optimistic(131_071, [2, 1], 2) && is_optimistic(131_072, [2, 1], 2));
    assert!(!is_optimistic(16_384, [4, 8], 3));
    assert!(!is_optimistic(1 << 24, [8, 8], 2));
    let most = u32::MAX as usize;
    assert!(is_optimistic(most, [4, 8], 132) && !is_optimistic(most + 1, [4, 8], 132));
}

#[test]
fn backward_parts_are_register_resident() {
    let shape = |rows, cols, bytes| {
        let RowsLaunch { launch, splits, .. } =
            samples(Pass::Backward, rows, cols, bytes, KERNELS).rows;
        (launch.blocks, launch.threads, splits.get())
    };
    assert_eq!(shape(8192, 128_256, 2), (131_072, 256, 16));
    // 256 threads have room for 1024 vectors: 1017, and the seven before them in a cache line.
    let parts = |vectors: usize| {
        let kernels = SamplesKernels { whole: false, ..KERNELS };
        samples(Pass::Backward, 8192, 4 * vectors, 4, kernels).rows.splits.get()
    };
    assert_eq!((parts(1017), parts(1018)), (1, 2));
    for cols in (0..20).flat_map(|power| [(1 << power) + 1, (3 << power) - 1]) {
        let SamplesLaunch { rows: RowsLaunch { launch, splits, .. }, regime, .. } =
            samples(Pass::Backward, 100, cols, 4, SamplesKernels { whole: false, ..kernels(cols) });
        let [vectors, missing] = [cols.div_ceil(4), LINE_VECTORS as usize - 1];
        let part_vectors = launch.threads as usize * KERNELS.per_thread;
        if regime == Regime::Long {
            assert!(splits.get() as usize * part_vectors >= vectors + missing, "{cols}");
            assert!((splits.get() - 1) as usize * part_vectors < vectors + missing, "{cols}");
        } else {
            assert_eq!((regime, splits.get()), (Regime::Packed, 1), "{cols}");
        }
    }
}

#[test]
fn sums_of_any_shape_fit_into_the_workspace() {
    for count in (0..30).map(|power| (1 << power) + 1) {
        for cols in (0..31).map(|power| 1 << power) {
            for pass in PASSES {
                let plan = samples(pass, count, cols, 8, KERNELS);
                let RowsLaunch { launch, group_threads, splits } = plan.rows;
                let workers = count * splits.get() as usize;
                assert!(launch.threads.is_multiple_of(group_threads.get()));
                match pass {
                    _ if splits.get() == 1 => {
                        let workers = count.div_ceil(plan.rows_of_block.get() as usize) as u32;
                        let groups = launch.threads / group_threads;
                        let blocks_sum = pass != Pass::Backward;
                        assert!(
                            !blocks_sum
                                || workers <= max_workers(words_of_worker(2, 8), plan.adder_shift)
                        );
                        assert!(!blocks_sum || plan.rows_of_block.get().is_multiple_of(groups));
                    }
                    Pass::Forward => {
                        assert_eq!(
                            (plan.regime, group_threads.get()),
                            (Regime::Long, launch.threads)
                        );
                        let warps = launch.threads as usize / 32;
                        assert!(workers * warps * STATS_PARTS as usize <= MAX_PARTIALS as usize);
                    }
                    Pass::Backward => assert_eq!(plan.regime, Regime::Long),
                    Pass::ForwardBackward => panic!("split"),
                }
            }
        }
    }
}
