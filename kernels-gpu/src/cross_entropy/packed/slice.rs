//! One lane or several a row: a loop over what each has of the row in shared memory.

use super::stage::{Known, STAGES, Tiles};
use super::{Share, computes};
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Factors, Pass, TERMS, Total, writes};
use crate::cross_entropy::stats::{Relative, Stats};
use crate::element::{Element, MAX_LANES, Real, unrolled};
use crate::reduce::Workspace;
use crate::tile::{Shared, Tile};
use cuda_std::memory::{Vec16, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, any, lane_id, sync_warp, warp_id};

/// Computes a warp's share of the rows.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[inline(always)]
pub(super) unsafe fn rows<E: Element, const MODE: u32, const COMPUTES: u32>(
    pass: &Pass<'_, E, MODE>,
    share: Share,
    workspace: Workspace,
) -> [f64; TERMS] {
    let args = pass.args;
    let mut tiles = Tiles::<E, MODE> {
        pass,
        shared: Shared::new(),
        base: warp_id() * STAGES * args.tile.stage_bytes,
        stage: 0,
    };
    let mut terms = [0.0; TERMS];
    let mut totals = Known([0.0; 2]);
    let mut next = share.first;
    let mut has_tile = false;
    // SAFETY: the caller's conditions.
    unsafe {
        // The first turn only loads, so that the code of a load is there once.
        while next < args.rows || has_tile {
            tiles.load_async(next);
            tiles.stage ^= 1;
            if has_tile {
                // The next tile travels while this one is computed.
                wait_for_copies::<1>();
                sync_warp();
                let first = next - share.step;
                tile::<E, MODE, COMPUTES>(&tiles, first, totals, workspace, &mut terms);
                // The stage is free for the tile after the next.
                sync_warp();
            } else if COMPUTES == computes::BOTH {
                totals = Known::wait(args);
            }
            has_tile = next < args.rows;
            next += share.step;
        }
    }
    terms
}

/// What a lane has of a row: of its vectors every `parts`th, from number `part` on.
#[derive(Clone, Copy)]
struct Slice<E> {
    shared: Shared,
    /// Where the row begins in shared memory.
    row: u32,
    cols: u32,
    part: u32,
    parts: u32,
    /// Lanes from one of the row's to the next.
    apart: u32,
    /// Vector `v` is taken in place of `v ^ order`.
    order: u32,
    /// Bytes of one access.
    access: u32,
    element: core::marker::PhantomData<E>,
}

impl<E: Element> Slice<E> {
    /// Calls `chunk(first, count, vector)` for each vector: its first element's index, and its
    /// elements.
    ///
    /// # Safety
    /// The row has arrived; while a chunk is called, nobody else accesses it.
    #[inline(always)]
    unsafe fn for_each(&self, mut chunk: impl FnMut(u32, u32, Vec16)) {
        let (whole, lanes) = (self.cols / E::LANES, E::LANES);
        let first = |index: u32| (index ^ self.order) * lanes;
        let mut index = self.part;
        // SAFETY: the caller's condition.
        unsafe {
            if self.access == 16 {
                // All loads of some vectors come before the first is used.
                while index + 3 * self.parts < whole {
                    let at = |k: usize| first(index + k as u32 * self.parts);
                    let mut vectors = [Vec16::default(); 4];
                    unrolled!(for k in 0..4; { vectors[k] = self.load(at(k), lanes); });
                    unrolled!(for k in 0..4; { chunk(at(k), lanes, vectors[k]); });
                    index += 4 * self.parts;
                }
            }
            while index < whole {
                chunk(first(index), lanes, self.load(first(index), lanes));
                index += self.parts;
            }
            let rest = self.cols % lanes;
            if index == whole && rest > 0 {
                chunk(index * lanes, rest, self.load(index * lanes, rest));
            }
        }
    }

    /// # Safety
    /// As [`for_each`](Self::for_each).
    #[inline(always)]
    unsafe fn load(&self, first: u32, count: u32) -> Vec16 {
        // SAFETY: the caller's condition.
        unsafe {
            self.shared.load::<E>(self.row + first * size_of::<E>() as u32, count, self.access)
        }
    }

    /// # Safety
    /// As [`for_each`](Self::for_each).
    #[inline(always)]
    unsafe fn store(&self, first: u32, count: u32, vector: Vec16) {
        let at = self.row + first * size_of::<E>() as u32;
        // SAFETY: the caller's condition.
        unsafe { self.shared.store::<E>(at, count, self.access, vector) };
    }

    /// `value` combined over the lanes that share the row, in each of them.
    #[inline(always)]
    fn over_row<T: WarpShuffleValue>(&self, mut value: T, combine: impl Fn(T, T) -> T) -> T {
        let mut mask = self.apart;
        while mask < WARP_SIZE {
            value = combine(value, value.shuffle_xor(mask));
            mask *= 2;
        }
        value
    }

    /// Whether the lane has the vector of an element.
    #[inline(always)]
    fn has(&self, element: u32) -> bool {
        ((element / E::LANES) ^ self.order) & (self.parts - 1) == self.part
    }
}

/// Computes a tile that has arrived, of the rows from `first` on. Adds what they come to to
/// `terms`.
///
/// # Safety
/// As [`packed`]; all lanes of the warp call it, and meet between two calls.
#[inline(always)]
unsafe fn tile<E: Element, const MODE: u32, const COMPUTES: u32>(
    tiles: &Tiles<'_, E, MODE>,
    first: u64,
    totals: Known,
    workspace: Workspace,
    terms: &mut [f64; TERMS],
) {
    let (has_loss, has_gradients) = (COMPUTES != computes::GRADIENTS, COMPUTES != computes::LOSS);
    let Tiles { pass, shared, .. } = *tiles;
    let args = pass.args;
    let tile_args = &args.tile;
    let size = size_of::<E>() as u32;
    let rows = tiles.rows(first);
    let (logits, targets) =
        (tiles.tile(args.input, first, 0), tiles.tile(args.probabilities(), first, 1));
    let warp_rows = 1 << tile_args.warp_rows_shift;
    let part = lane_id() >> tile_args.warp_rows_shift;
    let slice = |tile: &Tile<E>, row| Slice::<E> {
        shared,
        row: tile.row(row),
        cols: args.cols,
        part,
        parts: WARP_SIZE >> tile_args.warp_rows_shift,
        apart: warp_rows,
        order: (row >> tile_args.order_right & tile_args.order_mask) << tile_args.order_left,
        access: tile_args.access,
        element: core::marker::PhantomData,
    };
    let mut index = lane_id() & (warp_rows - 1);
    // SAFETY: the caller's conditions, as condition 1 of the kernels has it for all that is read;
    // the lanes of a row write what they have of it, between meetings of the warp.
    unsafe {
        let mut turn = 0;
        while turn < rows {
            let has_row = index < rows;
            let of_tile = index.min(rows - 1);
            let row = first + u64::from(of_tile);
            let (x, t) = (slice(&logits, of_tile), slice(&targets, of_tile));
            let label = pass.label(tiles.class_of(index, rows));
            let mut logit = E::Real::ZERO;
            if label.has_class(args.cols) {
                logit = shared.element::<E>(x.row + label.class * size).widen();
            }
            let mut stats = Stats::NONE;
            if has_loss {
                stats = statistics::<E, MODE>(pass, &x, &t);
                if part == 0 && has_row {
                    if COMPUTES == computes::LOSS && pass.is_plain() {
                        let of_row = pass.finish_row::<{ writes::NOTHING }>(
                            row, &label, stats, logit, workspace,
                        );
                        terms[0] += of_row[0];
                        terms[1] += of_row[1];
                    } else {
                        let of_row = if COMPUTES == computes::LOSS {
                            pass.finish_row::<{ writes::ALL }>(row, &label, stats, logit, workspace)
                        } else {
                            pass.finish_row::<{ writes::LOSS }>(
                                row, &label, stats, logit, workspace,
                            )
                        };
                        unrolled!(for term in 0..TERMS; { terms[term] += of_row[term]; });
                    }
                }
            }
            if has_gradients {
                let factors = if !label.counts {
                    Factors::NONE
                } else if has_loss {
                    pass.factors(&label, stats, pass.scale(row, totals, Total::Weights), || {
                        pass.scale(row, totals, Total::Rows)
                    })
                } else {
                    pass.factors_of_saved(&label, pass.saved_of(row), |which| {
                        pass.scale_of_saved(row, which)
                    })
                };
                // All lanes have read the logit of their row's class.
                sync_warp();
                if has_row {
                    gradients::<E, MODE>(pass, &x, &t, label.counts, &factors);
                    if MODE != mode::PROBABILITIES
                        && label.has_class(args.cols)
                        && x.has(label.class)
                    {
                        let at_class = E::narrow(pass.at_class(&label, &factors, logit));
                        shared.set_element(x.row + label.class * size, at_class);
                    }
                }
            }
            turn += warp_rows;
            index += warp_rows;
        }
        if has_gradients {
            sync_warp();
            if args.grad_input.start != 0 {
                logits.store(tile_args, rows, args.grad_input, first);
            }
            if MODE == mode::PROBABILITIES && args.grad_target.start != 0 {
                targets.store(tile_args, rows, args.grad_target, first);
            }
        }
    }
}

/// Rows of at most so many columns have each exponential compared with 1; see [`statistics`]. H200,
/// 2026-11-25, with and without: 11056477×4 bf16 forward 142 and 177 µs, 9000000×13 f32 194 and
/// 176, 3000000×8 f64 97 and 139.
const fn sure_cols<R: Real>() -> u32 {
    if size_of::<R>() == 8 { 16 } else { 8 }
}

/// The row's statistics, in each lane that shares it.
///
/// Where the exponentials besides the largest, which is 1, are little beside it, they are summed by
/// themselves: added to 1, they would lose their digits. The sum of all tells whether it is so, and
/// then they are computed again; but a warp of very short rows has one of that kind nearly always.
///
/// # Safety
/// The kernels' condition 1; the row has arrived, and all lanes of the warp call it.
#[inline(always)]
unsafe fn statistics<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    x: &Slice<E>,
    t: &Slice<E>,
) -> Stats<E::Real> {
    let dense = Pass::<E, MODE>::DENSE;
    let (zero, one) = (E::Real::ZERO, E::Real::ONE);
    let add = |a: E::Real, b: E::Real| a + b;
    let mut stats = Stats::<E::Real>::NONE;
    // SAFETY: the caller's conditions.
    unsafe { x.for_each(|_, _, vector| stats.max = stats.max.max(E::greatest([vector]))) };
    stats.max = x.over_row(stats.max, E::Real::max);
    let center = stats.center();
    let is_far = Relative::<_, MODE>::is_far(center);
    let relative = Relative::<_, MODE>::to(center);
    let mut sum = zero;
    let is_sure = x.cols <= sure_cols::<E::Real>();
    if !is_sure {
        // SAFETY: as above.
        unsafe {
            x.for_each(|first, count, vector| {
                E::exps([vector], relative.base(), |_, exps| sum = sum + sum_of::<E>(exps));
                if dense {
                    add_shares::<E, MODE>(pass, t, center, (first, count, vector), &mut stats);
                }
            });
        }
        sum = x.over_row(sum, add) * relative.unit();
        (stats.ties, stats.rest) = (one, sum - one);
    }
    if is_sure || any(sum < E::Real::from_f64(1.125) || is_far) {
        let (mut ties, mut rest) = (zero, zero);
        // A shift of so large a logit would lose its digits: these rows subtract it first.
        let far_center = if is_far { center } else { zero };
        // SAFETY: as above.
        unsafe {
            x.for_each(|first, count, vector| {
                if dense && is_sure {
                    add_shares::<E, MODE>(pass, t, center, (first, count, vector), &mut stats);
                }
                unrolled!(for lane in 0..E::LANES as usize; {
                    let logit = E::extract(vector, lane as u32).widen();
                    let is_largest = logit == center;
                    let exp = relative.exp(logit - far_center);
                    ties = ties + if is_largest { one } else { zero };
                    rest = rest + if is_largest { zero } else { exp };
                });
            });
        }
        stats.ties = x.over_row(ties, add);
        stats.rest = x.over_row(rest, add) * relative.unit();
        if center == E::Real::INFINITY {
            // The loop counted +inf as a largest logit; its difference from the largest is NaN.
            stats.rest = E::Real::NAN;
        }
    }
    if dense {
        stats.dot = x.over_row(stats.dot, add);
        stats.weight = x.over_row(stats.weight, add);
    }
    stats.of_row()
}

/// Adds what the target's shares of a vector's classes come to, relative to `center`.
///
/// # Safety
/// As [`statistics`].
#[inline(always)]
unsafe fn add_shares<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    t: &Slice<E>,
    center: E::Real,
    (first, count, vector): (u32, u32, Vec16),
    stats: &mut Stats<E::Real>,
) {
    unrolled!(for lane in 0..E::LANES as usize; {
        if (lane as u32) < count {
            let index = first + lane as u32;
            // SAFETY: the caller's conditions.
            let share = unsafe {
                let mut probability = E::Real::ZERO;
                if MODE == mode::PROBABILITIES {
                    let at = t.row + index * size_of::<E>() as u32;
                    probability = t.shared.element::<E>(at).widen();
                }
                pass.share_of(index, probability)
            };
            let apart = E::extract(vector, lane as u32).widen() - center;
            stats.dot = share.fma(apart, stats.dot);
            stats.weight = stats.weight + share;
        }
    });
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

/// Writes the gradients of a lane's part of a row over its logits, and those of probabilities over
/// these.
///
/// # Safety
/// The kernels' condition 1; the lanes of the row have met since they read it.
#[inline(always)]
unsafe fn gradients<E: Element, const MODE: u32>(
    pass: &Pass<'_, E, MODE>,
    x: &Slice<E>,
    t: &Slice<E>,
    counts: bool,
    factors: &Factors<E::Real>,
) {
    let of_target = MODE == mode::PROBABILITIES && pass.args.grad_target.start != 0;
    let is_far = Relative::<_, MODE>::is_far(factors.center);
    let relative = Relative::<_, MODE>::to(factors.center);
    let factor = if is_far { factors.factor } else { factors.factor * relative.unit() };
    // SAFETY: the caller's conditions.
    unsafe {
        x.for_each(|first, count, vector| {
            let mut by_input = [E::Real::ZERO; MAX_LANES];
            let mut by_target = [E::Real::ZERO; MAX_LANES];
            // The gradient of a row that is ignored is 0, whatever its logits.
            if counts {
                unrolled!(for lane in 0..E::LANES as usize; {
                    let logit = E::extract(vector, lane as u32).widen();
                    by_input[lane] = if is_far {
                        (logit - factors.center).exp_below() * factor
                    } else {
                        relative.exp(logit) * factor
                    };
                    if Pass::<E, MODE>::DENSE && (lane as u32) < count {
                        let index = first + lane as u32;
                        let mut probability = E::Real::ZERO;
                        if MODE == mode::PROBABILITIES {
                            let at = t.row + index * size_of::<E>() as u32;
                            probability = t.shared.element::<E>(at).widen();
                        }
                        by_input[lane] =
                            by_input[lane] - pass.gradient_of_share(factors, index, probability);
                        if of_target {
                            by_target[lane] = pass.gradient_of_target(factors, index, logit);
                        }
                    }
                });
            }
            if of_target {
                t.store(first, count, E::narrow_all(by_target));
            }
            x.store(first, count, E::narrow_all(by_input));
        });
    }
}
