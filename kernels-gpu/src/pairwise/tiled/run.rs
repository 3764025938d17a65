//! What a block computes as one: rows that lie in the same order, and as far apart, in every
//! tensor.

use super::{Lanes, Packed, WARPS};
use crate::abi::{CACHE_LINE, Matrix, PairwiseArgs, VECTOR_BYTES};
use crate::element::Element;
use crate::pairwise::Pairwise;
use crate::pairwise::pass::Pass;
use crate::pairwise::row::{Row, gather};
use core::marker::PhantomData;
use cuda_std::memory::Vec16;
use cuda_std::warp::warp_id;

/// A run of elements: a few short rows with the gaps between them, or one long row.
///
/// Its vectors are numbered from the cache line in which it begins, in the tensor that is written
/// or, if none is, in the input. The elements of other tensors may be off their 16-byte boundaries
/// by a shift.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, E: Element, L> {
    args: &'a PairwiseArgs,
    /// The tensors from that cache line on.
    pub(super) tensors: Row<E, L, true>,
    number: u32,
    /// Elements between the cache line and the run.
    pub(super) lead: u32,
}

impl<'a, E: Element, L: Pairwise<E::Real>> Run<'a, E, L> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new<const GRADS: bool>(pass: &Pass<'a, E, L, false>, number: u32) -> Self {
        let args = pass.args;
        let row = u64::from(number) * u64::from(args.tiles.rows.max(1));
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
            grad_input: if_written(by_input),
            grad_target: if_written(by_target),
            head: 0,
            vectors: 0,
            is_misaligned: false,
            element: PhantomData,
        };
        Run { args, tensors, number, lead }
    }

    /// The run's rows. These and the run's [end](Self::end) are computed at each use: kept, for
    /// this run and the next one, they would take registers that some kernels do not have.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn rows(&self) -> u32 {
        match self.args.tiles.rows {
            0 => 1,
            packed => (self.args.rows - self.row()).min(packed.into()) as u32,
        }
    }

    /// Elements between the cache line and the run's end.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn end(&self) -> u32 {
        self.lead + (self.rows() - 1) * self.step() + self.cols()
    }

    /// The run's first row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn row(&self) -> u64 {
        u64::from(self.number) * u64::from(self.args.tiles.rows.max(1))
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn cols(&self) -> u32 {
        self.args.cols as u32
    }

    /// Elements from row to row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn step(&self) -> u32 {
        self.args.tiles.step
    }

    /// The row that has an element, which is counted from the first row's first; both are counted
    /// from the run's first.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn row_of(&self, element: u32) -> u32 {
        match self.args.tiles.per_step {
            0 => element,
            per_step => ((u64::from(element) * u64::from(per_step)) >> 32) as u32,
        }
    }

    /// The vectors that are read as such, from and to; those before and behind them are read
    /// element by element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn whole(&self) -> [u32; 2] {
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

    /// The vectors that the run has an element of, from and to.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn all(&self) -> [u32; 2] {
        [self.lead / E::LANES, self.end().div_ceil(E::LANES)]
    }

    /// The vectors that are read as such and have all lanes in rows, from and to; none if there are
    /// gaps between rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn quick(&self, has_gaps: bool) -> [u32; 2] {
        if has_gaps { [0; 2] } else { self.whole() }
    }

    /// Those of the vectors `from` to before `to` that are among `count` vectors from `first` on,
    /// counted from `first`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn slots(&self, [from, to]: [u32; 2], first: u32, count: u32) -> [u32; 2] {
        [from.max(first) - first, (to.max(first) - first).min(count)]
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

    /// Element `index` of those that are in no [whole](Self::whole) vector: fewer than the lanes
    /// of a warp. The row has whole vectors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn edge(&self, index: u32) -> Option<u32> {
        let [first, end] = self.whole().map(|vector| vector * E::LANES);
        let element = self.lead + index;
        let element = if element < first { element } else { element - first + end };
        (element < self.end()).then_some(element)
    }

    /// The rows that a warp's part of the tile has elements of, from and to.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn warp_rows(&self) -> [u32; 2] {
        let elements = self.args.tiles.vectors / WARPS * E::LANES;
        let begin = warp_id() * elements;
        let end = (begin + elements).min(self.end());
        if begin >= end || end <= self.lead {
            return [0; 2];
        }
        let row = |element: u32| self.row_of(element - self.lead);
        [row(begin.max(self.lead)), (row(end - 1) + 1).min(self.rows())]
    }

    /// The lanes of a vector that are elements of the run's rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn lanes(&self, has_gaps: bool, vector: u32) -> Lanes {
        let begin = vector * E::LANES;
        if !has_gaps {
            if self.is_whole(vector) {
                return Lanes::all::<E>();
            }
            let end = (self.end() - begin).min(E::LANES);
            return Lanes::between(self.lead.max(begin) - begin, end);
        }
        let Packed { mut row, boundary } = Packed::new(self, vector);
        // A row that begins before the vector has a negative lane for its first.
        let step = self.step().cast_signed();
        let lane = |index: i32| index.clamp(0, E::LANES.cast_signed()).cast_unsigned();
        let mut first = boundary.cast_signed() - step;
        let mut lanes = Lanes::NONE;
        while first < E::LANES.cast_signed() && row < self.rows() {
            let end = first + self.cols().cast_signed();
            lanes = lanes.with(Lanes::between(lane(first), lane(end)));
            (row, first) = (row + 1, first + step);
        }
        lanes
    }

    /// Loads the `lanes` of a vector of each tensor, one by one. The others are 1, which is plain
    /// in every loss.
    ///
    /// # Safety
    /// [`forward`](crate::pairwise::forward)'s condition 1 holds, and the run's rows have the
    /// lanes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn gather(&self, vector: u32, lanes: Lanes) -> [Vec16; 2] {
        let at = u64::from(vector) * u64::from(VECTOR_BYTES);
        // SAFETY: the caller's conditions.
        self.read().map(|start| unsafe { gather::<E>((start + at) as *const Vec16, lanes) })
    }
}
