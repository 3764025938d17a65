//! A loss and its gradient: memory on the GPU, one call, the results back.
//!
//! `cargo run -p fused-loss --features emulator --example 01_loss_and_gradient`

use fused_loss::{Error, Gpu, Mse, Tensor};

fn main() -> Result<(), Error> {
    // The machine's GPU, or the emulator if it has none.
    let gpu = Gpu::new_or_emulated(0)?;
    println!("device: {}", gpu.name());

    let input = Tensor::from_slice(&gpu, [2, 3], &[0.5_f32, 1.0, 1.5, 2.0, 2.5, 3.0])?;
    let target = Tensor::from_slice(&gpu, [2, 3], &[1.0_f32; 6])?;

    // Work is queued on a stream, and nothing waits until a value is read.
    let stream = gpu.stream()?;
    let (loss, gradient) = Mse::mean().forward_backward(&input, &target, &stream)?;
    println!("loss: {}", loss.item()?);
    println!("gradient: {:?}", gradient.to_vec()?);

    // Arguments that do not fit each other are refused before anything is queued.
    let other = Tensor::from_slice(&gpu, [3, 2], &[1.0_f32; 6])?;
    println!("error: {}", Mse::mean().forward(&input, &other, &stream).unwrap_err());
    Ok(())
}
