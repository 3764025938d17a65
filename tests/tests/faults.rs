//! Training steps in which one call of the driver fails: the error names the call, nothing is
//! leaked, and the next step computes the right results.
//!
//! These tests use the emulator, whatever the machine has. Each case runs in a process of its own,
//! because the driver's objects are counted per process.

use cust::context::Context;
use cust::device::Device;
use cust::sys;
use emulator::{Faults, live};
use fused_loss::{
    CrossEntropy, Error, Gpu, Grads, KlDiv, Loss, LossFunction, Mse, Saved, Stream, Tensor, View,
    Workspace,
};
use tests::apart::apart;
use tests::faults::{
    Failure, Step, code, fail_each_call, fail_each_work, go_on_after_each_call,
    lose_context_at_each_call,
};
use tests::graph::{Capture, check};
use tests::random::uniforms;

/// The inputs of a training step, and memory that each step overwrites.
struct Setting {
    stream: Stream,
    other_stream: Stream,
    input: Tensor<f32>,
    target: Tensor<f32>,
    classes: Tensor<i64>,
    zeros: Tensor<f32>,
    upstream: Tensor<f32>,
    loss: Loss<f32>,
    saved: Saved<f32>,
    gradient: Tensor<f32>,
    workspace: Workspace,
}

/// The results of a step with an element-wise loss.
type OfElements = (Loss<f32>, Loss<f32>, Tensor<f32>, Tensor<f32>, Loss<f32>);

impl Setting {
    fn new([rows, cols]: [usize; 2]) -> Result<Self, Error> {
        let gpu = Gpu::emulated(0)?;
        let positive = |seed| uniforms(seed, rows * cols).iter().map(|x| x.abs()).collect();
        let (input, target): (Vec<_>, Vec<_>) = (positive(1), positive(2));
        let classes: Vec<_> = (0..rows as i64).collect();
        Ok(Setting {
            stream: gpu.stream()?,
            other_stream: gpu.stream()?,
            input: Tensor::from_slice(&gpu, [rows, cols], &input)?,
            target: Tensor::from_slice(&gpu, [rows, cols], &target)?,
            classes: Tensor::from_slice(&gpu, [rows], &classes)?,
            zeros: Tensor::zeros(&gpu, [rows, cols])?,
            upstream: Tensor::from_slice(&gpu, [], &[0.5])?,
            loss: Loss::zeros(&gpu, [])?,
            saved: Saved::zeros(&gpu, [rows, cols])?,
            gradient: Tensor::zeros(&gpu, [rows, cols])?,
            workspace: Workspace::new(&gpu)?,
        })
    }

    /// All that a program does with cross-entropy in a step, and work on the gradient on another
    /// stream.
    fn cross_entropy(&mut self) -> Step<impl Sized + use<>> {
        let (input, classes, stream) = (&self.input, &self.classes, &self.stream);
        let mean = CrossEntropy::mean();
        let forward = mean.forward(input, classes, stream)?;
        let (both, gradient) = mean.forward_backward(input, classes, stream)?;
        let (saving, saved) = mean.forward_saving(input, classes, stream)?;
        let by_saved = mean.backward(input, classes, &saved, &self.upstream, stream)?;
        mean.forward_into(input, classes, &mut self.loss, &mut self.workspace, stream)?;
        self.loss.record()?;
        let norm = Mse::sum().forward(&gradient, &self.zeros, &self.other_stream)?;
        let results = vec![
            read(&norm),
            read(&forward),
            read(&both),
            read(&saving),
            read(&self.loss),
            gradient.to_vec(),
            by_saved.view().to_vec(&self.other_stream),
        ];
        Ok((results, (forward, both, gradient, saving, saved, by_saved, norm)))
    }

    /// The loss and its gradient in one call, and nothing else.
    fn cross_entropy_at_once(&mut self) -> Step<impl Sized + use<>> {
        let mean = CrossEntropy::mean();
        let (loss, gradient) = mean.forward_backward(&self.input, &self.classes, &self.stream)?;
        Ok((vec![read(&loss), gradient.to_vec()], (loss, gradient)))
    }

    /// The loss and the gradient of probabilities, a call in which blocks do not share rows.
    fn soft_cross_entropy_at_once(&mut self) -> Step<impl Sized + use<>> {
        CrossEntropy::mean().forward_backward_into(
            &self.input,
            &self.target,
            &mut self.loss,
            Grads::target(&mut self.gradient),
            &mut self.workspace,
            &self.stream,
        )?;
        Ok((vec![read(&self.loss), self.gradient.to_vec()], ()))
    }

    /// As [`cross_entropy`](Self::cross_entropy), but with an element-wise loss and its method
    /// `backward`.
    fn elements<L>(
        &mut self,
        loss: L,
        backward: impl Fn(&L, &Self) -> Result<Tensor<f32>, Error>,
    ) -> Step<OfElements>
    where
        L: for<'a> LossFunction<f32, Target<'a> = View<'a, f32>, Value = f32>,
    {
        let (input, target, stream) = (&self.input, &self.target, &self.stream);
        let forward = loss.forward(input, target, stream)?;
        let (both, gradient) = loss.forward_backward(input, target, stream)?;
        let by_upstream = backward(&loss, self)?;
        loss.forward_into(input, target, &mut self.loss, &mut self.workspace, stream)?;
        let norm = Mse::sum().forward(&gradient, &self.zeros, &self.other_stream)?;
        let results = vec![
            read(&norm),
            read(&forward),
            read(&both),
            read(&self.loss),
            gradient.to_vec(),
            by_upstream.to_vec(),
        ];
        Ok((results, (forward, both, gradient, by_upstream, norm)))
    }

    fn mse(&mut self) -> Step<OfElements> {
        self.elements(Mse::mean(), |loss, Setting { input, target, upstream, stream, .. }| {
            loss.backward(input, target, upstream, stream)
        })
    }

    fn kl_div(&mut self) -> Step<OfElements> {
        self.elements(KlDiv::new(), |loss, Setting { input, target, upstream, stream, .. }| {
            loss.backward(input, target, upstream, stream)
        })
    }

    /// Computes gradients from what a forward pass has saved, in a graph that is replayed.
    fn graph(&mut self) -> Step<impl Sized + use<>> {
        let Setting { input, classes, upstream, stream, .. } = self;
        let Setting { loss, saved, gradient, workspace, .. } = self;
        let (input, classes, upstream, stream) = (&*input, &*classes, &*upstream, &*stream);
        let mean = CrossEntropy::mean();
        let mut calls = || {
            mean.forward_saving_into(input, classes, &mut *loss, saved, workspace, stream)?;
            mean.backward_into(input, classes, saved, upstream, &mut *gradient, stream)
        };
        // The first use of a kernel loads it, which a capture does not allow.
        calls()?;
        stream.synchronize()?;
        let capture = Capture::begin(stream)?;
        calls()?;
        let graph = capture.end()?;
        loss.copy_from_slice(&[0.0])?;
        graph.launch(stream)?;
        stream.synchronize()?;
        Ok((vec![read(loss), gradient.to_vec()], graph))
    }
}

fn read(loss: &Loss<f32>) -> Result<Vec<f32>, Error> {
    loss.item().map(|value| vec![value])
}

/// A step that opens the device itself, on a thread with or without a context of its own.
fn from_nothing<K>(
    own: Option<usize>,
    shape: [usize; 2],
    step: impl Fn(&mut Setting) -> Step<K> + Send,
) -> impl FnMut() -> Step<(K, Setting)> + Send {
    move || {
        make_current(own)?;
        let mut setting = Setting::new(shape)?;
        let (results, made) = step(&mut setting)?;
        Ok((results, (made, setting)))
    }
}

/// A step on a device, streams and tensors that exist before and after it.
fn on_what_is_there<K>(
    own: Option<usize>,
    shape: [usize; 2],
    step: impl Fn(&mut Setting) -> Step<K>,
) -> impl FnMut() -> Step<K> {
    let mut setting = Setting::new(shape).expect("nothing fails");
    move || {
        make_current(own)?;
        step(&mut setting)
    }
}

/// Gives the thread a context of its own.
fn make_current(own: Option<usize>) -> Result<(), Failure> {
    let Some(own) = own else { return Ok(()) };
    // SAFETY: the context outlives the attack on the step.
    Ok(check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(own as _) })?)
}

/// Rows that are packed into tiles.
const SHORT_ROWS: [usize; 2] = [6, 40];
/// A row that several blocks share: in one launch if its target is a class, otherwise in two.
const LONG_ROWS: [usize; 2] = [1, 20_000];

/// The driver calls of a step in which two streams use the same memory.
const OF_TWO_STREAMS: &[&str] = &["cuStreamWaitEvent", "cuEventRecord"];

/// The driver calls of every step that opens and closes the device itself.
const CALLS_OF_ALL: &[&str] = &[
    "cuCtxGetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
];

/// Makes each driver call of a step fail in turn, in every way. A step must call `functions` in
/// addition to [`CALLS_OF_ALL`].
fn attack<K>(
    what: &str,
    own: Option<usize>,
    shape: [usize; 2],
    step: impl Fn(&mut Setting) -> Step<K> + Copy + Send,
    functions: &[&str],
) {
    // A process loads the driver once, here.
    drop(Gpu::emulated(0).unwrap());
    let anew = || from_nothing(own, shape, step);
    let all = [CALLS_OF_ALL, functions].concat();
    fail_each_call(anew()).finish(&format!("{what}: a call fails"), &all);
    go_on_after_each_call(|| on_what_is_there(own, shape, step))
        .finish(&format!("{what}: a call fails, and the same tensors are used again"), functions);
    let needs_context =
        ["cuMemAlloc_v2", "cuLaunchKernelEx", "cuStreamSynchronize", "cuMemFree_v2"];
    lose_context_at_each_call(anew())
        .finish(&format!("{what}: the context is lost"), &needs_context);
    fail_each_work(anew()).finish(&format!("{what}: work fails"), &["work"]);
}

#[test]
fn a_step_of_cross_entropy() {
    apart("a_step_of_cross_entropy", "", || {
        attack("cross-entropy", None, SHORT_ROWS, Setting::cross_entropy, OF_TWO_STREAMS);
    });
}

#[test]
fn a_loss_and_gradient_of_blocks_that_share_a_row() {
    apart("a_loss_and_gradient_of_blocks_that_share_a_row", "", || {
        let faults = Faults::record();
        let mut setting = Setting::new(LONG_ROWS).unwrap();
        let before = faults.work();
        setting.cross_entropy_at_once().unwrap_or_else(|_| panic!("nothing fails"));
        assert_eq!(faults.work() - before, 1);
        drop((faults, setting));
        let step = Setting::cross_entropy_at_once;
        attack("cross-entropy of a shared row", None, LONG_ROWS, step, &["cuEventCreate"]);
    });
}

#[test]
fn a_loss_and_gradient_in_two_launches() {
    apart("a_loss_and_gradient_in_two_launches", "", || {
        let faults = Faults::record();
        let mut setting = Setting::new(LONG_ROWS).unwrap();
        let before = faults.work();
        setting.soft_cross_entropy_at_once().unwrap_or_else(|_| panic!("nothing fails"));
        assert_eq!(faults.work() - before, 2);
        drop((faults, setting));
        let step = Setting::soft_cross_entropy_at_once;
        attack("cross-entropy in two launches", None, LONG_ROWS, step, &["cuLaunchKernelEx"]);
    });
}

#[test]
fn a_step_of_kl_div() {
    apart("a_step_of_kl_div", "", || {
        attack("KL divergence", None, SHORT_ROWS, Setting::kl_div, OF_TWO_STREAMS)
    });
}

/// A step on a thread whose current context is that of another device.
#[test]
fn a_step_of_mse_on_a_thread_with_a_context_of_its_own() {
    apart("a_step_of_mse_on_a_thread_with_a_context_of_its_own", "", || {
        let other = Gpu::emulated(1).unwrap();
        let context = Context::new(Device::get_device(other.ordinal()).unwrap()).unwrap();
        attack(
            "MSE",
            Some(context.as_raw() as usize),
            SHORT_ROWS,
            Setting::mse,
            &["cuCtxSetCurrent"],
        );
    });
}

#[test]
fn a_graph_that_is_captured_and_replayed() {
    apart("a_graph_that_is_captured_and_replayed", "", || {
        let functions = [
            "cuStreamBeginCapture_v2",
            "cuStreamEndCapture",
            "cuGraphInstantiateWithFlags",
            "cuGraphLaunch",
            "cuGraphExecDestroy",
            "cuGraphDestroy",
        ];
        attack("a graph", None, SHORT_ROWS, Setting::graph, &functions);
    });
}

/// A start of the driver that fails can be repeated, and then succeeds.
#[test]
fn a_driver_that_does_not_start_can_be_started_later() {
    apart("a_driver_that_does_not_start_can_be_started_later", "", || {
        let faults = Faults::at_call_of("cuInit", 0, code::UNKNOWN);
        let error = Gpu::emulated(0).unwrap_err();
        assert!(matches!(error, Error::NoEmulator { .. }), "{error}");
        assert!(faults.hit().is_some() && error.to_string().contains("cuInit"), "{error}");
        drop(faults);
        Gpu::emulated(0).unwrap();
    });
}

/// A question to the driver changes the thread's capture mode and then restores it. If the mode
/// could not be changed, it is not restored either.
#[test]
fn a_capture_mode_that_cannot_be_changed_is_left_as_it_is() {
    apart("a_capture_mode_that_cannot_be_changed_is_left_as_it_is", "", || {
        let Setting { input, target, stream, .. } = &Setting::new(SHORT_ROWS).unwrap();
        // The second stream asks whether the first stream, already destroyed, is done with the
        // tensors.
        let on_two_streams = || {
            let loss = |stream: Stream| Mse::mean().forward(input, target, &stream)?.item();
            Ok::<_, Error>([loss(stream.gpu().stream()?)?, loss(stream.gpu().stream()?)?])
        };
        let expected = on_two_streams().unwrap();
        let exchange = "cuThreadExchangeStreamCaptureMode";
        let faults = Faults::at_call_of(exchange, 0, code::UNKNOWN);
        assert_eq!(on_two_streams(), Ok(expected));
        assert_eq!(faults.hit().map(|(_, function)| function), Some(exchange));
        drop(faults);
        let global = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut mode = global;
        // SAFETY: reads and writes the mode through the pointer it is given.
        check(exchange, unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }).unwrap();
        assert_eq!(mode, global);
    });
}

/// The driver frees nothing while the thread captures, so memory that is dropped then is freed with
/// the device.
#[test]
fn memory_that_is_dropped_in_a_capture_is_freed_with_the_device() {
    apart("memory_that_is_dropped_in_a_capture_is_freed_with_the_device", "", || {
        drop(Gpu::emulated(0).unwrap());
        let before = live();
        let setting = Setting::new(SHORT_ROWS).unwrap();
        let allocations = live().allocations;
        let capture = Capture::begin(&setting.stream).unwrap();
        drop(setting.zeros);
        drop(capture);
        assert_eq!(live().allocations, allocations, "it was freed in the capture");
        drop((setting.stream, setting.other_stream, setting.input, setting.target));
        drop((setting.classes, setting.upstream, setting.loss, setting.saved));
        drop((setting.gradient, setting.workspace));
        assert_eq!(live(), before);
    });
}
