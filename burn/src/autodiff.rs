//! The losses on burn's tape.

use crate::backend::{Call, FusedLossBackend, Operands, Target, To};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::BackendTypes;
use burn::tensor::ops::FloatTensor;

impl<B: FusedLossBackend, C: CheckpointStrategy> FusedLossBackend for Autodiff<B, C> {
    const HAS_KERNELS: bool = B::HAS_KERNELS;

    fn fused_loss(call: Call, operands: Operands<Self>) -> FloatTensor<Self> {
        let Operands { input, target, weight } = operands;
        let weight = weight.map(|weight| weight.primitive);
        match target {
            // A class has no gradient, whatever computed it.
            Target::Classes(classes) => on_tape::<B, C, 1>(call, [input], |[input]| Operands {
                input,
                target: Target::Classes(classes),
                weight,
            }),
            Target::Values(target) => {
                on_tape::<B, C, 2>(call, [input, target], |[input, target]| Operands {
                    input,
                    target: Target::Values(target),
                    weight,
                })
            }
        }
    }

    fn fused_loss_backward(
        call: Call,
        _: Operands<Self>,
        _: Option<FloatTensor<Self>>,
        _: FloatTensor<Self>,
        _: [bool; 2],
    ) -> [Option<FloatTensor<Self>>; 2] {
        panic!("a fused loss has no second derivative, as of Autodiff<Autodiff<B>>: {call:?}")
    }
}

type OfAutodiff<B, C> = <Autodiff<B, C> as BackendTypes>::FloatTensorPrimitive;

/// The loss of `parents` and of what `operands` adds to them.
fn on_tape<B: FusedLossBackend, C: CheckpointStrategy, const N: usize>(
    call: Call,
    parents: [OfAutodiff<B, C>; N],
    operands: impl FnOnce([FloatTensor<B>; N]) -> Operands<B>,
) -> OfAutodiff<B, C> {
    let nodes = parents.each_ref().map(|parent| parent.node.clone());
    let operands = operands(parents.map(|parent| parent.primitive));
    // A matrix of logits is saved, because recomputing it costs more than the memory.
    match OnTape.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(step) => {
            let loss = B::fused_loss(call, operands.clone());
            let kept = (call.reduction != To::Unreduced).then(|| loss.clone());
            step.finish((call, operands, kept), loss)
        }
        OpsKind::UnTracked(step) => step.finish(B::fused_loss(call, operands)),
    }
}

#[derive(Debug)]
struct OnTape;

impl<B: FusedLossBackend, const N: usize> Backward<B, N> for OnTape {
    type State = (Call, Operands<B>, Option<FloatTensor<B>>);

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let mut wanted = [false; 2];
        for (wanted, parent) in wanted.iter_mut().zip(&ops.parents) {
            *wanted = parent.is_some();
        }
        // Moved, not cloned: if nothing else uses the input, the gradient may take its memory.
        let (call, operands, loss) = ops.state;
        let computed = B::fused_loss_backward(call, operands, loss, upstream, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(computed) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
