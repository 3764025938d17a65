//! Trains a softmax classifier on the iris data set of 150 flowers (Fisher, 1936) by gradient
//! descent, with cross-entropy and its gradient from the GPU at every step. Then it shows how many
//! of the flowers outside the training set it classifies correctly.
//!
//! `cargo xtask demo`, or `cargo run --release -p fused-loss --features emulator --example
//! 03_softmax_classifier`

use fused_loss::{CrossEntropy, Gpu, Loss, Tensor, Workspace};
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::{Array1, Array2, Axis, concatenate, s};

const STEPS: u64 = 1000;
const STEP: f64 = 0.5;
/// The share of every target that is spread over all classes, which limits the weights.
const LABEL_SMOOTHING: f64 = 0.02;
/// One flower in this many belongs to the test set.
const TEST_EVERY: usize = 3;
const CLASSES: usize = 3;
const NAMES: [&str; CLASSES] = ["setosa", "versicolor", "virginica"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = Gpu::new_or_emulated(0)?;
    println!("device: {}", gpu.name());

    // An extra column for the constant.
    let data = linfa_datasets::iris();
    let features = standardised(data.records());
    let features = concatenate![Axis(1), features, Array2::ones((features.nrows(), 1))];
    let part = |test: bool| {
        let of_part = |index: &usize| index.is_multiple_of(TEST_EVERY) == test;
        let rows: Vec<usize> = (0..features.nrows()).filter(of_part).collect();
        let classes: Vec<i64> = rows.iter().map(|&row| data.targets()[row] as i64).collect();
        (features.select(Axis(0), &rows), classes)
    };
    let ((train, train_classes), (test, test_classes)) = (part(false), part(true));

    // The loss is computed on the GPU: every step sends logits and gets gradients back.
    let stream = gpu.stream()?;
    let cross_entropy = CrossEntropy::new().label_smoothing(LABEL_SMOOTHING);
    let shape = [train.nrows(), CLASSES];
    let target = Tensor::from_slice(&gpu, [train.nrows()], &train_classes)?;
    let mut logits = Tensor::<f32>::zeros(&gpu, shape)?;
    let mut loss = Loss::<f32>::zeros(&gpu, [])?;
    let mut gradient = Tensor::<f32>::zeros(&gpu, shape)?;
    let mut workspace = Workspace::new(&gpu)?;

    let bar = ProgressBar::new(STEPS).with_style(
        ProgressStyle::with_template("{bar:40} step {pos:>4} of {len}  {msg}")?
            .progress_chars("=> "),
    );
    let mut weights = Array2::<f64>::zeros((features.ncols(), CLASSES));
    let mut lines = Vec::new();
    for step in 0..STEPS {
        let by_hand = train.dot(&weights).mapv(|logit| logit as f32);
        logits.copy_from_slice(by_hand.as_slice().expect("row-major"))?;
        cross_entropy.forward_backward_into(
            &logits,
            &target,
            &mut loss,
            &mut gradient,
            &mut workspace,
            &stream,
        )?;
        let value = loss.item()?;
        let by_logits = gradient.to_vec()?.into_iter().map(f64::from).collect();
        let by_logits = Array2::from_shape_vec(shape, by_logits)?;
        weights.scaled_add(-STEP, &train.t().dot(&by_logits));
        bar.set_message(format!("loss {value:.4}"));
        bar.inc(1);
        if step.is_power_of_two() || step == 0 || step + 1 == STEPS {
            let right = accuracy(&train, &train_classes, &weights);
            lines.push(format!("step {step:>4}: loss {value:.4}, right {:5.1} %", right * 100.0));
        }
    }
    bar.finish_and_clear();
    for line in lines {
        println!("{line}");
    }

    println!("\nof the {} flowers kept for the end:", test.nrows());
    for (class, name) in NAMES.iter().enumerate() {
        let of_class: Vec<usize> =
            (0..test.nrows()).filter(|&row| test_classes[row] == class as i64).collect();
        let named = predictions(&test.select(Axis(0), &of_class), &weights);
        let right = named.iter().filter(|&&named| named == class).count();
        println!("{name:>12}: {right} of {} named right", of_class.len());
    }
    let right = accuracy(&test, &test_classes, &weights);
    println!("accuracy: {:.1} %, on {}", right * 100.0, gpu.name());
    if right < 0.9 {
        return Err(format!("expected at least 90 %, got {:.1} %", right * 100.0).into());
    }
    Ok(())
}

/// The columns, scaled to mean 0 and variance 1.
fn standardised(columns: &Array2<f64>) -> Array2<f64> {
    let mean = columns.mean_axis(Axis(0)).expect("there are rows");
    (columns - &mean) / &columns.std_axis(Axis(0), 0.0)
}

/// The likeliest class of each row.
fn predictions(features: &Array2<f64>, weights: &Array2<f64>) -> Array1<usize> {
    let likeliest = |row: usize| {
        let logits = features.slice(s![row, ..]).dot(weights);
        (0..CLASSES).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("there are classes")
    };
    (0..features.nrows()).map(likeliest).collect()
}

/// The fraction of flowers that are classified correctly.
fn accuracy(features: &Array2<f64>, classes: &[i64], weights: &Array2<f64>) -> f64 {
    let named = predictions(features, weights);
    let right = named.iter().zip(classes).filter(|&(&named, &class)| named as i64 == class).count();
    right as f64 / classes.len() as f64
}
