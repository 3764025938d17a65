//! The library's devices and streams for those of candle's tensors.

use crate::memory::{Held, Memory};
use crate::wrap;
use candle_core::Result;
use fused_loss::{Gpu, Stream, Workspace};
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cuda")]
use candle_core::{CudaDevice, cuda_backend::cudarc::driver::CudaStream};
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// The device of a call's tensors, and the stream that it is queued on.
pub(crate) enum Place {
    /// The CPU: the emulator's device.
    Cpu(Gpu),
    #[cfg(feature = "cuda")]
    Cuda { gpu: Gpu, device: CudaDevice, stream: Arc<CudaStream> },
}

impl Place {
    pub(crate) fn of(memory: Memory<'_>) -> Result<Self> {
        match memory {
            Memory::Cpu(_) => Ok(Place::Cpu(emulated()?)),
            #[cfg(feature = "cuda")]
            Memory::Cuda(storage) => {
                let device = storage.device.clone();
                let stream = device.cuda_stream();
                let ordinal = stream.context().ordinal() as u32;
                let gpu = kept(false, ordinal, Gpu::new)?;
                Ok(Place::Cuda { gpu, device, stream })
            }
            #[cfg(not(feature = "cuda"))]
            Memory::Cuda(_) => candle_core::bail!("{}", crate::memory::NO_CUDA),
        }
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        match self {
            Place::Cpu(gpu) => gpu,
            #[cfg(feature = "cuda")]
            Place::Cuda { gpu, .. } => gpu,
        }
    }

    /// The emulator's copy of a tensor on the CPU, and its address.
    pub(crate) fn copy_to_device<'a>(&self, bytes: &[u8]) -> Result<(u64, Held<'a>)> {
        let memory = fused_loss::Tensor::from_slice(self.gpu(), [bytes.len()], bytes);
        let memory = memory.map_err(wrap)?;
        Ok((memory.as_raw(), Held::Emulated { _memory: memory }))
    }

    /// Whether the stream is the one that this was made for.
    fn is(&self, stream: &Queue) -> bool {
        match (self, &stream.candle) {
            (Place::Cpu(_), None) => true,
            #[cfg(feature = "cuda")]
            (Place::Cuda { gpu, stream, .. }, Some(candle)) => {
                gpu.ordinal() == candle.context().ordinal() as u32
                    && stream.cu_stream() == candle.cu_stream()
            }
            _ => false,
        }
    }

    /// Lets `queue` queue a call on the stream, and gives it scratch memory for that stream. On the
    /// emulator the work is done when this returns.
    pub(crate) fn queue(
        &self,
        queue: impl FnOnce(&Stream, &mut Workspace) -> fused_loss::Result<()>,
    ) -> Result<()> {
        // candle's default stream differs from thread to thread, and so does this.
        thread_local! {
            static QUEUES: RefCell<Vec<Queue>> = const { RefCell::new(Vec::new()) };
        }
        QUEUES.with_borrow_mut(|queues| {
            let known = queues.iter().position(|known| self.is(known));
            let at = match known {
                Some(at) => at,
                None => {
                    queues.retain(Queue::is_in_use);
                    queues.push(self.new_queue()?);
                    queues.len() - 1
                }
            };
            let Queue { stream, workspace, .. } = &mut queues[at];
            queue(stream, workspace).map_err(wrap)?;
            match self {
                Place::Cpu(_) => stream.synchronize().map_err(wrap),
                #[cfg(feature = "cuda")]
                Place::Cuda { .. } => Ok(()),
            }
        })
    }

    fn new_queue(&self) -> Result<Queue> {
        let gpu = self.gpu();
        let workspace = Workspace::new(gpu).map_err(wrap)?;
        match self {
            Place::Cpu(_) => {
                let stream = gpu.stream().map_err(wrap)?;
                Ok(Queue { workspace, stream, candle: None })
            }
            #[cfg(feature = "cuda")]
            Place::Cuda { stream: candle, .. } => {
                // SAFETY: it is a stream of the device's primary context, like all of cudarc's, and
                // exists as long as `Queue` refers to it. Of the library's objects, a captured call
                // uses only the workspace and the stream, which live until candle's stream is
                // dropped.
                let stream = unsafe { Stream::from_raw(gpu, candle.cu_stream().cast()) };
                Ok(Queue { workspace, stream: stream.map_err(wrap)?, candle: Some(candle.clone()) })
            }
        }
    }
}

/// A stream, and scratch memory for the calls on it.
struct Queue {
    workspace: Workspace,
    stream: Stream,
    /// Declared after the stream, so that it is dropped later.
    candle: Option<Candle>,
}

#[cfg(feature = "cuda")]
type Candle = Arc<CudaStream>;
#[cfg(not(feature = "cuda"))]
type Candle = std::convert::Infallible;

impl Queue {
    /// Whether any other code refers to candle's stream.
    fn is_in_use(&self) -> bool {
        match &self.candle {
            None => true,
            #[cfg(feature = "cuda")]
            Some(candle) => Arc::strong_count(candle) > 1,
            #[cfg(not(feature = "cuda"))]
            Some(never) => match *never {},
        }
    }
}

/// The device, which stays open with its compiled kernels until the process ends.
fn kept(
    emulated: bool,
    ordinal: u32,
    open: impl FnOnce(u32) -> fused_loss::Result<Gpu>,
) -> Result<Gpu> {
    static GPUS: Mutex<Vec<Gpu>> = Mutex::new(Vec::new());
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = gpus.iter().find(|gpu| gpu.ordinal() == ordinal && gpu.is_emulated() == emulated);
    if let Some(gpu) = known {
        return Ok(gpu.clone());
    }
    let gpu = open(ordinal).map_err(wrap)?;
    gpus.push(gpu.clone());
    Ok(gpu)
}

#[cfg(feature = "emulator")]
fn emulated() -> Result<Gpu> {
    kept(true, 0, Gpu::emulated)
}

#[cfg(not(feature = "emulator"))]
fn emulated() -> Result<Gpu> {
    candle_core::bail!("{}", crate::memory::NO_CPU)
}
