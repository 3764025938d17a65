//! Rows in the registers of a warp or of a part of one: which rows, and how many lanes share one.

use super::Target;
use super::shape::Shape;
use crate::plan::Pass;
use kernels_gpu::abi::peeled_group_threads;

/// Rows of 16-bit elements that fill the device's shared memory at least this often are faster
/// packed than in the registers of a warp; see [`Shape::prefers_warp`].
const MANY_TURNS: usize = 8;

/// Rows that begin and end on 16-byte boundaries.
impl Shape {
    /// Whether the rows are of `Regime::ShortWhole`.
    pub(super) fn is_short_whole(&self) -> bool {
        let row_lanes = self.row_lanes();
        let block_rows = self.kernels.short_block as usize / row_lanes;
        block_rows > 0
            && self.fits_warp()
            && self.vectors * 16 >= self.short_whole_min_bytes()
            && self.fills(self.kernels.per_thread, row_lanes)
            && self.prefers_warp_registers(row_lanes)
            && self.has_room_for_sums(self.rows.div_ceil(block_rows))
    }

    /// The fewest bytes of a row for `Regime::ShortWhole`; shorter rows are packed. Packing gains
    /// with the size of the input, so some rows must be longer unless they take few turns.
    ///
    /// H200, 2026-11-28, ceiling ÷ ours in registers and packed, of 64, 128 and 400 MiB:
    ///
    /// - f32, 64 columns, forward: 0.84 and 0.68, 0.90 and 0.80, 0.95 and 0.91
    /// - f32, 64 columns, forward-backward: 0.86 and 0.78, 0.88 and 0.85, 0.90 and 0.89
    /// - f32, 64 columns, backward: 0.90 and 0.90, 0.92 and 0.94, 0.92 and 0.95
    /// - bf16, 128 columns, forward: 0.76 and 0.62, 0.81 and 0.72, 0.87 and 0.86
    /// - bf16, 128 columns, forward-backward: 0.83 and 0.71, 0.84 and 0.80, 0.86 and 0.88
    ///
    /// Of other sizes:
    ///
    /// - f16, 128 columns, forward, of 900 MiB: 0.88 and 0.92
    /// - f32, 32 columns, forward-backward, of 64 MiB: 0.66 and 0.79
    fn short_whole_min_bytes(&self) -> usize {
        match (self.element_bytes, self.pass) {
            (8, _) => 512,
            (4, Pass::Forward | Pass::ForwardBackward) => 256,
            _ if self.takes_few_turns() => 256,
            _ => 512,
        }
    }

    /// Whether rows are faster in the registers of `row_lanes` lanes than packed. Some are only if
    /// they leave less than an eighth of the registers empty, or if they take few turns.
    ///
    /// Classes, H200, 2026-11-27, ceiling ÷ ours in registers and packed:
    ///
    /// - 256 MiB of bf16 forward: 384 columns 0.74 and 0.86, 448 columns 0.83 and 0.85, 512 columns
    ///   0.90 and 0.86
    /// - bf16 forward-backward: 384 columns 0.81 and 0.86, 800 columns 0.83 and 0.84
    /// - bf16 backward: 384 columns 0.97 and 0.91
    /// - f32 forward: 200 columns 0.93 and 0.88
    ///
    /// By the size of the input:
    ///
    /// - bf16 forward: 63 MiB of 424 columns 0.72 and 0.62
    /// - bf16 forward-backward (2026-11-28), 848 columns: of 64 MiB 0.81 and 0.64, of 128 MiB 0.84
    ///   and 0.77, of 512 MiB 0.86 and 0.93
    ///
    /// In f64, forward passes sum relative to a lagging center if rows are packed, which takes
    /// fewer instructions. With gradients (2026-11-30), 100 and 320 MiB:
    ///
    /// - 64 columns 0.77 and 0.78, 0.78 and 0.90; 256 columns 0.75 and 0.75, 0.77 and 0.90
    /// - with smoothing and weights: 64 columns 0.47 and 0.59, 0.48 and 0.71
    /// - probabilities: 128 columns 0.60 and 0.55, 0.61 and 0.63
    ///
    /// Smoothing, 2026-11-30, 320 MiB:
    ///
    /// - bf16, 512 columns: forward 0.70 and 0.83, forward-backward 0.70 and 0.90; 1024 columns
    ///   forward-backward, in registers and staged, 0.71 and 0.65
    /// - f32: 64 columns forward 0.76 and 0.89, forward-backward 0.85 and 0.93; 256 columns forward
    ///   0.79 and 0.88
    /// - f64 forward-backward: 64 columns 0.51 and 0.86
    ///
    /// Smoothing and weights, 100 and 320 MiB:
    ///
    /// - bf16 forward: 128 columns 0.51 and 0.53; 192 columns 0.47 and 0.54; 512 columns 0.53 and
    ///   0.52, 0.57 and 0.62
    /// - bf16 forward-backward: 192 columns 0.47 and 0.51; 512 columns 0.57 and 0.55, 0.58 and 0.64
    /// - f32 forward: 64 columns 0.61 and 0.73, 0.66 and 0.86; 256 columns 0.64 and 0.63, 0.70 and
    ///   0.81
    /// - f32 forward-backward: 64 columns 0.72 and 0.67, 0.75 and 0.80; 96 columns 0.65 and 0.60,
    ///   0.66 and 0.73; 256 columns 0.74 and 0.61, 0.77 and 0.75
    ///
    /// Probabilities:
    ///
    /// - bf16 forward: 192 columns 0.58 and 0.82; 512 columns 0.73 and 0.82, 0.75 and 0.88
    /// - bf16 forward-backward: 192 columns 0.54 and 0.65; 512 columns 0.67 and 0.59, 0.68 and 0.64
    /// - f32 forward: 64 columns 0.74 and 0.87, 0.77 and 0.94; 256 columns 0.70 and 0.86, 0.73 and
    ///   0.93
    /// - f32 forward-backward: 96 columns 0.75 and 0.80, 0.76 and 0.90; 256 columns 0.88 and 0.73,
    ///   0.90 and 0.81
    ///
    /// Inputs that take one turn were compared only for classes.
    fn prefers_warp_registers(&self, row_lanes: usize) -> bool {
        use Pass::{Backward, Forward, ForwardBackward};
        let registers = self.kernels.per_thread * row_lanes;
        let is_full = 8 * self.vectors > 7 * registers;
        let (is_few, row_bytes) = (self.takes_few_turns(), self.vectors * 16);
        match (self.element_bytes, self.pass, self.kernels.target) {
            (_, Backward, _) => true,
            (8, Forward, _) => false,
            (8, ForwardBackward, _) if self.takes_one_turn() => is_full,
            (8, ForwardBackward, Target::Probabilities) => is_full && is_few,
            (8, ForwardBackward, _) => false,
            _ if self.takes_one_turn() => true,
            (_, Forward, Target::Probabilities) => false,
            (_, ForwardBackward, Target::Probabilities) => is_full,
            (4, ForwardBackward, Target::Smoothed | Target::Weighted) => {
                is_few || is_full && row_bytes >= 512
            }
            // Longer ones would be staged, not packed.
            (2, ForwardBackward, Target::Smoothed | Target::Weighted) if row_bytes >= 2048 => {
                is_full
            }
            (_, _, Target::Smoothed | Target::Weighted) => is_few && is_full && row_bytes >= 512,
            (2, _, Target::Class) => is_full || is_few,
            (_, _, Target::Class) => true,
        }
    }

    /// Whether the registers of a warp have room for a row.
    pub(super) fn fits_warp(&self) -> bool {
        self.vectors <= 32 * self.kernels.per_thread
    }

    /// Whether the rows are of `Regime::WarpWhole`.
    pub(super) fn is_warp_whole(&self) -> bool {
        let block_rows = self.kernels.warp_block as usize / 32;
        block_rows > 0
            && !self.fits_warp()
            && self.vectors <= 32 * self.warp_per_thread()
            && self.fills(self.warp_per_thread(), 32)
            && self.prefers_warp()
            && !self.is_few()
            && self.has_room_for_sums(self.rows.div_ceil(block_rows))
    }

    /// Whether rows longer than [`fits_warp`](Self::fits_warp) allows are faster in the registers
    /// of a warp than packed. In f32 with gradients all are. Other rows are if they fill the
    /// registers or take few turns; 16-bit elements that leave more than five sixteenths of the
    /// registers empty must take only one turn, and with gradients others must not take many turns.
    ///
    /// H200, 2026-11-28, ceiling ÷ ours in registers and packed:
    ///
    /// - f32 forward-backward: 1000 columns, of 62 MiB 0.88 and 0.66, of 250 MiB 0.94 and 0.88; 544
    ///   columns 0.90 and 0.81
    /// - f32 forward: 1000 columns, of 49 MiB 0.73 and 0.60, of 142 MiB 0.81 and 0.79, of 405 MiB
    ///   0.88 and 0.90; 1024 columns, of 512 MiB 0.96 and 0.91
    /// - 16 bits forward-backward: 2048 columns, of 24 MiB 0.77 and 0.50, of 294 MiB 0.91 and 0.90;
    ///   1336 columns, of 78 MiB 0.70 and 0.70; 1344 columns, of 105 MiB 0.73 and 0.78
    /// - 16 bits forward: 2000 columns, of 70 MiB 0.79 and 0.61, of 534 MiB 0.91 and 0.86; 1448
    ///   columns, of 25 MiB 0.63 and 0.49; 1384 columns, of 158 MiB 0.65 and 0.74; 1536 columns, of
    ///   434 MiB 0.75 and 0.86
    ///
    /// Full registers, 16 bits forward-backward, of 200, 300 and 600 MiB (2026-11-30):
    ///
    /// - 1856 columns 0.87 and 0.90, 0.87 and 0.91, 0.87 and 0.93; 2048 columns 0.90 and 0.89, 0.91
    ///   and 0.93, 0.91 and 0.93
    ///
    /// In µs:
    ///
    /// - bf16 forward-backward: 256×1200 4.8 and 9.7, 4096×1048 10.7 and 15.5
    /// - bf16 forward: 4096×1304 6.9 and 9.4
    fn prefers_warp(&self) -> bool {
        let registers = 32 * self.warp_per_thread();
        let is_full = match (self.element_bytes, self.pass) {
            (2, Pass::ForwardBackward) if !self.takes_fewer_turns_than(MANY_TURNS) => false,
            (2, _) => 8 * self.vectors > 7 * registers,
            _ => self.vectors == registers,
        };
        let leaves_few_empty = self.element_bytes > 2 || 16 * self.vectors >= 11 * registers;
        match (self.element_bytes, self.pass) {
            (4, Pass::ForwardBackward) => true,
            _ if leaves_few_empty => is_full || self.takes_few_turns(),
            _ => self.takes_one_turn(),
        }
    }

    /// Vectors of a row that a thread has in registers in `Regime::WarpWhole`.
    pub(super) fn warp_per_thread(&self) -> usize {
        2 * self.kernels.per_thread
    }

    /// The lanes that share a row in the registers of a warp: at least two, because the kernels
    /// have shared memory for the rows of 128 row groups a block.
    pub(super) fn row_lanes(&self) -> usize {
        self.vectors.div_ceil(self.kernels.per_thread).next_power_of_two().max(2)
    }
}

/// As [`FEW_TURNS`](super::shape), for rows that begin and end anywhere.
///
/// H200, 2026-11-30, ceiling ÷ ours packed and in registers, of 72 MiB (2.5 turns) and of 128 MiB
/// (4.4 turns):
///
/// - f32 forward: 197 columns 0.67 and 0.75, 0.78 and 0.78; 383 columns 0.69 and 0.74, 0.79 and
///   0.77
/// - f32 forward-backward: 113 columns 0.72 and 0.73, 0.82 and 0.75; 383 columns 0.67 and 0.74,
///   0.77 and 0.75
/// - bf16 forward: 901 columns 0.63 and 0.65, 0.72 and 0.68
/// - bf16 forward-backward: 901 columns 0.71 and 0.76, 0.79 and 0.78; 1603 columns 0.70 and 0.70,
///   0.80 and 0.72
const FEW_TURNS_OF_PEELED: usize = 4;

/// Rows that begin and end anywhere, those of gradients as those of logits.
impl Shape {
    /// Whether the rows are of `Regime::ShortPeeled`.
    pub(super) fn is_short_peeled(&self) -> bool {
        let (per_thread, lanes) = (self.kernels.per_thread, self.peeled_row_lanes());
        let block_rows = self.kernels.short_peeled_block as usize / lanes;
        self.fits_warp() && self.are_peeled(block_rows, per_thread, lanes)
    }

    /// Whether the rows are of `Regime::WarpPeeled`.
    pub(super) fn is_warp_peeled(&self) -> bool {
        let (per_thread, lanes) = (self.warp_per_thread(), 32);
        let block_rows = self.kernels.warp_peeled_block as usize / lanes;
        !self.fits_warp()
            && self.vectors <= per_thread * lanes
            && !self.have_block_each()
            && self.are_peeled(block_rows, per_thread, lanes)
    }

    /// Whether rows are longer than [`fits_warp`](Self::fits_warp) allows, and so few that loss and
    /// gradients take less time with a block per row.
    ///
    /// H200, 2026-11-28, µs with a block and with a warp:
    ///
    /// - bf16: 64×2003 4.9 and 5.4, 256×1203 4.5 and 5.1, 512×2003 6.2 and 5.9
    /// - f32: 256×1001 4.6 and 4.9, 512×1001 5.7 and 5.3
    fn have_block_each(&self) -> bool {
        self.pass == Pass::ForwardBackward && self.rows <= 2 * self.kernels.multiprocessors
    }

    /// Whether rows have kernels with `per_thread` vectors of a row in the registers of each of
    /// `lanes` lanes, and are faster so.
    fn are_peeled(&self, block_rows: usize, per_thread: usize, lanes: usize) -> bool {
        block_rows > 0
            && self.kernels.alike
            && !self.kernels.whole
            && self.fills_peeled(per_thread, lanes)
            && 16 * self.vectors >= self.fewest_sixteenths(per_thread) * per_thread * lanes
            && self.has_room_for_sums(self.rows.div_ceil(block_rows))
    }

    /// How many sixteenths of the registers rows must fill to be faster there than packed. The more
    /// turns they take, the more they must fill.
    ///
    /// H200, 2026-11-28, µs packed and in registers, of few rows:
    ///
    /// - f32 forward: 64×351 3.9 and 2.7, 1024×501 4.6 and 2.9
    /// - bf16 forward-backward: 256×515 10.0 and 4.6, 1024×701 11.5 and 5.1
    ///
    /// Ceiling ÷ ours packed and in registers, of one turn:
    ///
    /// - f32: 257 columns forward 0.55 and 0.55, forward-backward 0.50 and 0.59; 301 columns
    ///   forward-backward 0.53 and 0.61
    /// - bf16 forward: 515 columns 0.49 and 0.43, 1203 columns 0.42 and 0.52
    ///
    /// Of few turns:
    ///
    /// - f32, 383 columns: of 96 MiB forward 0.75 and 0.74, of 64 MiB forward-backward 0.62 and
    ///   0.74
    /// - bf16, of 96 MiB: 1403 columns forward 0.63 and 0.60, 1603 columns 0.64 and 0.66
    ///
    /// Of 266 to 400 MiB:
    ///
    /// - f32 forward: 383 columns 0.89 and 0.79, 113 columns 0.89 and 0.92, 701 columns 0.88 and
    ///   0.90
    /// - f32 forward-backward: 449 columns 0.86 and 0.80, 601 columns 0.89 and 0.86, 701 columns
    ///   0.86 and 0.91
    /// - bf16 forward: 1023 columns 0.80 and 0.78, 1803 columns 0.79 and 0.78, 2003 columns 0.77
    ///   and 0.83
    /// - bf16 forward-backward: 451 columns 0.80 and 0.77, 1603 columns 0.80 and 0.74, 1803 columns
    ///   0.77 and 0.79
    ///
    /// Longer rows of f32 with gradients were compared only at 266 to 400 MiB; the same limit is
    /// used for few turns.
    ///
    /// Longer rows in forward passes, of 110, 160 and 300 MiB (2026-11-30):
    ///
    /// - f32: 583 columns 0.73 and 0.75, 0.79 and 0.77, 0.85 and 0.79; 651 columns 0.74 and 0.81,
    ///   0.79 and 0.84, 0.85 and 0.86; 703 columns, of 110 MiB 0.74 and 0.85
    /// - bf16: 1601 columns, of 160 MiB 0.71 and 0.70, of 300 MiB 0.77 and 0.72; 1701 columns 0.67
    ///   and 0.73, 0.72 and 0.75
    ///
    /// Rows that collide, one element off:
    ///
    /// - bf16 forward: 256 columns 0.34 and 0.43, 512 columns 0.45 and 0.77
    /// - f32 forward-backward: 128 columns 0.62 and 0.76
    fn fewest_sixteenths(&self, per_thread: usize) -> usize {
        const NEVER: usize = 17;
        // Per multiprocessor: 1056 rows on an H200. Figures end at 1024 rows, and at rows that fill
        // half of the registers.
        const FEW_ROWS: usize = 8;
        // Shorter rows that collide have a lane each; see `packed::Rows::regime`.
        const ONE_LANE_BYTES: usize = 320;
        let collide = self.kernels.collide && self.vectors * 16 > ONE_LANE_BYTES;
        let has_long_rows = per_thread > self.kernels.per_thread;
        match (self.element_bytes, self.pass) {
            _ if self.rows <= FEW_ROWS * self.kernels.multiprocessors => 0,
            _ if collide => 8,
            (_, Pass::ForwardBackward) if self.takes_one_turn() => 8,
            _ if self.takes_one_turn() => 9,
            (4, Pass::Forward) if has_long_rows => 10,
            (4, _) if has_long_rows => 11,
            _ if self.takes_fewer_turns_than(FEW_TURNS_OF_PEELED) => 12,
            (2, Pass::Forward) if has_long_rows => 13,
            (2, _) if has_long_rows => 14,
            (4, Pass::Forward) => 14,
            _ => NEVER,
        }
    }

    /// The lanes that share a row of `Regime::ShortPeeled`.
    pub(super) fn peeled_row_lanes(&self) -> usize {
        self.row_lanes().max(peeled_group_threads(self.element_bytes))
    }
}
