//! Tests on the machine's device, or on the emulator.

use super::*;
use crate::ptx::tests::of_text;
use kernels_gpu::Entry;
use std::ffi::c_void;

/// The machine's device, or the emulator's.
pub(crate) fn gpu() -> Gpu {
    match Gpu::new(0) {
        Err(Error::NoDriver { .. } | Error::OtherDriver { .. }) => Gpu::emulated(0).unwrap(),
        other => other.unwrap(),
    }
}

#[test]
fn ptx_that_is_too_new_for_the_driver_says_so() {
    let gpu = gpu();
    let text = ".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{\nret;\n}\n";
    let _current = gpu.bind().unwrap();
    let error = gpu.load("f", &of_text("mse_f32", text)).err().unwrap();
    let Error::UnsupportedPtx { name, driver, ptx, advice, log } = &error else {
        panic!("expected UnsupportedPtx, got {error}");
    };
    // The driver may get the text for another target, but the error shows the library's own text.
    assert_eq!((*name, ptx.as_str()), ("f", ".version 99.0, .target sm_80"));
    assert!(driver.split('.').all(|number| number.parse::<u32>().is_ok()), "{driver}");
    assert!(advice.contains("driver"), "{advice}");
    assert!(log.contains("99.0"), "the driver's own words are missing: {log}");
}

#[test]
fn a_device_that_is_opened_twice_loads_its_kernels_once() {
    let entry = kernels_gpu::kernels::mse::FORWARD.entry(kernels_gpu::abi::Dtype::F32).unwrap();
    let kernel = |gpu: &Gpu| {
        let _current = gpu.bind().unwrap();
        gpu.function(entry).unwrap().0
    };
    let (one, two) = (gpu(), gpu());
    assert_eq!(kernel(&one), kernel(&two));
}

/// A kernel that no other test here uses, so that only this test loads it.
fn unused(family: &'static kernels_gpu::Family<kernels_gpu::abi::PairwiseArgs>) -> &'static Entry {
    family.entry(kernels_gpu::abi::Dtype::F16).unwrap()
}

#[test]
fn a_kernel_that_many_threads_want_at_once_is_loaded_once() {
    let (gpu, entry) = (gpu(), unused(&kernels_gpu::kernels::huber::FORWARD));
    let start = std::sync::Barrier::new(8);
    let load = || {
        let _current = gpu.bind().unwrap();
        start.wait();
        // As a number, which can be sent to another thread.
        gpu.function(entry).unwrap().0 as usize
    };
    let kernels: Vec<usize> = std::thread::scope(|scope| {
        let threads = [(); 8].map(|()| scope.spawn(load));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(kernels, [kernels[0]; 8]);
}

#[test]
fn a_kernel_that_is_being_loaded_keeps_only_those_waiting_who_want_it() {
    use std::sync::mpsc::{TryRecvError, channel};
    use std::time::Duration;
    let gpu = gpu();
    let slow = unused(&kernels_gpu::kernels::huber::BACKWARD);
    let other = unused(&kernels_gpu::kernels::huber::FORWARD_BACKWARD);
    let (slot, (sender, done)) = (gpu.inner.loaded.slot(slow), channel());
    // The lock is held while the driver compiles the kernel.
    let compiling = slot.lock().unwrap();
    let use_kernel = |entry: &'static Entry| {
        let (gpu, sender) = (gpu.clone(), sender.clone());
        std::thread::spawn(move || {
            let used = gpu
                .dynamic_shared(entry)
                .and_then(|dynamic| gpu.keep_shared(entry, dynamic, true))
                .map(|()| entry.name);
            let _ = sender.send(used);
        })
    };
    let waiting = use_kernel(slow);
    // Wait until the other thread has the slot of its kernel, besides this thread and the map.
    while Arc::strong_count(&slot) < 3 {
        std::thread::yield_now();
    }
    use_kernel(other);
    // If the thread waited for this lock, a minute would not be enough.
    assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok(Ok(other.name)));
    assert_eq!(done.try_recv(), Err(TryRecvError::Empty));
    drop(compiling);
    waiting.join().unwrap();
    assert_eq!(done.try_recv(), Ok(Ok(slow.name)));
}

/// Kernels are unloaded with the last user of the device. The test uses the second device, which no
/// other test here uses.
#[test]
fn kernels_are_unloaded_with_the_last_who_uses_the_device() {
    if !gpu().is_emulated() {
        // A real driver promises nothing about an unloaded module.
        return;
    }
    let entry = kernels_gpu::kernels::mse::FORWARD.entry(kernels_gpu::abi::Dtype::F32).unwrap();
    let is_loaded = |kernel| {
        let (mut bytes, which) =
            (0, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        // SAFETY: the emulator refuses a kernel of an unloaded module.
        let result = unsafe { sys::cuFuncGetAttribute(&mut bytes, which, kernel) };
        result == sys::CUresult::CUDA_SUCCESS
    };
    let gpu = Gpu::emulated(1).unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = {
        let _current = gpu.bind().unwrap();
        gpu.function(entry).unwrap().0
    };
    drop(gpu);
    assert!(is_loaded(kernel), "the stream uses the device still");
    drop(stream);
    assert!(!is_loaded(kernel), "nobody uses the device any more");
    // The device can be opened again.
    Gpu::emulated(1).unwrap().stream().unwrap().synchronize().unwrap();
}

#[test]
fn a_module_without_the_kernel_says_so() {
    let gpu = gpu();
    let entry = Box::leak(Box::new(Entry {
        name: "mse_sideways_f32",
        module: "mse_f32",
        dtype: kernels_gpu::abi::Dtype::F32,
        block: 32,
        resident: 1,
        barriers: 0,
        args_size: 0,
        run: |_| (),
    }));
    let _current = gpu.bind().unwrap();
    let error = gpu.function(entry).err().unwrap();
    assert_eq!(
        error.to_string(),
        "no kernel mse_sideways_f32; the library holds mse_f32 without it"
    );
}

#[test]
fn a_launch_with_more_shared_memory_than_a_block_can_have_is_refused() {
    use kernels_gpu::abi::{CrossEntropyArgs, Dtype};
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let family = &kernels_gpu::kernels::cross_entropy::FORWARD_BACKWARD_LONG;
    let entry = family.entry(Dtype::F32).unwrap();
    let args = std::mem::MaybeUninit::<CrossEntropyArgs>::zeroed();
    let room = gpu.dynamic_shared(entry).unwrap();
    assert!(room >= 48 << 10 && gpu.dynamic_shared(entry).unwrap() == room);
    let shape =
        crate::plan::Launch { blocks: 1, threads: 32, shared_bytes: room + 16, cooperative: false };
    // SAFETY: the launch is refused, so the kernel does not run.
    let result = unsafe { crate::launch::launch_entry(&stream, entry, shape, &args) };
    let error = result.err().unwrap().to_string();
    assert!(error.contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
}

#[test]
fn a_cooperative_launch_runs_where_the_device_holds_all_of_its_blocks() {
    use crate::plan::Launch;
    use crate::tensor::Tensor;
    use kernels_gpu::abi::{
        Dtype, IndexedArgs, Matrix, PairwiseArgs, TileArgs, TiledArgs, UpstreamRows, reduction,
    };
    use std::num::NonZeroU32;
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let len = 8 * 256;
    let input: Vec<f32> = (0..len).map(|index| index as f32).collect();
    let input = Tensor::from_slice(&gpu, [len], &input).unwrap();
    let [target, mut grad] = [(); 2].map(|()| Tensor::<f32>::zeros(&gpu, [len]).unwrap());
    let args = PairwiseArgs {
        input: input.view().memory.matrix(),
        target: target.view().memory.matrix(),
        rows: 1,
        cols: len as u64,
        divisor: 1.0,
        parameter: 0.0,
        reduction: reduction::SCALAR,
        group_threads: NonZeroU32::MIN,
        splits: NonZeroU32::MIN,
        upstream_col_stride: 0,
        tiles: TiledArgs::default(),
        packed: TileArgs::default(),
        indexed: IndexedArgs::default(),
        loss: Matrix::default(),
        workspace: 0,
        upstream: Matrix::default(),
        upstream_rows: UpstreamRows::default(),
        grad_input: grad.view_mut().memory.matrix(),
        grad_target: Matrix::default(),
        weights: Default::default(),
    };
    let entry = kernels_gpu::kernels::mse::BACKWARD.entry(Dtype::F32).unwrap();
    let shape = Launch { blocks: 8, threads: 256, shared_bytes: 0, cooperative: true };
    // SAFETY: the arguments are those of a dense backward pass over the three tensors, which
    // live until the stream is synchronised.
    unsafe { crate::launch::launch_entry(&stream, entry, shape, &args) }.unwrap();
    stream.synchronize().unwrap();
    let expected: Vec<f32> = (0..len).map(|index| 2.0 * index as f32).collect();
    assert_eq!(grad.to_vec().unwrap(), expected);

    let many = Launch { blocks: 1 << 20, ..shape };
    // SAFETY: the launch is refused, so the kernel does not run.
    let result = unsafe { crate::launch::launch_entry(&stream, entry, many, &args) };
    let error = result.err().unwrap().to_string();
    assert!(error.contains("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"), "{error}");
}

#[test]
fn shared_memory_for_one_block_more_is_kept_as_long_as_it_is_wanted() {
    use kernels_gpu::abi::Dtype;
    let gpu = gpu();
    let _current = gpu.bind().unwrap();
    // A kernel that no other test here launches, because all tests share a device.
    let family = &kernels_gpu::kernels::cross_entropy_smoothed::FORWARD_SHORT_WHOLE;
    let entry = family.entry(Dtype::Bf16).unwrap();
    let kept = || {
        let mut percent = 0;
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the kernel is loaded; the driver writes a number to the pointer it is given.
        let result =
            unsafe { sys::cuFuncGetAttribute(&mut percent, which, gpu.function(entry).unwrap().0) };
        check("cuFuncGetAttribute", result).unwrap();
        percent
    };
    let found_right = kept();
    for (dynamic, percent) in [(4 << 10, 1..=99), (1 << 20, 100..=100)] {
        gpu.keep_shared(entry, dynamic, true).unwrap();
        assert!(percent.contains(&kept()), "{} of {percent:?}", kept());
        gpu.keep_shared(entry, dynamic, false).unwrap();
        assert_eq!(kept(), found_right);
    }
}

#[test]
fn a_device_is_refused_by_what_it_lacks() {
    let (old, small) = (check_device("A", 75, 72), check_device("B", 80, 1));
    assert_eq!(
        old.unwrap_err().to_string(),
        "A: expected compute capability 8.0 or later, got 7.5"
    );
    let expected = "B: expected 2 multiprocessors at least, got 1";
    assert_eq!(small.unwrap_err().to_string(), expected);
    assert!(check_device("C", 80, 2).is_ok());
}

/// The emulator always runs one kernel after the other, so it must check that a kernel would wait.
#[test]
fn a_kernel_that_would_not_wait_for_the_one_before_is_refused() {
    use crate::driver::{LaunchAttribute, LaunchConfig};
    let gpu = gpu();
    if !gpu.is_emulated() {
        return;
    }
    assert!(gpu.overlaps());
    let stream = gpu.stream().unwrap();
    let _current = gpu.bind().unwrap();
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let text = ptx::find("mse_f32", 80).unwrap().text("mse_forward_f32", false).unwrap();
    let none = std::ptr::null_mut::<c_void>();
    let mut args = std::mem::MaybeUninit::<kernels_gpu::abi::PairwiseArgs>::zeroed();
    let mut params = [args.as_mut_ptr().cast::<c_void>()];
    let attribute = LaunchAttribute::OVERLAPS;
    let config = LaunchConfig {
        grid: [1; 3],
        block: [32, 1, 1],
        shared_bytes: 0,
        stream: stream.handle(),
        attributes: &attribute,
        count: 1,
    };
    // SAFETY: the text ends in a zero byte, and the pointers are to memory that may be written. The
    // launch is refused, so the kernel does not run.
    let result = unsafe {
        let image = text.as_ptr().cast();
        let load = sys::cuModuleLoadDataEx(&mut module, image, 0, none.cast(), none.cast());
        check("cuModuleLoadDataEx", load).unwrap();
        let get = sys::cuModuleGetFunction(&mut function, module, c"mse_forward_f32".as_ptr());
        check("cuModuleGetFunction", get).unwrap();
        sys::cuLaunchKernelEx(&config.raw(), function, params.as_mut_ptr(), none.cast())
    };
    assert_eq!(result, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn the_context_of_the_thread_is_put_back() {
    // The primary context of the emulator's second device.
    let (gpu, other) = (gpu(), std::ptr::without_provenance_mut(0x101));
    if !gpu.is_emulated() {
        return;
    }
    // SAFETY: the emulator knows this context, and refuses others.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(other) }).unwrap();
    drop(gpu.bind().unwrap());
    assert_eq!(Restore::current().unwrap().context, other);
}
