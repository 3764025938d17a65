//! The value of a loss, and what the device has found of its targets.

use super::{Tensor, Usage};
use crate::driver::check;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::stream::Stream;
use crate::view::{Element, IntoShape, Shape, View, ViewMut, check_shape};
use cust::sys;
use kernels_gpu::abi::TargetFault;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The value of a loss, on the GPU: of shape `[]` for the reductions to a scalar.
///
/// What reads it waits for the work that computes it. A loss that a call has returned knows where
/// that ends: what was queued on the stream since is not waited for. Of one that was given to a
/// call, that is so once [`record`](Self::record) is called.
///
/// A call of another loss clears what a cross-entropy of classes has found of its targets, if one
/// was ever written here: about 2 µs more for each such call (H200). Give each its own.
pub struct Loss<V> {
    /// The values and, behind them, a [`TargetFault`].
    values: Tensor<V>,
    writes: Writes,
}

/// What the host knows of the launches that write a loss.
struct Writes {
    /// Whether a call has ever been given the fault to write: before, nothing may have written it.
    is_asked_for: AtomicBool,
    /// Whether the end of the next launch is to be noted: of the first of a loss that a call
    /// returns.
    notes_end: AtomicBool,
}

/// What is beside the values of a loss: on the device, which target is no class.
#[derive(Clone, Copy)]
pub(crate) struct Fault<'a> {
    /// A [`TargetFault`].
    pub(crate) address: u64,
    /// Of a [`Loss`]; `None` of memory of somebody else's.
    noted: Option<(&'a Writes, &'a Usage)>,
}

impl Fault<'_> {
    /// In memory of somebody else's.
    pub(crate) fn at(address: u64) -> Self {
        Fault { address, noted: None }
    }

    /// Notes that a launch was queued on `stream` that writes the values, and the fault too if it
    /// `reports`; if it does not, has the fault say that every target is a class.
    pub(crate) fn note_write(&self, stream: &Stream, reports: bool) -> Result<()> {
        // What lies in memory of somebody else's is not known.
        let may_be_old =
            self.noted.is_none_or(|(writes, _)| writes.is_asked_for.load(Ordering::Relaxed));
        if let (true, Some((writes, _))) = (reports, self.noted) {
            writes.is_asked_for.store(true, Ordering::Relaxed);
        } else if !reports && may_be_old {
            let _current = stream.gpu().bind()?;
            // SAFETY: the loss has these bytes, or the memory by the condition of
            // `with_target_fault`; the launch has ordered the stream behind whatever else uses them.
            check("cuMemsetD8Async", unsafe {
                let bytes = size_of::<TargetFault>();
                sys::cuMemsetD8Async(self.address, 0, bytes, stream.handle())
            })?;
        }
        if let Some((writes, usage)) = self.noted
            && writes.notes_end.swap(false, Ordering::Relaxed)
        {
            usage.note_end_of_write()?;
        }
        Ok(())
    }
}

/// A scalar loss as it lies on the device.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Scalar<V> {
    value: V,
    fault: TargetFault,
}

impl<V: Element> Loss<V> {
    /// Memory for a loss that a call returns, which its launch writes.
    pub(crate) fn uninitialised(gpu: &Gpu, shape: Shape) -> Result<Self> {
        Self::with(gpu, shape, true)
    }

    fn with(gpu: &Gpu, shape: Shape, notes_end: bool) -> Result<Self> {
        let tail = Self::bytes(shape) - shape.len() * size_of::<V>();
        let values = Tensor::with_tail(gpu, shape, tail)?;
        let (is_asked_for, notes_end) = (AtomicBool::new(false), AtomicBool::new(notes_end));
        Ok(Loss { values, writes: Writes { is_asked_for, notes_end } })
    }

    /// Where the fault is; of a scalar, where [`Scalar`] has it.
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
    /// Those of [`check`](Self::check); [`Error::Shape`] where the loss is not a scalar.
    pub fn item(&self) -> Result<V> {
        check_shape("loss", Shape::SCALAR, self.shape())?;
        let Scalar { value, fault } = self.scalar()?;
        self.check_fault(fault, value)?;
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
    /// Those of [`check`](Self::check); [`Error::Length`] where `data` has not as many elements as
    /// the loss.
    pub fn copy_to_slice(&self, data: &mut [V]) -> Result<()> {
        self.check()?;
        self.values.copy_to_slice(data)
    }

    /// The dimensions: none of a loss that is reduced to a scalar.
    pub fn shape(&self) -> Shape {
        self.values.shape
    }

    /// Waits for the work that computes the loss, and says whether it could.
    ///
    /// # Errors
    /// [`Error::TargetOutOfRange`] where a target is no class: the lowest such row; its loss and
    /// its gradient are NaN, and so is a sum or a mean that it is part of. [`Error::Driver`] where
    /// the work failed.
    pub fn check(&self) -> Result<()> {
        if self.shape() == Shape::SCALAR {
            let Scalar { value, fault } = self.scalar()?;
            return self.check_fault(fault, value);
        }
        if !self.writes.is_asked_for.load(Ordering::Relaxed) {
            return self.values.buffer.wait_for_write();
        }
        let (mut fault, mut value) = (TargetFault::default(), [V::default()]);
        // SAFETY: the fault is behind the values, and all bit patterns are numbers.
        unsafe {
            let fault = std::slice::from_mut(&mut fault);
            self.values.buffer.read_any(Self::fault_offset(self.shape()), fault)?;
        }
        let row = fault.row as usize;
        if fault.classes == 0 || row >= self.shape().len() {
            return Ok(());
        }
        self.values.buffer.read(row * size_of::<V>(), &mut value)?;
        self.check_fault(fault, value[0])
    }

    /// The one value and the fault, of one moment.
    fn scalar(&self) -> Result<Scalar<V>> {
        let mut scalar = Scalar { value: V::default(), fault: TargetFault::default() };
        // SAFETY: a scalar loss lies so on the device, and all bit patterns are numbers.
        unsafe { self.values.buffer.read_any(0, std::slice::from_mut(&mut scalar))? };
        Ok(scalar)
    }

    /// Refuses a `value` that is NaN because of a target. Another has been written over that since,
    /// by somebody who does not know of the fault.
    fn check_fault(&self, fault: TargetFault, value: V) -> Result<()> {
        let TargetFault { row, target, classes } = fault;
        let is_nan = value.ne(&value);
        if !self.writes.is_asked_for.load(Ordering::Relaxed) || classes == 0 || !is_nan {
            return Ok(());
        }
        let (row, classes) = (row as usize, classes as usize);
        Err(Error::TargetOutOfRange { row, target, classes })
    }

    /// Notes the end of the work that computes the loss: what is queued on its stream from now on
    /// is not waited for when it is read. Each call that is given the loss begins anew. Nothing is
    /// noted of a call that is captured into a graph.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&mut self) -> Result<()> {
        self.values.buffer.usage().note_end_of_write()
    }

    /// The values, for other calls to read. Read from here, what [`check`](Self::check) has to say
    /// is not asked for: of a target that is no class, the value is NaN.
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
    /// [`Error::Length`] where `data` has not as many elements as the loss; [`Error::Driver`].
    pub fn copy_from_slice(&mut self, data: &[V]) -> Result<()> {
        self.values.copy_from_slice(data)?;
        // Nothing is wrong with what the host has written.
        let fault = Self::fault_offset(self.shape());
        self.values.buffer.clear(fault, size_of::<TargetFault>())
    }
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
        let fault = Fault { address, noted: Some((writes, values.buffer.usage())) };
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
