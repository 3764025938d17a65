//! The memory of candle's tensors, as calls of the library take it.
//!
//! On CUDA it is candle's own memory, used without a copy and on candle's stream. On the CPU it is
//! copied to the emulator's device and back.

use crate::queue::Place;
use crate::wrap;
use bytemuck::allocation::pod_collect_to_vec;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, DType, Layout, Result, Storage, bail};
use fused_loss::{Dtype, Element, Float, Gpu, Shape, View, ViewMut};
#[cfg(not(feature = "cuda"))]
use std::marker::PhantomData;
use std::ops::Deref;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    CudaStorageSlice,
    cudarc::driver::{DevicePtr, DevicePtrMut, SyncOnDrop},
};

/// A tensor's storage, and the tensor's layout in it.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) memory: Memory<'a>,
    pub(crate) layout: &'a Layout,
}

#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    Cpu(&'a CpuStorage),
    Cuda(&'a CudaStorage),
}

impl<'a> Operand<'a> {
    pub(crate) fn cpu(storage: &'a CpuStorage, layout: &'a Layout) -> Self {
        Operand { memory: Memory::Cpu(storage), layout }
    }

    pub(crate) fn cuda(storage: &'a CudaStorage, layout: &'a Layout) -> Self {
        Operand { memory: Memory::Cuda(storage), layout }
    }

    pub(crate) fn new(storage: &'a Storage, layout: &'a Layout) -> Result<Self> {
        match storage {
            Storage::Cpu(storage) => Ok(Self::cpu(storage, layout)),
            Storage::Cuda(storage) => Ok(Self::cuda(storage, layout)),
            Storage::Metal(_) => bail!("{NO_METAL}"),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self.memory {
            Memory::Cpu(storage) => storage.dtype(),
            Memory::Cuda(storage) => storage.dtype(),
        }
    }

    pub(crate) fn dims(&self) -> &'a [usize] {
        self.layout.dims()
    }

    /// The memory, for a call on the stream of `place` to read.
    pub(crate) fn read(&self, place: &'a Place) -> Result<Input<'a>> {
        let Some(row_stride) = row_stride(self.layout) else {
            bail!("expected rows of elements beside each other, got {:?}", self.layout)
        };
        let shape = Shape::new(self.dims()).map_err(wrap)?;
        let (address, held) = match self.memory {
            Memory::Cpu(storage) => {
                let start = self.layout.start_offset();
                let gaps = shape.rows().saturating_sub(1) * row_stride;
                let end = if shape.is_empty() { start } else { start + gaps + shape.cols() };
                place.copy_to_device(cpu_bytes(storage, start, end)?)?
            }
            #[cfg(feature = "cuda")]
            Memory::Cuda(storage) => read_cuda(storage, self.layout, place)?,
            #[cfg(not(feature = "cuda"))]
            Memory::Cuda(_) => bail!("{NO_CUDA}"),
        };
        Ok(Input { address, shape, row_stride, gpu: place.gpu(), _held: held })
    }
}

pub(crate) const NO_METAL: &str = "fused-loss-candle computes on CUDA devices, and on the CPU with \
    its feature `emulator`; on Metal use candle_nn::loss";
#[cfg(not(feature = "cuda"))]
pub(crate) const NO_CUDA: &str = "fused-loss-candle was built without its feature `cuda`";
#[cfg(not(feature = "emulator"))]
pub(crate) const NO_CPU: &str = "fused-loss-candle computes on CUDA devices; its feature \
    `emulator` runs the same kernels on the CPU, for tests. Otherwise, on the CPU use \
    candle_nn::loss";

/// Elements from the start of a row, the last dimension, to the start of the next, if the elements
/// of a row are adjacent and rows are equally far apart.
pub(crate) fn row_stride(layout: &Layout) -> Option<usize> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let cols = dims.last().copied().unwrap_or(1);
    if dims.contains(&0) {
        return Some(cols);
    }
    // The stride of a dimension of size 1 does not matter.
    let mut of_more = dims.iter().zip(strides).rev().filter(|&(&dim, _)| dim != 1);
    if cols != 1 && of_more.next().is_some_and(|(_, &stride)| stride != 1) {
        return None;
    }
    let mut rows: Option<(usize, usize)> = None;
    for (&dim, &stride) in of_more {
        let (row, expected) = rows.unwrap_or((stride, stride));
        if stride != expected {
            return None;
        }
        rows = Some((row, expected * dim));
    }
    let row = rows.map_or(cols, |(row, _)| row);
    (row >= cols).then_some(row)
}

/// What must live until the work of a call is queued, so that its memory does.
pub(crate) enum Held<'a> {
    /// Of the emulator.
    Emulated { _memory: fused_loss::Tensor<u8> },
    /// Tells cudarc that the stream has used the memory.
    #[cfg(feature = "cuda")]
    Cuda { _used: SyncOnDrop<'a> },
    #[cfg(not(feature = "cuda"))]
    #[allow(dead_code, reason = "has the lifetime where there is no CUDA")]
    Nothing(PhantomData<&'a ()>),
}

/// Memory that a call reads.
pub(crate) struct Input<'a> {
    address: u64,
    shape: Shape,
    row_stride: usize,
    gpu: &'a Gpu,
    _held: Held<'a>,
}

impl Input<'_> {
    /// The memory as a call takes it. Its elements are of type `T`.
    pub(crate) fn view<T: Element>(&self) -> Result<View<'_, T>> {
        let (address, shape, stride) = (self.address, self.shape, self.row_stride);
        // SAFETY: the tensor's elements have this layout from that address on, and live until work
        // that is queued while `self` lives has used them: candle frees memory in the order of the
        // stream, and the emulator's memory is dropped after all queued work.
        unsafe { View::from_raw_strided(self.gpu, address, shape, stride) }.map_err(wrap)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }
}

/// The memory of a tensor that may be missing, for a call on the stream of `place` to read.
pub(crate) fn read_option<'a, S: Deref<Target = Storage>>(
    tensor: &'a Option<(S, &'a Layout)>,
    place: &'a Place,
) -> Result<Option<Input<'a>>> {
    let read = |(storage, layout): &'a (S, &'a Layout)| Operand::new(storage, layout)?.read(place);
    tensor.as_ref().map(read).transpose()
}

/// That memory as a call takes it.
pub(crate) fn view_option<'a, T: Element>(
    input: &'a Option<Input<'_>>,
) -> Result<Option<View<'a, T>>> {
    input.as_ref().map(Input::view).transpose()
}

/// Memory for the result of a call, from candle's allocator.
pub(crate) enum Output {
    Emulated {
        memory: fused_loss::Tensor<u8>,
        dtype: DType,
    },
    #[cfg(feature = "cuda")]
    Cuda(CudaStorage),
}

/// An [`Output`] while calls that write it are queued.
pub(crate) struct Target<'a> {
    address: u64,
    gpu: &'a Gpu,
    _held: Option<Held<'a>>,
}

impl Target<'_> {
    /// Its first elements, as a call takes them.
    pub(crate) fn view<T: Element>(&mut self, shape: Shape) -> Result<ViewMut<'_, T>> {
        // SAFETY: `Output::new` allocated these elements; no other code knows the memory yet.
        unsafe { ViewMut::from_raw(self.gpu, self.address, shape) }.map_err(wrap)
    }

    /// As [`view`](Self::view), with room for the report on targets, `offset` bytes after the
    /// start.
    pub(crate) fn loss<T: Element>(
        &mut self,
        shape: Shape,
        offset: usize,
    ) -> Result<ViewMut<'_, T>> {
        let fault = self.address + offset as u64;
        // SAFETY: `Output::new` allocated these bytes too, after the elements.
        unsafe { self.view::<T>(shape)?.with_target_fault(fault) }.map_err(wrap)
    }
}

impl Output {
    /// Memory for `len` elements, not initialised.
    pub(crate) fn new(place: &Place, dtype: DType, len: usize) -> Result<Self> {
        match place {
            Place::Cpu(gpu) => {
                let bytes = len * dtype.size_in_bytes();
                let memory = fused_loss::Tensor::zeros(gpu, [bytes]).map_err(wrap)?;
                Ok(Output::Emulated { memory, dtype })
            }
            #[cfg(feature = "cuda")]
            Place::Cuda { device, .. } => {
                use candle_core::backend::BackendDevice;
                let shape = candle_core::Shape::from(len);
                // SAFETY: the call that gets it writes all elements that a tensor is made of.
                Ok(Output::Cuda(unsafe { device.alloc_uninit(&shape, dtype)? }))
            }
        }
    }

    /// The memory, for calls on the stream of `place` to write.
    pub(crate) fn write<'a>(&'a mut self, place: &'a Place) -> Result<Target<'a>> {
        let (address, held) = match self {
            Output::Emulated { memory, .. } => (memory.as_raw(), None),
            #[cfg(feature = "cuda")]
            Output::Cuda(storage) => {
                let (address, held) = write_cuda(storage, place)?;
                (address, Some(held))
            }
        };
        Ok(Target { address, gpu: place.gpu(), _held: held })
    }

    /// The storage of a tensor. What writes it is queued, and done on the emulator.
    pub(crate) fn finish(self) -> Result<Storage> {
        match self {
            Output::Emulated { memory, dtype } => {
                let bytes = memory.to_vec().map_err(wrap)?;
                Ok(Storage::Cpu(cpu_storage(dtype, &bytes)?))
            }
            #[cfg(feature = "cuda")]
            Output::Cuda(storage) => Ok(Storage::Cuda(storage)),
        }
    }
}

/// candle's name for a type of the library.
pub(crate) fn dtype_of<T: Float>() -> DType {
    match T::DTYPE {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::Bf16 => DType::BF16,
    }
}

macro_rules! dtypes {
    ($($name:ident)+) => {
        fn cpu_bytes(storage: &CpuStorage, start: usize, end: usize) -> Result<&[u8]> {
            match storage {
                $(CpuStorage::$name(data) => Ok(bytemuck::cast_slice(&data[start..end])),)+
                other => bail!("no loss takes a tensor of {:?}", other.dtype()),
            }
        }

        fn cpu_storage(dtype: DType, bytes: &[u8]) -> Result<CpuStorage> {
            match dtype {
                $(DType::$name => Ok(CpuStorage::$name(pod_collect_to_vec(bytes))),)+
                other => bail!("no loss is a tensor of {other:?}"),
            }
        }

        /// The address of a tensor's first element.
        #[cfg(feature = "cuda")]
        fn read_cuda<'a>(
            storage: &'a CudaStorage,
            layout: &Layout,
            place: &'a Place,
        ) -> Result<(u64, Held<'a>)> {
            let Place::Cuda { stream, .. } = place else { bail!("{OTHER_DEVICES}") };
            let (address, used) = match &storage.slice {
                $(CudaStorageSlice::$name(slice) => slice.device_ptr(stream),)+
                _ => bail!("no loss takes a tensor of {:?}", storage.dtype()),
            };
            let offset = layout.start_offset() * storage.dtype().size_in_bytes();
            Ok((address + offset as u64, Held::Cuda { _used: used }))
        }

        /// The address of memory that only a call uses.
        #[cfg(feature = "cuda")]
        fn write_cuda<'a>(
            storage: &'a mut CudaStorage,
            place: &'a Place,
        ) -> Result<(u64, Held<'a>)> {
            let Place::Cuda { stream, .. } = place else { bail!("{OTHER_DEVICES}") };
            let (address, used) = match &mut storage.slice {
                $(CudaStorageSlice::$name(slice) => slice.device_ptr_mut(stream),)+
                _ => bail!("no loss is a tensor of this type"),
            };
            Ok((address, Held::Cuda { _used: used }))
        }
    };
}
dtypes!(U8 U32 I32 I64 BF16 F16 F32 F64);

#[cfg(feature = "cuda")]
const OTHER_DEVICES: &str = "expected tensors of one CUDA device, got one on the CPU beside it";

#[cfg(test)]
mod tests {
    use super::row_stride;
    use candle_core::{Layout, Shape};

    fn of(dims: &[usize], strides: &[usize]) -> Option<usize> {
        row_stride(&Layout::new(Shape::from(dims), strides.to_vec(), 0))
    }

    #[test]
    fn rows_equally_far_apart_have_a_stride() {
        assert_eq!(of(&[], &[]), Some(1));
        assert_eq!(of(&[5], &[1]), Some(5));
        assert_eq!(of(&[2, 3], &[3, 1]), Some(3));
        assert_eq!(of(&[2, 3], &[8, 1]), Some(8), "columns of a wider matrix");
        assert_eq!(of(&[4, 2, 3], &[16, 8, 1]), Some(8));
        assert_eq!(of(&[4, 1, 3], &[8, 99, 1]), Some(8), "one element has no stride that matters");
        assert_eq!(of(&[4, 1], &[8, 7]), Some(8));
        assert_eq!(of(&[1, 3], &[0, 1]), Some(3));
        assert_eq!(of(&[0, 3], &[0, 0]), Some(3));
    }

    #[test]
    fn others_have_none() {
        assert_eq!(of(&[2, 3], &[1, 2]), None, "transposed");
        assert_eq!(of(&[2, 3], &[0, 1]), None, "one row that stands for all");
        assert_eq!(of(&[2, 3], &[3, 0]), None, "one element that stands for its row");
        assert_eq!(of(&[4, 2, 3], &[24, 8, 1]), None, "gaps between groups of rows");
        assert_eq!(of(&[3], &[2]), None);
    }
}
