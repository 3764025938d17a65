//! How cases are drawn at random.

use super::{
    Arg, Arrives, Case, Dtype, Kind, LossOf, OneFor, Pairwise, Pass, Reduce, Upstream, Values,
    Wanted, Wrong,
};
use proptest::prelude::*;
use proptest::sample::select;

/// Any case. Findings are reduced to the first alternative of each choice.
pub fn case() -> impl Strategy<Value = Case> {
    let numbers = (values(), values(), upstream(), any::<u64>());
    let call = (loss(), dtype(), reduction(), pass(), wanted(), wrong());
    let place = (shape(), select(vec![2_usize, 1, 0, 3]), places(20), places(8));
    let how = (any::<[bool; 2]>(), prop::bool::weighted(0.05));
    (numbers, call, place, how).prop_map(|(numbers, call, place, how)| {
        let (input, target, upstream, seed) = numbers;
        let (loss, dtype, reduction, pass, wanted, wrong) = call;
        let ([rows, cols], rank, gaps, offsets) = place;
        let (to_loss, twice) = how;
        let (input, target) = (input, target);
        Case {
            loss,
            dtype,
            reduction,
            pass,
            rows,
            cols,
            rank,
            input,
            target,
            upstream,
            wanted,
            gaps,
            offsets,
            to_loss,
            twice,
            wrong,
            seed,
        }
    })
}

fn dtype() -> impl Strategy<Value = Dtype> {
    select(vec![Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16])
}

fn reduction() -> impl Strategy<Value = Reduce> {
    use Reduce::{BatchMean, Mean, RowMean, RowSum, Sum, Unreduced};
    select(vec![Sum, Mean, Unreduced, RowSum, RowMean, BatchMean])
}

fn pass() -> impl Strategy<Value = Pass> {
    use Pass::{
        Backward, BackwardInPlace, BackwardInto, Both, BothInPlace, BothInto, Forward, ForwardInto,
    };
    let all = [
        Forward,
        ForwardInto,
        BothInto,
        Both,
        BackwardInto,
        Backward,
        BothInPlace,
        BackwardInPlace,
    ];
    select(all.to_vec())
}

fn wanted() -> impl Strategy<Value = Wanted> {
    select(vec![Wanted::OfInput, Wanted::OfTarget, Wanted::OfBoth])
}

/// Ordinary numbers in half of the cases.
fn values() -> impl Strategy<Value = Values> {
    use Values::{Bits, Equal, Huge, MinusInfinity, Ordinary, Special, Tiny, Wide, Zeros};
    let others = select(vec![Zeros, Equal, Wide, Special, Huge, Tiny, MinusInfinity, Bits]);
    prop_oneof![Just(Ordinary), others]
}

fn upstream() -> impl Strategy<Value = Upstream> {
    prop_oneof![
        Just(Upstream::Ones),
        values().prop_map(Upstream::One),
        values().prop_map(Upstream::Each)
    ]
}

/// Rows for a lane, a warp or a block, with one element more or less than a power of two; many
/// rows; few rows that are longer than a tile, and rows that all blocks share.
fn shape() -> impl Strategy<Value = [usize; 2]> {
    let around = |least: u32, most: u32| {
        (least..=most, 0_usize..3).prop_map(|(log, more)| (1 << log) - 1 + more)
    };
    prop_oneof![
        8 => (0_usize..6, 0_usize..9).prop_map(|(rows, cols)| [rows, cols]),
        5 => (1_usize..40, 1_usize..300).prop_map(|(rows, cols)| [rows, cols]),
        4 => (1_usize..8, around(1, 11)).prop_map(|(rows, cols)| [rows, cols]),
        2 => (around(4, 10), 1_usize..20).prop_map(|(rows, cols)| [rows, cols]),
        2 => (1_usize..4, 500_usize..9_000).prop_map(|(rows, cols)| [rows, cols]),
        1 => (1_usize..3, around(12, 15)).prop_map(|(rows, cols)| [rows, cols]),
        1 => (1_usize..3, 9_000_usize..70_000).prop_map(|(rows, cols)| [rows, cols]),
    ]
}

/// Numbers below `most`, for each argument: all 0, all the same, one nonzero, or each its own.
fn places(most: usize) -> impl Strategy<Value = [usize; Arg::COUNT]> {
    let alone = |(which, place): (usize, usize)| {
        let mut places = [0; Arg::COUNT];
        places[which] = place;
        places
    };
    prop_oneof![
        Just([0; Arg::COUNT]),
        (0..most).prop_map(|same| [same; Arg::COUNT]),
        (0..Arg::COUNT, 0..most).prop_map(alone),
        prop::array::uniform(0..most)
    ]
}

fn loss() -> impl Strategy<Value = LossOf> {
    let bounds = || select(vec![1.0, 0.5, 1e-3, 100.0, 1e-40, 1e30, f64::INFINITY]);
    let deltas = prop_oneof![9 => bounds(), 1 => select(vec![0.0, -1.0, f64::NAN])];
    let betas = prop_oneof![7 => bounds(), 2 => Just(0.0), 1 => select(vec![-1.0, f64::NAN])];
    prop_oneof![
        1 => Just(LossOf::Pairs(Pairwise::Mse)),
        1 => deltas.prop_map(|delta| LossOf::Pairs(Pairwise::Huber { delta })),
        1 => betas.prop_map(|beta| LossOf::Pairs(Pairwise::SmoothL1 { beta })),
        1 => Just(LossOf::Pairs(Pairwise::Bce)),
        2 => weighted_bce(),
        3 => any::<[bool; 2]>().prop_map(|[log_input, log_target]| {
            LossOf::Pairs(Pairwise::KlDiv { log_input, log_target })
        }),
        9 => cross_entropy(),
        6 => log_prob(),
    ]
}

fn weighted_bce() -> impl Strategy<Value = LossOf> {
    use OneFor::{All, Column, Element, Row};
    let one = || select(vec![None, Some(All), Some(Column), Some(Row), Some(Element)]);
    (one(), one(), values()).prop_map(|(weight, pos_weight, values)| LossOf::WeightedBce {
        weight,
        pos_weight,
        values,
    })
}

fn cross_entropy() -> impl Strategy<Value = LossOf> {
    let targets = select(vec![Kind::I64, Kind::I32, Kind::U32, Kind::U8, Kind::Probabilities]);
    let weight = prop_oneof![Just(None), values().prop_map(Some)];
    let smoothing = prop_oneof![
        12 => Just(0.0),
        8 => select(vec![0.1, 1.0, 0.5, 1e-10]),
        1 => select(vec![-0.1, 1.5, f64::NAN, f64::INFINITY]),
    ];
    let z_loss = prop_oneof![
        12 => Just(0.0),
        8 => select(vec![1e-3, 1.0, 1e-30]),
        1 => select(vec![-1e-3, f64::NAN, f64::INFINITY]),
    ];
    (targets, weight, ignored(), smoothing, z_loss, bad()).prop_map(
        |(targets, weight, ignore_index, label_smoothing, z_loss, bad)| LossOf::CrossEntropy {
            targets,
            weight,
            ignore_index,
            label_smoothing,
            z_loss,
            bad,
        },
    )
}

fn log_prob() -> impl Strategy<Value = LossOf> {
    let targets = select(vec![Kind::I64, Kind::I32, Kind::U32, Kind::U8]);
    let temperature = prop_oneof![
        6 => Just(1.0),
        8 => select(vec![0.7, 2.0, 0.1, 10.0, 1e-3, 1e3]),
        4 => select(vec![1e-30, 1e30, 1e-10, 1e10]),
        1 => select(vec![0.0, -1.0, 1e-31, 1e31, f64::NAN, f64::INFINITY]),
    ];
    let arrives = prop_oneof![
        Just(Arrives::AtLogProb),
        upstream().prop_map(Arrives::AtEntropy),
        upstream().prop_map(Arrives::AtBoth),
    ];
    (targets, temperature, ignored(), bad(), arrives).prop_map(
        |(targets, temperature, ignore_index, bad, arrives)| LossOf::LogProb {
            targets,
            temperature,
            ignore_index,
            bad,
            arrives,
        },
    )
}

/// The ignored class: the usual one, one that some rows have, and numbers that do not fit some
/// types of classes.
fn ignored() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(-100_i64),
        1 => select(vec![-1_i64, 0, 1, 255, 4_294_967_295, 4_294_967_196, i64::MIN, i64::MAX]),
    ]
}

/// Whether some targets are no classes.
fn bad() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.2)
}

/// A mistake in one case of eight.
fn wrong() -> impl Strategy<Value = Option<Wrong>> {
    let arg = || select(Arg::ALL.to_vec());
    let of_some =
        vec![Wrong::ClassGradient, Wrong::NeverSaved, Wrong::OtherSaved, Wrong::OneResult];
    let one = prop_oneof![
        1 => arg().prop_map(Wrong::Shape),
        1 => arg().prop_map(Wrong::Null),
        1 => arg().prop_map(Wrong::Misaligned),
        1 => arg().prop_map(Wrong::Expanded),
        1 => arg().prop_map(Wrong::Gaps),
        1 => arg().prop_map(Wrong::Device),
        1 => arg().prop_map(Wrong::Overlap),
        // These mistakes need arguments that few calls have.
        4 => select(of_some),
    ];
    prop_oneof![7 => Just(None), 1 => one.prop_map(Some)]
}
