//! A replica as it is read without fanfs's read path: what bench and doctor compare fanfs with.
//!
//! Calls block as long as the replica does.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::Errno;

use crate::backend::{Backend, BackendError, BackendFile, FileKind, ObjectRef};
use crate::config::{Config, ReplicaConfig};
use crate::daemon::{OpenReplicaError, open_replica};
use crate::survey::sample::{self, SampleObject, SampleSearch, SampleTree};
use crate::timeout::run_with_timeout;

/// A replica.
#[derive(Clone)]
pub enum RawReplica {
    /// A directory, which the kernel reads.
    Directory(PathBuf),
    /// An NFS server's export, which this process reads.
    Export {
        /// The connections to it.
        backend: Arc<dyn Backend>,
        /// Its address.
        location: String,
    },
}

/// Why a replica cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UnopenedReplica {
    /// It cannot be opened at all.
    #[error(transparent)]
    Refused(Arc<OpenReplicaError>),
    /// It did not answer.
    #[error("did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

/// An open file of a [`RawReplica`].
pub enum RawFile {
    /// In a directory.
    Mounted(File),
    /// In an export.
    Served(Arc<dyn BackendFile>),
}

/// How the kernel reads a file. Exports are always read past its page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawMode {
    /// With O_DIRECT.
    Direct,
    /// Through the page cache.
    Cached,
}

impl std::fmt::Display for RawReplica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Export { location, .. } => location.fmt(f),
        }
    }
}

impl RawReplica {
    /// Opens a volume's replica. A directory is opened with its files, later.
    ///
    /// # Errors
    /// If an export cannot be opened.
    pub fn open(config: &Config, replica: &ReplicaConfig) -> Result<Self, OpenReplicaError> {
        Ok(match replica.location.directory() {
            Some(path) => Self::Directory(path.to_owned()),
            None => Self::Export {
                backend: open_replica(config, replica)?,
                location: replica.location.to_string(),
            },
        })
    }

    /// The same, for at most `deadline`.
    ///
    /// # Errors
    /// If an export cannot be opened, or not in that time.
    pub fn open_within(
        config: &Config,
        replica: &ReplicaConfig,
        deadline: Duration,
    ) -> Result<Self, UnopenedReplica> {
        let config = config.clone();
        let replica = replica.clone();
        let opened = run_with_timeout(deadline, move || Self::open(&config, &replica));
        let opened = opened.ok_or(UnopenedReplica::TimedOut(deadline))?;
        opened.map_err(|error| UnopenedReplica::Refused(Arc::new(error)))
    }

    /// Whether this process reads it, not the kernel.
    pub fn is_export(&self) -> bool {
        matches!(self, Self::Export { .. })
    }

    /// A file's path, for people.
    pub fn path_of(&self, file: &Path) -> PathBuf {
        match self {
            Self::Directory(root) => root.join(file),
            Self::Export { location, .. } => Path::new(location).join(file),
        }
    }

    /// Opens a file for reading; its path is relative to the replica's root.
    ///
    /// # Errors
    /// The replica's error.
    pub fn open_file(&self, file: &Path, mode: RawMode) -> io::Result<RawFile> {
        match self {
            Self::Directory(root) => {
                let direct = match mode {
                    RawMode::Direct => OFlags::DIRECT,
                    RawMode::Cached => OFlags::empty(),
                };
                // A FIFO must not block the open.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | direct;
                let opened = rustix::fs::open(root.join(file), flags, Mode::empty())?;
                Ok(RawFile::Mounted(opened.into()))
            }
            Self::Export { backend, .. } => {
                Ok(RawFile::Served(backend.open(file).map_err(io_error)?.0))
            }
        }
    }

    /// The size of a regular file, bytes. `None` if another object has this path. A symbolic link
    /// is another object.
    ///
    /// # Errors
    /// The replica's error.
    pub fn file_size(&self, file: &Path) -> io::Result<Option<u64>> {
        match self {
            Self::Directory(root) => {
                let stat = std::fs::symlink_metadata(root.join(file))?;
                Ok(stat.is_file().then_some(stat.len()))
            }
            Self::Export { backend, .. } => {
                let attr = backend.stat(file).map_err(io_error)?;
                Ok((attr.kind == FileKind::Regular).then_some(attr.size))
            }
        }
    }

    /// Searches for the file with the most data for at most `time`, and waits for `patience` longer
    /// for a call that hangs.
    pub fn find_sample(&self, time: Duration, patience: Duration) -> SampleSearch {
        match self {
            Self::Directory(root) => sample::find(root, time, patience),
            Self::Export { backend, .. } => {
                sample::find_in(ExportTree(Arc::clone(backend)), time, patience)
            }
        }
    }
}

impl RawFile {
    /// Reads once.
    ///
    /// # Errors
    /// The replica's error.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::Mounted(file) => file.read_at(buffer, offset),
            Self::Served(file) => file.read_at(offset, buffer).map_err(io_error),
        }
    }

    /// Reads until `buffer` is full.
    ///
    /// # Errors
    /// The replica's error, also if the file ends before that.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Mounted(file) => file.read_exact_at(buffer, offset),
            Self::Served(_) => {
                let mut filled = 0;
                while filled < buffer.len() {
                    match self.read_at(&mut buffer[filled..], offset + filled as u64)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        read => filled += read,
                    }
                }
                Ok(())
            }
        }
    }

    /// Drops a range of it from this machine's page cache; without a length, all from `offset` on.
    ///
    /// # Errors
    /// The system's error.
    pub fn drop_page_cache(&self, offset: u64, length: Option<NonZeroU64>) -> io::Result<()> {
        match self {
            Self::Mounted(file) => Ok(fadvise(file, offset, length, Advice::DontNeed)?),
            Self::Served(_) => Ok(()),
        }
    }
}

fn io_error(error: BackendError) -> io::Error {
    match error {
        BackendError::Os(Errno::TIMEDOUT) => {
            let what = "the server did not answer in time, or the connection was lost";
            io::Error::new(io::ErrorKind::TimedOut, what)
        }
        BackendError::Os(errno) => errno.into(),
        other => io::Error::other(other),
    }
}

/// An export that is searched for a sample.
struct ExportTree(Arc<dyn Backend>);

/// Objects that are looked at in one go.
const BATCH: usize = 64;

impl SampleTree for ExportTree {
    fn list(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&OsStr, Option<SampleObject>) -> ControlFlow<()>,
    ) -> bool {
        let directory = ObjectRef::unchecked(directory);
        let Ok(entries) = self.0.entries(&directory) else { return false };
        for batch in entries.chunks(BATCH) {
            let names: Vec<_> = batch.iter().map(|entry| entry.name.clone()).collect();
            let Ok(attrs) = self.0.stat_entries(&directory, &names) else { return false };
            let mut seen = names.iter().zip(attrs);
            let flow = seen.try_for_each(|(name, attr)| {
                each(
                    name,
                    attr.ok().map(|attr| match attr.kind {
                        FileKind::Directory => SampleObject::Directory,
                        FileKind::Regular => {
                            SampleObject::File { size: attr.size, blocks: attr.blocks }
                        }
                        _ => SampleObject::Other,
                    }),
                )
            });
            if flow.is_break() {
                break;
            }
        }
        true
    }

    fn can_open(&self, file: &Path) -> bool {
        self.0.open(file).is_ok()
    }
}
