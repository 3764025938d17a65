//! Short rows, one lane per row: each lane computes a whole row in its registers.

use super::register_row::{RegisterRow, SharedRow};
use super::stage::{Stage, for_each_stage};
use super::{Share, add_loss, computes, factors_of_row};
use crate::abi::TileArgs;
use crate::cross_entropy::mode;
use crate::cross_entropy::pass::{Pass, TERMS};
use crate::cross_entropy::stats::Stats;
use crate::element::{Element, Real};
use crate::reduce::Workspace;
use crate::tile::Tile;
use cuda_std::hint::opaque;
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};

/// The kind of targets that these kernels take.
const CLASS: u32 = mode::CLASS;

/// Computes a warp's share of the rows.
///
/// # Safety
/// As [`packed`](super::packed); all lanes of the warp call it, once a launch.
#[inline(always)]
pub(super) unsafe fn rows<E: Element, const COMPUTES: u32>(
    pass: &Pass<'_, E, CLASS>,
    share: Share,
    workspace: Workspace,
) -> [f64; TERMS] {
    // SAFETY: the caller's conditions; the copies of a stage are complete when it is computed.
    unsafe {
        for_each_stage::<E, CLASS, COMPUTES>(pass, share, |stage, scale, terms| {
            let args = stage.args;
            let logits = stage.logits::<E>();
            let gradients = stage.gradients(logits, args.grad_input, 0);
            let mut index = lane_id();
            while index < stage.rows {
                let tiles = [logits, gradients];
                row::<E, COMPUTES>(pass, stage, tiles, index, scale, workspace, terms);
                index += WARP_SIZE;
            }
            if COMPUTES != computes::LOSS {
                sync_warp();
                gradients.store(&args.tile, stage.rows, args.grad_input, stage.first());
            }
        })
    }
}

/// Computes row `index` of a stage, with the logits in the first tile and the gradients in the
/// second, and adds its terms to `terms`.
///
/// # Safety
/// As [`rows`]; the copies of the stage are complete, and no other lane accesses the row.
#[inline(always)]
unsafe fn row<E: Element, const COMPUTES: u32>(
    pass: &Pass<'_, E, CLASS>,
    stage: Stage<'_, CLASS>,
    [logits, gradients]: [Tile<E>; 2],
    index: u32,
    scale: E::Real,
    workspace: Workspace,
    terms: &mut [f64; TERMS],
) {
    let Stage { args, shared, .. } = stage;
    let row = stage.first() + u64::from(index);
    let size = size_of::<E>() as u32;
    let TileArgs { order_right, order_mask, order_left, access, .. } = args.tile;
    let source = SharedRow {
        shared,
        at: logits.row(index),
        // Opaque: LLVM would compute the addresses of all chunks before the loop over rows and
        // keep them in registers.
        cols: opaque(args.cols.into()) as u32,
        access,
        order: (index >> order_right & order_mask) << order_left,
    };
    // SAFETY: the caller's conditions.
    unsafe {
        let class = stage.class(index);
        let mut logit = E::Real::ZERO;
        // A negative class is out of range, too, as an unsigned number.
        if class.cast_unsigned() < args.cols.into() {
            logit = shared.element::<E>(source.at + class as u32 * size).widen();
        }
        let mut stats = Stats::NONE;
        if COMPUTES != computes::GRADIENTS {
            let mut registers = RegisterRow::<E>::load(source);
            stats = if COMPUTES == computes::BOTH {
                registers.statistics::<true>()
            } else {
                registers.statistics::<false>()
            };
            add_loss::<E, CLASS, COMPUTES>(pass, row, class, stats, logit, workspace, terms);
        }
        if COMPUTES == computes::LOSS {
            return;
        }
        let access = args.tile.store_access;
        let target = SharedRow { at: gradients.row(index), access, ..source };
        let label = pass.label(class);
        if !label.counts {
            // The gradient of a row that is ignored is 0, whatever its logits.
            let mut registers = RegisterRow::<E>::unread(source);
            registers.make_zeros();
            registers.store(target);
            return;
        }
        let factors = factors_of_row::<E, CLASS, COMPUTES>(pass, &label, stats, row, scale);
        // Reading the row again costs less than keeping it in registers since the statistics.
        let mut registers = RegisterRow::<E>::load(source.rematerialize());
        registers.make_gradients(&factors);
        registers.store(target);
        if label.has_class(args.cols) {
            let at_class = E::narrow(pass.at_class(&label, &factors, logit));
            shared.set_element(target.at + label.class * size, at_class);
        }
    }
}
