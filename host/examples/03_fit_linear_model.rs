//! Fits a linear model to the diabetes data set of 442 patients (Efron, Hastie, Johnstone and
//! Tibshirani, 2004) by gradient descent, with the loss and its gradient from the GPU at every step, and
//! holds the fit against the closed-form solution.
//!
//! `cargo xtask demo`, or
//! `cargo run --release -p fused-loss --features emulator --example 03_fit_linear_model`

use fused_loss::{Error, Gpu, Loss, Mse, Tensor, Workspace};
use indicatif::{ProgressBar, ProgressStyle};
use linfa_linalg::qr::LeastSquaresQr;
use ndarray::{Array1, Array2, Axis, concatenate};

const STEPS: u64 = 4000;
/// The Hessian of the standardised features lies between 0.017 and 8: below 2/8 no step raises the loss, and
/// (1 - 0.017 × 0.24)⁴⁰⁰⁰ is 10⁻⁷.
const STEP: f64 = 0.24;
/// How far a weight may be from the closed form's, relative to the largest weight.
const TOLERANCE: f64 = 1e-4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = match Gpu::new(0) {
        Err(Error::NoDriver { reason }) => {
            println!("no GPU here ({reason}): running on the emulator");
            Gpu::emulated(0)?
        }
        other => other?,
    };
    println!("device: {}", gpu.name());

    let data = linfa_datasets::diabetes();
    let names: Vec<String> = data.feature_names().to_vec();
    let features = standardised(data.records());
    let (samples, _) = features.dim();
    // One more column, for the constant.
    let features = concatenate![Axis(1), features, Array2::ones((samples, 1))];
    let truth = standardised(&data.targets().clone().insert_axis(Axis(1)));
    let exact = features.clone().least_squares(&truth)?.column(0).to_owned();
    let least = mean_square(&(features.dot(&exact) - truth.column(0)));

    // The loss lives on the GPU; predictions go there at every step, gradients come back.
    let stream = gpu.stream()?;
    let mse = Mse::mean();
    let target = Tensor::from_slice(&gpu, [samples], &to_f32(&truth.column(0).to_owned()))?;
    let mut prediction = Tensor::<f32>::zeros(&gpu, [samples])?;
    let mut loss = Loss::<f32>::zeros(&gpu, [])?;
    let mut gradient = Tensor::<f32>::zeros(&gpu, [samples])?;
    let mut workspace = Workspace::new(&gpu)?;

    let bar = ProgressBar::new(STEPS).with_style(
        ProgressStyle::with_template("{bar:40} step {pos:>4} of {len}  {msg}")?
            .progress_chars("=> "),
    );
    let mut weights = Array1::<f64>::zeros(features.ncols());
    let mut lines = Vec::new();
    for step in 0..STEPS {
        prediction.copy_from_slice(&to_f32(&features.dot(&weights)))?;
        mse.forward_backward_into(
            &prediction,
            &target,
            &mut loss,
            &mut gradient,
            &mut workspace,
            &stream,
        )?;
        let value = loss.item()?;
        let by_prediction: Array1<f64> = gradient.to_vec()?.into_iter().map(f64::from).collect();
        let by_weights = features.t().dot(&by_prediction);
        weights.scaled_add(-STEP, &by_weights);
        bar.set_message(format!("loss {value:.7}"));
        bar.inc(1);
        if step.is_power_of_two() || step == 0 || step + 1 == STEPS {
            lines.push(format!("step {step:>4}: loss {value:.7}"));
        }
    }
    bar.finish_and_clear();

    for line in lines {
        println!("{line}");
    }
    println!("closed form: {least:.7}\n");
    println!("{:>27}  {:>10}  {:>11}", "weight", "fitted", "closed form");
    let constant = "(constant)".to_owned();
    for ((name, fitted), exact) in names.iter().chain([&constant]).zip(&weights).zip(&exact) {
        println!("{name:>27}  {fitted:>10.6}  {exact:>11.6}");
    }
    let largest = exact.iter().fold(0.0_f64, |largest, weight| largest.max(weight.abs()));
    let apart = (&weights - &exact).iter().fold(0.0_f64, |apart, by| apart.max(by.abs())) / largest;
    println!("\nfarthest apart: {apart:.1e} of the largest weight, on {}", gpu.name());
    if apart > TOLERANCE {
        return Err(format!("expected at most {TOLERANCE:e}").into());
    }
    Ok(())
}

/// Each column with mean 0 and variance 1.
fn standardised(columns: &Array2<f64>) -> Array2<f64> {
    let mean = columns.mean_axis(Axis(0)).expect("there are rows");
    (columns - &mean) / &columns.std_axis(Axis(0), 0.0)
}

fn mean_square(values: &Array1<f64>) -> f64 {
    values.dot(values) / values.len() as f64
}

fn to_f32(values: &Array1<f64>) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}
