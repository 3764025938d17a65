//! burn's memory on CUDA devices, used without a copy.

use crate::backend::{Call, FusedLossBackend, Operands};
use crate::memory::{Input, Memory, Output, Place, Queue, row_stride};
use crate::{fence, kernels};
use burn::tensor::TensorMetadata;
use burn::tensor::ops::FloatTensor;
use burn_cubecl::cubecl::Runtime;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::device::Device;
use burn_cubecl::cubecl::device_handle::DeviceHandle;
use burn_cubecl::cubecl::server::{ComputeServer, Handle};
use burn_cubecl::cubecl::stream_id::StreamId;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, FloatElement, IntElement};

type Server = <CudaRuntime as Runtime>::Server;
type Tensor = CubeTensor<CudaRuntime>;

impl<F, I, BT> FusedLossBackend for CubeBackend<CudaRuntime, F, I, BT>
where
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    const HAS_KERNELS: bool = true;

    fn fused_loss(call: Call, operands: Operands<Self>) -> FloatTensor<Self> {
        kernels::forward(call, operands)
    }

    fn fused_loss_backward(
        call: Call,
        operands: Operands<Self>,
        _: Option<FloatTensor<Self>>,
        upstream: FloatTensor<Self>,
        wanted: [bool; 2],
    ) -> [Option<FloatTensor<Self>>; 2] {
        kernels::backward(call, operands, upstream, wanted)
    }
}

impl<F, I, BT> Memory for CubeBackend<CudaRuntime, F, I, BT>
where
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    /// cubecl's thread for the device queues the call, in the order in which burn's operations
    /// reached it. The caller waits for that thread, but not for the GPU.
    fn queue<C>(inputs: Vec<Input<Self>>, outputs: Vec<Output>, call: C) -> Vec<Tensor>
    where
        C: FnOnce(&mut Queue<'_>, &[Place], &[Place]) -> fused_loss::Result<()> + Send,
    {
        let inputs: Vec<Tensor> = inputs
            .into_iter()
            .map(|input| match input {
                Input::Float(tensor) | Input::Int(tensor) => for_rows(tensor),
            })
            .collect();
        let device = inputs[0].device.clone();
        if let Some(other) = inputs.iter().find(|input| input.device != device) {
            panic!("expected tensors of one device, got {device:?} and {:?}", other.device)
        }
        let outputs: Vec<Tensor> = outputs
            .into_iter()
            .map(|Output { shape, dtype, over_input }| {
                if over_input && inputs[0].can_mut() {
                    return inputs[0].clone();
                }
                let client = inputs[0].client.clone();
                empty_device_contiguous_dtype(client, device.clone(), shape, dtype)
            })
            .collect();

        let ordinal = device.to_id().index_id.into();
        let (reads, writes) = (memory_of(&inputs), memory_of(&outputs));
        let queued = DeviceHandle::<Server>::new(device.to_id()).submit_blocking(move |server| {
            let (reads, _held_to_read) = places(server, reads)?;
            let (writes, _held_to_write) = places(server, writes)?;
            // SAFETY: cubecl passes all work on this device to the driver on this thread, so all
            // work that the tensors depend on is queued. The handles here keep their memory alive
            // until the call has returned.
            unsafe { fence::queue(ordinal, |queue| call(queue, &reads, &writes)) }
        });
        match queued {
            Ok(Ok(())) => outputs,
            Ok(Err(problem)) => panic!("{problem}"),
            Err(_) => panic!("cubecl's thread of {device:?} has ended"),
        }
    }
}

/// The tensor, if its rows are laid out as the kernels take them, which may have gaps; otherwise a
/// contiguous copy.
fn for_rows(tensor: Tensor) -> Tensor {
    match row_stride(tensor.meta.shape(), tensor.meta.strides()) {
        Some(_) => tensor,
        None => into_contiguous(tensor),
    }
}

/// What cubecl's thread needs to know of a tensor.
struct Lent {
    handle: Handle,
    place: Result<Place, fused_loss::Error>,
}

fn memory_of(tensors: &[Tensor]) -> Vec<Lent> {
    let lend = |tensor: &Tensor| {
        let (dims, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let shape = fused_loss::Shape::new(&dims[..]);
        let row_stride = row_stride(dims, strides).expect("rows as the kernels take them");
        let dtype = tensor.dtype();
        let place = shape.map(|shape| Place { address: 0, dtype, shape, row_stride });
        Lent { handle: tensor.handle.clone(), place }
    };
    tensors.iter().map(lend).collect()
}

/// Where cubecl has the memory, and the handles that keep it alive.
fn places(
    server: &mut Server,
    tensors: Vec<Lent>,
) -> Result<(Vec<Place>, impl Sized + use<>), String> {
    let (mut places, mut held) = (Vec::new(), Vec::new());
    for Lent { handle, place } in tensors {
        let mut place = place.map_err(|error| error.to_string())?;
        // cubecl has no address for an empty tensor.
        if !place.shape.is_empty() {
            let resource = server
                .get_resource(handle.binding(), StreamId::current())
                .map_err(|error| format!("cubecl has no memory of a tensor: {error}"))?;
            place.address = resource.resource().ptr;
            held.push(resource);
        }
        places.push(place);
    }
    Ok((places, held))
}
