//! What losses that compare input and target element by element share: their methods, checks, plan and
//! launch.

use crate::error::{Error, Result};
use crate::launch::{Argument, check_memory, launch};
use crate::plan::{self, Dense, Pass};
use crate::reduction::Reduction;
use crate::stream::{Stream, Workspace};
use crate::tensor::{Loss, Tensor};
use crate::view::{Float, Memory, Shape, View, ViewMut, check_shape};
use kernels_gpu::Family;
use kernels_gpu::abi::{Matrix, PairwiseArgs, reduction};
use std::num::NonZeroU32;

/// The gradients that a call writes: of the input, of the target, or of both. A `&mut Tensor` or a
/// [`ViewMut`] converts into the input's alone.
///
/// `V` is the element type of the loss, and so of the upstream gradient.
pub struct Grads<'a, T, V> {
    pub(crate) input: Option<ViewMut<'a, T>>,
    pub(crate) target: Option<ViewMut<'a, T>>,
    pub(crate) upstream: Option<View<'a, V>>,
}

impl<'a, T: Float, V: Float> Grads<'a, T, V> {
    /// The gradient of the input, of its shape.
    pub fn input(input: impl Into<ViewMut<'a, T>>) -> Self {
        Grads { input: Some(input.into()), target: None, upstream: None }
    }

    /// The gradient of the target, of its shape.
    pub fn target(target: impl Into<ViewMut<'a, T>>) -> Self {
        Grads { input: None, target: Some(target.into()), upstream: None }
    }

    /// Both gradients, of the input's shape.
    pub fn both(input: impl Into<ViewMut<'a, T>>, target: impl Into<ViewMut<'a, T>>) -> Self {
        Grads { input: Some(input.into()), target: Some(target.into()), upstream: None }
    }

    /// None but the one that a call writes over its input.
    pub(crate) fn none() -> Self {
        Grads { input: None, target: None, upstream: None }
    }

    /// The gradients times `upstream`, which has the loss's shape and is on the device: the factor comes
    /// before the gradients are rounded to their type.
    pub fn scaled_by(self, upstream: impl Into<View<'a, V>>) -> Self {
        Grads { upstream: Some(upstream.into()), ..self }
    }
}

impl<'a, T: Float, V: Float> From<ViewMut<'a, T>> for Grads<'a, T, V> {
    fn from(input: ViewMut<'a, T>) -> Self {
        Grads::input(input)
    }
}

impl<'a, T: Float, V: Float> From<&'a mut Tensor<T>> for Grads<'a, T, V> {
    fn from(input: &'a mut Tensor<T>) -> Self {
        Grads::input(input)
    }
}

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
pub(crate) struct Pairwise<R> {
    pub(crate) kernels: &'static Kernels,
    pub(crate) parameter: f64,
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

impl<R: Reduction> Pairwise<R> {
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
        check_memory(stream, &[("input", input), ("target", target)], &[])
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
        };
        let mut dense = R::KIND != reduction::ROWS && input.is_dense() && target.is_dense();

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
            fault.note_write(stream, false)?;
        }
        Ok(())
    }
}

/// The methods of a loss `$loss<R>` that has a method `pairwise(&self) -> Result<Pairwise<R>>`.
macro_rules! methods {
    ($loss:ident, $name:literal, $reduction:path) => {
        impl<R: $reduction> $loss<R> {
            #[doc = concat!("The ", $name, " of `input` and `target`, of one shape.")]
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; [`Error::Driver`](crate::Error::Driver) where memory for the loss is short.")]
            pub fn forward<'a, T: $crate::Float>(
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
            pub fn forward_into<'a, T: $crate::Float>(
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
            #[doc = concat!("See [`", stringify!($loss), "`]; [`Error::Driver`](crate::Error::Driver) where memory for the gradient is short.")]
            pub fn backward<'a, T: $crate::Float>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                upstream: impl Into<$crate::View<'a, R::Value<T>>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<$crate::Tensor<T>> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let mut gradient = $crate::Tensor::uninitialised(stream.gpu(), input.shape())?;
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
            pub fn backward_into<'a, T: $crate::Float>(
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
            pub fn backward_in_place<'a, T: $crate::Float>(
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
            #[doc = concat!("See [`", stringify!($loss), "`]; [`Error::Driver`](crate::Error::Driver) where memory for the results is short.")]
            pub fn forward_backward<'a, T: $crate::Float>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<($crate::Loss<R::Value<T>>, $crate::Tensor<T>)> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let mut loss = this.new_loss::<T>(input.shape(), stream)?;
                let mut gradient = $crate::Tensor::uninitialised(stream.gpu(), input.shape())?;
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
            pub fn forward_backward_into<'a, T: $crate::Float>(
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
            pub fn forward_backward_in_place<'a, T: $crate::Float>(
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
            pub fn forward_backward_in_place_scaled<'a, T: $crate::Float>(
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
    };
}
pub(crate) use methods;
