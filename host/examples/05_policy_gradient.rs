//! Reinforcement learning by policy gradients, as in the fine-tuning of language models. Actions
//! are drawn from the softmax of logits at a temperature. The logits learn from the
//! log-probabilities of the actions, weighted by their reward, and from the entropies, which keep
//! the policy open.
//!
//! `cargo run --release -p fused-loss --features emulator --example 05_policy_gradient`

use fused_loss::{Error, Gpu, LogProb, Tensor, Upstreams};

const ROWS: usize = 64;
const ACTIONS: usize = 5;
const TEMPERATURE: f64 = 0.7;
/// The value of a unit of entropy, beside a reward of 1.
const ENTROPY: f32 = 0.02;
const STEPS: usize = 60;
const STEP: f32 = 2.0;

/// The action that is rewarded in a row.
fn best(row: usize) -> usize {
    row * 7 % ACTIONS
}

/// An action, drawn from a row of logits with a random number from 0 to 1.
fn draw(logits: &[f32], random: f64) -> i64 {
    let weights = logits.iter().map(|&logit| (f64::from(logit) / TEMPERATURE).exp());
    let weights: Vec<f64> = weights.collect();
    let mut left = random * weights.iter().sum::<f64>();
    let taken = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    taken.unwrap_or(ACTIONS - 1) as i64
}

fn main() -> Result<(), Error> {
    let gpu = Gpu::new_or_emulated(0)?;
    println!("device: {}", gpu.name());
    let stream = gpu.stream()?;
    let policy = LogProb::new().temperature(TEMPERATURE);
    let mut logits = vec![0.0_f32; ROWS * ACTIONS];
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 40) as f64 / (1 << 24) as f64
    };
    let of_entropy = Tensor::from_slice(&gpu, (), &[ENTROPY])?;
    for step in 0..STEPS {
        let actions: Vec<i64> = logits.chunks(ACTIONS).map(|row| draw(row, random())).collect();
        let reward = |(row, &action): (usize, &i64)| f32::from(action as usize == best(row));
        let rewards: Vec<f32> = actions.iter().enumerate().map(reward).collect();
        let mean = rewards.iter().sum::<f32>() / ROWS as f32;
        let advantages: Vec<f32> = rewards.iter().map(|reward| reward - mean).collect();

        let input = Tensor::from_slice(&gpu, [ROWS, ACTIONS], &logits)?;
        let classes = Tensor::from_slice(&gpu, [ROWS], &actions)?;
        let (_, entropies, saved) = policy.forward_saving(&input, &classes, &stream)?;
        // The objective: the mean of advantage times log-probability, and of the entropy.
        let of_log_prob = Tensor::from_slice(&gpu, [ROWS], &advantages)?;
        let upstreams = Upstreams::both(&of_log_prob, of_entropy.view().expand([ROWS])?);
        let gradient = policy.backward(&input, &classes, &saved, upstreams, &stream)?.to_vec()?;
        for (logit, by) in logits.iter_mut().zip(gradient) {
            *logit += STEP * by;
        }
        if step % 10 == 0 || step + 1 == STEPS {
            let entropy = entropies.to_vec()?.iter().sum::<f32>() / ROWS as f32;
            println!("step {step:2}: mean reward {mean:.2}, mean entropy {entropy:.2}");
        }
    }
    Ok(())
}
