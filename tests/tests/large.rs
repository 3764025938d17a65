//! Indices beyond 32 bits, and sizes as in training. The latter need a GPU: `cargo xtask test
//! --full` on a machine that has one.

use approx::assert_relative_eq;
use cust::sys::{self, CUresult};
use fused_loss::{
    CrossEntropy, Grads, KlDiv, Loss, Mse, RowMean, RowSum, Sum, Tensor, Unreduced, View, Workspace,
};
use half::f16;
use tests::filled::{filled, total, uniforms_parallel};
use tests::gpu;
use tests::number::Number;
use tests::random::uniform;
use tests::reference::Total;

/// 8 GiB of address space, of which the emulator allocates only the pages that are touched.
struct Sparse(u64);

impl Sparse {
    fn new(bytes: usize) -> Self {
        // The context is current after a call of the library.
        drop(Tensor::<f32>::zeros(gpu(), [1]).unwrap());
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
            let copied = sys::cuMemcpyHtoDAsync_v2(
                self.0 + 2 * at as u64,
                data.as_ptr().cast(),
                size_of_val(data),
                stream,
            );
            assert_eq!(copied, CUresult::CUDA_SUCCESS);
            sys::cuStreamSynchronize(stream)
        };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; no work on it is left.
        let _ = unsafe { sys::cuMemFree_v2(self.0) };
    }
}

/// Rows further apart than a 32-bit index reaches, each in a part of a warp or in a warp.
#[test]
fn rows_more_than_two_to_the_thirty_one_elements_apart() {
    let stride = (1_usize << 31) + 3;
    for cols in [500, 1_000] {
        // Kernels read vectors of 16 bytes, and two of them for one that is off a boundary. So they
        // also read what is beside a row.
        let margin = 16;
        let sparse = Sparse::new(2 * (stride + cols + margin));
        for (row, value, before) in [(0, 1.0, 0), (1, 2.0, margin)] {
            let mut elements = vec![f16::ZERO; before + cols + margin];
            elements[before..before + cols].fill(f16::from_f32(value));
            sparse.write(row * stride - before, &elements);
        }
        // SAFETY: within the allocation, which lives to the end.
        let x =
            unsafe { View::<f16>::from_raw_strided(gpu(), sparse.0, [2, cols], stride) }.unwrap();
        let t = Tensor::<f16>::zeros(gpu(), [2, cols]).unwrap();
        let stream = gpu().stream().unwrap();
        let rows = Mse::new().reduction(RowSum).forward(x, &t, &stream).unwrap();
        let of_row = cols as f32;
        assert_eq!(rows.values().to_vec().unwrap(), [of_row, 4.0 * of_row]);
        let squares = Mse::new().reduction(Unreduced).forward(x, &t, &stream).unwrap();
        let squares = squares.values().to_vec().unwrap();
        assert_eq!((squares[0].to_f32(), squares[2 * cols - 1].to_f32()), (1.0, 4.0));
        let (loss, gradient) = Mse::sum().forward_backward(x, &t, &stream).unwrap();
        assert_eq!(loss.item().unwrap(), 5.0 * of_row);
        let gradient = gradient.to_vec().unwrap();
        assert_eq!((gradient[0].to_f32(), gradient[2 * cols - 1].to_f32()), (2.0, 4.0));
    }
}

/// The same distance between rows of logits, for rows that a warp packs and for rows of a block.
#[test]
fn logits_more_than_two_to_the_thirty_one_elements_apart() {
    let stride = (1_usize << 31) + 3;
    for cols in [1_000, 40_003] {
        // Kernels read vectors of 16 bytes, so also what is beside a row that begins inside one.
        let margin = 8;
        let sparse = Sparse::new(2 * (stride + cols + margin));
        for (row, before) in [(0, 0), (1, margin)] {
            let mut logits = vec![f16::ZERO; before + cols + margin];
            logits[before + cols / 2 + row] = f16::from_f32(4.0 + row as f32);
            sparse.write(row * stride - before, &logits);
        }
        // SAFETY: within the allocation, which lives to the end.
        let x =
            unsafe { View::<f16>::from_raw_strided(gpu(), sparse.0, [2, cols], stride) }.unwrap();
        let classes = [cols as i64 / 2, cols as i64 / 2];
        let target = Tensor::from_slice(gpu(), [2], &classes).unwrap();
        let stream = gpu().stream().unwrap();
        let sums = [4.0_f64, 5.0].map(|largest| largest.exp() + (cols - 1) as f64);
        let expected = (sums[0].ln() - 4.0) + sums[1].ln();
        let loss = CrossEntropy::sum().forward(x, &target, &stream).unwrap().item().unwrap();
        assert_relative_eq!(f64::from(loss), expected, max_relative = 1e-6);
        let (loss, gradient) = CrossEntropy::sum().forward_backward(x, &target, &stream).unwrap();
        assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-6);
        let gradient = gradient.to_vec().unwrap();
        let likeliest = gradient[cols + cols / 2 + 1].to_f64();
        assert_relative_eq!(likeliest, 5.0_f64.exp() / sums[1], max_relative = 1e-3);
    }
}

/// The first table of docs/semantics.md: 32768×32768, f32, mean.
#[test]
#[ignore = "needs a GPU and 18 GB of host memory"]
fn mse_of_two_to_the_thirty_elements() {
    if gpu().is_emulated() {
        eprintln!("skipped: {} would take hours", gpu().name());
        return;
    }
    let side = 32768;
    let (x, t) = (uniforms_parallel(1, side * side), uniforms_parallel(2, side * side));
    let square = |index: usize| (f64::from(x[index]) - f64::from(t[index])).powi(2);
    let expected = total(side * side, square) / (side * side) as f64;

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

/// More elements than a 32-bit index can count, in more than 4 GiB: the last ones count like the
/// first.
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
    // Where a 32-bit index, signed or not, would go wrong.
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
    // Losses by row: long rows, and short rows, several per tile.
    for (rows, cols) in [(46_343, 46_341), (len / 64, 64)] {
        assert!(rows * cols > 1 << 31);
        // SAFETY: within the tensors, which live to the end.
        let (x, t) = unsafe {
            (
                View::<f16>::from_raw(gpu(), on_x.as_raw(), [rows, cols]).unwrap(),
                View::<f16>::from_raw(gpu(), on_t.as_raw(), [rows, cols]).unwrap(),
            )
        };
        let losses = Mse::new().reduction(RowSum).forward(x, t, &stream).unwrap();
        let losses = losses.values().to_vec().unwrap();
        let mut expected = vec![0.0; rows];
        for (place, value) in [(0, 1.0_f32), ((1 << 31) - 1, 2.0), (1 << 31, 3.0), (len - 1, 4.0)] {
            if place < rows * cols {
                expected[place / cols] += value * value;
            }
        }
        assert!(losses == expected, "{rows}×{cols}");
    }
}

/// The last entry of the first table of docs/semantics.md: 16384×16384, Σ p log(p/t) ÷ D for each
/// row, with the gradient of p from one upstream gradient per row.
fn divergence_per_sample<T: Number>()
where
    T::Loss: Number,
{
    if gpu().is_emulated() {
        eprintln!("skipped: {} would take hours", gpu().name());
        return;
    }
    let side = 16384;
    let probability = |seed, index| (f64::from(uniform(seed, index as u64)) + 1.0001) / 2.0001;
    let p = filled(side * side, |index| T::round(probability(1, index)));
    let log_t = filled(side * side, |index| T::round(probability(2, index).ln()));
    let g = filled(side, |row| T::Loss::round(f64::from(uniform(3, row as u64))));
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [side, side], &log_t).unwrap();
    let target = Tensor::from_slice(gpu(), [side, side], &p).unwrap();
    let upstream = Tensor::from_slice(gpu(), [side], &g).unwrap();
    let mut loss = Loss::<T::Loss>::zeros(gpu(), [side]).unwrap();
    let mut gradient = Tensor::<T>::zeros(gpu(), [side, side]).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let divergence = KlDiv::new().reduction(RowMean);
    let grads = Grads::target(&mut gradient).scaled_by(&upstream);
    divergence
        .forward_backward_into(&input, &target, &mut loss, grads, &mut workspace, &stream)
        .unwrap();
    let (losses, gradient) = (loss.values().to_vec().unwrap(), gradient.to_vec().unwrap());
    let off = filled(side, |row| {
        let row = row * side..(row + 1) * side;
        let term = |index: usize| p[index].wide() * (p[index].wide().ln() - log_t[index].wide());
        let expected = row.clone().map(term).sum::<Total>().value() / side as f64;
        let magnitude =
            row.clone().map(|index| term(index).abs()).sum::<Total>().value() / side as f64;
        let at = row.start / side;
        let of_loss = (losses[at].wide() - expected).abs() / expected.abs().max(magnitude);
        let by = |index: usize| {
            g[at].wide() / side as f64 * (p[index].wide().ln() - log_t[index].wide() + 1.0)
        };
        let largest = row.clone().map(|index| by(index).abs()).fold(0.0, f64::max);
        let of_gradient = row.map(|index| (gradient[index].wide() - by(index)).abs() / largest);
        (of_loss, of_gradient.fold(0.0, f64::max))
    });
    let worst = off.iter().fold((0.0_f64, 0.0_f64), |(a, b), off| (a.max(off.0), b.max(off.1)));
    eprintln!("{}: losses off by {:e}, gradients by {:e}", T::NAME, worst.0, worst.1);
    assert!(worst.0 <= T::LOSS && worst.1 <= T::allowed(0.0, 1.0, 0.0));
}

#[test]
#[ignore = "needs a GPU and 4 GB of host memory"]
fn divergence_per_sample_in_f32() {
    divergence_per_sample::<f32>();
}

#[test]
#[ignore = "needs a GPU and 7 GB of host memory"]
fn divergence_per_sample_in_f64() {
    divergence_per_sample::<f64>();
}

#[test]
#[ignore = "needs a GPU with 20 GB of memory"]
fn divergence_of_more_than_two_to_the_thirty_one_elements() {
    if gpu().is_emulated() {
        eprintln!("skipped: {} would take hours", gpu().name());
        return;
    }
    let len = (1_usize << 31) + 200_000;
    let half = f16::from_f32(0.5);
    let mut p = vec![half; len];
    // Where a 32-bit index, signed or not, would go wrong. Elsewhere the two are equal.
    for place in [0, (1 << 31) - 1, 1 << 31, len - 1] {
        p[place] = f16::from_f32(0.25);
    }
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [len], &p).unwrap();
    let target = Tensor::from_slice(gpu(), [len], &vec![half; len]).unwrap();
    let loss = KlDiv::new().log_input(false).reduction(Sum);
    let (loss, gradient) = loss.forward_backward(&input, &target, &stream).unwrap();
    assert_relative_eq!(loss.item().unwrap(), 2.0 * 2.0_f32.ln(), max_relative = 1e-6);
    for (index, (&gradient, &p)) in gradient.to_vec().unwrap().iter().zip(&p).enumerate() {
        assert_eq!(gradient.to_f32(), -0.5 / p.to_f32(), "element {index}");
    }
}

#[test]
#[ignore = "needs a GPU with 20 GB of memory"]
fn cross_entropy_of_more_than_two_to_the_thirty_one_elements() {
    if gpu().is_emulated() {
        eprintln!("skipped: {} would take hours", gpu().name());
        return;
    }
    let (rows, cols) = (16_800, 128_256);
    assert!(rows * cols > 1 << 31);
    // One logit of 4 per row, which is that of its class in every second row.
    let place = |row: usize| row * 7 % cols;
    let mut x = vec![f16::ZERO; rows * cols];
    for row in 0..rows {
        x[row * cols + place(row)] = f16::from_f32(4.0);
    }
    let class =
        |row: usize| if row.is_multiple_of(2) { place(row) } else { (place(row) + 1) % cols };
    let classes: Vec<i64> = (0..rows).map(|row| class(row) as i64).collect();
    let stream = gpu().stream().unwrap();
    let input = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let (loss, gradient) = CrossEntropy::none().forward_backward(&input, &target, &stream).unwrap();
    loss.check().unwrap();
    let sum = 4.0_f64.exp() + (cols - 1) as f64;
    for (row, &loss) in loss.values().to_vec().unwrap().iter().enumerate() {
        let logit = if row.is_multiple_of(2) { 4.0 } else { 0.0 };
        assert_relative_eq!(f64::from(loss), sum.ln() - logit, max_relative = 1e-6);
    }
    let gradient = gradient.to_vec().unwrap();
    for (index, &gradient) in gradient.iter().enumerate() {
        let (row, col) = (index / cols, index % cols);
        let p = if col == place(row) { 4.0_f64.exp() } else { 1.0 } / sum;
        let expected = p - if col == class(row) { 1.0 } else { 0.0 };
        let off = (gradient.to_f64() - expected).abs();
        assert!(off <= f16::allowed(expected, 1.0, 1.0), "row {row}, {col}: {gradient}");
    }
}
