//! A forward pass over long rows: each warp streams its share of all rows through a ring in shared
//! memory ([`super::ring`]).
//!
//! Blocks are persistent. Warps have equal shares of all tiles, so that rows are split among warps
//! ([`super::split_row`]). No warp waits for others before the end of its share.

use super::ring::{Loader, Ring};
use super::segment::{Segment, Segments};
use super::span::{BATCH, RowSpan, WARP_VECTORS};
use super::split_row::{SplitRow, publish};
use super::{NO_COLUMN, Real, RowLoss, RowStats, TERMS, load_element, row_address, vector_of};
use crate::abi::{STREAM_DEPTH, WARP_TILE_BYTES};
use crate::element::{Element, MAX_LANES, Real as _, unrolled};
use crate::reduce::{Workspace, grid_sums};
use cuda_std::hint::opaque;
use cuda_std::memory::{Vec16, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, lane_id};

/// Computes all rows, and their sums over the grid.
///
/// # Safety
/// 1. The tensors of the loss are as [`RowLoss::target`] says.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions, and what the loss writes overlaps
///    nothing else.
/// 3. The launch fits [`RowLoss::layout`], and has at most `abi::MAX_STREAM_BLOCKS` blocks of
///    `abi::STREAM_BLOCK` threads, with dynamic shared memory for the rings of their warps.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn stream<L: RowLoss>(loss: &L, workspace: Workspace) {
    let (layout, (rows, cols)) = (loss.layout(), loss.shape());
    let mut segments = Segments::of_warp(layout, rows as u32);
    // SAFETY: conditions 1 and 3.
    let mut tiles = unsafe {
        loss.begin(first_bytes(loss, segments));
        Tiles::new(loss, segments)
    };
    let mut terms = [0.0; TERMS];
    let mut near = 0;
    while segments.has_next() {
        let segment = segments.next();
        let row = u64::from(segment.row);
        let span = RowSpan::new(loss.tensors()[0], segment.row, cols);
        let ends_row = segment.end == layout.row_tiles;
        // SAFETY: the kernel's conditions; the tiles of the segment are next in the ring.
        unsafe {
            let target = loss.target(row);
            let picked = load_picked(loss, row, &target, ends_row && lane_id() == 0);
            let stats = tiles.accumulate(loss, &span, segment, near);
            let mut stats = stats.settled_over_warp(loss.scale());
            if !L::is_exact(&stats) {
                let exact = tiles.accumulate_again(loss, &span, segment);
                stats = exact.over_lanes(WARP_SIZE, loss.scale());
            }
            near = stats.top();
            if segment.begin > 0 {
                let split_row = SplitRow::new(loss, segment.row, workspace);
                stats = if ends_row {
                    split_row.merge(loss, stats)
                } else {
                    split_row.merge_block(loss, stats)
                };
            }
            if !ends_row {
                publish(workspace, stats);
            } else if lane_id() == 0 {
                let of_row = loss.finish_row(row, &target, picked, stats, workspace);
                unrolled!(for term in 0..TERMS; { terms[term] += of_row[term]; });
            }
        }
        segments.advance(layout);
    }
    if loss.needs_sums() {
        // SAFETY: the kernel's conditions; all threads of the grid call it, once.
        unsafe { grid_sums(terms, workspace, |sums| loss.finish(sums, workspace)) };
    }
}

/// The address of the bytes that a warp loads first, and how many of them belong to the row.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn first_bytes<L: RowLoss>(loss: &L, segments: Segments) -> (u64, u32) {
    let Segment { row, begin, end } = segments.next();
    if !segments.has_next() {
        return (0, 0);
    }
    let span = RowSpan::<L::Element>::new(loss.tensors()[0], row, loss.shape().1);
    let first = begin * WARP_VECTORS;
    let (from, bytes) = span.bytes_from(first);
    (from, bytes.min((end - begin) * WARP_TILE_BYTES))
}

/// The tiles of a warp, and the ring that they pass through.
struct Tiles<L: RowLoss> {
    ring: Ring<L>,
    loader: Loader<L>,
    /// The slot of the next tile.
    slot: u32,
}

impl<L: RowLoss> Tiles<L> {
    /// Starts to fill the ring.
    ///
    /// # Safety
    /// [`stream`]'s conditions 1 and 3.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn new(loss: &L, segments: Segments) -> Self {
        let ring = Ring::new(STREAM_DEPTH);
        let mut tiles = Tiles { ring, loader: Loader::new(loss, segments), slot: 0 };
        unrolled!(for _slot in 0..STREAM_DEPTH as usize; {
            // SAFETY: the caller's conditions; the slot is empty.
            unsafe { tiles.load_next(loss) };
        });
        tiles
    }

    /// Starts to load the next tile that is not in the ring into the slot that was read last.
    ///
    /// # Safety
    /// [`stream`]'s condition 1; this thread does not read the slot's tile any more.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_next(&mut self, loss: &L) {
        // SAFETY: the caller's condition.
        unsafe { self.loader.load(loss, &self.ring, self.slot) };
        self.slot = self.ring.next(self.slot);
    }

    /// The statistics of this thread's part of a segment, not [settled](RowStats::settled). They
    /// are read from the tiles in the ring, each of which is replaced by a later one. `near` is as
    /// in [`RowStats::begin`].
    ///
    /// # Safety
    /// [`stream`]'s condition 1; the segment's tiles are the next in the ring.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn accumulate(
        &mut self,
        loss: &L,
        span: &RowSpan<L::Element>,
        segment: Segment,
        near: u32,
    ) -> L::Stats {
        let mut stats = L::Stats::begin(near);
        let mut tile = segment.begin;
        // SAFETY: the caller's conditions.
        unsafe {
            while tile < segment.end {
                wait_for_copies::<{ STREAM_DEPTH - 1 }>();
                let first = tile * WARP_VECTORS;
                let in_batch = if L::PADS { span.has_of_tile(first) } else { span.has_tile(first) };
                if !in_batch || !self.add_tile(loss, span, first, &mut stats) {
                    self.add_by_vector(loss, span, first, &mut stats);
                }
                self.load_next(loss);
                tile += 1;
            }
            if L::Stats::LAGS {
                self.add_head_and_tail::<false>(loss, span, segment, &mut stats);
            } else {
                self.add_head_and_tail::<true>(loss, span, segment, &mut stats);
            }
        }
        stats
    }

    /// Adds the tile in the ring's slot and returns true, or returns false if it has to be added
    /// vector by vector. All of its vectors belong to the row or, with [`PADS`](RowLoss::PADS), at
    /// least one.
    ///
    /// # Safety
    /// As [`accumulate`](Self::accumulate); the copy of the tile is complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_tile(
        &self,
        loss: &L,
        span: &RowSpan<L::Element>,
        first: u32,
        stats: &mut L::Stats,
    ) -> bool {
        const { assert!(!L::PADS || L::TENSORS == 1) };
        let vector = |k: usize| first + lane_id() + k as u32 * WARP_SIZE;
        let mut columns = [0; BATCH];
        unrolled!(for k in 0..BATCH; { columns[k] = span.column(vector(k)); });
        // SAFETY: the caller's conditions.
        unsafe {
            let x = if L::PADS && !span.has_tile(first) {
                self.ring.get_padded(self.slot, L::padding(), |k| span.has(vector(k)))
            } else {
                self.ring.get(self.slot, 0)
            };
            let t = if L::TENSORS > 1 { self.ring.get(self.slot, 1) } else { x };
            let counts = [L::Element::LANES; BATCH];
            loss.accumulate::<BATCH, true, false>(stats, x, t, columns, counts)
        }
    }

    /// Adds a tile vector by vector, such as a tile at an end of a row that is not
    /// [padded](RowLoss::PADS). If these vectors were one batch with guards, the code for whole
    /// tiles would be slower.
    ///
    /// # Safety
    /// As [`add_tile`](Self::add_tile).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_by_vector(
        &self,
        loss: &L,
        span: &RowSpan<L::Element>,
        first: u32,
        stats: &mut L::Stats,
    ) {
        let mut k = 0;
        while k < WARP_VECTORS / WARP_SIZE {
            let vector = first + lane_id() + k * WARP_SIZE;
            if span.has(vector) {
                // SAFETY: the caller's conditions.
                unsafe {
                    let x = self.ring.get_one(self.slot, 0, k);
                    let t = if L::TENSORS > 1 { self.ring.get_one(self.slot, 1, k) } else { x };
                    let (column, lanes) = (span.column(vector), L::Element::LANES);
                    loss.accumulate::<1, true, false>(stats, [x], [t], [column], [lanes]);
                }
            }
            // Opaque, so that the loop is not unrolled.
            k = opaque(u64::from(k + 1)) as u32;
        }
    }

    /// Adds the row's head and tail, one element per lane, in the warp that has the row's first
    /// segment.
    ///
    /// # Safety
    /// [`stream`]'s condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_head_and_tail<const EXACT: bool>(
        &self,
        loss: &L,
        span: &RowSpan<L::Element>,
        segment: Segment,
        stats: &mut L::Stats,
    ) {
        if segment.begin > 0 {
            return;
        }
        let Some(column) = span.head_and_tail(lane_id()) else { return };
        let [first, second] = loss.tensors();
        let address = |tensor| row_address::<L::Element>(tensor, segment.row.into());
        // SAFETY: the caller's condition.
        unsafe {
            let x = load_element::<L::Element>(address(first), column);
            let t = if L::TENSORS > 1 { load_element(address(second), column) } else { x };
            let (x, t) = ([vector_of(x)], [vector_of(t)]);
            loss.accumulate::<1, false, EXACT>(stats, x, t, [column], [1]);
        }
    }

    /// Computes the statistics of this thread's part of a segment a second time, with `EXACT`. It
    /// reads global memory, because the ring already has later tiles.
    ///
    /// # Safety
    /// [`stream`]'s condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn accumulate_again(
        &self,
        loss: &L,
        span: &RowSpan<L::Element>,
        segment: Segment,
    ) -> L::Stats {
        let mut stats = L::Stats::none();
        let [first, second] = loss.tensors();
        let row = |tensor| row_address::<L::Element>(tensor, segment.row.into());
        let mut vector = segment.begin * WARP_VECTORS + lane_id();
        // SAFETY: the caller's condition.
        unsafe {
            self.add_head_and_tail::<true>(loss, span, segment, &mut stats);
            let mut tile = segment.begin;
            while tile < segment.end {
                let mut k = 0;
                while k < WARP_VECTORS / WARP_SIZE {
                    if span.has(vector + k * WARP_SIZE) {
                        let column = span.column(vector + k * WARP_SIZE);
                        let x = load_elements::<L::Element>(row(first), column);
                        let t = if L::TENSORS > 1 {
                            load_elements::<L::Element>(row(second), column)
                        } else {
                            x
                        };
                        let lanes = L::Element::LANES;
                        loss.accumulate::<1, true, true>(&mut stats, [x], [t], [column], [lanes]);
                    }
                    k += 1;
                }
                tile += 1;
                vector += WARP_VECTORS;
            }
        }
        stats
    }
}

/// The picked element of a row ([`RowLoss::picked`]), in a thread that `wants` it; otherwise 0.
///
/// # Safety
/// [`stream`]'s condition 1.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn load_picked<L: RowLoss>(loss: &L, row: u64, target: &L::Target, wants: bool) -> Real<L> {
    let column = loss.picked(target);
    if column == NO_COLUMN || !wants {
        return Real::<L>::ZERO;
    }
    let row = row_address::<L::Element>(loss.tensors()[0], row);
    // SAFETY: the caller's condition; the column is one of the row's.
    unsafe { load_element::<L::Element>(row, column).widen() }
}

/// Loads a vector of elements from `column` on, element by element: rows of the second tensor may
/// be aligned differently from those of the first.
///
/// # Safety
/// The elements are in global memory.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn load_elements<E: Element>(row: u64, column: u32) -> Vec16 {
    let mut elements = [E::LOWEST; MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        // SAFETY: the caller's condition.
        elements[lane] = unsafe { load_element(row, column + lane as u32) };
    });
    E::pack(elements)
}
