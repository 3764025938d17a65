//! Planted faults: each check must fire and name the kernel, block, thread and line.

mod order;

use crate::driver::resident_blocks;
use crate::fault::Fault;
use crate::kernel::Launch;
use crate::memory;
use cuda_std::hint::spin;
use cuda_std::memory::{
    Vec16, end_copies, load, load_shared_by_grid, store, store_shared_by_grid, wait_for_copies,
};
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WarpShuffleValue, sync_warp};
use kernels_gpu::Entry;
use kernels_gpu::abi::Dtype;
use std::panic;

cuda_std::shared_array! {
    fn scratch() -> [u64; 64];
}

cuda_std::shared_array! {
    /// 16 bytes per thread.
    fn rest() -> [Vec16];
}

/// Runs a kernel with one argument, an address, in the order of indices.
fn run(kernel: unsafe fn(*const u8), grid: u32, address: usize) -> Result<(), Fault> {
    launch(kernel, grid, address).run_on(16)
}

/// The same as a cooperative launch, on at most `workers` workers.
fn run_cooperative(
    kernel: unsafe fn(*const u8),
    grid: u32,
    address: usize,
    workers: usize,
) -> Result<(), Fault> {
    Launch { cooperative: true, ..launch(kernel, grid, address) }.run_on(workers)
}

fn launch(kernel: unsafe fn(*const u8), grid: u32, address: usize) -> Launch {
    let entry = Box::leak(Box::new(Entry {
        name: "planted",
        module: "planted",
        dtype: Dtype::F32,
        block: 64,
        resident: 1,
        barriers: 0,
        args_size: 8,
        run: kernel,
    }));
    let args = address.to_ne_bytes().to_vec();
    Launch { entry, grid, block: 64, shared_bytes: 64 * 16, cooperative: false, args }
}

/// The kernel's argument.
unsafe fn address(args: *const u8) -> u64 {
    // SAFETY: `run` passes an address.
    unsafe { args.cast::<u64>().read_unaligned() }
}

/// Memory of zeros that counts as written.
fn allocate_written(bytes: usize) -> usize {
    let memory = memory::allocate(bytes).unwrap();
    // SAFETY: within the allocation.
    unsafe { memory::mark_written(memory, bytes) };
    memory
}

#[track_caller]
fn assert_report(result: Result<(), Fault>, code: u32, parts: &[&str]) {
    let fault = result.expect_err("the planted fault was not found");
    assert_eq!(fault.code, code, "{}", fault.report);
    for part in parts {
        assert!(fault.report.contains(part), "expected '{part}' in: {}", fault.report);
    }
}

#[test]
fn a_kernel_without_fault_runs_to_its_end() {
    unsafe fn kernel(args: *const u8) {
        let own = thread_idx_x();
        // SAFETY: as the machine allows.
        unsafe {
            scratch().set(own, u64::from(own));
            sync_threads();
            let other = scratch().get(63 - own) as u32;
            let sum = other + other.shuffle_xor(1);
            let at = (address(args) as *mut u32).add((64 * block_idx_x() + own) as usize);
            store(at, load(at) + sum);
        }
    }
    let memory = allocate_written(4 * 64 * 10);
    run(kernel, 10, memory).unwrap();
    for block in 0..10 {
        for thread in 0..64_u32 {
            // SAFETY: within the allocation.
            let got = unsafe { (memory as *const u32).add(block * 64 + thread as usize).read() };
            assert_eq!(got, (63 - thread) + (63 - (thread ^ 1)));
        }
    }
    assert!(memory::free(memory));
}

#[test]
fn a_barrier_that_some_threads_do_not_reach() {
    unsafe fn kernel(_: *const u8) {
        if thread_idx_x() != 40 {
            sync_threads();
        }
    }
    let parts = [
        "kernel planted, block 0, thread 0: waits at the barrier at",
        "tests.rs",
        "thread 40 has returned",
    ];
    assert_report(run(kernel, 1, 0), 719, &parts);
}

#[test]
#[allow(clippy::if_same_then_else)]
fn two_barriers_in_divergent_code() {
    unsafe fn kernel(_: *const u8) {
        if thread_idx_x() < 32 {
            sync_threads();
        } else {
            sync_threads();
        }
    }
    assert_report(run(kernel, 1, 0), 719, &["thread 32 waits at the barrier at"]);
}

#[test]
fn a_shuffle_that_some_lanes_do_not_reach() {
    unsafe fn kernel(_: *const u8) {
        if thread_idx_x() % 32 != 7 {
            1_u32.shuffle_xor(1);
        }
    }
    assert_report(run(kernel, 1, 0), 719, &["waits at the shuffle", "thread 7 has returned"]);
}

#[test]
fn a_read_and_a_write_behind_an_allocation() {
    unsafe fn reads(args: *const u8) {
        // SAFETY: the machine refuses it.
        unsafe { load((address(args) as *const f32).add(thread_idx_x() as usize)) };
    }
    unsafe fn writes(args: *const u8) {
        // SAFETY: the machine refuses it.
        unsafe { store((address(args) as *mut f32).add(thread_idx_x() as usize), 1.0) };
    }
    let memory = allocate_written(50 * 4);
    let place = "200 bytes from the start of one of 200 bytes";
    assert_report(run(reads, 1, memory), 700, &["block 0, thread 50: reads 4 bytes", place]);
    assert_report(run(writes, 1, memory), 700, &["thread 50: writes 4 bytes", place, "tests.rs"]);
}

#[test]
fn a_word_that_only_begins_inside_an_allocation() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the machine refuses it.
        unsafe { load((address(args)) as *const f64) };
    }
    let memory = allocate_written(12);
    assert_report(
        run(kernel, 1, memory + 8),
        700,
        &["reads 8 bytes", "8 bytes from the start of one of 12"],
    );
}

#[test]
fn freed_memory() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the machine refuses it.
        unsafe { load(address(args) as *const f32) };
    }
    let memory = memory::allocate(64).unwrap();
    assert!(memory::free(memory));
    assert!(!memory::free(memory), "freed twice");
    assert_report(run(kernel, 1, memory + 16), 700, &["byte 16 of 64 freed bytes"]);
}

#[test]
fn an_address_off_its_alignment() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the machine refuses it.
        unsafe { load((address(args) + 2) as *const f32) };
    }
    let memory = allocate_written(64);
    assert_report(run(kernel, 1, memory), 716, &["not aligned"]);
}

#[test]
fn an_index_behind_a_shared_array() {
    unsafe fn kernel(_: *const u8) {
        // SAFETY: the machine refuses it, beyond the array's own assertion.
        unsafe { scratch().set(64 + thread_idx_x(), 1) };
    }
    assert_report(
        run(kernel, 1, 0),
        700,
        &["thread 0: writes 8 bytes outside the block's shared arrays"],
    );
}

#[test]
fn dynamic_shared_memory() {
    unsafe fn writes(_: *const u8) {
        let own = thread_idx_x();
        // SAFETY: as the machine allows, except for the last thread of the second block.
        unsafe {
            rest().set(own, Vec16([own; 4]));
            sync_threads();
            assert_eq!(rest().get(63 - own), Vec16([63 - own; 4]));
            if own == 63 && block_idx_x() == 1 {
                rest().set(own + 1, Vec16([0; 4]));
            }
        }
    }
    unsafe fn reads(_: *const u8) {
        // SAFETY: the machine refuses it.
        unsafe { rest().get(thread_idx_x()) };
    }
    run(writes, 1, 0).unwrap();
    let what = "block 1, thread 63: writes 16 bytes outside the block's shared arrays";
    assert_report(run(writes, 2, 0), 700, &[what]);
    let what = "thread 0: reads 16 bytes of shared memory, from byte 0 of an array, that nothing";
    assert_report(run(reads, 1, 0), 719, &[what]);
}

#[test]
fn global_memory_that_nothing_has_written() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the argument of the kernel.
        let at = unsafe { address(args) };
        // SAFETY: the machine refuses the second read of thread 5.
        unsafe {
            let own = (at as *mut u32).add(thread_idx_x() as usize);
            store(own, 1);
            load(own);
            if thread_idx_x() == 5 {
                load((at as *mut u32).add(64));
            }
        }
    }
    let memory = memory::allocate(65 * 4).unwrap();
    assert_report(
        run(kernel, 1, memory),
        719,
        &["thread 5: reads 4 bytes of global memory", "nothing has written"],
    );
}

#[test]
fn a_word_of_which_half_was_written() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: the argument of the kernel.
        let at = unsafe { address(args) };
        // SAFETY: the machine refuses the read.
        unsafe {
            store(at as *mut u32, 1);
            load(at as *mut u64);
        }
    }
    let memory = memory::allocate(8).unwrap();
    assert_report(run(kernel, 1, memory), 719, &["reads 8 bytes", "nothing has written"]);
}

#[test]
fn a_copy_to_shared_memory_that_nobody_waits_for() {
    unsafe fn copies<const BUT: u32>(args: *const u8) {
        let own = thread_idx_x();
        // SAFETY: as the machine allows, after the copy was waited for.
        unsafe {
            let from = (address(args) + u64::from(own) * 16) as *const Vec16;
            rest().copy(own, from);
            end_copies();
            wait_for_copies::<BUT>();
            assert_eq!(rest().get(own), Vec16([0; 4]));
        }
    }
    let memory = allocate_written(64 * 16);
    run(copies::<0>, 1, memory).unwrap();
    let what = "thread 0: reads 16 bytes of shared memory, from byte 0 of an array, that nothing";
    assert_report(run(copies::<1>, 1, memory), 719, &[what]);
    let behind = "thread 1: reads 16 bytes of global memory";
    assert_report(run(copies::<0>, 1, memory + 63 * 16), 700, &[behind]);
    assert!(memory::free(memory));
}

/// A missing barrier is found: the reader runs ahead of the writer.
#[test]
fn shared_memory_that_nothing_has_written() {
    unsafe fn kernel(_: *const u8) {
        // SAFETY: the machine refuses the read.
        unsafe {
            scratch().set(thread_idx_x(), 1);
            scratch().get(63 - thread_idx_x());
        }
    }
    assert_report(
        run(kernel, 1, 0),
        719,
        &["thread 0: reads 8 bytes of shared memory, from byte 504"],
    );
}

#[test]
fn a_failed_assertion_of_a_kernel() {
    unsafe fn kernel(_: *const u8) {
        assert!(block_idx_x() != 3, "planted");
    }
    assert_report(run(kernel, 5, 0), 719, &["kernel planted, block 3, thread 0: planted"]);
}

/// A block may wait for those before it, however many run at a time, since they begin in the order
/// of their indices.
#[test]
fn a_block_may_wait_for_those_before_it() {
    unsafe fn kernel(args: *const u8) {
        let (block, last) = (block_idx_x() as usize, grid_dim_x() as usize - 1);
        // SAFETY: as the machine allows.
        unsafe {
            let places = address(args) as *mut u64;
            if thread_idx_x() == 0 && block < last {
                store_shared_by_grid(places.add(block), 1);
            } else if thread_idx_x() == 0 {
                for other in 0..last {
                    while load_shared_by_grid(places.add(other)) == 0 {
                        spin();
                    }
                }
                store(places.add(last), 7_u64);
            }
        }
    }
    let memory = allocate_written(8 * 300);
    run(kernel, 300, memory).unwrap();
    // SAFETY: within the allocation.
    assert_eq!(unsafe { (memory as *const u64).add(299).read() }, 7);
}

#[test]
fn a_wait_for_a_block_that_has_faulted_ends() {
    unsafe fn kernel(_: *const u8) {
        assert!(block_idx_x() != 0, "planted");
        loop {
            spin();
        }
    }
    assert_report(run(kernel, 20, 0), 719, &["kernel planted, block 0, thread 0: planted"]);
}

/// Each block writes a value to each of its words in turn, and waits for those of all others.
///
/// # Safety
/// `places` has room for `rounds` values of each block.
unsafe fn exchange(places: *mut u64, rounds: u64) -> u64 {
    let (own, blocks) = (u64::from(block_idx_x()), u64::from(grid_dim_x()));
    let mut sum = 0;
    for round in 0..rounds {
        // SAFETY: the caller's condition.
        unsafe {
            store_shared_by_grid(places.add((round * blocks + own) as usize), 1 + own + sum);
            for other in 0..blocks {
                let place = places.add((round * blocks + other) as usize);
                while load_shared_by_grid(place) == 0 {
                    spin();
                }
                sum += load_shared_by_grid(place);
            }
        }
    }
    sum
}

/// The result of `exchange`.
fn exchanged(blocks: u64, rounds: u64) -> u64 {
    (0..rounds).fold(0, |sum, _| sum + blocks * sum + blocks * (blocks + 1) / 2)
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            let places = address(args) as *mut u64;
            // One thread of a warp spins while the others wait for it, at a shuffle or at the
            // barrier.
            if thread_idx_x() == 33 {
                scratch().set(0, exchange(places, 3));
            }
            if thread_idx_x() >= 32 {
                sync_warp();
            }
            sync_threads();
            if thread_idx_x() == 0 {
                let own = 3 * grid_dim_x() + block_idx_x();
                store(places.add(own as usize), scratch().get(0));
            }
        }
    }
    // With 100 blocks, some run on other stacks than those that a worker reuses.
    for (blocks, workers) in [(8_u64, 1), (8, 2), (1, 2), (100, 1), (100, 2)] {
        let memory = allocate_written(8 * 4 * blocks as usize);
        run_cooperative(kernel, blocks as u32, memory, workers).unwrap();
        for block in 0..blocks as usize {
            // SAFETY: within the allocation.
            let got = unsafe { (memory as *const u64).add(3 * blocks as usize + block).read() };
            assert_eq!(got, exchanged(blocks, 3), "block {block} of {blocks}, {workers} workers");
        }
        assert!(memory::free(memory));
    }
}

/// Every thread waits for other blocks, with shuffles of its warp in between.
#[test]
fn warps_of_a_cooperative_launch_wait_together() {
    unsafe fn kernel(args: *const u8) {
        let (block, lane) = (block_idx_x(), thread_idx_x() % 32);
        // SAFETY: as the machine allows.
        unsafe {
            let places = address(args) as *mut u64;
            sync_threads();
            if thread_idx_x() == 0 {
                store_shared_by_grid(places.add(block as usize), 1);
            }
            let place = places.add((lane % grid_dim_x()) as usize);
            while any_of_warp(load_shared_by_grid(place) == 0) {
                spin();
            }
            if thread_idx_x() == 0 {
                store_shared_by_grid(places.add((8 + block) as usize), 1);
            }
            // The first lane waits at the shuffle while the others spin.
            let place = place.add(8);
            while any_of_warp(lane > 0 && load_shared_by_grid(place) == 0) {
                if lane > 0 {
                    spin();
                }
            }
            sync_threads();
        }
    }
    for workers in [1, 2] {
        let memory = allocate_written(8 * 16);
        run_cooperative(kernel, 8, memory, workers).unwrap();
        assert!(memory::free(memory));
    }
}

/// A cooperative launch runs as many threads as are resident on a device, each on its own stack.
#[test]
fn a_cooperative_launch_fills_the_device() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            if thread_idx_x() == 63 {
                exchange(address(args) as *mut u64, 1);
            }
            sync_threads();
        }
    }
    let blocks = resident_blocks(0, 64, 64 * 16);
    assert_eq!(blocks, 132 * 32);
    let memory = allocate_written(8 * blocks as usize);
    run_cooperative(kernel, blocks, memory, 16).unwrap();
    assert!(memory::free(memory));
}

#[test]
fn a_cooperative_wait_for_a_block_that_has_faulted_ends() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            if block_idx_x() == 5 {
                // Spins until another block is about to wait.
                while load_shared_by_grid(address(args) as *const u64) == 0 {
                    spin();
                }
                panic::resume_unwind(Box::new("planted"));
            }
            store_shared_by_grid(address(args) as *mut u64, 1);
            loop {
                spin();
            }
        }
    }
    for workers in [1, 2] {
        let memory = allocate_written(8);
        let what = "kernel planted, block 5, thread 0: planted";
        assert_report(run_cooperative(kernel, 20, memory, workers), 719, &[what]);
        assert!(memory::free(memory));
    }
}

#[test]
fn a_divergence_in_a_cooperative_launch() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            if thread_idx_x() == 0 {
                exchange(address(args) as *mut u64, 1);
            } else {
                sync_threads();
            }
        }
    }
    let memory = allocate_written(8 * 8);
    let parts = ["thread 1: waits at the barrier at", "thread 0 has returned"];
    assert_report(run_cooperative(kernel, 8, memory, 2), 719, &parts);
    assert!(memory::free(memory));
}

#[test]
fn a_cooperative_launch_in_which_no_block_goes_on() {
    unsafe fn kernel(args: *const u8) {
        // SAFETY: as the machine allows.
        unsafe {
            if block_idx_x() == 0 {
                return;
            }
            if thread_idx_x() == 7 {
                while load_shared_by_grid(address(args) as *const u64) == 0 {
                    spin();
                }
            }
            sync_threads();
        }
    }
    /// Every round has shuffles.
    unsafe fn shuffles(args: *const u8) {
        let lane = thread_idx_x() % 32;
        // SAFETY: as the machine allows.
        unsafe {
            while any_of_warp(lane == 0 && load_shared_by_grid(address(args) as *const u64) == 0) {
                if lane == 0 {
                    spin();
                }
            }
        }
    }
    let memory = allocate_written(8);
    for workers in [1, 2] {
        let parts = [
            "kernel planted: no block goes on",
            "block 1, thread 0: waits at the barrier at",
            "block 1, thread 7: waits for another block at",
            "tests.rs:",
        ];
        assert_report(run_cooperative(kernel, 4, memory, workers), 719, &parts);
        let parts = ["block 0, thread 0: waits for another block at", "waits at the shuffle by"];
        assert_report(run_cooperative(shuffles, 4, memory, workers), 719, &parts);
    }
    assert!(memory::free(memory));
}

/// Whether the condition holds for any lane.
#[track_caller]
fn any_of_warp(of: bool) -> bool {
    let mut any = u32::from(of);
    for lane_mask in [16, 8, 4, 2, 1] {
        any |= any.shuffle_xor(lane_mask);
    }
    any != 0
}

#[test]
fn blocks_that_a_device_holds_at_a_time() {
    let kib = 1 << 10;
    // Limited by threads, by blocks, and by shared memory, of which the driver takes some per
    // block.
    assert_eq!(resident_blocks(0, 1024, 0), 132 * 2);
    assert_eq!(resident_blocks(0, 32, 0), 132 * 32);
    assert_eq!(resident_blocks(0, 1024, 113 * kib), 132 * 2);
    assert_eq!(resident_blocks(0, 1024, 113 * kib + 16), 132);
    assert_eq!(resident_blocks(1, 256, 49 * kib), 132 * 2);
    assert_eq!(resident_blocks(1, 256, 99 * kib), 132);
    // The third device is as small as a device can be.
    assert_eq!(resident_blocks(2, 1024, 0), 2 * 2);
    assert_eq!(resident_blocks(2, 1024, 113 * kib + 16), 2);
}

/// A fault in one thread leaves the other threads of its block waiting; they must unwind, and the
/// next blocks must run.
#[test]
fn blocks_run_after_a_fault() {
    unsafe fn faults(_: *const u8) {
        if thread_idx_x() == 63 {
            return;
        }
        sync_threads();
    }
    unsafe fn works(_: *const u8) {
        sync_threads();
    }
    for _ in 0..100 {
        assert!(run(faults, 8, 0).is_err());
        run(works, 8, 0).unwrap();
    }
}

#[test]
fn memory_is_mapped_when_touched() {
    let memory = memory::allocate(1 << 36).expect("64 GiB of address space");
    let last = (memory + (1 << 36) - 4) as *mut u32;
    // SAFETY: within the allocation.
    unsafe {
        assert_eq!(last.read(), 0);
        last.write(7);
        assert_eq!(last.read(), 7);
    }
    assert!(memory::free(memory));
}

/// Runs `kernel` in one block. The machine must refuse it for a race between two lines of this
/// file.
#[track_caller]
fn assert_race(kernel: unsafe fn(*const u8), address: usize, parts: &[&str]) {
    let fault = run(kernel, 1, address).expect_err("the planted race was not found");
    assert_eq!(fault.report.matches("tests.rs:").count(), 2, "{}", fault.report);
    assert_report(Err(fault), 719, &[parts, &["no barrier between the two"]].concat());
}

#[test]
fn a_write_after_another_warp_has_read() {
    unsafe fn kernel(_: *const u8) {
        let own = thread_idx_x();
        // SAFETY: the machine refuses the write of thread 32.
        unsafe {
            if own == 0 {
                scratch().set(0, 1);
            }
            sync_threads();
            scratch().get(0);
            if own == 32 {
                scratch().set(0, 2);
            }
        }
    }
    let what = "thread 32: writes 8 bytes of shared memory, from byte 0 of an array, that thread";
    assert_race(kernel, 0, &[what, "reads at"]);
}

#[test]
fn a_read_after_another_warp_has_written() {
    unsafe fn kernel(_: *const u8) {
        // SAFETY: the machine refuses the read of thread 32.
        unsafe {
            if thread_idx_x() == 0 {
                scratch().set(0, 1);
            }
            // Orders the warp, not the block.
            sync_warp();
            scratch().get(0);
        }
    }
    let what = "thread 32: reads 8 bytes of shared memory, from byte 0 of an array, that thread 0";
    assert_race(kernel, 0, &[what, "writes at"]);
}

#[test]
fn two_writes() {
    unsafe fn kernel(_: *const u8) {
        // SAFETY: the machine refuses the second write.
        unsafe { scratch().set(thread_idx_x() / 2, 1) };
    }
    assert_race(kernel, 0, &["thread 1: writes", "that thread 0 writes at"]);
}

#[test]
fn a_race_in_a_warp_that_a_shuffle_does_not_order() {
    unsafe fn kernel<const SYNC: bool>(_: *const u8) {
        let own = thread_idx_x();
        // SAFETY: as the machine allows, if the warp synchronises.
        unsafe {
            scratch().set(own, 1);
            1_u32.shuffle_xor(1);
            if SYNC {
                sync_warp();
            }
            scratch().get(own ^ 1);
            if SYNC {
                sync_warp();
            }
            scratch().set(own ^ 2, 1);
        }
    }
    run(kernel::<true>, 1, 0).unwrap();
    assert_race(kernel::<false>, 0, &["thread 0: reads", "that thread 1 writes at"]);
}

/// Lanes of the writer's warp and another warp have read, and `sync_warp` orders the reads of the
/// lanes alone.
#[test]
fn a_write_after_two_warps_have_read() {
    unsafe fn kernel<const FIRST: u32>(_: *const u8) {
        let own = thread_idx_x();
        // SAFETY: the machine refuses the last write.
        unsafe {
            scratch().set(own, 1);
            sync_threads();
            if own / 32 == FIRST {
                scratch().get(0);
            }
            sync_warp();
            scratch().get(0);
            sync_warp();
            if own == 63 {
                scratch().set(0, 2);
            }
        }
    }
    assert_race(kernel::<0>, 0, &["thread 63: writes", "reads at"]);
    assert_race(kernel::<1>, 0, &["thread 63: writes", "reads at"]);
}

/// A race with one half of what was written in one piece.
#[test]
fn a_race_of_accesses_of_several_widths() {
    unsafe fn kernel(_: *const u8) {
        let own = thread_idx_x();
        // SAFETY: the machine refuses the read of thread 7.
        unsafe {
            rest().set(own, Vec16([own; 4]));
            sync_threads();
            let words = rest().words::<u16>();
            if own == 5 {
                words.set(8 * 5 + 3, 1);
            } else if own == 6 {
                words.get(8 * 5 + 4);
            } else if own == 7 {
                rest().words::<u32>().get(4 * 5 + 1);
            }
        }
    }
    let what = "thread 7: reads 4 bytes of shared memory, from byte 84 of an array, that thread 5";
    assert_race(kernel, 0, &[what]);
}

#[test]
fn a_copy_to_shared_memory_that_others_access() {
    /// Thread READER reads what thread 0 copies, with or without a wait and a barrier in between.
    unsafe fn kernel<const READER: u32, const WAITS: bool, const BARRIER: bool>(args: *const u8) {
        let own = thread_idx_x();
        // SAFETY: as the machine allows, if the copy is waited for before a barrier.
        unsafe {
            rest().set(own, Vec16([own; 4]));
            sync_threads();
            if own == 0 {
                rest().copy(0, address(args) as *const Vec16);
                end_copies();
                if WAITS {
                    wait_for_copies::<0>();
                }
            }
            if BARRIER {
                sync_threads();
            }
            if own == READER {
                rest().get(0);
            }
        }
    }
    let memory = allocate_written(16);
    run(kernel::<40, true, true>, 1, memory).unwrap();
    run(kernel::<0, true, false>, 1, memory).unwrap();
    let what = "that thread 0 writes at";
    assert_race(kernel::<40, true, false>, memory, &["thread 40: reads", what]);
    assert_race(kernel::<40, false, true>, memory, &["thread 40: reads", what]);
    assert_race(kernel::<0, false, true>, memory, &["thread 0: reads", what]);
    assert!(memory::free(memory));
}

#[test]
fn a_copy_over_what_others_have_read() {
    unsafe fn kernel(args: *const u8) {
        let own = thread_idx_x();
        // SAFETY: the machine refuses the copy.
        unsafe {
            rest().set(own, Vec16([own; 4]));
            sync_threads();
            rest().get(own);
            if own == 33 {
                rest().copy(32, address(args) as *const Vec16);
            }
        }
    }
    let memory = allocate_written(16);
    let what = "thread 33: starts to copy 16 bytes of shared memory, from byte 512 of an array";
    assert_race(kernel, memory, &[what, "that thread 32 reads at"]);
    assert!(memory::free(memory));
}

#[test]
fn a_write_to_global_memory_that_is_copied() {
    /// Thread 0 copies 16 bytes, four of which thread WRITER writes.
    unsafe fn kernel<const WRITER: u32, const WAITS: bool, const BARRIER: bool>(args: *const u8) {
        let own = thread_idx_x();
        // SAFETY: as the machine allows, if the copy is waited for before a barrier.
        unsafe {
            let from = address(args) as *const Vec16;
            if own == 0 {
                rest().copy_end(0, from, 8);
                end_copies();
                if WAITS {
                    wait_for_copies::<0>();
                }
            }
            if BARRIER {
                sync_threads();
            }
            if own == WRITER {
                // The copy does not read what is before its first byte.
                store(from.cast::<u32>().cast_mut(), 1);
                store(from.cast::<u32>().cast_mut().add(2), 1);
            }
            sync_threads();
            wait_for_copies::<0>();
        }
    }
    let memory = allocate_written(16);
    run(kernel::<40, true, true>, 1, memory).unwrap();
    run(kernel::<0, true, false>, 1, memory).unwrap();
    let what = format!("writes 4 bytes of global memory at {:#x} that thread 0", memory + 8);
    assert_race(kernel::<40, true, false>, memory, &["thread 40:", &what, "copies at"]);
    assert_race(kernel::<40, false, true>, memory, &["thread 40:", &what]);
    assert_race(kernel::<0, false, false>, memory, &["thread 0:", &what]);
    assert!(memory::free(memory));
}
