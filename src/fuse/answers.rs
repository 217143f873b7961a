//! fanfs's answers as fuser's replies.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, RequestId,
};

use super::names::Names;
use super::opening;
use super::reply::Replies;
use super::wire::{attributes, kind, lock_number, nothing_but_a_directory, number};
use crate::backend::{FileKind, Lock, StatFs};
use crate::fs::{Answer, Created, Entry, Errno, Fs, HandleId, Ino, Listing, PlusPage};

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

/// Of every inode: a number that the kernel knows stands for one object only.
const GENERATION: Generation = Generation(0);

pub(super) fn reply_entry(reply: ReplyEntry, ttl: Duration, answer: Answer<Entry>) {
    match answer {
        Ok(entry) => reply.entry(&ttl, &attributes(&entry), GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to GETXATTR or LISTXATTR, which first ask how large the answer is.
pub(super) fn reply_xattr(reply: ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Err(error) => reply.error(errno(error)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::RANGE)),
        Ok(value) => reply.data(&value),
    }
}

/// Replies to READDIR.
pub(super) fn fill(fs: &Fs, answer: Answer<Arc<Listing>>, offset: u64, mut reply: ReplyDirectory) {
    let listing = match answer {
        Ok(listing) => listing,
        Err(error) => return reply.error(errno(error)),
    };
    for (number, next, name) in listing.dots(offset) {
        if reply.add(INodeNo(number.0), next, FileType::Directory, name) {
            return reply.ok();
        }
    }
    for entry in listing.from(offset) {
        let number = fs.listed_number(listing.ino, &entry);
        if reply.add(INodeNo(number.0), entry.next, kind(entry.kind), entry.name) {
            break;
        }
    }
    reply.ok();
}

pub(super) fn reply_attr(reply: ReplyAttr, ttl: Duration, answer: Answer<Entry>) {
    match answer {
        Ok(entry) => reply.attr(&ttl, &attributes(&entry)),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies how many bytes were written; no request is larger than 4 GiB.
pub(super) fn reply_written(reply: ReplyWrite, answer: Answer<u64>) {
    match answer {
        Ok(bytes) => reply.written(bytes as u32),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to GETLK; whose the lock is, nobody says.
pub(super) fn reply_lock(reply: ReplyLock, answer: Answer<Lock>) {
    match answer {
        Ok(found) => reply.locked(found.start, found.end, lock_number(found.kind), 0),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_link(reply: ReplyData, answer: Answer<OsString>) {
    match answer {
        Ok(target) => reply.data(target.as_bytes()),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_dir(reply: ReplyOpen, answer: Answer<HandleId>) {
    match answer {
        Ok(handle) => reply.opened(FileHandle(handle.number), FopenFlags::empty()),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_offset(reply: ReplyLseek, answer: Answer<u64>) {
    match answer {
        Ok(found) => reply.offset(found as i64),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_stat_fs(reply: ReplyStatfs, answer: Answer<StatFs>) {
    match answer {
        Ok(s) => reply
            .statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to CREATE: an entry and an open file in one.
pub(super) fn reply_created(
    reply: ReplyCreate,
    ttl: Duration,
    one_by_one: bool,
    answer: Answer<Created>,
) {
    match answer {
        Ok(Created { entry, opened }) => {
            let attr = attributes(&entry);
            let flags = opening::flags(&opened, true, one_by_one);
            reply.created(&ttl, &attr, GENERATION, FileHandle(opened.handle.number), flags);
        }
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to READDIRPLUS with names alone, as some of the entries cannot be looked at;
/// the kernel looks up those that it is asked for.
fn fill_names(
    fs: &Fs,
    dir: Ino,
    page: &PlusPage,
    offset: u64,
    (replies, id): (Arc<Replies>, RequestId),
    reply: ReplyDirectoryPlus,
) {
    let mut names = Names::default();
    let mut fits = true;
    for (number, next, name) in page.dots(offset) {
        fits = fits && names.add(number, next, name.as_bytes(), FileKind::Directory);
    }
    for plus in &page.entries {
        let number = match &plus.seen {
            Some(seen) => fs.entry(dir, &plus.name, seen).map(|entry| entry.ino),
            None => Some(plus.number),
        };
        let Some(number) = number else { continue };
        fits = fits && names.add(number, plus.next, plus.name.as_bytes(), plus.kind);
    }
    match replies.listing(id, names.bytes()) {
        // The kernel has its answer; see [`Replies`].
        true => std::mem::forget(reply),
        false => reply.error(fuser::Errno::EIO),
    }
}

/// What replies to a READDIRPLUS of `dir` from `offset` on.
pub(super) fn plus(
    fs: &Arc<Fs>,
    ttl: Duration,
    (replies, id): (&Arc<Replies>, RequestId),
    (dir, offset): (Ino, u64),
    reply: ReplyDirectoryPlus,
) -> impl FnOnce(Answer<PlusPage>) + Send + use<> {
    let (fs, replies) = (Arc::clone(fs), Arc::clone(replies));
    move |answer| fill_plus(&fs, dir, (answer, offset), ttl, (replies, id), reply)
}

/// Replies to READDIRPLUS with as much as fits. What is in the reply the kernel
/// knows once more.
fn fill_plus(
    fs: &Fs,
    dir: Ino,
    (answer, offset): (Answer<PlusPage>, u64),
    ttl: Duration,
    by: (Arc<Replies>, RequestId),
    mut reply: ReplyDirectoryPlus,
) {
    let request = number(by.1);
    let page = match answer {
        Ok(page) => page,
        Err(error) => return reply.error(errno(error)),
    };
    if page.has_names_alone() {
        return fill_names(fs, dir, &page, offset, by, reply);
    }
    for (number, next, name) in page.dots(offset) {
        // The kernel takes the name and the number and looks no further.
        let attr = nothing_but_a_directory(number);
        if reply.add(attr.ino, next, name, &ttl, &attr, GENERATION) {
            return reply.ok();
        }
    }
    for plus in page.entries {
        let Some(seen) = &plus.seen else { continue };
        let Some(entry) = fs.entry(dir, &plus.name, seen) else { continue };
        let attr = attributes(&entry);
        if reply.add(attr.ino, plus.next, &plus.name, &ttl, &attr, GENERATION) {
            break;
        }
        fs.accept(entry.ino, (dir, &plus.name), seen, request);
    }
    reply.ok();
}
