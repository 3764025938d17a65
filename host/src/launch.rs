//! Queues a kernel.

use crate::driver::{LaunchAttribute, LaunchConfig, check};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::plan::{Launch, packed};
use crate::stream::Stream;
use cust::sys::cuLaunchKernelEx;
use kernels_gpu::abi::{CACHE_LINE, Dtype, Matrix};
use kernels_gpu::{Entry, Family};
use std::ffi::c_void;

/// One argument of a call: its name in errors, and its memory.
pub(crate) type Argument<'a> = (&'static str, Memory<'a>);

/// Refuses a stream that takes no calls on this thread or at present, arguments that are on another
/// device than the stream or were borrowed for another stream, and written memory that overlaps
/// other memory of the call.
pub(crate) fn check_memory(
    stream: &Stream,
    reads: &[Argument<'_>],
    writes: &[Argument<'_>],
) -> Result<()> {
    stream.queue().check_call()?;
    for &(argument, memory) in reads.iter().chain(writes) {
        memory.check_place(argument, stream.queue())?;
    }
    for (index, &(argument, memory)) in writes.iter().enumerate() {
        for &(other, others) in reads.iter().chain(&writes[..index]) {
            if memory.overlaps(&others) {
                return Err(Error::Overlap { argument, other });
            }
        }
    }
    Ok(())
}

/// Queues the family's kernel for `dtype` on `stream`, after all other work that uses the memory.
///
/// # Safety
/// `args` meets the conditions of the kernel for a launch of that shape, once earlier work is done;
/// the memory it names is in `reads` and `writes`.
pub(crate) unsafe fn launch<A: Copy>(
    stream: &Stream,
    family: &'static Family<A>,
    dtype: Dtype,
    shape: Launch,
    args: &A,
    reads: &[Argument<'_>],
    writes: &[Argument<'_>],
) -> Result<()> {
    let entry = family
        .entry(dtype)
        .ok_or(Error::MissingKernel { name: family.name, module: dtype.name() })?;
    for (_, memory) in reads {
        memory.before_read(stream.queue())?;
    }
    for (_, memory) in writes {
        memory.before_write(stream.queue())?;
    }
    // SAFETY: the caller's condition.
    unsafe { launch_entry(stream, entry, shape, args)? };
    reads.iter().chain(writes).try_for_each(|(_, memory)| memory.after_launch())
}

/// Queues a kernel on `stream`.
///
/// # Safety
/// `args` has the entry's type, and meets the conditions of its kernel for a launch of that shape,
/// once earlier work is done.
pub(crate) unsafe fn launch_entry<A: Copy>(
    stream: &Stream,
    entry: &'static Entry,
    shape: Launch,
    args: &A,
) -> Result<()> {
    debug_assert_eq!(entry.args_size, size_of::<A>());
    debug_assert!(shape.threads <= entry.block && shape.threads.is_multiple_of(32));
    let _current = stream.gpu().bind()?;
    let function = stream.gpu().function(entry)?;
    let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
    // The two attributes do not combine. A cooperative launch begins when the previous one is done,
    // so the kernel's wait for that one ends at once.
    let (attribute, count) = if shape.cooperative {
        (LaunchAttribute::COOPERATIVE, 1)
    } else {
        (LaunchAttribute::OVERLAPS, stream.gpu().overlaps().into())
    };
    let config = LaunchConfig {
        grid: [shape.blocks, 1, 1],
        block: [shape.threads, 1, 1],
        shared_bytes: shape.shared_bytes,
        stream: stream.handle(),
        attributes: &attribute,
        count,
    };
    // SAFETY: the kernel takes one argument of type `A`, which the driver copies before it returns,
    // as it does the attribute; where launches overlap, the kernel waits for the one before; the
    // rest is the caller's condition.
    check("cuLaunchKernelEx", unsafe {
        cuLaunchKernelEx(&config.raw(), function.0, params.as_mut_ptr(), std::ptr::null_mut())
    })
}

/// The largest power of two, in bytes and up to a cache line, to which all rows of the non-null
/// tensors are aligned.
pub(crate) fn alignment<'a>(
    tensors: impl IntoIterator<Item = &'a Matrix>,
    element_bytes: usize,
) -> usize {
    let exist = tensors.into_iter().filter(|tensor| tensor.start != 0);
    let bits = exist.fold(u64::from(CACHE_LINE), |bits, tensor| {
        bits | tensor.start | (tensor.row_stride * element_bytes as u64)
    });
    1 << bits.trailing_zeros()
}

/// The layout of rows of `cols` elements in the tensors that are read and in their gradients, in
/// the form that the plan of packed rows takes, for losses whose kernels all have several lanes per
/// row.
pub(crate) fn packed_rows(
    cols: u64,
    element_bytes: usize,
    reads: [Matrix; 2],
    writes: [Matrix; 2],
) -> packed::Rows {
    // The stride of a single row may be any number.
    let bytes = |of: Matrix| (of.row_stride as usize).wrapping_mul(element_bytes);
    let strides = |of: Matrix| if of.start == 0 { 0 } else { bytes(of) };
    let is_alike =
        |(to, from): (&Matrix, &Matrix)| to.start == 0 || rows_are_alike(to, from, element_bytes);
    packed::Rows {
        cols: cols as usize,
        element_bytes,
        alignment: alignment(&reads, element_bytes),
        store_alignment: alignment(&writes, element_bytes),
        alike: writes.iter().zip(&reads).all(is_alike),
        strides: reads.map(strides),
        store_strides: writes.map(strides),
        reads_gaps: true,
        is_elementwise: false,
        has_lane_rows: false,
        has_wide_rows: false,
        tiles: if reads[1].start == 0 { 1 } else { 2 },
    }
}

/// Whether the rows of both tensors have the same offset from a 16-byte boundary.
pub(crate) fn rows_are_alike(rows: &Matrix, others: &Matrix, element_bytes: usize) -> bool {
    let apart = (rows.row_stride ^ others.row_stride) * element_bytes as u64;
    (rows.start ^ others.start).is_multiple_of(16) && apart.is_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_at(start: u64, row_stride: u64) -> Matrix {
        Matrix { start, row_stride }
    }

    /// The alignment of every row of every tensor, up to a cache line. A missing tensor has no
    /// rows.
    #[test]
    fn rows_are_aligned_as_the_least_of_them() {
        let alignment = |tensors: &[Matrix]| alignment(tensors, 4);
        assert_eq!(alignment(&[]), 128);
        assert_eq!(alignment(&[rows_at(0x1080, 64)]), 128);
        assert_eq!(alignment(&[rows_at(0x1080, 32), rows_at(0x4000, 64)]), 128);
        assert_eq!(alignment(&[rows_at(0x1080, 32), rows_at(0x4010, 64)]), 16);
        assert_eq!(alignment(&[rows_at(0x1040, 16), rows_at(0x1040, 16)]), 64);
        assert_eq!(alignment(&[rows_at(0x1010, 4), rows_at(0x1010, 4)]), 16);
        assert_eq!(alignment(&[rows_at(0x1080, 33)]), 4);
        assert_eq!(alignment(&[rows_at(0x1080, 32), rows_at(0, 1)]), 128);
    }

    /// The first rows have the same offset from a boundary, and so do all that follow.
    #[test]
    fn rows_that_are_alike() {
        let alike = |one, other| rows_are_alike(&one, &other, 4);
        assert!(alike(rows_at(0x1004, 5), rows_at(0x2004, 5)));
        assert!(alike(rows_at(0x1004, 5), rows_at(0x2014, 9)));
        assert!(!alike(rows_at(0x1004, 5), rows_at(0x2008, 5)));
        assert!(!alike(rows_at(0x1004, 5), rows_at(0x2004, 6)));
        assert!(!alike(rows_at(0x1000, 4), rows_at(0x1000, 6)));
        assert!(!alike(rows_at(0x1008, 4), rows_at(0x1000, 4)));
    }
}
