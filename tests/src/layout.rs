//! Where the tensors of a call begin, and the gaps between their rows.

use crate::Placed;
use crate::number::Number;
use fused_loss::Gpu;

/// Where the tensors of a call begin, in elements after a 16-byte boundary, and the gaps between
/// their rows: of input, target, and their gradients.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Elements between a boundary and a tensor.
    pub offsets: [usize; 4],
    /// Elements between rows.
    pub gaps: [usize; 4],
}

impl Layout {
    /// All tensors begin at a boundary, and none has gaps.
    pub const DENSE: Self = Layout { offsets: [0; 4], gaps: [0; 4] };

    /// Tensor `number` of a call, rounded to its type, with NaN in the gaps and around it.
    pub fn place<T: Number>(
        self,
        gpu: &Gpu,
        data: &[f64],
        shape: [usize; 2],
        number: usize,
    ) -> Placed<T> {
        let data: Vec<T> = data.iter().map(|&x| T::round(x)).collect();
        let stride = shape[1] + self.gaps[number];
        Placed::on(gpu, &data, shape, stride, self.offsets[number], T::round(f64::NAN))
    }
}

/// The numbers in f64.
pub fn wide<T: Number>(numbers: Vec<T>) -> Vec<f64> {
    numbers.into_iter().map(Number::wide).collect()
}
