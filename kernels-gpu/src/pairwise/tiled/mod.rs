//! Long rows whose loss is reduced by row, and long rows with gaps whose loss and gradients are
//! computed in one pass. A block copies the tiles of its rows to shared memory asynchronously; each
//! warp computes one tile while its next one is copied.
//!
//! Rows are cut into tiles, and a warp computes a row alone; the warps of a block share the longest
//! rows, and those that remain. A thread sums its terms in a register. Blocks are persistent.

mod run;
mod stage;
mod sums;
mod tile;

use super::Pairwise;
use super::pass::Pass;
use super::row::{Lanes, are_plain, of_lane};
use crate::abi::{TILED_BLOCK, reduction};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::{Workspace, grid_sums};
use cuda_std::hint::opaque_vec16;
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
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
    /// Whether there is a loss for each row. Without gradients, there always is.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn sums_items<const GRADS: bool>(&self) -> bool {
        !GRADS || self.pass.args.reduction == reduction::ROWS
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
            // The first iteration only loads, so that the code of a load exists once.
            while has_tile || next.left > 0 {
                let has_next = next.left > 0;
                if has_next {
                    if next.is_first {
                        next_run = Run::new::<GRADS>(self.pass, next.run(args));
                    }
                    self.shared.stage(turn ^ 1).load_async(&next_run, next.number);
                }
                end_copies();
                if has_tile {
                    if self.has_scales && tile.is_first {
                        scale = self.pass.scale(run.row());
                    }
                    // Before the wait for the copies, so that the loads of the edges overlap with
                    // it.
                    if tile.number + 1 == args.tiles.of_row {
                        self.edges::<GRADS>(&run, scale, &mut sum);
                    }
                    wait_for_copies::<1>();
                    sync_warp();
                    self.vectors::<GRADS>(&run, tile, turn, scale, &mut sum);
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

    /// Computes the elements of a row before its first [whole](Run::whole) vector and after its
    /// last one, each in a separate lane.
    ///
    /// # Safety
    /// As [`Pass::tiled`]; all lanes of the warp call it.
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
    /// As [`Pass::tiled`]; the tile is in stage `turn`.
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
        let [begin, end] = run.slots(first, vectors);
        // Nearly all vectors are plain. The code for others exists once, in a loop, and loads them
        // again, so that it takes no registers: bit k is set if the thread's vector k is left to
        // it.
        let mut waiting = 0_u32;
        let mut slot = lane_id();
        // SAFETY: the caller's conditions; the vectors are the tile's, and whole.
        unsafe {
            while slot < end {
                if slot >= begin {
                    let [x, t] = stage.get(run, slot);
                    if are_plain::<E, L>(run.tensors.loss, x, t) {
                        *sum += vector::<E, L, GRADS, true>(run, first + slot, [x, t], scale);
                    } else {
                        waiting |= 1 << (slot / WARP_SIZE);
                    }
                }
                slot += WARP_SIZE;
            }
            while waiting != 0 {
                slot = waiting.trailing_zeros() * WARP_SIZE + lane_id();
                waiting &= waiting - 1;
                // Opaque: LLVM would join the two vectors in local memory.
                let pair = stage.get(run, slot).map(opaque_vec16);
                *sum += vector::<E, L, GRADS, false>(run, first + slot, pair, scale);
            }
        }
    }
}

/// Writes the gradients of a vector, and returns the sum of its terms. With `PLAIN`, all pairs are
/// plain.
///
/// # Safety
/// As [`Pass::tiled`]; the vector is whole.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
unsafe fn vector<E: Element, L: Pairwise<E::Real>, const GRADS: bool, const PLAIN: bool>(
    run: &Run<'_, E, L>,
    vector: u32,
    [x, t]: [Vec16; 2],
    scale: E::Real,
) -> f64 {
    let mut terms = [E::Real::ZERO; MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
        let [a, b] = run.tensors.loss.term::<PLAIN>(x, t);
        terms[lane] = a * b;
    });
    if GRADS {
        // SAFETY: the caller's conditions.
        unsafe {
            let (tensors, vector) = (&run.tensors, u64::from(vector));
            let (scales, lanes) = ([scale; MAX_LANES], Lanes::all::<E>());
            tensors.store_grads::<PLAIN, false>(vector, x, t, scales, lanes);
            // Opaque: values that both gradients need would take more registers than there are.
            let (x, t) = (opaque_vec16(x), opaque_vec16(t));
            tensors.store_grads::<PLAIN, true>(vector, x, t, scales, lanes);
        }
    }
    let unit = if PLAIN { L::UNIT } else { E::Real::ONE };
    (sum_of::<E>(terms) * unit).to_f64()
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
