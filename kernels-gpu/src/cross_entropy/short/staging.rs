//! What the row groups of a block pass to its first warp in shared memory.

use super::super::stats::Stats;
use crate::element::{Real, unrolled};

/// The most rows of a block: one for each row group, of at least 2 threads.
const MAX_ROWS: usize = 128;

cuda_std::shared_array! {
    /// Six numbers for each of [`MAX_ROWS`] rows.
    fn rows_of_block() -> [u64; 768];
}

/// The statistics, class and logit of each of the block's rows, staged for the first warp. It
/// finishes all rows at once, in the time that each warp would need for its own few.
pub(super) struct RowsOfBlock;

impl RowsOfBlock {
    const CLASS: usize = 4;
    const LOGIT: usize = 5;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn index_of(part: usize, row: u32) -> u32 {
        part as u32 * MAX_ROWS as u32 + row
    }

    /// Stages the statistics of the block's row `row`: those parts that [`Stats::parts_used`]
    /// counts.
    ///
    /// # Safety
    /// 1. One thread stages each row, once.
    /// 2. A barrier is between this and every read.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn stage<R: Real>(row: u32, stats: Stats<R>, mode: u32) {
        let parts = stats.parts();
        unrolled!(for part in 0..4; {
            if part < Stats::<R>::parts_used(mode) {
                // SAFETY: the caller's conditions.
                unsafe { rows_of_block().set(Self::index_of(part, row), parts[part].to_bits64()) };
            }
        });
    }

    /// Stages the class of row `row`.
    ///
    /// # Safety
    /// As [`stage`](Self::stage).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn stage_class(row: u32, class: i64) {
        // SAFETY: the caller's conditions.
        unsafe { rows_of_block().set(Self::index_of(Self::CLASS, row), class.cast_unsigned()) };
    }

    /// Stages the logit of the class of row `row`.
    ///
    /// # Safety
    /// As [`stage`](Self::stage).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn stage_logit<R: Real>(row: u32, logit: R) {
        // SAFETY: the caller's conditions.
        unsafe { rows_of_block().set(Self::index_of(Self::LOGIT, row), logit.to_bits64()) };
    }

    /// The statistics of row `row`.
    ///
    /// # Safety
    /// They have been [staged](Self::stage), and a barrier is in between.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn staged<R: Real>(row: u32, mode: u32) -> Stats<R> {
        let mut parts = [R::ZERO; 4];
        unrolled!(for part in 0..4; {
            if part < Stats::<R>::parts_used(mode) {
                // SAFETY: the caller's condition.
                parts[part] = R::from_bits64(unsafe { rows_of_block().get(Self::index_of(part, row)) });
            }
        });
        Stats::of_parts(parts)
    }

    /// The class of row `row`.
    ///
    /// # Safety
    /// As [`staged`](Self::staged).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn staged_class(row: u32) -> i64 {
        // SAFETY: the caller's condition.
        unsafe { rows_of_block().get(Self::index_of(Self::CLASS, row)) }.cast_signed()
    }

    /// The logit of the class of row `row`.
    ///
    /// # Safety
    /// As [`staged`](Self::staged).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn staged_logit<R: Real>(row: u32) -> R {
        // SAFETY: the caller's condition.
        R::from_bits64(unsafe { rows_of_block().get(Self::index_of(Self::LOGIT, row)) })
    }
}
