//! Rows in the registers of a warp: rows that need eight vectors of 16 bytes per lane because four
//! are not enough, and rows that begin and end within a vector. The tests compare f32 and 16-bit
//! types with float64, in every pass.

use half::{bf16, f16};
use tests::class_rows::{Case, DENSE, Options, Place};
use tests::number::Number;

/// The gradients begin at other offsets than the logits, so rows are packed or staged.
const APART: Place = Place { gaps: [0, 1], offsets: [0, 1] };

/// Checks rows of these numbers of vectors. A kernel checks the last vectors of a lane one by one:
/// none of them belongs to the row, all do, or the row ends between two lanes.
fn check<T: Number>(rows: usize, vectors: &[usize])
where
    T::Loss: Number,
{
    let lanes = 16 / size_of::<T>();
    // Rows with gaps begin and end on boundaries, too.
    let gap = Place { gaps: [lanes, 3 * lanes], offsets: [lanes, 0] };
    for &vectors in vectors {
        let shape = [rows, vectors * lanes];
        for options in [Options::None, Options::Weights, Options::ZLoss] {
            Case::<T>::new(shape, DENSE, options).check();
        }
        Case::<T>::new(shape, gap, Options::None).check();
    }
}

/// More rows than warps of a block, and a block that has rows for only some of its warps.
#[test]
fn loss_and_gradients() {
    check::<f32>(71, &[129, 160, 191, 255, 256]);
    check::<bf16>(71, &[176, 191, 192, 256]);
    check::<f16>(71, &[177, 256]);
}

/// So many rows that a forward pass does not have a block for each.
#[test]
fn losses_of_many_rows() {
    check::<f32>(1030, &[129]);
    check::<bf16>(1030, &[200]);
}

/// Checks rows of these numbers of columns, which begin on a boundary or not.
fn check_ends<T: Number>(rows: usize, cols: &[usize])
where
    T::Loss: Number,
{
    let lanes = 16 / size_of::<T>();
    for &cols in cols {
        for options in [Options::None, Options::Weights, Options::ZLoss] {
            Case::<T>::new([rows, cols], DENSE, options).check();
        }
        // All rows have the same offset from a boundary, and the same partial vectors at both ends.
        let to_boundary = cols.next_multiple_of(lanes) - cols;
        for offset in [1, lanes - 1] {
            let place = Place { gaps: [to_boundary; 2], offsets: [offset; 2] };
            Case::<T>::new([rows, cols], place, Options::None).check();
        }
        Case::<T>::new([rows, cols], APART, Options::None).check();
    }
}

/// Half a warp or a whole warp has a row, with four or eight vectors per lane.
#[test]
fn ends_that_are_no_vectors() {
    check_ends::<f32>(71, &[201, 255, 257, 391, 513, 514, 600, 767, 1023]);
    check_ends::<bf16>(71, &[401, 512, 515, 783, 1023, 1025, 1207, 2047]);
    check_ends::<f16>(71, &[511, 1531]);
}

/// Checks nearly certain rows whose likeliest class is at either end or inside. 1 − p would lose
/// digits, and so would logits far from 0 if the largest were not subtracted.
fn check_nearly_certain<T: Number>(cols: usize, place: Place, center: f64)
where
    T::Loss: Number,
{
    for at in [0, 1, 2, cols / 2, cols - 3, cols - 2, cols - 1] {
        let mut case = Case::<T>::new([40, cols], place, Options::None);
        for row in 6..40 {
            case.x[row * cols + at] = T::round(30.0);
            case.classes[row] = at as i64;
        }
        case.x.iter_mut().for_each(|x| *x = T::round(x.wide() + center));
        case.check();
    }
}

#[test]
fn rows_whose_ends_are_nearly_certain() {
    // From 2²⁴ on, the largest logit is subtracted before the multiplication by log₂ e.
    const FAR: f64 = 33_554_432.0;
    for center in [0.0, -FAR] {
        check_nearly_certain::<f32>(259, DENSE, center);
        check_nearly_certain::<f32>(1021, DENSE, center);
    }
}

#[test]
fn packed_rows_that_are_nearly_certain() {
    check_nearly_certain::<f32>(259, APART, 0.0);
    check_nearly_certain::<f32>(512, APART, 0.0);
    // Rows of 17 vectors are too short for the 16 threads per row of the kernel with rows in
    // registers.
    check_nearly_certain::<bf16>(131, DENSE, 0.0);
}
