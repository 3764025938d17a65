//! What a block computes as one: elements that are contiguous in every tensor.

use super::Lanes;
use crate::abi::{CACHE_LINE, Matrix, PairwiseArgs, VECTOR_BYTES};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::pairwise::Pairwise;
use crate::pairwise::pass::Pass;
use crate::pairwise::row::Row;
use cuda_std::memory::{Vec16, load};

/// A run of elements: a few short rows, or one long row.
///
/// Its vectors are numbered from the cache line in which it begins, in the tensor that is written
/// or, if none is, in the input. The elements of other tensors may be off their 16-byte boundaries
/// by a shift.
pub(super) struct Run<E: Element, L> {
    /// The tensors from that cache line on.
    pub(super) tensors: Row<E, L, true>,
    number: u32,
    pub(super) rows: u32,
    cols: u32,
    /// Elements between the cache line and the run.
    pub(super) lead: u32,
}

impl<E: Element, L: Pairwise<E::Real>> Run<E, L> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new<const GRADS: bool>(pass: &Pass<'_, E, L, false>, number: u32) -> Self {
        let args = pass.args;
        let packed = args.tiles.rows;
        let row = u64::from(number) * u64::from(packed.max(1));
        let rows = if packed == 0 { 1 } else { (args.rows - row).min(packed.into()) as u32 };
        let size = size_of::<E>() as u64;
        let start = |of: Matrix| of.start + row * (of.row_stride * size);
        let if_written = |of: Matrix| if GRADS && of.start != 0 { start(of) } else { 0 };
        let [input, target] = [start(args.input), start(args.target)];
        let [by_input, by_target] = [if_written(args.grad_input), if_written(args.grad_target)];
        let base = if by_input != 0 {
            by_input
        } else if by_target != 0 {
            by_target
        } else {
            input
        };
        let lead_bytes = base % u64::from(CACHE_LINE);
        let lead = (lead_bytes / size) as u32;
        let (input, target) = (input - lead_bytes, target - lead_bytes);
        let if_written = |start: u64| if start == 0 { 0 } else { start - lead_bytes };
        let tensors = Row {
            loss: pass.loss,
            input,
            target,
            terms: 0,
            upstream: 0,
            grad_input: if_written(by_input),
            grad_target: if_written(by_target),
            scale: E::Real::ZERO,
            head: 0,
            vectors: 0,
            is_misaligned: false,
        };
        Run { tensors, number, rows, cols: args.cols as u32, lead }
    }

    /// The run's first row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn row(&self, args: &PairwiseArgs) -> u64 {
        u64::from(self.number) * u64::from(args.tiles.rows.max(1))
    }

    /// Elements between the cache line and the run's end.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn end(&self) -> u32 {
        self.lead + self.rows * self.cols
    }

    /// The vectors that are read as such, from and to; those before and behind them are read
    /// element by element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn whole(&self) -> [u32; 2] {
        // A vector that is shifted is read from the two aligned vectors that contain it. For the
        // first and the last vector these may reach beyond the run.
        let edge = u32::from(!self.is_aligned());
        let end = (self.end() / E::LANES).saturating_sub(edge);
        [self.lead.div_ceil(E::LANES) + edge, end]
    }

    /// The tensors that are read.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn read(&self) -> [u64; 2] {
        [self.tensors.input, self.tensors.target]
    }

    /// Whether the run has an element of a vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn has(&self, vector: u32) -> bool {
        vector >= self.lead / E::LANES && vector * E::LANES < self.end()
    }

    /// Whether whole vectors are on 16-byte boundaries in all tensors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn is_aligned(&self) -> bool {
        let [input, target] = self.read();
        (input | target).is_multiple_of(VECTOR_BYTES.into())
    }

    /// Whether a vector is read as such.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn is_whole(&self, vector: u32) -> bool {
        let [first, end] = self.whole();
        vector >= first && vector < end
    }

    /// Whether an aligned vector of a tensor is needed for the whole vectors, if they are shifted
    /// in that tensor or not.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn reads(&self, vector: u32, is_shifted: bool) -> bool {
        let [first, end] = self.whole();
        first < end && vector >= first && vector < end + u32::from(is_shifted)
    }

    /// The lanes of a vector that the run has.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn lanes(&self, vector: u32) -> Lanes {
        if self.is_whole(vector) {
            return Lanes::all::<E>();
        }
        let begin = vector * E::LANES;
        Lanes {
            first: self.lead.max(begin) - begin,
            end: (self.end() - begin).min(E::LANES),
            are_all: false,
        }
    }

    /// Loads the run's elements of a vector of each tensor, one by one. Elements that the run does
    /// not have are 1, which is plain in every loss.
    ///
    /// # Safety
    /// [`forward`](crate::pairwise::forward)'s condition 1 holds, and the run has an element of the
    /// vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn gather(&self, vector: u32) -> [Vec16; 2] {
        let lanes = self.lanes(vector);
        let mut elements = [[E::narrow(E::Real::ONE); MAX_LANES]; 2];
        unrolled!(for lane in 0..E::LANES as usize; {
            if lanes.has(lane) {
                let at = u64::from(vector * E::LANES + lane as u32) * size_of::<E>() as u64;
                // SAFETY: the caller's conditions.
                unsafe {
                    elements[0][lane] = load((self.tensors.input + at) as *const E);
                    elements[1][lane] = load((self.tensors.target + at) as *const E);
                }
            }
        });
        elements.map(E::pack)
    }
}
