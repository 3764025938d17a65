//! Grids of many blocks, and blocks of many rows: sums over groups of blocks, and rows that a block
//! takes in turn in the same shared memory. Most numbers are small integers, whose sums are exact
//! in any order.

use approx::assert_relative_eq;
use fused_loss::{CrossEntropy, Grads, Loss, Mse, RowSum, Tensor, View, Workspace};
use half::bf16;
use tests::number::Number;
use tests::random::uniforms;
use tests::reference::cross_entropy::{Options, Target, row};
use tests::{Placed, gpu, small_gpu};

/// The blocks of a grid form groups of 64. Blocks sum groups before the end of the grid, and the
/// last block adds those sums and the remaining blocks, each once. The second launch has other
/// numbers, so it would show a sum that the first left in the workspace.
#[test]
fn a_sum_over_groups_of_blocks() {
    let stream = gpu().stream().unwrap();
    // Each block has a tile: 1172 blocks, and some groups are summed before the last block.
    let len = 1_200_000;
    let x: Vec<f64> = (0..len).map(|index| f64::from(index % 7)).collect();
    let on_gpu = Tensor::from_slice(gpu(), [x.len()], &x).unwrap();
    for t in [0.0, 3.0] {
        let expected: f64 = x.iter().map(|x| (x - t) * (x - t)).sum();
        let t = Tensor::from_slice(gpu(), [x.len()], &vec![t; x.len()]).unwrap();
        let (loss, _) = Mse::sum().forward_backward(&on_gpu, &t, &stream).unwrap();
        assert_eq!(loss.item().unwrap(), expected);
    }
}

/// The last tile of a dense tensor is not full, and its last vector is not whole.
#[test]
fn a_sum_that_ends_within_a_tile() {
    let (len, stream) = (2_500_007, gpu().stream().unwrap());
    let x: Vec<f64> = (0..len).map(|index| f64::from(index % 7)).collect();
    let on_gpu = Tensor::from_slice(gpu(), [x.len()], &x).unwrap();
    let zeros = Tensor::zeros(gpu(), [x.len()]).unwrap();
    let expected: f64 = x.iter().map(|x| x * x).sum();
    assert_eq!(Mse::sum().forward(&on_gpu, &zeros, &stream).unwrap().item().unwrap(), expected);
}

/// Rows of many lengths are summed by lanes of a warp, a warp, a block or several blocks, with and
/// without gaps between rows, at every alignment.
#[test]
fn sums_of_rows_of_many_lengths() {
    fn check<T: Number>(rows: usize, cols: usize, gap: usize, offsets: [usize; 2])
    where
        T::Loss: Number,
    {
        let stream = gpu().stream().unwrap();
        let numbers =
            [|index: usize| (index * 7 % 11 % 5) as f64, |index| (index * 5 % 13 % 4) as f64];
        let square = |index| (numbers[0](index) - numbers[1](index)).powi(2);
        let expected: Vec<f64> =
            (0..rows).map(|row| (row * cols..(row + 1) * cols).map(square).sum()).collect();
        let [x, t] = numbers.map(|number| -> Vec<T> {
            (0..rows * cols).map(|index| T::round(number(index))).collect()
        });
        let place = |data: &[T], offset| {
            Placed::rows(data, [rows, cols], cols + gap, offset, T::round(f64::NAN))
        };
        let x = place(&x, offsets[0]);
        let t = place(&t, offsets[1]);
        let sum = Mse::new().reduction(RowSum);
        let losses = sum.forward(x.view(), t.view(), &stream).unwrap().values().to_vec().unwrap();
        let losses: Vec<_> = losses.into_iter().map(Number::wide).collect();
        assert_eq!(losses, expected, "{rows}×{cols}, gaps of {gap}, {offsets:?}");
    }
    for cols in [1, 3, 5, 16, 32, 47, 48, 64, 101, 250, 1_027] {
        for (gap, offsets) in [(0, [0, 0]), (0, [1, 1]), (0, [1, 2]), (1, [0, 0]), (3, [2, 3])] {
            check::<f32>(37, cols, gap, offsets);
            check::<bf16>(37, cols, gap, offsets);
        }
    }
    // Several rows per tile.
    check::<f32>(2_200, 16, 0, [0, 0]);
    check::<f32>(2_200, 32, 0, [0, 0]);
    // Several blocks per row.
    check::<f32>(3, 20_003, 0, [0, 0]);
    check::<f64>(2, 9_001, 1, [0, 1]);
}

/// If the two tensors differ in alignment, the elements of one are read with the aligned vectors
/// around them. No vector before or after its memory is read: neither in a tile of fewer than 256
/// vectors, nor in a tile that the first or the last vector would fill, nor in a full tile.
#[test]
fn a_target_that_ends_with_its_memory() {
    let stream = gpu().stream().unwrap();
    for (len, offset) in
        [1_000, 1_028, 1_032].into_iter().flat_map(|len| [1, 2, 3].map(|at| (len, at)))
    {
        let x = Tensor::from_slice(gpu(), [len], &vec![2.0_f32; len]).unwrap();
        let memory = Tensor::<f32>::zeros(gpu(), [offset + len]).unwrap();
        let address = memory.as_raw() + 4 * offset as u64;
        // SAFETY: within the tensor, which lives to the end.
        let t = unsafe { View::<f32>::from_raw(gpu(), address, [len]) }.unwrap();
        assert_eq!(Mse::mean().forward(&x, t, &stream).unwrap().item().unwrap(), 4.0);
    }
}

/// There are so many packed rows that a block takes several tiles of them in turn.
#[test]
fn rows_that_a_block_sums_one_after_the_other() {
    let (rows, cols, stream) = (6_360, 515, gpu().stream().unwrap());
    let x: Vec<f32> = (0..rows * cols).map(|index| (index % 5) as f32).collect();
    let expected: Vec<f32> = x.chunks(cols).map(|row| row.iter().map(|x| x * x).sum()).collect();
    let x = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let t = Tensor::zeros(gpu(), [rows, cols]).unwrap();
    let losses = Mse::new().reduction(RowSum).forward(&x, &t, &stream).unwrap();
    assert_eq!(losses.values().to_vec().unwrap(), expected);
}

/// A warp's share of streamed rows ends within a row, so warps have parts of two rows, and take the
/// last row first. The first two inputs have fewer tiles than a device has warps, so the last block
/// has warps without any.
#[test]
fn shares_of_two_rows() {
    let stream = gpu().stream().unwrap();
    for (rows, cols) in [(3, 90_000), (7, 33_333), (300, 3_001)] {
        let x = uniforms(11, rows * cols);
        let classes: Vec<i64> = (0..rows).map(|row| (row * 1_013 % cols) as i64).collect();
        let smoothing = 0.1;
        let of_row = |(row, &class): (&[f32], &i64)| {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / cols as f64;
            sum.ln() - (1.0 - smoothing) * f64::from(row[class as usize]) - smoothing * mean
        };
        let expected: f64 = x.chunks(cols).zip(&classes).map(of_row).sum();
        let x = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
        let classes = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        let sum = CrossEntropy::sum().label_smoothing(smoothing);
        for _ in 0..2 {
            let loss = sum.forward(&x, &classes, &stream).unwrap().item().unwrap();
            assert_relative_eq!(f64::from(loss), expected, max_relative = 1e-6);
        }
    }
}

/// So many rows of f64, staged by small blocks, that more than one block sums what they publish.
#[test]
fn staged_rows_with_more_adders_than_one() {
    let (rows, cols, stream) = (1100, 512, gpu().stream().unwrap());
    let x: Vec<f64> = uniforms(29, rows * cols).into_iter().map(f64::from).collect();
    let class = |row: usize| row * 37 % cols;
    let of_row =
        |(row, x): (usize, &[f64])| x.iter().map(|&x| x.exp()).sum::<f64>().ln() - x[class(row)];
    let expected = x.chunks(cols).enumerate().map(of_row).sum::<f64>() / rows as f64;
    let classes: Vec<i64> = (0..rows).map(|row| class(row) as i64).collect();
    let x = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let classes = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    for _ in 0..2 {
        let (loss, _) = CrossEntropy::mean().forward_backward(&x, &classes, &stream).unwrap();
        assert_relative_eq!(loss.item().unwrap(), expected, max_relative = 1e-13);
    }
}

/// A row has more parts than the warp that merges them has lanes.
#[test]
fn more_parts_of_a_row_than_lanes_of_a_warp() {
    let (rows, cols, stream) = (2, 300_001, gpu().stream().unwrap());
    let x = uniforms(23, rows * cols);
    let of_row = |(row, class): (&[f32], usize)| {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        sum.ln() - f64::from(row[class])
    };
    let classes = [cols - 1, 70_000];
    let expected: f64 = x.chunks(cols).zip(classes).map(of_row).sum();
    let x = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
    let classes = Tensor::from_slice(gpu(), [rows], &classes.map(|class| class as i64)).unwrap();
    let sum = CrossEntropy::sum();
    let (saving, _) = sum.forward_saving(&x, &classes, &stream).unwrap();
    for loss in [sum.forward(&x, &classes, &stream).unwrap(), saving] {
        assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-6);
    }
}

/// Rows at this stride, between guards.
fn place(data: &[f32], shape: [usize; 2], stride: usize) -> Placed<f32> {
    Placed::rows(data, shape, stride, 0, f32::NAN)
}

/// Checks loss and gradients of rows in every pass, also in place, and with targets of 8 bits if
/// these can name enough classes. Targets are the first class, the last and others.
fn check_rows(rows: usize, cols: usize, gap: usize) {
    let stream = gpu().stream().unwrap();
    let x = uniforms(13, rows * cols);
    let class = |row: usize| [row * 37 % cols, cols - 1, 0][row % 3];
    let classes: Vec<i64> = (0..rows).map(|row| class(row) as i64).collect();
    let sums: Vec<f64> =
        x.chunks(cols).map(|row| row.iter().map(|&x| f64::from(x).exp()).sum()).collect();
    let expected: f64 =
        (0..rows).map(|row| sums[row].ln() - f64::from(x[row * cols + class(row)])).sum();
    let assert_loss = |loss: &Loss<f32>| {
        let got = f64::from(loss.item().unwrap());
        assert_relative_eq!(got, expected, max_relative = 1e-6);
    };
    let assert_gradient = |gradient: Vec<f32>| {
        for (index, by) in gradient.into_iter().enumerate() {
            let (row, col) = (index / cols, index % cols);
            let of_class = if class(row) == col { 1.0 } else { 0.0 };
            let off = f64::from(by) - (f64::from(x[index]).exp() / sums[row] - of_class);
            assert!(off.abs() <= 1e-6, "{rows}×{cols}, row {row}, {col}: got {by}");
        }
    };
    let mut input = Placed::rows(&x, [rows, cols], cols + gap, 0, f32::NAN);
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let sum = CrossEntropy::sum();
    let (loss, saved) = sum.forward_saving(input.view(), &target, &stream).unwrap();
    assert_loss(&loss);
    assert_loss(&sum.forward(input.view(), &target, &stream).unwrap());
    let one = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let gradient = sum.backward(input.view(), &target, &saved, &one, &stream).unwrap();
    assert_gradient(gradient.to_vec().unwrap());
    let mut gradient = Placed::rows(&x, [rows, cols], cols + gap, 0, f32::NAN);
    sum.backward_into(input.view(), &target, &saved, &one, gradient.view_mut(), &stream).unwrap();
    stream.synchronize().unwrap();
    assert_gradient(gradient.to_vec());
    if cols <= 256 {
        let classes: Vec<u8> = classes.iter().map(|&class| class as u8).collect();
        let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
        assert_loss(&sum.forward(input.view(), &target, &stream).unwrap());
    }
    let (loss, gradient) = sum.forward_backward(input.view(), &target, &stream).unwrap();
    assert_loss(&loss);
    assert_gradient(gradient.to_vec().unwrap());
    let mut loss = Loss::zeros(gpu(), []).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    sum.forward_backward_in_place(input.view_mut(), &target, &mut loss, &mut workspace, &stream)
        .unwrap();
    assert_loss(&loss);
    assert_gradient(input.to_vec());
}

/// The gaps are so long that a tile is read row by row. Short rows are stored in units that span
/// rows, the others one by one.
#[test]
fn packed_rows_with_gaps() {
    for (rows, cols, gap) in [(40, 7, 60), (40, 30, 100), (70, 101, 91), (40, 201, 110)] {
        check_rows(rows, cols, gap);
    }
}

/// The gaps are so short that a tile is read with them. Gradients overwrite the tiles of logits and
/// of probabilities, and these may have gaps where the gradients' memory has none.
#[test]
fn packed_rows_of_which_some_tensors_have_gaps() {
    let (rows, cols, gap, stream) = (70, 8, 4, gpu().stream().unwrap());
    let shape = [rows, cols];
    let (x, t) = (uniforms(29, rows * cols), uniforms(31, rows * cols));
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mut gradients = |gaps: [usize; 4]| {
        let [x, t] =
            [(&x, gaps[0]), (&t, gaps[1])].map(|(data, gap)| place(data, shape, cols + gap));
        let [mut by_x, mut by_t] =
            [gaps[2], gaps[3]].map(|gap| place(&vec![0.0; rows * cols], shape, cols + gap));
        let mut loss = Loss::zeros(gpu(), []).unwrap();
        let grads = Grads::both(by_x.view_mut(), by_t.view_mut());
        CrossEntropy::sum()
            .forward_backward_into(x.view(), t.view(), &mut loss, grads, &mut workspace, &stream)
            .unwrap();
        [vec![loss.item().unwrap()], by_x.to_vec(), by_t.to_vec()].concat()
    };
    let expected = gradients([0; 4]);
    for gaps in (1..16).map(|which| [0, 1, 2, 3].map(|tensor| (which >> tensor & 1) * gap)) {
        for (index, (got, expected)) in gradients(gaps).into_iter().zip(&expected).enumerate() {
            assert!((got - expected).abs() <= 1e-5, "gaps of {gaps:?}, {index}: got {got}");
        }
    }
}

/// A row is in the registers of some lanes of a warp. A block has several rows, and its first warp
/// finishes them.
#[test]
fn short_rows_of_whole_vectors() {
    for (rows, cols) in [(37, 128), (9, 500), (70, 256)] {
        check_rows(rows, cols, 0);
    }
}

/// A row is in the registers of a block. There are fewer rows than multiprocessors, or more.
#[test]
fn rows_of_whole_vectors_in_the_registers_of_a_block() {
    for (rows, cols) in [(3, 2_000), (1_030, 2_052)] {
        check_rows(rows, cols, 0);
    }
}

/// Some rows have a head and a tail, and one shape ends one vector before the end of a tile. The
/// last row of the last shape ends with the last vector of the threads that share it.
#[test]
fn rows_of_many_tiles() {
    for (rows, cols) in [(5, 4_099), (3, 40_003), (3, 4_092), (8, 9_188)] {
        check_rows(rows, cols, 0);
    }
}

/// Logits rise so much along a row that exponentials relative to the first ones would overflow.
#[test]
fn rows_whose_logits_rise() {
    let stream = gpu().stream().unwrap();
    // A warp streams each row of the last shape.
    for (rows, cols) in [(1, 50), (1, 600), (1, 5_003), (1, 60_001), (1_100, 2_501)] {
        let x: Vec<f32> = (0..cols).map(|col| 400.0 * col as f32 / cols as f32 - 300.0).collect();
        let largest = f64::from(x[cols - 1]);
        let sum: f64 = x.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
        let log_sum = sum.ln() + largest;
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / cols as f64;
        let input = Tensor::from_slice(gpu(), [rows, cols], &x.repeat(rows)).unwrap();
        let target = Tensor::from_slice(gpu(), [rows], &vec![cols as i64 / 2; rows]).unwrap();
        let of_class = f64::from(x[cols / 2]);
        for smoothing in [0.0, 0.1] {
            let expected = log_sum - (1.0 - smoothing) * of_class - smoothing * mean;
            let loss_of = CrossEntropy::mean().label_smoothing(smoothing);
            let loss = loss_of.forward(&input, &target, &stream).unwrap().item().unwrap();
            assert_relative_eq!(f64::from(loss), expected, max_relative = 1e-6);
            let (loss, _) = loss_of.forward_backward(&input, &target, &stream).unwrap();
            assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-6);
        }
    }
}

/// There are so many packed rows that a warp stages three tiles or more in turn. A tile has one
/// row, because the gaps are read too.
#[test]
fn tiles_that_a_warp_takes_one_after_the_other() {
    let (rows, cols, stream) = (5_600, 511, gpu().stream().unwrap());
    let x: Vec<f64> = (0..rows * cols).map(|index| (index / cols % 3 + index % 2) as f64).collect();
    let of_row = |row: &[f64]| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[5];
    let expected: f64 = x.chunks(cols).map(of_row).sum();
    let x = Placed::rows(&x, [rows, cols], cols + 60, 0, f64::NAN);
    let target = Tensor::from_slice(gpu(), [rows], &vec![5_i64; rows]).unwrap();
    let loss = CrossEntropy::sum().forward(x.view(), &target, &stream).unwrap().item().unwrap();
    assert_relative_eq!(loss, expected, max_relative = 1e-12);
}

/// Logits of rows whose largest logits differ, and a class for each row.
fn rows_of_classes<T: Number>(seed: u64, rows: usize, cols: usize) -> (Vec<T>, Vec<i64>) {
    let logit = |(at, x): (usize, f32)| T::round(f64::from(3.0 * x) + (at / cols % 7) as f64);
    let x = uniforms(seed, rows * cols).into_iter().enumerate().map(logit).collect();
    (x, (0..rows).map(|row| (row * 5 % cols) as i64).collect())
}

/// A tile has several rows. If the rows are short, it has more rows than a warp has lanes, which
/// the warp takes in batches. The gradients of each row use that row's own sum and largest logit.
#[test]
fn rows_of_a_tile_in_one_batch_and_in_several() {
    fn check<T: Number>(rows: usize, cols: usize, label_smoothing: f64) {
        let (gpu, weight) = (small_gpu(), vec![1.0; cols]);
        let options = Options { weight: &weight, label_smoothing, z_loss: 0.0 };
        let stream = gpu.stream().unwrap();
        let (x, classes) = rows_of_classes::<T>(23, rows, cols);
        let input = Tensor::from_slice(gpu, [rows, cols], &x).unwrap();
        let target = Tensor::from_slice(gpu, [rows], &classes).unwrap();
        let sum = CrossEntropy::sum().label_smoothing(label_smoothing);
        let (_, gradient) = sum.forward_backward(&input, &target, &stream).unwrap();
        for (index, got) in gradient.to_vec().unwrap().chunks(cols).enumerate() {
            let x: Vec<f64> = x[index * cols..][..cols].iter().map(|x| x.wide()).collect();
            let expected = row(&x, Target::Class(classes[index] as usize), options).by_input;
            for (col, (got, expected)) in got.iter().zip(expected).enumerate() {
                let off = (got.wide() - expected).abs();
                let what = format!("row {index} of {cols} columns, {col}");
                assert!(off <= T::allowed(expected, 1.0, 1.0), "{what}: {expected}, not {got:?}");
            }
        }
    }
    check::<f32>(1_500, 91, 0.0);
    check::<f64>(1_500, 63, 0.0);
    check::<bf16>(1_500, 201, 0.0);
    check::<f32>(8_000, 5, 0.1);
    check::<bf16>(8_000, 7, 0.1);
}

/// The losses of a batch belong to rows of several tiles, the last of which has fewer rows. Each
/// row gets its own loss, and the sum counts each row once.
#[test]
fn losses_of_rows_of_several_tiles() {
    fn check<T: Number>(rows: usize, cols: usize)
    where
        T::Loss: Number,
    {
        let gpu = small_gpu();
        let stream = gpu.stream().unwrap();
        let (x, classes) = rows_of_classes::<T>(29, rows, cols);
        let input = Tensor::from_slice(gpu, [rows, cols], &x).unwrap();
        let target = Tensor::from_slice(gpu, [rows], &classes).unwrap();
        let options = Options { weight: &vec![1.0; cols], label_smoothing: 0.0, z_loss: 0.0 };
        let expected = |index: usize| {
            let x: Vec<f64> = x[index * cols..][..cols].iter().map(|x| x.wide()).collect();
            row(&x, Target::Class(classes[index] as usize), options).loss
        };
        let losses = CrossEntropy::none().forward(&input, &target, &stream).unwrap();
        for (index, got) in losses.to_vec().unwrap().into_iter().enumerate() {
            let (got, expected) = (got.wide(), expected(index));
            let what = format!("row {index} of {cols} columns: {expected}, not {got}");
            assert!((got - expected).abs() <= 1e-5 * expected, "{what}");
        }
        let sum = CrossEntropy::sum().forward(&input, &target, &stream).unwrap();
        let expected: f64 = (0..rows).map(expected).sum();
        assert_relative_eq!(sum.item().unwrap().wide(), expected, max_relative = 1e-5);
    }
    check::<bf16>(1_301, 513);
    check::<bf16>(1_301, 200);
    check::<f32>(1_301, 300);
    check::<f32>(901, 1_000);
    check::<f64>(901, 144);
}

/// The probabilities of streamed rows begin at another offset from a 16-byte boundary than the
/// logits: a whole number of words, or half a word, further on.
#[test]
fn probabilities_that_are_aligned_otherwise() {
    fn check<T: Number<Loss = f32>>(offset: usize) {
        let (rows, cols, stream) = (3, 20_000, gpu().stream().unwrap());
        let round = |values: Vec<f32>| -> Vec<T> {
            values.into_iter().map(|value| T::round(f64::from(value))).collect()
        };
        let x = round(uniforms(17, rows * cols));
        let t = uniforms(19, rows * cols).into_iter().map(|t| (t + 1.0) / cols as f32);
        let t = round(t.collect());
        let of_row = |(x, t): (&[T], &[T])| {
            let log_sum = x.iter().map(|x| x.wide().exp()).sum::<f64>().ln();
            x.iter().zip(t).map(|(x, t)| t.wide() * (log_sum - x.wide())).sum::<f64>()
        };
        let expected: f64 = x.chunks(cols).zip(t.chunks(cols)).map(of_row).sum();
        let on_gpu = Tensor::from_slice(gpu(), [rows, cols], &x).unwrap();
        let t = Placed::rows(&t, [rows, cols], cols, offset, T::round(0.0));
        let loss = CrossEntropy::sum().forward(&on_gpu, t.view(), &stream).unwrap();
        assert_relative_eq!(loss.item().unwrap().wide(), expected, max_relative = 1e-6);
    }
    check::<f32>(1);
    check::<bf16>(2);
    check::<bf16>(3);
}

/// There are more long rows than a forward pass that saves may have blocks, so a block takes
/// several.
#[test]
fn long_rows_that_share_a_block_in_a_forward_pass() {
    let (rows, cols, stream) = (53_000, 1_537, gpu().stream().unwrap());
    let input = Tensor::<f32>::zeros(gpu(), [rows, cols]).unwrap();
    let classes: Vec<i64> = (0..rows).map(|row| (row % cols) as i64).collect();
    let target = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
    let (loss, _) = CrossEntropy::sum().forward_saving(&input, &target, &stream).unwrap();
    let expected = rows as f64 * (cols as f64).ln();
    assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-6);
}
