//! Reading what is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::call::Rights;
use super::handle::{FileHandle, ReadFrom};
use super::{Answer, Caching, Entry, Errno, Fs, HandleId, ReadData};
use crate::backend::SeekTo;
use crate::read::{Asked, By, ReadError, Thread};
use crate::volume::ByteRange;

/// The shortest time between two looks at the version of a file. Data that was read ahead
/// is no older than that when it is delivered. The kernel looks by itself before it reads
/// through its page cache, and does not before a direct read.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// Which try at a read it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    First,
    /// After somebody has begun to write the file.
    Again,
    /// After it was looked what version there is.
    Last,
}

impl Try {
    fn again(self) -> Self {
        if self == Self::Last { self } else { Self::Again }
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
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        file.cached.read();
        file.closing.store(false, Ordering::Relaxed);
        let now = Instant::now();
        file.blocks.read(range.len(), process, self.busy.moment(now));
        // What is done again is to end by the deadline all the same.
        let (asked, by) = ((range, now), By { handle: handle.number, process });
        let current = match file.inode.read_from(file.writer.as_ref()) {
            ReadFrom::Version(current, _) => current,
            ReadFrom::Written(through) => return self.read_written(file, through, asked, done),
        };
        // It may have grown since.
        let at_end = range.start >= current.version().size;
        let is_due = |ttl| file.inode.is_due(ttl, now);
        if at_end && is_due(self.policy.attribute_ttl) {
            let (fs, ino, rights) = (Arc::clone(self), file.ino, Rights::Granted(file.who.clone()));
            let then = move |_| fs.read_now(file, (asked, by), Try::Last, done);
            return self.attributes_by(rights, ino, Some(handle), asked.1, then);
        }
        let is_direct = file.caching() == Caching::Direct;
        if is_direct && is_due(self.policy.attribute_ttl.max(BELIEVED_FOR)) {
            let (fs, ino, rights) = (Arc::clone(self), file.ino, Rights::Granted(file.who.clone()));
            let then = move |answer: Answer<Entry>| {
                if answer.is_err() {
                    // No read has to wait for that again soon.
                    file.inode.was_looked_at();
                }
                fs.read_now(file, (asked, by), Try::Again, done);
            };
            return self.attributes_again(rights, ino, asked.1, then);
        }
        self.read_now(file, (asked, by), Try::First, done);
    }

    fn read_now(
        self: &Arc<Self>,
        file: FileHandle,
        (asked, by): ((ByteRange, Instant), By),
        this: Try,
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let (current, epoch) = match file.inode.read_from(file.writer.as_ref()) {
            ReadFrom::Version(current, epoch) => (current, epoch),
            ReadFrom::Written(through) => return self.read_written(file, through, asked, done),
        };
        let fs = Arc::clone(self);
        let (inode, read_handle) = (Arc::clone(&file.inode), Arc::clone(&file.read));
        let sink = Box::new(move |answer: Result<ReadData, ReadError>| match answer {
            Err(error @ (ReadError::Deadline | ReadError::Stopped)) => done(Err(error.into())),
            // Somebody has begun to write it: what came may be from before and after.
            _ if !inode.is_still(epoch) => fs.read_now(file, (asked, by), this.again(), done),
            Ok(data) => match inode.hold_back_writes(epoch) {
                // What is pages of a replica is not copied before it is sent.
                Some(_held_back) => done(Ok(data)),
                // It is being changed right now.
                None => fs.read_written(file, None, asked, done),
            },
            Err(error) if error.is_another_version() && this != Try::Last => {
                // Nobody has this version any more: look what there is now.
                let (again, ino) = (Arc::clone(&fs), file.ino);
                let rights = Rights::Granted(file.who.clone());
                fs.attributes_at_open(rights, ino, asked.1, move |answer| match answer {
                    Ok(_) => again.read_now(file, (asked, by), Try::Last, done),
                    Err(errno) => done(Err(errno)),
                });
            }
            // It changes faster than it can be opened everywhere. The write replica's
            // mount knows what there is.
            Err(error) if error.is_another_version() && fs.can_write() => {
                fs.read_written(file, None, asked, done);
            }
            Err(error) => done(Err(error.into())),
        });
        // From the second on it is some replica's thread that gets here.
        let thread = if this == Try::First { Thread::MayVisit } else { Thread::IsBusy };
        let (range, since) = asked;
        let asked = Asked { range, since, looks: this != Try::Last || self.can_write(), by };
        self.reader.read(&current, &read_handle, asked, thread, sink);
    }

    /// The next data or hole of an open file.
    pub fn seek(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        to: SeekTo,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let current = match file.inode.read_from(file.writer.as_ref()) {
            ReadFrom::Version(current, _) => current,
            ReadFrom::Written(through) => {
                return self.seek_written(file, through, offset, to, done);
            }
        };
        self.caller.call_by_replica(
            self.spot_of_open(file.ino, &current),
            Rights::Of(current.who()),
            move |replica, backend| current.on(replica, backend)?.seek(offset, to),
            move |answer| done(answer.map_err(Errno::from).map(|(_, offset)| offset)),
        );
    }
}
