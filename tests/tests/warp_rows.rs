//! Rows in the registers of a warp, which has eight vectors of 16 bytes a lane for each: those of
//! f32 and 16 bits that have no room in four. Against float64, in every pass.

use half::{bf16, f16};
use tests::class_rows::{Case, DENSE, Options, Place};
use tests::number::Number;

/// Rows of so many vectors. The last vectors of a lane are looked at one by one: none of them is
/// the row's, all of them are, or the row ends between two lanes.
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

/// More rows than warps of a block, and a block that has rows for some of its warps alone.
#[test]
fn loss_and_gradients() {
    check::<f32>(71, &[129, 160, 191, 255, 256]);
    check::<bf16>(71, &[176, 191, 192, 256]);
    check::<f16>(71, &[177, 256]);
}

/// So many rows that a forward pass has no block for each.
#[test]
fn losses_of_many_rows() {
    check::<f32>(1030, &[129]);
    check::<bf16>(1030, &[200]);
}
