//! Which streams use memory, so that a call waits for work that was queued before it, and no memory
//! is freed while a kernel uses it.

use crate::error::Result;
use crate::queue::{Event, Queue};
use std::sync::{Arc, Mutex, MutexGuard};

/// Which streams have work queued that uses some memory.
#[derive(Default)]
pub(crate) struct Usage(Mutex<Users>);

#[derive(Default)]
struct Users {
    /// The stream that wrote last.
    writer: Option<Writer>,
    /// Streams that have read since, or were made to wait for the writer.
    readers: Vec<Arc<Queue>>,
}

struct Writer {
    queue: Arc<Queue>,
    /// The event after the write, if it was recorded; without it, others wait for all work queued
    /// on the stream so far.
    end: Option<Arc<Event>>,
}

impl Writer {
    fn end(&self) -> Result<Arc<Event>> {
        self.end.clone().map_or_else(|| self.queue.end_of_work(), Ok)
    }

    fn is_finished(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.is_done()) || self.queue.is_finished()
    }
}

impl Users {
    /// Forgets streams that have ended and whose work is done.
    fn forget_finished(&mut self) {
        self.readers.retain(|reader| !reader.is_finished());
        self.writer.take_if(|writer| writer.is_finished());
    }
}

impl Usage {
    fn users(&self) -> MutexGuard<'_, Users> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Orders the next work on `queue`, a read, after the last write.
    pub(crate) fn before_read(&self, queue: &Arc<Queue>) -> Result<()> {
        let mut users = self.users();
        let is_known = users.readers.iter().any(|reader| reader.is(queue))
            || users.writer.as_ref().is_some_and(|writer| writer.queue.is(queue));
        if is_known {
            return Ok(());
        }
        users.forget_finished();
        if let Some(writer) = &users.writer {
            queue.wait_for_event(&*writer.end()?)?;
        }
        users.readers.push(queue.clone());
        Ok(())
    }

    /// Orders the next work on `queue`, a write, after all earlier uses.
    pub(crate) fn before_write(&self, queue: &Arc<Queue>) -> Result<()> {
        let mut users = self.users();
        for reader in &users.readers {
            if !reader.is(queue) && !reader.is_finished() {
                queue.wait_for_event(&*reader.end_of_work()?)?;
            }
        }
        if let Some(writer) = &users.writer
            && !writer.queue.is(queue)
            && !writer.is_finished()
        {
            queue.wait_for_event(&*writer.end()?)?;
        }
        users.readers.clear();
        users.writer = Some(Writer { queue: queue.clone(), end: None });
        Ok(())
    }

    /// Records an event after the last write, so that readers do not wait for later work on its
    /// stream. A captured write gets no event.
    pub(crate) fn note_end_of_write(&self) -> Result<()> {
        let mut users = self.users();
        if let Some(writer) = &mut users.writer {
            let is_work = !writer.queue.is_capturing();
            writer.end = is_work.then(|| writer.queue.end_of_work()).transpose()?;
        }
        Ok(())
    }

    /// Waits for the last write.
    pub(super) fn wait_for_write(&self) -> Result<()> {
        // Do not hold the lock while waiting.
        let writer = {
            let users = self.users();
            users.writer.as_ref().map(|writer| (writer.queue.clone(), writer.end.clone()))
        };
        match writer {
            Some((_, Some(end))) => end.synchronize(),
            Some((queue, None)) => queue.synchronize(),
            None => Ok(()),
        }
    }

    /// Waits for all uses, and forgets those that are done. If work has failed, which ends it too,
    /// this call returns the error, and no later call does.
    pub(super) fn wait(&self) -> Result<()> {
        let (mut users, mut outcome) = (self.users(), Ok(()));
        while let Some(reader) = users.readers.last() {
            outcome = outcome.and(reader.end_of_work()?.outcome()?);
            users.readers.pop();
        }
        if let Some(writer) = &users.writer {
            outcome = outcome.and(writer.end()?.outcome()?);
            users.writer = None;
        }
        outcome
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use crate::gpu::tests::gpu;
    use crate::{CrossEntropy, Mse, Stream, Tensor};
    use std::sync::Arc;

    fn read(x: &Tensor<f32>, stream: &Stream) {
        Mse::mean().forward(x, x, stream).unwrap().item().unwrap();
    }

    /// Weights outlive the streams of the steps that read them.
    #[test]
    fn streams_that_have_ended_are_not_kept() {
        let gpu = gpu();
        let x = Tensor::<f32>::zeros(&gpu, [40]).unwrap();
        let mut handles = Vec::new();
        for _ in 0..2_000 {
            let stream = gpu.stream().unwrap();
            read(&x, &stream);
            handles.push((stream.as_raw(), Arc::downgrade(stream.queue())));
        }
        let known = x.view().memory.usage.unwrap().users().readers.len();
        assert!(known <= 1, "{known} streams are known to the tensor");
        let kept = handles.iter().filter(|(_, queue)| queue.upgrade().is_some()).count();
        assert!(kept <= 1, "{kept} streams are kept");
        let gone = |handle: *mut std::ffi::c_void| {
            let _current = gpu.bind().unwrap();
            // SAFETY: the emulator refuses a handle of no stream.
            let result = unsafe { cust::sys::cuStreamSynchronize(handle.cast()) };
            result != cust::sys::CUresult::CUDA_SUCCESS
        };
        if gpu.is_emulated() {
            assert!(handles.iter().all(|&(handle, _)| gone(handle)), "a driver's stream is there");
        }
    }

    /// What a forward pass saves for the backward pass is tensors too.
    #[test]
    fn what_was_saved_and_waited_for_knows_no_stream() {
        let gpu = gpu();
        let x = Tensor::<f32>::zeros(&gpu, [4, 3]).unwrap();
        let classes = Tensor::<i64>::zeros(&gpu, [4]).unwrap();
        let stream = gpu.stream().unwrap();
        let (_, saved) = CrossEntropy::mean().forward_saving(&x, &classes, &stream).unwrap();
        let is_known = || saved.log_sum_exp().memory.usage.unwrap().users().writer.is_some();
        assert!(is_known());
        saved.synchronize().unwrap();
        assert!(!is_known());
    }

    #[test]
    fn a_tensor_that_was_waited_for_knows_no_stream() {
        let gpu = gpu();
        let x = Tensor::<f32>::zeros(&gpu, [40]).unwrap();
        let streams = [(); 3].map(|()| gpu.stream().unwrap());
        streams.iter().for_each(|stream| read(&x, stream));
        assert_eq!(x.view().memory.usage.unwrap().users().readers.len(), 3);
        x.synchronize().unwrap();
        assert_eq!(x.view().memory.usage.unwrap().users().readers.len(), 0);
    }

    /// The driver reuses the handle of a destroyed stream for another one.
    #[test]
    fn a_stream_that_has_ended_is_no_other() {
        let gpu = gpu();
        let stream = gpu.stream().unwrap();
        // SAFETY: the same stream, which is there to the end.
        let same = unsafe { Stream::from_raw(&gpu, stream.as_raw()) }.unwrap();
        let queue = same.queue().clone();
        assert!(queue.is(stream.queue()));
        drop(same);
        assert!(!queue.is(stream.queue()));
        assert!(queue.is(&queue));
    }
}
