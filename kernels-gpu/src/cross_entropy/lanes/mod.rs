//! A row, cut into vectors of 16 bytes and shared among the threads of a row group: loading it,
//! reducing it to [`Stats`](super::stats::Stats), and writing its gradients.
//!
//! A row has an aligned body, which is moved vector by vector in register [tiles](tile), and a head
//! and a tail, which are [peeled] and moved element by element.

mod class_logit;
mod gradients;
mod peeled;
mod staging;
mod statistics;
mod tile;
mod vector;

use super::mode;
use super::pass::Pass;
use super::staged::StagedLogits;
use crate::abi::{Matrix, peeled_vectors_within, vectors_within};
use crate::cut::{Cut, Row, Span};
use crate::element::Element;
use cuda_std::hint::opaque;

pub(crate) use peeled::Peeled;
pub(crate) use statistics::OfTile;
pub(crate) use tile::Tile;

/// How the rows of all tensors of a call are aligned, from the weakest guarantee to the strongest.
pub(crate) mod alignment {
    /// Rows begin at any element. Vectors are cut at the 16-byte boundaries of the input's row;
    /// whether another tensor's row has the same alignment is tested for each row.
    pub(crate) const ELEMENT: u32 = 0;
    /// As [`ELEMENT`], and tiles begin at cache lines, so that no two warps share a line.
    pub(crate) const LINE: u32 = 1;
    /// Rows begin and end at 16-byte boundaries, so that there are no peeled elements. A row is
    /// one tile of a block. Only a thread's vectors from [`vectors_within`] on may be beyond the
    /// row and need a bounds check.
    ///
    /// [`vectors_within`]: crate::abi::vectors_within
    pub(crate) const BLOCK_ROW: u32 = 2;
    /// As [`BLOCK_ROW`], but a row is one tile of lanes of a warp.
    pub(crate) const WARP_ROW: u32 = 3;
    /// As [`WARP_ROW`], but rows begin and end at any element, those of all tensors alike. A row
    /// group has [`peeled_group_threads`] lanes at least, so that a lane has one peeled element at
    /// most, and only vectors from [`peeled_vectors_within`] on may be beyond the row.
    ///
    /// [`peeled_group_threads`]: crate::abi::peeled_group_threads
    /// [`peeled_vectors_within`]: crate::abi::peeled_vectors_within
    pub(crate) const WARP_PEELED: u32 = 4;
    /// As [`WARP_PEELED`], but a row is one tile of a block.
    pub(crate) const BLOCK_PEELED: u32 = 5;
}

/// A row as the threads of a row group see it: its address, where it is cut into vectors, and
/// which of its vectors are staged in shared memory between the reduction and the gradients.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<E, const ALIGNMENT: u32> {
    cut: Cut<E>,
    input: Row<E>,
    /// The target's probabilities, or null where the target is a class.
    target: Row<E>,
    staged: StagedLogits,
}

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// Whether a row is one tile, except for peeled elements.
    const ONE_TILE: bool = ALIGNMENT == alignment::BLOCK_ROW
        || ALIGNMENT == alignment::BLOCK_PEELED
        || Self::ROW_IN_WARP;
    /// Whether a row group is a warp or a part of one, which has its row in registers.
    pub(crate) const ROW_IN_WARP: bool =
        ALIGNMENT == alignment::WARP_ROW || ALIGNMENT == alignment::WARP_PEELED;
    /// Whether a row that is one tile has peeled elements beside it.
    pub(crate) const HAS_PEELED: bool =
        ALIGNMENT == alignment::WARP_PEELED || ALIGNMENT == alignment::BLOCK_PEELED;

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn new<const MODE: u32>(pass: &Pass<'_, E, MODE>, row: u64) -> Self {
        let args = pass.args;
        let start = Row::<E>::address(args.input, row);
        let probabilities = if MODE == mode::PROBABILITIES { args.target } else { 0 };
        let probabilities = Matrix { start: probabilities, row_stride: args.target_stride };
        Lanes {
            cut: match ALIGNMENT {
                alignment::LINE => Cut::at_lines(start, args.cols),
                alignment::BLOCK_ROW | alignment::WARP_ROW => Cut::all_vectors(args.cols),
                _ => Cut::new(start, args.cols),
            },
            input: Row::at_cut(start),
            target: Self::row_of(probabilities, row, start),
            staged: StagedLogits::NONE,
        }
    }

    /// The address at which the row of the input begins.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn start(&self) -> u64 {
        self.input.start()
    }

    /// Forces the compiler to compute the row's address here, and not later at its first use.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn rematerialize(self) -> Self {
        Lanes { input: Row::at_cut(opaque(self.start())), ..self }
    }

    /// Row `row` of another tensor, to be cut like the input's row at `start`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn row_of(tensor: Matrix, row: u64, start: u64) -> Row<E> {
        match ALIGNMENT {
            alignment::ELEMENT | alignment::LINE => Row::new(tensor, row, start),
            _ => Row::same_alignment(tensor, row),
        }
    }

    /// The rows to which the gradients of the input and of the target are written; null where a
    /// gradient is not wanted.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn to<const MODE: u32>(&self, pass: &Pass<'_, E, MODE>, row: u64) -> [Row<E>; 2] {
        let to = |tensor| Self::row_of(tensor, row, self.input.start());
        [to(pass.args.grad_input), to(pass.args.grad_target)]
    }

    /// The elements of vector `k` of a tile: none, if the vector is beyond the row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn span<const N: usize>(&self, tile: &Tile<N>, k: usize) -> Span {
        let Span { first, count } = self.cut.vector(tile.vector_index(k));
        let within = k < Self::unchecked(N) || self.cut.has(tile.vector_index(k));
        Span { first, count: if within { count } else { 0 } }
    }

    /// How many of a thread's `vectors` vectors are certain to be within a row.
    const fn unchecked(vectors: usize) -> usize {
        match ALIGNMENT {
            alignment::BLOCK_ROW | alignment::WARP_ROW => vectors_within(vectors),
            alignment::WARP_PEELED | alignment::BLOCK_PEELED => peeled_vectors_within(vectors),
            _ => 0,
        }
    }
}
