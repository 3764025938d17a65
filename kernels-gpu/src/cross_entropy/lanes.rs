//! A row as a row group of threads reads and writes it.

use super::label::{Label, class_weight};
use super::mode;
use super::pass::{Factors, Pass};
use super::row_group::RowGroup;
use super::staged::{StagedLogits, StagedPeeled, StagedTiles};
use super::stats::{Relative, Stats};
use crate::abi::{CrossEntropyArgs, Matrix, vectors_within};
use crate::cut::{Cut, Row, Span};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::{group_max, warp_max, warp_sums};
use core::hint::select_unpredictable;
use cuda_std::hint::{opaque, opaque_vec16};
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp};

/// Vectors of 16 bytes of a tile of a row that is not held, all in flight.
pub(crate) const FLIGHT: usize = 4;

/// Vectors of such a tile of a warp.
const WIDTH: u32 = FLIGHT as u32 * WARP_SIZE;

/// How the rows of all tensors lie.
pub(crate) mod alignment {
    /// Each as it may.
    pub(crate) const ELEMENT: u32 = 0;
    /// The same, and cut at lines of the cache.
    pub(crate) const LINE: u32 = 1;
    /// Alike to 16 bytes.
    pub(crate) const SAME: u32 = 2;
    /// From one boundary of 16 bytes to another, without peeled elements, and as one tile, of which only the
    /// last of a thread's vectors may be beyond the row, those behind [`vectors_within`].
    pub(crate) const BLOCK_ROW: u32 = 3;
    /// The same, and each is held by lanes of a warp.
    pub(crate) const WARP_ROW: u32 = 4;
}

/// A row, to be read by the lanes of a row group: where it is, how it is cut, and what is staged of it
/// between two passes.
pub(crate) struct Lanes<E, const ALIGNMENT: u32> {
    cut: Cut<E>,
    input: Row<E>,
    target: Row<E>,
    staged: StagedLogits,
}

/// Vectors of a row that a thread has in registers: vector `first` and, from one to the next,
/// `stride` farther. Beyond the row they are full of −∞.
#[derive(Clone, Copy)]
pub(crate) struct Tile<const N: usize> {
    first: u32,
    stride: u32,
    x: [Vec16; N],
    t: [Vec16; N],
}

impl<const N: usize> Tile<N> {
    /// Vectors that have not been read.
    #[inline(always)]
    fn unread(first: u32, stride: u32) -> Self {
        Tile { first, stride, x: [Vec16::default(); N], t: [Vec16::default(); N] }
    }

    /// Of −∞ alone, in place of what was read.
    #[inline(always)]
    pub(crate) fn forget<E: Element>(&mut self) {
        unrolled!(for k in 0..N; {
            (self.x[k], self.t[k]) = (nothing::<E>(), nothing::<E>());
        });
    }

    /// The same, of which the compiler does not know it: elements of 16 bits are widened rematerialize,
    /// where they would otherwise be staged as they were, in twice as many registers.
    #[inline(always)]
    pub(crate) fn rematerialize(mut self) -> Self {
        unrolled!(for k in 0..N; {
            (self.x[k], self.t[k]) = (opaque_vec16(self.x[k]), opaque_vec16(self.t[k]));
        });
        self
    }

    /// The same, of which vector `first` is the first and the others are `stride` apart.
    #[inline(always)]
    pub(crate) fn at(self, first: u32, stride: u32) -> Self {
        Tile { first, stride, ..self }
    }

    /// Keeps the logits for [`Lanes::staged_logit`].
    ///
    /// # Safety
    /// As [`StagedTiles::stage`].
    #[inline(always)]
    pub(crate) unsafe fn stage(&self) {
        // SAFETY: the caller's conditions.
        unsafe { StagedTiles::stage(self.x) };
    }

    /// The index in the row of vector `k`.
    #[inline(always)]
    fn vector(&self, k: usize) -> u32 {
        self.first + k as u32 * self.stride
    }

    /// What exponentials relative to `center` are made with. For one that is too far from 0, the
    /// logits are made relative to it first: whatever is lost then was farther below it than
    /// exponentials go.
    #[inline(always)]
    fn relative_to<E: Element, const MODE: u32>(
        &mut self,
        center: E::Real,
    ) -> Relative<E::Real, MODE> {
        if Relative::<_, MODE>::is_far(center) {
            unrolled!(for k in 0..N; {
                let mut apart = [E::LOWEST; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    let x = E::extract(self.x[k], lane as u32).widen();
                    apart[lane] = E::narrow(x - center);
                });
                self.x[k] = E::pack(apart);
            });
        }
        Relative::to(center)
    }
}

/// An element of a row's peeled elements: where it is, its logit, what the target says.
#[derive(Clone, Copy)]
pub(crate) struct Peeled<E> {
    at: u32,
    x: E,
    t: E,
}

/// The exponentials of the logits of a tile.
pub(crate) type Exps<R, const N: usize> = [[R; MAX_LANES]; N];

/// Value `at` of a vector's.
#[inline(always)]
fn get<E: Element>(values: &[E::Real; MAX_LANES], at: u32) -> E::Real {
    let mut value = E::Real::ZERO;
    // Otherwise the compiler stages, for each value, which element of the row it would have to be.
    let at = opaque(at.into()) as u32;
    unrolled!(for lane in 0..E::LANES as usize; {
        // No jump table.
        value = select_unpredictable(lane as u32 == at, values[lane], value);
    });
    value
}

/// Vector `k` of N, a power of two: by the bits of k, with no jump.
#[inline(always)]
fn choose<const N: usize>(mut x: [Vec16; N], k: u32) -> Vec16 {
    const { assert!(N.is_power_of_two() && N <= MAX_LANES) };
    // As in `get`.
    let k = opaque(k.into()) as u32;
    unrolled!(for bit in 0..3; {
        unrolled!(for pair in 0..4; {
            if pair < N >> (bit + 1) {
                unrolled!(for word in 0..4; {
                    let [low, high] = [x[2 * pair].0[word], x[2 * pair + 1].0[word]];
                    x[pair].0[word] = select_unpredictable(k >> bit & 1 == 1, high, low);
                });
            }
        });
    });
    x[0]
}

/// The logits of a vector.
#[inline(always)]
fn widened<E: Element>(x: Vec16) -> [E::Real; MAX_LANES] {
    let mut logits = [E::Real::ZERO; MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        logits[lane] = E::extract(x, lane as u32).widen();
    });
    logits
}

/// The sum of a vector's values. Two by two: each addition waits for fewer.
#[inline(always)]
fn sum_of<E: Element>(values: [E::Real; MAX_LANES]) -> E::Real {
    let mut sum = values[0] + values[1];
    unrolled!(for pair in 1..MAX_LANES / 2; {
        if (pair as u32) < E::LANES / 2 {
            sum = sum + (values[2 * pair] + values[2 * pair + 1]);
        }
    });
    sum
}

/// How many exponentials of a tile's logits relative to `center` are 1, and the sum of the others.
#[inline(always)]
fn ties_and_rest<E: Element, const N: usize>(tile: &Tile<N>, center: E::Real) -> [E::Real; 2] {
    let (mut ties, mut rest) = (E::Real::ZERO, E::Real::ZERO);
    unrolled!(for k in 0..N; {
        let x = widened::<E>(tile.x[k]);
        unrolled!(for lane in 0..E::LANES as usize; {
            let exp = (x[lane] - center).exp_below();
            let tie = exp == E::Real::ONE;
            ties = ties + if tie { E::Real::ONE } else { E::Real::ZERO };
            rest = rest + if tie { E::Real::ZERO } else { exp };
        });
    });
    [ties, rest]
}

/// Sets value `at` of a vector's, if there is one.
#[inline(always)]
fn set<E: Element>(values: &mut [E::Real; MAX_LANES], at: Option<u32>, value: E::Real) {
    if let Some(at) = at {
        // As in `get`.
        let at = opaque(at.into()) as u32;
        unrolled!(for lane in 0..E::LANES as usize; {
            values[lane] = select_unpredictable(lane as u32 == at, value, values[lane]);
        });
    }
}

/// 16 bytes of −∞.
#[inline(always)]
fn nothing<E: Element>() -> Vec16 {
    E::pack([E::LOWEST; MAX_LANES])
}

impl<E: Element, const ALIGNMENT: u32> Lanes<E, ALIGNMENT> {
    /// Whether rows lie from one boundary of 16 bytes to another, as one tile.
    const WHOLE: bool = ALIGNMENT == alignment::BLOCK_ROW || ALIGNMENT == alignment::WARP_ROW;
    /// Whether lanes of a warp hold a row, which are a row group.
    const OF_LANES: bool = ALIGNMENT == alignment::SAME || ALIGNMENT == alignment::WARP_ROW;

    #[inline(always)]
    pub(crate) fn new<const MODE: u32>(pass: &Pass<'_, E, MODE>, row: u64) -> Self {
        let args = pass.args;
        let start = Row::<E>::address(args.input, row);
        let probabilities = if MODE == mode::PROBABILITIES { args.target } else { 0 };
        let probabilities = Matrix { start: probabilities, row_stride: args.target_stride };
        Lanes {
            cut: match ALIGNMENT {
                alignment::LINE => Cut::at_lines(start, args.cols),
                alignment::BLOCK_ROW | alignment::WARP_ROW => Cut::whole(args.cols),
                _ => Cut::new(start, args.cols),
            },
            input: Row::at_cut(start),
            target: Self::other(probabilities, row, start),
            staged: StagedLogits::NONE,
        }
    }

    /// Where the row begins.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.input.start()
    }

    /// The same row, of which where it begins is computed here.
    #[inline(always)]
    pub(crate) fn rematerialize(self) -> Self {
        Lanes { input: Row::at_cut(opaque(self.start())), ..self }
    }

    /// The same row, of which the vectors from `first` on that find room are staged from
    /// [`stage`](Self::stage) to [`gradients_behind`](Self::gradients_behind).
    #[inline(always)]
    pub(crate) fn staging(self, args: &CrossEntropyArgs, first: u32) -> Self {
        Lanes { staged: StagedLogits::new(args, first), ..self }
    }

    /// The first vector behind those of the row that are staged.
    #[inline(always)]
    fn staged_end(&self) -> u32 {
        self.staged.end().min(self.cut.end)
    }

    /// Has the thread's logits that are staged on their way to where they are: in as many batches as
    /// it returns, one for each tile behind vector `from`.
    ///
    /// # Safety
    /// The kernels' conditions; what was staged before is done with.
    #[inline(always)]
    pub(crate) unsafe fn stage(&self, from: u32, group: RowGroup) -> u32 {
        let end = self.staged_end();
        let mut batches = 0;
        let mut first = from + group.warp() * WIDTH;
        while first < end {
            let vector = first + lane_id();
            let at = self.input.vector(self.cut.vector(vector));
            let whole = first + WIDTH <= end;
            unrolled!(for k in 0..FLIGHT; {
                let ahead = k as u32 * WARP_SIZE;
                if whole || vector + ahead < end {
                    // SAFETY: the caller's conditions; each vector is one thread's.
                    unsafe { self.staged.stage(vector, at, ahead) };
                }
            });
            end_copies();
            batches += 1;
            first += group.warps() * WIDTH;
        }
        batches
    }

    /// Has the vector of `class` on its way to where it is staged: in no register, and though the row
    /// be overwritten.
    ///
    /// # Safety
    /// The kernels' conditions; the class is one, and the row begins with a vector. One thread of
    /// the block stages one.
    #[inline(always)]
    pub(crate) unsafe fn stage_class(&self, class: u32) {
        let vector = class / E::LANES;
        // SAFETY: the caller's conditions.
        unsafe {
            StagedLogits::only(vector).stage(vector, self.input.vector(self.cut.vector(vector)), 0)
        };
        end_copies();
    }

    /// The logit of the class of which the vector is staged.
    ///
    /// # Safety
    /// This thread has staged it, and waited for it.
    #[inline(always)]
    pub(crate) unsafe fn staged_class(class: u32) -> E::Real {
        let vector = class / E::LANES;
        // SAFETY: the caller's conditions.
        let x: E = unsafe { StagedLogits::only(vector).element(vector, class % E::LANES) };
        x.widen()
    }

    /// Waits for what this thread stages, but for the last `batches`, or fewer.
    #[inline(always)]
    fn wait_for_all_but(batches: u32) {
        match batches {
            0 => wait_for_copies::<0>(),
            1 => wait_for_copies::<1>(),
            2 => wait_for_copies::<2>(),
            3 => wait_for_copies::<3>(),
            4 => wait_for_copies::<4>(),
            5 => wait_for_copies::<5>(),
            6 => wait_for_copies::<6>(),
            _ => wait_for_copies::<7>(),
        }
    }

    /// The row of another tensor.
    #[inline(always)]
    fn other(tensor: Matrix, row: u64, start: u64) -> Row<E> {
        match ALIGNMENT {
            alignment::ELEMENT | alignment::LINE => Row::new(tensor, row, start),
            _ => Row::alike(tensor, row),
        }
    }

    /// Where the gradients of a row go: the input's, the target's.
    #[inline(always)]
    pub(crate) fn to<const MODE: u32>(&self, pass: &Pass<'_, E, MODE>, row: u64) -> [Row<E>; 2] {
        let to = |tensor| Self::other(tensor, row, self.input.start());
        [to(pass.args.grad_input), to(pass.args.grad_target)]
    }

    /// The span of vector `k` of a tile, empty beyond the row.
    #[inline(always)]
    fn span<const N: usize>(&self, tile: &Tile<N>, k: usize) -> Span {
        let Span { first, count } = self.cut.vector(tile.vector(k));
        let within = Self::WHOLE && k < vectors_within(N) || self.cut.has(tile.vector(k));
        Span { first, count: if within { count } else { 0 } }
    }

    /// The tile from vector `first` whose vectors are the row group's threads apart; unless it is to be
    /// `read`, of −∞ alone.
    ///
    /// # Safety
    /// The kernels' condition 1, if it is read.
    #[inline(always)]
    pub(crate) unsafe fn tile<const N: usize>(
        &self,
        first: u32,
        read: bool,
        group: RowGroup,
    ) -> Tile<N> {
        let mut tile = Tile::unread(first, group.threads);
        if !Self::WHOLE || !read {
            // SAFETY: the caller's condition.
            return unsafe { self.checked_tile(tile, StagedLogits::NONE, read) };
        }
        let from = self.cut.vector(first);
        unrolled!(for k in 0..N; {
            (tile.x[k], tile.t[k]) = (nothing::<E>(), nothing::<E>());
            if self.span(&tile, k).count > 0 {
                let ahead = k as u32 * tile.stride;
                // SAFETY: the caller's condition.
                unsafe {
                    tile.x[k] = self.input.load_vector_of(from, ahead);
                    if !self.target.is_null() {
                        tile.t[k] = self.target.load_vector_of(from, ahead);
                    }
                }
            }
        });
        tile
    }

    /// The tile from vector `first` whose vectors are `lanes` apart, of a warp or of as many lanes of
    /// it; what is [staged](Self::stage) comes from there. Of those within the row no vector is asked
    /// whether it is.
    ///
    /// # Safety
    /// As [`tile`](Self::tile); this thread has staged it, if it is read.
    #[inline(always)]
    unsafe fn tile_of_lanes<const N: usize>(
        &self,
        first: u32,
        lanes: u32,
        read: bool,
        group: RowGroup,
    ) -> Tile<N> {
        let mut tile = Tile::unread(first + (group.lane & (lanes - 1)), lanes);
        let (end, from) = (first + N as u32 * lanes, self.cut.vector(tile.first));
        // SAFETY: the caller's conditions.
        unsafe {
            if read && self.staged.are_some() && end <= self.staged_end() {
                unrolled!(for k in 0..N; {
                    tile.x[k] = self.staged.get(tile.first, k as u32 * lanes);
                });
            } else if read && self.cut.has_all(first, end) && first >= self.staged.end() {
                unrolled!(for k in 0..N; {
                    tile.x[k] = self.input.load_vector_of(from, k as u32 * lanes);
                });
            } else {
                return self.checked_tile(tile, self.staged, read);
            }
            if !self.target.is_null() {
                unrolled!(for k in 0..N; {
                    tile.t[k] = self.target.load_vector_of(from, k as u32 * lanes);
                });
            }
            tile
        }
    }

    /// The tile, read vector by vector; what is `staged` comes from there.
    ///
    /// # Safety
    /// As [`tile_of_lanes`](Self::tile_of_lanes).
    #[inline(always)]
    unsafe fn checked_tile<const N: usize>(
        &self,
        mut tile: Tile<N>,
        staged: StagedLogits,
        read: bool,
    ) -> Tile<N> {
        unrolled!(for k in 0..N; {
            let (vector, span) = (tile.vector(k), self.span(&tile, k));
            let read = read && span.count > 0;
            (tile.x[k], tile.t[k]) = (nothing::<E>(), nothing::<E>());
            // SAFETY: the caller's condition.
            unsafe {
                if read {
                    tile.x[k] = if staged.has(vector) {
                        staged.get(vector, 0)
                    } else {
                        self.input.load_vector_of(span, 0)
                    };
                    if !self.target.is_null() {
                        tile.t[k] = self.target.load_vector_of(span, 0);
                    }
                }
            }
        });
        tile
    }

    /// Number `index` of the row's peeled elements, if there is one: where it is, its logit and what the
    /// target says.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn peeled(&self, index: u32) -> Option<Peeled<E>> {
        if index >= self.cut.peeled_count() {
            return None;
        }
        let at = self.cut.peeled(index);
        // SAFETY: the caller's condition.
        unsafe {
            let x = self.input.load(at);
            Some(Peeled { at, x, t: if self.target.is_null() { x } else { self.target.load(at) } })
        }
    }

    /// The thread's peeled element, if it has one: of a row group of a warp or more it has no other.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    pub(crate) unsafe fn peeled_of_thread(&self, group: RowGroup) -> Option<Peeled<E>> {
        // SAFETY: the caller's condition.
        unsafe { self.peeled(group.lane) }
    }

    /// Keeps the thread's peeled element from the sums to the gradients.
    #[inline(always)]
    pub(crate) fn stage_peeled(peeled: Option<Peeled<E>>, group: RowGroup) {
        if let Some(Peeled { x, t, .. }) = peeled {
            // SAFETY: the row has no more peeled elements than there is room for.
            unsafe { StagedPeeled::stage(group.lane, [x, t].map(|x| x.widen().to_bits64())) };
        }
    }

    /// Whether the thread has an peeled element.
    #[inline(always)]
    fn has_peeled(&self, group: RowGroup) -> bool {
        group.lane < self.cut.peeled_count()
    }

    /// The thread's peeled element, which it has [staged](Self::stage_peeled).
    ///
    /// # Safety
    /// It has one, and has staged that of this row.
    #[inline(always)]
    unsafe fn staged_peeled_logit(&self, group: RowGroup) -> Peeled<E> {
        // SAFETY: the caller's condition.
        let [x, t] = unsafe { StagedPeeled::get(group.lane) };
        let of = |bits| E::narrow(E::Real::from_bits64(bits));
        Peeled { at: self.cut.peeled(group.lane), x: of(x), t: of(t) }
    }

    /// Does something `with` each of the thread's peeled elements, if they are to be `read`. Most rows have
    /// none.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn each_peeled(&self, read: bool, group: RowGroup, mut with: impl FnMut(Peeled<E>)) {
        let mut index = group.lane;
        // SAFETY: the caller's condition.
        while read && let Some(peeled) = unsafe { self.peeled(index) } {
            with(peeled);
            index += group.threads;
        }
    }

    /// The stats of a row that is a tile and peeled elements, and the tile's exponentials,
    /// [relative](Relative) to the largest logit that they tell: of the row group, where it is a part of
    /// a warp, or of the warp. `STAGES_ROW` says that exponentials are staged, and otherwise the tile is.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_tile<const MODE: u32, const N: usize, const STAGES_ROW: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        tile: &Tile<N>,
        read: bool,
        group: RowGroup,
    ) -> (Stats<E::Real>, Exps<E::Real, N>) {
        let (zero, one) = (E::Real::ZERO, E::Real::ONE);
        let mut stats = Stats::<E::Real>::NONE;
        let mut exps = [[zero; MAX_LANES]; N];
        // SAFETY: the caller's conditions.
        unsafe {
            self.each_peeled(read, group, |peeled| stats.max = stats.max.max(peeled.x.widen()));
        }
        stats.max = stats.max.max(E::greatest(tile.x));
        let lanes = if Self::OF_LANES { group.threads } else { WARP_SIZE };
        stats.max = if Self::OF_LANES { group_max(stats.max, lanes) } else { warp_max(stats.max) };
        // SAFETY: the caller's conditions.
        unsafe { self.absorb_target(pass, &mut stats, tile) };
        let mut relative_tile = *tile;
        let relative = relative_tile.relative_to::<E, MODE>(stats.center());
        let mut sum = zero;
        E::exps(relative_tile.x, relative.base(), |k, of_vector| {
            exps[k] = of_vector;
            sum = sum + sum_of::<E>(of_vector);
        });
        stats.rest = sum * relative.unit();
        // SAFETY: the caller's conditions.
        unsafe { self.each_peeled(read, group, |peeled| pass.absorb_peeled(&mut stats, peeled)) };
        // There are no ties yet, but for those of peeled elements.
        let [rest] = warp_sums([stats.rest + stats.ties], lanes);
        if Pass::<E, MODE>::DENSE {
            [stats.dot, stats.weight] = warp_sums([stats.dot, stats.weight], lanes);
        }
        if any(rest < one + one) {
            // Of one logit that outdoes all others, the others would be lost beside it.
            if STAGES_ROW {
                let tie = relative.tie();
                (stats.ties, sum) = (zero, zero);
                unrolled!(for k in 0..N; {
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let ties = exps[k][lane] == tie;
                        stats.ties = stats.ties + if ties { one } else { zero };
                        sum = sum + if ties { zero } else { exps[k][lane] };
                    });
                });
                stats.rest = sum * relative.unit();
            } else {
                [stats.ties, stats.rest] =
                    ties_and_rest::<E, N>(&relative_tile.rematerialize(), relative.center());
            }
            // SAFETY: the caller's conditions.
            unsafe { self.each_peeled(read, group, |peeled| stats.absorb(peeled.x.widen())) };
            (stats.exps_of_group(lanes), exps)
        } else {
            (Stats { ties: one, rest: rest - one, ..stats }, exps)
        }
    }

    /// The warp's first tile of the row, or of part `split` of `splits`.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    pub(crate) unsafe fn tile_of_warp(
        &self,
        split: u32,
        read: bool,
        group: RowGroup,
    ) -> Tile<FLIGHT> {
        let first = (split * group.warps() + group.warp()) * WIDTH;
        // SAFETY: the caller's condition.
        unsafe { self.tile_of_lanes(first, WARP_SIZE, read, group) }
    }

    /// What the warp has of the row, of which it has the [first tile](Self::tile_of_warp): of all
    /// tiles of its row group or, with `SPLIT`, of tiles `split`, `split + splits`, ..., and with the
    /// first of its peeled elements.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_warp<const MODE: u32, const SPLIT: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        mut tile: Tile<FLIGHT>,
        split: u32,
        read: bool,
        group: RowGroup,
    ) -> Stats<E::Real> {
        let step = group.warps() * WIDTH * if SPLIT { pass.args.splits.get() } else { 1 };
        // SAFETY: the caller's conditions.
        let peeled =
            if read && split == 0 { unsafe { self.peeled_of_thread(group) } } else { None };
        // SAFETY: as above.
        let mut stats = unsafe { Self::stats_of_peeled(pass, peeled) };
        let mut first = (split * group.warps() + group.warp()) * WIDTH;
        loop {
            // SAFETY: the caller's conditions.
            unsafe { self.absorb_tile(pass, &mut stats, &tile) };
            first += step;
            if !read || first >= self.cut.end {
                break;
            }
            // SAFETY: as above.
            tile = unsafe { self.tile_of_lanes(first, WARP_SIZE, true, group) };
        }
        if Pass::<E, MODE>::DENSE {
            stats.of_group::<true>(WARP_SIZE)
        } else {
            stats.of_group::<false>(WARP_SIZE)
        }
    }

    /// What the thread has of a row of which it holds a tile, and of its peeled element, which it has staged,
    /// if the row `counts`.
    ///
    /// # Safety
    /// The kernels' condition 1; this thread has [staged](Self::stage_peeled) its peeled element.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_registers<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        held: &Tile<N>,
        counts: bool,
        group: RowGroup,
    ) -> Stats<E::Real> {
        // SAFETY: the caller's condition.
        unsafe {
            let peeled =
                (counts && self.has_peeled(group)).then(|| self.staged_peeled_logit(group));
            let mut stats = Self::stats_of_peeled(pass, peeled);
            self.absorb_tile(pass, &mut stats, held);
            stats
        }
    }

    /// What the warp has of the row, from what the thread has of it before vector `from`: what is
    /// staged of the others, in so many `batches`, and what is not.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_behind<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        mut stats: Stats<E::Real>,
        from: u32,
        mut batches: u32,
        read: bool,
        group: RowGroup,
    ) -> Stats<E::Real> {
        let mut first = from + group.warp() * WIDTH;
        while read && first < self.cut.end {
            batches = batches.saturating_sub(1);
            Self::wait_for_all_but(batches);
            // SAFETY: the caller's conditions; what is staged of the tile has been waited for.
            unsafe {
                let tile = self.tile_of_lanes::<FLIGHT>(first, WARP_SIZE, true, group);
                self.absorb_tile(pass, &mut stats, &tile);
            }
            first += group.warps() * WIDTH;
        }
        if Pass::<E, MODE>::DENSE {
            stats.of_group::<true>(WARP_SIZE)
        } else {
            stats.of_group::<false>(WARP_SIZE)
        }
    }

    /// Adds a tile to what the thread has of a row. The warp stays together: it looks for larger
    /// logits as one, and most tiles have none.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    unsafe fn absorb_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        stats: &mut Stats<E::Real>,
        tile: &Tile<N>,
    ) {
        let greatest = E::greatest(tile.x);
        let most = any(greatest >= stats.max);
        if most {
            *stats = stats.relative_to(warp_max(stats.max.max(greatest)));
        }
        // SAFETY: the caller's condition.
        unsafe { self.absorb_target(pass, stats, tile) };
        let center = stats.center();
        let (mut sum, mut exact) = (E::Real::ZERO, Relative::<_, MODE>::is_far(center));
        if !exact {
            let relative = Relative::<_, MODE>::to(center);
            E::exps(tile.x, relative.base(), |_, exps| sum = sum + sum_of::<E>(exps));
            sum = sum * relative.unit();
            // Where each lane has a part of it, the largest is no more than a half of the sum.
            exact = most && any(sum < E::Real::from_f64(2.0 / WARP_SIZE as f64));
        }
        if exact {
            // Of one logit that outdoes all others, the others would be lost beside it.
            let [ties, rest] = ties_and_rest::<E, N>(&tile.rematerialize(), center);
            (stats.ties, sum) = (stats.ties + ties, rest);
        }
        stats.rest = stats.rest + sum;
    }

    /// Adds a tile's part of the target to what the thread has of a row.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    unsafe fn absorb_target<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        stats: &mut Stats<E::Real>,
        tile: &Tile<N>,
    ) {
        if !Pass::<E, MODE>::DENSE {
            return;
        }
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k);
            unrolled!(for lane in 0..E::LANES as usize; {
                if span.has(lane) {
                    let of = |vector| E::extract(vector, lane as u32).widen();
                    // SAFETY: the caller's condition.
                    unsafe {
                        pass.absorb_share(stats, span.first + lane as u32, of(tile.x[k]), of(tile.t[k]));
                    }
                }
            });
        });
    }

    /// What the thread has of a row of which it has its `peeled element`, if there is one.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    unsafe fn stats_of_peeled<const MODE: u32>(
        pass: &Pass<'_, E, MODE>,
        peeled: Option<Peeled<E>>,
    ) -> Stats<E::Real> {
        let mut stats = Stats::<E::Real>::NONE;
        if any(peeled.is_some()) {
            let x = peeled.map_or(E::Real::NEG_INFINITY, |peeled| peeled.x.widen());
            stats = stats.relative_to(warp_max(stats.max.max(x)));
            if let Some(peeled) = peeled {
                // SAFETY: the caller's condition.
                unsafe { pass.absorb_peeled(&mut stats, peeled) };
            }
        }
        stats
    }

    /// The tile that is part `part` of the row, of which the row group, a block, has one.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    pub(crate) unsafe fn tile_of_part<const N: usize>(
        &self,
        part: u32,
        group: RowGroup,
    ) -> Tile<N> {
        if Self::WHOLE {
            // SAFETY: the caller's condition.
            return unsafe { self.tile(group.lane, true, group) };
        }
        let first = (part * group.warps() + group.warp()) * N as u32 * WARP_SIZE;
        // SAFETY: as above.
        unsafe { self.tile_of_lanes(first, WARP_SIZE, true, group) }
    }

    /// Writes the gradients of what is behind vector `from`, and of peeled elements, all as of logits that are
    /// not the class's; `to` is where they go.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3. This thread has staged its peeled element and, if the row counts, has
    /// waited for what it stages of it.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn gradients_behind<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        from: u32,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        group: RowGroup,
    ) {
        let mut first = from + group.warp() * WIDTH;
        // SAFETY: the caller's conditions. A row that does not count is not read.
        unsafe {
            while first < self.cut.end {
                let tile = self.tile_of_lanes::<FLIGHT>(first, WARP_SIZE, label.counts, group);
                self.gradients_of_tile(pass, None, factors, to, &tile);
                first += group.warps() * WIDTH;
            }
            // Asked rematerialize where it is: from the sums on, that would take a register.
            let group = group.rematerialize();
            if self.has_peeled(group) {
                Self::gradient_of_peeled(
                    pass,
                    label,
                    factors,
                    to,
                    self.staged_peeled_logit(group),
                    |_| (),
                );
            }
        }
    }

    /// Writes the gradients of a tile: of the row's `class` what is given, if it is, otherwise as
    /// of any other.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[inline(always)]
    pub(crate) unsafe fn gradients_of_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        class: Option<(u32, E::Real)>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        tile: &Tile<N>,
    ) {
        let mut relative_tile = *tile;
        let relative = relative_tile.relative_to::<E, MODE>(factors.center);
        let factor = factors.factor * relative.unit();
        let first = self.cut.vector(tile.first);
        let mut gradients = [Vec16::default(); N];
        E::exps(relative_tile.x, relative.base(), |k, mut values| {
            let span = self.span(tile, k);
            unrolled!(for lane in 0..E::LANES as usize; { values[lane] = values[lane] * factor; });
            if let Some((class, value)) = class {
                set::<E>(&mut values, span.lane_of(class), value);
            }
            // SAFETY: the caller's conditions.
            unsafe {
                if Pass::<E, MODE>::DENSE && span.count > 0 {
                    let mut by_target = [E::Real::ZERO; MAX_LANES];
                    unrolled!(for lane in 0..E::LANES as usize; {
                        let of = |vector| E::extract(vector, lane as u32).widen();
                        let element = span.first + lane as u32;
                        if class.is_none_or(|(class, _)| class != element) {
                            values[lane] =
                                values[lane] - pass.gradient_of_share(factors, element, of(tile.t[k]));
                        }
                        if MODE == mode::PROBABILITIES {
                            by_target[lane] =
                                pass.gradient_of_target(factors, element, of(tile.x[k]));
                        }
                    });
                    if MODE == mode::PROBABILITIES && !to[1].is_null() {
                        to[1].store_vectors(span, [E::narrow_all(by_target)], |_| 0, |_| true);
                    }
                }
            }
            gradients[k] = E::narrow_all(values);
        });
        if MODE != mode::PROBABILITIES || !to[0].is_null() {
            let ahead = |k| k as u32 * tile.stride;
            let has = |k| self.span(tile, k).count > 0;
            // SAFETY: the caller's conditions.
            unsafe { to[0].store_vectors(first, gradients, ahead, has) };
        }
    }

    /// Writes the gradients of a tile whose exponentials are staged: each by `factor`, but of the
    /// row's `class` what becomes of its exponential.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[inline(always)]
    pub(crate) unsafe fn gradients_of_exps<const N: usize>(
        &self,
        exps: &Exps<E::Real, N>,
        factor: E::Real,
        (class, at_class): (u32, impl Fn(E::Real) -> E::Real),
        to: Row<E>,
        tile: &Tile<N>,
    ) {
        let first = self.cut.vector(tile.first);
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k);
            let mut values = [E::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; { values[lane] = exps[k][lane] * factor; });
            if let Some(at) = span.lane_of(class) {
                let value = at_class(get::<E>(&exps[k], at));
                set::<E>(&mut values, Some(at), value);
            }
            let (vector, has) = ([E::narrow_all(values)], span.count > 0);
            // SAFETY: the caller's conditions.
            unsafe { to.store_vectors(first, vector, |_| k as u32 * tile.stride, |_| has) };
            if ALIGNMENT == alignment::BLOCK_ROW {
                // Unless the warp meets, the compiler moves all stores to the end, to where their
                // values take registers.
                sync_warp();
            }
        });
    }

    /// The logit of the row's class, if it is one of the tile's. Not looked for in the row: in
    /// place, it is overwritten, and it would take as long to arrive as the row has.
    #[inline(always)]
    pub(crate) fn class_in_tile<const MODE: u32, const N: usize>(
        &self,
        label: &Label<E::Real>,
        tile: &Tile<N>,
    ) -> Option<E::Real> {
        let (mut owns, mut owned) = (false, None);
        if MODE != mode::PROBABILITIES {
            let vector = self.cut.vector_of(label.class);
            unrolled!(for k in 0..N; { owns = owns || tile.vector(k) == vector; });
        }
        if owns {
            unrolled!(for k in 0..N; {
                if let Some(at) = self.span(tile, k).lane_of(label.class) {
                    // Widened rematerialize, where all that are would be staged for it.
                    owned = Some(get::<E>(&widened::<E>(opaque_vec16(tile.x[k])), at));
                }
            });
        }
        owned
    }

    /// The logit of the class of a row that a row group of a warp holds, in the lane that has it: of one
    /// that is an peeled element in the first. From memory it would arrive later than the row.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    pub(crate) unsafe fn logit_of_class<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        class: i64,
        tile: &Tile<N>,
        group: RowGroup,
    ) -> Option<E::Real> {
        const { assert!(Self::OF_LANES) };
        if MODE == mode::PROBABILITIES {
            return None;
        }
        // Of what is no class, any: nobody asks for its logit.
        let vector = self.cut.vector_of(class as u32);
        if !Self::WHOLE && !self.cut.has(vector) {
            let is_edge = class.cast_unsigned() < u64::from(pass.args.cols);
            // SAFETY: the caller's condition.
            return (group.lane == 0 && is_edge)
                .then(|| unsafe { self.input.load(class as u32).widen() });
        }
        let ahead = vector.wrapping_sub(tile.first);
        let k = ahead >> group.threads.trailing_zeros();
        if ahead & (group.threads - 1) != 0 || k >= N as u32 {
            return None;
        }
        let x = choose(tile.x, k);
        Some(get::<E>(&widened::<E>(x), self.cut.place_of(class as u32)))
    }

    /// The logit of a class that is one of the row's peeled elements.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    pub(crate) unsafe fn logit_of_peeled(&self, class: i64, cols: u32) -> Option<E::Real> {
        if Self::WHOLE || class.cast_unsigned() >= u64::from(cols) {
            return None;
        }
        let is_edge = !self.cut.has(self.cut.vector_of(class as u32));
        // SAFETY: the caller's condition.
        is_edge.then(|| unsafe { self.input.load(class as u32).widen() })
    }

    /// The logit of the class of the row that row group `index` of the block has, if it is in the tile,
    /// which it has [staged](StagedTiles::stage).
    ///
    /// # Safety
    /// A barrier stands between; the class is one.
    #[inline(always)]
    pub(crate) unsafe fn staged_logit(
        &self,
        index: u32,
        class: u32,
        group: RowGroup,
    ) -> Option<E::Real> {
        let vector = self.cut.vector_of(class);
        if !Self::WHOLE && !self.cut.has(vector) {
            return None;
        }
        let thread = index * group.threads + (vector & (group.threads - 1));
        let k = vector >> group.threads.trailing_zeros();
        // SAFETY: the caller's conditions.
        let x: E = unsafe { StagedTiles::element(thread, k, self.cut.place_of(class)) };
        Some(x.widen())
    }

    /// Writes the gradients of the thread's peeled elements, and then does something with the logit
    /// `of_class`, if it is one of them.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn gradients_of_peeled<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        mut of_class: impl FnMut(E::Real),
        group: RowGroup,
    ) {
        // SAFETY: the caller's conditions.
        unsafe {
            self.each_peeled(true, group, |peeled| {
                Self::gradient_of_peeled(pass, label, factors, to, peeled, &mut of_class);
            });
        }
    }

    /// Writes the gradients of an peeled element, and then does something with the logit `of_class`, if it
    /// is.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3.
    #[inline(always)]
    pub(crate) unsafe fn gradient_of_peeled<const MODE: u32>(
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        [to_input, to_target]: [Row<E>; 2],
        Peeled { at, x, t }: Peeled<E>,
        mut of_class: impl FnMut(E::Real),
    ) {
        let (x, t) = (x.widen(), t.widen());
        let mut by_input = E::Real::ZERO;
        // Of a row that does not count, all gradients are 0.
        if label.counts {
            by_input = (x - factors.center).exp_below() * factors.factor;
        }
        // SAFETY: the caller's conditions.
        unsafe {
            if Pass::<E, MODE>::DENSE {
                by_input = by_input - pass.gradient_of_share(factors, at, t);
            }
            if MODE != mode::PROBABILITIES || !to_input.is_null() {
                to_input.store(at, E::narrow(by_input));
            }
            if MODE != mode::PROBABILITIES && at == label.class {
                of_class(x);
            }
            if MODE == mode::PROBABILITIES && !to_target.is_null() {
                to_target.store(at, E::narrow(pass.gradient_of_target(factors, at, x)));
            }
        }
    }
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Adds an peeled element to `stats`, whose largest logit is no less.
    ///
    /// # Safety
    /// The kernels' condition 1; the peeled element is the row's.
    #[inline(always)]
    unsafe fn absorb_peeled(&self, stats: &mut Stats<E::Real>, Peeled { at, x, t }: Peeled<E>) {
        let x = x.widen();
        stats.absorb(x);
        if Self::DENSE {
            // SAFETY: the caller's conditions.
            unsafe { self.absorb_share(stats, at, x, t.widen()) };
        }
    }

    /// Adds a class's share of the target to `stats`.
    ///
    /// # Safety
    /// The kernels' condition 1; the class is one.
    #[inline(always)]
    unsafe fn absorb_share(&self, stats: &mut Stats<E::Real>, class: u32, x: E::Real, t: E::Real) {
        // SAFETY: the caller's conditions.
        let share = unsafe { self.share_of(class, t) };
        stats.dot = share.fma(x - stats.center(), stats.dot);
        stats.weight = stats.weight + share;
    }

    /// What a class's share of the target takes from the gradient of its logit.
    ///
    /// # Safety
    /// As [`absorb_share`](Self::absorb_share).
    #[inline(always)]
    pub(crate) unsafe fn gradient_of_share(
        &self,
        factors: &Factors<E::Real>,
        class: u32,
        t: E::Real,
    ) -> E::Real {
        // SAFETY: the caller's conditions.
        let share = unsafe { self.share_of(class, t) };
        // A weight may be infinite or NaN, of which 0 times is NaN.
        if factors.counts { factors.by_share * share } else { E::Real::ZERO }
    }

    /// The gradient of the target's probability of a class.
    ///
    /// # Safety
    /// As [`absorb_share`](Self::absorb_share).
    #[inline(always)]
    pub(crate) unsafe fn gradient_of_target(
        &self,
        factors: &Factors<E::Real>,
        class: u32,
        x: E::Real,
    ) -> E::Real {
        // SAFETY: the caller's conditions.
        let weight = unsafe { class_weight::<E>(self.args.weight, class) };
        weight * factors.by_target * (factors.log_sum - (x - factors.center))
    }
}
