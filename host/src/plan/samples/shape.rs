//! Which regimes can take the rows of a pass, and which is faster where several can.

use super::{SamplesKernels, Target};
use crate::plan::Pass;
use crate::plan::packed::{Device, Packed, Rows};
use crate::plan::staged::{self, Staged};
use kernels_gpu::abi::{
    ADDER_SHIFT, STAGED_BATCH_VECTORS, has_late_shares, max_workers, peeled_vectors_within,
    vectors_within, words_of_worker,
};

/// The rows of a pass, and the kernels that there are for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) pass: Pass,
    pub(super) rows: usize,
    /// Vectors of a row that begins on a 16-byte boundary; at least one.
    pub(super) vectors: usize,
    pub(super) element_bytes: usize,
    pub(super) kernels: SamplesKernels,
}

/// Rows that fill a device's shared memory more often than this are faster packed. Packing loses
/// time at both ends: a warp waits for its first tile, and other warps wait for the last tile. Rows
/// in registers divide the work more finely. 128 MiB fill an H200's shared memory 4.6 times, 256
/// MiB 9.1 times; [`warp_rows`](super::warp_rows) has figures on either side, for classes without
/// smoothing.
const FEW_TURNS: usize = 6;

impl Shape {
    /// Whether the rows would fill the device's shared memory [a few times](FEW_TURNS) at most.
    pub(super) fn takes_few_turns(&self) -> bool {
        self.takes_fewer_turns_than(FEW_TURNS)
    }

    /// Whether the device's shared memory has room for all rows at once.
    pub(super) fn takes_one_turn(&self) -> bool {
        self.takes_fewer_turns_than(1)
    }

    /// Whether the rows would fill the device's shared memory less than `turns` times.
    pub(super) fn takes_fewer_turns_than(&self, turns: usize) -> bool {
        let bytes = self.rows.saturating_mul(self.vectors * 16);
        bytes < turns * self.kernels.multiprocessors * self.kernels.shared_bytes
    }
}

/// The most vectors of a row that loss and gradients have in registers where it could be staged in
/// shared memory, in f32 and 16 bits.
///
/// H200, 2026-11-26, forward-backward, ceiling ÷ ours in registers and staged:
///
/// - bf16: 8192 columns 0.97 and 0.95, 12128 columns 0.90 and 0.95
/// - f32: 7001 columns 0.95 and 0.94, 12000 columns 0.86 and 0.95
const MOST_REGISTER_VECTORS: usize = 1024;

impl Shape {
    /// How rows are staged, if that is faster than to pack them or to have them in registers; see
    /// also [`prefers_staged`](Self::prefers_staged).
    pub(super) fn staged(&self) -> Option<Staged> {
        let limits = self.kernels.staged?;
        let is_packed = self.packed().is_some();
        if !self.prefers_staged() && (is_packed || self.prefers_registers())
            || self.prefers_registers_of_weighted()
        {
            return None;
        }
        let SamplesKernels { tensors, alignment, target, .. } = self.kernels;
        // If the statistics sum the target's shares, the rest of a row is computed by the vector.
        let is_late = has_late_shares(self.element_bytes, target == Target::Weighted);
        let sums_shares = target.is_smoothed() && !is_late || tensors == 2;
        let batch = if sums_shares { 1 } else { STAGED_BATCH_VECTORS };
        let cut = (alignment, batch as usize);
        staged::plan(self.rows, self.vectors, self.element_bytes, tensors, cut, limits)
    }

    /// Whether rows that are [long enough](staged::plan) are staged even if they could be packed or
    /// have room in registers: in f64, because exponentials take so long that they should be
    /// computed only once; with smoothing, because packed rows look up each class weight
    /// separately; and with probabilities.
    ///
    /// H200, forward-backward, ceiling ÷ ours packed or with a block per row, and staged:
    ///
    /// - smoothing and weights (2026-11-26): f32, 1000 columns 0.50 and 0.54; bf16, 1500 columns
    ///   0.24 and 0.38
    /// - probabilities (2026-11-28): f32, 512 columns 0.79 and 0.87, 2048 columns 0.91 and 0.95,
    ///   3848 columns 0.82 and 0.95; f16, 2391 columns 0.46 and 0.77
    fn prefers_staged(&self) -> bool {
        self.element_bytes == 8 || self.kernels.target.is_smoothed() || self.kernels.tensors == 2
    }

    /// Whether rows of f32 with smoothing and class weights, which are longer than packed ones, are
    /// faster in the registers of a block than staged.
    ///
    /// H200, 2026-11-30, forward-backward, ceiling ÷ ours staged and in registers: 1536 columns
    /// 0.82 and 0.89, 2048 columns 0.83 and 0.91, 3072 columns 0.86 and 0.89, 4096 columns 0.82 and
    /// 0.90, 6000 columns 0.86 and 0.75.
    fn prefers_registers_of_weighted(&self) -> bool {
        self.element_bytes == 4
            && self.kernels.target == Target::Weighted
            && self.packed().is_none()
            && self.prefers_registers()
    }

    /// Whether rows are faster in the registers of a block than staged.
    fn prefers_registers(&self) -> bool {
        self.fits_registers() && self.vectors <= MOST_REGISTER_VECTORS
    }

    /// How rows are packed, if they are short enough. Few rows, and those that
    /// [prefer a block](Self::prefers_block), have one each instead, unless a warp has room for a
    /// row.
    pub(super) fn packed(&self) -> Option<(Packed, Device)> {
        let has_block = self.is_few() || self.prefers_block();
        self.kernels.packed.filter(|_| self.fits_warp() || !has_block)
    }

    /// Whether rows of classes that could be packed are faster with a block per row, in registers,
    /// staged or [long](super::Regime::Long): in a forward pass if there are few; with gradients,
    /// if they take one turn, or a few turns with longer rows.
    ///
    /// H200, 2026-11-28, µs with a block per row and packed:
    ///
    /// - f32 forward-backward: 64×601 4.3 and 9.4, 256×1001 4.5 and 9.0, 4096×1001 17.3 and 18.3
    /// - bf16 forward-backward: 64×1999 4.9 and 14.2, 4096×1999 20.9 and 24.3
    /// - f32 forward: 256×601 3.3 and 4.6, 1024×601 5.2 and 4.9, 4096×1001 13.0 and 10.7
    /// - bf16 forward: 256×1999 3.5 and 6.6, 1024×1201 5.5 and 5.5
    ///
    /// Where rows take more turns, ceiling ÷ ours with a block per row and packed:
    ///
    /// - f32: 1208 columns, of 90 MiB 0.89 and 0.74; 1109 columns, of 24 MiB 0.62 and 0.46; 1137
    ///   columns, of 132 MiB 0.80 and 0.77
    /// - bf16: 2544 columns, of 35 MiB 0.73 and 0.53; 2151 columns, of 20 MiB 0.53 and 0.44; 2113
    ///   columns, of 118 MiB 0.73 and 0.72; but 2336 columns, of 115 MiB 0.73 and 0.79
    /// - shorter rows: bf16, 1853 columns, of 56 MiB 0.56 and 0.60; f32, 961 columns, of 67 MiB
    ///   0.67 and 0.64
    fn prefers_block(&self) -> bool {
        const MOST_ROWS: usize = 512;
        const LONGER_THAN_BYTES: usize = 4096;
        let is_longer = self.vectors * 16 > LONGER_THAN_BYTES;
        match self.pass {
            // Other targets, and classes of f64, have kernels that stream rows.
            Pass::Forward => self.kernels.stream.is_none() && self.rows <= MOST_ROWS,
            Pass::ForwardBackward if self.kernels.staged.is_none() || self.prefers_staged() => {
                false
            }
            Pass::ForwardBackward => self.takes_one_turn() || is_longer && self.takes_few_turns(),
            Pass::Backward => false,
        }
    }
}

/// The most rows of a forward pass that count as few: `Regime::Few` takes them if all are resident
/// at once, and `Regime::Registers` takes none of them. It is the period of adders; figures on
/// either side of it are not known.
const MOST_FEW_ROWS: usize = 1 << ADDER_SHIFT;

/// How many threads are resident on an H100 at a time. H200, 2026-11-22, forward, f32: 1024 rows of
/// 4096 columns, with a thread per vector, waited for room and took twice as long as with fewer
/// threads.
const RESIDENT_THREADS: usize = 132 * 2048;

/// The most threads of a block for which [`RESIDENT_THREADS`] is the limit; for larger blocks, half
/// of it is. H200, 2026-11-22, forward, f32, 2048 columns, in blocks of 512 threads instead of
/// fewer: 512 rows took a tenth longer, 256 rows a tenth less.
const SMALL_BLOCK: usize = 256;

impl Shape {
    /// Whether the rows are of `Regime::Few`: with a thread per vector, all of them are resident at
    /// the same time.
    pub(super) fn is_few(&self) -> bool {
        let threads = self.few_threads();
        let resident = if threads <= SMALL_BLOCK { RESIDENT_THREADS } else { RESIDENT_THREADS / 2 };
        self.rows > 0
            && self.has_few_rows()
            && self.kernels.whole
            && threads <= self.kernels.few_block as usize
            && self.rows * threads <= resident
    }

    /// Threads of a block of `Regime::Few`.
    pub(super) fn few_threads(&self) -> usize {
        self.vectors.next_multiple_of(32)
    }

    /// Whether this is a forward pass over so few rows that its latency is what counts.
    fn has_few_rows(&self) -> bool {
        self.pass == Pass::Forward && self.rows <= MOST_FEW_ROWS
    }
}

/// The fewest rows that are streamed although they would fit into a block's registers. Fewer rows
/// are too few for a warp per row. Chosen by the number of warps on a device, not measured on
/// either side of it.
const STREAM_MIN_ROWS: usize = 2048;

impl Shape {
    /// The layout of rows that are streamed, if they are: those of a forward pass that are long or
    /// many.
    pub(super) fn streamed(&self) -> Option<(Rows, Device)> {
        let is_streamed =
            self.pass == Pass::Forward && (self.rows >= STREAM_MIN_ROWS || !self.fits_registers());
        self.kernels.stream.filter(|_| is_streamed)
    }

    /// Whether the rows have room in the registers of a block each, and are not so few that a
    /// forward pass has other kernels for them; see [`MOST_FEW_ROWS`].
    pub(super) fn fits_registers(&self) -> bool {
        let threads = self.registers_threads();
        threads <= self.kernels.max_registers_block as usize
            && self.fills(self.registers_per_thread(), threads)
            && !self.has_few_rows()
            && self.has_room_for_sums(self.rows)
    }

    /// Whether the rows begin and end anywhere, have room in the registers of a block each, and are
    /// not so few that a forward pass has other kernels for them.
    ///
    /// H200, 2026-11-30, forward, ceiling ÷ ours with a loop over tiles and in registers:
    ///
    /// - bf16: 3195 columns (f16) 0.71 and 0.82, 4157 columns 0.57 and 0.76, 6571 columns 0.79 and
    ///   0.82; one element off, 2912 columns (f16) 0.68 and 0.91, 7432 columns 0.69 and 0.80
    /// - f32: 1425 columns 0.73 and 0.86; one element off, 2512 columns 0.88 and 0.96
    pub(super) fn is_peeled(&self) -> bool {
        let threads = self.peeled_threads();
        self.pass == Pass::Forward
            && !self.kernels.whole
            && threads <= self.kernels.peeled_block as usize
            && self.fills_peeled(self.kernels.per_thread, threads)
            && !self.has_few_rows()
            && self.has_room_for_sums(self.rows)
    }

    /// As [`fills`](Self::fills), for rows that begin and end anywhere: the vectors at both ends of
    /// a row may be peeled.
    pub(super) fn fills_peeled(&self, per_thread: usize, group_threads: usize) -> bool {
        peeled_vectors_within(per_thread) * group_threads + 2 <= self.vectors
    }

    /// Threads of a block of `Regime::Peeled`.
    pub(super) fn peeled_threads(&self) -> usize {
        self.vectors.div_ceil(self.kernels.per_thread).next_multiple_of(32)
    }

    /// Threads of a block of `Regime::Registers`.
    pub(super) fn registers_threads(&self) -> usize {
        self.vectors.div_ceil(self.registers_per_thread()).next_multiple_of(32)
    }

    /// Vectors of a row that a thread has in registers in `Regime::Registers`.
    fn registers_per_thread(&self) -> usize {
        match self.pass {
            Pass::ForwardBackward => self.kernels.vectors_with_gradients,
            Pass::Forward | Pass::Backward => self.kernels.per_thread,
        }
    }

    /// Whether the first `vectors_within(per_thread)` vectors of each of `group_threads` threads
    /// are within the row: the kernels check only the others for being beyond it.
    pub(super) fn fills(&self, per_thread: usize, group_threads: usize) -> bool {
        self.kernels.whole && vectors_within(per_thread) * group_threads <= self.vectors
    }
}

impl Shape {
    /// Whether `workers` blocks can publish their sums; a backward pass has none.
    pub(super) fn has_room_for_sums(&self, workers: usize) -> bool {
        self.pass == Pass::Backward || workers <= self.max_workers(ADDER_SHIFT)
    }

    /// The most blocks whose sums the workspace has room for, with an adder every
    /// `1 << adder_shift` blocks.
    pub(super) fn max_workers(&self, adder_shift: u32) -> usize {
        max_workers(self.words_of_worker(), adder_shift) as usize
    }

    /// Words of the workspace that a block publishes for its sums.
    pub(super) fn words_of_worker(&self) -> u32 {
        words_of_worker(self.sums(), self.element_bytes)
    }

    /// How many sums the pass reduces over the grid.
    pub(super) fn sums(&self) -> u32 {
        if self.pass == Pass::Forward { self.kernels.sums } else { 2 }
    }
}
