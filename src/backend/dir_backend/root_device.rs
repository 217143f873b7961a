//! The device that a root lies on, and the attributes of its objects.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, statx};
use rustix::io::Errno;

use super::file_handle::{self, HandleSpace};
use crate::backend::{Attr, FileKind, Generation, HandleDigest, Result};
use crate::survey::RootRecord;
use crate::volume::FileId;

/// The device that the root lies on.
#[derive(Clone, Copy)]
pub(super) struct RootDevice {
    /// Major and minor.
    pub(super) dev: (u32, u32),
    /// The space of its file handles, if they identify its objects.
    pub(super) handle_space: Option<u64>,
}

impl RootDevice {
    /// The device of a root that only `record` describes.
    pub(super) fn from_record(record: RootRecord) -> Self {
        Self { dev: record.dev, handle_space: None }
    }

    /// The device of an open root.
    pub(super) fn from_root(root: BorrowedFd<'_>, record: &RootRecord) -> Self {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let is_born =
            || statx(root, "", flags, STATX_MASK).is_ok_and(|root| birth_time(&root).is_some());
        let space =
            (record.is_nfs() && !is_born()).then(|| file_handle::handle_space(root)).flatten();
        Self { dev: record.dev, handle_space: space }
    }

    pub(super) fn attr(self, fd: BorrowedFd<'_>) -> Result<Attr> {
        self.attr_of_fd(fd, AtFlags::EMPTY_PATH)
    }

    /// Attributes from the mount's cache. Only those that never change are reliable.
    pub(super) fn identity_attr(self, fd: BorrowedFd<'_>) -> Result<Attr> {
        self.attr_of_fd(fd, AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC)
    }

    fn attr_of_fd(self, fd: BorrowedFd<'_>, flags: AtFlags) -> Result<Attr> {
        let attr = self.attr_from_statx(&statx(fd, "", flags, STATX_MASK)?)?;
        Ok(attr.with_handle(self.handle_digest(fd, OsStr::new(""), attr)))
    }

    pub(super) fn attr_at(self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Attr> {
        let look =
            || self.attr_from_statx(&statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, STATX_MASK)?);
        let attr = look()?;
        let handle = self.handle_digest(dir, name, attr);
        // Another object may have taken the name before the handle was read.
        let handle = handle.filter(|_| {
            let again = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
            let now = statx(dir, name, again, StatxFlags::INO);
            now.is_ok_and(|now| now.stx_ino == attr.id.ino)
        });
        Ok(attr.with_handle(handle))
    }

    /// The file handle of `name` in `dir`, or of `dir` if the name is empty. `None` if handles do
    /// not identify the object.
    fn handle_digest(self, dir: BorrowedFd<'_>, name: &OsStr, attr: Attr) -> Option<HandleDigest> {
        let space = self.handle_space.filter(|_| attr.generation.born.is_none())?;
        file_handle::handle_digest(dir, name, HandleSpace { root: space, device: attr.id.dev })
    }

    pub(super) fn attr_from_statx(self, s: &Statx) -> Result<Attr> {
        let file_type = FileType::from_raw_mode(u32::from(s.stx_mode));
        Ok(Attr {
            id: FileId { dev: self.device_id(s.stx_dev_major, s.stx_dev_minor), ino: s.stx_ino },
            kind: kind_of(file_type).ok_or(Errno::IO)?,
            perm: s.stx_mode & 0o7777,
            nlink: s.stx_nlink,
            uid: s.stx_uid,
            gid: s.stx_gid,
            rdev: (s.stx_rdev_major, s.stx_rdev_minor),
            size: s.stx_size,
            blocks: s.stx_blocks,
            blksize: s.stx_blksize,
            atime: (s.stx_atime.tv_sec, s.stx_atime.tv_nsec),
            mtime: (s.stx_mtime.tv_sec, s.stx_mtime.tv_nsec),
            ctime: (s.stx_ctime.tv_sec, s.stx_ctime.tv_nsec),
            generation: Generation { born: birth_time(s), handle: None },
        })
    }

    fn device_id(self, major: u32, minor: u32) -> u64 {
        if (major, minor) == self.dev {
            return FileId::ROOT_DEV;
        }
        // Linux uses 12 and 20 bits for them; no device is 0:0.
        u64::from(major) << 32 | u64::from(minor)
    }
}

/// The fields that statx(2) asks for.
const STATX_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

fn birth_time(s: &Statx) -> Option<(i64, u32)> {
    let is_known = s.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_known.then_some((s.stx_btime.tv_sec, s.stx_btime.tv_nsec))
}

pub(super) fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}
