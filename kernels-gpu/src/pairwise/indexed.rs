//! Rows with gaps, a loss or an upstream gradient per element, and weights: a thread finds the row
//! of each of its vectors by a division.
//!
//! A row is cut at the 16-byte boundaries of the tensor that is written or, if none is, of the
//! input. In the vectors at its ends, only some lanes have elements of the row.

use super::Pairwise;
use super::pass::{Pass, SUMS, Sums, in_tile};
use super::row::{Around, Lanes, are_plain, gather, of_lane, store_lanes};
use super::row_scales::RowScales;
use crate::abi::{INDEXED_FLIGHT, IndexedArgs, Matrix, Span, reduction};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use cuda_std::hint::opaque;
use cuda_std::memory::{Vec16, load_streaming};
use cuda_std::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

/// The vectors that a block computes at a time: of some rows, or of a part of one.
#[derive(Clone, Copy)]
struct Tile {
    /// The first row.
    row: u64,
    /// The first vector of each row.
    vector: u64,
    /// Elements of a row from one vector before `vector` on, if the row begins with a vector; or,
    /// if these are too many, a number that is larger than a tile.
    cols: u32,
    /// Whether all bytes of all vectors, and of the aligned vectors around them, are in the
    /// tensors.
    is_within: bool,
}

/// Where a vector is.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The row, counted from the tile's.
    row: u32,
    /// The vector, counted from the tile's. Vector 0 of a row begins at the last boundary at or
    /// before the row's first element.
    vector: u32,
    /// Elements of vector 0 that are before the row.
    lead: u32,
}

impl<E: Element, L: Pairwise<E::Real>> Pass<'_, E, L, false> {
    /// Computes this thread's vectors. With `TERMS`, returns the sum of their terms, or writes each
    /// term if the loss is not reduced. With `GRADS`, writes the gradients.
    ///
    /// # Safety
    /// 1. [`forward`](super::forward)'s conditions 1 and 3 hold.
    /// 2. `args.indexed` is as [`IndexedArgs`] says.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn indexed<const TERMS: bool, const GRADS: bool>(&self) -> E::Real {
        let (args, indexed) = (self.args, &self.args.indexed);
        let has_scales = GRADS && args.upstream.row_stride != 0 && args.upstream_col_stride == 0;
        let row_scales = RowScales::new(args);
        if indexed.tiles == 0 {
            // There may be no rows, and then there is no upstream gradient to read.
            return E::Real::ZERO;
        }
        // SAFETY: condition 1; there is a row.
        let one_scale = if GRADS { unsafe { self.scale(0) } } else { E::Real::ZERO };
        let is_aligned = indexed.is_aligned != 0;
        let mut sums = Sums::NONE;
        let thread = thread_idx_x();
        // Within a tile, the vectors of a warp are contiguous.
        let first = if is_aligned { in_tile::<INDEXED_FLIGHT>(thread) } else { thread };
        let indices = [first, first + WARP_SIZE];
        let mut number = u64::from(block_idx_x());
        while number < indexed.tiles {
            let tile = self.tile(number);
            let vectors = self.vectors(tile);
            // In place of a vector beyond the last one, the last one is loaded again.
            let places = indices.map(|index| self.place(tile, index.min(vectors - 1)));
            // SAFETY: the caller's conditions; the rows are among `rows`.
            unsafe {
                let mut scales = [one_scale; 2];
                if has_scales {
                    let by_row = args.reduction == reduction::ROWS;
                    scales = places.map(|place| {
                        let row = tile.row + u64::from(place.row);
                        if by_row { row_scales.of_row(row) } else { self.scale(row) }
                    });
                }
                let (pairs, are_within) = self.load(tile, places);
                let (mut pair, mut place, mut scale) = (pairs[0], places[0], scales[0]);
                let (mut is_within, mut index) = (are_within[0], indices[0]);
                // A loop, so that the code of a vector exists once.
                while index < vectors {
                    if is_within && are_plain::<E, L>(self.loss, pair[0], pair[1]) {
                        self.vector::<TERMS, GRADS, true>(tile, place, pair, scale, &mut sums);
                    } else {
                        let pair = self.gather(tile, place);
                        self.vector::<TERMS, GRADS, false>(tile, place, pair, scale, &mut sums);
                    }
                    if !is_aligned || index == indices[1] {
                        break;
                    }
                    (pair, place, scale) = (pairs[1], places[1], scales[1]);
                    (is_within, index) = (are_within[1], indices[1]);
                }
            }
            number += u64::from(grid_dim_x());
        }
        sums.total(L::UNIT)
    }

    /// A tile, by its number.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn tile(&self, number: u64) -> Tile {
        let args = self.args;
        let &IndexedArgs { rows_of_tile, parts, per_part, tile_vectors, reach, .. } = &args.indexed;
        // As in `divided`.
        let mut rows = ((u128::from(number) * u128::from(per_part)) >> 64) as u64;
        let mut part = number - rows * parts;
        if part >= parts {
            (rows, part) = (rows + 1, part - parts);
        }
        let row = rows * u64::from(rows_of_tile);
        let vector = part * u64::from(tile_vectors);
        // Rows that do not begin with a vector may have one vector more.
        let lanes = u64::from(E::LANES);
        let cols = args.cols + lanes - vector * lanes;
        Tile {
            row,
            vector,
            cols: cols.min(1 << 30) as u32,
            is_within: row >= u64::from(reach[0]) && row + u64::from(reach[1]) <= args.rows,
        }
    }

    /// The number of vectors of a tile: the last tile of all, or of a row, may have fewer than the
    /// others.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn vectors(&self, tile: Tile) -> u32 {
        let &IndexedArgs { of_row, rows_of_tile, tile_vectors, .. } = &self.args.indexed;
        let rows = (self.args.rows - tile.row).min(rows_of_tile.into());
        (rows * of_row - tile.vector).min(tile_vectors.into()) as u32
    }

    /// The place of a tile's vector.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn place(&self, tile: Tile, index: u32) -> Place {
        let &IndexedArgs { of_row, per_row, base, row_bytes, .. } = &self.args.indexed;
        let (row, vector) = match per_row {
            0 => (0, index),
            _ => divided(index, of_row as u32, per_row),
        };
        // Only the remainder by 16 is needed, so the lower 32 bits are enough.
        let from_first = (tile.row as u32).wrapping_add(row);
        let start = (base as u32).wrapping_add(from_first.wrapping_mul(row_bytes.base as u32));
        Place { row, vector, lead: start % 16 / size_of::<E>() as u32 }
    }

    /// The lanes of a vector that are elements of its row.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn lanes(&self, tile: Tile, Place { vector, lead, .. }: Place) -> Lanes {
        let left = (tile.cols + lead).saturating_sub((vector + 1) * E::LANES);
        let is_first = tile.vector + u64::from(vector) == 0;
        Lanes::between(if is_first { lead } else { 0 }, left.min(E::LANES))
    }

    /// The address of a vector in a tensor.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn address(&self, of: Matrix, row_bytes: u64, tile: Tile, place: Place) -> *mut Vec16 {
        self.in_tile(start_of_tile(of, row_bytes, tile), row_bytes, place)
    }

    /// The address of a vector in a tensor, given the [start](start_of_tile) of the tile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn in_tile(&self, start: u64, row_bytes: u64, place: Place) -> *mut Vec16 {
        let row = start + u64::from(place.row) * u64::from(row_bytes as u32);
        // `start` is one vector before the tile. So this is never negative: the lead is less than a
        // vector.
        let in_row = (place.vector + 1) * 16 - place.lead * size_of::<E>() as u32;
        (row + u64::from(in_row)) as *mut Vec16
    }

    /// The addresses of vectors in input and target.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn addresses<const N: usize>(&self, tile: Tile, places: [Place; N]) -> [[*const Vec16; 2]; N] {
        let (args, bytes) = (self.args, &self.args.indexed.row_bytes);
        let [x, t] = [(args.input, bytes.input), (args.target, bytes.target)]
            .map(|(of, row_bytes)| start_of_tile(of, row_bytes, tile));
        places.map(|place| {
            [(x, bytes.input), (t, bytes.target)]
                .map(|(start, row_bytes)| self.in_tile(start, row_bytes, place).cast_const())
        })
    }

    /// Loads two vectors of input and target or, if they are not aligned, the two vectors around
    /// the first one. Also returns whether all bytes of each are in the tensors; those that are not
    /// are not loaded.
    ///
    /// # Safety
    /// As [`indexed`](Self::indexed).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load(&self, tile: Tile, places: [Place; 2]) -> ([[Vec16; 2]; 2], [bool; 2]) {
        let &IndexedArgs { within: [input, target, _], is_aligned, .. } = &self.args.indexed;
        let mut pairs = [[Vec16::default(); 2]; 2];
        let at = self.addresses(tile, places);
        let mut are_within = [true; 2];
        if !tile.is_within {
            are_within = at.map(|[x, t]| is_within(x, input) && is_within(t, target));
        }
        // SAFETY: the vectors, or those around them, are in the tensors.
        unsafe {
            if is_aligned == 0 {
                if are_within[0] {
                    pairs[0] = at[0].map(|at| Around::load(at)).map(Around::shifted::<E>);
                }
            } else if tile.is_within {
                pairs = at.map(|at| at.map(|at| load_streaming(at)));
            } else {
                unrolled!(for k in 0..2; {
                    if are_within[k] {
                        pairs[k] = at[k].map(|at| load_streaming(at));
                    }
                });
            }
        }
        (pairs, are_within)
    }

    /// Loads the elements of a vector of input and target one by one. The others are 1.
    ///
    /// # Safety
    /// As [`indexed`](Self::indexed).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn gather(&self, tile: Tile, place: Place) -> [Vec16; 2] {
        let lanes = self.lanes(tile, place);
        // SAFETY: the caller's conditions; the lanes are elements of the row.
        self.addresses(tile, [place])[0].map(|at| unsafe { gather::<E>(at, lanes) })
    }

    /// The upstream gradients of a vector's elements.
    ///
    /// # Safety
    /// As [`indexed`](Self::indexed), where each element has an upstream gradient.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn upstream(&self, tile: Tile, place: Place) -> Vec16 {
        let at =
            self.address(self.args.upstream, self.args.indexed.row_bytes.upstream, tile, place);
        if is_within(at, self.args.indexed.within[2]) {
            // SAFETY: the vectors around it are in the tensor.
            return unsafe { Around::load(at) }.shifted::<E>();
        }
        // SAFETY: the caller's conditions; the lanes are elements of the row.
        unsafe { gather::<E>(at, self.lanes(tile, place)) }
    }

    /// Computes a vector's pairs, with one scale of the gradients unless elements have their own.
    /// With `PLAIN`, all pairs are plain.
    ///
    /// # Safety
    /// As [`indexed`](Self::indexed).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn vector<const TERMS: bool, const GRADS: bool, const PLAIN: bool>(
        &self,
        tile: Tile,
        place: Place,
        [x, t]: [Vec16; 2],
        scale: E::Real,
        sums: &mut Sums<E::Real>,
    ) {
        let (args, bytes) = (self.args, &self.args.indexed.row_bytes);
        let lanes = self.lanes(tile, place);
        let pair_of = |lane: usize| (of_lane::<E>(x, lane), of_lane::<E>(t, lane));
        // SAFETY: the caller's conditions.
        unsafe {
            let of_row = self.loss.of_row(tile.row + u64::from(place.row));
            let vector = tile.vector + u64::from(place.vector);
            let col = (vector * u64::from(E::LANES)).wrapping_sub(place.lead.into());
            let loss = |lane: usize| match lanes.has(lane) {
                true => of_row.of_col(col.wrapping_add(lane as u64)),
                false => of_row,
            };
            if TERMS {
                let writes = args.reduction == reduction::ELEMENTS;
                let mut terms = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let (x, t) = pair_of(lane);
                    let [a, b] = loss(lane).term::<PLAIN>(x, t);
                    if writes {
                        terms[lane] = if PLAIN { a * b * L::UNIT } else { a * b };
                    } else if !lanes.has(lane) {
                        // The lane belongs to another row, or to none.
                    } else if PLAIN {
                        sums.plain[lane % SUMS] = a.fma(b, sums.plain[lane % SUMS]);
                    } else {
                        sums.other = a.fma(b, sums.other);
                    }
                });
                if writes {
                    let at = self.address(args.loss, bytes.loss, tile, place);
                    store_lanes::<E, false>(at, E::narrow_all(terms), lanes);
                }
            }
            if !GRADS {
                return;
            }
            let mut scales = [scale; MAX_LANES];
            if args.upstream_col_stride != 0 {
                let upstream = self.upstream(tile, place);
                unrolled!(for lane in 0..E::LANES as usize; {
                    scales[lane] = of_lane::<E>(upstream, lane);
                });
            }
            let mut grads = [E::Real::ZERO; MAX_LANES];
            if args.grad_input.start != 0 {
                unrolled!(for lane in 0..E::LANES as usize; {
                    let (x, t) = pair_of(lane);
                    grads[lane] = loss(lane).grad_input::<PLAIN>(x, t, scales[lane]);
                });
                let at = self.address(args.grad_input, bytes.grad_input, tile, place);
                store_lanes::<E, false>(at, E::narrow_all(grads), lanes);
            }
            if args.grad_target.start != 0 {
                unrolled!(for lane in 0..E::LANES as usize; {
                    let (x, t) = pair_of(lane);
                    grads[lane] = loss(lane).grad_target::<PLAIN>(x, t, scales[lane]);
                });
                let at = self.address(args.grad_target, bytes.grad_target, tile, place);
                store_lanes::<E, false>(at, E::narrow_all(grads), lanes);
            }
        }
    }
}

/// A quotient and its remainder. `reciprocal` is 2³² − 1 divided by the divisor, rounded down.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn divided(dividend: u32, divisor: u32, reciprocal: u32) -> (u32, u32) {
    // The product is less than 1 below the quotient, so its integer part may be one too small.
    let quotient = ((u64::from(dividend) * u64::from(reciprocal)) >> 32) as u32;
    let rest = dividend - quotient * divisor;
    if rest >= divisor { (quotient + 1, rest - divisor) } else { (quotient, rest) }
}

/// The address one vector before a tile's first vector in a tensor, if the row begins with a
/// vector.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn start_of_tile(of: Matrix, row_bytes: u64, tile: Tile) -> u64 {
    // Opaque: LLVM would add a vector's row to the tile's, in 64 bits, and multiply the sum.
    opaque(of.start + tile.row * row_bytes + tile.vector * 16 - 16)
}

/// Whether all bytes of the aligned vectors around `at` are in a tensor.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
fn is_within(at: *const Vec16, of: Span) -> bool {
    let [first, last] = Around::addresses(at).map(|at| at as u64);
    first >= of.first && last <= of.last
}
