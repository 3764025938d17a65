//! PyTorch's answers: every case of data/pytorch.jsonl whose loss is built, through forward, backward and
//! both in one pass. data/README.md says what a case is, docs/semantics.md why it is so.

use fused_loss::reduction::{self, DivergenceReduction, ElementwiseReduction, Reduction};
use fused_loss::{BatchMean, Element, Error, Grads, Huber, KlDiv, Mean, Mse, RowMean, RowSum};
use fused_loss::{SmoothL1, Stream, Sum, Tensor, View, Workspace};
use half::{bf16, f16};
use serde_json::Value;
use std::collections::BTreeMap;
use tests::gpu;
use tests::number::Number;

/// In the binary, which may run where the file is not.
const DATA: &str = include_str!("../data/pytorch.jsonl");

/// What results hold before a call; exact in every element type, and no case expects it.
const UNWRITTEN: f64 = 768.0;

#[test]
fn mse() {
    replay("mse", 55);
}

#[test]
fn huber() {
    replay("huber", 63);
}

#[test]
fn smooth_l1() {
    replay("smooth_l1", 80);
}

#[test]
fn kl_div() {
    replay("kl_div", 218);
}

/// The rest of the data, which [`replay_as`] has no arm for yet.
#[test]
fn no_case_is_lost() {
    let mut counts = BTreeMap::new();
    for case in cases() {
        *counts.entry(case.loss).or_insert(0) += 1;
    }
    for built in ["mse", "huber", "smooth_l1", "kl_div"] {
        counts.remove(built);
    }
    let not_built = [("cross_entropy", 479)];
    assert_eq!(counts, not_built.map(|(loss, count)| (loss.to_owned(), count)).into());
}

/// Replays the cases of `loss`, of which there are `count`.
fn replay(loss: &str, count: usize) {
    let cases: Vec<Case> = cases().filter(|case| case.loss == loss).collect();
    assert_eq!(cases.len(), count, "cases of {loss}");
    let failures: Vec<String> = cases
        .iter()
        .flat_map(|case| match case.dtype.as_str() {
            "f32" => replay_as::<f32>(case),
            "f64" => replay_as::<f64>(case),
            "f16" => replay_as::<f16>(case),
            "bf16" => replay_as::<bf16>(case),
            other => panic!("{}: the dtype is {other}", case.name),
        })
        .collect();
    assert!(failures.is_empty(), "{} results differ:\n{}", failures.len(), failures.join("\n"));
}

/// What differs, a line each.
fn replay_as<T: Number>(case: &Case) -> Vec<String>
where
    T::Loss: Number,
{
    macro_rules! by_reduction {
        ($loss:ident { $($option:ident: $value:expr),* } $($own:literal => $reduction:expr)?) => {{
            macro_rules! replay {
                ($reduces:expr) => {
                    replay_elementwise::<T, _, _>(
                        case,
                        $loss { $($option: $value,)* reduction: $reduces },
                        $reduces,
                    )
                };
            }
            match case.reduction.as_str() {
                $($own => replay!($reduction),)?
                "none" => replay!(reduction::None),
                "sum" => replay!(Sum),
                "mean" => replay!(Mean),
                "row_sum" => replay!(RowSum),
                "row_mean" => replay!(RowMean),
                other => panic!("{}: the reduction is {other}", case.name),
            }
        }};
    }
    let number = |option: &str| case.options[option].as_f64().unwrap();
    match case.loss.as_str() {
        "mse" => by_reduction!(Mse {}),
        "huber" => by_reduction!(Huber { delta: number("delta") }),
        "smooth_l1" => by_reduction!(SmoothL1 { beta: number("beta") }),
        "kl_div" => {
            let log_input = case.options["input"].as_str().unwrap() == "log_prob";
            let log_target = case.options["log_target"].as_bool().unwrap();
            by_reduction!(KlDiv { log_input: log_input, log_target: log_target } "batchmean" => BatchMean)
        }
        other => panic!("{}: the loss is {other}", case.name),
    }
}

/// The calls of a loss that compares element by element.
trait Elementwise<R: Reduction> {
    fn forward<T: Element>(
        &self,
        tensors: [&Tensor<T>; 2],
        loss: &mut Tensor<R::Value<T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<(), Error>;

    fn backward<T: Element>(
        &self,
        tensors: [&Tensor<T>; 2],
        upstream: View<'_, R::Value<T>>,
        grads: Grads<'_, T, R::Value<T>>,
        stream: &Stream,
    ) -> Result<(), Error>;

    fn both<T: Element>(
        &self,
        tensors: [&Tensor<T>; 2],
        loss: &mut Tensor<R::Value<T>>,
        grads: Grads<'_, T, R::Value<T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<(), Error>;
}

macro_rules! elementwise {
    ($($loss:ident: $reduction:ident;)+) => {$(
        impl<R: $reduction> Elementwise<R> for $loss<R> {
            fn forward<T: Element>(
                &self,
                [input, target]: [&Tensor<T>; 2],
                loss: &mut Tensor<R::Value<T>>,
                workspace: &mut Workspace,
                stream: &Stream,
            ) -> Result<(), Error> {
                self.forward_into(input, target, loss, workspace, stream)
            }

            fn backward<T: Element>(
                &self,
                [input, target]: [&Tensor<T>; 2],
                upstream: View<'_, R::Value<T>>,
                grads: Grads<'_, T, R::Value<T>>,
                stream: &Stream,
            ) -> Result<(), Error> {
                self.backward_into(input, target, upstream, grads, stream)
            }

            fn both<T: Element>(
                &self,
                [input, target]: [&Tensor<T>; 2],
                loss: &mut Tensor<R::Value<T>>,
                grads: Grads<'_, T, R::Value<T>>,
                workspace: &mut Workspace,
                stream: &Stream,
            ) -> Result<(), Error> {
                self.forward_backward_into(input, target, loss, grads, workspace, stream)
            }
        }
    )+};
}
elementwise! {
    Mse: ElementwiseReduction;
    Huber: ElementwiseReduction;
    SmoothL1: ElementwiseReduction;
    KlDiv: DivergenceReduction;
}

/// One case through the three calls.
fn replay_elementwise<T, R, L>(case: &Case, loss: L, reduction: R) -> Vec<String>
where
    T: Number,
    R: Reduction,
    R::Value<T>: Number,
    L: Elementwise<R>,
{
    let input = Tensor::from_slice(gpu(), case.shape, &case.exact(&case.input)).unwrap();
    let target = Tensor::from_slice(gpu(), case.shape, &case.exact(&case.target)).unwrap();
    let tensors = [&input, &target];
    let of_loss = reduction.shape(input.shape());
    // An upstream for each value of the loss, or one for all.
    let upstream: Vec<R::Value<T>> = case.exact(case.upstream.as_deref().unwrap_or(&[1.0]));
    let each = upstream.len() == of_loss.len();
    let upstream = if each {
        Tensor::from_slice(gpu(), of_loss, &upstream).unwrap()
    } else {
        Tensor::from_slice(gpu(), [], &upstream).unwrap()
    };
    let upstream = if each { upstream.view() } else { upstream.view().expand(of_loss).unwrap() };

    let new_loss = || {
        let unwritten = vec![R::Value::<T>::round(UNWRITTEN); of_loss.len()];
        Tensor::from_slice(gpu(), of_loss, &unwritten).unwrap()
    };
    let new_gradient = || {
        let unwritten = vec![T::round(UNWRITTEN); input.shape().len()];
        Tensor::from_slice(gpu(), case.shape, &unwritten).unwrap()
    };
    let (stream, mut workspace) = (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
    let mut failures = Vec::new();
    let mut check = |call: &str, outcome: Outcome<T, R::Value<T>>| {
        if let Err(difference) = case.check(&outcome) {
            failures.push(format!("{}; {call}: {difference}", case.name));
        }
    };

    let mut value = new_loss();
    let queued = loss.forward(tensors, &mut value, &mut workspace, &stream);
    let loss_alone = Some(value.to_vec().unwrap());
    check("forward", Outcome { queued, loss: loss_alone, grad_input: None, grad_target: None });

    let (mut by_input, mut by_target) = (new_gradient(), new_gradient());
    let grads = Grads::both(&mut by_input, &mut by_target);
    let queued = loss.backward(tensors, upstream, grads, &stream);
    let [grad_input, grad_target] = [&by_input, &by_target].map(|by| Some(by.to_vec().unwrap()));
    check("backward", Outcome { queued, loss: None, grad_input, grad_target });

    let mut value = new_loss();
    let (mut by_input, mut by_target) = (new_gradient(), new_gradient());
    let mut grads = Grads::both(&mut by_input, &mut by_target);
    if case.upstream.is_some() {
        grads = grads.scaled_by(upstream);
    }
    let queued = loss.both(tensors, &mut value, grads, &mut workspace, &stream);
    let of_both = Some(value.to_vec().unwrap());
    let [grad_input, grad_target] = [&by_input, &by_target].map(|by| Some(by.to_vec().unwrap()));
    check("both", Outcome { queued, loss: of_both, grad_input, grad_target });
    failures
}

/// What a call said, and what it left in memory; `None` for what it was not given.
struct Outcome<T, V> {
    queued: Result<(), Error>,
    loss: Option<Vec<V>>,
    grad_input: Option<Vec<T>>,
    grad_target: Option<Vec<T>>,
}

/// One line of the data.
struct Case {
    name: String,
    loss: String,
    dtype: String,
    shape: [usize; 2],
    input: Vec<f64>,
    target: Vec<f64>,
    options: Value,
    reduction: String,
    /// For each value of the loss, or one for all.
    upstream: Option<Vec<f64>>,
    expected: Expected,
}

/// What a call must give.
struct Expected {
    error: Option<String>,
    loss: Option<Vec<f64>>,
    grad_input: Option<Vec<f64>>,
    grad_target: Option<Vec<f64>>,
}

fn cases() -> impl Iterator<Item = Case> {
    DATA.lines().map(|line| {
        let case: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| case[field].as_str().unwrap().to_owned();
        let side = |index: usize| case["shape"][index].as_u64().unwrap() as usize;
        let expect = &case["expect"];
        Case {
            name: text("name"),
            loss: text("loss"),
            dtype: text("dtype"),
            shape: [side(0), side(1)],
            input: numbers(&case["input"]).unwrap(),
            target: numbers(&case["target"]).unwrap(),
            options: case["options"].clone(),
            reduction: text("reduction"),
            upstream: numbers(&case["upstream"]),
            expected: Expected {
                error: expect["error"].as_str().map(str::to_owned),
                loss: numbers(&expect["loss"]),
                grad_input: numbers(&expect["grad_input"]),
                grad_target: numbers(&expect["grad_target"]),
            },
        }
    })
}

/// A list of numbers or one number; `None` for null.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    let number = |value: &Value| match value.as_str() {
        Some("nan") => f64::NAN,
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        _ => value.as_f64().unwrap(),
    };
    match value {
        Value::Null => None,
        Value::Array(list) => Some(list.iter().map(number).collect()),
        one => Some(vec![number(one)]),
    }
}

impl Case {
    /// Numbers that their type holds.
    fn exact<N: Number>(&self, values: &[f64]) -> Vec<N> {
        let exact = |&value: &f64| {
            let rounded = N::round(value);
            let same = rounded.wide() == value || value.is_nan();
            assert!(same, "{}: {value} is not a {}", self.name, N::DTYPE.name());
            rounded
        };
        values.iter().map(exact).collect()
    }

    /// Holds a call against what it must give; says where it differs.
    fn check<T: Number, V: Number>(&self, outcome: &Outcome<T, V>) -> Result<(), String> {
        let expected = &self.expected;
        if let Some(error) = &expected.error {
            return check_refusal(error, outcome);
        }
        if let Err(error) = &outcome.queued {
            return Err(format!("refused: {error}"));
        }
        // An unreduced loss in 16 bits is rounded as gradients are. Where terms cancel, the error is held
        // against their magnitudes.
        let magnitudes = self.magnitudes(expected.loss.as_ref().map_or(0, Vec::len));
        let allowed = |at: usize, expected: f64| match size_of::<V>() {
            2 => V::allowed(expected, expected.abs(), magnitudes[at]),
            _ => V::LOSS * expected.abs().max(magnitudes[at]),
        };
        compare("loss", &outcome.loss, &expected.loss, allowed)?;
        for (what, got, expected) in [
            ("grad_input", &outcome.grad_input, &expected.grad_input),
            ("grad_target", &outcome.grad_target, &expected.grad_target),
        ] {
            let allowed =
                |at, value| T::allowed(value, self.largest_of_row(expected, at), self.scale(at));
            compare(what, got, expected, allowed)?;
        }
        Ok(())
    }

    /// What the magnitudes of each loss's terms add up to, divided as the loss is; 0 for losses whose terms
    /// cannot cancel.
    fn magnitudes(&self, losses: usize) -> Vec<f64> {
        let mut magnitudes = vec![0.0; losses];
        if self.loss != "kl_div" {
            return magnitudes;
        }
        let log_target = self.options["log_target"].as_bool().unwrap();
        let log_input = self.options["input"].as_str().unwrap() == "log_prob";
        for (at, (&input, &target)) in self.input.iter().zip(&self.target).enumerate() {
            let x = if log_input { input } else { input.ln() };
            let (t, log_t) =
                if log_target { (target.exp(), target) } else { (target, target.ln()) };
            let magnitude = (t * log_t).abs() + (t * x).abs();
            if magnitude.is_finite() {
                magnitudes[at * losses / self.input.len()] += magnitude / self.divisor();
            }
        }
        magnitudes
    }

    /// The largest finite magnitude in the row of element `at`.
    fn largest_of_row(&self, values: &Option<Vec<f64>>, at: usize) -> f64 {
        let [_, cols] = self.shape;
        let row = values.iter().flatten().skip(at / cols * cols).take(cols);
        row.map(|value| value.abs()).filter(|value| value.is_finite()).fold(0.0, f64::max)
    }

    /// The factor of the gradient of element `at`: its upstream over what its loss is divided by.
    fn scale(&self, at: usize) -> f64 {
        let [rows, cols] = self.shape;
        let upstream = self.upstream.as_deref().unwrap_or(&[1.0]);
        upstream[at * upstream.len() / (rows * cols)] / self.divisor()
    }

    /// What a sum of terms is divided by.
    fn divisor(&self) -> f64 {
        let [rows, cols] = self.shape;
        let divisor = match self.reduction.as_str() {
            "mean" => rows * cols,
            "row_mean" => cols,
            "batchmean" => rows,
            _ => 1,
        };
        divisor as f64
    }
}

/// The result `what` against its expected value, which is rounded to its type first; a number may be off
/// by `allowed` of its index and expected value.
fn compare<N: Number>(
    what: &str,
    got: &Option<Vec<N>>,
    expected: &Option<Vec<f64>>,
    allowed: impl Fn(usize, f64) -> f64,
) -> Result<(), String> {
    let Some(got) = got else { return Ok(()) };
    let Some(expected) = expected else { return Err(format!("{what}: none is expected")) };
    if got.len() != expected.len() {
        return Err(format!("{what}: expected {} values, got {}", expected.len(), got.len()));
    }
    for (at, (got, &exact)) in got.iter().zip(expected).enumerate() {
        let (got, expected) = (got.wide(), N::round(exact).wide());
        let fits = if expected.is_finite() {
            (got - expected).abs() <= allowed(at, expected)
        } else {
            got == expected || got.is_nan() && expected.is_nan()
        };
        if !fits {
            return Err(format!("{what}, element {at}: expected {expected} ({exact}), got {got}"));
        }
    }
    Ok(())
}

/// A call that must fail: with an error that names the option, before anything is written.
fn check_refusal<T: Number, V: Number>(error: &str, outcome: &Outcome<T, V>) -> Result<(), String> {
    let option = match error {
        "delta not positive" => "delta",
        "beta negative" => "beta",
        other => panic!("which argument is at fault for '{other}'?"),
    };
    let Err(refusal) = &outcome.queued else { return Err(format!("accepted: {error}")) };
    let names_it =
        matches!(refusal, Error::InvalidOption { option: named, .. } if *named == option);
    if !names_it || !refusal.to_string().starts_with(&format!("{option}: expected ")) {
        return Err(format!("expected an error of {option}, got '{refusal}'"));
    }
    let losses = outcome.loss.iter().flatten().map(|value| value.wide());
    let gradients = outcome.grad_input.iter().chain(&outcome.grad_target).flatten();
    let mut all = losses.chain(gradients.map(|value| value.wide()));
    if all.all(|value| value == UNWRITTEN) { Ok(()) } else { Err("written after all".to_owned()) }
}
