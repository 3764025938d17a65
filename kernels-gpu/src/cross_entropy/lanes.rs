//! A row as a team of threads reads and writes it.

use super::kept::KeptLogits;
use super::label::{Label, class_weight};
use super::mode;
use super::pass::{Factors, Pass, TERMS, Total, Totals};
use super::stats::Stats;
use super::team::Team;
use crate::abi::{Matrix, Target};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::{Workspace, team_max, warp_max, warp_sums};
use crate::row::{Cut, Row, Span};
use core::hint::select_unpredictable;
use cuda_std::hint::opaque_vec16;
use cuda_std::memory::{Vec16, end_copies, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp};

/// Groups of 16 bytes of a tile of a kernel that holds no row, all in flight.
pub(crate) const FLIGHT: usize = 4;

/// The same, where it holds a part of the row.
pub(crate) const FLIGHT_BESIDE: usize = 2;

/// The logit of a row's class, in the thread that has come upon it among its own.
pub(crate) type Owned<R> = Option<R>;

/// How the rows of all tensors lie.
pub(crate) mod lies {
    /// Each as it may.
    pub(crate) const ANYHOW: u32 = 0;
    /// Alike to 16 bytes.
    pub(crate) const ALIKE: u32 = 1;
    /// From one boundary of 16 bytes to another, without edges, and as one tile, of which only the last of a thread's
    /// groups may be beyond the row.
    pub(crate) const HELD: u32 = 2;
}

/// A row, to be read by the lanes of a team: where it is, how it is cut, and what is kept of it between two passes.
pub(crate) struct Lanes<E, const LIES: u32> {
    cut: Cut<E>,
    input: Row<E>,
    target: Row<E>,
    kept: KeptLogits,
}

/// Groups of a row that a thread has in registers: group `first` and, from one to the next, a team's threads
/// farther. Beyond the row they are full of −∞.
pub(crate) struct Tile<const N: usize> {
    first: u32,
    x: [Vec16; N],
    t: [Vec16; N],
}

impl<const N: usize> Tile<N> {
    /// Of −∞ alone, in place of what was read.
    #[inline(always)]
    pub(crate) fn forget<E: Element>(&mut self) {
        unrolled!(for k in 0..N; {
            (self.x[k], self.t[k]) = (nothing::<E>(), nothing::<E>());
        });
    }

    /// The same, of which the compiler does not know it: elements of 16 bits are widened anew, where they would otherwise
    /// be kept as they were, in twice as many registers.
    #[inline(always)]
    pub(crate) fn anew(mut self) -> Self {
        unrolled!(for k in 0..N; {
            (self.x[k], self.t[k]) = (opaque_vec16(self.x[k]), opaque_vec16(self.t[k]));
        });
        self
    }

    /// The same, of which group `first` is the first.
    #[inline(always)]
    pub(crate) fn at(self, first: u32) -> Self {
        Tile { first, ..self }
    }

    /// The index in the row of group `k`.
    #[inline(always)]
    fn group(&self, k: usize, team: Team) -> u32 {
        self.first + k as u32 * team.threads
    }
}

/// The exponentials of the logits of a tile.
pub(crate) type Exps<R, const N: usize> = [[R; MAX_LANES]; N];

/// Value `at` of a group's.
#[inline(always)]
fn get<E: Element>(values: &[E::Real; MAX_LANES], at: u32) -> E::Real {
    let mut value = E::Real::ZERO;
    unrolled!(for lane in 0..E::LANES as usize; {
        // No jump table.
        value = select_unpredictable(lane as u32 == at, values[lane], value);
    });
    value
}

/// The logits of a group.
#[inline(always)]
fn widened<E: Element>(x: Vec16) -> [E::Real; MAX_LANES] {
    let mut logits = [E::Real::ZERO; MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        logits[lane] = E::extract(x, lane as u32).widen();
    });
    logits
}

/// Sets value `at` of a group's, if there is one.
#[inline(always)]
fn set<E: Element>(values: &mut [E::Real; MAX_LANES], at: Option<u32>, value: E::Real) {
    if let Some(at) = at {
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

impl<E: Element, const LIES: u32> Lanes<E, LIES> {
    #[inline(always)]
    pub(crate) fn new<const MODE: u32>(pass: &Pass<'_, E, MODE>, row: u64) -> Self {
        let args = pass.args;
        let start = Row::<E>::address(args.input, row);
        let Target { start: probabilities, row_stride, .. } = args.target;
        let probabilities = if MODE == mode::PROBABILITIES { probabilities } else { 0 };
        Lanes {
            cut: if LIES == lies::HELD {
                Cut::whole(args.cols)
            } else {
                Cut::new(start, args.cols)
            },
            input: Row::at_cut(start),
            target: Self::other(Matrix { start: probabilities, row_stride }, row, start),
            kept: KeptLogits::NONE,
        }
    }

    /// The same row, of which logits are kept from [`keep`](Self::keep) to [`gradients`](Self::gradients).
    #[inline(always)]
    pub(crate) fn keeping(self, kept: KeptLogits) -> Self {
        Lanes { kept, ..self }
    }

    /// Has the thread's logits that are kept on their way to where they are: in as many batches as it returns.
    ///
    /// # Safety
    /// The kernels' conditions; what was kept before is done with.
    #[inline(always)]
    unsafe fn keep(&self, team: Team) -> u32 {
        let mut batches = 0;
        let mut first = self.kept.first() + team.lane;
        while first - lane_id() < self.cut.groups {
            unrolled!(for k in 0..FLIGHT_BESIDE; {
                let group = first + k as u32 * team.threads;
                if group < self.cut.groups && self.kept.has(group) {
                    // SAFETY: the caller's conditions; each group is one thread's.
                    unsafe { self.kept.keep(group, self.input.group(self.cut.group(group))) };
                }
            });
            end_copies();
            batches += 1;
            first += team.threads * FLIGHT_BESIDE as u32;
        }
        batches
    }

    /// Has the group of `class` on its way to where it is kept: in no register, and though the row be overwritten.
    ///
    /// # Safety
    /// The kernels' conditions; the class is one, and the row begins with a group. One thread of the block keeps one.
    #[inline(always)]
    pub(crate) unsafe fn keep_class(&self, class: u32) {
        let group = class / E::LANES;
        // SAFETY: the caller's conditions.
        unsafe { KeptLogits::only(group).keep(group, self.input.group(self.cut.group(group))) };
        end_copies();
    }

    /// The logit of the class of which the group is kept.
    ///
    /// # Safety
    /// This thread has kept it, and waited for it.
    #[inline(always)]
    pub(crate) unsafe fn kept_class(class: u32) -> E::Real {
        let group = class / E::LANES;
        // SAFETY: the caller's conditions.
        let x = unsafe { KeptLogits::only(group).get(group) };
        get::<E>(&widened::<E>(x), class % E::LANES)
    }

    /// Waits for what this thread keeps, but for the last `batches`, or fewer.
    #[inline(always)]
    fn wait_for_all_but(batches: u32) {
        match batches {
            0 => wait_for_copies::<0>(),
            1 => wait_for_copies::<1>(),
            2 => wait_for_copies::<2>(),
            3 => wait_for_copies::<3>(),
            4 => wait_for_copies::<4>(),
            _ => wait_for_copies::<5>(),
        }
    }

    /// The row of another tensor.
    #[inline(always)]
    fn other(tensor: Matrix, row: u64, start: u64) -> Row<E> {
        if LIES == lies::ANYHOW { Row::new(tensor, row, start) } else { Row::alike(tensor, row) }
    }

    /// Where the gradients of a row go: the input's, the target's.
    #[inline(always)]
    pub(crate) fn to<const MODE: u32>(&self, pass: &Pass<'_, E, MODE>, row: u64) -> [Row<E>; 2] {
        let to = |tensor| Self::other(tensor, row, self.input.start());
        [to(pass.args.grad_input), to(pass.args.grad_target)]
    }

    /// The span of group `k` of a tile, empty beyond the row.
    #[inline(always)]
    fn span<const N: usize>(&self, tile: &Tile<N>, k: usize, team: Team) -> Span {
        let group = tile.group(k, team);
        let Span { first, count } = self.cut.group(group);
        let within = LIES == lies::HELD && k + 1 < N || group < self.cut.groups;
        Span { first, count: if within { count } else { 0 } }
    }

    /// The tile from group `first`; unless it is to be `read`, of −∞ alone.
    ///
    /// # Safety
    /// The kernels' condition 1, if it is read.
    #[inline(always)]
    pub(crate) unsafe fn tile<const N: usize>(
        &self,
        first: u32,
        read: bool,
        team: Team,
    ) -> Tile<N> {
        // SAFETY: the caller's condition.
        unsafe { self.tile_with(first, read, KeptLogits::NONE, team) }
    }

    /// The same, but what was `kept` comes from there.
    ///
    /// # Safety
    /// As [`tile`](Self::tile); this thread has kept it, if it is read.
    #[inline(always)]
    unsafe fn tile_with<const N: usize>(
        &self,
        first: u32,
        read: bool,
        kept: KeptLogits,
        team: Team,
    ) -> Tile<N> {
        let mut tile = Tile { first, x: [Vec16::default(); N], t: [Vec16::default(); N] };
        unrolled!(for k in 0..N; {
            let (group, span) = (tile.group(k, team), self.span(&tile, k, team));
            let read = read && span.count > 0;
            // SAFETY: the caller's condition.
            unsafe {
                tile.x[k] = if read && kept.has(group) {
                    kept.get(group)
                } else {
                    Self::load(self.input, span, read)
                };
                if !self.target.is_null() {
                    tile.t[k] = Self::load(self.target, span, read);
                }
            }
        });
        tile
    }

    /// The span, a group, if it is to be `read`.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn load(row: Row<E>, span: Span, read: bool) -> Vec16 {
        if !read {
            return nothing::<E>();
        }
        // SAFETY: the caller's condition.
        unsafe { row.load_group(span) }
    }

    /// The thread's edge, if it is to be `read`. It is loaded whenever it is needed: most threads, and most rows,
    /// have none.
    ///
    /// # Safety
    /// As [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn edge(&self, read: bool, team: Team) -> (Span, Vec16, Vec16) {
        let edge = self.cut.edge(team.lane);
        let fill = E::LOWEST;
        if !read {
            return (edge, nothing::<E>(), nothing::<E>());
        }
        // SAFETY: the caller's condition.
        unsafe {
            let x = self.input.load_span(edge, fill);
            (edge, x, if self.target.is_null() { x } else { self.target.load_span(edge, fill) })
        }
    }

    /// The stats of a row that is a tile and an edge, and the tile's exponentials relative to the largest logit that they
    /// tell: of the warp, where a block holds the row, otherwise of the team, which is of a warp.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        tile: &Tile<N>,
        read: bool,
        team: Team,
    ) -> (Stats<E::Real>, Exps<E::Real, N>) {
        let mut stats = Stats::<E::Real>::NONE;
        let mut exps = [[E::Real::ZERO; MAX_LANES]; N];
        unrolled!(for k in 0..N; { stats.max = stats.max.max(E::greatest(tile.x[k])); });
        if self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            let (_, x, _) = unsafe { self.edge(read, team) };
            stats.max = stats.max.max(E::greatest(x));
        }
        let of_warp = LIES == lies::HELD;
        let lanes = if of_warp { WARP_SIZE } else { team.threads };
        stats.max = if of_warp { warp_max(stats.max) } else { team_max(stats.max, lanes) };
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k, team);
            // SAFETY: the caller's conditions.
            unsafe {
                exps[k] = pass.absorb_all(&mut stats, tile.x[k]);
                pass.absorb_target(&mut stats, span, tile.x[k], tile.t[k]);
            }
        });
        if read && self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            unsafe {
                let (edge, x, t) = self.edge(true, team);
                pass.absorb_all(&mut stats, x);
                pass.absorb_target(&mut stats, edge, x, t);
            }
        }
        // There are no ties yet.
        [stats.rest] = warp_sums([stats.rest], lanes);
        if Pass::<E, MODE>::DENSE {
            [stats.dot, stats.weight] = warp_sums([stats.dot, stats.weight], lanes);
        }
        let two = E::Real::ONE + E::Real::ONE;
        if any(stats.rest < two) {
            // Of one logit that outdoes all others, the others would be lost beside it.
            (stats.ties, stats.rest) = (E::Real::ZERO, E::Real::ZERO);
            if of_warp {
                unrolled!(for k in 0..N; {
                    let mut others = exps[k];
                    Pass::<E, MODE>::take_ties(&mut stats, &mut others);
                    unrolled!(for lane in 0..E::LANES as usize; {
                        stats.rest = stats.rest + others[lane];
                    });
                });
                return (stats.exps_of_team(lanes), exps);
            }
            stats = stats.anew();
            // Seldom, and so from memory: to keep the exponentials for it takes registers.
            let mut group = tile.first;
            while read && group < self.cut.groups {
                // SAFETY: the caller's conditions.
                let x = unsafe { self.input.load_group(self.cut.group(group)) };
                pass.absorb(&mut stats, x, E::greatest(x));
                group += team.threads;
            }
            if read && self.cut.has_edges() {
                // SAFETY: the caller's conditions.
                let (_, x, _) = unsafe { self.edge(true, team) };
                pass.absorb(&mut stats, x, E::greatest(x));
            }
            (stats.exps_of_team(lanes), exps)
        } else {
            (Stats { ties: E::Real::ONE, rest: stats.rest - E::Real::ONE, ..stats }, exps)
        }
    }

    /// What the warp has of the row: of all tiles of its team or, with `SPLIT`, of tiles `split`, `split + splits`, ...,
    /// and with the first of its edges.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_warp<const MODE: u32, const SPLIT: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        split: u32,
        read: bool,
        team: Team,
    ) -> Stats<E::Real> {
        let mut stats = Stats::<E::Real>::NONE;
        let width = team.threads * FLIGHT as u32;
        let mut first = split * width + team.lane;
        while read && first - lane_id() < self.cut.groups {
            // SAFETY: the caller's conditions.
            unsafe {
                let tile = self.tile::<FLIGHT>(first, true, team);
                self.absorb_tile(pass, &mut stats, &tile, team);
            }
            first += if SPLIT { width * pass.args.splits.get() } else { width };
        }
        // SAFETY: as above.
        unsafe { self.end_of_warp(pass, stats, split == 0, read, team) }
    }

    /// What the warp has of the row, of which the thread has `held` and keeps or reads what is behind that.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_beside<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        held: &Tile<N>,
        read: bool,
        team: Team,
    ) -> Stats<E::Real> {
        // SAFETY: the caller's conditions; what is kept of a row before is done with.
        let mut batches = if read { unsafe { self.keep(team) } } else { 0 };
        let mut stats = Stats::<E::Real>::NONE;
        // SAFETY: the caller's conditions.
        unsafe { self.absorb_tile(pass, &mut stats, held, team) };
        let mut first = N as u32 * team.threads + team.lane;
        while read && first - lane_id() < self.cut.groups {
            batches -= 1;
            Self::wait_for_all_but(batches);
            // SAFETY: the caller's conditions.
            unsafe {
                let tile = self.tile_with::<FLIGHT_BESIDE>(first, true, self.kept, team);
                self.absorb_tile(pass, &mut stats, &tile, team);
            }
            first += team.threads * FLIGHT_BESIDE as u32;
        }
        // SAFETY: as above.
        unsafe { self.end_of_warp(pass, stats, true, read, team) }
    }

    /// Adds a tile to what the thread has of a row. The warp stays together: it looks for larger logits as one, and
    /// most tiles have none.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    unsafe fn absorb_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        stats: &mut Stats<E::Real>,
        tile: &Tile<N>,
        team: Team,
    ) {
        let mut greatest = [E::Real::ZERO; N];
        let mut of_tile = stats.max;
        unrolled!(for k in 0..N; {
            greatest[k] = E::greatest(tile.x[k]);
            of_tile = of_tile.max(greatest[k]);
        });
        if any(of_tile > stats.max) {
            *stats = stats.relative_to(warp_max(of_tile));
        }
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k, team);
            pass.absorb(stats, tile.x[k], greatest[k]);
            // SAFETY: the caller's condition.
            unsafe { pass.absorb_target(stats, span, tile.x[k], tile.t[k]) };
        });
    }

    /// What the warp has, from what its threads have, and from the row's edges if it has the `first` part of the row.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    unsafe fn end_of_warp<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        mut stats: Stats<E::Real>,
        first: bool,
        read: bool,
        team: Team,
    ) -> Stats<E::Real> {
        if first && team.lane < WARP_SIZE {
            // SAFETY: the caller's condition.
            unsafe { self.absorb_edge(pass, &mut stats, read, team) };
            stats = stats.relative_to(warp_max(stats.max));
        }
        if Pass::<E, MODE>::DENSE {
            stats.of_team::<true>(WARP_SIZE)
        } else {
            stats.of_team::<false>(WARP_SIZE)
        }
    }

    /// Adds the thread's edge to `stats`.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    unsafe fn absorb_edge<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        stats: &mut Stats<E::Real>,
        read: bool,
        team: Team,
    ) {
        if !read || !self.cut.has_edges() {
            return;
        }
        // SAFETY: the caller's conditions.
        unsafe {
            let (edge, x, t) = self.edge(true, team);
            let greatest = E::greatest(x);
            *stats = stats.relative_to(stats.max.max(greatest));
            pass.absorb(stats, x, greatest);
            pass.absorb_target(stats, edge, x, t);
        }
    }

    /// Writes the gradients of the row's tiles `split`, `split + splits`, ... of those behind group `from`, and with the
    /// first of its edges; `to` is where they go. `SAVED` says that the factors have an offset, `N` how wide a tile is.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3. If the row counts, this thread has waited for what it keeps of it.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn gradients<const MODE: u32, const SAVED: bool, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        from: u32,
        split: u32,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        owned: &mut Owned<E::Real>,
        team: Team,
    ) {
        let width = team.threads * N as u32;
        let mut first = from + split * width + team.lane;
        while first < self.cut.groups {
            // SAFETY: the caller's conditions. A row that does not count is not read.
            unsafe {
                let tile = self.tile_with::<N>(first, label.counts, self.kept, team);
                self.gradients_of_tile::<MODE, SAVED, N>(pass, None, factors, to, &tile, team);
                *owned = self.class_in_tile(pass, label, &tile, team).or(*owned);
            }
            first += width * pass.args.splits.get();
        }
        if split == 0 {
            // SAFETY: as above.
            unsafe {
                self.gradients_of_edge::<MODE, SAVED>(pass, label, None, factors, to, owned, team);
            }
        }
    }

    /// Writes the gradients of a tile.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[inline(always)]
    pub(crate) unsafe fn gradients_of_tile<const MODE: u32, const SAVED: bool, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        class: Option<(u32, E::Real)>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        tile: &Tile<N>,
        team: Team,
    ) {
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k, team);
            // SAFETY: the caller's conditions.
            unsafe { pass.gradient::<SAVED, true>(class, factors, to, span, tile.x[k], tile.t[k]) };
        });
    }

    /// Writes the gradients of a tile whose exponentials are kept, `relative` times those that they should be.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn gradients_of_exps<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        relative: E::Real,
        to: Row<E>,
        tile: &Tile<N>,
        exps: &Exps<E::Real, N>,
        team: Team,
    ) {
        let factor = relative * factors.factor;
        unrolled!(for k in 0..N; {
            let span = self.span(tile, k, team);
            let mut values = [E::Real::ZERO; MAX_LANES];
            unrolled!(for lane in 0..E::LANES as usize; { values[lane] = exps[k][lane] * factor; });
            if let Some(at) = span.lane_of(label.class) {
                let exp = relative * get::<E>(&exps[k], at);
                let value = pass.at_class_of_exp(label, factors, exp);
                set::<E>(&mut values, Some(at), value);
            }
            // SAFETY: the caller's conditions.
            unsafe { to.store_group(span, values) };
            // Unless the warp meets, the compiler moves all stores to the end, to where their values take registers.
            sync_warp();
        });
    }

    /// The logit of the row's class, if it is one of the tile's in this thread.
    #[inline(always)]
    pub(crate) fn class_in_tile<const MODE: u32, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        tile: &Tile<N>,
        team: Team,
    ) -> Owned<E::Real> {
        let (mut owns, mut owned) = (false, None);
        if MODE != mode::PROBABILITIES {
            unrolled!(for k in 0..N; {
                owns = owns || self.span(tile, k, team).lane_of(label.class).is_some();
            });
        }
        if owns {
            unrolled!(for k in 0..N; {
                pass.look_for_class(label, self.span(tile, k, team), tile.x[k], &mut owned);
            });
        }
        owned
    }

    /// Writes the gradients of the thread's edge.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn gradients_of_edge<const MODE: u32, const SAVED: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        class: Option<(u32, E::Real)>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        owned: &mut Owned<E::Real>,
        team: Team,
    ) {
        if self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            unsafe {
                let (edge, x, t) = self.edge(label.counts, team);
                pass.gradient::<SAVED, false>(class, factors, to, edge, x, t);
                if MODE != mode::PROBABILITIES && class.is_none() {
                    pass.look_for_class(label, edge, x, owned);
                }
            }
        }
    }

    /// Writes the gradient of the class's logit, which is this thread's, over what was written of it as of any other.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients); this thread has written the gradients of the logit's group.
    #[inline(always)]
    pub(crate) unsafe fn gradient_of_class<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        [to_input, _]: [Row<E>; 2],
        logit: E::Real,
    ) {
        let value = E::narrow(pass.at_class(label, factors, logit));
        // SAFETY: the caller's conditions; the label's class is one.
        unsafe { to_input.store(label.class, value) };
    }

    /// Finishes a row of which the gradients are written: the loss, and the gradient of its class's logit if there is
    /// one. Returns what the row adds to the sums.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients); one thread calls this, who owns the class's logit if there is a class.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn finish<const MODE: u32>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        scale: E::Real,
        totals: impl Totals,
        to: [Row<E>; 2],
        owned: Owned<E::Real>,
        workspace: Workspace,
    ) -> [f64; TERMS] {
        let stats = stats.anew();
        // SAFETY: the caller's conditions.
        unsafe {
            if let Some(logit) = owned {
                let factors =
                    pass.factors(label, stats, scale, || pass.scale(row, totals, Total::Rows));
                self.gradient_of_class(pass, label, &factors, to, logit);
            }
            pass.finish_row::<false>(row, label, stats, owned.unwrap_or(E::Real::ZERO), workspace)
        }
    }
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// exp(x − m) of 16 bytes of logits.
    #[inline(always)]
    fn exps(stats: &Stats<E::Real>, x: Vec16) -> [E::Real; MAX_LANES] {
        let center = stats.center();
        let mut exps = [E::Real::ZERO; MAX_LANES];
        unrolled!(for lane in 0..E::LANES as usize; {
            exps[lane] = (E::extract(x, lane as u32).widen() - center).exp_below();
        });
        exps
    }

    /// Adds 16 bytes of logits, of which `greatest` is the largest, to `stats`, whose largest is no less.
    #[inline(always)]
    fn absorb(&self, stats: &mut Stats<E::Real>, x: Vec16, greatest: E::Real) {
        let mut exps = Self::exps(stats, x);
        if greatest == stats.max {
            // Seldom: here are some of the row's largest, or the largest so far.
            Self::take_ties(stats, &mut exps);
        }
        unrolled!(for lane in 0..E::LANES as usize; {
            stats.rest = stats.rest + exps[lane];
        });
    }

    /// Counts which exponentials are 1, and takes them away.
    #[inline(always)]
    fn take_ties(stats: &mut Stats<E::Real>, exps: &mut [E::Real; MAX_LANES]) {
        unrolled!(for lane in 0..E::LANES as usize; {
            let tie = exps[lane] == E::Real::ONE;
            stats.ties = stats.ties + if tie { E::Real::ONE } else { E::Real::ZERO };
            exps[lane] = if tie { E::Real::ZERO } else { exps[lane] };
        });
    }

    /// Adds 16 bytes of logits to `stats`, to the rest even those that are ties. Returns their exponentials.
    #[inline(always)]
    fn absorb_all(&self, stats: &mut Stats<E::Real>, x: Vec16) -> [E::Real; MAX_LANES] {
        let exps = Self::exps(stats, x);
        // Two by two: each addition waits for fewer.
        unrolled!(for pair in 0..MAX_LANES / 2; {
            if (pair as u32) < E::LANES / 2 {
                stats.rest = stats.rest + (exps[2 * pair] + exps[2 * pair + 1]);
            }
        });
        exps
    }

    /// Adds a span's part of the target to `stats`.
    ///
    /// # Safety
    /// The kernels' condition 1; the span is one of the row's.
    #[inline(always)]
    unsafe fn absorb_target(&self, stats: &mut Stats<E::Real>, span: Span, x: Vec16, t: Vec16) {
        if !Self::DENSE {
            return;
        }
        let center = stats.center();
        unrolled!(for lane in 0..E::LANES as usize; {
            if span.has(lane) {
                let t = E::extract(t, lane as u32).widen();
                // SAFETY: the caller's conditions.
                let share = unsafe { self.share_of(span.first + lane as u32, t) };
                let apart = E::extract(x, lane as u32).widen() - center;
                stats.dot = share.fma(apart, stats.dot);
                stats.weight = stats.weight + share;
            }
        });
    }

    /// Whether the row's class is one of the span: then its logit is the thread's own. Not looked for in the row: in
    /// place, it is overwritten, and it would take as long to arrive as the row has.
    #[inline(always)]
    fn look_for_class(
        &self,
        label: &Label<E::Real>,
        span: Span,
        x: Vec16,
        owned: &mut Owned<E::Real>,
    ) {
        if let Some(at) = span.lane_of(label.class) {
            // Widened anew, where all that are would be kept for it.
            *owned = Some(get::<E>(&widened::<E>(opaque_vec16(x)), at));
        }
    }

    /// The gradients of a span: of the row's `class` what is given, if it is, otherwise as of any other. `SAVED` says that
    /// the factors have an offset, `GROUP` that the span is a group or, beyond the row, empty.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3; the span is one of the row's.
    #[inline(always)]
    unsafe fn gradient<const SAVED: bool, const GROUP: bool>(
        &self,
        class: Option<(u32, E::Real)>,
        factors: &Factors<E::Real>,
        [to_input, to_target]: [Row<E>; 2],
        span: Span,
        x: Vec16,
        t: Vec16,
    ) {
        // Of a dense target, nothing beyond the row may be read.
        if GROUP && Self::DENSE && span.count == 0 {
            return;
        }
        let store = |to: Row<E>, values| {
            // SAFETY: the caller's conditions.
            unsafe {
                if GROUP { to.store_group(span, values) } else { to.store_span(span, values) }
            }
        };
        let mut by_input = [E::Real::ZERO; MAX_LANES];
        unrolled!(for lane in 0..E::LANES as usize; {
            let apart = E::extract(x, lane as u32).widen() - factors.center;
            let exp = if SAVED { (apart - factors.offset).exp_below() } else { apart.exp_below() };
            by_input[lane] = exp * factors.factor;
        });
        if Self::DENSE {
            unrolled!(for lane in 0..E::LANES as usize; {
                let mut share = E::Real::ZERO;
                if GROUP || span.has(lane) {
                    let t = E::extract(t, lane as u32).widen();
                    // SAFETY: the caller's conditions.
                    share = unsafe { self.share_of(span.first + lane as u32, t) };
                }
                by_input[lane] = by_input[lane] - factors.by_share * share;
            });
        }
        if let Some((class, value)) = class {
            set::<E>(&mut by_input, span.lane_of(class), value);
        }
        // SAFETY: the caller's conditions.
        unsafe {
            if MODE != mode::PROBABILITIES || !to_input.is_null() {
                store(to_input, by_input);
            }
            if MODE == mode::PROBABILITIES && !to_target.is_null() {
                let mut by_target = [E::Real::ZERO; MAX_LANES];
                unrolled!(for lane in 0..E::LANES as usize; {
                    if GROUP || span.has(lane) {
                        let apart = E::extract(x, lane as u32).widen() - factors.center;
                        let class = span.first + lane as u32;
                        let weight = class_weight::<E>(self.args.weight, class);
                        by_target[lane] = weight * factors.by_target * (factors.log_sum - apart);
                    }
                });
                store(to_target, by_target);
            }
        }
    }
}
