//! PyTorch's answers: every case of data/pytorch.jsonl whose loss exists here, through forward,
//! backward and both in one pass. data/README.md describes the cases, docs/semantics.md the reasons
//! for the results.
//!
//! If `FUSED_LOSS_RESULTS` is set, the results go to the file with that name, for data/accuracy.py.

use fused_loss::Unreduced;
use fused_loss::reduction::{DivergenceReduction, ElementwiseReduction};
use fused_loss::reduction::{Reduction, SampleReduction};
use fused_loss::{
    BatchMean, BceWithLogits, CrossEntropy, Error, Float, Grads, Huber, KlDiv, Loss, Mean, Mse,
};
use fused_loss::{RowMean, RowSum, Saved, SmoothL1, Stream, Sum, Targets, Tensor, View, Workspace};
use half::{bf16, f16};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::{LazyLock, Mutex};
use tests::number::Number;
use tests::{gpu, tensor};

/// Part of the binary, which may run where the file does not exist.
const DATA: &str = include_str!("../data/pytorch.jsonl");

/// What result memory contains before a call. It is exact in every element type, and no case
/// expects it.
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
fn bce() {
    replay("bce", 211);
}

#[test]
fn kl_div() {
    replay("kl_div", 218);
}

#[test]
fn cross_entropy() {
    replay("cross_entropy", 479);
}

#[test]
fn no_case_is_lost() {
    let mut counts = BTreeMap::new();
    for case in cases() {
        *counts.entry(case.loss).or_insert(0) += 1;
    }
    for replayed in ["mse", "huber", "smooth_l1", "bce", "kl_div", "cross_entropy"] {
        counts.remove(replayed);
    }
    assert_eq!(counts, BTreeMap::new());
}

/// Runs the cases of `loss` and checks that there are `count` of them.
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

/// Runs a case in one element type and returns the differences, one per line.
fn replay_as<T: Number>(case: &Case) -> Vec<String>
where
    T::Loss: Number,
{
    macro_rules! by_reduction {
        ($loss:expr $(, $own:literal => $reduction:expr)?) => {{
            macro_rules! replay {
                ($reduces:expr) => {
                    replay_elementwise::<T, _, _>(case, $loss.reduction($reduces), $reduces)
                };
            }
            match case.reduction.as_str() {
                $($own => replay!($reduction),)?
                "none" => replay!(Unreduced),
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
        "mse" => by_reduction!(Mse::new()),
        "huber" => by_reduction!(Huber::new(number("delta"))),
        "smooth_l1" => by_reduction!(SmoothL1::new(number("beta"))),
        "bce" => {
            let [weight, pos_weight] =
                ["weight", "pos_weight"].map(|option| case.broadcast::<T>(option));
            let mut loss = BceWithLogits::new();
            loss.weight = weight.as_ref().map(Tensor::view);
            loss.pos_weight = pos_weight.as_ref().map(Tensor::view);
            by_reduction!(loss)
        }
        "kl_div" => {
            let log_input = case.options["input"].as_str().unwrap() == "log_prob";
            let log_target = case.options["log_target"].as_bool().unwrap();
            let loss = KlDiv::new().log_input(log_input).log_target(log_target);
            by_reduction!(loss, "batchmean" => BatchMean)
        }
        "cross_entropy" => match case.reduction.as_str() {
            "none" => replay_samples::<T, _>(case, CrossEntropy::none()),
            "sum" => replay_samples::<T, _>(case, CrossEntropy::sum()),
            "mean" => replay_samples::<T, _>(case, CrossEntropy::mean()),
            other => panic!("{}: the reduction is {other}", case.name),
        },
        other => panic!("{}: the loss is {other}", case.name),
    }
}

/// Runs a case of cross-entropy, whose targets may be classes of three types or probabilities.
fn replay_samples<T: Number, R: SampleReduction>(
    case: &Case,
    loss: CrossEntropy<'_, T, R>,
) -> Vec<String>
where
    T::Loss: Number,
{
    let option =
        |name: &str, default: f64| numbers(&case.options[name]).map_or(default, |of| of[0]);
    let weight = numbers(&case.options["weight"]).map(|weight| tensor(&case.exact::<T>(&weight)));
    let mut loss = loss
        .ignore_index(option("ignore_index", -100.0) as i64)
        .label_smoothing(option("label_smoothing", 0.0))
        .z_loss(option("z_loss", 0.0));
    loss.weight = weight.as_ref().map(Tensor::view);
    let [rows, _] = case.shape;
    macro_rules! classes {
        ($class:ty) => {{
            let classes: Vec<$class> = case.target.iter().map(|&class| class as $class).collect();
            let classes = Tensor::from_slice(gpu(), [rows], &classes).unwrap();
            replay_calls(case, loss, || (&classes).into(), false)
        }};
    }
    match case.options["target_type"].as_str().unwrap() {
        "i64" => classes!(i64),
        "i32" => classes!(i32),
        "u8" => classes!(u8),
        "prob" => {
            let target: Vec<T> = case.exact(&case.target);
            let target = Tensor::from_slice(gpu(), case.shape, &target).unwrap();
            replay_calls(case, loss, || (&target).into(), true)
        }
        other => panic!("{}: the target type is {other}", case.name),
    }
}

/// Runs every call of cross-entropy on a case with the targets that `target` gives.
fn replay_calls<'a, T: Number, R: SampleReduction>(
    case: &Case,
    loss: CrossEntropy<'_, T, R>,
    target: impl Fn() -> Targets<'a, T>,
    probabilities: bool,
) -> Vec<String>
where
    T::Loss: Number,
{
    let values: Vec<T> = case.exact(&case.input);
    let input = Tensor::from_slice(gpu(), case.shape, &values).unwrap();
    let [rows, cols] = case.shape;
    let of_loss: &[usize] = if case.reduction == "none" { &[rows] } else { &[] };
    let upstream: Vec<T::Loss> = case.exact(case.upstream.as_deref().unwrap_or(&[1.0]));
    let each = case.reduction == "none" && upstream.len() == rows;
    let upstream = Tensor::from_slice(gpu(), if each { of_loss } else { &[] }, &upstream).unwrap();
    let upstream = || if each { upstream.view() } else { upstream.view().expand(of_loss).unwrap() };
    let new_loss = || {
        let mut loss = Loss::<T::Loss>::zeros(gpu(), of_loss).unwrap();
        let len = of_loss.iter().product();
        loss.copy_from_slice(&vec![T::Loss::round(UNWRITTEN); len]).unwrap();
        loss
    };
    let new_gradient =
        || Tensor::from_slice(gpu(), case.shape, &vec![T::round(UNWRITTEN); rows * cols]).unwrap();
    let (stream, mut workspace) = (gpu().stream().unwrap(), Workspace::new(gpu()).unwrap());
    let mut failures = Vec::new();
    let mut check =
        |call: &str, queued, value: Option<&Loss<T::Loss>>, grads: [Option<&Tensor<T>>; 2]| {
            let to_vec = |tensor: Option<&Tensor<T>>| tensor.map(|tensor| tensor.to_vec().unwrap());
            let [grad_input, grad_target] = grads.map(to_vec);
            let fault = value.and_then(|value| value.check().err());
            let loss = value.map(|value| value.values().to_vec().unwrap());
            let outcome = Outcome { queued, loss, grad_input, grad_target };
            outcome.record(&case.name, call);
            if let Err(difference) = case.check(&outcome, value.is_some().then_some(fault)) {
                failures.push(format!("{}; {call}: {difference}", case.name));
            }
        };
    fn grads<'a, T: Number>(
        by_input: &'a mut Tensor<T>,
        by_target: &'a mut Tensor<T>,
        probabilities: bool,
    ) -> Grads<'a, T, T::Loss> {
        if probabilities { Grads::both(by_input, by_target) } else { Grads::input(by_input) }
    }

    let mut value = new_loss();
    let queued = loss.forward_into(&input, target(), &mut value, &mut workspace, &stream);
    check("forward", queued, Some(&value), [None, None]);

    let (mut value, mut saved) = (new_loss(), Saved::zeros(gpu(), case.shape).unwrap());
    let queued =
        loss.forward_saving_into(&input, target(), &mut value, &mut saved, &mut workspace, &stream);
    let went = queued.is_ok();
    check("forward, saving", queued, Some(&value), [None, None]);
    if went {
        let (mut by_input, mut by_target) = (new_gradient(), new_gradient());
        let wanted = grads(&mut by_input, &mut by_target, probabilities);
        let queued = loss.backward_into(&input, target(), &saved, upstream(), wanted, &stream);
        let by_target = probabilities.then_some(&by_target);
        check("backward", queued, None, [Some(&by_input), by_target]);
    }

    let (mut value, mut by_input, mut by_target) = (new_loss(), new_gradient(), new_gradient());
    let mut wanted = grads(&mut by_input, &mut by_target, probabilities);
    if case.upstream.is_some() {
        wanted = wanted.scaled_by(upstream());
    }
    let queued =
        loss.forward_backward_into(&input, target(), &mut value, wanted, &mut workspace, &stream);
    let by_target = probabilities.then_some(&by_target);
    check("both", queued, Some(&value), [Some(&by_input), by_target]);

    if case.upstream.is_none() && case.expected.error.is_none() {
        let (mut value, mut over) =
            (new_loss(), Tensor::from_slice(gpu(), case.shape, &values).unwrap());
        let queued = loss.forward_backward_in_place(
            &mut over,
            target(),
            &mut value,
            &mut workspace,
            &stream,
        );
        check("both in place", queued, Some(&value), [Some(&over), None]);
    }
    failures
}

/// The calls of a loss that compares element by element.
trait Elementwise<T: Float, R: Reduction> {
    fn forward(
        &self,
        tensors: [&Tensor<T>; 2],
        loss: &mut Tensor<R::Value<T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<(), Error>;

    fn backward(
        &self,
        tensors: [&Tensor<T>; 2],
        upstream: View<'_, R::Value<T>>,
        grads: Grads<'_, T, R::Value<T>>,
        stream: &Stream,
    ) -> Result<(), Error>;

    fn both(
        &self,
        tensors: [&Tensor<T>; 2],
        loss: &mut Tensor<R::Value<T>>,
        grads: Grads<'_, T, R::Value<T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<(), Error>;
}

macro_rules! elementwise {
    ($($loss:ty: $reduction:ident;)+) => {$(
        impl<T: Float, R: $reduction> Elementwise<T, R> for $loss {
            fn forward(
                &self,
                [input, target]: [&Tensor<T>; 2],
                loss: &mut Tensor<R::Value<T>>,
                workspace: &mut Workspace,
                stream: &Stream,
            ) -> Result<(), Error> {
                self.forward_into(input, target, loss, workspace, stream)
            }

            fn backward(
                &self,
                [input, target]: [&Tensor<T>; 2],
                upstream: View<'_, R::Value<T>>,
                grads: Grads<'_, T, R::Value<T>>,
                stream: &Stream,
            ) -> Result<(), Error> {
                self.backward_into(input, target, upstream, grads, stream)
            }

            fn both(
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
    Mse<R>: ElementwiseReduction;
    Huber<R>: ElementwiseReduction;
    SmoothL1<R>: ElementwiseReduction;
    BceWithLogits<'_, T, R>: ElementwiseReduction;
    KlDiv<R>: DivergenceReduction;
}

/// Runs one case through the three calls.
fn replay_elementwise<T, R, L>(case: &Case, loss: L, reduction: R) -> Vec<String>
where
    T: Number,
    R: Reduction,
    R::Value<T>: Number,
    L: Elementwise<T, R>,
{
    let input = Tensor::from_slice(gpu(), case.shape, &case.exact(&case.input)).unwrap();
    let target = Tensor::from_slice(gpu(), case.shape, &case.exact(&case.target)).unwrap();
    let tensors = [&input, &target];
    let of_loss = reduction.shape(input.shape());
    // An upstream gradient for each value of the loss, or one for all.
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
        outcome.record(&case.name, call);
        if let Err(difference) = case.check(&outcome, None) {
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

/// The result of a call and the contents of its result memory; `None` for what it was not given.
struct Outcome<T, V> {
    queued: Result<(), Error>,
    loss: Option<Vec<V>>,
    grad_input: Option<Vec<T>>,
    grad_target: Option<Vec<T>>,
}

impl<T: Number, V: Number> Outcome<T, V> {
    /// Writes a call that was accepted to the file of results, if there is one: a JSON object on a
    /// line.
    fn record(&self, case: &str, call: &str) {
        static FILE: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
            let path = std::env::var_os("FUSED_LOSS_RESULTS")?;
            let file = File::create(&path);
            let file = file.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            Some(Mutex::new(file))
        });
        let (Some(file), Ok(())) = (&*FILE, &self.queued) else { return };
        let line = json!({
            "name": case,
            "call": call,
            "loss": self.loss.as_deref().map(plain),
            "grad_input": self.grad_input.as_deref().map(plain),
            "grad_target": self.grad_target.as_deref().map(plain),
        });
        // One write per line, because the tests of several losses share the file.
        file.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Numbers as in the data: exact, and as strings where they are not finite.
fn plain<N: Number>(values: &[N]) -> Value {
    let plain = |value: &N| match value.wide() {
        value if value.is_nan() => json!("nan"),
        f64::INFINITY => json!("inf"),
        f64::NEG_INFINITY => json!("-inf"),
        value => json!(value),
    };
    values.iter().map(plain).collect()
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
    /// One per value of the loss, or one for all.
    upstream: Option<Vec<f64>>,
    expected: Expected,
}

/// The expected result of a call.
struct Expected {
    error: Option<String>,
    /// The row and the target that a `target out of range` error names.
    fault: Option<(usize, i64)>,
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
                fault: expect["row"]
                    .as_u64()
                    .map(|row| (row as usize, expect["target"].as_i64().unwrap())),
                loss: numbers(&expect["loss"]),
                grad_input: numbers(&expect["grad_input"]),
                grad_target: numbers(&expect["grad_target"]),
            },
        }
    })
}

/// A list of numbers, or one number as a list; `None` for null.
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
    /// Numbers that fit their type exactly.
    fn exact<N: Number>(&self, values: &[f64]) -> Vec<N> {
        let exact = |&value: &f64| {
            let rounded = N::round(value);
            let same = rounded.wide() == value || value.is_nan();
            assert!(same, "{}: {value} is not a {}", self.name, N::DTYPE.name());
            rounded
        };
        values.iter().map(exact).collect()
    }

    /// A weight that is broadcast to the input's shape.
    fn broadcast<T: Number>(&self, option: &str) -> Option<Tensor<T>> {
        let weight = self.options.get(option)?;
        let sides = numbers(&weight["shape"]).unwrap();
        let shape: Vec<usize> = sides.into_iter().map(|side| side as usize).collect();
        let values = numbers(&weight["values"]).unwrap();
        Some(Tensor::from_slice(gpu(), shape, &self.exact(&values)).unwrap())
    }

    /// Compares a call with its expected result and describes the difference. `fault` is the answer
    /// of a loss that was asked whether a target was out of range.
    fn check<T: Number, V: Number>(
        &self,
        outcome: &Outcome<T, V>,
        fault: Option<Option<Error>>,
    ) -> Result<(), String> {
        let expected = &self.expected;
        match (&expected.error, &expected.fault) {
            (Some(error), None) => return check_refusal(error, outcome),
            (_, expected) => self.check_fault(*expected, fault)?,
        }
        if let Err(error) = &outcome.queued {
            return Err(format!("refused: {error}"));
        }
        // An unreduced loss in 16 bits is rounded as gradients are. Where terms cancel, the allowed
        // error is relative to their magnitudes.
        let magnitudes = self.magnitudes(expected.loss.as_ref().map_or(0, Vec::len));
        let allowed = |at: usize, expected: f64| match size_of::<V>() {
            2 => V::allowed(expected, expected.abs(), magnitudes[at]),
            _ => V::LOSS * expected.abs().max(magnitudes[at]) + self.uncertain(),
        };
        compare("loss", &outcome.loss, &expected.loss, allowed)?;
        for (what, got, expected) in [
            ("grad_input", &outcome.grad_input, &expected.grad_input),
            ("grad_target", &outcome.grad_target, &expected.grad_target),
        ] {
            if self.expected.fault.is_some() && expected.is_none() {
                // Unspecified if a mean has no value.
                continue;
            }
            let allowed = |at, value| {
                let allowed = T::allowed(value, self.largest_of_row(expected, at), self.scale(at));
                allowed + self.uncertain() * self.scale(at).abs()
            };
            compare(what, got, expected, allowed)?;
        }
        Ok(())
    }

    /// Compares a loss's report of a target out of range with the expected one.
    fn check_fault(
        &self,
        expected: Option<(usize, i64)>,
        said: Option<Option<Error>>,
    ) -> Result<(), String> {
        match (expected, said) {
            (_, None) | (None, Some(None)) => Ok(()),
            (Some(expected), Some(Some(Error::TargetOutOfRange { row, target, classes })))
                if (row, target) == expected && classes == self.shape[1] =>
            {
                Ok(())
            }
            (expected, Some(said)) => {
                let said = said.map_or("nothing".to_owned(), |error| error.to_string());
                Err(format!("expected to hear of {expected:?}, heard {said}"))
            }
        }
    }

    /// The error of the expected values themselves: probabilities near 1, rounded to float64.
    fn uncertain(&self) -> f64 {
        if self.loss == "cross_entropy" { f64::EPSILON } else { 0.0 }
    }

    /// The sum of the magnitudes of each loss's terms, divided as the loss is; 0 for losses whose
    /// terms cannot cancel.
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

    /// The factor of the gradient of element `at`: its upstream gradient over the divisor of its
    /// loss.
    fn scale(&self, at: usize) -> f64 {
        let [rows, cols] = self.shape;
        let upstream = self.upstream.as_deref().unwrap_or(&[1.0]);
        upstream[at * upstream.len() / (rows * cols)] / self.divisor()
    }

    /// The divisor of a sum of terms.
    fn divisor(&self) -> f64 {
        let [rows, cols] = self.shape;
        if self.loss == "cross_entropy" && self.reduction == "mean" {
            let ignored = self.options["ignore_index"].as_f64().unwrap_or(-100.0);
            let weights = numbers(&self.options["weight"]).unwrap_or(vec![1.0; cols]);
            return match self.options["target_type"].as_str().unwrap() {
                "prob" => rows as f64,
                _ => {
                    let counts = self.target.iter().filter(|&&class| class != ignored);
                    counts.filter_map(|&class| weights.get(class as usize)).sum()
                }
            };
        }
        let divisor = match self.reduction.as_str() {
            "mean" => rows * cols,
            "row_mean" => cols,
            "batchmean" => rows,
            _ => 1,
        };
        divisor as f64
    }
}

/// Compares the result `what` with its expected value, rounded to its type. `allowed` returns the
/// allowed error from the index and the expected value.
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

/// A call that must fail: the error names the option, and nothing has been written.
fn check_refusal<T: Number, V: Number>(error: &str, outcome: &Outcome<T, V>) -> Result<(), String> {
    let option = match error {
        "no classes" => "input",
        "label_smoothing out of range" => "label_smoothing",
        "ignore_index with probability targets" => "ignore_index",
        "delta not positive" => "delta",
        "beta negative" => "beta",
        other => panic!("which argument is at fault for '{other}'?"),
    };
    let Err(refusal) = &outcome.queued else { return Err(format!("accepted: {error}")) };
    let names_it = match refusal {
        Error::InvalidOption { option: named, .. } => *named == option,
        Error::InvalidShape { argument: named, .. } => *named == option,
        _ => false,
    };
    if !names_it || !refusal.to_string().starts_with(&format!("{option}: expected ")) {
        return Err(format!("expected an error of {option}, got '{refusal}'"));
    }
    let losses = outcome.loss.iter().flatten().map(|value| value.wide());
    let gradients = outcome.grad_input.iter().chain(&outcome.grad_target).flatten();
    let mut all = losses.chain(gradients.map(|value| value.wide()));
    if all.all(|value| value == UNWRITTEN) { Ok(()) } else { Err("written after all".to_owned()) }
}
