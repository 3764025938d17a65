//! The logit of a row's class, taken from the tile that has it. A separate load would arrive no
//! earlier than the row and, if gradients are written in place, might read a gradient.

use super::Lanes;
use super::tile::Tile;
use super::vector::{get, select_vector, widen};
use crate::cross_entropy::label::Label;
use crate::cross_entropy::mode;
use crate::cross_entropy::row_group::RowGroup;
use crate::cross_entropy::staged::StagedTiles;
use crate::element::{Element, unrolled};
use cuda_std::hint::opaque_vec16;

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// The logit of the row's class, if it is in this thread's tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn class_in_tile<const MODE: u32, const N: usize>(
        &self,
        label: &Label<E::Real>,
        tile: &Tile<N>,
    ) -> Option<E::Real> {
        let (mut owns, mut logit) = (false, None);
        if MODE != mode::PROBABILITIES {
            let vector = self.cut.vector_of(label.class);
            unrolled!(for k in 0..N; { owns = owns || tile.vector_index(k) == vector; });
        }
        if owns {
            unrolled!(for k in 0..N; {
                if let Some(at) = self.span(tile, k).lane_of(label.class) {
                    // `opaque_vec16` makes the compiler widen the vector again: otherwise it keeps
                    // the widened values of all vectors in registers for this one use.
                    logit = Some(get::<E>(&widen::<E>(opaque_vec16(tile.x[k])), at));
                }
            });
        }
        logit
    }

    /// The logit of the class of a row in the registers of a warp, in the lane whose tile has it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn logit_of_class<const MODE: u32, const N: usize>(
        &self,
        class: i64,
        tile: &Tile<N>,
        group: RowGroup,
    ) -> Option<E::Real> {
        const { assert!(Self::ROW_IN_WARP) };
        if MODE == mode::PROBABILITIES {
            return None;
        }
        // If `class` is not a class, this finds any logit or none, and no caller uses it.
        let vector = self.cut.vector_of(class as u32);
        let distance = vector.wrapping_sub(tile.first);
        let k = distance >> group.threads.trailing_zeros();
        let is_beyond = if Self::HAS_PEELED { !self.cut.has(vector) } else { k >= N as u32 };
        if distance & (group.threads - 1) != 0 || is_beyond {
            return None;
        }
        let x = select_vector(tile.x, k);
        Some(get::<E>(&widen::<E>(x), self.cut.index_in_vector(class as u32)))
    }

    /// The logit of `class` from the tile that row group `index` of the block has
    /// [staged](Tile::stage).
    ///
    /// # Safety
    /// 1. A barrier separates staging from this call.
    /// 2. `class` is one of the row's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn staged_logit(&self, index: u32, class: u32, group: RowGroup) -> E::Real {
        const { assert!(Self::ROW_IN_WARP) };
        let vector = self.cut.vector_of(class);
        let thread = index * group.threads + (vector & (group.threads - 1));
        let k = vector >> group.threads.trailing_zeros();
        // SAFETY: the caller's conditions.
        let x: E = unsafe { StagedTiles::element(thread, k, self.cut.index_in_vector(class)) };
        x.widen()
    }
}
