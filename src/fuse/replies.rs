//! fuser's replies, made from fanfs's answers.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr,
};

use super::convert::{bare_dir_attr, errno, file_attr, file_type, lock_type};
use super::open_responder;
use crate::backend::{Lock, StatFs};
use crate::fs::{CreatedFile, Errno, Fs, FsResult, HandleId, Ino, InodeAttr, Listing};

/// The same for every inode: a number that the kernel knows denotes one object only.
pub(super) const GENERATION: Generation = Generation(0);

pub(super) fn reply_entry(reply: ReplyEntry, ttl: Duration, answer: FsResult<InodeAttr>) {
    match answer {
        Ok(entry) => reply.entry(&ttl, &file_attr(&entry), GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to LOOKUP. The kernel remembers for `missing_ttl` that a name does not exist.
pub(super) fn reply_lookup(
    reply: ReplyEntry,
    ttl: Duration,
    missing_ttl: Duration,
    answer: FsResult<InodeAttr>,
) {
    if matches!(answer, Err(Errno::NOENT)) && !missing_ttl.is_zero() {
        return reply.entry(&missing_ttl, &bare_dir_attr(Ino(0)), GENERATION);
    }
    reply_entry(reply, ttl, answer);
}

pub(super) fn reply_empty(reply: ReplyEmpty, answer: FsResult<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to GETXATTR or LISTXATTR, which first ask how large the answer is.
pub(super) fn reply_xattr(reply: ReplyXattr, size: u32, answer: FsResult<Vec<u8>>) {
    match answer {
        Err(error) => reply.error(errno(error)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::RANGE)),
        Ok(value) => reply.data(&value),
    }
}

/// Replies to READDIR.
pub(super) fn reply_readdir(
    fs: &Fs,
    answer: FsResult<Arc<Listing>>,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let listing = match answer {
        Ok(listing) => listing,
        Err(error) => return reply.error(errno(error)),
    };
    for (number, next, name) in listing.dot_entries(offset) {
        if reply.add(INodeNo(number.0), next, FileType::Directory, name) {
            return reply.ok();
        }
    }
    for entry in listing.entries_from(offset) {
        let number = fs.namespace.listed_ino(listing.ino, &entry);
        if reply.add(INodeNo(number.0), entry.next_offset, file_type(entry.kind), entry.name) {
            break;
        }
    }
    reply.ok();
}

pub(super) fn reply_attr(reply: ReplyAttr, ttl: Duration, answer: FsResult<InodeAttr>) {
    match answer {
        Ok(entry) => reply.attr(&ttl, &file_attr(&entry)),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies with the number of bytes written; no request is larger than 4 GiB.
pub(super) fn reply_write(reply: ReplyWrite, answer: FsResult<u64>) {
    match answer {
        Ok(bytes) => reply.written(bytes as u32),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to GETLK. The lock's owner is unknown.
pub(super) fn reply_getlk(reply: ReplyLock, answer: FsResult<Lock>) {
    match answer {
        Ok(found) => reply.locked(found.start, found.end, lock_type(found.kind), 0),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_readlink(reply: ReplyData, answer: FsResult<OsString>) {
    match answer {
        Ok(target) => reply.data(target.as_bytes()),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_opendir(reply: ReplyOpen, answer: FsResult<HandleId>) {
    match answer {
        Ok(handle) => reply.opened(FileHandle(handle.number), FopenFlags::empty()),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_lseek(reply: ReplyLseek, answer: FsResult<u64>) {
    match answer {
        Ok(found) => reply.offset(found as i64),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_statfs(reply: ReplyStatfs, answer: FsResult<StatFs>) {
    match answer {
        Ok(s) => reply
            .statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to CREATE: an entry and an open file in one.
pub(super) fn reply_create(
    reply: ReplyCreate,
    ttl: Duration,
    one_by_one: bool,
    answer: FsResult<CreatedFile>,
) {
    match answer {
        Ok(CreatedFile { entry, opened }) => {
            let attr = file_attr(&entry);
            let flags = open_responder::open_flags(&opened, true, one_by_one);
            reply.created(&ttl, &attr, GENERATION, FileHandle(opened.handle.number), flags);
        }
        Err(error) => reply.error(errno(error)),
    }
}
