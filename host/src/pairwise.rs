//! What losses that compare input and target element by element share: their checks, their plan and
//! their three launches.

use crate::error::Result;
use crate::launch::{Argument, check_memory, launch};
use crate::plan::elementwise_grid;
use crate::reduction::Reduction;
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{Element, Memory, Shape, View, ViewMut, check_shape};
use kernels_gpu::Family;
use kernels_gpu::abi::PairwiseArgs;

/// The kernels of one loss.
pub(crate) struct Kernels {
    pub(crate) forward: &'static Family<PairwiseArgs>,
    pub(crate) backward: &'static Family<PairwiseArgs>,
    pub(crate) forward_backward: &'static Family<PairwiseArgs>,
}

/// A loss's kernels with its reduction.
pub(crate) struct Pairwise<R> {
    pub(crate) kernels: &'static Kernels,
    pub(crate) reduction: R,
}

/// Input and target of a call, checked against each other.
struct Pair<'a> {
    input: Memory<'a>,
    target: Memory<'a>,
}

impl<'a> Pair<'a> {
    fn new<T: Element>(input: View<'a, T>, target: View<'a, T>) -> Result<Self> {
        let Pair { input, target } = Pair { input: input.memory, target: target.memory };
        input.check::<T>("input")?;
        check_shape("target", input.shape, target.shape)?;
        target.check::<T>("target")?;
        Ok(Pair { input, target })
    }

    fn shape(&self) -> Shape {
        self.input.shape
    }
}

impl<R: Reduction> Pairwise<R> {
    pub(crate) fn forward<T: Element>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        stream: &Stream,
    ) -> Result<Loss<R::Value<T>>> {
        let pair = Pair::new(input, target)?;
        check_memory(stream, &[("input", pair.input), ("target", pair.target)], &[])?;
        let mut loss = self.new_loss::<T>(&pair, stream)?;
        self.queue(&pair, Some((&mut loss).into()), None, None, stream.workspace(), stream)?;
        Ok(loss)
    }

    pub(crate) fn forward_into<T: Element>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        loss: ViewMut<'_, R::Value<T>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let pair = Pair::new(input, target)?;
        self.queue(&pair, Some(loss), None, None, workspace, stream)
    }

    pub(crate) fn backward<T: Element>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        upstream: View<'_, R::Value<T>>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let pair = Pair::new(input, target)?;
        let reads = [("input", pair.input), ("target", pair.target), ("upstream", upstream.memory)];
        check_memory(stream, &reads, &[])?;
        let mut grad = Tensor::uninitialised(stream.gpu(), pair.shape())?;
        let (upstream, grad_input) = (Some(upstream), Some((&mut grad).into()));
        self.queue(&pair, None, upstream, grad_input, stream.workspace(), stream)?;
        Ok(grad)
    }

    pub(crate) fn backward_into<T: Element>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        upstream: View<'_, R::Value<T>>,
        grad_input: ViewMut<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let pair = Pair::new(input, target)?;
        self.queue(&pair, None, Some(upstream), Some(grad_input), stream.workspace(), stream)
    }

    pub(crate) fn forward_backward<T: Element>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        stream: &Stream,
    ) -> Result<(Loss<R::Value<T>>, Tensor<T>)> {
        let pair = Pair::new(input, target)?;
        check_memory(stream, &[("input", pair.input), ("target", pair.target)], &[])?;
        let mut loss = self.new_loss::<T>(&pair, stream)?;
        let mut grad = Tensor::uninitialised(stream.gpu(), pair.shape())?;
        let (to_loss, grad_input) = (Some((&mut loss).into()), Some((&mut grad).into()));
        self.queue(&pair, to_loss, None, grad_input, stream.workspace(), stream)?;
        Ok((loss, grad))
    }

    pub(crate) fn forward_backward_into<T: Element>(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        loss: ViewMut<'_, R::Value<T>>,
        grad_input: ViewMut<'_, T>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let pair = Pair::new(input, target)?;
        self.queue(&pair, Some(loss), None, Some(grad_input), workspace, stream)
    }

    fn new_loss<T: Element>(&self, pair: &Pair<'_>, stream: &Stream) -> Result<Loss<R::Value<T>>> {
        Loss::uninitialised(stream.gpu(), self.reduction.shape(pair.shape()))
    }

    /// Checks what is left to check and queues the one launch: forward where a loss is to be written,
    /// backward where a gradient is.
    fn queue<T: Element>(
        &self,
        pair: &Pair<'_>,
        loss: Option<ViewMut<'_, R::Value<T>>>,
        upstream: Option<View<'_, R::Value<T>>>,
        grad_input: Option<ViewMut<'_, T>>,
        workspace: &Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let shape = pair.shape();
        let of_loss = self.reduction.shape(shape);
        let mut reads = vec![("input", pair.input), ("target", pair.target)];
        let mut writes: Vec<Argument<'_>> = Vec::new();
        let mut args = PairwiseArgs {
            input: pair.input.address,
            target: pair.target.address,
            len: shape.len() as u64,
            divisor: self.reduction.divisor(shape),
            loss: 0,
            workspace: 0,
            upstream: 0,
            grad_input: 0,
            grad_target: 0,
        };
        if let Some(ViewMut { memory, .. }) = loss {
            check_shape("loss", of_loss, memory.shape)?;
            memory.check::<R::Value<T>>("loss")?;
            args.loss = memory.address;
            writes.push(("loss", memory));
            args.workspace = workspace.memory().address;
            writes.push(("workspace", workspace.memory()));
        }
        if let Some(View { memory, .. }) = upstream {
            check_shape("upstream", of_loss, memory.shape)?;
            memory.check::<R::Value<T>>("upstream")?;
            args.upstream = memory.address;
            reads.push(("upstream", memory));
        }
        let with_gradient = grad_input.is_some();
        if let Some(ViewMut { memory, .. }) = grad_input {
            check_shape("grad_input", shape, memory.shape)?;
            memory.check::<T>("grad_input")?;
            args.grad_input = memory.address;
            writes.push(("grad_input", memory));
        }
        check_memory(stream, &reads, &writes)?;

        let family = match (args.loss != 0, with_gradient) {
            (true, true) => self.kernels.forward_backward,
            (true, false) => self.kernels.forward,
            (false, _) => self.kernels.backward,
        };
        let grid = elementwise_grid(shape.len(), size_of::<T>());
        // SAFETY: every address was checked to be of its tensor's shape, not null and aligned; what is
        // written overlaps nothing; the plan has no more blocks than the workspace has room for; that
        // the memory is there until the work is done is the views' condition, or the tensors' doing.
        unsafe { launch(stream, family, T::DTYPE, grid, &args, &reads, &writes) }
    }
}
