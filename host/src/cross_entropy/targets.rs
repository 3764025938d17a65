//! What rows should be.

use crate::error::Result;
use crate::tensor::Tensor;
use crate::view::{Float, Memory, Shape, View, check_shape};
use std::marker::PhantomData;

/// What rows should be: classes, a tensor of `i64`, `i32` or `u8` with the input's shape but for
/// the last dimension; or probabilities, a tensor of the input's type and shape.
pub struct Targets<'a, T> {
    pub(super) memory: Memory<'a>,
    /// Bytes of a class; 0 for probabilities.
    pub(super) class_bytes: u32,
    /// What errors call them.
    pub(super) name: &'static str,
    input: PhantomData<T>,
}

macro_rules! classes {
    ($($class:ident)+) => {$(
        impl<'a, T> From<View<'a, $class>> for Targets<'a, T> {
            fn from(classes: View<'a, $class>) -> Self {
                let class_bytes = size_of::<$class>() as u32;
                let name = concat!(stringify!($class), " classes");
                Targets { memory: classes.memory, class_bytes, name, input: PhantomData }
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
        let name = "probabilities";
        Targets { memory: probabilities.memory, class_bytes: 0, name, input: PhantomData }
    }
}

impl<'a, T: Float> From<&'a Tensor<T>> for Targets<'a, T> {
    fn from(probabilities: &'a Tensor<T>) -> Self {
        probabilities.view().into()
    }
}

impl<T> Targets<'_, T> {
    /// Whether each row has the probabilities of all classes, not one class.
    pub(super) fn are_probabilities(&self) -> bool {
        self.class_bytes == 0
    }

    /// Refuses targets that are not those of logits of this shape.
    pub(super) fn check(&self, input: Shape) -> Result<()> {
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
