//! What the integration tests share: the device they run on, memory at any alignment, and the
//! float64 references that results are held against.

pub mod filled;
pub mod random;
pub mod reference;

use fused_loss::{Element, Error, Gpu, Tensor, View, ViewMut};
use std::sync::OnceLock;

/// The device of this test run: the first GPU where there is a driver, the emulator otherwise. With
/// `FUSED_LOSS_REQUIRE_GPU` in the environment a missing driver is a failure.
pub fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let gpu = match Gpu::new(0) {
            Err(Error::NoDriver { reason }) => {
                let required = std::env::var_os("FUSED_LOSS_REQUIRE_GPU").is_some();
                assert!(!required, "a GPU is required: {reason}");
                Gpu::emulated(0)
            }
            other => other,
        };
        let gpu = gpu.expect("a device to test on");
        eprintln!("testing on {}", gpu.name());
        gpu
    })
}

/// Elements that lie `offset` elements behind a 16-byte boundary, between guard elements.
pub struct Placed<T> {
    memory: Tensor<T>,
    offset: usize,
    len: usize,
    guard: T,
}

/// Guard elements on both sides, at least.
const GUARDS: usize = 16;

impl<T: Element> Placed<T> {
    pub fn new(data: &[T], offset: usize, guard: T) -> Self {
        let mut padded = vec![guard; GUARDS + offset];
        padded.extend(data);
        padded.extend([guard; GUARDS]);
        let memory = Tensor::from_slice(gpu(), [padded.len()], &padded).unwrap();
        Placed { memory, offset, len: data.len(), guard }
    }

    fn address(&self) -> u64 {
        self.memory.as_raw() + ((GUARDS + self.offset) * size_of::<T>()) as u64
    }

    pub fn view(&self) -> View<'_, T> {
        // SAFETY: within `memory`, which `self` keeps, and whose work the tests wait for.
        unsafe { View::from_raw(self.address(), [self.len], gpu().ordinal()) }.unwrap()
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        // SAFETY: as above.
        unsafe { ViewMut::from_raw(self.address(), [self.len], gpu().ordinal()) }.unwrap()
    }

    /// The elements, once the guards are found as they were.
    pub fn to_vec(&self) -> Vec<T> {
        let padded = self.memory.to_vec().unwrap();
        let (before, rest) = padded.split_at(GUARDS + self.offset);
        let (data, after) = rest.split_at(self.len);
        for guard in before.iter().chain(after) {
            assert_eq!(*guard, self.guard, "memory beside the elements was written");
        }
        data.to_vec()
    }
}

/// A tensor of these values.
pub fn tensor<T: Element>(data: &[T]) -> Tensor<T> {
    Tensor::from_slice(gpu(), [data.len()], data).unwrap()
}
