//! Which kernels a call launches, and with which arguments, on the emulator's first device. Other
//! devices have other numbers of multiprocessors, and so other plans.

use super::*;
use crate::cross_entropy::targets::Targets;
use crate::gpu::tests::gpu;
use crate::tensor::Tensor;
use cust::sys::{self, CUfunction_attribute};
use half::{bf16, f16};
use kernels_gpu::abi::{STATS_PARTS, max_tickets, reduction, words_of_worker};

/// The kind of targets, or log-probabilities instead of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Classes,
    Smoothed,
    Probabilities,
    LogProb,
}
use Kind::{Classes, LogProb, Probabilities, Smoothed};

/// The arguments of a call of `T` over rows without gaps: a mean for cross-entropy. The memory is
/// shorter than the arguments say, since nothing is launched. Gradients overwrite the logits and
/// the probabilities.
fn of_call<T: Float, R>(
    (pass, kind): (Pass, Kind),
    [rows, cols]: [usize; 2],
    change: impl FnOnce(&mut CrossEntropyArgs),
    ask: impl FnOnce(&Launches<'_>, &CrossEntropyArgs) -> R,
) -> Option<R> {
    let gpu = gpu();
    if !gpu.is_emulated() {
        return None;
    }
    let stream = gpu.stream().unwrap();
    let x = Tensor::<T>::zeros(&gpu, [1, 1]).unwrap();
    let classes = Tensor::<i64>::zeros(&gpu, [1]).unwrap();
    let (input, target) = (x.view().memory, Targets::<T>::from(&classes));
    let mut args = Arguments::new(input, &target, -100, false, input.shape, 0).args;
    (args.rows, args.cols) = (rows as u64, cols as u32);
    args.input.row_stride = cols as u64;
    args.target_stride = cols as u64;
    (args.reduction, args.divisor) = (reduction::SCALAR, 0.0);
    match kind {
        Classes => {}
        Smoothed => args.share = 0.1 / cols as f64,
        Probabilities => (args.class_bytes, args.divisor) = (0, rows as f64),
        LogProb => {
            (args.reduction, args.divisor, args.log_prob.scale) = (reduction::ROWS, 1.0, 1.0);
        }
    }
    if pass != Pass::Forward {
        (args.grad_input, args.grad_target) = (args.input, args.probabilities());
    }
    change(&mut args);
    Some(ask(&Launches::new::<T>(&args, &stream, &[], &[]), &args))
}

/// Whether loss and gradients take one launch, two, one in which several blocks share a row, or an
/// optimistic launch, which assumes that all rows count, and a second one after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Launched {
    Once,
    Twice,
    Shared,
    Optimistic,
}
use Launched::{Once, Optimistic, Shared, Twice};

fn assert_launched<T: Float>(kind: Kind, shape: [usize; 2], expected: Launched) {
    assert_launched_with::<T>(kind, shape, |_| (), expected);
}

fn assert_launched_with<T: Float>(
    kind: Kind,
    shape: [usize; 2],
    change: impl FnOnce(&mut CrossEntropyArgs),
    expected: Launched,
) {
    let launched =
        of_call::<T, _>((Pass::ForwardBackward, kind), shape, change, |launches, args| {
            match launches.way(Pass::ForwardBackward, args).unwrap() {
                Way::One => Once,
                Way::Optimistic => Optimistic,
                Way::Two => Twice,
                Way::Split(_, split) => {
                    assert!(split.splits.get() > 1, "a block alone shares no row");
                    Shared
                }
            }
        });
    assert!(
        launched.is_none_or(|launched| launched == expected),
        "{kind:?} of {} bytes, {shape:?}: expected {expected:?}, got {launched:?}",
        size_of::<T>()
    );
}

/// Several blocks share rows if these are few and long, or if a block would read much of them
/// twice. If there is no kernel for that, few long rows take two launches.
#[test]
fn loss_and_gradients_of_long_rows() {
    // Short rows, or rows in a block's registers or shared memory.
    for shape in [[100, 40], [60, 1999], [4, 4000], [250, 2000], [1000, 2000], [0, 20_000]] {
        assert_launched::<f32>(Classes, shape, Once);
    }
    assert_launched::<f64>(Classes, [2000, 2000], Once);
    assert_launched::<bf16>(Classes, [4, 20_000], Once);
    assert_launched::<f32>(Smoothed, [60, 1999], Once);
    // Few rows.
    assert_launched::<f32>(Classes, [4, 20_000], Shared);
    assert_launched::<f64>(Classes, [4, 20_000], Shared);
    assert_launched::<f32>(Smoothed, [4, 20_000], Shared);
    // Long rows. A smoothed row counts as long from fewer bytes on, and one of f64 from the first.
    assert_launched::<f32>(Classes, [2000, 40_000], Once);
    assert_launched::<f32>(Smoothed, [2000, 40_000], Shared);
    assert_launched::<f64>(Classes, [2000, 40_000], Shared);
    assert_launched::<f32>(Classes, [2000, 100_000], Shared);
    // Rows that do not fit the shared memory of all blocks.
    assert_launched::<f32>(Classes, [4, 8_000_000], Twice);
    // No kernel shares rows if probabilities get gradients too, or for log-probabilities. Rows that
    // a block has in registers are read once.
    assert_launched::<f32>(Probabilities, [4, 4000], Twice);
    assert_launched::<f32>(LogProb, [4, 4000], Once);
    assert_launched::<f32>(LogProb, [4, 20_000], Twice);
    assert_launched::<f32>(LogProb, [2000, 100_000], Once);
}

/// The first launch assumes that all rows count if there are so many short rows that it would take
/// long to count them first, and if the logits are still there if the assumption is wrong.
#[test]
fn loss_and_gradients_of_many_short_rows() {
    const MANY: usize = 4 << 20;
    let beside = |args: &mut CrossEntropyArgs| args.grad_input.start += 1 << 40;
    for cols in [2, 16, 40] {
        assert_launched_with::<f32>(Classes, [MANY, cols], beside, Optimistic);
        assert_launched_with::<bf16>(Smoothed, [MANY, cols], beside, Optimistic);
        assert_launched_with::<f64>(Classes, [MANY, cols], beside, Once);
        // The gradients overwrite the logits.
        assert_launched::<f32>(Classes, [MANY, cols], Once);
    }
    // Several lanes per row.
    assert_launched_with::<f32>(Classes, [MANY, 200], beside, Once);
    // Weights are summed, not counted. Probabilities, and other divisors, need no count.
    let weighted = |args: &mut CrossEntropyArgs| (beside(args), args.weight = 16).0;
    assert_launched_with::<f32>(Classes, [MANY, 3], weighted, Once);
    assert_launched_with::<f32>(Probabilities, [MANY, 3], beside, Once);
    let by_one = |args: &mut CrossEntropyArgs| (beside(args), args.divisor = 1.0).0;
    assert_launched_with::<f32>(Classes, [MANY, 3], by_one, Once);
    // Both normalisers are the number of rows.
    let with_z_loss = |args: &mut CrossEntropyArgs| (beside(args), args.z_loss = 0.1).0;
    assert_launched_with::<f32>(Classes, [MANY, 3], with_z_loss, Optimistic);
    // Few rows, long rows, and more rows than are counted.
    assert_launched_with::<f32>(Classes, [1000, 3], beside, Once);
    assert_launched_with::<f32>(Classes, [MANY, 2000], beside, Once);
    assert_launched_with::<f32>(Classes, [(1 << 32) + 1, 3], beside, Once);
}

/// Rows take two launches only if the workspace has room for what the forward pass saves of them.
#[test]
fn no_more_rows_take_two_launches_than_the_workspace_saves() {
    assert_launched::<f32>(Probabilities, [layout::SAVED_ROWS, 20_000], Twice);
    assert_launched::<f32>(Probabilities, [layout::SAVED_ROWS + 1, 20_000], Once);
}

/// The workspace has room for the sums of a limited number of tickets. If there are more rows,
/// groups of blocks take several rows per ticket.
#[test]
fn no_more_tickets_than_the_workspace_has_room_for() {
    for (rows, rows_of_ticket) in [(2000, 1), (60_000, 2)] {
        of_call::<f64, _>(
            (Pass::ForwardBackward, Classes),
            [rows, 40_000],
            |_| (),
            |launches, args| {
                let way = launches.way(Pass::ForwardBackward, args).unwrap();
                let Way::Split(_, split) = way else { panic!("long rows of f64 are shared") };
                let args = launches.split_args(split, args);
                assert_eq!(args.rows_of_block.get(), rows_of_ticket, "{rows} rows");
                let tickets = (rows as u32).div_ceil(rows_of_ticket);
                assert!(tickets <= max_tickets(split.launch.blocks), "{tickets} tickets");
            },
        );
    }
}

/// Beside the logits, a block stages the probabilities, unless they get a gradient; in 16 bits only
/// if they have the logits' alignment. Class weights are not staged.
#[test]
fn what_is_staged_beside_the_logits() {
    fn assert_staged<T: Float>(
        kind: Kind,
        change: fn(&mut CrossEntropyArgs),
        expected: Option<usize>,
        what: &str,
    ) {
        let pass = Pass::ForwardBackward;
        let staged = |launches: &Launches<'_>, args: &_| launches.staged_tensors(args);
        let staged = of_call::<T, _>((pass, kind), [100, 40], change, staged);
        assert!(staged.is_none_or(|staged| staged == expected), "{what}: got {staged:?}");
    }
    assert_staged::<f32>(Classes, |_| (), Some(1), "classes");
    assert_staged::<f32>(Smoothed, |_| (), Some(1), "no weights");
    let weights = |args: &mut CrossEntropyArgs| args.weight = args.input.start;
    assert_staged::<f32>(Smoothed, weights, Some(1), "weights");
    assert_staged::<f32>(Classes, weights, Some(1), "weights of the classes alone");
    assert_staged::<f64>(Smoothed, weights, Some(1), "weights of f64");
    assert_staged::<bf16>(Smoothed, weights, Some(1), "16-bit weights");
    assert_staged::<f32>(Probabilities, of_logits, Some(2), "the gradient of the logits");
    assert_staged::<f64>(Probabilities, of_logits, Some(2), "the gradient of logits of f64");
    assert_staged::<f32>(Probabilities, |_| (), None, "both gradients");
    let of_target = |args: &mut CrossEntropyArgs| args.grad_input = Matrix::default();
    assert_staged::<f32>(Probabilities, of_target, None, "the gradient of the probabilities");
    let elsewhere = |args: &mut CrossEntropyArgs| {
        of_logits(args);
        args.target = args.input.start + 8;
    };
    assert_staged::<f32>(Probabilities, elsewhere, Some(2), "elsewhere in a vector");
    assert_staged::<f64>(Probabilities, elsewhere, Some(2), "f64 elsewhere in a vector");
    assert_staged::<bf16>(Probabilities, of_logits, Some(2), "16-bit probabilities");
    assert_staged::<bf16>(Probabilities, elsewhere, None, "16 bits elsewhere in a vector");
}

/// Where shares are late, blocks sum all class weights, even if a call has a fixed divisor and so
/// no normaliser: as many as the classes need, if there are fewer rows than classes.
#[test]
fn late_shares_have_blocks_that_sum_the_class_weights() {
    fn blocks<T: Float>(change: fn(&mut CrossEntropyArgs)) -> Option<u32> {
        let ask = |launches: &Launches<'_>, args: &CrossEntropyArgs| {
            launches.normaliser_blocks(true, args, 256, 1000)
        };
        of_call::<T, _>((Pass::ForwardBackward, Smoothed), [2, 51_200], change, ask)
    }
    fn weights(args: &mut CrossEntropyArgs) {
        (args.weight, args.divisor) = (args.input.start, 1.0);
    }
    assert!(blocks::<f32>(weights).is_none_or(|blocks| blocks == 100));
    assert!(blocks::<f64>(weights).is_none_or(|blocks| blocks == 0));
    let no_weights = |args: &mut CrossEntropyArgs| args.divisor = 1.0;
    assert!(blocks::<f32>(no_weights).is_none_or(|blocks| blocks == 0));
}

/// Removes the gradient of the probabilities.
fn of_logits(args: &mut CrossEntropyArgs) {
    args.grad_target = Matrix::default();
}

/// A block stages a part of the logits and, after it, the same part of the probabilities. Several
/// blocks share rows if both parts together do not fit one block.
#[test]
fn probabilities_are_staged_behind_the_logits() {
    let pass = Pass::ForwardBackward;
    let ask = |launches: &Launches<'_>, args: &CrossEntropyArgs| {
        let Way::Split(_, split) = launches.way(pass, args).unwrap() else {
            panic!("long rows are shared");
        };
        (launches.split_args(split, args).staged_vectors, split.part_vectors)
    };
    let shape = [2000, 20_000];
    if let Some((staged, part)) = of_call::<f32, _>((pass, Probabilities), shape, of_logits, ask) {
        assert_eq!(staged, part);
    }
    let shape = [2000, 100_000];
    if let Some((staged, _)) = of_call::<f32, _>((pass, Classes), shape, |_| (), ask) {
        assert_eq!(staged, 0, "logits alone");
    }
}

/// If several kernels could compute a call, the call gets the one that is fastest for its rows.
#[test]
fn each_row_has_the_fastest_kernel() {
    let assert_launches = |pass, kind, shape, expected| {
        let plan = |launches: &Launches<'_>, args: &_| launches.plan(pass, args).family.name;
        let name = of_call::<f32, _>((pass, kind), shape, |_| (), plan);
        assert!(name.is_none_or(|name| name == expected), "expected {expected}, got {name:?}");
    };
    use Pass::{Backward, Forward, ForwardBackward};
    for (pass, shape, expected) in [
        (Forward, [100, 40], "log_prob_forward_packed"),
        (Forward, [60, 1999], "log_prob_forward_stream"),
        (ForwardBackward, [100, 40], "log_prob_forward_backward_packed"),
        (ForwardBackward, [1000, 2000], "log_prob_forward_backward"),
        (ForwardBackward, [60, 1999], "log_prob_forward_backward_long"),
        (Backward, [100, 40], "log_prob_backward_packed"),
        (Backward, [1000, 2000], "log_prob_backward_long"),
    ] {
        assert_launches(pass, LogProb, shape, expected);
    }
    for (pass, kind, shape, expected) in [
        (ForwardBackward, Classes, [60, 1001], "cross_entropy_forward_backward_staged"),
        (ForwardBackward, Classes, [600, 1001], "cross_entropy_forward_backward_warp_peeled"),
        (ForwardBackward, Classes, [60, 1029], "cross_entropy_forward_backward_staged"),
        (ForwardBackward, Classes, [100_000, 601], "cross_entropy_forward_backward_packed"),
        (Forward, Classes, [600, 1001], "cross_entropy_forward_warp_peeled"),
        (Forward, Classes, [600, 501], "cross_entropy_forward_short_peeled"),
        (Forward, Classes, [2000, 2001], "cross_entropy_forward_peeled"),
        (Forward, Classes, [600, 101], "cross_entropy_forward_short_peeled"),
        (ForwardBackward, Classes, [600, 101], "cross_entropy_forward_backward_short_peeled"),
        (Forward, Classes, [6000, 41], "cross_entropy_forward_wide_rows"),
        (ForwardBackward, Classes, [60, 1000], "cross_entropy_forward_backward_warp_whole"),
        (Forward, Classes, [2000, 1000], "cross_entropy_forward_warp_whole"),
        (ForwardBackward, Smoothed, [60, 1000], "cross_entropy_smoothed_forward_backward_staged"),
        (Forward, Smoothed, [60, 1999], "cross_entropy_smoothed_forward_stream"),
        (Forward, Classes, [60, 1999], "cross_entropy_forward_long"),
    ] {
        assert_launches(pass, kind, shape, expected);
    }
}

/// Four rows of 20 000 columns are in two parts each. The words that eight blocks and their adder
/// publish come before the statistics of the parts. The z-loss, or a normaliser that is saved, adds
/// two sums.
#[test]
fn parts_of_rows_are_behind_all_sums() {
    for (z_loss, totals, sums) in [(0.0, 0, 2), (0.1, 0, 4), (0.0, 64, 4), (0.1, 64, 4)] {
        let at = of_call::<f32, _>(
            (Pass::Forward, Classes),
            [4, 20_000],
            |args| (args.z_loss, args.totals) = (z_loss, totals),
            |launches, args| {
                let Planned { plan, .. } = launches.plan(Pass::Forward, args);
                let args = launches.planned_args(Pass::Forward, &plan, args);
                assert_eq!((args.tail_rows, args.splits.get()), (4, 2));
                args.tail_at
            },
        );
        let expected = (8 * words_of_worker(sums, 4) + sums).next_multiple_of(STATS_PARTS);
        assert!(at.is_none_or(|at| at == expected), "{z_loss}, {totals}: {at:?}, not {expected}");
    }
}

/// A block of 256 threads has eight rows, each in the registers of a warp. Besides the blocks for
/// 60 rows there is one adder.
#[test]
fn a_block_takes_a_row_for_each_of_its_warps() {
    of_call::<bf16, _>(
        (Pass::Forward, Classes),
        [60, 1000],
        |_| (),
        |launches, args| {
            let Planned { plan, .. } = launches.plan(Pass::Forward, args);
            let args = launches.planned_args(Pass::Forward, &plan, args);
            assert_eq!((plan.regime, plan.rows.launch.threads), (Regime::ShortWhole, 256));
            assert_eq!((args.rows_of_block.get(), plan.rows.launch.blocks), (8, 8 + 1));
            assert_eq!((args.group_threads.get(), args.group_shift), (32, 5));
        },
    );
}

/// Passes with gradients prefetch rows ahead. Passes that only read prefetch the rows of the first
/// blocks before the previous launch has ended, but not packed rows, which are copied early anyway.
/// The emulator's cache has 64 KiB.
#[test]
fn rows_are_prefetched_ahead_or_early() {
    for (pass, shape, ahead, early) in [
        (Pass::ForwardBackward, [1000, 2000], (1, 8000), (0, 0)),
        (Pass::Backward, [1000, 2000], (1, 8000), (0, 0)),
        (Pass::Forward, [60, 1000], (0, 0), (4, 4000)),
        (Pass::Forward, [100, 40], (0, 0), (0, 0)),
    ] {
        let prefetched = of_call::<f32, _>(
            (pass, Classes),
            shape,
            |_| (),
            |launches, args| {
                let Planned { plan, .. } = launches.plan(pass, args);
                let args = launches.planned_args(pass, &plan, args);
                ((args.ahead, args.ahead_bytes), (args.early_blocks, args.early_bytes))
            },
        );
        let expected = (ahead, early);
        assert!(
            prefetched.is_none_or(|prefetched| prefetched == expected),
            "{pass:?} of {shape:?}: expected {expected:?}, got {prefetched:?}"
        );
    }
}

/// A row of 10 000 vectors, and 7 before it in its cache line: 864 threads have two of them each in
/// registers, and the others are in shared memory.
#[test]
fn what_registers_have_no_room_for_is_in_shared_memory() {
    let pass = Pass::ForwardBackward;
    of_call::<f32, _>(
        (pass, Classes),
        [2000, 40_000],
        |_| (),
        |launches, args| {
            let Planned { plan, family } = launches.plan(pass, args);
            let (mut launch, mut args) = (plan.rows.launch, *args);
            let entry = family.entry(Dtype::F32).unwrap();
            launches
                .ask_for_shared_memory(pass, plan.regime, entry, &mut launch, &mut args)
                .unwrap();
            assert_eq!((plan.regime, launch.threads), (Regime::Long, 864));
            assert_eq!(args.staged_vectors, 10_007 - 2 * 864);
            assert_eq!(launch.shared_bytes, 16 * args.staged_vectors);
        },
    );
}

/// Before the first launch that needs more shared memory than a block gets by default, the driver
/// is asked for it. If rows in the registers of a warp have 512 bytes or more, the driver is asked
/// for a shared memory that allows one block more than registers do. No other test here uses these
/// kernels.
#[test]
fn shared_memory_is_asked_for() {
    let asked = |shape, attribute| {
        let ask = |launches: &Launches<'_>, args: &CrossEntropyArgs| {
            let Planned { plan, family } = launches.plan(Pass::Forward, args);
            let (mut launch, mut args) = (plan.rows.launch, *args);
            let entry = family.entry(Dtype::F16).unwrap();
            launches
                .ask_for_shared_memory(Pass::Forward, plan.regime, entry, &mut launch, &mut args)
                .unwrap();
            let gpu = launches.stream.gpu();
            let (_current, mut value) = (gpu.bind().unwrap(), 0);
            let function = gpu.function(entry).unwrap().0;
            // SAFETY: the kernel is loaded; the driver writes a number to the pointer it is given.
            let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) };
            assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
            (plan.regime, value, launch.shared_bytes as i32)
        };
        of_call::<f16, _>((Pass::Forward, Probabilities), shape, |_| (), ask)
    };
    let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    if let Some((regime, bytes, launched)) = asked([60, 20_000], most) {
        assert_eq!(regime, Regime::Stream);
        assert!(launched > 48 << 10, "{launched} bytes need not be asked for");
        assert!(launched <= bytes, "{launched} bytes, of which a block may have {bytes}");
    }
    let kept = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    if let Some((regime, percent, _)) = asked([100, 512], kept) {
        assert_eq!(regime, Regime::ShortWhole);
        assert!((1..=100).contains(&percent), "as the driver finds right");
    }
}

/// Only tensors that the call has count for row strides and for differences in layout.
#[test]
fn the_layout_is_that_of_the_tensors_there_are() {
    let layout = |kind, change: fn(&mut CrossEntropyArgs)| {
        let of = |launches: &Launches<'_>, _: &_| launches.layout;
        of_call::<f32, _>((Pass::Forward, kind), [100, 40], change, of)
    };
    let Some(rows) = layout(Classes, |_| ()) else { return };
    assert_eq!((rows.tiles, rows.strides, rows.store_strides), (1, [160, 0], [0, 0]));
    assert!(rows.alike, "no gradient is laid out otherwise");
    let over = |args: &mut CrossEntropyArgs| args.grad_target = args.probabilities();
    let rows = layout(Probabilities, over).unwrap();
    assert_eq!((rows.tiles, rows.strides, rows.store_strides), (2, [160, 160], [0, 160]));
    assert!(rows.alike, "gradients over the probabilities");
    let rows = layout(Classes, |args| args.grad_input = args.input).unwrap();
    assert_eq!((rows.strides, rows.store_strides), ([160, 0], [160, 0]));
    assert!(rows.alike, "gradients over the logits");
    let to = |args: &mut CrossEntropyArgs| {
        args.grad_input = Matrix { start: args.input.start + 4, row_stride: 40 };
    };
    assert!(!layout(Classes, to).unwrap().alike, "gradients begin elsewhere in a vector");
}
