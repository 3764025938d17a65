//! The losses that compare an input and a target of one shape element by element.

use crate::memory::{Input, Operand, Output, Target, dtype_of, read_option, view_option};
use crate::queue::Place;
use crate::{TensorLoss, for_float, for_rows, storage_of};
use candle_core::{CpuStorage, CudaStorage, CustomOp2, Layout, Result, Shape, Storage, Tensor};
use fused_loss::reduction::{DivergenceReduction, ElementwiseReduction, Reduction};
use fused_loss::{Float, Grads, Huber, KlDiv, Mse, SmoothL1, Stream, View, ViewMut, Workspace};
use std::ops::Deref;

/// One of the library's elementwise losses.
pub(crate) trait Pairwise: Send + Sync + 'static {
    const NAME: &'static str;
    type Reduction: Reduction;

    fn reduction(&self) -> Self::Reduction;

    /// Its options that are tensors, as [`constant`](crate::constant) returns them.
    fn weights(&self) -> [Option<&Tensor>; 2] {
        [None, None]
    }

    fn forward<T: Float>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        weights: Weights<'_, T>,
        loss: ViewMut<'_, Value<Self, T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> fused_loss::Result<()>;

    fn backward<'a, T: Float>(
        &self,
        input: View<'a, T>,
        target: View<'a, T>,
        weights: Weights<'a, T>,
        upstream: View<'a, Value<Self, T>>,
        grads: Grads<'a, T, Value<Self, T>>,
        stream: &Stream,
    ) -> fused_loss::Result<()>;
}

/// What [`Pairwise::weights`] gives, as a call takes it.
pub(crate) type Weights<'a, T> = [Option<View<'a, T>>; 2];

/// The element type of a loss of tensors of `T`.
type Value<L, T> = <<L as Pairwise>::Reduction as Reduction>::Value<T>;

macro_rules! pairwise {
    ($($loss:ident, $name:literal, $reduction:ident;)+) => {$(
        impl<R: $reduction + Send + Sync + 'static> Pairwise for $loss<R> {
            const NAME: &'static str = $name;
            type Reduction = R;

            fn reduction(&self) -> R {
                self.reduction
            }

            fn forward<T: Float>(
                &self,
                input: View<'_, T>,
                target: View<'_, T>,
                _: Weights<'_, T>,
                loss: ViewMut<'_, R::Value<T>>,
                workspace: &mut Workspace,
                stream: &Stream,
            ) -> fused_loss::Result<()> {
                self.forward_into(input, target, loss, workspace, stream)
            }

            fn backward<'a, T: Float>(
                &self,
                input: View<'a, T>,
                target: View<'a, T>,
                _: Weights<'a, T>,
                upstream: View<'a, R::Value<T>>,
                grads: Grads<'a, T, R::Value<T>>,
                stream: &Stream,
            ) -> fused_loss::Result<()> {
                self.backward_into(input, target, upstream, grads, stream)
            }
        }

        impl<R: $reduction + Send + Sync + 'static> TensorLoss for $loss<R> {
            fn loss(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
                on_tape(*self, input, target)
            }
        }
    )+};
}
pairwise! {
    Mse, "fused mse", ElementwiseReduction;
    Huber, "fused huber", ElementwiseReduction;
    SmoothL1, "fused smooth_l1", ElementwiseReduction;
    KlDiv, "fused kl_div", DivergenceReduction;
}

/// The loss of an input and a target, as a candle operation.
pub(crate) fn on_tape<L: Pairwise>(loss: L, input: &Tensor, target: &Tensor) -> Result<Tensor> {
    for_rows(input)?.apply_op2(&for_rows(target)?, Op(loss))
}

/// A loss on candle's tape.
struct Op<L>(L);

impl<L: Pairwise> Op<L> {
    fn forward(&self, input: Operand<'_>, target: Operand<'_>) -> Result<(Storage, Shape)> {
        check_dtypes(input, target)?;
        for_float!(input.dtype(), "input", T => self.forward_of::<T>(input, target))
    }

    fn forward_of<T: Float>(
        &self,
        input: Operand<'_>,
        target: Operand<'_>,
    ) -> Result<(Storage, Shape)> {
        let place = Place::of(input.memory)?;
        let held = self.0.weights().map(|weight| weight.map(Tensor::storage_and_layout));
        let weights = [read_option(&held[0], &place)?, read_option(&held[1], &place)?];
        let (input, target) = (input.read(&place)?, target.read(&place)?);
        let of_loss = self.0.reduction().shape(input.shape());
        let mut loss = Output::new(&place, dtype_of::<Value<L, T>>(), of_loss.len())?;
        {
            let mut to = loss.write(&place)?;
            let (x, t, to) = (input.view::<T>()?, target.view::<T>()?, to.view(of_loss)?);
            let w = [view_option(&weights[0])?, view_option(&weights[1])?];
            place.queue(|stream, workspace| self.0.forward(x, t, w, to, workspace, stream))?;
        }
        Ok((loss.finish()?, Shape::from(of_loss.dims())))
    }

    /// The requested gradients of input and target.
    fn backward_of<T: Float>(
        &self,
        [input, target, upstream]: [Operand<'_>; 3],
        wanted: [bool; 2],
    ) -> Result<[Option<Tensor>; 2]> {
        let place = Place::of(input.memory)?;
        let dims = input.dims();
        let held = self.0.weights().map(|weight| weight.map(Tensor::storage_and_layout));
        let weights = [read_option(&held[0], &place)?, read_option(&held[1], &place)?];
        let [input, target, upstream] =
            [input.read(&place)?, target.read(&place)?, upstream.read(&place)?];
        let mut gradients = gradients(&place, &input, dtype_of::<T>(), wanted)?;
        {
            let [mut of_input, mut of_target] = writes(&mut gradients, &place)?;
            let grads = grads::<T, _>(&mut of_input, &mut of_target, input.shape())?;
            let (x, t, upstream) = (input.view()?, target.view()?, upstream.view()?);
            let w = [view_option(&weights[0])?, view_option(&weights[1])?];
            place.queue(|stream, _| self.0.backward(x, t, w, upstream, grads, stream))?;
        }
        tensors(gradients, dims)
    }
}

/// The input, target and upstream gradient of a backward pass, from their storages and layouts.
pub(crate) fn operands<'a, S: Deref<Target = Storage>>(
    tensors: &'a [(S, &'a Layout); 3],
) -> Result<[Operand<'a>; 3]> {
    let operand = |which: usize| Operand::new(&tensors[which].0, tensors[which].1);
    Ok([operand(0)?, operand(1)?, operand(2)?])
}

/// Memory for the requested gradients, of the shape of the input.
pub(crate) fn gradients(
    place: &Place,
    input: &Input<'_>,
    dtype: candle_core::DType,
    wanted: [bool; 2],
) -> Result<[Option<Output>; 2]> {
    let new =
        |wanted: bool| wanted.then(|| Output::new(place, dtype, input.shape().len())).transpose();
    Ok([new(wanted[0])?, new(wanted[1])?])
}

pub(crate) fn writes<'a>(
    gradients: &'a mut [Option<Output>; 2],
    place: &'a Place,
) -> Result<[Option<Target<'a>>; 2]> {
    let [of_input, of_target] = gradients;
    let write = |gradient: &'a mut Option<Output>| {
        gradient.as_mut().map(|gradient| gradient.write(place)).transpose()
    };
    Ok([write(of_input)?, write(of_target)?])
}

/// The gradients that a call should write.
pub(crate) fn grads<'a, T: Float, V: Float>(
    of_input: &'a mut Option<Target<'_>>,
    of_target: &'a mut Option<Target<'_>>,
    shape: fused_loss::Shape,
) -> Result<Grads<'a, T, V>> {
    match (of_input, of_target) {
        (Some(input), Some(target)) => Ok(Grads::both(input.view(shape)?, target.view(shape)?)),
        (Some(input), None) => Ok(Grads::input(input.view(shape)?)),
        (None, Some(target)) => Ok(Grads::target(target.view(shape)?)),
        (None, None) => candle_core::bail!("expected a tensor on the tape"),
    }
}

/// The gradients as tensors, which are on no tape.
pub(crate) fn tensors(
    gradients: [Option<Output>; 2],
    dims: &[usize],
) -> Result<[Option<Tensor>; 2]> {
    let tensor = |gradient: Output| -> Result<Tensor> {
        let none = candle_core::op::BackpropOp::none();
        Ok(Tensor::from_storage(gradient.finish()?, dims, none, false))
    };
    let [of_input, of_target] = gradients;
    Ok([of_input.map(tensor).transpose()?, of_target.map(tensor).transpose()?])
}

fn check_dtypes(input: Operand<'_>, target: Operand<'_>) -> Result<()> {
    let (expected, got) = (input.dtype(), target.dtype());
    if expected != got {
        candle_core::bail!(
            "target: expected a tensor of the input's type {expected:?}, got {got:?}"
        )
    }
    Ok(())
}

impl<L: Pairwise> CustomOp2 for Op<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn cpu_fwd(
        &self,
        input: &CpuStorage,
        input_layout: &Layout,
        target: &CpuStorage,
        target_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (input, target) =
            (Operand::cpu(input, input_layout), Operand::cpu(target, target_layout));
        storage_of!(Cpu, self.forward(input, target))
    }

    fn cuda_fwd(
        &self,
        input: &CudaStorage,
        input_layout: &Layout,
        target: &CudaStorage,
        target_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (input, target) =
            (Operand::cuda(input, input_layout), Operand::cuda(target, target_layout));
        storage_of!(Cuda, self.forward(input, target))
    }

    fn bwd(
        &self,
        input: &Tensor,
        target: &Tensor,
        _loss: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let wanted = [input.track_op(), target.track_op()];
        let upstream = upstream.contiguous()?;
        let tensors = [input, target, &upstream].map(|tensor| tensor.storage_and_layout());
        let operands = operands(&tensors)?;
        let [of_input, of_target] = for_float!(
            operands[0].dtype(), "input", T => self.backward_of::<T>(operands, wanted)
        )?;
        Ok((of_input, of_target))
    }
}
