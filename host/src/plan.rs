//! How work is cut into blocks. Pure functions of sizes: no device is asked, so that the same inputs
//! are summed in the same order on every device.

use kernels_gpu::abi::{MAX_PARTIALS, ROWS_BLOCK, reduction};
use std::num::NonZeroU32;

/// The shape of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Launch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

/// How the kernels for rows share the work; see [`PairwiseArgs`](kernels_gpu::abi::PairwiseArgs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowsLaunch {
    pub(crate) launch: Launch,
    pub(crate) team: NonZeroU32,
    pub(crate) splits: NonZeroU32,
}

/// What a kernel does in its one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// Reads, and sums.
    Forward,
    /// Reads and writes.
    Backward,
    /// All of it.
    ForwardBackward,
}

/// Groups of 16 bytes up to which an input is small: a block for each multiprocessor comes before a long one
/// for any.
const SMALL: usize = 256 << 10;

/// The most threads of all blocks of a pass that sums, and the most blocks of one that does not. Measured on an
/// H200 (`cargo xtask bench`).
#[rustfmt::skip]
const MOST: [(Pass, usize); 3] = [
    // A sum wants blocks that live long enough to pay for its end, ...
    (Pass::Forward,          132 * 64 * 512),
    // ... writes want blocks that begin in the order of memory, as the hardware starts them.
    (Pass::ForwardBackward,  132 * 256 * 512),
    (Pass::Backward,         usize::MAX),
];

/// The launch of a dense kernel over `len` elements of `element_bytes` each, by blocks of `threads` where there
/// is much to do. At least one block, even for nothing: it writes the loss.
pub(crate) fn elementwise(pass: Pass, len: usize, element_bytes: usize, threads: u32) -> Launch {
    let groups = (len / (16 / element_bytes)).max(1);
    if groups <= SMALL {
        let threads = threads.min(256);
        return Launch { blocks: groups.div_ceil(threads as usize) as u32, threads };
    }
    // What sums and writes elements of 16 bits needs so many registers that only short blocks overlap.
    let short = pass == Pass::ForwardBackward && element_bytes == 2;
    let threads = if short { threads.min(256) } else { threads };
    // Groups that a thread of the kernels has in flight, at most: more would leave blocks without a tile.
    let flight = if pass == Pass::ForwardBackward { 4 } else { 2 };
    let tiles = groups.div_ceil(threads as usize * flight);
    let &(_, most) =
        MOST.iter().find(|(of, _)| *of == pass).expect("there is a line for each pass");
    let mut most = most / threads as usize;
    if pass != Pass::Backward {
        most = most.min(MAX_PARTIALS as usize);
    }
    Launch { blocks: tiles.min(most).min(i32::MAX as usize) as u32, threads }
}

/// Blocks that keep every multiprocessor busy: fewer rows than that are split.
const BUSY: usize = 132 * 8;
/// Groups of 16 bytes that a part of a row has at least.
const LEAST_PART: usize = 4 * ROWS_BLOCK as usize;

/// The launch of a kernel for `rows` rows of `cols` elements of `element_bytes` each. Short rows get a few
/// threads each, longer ones a warp, long ones a block, and long ones that are few several blocks.
pub(crate) fn rows(kind: u32, rows: usize, cols: usize, element_bytes: usize) -> RowsLaunch {
    let groups = cols.div_ceil(16 / element_bytes).max(1);
    let threads = ROWS_BLOCK as usize;
    let team = match groups {
        0..=32 => groups.next_power_of_two(),
        33..=256 => 32,
        _ => threads,
    };
    let mut splits = 1;
    if team == threads && rows < BUSY {
        splits = BUSY.div_ceil(rows.max(1)).min(groups / LEAST_PART).max(1);
        if kind == reduction::ROWS {
            splits = splits.min(MAX_PARTIALS as usize / rows.max(1));
        }
    }
    let blocks = (rows * splits).div_ceil(threads / team).max(1);
    let most = if kind == reduction::SCALAR { 132 * 64 } else { i32::MAX as usize };
    let number = |value: usize| NonZeroU32::new(value as u32).expect("at least one");
    RowsLaunch {
        launch: Launch { blocks: blocks.min(most) as u32, threads: ROWS_BLOCK },
        team: number(team),
        splits: number(splits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSES: [Pass; 3] = [Pass::Forward, Pass::Backward, Pass::ForwardBackward];

    #[test]
    fn a_launch_has_a_block_even_for_nothing() {
        for pass in PASSES {
            assert_eq!(elementwise(pass, 0, 4, 512).blocks, 1);
            assert_eq!(elementwise(pass, 1, 4, 512).blocks, 1);
        }
    }

    #[test]
    fn a_launch_that_sums_has_room_for_its_partial_sums() {
        for len in (0..45).map(|power| 1 << power) {
            for element_bytes in [2, 4, 8] {
                assert!(elementwise(Pass::Forward, len, element_bytes, 512).blocks <= MAX_PARTIALS);
                assert!(
                    elementwise(Pass::ForwardBackward, len, element_bytes, 512).blocks
                        <= MAX_PARTIALS
                );
            }
        }
    }

    #[test]
    fn few_elements_go_to_many_multiprocessors() {
        let launch = elementwise(Pass::Forward, 128 * 1000, 4, 512);
        assert_eq!(launch, Launch { blocks: 125, threads: 256 });
    }

    #[test]
    fn many_elements_go_to_long_blocks() {
        let launch = elementwise(Pass::Forward, 1 << 30, 4, 512);
        assert_eq!(launch, Launch { blocks: 8448, threads: 512 });
        let launch = elementwise(Pass::ForwardBackward, 1 << 30, 4, 512);
        assert_eq!(launch, Launch { blocks: 33792, threads: 512 });
        let launch = elementwise(Pass::Backward, 1 << 30, 4, 512);
        assert_eq!(launch, Launch { blocks: 262_144, threads: 512 });
    }

    #[test]
    fn short_rows_share_a_warp() {
        let plan = rows(reduction::ROWS, 1000, 10, 4);
        assert_eq!((plan.team.get(), plan.splits.get()), (4, 1));
        assert_eq!(plan.launch.blocks, 1000_u32.div_ceil(256 / 4));
    }

    #[test]
    fn long_rows_get_a_block_each() {
        let plan = rows(reduction::ROWS, 16384, 16384, 4);
        assert_eq!((plan.team.get(), plan.splits.get(), plan.launch.blocks), (256, 1, 16384));
    }

    #[test]
    fn few_long_rows_are_split() {
        let plan = rows(reduction::ROWS, 3, 1 << 24, 2);
        assert_eq!((plan.team.get(), plan.splits.get(), plan.launch.blocks), (256, 352, 1056));
    }

    #[test]
    fn parts_of_rows_have_room_for_their_sums() {
        for count in (0..30).map(|power| (1 << power) + 1) {
            for cols in (0..40).map(|power| 1 << power) {
                let plan = rows(reduction::ROWS, count, cols, 8);
                let parts = count * plan.splits.get() as usize;
                assert!(plan.splits.get() == 1 || parts <= MAX_PARTIALS as usize);
                let plan = rows(reduction::SCALAR, count, cols, 8);
                assert!(plan.launch.blocks <= MAX_PARTIALS);
            }
        }
    }
}
