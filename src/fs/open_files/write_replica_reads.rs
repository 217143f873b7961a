//! Reads of files that are open for writing: from the write replica, after the writes that arrived
//! before them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::OpenFiles;
use crate::backend::{
    Backend, BackendError, BackendFile, Lane, RequestingThread, SeekTo, report_progress,
};
use crate::buffer::Buffer;
use crate::fs::error::FsResult;
use crate::fs::handles::FileHandle;
use crate::fs::write_gate::{WriteGate, Writer};
use crate::read::ReadData;
use crate::replicas::metadata_client::ChangeClass;
use crate::replicas::request_deadline::RequestDeadline;
use crate::replicas::task;
use crate::telemetry::counters::increment;
use crate::volume::ByteRange;

const OUT_OF_MEMORY: BackendError = BackendError::Os(rustix::io::Errno::NOMEM);

/// How often a waiting read checks whether its caller was killed.
const KILL_CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl OpenFiles {
    /// Reads a file that is open for writing, after the writes that arrived earlier.
    pub(in crate::fs) async fn read_from_write_replica(
        &self,
        file: Arc<FileHandle>,
        writer: Option<Arc<Writer>>,
        range: ByteRange,
        since: Instant,
    ) -> FsResult<ReadData> {
        let gate = Arc::clone(&file.inode.gate);
        self.wait_for_earlier_writes(&gate, range, since).await;
        let reader = Arc::clone(&self.tables.reader);
        let read = move |file: &dyn BackendFile| {
            // Allocated here, so there are no more of these buffers than threads.
            let mut bytes = reader.allocate_buffer(range.len()).ok_or(OUT_OF_MEMORY)?;
            let _shared = gate.lock_shared();
            let filled = read_fully(file, range.start, &mut bytes)?;
            Ok((bytes, filled))
        };
        let answer = self.run_on_write_replica(file, writer, Lane::Read, since, read).await;
        self.counters.read_latency.record(since.elapsed());
        match &answer {
            Ok((_, filled)) => {
                increment(&self.counters.reads);
                self.counters.bytes_delivered.fetch_add(*filled as u64, Ordering::Relaxed);
            }
            Err(_) => increment(&self.counters.read_errors),
        }
        // The reply releases the buffer's memory.
        self.payload_budget.serve_waiting_reads_after_reply();
        answer.map(|(bytes, filled)| ReadData::from_buffer(bytes, filled))
    }

    /// The next data or hole of a file that is open for writing.
    pub(in crate::fs) async fn lseek_on_write_replica(
        &self,
        file: Arc<FileHandle>,
        writer: Option<Arc<Writer>>,
        offset: u64,
        to: SeekTo,
    ) -> FsResult<u64> {
        let seek = move |file: &dyn BackendFile| file.seek(offset, to);
        self.run_on_write_replica(file, writer, Lane::Metadata, Instant::now(), seek).await
    }

    /// Runs `op` on the write replica's descriptor of a file that is open for writing.
    async fn run_on_write_replica<T: Send + 'static>(
        &self,
        file: Arc<FileHandle>,
        writer: Option<Arc<Writer>>,
        lane: Lane,
        since: Instant,
        op: impl Fn(&dyn BackendFile) -> crate::backend::Result<T> + Send + Sync + 'static,
    ) -> FsResult<T> {
        let write = self.tables.write_policy()?;
        let mut once = self.calls.single_call(write, lane, &file.credentials);
        once.class = ChangeClass::Long;
        once.deadline = RequestDeadline::new(since, self.tables.policy.deadlines);
        let look = move |backend: &dyn Backend| match &writer {
            Some(writer) => op(&*writer.file),
            None => {
                let current = file.inode.current();
                current.set_credentials(&file.credentials);
                op(&*current.open_unchecked(write.replica, backend)?)
            }
        };
        Ok(self.calls.client.call_once(once, look).await?)
    }

    /// Waits until the writes that arrived before a read of `range` have ended. The read arrived at
    /// `since`.
    pub(in crate::fs) async fn wait_for_earlier_writes(
        &self,
        gate: &Arc<WriteGate>,
        range: ByteRange,
        since: Instant,
    ) {
        let Some(last) = gate.pending_writes.add_read(range) else { return };
        task::hold_until_reply(self.calls.client.register_waiting());
        let gate = Arc::clone(gate);
        let requesting_thread = RequestingThread::current();
        let until = since + self.tables.policy.deadlines.while_responsive;
        let wait = async move {
            loop {
                // Before the check, so an end after it is not missed.
                let ended = gate.pending_writes.next_end();
                let now = Instant::now();
                let is_over = !gate.pending_writes.has_in_flight_until(last) || now >= until;
                if is_over || requesting_thread.is_killed() {
                    break;
                }
                let next = tokio::time::Instant::from_std(until.min(now + KILL_CHECK_INTERVAL));
                let _ = tokio::time::timeout_at(next, ended).await;
            }
        };
        // If the runtime does not finish it, the volume is being shut down.
        let _ = self.calls.runtime.spawn(wait).await;
    }
}

/// Reads from `start` on until the buffer is full or the file ends; returns the bytes read.
fn read_fully(
    file: &dyn BackendFile,
    start: u64,
    bytes: &mut Buffer,
) -> crate::backend::Result<usize> {
    let mut filled = 0;
    let mut has_ended = false;
    while filled < bytes.len() {
        let at = start + filled as u64;
        match file.read_at(at, &mut bytes[filled..])? {
            0 if at >= file.attr()?.size => break,
            // Another client may have extended the file just now. If it happens twice, the
            // replica's data ends before its own size, and the data is not trusted.
            0 if !has_ended => has_ended = true,
            0 => return Err(BackendError::Truncated),
            n => {
                filled += n;
                has_ended = false;
            }
        }
        report_progress();
    }
    Ok(filled)
}
