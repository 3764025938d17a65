//! Kernels whose results depend on the order of threads, warps or blocks: random orders must show
//! that. Kernels whose blocks wait for each other must end in any order.

use super::{address, allocate_written, assert_report, exchange, exchanged, launch};
use crate::fault::Fault;
use crate::kernel::Launch;
use crate::memory;
use crate::order::Order;
use cuda_std::hint::spin;
use cuda_std::memory::{load, load_shared_by_grid, store, store_shared_by_grid};
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::sync_warp;
use std::collections::BTreeSet;

type Kernel = unsafe fn(*const u8);

fn run_drawn(kernel: Kernel, grid: u32, address: usize, seed: u64) -> Result<(), Fault> {
    launch(kernel, grid, address).run_drawn(Order::drawn(seed))
}

/// The first word that the kernel leaves, in a random order from each of 40 seeds.
fn first_words(kernel: Kernel, grid: u32) -> Vec<u32> {
    let memory = allocate_written(4 * 64);
    let word = |seed| {
        // SAFETY: within the allocation, which no kernel uses now.
        unsafe { std::ptr::write_bytes(memory as *mut u8, 0, 4 * 64) };
        run_drawn(kernel, grid, memory, seed).unwrap();
        // SAFETY: as above.
        unsafe { (memory as *const u32).read() }
    };
    let words = (0..40).map(word).collect();
    assert!(memory::free(memory));
    words
}

#[test]
fn each_seed_ends_with_another_thread() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the word is the kernel's.
        unsafe { store(address(args) as *mut u32, 64 * block_idx_x() + thread_idx_x()) };
    }
    let last = first_words(kernel, 8);
    assert_eq!(last, first_words(kernel, 8), "the same seeds, another order");
    let different = |of: fn(u32) -> u32| last.iter().map(|&last| of(last)).collect::<BTreeSet<_>>();
    assert!(different(|last| last / 64).len() > 5, "blocks: {last:?}");
    assert_eq!(different(|last| last / 32 % 2).len(), 2, "warps: {last:?}");
    assert!(different(|last| last % 32).len() > 10, "lanes: {last:?}");
}

/// The order in which terms arrive changes the rounding of a sum.
#[test]
fn a_sum_in_the_order_of_arrival_differs() {
    unsafe fn kernel(args: *const u8) {
        let term = 1.0 / (1.0 + (64 * block_idx_x() + thread_idx_x()) as f32);
        // SAFETY: the word is the kernel's.
        unsafe {
            let sum = address(args) as *mut f32;
            store(sum, load(sum) + term);
        }
    }
    let by_index = || {
        let memory = allocate_written(4);
        super::run(kernel, 1, memory).unwrap();
        // SAFETY: within the allocation.
        let sum = unsafe { (memory as *const u32).read() };
        assert!(memory::free(memory));
        sum
    };
    // The order of indices does not show it.
    assert_eq!(BTreeSet::from_iter((0..10).map(|_| by_index())).len(), 1);
    let drawn = BTreeSet::from_iter(first_words(kernel, 1));
    assert!(drawn.len() > 3, "{drawn:?}");
}

/// A lane reads, without synchronisation, what an earlier lane has written.
#[test]
fn a_missing_synchronisation_in_global_memory_is_found() {
    unsafe fn kernel<const SYNC: bool>(args: *const u8) {
        let own = thread_idx_x() % 32;
        // SAFETY: the words are the kernel's.
        unsafe {
            let words = address(args) as *mut u32;
            if thread_idx_x() == 0 {
                store(words.add(1), 1);
            }
            if SYNC {
                sync_warp();
            }
            if thread_idx_x() < 32 && own > 0 && load(words.add(1)) == 0 {
                store(words, own);
            }
        }
    }
    let right = [0; 40];
    assert_eq!(first_words(kernel::<true>, 1), right);
    assert_ne!(first_words(kernel::<false>, 1), right);
    let memory = allocate_written(8);
    super::run(kernel::<false>, 1, memory).unwrap();
    // SAFETY: within the allocation.
    assert_eq!(unsafe { (memory as *const u32).read() }, 0, "found in the order of indices too");
    assert!(memory::free(memory));
}

/// Between two barriers, one block may run far ahead of another.
#[test]
fn blocks_go_on_in_turns() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the words are the kernel's.
        unsafe {
            let words = address(args) as *mut u32;
            for _ in 0..20 {
                sync_threads();
                let last = load(words.add(1));
                // Counts how often another block ran in between.
                if thread_idx_x() == 0 && last != 1 + block_idx_x() {
                    store(words, load(words) + 1);
                    store(words.add(1), 1 + block_idx_x());
                }
            }
        }
    }
    // Two blocks that run one after the other would count two.
    let words = first_words(kernel, 2);
    assert!(words.iter().filter(|&&word| word > 4).count() > 20, "{words:?}");
}

#[test]
fn blocks_wait_for_each_other_in_any_order() {
    unsafe fn kernel(args: *const u8) {
        let (own, blocks) = (block_idx_x() as usize, grid_dim_x() as usize);
        // SAFETY: as the machine allows.
        unsafe {
            let places = address(args) as *mut u64;
            if thread_idx_x() == 33 {
                let sum = exchange(places, 3);
                store(places.add(3 * blocks + own), sum);
            }
            sync_threads();
        }
    }
    // With 60 blocks, some run on other stacks than those that a worker reuses.
    for (blocks, cooperative, seed) in
        [(1_u64, true, 1), (8, false, 2), (8, true, 3), (60, false, 4), (60, true, 5)]
    {
        let memory = allocate_written(8 * 4 * blocks as usize);
        let launch = Launch { cooperative, ..launch(kernel, blocks as u32, memory) };
        launch.run_drawn(Order::drawn(seed)).unwrap();
        for block in 0..blocks as usize {
            // SAFETY: within the allocation.
            let got = unsafe { (memory as *const u64).add(3 * blocks as usize + block).read() };
            assert_eq!(got, exchanged(blocks, 3), "block {block} of {blocks}, seed {seed}");
        }
        assert!(memory::free(memory));
    }
}

/// There are more blocks than may wait at a time, so those that others wait for must get their
/// turn.
#[test]
fn many_blocks_wait_for_the_first() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            let places = address(args) as *mut u64;
            if block_idx_x() == 0 {
                store_shared_by_grid(places, 7);
            }
            while load_shared_by_grid(places) == 0 {
                spin();
            }
            sync_threads();
            let own = 1 + u64::from(block_idx_x());
            store(places.add(own as usize), own);
        }
    }
    for seed in 0..3 {
        let memory = allocate_written(8 * 501);
        run_drawn(kernel, 500, memory, seed).unwrap();
        // SAFETY: within the allocation.
        let got = unsafe { std::slice::from_raw_parts(memory as *const u64, 501) };
        assert_eq!(got[0], 7);
        assert!((1..501).all(|own| got[own] == own as u64), "seed {seed}");
        assert!(memory::free(memory));
    }
}

#[test]
fn faults_are_found_in_any_order() {
    unsafe fn asserts(_: *const u8) {
        assert!(block_idx_x() != 3 || thread_idx_x() != 40, "planted");
        loop {
            spin();
        }
    }
    unsafe fn diverges(_: *const u8) {
        if thread_idx_x() != 40 {
            sync_threads();
        }
    }
    unsafe fn waits_in_vain(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            if thread_idx_x() == 7 && block_idx_x() > 0 {
                while load_shared_by_grid(address(args) as *const u64) == 0 {
                    spin();
                }
            }
            sync_threads();
        }
    }
    let memory = allocate_written(8);
    for seed in 0..10 {
        let what = "kernel planted, block 3, thread 40: planted";
        assert_report(run_drawn(asserts, 20, 0, seed), 719, &[what]);
        let parts = ["waits at the barrier at", "thread 40 has returned"];
        assert_report(run_drawn(diverges, 3, 0, seed), 719, &parts);
        let parts = [
            "kernel planted: no block goes on",
            "waits at the barrier at",
            "block 1, thread 7: waits for another block at",
        ];
        assert_report(run_drawn(waits_in_vain, 4, memory, seed), 719, &parts);
    }
    assert!(memory::free(memory));
}
