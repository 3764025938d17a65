//! What launches of cross-entropy prefetch.

use super::*;
use crate::plan::prefetch::Early;

#[test]
fn passes_that_write_prefetch_rows() {
    let cache = Cache { bytes: 60 << 20, multiprocessors: 132 };
    let ahead = |pass, rows, cols, element_bytes| {
        let kernels = SamplesKernels { long_block: 1024, ..KERNELS };
        let plan = samples(pass, rows, cols, element_bytes, kernels);
        let Ahead { rows, bytes } = ahead(pass, &plan, cols * element_bytes, element_bytes, cache);
        (rows, bytes)
    };
    assert_eq!(ahead(Pass::ForwardBackward, 32768, 4096, 4), (640, 16384));
    assert_eq!(ahead(Pass::ForwardBackward, 32768, 4096, 2), (1280, 8192));
    assert_eq!(ahead(Pass::ForwardBackward, 4096, 50257, 4), (66, 201_028));
    assert_eq!(ahead(Pass::ForwardBackward, 8192, 128_256, 2), (66, 128_256));
    assert_eq!(ahead(Pass::ForwardBackward, 8192, 1 << 20, 4), (66, 238_312));
    assert_eq!(ahead(Pass::ForwardBackward, 8192, 16385, 4), (0, 0));
    assert_eq!(ahead(Pass::Backward, 32768, 4096, 2), (1280, 8192));
    assert_eq!(ahead(Pass::Backward, 32768, 4096, 4), (640, 16384));
    assert_eq!(ahead(Pass::Backward, 4096, 50257, 4), (52, 201_028));
    assert_eq!(ahead(Pass::Backward, 262_144, 128, 4), (20480, 512));
    // Rows shorter than a cache line, and blocks that share a multiprocessor, prefetch nothing.
    assert_eq!(ahead(Pass::Backward, 262_144, 32, 4), (81920, 128));
    assert_eq!(ahead(Pass::Backward, 262_144, 31, 4), (0, 0));
    assert_eq!(ahead(Pass::ForwardBackward, 8192, 8056 * 4, 4), (0, 0));
    assert_eq!(ahead(Pass::ForwardBackward, 8192, 8057 * 4, 4), (66, 128_912));
    assert_eq!(ahead(Pass::Forward, 32768, 4096, 4), (0, 0));
    assert_eq!(ahead(Pass::ForwardBackward, 262_144, 128, 4), (10240, 512));
}

/// Warps load packed rows into shared memory ahead of time, so they are not prefetched.
#[test]
fn packed_rows_are_not_prefetched() {
    let cache = Cache { bytes: 60 << 20, multiprocessors: 132 };
    for pass in PASSES {
        let plan = samples(pass, 262_144, 60, 4, kernels(60));
        assert_eq!(plan.regime, Regime::Packed);
        assert_eq!(ahead(pass, &plan, 240, 4, cache), Ahead { rows: 0, bytes: 0 }, "{pass:?}");
    }
}

/// f32 rows of 512 bytes and more were faster with a smaller L1 cache, most shorter ones slower.
#[test]
fn rows_that_want_shared_memory_rather_than_cache() {
    assert_eq!([128, 508, 512, 4096].map(wants_shared_of_one_more), [false, false, true, true]);
}

#[test]
fn first_rows_are_prefetched_early() {
    let early = |rows, cols| {
        let plan = samples(Pass::Forward, rows, cols, 4, KERNELS);
        let Early { blocks, bytes } =
            early(&plan, cols * 4, Cache { bytes: 60 << 20, multiprocessors: 132 });
        (plan.regime, blocks, bytes)
    };
    assert_eq!(early(32768, 4096), (Regime::Registers, 960, 16384));
    assert_eq!(early(262_144, 128), (Regime::ShortWhole, 960, 512));
    assert_eq!(early(128, 1000), (Regime::Few, 3932, 4000));
    assert_eq!(early(4096, 50257), (Regime::Long, 960, 16384));
}
