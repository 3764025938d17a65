//! Losses that are reduced by row, and gradients of rows with gaps with a loss that is not: a block
//! copies the tiles of its rows to shared memory, asynchronously; each warp computes one tile while
//! its next one is copied.
//!
//! Short rows are packed: a block computes some whole rows, with the gaps between them, at a time.
//! Each warp has a tile of them, whose vectors may have the end of one row and the beginning of the
//! next. For losses by row, a thread sums the terms of a vector for each of the rows in it and
//! writes these sums to shared memory, where groups of lanes add them up. Long rows are cut into
//! tiles, and a warp computes a row alone; warps share the longest rows, and those that are left.
//! Their terms, and those of a scalar loss, a thread adds up in a register. Blocks are persistent.

mod run;
mod stage;
mod sums;
mod tile;

use super::Pairwise;
use super::pass::Pass;
use super::row::{Lanes, are_plain, of_lane};
use crate::abi::{TILED_BLOCK, reduction};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::math::quotient;
use crate::reduce::{Workspace, grid_sums};
use cuda_std::hint::{opaque, opaque_vec16};
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
use cuda_std::thread::sync_threads;
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};
use run::Run;
use stage::Shared;
use tile::{Items, Tile};

/// Warps of a block.
const WARPS: u32 = TILED_BLOCK / WARP_SIZE;

/// The state of a block.
struct Block<'a, E: Element, L> {
    pass: &'a Pass<'a, E, L, false>,
    shared: Shared<E>,
    workspace: Workspace,
    items: Items,
    /// Whether there are gaps between packed rows. Found once: between tiles, it would have to be
    /// waited for.
    has_gaps: bool,
    /// Whether each row has an upstream gradient of its own.
    has_scales: bool,
    /// The scale of the gradients, unless each row has its own.
    scale: E::Real,
}

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// Computes the tiles of this block.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions hold.
    /// 2. `args.tiles` and the launch are as [`TiledArgs`](crate::abi::TiledArgs) requires.
    /// 3. All threads of the block call it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn tiled<const GRADS: bool>(&self, workspace: Workspace) {
        let args = self.args;
        let has_scales = GRADS && args.upstream.start != 0 && args.upstream.row_stride != 0;
        let block = Block {
            pass: self,
            shared: Shared::new(args),
            workspace,
            items: Items::of_block(args),
            has_gaps: args.tiles.step != args.cols as u32,
            has_scales,
            // SAFETY: condition 1.
            scale: if GRADS && !has_scales { unsafe { self.scale(0) } } else { E::Real::ZERO },
        };
        // SAFETY: the caller's conditions.
        unsafe {
            let sums_items = block.sums_items::<GRADS>();
            if sums_items {
                block.clear_sums();
            }
            let total = block.for_each_tile::<GRADS>();
            if sums_items {
                block.finish_last_items();
            } else if GRADS && args.reduction == reduction::SCALAR {
                grid_sums([total], workspace, |[sum]| self.finish(0, sum));
            }
        }
    }
}

impl<E: Element, L: Pairwise<E::Real>> Block<'_, E, L> {
    /// Whether the loss is one for each row, and rows are not packed. A loss without gradients is.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn sums_items<const GRADS: bool>(&self) -> bool {
        let args = self.pass.args;
        (!GRADS || args.reduction == reduction::ROWS) && args.tiles.rows == 0
    }

    /// Computes each tile of the warp while the next one is copied. Returns the sum of this
    /// thread's terms, where the loss is a scalar.
    ///
    /// # Safety
    /// As [`Pass::tiled`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn for_each_tile<const GRADS: bool>(&self) -> f64 {
        let args = self.pass.args;
        let mut next = Tile::first(args, &self.items);
        let mut run = Run::new::<GRADS>(self.pass, 0);
        let mut next_run = run;
        let (mut tile, mut has_tile, mut turn) = (next, false, 0);
        let mut scale = self.scale;
        let mut sum = 0.0;
        // SAFETY: the caller's conditions. The lanes of a warp have synchronised since they read
        // the stage that is loaded.
        unsafe {
            // The first iteration only loads, so the code of a load exists once.
            while has_tile || next.left > 0 {
                let has_next = next.left > 0;
                if has_next {
                    if next.is_first {
                        next_run = Run::new::<GRADS>(self.pass, next.run(args));
                    }
                    self.shared.stage(turn ^ 1).load_async(&next_run, next.number);
                    self.load_scales_async(&next_run, turn ^ 1);
                }
                end_copies();
                if has_tile {
                    if self.has_scales && args.tiles.rows == 0 && tile.is_first {
                        scale = self.pass.scale(run.row());
                    }
                    // Before the wait for the copies, which the loads of the edges overlap with.
                    if args.tiles.rows == 0 && tile.number + 1 == args.tiles.of_row {
                        self.edges::<GRADS>(&run, scale, &mut sum);
                    }
                    wait_for_copies::<1>();
                    sync_warp();
                    self.compute::<GRADS>(&run, tile, turn, scale, &mut sum);
                    if self.sums_items::<GRADS>() && (next.is_first || !has_next) {
                        self.sum_item(tile, sum);
                        sum = 0.0;
                    }
                    sync_warp();
                }
                (run, tile, has_tile, turn) = (next_run, next, has_next, turn ^ 1);
                next = next.next(args, &self.items);
            }
        }
        sum
    }

    /// Computes a tile of a run, and writes the sums of packed rows.
    ///
    /// # Safety
    /// As [`Pass::tiled`]; the tile is in stage `turn`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn compute<const GRADS: bool>(
        &self,
        run: &Run<'_, E, L>,
        tile: Tile,
        turn: u32,
        scale: E::Real,
        sum: &mut f64,
    ) {
        let args = self.pass.args;
        // SAFETY: the caller's conditions.
        unsafe {
            if self.has_scales && args.tiles.rows != 0 {
                self.divide_scales(run, turn);
            }
            self.vectors::<GRADS>(run, tile, turn, scale, sum);
            if args.tiles.vector_sums != 0 {
                sync_threads();
                self.sum_rows(run, turn);
            }
        }
    }

    /// Computes the elements of a long row before its first [whole](Run::whole) vector and behind
    /// its last one, each in a lane of its own.
    ///
    /// # Safety
    /// As [`Pass::tiled`]; all lanes of the warp call it, for a row that is not packed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn edges<const GRADS: bool>(&self, run: &Run<'_, E, L>, scale: E::Real, sum: &mut f64) {
        if let Some(element) = run.edge(lane_id()) {
            // SAFETY: the caller's conditions; the element is one of the row's, and no other
            // lane's.
            let [a, b] = unsafe { run.tensors.pair::<GRADS>(element.into(), scale) };
            *sum += (a * b).to_f64();
        }
    }

    /// Computes the warp's vectors of a tile.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn vectors<const GRADS: bool>(
        &self,
        run: &Run<'_, E, L>,
        tile: Tile,
        turn: u32,
        scale: E::Real,
        sum: &mut f64,
    ) {
        let stage = self.shared.stage(turn);
        let vectors = self.pass.args.tiles.vectors / WARPS;
        let first = tile.number * vectors;
        // Nearly all vectors are whole, and their pairs plain. The others wait, so that they do not
        // slow the loop: bit k is set if the thread's vector k does. Where there are gaps, all
        // wait: beside vectors that have one, a warp would have to do both.
        let quick = run.quick(self.has_gaps);
        let all = if self.pass.args.tiles.rows == 0 { quick } else { run.all() };
        let [begin, end] = run.slots(all, first, vectors);
        let [quick_begin, quick_end] = run.slots(quick, first, vectors);
        let mut waiting = 0_u32;
        let mut slot = lane_id();
        // SAFETY: the caller's conditions; the vectors are the tile's.
        unsafe {
            while slot < end {
                let mut waits = slot >= begin;
                if slot >= quick_begin && slot < quick_end {
                    let [x, t] = stage.get(run, slot);
                    waits = !are_plain::<E, L>(run.tensors.loss, x, t);
                    if !waits {
                        let (pair, lanes) = ([x, t], Lanes::all::<E>());
                        let vector = first + slot;
                        self.vector::<GRADS, true>(run, vector, pair, lanes, turn, scale, sum);
                    }
                }
                if waits {
                    waiting |= 1 << (slot / WARP_SIZE);
                }
                slot += WARP_SIZE;
            }
            while waiting != 0 {
                slot = waiting.trailing_zeros() * WARP_SIZE + lane_id();
                waiting &= waiting - 1;
                let vector = first + slot;
                let lanes = run.lanes(self.has_gaps, vector);
                let [x, t] = if run.is_whole(vector) {
                    stage.get(run, slot)
                } else {
                    run.gather(vector, lanes)
                };
                // Opaque: LLVM would join the two in local memory.
                let pair = [opaque_vec16(x), opaque_vec16(t)];
                self.vector::<GRADS, false>(run, vector, pair, lanes, turn, scale, sum);
            }
        }
    }

    /// Computes `lanes` of a vector: adds its terms to `sum` or, in packed rows, writes their sums
    /// to shared memory, and writes the gradients. With `PLAIN`, all pairs are plain.
    ///
    /// # Safety
    /// As [`compute`](Self::compute); the vector is one of the tile's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[expect(clippy::too_many_arguments)]
    unsafe fn vector<const GRADS: bool, const PLAIN: bool>(
        &self,
        run: &Run<'_, E, L>,
        vector: u32,
        [x, t]: [Vec16; 2],
        lanes: Lanes,
        turn: u32,
        scale: E::Real,
        sum: &mut f64,
    ) {
        // SAFETY: the caller's conditions.
        unsafe {
            let scales = self.scales(run, vector, turn, scale);
            let mut terms = [E::Real::ZERO; MAX_LANES];
            pairs::<E, L, GRADS, PLAIN>(run, vector, [x, t], lanes, scales, &mut terms);
            let unit = if PLAIN { L::UNIT } else { E::Real::ONE };
            if !lanes.are_all::<E>() {
                unrolled!(for lane in 0..E::LANES as usize; {
                    terms[lane] = if lanes.has(lane) { terms[lane] } else { E::Real::ZERO };
                });
            }
            let args = self.pass.args;
            if args.tiles.vector_sums == 0 {
                *sum += (sum_of::<E>(terms) * unit).to_f64();
                return;
            }
            // Opaque: LLVM would keep addresses that packed rows alone need in registers, and
            // advance them with each vector of all rows.
            let vector = opaque(vector.into()) as u32;
            let boundary = || Packed::new(run, vector).boundary;
            self.shared.set_sums(args, turn, vector, boundary, terms, unit);
        }
    }

    /// The scales of the gradients of a vector: `scale`, unless packed rows have their own.
    ///
    /// # Safety
    /// As [`vector`](Self::vector).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn scales(
        &self,
        run: &Run<'_, E, L>,
        vector: u32,
        turn: u32,
        scale: E::Real,
    ) -> [E::Real; MAX_LANES] {
        let args = self.pass.args;
        let mut scales = [scale; MAX_LANES];
        if !self.has_scales || args.tiles.rows == 0 {
            return scales;
        }
        let [first, end_of_rows] = run.warp_rows();
        let Packed { mut row, boundary: mut end } = Packed::new(run, vector);
        let mut row_of = |lane: u32| {
            if lane >= end {
                (row, end) = (row + 1, end + run.step());
            }
            // The lanes behind the last row are not stored.
            row.min(end_of_rows - 1) - first
        };
        unrolled!(for lane in 0..E::LANES as usize; {
            // SAFETY: the caller's conditions; the row is one of the warp's.
            scales[lane] = unsafe { self.shared.scales(args, turn).get(row_of(lane as u32)) };
        });
        scales
    }

    /// Starts to copy the upstream gradient of each of the warp's rows, if it has one.
    ///
    /// # Safety
    /// As [`Pass::tiled`]; the lanes of the warp have synchronised since they read the scales of
    /// `turn`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_scales_async(&self, run: &Run<'_, E, L>, turn: u32) {
        let args = self.pass.args;
        if !self.has_scales || args.tiles.rows == 0 {
            return;
        }
        let [first, end] = run.warp_rows();
        let from = args.upstream.start as *const E::Real;
        let mut row = first + lane_id();
        while row < end {
            let index = (run.row() + u64::from(row)) * args.upstream.row_stride;
            // SAFETY: the caller's conditions; no other lane has this row.
            unsafe {
                let scales = self.shared.scales(args, turn);
                scales.copy_word(row - first, from.wrapping_add(index as usize));
            }
            row += WARP_SIZE;
        }
    }

    /// Divides the upstream gradients of the warp's rows, which makes them the rows' scales.
    ///
    /// # Safety
    /// As [`compute`](Self::compute), with `has_scales`, for packed rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn divide_scales(&self, run: &Run<'_, E, L>, turn: u32) {
        let args = self.pass.args;
        if args.divisor == 1.0 {
            return;
        }
        let [first, end] = run.warp_rows();
        let mut row = first + lane_id();
        while row < end {
            // SAFETY: the caller's conditions; no other lane has this row.
            unsafe {
                let scales = self.shared.scales(args, turn);
                let upstream = scales.get(row - first).to_f64();
                let scale = quotient::<E::Real>(upstream, args.divisor);
                scales.set(row - first, E::Real::from_f64(scale));
            }
            row += WARP_SIZE;
        }
        sync_warp();
    }
}

/// Where a vector of packed rows changes from one row to the next.
struct Packed {
    /// The row of the vector's first element, counted from the tile's first.
    row: u32,
    /// The lane at which the next row begins; it may be behind the vector.
    boundary: u32,
}

impl Packed {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new<E: Element, L: Pairwise<E::Real>>(run: &Run<'_, E, L>, vector: u32) -> Self {
        let begin = vector * E::LANES;
        let element = begin.max(run.lead) - run.lead;
        let row = run.row_of(element);
        Packed { row, boundary: run.lead + (row + 1) * run.step() - begin }
    }
}

/// Computes the terms of a vector's pairs, in [`Pairwise::UNIT`]s with `PLAIN`, and writes the
/// gradients of its `lanes`. With `PLAIN`, all pairs are plain.
///
/// # Safety
/// As [`Block::vector`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn pairs<E: Element, L: Pairwise<E::Real>, const GRADS: bool, const PLAIN: bool>(
    run: &Run<'_, E, L>,
    vector: u32,
    [x, t]: [Vec16; 2],
    lanes: Lanes,
    scales: [E::Real; MAX_LANES],
    terms: &mut [E::Real; MAX_LANES],
) {
    unrolled!(for lane in 0..E::LANES as usize; {
        let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
        let [a, b] = run.tensors.loss.term::<PLAIN>(x, t);
        terms[lane] = a * b;
    });
    if GRADS {
        // SAFETY: the caller's conditions.
        unsafe {
            let (tensors, vector) = (&run.tensors, u64::from(vector));
            tensors.store_grads::<PLAIN, false>(vector, x, t, scales, lanes);
            // Opaque: what both gradients need would take more registers than there are.
            let (x, t) = (opaque_vec16(x), opaque_vec16(t));
            tensors.store_grads::<PLAIN, true>(vector, x, t, scales, lanes);
        }
    }
}

/// The sum of the terms of a vector.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn sum_of<E: Element>(terms: [E::Real; MAX_LANES]) -> E::Real {
    let pair = |lane: usize| terms[lane] + terms[lane + 1];
    match E::LANES {
        2 => pair(0),
        4 => pair(0) + pair(2),
        _ => (pair(0) + pair(2)) + (pair(4) + pair(6)),
    }
}
