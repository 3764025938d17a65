//! How the lanes of a warp share rows.

use cuda_std::warp::{WARP_SIZE, WarpShuffleValue};

/// How a warp is split among the rows that it works on at the same time, and a lane's position.
#[derive(Clone, Copy)]
pub(crate) struct Split {
    /// Rows that the warp works on at the same time, as a power of two.
    pub(crate) rows_shift: u32,
    /// Index of the lane's row among them.
    pub(crate) slot: u32,
    /// Index of the lane among the lanes of its row.
    pub(crate) part: u32,
}

impl Split {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new(rows_shift: u32, lane: u32) -> Self {
        Split { rows_shift, slot: lane & ((1 << rows_shift) - 1), part: lane >> rows_shift }
    }

    /// Combines `value` over the lanes that share a row; each of them has the result.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn over_row<T: WarpShuffleValue>(
        self,
        mut value: T,
        combine: impl Fn(T, T) -> T,
    ) -> T {
        let mut mask = 1 << self.rows_shift;
        while mask < WARP_SIZE {
            value = combine(value, value.shuffle_xor(mask));
            mask *= 2;
        }
        value
    }
}
