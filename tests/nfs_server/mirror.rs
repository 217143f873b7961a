//! The directory that a server exports, and how the server misbehaves. Both versions of NFS have
//! the same numbers for the errors here.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;

/// The number of an error: `nfsstat3` and `nfsstat4`.
pub(crate) type Status = u32;

pub(crate) const NOENT: Status = 2;
pub(crate) const IO: Status = 5;
pub(crate) const ACCES: Status = 13;
pub(crate) const NOTDIR: Status = 20;
pub(crate) const INVAL: Status = 22;
pub(crate) const STALE: Status = 70;
pub(crate) const SERVERFAULT: Status = 10_006;
/// "Try again later".
pub(crate) const JUKEBOX: Status = 10_008;

pub(crate) type Answer<T> = Result<T, Status>;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    LookUp,
    Read,
    Other,
}

/// What happens to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFault {
    None,
    /// They are answered once this is over.
    Hang,
    Delay(Duration),
    Fail(Status),
}

/// What a server does otherwise than it should.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    pub(crate) look_ups: CallFault,
    /// Of reads that are not among `bad_reads`.
    pub(crate) reads: CallFault,
    pub(crate) others: CallFault,
    pub(crate) max_read: usize,
    pub(crate) bad_reads: BadReads,
    /// Whether it shows the other directory.
    pub(crate) is_turned: bool,
}

impl Habits {
    pub(crate) const GOOD: Self = Self {
        look_ups: CallFault::None,
        reads: CallFault::None,
        others: CallFault::None,
        max_read: usize::MAX,
        bad_reads: BadReads::NONE,
        is_turned: false,
    };

    fn of(&self, kind: CallKind) -> CallFault {
        match kind {
            CallKind::LookUp => self.look_ups,
            CallKind::Read => self.reads,
            CallKind::Other => self.others,
        }
    }

    /// Makes all calls behave so.
    pub(crate) fn set_all(&mut self, fault: CallFault) {
        (self.look_ups, self.reads, self.others) = (fault, fault, fault);
    }
}

/// Reads that hang or fail, by the offset of their first byte.
#[derive(Clone, Copy)]
pub(crate) struct BadReads {
    /// Those from here on hang.
    pub(crate) hung_from: u64,
    /// Of the others, those before it fail.
    pub(crate) failing_before: u64,
    /// Of the others, those from here on find the end of the file.
    pub(crate) ending_from: u64,
}

impl BadReads {
    /// All reads are good.
    pub(crate) const NONE: Self =
        Self { hung_from: u64::MAX, failing_before: 0, ending_from: u64::MAX };
}

/// A directory. A handle is an inode number.
pub(crate) struct Mirror {
    root: PathBuf,
    /// The directory that is shown while the server is turned.
    other: Option<PathBuf>,
    root_ino: u64,
    /// The last known path of each inode.
    paths: Mutex<HashMap<u64, PathBuf>>,
    habits: watch::Receiver<Habits>,
}

/// A name in a directory.
pub(crate) struct MirrorEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) found: Metadata,
}

impl Mirror {
    pub(crate) fn new(root: &Path, other: Option<&Path>, habits: watch::Receiver<Habits>) -> Self {
        let root_ino = root.symlink_metadata().unwrap().ino();
        let paths = Mutex::new(HashMap::from([(root_ino, root.to_owned())]));
        Self { root: root.to_owned(), other: other.map(Path::to_owned), root_ino, paths, habits }
    }

    pub(crate) fn root_ino(&self) -> u64 {
        self.root_ino
    }

    /// Does to a call what the habits say.
    pub(crate) async fn pass(&self, kind: CallKind) -> Answer<()> {
        self.pass_unless(|habits| habits.of(kind)).await.map(drop)
    }

    /// The same for a read.
    pub(crate) async fn pass_read(&self, offset: u64) -> Answer<()> {
        let fault = |habits: &Habits| match habits.bad_reads {
            BadReads { hung_from: u64::MAX, .. } => habits.reads,
            bad if offset >= bad.hung_from => CallFault::Hang,
            _ => match habits.reads {
                CallFault::Hang => CallFault::None,
                fault => fault,
            },
        };
        let habits = self.pass_unless(fault).await?;
        if offset < habits.bad_reads.failing_before { Err(IO) } else { Ok(()) }
    }

    async fn pass_unless(&self, fault: impl Fn(&Habits) -> CallFault) -> Answer<Habits> {
        let mut changes = self.habits.clone();
        let passes = |habits: &Habits| fault(habits) != CallFault::Hang;
        // The server ends: this call is not answered any more.
        let habits = *changes.wait_for(passes).await.map_err(|_| IO)?;
        match fault(&habits) {
            CallFault::Fail(status) => return Err(status),
            CallFault::Delay(time) => tokio::time::sleep(time).await,
            CallFault::None | CallFault::Hang => {}
        }
        Ok(habits)
    }

    /// The path of an object, and its metadata.
    pub(crate) fn find(&self, handle: u64) -> Answer<(PathBuf, Metadata)> {
        let path = self.paths.lock().unwrap().get(&handle).cloned().ok_or(STALE)?;
        let found = path.symlink_metadata().map_err(|_| STALE)?;
        if found.ino() == handle { Ok((path, found)) } else { Err(STALE) }
    }

    /// The path that a directory has now.
    fn find_directory(&self, handle: u64) -> Answer<PathBuf> {
        let (path, found) = self.find(handle)?;
        if !found.is_dir() {
            return Err(NOTDIR);
        }
        let Some(other) = &self.other else { return Ok(path) };
        let [shown, hidden] = match self.habits.borrow().is_turned {
            true => [other, &self.root],
            false => [&self.root, other],
        };
        Ok(path.strip_prefix(hidden).map_or(path.clone(), |below| shown.join(below)))
    }

    pub(crate) fn learn(&self, path: PathBuf) -> Answer<Metadata> {
        let found = path.symlink_metadata().map_err(|error| status(&error))?;
        self.paths.lock().unwrap().insert(found.ino(), path);
        Ok(found)
    }

    pub(crate) fn look_up(&self, dir: u64, name: &[u8]) -> Answer<Metadata> {
        self.learn(self.find_directory(dir)?.join(OsStr::from_bytes(name)))
    }

    /// The bytes, and whether the file ends after them.
    pub(crate) fn read(&self, handle: u64, offset: u64, count: usize) -> Answer<(Vec<u8>, bool)> {
        let habits = *self.habits.borrow();
        if offset >= habits.bad_reads.ending_from {
            return Ok((Vec::new(), true));
        }
        let (path, _) = self.find(handle)?;
        let file = File::open(path).map_err(|error| status(&error))?;
        let mut bytes = vec![0; habits.max_read.min(count)];
        let mut filled = 0;
        loop {
            let read = file.read_at(&mut bytes[filled..], offset + filled as u64);
            match read.map_err(|error| status(&error))? {
                0 => break,
                n => filled += n,
            }
        }
        bytes.truncate(filled);
        let size = file.metadata().map_err(|error| status(&error))?.size();
        Ok((bytes, offset + filled as u64 >= size))
    }

    /// Sorted by name.
    pub(crate) fn list(&self, dir: u64) -> Answer<Vec<MirrorEntry>> {
        let listed =
            std::fs::read_dir(self.find_directory(dir)?).map_err(|error| status(&error))?;
        let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let entry = |path: PathBuf| {
            let name = path.file_name()?.to_owned().into_vec();
            Some(MirrorEntry { name, found: self.learn(path).ok()? })
        };
        Ok(paths.into_iter().filter_map(entry).collect())
    }

    pub(crate) fn read_link(&self, handle: u64) -> Answer<Vec<u8>> {
        let (path, found) = self.find(handle)?;
        if !found.is_symlink() {
            return Err(INVAL);
        }
        let target = std::fs::read_link(path).map_err(|error| status(&error))?;
        Ok(target.into_os_string().into_vec())
    }
}

fn status(error: &std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::NotFound => NOENT,
        std::io::ErrorKind::NotADirectory => NOTDIR,
        std::io::ErrorKind::PermissionDenied => ACCES,
        _ => IO,
    }
}
