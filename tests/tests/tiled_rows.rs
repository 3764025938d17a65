//! Losses by row, and losses of long rows with gaps: rows packed into tiles, cut into tiles, and
//! shared by several blocks, over alignments, gaps, dtypes and upstream gradients. Most numbers are
//! small integers, whose sums and products are exact in any order.

use approx::assert_relative_eq;
use fused_loss::{
    Float, Gpu, Grads, KlDiv, Loss, Mse, RowMean, RowSum, Tensor, View, ViewMut, Workspace,
};
use half::{bf16, f16};
use tests::layout::{Layout, wide};
use tests::number::Number;
use tests::random::uniforms;
use tests::{gpu, small_gpu};

const DENSE: Layout = Layout::DENSE;

/// Checks squared errors by row, and both gradients times an upstream gradient per row.
fn check_squares<T: Number>(shape: [usize; 2], layout: Layout)
where
    T::Loss: Number,
{
    check_squares_on::<T>(gpu(), shape, layout);
}

/// [`check_squares`] on this device.
fn check_squares_on<T: Number>(gpu: &Gpu, shape: [usize; 2], layout: Layout)
where
    T::Loss: Number,
{
    let [rows, cols] = shape;
    let stream = gpu.stream().unwrap();
    let mut workspace = Workspace::new(gpu).unwrap();
    let x: Vec<f64> = (0..rows * cols).map(|index| (index * 7 % 11 % 5) as f64).collect();
    let t: Vec<f64> = (0..rows * cols).map(|index| (index * 5 % 13 % 4) as f64).collect();
    let apart: Vec<f64> = x.iter().zip(&t).map(|(x, t)| x - t).collect();
    let expected: Vec<f64> =
        apart.chunks(cols).map(|row| row.iter().map(|apart| apart * apart).sum()).collect();
    let scale = |row: usize| (row % 7) as f64 - 2.0;
    let upstream: Vec<T::Loss> = (0..rows).map(|row| T::Loss::round(scale(row))).collect();
    let upstream = Tensor::from_slice(gpu, [rows], &upstream).unwrap();
    let what = format!("{rows}×{cols} {}, {layout:?}", std::any::type_name::<T>());

    let (x, t) = (layout.place::<T>(gpu, &x, shape, 0), layout.place::<T>(gpu, &t, shape, 1));
    let unwritten = vec![f64::NAN; rows * cols];
    let mse = Mse::new().reduction(RowSum);
    let losses = mse.forward(x.view(), t.view(), &stream).unwrap();
    assert_eq!(wide(losses.values().to_vec().unwrap()), expected, "{what}, forward");

    let by = |sign: f64| {
        apart.iter().enumerate().map(move |(at, apart)| sign * 2.0 * apart * scale(at / cols))
    };
    for in_one_pass in [true, false] {
        let mut loss = Loss::zeros(gpu, [rows]).unwrap();
        let mut by_x = layout.place::<T>(gpu, &unwritten, shape, 2);
        let mut by_t = layout.place::<T>(gpu, &unwritten, shape, 3);
        let grads = Grads::both(by_x.view_mut(), by_t.view_mut());
        if in_one_pass {
            mse.forward_backward_into(
                x.view(),
                t.view(),
                &mut loss,
                grads.scaled_by(&upstream),
                &mut workspace,
                &stream,
            )
            .unwrap();
            assert_eq!(wide(loss.values().to_vec().unwrap()), expected, "{what}, in one pass");
        } else {
            mse.backward_into(x.view(), t.view(), &upstream, grads, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        assert!(wide(by_x.to_vec()).into_iter().eq(by(1.0)), "{what}: by input, {in_one_pass}");
        assert!(wide(by_t.to_vec()).into_iter().eq(by(-1.0)), "{what}: by target, {in_one_pass}");
    }
}

/// Checks a sum of squared errors, alone and with the gradient of the input.
fn check_sum<T: Number>(shape: [usize; 2], layout: Layout)
where
    T::Loss: Number,
{
    let [rows, cols] = shape;
    let stream = gpu().stream().unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let x: Vec<f64> = (0..rows * cols).map(|index| (index % 3) as f64).collect();
    let expected: f64 = x.iter().map(|x| (x - 1.0) * (x - 1.0)).sum();
    let gradient = x.iter().map(|x| 2.0 * (x - 1.0));
    let t = layout.place::<T>(gpu(), &vec![1.0; rows * cols], shape, 1);
    let x = layout.place::<T>(gpu(), &x, shape, 0);
    let sum = Mse::sum().forward(x.view(), t.view(), &stream).unwrap();
    assert_eq!(sum.item().unwrap().wide(), expected, "{shape:?}, {layout:?}");
    let mut to = layout.place::<T>(gpu(), &vec![f64::NAN; rows * cols], shape, 2);
    let mut loss = Loss::zeros(gpu(), []).unwrap();
    for _ in 0..2 {
        let grads = Grads::input(to.view_mut());
        Mse::sum()
            .forward_backward_into(x.view(), t.view(), &mut loss, grads, &mut workspace, &stream)
            .unwrap();
        assert_eq!(loss.item().unwrap().wide(), expected, "{shape:?}, {layout:?}");
    }
    assert!(wide(to.to_vec()).into_iter().eq(gradient), "{shape:?}, {layout:?}");
}

/// Shapes of each kind: packed rows shorter than a vector, with one lane and with several per row,
/// aligned to vectors, to words and to elements; rows of one tile, and rows of several tiles.
const SHAPES: [[usize; 2]; 13] = [
    [1_001, 1],
    [700, 3],
    [701, 7],
    [300, 16],
    [300, 33],
    [100, 64],
    [50, 130],
    [37, 250],
    [37, 1_001],
    [5, 4_096],
    [4, 4_099],
    [3, 9_000],
    [2, 20_003],
];

#[test]
fn rows_of_many_lengths() {
    for shape in SHAPES {
        check_squares::<f32>(shape, DENSE);
        check_squares::<f64>(shape, DENSE);
        check_squares::<f16>(shape, DENSE);
        check_squares::<bf16>(shape, DENSE);
    }
}

/// A backward pass treats rows without gaps as one row and finds the row of each element: a vector
/// has elements of one row, of two, or of as many rows as elements.
#[test]
fn gradients_of_rows_shorter_and_longer_than_a_vector() {
    for cols in (1..=17).chain([31, 32, 33]) {
        check_squares::<f32>([1_200, cols], DENSE);
        check_squares::<f64>([1_200, cols], Layout { offsets: [1, 0, 1, 1], ..DENSE });
        check_squares::<bf16>([1_200, cols], Layout { offsets: [0, 3, 5, 5], ..DENSE });
    }
}

/// The upstream gradient of a mean is divided by the length of its row.
#[test]
fn gradients_of_the_means_of_rows() {
    let (stream, [rows, cols]) = (gpu().stream().unwrap(), [601, 5]);
    let x: Vec<f32> = (0..rows * cols).map(|index| (index % 9) as f32).collect();
    let upstream: Vec<f32> = (0..rows).map(|row| (row % 4) as f32 - 1.0).collect();
    let on_gpu = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let t = Tensor::zeros(gpu(), [rows, cols]).unwrap();
    let of_rows = Tensor::from_slice(gpu(), [rows], &upstream).unwrap();
    let mse = Mse::new().reduction(RowMean);
    let got = mse.backward(&on_gpu, &t, &of_rows, &stream).unwrap().to_vec().unwrap();
    for (index, (got, x)) in got.into_iter().zip(&x).enumerate() {
        let expected = 2.0 * x * upstream[index / cols] / cols as f32;
        assert_relative_eq!(got, expected, max_relative = 2e-7);
    }
}

/// Tensors may begin at any element, with equal or different alignment, and each may have gaps
/// between its rows. Vectors that are not aligned are read from those around them, never beyond a
/// row. Gradients are stored element by element where their alignments differ.
#[test]
fn rows_of_tensors_with_other_alignments() {
    let layouts = [
        Layout { offsets: [1, 1, 1, 1], ..DENSE },
        Layout { offsets: [0, 1, 0, 0], ..DENSE },
        Layout { offsets: [3, 0, 1, 1], ..DENSE },
        Layout { offsets: [0, 0, 0, 1], ..DENSE },
        Layout { gaps: [1, 0, 0, 0], ..DENSE },
        Layout { gaps: [0, 0, 1, 0], ..DENSE },
        Layout { offsets: [1, 2, 3, 3], gaps: [3, 8, 5, 5] },
        Layout { offsets: [1, 2, 3, 0], gaps: [3, 8, 5, 2] },
    ];
    for layout in layouts {
        for shape in [[700, 3], [300, 33], [50, 130], [37, 1_001], [4, 4_099], [2, 20_003]] {
            check_squares::<f32>(shape, layout);
            check_squares::<bf16>(shape, layout);
        }
        check_squares::<f64>([37, 1_001], layout);
        check_squares::<f64>([3, 5_001], layout);
    }
}

/// If the stride of the rows is the same in all tensors, short rows are packed together with their
/// gaps. The gaps, NaN here, are read, count for nothing and are not written. A vector may have
/// several rows and gaps, be inside a gap, or belong to one row.
#[test]
fn packed_rows_with_gaps() {
    for (gap, cols) in [(1, 1), (1, 2), (1, 3), (2, 7), (8, 8), (15, 16), (6, 24), (64, 257)] {
        for offsets in [[0; 4], [1, 1, 1, 1], [1, 2, 3, 3], [0, 0, 1, 1]] {
            let layout = Layout { offsets, gaps: [gap; 4] };
            for rows in [1, 5, 701] {
                check_squares::<f32>([rows, cols], layout);
                check_squares::<f64>([rows, cols], layout);
                check_squares::<bf16>([rows, cols], layout);
                check_sum::<f32>([rows, cols], layout);
                check_sum::<f64>([rows, cols], layout);
                check_sum::<f16>([rows, cols], layout);
            }
        }
    }
}

/// Gradients may be in the gaps between the rows of the input: both are columns of one matrix. The
/// gaps are so short that they would be read with the rows if nothing were written there.
#[test]
fn gradients_between_the_rows_of_the_input() {
    let (rows, cols) = (701, 8);
    let stream = gpu().stream().unwrap();
    let x: Vec<f32> = (0..rows * cols).map(|index| (index % 3) as f32).collect();
    let halves: Vec<f32> = x.chunks(cols).flat_map(|row| [row, &[7.0; 8]].concat()).collect();
    let matrix = Tensor::from_slice(gpu(), [rows, 2 * cols], &halves).unwrap();
    let others = Tensor::from_slice(gpu(), [rows, 2 * cols], &vec![1.0; halves.len()]).unwrap();
    let columns = |of: &Tensor<f32>, from: usize| of.as_raw() + 4 * from as u64;
    // SAFETY: columns of tensors that live to the end; no other view overlaps what is written.
    let (left, right, t) = unsafe {
        let shape = [rows, cols];
        (
            View::<f32>::from_raw_strided(gpu(), columns(&matrix, 0), shape, 2 * cols).unwrap(),
            ViewMut::from_raw_strided(gpu(), columns(&matrix, cols), shape, 2 * cols).unwrap(),
            View::from_raw_strided(gpu(), columns(&others, 0), shape, 2 * cols).unwrap(),
        )
    };
    let one = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    Mse::sum().backward_into(left, t, &one, right, &stream).unwrap();
    let expected = halves.chunks(2 * cols).flat_map(|row| {
        let row = &row[..cols];
        row.iter().copied().chain(row.iter().map(|x| 2.0 * (x - 1.0)))
    });
    stream.synchronize().unwrap();
    assert!(matrix.to_vec().unwrap().into_iter().eq(expected));
}

/// So many rows that each block takes several tiles in turn, with two stages or with one.
#[test]
fn tiles_that_a_block_takes_one_after_the_other() {
    check_squares::<f32>([20_000, 5], DENSE);
    check_squares::<bf16>([20_000, 9], DENSE);
    // Tiles of one row; each warp has several.
    check_squares_on::<f32>(small_gpu(), [1_400, 1_301], DENSE);
    check_squares::<f32>([9_000, 103], DENSE);
    check_squares::<bf16>([900, 4_100], DENSE);
}

/// Rows of several tiles each, which one block takes whole, and parts of rows of several tiles.
#[test]
fn runs_of_several_tiles() {
    // A GPU splits the rows among its blocks, in parts of one and of two tiles.
    let rows: &[usize] = if gpu().is_emulated() { &[30, 5] } else { &[400] };
    for &rows in rows {
        check_squares_on::<f32>(small_gpu(), [rows, 20_003], DENSE);
        check_squares_on::<bf16>(small_gpu(), [rows, 40_000], DENSE);
    }
}

/// Rows so long that the warps of a block share each of them, and more rows per block than it
/// finishes at once.
#[test]
fn long_rows_that_warps_share() {
    check_squares_on::<f32>(small_gpu(), [54, 17_003], DENSE);
}

/// A shifted vector is read from the two aligned vectors around it, unless one of these begins
/// before the memory of its tensor or ends after it.
#[test]
fn tensors_that_begin_and_end_with_their_memory() {
    let (stream, [rows, cols]) = (gpu().stream().unwrap(), [3, 4_100]);
    let x = Tensor::from_slice(gpu(), [rows, cols], &vec![2.0_f32; rows * cols]).unwrap();
    for offset in 1..4 {
        let memory = Tensor::<f32>::zeros(gpu(), [offset + rows * cols]).unwrap();
        let address = memory.as_raw() + 4 * offset as u64;
        // SAFETY: within the tensor, which lives to the end.
        let t = unsafe { View::<f32>::from_raw(gpu(), address, [rows, cols]) }.unwrap();
        let mse = Mse::new().reduction(RowMean);
        let losses = mse.forward(&x, t, &stream).unwrap().values().to_vec().unwrap();
        assert_eq!(losses, [4.0; 3], "{offset}");
    }
}

/// A scalar loss over rows with gaps that are long enough for tiles.
#[test]
fn a_sum_over_rows_with_gaps() {
    for gaps in [[1, 0, 0, 0], [4, 8, 0, 0], [1, 1, 1, 0]] {
        check_sum::<f32>([7, 5_003], Layout { gaps, ..DENSE });
        check_sum::<f64>([5, 2_049], Layout { gaps, offsets: [1, 0, 0, 0] });
        check_sum::<bf16>([7, 9_001], Layout { gaps, offsets: [1, 2, 3, 0] });
    }
}

/// The fast path does not handle probabilities of 0: their vectors take another path than their
/// neighbours, in both kinds of rows. A row with a NaN has the loss NaN; its neighbours have
/// theirs.
#[test]
fn divergences_with_zeros_and_nan() {
    fn check<T: Number + Float<Loss = f32>>([rows, cols]: [usize; 2]) {
        let stream = gpu().stream().unwrap();
        let draw = |seed| uniforms(seed, rows * cols).into_iter().map(|u| f64::from(u).abs() + 0.1);
        let x: Vec<T> = draw(1).map(T::round).collect();
        let mut t: Vec<T> = draw(2).map(T::round).collect();
        for index in (0..t.len()).filter(|index| index % 5 == 0 || index % 97 < 9) {
            t[index] = T::round(0.0);
        }
        t[2 * cols + cols / 2] = T::round(f64::NAN);
        let term = |(x, t): (&T, &T)| match t.wide() {
            0.0 => 0.0,
            t => t * (t.ln() - x.wide().ln()),
        };
        let expected: Vec<f64> = x
            .chunks(cols)
            .zip(t.chunks(cols))
            .map(|(x, t)| x.iter().zip(t).map(term).sum::<f64>() / cols as f64)
            .collect();
        let x = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
        let t = Tensor::from_slice(gpu(), [rows, cols], &t).unwrap();
        let kl = KlDiv::new().log_input(false).reduction(RowMean);
        let (losses, _) = kl.forward_backward(&x, &t, &stream).unwrap();
        for losses in [losses, kl.forward(&x, &t, &stream).unwrap()] {
            for (row, got) in losses.values().to_vec().unwrap().into_iter().enumerate() {
                let got = f64::from(got);
                assert_eq!(got.is_nan(), row == 2, "{rows}×{cols}, row {row}: {got}");
                if row != 2 {
                    assert_relative_eq!(got, expected[row], max_relative = 2e-5, epsilon = 1e-6);
                }
            }
        }
    }
    for shape in [[300, 5], [301, 33], [20, 1_000], [3, 9_001]] {
        check::<f32>(shape);
        check::<bf16>(shape);
    }
}
