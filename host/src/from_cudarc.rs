//! cudarc's devices, streams and memory.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{Events, Memory};
use crate::queue::Owner;
use crate::shape::IntoShape;
use crate::stream::{Stream, Workspace};
use crate::view::{View, ViewMut};
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use std::sync::Arc;

mod sealed {
    use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

    pub trait Sealed {}
    impl<T> Sealed for CudaSlice<T> {}
    impl<T> Sealed for CudaView<'_, T> {}
    impl<T> Sealed for CudaViewMut<'_, T> {}
}

/// cudarc's memory that a call can read: a [`CudaSlice`], a [`CudaView`] or a [`CudaViewMut`].
///
/// Sealed, because any code may implement [`DevicePtr`], for any address.
pub trait CudarcMemory<T>: DevicePtr<T> + sealed::Sealed {}
impl<T> CudarcMemory<T> for CudaSlice<T> {}
impl<T> CudarcMemory<T> for CudaView<'_, T> {}
impl<T> CudarcMemory<T> for CudaViewMut<'_, T> {}

/// cudarc's memory that a call can write: a [`CudaSlice`] or a [`CudaViewMut`].
pub trait CudarcMemoryMut<T>: CudarcMemory<T> + DevicePtrMut<T> {}
impl<T> CudarcMemoryMut<T> for CudaSlice<T> {}
impl<T> CudarcMemoryMut<T> for CudaViewMut<'_, T> {}

impl Gpu {
    /// The GPU of cudarc's `context`.
    ///
    /// # Errors
    /// Those of [`Gpu::new`]; [`Error::OtherContext`] if it is not the device's primary context,
    /// which `CudaContext::new` returns and this library uses.
    pub fn from_cudarc(context: &CudaContext) -> Result<Self> {
        // A number beyond `u32` is refused like any other number without a device.
        let gpu = Gpu::new(u32::try_from(context.ordinal()).unwrap_or(u32::MAX))?;
        if context.cu_ctx().cast() == gpu.context() {
            return Ok(gpu);
        }
        Err(Error::OtherContext { argument: "context", expected: "the device's primary context" })
    }
}

impl Stream {
    /// cudarc's stream as a stream of this library. cudarc's stream lives until this one, its
    /// clones, and the library's memory used on it are dropped.
    ///
    /// For `CudaContext::per_thread_stream` the rules of [`from_raw`](Self::from_raw) for
    /// `CU_STREAM_PER_THREAD` apply. A call that would be captured into a graph is refused.
    ///
    /// # Errors
    /// Those of [`Gpu::from_cudarc`]; [`Error::OutOfMemory`].
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<Self> {
        let gpu = Gpu::from_cudarc(stream.context())?;
        let workspace = Workspace::new(&gpu)?;
        let (handle, owner) = (stream.cu_stream().cast(), Owner::Cudarc(stream.clone()));
        Ok(Self::with(&gpu, handle, owner, workspace))
    }
}

/// Moves `memory`, which starts at address 0, to the address that cudarc's `pointer` returns for
/// calls on `stream`. `context` is the context of the memory.
fn borrow<'a>(
    stream: &'a Stream,
    context: &Arc<CudaContext>,
    memory: Memory<'a>,
    pointer: impl FnOnce(&'a CudaStream) -> (u64, SyncOnDrop<'a>),
) -> Result<Memory<'a>> {
    let queue = stream.queue();
    let Some(theirs) = queue.cudarc() else {
        let (argument, expected) = ("stream", "a stream made by Stream::from_cudarc");
        return Err(Error::OtherStream { argument, expected });
    };
    queue.check_call()?;
    let (expected, got) = (theirs.context().ordinal(), context.ordinal());
    if got != expected {
        let (expected, got) = (expected as u32, got as u32);
        return Err(Error::Device { argument: "slice", expected, got });
    }
    // Each `CudaContext` counts the streams that it has created, and uses events only if there are
    // some.
    if !Arc::ptr_eq(theirs.context(), context) {
        let (argument, expected) = ("slice", "memory of the stream's CudaContext");
        return Err(Error::OtherContext { argument, expected });
    }
    // cudarc leaves its context current on the thread.
    let _current = stream.gpu().bind()?;
    let (address, guard) = pointer(theirs);
    let events = Some(Events::new(queue, theirs, guard)?);
    Ok(Memory { address, events, ..memory })
}

/// Refuses cudarc's memory if it has more or fewer elements than a dense view.
fn check_len(memory: &Memory<'_>, got: usize) -> Result<()> {
    let expected = memory.shape.len();
    if got == expected { Ok(()) } else { Err(Error::Length { argument: "slice", expected, got }) }
}

/// Refuses cudarc's memory, elements of `T`, if it ends before the last row of a view.
fn check_reach<T>(memory: &Memory<'_>, got: usize) -> Result<()> {
    let expected = memory.bytes / size_of::<T>();
    if got >= expected { Ok(()) } else { Err(Error::Length { argument: "slice", expected, got }) }
}

macro_rules! views {
    ($($view:ident of $memory:ident ($($mut:ident)?) by $pointer:ident: $waits:literal;)+) => {$(
        impl<'a, T: Element> $view<'a, T> {
            /// cudarc's memory, in row-major order without gaps, for calls on `stream`, which comes
            /// from [`Stream::from_cudarc`].
            ///
            /// cudarc's events keep streams in order, as they do for cudarc's own functions. The
            #[doc = $waits]
            /// Each call records the event that other streams wait for, so the program may use the
            /// memory on cudarc's other streams, or drop it, right after the call. After
            /// `CudaContext::disable_event_tracking`, which is unsafe, the program must order its
            /// streams itself.
            ///
            /// # Errors
            /// [`Error::Length`] if the memory does not have as many elements as `shape`;
            /// [`Error::InvalidShape`]; [`Error::Device`]; [`Error::OtherContext`] if it belongs to
            /// another `CudaContext` than the stream; [`Error::OtherStream`] if the stream is not
            /// cudarc's, and from a call on another stream; [`Error::OtherThread`];
            /// [`Error::Capture`]; [`Error::Driver`], which may also be an earlier error that
            /// cudarc has stored.
            pub fn from_cudarc(
                stream: &'a Stream,
                slice: &'a $($mut)? impl $memory<T>,
                shape: impl IntoShape,
            ) -> Result<Self> {
                let shape = shape.into_shape("shape")?;
                let memory = Memory::dense::<T>(0, shape, stream.gpu().ordinal(), None);
                check_len(&memory, slice.len())?;
                let context = slice.stream().context().clone();
                borrow(stream, &context, memory, |stream| slice.$pointer(stream)).map(Self::of)
            }

            /// As [`from_cudarc`](Self::from_cudarc), with `row_stride` elements from the start of
            /// a row (the last dimension) to the start of the next. The memory may extend past the
            /// last row.
            ///
            /// # Errors
            /// As [`from_cudarc`](Self::from_cudarc), but [`Error::Length`] if the memory ends
            /// before the last row; [`Error::Stride`] if rows would overlap.
            pub fn from_cudarc_strided(
                stream: &'a Stream,
                slice: &'a $($mut)? impl $memory<T>,
                shape: impl IntoShape,
                row_stride: usize,
            ) -> Result<Self> {
                let shape = shape.into_shape("shape")?;
                let memory = Memory::strided::<T>(0, shape, row_stride, stream.gpu().ordinal())?;
                check_reach::<T>(&memory, slice.len())?;
                let context = slice.stream().context().clone();
                borrow(stream, &context, memory, |stream| slice.$pointer(stream)).map(Self::of)
            }
        }
    )+};
}
views! {
    View of CudarcMemory () by device_ptr:
        "stream waits for work of other streams that writes the memory.";
    ViewMut of CudarcMemoryMut (mut) by device_ptr_mut:
        "stream waits for work of other streams that reads or writes the memory.";
}

/// Code that must not compile, beside code that must.
///
/// A view borrows its slice, and a mutable view borrows it exclusively.
///
/// ```compile_fail,E0505
/// use cudarc::driver::CudaSlice;
/// use fused_loss::{Mse, Result, Stream, View};
///
/// fn loss(stream: &Stream, input: CudaSlice<f32>) -> Result<f32> {
///     let view = View::from_cudarc(stream, &input, [2, 3])?;
///     drop(input);
///     Mse::mean().forward(view, view, stream)?.item()
/// }
/// ```
///
/// ```compile_fail,E0502
/// use cudarc::driver::CudaSlice;
/// use fused_loss::{Result, Stream, View, ViewMut};
///
/// fn both(stream: &Stream, slice: &mut CudaSlice<f32>) -> Result<()> {
///     let view = View::from_cudarc(stream, slice, [2, 3])?;
///     let gradient = ViewMut::from_cudarc(stream, slice, [2, 3])?;
///     println!("{view:?} {gradient:?}");
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0515
/// use cudarc::driver::CudaSlice;
/// use fused_loss::{Result, Stream, View};
///
/// fn view(stream: Stream, slice: &CudaSlice<f32>) -> Result<View<'_, f32>> {
///     View::from_cudarc(&stream, slice, [2, 3])
/// }
/// ```
///
/// ```
/// use cudarc::driver::{CudaSlice, CudaViewMut};
/// use fused_loss::{Mse, Result, Stream, View, ViewMut};
///
/// fn loss(stream: &Stream, input: CudaSlice<f32>) -> Result<f32> {
///     let view = View::from_cudarc(stream, &input, [2, 3])?;
///     let loss = Mse::mean().forward(view, view, stream)?;
///     drop(input);
///     loss.item()
/// }
///
/// fn one_after_the_other(stream: &Stream, slice: &mut CudaViewMut<'_, f32>) -> Result<()> {
///     println!("{:?}", View::from_cudarc(stream, slice, [2, 3])?);
///     println!("{:?}", ViewMut::from_cudarc(stream, slice, [2, 3])?);
///     Ok(())
/// }
///
/// fn view<'a>(stream: &'a Stream, slice: &'a CudaSlice<f32>) -> Result<View<'a, f32>> {
///     View::from_cudarc(stream, slice, [2, 3])
/// }
/// ```
///
/// cudarc has element types for which this library has no kernels.
///
/// ```compile_fail,E0277
/// use cudarc::driver::CudaSlice;
/// use fused_loss::{Result, Stream, View};
///
/// fn view<'a>(stream: &'a Stream, slice: &'a CudaSlice<u64>) -> Result<View<'a, u64>> {
///     View::from_cudarc(stream, slice, [2, 3])
/// }
/// ```
#[cfg(doctest)]
mod refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_view_takes_all_elements() {
        let shape = [2, 3].into_shape("shape").unwrap();
        let memory = Memory::dense::<f32>(0, shape, 0, None);
        assert_eq!(check_len(&memory, 6), Ok(()));
        for (got, message) in [
            (5, "slice: expected 6 elements, got 5"),
            (7, "slice: expected 6 elements, got 7"),
            (0, "slice: expected 6 elements, got 0"),
        ] {
            assert_eq!(check_len(&memory, got).unwrap_err().to_string(), message);
        }
        let none = Memory::dense::<f32>(0, [0, 3].into_shape("shape").unwrap(), 0, None);
        assert_eq!(check_len(&none, 0), Ok(()));
        assert!(check_len(&none, 1).is_err());
    }

    #[test]
    fn a_strided_view_ends_with_its_last_row() {
        let shape = [2, 3].into_shape("shape").unwrap();
        let memory = Memory::strided::<f32>(0, shape, 8, 0).unwrap();
        assert_eq!(check_reach::<f32>(&memory, 11), Ok(()));
        assert_eq!(check_reach::<f32>(&memory, 16), Ok(()));
        assert_eq!(
            check_reach::<f32>(&memory, 10).unwrap_err().to_string(),
            "slice: expected 11 elements, got 10"
        );
        let none = Memory::strided::<f32>(0, [0, 3].into_shape("shape").unwrap(), 8, 0).unwrap();
        assert_eq!(check_reach::<f32>(&none, 0), Ok(()));
    }
}
