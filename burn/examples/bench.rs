//! Compares burn's cross-entropy with this crate's, as a training step uses it: the median time in
//! milliseconds of 20 steps, each with a synchronisation, and the memory that burn reserves for a
//! first step besides the logits, in a separate process. Before that, losses and gradients are
//! compared with those of burn for the logits in f32.
//!
//! `cargo run --release --features cuda,fusion --example bench`, on a machine with a GPU, NVRTC and
//! the headers of the CUDA toolkit. Without `fusion`, burn runs its own operations one by one.
//! Names of shapes and types after `--`, such as `65536x1000 f32 bf16`, select those.

use burn::backend::cuda::CudaDevice;
use burn::backend::{Autodiff, Cuda};
use burn::nn::loss;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, Int, Tensor, TensorData};
use burn_cubecl::cubecl::Runtime;
use burn_cubecl::cubecl::config::memory::PersistentMemory;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use burn_cubecl::cubecl::cuda::CudaRuntime;
use std::process::Command;
use std::time::Instant;

type Inner = Cuda<f32, i32>;
type B = Autodiff<Inner>;

const SHAPES: [(usize, usize); 4] = [(8192, 32000), (32768, 4096), (4096, 128_256), (65536, 1000)];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const CALLS: usize = 20;
/// The name of burn's own loss.
const BURN: &str = "burn";
/// The argument of a process that only measures memory, followed by what [`reserved_mib`] names.
const MEMORY: &str = "--memory";

fn main() {
    let device = CudaDevice::default();
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let [MEMORY, of @ ..] = &*names.iter().map(String::as_str).collect::<Vec<_>>() {
        return print_reserved(of, &device);
    }
    println!("fusion: {}", cfg!(feature = "fusion"));
    println!("| rows × classes | type | loss | forward ms | forward+backward ms | reserved MiB |");
    println!("|---|---|---|---|---|---|");
    let mut differences = Vec::new();
    for (rows, cols) in SHAPES {
        for dtype in DTYPES {
            if !named(&names, &format!("{rows}x{cols}")) || !named(&names, dtype.name()) {
                continue;
            }
            let normal = Distribution::Normal(0.0, 2.0);
            let logits = Tensor::<Inner, 2>::random([rows, cols], normal, &device).cast(dtype);
            let classes: Vec<i32> = (0..rows).map(|row| (row * 7919 % cols) as i32).collect();
            let targets = TensorData::new(classes, [rows]);
            let targets = Tensor::<Inner, 1, Int>::from_data(targets, &device);
            let what = format!("{rows}×{cols} | {dtype:?}");
            differences.push(format!("{what}: {}", compare(&logits, &targets)));
            bench(&what, BURN, &burns::<B>, &burns::<Inner>, &logits, &targets);
            bench(&what, "fused", &fused::<B>, &fused::<Inner>, &logits, &targets);
        }
    }
    println!("\nlargest difference from burn in f32, of the loss; of gradients × rows");
    differences.iter().for_each(|line| println!("{line}"));
}

/// Whether a shape or a type is among the names, or no name is of its kind. Shapes have an `x`.
fn named(names: &[String], name: &str) -> bool {
    let mut of_kind = names.iter().filter(|other| other.contains('x') == name.contains('x'));
    of_kind.clone().next().is_none() || of_kind.any(|other| other == name)
}

fn burns<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    loss::CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
}

fn fused<B: fused_loss_burn::FusedLossBackend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
) -> Tensor<B, 1> {
    let loss = fused_loss_burn::CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, targets)
}

type Loss<B> = dyn Fn(Tensor<B, 2>, Tensor<B, 1, Int>) -> Tensor<B, 1>;

/// The loss and the gradient of the logits.
fn step(
    loss: &Loss<B>,
    logits: &Tensor<Inner, 2>,
    targets: &Tensor<Inner, 1, Int>,
) -> (Tensor<Inner, 1>, Tensor<Inner, 2>) {
    let logits = Tensor::<B, 2>::from_inner(logits.clone()).require_grad();
    let loss = loss(logits.clone(), Tensor::from_inner(targets.clone()));
    let mut gradients = loss.backward();
    let gradient = logits.grad_remove(&mut gradients).expect("the logits require a gradient");
    (loss.inner(), gradient)
}

fn bench(
    what: &str,
    name: &str,
    loss: &Loss<B>,
    without_tape: &Loss<Inner>,
    logits: &Tensor<Inner, 2>,
    targets: &Tensor<Inner, 1, Int>,
) {
    let device = logits.device();
    let forward = median(&device, || drop(without_tape(logits.clone(), targets.clone())));
    let both = median(&device, || drop(step(loss, logits, targets)));
    let reserved = reserved_mib(name, logits);
    println!("| {what} | {name} | {forward:.3} | {both:.3} | {reserved} |");
}

/// Milliseconds of a call and all its work.
fn median(device: &CudaDevice, call: impl Fn()) -> f64 {
    let mut times = Vec::new();
    for at in 0..CALLS + 3 {
        synchronize(device);
        let start = Instant::now();
        call();
        synchronize(device);
        // The first calls compile and tune kernels.
        if at >= 3 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    (times[CALLS / 2 - 1] + times[CALLS / 2]) / 2.0
}

fn synchronize(device: &CudaDevice) {
    Inner::sync(device).expect("all work succeeds");
}

/// The growth of burn's memory pool in the first step of a process with the loss of this `name` and
/// such logits. A pool that is in use hides what a step needs, because it does not return what was
/// freed.
fn reserved_mib(name: &str, logits: &Tensor<Inner, 2>) -> String {
    let [rows, cols] = logits.dims().map(|count| count.to_string());
    let program = std::env::current_exe().expect("the path of this program");
    let arguments = [MEMORY, name, logits.dtype().name(), &rows, &cols];
    let output = Command::new(program).args(arguments).output().expect("this program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no memory measured for {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Prints the number for [`reserved_mib`]. Each tensor has memory of its own, which another of the
/// same size may reuse: pages with room for several would hide what a step needs.
fn print_reserved(of: &[&str], device: &CudaDevice) {
    let mut config = CubeClRuntimeConfig::default();
    config.memory.persistent_memory = PersistentMemory::Enforced;
    CubeClRuntimeConfig::set(config);
    let &[name, dtype, rows, cols] = of else { panic!("{MEMORY}: expected 4 values, got {of:?}") };
    let [rows, cols]: [usize; 2] = [rows, cols].map(|count| count.parse().expect("a number"));
    let dtype = DTYPES.into_iter().find(|of| of.name() == dtype).expect("a type of DTYPES");
    let logits = Tensor::<Inner, 2>::zeros([rows, cols], (device, dtype));
    let targets = Tensor::<Inner, 1, Int>::zeros([rows], device);
    let reserved = || {
        synchronize(device);
        let usage = CudaRuntime::client(device).memory_usage();
        usage.expect("the pool can be asked").bytes_reserved
    };
    let before = reserved();
    let loss: &Loss<B> = if name == BURN { &burns::<B> } else { &fused::<B> };
    drop(step(loss, &logits, &targets));
    println!("{}", reserved().saturating_sub(before) >> 20);
}

/// How far loss and gradients differ from those of burn for the logits in f32: ours, and those of
/// burn for the same logits.
fn compare(logits: &Tensor<Inner, 2>, targets: &Tensor<Inner, 1, Int>) -> String {
    let (rows, dtype) = (logits.dims()[0] as f64, logits.dtype());
    let (loss, gradient) = step(&burns::<B>, &logits.clone().cast(DType::F32), targets);
    let losses: [(&str, &Loss<B>); 2] = [("fused", &fused::<B>), ("burn", &burns::<B>)];
    let mut line = String::new();
    for (name, of) in losses {
        let (got, got_gradient) = step(of, logits, targets);
        let off = (got.cast(DType::F32) - loss.clone()).abs().into_scalar();
        let of_gradient = (got_gradient.cast(DType::F32) - gradient.clone()).abs().max();
        let of_gradient = f64::from(of_gradient.into_scalar()) * rows;
        // Rounded to 8 or 11 bits; f16 numbers below 6e-8 are 0.
        let [most, most_of_gradient] = match dtype {
            DType::F32 => [1e-4, 1e-5],
            DType::F16 => [1e-2, 4e-3 + 6e-8 * rows],
            _ => [1e-1, 4e-3],
        };
        let close = f64::from(off) <= most && of_gradient <= most_of_gradient;
        assert!(
            name == BURN || close,
            "{off} of the loss, {of_gradient} of gradients: more than rounding"
        );
        line += &format!("{name} {off:.1e}; {of_gradient:.1e}   ");
    }
    line
}
