//! A row as a team of threads reads and writes it.

use super::kept::KeptLogits;
use super::label::{Label, class_weight};
use super::mode;
use super::pass::{Factors, Pass};
use super::stats::Stats;
use super::team::Team;
use crate::abi::{Matrix, Target};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::warp_max;
use crate::row::{Cut, Row, Span};
use cuda_std::hint::opaque;
use cuda_std::memory::Vec16;
use cuda_std::warp::{WARP_SIZE, any, lane_id};

/// Groups of 16 bytes in flight in a thread of a kernel that holds no row.
pub(crate) const FLIGHT: usize = 4;

/// A row, to be read by the lanes of a team: where it is, how it is cut, and what is kept of it between two passes.
pub(crate) struct Lanes<E> {
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
            (self.x[k], self.t[k]) = (Lanes::<E>::nothing(), Lanes::<E>::nothing());
        });
    }

    /// The index in the row of group `k`.
    #[inline(always)]
    fn group(&self, k: usize, team: Team) -> u32 {
        self.first + k as u32 * team.threads
    }

    /// The span of group `k`, empty beyond the row.
    #[inline(always)]
    fn span<E: Element>(&self, cut: Cut<E>, k: usize, team: Team) -> Span {
        let group = self.group(k, team);
        let Span { first, count } = cut.group(group);
        Span { first, count: if group < cut.groups { count } else { 0 } }
    }
}

impl<E: Element> Lanes<E> {
    /// With `HELD` all tensors lie alike.
    #[inline(always)]
    pub(crate) fn new<const MODE: u32, const HELD: usize>(
        pass: &Pass<'_, E, MODE>,
        row: u64,
    ) -> Self {
        let args = pass.args;
        let start = Row::<E>::address(args.input, row);
        let Target { start: probabilities, row_stride, .. } = args.target;
        let probabilities = if MODE == mode::PROBABILITIES { probabilities } else { 0 };
        Lanes {
            cut: Cut::new(start, args.cols),
            input: Row::at_cut(start),
            target: Self::other::<HELD>(Matrix { start: probabilities, row_stride }, row, start),
            kept: KeptLogits::NONE,
        }
    }

    /// The same row, of which [`stats_of_warp`](Self::stats_of_warp) keeps logits for
    /// [`gradients`](Self::gradients).
    #[inline(always)]
    pub(crate) fn keeping(self, kept: KeptLogits) -> Self {
        Lanes { kept, ..self }
    }

    /// The row of another tensor.
    #[inline(always)]
    fn other<const HELD: usize>(tensor: Matrix, row: u64, start: u64) -> Row<E> {
        if HELD > 0 { Row::alike(tensor, row) } else { Row::new(tensor, row, start) }
    }

    /// Where the gradients of a row go: the input's, the target's.
    #[inline(always)]
    pub(crate) fn to<const MODE: u32, const HELD: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u64,
    ) -> [Row<E>; 2] {
        let to = |tensor| Self::other::<HELD>(tensor, row, self.input.start());
        [to(pass.args.grad_input), to(pass.args.grad_target)]
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
            let (group, span) = (tile.group(k, team), tile.span(self.cut, k, team));
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
            return Self::nothing();
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
            return (edge, Self::nothing(), Self::nothing());
        }
        // SAFETY: the caller's condition.
        unsafe {
            let x = self.input.load_span(edge, fill);
            (edge, x, if self.target.is_null() { x } else { self.target.load_span(edge, fill) })
        }
    }

    #[inline(always)]
    fn nothing() -> Vec16 {
        E::pack([E::LOWEST; MAX_LANES])
    }

    /// The stats of a row that is a tile and an edge: with `SHORT` of the team, which is of a warp, otherwise of the warp.
    ///
    /// # Safety
    /// The kernels' conditions.
    #[inline(always)]
    pub(crate) unsafe fn stats_of_tile<const MODE: u32, const SHORT: bool, const N: usize>(
        &self,
        pass: &Pass<'_, E, MODE>,
        tile: &Tile<N>,
        read: bool,
        team: Team,
    ) -> Stats<E::Real> {
        let mut stats = Stats::<E::Real>::NONE;
        unrolled!(for k in 0..N; { stats.max = stats.max.max(E::greatest(tile.x[k])); });
        if self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            let (_, x, _) = unsafe { self.edge(read, team) };
            stats.max = stats.max.max(E::greatest(x));
        }
        let lanes = if SHORT { team.threads } else { WARP_SIZE };
        stats.max = warp_max(stats.max, lanes);
        unrolled!(for k in 0..N; {
            let span = tile.span(self.cut, k, team);
            // SAFETY: the caller's conditions.
            unsafe {
                pass.absorb_all(&mut stats, tile.x[k]);
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
        stats = if Pass::<E, MODE>::DENSE {
            stats.of_team::<true>(lanes)
        } else {
            stats.of_team::<false>(lanes)
        };
        let two = E::Real::ONE + E::Real::ONE;
        if any(stats.rest < two) {
            // Of one logit that outdoes all others, the others would be lost beside it.
            (stats.ties, stats.rest) = (E::Real::ZERO, E::Real::ZERO);
            // Not to be found out as what was computed before: it would be kept, in more registers than there are.
            stats.max = E::Real::from_bits64(opaque(stats.max.to_bits64()));
            unrolled!(for k in 0..N; { pass.absorb(&mut stats, tile.x[k], E::greatest(tile.x[k])); });
            if read && self.cut.has_edges() {
                // SAFETY: the caller's conditions.
                let (_, x, _) = unsafe { self.edge(true, team) };
                pass.absorb(&mut stats, x, E::greatest(x));
            }
            stats.exps_of_team(lanes)
        } else {
            Stats { ties: E::Real::ONE, rest: stats.rest - E::Real::ONE, ..stats }
        }
    }

    /// What the warp has of the row: of all tiles of its team or, with `SPLIT`, of tiles `split`, `split + splits`, ...,
    /// and with the first of its edges.
    ///
    /// # Safety
    /// The kernels' conditions; where logits are kept, the team is the block.
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
        // The warp stays together: it looks for larger logits as one, and most tiles have none.
        while read && first - lane_id() < self.cut.groups {
            // SAFETY: the caller's conditions.
            let tile = unsafe { self.tile::<FLIGHT>(first, true, team) };
            let mut greatest = [E::Real::ZERO; FLIGHT];
            let mut of_tile = stats.max;
            unrolled!(for k in 0..FLIGHT; {
                if tile.span(self.cut, k, team).count > 0 {
                    // SAFETY: the caller's conditions; each group is one thread's.
                    unsafe { self.kept.keep(tile.group(k, team), tile.x[k]) };
                }
                greatest[k] = E::greatest(tile.x[k]);
                of_tile = of_tile.max(greatest[k]);
            });
            if any(of_tile > stats.max) {
                stats = stats.relative_to(warp_max(of_tile, WARP_SIZE));
            }
            unrolled!(for k in 0..FLIGHT; {
                let span = tile.span(self.cut, k, team);
                pass.absorb(&mut stats, tile.x[k], greatest[k]);
                // SAFETY: as above.
                unsafe { pass.absorb_target(&mut stats, span, tile.x[k], tile.t[k]) };
            });
            first += if SPLIT { width * pass.args.splits.get() } else { width };
        }
        if split == 0 && team.lane < WARP_SIZE {
            // SAFETY: as above.
            unsafe { self.absorb_edge(pass, &mut stats, read, team) };
            stats = stats.relative_to(warp_max(stats.max, WARP_SIZE));
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

    /// Writes the gradients of the row's tiles `split`, `split + splits`, ..., and with the first of its edges.
    /// `SAVED` says that the factors have an offset.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3; `row` is one of `rows`. If it counts, this thread has had its part of
    /// [`stats_of_warp`](Self::stats_of_warp), where logits are kept.
    #[inline(always)]
    pub(crate) unsafe fn gradients<const MODE: u32, const SAVED: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        row: u64,
        split: u32,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        team: Team,
    ) {
        let to = self.to::<MODE, 0>(pass, row);
        let width = team.threads * FLIGHT as u32;
        let mut first = split * width + team.lane;
        while first < self.cut.groups {
            // SAFETY: the caller's conditions. A row that does not count is not read.
            unsafe {
                let tile = self.tile_with::<FLIGHT>(first, label.counts, self.kept, team);
                self.gradients_of_tile::<MODE, SAVED, FLIGHT>(
                    pass, label, factors, to, &tile, team,
                );
            }
            first += width * pass.args.splits.get();
        }
        if split == 0 {
            // SAFETY: as above.
            unsafe { self.gradients_of_edge::<MODE, SAVED>(pass, label, factors, to, team) };
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
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        tile: &Tile<N>,
        team: Team,
    ) {
        unrolled!(for k in 0..N; {
            let span = tile.span(self.cut, k, team);
            if span.count > 0 {
                // SAFETY: the caller's conditions.
                unsafe {
                    pass.gradient::<SAVED, true>(label, factors, to, span, tile.x[k], tile.t[k]);
                }
            }
        });
    }

    /// Writes the gradients of the thread's edge.
    ///
    /// # Safety
    /// As [`gradients`](Self::gradients).
    #[inline(always)]
    pub(crate) unsafe fn gradients_of_edge<const MODE: u32, const SAVED: bool>(
        &self,
        pass: &Pass<'_, E, MODE>,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        to: [Row<E>; 2],
        team: Team,
    ) {
        if self.cut.has_edges() {
            // SAFETY: the caller's conditions.
            unsafe {
                let (edge, x, t) = self.edge(label.counts, team);
                pass.gradient::<SAVED, false>(label, factors, to, edge, x, t);
            }
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
            unrolled!(for lane in 0..E::LANES as usize; {
                let tie = exps[lane] == E::Real::ONE;
                stats.ties = stats.ties + if tie { E::Real::ONE } else { E::Real::ZERO };
                exps[lane] = if tie { E::Real::ZERO } else { exps[lane] };
            });
        }
        unrolled!(for lane in 0..E::LANES as usize; {
            stats.rest = stats.rest + exps[lane];
        });
    }

    /// Adds 16 bytes of logits to `stats`, to the rest even those that are ties.
    #[inline(always)]
    fn absorb_all(&self, stats: &mut Stats<E::Real>, x: Vec16) {
        let exps = Self::exps(stats, x);
        unrolled!(for lane in 0..E::LANES as usize; {
            stats.rest = stats.rest + exps[lane];
        });
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

    /// The gradients of a span. `SAVED` says that the factors have an offset, `GROUP` that the span is a group.
    ///
    /// # Safety
    /// The kernels' conditions 1 and 3; the span is one of the row's.
    #[inline(always)]
    unsafe fn gradient<const SAVED: bool, const GROUP: bool>(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        [to_input, to_target]: [Row<E>; 2],
        span: Span,
        x: Vec16,
        t: Vec16,
    ) {
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
        if MODE != mode::PROBABILITIES
            && let Some(at) = span.lane_of(label.class)
        {
            unrolled!(for lane in 0..E::LANES as usize; {
                if lane as u32 == at {
                    by_input[lane] = if SAVED {
                        // Not from the row: in place, it may be overwritten.
                        self.at_class(label, factors, E::extract(x, lane as u32).widen())
                    } else {
                        factors.at_class
                    };
                }
            });
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
