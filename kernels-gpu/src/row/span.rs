//! Where the vectors of a row are.
//!
//! A vector is 16 bytes, aligned to 16 bytes in memory. Vectors of a row are numbered from the
//! cache line that the row begins in, so that vector 0 may be before the row. The row's head is the
//! elements before its first whole vector, its tail those after its last: fewer than 16 bytes each.

use super::row_address;
use crate::abi::{CACHE_LINE, Matrix, VECTOR_BYTES};
use crate::element::Element;
use core::marker::PhantomData;
use cuda_std::warp::WARP_SIZE;

/// Vectors of a tile that one thread loads.
pub(crate) const BATCH: usize = 4;

/// Vectors of a tile that one warp loads.
pub(crate) const WARP_VECTORS: u32 = WARP_SIZE * BATCH as u32;

/// The vectors of a row.
#[derive(Clone, Copy)]
pub(crate) struct RowSpan<E> {
    /// The address of vector 0.
    line: u64,
    /// The first whole vector of the row.
    first: u32,
    /// One past the last whole vector.
    end: u32,
    /// Elements between the beginning of vector 0 and the row.
    skipped: u32,
    cols: u32,
    element: PhantomData<E>,
}

impl<E: Element> RowSpan<E> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(tensor: Matrix, row: u32, cols: u32) -> Self {
        let size = size_of::<E>() as u64;
        let start = row_address::<E>(tensor, row.into());
        let offset = start % u64::from(CACHE_LINE);
        let vector = u64::from(VECTOR_BYTES);
        RowSpan {
            line: start - offset,
            first: offset.div_ceil(vector) as u32,
            end: ((offset + u64::from(cols) * size) / vector) as u32,
            skipped: (offset / size) as u32,
            cols,
            element: PhantomData,
        }
    }

    /// The address of a vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn address(&self, vector: u32) -> u64 {
        self.line + u64::from(vector) * u64::from(VECTOR_BYTES)
    }

    /// The address of vector `vector` or, if that is before the row, of the row's first vector; and
    /// the number of bytes from there to the end of the row's last vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn bytes_from(&self, vector: u32) -> (u64, u32) {
        let vector = vector.max(self.first);
        (self.address(vector), self.end.saturating_sub(vector) * VECTOR_BYTES)
    }

    /// The column of a vector's first element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn column(&self, vector: u32) -> u32 {
        (vector * E::LANES).wrapping_sub(self.skipped)
    }

    /// Whether the row has all elements of a vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has(&self, vector: u32) -> bool {
        vector >= self.first && vector < self.end
    }

    /// Whether the row [has](Self::has) all vectors of a warp's part of a tile, which begins with
    /// vector `first`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_tile(&self, first: u32) -> bool {
        first >= self.first && first + WARP_VECTORS <= self.end
    }

    /// Whether the row [has](Self::has) any of these vectors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn has_of_tile(&self, first: u32) -> bool {
        first < self.end && first + WARP_VECTORS > self.first
    }

    /// The column of element `index` of head and tail together, if they have that many elements.
    /// Together they have fewer elements than a warp has lanes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn head_and_tail(&self, index: u32) -> Option<u32> {
        // A row without a whole vector consists of head and tail.
        let head = self.column(self.first).min(self.cols);
        let tail = self.column(self.end.max(self.first)).min(self.cols);
        let column = if index < head { index } else { index - head + tail };
        if column < self.cols { Some(column) } else { None }
    }
}
