//! Who uses memory, so that a call waits for what was queued before it, and no memory is freed
//! under a kernel.

use crate::error::Result;
use crate::stream::{Event, Queue, Stream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Which streams have work queued that uses some memory.
#[derive(Default)]
pub(crate) struct Usage(Mutex<Users>);

#[derive(Default)]
struct Users {
    /// The stream that wrote last.
    writer: Option<Arc<Queue>>,
    /// Streams that have read since, or were made to wait for the writer.
    readers: Vec<Arc<Queue>>,
}

impl Usage {
    fn users(&self) -> MutexGuard<'_, Users> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The stream that wrote last.
    pub(super) fn writer(&self) -> Option<Arc<Queue>> {
        self.users().writer.clone()
    }

    /// Orders what `stream` gets next, a read, behind the last write.
    pub(crate) fn before_read(&self, stream: &Stream) -> Result<()> {
        let (mut users, queue) = (self.users(), stream.queue());
        if users.readers.contains(queue) || users.writer.as_ref() == Some(queue) {
            return Ok(());
        }
        if let Some(writer) = &users.writer {
            queue.wait_for(writer)?;
        }
        users.readers.push(queue.clone());
        Ok(())
    }

    /// Orders what `stream` gets next, a write, behind everything before.
    pub(crate) fn before_write(&self, stream: &Stream) -> Result<()> {
        let (mut users, queue) = (self.users(), stream.queue());
        for other in users.readers.iter().chain(&users.writer) {
            if other != queue {
                queue.wait_for(other)?;
            }
        }
        users.readers.clear();
        users.writer = Some(queue.clone());
        Ok(())
    }

    /// Waits for everything, and forgets what is done.
    pub(super) fn wait(&self) -> Result<()> {
        let mut users = self.users();
        let done = |queue: &Arc<Queue>| Event::record(queue).and_then(|event| event.synchronize());
        while let Some(reader) = users.readers.last() {
            done(reader)?;
            users.readers.pop();
        }
        if let Some(writer) = &users.writer {
            done(writer)?;
            users.writer = None;
        }
        Ok(())
    }
}
