//! Indices beyond 32 bits, and sizes that training has; the latter on a GPU alone: `cargo xtask test --full`
//! on a machine that has one.

use approx::assert_relative_eq;
use cust::sys::{self, CUresult};
use fused_loss::{Mse, RowSum, Tensor, View};
use half::f16;
use tests::filled::{sum_parallel, uniforms_parallel};
use tests::gpu;

/// Memory of which only what is touched is there, on the emulator: 8 GiB of address space.
struct Sparse(u64);

impl Sparse {
    fn new(bytes: usize) -> Self {
        // The context is current after a call of the library.
        Tensor::<f32>::zeros(gpu(), [1]).unwrap();
        let mut address = 0;
        // SAFETY: writes the address to the pointer it is given.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        Sparse(address)
    }

    fn write(&self, at: usize, data: &[f16]) {
        // SAFETY: within the allocation; the copy is done when the call returns.
        let result = unsafe {
            let stream = std::ptr::null_mut();
            let result = sys::cuMemcpyHtoDAsync_v2(
                self.0 + 2 * at as u64,
                data.as_ptr().cast(),
                size_of_val(data),
                stream,
            );
            sys::cuStreamSynchronize(stream);
            result
        };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; the work on it was waited for.
        let _ = unsafe { sys::cuMemFree_v2(self.0) };
    }
}

/// Rows further apart than an index of 32 bits reaches.
#[test]
fn rows_more_than_two_to_the_thirty_one_elements_apart() {
    let (cols, stride) = (1_000, (1_usize << 31) + 3);
    let sparse = Sparse::new(2 * (stride + cols));
    let (near, far) = (vec![f16::ONE; cols], vec![f16::from_f32(2.0); cols]);
    sparse.write(0, &near);
    sparse.write(stride, &far);
    let ordinal = gpu().ordinal();
    // SAFETY: within the allocation, which lives to the end.
    let x = unsafe { View::<f16>::from_raw_strided(sparse.0, [2, cols], stride, ordinal) }.unwrap();
    let t = Tensor::<f16>::zeros(gpu(), [2, cols]).unwrap();
    let stream = gpu().stream().unwrap();
    let rows = Mse { reduction: RowSum }.forward(x, &t, &stream).unwrap();
    assert_eq!(rows.values().to_vec().unwrap(), [1_000.0, 4_000.0]);
    let (loss, gradient) = Mse::sum().forward_backward(x, &t, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), 5_000.0);
    let gradient = gradient.to_vec().unwrap();
    assert_eq!((gradient[0].to_f32(), gradient[2 * cols - 1].to_f32()), (2.0, 4.0));
}

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

/// More elements than 32 bits of index, or 4 GiB, hold: the last ones count like the first.
#[test]
#[ignore = "needs a GPU with 20 GB of memory"]
fn more_than_two_to_the_thirty_one_elements_in_f16() {
    if gpu().is_emulated() {
        eprintln!("skipped: {} would take hours", gpu().name());
        return;
    }
    let len = (1_usize << 31) + 200_000;
    let stream = gpu().stream().unwrap();
    let mut x = vec![f16::ZERO; len];
    // Where an index of 32 bits, signed or not, would go wrong.
    for (place, value) in [(0, 1.0), ((1 << 31) - 1, 2.0), (1 << 31, 3.0), (len - 1, 4.0)] {
        x[place] = f16::from_f32(value);
    }
    let on_x = Tensor::from_slice(gpu(), [len], &x).unwrap();
    let on_t = Tensor::<f16>::zeros(gpu(), [len]).unwrap();
    let (loss, gradient) = Mse::sum().forward_backward(&on_x, &on_t, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), 30.0);
    let gradient = gradient.to_vec().unwrap();
    for (index, (&gradient, &x)) in gradient.iter().zip(&x).enumerate() {
        assert_eq!(gradient.to_f32(), 2.0 * x.to_f32(), "element {index}");
    }
    // As rows with a loss each, of which the last lies beyond 2³¹ elements.
    let (rows, cols) = (46_343, 46_341);
    // SAFETY: within the tensors, which live to the end.
    let (x, t) = unsafe {
        let ordinal = gpu().ordinal();
        (
            View::<f16>::from_raw(on_x.as_raw(), [rows, cols], ordinal).unwrap(),
            View::<f16>::from_raw(on_t.as_raw(), [rows, cols], ordinal).unwrap(),
        )
    };
    assert!(rows * cols > 1 << 31);
    let losses = Mse { reduction: RowSum }.forward(x, t, &stream).unwrap();
    let losses = losses.values().to_vec().unwrap();
    let mut expected = vec![0.0; rows];
    for (place, value) in [(0, 1.0_f32), ((1 << 31) - 1, 2.0), (1 << 31, 3.0)] {
        expected[place / cols] += value * value;
    }
    assert_eq!(losses, expected);
}
