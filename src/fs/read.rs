//! Reading what is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::handles::{FileHandle, ReadSource};
use super::metadata_client::RunAs;
use super::{CacheMode, Errno, Fs, FsResult, HandleId, InodeAttr, ReadData};
use crate::backend::SeekTo;
use crate::read::{CallerThread, ReadError, ReadParams, RequestOrigin};
use crate::volume::ByteRange;

/// The shortest time between two looks at the version of a file. Data that was read ahead
/// is no older than that when it is delivered. The kernel looks by itself before it reads
/// through its page cache, and does not before a direct read.
const MIN_REVALIDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Which try at a read it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadAttempt {
    First,
    /// After somebody has begun to write the file.
    Retry,
    /// After it was looked what version there is.
    Final,
}

impl ReadAttempt {
    fn next(self) -> Self {
        if self == Self::Final { self } else { Self::Retry }
    }
}

impl Fs {
    /// Reads a range of an open file for `process`, or one of its threads; fewer
    /// bytes come only at its end. A small read may be carried out on the calling
    /// thread, as far as others are left to take requests.
    pub fn read(
        self: &Arc<Self>,
        handle: HandleId,
        range: ByteRange,
        process: u32,
        done: impl FnOnce(FsResult<ReadData>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        file.cache_validity.mark_read();
        file.is_closing.store(false, Ordering::Relaxed);
        let now = Instant::now();
        file.read_stats.record_read(range.len(), process, self.activity.micros_since_start(now));
        // What is done again is to end by the deadline all the same.
        let (asked, by) = ((range, now), RequestOrigin { handle: handle.number, process });
        let current = match file.inode.read_source(file.writer.as_ref()) {
            ReadSource::AnyReplica(current, _) => current,
            ReadSource::WriteReplica(through) => {
                return self.read_from_write_replica(file, through, asked, done);
            }
        };
        // It may have grown since.
        let at_end = range.start >= current.version().size;
        let is_due = |ttl| file.inode.is_check_due(ttl, now);
        if at_end && is_due(self.policy.attribute_ttl) {
            let (fs, ino, rights) =
                (Arc::clone(self), file.ino, RunAs::CallerThenDaemon(file.credentials.clone()));
            let then = move |_| fs.attempt_read(file, (asked, by), ReadAttempt::Final, done);
            return self.getattr_as(rights, ino, Some(handle), asked.1, then);
        }
        let is_direct = file.cache_mode() == CacheMode::Direct;
        if is_direct && is_due(self.policy.attribute_ttl.max(MIN_REVALIDATE_INTERVAL)) {
            let (fs, ino, rights) =
                (Arc::clone(self), file.ino, RunAs::CallerThenDaemon(file.credentials.clone()));
            let then = move |answer: FsResult<InodeAttr>| {
                if answer.is_err() {
                    // No read has to wait for that again soon.
                    file.inode.mark_checked();
                }
                fs.attempt_read(file, (asked, by), ReadAttempt::Retry, done);
            };
            return self.revalidate_attrs(rights, ino, asked.1, then);
        }
        self.attempt_read(file, (asked, by), ReadAttempt::First, done);
    }

    fn attempt_read(
        self: &Arc<Self>,
        file: FileHandle,
        (asked, by): ((ByteRange, Instant), RequestOrigin),
        this: ReadAttempt,
        done: impl FnOnce(FsResult<ReadData>) + Send + 'static,
    ) {
        let (current, epoch) = match file.inode.read_source(file.writer.as_ref()) {
            ReadSource::AnyReplica(current, epoch) => (current, epoch),
            ReadSource::WriteReplica(through) => {
                return self.read_from_write_replica(file, through, asked, done);
            }
        };
        let fs = Arc::clone(self);
        let (inode, read_handle) = (Arc::clone(&file.inode), Arc::clone(&file.read_handle));
        let sink = Box::new(move |answer: Result<ReadData, ReadError>| match answer {
            Err(error @ (ReadError::Deadline | ReadError::Stopped)) => done(Err(error.into())),
            // Somebody has begun to write it: what came may be from before and after.
            _ if !inode.is_same_epoch(epoch) => {
                fs.attempt_read(file, (asked, by), this.next(), done)
            }
            Ok(data) => match inode.block_writes(epoch) {
                // What is pages of a replica is not copied before it is sent.
                Some(_held_back) => done(Ok(data)),
                // It is being changed right now.
                None => fs.read_from_write_replica(file, None, asked, done),
            },
            Err(error) if error.is_version_mismatch() && this != ReadAttempt::Final => {
                // Nobody has this version any more: look what there is now.
                let (again, ino) = (Arc::clone(&fs), file.ino);
                let rights = RunAs::CallerThenDaemon(file.credentials.clone());
                fs.getattr_by_reopen(rights, ino, asked.1, move |answer| match answer {
                    Ok(_) => again.attempt_read(file, (asked, by), ReadAttempt::Final, done),
                    Err(errno) => done(Err(errno)),
                });
            }
            // It changes faster than it can be opened everywhere. The write replica's
            // mount knows what there is.
            Err(error) if error.is_version_mismatch() && fs.can_write() => {
                fs.read_from_write_replica(file, None, asked, done);
            }
            Err(error) => done(Err(error.into())),
        });
        // From the second on it is some replica's thread that gets here.
        let thread = if this == ReadAttempt::First {
            CallerThread::MayInline
        } else {
            CallerThread::MustQueue
        };
        let (range, since) = asked;
        let asked = ReadParams {
            range,
            since,
            fails_fast_on_stale: this != ReadAttempt::Final || self.can_write(),
            origin: by,
        };
        self.reader.read(&current, &read_handle, asked, thread, sink);
    }

    /// The next data or hole of an open file.
    pub fn lseek(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        to: SeekTo,
        done: impl FnOnce(FsResult<u64>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let current = match file.inode.read_source(file.writer.as_ref()) {
            ReadSource::AnyReplica(current, _) => current,
            ReadSource::WriteReplica(through) => {
                return self.lseek_on_write_replica(file, through, offset, to, done);
            }
        };
        self.client.call_by_replica(
            self.call_target_of_open(file.ino, &current),
            RunAs::Only(current.credentials()),
            move |replica, backend| current.open_on(replica, backend)?.seek(offset, to),
            move |answer| done(answer.map_err(Errno::from).map(|(_, offset)| offset)),
        );
    }
}
