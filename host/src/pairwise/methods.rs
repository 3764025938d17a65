//! The methods of losses that compare input and target element by element.

/// The methods of a loss that has a method `pairwise(&self) -> Result<Pairwise<'_, R>>`, and its
/// [`LossFunction`](crate::LossFunction): of `$loss<R>`, for all element types, or of `$loss<'w, T,
/// R>`, for one.
macro_rules! methods {
    ($loss:ident<R>, $name:literal, $reduction:path) => {
        $crate::pairwise::methods!(
            @ $loss, [$loss<R>], $name, [R: $reduction], [, T: $crate::Float],
            [T: $crate::Float, R: $reduction]
        );
    };
    ($loss:ident<'w, T, R>, $name:literal, $reduction:path) => {
        $crate::pairwise::methods!(
            @ $loss, [$loss<'w, T, R>], $name, ['w, T: $crate::Float, R: $reduction], [],
            ['w, T: $crate::Float, R: $reduction]
        );
    };
    // After the loss's name and type: the generic parameters of its `impl` block, of each method,
    // and of the trait's methods.
    (
        @ $loss:ident, [$type:ty], $name:literal, [$($of_type:tt)+], [$($of_method:tt)*],
        [$($of_trait:tt)+]
    ) => {
        impl<$($of_type)+> $type {
            #[doc = concat!("The ", $name, " of `input` and `target`, of one shape.")]
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; ")]
            /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the loss is short.
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

            /// As [`forward`](Self::forward), written to `loss`, which has the reduction's shape.
            /// Allocates nothing.
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

            /// The gradient of `input`, in its shape, from `upstream`, the gradient of the loss, in
            /// the loss's shape.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; ")]
            /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the gradient is
            /// short.
            pub fn backward<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                upstream: impl Into<$crate::View<'a, R::Value<T>>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<$crate::Tensor<T>> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let (gpu, shape) = (stream.gpu(), input.shape());
                let mut gradient = $crate::Tensor::uninitialised(gpu, shape, "gradient")?;
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

            /// The gradients that `grads` asks for, from `upstream`, which has the loss's shape.
            /// Allocates nothing.
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
                let loss = None;
                let call = $crate::pairwise::Call { input, target, loss, grads, in_place: false };
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
                let loss = None;
                let call = $crate::pairwise::Call { input, target, loss, grads, in_place: true };
                self.pairwise()?.queue::<T>(call, stream.workspace(), stream)
            }

            /// The loss, and the gradient of `input` for an upstream gradient of ones, in one pass
            /// over memory. If each row has a loss, two kinds of rows take two passes: rows with a
            /// weight per element, and long rows whose gradients are aligned differently.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($loss), "`]; ")]
            /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if memory for the results is
            /// short.
            pub fn forward_backward<'a $($of_method)*>(
                &self,
                input: impl Into<$crate::View<'a, T>>,
                target: impl Into<$crate::View<'a, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<($crate::Loss<R::Value<T>>, $crate::Tensor<T>)> {
                let (this, input, target) = (self.pairwise()?, input.into(), target.into());
                this.check_inputs(&input, &target, stream)?;
                let mut loss = this.new_loss::<T>(input.shape(), stream)?;
                let (gpu, shape) = (stream.gpu(), input.shape());
                let mut gradient = $crate::Tensor::uninitialised(gpu, shape, "gradient")?;
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

            /// The loss and the gradients that `grads` asks for, times its upstream gradient if it
            /// has one, in one pass over memory. Allocates nothing.
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

            /// The loss, and the gradient of `input` for an upstream gradient of ones written over
            /// it, in one pass over memory. Allocates nothing.
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

            /// As [`forward_backward_in_place`](Self::forward_backward_in_place), with the gradient
            /// times `upstream`, which has the loss's shape. It can be the loss scale of
            /// mixed-precision training, for example.
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
                let input: $crate::View<'_, T> = input.into();
                let target: $crate::View<'_, T> = target.into();
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
                let input: $crate::View<'_, T> = input.into();
                let target: $crate::View<'_, T> = target.into();
                let loss: $crate::ViewMut<'_, R::Value<T>> = loss.into();
                self.forward_into(input, target, loss, workspace, stream)
            }

            fn forward_backward<'i, 't>(
                &self,
                input: impl Into<$crate::View<'i, T>>,
                target: impl Into<$crate::View<'t, T>>,
                stream: &$crate::Stream,
            ) -> $crate::Result<($crate::Loss<R::Value<T>>, $crate::Tensor<T>)> {
                let input: $crate::View<'_, T> = input.into();
                let target: $crate::View<'_, T> = target.into();
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
                let input: $crate::View<'_, T> = input.into();
                let target: $crate::View<'_, T> = target.into();
                let loss: $crate::ViewMut<'_, R::Value<T>> = loss.into();
                let grads: $crate::Grads<'_, T, R::Value<T>> = grads.into();
                self.forward_backward_into(input, target, loss, grads, workspace, stream)
            }
        }
    };
}
pub(crate) use methods;
