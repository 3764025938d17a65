//! The losses in burn's streams of operations that are fused.

use crate::backend::{Call, FusedLossBackend, Operands, Target};
use burn::tensor::ops::FloatTensor;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionHandle, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use std::marker::PhantomData;

impl<B: FusionBackend + FusedLossBackend> FusedLossBackend for Fusion<B> {
    const HAS_KERNELS: bool = B::HAS_KERNELS;

    fn fused_loss(call: Call, operands: Operands<Self>) -> FloatTensor<Self> {
        let input = &operands.input;
        let (shape, dtype) = (call.loss_shape(&input.shape), call.loss_dtype(input.dtype));
        let loss = TensorIr::uninit(input.client.create_empty_handle(), shape, dtype);
        let mut results = register::<B>("fused_loss", call, operands, None, vec![loss]);
        results.remove(0)
    }

    fn fused_loss_backward(
        call: Call,
        operands: Operands<Self>,
        loss: Option<FloatTensor<Self>>,
        upstream: FloatTensor<Self>,
        wanted: [bool; 2],
    ) -> [Option<FloatTensor<Self>>; 2] {
        let input = &operands.input;
        let gradient = || {
            let handle = input.client.create_empty_handle();
            TensorIr::uninit(handle, input.shape.clone(), input.dtype)
        };
        let gradients = wanted.iter().filter(|&&wanted| wanted).map(|_| gradient()).collect();
        let backward = Some(Gradient { upstream, loss, wanted });
        let results = register::<B>("fused_loss_backward", call, operands, backward, gradients);
        let mut results = results.into_iter();
        wanted.map(|wanted| if wanted { results.next() } else { None })
    }
}

type Tensor<B> = FusionTensor<<B as FusionBackend>::FusionRuntime>;

/// What a backward pass has in addition to the operands.
struct Gradient<B: FusionBackend> {
    upstream: Tensor<B>,
    /// No kernel reads the loss. It is an input so that burn-fusion ends two groups of operations
    /// here: those computed from the loss, such as `loss * 0.5`, and those that computed its
    /// gradient. It then executes both by the plan of the previous step. A group that stays open
    /// fits no plan, and burn-fusion would search for one in each step, which takes longer than the
    /// kernels.
    loss: Option<Tensor<B>>,
    wanted: [bool; 2],
}

/// Registers a call after the operations registered so far.
fn register<B: FusionBackend + FusedLossBackend>(
    name: &'static str,
    call: Call,
    operands: Operands<Fusion<B>>,
    backward: Option<Gradient<B>>,
    results: Vec<TensorIr>,
) -> Vec<Tensor<B>> {
    let Operands { input, target, weight } = operands;
    let client = input.client.clone();
    let (target, of_classes) = match target {
        Target::Classes(target) => (target, true),
        Target::Values(target) => (target, false),
    };
    let has_weight = weight.is_some();
    let (upstream, loss, wanted) = match backward {
        Some(Gradient { upstream, loss, wanted }) => (Some(upstream), loss, Some(wanted)),
        None => (None, None, None),
    };
    let tensors: Vec<_> =
        [Some(input), Some(target), weight, upstream, loss].into_iter().flatten().collect();
    let streams = OperationStreams::with_inputs(&tensors);
    let inputs: Vec<TensorIr> = tensors.into_iter().map(FusionTensor::into_ir).collect();
    let description = CustomOpIr::new(name, &inputs, &results);
    let operation = Registered::<B> {
        description: description.clone(),
        call,
        of_classes,
        has_weight,
        wanted,
        backend: PhantomData,
    };
    client.register(streams, OperationIr::Custom(description), operation)
}

/// A call that burn executes in its turn.
#[derive(Clone, Debug)]
struct Registered<B> {
    description: CustomOpIr,
    call: Call,
    of_classes: bool,
    has_weight: bool,
    /// The gradients that a backward pass computes.
    wanted: Option<[bool; 2]>,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + FusedLossBackend> Operation<B::FusionRuntime> for Registered<B> {
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<B::FusionRuntime>>) {
        let mut inputs = self.description.inputs.iter();
        let mut next = || inputs.next().expect("as many inputs as were registered");
        let input = handles.get_float_tensor::<B>(next());
        let target = match self.of_classes {
            true => Target::Classes(handles.get_int_tensor::<B>(next())),
            false => Target::Values(handles.get_float_tensor::<B>(next())),
        };
        let weight = self.has_weight.then(|| handles.get_float_tensor::<B>(next()));
        let operands = Operands { input, target, weight };
        let results = match self.wanted {
            None => [Some(B::fused_loss(self.call, operands)), None],
            Some(wanted) => {
                let upstream = handles.get_float_tensor::<B>(next());
                let loss = inputs.next().map(|loss| handles.get_float_tensor::<B>(loss));
                B::fused_loss_backward(self.call, operands, loss, upstream, wanted)
            }
        };
        for (output, result) in self.description.outputs.iter().zip(results.into_iter().flatten()) {
            handles.register_float_tensor::<B>(&output.id, result);
        }
    }
}
