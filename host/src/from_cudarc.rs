//! Devices, streams and memory of cudarc's.

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

/// Memory of cudarc's that a call can read: a [`CudaSlice`], a [`CudaView`] or a [`CudaViewMut`].
///
/// Sealed: anybody may implement [`DevicePtr`], for any address.
pub trait CudarcMemory<T>: DevicePtr<T> + sealed::Sealed {}
impl<T> CudarcMemory<T> for CudaSlice<T> {}
impl<T> CudarcMemory<T> for CudaView<'_, T> {}
impl<T> CudarcMemory<T> for CudaViewMut<'_, T> {}

/// Memory of cudarc's that a call can write: a [`CudaSlice`] or a [`CudaViewMut`].
pub trait CudarcMemoryMut<T>: CudarcMemory<T> + DevicePtrMut<T> {}
impl<T> CudarcMemoryMut<T> for CudaSlice<T> {}
impl<T> CudarcMemoryMut<T> for CudaViewMut<'_, T> {}

impl Gpu {
    /// The GPU that a context of cudarc's is on.
    ///
    /// # Errors
    /// Those of [`Gpu::new`]; [`Error::OtherContext`] where it is not the device's primary context,
    /// which `CudaContext::new` returns and this library works in.
    pub fn from_cudarc(context: &CudaContext) -> Result<Self> {
        // A number that does not fit is refused like any other that no device has.
        let gpu = Gpu::new(u32::try_from(context.ordinal()).unwrap_or(u32::MAX))?;
        if context.cu_ctx().cast() == gpu.context() {
            return Ok(gpu);
        }
        Err(Error::OtherContext { argument: "context", expected: "the device's primary context" })
    }
}

impl Stream {
    /// A stream of cudarc's, which is kept until this one, its clones, and the library's memory
    /// that was used on it are dropped.
    ///
    /// What [`from_raw`](Self::from_raw) says of `CU_STREAM_PER_THREAD` holds for
    /// `CudaContext::per_thread_stream`. A call that would be captured into a graph is refused.
    ///
    /// # Errors
    /// Those of [`Gpu::from_cudarc`]; [`Error::OutOfMemory`] where memory is short.
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<Self> {
        let gpu = Gpu::from_cudarc(stream.context())?;
        let workspace = Workspace::new(&gpu)?;
        let (handle, owner) = (stream.cu_stream().cast(), Owner::Cudarc(stream.clone()));
        Ok(Self::with(&gpu, handle, owner, workspace))
    }
}

/// Moves `memory`, which is laid out from the address 0 on, to the address that cudarc's `pointer`
/// returns for calls on `stream`. `context` is that of the memory.
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
    // Each `CudaContext` counts its own streams, and uses events only where it has created some.
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

/// Refuses memory of cudarc's with more or fewer elements than a dense view has.
fn check_len(memory: &Memory<'_>, got: usize) -> Result<()> {
    let expected = memory.shape.len();
    if got == expected { Ok(()) } else { Err(Error::Length { argument: "slice", expected, got }) }
}

/// Refuses memory of cudarc's, elements of `T`, that ends before the last row of a view does.
fn check_reach<T>(memory: &Memory<'_>, got: usize) -> Result<()> {
    let expected = memory.bytes / size_of::<T>();
    if got >= expected { Ok(()) } else { Err(Error::Length { argument: "slice", expected, got }) }
}

macro_rules! views {
    ($($view:ident of $memory:ident ($($mut:ident)?) by $pointer:ident: $waits:literal;)+) => {$(
        impl<'a, T: Element> $view<'a, T> {
            /// Memory of cudarc's, in row-major order without gaps, for calls on `stream`, which
            /// [`Stream::from_cudarc`] has made.
            ///
            /// cudarc's events keep streams in order, as they do for cudarc's own functions. The
            #[doc = $waits]
            /// Each call records the event that others wait for: the memory may be used on other
            /// streams of cudarc's, or dropped, right after the call. Where the program has called
            /// `CudaContext::disable_event_tracking`, which is unsafe, it orders its streams
            /// itself.
            ///
            /// # Errors
            /// [`Error::Length`] where the memory has not as many elements as `shape`;
            /// [`Error::InvalidShape`]; [`Error::Device`], [`Error::OtherContext`] where it is of
            /// another `CudaContext` than the stream; [`Error::OtherStream`] where the stream is
            /// not cudarc's, and from a call on another stream; [`Error::OtherThread`];
            /// [`Error::Capture`]; [`Error::Driver`], also with an error that cudarc has kept since
            /// before.
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
            /// a row (the last dimension) to the start of the next. Behind the last row there may
            /// be more.
            ///
            /// # Errors
            /// As [`from_cudarc`](Self::from_cudarc), but [`Error::Length`] where the memory ends
            /// before the last row; [`Error::Stride`] where rows would overlap.
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

/// What the compiler refuses, beside what it takes.
///
/// A view borrows its slice, and a view to write borrows it alone.
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
/// The library has no kernels for some numbers that cudarc has.
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
