//! Compares candle_nn's cross-entropy with this crate's, as a training step uses it: the median
//! time in milliseconds of 20 steps, each with a synchronisation, and the most memory that a step
//! used besides the logits. Before that, losses and gradients are compared with those of candle_nn
//! for the logits in f32.
//!
//! `cargo run --release --features cuda --example bench`, on a machine with a GPU. With `--
//! --keep-memory`, candle's allocator does not return the memory that a step has freed.

use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use std::time::Instant;

const SHAPES: [(usize, usize); 4] = [(8192, 32000), (32768, 4096), (4096, 128_256), (65536, 1000)];
const CALLS: usize = 20;

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    if std::env::args().any(|argument| argument == "--keep-memory") {
        fused_loss_candle::keep_memory(&device, u64::MAX)?;
    }
    println!("| rows × classes | type | loss | forward ms | forward+backward ms | peak MiB |");
    println!("|---|---|---|---|---|---|");
    let mut of_gradients = Vec::new();
    for (rows, cols) in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let logits = (Tensor::randn(0_f32, 2.0, (rows, cols), &device)?).to_dtype(dtype)?;
            let logits = Var::from_tensor(&logits)?;
            let targets: Vec<u32> = (0..rows).map(|row| (row * 7919 % cols) as u32).collect();
            let targets = Tensor::new(targets, &device)?;
            let difference = compare(&logits, &targets)?;
            let what = format!("{rows}×{cols} | {dtype:?}");
            bench(&what, "candle_nn", candle_nn::loss::cross_entropy, &logits, &targets)?;
            bench(&what, "fused", fused_loss_candle::cross_entropy, &logits, &targets)?;
            // What candle does with a first gradient, whichever loss computed it.
            let gradient = logits.as_detached_tensor();
            let added = median(&device, || gradient.zeros_like()?.add(&gradient).map(drop))?;
            println!("| {what} | candle's zeros and add, of it | | {added:.3} | |");
            of_gradients.push(format!("{what}: {difference}"));
        }
    }
    println!("\nlargest difference from candle_nn in f32, of the loss; of gradients × rows");
    of_gradients.iter().for_each(|line| println!("{line}"));
    Ok(())
}

type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn bench(what: &str, name: &str, loss: Loss, logits: &Var, targets: &Tensor) -> Result<()> {
    let device = logits.device().clone();
    let detached = logits.as_detached_tensor();
    let forward = median(&device, || loss(&detached, targets).map(drop))?;
    let step = || loss(logits, targets)?.backward().map(drop);
    let both = median(&device, step)?;
    let peak = peak_mib(&device, step)?;
    println!("| {what} | {name} | {forward:.3} | {both:.3} | {peak} |");
    Ok(())
}

/// Milliseconds of a call and all its work.
fn median(device: &Device, call: impl Fn() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for at in 0..CALLS + 3 {
        device.synchronize()?;
        let start = Instant::now();
        call()?;
        device.synchronize()?;
        // The first calls load kernels.
        if at >= 3 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok((times[CALLS / 2 - 1] + times[CALLS / 2]) / 2.0)
}

/// The memory pool from which candle allocates.
fn pool(device: &Device) -> Result<sys::CUmemoryPool> {
    let ordinal = device.as_cuda_device()?.cuda_stream().context().cu_device();
    let mut pool = std::ptr::null_mut();
    // SAFETY: writes the pool to the pointer it is given.
    match unsafe { sys::cuDeviceGetMemPool(&mut pool, ordinal) } {
        sys::CUresult::CUDA_SUCCESS => Ok(pool),
        other => bail!("the device has no pool of memory: {other:?}"),
    }
}

/// The most memory that a call used of candle's allocator, besides what was in use before.
fn peak_mib(device: &Device, call: impl Fn() -> Result<()>) -> Result<u64> {
    let high = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    let pool = pool(device)?;
    device.synchronize()?;
    let (mut before, mut peak) = (0_u64, 0_u64);
    let used = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    let mut zero = 0_u64;
    // SAFETY: the pool exists, and both attributes are a `cuuint64_t`; the high-water mark may be
    // set to zero.
    let set = unsafe {
        sys::cuMemPoolGetAttribute(pool, used, (&raw mut before).cast());
        sys::cuMemPoolSetAttribute(pool, high, (&raw mut zero).cast())
    };
    call()?;
    device.synchronize()?;
    // SAFETY: as above.
    let read = unsafe { sys::cuMemPoolGetAttribute(pool, high, (&raw mut peak).cast()) };
    if [set, read].iter().any(|&code| code != sys::CUresult::CUDA_SUCCESS) {
        bail!("the pool does not say how much is used: {set:?}, {read:?}")
    }
    Ok(peak.saturating_sub(before) >> 20)
}

/// How far loss and gradients differ from those of candle_nn for the logits in f32: ours, and those
/// of candle_nn for the same logits.
fn compare(logits: &Var, targets: &Tensor) -> Result<String> {
    let rows = logits.dim(0)? as f64;
    let exact = logits.to_dtype(DType::F32)?.detach();
    let [loss, gradient] =
        step(candle_nn::loss::cross_entropy, &Var::from_tensor(&exact)?, targets)?;
    let mut line = String::new();
    let losses: [(&str, Loss); 2] = [
        ("fused", fused_loss_candle::cross_entropy),
        ("candle_nn", candle_nn::loss::cross_entropy),
    ];
    for (name, of) in losses {
        let [got, got_gradient] = step(of, logits, targets)?;
        let off = (&got - &loss)?.abs()?.to_scalar::<f32>()?;
        let of_gradient = (got_gradient - &gradient)?.abs()?.flatten_all()?.max(0)?;
        let of_gradient = f64::from(of_gradient.to_scalar::<f32>()?) * rows;
        if name == "fused" {
            let [most, most_of_gradient] = match logits.dtype() {
                DType::F32 => [1e-4, 1e-5],
                // Rounded to 8 or 11 bits; f16 numbers below 6e-8 are 0.
                _ => [1e-4, 4e-3 + 6e-8 * rows],
            };
            if !(f64::from(off) <= most && of_gradient <= most_of_gradient) {
                bail!("{off} of the loss, {of_gradient} of gradients: more than rounding")
            }
        }
        line += &format!("{name} {off:.1e}; {of_gradient:.1e}   ");
    }
    Ok(line)
}

/// The loss and the gradient of the logits, in f32.
fn step(loss: Loss, logits: &Var, targets: &Tensor) -> Result<[Tensor; 2]> {
    let loss = loss(logits, targets)?;
    let Some(gradient) = loss.backward()?.remove(logits) else { bail!("no gradient") };
    Ok([loss.to_dtype(DType::F32)?, gradient.to_dtype(DType::F32)?])
}
