//! Many threads, streams, handles, devices and processes at the same time, memory that is dropped
//! in any order, and panics in between: the results have the bits that one thread computes, and
//! nothing is leaked.

use cust::context::Context;
use cust::device::Device;
use cust::memory::mem_get_info;
use cust::stream::{Stream as DriverStream, StreamFlags};
use emulator::live;
use fused_loss::{CrossEntropy, Gpu, Mse, Stream, Tensor};
use rayon::prelude::*;
use std::panic::{self, AssertUnwindSafe};
use std::thread;
use std::time::{Duration, Instant};
use tests::apart::{all_apart, apart};
use tests::brief::{in_threads, usually};
use tests::random::uniforms;
use tests::stress::{Bits, Problem, alone, hash, problems};
use tests::{gpu, open, open_other, tensor};

/// Fails if `body` leaks memory of the device when it runs again.
///
/// The emulator counts all objects that are not destroyed. A GPU's driver uses some memory itself,
/// and so may other processes. There, `body` runs often enough that a leak would add up to more.
fn leaves_nothing(gpu: &Gpu, mut body: impl FnMut()) {
    // The first run loads kernels.
    body();
    if gpu.is_emulated() {
        let before = live();
        body();
        assert_eq!(live(), before);
        return;
    }
    let device = Device::get_device(gpu.ordinal()).unwrap();
    let _current = Context::new(device).unwrap();
    let (before, _) = mem_get_info().unwrap();
    (0..usually(10, 1)).for_each(|_| body());
    // Another test's process may have taken memory meanwhile. It frees that memory when it ends.
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let (after, _) = mem_get_info().unwrap();
        if after + (64 << 20) > before {
            return;
        }
        assert!(Instant::now() < limit, "{before} bytes were free before, {after} after");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Makes all calls on its own streams. Each stream reads what others have written.
fn compute_all(gpu: &Gpu, problems: &[Problem], streams: usize, first: usize) -> Vec<Bits> {
    let streams: Vec<_> = (0..streams).map(|_| gpu.stream().unwrap()).collect();
    let count = problems.len();
    let queued: Vec<_> = (0..count)
        .map(|index| {
            let at = (first + index) % count;
            (at, problems[at].queue(&streams[index % streams.len()]).unwrap())
        })
        .collect();
    let mut results = vec![Vec::new(); count];
    for (index, (at, queued)) in queued.into_iter().enumerate() {
        results[at] = problems[at].read(queued, &streams[(index + 1) % streams.len()]).unwrap();
    }
    results
}

#[track_caller]
fn assert_same(problems: &[Problem], results: &[Bits], alone: &[Bits]) {
    for ((problem, result), alone) in problems.iter().zip(results).zip(alone) {
        assert!(result == alone, "{}: other bits than one thread gets", problem.name());
    }
}

/// Even threads use one device, and odd threads use another if there is one.
#[test]
fn eight_threads_with_four_streams_each_on_two_devices() {
    apart("eight_threads_with_four_streams_each_on_two_devices", "", || {
        let gpu = open();
        leaves_nothing(&gpu, || {
            let devices: Vec<_> = [Some(open()), open_other(&gpu)].into_iter().flatten().collect();
            let of_devices: Vec<_> = devices
                .iter()
                .map(|gpu| {
                    let problems = problems(gpu).unwrap();
                    let alone = alone(gpu, &problems).unwrap();
                    (gpu, problems, alone)
                })
                .collect();
            in_threads(usually(8, 2), |thread| {
                let (gpu, problems, alone) = &of_devices[thread % of_devices.len()];
                // Each thread opens a handle of its own of the device.
                let own = if gpu.is_emulated() { Gpu::emulated } else { Gpu::new };
                let own = own(gpu.ordinal()).unwrap();
                assert_eq!(&own, *gpu);
                let results = compute_all(&own, problems, usually(4, 2), 5 * thread);
                assert_same(problems, &results, alone);
            });
        });
    });
}

#[test]
fn tasks_of_a_thread_pool_share_streams() {
    let problems = problems(gpu()).unwrap();
    let alone = alone(gpu(), &problems).unwrap();
    let streams: Vec<_> = (0..3).map(|_| gpu().stream().unwrap()).collect();
    let tasks = usually(2, 1) * problems.len();
    // All tasks in one thread, or each task in any thread.
    let in_a_thread = tasks / usually(tasks, 1);
    (0..tasks).into_par_iter().with_min_len(in_a_thread).for_each(|task| {
        let at = task % problems.len();
        let (stream, other) = (&streams[task % 3], &streams[(task + 1) % 3]);
        let result = problems[at].compute(stream, other).unwrap();
        assert_same(&problems[at..=at], &[result], &alone[at..=at]);
    });
}

/// Drops something, after reading it if there is something to read.
type End = Box<dyn FnOnce()>;

/// All orders of `count` things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let with_last = |order: Vec<usize>| {
        (0..count).map(move |at| [&order[..at], &[count - 1], &order[at..]].concat())
    };
    orders(count - 1).into_iter().flat_map(with_last).collect()
}

/// The device's last handle, streams, inputs, loss and gradient can be dropped in any order while
/// work on them is queued.
#[test]
fn drops_in_every_order() {
    apart("drops_in_every_order", "", || {
        assert_eq!(orders(3).len(), 6);
        let gpu = open();
        let cols = if gpu.is_emulated() { 40 } else { 50_000 };
        let (x, classes) = (uniforms(1, 4 * cols), [0_i64, 5, 2, 7]);
        let is_emulated = gpu.is_emulated();
        drop(gpu);
        let things = || -> Vec<End> {
            let gpu = open();
            let (stream, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let input = Tensor::from_slice(&gpu, [4, cols], &x).unwrap();
            let target = Tensor::from_slice(&gpu, [4], &classes).unwrap();
            let (loss, gradient) =
                CrossEntropy::mean().forward_backward(&input, &target, &stream).unwrap();
            let norm = Mse::sum().forward(&gradient, &input, &other).unwrap();
            let expected = 1.5 * (cols as f32).ln();
            vec![
                Box::new(move || drop(gpu)),
                Box::new(move || drop((stream, target))),
                Box::new(move || drop(other)),
                Box::new(move || drop(input)),
                Box::new(move || {
                    let loss = loss.item().unwrap();
                    assert!(loss > 0.5 && loss < expected, "{loss}");
                }),
                Box::new(move || {
                    let sum: f32 = gradient.to_vec().unwrap().iter().sum();
                    assert!(sum.abs() < 1e-3, "gradients of a row add up to 0, not {sum}");
                    drop(norm);
                }),
            ]
        };
        // If an earlier test keeps the device open, kernels that are loaded once stay loaded.
        things().into_iter().for_each(|thing| thing());
        let before = live();
        let orders = orders(6);
        assert_eq!(orders.len(), 720);
        // On a GPU, each newly opened device compiles its kernels or reads them from a file.
        let step = if is_emulated { 1 } else { 16 };
        for order in orders.iter().step_by(step).take(usually(orders.len(), 6)) {
            let mut things: Vec<_> = things().into_iter().map(Some).collect();
            order.iter().for_each(|&thing| things[thing].take().unwrap()());
            assert_eq!(live(), before, "dropped in the order {order:?}");
        }
    });
}

#[test]
fn nothing_is_left_by_panics_between_a_call_and_its_result() {
    apart("nothing_is_left_by_panics_between_a_call_and_its_result", "", || {
        let gpu = open();
        let problems = problems(&gpu).unwrap();
        let alone = alone(&gpu, &problems).unwrap();
        let shared = gpu.stream().unwrap();
        leaves_nothing(&gpu, || {
            let threads = usually(4, 2);
            in_threads(threads, |thread| {
                for at in (thread..problems.len()).step_by(threads) {
                    let call = AssertUnwindSafe(|| {
                        let own = gpu.stream().unwrap();
                        let _queued = problems[at].queue(&own).unwrap();
                        let _also = problems[at].queue(&shared).unwrap();
                        // Skips the panic hook, which would print the panic.
                        panic::resume_unwind(Box::new("planted"));
                    });
                    let payload = panic::catch_unwind(call).unwrap_err();
                    assert_eq!(payload.downcast_ref(), Some(&"planted"));
                }
            });
            // A thread that ends with a panic.
            let ended = std::thread::scope(|scope| {
                let call = || {
                    let _queued = problems[0].queue(&shared).unwrap();
                    panic::resume_unwind(Box::new("planted"));
                };
                scope.spawn(call).join()
            });
            ended.unwrap_err();
            shared.synchronize().unwrap();
        });
        let other = gpu.stream().unwrap();
        let results: Vec<_> =
            problems.iter().map(|problem| problem.compute(&shared, &other).unwrap()).collect();
        assert_same(&problems, &results, &alone);
    });
}

#[test]
fn streams_of_different_priorities() {
    let problems = problems(gpu()).unwrap();
    let alone = alone(gpu(), &problems).unwrap();
    let _current = Context::new(Device::get_device(gpu().ordinal()).unwrap()).unwrap();
    let raw = [-5, 0]
        .map(|priority| DriverStream::new(StreamFlags::NON_BLOCKING, Some(priority)).unwrap());
    // SAFETY: of the primary context, and dropped after all that uses them.
    let streams = raw
        .each_ref()
        .map(|raw| unsafe { Stream::from_raw(gpu(), raw.as_inner().cast()).unwrap() });
    for (at, problem) in problems.iter().enumerate() {
        let result = problem.compute(&streams[at % 2], &streams[(at + 1) % 2]).unwrap();
        assert_same(&problems[at..=at], &[result], &alone[at..=at]);
    }
    drop(streams);
}

/// Streams pass a gradient on, and each computes it anew from what the previous stream wrote.
#[test]
fn a_tensor_goes_from_stream_to_stream() {
    let len = if gpu().is_emulated() { 5_000 } else { 5_000_000 };
    let zero = Tensor::<f32>::zeros(gpu(), [len]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[0.5]).unwrap();
    let x = uniforms(21, len);
    let streams: Vec<_> = (0..4).map(|_| gpu().stream().unwrap()).collect();
    let mut value = tensor::<f32>(&x);
    for step in 0..usually(40, 8) {
        // The gradient of (v − 0)² times ½ is v, so a stream that reads too early copies zeros.
        let mut next = Tensor::zeros(gpu(), [len]).unwrap();
        let stream = &streams[step % 4];
        Mse::sum().backward_into(&value, &zero, &upstream, &mut next, stream).unwrap();
        value = next;
    }
    assert!(value.to_vec().unwrap() == x, "a stream has not waited for the one before");
}

#[test]
fn two_processes_get_the_same_bits() {
    let case = || {
        let problems = problems(gpu()).unwrap();
        let results = compute_all(gpu(), &problems, usually(4, 2), 3);
        assert_same(&problems, &results, &alone(gpu(), &problems).unwrap());
        format!("{:016x}", hash(&results))
    };
    let Some(said) = all_apart("two_processes_get_the_same_bits", &["", ""], case) else { return };
    let problems = problems(gpu()).unwrap();
    let here = format!("{:016x}", hash(&alone(gpu(), &problems).unwrap()));
    assert_eq!(said, [here.clone(), here]);
}

/// Every order of threads and blocks gives the same bits. The test runs on the emulator, whatever
/// the machine has: by index and in random orders, on a device with many multiprocessors and on one
/// with few.
#[test]
fn every_order_of_threads_and_blocks_gives_the_same_bits() {
    let case = || {
        let problems = problems(gpu()).unwrap();
        format!("{:016x}", hash(&alone(gpu(), &problems).unwrap()))
    };
    for device in [0, 2] {
        let first =
            format!("export FUSED_LOSS_EMULATOR_DEVICE={device}; unset FUSED_LOSS_REQUIRE_GPU;");
        let by_index = format!("{first} unset FUSED_LOSS_EMULATOR_SEED;");
        let seeds = usually(6, 1);
        let drawn =
            (1..=seeds).map(|seed| format!("{first} export FUSED_LOSS_EMULATOR_SEED={seed};"));
        let firsts: Vec<_> = std::iter::once(by_index).chain(drawn).collect();
        let firsts: Vec<_> = firsts.iter().map(String::as_str).collect();
        let test = "every_order_of_threads_and_blocks_gives_the_same_bits";
        let Some(said) = all_apart(test, &firsts, case) else { return };
        assert_eq!(said.len(), 1 + seeds);
        assert!(said.iter().all(|bits| *bits == said[0]), "device {device}: {said:?}");
    }
}
