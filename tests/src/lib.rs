//! What the integration tests share: the device they run on, memory at any alignment, and the
//! float64 references for results.

pub mod apart;
pub mod brief;
pub mod class_rows;
pub mod faults;
pub mod filled;
pub mod fuzz;
pub mod graph;
pub mod layout;
pub mod number;
pub mod random;
pub mod reference;
pub mod stress;

use fused_loss::{Element, Error, Gpu, Tensor, View, ViewMut};
use std::sync::OnceLock;

/// The device of this test run: the first GPU if there is a driver, and the emulator otherwise. If
/// `FUSED_LOSS_REQUIRE_GPU` is set, a missing driver is a failure. If `FUSED_LOSS_EMULATOR_DEVICE`
/// is a number, it is the emulator's device with that number, whatever the machine has.
pub fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let gpu = open();
        eprintln!("testing on {}", gpu.name());
        gpu
    })
}

/// A handle of that device, which closes when its last handle is dropped.
pub fn open() -> Gpu {
    let required = std::env::var_os("FUSED_LOSS_REQUIRE_GPU").is_some();
    let gpu = if let Some(number) = emulated_device() {
        assert!(!required, "a GPU is required, and a device of the emulator named");
        Gpu::emulated(number)
    } else {
        match Gpu::new(0) {
            Err(Error::NoDriver { reason }) => {
                assert!(!required, "a GPU is required: {reason}");
                Gpu::emulated(0)
            }
            // Another handle has been opened already.
            Err(Error::OtherDriver { .. }) if !required => Gpu::emulated(0),
            other => other,
        }
    };
    gpu.expect("a device to test on")
}

/// A handle of another device of the same driver, if there is one.
pub fn open_other(gpu: &Gpu) -> Option<Gpu> {
    if gpu.is_emulated() {
        return Some(Gpu::emulated((gpu.ordinal() + 1) % 3).unwrap());
    }
    (gpu.ordinal() + 1 < Gpu::count().unwrap()).then(|| Gpu::new(gpu.ordinal() + 1).unwrap())
}

/// The emulator's device that the environment names.
fn emulated_device() -> Option<u32> {
    let number = std::env::var("FUSED_LOSS_EMULATOR_DEVICE").ok()?;
    Some(number.parse().unwrap_or_else(|_| panic!("expected a device's number, got {number}")))
}

/// The GPU, or the emulator's device with two multiprocessors. With few rows, its blocks have as
/// much work as those of other devices have with many.
pub fn small_gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| match gpu() {
        gpu if gpu.is_emulated() => Gpu::emulated(2).unwrap(),
        gpu => gpu.clone(),
    })
}

/// Rows that begin `offset` elements after a 16-byte boundary with a stride of `stride` elements,
/// between guard elements.
pub struct Placed<T> {
    memory: Tensor<T>,
    offset: usize,
    shape: [usize; 2],
    stride: usize,
    guard: T,
}

/// The least number of guard elements on each side: whole groups of 16 bytes for every element
/// type.
const GUARDS: usize = 16;

impl<T: Element> Placed<T> {
    /// One row.
    pub fn new(data: &[T], offset: usize, guard: T) -> Self {
        Self::rows(data, [1, data.len()], data.len(), offset, guard)
    }

    /// Rows of `shape[1]` elements each.
    pub fn rows(data: &[T], shape: [usize; 2], stride: usize, offset: usize, guard: T) -> Self {
        Self::on(gpu(), data, shape, stride, offset, guard)
    }

    /// [`rows`](Self::rows) on this device.
    pub fn on(
        gpu: &Gpu,
        data: &[T],
        shape: [usize; 2],
        stride: usize,
        offset: usize,
        guard: T,
    ) -> Self {
        let [rows, cols] = shape;
        assert_eq!(data.len(), rows * cols);
        let mut padded = vec![guard; GUARDS + offset + rows * stride + GUARDS];
        for row in 0..rows {
            let start = GUARDS + offset + row * stride;
            padded[start..start + cols].copy_from_slice(&data[row * cols..(row + 1) * cols]);
        }
        let memory = Tensor::from_slice(gpu, [padded.len()], &padded).unwrap();
        Placed { memory, offset, shape, stride, guard }
    }

    /// The address of the first element.
    pub fn address(&self) -> u64 {
        self.memory.as_raw() + ((GUARDS + self.offset) * size_of::<T>()) as u64
    }

    pub fn view(&self) -> View<'_, T> {
        let (gpu, address) = (self.memory.gpu(), self.address());
        // SAFETY: within `memory`, which `self` owns, and whose work the tests wait for.
        unsafe { View::from_raw_strided(gpu, address, self.shape, self.stride) }.unwrap()
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        let (gpu, address) = (self.memory.gpu(), self.address());
        // SAFETY: as above.
        unsafe { ViewMut::from_raw_strided(gpu, address, self.shape, self.stride) }.unwrap()
    }

    /// The elements, after a check that the guards are unchanged.
    pub fn to_vec(&self) -> Vec<T> {
        let [rows, cols] = self.shape;
        let mut padded = self.memory.to_vec().unwrap();
        let mut data = Vec::new();
        for row in 0..rows {
            let start = GUARDS + self.offset + row * self.stride;
            data.extend_from_slice(&padded[start..start + cols]);
            padded[start..start + cols].fill(self.guard);
        }
        let guard = format!("{:?}", self.guard);
        // A NaN equals no number, so it is compared by its printed name.
        for (index, other) in padded.iter().enumerate().filter(|(_, other)| **other != self.guard) {
            assert_eq!(format!("{other:?}"), guard, "element {index}, a guard, was written");
        }
        data
    }
}

/// A tensor of these values.
pub fn tensor<T: Element>(data: &[T]) -> Tensor<T> {
    Tensor::from_slice(gpu(), [data.len()], data).unwrap()
}
