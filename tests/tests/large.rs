//! Sizes that training has, on a GPU alone: `cargo xtask test --full` on a machine that has one.

use approx::assert_relative_eq;
use fused_loss::{Mse, Tensor};
use tests::filled::{sum_parallel, uniforms_parallel};
use tests::gpu;

/// The first table of the semantics: 32768×32768, f32, mean.
#[test]
#[ignore = "needs a GPU and 18 GB of host memory"]
fn mse_of_two_to_the_thirty_elements() {
    if gpu().is_emulated() {
        eprintln!("skipped: {} would take hours", gpu().name());
        return;
    }
    let side = 32768;
    let (x, t) = (uniforms_parallel(1, side * side), uniforms_parallel(2, side * side));
    let expected = sum_parallel(&x, &t, tests::reference::mse::sum) / (side * side) as f64;

    let stream = gpu().stream().unwrap();
    let on_x = Tensor::from_slice(gpu(), [side, side], &x).unwrap();
    let on_t = Tensor::from_slice(gpu(), [side, side], &t).unwrap();
    let loss = Mse::mean().forward(&on_x, &on_t, &stream).unwrap().item().unwrap();
    eprintln!("loss {loss}, in float64 {expected}, off by {:e}", f64::from(loss) / expected - 1.0);
    assert_relative_eq!(f64::from(loss), expected, max_relative = 1e-6);

    let (both, gradient) = Mse::mean().forward_backward(&on_x, &on_t, &stream).unwrap();
    assert_eq!(both.item().unwrap().to_bits(), loss.to_bits());
    let gradient = gradient.to_vec().unwrap();
    let scale = 2.0 / (side * side) as f64;
    for index in (0..gradient.len()).step_by(1009).chain([gradient.len() - 1]) {
        let expected = (f64::from(x[index]) - f64::from(t[index])) * scale;
        let error = (f64::from(gradient[index]) - expected).abs();
        assert!(
            error <= 2e-6 * 2.0 * scale,
            "element {index}: {expected}, got {}",
            gradient[index]
        );
    }
}
