//! What losses that compare input and target element by element share: their methods, checks, plan and
//! launch.

use crate::element::Float;
use crate::error::{Error, Result};
use crate::grads::Grads;
use crate::launch::{Argument, check_memory, launch};
use crate::memory::Memory;
use crate::plan::{self, Dense, Pass};
use crate::reduction::Reduction;
use crate::shape::{Shape, check_shape};
use crate::stream::{Stream, Workspace};
use crate::tensor::Loss;
use crate::view::{View, ViewMut};
use kernels_gpu::Family;
use kernels_gpu::abi::{Broadcast, Matrix, PairwiseArgs, reduction};
use std::num::NonZeroU32;

/// The kernels of one loss.
pub(crate) struct Kernels {
    pub(crate) dense: Dense,
    pub(crate) forward: Forms,
    pub(crate) backward: Forms,
    pub(crate) forward_backward: Forms,
}

/// A kernel for dense tensors, and one for rows.
pub(crate) struct Forms {
    pub(crate) dense: &'static Family<PairwiseArgs>,
    pub(crate) rows: &'static Family<PairwiseArgs>,
}

/// The [`Kernels`] of a loss, by its name in the table.
macro_rules! kernels {
    ($loss:ident, $threads:literal threads) => {
        $crate::pairwise::kernels!($loss, $threads threads, heavy: false)
    };
    ($loss:ident, $threads:literal threads, heavy: $heavy:literal) => {
        $crate::pairwise::Kernels {
            dense: $crate::plan::Dense { threads: $threads, heavy: $heavy },
            forward: $crate::pairwise::Forms {
                dense: &kernels_gpu::kernels::$loss::FORWARD,
                rows: &kernels_gpu::kernels::$loss::FORWARD_ROWS,
            },
            backward: $crate::pairwise::Forms {
                dense: &kernels_gpu::kernels::$loss::BACKWARD,
                rows: &kernels_gpu::kernels::$loss::BACKWARD_ROWS,
            },
            forward_backward: $crate::pairwise::Forms {
                dense: &kernels_gpu::kernels::$loss::FORWARD_BACKWARD,
                rows: &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_ROWS,
            },
        }
    };
}
pub(crate) use kernels;

/// A loss as its launch needs it.
pub(crate) struct Pairwise<'w, R> {
    pub(crate) kernels: &'static Kernels,
    pub(crate) parameter: f64,
    /// By their place in [`PairwiseArgs::weights`].
    pub(crate) weights: [Option<Argument<'w>>; 2],
    pub(crate) reduction: R,
}

/// The tensors of a call.
pub(crate) struct Call<'a, T, V> {
    pub(crate) input: Memory<'a>,
    pub(crate) target: Memory<'a>,
    pub(crate) loss: Option<ViewMut<'a, V>>,
    pub(crate) grads: Option<Grads<'a, T, V>>,
    /// Whether the gradient of the input is to lie over it.
    pub(crate) in_place: bool,
}

impl<R: Reduction> Pairwise<'_, R> {
    /// Memory for a loss of `input`.
    pub(crate) fn new_loss<T: Float>(
        &self,
        input: Shape,
        stream: &Stream,
    ) -> Result<Loss<R::Value<T>>> {
        Loss::uninitialised(stream.gpu(), self.reduction.shape(input))
    }

    /// Refuses inputs that do not fit, before memory for results is allocated.
    pub(crate) fn check_inputs<T: Float>(
        &self,
        input: &View<'_, T>,
        target: &View<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, target) = (input.memory, target.memory);
        input.check::<T>("input")?;
        input.check_elements("input")?;
        check_shape("target", input.shape, target.shape)?;
        target.check::<T>("target")?;
        target.check_elements("target")?;
        self.broadcast_weights::<T>(input.shape)?;
        let weights = self.weights.into_iter().flatten();
        let reads: Vec<_> =
            [("input", input), ("target", target)].into_iter().chain(weights).collect();
        check_memory(stream, &reads, &[])
    }

    /// The weights, of an input of `shape`, as the kernels take them.
    fn broadcast_weights<T: Float>(&self, shape: Shape) -> Result<[Broadcast; 2]> {
        let mut weights = [Broadcast::default(); 2];
        for (to, weight) in weights.iter_mut().zip(self.weights) {
            if let Some((argument, memory)) = weight {
                *to = broadcast::<T>(argument, memory, shape)?;
            }
        }
        Ok(weights)
    }

    /// Checks all of a call and queues its one launch: forward where a loss is to be written, backward
    /// where gradients are.
    pub(crate) fn queue<T: Float>(
        &self,
        call: Call<'_, T, R::Value<T>>,
        workspace: &Workspace,
        stream: &Stream,
    ) -> Result<()> {
        let Call { input, target, loss, grads, in_place } = call;
        let shape = input.shape;
        self.check_inputs::<T>(&View::of(input), &View::of(target), stream)?;
        let of_loss = self.reduction.shape(shape);
        let scratch = workspace.memory();
        let mut reads = vec![("target", target)];
        reads.extend(self.weights.into_iter().flatten());
        let mut writes: Vec<Argument<'_>> = Vec::new();
        if !in_place {
            reads.push(("input", input));
        }
        let mut args = PairwiseArgs {
            input: input.matrix(),
            target: target.matrix(),
            rows: shape.rows() as u64,
            cols: shape.cols() as u64,
            divisor: self.reduction.divisor(shape),
            parameter: self.parameter,
            reduction: R::KIND,
            team: NonZeroU32::MIN,
            splits: NonZeroU32::MIN,
            upstream_col_stride: 0,
            loss: Matrix::default(),
            workspace: scratch.address,
            upstream: Matrix::default(),
            grad_input: Matrix::default(),
            grad_target: Matrix::default(),
            weights: self.broadcast_weights::<T>(shape)?,
        };
        let is_one = |weight: &Broadcast| weight.row_stride == 0 && weight.col_stride == 0;
        let mut dense = R::KIND != reduction::ROWS && input.is_dense() && target.is_dense();
        dense &= args.weights.iter().all(is_one);

        let (forms, pass) = match (&loss, &grads) {
            (Some(_), Some(_)) => (&self.kernels.forward_backward, Pass::ForwardBackward),
            (Some(_), None) => (&self.kernels.forward, Pass::Forward),
            (None, _) => (&self.kernels.backward, Pass::Backward),
        };
        let mut fault = None;
        if let Some(ViewMut { memory, fault: found, .. }) = loss {
            fault = found;
            check_shape("loss", of_loss, memory.shape)?;
            memory.check::<R::Value<T>>("loss")?;
            if R::KIND != reduction::ELEMENTS {
                memory.check_dense("loss")?;
            }
            dense &= memory.is_dense();
            args.loss = memory.matrix();
            writes.push(("loss", memory));
            writes.push(("workspace", scratch));
        }
        if let Some(Grads { input: by_input, target: by_target, upstream }) = grads {
            if by_input.is_none() && by_target.is_none() && !in_place {
                return Err(Error::NoGradient { argument: "grads" });
            }
            if let Some(View { memory, .. }) = upstream {
                check_shape("upstream", of_loss, memory.shape)?;
                memory.check::<R::Value<T>>("upstream")?;
                args.upstream = memory.matrix();
                match R::KIND {
                    reduction::ELEMENTS => {
                        args.upstream_col_stride = memory.element_stride as u32;
                        let one_for_all = memory.row_stride == 0;
                        dense &= memory.is_dense() || one_for_all;
                    }
                    reduction::ROWS => {
                        if memory.element_stride == 1 {
                            memory.check_dense("upstream")?;
                        }
                        args.upstream.row_stride = memory.element_stride as u64;
                    }
                    _ => args.upstream.row_stride = 0,
                }
                reads.push(("upstream", memory));
            }
            for (argument, to, wanted) in [
                ("grad_input", &mut args.grad_input, by_input.map(|view| view.memory)),
                ("grad_target", &mut args.grad_target, by_target.map(|view| view.memory)),
            ] {
                let Some(memory) = wanted else { continue };
                check_shape(argument, shape, memory.shape)?;
                memory.check::<T>(argument)?;
                dense &= memory.is_dense();
                *to = memory.matrix();
                writes.push((argument, memory));
            }
            if in_place {
                args.grad_input = args.input;
                writes.push(("input", input));
            }
        }
        check_memory(stream, &reads, &writes)?;

        let mut plan = plan::rows(R::KIND, shape.rows(), shape.cols(), size_of::<T>());
        if dense {
            // Elements without gaps are one row.
            (args.rows, args.cols) = (1, shape.len() as u64);
            plan = plan::rows(R::KIND, 1, shape.len(), size_of::<T>());
        }
        (args.team, args.splits) = (plan.team, plan.splits);
        let (family, launch_shape) = if dense && R::KIND == reduction::SCALAR {
            (forms.dense, plan::elementwise(pass, shape.len(), size_of::<T>(), self.kernels.dense))
        } else {
            (forms.rows, plan.launch)
        };
        // SAFETY: every address was checked to be of its tensor's shape and strides, not null and aligned;
        // what is written overlaps nothing else but, in place, the input that it is the gradient of; the
        // plans have no more partial sums than the workspace has room for; that the memory is there until
        // the work is done is the views' condition, or the tensors' doing.
        unsafe { launch(stream, family, T::DTYPE, launch_shape, &args, &reads, &writes)? };
        if let Some(fault) = fault {
            // Nothing here reports a target.
            fault.note_write(stream.queue(), false)?;
        }
        Ok(())
    }
}

/// Memory of which each number serves one element of `shape`, one row or column, or all of it.
fn broadcast<T: Float>(
    argument: &'static str,
    memory: Memory<'_>,
    shape: Shape,
) -> Result<Broadcast> {
    memory.check::<T>(argument)?;
    let got = memory.shape;
    let (by_row, by_col) = if got.len() == 1 {
        (false, false)
    } else if got == Shape::row(shape.cols()) {
        (false, true)
    } else if got == shape {
        (true, true)
    } else if got == shape.with_cols(1) {
        (true, false)
    } else {
        let expected = format!(
            "[], [{}], {} or {shape}: one for all, or one for each column, row or element",
            shape.cols(),
            shape.with_cols(1)
        );
        return Err(Error::Shape { argument, expected, got: got.to_string() });
    };
    Ok(Broadcast {
        start: if got.is_empty() { 0 } else { memory.address },
        row_stride: if by_row { memory.row_stride as u64 } else { 0 },
        col_stride: if by_col { memory.element_stride as u64 } else { 0 },
    })
}

/// The methods of a loss that has a method `pairwise(&self) -> Result<Pairwise<'_, R>>`, and its
/// [`LossFunction`](crate::LossFunction): of `$loss<R>`, for all element types, or of `$loss<'w, T, R>`, for one.
macro_rules! methods {
    ($loss:ident<R>, $name:literal, $reduction:path) => {
        $crate::pairwise::methods!(
            @ $loss, [$loss<R>], $name, [R: $reduction], [, T: $crate::Float], [T: $crate::Float, R: $reduction]
        );
    };
    ($loss:ident<'w, T, R>, $name:literal, $reduction:path) => {
        $crate::pairwise::methods!(
            @ $loss, [$loss<'w, T, R>], $name, ['w, T: $crate::Float, R: $reduction], [],
            ['w, T: $crate::Float, R: $reduction]
        );
    };
    // Behind the loss's name and type: the parameters of its methods' block, those of each method, and those of the
    // trait's.
    (
        @ $loss:ident, [$type:ty], $name:literal, [$($of_type:tt)+], [$($of_method:tt)*], [$($of_trait:tt)+]
    ) => {
        impl<$($of_type)+> $type {
            #[doc = concat!("The ", $name, " of `input` and `target`, of one shape.")]
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) where memory for the loss is short.")]
            pub fn forward<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<$crate::Loss<R::Value<T>>> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let mut loss = this.new_loss::<T>(input.shape(), stream)?;
                let (input, target) = (input.memory, target.memory);
                let call = $crate::pairwise::Call {
                    input,
                    target,
                    loss: Some((&mut loss).into()),
                    grads: None,
                    in_place: false,
                };
                this.queue(call, stream.workspace(), stream)?;
                Ok(loss)
            }

            /// As [`forward`](Self::forward), written to `loss`, which has the reduction's shape. Allocates
            /// nothing.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`].")]
            pub fn forward_into<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                loss: impl Into<$crate::ViewMut<'a, R::Value<T>>>,
                workspace: &mut $crate::Workspace,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target) = (input.into().memory, target.into().memory);
                let (loss, grads) = (Some(loss.into()), None);
                let call = $crate::pairwise::Call { input, target, loss, grads, in_place: false };
                self.pairwise()?.queue::<T>(call, workspace, stream)
            }

            /// The gradient of `input`, of its shape, from `upstream`, the gradient of the loss, which has
            /// the loss's shape.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) where memory for the gradient is short.")]
            pub fn backward<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                upstream: impl Into<$crate::View<'a, R::Value<T>>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<$crate::Tensor<T>> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let mut gradient = $crate::Tensor::uninitialised(stream.gpu(), input.shape(), "gradient")?;
                let upstream = upstream.into();
                let grads = $crate::Grads::input(&mut gradient).scaled_by(upstream);
                let call = $crate::pairwise::Call {
                    input: input.memory,
                    target: target.memory,
                    loss: None,
                    grads: Some(grads),
                    in_place: false,
                };
                this.queue(call, stream.workspace(), stream)?;
                Ok(gradient)
            }

            /// The gradients that `grads` asks for, from `upstream`, which has the loss's shape. Allocates
            /// nothing.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`].")]
            pub fn backward_into<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                upstream: impl Into<$crate::View<'a, R::Value<T>>>,
                grads: impl Into<$crate::Grads<'a, T, R::Value<T>>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target) = (input.into().memory, target.into().memory);
                let grads = Some(grads.into().scaled_by(upstream));
                let call = $crate::pairwise::Call { input, target, loss: None, grads, in_place: false };
                self.pairwise()?.queue::<T>(call, stream.workspace(), stream)
            }

            /// As [`backward`](Self::backward), written over `input`. Allocates nothing.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`].")]
            pub fn backward_in_place<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::ViewMut<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                upstream: impl Into<$crate::View<'a, R::Value<T>>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target) = (input.into().memory, target.into().memory);
                let grads = Some($crate::Grads::none().scaled_by(upstream));
                let call = $crate::pairwise::Call { input, target, loss: None, grads, in_place: true };
                self.pairwise()?.queue::<T>(call, stream.workspace(), stream)
            }

            /// The loss, and the gradient of `input` for an upstream gradient of ones, in one pass over
            /// memory.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory) where memory for the results is short.")]
            pub fn forward_backward<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<($crate::Loss<R::Value<T>>, $crate::Tensor<T>)> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let mut loss = this.new_loss::<T>(input.shape(), stream)?;
                let mut gradient = $crate::Tensor::uninitialised(stream.gpu(), input.shape(), "gradient")?;
                let call = $crate::pairwise::Call {
                    input: input.memory,
                    target: target.memory,
                    loss: Some((&mut loss).into()),
                    grads: Some($crate::Grads::input(&mut gradient)),
                    in_place: false,
                };
                this.queue(call, stream.workspace(), stream)?;
                Ok((loss, gradient))
            }

            /// The loss and the gradients that `grads` asks for, times its upstream gradient if it has one,
            /// in one pass over memory. Allocates nothing.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`].")]
            pub fn forward_backward_into<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                loss: impl Into<$crate::ViewMut<'a, R::Value<T>>>,
                grads: impl Into<$crate::Grads<'a, T, R::Value<T>>>,
                workspace: &mut $crate::Workspace,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target) = (input.into().memory, target.into().memory);
                let (loss, grads) = (Some(loss.into()), Some(grads.into()));
                let call = $crate::pairwise::Call { input, target, loss, grads, in_place: false };
                self.pairwise()?.queue::<T>(call, workspace, stream)
            }

            /// The loss, and the gradient of `input` for an upstream gradient of ones written over it, in
            /// one pass over memory. Allocates nothing.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`].")]
            pub fn forward_backward_in_place<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::ViewMut<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                loss: impl Into<$crate::ViewMut<'a, R::Value<T>>>,
                workspace: &mut $crate::Workspace,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target) = (input.into().memory, target.into().memory);
                let (loss, grads) = (Some(loss.into()), Some($crate::Grads::none()));
                let call = $crate::pairwise::Call { input, target, loss, grads, in_place: true };
                self.pairwise()?.queue::<T>(call, workspace, stream)
            }

            /// As [`forward_backward_in_place`](Self::forward_backward_in_place), the gradient times `upstream`, the
            /// gradient of the loss, which has its shape: the scale of mixed-precision training, for one.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`].")]
            pub fn forward_backward_in_place_scaled<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::ViewMut<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                loss: impl Into<$crate::ViewMut<'a, R::Value<T>>>,
                upstream: impl Into<$crate::View<'a, R::Value<T>>>,
                workspace: &mut $crate::Workspace,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target) = (input.into().memory, target.into().memory);
                let grads = Some($crate::Grads::none().scaled_by(upstream));
                let loss = Some(loss.into());
                let call = $crate::pairwise::Call { input, target, loss, grads, in_place: true };
                self.pairwise()?.queue::<T>(call, workspace, stream)
            }
        }

        impl<$($of_trait)+> $crate::LossFunction<T> for $type {
            type Target<'a> = $crate::View<'a, T>;
            type Value = R::Value<T>;

            fn forward<'i, 't>(
                &self,
                input: impl Into<$crate::View<'i, T>>,
                target: impl Into<$crate::View<'t, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<$crate::Loss<R::Value<T>>> {
                let (input, target): ($crate::View<'_, T>, $crate::View<'_, T>) = (input.into(), target.into());
                self.forward(input, target, stream)
            }

            fn forward_into<'i, 't, 'o>(
                &self,
                input: impl Into<$crate::View<'i, T>>,
                target: impl Into<$crate::View<'t, T>>,
                loss: impl Into<$crate::ViewMut<'o, R::Value<T>>>,
                workspace: &mut $crate::Workspace,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target): ($crate::View<'_, T>, $crate::View<'_, T>) = (input.into(), target.into());
                let loss: $crate::ViewMut<'_, R::Value<T>> = loss.into();
                self.forward_into(input, target, loss, workspace, stream)
            }

            fn forward_backward<'i, 't>(
                &self,
                input: impl Into<$crate::View<'i, T>>,
                target: impl Into<$crate::View<'t, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<($crate::Loss<R::Value<T>>, $crate::Tensor<T>)> {
                let (input, target): ($crate::View<'_, T>, $crate::View<'_, T>) = (input.into(), target.into());
                self.forward_backward(input, target, stream)
            }

            fn forward_backward_into<'i, 't, 'o>(
                &self,
                input: impl Into<$crate::View<'i, T>>,
                target: impl Into<$crate::View<'t, T>>,
                loss: impl Into<$crate::ViewMut<'o, R::Value<T>>>,
                grads: impl Into<$crate::Grads<'o, T, R::Value<T>>>,
                workspace: &mut $crate::Workspace,
                stream: &$crate::Stream,
            ) -> $crate::Result<()> {
                let (input, target): ($crate::View<'_, T>, $crate::View<'_, T>) = (input.into(), target.into());
                let (loss, grads): ($crate::ViewMut<'_, R::Value<T>>, $crate::Grads<'_, T, R::Value<T>>) = (loss.into(), grads.into());
                self.forward_backward_into(input, target, loss, grads, workspace, stream)
            }
        }
    };
}
pub(crate) use methods;
