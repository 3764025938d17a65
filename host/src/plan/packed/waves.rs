//! How many blocks a launch of packed rows has. A wave is the number of blocks that the device has
//! room for. Persistent blocks, in one wave, load a tile while they compute another until they have
//! no more. Blocks of several waves begin in the order of memory, which keeps their accesses closer
//! together, but a block does not load and compute at the same time in its first and last tile.

use super::{Device, Packed};
use crate::plan::{Pass, Regime};

/// The most waves of a launch that writes gradients, unless rows of 16-bit elements have one lane
/// each and the loss is computed too.
///
/// H200, ceiling ÷ ours with 8, 16 and 32 waves:
///
/// - 2026-11-27: f32 forward-backward, 1000 MiB of 33 columns 0.89, 0.91, 0.92; f32 backward, 500
///   MiB of 229 columns 0.91, 0.94, 0.96
/// - 2026-11-30, with 16 and 32 only: bf16 forward-backward, 825 MiB of 188 columns 0.92 and 0.94,
///   but f16, 409 MiB of 447 columns 0.88 and 0.87; f64 forward-backward, 873 MiB of 49 columns
///   0.90 and 0.92; bf16 backward, 336 MiB of 711 columns 0.94 and 0.95, but 291 MiB of 35 columns
///   0.96 and 0.95
const MOST_WAVES: usize = 32;

/// The same with one lane per row: for loss and gradients of 16-bit elements, and for forward
/// passes of f32.
///
/// H200, 2026-11-30, ceiling ÷ ours with 8, 16 and 32 waves:
///
/// - bf16 forward-backward, with 16 and 32 only: 420 MiB of 38 columns 0.85 and 0.80, 956 MiB of 89
///   columns 0.87 and 0.84, but 723 MiB of 8 columns 0.94 and 0.95
/// - f32 forward: 718 MiB of 56 columns 0.91, 0.94, 0.95; 345 MiB of 4 columns 0.94, 0.95, 0.95;
///   268 MiB of 14 columns 0.90, 0.90, 0.85
const MOST_LANE_WAVES: usize = 16;

/// The same for elementwise losses with gradients. More were not tried.
const MOST_WAVES_OF_ELEMENTWISE: usize = 16;

/// The same in other forward passes.
///
/// H200, ceiling ÷ ours with 8 and 16 waves:
///
/// - bf16 (2026-11-27): 300 MiB of 9 columns 0.81 and 0.80; 256 MiB of 10 columns 0.83 and 0.80
/// - 320 MiB (2026-11-30): bf16, 16 columns 0.90 and 0.83, 48 columns 0.86 and 0.82; f64, 8 columns
///   0.81 and 0.77
///
/// Forward passes of elementwise losses with one lane per row were not tried.
const MOST_FORWARD_WAVES: usize = 8;

/// The most blocks of a multiprocessor that count as few: the start of one is then not hidden by
/// the others, so that a forward pass with one lane per row has persistent blocks unless its warps
/// have [many tiles](MANY_TILES).
///
/// H200, 2026-11-30, ceiling ÷ ours with several waves and with one, of 72, 128 and 320 MiB:
///
/// - three to five blocks: bf16, 32 columns 0.67 and 0.73, 0.74 and 0.79, 0.85 and 0.84; f32, 60
///   columns 0.68 and 0.76, 0.78 and 0.84, 0.89 and 0.90; f64, 4 columns 0.62 and 0.71, 0.72 and
///   0.77, 0.85 and 0.85
/// - six blocks: bf16, 64 columns 0.70 and 0.70, 0.80 and 0.77, 0.89 and 0.85; f32, 32 columns 0.76
///   and 0.74, 0.84 and 0.81, 0.92 and 0.88
const FEW_BLOCKS: usize = 5;

/// See [`FEW_BLOCKS`]. In 320 MiB, warps have about 30 tiles; larger inputs were not compared.
const MANY_TILES: usize = 32;

/// With loss and gradients and one lane per row, blocks are persistent if warps have fewer tiles
/// than this, and if they load one while they compute another.
///
/// H200, 2026-11-30, ceiling ÷ ours with several waves and with one, of 72 MiB (6 to 7 tiles) and
/// of 128 MiB (10 to 13 tiles):
///
/// - bf16: 9 columns 0.76 and 0.79, 0.83 and 0.82; 32 columns 0.74 and 0.79, 0.81 and 0.80; 64
///   columns 0.78 and 0.78, 0.86 and 0.80
/// - f32: 4 columns 0.80 and 0.82, 0.87 and 0.85; 51 columns 0.79 and 0.83, 0.86 and 0.86
/// - f64, which does not: 8 columns 0.68 and 0.64, 0.75 and 0.71
const FEW_TILES: usize = 8;

impl Packed {
    /// The blocks of a launch over `rows` rows. With several waves, all blocks take the same number
    /// of tiles, because a mix of three and two would make the last wave wait.
    pub(crate) fn blocks(&self, pass: Pass, rows: usize, device: Device) -> usize {
        let room = device.blocks(self.shared_bytes);
        // Of one tile per warp.
        let blocks = rows.div_ceil(self.block_rows);
        if blocks <= room {
            blocks
        } else if self.is_persistent(pass, blocks / room, room / device.multiprocessors) {
            room
        } else {
            let tiles = blocks.div_ceil(room * self.most_waves(pass));
            blocks.div_ceil(tiles.max(self.least_tiles(pass)))
        }
    }

    /// Whether blocks are persistent, if a warp then has `tiles` tiles or one more, and if a
    /// multiprocessor has room for `resident` blocks. Forward passes with several lanes per row
    /// gain nothing from more waves than one, unless the loss is elementwise.
    fn is_persistent(&self, pass: Pass, tiles: usize, resident: usize) -> bool {
        match pass {
            Pass::Forward if self.has_one_lane() => resident <= FEW_BLOCKS && tiles < MANY_TILES,
            Pass::Forward => !self.is_elementwise,
            Pass::ForwardBackward => {
                self.has_one_lane() && self.has_two_stages() && tiles < FEW_TILES
            }
            Pass::Backward => false,
        }
    }

    fn most_waves(&self, pass: Pass) -> usize {
        match (pass, self.element_bytes) {
            (Pass::Forward, 4) | (Pass::ForwardBackward, 2) if self.has_one_lane() => {
                MOST_LANE_WAVES
            }
            (Pass::Forward, _) => MOST_FORWARD_WAVES,
            _ if self.is_elementwise => MOST_WAVES_OF_ELEMENTWISE,
            _ => MOST_WAVES,
        }
    }

    /// The fewest tiles of a warp in several waves. A warp with only one tile cannot use its second
    /// stage. With gradients and several turns per tile, three are faster than two.
    ///
    /// H200, 2026-11-30, ceiling ÷ ours with two and with three, of 128 MiB:
    ///
    /// - several turns: bf16, 4 columns 0.80 and 0.83, 48 columns 0.82 and 0.85; f32, 15 columns
    ///   0.87 and 0.89
    /// - one turn: bf16, 64 columns 0.86 and 0.84; f32, 51 columns 0.86 and 0.84
    fn least_tiles(&self, pass: Pass) -> usize {
        let has_several_turns = self.args.rows > 1 << self.args.warp_rows_shift;
        match pass {
            _ if !self.has_two_stages() => 1,
            Pass::ForwardBackward if self.has_one_lane() && has_several_turns => 3,
            _ => 2,
        }
    }

    fn has_one_lane(&self) -> bool {
        self.regime != Regime::Packed
    }

    fn has_two_stages(&self) -> bool {
        self.args.stage_bytes != 0
    }
}
