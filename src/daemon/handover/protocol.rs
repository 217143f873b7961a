//! The state that one daemon of a mount hands to the next, and the steps of a handover.
//!
//! ```text
//! predecessor                       successor
//!   Mount        ------------------->  admits the replicas, prepares a session
//!                <-------------------  Prepared
//!   takes no more requests, drains those in flight
//!   Tables, Files*, EarlierDaemons*,
//!   Device       ------------------->  restores inodes and handles
//!                <-------------------  Restored
//!   drops the device for good
//!   Go           ------------------->  serves
//!                <-------------------  Serving
//! ```
//!
//! *Invariant:* until it drops the device for good, the predecessor can resume as if nothing
//! had happened. If anything fails before that, it resumes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::{BackendFile, ExportFileRecord, OwnedFileParts};
use crate::daemon::earlier_daemons::EarlierDaemons;
use crate::daemon::fd_channel::{FdChannel, MAX_FDS_PER_MESSAGE};
use crate::daemon::mount_snapshot::MountSnapshot;
use crate::fs::FsSnapshot;

/// The messages of a predecessor.
#[derive(Serialize, Deserialize)]
pub(in crate::daemon) enum PredecessorMessage {
    #[serde(rename = "Estate")]
    Mount(MountSnapshot),
    /// Inodes and handles, in the last of the files that come along. The one before it, if there are
    /// two, has the files of exports.
    #[serde(rename = "All")]
    Tables,
    /// Some of the open files.
    Files,
    /// Some of the daemons before the successor that have not ended, the predecessor included.
    #[serde(rename = "Former")]
    EarlierDaemons,
    /// The device, and the keeper's link if there is one.
    Device,
    Go,
}

/// The messages of a successor.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) enum SuccessorMessage {
    Prepared,
    Restored,
    Serving,
    Refused { why: String },
}

/// Inodes and handles, and the descriptors that each file has: one past the page cache, one
/// through it.
#[derive(Serialize, Deserialize)]
pub(in crate::daemon) struct StateMessage {
    pub(in crate::daemon) snapshot: FsSnapshot,
    parts: Vec<(bool, bool)>,
    /// They come in a file of their own: a daemon of another version may not know them.
    #[serde(skip)]
    exports: ExportFiles,
}

/// The files of exports, by their index among all that are sent.
type ExportFiles = BTreeMap<usize, ExportFileRecord>;

/// Sends inodes, handles, files and earlier daemons.
pub(in crate::daemon) fn send_state(
    link: &FdChannel,
    snapshot: FsSnapshot,
    files: &[Arc<dyn BackendFile>],
    earlier_daemons: &EarlierDaemons,
) -> io::Result<()> {
    let mut open: Vec<_> = files.iter().map(|file| file.parts()).collect();
    let parts = open.iter().map(|p| (p.direct.is_some(), p.cached.is_some())).collect();
    let exports = open.iter_mut().enumerate();
    let exports = exports.filter_map(|(index, parts)| Some((index, parts.export.take()?)));
    let state = StateMessage { snapshot, parts, exports: exports.collect() };
    let along = state.write()?;
    let along: Vec<_> = along.iter().map(AsFd::as_fd).collect();
    link.send(&PredecessorMessage::Tables, &along)?;
    let descriptors: Vec<BorrowedFd<'_>> =
        open.iter().flat_map(|parts| [parts.direct, parts.cached]).flatten().collect();
    for some in descriptors.chunks(MAX_FDS_PER_MESSAGE) {
        link.send(&PredecessorMessage::Files, some)?;
    }
    for some in earlier_daemons.running().chunks(MAX_FDS_PER_MESSAGE) {
        link.send(&PredecessorMessage::EarlierDaemons, some)?;
    }
    Ok(())
}

/// A file in memory, to be read from its start.
fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let file = rustix::fs::memfd_create("fanfs", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

impl StateMessage {
    /// Writes the files that are sent, in their order.
    fn write(&self) -> io::Result<Vec<File>> {
        let mut files = Vec::new();
        if !self.exports.is_empty() {
            files.push(memory_file(&serde_json::to_vec(&self.exports)?)?);
        }
        files.push(memory_file(&postcard::to_stdvec(self).map_err(io::Error::other)?)?);
        Ok(files)
    }

    /// Reads inodes and handles from the files that came along.
    pub(in crate::daemon) fn read(tables: OwnedFd, exports: Option<OwnedFd>) -> io::Result<Self> {
        let read = |file: OwnedFd| {
            let mut bytes = Vec::new();
            File::from(file).read_to_end(&mut bytes).map(|_| bytes)
        };
        let mut all: Self = postcard::from_bytes(&read(tables)?).map_err(io::Error::other)?;
        if let Some(exports) = exports {
            // Without them the files are opened again by their paths.
            all.exports = serde_json::from_slice(&read(exports)?).unwrap_or_else(|error| {
                tracing::warn!(%error, "the previous daemon's files of exports cannot be read");
                ExportFiles::new()
            });
        }
        Ok(all)
    }

    /// Groups the received descriptors by file, and adds the files of exports.
    pub(in crate::daemon) fn group_parts(&mut self, along: Vec<OwnedFd>) -> Vec<OwnedFileParts> {
        let mut along = along.into_iter();
        let mut next = |is_there: bool| if is_there { along.next() } else { None };
        let parts = self.parts.iter().enumerate();
        parts
            .map(|(index, (direct, cached))| OwnedFileParts {
                direct: next(*direct),
                cached: next(*cached),
                export: self.exports.remove(&index),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_exports_come_beside_the_tables() {
        let record = r#"{"root":[1],"handle":[2,3],"user":[4,5,[6]]}"#;
        let record: ExportFileRecord = serde_json::from_str(record).unwrap();
        let exports = ExportFiles::from([(1, record.clone())]);
        let parts = vec![(false, false); 2];
        let snapshot = FsSnapshot::default;
        let state = StateMessage { snapshot: snapshot(), parts: parts.clone(), exports };
        let mut along: Vec<OwnedFd> = state.write().unwrap().into_iter().map(Into::into).collect();
        assert_eq!(along.len(), 2);
        let tables = along.pop().unwrap();
        let mut read = StateMessage::read(tables, along.pop()).unwrap();
        let files = read.group_parts(Vec::new());
        assert!(files[0].is_empty() && files[1].export.as_ref() == Some(&record));
        // A daemon that does not know them takes the last file.
        let mut along = state.write().unwrap();
        let read = StateMessage::read(along.pop().unwrap().into(), None).unwrap();
        assert!(read.parts == parts && read.exports.is_empty());
        // Those of a later version may be different.
        let other = memory_file(b"[{}]").unwrap();
        let tables = state.write().unwrap().pop().unwrap();
        let read = StateMessage::read(tables.into(), Some(other.into())).unwrap();
        assert!(read.parts == parts && read.exports.is_empty());
        // Without any there is one file.
        let none = StateMessage { snapshot: snapshot(), parts, exports: ExportFiles::new() };
        assert_eq!(none.write().unwrap().len(), 1);
    }

    /// Daemons of other versions read these names.
    #[test]
    fn message_names_stay_compatible_with_other_versions() {
        let name = |message: &PredecessorMessage| serde_json::to_string(message).unwrap();
        assert_eq!(name(&PredecessorMessage::Tables), "\"All\"");
        assert_eq!(name(&PredecessorMessage::Files), "\"Files\"");
        assert_eq!(name(&PredecessorMessage::EarlierDaemons), "\"Former\"");
        assert_eq!(name(&PredecessorMessage::Device), "\"Device\"");
        assert_eq!(name(&PredecessorMessage::Go), "\"Go\"");
    }
}
