//! The value of a loss, and what the device reports about its targets.

use super::Tensor;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{Fault, Writes};
use crate::shape::{IntoShape, Shape, check_shape};
use crate::view::{View, ViewMut};
use kernels_gpu::abi::TargetFault;
use std::fmt;
use std::mem::offset_of;

/// The value of a loss, on the GPU. Its shape is `[]` if the loss is reduced to a scalar.
///
/// Reading it waits for the work that computes it. A loss that a call returns has an event at the
/// end of that work, so reading it does not wait for what was queued on the stream later. A loss
/// that you pass to a call has such an event once you call [`record`](Self::record).
///
/// If a cross-entropy of classes was ever written here, each call of another loss function must
/// clear that one's report on its targets, which takes about 2 µs (H200). So use a separate `Loss`
/// for each.
#[must_use = "the memory is freed when the loss is dropped"]
pub struct Loss<V> {
    /// The values, followed by a [`TargetFault`].
    values: Tensor<V>,
    writes: Writes,
}

impl<V: Element> Loss<V> {
    /// Memory for a loss that a call returns, which its launch writes.
    pub(crate) fn uninitialised(gpu: &Gpu, shape: Shape) -> Result<Self> {
        Self::with(gpu, shape, true)
    }

    fn with(gpu: &Gpu, shape: Shape, notes_end: bool) -> Result<Self> {
        let tail = Self::bytes(shape) - shape.len() * size_of::<V>();
        let values = Tensor::with_tail(gpu, shape, tail, "loss")?;
        Ok(Loss { values, writes: Writes::new(notes_end) })
    }

    /// The offset of the fault from the start of the values, in bytes.
    fn fault_offset(shape: Shape) -> usize {
        (shape.len() * size_of::<V>()).next_multiple_of(align_of::<TargetFault>())
    }

    /// Bytes of the values and the fault.
    fn bytes(shape: Shape) -> usize {
        Self::fault_offset(shape) + size_of::<TargetFault>()
    }

    /// A loss of zeros, for the `_into` methods to write.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros(gpu: &Gpu, shape: impl IntoShape) -> Result<Self> {
        let mut loss = Self::with(gpu, shape.into_shape("shape")?, false)?;
        loss.values.buffer.clear(0, Self::bytes(loss.shape()))?;
        Ok(loss)
    }

    /// Waits for the work that computes the loss, and returns its one value.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`Error::Shape`] if the loss is not a scalar.
    pub fn item(&self) -> Result<V> {
        check_shape("loss", Shape::SCALAR, self.shape())?;
        let value = self.value(0)?;
        self.check_value(value)?;
        Ok(value)
    }

    /// Waits for the work that computes the loss, and returns its values, in row-major order.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn to_vec(&self) -> Result<Vec<V>> {
        self.check()?;
        self.values.to_vec()
    }

    /// Waits for the work that computes the loss, and copies its values to `data`, in row-major
    /// order.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`Error::Length`] if `data` does not have as many elements
    /// as the loss.
    pub fn copy_to_slice(&self, data: &mut [V]) -> Result<()> {
        self.check()?;
        self.values.copy_to_slice(data)
    }

    /// The dimensions; a loss that is reduced to a scalar has none.
    pub fn shape(&self) -> Shape {
        self.values.shape
    }

    /// Waits for the work that computes the loss, and returns an error if it failed or a target is
    /// not a class.
    ///
    /// # Errors
    /// [`Error::TargetOutOfRange`] with the lowest row whose target is not a class. The loss and
    /// the gradient of such a row are NaN, and so is a sum or a mean over it. [`Error::Driver`] if
    /// the work failed.
    pub fn check(&self) -> Result<()> {
        if !self.writes.may_report() {
            return self.values.buffer.wait_for_write();
        }
        if self.shape() == Shape::SCALAR {
            return self.check_value(self.value(0)?);
        }
        let Some(fault) = self.fault()? else { return Ok(()) };
        let row = fault.row as usize;
        let has_row = row < self.shape().len();
        if has_row && is_nan(self.value(row)?) { Err(target_out_of_range(fault)) } else { Ok(()) }
    }

    /// The value at an index.
    fn value(&self, at: usize) -> Result<V> {
        let mut value = [V::default()];
        self.values.buffer.read(at * size_of::<V>(), &mut value)?;
        Ok(value[0])
    }

    /// Refuses the `value` of a scalar loss that is NaN because of a target. If `value` is not NaN,
    /// other code that does not know of the fault has overwritten it since.
    fn check_value(&self, value: V) -> Result<()> {
        if is_nan(value)
            && self.writes.may_report()
            && let Some(fault) = self.fault()?
        {
            return Err(target_out_of_range(fault));
        }
        Ok(())
    }

    /// What the device reports about the targets. It writes more than the number of classes only if
    /// a target is not a class.
    fn fault(&self) -> Result<Option<TargetFault>> {
        let offset = Self::fault_offset(self.shape());
        let mut classes = [0_u64];
        let mut fault = [TargetFault::default()];
        // SAFETY: the fault is behind the values, and all bit patterns are numbers.
        unsafe {
            let buffer = &self.values.buffer;
            buffer.read_any(offset + offset_of!(TargetFault, classes), &mut classes)?;
            if classes == [0] {
                return Ok(None);
            }
            buffer.read_any(offset, &mut fault)?;
        }
        Ok(Some(fault[0]))
    }

    /// Records the end of the work that computes the loss, so that reading it does not wait for
    /// what is queued on its stream from now on. Each call that writes the loss discards that
    /// record. For a call that is captured into a graph, this records nothing.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&mut self) -> Result<()> {
        self.values.buffer.usage().note_end_of_write()
    }

    /// The values, for other calls to read. Nothing checks them as [`check`](Self::check) does: if
    /// a target is not a class, the value is NaN.
    pub fn values(&self) -> &Tensor<V> {
        &self.values
    }

    /// The values, to write: for a call, the loss itself.
    pub fn values_mut(&mut self) -> ViewMut<'_, V> {
        self.into()
    }

    /// Overwrites the values with those of `data`, as [`Tensor::copy_from_slice`] does.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have as many elements as the loss; [`Error::Driver`].
    pub fn copy_from_slice(&mut self, data: &[V]) -> Result<()> {
        self.values.copy_from_slice(data)?;
        // The values now come from the host, so an earlier fault no longer applies.
        let fault = Self::fault_offset(self.shape());
        self.values.buffer.clear(fault, size_of::<TargetFault>())
    }
}

fn is_nan<V: Element>(value: V) -> bool {
    value.ne(&value)
}

fn target_out_of_range(TargetFault { row, target, classes }: TargetFault) -> Error {
    Error::TargetOutOfRange { row: row as usize, target, classes: classes as usize }
}

impl<V: Element> fmt::Debug for Loss<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loss({:?})", self.values)
    }
}

impl<'a, V: Element> From<&'a mut Loss<V>> for ViewMut<'a, V> {
    fn from(loss: &'a mut Loss<V>) -> Self {
        let Loss { values, writes } = loss;
        let address = values.as_raw() + Loss::<V>::fault_offset(values.shape) as u64;
        let fault = Fault::new(address, writes, values.buffer.usage());
        let mut view = ViewMut::of(values.memory());
        view.fault = Some(fault);
        view
    }
}

impl<'a, V: Element> From<&'a Loss<V>> for View<'a, V> {
    fn from(loss: &'a Loss<V>) -> Self {
        loss.values.view()
    }
}
