//! The emulator in programs that do more than call it from one thread.

use fused_loss::{Error, Gpu, Mse, Stream, Tensor, View};
use rayon::prelude::*;
use std::cell::RefCell;
use std::thread;
use tests::apart::apart;

fn emulated() -> (Gpu, Stream) {
    let gpu = Gpu::emulated(0).unwrap();
    let stream = gpu.stream().unwrap();
    (gpu, stream)
}

#[test]
fn tasks_of_a_thread_pool_call_it() {
    apart("tasks_of_a_thread_pool_call_it", "", || {
        let (gpu, stream) = emulated();
        let x = Tensor::from_slice(&gpu, [512], &[2.0_f32; 512]).unwrap();
        let t = Tensor::<f32>::zeros(&gpu, [512]).unwrap();
        let losses: Vec<f32> = (0..64)
            .into_par_iter()
            .map(|_| Mse::mean().forward(&x, &t, &stream).unwrap().item().unwrap())
            .collect();
        assert_eq!(losses, [4.0; 64]);
    });
}

#[test]
fn a_limit_of_address_space_is_told_of_at_once() {
    apart("a_limit_of_address_space_is_told_of_at_once", "ulimit -v 4000000;", || {
        let error = Gpu::emulated(0).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::NoEmulator { .. }), "{text}");
        assert!(text.starts_with("no emulator: ") && text.contains("ulimit -v"), "{text}");
    });
}

/// Makes the emulator report a fault: a view that is longer than its memory.
fn fault(gpu: &Gpu, stream: &Stream) -> Error {
    let short = Tensor::<f32>::zeros(gpu, [8]).unwrap();
    let t = Tensor::<f32>::zeros(gpu, [800_000]).unwrap();
    // SAFETY: the emulator refuses to access memory beyond the tensor.
    let behind = unsafe { View::<f32>::from_raw(gpu, short.as_raw(), [800_000]) };
    let loss = Mse::mean().forward(behind.unwrap(), &t, stream).unwrap();
    loss.item().unwrap_err()
}

/// A thread-local value, and what its destructor does.
struct AtTheEnd(Gpu, Stream);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let error = fault(&self.0, &self.1);
        assert!(matches!(error, Error::Driver(_)), "{error}");
    }
}

thread_local! {
    static KEPT: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

#[test]
fn an_error_while_a_thread_ends_is_an_error() {
    apart("an_error_while_a_thread_ends_is_an_error", "", || {
        let (gpu, stream) = emulated();
        let thread = thread::spawn(move || {
            // Thread-local values are dropped in reverse order of first use. This one is first, so
            // it is dropped after the emulator's report, which the fault creates.
            KEPT.set(Some(AtTheEnd(gpu.clone(), gpu.stream().unwrap())));
            fault(&gpu, &stream);
        });
        thread.join().unwrap();
    });
}
