//! Short rows with a loss each, and short rows with gaps whose scalar loss and gradients are
//! computed in one pass: a warp stages whole rows of input and target in shared memory by
//! asynchronous copies, and one lane or several compute each row. Gradients are written over the
//! tile (or, if they are aligned differently in global memory, to a tile of their own) and stored
//! from there.
//!
//! Warps do not wait for each other until the end of a launch with one loss. The tiles are laid out
//! as in cross-entropy's packed kernels, with the target in place of the probabilities.

mod any;
mod part;

use super::Pairwise;
use super::pass::{Pass, SUMS, Sums};
use super::row::of_lane;
use crate::abi::{Matrix, reduction};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::{Workspace, grid_sums};
use crate::row::Split;
use crate::tile::{Shared, Tile};
use cuda_std::hint::{opaque, opaque_vec16};
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp, warp_id};
use part::{Part, Rows};

/// Accesses to a row that a lane has in flight in the forward pass, where each is less than a
/// vector.
const FLIGHT: u32 = 2;

/// What a lane has accumulated of a row: its terms, and the greatest ranks of its pairs.
struct Terms<R> {
    sums: Sums<R>,
    ranks: [u32; 2],
}

impl<R: Real> Terms<R> {
    const NONE: Self = Terms { sums: Sums::NONE, ranks: [0; 2] };

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn are_plain(&self) -> bool {
        self.ranks[0].max(self.ranks[1]) < R::PLAIN_RANKS
    }
}

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// Computes the tiles of this warp: with two stages, one tile while the next is copied.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions hold.
    /// 2. `args.packed` and the launch are as [`PairwiseArgs`](crate::abi::PairwiseArgs) says.
    /// 3. All threads of the grid call it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn packed<const GRADS: bool>(&self) {
        let args = self.args;
        let tile = &args.packed;
        let warps = block_dim_x() / WARP_SIZE;
        let step = grid_dim_x() * warps;
        let is_double = tile.stage_bytes != 0;
        let lag = if is_double { step } else { 0 };
        let warp = || opaque(warp_id().into()) as u32 * tile.warp_bytes;
        let (mut base, mut is_ahead) = (warp(), false);
        let mut next = block_idx_x() * warps + warp_id();
        let mut sum = 0.0;
        // SAFETY: the caller's conditions; the lanes have synchronised since they read the stage
        // that is loaded.
        unsafe {
            let scale =
                if GRADS && args.upstream.row_stride == 0 { self.scale(0) } else { E::Real::ZERO };
            // With two stages, the first iteration only loads, so that the code of a load exists
            // once.
            while next < tile.count || is_ahead {
                if next < tile.count {
                    self.load_async(base, next);
                }
                end_copies();
                // The other stage, if there is one.
                base = 2 * warp() + tile.stage_bytes - base;
                if is_ahead || !is_double {
                    if is_double {
                        wait_for_copies::<1>();
                    } else {
                        wait_for_copies::<0>();
                    }
                    sync_warp();
                    let rows = self.rows(base, next - lag);
                    self.compute::<GRADS>(&rows, scale, &mut sum);
                    if GRADS {
                        sync_warp();
                        self.store(&rows);
                    }
                    // The stage is free for another tile.
                    sync_warp();
                }
                is_ahead = is_double && next < tile.count;
                next += step;
            }
            if GRADS && args.reduction == reduction::SCALAR {
                let workspace = Workspace::new(args.workspace);
                grid_sums([sum], workspace, |[sum]| self.finish(0, sum));
            }
        }
    }

    /// The rows of tile `number`, in the stage from byte `base` on.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn rows(&self, base: u32, number: u32) -> Rows<E> {
        let args = self.args;
        let tile = &args.packed;
        let count = if number + 1 == tile.count { tile.last_rows } else { tile.rows };
        let shared = Shared::new();
        let first = u64::from(number) * u64::from(tile.rows);
        let of = |tensor: Matrix, base: u32, step: u32| {
            Tile::new(shared, tensor, first, args.cols as u32, base, step)
        };
        let input = of(args.input, base, tile.step[0]);
        let target = of(args.target, base + tile.bytes, tile.step[1]);
        let (mut grad_input, mut grad_target) = (input, target);
        if tile.gradients != 0 {
            let base = warp_id() * tile.warp_bytes + tile.gradients;
            grad_input = of(args.grad_input, base, tile.store_step[0]);
            grad_target = of(args.grad_target, base + tile.bytes, tile.store_step[1]);
        }
        Rows { shared, first, count, input, target, grad_input, grad_target }
    }

    /// Starts the copies of tile `number` to the stage from byte `base` on.
    ///
    /// # Safety
    /// As [`packed`](Self::packed); the lanes have synchronised since they read the stage.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_async(&self, base: u32, number: u32) {
        let rows = self.rows(base, number);
        let is_last = number + 1 == self.args.packed.count;
        // A loop that is not unrolled, so that the code of a copy exists once.
        let mut from = rows.input;
        let mut is_target = false;
        loop {
            // SAFETY: the caller's conditions.
            unsafe { from.load_async(&self.args.packed, rows.count, is_last) };
            if opaque(is_target.into()) != 0 {
                return;
            }
            (from, is_target) = (rows.target, true);
        }
    }

    /// Stores the gradients of a tile.
    ///
    /// # Safety
    /// As [`packed`](Self::packed); the warp has synchronised since they were written.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store(&self, rows: &Rows<E>) {
        let args = self.args;
        // A loop that is not unrolled, so that the code of a store exists once.
        let (mut from, mut to) = (rows.grad_input, args.grad_input);
        let mut is_target = false;
        loop {
            if to.start != 0 {
                // SAFETY: the caller's conditions.
                unsafe { from.store(&args.packed, rows.count, to, rows.first) };
            }
            if opaque(is_target.into()) != 0 {
                return;
            }
            (from, to, is_target) = (rows.grad_target, args.grad_target, true);
        }
    }

    /// Computes the rows of a tile.
    ///
    /// # Safety
    /// As [`packed`](Self::packed); the copies of the tile are complete.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn compute<const GRADS: bool>(&self, rows: &Rows<E>, scale: E::Real, sum: &mut f64) {
        let bytes = rows.access_bytes::<GRADS>(&self.args.packed);
        // SAFETY: the caller's conditions.
        unsafe {
            let waiting = match bytes {
                16 => self.turns::<16, GRADS>(rows, scale, sum),
                8 if size_of::<E>() == 8 => self.turns::<8, GRADS>(rows, scale, sum),
                4 if size_of::<E>() < 8 => self.turns::<4, GRADS>(rows, scale, sum),
                _ if size_of::<E>() == 2 => self.turns::<2, GRADS>(rows, scale, sum),
                _ => 0,
            };
            if L::HAS_RANKS {
                self.turns_of_any::<GRADS>(rows, bytes, waiting, scale, sum);
            }
        }
    }

    /// Computes the rows of a tile by accesses of `BYTES` bytes: in each turn, as many rows as
    /// the warp has lanes for. Returns the turns in which a row has pairs that are not plain: if
    /// bit k is set, the rows of turn k are left to [`turns_of_any`](Self::turns_of_any).
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn turns<const BYTES: usize, const GRADS: bool>(
        &self,
        rows: &Rows<E>,
        scale: E::Real,
        sum: &mut f64,
    ) -> u32 {
        let args = self.args;
        let split = Split::new(args.packed.warp_rows_shift, lane_id());
        let (mut turn, mut waiting) = (0, 0_u32);
        while turn << split.rows_shift < rows.count {
            let index = (turn << split.rows_shift) + split.slot;
            let part = rows.part::<BYTES>(index, split, &args.packed);
            let edges = part.edges::<E, BYTES>();
            let mut terms = Terms::NONE;
            if index < rows.count {
                // SAFETY: the caller's conditions; the part is the lane's.
                unsafe {
                    self.add_terms::<BYTES, GRADS>(part, &mut terms);
                    if let Some(edges) = edges {
                        self.add_terms::<2, true>(edges, &mut terms);
                    }
                }
            }
            if L::HAS_RANKS && any(!terms.are_plain()) {
                waiting |= 1 << turn;
            } else {
                if GRADS && index < rows.count {
                    // SAFETY: the caller's conditions; no other lane accesses the part.
                    unsafe {
                        let scale = self.scale_of_row(rows, index, scale);
                        self.store_gradients::<BYTES>(part, scale);
                        if let Some(edges) = edges {
                            self.store_gradients::<2>(edges, scale);
                        }
                    }
                }
                // SAFETY: the caller's conditions.
                unsafe {
                    self.add_row::<GRADS>(rows, split, index, terms.sums.total(L::UNIT), sum)
                };
            }
            // Opaque, so that the compiler does not unroll this loop.
            turn = opaque(u64::from(turn + 1)) as u32;
        }
        waiting
    }

    /// The scale of the gradients of row `index`; `scale`, if all rows share an upstream gradient.
    ///
    /// # Safety
    /// As [`compute`](Self::compute); the tile has the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn scale_of_row(&self, rows: &Rows<E>, index: u32, scale: E::Real) -> E::Real {
        if self.args.upstream.row_stride == 0 {
            return scale;
        }
        // SAFETY: the caller's conditions.
        unsafe { self.scale(rows.first + u64::from(index)) }
    }

    /// Adds what a lane has summed of row `index` to the other lanes' sums, and writes the loss of
    /// the row; or adds it to `sum`, if the loss is a scalar. Nothing is written for rows beyond
    /// the tile's last one.
    ///
    /// # Safety
    /// As [`compute`](Self::compute); all lanes of the warp call it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_row<const GRADS: bool>(
        &self,
        rows: &Rows<E>,
        split: Split,
        index: u32,
        of_lane: E::Real,
        sum: &mut f64,
    ) {
        if GRADS && self.args.reduction == reduction::SCALAR {
            *sum += of_lane.to_f64();
            return;
        }
        let of_row = split.over_row(of_lane.to_f64(), |a, b| a + b);
        if split.part == 0 && index < rows.count {
            // SAFETY: the caller's conditions; no other lane has this row.
            unsafe { self.finish(rows.first + u64::from(index), of_row) };
        }
    }

    /// Adds the terms of a part, as if all pairs were plain; one access at a time with `ONE`.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add_terms<const BYTES: usize, const ONE: bool>(
        &self,
        part: Part,
        terms: &mut Terms<E::Real>,
    ) {
        let mut at = part.first;
        // SAFETY: the caller's conditions.
        unsafe {
            while !ONE && BYTES < 16 && at + (FLIGHT - 1) * part.step < part.end {
                self.add::<BYTES, { FLIGHT as usize }>(part, at, terms);
                at = opaque(u64::from(at + FLIGHT * part.step)) as u32;
            }
            while at < part.end {
                self.add::<BYTES, 1>(part, at, terms);
                at = opaque(u64::from(at + part.step)) as u32;
            }
        }
    }

    /// Adds the terms of access `first` of a part and of the `N` - 1 after it, as if all pairs were
    /// plain.
    ///
    /// # Safety
    /// As [`compute`](Self::compute); the part has the accesses.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn add<const BYTES: usize, const N: usize>(
        &self,
        part: Part,
        first: u32,
        Terms { sums, ranks }: &mut Terms<E::Real>,
    ) {
        let mut pairs = [[Vec16::default(); 2]; MAX_LANES];
        unrolled!(for k in 0..N; {
            // SAFETY: the caller's conditions.
            pairs[k] = unsafe { part.load::<BYTES>(first + k as u32 * part.step) };
        });
        unrolled!(for k in 0..N; {
            let [x, t] = pairs[k];
            unrolled!(for lane in 0..MAX_LANES; {
                if lane < BYTES / size_of::<E>() {
                    let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                    let [of_x, of_t] = self.loss.ranks(x, t);
                    *ranks = [ranks[0].max(of_x), ranks[1].max(of_t)];
                    let [a, b] = self.loss.term::<true>(x, t);
                    let sum = (k + lane) % SUMS;
                    sums.plain[sum] = a.fma(b, sums.plain[sum]);
                }
            });
        });
    }

    /// Writes the gradients of a part, whose pairs are plain, to the tiles of gradients.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_gradients<const BYTES: usize>(&self, part: Part, scale: E::Real) {
        let mut at = part.first;
        while at < part.end {
            // SAFETY: the caller's conditions; the access is the lane's, and both its vectors are
            // loaded.
            unsafe {
                let [x, t] = part.load::<BYTES>(at);
                if self.args.grad_input.start != 0 {
                    let gradients = self.gradients::<BYTES, false>(x, t, scale);
                    part.store::<BYTES>(0, at, gradients);
                }
                // Opaque: values that both gradients need would occupy registers from one to the
                // other.
                if opaque(self.args.grad_target.start) != 0 {
                    let (x, t) = (opaque_vec16(x), opaque_vec16(t));
                    let gradients = self.gradients::<BYTES, true>(x, t, scale);
                    part.store::<BYTES>(1, at, gradients);
                }
            }
            at = opaque(u64::from(at + part.step)) as u32;
        }
    }

    /// The gradients of the first `BYTES` bytes of a vector of plain pairs: those with respect to
    /// the target with `BY_TARGET`, otherwise to the input.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn gradients<const BYTES: usize, const BY_TARGET: bool>(
        &self,
        x: Vec16,
        t: Vec16,
        scale: E::Real,
    ) -> Vec16 {
        let mut values = [E::Real::ZERO; MAX_LANES];
        unrolled!(for lane in 0..MAX_LANES; {
            if lane < BYTES / size_of::<E>() {
                let (x, t) = (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
                values[lane] = if BY_TARGET {
                    self.loss.grad_target::<true>(x, t, scale)
                } else {
                    self.loss.grad_input::<true>(x, t, scale)
                };
            }
        });
        E::narrow_all(values)
    }
}
