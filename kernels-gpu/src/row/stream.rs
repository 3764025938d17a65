//! A forward pass over long rows: a row group, which is a warp or a block, streams rows through a
//! ring in shared memory ([`super::ring`]).
//!
//! Blocks are persistent. Where rows are few, each group is a block, and groups have equal shares
//! of all tiles, so that rows are split among groups ([`super::split_row`]).

use super::ring::{Loader, Ring};
use super::segment::{RowGroup, Segment, Segments};
use super::span::{BATCH, RowSpan, WARP_VECTORS};
use super::split_row::SplitRow;
use super::{NO_COLUMN, Real, RowLoss, RowStats, TERMS, load_element, row_address, vector_of};
use crate::abi::{STREAM_BLOCK, STREAM_DEPTH};
use crate::element::{Element, MAX_LANES, Real as _, unrolled};
use crate::grid::sum_in_last_block;
use crate::reduce::Workspace;
use cuda_std::hint::opaque;
use cuda_std::memory::{Vec16, wait_for_copies};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, warp_id};

/// Computes all rows, and their sums over the grid.
///
/// # Safety
/// 1. The tensors of the loss are as [`RowLoss::target`] says.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions, and what the loss writes overlaps
///    nothing else.
/// 3. The launch fits [`RowLoss::layout`], with dynamic shared memory for the rings of a block's
///    warps.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn stream<L: RowLoss>(loss: &L, workspace: Workspace) {
    let (layout, (rows, cols)) = (loss.layout(), loss.shape());
    let group = RowGroup::new(layout.warps);
    let (block, warps) = (block_idx_x(), block_dim_x() / WARP_SIZE);
    let index = if group.is_warp() { block * warps + warp_id() } else { block };
    let mut segments = Segments::of_group(layout, rows as u32, index);
    // SAFETY: conditions 1 and 3.
    let mut tiles = unsafe { Tiles::new(loss, group, segments) };
    let mut terms = [0.0; TERMS];
    let mut turn = 0;
    let mut starts_split_row = false;
    let mut near = 0;
    while segments.has_next() {
        let segment = segments.next();
        let row = u64::from(segment.row);
        let span = RowSpan::new(loss.tensors()[0], segment.row, cols);
        // SAFETY: the kernel's conditions; the tiles of the segment are next in the ring.
        unsafe {
            let target = loss.target(row);
            let picked = load_picked(loss, row, &target, group.leads());
            let stats = tiles.accumulate(loss, &span, segment, near);
            let mut stats = merge_group(stats.settled_over_warp(loss.scale()), loss, group, turn);
            if !L::is_exact(&stats) {
                let exact = tiles.accumulate_again(loss, &span, segment);
                let of_warp = exact.over_lanes(WARP_SIZE, loss.scale());
                stats = merge_group(of_warp, loss, group, REDO);
            }
            near = stats.top();
            if segment.begin == 0 && segment.end == layout.row_tiles {
                if group.leads() {
                    let row_terms = loss.finish_row(row, &target, picked, stats, workspace);
                    unrolled!(for term in 0..TERMS; { terms[term] += row_terms[term]; });
                }
            } else {
                starts_split_row |= segment.begin == 0;
                if group.warp == 0 {
                    let split_row = SplitRow::new(loss, segment.row);
                    if let Some(stats) = split_row.merge(loss, workspace, index, segment, stats) {
                        // Which block finishes the row is left to chance. For a fixed order of
                        // the sums, its terms go to an entry of their own.
                        split_row.finish(loss, workspace, &target, picked, stats);
                    }
                }
            }
        }
        segments.advance();
        turn ^= 1;
    }
    if !loss.needs_sums() {
        return;
    }
    let blocks = grid_dim_x();
    let entries = if layout.split != 0 { 2 * blocks } else { blocks };
    // SAFETY: the kernel's conditions; all threads of the grid call it, once.
    unsafe {
        if layout.split != 0 && !starts_split_row && thread_idx_x() == 0 {
            unrolled!(for term in 0..TERMS; {
                workspace.set_sum(term as u32 * entries + blocks + block, 0.0);
            });
        }
        sum_in_last_block(workspace, terms, entries, |sums| loss.finish(sums, workspace));
    }
}

/// A row group's tiles on their way through the ring.
struct Tiles<L: RowLoss> {
    group: RowGroup,
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
    unsafe fn new(loss: &L, group: RowGroup, segments: Segments) -> Self {
        let ring = Ring::new(STREAM_DEPTH);
        let mut tiles = Tiles { group, ring, loader: Loader::new(loss, segments), slot: 0 };
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
        unsafe { self.loader.load(loss, self.group, &self.ring, self.slot) };
        self.slot = self.ring.next(self.slot);
    }

    /// The statistics of this thread's part of a segment, not [settled](RowStats::settled), from
    /// the tiles in the ring, which are replaced by the next ones. `near` is as in
    /// [`RowStats::begin`].
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
                let first = self.group.first_vector(tile);
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

    /// Adds the tile in the ring's slot, unless it has to be added vector by vector; returns
    /// whether it did. All of its vectors are the row's or, with [`PADS`](RowLoss::PADS), some.
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

    /// Adds a tile vector by vector, such as one at an end of a row that is not
    /// [padded](RowLoss::PADS): in one batch with guards, it would slow the code for whole tiles.
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

    /// Adds the row's head and tail, one element a lane, in the first warp of the group that has
    /// the row's first segment.
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
        if segment.begin > 0 || self.group.warp > 0 {
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

    /// Computes the statistics of this thread's part of a segment a second time, with `EXACT`, and
    /// from global memory: the ring has later tiles by now.
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
        let mut vector = self.group.first_vector(segment.begin) + lane_id();
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
                vector = self.group.first_vector(tile) + lane_id();
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

/// Loads a vector of elements from `column` on, element by element: the rows of the second tensor
/// may have another alignment than those of the first.
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

cuda_std::shared_array! {
    /// The statistics of each warp's part of a row. Three buffers: two for alternate rows, and one
    /// for a second, exact computation.
    fn warp_stats() -> [u64; 96];
}

/// The buffer of a second, exact computation.
const REDO: u32 = 2;

/// Merges the statistics of the warps of a group, and returns the result in all of them. `turn`
/// selects the buffer: 0 and 1 in alternate rows, or [`REDO`]. With two buffers, one barrier a row
/// is enough: a warp may write the statistics of the next row while another still reads these, and
/// writes this buffer again only behind the next row's barrier.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn merge_group<L: RowLoss>(of_warp: L::Stats, loss: &L, group: RowGroup, turn: u32) -> L::Stats {
    /// Warps of a block.
    const WARPS: u32 = STREAM_BLOCK / WARP_SIZE;
    if group.is_warp() {
        return of_warp;
    }
    let used = L::Stats::PARTS;
    let at = |part: usize, warp: u32| (turn * 4 + part as u32) * WARPS + warp;
    if lane_id() == 0 {
        let parts = of_warp.parts();
        unrolled!(for part in 0..4; {
            if part < used {
                // SAFETY: the warp's own element; a barrier has passed since it was read last.
                unsafe { warp_stats().set(at(part, warp_id()), parts[part].to_bits64()) };
            }
        });
    }
    sync_threads();
    let mut parts = [Real::<L>::ZERO; 4];
    unrolled!(for part in 0..4; {
        if part < used {
            // SAFETY: the warp wrote it before the barrier.
            let bits = unsafe { warp_stats().get(at(part, lane_id() % WARPS)) };
            parts[part] = Real::<L>::from_bits64(bits);
        }
    });
    L::Stats::from_parts(parts).over_lanes(WARPS, loss.scale())
}
