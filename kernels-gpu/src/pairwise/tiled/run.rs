//! A row, and where it is cut into vectors.

use crate::abi::{CACHE_LINE, Matrix, PairwiseArgs, VECTOR_BYTES};
use crate::element::Element;
use crate::pairwise::Pairwise;
use crate::pairwise::pass::Pass;
use crate::pairwise::row::Row;
use core::marker::PhantomData;

/// A row of every tensor.
///
/// Its vectors are numbered from the cache line in which it begins, in the tensor that is written
/// or, if none is, in the input. In other tensors, these vectors may be off the 16-byte boundaries
/// by a shift.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, E: Element, L> {
    args: &'a PairwiseArgs,
    /// The tensors from that cache line on.
    pub(super) tensors: Row<E, L, true>,
    number: u32,
    /// Elements between the cache line and the row.
    pub(super) lead: u32,
}

impl<'a, E: Element, L: Pairwise<E::Real>> Run<'a, E, L> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn new<const GRADS: bool>(pass: &Pass<'a, E, L, false>, number: u32) -> Self {
        let args = pass.args;
        let row = u64::from(number);
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

    /// Elements between the cache line and the row's end. Computed at each use: if it were kept for
    /// this row and the next one, it would occupy registers that some kernels do not have.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn end(&self) -> u32 {
        self.lead + self.cols()
    }

    /// The number of the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn row(&self) -> u64 {
        self.number.into()
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn cols(&self) -> u32 {
        self.args.cols as u32
    }

    /// The range of vectors that are read as vectors; the elements before and after them are read
    /// one by one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn whole(&self) -> [u32; 2] {
        // A vector that is shifted is read from the two aligned vectors that contain it. For the
        // first and the last vector these may reach beyond the row.
        let edge = u32::from(!self.is_aligned());
        let end = (self.end() / E::LANES).saturating_sub(edge);
        [self.lead.div_ceil(E::LANES) + edge, end]
    }

    /// The tensors that are read.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn read(&self) -> [u64; 2] {
        [self.tensors.input, self.tensors.target]
    }

    /// The range of [whole](Self::whole) vectors among `count` vectors from `first` on, counted
    /// from `first`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn slots(&self, first: u32, count: u32) -> [u32; 2] {
        let [from, to] = self.whole();
        [from.max(first) - first, (to.max(first) - first).min(count)]
    }

    /// Whether whole vectors are on 16-byte boundaries in all tensors.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn is_aligned(&self) -> bool {
        let [input, target] = self.read();
        (input | target).is_multiple_of(VECTOR_BYTES.into())
    }

    /// Whether a vector is read as a vector.
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
}
