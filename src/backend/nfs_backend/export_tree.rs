//! An export in service: its tree, and its objects in the terms of a replica.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::NfsTimes;
use crate::backend::{Attr, FileKind, Generation, HandleDigest, Timestamp};
use crate::nfs::{
    Caller, FileHandle, FoundDirectory, Identity, Kind, NfsError, Object, Rights, Time, Tree,
    TreeLimits,
};
use crate::survey::ExportRoot;
use crate::volume::FileId;

/// The longest read that one call makes: one default segment. Some servers offer 64 MiB, and send
/// it at a stretch while all else waits.
const MAX_READ: usize = 1 << 20;

/// How long a listing may take if each of its parts comes in time. Within it, a server of 10,000
/// names per second lists 6 million.
const LISTING_LIMIT: Duration = Duration::from_secs(600);

/// How long a server may take to show that it is alive.
const ALIVE_LIMIT: Duration = Duration::from_secs(5);

/// The longest name on most file systems, where a server does not say.
const USUAL_MAX_NAME: u32 = 255;

/// For servers that send 0 as their limit.
const MIN_READ: NonZeroUsize = NonZeroUsize::new(4096).expect("it is above 0");

/// The bytes of a block of [`Attr::blocks`].
const SECTOR: u64 = 512;

/// The device of a file system below the root whose server numbers it 0.
const UNNUMBERED_DEV: u64 = u64::MAX;

/// An export in service.
pub(super) struct ExportTree {
    tree: Tree,
    root: Object,
    /// Identifies the servers with the same handles for the same objects.
    handle_space: u64,
    read_size: NonZeroUsize,
    max_name: OnceLock<u32>,
    has_ended: AtomicBool,
}

impl Deref for ExportTree {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl ExportTree {
    pub(super) fn new(found: ExportRoot, times: NfsTimes) -> Self {
        let ExportRoot { client, root, limits, .. } = found;
        let read_size = NonZeroUsize::new(MAX_READ.min(limits.max_read as usize))
            .map_or(MIN_READ, |size| size.max(MIN_READ));
        let limits = TreeLimits {
            operation: times.operation,
            listing: times.operation.max(LISTING_LIMIT),
            directories: times.directories,
            read: read_size,
        };
        Self {
            tree: Tree::new(client, root.handle, limits),
            root,
            handle_space: digest(root.handle),
            read_size,
            max_name: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// A directory ([`Tree::directory`]). The root asks no server.
    pub(super) fn directory(
        &self,
        caller: Caller<'_>,
        path: &Path,
        tries_known: bool,
    ) -> std::result::Result<FoundDirectory, NfsError> {
        match path.as_os_str().is_empty() {
            true => Ok(FoundDirectory { dir: self.root, is_known: true }),
            false => self.tree.directory(caller, path, tries_known),
        }
    }

    /// Whether the root is still the same directory.
    ///
    /// # Errors
    /// If the server does not answer in time.
    pub(super) fn is_alive(&self) -> std::result::Result<bool, NfsError> {
        let identity = super::thread_identity();
        let caller = Caller { identity: &identity, deadline: Instant::now() + ALIVE_LIMIT };
        match self.client().attributes(caller, self.root.handle) {
            Ok(now) => {
                let before = &self.root.attributes;
                Ok((now.number, now.file_system) == (before.number, before.file_system))
            }
            Err(NfsError::Status(status)) if status.is_stale() => Ok(false),
            // Root may have no rights at the server, which has answered.
            Err(NfsError::Status(status)) if status.errno() == Errno::ACCESS => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Checks that the caller has a right to an object.
    ///
    /// # Errors
    /// EACCES if it does not.
    pub(super) fn check_right(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
        wanted: Rights,
    ) -> std::result::Result<(), NfsError> {
        match self.client().access(caller, object, wanted)?.contains(wanted) {
            true => Ok(()),
            false => Err(NfsError::Object(Errno::ACCESS)),
        }
    }

    /// The longest name, which is the same for all of the tree.
    pub(super) fn max_name(&self, identity: &Identity) -> u32 {
        let ask = || match self.client().max_name(self.caller(identity), self.root.handle) {
            Ok(0) | Err(_) => USUAL_MAX_NAME,
            Ok(longest) => longest,
        };
        *self.max_name.get_or_init(ask)
    }

    /// Ends its calls: another tree has taken its place.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.client().stop();
    }

    /// Whether [`ExportTree::end`] was called.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// An object's attributes.
    pub(super) fn attr(&self, object: &Object) -> Attr {
        let Object { handle, attributes } = object;
        let dev = match attributes.file_system {
            own if own == self.root.attributes.file_system => FileId::ROOT_DEV,
            FileId::ROOT_DEV => UNNUMBERED_DEV,
            other => other,
        };
        let digest = HandleDigest { space: self.handle_space, digest: digest(*handle) };
        Attr {
            id: FileId { dev, ino: attributes.number },
            kind: kind_of(attributes.kind),
            perm: attributes.permissions,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.device,
            size: attributes.size,
            blocks: attributes.used.div_ceil(SECTOR),
            blksize: self.read_size.get() as u32,
            atime: timestamp(attributes.accessed),
            mtime: timestamp(attributes.modified),
            ctime: timestamp(attributes.changed),
            generation: Generation { born: None, handle: Some(digest) },
        }
    }
}

pub(super) fn kind_of(kind: Kind) -> FileKind {
    match kind {
        Kind::Regular => FileKind::Regular,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
        Kind::CharDevice => FileKind::CharDevice,
        Kind::BlockDevice => FileKind::BlockDevice,
    }
}

fn timestamp(time: Time) -> Timestamp {
    (time.seconds, time.nanoseconds)
}

/// A digest that a successor computes in the same way.
fn digest(handle: FileHandle) -> u64 {
    let mut digest = [0; 8];
    digest.copy_from_slice(&blake3::hash(handle.as_bytes()).as_bytes()[..8]);
    u64::from_ne_bytes(digest)
}
