//! The memory of tensors, as calls of the library take it.

use crate::backend::To;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
use fused_loss::{Element, Gpu, Stream, View, ViewMut, Workspace};

/// A backend whose tensors the kernels can read and write.
pub(crate) trait Memory: Backend {
    /// Lets `call` queue work that reads the inputs and writes the outputs, after all earlier work
    /// on the backend's tensors and before all later work.
    fn queue<F>(inputs: Vec<Input<Self>>, outputs: Vec<Output>, call: F) -> Vec<FloatTensor<Self>>
    where
        F: FnOnce(&mut Queue<'_>, &[Place], &[Place]) -> fused_loss::Result<()> + Send;
}

/// A tensor that a call reads.
pub(crate) enum Input<B: Backend> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
}

/// A tensor that a call makes.
pub(crate) struct Output {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    /// Whether it may take the memory of the first input, which has its shape and type, if nothing
    /// else uses that. The call then gets the same place for both.
    pub(crate) over_input: bool,
}

/// What a call needs to be queued.
pub(crate) struct Queue<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) stream: &'a Stream,
    pub(crate) workspace: &'a mut Workspace,
}

/// Where a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: fused_loss::Shape,
    /// Elements from the start of a row, the last dimension, to the start of the next.
    pub(crate) row_stride: usize,
}

impl Place {
    /// The memory as a call reads it. Its elements are of type `T`.
    pub(crate) fn view<'a, T: Element>(&self, gpu: &Gpu) -> fused_loss::Result<View<'a, T>> {
        let Place { address, shape, row_stride, .. } = *self;
        // SAFETY: only `Memory::queue` makes places, from tensors that have their elements there.
        // The tensors live until the call has returned. If their memory is freed later, it is
        // reused only after the work that the call has queued, and writes to it also come after
        // that work.
        unsafe { View::from_raw_strided(gpu, address, shape, row_stride) }
    }

    /// The memory as a call writes it.
    pub(crate) fn view_mut<'a, T: Element>(&self, gpu: &Gpu) -> fused_loss::Result<ViewMut<'a, T>> {
        let Place { address, shape, row_stride, .. } = *self;
        // SAFETY: as above, for an output: no other code uses the memory of a new one, nor that of
        // an input which only the call refers to.
        unsafe { ViewMut::from_raw_strided(gpu, address, shape, row_stride) }
    }

    /// The place of a loss, or of its gradient. burn's scalars have one dimension, the library's
    /// none.
    pub(crate) fn of_loss(self, reduction: To) -> Self {
        match reduction {
            To::Unreduced => self,
            To::Sum | To::Mean | To::BatchMean => {
                Place { shape: fused_loss::Shape::SCALAR, row_stride: 1, ..self }
            }
        }
    }
}

/// Elements from the start of a row, the last dimension, to the start of the next, if the elements
/// of a row are adjacent and rows are equally far apart.
pub(crate) fn row_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let cols = dims.last().copied().unwrap_or(1);
    if dims.contains(&0) {
        return Some(cols);
    }
    // The stride of a dimension of size 1 does not matter.
    let mut of_more = dims.iter().zip(strides).rev().filter(|&(&dim, _)| dim != 1);
    if cols != 1 && of_more.next().is_some_and(|(_, &stride)| stride != 1) {
        return None;
    }
    let mut rows: Option<(usize, usize)> = None;
    for (&dim, &stride) in of_more {
        let (row, expected) = rows.unwrap_or((stride, stride));
        if stride != expected {
            return None;
        }
        rows = Some((row, expected * dim));
    }
    let row = rows.map_or(cols, |(row, _)| row);
    (row >= cols).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::row_stride;

    #[test]
    fn rows_equally_far_apart_have_a_stride() {
        assert_eq!(row_stride(&[], &[]), Some(1));
        assert_eq!(row_stride(&[5], &[1]), Some(5));
        assert_eq!(row_stride(&[2, 3], &[3, 1]), Some(3));
        assert_eq!(row_stride(&[2, 3], &[8, 1]), Some(8), "columns of a wider matrix");
        assert_eq!(row_stride(&[4, 2, 3], &[16, 8, 1]), Some(8));
        assert_eq!(row_stride(&[4, 1, 3], &[8, 99, 1]), Some(8), "one element has none");
        assert_eq!(row_stride(&[4, 1], &[8, 7]), Some(8));
        assert_eq!(row_stride(&[1, 3], &[0, 1]), Some(3));
        assert_eq!(row_stride(&[0, 3], &[0, 0]), Some(3));
    }

    #[test]
    fn others_have_none() {
        assert_eq!(row_stride(&[2, 3], &[1, 2]), None, "transposed");
        assert_eq!(row_stride(&[2, 3], &[0, 1]), None, "one row that stands for all");
        assert_eq!(row_stride(&[2, 3], &[3, 0]), None, "one element that stands for its row");
        assert_eq!(row_stride(&[4, 2, 3], &[24, 8, 1]), None, "gaps between groups of rows");
        assert_eq!(row_stride(&[3], &[2]), None);
    }
}
