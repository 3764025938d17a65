//! Trains a small model of text twice from the same weights, with candle_nn's cross-entropy and
//! with this crate's, and prints both losses as they fall and the largest difference between them.
//!
//! `cargo run --release --features cuda --example train`, on a machine with a GPU;
//! `cargo run --features emulator --example train`, on any other. It fails where the model does not
//! learn, or not the same with both.

use candle_core::{Device, Result, Tensor, Var, bail};
use candle_nn::{Optimizer, SGD};

/// Letters and the space.
const CHARS: usize = 27;
/// How many characters the model sees, of which it is to tell the next.
const CONTEXT: usize = 4;
const EMBEDDING: usize = 8;
const HIDDEN: usize = 64;
const BATCH: usize = 128;
const STEPS: usize = 300;

fn main() -> Result<()> {
    let device = if cfg!(feature = "cuda") { Device::cuda_if_available(0)? } else { Device::Cpu };
    let place = if device.is_cuda() { "the GPU" } else { "the CPU" };
    println!("{STEPS} steps of {BATCH} characters on {place}\n");
    let theirs = train(candle_nn::loss::cross_entropy, &device)?;
    let ours = train(fused_loss_candle::cross_entropy, &device)?;

    println!("step  candle_nn  fused_loss_candle");
    for step in (0..STEPS).step_by(STEPS / 10).chain([STEPS - 1]) {
        println!("{step:>4}  {:>9.6}  {:>17.6}", theirs[step], ours[step]);
    }
    let differences = ours.iter().zip(&theirs).map(|(ours, theirs)| (ours - theirs).abs());
    let largest = differences.max_by(f32::total_cmp).expect("there are steps");
    println!("\nlargest difference of any step: {largest:.1e}");
    // What is rounded in one step is carried to all that follow.
    if ours[STEPS - 1] < 0.5 * ours[0] && largest < 1e-3 {
        return Ok(());
    }
    bail!("the model has not learnt, or not the same with both losses")
}

/// The loss of each step.
fn train(loss: fn(&Tensor, &Tensor) -> Result<Tensor>, device: &Device) -> Result<Vec<f32>> {
    let mut random = Random(1);
    let text = text(STEPS * BATCH + CONTEXT, &mut random);
    let model = Model::new(&mut random, device)?;
    let mut optimizer = SGD::new(model.variables(), 0.5)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let at = step * BATCH..(step + 1) * BATCH;
        let contexts = at.clone().flat_map(|at| text[at..at + CONTEXT].to_vec()).collect();
        let contexts = Tensor::from_vec(contexts, BATCH * CONTEXT, device)?;
        let next = at.map(|at| text[at + CONTEXT]).collect();
        let next = Tensor::from_vec(next, BATCH, device)?;

        let loss = loss(&model.logits(&contexts)?, &next)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar()?);
    }
    Ok(losses)
}

/// An embedding and two layers.
struct Model {
    embedding: Var,
    hidden: [Var; 2],
    out: [Var; 2],
}

impl Model {
    fn new(random: &mut Random, device: &Device) -> Result<Self> {
        // candle's generator cannot be seeded on the CPU.
        let mut new = |rows: usize, cols: usize, scale: f32| {
            let numbers = (0..rows * cols).map(|_| scale * (random.below(2001) as f32 - 1000.0));
            Var::from_vec(numbers.collect::<Vec<_>>(), (rows, cols), device)
        };
        Ok(Model {
            embedding: new(CHARS, EMBEDDING, 1e-3)?,
            hidden: [new(CONTEXT * EMBEDDING, HIDDEN, 3e-4)?, new(1, HIDDEN, 0.0)?],
            out: [new(HIDDEN, CHARS, 1e-4)?, new(1, CHARS, 0.0)?],
        })
    }

    fn variables(&self) -> Vec<Var> {
        [std::slice::from_ref(&self.embedding), &self.hidden, &self.out].concat()
    }

    fn logits(&self, contexts: &Tensor) -> Result<Tensor> {
        let [[to_hidden, hidden_bias], [to_out, out_bias]] = [&self.hidden, &self.out];
        let x = self.embedding.index_select(contexts, 0)?.reshape((BATCH, CONTEXT * EMBEDDING))?;
        let hidden = x.matmul(to_hidden)?.broadcast_add(hidden_bias)?.tanh()?;
        hidden.matmul(to_out)?.broadcast_add(out_bias)
    }
}

/// Sentences such as "the dog sees a bird", as numbers of characters.
fn text(len: usize, random: &mut Random) -> Vec<u32> {
    let (nouns, verbs) = (["dog", "cat", "bird", "child"], ["sees", "hears", "follows"]);
    let mut text = String::new();
    while text.len() < len {
        let mut noun = || format!("{} {}", ["the", "a"][random.below(2)], nouns[random.below(4)]);
        let (subject, object) = (noun(), noun());
        text += &format!("{subject} {} {object} ", verbs[random.below(3)]);
    }
    let number = |letter: u8| if letter == b' ' { 0 } else { u32::from(letter - b'a') + 1 };
    text.bytes().take(len).map(number).collect()
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }
}
