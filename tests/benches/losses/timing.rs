//! Time on the device: graphs of calls between two events.

use cust::sys::{self, CUresult};
use fused_loss::Stream;
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn check(result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{result:?}").into()) }
}

/// Calls on a stream, recorded for replays.
pub(crate) struct Graph(sys::CUgraphExec);

impl Graph {
    /// Records `calls` calls and passes each its number.
    pub(crate) fn capture<E: Error + 'static>(
        stream: &Stream,
        calls: usize,
        mut call: impl FnMut(usize) -> std::result::Result<(), E>,
    ) -> Result<Self> {
        // The first call of a kernel compiles it, which a capture does not allow.
        call(0)?;
        stream.synchronize()?;
        let handle: sys::CUstream = stream.as_raw().cast();
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is valid. The functions in `main` keep the memory that is recorded for
        // as long as they replay the graph.
        unsafe {
            check(sys::cuStreamBeginCapture_v2(handle, mode))?;
            for index in 0..calls {
                call(index)?;
            }
            check(sys::cuStreamEndCapture(handle, &mut graph))?;
            check(sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0))?;
            check(sys::cuGraphDestroy(graph))?;
        }
        Ok(Graph(executable))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `capture`; every replay was waited for.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// The median time of one replay of each graph in milliseconds, over `samples` rounds through all.
pub(crate) fn interleaved(stream: &Stream, graphs: &[&Graph], samples: usize) -> Result<Vec<f64>> {
    let handle: sys::CUstream = stream.as_raw().cast();
    let mut events = vec![std::ptr::null_mut(); 2 * samples * graphs.len()];
    for event in &mut events {
        // SAFETY: writes the event to the pointer it is given.
        check(unsafe { sys::cuEventCreate(event, 0) })?;
    }
    // SAFETY: all handles are valid. A first round warms up.
    unsafe {
        for graph in graphs {
            check(sys::cuGraphLaunch(graph.0, handle))?;
        }
        for (index, pair) in events.chunks(2).enumerate() {
            check(sys::cuEventRecord(pair[0], handle))?;
            check(sys::cuGraphLaunch(graphs[index % graphs.len()].0, handle))?;
            check(sys::cuEventRecord(pair[1], handle))?;
        }
    }
    stream.synchronize()?;
    let mut times = vec![Vec::with_capacity(samples); graphs.len()];
    for (index, pair) in events.chunks(2).enumerate() {
        let mut ms = 0.0;
        // SAFETY: both events are recorded and done.
        check(unsafe { sys::cuEventElapsedTime(&mut ms, pair[0], pair[1]) })?;
        times[index % graphs.len()].push(f64::from(ms));
    }
    for event in events {
        // SAFETY: created above.
        check(unsafe { sys::cuEventDestroy_v2(event) })?;
    }
    Ok(times.into_iter().map(median).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
