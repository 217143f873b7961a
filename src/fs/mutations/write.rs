//! Writes, and other changes of files that are open for writing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use super::Mutations;
use crate::backend::{
    Backend, BackendError, BackendFile, FileMutation, Lane, RequestContext, SyncMode,
};
use crate::fs::cache_mode::CacheMode;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::FileHandle;
use crate::fs::payload_budget::{OnFull, Payload};
use crate::fs::write_gate::PendingWrite;
use crate::replicas::metadata_client::ChangeClass;
use crate::telemetry::counters::increment;
use crate::volume::ByteRange;

/// A write of `data`.
pub struct WriteRequest<'a> {
    /// The offset to write at.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Whether to append at the file's end on the write replica.
    pub append: bool,
    /// Whether this may be one of several parts of a write(2), sent at the same time.
    pub is_part: bool,
    /// Whether to write all bytes or fail, because the kernel ignores the number of bytes.
    pub whole: bool,
    /// Whether the kernel sends the request again.
    pub is_resent: bool,
    /// The caller, if it is known and the write must remove set-id bits.
    pub caller: Option<RequestContext>,
}

/// The same, with a copy of the bytes that is charged to the budget.
pub(super) struct ChargedWrite {
    offset: u64,
    data: Payload,
    append: bool,
    whole: bool,
    is_resent: bool,
    caller: Option<RequestContext>,
}

impl WriteRequest<'_> {
    /// The range that the kernel had copied into its pages before it sent the request. `None` for a
    /// writeback of mapped memory, and for a part of an O_DIRECT write, which bypasses the page
    /// cache.
    fn copied_range(&self) -> Option<ByteRange> {
        let is_copied = !self.whole && !self.is_part;
        is_copied.then(|| ByteRange::at(self.offset, self.data.len() as u64))
    }

    fn with_payload(self, data: Payload) -> ChargedWrite {
        let Self { offset, append, whole, is_resent: again, caller: who, .. } = self;
        ChargedWrite { offset, data, append, whole, is_resent: again, caller: who }
    }
}

/// How a change of an open file excludes reads and other changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeLock {
    /// It does not exclude them.
    Shared,
    /// It excludes them.
    Exclusive {
        /// Whether the kernel sends the request again.
        is_resent: bool,
    },
}

/// How to make a change of an open file.
pub(super) struct FileChange {
    pub(super) handle: HandleId,
    pub(super) class: ChangeClass,
    pub(super) lock: ChangeLock,
    /// The caller, if the change needs its credentials: it may be another user than the handle's.
    pub(super) caller: Option<RequestContext>,
}

/// Notes of a handle's changes per lag, at most.
const RECORDS_PER_LAG: u32 = 4;

impl Mutations {
    /// Makes a change of an open file through a handle, which must have a writer. It is carried out
    /// once.
    pub(super) async fn change_file<T: Send + 'static>(
        &self,
        wanted: FileChange,
        change: impl Fn(&dyn BackendFile, &dyn Backend) -> crate::backend::Result<T>
        + Send
        + Sync
        + 'static,
    ) -> FsResult<T> {
        let FileChange { handle, class, lock, caller } = wanted;
        let write = self.tables.write_policy()?;
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        let writer = file.writer.as_ref().ok_or(Errno::BADF)?;
        let is_exclusive = lock != ChangeLock::Shared;
        if is_exclusive {
            file.is_closing.store(false, Ordering::Relaxed);
        }
        let guard = match lock {
            ChangeLock::Shared => file.inode.gate.start_operation(),
            ChangeLock::Exclusive { is_resent } => file.inode.gate.start_mutation(is_resent),
        };
        let guard = guard.ok_or(Errno::IO)?;
        let now = Instant::now();
        if is_exclusive && writer.should_record_change(now, write.lag / RECORDS_PER_LAG) {
            self.tables.record_inode_change(file.ino);
        }
        let other = caller.filter(|caller| !writer.credentials.is_same_user_as(caller));
        let credentials =
            other.map_or_else(|| writer.credentials.clone(), |caller| caller.credentials());
        let mut once = self.calls.single_call(write, Lane::Read, &credentials);
        once.class = match writer.sync {
            SyncMode::No => guard.class(class),
            // Each of its changes waits for storage.
            _ => ChangeClass::Long,
        };
        let change = {
            let guard = Arc::clone(&guard);
            let target = Arc::clone(&writer.file);
            move |backend: &dyn Backend| {
                let _exclusive = if is_exclusive { Some(guard.lock_exclusive()?) } else { None };
                change(&*target, backend)
            }
        };
        let answer = self.calls.client.call_once(once, change).await;
        guard.finish(&answer);
        if matches!(answer, Err(BackendError::Late)) {
            writer.set_deferred_error(BackendError::Late.into());
        }
        Ok(answer?)
    }

    /// Writes; returns the number of bytes. Blocks while there is no room for the bytes; the future
    /// does not block.
    pub fn write(
        self: &Arc<Self>,
        handle: HandleId,
        request: WriteRequest<'_>,
    ) -> impl Future<Output = FsResult<u64>> + Send + 'static + use<> {
        let own = Arc::clone(self);
        // Before waiting for room: reads that arrive meanwhile come after this write.
        let file = self.tables.handles.file(handle);
        let is_cached = |file: &&Arc<FileHandle>| file.cache_mode() == CacheMode::Kernel;
        let cached = file.as_ref().filter(is_cached);
        let arrived = cached.map(|file| file.inode.gate.track_write(request.copied_range()));
        let part = match request.append && request.is_part {
            true => file.map(|file| {
                let len = request.data.len() as u64;
                file.inode.gate.announce_part(request.offset, len)
            }),
            false => None,
        };
        let on_full = match (&part, request.whole) {
            (Some(part), _) => part.on_full,
            (None, true) => OnFull::WaitOrExceed,
            (None, false) => OnFull::WaitOrFail,
        };
        let payload = self.payload_budget.copy_payload(request.data, on_full);
        let payload = payload.map(|data| request.with_payload(data));
        async move {
            let answer = match (part, payload) {
                (Some(part), payload) => own.append_part(handle, part, payload).await,
                (None, Ok(request)) => own.submit_write(handle, request).await,
                (None, Err(errno)) => {
                    increment(&own.counters.write_errors);
                    Err(errno)
                }
            };
            // Reads that wait for this write continue first, because dropping pages waits for
            // reads.
            if let Some(stale) = arrived.and_then(PendingWrite::end) {
                own.calls.drop_pages_after_reply(handle.ino, stale);
            }
            answer
        }
    }

    /// Writes without waiting for earlier parts.
    pub(super) async fn submit_write(
        &self,
        handle: HandleId,
        request: ChargedWrite,
    ) -> FsResult<u64> {
        let ChargedWrite { offset, data, append, whole, is_resent, caller } = request;
        // The call takes the bytes out, so they are not kept longer than a caller waits.
        let data = Arc::new(Mutex::new(Some(data)));
        let write = {
            let data = Arc::clone(&data);
            move |file: &dyn BackendFile, _: &dyn Backend| {
                let data = data.lock().take().ok_or(BackendError::Late)?;
                let write = FileMutation::Write { offset, data: &data, append, whole };
                let answer = file.mutate(&write);
                data.charge.record_completion();
                answer
            }
        };
        let lock = ChangeLock::Exclusive { is_resent };
        let wanted = FileChange { handle, class: ChangeClass::Data, lock, caller };
        let answer = self.change_file(wanted, write).await;
        drop(data.lock().take());
        match answer {
            Ok(bytes) => {
                increment(&self.counters.writes);
                self.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(_) => increment(&self.counters.write_errors),
        }
        self.payload_budget.serve_waiting_reads_after_reply();
        answer
    }
}
