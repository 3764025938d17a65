//! Runs a launch in a drawn order: which block starts or continues next, which of its warps runs,
//! and in which order the lanes of a warp run. One CPU thread runs all of it, so that the order
//! depends only on the seed.

use super::{QUIET_ROUNDS, stuck};
use crate::block::{Running, Step};
use crate::fault::Fault;
use crate::kernel::Launch;
use crate::order::Order;
use std::sync::atomic::AtomicBool;

/// How many blocks run at the same time, not counting those that wait for others. With fewer, one
/// block gets further ahead of the rest.
const AT_A_TIME: usize = 4;
/// If the blocks that wait for others have more GPU threads than this, new blocks start in the
/// order of their indices. Blocks that others wait for mostly have low indices, so this limits how
/// many stacks are in use.
const MOST_WAITING: usize = 8192;
/// While other blocks can run, a block that waits for another checks in one of this many turns
/// whether it can continue.
const TURNS_TO_LOOK: u64 = 64;

/// A block that has begun.
struct Begun<'a> {
    block: Running<'a>,
    /// Whether it was waiting for another block at the end of its last turn.
    spins: bool,
}

/// Runs to the end, or to the first fault.
pub(super) fn run(launch: &Launch, order: &Order) -> Result<(), Fault> {
    let failed = AtomicBool::new(false);
    let mut left: Vec<u32> = (0..launch.grid).collect();
    order.shuffle(&mut left);
    let mut begun: Vec<Begun<'_>> = Vec::new();
    // Turns since any block made progress.
    let mut quiet = 0;
    loop {
        let spinning = begun.iter().filter(|begun| begun.spins).count();
        let going_on = begun.len() - spinning;
        if going_on < AT_A_TIME && !left.is_empty() {
            let is_full = spinning * launch.block as usize > MOST_WAITING;
            let index = take(&mut left, is_full);
            let order = order.fork(index.into());
            let block = launch.begin(index, begun.len(), &failed, order);
            begun.push(Begun { block, spins: false });
            continue;
        }
        if begun.is_empty() {
            return Ok(());
        }
        let next = loop {
            let next = order.below(begun.len());
            if !begun[next].spins || going_on == 0 || order.happens(TURNS_TO_LOOK) {
                break next;
            }
        };
        let Begun { block, spins } = &mut begun[next];
        let has_gone_on = match block.step()? {
            Step::Done => {
                begun.swap_remove(next);
                true
            }
            Step::Pauses if !*spins => true,
            step @ (Step::Pauses | Step::Spins) => {
                let has_gone_on = block.has_gone_on();
                // It still counts as waiting between two checks by its threads.
                *spins = matches!(step, Step::Spins) || !has_gone_on;
                has_gone_on
            }
        };
        quiet = if has_gone_on || going_on > 0 { 0 } else { quiet + 1 };
        if quiet >= QUIET_ROUNDS as usize * begun.len().max(1) {
            let waits = begun.iter().flat_map(|begun| begun.block.waits());
            return Err(stuck(launch, waits.collect()));
        }
    }
}

/// Takes the next block that has not started: the last of `left`, which is in a drawn order, or the
/// one with the lowest index if `first`.
fn take(left: &mut Vec<u32>, first: bool) -> u32 {
    let lowest = || left.iter().enumerate().min_by_key(|(_, index)| **index).map(|(at, _)| at);
    let at = if first { lowest() } else { left.len().checked_sub(1) };
    left.swap_remove(at.expect("a block is left"))
}
