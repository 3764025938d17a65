//! Memory on the GPU that the library owns.

use crate::driver::{check, check_cust};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::stream::{Event, Queue, Stream};
use crate::view::{Element, Fault, IntoShape, Memory, Shape, View, ViewMut, check_shape};
use cust::memory::{DevicePointer, cuda_free, cuda_malloc};
use cust::sys;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A dense tensor on a GPU, row-major, owned.
///
/// A tensor knows which streams use it: a call on another stream is made to wait for what was queued
/// before, and dropping the tensor waits for all of it before the memory is freed.
///
/// `Send` and `Sync`: any thread may use it.
pub struct Tensor<T> {
    buffer: Buffer,
    shape: Shape,
    element: PhantomData<T>,
}

/// Bytes on a GPU, and who uses them.
pub(crate) struct Buffer {
    gpu: Gpu,
    address: u64,
    usage: Usage,
}

/// Which streams have work queued that uses some memory.
#[derive(Default)]
pub(crate) struct Usage(Mutex<Users>);

#[derive(Default)]
struct Users {
    /// The stream that wrote last.
    writer: Option<Arc<Queue>>,
    /// Streams that have read since, or were made to wait for the writer.
    readers: Vec<Arc<Queue>>,
}

impl Usage {
    fn users(&self) -> MutexGuard<'_, Users> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Orders what `stream` gets next, a read, behind the last write.
    pub(crate) fn before_read(&self, stream: &Stream) -> Result<()> {
        let (mut users, queue) = (self.users(), stream.queue());
        if users.readers.contains(queue) || users.writer.as_ref() == Some(queue) {
            return Ok(());
        }
        if let Some(writer) = &users.writer {
            queue.wait_for(writer)?;
        }
        users.readers.push(queue.clone());
        Ok(())
    }

    /// Orders what `stream` gets next, a write, behind everything before.
    pub(crate) fn before_write(&self, stream: &Stream) -> Result<()> {
        let (mut users, queue) = (self.users(), stream.queue());
        for other in users.readers.iter().chain(&users.writer) {
            if other != queue {
                queue.wait_for(other)?;
            }
        }
        users.readers.clear();
        users.writer = Some(queue.clone());
        Ok(())
    }

    /// Waits for everything, and forgets what is done.
    fn wait(&self) -> Result<()> {
        let mut users = self.users();
        let done = |queue: &Arc<Queue>| Event::record(queue).and_then(|event| event.synchronize());
        while let Some(reader) = users.readers.last() {
            done(reader)?;
            users.readers.pop();
        }
        if let Some(writer) = &users.writer {
            done(writer)?;
            users.writer = None;
        }
        Ok(())
    }
}

impl Buffer {
    pub(crate) fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            let _current = gpu.bind()?;
            // SAFETY: whoever makes a buffer of it writes it before it is read; `drop` frees it.
            let memory = check_cust("cuMemAlloc", unsafe { cuda_malloc::<u8>(bytes) })?;
            address = memory.as_raw();
        }
        Ok(Buffer { gpu: gpu.clone(), address, usage: Usage::default() })
    }

    /// The buffer as an argument of a call: elements of `T`.
    pub(crate) fn memory<T>(&self, shape: Shape) -> Memory<'_> {
        Memory::dense::<T>(self.address, shape, self.gpu.ordinal(), Some(&self.usage))
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream that wrote last, whose work is done: a fault of it is reported here.
    fn written(&self) -> Result<Option<Arc<Queue>>> {
        let writer = self.usage.users().writer.clone();
        if let Some(queue) = &writer {
            queue.synchronize()?;
        }
        Ok(writer)
    }

    /// Copies what is `offset` bytes behind the start to `data`. Waits for the work that writes it.
    pub(crate) fn read<T: Element>(&self, offset: usize, data: &mut [T]) -> Result<()> {
        let writer = self.written()?;
        if data.is_empty() {
            return Ok(());
        }
        let queue = match writer {
            Some(queue) => queue,
            None => self.gpu.transfers()?.queue().clone(),
        };
        // SAFETY: the buffer has these bytes, and what writes them is done.
        unsafe { queue.copy_to_host(self.address + offset as u64, data) }
    }

    /// Sets the first `bytes` bytes to zero, behind all work that uses them, and waits until it is done.
    pub(crate) fn clear(&mut self, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.usage.wait()?;
        let stream = self.gpu.transfers()?;
        let _current = self.gpu.bind()?;
        // SAFETY: the buffer has these bytes.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(self.address, 0, bytes, stream.handle())
        })?;
        stream.synchronize()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // A fault of the work it waits for belongs to whoever waits for the work itself. Memory that may still be in use is not
        // given to others: where a fault has broken the context, nothing is.
        if self.usage.wait().is_err() {
            return;
        }
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: allocated by `new`, and no queued work uses it any more.
            let _ = unsafe { cuda_free(DevicePointer::<u8>::from_raw(self.address)) };
        }
    }
}

impl<T: Element> Tensor<T> {
    /// Memory that is not initialised: whoever calls it writes every element before it is read.
    pub(crate) fn uninitialised(gpu: &Gpu, shape: Shape) -> Result<Self> {
        Self::with_tail(gpu, shape, 0)
    }

    /// As [`uninitialised`](Self::uninitialised), with `tail` bytes behind the elements.
    fn with_tail(gpu: &Gpu, shape: Shape, tail: usize) -> Result<Self> {
        let buffer = Buffer::new(gpu, shape.len() * size_of::<T>() + tail)?;
        Ok(Tensor { buffer, shape, element: PhantomData })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::InvalidShape`]; [`Error::Driver`] where memory is short.
    pub fn zeros(gpu: &Gpu, shape: impl IntoShape) -> Result<Self> {
        let mut tensor = Self::uninitialised(gpu, shape.into_shape("shape")?)?;
        tensor.clear()?;
        Ok(tensor)
    }

    /// Sets all elements to zero, behind all work that uses them, and waits until it is done.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.buffer.clear(self.bytes())
    }

    /// A tensor with the elements of `data`, in row-major order. Returns when they are copied.
    ///
    /// # Errors
    /// [`Error::Length`] where `data` has not as many elements as `shape`; [`Error::InvalidShape`];
    /// [`Error::Driver`] where memory is short.
    pub fn from_slice(gpu: &Gpu, shape: impl IntoShape, data: &[T]) -> Result<Self> {
        let shape = shape.into_shape("shape")?;
        if data.len() != shape.len() {
            return Err(Error::Length { argument: "data", expected: shape.len(), got: data.len() });
        }
        let mut tensor = Self::uninitialised(gpu, shape)?;
        tensor.copy_from_slice(data)?;
        Ok(tensor)
    }

    /// Overwrites the elements with those of `data`, behind all work that uses them. Returns when they
    /// are copied.
    ///
    /// # Errors
    /// [`Error::Length`] where `data` has not as many elements as the tensor; [`Error::Driver`].
    pub fn copy_from_slice(&mut self, data: &[T]) -> Result<()> {
        if data.len() != self.shape.len() {
            let (expected, got) = (self.shape.len(), data.len());
            return Err(Error::Length { argument: "data", expected, got });
        }
        if data.is_empty() {
            return Ok(());
        }
        self.buffer.usage.wait()?;
        let stream = self.buffer.gpu.transfers()?;
        let _current = self.buffer.gpu.bind()?;
        // SAFETY: both sides have these bytes, and the copy is done before this returns.
        check("cuMemcpyHtoDAsync", unsafe {
            let from = data.as_ptr().cast::<c_void>();
            sys::cuMemcpyHtoDAsync_v2(self.buffer.address, from, self.bytes(), stream.handle())
        })?;
        stream.synchronize()
    }

    /// The elements, in row-major order. Waits for the work that writes them.
    ///
    /// # Errors
    /// [`Error::Driver`] where that work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut data = vec![T::default(); self.shape.len()];
        self.copy_to_slice(&mut data)?;
        Ok(data)
    }

    /// Copies the elements to `data`, in row-major order. Waits for the work that writes them.
    ///
    /// # Errors
    /// [`Error::Length`] where `data` has not as many elements as the tensor; [`Error::Driver`] where
    /// that work failed.
    pub fn copy_to_slice(&self, data: &mut [T]) -> Result<()> {
        if data.len() != self.shape.len() {
            let (expected, got) = (self.shape.len(), data.len());
            return Err(Error::Length { argument: "data", expected, got });
        }
        self.buffer.read(0, data)
    }

    /// The dimensions.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The device it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.buffer.gpu
    }

    /// The address of its first element on the device, for libraries that share the device's primary
    /// context. Null where it has no elements. Work that this library does not queue is not waited for
    /// when the tensor is dropped.
    pub fn as_raw(&self) -> u64 {
        self.buffer.address
    }

    /// The tensor as a call reads it.
    pub fn view(&self) -> View<'_, T> {
        View::of(self.memory())
    }

    /// The tensor as a call writes it.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::of(self.memory())
    }

    fn memory(&self) -> Memory<'_> {
        self.buffer.memory::<T>(self.shape)
    }

    fn bytes(&self) -> usize {
        self.shape.len() * size_of::<T>()
    }
}

impl<'a, T: Element> From<&'a Tensor<T>> for View<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        tensor.view()
    }
}

impl<'a, T: Element> From<&'a mut Tensor<T>> for ViewMut<'a, T> {
    fn from(tensor: &'a mut Tensor<T>) -> Self {
        tensor.view_mut()
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor<{}>{:?} on {:?}", T::NAME, self.shape, self.buffer.gpu)
    }
}

impl<T: Element> View<'_, T> {
    /// The elements, in row-major order. Waits for what is queued on `stream`, and for work of this library that writes them.
    ///
    /// # Errors
    /// [`Error::Stride`] where there are gaps between rows, or where one element stands for all; [`Error::NullPointer`],
    /// [`Error::Misaligned`], [`Error::Device`]; [`Error::Driver`] where that work failed.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        let memory = self.memory;
        memory.check::<T>("self")?;
        memory.check_elements("self")?;
        memory.check_dense("self")?;
        memory.check_device("self", stream.gpu().ordinal())?;
        if let Some(usage) = memory.usage {
            usage.before_read(stream)?;
        }
        let mut data = vec![T::default(); memory.shape.len()];
        if data.is_empty() {
            return Ok(data);
        }
        // SAFETY: by the conditions of whoever made the view, or the tensor's doing; it is dense.
        unsafe { stream.queue().copy_to_host(memory.address, &mut data)? };
        Ok(data)
    }
}

/// The value of a loss, on the GPU: of shape `[]` for the reductions to a scalar.
pub struct Loss<V> {
    /// The values and, behind them, [`Fault`].
    values: Tensor<V>,
    classes: AtomicUsize,
}

impl<V: Element> Loss<V> {
    /// Bytes of a [`Fault`].
    const TAIL: usize = 16;

    /// Memory for a loss, which the launch that gets it writes.
    pub(crate) fn uninitialised(gpu: &Gpu, shape: Shape) -> Result<Self> {
        let tail = Self::fault_offset(shape) + Self::TAIL - shape.len() * size_of::<V>();
        Ok(Loss { values: Tensor::with_tail(gpu, shape, tail)?, classes: AtomicUsize::new(0) })
    }

    fn fault_offset(shape: Shape) -> usize {
        (shape.len() * size_of::<V>()).next_multiple_of(Self::TAIL)
    }

    /// A loss of zeros, for the `_into` methods to write.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros(gpu: &Gpu, shape: impl IntoShape) -> Result<Self> {
        let mut loss = Self::uninitialised(gpu, shape.into_shape("shape")?)?;
        loss.values.clear()?;
        Ok(loss)
    }

    /// Waits for the work that computes the loss, and returns its one value.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`Error::Shape`] where the loss is not a scalar.
    pub fn item(&self) -> Result<V> {
        check_shape("loss", Shape::SCALAR, self.values.shape)?;
        let mut value = [V::default()];
        self.copy_to_slice(&mut value)?;
        Ok(value[0])
    }

    /// Waits for the work that computes the loss, and returns its values, in row-major order.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn to_vec(&self) -> Result<Vec<V>> {
        self.check()?;
        self.values.to_vec()
    }

    /// Waits for the work that computes the loss, and copies its values to `data`, in row-major order.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`Error::Length`] where `data` has not as many elements as the loss.
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
    /// [`Error::TargetOutOfRange`] where a target is no class: the lowest such row; its loss and its gradient are
    /// NaN, and so is a sum or a mean that it is part of. [`Error::Driver`] where the work failed.
    pub fn check(&self) -> Result<()> {
        let classes = self.classes.load(Ordering::Relaxed);
        if classes == 0 {
            return self.values.buffer.written().map(|_| ());
        }
        let mut fault = [0_i64; 2];
        self.values.buffer.read(Self::fault_offset(self.values.shape), &mut fault)?;
        match (usize::try_from(fault[0]), fault[1]) {
            (Ok(row), target) => Err(Error::TargetOutOfRange { row, target, classes }),
            _ => Ok(()),
        }
    }

    /// The values, for other calls to read. Read from here, what [`check`](Self::check) has to say is not asked for: of a
    /// target that is no class, the value is NaN.
    pub fn values(&self) -> &Tensor<V> {
        &self.values
    }

    /// The values, to write. What is written by way of them is not [checked](Self::check): give a call the loss itself.
    pub fn values_mut(&mut self) -> ViewMut<'_, V> {
        *self.classes.get_mut() = 0;
        self.values.view_mut()
    }

    /// Overwrites the values with those of `data`, as [`Tensor::copy_from_slice`] does.
    ///
    /// # Errors
    /// [`Error::Length`] where `data` has not as many elements as the loss; [`Error::Driver`].
    pub fn copy_from_slice(&mut self, data: &[V]) -> Result<()> {
        self.values.copy_from_slice(data)?;
        *self.classes.get_mut() = 0;
        Ok(())
    }
}

impl<V: Element> fmt::Debug for Loss<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loss({:?})", self.values)
    }
}

impl<'a, V: Element> From<&'a mut Loss<V>> for ViewMut<'a, V> {
    fn from(loss: &'a mut Loss<V>) -> Self {
        let Loss { values, classes } = loss;
        let address = values.as_raw() + Loss::<V>::fault_offset(values.shape) as u64;
        let mut view = values.view_mut();
        view.fault = Some(Fault { address, classes });
        view
    }
}

impl<'a, V: Element> From<&'a Loss<V>> for View<'a, V> {
    fn from(loss: &'a Loss<V>) -> Self {
        loss.values.view()
    }
}
