//! CUDA graphs, which the tests capture with calls to the driver.

use cust::sys::{self, CUresult};
use fused_loss::Stream;

/// A call to the driver that has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The driver's function.
    pub call: &'static str,
    /// The code that it has returned.
    pub code: u32,
}

/// Turns the code returned by the driver's function `call` into a result.
pub fn check(call: &'static str, result: CUresult) -> Result<(), Refused> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult(code) => Err(Refused { call, code }),
    }
}

/// A capture of what is queued on a stream, which ends when it is dropped. It refuses every call of
/// this thread that might wait.
pub struct Capture<'a> {
    stream: &'a Stream,
    has_ended: bool,
}

impl<'a> Capture<'a> {
    pub fn begin(stream: &'a Stream) -> Result<Self, Refused> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists.
        let result = unsafe { sys::cuStreamBeginCapture_v2(stream.as_raw().cast(), mode) };
        check("cuStreamBeginCapture_v2", result)?;
        Ok(Capture { stream, has_ended: false })
    }

    /// Ends the capture and makes a graph of it.
    pub fn end(mut self) -> Result<Graph, Refused> {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream exists. The driver writes the graph, which is destroyed once, and the
        // executable graph to the pointers it is given.
        unsafe {
            let result = sys::cuStreamEndCapture(self.stream.as_raw().cast(), &mut graph);
            check("cuStreamEndCapture", result)?;
            self.has_ended = true;
            let result = sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            check("cuGraphInstantiateWithFlags", result)?;
        }
        Ok(Graph(executable))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream exists; the graph that this returns is not used.
        unsafe {
            let result = sys::cuStreamEndCapture(self.stream.as_raw().cast(), &mut graph);
            if result == CUresult::CUDA_SUCCESS {
                let _ = sys::cuGraphDestroy(graph);
            }
        }
    }
}

/// A graph that can be launched. Its owner ensures that the memory it uses outlives it.
pub struct Graph(sys::CUgraphExec);

impl Graph {
    /// Queues all that was captured.
    pub fn launch(&self, stream: &Stream) -> Result<(), Refused> {
        // SAFETY: both handles are valid, and the owner of the graph ensures that its memory
        // exists.
        let result = unsafe { sys::cuGraphLaunch(self.0, stream.as_raw().cast()) };
        check("cuGraphLaunch", result)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created by `Capture::end`, and destroyed once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}
