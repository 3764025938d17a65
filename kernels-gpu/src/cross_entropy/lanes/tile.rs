//! Register tiles: the vectors of a row that a thread loads at once.

use super::Lanes;
use super::vector::neg_infinity;
use crate::cross_entropy::row_group::RowGroup;
use crate::cross_entropy::staged::{StagedLogits, StagedTiles};
use crate::cross_entropy::stats::Relative;
use crate::element::{Element, MAX_LANES, unrolled};
use cuda_std::hint::opaque_vec16;
use cuda_std::memory::Vec16;
use cuda_std::warp::WARP_SIZE;

/// Vectors of a thread's tile, where a row is streamed through registers: the loads of all are in
/// flight at the same time.
pub(crate) const FLIGHT: usize = 4;

/// Vectors of a warp's tile, where a row is streamed through registers.
pub(super) const WARP_FLIGHT: u32 = FLIGHT as u32 * WARP_SIZE;

/// N vectors of a row in a thread's registers: vectors `first`, `first + stride`, … of the row.
/// Vectors beyond the row are filled with −∞, whose exponentials are 0.
#[derive(Clone, Copy)]
pub(crate) struct Tile<const N: usize> {
    pub(super) first: u32,
    pub(super) stride: u32,
    /// The logits, ...
    pub(super) x: [Vec16; N],
    /// ... and the probabilities of the target, where it has any.
    pub(super) t: [Vec16; N],
}

impl<const N: usize> Tile<N> {
    /// A tile of zeros, to be loaded.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn unread(first: u32, stride: u32) -> Self {
        Tile { first, stride, x: [Vec16::default(); N], t: [Vec16::default(); N] }
    }

    /// Replaces all elements by −∞: those of an ignored row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn forget<E: Element>(&mut self) {
        unrolled!(for k in 0..N; {
            (self.x[k], self.t[k]) = (neg_infinity::<E>(), neg_infinity::<E>());
        });
    }

    /// Hides from the compiler that the values are those loaded before, so that it widens 16-bit
    /// elements a second time. Otherwise it keeps the widened values alive between the two uses,
    /// in twice as many registers.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn rematerialize(mut self) -> Self {
        unrolled!(for k in 0..N; {
            (self.x[k], self.t[k]) = (opaque_vec16(self.x[k]), opaque_vec16(self.t[k]));
        });
        self
    }

    /// The tile, with a position that the caller has recomputed: if the position were kept since
    /// the load, it would occupy registers.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn at(self, first: u32, stride: u32) -> Self {
        Tile { first, stride, ..self }
    }

    /// Stages the logits in shared memory for [`Lanes::staged_logit`].
    ///
    /// # Safety
    /// As [`StagedTiles::stage`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn stage(&self) {
        // SAFETY: the caller's conditions.
        unsafe { StagedTiles::stage(self.x) };
    }

    /// The index of vector `k` in the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn vector_index(&self, k: usize) -> u32 {
        self.first + k as u32 * self.stride
    }

    /// The base of exponentials relative to `center`. If the center is [too far](Relative::is_far)
    /// from 0, first subtracts it from the tile's logits. The difference is rounded only for
    /// logits so far below the center that their exponential is 0 either way.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn relative_to<E: Element, const MODE: u32>(
        &mut self,
        center: E::Real,
        scale: E::Real,
    ) -> Relative<E::Real, MODE> {
        if Relative::<_, MODE>::is_far(center, scale) {
            unrolled!(for k in 0..N; {
                let mut differences = [E::LOWEST; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let x = E::extract(self.x[k], lane as u32).widen();
                    differences[lane] = E::narrow(x - center);
                });
                self.x[k] = E::pack(differences);
            });
        }
        Relative::to(center, scale)
    }
}

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// Loads the thread's tile of vectors `first`, `first + group.threads`, … of the row.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn tile<const N: usize>(&self, first: u32, group: RowGroup) -> Tile<N> {
        let mut tile = Tile::unread(first, group.threads);
        if !Self::ONE_TILE {
            // SAFETY: the caller's condition.
            return unsafe { self.checked_tile(tile, StagedLogits::NONE, true) };
        }
        let from = self.cut.vector(first);
        unrolled!(for k in 0..N; {
            (tile.x[k], tile.t[k]) = (neg_infinity::<E>(), neg_infinity::<E>());
            if self.span(&tile, k).count > 0 {
                let offset = k as u32 * tile.stride;
                // SAFETY: the caller's condition.
                unsafe {
                    tile.x[k] = self.input.load_vector(from, offset);
                    if !self.target.is_null() {
                        tile.t[k] = self.target.load_vector(from, offset);
                    }
                }
            }
        });
        tile
    }

    /// The first tile of the warp: of the whole row, or of part `split` of a split row.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn tile_of_warp(&self, split: u32, group: RowGroup) -> Tile<FLIGHT> {
        let first = (split * group.warps() + group.warp()) * WARP_FLIGHT;
        // SAFETY: the caller's condition.
        unsafe { self.tile_of_lanes(first, WARP_SIZE, true, group) }
    }

    /// The tile that is part `part` of the row, where a row group is a block and loads one part.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn tile_of_part<const N: usize>(
        &self,
        part: u32,
        group: RowGroup,
    ) -> Tile<N> {
        if Self::ONE_TILE {
            // SAFETY: the caller's condition.
            return unsafe { self.tile(group.lane, group) };
        }
        let first = (part * group.warps() + group.warp()) * N as u32 * WARP_SIZE;
        // SAFETY: as above.
        unsafe { self.tile_of_lanes(first, WARP_SIZE, true, group) }
    }

    /// The tile that a warp, or `lanes` lanes of it, loads from vector `first` on: consecutive
    /// lanes load consecutive vectors, and the vectors of a thread are `lanes` apart. Logits that
    /// are [staged](Self::stage) are read from shared memory. If all of the tile is within the
    /// row, there is no bounds check for each vector. Unless `read`, nothing is loaded, and all
    /// elements are −∞.
    ///
    /// # Safety
    /// If `read`:
    /// 1. As [`tile`](Self::tile).
    /// 2. This thread has staged those of its vectors in the tile that are to be staged, and has
    ///    waited for the copies.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn tile_of_lanes<const N: usize>(
        &self,
        first: u32,
        lanes: u32,
        read: bool,
        group: RowGroup,
    ) -> Tile<N> {
        let mut tile = Tile::unread(first + (group.lane & (lanes - 1)), lanes);
        let (end, from) = (first + N as u32 * lanes, self.cut.vector(tile.first));
        // SAFETY: the caller's conditions.
        unsafe {
            if read && self.staged.has_any() && end <= self.staged_end() {
                unrolled!(for k in 0..N; {
                    tile.x[k] = self.staged.get(tile.first, k as u32 * lanes);
                });
            } else if read && self.cut.has_all(first, end) && first >= self.staged.end() {
                unrolled!(for k in 0..N; {
                    tile.x[k] = self.input.load_vector(from, k as u32 * lanes);
                });
            } else {
                return self.checked_tile(tile, self.staged, read);
            }
            if !self.target.is_null() {
                unrolled!(for k in 0..N; {
                    tile.t[k] = self.target.load_vector(from, k as u32 * lanes);
                });
            }
            tile
        }
    }

    /// Loads a tile with a bounds check for each vector. Logits that are `staged` are read from
    /// shared memory. Unless `read`, nothing is loaded, and all elements are −∞.
    ///
    /// # Safety
    /// As [`tile_of_lanes`](Self::tile_of_lanes).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn checked_tile<const N: usize>(
        &self,
        mut tile: Tile<N>,
        staged: StagedLogits,
        read: bool,
    ) -> Tile<N> {
        unrolled!(for k in 0..N; {
            let (vector, span) = (tile.vector_index(k), self.span(&tile, k));
            let read = read && span.count > 0;
            (tile.x[k], tile.t[k]) = (neg_infinity::<E>(), neg_infinity::<E>());
            // SAFETY: the caller's condition.
            unsafe {
                if read {
                    tile.x[k] = if staged.has(vector) {
                        staged.get(vector, 0)
                    } else {
                        self.input.load_vector(span, 0)
                    };
                    if !self.target.is_null() {
                        tile.t[k] = self.target.load_vector(span, 0);
                    }
                }
            }
        });
        tile
    }
}
