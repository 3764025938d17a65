//! Calls of the library, for the memory of any backend.

use crate::backend::{Call, Loss, Operands, Target, To};
use crate::memory::{Input, Memory, Output, Place, Queue};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};
use fused_loss::{BatchMean, Mean, Sum, Unreduced};
use fused_loss::{BceWithLogits, CrossEntropy, Huber, KlDiv, Mse, SmoothL1};
use fused_loss::{Element, Float, Grads, Result, Targets, View, ViewMut};

/// The loss.
pub(crate) fn forward<B: Memory>(call: Call, operands: Operands<B>) -> FloatTensor<B> {
    let (shape, dtype) = (operands.input.shape(), operands.input.dtype());
    let loss = Output {
        shape: call.loss_shape(&shape),
        dtype: call.computed_dtype(dtype),
        over_input: false,
    };
    let (inputs, has_weight) = inputs(operands, None);
    let mut results = B::queue(inputs, vec![loss], move |queue, inputs, outputs| {
        let operands = Places::new(call, inputs, has_weight);
        for_float!(dtype, T => forward_of::<T>(call, queue, operands, outputs[0]))
    });
    in_dtype::<B>(results.remove(0), call.loss_dtype(dtype))
}

/// The number in this type.
///
/// Rounding the loss and widening its gradient are part of the call. That costs the CPU less than
/// separate casts, for which burn-fusion would plan and compile a kernel.
fn in_dtype<B: Memory>(number: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if number.dtype() == dtype { number } else { B::float_cast(number, dtype.into()) }
}

/// The requested gradients of input and target.
pub(crate) fn backward<B: Memory>(
    call: Call,
    operands: Operands<B>,
    upstream: FloatTensor<B>,
    wanted: [bool; 2],
) -> [Option<FloatTensor<B>>; 2] {
    let (shape, dtype) = (operands.input.shape(), operands.input.dtype());
    let gradient = |over_input| Output { shape: shape.clone(), dtype, over_input };
    // The input may be overwritten only if the target gets no gradient, because that is computed
    // from the input.
    let alone = wanted == [true, false];
    let mut outputs: Vec<Output> =
        wanted.iter().filter(|&&wanted| wanted).map(|_| gradient(alone)).collect();
    // The pass that computes the gradients for classes also computes the loss again, which is
    // dropped.
    if let Loss::CrossEntropy { .. } = call.loss {
        let (shape, dtype) = (call.loss_shape(&shape), call.computed_dtype(dtype));
        outputs.push(Output { shape, dtype, over_input: false });
    }
    let upstream = in_dtype::<B>(upstream, call.computed_dtype(dtype));
    let (inputs, has_weight) = inputs(operands, Some(upstream));
    let results = B::queue(inputs, outputs, move |queue, inputs, outputs| {
        let operands = Places::new(call, inputs, has_weight);
        for_float!(dtype, T => backward_of::<T>(call, queue, operands, wanted, outputs))
    });
    let mut results = results.into_iter();
    wanted.map(|wanted| if wanted { results.next() } else { None })
}

/// The operands in the order in which [`Places`] takes them, and whether a weight is among them.
fn inputs<B: Memory>(
    operands: Operands<B>,
    upstream: Option<FloatTensor<B>>,
) -> (Vec<Input<B>>, bool) {
    let Operands { input, target, weight } = operands;
    let has_weight = weight.is_some();
    let target = match target {
        Target::Classes(classes) => Input::Int(classes),
        Target::Values(target) => Input::Float(target),
    };
    let others = [weight, upstream].into_iter().flatten().map(Input::Float);
    ([Input::Float(input), target].into_iter().chain(others).collect(), has_weight)
}

/// Where the operands of a call are.
#[derive(Clone, Copy)]
struct Places {
    input: Place,
    target: Place,
    weight: Option<Place>,
    upstream: Option<Place>,
}

impl Places {
    fn new(call: Call, inputs: &[Place], has_weight: bool) -> Self {
        let (weight, upstream) = if has_weight { (2, 3) } else { (usize::MAX, 2) };
        Places {
            input: inputs[0],
            target: inputs[1],
            weight: inputs.get(weight).copied(),
            upstream: inputs.get(upstream).map(|upstream| upstream.of_loss(call.reduction)),
        }
    }
}

/// `$body` with `$T` the number type of that name.
macro_rules! for_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::F16 => {
                type $T = fused_loss::half::f16;
                $body
            }
            DType::BF16 => {
                type $T = fused_loss::half::bf16;
                $body
            }
            other => unreachable!("no kernel takes tensors of {other:?}"),
        }
    };
}
use for_float;

/// `$body` with `$with` the loss in one of these reductions.
macro_rules! reduced {
    ($reduction:expr, $loss:expr, [$($name:ident)+], $with:ident => $body:expr) => {{
        let loss = $loss;
        match $reduction {
            $(To::$name => {
                let $with = loss.reduction($name);
                $body
            })+
            #[allow(unreachable_patterns, reason = "some losses have all reductions")]
            other => unreachable!("no module asks for {other:?} of this loss"),
        }
    }};
}

/// `$body` with `$with` the elementwise loss of the library's that `$call` names.
macro_rules! elementwise {
    ($call:expr, $weight:expr, $with:ident => $body:expr) => {
        match $call.loss {
            Loss::Mse => {
                reduced!($call.reduction, Mse::new(), [Unreduced Sum Mean], $with => $body)
            }
            Loss::Huber { delta } => {
                reduced!($call.reduction, Huber::new(delta), [Unreduced Sum Mean], $with => $body)
            }
            Loss::SmoothL1 { beta } => {
                let loss = SmoothL1::new(beta);
                reduced!($call.reduction, loss, [Unreduced Sum Mean], $with => $body)
            }
            Loss::BceWithLogits => {
                let loss = match $weight {
                    Some(weight) => BceWithLogits::new().weight(weight),
                    None => BceWithLogits::new(),
                };
                reduced!($call.reduction, loss, [Unreduced Sum Mean], $with => $body)
            }
            Loss::KlDiv { log_target } => {
                let loss = KlDiv::new().log_target(log_target);
                reduced!($call.reduction, loss, [Unreduced Sum Mean BatchMean], $with => $body)
            }
            Loss::CrossEntropy { .. } => unreachable!("cross-entropy is not elementwise"),
        }
    };
}

fn forward_of<T: Float>(
    call: Call,
    queue: &mut Queue<'_>,
    operands: Places,
    loss: Place,
) -> Result<()> {
    let (gpu, stream) = (queue.gpu, queue.stream);
    let (x, to) = (operands.input.view::<T>(gpu)?, loss.of_loss(call.reduction));
    let weight = operands.weight.map(|weight| weight.view::<T>(gpu)).transpose()?;
    if let Loss::CrossEntropy { ignore_index, label_smoothing } = call.loss {
        let t = targets::<T>(operands.target, queue)?;
        let loss = cross_entropy(weight, ignore_index, label_smoothing);
        return reduced!(call.reduction, loss, [Sum Mean], loss => {
            loss.forward_into(x, t, to.view_mut::<T::Loss>(gpu)?, queue.workspace, stream)
        });
    }
    let t = operands.target.view::<T>(gpu)?;
    elementwise!(call, weight, loss => {
        loss.forward_into(x, t, to.view_mut(gpu)?, queue.workspace, stream)
    })
}

fn backward_of<T: Float>(
    call: Call,
    queue: &mut Queue<'_>,
    operands: Places,
    wanted: [bool; 2],
    outputs: &[Place],
) -> Result<()> {
    let (gpu, stream) = (queue.gpu, queue.stream);
    let upstream = operands.upstream.expect("a backward pass has an upstream gradient");
    let weight = operands.weight.map(|weight| weight.view::<T>(gpu)).transpose()?;
    let in_place = wanted[0] && outputs[0].address == operands.input.address;
    if let Loss::CrossEntropy { ignore_index, label_smoothing } = call.loss {
        let t = targets::<T>(operands.target, queue)?;
        let of_loss = outputs[outputs.len() - 1].of_loss(call.reduction);
        let upstream: View<'_, T::Loss> = upstream.view(gpu)?;
        let loss = cross_entropy(weight, ignore_index, label_smoothing);
        return reduced!(call.reduction, loss, [Sum Mean], loss => {
            let (to, workspace) = (of_loss.view_mut(gpu)?, &mut *queue.workspace);
            if in_place {
                let x: ViewMut<'_, T> = operands.input.view_mut(gpu)?;
                loss.forward_backward_in_place_scaled(x, t, to, upstream, workspace, stream)
            } else {
                let x: View<'_, T> = operands.input.view(gpu)?;
                let grads = grads(wanted, outputs, queue.gpu)?.scaled_by(upstream);
                loss.forward_backward_into(x, t, to, grads, workspace, stream)
            }
        });
    }
    let t = operands.target.view::<T>(gpu)?;
    elementwise!(call, weight, loss => {
        let upstream = upstream.view(gpu)?;
        if in_place {
            let x: ViewMut<'_, T> = operands.input.view_mut(gpu)?;
            loss.backward_in_place(x, t, upstream, stream)
        } else {
            let x: View<'_, T> = operands.input.view(gpu)?;
            loss.backward_into(x, t, upstream, grads(wanted, outputs, gpu)?, stream)
        }
    })
}

/// The library's cross-entropy.
fn cross_entropy<T: Float>(
    weight: Option<View<'_, T>>,
    ignore_index: i64,
    label_smoothing: f64,
) -> CrossEntropy<'_, T> {
    let loss = CrossEntropy::new().ignore_index(ignore_index).label_smoothing(label_smoothing);
    match weight {
        Some(weight) => loss.weight(weight),
        None => loss,
    }
}

/// Classes as a call takes them, of logits of type `T`.
fn targets<'a, T: Float>(target: Place, queue: &Queue<'_>) -> Result<Targets<'a, T>> {
    fn of<'a, T: Float, C: Element>(target: Place, queue: &Queue<'_>) -> Result<Targets<'a, T>>
    where
        Targets<'a, T>: From<View<'a, C>>,
    {
        Ok(target.view::<C>(queue.gpu)?.into())
    }
    match target.dtype {
        DType::I64 => of::<T, i64>(target, queue),
        DType::I32 => of::<T, i32>(target, queue),
        DType::U32 => of::<T, u32>(target, queue),
        DType::U8 => of::<T, u8>(target, queue),
        other => unreachable!("no kernel takes classes of {other:?}"),
    }
}

/// The gradients that a call should write, which are the first outputs.
fn grads<'a, T: Float, V: Float>(
    wanted: [bool; 2],
    outputs: &[Place],
    gpu: &fused_loss::Gpu,
) -> Result<Grads<'a, T, V>> {
    match wanted {
        [true, true] => Ok(Grads::both(outputs[0].view_mut(gpu)?, outputs[1].view_mut(gpu)?)),
        [true, false] => Ok(Grads::input(outputs[0].view_mut(gpu)?)),
        [false, true] => Ok(Grads::target(outputs[0].view_mut(gpu)?)),
        [false, false] => unreachable!("burn's tape asks for a gradient"),
    }
}
