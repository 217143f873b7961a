//! Open files and directories, and their handles.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::backend::{Attr, CredentialsRecord, DirEntry};
use crate::fs::handle_id::HandleId;
use crate::fs::ino::Ino;
use crate::volume::FileVersion;

/// Identifies a directory's listing: a hash of its names, in their order.
pub(in crate::fs) type ListingDigest = [u8; 16];

/// The inode number of the parent directory, and the entries.
pub(in crate::fs) type ListingRecord = Option<(u64, Vec<DirEntry>)>;

/// An open file, which may have several handles.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct FileRecord {
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) version: VersionRecord,
    /// The files that replicas have open.
    pub(in crate::fs) replica_files: Vec<ReplicaFileRecord>,
    /// The attributes that a replica showed last.
    pub(in crate::fs) attr: Option<Attr>,
}

/// A version of a file, and how it is opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::fs) struct VersionRecord {
    pub(in crate::fs) path: OsString,
    pub(in crate::fs) version: FileVersion,
    pub(in crate::fs) credentials: CredentialsRecord,
}

/// A file that a replica has open.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct ReplicaFileRecord {
    pub(in crate::fs) replica: u16,
    /// Whether its open showed this version.
    pub(in crate::fs) is_verified: bool,
    /// The index of the descriptor among those that are sent.
    pub(in crate::fs) file: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct HandleRecord {
    pub(in crate::fs) number: u64,
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) credentials: CredentialsRecord,
    pub(in crate::fs) kind: HandleKindRecord,
}

/// What a handle is open on.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) enum HandleKindRecord {
    File {
        version: VersionRecord,
        is_direct: bool,
        /// Whether it was opened at the version that the kernel opened last.
        is_current: bool,
        writer: Option<WriterRecord>,
    },
    Directory {
        is_started: bool,
        listing: ListingRecord,
        lost_digest: Option<ListingDigest>,
    },
}

/// The right of a handle to write.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct WriterRecord {
    pub(in crate::fs) readable: bool,
    /// The code of a [`crate::backend::SyncMode`].
    pub(in crate::fs) sync: u8,
    pub(in crate::fs) credentials: CredentialsRecord,
    /// The errno that the next fsync(2) or close(2) reports.
    pub(in crate::fs) deferred_error: Option<i32>,
    /// Whether no descriptor was opened since a daemon was killed. Then none is sent, and the next
    /// daemon opens the file when it is first used.
    pub(in crate::fs) is_deferred: bool,
    /// The index of the descriptor among those that are sent.
    pub(in crate::fs) file: Option<u32>,
}

impl FileRecord {
    /// A file that no replica has open.
    pub(in crate::fs) fn unopened(ino: Ino, version: VersionRecord) -> Self {
        Self { ino: ino.0, version, replica_files: Vec::new(), attr: None }
    }
}

impl HandleRecord {
    pub(in crate::fs) fn is_writer(&self) -> bool {
        matches!(self.kind, HandleKindRecord::File { writer: Some(_), .. })
    }

    pub(in crate::fs) fn id(&self) -> HandleId {
        HandleId { number: self.number, ino: Ino(self.ino) }
    }

    /// A handle of a directory.
    #[cfg(test)]
    pub(in crate::fs) fn example(number: u64) -> Self {
        let kind =
            HandleKindRecord::Directory { is_started: false, listing: None, lost_digest: None };
        Self { number, ino: 2, credentials: None, kind }
    }

    /// Removes references to descriptors, listings, and the state of the kernel's cache.
    pub(in crate::fs) fn mark_daemon_killed(&mut self) {
        match &mut self.kind {
            HandleKindRecord::File { is_current, writer, .. } => {
                *is_current = false;
                if let Some(writer) = writer {
                    writer.file = None;
                }
            }
            HandleKindRecord::Directory { listing, .. } => *listing = None,
        }
    }

    /// Records that the directory was listed.
    pub(in crate::fs) fn set_listed(&mut self, digest: ListingDigest) {
        if let HandleKindRecord::Directory { lost_digest, is_started, .. } = &mut self.kind {
            *lost_digest = Some(digest);
            *is_started = true;
        }
    }
}
