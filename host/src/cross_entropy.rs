//! Cross-entropy.

use crate::error::{Error, Result};
use crate::launch::{Argument, check_memory, launch};
use crate::pairwise::Grads;
use crate::plan::packed;
use crate::plan::{self, Ahead, Form, Pass, RowsLaunch, SamplesKernels};
use crate::reduction::{Mean, None as PerSample, SampleReduction, Sum};
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{Float, IntoShape, Memory, Shape, View, ViewMut, check_shape};
use kernels_gpu::Family;
use kernels_gpu::abi::{
    CrossEntropyArgs, Matrix, ROWS_BLOCK, StreamArgs, TileArgs, reduction, saved,
    workspace as layout,
};
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

/// Cross-entropy of rows of logits x (the last dimension: C classes) and targets, which are classes or the
/// probabilities of all classes. As PyTorch's `torch.nn.CrossEntropyLoss`, but for the gradient of a row that is
/// ignored, which is 0 even where the row holds NaN, and for a target that is no class, which is an error of
/// [`Loss::item`] and [`Loss::check`].
///
/// With log p = x − log Σ exp x, class weights w, and label smoothing ε:
///
/// | targets | loss of a row | divided by, for the mean |
/// |---|---|---|
/// | a class y | −(1 − ε) w_y log p_y − ε/C Σ w log p | Σ w_y of the rows that are not ignored |
/// | probabilities t | −Σ w ((1 − ε) t + ε/C) log p | the rows |
///
/// With z-loss, λ (log Σ exp x)² more for each row that is not ignored, divided by their number for the mean. Where
/// Σ exp(x − m) is close to 1, its logarithm is taken of what exceeds 1: a loss is accurate however small.
///
/// Where all rows are ignored, or the weights add up to 0, a mean is NaN; its gradient is 0 in the first case and NaN in
/// the second.
///
/// [`forward_backward`](Self::forward_backward) does all in one pass over the logits. Where other work comes between
/// the two, [`forward_saving`](Self::forward_saving) keeps a few numbers a row, from which
/// [`backward`](Self::backward) has the gradients.
///
/// f16, bf16 and f32 logits are computed in f32, f64 logits in f64; sums over threads are f64.
///
/// Errors of every method, beside those of [`Mse`](crate::Mse): [`InvalidShape`](Error::InvalidShape) where there is
/// no class, or more than 2³¹ − 1; [`InvalidOption`](Error::InvalidOption) for a `label_smoothing` that is not from 0
/// to 1, a `z_loss` that is negative or not finite, or an `ignore_index` of 0 or more with probabilities.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'w, T, R = Mean> {
    /// Weights of the classes, of shape `[C]`, as `Some(weight.view())`; `None`: every class has weight 1. A loss borrows them:
    /// to make one for each call costs nothing.
    pub weight: Option<View<'w, T>>,
    /// Rows with this target do not count: their loss and their gradient are 0. It need not be a class.
    pub ignore_index: i64,
    /// ε, from 0 to 1: the part of every target that goes to all classes alike.
    pub label_smoothing: f64,
    /// λ; 0 for none.
    pub z_loss: f64,
    /// What becomes of the losses of the rows.
    pub reduction: R,
}

impl<T> CrossEntropy<'_, T, Mean> {
    /// The mean, without weights, smoothing and z-loss; −100 is ignored.
    pub const fn mean() -> Self {
        Self::with(Mean)
    }
}

impl<T> CrossEntropy<'_, T, Sum> {
    /// The sum, otherwise as [`mean`](CrossEntropy::mean).
    pub const fn sum() -> Self {
        Self::with(Sum)
    }
}

impl<T> CrossEntropy<'_, T, PerSample> {
    /// A loss for each row, otherwise as [`mean`](CrossEntropy::mean).
    pub const fn none() -> Self {
        Self::with(PerSample)
    }
}

impl<T> Default for CrossEntropy<'_, T, Mean> {
    fn default() -> Self {
        Self::mean()
    }
}

impl<T, R> CrossEntropy<'_, T, R> {
    const fn with(reduction: R) -> Self {
        CrossEntropy {
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            reduction,
        }
    }
}

/// What rows should be: classes, a tensor of `i64`, `i32` or `u8` with the input's shape but for the last dimension;
/// or probabilities, a tensor of the input's type and shape.
pub struct Targets<'a, T> {
    memory: Memory<'a>,
    /// Bytes of a class; 0 for probabilities.
    class_bytes: u32,
    input: PhantomData<T>,
}

macro_rules! classes {
    ($($class:ty)+) => {$(
        impl<'a, T> From<View<'a, $class>> for Targets<'a, T> {
            fn from(classes: View<'a, $class>) -> Self {
                let class_bytes = size_of::<$class>() as u32;
                Targets { memory: classes.memory, class_bytes, input: PhantomData }
            }
        }

        impl<'a, T> From<&'a Tensor<$class>> for Targets<'a, T> {
            fn from(classes: &'a Tensor<$class>) -> Self {
                classes.view().into()
            }
        }
    )+};
}
classes!(i64 i32 u8);

impl<'a, T: Float> From<View<'a, T>> for Targets<'a, T> {
    fn from(probabilities: View<'a, T>) -> Self {
        Targets { memory: probabilities.memory, class_bytes: 0, input: PhantomData }
    }
}

impl<'a, T: Float> From<&'a Tensor<T>> for Targets<'a, T> {
    fn from(probabilities: &'a Tensor<T>) -> Self {
        probabilities.view().into()
    }
}

/// What a forward pass leaves for the backward: the largest logit m of each row, log Σ exp(x − m), and what a mean
/// is divided by. A few bytes a row.
pub struct Saved<V> {
    rows: Tensor<V>,
    totals: Tensor<f64>,
    shape: Shape,
}

/// Where, behind the start of a [`Saved`]'s totals, there is room for a fault.
const FAULT_OF_SAVED: u64 = 2 * size_of::<f64>() as u64;

impl<V: Float> Saved<V> {
    /// Memory for logits of shape `input`, for [`CrossEntropy::forward_saving_into`] to write.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros(gpu: &crate::Gpu, input: impl IntoShape) -> Result<Self> {
        let mut saved = Self::uninitialised(gpu, input)?;
        saved.rows.clear()?;
        saved.totals.clear()?;
        Ok(saved)
    }

    /// Memory that the forward pass that gets it writes.
    fn uninitialised(gpu: &crate::Gpu, input: impl IntoShape) -> Result<Self> {
        let shape = input.into_shape("input")?.of_rows();
        let rows = Tensor::uninitialised(gpu, [saved::COUNT, shape.len()].into_shape("input")?)?;
        // Behind the totals, room for a fault that nobody asks for.
        Ok(Saved { rows, totals: Tensor::uninitialised(gpu, Shape::row(4))?, shape })
    }

    /// log Σ exp x of each row.
    pub fn log_sum_exp(&self) -> View<'_, V> {
        let offset = saved::LOG_SUM_EXP * (self.shape.len() * size_of::<V>()) as u64;
        let rows = self.rows.view().memory;
        View::of(rows.part::<V>(offset, self.shape))
    }
}

impl<V: Float> fmt::Debug for Saved<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saved<{}> of rows {}", V::NAME, self.shape)
    }
}

/// The kernels for one kind of targets.
struct Kernels {
    /// Groups of 16 bytes of a row that a thread holds.
    held: usize,
    /// The same, of a row of which a block keeps others in shared memory, by the bytes of an element.
    held_beside: fn(usize) -> usize,
    /// The same, of a row of which a block computes gradients.
    held_with_gradients: fn(usize) -> usize,
    /// By [`Form`](plan::Form).
    forward: [&'static Family<CrossEntropyArgs>; 5],
    /// For long rows of which the arithmetic takes about as long as the memory: it hides best behind copies that
    /// need no registers.
    forward_stream: &'static Family<CrossEntropyArgs>,
    /// Likewise, but few rows as any.
    forward_backward: [&'static Family<CrossEntropyArgs>; 5],
    /// Likewise.
    backward: [&'static Family<CrossEntropyArgs>; 5],
}

macro_rules! kernels {
    ($loss:ident) => {
        Kernels {
            held: kernels_gpu::kernels::$loss::HELD,
            held_beside: kernels_gpu::kernels::$loss::held_beside,
            held_with_gradients: kernels_gpu::kernels::$loss::held_with_gradients,
            forward: [
                &kernels_gpu::kernels::$loss::FORWARD_PACKED,
                &kernels_gpu::kernels::$loss::FORWARD_SHORT_WHOLE,
                &kernels_gpu::kernels::$loss::FORWARD,
                &kernels_gpu::kernels::$loss::FORWARD_FEW,
                &kernels_gpu::kernels::$loss::FORWARD_LONG,
            ],
            forward_stream: &kernels_gpu::kernels::$loss::FORWARD_STREAM,
            forward_backward: [
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_PACKED,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_SHORT_WHOLE,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD,
                &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_LONG,
            ],
            backward: [
                &kernels_gpu::kernels::$loss::BACKWARD_PACKED,
                &kernels_gpu::kernels::$loss::BACKWARD_SHORT_WHOLE,
                &kernels_gpu::kernels::$loss::BACKWARD,
                &kernels_gpu::kernels::$loss::BACKWARD,
                &kernels_gpu::kernels::$loss::BACKWARD_LONG,
            ],
        }
    };
}

static CLASSES: Kernels = kernels!(cross_entropy);
static SMOOTHED: Kernels = kernels!(cross_entropy_smoothed);
static PROBABILITIES: Kernels = kernels!(cross_entropy_prob);

/// The tensors of a call.
struct Call<'a, T: Float> {
    input: Memory<'a>,
    target: Targets<'a, T>,
    loss: Option<ViewMut<'a, T::Loss>>,
    save: Option<&'a mut Saved<T::Loss>>,
    saved: Option<&'a Saved<T::Loss>>,
    grads: Option<Grads<'a, T, T::Loss>>,
    /// Whether the gradient of the input is to lie over it.
    in_place: bool,
}

impl<'a, T: Float> Call<'a, T> {
    fn new(input: Memory<'a>, target: Targets<'a, T>) -> Self {
        Call { input, target, loss: None, save: None, saved: None, grads: None, in_place: false }
    }
}

impl<T: Float, R: SampleReduction> CrossEntropy<'_, T, R> {
    /// The loss of `input`, logits, and `target`.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::Driver`] where memory for the loss is short.
    pub fn forward<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        stream: &Stream,
    ) -> Result<Loss<T::Loss>> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut loss = self.new_loss(input.shape, stream)?;
        let call = Call { loss: Some((&mut loss).into()), ..Call::new(input, target) };
        self.queue(call, stream.workspace(), stream)?;
        Ok(loss)
    }

    /// As [`forward`](Self::forward), written to `loss`, which has the reduction's shape. Allocates nothing. Which
    /// target is no class is known only of a [`Loss`], not of other memory.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        self.queue(Call { loss: Some(loss.into()), ..call }, workspace, stream)
    }

    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::Driver`] where memory for the results is short.
    pub fn forward_saving<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Saved<T::Loss>)> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut loss = self.new_loss(input.shape, stream)?;
        let mut save = Saved::uninitialised(stream.gpu(), input.shape)?;
        let call = Call {
            loss: Some((&mut loss).into()),
            save: Some(&mut save),
            ..Call::new(input, target)
        };
        self.queue(call, stream.workspace(), stream)?;
        Ok((loss, save))
    }

    /// As [`forward_saving`](Self::forward_saving), written to `loss` and `saved`. Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_saving_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        saved: &'a mut Saved<T::Loss>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let call = Call { loss: Some(loss.into()), save: Some(saved), ..call };
        self.queue(call, workspace, stream)
    }

    /// The gradient of `input`, of its shape, from `upstream`, the gradient of the loss, which has the loss's shape,
    /// and from what [`forward_saving`](Self::forward_saving) of the same input and target has saved.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::Driver`] where memory for the gradient is short.
    pub fn backward<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        saved: &'a Saved<T::Loss>,
        upstream: impl Into<View<'a, T::Loss>>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut gradient = Tensor::uninitialised(stream.gpu(), input.shape)?;
        let upstream = upstream.into();
        let call = Call {
            saved: Some(saved),
            grads: Some(Grads::input(&mut gradient).scaled_by(upstream)),
            ..Call::new(input, target)
        };
        self.queue(call, stream.workspace(), stream)?;
        Ok(gradient)
    }

    /// As [`backward`](Self::backward): the gradients that `grads` asks for, the target's only of probabilities.
    /// Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::ClassGradient`].
    pub fn backward_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        saved: &'a Saved<T::Loss>,
        upstream: impl Into<View<'a, T::Loss>>,
        grads: impl Into<Grads<'a, T, T::Loss>>,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let grads = Some(grads.into().scaled_by(upstream));
        self.queue(Call { saved: Some(saved), grads, ..call }, stream.workspace(), stream)
    }

    /// As [`backward`](Self::backward), written over `input`. Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn backward_in_place<'a>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        saved: &'a Saved<T::Loss>,
        upstream: impl Into<View<'a, T::Loss>>,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let grads = Some(Grads::none().scaled_by(upstream));
        let call = Call { saved: Some(saved), grads, in_place: true, ..call };
        self.queue(call, stream.workspace(), stream)
    }

    /// The loss, and the gradient of `input` for an upstream gradient of ones, in one pass over the logits.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::Driver`] where memory for the results is short.
    pub fn forward_backward<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        stream: &Stream,
    ) -> Result<(Loss<T::Loss>, Tensor<T>)> {
        let (input, target) = (input.into().memory, target.into());
        self.check(input, &target, stream)?;
        let mut loss = self.new_loss(input.shape, stream)?;
        let mut gradient = Tensor::uninitialised(stream.gpu(), input.shape)?;
        let call = Call {
            loss: Some((&mut loss).into()),
            grads: Some(Grads::input(&mut gradient)),
            ..Call::new(input, target)
        };
        self.queue(call, stream.workspace(), stream)?;
        Ok((loss, gradient))
    }

    /// The loss and the gradients that `grads` asks for, times its upstream gradient if it has one, in one pass over
    /// the logits; the target's gradient only of probabilities. Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`]; [`Error::ClassGradient`].
    pub fn forward_backward_into<'a>(
        &self,
        input: impl Into<View<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        grads: impl Into<Grads<'a, T, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let call = Call { loss: Some(loss.into()), grads: Some(grads.into()), ..call };
        self.queue(call, workspace, stream)
    }

    /// The loss, and the gradient of `input` for an upstream gradient of ones written over it, in one pass over the
    /// logits. Allocates nothing.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_backward_in_place<'a>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let (loss, grads) = (Some(loss.into()), Some(Grads::none()));
        self.queue(Call { loss, grads, in_place: true, ..call }, workspace, stream)
    }

    /// As [`forward_backward_in_place`](Self::forward_backward_in_place), the gradient times `upstream`, the gradient of
    /// the loss, which has its shape: the scale of mixed-precision training, for one.
    ///
    /// # Errors
    /// See [`CrossEntropy`].
    pub fn forward_backward_in_place_scaled<'a>(
        &self,
        input: impl Into<ViewMut<'a, T>>,
        target: impl Into<Targets<'a, T>>,
        loss: impl Into<ViewMut<'a, T::Loss>>,
        upstream: impl Into<View<'a, T::Loss>>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let call = Call::new(input.into().memory, target.into());
        let (loss, grads) = (Some(loss.into()), Some(Grads::none().scaled_by(upstream)));
        self.queue(Call { loss, grads, in_place: true, ..call }, workspace, stream)
    }

    /// Memory for a loss of `input`.
    fn new_loss(&self, input: Shape, stream: &Stream) -> Result<Loss<T::Loss>> {
        Loss::uninitialised(stream.gpu(), self.reduction.shape_of_samples(input))
    }

    /// Refuses options without meaning, and inputs that do not fit, before memory for results is allocated.
    fn check(&self, input: Memory<'_>, target: &Targets<'_, T>, stream: &Stream) -> Result<()> {
        let probabilities = target.class_bytes == 0;
        let invalid = |option, expected, got: &dyn fmt::Display| {
            Err(Error::InvalidOption { option, expected, got: got.to_string() })
        };
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return invalid("label_smoothing", "a number from 0 to 1", &self.label_smoothing);
        }
        if !self.z_loss.is_finite() || self.z_loss < 0.0 {
            return invalid("z_loss", "a finite number that is not negative", &self.z_loss);
        }
        if probabilities && self.ignore_index >= 0 {
            let expected = "a negative number where targets are probabilities";
            return invalid("ignore_index", expected, &self.ignore_index);
        }
        let (shape, memory) = (input.shape, target.memory);
        let problem = match shape.cols() {
            _ if shape.dims().is_empty() => "expected a dimension for the classes",
            0 => "expected one class at least",
            cols if i32::try_from(cols).is_err() => "expected fewer than 2^31 classes",
            _ => "",
        };
        if !problem.is_empty() {
            let problem = format!("{problem}, got shape {shape}");
            return Err(Error::InvalidShape { argument: "input", problem });
        }
        input.check::<T>("input")?;
        input.check_elements("input")?;
        let mut reads = vec![("input", input), ("target", memory)];
        if probabilities {
            check_shape("target", shape, memory.shape)?;
            memory.check::<T>("target")?;
            memory.check_elements("target")?;
        } else {
            check_shape("target", shape.of_rows(), memory.shape)?;
            memory.check_aligned("target", target.class_bytes as usize)?;
            memory.check_elements("target")?;
            memory.check_dense("target")?;
        }
        if let Some(View { memory, .. }) = self.weight {
            check_shape("weight", Shape::row(shape.cols()), memory.shape)?;
            memory.check::<T>("weight")?;
            memory.check_elements("weight")?;
            reads.push(("weight", memory));
        }
        check_memory(stream, &reads, &[])
    }

    /// Checks all of a call and queues it.
    fn queue(&self, call: Call<'_, T>, workspace: &Workspace, stream: &Stream) -> Result<()> {
        let Call { input, target, loss, save, saved, grads, in_place } = call;
        let shape = input.shape;
        self.check(input, &target, stream)?;
        let (rows, cols) = (shape.rows(), shape.cols());
        let probabilities = target.class_bytes == 0;
        let of_loss = self.reduction.shape_of_samples(shape);
        let scratch = workspace.memory();
        let mut reads: Vec<Argument<'_>> = vec![("target", target.memory)];
        let mut writes: Vec<Argument<'_>> = Vec::new();
        if !in_place {
            reads.push(("input", input));
        }
        let by_totals = R::MEAN && !probabilities;
        let mut args = CrossEntropyArgs {
            input: input.matrix(),
            target: target.memory.address,
            rows: rows as u64,
            cols: cols as u32,
            class_bytes: target.class_bytes,
            totals_blocks: 0,
            rows_of_block: NonZeroU32::MIN,
            ignore_index: self.ignore_index,
            weight: 0,
            saved: 0,
            totals: 0,
            z_loss: self.z_loss,
            workspace: scratch.address,
            fault: 0,
            loss: 0,
            reduction: if R::KIND == reduction::ELEMENTS { reduction::ROWS } else { R::KIND },
            team: NonZeroU32::MIN,
            divisor: if by_totals {
                0.0
            } else if R::MEAN {
                rows as f64
            } else {
                1.0
            },
            splits: NonZeroU32::MIN,
            upstream_stride: 0,
            upstream: 0,
            grad_input: Matrix::default(),
            grad_target: Matrix::default(),
            target_stride: target.memory.row_stride as u64,
            keep: 1.0 - self.label_smoothing,
            share: self.label_smoothing / cols as f64,
            kept_groups: 0,
            ahead: 0,
            ahead_bytes: 0,
            early_blocks: 0,
            early_bytes: 0,
            plain: 0,
            tail_rows: 0,
            tail_at: 0,
            team_shift: 0,
            tile: TileArgs::default(),
            stream: StreamArgs::default(),
        };
        if let Some(View { memory, .. }) = self.weight {
            args.weight = memory.address;
            reads.push(("weight", memory));
        }
        let pass = match (&loss, &grads) {
            (Some(_), Some(_)) => Pass::ForwardBackward,
            (Some(_), None) => Pass::Forward,
            (None, _) => Pass::Backward,
        };
        let mut fault = None;
        if let Some(ViewMut { memory, fault: found, .. }) = loss {
            check_shape("loss", of_loss, memory.shape)?;
            memory.check::<T::Loss>("loss")?;
            memory.check_dense("loss")?;
            args.loss = memory.address;
            fault = found;
            writes.push(("loss", memory));
        }
        if pass != Pass::Backward {
            writes.push(("workspace", scratch));
        }
        if let Some(save) = save {
            check_shape("saved", shape.of_rows(), save.shape)?;
            let (of_rows, totals) = (save.rows.view_mut().memory, save.totals.view().memory);
            (args.saved, args.totals) = (of_rows.address, totals.address);
            // Of losses of rows, kernels add up nothing unless a fault is asked for.
            args.fault = if probabilities { 0 } else { totals.address + FAULT_OF_SAVED };
            writes.push(("saved", of_rows));
            writes.push(("saved", totals));
            return self.launch(pass, &mut args, fault, stream, &reads, &writes);
        }
        if let Some(saved) = saved {
            check_shape("saved", shape.of_rows(), saved.shape)?;
            let (of_rows, totals) = (saved.rows.view().memory, saved.totals.view().memory);
            (args.saved, args.totals) = (of_rows.address, totals.address);
            reads.push(("saved", of_rows));
            reads.push(("saved", totals));
        }
        if let Some(Grads { input: by_input, target: by_target, upstream }) = grads {
            if by_input.is_none() && by_target.is_none() && !in_place {
                return Err(Error::NoGradient { argument: "grads" });
            }
            if by_target.is_some() && !probabilities {
                return Err(Error::ClassGradient { argument: "grad_target" });
            }
            if let Some(View { memory, .. }) = upstream {
                check_shape("upstream", of_loss, memory.shape)?;
                memory.check::<T::Loss>("upstream")?;
                if memory.element_stride == 1 {
                    memory.check_dense("upstream")?;
                }
                args.upstream = memory.address;
                let each = args.reduction == reduction::ROWS;
                args.upstream_stride = if each { memory.element_stride as u32 } else { 0 };
                reads.push(("upstream", memory));
            }
            for (argument, to, wanted) in [
                ("grad_input", &mut args.grad_input, by_input.map(|view| view.memory)),
                ("grad_target", &mut args.grad_target, by_target.map(|view| view.memory)),
            ] {
                let Some(memory) = wanted else { continue };
                check_shape(argument, shape, memory.shape)?;
                memory.check::<T>(argument)?;
                *to = memory.matrix();
                writes.push((argument, memory));
            }
            if in_place {
                args.grad_input = args.input;
                writes.push(("input", input));
            }
        }
        self.launch(pass, &mut args, fault, stream, &reads, &writes)
    }

    /// Queues a call of which each argument was checked.
    fn launch(
        &self,
        pass: Pass,
        args: &mut CrossEntropyArgs,
        fault: Option<crate::view::Fault<'_>>,
        stream: &Stream,
        reads: &[Argument<'_>],
        writes: &[Argument<'_>],
    ) -> Result<()> {
        check_memory(stream, reads, writes)?;
        if args.rows <= 1 {
            // The stride of a single row means nothing, and may be beyond all bytes.
            let cols = args.cols.into();
            for tensor in [&mut args.input, &mut args.grad_input, &mut args.grad_target] {
                tensor.row_stride = cols;
            }
            args.target_stride = cols;
        }
        let kernels = if args.class_bytes == 0 {
            &PROBABILITIES
        } else if args.share != 0.0 {
            &SMOOTHED
        } else {
            &CLASSES
        };
        let reports = args.class_bytes != 0;
        args.fault = fault.filter(|_| reports).map_or(args.fault, |fault| fault.address);
        self.queue_launches(pass, kernels, args, stream, reads, writes)?;
        if let Some(fault) = fault {
            let classes = if reports { args.cols as usize } else { 0 };
            fault.classes.store(classes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Queues the launches of a call: one, or two where something of all rows is needed before the first gradient and
    /// cannot be had on the way.
    fn queue_launches(
        &self,
        pass: Pass,
        kernels: &Kernels,
        args: &CrossEntropyArgs,
        stream: &Stream,
        reads: &[Argument<'_>],
        writes: &[Argument<'_>],
    ) -> Result<()> {
        let (rows, cols) = (args.rows as usize, args.cols as usize);
        let bytes = |elements: u64| elements * size_of::<T>() as u64;
        let [start, stride, len] =
            [args.input.start, bytes(args.input.row_stride), bytes(args.cols.into())];
        let alike = [args.grad_input, args.grad_target, args.probabilities()]
            .iter()
            .all(|rows| rows.start == 0 || rows_are_alike::<T>(rows, &args.input));
        let whole = alike && (start | stride | len).is_multiple_of(16);
        let lie = packed_rows::<T>(args);
        let packed = packed::packed(lie);
        let streams = kernels.forward_stream.entry(T::DTYPE);
        let plan = |pass, args: &CrossEntropyArgs| {
            let forms = match pass {
                Pass::Forward => kernels.forward,
                Pass::ForwardBackward => kernels.forward_backward,
                Pass::Backward => kernels.backward,
            };
            let packed_blocks = forms[0].entry(T::DTYPE).map_or(1, |entry| entry.resident);
            let [_, short, held, few, long] =
                forms.map(|family| family.entry(T::DTYPE).map_or(32, |entry| entry.block));
            let can = SamplesKernels {
                held: kernels.held,
                held_with_gradients: (kernels.held_with_gradients)(size_of::<T>()),
                packed: packed.map(|packed| (packed, stream.gpu().room_for(packed_blocks))),
                stream: streams.map(|entry| (lie, stream.gpu().room_for(entry.resident))),
                whole,
                short_block: short.min(ROWS_BLOCK),
                held_block: held,
                few_block: few,
                long_block: long,
                sums: if args.z_loss == 0.0 && args.totals == 0 { 2 } else { 4 },
            };
            let plan = plan::samples(pass, rows, cols, size_of::<T>(), can);
            let family = match plan.form {
                Form::Stream => kernels.forward_stream,
                form => forms[form as usize],
            };
            (plan, family)
        };
        let queue = |pass, args: &CrossEntropyArgs| {
            let (plan, family) = plan(pass, args);
            let RowsLaunch { launch: mut shape, team, splits } = plan.rows;
            let row_bytes = cols * size_of::<T>();
            let Ahead { rows: ahead, bytes: ahead_bytes } =
                plan::ahead(pass, &plan, row_bytes, size_of::<T>(), stream.gpu().cache());
            let rows_of_block = plan.rows_of_block;
            let mut args =
                CrossEntropyArgs { team, splits, rows_of_block, ahead, ahead_bytes, ..*args };
            args.plain = args.is_plain().into();
            args.team_shift = team.trailing_zeros();
            args.tile = plan.tile;
            args.stream = plan.stream;
            if plan.tail.rows > 0 {
                args.splits = plan.tail.parts;
                (args.tail_rows, args.tail_at) = (plan.tail.rows, plan.tail.at);
            }
            if stream.gpu().overlaps()
                && pass == Pass::Forward
                && !matches!(plan.form, Form::Packed | Form::Stream)
            {
                let early = plan::early(&plan, row_bytes, stream.gpu().cache());
                (args.early_blocks, args.early_bytes) = (early.blocks, early.bytes);
            }
            if (pass, plan.form) == (Pass::ForwardBackward, Form::Long)
                && let Some(entry) = family.entry(T::DTYPE)
            {
                let (held, room) = (
                    (kernels.held_beside)(size_of::<T>()) as u32 * shape.threads,
                    stream.gpu().dynamic_shared(entry)?,
                );
                args.kept_groups = plan::kept_groups(cols, size_of::<T>(), held, room);
                shape.shared_bytes = args.kept_groups * 16;
            }
            if (pass, plan.form) == (Pass::Forward, Form::ShortWhole)
                && let Some(entry) = family.entry(T::DTYPE)
            {
                let one_more = plan::wants_shared_of_one_more(row_bytes);
                stream.gpu().keep_shared(entry, shape.shared_bytes, one_more)?;
            }
            if matches!(plan.form, Form::Packed | Form::Stream)
                && let Some(entry) = family.entry(T::DTYPE)
            {
                // More than a block has unless it is asked for.
                stream.gpu().dynamic_shared(entry)?;
            }
            if pass == Pass::ForwardBackward && args.divisor == 0.0 {
                let blocks = plan::totals_blocks(rows, shape.threads);
                args.totals_blocks = blocks;
                shape.blocks += blocks;
            }
            // SAFETY: every address was checked to be of its tensor's shape and strides, not null and aligned;
            // what is written overlaps nothing else but, in place, the input that it is the gradient of; the plan
            // has no more partial sums than the workspace has room for, a team holds what it is to hold, and a
            // block has shared memory for what it is to keep; that the memory is there until the work is done is the
            // views' condition, or the tensors' doing.
            unsafe { launch(stream, family, T::DTYPE, shape, &args, reads, writes) }
        };
        // What one launch leaves in the workspace for another is not to be another call's.
        let _lock = stream.lock();
        if pass != Pass::ForwardBackward {
            return queue(pass, args);
        }
        let (alone, _) = plan(Pass::Forward, args);
        let is_shared = alone.stream.split != 0 || alone.tail.rows as usize == rows;
        if is_shared && (1..=layout::SAVED_ROWS).contains(&rows) {
            // Few and long rows: all blocks take part in each, and find it in the cache the second time.
            let forward = CrossEntropyArgs {
                saved: args.workspace + layout::SAVED,
                totals: args.workspace + layout::TOTALS,
                ..*args
            };
            // The second kernel is there before the first is queued.
            if let Some(entry) = plan(Pass::Backward, args).1.entry(T::DTYPE) {
                stream.gpu().function(entry)?;
            }
            queue(Pass::Forward, &forward)?;
            return queue(Pass::Backward, &forward);
        }
        queue(Pass::ForwardBackward, args)
    }
}

/// Whether rows begin as far from a boundary of 16 bytes in both tensors.
fn rows_are_alike<T>(rows: &Matrix, others: &Matrix) -> bool {
    let apart = (rows.row_stride ^ others.row_stride) * size_of::<T>() as u64;
    (rows.start ^ others.start).is_multiple_of(16) && apart.is_multiple_of(16)
}

/// How the rows of a call lie, for those that are short enough to be packed.
fn packed_rows<T>(args: &CrossEntropyArgs) -> packed::Rows {
    let size = size_of::<T>() as u64;
    let cols = u64::from(args.cols);
    let probabilities = args.probabilities();
    let exist = |tensors: [Matrix; 2]| tensors.into_iter().filter(|tensor| tensor.start != 0);
    let alignment = |tensors: [Matrix; 2]| {
        let bits = exist(tensors)
            .fold(128, |bits, tensor| bits | tensor.start | (tensor.row_stride * size));
        1 << bits.trailing_zeros()
    };
    let (reads, writes) = ([args.input, probabilities], [args.grad_input, args.grad_target]);
    packed::Rows {
        cols: args.cols as usize,
        element_bytes: size as usize,
        alignment: alignment(reads),
        store_alignment: alignment(writes),
        // The target's gradient is laid out where its probabilities were.
        alike: [(args.grad_input, args.input), (args.grad_target, probabilities)]
            .iter()
            .all(|(to, from)| to.start == 0 || rows_are_alike::<T>(to, from)),
        contiguous: reads
            .into_iter()
            .chain(writes)
            .all(|tensor| tensor.start == 0 || tensor.row_stride == cols),
        tiles: if probabilities.start == 0 { 1 } else { 2 },
    }
}
