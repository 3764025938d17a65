//! The loss of memory that cudarc owns: both libraries work in the device's primary context, so an
//! address of the one is valid in the other.
//!
//! `cargo run -p fused-loss --example 04_cudarc_slice`, on a machine with a GPU.

use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use fused_loss::{Error, Gpu, Loss, Mse, Stream, View, ViewMut, Workspace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = match Gpu::new(0) {
        Err(error @ Error::NoDriver { .. }) => {
            println!("{error}; cudarc needs a GPU, so there is nothing to show here");
            return Ok(());
        }
        other => other?,
    };
    println!("device: {}", gpu.name());

    // cudarc's stream, and two slices of its own.
    let context = CudaContext::new(0)?;
    let theirs = context.new_stream()?;
    let input = theirs.clone_htod(&[0.5_f32, 1.0, 1.5, 2.0, 2.5, 3.0])?;
    let target = theirs.clone_htod(&[1.0_f32; 6])?;
    let mut gradient = theirs.alloc_zeros::<f32>(6)?;

    // SAFETY: a stream of device 0's primary context, which lives to the end of `main`.
    let stream = unsafe { Stream::from_raw(&gpu, theirs.cu_stream().cast()) }?;
    let mut loss = Loss::zeros(&gpu, [])?;
    let mut workspace = Workspace::new(&gpu)?;
    {
        // The guards tell cudarc which stream uses the slices until they are dropped.
        let (input, _input) = input.device_ptr(&theirs);
        let (target, _target) = target.device_ptr(&theirs);
        let (gradient, _gradient) = gradient.device_ptr_mut(&theirs);
        // SAFETY: six elements each, alive and untouched by others until the stream has done this.
        let (input, target, gradient) = unsafe {
            (
                View::<f32>::from_raw(&gpu, input, [2, 3])?,
                View::<f32>::from_raw(&gpu, target, [2, 3])?,
                ViewMut::<f32>::from_raw(&gpu, gradient, [2, 3])?,
            )
        };
        Mse::mean().forward_backward_into(
            input,
            target,
            &mut loss,
            gradient,
            &mut workspace,
            &stream,
        )?;
    }
    println!("loss: {}", loss.item()?);
    println!("gradient: {:?}", theirs.clone_dtoh(&gradient)?);
    Ok(())
}
