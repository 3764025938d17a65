//! The backend `NdArray`: burn's own losses, or with the feature `emulator` the kernels, on copies
//! of the tensors.

use crate::backend::FusedLossBackend;
use burn::backend::NdArray;
use burn::backend::ndarray::{
    FloatNdArrayElement, IntNdArrayElement, NdArrayTensor, QuantElement, SharedArray,
};

impl<E, I, Q> FusedLossBackend for NdArray<E, I, Q>
where
    E: FloatNdArrayElement,
    I: IntNdArrayElement,
    Q: QuantElement,
    NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
{
    #[cfg(feature = "emulator")]
    const HAS_KERNELS: bool = true;

    #[cfg(feature = "emulator")]
    fn fused_loss(
        call: crate::backend::Call,
        operands: crate::backend::Operands<Self>,
    ) -> NdArrayTensor {
        crate::kernels::forward(call, operands)
    }

    #[cfg(feature = "emulator")]
    fn fused_loss_backward(
        call: crate::backend::Call,
        operands: crate::backend::Operands<Self>,
        _: Option<NdArrayTensor>,
        upstream: NdArrayTensor,
        wanted: [bool; 2],
    ) -> [Option<NdArrayTensor>; 2] {
        crate::kernels::backward(call, operands, upstream, wanted)
    }
}

#[cfg(feature = "emulator")]
mod emulated {
    use super::*;
    use crate::memory::{Input, Memory, Output, Place, Queue};
    use burn::tensor::ops::{FloatTensorOps, IntTensorOps};
    use burn::tensor::{TensorData, read_sync};
    use fused_loss::{Gpu, Tensor};
    use std::sync::OnceLock;

    impl<E, I, Q> Memory for NdArray<E, I, Q>
    where
        E: FloatNdArrayElement,
        I: IntNdArrayElement,
        Q: QuantElement,
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
        fn queue<C>(inputs: Vec<Input<Self>>, outputs: Vec<Output>, call: C) -> Vec<NdArrayTensor>
        where
            C: FnOnce(&mut Queue<'_>, &[Place], &[Place]) -> fused_loss::Result<()> + Send,
        {
            let data = inputs.into_iter().map(|input| match input {
                Input::Float(tensor) => read_sync(Self::float_into_data(tensor)),
                Input::Int(tensor) => read_sync(Self::int_into_data(tensor)),
            });
            let data = data.map(|data| data.expect("ndarray's data is at hand")).collect();
            let device = Default::default();
            match run(data, outputs, call) {
                Ok(results) => results
                    .into_iter()
                    .map(|result| Self::float_from_data(result, &device))
                    .collect(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// As [`Memory::queue`], with copies on the emulator's device.
    fn run(
        inputs: Vec<TensorData>,
        outputs: Vec<Output>,
        call: impl FnOnce(&mut Queue<'_>, &[Place], &[Place]) -> fused_loss::Result<()>,
    ) -> fused_loss::Result<Vec<TensorData>> {
        static GPU: OnceLock<Gpu> = OnceLock::new();
        let gpu = match GPU.get() {
            Some(gpu) => gpu,
            None => {
                let gpu = Gpu::emulated(0)?;
                GPU.get_or_init(|| gpu)
            }
        };
        let place = |memory: &Tensor<u8>, dtype, dims: &[usize]| -> fused_loss::Result<Place> {
            let shape = fused_loss::Shape::new(dims)?;
            let row_stride = shape.cols();
            Ok(Place { address: memory.as_raw(), dtype, shape, row_stride })
        };
        let (mut held, mut reads, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        for data in &inputs {
            let memory = Tensor::from_slice(gpu, data.bytes.len(), &data.bytes)?;
            reads.push(place(&memory, data.dtype, &data.shape)?);
            held.push(memory);
        }
        let mut results = Vec::new();
        for Output { shape, dtype, .. } in &outputs {
            let memory = Tensor::<u8>::zeros(gpu, shape.num_elements() * dtype.size())?;
            writes.push(place(&memory, *dtype, shape)?);
            results.push(memory);
        }
        let stream = gpu.stream()?;
        let mut workspace = fused_loss::Workspace::new(gpu)?;
        call(&mut Queue { gpu, stream: &stream, workspace: &mut workspace }, &reads, &writes)?;
        stream.synchronize()?;
        let result = |(memory, Output { shape, dtype, .. }): (Tensor<u8>, Output)| {
            let bytes = memory.to_vec()?;
            Ok(TensorData::from_bytes_vec(bytes, shape, dtype))
        };
        results.into_iter().zip(outputs).map(result).collect()
    }
}
