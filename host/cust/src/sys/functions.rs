//! The list of the driver's functions: one line each.
#![allow(clippy::too_many_arguments)]

use super::table::{Wanted, driver_functions};
use super::{codes::CUresult, types::*};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

driver_functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(code: CUresult, text: *mut *const c_char);
    fn cuGetErrorString(code: CUresult, text: *mut *const c_char);

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, which: CUdevice_attribute, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSynchronize();
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent) since 12050;
    fn cuCtxWaitEvent(context: CUcontext, event: CUevent) since 12050;

    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void,
        count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void,
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, which: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, which: CUfunction_attribute, value: c_int);
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction,
        params: *mut *mut c_void, extra: *mut *mut c_void,
    ) since 11080;

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(exec: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);

    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(start: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
}
