//! On the emulator, which all tests of this process share.

use crate::context::Context;
use crate::device::{Device, DeviceAttribute};
use crate::driver::{self, LoadError, Source};
use crate::error::CudaError;
use crate::event::{Event, EventFlags, EventStatus};
use crate::function::FunctionAttribute;
use crate::memory::{DevicePointer, cuda_free, cuda_malloc, mem_get_info};
use crate::module::Module;
use crate::stream::{Stream, StreamFlags, StreamWaitEventFlags};
use crate::sys::{self, CUresult};
use crate::{CudaApiVersion, CudaFlags};

const PTX: &str = ".version 8.0\n.target sm_80\n.visible .entry mse_forward_f32(\n";

fn context() -> Context {
    driver::load(Source::Emulator).unwrap();
    Context::new(Device::get_device(0).unwrap()).unwrap()
}

#[test]
fn a_device_is_described() {
    let _context = context();
    let device = Device::get_device(0).unwrap();
    assert!(device.name().unwrap().contains("emulator"));
    assert_eq!(device.get_attribute(DeviceAttribute::ComputeCapabilityMajor), Ok(9));
    assert_eq!(Device::num_devices(), Ok(3));
    assert_eq!(Device::get_device(7), Err(CudaError::InvalidDevice));
    assert!(CudaApiVersion::get().unwrap().major() >= 12);
}

#[test]
fn a_process_has_one_driver() {
    let _context = context();
    let error = driver::load(Source::Library).unwrap_err();
    assert!(matches!(error, LoadError::OtherDriver { chosen: Source::Emulator, .. }), "{error}");
    assert!(error.to_string().contains("already runs on the emulator"), "{error}");
    assert_eq!(crate::init(CudaFlags::empty()), Err(CudaError::NotPermitted));
}

#[test]
fn a_module_has_its_kernels_alone() {
    let _context = context();
    let module = Module::from_ptx(PTX, &[]).unwrap();
    let function = module.get_function("mse_forward_f32").unwrap();
    assert_eq!(function.get_attribute(FunctionAttribute::SharedMemorySizeBytes), Ok(0));
    assert_eq!(module.get_function("mse_sideways_f32").unwrap_err(), CudaError::NotFound);
    assert_eq!(Module::from_ptx("", &[]).unwrap_err(), CudaError::InvalidPtx);
}

#[test]
fn a_launch_whose_shape_does_not_fit_is_refused() {
    let _context = context();
    let module = Module::from_ptx(PTX, &[]).unwrap();
    let function = module.get_function("mse_forward_f32").unwrap();
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    let mut args = [0_u64; 64];
    let args = [args.as_mut_ptr().cast()];
    // SAFETY: a block of 33 threads is refused: the kernel does not run.
    let result = unsafe { stream.launch(&function, 1, 33, 0, &args) };
    assert_eq!(result, Err(CudaError::InvalidValue));
}

#[test]
fn a_stream_waits_for_the_event_of_another() {
    let _context = context();
    let (first, second) = (
        Stream::new(StreamFlags::NON_BLOCKING, None).unwrap(),
        Stream::new(StreamFlags::NON_BLOCKING, Some(-1)).unwrap(),
    );
    let (start, end) =
        (Event::new(EventFlags::DEFAULT).unwrap(), Event::new(EventFlags::DEFAULT).unwrap());
    start.record(&first).unwrap();
    end.record(&first).unwrap();
    end.synchronize().unwrap();
    assert_eq!(end.query(), Ok(EventStatus::Ready));
    assert!(end.elapsed_time_f32(&start).unwrap() >= 0.0);
    second.wait_event(end, StreamWaitEventFlags::DEFAULT).unwrap();
    second.synchronize().unwrap();
}

#[test]
fn memory_is_given_and_taken_back() {
    let _context = context();
    let (free, total) = mem_get_info().unwrap();
    assert!(free <= total);
    // SAFETY: nothing reads the memory, and it is freed once.
    unsafe {
        let memory = cuda_malloc::<f32>(5).unwrap();
        assert!(!memory.is_null());
        cuda_free(memory).unwrap();
        let nothing = Err(CudaError::InvalidMemoryAllocation);
        assert_eq!(cuda_malloc::<f32>(0).map(drop), nothing);
        assert_eq!(cuda_malloc::<f32>(usize::MAX).map(drop), nothing);
        assert_eq!(cuda_free(DevicePointer::<f32>::from_raw(0)), nothing);
    }
}

#[test]
fn an_error_prints_its_number_whether_or_not_it_has_a_name() {
    driver::load(Source::Emulator).unwrap();
    let expected = "CUDA_ERROR_INVALID_VALUE (1): invalid argument";
    assert_eq!(CudaError::InvalidValue.to_string(), expected);
    let unknown = CudaError::from(CUresult(12_345));
    assert_eq!(unknown.to_string(), "unknown error (12345): unknown error");
    assert_eq!(format!("{unknown:?}"), "CudaError(CUresult(12345))");
}

#[test]
fn the_emulator_has_every_function() {
    for (wanted, _) in sys::Table::LINES {
        let name = wanted.name;
        assert!(emulator::symbol(name).is_some(), "{name}");
        assert_eq!(driver::missing(name), None);
    }
}
