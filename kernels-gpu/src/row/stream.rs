//! A forward pass over long rows: a row group, which is a warp or a block, streams rows through a
//! ring in shared memory ([`super::ring`]).
//!
//! Blocks are persistent. Where rows are few, the groups, which are blocks then, have equal shares
//! of all tiles, and so parts of rows: each leaves the statistics of its part in the workspace, and
//! the last of a row's groups to arrive merges them, in the order of the groups.

use super::ring::{Loader, Ring};
use super::segment::{RowGroup, Segment, Segments};
use super::span::{BATCH, RowSpan, WARP_VECTORS};
use super::{NO_COLUMN, Real, RowLoss, RowStats, TERMS, load_element, row_address, vector_of};
use crate::abi::STREAM_DEPTH;
use crate::element::{Element, MAX_LANES, Real as _, unrolled};
use crate::grid::sum_in_last_block;
use crate::reduce::Workspace;
use cuda_std::atomic::fence;
use cuda_std::memory::{Vec16, wait_for_copies};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp, warp_id};

/// # Safety
/// 1. The tensors of the loss are as [`RowLoss::target`] says.
/// 2. `workspace` satisfies [`Workspace::new`]'s conditions, and what the loss writes overlaps
///    nothing else.
/// 3. The launch fits [`RowLoss::layout`], with dynamic shared memory for the rings of a block's
///    warps.
#[inline(always)]
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
    while segments.has_next() {
        let segment = segments.next();
        let row = u64::from(segment.row);
        let span = RowSpan::new(loss.tensors()[0], segment.row, cols);
        // SAFETY: the kernel's conditions; the tiles of the segment are next in the ring.
        unsafe {
            let target = loss.target(row);
            let picked = load_picked(loss, row, &target, group.leads());
            let stats = tiles.accumulate(loss, &span, segment);
            let mut stats = merge_group(stats, group, turn);
            if !L::is_exact(&stats) {
                let exact = tiles.accumulate_again(loss, &span, segment);
                stats = merge_group(exact, group, REDO);
            }
            if segment.begin == 0 && segment.end == layout.row_tiles {
                if group.leads() {
                    let of_row = loss.finish_row(row, &target, picked, stats, workspace);
                    unrolled!(for term in 0..TERMS; { terms[term] += of_row[term]; });
                }
            } else {
                starts_split_row |= segment.begin == 0;
                if group.warp == 0 {
                    let parts = Parts::of_row(loss, segment.row);
                    if let Some(stats) = parts.merge(workspace, index, segment, stats) {
                        // Which block finishes the row is chance, so its terms have an entry.
                        parts.finish(loss, workspace, &target, picked, stats);
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
    #[inline(always)]
    unsafe fn new(loss: &L, group: RowGroup, segments: Segments) -> Self {
        let ring = Ring::new(STREAM_DEPTH);
        let mut tiles = Tiles { group, ring, loader: Loader::new(loss, segments), slot: 0 };
        unrolled!(for _slot in 0..STREAM_DEPTH as usize; {
            // SAFETY: the caller's conditions; the slot is empty.
            unsafe { tiles.load_next(loss) };
        });
        tiles
    }

    /// Replaces the tile that was read last by the next one that is not in the ring.
    ///
    /// # Safety
    /// [`stream`]'s condition 1; this thread is done with the slot.
    #[inline(always)]
    unsafe fn load_next(&mut self, loss: &L) {
        // SAFETY: the caller's condition.
        unsafe { self.loader.load(loss, self.group, &self.ring, self.slot) };
        self.slot = self.ring.next(self.slot);
    }

    /// The statistics of this thread's part of a segment, whose tiles leave the ring.
    ///
    /// # Safety
    /// [`stream`]'s condition 1; the segment's tiles are next.
    #[inline(always)]
    unsafe fn accumulate(
        &mut self,
        loss: &L,
        span: &RowSpan<L::Element>,
        segment: Segment,
    ) -> L::Stats {
        let mut stats = L::Stats::none();
        let mut tile = segment.begin;
        // SAFETY: the caller's conditions.
        unsafe {
            self.add_edge(loss, span, segment, &mut stats);
            while tile < segment.end {
                wait_for_copies::<{ STREAM_DEPTH - 1 }>();
                let first = self.group.first_vector(tile);
                if span.has_tile(first) {
                    self.add_whole_tile(loss, span, first, &mut stats);
                } else {
                    self.add_ragged_tile(loss, span, first, &mut stats);
                }
                self.load_next(loss);
                tile += 1;
            }
        }
        stats
    }

    /// Adds the tile in the ring's slot, all of whose vectors are the row's.
    ///
    /// # Safety
    /// As [`accumulate`](Self::accumulate); the tile has arrived.
    #[inline(always)]
    unsafe fn add_whole_tile(
        &self,
        loss: &L,
        span: &RowSpan<L::Element>,
        first: u32,
        stats: &mut L::Stats,
    ) {
        let mut columns = [0; BATCH];
        unrolled!(for k in 0..BATCH; {
            columns[k] = span.column(first + lane_id() + k as u32 * WARP_SIZE);
        });
        // SAFETY: the caller's conditions.
        unsafe {
            let x = self.ring.get(self.slot, 0);
            let t = if L::TENSORS > 1 { self.ring.get(self.slot, 1) } else { x };
            let counts = [L::Element::LANES; BATCH];
            loss.accumulate::<BATCH, true, false>(stats, x, t, columns, counts);
        }
    }

    /// Adds a tile at an end of the row, vector by vector: as one batch, its guards would slow
    /// whole tiles.
    ///
    /// # Safety
    /// As [`add_whole_tile`](Self::add_whole_tile).
    #[inline(always)]
    unsafe fn add_ragged_tile(
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
            k += 1;
        }
    }

    /// Adds the edge, if the segment and the warp have it.
    ///
    /// # Safety
    /// [`stream`]'s condition 1.
    #[inline(always)]
    unsafe fn add_edge(
        &self,
        loss: &L,
        span: &RowSpan<L::Element>,
        segment: Segment,
        stats: &mut L::Stats,
    ) {
        if segment.begin > 0 || self.group.warp > 0 {
            return;
        }
        let Some(column) = span.edge(lane_id()) else { return };
        let [first, second] = loss.tensors();
        let address = |tensor| row_address::<L::Element>(tensor, segment.row.into());
        // SAFETY: the caller's condition.
        unsafe {
            let x = load_element::<L::Element>(address(first), column);
            let t = if L::TENSORS > 1 { load_element(address(second), column) } else { x };
            let (x, t) = ([vector_of(x)], [vector_of(t)]);
            loss.accumulate::<1, false, true>(stats, x, t, [column], [1]);
        }
    }

    /// The statistics of this thread's part of a segment once more, exactly, from global memory:
    /// the tiles have left the ring.
    ///
    /// # Safety
    /// [`stream`]'s condition 1.
    #[inline(always)]
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
            self.add_edge(loss, span, segment, &mut stats);
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

/// The picked element of a row, in the thread that `wants` it.
///
/// # Safety
/// [`stream`]'s condition 1.
#[inline(always)]
unsafe fn load_picked<L: RowLoss>(loss: &L, row: u64, target: &L::Target, wants: bool) -> Real<L> {
    let column = loss.picked(target);
    if column == NO_COLUMN || !wants {
        return Real::<L>::ZERO;
    }
    let row = row_address::<L::Element>(loss.tensors()[0], row);
    // SAFETY: the caller's condition; the column is one of the row's.
    unsafe { load_element::<L::Element>(row, column).widen() }
}

/// A vector of elements from `column` on, element by element: the second tensor may begin
/// elsewhere in a vector than the first.
///
/// # Safety
/// They are in global memory.
#[inline(always)]
unsafe fn load_elements<E: Element>(row: u64, column: u32) -> Vec16 {
    let mut elements = [E::LOWEST; MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        // SAFETY: the caller's condition.
        elements[lane] = unsafe { load_element(row, column + lane as u32) };
    });
    E::pack(elements)
}

cuda_std::shared_array! {
    /// The statistics of each warp's part of a row, for two rows in turns and for what is done
    /// again.
    fn warp_stats() -> [u64; 384];
}

/// The turn of statistics that are computed again.
const REDO: u32 = 2;

/// The statistics of a row from those of its group's threads, in all of them. `turn` is 0 and 1
/// from row to row, or [`REDO`]: a warp may write those of the next row while another still reads
/// these, but the barrier of the next row is behind both.
#[inline(always)]
fn merge_group<S: RowStats>(stats: S, group: RowGroup, turn: u32) -> S {
    let of_warp = stats.over_warp();
    if group.is_warp() {
        return of_warp;
    }
    let at = |part: usize, warp: u32| (turn * 4 + part as u32) * WARP_SIZE + warp;
    if lane_id() == 0 {
        let parts = of_warp.parts();
        unrolled!(for part in 0..4; {
            if part < S::PARTS {
                // SAFETY: the warp's own element; who read what was there met this warp since.
                unsafe { warp_stats().set(at(part, warp_id()), parts[part].to_bits64()) };
            }
        });
    }
    sync_threads();
    let mut parts = S::none().parts();
    if lane_id() < block_dim_x() / WARP_SIZE {
        unrolled!(for part in 0..4; {
            if part < S::PARTS {
                // SAFETY: the warp wrote it before the barrier.
                let bits = unsafe { warp_stats().get(at(part, lane_id())) };
                parts[part] = S::Real::from_bits64(bits);
            }
        });
    }
    S::from_parts(parts).over_warp()
}

/// The row groups that have parts of a row that is split: `count` of them from `first` on.
#[derive(Clone, Copy)]
struct Parts {
    row: u32,
    first: u32,
    count: u32,
    groups: u32,
}

/// Words of a part's statistics.
const PART_WORDS: u32 = 4;

impl Parts {
    /// The inverse of the shares in [`Segments::of_group`].
    #[inline(always)]
    fn of_row<L: RowLoss>(loss: &L, row: u32) -> Self {
        let (tiles, groups) = (u64::from(loss.layout().row_tiles), loss.layout().groups);
        let all = (loss.shape().0 * tiles).max(1);
        let group = |tile: u64| (((tile + 1) * u64::from(groups) - 1) / all) as u32;
        let first = group(u64::from(row) * tiles);
        let last = group((u64::from(row) + 1) * tiles - 1);
        Parts { row, first, count: last - first + 1, groups }
    }

    /// The first word behind the terms of the grid: of each group, one entry for the rows that are
    /// all its own, and one for the row that it has the beginning of.
    #[inline(always)]
    fn base(&self) -> u32 {
        TERMS as u32 * 2 * self.groups
    }

    /// Where a group leaves its part: it may have the end of one row and the beginning of another.
    #[inline(always)]
    fn place(&self, group: u32, is_beginning: bool) -> u32 {
        self.base() + (2 * group + u32::from(is_beginning)) * PART_WORDS
    }

    /// Leaves this group's part, and returns the statistics of the row in the last of its groups to
    /// arrive.
    ///
    /// # Safety
    /// [`stream`]'s conditions; one warp of each of the row's groups calls it, once.
    #[inline(always)]
    unsafe fn merge<S: RowStats>(
        &self,
        workspace: Workspace,
        group: u32,
        segment: Segment,
        stats: S,
    ) -> Option<S> {
        let counter = self.base() + 2 * self.groups * PART_WORDS + self.first;
        // SAFETY: the places are the groups' own; the counter is this row's.
        unsafe {
            let mut is_last = false;
            if lane_id() == 0 {
                let parts = stats.parts();
                let place = self.place(group, segment.begin == 0);
                unrolled!(for part in 0..4; {
                    workspace.set_word(place + part as u32, parts[part].to_bits64());
                });
                // Releases the part, and acquires those of the others.
                fence();
                is_last = workspace.arrive(counter, self.count);
                fence();
            }
            if !any(is_last) {
                return None;
            }
            sync_warp();
            let mut sum = S::none();
            let mut from = 0;
            while from < self.count {
                let part = from + lane_id();
                if part < self.count {
                    let place = self.place(self.first + part, part == 0);
                    let mut parts = [S::Real::ZERO; 4];
                    unrolled!(for index in 0..4; {
                        let bits = workspace.take_word(place + index as u32);
                        parts[index] = S::Real::from_bits64(bits);
                    });
                    sum = sum.with(S::from_parts(parts));
                }
                from += WARP_SIZE;
            }
            Some(sum.over_warp())
        }
    }

    /// Finishes the row, whose term goes to the entry of the group that has its beginning.
    ///
    /// # Safety
    /// [`stream`]'s conditions; all lanes of a warp call it, once a row.
    #[inline(always)]
    unsafe fn finish<L: RowLoss>(
        &self,
        loss: &L,
        workspace: Workspace,
        target: &L::Target,
        picked: Real<L>,
        stats: L::Stats,
    ) {
        if lane_id() > 0 {
            return;
        }
        // SAFETY: the caller's conditions; the entry is this row's.
        unsafe {
            let sums = loss.finish_row(self.row.into(), target, picked, stats, workspace);
            if !loss.needs_sums() {
                // Nobody would take them, and the next launch expects words that are 0.
                return;
            }
            unrolled!(for term in 0..TERMS; {
                let entry = term as u32 * 2 * self.groups + self.groups + self.first;
                workspace.set_sum(entry, sums[term]);
            });
        }
    }
}
