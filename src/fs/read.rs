//! Reading what is open.

use std::sync::Arc;
use std::time::Instant;

use super::call::Rights;
use super::handle::{FileHandle, ReadFrom};
use super::{Answer, Errno, Fs, ReadData};
use crate::backend::{Requester, SeekTo};
use crate::read::{ReadError, Thread};
use crate::volume::ByteRange;

impl Fs {
    /// Reads a range of an open file; fewer bytes come only at its end. A small
    /// read may be carried out on the calling thread, as far as others are left
    /// to take requests.
    pub fn read(
        self: &Arc<Self>,
        handle: u64,
        range: ByteRange,
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        file.cached.read();
        file.blocks.read(range.len());
        let current = match file.inode.read_from(file.writer.as_ref()) {
            ReadFrom::Version(current, _) => current,
            ReadFrom::Written(through) => return self.read_written(file, through, range, done),
        };
        let at_end = range.start >= current.version().size;
        if at_end && file.inode.is_due(self.policy.attribute_ttl, Instant::now()) {
            // The file may have grown since.
            let (fs, ino) = (Arc::clone(self), file.ino);
            let then = move |_| fs.read_now(file, range, true, done);
            return self.attributes(Requester::DAEMON, ino, Some(handle), then);
        }
        self.read_now(file, range, false, done);
    }

    fn read_now(
        self: &Arc<Self>,
        file: FileHandle,
        range: ByteRange,
        checked: bool,
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let (current, epoch) = match file.inode.read_from(file.writer.as_ref()) {
            ReadFrom::Version(current, epoch) => (current, epoch),
            ReadFrom::Written(through) => return self.read_written(file, through, range, done),
        };
        let fs = Arc::clone(self);
        let (inode, read_handle) = (Arc::clone(&file.inode), Arc::clone(&file.read));
        let sink = Box::new(move |answer: Result<ReadData, ReadError>| match answer {
            // Somebody has begun to write it: what came may be from before and after.
            _ if !file.inode.is_still(epoch) => fs.read_now(file, range, checked, done),
            Ok(data) => match inode.hold_back_writes(epoch) {
                // What is pages of a replica is not copied before it is sent.
                Some(_held_back) => done(Ok(data)),
                None => fs.read_now(file, range, checked, done),
            },
            Err(error) if error.is_another_version() && !checked => {
                // Nobody has this version any more: look what there is now.
                let (again, ino) = (Arc::clone(&fs), file.ino);
                fs.attributes(Requester::DAEMON, ino, None, move |answer| match answer {
                    Ok(_) => again.read_now(file, range, true, done),
                    Err(errno) => done(Err(errno)),
                });
            }
            Err(error) => done(Err(error.into())),
        });
        // After a check it is some replica's thread that gets here.
        let thread = if checked { Thread::IsBusy } else { Thread::MayVisit };
        self.reader.read(&current, &read_handle, range, thread, sink);
    }

    /// The next data or hole of an open file.
    pub fn seek(
        self: &Arc<Self>,
        handle: u64,
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
            self.spot_of(file.ino, current.path()),
            Rights::Of(current.who().clone()),
            move |replica, backend| current.on(replica, backend)?.seek(offset, to),
            move |answer| done(answer.map_err(Errno::from).map(|(_, offset)| offset)),
        );
    }
}
