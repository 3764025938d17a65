//! A part of a row that several blocks share, one part each: staged in shared memory, reduced from
//! there, and read again for the gradients. Targets are classes.

use super::Lanes;
use super::peeled::Peeled;
use super::tile::{FLIGHT, Tile, WARP_FLIGHT};
use crate::abi::{CrossEntropyArgs, SPLIT_TILE_VECTORS};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass};
use crate::cross_entropy::row_group::RowGroup;
use crate::cross_entropy::staged::StagedLogits;
use crate::cross_entropy::stats::Stats;
use crate::cut::Row;
use crate::element::{Element, unrolled};
use cuda_std::memory::end_copies;
use cuda_std::warp::{WARP_SIZE, lane_id};

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// Part `part` of the row, `part_vectors` vectors, with a stage in shared memory: number
    /// `stage` of several. Its peeled elements are those of [`new`](Self::new) alone.
    #[inline(always)]
    pub(crate) fn part(self, args: &CrossEntropyArgs, part: u32, stage: u32) -> Self {
        const { assert!(WARP_FLIGHT == SPLIT_TILE_VECTORS) };
        let first = part * args.part_vectors;
        let cut = self.cut.until(first + args.part_vectors);
        Lanes { cut, staged: StagedLogits::in_stage(args, stage, first), ..self }
    }

    /// Calls `body` with the first vector of each tile of the part that is this warp's.
    #[inline(always)]
    fn for_each_tile(&self, group: RowGroup, mut body: impl FnMut(u32)) {
        let mut first = self.staged.first() + group.warp() * WARP_FLIGHT;
        while first < self.cut.end {
            body(first);
            first += group.warps() * WARP_FLIGHT;
        }
    }

    /// Whether all vectors of the tile that begins with this one are the row's, and staged.
    #[inline(always)]
    fn is_tile_staged(&self, first: u32) -> bool {
        let end = first + WARP_FLIGHT;
        self.cut.has_all(first, end) && end <= self.staged.end()
    }

    /// Issues the copies of this thread's vectors of the part to its stage, as one batch.
    ///
    /// # Safety
    /// 1. The kernels' conditions.
    /// 2. This thread no longer reads what it staged there before.
    #[inline(always)]
    pub(crate) unsafe fn stage_part(&self, group: RowGroup) {
        self.for_each_tile(group, |first| {
            let vector = first + lane_id();
            let at = self.input.vector(self.cut.vector(vector));
            let is_whole = self.is_tile_staged(first);
            unrolled!(for k in 0..FLIGHT; {
                let offset = k as u32 * WARP_SIZE;
                let index = vector + offset;
                if is_whole || self.cut.has(index) && self.staged.has(index) {
                    // SAFETY: the caller's conditions; each vector is copied by one thread.
                    unsafe { self.staged.stage(vector, at, offset) };
                }
            });
        });
        end_copies();
    }

    /// A tile of the part: from its stage or, where that is too small, from global memory. Unless
    /// `read`, nothing is loaded, and all elements are −∞.
    ///
    /// # Safety
    /// If `read`: the kernels' condition 1, and this thread has staged the part and waited for it.
    #[inline(always)]
    unsafe fn tile_of_stage(&self, first: u32, read: bool, group: RowGroup) -> Tile<FLIGHT> {
        let mut tile = Tile::unread(first + (group.lane & (WARP_SIZE - 1)), WARP_SIZE);
        // SAFETY: the caller's conditions.
        unsafe {
            if !read || !self.is_tile_staged(first) {
                return self.checked_tile(tile, self.staged, read);
            }
            unrolled!(for k in 0..FLIGHT; {
                tile.x[k] = self.staged.get(tile.first, k as u32 * WARP_SIZE);
            });
        }
        tile
    }

    /// The warp's statistics of the part, and of the threads' `peeled` elements.
    ///
    /// # Safety
    /// 1. The kernels' condition 1.
    /// 2. This thread has [staged](Self::stage_part) the part and waited for it.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_part(
        &self,
        pass: &Pass<'_, E, { mode::CLASS }>,
        peeled: Option<Peeled<E>>,
        group: RowGroup,
    ) -> Stats<E::Real> {
        // SAFETY: the caller's conditions.
        let mut stats = unsafe { Self::stats_of_peeled(pass, peeled) };
        self.for_each_tile(group, |first| {
            // SAFETY: as above.
            unsafe {
                let tile = self.tile_of_stage(first, true, group);
                self.absorb_tile(pass, &mut stats, &tile);
            }
        });
        stats.of_group::<{ mode::CLASS }>(WARP_SIZE)
    }

    /// The logit of the row's class, in the thread that writes the gradient of its vector.
    ///
    /// # Safety
    /// As [`stats_of_part`](Self::stats_of_part); the block has a power of two of warps.
    #[inline(always)]
    pub(crate) unsafe fn class_in_part(&self, class: u32, group: RowGroup) -> Option<E::Real> {
        let vector = self.cut.vector_of(class);
        let within = vector.wrapping_sub(self.staged.first());
        let is_warps = (within / WARP_FLIGHT) & (group.warps() - 1) == group.warp();
        let is_lanes = within % WARP_SIZE == lane_id();
        if vector < self.staged.first() || !self.cut.has(vector) || !is_warps || !is_lanes {
            return None;
        }
        // SAFETY: the caller's conditions.
        let logit: E = unsafe {
            if self.staged.has(vector) {
                self.staged.element(vector, self.cut.index_in_vector(class))
            } else {
                self.input.load(class)
            }
        };
        Some(logit.widen())
    }

    /// Writes the gradients of the part to the rows `to`, all as of logits that are not the
    /// class's.
    ///
    /// # Safety
    /// 1. The kernels' conditions 1 and 3.
    /// 2. If the row counts, this thread has [staged](Self::stage_part) the part and waited for it.
    #[inline(always)]
    pub(crate) unsafe fn gradients_of_part(
        &self,
        pass: &Pass<'_, E, { mode::CLASS }>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        group: RowGroup,
    ) {
        self.for_each_tile(group, |first| {
            // SAFETY: the caller's conditions. A row that does not count is not read.
            unsafe {
                let tile = self.tile_of_stage(first, label.counts, group);
                self.gradients_of_tile(pass, None, factors, to, &tile);
            }
        });
    }
}
