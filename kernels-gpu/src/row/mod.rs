//! The engine for losses over rows. It loads rows at the speed of the memory, whatever their
//! length, number and alignment. The loss itself is a [`RowLoss`].
//!
//! The engine has one kernel so far, [`stream`]: a forward pass over long rows.

mod ring;
mod segment;
mod span;
mod split_row;
pub(crate) mod stream;
mod warp_split;

use crate::abi::{Matrix, StreamArgs};
use crate::element::{Element, MAX_LANES};
use crate::reduce::Workspace;
use cuda_std::memory::{Vec16, load};
use cuda_std::warp::WARP_SIZE;
pub(crate) use warp_split::Split;

/// Terms that a row adds to the sums over the grid.
pub(crate) const TERMS: usize = 4;

/// A column that no row has: it means "none".
pub(crate) const NO_COLUMN: u32 = u32::MAX;

/// The type that a loss computes in.
pub(crate) type Real<L> = <<L as RowLoss>::Element as Element>::Real;

/// A loss of a row: its statistics, which can be merged, and a value that is computed from them.
pub(crate) trait RowLoss {
    /// The element type of the tensors.
    type Element: Element;
    /// What is loaded once per row, such as its class.
    type Target;
    /// What a thread accumulates over its part of a row.
    type Stats: RowStats<Real = Real<Self>>;
    /// Tensors that rows are read from: 1 or 2.
    const TENSORS: u32;

    /// Whether a tile at the beginning or the end of a row is accumulated like a whole tile, with
    /// [`padding`](Self::padding) in place of vectors beyond the row. Only losses that read one
    /// tensor may set this.
    const PADS: bool = false;

    /// A vector that [`accumulate`](Self::accumulate) without `EXACT` may take beside vectors of a
    /// row, and that changes nothing. Used only where the loss [pads](Self::PADS).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn padding() -> Vec16 {
        Vec16::default()
    }

    /// The tensors. The second is ignored if [`TENSORS`](Self::TENSORS) is 1.
    fn tensors(&self) -> [Matrix; 2];

    /// The number of rows, and of elements in a row.
    fn shape(&self) -> (u64, u32);

    /// How warps share the rows.
    fn layout(&self) -> &StreamArgs;

    /// Waits for the launches before this one. `first` is the address of the bytes that the warp
    /// loads first, and their number: it may prefetch them before it waits.
    ///
    /// # Safety
    /// The bytes are in global memory; all lanes of the warp call it.
    unsafe fn begin(&self, first: (u64, u32));

    /// The target of a row.
    ///
    /// # Safety
    /// 1. The tensors have rows and elements as [`shape`](Self::shape) says, in global memory,
    ///    aligned for their type.
    /// 2. The row is one of these.
    unsafe fn target(&self, row: u64) -> Self::Target;

    /// The column whose element [`finish_row`](Self::finish_row) needs, or [`NO_COLUMN`].
    fn picked(&self, target: &Self::Target) -> u32;

    /// Adds N vectors of each tensor to the statistics. `columns[k]` is the column of the first
    /// element of vector `k`; its first `counts[k]` elements belong to the row, the others are −∞.
    /// With `WHOLE`, all elements of all vectors belong to the row. With `EXACT`, the statistics
    /// pass [`is_exact`](Self::is_exact) or are as accurate as they can be, at the price of more
    /// instructions. Returns false if nothing was added because N is more than 1 and the vectors
    /// have to be added one by one.
    ///
    /// # Safety
    /// [`target`](Self::target)'s condition 1, and these columns are the row's.
    unsafe fn accumulate<const N: usize, const WHOLE: bool, const EXACT: bool>(
        &self,
        stats: &mut Self::Stats,
        x: [Vec16; N],
        t: [Vec16; N],
        columns: [u32; N],
        counts: [u32; N],
    ) -> bool;

    /// Whether the statistics of a row, or of a warp's part of one, are as accurate as they would
    /// be with `EXACT`. If not, the part is computed again with `EXACT`.
    fn is_exact(stats: &Self::Stats) -> bool;

    /// Writes the results of a row, and returns its terms.
    ///
    /// # Safety
    /// As [`target`](Self::target), and one thread calls this for the row.
    unsafe fn finish_row(
        &self,
        row: u64,
        target: &Self::Target,
        picked: Real<Self>,
        stats: Self::Stats,
        workspace: Workspace,
    ) -> [f64; TERMS];

    /// The factor by which differences of elements are multiplied before their exponentials are
    /// taken, when statistics are merged.
    fn scale(&self) -> Real<Self>;

    /// Whether the call uses the sums over the grid.
    fn needs_sums(&self) -> bool;

    /// Writes the results of the whole input from the sums of the rows' terms.
    ///
    /// # Safety
    /// As [`target`](Self::target); one thread of the grid calls it, when all blocks have arrived.
    unsafe fn finish(&self, sums: [f64; TERMS], workspace: Workspace);
}

/// Statistics of a part of a row. Parts merge in any grouping; the result may differ by rounding.
pub(crate) trait RowStats: Copy {
    /// The type that the statistics are computed in.
    type Real: crate::element::Real;
    /// Whether statistics that [begin](Self::begin) must be [settled](Self::settled) before they
    /// are used.
    const LAGS: bool;
    /// The statistics of an empty part.
    fn none() -> Self;
    /// The statistics of an empty part, for [`RowLoss::accumulate`] without `EXACT`. They must be
    /// [settled](Self::settled) before any other use. `near` is the [top](Self::top) of statistics
    /// of elements that may be similar; 0 if there are none.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn begin(near: u32) -> Self {
        let _ = near;
        Self::none()
    }
    /// The value that [`begin`](Self::begin) takes as `near`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn top(self) -> u32 {
        0
    }
    /// Turns what [`begin`](Self::begin) started into ordinary statistics.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn settled(self) -> Self {
        self
    }
    /// Merges these statistics with `other`. `scale` is [`RowLoss::scale`].
    fn with(self, other: Self, scale: Self::Real) -> Self;
    /// Merges the statistics of each group of `lanes` neighbouring lanes of the warp, a power of
    /// two, and returns the result in each lane. All lanes call it, and all groups have the same
    /// statistics.
    fn over_lanes(self, lanes: u32, scale: Self::Real) -> Self;
    /// The same over the whole warp, for statistics that have not been [settled](Self::settled).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn settled_over_warp(self, scale: Self::Real) -> Self {
        self.settled().over_lanes(WARP_SIZE, scale)
    }
    /// The statistics as numbers, to exchange them through memory.
    fn parts(self) -> [Self::Real; 4];
    /// The statistics that have these [`parts`](Self::parts).
    fn from_parts(parts: [Self::Real; 4]) -> Self;
}

/// The address of a row of a tensor.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn row_address<E: Element>(tensor: Matrix, row: u64) -> u64 {
    tensor.start + row * (tensor.row_stride * size_of::<E>() as u64)
}

/// An element of a row.
///
/// # Safety
/// It is in global memory.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn load_element<E: Element>(row: u64, column: u32) -> E {
    // SAFETY: the caller's condition.
    unsafe { load((row as *const E).wrapping_add(column as usize)) }
}

/// A vector whose first element is `element`; the others are −∞.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn vector_of<E: Element>(element: E) -> Vec16 {
    let mut elements = [E::LOWEST; MAX_LANES];
    elements[0] = element;
    E::pack(elements)
}
