//! A warp's shared memory: one or two stages, each with the rows of a tile and their targets, and
//! tiles for gradients that cannot be written in place.

use super::{Share, computes};
use crate::abi::{CrossEntropyArgs, Matrix, VECTOR_BYTES, attempt, saved};
use crate::cross_entropy::label::normaliser;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Pass, Saved, TERMS, Total};
use crate::element::{Element, Real};
use crate::reduce::Workspace;
use crate::tile::{Shared, Tile};
use cuda_std::hint::opaque;
use cuda_std::memory::{end_copies, wait_for_copies};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp, warp_id};

/// Adjacent rows of logits and their targets in one stage.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a, const MODE: u32> {
    pub(super) args: &'a CrossEntropyArgs,
    pub(super) shared: Shared,
    /// The number of the tile.
    number: u32,
    /// Rows of the stage.
    pub(super) rows: u32,
    /// Its first byte in shared memory.
    base: u32,
}

/// The classes of a stage's rows in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Classes {
    shared: Shared,
    /// The first byte.
    at: u32,
    /// Bytes of a class.
    bytes: u32,
}

impl Classes {
    /// The class of row `index` of the stage.
    ///
    /// # Safety
    /// 1. The copies of the stage are complete.
    /// 2. Targets are classes.
    /// 3. `index` is below the stage's `rows`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn get(&self, index: u32) -> i64 {
        // SAFETY: the caller's conditions.
        unsafe {
            match self.bytes {
                8 => self.shared.word::<i64>(self.at, index),
                4 => i64::from(self.shared.word::<i32>(self.at, index)),
                _ => i64::from(self.shared.word::<u8>(self.at, index)),
            }
        }
    }
}

impl<'a, const MODE: u32> Stage<'a, MODE> {
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn new(args: &'a CrossEntropyArgs, shared: Shared, number: u32, base: u32) -> Self {
        let tile = &args.tile;
        let rows = if number + 1 == tile.count { tile.last_rows } else { tile.rows };
        Stage { args, shared, number, rows, base }
    }

    /// Its first row. Opaque, so that it is computed where it is used, and takes no two registers
    /// while the stage is computed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn first(&self) -> u64 {
        opaque(self.number.into()) * u64::from(self.args.tile.rows)
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn tile<E: Element>(&self, tensor: Matrix, base: u32, step: u32) -> Tile<E> {
        Tile::new(self.shared, tensor, self.first(), self.args.cols, base, step)
    }

    /// The logits.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn logits<E: Element>(&self) -> Tile<E> {
        self.tile(self.args.input, self.base, self.args.tile.step[0])
    }

    /// The probabilities that are the targets.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn probabilities<E: Element>(&self) -> Tile<E> {
        let tile = &self.args.tile;
        self.tile(self.args.probabilities(), self.base + tile.bytes, tile.step[1])
    }

    /// The tile for the gradients of tensor `number`, 0 for logits and 1 for probabilities. It is
    /// `over`, the tile of that tensor, where gradients are written in place. Otherwise it is a
    /// tile whose rows are aligned as those of the gradients `to` are in global memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn gradients<E: Element>(
        &self,
        over: Tile<E>,
        to: Matrix,
        number: usize,
    ) -> Tile<E> {
        let tile = &self.args.tile;
        if self.in_place() {
            return over;
        }
        let warp = warp_id() * tile.warp_bytes;
        let base = warp + tile.gradients + number as u32 * tile.bytes;
        self.tile(to, base, tile.store_step[number])
    }

    /// Whether gradients are written over the logits or probabilities that they belong to.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn in_place(&self) -> bool {
        self.args.tile.gradients == 0
    }

    /// Where the stage's classes begin in shared memory: behind the logits, with the alignment
    /// modulo 16 bytes of the address `from` that they are copied from.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn classes(&self, from: u64) -> u32 {
        self.base + self.args.tile.bytes + from as u32 % VECTOR_BYTES
    }

    /// The address of the first row's class. Opaque: LLVM would turn all that is computed from it
    /// into induction variables.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn class_address(&self) -> u64 {
        opaque(self.args.target + self.first() * u64::from(self.args.class_bytes))
    }

    /// The classes of the rows.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) fn staged_classes(&self) -> Classes {
        let at = self.classes(self.class_address());
        Classes { shared: self.shared, at, bytes: self.args.class_bytes }
    }

    /// The class of row `index` of the stage. Where it is is computed for each row: kept for
    /// several rows, it would take a register.
    ///
    /// # Safety
    /// As [`Classes::get`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn class(&self, index: u32) -> i64 {
        // SAFETY: the caller's conditions.
        unsafe { self.staged_classes().get(index) }
    }

    /// Whether the saved weights of rows are used: where targets are classes, no gradient needs
    /// them.
    const HAS_WEIGHT: bool = MODE != mode::CLASS;

    /// Where the array of saved values `which` begins in shared memory.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn saved_at<R>(&self, which: u32) -> u32 {
        let tile = &self.args.tile;
        self.base + tile.saved + which * tile.rows * size_of::<R>() as u32
    }

    /// What the forward pass has saved of row `index` of the stage.
    ///
    /// # Safety
    /// As [`Classes::get`]'s conditions 1 and 3; gradients alone are computed.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(super) unsafe fn saved<R: Real>(&self, index: u32) -> Saved<R> {
        // SAFETY: the caller's conditions.
        let value = |which| unsafe { self.shared.word(self.saved_at::<R>(which as u32), index) };
        let weight = if Self::HAS_WEIGHT { value(saved::WEIGHT) } else { R::ZERO };
        Saved { max: value(saved::MAX), log_sum: value(saved::LOG_SUM), weight }
    }

    /// Starts the copies of the stage.
    ///
    /// # Safety
    /// As [`packed`](super::packed); the warp has synchronised since its lanes read the stage.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_async<E: Element, const COMPUTES: u32>(&self) {
        let tile = &self.args.tile;
        // SAFETY: the caller's conditions.
        unsafe {
            let is_last = self.number + 1 == tile.count;
            self.logits::<E>().load_async(tile, self.rows, is_last);
            if MODE == mode::PROBABILITIES {
                self.probabilities::<E>().load_async(tile, self.rows, is_last);
            } else {
                let (from, bytes) = (self.class_address(), self.rows * self.args.class_bytes);
                self.shared.copy_span_async(self.classes(from), from, bytes, false);
            }
            if COMPUTES == computes::GRADIENTS {
                self.load_saved_async::<E::Real>();
            }
        }
    }

    /// Starts the copies of the saved values: a load for each row when it is computed would make
    /// the warp wait for memory.
    ///
    /// # Safety
    /// As [`load_async`](Self::load_async).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn load_saved_async<R: Real>(&self) {
        let first = opaque(self.args.saved) as *const R;
        let first = first.wrapping_add(self.first() as usize);
        let mut index = lane_id();
        while index < self.rows {
            let copy = |which: u64| {
                let array = (which * self.args.rows) as usize;
                let from = first.wrapping_add(array + index as usize);
                // SAFETY: the caller's conditions.
                unsafe {
                    self.shared.copy_word_async(self.saved_at::<R>(which as u32), index, from)
                };
            };
            copy(saved::MAX);
            copy(saved::LOG_SUM);
            if Self::HAS_WEIGHT {
                copy(saved::WEIGHT);
            }
            index = opaque(u64::from(index + WARP_SIZE)) as u32;
        }
    }
}

/// What all rows of a stage have in common.
#[derive(Clone, Copy)]
pub(super) struct Common<R> {
    /// The scale of their gradients, where they share one upstream gradient.
    pub(super) scale: R,
    /// What was known of rows that do not count before the stage; see [`Workspace::uncounted`].
    pub(super) uncounted: u32,
}

/// What a warp does with a stage. A trait, since LLVM does not inline a closure of this size.
pub(super) trait Compute<R, const MODE: u32> {
    /// As [`packed_stages`](crate::abi::packed_stages).
    const STAGES: Option<u32>;
    /// Whether a launch can be an [optimistic](attempt::OPTIMISTIC) one.
    const HAS_ATTEMPTS: bool;

    /// Called once, when the copies of the first stage have been started.
    ///
    /// # Safety
    /// As [`for_each_stage`].
    unsafe fn begin(&mut self) {}

    /// Computes the rows of a stage, and adds their terms to `terms`; all that it has not added
    /// yet in the warp's last stage.
    ///
    /// # Safety
    /// 1. As [`for_each_stage`].
    /// 2. The copies of the stage are complete.
    unsafe fn stage(
        &mut self,
        stage: Stage<'_, MODE>,
        is_last: bool,
        common: Common<R>,
        terms: &mut [f64; TERMS],
    );
}

/// Has `compute` take each stage of a warp's share of the rows and, with two stages, while the next
/// one is copied. Returns the summed terms.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) unsafe fn for_each_stage<
    E: Element,
    const MODE: u32,
    const COMPUTES: u32,
    C: Compute<E::Real, MODE>,
>(
    pass: &Pass<'_, E, MODE>,
    share: Share,
    workspace: Workspace,
    mut compute: C,
) -> [f64; TERMS] {
    let args = pass.args;
    let shared = Shared::new();
    let mut terms = [0.0; TERMS];
    let mut scale = E::Real::ZERO;
    let warp = || opaque(warp_id().into()) as u32 * args.tile.warp_bytes;
    // SAFETY: the caller's conditions.
    let scale_of_all = || unsafe {
        if COMPUTES == computes::BOTH {
            pass.scale(0, normaliser(args), Total::Weights)
        } else if COMPUTES == computes::GRADIENTS && args.upstream_stride == 0 {
            pass.scale_of_saved(0, Total::Weights)
        } else {
            E::Real::ZERO
        }
    };
    let is_double = match C::STAGES {
        Some(stages) => stages == 2,
        None => args.tile.stage_bytes != 0,
    };
    // With two stages, a tile is computed while the next one is loaded.
    let lag = if is_double { share.step } else { 0 };
    let (mut base, mut next, mut is_ahead) = (warp(), share.first, false);
    let (mut tiles, mut uncounted) = (args.tile.count, 0);
    // Opaque, so that the answer takes no register while a stage is computed.
    let is_optimistic =
        || C::HAS_ATTEMPTS && opaque(args.attempt.into()) == attempt::OPTIMISTIC.into();
    // SAFETY: the caller's conditions.
    unsafe {
        // With two stages, the first iteration only loads, so the code of a load exists once.
        while next < tiles || is_ahead {
            if next < tiles {
                Stage::<MODE>::new(args, shared, next, base).load_async::<E, COMPUTES>();
            }
            end_copies();
            if C::STAGES != Some(1) {
                // The other stage, if there is one.
                base = 2 * warp() + args.tile.stage_bytes - base;
            }
            if is_ahead || !is_double {
                if is_double {
                    wait_for_copies::<1>();
                } else {
                    if next == share.first {
                        compute.begin();
                        scale = scale_of_all();
                    }
                    wait_for_copies::<0>();
                }
                sync_warp();
                let number = next - lag;
                let stage = Stage::<MODE>::new(args, shared, number, base);
                let is_last = number + share.step >= tiles;
                compute.stage(stage, is_last, Common { scale, uncounted }, &mut terms);
                // The stage is free for another tile.
                sync_warp();
            } else {
                compute.begin();
                scale = scale_of_all();
            }
            is_ahead = is_double && next < tiles;
            next += share.step;
            if is_optimistic() {
                // Lanes may have read the note at different times, and go on together.
                if any(u64::from(uncounted) == attempt::NOTED) {
                    // The launch behind this one computes all rows once more: no other tile is
                    // loaded.
                    tiles = 0;
                }
                // Used in the next iteration, which hides the latency of the load.
                uncounted = workspace.uncounted();
            }
        }
    }
    terms
}
