//! Computes the loss and the gradient of memory that cudarc owns, into memory that cudarc owns, on
//! cudarc's stream: both libraries work in the device's primary context.
//!
//! `cargo run -p fused-loss --features cudarc --example 04_cudarc_slice`, on a machine with a GPU.

use cudarc::driver::CudaContext;
use fused_loss::{Error, Gpu, Loss, Mse, Stream, View, ViewMut, Workspace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cudarc panics if there is no driver.
    let gpu = match Gpu::new(0) {
        Err(error @ Error::NoDriver { .. }) => {
            println!("{error}; cudarc needs a GPU, so there is nothing to show here");
            return Ok(());
        }
        other => other?,
    };
    println!("device: {}", gpu.name());
    let mut loss = Loss::zeros(&gpu, [])?;
    let mut workspace = Workspace::new(&gpu)?;

    // A stream and three slices that cudarc owns.
    let theirs = CudaContext::new(0)?.new_stream()?;
    let input = theirs.clone_htod(&[0.5_f32, 1.0, 1.5, 2.0, 2.5, 3.0])?;
    let target = theirs.clone_htod(&[1.0_f32; 6])?;
    let mut gradient = theirs.alloc_zeros::<f32>(6)?;

    // The same stream and slices, for calls of this library.
    let stream = Stream::from_cudarc(&theirs)?;
    let x = View::from_cudarc(&stream, &input, [2, 3])?;
    let t = View::from_cudarc(&stream, &target, [2, 3])?;
    let dx = ViewMut::from_cudarc(&stream, &mut gradient, [2, 3])?;
    Mse::mean().forward_backward_into(x, t, &mut loss, dx, &mut workspace, &stream)?;

    println!("loss: {}", loss.item()?);
    println!("gradient: {:?}", theirs.clone_dtoh(&gradient)?);
    Ok(())
}
