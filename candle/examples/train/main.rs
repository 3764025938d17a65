//! Trains a small transformer on Shakespeare twice from the same weights, with candle_nn's
//! cross-entropy and with this crate's. It prints both losses during training and the tokens per
//! second, and draws both curves with `--svg FILE`.
//!
//! `cargo run --release --features cuda --example train`, on a machine with a GPU: tokens are
//! words. `cargo run --features emulator --example train`, on any other: a smaller model of
//! characters. It fails if the model does not learn, or learns differently with the two losses.

mod model;
mod svg;
mod text;

use candle_core::{Device, Result, Tensor, bail};
use candle_nn::{AdamW, Optimizer};
use model::{Model, Size};
use std::time::Instant;
use text::{Random, Text};

/// Steps that load kernels and allocate candle's memory, which the speed does not include.
const WARM_UP: usize = 20;

type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn main() -> Result<()> {
    let device = if cfg!(feature = "cuda") { Device::cuda_if_available(0)? } else { Device::Cpu };
    let (text, size, steps) = if device.is_cuda() {
        let size = Size { batch: 64, context: 128, width: 256, heads: 4, layers: 4 };
        (Text::of_words(), size, 600)
    } else {
        let size = Size { batch: 8, context: 32, width: 64, heads: 2, layers: 2 };
        (Text::of_characters(), size, 100)
    };
    let place = if device.is_cuda() { "the GPU" } else { "the CPU" };
    println!(
        "{steps} steps of {} tokens of {} kinds on {place}\n",
        size.batch * size.context,
        text.kinds
    );

    let train = |loss: Loss| train(loss, &text, size, steps, &device);
    let theirs = train(candle_nn::loss::cross_entropy)?;
    let ours = train(fused_loss_candle::cross_entropy)?;

    println!("step  candle_nn  fused_loss_candle");
    for step in (0..steps).step_by(steps / 10).chain([steps - 1]) {
        println!("{step:>4}  {:>9.6}  {:>17.6}", theirs.losses[step], ours.losses[step]);
    }
    println!("\ntokens a second: candle_nn {:.0}, fused {:.0}", theirs.speed, ours.speed);
    let [first, apart] = [steps / 10, steps].map(|steps| ours.apart(&theirs, steps));
    println!("largest relative difference of a step: {first:.1e} in the first tenth, {apart:.1e}");

    if let Some(file) = argument("--svg") {
        let curves = [("candle_nn", &theirs.losses[..]), ("fused_loss_candle", &ours.losses[..])];
        std::fs::write(file, svg::draw(curves, "step", "loss"))?;
    }
    let has_learnt = ours.losses[steps - 1] < 0.8 * ours.losses[0];
    // Adam carries the rounding of one step into all later steps.
    if has_learnt && first < 1e-5 && apart < 0.02 {
        return Ok(());
    }
    bail!("the model has not learnt, or not the same with both losses")
}

/// The argument after an option of the command line.
fn argument(option: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != option).nth(1)
}

struct Training {
    /// The loss of each step.
    losses: Vec<f32>,
    /// Tokens per second.
    speed: f64,
}

impl Training {
    /// The largest relative difference between the losses of the first steps.
    fn apart(&self, other: &Training, steps: usize) -> f32 {
        let pairs = self.losses.iter().zip(&other.losses).take(steps);
        pairs.map(|(one, other)| (one - other).abs() / other).fold(0.0, f32::max)
    }
}

fn train(loss: Loss, text: &Text, size: Size, steps: usize, device: &Device) -> Result<Training> {
    let mut random = Random::new();
    let model = Model::new(size, text.kinds, &mut random, device)?;
    let mut optimizer = AdamW::new_lr(model.variables(), 1e-3)?;
    let mut losses = Vec::new();
    let mut start = Instant::now();
    for step in 0..steps {
        if step == WARM_UP {
            start = Instant::now();
        }
        let (tokens, next) = text.batch(size.batch, size.context, &mut random, device)?;
        let loss = loss(&model.logits(&tokens)?, &next)?;
        optimizer.backward_step(&loss)?;
        // Waits for the step.
        losses.push(loss.to_scalar()?);
    }
    let tokens = size.batch * size.context * (steps - WARM_UP);
    Ok(Training { losses, speed: tokens as f64 / start.elapsed().as_secs_f64() })
}
