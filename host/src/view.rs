//! Memory on the GPU that a call borrows.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{Fault, Memory};
use crate::shape::{IntoShape, Shape};
use kernels_gpu::abi::TargetFault;
use std::fmt;
use std::marker::PhantomData;

/// Memory on a GPU that a call reads: a borrowed [`Tensor`](crate::Tensor), or memory that the
/// library does not own.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    pub(crate) memory: Memory<'a>,
    element: PhantomData<&'a [T]>,
}

/// Memory on a GPU that a call writes.
pub struct ViewMut<'a, T> {
    pub(crate) memory: Memory<'a>,
    /// For a loss, the fault that is stored after its values.
    pub(crate) fault: Option<Fault<'a>>,
    element: PhantomData<&'a mut [T]>,
}

macro_rules! raw_views {
    ($($view:ident $(with $fault:ident)?, $second:literal;)+) => {$(
        impl<'a, T: Element> $view<'a, T> {
            /// Memory that the library does not own, in row-major order without gaps. It may come
            /// from PyTorch, cudarc or candle, which use the device's primary context as this
            /// library does. Only a call checks it further.
            ///
            /// # Errors
            /// [`Error::InvalidShape`].
            ///
            /// # Safety
            /// From the call that gets the view until the work that it queues is done:
            /// 1. `address` is the address of `shape`'s elements of `T` on `gpu`, in memory of its
            ///    primary context, or `shape` has no elements.
            #[doc = $second]
            pub unsafe fn from_raw(
                gpu: &Gpu,
                address: u64,
                shape: impl IntoShape,
            ) -> Result<Self> {
                let shape = shape.into_shape("shape")?;
                Ok(Self::of(Memory::dense::<T>(address, shape, gpu.ordinal(), None)))
            }

            /// As [`from_raw`](Self::from_raw), with `row_stride` elements from the start of a row
            /// (the last dimension) to the start of the next.
            ///
            /// # Errors
            /// [`Error::InvalidShape`]; [`Error::Stride`] if rows would overlap.
            ///
            /// # Safety
            /// As [`from_raw`](Self::from_raw), for rows `row_stride` elements apart.
            pub unsafe fn from_raw_strided(
                gpu: &Gpu,
                address: u64,
                shape: impl IntoShape,
                row_stride: usize,
            ) -> Result<Self> {
                let shape = shape.into_shape("shape")?;
                Ok(Self::of(Memory::strided::<T>(address, shape, row_stride, gpu.ordinal())?))
            }

            /// The dimensions.
            pub fn shape(&self) -> Shape {
                self.memory.shape
            }
        }

        impl<'a, T> $view<'a, T> {
            pub(crate) fn of(memory: Memory<'a>) -> Self {
                $view { memory, $($fault: None,)? element: PhantomData }
            }
        }
    )+};
}

raw_views! {
    View, "2. Nothing writes them but work that is ordered before on the call's stream.";
    ViewMut with fault,
        "2. Nothing accesses them but work that is ordered before on the call's stream.";
}

macro_rules! shown {
    ($($view:ident)+) => {$(
        impl<T> fmt::Debug for $view<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Memory { shape, device, .. } = self.memory;
                write!(f, "{}{shape:?} on device {device}", stringify!($view))
            }
        }
    )+};
}
shown!(View ViewMut);

impl<T: Element> ViewMut<'_, T> {
    /// The view of a loss with room for a [`TargetFault`] at the address `fault`. A cross-entropy
    /// of classes writes there which target is not a class, as it does for a [`Loss`](crate::Loss).
    /// Other losses set it to zero.
    ///
    /// # Errors
    /// [`Error::NullPointer`], [`Error::Misaligned`] if it is not a multiple of 8.
    ///
    /// # Safety
    /// From the call that gets the view until the work that it queues is done, `fault` is the
    /// address of a [`TargetFault`]'s bytes on the view's device. They overlap no other memory of
    /// the call, and the only other work that accesses them comes before the call on its stream.
    pub unsafe fn with_target_fault(self, fault: u64) -> Result<Self> {
        let memory = Memory::dense::<TargetFault>(fault, Shape::SCALAR, self.memory.device, None);
        memory.check_aligned("fault", align_of::<TargetFault>())?;
        Ok(ViewMut { fault: Some(Fault::at(fault)), ..self })
    }
}

impl<'a, T: Element> View<'a, T> {
    /// Repeats the view's one element over all of `shape`, for an upstream gradient that is the
    /// same for every loss.
    ///
    /// # Errors
    /// [`Error::Shape`] if the view does not have exactly one element; [`Error::InvalidShape`].
    pub fn expand(self, shape: impl IntoShape) -> Result<Self> {
        let shape = shape.into_shape("shape")?;
        if self.memory.shape.len() != 1 {
            let (argument, expected) = ("self", "of one element".to_owned());
            return Err(Error::Shape { argument, expected, got: self.memory.shape.to_string() });
        }
        Ok(Self::of(Memory { shape, row_stride: 0, element_stride: 0, ..self.memory }))
    }
}
