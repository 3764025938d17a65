//! The targets of rows of logits.

use crate::element::Float;
use crate::error::Result;
use crate::memory::Memory;
use crate::shape::{Shape, check_shape};
use crate::tensor::Tensor;
use crate::view::View;
use std::fmt;
use std::marker::PhantomData;

/// The targets of rows of logits: either classes, a tensor of `i64`, `i32`, `u32` or `u8` with the
/// input's shape without its last dimension, or probabilities, a tensor of the input's type and
/// shape.
#[derive(Clone, Copy)]
pub struct Targets<'a, T> {
    pub(crate) memory: Memory<'a>,
    /// Bytes of a class; 0 for probabilities.
    pub(super) class_bytes: u32,
    /// Whether classes have no sign.
    pub(super) is_unsigned: bool,
    /// Their name in errors.
    pub(super) name: &'static str,
    input: PhantomData<T>,
}

macro_rules! classes {
    ($($class:ident)+) => {$(
        impl<'a, T> From<View<'a, $class>> for Targets<'a, T> {
            fn from(classes: View<'a, $class>) -> Self {
                let class_bytes = size_of::<$class>() as u32;
                let name = concat!(stringify!($class), " classes");
                let is_unsigned = <$class>::MIN == 0;
                let (memory, input) = (classes.memory, PhantomData);
                Targets { memory, class_bytes, is_unsigned, name, input }
            }
        }

        impl<'a, T> From<&'a Tensor<$class>> for Targets<'a, T> {
            fn from(classes: &'a Tensor<$class>) -> Self {
                classes.view().into()
            }
        }

        impl<'a> From<View<'a, $class>> for Classes<'a> {
            fn from(classes: View<'a, $class>) -> Self {
                Classes(classes.into())
            }
        }

        impl<'a> From<&'a Tensor<$class>> for Classes<'a> {
            fn from(classes: &'a Tensor<$class>) -> Self {
                classes.view().into()
            }
        }
    )+};
}
classes!(i64 i32 u32 u8);

impl<'a, T: Float> From<View<'a, T>> for Targets<'a, T> {
    fn from(probabilities: View<'a, T>) -> Self {
        let (memory, name, input) = (probabilities.memory, "probabilities", PhantomData);
        Targets { memory, class_bytes: 0, is_unsigned: false, name, input }
    }
}

impl<'a, T: Float> From<&'a Tensor<T>> for Targets<'a, T> {
    fn from(probabilities: &'a Tensor<T>) -> Self {
        probabilities.view().into()
    }
}

/// The class of each row: a tensor of `i64`, `i32`, `u32` or `u8` with the input's shape without
/// its last dimension. Unlike [`Targets`], these are never probabilities.
#[derive(Clone, Copy)]
pub struct Classes<'a>(Targets<'a, ()>);

impl<'a> Classes<'a> {
    /// These classes as [`Targets`] of logits of `T`.
    pub(crate) fn targets<T>(self) -> Targets<'a, T> {
        let Targets { memory, class_bytes, is_unsigned, name, .. } = self.0;
        Targets { memory, class_bytes, is_unsigned, name, input: PhantomData }
    }
}

impl fmt::Debug for Classes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> fmt::Debug for Targets<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { shape, device, .. } = self.memory;
        write!(f, "Targets({}){shape:?} on device {device}", self.name)
    }
}

impl<T> Targets<'_, T> {
    /// Whether each row has the probabilities of all classes, not one class.
    pub(super) fn are_probabilities(&self) -> bool {
        self.class_bytes == 0
    }

    /// Whether these classes are unsigned, but the kernels load them as signed.
    pub(super) fn lose_sign(&self) -> bool {
        self.is_unsigned && self.class_bytes == 4
    }

    /// The class of ignored rows, as the kernels load it. If no target can be that class, it is a
    /// number that they never load.
    pub(super) fn as_loaded(&self, ignore_index: i64) -> i64 {
        if !self.lose_sign() {
            return ignore_index;
        }
        u32::try_from(ignore_index).map_or(i64::MIN, |class| class.cast_signed().into())
    }

    /// Refuses targets that do not fit logits of this shape.
    pub(crate) fn check(&self, input: Shape) -> Result<()> {
        let memory = self.memory;
        if self.are_probabilities() {
            check_shape("target", input, memory.shape)?;
            memory.check::<T>("target")?;
            return memory.check_elements("target");
        }
        check_shape("target", input.of_rows(), memory.shape)?;
        memory.check_aligned("target", self.class_bytes as usize)?;
        memory.check_elements("target")?;
        memory.check_dense("target")
    }
}
