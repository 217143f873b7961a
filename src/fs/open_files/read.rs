//! Reads of open files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::OpenFiles;
use crate::backend::{Backend, SeekTo};
use crate::fs::cache_mode::CacheMode;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::{FileHandle, ReadSource};
use crate::fs::kernel_open::KernelOpen;
use crate::fs::namespace::{AttrRequest, AttrSource};
use crate::fs::write_gate::Writer;
use crate::read::{
    CallerThread, ReadBytes, ReadCompletion, ReadError, ReadParams, RequestOrigin, SmallReads,
};
use crate::replicas::metadata_client::{RunAs, WaitingCall};
use crate::replicas::task;
use crate::volume::{ByteRange, ReplicaId};

/// The shortest time between two checks of a file's version, for direct reads. Data that was read
/// ahead is not older than this when it is delivered. Before a read through its page cache the
/// kernel checks by itself; before a direct read it does not.
const MIN_REVALIDATE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between attempts at a read that lacks a descriptor, and for how long they are made.
/// A waiting read may occupy the kernel's queue, through which closes come.
const DESCRIPTOR_RETRY: Duration = Duration::from_millis(50);
const MAX_DESCRIPTOR_WAIT: Duration = Duration::from_secs(1);

/// The attempts at a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadAttempt {
    First,
    /// After a writer has opened the file.
    Retry,
    /// After the current version was looked up, because no replica had the earlier one.
    Final,
}

impl ReadAttempt {
    fn next(self) -> Self {
        if self == Self::Final { self } else { Self::Retry }
    }
}

/// A read of an open file.
struct FileRead {
    file: Arc<FileHandle>,
    range: ByteRange,
    /// When the read arrived. Its deadline counts from here, also if the read is repeated.
    since: Instant,
    origin: RequestOrigin,
    attempt: ReadAttempt,
    /// Present once it has waited for a descriptor: a handover waits for it.
    waiting: Option<WaitingCall>,
}

impl FileRead {
    /// The first attempt at a read that arrived at `since`.
    fn first(
        file: Arc<FileHandle>,
        range: ByteRange,
        since: Instant,
        origin: RequestOrigin,
    ) -> Self {
        Self { file, range, since, origin, attempt: ReadAttempt::First, waiting: None }
    }

    /// A request for the file's attributes, on behalf of the reader.
    fn attr_request(&self, source: AttrSource) -> AttrRequest {
        AttrRequest {
            ino: self.file.ino,
            run_as: RunAs::CallerThenDaemon(self.file.credentials.clone()),
            source,
            since: self.since,
        }
    }
}

/// The reply to a read.
pub trait ReadReply: Send + 'static {
    /// Sends it.
    fn send(self, answer: FsResult<ReadBytes<'_>>);
}

impl<F: FnOnce(FsResult<ReadBytes<'_>>) + Send + 'static> ReadReply for F {
    fn send(self, answer: FsResult<ReadBytes<'_>>) {
        self(answer);
    }
}

/// A read that is in the read path, and its reply.
struct PendingRead<R> {
    files: Arc<OpenFiles>,
    read: FileRead,
    epoch: u64,
    reply: R,
}

impl<R: ReadReply> ReadCompletion for PendingRead<R> {
    fn complete(self, answer: Result<ReadBytes<'_>, ReadError>) {
        let Self { files, read, epoch, reply } = self;
        files.finish_read(read, epoch, answer, reply);
    }
}

/// The small reads in flight of one session.
pub struct SmallFileReads<R>(Arc<SmallReads<PendingRead<R>>>);

/// The thread that asks for a read.
pub struct ReadCaller<'a, R> {
    /// The process that reads, or one of its threads.
    pub process: u32,
    /// The small reads of the session, if the calling thread is one of its threads.
    pub small_reads: Option<&'a SmallFileReads<R>>,
}

impl OpenFiles {
    /// Makes the slots for the small reads of a session.
    pub fn small_reads<R: ReadReply>(&self) -> SmallFileReads<R> {
        SmallFileReads(SmallReads::new(&self.tables.reader))
    }

    /// Reads a range of an open file. Fewer bytes come only at the end of the file. A small read
    /// may run on the calling thread, if enough other threads are left to take requests.
    ///
    /// This is the fast path: a read that succeeds at the first attempt makes no future.
    pub fn read<R: ReadReply>(
        self: &Arc<Self>,
        handle: HandleId,
        range: ByteRange,
        caller: ReadCaller<'_, R>,
        reply: R,
    ) {
        match self.tables.handles.file(handle) {
            Some(file) => self.read_file(handle, file, range, caller, reply),
            None => reply.send(Err(Errno::BADF)),
        }
    }

    /// Reads a range of the open `file`.
    #[inline]
    pub(super) fn read_file<R: ReadReply>(
        self: &Arc<Self>,
        handle: HandleId,
        file: Arc<FileHandle>,
        range: ByteRange,
        caller: ReadCaller<'_, R>,
        reply: R,
    ) {
        let process = caller.process;
        file.cache_validity.mark_read();
        file.is_closing.store(false, Ordering::Relaxed);
        let now = Instant::now();
        file.read_stats.record_read(range.len(), process, self.activity.micros_since_start(now));
        let origin = RequestOrigin { handle: handle.number, process };
        let mut read = FileRead::first(file, range, now, origin);
        let current = match read.file.inode.read_source(read.file.writer.as_ref()) {
            ReadSource::AnyReplica(current, _) => current,
            ReadSource::WriteReplica(writer) => {
                return self.start_read_from_write_replica(read, writer, reply);
            }
        };
        let size = current.version().size;
        let is_direct = read.file.cache_mode() == CacheMode::Direct;
        let is_due = |ttl| read.file.inode.is_check_due(ttl, now);
        let files = Arc::clone(self);
        if range.end > size && read.file.inode.is_unconfirmed() {
            self.start_read_past_unconfirmed_end(read, handle, reply);
        } else if range.start >= size && is_due(self.tables.policy.attribute_ttl) {
            // The file may have grown since.
            read.attempt = ReadAttempt::Final;
            task::run(async move {
                let look = read.attr_request(AttrSource::Path);
                // If this fails, the read returns the error.
                let _ = files.namespace.getattr_with_handle(look, Some(handle)).await;
                files.attempt_read(read, CallerThread::MustQueue, reply);
            });
        } else if is_direct && is_due(self.tables.policy.attribute_ttl.max(MIN_REVALIDATE_INTERVAL))
        {
            read.attempt = ReadAttempt::Retry;
            task::run(async move {
                let look = read.attr_request(AttrSource::PathOrTimeout);
                if files.namespace.getattr_as(look).await.is_err() {
                    // Delays the next check, so reads do not wait for it again soon.
                    read.file.inode.delay_check();
                }
                files.attempt_read(read, CallerThread::MustQueue, reply);
            });
        } else {
            let thread = match caller.small_reads {
                Some(small_reads) => CallerThread::Session(&*small_reads.0),
                None => CallerThread::MustQueue,
            };
            self.attempt_read(read, thread, reply);
        }
    }

    /// Reads past an end that may not be the file's: the kernel cuts the file where a read ends
    /// early. First a replica's server is asked for the version. If the version is still uncertain,
    /// the write replica is read. The read fails if no replica tells the version.
    fn start_read_past_unconfirmed_end<R: ReadReply>(
        self: &Arc<Self>,
        mut read: FileRead,
        handle: HandleId,
        reply: R,
    ) {
        let files = Arc::clone(self);
        read.attempt = ReadAttempt::Retry;
        task::run(async move {
            let look = read.attr_request(AttrSource::Reopen);
            let answer = files.namespace.getattr_with_handle(look, Some(handle)).await;
            let inode = &read.file.inode;
            let is_uncertain = inode.is_unconfirmed() && !inode.has_writers();
            match answer {
                // The caller may read the file, and not look it up.
                Err(errno) if is_uncertain && !matches!(errno, Errno::ACCES | Errno::PERM) => {
                    reply.send(Err(errno));
                }
                Ok(_) if is_uncertain && files.tables.can_write() => {
                    files.start_read_from_write_replica(read, None, reply);
                }
                _ => files.attempt_read(read, CallerThread::MustQueue, reply),
            }
        });
    }

    /// From the second attempt on, a replica's thread calls this, which has other work.
    fn attempt_read<R: ReadReply>(
        self: &Arc<Self>,
        read: FileRead,
        thread: CallerThread<'_, PendingRead<R>>,
        reply: R,
    ) {
        let (current, epoch) = match read.file.inode.read_source(read.file.writer.as_ref()) {
            ReadSource::AnyReplica(current, epoch) => (current, epoch),
            ReadSource::WriteReplica(writer) => {
                return self.start_read_from_write_replica(read, writer, reply);
            }
        };
        let params = ReadParams {
            range: read.range,
            since: read.since,
            fails_fast_on_stale: read.attempt != ReadAttempt::Final || self.tables.can_write(),
            origin: read.origin,
        };
        let read_handle = Arc::clone(&read.file.read_handle);
        let pending = PendingRead { files: Arc::clone(self), read, epoch, reply };
        self.tables.reader.read(&current, &read_handle, params, thread, pending);
    }

    /// Replies to a read that began in `epoch`, or repeats it.
    fn finish_read(
        self: &Arc<Self>,
        mut read: FileRead,
        epoch: u64,
        answer: Result<ReadBytes<'_>, ReadError>,
        reply: impl ReadReply,
    ) {
        let inode = Arc::clone(&read.file.inode);
        match answer {
            Err(error @ (ReadError::Deadline | ReadError::Stopped)) => {
                reply.send(Err(error.into()))
            }
            // A writer has opened it: the bytes may be from before and after a write.
            _ if !inode.is_same_epoch(epoch) => {
                read.attempt = read.attempt.next();
                self.attempt_read(read, CallerThread::MustQueue, reply);
            }
            Ok(data) => match inode.block_writes(epoch) {
                // Pages of a replica are not copied before they are sent.
                Some(_writes_blocked) => reply.send(Ok(data)),
                // A change is running.
                None => self.start_read_from_write_replica(read, None, reply),
            },
            Err(ReadError::Failed(error))
                if error.lacks_descriptors() && read.since.elapsed() < MAX_DESCRIPTOR_WAIT =>
            {
                self.start_read_with_next_descriptor(read, reply);
            }
            Err(error) if error.is_version_mismatch() && read.attempt != ReadAttempt::Final => {
                self.start_read_of_current_version(read, reply);
            }
            // The file changes faster than all replicas can open it. The write replica's mount
            // knows the current version.
            Err(error) if error.is_version_mismatch() && self.tables.can_write() => {
                self.start_read_from_write_replica(read, None, reply);
            }
            Err(error) => reply.send(Err(error.into())),
        }
    }

    /// No replica could open the file for want of descriptors. The reader has the file open, so the
    /// read waits until other files are closed.
    fn start_read_with_next_descriptor(
        self: &Arc<Self>,
        mut read: FileRead,
        reply: impl ReadReply,
    ) {
        let files = Arc::clone(self);
        self.close_unopened();
        read.waiting.get_or_insert_with(|| self.calls.client.register_waiting());
        self.calls.runtime.spawn(async move {
            tokio::time::sleep(DESCRIPTOR_RETRY).await;
            files.attempt_read(read, CallerThread::MustQueue, reply);
        });
    }

    /// No replica has this version any more: looks up the current one and reads it.
    fn start_read_of_current_version(self: &Arc<Self>, mut read: FileRead, reply: impl ReadReply) {
        let files = Arc::clone(self);
        read.attempt = ReadAttempt::Final;
        task::run(async move {
            match files.namespace.getattr_as(read.attr_request(AttrSource::Reopen)).await {
                Ok(_) => files.attempt_read(read, CallerThread::MustQueue, reply),
                Err(errno) => reply.send(Err(errno)),
            }
        });
    }

    fn start_read_from_write_replica(
        self: &Arc<Self>,
        read: FileRead,
        writer: Option<Arc<Writer>>,
        reply: impl ReadReply,
    ) {
        let files = Arc::clone(self);
        task::run(async move {
            let FileRead { file, range, since, .. } = read;
            let data = files.read_from_write_replica(file, writer, range, since).await;
            reply.send(data.map(ReadBytes::Segments));
        });
    }

    /// The next data or hole of a file.
    pub async fn lseek(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        to: SeekTo,
        kernel: &impl KernelOpen,
    ) -> FsResult<u64> {
        let file = match handle.is_unopened() {
            true => self.file_to_read(handle.ino, None, kernel).await?.1,
            false => self.tables.handles.file(handle).ok_or(Errno::BADF)?,
        };
        let current = match file.inode.read_source(file.writer.as_ref()) {
            ReadSource::AnyReplica(current, _) => current,
            ReadSource::WriteReplica(writer) => {
                return self.lseek_on_write_replica(file, writer, offset, to).await;
            }
        };
        let target = self.calls.target_of_open(file.ino, &current);
        let run_as = RunAs::Only(current.credentials());
        let seek = move |replica: ReplicaId, backend: &dyn Backend| {
            current.open_on(replica, backend)?.seek(offset, to)
        };
        let (_, found) = self.calls.client.call(target.long(), run_as, seek).await?;
        Ok(found)
    }
}
