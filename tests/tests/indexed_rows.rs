//! Losses by element of rows with gaps: rows that begin and end anywhere in a vector, tiles of
//! several rows, and rows of several tiles. Most numbers are small integers, whose sums and
//! products are exact in any order.

use approx::assert_relative_eq;
use fused_loss::{Grads, KlDiv, Loss, Mse, RowSum, Tensor, View};
use half::{bf16, f16};
use tests::gpu;
use tests::layout::{Layout, wide};
use tests::number::Number;
use tests::random::uniforms;

/// Layouts in which all tensors have the same alignment, in which the inputs differ, and in which
/// the gradients differ from each other.
const LAYOUTS: [Layout; 4] = [
    Layout { offsets: [0; 4], gaps: [8; 4] },
    Layout { offsets: [1; 4], gaps: [3; 4] },
    Layout { offsets: [1, 2, 3, 3], gaps: [3, 8, 5, 5] },
    Layout { offsets: [0, 5, 3, 0], gaps: [1, 0, 0, 2] },
];

/// Checks squared errors: their sum, the errors themselves, and both gradients, times upstream
/// gradients of rows and of elements. The gaps are NaN and must not be written.
fn check_squares<T: Number>(shape: [usize; 2], layout: Layout)
where
    T::Loss: Number,
{
    let [rows, cols] = shape;
    let (stream, len) = (gpu().stream().unwrap(), rows * cols);
    let x: Vec<f64> = (0..len).map(|index| (index * 7 % 11 % 5) as f64).collect();
    let t: Vec<f64> = (0..len).map(|index| (index * 5 % 13 % 4) as f64).collect();
    let apart: Vec<f64> = x.iter().zip(&t).map(|(x, t)| x - t).collect();
    let squares: Vec<f64> = apart.iter().map(|apart| apart * apart).collect();
    let (x, t) = (layout.place::<T>(gpu(), &x, shape, 0), layout.place::<T>(gpu(), &t, shape, 1));
    let what = format!("{rows}×{cols} {}, {layout:?}", std::any::type_name::<T>());

    let sum = Mse::sum().forward(x.view(), t.view(), &stream).unwrap().item().unwrap();
    assert_eq!(sum.wide(), squares.iter().sum::<f64>(), "{what}");
    let each = Mse::none().forward(x.view(), t.view(), &stream).unwrap();
    assert_eq!(wide(each.values().to_vec().unwrap()), squares, "{what}");

    let scale = |index: usize| (index % 7) as f64 - 2.0;
    let of_rows: Vec<T::Loss> = (0..rows).map(|row| T::Loss::round(scale(row))).collect();
    let of_rows = Tensor::from_slice(gpu(), [rows], &of_rows).unwrap();
    let of_elements: Vec<T> = (0..len).map(|index| T::round(scale(index))).collect();
    let of_elements = Tensor::from_slice(gpu(), shape, &of_elements).unwrap();
    let unwritten = vec![f64::NAN; len];
    for by_row in [true, false] {
        let mut by_x = layout.place::<T>(gpu(), &unwritten, shape, 2);
        let mut by_t = layout.place::<T>(gpu(), &unwritten, shape, 3);
        if by_row {
            let mse = Mse::new().reduction(RowSum);
            let grads = Grads::both(by_x.view_mut(), by_t.view_mut());
            mse.backward_into(x.view(), t.view(), &of_rows, grads, &stream).unwrap();
        } else {
            let grads = Grads::both(by_x.view_mut(), by_t.view_mut());
            Mse::none().backward_into(x.view(), t.view(), &of_elements, grads, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        let of = |index: usize| scale(if by_row { index / cols } else { index });
        let by = |sign: f64| {
            apart.iter().enumerate().map(move |(index, apart)| sign * 2.0 * apart * of(index))
        };
        assert!(wide(by_x.to_vec()).into_iter().eq(by(1.0)), "{what}: by input, {by_row}");
        assert!(wide(by_t.to_vec()).into_iter().eq(by(-1.0)), "{what}: by target, {by_row}");
    }
}

/// Rows of fewer elements than a vector, of a few vectors, and of nearly a tile.
#[test]
fn rows_of_many_lengths_with_gaps() {
    for layout in LAYOUTS {
        for cols in (1..10).chain([15, 16, 17, 33, 250, 1_001]) {
            let rows = (6_000 / cols).clamp(3, 700);
            check_squares::<f32>([rows, cols], layout);
            check_squares::<f64>([rows, cols], layout);
            check_squares::<f16>([rows, cols], layout);
            check_squares::<bf16>([rows, cols], layout);
        }
    }
}

#[test]
fn rows_of_several_tiles() {
    for layout in LAYOUTS {
        check_squares::<f32>([5, 4_099], layout);
        check_squares::<f64>([9, 2_050], layout);
        check_squares::<bf16>([4, 9_001], layout);
    }
}

/// A pass that sums has fewer blocks than there are tiles, so each block takes several.
#[test]
fn tiles_that_a_block_takes_one_after_the_other() {
    check_squares::<f32>([2_000, 300], LAYOUTS[1]);
    check_squares::<bf16>([9_000, 30], LAYOUTS[2]);
}

/// The first row begins within a vector at the start of the memory, and the last row ends where the
/// memory ends: nothing before or after it may be read.
#[test]
fn tensors_that_begin_and_end_with_their_memory() {
    let stream = gpu().stream().unwrap();
    for [rows, cols] in [[700, 3], [300, 9], [40, 1_001], [1, 5], [3, 1]] {
        let x = Tensor::from_slice(gpu(), [rows, cols], &vec![2.0_f32; rows * cols]).unwrap();
        for (offset, gap) in [(0, 1), (1, 1), (1, 8), (2, 3), (3, 2)] {
            let stride = cols + gap;
            let len = offset + (rows - 1) * stride + cols;
            let memory = Tensor::<f32>::zeros(gpu(), [len]).unwrap();
            let address = memory.as_raw() + 4 * offset as u64;
            // SAFETY: within the tensor, which lives to the end.
            let t = unsafe { View::<f32>::from_raw_strided(gpu(), address, [rows, cols], stride) };
            let t = t.unwrap();
            for [input, target] in [[x.view(), t], [t, x.view()]] {
                let sum = Mse::sum().forward(input, target, &stream).unwrap().item().unwrap();
                assert_eq!(sum, 4.0 * (rows * cols) as f32, "{rows}×{cols}, {offset}, {gap}");
            }
        }
    }
}

/// A gradient may overwrite its tensor, although neighbouring threads read the same vectors of it.
#[test]
fn gradients_over_the_input() {
    let stream = gpu().stream().unwrap();
    for layout in LAYOUTS {
        for shape in [[700, 5], [30, 333]] {
            let len = shape[0] * shape[1];
            let x: Vec<f64> = (0..len).map(|index| (index % 5) as f64).collect();
            let t = layout.place::<bf16>(gpu(), &vec![1.0; len], shape, 1);
            let mut over = layout.place::<bf16>(gpu(), &x, shape, 0);
            let one = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
            Mse::sum().backward_in_place(over.view_mut(), t.view(), &one, &stream).unwrap();
            stream.synchronize().unwrap();
            let expected = x.iter().map(|x| 2.0 * (x - 1.0));
            assert!(wide(over.to_vec()).into_iter().eq(expected), "{shape:?}, {layout:?}");
        }
    }
}

/// The fast path for divergences does not handle zeros: vectors that contain zeros, or NaN in a
/// gap, take another path than their neighbours.
#[test]
fn divergences_with_zeros() {
    fn check<T: Number<Loss = f32>>(shape: [usize; 2], layout: Layout) {
        let (stream, len) = (gpu().stream().unwrap(), shape[0] * shape[1]);
        let draw = |seed| uniforms(seed, len).into_iter().map(|u| f64::from(u).abs() + 0.1);
        let x: Vec<f64> = draw(1).map(|x| T::round(x).wide()).collect();
        let mut t: Vec<f64> = draw(2).map(|t| T::round(t).wide()).collect();
        for index in (0..len).filter(|index| index % 97 < 9) {
            t[index] = 0.0;
        }
        let term = |(x, t): (&f64, &f64)| if *t == 0.0 { 0.0 } else { t * (t.ln() - x.ln()) };
        let expected: f64 = x.iter().zip(&t).map(term).sum();
        let by_input = x.iter().zip(&t).map(|(x, t)| -t / x);
        let (on_x, on_t) =
            (layout.place::<T>(gpu(), &x, shape, 0), layout.place::<T>(gpu(), &t, shape, 1));
        let kl = KlDiv::sum().log_input(false);
        let got = kl.forward(on_x.view(), on_t.view(), &stream).unwrap().item().unwrap();
        assert_relative_eq!(f64::from(got), expected, max_relative = 1e-4);

        let mut to = layout.place::<T>(gpu(), &vec![f64::NAN; len], shape, 2);
        let mut loss = Loss::zeros(gpu(), []).unwrap();
        let mut workspace = fused_loss::Workspace::new(gpu()).unwrap();
        let grads = Grads::input(to.view_mut());
        kl.forward_backward_into(
            on_x.view(),
            on_t.view(),
            &mut loss,
            grads,
            &mut workspace,
            &stream,
        )
        .unwrap();
        assert_relative_eq!(f64::from(loss.item().unwrap()), expected, max_relative = 1e-4);
        for (got, expected) in wide(to.to_vec()).into_iter().zip(by_input) {
            assert_relative_eq!(got, expected, max_relative = 1e-2);
        }
    }
    for layout in LAYOUTS {
        for shape in [[301, 5], [101, 33], [20, 1_000]] {
            check::<f32>(shape, layout);
            check::<bf16>(shape, layout);
        }
    }
}
