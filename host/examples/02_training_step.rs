//! The calls of a training loop at every step: the `_into` methods write to existing memory, so
//! nothing is allocated and nothing waits.
//!
//! `cargo run -p fused-loss --features emulator --example 02_training_step`

use fused_loss::{Error, Gpu, Loss, Mse, Tensor, View, Workspace};

fn main() -> Result<(), Error> {
    let gpu = Gpu::new_or_emulated(0)?;
    println!("device: {}", gpu.name());
    let stream = gpu.stream()?;

    let input = Tensor::from_slice(&gpu, [4, 8], &[0.25_f32; 32])?;
    let target = Tensor::zeros(&gpu, [4, 8])?;
    let mut loss = Loss::zeros(&gpu, [])?;
    let mut gradient = Tensor::zeros(&gpu, [4, 8])?;
    let mut workspace = Workspace::new(&gpu)?;
    let mse = Mse::sum();
    for _ in 0..3 {
        mse.forward_backward_into(
            &input,
            &target,
            &mut loss,
            &mut gradient,
            &mut workspace,
            &stream,
        )?;
    }
    println!("loss: {}", loss.item()?);

    // The upstream gradient, from what is computed after the loss, stays on the device.
    let upstream = Tensor::from_slice(&gpu, [], &[0.5_f32])?;
    mse.backward_into(&input, &target, &upstream, &mut gradient, &stream)?;
    println!("gradient, halved upstream: {}", gradient.to_vec()?[0]);

    // Memory of another library in the same (primary) context: its address, shape and device.
    // SAFETY: the address is that of `input`, which lives to the end and is not written.
    let borrowed = unsafe { View::<f32>::from_raw(&gpu, input.as_raw(), [4, 8]) }?;
    println!("loss, of borrowed memory: {}", mse.forward(borrowed, &target, &stream)?.item()?);
    Ok(())
}
