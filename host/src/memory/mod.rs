//! Memory on a GPU: what the library owns, who uses it, and what a call is given.

mod buffer;
#[cfg(feature = "cudarc")]
mod events;
mod fault;
mod usage;

pub(crate) use buffer::Buffer;
#[cfg(feature = "cudarc")]
pub(crate) use events::Events;
pub(crate) use fault::{Fault, Writes};
pub(crate) use usage::Usage;

use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::shape::Shape;
use kernels_gpu::abi::Matrix;
use std::sync::Arc;

/// The memory of an argument, without its element type.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub(crate) address: u64,
    pub(crate) shape: Shape,
    /// Elements from the start of a row to the start of the next.
    pub(crate) row_stride: usize,
    /// Elements from one element of a row to the next: 1, or 0 if one element is repeated.
    pub(crate) element_stride: usize,
    /// Bytes from the first element to the end of the last.
    pub(crate) bytes: usize,
    pub(crate) device: u32,
    /// Which streams use it, if the library owns it.
    pub(crate) usage: Option<&'a Usage>,
    /// The event by which cudarc orders its uses, if cudarc owns it.
    #[cfg(feature = "cudarc")]
    pub(crate) events: Option<Events<'a>>,
}

impl<'a> Memory<'a> {
    /// Rows without gaps.
    pub(crate) fn dense<T>(
        address: u64,
        shape: Shape,
        device: u32,
        usage: Option<&'a Usage>,
    ) -> Self {
        let (row_stride, bytes) = (shape.cols(), shape.len() * size_of::<T>());
        Memory {
            address,
            shape,
            row_stride,
            element_stride: 1,
            bytes,
            device,
            usage,
            #[cfg(feature = "cudarc")]
            events: None,
        }
    }

    /// Rows of memory that the library does not own.
    pub(crate) fn strided<T>(
        address: u64,
        shape: Shape,
        row_stride: usize,
        device: u32,
    ) -> Result<Self> {
        let (rows, cols) = (shape.rows(), shape.cols());
        if row_stride < cols {
            let (argument, expected) = ("row_stride", format!("at least {cols}, a row"));
            return Err(Error::Stride { argument, expected, got: row_stride });
        }
        let bytes = (rows.saturating_sub(1))
            .checked_mul(row_stride)
            .and_then(|elements| elements.checked_add(cols))
            .and_then(|elements| elements.checked_mul(size_of::<T>()))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let Some(bytes) = bytes else {
            let (argument, expected) = ("row_stride", "rows that memory could hold".to_owned());
            return Err(Error::Stride { argument, expected, got: row_stride });
        };
        let bytes = if shape.is_empty() { 0 } else { bytes };
        Ok(Memory { row_stride, bytes, ..Self::dense::<T>(address, shape, device, None) })
    }

    /// Whether the elements are in order without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        self.element_stride == 1 && (self.row_stride == self.shape.cols() || self.shape.rows() <= 1)
    }

    /// Refuses memory that no kernel may get.
    pub(crate) fn check<T>(&self, argument: &'static str) -> Result<()> {
        self.check_aligned(argument, size_of::<T>())
    }

    /// [`check`](Self::check) for elements of `bytes` each.
    pub(crate) fn check_aligned(&self, argument: &'static str, bytes: usize) -> Result<()> {
        let len = self.shape.len();
        if self.address == 0 && len > 0 {
            return Err(Error::NullPointer { argument, len });
        }
        if !self.address.is_multiple_of(bytes as u64) {
            return Err(Error::Misaligned { argument, expected: bytes, got: self.address });
        }
        Ok(())
    }

    /// Refuses memory of another device than that of `queue`, and cudarc's memory if it was
    /// borrowed for calls on another stream.
    pub(crate) fn check_place(&self, argument: &'static str, queue: &Queue) -> Result<()> {
        let expected = queue.gpu().ordinal();
        if self.device != expected {
            return Err(Error::Device { argument, expected, got: self.device });
        }
        #[cfg(feature = "cudarc")]
        if let Some(events) = &self.events {
            events.check_stream(argument, queue)?;
        }
        Ok(())
    }

    /// Orders the next work on `queue`, which reads the memory, after the last write.
    pub(crate) fn before_read(&self, queue: &Arc<Queue>) -> Result<()> {
        self.usage.map_or(Ok(()), |usage| usage.before_read(queue))
    }

    /// Orders the next work on `queue`, which writes the memory, after all earlier uses.
    pub(crate) fn before_write(&self, queue: &Arc<Queue>) -> Result<()> {
        self.usage.map_or(Ok(()), |usage| usage.before_write(queue))
    }

    /// Records that a launch that uses the memory was queued.
    pub(crate) fn after_launch(&self) -> Result<()> {
        #[cfg(feature = "cudarc")]
        if let Some(events) = &self.events {
            events.record()?;
        }
        Ok(())
    }

    /// Refuses one element repeated for many.
    pub(crate) fn check_elements(&self, argument: &'static str) -> Result<()> {
        if self.element_stride == 1 {
            return Ok(());
        }
        let expected = "1, elements beside each other".to_owned();
        Err(Error::Stride { argument, expected, got: self.element_stride })
    }

    /// Refuses gaps between rows, for arguments whose stride the kernels do not take.
    pub(crate) fn check_dense(&self, argument: &'static str) -> Result<()> {
        if self.is_dense() {
            return Ok(());
        }
        let expected = format!("{}, rows without gaps", self.shape.cols());
        Err(Error::Stride { argument, expected, got: self.row_stride })
    }

    /// Whether both have a byte in common.
    pub(crate) fn overlaps(&self, other: &Memory<'_>) -> bool {
        // The address of a raw view may be wrong, so the sum may overflow.
        let end = |memory: &Memory<'_>| memory.address.saturating_add(memory.bytes as u64);
        self.bytes > 0
            && other.bytes > 0
            && self.address < end(other)
            && other.address < end(self)
            && !self.lies_between_rows_of(other)
    }

    /// Whether the rows are as far apart as the other's and are in the gaps between those, as
    /// adjacent columns of one matrix are.
    pub(crate) fn lies_between_rows_of(&self, other: &Memory<'_>) -> bool {
        if self.element_stride != 1 || other.element_stride != 1 || self.bytes.min(other.bytes) == 0
        {
            return false;
        }
        // The bytes from row to row, and the bytes of a row.
        let of_rows = |memory: &Memory<'_>| {
            let (rows, cols) = (memory.shape.rows(), memory.shape.cols());
            let element = memory.bytes / ((rows - 1) * memory.row_stride + cols);
            // For a single row, nothing else limits the stride.
            (memory.row_stride.saturating_mul(element) as u64, (cols * element) as u64)
        };
        let ((stride, row), (stride_of_other, row_of_other)) = (of_rows(self), of_rows(other));
        if stride != stride_of_other {
            return false;
        }
        let ahead = (i128::from(other.address) - i128::from(self.address))
            .rem_euclid(i128::from(stride)) as u64;
        ahead >= row && ahead + row_of_other <= stride
    }

    /// The elements of `shape` that start `offset` bytes after the first element.
    pub(crate) fn part<T>(self, offset: u64, shape: Shape) -> Self {
        Self::dense::<T>(self.address + offset, shape, self.device, self.usage)
    }

    /// The memory as the kernels take it. The stride of a single row may be any number, so the
    /// kernels get one that they can multiply.
    pub(crate) fn matrix(&self) -> Matrix {
        let is_one = self.shape.rows() <= 1;
        let row_stride =
            if is_one { self.row_stride.min(self.shape.cols()) } else { self.row_stride };
        Matrix { start: self.address, row_stride: row_stride as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::IntoShape;

    #[test]
    fn memory_overlaps_where_it_shares_a_byte() {
        let memory = |address, len: usize| {
            Memory::dense::<f32>(address, [len].into_shape("x").unwrap(), 0, None)
        };
        assert!(memory(0x100, 4).overlaps(&memory(0x10c, 1)));
        assert!(!memory(0x100, 4).overlaps(&memory(0x110, 4)));
        assert!(!memory(0x100, 4).overlaps(&memory(0x104, 0)));
        assert!(!memory(0x100, 4).overlaps(&memory(u64::MAX - 3, 4)));
    }

    #[test]
    fn columns_of_one_matrix_share_no_byte() {
        let columns = |from: u64, cols: usize, stride: usize| {
            let shape = [4, cols].into_shape("x").unwrap();
            Memory::strided::<f32>(0x100 + 4 * from, shape, stride, 0).unwrap()
        };
        let left = columns(0, 4, 8);
        for (other, overlaps) in [
            (columns(4, 4, 8), false),
            (columns(5, 2, 8), false),
            (columns(12, 4, 8), false),
            (columns(3, 4, 8), true),
            (columns(4, 5, 8), true),
            (columns(4, 4, 9), true),
            (columns(8, 4, 8), true),
            // A single row, with a stride larger than any memory.
            (Memory::strided::<f32>(0x104, Shape::row(4), usize::MAX, 0).unwrap(), true),
        ] {
            assert_eq!(left.overlaps(&other), overlaps, "{:?}", other.address);
            assert_eq!(other.overlaps(&left), overlaps, "{:?}", other.address);
        }
    }
}
