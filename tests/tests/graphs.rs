//! The `_into` methods in a CUDA graph: calls that allocate, wait or read back cannot be captured,
//! and a replay computes anew from what the memory contains at that time.

use fused_loss::{CrossEntropy, Error, Grads, Loss, Mse, Saved, Stream, Tensor, Workspace};
use half::f16;
use tests::gpu;
use tests::graph::{Capture, Graph};
use tests::number::Number;
use tests::random::uniforms;

/// Captures what `calls` queues.
fn capture(stream: &Stream, calls: impl FnOnce()) -> Graph {
    let capture = Capture::begin(stream).unwrap();
    calls();
    capture.end().unwrap()
}

fn replay(graph: &Graph, stream: &Stream) {
    graph.launch(stream).unwrap();
    stream.synchronize().unwrap();
}

fn replays_compute_anew<T: Number>()
where
    T::Loss: Number,
{
    let (shape, len) = ([7, 5_001], 7 * 5_001);
    let draw = |seed| -> Vec<T> {
        uniforms(seed, len).into_iter().map(|value| T::round(f64::from(value))).collect()
    };
    let stream = gpu().stream().unwrap();
    let mut input = Tensor::<T>::zeros(gpu(), shape).unwrap();
    let target = Tensor::from_slice(gpu(), shape, &draw(0)).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[T::Loss::round(0.5)]).unwrap();
    let mut forward = Loss::<T::Loss>::zeros(gpu(), []).unwrap();
    let mut both = Loss::<T::Loss>::zeros(gpu(), []).unwrap();
    let mut by_input = Tensor::<T>::zeros(gpu(), shape).unwrap();
    let mut by_target = Tensor::<T>::zeros(gpu(), shape).unwrap();
    let mut alone = Tensor::<T>::zeros(gpu(), shape).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mse = Mse::mean();
    let mut calls = || {
        mse.forward_into(&input, &target, &mut forward, &mut workspace, &stream).unwrap();
        let grads = Grads::both(&mut by_input, &mut by_target).scaled_by(&upstream);
        mse.forward_backward_into(&input, &target, &mut both, grads, &mut workspace, &stream)
            .unwrap();
        mse.backward_into(&input, &target, &upstream, &mut alone, &stream).unwrap();
    };
    // The first use of a kernel compiles it, which a capture does not allow.
    calls();
    stream.synchronize().unwrap();
    let graph = capture(&stream, calls);

    for seed in 1..4 {
        let x = draw(seed);
        input.copy_from_slice(&x).unwrap();
        replay(&graph, &stream);
        let expected = Mse::mean().forward(&input, &target, &stream).unwrap().item().unwrap();
        assert!(expected != T::Loss::round(0.0));
        assert_eq!(forward.item().unwrap(), expected);
        assert_eq!(both.item().unwrap(), expected);
        let expected = Mse::mean().backward(&input, &target, &upstream, &stream).unwrap();
        let expected = expected.to_vec().unwrap();
        assert_eq!(by_input.to_vec().unwrap(), expected);
        assert_eq!(alone.to_vec().unwrap(), expected);
        let negative: Vec<T> = expected.iter().map(|value| T::round(-value.wide())).collect();
        assert_eq!(by_target.to_vec().unwrap(), negative);
    }
}

#[test]
fn replays_compute_anew_in_f32() {
    replays_compute_anew::<f32>();
}

#[test]
fn replays_compute_anew_in_f16() {
    replays_compute_anew::<f16>();
}

/// The check works: it refuses a method that allocates.
#[test]
fn a_method_that_allocates_cannot_be_captured() {
    let stream = gpu().stream().unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [100]).unwrap();
    Mse::mean().forward(&x, &x, &stream).unwrap().item().unwrap();
    let _capture = Capture::begin(&stream).unwrap();
    let error = Mse::mean().forward(&x, &x, &stream).expect_err("an allocation was captured");
    assert!(error.to_string().starts_with("cuMemAlloc: CUDA_ERROR_STREAM_CAPTURE"), "{error}");
}

/// A capture is refused if it would wait for another stream's work, unless an earlier call on the
/// same stream has waited for that work.
#[test]
fn work_of_another_stream_cannot_be_waited_for_in_a_capture() {
    let (stream, other) = (gpu().stream().unwrap(), gpu().stream().unwrap());
    let data = uniforms(22, 100);
    let x = Tensor::<f32>::from_slice(gpu(), [100], &data).unwrap();
    let zero = Tensor::<f32>::zeros(gpu(), [100]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let mut gradient = Tensor::<f32>::zeros(gpu(), [100]).unwrap();
    let mse = Mse::sum();
    mse.backward_into(&x, &zero, &upstream, &mut gradient, &other).unwrap();
    other.synchronize().unwrap();
    let invalid = Capture::begin(&stream).unwrap();
    let error = mse.backward_into(&x, &zero, &upstream, &mut gradient, &stream).unwrap_err();
    let expected = "cuStreamWaitEvent: CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(invalid.end().is_err(), "a graph was made of a capture that has failed");
    mse.backward_into(&x, &zero, &upstream, &mut gradient, &stream).unwrap();
    let graph = capture(&stream, || {
        mse.backward_into(&x, &zero, &upstream, &mut gradient, &stream).unwrap();
    });
    gradient.copy_from_slice(&[0.0; 100]).unwrap();
    replay(&graph, &stream);
    let expected: Vec<_> = data.iter().map(|x| 2.0 * x).collect();
    assert_eq!(gradient.to_vec().unwrap(), expected);
}

/// A stream that is destroyed has no work left for a graph to wait for.
#[test]
fn a_capture_needs_not_wait_for_a_stream_that_has_ended() {
    let data = uniforms(23, 100);
    let x = Tensor::<f32>::from_slice(gpu(), [100], &data).unwrap();
    let zero = Tensor::<f32>::zeros(gpu(), [100]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let mut gradient = Tensor::<f32>::zeros(gpu(), [100]).unwrap();
    let ended = gpu().stream().unwrap();
    Mse::sum().backward_into(&x, &zero, &upstream, &mut gradient, &ended).unwrap();
    ended.synchronize().unwrap();
    drop(ended);
    let stream = gpu().stream().unwrap();
    let graph = capture(&stream, || {
        Mse::sum().backward_into(&x, &zero, &upstream, &mut gradient, &stream).unwrap();
    });
    gradient.copy_from_slice(&[0.0; 100]).unwrap();
    replay(&graph, &stream);
    let expected: Vec<_> = data.iter().map(|x| 2.0 * x).collect();
    assert_eq!(gradient.to_vec().unwrap(), expected);
}

/// A replay computes anew both launches of a mean with its gradient and what one pass saves for
/// another, and records a target that is no class.
#[test]
fn replays_of_cross_entropy_compute_anew() {
    let (rows, cols) = (33, 700);
    let stream = gpu().stream().unwrap();
    let mut input = Tensor::<f32>::zeros(gpu(), [rows, cols]).unwrap();
    let mut target = Tensor::<i64>::zeros(gpu(), [rows]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[0.5_f32]).unwrap();
    let (mut forward, mut both) =
        (Loss::zeros(gpu(), []).unwrap(), Loss::zeros(gpu(), []).unwrap());
    let mut saved = Saved::zeros(gpu(), [rows, cols]).unwrap();
    let mut by_both = Tensor::zeros(gpu(), [rows, cols]).unwrap();
    let mut by_saved = Tensor::zeros(gpu(), [rows, cols]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let loss_of = CrossEntropy::mean();
    let mut calls = || {
        loss_of
            .forward_saving_into(&input, &target, &mut forward, &mut saved, &mut workspace, &stream)
            .unwrap();
        loss_of.backward_into(&input, &target, &saved, &upstream, &mut by_saved, &stream).unwrap();
        let grads = Grads::input(&mut by_both).scaled_by(&upstream);
        loss_of
            .forward_backward_into(&input, &target, &mut both, grads, &mut workspace, &stream)
            .unwrap();
    };
    // Compiles the kernels.
    calls();
    stream.synchronize().unwrap();
    let graph = capture(&stream, calls);
    for seed in 1..4 {
        input.copy_from_slice(&uniforms(seed, rows * cols)).unwrap();
        let mut classes: Vec<i64> = (0..rows as i64).map(|row| row * 3 + seed as i64).collect();
        if seed == 2 {
            classes[5] = -3;
        }
        target.copy_from_slice(&classes).unwrap();
        replay(&graph, &stream);
        for loss in [&forward, &both] {
            assert_eq!(loss.check().is_err(), seed == 2, "seed {seed}");
        }
        if seed == 2 {
            continue;
        }
        let (alone, gradient) = loss_of.forward_backward(&input, &target, &stream).unwrap();
        let alone = alone.item().unwrap();
        assert_eq!(both.item().unwrap(), alone);
        // A forward pass may sum a row in another order than a pass with gradients.
        let (loss, _) = loss_of.forward_saving(&input, &target, &stream).unwrap();
        assert_eq!(forward.item().unwrap(), loss.item().unwrap());
        let gradient = gradient.to_vec().unwrap();
        for by in [&by_both, &by_saved] {
            for (got, alone) in by.to_vec().unwrap().iter().zip(&gradient) {
                assert!((got - alone * 0.5).abs() <= 1e-6 / rows as f32, "{got}, {alone}");
            }
        }
    }
}

/// A loss reports what the device has found in the target, so after a capture it reports nothing
/// until the graph is replayed.
#[test]
fn a_capture_finds_no_target_before_it_is_replayed() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [3, 4], &uniforms(31, 12)).unwrap();
    let mut target = Tensor::from_slice(gpu(), [3], &[0_i64, 1, 2]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mean = CrossEntropy::mean();
    let expected = mean.forward(&input, &target, &stream).unwrap().item().unwrap();
    for shape in [&[][..], &[3]] {
        // The next loss takes memory in which a loss that is dropped had recorded such a target.
        target.copy_from_slice(&[7, 1, 2]).unwrap();
        let gone = CrossEntropy::none().forward(&input, &target, &stream).unwrap();
        gone.check().unwrap_err();
        drop(gone);
        target.copy_from_slice(&[0, 1, 2]).unwrap();
        let mut loss = Loss::<f32>::zeros(gpu(), shape).unwrap();
        let graph = capture(&stream, || {
            let (loss, workspace) = (&mut loss, &mut workspace);
            if shape.is_empty() {
                mean.forward_into(&input, &target, loss, workspace, &stream).unwrap();
            } else {
                let none = CrossEntropy::none();
                none.forward_into(&input, &target, loss, workspace, &stream).unwrap();
            }
        });
        assert_eq!(loss.to_vec().unwrap(), vec![0.0; loss.shape().len()]);
        replay(&graph, &stream);
        let sum: f32 = loss.to_vec().unwrap().iter().sum();
        assert!((sum / loss.shape().len() as f32 - expected).abs() < 1e-6);
    }
}

#[test]
fn a_replay_finds_a_target_whatever_was_written_over_the_loss_before() {
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [3, 4], &uniforms(32, 12)).unwrap();
    let target = Tensor::from_slice(gpu(), [3], &[0_i64, 9, 2]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mean = CrossEntropy::mean();
    mean.forward(&input, &target, &stream).unwrap().item().unwrap_err();
    let mut loss = Loss::<f32>::zeros(gpu(), []).unwrap();
    let graph = capture(&stream, || {
        mean.forward_into(&input, &target, &mut loss, &mut workspace, &stream).unwrap();
    });
    let finds = |loss: &Loss<f32>| {
        let error = loss.item().unwrap_err();
        let found = matches!(error, Error::TargetOutOfRange { row: 1, target: 9, classes: 4 });
        assert!(found, "{error}");
    };
    replay(&graph, &stream);
    finds(&loss);
    // The host writes.
    loss.copy_from_slice(&[3.0]).unwrap();
    assert_eq!(loss.item().unwrap(), 3.0);
    replay(&graph, &stream);
    finds(&loss);
    // A loss without classes writes, through the loss and through its values.
    let mut sums = Workspace::new(gpu()).unwrap();
    Mse::sum().forward_into(&input, &input, &mut loss, &mut sums, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
    replay(&graph, &stream);
    finds(&loss);
    Mse::sum().forward_into(&input, &input, loss.values_mut(), &mut sums, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
    replay(&graph, &stream);
    finds(&loss);
}
