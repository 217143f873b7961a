//! Set-id bits of a file that fallocate(2) or copy_file_range(2) changes.
//!
//! A local file system removes them unless the caller has CAP_FSETID. The kernel leaves this to the
//! daemon (`FUSE_HANDLE_KILLPRIV_V2`), and these two requests do not carry the caller's
//! capabilities. The change runs with the credentials of the process that opened the file, because
//! only the descriptor grants the right to change it. So the thread that makes the call lowers or
//! raises CAP_FSETID for it, as the caller has it. If a replica keeps the bits anyway (an NFS
//! server knows no capabilities), fanfs then asks it to remove them.
//!
//! *Invariant:* after such a change by a caller without CAP_FSETID, the file has no set-id
//! bits that a write of that caller would have removed.

use std::io;

use crate::backend::{
    BackendError, BackendFile, FileKind, FileMutation, RequestContext, Result, SetAttr,
};
use crate::capabilities::{self, SET_ID};

/// The set-user-id bit, the set-group-id bit, and the bit without which the latter is left:
/// execution by the group.
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

/// Whether a change keeps set-id bits, by the caller's capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetIdPolicy {
    /// The caller has CAP_FSETID.
    Keep,
    /// The caller does not have it.
    Remove,
}

impl SetIdPolicy {
    /// Call it while the caller waits for an answer. A caller that is not root counts as one
    /// without the capability: in a user namespace of their own, any user has all capabilities.
    pub(super) fn of_caller(who: &RequestContext) -> Self {
        match who.uid == 0 && capabilities::has_effective(who.pid, SET_ID) {
            true => Self::Keep,
            false => Self::Remove,
        }
    }

    /// Makes `change` of `file`. Blocks.
    pub(super) fn apply_change<T>(
        self,
        file: &dyn BackendFile,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self == Self::Keep {
            let _raised = capabilities::raise(SET_ID);
            return change();
        }
        let _lowered = capabilities::lower(SET_ID).map_err(capability_error)?;
        let changed = change()?;
        remove_set_id_bits(file);
        Ok(changed)
    }
}

fn capability_error(error: io::Error) -> BackendError {
    let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::PERM);
    BackendError::Os(errno)
}

/// The bits of `perm` that remain after a write by a caller without CAP_FSETID.
fn without_set_id(perm: u32) -> u32 {
    let group = if perm & S_IXGRP != 0 { S_ISGID } else { 0 };
    perm & !(S_ISUID | group)
}

/// Removes set-id bits that the replica has kept. The change itself was made, so a failure here
/// does not reach its caller.
fn remove_set_id_bits(file: &dyn BackendFile) {
    let Ok(attr) = file.attr() else { return };
    let had = u32::from(attr.perm);
    let perm = without_set_id(had);
    if attr.kind != FileKind::Regular || perm == had {
        return;
    }
    let attributes = SetAttr { perm: Some(perm), ..SetAttr::default() };
    if let Err(error) = file.mutate(&FileMutation::SetAttr(attributes)) {
        tracing::warn!(%error, "cannot clear the set-id bits of a changed file");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use parking_lot::Mutex;

    use super::*;
    use crate::backend::{Attr, FileParts, Lock, LockRequest, SeekTo, SubmitResult, SubmittedRead};
    use crate::volume::FileId;

    /// A file whose replica keeps the set-id bits, as an NFS server does for root.
    struct Keeps(Mutex<u16>);

    impl BackendFile for Keeps {
        fn attr(&self) -> Result<Attr> {
            Ok(Attr {
                id: FileId { dev: FileId::ROOT_DEV, ino: 7 },
                kind: FileKind::Regular,
                perm: *self.0.lock(),
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: (0, 0),
                size: 0,
                blocks: 0,
                blksize: 4096,
                atime: (0, 0),
                mtime: (0, 0),
                ctime: (0, 0),
                generation: Default::default(),
            })
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
            Err(BackendError::Os(rustix::io::Errno::NOSYS))
        }

        fn splice_at(&self, _: u64, _: BorrowedFd<'_>, _: usize) -> Option<Result<usize>> {
            None
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn parts(&self) -> FileParts<'_> {
            FileParts::default()
        }

        fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
            Err(read)
        }

        fn is_deferred(&self) -> bool {
            false
        }

        fn seek(&self, _: u64, _: SeekTo) -> Result<u64> {
            Err(BackendError::Os(rustix::io::Errno::NOSYS))
        }

        fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
            if let FileMutation::SetAttr(SetAttr { perm: Some(perm), .. }) = change {
                *self.0.lock() = *perm as u16;
            }
            Ok(0)
        }

        fn lock(&self, _: &LockRequest) -> Result<Lock> {
            Err(BackendError::Os(rustix::io::Errno::NOSYS))
        }
    }

    #[test]
    fn set_id_bits_are_removed_unless_the_caller_may_keep_them() {
        let file = Keeps(Mutex::new(0o6755));
        let allocate = || file.mutate(&FileMutation::Fallocate { mode: 0, offset: 0, len: 1 });
        assert_eq!(SetIdPolicy::Keep.apply_change(&file, allocate), Ok(0));
        assert_eq!(*file.0.lock(), 0o6755);
        assert_eq!(SetIdPolicy::Remove.apply_change(&file, allocate), Ok(0));
        assert_eq!(*file.0.lock(), 0o755);
    }

    #[test]
    fn a_write_keeps_the_sgid_bit_without_group_execute() {
        let left = [0o6755, 0o4711, 0o2755, 0o2644, 0o6644, 0o1755].map(without_set_id);
        assert_eq!(left, [0o755, 0o711, 0o755, 0o2644, 0o2644, 0o1755]);
    }

    #[test]
    fn set_id_bits_are_removed_for_an_unknown_caller() {
        let unprivileged = RequestContext { uid: 0, gid: 0, pid: 0, request: 1, is_resent: false };
        assert_eq!(SetIdPolicy::of_caller(&unprivileged), SetIdPolicy::Remove);
    }
}
