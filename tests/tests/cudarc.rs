//! Memory and streams from cudarc. cudarc calls the machine's driver, never the emulator: without a
//! driver, the tests only check that both are in one program.

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DriverError, result, sys,
};
use fused_loss::{
    CrossEntropy, Error, Gpu, Loss, Mse, RowSum, Stream, Targets, Tensor, View, ViewMut, Workspace,
};
use half::{bf16, f16};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tests::random::uniforms;
use tests::reference::{cross_entropy, mse};
use tests::{gpu, tensor};

/// cudarc's context of the first GPU, for one test at a time: while one thread captures a stream of
/// the device, no thread may synchronise the device.
struct Context {
    context: Arc<CudaContext>,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Deref for Context {
    type Target = Arc<CudaContext>;

    fn deref(&self) -> &Self::Target {
        &self.context
    }
}

/// The context, if there is a GPU. If `FUSED_LOSS_REQUIRE_GPU` is set, a missing GPU is a failure.
fn context() -> Option<Context> {
    static LOCK: Mutex<()> = Mutex::new(());
    if gpu().is_emulated() {
        eprintln!("no NVIDIA driver, and cudarc has no other: nothing is tested");
        return None;
    }
    let _one_at_a_time = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Context { context: CudaContext::new(0).unwrap(), _one_at_a_time })
}

/// The context, a cudarc stream that is not the default stream, and the library's handle of the
/// same stream.
fn streams() -> Option<(Context, Arc<CudaStream>, Stream)> {
    let context = context()?;
    let theirs = context.new_stream().unwrap();
    let ours = Stream::from_cudarc(&theirs).unwrap();
    Some((context, theirs, ours))
}

#[track_caller]
fn assert_message<T>(result: Result<T, Error>, expected: &str) {
    match result {
        Ok(_) => panic!("expected the error: {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= 2e-6 * largest, "element {index}: expected {expected}, got {got}");
    }
}

/// Work that keeps a stream busy for some milliseconds: copies of 256 MiB.
struct Load {
    from: CudaSlice<u8>,
    to: CudaSlice<u8>,
}

impl Load {
    fn new(stream: &Arc<CudaStream>) -> Self {
        let bytes = 256 << 20;
        Load { from: stream.alloc_zeros(bytes).unwrap(), to: stream.alloc_zeros(bytes).unwrap() }
    }

    fn queue(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        (0..40).try_for_each(|_| stream.memcpy_dtod(&self.from, &mut self.to))
    }
}

#[test]
fn cudarc_and_the_emulator_are_in_one_program() {
    let x = tensor::<f32>(&[1.0, 2.0]);
    let loss = Mse::sum().forward(&x, &x, &gpu().stream().unwrap()).unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
    // SAFETY: loads the driver's library, if there is one, and calls nothing in it.
    let has_library = unsafe { sys::is_culib_present() };
    assert!(has_library || gpu().is_emulated());
}

#[test]
fn views_are_copied_and_go_to_any_thread() {
    fn may<T: Copy + Send + Sync>() {}
    fn may_go<T: Send + Sync>() {}
    may::<View<'_, f32>>();
    may_go::<ViewMut<'_, f32>>();
    may_go::<Stream>();
}

#[test]
fn mse_of_memory_that_is_all_cudarcs() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let (rows, cols) = (64, 1000);
    let (x, t) = (uniforms(1, rows * cols), uniforms(2, rows * cols));
    let (input, target) = (theirs.clone_htod(&x).unwrap(), theirs.clone_htod(&t).unwrap());
    let mut loss = theirs.alloc_zeros::<f32>(1).unwrap();
    let mut gradient = theirs.alloc_zeros::<f32>(rows * cols).unwrap();
    let mut workspace = Workspace::new(ours.gpu()).unwrap();
    let input = View::from_cudarc(&ours, &input, [rows, cols]).unwrap();
    let target = View::from_cudarc(&ours, &target, [rows, cols]).unwrap();
    Mse::sum()
        .forward_backward_into(
            input,
            target,
            ViewMut::from_cudarc(&ours, &mut loss, []).unwrap(),
            ViewMut::from_cudarc(&ours, &mut gradient, [rows, cols]).unwrap(),
            &mut workspace,
            &ours,
        )
        .unwrap();
    assert_close(&theirs.clone_dtoh(&loss).unwrap(), &[mse::sum(&x, &t)]);
    assert_close(&theirs.clone_dtoh(&gradient).unwrap(), &mse::gradient(&x, &t, 1.0));
    assert_eq!(input.to_vec(&ours).unwrap(), x);
}

#[test]
fn cross_entropy_of_views_of_cudarcs() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let (rows, cols) = (40, 300);
    // Other numbers surround the operands; no part of the call may touch them.
    let logits = theirs.clone_htod(&uniforms(3, rows * cols + 20)).unwrap();
    let logits: CudaView<'_, f32> = logits.slice(4..4 + rows * cols);
    let targets: Vec<i64> = (0..rows as i64).map(|row| (row * 7) % cols as i64).collect();
    let classes = theirs.clone_htod(&targets).unwrap();
    let mut memory = theirs.alloc_zeros::<f32>(rows * cols + 20).unwrap();
    let mut gradient: CudaViewMut<'_, f32> = memory.slice_mut(4..4 + rows * cols);
    let mut loss = Loss::zeros(ours.gpu(), []).unwrap();
    let mut workspace = Workspace::new(ours.gpu()).unwrap();
    CrossEntropy::sum()
        .forward_backward_into(
            View::from_cudarc(&ours, &logits, [rows, cols]).unwrap(),
            View::from_cudarc(&ours, &classes, rows).unwrap(),
            &mut loss,
            ViewMut::from_cudarc(&ours, &mut gradient, [rows, cols]).unwrap(),
            &mut workspace,
            &ours,
        )
        .unwrap();
    let (mut expected, mut by_input) = (0.0, vec![0.0; 4]);
    let (x, weight) = (theirs.clone_dtoh(&logits).unwrap(), vec![1.0; cols]);
    for (row, &class) in x.chunks(cols).zip(&targets) {
        let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
        let target = cross_entropy::Target::Class(class as usize);
        let options = cross_entropy::Options { weight: &weight, label_smoothing: 0.0, z_loss: 0.0 };
        let row = cross_entropy::row(&row, target, options);
        expected += row.loss;
        by_input.extend(row.by_input);
    }
    by_input.extend([0.0; 16]);
    assert_close(&[loss.item().unwrap()], &[expected]);
    assert_close(&theirs.clone_dtoh(&memory).unwrap(), &by_input);
}

/// A slice of classes of each type gives the same bits as a tensor with the same elements.
#[test]
fn every_type_of_classes() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let (rows, cols) = (9, 70);
    let logits = Tensor::from_slice(ours.gpu(), [rows, cols], &uniforms(4, rows * cols)).unwrap();
    let loss_of = |targets: Targets<'_, f32>| {
        CrossEntropy::mean().forward(&logits, targets, &ours).unwrap().item().unwrap().to_bits()
    };
    macro_rules! check {
        ($($class:ident)+) => {$({
            let classes: Vec<$class> = (0..rows as $class).map(|row| row * 7).collect();
            let expected = Tensor::from_slice(ours.gpu(), rows, &classes).unwrap();
            let classes = theirs.clone_htod(&classes).unwrap();
            let got = View::from_cudarc(&ours, &classes, rows).unwrap();
            assert_eq!(loss_of(got.into()), loss_of((&expected).into()), stringify!($class));
        })+};
    }
    check!(i64 i32 u32 u8);
}

/// A slice of numbers of each type gives the same bits as a tensor with the same elements.
#[test]
fn every_type_of_numbers() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let (rows, cols) = (9, 70);
    let numbers = uniforms(5, rows * cols);
    macro_rules! check {
        ($($float:ident by $from:expr;)+) => {$({
            let loss_of = |input: View<'_, $float>| {
                let loss = Mse::sum().forward(input, input, &ours).unwrap().item().unwrap();
                assert_eq!(loss, 0.0);
                let rows = CrossEntropy::sum().forward(input, input, &ours).unwrap();
                rows.item().unwrap().to_bits()
            };
            let numbers: Vec<$float> = numbers.iter().map($from).collect();
            let expected = Tensor::from_slice(ours.gpu(), [rows, cols], &numbers).unwrap();
            // As bytes: without its feature `f16`, cudarc allocates no 16-bit numbers.
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            let bytes = theirs.clone_htod(&bytes).unwrap();
            // SAFETY: the bytes are `rows * cols` numbers of the type.
            let numbers = unsafe { bytes.transmute::<$float>(rows * cols) }.unwrap();
            let got = View::from_cudarc(&ours, &numbers, [rows, cols]).unwrap();
            assert_eq!(loss_of(got), loss_of(expected.view()), stringify!($float));
        })+};
    }
    check! {
        f32 by |&x| x;
        f64 by |&x| f64::from(x);
        f16 by |&x| f16::from_f32(x);
        bf16 by |&x| bf16::from_f32(x);
    }
}

/// Logits may be columns of a wider matrix, as with a padded vocabulary.
#[test]
fn rows_with_gaps() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let (rows, cols, stride) = (5, 30, 32);
    let x = uniforms(5, rows * stride);
    let wide = theirs.clone_htod(&x).unwrap();
    let zeros = Tensor::<f32>::zeros(ours.gpu(), [rows, cols]).unwrap();
    let input = View::from_cudarc_strided(&ours, &wide, [rows, cols], stride).unwrap();
    let loss = Mse::new().reduction(RowSum).forward(input, &zeros, &ours).unwrap();
    let expected: Vec<f64> =
        x.chunks(stride).map(|row| mse::sum(&row[..cols], &[0.0; 30])).collect();
    assert_close(&loss.to_vec().unwrap(), &expected);

    let mut memory = theirs.alloc_zeros::<f32>(rows * stride).unwrap();
    let upstream = Tensor::from_slice(ours.gpu(), [], &[1.0_f32]).unwrap();
    let gradient = ViewMut::from_cudarc_strided(&ours, &mut memory, [rows, cols], stride).unwrap();
    Mse::sum().backward_into(input, &zeros, &upstream, gradient, &ours).unwrap();
    for (got, x) in theirs.clone_dtoh(&memory).unwrap().chunks(stride).zip(x.chunks(stride)) {
        assert_close(&got[..cols], &mse::gradient(&x[..cols], &[0.0; 30], 1.0));
        assert_eq!(got[cols..], [0.0, 0.0], "the gap was written");
    }
    assert_message(
        View::<f32>::from_cudarc_strided(&ours, &wide.slice(0..157), [rows, cols], stride),
        "slice: expected 158 elements, got 157",
    );
}

#[test]
fn on_the_default_streams() {
    let Some(context) = context() else { return };
    for theirs in [context.default_stream(), context.per_thread_stream()] {
        let ours = Stream::from_cudarc(&theirs).unwrap();
        let x = theirs.clone_htod(&[3.0_f32, 4.0]).unwrap();
        let zeros = Tensor::<f32>::zeros(ours.gpu(), 2).unwrap();
        let x = View::from_cudarc(&ours, &x, 2).unwrap();
        let (loss, gradient) = Mse::sum().forward_backward(x, &zeros, &ours).unwrap();
        assert_eq!(loss.item().unwrap(), 25.0);
        assert_eq!(gradient.to_vec().unwrap(), [6.0, 8.0]);
        // The number of a per-thread default stream means another stream on another thread.
        let is_of_thread = theirs.cu_stream() as usize == 2;
        let on_another_thread = || Mse::sum().forward(x, &zeros, &ours).map(drop);
        let result = std::thread::scope(|scope| scope.spawn(on_another_thread).join().unwrap());
        assert_eq!(result, if is_of_thread { Err(Error::OtherThread) } else { Ok(()) });
    }
}

#[test]
fn a_stream_is_kept_while_the_library_uses_it() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let known = Arc::downgrade(&theirs);
    drop(theirs);
    let x = tensor::<f32>(&[3.0, 4.0]);
    let (_loss, gradient) = Mse::sum().forward_backward(&x, &x, &ours).unwrap();
    drop((ours, x));
    assert_eq!(gradient.to_vec().unwrap(), [0.0, 0.0]);
    drop((gradient, _loss));
    assert!(known.upgrade().is_none(), "nobody uses the stream any more");
}

/// A call waits for the event of the last write: cudarc's stream is busy, and then writes what the
/// call reads.
#[test]
fn a_call_waits_for_what_another_stream_writes() {
    let Some((context, theirs, _)) = streams() else { return };
    let other = Stream::from_cudarc(&context.new_stream().unwrap()).unwrap();
    let len = 1 << 20;
    let ones = theirs.clone_htod(&vec![1.0_f32; len]).unwrap();
    let mut input = theirs.alloc_zeros::<f32>(len).unwrap();
    let zeros = Tensor::<f32>::zeros(other.gpu(), len).unwrap();
    let mut load = Load::new(&theirs);
    theirs.synchronize().unwrap();
    load.queue(&theirs).unwrap();
    theirs.memcpy_dtod(&ones, &mut input).unwrap();
    let input = View::from_cudarc(&other, &input, len).unwrap();
    assert_eq!(Mse::mean().forward(input, &zeros, &other).unwrap().item().unwrap(), 1.0);
}

/// Another stream waits for the event of the last read: the call's stream is busy before the call,
/// and cudarc then overwrites what the call reads.
#[test]
fn another_stream_waits_for_what_a_call_reads() {
    let Some((context, theirs, _)) = streams() else { return };
    let others = context.new_stream().unwrap();
    let other = Stream::from_cudarc(&others).unwrap();
    let len = 1 << 20;
    let mut input = theirs.clone_htod(&vec![1.0_f32; len]).unwrap();
    let zeros = Tensor::<f32>::zeros(other.gpu(), len).unwrap();
    // Compiles the kernels before the streams are busy.
    Mse::mean().forward(&zeros, &zeros, &other).unwrap().item().unwrap();
    let mut load = Load::new(&others);
    context.synchronize().unwrap();
    load.queue(&others).unwrap();
    let view = View::from_cudarc(&other, &input, len).unwrap();
    let loss = Mse::mean().forward(view, &zeros, &other).unwrap();
    theirs.memset_zeros(&mut input).unwrap();
    assert_eq!(loss.item().unwrap(), 1.0);
    assert_eq!(theirs.clone_dtoh(&input).unwrap(), vec![0.0; len]);
}

/// Another stream waits for the event of a call's last write: the call's stream is busy before the
/// call, and cudarc then reads what the call writes.
#[test]
fn another_stream_waits_for_what_a_call_writes() {
    let Some((context, theirs, _)) = streams() else { return };
    let others = context.new_stream().unwrap();
    let other = Stream::from_cudarc(&others).unwrap();
    let len = 1 << 20;
    let mut gradient = theirs.alloc_zeros::<f32>(len).unwrap();
    let x = Tensor::from_slice(other.gpu(), len, &vec![1.0_f32; len]).unwrap();
    let zeros = Tensor::<f32>::zeros(other.gpu(), len).unwrap();
    let upstream = Tensor::from_slice(other.gpu(), [], &[1.0_f32]).unwrap();
    Mse::sum().backward(&x, &zeros, &upstream, &other).unwrap().to_vec().unwrap();
    let mut load = Load::new(&others);
    context.synchronize().unwrap();
    load.queue(&others).unwrap();
    let view = ViewMut::from_cudarc(&other, &mut gradient, len).unwrap();
    Mse::sum().backward_into(&x, &zeros, &upstream, view, &other).unwrap();
    assert_eq!(theirs.clone_dtoh(&gradient).unwrap(), vec![2.0; len]);
}

/// A slice may be dropped right after the call. cudarc frees it in the order of the stream that
/// allocated it, and gives the memory to the next allocation on that stream.
#[test]
fn a_slice_may_be_dropped_right_after_the_call() {
    let Some((context, theirs, _)) = streams() else { return };
    let others = context.new_stream().unwrap();
    let other = Stream::from_cudarc(&others).unwrap();
    let len = 1 << 20;
    let zeros = Tensor::<f32>::zeros(other.gpu(), len).unwrap();
    Mse::mean().forward(&zeros, &zeros, &other).unwrap().item().unwrap();
    let mut load = Load::new(&others);
    for _ in 0..5 {
        let input = theirs.clone_htod(&vec![1.0_f32; len]).unwrap();
        context.synchronize().unwrap();
        load.queue(&others).unwrap();
        let view = View::from_cudarc(&other, &input, len).unwrap();
        let loss = Mse::mean().forward(view, &zeros, &other).unwrap();
        drop(input);
        let next = theirs.alloc_zeros::<f32>(len).unwrap();
        assert_eq!(loss.item().unwrap(), 1.0);
        drop(next);
    }
}

#[test]
fn a_slice_of_another_length_than_the_shape() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let mut slice = theirs.alloc_zeros::<f32>(6).unwrap();
    let expected = "slice: expected 8 elements, got 6";
    assert_message(View::from_cudarc(&ours, &slice, [2, 4]), expected);
    assert_message(ViewMut::from_cudarc(&ours, &mut slice, [2, 4]), expected);
    assert_message(View::from_cudarc(&ours, &slice, [5]), "slice: expected 5 elements, got 6");
    let none = slice.slice(3..3);
    assert_message(View::from_cudarc(&ours, &none, []), "slice: expected 1 elements, got 0");
    let none = View::from_cudarc(&ours, &none, [0, 4]).unwrap();
    assert_eq!(Mse::sum().forward(none, none, &ours).unwrap().item().unwrap(), 0.0);
    assert_message(
        View::from_cudarc(&ours, &slice, [1; 7]),
        "shape: expected at most 6 dimensions, got 7",
    );
}

#[test]
fn a_view_is_for_calls_on_its_stream() {
    let Some((context, theirs, ours)) = streams() else { return };
    let slice = theirs.alloc_zeros::<f32>(6).unwrap();
    let view = View::from_cudarc(&ours, &slice, 6).unwrap();
    let zeros = Tensor::<f32>::zeros(ours.gpu(), 6).unwrap();
    let another = Stream::from_cudarc(&context.new_stream().unwrap()).unwrap();
    let own = ours.gpu().stream().unwrap();
    for other in [&another, &own] {
        assert_message(
            Mse::sum().forward(view, &zeros, other),
            "input: expected the stream that the view was made for, got another",
        );
        assert_message(
            view.to_vec(other),
            "self: expected the stream that the view was made for, got another",
        );
    }
    assert_message(
        View::from_cudarc(&own, &slice, 6),
        "stream: expected a stream made by Stream::from_cudarc, got another",
    );
    let same = Stream::from_cudarc(&theirs).unwrap();
    assert_eq!(same, ours);
    assert_eq!(Mse::sum().forward(view, &zeros, &same).unwrap().item().unwrap(), 0.0);
}

#[test]
fn memory_of_another_context() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let another = CudaContext::new(0).unwrap();
    let slice = another.default_stream().alloc_zeros::<f32>(6).unwrap();
    assert_message(
        View::from_cudarc(&ours, &slice, 6),
        "slice: expected memory of the stream's CudaContext, got another",
    );
    // A context that is not the device's primary one; it stays current on this thread.
    let own = CudaContext::new_non_primary(0, 0).unwrap();
    let expected = "context: expected the device's primary context, got another";
    assert_message(Gpu::from_cudarc(&own), expected);
    assert_message(Stream::from_cudarc(&own.new_stream().unwrap()), expected);

    // From here on cudarc and the library share the stream, and the last of them destroys it.
    drop(ours);
    own.bind_to_thread().unwrap();
    let is_current = || result::ctx::get_current().unwrap() == Some(own.cu_ctx());
    let ours = Stream::from_cudarc(&theirs).unwrap();
    assert!(is_current(), "after a stream was made");
    let slice = theirs.alloc_zeros::<f32>(6).unwrap();
    own.bind_to_thread().unwrap();
    let view = View::from_cudarc(&ours, &slice, 6).unwrap();
    assert!(is_current(), "after a view was made");
    let loss = Mse::sum().forward(view, view, &ours).unwrap();
    assert!(is_current(), "after a call");
    assert_eq!(loss.item().unwrap(), 0.0);
    assert!(is_current(), "after a loss was read");
    let known = Arc::downgrade(&theirs);
    drop((loss, slice, theirs));
    own.bind_to_thread().unwrap();
    drop(ours);
    assert!(known.upgrade().is_none() && is_current(), "after the stream was dropped");
}

#[test]
fn memory_of_another_device() {
    let Some((_context, _theirs, ours)) = streams() else { return };
    let Ok(other) = CudaContext::new(1) else {
        eprintln!("one GPU: memory of another is not tested");
        return;
    };
    assert_eq!(Gpu::from_cudarc(&other).unwrap().ordinal(), 1);
    let mut slice = other.default_stream().alloc_zeros::<f32>(6).unwrap();
    let expected = "slice: expected memory on device 0, got memory on device 1";
    assert_message(View::from_cudarc(&ours, &slice, 6), expected);
    assert_message(ViewMut::from_cudarc(&ours, &mut slice, 6), expected);
}

/// A call with a cudarc slice cannot be captured, because the library would not know when the graph
/// is replayed.
#[test]
fn a_call_that_would_be_captured() {
    let Some((_context, theirs, ours)) = streams() else { return };
    let slice = theirs.alloc_zeros::<f32>(6).unwrap();
    let (x, mut loss) =
        (Tensor::<f32>::zeros(ours.gpu(), 6).unwrap(), Loss::<f32>::zeros(ours.gpu(), []).unwrap());
    let view = View::from_cudarc(&ours, &slice, 6).unwrap();
    let mut workspace = Workspace::new(ours.gpu()).unwrap();
    Mse::sum().forward_into(view, &x, &mut loss, &mut workspace, &ours).unwrap();
    ours.synchronize().unwrap();
    theirs.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let refused = [
        Mse::sum().forward_into(view, &x, &mut loss, &mut workspace, &ours),
        Mse::sum().forward_into(&x, &x, &mut loss, &mut workspace, &ours),
        View::from_cudarc(&ours, &slice, 6).map(drop),
    ];
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let captured = theirs.end_capture(flags);
    assert!(refused.iter().all(|refused| *refused == Err(Error::Capture)), "{refused:?}");
    captured.expect("the capture was left as it was");
    Mse::sum().forward_into(view, &x, &mut loss, &mut workspace, &ours).unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
}
