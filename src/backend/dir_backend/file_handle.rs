//! File handles from name_to_handle_at(2).
//!
//! A file handle contains the generation of the inode number, so it distinguishes a file from a
//! later one with the same number. The NFS client returns the server's handle without asking the
//! server. fanfs uses it if the replica does not report birth times: over NFS before Linux 6.16,
//! and from servers that do not know them.
//!
//! Two servers may have different handles for one file. Replicas whose roots have the same handle
//! also agree about all others: their *space* is the same.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use nix::libc;

use crate::backend::HandleDigest;

/// The longest handle (`MAX_HANDLE_SZ`).
const MAX_HANDLE_SIZE: usize = 128;

/// Like `struct file_handle`, with room for the longest handle.
#[repr(C)]
struct RawFileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; MAX_HANDLE_SIZE],
}

/// A digest of the handle of `name` in `dir`, or of `dir` if the name is empty. `None` if the file
/// system has no handles.
fn digest_handle(dir: BorrowedFd<'_>, name: &OsStr) -> Option<u64> {
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let name = CString::new(name.as_bytes()).ok()?;
    let mut handle = RawFileHandle {
        bytes: MAX_HANDLE_SIZE as libc::c_uint,
        kind: 0,
        handle: [0; MAX_HANDLE_SIZE],
    };
    let mut mount = 0;
    let to = (&raw mut handle).cast();
    // SAFETY: `name` ends with a NUL byte. The call writes one number to `mount`, and to
    // `handle` no more bytes than `handle.bytes` says it has room for.
    let status = unsafe {
        libc::name_to_handle_at(dir.as_raw_fd(), name.as_ptr(), to, &raw mut mount, flags)
    };
    let bytes = handle.handle.get(..handle.bytes as usize).filter(|_| status == 0)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&handle.kind.to_ne_bytes());
    hasher.update(bytes);
    let mut digest = [0; 8];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    Some(u64::from_ne_bytes(digest))
}

/// The space of the handles in this root's tree.
pub(super) fn handle_space(root: BorrowedFd<'_>) -> Option<u64> {
    digest_handle(root, OsStr::new(""))
}

/// The scope in which a handle is unique. An object on another device than the root may be on
/// another server, so the device is a part of the scope.
#[derive(Clone, Copy)]
pub(super) struct HandleSpace {
    /// The space of the root, from [`handle_space`].
    pub(super) root: u64,
    /// The object's device.
    pub(super) device: u64,
}

/// The handle of an open object, or of `name` in `dir`.
pub(super) fn handle_digest(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    space: HandleSpace,
) -> Option<HandleDigest> {
    let digest = digest_handle(dir, name)?;
    let own = space.root ^ space.device.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Some(HandleDigest { space: own, digest })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_handle_belongs_to_one_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "a").unwrap();
        std::fs::write(dir.path().join("b"), "b").unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let own = handle_space(root.as_fd()).expect("the file system of TMPDIR shows file handles");
        let look = |name: &str| {
            handle_digest(root.as_fd(), name.as_ref(), HandleSpace { root: own, device: 0 })
        };
        let (a, b) = (look("a").unwrap(), look("b").unwrap());
        assert!(a.is_distinct_from(b));
        let open = std::fs::File::open(dir.path().join("a")).unwrap();
        assert_eq!(
            handle_digest(open.as_fd(), OsStr::new(""), HandleSpace { root: own, device: 0 }),
            Some(a)
        );
        assert_eq!(look("missing"), None);
        let nested =
            handle_digest(root.as_fd(), "b".as_ref(), HandleSpace { root: own, device: 7 })
                .unwrap();
        assert!(!a.is_distinct_from(nested), "of another device");
    }
}
