//! The rows of a tile, and a lane's part of one: which bytes of shared memory it accesses.

use crate::abi::{TileArgs, VECTOR_BYTES};
use crate::element::Element;
use crate::row::Split;
use crate::tile::{Shared, Tile};
use cuda_std::memory::Vec16;
use cuda_std::warp::WARP_SIZE;

/// A row of 16-bit elements that begins or ends within a word is read by words only if it has at
/// least this many bytes. Its edges take as many instructions as several words, so shorter rows are
/// read by elements: H200, 2026-11-29, ceiling ÷ ours by elements and by words, divergence,
/// forward: bf16, 9 columns 0.69 and 0.58, 25 columns 0.76 and 0.74; f16, 61 columns 0.79 and 0.82,
/// 129 columns 0.73 and 0.79.
const LEAST_WORDS_BYTES: u32 = 64;

/// Bytes of a word, and of a 16-bit element.
const WORD: u32 = 4;
const HALF: u32 = 2;

/// The rows of a tile.
#[derive(Clone, Copy)]
pub(super) struct Rows<E> {
    pub(super) shared: Shared,
    /// The number of the first.
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) input: Tile<E>,
    pub(super) target: Tile<E>,
    pub(super) grad_input: Tile<E>,
    pub(super) grad_target: Tile<E>,
}

/// A lane's part of a row, or of the elements at its ends: access number `first`, and every
/// `step`-th after it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) shared: Shared,
    /// The first byte in the input, and in the target.
    pub(super) at: [u32; 2],
    /// The first byte in each gradient.
    pub(super) to: [u32; 2],
    /// Access `v ^ order` is used in place of access `v`; see `TileArgs::order_right`.
    order: u32,
    pub(super) first: u32,
    pub(super) step: u32,
    /// The number of accesses of all lanes together.
    pub(super) end: u32,
    /// The bytes of an access.
    pub(super) bytes: u32,
    /// The bytes between the beginnings of adjacent accesses.
    stride: u32,
    /// Bytes of the row before the first access, and of the whole row.
    head: u32,
    row_bytes: u32,
}

impl<E: Element> Rows<E> {
    /// The bytes of an access to rows: 16, 4, or those of an element.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn access_bytes<const GRADS: bool>(&self, tile: &TileArgs) -> u32 {
        let access = if GRADS { tile.access.min(tile.store_access) } else { tile.access };
        let size = size_of::<E>() as u32;
        if access == VECTOR_BYTES {
            VECTOR_BYTES
        } else if size == HALF && (access >= WORD || self.input.row_bytes() >= LEAST_WORDS_BYTES) {
            WORD
        } else {
            size
        }
    }

    /// The lane's part of row `index` by accesses of `BYTES` bytes; see
    /// [`part_of`](Self::part_of).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn part<const BYTES: usize>(&self, i: u32, split: Split, tile: &TileArgs) -> Part {
        self.part_of(i, split, BYTES as u32, tile)
    }

    /// The lane's part of row `index` by accesses of `bytes` bytes. A row of 16-bit elements may
    /// have one element before its first word and one after its last, which are its
    /// [`edges`](Part::edges). If the words of the tensors begin at different bytes, all elements
    /// are edges.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn part_of(&self, index: u32, split: Split, bytes: u32, tile: &TileArgs) -> Part {
        let &TileArgs { order_right, order_mask, order_left, .. } = tile;
        let is_ordered = bytes == VECTOR_BYTES;
        let order = if is_ordered { (index >> order_right & order_mask) << order_left } else { 0 };
        let at = [self.input.row(index), self.target.row(index)];
        let to = [self.grad_input.row(index), self.grad_target.row(index)];
        let row_bytes = self.input.row_bytes();
        let ([x, t], [by_x, by_t]) = (at, to);
        let (mut head, mut within) = (0, row_bytes);
        if size_of::<E>() as u32 == HALF && bytes == WORD {
            let is_same = ((x ^ t) | (x ^ by_x) | (t ^ by_t)).is_multiple_of(WORD);
            head = if is_same { x % WORD } else { 0 };
            within = if is_same { row_bytes - head } else { 0 };
        }
        Part {
            shared: self.shared,
            at: at.map(|start| start + head),
            to: to.map(|start| start + head),
            order,
            first: split.part,
            step: WARP_SIZE >> split.rows_shift,
            end: within / bytes,
            bytes,
            stride: bytes,
            head,
            row_bytes,
        }
    }
}

impl Part {
    /// [`edges_of`](Self::edges_of) a part whose accesses have `BYTES` bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn edges<E: Element, const BYTES: usize>(self) -> Option<Self> {
        if BYTES as u32 == WORD { self.edges_of::<E>() } else { None }
    }

    /// The elements that are in no word, if there are any. The first lanes of the row take one of
    /// them each.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn edges_of<E: Element>(self) -> Option<Self> {
        let within = self.end * WORD;
        // Only rows that are read by words have edges; for other accesses the difference may wrap
        // around.
        let edges = self.row_bytes.wrapping_sub(within) / HALF;
        if size_of::<E>() as u32 != HALF || self.bytes != WORD || edges == 0 {
            return None;
        }
        // From the head to the tail, or from element to element if there are no words.
        let stride = within + HALF;
        let begin = |start: u32| if self.head > 0 { start - self.head } else { start + within };
        Some(Part {
            at: self.at.map(begin),
            to: self.to.map(begin),
            end: edges,
            bytes: HALF,
            stride,
            ..self
        })
    }

    /// The bytes before an access.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn offset(self, access: u32) -> u32 {
        (access ^ self.order) * self.stride
    }

    /// An access to the input, and to the target.
    ///
    /// # Safety
    /// The copies of the row are complete, and it has the access.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn load<const BYTES: usize>(self, access: u32) -> [Vec16; 2] {
        let offset = self.offset(access);
        // SAFETY: the caller's condition.
        self.at.map(|at| unsafe { self.shared.load_bytes::<BYTES>(at + offset) })
    }

    /// Stores an access to gradient number `k`.
    ///
    /// # Safety
    /// The row has the access, which is the lane's.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn store<const BYTES: usize>(self, k: usize, access: u32, values: Vec16) {
        let at = self.to[k] + self.offset(access);
        // SAFETY: the caller's condition.
        unsafe { self.shared.store_bytes::<BYTES>(at, values) };
    }
}
