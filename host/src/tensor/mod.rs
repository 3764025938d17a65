//! Memory on the GPU that the library owns.

mod loss;

pub use loss::Loss;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{Buffer, Memory};
use crate::shape::{IntoShape, Shape};
use crate::stream::Stream;
use crate::view::{View, ViewMut};
use std::fmt;
use std::marker::PhantomData;

/// A dense tensor on a GPU, row-major, owned.
///
/// A tensor knows which streams use it. A call on another stream waits for work that was queued
/// earlier, and dropping the tensor waits for all of that work before it frees the memory.
///
/// `Send` and `Sync`: any thread may use it.
#[must_use = "the memory is freed when the tensor is dropped"]
pub struct Tensor<T> {
    buffer: Buffer,
    shape: Shape,
    element: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// Uninitialised memory: the caller must write every element before it is read. `what` names
    /// the memory in errors.
    pub(crate) fn uninitialised(gpu: &Gpu, shape: Shape, what: &str) -> Result<Self> {
        Self::with_tail(gpu, shape, 0, what)
    }

    /// As [`uninitialised`](Self::uninitialised), with `tail` bytes after the elements.
    fn with_tail(gpu: &Gpu, shape: Shape, tail: usize, what: &str) -> Result<Self> {
        let bytes = shape.len() * size_of::<T>() + tail;
        let buffer = Buffer::new(gpu, bytes, format_args!("a {what} of {} {shape}", T::NAME))?;
        Ok(Tensor { buffer, shape, element: PhantomData })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::InvalidShape`]; [`Error::OutOfMemory`]; [`Error::Driver`].
    pub fn zeros(gpu: &Gpu, shape: impl IntoShape) -> Result<Self> {
        let mut tensor = Self::uninitialised(gpu, shape.into_shape("shape")?, "tensor")?;
        tensor.clear()?;
        Ok(tensor)
    }

    /// Sets all elements to zero after all work that uses them, and waits until that is done.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.buffer.clear(0, self.bytes())
    }

    /// A tensor with the elements of `data`, in row-major order. Returns when they are copied.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have as many elements as `shape`;
    /// [`Error::InvalidShape`]; [`Error::OutOfMemory`]; [`Error::Driver`].
    pub fn from_slice(gpu: &Gpu, shape: impl IntoShape, data: &[T]) -> Result<Self> {
        let shape = shape.into_shape("shape")?;
        if data.len() != shape.len() {
            return Err(Error::Length { argument: "data", expected: shape.len(), got: data.len() });
        }
        let mut tensor = Self::uninitialised(gpu, shape, "tensor")?;
        tensor.copy_from_slice(data)?;
        Ok(tensor)
    }

    /// Overwrites the elements with those of `data`, after all work that uses them. Returns when
    /// they are copied.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have as many elements as the tensor; [`Error::Driver`].
    pub fn copy_from_slice(&mut self, data: &[T]) -> Result<()> {
        if data.len() != self.shape.len() {
            let (expected, got) = (self.shape.len(), data.len());
            return Err(Error::Length { argument: "data", expected, got });
        }
        self.buffer.write(data)
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
    /// [`Error::Length`] if `data` does not have as many elements as the tensor; [`Error::Driver`]
    /// if that work failed.
    pub fn copy_to_slice(&self, data: &mut [T]) -> Result<()> {
        if data.len() != self.shape.len() {
            let (expected, got) = (self.shape.len(), data.len());
            return Err(Error::Length { argument: "data", expected, got });
        }
        self.buffer.read(0, data)
    }

    /// Waits for all work of this library that uses the tensor, and forgets the streams that it was
    /// queued on. The owner of a stream from another library may then destroy the stream.
    ///
    /// # Errors
    /// [`Error::Driver`] where some of that work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.buffer.synchronize()
    }

    /// The dimensions.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The device it is on.
    pub fn gpu(&self) -> &Gpu {
        self.buffer.gpu()
    }

    /// The address of its first element on the device, for libraries that share the device's
    /// primary context. Null if it has no elements. Dropping the tensor does not wait for work that
    /// other libraries have queued.
    pub fn as_raw(&self) -> u64 {
        self.buffer.address()
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
        write!(f, "Tensor<{}>{:?} on {:?}", T::NAME, self.shape, self.buffer.gpu())
    }
}

impl<T: Element> View<'_, T> {
    /// The elements, in row-major order. Waits for all work queued on `stream`, and for work of
    /// this library that writes them.
    ///
    /// # Errors
    /// [`Error::Stride`] if there are gaps between rows, or if the view repeats one element;
    /// [`Error::NullPointer`], [`Error::Misaligned`], [`Error::Device`], [`Error::OtherStream`];
    /// [`Error::Driver`] if that work failed.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        let memory = self.memory;
        memory.check::<T>("self")?;
        memory.check_elements("self")?;
        memory.check_dense("self")?;
        memory.check_place("self", stream.queue())?;
        memory.before_read(stream.queue())?;
        let mut data = vec![T::default(); memory.shape.len()];
        if data.is_empty() {
            return Ok(data);
        }
        // SAFETY: by the conditions of whoever made the view, or the tensor's doing; it is dense.
        unsafe { stream.copy_to_host(memory.address, &mut data)? };
        Ok(data)
    }
}
