//! Threads, streams, and memory that is dropped while work still uses it.

use fused_loss::{CrossEntropy, Gpu, Loss, Mse, Stream, Tensor, Workspace};
use tests::brief::{in_threads, usually};
use tests::random::uniforms;
use tests::{gpu, tensor};

#[test]
fn handles_and_memory_may_go_to_any_thread() {
    fn may<T: Send + Sync>() {}
    may::<Gpu>();
    may::<Stream>();
    may::<Tensor<f32>>();
    may::<Loss<f32>>();
    may::<Workspace>();
}

#[test]
fn eight_threads_get_what_one_gets() {
    let (x, t) = (tensor::<f32>(&uniforms(5, 200_000)), tensor::<f32>(&uniforms(6, 200_000)));
    let run = || {
        let stream = gpu().stream().unwrap();
        let (loss, gradient) = Mse::mean().forward_backward(&x, &t, &stream).unwrap();
        (loss.item().unwrap().to_bits(), gradient.to_vec().unwrap())
    };
    let alone = run();
    in_threads(usually(8, 2), |_| assert!(run() == alone, "a thread got other bits"));
}

#[test]
fn a_result_of_one_stream_is_an_input_of_another() {
    let (x, t) = (tensor::<f32>(&uniforms(7, 100_000)), tensor::<f32>(&uniforms(8, 100_000)));
    let zero = Tensor::zeros(gpu(), [100_000]).unwrap();
    let (first, second) = (gpu().stream().unwrap(), gpu().stream().unwrap());
    let (_, gradient) = Mse::sum().forward_backward(&x, &t, &first).unwrap();
    let norm = Mse::sum().forward(&gradient, &zero, &second).unwrap().item().unwrap();
    let same = Mse::sum().forward(&gradient, &zero, &first).unwrap().item().unwrap();
    assert_eq!(norm.to_bits(), same.to_bits());
    assert!(norm > 0.0);
}

#[test]
fn memory_may_be_dropped_while_work_on_it_is_queued() {
    let stream = gpu().stream().unwrap();
    let losses: Vec<_> = (0..20)
        .map(|seed| {
            let (x, t) = (
                tensor::<f32>(&uniforms(seed, 50_000)),
                tensor::<f32>(&uniforms(seed + 1, 50_000)),
            );
            Mse::mean().forward(&x, &t, &stream).unwrap()
        })
        .collect();
    for loss in losses {
        let loss = loss.item().unwrap();
        assert!((0.6..0.7).contains(&loss), "the mean of (u - v)² is 2/3, got {loss}");
    }
}

#[test]
fn one_workspace_serves_streams_in_turn() {
    let mut workspace = Workspace::new(gpu()).unwrap();
    let (x, t) = (tensor::<f32>(&uniforms(9, 300_000)), tensor::<f32>(&uniforms(10, 300_000)));
    let streams: Vec<_> = (0..4).map(|_| gpu().stream().unwrap()).collect();
    let mut losses: Vec<_> = (0..16).map(|_| Loss::<f32>::zeros(gpu(), []).unwrap()).collect();
    for (index, loss) in losses.iter_mut().enumerate() {
        Mse::mean().forward_into(&x, &t, loss, &mut workspace, &streams[index % 4]).unwrap();
    }
    let bits: Vec<_> = losses.iter().map(|loss| loss.item().unwrap().to_bits()).collect();
    assert!(bits.iter().all(|&other| other == bits[0]), "{bits:x?}");
}

/// Threads that share a stream get the bits that one thread gets, although a call passes numbers
/// from launch to launch in the stream's scratch memory. The shapes are rows of a warp, of a block,
/// and of several blocks.
#[test]
fn threads_that_share_a_stream_get_what_one_gets() {
    let stream = gpu().stream().unwrap();
    for (rows, cols) in [(64, 40), (64, 1_000), (2, 9_000)] {
        let inputs = [17, 18].map(|seed| {
            let x = Tensor::from_slice(gpu(), [rows, cols], &uniforms(seed, rows * cols)).unwrap();
            // In the second input, every other row is ignored.
            let counts = |row| seed == 17 || row % 2 == 0;
            let class = |row: usize| if counts(row) { (row * 7 % cols) as i64 } else { -100 };
            let classes: Vec<_> = (0..rows).map(class).collect();
            (x, Tensor::from_slice(gpu(), [rows], &classes).unwrap())
        });
        let run = |(x, classes): &(Tensor<f32>, Tensor<i64>)| {
            let (loss, gradient) =
                CrossEntropy::mean().forward_backward(x, classes, &stream).unwrap();
            (loss.item().unwrap().to_bits(), gradient.to_vec().unwrap())
        };
        let alone = inputs.each_ref().map(run);
        in_threads(2, |thread| {
            for _ in 0..usually(100, 5) {
                assert!(run(&inputs[thread]) == alone[thread], "a thread got other bits");
            }
        });
    }
}

/// The number of elements that keeps a second stream busy for some time.
fn busy_len() -> usize {
    if gpu().is_emulated() { 20_000 } else { usually(1 << 26, 1 << 20) }
}

#[test]
fn a_hundred_runs_beside_a_busy_stream_have_the_same_bits() {
    let (stream, other) = (gpu().stream().unwrap(), gpu().stream().unwrap());
    let len = if gpu().is_emulated() { 30_001 } else { 5_000_001 };
    let (x, t) = (tensor::<f32>(&uniforms(11, len)), tensor::<f32>(&uniforms(12, len)));
    let busy = Tensor::<f32>::zeros(gpu(), [busy_len()]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let mut scratch = Tensor::<f32>::zeros(gpu(), [busy_len()]).unwrap();
    let run = || {
        let (loss, gradient) = Mse::mean().forward_backward(&x, &t, &stream).unwrap();
        (loss.item().unwrap().to_bits(), gradient.to_vec().unwrap())
    };
    let alone = run();
    for _ in 0..usually(100, 5) {
        Mse::sum().backward_into(&busy, &busy, &upstream, &mut scratch, &other).unwrap();
        assert!(run() == alone, "a run beside a busy stream has other bits");
    }
    other.synchronize().unwrap();
}

/// The gradients are divided by the sum of the class weights. The shapes are rows of a warp, of a
/// block, and of several blocks.
#[test]
fn a_hundred_runs_of_cross_entropy_beside_a_busy_stream_have_the_same_bits() {
    let (stream, other) = (gpu().stream().unwrap(), gpu().stream().unwrap());
    let busy = Tensor::<f32>::zeros(gpu(), [busy_len()]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let mut scratch = Tensor::<f32>::zeros(gpu(), [busy_len()]).unwrap();
    let shapes = if gpu().is_emulated() {
        [(50, 40), (5, 1_000), (2, 9_000)]
    } else {
        [(20_000, 100), (2_000, 3_001), (3, 200_000)]
    };
    for (rows, cols) in shapes {
        let x = Tensor::from_slice(gpu(), [rows, cols], &uniforms(15, rows * cols)).unwrap();
        let classes: Vec<i64> = (0..rows).map(|row| (row * 7 % cols) as i64).collect();
        let classes = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        let weight = tensor::<f32>(&uniforms(16, cols).iter().map(|w| w + 1.5).collect::<Vec<_>>());
        let loss = CrossEntropy::mean().weight(weight.view());
        let run = || {
            let (loss, gradient) = loss.forward_backward(&x, &classes, &stream).unwrap();
            (loss.item().unwrap().to_bits(), gradient.to_vec().unwrap())
        };
        let alone = run();
        for _ in 0..if gpu().is_emulated() { 5 } else { usually(100, 5) } {
            Mse::sum().backward_into(&busy, &busy, &upstream, &mut scratch, &other).unwrap();
            assert!(run() == alone, "a run beside a busy stream has other bits");
        }
    }
    other.synchronize().unwrap();
}

#[test]
fn eight_threads_with_four_streams_each_have_the_same_bits() {
    let (x, t) = (tensor::<f32>(&uniforms(13, 70_001)), tensor::<f32>(&uniforms(14, 70_001)));
    let alone = {
        let stream = gpu().stream().unwrap();
        Mse::mean().forward(&x, &t, &stream).unwrap().item().unwrap().to_bits()
    };
    in_threads(usually(8, 2), |_| {
        let count = usually(4, 2);
        let streams: Vec<_> = (0..count).map(|_| gpu().stream().unwrap()).collect();
        let losses: Vec<_> = (0..4 * count)
            .map(|call| Mse::mean().forward(&x, &t, &streams[call % count]).unwrap())
            .collect();
        for loss in losses {
            assert_eq!(loss.item().unwrap().to_bits(), alone);
        }
    });
}

#[test]
fn the_threads_own_context_is_put_back() {
    // Works on the second device, if there is one, between two calls on the first.
    let open = if gpu().is_emulated() { Gpu::emulated } else { Gpu::new };
    let Ok(other) = open(1) else { return };
    let stream = gpu().stream().unwrap();
    let (x, t) = (tensor::<f32>(&[1.0; 100]), tensor::<f32>(&[0.0; 100]));
    let there = Tensor::from_slice(&other, [1], &[3.0_f32]).unwrap();
    assert_eq!(Mse::mean().forward(&x, &t, &stream).unwrap().item().unwrap(), 1.0);
    assert_eq!(there.to_vec().unwrap(), [3.0]);
}
