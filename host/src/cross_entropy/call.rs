//! A call: its tensors, and the check of each, which writes it to the arguments of the kernels.

use super::options::CrossEntropy;
use super::queue::launch_rows;
use super::saved::{FAULT_OF_SAVED, Origin, Saved};
use super::targets::Targets;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::grads::Grads;
use crate::launch::Argument;
use crate::memory::Fault;
use crate::memory::Memory;
use crate::plan::Pass;
use crate::reduction::SampleReduction;
use crate::shape::{Shape, check_shape};
use crate::stream::{Stream, Workspace};
use crate::view::{View, ViewMut};
use kernels_gpu::abi::{
    CrossEntropyArgs, LogProbArgs, Matrix, StreamArgs, TileArgs, attempt, reduction,
};
use std::num::NonZeroU32;

/// The tensors of a call.
pub(super) struct Call<'a, T: Float> {
    pub(super) input: Memory<'a>,
    pub(super) target: Targets<'a, T>,
    pub(super) loss: Option<ViewMut<'a, T::Loss>>,
    pub(super) save: Option<&'a mut Saved<T::Loss>>,
    pub(super) saved: Option<&'a Saved<T::Loss>>,
    pub(super) grads: Option<Grads<'a, T, T::Loss>>,
    /// Whether the gradient of the input overwrites it.
    pub(super) in_place: bool,
}

impl<'a, T: Float> Call<'a, T> {
    pub(super) fn new(input: Memory<'a>, target: Targets<'a, T>) -> Self {
        Call { input, target, loss: None, save: None, saved: None, grads: None, in_place: false }
    }

    /// What the call computes.
    fn pass(&self) -> Pass {
        match (&self.loss, &self.grads) {
            (Some(_), Some(_)) => Pass::ForwardBackward,
            (Some(_), None) => Pass::Forward,
            (None, _) => Pass::Backward,
        }
    }
}

/// The arguments of the kernels from the tensors checked so far, and the memory that the kernels
/// read and write.
pub(crate) struct Arguments<'a> {
    pub(crate) args: CrossEntropyArgs,
    pub(crate) reads: Vec<Argument<'a>>,
    pub(crate) writes: Vec<Argument<'a>>,
    /// The faults that belong to the loss, or to log-probabilities and entropies.
    pub(super) faults: Vec<Fault<'a>>,
    /// The shape of the logits.
    shape: Shape,
    /// The shape of the loss, and of its upstream gradient.
    of_loss: Shape,
}

impl<T: Float, R: SampleReduction> CrossEntropy<'_, T, R> {
    /// Checks all of a call and queues it.
    pub(super) fn queue(
        &self,
        call: Call<'_, T>,
        workspace: &Workspace,
        stream: &Stream,
    ) -> Result<()> {
        self.check(call.input, &call.target, stream)?;
        let (pass, scratch) = (call.pass(), workspace.memory());
        let Call { input, target, loss, mut save, saved, grads, in_place } = call;
        let origin = Origin::of_cross_entropy(self, &target);
        let mut arguments = self.arguments(input, &target, in_place, scratch.address);
        if let Some(View { memory, .. }) = self.weight {
            arguments.args.weight = memory.address;
            arguments.reads.push(("weight", memory));
        }
        if let Some(loss) = loss {
            arguments.set_loss(loss)?;
            arguments.writes.push(("workspace", scratch));
        }
        if let Some(save) = save.as_deref() {
            arguments.set_save(save)?;
        }
        if let Some(saved) = saved {
            arguments.set_saved(saved)?;
            origin.check(saved.origin.as_ref())?;
        }
        if let Some(grads) = grads {
            arguments.set_grads(grads, in_place.then_some(input))?;
        }
        launch_rows::<T>(pass, arguments, stream)?;
        if let Some(save) = &mut save {
            save.origin = Some(origin);
        }
        Ok(())
    }

    /// The arguments of the kernels for checked logits and targets, and for no other tensor yet.
    fn arguments<'a>(
        &self,
        input: Memory<'a>,
        target: &Targets<'a, T>,
        in_place: bool,
        workspace: u64,
    ) -> Arguments<'a> {
        let shape = input.shape;
        let of_loss = self.reduction.shape_of_samples(shape);
        let mut arguments =
            Arguments::new(input, target, self.ignore_index, in_place, of_loss, workspace);
        let args = &mut arguments.args;
        args.divisor = match (R::MEAN, target.are_probabilities()) {
            // The sum of the class weights of the targets.
            (true, false) => 0.0,
            (true, true) => shape.rows() as f64,
            (false, _) => 1.0,
        };
        if R::KIND == reduction::SCALAR {
            args.reduction = reduction::SCALAR;
        }
        args.z_loss = self.z_loss;
        args.keep = 1.0 - self.label_smoothing;
        args.share = self.label_smoothing / shape.cols() as f64;
        arguments
    }
}

impl<'a> Arguments<'a> {
    /// The arguments for checked logits and targets, and for results per row; neither options nor
    /// other tensors yet.
    pub(crate) fn new<T: Float>(
        input: Memory<'a>,
        target: &Targets<'a, T>,
        ignore_index: i64,
        in_place: bool,
        of_loss: Shape,
        workspace: u64,
    ) -> Self {
        let shape = input.shape;
        let (rows, cols) = (shape.rows(), shape.cols());
        let args = CrossEntropyArgs {
            input: input.matrix(),
            target: target.memory.address,
            rows: rows as u64,
            cols: cols as u32,
            class_bytes: target.class_bytes,
            normaliser_blocks: 0,
            rows_of_block: NonZeroU32::MIN,
            ignore_index: target.as_loaded(ignore_index),
            weight: 0,
            saved: 0,
            totals: 0,
            z_loss: 0.0,
            workspace,
            fault: 0,
            loss: 0,
            reduction: reduction::ROWS,
            group_threads: NonZeroU32::MIN,
            divisor: 1.0,
            splits: NonZeroU32::MIN,
            upstream_stride: 0,
            upstream: 0,
            grad_input: Matrix::default(),
            grad_target: Matrix::default(),
            target_stride: target.memory.row_stride as u64,
            keep: 1.0,
            share: 0.0,
            staged_vectors: 0,
            ahead: 0,
            ahead_bytes: 0,
            early_blocks: 0,
            early_bytes: 0,
            plain: 0,
            attempt: attempt::ONLY,
            retried_blocks: 0,
            tail_rows: 0,
            tail_at: 0,
            group_shift: 0,
            part_vectors: 0,
            adder_shift: 0,
            tile: TileArgs::default(),
            stream: StreamArgs::default(),
            unsigned_classes: target.lose_sign().into(),
            log_prob: LogProbArgs::default(),
        };
        let mut reads = vec![("target", target.memory)];
        if !in_place {
            reads.push(("input", input));
        }
        Arguments { args, reads, writes: Vec::new(), faults: Vec::new(), shape, of_loss }
    }

    /// Whether targets are probabilities.
    fn has_probabilities(&self) -> bool {
        self.args.class_bytes == 0
    }

    /// Sets where the loss is written.
    fn set_loss<V: Float>(&mut self, loss: ViewMut<'a, V>) -> Result<()> {
        self.args.loss = self.result("loss", loss)?;
        Ok(())
    }

    /// The address of a result of the loss's shape, for the kernels to write.
    pub(crate) fn result<V: Float>(
        &mut self,
        argument: &'static str,
        result: ViewMut<'a, V>,
    ) -> Result<u64> {
        let ViewMut { memory, fault, .. } = result;
        check_shape(argument, self.of_loss, memory.shape)?;
        memory.check::<V>(argument)?;
        memory.check_dense(argument)?;
        self.faults.extend(fault);
        self.writes.push((argument, memory));
        Ok(memory.address)
    }

    /// Sets where the forward pass saves what a backward pass needs.
    pub(crate) fn set_save<V: Float>(&mut self, save: &'a Saved<V>) -> Result<()> {
        check_shape("saved", self.shape, save.input)?;
        let (of_rows, totals) = (save.rows.view().memory, save.totals.view().memory);
        (self.args.saved, self.args.totals) = (of_rows.address, totals.address);
        if !self.has_probabilities() {
            // For a loss per row, the kernels add nothing up unless the call asks for a fault.
            self.args.fault = totals.address + FAULT_OF_SAVED;
        }
        self.writes.extend([("saved", of_rows), ("saved", totals)]);
        Ok(())
    }

    /// Sets where the backward pass reads what a forward pass has saved.
    pub(crate) fn set_saved<V: Float>(&mut self, saved: &'a Saved<V>) -> Result<()> {
        check_shape("saved", self.shape, saved.input)?;
        let (of_rows, totals) = (saved.rows.view().memory, saved.totals.view().memory);
        (self.args.saved, self.args.totals) = (of_rows.address, totals.address);
        self.reads.extend([("saved", of_rows), ("saved", totals)]);
        Ok(())
    }

    /// Sets where gradients are written; that of the logits goes over them if it is `in_place`.
    pub(crate) fn set_grads<T: Float>(
        &mut self,
        grads: Grads<'a, T, T::Loss>,
        in_place: Option<Memory<'a>>,
    ) -> Result<()> {
        let Grads { input, target, upstream } = grads;
        if input.is_none() && target.is_none() && in_place.is_none() {
            return Err(Error::NoGradient { argument: "grads" });
        }
        if target.is_some() && !self.has_probabilities() {
            return Err(Error::ClassGradient { argument: "grad_target" });
        }
        if let Some(upstream) = upstream {
            self.set_upstream(upstream)?;
        }
        for (argument, to, wanted) in [
            ("grad_input", &mut self.args.grad_input, input),
            ("grad_target", &mut self.args.grad_target, target),
        ] {
            let Some(ViewMut { memory, .. }) = wanted else { continue };
            check_shape(argument, self.shape, memory.shape)?;
            memory.check::<T>(argument)?;
            *to = memory.matrix();
            self.writes.push((argument, memory));
        }
        if let Some(input) = in_place {
            self.args.grad_input = self.args.input;
            self.writes.push(("input", input));
        }
        Ok(())
    }

    /// Sets where the upstream gradient is read.
    fn set_upstream<V: Float>(&mut self, upstream: View<'a, V>) -> Result<()> {
        let (address, stride) = self.upstream("upstream", upstream)?;
        self.args.upstream = address;
        if self.args.reduction == reduction::ROWS {
            self.args.upstream_stride = stride;
        }
        Ok(())
    }

    /// The address and the stride of an upstream gradient of the loss's shape.
    pub(crate) fn upstream<V: Float>(
        &mut self,
        argument: &'static str,
        upstream: View<'a, V>,
    ) -> Result<(u64, u32)> {
        let View { memory, .. } = upstream;
        check_shape(argument, self.of_loss, memory.shape)?;
        memory.check::<V>(argument)?;
        if memory.element_stride == 1 {
            memory.check_dense(argument)?;
        }
        self.reads.push((argument, memory));
        Ok((memory.address, memory.element_stride as u32))
    }
}
